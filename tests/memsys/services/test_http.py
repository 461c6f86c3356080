"""Memories of HTTP services, against the reference service on loopback: the contract, waiting, failures, keys, namespaces, the network."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import memory_stories
import numpy as np
import pytest
import yaml
from aiohttp import web
from memory_contract import PROMISES

from data_loaders.schema import Asker, Question, Turn, Unit
from memsys.interface import with_settings
from memsys.llm import network, stopping
from memsys.llm.endpoint import EndpointLimits
from memsys.llm.limits import SHARE
from memsys.llm.meter import metering
from memsys.llm.protocol import EndOfRun, ModelError
from memsys.services.http import HttpMemory, ServiceEndpoint, ServiceTransport
from memsys.services.memory import NotIndexed, ServiceError
from memsys.services.templates import filled, filled_path, reached
from scripts.commands.mock_memory import Service
from scripts.mock.endpoint import serving
from scripts.mock.memory_store import Store

ROOT = Path(__file__).resolve().parents[3]
REFERENCE: dict[str, Any] = {
    name: value
    for name, value in yaml.safe_load((ROOT / "conf/memory/reference_http.yaml").read_text())["build"].items()
    if not name.startswith("_")
}
SOON = {**REFERENCE["wait"], "seconds": 0.05, "every": 0.01}
ASKED = Question("q", "Which garden has 4 tomatoes?")


@pytest.fixture
def service() -> Service:
    return Service(Store())


@pytest.fixture
def memory(service: Service) -> Iterator[Callable[..., HttpMemory]]:
    """Makes memories of the service, and closes them before it ends."""
    made: list[HttpMemory] = []
    with serving(service.application()) as url:

        def make(**more: Any) -> HttpMemory:
            given = {**REFERENCE, "base_url": url, "retries": 0, **more}
            made.append(with_settings(HttpMemory, given)(np.random.default_rng(0)))
            return made[-1]

        yield make
        for each in made:
            each.close()


def unit(number: int) -> Unit:
    turns = (
        Turn(f"t{number}", "Mara", f"I planted {number} tomatoes in garden {number}."),
        Turn(f"r{number}", "Jonas", "I did not, it rained all day long.", "assistant"),
        Turn(f"b{number}", "Jonas", "  "),
    )
    return Unit(f"u{number}", turns, "s1", datetime(2023, 5, number, 13), f"{number} May 2023")


def written(memory: HttpMemory, count: int = 5) -> HttpMemory:
    for number in range(1, count + 1):
        memory.write(unit(number))
    memory.end_session("s1")
    memory.consolidate()
    return memory


# --- a service that works ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_reference_service_keeps_every_promise_but_for_what_is_waived(
    memory: Callable[..., HttpMemory], monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    url = memory().settings.base_url
    target = {"_target_": "memsys.services.http.HttpMemory"}
    monkeypatch.setattr(memory_stories, "stated", lambda name: {**target, **REFERENCE, "base_url": url})
    monkeypatch.setattr(memory_stories, "STANDS_FOR", {"service": "service"})
    assert set(HttpMemory.WAIVED) <= set(PROMISES)
    for words in sorted(set(PROMISES) - set(HttpMemory.WAIVED)):
        with subtests.test(words):
            PROMISES[words]("service")


def test_what_is_written_is_recalled_with_its_date_its_speakers_and_its_turns(
    memory: Callable[..., HttpMemory],
) -> None:
    with metering() as ledger:
        (best, *rest) = written(memory(k=3)).read(ASKED).items
    assert (
        best.text == "[4 May 2023] Mara: I planted 4 tomatoes in garden 4.\nJonas: I did not, it rained all day long."
    )
    assert best.sources == ("t4", "r4")
    assert len(rest) == 2
    assert (ledger.notes["service.add"], ledger.notes["service.end"], ledger.notes["service.search"]) == (5, 1, 1)


def test_an_add_may_hold_a_turn_and_evidence_is_matched_where_the_service_names_none(
    memory: Callable[..., HttpMemory], service: Service
) -> None:
    results = {name: path for name, path in REFERENCE["results"].items() if name != "sources"}
    own = written(memory(per="turn", results=results), 2)
    assert own.held == 4
    (best, *_) = own.read(Question("q", "garden 2")).items
    assert best.sources == ("t2",)
    assert own.read(Question("q", "rained")).items[0].sources == ("r1", "r2"), "both said so"


def test_a_search_may_name_who_asks_and_the_memory_says_so(
    memory: Callable[..., HttpMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = written(memory())
    assert not plain.uses_asker
    body = {"query": "{query}", "limit": "{k}", "reader": "{asker}", "as": "{asker_role}"}
    scoped = memory(search={"path": "/spaces/{namespace}/search", "body": body})
    assert scoped.uses_asker
    sent: list[Any] = []
    monkeypatch.setattr(scoped, "_ask", lambda step, values: sent.append(filled(body, values)) or {"results": []})
    monkeypatch.setattr(scoped, "_items", lambda reply: [])
    scoped._texts = {"t1": "tomatoes"}  # type: ignore[assignment]  # something was written
    scoped.read(replace(ASKED, asker=Asker("mara", "gardener")))
    scoped.read(ASKED)
    assert [(one["reader"], one["as"]) for one in sent] == [("mara", "gardener"), ("", "")]


def test_questions_wait_until_all_is_indexed(memory: Callable[..., HttpMemory], service: Service) -> None:
    service.store.delay = 3
    assert written(memory(wait={**SOON, "seconds": 30})).read(ASKED).items[0].sources == ("t4", "r4")


def test_an_index_that_is_never_ready_is_an_error_and_counted(
    memory: Callable[..., HttpMemory], service: Service
) -> None:
    service.store.delay = 10**9
    own = memory(wait=SOON)
    with pytest.raises(NotIndexed, match=r"not indexed within 0\.05 s"):
        written(own)
    assert own.report()["counts"]["wait.expired"] == 1


def test_each_add_is_waited_for_by_its_id_where_the_rule_asks_so(
    memory: Callable[..., HttpMemory], service: Service
) -> None:
    failed = {"path": "status", "equals": ["FAILED"]}
    rule = {**SOON, "call": {"method": "GET", "path": "/spaces/{namespace}/status", "query": {"of": "{id}"}}}
    own = memory(wait={**rule, "failed": failed}, add={**REFERENCE["add"], "id": "id"})
    written(own, 2)
    assert sum("status" in path for path in service.asked) == 2
    with pytest.raises(ValueError, match=r"add\.id must say"):
        memory(wait=rule)
    with pytest.raises(ServiceError, match="failed to index"):
        written(memory(wait={**SOON, "failed": {"path": "indexed", "equals": [True]}}), 1)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_failure_that_is_reported_as_success_is_an_error_where_the_file_says_what_success_is(
    memory: Callable[..., HttpMemory],
) -> None:
    own = memory(add={**REFERENCE["add"], "ok": {"path": "status", "equals": ["embedded"]}})
    with pytest.raises(ServiceError, match=r"expected status to be 'embedded', the reply is .*stored"):
        own.write(unit(1))
    assert own.report()["counts"] == {"add": 1, "add.failed": 1}


@pytest.mark.slow
def test_a_call_that_was_refused_is_repeated_and_one_that_may_have_been_taken_is_not() -> None:
    statuses, adds = [503, 500, 200], []

    async def add(request: web.Request) -> web.Response:
        adds.append(await request.json())
        return web.json_response({"status": "stored"}, status=statuses[len(adds) - 1])

    app = web.Application()
    app.router.add_route("*", "/v1/{rest:.*}", add)
    with serving(app) as url:
        own = with_settings(HttpMemory, {**REFERENCE, "base_url": url})(np.random.default_rng(0))
        with pytest.raises(ModelError, match="HTTP 500"):
            own.write(unit(1))
        assert len(adds) == 2, "503: not taken; 500: perhaps taken, so sent no more"
        own = with_settings(
            HttpMemory, {**REFERENCE, "base_url": url, "add": {**REFERENCE["add"], "repeatable": True}}
        )(np.random.default_rng(0))
        own.write(unit(1))
        assert len(adds) == 3


def test_a_reply_without_the_list_that_was_promised_is_an_error_and_not_an_empty_recall(
    memory: Callable[..., HttpMemory],
) -> None:
    own = written(memory(results={**REFERENCE["results"], "items": "memories"}))
    with pytest.raises(ServiceError, match="no list of items at 'memories'"):
        own.read(ASKED)


HIT = {"id": 1, "text": "It rained", "turns": ["t1"]}


@pytest.mark.parametrize(
    ("hits", "recalled"),
    [
        ([{**HIT, "id": 0}, HIT, {**HIT, "id": 0}], [("0", 0.0, ("t1",)), ("1", -1.0, ("t1",))]),
        (None, []),
        ([{**HIT, "score": 10**400}, {**HIT, "id": 2, "score": "0.9"}], [("1", 0.0, ("t1",)), ("2", -1.0, ("t1",))]),
        ([{**HIT, "turns": "t2, r2"}], [("1", 0.0, ("t2", "r2"))]),
    ],
    ids=["the id 0", "null", "no score that fits a float", "sources in one text"],
)
def test_hits_of_an_unusual_form_are_read(
    memory: Callable[..., HttpMemory], monkeypatch: pytest.MonkeyPatch, hits: Any, recalled: Any
) -> None:
    monkeypatch.setattr(Store, "search", lambda *_: hits)
    items = written(memory()).read(ASKED).items
    assert [(item.id, item.score, item.sources) for item in items] == recalled


def test_a_text_that_is_an_object_is_shown_as_json_and_null_is_no_item(
    memory: Callable[..., HttpMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    hits = [{**HIT, "text": {"said": "café", "by": None}}, {**HIT, "id": 2, "text": None}, {**HIT, "id": 3, "text": 7}]
    monkeypatch.setattr(Store, "search", lambda *_: hits)
    items = written(memory()).read(ASKED).items
    assert [item.text for item in items] == ['{"said":"café","by":null}', "7"]


def test_evidence_is_counted_for_recalled_items_alone_and_by_where_it_was_found(
    memory: Callable[..., HttpMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["It rained", "", "I planted 1 tomatoes in garden 1.", "It snowed", *["It rained again"] * 10_000]
    sources = [["t1"], [], ["elsewhere"], [], *[["t1"]] * 10_000]
    hits = [{"text": text, "turns": turns} for text, turns in zip(texts, sources, strict=True)]
    monkeypatch.setattr(Store, "search", lambda *_: hits)
    own = written(memory(k=3))
    with metering() as ledger:
        assert [item.sources for item in own.read(ASKED).items] == [("t1",), ("t1",), ()]
    counted = {name: n for name, n in ledger.notes.items() if name.startswith("service.evidence")}
    assert counted == {"service.evidence_named": 1, "service.evidence_matched": 1, "service.evidence_unknown": 1}


def test_more_than_k_blank_and_repeated_items_are_left_out_and_counted(
    memory: Callable[..., HttpMemory], service: Service
) -> None:
    own = written(memory(k=2, results={**REFERENCE["results"], "id": "time"}))
    service.store.fault = "k ignored"
    with metering() as ledger:
        assert len(own.read(ASKED).items) == 2
        service.store.fault = "empties"
        assert own.read(ASKED).items == ()
    assert ledger.notes["service.more_than_k"] == 1
    assert ledger.notes["service.blank"] == 2


# --- keys and the network ---------------------------------------------------------------------------------------------


def test_the_key_comes_from_the_environment_and_is_in_no_message(
    memory: Callable[..., HttpMemory], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE_MEMORY_KEY", "mk-0123456789abcdef")
    service._key = "mk-0123456789abcdef"
    own = memory(key_env="ONE_MEMORY_KEY")
    assert written(own).read(ASKED).items
    assert "0123456789" not in repr(vars(own)) + json.dumps(own.report())
    monkeypatch.setenv("OTHER_MEMORY_KEY", "mk-wrong-and-long")
    with pytest.raises(ModelError, match="401") as caught:
        memory(key_env="OTHER_MEMORY_KEY").write(unit(1))
    assert "mk-wrong" not in str(caught.value)


def test_another_machine_is_refused_without_network_and_without_a_key() -> None:
    far = {**REFERENCE, "base_url": "https://memory.example.org/v1"}
    with pytest.raises(EndOfRun, match="set the environment variable MEMORY_API_KEY"):
        with_settings(HttpMemory, far)(np.random.default_rng(0)).write(unit(1))
    network.forbid_network()
    with pytest.raises(EndOfRun, match="network=false"):
        with_settings(HttpMemory, far)(np.random.default_rng(0)).write(unit(1))


# --- namespaces -------------------------------------------------------------------------------------------------------


def test_cases_have_namespaces_of_their_own_which_end_with_them(
    memory: Callable[..., HttpMemory], service: Service
) -> None:
    first, second = written(memory()), written(memory(), 1)
    assert first.namespace != second.namespace
    assert len(second.read(ASKED).items) == 1
    second.reset()
    assert second.read(ASKED).items == ()
    assert set(service.store.spaces) == {first.namespace}
    first.close()
    first.close()
    assert service.store.spaces == {}
    assert sum(path.startswith("DELETE") for path in service.asked) == 1


def test_a_stopped_run_still_deletes_its_namespace(memory: Callable[..., HttpMemory], service: Service) -> None:
    own = written(memory())
    stopping.request()
    try:
        own.close()
    finally:
        stopping.forget()
    assert service.store.spaces == {}


def test_a_deletion_that_fails_is_counted_and_loses_no_case(memory: Callable[..., HttpMemory]) -> None:
    own = written(memory(delete={"method": "DELETE", "path": "/nowhere/{namespace}"}))
    own.close()
    assert own.report()["counts"]["not_deleted"] == 1


def test_the_deletion_of_a_namespace_does_not_wait_for_a_service_that_is_gone(service: Service) -> None:
    with serving(service.application()) as url:
        own = with_settings(HttpMemory, {**REFERENCE, "base_url": url, "retries": 0})(np.random.default_rng(0))
        own.write(unit(1))
    begun = time.monotonic()
    own.close()
    assert time.monotonic() - begun < 5.0, "the patience of a call whose reply the run needs is 600 s"
    assert own.report()["counts"]["not_deleted"] == 1


# --- services that were described from their documentation ------------------------------------------------------------

REPLIES: dict[str, dict[str, Any]] = {
    "mem0_http": {
        "POST /v3/memories/add/": {"event_id": "e-1", "status": "PENDING"},
        "GET /v1/event/e-1/": {"id": "e-1", "status": "SUCCEEDED"},
        "POST /v3/memories/search/": {
            "results": [
                {"id": "m-1", "memory": "Mara planted tomatoes", "score": 0.82, "created_at": "2023-05-01T13:00:00Z"},
                {"id": "m-2", "memory": "It rained", "score": 0.4, "metadata": {"turn_ids": ["t1", "r1"]}},
            ]
        },
        "DELETE /v1/memories/": {"message": "Memories deleted successfully!"},
    },
    "zep_http": {
        "POST /users": {"user_id": "x"},
        "POST /graph": {"uuid": "e-1", "content": "…", "processed": False},
        "GET /graph/episodes/e-1": {"uuid": "e-1", "processed": True},
        "POST /graph/search": {
            "edges": [
                {"uuid": "m-1", "fact": "Mara planted tomatoes", "valid_at": "2023-05-01T13:00:00Z"},
                {"uuid": "m-2", "fact": "It rained", "score": 0.4, "episodes": ["e-1", "e-9"]},
            ]
        },
        "DELETE /users/{namespace}": {"message": "deleted"},
    },
    "supermemory_http": {
        "POST /v3/documents": {"id": "d-1", "status": "queued"},
        "GET /v3/documents/d-1": {"id": "d-1", "status": "done", "metadata": {}},
        "POST /v4/search": {
            "results": [
                {
                    "id": "m-1",
                    "memory": "Mara planted tomatoes",
                    "similarity": 0.82,
                    "updatedAt": "2026-11-25T08:00:00Z",
                    "documents": [{"id": "d-9", "metadata": {"said": "2023-05-01T13:00:00Z"}}],
                },
                {"id": "m-2", "memory": "It rained", "similarity": 0.4, "documents": [{"id": "d-9"}, {"id": "d-1"}]},
            ]
        },
        "DELETE /v3/container-tags/{namespace}": {"success": True, "deletedDocumentsCount": 1},
    },
    "mastra_http": {
        "POST /memory/threads": {"id": "x", "resourceId": "x"},
        "POST /memory/save-messages": {"messages": []},
        "GET /memory/search": {
            "results": [
                {"id": "m-1", "role": "user", "content": "Mara planted tomatoes", "createdAt": "2023-05-01T13:00:00Z"},
                {
                    "id": "m-2",
                    "role": "user",
                    "content": "Mara: I planted 1 tomatoes in garden 1.",
                    "createdAt": "2023-05-01T13:00:00Z",
                },
            ],
            "count": 2,
            "searchType": "semantic",
        },
        "DELETE /memory/threads/{namespace}": {"result": "Thread deleted"},
    },
}
"""Replies in the shape that the public documentation shows."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REPLIES))
def test_the_file_of_a_public_service_sends_and_reads_what_its_documentation_shows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, tuple[dict[str, str], Any]] = {}
    build = yaml.safe_load((ROOT / f"conf/memory/{name}.yaml").read_text())["build"]
    monkeypatch.setenv(build["key_env"], "mk-of-nobody")

    async def answer(request: web.Request) -> web.Response:
        path = request.path.replace(own.namespace, "{namespace}")
        body = await request.text()
        asked[f"{request.method} {path}"] = (dict(request.query), json.loads(body) if body else None)
        prefix = {"mem0_http": "Token", "zep_http": "Api-Key"}.get(name, "Bearer")
        assert request.headers["Authorization"] == f"{prefix} mk-of-nobody"
        return web.json_response(REPLIES[name][f"{request.method} {path}"])

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    with serving(app) as url:
        settings = {key: value for key, value in build.items() if not key.startswith("_")}
        here = {"base_url": url.removesuffix("/v1"), "rpm": 6000}  # a service of ours needs no rest between calls
        own = with_settings(HttpMemory, {**settings, **here})(np.random.default_rng(0))
        items = written(own, 1).read(ASKED).items
        own.close()
    assert set(asked) == set(REPLIES[name]), "every call that is described is made, and no other"
    found = ("t1",) if name == "mastra_http" else ("t1", "r1")  # by the text of a message, or by the ids of the service
    assert [(item.id, item.sources) for item in items] == [("m-1", ()), ("m-2", found)]
    assert items[0].text == "[2023-05-01T13:00:00Z] Mara planted tomatoes"
    said = json.dumps(asked)
    assert said.count(own.namespace) >= 2
    assert "1682946000" in said or "2023-05-01T13:00:00Z" in said, "the dialogue's time is sent"
    assert '"role": "assistant"' in said or "Jonas: I did not" in said


