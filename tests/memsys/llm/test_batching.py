"""Calls through the batch API: what is sent, what is asked again, what a killed process finds, what it costs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from scripted import fetched

from eval.files.store import RunError
from memsys.llm import stopping
from memsys.llm.batching.endpoint import BatchEndpoint, BatchSettings, Provider, replies_of
from memsys.llm.batching.journal import Batch, Journal, JournalledCall
from memsys.llm.cache import CachedEmbedder, CachedLLM
from memsys.llm.client import Client, HttpEmbedder, request_key
from memsys.llm.endpoint import Call, Endpoint, EndpointLimits, Sent
from memsys.llm.meter import metering
from memsys.llm.pricing import ModelSettings, Purse
from memsys.llm.protocol import Completion, EndOfRun, ModelError, Request
from memsys.llm.store import CacheStore
from scripts.commands.batch import main
from scripts.mock.endpoint import BatchQuirks, Mock, application, serving

pytestmark = pytest.mark.slow

SETTINGS = ModelSettings("mock", usd_per_million_in=1.0, usd_per_million_out=2.0)
QUICK = BatchSettings(idle=0.05, poll=0.02)
REQUESTS = [Request((("user", f"question {number}"),), "test.step", max_tokens=16) for number in range(20)]


@contextmanager
def batching(
    url: str, cache: Path, settings: BatchSettings = QUICK, purse: Purse | None = None, retries: int = 3
) -> Iterator[BatchEndpoint]:
    live = Endpoint(url, EndpointLimits(retries=retries, patience=0.0, timeout=5.0), label="mock", purse=purse)
    journal = Journal(cache)
    endpoint = BatchEndpoint(live, journal, settings)
    try:
        yield endpoint
    finally:
        endpoint.close()
        live.close()
        journal.close()


def answers(endpoint: BatchEndpoint, store: CacheStore, requests: list[Request] = REQUESTS) -> list[Completion]:
    llm = CachedLLM(Client(endpoint, SETTINGS), store, SETTINGS, "mock")
    return [future.result(20) for future in [llm.submit(request) for request in requests]]


def until(happened: Callable[[], bool], seconds: float = 8.0) -> bool:
    """Whether something happens within some seconds."""
    deadline = time.monotonic() + seconds
    while not (seen := happened()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return seen


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


@pytest.fixture
def store(cache: Path) -> Iterator[CacheStore]:
    store = CacheStore(cache)
    yield store
    store.close()


def live_answers(url: str, tmp_path: Path) -> list[str]:
    store = CacheStore(tmp_path / "live.sqlite")
    endpoint = Endpoint(url, label="mock")
    llm = CachedLLM(Client(endpoint, SETTINGS), store, SETTINGS, "mock")
    texts = [llm.submit(request).result(20).text for request in REQUESTS]
    endpoint.close()
    store.close()
    return texts


def test_calls_that_arrive_together_are_one_batch_with_the_live_answers(
    cache: Path, store: CacheStore, tmp_path: Path
) -> None:
    mock = Mock()
    with serving(application(mock)) as url:
        with batching(url, cache) as endpoint:
            completions = answers(endpoint, store)
        assert [completion.text for completion in completions] == live_answers(url, tmp_path)
    assert len(mock.batches.batches) == 1
    assert {completion.notes for completion in completions} == {("batch",)}
    assert {completion.seconds for completion in completions} == {0.0}


def test_a_call_s_custom_id_is_its_cache_key(cache: Path, store: CacheStore) -> None:
    mock = Mock()
    with serving(application(mock)) as url, batching(url, cache) as endpoint:
        answers(endpoint, store)
    sent = [json.loads(line) for line in mock.batches.files["file-0"].splitlines()]
    assert {line["custom_id"] for line in sent} == {
        request_key(SETTINGS, "mock", request).hex() for request in REQUESTS
    }
    assert {(line["method"], line["url"]) for line in sent} == {("POST", "/v1/chat/completions")}


def test_a_stop_fails_calls_that_wait_for_a_batch_and_the_end_of_a_command_closes_the_journal(
    cache: Path, store: CacheStore
) -> None:
    with batching("http://127.0.0.1:9/v1", cache, BatchSettings(idle=60.0)) as endpoint:
        future = Client(endpoint, SETTINGS).submit(REQUESTS[0])
        try:
            assert stopping.wind_down() == 0
            assert isinstance(future.exception(timeout=1), stopping.Stopped)
        finally:
            stopping.forget()
        assert endpoint in stopping.keepers  # a command closes these at its end (`scripts.setup.exits`)
    assert endpoint not in stopping.keepers


def test_draws_of_one_prompt_are_calls_of_their_own(cache: Path, store: CacheStore) -> None:
    draws = [Request((("user", "the same"),), "test.step", sample=number) for number in range(3)]
    mock = Mock()
    with serving(application(mock)) as url, batching(url, cache) as endpoint:
        answers(endpoint, store, draws)
    assert len(mock.batches.files["file-0"].splitlines()) == 3


def test_only_what_expired_or_failed_is_sent_again(cache: Path, store: CacheStore, tmp_path: Path) -> None:
    mock = Mock(batches=BatchQuirks(expired=0.3, failed=0.3))
    with serving(application(mock)) as url:
        with batching(url, cache) as endpoint:
            completions = answers(endpoint, store)
        assert set(mock.answered.values()) == {1}
        assert [completion.text for completion in completions] == live_answers(url, tmp_path)
    sizes = [len(mock.batches.files[batch["input_file_id"]].splitlines()) for batch in mock.batches.batches.values()]
    assert sizes[0] == 20
    assert 0 < sizes[1] < 20


def test_a_call_that_keeps_failing_is_an_error_and_is_tried_anew_by_the_next_run(
    cache: Path, store: CacheStore
) -> None:
    mock = Mock(batches=BatchQuirks(failed=1.0))
    with serving(application(mock)) as url:
        with batching(url, cache, retries=0) as endpoint, pytest.raises(ModelError, match="HTTP 500"):
            answers(endpoint, store, REQUESTS[:1])
        with batching(url, cache, retries=0) as endpoint:
            assert answers(endpoint, store, REQUESTS[:1])[0].text.startswith("mock answer")


@pytest.mark.parametrize("moment", ["before the upload", "after the upload", "after the batch was created"])
def test_a_killed_process_sends_nothing_twice(moment: str, cache: Path, store: CacheStore) -> None:
    mock = Mock()
    with serving(application(mock)) as url:
        journal = Journal(cache)
        names = {request_key(SETTINGS, "mock", request).hex(): request for request in REQUESTS}
        bodies = [
            JournalledCall(name, "/chat/completions", json.dumps(_body(request)).encode())
            for name, request in names.items()
        ]
        journal.add(bodies)
        begun = journal.begin(journal.open_calls(), url)
        _half_sent(moment, begun, journal, url)
        journal.close()  # the process ends here
        with batching(url, cache) as endpoint:
            assert len(answers(endpoint, store)) == 20
    assert len(mock.batches.batches) == 1
    assert set(mock.answered.values()) == {1}


def _body(request: Request) -> dict[str, object]:
    from memsys.llm.client import chat_body

    return chat_body(SETTINGS, request)


def _half_sent(moment: str, batch: Batch, journal: Journal, url: str) -> None:
    provider = Provider(url, "none", timeout=5.0, retries=0)
    if moment != "before the upload":
        file = provider.upload("calls.jsonl", b"".join(call.line() for call in journal.calls_of(batch)))
        if moment == "after the batch was created":
            provider.create(file, batch.path, batch.id)
    provider.close()


def test_replies_that_were_fetched_but_not_kept_by_the_cache_are_not_asked_again(
    cache: Path, store: CacheStore
) -> None:
    mock = Mock()
    with serving(application(mock)) as url:
        with batching(url, cache) as endpoint:
            client = Client(endpoint, SETTINGS)  # no cache: as if the process had ended before the commit
            wait([client.submit(request) for request in REQUESTS], 20)
        with batching(url, cache) as endpoint:
            assert len(answers(endpoint, store)) == 20
    assert set(mock.answered.values()) == {1}


def test_a_full_queue_makes_smaller_batches_that_wait_for_each_other(cache: Path, store: CacheStore) -> None:
    mock = Mock(batches=BatchQuirks(enqueued_tokens=600))
    with serving(application(mock)) as url, batching(url, cache) as endpoint:
        assert len(answers(endpoint, store)) == 20
    assert len(mock.batches.batches) > 2
    assert set(mock.answered.values()) == {1}


def test_a_batched_call_costs_half_and_the_cap_holds(cache: Path, store: CacheStore) -> None:
    live, half = Purse(100.0), Purse(100.0)
    mock = Mock()
    with serving(application(mock)) as url:
        endpoint = Endpoint(url, label="mock", purse=live)
        wait([Client(endpoint, SETTINGS).submit(request) for request in REQUESTS], 20)
        endpoint.close()
        with batching(url, cache, purse=half) as batched:
            answers(batched, store)
        assert half.spent == pytest.approx(live.spent / 2)
        with batching(url, cache, purse=Purse(1e-9)) as batched, pytest.raises(ModelError, match="max_usd"):
            answers(batched, store, [Request((("user", "new"),), "test.step")])


def test_a_server_without_a_batch_api_ends_the_run_with_a_sentence(cache: Path, store: CacheStore) -> None:
    from aiohttp import web

    with (
        serving(web.Application()) as url,
        batching(url, cache) as endpoint,
        pytest.raises(ModelError, match="no batch API"),
    ):
        answers(endpoint, store)


def test_long_lists_of_texts_are_embedded_in_a_batch_and_queries_live(cache: Path) -> None:
    mock = Mock()
    with serving(application(mock)) as url, batching(url, cache) as endpoint:
        embedder = HttpEmbedder(endpoint.live, SETTINGS, batch=4, batches=endpoint)
        texts = [f"text {number}" for number in range(10)]
        vectors = fetched(embedder, texts)
        assert len(mock.batches.batches) == 1
        again = fetched(embedder, texts[:3]), fetched(embedder, texts, query=True)
        assert len(mock.batches.batches) == 1
    assert [embedded.vector.tolist() for embedded in again[0]] == [each.vector.tolist() for each in vectors[:3]]  # type: ignore[union-attr]


def test_the_tokens_of_vectors_from_batches_are_noted_also_when_they_come_from_the_cache(
    cache: Path, store: CacheStore
) -> None:
    texts = [f"text {number}" for number in range(10)]
    with serving(application(Mock())) as url, batching(url, cache) as endpoint:
        http = HttpEmbedder(endpoint.live, SETTINGS, batch=4, batches=endpoint)
        embedder = CachedEmbedder(http, store, "m", "mock")
        noted = []
        for listed in (texts, texts[:3], ["live"], [*texts, "live"]):
            with metering() as ledger:
                embedder.embed(listed)
            noted.append((ledger.notes["batch.embedding_tokens"], ledger.embedding_tokens))
    (every, all_tokens), (some, some_tokens), (none, live), (both, _) = noted
    assert (every, some, none, both) == (all_tokens, some_tokens, 0, all_tokens)
    assert live > 0


def test_collected_calls_wait_in_the_journal_and_imported_replies_answer_them(cache: Path, store: CacheStore) -> None:
    collecting = BatchSettings(idle=0.05, poll=0.02, collect=True)
    with batching("http://127.0.0.1:9/v1", cache, collecting) as endpoint:
        for number in range(6, 9):  # one by one: of several, the first to fail says nothing of the others
            with pytest.raises(ModelError, match="collected"):
                answers(endpoint, store, REQUESTS[number : number + 1])
        (call,) = [call for call in endpoint.journal.open_calls() if b"question 7" in call.body]
        reply = {"choices": [{"message": {"content": "from the cluster"}, "finish_reason": "stop"}]}
        line = {"custom_id": call.name, "response": {"status_code": 200, "body": reply}, "error": None}
        endpoint.journal.keep(dict(replies_of(iter([json.dumps(line), "", "{damaged"]))))
        assert answers(endpoint, store, REQUESTS[7:8])[0].text == "from the cluster"


def test_two_commands_with_one_cache_both_end_and_nothing_is_sent_twice(cache: Path, store: CacheStore) -> None:
    mock = Mock(batches=BatchQuirks(delay=0.3, upload=0.2))
    with (
        serving(application(mock)) as url,
        batching(url, cache) as first,
        batching(url, cache) as second,
        ThreadPoolExecutor(2) as commands,
    ):
        their_store = CacheStore(cache)
        ours = commands.submit(answers, first, store, REQUESTS[:14])
        theirs = commands.submit(answers, second, their_store, REQUESTS[6:])
        assert (len(ours.result(20)), len(theirs.result(20))) == (14, 14)
        their_store.close()
    assert set(mock.answered.values()) == {1}
    sent = [
        json.loads(line)["custom_id"]
        for batch in mock.batches.batches.values()
        for line in mock.batches.files[batch["input_file_id"]].splitlines()
    ]
    assert len(sent) == len(set(sent)) == 20


KILLED = """
import os, sys
from pathlib import Path
from memsys.llm.batching.journal import JournalledCall, Journal
from memsys.llm.batching.endpoint import Provider
url, cache, lines = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]).read_bytes().splitlines()
journal = Journal(cache)
journal.add([JournalledCall(name.decode(), "/chat/completions", body) for name, body in (line.split(b" ", 1) for line in lines)])
batch = journal.begin(journal.open_calls()[:-1], url)  # the last call stays open
provider = Provider(url, "none", timeout=5.0, retries=0)
file = provider.upload("calls.jsonl", b"".join(call.line() for call in journal.calls_of(batch)))
provider.create(file, batch.path, batch.id)
print("created", flush=True)
sys.stdin.read()  # until it is killed
"""


def test_what_a_killed_command_left_is_taken_over_by_one_that_runs(
    cache: Path, store: CacheStore, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    names = {request_key(SETTINGS, "mock", request).hex(): request for request in REQUESTS}
    calls.write_text("".join(f"{name} {json.dumps(_body(request))}\n" for name, request in names.items()))
    mock = Mock()
    with serving(application(mock)) as url, batching(url, cache) as endpoint, ThreadPoolExecutor(1) as command:
        command_line = [sys.executable, "-c", KILLED, url, str(cache), str(calls)]
        with subprocess.Popen(command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"created\n"
            ours = command.submit(answers, endpoint, store)
            with pytest.raises(TimeoutError):
                ours.result(0.5)  # the other one lives: its calls are its own
            assert len(mock.batches.batches) == 1
            other.kill()
        assert len(ours.result(20)) == 20
    assert len(mock.batches.batches) == 2  # the second holds the one call that the killed command had not sent
    assert set(mock.answered.values()) == {1}
    assert not list(cache.parent.glob("*.owner-*"))


def test_calls_in_a_received_cache_that_nobody_waits_for_are_not_sent(cache: Path, store: CacheStore) -> None:
    mock = Mock()
    with serving(application(mock)) as url:
        with closing(Journal(cache)) as journal:
            journal.add([JournalledCall(str(number), "/chat/completions", b'{"model": "m"}') for number in range(50)])
            journal.begin(journal.open_calls()[:40], url)
        with batching(url, cache) as endpoint:
            assert len(answers(endpoint, store, REQUESTS[:3])) == 3
    assert sum(mock.answered.values()) == 3


def test_a_cancelled_batch_ends_the_command_and_is_not_sent_again(cache: Path, store: CacheStore) -> None:
    mock = Mock(batches=BatchQuirks(cancelled=1))
    with serving(application(mock)) as url:
        with batching(url, cache) as endpoint:
            with pytest.raises(EndOfRun, match=r"batch batch-0 was cancelled .* 20 of its 20 calls have no reply"):
                answers(endpoint, store)
            with pytest.raises(EndOfRun, match="was cancelled"):  # later calls fail at once
                answers(endpoint, store, REQUESTS[:1])
        assert len(mock.batches.batches) == 1
        with batching(url, cache) as endpoint:  # the same command, on request
            assert len(answers(endpoint, store)) == 20
    assert len(mock.batches.batches) == 2


def test_an_error_line_never_takes_the_place_of_a_good_reply(cache: Path, store: CacheStore) -> None:
    mock = Mock(batches=BatchQuirks(doubled=True))
    with serving(application(mock)) as url, batching(url, cache) as endpoint:
        assert len(answers(endpoint, store)) == 20
        endpoint.journal.keep({"a": (200, b"1")})
        endpoint.journal.keep({"a": (500, b"2")})
        assert endpoint.journal.reply("a") == (200, 1)
    (batch,) = mock.batches.batches.values()
    lines = list(map(json.loads, mock.batches.files[batch["error_file_id"]].splitlines()))
    assert [(line["response"], line["error"]["code"]) for line in lines] == [(None, "batch_expired")] * 20


@pytest.mark.parametrize("expired", [0.0, 0.3])
def test_a_torn_output_file_is_fetched_again_and_its_calls_are_not_sent_again(
    cache: Path, store: CacheStore, expired: float
) -> None:
    mock = Mock(batches=BatchQuirks(torn=2, expired=expired))
    with serving(application(mock)) as url, batching(url, cache) as endpoint:
        assert len(answers(endpoint, store)) == 20
    assert len(mock.batches.batches) == (2 if expired else 1)
    assert set(mock.answered.values()) == {1}


def test_a_file_that_stays_torn_ends_the_command_with_its_name(cache: Path, store: CacheStore) -> None:
    mock = Mock(batches=BatchQuirks(torn=1_000))
    with (
        serving(application(mock)) as url,
        batching(url, cache, retries=2) as endpoint,
        pytest.raises(EndOfRun, match=r"files of batch-0 lack .* forget batch-0"),
    ):
        answers(endpoint, store)
    assert len(mock.batches.batches) == 1


def test_a_batch_behind_many_newer_ones_is_found(cache: Path, store: CacheStore) -> None:
    mock = Mock()
    with serving(application(mock)) as url:
        provider = Provider(url, "none", timeout=5.0, retries=0)
        file = provider.upload("calls.jsonl", b"")
        ours = provider.create(file, "/chat/completions", "ours")
        template = mock.batches.batches[ours.id]
        for number in range(700):
            mock.batches.batches[f"other-{number}"] = {**template, "id": f"other-{number}", "metadata": None}
        assert provider.find("ours", time.time()) == ours
        for number in range(300, 400):  # older than ours: the list need not be read further
            mock.batches.batches[f"other-{number}"]["created_at"] = 1
        assert provider.find("ours", time.time()) is None
        provider.close()


def test_a_batch_that_the_provider_no_longer_knows_is_named_and_can_be_forgotten(
    cache: Path, store: CacheStore, capsys: pytest.CaptureFixture[str]
) -> None:
    mock = Mock(batches=BatchQuirks(delay=60.0))
    command = ["--cache", str(cache)]
    with serving(application(mock)) as url:
        with batching(url, cache) as endpoint, pytest.raises(TimeoutError):
            CachedLLM(Client(endpoint, SETTINGS), store, SETTINGS, "mock").submit(REQUESTS[0]).result(1.0)
        mock.batches.batches["kept"] = mock.batches.batches.pop("batch-0")  # numbers go on from here
        with batching(url, cache) as endpoint, pytest.raises(EndOfRun, match=r"does not know it .* forget batch-0"):
            answers(endpoint, store, REQUESTS[:1])
        assert main([*command, "status"]) == 0
        assert "under way: batch-0" in capsys.readouterr().out
        with pytest.raises(RunError, match="no batch batch-7 is under way"):
            main([*command, "forget", "batch-7"])
        assert main([*command, "forget", "batch-0"]) == 0
        assert "its 1 call will be sent again" in capsys.readouterr().out
        mock.batches.quirks = BatchQuirks()
        with batching(url, cache) as endpoint:
            assert answers(endpoint, store, REQUESTS[:1])[0].text


def test_a_batch_whose_creation_was_not_confirmed_is_not_created_again(cache: Path, store: CacheStore) -> None:
    mock = Mock()
    create, lost = mock.batches.create, []

    async def lose_the_reply(request: Any) -> Any:
        response = await create(request)
        if not lost:
            lost.append(response)
            return web.json_response({"error": {"message": "bad gateway"}}, status=502)
        return response

    mock.batches.create = lose_the_reply  # type: ignore[method-assign]
    with serving(application(mock)) as url, batching(url, cache) as endpoint:
        endpoint.live.limits = replace(endpoint.live.limits, patience=10.0)
        assert len(answers(endpoint, store)) == 20
    assert len(mock.batches.batches) == 1


def test_a_server_that_is_gone_is_named_while_it_is_waited_for_and_ends_the_command_after_the_patience(
    cache: Path, store: CacheStore
) -> None:
    mock = Mock(batches=BatchQuirks(delay=60.0))
    slow = BatchSettings(idle=0.05, poll=0.3)  # several steps between two looks
    with ExitStack() as server:
        url = server.enter_context(serving(application(mock)))
        with batching(url, cache, slow, retries=0) as endpoint:
            endpoint.live.limits = replace(endpoint.live.limits, patience=1.5)
            llm = CachedLLM(Client(endpoint, SETTINGS), store, SETTINGS, "mock")
            future = llm.submit(REQUESTS[0])
            assert until(lambda: bool(mock.batches.batches))
            assert endpoint.snapshot().paused_since is None
            server.close()
            assert until(lambda: endpoint.snapshot().paused_since is not None)
            assert url.removesuffix("/v1") in endpoint.snapshot().paused_why
            assert time.time() - (endpoint.snapshot().paused_since or 0.0) < 5.0
            with pytest.raises(EndOfRun, match="run the same command to fetch"):
                future.result(10)


def test_a_negative_bill_costs_what_was_reserved_and_a_malformed_reply_shows_no_key(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-key-that-must-not-be-shown-1234")

    def odd(sent: Sent) -> Completion:
        raise ValueError("found sk-a-key-that-must-not-be-shown-1234")

    body, purse = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}, Purse(1.0)
    with serving(application(Mock())) as url, batching(url, cache, purse=purse) as endpoint:
        error = endpoint.start(Call("/chat/completions", body, 0.5, lambda usage: -0.5, "ab"), odd).exception(20)
    assert isinstance(error, ModelError)
    assert "unexpected reply" in str(error)
    assert "must-not-be-shown" not in str(error)
    assert purse.spent == 0.25
