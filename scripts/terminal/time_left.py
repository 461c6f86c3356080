"""Time to go of a run: what each cell still needs, from the pace of its own memory, over the cells that are open side by side.

A rate over all units would mislead: the longest cells start first, and memories differ by a factor of a hundred in the time of a unit. A
memory that has not begun is given the pace of the others, in the ratio of the dependent calls per unit where the plan knows them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eval.running.run import Run


@dataclass(frozen=True, slots=True)
class Expected:
    """A cell before it begins: one history for one memory, or for several that share the build."""

    run: str
    case_id: str
    size: float
    """Work of its build, in the unit of the run's sizes."""
    questions: float
    chain: float = 0.0
    """Dependent calls per unit of the size; 0 = unknown."""


@dataclass
class _Cell:
    expected: Expected
    units: int
    begun: float
    written: int = 0
    built: float | None = None
    """When its last unit was written."""
    answered: int = 0
    """Questions answered after that."""
    ended: float | None = None


class TimeLeft:
    """Follows cells; all times are in seconds of one monotonic clock.

    Args:
        expected: the cells that the run will work on.
    """

    def __init__(self, expected: Iterable[Expected], started: float) -> None:
        self._waiting = {(each.run, each.case_id): each for each in expected}
        self._cells: dict[tuple[str, str], _Cell] = {}
        self._started = started
        self.known = bool(self._waiting)

    def begin(self, run: str, case_id: str, units: int, now: float) -> None:
        """A cell begins; one without units was complete before."""
        expected = self._waiting.pop((run, case_id), None)
        if units and expected is not None:
            self._cells[run, case_id] = _Cell(expected, units, now)

    def write(self, run: str, case_id: str, now: float) -> None:
        """A unit of a cell is written."""
        if (cell := self._cells.get((run, case_id))) is not None:
            cell.written += 1
            if cell.written >= cell.units:
                cell.built = now

    def answer(self, run: str, case_id: str) -> None:
        """A question of a cell is done."""
        if (cell := self._cells.get((run, case_id))) is not None and cell.built is not None:
            cell.answered += 1

    def complete(self, run: str, case_id: str, now: float) -> None:
        """A cell ends."""
        self._waiting.pop((run, case_id), None)
        if (cell := self._cells.get((run, case_id))) is not None:
            cell.ended = now
            cell.built = cell.built or now

    def seconds(self, now: float) -> float | None:
        """The time left; None before the first unit, and where nothing is known of the cells."""
        if not any(cell.written for cell in self._cells.values()):
            return None
        build, ask = self._paces(now)
        left = [each for each in (self._left(cell, build, ask, now) for cell in self._cells.values()) if each > 0]
        left += [build(each) * each.size + ask(each) * each.questions for each in self._waiting.values()]
        if not left:
            return None
        busy = sum((cell.ended or now) - cell.begun for cell in self._cells.values())
        side_by_side = min(max(1.0, busy / max(now - self._started, 1e-9)), len(left))
        return max(sum(left) / side_by_side, max(left))

    def _left(self, cell: _Cell, build: _Pace, ask: _Pace, now: float) -> float:
        if cell.ended is not None:
            return 0.0
        unwritten = cell.expected.size * (1 - cell.written / cell.units)
        return build(cell.expected) * unwritten + ask(cell.expected) * max(0.0, cell.expected.questions - cell.answered)

    def _paces(self, now: float) -> tuple[_Pace, _Pace]:
        build, ask = _Pace(), _Pace()
        for cell in self._cells.values():
            built = cell.built if cell.built is not None else now
            build.add(cell.expected, built - cell.begun, cell.expected.size * cell.written / cell.units)
            if cell.built is not None:
                end = cell.ended if cell.ended is not None else now
                ask.add(cell.expected, end - cell.built, float(cell.answered), by_chain=False)
        return build, ask


class _Pace:
    """Seconds for a piece of work, by memory."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._work: defaultdict[str, float] = defaultdict(float)
        self._chained = [0.0, 0.0]

    def add(self, cell: Expected, seconds: float, work: float, *, by_chain: bool = True) -> None:
        """Count seconds and work of a cell."""
        self._seconds[cell.run] += seconds
        self._work[cell.run] += work
        if by_chain and cell.chain and work:
            self._chained[0] += seconds
            self._chained[1] += cell.chain * work

    def __call__(self, cell: Expected) -> float:
        """Seconds per piece of work of a cell: its memory's own, else by its chain, else that of all memories; 0 = unknown."""
        if self._work[cell.run]:
            return self._seconds[cell.run] / self._work[cell.run]
        if cell.chain and self._chained[1]:
            return cell.chain * self._chained[0] / self._chained[1]
        rates = [self._seconds[run] / work for run, work in self._work.items() if work]
        return sum(rates) / len(rates) if rates else 0.0


def expected_cells(runs: Sequence[Run], questions: int) -> list[Expected]:
    """The cells of some runs, those with the same build once.

    Args:
        questions: their number over all runs; each history gets the same share.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.shared or str(run.folder), []).append(run)
    histories = sum(len(run.sizes) for run in runs)
    share = questions / max(1, histories)
    return [
        Expected(group[0].name, case_id, float(size), share * len(group), group[0].chain)
        for group in groups.values()
        for case_id, size in zip(_ids(group[0]), group[0].sizes, strict=True)
    ]


def _ids(run: Run) -> Sequence[str]:
    ids = getattr(run.cases, "ids", None)
    return [case.id for case in run.cases] if ids is None else list(ids)
