"""Azure's classic form: the deployment in the path, the version of the API in the query, the key in a header of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memsys.llm.client import Client, HttpEmbedder
from memsys.llm.endpoint import Endpoint, EndpointLimits
from memsys.llm.outcome import check_base_url, located
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import ModelError, Request
from scripts.command import main
from scripts.mock.endpoint import Mock, serving

PATH = "/openai/deployments/mine"
QUERY = "?api-version=2024-10-21"


@pytest.fixture
def azure() -> Iterator[tuple[list[tuple[str, str, bool]], str]]:
    """What arrives (version, key, whether `Authorization` was sent), and the base URL."""
    from aiohttp import web

    mock, arrived = Mock(), list[tuple[str, str, bool]]()

    async def handle(request: Any) -> Any:
        arrived.append(
            (
                request.query.get("api-version", ""),
                request.headers.get("api-key", ""),
                "Authorization" in request.headers,
            )
        )
        return await mock.handle(request)

    app = web.Application()
    app.router.add_post(f"{PATH}/chat/completions", handle)
    app.router.add_post(f"{PATH}/embeddings", handle)
    with serving(app) as url:
        yield arrived, url.removesuffix("/v1") + PATH + QUERY


def test_calls_carry_the_version_and_the_key_in_a_header_of_its_own(
    azure: tuple[list[tuple[str, str, bool]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_TEST_KEY", "azure-key-1")
    endpoint = Endpoint(azure[1], EndpointLimits(retries=0), key_env="AZURE_TEST_KEY")
    try:
        completion = Client(endpoint, ModelSettings("mine")).submit(Request((("user", "Hello"),), "a.b")).result(30)
        ((_, vectors),) = HttpEmbedder(endpoint, ModelSettings("mine")).fetch(["a tomato"])
    finally:
        endpoint.close()
    assert completion.text.startswith("mock answer")
    assert not isinstance(vectors[0], ModelError)
    assert azure[0] == [("2024-10-21", "azure-key-1", False)] * 2


@pytest.mark.slow
def test_a_run_takes_such_a_url_from_its_command_line(
    azure: tuple[list[tuple[str, str, bool]], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["memsys-bench"])
    monkeypatch.setenv("AZURE_TEST_KEY", "azure-key-1")
    models = ["endpoint.key_env=AZURE_TEST_KEY", *(f"models.{role}=my=model" for role in ("reader", "judge"))]
    small = ["memory=recency", "data.size=2", "data.max_cases=1", f"results={tmp_path}"]
    assert main(["run", f"endpoint.base_url={azure[1]}", *models, *small, "network=true"]) == 0
    assert len(azure[0]) >= 4
    assert {*azure[0]} == {("2024-10-21", "azure-key-1", False)}


def test_the_query_stays_behind_the_path() -> None:
    assert located("https://x.test/v1", "/embeddings") == "https://x.test/v1/embeddings"
    assert located(f"https://x.test{PATH}{QUERY}", "/embeddings") == f"https://x.test{PATH}/embeddings{QUERY}"


@pytest.mark.parametrize(
    "query", ["?key=secret", "?api-version=2024-10-21&key=secret", "?api-version=a%20b", "?api-version="]
)
def test_another_query_is_refused_and_the_one_that_is_taken_is_named(query: str) -> None:
    check_base_url(f"https://x.test{PATH}{QUERY}")
    with pytest.raises(ModelError, match=r"api-version=…") as refused:
        check_base_url(f"https://x.test{PATH}{query}")
    assert "secret" not in str(refused.value)
