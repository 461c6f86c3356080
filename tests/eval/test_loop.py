"""The run loop: what is asked when, what is written down, what a failure and a kill leave behind."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
from scripted import ScriptedLLM
from small_history import FACTS, history

from data_loaders.schema import Case, DataError, Question, Unit
from data_loaders.units import make_units
from eval.files import store
from eval.files.run_folder import read_predictions
from eval.files.store import MOST_OPEN, Appender, RunError, locked, read_lines, safe_name
from eval.running.case import schedule
from eval.running.case_log import CaseLog
from eval.running.gold_evidence import gold_evidence
from eval.running.loop import run_all
from eval.running.run import Progress, Run, _guard_this_process, built
from memsys.inert import inert_output
from memsys.interface import Item, MemorySystem, NodeView, Recall, unit_item, with_settings
from memsys.llm import secrets, stopping
from memsys.llm.cache import CachedLLM
from memsys.llm.endpoint import Unreachable
from memsys.llm.meter import Metered
from memsys.llm.pricing import ModelSettings, SpendingCapReached
from memsys.llm.protocol import (
    LLM,
    Completion,
    ContextOverflow,
    EndOfRun,
    ModelError,
    PromptTruncated,
    Request,
    Stopped,
)
from memsys.llm.replies import why_none
from memsys.llm.store import CacheStore, DamagedCache
from memsys.systems.bm25 import BM25
from scripts.tables.captions import waivers

Make = Callable[..., Run]


class Diary(MemorySystem):
    """Recalls everything, and remembers in which order it was used."""

    def __init__(self, log: list[str], fail_at: str = "") -> None:
        self.log, self.fail_at = log, fail_at
        self.units: list[Unit] = []

    def write(self, unit: Unit) -> None:
        if unit.id.startswith(self.fail_at) and self.fail_at:
            raise ModelError("the summary failed")
        self.log.append(f"write {unit.turns[0].id}")
        self.units.append(unit)

    def end_session(self, session_id: str) -> None:
        self.log.append(f"end {session_id}")

    def consolidate(self) -> None:
        self.log.append("consolidate")

    def read(self, question: Question) -> Recall:
        self.log.append(f"read {question.id}")
        return Recall(tuple(unit_item(unit) for unit in self.units))

    def nodes(self) -> Iterator[NodeView]:
        for unit in self.units:
            yield NodeView(unit.id, (), 0, "leaf", unit.text, None, unit.turn_ids, unit.time, unit.time)


def answers(run: Run, case: Case) -> dict[str, Any]:
    return read_predictions(run.case_folder(case.id))


def bytes_of(run: Run) -> dict[str, bytes]:
    found = sorted(run.folder.glob("cases/*/predictions.jsonl")) + sorted(run.folder.glob("cases/*/items.jsonl"))
    return {str(path.relative_to(run.folder)): path.read_bytes() for path in found}


def test_a_case_is_written_consolidated_read_and_answered_in_that_order(make_run: Make) -> None:
    log: list[str] = []
    run = make_run([history(questions=2)], build=partial(Diary, log))
    run_all([run])
    writes = [
        "write s0:1",
        "write s0:3",
        "end s0",
        "write s1:1",
        "write s1:3",
        "end s1",
        "write s2:1",
        "write s2:3",
        "end s2",
    ]
    assert log[:10] == [*writes, "consolidate"]
    assert sorted(log[10:]) == ["read q0", "read q1"]


class Traced(Diary):
    """Notes how the message about a step that hangs would name each of its steps."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("write", "consolidate", "read", "report", "close"):
            self.log.append(stopping.where().partition(": ")[0])
        return super().__getattribute__(name)


def test_a_step_that_hangs_would_be_named_with_its_question(make_run: Make) -> None:
    log: list[str] = []
    case = history(questions=1)
    run = make_run([case], build=partial(Traced, log))
    run_all([run])
    steps = list(dict.fromkeys(line for line in log if line.startswith(" (")))
    unit = make_units(case.sessions, "ab_pair").units[0].id
    assert steps[0] == f" (write {unit} of run/{case.id}"
    assert steps[-4:] == [f" ({name} of run/{case.id}" for name in ("consolidate 0", "read q0", "structure", "close")]
    assert not stopping.where()


def test_a_question_in_mid_history_sees_only_what_was_lived_through(make_run: Make) -> None:
    log: list[str] = []
    case = history(questions=3, after={0: "", 1: "s0:4", 2: "s1:3"})
    run = make_run([case], build=partial(Diary, log))
    run_all([run])
    assert log.index("read q0") < log.index("write s0:1")
    assert log.index("write s0:3") < log.index("read q1") < log.index("write s1:1")
    # s1:3 is the first half of a pair that ends with s1:4: the pair is not yet lived through.
    assert log.index("write s1:1") < log.index("read q2") < log.index("write s1:3")
    assert len(answers(run, case)["q0"].items) == 0
    assert len(answers(run, case)["q1"].items) == 2


def test_a_question_after_an_unknown_turn_is_refused() -> None:
    case = history(questions=1, after={0: "s9:1"})
    with pytest.raises(DataError, match="q0 is asked after turn 's9:1'"):
        schedule(case, make_units(case.sessions, "ab_pair").units, [case.questions[0][0]])


def test_each_recalled_text_is_stored_once_and_predictions_hold_its_hash(make_run: Make) -> None:
    case = history()
    run = make_run([case], build=partial(Diary, []))
    run_all([run])
    items = read_lines(run.case_folder(case.id) / "items.jsonl")
    assert len(items) == 6
    keys = {item["key"] for item in items}
    assert all(set(line.items) == keys for line in answers(run, case).values())


def test_structure_and_vectors_are_dumped_at_the_end_of_a_build(make_run: Make) -> None:
    case = history()
    run = make_run([case], build=partial(Diary, []))
    run_all([run])
    nodes = read_lines(run.case_folder(case.id) / "nodes.jsonl")
    assert nodes[0]["sources"] == ["s0:1", "s0:2"]
    assert nodes[0]["start"] == "2023-05-07T13:00:00"


def test_a_failing_build_is_one_error_line_for_each_question_it_owed(make_run: Make) -> None:
    case = history(questions=4, after={0: "s0:4"})
    run = make_run([case], build=partial(Diary, [], "s1:1"))
    run_all([run])
    found = answers(run, case)
    assert found["q0"].outcome == "answered"
    assert {found[f"q{i}"].outcome for i in (1, 2, 3)} == {"error"}
    assert found["q1"].error.startswith("build: ModelError: the summary failed")
    assert "the summary failed" in (run.case_folder(case.id) / "errors.log").read_text()


