"""An endpoint with limits: the mock counts as providers do, and the client keeps to what it is told."""

from __future__ import annotations

import pytest

from memsys.llm.client import Client
from memsys.llm.endpoint import Endpoint, EndpointLimits
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import QuotaExhausted, Request
from scripts.mock.endpoint import Mock, Rations, application, serving


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_begins_with_a_seconds_worth_refills_steadily_and_tells_it() -> None:
    clock = Clock()
    rations = Rations(rpm=60, clock=clock)
    assert rations.refusal(10) is None
    refusal = rations.refusal(10)
    assert refusal is not None
    body, headers = refusal
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert headers["Retry-After"] == "1"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"] == "60000ms"
    clock.now = 1.0
    assert rations.refusal(10) is None


def test_tokens_are_counted_apart_from_requests() -> None:
    clock = Clock()
    rations = Rations(rpm=6000, tpm=6000, clock=clock)
    assert rations.refusal(90) is None
    assert rations.refusal(90) is not None
    clock.now = 1.0
    assert rations.refusal(90) is None


def requests(count: int) -> list[Request]:
    return [Request((("user", f"question {number}"),), "test.step") for number in range(count)]


@pytest.mark.slow
def test_a_client_that_knows_nothing_learns_the_rate_from_the_first_replies_and_loses_no_call() -> None:
    mock = Mock(rations=Rations(rpm=3000))
    with serving(application(mock)) as url:
        endpoint = Endpoint(url, EndpointLimits(in_flight=64, backoff=0.01))
        client = Client(endpoint, ModelSettings("mock"))
        replies = [client.submit(request) for request in requests(120)]
        assert all(reply.result(60).text for reply in replies)
        assert endpoint.snapshot().rpm is not None
        endpoint.close()
    assert sum(mock.answered.values()) == 120


@pytest.mark.parametrize("retries", [0, 6])
def test_an_exhausted_quota_is_asked_once_and_ends_the_run(retries: int) -> None:
    mock = Mock(rations=Rations(quota=1))
    with serving(application(mock)) as url:
        endpoint = Endpoint(url, EndpointLimits(retries=retries))
        client = Client(endpoint, ModelSettings("mock"))
        first, second = requests(2)
        assert client.submit(first).result(30).text
        with pytest.raises(QuotaExhausted, match="no quota left: add credit"):
            client.submit(second).result(30)
        endpoint.close()
    assert sum(mock.arrivals.values()) == 2


def test_the_rate_of_a_models_settings_comes_before_that_of_its_endpoint() -> None:
    endpoint = Endpoint("http://127.0.0.1:9/v1", EndpointLimits(rpm=600))
    Client(endpoint, ModelSettings("ours"))
    assert endpoint.snapshot().rpm == pytest.approx(588)
    Client(endpoint, ModelSettings("slow", rpm=60))
    assert endpoint.snapshot().rpm == pytest.approx(58.8)
