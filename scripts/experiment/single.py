"""What `scripts.run` does, apart from its start-up: heavy imports stay behind `--help`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eval.report.cell import Cell, Column
from eval.report.rendering import markdown
from eval.report.scores import asked, outcomes
from eval.report.tables import Row, Table
from eval.report.wandb_log import log_table
from scripts.experiment.assemble import bench, caption, data, judging, memory_run, metric_title, metrics, reader
from scripts.experiment.exits import configured
from scripts.experiment.readiness import prepared
from scripts.experiment.steps import complain, execute_capped, score

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run_single(cfg: DictConfig) -> int:
    """Run, score, print; the exit code is 1 when too much is not scored, 2 when the input is wrong."""
    return configured(cfg, "config", _run_single)


def _run_single(cfg: DictConfig) -> int:
    from omegaconf import OmegaConf

    dataset_config = dict(OmegaConf.to_container(cfg.dataset, resolve=True))  # type: ignore[arg-type]
    memory_config = dict(OmegaConf.to_container(cfg.memory, resolve=True))  # type: ignore[arg-type]
    built = prepared(cfg, bench(cfg))
    dataset = data(cfg, dataset_config)
    reading = reader(cfg.protocol.reader or dataset_config["reader"])
    runs = [
        memory_run(cfg, built, dataset, memory_config, reading, unit=cfg.protocol.unit, replicate=replicate)
        for replicate in range(cfg.build.replicates)
    ]
    questions = asked(dataset.cases)
    capped = execute_capped(runs, len(questions) * len(runs), cfg.threads, built.traffic)
    names = dataset_config.get("judges", []) if cfg.protocol.judges is None else list(cfg.protocol.judges)
    judges = [judging(cfg, built, name) for name in names]
    lexical = metrics(dataset_config["metrics"])
    named = dict(zip(names, judges, strict=True))
    files = [score(run, lexical, named, cfg.k_evidence, len(questions), built.traffic) for run in runs]
    how = dataset_config["aggregate"][0]
    reached = outcomes((run.folder for run in runs), questions)
    columns, cells = [], []
    for name in [*(f"judge_{one}" for one in names), *(metric.name for metric in lexical)]:
        answerable = dataset_config.get("answerable", "answerable")
        column = Column(dataset.name, dataset.title, metric_title(name), questions, how, answerable)
        columns.append(column)
        cells.append(Cell(column, reached, tuple(found[name] for found in files), repeats=cfg.judge.repeats))
    evidence = {dataset.name: files[0][f"evidence@{cfg.k_evidence}"]}
    row = Row(memory_config["name"], memory_config["title"], tuple(cells), {dataset.name: runs[0].folder}, evidence)
    lines = (*caption(cfg, built, [(dataset, reading, runs[0].unit)]), *([capped] if capped else []))
    table = Table(
        memory_config["name"],
        f"{memory_config['title']} on {dataset.title}",
        lines,
        tuple(columns),
        (row,),
        prices=built.prices,
    )
    print(markdown(table))
    print(f"run folder: {runs[0].folder}")
    log_table(OmegaConf.to_container(cfg, resolve=True), table)  # type: ignore[arg-type]
    return complain(table, cfg.max_unscored)
