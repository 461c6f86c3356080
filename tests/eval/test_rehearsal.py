"""A memory lives through a made-up history before anything is timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from data_loaders.schema import Question, Unit
from eval.files.store import read_lines
from eval.running import work
from eval.running.loop import run_all
from eval.running.work import made_up, rehearse
from memsys.interface import Item, MemorySystem, Recall
from memsys.prompts import Prompts

pytestmark = pytest.mark.slow

UNIT = {"rule": "utterance"}


class Mute(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        raise ValueError("not over made-up words")


class Compiling(MemorySystem):
    """Works for long when its process first writes, as a library that compiles does."""

    compiled: ClassVar[list[str]] = []

    def __init__(self, how: str = "umap", size: int = 1, breaks: bool = False) -> None:
        self.how, self.breaks = how, breaks

    def write(self, unit: Unit) -> None:
        if self.breaks:
            raise Mute
        if self.how not in self.compiled:
            self.compiled.append(self.how)
            until = time.thread_time() + 0.3
            while time.thread_time() < until:
                pass

    def read(self, question: Question) -> Recall:
        return Recall(())


class Remote(Compiling):
    """Its writes leave this process."""

    REHEARSED: ClassVar = False


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(work, "_done", set())
    monkeypatch.setattr(Compiling, "compiled", [])
    return


def test_what_a_first_build_compiles_is_not_its_own_cpu(make_run: Any) -> None:
    build = partial(Compiling)
    run = make_run([replace(made_up(), id="c")], build=build)
    timed = replace(run, rehearse=partial(rehearse, build, dict(run.unit), Prompts()))
    run_all([timed])
    (case,) = (timed.folder / "cases").iterdir()
    own = [line["own_cpu_seconds"] for line in read_lines(case / "effort.jsonl") if line["phase"] == "write"]
    assert Compiling.compiled == ["umap"]
    assert max(own) < 0.15  # thread time: what other processes do is not in it


def test_a_case_that_is_complete_is_not_rehearsed(make_run: Any) -> None:
    run = make_run([replace(made_up(), id="c")], build=partial(Compiling))
    run_all([run])
    calls: list[str] = []
    run_all([replace(run, rehearse=lambda: calls.append("rehearsed"))])
    assert calls == []


def test_a_memory_that_hangs_while_it_is_rehearsed_has_begun_for_the_progress_line(make_run: Any) -> None:
    run = make_run([replace(made_up(), id="c")], build=partial(Compiling))
    seen: list[str] = []
    run_all(
        [replace(run, rehearse=lambda: seen.append("rehearsed"))], on_progress=lambda step: seen.append(step.outcome)
    )
    assert seen[:2] == ["begun", "rehearsed"]


def test_each_choice_of_a_memory_is_rehearsed_once_whatever_its_sizes() -> None:
    for how, size in (("umap", 1), ("umap", 2), ("pca", 1)):
        rehearse(partial(Compiling, how=how, size=size), UNIT, Prompts())
    assert Compiling.compiled == ["umap", "pca"]


def test_a_memory_whose_writes_leave_the_process_is_not_rehearsed() -> None:
    rehearse(partial(Remote), UNIT, Prompts())
    assert Remote.compiled == []


def test_a_rehearsal_that_fails_is_said_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rehearse(partial(Compiling, breaks=True), UNIT, Prompts())
    assert "Compiling could not be rehearsed (Mute: no text (ValueError))" in capsys.readouterr().err


class Returning(Compiling):
    """Recalls what it is told."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what

    def read(self, question: Question) -> Recall:
        recall: Recall = self.what
        return recall


def test_what_is_recalled_in_another_type_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    right = Item("1", "a text", 0.5, ("t1",))
    for what, said in [
        (["a text"], "read returned list, not a Recall"),
        (None, "read returned NoneType, not a Recall"),
        (Recall(("a text",)), "an item is str"),  # type: ignore[arg-type]
        (Recall(item for item in [right]), "items is generator"),  # type: ignore[arg-type]
        (Recall((replace(right, id=1),)), "id of an item is int"),  # type: ignore[arg-type]
        (Recall((replace(right, text=None),)), "text of an item is NoneType"),  # type: ignore[arg-type]
        (Recall((replace(right, sources="t1"),)), "sources of an item is str"),  # type: ignore[arg-type]
        (Recall((replace(right, sources=(1,)),)), "a source of an item is int"),  # type: ignore[arg-type]
        (Recall((), answer=5), "answer is int"),  # type: ignore[arg-type]
        (Recall((right, replace(right, score=np.float32(0.5))), answer="yes"), ""),  # type: ignore[arg-type]
    ]:
        work._done.clear()
        rehearse(partial(Returning, what), UNIT, Prompts())
        noted = capsys.readouterr().err
        assert noted.endswith(f"{said})\n") if said else noted == ""


class Ending(Compiling):
    def report(self) -> dict[str, Any]:
        return {"names": {"a set"}}


def test_a_report_that_is_no_json_is_named_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    rehearse(Ending, UNIT, Prompts())
    assert "Ending could not be rehearsed (TypeError: " in capsys.readouterr().err


def test_the_made_up_history_is_the_same_every_time() -> None:
    assert made_up() == made_up()
    assert len(made_up().turns) == work.SESSIONS * work.TURNS
