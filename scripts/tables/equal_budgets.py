"""`memsys-bench budgets`: read a table's rows at equal token budgets, print and draw score against tokens, and price the builds.

Prices are those of the models that answered; if an engine without a model stood in, those of the table's models, with a note. Tokens
that a provider had cached are priced as cached. The whole history is assumed to be the beginning of every prompt, so that all of it is
cached from the second question on: this is its lowest possible price.

Each column group is repeated for every budget, with a reader that fills it (`eval.running.reader.within`). The read settings `k` (for short
texts of `LEAST_TOKENS` tokens) and `max_tokens` are raised so that a row's recall can fill the longest budget. Other settings that limit a
recall are unchanged; a row that cannot fill a budget is marked. The whole history is read once, without a budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from eval.analysis.budgets import AtBudget, Expense, Key, curve
from eval.analysis.costs import BUILD, Price, built, dollars, efforts, phases
from eval.files.store import RunError, replace_file
from eval.report.budgets import SHORT, BudgetCurve, Panel, costs_text, curve_points, scores_text
from eval.report.cell import Cell, Column
from eval.report.panels import Sheet
from eval.running.run import Run
from memsys.interface import MemorySystem
from memsys.systems import controls
from scripts.settings.schema import Budgets
from scripts.settings.types import priced
from scripts.setup.options import CONF, load_option
from scripts.tables.captions import models_line
from scripts.tables.figures import footnote, write_figure
from scripts.tables.grid import OURS, Experiment
from scripts.tables.layout import (
    ColumnGroup,
    TableMetric,
    TableRow,
    belongs,
    group_name,
    read_lines_of,
    restriction,
    variation,
    wanted_columns,
)
from scripts.tables.table import experiment

WHOLE = "full_history"
"""The memory that every row's costs are compared with; it is read without a budget."""
LEAST_TOKENS = 8
"""Tokens of a short recalled text: `k` is the longest budget divided by this."""
NOTES = (
    f"Every row is read at each budget from one build; the last text is cut to fit. {SHORT}: shows over 2 % fewer tokens than the budget "
    "(open marks), and is no equal of the others there.",
    "Bands: simultaneous 95 % over the budgets, by history (Bonferroni). At equal score, [break-even] and [tokens] are 95 % intervals. "
    "Area: mean height on the logarithmic axis. n: questions with a score at every budget.",
)


def equal_budgets(cfg: Budgets) -> int:
    """Run what is missing, print, and write `<results>/budgets/<table>-<profile>…md`, `.csv` and drawings; 3 if the plan is declined.

    Raises:
        RunError: no row has a result, or the table has no row with a memory.
    """
    table = {**cfg.table, "columns": wanted_columns(cfg.table, cfg.columns)}
    budgets, stem = sorted(set(cfg.budget)), _stem(cfg)
    every_budget = cfg.changed(columns=None)  # the name of a column group is its budget
    assembled = experiment(every_budget, budgeted(table, cfg.backbone, budgets))
    if assembled is None:
        return 3
    prices, priced = _prices(assembled)
    reference = next((line.title for line in assembled.lines if line.name == (table.get("reference") or "bm25")), "")
    panels = [
        _panel(assembled, option, budgets, metric, reference, prices)
        for option in table["columns"]
        if (whole := _group(assembled, group_name(option))) is not None
        for metric in whole.metrics
    ]
    points = [point for panel in panels for point in curve_points(panel)]
    if not points:
        raise RunError(f"{table['name']}: nothing to draw; no row has a score at every budget")
    notes = (*dict.fromkeys(footnote([assembled], {"marks": "", "paper": table["paper"]}, ())), *NOTES, priced)
    notes = tuple(note for note in notes if note)
    text = "\n".join([f"# {table['title']}", "", *notes, "", ""])
    text += "\n".join(part for panel in panels for part in (scores_text(panel), costs_text(panel)))
    place = assembled.models.results / "budgets" / stem
    replace_file(place.with_name(f"{stem}.md"), text)
    sheet = Sheet(
        table["title"], notes, "lines", "recalled tokens", "score", width=6.0, across=2, height=2.2, spacing="log"
    )
    files = write_figure(place, sheet, points, models_line(assembled.models), ("pdf", "png", "svg"))
    print(text)
    if assembled.stopped:
        print(assembled.stopped)
    if outcome := assembled.outcome():
        print(outcome)
    print(f"written: {place}.md, {', '.join(str(file) for file in files)}")
    return 0


