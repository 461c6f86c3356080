"""The command `memsys-bench gateway`: what it asks for before it serves, and what it prints."""

from __future__ import annotations

import http.client
import json
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from eval.files.store import RunError
from memsys.llm.gateway.accounts import Account
from memsys.llm.gateway.server import Gateway
from memsys.llm.network import forbid_network
from scripts.commands import gateway as command
from scripts.mock.endpoint import Mock, application, serving

ROOT = Path(__file__).parents[2]


def built(*given: str) -> Any:
    return command.build(command._parser().parse_args(["--mode", "live", *given]), None)


def test_a_cap_is_demanded_where_a_call_costs_money() -> None:
    with pytest.raises(RunError, match="costs money: say how much may be spent, such as --max-usd 5"):
        built("--model", "gpt-4o-mini")
    with pytest.raises(RunError, match="costs money"):
        built("--model", "no-price", "--embedder", "text-embedding-3-small")
    for given in (["--base-url", "http://127.0.0.1:9/v1"], ["--max-usd", "5"]):
        built("--model", "gpt-4o-mini", *given).close()


def test_a_replay_spends_nothing_and_needs_no_cap() -> None:
    try:
        built("--model", "gpt-4o-mini", "--mode", "live", "--base-url", "http://127.0.0.1:9/v1").close()
        command.build(command._parser().parse_args(["--mode", "replay", "--model", "gpt-4o-mini"]), _Store()).close()
    finally:
        forbid_network(False)


class _Store:
    """Stands for a cache that is never asked."""

    def flush(self, seconds: float) -> None:
        """Nothing is kept."""


def test_a_cap_without_a_price_is_refused_with_the_line_to_add(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"the price of my-model is unknown: write my-model: \{in: USD, out: USD\}"):
        built("--model", "my-model", "--max-usd", "5")
    (tmp_path / "prices.yaml").write_text("my-model: {in: 1, out: 2}\n", encoding="utf-8")
    built("--model", "my-model", "--max-usd", "5", "--prices", str(tmp_path / "prices.yaml")).close()


def test_the_cap_is_kept(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("mock: {in: 1000000, out: 1000000}\n", encoding="utf-8")
    server = Mock()
    with serving(application(server)) as url:
        given = ["--base-url", url, "--model", "mock", "--max-usd", "0.5", "--prices", str(tmp_path / "prices.yaml")]
        gateway = built(*given, "--max-output-tokens", "10", "--port", "0")
        account = gateway.open(gateway.new_token("one"), Account("one"))
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
        asked = urllib.request.Request(
            f"{account.base_url}/chat/completions", body, {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=30)
        assert json.loads(refused.value.read())["error"]["code"] == "max_usd_reached"
        gateway.close()
    assert not server.arrivals


@pytest.mark.slow
@pytest.mark.parametrize("gone", [False, True], ids=["client waits", "client is gone"])
def test_a_reply_in_flight_at_a_signal_is_kept_and_reaches_its_client(tmp_path: Path, gone: bool) -> None:
    upstream = Mock(latency=2.0)  # twice the second that the server itself gives a request when it is stopped
    with serving(application(upstream)) as url:
        given = ["--base-url", url, "--model", "mock", "--port", "0", "--cache", str(tmp_path / "cache.sqlite")]
        start = [sys.executable, "-m", "scripts", "gateway", *given]
        with subprocess.Popen(start, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            address = urlsplit(process.stdout.readline() and process.stdout.readline().split()[1])
            client = http.client.HTTPConnection(address.netloc, timeout=30)
            body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True})
            client.request("POST", f"{address.path}/chat/completions", body, {"Content-Type": "application/json"})
            while not upstream.arrivals:
                time.sleep(0.01)
            if gone:
                client.close()
            process.terminate()
            assert gone or client.getresponse().read().endswith(b"data: [DONE]\n\n")
            assert (process.wait(30), "Traceback" in process.communicate()[1]) == (143, False)
    with closing(sqlite3.connect(tmp_path / "cache.sqlite")) as cache:
        assert cache.execute("SELECT count(*) FROM answers").fetchone() == (2,), (
            "the reply, and the parts of its request"
        )


@pytest.mark.slow
def test_each_account_gets_a_secret_address_and_a_taken_port_is_named_in_one_sentence(tmp_path: Path) -> None:
    start = [sys.executable, "-m", "scripts", "gateway", "--stand-in", "--mode", "live"]
    serving_one = subprocess.Popen(
        [*start, "--port", "0", "--account", "ada", "--account", "bob"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert serving_one.stdout is not None
        serving_one.stdout.readline()
        lines = [serving_one.stdout.readline().split() for _ in range(2)]
        assert [name for name, _ in lines] == ["ada:", "bob:"]
        for _, address in lines:
            with urllib.request.urlopen(f"{address}/models", timeout=30) as reply:
                assert json.loads(reply.read())["data"][0]["id"] == "extractive"
        port = lines[0][1].split("/")[2].split(":")[1]
        again = subprocess.run([*start, "--port", port], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert again.returncode == 2
        assert again.stderr.startswith(f"error: port {port} is taken")
        assert again.stderr.strip().endswith("--port 0 takes any free one")
        assert "Traceback" not in again.stderr
    finally:
        serving_one.terminate()
        serving_one.wait(30)
        if serving_one.stdout is not None:
            serving_one.stdout.close()


def test_a_server_that_starts_too_slowly_is_no_taken_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: Gateway) -> str:
        raise TimeoutError  # an OSError, as the error of a taken port

    monkeypatch.setattr(Gateway, "start", slow)
    with pytest.raises(RunError, match="did not start within 30 seconds") as refused:
        command.main(["--stand-in", "--mode", "live", "--port", "0"])
    assert "taken" not in str(refused.value)


def test_a_port_that_is_taken_raises_before_an_account_is_opened() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        gateway = built("--stand-in", "--port", str(holder.getsockname()[1]))
        with pytest.raises(OSError, match="address already in use"):
            gateway.start()
        gateway.close()
