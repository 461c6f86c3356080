"""One case: a fresh memory; write unit after unit; where questions are due, consolidate and read them; save the structure.

Answers arrive in the background and never block writing. A failing question is one line with `error`; a failing build is one line for
each question that was still to be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

import numpy as np

from data_loaders.raw import LazyCases
from data_loaders.schema import Case, DataError, Question, Unit
from data_loaders.units import make_units
from eval.files.records import BUILD_FAILED, Prediction
from eval.files.run_folder import NODES, PREDICTIONS, VECTORS, is_complete, read_predictions
from eval.files.store import AGAIN, RunError
from eval.running.case_log import NOTHING, CaseLog, metered_step
from eval.running.cells import READING, OpenCell
from eval.running.failures import described, fatal_error, raise_fatal, raise_if_stopped
from eval.running.question import AnswerPools, Reading, ask_all
from eval.running.run import OnProgress, Progress, Run, build_memory, needs
from eval.running.work import write_unit
from memsys.interface import MemorySystem, setting, tuned
from memsys.llm import meter
from memsys.llm.limits import urgent
from memsys.tokens import count_tokens


def run_case(runs: Sequence[Run], case: Case, lanes: AnswerPools, cell: OpenCell, on_progress: OnProgress) -> None:
    """Run one case of runs that share their builds, from the first unit to sorted files; complete runs are skipped.

    Raises:
        EndOfRun: no further call can be made.
        DataError: a question is asked after a turn that does not exist.
        RunError: the case's files are damaged.
    """
    progress = [_progress(run, case) for run in runs]
    if all(complete and not left for _, left, complete in progress):
        report_kept(runs, case, on_progress)
        return
    logs: list[CaseLog] = []
    try:
        for run, (done, left, complete) in zip(runs, progress, strict=True):
            if kept := sum(run.questions(case.id, name) for name in done):
                on_progress(Progress(run.folder.name, case.id, "", "kept", kept))
            if left or not complete:
                logs.append(CaseLog(run, case, done, left, on_progress, lanes.on_answer))
        build = CaseRun(case, logs, lanes, cell, on_progress)
        build.live()
        cell.built()
        wait(build.answers)
        for answer in build.answers:
            answer.result()
        for log in logs:
            log.finish(build.dropped)
    finally:
        for log in logs:
            log.close()
    for run in runs:
        on_progress(Progress(run.folder.name, case.id, "", "complete"))


def answered_case(runs: Sequence[Run], index: int) -> Case | None:
    """The case at an index if it needs no further work in any of these runs, else None; it is parsed only if all mark it as finished.

    Raises:
        RunError: the case's files are damaged.
    """
    cases = runs[0].cases
    case_id = cases.ids[index] if isinstance(cases, LazyCases) else cases[index].id
    if not all(is_complete(run.case_folder(case_id)) for run in runs):
        return None
    case = cases[index]
    return case if all(complete and not left for _, left, complete in (_progress(run, case) for run in runs)) else None


def report_kept(runs: Sequence[Run], case: Case, on_progress: OnProgress) -> None:
    """Report the progress of a case that is answered already in all of these runs."""
    kept = sum(runs[0].questions(case.id, question.id) for question, _ in case.questions)
    for run in runs:
        if kept:
            on_progress(Progress(run.folder.name, case.id, "", "kept", kept))
    on_progress(Progress(runs[0].folder.name, case.id, "", "begun"))
    for run in runs:
        on_progress(Progress(run.folder.name, case.id, "", "complete"))


def fail_case(runs: Sequence[Run], case: Case, why: str, on_progress: OnProgress) -> None:
    """Give up a case that cannot be run: every open question becomes an error; the next start of the run tries it again."""
    for run in runs:
        done, left, _ = _progress(run, case)
        log = CaseLog(run, case, done, left, on_progress)
        for name in left:
            log.predicted(Prediction(case.id, name, "", *NOTHING, "error", why[:500]))
        log.finish(make_units(case.sessions, count=count_tokens, **run.unit).dropped)
        on_progress(Progress(run.folder.name, case.id, "", "complete"))


def _progress(run: Run, case: Case) -> tuple[dict[str, Prediction], dict[str, Question], bool]:
    """Predictions that can be kept and questions that are still to be asked, both by question id, and whether the case is finished.

    A finished case has its nodes' vectors if the run keeps them.
    """
    known = {question.id: question for question, _ in case.questions}
    folder = run.case_folder(case.id)
    predictions = read_predictions(folder)
    for prediction in predictions.values():
        if prediction.case_id != case.id or prediction.question_id not in known:
            found = f"found {prediction.question_id!r} of case {prediction.case_id!r}"
            raise RunError(f"{folder / PREDICTIONS}: expected questions of case {case.id}, {found}; {AGAIN}")
    done = {name: prediction for name, prediction in predictions.items() if prediction.outcome != "error"}
    left = {name: each for name, each in known.items() if name not in done and run.questions(case.id, name)}
    lacks_vectors = run.vectors and (folder / NODES).is_file() and not (folder / VECTORS).is_file()
    return done, left, is_complete(folder) and not lacks_vectors


def schedule(case: Case, units: Sequence[Unit], questions: Sequence[Question]) -> dict[int, list[Question]]:
    """Group questions by the number of units that are written before they are asked, in ascending order.

    A question is asked once every unit that ends at its turn `after` or earlier is written; with `after=None` after the last unit,
    with `after=""` before the first.

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
            asked = f"question {question.id} is asked after turn {question.after!r}"
            raise DataError(f"{case.id}: {asked}, which does not exist")
        due.setdefault(position, []).append(question)
    return dict(sorted(due.items()))


