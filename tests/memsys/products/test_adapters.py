"""What adapters decide without their products, which are not installed here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from memsys.products.adapters import cognee, graphiti

NOON = datetime(2023, 5, 8, 12, tzinfo=UTC)


def test_episodes_of_graphiti_that_share_a_time_follow_one_another() -> None:
    product = object.__new__(graphiti.Product)
    product._last = None
    stamps = [None, NOON.timestamp(), NOON.timestamp(), None, NOON.timestamp() + 3600]
    seconds = [(product._moment(stamp) - NOON) / timedelta(seconds=1) for stamp in stamps]
    assert seconds[1:] == [0, 1, 2, 3600]


def test_a_fact_of_graphiti_shows_from_when_and_until_when_it_holds_and_the_turns_of_its_episodes() -> None:
    product = object.__new__(graphiti.Product)
    product._turns, product._said = {"e1": ["t1", "t2"], "e2": ["t2", "t3"]}, {"e1": "8 May", "e2": "9 May"}
    fact = SimpleNamespace(uuid="f", fact="Mara lives in Porto", episodes=["e1", "e2"], valid_at=NOON, invalid_at=None)
    assert product._item(fact, 0.5)["time_text"] == "08 May 2023"
    assert product._item(fact, 0.5)["sources"] == ["t1", "t2", "t3"]
    fact.valid_at, fact.invalid_at = None, NOON + timedelta(days=30)
    ended = product._item(fact, 0.5)
    assert (ended["time_text"], ended["text"]) == ("8 May", "Mara lives in Porto (no longer since 07 June 2023)")


def test_a_pipeline_of_cognee_that_only_reports_its_failure_raises() -> None:
    cognee._require_success(SimpleNamespace(status="PipelineRunCompleted"))
    with pytest.raises(RuntimeError, match="the model is away"):
        cognee._require_success(SimpleNamespace(status="PipelineRunErrored", error_message="the model is away"))
