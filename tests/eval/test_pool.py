"""The pool of threads: order, how many compute at once, and that waiting never stands in the way of other work."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from eval.pool import UrgentPool
from memsys.llm.futures import Awaited, waiting

PATIENCE = 20


def test_the_most_urgent_work_is_done_first_and_of_equals_the_oldest() -> None:
    order: list[str] = []
    gate = threading.Event()
    with UrgentPool(1, "test") as pool:
        pool.submit(9, gate.wait, PATIENCE)
        for urgency, name in ((1, "a"), (2, "b"), (1, "c"), (2, "d")):
            pool.submit(urgency, order.append, name)
        gate.set()
    assert order == ["b", "d", "a", "c"]


class Counter:
    """Counts how many threads are inside at once."""

    def __init__(self) -> None:
        self._lock, self.inside, self.most = threading.Lock(), 0, 0

    def work(self, inside: threading.Event, gate: threading.Event) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        inside.set()
        gate.wait(PATIENCE)
        with self._lock:
            self.inside -= 1


@pytest.mark.parametrize("computing", [1, 3])
def test_no_more_threads_compute_at_once_than_allowed(computing: int) -> None:
    counter = Counter()
    steps = [(threading.Event(), threading.Event()) for _ in range(12)]
    with UrgentPool(8, "test", computing) as pool:
        for inside, gate in steps:
            pool.submit(1, counter.work, inside, gate)
        for (
            inside,
            gate,
        ) in steps:  # each is let go only when it has begun: all slots are taken as long as there is work
            assert inside.wait(PATIENCE)
            gate.set()
    assert counter.most <= computing


def test_all_slots_are_used() -> None:
    meeting = threading.Barrier(3, timeout=PATIENCE)
    with UrgentPool(8, "test", computing=3) as pool:
        together = [pool.submit(1, meeting.wait) for _ in range(3)]
        assert sorted(future.result(PATIENCE) for future in together) == [0, 1, 2]


def test_a_thread_that_waits_for_a_call_leaves_its_turn_to_others() -> None:
    call: Awaited[str] = Awaited()
    with UrgentPool(8, "test", computing=1) as pool:
        asked = [pool.submit(1, call.result) for _ in range(5)]
        pool.submit(1, call.set_result, "yes")
        assert [future.result(PATIENCE) for future in asked] == ["yes"] * 5


def test_a_thread_that_waits_for_what_another_does_leaves_its_turn_to_it() -> None:
    slots = threading.Semaphore(0)

    def wait() -> bool:
        with waiting():
            return slots.acquire(timeout=PATIENCE)

    with UrgentPool(8, "test", computing=1) as pool:
        waited = pool.submit(1, wait)
        pool.submit(1, slots.release)
        assert waited.result(PATIENCE)


def test_an_error_and_a_wait_that_fails_give_the_turn_back() -> None:
    call: Awaited[None] = Awaited()
    call.set_exception(KeyError("x"))
    late: Awaited[None] = Awaited()
    with UrgentPool(4, "test", computing=1) as pool:
        failed = [
            pool.submit(1, call.result),
            pool.submit(1, late.result),
            pool.submit(0, late.set_exception, OSError("late")),
        ]
        with pytest.raises(KeyError):
            failed[0].result(PATIENCE)
        with pytest.raises(OSError, match="late"):
            failed[1].result(PATIENCE)
        counter = Counter()
        steps = [(threading.Event(), threading.Event()) for _ in range(4)]
        for inside, gate in steps:
            pool.submit(1, counter.work, inside, gate)
        for inside, gate in steps:
            assert inside.wait(PATIENCE)
            gate.set()
    assert counter.most == 1


def test_closing_does_the_work_that_is_left() -> None:
    done: list[int] = []
    gate = threading.Event()
    pool = UrgentPool(4, "test", computing=1)
    pool.submit(9, gate.wait, PATIENCE)
    futures: list[Future[None]] = [pool.submit(1, done.append, number) for number in range(20)]
    closing = threading.Thread(target=pool.close)
    closing.start()
    gate.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert done == list(range(20))
    assert all(future.done() for future in futures)


def test_a_wait_outside_of_any_pool_is_a_plain_wait() -> None:
    call: Awaited[int] = Awaited()
    threading.Timer(0.01, call.set_result, [7]).start()
    assert call.result(PATIENCE) == 7
    assert call.exception(PATIENCE) is None
