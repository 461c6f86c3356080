"""A comparison at equal budgets as Markdown and as points of a figure: score against tokens, areas, and when builds pay for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.analysis.budgets import Curve, Expense, Needed, area_gap, break_even, tokens_for, tokens_within
from eval.report.points import Point
from eval.report.rendering import by_case, grid, number, span
from eval.statistics.stats import Estimate, preferred_interval

SHORT = "short"
"""Mark of a row that cannot fill a budget."""
NEVER = "never"
NOT_REACHED = "score not reached"


@dataclass(frozen=True, slots=True)
class BudgetCurve:
    """One memory on one data set by one metric."""

    title: str
    curve: Curve
    expenses: Sequence[Expense | None] = ()
    """By ascending budget; None where a price is unknown."""


@dataclass(frozen=True, slots=True)
class Panel:
    """All rows with scores on one data set by one metric."""

    title: str
    rows: Sequence[BudgetCurve]
    reference: str
    """Title of the row that areas and costs are compared with."""
    whole: Estimate | None
    """Score with the whole history; None if there is no such run."""
    whole_tokens: float = 0.0
    whole_expense: Expense | None = None
    """Expense of the whole history; a provider caches its tokens from the second question on. None where a price is unknown."""

    @property
    def base(self) -> BudgetCurve | None:
        """The reference row; None where it has no scores."""
        return next((row for row in self.rows if row.title == self.reference), None)


def scores_text(panel: Panel) -> str:
    """The scores at each budget with their band, the area, and its paired difference from the reference."""
    if not panel.rows:
        return f"## {panel.title}\n\nno row has scores\n"
    budgets = [f"{place.budget:,} tokens" for place in panel.rows[0].curve.places]
    header = ["memory", *budgets, "area", f"− {panel.reference}", "n"]
    rows = []
    for row in panel.rows:
        drawn = row.curve
        cells = []
        for mean, interval, at in zip(drawn.means, drawn.band or [None] * len(drawn.places), drawn.places, strict=True):
            few = f" · {SHORT}: {at.mean_tokens:,.0f} tokens, {at.filled:.0%} of the questions fill it"
            cells.append(f"{mean:.3f} {span(interval)}{few * at.short}")
        rows.append([row.title, *cells, *_area_texts(row, panel.base), str(len(drawn.questions))])
    if panel.whole is not None:
        whole = f"{panel.whole.mean:.3f} {span(preferred_interval(panel.whole))} · {panel.whole_tokens:,.0f} tokens"
        rows.append(["the whole history", whole, *[""] * (len(header) - 3), str(panel.whole.n)])
    return "\n".join([f"## {panel.title}", "", grid(header, rows), ""])


def _area_texts(row: BudgetCurve, base: BudgetCurve | None) -> list[str]:
    if row.curve.short:
        return [SHORT, "–"]
    area = row.curve.area()
    text = f"{area.mean:.3f} {span(area.by_question)} {by_case(area)}"
    gap = None if base is None or base is row or base.curve.short else area_gap(row.curve, base.curve)
    return [text, "–" if gap is None else f"{gap.mean:+.3f} {span(gap.by_question)} {by_case(gap)}"]


def costs_text(panel: Panel) -> str:
    """Costs of building and asking, and the number of questions about a history from which on a memory costs no more than others."""
    header = [
        *("memory", "budget", "build, USD a history", "question, USD", "whole history", "whole history, cached"),
        *(f"{panel.reference}, same tokens", f"{panel.reference}, same score"),
    ]
    cached, rows = panel.whole_expense, []
    listed = None if cached is None else Expense(cached.build, cached.first, cached.first)
    for row in panel.rows:
        base = None if panel.base is row else panel.base
        for place, expense in enumerate(row.expenses):
            at = row.curve.places[place]
            first = [row.title if place == 0 else "", f"{at.budget:,}{' (short)' if at.short else ''}"]
            if expense is None:
                rows.append([*first, "price unknown", *["–"] * 5])
                continue
            first += [number(expense.build, 5), number(expense.first, 6)]
            same = None if base is None or at.short else base.expenses[place]
            first += [_questions(expense, other) for other in (listed, cached, same)]
            rows.append([*first, "–" if base is None else _at_equal_score(row, place, expense, base)])
    what = "Number of questions about one history from which on the build pays for itself against each alternative:"
    return "\n".join([what, "", grid(header, rows), ""])


def _questions(ours: Expense, other: Expense | None) -> str:
    if other is None:
        return "–"
    questions = break_even(ours, other)
    return NEVER if questions is None else f"{questions:,}"


def _at_equal_score(row: BudgetCurve, place: int, ours: Expense, base: BudgetCurve) -> str:
    """Compare with the reference at the tokens that it needs for the row's score, with the interval that follows from those tokens.

    Where the reference may not reach the score, the interval begins at one question.
    """
    known = [each for each in base.expenses if each is not None]
    if len(known) < len(base.expenses):
        return "–"
    drawn, others = row.curve, base.curve
    sizes = [each.mean_tokens for each in others.places]
    needed = tokens_for(drawn.means[place], sizes, others.means)
    scores = dict(zip(drawn.questions, drawn.by_question[:, place].tolist(), strict=True))
    within = tokens_within(scores, others)
    if needed is None:
        return f"{NOT_REACHED}{_tokens_text(within)}"
    questions = _questions(ours, _expense_at(needed, sizes, known))
    if within is not None:
        ends = (None if tokens is None else _expense_at(tokens, sizes, known) for tokens in (within.high, within.low))
        least, most = (None if expense is None else _questions(ours, expense) for expense in ends)
        questions += f" [{least or 1}, {most or NEVER}]"
    return f"{questions} ({needed:,.0f}{_tokens_text(within)} tokens)"


def _tokens_text(needed: Needed | None) -> str:
    """The tokens that the reference may need; empty for None."""
    if needed is None:
        return ""
    low, high = (NOT_REACHED if tokens is None else f"{tokens:,.0f}" for tokens in (needed.low, needed.high))
    return f" [{low}, {high}]"


def _expense_at(tokens: float, sizes: Sequence[float], expenses: Sequence[Expense]) -> Expense:
    """The expense for a number of tokens between the budgets, interpolated."""
    parts = ([getattr(each, name) for each in expenses] for name in Expense.__slots__)
    return Expense(*(float(np.interp(tokens, sizes, part)) for part in parts))


def curve_points(panel: Panel) -> list[Point]:
    """A line with its band for every row, a dashed line for the whole history; rows that cannot fill a budget are drawn at their tokens."""
    points = []
    for row in panel.rows:
        bands = row.curve.band or [None] * len(row.curve.places)
        for place, mean, interval in zip(row.curve.places, row.curve.means, bands, strict=True):
            low, high = (None, None) if interval is None else (interval.low, interval.high)
            x = place.mean_tokens if place.short else float(place.budget)
            label = SHORT if place.short else ""
            points.append(Point(panel.title, row.title, x, mean, low, high, len(row.curve.questions), "ours", label))
    if points and panel.whole is not None:
        points.append(Point(panel.title, "whole history", "", panel.whole.mean, n=panel.whole.n))
    return points
