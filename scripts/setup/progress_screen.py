"""Progress on a terminal: for each phase finished work, builds, calls in flight, spending and time left, redrawn in place.

Phases may be nested (a table is scored, one run of it is judged): one screen shows them all.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eval.report.counted import counted

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


class Phase(Protocol):
    """An object with a state."""

    def state(self) -> State:
        """The current state."""


def drawable() -> bool:
    """Whether standard error is a terminal that can be drawn on."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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
    errors = f" · {counted(state.errors, 'error')}" if state.errors else ""
    left = "" if state.seconds_left is None else f" · {duration(state.seconds_left)} to go"
    yield _bar(state.label, width, state.done, state.total).append(f"{state.done}/{state.total}{errors}{left}")
    if state.units:
        line = _bar("  building", width, state.written, state.units)
        of = f" · {state.begun}/{counted(state.histories, 'history')}" if state.begun < state.histories else ""
        yield line.append(f"{state.written}/{counted(state.units, 'unit')}{of}")
    if parts := list(_calls(state)):
        yield Text(f"{'  calls':<{width}}  {' · '.join(parts)}")
    if state.waited:
        yield Text(f"  {state.waited}", style="yellow")


def _bar(label: str, width: int, done: int, total: int) -> Text:
    from rich.text import Text

    full = BAR if done >= total else BAR * done // max(total, 1)
    return Text.assemble(f"{label:<{width}}  ", ("━" * full, "green"), ("─" * (BAR - full), "dim"), "  ")


def _calls(state: State) -> Iterator[str]:
    if state.in_flight or state.finished or state.waiting:
        of = f" of at most {state.limit}" if state.limit else ""
        yield f"{state.in_flight}{of} in flight"
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
        self._phases: list[Phase] = []
        self._live: Live | None = None
        self._lock = threading.RLock()

    def show(self, phase: Phase) -> None:
        """Add a phase and draw all phases."""
        with self._lock:
            if phase not in self._phases:
                self._phases.append(phase)
            if self._live is None:
                from rich.live import Live

                self._live = Live(console=self.console(), auto_refresh=False, transient=True)
                self._live.start()
            self._draw(self._live)

    def drop(self, phase: Phase) -> None:
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
        """The console on which the phases are drawn."""
        from scripts.setup.printing import console

        return console(sys.stderr)

    def _draw(self, live: Live) -> None:
        live.update(drawing([phase.state() for phase in self._phases], live.console.width), refresh=True)


SCREEN = Screen()
"""The only screen of this process: two on one terminal would overwrite each other."""
