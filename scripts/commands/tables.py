"""Print tables about the systems themselves: `python -m scripts tables calls`, `… systems`, `… pareto [TABLE] [key=value …]`, `… ratings
FILE`.

`calls` measures calls per insertion and per query on the LoCoMo sample with the offline engines, and prints a paper's figure next to ours
where there is one. `systems` writes one row for each shipped memory into `memsys/README.md`. `pareto` compares the quality of every run row
of a table (`segtreemem_t4` by default) with the tokens that it recalls for a question and the cost of writing a unit, marks the rows that
no other row beats in both, and draws them; it calls no model, and its settings are those of `memsys-bench reproduce`.
`ratings` compares the verdicts that a person exported from the HTML report with those of the judges.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from eval.analysis.costs import BUILD, Price, costs, dollars, efforts, phases
from eval.files.provenance import ROOT
from eval.files.store import RunError
from eval.report.cell import Cell, outcomes
from eval.report.panels import Sheet
from eval.report.points import Point, front, scored
from eval.report.published import find, read_published
from eval.report.rendering import about_scored, cell_text, grid
from eval.running.loop import run_all
from eval.running.run import Run
from scripts.lab.lab import Lab
from scripts.setup.arguments import verb_parser
from scripts.setup.launch import composed
from scripts.setup.options import CONF, load_option, memories_here, memory_classes
from scripts.tables.captions import models_line, prompts_line
from scripts.tables.figures import INTERVALS, write_figure
from scripts.tables.grid import Experiment, all_prompts
from scripts.tables.table import experiment, table_stem

GROUP = "look"


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Quality and costs of a row on one data set."""

    metric: str
    quality: Point
    """The quality; its panel is the data set, its series the row's title, and `x` is set for each cost in turn."""
    costs: Mapping[str, float | None]
    """Costs by axis label."""


def pareto(name: str, overrides: Sequence[str]) -> int:
    """Print and draw quality against cost for every finished row of a table; returns 0. Nothing is run or paid for.

    Quality is the first metric of each column group. The costs are the tokens recalled per question and the cost of writing a unit. A row
    is marked if no other row is both at least as good and at most as expensive.

    Args:
        name: a file of `conf/table`.
        overrides: settings of `memsys-bench reproduce`.

    Raises:
        RunError: no row of the table has been run.
    """
    cfg = composed("reproduce", [f"table={name}", *overrides, "replay=true", "yes=true"])
    assembled = experiment(cfg, cfg.table, run=False)
    assert assembled is not None, "nothing is run, so there is no plan to decline"
    rows, unfinished, lacking = tradeoffs(assembled)
    if not rows:
        raise RunError(f"no row of {name} has been run: python -m scripts reproduce table={name} {' '.join(overrides)}")
    titles = list(dict.fromkeys(row.quality.series for row in rows))
    points = [  # in a panel for each data set and cost; `label` is the row's number in the printed table
        replace(
            row.quality, panel=f"{row.quality.panel}: {name}", x=cost, label=str(titles.index(row.quality.series) + 1)
        )
        for row in rows
        for name, cost in row.costs.items()
        if cost is not None
    ]
    metrics = dict.fromkeys(f"{row.quality.panel} by {row.metric}" for row in rows)
    footnote = (
        f"{models_line(assembled.models)}.",
        f"Quality: {'; '.join(metrics)}. {INTERVALS}",
        prompts_line(assembled.models.prompts, all_prompts(assembled)),
        "Filled, numbered and joined: no other row is as good for less, or better for as much. The CSV file names every row. This goes by "
        "the means: chance can put a row on the line, or off it, within the intervals.",
    )
    title, notes = f"{name}: quality against cost", tuple(filter(None, footnote))
    drawing = Sheet(title, notes, "pareto", y_label="quality", across=2, height=1.75, spacing="log")
    stem = assembled.models.results / "figures" / f"pareto-{table_stem(cfg, assembled.only, assembled.groups)}"
    files = write_figure(stem, drawing, points, models_line(assembled.models))
    print("\n".join(drawing.footnote), "", pareto_table(points), sep="\n")
    if unfinished:
        print(f"not run, or not to the end: {'; '.join(unfinished)}\n")
    if lacking:
        print(f"without all scores: {'; '.join(lacking)}\n")
    print(f"written: {', '.join(str(file) for file in files)}")
    return 0


