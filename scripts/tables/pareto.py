"""`memsys-bench tables pareto`: compare the quality of a table's rows with their costs. Nothing is run or paid for.

Quality is the first metric of each column group. The costs are the tokens recalled per question and the cost of writing a unit. A row is
marked if no other row is both at least as good and at most as expensive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eval.analysis.costs import BUILD, costs, efforts
from eval.files.store import RunError
from eval.report.cell import outcomes
from eval.report.panels import Sheet
from eval.report.points import Point, front, scored
from eval.report.rendering import cell_text, grid
from eval.running.run import Run
from scripts.assembly.models import Model
from scripts.setup.launch import composed
from scripts.setup.options import load_option
from scripts.tables.captions import models_line, prompts_line
from scripts.tables.experiments import experiment
from scripts.tables.figures import INTERVALS, write_figure
from scripts.tables.grid import Experiment, all_prompts
from scripts.tables.layout import cells_of, title_of


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Quality and costs of a row on one data set."""

    metric: str
    quality: Point
    """The quality; its panel is the data set, its series the row's title, and `x` is set for each cost in turn."""
    costs: Mapping[str, float | None]
    """Costs by axis label."""


def pareto(name: str, overrides: Sequence[str]) -> int:
    """Print and draw quality against cost for every finished row of a table; returns 0.

    Args:
        name: a file of `conf/table`.
        overrides: settings of `memsys-bench reproduce`.

    Raises:
        RunError: no row of the table has been run.
    """
    cfg = composed("reproduce", [f"table={name}", *overrides, "replay=true", "yes=true"])
    assembled = experiment(cfg, load_option("table", name), run=False)
    assert assembled is not None, "nothing is run, so there is no plan to decline"
    rows, unfinished = tradeoffs(assembled)
    if not rows:
        raise RunError(f"no row of {name} has been run: python -m scripts reproduce table={name} {' '.join(overrides)}")
    points = cost_points(rows)
    drawing = _drawing(name, assembled, rows)
    stem = assembled.models.results / "figures" / "-".join(["pareto", name, cfg.profile_name])
    files = write_figure(stem, drawing, points, assembled.models)
    print("\n".join(drawing.footnote), "", pareto_table(points), sep="\n")
    if unfinished:
        print(f"not run, or not to the end: {'; '.join(unfinished)}\n")
    print(f"written: {', '.join(str(file) for file in files)}")
    return 0


def tradeoffs(assembled: Experiment[Any]) -> tuple[list[Tradeoff], list[str]]:
    """Every row that has an answer to each question, and the names of the other rows."""
    finished, unfinished = [], []
    for group in assembled.groups:
        metric = cells_of(group.option)[0]
        for line in assembled.lines:
            run = assembled.runs.get((line.name, group.name, 0))
            if run is None or len(outcomes([run.folder], group.questions)) < len(group.questions):
                unfinished.append(f"{line.title} on {group.title}")
                continue
            mark = Point(group.title, line.title, "", 0.0)
            for quality in scored(mark, [assembled.cell(line, group, metric)]):
                if quality.origin == "ours":
                    spent = row_costs(run, assembled.models.memory)
                    finished.append(Tradeoff(title_of(metric), quality, spent))
    return finished, unfinished


def row_costs(run: Run, model: Model) -> dict[str, float | None]:
    """Recalled tokens per question and the cost of writing a unit: USD where the memory's model has a price, else tokens."""
    sums = costs(run.folder)
    building = [line for line in efforts(run.folder) if line["phase"] in BUILD]
    recalled = {"recalled tokens a question": sums.recalled_tokens}
    if model.prices is not None:
        tokens_in, tokens_out = (int(sum(line[name] for line in building)) for name in ("tokens_in", "tokens_out"))
        if (usd := model.prices.cost(tokens_in, tokens_out)) is not None:
            return {**recalled, "building, USD for 1,000 units": 1000 * usd / max(1, sums.units)}
    return {**recalled, "building, model tokens a unit": sums.build_tokens_per_unit}


def cost_points(rows: Sequence[Tradeoff]) -> list[Point]:
    """One point per row and cost, in a panel for each data set and cost; `label` is the row's number in the printed table."""
    titles = list(dict.fromkeys(row.quality.series for row in rows))
    return [
        replace(
            row.quality, panel=f"{row.quality.panel}: {name}", x=cost, label=str(titles.index(row.quality.series) + 1)
        )
        for row in rows
        for name, cost in row.costs.items()
        if cost is not None
    ]


def pareto_table(points: Sequence[Point]) -> str:
    """The points as Markdown, cheapest first; a star marks the rows that no other row beats."""
    lines = []
    for panel in dict.fromkeys(point.panel for point in points):
        in_panel = [point for point in points if point.panel == panel]
        in_panel.sort(key=lambda point: (float(point.x), -point.y))
        best = front(in_panel)
        rows = []
        for point in in_panel:
            span = "–" if point.low is None or point.high is None else f"[{point.low:.3f}, {point.high:.3f}]"
            star = "*" if point in best else ""
            rows.append([star, point.label, point.series, f"{point.y:.3f}", span, f"{float(point.x):,.4g}"])
        lines += [f"## {cell_text(panel)}", "", grid(["", "no.", "memory", "quality", "95 %", "cost"], rows), ""]
    return "\n".join(lines)


def _drawing(name: str, assembled: Experiment[Any], rows: Sequence[Tradeoff]) -> Sheet:
    metrics = dict.fromkeys(f"{row.quality.panel} by {row.metric}" for row in rows)
    footnote = (
        f"{models_line(assembled.models)}.",
        f"Quality: {'; '.join(metrics)}. {INTERVALS}",
        prompts_line(assembled.models.prompts, all_prompts(assembled)),
        "Filled, numbered and joined: no other row is as good for less, or better for as much. The CSV file names every row.",
    )
    title = f"{name}: quality against cost"
    return Sheet(
        title, tuple(filter(None, footnote)), "pareto", y_label="quality", across=2, height=1.75, spacing="log"
    )
