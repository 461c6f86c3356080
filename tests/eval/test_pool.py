"""The pool of threads: order, how many compute at once, and that waiting never stands in the way of other work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from eval.executors import channel
from eval.running.pool import UrgentPool
from memsys.llm.cache import CachedEmbedder
from memsys.llm.client import Embedded, Outcomes
from memsys.llm.limits import BUILDS
from memsys.llm.meter import Metered, metering
from memsys.llm.protocol import Awaited, Completion, Request, waiting
from memsys.llm.store import CacheStore

PATIENCE = 5


def test_the_urgent_pool_does_the_most_urgent_work_first() -> None:
    done: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(30)

    with closing(UrgentPool(1, "test")) as pool:
        pool.submit(0.0, hold)
        assert begun.wait(30)
        for urgency, name in ((1.0, "answer"), (5.0, "build"), (5.0, "build later"), (2.0, "read")):
            pool.submit(urgency, done.append, name)
        go_on.set()
    assert done == ["build", "build later", "read", "answer"]


def test_an_exception_in_the_pool_reaches_its_future() -> None:
    with closing(UrgentPool(2, "test")) as pool:
        assert isinstance(pool.submit(0.0, int, "x").exception(30), ValueError)


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
    with closing(UrgentPool(8, "test", computing)) as pool:
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
    with closing(UrgentPool(8, "test", computing=3)) as pool:
        together = [pool.submit(1, meeting.wait) for _ in range(3)]
        assert sorted(future.result(PATIENCE) for future in together) == [0, 1, 2]


def test_work_that_comes_at_once_reaches_as_many_threads_though_one_is_idle() -> None:
    meeting = threading.Barrier(3, timeout=PATIENCE)
    with closing(UrgentPool(8, "test", computing=3)) as pool:
        pool.submit(1, int).result(PATIENCE)
        while not pool._idle:
            time.sleep(0.001)
        with pool._changed:  # the idle thread is told of each, and is there once
            together = [pool.submit(1, meeting.wait) for _ in range(3)]
        assert sorted(future.result(PATIENCE) for future in together) == [0, 1, 2]


def test_a_thread_that_waits_for_a_call_leaves_its_turn_to_others() -> None:
    call: Awaited[str] = Awaited()
    with closing(UrgentPool(8, "test", computing=1)) as pool:
        asked = [pool.submit(1, call.result, PATIENCE) for _ in range(2)]
        pool.submit(1, call.set_result, "yes")
        assert [future.result(PATIENCE) for future in asked] == ["yes"] * 2


def test_a_thread_that_waits_for_what_another_does_leaves_its_turn_to_it() -> None:
    slots = threading.Semaphore(0)

    def wait() -> bool:
        with waiting():
            return slots.acquire(timeout=PATIENCE)

    with closing(UrgentPool(8, "test", computing=1)) as pool:
        waited = pool.submit(1, wait)
        pool.submit(1, slots.release)
        assert waited.result(PATIENCE)


def test_a_call_of_a_metered_model_is_such_a_wait() -> None:
    reply: Future[Completion] = Future()

    class Model:
        def submit(self, request: Request) -> Future[Completion]:
            return reply

    def ask() -> str:
        with metering():
            return Metered(Model()).submit(Request((("user", "Who?"),), "test")).result().text

    pool = UrgentPool(8, "test", computing=1)  # no `with`: where a test fails, its threads wait for ever
    asked = pool.submit(1, ask)
    pool.submit(1, reply.set_result, Completion("Mara"))
    assert asked.result(PATIENCE) == "Mara"
    pool.close()


def test_fetching_a_vector_is_such_a_wait(tmp_path: Path) -> None:
    come = threading.Event()

    class Server:
        def fetch(self, texts: Sequence[str], *, query: bool = False) -> Iterator[Outcomes]:
            assert come.wait(PATIENCE)
            yield 0, [Embedded(np.ones(2, dtype=np.float32), 1, 0.0) for _ in texts]

    store = CacheStore(tmp_path / "cache.sqlite")
    embedder = CachedEmbedder(Server(), store, "m", "e")
    with closing(UrgentPool(8, "test", computing=1)) as pool:
        asked = pool.submit(1, embedder.embed, ["a", "b"])
        pool.submit(1, come.set)
        assert asked.result(PATIENCE).shape == (2, 2)
    store.close()


def test_a_vector_from_the_driver_is_such_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    reply: Future[channel.Reply] = Future()
    monkeypatch.setattr(channel, "_post", SimpleNamespace(ask=lambda service, payload: reply))
    vectors = channel.Vectors(np.ones((1, 2), dtype=np.float32), 1, 1, 0.0)
    pool = UrgentPool(8, "test", computing=1)  # no `with`: where a test fails, its threads wait for ever
    asked = pool.submit(1, channel.RemoteEmbedder(0).embed, ["a"])
    pool.submit(1, reply.set_result, channel.Reply(1, vectors))
    assert asked.result(PATIENCE).shape == (1, 2)
    pool.close()


def test_an_error_and_a_wait_that_fails_give_the_turn_back() -> None:
    call: Awaited[None] = Awaited()
    call.set_exception(KeyError("x"))
    late: Awaited[None] = Awaited()
    with closing(UrgentPool(4, "test", computing=1)) as pool:
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


def test_work_that_no_build_waits_for_begins_after_a_rest_and_other_work_at_once() -> None:
    rests, done = [3600.0], []
    pool = UrgentPool(8, "test", computing=8, spacing=lambda waiting: rests[0])  # no `with`: a rest of an hour
    pool.submit(BUILDS - 1, done.append, "read").result(PATIENCE)
    second = pool.submit(BUILDS - 1, done.append, "second read")
    for number in range(3):
        pool.submit(BUILDS + number, done.append, "read of a build").result(PATIENCE)
    assert not second.done()
    rests[0] = 0.0
    pool.close()
    assert done == ["read", *["read of a build"] * 3, "second read"]


def test_a_rest_ends_by_itself() -> None:
    with closing(UrgentPool(8, "test", computing=2, spacing=lambda waiting: 0.001)) as pool:
        together = [pool.submit(BUILDS - 1, int) for _ in range(50)]
        assert [future.result(PATIENCE) for future in together] == [0] * 50


def test_one_thread_alone_waits_for_the_end_of_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = threading.Barrier(9, timeout=PATIENCE)
    rests, timed, most = [3600.0], 0, 0
    pool = UrgentPool(8, "test", computing=8, spacing=lambda waiting: rests[0])
    wait = pool._changed.wait

    def counted(timeout: float | None = None) -> bool:  # called with the lock held
        nonlocal timed, most
        timed += timeout is not None
        most = max(most, timed)
        changed = wait(timeout)
        timed -= timeout is not None
        return changed

    monkeypatch.setattr(pool._changed, "wait", counted)
    for _ in range(8):
        pool.submit(BUILDS, meeting.wait)
    meeting.wait()  # there are eight threads now
    pool.submit(BUILDS - 1, int).result(PATIENCE)
    left = [pool.submit(BUILDS - 1, int) for _ in range(20)]
    while not most or pool._idle < 8:
        time.sleep(0.001)
    with pool._changed:
        pool._changed.notify_all()
    rests[0] = 0.0
    pool.close()
    assert all(future.done() for future in left)
    assert most == 1


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


def test_closing_ends_a_thread_that_waits_for_its_turn_too() -> None:
    call: Awaited[None] = Awaited()
    resumed, gate = threading.Event(), threading.Event()

    def wait_then_compute() -> None:
        call.result(PATIENCE)
        resumed.set()
        gate.wait(PATIENCE)

    pool = UrgentPool(4, "test", computing=1)
    pool.submit(1, wait_then_compute)
    pool.submit(1, int).result(PATIENCE)  # in a second thread, which is idle afterwards
    call.set_result(None)
    assert resumed.wait(PATIENCE)
    left = pool.submit(1, int)
    closing = threading.Thread(target=pool.close, daemon=True)
    closing.start()
    gate.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert left.done()


def test_a_wait_outside_of_any_pool_is_a_plain_wait() -> None:
    call: Awaited[int] = Awaited()
    threading.Timer(0.01, call.set_result, [7]).start()
    assert call.result(PATIENCE) == 7
    assert call.exception(PATIENCE) is None
