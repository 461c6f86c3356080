"""What the memory contract is told and how it builds: stories, an offline engine that listens, memories by the names of their files."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hydra.utils import get_class

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import MemorySystem, Recall
from memsys.interface import parameters as parameters_of
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import LLM, Completion, Request
from memsys.prompts import Prompts
from scripts.assembly.runs import builder
from scripts.setup.options import load_option, memories_here

ROOT = Path(__file__).resolve().parents[2]


NAMES = memories_here()
"""Products and services have the tests of their own folders."""
READERS = 4
SERVICES = {"llm", "probe", "embedder", "prompts", "rng", "gateway"}
QUICK = {"reducer": "pca", "max_components": 4}
"""Settings that only save time here: UMAP compiles for half a minute, mixtures of 50 components are fitted for long.
The method's own tests cover the defaults."""
QUESTIONS = (
    Question("q1", "Which tomatoes did Mara plant?"),
    Question("q2", "When does the Aurora leave?", time=datetime(2023, 7, 3), time_text="3 July, 2023"),
    Question("q3", "Who repaired Jonas's guitar, and what did he want for it?"),
    Question("q4", "What is the name of Ilse's cat?", options=("Bruno", "Tiago", "Pavel"), instruction="Answer in one word."),
    Question("q5", "zxqv blorf?"),
)  # fmt: skip
PROMPTS = Prompts()


# --- histories ---------------------------------------------------------------------------------------------------------


def _units(session: Mapping[str, Any]) -> Iterator[Unit]:
    for number, lines in enumerate(session["units"], start=1):
        name = f"{session['id']}u{number}"
        said = [line.split(": ", 1) for line in lines]
        turns = tuple(Turn(f"{name}t{place}", speaker, text) for place, (speaker, text) in enumerate(said))
        yield Unit(name, turns, session["id"], datetime.fromisoformat(session["time"]), session["time_text"])


_STORY = json.loads(Path(__file__).with_name("contract_history.json").read_text(encoding="utf-8"))
STORY = [unit for session in _STORY["sessions"] for unit in _units(session)]
"""40 units, 52 turns, 4 sessions, 2 speakers."""
OTHER = [
    Unit(f"o{number}", (Turn(f"o{number}t", "Wendel", f"{text} {number}."),), "o1", datetime(2021, 1, 2), "2 January 2021")
    for number, text in enumerate(["The tomatoes froze in night", "Our cat ate herring", "I sold the guitar for", "The ship sank in"] * 3)
]  # fmt: skip
STRANGE = [
    *STORY[:6],
    Unit("x1", (Turn("x1t", "Mara", ""),), "x", datetime(2023, 7, 3), "3 July, 2023"),
    Unit("x2", (Turn("x2t", "", ""),), "x"),
    Unit("x3", (Turn("x3t", "Jonas", "tomato boat guitar " * 700),), "x", datetime(2023, 7, 3), "3 July, 2023"),
    Unit("x4", (Turn("x4t", "Mara", "👩‍🌾🍅 זרעה עגבניות במרפסת \u202eسمك\u202c e\u0301 𓀀"),), "x", datetime(2023, 7, 3), "3 July"),
    Unit("x5", (Turn("x5t", "Jonas", "$question ${memories} {0} %s </dialogue> \n===\n--- [1] \x00 \\"),), "x", datetime(2023, 7, 3)),
    Unit("x6", (Turn("x6t", "Mara", "…?!"), Turn("x6s", "Jonas", "  \n ")), "x", None, ""),
    *STORY[6:9],
]  # fmt: skip


# --- building ----------------------------------------------------------------------------------------------------------


class Recorder:
    """The offline engine, remembering what it was asked; a request seen before is not worked out again."""

    _known: ClassVar[dict[bytes, Completion]] = {}
    _engine: ClassVar[LLM] = ExtractiveLLM()

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def submit(self, request: Request) -> Future[Completion]:
        self.requests.append(request)
        key = pickle.dumps(request)  # its fields too, in half of the time of its text
        if key not in self._known:
            self._known[key] = self._engine.submit(request).result()
        future: Future[Completion] = Future()
        future.set_result(self._known[key])
        return future


parameters = cache(parameters_of)
"""Worked out once for each class: every build asks for them."""


@cache
def stated(name: str) -> dict[str, Any]:
    """What the file of a memory says under `build`."""
    return dict(load_option("memory", name)["build"])


def class_of(name: str) -> type[MemorySystem]:
    kind: type[MemorySystem] = get_class(stated(name)["_target_"])
    return kind


def settings_of(name: str) -> dict[str, Any]:
    """The settings that the file gives."""
    return {setting: value for setting, value in stated(name).items() if setting not in ("_target_", "_partial_")}


