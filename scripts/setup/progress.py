"""The progress line: finished work, calls in flight, and the cause of waiting.

A separate thread shows the line, so that it is updated even while nothing finishes: a server that never answers, a clustering that
takes minutes. A terminal gets a few lines that are redrawn in place (`Screen`); anywhere else a new line is printed every fifteen
seconds. Phases may be nested (a table is scored, one run of it is judged): one screen shows them all. `FOLLOWERS` get the same numbers.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval.report.counted import counted
from eval.running.run import Progress
from memsys.llm import stopping
from memsys.llm.endpoint import Traffic
from memsys.llm.protocol import EndOfRun
from scripts.setup.printing import console, duration

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text


BAR, LABEL = 24, 12
"""Width of a bar in cells, and minimum width of its lines' names."""


@dataclass(frozen=True, slots=True)
class State:
    """One phase at one moment."""

    label: str
    done: int
    total: int
    errors: int
    written: int
    """Number of written units, of `units` so far."""
    units: int
    begun: int
    """Number of begun histories, of `histories`."""
    histories: int
    finished: int
    """Number of calls that have ended since the phase began."""
    retried: int
    in_flight: int
    limit: int
    """Maximum number of calls in flight at the moment; 0 if unknown."""
    reduced: str
    """The current limits if they are below the configured ones or calls are paced; otherwise empty."""
    waiting: int
    batched: int
    tokens: int
    """Tokens in and out of calls that have ended since the phase began."""
    tokens_per_second: float
    dollars: float
    """Dollars spent by the process so far; 0 if nothing has a price."""
    seconds_left: float | None
    waited: str
    """The cause of waiting of the phase; empty if nothing is slow."""


