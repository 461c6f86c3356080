"""A table on a Ray cluster whose workers and driver are killed at random moments, and what each kill cost, call by call.

A call is finished once its answer is committed in the cache. No finished call may be made again. A killed driver may repeat the calls that
it had in flight; a killed worker repeats none, because its calls are the driver's. The cluster outlives the drivers, as a real one does.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from memsys.jsons import canonical
from scripts.campaign.targets import Command
from scripts.campaign.trial import IN_FLIGHT, KEY_ENV, PATIENCE, Ended, Outcome, differing, holding_key
from scripts.campaign.trial import results as left_by
from scripts.mock.endpoint import Mock, application, serving

ROWS = ("memtree", "segtree_td", "naive_rag")
"""Rows of the table: two that call models while they build, and one that only embeds."""
CORES = 2
LATENCY = 0.1
"""Seconds of a reply."""
A_RUN = 4
"""Most kills of workers in one run: a cell that loses five counts as failed (`eval.executors.cluster`)."""
LAST = 0.95
"""The last moment of a kill, as a share of the calls; after it a run might end first."""
BY_CLOCK = 0.25
"""Share of the kills whose moment is drawn from the seconds of a start, so that they also meet drivers and workers that are starting."""
STORE = 80_000_000
"""Bytes of shared memory of each machine."""
IDLE = 3.0
"""Seconds after which a machine that has nothing to do is removed."""
START = 10.0
"""Seconds of a start."""
LEAVING = 30.0
"""Seconds in which workers, and the machines that were added for them, are gone when the driver has ended."""
MOST_SECONDS = 300.0
"""Seconds after which a start of the command counts as hanging."""
CACHE = "cache.sqlite"
MODEL = "mock"
REPLY = re.compile(r"mock (?:answer )?([0-9a-f]{8})")
"""What the mock endpoint says of the request that it answers: the beginning of its hash."""
ACTOR = "ray::ClusterWorker"
"""What Ray calls the process of a worker."""
RAYLET = "/raylet/raylet"
WORKER, DRIVER, MACHINE = "worker", "driver", "machine"
Say = Callable[[str], None]


def say_to_stderr(line: str) -> None:
    """Print a line at once."""
    print(line, file=sys.stderr, flush=True)


# --- the cluster ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster of this machine."""

    address: str
    client_address: str
    head: int
    """Process id of `ray start`, from which all its processes descend."""

    def workers(self) -> list[int]:
        """Process ids of the workers."""
        return [pid for pid in descendants(self.head) if _title(pid).startswith(ACTOR)]

    def machines(self) -> list[int]:
        """Process ids of the raylets, of which each machine has one."""
        return [pid for pid in descendants(self.head) if RAYLET in _title(pid).partition(" ")[0]]

    def victims(self, kind: str) -> list[list[int]]:
        """What may be killed: workers, or machines with all that runs there; only machines that have workers."""
        if kind == WORKER:
            return [[pid] for pid in self.workers()]
        return [[pid, *descendants(pid)] for pid in sorted({parent_of(pid) for pid in self.workers()})]


