"""What gets out of a product's process, with a sandbox and without, and what it leaves behind."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from data_loaders.schema import Question, Turn, Unit
from eval.files.run_folder import RunRecord
from memsys import processes
from memsys.embed import HashingEmbedder
from memsys.interface import with_settings
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.gateway.server import Gateway
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.products import sandbox
from memsys.products.process import AHEAD, Crashed, Hung, MalformedReply
from memsys.products.surroundings import Guard
from memsys.systems.released import Released
from scripts.tables.captions import waivers

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PROBER, LEAVER, TOY = (ROOT / "tests" / "products" / f"{name}.py" for name in ("prober", "leaver", "toy"))
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes, keepers and /proc are Linux's")
COUNTS = '{"stored": 1, "changed": 0, "deleted": 0, "held": 1}'
FILES = [f"{how} the {what}" for what in ("home", "results", "cache") for how in ("reading", "writing to")]
WITHOUT = {*FILES, "signal to the harness", "connection by ctypes"}
"""What gets through without a sandbox: it takes no network and no file from a product that wants to get out."""


def unit(text: str) -> Unit:
    return Unit("u1", (Turn("t1", "Mara", text),), "s1")


UNIT = unit(COUNTS)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    served = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(64), None, "live")
    yield served
    served.close()


@pytest.fixture
def made(gateway: Gateway) -> Iterator[Callable[..., Released]]:
    """Makes memories of an adapter, and closes them."""
    memories: list[Released] = []

    def make(adapter: Path, settings: dict[str, Any], **more: Any) -> Released:
        given = {"product": str(adapter), "settings": settings, "step_seconds": 60.0, **more}
        memories.append(with_settings(Released, given)(gateway, np.random.default_rng(0)))
        return memories[-1]

    yield make
    for memory in memories:
        memory.close()


class Outside:
    """What a product must not reach: files of the user, and servers that note what arrives."""

    def __init__(self, folder: Path) -> None:
        self.arrived: set[str] = set()
        self._ends = [
            self._served(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            self._served(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            self._served(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            self._served(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket")),
        ]
        files = {"home": ".netrc", "results": "predictions.jsonl", "cache": "cache.sqlite"}
        self._files = {name: folder / file for name, file in files.items()}
        for path in self._files.values():
            path.write_text("private")
        tcp, tcp6, udp, unix = (end.getsockname() for end in self._ends)
        self.targets: dict[str, Any] = {name: str(folder / file) for name, file in files.items()}
        self.targets |= {"tcp": tcp[1], "tcp6": tcp6[1], "udp": udp[1], "unix": unix, "variable": "OPENAI_API_KEY"}
        started = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
        self.targets |= {"pid": os.getpid(), "started": started}

    def _served(self, family: int, kind: int, address: Any) -> socket.socket:
        end = socket.socket(family, kind)
        end.bind(address)
        threading.Thread(target=self._note_all, args=(end, kind == socket.SOCK_STREAM), daemon=True).start()
        return end

    def _note_all(self, end: socket.socket, stream: bool) -> None:
        if stream:
            end.listen()
        try:
            while True:
                source = end.accept()[0] if stream else end
                self.arrived.add(source.recv(100).decode())
        except OSError:
            return

    def met(self) -> set[str]:
        """Probes whose traces are here."""
        time.sleep(0.2)  # what was sent has arrived
        changed = {f"writing to the {name}" for name, path in self._files.items() if path.read_text() != "private"}
        return self.arrived | changed

    def close(self) -> None:
        for end in self._ends:
            end.shutdown(socket.SHUT_RDWR) if end.type == socket.SOCK_STREAM else None
            end.close()


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-products")
    served = Outside(tmp_path)
    yield served
    served.close()


@LINUX
@pytest.mark.parametrize("kind", ["bubblewrap", "namespaces"])
def test_no_probe_gets_out_of_a_sandbox_even_without_a_guard(
    kind: sandbox.Kind, outside: Outside, tmp_path: Path
) -> None:
    if not sandbox.works(kind):
        pytest.skip(f"this system has no {kind}")
    python, folder = Path(sys.executable), tmp_path / "held"
    folder.mkdir()
    probing = [str(python), str(PROBER), json.dumps(outside.targets)]
    command = sandbox.confined(kind, folder, python, (PROBER,), probing)
    run = subprocess.run(command, capture_output=True, timeout=60, check=True, env={"PATH": os.environ["PATH"]})
    got = json.loads(run.stdout)
    assert (got, outside.met()) == ([], set())


@LINUX
@pytest.mark.parametrize("kind", ["bubblewrap", "namespaces"])
def test_nobody_is_root_in_a_sandbox_and_files_are_written_all_the_same(kind: sandbox.Kind, tmp_path: Path) -> None:
    if not sandbox.works(kind):
        pytest.skip(f"this system has no {kind}")
    asking = "import os, pathlib; pathlib.Path('own').touch(); print(os.geteuid(), os.getgid(), os.stat('own').st_uid)"
    python = Path(sys.executable)
    command = sandbox.confined(kind, tmp_path, python, (), [str(python), "-I", "-S", "-c", asking])
    assert subprocess.run(command, capture_output=True, timeout=60, check=True).stdout == b"1000 1000 1000\n"
    assert (tmp_path / "scratch" / "own").stat().st_uid == os.getuid()


def test_a_guard_lets_a_product_reach_unix_sockets_in_its_own_folder_alone(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "link").symlink_to(tmp_path)
    guard = Guard("127.0.0.1", 80, str(own))
    guard._watch("socket.connect", (None, f"{own}/server"))
    guard._watch("socket.connect", (None, os.fsencode(own / "server")))
    outside = [f"{tmp_path}/server", f"{own}/../server", f"{own}/link/server", f"{own}er/server", "\0server", ""]
    for address in (*outside, ("127.0.0.1", 81)):
        with pytest.raises(PermissionError, match="the gateway alone"):
            guard._watch("socket.connect", (None, address))
    assert sum(guard.refused.values()) == len(outside) + 1


@LINUX
def test_a_product_in_a_sandbox_gets_nothing_of_22_probes(made: Callable[..., Released], outside: Outside) -> None:
    if sandbox.kind() == "none":
        pytest.skip("this system has no sandbox: install bubblewrap")
    memory = made(PROBER, outside.targets)
    memory.write(UNIT)
    assert ([node.id for node in memory.nodes()], outside.met()) == ([], set())
    assert memory.report()["abilities"]["sandbox"] in ("bubblewrap", "namespaces")


@LINUX
def test_without_a_sandbox_files_and_native_code_get_through_and_the_report_says_that_there_was_none(
    made: Callable[..., Released], outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMSYS_SANDBOX", "off")
    memory = made(PROBER, outside.targets)
    memory.write(UNIT)
    got = {node.id for node in memory.nodes()}
    assert got | outside.met() == WITHOUT
    assert memory.report()["abilities"]["sandbox"] == "none"
    assert memory.report()["programs_refused"][sys.executable] == 2
    assert memory.report()["connections_refused"][f"127.0.0.1:{outside.targets['udp']}"] == 2


def test_a_sandbox_that_is_required_and_not_there_is_an_error_of_the_case(
    made: Callable[..., Released], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_best", lambda: "none")
    monkeypatch.setenv("MEMSYS_SANDBOX", "required")
    with pytest.raises(Exception, match="this system has no sandbox: install bubblewrap"):
        made(TOY, {}).write(UNIT)


# --- what is left behind ----------------------------------------------------------------------------------------------


def daemon_of(folder: Path) -> list[str]:
    """A command that nobody else runs, in this test or another."""
    return ["tail", "-f", "/dev/null", "--pid=1", f"--sleep-interval={600 + hash(folder) % 10**6}"]


def running(words: str, seconds: float = 0.0) -> list[int]:
    """Processes whose command line has these words; waits until there are none, or the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        lines = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines[int(path.parent.name)] = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
        left = [pid for pid, line in lines.items() if words in line and pid != os.getpid()]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.05)


