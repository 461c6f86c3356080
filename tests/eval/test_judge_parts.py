"""Judges that ask several questions about one answer: which requests they make, and which score the replies become."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from data_loaders.beam import load
from data_loaders.schema import Gold, Question
from data_loaders.source import sample
from eval.files.records import Score
from eval.judging.judge import Judge, judge_requests, judged_together
from memsys.llm.protocol import Completion
from memsys.prompts import Prompts

CONF = Path(__file__).resolve().parents[2] / "conf" / "judge"
ASKED = {question.id: (question, gold) for question, gold in load(sample("beam").path)[0].questions}
SUM, ORDER, REFUSE = (ASKED[f"{ability}_0"] for ability in ("summarization", "event_ordering", "abstention"))


def judge(name: str) -> Judge:
    return Judge(**yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8")))


def texts(name: str, asked: tuple[Question, Gold], answer: str) -> list[str]:
    requests = judge_requests(judge(name), Prompts(), *asked, answer)
    return ["\n".join(text for _, text in request.messages) for request in requests]


def score(name: str, asked: tuple[Question, Gold], answer: str, replies: list[str]) -> Score:
    return judged_together(judge(name), [Completion(reply) for reply in replies], asked[1], answer)


def items(*scores: float) -> list[str]:
    return [json.dumps({"reason": "r", "score": each}) for each in scores]


def test_every_rubric_item_is_asked_in_a_call_of_its_own() -> None:
    shown = texts("beam_official", SUM, "A log, a smoker, frames.")
    assert len(shown) == len(SUM[1].detail["rubric"]) == 3
    for text, item in zip(shown, SUM[1].detail["rubric"], strict=True):
        assert f"<criterion>\n{item}\n</criterion>" in text
        assert "<reply>\nA log, a smoker, frames.\n</reply>" in text
        assert SUM[1].answers[0] not in text


def test_the_official_judge_does_not_see_the_question_and_ours_does() -> None:
    assert SUM[0].text not in texts("beam_official", SUM, "x")[0]
    assert SUM[0].text in texts("beam", SUM, "x")[0]


def test_halves_are_lost_officially_and_count_otherwise() -> None:
    replies = items(1, 0.5, 0)
    values = {name: score(name, SUM, "x", replies).value for name in ("beam_official", "beam_halves", "beam")}
    assert values == {"beam_official": pytest.approx(1 / 3), "beam_halves": 0.5, "beam": 0.5}


def test_one_part_without_a_verdict_leaves_the_answer_unscored() -> None:
    missing = score("beam", SUM, "x", [*items(1, 1), "I cannot tell."])
    assert missing.value is None
    assert missing.why.startswith("1 of 3 parts have no verdict; the first: no verdict in the reply")


def test_an_order_is_asked_pair_by_pair_and_scored_by_the_judges_rule() -> None:
    answer = "The log\nA heading nobody asked for"
    assert len(texts("beam_official", ORDER, answer)) == 6
    same = ["yes", "no", "no", "no", "no", "no"]
    found = {name: score(name, ORDER, answer, same) for name in ("beam_official", "beam_final", "beam_f1", "beam")}
    tau, f1 = found["beam_official"].value, found["beam_f1"].value
    assert tau is not None
    assert f1 == pytest.approx(2 / 5)
    assert found["beam_final"].value == found["beam"].value == pytest.approx(tau * 2 / 5)
    assert found["beam_official"].detail["final"] == found["beam_final"].value


def test_an_answer_of_headings_only_makes_no_call_and_scores_zero_corrected() -> None:
    assert texts("beam", ORDER, "In this order:\n") == []
    assert score("beam", ORDER, "In this order:\n", []).value == 0.0


def test_a_refusal_beats_wrong_lines_officially_and_gets_nothing_corrected() -> None:
    one, three = "I cannot tell.", "a\nb\nc"
    official = [score("beam_official", ORDER, text, ["no"] * 3 * lines).value for text, lines in ((one, 1), (three, 3))]
    assert official[0] == pytest.approx(0.146447, abs=1e-6)
    assert official[0] > (official[1] or 0.0)
    assert score("beam", ORDER, one, ["no"] * 3).value == 0.0


def test_the_refusal_that_an_abstention_asks_for_is_a_criterion_to_meet() -> None:
    (request,) = judge_requests(judge("beam"), Prompts(), *REFUSE, "The chat does not say.")
    assert request.fields["unanswerable"] is False
    assert request.fields["gold"] == REFUSE[1].detail["rubric"][0]


def test_all_other_judges_ask_one_question() -> None:
    assert len(judge_requests(judge("mem0"), Prompts(), *SUM, "x")) == 1
    assert score("mem0", SUM, "x", ['{"label": "CORRECT"}']).value == 1.0