class CaseRun:
    """One memory on one case, from the first unit to the last question; answers may still be outstanding."""

    def __init__(
        self, case: Case, logs: Sequence[CaseLog], lanes: AnswerPools, cell: OpenCell, on_progress: OnProgress
    ) -> None:
        self.case, self.logs, self.lanes, self.cell, self.on_progress = case, logs, lanes, cell, on_progress
        self.run = logs[0].run  # the other runs differ in read knobs and folder only
        made = make_units(case.sessions, count=count_tokens, **self.run.unit)
        self.units, self.dropped = made.units, made.dropped
        questions = [question for question, _ in case.questions if self.run.questions(case.id, question.id)]
        due = schedule(case, self.units, questions)
        # Answered questions count here, too: a resumed run rebuilds at the same points as the first.
        self.points = list(due)
        left = {name for log in logs for name in log.left}
        still = {position: [each for each in asked if each.id in left] for position, asked in due.items()}
        self.due = {position: asked for position, asked in still.items() if asked}
        self.unasked = [question for due in self.due.values() for question in due]
        self.recall_only = frozenset(question.id for question, gold in case.questions if gold.supports == "recall")
        self.answers: list[Future[None]] = []
        self.built = 0
        """Number of units that the last consolidation included."""

    def live(self) -> None:
        """Write, consolidate and read; a failure becomes the error of every question that was not asked.

        Raises:
            EndOfRun: no further call can be made.
        """
        self.on_progress(Progress(self.run.folder.name, self.case.id, "", "begun", units=len(self.units)))
        self.run.rehearse()  # begun before it: the progress line names a memory that hangs in here
        memory: MemorySystem | None = None
        try:
            with meter.operation("build", self.logs[0].store):
                memory = built = build_memory(self.run, self.case)
            knobs = [_read_knobs(log.run, self.case) if len(self.logs) > 1 else {} for log in self.logs]
            if memory.EMBEDS_UNITS and "embedder" in needs(self.run.build) and self.units:
                # Units are embedded in batches before the first write; the cache then answers the memory's own calls.
                with metered_step(self.logs, "embed", "", lambda: 0):
                    self.run.services.embedder.embed([unit.text for unit in self.units])
            # It consolidates at every due point; an offline memory at every n-th.
            every = self.run.rebuild_every if memory.OFFLINE else 1
            builds = {self.points[self.points.index(position) // every * every] for position in self.due}
            for position, unit in enumerate([*self.units, None]):
                if position in builds:
                    step = "consolidate", str(self.points.index(position))
                    with urgent(self.cell.remaining), metered_step(self.logs, *step, lambda: built.held) as ledger:
                        built.consolidate()
                    self.cell.step(ledger.dependent, 0.0)
                    self.built = position
                if position in self.due:
                    self._ask(memory, knobs, position)
                if unit is not None:
                    step = "write", unit.id
                    with urgent(self.cell.remaining), metered_step(self.logs, *step, lambda: built.held) as ledger:
                        if meter.recorder is not None:
                            meter.recorder.records([(unit.id, unit.text)])
                        write_unit(memory, self.units, position)
                    self.cell.step(ledger.dependent, 1 / len(self.units))
                    spent = self.logs[0].seconds_since(answers=False)
                    self.on_progress(Progress(self.run.folder.name, self.case.id, "", "written", seconds=spent))
            with meter.operation("structure", self.logs[0].store):
                for log, own in zip(self.logs, knobs, strict=True):
                    try:
                        log.structure(tuned(memory, own), None if log is self.logs[0] else self.logs[0])
                    except BaseException as error:
                        raise_if_stopped(error)
                        log.failed("nodes", error)
        except BaseException as error:
            if fatal_error(error):
                wait(self.answers)
            raise_if_stopped(error)
            self._give_up(error)
        finally:
            if memory is not None:
                self._close(memory)

    def _close(self, memory: MemorySystem) -> None:
        try:
            with meter.operation("close", self.logs[0].store):
                memory.close()
        except BaseException as error:
            raise_fatal(error)
            for log in self.logs:
                log.failed("close", error)

    def _ask(self, memory: MemorySystem, knobs: Sequence[Mapping[str, Any]], position: int) -> None:
        raw, urgency = self.units[self.built : position] if memory.OFFLINE else (), self.cell.remaining
        if position == len(self.units):
            self.cell.built()  # cells that wait for reads do not count against the limit of builds
            urgency = READING
        readings = [
            Reading(tuned(memory, own), raw, log, self.lanes, urgency, self.recall_only)
            for log, own in zip(self.logs, knobs, strict=True)
        ]
        self.answers += ask_all(readings, self.due[position])
        self.unasked = self.unasked[len(self.due[position]) :]

    def _give_up(self, error: BaseException) -> None:
        for log in self.logs:
            log.trouble(error)
            for question in self.unasked:
                if question.id in log.left:
                    why = f"{BUILD_FAILED}{described(error)}"
                    log.predicted(Prediction(log.case_id, question.id, "", *NOTHING, "error", why))


def _read_knobs(run: Run, case: Case) -> dict[str, Any]:
    """The run's read knobs as the memory's constructor checks and normalises them."""
    memory = build_memory(run, case)
    return {name: setting(memory, name) for name in memory.READ_KNOBS}
