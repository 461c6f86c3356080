"""What every memory keeps to, whatever its method: each file of conf/memory is built with the offline engine and tried.

Released products and services are not there: `tests/memsys/systems/test_released.py` puts a toy in their place through the same tests,
`tests/memsys/services/test_http.py` the reference service.

Files that differ in read knobs alone build the same memory: one of them answers for the build (`each_build`), and all of them
for what they recall (`each_file`). What settings promise is asked of all files in one test, which names those that break it.
`make quick` tries one memory of each kind.

Run as a program it prints what every memory recalls, so that two processes can be compared.
"""

from __future__ import annotations

import ast
import copy
import datetime as real
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pytest
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import MemorySystem, NodeView, Recall
from memsys.llm.meter import Metered, metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import LLM, Completion, Request
from memsys.prompts import Prompts

ROOT = Path(__file__).resolve().parents[2]


def _lives_here(path: Path) -> bool:
    """Whether a memory lives in this process; products and services have the tests of their own folders."""
    kind: type[MemorySystem] = get_class(OmegaConf.load(path).build._target_)
    return kind.REHEARSED


NAMES = sorted(path.stem for path in (ROOT / "conf" / "memory").glob("*.yaml") if _lives_here(path))
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
OF_EACH_KIND = {"nothing", "bm25", "mem0", "segtree", "hipporag", "naive_rag_pruned"}
"""A control, an index, a store that a model keeps, a tree, a graph, and a wrapper: what `make quick` tries."""


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
    Unit("x3", (Turn("x3t", "Jonas", "tomato boat guitar " * 2_632),), "x", datetime(2023, 7, 3), "3 July, 2023"),
    Unit("x4", (Turn("x4t", "Mara", "👩‍🌾🍅 זרעה עגבניות במרפסת \u202eسمك\u202c e\u0301 𓀀"),), "x", datetime(2023, 7, 3), "3 July"),
    Unit("x5", (Turn("x5t", "Jonas", "$question ${memories} {0} %s </dialogue> \n===\n--- [1] \x00 \\"),), "x", datetime(2023, 7, 3)),
    Unit("x6", (Turn("x6t", "Mara", "…?!"), Turn("x6s", "Jonas", "  \n ")), "x", None, ""),
    *STORY[6:9],
]  # fmt: skip


# --- building ----------------------------------------------------------------------------------------------------------


class Recorder:
    """The offline engine, remembering what it was asked; a request seen before is not worked out again."""

    _known: ClassVar[dict[str, Completion]] = {}
    _engine: ClassVar[LLM] = ExtractiveLLM()

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def submit(self, request: Request) -> Future[Completion]:
        self.requests.append(request)
        key = repr(request)
        if key not in self._known:
            self._known[key] = self._engine.submit(request).result()
        future: Future[Completion] = Future()
        future.set_result(self._known[key])
        return future


@cache
def factory(name: str) -> Callable[..., MemorySystem]:
    build = OmegaConf.load(ROOT / "conf" / "memory" / f"{name}.yaml").build
    made: Callable[..., MemorySystem] = instantiate(build, _convert_="all")
    return made


def class_of(name: str) -> type[MemorySystem]:
    kind: type[MemorySystem] = factory(name).func  # type: ignore[attr-defined]
    return kind


def settings_of(name: str) -> dict[str, Any]:
    """The settings that the file gives."""
    settings: dict[str, Any] = factory(name).keywords  # type: ignore[attr-defined]
    return settings


