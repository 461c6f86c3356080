"""An endpoint under attack: servers that hang, redirect, vanish, or send far too much; what is said of it, and what is never said."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from memsys.llm import endpoint, secrets, stopping
from memsys.llm import network as offline
from memsys.llm.client import Client, HttpEmbedder
from memsys.llm.endpoint import Call, Endpoint, EndpointLimits, Sent, Unreachable
from memsys.llm.pricing import ModelSettings, Purse
from memsys.llm.protocol import Completion, EndOfRun, ModelError, Reply, Request, keeping, release, settle
from memsys.llm.transport import event_loop, new_event_loop
from scripts.mock.endpoint import Mock, application, serving

SETTINGS = ModelSettings("mock-model", usd_per_million_in=1.0, usd_per_million_out=2.0)
KEY = "k-3y"
GOOD = {"choices": [{"message": {"content": "ok"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}


def request(text: str = "hello") -> Request:
    return Request((("user", text),), "test.step")


Open = Callable[..., Endpoint]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Endpoints that are closed when the test is over."""
    made: list[Endpoint] = []

    def make(url: str, purse: Purse | None = None, key_env: str = "OPENAI_API_KEY", **limits: Any) -> Endpoint:
        waits = {"timeout": 5.0, "backoff": 0.01, "max_backoff": 0.05}
        made.append(Endpoint(url, EndpointLimits(**waits | limits), purse=purse, key_env=key_env))
        return made[-1]

    yield make
    for one in made:
        one.close()


@contextmanager
def answering(handle: Callable[[Any], Any]) -> Iterator[str]:
    from aiohttp import web

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    with serving(app) as url:
        yield url


def always(body: bytes, status: int = 200, **headers: str) -> Callable[[Any], Any]:
    from aiohttp import web

    async def handle(incoming: Any) -> Any:
        return web.Response(status=status, body=body, headers={n.replace("_", "-"): v for n, v in headers.items()})

    return handle


def test_a_failed_handshake_has_sent_nothing_and_costs_nothing(opened: Open) -> None:
    purse = Purse(1.0)
    with answering(always(b"{}")) as url, pytest.raises(ModelError, match=r"connection failed .*SSL"):
        Client(opened(url.replace("http:", "https:"), purse, retries=1), SETTINGS).submit(request()).result()
    assert (purse.spent, purse.unbilled) == (0.0, 0)


# --- replies that are too much, or nothing -----------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [gzip.compress, zlib.compress, lambda body: zlib.compress(body, wbits=-15)])
def test_a_packed_reply_is_unpacked(opened: Open, packed: Callable[[bytes], bytes]) -> None:
    encoding = "gzip" if packed is gzip.compress else "deflate"
    with answering(always(packed(json.dumps(GOOD).encode()), Content_Encoding=encoding)) as url:
        assert Client(opened(url), SETTINGS).submit(request()).result().text == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("status", [200, 500])
def test_a_small_reply_that_unpacks_to_far_too_much_is_refused_while_it_is_read(opened: Open, status: int) -> None:
    bomb = gzip.compress(b" " * (64 << 20))
    assert len(bomb) < 100_000
    with (
        answering(always(bomb, status, Content_Encoding="gzip")) as url,
        pytest.raises(ModelError, match="larger than 2 MB") as error,
    ):
        Client(opened(url, max_reply_mb=2), SETTINGS).submit(request()).result()
    assert error.value.attempts == 1


def test_bytes_without_end_after_a_packed_reply_are_refused(opened: Open) -> None:
    endless = gzip.compress(json.dumps(GOOD).encode()) + b"x" * (40 << 20)
    with answering(always(endless, Content_Encoding="gzip")) as url, pytest.raises(ModelError):
        Client(opened(url, retries=0, timeout=60.0), SETTINGS).submit(request()).result()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_reply_of_forty_megabytes_is_refused_by_default(opened: Open, chunked: bool) -> None:
    from aiohttp import web

    async def handle(incoming: Any) -> Any:
        if not chunked:
            return web.Response(body=b"x" * (40 << 20))
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(incoming)
        for _ in range(40):
            await response.write(b"x" * (1 << 20))
        return response

    with answering(handle) as url, pytest.raises(ModelError, match="larger than 32 MB"):
        Client(opened(url, timeout=60.0), SETTINGS).submit(request()).result()


