"""What a table prints of scores that are corrected for a judge's errors (`eval.judging.judge_card`)."""

from __future__ import annotations

from eval.judging.judge_card import MISFIT, Corrected, Share
from eval.report.cell import ALL, Cell
from eval.report.tables import AnyCell, Table

FIELDS = ["corrected", "corrected_low", "corrected_high", "corrected_kinds_low", "corrected_kinds_high"]
"""Further columns of the CSV of such a table."""

CONDITION = (
    "Corrected scores are Rogan and Gladen's, and hold if the answers err like the probes: the interval carries the uncertainty of both "
    "shares under that assumption, the range by kind of probe what it is worth. Refusals of questions with an answer are counted as wrong "
    "without correction. A random sample of the run's answers graded by a person needs no such assumption (`judge_card --ratings`)."
)


def is_corrected(table: Table) -> bool:
    """Whether corrected scores were asked for."""
    return any(isinstance(cell, Cell) and cell.correction is not None for row in table.rows for cell in row.cells)


def corrected_text(fixed: Corrected | str) -> str:
    """A corrected score with its interval, or that there is none (`correction_lines` says why)."""
    if isinstance(fixed, str):
        return f"not corrected: {MISFIT}" if fixed.endswith(MISFIT) else "not corrected"
    kinds = f"{fixed.by_kind.low:.3f}–{fixed.by_kind.high:.3f}"
    return f"corrected {shown_share(fixed)} if answers err like the probes; {kinds} by kind of probe"


def shown_share(share: Share | Corrected) -> str:
    """A share with its interval."""
    return f"{share.mean:.3f} [{share.interval.low:.3f}, {share.interval.high:.3f}]"


def corrected_fields(cell: AnyCell, category: str = ALL) -> list[str]:
    """The values of `FIELDS`; empty where there is no corrected score."""
    fixed = cell.corrected(category) if isinstance(cell, Cell) else None
    if fixed is None or isinstance(fixed, str):
        return [""] * len(FIELDS)
    values = (fixed.mean, fixed.interval.low, fixed.interval.high, fixed.by_kind.low, fixed.by_kind.high)
    return [f"{value:.6f}" for value in values]


def correction_lines(table: Table) -> list[str]:
    """For each judge: the correction of its scores, or why there is none. Empty unless `judge.corrected=true`."""
    cards: dict[str, list[str]] = {}
    reasons: dict[str, list[str]] = {}
    for place, column in enumerate(table.columns):
        cells = [row.cells[place] for row in table.rows]
        judged = [cell for cell in cells if isinstance(cell, Cell) and cell.correction is not None]
        name = f"{column.title} · {column.metric}"
        for why in dict.fromkeys(fixed for cell in judged if isinstance(fixed := cell.corrected(), str)):
            reasons.setdefault(why, []).append(name)
        card = next((cell.correction.card for cell in judged if cell.correction is not None), None)
        if card is not None and card.rejected is not None and card.accepted is not None:
            errors = (
                f"rejects {shown_share(card.rejected)} of right answers ({card.rejected.n} probes), "
                f"accepts {shown_share(card.accepted)} of wrong ones ({card.accepted.n})"
            )
            cards.setdefault(errors, []).append(name)
    lines = [f"Judge card: {', '.join(names)}: {errors}. {CONDITION}" for errors, names in cards.items()]
    return [*lines, *(f"Not corrected ({', '.join(names)}): {why}." for why, names in reasons.items())]
