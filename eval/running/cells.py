"""When a cell is opened: as many are open as keep the endpoint busy, those with the longest chain of dependent calls first.

A cell that is being built waits for one call after the other, so the endpoint is kept busy by many cells and not by fast ones. The next
cell is opened when the builds leave room at the endpoint, unless several open cells are not waiting for a call: those wait for a core,
and another would wait with them. Answers and verdicts take no room: they can wait for builds, but the table waits for the longest build.
Without an endpoint, a few cells are open. A cell is a thread; one that waits costs about 0.3 MB.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence

from eval.running.run import Run, needs
from memsys.llm.limits import BUILDS

OPEN = 512
"""Most cells that are open at once."""
READING, ANSWERING, JUDGING = 2.0, 1.0, 0.0
"""Urgency of reads after the history, answers and verdicts; that of a build is `BUILDS` and more."""
LOOK = 1.0
"""Seconds after which the room is looked at again, should no gauge have told of it."""
SPACING = 0.01
"""Seconds between the starts of two reads after the history, while memories are built with models behind an endpoint."""
WORKING = 8
"""Most cells that are built at once without waiting for a call; without an endpoint, most cells that are built."""
PRIOR = 0.5
"""Weight of the first estimate, as a share of the smallest history."""


class Pace:
    """Dependent calls per unit of a run's sizes, smoothed over what its cells have done so far: how long a cell's chain of calls still is.

    Args:
        first: the first estimate: of the plan, or 1 for a memory that calls a model and 0 for one that does not.
        smallest: the smallest size.
    """

    def __init__(self, first: float, smallest: float) -> None:
        self._weight = max(PRIOR * smallest, 1e-9)
        self._calls, self._size = first * self._weight, self._weight
        self._lock = threading.Lock()

    def add(self, calls: float, size: float) -> None:
        """Count a step: its dependent calls, and the share of its history's size that it covers."""
        with self._lock:
            self._calls += calls
            self._size += size

    def calls(self, size: float) -> float:
        """Dependent calls that so much of a history takes."""
        return size * self._calls / self._size


class CellQueue:
    """The cells of runs that share their builds, in the order in which they are opened."""

    def __init__(self, group: Sequence[Run]) -> None:
        run = group[0]
        self.group, self.gauge = group, run.services.gauge_of(needs(run.build))
        self.indices = sorted(range(len(run.sizes)), key=lambda index: (run.sizes[index], -index))
        """The longest is at the end."""
        calls_a_model = bool(needs(run.build) & {"llm", "probe"})
        self.pace = Pace(run.chain or float(calls_a_model), float(min(run.sizes, default=1)))

    def longest(self) -> tuple[float, float]:
        """Dependent calls of the longest cell that is not open yet, and its size."""
        size = float(self.group[0].sizes[self.indices[-1]])
        return self.pace.calls(size), size


class OpenCell:
    """One open cell: a memory that is being built on one history, or that waits for its last answers."""

    def __init__(self, cells: CellQueue, index: int, on_built: Callable[[], None], on_end: Callable[[], None]) -> None:
        self.group, self.index = cells.group, index
        self._pace, self._left = cells.pace, float(cells.group[0].sizes[index])
        self._on_built, self._on_end = on_built, on_end
        self._built = False

    @property
    def remaining(self) -> float:
        """Dependent calls that its build still takes, by estimate: how urgent its next call is."""
        return BUILDS + self._pace.calls(self._left)

    def step(self, calls: int, share: float) -> None:
        """Count a step of the build: its dependent calls, and the share of the history that it covers."""
        size = share * float(self.group[0].sizes[self.index])
        self._left = max(0.0, self._left - size)
        self._pace.add(calls, size)

    def built(self) -> None:
        """The memory is built; another cell may be built in its place."""
        if not self._built:
            self._built = True
            self._on_built()

    def end(self) -> None:
        """Nothing of it is left to do."""
        self.built()
        self._on_end()


class Opening:
    """Decides when the next cell is opened, and which.

    Args:
        threads: most cells that are built at once; None: as many as keep the endpoint busy.
        most: most cells that are open at once.
    """

    def __init__(self, groups: Sequence[Sequence[Run]], threads: int | None = None, most: int = OPEN) -> None:
        self._cells = [CellQueue(group) for group in groups if group[0].sizes]
        self.outstanding = max((run.outstanding for group in groups for run in group), default=1)
        self._threads, self._most = threads, most
        self._changed, self._lock = threading.Event(), threading.Lock()
        self._stopped = False
        self.gauges = list({id(each.gauge): each.gauge for each in self._cells if each.gauge is not None}.values())
        self.open = self.building = self.most_open = 0

    def __iter__(self) -> Iterator[OpenCell]:
        """The cells, each when it is to be opened; it counts as open, and as being built, from then on."""
        for gauge in self.gauges:
            gauge.watch(self._changed.set)
        try:
            while self._cells and not self._stopped:
                self._changed.clear()
                cells = self._next()
                if cells is None:
                    self._changed.wait(LOOK)
                    continue
                index = cells.indices.pop()
                if not cells.indices:
                    self._cells.remove(cells)
                with self._lock:
                    self.open, self.building = self.open + 1, self.building + 1
                    self.most_open = max(self.most_open, self.open)
                yield OpenCell(cells, index, self._on_built, self._on_end)
        finally:
            for gauge in self.gauges:
                gauge.unwatch(self._changed.set)

    def spacing(self) -> float:
        """Seconds between the starts of two reads that no build waits for.

        A history's questions come all at once, and would take the interpreter from the builds, which the table waits for.
        """
        return SPACING if self.gauges and self.building else 0.0

    def stop(self) -> None:
        """Open no further cell."""
        self._stopped = True
        self._changed.set()

    def _on_built(self) -> None:
        with self._lock:
            self.building -= 1
        self._changed.set()

    def _on_end(self) -> None:
        with self._lock:
            self.open -= 1
        self._changed.set()

    def _next(self) -> CellQueue | None:
        """The cells of which one is opened now, the one with the longest chain; None when none is."""
        if self.open >= self._most or (self._threads is not None and self.building >= self._threads):
            return None
        room = []
        for cells in self._cells:
            load, limit = (0.0, math.inf) if cells.gauge is None else cells.gauge.load()
            free = cells.gauge is None and self._threads is not None
            if free or (load < limit and self.building < load + WORKING):
                room.append(cells)
        return max(room, key=CellQueue.longest, default=None)
