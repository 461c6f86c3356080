"""The verdicts of HaluMem's judge of answers."""

from __future__ import annotations

import pytest

from eval.metrics.halumem import verdict

REPLIES = [
    ('{"reason": "It is Correct, isn\'t it?", "label": "Omission"}', "Omission"),
    ('```json\n{"label": "Hallucination"}\n```', "Hallucination"),
    ("Correct", "Correct"),
    ('{"label": "Wrong"}', None),
    ('{"label": "Correct"} {"label": "Omission"}', None),
    ("Incorrect", None),
    ("", None),
]


def test_a_verdict_is_one_of_three_labels_or_none(subtests: pytest.Subtests) -> None:
    for reply, label in REPLIES:
        with subtests.test(reply=reply):
            assert verdict(reply) == label
