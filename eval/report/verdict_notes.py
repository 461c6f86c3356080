"""Caption lines on verdicts: what their words mean, where the run error comes from, how often each was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from eval.report.cell import Cell
from eval.report.equivalence import COST_MARGIN, FLIPS, MARGIN
from eval.report.published import brief
from eval.report.tables import AnyCell, Measure, Table


def verdict_lines(table: Table, places: Collection[int] | None = None) -> list[str]:
    """A line for a table whose numbers may be compared with published ones; empty for any other.

    Args:
        places: numbers of the columns that count; None counts all.
    """
    cells = (cell for row in table.rows for place, cell in enumerate(row.cells) if places is None or place in places)
    compared = [cell for cell in cells if is_compared(cell)]
    if not compared:
        return []
    words = Counter(brief(cell.verdict()) for cell in compared if not isinstance(cell, str))
    runs = [cell.runs for cell in compared if isinstance(cell, Cell)]
    builds = sorted({own.builds for own in runs if own.measured})
    errors = [f"measured from {' and '.join(map(str, builds))} builds"] if builds else []
    if not all(own.measured for own in runs):
        errors.append(f"{'else ' * bool(builds)}assumed: {FLIPS:.0%} of the answers' scores change from run to run")
    if any(isinstance(cell, Measure) and not cell.runs.variance for cell in compared):
        errors.append("unknown for costs and counts, whose printed digits alone count")
    return [
        f"Verdicts: {', '.join(f'{count} {word}' for word, count in sorted(words.items()))}. Both labs asked the same questions, so the "
        f"error is that of runs, not of histories: ours {'; '.join(errors)}; theirs as printed, else ours. equivalent: within "
        f"{MARGIN * 100:.0f} points ({COST_MARGIN:.0%} of costs) in both one-sided tests at 5 %; differs by: points (costs: %) with their "
        "95 % interval. No error contains what all builds share, such as the version of a model."
    ]


def is_compared(cell: AnyCell) -> bool:
    """Whether a cell has a number of ours and a published one that may be compared."""
    if isinstance(cell, str) or cell.published is None or cell.why_not:
        return False
    return cell.ours is not None if isinstance(cell, Measure) else bool(cell.scores)
