"""What every memory keeps to, whatever its method: the stories that it is told, how it is built, and one function a promise.

A promise is a function of a file name of conf/memory. It builds that memory with the offline engine and asserts. `PROMISES` holds
them under their names in words; `test_contract.py` asks them of the memories of the tree, `systems/test_released.py` of a toy
product, `services/test_http.py` of the reference service. Those two replace `stated` and `STANDS_FOR` first.

Files that differ in read knobs alone build the same memory: one of them answers for the build, and each of them for what it recalls
(`OF_READING`).
"""

from __future__ import annotations

import datetime as real
import itertools
import json
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import memory_stories as stories
import numpy as np
import pytest
from memory_stories import (
    NAMES,
    OTHER,
    PROMPTS,
    QUESTIONS,
    READERS,
    STORY,
    STRANGE,
    Recorder,
    assert_sound,
    build,
    built,
    class_of,
    feed,
    fresh,
    parameters,
    picture,
    recalled,
    recalls,
    settings_of,
    turn_ids,
)

from data_loaders.schema import Asker, Question, Unit
from memsys.interface import NodeView, Recall, setting, tuned
from memsys.llm.meter import Metered, metering
from memsys.llm.protocol import Completion, Request

Promise = Callable[[str], None]
PROMISES: dict[str, Promise] = {}
"""The name of a promise, in words -> the function that asserts it of one memory."""
OF_READING: set[str] = set()
"""Promises that are asked of each file; the others are asked of one file of each build."""


def of_building(promise: Promise) -> Promise:
    PROMISES[promise.__name__.replace("_", " ")] = promise
    return promise


def of_reading(promise: Promise) -> Promise:
    OF_READING.add(promise.__name__.replace("_", " "))
    return of_building(promise)


# --- recall ------------------------------------------------------------------------------------------------------------


@of_reading
def what_is_recalled_stands_for_what_was_written_so_far(name: str) -> None:
    for size in (1, 20, len(STORY)):
        for recall in recalled(name, size):
            assert_sound(recall, STORY[:size])
            assert all(item.text.strip() for item in recall.items)


@of_reading
def who_asks_changes_a_recall_only_where_the_memory_says_so(name: str) -> None:
    """`MemorySystem.uses_asker`: of memories that answer themselves, and of services whose search names the asker."""
    memory = built(name)
    by_ines = [replace(question, asker=Asker("Ines", "owner", ("owns the loom",))) for question in QUESTIONS]
    assert memory.uses_asker or recalls(memory, by_ines) == recalled(name)


@of_reading
def reading_leaves_the_memory_as_it_was(name: str) -> None:
    memory = feed(fresh(name), STORY, 0, 23)  # within a session
    before = picture([vars(memory), list(memory.nodes()), memory.report(), memory.held])
    first = recalls(memory)
    assert recalls(memory) == first
    assert recalls(memory, QUESTIONS[::-1]) == first[::-1]
    assert picture([vars(memory), list(memory.nodes()), memory.report(), memory.held]) == before


@of_building
def the_same_history_is_recalled_the_same_by_readers_at_the_same_time(name: str) -> None:
    memory, gate = feed(fresh(name), STORY), threading.Barrier(READERS)

    def read_all(turn: int) -> list[Recall]:
        gate.wait(timeout=60)
        order = [*QUESTIONS[turn % 5 :], *QUESTIONS[: turn % 5]]
        found = dict(zip((question.id for question in order), recalls(memory, order), strict=True))
        return [found[question.id] for question in QUESTIONS]

    with ThreadPoolExecutor(READERS) as pool:
        assert list(pool.map(read_all, range(READERS))) == [recalled(name)] * READERS
    assert picture(list(memory.nodes())) == picture(list(built(name).nodes()))


@of_reading
def a_file_that_differs_in_reading_alone_is_the_same_build_read_otherwise(name: str) -> None:
    memory = built(stories.STANDS_FOR[name], 20)
    swept = tuned(memory, {knob: setting(built(name, 20), knob) for knob in memory.READ_KNOBS})
    assert recalls(swept) == recalled(name, 20)
    assert picture(list(swept.nodes())) == picture(list(built(name, 20).nodes()))


@of_building
def two_memories_share_nothing(name: str) -> None:
    first = built(name)
    before, held = recalled(name), picture(vars(first))
    second = feed(fresh(name), OTHER)
    for recall in recalls(second):
        assert_sound(recall, OTHER)
    assert picture(vars(first)) == held
    assert recalls(first) == before


@of_reading
def no_more_items_than_k_are_recalled(name: str) -> None:
    memory = built(name)
    k = settings_of(name).get("k")
    if k is None or memory.PAST_K:
        assert k is None or len(memory.PAST_K.split()) > 3, "PAST_K is the reason, as a sentence"
        return
    for least in {1, 3, k} if "k" in memory.READ_KNOBS else {k}:
        swept = tuned(memory, {"k": least})
        assert all(len(recall.items) <= least for recall in recalls(swept))


# --- settings ----------------------------------------------------------------------------------------------------------


def refused(name: str, why: str, **settings: Any) -> bool:
    try:
        fresh(name, **settings)
    except ValueError as error:
        return bool(re.search(why, str(error)))
    return False


@cache
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