MODES = pytest.mark.parametrize("mode", ["auto", "off"])


@LINUX
@MODES
def test_a_daemon_that_a_product_leaves_in_a_session_of_its_own_ends_with_the_case(
    made: Callable[..., Released], mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMSYS_SANDBOX", mode)
    daemon = daemon_of(tmp_path)
    memory = made(LEAVER, {"daemon": daemon})
    memory.write(UNIT)
    deadline = time.monotonic() + 20
    while not running(daemon[-1]):  # it may not have begun yet
        assert time.monotonic() < deadline
        time.sleep(0.01)
    memory.close()
    assert not running(daemon[-1])


@LINUX
@MODES
def test_a_daemon_ends_with_the_case_when_its_keeper_does_not_come_to_work(
    made: Callable[..., Released], mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMSYS_SANDBOX", mode)
    monkeypatch.setattr(processes, "GRACE", 0.2)
    daemon = daemon_of(tmp_path)
    memory = made(LEAVER, {"daemon": daemon})
    memory.write(UNIT)
    deadline = time.monotonic() + 20
    while not running(daemon[-1]):  # it may not have begun yet
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for keeper in running("confine.py"):
        if Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
            os.kill(keeper, signal.SIGSTOP)
    memory.close()
    assert not running(daemon[-1], 5.0)


@LINUX
@MODES
def test_a_process_that_forks_and_ends_for_ever_in_a_session_of_its_own_ends_with_the_case(
    made: Callable[..., Released], mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMSYS_SANDBOX", mode)
    name = f"comet-{hash(tmp_path)}"
    memory = made(LEAVER, {"comet": name})
    memory.write(UNIT)
    deadline = time.monotonic() + 20
    while not running(name) and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        memory.close()
        assert not any(running(name) for _ in range(20))
    except BaseException:
        for _ in range(1000):  # a comet that got away
            for pid in running(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        raise


@LINUX
@MODES
def test_a_product_that_dies_and_leaves_its_pipe_to_a_child_has_crashed_at_once(
    made: Callable[..., Released], mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMSYS_SANDBOX", mode)
    memory, start = made(LEAVER, {"daemon": daemon_of(tmp_path), "then": "die"}), time.monotonic()
    with pytest.raises(Crashed, match="exit code 3"):
        memory.write(UNIT)
    assert time.monotonic() - start < 30, "half of what a step may take"
    assert not running(daemon_of(tmp_path)[-1])


@LINUX
def test_memory_of_children_counts_against_the_limit(made: Callable[..., Released]) -> None:
    memory = made(LEAVER, {"then": "hoard in a child"}, memory_mb=120)
    with pytest.raises(Crashed, match="beyond its memory limit of 120 MB"):
        memory.write(UNIT)


@LINUX
def test_a_product_that_writes_without_end_fills_no_memory_of_the_harness(made: Callable[..., Released]) -> None:
    memory = made(LEAVER, {"then": "write without end"})
    memory.write(UNIT)
    process = memory._life._process
    assert process is not None
    deadline = time.monotonic() + 30
    while not process._lines.full() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    assert process._lines.qsize() == AHEAD
    process.kill()


@LINUX
@pytest.mark.timeout(60)
def test_the_time_limit_holds_for_a_product_that_reads_no_more(made: Callable[..., Released]) -> None:
    memory = made(LEAVER, {"then": "read no more"}, step_seconds=2.0)
    memory.write(UNIT)
    time.sleep(0.5)
    with pytest.raises(Hung, match="no reply within 2 s"):
        memory.write(unit(COUNTS + " " * (1 << 20)))


KILLS = int(os.environ.get("MEMSYS_KILLS", "3"))
HARNESS = """
import sys, json
import numpy as np
from memsys.embed import HashingEmbedder
from memsys.llm.gateway.server import Gateway
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.interface import with_settings
from memsys.systems.released import Released
from data_loaders.schema import Turn, Unit
gateway = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(64), None, "live")
settings = json.loads(sys.argv[2])
print(gateway.start(), flush=True)
memory = with_settings(Released, {"product": sys.argv[1], "settings": settings})(gateway, np.random.default_rng(0))
memory.write(Unit("u1", (Turn("t1", "Mara", "I planted 4 tomatoes."),), "s1"))
"""


@LINUX
@MODES
@pytest.mark.timeout(120 + 10 * KILLS)
def test_a_harness_that_is_killed_leaves_no_process_and_no_port_and_the_next_deletes_its_folder(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMSYS_SANDBOX", mode)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    daemon = daemon_of(tmp_path)
    settings, dice = json.dumps({"daemon": daemon, "then": "hold the interpreter"}), random.Random(mode)
    for number in range(KILLS):
        command = [sys.executable, "-c", HARNESS, str(LEAVER), settings]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as harness:
            assert harness.stdout is not None
            port = urlsplit(harness.stdout.readline().strip()).port
            deadline = time.monotonic() + (
                60 if number % 2 == 0 else dice.uniform(0, 1)
            )  # in a step, or while it starts
            while not running(daemon[-1]) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert number % 2 or running(str(LEAVER))
            harness.kill()
        assert not running(daemon[-1], 10)
        assert not running(str(tmp_path), 10)
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port or 0)) == errno.ECONNREFUSED
    print(f"{KILLS} kills ({mode}): no process, no port")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    processes._tidied.cache_clear()
    held = processes.scratch_folder()
    assert [path for path in held.path.parent.iterdir() if path.is_dir()] == [held.path]
    assert [*tmp_path.iterdir()] == [held.path.parent]
    processes.let_go(held)


def test_a_folder_that_a_product_closed_to_its_owner_is_deleted_too(tmp_path: Path) -> None:
    inner = tmp_path / "scratch" / "closed"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0)
    processes.remove(tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


# --- what it says -----------------------------------------------------------------------------------------------------


def test_counts_that_nobody_can_mean_are_errors_of_the_case(made: Callable[..., Released]) -> None:
    memory = made(LEAVER, {})
    for counts in ({"stored": 1e300}, {"held": -1}, {"stored": "7"}, {"stored": 0.5}, {"stored": True}, [1], "many"):
        with pytest.raises(MalformedReply, match=r"write: (stored|held|expected counts)"):
            memory.write(unit(json.dumps(counts)))
    assert memory.report()["counts"].get("stored", 0) == 0


def test_items_without_text_or_score_are_errors_of_the_question_and_half_an_emoji_is_replaced(
    made: Callable[..., Released],
) -> None:
    memory = made(LEAVER, {})
    memory.write(UNIT)
    scores = ({"id": "i", "text": "t", "score": score} for score in ("high", 10**400, float("inf"), float("nan")))
    for items in ("seven", [7], [{"id": "i"}], *([each] for each in scores)):
        with pytest.raises(MalformedReply, match="read: expected"):
            memory.read(Question("q", json.dumps(items)))
    texts = ["cut \ud83d here", None, {"said": "caf\u00e9", "by": None}]
    items = memory.read(Question("q", json.dumps([{"id": "i", "text": text} for text in texts]))).items
    assert [item.text for item in items] == ["cut \ufffd here", "", '{"said":"caf\u00e9","by":null}']


def test_forged_replies_are_errors_of_the_step(made: Callable[..., Released], monkeypatch: pytest.MonkeyPatch) -> None:
    memory = made(LEAVER, {})
    memory.write(UNIT)
    process = memory._life._process
    assert process is not None
    genuine = process._reply
    for forged in ({"cpu": "much"}, {"cpu": 1e300}, {"cpu": True}, {"refused": [1]}, {"refused": {"a": "b"}}):
        monkeypatch.setattr(process, "_reply", lambda line, forged=forged: {**(genuine(line) or {}), **forged})
        with pytest.raises(MalformedReply, match="expected"):
            memory.read(Question("q", "[]"))


@LINUX
def test_the_harness_is_closed_to_other_processes_of_its_user_while_products_run(made: Callable[..., Released]) -> None:
    made(TOY, {"fault": ""}).write(UNIT)
    import ctypes

    assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0, "PR_GET_DUMPABLE"


@pytest.mark.parametrize(("kind", "said"), [("none", True), ("bubblewrap", False)])
def test_the_caption_says_which_products_had_no_sandbox(kind: str, said: bool, tmp_path: Path) -> None:
    case = tmp_path / "cases" / "c1" / "case.json"
    case.parent.mkdir(parents=True)
    case.write_text(json.dumps({"case_id": "c1", "memory": {"abilities": {"sandbox": kind}}}) + "\n")
    run = SimpleNamespace(name="released_toy", record=RunRecord(waived={"a promise": "a reason"}), folder=tmp_path)
    assert any(line.startswith("NO SANDBOX: released_toy") for line in waivers([run])) is said  # type: ignore[list-item]


def test_bubblewrap_gets_the_mounts_in_order_and_may_write_only_where_they_say_so(tmp_path: Path) -> None:
    relative, absolute, scratch = (str(tmp_path / name) for name in ("relative", "absolute", "scratch"))
    os.symlink("usr/lib", relative)
    os.symlink("/usr/lib", absolute)
    binds = [("/usr", "/usr", False), (relative, "/lib", False), (absolute, "/lib64", False), (scratch, scratch, True)]
    options = sandbox._bubblewrap(binds)
    start = options.index("--dev") + 2
    assert {"--unshare-user", "--unshare-all", "--die-with-parent"} < set(options[:start])
    assert options[options.index("--cap-drop") + 1] == "ALL"
    assert options[start:] == [
        *("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--ro-bind", absolute, "/lib64"),
        *("--bind", scratch, scratch, "--remount-ro", "/", "--chdir", scratch, "--"),
    ]
