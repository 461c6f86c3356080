"""One job of a sweep: run, score and write the settings that share a build.

Hydra runs one job for each combination of `hydra.sweeper.params`, the settings that a memory is built with. The settings under
`sweep.read` affect reading only: all of them share one build per history (`eval.running.loop`). Every job adds its lines to
`results/sweeps/<name>-<profile>.csv`; the file is replaced as a whole and kept in order.

Decisions:

- A line stays in the file only while its `protocol` (data, models, read settings) equals that of the new lines.
- With `profile=paper` or an `endpoint.base_url`, the models that a sweep names are called; otherwise the offline engine stands in for
  all of them, and the column `engine` says so.
- Each setting is charged its whole build cost, even where several settings shared one build.
- `max_usd` caps all jobs together, as long as they run one after the other (Hydra's own launcher).
"""

from __future__ import annotations

import csv
import io
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.analysis.costs import costs
from eval.files.provenance import identity
from eval.files.run_folder import RunFolder
from eval.files.store import RunError, replace_file
from eval.report.cell import ALL, Cell, Column, outcomes
from eval.report.measures import cost
from eval.report.wandb_log import log_sweep
from eval.running.run import Run
from eval.statistics.stats import Interval
from memsys.inert import csv_text, plain_cell
from scripts.assembly.datasets import fetch_missing
from scripts.assembly.models import STAND_IN, Models, build_models, chosen_models
from scripts.assembly.plan import confirmed, meter, plan, side_by_side
from scripts.assembly.readiness import prepared
from scripts.assembly.runs import memory_run
from scripts.assembly.scorers import judge_ahead, judge_prompts, judging, metrics
from scripts.assembly.steps import answer_all, print_missing, score, workable
from scripts.tables.captions import evidence_line, lost_by_row, prompts_line
from scripts.tables.layout import ColumnGroup, column_group, score_name

if TYPE_CHECKING:
    from scripts.settings.schema import Sweeps


RUNTIME = (
    "results", "cache", "threads", "executor", "ray", "workers", "shard", "max_usd", "prices", "yes", "replay", "network", "logger",
    "max_unscored", "k_evidence", "nodes", "traceback",
)  # fmt: skip
"""Parts of the configuration that change no number and are left out of `protocol`."""


