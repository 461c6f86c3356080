"""Open cells: enough to keep the endpoint busy, those with the longest chain of dependent calls first.

One cell of each memory is opened first and goes first: how many calls a unit takes is known only then, and the plan's estimate from a
short history can be wrong by a factor of four. The build of a cell waits for one call after the other, so only many concurrent cells keep
the endpoint busy. The next cell is opened when the builds leave room at the endpoint, unless several open cells are not waiting for a
call: those compete for a core, and another cell would only join them. Answers and verdicts take no room: they can wait for builds, but
the table waits for the longest build. Without an endpoint, a few cells are open. A cell is a thread; a waiting thread costs about 0.3 MB.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence

from eval.running.run import Run, needs
from memsys.llm.limits import BUILDS

OPEN = 512
"""Maximum number of cells that are open at once."""
READING, ANSWERING, JUDGING = 2.0, 1.0, 0.0
"""Urgency of reads after the history, answers and verdicts; that of a build is `BUILDS` and more."""
LOOK = 1.0
"""Seconds after which the time that the open builds still need is estimated again."""
APART = 0.1
"""Seconds between the openings of two cells that build without a model but read with one, unless the first is built sooner: at once, all
would be built late, as they share an interpreter, and the endpoint would wait. Also the seconds after which the room is checked again."""
SPACING = (0.002, 0.02)
"""Least and most seconds between the starts of two reads after the history, while memories are built with models behind an endpoint."""
WORKING = 8
"""Maximum number of cells that build without an endpoint."""
BETWEEN = 16
"""Maximum number of cells that build with an endpoint and have no call there: while the interpreter is busy, a reply is saved and the next
prompt made in 10 to 20 ms, so with fewer cells the endpoint is not full."""
PRIOR = 0.1
"""Weight of the first estimate, as a share of the smallest history. Until so much is measured, a memory's cells are the most urgent."""
UNKNOWN = 1e6
"""Estimated calls of a cell of a memory that is not measured yet: more than those of any measured one."""


def at_once(runs: Sequence[Run]) -> int:
    """Number of cells that keep the endpoints of the runs busy; without an endpoint, `WORKING`."""
    gauges = {id(gauge): gauge for run in runs for gauge in run.services.gauges.values()}
    return sum(gauge.load()[1] for gauge in gauges.values()) + BETWEEN if gauges else WORKING


class CellQueue:
    """The cells of runs that share their builds, in the order in which they are opened.

    Their dependent calls per unit of size are estimated, smoothed over the steps of all of them: from it follows a cell's remaining chain.
    The first estimate is the plan's, or 1 for a memory that calls a model and 0 for a memory that does not.
    """

    def __init__(self, group: Sequence[Run]) -> None:
        run, services = group[0], needs(group[0].build)
        role = "memory" if "llm" in services else "probe" if "probe" in services else "reader"
        self.group, self.gauge = group, run.services.gauges.get(role)
        """The runs, and the gauge of the endpoint that a cell uses: the memory's, or the reader's if building makes no call."""
        self.calling = bool(services & {"llm", "probe", "embedder"})
        """Whether its builds call a model."""
        self.indices = sorted(range(len(run.sizes)), key=lambda index: (run.sizes[index], -index))
        """Indices of the cases; the largest case is at the end."""
        self._prior = self._size = max(PRIOR * float(min(run.sizes, default=1)), 1e-9)
        self._calls = (run.chain or float(bool(services & {"llm", "probe"}))) * self._prior
        self.measured = False
        """Whether the steps count at least as much as the first estimate."""
        self._lock = threading.Lock()

    def add(self, calls: float, size: float) -> None:
        """Count a step: its dependent calls, and the share of its history's size that it covers."""
        with self._lock:
            self._calls += calls
            self._size += size
            self.measured = self._size >= 2 * self._prior

    def chain(self, size: float) -> float:
        """Estimated dependent calls for a part of a history of this size."""
        return size * self._calls / self._size

    def longest(self) -> tuple[bool, float, float]:
        """Whether no cell is open yet, dependent calls of the longest cell that is not open yet, and its size."""
        size = float(self.group[0].sizes[self.indices[-1]])
        return len(self.indices) == len(self.group[0].sizes), self.chain(size), size