def same_builds() -> dict[str, str]:
    """Each file -> the file that answers for its build: their settings are the same but for read knobs."""
    first: dict[str, str] = {}
    found = {}
    for name in sorted(NAMES, key=lambda name: (len(name), name)):
        knobs = class_of(name).READ_KNOBS
        build = sorted((setting, repr(value)) for setting, value in settings_of(name).items() if setting not in knobs)
        found[name] = first.setdefault(f"{class_of(name)} {build}", name)
    return found


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    marked = [name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("name", marked)


STANDS_FOR = same_builds()
BUILDS = sorted(set(STANDS_FOR.values()))
each_file = each(NAMES)
each_build = each(BUILDS)


def fresh(name: str, llm: LLM | None = None, **settings: Any) -> MemorySystem:
    make = factory(name)
    takes = inspect.signature(make).parameters
    llm = llm or Recorder()
    services = {
        "llm": llm,
        "probe": llm,
        "embedder": HashingEmbedder(256),
        "prompts": Prompts(),
        "rng": np.random.default_rng(0),
    }
    given = {service: settings.pop(service, value) for service, value in services.items() if service in takes}
    quick = {key: value for key, value in QUICK.items() if key in takes}
    return make(**(given | quick | {key: value for key, value in settings.items() if key not in services}))


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


def turn_ids(units: Sequence[Unit]) -> set[str]:
    return {turn for unit in units for turn in unit.turn_ids}


def assert_sound(recall: Recall, units: Sequence[Unit]) -> None:
    ids = [item.id for item in recall.items]
    assert len(ids) == len(set(ids)), f"an item is recalled twice: {ids}"
    for item in recall.items:
        assert item.sources, f"{item.id} has no sources"
        assert set(item.sources) <= turn_ids(units), f"{item.id} names turns that were never written"
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
    if isinstance(value, Mapping):
        return [(repr(key), picture(entry, seen)) for key, entry in value.items()]
    if isinstance(value, Sequence | deque):
        return [picture(entry, seen) for entry in value]
    slots = itertools.chain.from_iterable(getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
    fields = [*getattr(value, "__dict__", {}).items(), *((slot, getattr(value, slot, None)) for slot in slots)]
    return (type(value).__name__, [(field, picture(entry, seen)) for field, entry in fields])


# --- recall ------------------------------------------------------------------------------------------------------------


@each_file
def test_what_is_recalled_stands_for_what_was_written_so_far(name: str) -> None:
    for size in (1, 20, len(STORY)):
        for recall in recalls(built(name, size)):
            assert_sound(recall, STORY[:size])
            assert all(item.text.strip() for item in recall.items)


@each_file
def test_reading_leaves_the_memory_as_it_was(name: str) -> None:
    memory = feed(fresh(name), STORY, 0, 23)  # within a session
    before = picture([vars(memory), list(memory.nodes()), memory.report(), memory.held])
    first = recalls(memory)
    assert recalls(memory) == first
    assert recalls(memory, QUESTIONS[::-1]) == first[::-1]
    assert picture([vars(memory), list(memory.nodes()), memory.report(), memory.held]) == before


@each_build
def test_the_same_history_is_recalled_the_same_by_readers_at_the_same_time(name: str) -> None:
    memory, gate = feed(fresh(name), STORY), threading.Barrier(8)

    def read_all(turn: int) -> list[Recall]:
        gate.wait(timeout=60)
        order = [*QUESTIONS[turn % 5 :], *QUESTIONS[: turn % 5]]
        found = dict(zip((question.id for question in order), recalls(memory, order), strict=True))
        return [found[question.id] for question in QUESTIONS]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read_all, range(8))) == [recalls(built(name))] * 8
    assert picture(list(memory.nodes())) == picture(list(built(name).nodes()))


@pytest.mark.parametrize("name", [name for name in NAMES if name != STANDS_FOR[name]])
def test_a_file_that_differs_in_reading_alone_is_the_same_build_read_otherwise(name: str) -> None:
    swept = copy.copy(built(STANDS_FOR[name], 20))
    for knob in swept.READ_KNOBS:
        setattr(swept, knob, getattr(built(name, 20), knob))
    assert recalls(swept) == recalls(built(name, 20))
    assert picture(list(swept.nodes())) == picture(list(built(name, 20).nodes()))


@each_build
def test_two_memories_share_nothing(name: str) -> None:
    first = built(name)
    before, held = recalls(first), picture(vars(first))
    second = feed(fresh(name), OTHER)
    for recall in recalls(second):
        assert_sound(recall, OTHER)
    assert picture(vars(first)) == held
    assert recalls(first) == before