@pytest.mark.slow
def test_a_server_that_sends_a_byte_now_and_then_is_given_up_in_time(opened: Open) -> None:
    from aiohttp import web

    async def drip(incoming: Any) -> Any:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(incoming)
        for _ in range(100):
            await response.write(b" ")
            await asyncio.sleep(0.1)
        return response

    with answering(drip) as url, pytest.raises(ModelError, match=r"no reply within 0\.5 s"):
        Client(opened(url, timeout=0.5, retries=0), SETTINGS).submit(request()).result()


@pytest.mark.parametrize("body", [b"\xff\xfe\x00garbage", b"[" * 100_000, b"[]", b"null", b""])
def test_a_reply_that_is_no_reply_is_a_failed_call(opened: Open, body: bytes) -> None:
    with answering(always(body)) as url, pytest.raises(ModelError):
        Client(opened(url, retries=1), SETTINGS).submit(request()).result()


def test_half_a_character_in_a_reply_is_replaced_and_whole_ones_stay(opened: Open) -> None:
    body = rb'{"choices": [{"message": {"content": "a\ud83d b\ude00 c\ud83d\ude00 \u00e9"}}]}'
    with answering(always(body)) as url:
        text = Client(opened(url), SETTINGS).submit(request()).result().text
    assert text == "a\ufffd b\ufffd c\U0001f600 é"
    text.encode()


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens": "many"}, {"prompt_tokens": None}, "none", [1], {"prompt_tokens": -5, "completion_tokens": 0}],
)
def test_a_malformed_account_books_the_call_at_its_worst_and_nobody_waits(opened: Open, usage: Any) -> None:
    purse = Purse(1.0)
    with answering(always(json.dumps({**GOOD, "usage": usage}).encode())) as url:
        Client(opened(url, purse=purse), SETTINGS).submit(request()).exception(timeout=10)  # ends, well or badly
    assert purse.spent > 512 * 2.0 / 1e6
    assert purse._reserved == 0.0


