from __future__ import annotations

import pytest

from data_loaders.schema import Case, Session
from eval.metrics import realmem
from eval.metrics.realmem import JudgedAnswer, MemoryVerdict


def test_the_corpus_is_sorted_as_strings() -> None:
    case = Case("p", ("User", "Assistant"), tuple(Session(name, ()) for name in ("B:S2", "B:S10", "A:S1")), ())
    assert realmem.session_corpus(case) == ("A:S1", "B:S10", "B:S2")


def test_chunks_that_are_no_session_are_dropped_from_the_ranking() -> None:
    assert realmem.ranking(["S3", "summary", "S1", "S3"], ["S1", "S2", "S3"]) == [2, 0, 2]


def test_positions_outside_the_corpus_use_up_their_rank() -> None:
    scores = realmem.retrieval_at_k([9, 8, 0], ["S1"], ["S1", "S2"], 2)
    assert scores.recall_any == 0
    assert realmem.retrieval_at_k([9, 8, 0], ["S1"], ["S1", "S2"], 3).recall_any == 1


def test_a_session_ranked_twice_can_lift_ndcg_above_1() -> None:
    assert realmem.retrieval_at_k([0, 0], ["S1"], ["S1", "S2"], 2).ndcg_any == 2


def test_personas_weigh_the_same_and_are_rounded_first() -> None:
    values = {"a": [1.0], "b": [0.0, 0.0, 1.0]}
    assert realmem.persona_mean(values["b"]) == 0.3333
    assert realmem.across_personas(values) == pytest.approx(0.6666, abs=6e-5)
    with pytest.raises(ValueError, match="at least one"):
        realmem.across_personas({})


def test_a_score_off_the_scale_is_no_score(subtests: pytest.Subtests) -> None:
    for reply, expected in [
        ('{"score": 2, "reason": "part"}', 2),
        ('Verdict: {"score": 0} done', 0),
        ('```json\n{"score": 3}\n```', 3),
        ('{"score": 4}', None),
        ('{"score": 2.5}', None),
        ('{"score": true}', None),
        ('{"score": "3"}', None),
        ('[{"score": 3}]', 3),
        ('{"grade": 3}', None),
        ('{"score": 1} {"score": 2}', None),
        ("3", None),
        ("", None),
    ]:
        with subtests.test(reply=reply, expected=expected):
            assert realmem.qa_score(reply) == expected


def test_a_memory_verdict_needs_both_numbers_on_their_scales(subtests: pytest.Subtests) -> None:
    for reply, expected in [
        ('{"Mem_recall": 0.5, "Mem_helpful_score": 1, "Mem_hits": []}', MemoryVerdict(0.5, 1)),
        ('{"Mem_recall": 1.5, "Mem_helpful_score": 1}', None),
        ('{"Mem_recall": 0.5, "Mem_helpful_score": 3}', None),
        ('{"Mem_recall": NaN, "Mem_helpful_score": 1}', None),
        ('{"Mem_recall": 0.5}', None),
        ("{" * 100_000 + "}", None),
    ]:
        with subtests.test(str(reply)[:40]):
            assert realmem.memory_verdict(reply) == expected


def test_unparsable_replies_are_counted_and_not_averaged() -> None:
    summary = realmem.summarise([JudgedAnswer(3), JudgedAnswer(None, MemoryVerdict(0.5, 2)), JudgedAnswer(0)])
    assert (summary.average_qa_score, summary.unscored) == (1.5, 1)
    assert (summary.qa_perfect_rate, summary.qa_hallucination_rate) == (0.5, 0.5)
    assert (summary.average_mem_recall, summary.average_mem_helpful_score) == (0.5, 2)


def test_nothing_judged_has_no_means() -> None:
    summary = realmem.summarise([JudgedAnswer(None)])
    assert summary.average_qa_score is summary.qa_perfect_rate is summary.average_mem_recall is None
    assert summary.qa_score_distribution == {0: 0, 1: 0, 2: 0, 3: 0}


def test_chunks_are_numbered_and_cut_at_k() -> None:
    assert realmem.evidence_text(["one", "two"], 1) == "---- idx 1 ----\none"
    assert realmem.evidence_text([], 5) == ""
