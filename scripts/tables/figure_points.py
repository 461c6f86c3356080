"""Points of a figure, one function for each value of `show` in a figure's YAML.

Each function takes the figure's options and the experiment behind it, and returns the points to draw.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval.analysis.growth import Schedule, growth_file, measure
from eval.files.run_folder import RunFolder
from eval.files.store import RunError, replace_file
from eval.metrics.evidence import evidence
from eval.report.points import Point, by_depth, drawn_tree, mapped, recalled_levels, scored
from eval.report.tables import AnyCell
from eval.statistics.stats import wilson
from eval.structure.tree import Tree
from eval.structure.triplets import agreement, ask_triplets, sample_triplets
from scripts.assembly.run_folders import trees_of
from scripts.assembly.scorers import answer_metric
from scripts.settings.schema import Figures
from scripts.tables.grid import Experiment
from scripts.tables.layout import ColumnGroup, TableRow, cells_of, title_of


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of a figure on one data set."""

    line: TableRow
    group: ColumnGroup
    metric: Mapping[str, Any]
    """The metric; empty if the figure shows no score."""
    model: str
    """The model that writes the memory."""

    def value(self, name: str, names: Mapping[str, str]) -> str | float:
        """The row's value of `name`: its data set, category, metric, title, model, or a setting of its memory.

        Args:
            name: name of the value.
            names: printed forms of values; other values are printed unchanged.

        Raises:
            RunError: the memory has no such setting.
        """
        known: dict[str, Any] = {
            "dataset": self.group.title,
            "category": self.metric.get("category", ""),
            "metric": title_of({**self.metric, "category": "all"}) if self.metric else "",
            "row": self.line.title,
            "memory": str(self.line.memory.get("title", self.line.memory["name"]))
            if self.line.memory
            else self.line.title,
            "model": self.model,
            **self.line.option.get("values", {}),
        }
        value = known[name] if name in known else _setting(self.line, name)
        return float(value) if isinstance(value, int | float) else names.get(str(value), str(value))

    def text(self, pattern: str, names: Mapping[str, str]) -> str:
        """Fill a pattern such as `"{dataset}, {row}"`."""
        parts = pattern.replace("}", "{").split("{")  # every second part is a name
        return "".join(_printed(self.value(part, names)) if place % 2 else part for place, part in enumerate(parts))


