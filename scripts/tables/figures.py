"""`memsys-bench figures`: run what is missing for a figure, collect its points, draw it and write its files.

A figure's YAML names the table whose data sets, readers and metrics it uses, its rows (`rows` replaces those of the table), the plotted
values (`show`, see `SHOWS`) and the drawing settings (`eval.report.panels.Sheet`). `panel` and `series` are patterns over
`dataset`, `category`, `metric`, `row`, `model` and the settings of the memory; `x` is one of these names.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval.analysis.growth import WINDOW, Schedule, exponent, growth_file, measure, sharing_kinds
from eval.files.run_folder import RunFolder
from eval.files.store import RunError, replace_file
from eval.metrics.evidence import evidence
from eval.report.counted import counted
from eval.report.figures import draw, save
from eval.report.panels import Sheet
from eval.report.points import Point, as_csv, by_depth, drawn_tree, mapped, published, recalled_levels, scored
from eval.report.published import Published, find, read_published
from eval.report.tables import AnyCell
from eval.report.wandb_log import log_files
from eval.statistics.stats import wilson
from eval.structure.tree import Tree
from eval.structure.triplets import agreement, ask_triplets, sample_triplets
from memsys.llm.pricing import Purse, one_cap
from scripts.assembly.run_folders import trees_of
from scripts.assembly.steps import answer_metric
from scripts.settings.schema import Figures
from scripts.setup.options import load_option
from scripts.tables.captions import evidence_lines, models_line, prompts_line, unfitted
from scripts.tables.grid import Experiment, all_prompts
from scripts.tables.layout import ColumnGroup, TableMetric, TableRow, group_name, variation
from scripts.tables.table import Outcome, experiment


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of a figure on one data set."""

    line: TableRow
    group: ColumnGroup
    metric: TableMetric | None
    """The metric; None if the figure shows no score."""
    model: str
    """The model that writes the memory."""
    names: Mapping[str, str]
    """Printed forms of values; other values are printed unchanged."""

    def value(self, name: str) -> str | float:
        """The row's value of `name`: its data set, category, metric, title, model, or a setting of its memory.

        Raises:
            RunError: the memory has no such setting.
        """
        known: dict[str, Any] = {
            "dataset": self.group.title,
            "category": self.metric.category if self.metric else "",
            "metric": self.metric.whole_title if self.metric else "",
            "row": self.line.title,
            "memory": str(self.line.memory.get("title", self.line.memory["name"]))
            if self.line.memory
            else self.line.title,
            "model": self.model,
            **self.line.option.get("values", {}),
        }
        if name not in known:  # `inner` gives the class path of the memory inside a wrapper
            build = self.line.memory["build"] if self.line.memory else self.line.option
            if name not in build:
                there = ", ".join([*known, *(each for each in build if not each.startswith("_"))])
                raise RunError(f"{self.line.name} has no {name!r} for panel, series or x; there are: {there}")
            known[name] = build[name]["_target_"] if name == "inner" else build[name]
        value = known[name]
        return float(value) if isinstance(value, int | float) else self.names.get(str(value), str(value))

    def text(self, pattern: str) -> str:
        """Fill a pattern such as `"{dataset}, {row}"`."""
        parts = pattern.replace("}", "{").split("{")  # every second part is a name
        values = [self.value(part) if place % 2 else part for place, part in enumerate(parts)]
        return "".join(f"{value:g}" if isinstance(value, float) else value for value in values)


def _subjects(experiment: Experiment[Figures], *, metrics: bool) -> Iterator[Subject]:
    """Every drawn row on every available data set, once for each metric or (`metrics=False`) just once."""
    names = experiment.cfg.figure.get("names", {})
    drawn = [line for line in experiment.lines if line.option.get("drawn", True)]
    for group in experiment.groups:
        if group.dataset is not None:
            for metric in group.metrics if metrics else [None]:
                for line in drawn:
                    yield Subject(line, group, metric, experiment.models.memory.name, names)


def _folder(experiment: Experiment[Figures], subject: Subject) -> Path | None:
    """Run folder of the first replicate; None if the row has no run."""
    runs = experiment.runs.get((subject.line.name, subject.group.name))
    return runs[0].folder if runs else None


