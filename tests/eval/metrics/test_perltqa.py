from __future__ import annotations

import pytest

from data_loaders.schema import Gold, Question
from eval.metrics import lexical, perltqa
from eval.records import Prediction, Score

QUESTION = Question("q1", "What does she study?")


def answered(answer: str) -> Prediction:
    return Prediction("c1", "q1", answer, items=(), scores=(), outcome="answered")


def test_case_matters_with_several_keywords_unless_folded() -> None:
    gold = "Bachelor; Computer Science"
    assert perltqa.keyword_containment("A Bachelor of computer science", gold) == 0.5
    assert perltqa.keyword_containment("A Bachelor of computer science", gold, fold_case=True) == 1
    assert perltqa.keyword_containment("BACHELOR", "Bachelor") == 1


def test_an_empty_keyword_is_always_found() -> None:
    assert perltqa.keyword_containment("nothing", "reading;") == 0.5


def test_recall_compares_whole_ids() -> None:
    assert perltqa.recall_at_k(["4_0", "4_0_0"], ["4_0_0", "4_0_1", "4_0_0"], 2) == 0.5
    assert perltqa.recall_at_k(["4_0_0"], [], 1) is None


def test_sentence_overlap_is_made_of_the_named_implementations() -> None:
    reply, gold = "She was studying maps, and maps", "She studies maps."
    overlap = perltqa.sentence_overlap(reply, gold)
    assert overlap.bleu1 == lexical.nltk_bleu(reply, gold)
    assert overlap.f1 == pytest.approx(2 * (2 / 5) * (2 / 3) / (2 / 5 + 2 / 3))
    assert overlap.rouge_l == pytest.approx(2 * (3 / 6) * 1 / (3 / 6 + 1))


def test_the_metric_takes_the_best_gold_and_its_knob() -> None:
    gold = Gold(("Maps; Rivers", "Stones"))
    assert perltqa.perltqa_keywords(QUESTION, gold, answered("maps")).value == 0.5
    assert perltqa.perltqa_keywords(QUESTION, gold, answered("MAPS")).value == 0
    assert perltqa.perltqa_keywords(QUESTION, gold, answered("MAPS"), fold_case=True).value == 0.5
    assert perltqa.perltqa_keywords(QUESTION, gold, answered("STONES")).value == 1
    failed = Prediction("c1", "q1", "", items=(), scores=(), outcome="error", error="no reply")
    assert perltqa.perltqa_keywords(QUESTION, gold, failed) == Score(None, why="error: no reply")
