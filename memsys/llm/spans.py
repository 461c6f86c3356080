"""Reports memory operations and model calls to a tracer, such as that of `eval.report.otel_log`; without a tracer it does nothing.

No tracer is imported here, because the modules that memories and the run loop import are part of a run's identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from memsys.llm.protocol import Completion, Request


class Recorder(Protocol):
    """The interface of a tracer."""

    def operation(self, phase: str, store: str, subject: str) -> AbstractContextManager[None]:
        """A step of a memory: `write` of a unit, `consolidate`, `read` for a question, or `close`; other phases are ignored."""

    def query(self, text: str) -> None:
        """The query of the current operation."""

    def records(self, records: Sequence[tuple[str, str]]) -> None:
        """Ids and texts of the records that the current operation stores or recalls."""

    def chat(self, model: str, request: Request) -> Callable[[Completion | BaseException], None]:
        """Note that a call of a model begins in the current operation; the returned function is called with its outcome."""

    def embedding(self, model: str) -> AbstractContextManager[Callable[[int], None]]:
        """Trace the block as a call of an embedder; yields a function that takes its tokens."""

    def place(self) -> Any:
        """The current operation, for `under`."""

    def under(self, place: Any) -> AbstractContextManager[None]:
        """Calls inside the block belong to an operation that may have ended."""


recorder: Recorder | None = None
"""The tracer of this process; None for none."""


def record_to(tracer: Recorder | None) -> None:
    """From now on, report everything to this tracer; None for none."""
    global recorder
    recorder = tracer


def operation(phase: str, store: str, subject: str = "") -> AbstractContextManager[None]:
    """Trace the block as a step of a memory (`Recorder.operation`)."""
    return nullcontext() if recorder is None else recorder.operation(phase, store, subject)


def embedding(model: str) -> AbstractContextManager[Callable[[int], None]]:
    """Trace the block as a call of an embedder (`Recorder.embedding`)."""
    return nullcontext(_ignore) if recorder is None else recorder.embedding(model)


def place() -> Any:
    """The current operation, for `under`; None without a tracer."""
    return None if recorder is None else recorder.place()


def under(place: Any) -> AbstractContextManager[None]:
    """Calls inside the block belong to an operation that may have ended."""
    return nullcontext() if recorder is None or place is None else recorder.under(place)


def _ignore(tokens: int) -> None:
    """Do nothing: for calls without a tracer."""
