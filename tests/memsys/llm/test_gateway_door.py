"""Who may call the gateway, and what a call may cost at most."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import Any
from urllib.parse import urlsplit

import pytest

from memsys.embed import HashingEmbedder
from memsys.llm.endpoint import Endpoint, EndpointLimits
from memsys.llm.gateway.accounts import Account
from memsys.llm.gateway.bodies import IMAGE_TOKENS, most_tokens_in
from memsys.llm.gateway.chat import EndpointUpstream, EngineUpstream
from memsys.llm.gateway.server import Gateway
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import ModelSettings, Purse
from scripts.mock.endpoint import Mock, application, serving

JSON = {"Content-Type": "application/json"}
BODY = json.dumps({"messages": [{"role": "user", "content": "Hello"}]})


@pytest.fixture
def opened() -> Iterator[tuple[Gateway, Account]]:
    gateway = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(32), None, "live")
    try:
        yield gateway, gateway.open(gateway.new_token("one"), Account("one"))
    finally:
        gateway.close()


def sent(account: Account, path: str = "", method: str = "POST", **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and reply of a request; `path` in place of that of the account's chat completions. A header of None is left out."""
    address = urlsplit(account.base_url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
    given = {name.replace("_", "-"): value for name, value in {**JSON, **headers}.items()}
    connection.putrequest(method, path or f"{address.path}/chat/completions", skip_host="Host" in given)
    body = BODY.encode() if method == "POST" else b""
    for name, value in {**given, "Content-Length": str(len(body))}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    assert not [name for name in reply.headers if name.lower().startswith("access-control")], "no page may read a reply"
    return reply.status, json.loads(text or b"{}")


@pytest.mark.parametrize("host", ["evil.test", "evil.test:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.test:{port}", "",
                                  "127.0.0.1:{port}@evil.test", "0.0.0.0:{port}", "127.0.0.1.:{port}",
                                  "[::ffff:127.0.0.1]:{port}", "[0:0:0:0:0:0:0:1]:{port}", "[::1%25lo]:{port}", "[::]:{port}",
                                  "2130706433:{port}", "0x7f.1:{port}", "localhost.:{port}", "[::1]evil.test:{port}"])  # fmt: skip
def test_a_name_that_was_made_to_point_here_is_refused(opened: tuple[Gateway, Account], host: str) -> None:
    _, account = opened
    port = urlsplit(account.base_url).port
    status, value = sent(account, Host=host.format(port=port))
    assert (status, value["error"]["code"]) == (403, "host_refused")
    assert not account.idle.calls


@pytest.mark.parametrize("host", ["evil.test", "127.0.0.1:{port}"])
def test_a_request_line_that_names_a_host_is_refused(opened: tuple[Gateway, Account], host: str) -> None:
    address = urlsplit(opened[1].base_url)
    target = f"http://{host.format(port=address.port)}{address.path}/chat/completions"
    status, value = sent(opened[1], target, Host=f"127.0.0.1:{address.port}")
    assert (status, value["error"]["code"]) == (403, "host_refused")
    assert not opened[1].idle.calls


@pytest.mark.parametrize("line", ["GET /%s HTTP/9.9.9", "GET /%s HTTP/1.1\r\nno colon \x1b[2J", "\x00 /%s"])
def test_bytes_that_are_no_http_are_refused_and_reported_without_them(
    opened: tuple[Gateway, Account], caplog: pytest.LogCaptureFixture, line: str
) -> None:
    address = urlsplit(opened[1].base_url)
    token = address.path.split("/")[1]
    with socket.create_connection(("127.0.0.1", address.port or 0), 30) as connection:
        connection.sendall(f"{line % token}\r\n\r\n".encode())
        assert b" 400 " in connection.recv(4096)
    assert not [each for each in (token, "\x1b", "Traceback") if each in caplog.text]


def test_a_client_that_leaves_before_its_stream_is_not_reported(
    opened: tuple[Gateway, Account], caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({**json.loads(BODY), "stream": True})
    for _ in range(20):
        address = urlsplit(opened[1].base_url)
        head = f"Host: 127.0.0.1:{address.port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        with socket.create_connection(("127.0.0.1", address.port or 0), 30) as connection:
            connection.sendall(f"POST {address.path}/chat/completions HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
    assert sent(opened[1])[0] == 200
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_the_names_of_this_machine_are_taken(opened: tuple[Gateway, Account], host: str) -> None:
    assert sent(opened[1], Host=host.format(port=urlsplit(opened[1].base_url).port))[0] == 200


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.test"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:80"},
                                     {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}])  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