def from_another_process() -> dict[str, Any]:
    """What every memory recalls in a process that hashes strings with another seed."""
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, __file__], cwd=ROOT, env=environment, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def spelled(name: str) -> list[Any]:
    """What a memory recalls half-way, as JSON gives it back."""
    found = [[(item.id, item.text, item.sources) for item in recall.items] for recall in recalls(built(name, 20))]
    return list(json.loads(json.dumps(found)))


def spelled_or_broken(name: str) -> list[Any] | str:
    """One memory that cannot be built spoils no other's comparison."""
    try:
        return spelled(name)
    except Exception as error:
        return repr(error)


@pytest.mark.slow
def test_another_process_recalls_the_same() -> None:
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(from_another_process)
        here = {name: spelled_or_broken(name) for name in BUILDS}
    assert [name for name in BUILDS if other.result()[name] != here[name]] == []
    assert [said for said in here.values() if isinstance(said, str)] == []


@each_file
def test_no_more_items_than_k_are_recalled(name: str) -> None:
    memory = built(name)
    k = getattr(memory, "k", None)
    if k is None or memory.PAST_K:
        assert k is None or len(memory.PAST_K.split()) > 3, "PAST_K is the reason, as a sentence"
        return
    for least in {1, 3, k} if "k" in memory.READ_KNOBS else {k}:
        swept = copy.copy(memory)
        vars(swept)["k"] = least
        assert all(len(recall.items) <= least for recall in recalls(swept))


def test_a_memory_is_asked_with_questions_and_never_sees_gold() -> None:
    for kind in map(class_of, BUILDS):
        assert get_type_hints(kind.read)["question"] is Question, kind
        assert list(inspect.signature(kind.read).parameters) == ["self", "question"], kind
        assert not {"Gold", "Case"} & set(vars(sys.modules[kind.__module__])), kind


# --- settings ----------------------------------------------------------------------------------------------------------


def test_a_file_gives_every_setting_its_value() -> None:
    """A setting missing from the YAML is missing from the run's record."""
    named = {
        name: set(settings_of(name)) ^ (set(inspect.signature(class_of(name)).parameters) - SERVICES) for name in NAMES
    }
    assert {name: settings for name, settings in named.items() if settings} == {}


def test_the_file_called_as_a_method_holds_the_defaults_of_its_class() -> None:
    """Of a module with several classes it is the file called as the class; a wrapper has a file for each memory in it."""
    differing = {}
    for kind in set(map(class_of, NAMES)):
        of_class = [name for name in NAMES if class_of(name) is kind]
        module, snake = kind.__module__.split(".")[-1], re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
        for name in [name for name in of_class if name in (module, snake)] or of_class:
            parameters = {key: value.default for key, value in inspect.signature(kind).parameters.items()}
            given = {key: value for key, value in settings_of(name).items() if key != "inner"}
            wrong = [key for key, value in given.items() if plain(value) != plain(parameters[key])]
            differing |= {name: wrong} if wrong else {}
    assert differing == {}


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_a_k_of_zero_is_refused_by_name() -> None:
    asked = [name for name in BUILDS if "k" in inspect.signature(factory(name)).parameters]
    assert [name for name in asked if not refused(name, r"\bk\b.*0", k=0)] == []


def refused(name: str, why: str, **settings: Any) -> bool:
    try:
        fresh(name, **settings)
    except ValueError as error:
        return bool(re.search(why, str(error)))
    return False


def choices(name: str, setting: str) -> list[str]:
    """The choices that a refusal of nonsense names."""
    nonsense: dict[str, Any] = {setting: "no-such-choice"}
    with pytest.raises(ValueError, match=setting) as caught:
        fresh(name, **nonsense)
    return [word for word in re.findall(r"\w+", str(caught.value)) if accepted(name, setting, word)]


def accepted(name: str, setting: str, value: Any) -> bool:
    try:
        fresh(name, **{setting: value})
    except ValueError:
        return False
    return True


@pytest.mark.slow
def test_an_unknown_choice_is_refused_naming_the_known_ones() -> None:
    asked = 0
    for name in BUILDS:
        for setting, parameter in inspect.signature(factory(name)).parameters.items():
            if isinstance(parameter.default, str) and parameter.default.isidentifier():
                assert parameter.default in choices(name, setting), f"{name}: {setting}"
                asked += 1
    assert asked > len(BUILDS) or len(BUILDS) < 10  # a checkout with a few memories of its own may have no choices


