"""The gateway in front of the mock endpoint: what clients get, what is credited, what a replay answers."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memsys.embed import HashingEmbedder
from memsys.llm.cache import CachedEmbedder
from memsys.llm.client import HttpEmbedder
from memsys.llm.endpoint import Endpoint, EndpointLimits
from memsys.llm.gateway.accounts import Account, Normalisation, Purpose
from memsys.llm.gateway.bodies import embedding_texts
from memsys.llm.gateway.chat import EndpointUpstream, EngineUpstream, inlined
from memsys.llm.gateway.server import Gateway, Mode
from memsys.llm.meter import metering, note
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import ModelSettings, Purse
from memsys.llm.store import CacheStore
from memsys.tokens import count_tokens
from scripts.mock.endpoint import Mock, application, serving

SCHEMA = {
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/name"}, "age": {"type": "integer", "minimum": 3, "maximum": 9}},
    "required": ["name", "age"],
    "$defs": {"name": {"type": "string"}},
}
TOOL = {"type": "function", "function": {"name": "remember", "parameters": SCHEMA}}


@contextmanager
def in_front_of(
    url: str, cache: Path, mode: Mode = "record", purse: Purse | None = None, **limits: Any
) -> Iterator[Gateway]:
    """A gateway to an endpoint, its cache in a file."""
    store = CacheStore(cache)
    limits = {"retries": 1, "backoff": 0.01} | limits
    there = Endpoint(url, EndpointLimits(**limits), label="mock", purse=purse)
    inner = None if mode == "replay" else HttpEmbedder(there, ModelSettings("mock"))
    embedder = CachedEmbedder(inner, store, "mock", "mock")
    gateway = Gateway(EndpointUpstream(there, ModelSettings("mock")), embedder, store, mode)
    try:
        yield gateway
    finally:
        gateway.close()
        there.close()
        store.close()


@pytest.fixture
def mock() -> Iterator[tuple[Mock, str]]:
    server = Mock()
    with serving(application(server)) as url:
        yield server, url


def post(account: Account, path: str, body: dict[str, Any], **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(
        f"{account.base_url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def chat(account: Account, text: str, **fields: Any) -> tuple[int, bytes]:
    messages = [{"role": "system", "content": "Extract facts."}, {"role": "user", "content": text}]
    return post(account, "chat/completions", {"model": "gpt", "messages": messages, **fields})


def said(reply: tuple[int, bytes]) -> str:
    assert reply[0] == 200, reply
    return str(json.loads(reply[1])["choices"][0]["message"]["content"])


def client_of(account: Account) -> Any:
    import openai

    return openai.OpenAI(base_url=account.base_url, api_key="none", max_retries=0)


# --- what a client gets -----------------------------------------------------------------------------------------------


def test_a_call_keeps_its_place_in_flight_until_its_reply_is_on_disk(mock: tuple[Mock, str], tmp_path: Path) -> None:
    server, cache = mock[0], tmp_path / "c.sqlite"
    with in_front_of(mock[1], cache, in_flight=2) as gateway, ThreadPoolExecutor(8) as clients:
        account, other = gateway.open("one", Account("one")), sqlite3.connect(cache)
        other.execute("BEGIN IMMEDIATE")  # another command writes
        replies = [clients.submit(chat, account, f"text {number}") for number in range(8)]
        time.sleep(0.5)
        answered = server.answered.total()
        other.rollback()
        assert all(reply.result()[0] == 200 for reply in replies)
    assert answered == 2


def test_a_full_disk_ends_buying_until_there_is_room_again(mock: tuple[Mock, str], tmp_path: Path) -> None:
    mock[0].said = lambda body, key: "x" * 1_000_000
    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        assert gateway._store is not None
        gateway._store._out.execute("PRAGMA max_page_count=1")
        account = gateway.open("one", Account("one"))
        replies = [chat(account, "first"), chat(account, "second"), post(account, "embeddings", {"input": "third"})]
        bought = sum(mock[0].arrivals.values())
        gateway._store._out.execute("PRAGMA max_page_count=1000000")
        later = [chat(account, "second"), chat(account, "first"), post(account, "embeddings", {"input": "third"})]
    assert all(status == 400 and b"free some space" in body for status, body in replies)
    assert bought == 1
    assert [status for status, _ in later] == [200, 200, 200]


@pytest.mark.slow
def test_the_openai_package_gets_text_streams_schemas_vectors_and_the_list_of_models(
    mock: tuple[Mock, str], tmp_path: Path
) -> None:
    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        client = client_of(gateway.open("one", Account("one")))
        asked: Any = {"model": "gpt", "messages": [{"role": "user", "content": "Hello there"}]}
        whole = client.chat.completions.create(**asked, logprobs=True)
        events = list(
            client.chat.completions.create(**asked, logprobs=True, stream=True, stream_options={"include_usage": True})
        )
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        assert text == whole.choices[0].message.content
        assert events[-1].usage == whole.usage
        assert whole.choices[0].logprobs.content[0].logprob == -0.25
        assert client.responses.create(model="gpt", input="Hello there").output_text.startswith("mock answer")
        by_number, by_base64 = (
            client.embeddings.create(model="e", input=["a tomato", "a boat"], **form).data
            for form in (
                {"encoding_format": "float"},
                {},
            )  # the package asks for base64 unless told otherwise, and decodes it
        )
        for row, other in zip(by_number, by_base64, strict=True):
            assert row.embedding == pytest.approx(other.embedding)
        assert "mock" in [model.id for model in client.models.list()]


def test_the_offline_engine_calls_the_tool_that_was_asked_for_with_arguments_that_fit() -> None:
    from memsys.llm.gateway.chat import misfit

    gateway = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(32), None, "live")
    account = gateway.open("one", Account("one"))
    try:
        body = {"tools": [TOOL], "tool_choice": "required"}
        status, reply = chat(account, "Mara is 7 and grows tomatoes.", **body)
        value = json.loads(reply)
        (call,) = value["choices"][0]["message"]["tool_calls"]
        assert (status, call["function"]["name"], misfit(body, value)) == (200, "remember", "")
        assert set(json.loads(call["function"]["arguments"])) == {"name", "age"}
        assert not account.misfits
    finally:
        gateway.close()


@pytest.mark.parametrize(
    ("value", "schema", "fit"),
    [
        (
            {"a": 1},
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "string"}}},
            False,
        ),
        (
            {"a": ""},
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "string"}}},
            True,
        ),
        ({"a\ud800": 1}, {"additionalProperties": {"type": "string"}}, False),
        (1, {"type": "no such type"}, True),
        (1, {"$ref": "#/nowhere"}, True),
        (1, {"pattern": "("}, True),
        (1, {"type": "string", "$ref": "elsewhere.json"}, True),
    ],
)
def test_a_value_is_checked_against_a_schema_that_is_one(value: Any, schema: dict[str, Any], fit: bool) -> None:
    from memsys.llm.gateway.chat import fits

    assert fits(value, schema) is fit


def test_a_schema_of_a_product_fetches_nothing() -> None:
    from memsys.llm.gateway.chat import fits

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        assert fits(1, {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/x"})
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_declared_purpose_names_the_calls_and_tells_the_engine_where_the_text_is() -> None:
    gateway = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(32), None, "live")
    form = {"type": "object", "properties": {"facts": {"type": "array", "items": {"type": "string"}}}}
    stand_in = {"kind": "extract", "schema": form, "fields": {"text": "<new>(.*?)</new>"}}
    account = gateway.open("one", Account("one", label="toy", purposes=[Purpose("extract", "^Extract", stand_in)]))
    try:
        with metering() as ledger, account.credit("build"):
            reply = said(
                chat(account, "<old>Jonas sold his guitar last week.</old><new>Mara planted six tomatoes today.</new>")
            )
        assert "tomatoes" in str(json.loads(reply)["facts"])
        assert "guitar" not in reply
        assert dict(ledger.calls) == {"toy.extract": 1}
    finally:
        gateway.close()


@pytest.mark.slow
def test_a_gateway_in_front_of_another_in_one_process_embeds_many_texts_at_once(tmp_path: Path) -> None:
    behind = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(32), None, "live")
    try:
        with in_front_of(behind.open("up", Account("up")).base_url, tmp_path / "c.sqlite") as gateway:
            account = gateway.open("one", Account("one"))
            with ThreadPoolExecutor(40) as pool:  # more than there are threads to embed in
                replies = list(pool.map(lambda n: post(account, "embeddings", {"input": f"text {n}"}), range(40)))
        assert {status for status, _ in replies} == {200}
    finally:
        behind.close()


def test_a_declared_form_stands_in_place_of_the_clients() -> None:
    gateway = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(32), None, "live")
    declared = {"schema": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"const": 5}}}}
    account = gateway.open("one", Account("one", purposes=[Purpose("age", "^Extract", declared)]))
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    try:
        reply = said(chat(account, "Mara is 7 and grows tomatoes.", response_format=form))
        assert json.loads(reply)["age"] == 5, "the engine itself would give the least allowed age, 3"
    finally:
        gateway.close()


@pytest.mark.parametrize("path", ["chat/completions", "embeddings", "responses"])
def test_a_token_that_nobody_opened_is_refused(path: str) -> None:
    gateway = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(32), None, "live")
    account = gateway.open("one", Account("one"))
    gateway.dismiss("one")
    assert post(account, path, {"input": "x"})[0] == 401
    gateway.close()


def test_a_body_that_is_no_request_is_refused_and_counted(mock: tuple[Mock, str], tmp_path: Path) -> None:
    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("one"))
        assert post(account, "chat/completions", {"messages": []})[0] == 400
        assert post(account, "embeddings", {"input": [[1, "a"]]})[0] == 400
        assert post(account, "embeddings", {"input": [10**9]})[0] == 400, "an id beyond the vocabulary"
        assert account.idle.notes["gateway: request not understood"] == 3
        assert len(account.failures) == 3, "a program may pass over the refusal, so its step fails"
        assert not mock[0].arrivals


def test_token_ids_are_embedded_as_their_text() -> None:
    assert embedding_texts({"input": [15339, 1917]}) == ["hello world"]
    assert embedding_texts({"input": [[15339], [1917]]}) == ["hello", " world"]


def test_references_of_a_schema_are_put_in_place_and_one_to_itself_ends() -> None:
    assert inlined(SCHEMA)["properties"]["name"] == {"type": "string"}
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    }
    assert inlined(tree)["properties"]["next"] == {"type": "object", "properties": {}}


# --- what is credited --------------------------------------------------------------------------------------------------


def test_the_tokens_of_a_step_are_those_that_the_endpoint_counted(mock: tuple[Mock, str], tmp_path: Path) -> None:
    asked: list[int] = []
    counted: list[int] = []
    answer = mock[0].said

    def noting(body: dict[str, Any], key: str) -> str:
        text = answer(body, key)
        asked.append(sum(count_tokens(message["content"]) for message in body["messages"]))
        counted.append(len(text.split()))
        return text

    mock[0].said = noting
    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("one", label="toy"))
        with metering() as ledger, account.credit("build"):
            for number in range(5):
                chat(account, f"fact {number}")
            assert ledger.seconds > 0, "the time of a reply is the provider's"
            post(account, "embeddings", {"input": ["three short words", "two words"]})
        chat(account, "between two steps")
        assert (ledger.tokens_out, sum(ledger.calls.values()), ledger.sent) == (sum(counted[:5]), 5, 5)
        assert ledger.tokens_in == sum(asked[:5]) > 0
        assert ledger.embedding_tokens == 5, "the mock counts words"
        assert sum(account.idle.calls.values()) == 1


class Cutting(HashingEmbedder):
    """An embedder whose model takes none of the texts as a whole."""

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        note("embedding_truncated", len(texts))
        return super().embed(texts, query=query)


def test_what_an_embedder_notes_is_noted_in_the_step_of_the_client() -> None:
    gateway = Gateway(EngineUpstream(ExtractiveLLM()), Cutting(32), None, "live")
    account = gateway.open("one", Account("one"))
    try:
        with metering() as ledger, account.credit("build"):
            assert post(account, "embeddings", {"input": ["tomato", "boat"]})[0] == 200
        assert ledger.notes == {"embedding_truncated": 2}
    finally:
        gateway.close()


def test_a_reply_without_the_form_that_was_asked_for_is_counted(mock: tuple[Mock, str], tmp_path: Path) -> None:
    replies = iter(["no JSON at all", '{"name": 3}', '{"name": "Mara", "age": 4}', "", "null", "{}"])
    mock[0].said = lambda body, key: next(replies)
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("one", label="toy"))
        with metering() as ledger, account.credit("build"):
            for number in range(3):
                chat(account, f"Who is number {number}?", response_format=form)
            for number in range(3):
                chat(account, f"What is number {number}?", response_format={"type": "json_object"})
    counted = {
        "toy.person: no JSON": 1,
        "toy.person: not the schema": 1,
        "toy.6cbf18d7: empty": 1,
        "toy.6cbf18d7: not the schema": 1,
    }
    assert dict(account.misfits) == dict(ledger.notes) == counted, "each once"
    assert dict(ledger.parse_failures) == {"toy.person": 2, "toy.6cbf18d7": 2}, (
        "in the column of memories that parse replies"
    )


def test_a_call_that_fails_for_good_is_told_to_the_harness_as_well_as_to_the_client(tmp_path: Path) -> None:
    with serving(application(Mock(faults=1.0, hang=0.01))) as url, in_front_of(url, tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("one", label="toy"))
        with metering() as ledger, account.credit("build"):
            status, body = chat(account, "Hello")
            assert status == 400, "which the OpenAI packages do not repeat"
            assert json.loads(body)["error"]["code"] == "gateway_failure"
            assert len(account.failures) == sum(ledger.failures.values()) == 1
        with account.credit("build"):
            assert account.failures == [], "each step has its own"


def test_overrides_reach_the_endpoint_in_place_of_what_the_client_asked(mock: tuple[Mock, str], tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []
    mock[0].said = lambda body, key: bodies.append(body) or "fine"  # type: ignore[func-returns-value]
    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("one", overrides={"temperature": 0, "top_p": None, "seed": 7}))
        chat(account, "Hello", temperature=0.9, top_p=0.5, max_tokens=50)
    (body,) = bodies
    assert (body["model"], body["temperature"], body["seed"], "top_p" in body) == ("mock", 0, 7, False)


# --- items of earlier replies ------------------------------------------------------------------------------------------


def answered(account: Account, *given: Any, **fields: Any) -> tuple[int, dict[str, Any]]:
    status, reply = post(account, "responses", {"model": "m", "input": list(given), **fields})
    return status, json.loads(reply) if not fields.get("stream") else {}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reference(item: dict[str, Any]) -> dict[str, str]:
    return {"type": "item_reference", "id": item["id"]}


def test_a_reference_stands_for_the_item_that_was_sent_and_a_replay_sends_the_same_bytes(tmp_path: Path) -> None:
    server, weather = Mock(), {"type": "function", **TOOL["function"]}
    bodies: list[Any] = []
    server.said = lambda body, key: bodies.append(body["messages"]) or f"reply {len(bodies)}"  # type: ignore[func-returns-value]

    def conversation(account: Account) -> list[tuple[int, dict[str, Any]]]:
        first = answered(account, user("Remember Mara"), tools=[weather])
        (call,) = first[1]["output"]
        done = {"type": "function_call_output", "call_id": call["call_id"], "output": "kept"}
        second = answered(account, user("Remember Mara"), reference(call), done)
        (said,) = second[1]["output"]
        third = answered(account, user("Remember Mara"), reference(call), done, reference(said), user("And Ines?"))
        whole = answered(account, user("Remember Mara"), call, done, said, user("And Ines?"), store=False)
        return [first, second, third, whole]

    with serving(application(server)) as url, in_front_of(url, tmp_path / "c.sqlite") as gateway:
        live = conversation(gateway.open("one", Account("one")))
    assert [status for status, _ in live] == [200] * 4, live
    assert [message["role"] for message in bodies[-1]] == ["user", "assistant", "tool", "assistant", "user"]
    assert bodies[-1] == bodies[-2], "as if the client had sent the items themselves"
    assert bodies[-1][3]["content"] == live[1][1]["output"][0]["content"][0]["text"]
    with in_front_of(url, tmp_path / "c.sqlite", "replay") as gateway:
        assert conversation(gateway.open("one", Account("one"))) == live


def test_a_reference_to_an_item_of_a_stream_is_known(mock: tuple[Mock, str], tmp_path: Path) -> None:
    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("one"))
        answered(account, user("Hello"), stream=True)
        (name,) = account.items
        assert answered(account, reference({"id": name}), user("Go on"))[0] == 200


@pytest.mark.parametrize("why", ["never sent", "sent to another account", "sent with store: false", "of two replies"])
def test_a_reference_that_means_no_item_or_two_is_refused_before_it_is_paid_for(why: str, tmp_path: Path) -> None:
    server = Mock()

    async def alike(request: Any, body: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
        """As servers answer that give all replies one id."""
        status, value = await Mock._replied(server, request, body, key)
        return status, {**value, "id": "chatcmpl-1"}

    server._replied = alike  # type: ignore[method-assign]
    with serving(application(server)) as url, in_front_of(url, tmp_path / "c.sqlite") as gateway:
        account, other = (gateway.open(name, Account(name)) for name in ("one", "two"))
        if why != "never sent":
            asked = other if why == "sent to another account" else account
            assert answered(asked, user("Hello"), store=why != "sent with store: false")[0] == 200
        if why == "of two replies":
            assert answered(account, reference({"id": "msg_chatcmpl-1"}), user("Go on"))[0] == 200, "not yet two"
        paid = server.answered.total()
        status, reply = answered(account, reference({"id": "msg_chatcmpl-1"}), user("Go on again"))
    assert (status, server.answered.total()) == (400, paid)
    expected = "has sent different items under" if why == "of two replies" else "has sent this account no item with"
    assert f"{expected} the id 'msg_chatcmpl-1'" in reply["error"]["message"]


def test_the_newest_items_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memsys.llm.gateway.accounts.MOST_ITEMS", 2)
    account = Account("one")
    for name in "abca":
        account.keep_items([{"id": name, "type": "message"}])
    assert list(account.items) == ["c", "a"]


# --- what a replay answers ---------------------------------------------------------------------------------------------


def numbered_replies() -> Callable[[dict[str, Any], str], str]:
    count = iter(range(100))
    return lambda body, key: f"reply {next(count)} <think>not ours to remove</think>"


def test_a_copy_of_the_one_file_replays_what_a_closed_gateway_recorded(mock: tuple[Mock, str], tmp_path: Path) -> None:
    def replies(gateway: Gateway) -> list[tuple[int, bytes]]:
        account = gateway.open("one", Account("one"))
        return [chat(account, "hello"), post(account, "embeddings", {"input": "hello"})]

    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        recorded = replies(gateway)
        gateway.close()
        shutil.copy(tmp_path / "c.sqlite", tmp_path / "copy.sqlite")  # and nothing beside it
    with in_front_of(mock[1], tmp_path / "copy.sqlite", "replay") as gateway:
        assert replies(gateway) == recorded


def test_a_repeated_request_gets_another_reply_and_a_replay_gives_both_in_the_same_bytes(tmp_path: Path) -> None:
    server = Mock()
    server.said = numbered_replies()
    with serving(application(server)) as url, in_front_of(url, tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("case"))
        with account.credit("build"):
            first = [chat(account, "Who?"), chat(account, "Who?", stream=True), chat(account, "Who?")]
        with account.credit("build"):
            next_step = chat(account, "Who?")
    assert len({said(reply) for reply in (first[0], first[2], next_step)}) == 3, "also of a later step"
    with in_front_of(url, tmp_path / "c.sqlite", "replay") as gateway:  # nobody listens there any more
        account = gateway.open("two", Account("case"))
        with metering() as ledger, account.credit("build"):
            assert [chat(account, "Who?"), chat(account, "Who?", stream=True), chat(account, "Who?")] == first
            assert chat(account, "Who?") == next_step
            assert chat(account, "Who?")[0] == 400
        assert (ledger.sent, sum(ledger.failures.values())) == (1, 1), "only the one that failed"


def test_what_the_clients_transport_repeats_is_no_new_request(mock: tuple[Mock, str], tmp_path: Path) -> None:
    mock[0].said = numbered_replies()
    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("case"))
        body = {"model": "m", "messages": [{"role": "user", "content": "Who?"}]}
        with metering() as ledger, account.credit("build"):
            first = post(account, "chat/completions", body)
            again = post(account, "chat/completions", body, **{"x-stainless-retry-count": "1"})
        assert again == first
        assert (sum(ledger.calls.values()), len(mock[0].arrivals)) == (1, 1)


def test_a_history_that_is_written_again_gets_the_replies_of_the_first_time(
    mock: tuple[Mock, str], tmp_path: Path
) -> None:
    mock[0].said = numbered_replies()
    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("case"))
        with account.credit("build"):
            first = [chat(account, "Who?"), chat(account, "Who?")]
        with account.credit("build", afresh=True):
            assert [chat(account, "Who?"), chat(account, "Who?")] == first


def test_equal_requests_of_two_clients_at_once_are_sent_once(tmp_path: Path) -> None:
    server = Mock(latency=0.3)
    with serving(application(server)) as url, in_front_of(url, tmp_path / "c.sqlite") as gateway:
        accounts = [gateway.open(str(number), Account(f"case {number}")) for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda account: said(chat(account, "Who?")), accounts))
    assert len(set(replies)) == 1
    assert sum(server.answered.values()) == 1


def test_a_date_that_the_product_stamps_is_left_out_of_the_key_and_no_other_text_is(tmp_path: Path) -> None:
    dates = [Normalisation(r"Today is \d{4}-\d\d-\d\d", "Today is <date>")]
    with serving(application(Mock())) as url, in_front_of(url, tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("case", normalisations=dates))
        with account.credit("build"):
            first = said(chat(account, "Today is 2026-01-02. Who?"))
    with in_front_of(url, tmp_path / "c.sqlite", "replay") as gateway:
        account = gateway.open("one", Account("case", normalisations=dates))
        with account.credit("build"):
            assert said(chat(account, "Today is 2027-11-12. Who?")) == first
        with account.credit("build", afresh=True):
            status, why = chat(account, "Today is 2027-11-12. What?")
    assert status == 400
    assert "request build#0 of case" in why.decode()
    assert "messages[1] differs: 'Today is <date>. What?', recorded 'Today is <date>. Who?'" in why.decode()


def test_vectors_are_cached_by_text_whatever_the_batches(mock: tuple[Mock, str], tmp_path: Path) -> None:
    with in_front_of(mock[1], tmp_path / "c.sqlite") as gateway:
        account = gateway.open("one", Account("case"))
        first = json.loads(post(account, "embeddings", {"input": ["tomato", "boat"]})[1])["data"]
    with in_front_of(mock[1], tmp_path / "c.sqlite", "replay") as gateway:
        account = gateway.open("one", Account("case"))
        second = json.loads(post(account, "embeddings", {"input": "boat"})[1])["data"]
        assert second[0]["embedding"] == first[1]["embedding"]
        with account.credit("build"):
            assert post(account, "embeddings", {"input": ["boat", "a new text"]})[0] == 400
            assert len(account.failures) == 1
    assert len(mock[0].arrivals) == 1
