"""`memsys-bench figures`: run what is missing for a figure, collect its points, draw it and write its files.

A figure's YAML names the table whose data sets, readers and metrics it uses, its rows (`rows` replaces those of the table), the plotted
values (`show`, see `figure_points`) and the drawing settings (`eval.report.panels.Sheet`). `panel` and `series` are patterns over
`dataset`, `category`, `metric`, `row`, `model` and the settings of the memory; `x` is one of these names.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.analysis.growth import TOTALS, Exponent, exponent
from eval.files.store import RunError, replace_file
from eval.report.counted import counted
from eval.report.figures import draw, save
from eval.report.panels import Sheet
from eval.report.points import Point, as_csv, published
from eval.report.published import Published, find, read_published
from eval.report.wandb_log import log_figure
from memsys.llm.pricing import Purse, one_cap
from scripts.assembly.models import Models
from scripts.setup.options import load_option
from scripts.tables.captions import evidence_lines, models_line, prompts_line, unfitted
from scripts.tables.experiments import Outcome, experiment
from scripts.tables.figure_points import SHOWS
from scripts.tables.grid import Experiment, all_prompts
from scripts.tables.layout import group_name

if TYPE_CHECKING:
    from scripts.settings.schema import Figures

INTERVALS = "Intervals: 95 %, by history; with fewer than five, Wilson's on the effective number of questions."


def make_figure(cfg: Figures) -> Outcome:
    """Run what is missing, draw, and write `<results>/figures/<name>-<profile>.pdf`, `.png` and `.csv`.

    Raises:
        RunError: no row has a result, or a published number that the figure names does not exist.
    """
    options = cfg.figure
    points: list[Point] = []
    experiments: list[Experiment[Figures]] = []
    purses: list[Purse] = []
    for backbone in _backbones(cfg, options):
        with one_cap(purses):
            assembled = _experiment(cfg, options, backbone)
        if assembled is None:
            return Outcome(3)
        if assembled.stopped:
            print(f"note: {assembled.stopped}", file=sys.stderr)
        experiments.append(assembled)
        points += SHOWS[options["show"]](options, assembled)
    if not points:
        reasons = _missing_data(experiments) or ["no row has a result"]
        raise RunError(f"{options['name']}: nothing to draw; {'; '.join(reasons)}")
    points += _published_points(options)
    name = "-".join([options["name"], *([cfg.backbone] if cfg.backbone else []), cfg.profile_name])
    models, notes = experiments[0].models, footnote(experiments, options, points)
    files = write_figure(
        models.results / "figures" / name, replace(sheet(options, notes), bare=cfg.bare), points, models
    )
    grown = options["panels"] if options["show"] == "growth" else {}
    totals = {panel for panel, (kind, *_) in grown.items() if kind in TOTALS}
    for note in (*notes, *(exponents(points, totals) if grown else ())):
        print(note)
    print(f"written: {', '.join(str(file) for file in files)} ({counted(len(points), 'point')})")
    log_figure(cfg.plain, options["name"], files)
    return Outcome(0, files[0])


def exponents(points: Sequence[Point], totals: Collection[str] = ()) -> Iterator[str]:
    """A line for each panel: the exponent of every curve in the size, with its interval (`eval.analysis.growth`).

    Args:
        totals: panels whose values contain those of smaller sizes; their exponents have no interval.
    """
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for point in (each for each in points if each.origin != "published"):
        curves.setdefault(point.panel, {}).setdefault(point.series, []).append((float(point.x), point.y))
    for panel, by_series in curves.items():
        fits = [
            f"{series} {_fit(exponent(*zip(*curve, strict=True)), panel not in totals)}"
            for series, curve in by_series.items()
        ]
        yield f"exponent, {panel}: {', '.join(fits)}"


def _fit(found: Exponent | None, bounded: bool) -> str:
    if found is None:  # a value is 0
        return "none"
    span = found.interval if bounded else None
    return f"{found.value:.3f}" + (f" [{span.low:.3f}, {span.high:.3f}]" if span else "")


def _backbones(cfg: Figures, options: Mapping[str, Any]) -> list[str | None]:
    """Sets of models that the figure compares; outside the paper profile there is only one set."""
    chosen = cfg.backbone or options.get("backbone")
    if chosen is not None or cfg.profile_name != "paper":
        return [chosen]
    return [None if name == "default" else name for name in options.get("backbones", ["default"])]


def _experiment(cfg: Figures, options: Mapping[str, Any], backbone: str | None) -> Experiment[Figures] | None:
    """Run the table behind the figure; None when the plan is declined."""
    vectors = True if options["show"] == "map" and cfg.nodes.vectors is None else cfg.nodes.vectors
    return experiment(
        cfg.changed(backbone=backbone, nodes={"vectors": vectors}), layout(options), run=options["show"] != "growth"
    )


def layout(options: Mapping[str, Any]) -> dict[str, Any]:
    """The table behind a figure: the data sets and metrics of `options["table"]`, and the figure's rows."""
    table = load_option("table", options["table"])
    kept = {name: value for name, value in table.items() if name != "others"}
    if "rows" in options:
        kept = {name: value for name, value in kept.items() if not name.startswith("rows_")}
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


def _published_points(options: Mapping[str, Any]) -> Iterator[Point]:
    """Points whose values the paper states in a sentence."""
    for entry in options.get("published", ()):
        number = _stated(options, entry)
        yield published(Point(entry["panel"], entry["series"], entry["x"], 0.0), number, entry.get("scale", 1.0))


def _stated(options: Mapping[str, Any], entry: Mapping[str, Any]) -> Published:
    """The number that the paper states in a sentence.

    Raises:
        RunError: no published number matches.
    """
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
        built = (run.record.prompts for each in experiments for run in each.runs.values())
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
    stem: Path, drawing: Sheet, points: Sequence[Point], models: Models, suffixes: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Draw the points and write PDF, PNG and CSV; a file is replaced as a whole or not changed.

    Args:
        suffixes: kinds of drawings, also svg.
    """
    files = save(draw(drawing, points), stem, " ".join([drawing.title, *drawing.footnote]), suffixes)
    table = stem.with_name(stem.name + ".csv")
    replace_file(table, as_csv(points, models_line(models)))
    return [*files, table]