def free_ports(count: int) -> list[int]:
    """Ports of this machine on which nobody listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def cluster(cores: int = CORES, added: int = 0) -> Iterator[Cluster]:
    """A cluster with a token of its own, which stands in the environment, so that commands of this process may connect.

    Its processes are ended by their ids, not with `ray stop`, which would end every Ray of this machine.

    Args:
        cores: of the head.
        added: machines with one core each that Ray's autoscaler may add when workers wait, and removes when they have nothing to do.

    Raises:
        RuntimeError: it does not start.
    """
    port, client_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # a short path: for sockets
        log, token = Path(folder, "log"), Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
        start = ["start", "--head", "--block", f"--num-cpus={cores}", f"--port={port}", f"--temp-dir={folder}"]
        more = [f"--ray-client-server-port={client_port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
        if added:
            Path(folder, "autoscaling.yaml").write_text(json.dumps(_autoscaling(port, added)))
            more.append(f"--autoscaling-config={folder}/autoscaling.yaml")
            ours |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        with _environment(ours), log.open("w") as file:
            command = [sys.executable, "-m", "ray.scripts.scripts", *start, *more, f"--object-store-memory={STORE}"]
            head = subprocess.Popen(command, stdout=file, stderr=file)
            try:
                while "Ray runtime started" not in log.read_text():
                    if head.poll() is not None:
                        raise RuntimeError(f"Ray does not start: {log.read_text()}")
                    time.sleep(0.2)
                yield Cluster(f"127.0.0.1:{port}", f"ray://127.0.0.1:{client_port}", head.pid)
            finally:
                processes = descendants(head.pid)
                head.terminate()
                with suppress(subprocess.TimeoutExpired):
                    head.wait(30)
                head.kill()
                head.wait()
                for pid in processes:
                    if folder in _title(pid) or _title(pid).startswith("ray::"):  # still the same process
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)


def _autoscaling(port: int, added: int) -> dict[str, Any]:
    """Settings of Ray's autoscaler, with the machines that Ray has for tests: sets of processes on this one."""
    node_types = {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "added": {
            "resources": {"CPU": 1, "object_store_memory": STORE},
            "node_config": {},
            "min_workers": 0,
            "max_workers": added,
        },
    }
    lists = ["initialization_commands", "setup_commands", "cluster_synced_files"]
    lists += ["head_setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands"]
    unused: dict[str, Any] = {name: {} for name in ("auth", "docker", "file_mounts")} | {name: [] for name in lists}
    own = {"disable_node_updaters": True, "disable_launch_config_check": True, "use_node_id_as_ip": True}
    return {
        "cluster_name": "autoscaling",
        "max_workers": added,
        "idle_timeout_minutes": IDLE / 60,
        "provider": {"type": "fake_multinode", "gcs_address": f"127.0.0.1:{port}", **own},
        "head_node_type": "ray.head.default",
        "available_node_types": node_types,
        **unused,
    }


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def descendants(pid: int) -> list[int]:
    """Ids of all processes that a process has started, and those have started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            children.setdefault(parent_of(int(folder.name)), []).append(int(folder.name))
    found, waiting = list[int](), [pid]
    while waiting:
        new = children.get(waiting.pop(), [])
        found += new
        waiting += new
    return found


def parent_of(pid: int) -> int:
    """The process that started a process: of a worker, its machine's raylet."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _title(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


# --- calls ----------------------------------------------------------------------------------------------------------------

Calls = Counter[str]
"""How often each was made: chat completions by the beginning of their request's hash, embeddings by text."""


class Counting(Mock):
    """The mock endpoint; it remembers what each call that it answered asked for."""

    def __init__(self, latency: float = 0.0) -> None:
        super().__init__(latency)
        self.log: list[tuple[str, ...]] = []

    async def handle(self, request: Any) -> Any:
        response = await super().handle(request)
        body = await request.read()
        texts = json.loads(body).get("input")
        self.log.append(tuple(map(str, texts)) if texts is not None else (sha256(body).hexdigest()[:8],))
        return response

    def in_flight(self) -> int:
        """Calls that have arrived and are not answered."""
        return sum(self.arrivals.values()) - len(self.log)


def made(calls: Sequence[tuple[str, ...]]) -> Calls:
    """What calls asked for, counted."""
    return Counter(asked for call in calls for asked in call)


def committed(cache: Path, texts: Collection[str]) -> Calls:
    """What a cache file holds: completions, and the vectors of these texts. A copy of it is opened: the next run has to recover it itself.

    Raises:
        ValueError: it holds something that this endpoint did not say.
    """
    if not cache.is_file():
        return Counter()
    with tempfile.TemporaryDirectory() as folder:
        for path in cache.parent.glob(f"{cache.name}*"):
            shutil.copy(path, folder)
        with closing(sqlite3.connect(Path(folder, cache.name))) as file:
            rows = file.execute("SELECT completion FROM answers UNION ALL SELECT completion FROM outcomes").fetchall()
            vectors = {key for (key,) in file.execute("SELECT key FROM vectors")}
    found = [REPLY.search(json.loads(completion)["text"]) for (completion,) in rows]
    by_key = {sha256(canonical(["embedding", MODEL, MODEL, False, text])).digest(): text for text in texts}
    if None in found or vectors - by_key.keys():
        raise ValueError(f"{cache} holds an answer of another endpoint")
    return Counter([reply[1] for reply in found if reply]) + Counter(by_key[key] for key in vectors)


@dataclass(frozen=True, slots=True)
class Life:
    """What one start of the command did, up to its end or its kill."""

    calls: int
    again: int
    """Calls, and texts of embedding calls, that it made although all their answers were committed before it began."""
    lost: int
    """Calls that were answered and not committed."""