def tradeoffs(assembled: Experiment[Any]) -> tuple[list[Tradeoff], list[str], list[str]]:
    """Every row that has a line for each question, the names of the other rows, and what the former lack."""
    finished, unfinished, lacking = [], [], []
    for group in assembled.groups:
        metric = group.metrics[0]
        for line in assembled.lines:
            runs = assembled.runs.get((line.name, group.name))
            if not runs or len(outcomes([runs[0].folder], group.questions)) < len(group.questions):
                unfinished.append(f"{line.title} on {group.title}")
                continue
            mark, cell = Point(group.title, line.title, "", 0.0), assembled.cell(line, group, metric)
            if isinstance(cell, Cell) and cell.missing_share():
                lacking.append(f"{line.title} on {group.title}: {about_scored(cell)}")
            for quality in scored(mark, [cell]):
                if quality.origin == "ours":
                    spent = row_costs(runs[0], assembled.models.prices)
                    finished.append(Tradeoff(metric.title, quality, spent))
    return finished, unfinished, lacking


def row_costs(run: Run, prices: Mapping[str, Price]) -> dict[str, float | None]:
    """Recalled tokens per question and the cost of writing a unit: USD where the memory's model has a price, else tokens.

    The dollars are those of the table's costs by phase: with vectors, the probe, cached tokens and batches at their prices.
    """
    sums = costs(run.folder)
    recalled = {"recalled tokens a question": sums.recalled_tokens}
    building = [part for cost in phases(run.folder) if cost.phase in BUILD for part in dollars(cost, prices)]
    paid = [part for part in building if part is not None]
    if "memory" in prices and len(paid) == len(building):
        return {**recalled, "building, USD for 1,000 units": 1000 * sum(paid) / max(1, sums.units)}
    return {**recalled, "building, model tokens a unit": sums.build_tokens_per_unit}


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
            numbers = f"{point.y:.3f}", span, f"{float(point.x):,.4g}", str(point.n)
            rows.append([star, point.label, point.series, *numbers])
        lines += [f"## {cell_text(panel)}", "", grid(["", "no.", "memory", "quality", "95 %", "cost", "n"], rows), ""]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Calls:
    name: str
    per_insertion: float
    """Calls of writing and consolidating, divided by units: amortised for offline systems."""
    rebuild: int
    """Calls of the consolidation: for an offline system, the whole rebuild after one more unit."""
    per_query: float
    offline: bool
    printed: str


def measure(names: Sequence[str], folder: Path) -> list[Calls]:
    """Build and read each memory once, on one history of the LoCoMo sample, offline."""
    prompts = Path.cwd() / "prompts"  # of the user's memories, as `memsys-bench run` takes them
    own = [f"prompts_dir={prompts}"] if prompts.is_dir() else []
    lab = Lab(f"results={folder}", "data.max_cases=1", "protocol.reader=segtree", *own, probe=False)
    dataset = lab.load("locomo")
    runs = [lab.run(lab.memory(name), dataset) for name in names]
    run_all(runs, threads=1)
    made = []
    for run in runs:
        found = costs(run.folder)
        writing, asking = found.calls_per_insertion or 0.0, found.calls_per_query or 0.0
        rebuild = sum(sum(line["calls"].values()) for line in efforts(run.folder) if line["phase"] == "consolidate")
        offline = memory_classes(load_option("memory", run.name)["build"])[0].OFFLINE
        made.append(Calls(run.name, writing, rebuild, asking, offline, printed(run.name)))
    return made