def test_whatever_is_raised_while_a_reply_is_read_is_a_failed_call(opened: Open) -> None:
    def odd(sent: Sent) -> Completion:
        raise RecursionError("a bug in reading")

    with answering(always(json.dumps(GOOD).encode())) as url:
        future = opened(url).start(Call("/chat/completions", {}, None, lambda value: 1 // 0), odd)
        error = future.exception(timeout=10)
    assert isinstance(error, ModelError)
    assert "a bug in reading" in str(error)


# --- redirects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_server_is_refused_and_forwards_nothing(opened: Open, status: int) -> None:
    arrived: list[bytes] = []

    async def keep(incoming: Any) -> Any:
        from aiohttp import web

        arrived.append(await incoming.read())
        return web.json_response(GOOD)

    with (
        answering(keep) as other,
        answering(always(b"", status, Location=f"{other}/chat/completions")) as url,
        pytest.raises(ModelError, match="redirects to") as error,
    ):
        Client(opened(url), SETTINGS).submit(request()).result()
    assert arrived == []
    assert error.value.attempts == 1


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("location", ["http://host:99999/v1", "http://host:port/", "//[::1"])
def test_a_redirect_to_what_is_no_url_is_a_failed_call(opened: Open, status: int, location: str) -> None:
    with answering(always(b"", status, Location=location)) as url, pytest.raises(ModelError, match="to nowhere"):
        Client(opened(url), SETTINGS).submit(request()).result()


def test_a_redirect_within_the_server_is_followed_with_the_same_body(opened: Open) -> None:
    from aiohttp import web

    async def handle(incoming: Any) -> Any:
        if incoming.path.startswith("/v1/"):
            return web.Response(status=308, headers={"Location": f"/real{incoming.path}"})
        assert json.loads(await incoming.read())["messages"][0]["content"] == "hello"
        return web.json_response(GOOD)

    with answering(handle) as url:
        assert Client(opened(url), SETTINGS).submit(request()).result().text == "ok"


# --- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["k-3y", "a-much-longer-key-0123456789", 'with"quote\\and-more'])
@pytest.mark.parametrize("end", ["", "\n"])
def test_no_failure_shows_the_key_whatever_its_variable_and_length(
    opened: Open, monkeypatch: pytest.MonkeyPatch, key: str, end: str
) -> None:
    monkeypatch.setenv("PASSPHRASE_OF_MINE", key + end)

    async def echo(incoming: Any) -> Any:
        from aiohttp import web

        # Across the place at which the text is cut, too.
        return web.Response(status=401, text=incoming.headers["Authorization"] + "x" * 470 + key + json.dumps(key))

    with answering(echo) as url, pytest.raises(ModelError, match="HTTP 401") as error:
        Client(opened(url, key_env="PASSPHRASE_OF_MINE"), SETTINGS).submit(request()).result()
    assert key[:4] not in str(error.value)
    assert "<PASSPHRASE_OF_MINE>" in str(error.value)


def test_a_reply_that_holds_the_key_reaches_nobody_with_it(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_GATE", "gate-key-0123456789")
    body = json.dumps({"choices": [{"message": {"content": "you said gate-key-0123456789"}}]}).encode()
    with answering(always(body)) as url:
        assert Client(opened(url, key_env="MY_GATE"), SETTINGS).submit(request()).result().text == "you said <MY_GATE>"


def test_a_word_that_stands_for_no_key_stays_in_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_keys", {})  # other tests print the word in their messages
    secrets.register("local", "DUMMY")
    assert secrets.redact_bytes(b"a local shop") == b"a local shop"


def test_an_exception_and_its_causes_lose_the_key() -> None:
    secrets.register("chained-key-42", "CHAINED")
    error = RuntimeError("because of chained-key-42")
    error.__cause__ = ValueError("bad chained-key-42", 7)
    error.__context__ = error  # a circle ends nothing
    secrets.scrub(error)
    assert (str(error), error.__cause__.args) == ("because of <CHAINED>", ("bad <CHAINED>", 7))


def test_a_key_with_a_line_break_inside_is_refused_without_showing_it(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN_KEY", "first-half\nsecond-half")
    with pytest.raises(ModelError, match="BROKEN_KEY holds no key") as error:
        Client(opened("http://127.0.0.1:9/v1", key_env="BROKEN_KEY"), SETTINGS).submit(request()).result()
    assert "half" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hidden-word@host/v1",
        "https://me@host/v1",
        "https://:hidden-word@host/v1",
        "https://host/v1?key=hidden-word",
    ],
)
def test_a_base_url_with_a_secret_in_it_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ModelError, match="it would be written to files; put the key into") as error:
        Endpoint(url)
    assert "hidden-word" not in str(error.value)


@pytest.mark.parametrize("url", ["host/v1", "ftp://host/v1", "http://", "http://host:port/v1"])
def test_a_base_url_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ModelError, match=r"endpoint\.base_url"):
        Endpoint(url)


# --- network=false -----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "_forbidden", True)


@pytest.mark.parametrize(
    "url",
    ["https://api.example.com/v1", "http://192.0.2.1/v1", "http://127.0.0.1.example.com/v1", "http://[2001:db8::1]/v1"],
)
def test_without_a_network_a_base_url_beyond_this_machine_is_refused_before_anything_is_sent(
    no_network: None, opened: Open, url: str
) -> None:
    with pytest.raises(EndOfRun, match="nothing was sent"):
        Client(opened(url), SETTINGS)
    with pytest.raises(EndOfRun, match="nothing was sent"):
        HttpEmbedder(opened(url), SETTINGS)


def test_without_a_network_a_local_name_that_leads_elsewhere_is_refused(
    no_network: None, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: elsewhere)
    with pytest.raises(EndOfRun, match="refused to connect to localhost"):
        Client(opened("http://localhost:8000/v1"), SETTINGS)


@pytest.mark.parametrize("how", ["create_connection", "sock_connect", "getaddrinfo"])
def test_without_a_network_the_loop_itself_connects_to_nothing_beyond_this_machine(no_network: None, how: str) -> None:
    loop: Any = new_event_loop()
    with socket.socket() as plain:
        plain.setblocking(False)
        calls = {
            "create_connection": lambda: loop.create_connection(asyncio.Protocol, "192.0.2.1", 80),
            "sock_connect": lambda: loop.sock_connect(plain, ("192.0.2.1", 80)),
            "getaddrinfo": lambda: loop.getaddrinfo("api.example.com", 80),
        }
        with pytest.raises(PermissionError, match="network=false"):
            loop.run_until_complete(calls[how]())
    loop.close()