# --- the description --------------------------------------------------------------------------------------------------


def test_a_wrong_description_is_refused_by_name() -> None:
    wrong: dict[str, dict[str, Any]] = {
        "pth is no setting of it": {"add": {"pth": "/x"}},
        "must begin with a slash": {"add": {"path": "x"}},
        "add.method must be one of": {"add": {"method": "FETCH", "path": "/x"}},
        "{k} is not known there": {"add": {"path": "/{k}"}},
        "delete is missing": {"delete": None},
        "hits is no setting of it": {"results": {"hits": "x"}},
        "wait.done must be": {"wait": {"call": {"path": "/x"}, "done": {"path": "x"}}},
        "wait needs call and done": {"wait": {"call": {"path": "/x"}}},
        "per must be one of": {"per": "session"},
        "without user name, password": {"base_url": "http://me:secret@localhost"},
    }
    for why, settings in wrong.items():
        with pytest.raises(ValueError, match=why.replace("{", r"\{").replace("}", r"\}")):
            with_settings(HttpMemory, {**REFERENCE, **settings})(np.random.default_rng(0))


def test_no_value_leaves_its_place_in_a_path_and_none_is_read_as_code() -> None:
    values = {"text": "../../admin?x=1#y", "k": 3, "time": None, "turns": [{"text": "{k} {text.__class__}"}]}
    assert filled_path("/a/{text}/b", values) == "/a/%2E%2E%2F%2E%2E%2Fadmin%3Fx%3D1%23y/b"
    body = {"k": "{k}", "when": "{time}", "said": {"each": "turns", "as": "{text}"}, "all": "k is {k}{time}"}
    assert filled(body, values) == {"k": 3, "said": ["{k} {text.__class__}"], "all": "k is 3"}


def test_paths_reach_into_lists_and_find_nothing_where_there_is_nothing() -> None:
    reply = {"results": [{"id": 1, "of": {"turns": ["a", "b"]}}, {"id": 2}], "0": "zero"}
    assert reached(reply, "results.*.id") == [1, 2]
    assert reached(reply, "results.0.of.turns") == [["a", "b"]]
    assert (reached(reply, "results.7.id"), reached(reply, "results.id"), reached(reply, "")) == ([], [], [reply])


def test_a_service_gets_as_many_seconds_connections_bytes_and_calls_a_minute_as_its_limits_say() -> None:
    transport = ServiceTransport({}, "http://127.0.0.1:1", limit=3, timeout=7.5, most_bytes=100)
    assert (transport._limit, transport._timeout.total, transport._most_bytes) == (3, 7.5, 100)
    service = ServiceEndpoint("http://127.0.0.1:1", "", (), EndpointLimits(rpm=30.0))
    assert service.places.rates.per_minute() == pytest.approx(30.0 * SHARE)
