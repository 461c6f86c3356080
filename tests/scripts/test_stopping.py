"""Ctrl-C and its kin, in real processes against the mock endpoint: nothing more is sent, what was paid for is kept, one resumes."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memsys.llm.stopping import SAID
from scripts.mock.endpoint import Mock, application, serving
from tests.rigs.campaign.trial import results

ROOT = Path(__file__).resolve().parents[2]
IN_FLIGHT = 8
"""Calls of a command that may be on their way to the mock when it says that it stops."""
RESUMES = r"stopped at \d+/\d+ \(\w+\)(, \d+/\d+ units written)?; the same command resumes"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")]


def as_from_a_terminal() -> None:
    """Signals as a terminal hands them on: a suite that runs in the background or under nohup ignores some of them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Command:
    """A command that runs against a mock."""

    def __init__(self, mock: Mock, arguments: list[str], folder: Path) -> None:
        self.mock, self._out, self._err = mock, folder / "out.txt", folder / "err.txt"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scripts", *arguments],
                cwd=ROOT,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=as_from_a_terminal,
            )

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Until something happened while the command runs."""
        while not happened():
            assert self.process.poll() is None, self.err
            time.sleep(0.02)

    def ended(self) -> int:
        return self.process.wait(timeout=120)

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def arrived(self) -> int:
        return sum(self.mock.arrivals.values())


@contextmanager
def started(folder: Path, mock: Mock, verb: str, *more: str) -> Iterator[Command]:
    folder.mkdir(exist_ok=True)
    with serving(application(mock)) as url:
        models = [f"models.{role}=mock" for role in ("memory", "reader", "judge", "embedder")]
        own = [
            "profile=smoke",
            "network=true",
            f"endpoint.base_url={url}",
            "endpoint.label=mock",
            f"endpoint.in_flight={IN_FLIGHT}",
            "endpoint.probe=false",  # the mock counts the run's own calls
        ]
        command = Command(mock, [verb, *own, *models, f"results={folder}", *more], folder)
        try:
            yield command
        finally:
            if command.process.poll() is None:
                os.killpg(command.process.pid, signal.SIGKILL)


def run_of(folder: Path, mock: Mock, memory: str) -> Any:
    return started(folder, mock, "run", f"memory={memory}", "dataset=locomo")


@dataclass(frozen=True)
class Whole:
    """A run that nobody stopped."""

    mock: Mock
    results: dict[str, bytes]

    @property
    def calls(self) -> int:
        return sum(self.mock.answered.values())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder, mock = tmp_path_factory.mktemp("undisturbed"), Mock()
    with run_of(folder, mock, "memtree") as command:
        assert command.ended() in (0, 1)  # the mock is no good judge
    return Whole(mock, results(folder))


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_first_signal_sends_nothing_more_awaits_what_is_under_way_and_says_so(
    tmp_path: Path, name: str, code: int
) -> None:
    mock = Mock(latency=0.1)
    with run_of(tmp_path, mock, "memtree") as command:
        command.wait_for(lambda: command.arrived >= 20)
        command.process.send_signal(getattr(signal, name))
        command.wait_for(lambda: SAID in command.err)
        before = command.arrived
        assert command.ended() == code
        assert command.arrived <= before + IN_FLIGHT
        said, last = command.err.strip().splitlines()
        assert said == SAID
        assert re.fullmatch(RESUMES, last)
        assert sum(mock.answered.values()) == command.arrived
    assert not list(tmp_path.glob("cache.sqlite-*")), "the one file is the cache"


def test_a_stop_from_the_terminal_with_worker_processes_says_these_two_lines_alone(tmp_path: Path) -> None:
    more = ["memory=memtree", "dataset=locomo", "executor=processes", "workers=2", "threads=8"]
    with started(tmp_path, Mock(latency=0.1), "run", *more) as command:
        command.wait_for(lambda: command.arrived >= 10)
        os.killpg(command.process.pid, signal.SIGINT)  # Ctrl-C reaches the workers and the keeper of semaphores, too
        assert command.ended() == 130
        said, last = command.err.strip().splitlines()
        assert said == SAID
        assert re.fullmatch(RESUMES, last)


@pytest.mark.integration
@pytest.mark.parametrize("share", [0.2, 0.95])
def test_a_stop_in_any_phase_resumes_to_the_same_bytes(tmp_path: Path, undisturbed: Whole, share: float) -> None:
    mock = Mock(latency=0.05)
    with run_of(tmp_path, mock, "memtree") as command:
        command.wait_for(lambda: command.arrived >= share * undisturbed.calls)
        command.process.send_signal(signal.SIGINT)
        assert command.ended() == 130
        assert "Traceback" not in command.err
        assert command.arrived <= share * undisturbed.calls + 3 * 8
    again = Mock()
    again.answered.update(mock.answered)
    with run_of(tmp_path, again, "memtree") as command:
        assert command.ended() in (0, 1)
    assert again.answered == undisturbed.mock.answered, "what was paid for is not asked for again"
    assert results(tmp_path) == undisturbed.results


def test_a_second_signal_quits_at_once_although_the_server_hangs(tmp_path: Path) -> None:
    with run_of(tmp_path, Mock(latency=300.0), "memtree") as command:
        command.wait_for(lambda: command.arrived >= 1)
        command.process.send_signal(signal.SIGINT)
        command.wait_for(lambda: SAID in command.err)
        time.sleep(0.8)  # sooner it would count as the same press
        command.process.send_signal(signal.SIGINT)
        assert command.ended() == 130
        assert command.err.strip().splitlines()[-1] == "stopped at once"


@pytest.mark.integration
def test_calls_to_a_server_that_hangs_are_given_up_after_a_few_seconds(tmp_path: Path) -> None:
    with run_of(tmp_path, Mock(latency=300.0), "memtree") as command:
        command.wait_for(lambda: command.arrived >= 1)
        command.process.send_signal(signal.SIGINT)
        assert command.ended() == 130
        assert re.search(r"\d+ calls? in flight took longer than 5 s and (was|were) abandoned; the same", command.err)
        assert "Traceback" not in command.err


def test_a_stop_while_the_command_starts_shows_no_traceback(tmp_path: Path) -> None:
    for pause in (0.3, 0.6, 1.0):
        with run_of(tmp_path / str(pause), Mock(latency=0.1), "bm25") as command:
            time.sleep(pause)
            command.process.send_signal(signal.SIGTERM)
            if command.ended() == -signal.SIGTERM:  # Python itself was not up yet
                continue
            assert command.ended() in (0, 1, 143)
            assert "Traceback" not in command.err


def test_a_signal_while_a_dataclass_is_made_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "making.py").write_text(
        "import sys\n"
        "from scripts.setup.exits import guarded\n"
        "def work():\n"  # dataclasses are made by an exec of a string, too
        "    exec('import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)')\n"
        "sys.exit(guarded(work))\n"
    )
    path = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    assert subprocess.run([sys.executable, "-m", "making"], env=path, check=False).returncode == 143


def test_a_signal_that_python_drops_is_raised_again(tmp_path: Path) -> None:
    (tmp_path / "dropping.py").write_text(
        "import os, signal, sys, time\n"
        "from scripts.setup.exits import guarded\n"
        "class Dying:\n"
        "    def __del__(self):\n"  # Python only prints what is raised in here
        "        os.kill(os.getpid(), signal.SIGTERM); time.sleep(1)\n"
        "def work():\n"
        "    Dying()\n"
        "    try: time.sleep(60)\n"
        "    finally: print('unwound')\n"  # the last resort, after ten seconds, unwinds nothing
        "sys.exit(guarded(work))\n"
    )
    path = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-m", "dropping"], env=path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (143, "unwound\n")
    assert "Traceback" not in done.stderr


@pytest.mark.integration
@pytest.mark.parametrize("module", ["sweep", "figures", "growth", "reproduce"])
def test_every_kind_of_experiment_stops(tmp_path: Path, module: str) -> None:
    more = {
        "sweep": ["sweep=memtree_threshold"],
        "figures": ["figure=segtreemem_f6"],
        "growth": ["memory=memtree", "dataset=locomo"],
        "reproduce": ["table=memtree_t5"],
    }[module]
    with started(tmp_path, Mock(latency=0.1), module, *more) as command:
        command.wait_for(lambda: command.arrived >= 5)
        command.process.send_signal(signal.SIGINT)
        command.wait_for(lambda: SAID in command.err)
        before = command.arrived
        assert command.ended() == 130
        assert command.arrived <= before + IN_FLIGHT
        assert "Traceback" not in command.err


@pytest.mark.integration
@pytest.mark.parametrize(("processes", "to"), [(1, "group"), (2, "group"), (2, "parent")])
def test_making_everything_stops_with_its_children(tmp_path: Path, processes: int, to: str) -> None:
    more = ["only=memtree_t", "only=timem_t", f"processes={processes}"]
    with started(tmp_path, Mock(latency=0.1), "reproduce-all", *more) as command:
        command.wait_for(lambda: command.arrived >= 10 * processes)
        send = os.killpg if to == "group" else os.kill
        send(command.process.pid, signal.SIGTERM)
        command.wait_for(lambda: SAID in command.err)
        time.sleep(0.3)  # until the children know
        before = command.arrived
        assert command.ended() == 143
        time.sleep(1.0)
        assert command.arrived <= before + processes * IN_FLIGHT
        assert "Traceback" not in command.err
        assert command.err.count(SAID) == 1


@pytest.mark.integration
def test_the_children_of_a_killed_command_stop_by_themselves(tmp_path: Path) -> None:
    more = ["only=memtree_t", "only=timem_t", "processes=2"]
    with started(tmp_path, Mock(latency=0.1), "reproduce-all", *more) as command:
        command.wait_for(lambda: command.arrived >= 20)
        command.process.kill()
        command.process.wait()
        time.sleep(1.0)
        before = command.arrived
        time.sleep(2.0)
        assert command.arrived == before


@pytest.mark.parametrize("quiet", [True, False])
def test_semaphores_of_killed_workers_are_removed_without_a_warning(quiet: bool) -> None:
    program = (
        "import multiprocessing\n"
        "from memsys.llm import stopping\n"
        "from memsys.processes import quiet_tracker\n"
        f"if {quiet}: quiet_tracker()\n"
        "lock = multiprocessing.get_context('forkserver').RLock()\n"  # tqdm has one
        "stopping._quit(130)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert ("leaked semaphore" in done.stderr) != quiet


def test_what_does_not_end_by_itself_is_ended_and_said() -> None:
    program = (
        "import os, signal, threading, time\n"
        "from memsys.llm import stopping\n"
        "from scripts.setup.exits import guarded\n"
        "stopping.GRACE = stopping.MARGIN = 0.2\n"
        "def hang():\n"
        "    try: os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
        "    finally: time.sleep(60)\n"  # as the run loop waits for its cells
        "guarded(hang)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    ended = "a step did not end by itself and was ended; run the same command to resume"
    assert (done.returncode, done.stderr.splitlines()) == (143, [SAID, ended])


def test_where_a_memory_hangs_is_said_when_it_is_ended(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import threading\n\ndef read():\n    threading.Event().wait(60)\n")
    program = (
        "import os, signal, sys, threading, time\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import mine\n"
        "from eval.running.pool import UrgentPool\n"
        "from memsys.llm import meter, stopping\n"
        "from scripts.setup.exits import guarded\n"
        "stopping.GRACE = stopping.MARGIN = 0.2\n"
        "def step(subject, does):\n"
        "    with meter.operation('read', 'mine-01/c', subject): does()\n"
        "pool = UrgentPool(2, 'question')\n"
        "stuck, ended = pool.submit(0, step, 'q1', mine.read), pool.submit(0, step, 'q0', int)\n"
        "def hang():\n"
        "    try: ended.result(); time.sleep(0.2); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
        "    finally: time.sleep(60)\n"
        "guarded(hang)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    ended = (
        "a step did not end by itself and was ended (read q1 of mine-01/c: mine.py, line 4, in read); "
        "run the same command to resume"
    )
    assert (done.returncode, done.stderr.splitlines()) == (143, [SAID, ended])


def test_a_signal_that_nohup_took_away_stays_away() -> None:
    program = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from scripts.setup.exits import guarded\n"
        "raise SystemExit(guarded(lambda: os.kill(os.getpid(), signal.SIGHUP) or 7))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 7


ENTRIES = [path for path in sorted((ROOT / "scripts").glob("*.py")) if '__name__ == "__main__"' in path.read_text()]


def test_every_entry_point_is_the_dispatcher_which_heeds_the_signals(subtests: pytest.Subtests) -> None:
    assert {path.stem for path in ENTRIES} == {"__main__", "run", "reproduce"}
    for path in ENTRIES:
        with subtests.test(path.stem):
            assert "sys.exit(main(" in ast.unparse(ast.parse(path.read_text()).body[-1])
    dispatch = ast.parse((ROOT / "scripts/command/__init__.py").read_text())
    (verb,) = (node for node in dispatch.body if isinstance(node, ast.FunctionDef) and node.name == "verb")
    returned = [ast.unparse(node) for node in ast.walk(verb) if isinstance(node, ast.Return)]
    assert all(
        each.startswith(("return guarded(", "return launch(")) for each in returned
    )  # launch begins with guarded
