"""The runs of a table or a figure: its data sets, its rows, what is missing run, and the cells for whoever asks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_loaders.schema import DataError
from eval.costs import effort_missing
from eval.reader import Reader
from eval.report.best_of import choose, choose_again, composed
from eval.report.cell import ALL, ANSWERABLE, Cell, Column
from eval.report.measures import cost, coverage, report, spread, statistic, tree
from eval.report.published import Published, find
from eval.report.scores import Asked, asked, outcomes
from eval.report.tables import AnyCell, Measure
from eval.run import Run
from eval.stats import Estimate
from eval.store import RunError
from scripts.experiment.assemble import (
    Bench,
    Data,
    bench,
    check_data_root,
    data,
    judging,
    load_option,
    memory_run,
    metrics,
    reader,
)
from scripts.experiment.layout import (
    FIGURES,
    SCORES,
    Line,
    belongs,
    candidates,
    cells_of,
    group_name,
    kind_of,
    published_of,
    read_lines_of,
    reference,
    score_name,
    title_of,
    wanted_columns,
    wanted_rows,
)
from scripts.experiment.plan import confirmed, plan
from scripts.experiment.readiness import prepared
from scripts.experiment.roles import chosen_models, other_models
from scripts.experiment.steps import execute_capped, score

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

    @property
    def group(self) -> str:
        return group_name(self.option)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table before it is printed: its rows and data sets, their runs, and a cell for whoever asks."""

    built: Bench
    backbone: Mapping[str, Any]
    benchmarks: Sequence[Benchmark]
    lines: Sequence[Line]
    runs: Mapping[Key, Run]
    grid: Grid
    capped: str
    """Why not everything was run; empty when it was."""
    wanted: frozenset[str] | None
    """Names of the rows that `only` asks for; None: all."""


def experiment(cfg: DictConfig, table: Mapping[str, Any], *, run: bool = True) -> Experiment | None:
    """The runs of a table, those that are missing made unless `run` is false; None when nobody agreed to the cost."""
    from omegaconf import open_dict

    backbone = _backbone(table, cfg.backbone)
    with open_dict(cfg):
        cfg.models.update(chosen_models(cfg, backbone["models"]))
    if cfg.profile_name == "paper" and cfg.data.source == "real":
        fetch_missing(cfg, table)
    if cfg.nodes.vectors is None:
        cfg.nodes.vectors = any("spread" in metric for column in table["columns"] for metric in column["metrics"])
    built = bench(cfg)
    if run:
        built = prepared(cfg, built)
    benchmarks = [benchmark(cfg, option) for option in wanted_columns(table, cfg.columns)]
    if all(one.dataset is None for one in benchmarks):
        raise RunError("none of the data sets is there: " + "; ".join(one.missing for one in benchmarks))
    lines = read_lines_of(table, cfg.backbone)
    wanted = wanted_rows(table, lines, cfg.only)
    cfg.only = None if wanted is None else sorted(wanted)  # names from here on, also where titles were given
    runs = _runs(cfg, built, benchmarks, lines)
    if run and cfg.profile_name == "paper" and not _agreed(cfg, built, backbone, benchmarks, runs):
        return None
    capped = _execute(cfg, built, runs, benchmarks) if run else ""
    grid = Grid(cfg, built, backbone, benchmarks, lines, runs, published_of(backbone))
    return Experiment(built, backbone, benchmarks, lines, runs, grid, capped, wanted)


def _agreed(
    cfg: DictConfig,
    built: Bench,
    backbone: Mapping[str, Any],
    benchmarks: Sequence[Benchmark],
    runs: Mapping[Key, Run],
) -> bool:
    """Plan what will be run, rows outside `only` left out, and ask."""
    once = {one.folder: one for key, one in runs.items() if cfg.only is None or key[0] in cfg.only}
    return confirmed(cfg, plan(cfg, built, once.values(), _judged(cfg, backbone, benchmarks)))


