"""The run loop: a fresh memory for each case; write; when questions are due, consolidate, read, answer in the background; save.

A cell is memory x data set x case. Cells share one pool, longest first; the questions of one due point are read concurrently in
another, so that a cell that waits for its questions never holds a thread that they need. Answering never blocks writing.

Runs that differ only in settings that reading alone looks at are lived through together: their cell is built once, every run reads
from it with its own settings, and what building cost is written to each folder, which is the one it would be alone.
"""

from __future__ import annotations

import errno
import json
import math
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_loaders.schema import Case, DataError, Question, Unit
from data_loaders.units import make_units
from eval.case_log import NOTHING, CaseLog, effort
from eval.reader import render
from eval.records import Outcome
from eval.run import OUTSTANDING, Progress, Run, build_memory, needs
from eval.store import locked, read_predictions, replace_file
from memsys.interface import MemorySystem, Recall, unit_item
from memsys.llm import stopping
from memsys.llm.meter import metering
from memsys.llm.protocol import Completion, ContextOverflow, EndOfRun
from memsys.llm.replies import why_none
from memsys.llm.secrets import redact
from memsys.prompts import UndeclaredPrompt
from memsys.tokens import count_tokens

REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO)
"""What a file system says when the next file will fare no better."""


class Lanes:
    """What the cells of an experiment share: who reads questions, how many memories are built and how many answers awaited at once."""

    def __init__(self, threads: int, questions: ThreadPoolExecutor) -> None:
        self.questions = questions
        self.building = threading.Semaphore(threads)
        self.answers = threading.Semaphore(OUTSTANDING)


def run_all(runs: Sequence[Run], *, threads: int = 8, told: Callable[[Progress], None] = lambda _: None) -> None:
    """Run every cell of every run that is not complete, longest first.

    Raises:
        EndOfRun: the spending cap was reached, the user asked for a stop, or a server is gone; what was not reached has no line
            and is counted as not reached.
    """
    from threadpoolctl import threadpool_limits

    groups, open_cells = _groups(runs), 2 * threads
    _allow_files(len(runs) + 3 * open_cells * max(map(len, groups), default=0) + 256)
    with ExitStack() as locks:
        # Cells keep the cores busy; matrix products on one core each give the same sums on every machine.
        locks.enter_context(threadpool_limits(1))
        for folder in sorted({run.folder for run in runs}):
            locks.enter_context(locked(folder))
        for run in runs:
            replace_file(run.folder / "run.json", json.dumps(run.record, indent=1, sort_keys=True, default=str))
        _run_cells(groups, threads, open_cells, told)


def _run_cells(
    groups: Sequence[Sequence[Run]], threads: int, open_cells: int, told: Callable[[Progress], None]
) -> None:
    # A cell that only waits for its last answers does not keep the next from being built: more are open than are being built.
    with ThreadPoolExecutor(open_cells, "cell") as cells, ThreadPoolExecutor(64, "question") as questions:
        lanes = Lanes(threads, questions)
        work = [(size, group, index) for group in groups for index, size in enumerate(group[0].sizes)]
        work.sort(key=lambda cell: -cell[0])
        stop = threading.Event()
        futures = [cells.submit(_cell, group, index, lanes, told, stop) for _, group, index in work]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            cells.shutdown(cancel_futures=True)
            raise


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that share the build of each case, and those that share with none."""
    found: dict[Any, list[Run]] = {}
    for run in {run.folder: run for run in runs}.values():
        found.setdefault((run.shared, run.questions) if run.shared else run.folder, []).append(run)
    return list(found.values())


def _allow_files(count: int) -> None:
    """Let this process hold so many open files, as far as it may: a run has its lock, its cell three, and many systems stop at 1024."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < count:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (count if most == resource.RLIM_INFINITY else min(count, most), most)
        )


def _cell(
    group: Sequence[Run], index: int, lanes: Lanes, told: Callable[[Progress], None], stop: threading.Event
) -> None:
    if not stop.is_set():
        run_case(group, group[0].cases[index], lanes, told)