def _printed(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else value


def _setting(line: TableRow, name: str) -> Any:
    """A setting of the row's memory; `inner` gives the class path of the memory inside a wrapper."""
    build = line.memory["build"] if line.memory else line.option
    if name not in build:
        raise RunError(f"{line.name} has no setting {name!r}; there are: {', '.join(build)}")
    return build[name]["_target_"] if name == "inner" else build[name]


def _subjects(experiment: Experiment[Figures], *, metrics: bool) -> Iterator[Subject]:
    """Every drawn row on every available data set, once for each metric or (`metrics=False`) just once."""
    drawn = [line for line in experiment.lines if line.option.get("drawn", True)]
    for group in experiment.groups:
        if group.dataset is not None:
            for metric in cells_of(group.option) if metrics else [{}]:
                for line in drawn:
                    yield Subject(line, group, metric, experiment.models.memory.name)


def _folder(experiment: Experiment[Figures], subject: Subject) -> Path | None:
    """Run folder of the first replicate; None if the row has no run."""
    run = experiment.runs.get((subject.line.name, subject.group.name, 0))
    return None if run is None else run.folder


def _trees(experiment: Experiment[Figures], *, vectors: bool = False) -> Iterator[tuple[Subject, list[Tree]]]:
    for subject in _subjects(experiment, metrics=False):
        if (folder := _folder(experiment, subject)) is not None:
            yield subject, trees_of(folder, RunFolder(folder).record(), vectors=vectors)


def _scores(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """One point for each panel, series and x, averaging the settings that share it; `base` rows are drawn in every panel."""
    names = options.get("names", {})
    marks: dict[Point, list[AnyCell]] = {}
    panels: dict[tuple[str, str], list[str]] = {}
    bases: list[tuple[tuple[str, str], Subject, AnyCell]] = []
    for subject in _subjects(experiment, metrics=True):
        cell = experiment.cell(subject.line, subject.group, subject.metric)
        column = (subject.group.name, title_of(subject.metric))
        if isinstance(cell, str):
            continue
        if subject.line.name in options.get("base", ()):
            bases.append((column, subject, cell))
            continue
        panel = subject.text(options["panel"], names)
        if panel not in panels.setdefault(column, []):
            panels[column].append(panel)
        mark = Point(panel, subject.text(options["series"], names), subject.value(options["x"], names), 0.0)
        marks.setdefault(mark, []).append(cell)
    points = [point for mark, cells in marks.items() for point in scored(mark, cells)]
    for column, subject, cell in bases:
        for panel in panels.get(column, ()):
            series = subject.text(options.get("base_series", "{row}"), names)
            points += scored(Point(panel, series, "", 0.0), [cell])
    order = list(dict.fromkeys(point.panel for point in points))
    return sorted(points, key=lambda point: order.index(point.panel))


def _levels(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Share of the recalled items by level, with the score of the first metric."""
    names = options.get("names", {})
    folders = [(subject, _folder(experiment, subject)) for subject in _subjects(experiment, metrics=False)]
    counts = {id(subject): recalled_levels(folder) for subject, folder in folders if folder is not None}
    base = options.get("base", ())
    panels: dict[str, list[Subject]] = {}
    for subject, folder in folders:
        if folder is not None and subject.line.name not in base:
            panels.setdefault(subject.text(options["panel"], names), []).append(subject)
    points: list[Point] = []
    for panel, subjects in panels.items():
        group = subjects[0].group.name
        bases = [each for each, _ in folders if each.line.name in base and each.group.name == group]
        bars = [*((each, "") for each in bases), *((each, each.value(options["x"], names)) for each in subjects)]
        highest = max((level for each, _ in bars for level in counts[id(each)]), default=0)
        for subject, x in bars:
            count = counts[id(subject)]
            points += [
                Point(panel, f"level {level}", x, count[level] / max(1, count.total()), n=count[level])
                for level in range(highest + 1)
            ]
            metric = cells_of(subject.group.option)[0]
            cell = experiment.cell(subject.line, subject.group, metric)
            points += scored(Point(panel, "score", x, 0.0), [cell])
    return points


def _depths(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Nodes and tokens by depth; `measures` selects and titles them."""
    names, titles = options.get("names", {}), options["measures"]
    points = [
        point
        for subject, trees in _trees(experiment)
        for point in by_depth(
            trees, Point(subject.text(options["panel"], names), subject.text(options["series"], names), "", 0.0)
        )
    ]
    measures = [next(name for name in ("nodes", "tokens") if point.panel.endswith(name)) for point in points]
    return [
        replace(point, panel=point.panel.removesuffix(wanted) + titles[wanted])
        for wanted in titles
        for point, measure in zip(points, measures, strict=True)
        if measure == wanted
    ]


def _tree(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Each row's tree of one history: `case`, or the first history if there is no such case."""
    points: list[Point] = []
    for subject, trees in _trees(experiment):
        assert subject.group.dataset is not None
        tree = next((tree for tree in trees if tree.case_id == options["case"]), trees[0])
        cases = subject.group.dataset.cases
        case = cases[cases.ids.index(tree.case_id)]
        panel = subject.text(options["panel"], options.get("names", {}))
        points += drawn_tree(tree, case, f"{panel}: {case.id}")
    return points


def _map(options: Mapping[str, Any], experiment: Experiment[Figures]) -> list[Point]:
    """Vectors of all nodes in two dimensions, one panel per level, data sets side by side."""
    names, settings = options.get("names", {}), experiment.cfg
    points = [
        point
        for subject, trees in _trees(experiment, vectors=True)
        for point in mapped(trees, subject.text(options["panel"], names), settings.projection, settings.build.seed)
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
        run = experiment.runs[subject.line.name, subject.group.name, 0]
        data = subject.group.dataset
        metric = answer_metric(data.config) if data and options.get("score", False) else None
        schedule = Schedule(
            tuple(sizes),
            options.get("window", 10),
            options.get("reads", 0),
            options.get("questions", 0),
            experiment.cfg.k_evidence,
            metric.name if metric else "",
        )
        path = growth_file(run, run.dataset, schedule)
        if not path.is_file():
            if experiment.only is not None and subject.line.name not in experiment.only:
                continue
            replace_file(path, measure(run, run.dataset, schedule, metric.score if metric else None))
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
SHOWS: Mapping[str, Show] = {
    "scores": _scores,
    "levels": _levels,
    "depths": _depths,
    "tree": _tree,
    "map": _map,
    "hits": _hits,
    "triplets": _triplets,
    "growth": _growth,
}
"""Functions by the value of `show`."""
