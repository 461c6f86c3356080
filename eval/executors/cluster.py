"""Cells on a Ray cluster: `executor=ray ray.address=…`.

Each worker is an actor with one core. This process keeps everything that must be in one place: the run folders, the cache, the endpoints
with their limits and spending cap. So no folder is shared, and an answer is committed before a worker gets it: a worker that dies costs
the calls that it had in flight, and its cells are worked on elsewhere. What runs have in common (settings, prompts) is stored in the
cluster once; the source of this project, and of a user's own memories, is sent there when the driver connects. Messages are packed as for
a worker process, not by Ray: arrays that Ray unpacks cannot be written to.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from eval.executors.driver import Died, Worker, work_on
from eval.executors.worker import Cells, Environment, Ready, Template, package_folder, prepare, this_home
from eval.files.provenance import PACKAGES, own_modules
from eval.files.store import RunError
from eval.running.failures import FATAL_ERRNOS
from eval.running.run import OnAnswer, OnProgress, layers
from eval.running.work import Build, Executor
from memsys.llm import network, stopping
from memsys.llm.secrets import redact


def packed(messages: Any) -> bytes:
    """Messages as bytes, for `ForkingPickler.loads` in a process of this run."""
    return bytes(ForkingPickler.dumps(messages))


def drained(queue: SimpleQueue[Any]) -> list[Any]:
    """The messages of a queue; waits until there is one."""
    messages = [queue.get()]
    try:
        while True:
            messages.append(queue.get_nowait())
    except Empty:
        return messages


class ClusterWorker:
    """The actor. It has two threads; the driver has at most one open call of `take` and one of `hear`, so neither waits for the other."""

    def __init__(self, slots: int, files: int, network_forbidden: bool) -> None:
        import ray

        import eval.executors.preloaded  # noqa: F401

        prepare(files, network_forbidden)
        self._outgoing: SimpleQueue[Any] = SimpleQueue()
        self._cells = Cells(self._outgoing.put, slots)
        self._outgoing.put(Ready(this_home(ray.util.get_node_ip_address())))

    def take(self, messages: bytes, *templates: bytes) -> None:
        """Handle messages of the driver, templates first."""
        for message in (*map(ForkingPickler.loads, templates), *ForkingPickler.loads(messages)):
            self._cells.take(message)

    def hear(self) -> bytes:
        """The messages for the driver since the last call; waits until there are some."""
        return packed(drained(self._outgoing))


REACH = 5.0
"""Seconds in which the machine of an address must take a connection."""
PATIENCE = 30.0
"""Seconds without any worker after which a message tells the user what the run waits for."""
LOST = 60.0
"""Seconds in which Ray has noticed that a machine is gone; by default it takes up to 20."""
RECOUNT = 5.0
"""Seconds after which the cluster's cores are counted again: machines may have joined."""
LOCAL_STORE = 1 << 28
"""Bytes of shared memory that Ray gets when it is started on this machine alone."""
NO_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0, Ray keeps to loopback, as it does on Windows and macOS."""
FORMS = "local, auto, host:port or ray://host:port"


def in_ray(address: str, workers: int | None, threads: int) -> Executor:
    """An executor with workers on a Ray cluster.

    Args:
        address: `local` starts Ray on this machine, `auto` takes the cluster that this machine belongs to.
        workers: number of workers, even if the cluster must grow for it; None is one for each core that the cluster has.
        threads: cells that are open at once over all workers where services are online; offline, each worker has one.
    """
    return partial(_run, address=address, workers=workers, threads=threads)


def _run(
    cells: Sequence[Build],
    on_progress: OnProgress,
    on_answer: OnAnswer,
    *,
    address: str,
    workers: int | None,
    threads: int,
) -> None:
    targets = {target for cell in cells for run in cell.runs for target, _ in layers(run.build)}
    connect(address, own_modules({target.__module__ for target in targets}))
    work_on(cells, on_progress, on_answer, _Cluster(address, workers), threads)


# --- connecting -----------------------------------------------------------------------------------------------------------

_connection: tuple[str, tuple[Path, ...]] | None = None
"""Address and user's modules of the connection that `connect` made."""