def run_case(runs: Sequence[Run], case: Case, lanes: Lanes, told: Callable[[Progress], None] = lambda _: None) -> None:
    """One cell of runs that share their builds, from the first unit to sorted files; what is complete is left alone.

    A failing question is a line with `error`; a failing build is one line for each question that it still owed.

    Raises:
        EndOfRun: no further call can be made.
        DataError: a question is asked after a turn that does not exist.
    """
    asked = [question for question, _ in case.questions if runs[0].questions(case.id, question.id)]
    logs: list[CaseLog] = []
    try:
        for run in runs:
            folder = run.case_folder(case.id)
            done = {key: line for key, line in read_predictions(folder).items() if line.outcome != "error"}
            left = {question.id for question in asked} - done.keys()
            if kept := len(asked) - len(left):
                told(Progress(run.name, case.id, "", "kept", kept))
            if left or not _complete(run, folder):
                logs.append(CaseLog(run, case, folder, done, left))
        if logs:
            _live(case, asked, logs, lanes, told)
        else:
            told(Progress(runs[0].name, case.id, "", "begun"))
    finally:
        for log in logs:
            log.close()
    for run in runs:
        told(Progress(run.name, case.id, "", "complete"))


def _complete(run: Run, folder: Path) -> bool:
    """Whether a case is finished, with the vectors of its nodes where they are wanted."""
    if not (folder / "case.json").is_file():
        return False
    return not run.vectors or not (folder / "nodes.jsonl").is_file() or (folder / "vectors.npy").is_file()


def stops(error: BaseException) -> bool:
    """Whether no other question can go better: no call can be made, the disk refuses, a memory reads what it does not declare."""
    if isinstance(error, OSError | sqlite3.OperationalError):
        full = "full" in str(error) or "readonly" in str(error)
        return full if isinstance(error, sqlite3.Error) else error.errno in REFUSED
    return isinstance(error, EndOfRun | UndeclaredPrompt)


def _live(
    case: Case,
    asked: Sequence[Question],
    logs: Sequence[CaseLog],
    lanes: Lanes,
    told: Callable[[Progress], None],
) -> None:
    with lanes.building:
        logs[0].run.rehearse()
        answers, dropped = _lived(case, asked, logs, lanes, told)
    wait(answers)
    for answer in answers:
        answer.result()
    for log in logs:
        log.finish(case, dropped)


