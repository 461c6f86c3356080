"""Test whether the answer key reaches a memory: run it on data with marked gold and search all that memory and models receive.

Every text of the gold (answers, evidence, category, groups, the tempting answer, details) is replaced by a mark that occurs nowhere else.
The memory is built and read as in any run. These are searched for marks: the arguments of its constructor, each unit and question that
it gets, each embedded text, each request to a model with its fields, and each file that the run writes. A memory may get objects of the
types `Unit` and `Question` only: an object of another type could carry gold where no text shows it.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from data_loaders.raw import as_lazy
from data_loaders.schema import Case, Gold, Question, Unit
from eval.files.run_folder import RunFolder, read_predictions
from eval.files.store import RunError
from eval.running.loop import run_all
from eval.running.run import Run, layers, no_rehearsal
from memsys.interface import MemorySystem, Recall
from memsys.llm.protocol import Completion, Request

MARK = "goldmarkzq"
"""Beginning of every mark; the rest of a mark identifies its question and field."""
_MARKED = re.compile(rf"{MARK}-([\w.-]*)", re.IGNORECASE)  # memories may fold case


@dataclass(frozen=True, slots=True)
class Report:
    """Counts of searched objects, and the leaks."""

    looked: Mapping[str, int]
    """Objects by channel: constructed, written, read, embedded, asked, files."""
    leaks: tuple[str, ...]
    """Channel and mark of each, in alphabetical order."""
    marks: int
    """Gold texts that were marked."""


class Watch:
    """Searches texts and objects for marks. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.looked: Counter[str] = Counter()
        self.leaks: set[str] = set()

    def look(self, channel: str, text: str) -> None:
        """Search a text for marks."""
        marks = _MARKED.findall(text)
        with self._lock:
            self.looked[channel] += 1
            self.leaks |= {f"{channel}: {mark}" for mark in marks}

    def handed(self, channel: str, thing: object, kind: type) -> None:
        """Search an object that a memory is handed; it must be of exactly this kind."""
        if type(thing) is not kind:
            with self._lock:
                self.leaks.add(f"{channel}: a {type(thing).__name__} in place of a {kind.__name__}")
        self.look(channel, repr(thing))


def check(run: Run, threads: int | None = None) -> Report:
    """Run a memory on marked data in the run's folder, which should be empty, and search everything.

    Raises:
        RunError: the run is a control, which is given the answer key; or no mark was found, but questions ended in an error, so that not
            everything was searched.
    """
    if run.control is not None:
        raise RunError(f"{run.name} is a control: it is given the answer key on purpose")
    watch, made = Watch(), [marked(case) for case in run.cases]
    cases = as_lazy([case for case, _ in made])
    searched = ("llm", "reader", "probe", "embedder")
    watching: dict[str, Any] = {name: _Watched(getattr(run.services, name), watch) for name in searched}
    services = replace(run.services, **watching)
    build = watched(run.build, watch)
    alone = replace(run, cases=cases, build=build, services=services, rehearse=no_rehearsal, shared="")
    run_all([alone], threads=threads)
    for path in sorted(each for each in run.folder.rglob("*") if each.is_file()):
        watch.look("files", path.read_bytes().decode("latin-1"))
    answered = [each for case in RunFolder(run.folder).cases() for each in read_predictions(case).values()]
    failed = [each.error for each in answered if each.outcome == "error"]
    if failed and not watch.leaks:
        ended = f"{len(failed)} of {len(answered)} questions ended in an error"
        raise RunError(f"{ended}, so the search is incomplete: {min(failed)}")
    return Report(dict(watch.looked), tuple(sorted(watch.leaks)), sum(count for _, count in made))


def marked(case: Case) -> tuple[Case, int]:
    """The case with every text of its gold replaced by a mark, and the number of marks."""
    golds = [(question, _marked_gold(gold, f"{case.id}.{question.id}")) for question, gold in case.questions]
    return replace(case, questions=tuple(golds)), len(_MARKED.findall(repr([gold for _, gold in golds])))


def _marked_gold(gold: Gold, where: str) -> Gold:
    place = re.sub(r"[^\w-]", "_", where)

    def mark(field: str) -> str:
        return f"{MARK}-{place}.{field}"

    return Gold(
        tuple(mark(f"answer{number}") for number in range(max(1, len(gold.answers)))),
        tuple(mark(f"evidence{number}") for number in range(max(1, len(gold.evidence)))),
        mark("category"),
        gold.answerable,
        mark("trap"),
        {name: mark(re.sub(r"\W", "_", name)) for name in ("reference", *gold.detail)},
        tuple(mark(f"group{number}") for number in range(max(1, len(gold.groups)))),
    )


def watched(build: Callable[..., MemorySystem], watch: Watch) -> Callable[..., MemorySystem]:
    """The same build of a memory; its methods show their arguments to `watch`."""
    memory: type[MemorySystem]
    memory, given = next(layers(build))
    assert isinstance(memory, type), "a memory is built by its class"

    def construct(self: MemorySystem, **given: Any) -> None:
        watch.look("constructed", repr(given))
        memory.__init__(self, **given)

    def write(self: MemorySystem, unit: Unit) -> None:
        watch.handed("written", unit, Unit)
        memory.write(self, unit)

    def end_session(self: MemorySystem, session_id: str) -> None:
        watch.handed("written", session_id, str)
        memory.end_session(self, session_id)

    def read(self: MemorySystem, question: Question) -> Recall:
        watch.handed("read", question, Question)
        return memory.read(self, question)

    methods = {"__init__": construct, "write": write, "end_session": end_session, "read": read}
    # The run reads the signature to know which services the memory takes.
    names = {"__signature__": inspect.signature(memory), "__module__": memory.__module__, "__doc__": memory.__doc__}
    return partial(type(memory.__name__, (memory,), {**names, **methods}), **given)


class _Watched:
    """A model whose requests are searched, also the fields that only offline engines read, or an embedder whose texts are."""

    def __init__(self, service: Any, watch: Watch) -> None:
        self._service, self._watch = service, watch

    def submit(self, request: Request) -> Future[Completion]:
        self._watch.look("asked", repr((request.messages, dict(request.fields), request.schema)))
        called: Future[Completion] = self._service.submit(request)
        return called

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        for text in texts:
            self._watch.look("embedded", text)
        return np.asarray(self._service.embed(texts, query=query))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)
