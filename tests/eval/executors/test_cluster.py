"""Cells on a Ray cluster: the bytes of threads, killed workers and drivers, and errors that say where and what to do."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from executed_runs import CASES, contents
from mortal_memories import Counted, CountedEmbedder, Full, Mortal, Patient
from omegaconf import OmegaConf

from eval.executors import cluster
from eval.executors.cluster import check_reachable, connect, in_ray
from eval.executors.worker import Environment, this_home
from eval.files.store import RunError
from eval.running.loop import run_all
from eval.running.run import Progress, Run, ignore_answer
from eval.running.work import Build
from memsys.llm.cache import CachedLLM
from memsys.llm.meter import Metered
from memsys.llm.network import forbid_network
from memsys.llm.pricing import ModelSettings
from memsys.llm.store import CacheStore
from memsys.systems.bm25 import BM25
from memsys.systems.memtree import MemTree
from memsys.systems.released import Released
from scripts.assembly.steps import executor_of
from tests.rigs.campaign import clusters
from tests.rigs.campaign.clusters import free_ports, parent_of

Make = Callable[..., Run]
needs_ray = [
    pytest.mark.integration,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]


def integration(test: Callable[..., None]) -> Callable[..., None]:
    for mark in needs_ray:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of this machine with two cores, and a token of its own; the connection to it ends with the module."""
    with clusters.cluster() as started:
        yield started.address
        import ray

        ray.shutdown()


# --- on a cluster ---------------------------------------------------------------------------------------------------------


@integration
def test_ray_gives_the_bytes_of_threads(make_run: Make, address: str) -> None:
    def made(folder: str) -> list[Run]:
        llm = Metered(Counted())
        online = make_run(CASES, build=partial(MemTree), folder=f"{folder}-online", llm=llm, reader=llm)
        return [
            make_run(CASES, build=partial(MemTree), folder=f"{folder}-offline", vectors=True),
            replace(online, services=replace(online.services, embedder=CountedEmbedder())),
            *(make_run(CASES, build=partial(BM25, k=k), folder=f"{folder}-{k}", shared="bm25") for k in (1, 4)),
        ]

    runs, on_ray = made("threads"), made("ray")
    steps: tuple[list[Progress], list[Progress]] = ([], [])
    run_all(runs, on_progress=steps[0].append)
    run_all(on_ray, on_progress=steps[1].append, executor=in_ray(address, None, 8))
    for one, other in zip(runs, on_ray, strict=True):
        ours, theirs = contents(one), contents(other)
        assert {name for name in ours | theirs if ours.get(name) != theirs.get(name)} == set()
    names = {one.folder.name: other.folder.name for one, other in zip(runs, on_ray, strict=True)}
    assert Counter(replace(step, run=names[step.run]) for step in steps[0]) == Counter(steps[1])


