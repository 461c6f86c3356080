from __future__ import annotations

import pytest

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics import locomo

QUESTION = Question("conv-1_q0", "What?")


def gold_of(category: int, *answers: str) -> Gold:
    return Gold(answers, detail={"category_id": category})


def answered(answer: str) -> Prediction:
    return Prediction("conv-1", "conv-1_q0", answer, items=(), scores=(), outcome="answered")


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        (1, (2 / 3 + 0) / 2),  # parts "river; because" (one stem of two shared) and "lamp"
        (2, 1 / 2),  # one stem shared of one and three
        (3, 1),  # the gold ends at the semicolon
        (4, 1 / 2),
        (5, 0),  # no abstention
    ],
)
def test_the_category_number_selects_the_rule(category: int, expected: float) -> None:
    score = locomo.locomo_f1(QUESTION, gold_of(category, "river; because, lamp"), answered("river"))
    assert score.value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [("That is NOT MENTIONED anywhere.", 1), ("No information available", 1), ("unknown", 0), ("", 0), ("the trap", 0)],
)
def test_category_5_wants_one_of_two_phrases_and_needs_no_gold(reply: str, expected: float) -> None:
    assert locomo.locomo_f1(QUESTION, gold_of(5), answered(reply)).value == expected


def test_a_number_as_answer_is_compared_as_text() -> None:
    assert locomo.question_score("in 2022", 2022, 2) == pytest.approx(2 / 3)


def test_only_the_official_gold_counts() -> None:
    gold = gold_of(4, "river", "lamp")
    assert locomo.locomo_f1(QUESTION, gold, answered("river")).value == 1
    assert locomo.locomo_f1(QUESTION, gold, answered("lamp")).value == 0


def test_an_unanswered_question_has_no_score() -> None:
    failed = Prediction("conv-1", "conv-1_q0", "", items=(), scores=(), outcome="error", error="no reply")
    assert locomo.locomo_f1(QUESTION, gold_of(5), failed) == Score(None, why="error: no reply")
    assert locomo.locomo_f1(QUESTION, gold_of(4), answered("river")).value is None


@pytest.mark.parametrize("category", [0, 6])
def test_an_unknown_category_is_refused(category: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 5"):
        locomo.question_score("a", "b", category)


def test_a_gold_of_another_benchmark_is_refused() -> None:
    with pytest.raises(ValueError, match="category_id"):
        locomo.locomo_f1(QUESTION, Gold(("river",), category="single-hop"), answered("river"))


def test_a_judge_never_sees_the_trap_nor_the_explanation() -> None:
    assert locomo.judge_gold(gold_of(3, "Likely no; she dislikes rain")) == "Likely no"
    assert locomo.judge_gold(gold_of(1, "tea; coffee")) == "tea; coffee"
    trapped = Gold(("Not mentioned in the conversation",), trap="necklace", detail={"category_id": 5})
    assert "not mentioned" in locomo.judge_gold(trapped)
    assert "necklace" not in locomo.judge_gold(trapped)


def test_a_label_is_read_or_there_is_no_verdict(subtests: pytest.Subtests) -> None:
    for reply, expected in [
        ('{"reason": "not WRONG at all", "label": "CORRECT"}', True),
        ('```json\n{"label" : "wrong"}\n```', False),
        ("The same date. CORRECT", True),
        ("WRONG", False),
        ("INCORRECT", None),
        ("NOT CORRECT", None),
        ("The answer is NOT CORRECT.", None),
        ('{"reason": "the CORRECT date", "label": "NOT CORRECT"}', None),
        ('{"label": "CORRECT"} {"label": "WRONG"}', None),
        ("CORRECT, because both name Oaxaca", True),
        ("Label: WRONG - the CORRECT one is June", None),
        ("CORRECT? No.", None),
        ("CORRECT or WRONG?", None),
        ("it is correct", None),
        ("", None),
    ]:
        with subtests.test(reply=reply, expected=expected):
            assert locomo.label_verdict(reply) is expected