def connect(address: str, modules: Sequence[Path]) -> None:
    """Connect this process to a cluster and send it the source of this project and of `modules`; keep an existing connection.

    Raises:
        RunError: Ray is not installed, or there is no cluster at the address, or one that this process cannot work with.
    """
    global _connection
    try:
        import ray
    except ImportError as error:
        raise RunError("executor=ray needs Ray, the extra `ray`: pip install -c constraints.txt -e '.[ray]'") from error
    wanted = (address, tuple(modules))
    if ray.is_initialized():
        if _connection in (None, wanted):  # None: the caller's own connection
            return
        ray.shutdown()
    check_reachable(address)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    handlers = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    try:
        with tempfile.TemporaryDirectory() as empty, _for_this_user_alone() if address == "local" else nullcontext():
            ray.init(address, **_options(address, modules, empty))
    except Exception as error:
        raise RunError(f"no connection to Ray at {address}: {_last_line(error)}{_hint(address, error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray sets some of its own
                signal.signal(number, handler)
    _connection = wanted


@contextmanager
def _for_this_user_alone() -> Iterator[None]:
    """Protect Ray while it starts on this machine: it listens on loopback, only its user can read its token, its processes get no keys.

    Ray listens on an address that the network can reach, not on loopback, unless a variable says that this platform has no clusters.
    Workers need no keys: the models are called by this process.
    """
    from ray._private import ray_constants

    values = dict(os.environ)
    # A value is secret if it is a key in use, or its name looks like that of a key.
    secret = {name for name, value in values.items() if re.fullmatch(r"<[^<>]+>", redact(value)) is not None}
    clusters, mask = getattr(ray_constants, "ENABLE_RAY_CLUSTER", False), os.umask(0o077)
    token = Path.home() / ".ray" / "auth_token"
    if token.is_file() and token.stat().st_uid == os.getuid():  # written by Ray at another time
        token.chmod(0o600)
    for name in secret:
        if not name.startswith("RAY_"):
            del os.environ[name]
    os.environ[NO_CLUSTERS] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        os.environ.pop(NO_CLUSTERS, None)
        os.environ |= values
        os.umask(mask)


def _options(address: str, modules: Sequence[Path], empty: str) -> dict[str, Any]:
    """The options for starting Ray or connecting to it."""
    source = [str(path) for path in (*map(package_folder, PACKAGES), *modules)]
    options: dict[str, Any] = {
        # Without a working folder, a worker would first look for modules where this command was started.
        "runtime_env": {"py_modules": source, "working_dir": empty},
        # Messages of the cluster's processes are not printed: important ones come back as errors.
        "log_to_driver": False,
        "logging_level": "ERROR",
    }
    if address == "local":
        options |= {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "object_store_memory": LOCAL_STORE}
    return options


def check_reachable(address: str) -> None:
    """Check that a machine takes connections at an address; Ray itself would try for a minute.

    Raises:
        RunError: the machine takes no connections, or the address has none of the four forms.
    """
    if address in ("local", "auto"):
        return
    parts = re.fullmatch(r"(?:ray://)?\[?([\w.:-]+?)\]?:(\d{1,5})", address)
    if parts is None:
        raise RunError(f"ray.address={address} is none of {FORMS}")
    host, port = parts[1], int(parts[2])
    try:
        network.check(host)
        socket.create_connection((host, port), REACH).close()
    except (OSError, OverflowError) as error:
        raise RunError(f"no Ray cluster answers at {address} ({error}); start one with: ray start --head") from error


def _hint(address: str, error: Exception) -> str:
    text = f"{error} {error.__cause__}"
    no_token = address.startswith("ray://") and "timeout" in text and os.environ.get("RAY_AUTH_MODE") != "token"
    if no_token or "Unauthenticated" in text or "InvalidAuthToken" in text:
        return "; if it asks for a token, set RAY_AUTH_MODE=token here, and give this machine the one of the cluster (ray get-auth-token)"
    if "ersion mismatch" in text:
        return " (install the same versions on this machine and on the cluster)"
    inside = address != "local" and not address.startswith("ray://")
    if inside and (isinstance(error, ConnectionError) or "raylet" in text):
        return "; a machine outside of the cluster connects with ray.address=ray://head:10001"
    return ""


def _last_line(error: BaseException) -> str:
    """The last part of Ray's error message, which names the cause, on one line and without secrets."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return redact(lines[-1] if lines else type(error).__name__)[:300]


# --- workers --------------------------------------------------------------------------------------------------------------

_END = object()
"""Ends the thread that sends messages to a worker."""


class _Actor(Worker):
    """A worker on the cluster; it may have to wait for a free core there."""

    def __init__(self, cluster: _Cluster, slots: int, files: int) -> None:
        super().__init__(slots)
        self._cluster, self._home = cluster, Environment("a machine of the cluster", {}, "")
        self._actor = cluster.actor_class.remote(slots, files, network.forbidden())
        self._outgoing: SimpleQueue[Any] = SimpleQueue()
        self._misread: Exception | None = None
        threading.Thread(target=self._send_all, name="to worker", daemon=True).start()
        self.listen()

    def listen(self) -> None:
        """Request the worker's next messages."""
        self.heard = self._actor.hear.remote()

    def send(self, message: Any) -> None:
        if message is not None:  # the end; `kill` does that
            self._outgoing.put(message)

    def wait(self, seconds: float) -> None:
        pass

    def kill(self) -> None:
        import ray

        self._outgoing.put(_END)
        ray.kill(self._actor)

    def check(self, ready: Ready) -> None:
        assert ready.home is not None
        self._home = ready.home
        if difference := self._cluster.home.difference(ready.home):
            remedy = "install the same there: pip install -c constraints.txt -e '.[ray]'"
            raise RunError(f"the worker on {ready.home.machine} has {difference}; {remedy}")

    def located(self, error: BaseException) -> BaseException:
        if isinstance(error, OSError) and error.errno in FATAL_ERRNOS:
            kept = "finished cells and all answers of models are kept: run the same command again"
            return RunError(f"on {self._home.machine}: {error}; {kept}")
        return error

    def died(self, error: Exception) -> Died:
        """Return the message that the worker has died, with its machine."""
        if self._misread is not None:
            why = _last_line(self._misread)
            raise RunError(f"the worker on {self._home.machine} cannot read what it is sent: {why}")
        address = re.search(r"ip(?:=|: )([\w.:]+)", str(error))
        machine = f"the machine {address[1]}" if address and not self.ready else self._home.machine
        return Died(f"on {machine} ended: {_last_line(error)}")

    def _send_all(self) -> None:
        import ray

        try:
            while _END not in (messages := drained(self._outgoing)):
                templates = [self._cluster.stored(message) for message in messages if isinstance(message, Template)]
                others = [message for message in messages if not isinstance(message, Template)]
                ray.get(self._actor.take.remote(packed(others), *templates))
        except ray.exceptions.RayTaskError as error:
            self._misread = error
            ray.kill(self._actor)
        except (ray.exceptions.RayError, ConnectionError):
            return  # the worker is gone, which `hear` notices, too


class _Cluster:
    """The transport: it calls methods of the workers."""

    shares_disk = False
    tries = 5  # machines of a cluster come and go
    patience = LOST  # a worker may be placed on a machine that is gone

    def __init__(self, address: str, workers: int | None) -> None:
        import ray

        self.home = this_home()
        self.actor_class = ray.remote(num_cpus=1, max_concurrency=2, scheduling_strategy="SPREAD")(ClusterWorker)
        self._address, self._workers = address, workers
        self._cores, self._counted = 1, 0.0
        self._waiting_since: float | None = time.monotonic()
        self._stored: dict[int, Any] = {}
        self._storing = threading.Lock()

    def wanted(self) -> int:
        import ray

        if self._workers is None and time.monotonic() - self._counted > RECOUNT:
            self._cores, self._counted = max(1, int(ray.cluster_resources().get("CPU", 1))), time.monotonic()
        return self._workers or self._cores

    def start(self, slots: int, files: int) -> _Actor:
        return _Actor(self, slots, files)

    def stored(self, template: Template) -> Any:
        """The cluster's reference to a template; each template is stored there once."""
        import ray

        with self._storing:
            if template.number not in self._stored:
                self._stored[template.number] = ray.put(packed(template))
            return self._stored[template.number]

    def hear(self, workers: Sequence[_Actor], seconds: float) -> Iterator[tuple[_Actor, Any]]:
        import ray

        self._say_what_is_waited_for(workers)
        if not workers:
            time.sleep(seconds)
            return
        by_call = {worker.heard: worker for worker in workers}
        try:
            arrived, _ = ray.wait(list(by_call), timeout=seconds)
            arrived, _ = ray.wait(list(by_call), num_returns=len(by_call), timeout=0) if arrived else ([], [])
        except ConnectionError as error:
            lost = f"the connection to Ray at {self._address} is lost ({_last_line(error)})"
            raise RunError(f"{lost}; run the same command again: nothing that was paid for is lost") from error
        for call in arrived:
            worker = by_call[call]
            try:
                messages = ForkingPickler.loads(ray.get(call))
            except (ray.exceptions.RayError, ConnectionError) as error:
                yield worker, worker.died(error)
                continue
            worker.listen()
            yield from ((worker, message) for message in messages)

    def _say_what_is_waited_for(self, workers: Sequence[_Actor]) -> None:
        import ray

        if any(worker.ready for worker in workers):
            self._waiting_since = None
        elif self._waiting_since is not None and time.monotonic() - self._waiting_since > PATIENCE:
            self._waiting_since = None
            free, all_cores = ray.available_resources().get("CPU", 0), ray.cluster_resources().get("CPU", 0)
            cores = f"{all_cores:g} cores, {free:g} of them free"
            text = f"waiting for a free core of the Ray cluster at {self._address}; it has {cores}"
            print(text, file=sys.stderr, flush=True)