def test_a_page_of_another_origin_is_refused(
    opened: tuple[Gateway, Account], headers: dict[str, str], method: str
) -> None:
    status, value = sent(opened[1], method=method, **headers)
    assert (status, value["error"]["code"]) == (403, "origin_refused")
    assert not opened[1].idle.calls


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_a_body_that_a_form_can_send_is_refused_with_the_header_to_add(
    opened: tuple[Gateway, Account], kind: str
) -> None:
    status, value = sent(opened[1], Content_Type=kind)
    assert (status, "Content-Type: application/json" in value["error"]["message"]) == (415, True)
    assert not opened[1].idle.calls


def test_a_token_is_taken_from_the_path_or_a_header_and_a_guess_opens_no_account(
    opened: tuple[Gateway, Account],
) -> None:
    gateway, account = opened
    token = urlsplit(account.base_url).path.split("/")[1]
    for headers in ({"Authorization": f"Bearer {token}"}, {"api_key": token}):
        assert sent(account, "/v1/chat/completions", **headers)[0] == 200
        assert sent(account, "/stats", "GET", **headers)[1]["sent"] > 0
    for path in (
        "/v1/models",
        "/one/v1/models",
        "/stats",
        "/one/stats",
        f"/{token[:-1]}/v1/models",
        "/",
        f"/x/{token}/v1/models",
        "/openai/models",
        f"/openai/{token}/v1/models",
    ):
        assert sent(account, path, "GET")[0] == 401, path
    assert sent(account, "/v1/chat/completions", Authorization="Bearer one")[0] == 401
    assert len(gateway._accounts) == 1


@pytest.mark.parametrize("form", ["endpoint", "deployment", "path with the token", "base URL"])
def test_azures_client_is_served_whichever_way_it_names_the_gateway(opened: tuple[Gateway, Account], form: str) -> None:
    import openai

    account = opened[1]
    parts = urlsplit(account.base_url)
    token, address = parts.path.split("/")[1], f"http://{parts.netloc}"
    given: dict[str, Any] = {
        "endpoint": {"azure_endpoint": address},
        "deployment": {"azure_endpoint": address, "azure_deployment": "mine"},
        "path with the token": {"azure_endpoint": f"{address}/{token}"},
        "base URL": {"base_url": f"{address}/v1"},
    }[form]
    key = "none" if form == "path with the token" else token
    client = openai.AzureOpenAI(api_key=key, api_version="2024-10-21", max_retries=0, **given)
    reply = client.chat.completions.create(model="mine", messages=[{"role": "user", "content": "Hello"}])
    assert reply.choices[0].message.content
    assert client.embeddings.create(model="mine", input="a tomato").data[0].embedding
    assert client.responses.create(model="mine", input="Hello").output_text
    assert (account.idle.sent, account.idle.embedding_calls) == (2, 1)
    guess = openai.AzureOpenAI(api_key="x", api_version="2024-10-21", max_retries=0, azure_endpoint=address)
    with pytest.raises(openai.AuthenticationError, match="unknown token"):
        guess.embeddings.create(model="mine", input="a tomato")


def test_a_client_sees_its_own_figures_alone(opened: tuple[Gateway, Account]) -> None:
    gateway, account = opened
    other = gateway.open(gateway.new_token("two"), Account("two"))
    sent(account)
    own, others = (
        sent(each, urlsplit(each.base_url).path.replace("/v1", "/stats"), "GET")[1] for each in (account, other)
    )
    assert (own["sent"], others["sent"]) == (1, 0)
    assert "one" not in json.dumps(others)


