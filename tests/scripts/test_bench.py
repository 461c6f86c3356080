"""What the benchmark promises and does not time: servers that say where they are, and no call that is asked again after a kill."""

from __future__ import annotations

from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.rigs.benchmarks.kills import kill
from tests.rigs.benchmarks.measured import mock

pytestmark = pytest.mark.integration


def test_after_twenty_kills_only_calls_in_flight_were_repeated_and_the_predictions_are_the_same() -> None:
    measured = kill(20)
    assert [one.what for one in measured if not one.holds] == []
    assert "after 0 kills" not in measured[0].what


@pytest.mark.parametrize(("verb", "path", "status"), [("mock-endpoint", "/stats", 200), ("mock-memory", "/", 404)])
def test_a_mock_server_on_any_free_port_prints_the_address_at_which_it_answers(
    verb: str, path: str, status: int
) -> None:
    with mock(verb=verb) as url:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
        connection.request("GET", path)
        assert connection.getresponse().status == status
