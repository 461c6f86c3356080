"""The memory contract (`memory_contract.py`), asked of each file of conf/memory; and what settings promise, asked of all files at once.

Released products and services are not there: `tests/memsys/systems/test_released.py` puts a toy in their place, and
`tests/memsys/services/test_http.py` the reference service. `make quick` tries one memory of each kind.

Run as a program it prints what every memory recalls, so that two processes can be compared.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, get_type_hints

import pytest
from memory_contract import OF_READING, PROMISES, choices, refused
from memory_stories import (
    BUILDS,
    NAMES,
    ROOT,
    SERVICES,
    STANDS_FOR,
    built,
    class_of,
    parameters,
    recalls,
    settings_of,
)

from data_loaders.schema import Question
from memsys.interface import MemorySystem, Settings

OF_EACH_KIND = {"nothing", "bm25", "mem0", "segtree", "hipporag", "naive_rag_pruned"}
"""A control, an index, a store that a model keeps, a tree, a graph, and a wrapper: what `make quick` tries."""


@pytest.mark.parametrize(
    "name", [name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow) for name in BUILDS]
)
def test_a_memory_keeps_every_promise(name: str, subtests: pytest.Subtests) -> None:
    files = [file for file in NAMES if STANDS_FOR[file] == name]
    for words, promise in PROMISES.items():
        for file in files if words in OF_READING else [name]:
            with subtests.test(words, memory=file):
                promise(file)


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


@pytest.mark.integration
def test_another_process_recalls_the_same() -> None:
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(from_another_process)
        here = {name: spelled_or_broken(name) for name in BUILDS}
    assert [name for name in BUILDS if other.result()[name] != here[name]] == []
    assert [said for said in here.values() if isinstance(said, str)] == []


def test_a_memory_is_asked_with_questions_and_never_sees_gold() -> None:
    for kind in map(class_of, BUILDS):
        assert get_type_hints(kind.read)["question"] is Question, kind
        assert list(inspect.signature(kind.read).parameters) == ["self", "question"], kind
        assert not {"Gold", "Case"} & set(vars(sys.modules[kind.__module__])), kind


def test_a_file_gives_every_setting_its_value() -> None:
    """A setting missing from the YAML is missing from the run's record."""
    named = {name: set(settings_of(name)) ^ (set(parameters(class_of(name))) - SERVICES) for name in NAMES}
    assert {name: settings for name, settings in named.items() if settings} == {}


def test_the_file_called_as_a_method_holds_the_defaults_of_its_class() -> None:
    """Of a module with several classes it is the file called as the class; a wrapper has a file for each memory in it."""
    differing = {}
    for kind in set(map(class_of, NAMES)):
        of_class = [name for name in NAMES if class_of(name) is kind]
        module, snake = kind.__module__.split(".")[-1], re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
        for name in [name for name in of_class if name in (module, snake)] or of_class:
            defaults = {key: value.default for key, value in parameters(kind).items()}
            given = {key: value for key, value in settings_of(name).items() if key != "inner"}
            wrong = [key for key, value in given.items() if plain(value) != plain(defaults[key])]
            differing |= {name: wrong} if wrong else {}
    assert differing == {}


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_a_k_of_zero_is_refused_by_name() -> None:
    asked = [name for name in BUILDS if "k" in parameters(class_of(name))]
    assert [name for name in asked if not refused(name, r"\bk\b.*0", k=0)] == []


@pytest.mark.slow
def test_an_unknown_choice_is_refused_naming_the_known_ones() -> None:
    asked, of_each_class = 0, {class_of(name): name for name in BUILDS}
    for name in of_each_class.values():
        for setting, parameter in parameters(class_of(name)).items():
            if isinstance(parameter.default, str) and parameter.default.isidentifier():
                assert parameter.default in choices(name, setting), f"{name}: {setting}"
                asked += 1
    # A checkout with a few memories of its own may have no choices.
    assert asked > len(of_each_class) or len(BUILDS) < 10


@cache
def methods_of(owner: type) -> dict[str, ast.FunctionDef]:
    body = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    return {node.name: node for node in ast.walk(body) if isinstance(node, ast.FunctionDef)}


def reached(kind: type[MemorySystem], roots: Sequence[str]) -> set[str]:
    """Names after `self.`, and after `self.` and a record, in these methods of a class and in those that they lead to.

    A record that is passed on whole counts as all of its settings.
    """
    methods: dict[str, ast.FunctionDef] = {}
    for owner in reversed([each for each in kind.__mro__ if each.__module__.startswith("memsys.")]):
        methods |= methods_of(owner)
    defaults = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
    records = {name: set(vars(record)) for name, record in defaults.items() if isinstance(record, Settings)}
    named: set[str] = set()
    open_ends = list(roots)
    while open_ends:
        if (method := methods.pop(open_ends.pop(), None)) is not None:
            found = set(spelled_after_self(method, records))
            named |= found
            open_ends += found
    return named


def spelled_after_self(method: ast.FunctionDef, records: Mapping[str, set[str]]) -> Iterator[str]:
    attributes = [node for node in ast.walk(method) if isinstance(node, ast.Attribute)]
    within = {id(node.value): node.attr for node in attributes}
    for node in attributes:
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            whole = records.get(node.attr, {node.attr})
            yield from {within[id(node)]} if node.attr in records and id(node) in within else whole


@pytest.mark.slow
def test_what_reading_alone_looks_at_is_a_read_knob_and_nothing_else_is() -> None:
    """Else runs that could share a build do not, or runs share one that is not theirs."""
    for kind in set(map(class_of, BUILDS)):
        settings = set(parameters(kind)) - SERVICES - {"inner", "mutate_on_read"}  # which never shares
        reading, building = reached(kind, ["read"]), reached(kind, ["write", "end_session", "consolidate"])
        assert settings & (reading - building) <= set(kind.READ_KNOBS), kind
        assert not set(kind.READ_KNOBS) & building, kind


if __name__ == "__main__":
    print(json.dumps({memory_name: spelled_or_broken(memory_name) for memory_name in BUILDS}))
