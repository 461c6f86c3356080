from __future__ import annotations

import pytest

from eval.metrics import longmemeval


def test_abstention_goes_by_the_id_before_the_type() -> None:
    assert longmemeval.judge_rule("q_abs", "temporal-reasoning") is longmemeval.ABSTENTION
    assert longmemeval.judge_rule("q_abs_2", "anything") is longmemeval.ABSTENTION
    assert longmemeval.judge_rule("q", "temporal-reasoning") is longmemeval.TEMPORAL


def test_the_five_rules_differ_and_cover_the_six_types() -> None:
    rules = [longmemeval.judge_rule("q", kind) for kind in longmemeval.QUESTION_TYPES]
    assert {rule.name for rule in rules} == {"standard", "temporal", "knowledge-update", "preference"}
    assert [rule.name for rule in rules].count("standard") == 3


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="multi-hop"):
        longmemeval.judge_rule("q", "multi-hop")
