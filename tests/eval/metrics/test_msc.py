from __future__ import annotations

import pytest

from eval.metrics import msc


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Same topic: CORRECT", True),
        ("Same topic, so NOT CORRECT", None),
        ("WRONG", False),
        ('{"label": "CORRECT"}', True),
        ("perhaps", None),
    ],
)
def test_memgpts_judge_says_correct_or_wrong(reply: str, expected: bool | None) -> None:
    assert msc.memgpt_verdict(reply) is expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"is_correct": true, "reasoning": "false friend"}', True),
        ('{"is_correct": False}', False),
        ('{"is_correct": true} or {"is_correct": false}', None),
        ('{"is_correct": "maybe"}', None),
        ("true", None),
    ],
)
def test_zeps_judge_fills_a_boolean_field(reply: str, expected: bool | None) -> None:
    assert msc.zep_verdict(reply) is expected


def test_memtrees_judge_gives_one_digit_by_itself(subtests: pytest.Subtests) -> None:
    for reply, expected in [
        ("1", True),
        ("0.", False),
        ("Score: 1\nNot 0", True),
        ("10", None),
        ("0.5", None),
        ("2.1", None),
        ("On a scale of 0 to 1 it is not 1.", None),
        ("0 or 1", None),
        ('{"score": 1}', True),
        ("similar", None),
        ("", None),
    ]:
        with subtests.test(reply=reply, expected=expected):
            assert msc.memtree_verdict(reply) is expected
