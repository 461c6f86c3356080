"""The time to go, over simulated timelines whose end is known."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count

import numpy as np
import pytest

from eval.running.run import Progress
from scripts.setup.progress import Expected, ProgressLine
from tests.scripts.test_progress import Clock

SLOTS, QUESTIONS, PER_QUESTION = 8, 20, 0.4
Event = tuple[float, str, Expected, float]
"""Time, kind, cell, and seconds of the step that it ends."""


def timeline(rates: dict[str, float], *, chains: bool, seed: int = 0) -> tuple[list[Expected], list[Event]]:
    """Cells of memories with these seconds per unit in eight slots, the longest first, and what happens when."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(20, 80, 10)
    cells = [
        Expected(run, f"h{place}", float(size), QUESTIONS, rate if chains else 0.0)
        for run, rate in rates.items()
        for place, size in enumerate(sizes)
    ]
    slots, events = [0.0] * SLOTS, []
    for cell in sorted(cells, key=lambda cell: -cell.size * rates[cell.run]):
        now = heapq.heappop(slots)
        events.append((now, "begin", cell, 0.0))
        for _ in range(int(cell.size)):
            seconds = rates[cell.run] * float(rng.uniform(0.7, 1.3))
            now += seconds
            events.append((now, "write", cell, seconds))
        for _ in range(QUESTIONS):
            now += PER_QUESTION
            events.append((now, "answer", cell, PER_QUESTION))
        events.append((now, "complete", cell, 0.0))
        heapq.heappush(slots, now)
    return cells, sorted(events, key=lambda event: event[0])


def crowd(rates: dict[str, float]) -> tuple[list[Expected], list[Event]]:
    """All cells are open at once, and each call waits for one of eight slots: those of builds first, but every tenth is a question's."""
    cells = [Expected(run, f"h{place}", 40.0, QUESTIONS) for run in rates for place in range(10)]
    events: list[Event] = [(0.0, "begin", cell, 0.0) for cell in cells]
    written, unanswered = dict.fromkeys(cells, 0), dict.fromkeys(cells, QUESTIONS)
    waiting = {"write": deque(cells), "answer": deque[Expected]()}
    running: list[tuple[float, int, str, Expected, float]] = []
    now = 0.0
    for number in count():
        first, second = ("answer", "write") if number % 10 == 0 else ("write", "answer")
        if kind := first if waiting[first] else second if waiting[second] else "":
            cell = waiting[kind].popleft()
            seconds = rates[cell.run] if kind == "write" else PER_QUESTION
            heapq.heappush(running, (now + seconds, number, kind, cell, seconds))
        if not running:
            return cells, events
        if kind and len(running) < SLOTS:
            continue
        now, _, kind, cell, seconds = heapq.heappop(running)
        events.append((now, kind, cell, seconds))
        if kind == "write":
            written[cell] += 1
            waiting["write"].extend([cell] * (written[cell] < cell.size))
            waiting["answer"].extend([cell] * QUESTIONS * (written[cell] == cell.size))
        else:
            unanswered[cell] -= 1
            if not unanswered[cell]:
                events.append((now, "complete", cell, 0.0))
    raise AssertionError


class Left:
    """The time to go that a progress line says on a clock of its own."""

    def __init__(self, cells: list[Expected]) -> None:
        self.clock = Clock()
        self.line = ProgressLine("answering", 0, clock=self.clock, expected=cells)

    def after(self, now: float, cell: Expected, kind: str = "", seconds: float = 0.0, units: int = 0) -> float | None:
        """The time to go at a moment, after an event of a cell if one is named."""
        self.clock.now = now
        outcome = {"begin": "begun", "write": "written", "answer": "answered", "complete": "complete"}.get(kind, "")
        if kind:
            question = "q" if kind == "answer" else ""
            self.line.on_progress(Progress(cell.run, cell.case_id, question, outcome, units=units, seconds=seconds))
        return self.line.state().seconds_left