def _trees(experiment: Experiment[Figures], *, vectors: bool = False) -> Iterator[tuple[Subject, list[Tree]]]:
    for subject in _subjects(experiment, metrics=False):
        if (folder := _folder(experiment, subject)) is not None:
            yield subject, trees_of(folder, RunFolder(folder).record(), vectors=vectors)


def _scores(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """One point for each panel, series and x, averaging the settings that share it; `base` rows are drawn in every panel."""
    marks: dict[Point, list[AnyCell]] = {}
    panels: dict[tuple[str, str], list[str]] = {}
    bases: list[tuple[tuple[str, str], Subject, AnyCell]] = []
    for subject in _subjects(experiment, metrics=True):
        assert subject.metric is not None
        cell = experiment.cell(subject.line, subject.group, subject.metric)
        column = (subject.group.name, subject.metric.title)
        if isinstance(cell, str):
            continue
        if subject.line.name in options.get("base", ()):
            bases.append((column, subject, cell))
            continue
        panel = subject.text(options["panel"])
        if panel not in panels.setdefault(column, []):
            panels[column].append(panel)
        mark = Point(panel, subject.text(options["series"]), subject.value(options["x"]), 0.0)
        marks.setdefault(mark, []).append(cell)
    points = [point for mark, cells in marks.items() for point in scored(mark, cells)]
    for column, subject, cell in bases:
        for panel in panels.get(column, ()):
            series = subject.text(options.get("base_series", "{row}"))
            points += scored(Point(panel, series, "", 0.0), [cell])
    order = list(dict.fromkeys(point.panel for point in points))
    return sorted(points, key=lambda point: order.index(point.panel))


def _levels(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Share of the recalled items by level, with the score of the first metric."""
    folders = [(subject, _folder(experiment, subject)) for subject in _subjects(experiment, metrics=False)]
    counts = {id(subject): recalled_levels(folder) for subject, folder in folders if folder is not None}
    base = options.get("base", ())
    panels: dict[str, list[Subject]] = {}
    for subject, folder in folders:
        if folder is not None and subject.line.name not in base:
            panels.setdefault(subject.text(options["panel"]), []).append(subject)
    points: list[Point] = []
    for panel, subjects in panels.items():
        group = subjects[0].group.name
        bases = [each for each, _ in folders if each.line.name in base and each.group.name == group]
        bars = [*((each, "") for each in bases), *((each, each.value(options["x"])) for each in subjects)]
        highest = max((level for each, _ in bars for level in counts[id(each)]), default=0)
        for subject, x in bars:
            count = counts[id(subject)]
            points += [
                Point(panel, f"level {level}", x, count[level] / max(1, count.total()), n=count[level])
                for level in range(highest + 1)
            ]
            cell = experiment.cell(subject.line, subject.group, subject.group.metrics[0])
            points += scored(Point(panel, "score", x, 0.0), [cell])
    return points


def _depths(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Nodes and tokens by depth; `measures` selects and titles them."""
    points, built = list[Point](), list(_trees(experiment))
    for name, title in options["measures"].items():
        for subject, trees in built:
            panel = ", ".join(filter(None, (subject.text(options["panel"]), title)))
            points += by_depth(trees, Point(panel, subject.text(options["series"]), "", 0.0), name)
    return points


def _tree(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Each row's tree of one history: `case`, or the first history if there is no such case."""
    points: list[Point] = []
    for subject, trees in _trees(experiment):
        assert subject.group.dataset is not None
        tree = next((tree for tree in trees if tree.case_id == options["case"]), trees[0])
        cases = subject.group.dataset.cases
        case = cases[cases.ids.index(tree.case_id)]
        points += drawn_tree(tree, case, f"{subject.text(options['panel'])}: {case.id}")
    return points


def _map(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Vectors of all nodes in two dimensions, one panel per level, data sets side by side."""
    settings = experiment.cfg
    points = [
        point
        for subject, trees in _trees(experiment, vectors=True)
        for point in mapped(trees, subject.text(options["panel"]), settings.projection, settings.build.seed)
    ]
    return sorted(points, key=lambda point: int(point.panel.rpartition(" ")[2]))


def _hits(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Share of the recalled items that hold one, two, and more content words of the answer, by category."""
    points: list[Point] = []
    for subject in _subjects(experiment, metrics=False):
        folder = _folder(experiment, subject)
        if folder is None or subject.group.dataset is None:
            continue
        for category, seen in evidence(folder, subject.group.dataset.cases).items():
            if category in options["categories"] and seen.blocks:
                mark = Point(category, "", subject.line.title, 0.0, n=seen.blocks)
                parts = zip(("1 hit", "2 hits", "3 or more"), seen.hits[1:], strict=True)
                points += [replace(mark, series=series, y=share) for series, share in parts]
    return sorted(points, key=lambda point: options["categories"].index(point.panel))


def _triplets(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Share of triplets for which the judge's model rates the descendant as more similar, by tier and depth; Wilson intervals."""
    import numpy as np

    points = []
    models = experiment.models
    for subject, trees in _trees(experiment):
        triplets = sample_triplets(trees, options["triplets"], np.random.default_rng(experiment.cfg.build.seed))
        replies = ask_triplets(models.judge.llm, models.prompts, trees, triplets)
        for (tier, depth), seen in agreement(triplets, replies).items():
            if seen.share is not None and depth != "all":
                span = wilson(seen.agreed, seen.answered)
                points.append(Point(tier, subject.line.title, depth, seen.share, span.low, span.high, seen.answered))
    return points


def _growth(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Cost by size. A finished measurement is not repeated, because its seconds would differ; rows outside `only` are not measured."""
    sizes = options["sizes"].get(experiment.cfg.profile_name) or options["sizes"]["default"]
    points = []
    for subject in _subjects(experiment, metrics=False):
        run = experiment.runs[subject.line.name, subject.group.name][0]
        data = subject.group.dataset
        metric = answer_metric(data.config) if data and options.get("score", False) else None
        schedule = Schedule(
            tuple(sizes),
            options.get("window", WINDOW),
            options.get("reads", 0),
            options.get("questions", 0),
            experiment.cfg.k_evidence,
            metric.name if metric else "",
        )
        path = growth_file(run, run.dataset, schedule)
        if not path.is_file():
            if experiment.only is not None and subject.line.name not in experiment.only:
                continue
            replace_file(path, measure(run, run.dataset, schedule, metric.scored if metric else None))
        with path.open(encoding="utf-8", newline="") as handle:
            costs = list(csv.DictReader(handle))
        for panel, (kind, *fields) in options["panels"].items():
            points += [
                _at_size(panel, subject.line.title, cost, fields)
                for cost in costs
                if cost["what"] == kind and all(cost[name] for name in fields)
            ]
    order = list(options["panels"])
    return sorted(points, key=lambda point: order.index(point.panel))


def _at_size(panel: str, series: str, cost: Mapping[str, str], fields: Sequence[str]) -> Point:
    """A point of a growth curve; with an interval if a single quantity is drawn and the file has its interval."""
    ends = [cost.get(f"{fields[0]}_{end}") if len(fields) == 1 else None for end in ("low", "high")]
    low, high = (float(end) if end else None for end in ends)
    return Point(panel, series, float(cost["n"]), sum(float(cost[name]) for name in fields), low, high, n=1)


Show = Callable[[Mapping[str, Any], Experiment[Figures]], list[Point]]
SHOWS: Mapping[str, tuple[Show, tuple[str, ...]]] = {
    "scores": (_scores, ("panel", "series", "x")),
    "levels": (_levels, ("panel", "x")),
    "depths": (_depths, ("panel", "series", "measures")),
    "tree": (_tree, ("panel", "case")),
    "map": (_map, ("panel",)),
    "hits": (_hits, ("categories",)),
    "triplets": (_triplets, ("triplets",)),
    "growth": (_growth, ("sizes", "panels")),
}
"""By the value of `show`: the function, and the settings that it reads."""


INTERVALS = "Intervals: 95 %, by history; with fewer than five, Wilson's on the effective number of questions."


def make_figure(cfg: Figures) -> Outcome:
    """Run what is missing, draw, and write `<results>/figures/<name>-<profile>.pdf`, `.png` and `.csv` (other names: `variation`).

    Raises:
        RunError: the figure lacks a setting, no row has a result, or a published number that the figure names does not exist.
    """
    options = cfg.figure
    show, needed = SHOWS[options["show"]]
    if missing := [name for name in needed if name not in options]:
        raise RunError(f"{options['name']}: show: {options['show']} needs {', '.join(missing)}")
    vectors = True if options["show"] == "map" and cfg.nodes.vectors is None else cfg.nodes.vectors
    points: list[Point] = []
    experiments: list[Experiment[Figures]] = []
    purses: list[Purse] = []
    backbones: list[str | None] = [cfg.backbone or options.get("backbone")]
    if backbones == [None] and cfg.profile_name == "paper":  # the sets of models that the figure compares
        backbones = [None if name == "default" else name for name in options.get("backbones", ["default"])]
    for backbone in backbones:
        with one_cap(purses):
            chosen = cfg.changed(backbone=backbone, nodes={"vectors": vectors})
            assembled = experiment(chosen, layout(options), run=options["show"] != "growth")
        if assembled is None:
            return Outcome(3)
        if assembled.stopped:
            print(f"note: {assembled.stopped}", file=sys.stderr)
        experiments.append(assembled)
        points += show(options, assembled)
    if not points:
        reasons = _missing_data(experiments) or ["no row has a result"]
        raise RunError(f"{options['name']}: nothing to draw; {'; '.join(reasons)}")
    for entry in options.get("published", ()):  # points whose values the paper states in a sentence
        place = Point(entry["panel"], entry["series"], entry["x"], 0.0)
        points.append(published(place, _stated(options, entry).divided(entry.get("scale", 1.0))))
    name = "-".join([options["name"], *([cfg.backbone] if cfg.backbone else []), cfg.profile_name]) + variation(cfg)
    models, notes = experiments[0].models, footnote(experiments, options, points)
    drawing = replace(sheet(options, notes), bare=cfg.bare)
    files = write_figure(models.results / "figures" / name, drawing, points, models_line(models))
    fits = exponents(points, sharing(options, points)) if options["show"] == "growth" else ()
    for note in (*notes, *fits):
        print(note)
    print(f"written: {', '.join(str(file) for file in files)} ({counted(len(points), 'point')})")
    log_files(cfg.plain, "figure", options["name"], files)
    return Outcome(0, files[0])


def sharing(options: Mapping[str, Any], points: Sequence[Point]) -> set[str]:
    """Panels of a growth figure whose exponents have no interval, because sizes share questions, totals or writes (`exponent`)."""
    sizes = {float(point.x) for point in points if point.origin != "published"}
    kinds = sharing_kinds(sizes, options.get("window", WINDOW))
    return {panel for panel, (kind, *_) in options["panels"].items() if kind in kinds}


def exponents(points: Sequence[Point], without_interval: Collection[str] = ()) -> Iterator[str]:
    """A line for each panel: the exponent of every curve in the size, with its interval (`eval.analysis.growth`).

    Args:
        without_interval: panels whose exponents are printed alone (`sharing`).
    """
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for point in (each for each in points if each.origin != "published"):
        curves.setdefault(point.panel, {}).setdefault(point.series, []).append((float(point.x), point.y))
    for panel, by_series in curves.items():
        fits = []
        for series, curve in by_series.items():
            found = exponent(*zip(*curve, strict=True))
            span = found.interval if found is not None and panel not in without_interval else None
            ends = f" [{span.low:.3f}, {span.high:.3f}]" if span else ""
            fits.append(f"{series} none" if found is None else f"{series} {found.value:.3f}{ends}")  # a value is 0
        yield f"exponent, {panel}: {', '.join(fits)}"


def layout(options: Mapping[str, Any]) -> dict[str, Any]:
    """The table behind a figure: the data sets and metrics of `options["table"]`, and the figure's rows.

    `options["file"]` names another file of published numbers for the default models.
    """
    table = load_option("table", options["table"])
    kept = {name: value for name, value in table.items() if name != "others"}
    if "rows" in options:
        kept = {name: value for name, value in kept.items() if not name.startswith("rows_")}
    if "file" in options:
        default = {**table["backbones"]["default"], "file": options["file"]}
        kept["backbones"] = {**table["backbones"], "default": default}
    columns = [_cut(column, options) for column in options.get("columns", table["columns"])]
    groups = options.get("groups", [group_name(column) for column in columns])
    chosen = [column for column in columns if group_name(column) in groups]
    return {**kept, "name": options["name"], "rows": options.get("rows", table["rows"]), "columns": chosen}


def _cut(column: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A column group with its first `take` metrics, without the categories named in `without`."""
    without = options.get("without", ())
    metrics = [
        {**metric, "by": {name: value for name, value in metric["by"].items() if name not in without}}
        if "by" in metric
        else metric
        for metric in column["metrics"][: options.get("take")]
    ]
    return {**column, "metrics": metrics}


def _stated(options: Mapping[str, Any], entry: Mapping[str, Any]) -> Published:
    """The number that the paper states in a sentence. Raises RunError if no published number matches."""
    number = find(read_published("in_text_numbers"), entry["find"])
    if number is None:
        raise RunError(f"{options['name']}: no published number matches {entry['find']}")
    return number


def footnote(
    experiments: Sequence[Experiment[Any]], options: Mapping[str, Any], points: Sequence[Point]
) -> tuple[str, ...]:
    """Notes below a figure: models, data, intervals, missing data sets, prompts, lost evidence, and the source of published points."""
    notes = [f"{models_line(each.models)}." for each in experiments]
    stand_in = bool(experiments[0].models.stand_ins)
    if stand_in:
        notes[0] += " The numbers test the machinery only."
    notes += dict.fromkeys(
        f"{group.dataset.title}: {group.dataset.source.status} data, "
        f"histories {len(group.dataset.cases)}, questions {len(group.questions)}."
        for each in experiments
        for group in each.groups
        if group.dataset is not None
    )
    notes += _missing_data(experiments)
    if "marks" in options or any(point.low is not None for point in points):
        notes.append(options.get("marks", INTERVALS))
    notes += options.get("notes", ())
    notes += _ratios(options, points)
    notes += dict.fromkeys(note for each in experiments for note in unfitted(each.lines, each.models))
    used = {name for each in experiments for name in all_prompts(each)}
    if options.get("show") in ("growth", "map"):  # without answers only the memories' own prompts are used
        built = (run.record.prompts for each in experiments for builds in each.runs.values() for run in builds)
        used |= {name for names in built for name in names if not name.startswith("reader/")}
    notes += [said] if (said := prompts_line(experiments[0].models.prompts, used)) else []
    notes += dict.fromkeys(line for each in experiments for line in evidence_lines(each.groups, each.lines))
    if any(point.origin == "published" for point in points):
        verdict = " Not comparable with ours: stand-in." if stand_in else ""
        notes.append(f"Diamonds: {options['paper']}'s own numbers, where a table or a sentence states them.{verdict}")
    return tuple(notes)


def _ratios(options: Mapping[str, Any], points: Sequence[Point]) -> Iterator[str]:
    """A line for each ratio that the paper states: ours is the ratio of the sums over all points of both series."""
    for entry in options.get("ratios", ()):
        number = _stated(options, entry)
        panel = [point for point in points if point.panel == entry["panel"] and point.origin != "published"]
        over, under = (sum(point.y for point in panel if point.series == entry[side]) for side in ("over", "under"))
        if under:
            yield f"{entry['over']} over {entry['under']}, {entry['panel']}: {over / under:.1f} (published {number.value:g})."


def _missing_data(experiments: Sequence[Experiment[Any]]) -> list[str]:
    return [f"{group.title}: {group.missing}" for each in experiments for group in each.groups if group.missing]


def sheet(options: Mapping[str, Any], notes: tuple[str, ...]) -> Sheet:
    """Drawing settings of a figure, with its footnote."""
    names = set(Sheet.__slots__) - {"footnote"}
    return Sheet(footnote=notes, **{name: value for name, value in options.items() if name in names})


def write_figure(
    stem: Path, drawing: Sheet, points: Sequence[Point], engine: str, suffixes: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Draw the points and write PDF, PNG and CSV; a file is replaced as a whole or not changed.

    Args:
        engine: the models behind the numbers, for the CSV.
        suffixes: kinds of drawings, also svg.
    """
    files = save(draw(drawing, points), stem, " ".join([drawing.title, *drawing.footnote]), suffixes)
    table = stem.with_name(stem.name + ".csv")
    replace_file(table, as_csv(points, engine))
    return [*files, table]
