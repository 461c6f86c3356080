"""A figure of a paper: `python -m scripts.figures figure=segtreemem_f6 profile=smoke|subset|paper [backbone=qwen] [projection=umap]`.

What is missing is run through the run folders of tables, sweeps and growth curves, so a figure of what a table already has costs nothing.
`results/figures/<name>-<profile>` gets a PDF, a PNG and the CSV of the points. A figure's YAML names the table whose data sets, readers
and metrics it takes, the rows (`rows` replaces those of the table), what is shown of them, and how it is drawn; `panel` and `series`
are patterns over `dataset`, `category`, `metric`, `row`, `model` and the settings of the memory, `x` is one of them.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra

from eval.metrics.evidence import evidence
from eval.report.figures import draw, save
from eval.report.panels import Sheet
from eval.report.points import Point, as_csv, by_depth, drawn_tree, mapped, published, recalled_levels, scored
from eval.report.published import find, read_published
from eval.report.tables import AnyCell
from eval.report.wandb_log import log_figure
from eval.stats import wilson
from eval.store import RunError, replace_file
from eval.structure.tree import Tree
from eval.structure.triplets import agreement, ask_triplets, sample_triplets
from scripts.experiment.assemble import Bench, load_option
from scripts.experiment.exits import configured
from scripts.experiment.grid import Benchmark, Experiment, experiment
from scripts.experiment.launch import ended, launch
from scripts.experiment.layout import Line, cells_of, group_name, title_of
from scripts.experiment.run_folder import record_of, trees_of
from scripts.growth import Steps, measure, place

if TYPE_CHECKING:
    from omegaconf import DictConfig

INTERVALS = "Intervals: 95 %, by history from five histories on, else by question."


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of a figure on one data set."""

    line: Line
    benchmark: Benchmark
    metric: Mapping[str, Any]
    model: str
    """The model that writes the memory."""

    def value(self, name: str, names: Mapping[str, str]) -> str | float:
        """What the row is, or how its memory is set; `names` says how values are printed.

        Raises:
            RunError: the name is neither.
        """
        known: dict[str, Any] = {
            "dataset": self.benchmark.title,
            "category": self.metric.get("category", ""),
            "metric": title_of({**self.metric, "category": "all"}) if self.metric else "",
            "row": self.line.title,
            "model": self.model,
            **self.line.option.get("values", {}),
        }
        value = known[name] if name in known else _setting(self.line, name)
        return float(value) if isinstance(value, int | float) else names.get(str(value), str(value))

    def text(self, pattern: str, names: Mapping[str, str]) -> str:
        """A pattern with the names in braces replaced."""
        parts = pattern.replace("}", "{").split("{")
        return "".join(_plain(self.value(part, names)) if place % 2 else part for place, part in enumerate(parts))


