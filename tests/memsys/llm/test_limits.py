"""The in-flight limit and the rates of an endpoint, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from memsys.llm.limits import BUILDS, SHARE, Adaptive, CallQueue, Rates, seconds_of, urgency, urgent
from memsys.llm.outcome import is_exhausted, outcome_of
from memsys.llm.protocol import EndOfRun, QuotaExhausted
from memsys.llm.transport import HttpReply


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def answered(limit: Adaptive, clock: Clock, calls: int, seconds: float, per_second: float = 100.0) -> None:
    for _ in range(calls):
        clock.now += 1 / per_second
        limit.answered("kind", seconds, full=True)


# --- calls in flight ---------------------------------------------------------------------------------------------------


def test_the_limit_starts_where_it_was_set_and_falls_by_a_fifth_when_the_server_is_overloaded() -> None:
    clock = Clock()
    limit = Adaptive(50, clock)
    assert limit.present == 50
    limit.overloaded(sent=clock.now)
    assert limit.present == 40


def test_calls_that_were_sent_before_the_last_fall_do_not_count_again() -> None:
    clock = Clock()
    limit = Adaptive(50, clock)
    for _ in range(50):
        limit.overloaded(sent=1000.0)
    assert limit.present == 40
    clock.now += 1.0
    limit.overloaded(sent=1000.5)
    assert limit.present == 32


def test_the_limit_never_falls_below_one_and_climbs_back_to_where_it_was_set() -> None:
    clock = Clock()
    limit = Adaptive(64, clock)
    for _ in range(60):
        clock.now += 1.0
        limit.overloaded(sent=clock.now - 0.5)
    assert limit.present == 1
    heights = []
    for _ in range(40):
        answered(limit, clock, 64, 0.1)
        heights.append(limit.present)
    assert heights == sorted(heights)
    assert heights[-1] == 64


def test_rising_latency_without_more_throughput_makes_the_limit_fall_but_not_below_a_quarter() -> None:
    clock = Clock()
    limit = Adaptive(64, clock)
    answered(limit, clock, 640, 0.1, per_second=600)
    assert limit.present == 64
    answered(limit, clock, 64 * 4, 0.5, per_second=400)
    assert limit.present < 64
    answered(limit, clock, 64 * 100, 5.0, per_second=100)
    assert limit.present >= 16


def test_rising_latency_with_more_throughput_is_no_reason_to_fall() -> None:
    clock = Clock()
    limit = Adaptive(64, clock)
    answered(limit, clock, 640, 0.1, per_second=80)
    answered(limit, clock, 640, 0.3, per_second=200)
    assert limit.present == 64


def test_slower_kinds_of_calls_are_no_rising_latency() -> None:
    clock = Clock()
    limit = Adaptive(64, clock)
    answered(limit, clock, 640, 0.1, per_second=600)
    for _ in range(640):
        clock.now += 0.02
        limit.answered("long replies", 3.0, full=True)
    assert limit.present == 64


def served(places: CallQueue, *calls: tuple[str, float]) -> list[str]:
    """The order in which calls of these names and urgencies get the one place, which another call holds while they arrive."""
    order: list[str] = []

    async def call(name: str, urgency: float) -> None:
        await places.take("m", 1, urgency)
        order.append(name)
        places.release(urgency)

    async def main() -> None:
        await places.take("m", 1, 0.0)
        tasks = [asyncio.create_task(call(*each)) for each in calls]
        await asyncio.sleep(0)
        places.release(0.0)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    return order


def test_the_most_urgent_call_gets_the_next_place_and_of_equals_the_oldest() -> None:
    assert served(CallQueue(1), ("verdict", 0.0), ("build", 90.0), ("answer", 1.0), ("other build", 90.0)) == [
        "build",
        "other build",
        "answer",
        "verdict",
    ]


def test_a_call_that_is_cancelled_while_it_waits_leaves_its_place_to_others() -> None:
    async def main() -> tuple[int, int]:
        places = CallQueue(1)
        await places.take("m", 1, BUILDS)
        waiting = asyncio.create_task(places.take("m", 1, BUILDS))
        await asyncio.sleep(0)
        assert places.load() == (2, 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert places.load() == (1, 1)
        places.release(BUILDS)
        await asyncio.wait_for(places.take("m", 1, BUILDS), 10)
        return places.load()

    assert asyncio.run(main()) == (1, 1)


def test_whoever_watches_is_told_of_room_and_of_nothing_else() -> None:
    told: list[int] = []

    async def main() -> None:
        places = CallQueue(2)

        def on_room() -> None:
            told.append(places.load()[0])

        places.watch(on_room)
        await places.take("m", 1, BUILDS)
        await places.take("m", 1, BUILDS)
        places.release(BUILDS)
        places.unwatch(on_room)
        places.release(BUILDS)

    asyncio.run(main())
    assert told == [1, 1]


def test_answers_that_wait_take_no_room_from_builds() -> None:
    async def main() -> list[int]:
        places, loads = CallQueue(2), []
        await places.take("m", 1, 0.0)
        await places.take("m", 1, 1.0)
        waiting = [asyncio.create_task(places.take("m", 1, how)) for how in (1.0, BUILDS + 90.0)]
        await asyncio.sleep(0)
        loads.append(places.load()[0])
        places.release(0.0)
        await waiting[1]  # the build's call is the first to get a place
        loads.append(places.load()[0])
        places.release(BUILDS + 90.0)
        loads.append(places.load()[0])
        await waiting[0]
        return loads

    assert asyncio.run(main()) == [1, 1, 0]


def test_urgency_is_given_to_a_block_and_taken_back() -> None:
    with urgent(5.0):
        with urgent(7.0):
            assert urgency() == 7.0
        assert urgency() == 5.0
    assert urgency() == BUILDS, "a call without one counts as a build's"


# --- requests and tokens a minute --------------------------------------------------------------------------------------


def sent_within(rates: Rates, clock: Clock, seconds: float, tokens: int = 0) -> int:
    """Calls that a sender who sends whenever it may sends in this time."""
    calls, end = 0, clock.now + seconds
    while clock.now < end:
        delay = rates.delay("m")
        if delay > 0:
            clock.now += delay
        else:
            rates.sent("m", tokens)
            calls += 1
    return calls


def test_a_given_rate_of_requests_is_used_to_98_percent_and_never_exceeded() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.allow("m", 60, None)
    assert sent_within(rates, clock, 600.0) in (589, 588, 587)


def test_a_given_rate_of_tokens_counts_what_was_estimated_and_then_what_was_used() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.allow("m", None, 60_000)
    assert sent_within(rates, clock, 60.0, tokens=1000) == pytest.approx(59, abs=1)
    rates.corrected("m", estimated=1000, actual=11_000)
    assert rates.delay("m") == pytest.approx(10 / SHARE, abs=1.1)


def test_a_model_without_a_rate_and_other_models_are_not_held_back() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.allow("m", 1, None)
    rates.sent("m", 1)
    assert rates.delay("m") > 50
    assert rates.delay("other") == 0.0


def headers(limit: float, remaining: float, reset: str, kind: str = "requests") -> Mapping[str, str]:
    values = {"limit": str(limit), "remaining": str(remaining), "reset": reset}
    return {f"x-ratelimit-{name}-{kind}": value for name, value in values.items()}


def test_a_server_that_refills_steadily_is_followed_at_its_rate() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.heard("m", headers(60, 0, "1m0s"))
    assert sent_within(rates, clock, 100.0) == pytest.approx(98, abs=1)
    assert rates.per_minute() == pytest.approx(60 * SHARE)


def test_far_from_the_limit_nothing_is_paced() -> None:
    rates = Rates(Clock())
    rates.heard("m", headers(10_000, 9_990, "60ms"))
    assert rates.per_minute() is None
    assert rates.delay("m") == 0.0


def test_tokens_that_are_used_up_hold_back_calls_too() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.heard("m", headers(90_000, 0, "60s", "tokens"))
    rates.sent("m", 3000)
    assert rates.delay("m") == pytest.approx(2.0 / SHARE, abs=0.3)


def test_a_server_cannot_raise_a_given_rate() -> None:
    rates = Rates(Clock())
    rates.allow("m", 60, None)
    rates.heard("m", headers(6000, 0, "60s"))
    assert rates.per_minute() == pytest.approx(60 * SHARE)


@pytest.mark.parametrize(("asked", "delay"), [(30.0, 30.0), (0.05, 0.0)])
def test_a_refusal_that_asks_to_wait_a_second_or_more_holds_back_the_models_other_calls(
    asked: float, delay: float
) -> None:
    rates = Rates(Clock())
    rates.refused("m", asked)
    assert rates.delay("m") == delay


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6m0s", 360.0), ("20ms", 0.02), ("1.5", 1.5), ("1h2m3s", 3723.0), ("", None), ("soon", None), ("-1s", None)],
)
def test_durations_are_read_as_headers_write_them(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("bad", [{"limit": "many"}, {"remaining": "nan"}, {"reset": "x"}])
def test_malformed_headers_are_no_limit(bad: dict[str, str]) -> None:
    rates = Rates(Clock())
    good: dict[str, Any] = {"limit": "60", "remaining": "0", "reset": "60s"}
    rates.heard("m", {f"x-ratelimit-{name}-requests": value for name, value in {**good, **bad}.items()})
    assert rates.per_minute() is None


# --- no quota ----------------------------------------------------------------------------------------------------------

NONE_LEFT = b'{"error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}}'
TOO_FAST = (
    b'{"error": {"message": "You exceeded your quota per minute", "type": "requests", "code": "rate_limit_exceeded"}}'
)


def test_an_exhausted_quota_ends_the_run_at_once_and_says_what_to_do() -> None:
    outcome = outcome_of("http://host/v1", HttpReply(429, NONE_LEFT))
    assert not outcome.retry
    assert issubclass(outcome.error, QuotaExhausted)
    assert issubclass(outcome.error, EndOfRun)
    assert "add credit or raise its limit" in outcome.why


@pytest.mark.parametrize(
    ("status", "body", "exhausted"),
    [
        (429, NONE_LEFT, True),
        (400, b'{"error": {"code": "billing_hard_limit_reached"}}', True),
        (402, b"Insufficient Balance", True),
        (429, TOO_FAST, False),
        (429, b"insufficient_quota", False),
        (429, b'{"error": "insufficient_quota"}', False),
        (500, NONE_LEFT, False),
    ],
)
def test_what_counts_as_an_exhausted_quota(status: int, body: bytes, exhausted: bool) -> None:
    assert is_exhausted(status, body) is exhausted


@pytest.mark.parametrize(
    ("limit", "reset"), [(1, "9" * 12 + "s"), (1, "9" * 308 + "h"), (1e-300, "1s"), (60, "9" * 309 + "d")]
)
def test_a_server_that_asks_to_wait_for_ever_holds_calls_back_for_a_day_at_most(limit: float, reset: str) -> None:
    rates = Rates(lambda: 0.0)
    rates.heard("m", headers(limit, 0, reset))
    rates.sent("m", 10)
    assert rates.delay("m") < 2.1 * 86_400
