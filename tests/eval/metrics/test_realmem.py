from __future__ import annotations

import pytest

from eval.metrics import realmem


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


def test_each_number_of_a_memory_verdict_counts_by_itself_if_it_is_on_its_scale(subtests: pytest.Subtests) -> None:
    for reply, expected in [
        ('{"Mem_recall": 0.5, "Mem_helpful_score": 1, "Mem_hits": []}', (0.5, 1)),
        ('{"Mem_recall": 1.5, "Mem_helpful_score": 1}', (None, 1)),
        ('{"Mem_recall": 0.5, "Mem_helpful_score": 3}', (0.5, None)),
        ('{"Mem_recall": NaN, "Mem_helpful_score": 1}', (None, 1)),
        ('{"Mem_recall": 1.5, "Mem_helpful_score": 3}', (None, None)),
        ('{"Mem_recall": 0.5}', (0.5, None)),
        ("{" * 100_000 + "}", (None, None)),
    ]:
        with subtests.test(str(reply)[:40]):
            assert realmem.memory_verdict(reply) == expected
