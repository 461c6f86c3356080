"""The files of one case while it runs, and the lines with the costs of each step."""

from __future__ import annotations

import io
import os
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from data_loaders.schema import Case
from eval.files.fields import PER_QUESTION, check_fields
from eval.files.records import Effort, Prediction
from eval.files.run_folder import (
    COMPLETE,
    EFFORTS,
    ERRORS,
    ITEMS,
    NODES,
    PREDICTIONS,
    VECTORS,
    read_efforts,
    read_items,
)
from eval.files.store import Appender, item_record, item_score, linked, replace_file, write_lines
from eval.running.failures import described, raise_if_stopped
from eval.running.run import OnAnswer, OnProgress, Progress, Run, ignore_answer
from memsys.interface import Item, MemorySystem
from memsys.jsons import encoded
from memsys.llm import meter, stopping
from memsys.llm.meter import Ledger, metering
from memsys.llm.secrets import redact

Recalled = tuple[tuple[str, ...], tuple[float, ...]]
"""Hashes of the recalled items, and the memory's own score of each, to four decimals."""
NOTHING: Recalled = (), ()


class CaseLog:
    """The open files of one case: predictions, recalled items and effort; several threads may write."""

    def __init__(
        self,
        run: Run,
        case: Case,
        done: Mapping[str, Prediction],
        left: Collection[str],
        on_progress: OnProgress = lambda progress: None,
        on_answer: OnAnswer = ignore_answer,
    ) -> None:
        self._case, self._on_answer, self._on_progress, self._process = case, on_answer, on_progress, os.getpid()
        folder = run.case_folder(case.id)
        self.run, self.case_id, self.left, self._folder = run, case.id, left, folder
        self.store = f"{run.folder.name}/{case.id}"
        """A tracer's name for the memory of this case (`memsys.llm.meter`)."""
        self._saved = dict(done)
        self._items = read_items(folder)
        write_lines(folder / PREDICTIONS, done.values())
        write_lines(folder / ITEMS, self._items.values())
        # A resumed case keeps the costs of answered questions. Its build is repeated, from the cache, and counted again.
        lines = read_efforts(folder, "subject")
        kept = (line for line in lines if line["phase"] in PER_QUESTION and line["subject"] in done)
        write_lines(folder / EFFORTS, kept)
        self._predictions, self._item_lines = Appender(folder / PREDICTIONS), Appender(folder / ITEMS)
        self._efforts = Appender(folder / EFFORTS)
        self._seconds = {True: 0.0, False: 0.0}
        """Seconds of steps that no event has reported: of reads and answers, and of the build."""
        self._lock = threading.Lock()
        self._trouble: list[str] = []
        self._report: dict[str, Any] = {}
        self._hidden_root = False

    def recalled(self, items: Sequence[Item]) -> Recalled:
        """Save the items that are not saved yet; returns hashes and scores of all items for the prediction."""
        records = [item_record(item) for item in items]
        for record in records:
            with self._lock:  # held until the line is added: another thread may name the item next
                if record["key"] not in self._items:
                    self._item_lines.add(record, waits=True)
                    self._items[record["key"]] = record
        return tuple(record["key"] for record in records), tuple(map(item_score, items))

    def predicted(self, prediction: Prediction) -> None:
        """Save the line of a question, after the lines of its items and costs, and report it."""
        self._item_lines.flush()
        self._efforts.flush()
        self._predictions.add(prediction)
        with self._lock:
            self._saved[prediction.question_id] = prediction
        self._on_answer(self.run, self._case, prediction)
        seconds = self.seconds_since(answers=True)
        name, question = self.run.folder.name, prediction.question_id
        self._on_progress(Progress(name, self.case_id, question, prediction.outcome, seconds=seconds))

    def spent(self, line: Effort) -> None:
        """Save the costs of a step."""
        self._efforts.add(line, waits=True)
        with self._lock:
            self._seconds[line.phase in PER_QUESTION] += line.provider_seconds_sum + line.own_cpu_seconds

    def seconds_since(self, *, answers: bool) -> float:
        """Seconds of the reads and answers, or of the build, since the last call: CPU seconds of the memory, and seconds of calls."""
        with self._lock:
            seconds, self._seconds[answers] = self._seconds[answers], 0.0
            return seconds

    def trouble(self, error: BaseException) -> None:
        """Store the traceback of an error, without secrets, for `errors.log`."""
        self.end_fork()
        with self._lock:
            self._trouble.append(redact("".join(traceback.format_exception(error))))

    def failed(self, step: str, error: BaseException) -> None:
        """Note the error of a step after the last read in the memory's report: the answers stand."""
        self.trouble(error)
        self._report = {**self._report, f"{step} failed": described(error)}

    def end_fork(self) -> None:
        """End a process that a memory made by `os.fork` and that returned from the memory: it would write into the files of this case."""
        if os.getpid() != self._process:
            os._exit(1)

    def structure(self, memory: MemorySystem, first: CaseLog | None = None) -> None:
        """Save the nodes after the last read: `nodes.jsonl`, and `vectors.npy` with one row per node (zeros for a node without a vector).

        An empty file means an empty memory; there is no file if the memory does not show its nodes.

        Args:
            first: a log of the same build that is saved already; equal vectors are linked to its file, not stored again.

        Raises:
            TypeError: a field of a node is of a wrong type.
        """
        self._hidden_root = memory.HIDDEN_ROOT
        try:
            report = dict(memory.report())
            encoded(report)  # what is no JSON is found here
            self._report = report
        except BaseException as error:
            raise_if_stopped(error)
            self.failed("report", error)
        place = self._folder / VECTORS
        place.unlink(missing_ok=True)
        nodes = list(memory.nodes())
        # An empty memory recalls nothing.
        if not nodes and (type(memory).nodes is MemorySystem.nodes or memory.held or self._items):
            return
        records = [
            {
                **{name: getattr(node, name) for name in ("id", "parents", "level", "kind", "text", "sources")},
                "start": node.start.isoformat() if node.start else None,
                "end": node.end.isoformat() if node.end else None,
            }
            for node in nodes
        ]
        for record in records:
            check_fields(record)
        write_lines(self._folder / NODES, records)
        if self.run.vectors:
            width = max((len(node.vector) for node in nodes if node.vector is not None), default=0)
            rows = [np.zeros(width, dtype=np.float32) if node.vector is None else node.vector for node in nodes]
            file = io.BytesIO()
            np.save(file, np.stack(rows) if width else np.empty((len(nodes), 0), dtype=np.float32))
            if first is None or not linked(first._folder / VECTORS, place, file.getvalue()):
                replace_file(place, file.getvalue())

    def finish(self, dropped: Sequence[str]) -> None:
        """Sort the lines, which arrived in any order, and write `case.json`, which marks the case as complete."""
        self.close()
        case = self._case
        asked = (question.id for question, _ in case.questions)
        write_lines(self._folder / PREDICTIONS, [self._saved[name] for name in asked if name in self._saved])
        write_lines(self._folder / ITEMS, sorted(self._items.values(), key=lambda item: str(item["key"])))
        if self._trouble:
            (self._folder / ERRORS).write_text("\n".join(self._trouble), encoding="utf-8", errors="replace")
        facts = {"case_id": case.id, "cluster": case.cluster or case.id, "dropped_turns": dropped, "notes": case.notes}
        own = {"memory": self._report, "hidden_root": self._hidden_root}
        write_lines(self._folder / COMPLETE, [{**facts, **own}])

    def close(self) -> None:
        """Close the files; closing twice does no harm."""
        for file in (self._predictions, self._item_lines, self._efforts):
            file.close()