def _stem(cfg: Budgets) -> str:
    """Name of the files: other data, models, rows, columns or budgets than the table's own replace no file of theirs."""
    usual = yaml.safe_load((CONF / "budgets.yaml").read_text(encoding="utf-8"))["budget"]
    name, budgets = cfg.table["name"], "" if cfg.budget == usual else f"-budget-{'+'.join(map(str, cfg.budget))}"
    chosen = restriction(cfg.table, load_option("table", name), cfg.only, cfg.columns)
    return f"{name}-{cfg.profile_name}{variation(cfg)}{chosen}{budgets}"


def _group(assembled: Experiment[Budgets], name: str) -> ColumnGroup | None:
    return next((group for group in assembled.groups if group.name == name and group.dataset is not None), None)


def _panel(
    assembled: Experiment[Budgets],
    option: Mapping[str, Any],
    budgets: Sequence[int],
    metric: TableMetric,
    reference: str,
    prices: Mapping[str, Price],
) -> Panel:
    groups = [group for budget in budgets if (group := _group(assembled, group_at(option, budget))) is not None]
    lines = [line for line in assembled.lines if line.name in groups[0].option["rows"]]
    if assembled.only is not None:
        lines = [line for line in lines if line.name in assembled.only]
    drawn = (_row(assembled, line, groups, budgets, metric, prices) for line in lines)
    rows = [row for row in drawn if row is not None]
    whole = _group(assembled, group_name(option))
    runs = () if whole is None else assembled.runs.get((WHOLE, whole.name), ())
    title = f"{groups[0].title}: {metric.title}"
    if whole is None or not runs or (assembled.only is not None and WHOLE not in assembled.only):
        return Panel(title, rows, reference, None)
    cell = assembled.cell(next(line for line in assembled.lines if line.name == WHOLE), whole, metric)
    tokens = list(recalled_tokens(runs[0]).values())
    mean = sum(tokens) / max(1, len(tokens))
    score = cell.estimate() if isinstance(cell, Cell) else None
    return Panel(title, rows, reference, score, mean, _cached(expense(runs[0], prices), mean, prices.get("reader")))


def _row(
    assembled: Experiment[Budgets],
    line: TableRow,
    groups: Sequence[ColumnGroup],
    budgets: Sequence[int],
    metric: TableMetric,
    prices: Mapping[str, Price],
) -> BudgetCurve | None:
    """A row at every budget; None if no question is scored at all of them."""
    questions, places, expenses = groups[0].questions, [], []
    weighed = Column.of(groups[0].config, metric.title, questions).groups(questions)
    for budget, group in zip(budgets, groups, strict=True):
        cell, run = assembled.cell(line, group, metric), assembled.runs[line.name, group.name][0]
        places.append(AtBudget(budget, recalled_tokens(run), cell.scores if isinstance(cell, Cell) else {}))
        expenses.append(expense(run, prices))
    keys = [question.key for question in questions]
    homes = (question.cluster for question in questions)
    through = curve(places, dict(zip(keys, homes, strict=True)), dict(zip(keys, weighed, strict=True)))
    return None if through is None else BudgetCurve(line.title, through, expenses)


def recalled_tokens(run: Run) -> dict[Key, int]:
    """Tokens of the recalled text that was shown to the reader, by question; 0 for answers without the reader."""
    return {
        (line["case_id"], line["subject"]): int(line["context_tokens"])
        for line in efforts(run.folder)
        if line["phase"] == "answer"
    }


def expense(run: Run, prices: Mapping[str, Price]) -> Expense | None:
    """Mean US dollars of building one history and of asking one question.

    None if a price is unknown, if nothing was measured, or if a history is unfinished or its build failed: a part of a build would pass
    for the whole.
    """
    histories, questions = len(built(run.folder)), len(recalled_tokens(run))
    if histories < len(run.cases):
        return None
    sums = {"build": 0.0, "question": 0.0}
    for cost in phases(run.folder):
        if cost.phase not in (*BUILD, "read", "answer"):
            continue  # a judge's
        parts = dollars(cost, prices)
        used = cost.tokens_in + cost.tokens_out > 0
        if any(part is None for part in parts) or (used and cost.role not in prices):
            return None
        sums["build" if cost.phase in BUILD else "question"] += sum(part for part in parts if part is not None)
    if not questions:
        return None
    return Expense(sums["build"] / histories, sums["question"] / questions, sums["question"] / questions)


