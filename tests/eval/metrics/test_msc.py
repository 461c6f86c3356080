from __future__ import annotations

import pytest

from eval.metrics import msc


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
