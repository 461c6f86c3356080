"""Programs that other people wrote, through the gateway: live, then in a replay with the server stopped, with the same replies.

Their drivers are in `tests/clients`. Each gets an environment of its own, outside the repository: the openai packages for Python and Node
in a temporary folder, the larger ones in the folder that MEMSYS_CLIENTS names, where they stay.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from memsys.llm.gateway.accounts import Account
from memsys.llm.gateway.server import Mode
from memsys.llm.network import forbid_network
from memsys.llm.store import CacheStore
from scripts.commands.gateway import _parser, build
from scripts.mock.endpoint import Mock, application, serving
from tests.memsys.llm.gateway_cases import CASES

DRIVERS = Path(__file__).parents[1] / "clients"
KEPT = os.environ.get("MEMSYS_CLIENTS", "")
PACKAGES: Mapping[str, Sequence[str]] = {
    "openai": ["openai"],
    "litellm": ["litellm"],
    "langchain-openai": ["langchain-openai"],
    "llama-index": ["llama-index-llms-openai"],
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
    "instructor": ["instructor", "openai"],
    "openai-agents": ["openai-agents"],
    "inspect_ai": ["inspect_ai", "openai"],
}
NODE: Mapping[str, tuple[str, Sequence[str]]] = {
    "openai-node": ("openai_node.mjs", ["openai"]),
    "ai-sdk": ("ai_sdk.mjs", ["ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "zod"]),
}
SECONDS = ("openai", "openai-node")
"""Those that are installed in seconds."""


def command_of(client: str, folder: Path) -> list[str]:
    """The command that runs a client's driver, which takes the base URL; the client is installed first."""
    if KEPT:
        folder = Path(KEPT).expanduser()
    elif client not in SECONDS:
        pytest.skip(f"{client} takes long to install: set MEMSYS_CLIENTS to a folder for it")
    if client in NODE:
        return _node(client, folder / "node")
    python = folder / client / "bin" / "python"
    if not python.exists():
        _installed([sys.executable, "-m", "venv", str(folder / client)])
        _installed([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[client]])
    name = {"openai": "openai_python"}.get(client, f"{client.replace('-', '_')}_client")
    return [str(python), str(DRIVERS / f"{name}.py")]


def _node(client: str, folder: Path) -> list[str]:
    script, packages = NODE[client]
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    if not all((folder / "node_modules" / package).exists() for package in packages):
        (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
        _installed(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages])
    for source in DRIVERS.glob("*.mjs"):  # modules are looked for beside the script
        shutil.copy(source, folder)
    return ["node", str(folder / script)]


def _installed(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"cannot be installed: {done.stderr[-300:]}")


