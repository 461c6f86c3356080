from __future__ import annotations

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics import perltqa
from scripts.assembly.steps import metrics

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


def test_the_metric_takes_the_best_gold() -> None:
    gold = Gold(("Maps; Rivers", "Stones"))
    (metric,) = metrics(["perltqa_keywords"])
    assert metric.score(QUESTION, gold, answered("maps")).value == 0.5
    assert metric.score(QUESTION, gold, answered("MAPS")).value == 0
    assert metric.score(QUESTION, gold, answered("STONES")).value == 1
    failed = Prediction("c1", "q1", "", items=(), scores=(), outcome="error", error="no reply")
    assert metric.score(QUESTION, gold, failed) == Score(None, why="error: no reply")