@contextmanager
def metered_step(logs: Sequence[CaseLog], phase: str, subject: str, held: Callable[[], int]) -> Iterator[Ledger]:
    """Measure CPU seconds and calls of one step; save them to the logs when it ends, also when it fails; yields the step's ledger.

    `held` counts the entries in the memory after the step.

    Raises:
        Stopped: the user asked for a stop before the step.
    """
    stopping.check()
    started = time.thread_time()
    with metering() as ledger, meter.operation(phase, logs[0].store, subject):
        try:
            yield ledger
        finally:
            logs[0].end_fork()
            own = max(0.0, time.thread_time() - started - ledger.service_cpu) + ledger.worker_cpu
            line = effort(logs[0].case_id, phase, subject, held(), ledger, own)
            for log in logs:
                log.spent(line)


PER_PURPOSE = ("calls", "attempts", "failures", "parse_failures", "notes")
TOTALS = ("sent", "tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning", "embedding_calls", "embedding_tokens")
"""Counts that a line takes from the ledger as they are."""


def effort(
    case_id: str, phase: str, subject: str, held: int, ledger: Ledger, own_cpu: float, tokens: int = 0, dropped: int = 0
) -> Effort:
    """Build a line of `effort.jsonl` from the ledger of a step.

    Args:
        own_cpu: CPU seconds of the memory itself, without those of services.
        tokens, dropped: `context_tokens` and `dropped_items` of an answer.
    """
    counts: dict[str, Any] = {name: dict(getattr(ledger, name)) for name in PER_PURPOSE}
    return Effort(
        case_id=case_id,
        subject=subject,
        phase=phase,
        held=held,
        **counts,
        **{name: getattr(ledger, name) for name in TOTALS},
        provider_seconds=round(ledger.critical_seconds, 6),
        provider_seconds_sum=round(ledger.seconds, 6),
        own_cpu_seconds=round(own_cpu, 6),
        context_tokens=tokens,
        dropped_items=dropped,
        roles={role: dict(counts) for role, counts in ledger.roles.items()},
    )