def test_tokens_of_two_accounts_of_one_client_share_nothing_but_its_name(opened: tuple[Gateway, Account]) -> None:
    first, second = (opened[0].new_token("a/b c") for _ in range(2))
    assert first.startswith("a-b-c-")
    assert len({first, second}) == 2
    assert len(first) >= len("a-b-c-") + 32


def raw(account: Account, head: str, pieces: Iterator[bytes]) -> bytes:
    """What the gateway answers to a request whose body is sent until it answers or hangs up."""
    address = urlsplit(account.base_url)
    lines = f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{address.port}\r\n{head}\r\n\r\n"
    answer = b""
    with socket.create_connection(("127.0.0.1", address.port or 0), 30) as connection:
        connection.sendall(lines.encode())
        with suppress(OSError):
            for piece in pieces:
                connection.sendall(piece)
        with suppress(OSError):
            answer = connection.recv(4096)
    return answer


@pytest.mark.slow
def test_a_body_of_pieces_without_a_length_that_never_ends_is_refused(opened: tuple[Gateway, Account]) -> None:
    piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    answer = raw(opened[1], "Content-Type: application/json\r\nTransfer-Encoding: chunked", repeat(piece, 1000))
    assert answer == b"" or b" 413 " in answer.partition(b"\r\n")[0]
    assert sent(opened[1])[0] == 200, "the next one is served"


@pytest.mark.slow
def test_a_compressed_body_that_unpacks_to_more_than_the_limit_is_refused(opened: tuple[Gateway, Account]) -> None:
    bomb = zlib.compress(b" " * (200 << 20), 9)
    head = f"Content-Type: application/json\r\nContent-Encoding: deflate\r\nContent-Length: {len(bomb)}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = raw(opened[1], head, iter([bomb]))
    assert b" 4" in answer.partition(b"\r\n")[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 << 10, "kilobytes: it was not unpacked"
    assert sent(opened[1])[0] == 200


# --- money -------------------------------------------------------------------------------------------------------------

PRICE = 1000.0
"""US dollars per million tokens."""


class Billing(Mock):
    """Bills a token for four bytes of a body, a thousand for an image, and all that its limit allows for each choice."""

    billed = 0.0

    def _reply(self, path: str, body: dict[str, Any], key: str, shape: str) -> dict[str, Any]:
        reply = super()._reply(path, body, key, shape)
        tokens = len(json.dumps(body, separators=(",", ":"))) // 4 + 1000 * json.dumps(body).count("image_url")
        answered = (body.get("max_tokens") or 100) * (body.get("n") or 1)
        reply["usage"] = {"prompt_tokens": tokens, "completion_tokens": answered, "total_tokens": tokens + answered}
        self.billed += (tokens + answered) * PRICE / 1e6
        return reply


LONG = "word " * 4000
TOOLS = [{"type": "function", "function": {"name": "f", "description": LONG, "parameters": {"type": "object"}}}]
FORM = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "description": LONG}}}
IMAGES = [{"type": "image_url", "image_url": {"url": f"https://x.test/{number}.png"}} for number in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [{}, {"tools": TOOLS}, {"response_format": FORM}, {"n": 128}, {"messages": [{"role": "user", "content": IMAGES}]}],
    ids=["plain", "tools", "a schema", "n", "images"],
)
def test_a_cap_holds_whatever_a_body_is_made_of_with_64_in_flight(
    fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    server = Billing(latency=0.05)
    with serving(application(server)) as url, priced(url, Purse(8.0)) as account:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, **fields}
        with ThreadPoolExecutor(64) as pool:
            replies = list(pool.map(lambda number: posted(account, {**body, "seed": number}), range(64)))
    assert server.billed <= 8.0
    assert "bills more" not in capsys.readouterr().err, "the whole body was reserved, not learned from a bill"
    assert {status for status, _ in replies} <= {200, 400}
    assert all(value["error"]["code"] == "max_usd_reached" for status, value in replies if status == 400)


