"""A Ray cluster of this machine, its processes, and machines that Ray's autoscaler adds to it and removes."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

CORES = 2
STORE = 80_000_000
"""Bytes of shared memory of each machine."""
IDLE = 3.0
"""Seconds after which an idle machine is removed."""
ACTOR = "ray::ClusterWorker"
"""Ray's title of a worker process."""
RAYLET = "/raylet/raylet"
"""The program that runs on each machine of a cluster."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster of this machine."""

    address: str
    head: int
    """Process id of `ray start`, from which all its processes descend."""

    def workers(self) -> list[int]:
        """Process ids of the workers."""
        return [pid for pid in descendants(self.head) if _title(pid).startswith(ACTOR)]

    def machines(self) -> list[int]:
        """Process ids of the raylets; each machine has one raylet."""
        return [pid for pid in descendants(self.head) if RAYLET in _title(pid).partition(" ")[0]]

    def working_machines(self) -> list[list[int]]:
        """The machines that have workers, each as the process ids of its raylet and the raylet's descendants."""
        return [[pid, *descendants(pid)] for pid in sorted({parent_of(pid) for pid in self.workers()})]


def free_ports(count: int) -> list[int]:
    """Ports of this machine on which no process listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def cluster(cores: int = CORES, added: int = 0) -> Iterator[Cluster]:
    """Start a cluster with its own token; the token is put into the environment, so that commands of this process may connect.

    Its processes are ended by their ids, not with `ray stop`, which would end every Ray of this machine.

    Args:
        cores: cores of the head.
        added: machines with one core each that Ray's autoscaler may add when workers wait, and removes when they are idle.

    Raises:
        RuntimeError: the cluster does not start.
    """
    port, client_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # a short path: for sockets
        log, token = Path(folder, "log"), Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
        # A busy machine takes minutes to start the processes that Ray waits for, one minute each.
        ours |= dict.fromkeys(("RAY_gcs_server_request_timeout_seconds", "RAY_DASHBOARD_STARTUP_TIMEOUT_S"), "600")
        start = ["start", "--head", "--block", f"--num-cpus={cores}", f"--port={port}", f"--temp-dir={folder}"]
        more = [f"--ray-client-server-port={client_port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
        if added:
            Path(folder, "autoscaling.yaml").write_text(json.dumps(_autoscaling(port, added)))
            more.append(f"--autoscaling-config={folder}/autoscaling.yaml")
            ours |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        with patch.dict(os.environ, ours), log.open("w") as file:
            command = [sys.executable, "-m", "ray.scripts.scripts", *start, *more, f"--object-store-memory={STORE}"]
            head = subprocess.Popen(command, stdout=file, stderr=file)
            try:
                while "Ray runtime started" not in log.read_text():
                    if head.poll() is not None:
                        raise RuntimeError(f"Ray does not start: {log.read_text()}")
                    time.sleep(0.2)
                yield Cluster(f"127.0.0.1:{port}", head.pid)
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
    """Settings of Ray's autoscaler, with Ray's fake machines for tests: sets of processes on this machine."""
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


def descendants(pid: int) -> list[int]:
    """Ids of all descendants of a process."""
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
    """The parent of a process; the parent of a worker is its machine's raylet."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _title(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
