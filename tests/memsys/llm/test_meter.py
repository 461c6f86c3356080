from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import pytest
from scripted import ScriptedLLM

from memsys.llm import meter
from memsys.llm.meter import Ledger, Metered, metering, service_time, together
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import Completion, ModelError, Request
from memsys.llm.replies import completion_of, usage_of


def request(purpose: str = "tree.join") -> Request:
    return Request((("user", "hello"),), purpose)


class Later:
    """A model whose answers are given by hand, in any order and from any thread."""

    def __init__(self) -> None:
        self.pending: list[Future[Completion]] = []

    def submit(self, request: Request) -> Future[Completion]:
        self.pending.append(Future())
        return self.pending[-1]


def elsewhere(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_call_is_credited_in_full() -> None:
    reply = Completion("x", 7, 5, 3, 2, seconds=1.5, attempts=2)
    with metering() as ledger:
        assert Metered(ScriptedLLM(reply)).submit(request()).result() is reply
    assert (ledger.calls, ledger.attempts, ledger.failures) == ({"tree.join": 1}, {"tree.join": 2}, {})
    assert (ledger.tokens_in, ledger.tokens_out, ledger.tokens_cached, ledger.tokens_reasoning) == (7, 5, 3, 2)
    assert (ledger.sent, ledger.seconds, ledger.critical_seconds) == (1, 1.5, 1.5)


def test_the_tokens_of_many_calls_cost_what_each_call_cost() -> None:
    """Also at a server that counts the cached part of a prompt apart, which only a single call shows."""
    model = ModelSettings("m", usd_per_million_in=2.0, usd_per_million_cached=1.0, usd_per_million_out=10.0)
    counts = [(1000, 0), (10, 990), (600, 400)]
    raw: list[dict[str, Any]] = [
        {
            "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": tokens,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        }
        for tokens, cached in counts
    ]
    with metering() as ledger:
        for reply in raw:
            completion = completion_of(reply, usage_of(reply), request(), 50)
            Metered(ScriptedLLM(completion), "probe").submit(request()).result()
    paid = [model.cost_of(usage_of(reply)) or 0.0 for reply in raw]
    assert model.cost(ledger.tokens_in, ledger.tokens_out, ledger.tokens_cached) == pytest.approx(sum(paid))
    assert (ledger.tokens_in, ledger.roles["probe"]["tokens_in"]) == (2600, 2600)


def test_a_cached_answer_costs_its_tokens_and_seconds_but_is_not_sent() -> None:
    with metering() as ledger:
        Metered(ScriptedLLM(Completion("x", 7, 5, seconds=1.5, cached=True))).submit(request()).result()
    assert (ledger.calls["tree.join"], ledger.tokens_in, ledger.seconds, ledger.sent) == (1, 7, 1.5, 0)


def test_calls_of_a_model_in_a_role_of_its_own_are_in_the_totals_and_counted_apart() -> None:
    memory = Metered(ScriptedLLM(Completion("x", 7, 5, 3)))
    probe = Metered(ScriptedLLM(Completion("x", 11, 1, 2)), "probe")
    with metering() as ledger:
        memory.submit(request()).result()
        probe.submit(request()).result()
        probe.submit(request()).result()
    assert (ledger.calls.total(), ledger.tokens_in, ledger.tokens_out) == (3, 29, 7)
    assert ledger.roles == {"probe": {"calls": 2, "tokens_in": 22, "tokens_out": 2, "tokens_cached": 4}}


def test_a_failed_call_is_charged_and_still_fails() -> None:
    error = ModelError("down", attempts=4, seconds=9.0)
    with metering() as ledger, pytest.raises(ModelError) as caught:
        Metered(ScriptedLLM(error)).submit(request()).result()
    assert caught.value is error
    assert (ledger.calls, ledger.attempts, ledger.failures) == ({"tree.join": 1}, {"tree.join": 4}, {"tree.join": 1})
    assert (ledger.sent, ledger.seconds) == (1, 9.0)


def test_a_cancelled_call_fails_instead_of_hanging() -> None:
    later = Later()
    with metering() as ledger:
        outer = Metered(later).submit(request())
        later.pending[0].cancel()
    with pytest.raises(CancelledError):
        outer.result(timeout=1)
    assert ledger.failures == {"tree.join": 1}


def test_an_answer_from_another_thread_is_credited_to_the_step_that_asked() -> None:
    later = Later()
    with metering() as first:
        Metered(later).submit(request("a.x"))
    with metering() as second:
        Metered(later).submit(request("b.y"))
        elsewhere(lambda: later.pending[0].set_result(Completion("", 3)))
        elsewhere(lambda: later.pending[1].set_result(Completion("", 5)))
    assert (first.calls, first.tokens_in) == ({"a.x": 1}, 3)
    assert (second.calls, second.tokens_in) == ({"b.y": 1}, 5)


def test_the_books_are_closed_before_the_caller_wakes() -> None:
    later = Later()
    with metering() as ledger:
        outer = Metered(later).submit(request())
        seen: list[int] = []
        outer.add_done_callback(lambda _: seen.append(ledger.tokens_in))
        later.pending[0].set_result(Completion("", 3))
    assert seen == [3]


def test_calls_made_together_count_their_longest_on_the_critical_path() -> None:
    later = Later()
    model = Metered(later)
    with metering() as ledger:
        with together():
            futures = [model.submit(request()) for _ in range(3)]
        model.submit(request())
        for index, seconds in ((2, 1.0), (3, 0.25), (0, 4.0), (1, 2.0)):
            later.pending[index].set_result(Completion("", seconds=seconds))
    assert all(future.done() for future in futures)
    assert (ledger.seconds, ledger.critical_seconds) == (7.25, 4.25)


def test_two_groups_follow_each_other() -> None:
    model = Metered(ScriptedLLM({"*": [Completion("", seconds=s) for s in (1.0, 3.0, 2.0, 5.0)]}))
    with metering() as ledger:
        for _ in range(2):
            with together():
                model.submit(request())
                model.submit(request())
    assert (ledger.seconds, ledger.critical_seconds) == (11.0, 8.0)


def test_ledgers_nest_without_sharing() -> None:
    model = Metered(ScriptedLLM("x"))
    with metering() as outer:
        with metering() as inner:
            model.submit(request("a.x")).result()
        model.submit(request("b.y")).result()
    assert (inner.calls, outer.calls) == ({"a.x": 1}, {"b.y": 1})


def test_without_a_ledger_nothing_is_counted_and_the_call_goes_through() -> None:
    assert meter.current() is None
    meter.note("ignored")
    meter.count_parse_failure("ignored")
    assert Metered(ScriptedLLM("x")).submit(request()).result().text == "x"


def test_notes_and_parse_failures_add_up() -> None:
    with metering() as ledger:
        assert meter.current() is ledger
        meter.note("tree.capped")
        meter.note("tree.capped", 2)
        meter.count_parse_failure("tree.join")
    assert (ledger.notes, ledger.parse_failures) == ({"tree.capped": 3}, {"tree.join": 1})


def test_embeddings_are_counted_beside_calls() -> None:
    ledger = Ledger()
    ledger.add_embedding(10, 0.5)
    ledger.add_embedding(20, 0.25)
    assert (ledger.embedding_calls, ledger.embedding_tokens, ledger.calls) == (2, 30, {})
    assert (ledger.seconds, ledger.critical_seconds) == (0.75, 0.75)


def test_many_threads_of_one_step_lose_nothing() -> None:
    model = Metered(ScriptedLLM(Completion("", 1, seconds=0.5)))
    with metering() as ledger, ThreadPoolExecutor(8) as pool:

        def work() -> None:
            for _ in range(100):
                model.submit(request()).result()
                meter.note("step")
                assert ledger.critical_seconds > 0

        for done in [pool.submit(contextvars.copy_context().run, work) for _ in range(8)]:
            done.result()
    assert (ledger.calls["tree.join"], ledger.attempts["tree.join"], ledger.tokens_in) == (800, 800, 800)
    assert (ledger.notes["step"], ledger.sent, ledger.critical_seconds) == (800, 800, 400.0)


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_service_inside_a_service_is_counted_once() -> None:
    with metering() as ledger:
        before = time.thread_time()
        with service_time():
            spin(0.002)
            with service_time():
                spin(0.01)
        whole = time.thread_time() - before
    assert 0.012 <= ledger.service_cpu <= whole


def test_cpu_outside_services_is_the_memorys_own() -> None:
    with metering() as ledger:
        spin(0.005)
    assert ledger.service_cpu == 0.0


def test_cpu_of_a_service_that_fails_is_counted_too() -> None:
    @service_time()
    def fail() -> None:
        spin(0.002)
        raise ModelError("down")

    with metering() as ledger, pytest.raises(ModelError):
        fail()
    assert ledger.service_cpu >= 0.002