@contextmanager
def priced(url: str, purse: Purse, **settings: Any) -> Iterator[Account]:
    """An account of a gateway to a model with a price."""
    known = ModelSettings("mock", usd_per_million_in=PRICE, usd_per_million_out=PRICE, **settings)
    endpoint = Endpoint(url, EndpointLimits(backoff=0.01), label="mock", purse=purse)
    gateway = Gateway(EndpointUpstream(endpoint, known), HashingEmbedder(32), None, "live")
    try:
        yield gateway.open(gateway.new_token("one"), Account("one"))
    finally:
        gateway.close()
        endpoint.close()


def posted(account: Account, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
    address = urlsplit(account.base_url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
    connection.request("POST", f"{address.path}/chat/completions", json.dumps(body), {**JSON, **headers})
    reply = connection.getresponse()
    value = json.loads(reply.read())
    connection.close()
    return reply.status, value


def test_an_image_is_reserved_at_the_highest_number_of_tokens_that_is_published() -> None:
    text = {"messages": [{"role": "user", "content": "Hi"}]}
    assert most_tokens_in(text) == len(json.dumps(text, separators=(",", ":")))
    assert most_tokens_in({"messages": [{"role": "user", "content": IMAGES}]}) > 20 * IMAGE_TOKENS
    without_type = [{"image_url": image["image_url"]} for image in IMAGES]
    assert most_tokens_in({"messages": [{"role": "user", "content": without_type}]}) > 20 * IMAGE_TOKENS


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"service_tier": "priority"}, "service_tier"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"best_of": 20}, "best_of"),
        ({"models": ["a dear one"]}, "models"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "input_audio"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "file"),
        ({"messages": [{"role": "user", "content": [{"video_url": {"url": "https://x.test/1.mp4"}}]}]}, "video_url"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]}]},
            "cache_control",
        ),
        ({"messages": [{"role": "assistant", "content": None, "audio": {"id": "audio_1"}}]}, "audio"),
    ],
)
def test_what_has_a_price_of_its_own_is_refused_by_name_where_the_model_has_a_price(
    fields: dict[str, Any], named: str
) -> None:
    server = Mock()
    with serving(application(server)) as url, priced(url, Purse()) as account:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}
        status, value = posted(account, {**body, **fields})
        assert (status, repr(named) in value["error"]["message"]) == (400, True), value
        assert posted(account, {**body, "service_tier": "default"})[0] == 200
    assert sum(server.arrivals.values()) == 1


def test_a_client_without_a_limit_gets_the_models_or_is_told_to_send_one() -> None:
    server, body = Mock(), {"messages": [{"role": "user", "content": "Hi"}]}
    with serving(application(server)) as url:
        with priced(url, Purse(1e6)) as account:
            status, value = posted(account, body)
            assert (status, "send max_tokens" in value["error"]["message"]) == (400, True)
        for settings in ({"max_output_tokens": 50}, {"context_tokens": 8192}):
            with priced(url, Purse(1e6), **settings) as account:
                assert posted(account, body)[0] == 200
        with priced(url, Purse()) as account:
            assert posted(account, body)[0] == 200, "without a cap no bound is needed"


def test_a_repetition_of_a_failed_request_is_charged_once_and_forgets_the_failure() -> None:
    server, body = Mock(faults=1.0, hang=0.0), {"messages": [{"role": "user", "content": "Hi"}]}
    with serving(application(server)) as url:
        endpoint = Endpoint(url, EndpointLimits(retries=0), label="mock")
        gateway = Gateway(EndpointUpstream(endpoint, ModelSettings("mock")), HashingEmbedder(32), None, "live")
        account = gateway.open(gateway.new_token("one"), Account("one"))
        assert posted(account, body)[0] == 400
        assert len(account.failures) == 1
        server.faults = 0.0
        for _ in range(2):
            assert posted(account, body, **{"x-stainless-retry-count": "1"})[0] == 200
        gateway.close()
        endpoint.close()
    ledger = account.idle
    assert (sum(ledger.calls.values()), sum(ledger.failures.values()), ledger.tokens_out) == (1, 1, 3)
    assert account.failures == []
