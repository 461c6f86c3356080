"""Keys in settings are refused by name and by look; keys that reach a file by another way are redacted in every cheap spelling."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from eval.files.store import RunError, line
from memsys.interface import with_settings
from memsys.llm import secrets
from memsys.llm.endpoint import Endpoint
from memsys.llm.secrets import names_secret, variables, written_key
from memsys.services.http import HttpMemory
from memsys.services.mcp import McpMemory
from scripts.command import verb
from scripts.settings.checking import checked, resolved
from scripts.setup.options import CONF, load_option, options
from tests.scripts.commands import run_single

KEY = "canary-8f1c/2B+7e55d0aQ"

WAYS = {
    "a header out of the environment": "++memory.build.headers.Authorization='Bearer ${oc.env:MEM_SECRET_OTHER}'",
    "a header under a harmless name out of the environment": "++memory.build.headers.X-Team='${oc.env:MEM_SECRET_OTHER}'",
    "a header as it is": "++memory.build.headers.X-Api-Key=plainwords",
    "a field of a query": "++memory.build.search.query.api_key=plainwords",
    "a field of a query out of the environment": "++memory.build.search.query.q='${oc.env:MEM_SECRET_OTHER}'",
    "the path of a base URL": "memory.build.base_url=http://127.0.0.1:9/t/Zx81kQpL09vYt3RwSd77Ab/v1",
    "the path of the model's base URL": "endpoint.base_url='http://127.0.0.1:9/${oc.env:MEM_SECRET_OTHER}/v1'",
    "the path of a call": "memory.build.search.path='/find?token=plainwords'",
    "a header under a harmless name": "++memory.build.headers.X-Session=Zx81kQpL09vYt3RwSd77Ab",
    "the signature of a query": "++memory.build.search.query.sig=Zx81kQpL09vYt3RwSd77Ab",
    "a password in an address": "++memory.build.headers.X-Proxy='http://me:plainwords@127.0.0.1:3128'",
    "the name of a field": "++memory.build.headers.sk-proj-Zx81kQpL09vYt3RwSd77Ab=1",
    "a setting of another name that points at a header": "++memory.build.headers.Cookie='${memory.build.version}'",
}


@pytest.fixture(autouse=True)
def _own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_keys", {})
    monkeypatch.setattr(secrets, "_long", {})
    monkeypatch.setenv("MEM_SECRET_OTHER", KEY)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_key_in_settings_is_refused_before_anything_is_written(way: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", ["memory=reference_http", WAYS[way]])
    with pytest.raises(RunError, match=r"run\.json") as refused:
        checked(cfg, "config")
    assert not any(key in str(refused.value) for key in (KEY, "plainwords", "Zx81kQpL"))


def test_a_literal_key_in_the_variables_and_arguments_of_an_mcp_server_is_refused() -> None:
    given: dict[str, Any] = {"command": "server", "add": {"tool": "add"}, "search": {"tool": "search"}}
    for more in (
        {"env": {"SERVICE_TOKEN": "plainwords"}},
        {"args": ["--api-key", "plainwords"]},
        {"args": ["--key=x"]},
    ):
        with pytest.raises(ValueError, match="key as it is"):
            with_settings(McpMemory, {**given, **more})(np.random.default_rng(0))
    with_settings(McpMemory, {"env": {"MODE": "fast"}, "args": ["--port", "80"], **given})(
        np.random.default_rng(0)
    ).close()


def test_a_notebook_that_builds_an_http_memory_with_a_key_is_refused_too() -> None:
    build = {**load_option("memory", "reference_http")["build"], "headers": {"Authorization": f"Bearer {KEY}"}}
    with pytest.raises(ValueError, match=r"headers\.Authorization holds a key") as refused:
        with_settings(HttpMemory, {name: value for name, value in build.items() if name[0] != "_"})(
            np.random.default_rng(0)
        )
    assert KEY not in str(refused.value)


def test_every_shipped_file_and_ordinary_addresses_pass() -> None:
    for name in options("memory"):
        load_option("memory", name)  # a refused one raises
    for url in (
        "https://api.openai.com/v1",
        "https://me.openai.azure.com/openai/deployments/gpt-4o-mini-2024-07-18",
        "https://api.example/accounts/0123456789abcdef0123456789abcdef/ai/v1",
        "http://127.0.0.1:8000/v1/projects/7b1a2c3d-1111-2222-3333-444455556666",
    ):
        assert written_key({"endpoint": {"base_url": url, "key_env": "OPENAI_API_KEY"}}) == ""
    assert (
        written_key({"headers": {"Authorization": "Token {key}", "Accept": "application/json"}, "keys": ["A_KEY"]})
        == ""
    )


def test_names_of_keys_are_told_from_names_that_only_contain_the_words() -> None:
    assert all(
        map(names_secret, ("X-Api-Key", "accessToken", "OPENAI_API_KEY_2", "Proxy-Authorization", "pwd", "cookie"))
    )
    assert not any(
        map(names_secret, ("key_env", "keys", "max_tokens", "token_limit_field", "keyword", "author", "monkey"))
    )


def test_the_variable_of_a_default_is_found_too() -> None:
    assert variables({"title": "${oc.env:TEAM_NAME,${oc.env:OTHER}}"}) == {"TEAM_NAME", "OTHER"}


def test_values_out_of_the_environment_and_its_secrets_never_reach_a_line_of_a_file(monkeypatch: Any) -> None:
    monkeypatch.setenv("TEAM_NAME", "hush-hush-77")
    assert resolved(OmegaConf.create({"title": "${oc.env:TEAM_NAME}"})) == {"title": "hush-hush-77"}
    secrets.register_environment()
    written = line({"title": "hush-hush-77", "why": f"refused {KEY}"}).decode()
    assert written == '{"title":"<TEAM_NAME>","why":"refused <MEM_SECRET_OTHER>"}\n'


@pytest.mark.parametrize("value", ["/srv/shared", "~/shared", "http://models.lan:8000/v1", "https://models.lan/v1"])
def test_a_path_or_an_address_out_of_the_environment_stays_readable(value: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("SHARED", value)
    settings = resolved(OmegaConf.create({"root": "${oc.env:SHARED}"}))
    assert line(settings).decode() == f'{{"root":"{value}"}}\n'


@pytest.mark.parametrize("made", [dict, OmegaConf.create])
def test_a_key_is_refused_under_the_whole_name_of_its_setting(made: Any) -> None:
    with pytest.raises(RunError, match=r"^memory\.build\.headers\.X-Api-Key "):
        resolved(made({"headers": {"X-Api-Key": "plainwords"}}), "memory.build")


@pytest.mark.parametrize("before", ["", "a", "user:"])
def test_a_key_is_redacted_in_base64_hexadecimal_url_and_other_cases(before: str) -> None:
    secrets.register(KEY, "K")
    whole = f"{before}{KEY}:and more".encode()
    for text in (
        base64.b64encode(whole).decode(),
        base64.urlsafe_b64encode(whole).decode(),
        KEY.upper(),
        KEY.lower(),
        KEY.encode().hex(),
        KEY.replace("/", "%2F").replace("+", "%2B"),
        KEY.replace("/", "\\/"),
    ):
        assert "<K>" in secrets.redact(text), text
        assert b"<K>" in secrets.redact_bytes(text.encode())


@pytest.mark.parametrize(
    ("url", "noted"), [("http://10.1.2.3/v1", True), ("https://a.example/v1", False), ("http://127.0.0.1:9/v1", False)]
)
def test_a_key_that_goes_to_another_machine_unencrypted_is_noted_once(
    url: str, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = Endpoint(url, key_env="MEM_SECRET_OTHER")
    endpoint._connect()
    endpoint._connect()
    endpoint.close()
    said = capsys.readouterr().err
    assert said.count("the key of MEM_SECRET_OTHER goes to http://10.1.2.3/v1 without encryption") == noted
    assert KEY not in said


@pytest.mark.slow
def test_a_secret_of_the_environment_is_in_no_file_of_a_run_its_report_card_or_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = load_option("reader", "locomo_official")["title"]  # stands in run.json, and so in all that is made of it
    monkeypatch.setenv("MEM_SECRET_OTHER", secret)
    results = tmp_path / "results"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", [f"results={results}", "memory=bm25", "data.size=2"])
    assert run_single(cfg) == 0
    (folder,) = (results / "runs" / "locomo").iterdir()
    assert verb("card", [str(folder)]) == 0
    assert verb("report", [str(results)]) == 0
    assert verb("export", [str(folder), "--format", "eee", "--to", str(tmp_path / "export")]) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "run0.js"} <= {path.name for path in files}
    assert "<MEM_SECRET_OTHER>" in (folder / "run.json").read_text()
    assert [path.name for path in files if secret.encode() in path.read_bytes()] == []
    printed = capsys.readouterr()
    assert secret not in printed.out + printed.err
