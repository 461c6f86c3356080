from __future__ import annotations

import pytest

from eval.metrics import realmem
from eval.metrics.realmem import MemoryVerdict


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
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
    ],
)
def test_a_score_off_the_scale_is_no_score(reply: str, expected: int | None) -> None:
    assert realmem.qa_score(reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"Mem_recall": 0.5, "Mem_helpful_score": 1, "Mem_hits": []}', MemoryVerdict(0.5, 1)),
        ('{"Mem_recall": 1.5, "Mem_helpful_score": 1}', None),
        ('{"Mem_recall": 0.5, "Mem_helpful_score": 3}', None),
        ('{"Mem_recall": NaN, "Mem_helpful_score": 1}', None),
        ('{"Mem_recall": 0.5}', None),
        ("{" * 100_000 + "}", None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_memory_verdict_needs_both_numbers_on_their_scales(reply: str, expected: MemoryVerdict | None) -> None:
    assert realmem.memory_verdict(reply) == expected
