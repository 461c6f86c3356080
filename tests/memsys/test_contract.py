"""What every memory keeps to, whatever its method: each file of conf/memory is built with the offline engine and tried.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import MemorySystem, NodeView, Recall
from memsys.llm.meter import Metered, metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import LLM, Completion, Request
from memsys.prompts import Prompts

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "conf" / "memory").glob("*.yaml"))
SERVICES = {"llm", "probe", "embedder", "prompts", "rng"}
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
each_memory = pytest.mark.parametrize("name", NAMES)


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
    given = {service: value for service, value in services.items() if service in takes}
    quick = {key: value for key, value in QUICK.items() if key in takes}
    return make(**(given | quick | settings))


def feed(memory: MemorySystem, units: Sequence[Unit], first: int = 0, last: int | None = None) -> MemorySystem:
    """Write units[first:last] of a history and consolidate; a session ends where the whole history says."""
    last = len(units) if last is None else last
    for index in range(first, last):
        memory.write(units[index])
        if index + 1 == len(units) or units[index + 1].session_id != units[index].session_id:
            memory.end_session(units[index].session_id)
    memory.consolidate()
    return memory


@cache
def built(name: str, size: int = len(STORY)) -> MemorySystem:
    """The memory fed with the story's first units; shared by the tests that leave it as it is."""
    return feed(fresh(name), STORY[:size])


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


@each_memory
def test_what_is_recalled_stands_for_what_was_written(name: str) -> None:
    for recall in recalls(built(name)):
        assert_sound(recall, STORY)
        assert all(item.text.strip() for item in recall.items)


@each_memory
def test_a_memory_half_way_knows_the_first_half_only(name: str) -> None:
    for recall in recalls(built(name, 20)):
        assert_sound(recall, STORY[:20])


@each_memory
def test_reading_leaves_the_memory_as_it_was(name: str) -> None:
    memory = feed(fresh(name), STORY, 0, 23)  # within a session
    before = picture([vars(memory), list(memory.nodes()), memory.report(), memory.held])
    first = recalls(memory)
    assert recalls(memory) == first
    assert recalls(memory, QUESTIONS[::-1]) == first[::-1]
    assert picture([vars(memory), list(memory.nodes()), memory.report(), memory.held]) == before


@each_memory
def test_reads_at_the_same_time_recall_the_same(name: str) -> None:
    memory, gate = feed(fresh(name), STORY), threading.Barrier(8)

    def read_all(turn: int) -> list[Recall]:
        gate.wait(timeout=60)
        order = [*QUESTIONS[turn % 5 :], *QUESTIONS[: turn % 5]]
        found = dict(zip((question.id for question in order), recalls(memory, order), strict=True))
        return [found[question.id] for question in QUESTIONS]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read_all, range(8))) == [recalls(built(name))] * 8


@each_memory
def test_two_memories_share_nothing(name: str) -> None:
    first = feed(fresh(name), STORY)
    before, held = recalls(first), picture(vars(first))
    second = feed(fresh(name), OTHER)
    for recall in recalls(second):
        assert_sound(recall, OTHER)
    assert picture(vars(first)) == held
    assert recalls(first) == before


@each_memory
def test_the_same_history_is_recalled_the_same(name: str) -> None:
    again = feed(fresh(name), STORY)
    assert recalls(again) == recalls(built(name))
    assert picture(list(again.nodes())) == picture(list(built(name).nodes()))


@cache
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


@each_memory
def test_another_process_recalls_the_same(name: str) -> None:
    assert from_another_process()[name] == spelled(name)


@each_memory
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


@each_memory
def test_a_memory_is_asked_with_questions_and_never_sees_gold(name: str) -> None:
    kind = type(built(name))
    assert get_type_hints(kind.read)["question"] is Question
    assert list(inspect.signature(kind.read).parameters) == ["self", "question"]
    assert not {"Gold", "Case"} & set(vars(sys.modules[kind.__module__]))


# --- settings ----------------------------------------------------------------------------------------------------------


@each_memory
def test_the_file_gives_every_setting_its_value(name: str) -> None:
    """A setting missing from the YAML is missing from the run's record."""
    signature = inspect.signature(factory(name).func)  # type: ignore[attr-defined]
    assert set(factory(name).keywords) == set(signature.parameters) - SERVICES  # type: ignore[attr-defined]


