"""What the benchmark promises and does not time: nothing committed is asked again, however often a run is killed."""

from __future__ import annotations

import pytest

from tests.rigs.benchmarks.kills import kill

pytestmark = pytest.mark.integration


def test_after_twenty_kills_only_calls_in_flight_were_repeated_and_the_predictions_are_the_same() -> None:
    measured = kill(20)
    assert [one.what for one in measured if not one.holds] == []
    assert "after 0 kills" not in measured[0].what
