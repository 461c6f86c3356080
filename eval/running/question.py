"""One question: read from the memory, send the reader's call, save the answer when it arrives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from data_loaders.schema import Question, Unit
from eval.files.fields import LARGEST
from eval.files.records import Outcome, Prediction
from eval.running.case_log import NOTHING, CaseLog, Recalled, effort, metered_step
from eval.running.cells import ANSWERING
from eval.running.failures import described, raise_fatal, raise_if_stopped
from eval.running.pool import UrgentPool
from eval.running.reader import Rendered, render
from eval.running.run import OnAnswer, ignore_answer, needs
from memsys.interface import Item, MemorySystem, Recall, unit_item
from memsys.llm import meter
from memsys.llm.limits import urgent
from memsys.llm.meter import Ledger, metering
from memsys.llm.protocol import Completion, ContextOverflow, waiting
from memsys.llm.replies import why_none


@dataclass(frozen=True, slots=True)
class AnswerPools:
    """Resources that the cells of an experiment share."""

    questions: UrgentPool
    saving: UrgentPool
    """Threads that save answers. They are separate from those of the questions, because all of those may wait until an answer is saved."""
    answers: threading.Semaphore
    """One slot for each answer that may be outstanding at once."""
    on_answer: OnAnswer = ignore_answer


@dataclass(frozen=True, slots=True)
class Reading:
    """Data that the questions of one run at one due point share."""

    memory: MemorySystem
    raw: Sequence[Unit]
    """Units since the last build of an offline memory: they are shown literally, after the recalled items."""
    log: CaseLog
    lanes: AnswerPools
    urgency: float
    """Urgency of reading: a read in the middle of a history delays the rest of the build."""
    recall_only: Collection[str]
    """Ids of the questions whose recall alone counts: the reader is not asked."""


def ask_all(readings: Sequence[Reading], questions: Sequence[Question]) -> list[Future[None]]:
    """Ask the open questions of a due point; each returned future ends when its line is saved.

    Reads that call a model or a service run concurrently. Others run in this thread, because threads would only queue for the same core.
    """
    work = [(reading, question) for reading in readings for question in questions if question.id in reading.log.left]
    if not (needs(readings[0].log.run.build) & {"llm", "probe", "embedder"} or readings[0].memory.WAITS_TO_READ):
        return [_Answer(reading, question).ask() for reading, question in work]
    pool = readings[0].lanes.questions
    asked = [pool.submit(reading.urgency, _Answer(reading, question).ask) for reading, question in work]
    return [future.result() for future in asked]


@dataclass(slots=True)
class _Answer:
    """The answer to one question, from the memory's read to its line in the log."""

    reading: Reading
    question: Question
    recalled: Recalled = NOTHING
    saved: Future[None] = field(default_factory=Future)
    resume: Callable[[], AbstractContextManager[None]] = nullcontext
    """Opens the search for a tracer, to which the reader's call belongs."""

    def ask(self) -> Future[None]:
        """Read from the memory, then send the reader's call; the returned future ends when the answer's line is saved.

        The line is saved at once if the read failed, was aborted, gave the answer, or counts alone.
        """
        memory, question, run = self.reading.memory, self.question, self.reading.log.run
        try:
            with (
                urgent(self.reading.urgency),
                metered_step([self.reading.log], "read", question.id, lambda: memory.held),
            ):
                with waiting() if memory.WAITS_TO_READ else nullcontext():
                    recall = memory.read(question)
                check_types(recall)
                if not all(abs(item.score) <= LARGEST for item in recall.items):  # false for NaN
                    raise ValueError(f"{run.name} recalled an item whose score is no finite number, or beyond 2**53")
                if self.reading.raw:
                    recall = replace(recall, items=(*recall.items, *map(unit_item, self.reading.raw)))
                if meter.recorder is not None:
                    meter.recorder.query(question.text)
                    meter.recorder.records([(item.id, item.text) for item in recall.items])
                    self.resume = meter.recorder.resumable()
            self.recalled = self.reading.log.recalled(recall.items)
            if recall.aborted or recall.answer is not None:
                self.save("aborted" if recall.aborted else "answered", recall.answer or "", recall.aborted)
                return self.saved
            if question.id in self.reading.recall_only:
                self.save("recalled", "")
                return self.saved
            rendered = render(run.reader, run.services.prompts, question, recall, sample=run.replicate)
        except BaseException as error:
            raise_if_stopped(error)
            self.reading.log.trouble(error)
            self.save("error", "", f"read: {described(error)}")
        else:
            self._send(rendered)
        return self.saved

    def _send(self, rendered: Rendered) -> None:
        """Submit the reader's call once an answer slot is free; another thread saves its reply.

        The thread that delivers the reply also delivers the replies of builds, which must not wait for files to be written.
        """
        slots, saving = self.reading.lanes.answers, self.reading.lanes.saving
        with waiting():  # wait until another thread has saved an answer
            slots.acquire()
        self.saved.add_done_callback(lambda _: slots.release())
        try:
            with urgent(ANSWERING), self.resume(), metering() as ledger:
                call = self.reading.log.run.services.reader.submit(rendered.request)
        except BaseException as error:  # re-raised; only releases the answer slot
            self.saved.set_exception(error)
            raise
        call.add_done_callback(lambda done: saving.submit(0, self._settle, done, rendered, ledger))

    def _settle(self, done: Future[Completion], rendered: Rendered, ledger: Ledger) -> None:
        try:
            if (error := done.exception()) is not None:
                raise_fatal(error)
            log, shown = self.reading.log, (rendered.context_tokens, rendered.dropped)
            log.spent(effort(log.case_id, "answer", self.question.id, 0, ledger, 0.0, *shown))
            self.save(*outcome_of(done))
        except BaseException as error:  # a future swallows its callback's exception, and the case would wait for ever
            self.saved.set_exception(error)

    def save(self, outcome: Outcome, answer: str, error: str = "", cut: bool = False) -> None:
        """Write the question's line and complete `saved`."""
        log = self.reading.log
        log.predicted(Prediction(log.case_id, self.question.id, answer, *self.recalled, outcome, error, cut))
        self.saved.set_result(None)