def alternatives(name: str, knob: str) -> list[Any]:
    """Other values of a read knob: those of the method's other files, every other choice of a word, one other number."""
    value = setting(built(name, 20), knob)
    annotation = str(parameters(class_of(name))[knob].annotation)
    others = [settings_of(other)[knob] for other in NAMES if class_of(other) is class_of(name)]
    if isinstance(value, bool):
        others += [not value]
    elif isinstance(value, str) or "Literal" in annotation:
        others += choices(name, knob)
    elif isinstance(value, int):
        others += [n for n in (value // 2, value + 1) if accepted(name, knob, n)][:1]
    elif isinstance(value, float):
        others += [x for x in ((value / 2, value * 2) if value > 0 else (0.1,)) if accepted(name, knob, x)][:1]
    elif isinstance(value, tuple | list):
        others += [[*value[::-1]] or ["the"]]
    elif "float" in annotation and "Sequence" not in annotation:
        others += [0.1]
    elif "int" in annotation:
        others += [n for n in (60, 3) if accepted(name, knob, n)][:1]
    return [other for place, other in enumerate(others) if other != value and other not in others[:place]]


@of_building
def a_knob_turned_on_a_copy_is_a_build_with_that_value(name: str) -> None:
    memory, before = built(name, 20), recalled(name, 20)
    for knob in memory.READ_KNOBS:
        values = alternatives(name, knob)
        assert values, f"no other value of {knob} is known: a variant's file or the annotation must tell one"
        for value in values:
            swept = tuned(memory, {knob: value})
            assert recalls(swept) == recalls(feed(fresh(name, **{knob: value}), STORY[:20])), f"{knob}={value}"
    assert recalls(memory) == before


# --- consolidation -----------------------------------------------------------------------------------------------------


@of_building
def consolidation_is_provisional_and_a_second_one_changes_nothing(name: str) -> None:
    memory = fresh(name)
    feed(memory, STORY, 0, 23)  # the break falls within a session, as questions may
    before = recalls(memory), picture(list(memory.nodes())), memory.report(), memory.held
    memory.consolidate()
    assert (recalls(memory), picture(list(memory.nodes())), memory.report(), memory.held) == before
    feed(memory, STORY, 23)
    assert recalls(memory) == recalled(name)
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


def to_2099(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clocks that a memory could look at say 31 December 2099."""
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


@of_building
def no_clock_is_looked_at(name: str) -> None:
    llm = Recorder()
    today = recalled(name)
    with pytest.MonkeyPatch.context() as monkeypatch:
        to_2099(monkeypatch)
        memory = feed(fresh(name, llm), STORY)
        found = recalls(memory)
    shown = [text for request in llm.requests for _, text in request.messages]
    shown += [f"{node.text} {node.start} {node.end}" for node in memory.nodes()]
    shown += [repr(found), repr(picture(vars(memory)))]
    assert not [text for text in shown if "2099" in text and re.search(r"(?<![\d.])2099(?!\d)", text)]
    assert found == today


# --- odd input ---------------------------------------------------------------------------------------------------------


@of_building
def an_empty_history_is_an_empty_recall(name: str) -> None:
    memory = fresh(name)
    memory.consolidate()
    assert all(recall.items == () for recall in recalls(memory))
    assert (list(memory.nodes()), memory.held) == ([], 0)
    json.dumps(memory.report())


@of_building
def strange_units_do_no_harm(name: str) -> None:
    memory = feed(fresh(name), STRANGE)
    asked = ("", "?", "👩‍🌾 מי זרעה?", "$question ${x} {0}", "tomato " * 800, "Compose a limerick!")
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


@of_building
def a_model_that_babbles_breaks_nothing(name: str) -> None:
    told = STORY[:14]
    for babble, reply in GARBAGE.items():
        with metering() as ledger:
            memory = feed(fresh(name, Metered(Babble(reply()))), told)
            for recall in recalls(memory):
                assert_sound(recall, told)
            assert_a_structure(list(memory.nodes()), told)
            json.dumps(memory.report())
        if babble == "empty" and ledger.calls:
            assert sum(ledger.parse_failures.values()) >= sum(ledger.calls.values())
            assert ledger.notes, "a fallback was taken and not counted"


# --- structure ---------------------------------------------------------------------------------------------------------


def assert_a_structure(nodes: Sequence[NodeView], units: Sequence[Unit]) -> None:
    by_id, written = {node.id: node for node in nodes}, turn_ids(units)
    assert len(by_id) == len(nodes), "two nodes have the same id"
    for node in nodes:
        assert set(node.parents) <= set(by_id), f"{node.id} has a parent that does not exist"
        assert set(node.sources) <= written, f"{node.id} names turns that were never written"
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


@of_building
def the_structure_is_one(name: str) -> None:
    memory = built(name)
    assert_a_structure(list(memory.nodes()), STORY)
    assert memory.held >= 0
    assert json.loads(json.dumps(memory.report())) == memory.report()


@of_building
def the_prompts_and_embeddings_used_are_those_that_the_class_declares(name: str) -> None:
    made = build(name)
    recalls(made.memory)
    known = PROMPTS.digest(made.memory.PROMPTS)
    assert {request.purpose.replace(".", "/") for request in made.llm.requests} <= set(known)
    if made.embedder.texts and made.memory.EMBEDS_UNITS:
        assert any(unit.text in made.embedder.texts for unit in STORY)
