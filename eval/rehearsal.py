"""A rehearsal before anything is timed: a memory lives through a short made-up history with offline engines.

What a first build loads and compiles (UMAP's compiled loops take twenty seconds) would else be counted as that memory's own CPU. Each
class with the same choices is rehearsed once a process; nothing of it is kept, and what it costs stands nowhere.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from data_loaders.schema import Case, Gold, Question, Session, Turn
from data_loaders.units import make_units
from eval.run import needs
from memsys.embed import HashingEmbedder
from memsys.interface import MemorySystem
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.prompts import Prompts
from memsys.tokens import count_tokens

SESSIONS, TURNS, WORDS = 4, 12, 70
"""Of the made-up history: 48 chunks of a hundred tokens, enough for a clustering to have something to reduce and to group."""
_VOCABULARY = (
    "morning garden train letter kitchen music window river market doctor island paper summer bridge winter coffee camera "
    "lesson mountain ticket family dinner painter harbour village football library engine flower holiday"
).split()

_done: set[str] = set()
_lock = threading.Lock()


def rehearse(build: Callable[..., MemorySystem], unit: Mapping[str, Any], prompts: Prompts) -> None:
    """Build a memory of this kind once over the made-up history and read from it; a second time nothing happens.

    A memory that fails here is reported on standard error and goes on: the run itself will show what is wrong.
    """
    key = repr((_kind(build), sorted(unit.items(), key=str)))
    with _lock:  # others wait: what they would build next needs the same imports
        if key in _done:
            return
        _done.add(key)
        try:
            _live(build, unit, prompts)
        except Exception as error:
            name = _kind(build)[0]
            print(f"note: {name} could not be rehearsed ({type(error).__name__}: {error})"[:300], file=sys.stderr)


def made_up() -> Case:
    """The history: dated sessions of two people, the same words in every process."""
    rng = np.random.default_rng(0)
    sessions = tuple(
        Session(
            f"s{place}",
            tuple(
                Turn(f"s{place}-t{number}", ("Ann", "Bob")[number % 2], _said(rng), ("user", "assistant")[number % 2])
                for number in range(TURNS)
            ),
            datetime(2023, 5, place + 1, 9),
            f"{place + 1} May 2023",
        )
        for place in range(SESSIONS)
    )
    question = Question("q", "Where did Ann go with the letter in the morning?", None)
    return Case("rehearsal", ("Ann", "Bob"), sessions, ((question, Gold((), ())),))


def _said(rng: np.random.Generator) -> str:
    words = rng.choice(_VOCABULARY, WORDS)
    return ". ".join(" ".join(words[start : start + 10]).capitalize() for start in range(0, WORDS, 10)) + "."


def _live(build: Callable[..., MemorySystem], unit: Mapping[str, Any], prompts: Prompts) -> None:
    llm = ExtractiveLLM()
    offered = {
        "llm": llm,
        "probe": llm,
        "embedder": HashingEmbedder(),
        "prompts": prompts,
        "rng": np.random.default_rng(0),
    }
    memory = build(**{name: service for name, service in offered.items() if name in needs(build)})
    if not memory.REHEARSED:
        return
    case = made_up()
    units = make_units(case.sessions, count=count_tokens, **unit).units
    for place, one in enumerate(units):
        memory.write(one)
        if place + 1 == len(units) or units[place + 1].session_id != one.session_id:
            memory.end_session(one.session_id)
    memory.consolidate()
    memory.read(case.questions[0][0])


def _kind(build: Any) -> tuple[str, ...]:
    """The class and the choices that decide which code runs: words and switches, not sizes; a wrapper's inner memory too."""
    if not isinstance(build, partial):
        return (getattr(build, "__qualname__", repr(build)),)
    choices = [f"{name}={value}" for name, value in sorted(build.keywords.items()) if isinstance(value, str | bool)]
    inner = _kind(build.keywords["inner"]) if "inner" in build.keywords else ()
    return (build.func.__qualname__, *choices, *inner)