def life(calls: Sequence[tuple[str, ...]], whole: Calls, before: Calls, after: Calls) -> Life:
    """What one start did.

    Args:
        calls: those that were answered.
        whole: what an undisturbed run makes, some requests more than once.
        before: what was committed when it began.
        after: what was committed when it had ended.
    """
    asked, new = made(calls), after - before
    again = sum(max(0, count - (whole[name] - before[name])) for name, count in asked.items())
    lost = 0
    for call in reversed(calls):  # of several for the same, the last are lost
        missing = [name for name in call if asked[name] > new[name]]
        lost += bool(missing)
        asked.subtract(missing)
    return Life(len(calls), again, lost)


# --- runs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill that is to come: when a share of the requests is answered, or some seconds after the start or the kill before it."""

    kind: str
    share: float = 0.0
    seconds: float | None = None


def command(url: str, results: Path, rows: Sequence[str], executor: str, address: str = "local") -> Command:
    """The command of the table, under way."""
    models = [f"models.{role}={MODEL}" for role in ("memory", "reader", "judge", "embedder")]
    ends = [
        f"endpoint.base_url={url}",
        f"endpoint.label={MODEL}",
        f"endpoint.key_env={KEY_ENV}",
        "endpoint.probe=false",
    ]
    cut = ["table=local", f"only=[{','.join(rows)}]", "profile=smoke", "yes=true", f"endpoint.in_flight={IN_FLIGHT}"]
    where = [f"results='{results}'", f"executor={executor}", f"ray.address={address}", f"workers={CORES}"]
    return Command([*cut, *models, *ends, *where], "scripts.reproduce")


