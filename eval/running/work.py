"""Builds to make: one build of a memory on one case each, in order of estimated work; the writing of a unit in any build; rehearsals.

A rehearsal comes before the first timed build: the memory writes and reads a short artificial history with offline engines. Without it, the
time in which the first build loads and compiles code (twenty seconds for UMAP) would count as the memory's own CPU time. Each class is
rehearsed once per process and choice of settings. Results and costs of a rehearsal are discarded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from data_loaders.schema import Case, Gold, Question, Session, Turn, Unit
from data_loaders.units import make_units
from eval.running.failures import described, raise_fatal
from eval.running.question import check_types
from eval.running.run import OnAnswer, OnProgress, Run, Services, built, innermost, layers
from memsys.embed import HashingEmbedder
from memsys.interface import MemorySystem, Settings
from memsys.jsons import encoded
from memsys.llm.meter import metering, operation
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.prompts import Prompts
from memsys.tokens import count_tokens


@dataclass(frozen=True, slots=True)
class Build:
    """One build on one case."""

    runs: tuple[Run, ...]
    """The runs that share the build; they differ in read knobs only."""
    group: int
    """Number of the runs that share a build among those of the experiment."""
    index: int
    """Position of the case in the runs' `cases`."""

    @property
    def size(self) -> int:
        """Approximate work, comparable between the builds of one group."""
        return self.runs[0].sizes[self.index]

    def case(self) -> Case:
        """The case; a large data set parses it again each time."""
        return self.runs[0].cases[self.index]


Executor = Callable[[Sequence[Build], OnProgress, OnAnswer], None]
"""Works on every build, longest first; raises what `eval.running.loop.run_all` raises."""


def write_unit(memory: MemorySystem, units: Sequence[Unit], place: int) -> None:
    """Write the unit at an index, and end its session if the next unit is of another one, or there is none."""
    unit = units[place]
    memory.write(unit)
    if place + 1 == len(units) or units[place + 1].session_id != unit.session_id:
        memory.end_session(unit.session_id)


def write_history(memory: MemorySystem, case: Case, unit: Mapping[str, Any]) -> None:
    """Write a history as the run loop does, and consolidate it."""
    units = make_units(case.sessions, count=count_tokens, **unit).units
    for place in range(len(units)):
        write_unit(memory, units, place)
    memory.consolidate()


# --- rehearsals -------------------------------------------------------------------------------------------------------


SESSIONS, TURNS, WORDS = 4, 12, 70
"""Size of the artificial history: 48 turns of about a hundred tokens, enough for dimension reduction and clustering to run."""
_VOCABULARY = (
    "morning garden train letter kitchen music window river market doctor island paper summer bridge winter coffee camera "
    "lesson mountain ticket family dinner painter harbour village football library engine flower holiday"
).split()

_done: set[str] = set()
_locks: dict[str, threading.Lock] = {}


def rehearse(build: Callable[..., MemorySystem], unit: Mapping[str, Any], prompts: Prompts) -> None:
    """Build a memory over the artificial history and read from it, once for its class and the settings that select the code that runs:
    strings and booleans, also those of a wrapped memory.

    A failure is reported on standard error and ignored: the run itself will show it.
    """
    kind: list[str] = []
    for target, given in layers(build):
        records = [vars(value) for value in given.values() if isinstance(value, Settings)]
        stated = dict(given, **{name: value for record in records for name, value in record.items()})
        kind.append(getattr(target, "__qualname__", repr(target)))
        kind += [f"{name}={value}" for name, value in sorted(stated.items()) if isinstance(value, str | bool)]
    key = repr((kind, sorted(unit.items(), key=str)))
    # Builds of the same kind wait; those of other kinds begin, for their own CPU time is that of their thread alone.
    with _locks.setdefault(key, threading.Lock()), metering(), operation("rehearsal", kind[0]):
        if key in _done:
            return
        _done.add(key)
        if not getattr(innermost(build), "REHEARSED", True):
            return
        try:
            llm = ExtractiveLLM()
            memory = built(build, Services(llm, llm, llm, HashingEmbedder(), prompts), np.random.default_rng(0))
            case = made_up()
            write_history(memory, case, unit)
            check_types(memory.read(case.questions[0][0]))
            encoded(dict(memory.report()))
            memory.close()
        except BaseException as error:
            raise_fatal(error)
            print(f"note: {kind[0]} could not be rehearsed ({described(error)})"[:300], file=sys.stderr)


def made_up() -> Case:
    """The artificial history: dated sessions of two speakers, with the same words in every process."""
    rng = np.random.default_rng(0)
    sessions = []
    for place in range(SESSIONS):
        turns = []
        for number in range(TURNS):
            words = rng.choice(_VOCABULARY, WORDS)
            sentences = (" ".join(words[start : start + 10]).capitalize() for start in range(0, WORDS, 10))
            speaker, text = ("Ann", "Bob")[number % 2], ". ".join(sentences) + "."
            turns.append(Turn(f"s{place}-t{number}", speaker, text, ("user", "assistant")[number % 2]))
        started = datetime(2023, 5, place + 1, 9)
        sessions.append(Session(f"s{place}", tuple(turns), started, f"{place + 1} May 2023"))
    question = Question("q", "Where did Ann go with the letter in the morning?", None)
    return Case("rehearsal", ("Ann", "Bob"), tuple(sessions), ((question, Gold((), ())),))
