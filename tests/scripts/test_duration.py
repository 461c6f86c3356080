"""How long a plan says that an experiment takes, and what stands beside it afterwards."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from memsys.llm.meter import Metered, metering, together
from memsys.llm.protocol import Completion, Request
from scripts.assembly.plan import Duration, OneSecond, Plan, Share
from scripts.assembly.readiness import Meter, side_by_side


@pytest.mark.parametrize(
    ("duration", "seconds", "reason"),
    [
        (Duration(1163, 29_399, 64, 0.1, measured=True), 116.3, "longest chain of dependent calls (1163)"),
        (Duration(100, 64_000, 64, 0.1, measured=True), 100.0, "64000 calls, 64 in flight"),
        (Duration(100, 300, 64, 0.1, measured=True, by_rate=300.0), 300.0, "limits of requests and tokens"),
    ],
)
def test_the_slowest_of_chain_calls_and_rates_decides(duration: Duration, seconds: float, reason: str) -> None:
    assert duration.seconds == pytest.approx(seconds)
    assert reason in duration.text


def test_a_plan_says_whether_its_latency_was_measured() -> None:
    assert "0.1 s a call (as measured just now)" in Duration(1, 1, 1, 0.1, measured=True).text
    assert "1.5 s a call (assumed)" in Duration(1, 1, 1, 1.5, measured=False).text


class Instant:
    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        future.set_result(Completion("x"))
        return future


def test_in_a_sample_calls_made_together_are_one_link_of_the_chain() -> None:
    llm, request = Metered(OneSecond(Instant())), Request((("user", "x"),), "test.step")
    with metering() as ledger:
        llm.submit(request).result()
        with together():
            for _ in range(5):
                llm.submit(request).result()
    assert ledger.critical_seconds == 2.0
    assert ledger.dependent == 2
    assert ledger.calls["test.step"] == 6


def test_plan_and_outcome_stand_side_by_side() -> None:
    share = Share("memory", "m", 100, 2000, 300, 1.5)
    plan = Plan((share,), Duration(60, 100, 64, 1.0, measured=True))
    before, after = Meter(5, 50, 5, 0.5, 100.0), Meter(115, 2250, 205, 2.25, 190.0)
    text = side_by_side(plan, before, after).splitlines()
    assert [line.split()[-2:] for line in text[2:]] == [
        ["100", "110"],
        ["2000", "2200"],
        ["300", "200"],
        ["1.50", "1.75"],
        ["1.0", "1.5"],
    ]


def test_an_unknown_price_has_no_outcome_in_dollars() -> None:
    plan = Plan((Share("memory", "m", 1, 1, 1, None),), Duration(1, 1, 1, 1.0, measured=False))
    assert side_by_side(plan, Meter(0, 0, 0, 0.0, 0.0), Meter(0, 0, 0, 0.0, 0.0)).count("unknown") == 2