def _cached(whole: Expense | None, tokens: float, price: Price | None) -> Expense | None:
    """The expense of the whole history with its tokens cached from the second question on."""
    if whole is None or price is None:
        return None
    listed, cached = price(round(tokens), 0, 0), price(round(tokens), 0, round(tokens))
    if listed is None or cached is None:
        return None
    return Expense(whole.build, whole.first, whole.first - listed + cached)


def _prices(assembled: Experiment[Budgets]) -> tuple[dict[str, Price], str]:
    """Prices by role, with a note: of the models that answered, else of the table's models."""
    prices, borrowed = dict(assembled.models.prices), []
    names = dict(assembled.backbone["models"])
    names.setdefault("probe", names.get("reader"))
    for role, name in names.items():
        if role in prices or role == "judge" or name is None:
            continue
        settings = load_option("embedder" if role == "embedder" else "llm", name).get("settings")
        if settings is not None:
            prices[role] = priced(settings, assembled.cfg.prices, name).cost
            borrowed.append(f"{role} {name}")
    said = (
        f"USD: tokens of the stand-ins at the prices of the table's models ({', '.join(borrowed)})." if borrowed else ""
    )
    return prices, said


# --- the table that is read at every budget ------------------------------------------------------------------------------


def budgeted(table: Mapping[str, Any], backbone: str | None, budgets: Sequence[int]) -> dict[str, Any]:
    """Build the table with a column group for each budget, and a column group without a budget for the whole history.

    Rows without a memory (published answers, best rows, published rows only) are left out, and so are columns that are no scores.
    The other controls are left out, too: they do not rank their recall, and a budget cuts by rank.
    """
    lines = [line for line in read_lines_of(table, backbone) if line.memory is not None]
    control = f"{controls.__name__}."
    targets = {line.name: str((line.memory or {})["build"]["_target_"]) for line in lines}
    lines = [line for line in lines if line.name == WHOLE or not targets[line.name].startswith(control)]
    if all(line.name != WHOLE for line in lines):
        lines += read_lines_of({"name": table["name"], "rows": [], "others": [WHOLE]}, None)
    columns = [each for option in table["columns"] for each in _columns(option, lines, budgets)]
    kept = {name: table[name] for name in ("name", "title", "paper", "backbones", "notes") if name in table}
    rows = []
    for line in lines:
        own = {name: value for name, value in line.option.items() if name in ("memory", "build")}
        deeper = {} if line.name == WHOLE else deepened(line.memory or {}, max(budgets))
        rows.append({**own, "name": line.name, "title": line.title, "build": {**own.get("build", {}), **deeper}})
    return {**kept, "columns": columns, "rows": rows}


def _columns(option: Mapping[str, Any], lines: Sequence[TableRow], budgets: Sequence[int]) -> list[dict[str, Any]]:
    metrics = [_plain(metric) for metric in option["metrics"] if any(kind in metric for kind in OURS)]
    rows = [line.name for line in lines if line.name != WHOLE and belongs(line, option)]
    plain = {name: value for name, value in option.items() if name not in ("published", "group")} | {"metrics": metrics}
    if not metrics or not rows:
        return []
    named = [
        {**plain, "group": group_at(option, budget), "rows": rows, "budget": budget} for budget in sorted(set(budgets))
    ]
    return [{**plain, "group": group_name(option), "rows": [WHOLE]}, *named]


def group_at(option: Mapping[str, Any], budget: int) -> str:
    """Name of a column group at a budget."""
    return f"{group_name(option)}@{budget}"


def _plain(metric: Mapping[str, Any]) -> dict[str, Any]:
    """A metric over its first category, without published numbers and differences."""
    kept = {name: value for name, value in metric.items() if name not in ("by", "published", "minus", "rows")}
    return kept | ({"by": {next(iter(metric["by"])): None}} if metric.get("by") else {})


def deepened(memory: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Read settings that make a memory recall enough for the longest budget."""
    from hydra.utils import get_class

    build = memory["build"]
    enough = {"k": -(-longest // LEAST_TOKENS), "max_tokens": 2 * longest}  # whole texts rarely reach a limit exactly
    target: type[MemorySystem] = get_class(build["_target_"])
    knobs = [name for name in target.READ_KNOBS if name in enough]
    return {name: max(build[name], enough[name]) for name in knobs if isinstance(build.get(name), int)}