def _plain(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else value


def _setting(line: Line, name: str) -> Any:
    """A setting of the memory; `inner` is the class that a wrapper wraps."""
    build = line.memory["build"] if line.memory else line.option
    if name not in build:
        raise RunError(f"{line.name} has no setting {name!r}; there are: {', '.join(build)}")
    return build[name]["_target_"] if name == "inner" else build[name]


def figure(cfg: DictConfig) -> int:
    """Run what is missing, draw and write; the exit code is 2 when the input is wrong, 3 when nobody agreed to the cost."""
    return configured(cfg, "figures", _figure)


def _figure(cfg: DictConfig) -> int:
    from omegaconf import OmegaConf

    options: dict[str, Any] = dict(OmegaConf.to_container(cfg.figure, resolve=True))  # type: ignore[arg-type]
    points: list[Point] = []
    made: list[Experiment] = []
    for backbone in _backbones(cfg, options):
        found = _experiment(cfg, options, backbone)
        if found is None:
            return 3
        if found.capped:
            print(f"note: {found.capped}", file=sys.stderr)
        made.append(found)
        points += SHOWS[options["show"]](cfg, options, found)
    if not points:
        raise RunError(f"{options['name']}: nothing to draw; " + "; ".join(_missing(made) or ["no row has a result"]))
    points += _stated(options)
    stem = (
        made[0].built.results
        / "figures"
        / "-".join([options["name"], *([cfg.backbone] if cfg.backbone else []), cfg.profile_name])
    )
    files = written(stem, sheet(options, footnote(made, options, points)), points, made[0].built)
    for line in footnote(made, options, points):
        print(line)
    print(f"written: {', '.join(str(file) for file in files)} ({len(points)} points)")
    log_figure(OmegaConf.to_container(cfg, resolve=True), options["name"], files)  # type: ignore[arg-type]
    return 0


def _backbones(cfg: DictConfig, options: Mapping[str, Any]) -> list[str | None]:
    """Sets of models that the figure puts side by side; with models of one's own there is one."""
    chosen = cfg.backbone or options.get("backbone")
    if chosen is not None or cfg.profile_name != "paper":
        return [chosen]
    return [None if name == "default" else name for name in options.get("backbones", ["default"])]


def _experiment(cfg: DictConfig, options: Mapping[str, Any], backbone: str | None) -> Experiment | None:
    """The table behind the figure, run; None when nobody agreed to the cost."""
    from omegaconf import OmegaConf

    own = OmegaConf.merge(cfg, {"backbone": backbone})
    if options["show"] == "map" and own.nodes.vectors is None:
        own.nodes.vectors = True
    assert isinstance(own, type(cfg))
    return experiment(own, layout(options), run=options["show"] != "growth")


def layout(options: Mapping[str, Any]) -> dict[str, Any]:
    """The table that a figure is drawn from: its data sets and metrics, the figure's rows."""
    table = load_option("table", options["table"])
    kept = {name: value for name, value in table.items() if name != "others" and not name.startswith("rows_")}
    if "rows" not in options:
        kept = {name: value for name, value in table.items() if name != "others"}
    columns = [_cut(column, options) for column in options.get("columns", table["columns"])]
    wanted = options.get("groups", [group_name(column) for column in columns])
    chosen = [column for column in columns if group_name(column) in wanted]
    return {**kept, "name": options["name"], "rows": options.get("rows", table["rows"]), "columns": chosen}


def _cut(column: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A column group with the first `take` metrics, less the categories that `without` names."""
    metrics = column["metrics"][: options.get("take")]
    without = options.get("without", ())
    named = [
        {**metric, "by": {name: value for name, value in metric["by"].items() if name not in without}}
        if "by" in metric
        else metric
        for metric in metrics
    ]
    return {**column, "metrics": named}


def _stated(options: Mapping[str, Any]) -> Iterator[Point]:
    """Published points that a sentence states."""
    for entry in options.get("published", ()):
        number = find(read_published("in_text_numbers"), entry["find"])
        if number is None:
            raise RunError(f"{options['name']}: no published number is {entry['find']}")
        yield published(Point(entry["panel"], entry["series"], entry["x"], 0.0), number, entry.get("scale", 1.0))


# --- what is shown ------------------------------------------------------------------------------------------------------


def _subjects(found: Experiment, *, metrics: bool) -> Iterator[Subject]:
    """Every row on every data set that is there; once for each metric, or once."""
    model = found.built.memory.name
    drawn = [line for line in found.lines if line.option.get("drawn", True)]
    for one in found.benchmarks:
        if one.dataset is not None:
            for metric in cells_of(one.option) if metrics else [{}]:
                for line in drawn:
                    yield Subject(line, one, metric, model)


def _scores(cfg: DictConfig, options: Mapping[str, Any], found: Experiment) -> list[Point]:
    """A mark for each panel, series and x; several settings under one mark are averaged, `base` rows stand in every panel."""
    names = options.get("names", {})
    marks: dict[Point, list[AnyCell]] = {}
    panels: dict[tuple[str, str], list[str]] = {}
    bases = []
    for one in _subjects(found, metrics=True):
        cell = found.grid.cell(one.line, one.benchmark, one.metric)
        key = (one.benchmark.group, title_of(one.metric))
        if isinstance(cell, str):
            continue
        if one.line.name in options.get("base", ()):
            bases.append((key, one, cell))
            continue
        panel = one.text(options["panel"], names)
        if panel not in panels.setdefault(key, []):
            panels[key].append(panel)
        mark = Point(panel, one.text(options["series"], names), one.value(options["x"], names), 0.0)
        marks.setdefault(mark, []).append(cell)
    drawn = [point for mark, cells in marks.items() for point in scored(mark, cells)]
    for key, one, cell in bases:
        for panel in panels.get(key, ()):
            drawn += scored(Point(panel, one.text(options.get("base_series", "{row}"), names), "", 0.0), [cell])
    order = list(dict.fromkeys(point.panel for point in drawn))
    return sorted(drawn, key=lambda point: order.index(point.panel))


def _levels(cfg: DictConfig, options: Mapping[str, Any], found: Experiment) -> list[Point]:
    """Shares of the recalled items by level, and the score of the first metric across them."""
    names = options.get("names", {})
    rows = [(one, _folder(found, one)) for one in _subjects(found, metrics=False)]
    counts = {id(one): recalled_levels(folder) for one, folder in rows if folder is not None}
    panels: dict[str, list[Subject]] = {}
    for one, folder in rows:
        if folder is not None and one.line.name not in options.get("base", ()):
            panels.setdefault(one.text(options["panel"], names), []).append(one)
    points: list[Point] = []
    for panel, subjects in panels.items():
        group = subjects[0].benchmark.group
        bases = [one for one, _ in rows if one.line.name in options.get("base", ()) and one.benchmark.group == group]
        own = [*((one, "") for one in bases), *((one, one.value(options["x"], names)) for one in subjects)]
        highest = max((level for one, _ in own for level in counts[id(one)]), default=0)
        for one, x in own:
            total = max(1, counts[id(one)].total())
            points += [
                Point(panel, f"level {level}", x, counts[id(one)][level] / total, n=counts[id(one)][level])
                for level in range(highest + 1)
            ]
            metric = cells_of(one.benchmark.option)[0]
            points += scored(Point(panel, "score", x, 0.0), [found.grid.cell(one.line, one.benchmark, metric)])
    return points


def _folder(found: Experiment, one: Subject) -> Path | None:
    """The run folder of the first replicate."""
    run = found.runs.get((one.line.name, one.benchmark.group, 0))
    return None if run is None else run.folder


def _trees(found: Experiment, *, vectors: bool = False) -> Iterator[tuple[Subject, list[Tree]]]:
    for one in _subjects(found, metrics=False):
        if (folder := _folder(found, one)) is not None:
            yield one, trees_of(folder, record_of(folder), vectors=vectors)


def _depths(cfg: DictConfig, options: Mapping[str, Any], found: Experiment) -> list[Point]:
    """Nodes and tokens by depth."""
    names, wanted = options.get("names", {}), options["measures"]
    points = [
        point
        for one, trees in _trees(found)
        for point in by_depth(
            trees, Point(one.text(options["panel"], names), one.text(options["series"], names), "", 0.0)
        )
    ]
    measured = [(point, next(one for one in ("nodes", "tokens") if point.panel.endswith(one))) for point in points]
    return [
        replace(point, panel=point.panel.removesuffix(name) + wanted[name])
        for kind in wanted
        for point, name in measured
        if name == kind
    ]


def _tree(cfg: DictConfig, options: Mapping[str, Any], found: Experiment) -> list[Point]:
    """One history's tree of each row."""
    points: list[Point] = []
    for one, trees in _trees(found):
        assert one.benchmark.dataset is not None
        tree = next((tree for tree in trees if tree.case_id == options["case"]), trees[0])
        cases = one.benchmark.dataset.cases
        case = cases[cases.ids.index(tree.case_id)]
        points += drawn_tree(tree, case, f"{one.text(options['panel'], options.get('names', {}))}: {case.id}")
    return points


def _map(cfg: DictConfig, options: Mapping[str, Any], found: Experiment) -> list[Point]:
    """The vectors of all nodes in two dimensions, level by level; data sets side by side."""
    points = [
        point
        for one, trees in _trees(found, vectors=True)
        for point in mapped(trees, one.text(options["panel"], options.get("names", {})), cfg.projection, cfg.build.seed)
    ]
    return sorted(points, key=lambda point: int(point.panel.rpartition(" ")[2]))


def _hits(cfg: DictConfig, options: Mapping[str, Any], found: Experiment) -> list[Point]:
    """Shares of recalled items that hold one, two, and more content words of the answer, by category."""
    points: list[Point] = []
    for one in _subjects(found, metrics=False):
        folder = _folder(found, one)
        if folder is None or one.benchmark.dataset is None:
            continue
        for category, seen in evidence(folder, one.benchmark.dataset.cases).items():
            if category in options["categories"] and seen.blocks:
                mark = Point(category, "", one.line.title, 0.0, n=seen.blocks)
                parts = zip(("1 hit", "2 hits", "3 or more"), seen.hits[1:], strict=True)
                points += [replace(mark, series=series, y=share) for series, share in parts]
    return sorted(points, key=lambda point: options["categories"].index(point.panel))


def _triplets(cfg: DictConfig, options: Mapping[str, Any], found: Experiment) -> list[Point]:
    """How often the judge's model finds the descendant more similar, by tier and depth."""
    import numpy as np

    points = []
    for one, trees in _trees(found):
        triplets = sample_triplets(trees, options["triplets"], np.random.default_rng(cfg.build.seed))
        said = ask_triplets(found.built.judge.llm, found.built.prompts, trees, triplets)
        for (tier, band), seen in agreement(triplets, said).items():
            if seen.share is not None and band != "all":
                span = wilson(seen.agreed, seen.answered)
                points.append(Point(tier, one.line.title, band, seen.share, span.low, span.high, seen.answered))
    return points


def _growth(cfg: DictConfig, options: Mapping[str, Any], found: Experiment) -> list[Point]:
    """Costs by size; a measurement that is there is not repeated, because its seconds would differ."""
    sizes = options["sizes"].get(cfg.profile_name) or options["sizes"]["default"]
    steps = Steps(tuple(sizes), options.get("window", 10), options.get("reads", 0))
    points = []
    for one in _subjects(found, metrics=False):
        run = found.runs[one.line.name, one.benchmark.group, 0]
        path = place(run, run.folder.parent.name, steps)
        if not path.is_file():
            text = measure(run, run.folder.parent.name, steps)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        with path.open(encoding="utf-8", newline="") as handle:
            lines = list(csv.DictReader(handle))
        for panel, (what, *fields) in options["panels"].items():
            points += [
                Point(panel, one.line.title, float(line["n"]), sum(float(line[name]) for name in fields), n=1)
                for line in lines
                if line["what"] == what
            ]
    order = list(options["panels"])
    return sorted(points, key=lambda point: order.index(point.panel))


Show = Callable[["DictConfig", Mapping[str, Any], Experiment], list[Point]]
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


# --- what is written ----------------------------------------------------------------------------------------------------


def engine(built: Bench) -> str:
    """What made the numbers, for every line of the CSV and the footnote."""
    models = {"memory": built.memory.name, "reader": built.reader.name, "judge": built.judge.name}
    models["embedder"] = built.embedder_name
    real = ", ".join(f"{role} {name}" for role, name in models.items() if role not in built.stand_ins)
    if not built.stand_ins:
        return f"Models: {real}"
    rest = f"; {real}" if real else ""
    return f"STAND-IN: {', '.join(built.stand_ins)} filled by offline engines without a model{rest}"


def footnote(made: Sequence[Experiment], options: Mapping[str, Any], points: Sequence[Point]) -> tuple[str, ...]:
    """What a figure must say of itself: engine, data, intervals, published points and why they may not be compared."""
    lines = [f"{engine(one.built)}." for one in made]
    if made[0].built.stand_ins:
        lines[0] += " The numbers test the machinery only."
    lines += dict.fromkeys(
        f"{one.dataset.title}: {one.dataset.source.status} data, histories {len(one.dataset.cases)}, questions {len(one.questions)}."
        for each in made
        for one in each.benchmarks
        if one.dataset is not None
    )
    lines += _missing(made)
    if "marks" in options or any(point.low is not None for point in points):
        lines.append(options.get("marks", INTERVALS))
    lines += options.get("notes", ())
    if any(point.origin == "published" for point in points):
        stand_in = " Not comparable with ours: stand-in." if made[0].built.stand_ins else ""
        lines.append(f"Diamonds: {options['paper']}'s own numbers, where a table or a sentence states them.{stand_in}")
    return tuple(lines)


def _missing(made: Sequence[Experiment]) -> list[str]:
    return [f"{one.title}: {one.missing}" for each in made for one in each.benchmarks if one.missing]


def sheet(options: Mapping[str, Any], foot: tuple[str, ...]) -> Sheet:
    """The figure's settings of drawing."""
    names = set(Sheet.__slots__) - {"footnote"}
    return Sheet(footnote=foot, **{name: value for name, value in options.items() if name in names})


def written(stem: Path, how: Sheet, points: Sequence[Point], built: Bench) -> list[Path]:
    """Draw and save: PDF, PNG and CSV, each at once or not at all."""
    files = save(draw(how, points), stem, " ".join([how.title, *how.footnote]))
    table = stem.with_name(stem.name + ".csv")
    replace_file(table, as_csv(points, engine(built)))
    return [*files, table]


@hydra.main(version_base="1.3", config_path="../conf", config_name="figures")
def main(cfg: DictConfig) -> None:
    ended(figure(cfg))


if __name__ == "__main__":
    sys.exit(launch(main))
