"""Endpoints, keys and models are looked at before anything is planned or built; roles, their endpoints, and whose models they are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from eval.files.store import RunError
from scripts.assembly.models import build_models, chosen_models
from scripts.assembly.plan import Plan
from scripts.assembly.readiness import prepared
from scripts.assembly.steps import judging
from scripts.mock.endpoint import Mock, application, serving
from scripts.mock.shapes import SETS, Quirks
from scripts.tables.table import experiment
from tests.scripts.commands import configuration, reproduce, run_single, typed

pytestmark = pytest.mark.slow

THEIRS = {"memory": "gpt-4o-mini", "reader": "gpt-4o-mini", "judge": "gpt-4o", "embedder": "text-embedding-3-small"}
SMALL = ["memory=recency", "data.size=2", "data.max_cases=1", "protocol.judges=[mem0]", "endpoint.backoff=0.01"]


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Any]:
    def composed(*overrides: str, name: str = "config") -> Any:
        return configuration(name, f"results={tmp_path}", "network=true", *overrides)

    return composed


@pytest.fixture
def mock() -> Iterator[tuple[Mock, str]]:
    server = Mock(hang=0.01)
    with serving(application(server)) as url:
        yield server, url


def models(url: str, *roles: str) -> list[str]:
    chosen = roles or ("memory", "reader", "judge", "embedder")
    return [f"endpoint.base_url={url}", *(f"models.{role}=m" for role in chosen)]


def arrived(server: Mock) -> int:
    return sum(server.arrivals.values())


# --- before anything is built -------------------------------------------------------------------------------------------


def test_each_model_is_asked_once_and_then_the_run_goes_on(config: Any, mock: Any) -> None:
    server, url = mock
    run_single(config(*SMALL, *models(url)))
    with_probe = arrived(server)
    run_single(config(*SMALL, *models(url), "endpoint.probe=false", "endpoint.label=again"))
    assert with_probe == arrived(server) - with_probe + 2  # one for three roles of one model, one for the embedder


def test_a_finished_run_and_a_finished_table_ask_nobody_anything(config: Any, mock: Any) -> None:
    server, url = mock
    run_single(config(*SMALL, *models(url)))
    table = ["table=xmemory_t1", "columns=[locomo]", "only=[recency]", "data.size=2", "data.max_cases=1", *models(url)]
    reproduce(config(*table, name="reproduce"))
    before = arrived(server)
    run_single(config(*SMALL, *models(url)))
    reproduce(config(*table, name="reproduce"))
    assert arrived(server) == before


def test_a_finished_run_with_an_answer_or_a_verdict_missing_asks_its_endpoints_first(
    config: Any, mock: Any, tmp_path: Path
) -> None:
    server, url = mock
    run_single(config(*SMALL, *models(url)))
    before = arrived(server)
    (verdicts,) = [file for file in tmp_path.rglob("judge_mem0*.jsonl") if "effort" not in file.name]
    verdicts.unlink()
    run_single(config(*SMALL, *models(url)))
    assert arrived(server) == before + 2  # the probes; the verdicts themselves come from the cache


def test_a_replay_asks_nobody(config: Any, mock: Any) -> None:
    server, url = mock
    cfg = config(*SMALL, *models(url), "replay=true")
    prepared(typed(cfg), build_models(typed(cfg)))
    assert arrived(server) == 0


def test_a_server_that_is_not_there_ends_the_command_before_anything_is_built(
    config: Any, tmp_path: Path, capsys: Any
) -> None:
    assert run_single(config(*SMALL, *models("http://127.0.0.1:9/v1"))) == 2
    said = capsys.readouterr().err
    assert "memory, reader, judge, probe: m at http://127.0.0.1:9/v1" in said
    assert "remedy: start the server" in said
    assert not (tmp_path / "runs").exists()


def test_a_missing_key_ends_the_command_and_names_the_variable(
    config: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert run_single(config(*SMALL, "models.reader=gpt-4o-mini")) == 2
    said = capsys.readouterr().err
    assert "no key for https://api.openai.com/v1 in the environment variable OPENAI_API_KEY" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("quirks", "path", "said"),
    [
        (Quirks(key="sk-right"), "/v1", "OPENAI_API_KEY is not set"),
        (Quirks(), "/wrong", "ends in /v1"),
        (Quirks(temperature="refused"), "/v1", "send_temperature"),
        (Quirks(limit_field="max_completion_tokens"), "/v1", "token_limit_field"),
    ],
)
def test_what_every_call_would_be_refused_for_is_said_once(
    config: Any, quirks: Quirks, path: str, said: str, capsys: Any
) -> None:
    with serving(application(Mock(quirks=quirks))) as url:
        assert run_single(config(*SMALL, *models(url.removesuffix("/v1") + path))) == 2
    assert said in capsys.readouterr().err


def test_the_check_up_before_a_paid_run_stays_under_thirty_calls_and_says_what_it_cost(
    config: Any, mock: Any, capsys: Any
) -> None:
    server, url = mock
    prices = "prices={m: {in: 1, out: 2}, j: {in: 1, out: 2}, e: {in: 1}}"
    cfg = config(*SMALL, *models(url), "profile=paper", "data.source=sample", "models.judge=j", prices)
    prepared(typed(cfg), build_models(typed(cfg)))
    assert arrived(server) < 30
    assert f"check-up: {arrived(server)} calls, 0.0" in capsys.readouterr().err


def test_a_web_page_in_a_models_place_ends_the_command_before_anything_is_asked(config: Any) -> None:
    app = web.Application()

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    app.router.add_post("/v1/chat/completions", page)
    with serving(app) as url:
        cfg = config(*SMALL, *models(url))
        with pytest.raises(RunError, match=r"(?s)the reply is not JSON: '<html>'.*ends in /v1"):
            prepared(typed(cfg), build_models(typed(cfg)))


def test_a_busy_server_is_left_to_the_run(config: Any, mock: Any, capsys: Any) -> None:
    server, url = mock
    server.faults = 1.0
    cfg = config(*SMALL, *models(url))
    prepared(typed(cfg), build_models(typed(cfg)))
    assert "answers, but is busy or failing" in capsys.readouterr().err


def test_all_endpoints_are_asked_at_once_and_the_data_is_read_meanwhile(config: Any) -> None:
    chat_embedder_and_data = threading.Barrier(3, timeout=10)

    @web.middleware
    async def wait_for_the_others(request: web.Request, handler: Any) -> web.StreamResponse:
        await asyncio.to_thread(chat_embedder_and_data.wait)
        response: web.StreamResponse = await handler(request)
        return response

    app = application(Mock())
    app.middlewares.append(wait_for_the_others)
    with serving(app) as url:
        cfg = config(*SMALL, *models(url))
        prepared(typed(cfg), build_models(typed(cfg)), chat_embedder_and_data.wait)
    assert not chat_embedder_and_data.broken


def test_missing_scores_are_printed_with_their_commonest_cause(config: Any, capsys: Any) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=400, text='{"error": {"message": "response_format json_schema is not supported"}}')

    app = web.Application()
    app.router.add_post("/v1/chat/completions", refuse)
    with serving(app) as url:
        assert run_single(config(*SMALL, *models(url), "endpoint.probe=false")) == 1
    said = capsys.readouterr().err
    assert "the most common cause, 2 of 2:" in said
    assert "remedy: the endpoint accepts no such schema: set json_output" in said


# --- the doctor before a paper's run ------------------------------------------------------------------------------------


def test_before_a_papers_run_the_doctor_stops_what_would_lie(config: Any, capsys: Any) -> None:
    with serving(application(Mock(quirks=SETS["ollama"]))) as url:
        cfg = config("profile=paper", *models(url))
        with pytest.raises(
            Exception, match=r"cannot be used: window: the server cuts prompts without an error: 4096 of"
        ):
            prepared(typed(cfg), build_models(typed(cfg)))
    assert "a schema is" in capsys.readouterr().err


def test_what_the_doctor_learns_refuses_a_memory_before_the_first_token(
    config: Any, tmp_path: Path, capsys: Any
) -> None:
    with serving(application(Mock(quirks=Quirks(logprobs="ignored")))) as url:
        cfg = config(
            "table=regression", "profile=paper", "data.source=sample", "yes=true", *models(url), name="reproduce"
        )
        cfg.table.others = ["xmemory"]
        cfg.table.rows = []
        cfg.table.columns = cfg.table.columns[:1]
        assert reproduce(cfg) == 2
    assert "memory xmemory reads log-probabilities, and the probe m gives none" in capsys.readouterr().err
    assert not list(tmp_path.rglob("predictions.jsonl"))


# --- roles --------------------------------------------------------------------------------------------------------------


def test_every_role_has_its_own_endpoint_and_key(config: Any, mock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-quirks")
    _server, url = mock
    with serving(application(Mock(quirks=SETS["reasoning"]))) as judge, serving(application(Mock())) as vectors:
        own = [f"endpoints.judge.base_url={judge}", "endpoints.judge.key_env=JUDGE_KEY"]
        cfg = config(*models(url), *own, f"endpoints.embedder.base_url={vectors}")
        built = build_models(typed(cfg))
        places = [built.memory.endpoint, built.reader.endpoint, built.probe.endpoint, built.judge.endpoint]
        assert [at and at.base_url for at in [*places, built.embedder.endpoint]] == [url, url, url, judge, vectors]
        assert built.judge.endpoint is not None
        assert built.judge.endpoint.key_env == "JUDGE_KEY"
        assert built.judge.identity != built.reader.identity  # one name, two servers
        assert judging(cfg, built, "mem0@other").model != built.judge.identity
        assert built.model("other").endpoint is built.judge.endpoint


def test_a_key_of_its_own_is_used_for_the_same_model_at_the_same_server(config: Any, mock: Any) -> None:
    _, url = mock
    built = build_models(typed(config(*models(url), "endpoints.judge.key_env=JUDGE_KEY")))
    assert built.judge.endpoint is not None
    assert built.reader.endpoint is not None
    assert (built.judge.endpoint.key_env, built.reader.endpoint.key_env) == ("JUDGE_KEY", "OPENAI_API_KEY")
    assert built.judge.identity == built.reader.identity  # who pays changes no answer


def test_a_role_with_its_own_endpoint_needs_no_common_one(config: Any, mock: Any) -> None:
    _, url = mock
    built = build_models(typed(config(f"endpoints.judge.base_url={url}", "models.judge=any")))
    assert built.judge.endpoint is not None
    assert built.stand_ins == ["memory", "reader", "embedder"]


def test_the_users_model_is_never_replaced_by_the_papers(config: Any) -> None:
    mine = config("profile=paper", "models.reader=extractive", "models.judge=qwen3-8b")
    chosen = chosen_models(mine, THEIRS)
    assert chosen == {**THEIRS, "reader": "extractive", "judge": "qwen3-8b"}
    assert chosen_models(config(), THEIRS)["memory"] == "extractive"


def _paper(config: Any, *overrides: str) -> Any:
    paper = [
        "table=regression",
        "profile=paper",
        "data.source=sample",
        "endpoint.probe=false",
        "yes=true",
        "data.size=2",
    ]
    cfg = config(*paper, *overrides, name="reproduce")
    cfg.table.others = ["recency", "memtree"]
    cfg.table.columns = cfg.table.columns[:1]
    cfg.table.columns[0].metrics = [{"judge": "mem0"}, {"judge": "mem0@gpt-4o", "title": "second judge"}]
    cfg.table.backbones.default.models = THEIRS
    return cfg


def test_own_models_in_the_paper_profile_are_called_and_named_as_other_models(
    config: Any, mock: Any, capsys: Any, tmp_path: Path
) -> None:
    server, url = mock
    bodies: list[str] = []
    handled = server._reply
    server._reply = lambda path, body, *rest: (bodies.append(body["model"]), handled(path, body, *rest))[1]
    assert reproduce(_paper(config, *models(url), "max_unscored=1")) == 0
    assert set(bodies) == {"m"}  # the paper's second judge is not asked either
    said = capsys.readouterr().out
    assert "the data is a shipped sample" in said  # which comes before what the page says of the models
    (page,) = (tmp_path / "tables").glob("*.md")
    assert "OTHER MODEL than the paper's: memory m (the paper's: gpt-4o-mini)" in page.read_text(encoding="utf-8")
    assert "· OK" not in said


def test_the_plan_counts_the_chosen_rows_only(config: Any, mock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, url = mock
    plans: list[Plan] = []
    monkeypatch.setattr("scripts.assembly.readiness.confirmed", lambda cfg, plan: plans.append(plan) or False)
    for overrides in ([], ["only=[recency]"]):
        cfg = _paper(config, *models(url), *overrides)
        asked = typed(cfg, "reproduce")
        assert experiment(asked, asked.table) is None
    everything, chosen = ({share.role: share.calls for share in plan.shares} for plan in plans)
    assert everything["memory"] > 0
    assert chosen["memory"] == 0
    assert chosen["reader"] == everything["reader"] / 2
