"""The cache: committed before handed on, never asked twice, never mistaken for another model, enough to replay alone."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scripted import ScriptedLLM

from memsys.llm.cache import CachedEmbedder, CachedLLM, NoVectors, request_key
from memsys.llm.client import Client, Embedded, HttpEmbedder, Outcomes
from memsys.llm.endpoint import Endpoint, EndpointLimits
from memsys.llm.meter import Ledger, Metered, metering
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import Completion, EndOfRun, ModelError, Request
from memsys.llm.store import CacheStore, DamagedCache, usable
from memsys.llm.transport import event_loop
from scripts.mock.endpoint import Mock, application, serving

SETTINGS = ModelSettings("m")
REQUEST = Request((("user", "hello"),), "test.step", schema={"type": "object"}, kind="answer", fields={"question": "x"})


@pytest.fixture
def store(tmp_path: Path) -> CacheStore:
    return CacheStore(tmp_path / "cache.sqlite")


def cached(inner: Any, store: CacheStore, endpoint: str = "here", settings: ModelSettings = SETTINGS) -> CachedLLM:
    return CachedLLM(inner, store, settings, endpoint)


def test_an_answer_is_asked_for_once_and_then_served_with_its_costs(store: CacheStore) -> None:
    model = ScriptedLLM(Completion("hi", 10, 2, 1, 0, 0.75, logprobs=(-0.5,), model="m", attempts=3))
    llm = Metered(cached(model, store))
    first = llm.submit(REQUEST).result()
    with metering() as ledger:
        second = llm.submit(REQUEST).result()
    assert len(model.requests) == 1
    assert second == replace(first, cached=True)
    assert (ledger.tokens_in, ledger.seconds, ledger.sent, ledger.calls["test.step"]) == (10, 0.75, 0, 1)


def test_whatever_can_change_the_output_is_in_the_key(subtests: pytest.Subtests) -> None:
    for change in [
        {"messages": (("user", "hello!"),)},
        {"messages": (("system", "hello"),)},
        {"max_tokens": 99},
        {"temperature": 0.5},
        {"schema": {"type": "array"}},
        {"schema": None},
        {"logprobs": True},
        {"sample": 1},
        {"retry": 1},
    ]:
        with subtests.test(change=change):
            assert request_key(SETTINGS, "here", REQUEST) != request_key(SETTINGS, "here", replace(REQUEST, **change))


def test_what_cannot_change_the_output_is_not_in_the_key() -> None:
    priced = replace(SETTINGS, usd_per_million_in=5.0, max_input_tokens=7)
    other = replace(REQUEST, purpose="another.step", kind="judge", fields={})
    assert request_key(SETTINGS, "here", REQUEST) == request_key(priced, "here", other)


def test_another_endpoint_or_model_is_never_answered_from_the_cache(store: CacheStore) -> None:
    cached(ScriptedLLM("one"), store).submit(REQUEST).result()
    assert cached(ScriptedLLM("two"), store, endpoint="there").submit(REQUEST).result().text == "two"
    assert cached(ScriptedLLM("three"), store, settings=ModelSettings("n")).submit(REQUEST).result().text == "three"
    assert (
        cached(ScriptedLLM("four"), store, settings=replace(SETTINGS, reasoning_effort="low"))
        .submit(REQUEST)
        .result()
        .text
        == "four"
    )


def test_an_answer_is_on_disk_before_it_is_handed_on(store: CacheStore) -> None:
    future = cached(ScriptedLLM("hi"), store).submit(REQUEST)
    seen: Future[int] = Future()
    future.add_done_callback(
        lambda _: seen.set_result(sqlite3.connect(store.path).execute("SELECT COUNT(*) FROM answers").fetchone()[0])
    )
    assert future.result().text == "hi"
    assert seen.result(timeout=10) == 1


def test_an_answer_that_cannot_be_written_fails_alone_and_says_why(store: CacheStore) -> None:
    llm = cached(Slow(), store)
    slow = llm._inner
    assert isinstance(slow, Slow)
    asked = [llm.submit(replace(REQUEST, sample=number)) for number in range(20)]
    for number, future in enumerate(slow.futures):  # a lone surrogate is no UTF-8
        future.set_result(Completion("\ud800" if number == 7 else "fine"))
    for number, future in enumerate(asked):
        if number == 7:
            with pytest.raises(ModelError, match="cannot be written"):
                future.result(timeout=10)
        else:
            assert future.result(timeout=10).text == "fine"
    assert sqlite3.connect(store.path).execute("SELECT COUNT(*) FROM answers").fetchone()[0] == 19


def test_what_another_process_writes_is_found_too(store: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("memsys.llm.store.time.monotonic", lambda: now[0])
    assert store.answer(b"k" * 32) is None
    other = CacheStore(store.path)  # a connection of its own, as another process has
    other.keep_answer(b"k" * 32, Completion("theirs")).result(timeout=10)
    now[0] += 1.0
    found = store.answer(b"k" * 32)
    assert found is not None
    assert found.text == "theirs"


def test_what_two_processes_asked_for_at_once_is_the_first_answer_for_both_as_in_a_replay(store: CacheStore) -> None:
    slow, other = Slow(), CacheStore(store.path)
    futures = [cached(slow, each).submit(REQUEST) for each in (store, other)]
    for future, inner, text in zip(futures, slow.futures, ("first", "second"), strict=True):
        inner.set_result(Completion(text, 3, 2))
        assert future.result(timeout=10).text == "first"
    vectors = [Embedded(np.asarray([number, 1.0], dtype=np.float32), 1, 0.5) for number in (1.0, 2.0)]
    kept = [each.keep_vectors([(b"v" * 32, vector)]) for each, vector in zip((store, other), vectors, strict=True)]
    assert [each[b"v" * 32].vector[0] for each in kept] == [1.0, 1.0]


def test_the_keys_of_a_large_file_are_not_read_at_the_first_lookup(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keep_answer(b"k" * 32, Completion("kept")).result(timeout=10)
    store.close()
    monkeypatch.setattr("memsys.llm.store.SMALL", 100)
    large, asked = CacheStore(store.path), list[str]()
    large._in.set_trace_callback(asked.append)
    assert large.answer(b"b" * 32) is None
    assert large.answer(b"k" * 32) == Completion("kept")
    assert len(asked) == 2
    assert all("WHERE key = " in query for query in asked)


def test_a_closed_store_is_one_file_and_fails_later_answers_at_once(store: CacheStore, tmp_path: Path) -> None:
    for number in range(50):
        store.keep_answer(number.to_bytes(32, "big"), Completion("x"))
    reader = sqlite3.connect(store.path)  # another connection keeps SQLite from tidying up by itself
    assert reader.execute("SELECT 1 FROM outcomes").fetchone() is None
    store.close()
    store.close()
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(store.path.read_bytes())
    assert sqlite3.connect(copy).execute("SELECT count(*) FROM answers").fetchone() == (50,)
    with pytest.raises(ModelError, match="was closed"):
        store.keep_answer(b"l" * 32, Completion("late")).result(timeout=0)


def test_a_cache_whose_file_system_allows_no_log_is_refused_and_one_on_a_network_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("memsys.llm.store.network_file_system", lambda path: "nfs4")
    CacheStore(tmp_path / "cache.sqlite").close()
    assert "lies on a network file system (nfs4): use it from one machine only" in caplog.text

    class NoSharedMemory(sqlite3.Connection):
        def execute(self, query: str, *more: Any) -> sqlite3.Cursor:
            return super().execute("SELECT 'delete'" if "journal_mode" in query else query, *more)

    connect = sqlite3.connect
    monkeypatch.setattr(
        "memsys.llm.store.sqlite3.connect", lambda *given, **options: connect(*given, factory=NoSharedMemory, **options)
    )
    with pytest.raises(DamagedCache, match="its file system allows no write-ahead log"):
        CacheStore(tmp_path / "other.sqlite")


def test_an_answer_that_is_not_there_costs_no_query(store: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    store.answer(b"a" * 32)  # reads the keys, none
    store._in.set_trace_callback(asked.append)
    assert store.answer(b"b" * 32) is None
    assert asked == []
    store.keep_answer(b"b" * 32, Completion("mine")).result(timeout=10)
    assert store.answer(b"b" * 32) is not None
    assert store.answer(b"b" * 8 + b"c" * 24) is None  # the same first bytes are looked up
    assert len(asked) == 2
    again = CacheStore(store.path)
    assert again.answer(b"b" * 32) is not None
    assert again.answer(b"c" * 32) is None


def test_closing_writes_what_has_arrived(store: CacheStore) -> None:
    written = [store.keep_answer(number.to_bytes(32, "big"), Completion("x")) for number in range(300)]
    store.close()
    assert all(each.done() and each.exception() is None for each in written)
    assert sqlite3.connect(store.path).execute("SELECT COUNT(*) FROM answers").fetchone()[0] == 300


class Slow:
    """A model whose answers come when the test says so."""

    def __init__(self) -> None:
        self.futures: list[Future[Completion]] = []

    def submit(self, request: Request) -> Future[Completion]:
        self.futures.append(Future())
        return self.futures[-1]


def test_a_request_that_is_under_way_is_not_sent_twice(store: CacheStore) -> None:
    slow = Slow()
    llm = cached(slow, store)
    first, second = llm.submit(REQUEST), llm.submit(REQUEST)
    assert len(slow.futures) == 1
    slow.futures[0].set_result(Completion("hi"))
    assert first.result() == second.result()


def test_a_failure_is_not_kept(store: CacheStore) -> None:
    llm = cached(ScriptedLLM({"test.step": [ModelError("busy"), "fine"]}), store)
    with pytest.raises(ModelError, match="busy"):
        llm.submit(REQUEST).result()
    assert llm.submit(REQUEST).result().text == "fine"


def test_the_file_alone_replays_a_run(store: CacheStore, tmp_path: Path) -> None:
    original = cached(ScriptedLLM("hi"), store).submit(REQUEST).result()
    store.close()
    again = CacheStore(tmp_path / "cache.sqlite")
    assert cached(None, again).submit(REQUEST).result().text == original.text
    with pytest.raises(ModelError, match=r"replay: .* no answer for this test\.step call"):
        cached(None, again).submit(replace(REQUEST, sample=5)).result()


def test_a_file_that_is_no_cache_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    path.write_bytes(b"this is not a database, it is a note" * 100)
    with pytest.raises(ModelError, match=r"cache\.sqlite is not a usable cache"):
        CacheStore(path)


def test_a_file_on_a_full_disk_is_not_to_be_moved_away(tmp_path: Path) -> None:
    CacheStore(tmp_path / "cache.sqlite").close()
    code = "import resource, sys; from pathlib import Path; from memsys.llm.store import CacheStore\n"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); CacheStore(Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "cache.sqlite")]
    said = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3]).stderr
    assert "free some space or check the disk" in said
    assert "move it away" not in said
    with pytest.raises(DamagedCache, match="move it away"), usable(tmp_path):
        raise sqlite3.DatabaseError("database disk image is malformed")


def test_many_threads_share_one_connection(store: CacheStore) -> None:
    llm = cached(ScriptedLLM(lambda request: request.messages[0][1]), store)

    def work(start: int) -> None:
        for number in range(start, start + 50):
            text = str(number % 60)
            assert llm.submit(replace(REQUEST, messages=(("user", text),))).result().text == text

    threads = [threading.Thread(target=work, args=(10 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = sqlite3.connect(store.path).execute("SELECT COUNT(*) FROM answers").fetchone()
    assert rows == (60,)


class Counting:
    """An embedder that counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def fetch(self, texts: Any, *, query: bool = False) -> Iterator[Outcomes]:
        self.asked += texts
        vectors = [Embedded(np.asarray([len(text), 1.0], dtype=np.float32), len(text), 0.5) for text in texts]
        yield 0, vectors