def drawing(states: list[State], width: int) -> Group:
    """The lines of all phases, none wider than `width`."""
    from rich.console import Group
    from rich.text import Text

    lines = [line for state in states for line in _lines(state)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Group(*lines or [Text("")])


def _lines(state: State) -> Iterator[Text]:
    from rich.text import Text

    width = max(LABEL, len(state.label))
    yield _bar(state.label, width, state.done, state.total).append(" · ".join(_answered(state)))
    if built := list(_built(state)):
        yield _bar("  building", width, state.written, state.units).append(" · ".join(built))
    if parts := list(_calls(state)):
        yield Text(f"{'  calls':<{width}}  {' · '.join(parts)}")
    if state.waited:
        yield Text(f"  {state.waited}", style="yellow")


def _bar(label: str, width: int, done: int, total: int) -> Text:
    from rich.text import Text

    full = BAR if done >= total else BAR * done // max(total, 1)
    return Text.assemble(f"{label:<{width}}  ", ("━" * full, "green"), ("─" * (BAR - full), "dim"), "  ")


def _answered(state: State) -> Iterator[str]:
    yield f"{state.done}/{state.total}"
    if state.errors:
        yield counted(state.errors, "error")
    if state.seconds_left is not None:
        yield f"{duration(state.seconds_left)} to go"


def _built(state: State) -> Iterator[str]:
    if state.units:
        yield f"{state.written}/{counted(state.units, 'unit')}"
        if state.begun < state.histories:
            yield f"{state.begun}/{counted(state.histories, 'history')}"


def _calls(state: State) -> Iterator[str]:
    if state.in_flight or state.finished or state.waiting:
        of = f" of at most {state.limit}" if state.limit else ""
        yield f"{state.in_flight}{of} in flight{state.reduced}"
        yield f"{state.finished} made" + (f" ({state.retried} retried)" if state.retried else "")
    if state.waiting:
        yield f"{state.waiting} queued"
    if state.batched:
        yield f"{state.batched} in batches"
    if state.tokens_per_second:
        yield f"{state.tokens_per_second:.0f} tokens/s"
    if state.dollars:
        yield f"${state.dollars:.4f}"


class Screen:
    """The phases that are shown on standard error, the outermost first; other output appears above them."""

    def __init__(self) -> None:
        self._phases: list[ProgressLine] = []
        self._live: Live | None = None
        self._lock = threading.RLock()

    def show(self, phase: ProgressLine) -> None:
        with self._lock:
            if phase not in self._phases:
                self._phases.append(phase)
            if self._live is None:
                from rich.live import Live

                self._live = Live(console=self.console(), auto_refresh=False, transient=True)
                self._live.start()
            self._draw(self._live)

    def drop(self, phase: ProgressLine) -> None:
        """Stop showing a phase; after the last phase the drawing is removed."""
        with self._lock:
            if phase in self._phases:
                self._phases.remove(phase)
                if self._live is not None and self._phases:
                    self._draw(self._live)
                elif self._live is not None:
                    self._live.stop()
                    self._live = None

    def console(self) -> Console:
        return console(sys.stderr)

    def _draw(self, live: Live) -> None:
        live.update(drawing([phase.state() for phase in self._phases], live.console.width), refresh=True)


SCREEN = Screen()
"""The only screen of this process: two on one terminal would overwrite each other."""


SILENT, TERMINAL_PAUSE, FILE_PAUSE = 2.0, 0.5, 15.0
"""Seconds before the first line, between updates on a terminal, and between lines in a file."""
LONG = 10.0
"""Seconds after which the line names the cause of waiting."""
FOLLOWERS: list[Callable[[State, bool], None]] = []
"""Callbacks of this process: called with (state, is_last) of every line at each update."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A cell before it begins: one history for one memory, or for several memories that share the build."""

    run: str
    """Name of the memory, whose cells have one pace."""
    case_id: str
    size: float
    """Work of its build, in the unit of the run's sizes."""
    questions: float
    chain: float = 0.0
    """Dependent calls per unit of the size; 0 = unknown."""
    folders: tuple[str, ...] = ()
    """Names of the folders of the runs that share the build, by which events name them; empty if it is the memory's name."""


@dataclass(slots=True)
class _Cell:
    """A cell that has begun."""

    units: int
    """0 for a cell that was complete before."""
    begun: float
    moved: float
    """Time of its last written unit or answered question."""
    written: int = 0
    built: float | None = None
    """Time at which all its units were written."""
    building: float = 0.0
    """Seconds of the steps of its build: of computing, and of each call from its start to its reply, without the wait for its turn."""
    answered: int = 0
    asking: float = 0.0
    """Seconds of reads and answers, likewise."""
    ended: float | None = None


class ProgressLine:
    """A line on standard error: questions done, units written, calls, tokens per second, time left, cause of waiting.

    Args:
        total: number of questions, or of the items that `step` counts.
        traffic: returns the calls in flight at each endpoint.
        clock: monotonic, in seconds.
        expected: the cells of the run, for the time left; empty if nothing is built.
    """

    def __init__(
        self,
        label: str,
        total: int,
        *,
        traffic: Callable[[], Sequence[Traffic]] = lambda: (),
        clock: Callable[[], float] = time.monotonic,
        expected: Sequence[Expected] = (),
    ) -> None:
        self.label, self.total, self.done = label, total, 0
        self.outcomes: Counter[str] = Counter()
        self._traffic, self._clock = traffic, clock
        self._started = self._shown = clock()
        self._begun = self._units = self._written = 0
        self._expected = tuple(expected)
        self._homes = {(name, each.case_id): each for each in expected for name in each.folders or (each.run,)}
        """The cell of each run and case."""
        self._cells: dict[Expected, _Cell] = {}
        self._before = _sums(traffic())
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat_on, name="progress", daemon=True)

    def step(self, outcome: str = "") -> None:
        with self._lock:
            self.done += 1
            if outcome:
                self.outcomes[outcome] += 1

    def on_progress(self, event: Progress) -> None:
        """Count an event of the run loop."""
        if event.question_id:
            self.step(event.outcome)
        with self._lock:
            now, place = self._clock(), (event.run, event.case_id)
            self.total -= event.kept
            home = self._homes.get(place) or self._homes.setdefault(place, Expected(*place, 0.0, 0.0))
            cell = self._cells.get(home)
            if event.outcome == "begun":
                self._cells[home] = _Cell(event.units, now, now)
                self._begun += 1
                self._units += event.units
            elif cell is None:
                if event.outcome == "complete":  # it could not begin
                    self._cells[home] = _Cell(0, now, now, ended=now)
            elif cell.ended is None:
                cell.moved = now
                if event.question_id:
                    cell.answered += 1
                    cell.asking += event.seconds
                elif event.outcome == "written":
                    cell.written += 1
                    cell.building += event.seconds
                    self._written += 1
                    if cell.written >= cell.units:
                        cell.built = now
                elif event.outcome == "complete":
                    cell.ended, cell.built = now, cell.built or now
                    self._units -= cell.units - cell.written  # a failed build writes no more units

    def line(self) -> str:
        state = self.state()
        parts = {state.label: _answered(state), "building": _built(state), "calls": _calls(state)}
        texts = [f"{name}: {text}" for name, own in parts.items() if (text := ", ".join(own))]
        return "; ".join(filter(None, [*texts, state.waited]))

    def state(self) -> State:
        traffic = self._traffic()
        with self._lock:
            now = self._clock()
            left = (now - self._started) / self.done * max(0, self.total - self.done) if self.done else None
            if self._expected:  # something is built: from the cells, and not from the rate so far
                begun = [(each, cell) for each in self._expected if (cell := self._cells.get(each)) and cell.units]
                waiting = [each for each in self._expected if each not in self._cells]
                left = seconds_left(begun, waiting, now)
            finished, tokens, retried = (a - b for a, b in zip(_sums(traffic), self._before, strict=True))
            return State(
                label=self.label,
                done=self.done,
                total=self.total,
                errors=self.outcomes["error"],
                written=self._written,
                units=self._units,
                begun=self._begun,
                histories=len(self._expected),
                finished=finished,
                retried=retried,
                in_flight=sum(each.in_flight for each in traffic),
                limit=sum(each.limit for each in traffic),
                reduced=_limits(traffic),
                waiting=sum(each.waiting for each in traffic),
                batched=sum(each.batched for each in traffic),
                tokens=tokens,
                tokens_per_second=tokens / max(now - self._started, 0.1),
                dollars=sum(each.dollars for each in traffic),
                seconds_left=left,
                waited=self._waited(now, traffic),
            )

    def beat(self, *, last: bool = False) -> None:
        """Tell the followers, and show the line if its next update is due; the last beat clears it."""
        if last:
            SCREEN.drop(self)
        for follower in tuple(FOLLOWERS):
            follower(self.state(), last)
        now = self._clock()
        terminal = sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        pause = TERMINAL_PAUSE if terminal else FILE_PAUSE
        if last or now - self._started <= SILENT or now - self._shown < pause:
            return
        self._shown = now
        if terminal:
            SCREEN.show(self)
            return
        sys.stderr.write(self.line() + "\n")
        sys.stderr.flush()

    def _beat_on(self) -> None:
        while not self._ended.wait(TERMINAL_PAUSE):
            self.beat()

    def _waited(self, now: float, traffic: Sequence[Traffic]) -> str:
        """The run's cause of waiting: a paused endpoint, an old call, or a memory that makes no call; empty if nothing is slow."""
        for endpoint in traffic:
            if endpoint.paused_since is not None:
                return f"paused since {_time_of_day(time.time() - endpoint.paused_since)}: {endpoint.paused_why}"
        oldest = max(traffic, key=lambda endpoint: endpoint.oldest_seconds, default=None)
        if oldest is not None and oldest.in_flight and oldest.oldest_seconds >= LONG:
            return f"waiting for {counted(oldest.in_flight, 'call')}, the oldest sent at {_time_of_day(oldest.oldest_seconds)}"
        still = [(cell.moved, home) for home, cell in self._cells.items() if cell.ended is None]
        if still and not any(endpoint.in_flight for endpoint in traffic):
            moved, home = min(still, key=lambda pair: pair[0])
            if now - moved >= LONG:
                cell, case = self._cells[home], home.case_id
                place = f"unit {cell.written + 1} of {cell.units}" if cell.written < cell.units else "its questions"
                return f"{home.run} has been working on {case}, {place}, since {_time_of_day(now - moved)}{stopping.where(f'/{case}')}"
        return ""


