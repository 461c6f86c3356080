"""kill -9 of run, worker or gateway at random moments: at most the calls in flight are lost. MEMSYS_KILLS=20 for more of them."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from memsys import processes
from memsys.products.places import place_of
from scripts.mock.endpoint import Mock, application, said, serving
from scripts.setup.options import load_option, options

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("MEMSYS_KILLS", "4"))
IN_FLIGHT = 4
RUN = """
import json, sys
from scripts.lab.lab import Lab
Lab(*json.loads(sys.argv[1])).ask(json.loads(sys.argv[2]))
"""
TOY = {
    "name": "released_toy",
    "title": "Toy",
    "build": {
        "_target_": "memsys.systems.released.Released",
        "_partial_": True,
        "product": str(ROOT / "tests" / "products" / "toy.py"),
        "k": 10,
    },
}

PRODUCT = """
import sys
import numpy as np
from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.llm.gateway.server import Gateway
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.interface import with_settings
from memsys.systems.released import Released
from scripts.setup.options import load_option
build = load_option("memory", sys.argv[1])["build"]
given = {name: value for name, value in build.items() if name[0] != "_"}
gateway = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(64), None, "live")
memory = with_settings(Released, given)(gateway, np.random.default_rng(0))
for day in range(1, 10**6):
    memory.write(Unit(f"u{day}", (Turn(f"t{day}", "Mara", f"I planted {day} tomatoes in garden {day}."),), f"s{day}"))
    memory.end_session(f"s{day}")
    memory.consolidate()
    memory.read(Question(f"q{day}", "How many tomatoes did Mara plant?"))
    print(day, flush=True)
"""
RELEASED = {load_option("memory", name)["build"]["product"]: name for name in options("memory") if "released_" in name}
"""A memory of each product."""


@pytest.fixture
def mock() -> Iterator[tuple[Mock, str]]:
    """An endpoint that takes 30 ms and tells the toy one fact a unit."""
    server = Mock(latency=0.03)

    def reply(body: dict[str, Any], key: str) -> str:
        toy = "Toy:" in str(body["messages"][0]["content"])
        return json.dumps({"facts": [f"garden {key[:6]}"]}) if toy else said(body, key)

    server.said = reply
    with serving(application(server)) as url:
        yield server, url


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder in which a PostgreSQL has room for its socket, whose path has at most 107 characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def repeated(server: Mock) -> int:
    return sum(count - 1 for count in server.answered.values())


def command(url: str, folder: Path) -> list[str]:
    models = [f"models.{role}=mock" for role in ("memory", "reader", "judge", "embedder")]
    cut = ["profile=smoke", "dataset=locomo", "data.size=12", "data.max_cases=2", "endpoint.probe=false", "threads=2"]
    ends = [f"endpoint.base_url={url}", f"endpoint.in_flight={IN_FLIGHT}", "endpoint.label=mock", f"results={folder}"]
    return [sys.executable, "-c", RUN, json.dumps([*cut, *models, *ends]), json.dumps(TOY)]


def workers_of(pid: int) -> list[int]:
    """The children of all threads of a process; a thread may end while they are read."""
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            children += map(int, path.read_text().split())
    return children


def predictions(folder: Path) -> dict[str, bytes]:
    files = sorted(folder.rglob("predictions.jsonl"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def finished(arguments: list[str]) -> None:
    subprocess.run(arguments, cwd=ROOT, check=True, capture_output=True)


def wait_for_calls(server: Mock, count: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until this many calls more have arrived, or the process has ended."""
    before = sum(server.arrivals.values())
    while sum(server.arrivals.values()) < before + count and process.poll() is None:
        time.sleep(0.005)