class Fussy(Diary):
    def read(self, question: Question) -> Recall:
        if question.id == "q1":
            raise RuntimeError("no luck")
        return super().read(question)


def test_a_failing_read_is_an_error_line_and_the_others_go_on(make_run: Make) -> None:
    case = history(questions=3)
    run = make_run([case], build=partial(Fussy, []))
    run_all([run])
    assert [answers(run, case)[f"q{i}"].outcome for i in range(3)] == ["answered", "error", "answered"]
    assert not answers(run, case)["q1"].cut, "an answer that was never asked for"


class Restless(Diary):
    """Moves, leaves and replaces its process, forks (the child returns or raises), and changes shared settings."""

    def read(self, question: Question) -> Recall:
        does: dict[str, Callable[[], Any]] = {
            "q0": lambda: os.chdir("/"),
            "q3": lambda: os._exit(0),
            "q4": lambda: os.execvp("false", ["false"]),  # so that a missing guard fails the tests
            "q5": lambda: [sys.path.clear(), sys.setrecursionlimit(500)],
        }
        does.get(question.id, lambda: None)()
        if question.id in ("q1", "q2") and os.fork() == 0 and question.id == "q2":
            sys.exit(3)
        return super().read(question)


def test_a_memory_that_moves_leaves_or_forks_costs_its_own_questions_alone(make_run: Make) -> None:
    case, before = history(questions=6), (Path.cwd(), sys.path[:], sys.getrecursionlimit())
    run = make_run([case], build=partial(Restless, []))
    run_all([run])
    found = answers(run, case)
    assert [found[f"q{number}"].error for number in range(6)] == [
        "read: PermissionError: a memory must not change the working folder, where results are written: '/'",
        "",
        "",
        "read: SystemExit: 0",
        found["q4"].error,
        "",
    ]
    assert "a memory must not replace this process" in found["q4"].error
    assert before == (Path.cwd(), sys.path[:], sys.getrecursionlimit())
    assert [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)] == [1, 1]


class Closing(Diary):
    """Closes the standard streams, in each way that Python has."""

    def read(self, question: Question) -> Recall:
        ways: list[Callable[[], Any]] = [
            lambda: os.close(1),
            lambda: os.closerange(2, 9),
            lambda: os.close(fd=os.dup(1)),
            lambda: sys.stderr.close(),
        ]
        ways[int(question.id[1:])]()
        return super().read(question)