def _limits(traffic: Sequence[Traffic]) -> str:
    """The current limits if they are below the configured ones or calls are paced; otherwise empty."""
    limit, most = sum(each.limit for each in traffic), sum(each.most for each in traffic)
    rates = [each.rpm for each in traffic if each.rpm is not None]
    parts = [f"{most} configured"] if limit < most else []
    parts += [f"{min(rates):.0f} requests/min allowed"] if rates else []
    return f" ({', '.join(parts)})" if parts else ""


def _sums(traffic: Sequence[Traffic]) -> tuple[int, int, int]:
    """Finished calls, tokens, retries."""
    return (
        sum(each.finished for each in traffic),
        sum(each.tokens_in + each.tokens_out for each in traffic),
        sum(each.retried for each in traffic),
    )


def _time_of_day(ago: float) -> str:
    """The time of day `ago` seconds ago, with that duration."""
    return f"{time.strftime('%H:%M:%S', time.localtime(time.time() - ago))} ({duration(ago)} ago)"


_stopped_lines: list[ProgressLine] = []
"""Lines of this process that were ended by a stop, the innermost first."""


def stopped_at() -> str:
    """The progress and the spending of a stopped run, and how to continue it."""
    again = "the same command resumes"
    if not _stopped_lines:
        return f"stopped; {again}"
    state = _stopped_lines[0].state()
    spent = f", ${state.dollars:.2f} spent" if state.dollars else ""
    written = f", {state.written}/{counted(state.units, 'unit')} written" if state.units else ""
    return f"stopped at {state.done}/{state.total} ({state.label}){written}{spent}; {again}"


