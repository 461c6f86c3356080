"""Every case of the table of clients' requests, live and in a replay with the server stopped."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from memsys.llm.gateway.accounts import Account
from memsys.llm.gateway.server import Gateway, Mode
from memsys.llm.store import CacheStore
from scripts.commands.gateway import _parser, build
from scripts.mock.endpoint import Mock, application, serving
from scripts.mock.shapes import SHAPES

from .gateway_cases import CASES, EMBEDDINGS, Case

DETAILS = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}


class Noting(Mock):
    """The mock endpoint, with the bodies that reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[str] = []

    async def _replied(self, request: Any, body: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
        self.bodies.append(json.dumps(body))
        return await super()._replied(request, body, key)


@dataclass
class Played:
    """What became of a case."""

    status: int
    body: bytes
    sent: list[str]
    again: tuple[int, bytes] = (0, b"")
    """Status and bytes of the replay."""


@contextmanager
def gateway(url: str, cache: Path, mode: Mode) -> Iterator[Gateway]:
    given = [
        "--base-url",
        url,
        "--model",
        "mock",
        "--embedder",
        "mock",
        "--mode",
        mode,
        "--port",
        "0",
        "--label",
        "mock",
    ]
    store = CacheStore(cache)
    server = build(_parser().parse_args(given), store)
    try:
        yield server
    finally:
        server.close()
        store.close()


def asked(account: Account, case: Case) -> tuple[int, bytes]:
    address = urlsplit(account.base_url.removesuffix("/v1"))
    body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=120)
    try:
        headers = {"Content-Type": "application/json", **case.headers}
        given = {"body": body, "headers": headers} if case.body is not None else {}
        connection.request(case.method, f"{address.path}/{case.path}", **given)  # type: ignore[arg-type]
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Played]:
    """All cases, asked live one after another and then in a replay without the server."""
    from memsys.llm.network import forbid_network

    cache = tmp_path_factory.mktemp("cases") / "c.sqlite"
    server, results = Noting(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            SHAPES,  # type: ignore[arg-type]
            "detailed",
            lambda reply, thought: {**reply, "usage": {**reply["usage"], **DETAILS}},
        )
        with serving(application(server)) as url, gateway(url, cache, "record") as front:
            account = front.open(front.new_token("one"), Account("one"))
            for case in CASES:
                server.shape, begin = case.shape, len(server.bodies)
                results[case.name] = Played(*asked(account, case), sent=[])
                results[case.name].sent = server.bodies[begin:]
        try:
            with gateway(url, cache, "replay") as front:
                account = front.open(front.new_token("one"), Account("one"))
                for case in CASES:
                    results[case.name].again = asked(account, case)
        finally:
            forbid_network(False)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_client_gets_what_it_asks_for_or_is_refused_by_name_and_a_replay_gives_the_same_bytes(
    case: Case, played: Mapping[str, Played]
) -> None:
    result = played[case.name]
    text = result.body.decode()
    assert result.status == case.status, text[:500]
    for expected in case.shows:
        assert expected in text, text[:2000]
    assert len(result.sent) == case.paid
    for expected in case.sent:
        assert expected in result.sent[0]
    assert result.again == (result.status, result.body)


def test_names_of_cases_differ() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.slow
def test_vectors_have_the_dimensions_that_were_asked_for(played: Mapping[str, Played]) -> None:
    for case in CASES:
        if case.path == EMBEDDINGS and case.status == 200 and isinstance(wanted := case.body.get("dimensions"), int):
            assert len(json.loads(played[case.name].body)["data"][0]["embedding"]) == wanted


def test_the_text_of_a_streamed_response_comes_once(played: Mapping[str, Played]) -> None:
    events = [
        json.loads(line[6:]) for line in played["a response, streamed"].body.splitlines() if line.startswith(b"data: ")
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = next(event for event in events if event["type"] == "response.output_item.added")
    assert added["item"]["content"] == []
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert deltas == events[-1]["response"]["output"][0]["content"][0]["text"]