@integration
def test_a_killed_worker_costs_no_finished_call(make_run: Make, address: str, tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.mkdir()

    def made(folder: str) -> tuple[Run, Counted]:
        llm = Counted()
        model = Metered(CachedLLM(llm, CacheStore(tmp_path / f"{folder}.sqlite"), ModelSettings("m"), "here"))
        return make_run(CASES, build=partial(Mortal, str(lives)), reader=model, folder=folder), llm

    (undisturbed, all_calls), (run, calls) = made("undisturbed"), made("killed")
    run_all([undisturbed])
    for life in "123":
        (lives / life).touch()
    run_all([run], executor=in_ray(address, 2, 4))
    assert not list(lives.iterdir()), "three workers were killed"
    whole, once = contents(run), contents(undisturbed)
    differing = {name for name in whole | once if whole.get(name) != once.get(name)}
    assert all(name.endswith("effort.jsonl") for name in differing), "it says what came from the cache"
    assert calls.calls == all_calls.calls


@integration
def test_a_full_disk_of_a_worker_ends_the_run_with_its_machine_and_keeps_what_is_done(
    make_run: Make, address: str
) -> None:
    run = make_run(CASES, build=partial(Full, "case-4"))
    with pytest.raises(RunError, match=rf"^on {socket.gethostname()} \(.*No space left.*run the same command again"):
        run_all([run], executor=in_ray(address, 1, 1))
    assert len(list(run.folder.glob("cases/*/case.json"))) == 4


@integration
def test_a_worker_with_other_source_is_refused_with_its_machine(
    make_run: Make, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "this_home", lambda: replace(this_home(), source="edited"))
    run = make_run(CASES)
    with pytest.raises(RunError, match=rf"worker on {socket.gethostname()} .* other source code of this project"):
        run_all([run], executor=in_ray(address, 1, 1))
    assert not list(run.folder.glob("cases/*"))


@integration
def test_a_memory_that_a_worker_cannot_import_ends_the_run(
    make_run: Make, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "own_modules", lambda modules: [])
    run = make_run(CASES, build=partial(Full, "nobody"))
    with pytest.raises(
        RunError, match=r"worker on .* cannot read what it is sent: .*No module named 'mortal_memories'"
    ):
        run_all([run], executor=in_ray(address, 1, 1))


@integration
def test_machines_may_join_a_cluster_and_leave_it_while_a_run_goes_on(
    make_run: Make, address: str, tmp_path: Path
) -> None:
    seen, undisturbed = tmp_path / "run" / "seen", make_run(CASES, build=partial(BM25, k=3), folder="undisturbed")
    seen.parent.mkdir()
    seen.touch()
    run_all([undisturbed])
    run = make_run(CASES, build=partial(Patient, str(seen)))
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(run_all, [run], executor=in_ray(address, 3, 3))
        wait_for_lines(seen, 2)  # the two cores that the cluster has
        with joined(address):
            wait_for_lines(seen, 3)  # a worker of the new machine, which is then gone with what it was doing
            worker = int(seen.read_text().split()[2])
            for process in (parent_of(worker), worker):
                os.kill(process, signal.SIGKILL)
        (seen.parent / "go").touch()
        running.result()
    names = {name for name in contents(run) if name.endswith(("predictions.jsonl", "items.jsonl"))}
    assert {name: contents(run)[name] for name in names} == {name: contents(undisturbed)[name] for name in names}
    assert len(seen.read_text().split()) == len(CASES) + 1, "one history was begun twice"


@contextmanager
def joined(address: str) -> Iterator[None]:
    """One more machine of a cluster, with one core; it is killed at the end."""
    flags = [f"--address={address}", "--block", "--num-cpus=1", "--node-ip-address=127.0.0.1"]
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", *flags]
    node = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def wait_for_lines(file: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(file.read_text().split()) < count:
        assert time.monotonic() < deadline, f"{count} workers were expected to begin"
        time.sleep(0.05)


# --- without one ----------------------------------------------------------------------------------------------------------


def test_an_address_without_a_cluster_is_one_clear_line(subtests: pytest.Subtests) -> None:
    (port,) = free_ports(1)
    cases = {
        f"127.0.0.1:{port}": rf"no Ray cluster answers at 127\.0\.0\.1:{port} .*refused.*ray start --head",
        f"ray://localhost:{port}": rf"no Ray cluster answers at ray://localhost:{port} ",
        "head": r"ray\.address=head is none of local, auto, host:port or ray://host:port",
        "http://head:6379": "is none of",
        "127.0.0.1:99999": "no Ray cluster answers",
    }
    for address, message in cases.items():
        with subtests.test(address), pytest.raises(RunError, match=message) as raised:
            check_reachable(address)
        assert "\n" not in str(raised.value)
    check_reachable("local")


def test_another_machine_is_not_connected_to_where_the_network_is_forbidden() -> None:
    forbid_network()
    with pytest.raises(RunError, match=r"network=false: refused to connect to 192\.0\.2\.77"):
        check_reachable("192.0.2.77:6379")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"executor=ray needs Ray.*\[ray\]"):
        connect("local", [])


def test_a_refused_connection_says_what_to_do(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    refused = ConnectionError("ray client connection timeout")
    cases = {
        "a token is missing": ("ray://head:10001", refused, "RAY_AUTH_MODE=token"),
        "from outside": ("head:6379", ConnectionError("no node here"), "ray://head:10001"),
        "versions": ("ray://head:10001", RuntimeError("Version mismatch: 2.1 and 2.2"), "install the same versions"),
    }
    for name, (address, error, remedy) in cases.items():
        with subtests.test(name):
            assert remedy in cluster._hint(address, error)
    assert cluster._hint("local", ConnectionError("the raylet died")) == ""  # no other machine is involved


def test_an_error_that_only_its_machine_can_mend_names_the_machine() -> None:
    worker: Any = SimpleNamespace(_home=SimpleNamespace(machine="node-7"))
    missing, full = OSError(errno.ENOENT, "no such file"), OSError(errno.ENOSPC, "no space left")
    assert cluster._Actor.located(worker, missing) is missing
    told = cluster._Actor.located(worker, full)
    assert isinstance(told, RunError)
    assert str(told).startswith("on node-7: [Errno 28] no space left; finished cells")


def test_differences_between_machines_are_named() -> None:
    here = Environment("here", {"Python": "3.11", "ray": "2.60.0", "numpy": "2.3"}, "source")
    assert here.difference(replace(here, machine="there")) == ""
    assert here.difference(Environment("there", {"Python": "3.12", "ray": "2.60.0"}, "other")) == (
        "Python 3.12 instead of 3.11, numpy unknown instead of 2.3, other source code of this project"
    )


def test_a_users_own_memory_is_sent_with_what_it_imports(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[Path]] = []
    monkeypatch.setattr(cluster, "connect", lambda address, modules: sent.append(modules))
    monkeypatch.setattr(cluster, "_Cluster", lambda address, workers: None)
    monkeypatch.setattr(cluster, "work_on", lambda *given: None)
    for build in (partial(Mortal, "lives"), partial(BM25)):
        run = make_run(CASES, build=build)
        cluster.in_ray("local", None, 8)([Build((run,), 0, 0)], lambda progress: None, ignore_answer)
    assert [[path.name for path in modules] for modules in sent] == [["mortal_memories.py"], []]


def test_executor_ray_is_a_setting_and_released_products_are_refused_there(make_run: Make) -> None:
    cfg = OmegaConf.create(
        {"logger": {"name": "none"}, "executor": "ray", "ray": {"address": "head:6379"}, "workers": 3, "threads": None}
    )
    chosen = executor_of(cfg, [make_run(CASES)])
    assert isinstance(chosen, partial)
    assert chosen.keywords == {"address": "head:6379", "workers": 3, "threads": 8}
    with pytest.raises(RunError, match="executor=threads"):
        executor_of(cfg, [make_run(CASES, build=partial(Released, "product"))])


STARTED = """
import os, subprocess, sys
from pathlib import Path
from eval.executors.cluster import connect
connect("local", [])
import ray

@ray.remote
def seen():
    return os.environ.get("SOME_API_KEY")

def listening():
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    by_socket = {line.split()[9]: line.split()[1] for lines in tables for line in lines if line.split()[3] == "0A"}
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            kept = os.readlink(path)[8:-1]
            mine = f"HOME={Path.home()}\\0".encode() in (path.parent.parent / "environ").read_bytes()  # no other test's Ray
            if mine and kept in by_socket and b"ray" in (path.parent.parent / "cmdline").read_bytes():
                yield by_socket[kept].split(":")[0]
        except OSError:
            continue

print(ray.get(seen.remote()), os.environ["SOME_API_KEY"], oct((Path.home() / ".ray/auth_token").stat().st_mode))
print(*sorted(set(listening())))
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same as an IPv6 address, and ::1, as /proc writes them."""


@integration
@pytest.mark.skipif(sys.platform != "linux", reason="looks for listening sockets in /proc")
def test_ray_on_this_machine_listens_on_loopback_alone_keeps_its_token_private_and_gives_workers_no_key(
    tmp_path: Path,
) -> None:
    home = {"HOME": str(tmp_path), "SOME_API_KEY": "sk-not-for-workers", "PYTHONPATH": str(Path.cwd())}
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0" * 64)  # as Ray leaves it to everybody
    run = subprocess.run(
        [sys.executable, "-c", STARTED], env={**os.environ, **home}, capture_output=True, text=True, timeout=180
    )
    assert run.stdout, run.stderr[-2000:]
    said, addresses = run.stdout.splitlines()[-2:]
    assert said == "None sk-not-for-workers 0o100600"
    assert set(addresses.split()) <= LOOPBACK
    assert addresses, "Ray listens somewhere"
