"""FactConsolidation's official scores on recorded replies, and the rule that the newest fact is the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics import longmemeval_mab as mab
from eval.metrics.factconsolidation import fact_brief, fact_newest
from eval.metrics.lexical import squad_exact_match, squad_normalise
from scripts.assembly.steps import metrics

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "factconsolidation_metrics.json").read_text(encoding="utf-8")
)
QUESTION = Question("sh_0", "Which sport is Harbour hurling associated with?")
METRICS = {
    "exact_match": "mab_em",
    "f1": "mab_f1",
    "substring_exact_match": "mab_substring_em",
    "rougeL_f1": "mab_rouge_l_f",
    "rougeL_recall": "mab_rouge_l_recall",
}
"""Our metrics by their names in the official script."""


def close(value: Any) -> Any:
    return pytest.approx(value, abs=1e-6)


def said(answer: str) -> Prediction:
    return Prediction("c1", "sh_0", answer, items=(), scores=(), outcome="answered")


def newest(answer: str, gold: str, stale: str | None) -> float | None:
    return fact_newest(QUESTION, Gold((gold,), detail={"newest": gold, "stale_answer": stale}), said(answer)).value


def test_replies_score_as_in_the_official_script(subtests: pytest.Subtests) -> None:
    assert RECORDED["cases"]
    for case in RECORDED["cases"]:
        with subtests.test(case["output"]):
            assert mab.parse_output(case["output"]) == case["parsed"]
            if case["output"].strip():
                gold = Gold(tuple(case["answers"]))
                for name, metric in zip(METRICS, metrics([*METRICS.values()]), strict=True):
                    value = metric.score(QUESTION, gold, said(case["output"])).value
                    assert value == close(float(case["expected"][name])), name


def test_texts_are_normalised_and_compared_and_parsed_as_in_the_official_script(subtests: pytest.Subtests) -> None:
    for case in RECORDED["normalize"]:
        with subtests.test(case["text"]):
            assert squad_normalise(case["text"]) == case["normalized"]
    for case in RECORDED["pairs"]:
        with subtests.test(f"{case['prediction']} · {case['gold']}"):
            prediction, gold = case["prediction"], case["gold"]
            assert mab.substring_match(prediction, gold) is case["substring_exact_match"]
            assert squad_exact_match(prediction, gold) == case["exact_match"]
            assert mab.token_f1(prediction, gold) == close(case["f1"])
    for case in RECORDED["parse_output"]:
        with subtests.test(case["output"]):
            assert mab.parse_output(case["output"]) == case["parsed"]


def test_the_newest_value_is_right_and_naming_the_overwritten_one_beside_it_is_not() -> None:
    assert newest("It is Ottawa.", "Ottawa", "Quay") == 1.0
    assert newest("Ottawa, earlier Quay", "Ottawa", "Quay") == 0.0
    assert newest("Quay", "Ottawa", "Quay") == 0.0
    assert newest("I do not know", "Ottawa", None) == 0.0
    assert mab.raw_or_parsed("Ottawa, earlier Quay", "Ottawa", "substring_em") == 1.0


def test_a_value_counts_as_whole_words_only() -> None:
    assert newest("Indiana", "India", None) == 0.0
    assert mab.raw_or_parsed("Indiana", "India", "substring_em") == 1.0


def test_of_a_value_that_is_part_of_the_other_the_longer_one_is_looked_for_first() -> None:
    assert (newest("rugby", "rugby", "rugby union"), newest("rugby union", "rugby", "rugby union")) == (1.0, 0.0)
    assert (newest("rugby union", "rugby union", "rugby"), newest("rugby", "rugby union", "rugby")) == (1.0, 0.0)


def test_a_released_answer_that_is_the_overwritten_fact_gives_way_to_the_newest_one() -> None:
    gold = Gold(("Quay",), detail={"newest": "Indrivell", "stale_answer": "Quay"})
    assert fact_newest(QUESTION, gold, said("Indrivell")).value == 1.0
    assert fact_newest(QUESTION, gold, said("Quay")) == Score(0.0, why="the overwritten value is named")


def test_a_question_without_a_derived_fact_keeps_its_released_answers() -> None:
    gold = Gold(("Vell", "the town of Vell"), detail={})
    assert (fact_newest(QUESTION, gold, said("Vell")).value, fact_newest(QUESTION, gold, said("Quay")).value) == (1, 0)


def test_a_brief_reply_has_few_words_more_than_the_gold_answer() -> None:
    gold = Gold(("Quay College",))
    assert fact_brief(QUESTION, gold, said("one two three four five")).value == 1.0
    assert fact_brief(QUESTION, gold, said("one two three four five six")).value == 0.0
    assert fact_brief(QUESTION, gold, said("one two three"), more=0).value == 0.0


def test_a_failed_call_is_not_scored() -> None:
    failed = Prediction("c1", "sh_0", "", items=(), scores=(), outcome="error", error="no reply")
    for metric in (fact_newest, fact_brief):
        assert metric(QUESTION, Gold(("Vell",)), failed) == Score(None, why="error: no reply")