def _lived(
    case: Case,
    asked: Sequence[Question],
    logs: Sequence[CaseLog],
    lanes: Lanes,
    told: Callable[[Progress], None],
) -> tuple[list[Future[None]], Sequence[str]]:
    """Everything but waiting for the answers: these, and the ids of the turns that no unit holds."""
    run = logs[0].run  # of the others it differs in what is read and where it is written only
    units = make_units(case.sessions, count=count_tokens, **run.unit)
    given = _evidence(case, units.units) if run.gold_evidence else {}
    points = list(schedule(case, units.units, asked))  # answered or not: a resumed run rebuilds where it did before
    due = schedule(case, units.units, [question for question in asked if any(question.id in log.left for log in logs)])
    answers: list[Future[None]] = []
    owed = [question for questions in due.values() for question in questions]
    told(Progress(run.name, case.id, "", "begun", units=len(units.units)))
    try:
        memory = build_memory(run, case)
        knobs = [_knobs(log.run, case) if len(logs) > 1 else {} for log in logs]
        _embed_ahead(run, memory, units.units, logs)
        every = run.rebuild_every if memory.OFFLINE else 1
        builds = {points[points.index(position) // every * every] for position in due}
        built = 0  # units that the last consolidation has seen
        for position, unit in enumerate([*units.units, None]):
            if position in builds:
                _consolidate(memory, logs, points.index(position))
                built = position
            if position in due:
                raw = units.units[built:position] if memory.OFFLINE else ()
                asking = [
                    _Asking(log.run, _turned(memory, own), raw, given, log, lanes, told)
                    for log, own in zip(logs, knobs, strict=True)
                ]
                answers += _ask_all(asking, due[position])
                owed = owed[len(due[position]) :]
            if unit is not None:
                following = units.units[position + 1] if position + 1 < len(units.units) else None
                _write(memory, unit, following, logs)
                told(Progress(run.name, case.id, "", "written"))
        for log, own in zip(logs, knobs, strict=True):
            log.structure(_turned(memory, own), None if log is logs[0] else logs[0])
    except Exception as error:
        if stops(error):
            wait(answers)
            raise
        _unless_stopped(error)
        for log in logs:
            _give_up(log, owed, error, told)
    return answers, units.dropped


def _knobs(run: Run, case: Case) -> dict[str, Any]:
    """The read knobs of a run as its memory's constructor leaves them: checked and normalised."""
    memory = build_memory(run, case)
    return {name: getattr(memory, name) for name in memory.READ_KNOBS}


def _turned(memory: MemorySystem, knobs: Mapping[str, Any]) -> MemorySystem:
    """The memory as it stands, to be read with these knobs; itself when there are none."""
    if not knobs:
        return memory
    view = copy(memory)
    for name, value in knobs.items():
        setattr(view, name, value)
    return view


def _give_up(log: CaseLog, owed: Sequence[Question], error: Exception, told: Callable[[Progress], None]) -> None:
    log.trouble(error)
    for question in owed:
        if question.id in log.left:
            log.predicted(question.id, "error", "", f"build: {_said(error)}")
            told(Progress(log.run.name, log.case_id, question.id, "error"))


def schedule(case: Case, units: Sequence[Unit], questions: Sequence[Question]) -> dict[int, list[Question]]:
    """Questions by the number of units written before they are asked, in order.

    A question is asked once every unit that lies wholly within what was lived through is written: `after=None` after the last,
    `after=""` before the first.

    Raises:
        DataError: a question is asked after a turn that does not exist.
    """
    place = {turn.id: index for index, turn in enumerate(case.turns)}
    ends = np.asarray([max((place[turn.id] for turn in unit.turns), default=-1) for unit in units], dtype=np.int64)
    due: dict[int, list[Question]] = {}
    for question in questions:
        if question.after is None:
            position = len(units)
        elif question.after == "":
            position = 0
        elif question.after in place:
            later = np.flatnonzero(ends > place[question.after])
            position = int(later[0]) if len(later) else len(units)
        else:
            raise DataError(
                f"{case.id}: question {question.id} is asked after turn {question.after!r}, which does not exist"
            )
        due.setdefault(position, []).append(question)
    return dict(sorted(due.items()))


def _embed_ahead(run: Run, memory: MemorySystem, units: Sequence[Unit], logs: Sequence[CaseLog]) -> None:
    """Embed all unit texts in batches before the first write; the cache then answers the memory's own calls."""
    if memory.EMBEDS_UNITS and "embedder" in needs(run.build) and units:
        with _step(logs, "embed", "", lambda: 0):
            run.services.embedder.embed([unit.text for unit in units])


def _write(memory: MemorySystem, unit: Unit, following: Unit | None, logs: Sequence[CaseLog]) -> None:
    with _step(logs, "write", unit.id, lambda: memory.held):
        memory.write(unit)
        if following is None or following.session_id != unit.session_id:
            memory.end_session(unit.session_id)


def _consolidate(memory: MemorySystem, logs: Sequence[CaseLog], point: int) -> None:
    with _step(logs, "consolidate", str(point), lambda: memory.held):
        memory.consolidate()


def _evidence(case: Case, units: Sequence[Unit]) -> dict[str, Recall]:
    """For the control that is given the evidence: by question the units that hold it, in order."""
    return {
        question.id: Recall(
            tuple(unit_item(unit) for unit in units if not set(unit.turn_ids).isdisjoint(gold.evidence))
        )
        for question, gold in case.questions
    }


@dataclass(frozen=True, slots=True)
class _Asking:
    """What the questions of one due point have in common."""

    run: Run
    memory: MemorySystem
    raw: Sequence[Unit]
    """Units since an offline memory was last built: kept raw, and shown after what it recalls."""
    given: Mapping[str, Recall]
    log: CaseLog
    lanes: Lanes
    told: Callable[[Progress], None]


def _ask_all(asking: Sequence[_Asking], questions: Sequence[Question]) -> list[Future[None]]:
    """Read for all questions of a due point: concurrently where reading calls a model, else here, because threads would only queue."""
    work = [(one, question) for one in asking for question in questions if question.id in one.log.left]
    if not needs(asking[0].run.build) & {"llm", "probe", "embedder"}:
        return [_ask(one, question) for one, question in work]
    reads = [one.lanes.questions.submit(_ask, one, question) for one, question in work]
    return [read.result() for read in reads]


def _recall(asking: _Asking, question: Question) -> Recall:
    if (given := asking.given.get(question.id)) is not None:
        return given
    recall = asking.memory.read(question)
    if not all(math.isfinite(item.score) for item in recall.items):
        raise ValueError(f"{asking.run.name} recalled an item whose score is no finite number")
    return replace(recall, items=(*recall.items, *map(unit_item, asking.raw))) if asking.raw else recall


def _ask(asking: _Asking, question: Question) -> Future[None]:
    """Read, then send the reader's call; the returned future ends when the line is written."""
    run, log, told = asking.run, asking.log, asking.told
    ended: Future[None] = Future()
    recalled = NOTHING

    def close(outcome: Outcome, answer: str, error: str = "", cut: bool = False) -> None:
        log.predicted(question.id, outcome, answer, error, recalled, cut)
        told(Progress(run.name, log.case_id, question.id, outcome))
        ended.set_result(None)

    try:
        with _step([log], "read", question.id, lambda: asking.memory.held):
            recall = _recall(asking, question)
        recalled = log.recalled(recall.items)
        if recall.aborted or recall.answer is not None:
            close("aborted" if recall.aborted else "answered", recall.answer or "", recall.aborted)
            return ended
        rendered = render(run.reader, run.services.prompts, question, recall, sample=run.replicate)
    except Exception as error:
        if stops(error):
            raise
        _unless_stopped(error)
        log.trouble(error)
        close("error", "", f"read: {_said(error)}")
        return ended
    asking.lanes.answers.acquire()
    ended.add_done_callback(lambda _: asking.lanes.answers.release())
    try:
        with metering() as ledger:
            call = run.services.reader.submit(rendered.request)
    except BaseException as broken:  # raised on: this only gives back the place among the awaited
        ended.set_exception(broken)
        raise

    def settle(done: Future[Completion]) -> None:
        try:
            error = done.exception()
            if error is not None and stops(error):
                raise error
            context, dropped = rendered.context_tokens, rendered.dropped
            log.spent(effort(log.case_id, "answer", question.id, 0, ledger, 0.0, context, dropped))
            close(*_answered(done))
        except BaseException as broken:  # a callback's exception would be swallowed, and the case would wait for ever
            ended.set_exception(broken)

    call.add_done_callback(settle)
    return ended


def _answered(done: Future[Completion]) -> tuple[Outcome, str, str, bool]:
    """The outcome of the reader's call, its answer, why there is none, and whether the answer was cut at its limit."""
    if (error := done.exception()) is not None:
        why = f"context overflow: {error}"[:500] if isinstance(error, ContextOverflow) else _said(error)
        return "error", "", f"answer: {why}", False
    reply = done.result()
    text = reply.text.strip()
    if not reply.usable or not text:
        return "error", "", f"answer: {why_none(reply)}", False
    return "answered", text, "", reply.stopped == "cut"


def _said(error: BaseException) -> str:
    return redact(f"{type(error).__name__}: {error}")[:500]  # before it is cut, or half a key would stay


def _unless_stopped(error: Exception) -> None:
    """What fails once a stop was asked for fails because of it, whatever a memory made of the refused call: no line is written."""
    if stopping.requested():
        raise stopping.Stopped() from error


@contextmanager
def _step(logs: Sequence[CaseLog], phase: str, subject: str, held: Callable[[], int]) -> Iterator[None]:
    """CPU and calls of one step; written to the logs when it ends, also when it fails."""
    stopping.check()
    started = time.thread_time()
    with metering() as ledger:
        try:
            yield
        finally:
            own = max(0.0, time.thread_time() - started - ledger.service_cpu)
            line = effort(logs[0].case_id, phase, subject, held(), ledger, own)
            for log in logs:
                log.spent(line)