def lines_of(command: Sequence[str], base_url: str) -> dict[str, dict[str, str]]:
    """What a driver printed, by case."""
    environment = {**os.environ, "OPENAI_API_KEY": "none"}
    done = subprocess.run([*command, base_url], capture_output=True, text=True, timeout=240, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    assert lines, done.stderr[-2000:]
    assert done.returncode == 0, done.stderr[-2000:]
    return {line["case"]: line for line in lines}


def played(command: Sequence[str], url: str, cache: Path, mode: Mode) -> dict[str, dict[str, str]]:
    given = [
        "--base-url",
        url,
        "--model",
        "mock",
        "--embedder",
        "mock",
        "--label",
        "mock",
        "--mode",
        mode,
        "--port",
        "0",
    ]
    with ExitStack() as stack:
        store = CacheStore(cache)
        stack.callback(store.close)
        gateway = build(_parser().parse_args(given), store)
        stack.callback(gateway.close)
        account = gateway.open(gateway.new_token("one"), Account("one"))
        return lines_of(command, account.base_url)


@pytest.mark.integration
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("client", [*PACKAGES, *NODE])
def test_a_client_of_other_peoples_gets_its_replies_live_and_the_same_in_a_replay(client: str, tmp_path: Path) -> None:
    command = command_of(client, tmp_path)
    with serving(application(Mock())) as url:
        live = played(command, url, tmp_path / "c.sqlite", "record")
    try:
        again = played(command, url, tmp_path / "c.sqlite", "replay")
    finally:
        forbid_network(False)
    print(f"{client}: {len(live)} cases")
    wrong = {name: line for name, line in live.items() if ("error" in line) != name.startswith("refused: ")}
    assert not wrong
    assert again == live


@pytest.mark.integration
def test_curl_gets_every_reply_of_the_table_or_the_header_to_add(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    chosen = [case for case in CASES if case.shape == "bare" and case.method == "POST" and len(str(case.body)) < 10_000]
    given = ["--model", "mock", "--embedder", "mock", "--mode", "live", "--port", "0", "--base-url"]
    with serving(application(Mock())) as url:
        gateway = build(_parser().parse_args([*given, url]), None)
        account = gateway.open(gateway.new_token("one"), Account("one"))
        for number, case in enumerate(chosen):
            body = tmp_path / str(number)
            body.write_bytes(case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode())
            headers = {"Content-Type": "application/json", **case.headers}
            asked = ["curl", "-s", "-w", "\n%{http_code}", "--data-binary", f"@{body}"]
            asked += [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
            address = account.base_url.removesuffix("v1") + case.path
            done = subprocess.run([*asked, address], capture_output=True, text=True, timeout=60)
            text, _, status = done.stdout.rpartition("\n")
            assert status == str(case.status), (case.name, text[:300])
            assert all(expected in text for expected in case.shows), case.name
        plain = subprocess.run(
            ["curl", "-s", f"{account.base_url}/chat/completions", "-d", "{}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "-H 'Content-Type: application/json'" in json.loads(plain.stdout)["error"]["message"]
        gateway.close()


ATTACK = """<!doctype html><title>waiting</title><script>
const base = "%s", body = JSON.stringify({messages: [{role: "user", content: "spend"}]});
const kinds = [undefined, "text/plain", "application/json", "application/x-www-form-urlencoded"];
const calls = kinds.flatMap(kind => ["no-cors", "cors"].map(mode => fetch(base + "/chat/completions",
  {method: "POST", mode, body, headers: kind ? {"Content-Type": kind} : {}}).then(reply => reply.status || reply.type, () => "failed")));
calls.push(fetch(base + "/models").then(reply => reply.text(), () => "failed"));
calls.push(new Promise(done => { navigator.sendBeacon(base + "/chat/completions", body); setTimeout(() => done("sent"), 300); }));
const over = (what, begin) => calls.push(new Promise(done => {
  const end = how => done(what + ":" + how);
  begin(end); setTimeout(() => end("waited"), 1500);
}));
const all = (target, names, end) => names.forEach(name => target["on" + name] = () => end(name));
for (const place of ["/chat/completions", "/models"])
  over("image", end => { const image = new Image(); all(image, ["load", "error"], end);
    image.src = base + place + "?" + encodeURIComponent(body); });
over("socket", end => { const socket = new WebSocket(base.replace("http", "ws") + "/chat/completions");
  all(socket, ["open", "error"], end); socket.addEventListener("open", () => socket.send(body)); });
over("events", end => all(new EventSource(base + "/models"), ["open", "error"], end));
over("script", end => { const script = document.createElement("script"); all(script, ["load", "error"], end);
  script.src = base + "/models"; document.head.append(script); });
addEventListener("DOMContentLoaded", () => {
  const forms = [["text/plain", body.slice(0, -1) + ', "x": "', '"}'], ["application/x-www-form-urlencoded", "body", body]];
  for (const [encoding, name, value] of forms) {
    const frame = document.createElement("iframe"), form = document.createElement("form"), field = document.createElement("input");
    frame.name = form.target = "frame" + encoding; form.method = "POST"; form.enctype = encoding; form.action = base + "/chat/completions";
    Object.assign(field, {type: "hidden", name, value}); form.append(field); document.body.append(frame, form);
    over("form", end => { frame.onload = () => end("answered"); form.submit(); });
  }
  Promise.all(calls).then(results => { document.title = "done"; document.body.textContent = "results " + results.join(" "); });
});
</script><body>"""


@pytest.mark.integration
def test_a_page_of_another_origin_sends_no_call_upstream_even_with_the_token(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no browser is installed")
    from aiohttp import web

    server = Mock()
    with serving(application(server)) as url:
        gateway = build(
            _parser().parse_args(["--model", "mock", "--mode", "live", "--port", "0", "--base-url", url]), None
        )
        account = gateway.open(gateway.new_token("one"), Account("one"))
        pages = web.Application()
        page = ATTACK % account.base_url

        async def shown(request: web.Request) -> web.Response:
            return web.Response(text=page, content_type="text/html")

        pages.router.add_get("/v1", shown)
        with serving(pages) as where:
            done = subprocess.run(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
                 "--virtual-time-budget=5000", "--dump-dom", where],
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
        gateway.close()
    assert "results" in done.stdout, done.stderr[-1000:]
    assert [done.stdout.count(what) for what in ("form:", "image:error", "socket:error", "script:error")] == [
        2,
        2,
        1,
        1,
    ]
    assert not server.arrivals
    assert not account.idle.calls
    assert '"object"' not in done.stdout, "no reply was read"
