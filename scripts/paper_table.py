"""What `scripts.reproduce` does: the runs of a paper's table, its scores, and the table beside the published one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_loaders.schema import DataError
from eval.published import Published, find, read_published
from eval.reader import Reader
from eval.run import Run
from eval.store import RunError
from eval.tables import Asked, Cell, Column, Row, Table, as_csv, asked, latex, markdown, outcomes
from memsys.llm.client import SpendingCapReached
from scripts.assemble import (
    Bench,
    Data,
    bench,
    caption,
    data,
    judging,
    load_option,
    memory_run,
    metric_title,
    metrics,
    options,
    reader,
)
from scripts.flow import execute, score
from scripts.plan import confirmed, plan
from scripts.single import complain, guarded

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A data set in its column group of a table, or the reason why it is not there."""

    option: Mapping[str, Any]
    title: str
    dataset: Data | None
    missing: str
    reading: Reader
    questions: tuple[Asked, ...]
    aggregate: str
    answerable: str


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table before it is run."""

    name: str
    title: str
    memory: Mapping[str, Any] | None
    """None: not built."""
    published: Mapping[str, str] | None
    ruled: bool


def reproduce(cfg: DictConfig) -> int:
    """Run what is missing, score, print and write the table."""
    return guarded(lambda: _reproduce(cfg))


def _reproduce(cfg: DictConfig) -> int:
    from omegaconf import OmegaConf, open_dict

    table = dict(OmegaConf.to_container(cfg.table, resolve=True))  # type: ignore[arg-type]
    backbone = _backbone(table, cfg.backbone)
    if cfg.profile_name == "paper":
        with open_dict(cfg):
            cfg.models.update(backbone["models"])
        if cfg.data.source == "real":
            _fetch_missing(cfg, table)
    built = bench(cfg)
    benchmarks = [_benchmark(cfg, option) for option in table["columns"]]
    lines = _lines(table, cfg)
    runs = _runs(cfg, built, benchmarks, lines)
    if cfg.profile_name == "paper" and not confirmed(cfg, plan(cfg, built, runs.values(), _judged(benchmarks))):
        return 3
    capped = _execute(cfg, runs, benchmarks)
    result = _table(cfg, table, backbone, built, benchmarks, lines, runs, capped)
    folder = built.results / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / "-".join([table["name"], *([cfg.backbone] if cfg.backbone else []), cfg.profile_name])
    for suffix, text in ((".md", markdown(result)), (".csv", as_csv(result)), (".tex", latex(result))):
        stem.with_suffix(suffix).write_text(text, encoding="utf-8")
    print(markdown(result, brief=True))
    print(f"written: {stem}.md (with categories and paired differences), .csv, .tex")
    return complain(result, cfg.max_unscored)


def _backbone(table: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    known = table["backbones"]
    if (name or "default") not in known:
        raise RunError(f"{table['name']} has no backbone {name!r}; there are: {', '.join(known)}")
    return dict(known[name or "default"])


def _benchmark(cfg: DictConfig, option: Mapping[str, Any]) -> Benchmark:
    config = load_option("dataset", option["dataset"])
    reading = reader(option.get("reader") or config["reader"])
    how = option.get("aggregate") or config["aggregate"][0]
    try:
        dataset = data(cfg, config)
    except DataError as error:
        if cfg.data.source != "real":
            raise
        return Benchmark(option, config["title"], None, f"no data: {error}", reading, (), how, "answerable")
    return Benchmark(
        option, config["title"], dataset, "", reading, asked(dataset.cases), how, config.get("answerable", "answerable")
    )


def _lines(table: Mapping[str, Any], cfg: DictConfig) -> list[Line]:
    known = options("memory")
    rows = table.get(f"rows_{cfg.backbone}") or table["rows"]
    lines: list[Line] = []
    for option in [*rows, *({"memory": name} for name in table["others"])]:
        name = option["memory"]
        memory = load_option("memory", name) if name in known else None
        title = option.get("title") or (memory["title"] if memory else name)
        first_other = option.get("published") is None and not any(line.ruled for line in lines)
        lines.append(Line(name, title, memory, option.get("published"), first_other))
    if cfg.only is not None and (unknown := set(cfg.only) - {line.name for line in lines}):
        raise RunError(
            f"only: {', '.join(sorted(unknown))} are not rows of {table['name']}; there are: {', '.join(line.name for line in lines)}"
        )
    return lines


Key = tuple[str, str, int]
"""Memory, data set, replicate."""


def _runs(cfg: DictConfig, built: Bench, benchmarks: Sequence[Benchmark], lines: Sequence[Line]) -> dict[Key, Run]:
    return {
        (line.name, benchmark.dataset.name, replicate): memory_run(
            cfg,
            built,
            benchmark.dataset,
            line.memory,
            benchmark.reading,
            unit=benchmark.option.get("unit"),
            replicate=replicate,
        )
        for benchmark in benchmarks
        if benchmark.dataset is not None
        for line in lines
        if line.memory is not None
        for replicate in range(cfg.build.replicates)
    }


def _judged(benchmarks: Sequence[Benchmark]) -> dict[str, list[str]]:
    """Judges by data set."""
    return {
        one.dataset.name: [metric["judge"] for metric in one.option["metrics"] if "judge" in metric]
        for one in benchmarks
        if one.dataset is not None
    }


def _execute(cfg: DictConfig, runs: Mapping[Key, Run], benchmarks: Sequence[Benchmark]) -> str:
    counts = {
        benchmark.dataset.name: len(benchmark.questions) for benchmark in benchmarks if benchmark.dataset is not None
    }
    chosen = {key: run for key, run in runs.items() if cfg.only is None or key[0] in cfg.only}
    try:
        execute(list(chosen.values()), sum(counts[key[1]] for key in chosen), cfg.threads)
    except SpendingCapReached as error:
        return f"Stopped: {error}."
    return ""


def _table(
    cfg: DictConfig,
    table: Mapping[str, Any],
    backbone: Mapping[str, Any],
    built: Bench,
    benchmarks: Sequence[Benchmark],
    lines: Sequence[Line],
    runs: Mapping[Key, Run],
    capped: str,
) -> Table:
    numbers = read_published(backbone["file"])
    columns = tuple(column for benchmark in benchmarks for column in _columns(benchmark))
    rows = []
    for line in lines:
        files = {one.option["dataset"]: _files(cfg, built, one, _replicates(runs, line, one)) for one in benchmarks}
        cells: list[Cell | str] = []
        for benchmark in benchmarks:
            why = "" if benchmark.dataset is None else _why_not(cfg, built, backbone, benchmark.dataset)
            cells += _cells(
                benchmark, line, _replicates(runs, line, benchmark), files[benchmark.option["dataset"]], numbers, why
            )
        folders = {
            name: run.folder for (memory, name, number), run in runs.items() if memory == line.name and not number
        }
        evidence = {name: found[0][f"evidence@{cfg.k_evidence}"] for name, found in files.items() if found}
        rows.append(Row(line.name, line.title, tuple(cells), folders, evidence, line.ruled))
    used = [
        (benchmark.dataset, benchmark.reading, benchmark.option.get("unit") or benchmark.dataset.config["unit"])
        for benchmark in benchmarks
        if benchmark.dataset is not None
    ]
    theirs = ", ".join(f"{role} {model}" for role, model in backbone["models"].items())
    notes = [f"Published: {table['paper']}, {backbone['file']}.csv ({theirs}).", *([capped] if capped else [])]
    return Table(
        table["name"],
        table["title"],
        (*caption(cfg, built, used), *notes),
        columns,
        tuple(rows),
        table.get("reference", ""),
    )


def _columns(benchmark: Benchmark) -> list[Column]:
    name = benchmark.option["dataset"]
    return [
        Column(
            name,
            benchmark.title,
            _title(metric),
            benchmark.questions,
            benchmark.aggregate,
            benchmark.answerable,
            metric.get("scale", 1.0),
        )
        for metric in benchmark.option["metrics"]
    ]


def _title(metric: Mapping[str, Any]) -> str:
    return str(metric.get("title") or metric_title(_file(metric)))


def _file(metric: Mapping[str, Any]) -> str:
    return f"judge_{metric['judge']}" if "judge" in metric else str(metric["metric"])


def _replicates(runs: Mapping[Key, Run], line: Line, benchmark: Benchmark) -> list[Run]:
    wanted = (line.name, benchmark.option["dataset"])
    return [run for (memory, name, _), run in runs.items() if (memory, name) == wanted]


def _files(cfg: DictConfig, built: Bench, benchmark: Benchmark, replicates: Sequence[Run]) -> list[dict[str, Path]]:
    """Score files by metric, of each replicate."""
    names = [metric["judge"] for metric in benchmark.option["metrics"] if "judge" in metric]
    judges = {name: judging(cfg, built, name) for name in names}
    lexical = metrics([metric["metric"] for metric in benchmark.option["metrics"] if "metric" in metric])
    return [score(run, lexical, judges, cfg.k_evidence, len(benchmark.questions)) for run in replicates]


def _cells(
    benchmark: Benchmark,
    line: Line,
    replicates: Sequence[Run],
    files: Sequence[Mapping[str, Path]],
    numbers: Sequence[Published],
    why: str,
) -> list[Cell | str]:
    chosen = benchmark.option["metrics"]
    if line.memory is None:
        return ["pending"] * len(chosen)
    if benchmark.dataset is None:
        return [benchmark.missing] * len(chosen)
    reached = outcomes((run.folder for run in replicates), benchmark.questions)
    cells: list[Cell | str] = []
    for metric, column in zip(chosen, _columns(benchmark), strict=True):
        wanted = {**benchmark.option.get("published", {}), **metric.get("published", {}), **(line.published or {})}
        published = None if line.published is None else find(numbers, wanted)
        cells.append(Cell(column, reached, tuple(found[_file(metric)] for found in files), published, why))
    return cells


def _why_not(cfg: DictConfig, built: Bench, backbone: Mapping[str, Any], dataset: Data) -> str:
    """Why our numbers may not be compared with the paper's; empty when they may."""
    if built.stand_ins:
        return "stand-in"
    ours = {
        "memory": cfg.models.memory,
        "reader": cfg.models.reader,
        "judge": cfg.models.judge,
        "embedder": cfg.models.embedder,
    }
    if any(ours[role] != model for role, model in backbone["models"].items()):
        return "other model"
    if dataset.source.status != "official":
        return f"{dataset.source.status} data"
    if cfg.data.size != "all" or cfg.data.max_cases is not None:
        return "subset"
    if cfg.data.transform != "none":
        return "other data"
    return ""


def _fetch_missing(cfg: DictConfig, table: Mapping[str, Any]) -> None:
    """Download what a data set needs; one that cannot be had is shown as `no data`."""
    from data_loaders.source import data_root, download
    from scripts.fetch import wanted

    root = data_root(Path(cfg.data.root) if cfg.data.root else None)
    for option in table["columns"]:
        try:
            for entry in wanted(option["dataset"]):
                download(entry, root, unpinned=cfg.data.unpinned)
        except DataError as error:
            print(f"note: {option['dataset']}: {error}", file=sys.stderr)