def test_a_memory_that_closes_a_standard_stream_costs_its_own_questions_alone(
    make_run: Make, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    close = os.close
    monkeypatch.setattr(os, "close", lambda fd: closed.append(fd) if fd < 3 else close(fd))
    monkeypatch.setattr(os, "closerange", lambda *ends: closed.append(ends))
    _guard_this_process.cache_clear()  # from here on, it guards the two above
    case = history(questions=4)
    run = make_run([case], build=partial(Closing, []))
    with inert_output():
        run_all([run])
        print("said", flush=True)
        print("said", file=sys.stderr, flush=True)
    _guard_this_process.cache_clear()  # the next memory of this process guards the real ones
    found = answers(run, case)
    assert [found[f"q{number}"].error for number in range(4)] == [
        "read: PermissionError: standard stream 1 must stay open",
        "read: PermissionError: standard stream 2 must stay open",
        "",
        "",
    ]
    assert (closed, *capfd.readouterr()) == ([], "said\n", "said\n")


class Wandering(Diary):
    """A thread of it changes the working folder."""

    def read(self, question: Question) -> Recall:
        thread = threading.Thread(target=os.chdir, args=("/",))
        thread.start()
        thread.join()
        return super().read(question)


def test_a_thread_that_changes_the_working_folder_is_named(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = replace(make_run([history(questions=1)], build=partial(Wandering, [])), folder=Path("here"))
    with pytest.raises(RunError, match=f"from {tmp_path} to /, so results are in both"):
        run_all([run])


@pytest.mark.slow
def test_a_thread_of_a_memory_does_not_end_the_process_with_0() -> None:
    code = "import os, threading; from eval.running.run import memorys_code\nwith memorys_code(): pass\n"
    code += "one = threading.Thread(target=os._exit, args=(0,)); one.start(); one.join()"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 1


class Broken(Diary):
    """Leaves the process, recalls wrong types, and fails after the last read."""

    def read(self, question: Question) -> Recall:
        if question.id == "q0":
            sys.exit(3)
        items = super().read(question).items
        return Recall(tuple(replace(item, id=1) for item in items) if question.id == "q1" else items)  # type: ignore[arg-type]

    def report(self) -> dict[str, Any]:
        return {"names": {"a set"}}

    def close(self) -> None:
        sys.exit("closed twice")


def test_a_memory_that_exits_recalls_wrong_types_or_fails_at_its_end_costs_its_own_questions_alone(
    make_run: Make,
) -> None:
    case = history(questions=3)
    run = make_run([case], build=partial(Broken, []))
    run_all([run])
    found = answers(run, case)
    assert [found[f"q{i}"].error for i in range(3)] == [
        "read: SystemExit: 3",
        "read: TypeError: read returned a Recall in which id of an item is int",
        "",
    ]
    assert found["q2"].outcome == "answered"
    (complete,) = read_lines(run.case_folder(case.id) / "case.json")
    assert complete["memory"]["report failed"].startswith("TypeError: ")
    assert complete["memory"]["close failed"] == "SystemExit: closed twice"
    assert "closed twice" in (run.case_folder(case.id) / "errors.log").read_text()
    said = "FAILED after the answers, which stand: close() of bm25 in 1 of 1 history: SystemExit: closed twice; "
    assert waivers([run])[-1].startswith(said)
    assert len(read_lines(run.case_folder(case.id) / "nodes.jsonl")) == 6, "the structure is saved nevertheless"


class Exiting(Diary):
    """It raises an error in one step."""

    def __init__(self, events: list[str], error: BaseException, step: str = "write") -> None:
        super().__init__(events)
        self.error = error
        setattr(self, step, self.fail)

    def fail(self, *_: object) -> None:
        raise self.error


class PanicException(BaseException):
    """Stands for what code in Rust raises when it panics."""


@pytest.mark.parametrize(
    "error",
    [
        PanicException("index out of bounds"),
        SystemExit("no key"),
        GeneratorExit("no key"),
        CancelledError("no key"),
        BaseExceptionGroup("no key", [GeneratorExit("at all")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_memory_that_exits_while_it_is_built_is_an_error_of_its_case(make_run: Make, error: BaseException) -> None:
    cases = [history("a"), history("b")]
    run = make_run(cases, build=partial(Exiting, [], error))
    run_all([run])
    (said,) = {line.error for case in cases for line in answers(run, case).values()}
    first = ", the first: GeneratorExit: at all" if isinstance(error, BaseExceptionGroup) else ""
    assert said == f"build: {type(error).__name__}: {error}{first}"


@pytest.mark.parametrize("step", ["write", "close"])
def test_a_group_of_errors_ends_the_run_if_one_of_them_does(make_run: Make, step: str) -> None:
    capped = ExceptionGroup("two calls", [ModelError("busy"), ExceptionGroup("one", [SpendingCapReached("max_usd=1")])])
    run = make_run([history()], build=partial(Exiting, [], capped, step))
    with pytest.raises(SpendingCapReached):
        run_all([run])
    assert bool(answers(run, history())) == (step == "close")


def test_a_failed_answer_is_retried_on_resume_and_the_others_are_kept(make_run: Make) -> None:
    case = history(questions=3)
    flaky = ScriptedLLM(
        lambda request: ModelError("busy") if "jam" in request.messages[-1][1].split("uestion")[-1] else "kept"
    )
    run = make_run([case], reader=Metered(flaky))
    run_all([run])
    assert [answers(run, case)[f"q{i}"].outcome for i in range(3)] == ["answered", "answered", "error"]
    mended = ScriptedLLM("new")
    run_all([make_run([case], reader=Metered(mended))])
    assert [answers(run, case)[f"q{i}"].answer for i in range(3)] == ["kept", "kept", "new"]
    assert len(mended.requests) == 1
    reads = [line for line in read_lines(run.case_folder(case.id) / "effort.jsonl") if line["phase"] == "read"]
    assert sorted(line["subject"] for line in reads) == ["q0", "q1", "q2"]


@pytest.mark.parametrize("reply", ["  \n", Completion("", stopped="empty", finish_reason="stop")])
def test_an_empty_reply_is_an_answer_that_is_not_asked_for_again(make_run: Make, reply: Any) -> None:
    """Every official scorer counts it as wrong; as an error it would leave the denominator."""
    case = history(questions=1)
    run_all([make_run([case], reader=Metered(ScriptedLLM({"*": [reply]})))])
    run = make_run([case], reader=Metered(ScriptedLLM("an answer at last")))
    run_all([run])
    only = answers(run, case)["q0"]
    assert (only.outcome, only.answer, only.error, only.empty) == ("answered", "", "", True)


@pytest.mark.parametrize("stopped", [kind for kind in get_args(Stopped) if kind not in ("", "cut", "empty")])
def test_a_question_without_an_answer_is_asked_again_by_the_next_run_and_replayed_by_a_replay(
    make_run: Make, tmp_path: Path, stopped: Any
) -> None:
    case, store = history(questions=1), CacheStore(tmp_path / "cache.sqlite")

    def lines(model: LLM | None) -> dict[str, bytes]:
        run = make_run([case], reader=Metered(CachedLLM(model, store, ModelSettings("m"), "here")))
        run_all([run])
        return bytes_of(run)

    def forget() -> None:
        shutil.rmtree(make_run([case]).folder)

    errored = lines(ScriptedLLM(Completion("", stopped=stopped, finish_reason="stop")))
    forget()
    assert lines(None) == errored
    mended = ScriptedLLM("Oaxaca")
    healthy = lines(mended)
    assert (len(mended.requests), healthy != errored) == (1, True)
    forget()
    assert lines(None) == healthy
    store.close()


class SelfAnswering(Diary):
    def read(self, question: Question) -> Recall:
        if question.id == "q0":
            return Recall((), answer="said it myself")
        return Recall((), aborted="walked out of the tree")


def test_a_memory_that_answers_itself_is_not_read_again_and_an_aborted_search_is_its_own_outcome(
    make_run: Make,
) -> None:
    case = history(questions=2)
    reader = ScriptedLLM({})
    run = make_run([case], build=partial(SelfAnswering, []), reader=Metered(reader))
    run_all([run])
    assert reader.requests == []
    assert answers(run, case)["q0"].answer == "said it myself"
    assert answers(run, case)["q1"].outcome == "aborted"


class Unsure(Diary):
    """Its item has a score that no file may hold."""

    def __init__(self, log: list[str], score: float) -> None:
        super().__init__(log)
        self.score = score

    def read(self, question: Question) -> Recall:
        return Recall((Item("i", "a fact", self.score, ()),))


@pytest.mark.parametrize(
    "score", [math.nan, math.inf, 1e20, -(2**70), 10**400], ids=["nan", "inf", "1e20", "-2^70", "10^400"]
)
def test_a_score_that_is_no_number_ranks_nothing_and_is_an_error(score: float, make_run: Make) -> None:
    case = history(questions=1)
    run = make_run([case], build=partial(Unsure, [], score))
    run_all([run])
    assert answers(run, case)["q0"].outcome == "error"
    assert "no finite number" in answers(run, case)["q0"].error


class Opaque(Diary):
    def nodes(self) -> Iterator[NodeView]:
        raise LookupError("no tree today")


def test_a_memory_that_cannot_show_its_nodes_keeps_its_answers_and_the_caption_says_so(make_run: Make) -> None:
    case = history(questions=2)
    run = make_run([case], build=partial(Opaque, []))
    run_all([run])
    assert [answer.outcome for answer in answers(run, case).values()] == ["answered", "answered"]
    said = "FAILED after the answers, which stand: nodes() of bm25 in 1 of 1 history: LookupError: no tree today; "
    assert waivers([run])[-1].startswith(said)
    assert not (run.case_folder(case.id) / "nodes.jsonl").exists()


def test_a_complete_run_asks_nothing_again(make_run: Make) -> None:
    case = history()
    run_all([make_run([case])])
    silent = ScriptedLLM({})
    run_all([make_run([case], reader=Metered(silent), build=partial(Diary, [], "s0"))])
    assert silent.requests == []


@pytest.mark.parametrize("threads", [1, 8, 64])
def test_any_number_of_threads_and_any_order_of_cases_give_the_same_bytes(make_run: Make, threads: int) -> None:
    cases = [history(f"case-{number}") for number in range(5)]
    one = make_run(cases, folder="one")
    run_all([one], threads=1)
    other = make_run(cases[::-1], folder=f"other-{threads}")
    run_all([other], threads=threads)
    assert bytes_of(one) == bytes_of(other)


def test_the_cells_of_several_runs_share_one_pool(make_run: Make) -> None:
    runs = [make_run([history()], folder=name) for name in ("a", "b")]
    steps: list[Progress] = []
    run_all(runs, threads=2, on_progress=steps.append)
    assert sorted(one.question_id for one in steps if one.question_id) == sorted([f"q{i}" for i in range(6)] * 2)
    assert [one.outcome for one in steps].count("complete") == 2


def test_each_history_that_begins_says_how_many_units_it_has_and_each_of_them_is_told(make_run: Make) -> None:
    steps: list[Progress] = []
    run_all([make_run([history("c1"), history("c2")])], on_progress=steps.append)
    begun = {one.case_id: one.units for one in steps if one.outcome == "begun"}
    written = Counter(one.case_id for one in steps if one.outcome == "written")
    assert begun == written
    assert len(begun) == 2
    again: list[Progress] = []
    run_all([make_run([history("c1"), history("c2")])], on_progress=again.append)
    assert [one.units for one in again if one.outcome == "begun"] == [0, 0]  # nothing is left to be built


def test_a_run_that_another_process_writes_is_waited_for(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, heard = make_run([history()]), io.StringIO()
    monkeypatch.setattr(sys, "stderr", heard)  # reading pytest's capture in a loop may lose what is written meanwhile
    with ThreadPoolExecutor() as pool:
        with locked(run.folder):
            waiting = pool.submit(run_all, [run])
            while "waiting for another process" not in heard.getvalue():
                time.sleep(0.01)
                assert not waiting.done()
            assert not (run.folder / "cases").exists()
        waiting.result(timeout=60)
    assert (run.folder / "cases").exists()


def test_two_processes_that_want_the_same_runs_do_not_wait_for_each_other(make_run: Make) -> None:
    runs = [make_run([history()], folder=name) for name in ("a", "b", "c")]
    with ThreadPoolExecutor() as pool:
        orders = [pool.submit(run_all, order) for order in (runs, runs[::-1]) * 4]
        for one in orders:
            one.result(timeout=60)


def test_reaching_the_cap_leaves_the_rest_unreached(make_run: Make) -> None:
    case = history()
    poor = ScriptedLLM({"reader.segtree": ["first", *[SpendingCapReached("max_usd=1")] * 5]})
    run = make_run([case], reader=Metered(poor))
    with pytest.raises(SpendingCapReached):
        run_all([run])
    assert len(answers(run, case)) == 1
    assert not (run.case_folder(case.id) / "case.json").exists()


def test_a_torn_last_line_is_dropped_and_its_question_asked_again(make_run: Make) -> None:
    case = history(questions=3)
    run = make_run([case])
    run_all([run])
    whole = bytes_of(run)
    path = run.case_folder(case.id) / "predictions.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    (run.case_folder(case.id) / "case.json").unlink()
    run_all([make_run([case])])
    assert bytes_of(run) == whole


def test_a_broken_line_in_the_middle_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"b": \n{"c": 3}\n')
    with pytest.raises(RunError, match="line 2 is not JSON"):
        read_lines(path)


def test_a_case_id_never_leaves_the_results_folder(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for evil in ["../../x", "/etc/passwd", "a/../b", "..", ".", "", "a\\b", "x\0y", "é" * 300, "CON.", "-rf", ".-x"]:
        with subtests.test(evil=evil):
            inside = (tmp_path / safe_name(evil)).resolve()
            assert inside.parent == tmp_path.resolve()
            assert len(safe_name(evil)) <= 80
            assert not safe_name(evil).startswith(("-", ".")), "an option of `rm *`, or hidden"


def test_case_ids_that_look_alike_once_cleaned_stay_apart() -> None:
    assert len({safe_name(name) for name in ("a/b", "a_b", "a:b", "a b")}) == 4


def test_effort_counts_every_unit_read_and_answer(make_run: Make) -> None:
    case = history(questions=2)
    run = make_run([case])
    run_all([run])
    phases = [line["phase"] for line in read_lines(run.case_folder(case.id) / "effort.jsonl")]
    assert {phase: phases.count(phase) for phase in set(phases)} == {
        "write": 6,
        "consolidate": 1,
        "read": 2,
        "answer": 2,
    }
    answer = next(line for line in read_lines(run.case_folder(case.id) / "effort.jsonl") if line["phase"] == "answer")
    assert answer["calls"] == {"reader.segtree": 1}
    assert answer["context_tokens"] > 0


class Offline(Diary):
    """Recalls what was there when it was last consolidated."""

    OFFLINE = True

    def __init__(self, log: list[str]) -> None:
        super().__init__(log)
        self.seen = 0

    def consolidate(self) -> None:
        super().consolidate()
        self.seen = len(self.units)

    def read(self, question: Question) -> Recall:
        return Recall(super().read(question).items[: self.seen])


@pytest.mark.parametrize(("every", "builds"), [(1, 4), (2, 2), (3, 2), (9, 1)])
def test_an_offline_memory_is_rebuilt_at_every_nth_point_and_what_came_since_is_kept_raw(
    make_run: Make, every: int, builds: int
) -> None:
    log: list[str] = []
    case = history(questions=4, after={0: "s0:2", 1: "s0:4", 2: "s1:2"})
    run = make_run([case], build=partial(Offline, log), rebuild_every=every)
    run_all([run])
    assert log.count("consolidate") == builds
    found = answers(run, case)
    assert [len(found[f"q{i}"].items) for i in range(4)] == [1, 2, 3, 6]


def test_the_gold_evidence_control_shows_the_evidence_and_nothing_else(make_run: Make) -> None:
    case = history()
    run = make_run([case], control=partial(gold_evidence, unit={"rule": "ab_pair"}))
    run_all([run])
    items = {item["key"]: item for item in read_lines(run.case_folder(case.id) / "items.jsonl")}
    for question, gold in case.questions:
        recalled = answers(run, case)[question.id].items
        assert [set(gold.evidence) <= set(items[key]["sources"]) for key in recalled] == [True]


def test_the_gold_evidence_control_shows_evidence_that_is_told_after_the_question(make_run: Make) -> None:
    case = history(questions=2, after={0: ""})
    run = make_run([case], control=partial(gold_evidence, unit={"rule": "ab_pair"}))
    run_all([run])
    items = {item["key"]: item for item in read_lines(run.case_folder(case.id) / "items.jsonl")}
    (early,) = answers(run, case)["q0"].items
    assert items[early]["sources"] == ["s0:1", "s0:2"]


def test_a_memory_is_never_handed_the_case_or_its_evidence(make_run: Make) -> None:
    class Curious(Diary):
        def __init__(self, case: Any = None, evidence: Any = None, cases: Any = None) -> None:
            super().__init__([])
            assert (case, evidence, cases) == (None, None, None)

    case = history(questions=1)
    run = make_run([case], build=Curious)
    run_all([run])
    assert answers(run, case)["q0"].outcome == "answered"


def test_golds_never_reach_a_request_a_recall_or_a_prediction(make_run: Make) -> None:
    from dataclasses import replace

    base = history()
    secret = tuple(
        (
            question,
            replace(
                gold, answers=(f"uuid-{number}-gold",), category=f"uuid-{number}-category", trap=f"uuid-{number}-trap"
            ),
        )
        for number, (question, gold) in enumerate(base.questions)
    )
    seen: list[str] = []

    def reply(request: Request) -> str:
        seen.append(json.dumps(request.messages))
        return "fine"

    run = make_run([replace(base, questions=secret)], reader=Metered(ScriptedLLM(reply)))
    run_all([run])
    written = "".join(path.read_text() for path in run.folder.rglob("*.json*"))
    assert "uuid-" not in "".join(seen) + written
    assert len(seen) == len(FACTS)


def test_concurrent_reads_equal_sequential_reads(make_run: Make) -> None:
    memory = BM25(k=3)
    case = history()
    for unit in make_units(case.sessions, "ab_pair").units:
        memory.write(unit)
    memory.consolidate()
    questions = [question for question, _ in case.questions] * 20
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(memory.read, questions)) == [memory.read(question) for question in questions]


class Shelf(Diary):
    """Recalls the latest `k` units."""

    READ_KNOBS = ("k",)

    def __init__(self, log: list[str], fail_at: str = "", k: int = 1) -> None:
        super().__init__(log, fail_at)
        self.k = min(k, 5)

    def read(self, question: Question) -> Recall:
        if self.k == 4 and question.id == "q1":
            raise RuntimeError("four is too many")
        return Recall(super().read(question).items[-self.k :])


def shelves(make_run: Make, cases: list[Case], log: list[str], ks: Sequence[int] = (1, 2, 9), **more: Any) -> list[Run]:
    """Runs that differ in `k` only; `fail_at` and other settings of a run may be given."""
    fail_at, shared = more.pop("fail_at", ""), more.pop("shared", "shelf")
    return [
        make_run(
            cases, folder=f"{shared or 'alone'}-{k}", build=partial(Shelf, log, fail_at, k=k), shared=shared, **more
        )
        for k in ks
    ]


def folder_of(run: Run) -> dict[str, Any]:
    """All that a run left behind; of the effort lines what no clock decides, in any order."""
    found: dict[str, Any] = {}
    for path in (path for path in run.folder.glob("cases/*/*") if path.name != ".lock"):
        name = str(path.relative_to(run.folder))
        found[name] = path.read_bytes()
        if path.name == "effort.jsonl":
            lines = [{key: value for key, value in line.items() if "seconds" not in key} for line in read_lines(path)]
            found[name] = sorted(json.dumps(line) for line in lines)
    return found


STORIES = [history("case-1"), history("case-2", after={0: "", 1: "s0:4", 2: "s1:2"})]


@pytest.mark.parametrize("threads", [1, 8])
def test_runs_that_differ_in_a_read_knob_build_each_case_once_and_leave_what_each_leaves_alone(
    make_run: Make, threads: int
) -> None:
    together, alone = [], []
    shared = shelves(make_run, STORIES, together)
    run_all(shared, threads=threads)
    separate = shelves(make_run, STORIES, alone, shared="")
    run_all(separate, threads=threads)
    assert [folder_of(run) for run in shared] == [folder_of(run) for run in separate]
    assert len({bytes_of(run)["cases/case-1/predictions.jsonl"] for run in shared}) == 3
    assert together.count("write s0:1") == 2
    assert alone.count("write s0:1") == 2 * 3


@pytest.mark.slow
def test_a_tree_read_with_other_knobs_is_the_tree_built_with_them(make_run: Make) -> None:
    from memsys.systems.segtree import SegTree

    ways = [("none", 0.1), ("top_down", 0.3), ("bottom_up", 0.7)]
    found = []
    for shared in ("tree", ""):
        runs = [
            make_run(
                STORIES,
                folder=f"{shared}-{policy}",
                build=with_settings(SegTree, {"policy": policy, "alpha": alpha, "k": 3}),
                shared=shared,
            )
            for policy, alpha in ways
        ]
        run_all(runs)
        found.append([folder_of(run) for run in runs])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1] != found[0][2]
    assert "cases/case-1/vectors.npy" in found[0][0]


def test_of_runs_that_share_a_build_those_that_are_complete_are_left_alone(make_run: Make) -> None:
    log: list[str] = []
    runs = shelves(make_run, STORIES, log)
    run_all(runs)
    whole = [folder_of(run) for run in runs]
    stamps = {path: path.stat().st_mtime_ns for path in runs[0].folder.glob("cases/*/*")}
    torn = runs[1].case_folder("case-1") / "predictions.jsonl"
    torn.write_bytes(torn.read_bytes()[:-20])
    (runs[2].case_folder("case-2") / "predictions.jsonl").unlink()
    log.clear()
    reader = ScriptedLLM(lambda request: "again")
    run_all(shelves(make_run, STORIES, log, reader=Metered(reader)))
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert log.count("write s0:1") == 2
    reads = [entry for entry in log if entry.startswith("read")]
    assert sorted(reads) == sorted(["read q5", *(f"read q{i}" for i in range(6))])
    assert len(reader.requests) == 1 + 6
    assert [one.answer == "again" for one in answers(runs[1], STORIES[0]).values()] == [False] * 5 + [True]
    for run, before in zip(runs, whole, strict=True):
        efforts = {name: lines for name, lines in folder_of(run).items() if "effort" in name}
        assert efforts.keys() < before.keys()
        assert all(len(lines) == len(before[name]) for name, lines in efforts.items())


def test_a_shared_build_that_fails_is_an_error_in_every_folder(make_run: Make) -> None:
    case = history(questions=3, after={0: "s0:4"})
    runs = shelves(make_run, [case], [], fail_at="s1:1")
    run_all(runs)
    for run in runs:
        assert [answers(run, case)[f"q{i}"].outcome for i in range(3)] == ["answered", "error", "error"]
        assert "the summary failed" in (run.case_folder(case.id) / "errors.log").read_text()


def test_a_read_that_fails_with_one_setting_fails_for_that_one(make_run: Make) -> None:
    case = history(questions=3)
    runs = shelves(make_run, [case], [], ks=(2, 4))
    run_all(runs)
    assert [answers(runs[0], case)[f"q{i}"].outcome for i in range(3)] == ["answered"] * 3
    assert [answers(runs[1], case)[f"q{i}"].outcome for i in range(3)] == ["answered", "error", "answered"]


def test_runs_that_ask_other_questions_share_no_build(make_run: Make) -> None:
    log: list[str] = []
    case = history()
    (first,) = shelves(make_run, [case], log, ks=(1,), questions=lambda case_id, question_id: question_id == "q0")
    (second,) = shelves(make_run, [case], log, ks=(2,))
    run_all([first, second])
    assert log.count("write s0:1") == 2
    assert (len(answers(first, case)), len(answers(second, case))) == (1, 6)
    run_all([first, second])
    assert log.count("write s0:1") == 2, "a run whose questions are all answered is finished"


def open_below(folder: Path) -> int:
    """How many files of the folder this process holds open; those that other tests leave open come and go."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself, or one closed meanwhile
            found += Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(folder.resolve())
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs a system that says which files are open")
def test_many_appenders_hold_few_files_open_and_lose_no_line(tmp_path: Path) -> None:
    appenders = [Appender(tmp_path / f"{number}.jsonl") for number in range(3 * MOST_OPEN)]
    assert 0 < open_below(tmp_path) <= MOST_OPEN
    with ThreadPoolExecutor(16) as pool:
        list(
            pool.map(lambda place: appenders[place % len(appenders)].add({"place": place}), range(20 * len(appenders)))
        )
    assert open_below(tmp_path) <= MOST_OPEN + 16
    for appender in appenders:
        appender.close()
    assert open_below(tmp_path) == 0
    places = [
        record["place"] for appender in range(len(appenders)) for record in read_lines(tmp_path / f"{appender}.jsonl")
    ]
    assert sorted(places) == list(range(20 * len(appenders)))


def test_a_file_that_makes_room_for_another_is_closed_at_once(tmp_path: Path) -> None:
    appenders = [Appender(tmp_path / "0.jsonl")]
    files = [store._opened[appenders[0]]]  # held here: a file that nothing holds is closed by the interpreter
    while len(appenders) < MOST_OPEN + 3:
        appenders.append(Appender(tmp_path / f"{len(appenders)}.jsonl"))
        files.append(store._opened[appenders[-1]])
    assert [file.closed for file in files] == [True] * 3 + [False] * MOST_OPEN
    for appender in appenders:
        appender.close()
    assert all(file.closed for file in files)


@pytest.mark.slow
def test_many_runs_of_one_case_may_open_their_files(make_run: Make) -> None:
    import resource

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as others:
        # Files that the process held before count too: there is room for the run's beside them.
        for _ in range(400):
            others.enter_context(open(os.devnull))
        others.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (allowed, most))
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 50, most))
        runs = [
            make_run([history(questions=1)], folder=f"many-{k}", build=partial(Shelf, [], k=1), shared="many")
            for k in range(70)
        ]
        run_all(runs)
    assert all(len(read_predictions(run.case_folder("case-1"))) == 1 for run in runs)


def test_a_resumed_offline_memory_is_rebuilt_where_it_was_the_first_time(make_run: Make) -> None:
    case = history(questions=4, after={0: "s0:2", 1: "s0:4", 2: "s1:2"})
    run = make_run([case], build=partial(Offline, []), rebuild_every=2)
    run_all([run])
    path = run.case_folder(case.id) / "predictions.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"q3"' not in line))
    resumed: list[str] = []
    run_all([make_run([case], build=partial(Offline, resumed), rebuild_every=2)])
    order = [entry for entry in resumed if entry.startswith(("write", "consolidate", "read"))]
    assert order[order.index("consolidate") - 1] == "write s1:1"
    assert (order.count("consolidate"), order[-1]) == (1, "read q3")


def test_a_run_of_the_first_questions_is_completed_by_one_that_asks_all(make_run: Make) -> None:
    cases = [replace(history(questions=5), id=f"c{number}") for number in range(3)]
    whole = make_run(cases, build=partial(Diary, []), folder="whole")
    run_all([whole])
    first = make_run(cases, build=partial(Diary, []), folder="parts")
    run_all([replace(first, questions=lambda case_id, question_id: question_id == "q0")])
    assert [len(read_predictions(first.case_folder(case.id))) for case in cases] == [1, 1, 1]
    steps: list[Progress] = []
    run_all([first], on_progress=steps.append)
    assert bytes_of(first) == bytes_of(whole)
    assert sum(progress.kept for progress in steps) == 3
    assert sum(bool(progress.question_id) for progress in steps) == 12


def test_as_many_answers_are_awaited_as_are_allowed_and_all_come(make_run: Make) -> None:
    waiting: list[Future[Completion]] = []
    most = [0]

    class Late:
        def submit(self, request: Any) -> Future[Completion]:
            future: Future[Completion] = Future()
            waiting.append(future)
            most[0] = max(most[0], sum(not one.done() for one in waiting))
            threading.Timer(0.02, lambda: future.set_result(Completion("late"))).start()
            return future

    case = history(questions=6)
    run = make_run([case], build=partial(Diary, []))
    run_all([replace(run, services=replace(run.services, reader=Metered(Late())), outstanding=2)])
    assert len(read_predictions(run.case_folder(case.id))) == 6
    assert most[0] == 2


class Slow(Diary):
    """Its reads wait for something, so that several are under way."""

    WAITS_TO_READ = True


class Later:
    """A model whose replies come a moment later, from a thread called `reply`."""

    def submit(self, request: Any) -> Future[Completion]:
        future: Future[Completion] = Future()
        timer = threading.Timer(0.01, future.set_result, [Completion("late")])
        timer.name = "reply"
        timer.start()
        return future


@pytest.mark.slow
def test_answers_are_saved_although_every_thread_of_the_questions_waits_for_one(make_run: Make) -> None:
    (asked, gold), *_ = history().questions
    many = tuple((replace(asked, id=f"q{number}"), gold) for number in range(150))  # more than there are threads
    case = replace(history(), questions=many)
    run = make_run([case], build=partial(Slow, []))
    run = replace(run, services=replace(run.services, reader=Metered(Later())), outstanding=2)
    running = threading.Thread(target=run_all, args=[[run]], daemon=True)
    running.start()
    running.join(60)
    assert not running.is_alive()
    assert len(answers(run, case)) == 150


def test_reads_that_wait_for_a_service_are_under_way_together(make_run: Make) -> None:
    meeting = threading.Barrier(6, timeout=20)

    class Meeting(Slow):
        def read(self, question: Question) -> Recall:
            meeting.wait()
            return super().read(question)

    case = history(questions=6)
    run = make_run([case], build=partial(Meeting, []))
    run_all([run])
    assert {answer.outcome for answer in answers(run, case).values()} == {"answered"}


def test_the_thread_that_brings_replies_saves_no_answer(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_by: Counter[str] = Counter()
    predicted = CaseLog.predicted

    def noted(log: CaseLog, *arguments: Any) -> None:
        saved_by[threading.current_thread().name.partition("-")[0]] += 1
        predicted(log, *arguments)

    monkeypatch.setattr(CaseLog, "predicted", noted)
    run = make_run([history(questions=6)], build=partial(Slow, []))
    run_all([replace(run, services=replace(run.services, reader=Metered(Later())))])
    assert saved_by == {"answer": 6}


def test_a_cut_answer_is_kept_and_flagged_and_one_without_an_answer_is_a_typed_error(make_run: Make) -> None:
    case = history(questions=5)
    replies: list[Any] = [
        Completion("It was", stopped="cut"),
        Completion("", stopped="cut in thought", finish_reason="length"),
        Completion("I", stopped="refused", finish_reason="content_filter"),
        ContextOverflow("HTTP 400: too long"),
        Completion("It was the loom"),
    ]
    run = make_run([case], reader=Metered(ScriptedLLM({"*": replies})))
    run_all([run])
    found = sorted((one.outcome, one.answer, one.error, one.cut) for one in answers(run, case).values())
    assert found == [
        ("answered", "It was", "", True),
        ("answered", "It was the loom", "", False),
        ("error", "", "answer: context overflow: HTTP 400: too long", False),
        ("error", "", f"answer: {why_none(replies[1])}", False),
        ("error", "", "answer: the reply was refused (content_filter)", False),
    ]


def test_a_server_that_cuts_prompts_ends_the_run_and_fails_no_question(make_run: Make) -> None:
    case = history()
    run = make_run([case], reader=Metered(ScriptedLLM({"*": ["first", *[PromptTruncated("num_ctx")] * 9]})))
    with pytest.raises(PromptTruncated, match="num_ctx"):
        run_all([run])
    assert [one.outcome for one in answers(run, case).values()] == ["answered"]


class Asking(Diary):
    """Asks the model for nothing in particular when it writes, or when it reads."""

    def __init__(self, llm: LLM, when: str) -> None:
        super().__init__([])
        self._llm, self._when = llm, when

    def write(self, unit: Unit) -> None:
        super().write(unit)
        self._ask("write")

    def read(self, question: Question) -> Recall:
        self._ask("read")
        return super().read(question)

    def _ask(self, step: str) -> None:
        if step == self._when:
            self._llm.submit(Request((("user", "x"),), f"diary.{step}")).result()


@pytest.mark.parametrize("when", ["write", "read"])
def test_a_prompt_cut_while_a_memory_writes_or_reads_ends_the_run_too(make_run: Make, when: str) -> None:
    case = history()
    run = make_run([case], build=partial(Asking, when=when), llm=Metered(ScriptedLLM(PromptTruncated("num_ctx"))))
    with pytest.raises(PromptTruncated, match="num_ctx"):
        run_all([run])
    assert answers(run, case) == {}


@pytest.fixture
def stopped() -> Iterator[None]:
    """The process goes on after the test that asked for a stop."""
    yield
    stopping.forget()


class Swallowing(Diary):
    """A memory that asks for a stop at a unit, and then fails with an error of its own, as one that swallows refused calls may."""

    def write(self, unit: Unit) -> None:
        super().write(unit)
        if unit.turns[0].id == self.stop_at:
            stopping.request()
            raise ValueError("made of a refused call")

    stop_at = "s1:1"


def test_what_fails_because_of_a_stop_is_no_line_and_the_next_start_answers_it(make_run: Make, stopped: None) -> None:
    case = history()
    run = make_run([case], build=partial(Swallowing, []))
    with pytest.raises(stopping.Stopped):
        run_all([run])
    assert answers(run, case) == {}
    stopping.forget()
    whole = make_run([case], build=partial(Diary, []))
    run_all([whole])
    assert {line.outcome for line in answers(whole, case).values()} == {"answered"}


class Interrupted(Diary):
    """A memory that makes no calls; during one of its units a stop is asked for."""

    def write(self, unit: Unit) -> None:
        super().write(unit)
        if unit.turns[0].id == "s1:1":
            stopping.request()


def test_a_run_that_makes_no_calls_stops_between_two_steps(make_run: Make, stopped: None) -> None:
    log: list[str] = []
    with pytest.raises(stopping.Stopped):
        run_all([make_run([history()], build=partial(Interrupted, log))])
    assert log[-1] == "write s1:1"


@pytest.mark.parametrize(
    "end", [stopping.Stopped(), Unreachable("the server is gone"), DamagedCache("the file is gone")]
)
def test_when_no_further_call_can_be_made_the_run_ends_and_what_was_not_reached_has_no_line(
    make_run: Make, end: EndOfRun
) -> None:
    case = history(questions=3)

    run = make_run([case], build=partial(Diary, []), reader=Metered(Refusing(end)))
    with pytest.raises(type(end)):
        run_all([run])
    assert answers(run, case) == {}


class Refusing:
    """A model of which every call ends the run."""

    def __init__(self, end: EndOfRun) -> None:
        self.end = end

    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        future.set_exception(self.end)
        return future


WHERE = ["log.predicted", "effort", "on_progress", "done.result"]


class Impatient(threading.Thread):
    """A thread; the first wait for one that works on a cell is interrupted, as by Ctrl-C."""

    interrupted: ClassVar[bool] = False

    def join(self, timeout: float | None = None) -> None:
        if self.name == "cell" and not Impatient.interrupted:
            Impatient.interrupted = True
            raise KeyboardInterrupt
        super().join(timeout)


class Leisurely(Diary):
    def write(self, unit: Unit) -> None:
        time.sleep(0.05)
        super().write(unit)


def test_an_interrupt_while_the_last_cells_are_awaited_waits_for_them(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "Thread", Impatient)
    with pytest.raises(KeyboardInterrupt):
        run_all([make_run([history()], build=partial(Leisurely, []))])
    assert Impatient.interrupted
    assert [thread for thread in threading.enumerate() if thread.name == "cell"] == []


@pytest.mark.parametrize("where", WHERE)
def test_an_exception_in_any_callback_of_an_answer_ends_the_run_instead_of_hanging_it(
    make_run: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def broken(*arguments: Any, **more: Any) -> None:
        raise ZeroDivisionError("a bug in a callback")

    if where == "log.predicted":
        monkeypatch.setattr(CaseLog, "predicted", broken)
    if where == "effort":
        monkeypatch.setattr("eval.running.question.effort", broken)
    if where == "done.result":
        monkeypatch.setattr("eval.running.question.outcome_of", broken)
    run = make_run([history()], build=partial(Diary, []))
    with pytest.raises(ZeroDivisionError):
        run_all([run], on_progress=broken if where == "on_progress" else lambda progress: None)


def test_no_file_of_a_run_holds_the_key(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "a-key-of-a-gateway-0123"
    secrets.register(key, "GATEWAY_PASS")

    class Leaking(Diary):
        def read(self, question: Question) -> Recall:
            if question.id == "q0":
                raise ValueError("x" * 470 + f" refused: {key}")
            return Recall((Item("i", f"an item with {key}", 1.0, ()),), answer=f"an answer with {key}")

    case = history(questions=2)
    run = make_run([case], build=partial(Leaking, []))
    run_all([run])
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert not [path.name for path in files if key[:12].encode() in path.read_bytes()]
    assert answers(run, case)["q1"].answer == "an answer with <GATEWAY_PASS>"
    assert (run.case_folder(case.id) / "errors.log").is_file()


# --- vectors ------------------------------------------------------------------------------------------------------------


def trees(make_run: Make, *, knob: str = "k", values: Sequence[Any] = (1, 2, 3), **more: Any) -> list[Run]:
    """Runs that share the build of a tree and differ in one read knob."""
    from memsys.systems.segtree import SegTree

    return [
        make_run(STORIES, folder=f"tree-{value}", build=with_settings(SegTree, {knob: value}), shared="tree", **more)
        for value in values
    ]


def vector_files(runs: Sequence[Run]) -> list[Path]:
    return sorted(path for run in runs for path in run.folder.glob("cases/*/vectors.npy"))


def test_runs_that_share_a_build_keep_its_vectors_once(make_run: Make) -> None:
    runs = trees(make_run)
    run_all(runs)
    files = vector_files(runs)
    assert len(files) == 3 * len(STORIES)
    assert len({path.stat().st_ino for path in files}) == len(STORIES)


class Tuned(Shelf):
    """Its vectors say how it is read."""

    def nodes(self) -> Iterator[NodeView]:
        return (replace(node, vector=np.full(2, self.k, dtype=np.float32)) for node in super().nodes())


def test_vectors_that_a_read_knob_changes_are_kept_apart(make_run: Make) -> None:
    runs = [
        make_run([history()], folder=f"tuned-{k}", build=partial(Tuned, [], k=k), shared="tuned") for k in (1, 2, 3)
    ]
    run_all(runs)
    assert [np.load(path).min() for path in vector_files(runs)] == [1, 2, 3]


def test_where_no_second_name_can_be_made_each_run_has_a_copy(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    runs = trees(make_run)
    run_all(runs)
    files = vector_files(runs)
    assert len({path.stat().st_ino for path in files}) == len(files) == 3 * len(STORIES)
    assert all(len(np.load(path)) for path in files)


def test_without_vectors_nothing_else_is_missing(make_run: Make) -> None:
    (kept,) = trees(make_run, values=(2,))
    run_all([kept])
    whole = folder_of(kept)
    (bare,) = trees(make_run, values=(2,), vectors=False)
    bare = replace(bare, folder=kept.folder.with_name("bare"))
    run_all([bare])
    assert folder_of(bare) == {name: content for name, content in whole.items() if not name.endswith("vectors.npy")}


def test_vectors_that_are_wanted_later_are_added_and_answers_stay(make_run: Make) -> None:
    (bare,) = trees(make_run, values=(2,), vectors=False)
    run_all([bare])
    assert not vector_files([bare])
    before = {name: content for name, content in folder_of(bare).items() if name.endswith("predictions.jsonl")}
    run_all([replace(bare, vectors=True)])
    assert len(vector_files([bare])) == len(STORIES)
    after = folder_of(bare)
    assert {name: after[name] for name in before} == before


# --- prompts ------------------------------------------------------------------------------------------------------------


class Borrower(Diary):
    """Reads a prompt that it does not declare."""

    PROMPTS = ("segtree",)

    def __init__(self, prompts: Any, name: str, log: list[str]) -> None:
        super().__init__(log)
        self.prompts, self.name = prompts, name

    def write(self, unit: Unit) -> None:
        assert self.prompts[self.name].user
        super().write(unit)


def test_a_prompt_that_is_read_but_not_declared_stops_the_run(make_run: Make) -> None:
    from memsys.prompts import SHIPPED, UndeclaredPrompt

    own = f"segtree/{next((SHIPPED / 'segtree').glob('*.md')).stem}"
    run_all([make_run([history()], build=partial(Borrower, name=own, log=[]))])
    run = make_run([history()], folder="other", build=partial(Borrower, name="memtree/aggregate", log=[]))
    assert (SHIPPED / "memtree" / "aggregate.md").is_file()
    with pytest.raises(UndeclaredPrompt, match="memtree/aggregate is read but not declared; add its folder to PROMPTS"):
        run_all([run])
    assert not answers(run, history())


def test_a_wrapped_memory_reads_the_prompts_that_its_own_class_declares(make_run: Make) -> None:
    from memsys.prompts import UndeclaredPrompt
    from memsys.systems.memtree import MemTree

    def wrapper(inner: Any, prompts: Any) -> Any:
        return prompts

    seen: Any = built(partial(wrapper, inner=partial(MemTree)), make_run([]).services, np.random.default_rng(0))
    assert seen["memtree/aggregate"]
    with pytest.raises(UndeclaredPrompt):
        seen["segtree/annotate"]


# --- folders ------------------------------------------------------------------------------------------------------------


def test_ids_that_differ_in_case_only_have_folders_that_differ_in_more() -> None:
    names = ["Case-A", "case-a", "CASE-A", "case-A"]
    assert len({safe_name(name).lower() for name in names}) == 4
    assert safe_name("case-a") == "case-a"