@pytest.mark.integration
@pytest.mark.timeout(300 + 60 * KILLS)  # each kill is a start of a process, on a machine that may be busy
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers of a run in /proc")
def test_a_run_or_a_worker_killed_at_random_loses_at_most_the_calls_in_flight(
    mock: tuple[Mock, str], tmp_path: Path
) -> None:
    server, url = mock
    finished(command(url, tmp_path / "undisturbed"))
    calls = sum(server.answered.values())
    server.answered.clear()
    rng, killed = random.Random(5), {"run": 0, "worker": 0}
    for number in range(KILLS):
        process = subprocess.Popen(command(url, tmp_path / "killed"), cwd=ROOT, stderr=subprocess.DEVNULL)
        wait_for_calls(server, rng.randint(1, max(2, calls // KILLS)), process)
        workers = workers_of(process.pid) if process.poll() is None else []
        if number % 2 and workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
            killed["worker"] += 1
            wait_for_calls(server, 2, process)
        elif process.poll() is None:
            killed["run"] += 1
        process.kill()
        process.wait()
        for worker in workers:
            assert gone(worker), "a worker outlives its run"
    finished(command(url, tmp_path / "killed"))
    finished(command(url, tmp_path / "killed"))  # questions that met a killed worker are asked again
    print(f"killed {killed}, {calls} calls, {repeated(server)} asked twice")
    assert predictions(tmp_path / "killed") == predictions(tmp_path / "undisturbed")
    assert sum(killed.values()) > KILLS // 2
    assert repeated(server) <= KILLS * 2 * IN_FLIGHT
    assert repeated(server) < calls


def gone(pid: int, seconds: float = 20.0) -> bool:
    """Whether a process ends within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # ended; nobody has asked for its exit code
            return True
        time.sleep(0.1)
    return False


@pytest.mark.integration
@pytest.mark.timeout(300 + 120 * KILLS)  # each kill is a start of a product
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a product in /proc")
@pytest.mark.parametrize("product", sorted(RELEASED))
def test_a_killed_run_of_a_product_leaves_none_of_its_processes(
    product: str, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not place_of(product).installed:
        pytest.skip(f"{product} is not installed: make product NAME={product}")
    monkeypatch.setenv("TMPDIR", str(short_folder))
    rng, opening, most, said = random.Random(product), 0.0, 0, short_folder / "said.txt"
    for number in range(KILLS):
        begun = time.monotonic()
        command = [sys.executable, "-c", PRODUCT, RELEASED[product]]
        with (
            said.open("wb") as end,
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=end) as run,
        ):
            assert run.stdout is not None
            if number % 2:  # while it opens
                time.sleep(rng.uniform(0, opening))
            else:  # in a step
                assert run.stdout.readline(), f"it ended by itself: {said.read_text()[-500:]}"
                opening = time.monotonic() - begun
                time.sleep(rng.uniform(0, 1))
            started = list(processes._descendants(run.pid))
            run.kill()
        assert number % 2 or started, "the worker lived"
        assert [pid for pid in started if not gone(pid)] == []
        assert within(short_folder) == []
        most = max(most, len(started))
    print(f"{product}: {KILLS} kills, at most {most} processes, none left")


def within(folder: Path) -> list[str]:
    """Processes with a program, a working folder or an argument below a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            seen = [os.readlink(process / "exe"), os.readlink(process / "cwd"), (process / "cmdline").read_text()]
        except (OSError, UnicodeDecodeError):  # it has ended, or is the kernel's
            continue
        found += (
            [process.name] if any(str(folder) in each for each in seen) and int(process.name) != os.getpid() else []
        )
    return found


@pytest.mark.integration
@pytest.mark.timeout(300 + 60 * KILLS)  # each kill is a start of a process, on a machine that may be busy
def test_a_gateway_killed_at_random_loses_at_most_the_calls_in_flight(
    mock: tuple[Mock, str], short_folder: Path
) -> None:
    server, url = mock
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = [sys.executable, "-m", "scripts", "gateway", "--port", str(port), "--base-url", url, "--model", "mock"]
    start += ["--cache", str(short_folder / "c.sqlite"), "--label", "mock"]
    rng, done = random.Random(6), threading.Event()
    address = [f"http://127.0.0.1:{port}/none/v1"]

    def ask(number: int) -> str:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"question {number}"}]}).encode()
        for _ in range(600):
            try:
                asked = urllib.request.Request(
                    f"{address[0]}/chat/completions", body, {"Content-Type": "application/json"}
                )
                with urllib.request.urlopen(asked, timeout=30) as reply:
                    return str(json.loads(reply.read())["choices"][0]["message"]["content"])
            except (OSError, ValueError):
                time.sleep(0.1)
        raise TimeoutError("the gateway did not come back")

    def kill_now_and_then() -> None:
        for place in range(KILLS + 1):
            process = subprocess.Popen(start, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert process.stdout is not None
            process.stdout.readline()  # it serves
            address[0] = process.stdout.readline().split()[-1]  # each start has a token of its own
            if place < KILLS:
                time.sleep(rng.uniform(0.05, 0.6))
            else:
                done.wait(120)
            process.kill()
            process.wait()
            process.stdout.close()

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        replies = list(pool.map(ask, range(KILLS * 60)))
    done.set()
    killer.join()
    print(f"{KILLS} kills, {len(replies)} calls, {repeated(server)} asked twice")
    assert len(set(replies)) == len(replies)
    assert repeated(server) <= KILLS * IN_FLIGHT