def same_builds() -> dict[str, str]:
    """Each file -> the file that answers for its build: their settings are the same but for read knobs."""
    first: dict[str, str] = {}
    found = {}
    for name in sorted(NAMES, key=lambda name: (len(name), name)):
        knobs = class_of(name).READ_KNOBS
        build = sorted((setting, repr(value)) for setting, value in settings_of(name).items() if setting not in knobs)
        found[name] = first.setdefault(f"{class_of(name)} {build}", name)
    return found


STANDS_FOR = same_builds()
BUILDS = sorted(set(STANDS_FOR.values()))


def fresh(name: str, llm: LLM | None = None, **settings: Any) -> MemorySystem:
    takes = parameters(class_of(name))
    llm = llm or Recorder()
    services = {
        "llm": llm,
        "probe": llm,
        "embedder": HashingEmbedder(256),
        "prompts": PROMPTS,
        "rng": np.random.default_rng(0),
    }
    given = {service: settings.pop(service, value) for service, value in services.items() if service in takes}
    quick = {key: value for key, value in QUICK.items() if key in takes}
    changed = {key: value for key, value in settings.items() if key not in services}
    return builder({**stated(name), **quick, **changed})(**given)


def feed(memory: MemorySystem, units: Sequence[Unit], first: int = 0, last: int | None = None) -> MemorySystem:
    """Write units[first:last] of a history and consolidate; a session ends where the whole history says."""
    last = len(units) if last is None else last
    for index in range(first, last):
        memory.write(units[index])
        if index + 1 == len(units) or units[index + 1].session_id != units[index].session_id:
            memory.end_session(units[index].session_id)
    memory.consolidate()
    return memory


class Overheard(HashingEmbedder):
    """Remembers what it was asked to embed."""

    def __init__(self) -> None:
        super().__init__(256)
        self.texts: set[str] = set()

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        self.texts |= set(texts)
        return super().embed(texts, query=query)


@dataclass(frozen=True, slots=True)
class Build:
    """A memory fed with a part of the story, and the services that it used."""

    memory: MemorySystem
    llm: Recorder
    embedder: Overheard


@cache
def build(name: str, size: int = len(STORY)) -> Build:
    llm, embedder = Recorder(), Overheard()
    return Build(feed(fresh(name, llm, embedder=embedder), STORY[:size]), llm, embedder)


def built(name: str, size: int = len(STORY)) -> MemorySystem:
    """The memory fed with the story's first units; shared by the tests that leave it as it is."""
    return build(name, size).memory


def recalls(memory: MemorySystem, questions: Sequence[Question] = QUESTIONS) -> list[Recall]:
    return [memory.read(question) for question in questions]


@cache
def recalled(name: str, size: int = len(STORY)) -> list[Recall]:
    """What the shared memory recalls at first: what other memories, and later reads of it, are compared with."""
    return recalls(built(name, size))


def turn_ids(units: Sequence[Unit]) -> set[str]:
    return {turn for unit in units for turn in unit.turn_ids}


def assert_sound(recall: Recall, units: Sequence[Unit]) -> None:
    ids, written = [item.id for item in recall.items], turn_ids(units)
    assert len(ids) == len(set(ids)), f"an item is recalled twice: {ids}"
    for item in recall.items:
        assert item.sources, f"{item.id} has no sources"
        assert set(item.sources) <= written, f"{item.id} names turns that were never written"
        assert len(item.sources) == len(set(item.sources)), f"{item.id} names a turn twice"
        assert np.isfinite(item.score), f"{item.id} has the score {item.score}"
        assert item.level >= 0


def picture(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Everything a memory holds, as plain values that can be compared; its services but the generator left out."""
    seen = {} if seen is None else seen
    if isinstance(value, str | bytes | int | float | datetime | np.generic):
        return repr(value)
    if isinstance(value, Recorder | HashingEmbedder | Prompts | set | frozenset) or callable(value):
        return sorted(map(repr, value)) if isinstance(value, set | frozenset) else type(value).__name__
    if id(value) in seen:
        return f"the same as number {seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, np.ndarray):
        return (value.shape, str(value.dtype), value.tobytes())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, dict | Mapping):
        return [(repr(key), picture(entry, seen)) for key, entry in value.items()]
    if isinstance(value, list | tuple | deque | Sequence):
        return [picture(entry, seen) for entry in value]
    slots = itertools.chain.from_iterable(getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
    fields = [*getattr(value, "__dict__", {}).items(), *((slot, getattr(value, slot, None)) for slot in slots)]
    return (type(value).__name__, [(field, picture(entry, seen)) for field, entry in fields])
