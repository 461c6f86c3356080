from __future__ import annotations

import pytest

from data_loaders.longmemeval import CATEGORIES
from eval.metrics import longmemeval


def test_abstention_goes_by_the_id_before_the_type() -> None:
    assert longmemeval.judge_rule("q_abs", "temporal-reasoning") == longmemeval.ABSTENTION
    assert longmemeval.judge_rule("q_abs_2", "anything") == longmemeval.ABSTENTION
    assert longmemeval.judge_rule("q", "temporal-reasoning") == "temporal"


def test_the_rules_cover_the_six_types() -> None:
    assert set(longmemeval.RULE_OF_TYPE) == set(CATEGORIES)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="multi-hop"):
        longmemeval.judge_rule("q", "multi-hop")
