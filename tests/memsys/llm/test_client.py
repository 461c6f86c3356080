"""The client against the shipped mock endpoint: what is sent, what is retried, what a failure says, what is never exceeded."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import fetched

from memsys.llm.cache import CachedEmbedder
from memsys.llm.client import Client, Embedded, HttpEmbedder, chat_body
from memsys.llm.endpoint import Endpoint, EndpointLimits
from memsys.llm.meter import Metered, metering
from memsys.llm.pricing import ModelSettings, Purse, SpendingCapReached
from memsys.llm.protocol import Completion, ModelError, Request
from memsys.llm.secrets import redact
from memsys.llm.store import CacheStore
from scripts.mock.endpoint import Mock, application, serving

SETTINGS = ModelSettings("mock-model", usd_per_million_in=1.0, usd_per_million_out=2.0)


@contextmanager
def served(handle: Callable[[Any], Any] | None = None, mock: Mock | None = None) -> Iterator[str]:
    """A base URL behind which the mock answers, or a handler of the test's own."""
    from aiohttp import web

    app = application(mock or Mock()) if handle is None else web.Application()
    if handle is not None:
        app.router.add_post("/v1/{path:.*}", handle)
    with serving(app) as url:
        try:
            yield url
        finally:
            for at in _opened:
                at.close()
            _opened.clear()


_opened: list[Endpoint] = []


def request(text: str = "hello", **more: Any) -> Request:
    return Request((("system", "be brief"), ("user", text)), "test.step", **more)


def endpoint(
    url: str, label: str = "", purse: Purse | None = None, key_env: str = "OPENAI_API_KEY", **limits: Any
) -> Endpoint:
    waits = {"timeout": 5.0, "backoff": 0.01, "max_backoff": 0.05}
    _opened.append(Endpoint(url, EndpointLimits(**waits | limits), label=label, purse=purse, key_env=key_env))
    return _opened[-1]


def test_a_completion_carries_text_tokens_log_probabilities_and_seconds() -> None:
    with served(mock=Mock(latency=0.02)) as url:
        found = Client(endpoint(url, label="mock"), SETTINGS).submit(request(logprobs=True)).result()
    assert found.text.startswith("mock answer")
    assert (found.prompt_tokens, found.completion_tokens) == (3, 3)
    assert found.logprobs == (-0.25, -0.25, -0.25)
    assert 0.02 <= found.seconds < 2.0
    assert (found.endpoint, found.attempts, found.cached) == ("mock", 1, False)