@each_memory
def test_a_k_of_zero_is_refused_by_name(name: str) -> None:
    if "k" in inspect.signature(factory(name)).parameters:
        with pytest.raises(ValueError, match=r"\bk\b.*0"):
            fresh(name, k=0)


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


@each_memory
def test_an_unknown_choice_is_refused_naming_the_known_ones(name: str) -> None:
    for setting, parameter in inspect.signature(factory(name)).parameters.items():
        if isinstance(parameter.default, str) and parameter.default.isidentifier():
            assert parameter.default in choices(name, setting)


def alternatives(name: str, knob: str) -> list[Any]:
    """Other values of a read knob: those of the method's other files, every other choice of a word, one other number."""
    value = getattr(built(name, 20), knob)
    annotation = str(inspect.signature(factory(name)).parameters[knob].annotation)
    variants = [other for other in NAMES if factory(other).func is factory(name).func]  # type: ignore[attr-defined]
    others = [factory(other).keywords[knob] for other in variants]  # type: ignore[attr-defined]
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


@each_memory
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


@each_memory
def test_what_reading_alone_looks_at_is_a_read_knob_and_nothing_else_is(name: str) -> None:
    """Else runs that could share a build do not, or runs share one that is not theirs."""
    kind = type(built(name, 20))
    settings = set(inspect.signature(kind).parameters) - SERVICES - {"inner", "mutate_on_read"}  # which never shares
    reading, building = reached(kind, ["read"]), reached(kind, ["write", "end_session", "consolidate"])
    assert settings & (reading - building) <= set(kind.READ_KNOBS)
    assert not set(kind.READ_KNOBS) & building


# --- consolidation -----------------------------------------------------------------------------------------------------


@each_memory
def test_consolidation_is_provisional(name: str) -> None:
    # The break falls within a session, as questions may.
    memory = fresh(name)
    feed(memory, STORY, 0, 23)
    recalls(memory)
    feed(memory, STORY, 23)
    assert recalls(memory) == recalls(built(name))
    assert memory.held == built(name).held


@each_memory
def test_consolidating_twice_is_consolidating_once(name: str) -> None:
    memory = feed(fresh(name), STORY[:23])
    before = recalls(memory), picture(list(memory.nodes())), memory.report(), memory.held
    memory.consolidate()
    assert (recalls(memory), picture(list(memory.nodes())), memory.report(), memory.held) == before


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


@each_memory
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


@each_memory
def test_an_empty_history_is_an_empty_recall(name: str) -> None:
    memory = fresh(name)
    memory.consolidate()
    assert all(recall.items == () for recall in recalls(memory))
    assert (list(memory.nodes()), memory.held) == ([], 0)
    json.dumps(memory.report())


@each_memory
def test_a_single_unit_can_be_recalled(name: str) -> None:
    for recall in recalls(feed(fresh(name), STORY[:1])):
        assert_sound(recall, STORY[:1])


@each_memory
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


@each_memory
@pytest.mark.parametrize("babble", GARBAGE)
def test_a_model_that_babbles_breaks_nothing(name: str, babble: str) -> None:
    with metering() as ledger:
        memory = feed(fresh(name, Metered(Babble(GARBAGE[babble]()))), STORY[:14])
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


@each_memory
def test_the_structure_is_one(name: str) -> None:
    memory = built(name)
    assert_a_structure(list(memory.nodes()), STORY)
    assert memory.held >= 0
    assert json.loads(json.dumps(memory.report())) == memory.report()


@each_memory
def test_prompts_come_from_the_folders_that_the_run_records(name: str) -> None:
    llm = Recorder()
    memory = feed(fresh(name, llm), STORY)
    recalls(memory)
    known = Prompts().digest(memory.PROMPTS)
    assert {request.purpose.replace(".", "/") for request in llm.requests} <= set(known)


class Overheard(HashingEmbedder):
    """Remembers what it was asked to embed."""

    def __init__(self) -> None:
        super().__init__(64)
        self.texts: set[str] = set()

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        self.texts |= set(texts)
        return super().embed(texts, query=query)


@each_memory
def test_a_memory_that_embeds_no_unit_says_so(name: str) -> None:
    if "embedder" not in inspect.signature(factory(name)).parameters:
        return
    overheard = Overheard()
    memory = feed(fresh(name, embedder=overheard), STORY)
    if overheard.texts and memory.EMBEDS_UNITS:
        assert any(unit.text in overheard.texts for unit in STORY)


if __name__ == "__main__":
    print(json.dumps({memory_name: spelled_or_broken(memory_name) for memory_name in NAMES}))