class Table:
    """Runs of one table that are disturbed on a cluster, beside an undisturbed one in threads."""

    def __init__(self, folder: Path, on: Cluster, rows: Sequence[str], latency: float, say: Say) -> None:
        self.outcome, self._say = Outcome("ray"), say
        self._folder, self._cluster, self._rows, self._latency = folder, on, rows, latency
        self._runs, mock = 0, Counting()
        with serving(application(mock)) as url:
            ended = command(url, folder / "undisturbed", rows, "threads").ended()
        self._texts = {text for call in mock.log for text in call}
        self._whole, self._requests = committed(folder / "undisturbed" / CACHE, self._texts), len(mock.answered)
        if ended.code or self._whole != made(mock.log):
            raise RuntimeError(f"undisturbed: exit code {ended.code}, {ended.err[-500:]}")
        say(f"undisturbed, in threads: {len(mock.log):,} calls for {self._whole.total():,} answers and vectors")

    def run(self, kinds: Sequence[str], dice: random.Random) -> int:
        """Run the table and kill at random moments; after each kill of the driver, start the same command again, until it ends.

        Returns:
            How many of the kills were done before it ended.
        """
        self._runs += 1
        results, mock = self._folder / f"killed-{self._runs}", Counting(self._latency)
        waiting, before, lost = _with_moments(kinds, dice), Calls(), 0
        self._say(f"run {self._runs}, {len(kinds)} kills, ray.address={self._cluster.address}")
        with serving(application(mock)) as url:
            while True:
                begun, driver = len(mock.log), command(url, results, self._rows, "ray", self._cluster.address)
                killed = self._disturb(driver, waiting, mock, dice)
                ended = driver.ended(MOST_SECONDS)
                while mock.in_flight():  # the endpoint answers also what nobody waits for any more
                    time.sleep(0.05)
                after = committed(results / CACHE, self._texts)
                this = life(mock.log[begun:], self._whole, before, after)
                before, lost = after, lost + this.lost
                self._judge(this, killed, ended, results)
                if not killed:
                    break
        done = len(kinds) - len(waiting)
        self._say(
            f"run {self._runs} ended with exit code {ended.code} after {done} kills: {len(mock.log):,} calls answered, "
            f"{before.total():,} answers and vectors committed; {lost} calls in flight were made again"
        )
        return done

    def _disturb(self, driver: Command, waiting: list[Kill], mock: Counting, dice: random.Random) -> bool:
        """Do the kills of one life of the driver; returns whether it was killed itself."""
        begun, deadline = sum(mock.arrivals.values()), time.monotonic() + MOST_SECONDS
        clock = time.monotonic()
        while waiting and driver.poll() is None:
            kill = waiting[0]
            if time.monotonic() > deadline:
                driver.ended(0.0)  # raises
            if kill.seconds is None:
                is_time = sum(mock.arrivals.values()) > begun and len(mock.answered) >= kill.share * self._requests
            else:
                is_time = time.monotonic() > clock + kill.seconds
            victims = self._cluster.victims(kill.kind) if is_time and kill.kind != DRIVER else []
            if not is_time or (kill.kind != DRIVER and not victims):
                time.sleep(0.01)
                continue
            if kill.seconds is None:
                time.sleep(dice.uniform(0, self._latency))
            waiting.pop(0)
            self._note(kill, mock)
            if kill.kind == DRIVER:
                driver.send_signal(signal.SIGKILL)
                return driver.poll(PATIENCE) == -signal.SIGKILL
            for pid in dice.choice(victims):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            clock = time.monotonic()
        return False

    def _note(self, kill: Kill, mock: Counting) -> None:
        self.outcome.tried[f"{kill.kind} killed"] += 1
        number, how = self.outcome.tried[f"{kill.kind} killed"], "calls" if kill.seconds is None else "clock"
        answered, workers, machines = (
            len(mock.answered) / self._requests,
            self._cluster.workers(),
            self._cluster.machines(),
        )
        self._say(
            f"  {kill.kind} killed, no. {number}, by the {how}: {answered:.0%} of the requests answered, {mock.in_flight()} in flight; "
            f"{len(workers)} workers, {len(machines)} machines"
        )

    def _judge(self, this: Life, killed: bool, ended: Ended, results: Path) -> None:
        """Hold one life of the driver to the promises."""
        self._say(
            f"    this start of the command: {this.calls} calls answered; finished calls repeated {this.again}; "
            f"answered and not committed {this.lost}"
        )
        self.outcome.tried["calls in flight made again"] += this.lost
        self.outcome.tried["finished calls repeated"] += this.again
        broken = list(holding_key(results))
        if this.again:
            broken.append(f"{this.again} finished calls were made again")
        if this.lost > (IN_FLIGHT if killed else 0):
            broken.append(f"{this.lost} answered calls were lost, at most {IN_FLIGHT if killed else 0} may be")
        if not killed:
            if ended.code:
                broken.append(f"exit code {ended.code}: {ended.err[-500:]}")
            if differs := differing(left_by(results), left_by(self._folder / "undisturbed")):
                broken.append(f"{differs[:300]} differ from an undisturbed run")
            deadline = time.monotonic() + LEAVING
            while (left := self._left()) and time.monotonic() < deadline:
                time.sleep(0.1)
            broken += left
        for defect in broken:
            self._say(f"    DEFECT: {defect}")
        self.outcome.defects += [f"ray, run {self._runs}: {defect}" for defect in broken]

    def _left(self) -> list[str]:
        """What a run that has ended must not leave on the cluster."""
        workers, machines = len(self._cluster.workers()), len(self._cluster.machines()) - 1
        return [f"{workers} workers outlive their driver"] * (workers > 0) + [f"{machines} machines stay"] * (
            machines > 0
        )


def _with_moments(kinds: Sequence[str], dice: random.Random) -> list[Kill]:
    """Kills in the order of their moments, which are drawn; some are drawn by the clock, so that they also meet what is starting."""
    by_clock = [dice.random() < BY_CLOCK for _ in kinds]
    shares = iter(sorted(dice.uniform(0, LAST) for clock in by_clock if not clock))
    return [
        Kill(kind, seconds=dice.uniform(0, START)) if clock else Kill(kind, share=next(shares))
        for kind, clock in zip(kinds, by_clock, strict=True)
    ]


def kill_on_ray(
    kills: Sequence[tuple[str, int]],
    folder: Path,
    *,
    seed: int = 0,
    added: int = 0,
    rows: Sequence[str] = ROWS,
    latency: float = LATENCY,
    say: Say = say_to_stderr,
) -> Outcome:
    """Do so many kills of each kind, at seeded random moments, over as many runs as that needs.

    Args:
        added: machines that the cluster's autoscaler may add; its head has no core then. 0 is a cluster of one machine.
    """
    dice = random.Random(f"{seed} ray")
    with cluster(0 if added else CORES, added) as started:
        table = Table(folder, started, rows, latency, say)
        for kind, left in kills:
            while left > 0:
                left -= table.run([kind] * (left if kind == DRIVER else min(left, A_RUN)), dice)
    return table.outcome
