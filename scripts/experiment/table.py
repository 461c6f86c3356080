"""What `scripts.reproduce` does: the runs of a paper's table, its scores, and the table beside the published one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eval.report.rendering import as_csv, latex, markdown
from eval.report.tables import Row, Table
from eval.report.wandb_log import log_table
from eval.store import replace_file
from scripts.experiment.assemble import caption, load_option
from scripts.experiment.exits import configured
from scripts.experiment.grid import Experiment, experiment
from scripts.experiment.layout import Line, cells_of, restriction
from scripts.experiment.progress import progress_line
from scripts.experiment.roles import other_models
from scripts.experiment.steps import complain

if TYPE_CHECKING:
    from omegaconf import DictConfig


def reproduce(cfg: DictConfig) -> int:
    """Run what is missing, score, print and write the table."""
    return configured(cfg, "reproduce", _reproduce)


def _reproduce(cfg: DictConfig) -> int:
    from omegaconf import OmegaConf

    table: dict[str, Any] = dict(OmegaConf.to_container(cfg.table, resolve=True))  # type: ignore[arg-type]
    made = experiment(cfg, table)
    if made is None:
        return 3
    result = _table(cfg, table, made)
    folder = made.built.results / "tables"
    name = "-".join([table["name"], *([cfg.backbone] if cfg.backbone else []), cfg.profile_name])
    columns = None if cfg.columns is None else [one.group for one in made.benchmarks]
    stem = folder / f"{name}{restriction(table, load_option('table', table['name']), cfg.only, columns)}"
    for suffix, text in ((".md", markdown(result)), (".csv", as_csv(result)), (".tex", latex(result))):
        replace_file(stem.with_name(stem.name + suffix), text)
    print(markdown(result, brief=True))
    print(f"written: {stem}.md (with categories, paired differences and costs by phase), .csv, .tex")
    log_table(OmegaConf.to_container(cfg, resolve=True), result)  # type: ignore[arg-type]
    return complain(result, cfg.max_unscored)


def _table(cfg: DictConfig, table: Mapping[str, Any], made: Experiment) -> Table:
    backbone, benchmarks, grid = made.backbone, made.benchmarks, made.grid
    rows = []
    with progress_line("scoring", len(made.lines)) as progress:
        for line in made.lines:
            rows.append(_row(cfg, made, line))
            progress.step()
    used = [
        (benchmark.dataset, benchmark.reading, benchmark.option.get("unit") or benchmark.dataset.config["unit"])
        for benchmark in benchmarks
        if benchmark.dataset is not None
    ]
    theirs = ", ".join(f"{role} {model}" for role, model in backbone["models"].items())
    named = [backbone["file"]] if isinstance(backbone["file"], str) else backbone["file"]
    files = ", ".join(f"{file}.csv" for file in named)
    notes = [f"Published: {table['paper']}, {files} ({theirs}).", *table.get("notes", ())]
    if cfg.profile_name == "paper" and (others := other_models(cfg, backbone)):
        notes.insert(
            0, f"OTHER MODEL than the paper's: {', '.join(others)}. Nothing here is compared with its numbers."
        )
    notes += [f"Not reproduced: {entry['reason']}" for entry in table.get("not_reproduced", ())]
    notes += [*grid.choices(), *([made.capped] if made.capped else [])]
    columns = tuple(grid.column(one, metric) for one in benchmarks for metric in cells_of(one.option))
    return Table(
        table["name"],
        table["title"],
        (*caption(cfg, made.built, used), *notes),
        columns,
        tuple(rows),
        table.get("reference", ""),
        made.built.prices,
        made.wanted,
    )


def _row(cfg: DictConfig, made: Experiment, line: Line) -> Row:
    grid, benchmarks = made.grid, made.benchmarks
    cells = [grid.cell(line, benchmark, metric) for benchmark in benchmarks for metric in cells_of(benchmark.option)]
    folders = {
        group: run.folder for (name, group, number), run in made.runs.items() if name == line.name and not number
    }
    evidence = {
        one.group: found[0][f"evidence@{cfg.k_evidence}"] for one in benchmarks if (found := grid.files(line, one))
    }
    return Row(line.name, line.title, tuple(cells), folders, evidence, line.ruled)