def test_without_a_network_a_datagram_is_refused_whichever_call_sends_it() -> None:
    offline.forbid_network()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        with pytest.raises(PermissionError, match="network=false"):
            plain.sendmsg([b"x"], [], 0, ("192.0.2.1", 80))
        plain.sendmsg([b"x"], [], 0, ("127.0.0.1", 9))


def test_without_a_network_a_server_on_this_machine_still_answers(no_network: None, opened: Open) -> None:
    with answering(always(json.dumps(GOOD).encode())) as url:
        assert Client(opened(url), SETTINGS).submit(request()).result().text == "ok"


# --- a server that goes away -------------------------------------------------------------------------------------------


@contextmanager
def server_on(port: int, mock: Mock) -> Iterator[None]:
    from aiohttp import web

    loop = new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    runner = web.AppRunner(application(mock), shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()

    asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_goes_away_pauses_the_run_until_it_is_back(
    opened: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoint, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(endpoint, "FIRST_PAUSE", 0.1)
    port, mock = free_port(), Mock()
    at = opened(f"http://127.0.0.1:{port}/v1", retries=3)
    client = Client(at, SETTINGS)
    with server_on(port, mock):
        client.submit(request("before")).result()
    futures = [client.submit(request(str(number))) for number in range(12)]
    while at.snapshot().paused_since is None:
        time.sleep(0.01)
    paused = at.snapshot()
    assert "cannot connect" in paused.paused_why
    assert paused.waiting + paused.in_flight == 12
    assert not any(future.done() for future in futures)
    with server_on(port, mock):
        found = [future.result(timeout=30) for future in futures]
    assert all(one.text for one in found)
    assert min(one.attempts for one in found) >= 2
    assert max(one.attempts for one in found) == 5, "as often as `retries` says, and once when the server is back"
    after = at.snapshot()
    assert after.paused_since is None
    assert after.retried == sum(one.attempts - 1 for one in found)
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in said] == ["paused", "resumed"]


def test_a_server_that_does_not_come_back_ends_the_run(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_PAUSE", 0.05)
    port = free_port()
    client = Client(opened(f"http://127.0.0.1:{port}/v1", retries=1, patience=0.3), SETTINGS)
    with server_on(port, Mock()):
        client.submit(request("before")).result()
    futures = [client.submit(request(str(number))) for number in range(5)]
    errors = [future.exception(timeout=30) for future in futures]
    assert all(isinstance(error, Unreachable) for error in errors)
    assert "run the same command again" in str(errors[0])


def test_without_patience_a_server_that_goes_away_ends_the_run_at_once(
    opened: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    client = Client(opened(f"http://127.0.0.1:{port}/v1", retries=4, patience=0), SETTINGS)
    with server_on(port, Mock()):
        client.submit(request("before")).result()
    error = client.submit(request()).exception(timeout=30)
    assert isinstance(error, Unreachable)
    assert error.attempts == 5
    assert capsys.readouterr().err == ""


# --- what is under way -------------------------------------------------------------------------------------------------


def test_a_snapshot_tells_what_is_under_way(opened: Open) -> None:
    with serving(application(Mock(latency=0.3))) as url:
        at = opened(url, in_flight=3)
        futures = [Client(at, SETTINGS).submit(request(str(number))) for number in range(5)]
        while at.snapshot().in_flight < 3:
            time.sleep(0.005)
        now = at.snapshot()
        assert (now.in_flight, now.waiting, now.finished, now.paused_since) == (3, 2, 0, None)
        assert 0.0 <= now.oldest_seconds < 5.0
        for future in futures:
            future.result(timeout=10)
        while at.snapshot().finished < 5:
            time.sleep(0.005)
        end = at.snapshot()
    assert (end.in_flight, end.waiting, end.retried, end.oldest_seconds) == (0, 0, 0, 0.0)
    assert (end.tokens_in, end.tokens_out) == (5, 15)


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Asks for a stop as a first signal does; the process goes on after the test."""
    monkeypatch.setattr(stopping, "GRACE", 0.5)
    monkeypatch.setattr(stopping, "MARGIN", 30.0)
    yield stopping.request
    stopping.forget()


def test_a_stop_sends_nothing_more_and_awaits_what_is_under_way(opened: Open, stop: Callable[[], None]) -> None:
    mock = Mock(latency=0.2)
    with serving(application(mock)) as url:
        at = opened(url, in_flight=4)
        futures = [Client(at, SETTINGS).submit(request(str(number))) for number in range(20)]
        while sum(mock.arrivals.values()) < 4:
            time.sleep(0.005)
        stop()
        errors = [future.exception(timeout=20) for future in futures]
        assert isinstance(Client(at, SETTINGS).submit(request("later")).exception(timeout=1), stopping.Stopped)
    assert sum(mock.arrivals.values()) == 4
    assert [error for error in errors if error is None] == [None] * 4
    assert sum(isinstance(error, stopping.Stopped) for error in errors) == 16


def test_a_stop_in_the_moment_of_sending_leaves_nobody_waiting(opened: Open) -> None:
    """A task that is cancelled before its first step runs none of its code, not even a `finally`."""
    at, future = opened("http://127.0.0.1:9/v1"), Reply[Sent](event_loop())

    def begin_and_cancel() -> None:
        at._begin(future, Call("/chat/completions", {}, None, lambda value: None), lambda sent: sent, 3.0)
        for task in at._tasks:
            task.cancel()

    event_loop().call_soon_threadsafe(begin_and_cancel)
    assert isinstance(future.exception(timeout=10), ModelError)
    assert at.snapshot().finished == 1


@pytest.mark.parametrize("error", [ValueError("no JSON"), SystemExit(3)])
def test_a_future_gets_every_error_and_only_the_end_of_the_process_goes_on(error: BaseException) -> None:
    def fail() -> None:
        raise error

    future: Future[None] = Future()
    with nullcontext() if isinstance(error, Exception) else pytest.raises(SystemExit):
        settle(future, fail)
    assert future.exception(timeout=1) is error


def test_a_stop_waits_until_a_reply_is_committed(opened: Open) -> None:
    with serving(application(Mock())) as url:
        at = opened(url)
        with keeping():
            future = Client(at, SETTINGS).submit(request())
        assert future.result(20).text
        at.refuse()
        assert at.finish(0.05) == 1, "the reply is not on disk"
        release(future)
        release(future)  # a second time does nothing
        assert at.finish(20.0) == 0
        assert at.snapshot().finished == 1


@pytest.mark.slow
def test_a_stop_gives_up_a_server_that_hangs(opened: Open, stop: Callable[[], None]) -> None:
    with serving(application(Mock(latency=60.0))) as url:
        at = opened(url, timeout=100.0)
        future = Client(at, SETTINGS).submit(request())
        while not at.snapshot().in_flight:
            time.sleep(0.005)
        stop()
        assert isinstance(future.exception(timeout=20), stopping.Stopped)
        assert stopping.await_end() == 1


def test_a_stop_wakes_calls_that_wait_for_a_retry(
    opened: Open, stop: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "GRACE", 10.0)  # a refused call needs none of it, on a busy machine too
    with answering(always(b"wait", 429, Retry_After="300")) as url:
        at = opened(url)
        future = Client(at, SETTINGS).submit(request())
        while at.snapshot().waiting != 1 or at._reached is False:
            time.sleep(0.005)
        stop()
        assert isinstance(future.exception(timeout=20), stopping.Stopped)
        assert stopping.await_end() == 0  # it was refused: nothing was in flight


def test_a_stop_ends_a_pause(opened: Open, stop: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "GRACE", 10.0)  # a refused call needs none of it, on a busy machine too
    port = free_port()
    at = opened(f"http://127.0.0.1:{port}/v1", retries=0)
    client = Client(at, SETTINGS)
    with server_on(port, Mock()):
        client.submit(request("before")).result()
    futures = [client.submit(request(str(number))) for number in range(3)]
    while at.snapshot().paused_since is None:
        time.sleep(0.005)
    stop()
    assert all(isinstance(future.exception(timeout=20), stopping.Stopped) for future in futures)
    assert stopping.await_end() == 0
    assert at.snapshot().paused_since is None
    assert event_loop().is_running()