@contextmanager
def progress_line(
    label: str,
    total: int,
    *,
    traffic: Callable[[], Sequence[Traffic]] = lambda: (),
    expected: Sequence[Expected] = (),
) -> Iterator[ProgressLine]:
    """Show a progress line while the block runs."""
    line = ProgressLine(label, total, traffic=traffic, expected=expected)
    line._beating.start()
    try:
        yield line
    except (KeyboardInterrupt, EndOfRun):
        _stopped_lines.append(line)
        raise
    finally:
        line._ended.set()
        line._beating.join()
        line.beat(last=True)


# --- the time left ---------------------------------------------------------------------------------------------------------


def seconds_left(begun: Sequence[tuple[Expected, _Cell]], waiting: Sequence[Expected], now: float) -> float | None:
    """The time left; None before the first unit, and if nothing is known about the cells.

    It is the larger of two times: that of all the work that is left, at the speed so far, and that of the longest build, unit by unit.
    Work is measured in seconds of steps without the wait for a turn, because a call that waits for others takes nobody's time: with
    hundreds of cells open, times of the clock said twenty times too much. Each memory has its own seconds per unit and per question,
    which differ by a factor of a hundred. One that has not begun gets those of the others, scaled by the dependent calls per unit if
    the plan knows them.

    Args:
        now: the present, on the clock of the cells' times.
    """
    if not any(cell.written for _, cell in begun):
        return None
    clock, build, ask = _Pace(), _Pace(), _Pace()
    for expected, cell in begun:
        size = expected.size * cell.written / cell.units
        clock.add(expected, (now if cell.built is None else cell.built) - cell.begun, size)
        build.add(expected, cell.building, size)
        ask.add(expected, cell.asking, float(cell.answered), by_chain=False)
    running = [
        (each, each.size * (1 - cell.written / cell.units), cell.answered) for each, cell in begun if cell.ended is None
    ]
    left = [*running, *((each, each.size, 0) for each in waiting)]
    if not left:
        return None
    work = sum(build(each) * size + ask(each) * max(0.0, each.questions - answered) for each, size, answered in left)
    done = sum(cell.building + cell.asking for _, cell in begun)
    elapsed = now - min(cell.begun for _, cell in begun)
    longest = max(clock(each) * size for each, size, _ in left)
    return max(work * elapsed / done if done else 0.0, longest) or None


class _Pace:
    """Seconds per piece of work, by memory."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._work: defaultdict[str, float] = defaultdict(float)
        self._chained = [0.0, 0.0]

    def add(self, cell: Expected, seconds: float, work: float, *, by_chain: bool = True) -> None:
        self._seconds[cell.run] += seconds
        self._work[cell.run] += work
        if by_chain and cell.chain and work:
            self._chained[0] += seconds
            self._chained[1] += cell.chain * work

    def __call__(self, cell: Expected) -> float:
        """Seconds per piece of work of a cell: from its own memory, else from its chain, else from all memories; 0 = unknown."""
        if self._work[cell.run]:
            return self._seconds[cell.run] / self._work[cell.run]
        if cell.chain and self._chained[1]:
            return cell.chain * self._chained[0] / self._chained[1]
        rates = [self._seconds[run] / work for run, work in self._work.items() if work]
        return sum(rates) / len(rates) if rates else 0.0