def alternatives(name: str, knob: str) -> list[Any]:
    """Other values of a read knob: those of the method's other files, every other choice of a word, one other number."""
    value = getattr(built(name, 20), knob)
    annotation = str(inspect.signature(factory(name)).parameters[knob].annotation)
    others = [settings_of(other)[knob] for other in NAMES if class_of(other) is class_of(name)]
    if isinstance(value, bool):
        others += [not value]
    elif isinstance(value, str) or "Literal" in annotation:
        others += choices(name, knob)
    elif isinstance(value, int):
        others += [n for n in (value // 2, value + 1) if accepted(name, knob, n)][:1]
    elif isinstance(value, float):
        others += [x for x in ((value / 2, value * 2) if value > 0 else (0.1,)) if accepted(name, knob, x)][:1]
    elif isinstance(value, tuple):
        others += [value[::-1] or ("the",)]
    elif "float" in annotation and "Sequence" not in annotation:
        others += [0.1]
    elif "int" in annotation:
        others += [n for n in (60, 3) if accepted(name, knob, n)][:1]
    return [other for place, other in enumerate(others) if other != value and other not in others[:place]]


@each(name for name in BUILDS if class_of(name).READ_KNOBS)
def test_a_knob_turned_on_a_copy_is_a_build_with_that_value(name: str) -> None:
    memory = built(name, 20)
    before = recalls(memory)
    for knob in memory.READ_KNOBS:
        values = alternatives(name, knob)
        assert values, f"no other value of {knob} is known: a variant's file or the annotation must tell one"
        for value in values:
            swept = copy.copy(memory)
            setattr(swept, knob, value)
            assert recalls(swept) == recalls(feed(fresh(name, **{knob: value}), STORY[:20])), f"{knob}={value}"
    assert recalls(memory) == before


def reached(kind: type[MemorySystem], roots: Sequence[str]) -> set[str]:
    """Attributes of `self` named in these methods of a class and in those that they lead to."""
    module = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    body = next(one for one in module.body if isinstance(one, ast.ClassDef) and one.name == kind.__name__)
    methods = {one.name: one for one in ast.walk(body) if isinstance(one, ast.FunctionDef)}
    named: set[str] = set()
    open_ends = list(roots)
    while open_ends:
        if (method := methods.pop(open_ends.pop(), None)) is not None:
            own = [one for one in ast.walk(method) if isinstance(one, ast.Attribute)]
            found = {one.attr for one in own if isinstance(one.value, ast.Name) and one.value.id == "self"}
            named |= found
            open_ends += found
    return named


def test_what_reading_alone_looks_at_is_a_read_knob_and_nothing_else_is() -> None:
    """Else runs that could share a build do not, or runs share one that is not theirs."""
    for kind in set(map(class_of, BUILDS)):
        settings = (
            set(inspect.signature(kind).parameters) - SERVICES - {"inner", "mutate_on_read"}
        )  # which never shares
        reading, building = reached(kind, ["read"]), reached(kind, ["write", "end_session", "consolidate"])
        assert settings & (reading - building) <= set(kind.READ_KNOBS), kind
        assert not set(kind.READ_KNOBS) & building, kind


# --- consolidation -----------------------------------------------------------------------------------------------------


@each_build
def test_consolidation_is_provisional_and_a_second_one_changes_nothing(name: str) -> None:
    memory = fresh(name)
    feed(memory, STORY, 0, 23)  # the break falls within a session, as questions may
    before = recalls(memory), picture(list(memory.nodes())), memory.report(), memory.held
    memory.consolidate()
    assert (recalls(memory), picture(list(memory.nodes())), memory.report(), memory.held) == before
    feed(memory, STORY, 23)
    assert recalls(memory) == recalls(built(name))
    assert memory.held == built(name).held


# --- time --------------------------------------------------------------------------------------------------------------

LATE = real.datetime(2099, 12, 31, 23, 59)


class _CountsAsReal(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__mro__[1])


class LateDatetime(real.datetime, metaclass=_CountsAsReal):
    @classmethod
    def now(cls, tz: Any = None) -> LateDatetime:
        return cls(2099, 12, 31, 23, 59, tzinfo=tz)

    utcnow = today = now


class LateDate(real.date, metaclass=_CountsAsReal):
    @classmethod
    def today(cls) -> LateDate:
        return cls(2099, 12, 31)


@pytest.fixture
def in_2099(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks that a memory could look at say 31 December 2099."""
    late = types.SimpleNamespace(**(vars(real) | {"datetime": LateDatetime, "date": LateDate}))
    instead = {id(real.datetime): LateDatetime, id(real.date): LateDate, id(real): late}
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("memsys.") and not module_name.startswith("memsys.llm."):
            for attribute, value in list(vars(module).items()):
                if id(value) in instead:
                    monkeypatch.setattr(module, attribute, instead[id(value)])
    stamp, localtime, gmtime = LATE.timestamp(), time.localtime, time.gmtime
    monkeypatch.setattr(time, "time", lambda: stamp)
    monkeypatch.setattr(time, "time_ns", lambda: int(stamp * 1e9))
    monkeypatch.setattr(time, "localtime", lambda seconds=stamp: localtime(seconds))
    monkeypatch.setattr(time, "gmtime", lambda seconds=stamp: gmtime(seconds))


@each_build
@pytest.mark.usefixtures("in_2099")
def test_no_clock_is_looked_at(name: str) -> None:
    llm = Recorder()
    memory = feed(fresh(name, llm), STORY)
    found = recalls(memory)
    shown = [text for request in llm.requests for _, text in request.messages]
    shown += [f"{node.text} {node.start} {node.end}" for node in memory.nodes()]
    shown += [repr(found), repr(picture(vars(memory)))]
    assert not [text for text in shown if "2099" in text and re.search(r"(?<![\d.])2099(?!\d)", text)]
    assert found == recalls(built(name))


# --- odd input ---------------------------------------------------------------------------------------------------------


@each_build
def test_an_empty_history_is_an_empty_recall(name: str) -> None:
    memory = fresh(name)
    memory.consolidate()
    assert all(recall.items == () for recall in recalls(memory))
    assert (list(memory.nodes()), memory.held) == ([], 0)
    json.dumps(memory.report())


@pytest.mark.slow
@each_build
def test_strange_units_do_no_harm(name: str) -> None:
    memory = feed(fresh(name), STRANGE)
    asked = ("", "?", "👩‍🌾 מי זרעה?", "$question ${x} {0}", "tomato " * 3_000, "Compose a limerick!")
    strange = [Question(f"x{number}", text, instruction="As a limerick.") for number, text in enumerate(asked)]
    for recall in recalls(memory, [*strange, *QUESTIONS]):
        assert_sound(recall, STRANGE)
    assert_a_structure(list(memory.nodes()), STRANGE)
    json.dumps(memory.report())


def by_type(schema: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """A value of the schema's shape, its leaves by type from `values`."""
    if "enum" in schema and "enum" in values:
        return schema["enum"][values["enum"]]
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {key: by_type(inner, values) for key, inner in schema.get("properties", {}).items()}
    if kind == "array":
        least = max(values["array"], schema.get("minItems", 0))
        return [by_type(schema.get("items", {}), values) for _ in range(min(least, schema.get("maxItems", least)))]
    if kind in {"integer", "number"} and isinstance(value := values[kind], int | float):
        return max(schema.get("minimum", value), min(schema.get("maximum", value), value))
    return values[kind]


WRONG = {"string": 7, "integer": "many", "number": None, "boolean": "perhaps", "array": 1, "null": 0}
FEW = {"string": "", "integer": -(10**9), "number": -1e9, "boolean": False, "array": 0, "null": None, "enum": 0}
MANY = {
    "string": "no such label 77",
    "integer": 10**9,
    "number": 1e9,
    "boolean": True,
    "array": 9,
    "null": None,
    "enum": -1,
}


def of_schema(values: Mapping[str, Any], label: int) -> Callable[[Request], str]:
    """Replies in the shape asked for and absurd in content: always the same label, no entries or many, ids that do not exist."""

    def reply(request: Request) -> str:
        if request.schema is not None:
            return json.dumps(by_type(request.schema, values))
        labels = request.fields["labels"]
        return str(labels[label]) if labels else "word"

    return reply


class Babble:
    """A model that answers without having listened, without log-probabilities."""

    def __init__(self, reply: Callable[[Request], str]) -> None:
        self._reply = reply

    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        future.set_result(Completion(self._reply(request), 1, 1))
        return future


def in_rotation() -> Callable[[Request], str]:
    replies = itertools.cycle(
        ["", "Sure!", "```json {", "[]", "{}", '{"a": [1, null, {"b": "c"}]}', "[1, null]", "null", "\\"]
    )
    return lambda request: next(replies)


GARBAGE: dict[str, Callable[[], Callable[[Request], str]]] = {
    "empty": lambda: lambda request: "",
    "prose": lambda: lambda request: "Sure! Here is what you asked for.",
    "in rotation": in_rotation,
    "wrong types": lambda: of_schema(WRONG, 0),
    "next to nothing": lambda: of_schema(FEW, 0),
    "too much": lambda: of_schema(MANY, -1),
}


@each_build
def test_a_model_that_babbles_breaks_nothing(name: str, subtests: pytest.Subtests) -> None:
    for babble, reply in GARBAGE.items():
        with subtests.test(babble), metering() as ledger:
            memory = feed(fresh(name, Metered(Babble(reply()))), STORY[:14])
            for recall in recalls(memory):
                assert_sound(recall, STORY[:14])
            assert_a_structure(list(memory.nodes()), STORY[:14])
            json.dumps(memory.report())
            if babble == "empty" and ledger.calls:
                assert sum(ledger.parse_failures.values()) >= sum(ledger.calls.values())
                assert ledger.notes, "a fallback was taken and not counted"


# --- structure ---------------------------------------------------------------------------------------------------------


def assert_a_structure(nodes: Sequence[NodeView], units: Sequence[Unit]) -> None:
    by_id = {node.id: node for node in nodes}
    assert len(by_id) == len(nodes), "two nodes have the same id"
    for node in nodes:
        assert set(node.parents) <= set(by_id), f"{node.id} has a parent that does not exist"
        assert set(node.sources) <= turn_ids(units), f"{node.id} names turns that were never written"
        for parent in node.parents:
            missing = set(node.sources) - set(by_id[parent].sources)
            assert not missing, f"{parent} lacks sources of its child {node.id}: {missing}"
        assert node.level >= 0
        assert node.start is None or node.end is None or node.start <= node.end
        if node.vector is not None:
            assert node.vector.dtype == np.float32
            assert np.linalg.norm(node.vector) == pytest.approx(1, abs=1e-4) or not node.vector.any()
    assert_no_cycle({node.id: set(node.parents) for node in nodes})


def assert_no_cycle(parents: dict[str, set[str]]) -> None:
    while parents:
        roots = {node for node, above in parents.items() if not above}
        assert roots, f"a cycle among {sorted(parents)[:10]}"
        parents = {node: above - roots for node, above in parents.items() if node not in roots}


@each_build
def test_the_structure_is_one(name: str) -> None:
    memory = built(name)
    assert_a_structure(list(memory.nodes()), STORY)
    assert memory.held >= 0
    assert json.loads(json.dumps(memory.report())) == memory.report()


@each_build
def test_the_prompts_and_embeddings_used_are_those_that_the_class_declares(name: str) -> None:
    made = build(name)
    recalls(made.memory)
    known = Prompts().digest(made.memory.PROMPTS)
    assert {request.purpose.replace(".", "/") for request in made.llm.requests} <= set(known)
    if made.embedder.texts and made.memory.EMBEDS_UNITS:
        assert any(unit.text in made.embedder.texts for unit in STORY)


if __name__ == "__main__":
    print(json.dumps({memory_name: spelled_or_broken(memory_name) for memory_name in BUILDS}))