ITEM = {"id": str, "text": str, "score": Real, "sources": tuple | list}  # a text is no list of sources


def check_types(recall: Any) -> None:
    """Name what a memory of one's own returns in a wrong type; later errors would name an attribute or a line of a file.

    Raises:
        TypeError: the recall, one of its items, or a value in it is of another type.
    """
    if not isinstance(recall, Recall):
        raise TypeError(f"read returned {type(recall).__name__}, not a Recall")
    parts: list[tuple[str, Any, Any]] = [("items", recall.items, tuple | list), ("answer", recall.answer or "", str)]
    for item in recall.items if isinstance(recall.items, tuple | list) else ():
        parts.append(("an item", item, Item))
        parts += [(f"{name} of an item", getattr(item, name, None), kind) for name, kind in ITEM.items()]
        sources = getattr(item, "sources", ())
        parts += [("a source of an item", each, str) for each in (sources if isinstance(sources, tuple | list) else ())]
    for what, found, kind in parts:
        if not isinstance(found, kind):
            raise TypeError(f"read returned a Recall in which {what} is {type(found).__name__}")


def outcome_of(done: Future[Completion]) -> tuple[Outcome, str, str, bool]:
    """Outcome of the reader's call, its answer, the reason why there is none, and whether the answer was cut at its token limit.

    An empty reply that the model ended itself is an answer with the score 0, as in every official scorer: otherwise a model that stays
    silent where it knows nothing would be scored on the other questions alone. A refusal, a tool call and a reply whose token limit
    was spent on reasoning are errors: the provider or our settings cause them, and they say nothing about the memory.
    """
    if (error := done.exception()) is not None:
        why = f"context overflow: {error}"[:500] if isinstance(error, ContextOverflow) else described(error)
        return "error", "", f"answer: {why}", False
    reply = done.result()
    if not reply.usable and reply.stopped != "empty":
        return "error", "", f"answer: {why_none(reply)}", False
    return "answered", reply.text.strip(), "", reply.stopped == "cut"