def test_known_texts_are_not_embedded_again_but_still_counted(store: CacheStore) -> None:
    inner = Counting()
    embedder = CachedEmbedder(inner, store, "e", "here")
    embedder.embed(["a", "bb", "a"])
    with metering() as ledger:
        vectors = embedder.embed(["bb", "a", "ccc"])
    assert inner.asked == ["a", "bb", "ccc"]
    assert vectors[:, 0].tolist() == [2.0, 1.0, 3.0]
    assert (ledger.embedding_calls, ledger.embedding_tokens, ledger.seconds) == (1, 6, 1.5)


def test_without_a_cache_each_call_sends_its_texts_once_and_counts_them() -> None:
    inner = Counting()
    embedder = CachedEmbedder(inner, NoVectors(), "e", "here")
    with metering() as ledger:
        assert embedder.embed(["bb", "a", "bb"])[:, 0].tolist() == [2.0, 1.0, 2.0]
        embedder.embed(["a"])
    assert inner.asked == ["bb", "a", "a"]
    assert (ledger.embedding_calls, ledger.embedding_tokens) == (2, 6)


def test_a_text_that_another_caller_embeds_after_the_lookup_is_not_sent_again(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, look_up = Counting(), store.vectors
    embedder = CachedEmbedder(inner, store, "e", "here")

    def overtaken(keys: list[bytes]) -> dict[bytes, Embedded]:
        monkeypatch.setattr(store, "vectors", look_up)
        before = look_up(keys)
        embedder.embed(["a"])  # the other caller, from its lookup to its commit
        return before

    monkeypatch.setattr(store, "vectors", overtaken)
    vectors = embedder.embed(["a", "bb"])
    assert vectors[:, 0].tolist() == [1.0, 2.0]
    assert inner.asked == ["a", "bb"]


def test_vectors_of_another_model_or_side_are_kept_apart(store: CacheStore) -> None:
    inner = Counting()
    CachedEmbedder(inner, store, "e", "here", query_differs=True).embed(["a"])
    CachedEmbedder(inner, store, "e", "here", query_differs=True).embed(["a"], query=True)
    CachedEmbedder(inner, store, "f", "here").embed(["a"])
    CachedEmbedder(inner, store, "e", "there").embed(["a"])
    assert inner.asked == ["a"] * 4
    CachedEmbedder(inner, store, "f", "here").embed(["a"], query=True)
    assert len(inner.asked) == 4


def test_a_replay_without_the_vector_fails_by_name(store: CacheStore) -> None:
    with pytest.raises(ModelError, match="lacks 1 vectors of e"):
        CachedEmbedder(None, store, "e", "here").embed(["a"])


def test_nothing_is_an_empty_matrix(store: CacheStore) -> None:
    assert CachedEmbedder(Counting(), store, "e", "here").embed([]).shape == (0, 0)


# --- nobody waits for ever ---------------------------------------------------------------------------------------------


class Raising:
    """A model that raises where it should give a future, once."""

    def __init__(self) -> None:
        self.left = 1

    def submit(self, request: Request) -> Future[Completion]:
        if self.left:
            self.left -= 1
            raise MemoryError("no room")
        return ScriptedLLM("fine").submit(request)


def test_a_model_that_raises_at_once_leaves_nobody_waiting_for_its_request(store: CacheStore) -> None:
    llm = cached(Raising(), store)
    with pytest.raises(MemoryError):
        llm.submit(REQUEST)
    assert llm.submit(REQUEST).result(timeout=5).text == "fine"


def test_a_call_that_was_cancelled_is_told_to_everyone_who_shares_it(store: CacheStore) -> None:
    slow = Slow()
    llm = cached(slow, store)
    shared = [llm.submit(REQUEST), llm.submit(REQUEST)]
    slow.futures[0].cancel()
    for future in shared:
        with pytest.raises(CancelledError):
            future.result(timeout=5)
    assert llm._in_flight == {}


@pytest.mark.parametrize("where", ["_insert", "_commit"])
def test_an_exception_in_the_thread_that_writes_fails_the_call_and_not_the_next(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("a bug in writing")

    llm = cached(ScriptedLLM("fine"), store)
    with monkeypatch.context() as patched:
        patched.setattr(store, where, broken)
        with pytest.raises(ModelError, match="a bug in writing"):
            llm.submit(REQUEST).result(timeout=5)
    assert llm.submit(REQUEST).result(timeout=5).text == "fine"


def test_an_exception_of_who_is_told_does_not_end_the_thread_that_writes(store: CacheStore) -> None:
    def broken(written: Future[None]) -> None:
        raise ZeroDivisionError("a bug in a callback")

    written = store.keep_answer(b"a" * 32, Completion("x"))
    written.add_done_callback(broken)
    assert not written.cancel(), "who waits may go; the thread that writes goes on"
    assert store.keep_answer(b"b" * 32, Completion("y")).result(timeout=5) is None


def test_an_exception_in_the_books_reaches_who_waits(store: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("a bug in the books")

    monkeypatch.setattr(Ledger, "add_completion", broken)
    with metering(), pytest.raises(ZeroDivisionError):
        Metered(cached(ScriptedLLM("fine"), store)).submit(REQUEST).result(timeout=5)
    monkeypatch.setattr(Ledger, "add_failure", broken)
    with metering(), pytest.raises(ZeroDivisionError):
        Metered(ScriptedLLM(ModelError("no"))).submit(REQUEST).result(timeout=5)


@pytest.mark.parametrize("tokens", [None, "many", [1]])
def test_an_answer_with_malformed_counts_is_not_kept_and_leaves_nobody_waiting(store: CacheStore, tokens: Any) -> None:
    llm = Metered(cached(ScriptedLLM(Completion("hi", prompt_tokens=tokens)), store))
    for _ in range(2):
        with metering():
            llm.submit(REQUEST).exception(timeout=5)
    assert sqlite3.connect(store.path).execute("SELECT COUNT(*) FROM answers").fetchone() == (0,)


# --- places in flight ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("commit_fails", "in_flight", "most"), [(False, 3, 3), (True, 3, 3), (False, 8, 9)])
def test_a_call_keeps_its_place_in_flight_until_its_reply_is_committed_but_for_an_eighth(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch, commit_fails: bool, in_flight: int, most: int
) -> None:
    held_back, commit = threading.Event(), store._commit

    def commit_later(rows: Any) -> None:
        assert held_back.wait(20)
        if commit_fails:
            raise ZeroDivisionError("a bug in writing")
        commit(rows)

    monkeypatch.setattr(store, "_commit", commit_later)
    mock = Mock()
    with serving(application(mock)) as url:
        endpoint = Endpoint(url, EndpointLimits(in_flight=in_flight))
        llm = cached(Client(endpoint, SETTINGS), store)
        futures = [llm.submit(replace(REQUEST, messages=(("user", str(number)),))) for number in range(9)]
        other = Client(endpoint, SETTINGS)  # of the same server, without a cache
        while sum(mock.answered.values()) < most or endpoint.snapshot().in_flight:
            time.sleep(0.005)
        uncached = other.submit(replace(REQUEST, sample=1))
        for _ in range(20):  # the event loop turns, and sends nothing
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.001), event_loop()).result(10)
        assert (sum(mock.arrivals.values()), [future.done() for future in futures]) == (most, [False] * 9)
        held_back.set()
        errors = [future.exception(timeout=20) for future in futures]
        assert uncached.result(timeout=20).text
        while endpoint.snapshot().finished < 10:
            time.sleep(0.005)
        endpoint.close()
    assert sum(mock.answered.values()) == 10
    assert all((error is not None) == commit_fails for error in errors)


@pytest.mark.slow
def test_a_batch_of_texts_keeps_its_place_in_flight_until_its_vectors_are_committed(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock, commit = Mock(), store.keep_vectors
    with serving(application(mock)) as url:
        endpoint = Endpoint(url, EndpointLimits(in_flight=2))
        answered: list[int] = []

        def commit_slowly(rows: Any) -> dict[bytes, Embedded]:
            deadline = time.monotonic() + (0.0 if answered else 1.0)
            while time.monotonic() < deadline and sum(mock.arrivals.values()) <= 2:  # nothing more is sent
                time.sleep(0.01)
            answered.append(sum(mock.arrivals.values()))
            return commit(rows)

        monkeypatch.setattr(store, "keep_vectors", commit_slowly)
        texts = [f"text {number}" for number in range(12)]
        matrix = CachedEmbedder(HttpEmbedder(endpoint, SETTINGS, batch=2), store, "e", "here").embed(texts)
        endpoint.close()
    # Two places: at the n-th commit at most n + 1 batches were sent.
    assert all(sent <= number + 1 for number, sent in enumerate(answered, 1))
    assert len(answered) == sum(mock.answered.values()) == 6
    np.testing.assert_array_equal(CachedEmbedder(None, store, "e", "here").embed(texts), matrix)


def test_a_stop_waits_until_replies_are_committed(store: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    held_back, commit = threading.Event(), store.keep_vectors

    def commit_later(rows: Any) -> dict[bytes, Embedded]:
        assert held_back.wait(20)
        return commit(rows)

    monkeypatch.setattr(store, "keep_vectors", commit_later)
    mock = Mock()
    with serving(application(mock)) as url:
        endpoint = Endpoint(url)
        embedder = CachedEmbedder(HttpEmbedder(endpoint, SETTINGS), store, "e", "here")
        caller = threading.Thread(target=embedder.embed, args=(["a"],))
        caller.start()
        while not endpoint.places.unsaved:
            time.sleep(0.005)
        endpoint.refuse()
        threading.Timer(0.2, held_back.set).start()
        assert endpoint.finish(20.0) == 0
        assert held_back.is_set()
        caller.join(20)
        endpoint.close()
    assert CachedEmbedder(None, store, "e", "here").embed(["a"]).shape == (1, 64)


@pytest.mark.parametrize("broken", ["keep_answer", "_completion"])
def test_a_reply_that_is_not_committed_gives_its_place_away(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("a bug")

    with serving(application(Mock())) as url:
        endpoint = Endpoint(url, EndpointLimits(in_flight=1))
        llm = cached(Client(endpoint, SETTINGS), store)
        with monkeypatch.context() as patched:
            patched.setattr(store if broken == "keep_answer" else Client, broken, fail)
            assert llm.submit(REQUEST).exception(timeout=20) is not None
        assert llm.submit(replace(REQUEST, sample=1)).result(timeout=20).text
        endpoint.close()


# --- what is kept ------------------------------------------------------------------------------------------------------


def test_an_empty_reply_is_handed_on_and_never_kept(store: CacheStore) -> None:
    llm = cached(ScriptedLLM({"test.step": ["", "a proper answer"]}), store)
    assert llm.submit(REQUEST).result().text == ""
    assert llm.submit(REQUEST).result().text == "a proper answer"
    assert llm.submit(REQUEST).result().cached


@pytest.mark.parametrize(
    "row",
    [
        "{torn",
        "[]",
        "null",
        '{"text": "half"}',
        '{"text": "", "logprobs": null}',
        '{"text": "odd", "logprobs": 7}',
        '{"text": 5, "logprobs": null}',
        '{"text": "more", "logprobs": null, "unheard_of": 1}',
        '{"text": "more", "logprobs": null, "prompt_tokens": 1, "cached_prompt_tokens": "2"}',
    ],
)
def test_a_kept_row_that_is_no_answer_is_asked_for_again_and_replaced(store: CacheStore, row: str) -> None:
    key = request_key(SETTINGS, "here", REQUEST)
    with sqlite3.connect(store.path) as file:
        file.execute("INSERT INTO answers VALUES (?, ?)", (key, row))
    again = CacheStore(store.path)
    assert cached(ScriptedLLM("fine"), again).submit(REQUEST).result().text == "fine"
    again.close()
    assert cached(None, CacheStore(store.path)).submit(REQUEST).result().text == "fine"


NO_DIRECTION = [[np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0], []]


@pytest.mark.parametrize("numbers", NO_DIRECTION)
def test_a_kept_vector_that_points_nowhere_is_fetched_again_and_replaced(
    store: CacheStore, numbers: list[float]
) -> None:
    embedder = CachedEmbedder(Counting(), store, "e", "here")
    row = (embedder._key("a", False), np.asarray(numbers, dtype=np.float32).tobytes(), 1, 0.5)
    with sqlite3.connect(store.path) as file:
        file.execute("INSERT INTO vectors VALUES (?, ?, ?, ?)", row)
    assert embedder.embed(["a"]).tolist() == [[1.0, 1.0]]
    assert CachedEmbedder(None, CacheStore(store.path), "e", "here").embed(["a"]).tolist() == [[1.0, 1.0]]


class Partly:
    """An embedder with a vector for the first two texts and an error for each of the others, in the order of `failed`."""

    def __init__(self, *failed: int, end: int | None = None) -> None:
        self.failed, self.end = failed, end

    def fetch(self, texts: Any, *, query: bool = False) -> Iterator[Outcomes]:
        for start in self.failed:
            yield start, [(EndOfRun if start == self.end else ModelError)(f"text {start} failed")]
        yield 0, [Embedded(np.asarray([1.0, 0.0], dtype=np.float32), 1, 0.5) for _ in texts[:2]]


@pytest.mark.parametrize(("end", "said"), [(None, "text 2 failed"), (3, "text 3 failed")])
def test_vectors_that_came_are_kept_when_others_failed_and_the_first_error_or_the_end_of_the_run_is_raised(
    store: CacheStore, end: int | None, said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        CachedEmbedder(Partly(3, 2, end=end), store, "e", "here").embed(["a", "b", "c", "d"])
    with pytest.raises(ModelError, match=said):
        CachedEmbedder(Partly(2, 3, end=end), store, "e", "here").embed(["a", "b", "c", "d"])
    assert CachedEmbedder(None, store, "e", "here").embed(["a", "b"]).shape == (2, 2)


class Sized:
    """An embedder whose vectors have as many numbers as it is told."""

    def __init__(self, size: int) -> None:
        self.size = size

    def fetch(self, texts: Any, *, query: bool = False) -> Iterator[Outcomes]:
        yield 0, [Embedded(np.ones(self.size, dtype=np.float32), 1, 0.5) for _ in texts]


def test_a_vector_of_another_dimension_than_before_is_refused_and_not_kept(store: CacheStore) -> None:
    inner = Sized(3)
    embedder = CachedEmbedder(inner, store, "e", "here")
    embedder.embed(["a"])
    inner.size = 4
    with pytest.raises(ModelError, match="a vector of 4 numbers, those before it have 3"):
        embedder.embed(["b"])
    with pytest.raises(ModelError, match="lacks 1 vectors"):
        CachedEmbedder(None, store, "e", "here").embed(["b"])


# --- a file that is damaged --------------------------------------------------------------------------------------------


def damaged(path: Path) -> None:
    """A whole cache of 3,000 answers, overwritten in the middle."""
    store = CacheStore(path)
    for number in range(3000):
        key = hashlib.sha256(str(number).encode()).digest()
        store.keep_answer(key, Completion("x" * 200))
    store.close()
    content = bytearray(path.read_bytes())
    for page in range(4, len(content) // 4096, 7):
        content[page * 4096 : page * 4096 + 400] = b"\xa5" * 400
    path.write_bytes(content)


def test_a_file_that_is_damaged_in_the_middle_ends_the_run_and_says_what_to_do(tmp_path: Path) -> None:
    damaged(tmp_path / "cache.sqlite")
    with pytest.raises(DamagedCache, match="move it away: nothing that is in the run folders is lost"):
        _ask_everything(CacheStore(tmp_path / "cache.sqlite"))


def _ask_everything(store: CacheStore) -> None:
    for number in range(3000):
        store.answer(hashlib.sha256(str(number).encode()).digest())


def test_a_file_that_takes_no_more_rows_ends_the_run_and_nothing_more_is_sent(store: CacheStore) -> None:
    store._out.execute("PRAGMA max_page_count=1")  # as a full disk does
    inner = ScriptedLLM(Completion("x" * 1_000_000))
    for _ in range(2):
        with pytest.raises(DamagedCache, match=r"cannot be written .*free some space"):
            cached(inner, store).submit(REQUEST).result(timeout=10)
    assert len(inner.requests) == 1
    store._out.execute("PRAGMA max_page_count=1000000")
    assert cached(inner, store).submit(REQUEST).result(timeout=10).cached, "the paid answer is kept when there is room"


def test_all_answers_that_a_full_disk_refused_are_kept_when_there_is_room(store: CacheStore) -> None:
    store._out.execute("PRAGMA max_page_count=1")
    calls: list[Future[Completion]] = [Future() for _ in range(3)]
    model = cached(SimpleNamespace(submit=lambda request: calls[request.sample]), store)
    requests = [replace(REQUEST, sample=number) for number in range(3)]
    futures = [model.submit(request) for request in requests]
    for call in calls:
        call.set_result(Completion("x" * 1_000_000))
    assert all(isinstance(future.exception(timeout=10), DamagedCache) for future in futures)
    store._out.execute("PRAGMA max_page_count=1000000")
    assert all(model.submit(request).result(timeout=10).cached for request in requests)


@pytest.mark.timeout(25)  # less than the 30 s that a first write waits: the calls after it do not wait again
def test_calls_after_a_refused_row_do_not_wait_for_a_locked_file(store: CacheStore) -> None:
    inner = ScriptedLLM("paid")
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        store._out.execute("PRAGMA busy_timeout=0")
        for _ in range(3):
            with pytest.raises(DamagedCache, match="cannot be written"):
                cached(inner, store).submit(REQUEST).result(timeout=20)
    assert len(inner.requests) == 1
    assert cached(inner, store).submit(replace(REQUEST, sample=1)).result(timeout=10).text == "paid"


def test_a_text_that_is_being_embedded_already_is_not_sent_a_second_time(store: CacheStore) -> None:
    class Slow:
        def __init__(self) -> None:
            self.sent: list[str] = []
            self.asked, self.may_answer = threading.Event(), threading.Event()

        def fetch(self, texts: Sequence[str], *, query: bool = False) -> Iterator[Outcomes]:
            self.sent += texts
            self.asked.set()
            assert self.may_answer.wait(10)
            yield 0, [Embedded(np.array([1.0, 0.0], np.float32), 1, 0.0) for _ in texts]

    inner = Slow()
    embedder = CachedEmbedder(inner, store, "e", "here")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(embedder.embed, ["a", "b"])
        assert inner.asked.wait(10)
        second = pool.submit(embedder.embed, ["b", "c"])
        while "c" not in inner.sent:
            time.sleep(0.001)
        inner.may_answer.set()
        assert first.result(10).shape == second.result(10).shape == (2, 2)
    assert sorted(inner.sent) == ["a", "b", "c"]


def test_a_file_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # while it is held, SQLite refuses WAL mode at once, whatever time it is given
    release = threading.Timer(0.2, other.execute, ["COMMIT"])
    release.start()
    CacheStore(path).close()
    release.join()
    other.close()