def settings(grids: Iterable[Mapping[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """Every combination of values of each grid, one grid after the other; an empty grid is the memory as it is configured."""
    return [
        dict(zip(grid, values, strict=True))
        for grid in grids
        for values in itertools.product(*map(list, grid.values()))
    ]


def swept_settings() -> tuple[str, ...]:
    """Dotted names of the settings that differ between the jobs of the command that Hydra is running."""
    from hydra.core.hydra_config import HydraConfig

    job = HydraConfig.get()
    given = [override.lstrip("+~").partition("=")[0] for override in job.overrides.task]
    built_with = [name for name in given if name.startswith("memory.build.")]
    return tuple(dict.fromkeys([*(job.sweeper.params or ()), *built_with]))


def sweep(cfg: Sweeps, swept: Sequence[str], spent: list[float]) -> int:
    """Run, score and write the settings of one job; 1 when too much is not scored, 3 when the plan is declined.

    Args:
        cfg: the settings of this job.
        swept: dotted names of the settings that differ between jobs.
        spent: USD that each earlier job of the command spent; this job's sum is appended.
    """
    plain = cfg.plain
    job_settings = {name.removeprefix("memory.build."): _value(plain, name) for name in swept}
    cfg = _filled_in(cfg, swept, spent)
    if cfg.profile_name == "paper" and cfg.data.source == "real":
        fetch_missing(cfg.data, cfg.sweep)
    models = prepared(cfg, build_models(cfg))
    groups = _with_data([column_group(cfg, option) for option in cfg.sweep["columns"]])
    grid = settings(cfg.sweep["read"])
    runs = {
        (number, group.name): _replicates(cfg, models, group, _with_settings(cfg.memory, read))
        for group in groups
        for number, read in enumerate(grid)
    }
    every_run = [run for replicates in runs.values() for run in replicates]
    asked = workable(cfg, every_run)
    planned = plan(cfg, models, asked, _judges(cfg, groups)) if cfg.profile_name == "paper" else None
    if planned is not None and not confirmed(cfg, planned):
        return 3
    before = meter(models)
    questions = sum(len(group.questions) for group in groups) * len(grid) * cfg.build.replicates
    judge_ahead(cfg, models, every_run, _judges(cfg, groups))
    capped = answer_all(cfg, models, every_run, questions)
    protocol = _protocol(cfg.plain, swept)
    lines = [
        SweepLine({**job_settings, **read}, {**values, "protocol": protocol}, missing_share)
        for group in groups
        for number, read in enumerate(grid)
        for values, missing_share in _lines(cfg, models, group, runs[number, group.name])
    ]
    spent.append(models.purse.spent)
    path = models.results / "sweeps" / f"{cfg.sweep['name']}-{cfg.profile_name}.csv"
    replace_file(path, merged(path.read_text(encoding="utf-8") if path.is_file() else "", lines))
    if planned is not None:
        print(side_by_side(planned, meter(models).since(before)))
    log_sweep(cfg.plain, cfg.sweep["name"], path)
    print(*_evidence_lines(groups, runs), sep="", end="")
    return _report(cfg, models, path, lines, capped)


def _evidence_lines(groups: Sequence[ColumnGroup], runs: Mapping[tuple[int, str], Sequence[Run]]) -> Iterator[str]:
    """A line for each data set of which the memory's units leave out evidence; all read settings share the units."""
    for group in groups:
        if group.dataset is not None:
            run = runs[0, group.name][0]
            units = {run.name: run.record.unit}
            if said := evidence_line(group.title, units, lost_by_row(group.dataset.cases, units)):
                yield f"{said}\n"


def _value(plain: Mapping[str, Any], name: str) -> Any:
    """Value of a swept setting by its dotted name; a memory is given by its own name."""
    return (
        plain["memory"]["name"] if name == "memory" else reduce(lambda level, part: level[part], name.split("."), plain)
    )


def _offline(cfg: Sweeps) -> bool:
    return bool(cfg.profile_name != "paper" and cfg.endpoint.base_url is None)


def _filled_in(cfg: Sweeps, swept: Sequence[str], spent: Sequence[float]) -> Sweeps:
    """The settings with the model of each role, the paper's judgements, and what the earlier jobs have left of the cap.

    Models are the paper's in its profile; offline engines take the place of swept models where there is no endpoint.
    """
    if _offline(cfg):
        cfg = cfg.changed(models={role: engine for role, engine in STAND_IN.items() if f"models.{role}" in swept})
    repeats = max(cfg.judge.repeats, cfg.sweep.get("repeats", 1) if cfg.profile_name == "paper" else 1)
    left = None if cfg.max_usd is None else max(0.0, cfg.max_usd - sum(spent))
    return cfg.changed(models=chosen_models(cfg, cfg.sweep["models"]), judge={"repeats": repeats}, max_usd=left)


def _protocol(plain: Mapping[str, Any], swept: Sequence[str]) -> str:
    """Hash of everything that must be equal for two lines to stand in one file."""
    return identity(_without({name: value for name, value in plain.items() if name not in (*RUNTIME, "hydra")}, swept))


def _without(tree: Mapping[str, Any], names: Sequence[str], above: str = "") -> dict[str, Any]:
    """A nested configuration without the settings of these dotted names."""
    return {
        name: _without(value, names, f"{above}{name}.") if isinstance(value, Mapping) else value
        for name, value in tree.items()
        if f"{above}{name}" not in names
    }


def _with_data(groups: Sequence[ColumnGroup]) -> list[ColumnGroup]:
    """The groups whose data set is there; a note on standard error names the others.

    Raises:
        RunError: no data set is there.
    """
    for group in groups:
        if group.dataset is None:
            print(f"note: {group.title}: {group.missing}", file=sys.stderr)
    present = [group for group in groups if group.dataset is not None]
    if not present:
        raise RunError("none of the sweep's data sets is there; `python -m scripts fetch` gets what is public")
    return present


def _with_settings(memory: Mapping[str, Any], read: Mapping[str, Any]) -> dict[str, Any]:
    return {**memory, "build": {**memory["build"], **read}}


def _replicates(cfg: Sweeps, models: Models, group: ColumnGroup, memory: Mapping[str, Any]) -> list[Run]:
    assert group.dataset is not None
    unit = group.option.get("unit")
    return [
        memory_run(cfg, models, group.dataset, memory, group.reader, unit=unit, replicate=replicate)
        for replicate in range(cfg.build.replicates)
    ]


def _judge(cfg: Sweeps, name: str) -> str:
    """The judge to ask: `judge@model` loses its model offline, and in the paper profile where `models.judge` is not the paper's."""
    papers_judge = cfg.sweep["models"].get("judge") or STAND_IN["judge"]
    other_judge = cfg.profile_name == "paper" and cfg.models.judge != papers_judge
    return name.partition("@")[0] if other_judge or _offline(cfg) else name


def _judges(cfg: Sweeps, groups: Sequence[ColumnGroup]) -> dict[str, list[str]]:
    """Names of the judges by data set."""
    return {
        group.dataset.name: [_judge(cfg, metric["judge"]) for metric in group.option["metrics"] if "judge" in metric]
        for group in groups
        if group.dataset is not None
    }


def _lines(
    cfg: Sweeps, models: Models, group: ColumnGroup, runs: Sequence[Run]
) -> Iterator[tuple[dict[str, Any], float]]:
    """Score one setting on one data set; yields for each metric the values of its line and the share of unscored questions."""
    options = group.option["metrics"]
    judges = {
        name: judging(cfg, models, name) for name in (_judge(cfg, each["judge"]) for each in options if "judge" in each)
    }
    lexical = metrics(list(dict.fromkeys(option["metric"] for option in options if "metric" in option)))
    files = [
        score(run, lexical, judges, cfg.k_evidence, len(group.questions), models.traffic, models.ahead) for run in runs
    ]
    reached = outcomes((run.folder for run in runs), group.questions)
    spent, calls = costs(runs[0].folder), cost(runs[0].folder, "build_calls")
    for option in options:
        asked = {**option, "judge": _judge(cfg, option["judge"])} if "judge" in option else option
        paths = tuple(by_metric[score_name(asked)] for by_metric in files)
        column = Column(group.name, group.title, score_name(option), group.questions, group.aggregate, group.answerable)
        values, missing_share = _scores(
            Cell(column, reached, paths, repeats=cfg.judge.repeats), option.get("category", ALL)
        )
        names = judge_prompts(asked).union(*(run.record.prompts for run in runs))
        yield (
            {
                **values,
                "recalled_tokens": spent.recalled_tokens,
                "build_calls": None if calls is None else int(calls.mean),
                "engine": _engine(models),
                "prompts": prompts_line(models.prompts, names),
                "run": RunFolder(runs[0].folder).key,
            },
            missing_share,
        )


def _scores(cell: Cell, category: str) -> tuple[dict[str, Any], float]:
    """Mean, intervals and counts of a cell, and the share of its questions that are not scored."""
    counts, estimate = cell.counts(category), cell.estimate(category)
    values = {
        "dataset": cell.column.dataset,
        "metric": cell.column.metric,
        "category": category,
        "mean": None if estimate is None else estimate.mean,
        **_ends("question", None if estimate is None else estimate.by_question),
        **_ends("case", None if estimate is None else estimate.by_case),
        "n": counts.scored,
        "questions": counts.questions,
        "errors": counts.errored,
        "unscored": counts.unscored,
        "not_reached": counts.not_reached,
        "empty": counts.empty,
    }
    return values, counts.missing_share


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": low, f"{name}_high": high}


def _engine(models: Models) -> str:
    """Models by role; `stand-in` where an offline engine fills the role."""
    names = {
        "memory": models.memory.name,
        "reader": models.reader.name,
        "judge": models.judge.name,
        "embedder": models.embedder_name,
    }
    return "; ".join(f"{role} {'stand-in' if role in models.stand_ins else name}" for role, name in names.items())


def mean_text(line: SweepLine) -> str:
    """Mean and 95 % interval: in braces by case, in brackets by question where there are fewer than five histories."""
    mean = line.values["mean"]
    if mean is None:
        return "mean –"
    for name, brackets in (("case", "{}"), ("question", "[]")):
        if (low := line.values[f"{name}_low"]) is not None:
            return f"mean {mean:.3f} {brackets[0]}{low:.3f}, {line.values[f'{name}_high']:.3f}{brackets[1]}"
    return f"mean {mean:.3f}"


def best_lines(lines: Sequence[SweepLine]) -> list[str]:
    """The best setting for each data set and metric that has several."""
    columns: dict[tuple[str, str, str], list[SweepLine]] = {}
    for line in lines:
        key = (line.values["dataset"], line.values["metric"], line.values["category"])
        columns.setdefault(key, []).extend([line] if line.values["mean"] is not None else [])
    texts = []
    for (dataset, metric, _), own in columns.items():
        if len(own) > 1:
            best = max(own, key=lambda line: line.values["mean"])
            setting = " ".join(f"{name}={value}" for name, value in best.setting.items())
            texts.append(f"best on {dataset} {metric}: {setting} ({mean_text(best)}), chosen on these questions")
    return texts


def _report(cfg: Sweeps, models: Models, path: Path, lines: Sequence[SweepLine], capped: str) -> int:
    """Print the job's lines; 1 when more than `max_unscored` of a line's questions is not scored."""
    if models.stand_ins:
        print(
            f"STAND-IN: {', '.join(models.stand_ins)} filled by offline engines; never compared with published numbers."
        )
    for line in lines:
        setting = " ".join(f"{name}={value}" for name, value in line.setting.items()) or "as configured"
        values = ", ".join(
            f"{name} {printed(line.values[name]) or '–'}" for name in ("n", "errors", "unscored", "empty")
        )
        print(f"{setting} · {line.values['dataset']} {line.values['metric']}: {mean_text(line)}, {values}")
    for text in [*best_lines(lines), *dict.fromkeys(line.values["prompts"] for line in lines)]:
        print(text)
    print(capped or f"written: {path}")
    worst = max(line.missing_share for line in lines)
    if worst > cfg.missing_limit:
        folders = [models.results / "runs" / line.values["run"] for line in lines]
        scores = [path for folder in folders for path in RunFolder(folder).score_files()]
        print_missing(worst, "line", cfg.missing_limit, folders, scores)
        return 1
    return 0


MEASURED = (
    "dataset",
    "metric",
    "category",
    "mean",
    "question_low",
    "question_high",
    "case_low",
    "case_high",
    "n",
    "questions",
    "errors",
    "unscored",
    "not_reached",
    "empty",
    "recalled_tokens",
    "build_calls",
    "engine",
    "prompts",
    "run",
    "protocol",
)
"""Columns of the CSV after those of the settings."""


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One setting on one data set in one metric."""

    setting: Mapping[str, Any]
    values: Mapping[str, Any]
    """By the names of `MEASURED`."""
    missing_share: float
    """Share of the questions without a score."""


def merged(text: str, new_lines: Sequence[SweepLine]) -> str:
    """The CSV with new lines added or replaced, in order of their settings.

    Old lines of another protocol, or with other columns, are left out.

    Args:
        text: the CSV so far; empty for none.
        new_lines: at least one.
    """
    names = list(dict.fromkeys(name for line in new_lines for name in line.setting))
    header = [*names, *MEASURED]
    reader = csv.DictReader(io.StringIO(text))
    keys = [*names, "dataset", "metric", "category"]
    new = [
        {
            name: plain_cell(printed(value))
            for name, value in ({**dict.fromkeys(names), **line.setting, **line.values}).items()
        }
        for line in new_lines
    ]
    old = list(reader) if reader.fieldnames == header else []
    kept = [line for line in old if line["protocol"] == new[0]["protocol"]]
    lines = {tuple(line[key] for key in keys): line for line in [*kept, *new]}
    ordered = sorted(lines.items(), key=lambda entry: [_order(part) for part in entry[0]])
    return csv_text([header, *([line[name] for name in header] for _, line in ordered)])


def printed(value: Any) -> str:
    """A value as the CSV holds it: six significant digits, empty for None."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _order(text: str) -> tuple[int, float, str]:
    """Sort key: empty first, then numbers by size, then words."""
    try:
        return (1, float(text), "")
    except ValueError:
        return (2 if text else 0, 0.0, text)