def _backbone(table: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    known = table["backbones"]
    if (name or "default") not in known:
        raise RunError(f"{table['name']} has no backbone {name!r}; there are: {', '.join(known)}")
    return dict(known[name or "default"])


def benchmark(cfg: DictConfig, option: Mapping[str, Any]) -> Benchmark:
    """A column group's data set, cut as the configuration says, with what reads and scores it."""
    config = load_option("dataset", option["dataset"])
    reading = reader(option.get("reader") or config["reader"])
    how = option.get("aggregate") or config["aggregate"][0]
    config["title"] = option.get("title") or config["title"]
    try:
        dataset = data(_transformed(cfg, option), config)
    except DataError as error:
        if cfg.data.source != "real":
            raise
        return Benchmark(option, config["title"], None, f"no data: {error}", reading, (), how, "answerable")
    return Benchmark(
        option, config["title"], dataset, "", reading, asked(dataset.cases), how, config.get("answerable", "answerable")
    )


def _transformed(cfg: DictConfig, option: Mapping[str, Any]) -> DictConfig:
    """The configuration with the transform that a column group asks for; one asked for by the user stays.

    Raises:
        RunError: both ask.
    """
    from omegaconf import OmegaConf

    if "transform" not in option:
        return cfg
    if cfg.data.transform != "none":
        raise RunError(f"{group_name(option)} is {option['transform']} data already; data.transform must be none")
    merged = OmegaConf.merge(cfg, {"data": {"transform": option["transform"]}})
    assert isinstance(merged, type(cfg))
    return merged


Key = tuple[str, str, int]
"""Row, column group, replicate."""


def _runs(cfg: DictConfig, built: Bench, benchmarks: Sequence[Benchmark], lines: Sequence[Line]) -> dict[Key, Run]:
    return {
        (line.name, benchmark.group, replicate): _run(cfg, built, benchmark, benchmark.dataset, line.memory, replicate)
        for benchmark in benchmarks
        if benchmark.dataset is not None
        for line in lines
        if line.memory is not None and belongs(line, benchmark.option)
        for replicate in range(cfg.build.replicates)
    }


def _run(
    cfg: DictConfig, built: Bench, benchmark: Benchmark, dataset: Data, memory: Mapping[str, Any], replicate: int
) -> Run:
    run = memory_run(
        cfg, built, dataset, memory, benchmark.reading, unit=benchmark.option.get("unit"), replicate=replicate
    )
    if "ask" not in benchmark.option:
        return run
    first = {one.case_id: one.question_id for one in reversed(benchmark.questions)}
    return replace(run, questions=lambda case_id, question_id: first[case_id] == question_id)


def _judged(cfg: DictConfig, backbone: Mapping[str, Any], benchmarks: Sequence[Benchmark]) -> dict[str, list[str]]:
    """Judges by data set."""
    found: dict[str, list[str]] = {}
    for one in benchmarks:
        if one.dataset is not None:
            chosen = [_own_model(cfg, backbone, metric) for metric in one.option["metrics"]]
            names = [metric["judge"] for metric in chosen if "judge" in metric]
            found[one.dataset.name] = list(dict.fromkeys([*found.get(one.dataset.name, ()), *names]))
    return found


def _execute(cfg: DictConfig, built: Bench, runs: Mapping[Key, Run], benchmarks: Sequence[Benchmark]) -> str:
    counts = {
        one.group: len({each.case_id for each in one.questions}) if "ask" in one.option else len(one.questions)
        for one in benchmarks
    }
    # Of two column groups that share a folder the one that asks more is run.
    asking = sorted(runs.items(), key=lambda item: counts[item[0][1]])
    chosen = {run.folder: (run, counts[key[1]]) for key, run in asking if cfg.only is None or key[0] in cfg.only}
    questions = sum(count for _, count in chosen.values())
    return execute_capped([run for run, _ in chosen.values()], questions, cfg.threads, built.traffic)


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of a table, each made when it is asked for: differences and best rows ask for others."""

    cfg: DictConfig
    built: Bench
    backbone: Mapping[str, Any]
    benchmarks: Sequence[Benchmark]
    lines: Sequence[Line]
    runs: Mapping[Key, Run]
    numbers: Sequence[Published]
    _cells: dict[tuple[str, str, str], AnyCell] = field(default_factory=dict)
    _files: dict[tuple[str, str], list[dict[str, Path]]] = field(default_factory=dict)

    def column(self, benchmark: Benchmark, metric: Mapping[str, Any]) -> Column:
        return Column(
            benchmark.group,
            benchmark.title,
            title_of(metric),
            _of(benchmark.questions, metric.get("category", ALL)) if kind_of(metric) in SCORES else (),
            benchmark.aggregate,
            benchmark.answerable,
            metric.get("scale", 1.0),
        )

    def cell(self, line: Line, benchmark: Benchmark, metric: Mapping[str, Any]) -> AnyCell:
        """What stands in a row, a column group and a metric."""
        key = (line.name, benchmark.group, f"{title_of(metric)} {metric.get('minus')}")
        if key not in self._cells:
            self._cells[key] = self._placed(line, benchmark, metric)
        return self._cells[key]

    def _placed(self, line: Line, benchmark: Benchmark, metric: Mapping[str, Any]) -> AnyCell:
        made = self._made(line, benchmark, metric)
        if isinstance(made, str):
            return made
        wanted = reference(self.backbone, line, benchmark.option, metric)
        published = None if wanted is None else find(self.numbers, wanted)
        return replace(made, published=published, why_not=self._why_not(benchmark, metric))

    def _made(self, line: Line, benchmark: Benchmark, metric: Mapping[str, Any]) -> AnyCell:
        if benchmark.dataset is None:
            return benchmark.missing
        if not belongs(line, benchmark.option) or line.data_only != ("data" in metric):
            return "–"
        if "minus" in metric:
            return self._difference(line, benchmark, metric)
        if "best_of" in line.option:
            return self._best(line, benchmark, metric)
        if line.memory is None and not line.data_only:
            return "pending"
        if kind_of(metric) == "cost" and (missing := effort_missing(self._replicates(line, benchmark)[0].folder)):
            return missing
        if kind_of(metric) in FIGURES:
            return Measure(self.column(benchmark, metric), self._measured(line, benchmark, metric))
        replicates = self._replicates(line, benchmark)
        reached = outcomes((run.folder for run in replicates), benchmark.questions)
        paths = tuple(
            found[score_name(_own_model(self.cfg, self.backbone, metric))] for found in self.files(line, benchmark)
        )
        return Cell(self.column(benchmark, metric), reached, paths, repeats=self.cfg.judge.repeats)

    def _difference(self, line: Line, benchmark: Benchmark, metric: Mapping[str, Any]) -> AnyCell:
        of, plain = metric["minus"], {name: value for name, value in metric.items() if name not in ("minus", "title")}
        other = next(one for one in self.lines if one.name == of.get("row", line.name))
        group = next((one for one in self.benchmarks if one.group == of.get("group", benchmark.group)), None)
        if group is None:  # left out by `columns`
            return "–"
        first, second = self.cell(line, benchmark, plain), self.cell(other, group, plain)
        if first is second or not (isinstance(first, Cell) and isinstance(second, Cell)):
            return first if isinstance(first, str) else "–"
        gap = first.minus(second)
        ours = None if gap is None else Estimate(gap.mean, gap.n, gap.by_question, gap.by_case, gap.clusters)
        return Measure(self.column(benchmark, metric), ours, tolerance=0.02)

    def _best(self, line: Line, benchmark: Benchmark, metric: Mapping[str, Any]) -> AnyCell:
        if kind_of(metric) not in SCORES:
            return "–"
        chosen = self._chosen(line, benchmark)
        if isinstance(chosen, str):
            return chosen
        again = choose_again(self._deciding(line, benchmark), held_out=_held_out(line))
        return composed(self._candidates(line, benchmark, metric), chosen, again)

    def _candidates(self, line: Line, benchmark: Benchmark, metric: Mapping[str, Any]) -> dict[str, Cell]:
        made = {one.name: self.cell(one, benchmark, metric) for one in candidates(line, self.lines)}
        return {name: cell for name, cell in made.items() if isinstance(cell, Cell)}

    def _deciding(self, line: Line, benchmark: Benchmark) -> dict[str, Cell]:
        """The candidates' cells in the group's first metric, which decides."""
        return self._candidates(line, benchmark, cells_of(benchmark.option)[0])

    def _chosen(self, line: Line, benchmark: Benchmark) -> dict[str, str] | str:
        """By history the candidate that the group's first metric prefers, or why there is none."""
        try:
            return choose(self._deciding(line, benchmark), held_out=_held_out(line))
        except ValueError as error:
            return str(error)

    def choices(self) -> list[str]:
        """What the best rows chose, for the caption."""
        found = []
        for line in self.lines:
            for benchmark in self.benchmarks if "best_of" in line.option else ():
                if benchmark.dataset is not None and belongs(line, benchmark.option):
                    chosen = self._chosen(line, benchmark)
                    names = chosen if isinstance(chosen, str) else "; ".join(dict.fromkeys(chosen.values()))
                    warning = (
                        "" if _held_out(line) else " Chosen on the questions reported: too high, beyond its interval."
                    )
                    found.append(f"{line.title} on {benchmark.title}: {names}.{warning}")
        return found

    def _measured(self, line: Line, benchmark: Benchmark, metric: Mapping[str, Any]) -> Estimate | None:
        assert benchmark.dataset is not None
        kind, own = kind_of(metric), line.option.get("measure", {})
        over, name = metric.get("over", "mean"), metric[kind]
        if kind == "data":
            unit = benchmark.option.get("unit") or benchmark.dataset.config["unit"]
            category = metric["category"]
            return statistic(benchmark.dataset.cases, name, unit, "" if category == ALL else category)
        folder = self._replicates(line, benchmark)[0].folder
        if kind == "cost":
            return cost(folder, name)
        if kind == "report":
            return report(folder, name, over=over, per=metric.get("per", ""))
        if kind == "tree":
            return tree(folder, name, over=over, chains=own.get("chains", True))
        if kind == "spread":
            return spread(folder, name, own["level"])
        return coverage(folder, benchmark.dataset.cases, name)

    def _replicates(self, line: Line, benchmark: Benchmark) -> list[Run]:
        wanted = (line.name, benchmark.group)
        return [run for (name, group, _), run in self.runs.items() if (name, group) == wanted]

    def files(self, line: Line, benchmark: Benchmark) -> list[dict[str, Path]]:
        """Score files by metric, of each replicate."""
        key = (line.name, benchmark.group)
        if key not in self._files:
            chosen = [_own_model(self.cfg, self.backbone, metric) for metric in benchmark.option["metrics"]]
            judges = {one["judge"]: judging(self.cfg, self.built, one["judge"]) for one in chosen if "judge" in one}
            lexical = metrics(list(dict.fromkeys(one["metric"] for one in chosen if "metric" in one)))
            self._files[key] = [
                score(run, lexical, judges, self.cfg.k_evidence, len(benchmark.questions), self.built.traffic)
                for run in self._replicates(line, benchmark)
            ]
        return self._files[key]

    def _why_not(self, benchmark: Benchmark, metric: Mapping[str, Any]) -> str:
        if benchmark.dataset is None:
            return ""
        if "data" in metric:
            return _other_data(self.cfg, benchmark.dataset)
        why = _why_not(self.cfg, self.built, self.backbone, benchmark.dataset)
        return why or ("other model" if _own_model(self.cfg, self.backbone, metric) != metric else "")


def _held_out(line: Line) -> bool:
    return bool(line.option["chosen_on"] == "others")


def _of(questions: Sequence[Asked], category: str) -> tuple[Asked, ...]:
    """Those of a category, `all`, or the `answerable` ones."""
    if category in (ALL, ANSWERABLE):
        return tuple(one for one in questions if one.answerable or category == ALL)
    return tuple(one for one in questions if one.category == category)


def _own_model(cfg: DictConfig, backbone: Mapping[str, Any], metric: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metric; but the paper's second judge is asked for by name only where the first is the paper's, too."""
    theirs = cfg.profile_name == "paper" and cfg.models.judge == backbone["models"]["judge"]
    if "judge" not in metric or theirs:
        return metric
    return {**metric, "judge": metric["judge"].partition("@")[0]}


def _why_not(cfg: DictConfig, built: Bench, backbone: Mapping[str, Any], dataset: Data) -> str:
    """Why our numbers may not be compared with the paper's; empty when they may."""
    if built.stand_ins:
        return "stand-in"
    if other_models(cfg, backbone):
        return "other model"
    return _other_data(cfg, dataset)


def _other_data(cfg: DictConfig, dataset: Data) -> str:
    if dataset.source.status != "official":
        return f"{dataset.source.status} data"
    if cfg.data.size != "all" or cfg.data.max_cases is not None:
        return "subset"
    if cfg.data.transform != "none":
        return "other data"
    return ""


def fetch_missing(cfg: DictConfig, table: Mapping[str, Any]) -> None:
    """Download what a data set needs; one that cannot be had is shown as `no data`."""
    from data_loaders.download import download
    from data_loaders.source import data_root
    from scripts.fetch import wanted

    root = data_root(check_data_root(cfg))
    for option in table["columns"]:
        try:
            for entry in wanted(option["dataset"]):
                download(entry, root, unpinned=cfg.data.unpinned)
        except DataError as error:
            print(f"note: {option['dataset']}: {error}", file=sys.stderr)
