"""Judging while answering: the same score files and costs, each verdict asked for once, and an end of the run that ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from scripted import ScriptedLLM
from small_history import history
from test_score import JUDGE, NO, YES

from eval.files.records import Prediction
from eval.judging.score import Judging, JudgingAhead, score_judge
from eval.judging.score_files import hash_of
from eval.running.loop import run_all
from eval.running.run import Run
from memsys.llm.meter import Metered
from memsys.llm.pricing import SpendingCapReached
from memsys.llm.protocol import Completion, ModelError, Request
from memsys.prompts import Prompts

Make = Callable[..., Run]
PROMPTS = Prompts()


def judging(llm: object, repeats: int = 2) -> Judging:
    return Judging(JUDGE, Metered(llm), "m", PROMPTS, repeats)  # type: ignore[arg-type]


def verdict(request: Request) -> str | ModelError:
    text = request.messages[-1][1]
    return ModelError("busy") if "q3" in text else YES if len(text) % 2 else NO


def test_score_files_and_costs_are_the_same_as_without_and_no_verdict_is_asked_for_twice(make_run: Make) -> None:
    cases = [history("a"), history("b")]
    after, ahead_llm = ScriptedLLM(verdict), ScriptedLLM(verdict)
    plain, early = make_run(cases, folder="plain"), make_run(cases, folder="early")
    run_all([plain])
    expected = score_judge(plain, judging(after))
    ahead, grader = JudgingAhead(), judging(ahead_llm)
    ahead.expect(early, [grader])
    run_all([early], on_answer=ahead.on_answer)
    path = score_judge(early, grader, sent_ahead=ahead.take)
    assert path.name == expected.name
    assert path.read_bytes() == expected.read_bytes()
    lines = [sorted(each.with_suffix(".effort.jsonl").read_text().splitlines()) for each in (path, expected)]
    assert lines[0] == lines[1]
    assert len(ahead_llm.requests) == len(after.requests) == 24


def test_verdicts_are_asked_for_before_scoring_begins(make_run: Make) -> None:
    asked = threading.Event()

    def noted(request: Request) -> str:
        asked.set()
        return YES

    run, ahead = make_run([history("a")]), JudgingAhead()
    ahead.expect(run, [judging(ScriptedLLM(noted))])
    run_all([run], on_answer=ahead.on_answer)
    assert asked.wait(30)


def answer_of(run: Run, question_id: str = "q0", outcome: str = "answered") -> Prediction:
    return Prediction(run.cases[0].id, question_id, "an answer", (), (), outcome)  # type: ignore[arg-type]


def test_the_end_of_the_run_met_by_a_verdict_ends_the_answering(make_run: Make) -> None:
    run, ahead = make_run([history("a")]), JudgingAhead()
    ahead.expect(run, [judging(ScriptedLLM(lambda request: SpendingCapReached("max_usd=1")))])
    ahead.on_answer(run, run.cases[0], answer_of(run))
    while ahead._ended is None:
        time.sleep(0.01)
    with pytest.raises(SpendingCapReached):
        ahead.on_answer(run, run.cases[0], answer_of(run, "q1"))


class Silent:
    """A model that never replies."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def submit(self, request: Request) -> Future[Completion]:
        self.asked.append(request)
        return Future()


def test_what_is_taken_before_it_was_sent_is_not_sent_again(make_run: Make) -> None:
    run, ahead, silent = make_run([history("a")]), JudgingAhead(), Silent()
    grader = judging(silent, repeats=1)
    ahead.expect(run, [grader])
    prediction = answer_of(run)
    key = grader.file(run), (prediction.case_id, prediction.question_id, hash_of(prediction.answer), 0)
    ahead.on_answer(run, run.cases[0], answer_of(run))
    call = ahead.take(key)
    assert ahead.take(key) is None
    assert len(silent.asked) == (call is not None)


@pytest.mark.parametrize("outcome", ["error", "aborted"])
def test_a_question_without_an_answer_is_not_judged_ahead(make_run: Make, outcome: str) -> None:
    run, ahead = make_run([history("a")]), JudgingAhead()
    ahead.expect(run, [judging(Silent())])
    ahead.on_answer(run, run.cases[0], answer_of(run, outcome=outcome))
    assert ahead._thread is None


def test_runs_that_nobody_expects_are_left_alone(make_run: Make) -> None:
    run, ahead = make_run([history("a")]), JudgingAhead()
    ahead.on_answer(run, run.cases[0], answer_of(run))
    assert ahead._thread is None