@pytest.mark.parametrize(
    "schema", [None, {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}]
)
def test_a_request_has_the_model_s_own_fields_and_the_key(schema: Any) -> None:
    from aiohttp import web

    bodies: list[Any] = []
    headers: list[str] = []

    async def keep(incoming: Any) -> Any:
        bodies.append((incoming.path, json.loads(await incoming.read())))
        headers.append(incoming.headers["Authorization"])
        return web.json_response({"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}], "usage": {}})

    settings = ModelSettings(
        "m",
        token_limit_field="max_completion_tokens",
        reasoning_effort="low",
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    with served(keep) as url:
        Client(endpoint(url), settings).submit(request(schema=schema, logprobs=True, max_tokens=7)).result()
    assert headers[0].startswith("Bearer ")
    assert bodies[0][0] == "/v1/chat/completions"
    assert bodies[0][1]["max_completion_tokens"] == 7


def test_per_model_quirks_shape_the_body() -> None:
    plain = chat_body(ModelSettings("m"), request(schema={"type": "object"}, temperature=0.3))
    assert plain["temperature"] == 0.3
    assert plain["response_format"]["type"] == "json_schema"
    quirky = ModelSettings("m", send_temperature=False, json_output="object", extra_body={"enable_thinking": False})
    body = chat_body(quirky, request(schema={"type": "object"}))
    assert "temperature" not in body
    assert body["response_format"] == {"type": "json_object"}
    assert body["enable_thinking"] is False
    assert "response_format" not in chat_body(
        ModelSettings("m", json_output="none"), request(schema={"type": "object"})
    )


@pytest.mark.slow
def test_under_heavy_faults_every_call_is_answered_and_attempts_are_counted() -> None:
    mock = Mock(faults=0.3, hang=3.0)
    with served(mock=mock) as url:
        client = Client(endpoint(url, timeout=2.0, retries=12), SETTINGS)
        futures = [client.submit(request(f"question {number}")) for number in range(60)]
        found = [future.result(60) for future in futures]
    assert all(one.text.startswith("mock answer") for one in found)
    unheard = sum(one.attempts for one in found) - sum(mock.arrivals.values())
    assert 0 <= unheard <= 6  # on a machine under load a request may time out before the server has read it
    assert len(mock.injected) >= 4


def replies(*answers: tuple[int, dict[str, str], bytes]) -> Callable[[Any], Any]:
    from aiohttp import web

    left = list(answers)

    async def handle(incoming: Any) -> Any:
        status, headers, body = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(status=status, headers=headers, body=body)

    return handle


GOOD = json.dumps(
    {"choices": [{"message": {"content": "ok"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
).encode()


@pytest.mark.slow
def test_retry_after_is_honoured() -> None:
    with served(replies((429, {"Retry-After": "0.4"}, b"wait"), (200, {}, GOOD))) as url:
        import time

        started = time.monotonic()
        assert Client(endpoint(url), SETTINGS).submit(request()).result().attempts == 2
        assert time.monotonic() - started >= 0.4


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_not_retried_and_says_what_the_server_said(status: int) -> None:
    with (
        served(replies((status, {}, b"no such model"))) as url,
        pytest.raises(ModelError, match=f"HTTP {status}: no such model") as error,
    ):
        Client(endpoint(url), SETTINGS).submit(request()).result()
    assert error.value.attempts == 1


FILTERED = {
    "error": {
        "message": "The response was filtered due to the prompt triggering a content management policy.",
        "type": None,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": {"violence": {"filtered": True, "severity": "medium"}},
        },
    }
}
"""As Azure refuses a prompt."""


def test_the_error_of_a_content_filter_is_a_refusal_that_is_not_retried_and_booked_at_its_worst() -> None:
    purse = Purse(max_usd=1.0)
    with served(replies((400, {}, json.dumps(FILTERED).encode()), (200, {}, GOOD))) as url, metering() as ledger:
        completion = Metered(Client(endpoint(url, purse=purse), SETTINGS)).submit(request(max_tokens=100)).result()
    assert (completion.stopped, completion.text, completion.attempts) == ("refused", "", 1)
    assert (ledger.notes["test.step: refused"], ledger.notes["usage_not_reported"], ledger.failures) == (1, 1, {})
    assert purse.spent > 100 * 2.0 / 1e6


@pytest.mark.parametrize(
    "body", [b'{"error": {"code": "invalid_prompt"}}', b'{"error": "content_filter"}', b"[", b"[" * 100_000]
)
def test_another_error_of_status_400_is_no_refusal(body: bytes) -> None:
    with served(replies((400, {}, body))) as url, pytest.raises(ModelError, match="HTTP 400"):
        Client(endpoint(url), SETTINGS).submit(request()).result()


def test_texts_that_a_content_filter_refuses_have_no_vectors_and_the_error_says_why() -> None:
    with served(replies((400, {}, json.dumps(FILTERED).encode()))) as url:
        (error,) = fetched(HttpEmbedder(endpoint(url), SETTINGS), ["a"])
    assert isinstance(error, ModelError)
    assert "content_filter" in str(error)


def test_a_call_that_never_succeeds_fails_with_its_attempts() -> None:
    with served(replies((500, {}, b"oops"))) as url, pytest.raises(ModelError, match="HTTP 500") as error:
        Client(endpoint(url, retries=3), SETTINGS).submit(request()).result()
    assert error.value.attempts == 4


def test_an_endpoint_that_is_down_says_so_soon() -> None:
    with pytest.raises(ModelError, match=r"(?i)connect") as error:
        Client(endpoint("http://127.0.0.1:9/v1"), SETTINGS).submit(request()).result()
    assert error.value.attempts == 3


def test_a_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelError, match="set the environment variable OPENAI_API_KEY"):
        Client(endpoint("https://api.example.com/v1"), SETTINGS).submit(request()).result()


def test_keys_are_cut_out_of_what_a_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-123")
    assert redact("Incorrect key sk-very-secret-123") == "Incorrect key <OPENAI_API_KEY>"
    with served(replies((401, {}, b"Incorrect key sk-very-secret-123"))) as url, pytest.raises(ModelError) as error:
        Client(endpoint(url), SETTINGS).submit(request()).result()
    assert "very-secret" not in str(error.value)


def test_no_more_calls_are_in_flight_than_allowed() -> None:
    from aiohttp import web

    now, most = [0], [0]

    async def slow(incoming: Any) -> Any:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.02)
        now[0] -= 1
        return web.Response(body=GOOD)

    with served(slow) as url:
        at = endpoint(url, in_flight=4)
        clients = [Client(at, SETTINGS), Client(at, ModelSettings("other"))]
        futures = [clients[number % 2].submit(request(str(number))) for number in range(40)]
        assert all(future.result(20).text == "ok" for future in futures)
    assert most[0] == 4


@pytest.mark.slow
def test_submitting_starts_no_thread_per_call() -> None:
    with served(mock=Mock(latency=0.2)) as url:
        client = Client(endpoint(url), SETTINGS)
        client.submit(request("warm up")).result()
        before = threading.active_count()
        futures: list[Future[Completion]] = [client.submit(request(str(number))) for number in range(60)]
        assert threading.active_count() == before
        assert all(future.result(20).text for future in futures)


def test_the_cap_is_never_exceeded_and_the_rest_is_refused() -> None:
    mock = Mock(latency=0.01)
    purse = Purse(max_usd=0.0003)
    with served(mock=mock) as url:
        client = Client(endpoint(url, purse=purse), SETTINGS)
        futures = [client.submit(request(str(number), max_tokens=10)) for number in range(60)]
        errors = [future.exception(20) for future in futures]
    refused = [error for error in errors if error is not None]
    assert refused
    assert all(isinstance(error, SpendingCapReached) for error in refused)
    assert 0 < purse.spent <= 0.0003
    assert len(refused) + sum(mock.answered.values()) == 60


def test_a_cap_with_an_unknown_price_refuses_to_start() -> None:
    with served() as url, pytest.raises(SpendingCapReached, match="price of this model is unknown"):
        Client(endpoint(url, purse=Purse(1.0)), ModelSettings("m")).submit(request()).result()


@pytest.mark.parametrize("first", [(200, {}, b"{torn"), (504, {}, b"Gateway Time-out")])
def test_a_call_that_was_cut_off_is_booked_at_its_worst(first: tuple[int, dict[str, str], bytes]) -> None:
    purse = Purse(max_usd=1.0)
    with served(replies(first, (200, {}, GOOD))) as url:
        Client(endpoint(url, purse=purse), SETTINGS).submit(request(max_tokens=100)).result()
    assert purse.spent > 100 * 2.0 / 1e6


def test_a_schema_that_is_sent_is_reserved_too() -> None:
    purse, schema = Purse(max_usd=1.0), {"type": "object", "description": "word " * 1000}
    with served(replies((200, {}, b"{torn"), (200, {}, GOOD))) as url:
        Client(endpoint(url, purse=purse), SETTINGS).submit(request(schema=schema, max_tokens=1)).result()
    assert purse.spent > 5000 * 1.0 / 1e6, "the call that was cut off is booked at its worst"


def test_vectors_come_back_in_order_and_of_unit_length() -> None:
    texts = [f"word{number} and more" for number in range(10)]
    with served() as url:
        embedder = HttpEmbedder(endpoint(url), SETTINGS, batch=3)
        together = fetched(embedder, texts)
        alone = [fetched(embedder, [text])[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.vector, other.vector, atol=1e-6)
        assert abs(float(np.linalg.norm(one.vector)) - 1.0) < 1e-5


@pytest.mark.parametrize("total", [3, 7, 50])
def test_the_tokens_of_a_batch_are_shared_by_length_and_no_text_has_fewer_than_none(total: int) -> None:
    """A tokenizer of the provider's own counts otherwise than ours; the last text alone once took the difference, below 0 as well."""
    body = {"data": rows([1.0, 0.0], [1.0, 0.0], [1.0, 0.0]), "usage": {"prompt_tokens": total}}
    with served(replies((200, {}, json.dumps(body).encode()))) as url:
        found = fetched(HttpEmbedder(endpoint(url), SETTINGS), ["one two three four five six", "one two three", "one"])
    tokens = [each.tokens for each in found if isinstance(each, Embedded)]
    assert sum(tokens) == total
    assert tokens == sorted(tokens, reverse=True)
    assert min(tokens) >= 0


def test_over_long_embedding_inputs_are_truncated_and_counted() -> None:
    bodies: list[Any] = []

    async def keep(incoming: Any) -> Any:
        from aiohttp import web

        body = json.loads(await incoming.read())
        bodies.append(body)
        data = [{"index": index, "embedding": [1.0, 0.0]} for index in range(len(body["input"]))]
        return web.json_response({"data": data, "usage": {"prompt_tokens": 9}})

    with served(keep) as url, metering() as ledger:
        embedder = HttpEmbedder(endpoint(url), ModelSettings("e", max_input_tokens=5))
        fetched(embedder, ["short", "one two three four five six seven eight"])
    assert ledger.notes["embedding_truncated"] == 1
    assert len(bodies[0]["input"][1].split()) == 5


def rows(*vectors: Any, index: Any = None) -> list[dict[str, Any]]:
    places = range(len(vectors)) if index is None else index
    return [{"index": place, "embedding": vector} for place, vector in zip(places, vectors, strict=True)]


BAD_VECTORS = {
    "NaN": rows([1.0, float("nan")], [1.0, 0.0]),
    "infinite": rows([1.0, float("inf")], [1.0, 0.0]),
    "null": rows([1.0, None], [1.0, 0.0]),
    "all zero": rows([0.0, 0.0], [1.0, 0.0]),
    "too large for a float": rows([1e39, 0.0], [1.0, 0.0]),
    "a length that overflows": rows([1e30, 1e30], [1.0, 0.0]),
    "of two dimensions": rows([1.0, 0.0, 0.0], [1.0, 0.0]),
    "of none": rows([], []),
    "too few": rows([1.0, 0.0]),
    "too many": rows([1.0, 0.0], [1.0, 0.0], [1.0, 0.0]),
    "repeated index": rows([1.0, 0.0], [0.0, 1.0], index=[0, 0]),
    "missing index": [{"embedding": [1.0, 0.0]}, {"embedding": [0.0, 1.0]}],
    "index from one": rows([1.0, 0.0], [0.0, 1.0], index=[1, 2]),
    "index as text": rows([1.0, 0.0], [0.0, 1.0], index=["0", "1"]),
    "numbers as text": rows(["1.0", "0.0"], [1.0, 0.0]),
    "true and false": rows([True, False], [False, True]),
    "true among numbers": rows([True, 0.5], [1.0, 0.0]),
    "base64": rows("AACAPwAAAAA=", "AAAAAAAAgD8="),
    "nested": rows([[1.0, 0.0]], [[0.0, 1.0]]),
    "no rows": ["x", "y"],
    "no list": {"0": [1.0, 0.0]},
}


@pytest.mark.slow
def test_vectors_that_are_none_are_refused_before_they_are_kept(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what, data in BAD_VECTORS.items():
        with subtests.test(what):
            with served(replies((200, {}, json.dumps({"data": data, "usage": {"prompt_tokens": 2}}).encode()))) as url:
                store = CacheStore(tmp_path / "cache.sqlite")
                embedder = CachedEmbedder(HttpEmbedder(endpoint(url), SETTINGS), store, "e", "here")
                with pytest.raises(ModelError, match=r"no vectors of mock-model: "):
                    embedder.embed(["a", "b"])
                store.close()
            assert sqlite3.connect(store.path).execute("SELECT COUNT(*) FROM vectors").fetchone() == (0,)


def test_vectors_in_another_order_are_put_in_theirs() -> None:
    with served(replies((200, {}, json.dumps({"data": rows([3, 0], [0.0, 2.0], index=[1, 0])}).encode()))) as url:
        found = fetched(HttpEmbedder(endpoint(url), SETTINGS), ["a", "b"])
    assert [one.vector.tolist() for one in found if isinstance(one, Embedded)] == [[0.0, 1.0], [1.0, 0.0]]


def test_threads_that_call_first_at_the_same_moment_share_one_loop() -> None:
    from memsys.llm import transport

    transport._started_loop.cache_clear()
    barrier, found = threading.Barrier(16), []

    def first() -> None:
        barrier.wait()
        found.append(transport.event_loop())

    threads = [threading.Thread(target=first) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(loop) for loop in found}) == 1
