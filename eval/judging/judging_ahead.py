"""Judging as soon as an answer is saved, while other memories are still being built.

A verdict's call is sent with the lowest urgency, so it takes only places that no other call waits for. `eval.judging.score.score_judge`
uses such a call instead of its own, with the ledger that it was charged to, so score files and costs do not change. If the process is
killed, no received verdict is lost, because the cache has it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from data_loaders.schema import Case
from eval.files.records import Prediction
from eval.judging.judge import judge_requests
from eval.judging.score import Judging, Sent, VerdictKey, verdict_key
from eval.running.cells import JUDGING
from eval.running.run import OUTSTANDING, Run
from memsys.llm.limits import urgent
from memsys.llm.meter import metering
from memsys.llm.protocol import Completion, EndOfRun, Request


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A verdict that has not been requested yet."""

    judging: Judging
    requests: tuple[Request, ...]


class JudgingAhead:
    """Requests verdicts while a run is still answering. Safe to use from several threads."""

    def __init__(self) -> None:
        self._judges: dict[Path, list[Judging]] = {}
        self._waiting: dict[VerdictKey, _Waiting] = {}
        self._sent: dict[VerdictKey, Sent] = {}
        """Sent requests whose replies have not been taken."""
        self._ended: EndOfRun | None = None
        self._changed = threading.Condition()
        self._outstanding, self._most = 0, OUTSTANDING
        self._thread: threading.Thread | None = None

    def expect(self, run: Run, judges: Sequence[Judging]) -> None:
        """Register the judges of a run's answers. Judges that grade recalled texts are left to `score_judge`."""
        self._most = max(self._most, run.outstanding)
        self._judges[run.folder] = [judging for judging in judges if judging.judge.rule != "memory"]

    def on_answer(self, run: Run, case: Case, prediction: Prediction) -> None:
        """Request the verdicts on an answer that was saved.

        Raises:
            EndOfRun: the call for an earlier verdict has shown that no further call can be made.
        """
        judges = self._judges.get(run.folder)
        if not judges or prediction.outcome != "answered" or prediction.empty:
            return
        question, gold = next(each for each in case.questions if each[0].id == prediction.question_id)
        with self._changed:
            if self._ended is not None:
                raise self._ended
            for judging in judges:
                for repeat in range(judging.repeats):
                    key = verdict_key(run, judging, prediction, prediction.answer, repeat)
                    answer, prompts = prediction.answer, judging.prompts
                    requests = judge_requests(judging.judge, prompts, question, gold, answer, sample=repeat)
                    self._waiting[key] = _Waiting(judging, requests)
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_on, name="judging", daemon=True)
                self._thread.start()
            self._changed.notify()

    def take(self, key: VerdictKey) -> Sent | None:
        """The calls that were sent for a verdict, with their ledger; None when the caller must send them."""
        with self._changed:
            self._waiting.pop(key, None)
            return self._sent.pop(key, None)

    def _send_on(self) -> None:
        while True:
            with self._changed:
                while not self._waiting or self._outstanding >= self._most:
                    self._changed.wait()
                key = next(iter(self._waiting))
                waiting = self._waiting.pop(key)
                if self._ended is not None:
                    continue
                self._outstanding += len(waiting.requests)
                # Submitted with the lock held, so that `take` always sees it as either waiting or sent.
                with metering() as ledger:
                    calls = tuple(_submitted(waiting.judging, request) for request in waiting.requests)
                self._sent[key] = (ledger, calls)
            for call in calls:
                call.add_done_callback(self._on_reply)

    def _on_reply(self, call: Future[Completion]) -> None:
        error = call.exception()
        with self._changed:
            self._outstanding -= 1
            if isinstance(error, EndOfRun) and self._ended is None:
                self._ended = error
            self._changed.notify()


def _submitted(judging: Judging, request: Request) -> Future[Completion]:
    try:
        with urgent(JUDGING):
            return judging.llm.submit(request)
    except BaseException as error:
        refused: Future[Completion] = Future()
        refused.set_exception(error)
        return refused