def printed(name: str) -> str:
    """The figure that a paper prints for a memory, with its unit and place; empty if there is none."""
    known = yaml.safe_load((CONF / "calls.yaml").read_text(encoding="utf-8"))
    file, wanted = known.get(name, ("", {}))
    if not file or (number := find(read_published(file), wanted)) is None:
        return ""
    # MemTree's note tells calls of an insertion from those of a rebuild.
    unit = number.note or number.metric.replace("_", " ")
    return f"{number.printed} {unit} ({number.paper} {number.table}, {number.dataset})"


def calls_table(rows: Sequence[Calls]) -> str:
    note = (
        "STAND-IN: measured on one history of the LoCoMo sample with the offline engines; "
        "replies of a model change how often some systems call."
    )
    lines = []
    for row in rows:
        rebuild = f"{row.rebuild} (offline: every rebuild)" if row.offline else str(row.rebuild)
        lines.append([row.name, f"{row.per_insertion:.2f}", rebuild, f"{row.per_query:.2f}", row.printed or "–"])
    header = ["memory", "calls / insertion", "whole consolidation", "calls / query", "published"]
    return f"{note}\n\n{grid(header, lines)}"


def systems_table() -> str:
    """One row for each shipped memory: description, module, length, tests and modes."""
    lines = [
        "# Memory systems",
        "",
        "Written by `python -m scripts tables systems`. The module's docstring cites the paper and names every deviation;",
        "`conf/memory/<name>.yaml` holds every setting.",
        "Calls per insertion and per query: `python -m scripts tables calls`.",
        "",
        "| memory | title | module | lines | test functions | modes | built |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in sorted(path.stem for path in (CONF / "memory").glob("*.yaml")):
        option = load_option("memory", name)
        module = option["build"]["_target_"].rpartition(".")[0]
        stem = ROOT.joinpath(*module.split("."))
        source = sorted(stem.glob("*.py")) or [stem.with_suffix(".py")]  # a folder of old bytecode is no package
        room = "services" if ".services." in module else "systems"
        tests = ROOT / "tests" / "memsys" / room / f"test_{module.split('.')[-1]}.py"
        count = tests.read_text(encoding="utf-8").count("\ndef test_") if tests.is_file() else 0
        length = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in source)
        memory = memory_classes(option["build"])[0]
        modes, how = ", ".join(memory.MODES) or "–", "offline" if memory.OFFLINE else "online"
        lines.append(f"| {name} | {option['title']} | `{module}` | {length} | {count} | {modes} | {how} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("tables", __doc__)
    parser.add_argument("table", choices=["calls", "systems", "pareto", "ratings"])
    parser.add_argument("--memory", nargs="*", help="calls: names; all by default")
    parser.add_argument("--results", type=Path, default=Path("results"), help="ratings: the results folder")
    parser.add_argument(
        "rest", nargs="*", metavar="TABLE key=value", help="pareto: a table, and settings; ratings: the file"
    )
    options_ = parser.parse_args(arguments)
    if options_.table == "pareto":
        named = [word for word in options_.rest if "=" not in word]
        return pareto(named[0] if named else "segtreemem_t4", [word for word in options_.rest if "=" in word])
    if options_.table == "ratings":
        if len(options_.rest) != 1:
            parser.error("ratings takes one file, which the HTML report exports")
        from eval.report.ratings import as_markdown, compare

        print(as_markdown(compare(Path(options_.rest[0]), options_.results)))
        return 0
    if options_.rest:
        parser.error(f"{options_.table} takes no {options_.rest[0]}")
    if options_.table == "systems":
        file = ROOT / "memsys" / "README.md"
        file.write_text(systems_table(), encoding="utf-8")
        print(f"written: {file}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        print(calls_table(measure(options_.memory or memories_here(), Path(folder))))
    return 0