class OpenCell:
    """One open cell: a memory that is being built on one history, or that waits for its last answers. `opening` hears when it is built."""

    def __init__(self, cells: CellQueue, index: int, opening: Opening | None = None) -> None:
        self.group, self.index, self.calling = cells.group, index, cells.calling
        self._cells, self._opening, self._size = cells, opening, float(cells.group[0].sizes[index])
        self._left, self._began = self._size, time.monotonic()

    @property
    def remaining(self) -> float:
        """The urgency of its next call: estimated dependent calls that its build still needs; `UNKNOWN` until its memory is measured."""
        return BUILDS + (self._cells.chain(self._left) if self._cells.measured else UNKNOWN)

    def step(self, calls: int, share: float) -> None:
        """Count a step of the build: its dependent calls, and the share of the history that it covers."""
        size = share * self._size
        self._left = max(0.0, self._left - size)
        self._cells.add(calls, size)

    def built(self) -> None:
        """Mark the memory as built; another cell may be built in its place."""
        if self._opening is not None:
            self._opening.built(self)

    def seconds_left(self, now: float) -> float:
        """Estimated seconds that its build still needs at the speed of its steps until now."""
        done = self._size - self._left
        return (now - self._began) * self._left / done if done else 0.0


class Opening:
    """Decides which cell is opened next, and when.

    Args:
        threads: maximum number of cells that are built at once; None: as many as keep the endpoint busy.
    """

    def __init__(self, groups: Sequence[Sequence[Run]], threads: int | None = None) -> None:
        self._cells = [CellQueue(group) for group in groups if group[0].sizes]
        self.outstanding = max((run.outstanding for group in groups for run in group), default=1)
        self._threads = threads
        self._changed, self._lock = threading.Event(), threading.Lock()
        self._stopped = False
        self.gauges = list({id(each.gauge): each.gauge for each in self._cells if each.gauge is not None}.values())
        self.open = 0
        self.builds: set[OpenCell] = set()
        """Open cells whose memory is not built yet."""
        self._looked = self._ending = self._opened = -math.inf
        """Times of the last estimate, of the end that it foresees, and of the last opening of a cell that builds without a model."""

    def __iter__(self) -> Iterator[OpenCell]:
        """Yield each cell when it may be opened; from then on it counts as open and as being built."""
        for gauge in self.gauges:
            gauge.watch(self._changed.set)
        try:
            while self._cells and not self._stopped:
                self._changed.clear()
                cells = self._next()
                if cells is None:
                    self._changed.wait(APART)
                    continue
                index = cells.indices.pop()
                if not cells.indices:
                    self._cells.remove(cells)
                cell = OpenCell(cells, index, self)
                with self._lock:
                    self._opened = self._opened if cells.calling else time.monotonic()
                    self.builds.add(cell)
                    self.open += 1
                yield cell
        finally:
            for gauge in self.gauges:
                gauge.unwatch(self._changed.set)

    def spacing(self, waiting: int) -> float:
        """Seconds between the starts of two reads that no build waits for, of which so many wait; none while no open build calls a model.

        A history's questions come all at once, and would take the interpreter away from the builds, for which the table waits. They are
        spread over the time that the open builds still need, so that they neither disturb them nor are left for the end.
        """
        with self._lock:
            if not (self.gauges and any(cell.calling for cell in self.builds)):
                return 0.0
            now = time.monotonic()
            if now >= self._looked + LOOK:
                self._ending = now + max(cell.seconds_left(now) for cell in self.builds if cell.calling)
                self._looked = now
        least, most = SPACING
        return min(most, max(least, (self._ending - now) / max(waiting, 1)))

    def stop(self) -> None:
        """Open no further cell."""
        self._stopped = True
        self._changed.set()

    def built(self, cell: OpenCell) -> None:
        """Mark the memory of an open cell as built; a second time it does nothing."""
        with self._lock:
            self.builds.discard(cell)
        self._changed.set()

    def ended(self, cell: OpenCell) -> None:
        """Mark all work of an open cell as done."""
        with self._lock:
            self.builds.discard(cell)
            self.open -= 1
        self._changed.set()

    def _next(self) -> CellQueue | None:
        """The queue whose next cell is opened now: a memory without a cell, then the longest chain; None when no cell may be opened.

        One cell of the shortest chain is always being built, even if the endpoint is full: such cells mostly compute, and if all were
        left for the end, they would compete there for the interpreter, while the endpoint waits.
        """
        if self.open >= OPEN or (self._threads is not None and len(self.builds) >= self._threads):
            return None
        with self._lock:
            building = {id(cell.group) for cell in self.builds}
            computing = any(not cell.calling for cell in self.builds) and time.monotonic() < self._opened + APART
        room: list[CellQueue] = []
        waits: list[CellQueue] = []
        for cells in self._cells:
            load, limit = (0.0, math.inf) if cells.gauge is None else cells.gauge.load()
            others = WORKING if cells.gauge is None else BETWEEN
            free = cells.gauge is None and self._threads is not None
            first = cells.gauge is None or cells.calling or not computing
            if free or (first and len(self.builds) < load + others):
                (room if free or load < limit else waits).append(cells)
        shortest = min(room + waits, key=CellQueue.longest, default=None)
        if shortest is not None and not shortest.longest()[0] and id(shortest.group) not in building:
            return shortest
        return max(room, key=CellQueue.longest, default=None)
