"""A worker process seen from the harness: sends a step, waits for its reply, and says how the process ended if none comes."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from memsys.llm import stopping
from memsys.llm.secrets import redact
from memsys.products.surroundings import MEMORY_EXCEEDED

WORKER = Path(__file__).with_name("worker.py")
POLL = 0.25
"""Seconds between two looks at the clock while a reply is awaited."""
GRACE = 2.0
"""Seconds that a step may go on after one of its calls has failed for good."""
ENDS = {MEMORY_EXCEEDED: "it exceeded its memory limit"}


class WorkerError(RuntimeError):
    """A step of a product did not end as it should."""


class Crashed(WorkerError):
    """The process ended in the middle of a step."""


class Hung(WorkerError):
    """The step exceeded its time limit; the process was killed."""


class Raised(WorkerError):
    """The product raised an exception; the process goes on."""


class WorkerProcess:
    """One process with a scratch folder and a home of its own. Steps are taken one at a time by the caller."""

    def __init__(self, python: Path, adapter: Path) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="product-"))
        self.cpu = 0.0
        """CPU seconds of the process as of its last reply."""
        self.refused: dict[str, int] = {}
        """Connections that were refused, by address."""
        self.garbage = 0
        """Lines on the protocol's stream that are no replies."""
        self._number = 0
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        (self.scratch / "home").mkdir()
        self._said = (self.scratch / "stderr.txt").open("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            [str(python), str(WORKER), str(adapter)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=_environment(self.scratch),
            cwd=self.scratch,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C in the terminal is for the harness, which closes its workers
        )
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), name="worker", daemon=True).start()
        # A memory that nobody closes ends its process when it is forgotten.
        self._forgotten = weakref.finalize(self, _forget, self._process, self.scratch)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(
        self, step: str, given: Mapping[str, Any], seconds: float, failed: Callable[[], bool] = lambda: False
    ) -> Any:
        """Take a step and return its value.

        Args:
            seconds: time limit; beyond it the process is killed.
            failed: whether a model call of this step has failed for good. The step then ends soon, by itself or with the process.

        Raises:
            Crashed, Hung, Raised: it did not end as it should.
            Stopped: the user asked for a stop.
        """
        self._number += 1
        line = json.dumps({"n": self._number, "step": step, "given": dict(given)}) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError:
            raise Crashed(self._ended(step)) from None
        reply = self._awaited(step, seconds, failed)
        self.cpu, self.refused = reply.get("cpu", self.cpu), reply.get("refused", self.refused)
        if "error" in reply:
            raise Raised(redact(f"{step}: {reply.get('type')}: {reply['error']}")[:500])
        return reply.get("value")

    def _awaited(self, step: str, seconds: float, failed: Callable[[], bool]) -> dict[str, Any]:
        deadline, hopeless = time.monotonic() + seconds, None
        while True:
            stopping.check()
            try:
                line = self._lines.get(timeout=POLL)
            except queue.Empty:
                now = time.monotonic()
                if hopeless is None and failed():
                    hopeless = now
                if now > deadline or (hopeless is not None and now > hopeless + GRACE):
                    self.kill()
                    raise Hung(f"{step}: no reply within {seconds:g} s; killed. {self._tail()}") from None
                continue
            if line is None:
                raise Crashed(self._ended(step))
            if (reply := self._reply(line)) is not None:
                return reply

    def _reply(self, line: str) -> dict[str, Any] | None:
        """The reply in a line, if it is the one to the last step; other lines are counted and passed over."""
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if isinstance(reply, dict) and reply.get("n") == self._number:
            return reply
        self.garbage += 1
        return None

    def _ended(self, step: str) -> str:
        code = self._process.wait(timeout=10)
        how = ENDS.get(code) or (f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
        return f"{step}: the product's process ended ({how}). {self._tail()}"

    def _tail(self) -> str:
        """The end of what the product wrote to stderr."""
        self._said.flush()
        text = (self.scratch / "stderr.txt").read_text(encoding="utf-8", errors="replace")
        return redact(text)[-300:].strip()

    def kill(self) -> None:
        """End the process and whatever it has started, at once."""
        _kill(self._process)

    def close(self, seconds: float = 10.0) -> None:
        """Let the product close its files, then end the process and delete its folder."""
        try:
            if self._process.poll() is None:
                self.ask("close", {}, seconds)
        except (WorkerError, stopping.Stopped):
            pass  # nothing is lost: what was read is with us
        finally:
            self._said.close()
            self._forgotten()


def _read(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    stream.close()
    lines.put(None)


def _kill(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # the worker leads a group of its own
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


def _forget(process: subprocess.Popen[str], scratch: Path) -> None:
    """End a process and delete its folder."""
    if process.returncode is None:
        _kill(process)
    try:
        if process.stdin is not None:
            process.stdin.close()
    except OSError:  # the reader of the pipe is gone
        pass
    shutil.rmtree(scratch, ignore_errors=True)


def _environment(scratch: Path) -> dict[str, str]:
    """The variables that a product sees: no key of ours, its own home, one thread, a fixed hash seed."""
    home = str(scratch / "home")
    own = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "SYSTEMROOT") if name in os.environ}
    folders = dict.fromkeys(("HOME", "USERPROFILE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), home)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "NO_PROXY": "*", "PYTHONNOUSERSITE": "1"}
    return {**own, **folders, **threads, **offline, "TMPDIR": str(scratch), "TZ": "UTC", "PYTHONHASHSEED": "0"}