def estimates(cells: list[Expected], events: list[Event], since: float) -> list[tuple[float, float]]:
    """Estimated and true seconds to go, after every event from `since` seconds on up to the last 5 % of the time."""
    left, end, found = Left(cells), events[-1][0], []
    for now, kind, cell, spent in events:
        seconds = left.after(now, cell, kind, spent, int(cell.size))
        if since <= now <= 0.95 * end and seconds is not None:
            found.append((seconds, end - now))
    return found


RATES = {"bm25": 0.01, "dense": 0.05, "amem": 1.2, "mem0": 0.9, "memtree": 0.4, "segtree": 2.5, "raptor": 0.2}


QUEUES = {
    **{f"a slot each, {seed}": partial(timeline, RATES, chains=True, seed=seed) for seed in range(5)},
    "all open at once": partial(crowd, RATES),
}


@pytest.mark.slow
@pytest.mark.parametrize("made", QUEUES.values(), ids=QUEUES)
def test_the_time_to_go_holds_within_a_factor_of_two_from_the_first_minute(
    made: Callable[[], tuple[list[Expected], list[Event]]],
) -> None:
    cells, events = made()
    assert events[-1][0] > 200
    ratios = [estimated / true for estimated, true in estimates(cells, events, since=60.0)]
    assert len(ratios) > 1000
    assert min(ratios) > 0.5
    assert max(ratios) < 2.0, "a cell that waits for its turn is not slow"


def test_without_a_plan_it_holds_once_every_memory_has_begun() -> None:
    cells, events = timeline(RATES, chains=False)
    begun = {run: next(now for now, kind, cell, _ in events if kind == "write" and cell.run == run) for run in RATES}
    ratios = [estimated / true for estimated, true in estimates(cells, events, since=max(begun.values()))]
    assert all(0.5 < ratio < 2.0 for ratio in ratios)


def test_replicates_and_runs_that_share_a_build_are_told_apart_by_their_folders() -> None:
    shared = Expected("a", "h", 10, 2, folders=("a-1", "a-2"))
    other = Expected("a", "h", 10, 2, folders=("a-3",))
    left = Left([shared, other])
    for name in ("a-1", "a-3"):
        left.line.on_progress(Progress(name, "h", "", "begun", units=1))
    left.clock.now = 4.0
    left.line.on_progress(Progress("a-1", "h", "", "written", seconds=4.0))
    left.line.on_progress(Progress("a-3", "h", "", "written", seconds=4.0))
    left.clock.now = 5.0
    for name in ("a-1", "a-2"):
        left.line.on_progress(Progress(name, "h", "q", "answered", seconds=1.0))
    state = left.line.state()
    assert (state.begun, state.histories, state.written) == (2, 2, 2)
    assert state.seconds_left == pytest.approx(
        1.0
    )  # two questions of the other build, of one second each, two at a time


def test_nothing_is_said_before_the_first_unit() -> None:
    cell = Expected("a", "h", 10, 5)
    left = Left([cell])
    assert left.after(5.0, cell) is None
    assert left.after(5.0, cell, "begin", units=10) is None
    assert left.after(9.0, cell) is None
    assert left.after(10.0, cell, "write", 5.0) == pytest.approx(45.0)


def test_a_cell_that_was_complete_before_is_not_waited_for() -> None:
    cell, old = Expected("a", "h", 10, 0), Expected("a", "old", 1000, 0)
    left = Left([cell, old])
    left.after(0.0, old, "begin", units=0)
    left.after(0.0, old, "complete")
    left.after(0.0, cell, "begin", units=10)
    assert left.after(1.0, cell, "write", 1.0) == pytest.approx(9.0)


def test_a_cell_that_could_not_begin_is_not_waited_for() -> None:
    cell, broken = Expected("a", "h", 10, 0), Expected("a", "broken", 1000, 0)
    left = Left([cell, broken])
    left.after(0.0, broken, "complete")
    left.after(0.0, cell, "begin", units=10)
    assert left.after(1.0, cell, "write", 1.0) == pytest.approx(9.0)
