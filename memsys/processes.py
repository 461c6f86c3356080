"""Processes that this one starts: what they see of this one, their memory and its own, their end, and their folders."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from memsys.folders import Held, abandoned, alone, hold

CONFINE = Path(__file__).with_name("confine.py")
FILE_CAPABILITIES = (0, 1, 2, 3)
"""Rights of root over files: to change owners, and to read, write and own those of others."""
SET_DUMPABLE = 4
"""Number of prctl(2)."""
GRACE = 5.0
"""Seconds in which the keeper of a process has ended all that the process has started."""


def hide_this_process() -> None:
    """Close /proc/<pid>/environ, /proc/<pid>/mem and the like of this process to its user's other processes (Linux).

    What is closed as well: dumps of its memory, and debuggers that attach to it. Root's processes may look if they have the capability.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


def quiet_tracker() -> None:
    """Call before the first process of a pool. The process in which Python removes the semaphores of those that were killed warns about
    each, which would be the last line of every stop; it takes this process's options for warnings."""
    option = "ignore::UserWarning:multiprocessing.resource_tracker"
    if option not in sys.warnoptions:
        sys.warnoptions.append(option)


def kept(command: Sequence[str], *, capabilities: Sequence[int] | None = FILE_CAPABILITIES, **plan: Any) -> list[str]:
    """The command line of a command with a keeper (`memsys.confine`), which ends with this process and takes all that was started along.

    The thread that starts it must live as long as the command may (`spawned`). Elsewhere than on Linux it is the command itself.

    Args:
        capabilities: those that root's command keeps. Without them it cannot look into a process that has hidden itself.
        plan: namespaces of its own.
    """
    if sys.platform != "linux":
        return list(command)
    whole = {"parent": os.getpid(), "capabilities": capabilities, **plan}
    return [sys.executable, "-I", "-S", str(CONFINE), json.dumps(whole), *command]


def spawned(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
    """Start a process from a thread that lives as long as this process: on Linux a parent that a child watches for is a thread."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **more)

    return _spawner(os.getpid()).submit(start).result()


@lru_cache(maxsize=1)
def _spawner(pid: int) -> ThreadPoolExecutor:
    """The thread; a forked process has one of its own."""
    return ThreadPoolExecutor(1, f"spawn-{pid}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started. It leads a process group; its keeper, if it has one, ends those that have left it.

    A keeper that a busy machine does not let work in time ends last, because its descendants are known by it alone.
    """
    if process.poll() is None and sys.platform == "linux":
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            for each in list(_descendants(process.pid)):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(each, signal.SIGKILL)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


def resident_bytes() -> int:
    """The memory that this process occupies; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def megabytes(pid: int) -> float:
    """Memory of all descendants of a process, or the most that one of them has held if that is more; 0 where there is no /proc.

    Pages that a fork shares with its parent count twice.
    """
    now, most = 0.0, 0.0
    for each in _descendants(pid):
        try:
            lines = Path(f"/proc/{each}/status").read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:  # it has ended meanwhile
            continue
        sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
        now += int(sizes.get("RssAnon", "0 kB").split()[0]) / 1024
        now += int(sizes.get("RssShmem", "0 kB").split()[0]) / 1024
        most = max(most, int(sizes.get("VmHWM", "0 kB").split()[0]) / 1024)
    return max(now, most)


def _descendants(pid: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    waiting = children.get(pid, [])
    while waiting:
        each = waiting.pop()
        yield each
        waiting += children.get(each, [])


def last_words(said: IO[Any]) -> str:
    """The end of what a process has written to a file. It is read by its descriptor, since the process may have put a link or a pipe of the
    same name in its place; empty once it is closed."""
    if said.closed:
        return ""
    end = os.fstat(said.fileno()).st_size
    return os.pread(said.fileno(), 2000, max(0, end - 2000)).decode(errors="replace").strip()


def scratch_folder() -> Held:
    """A new folder for the files of a process, below one of this user in the folder for temporary files; the first also deletes those whose
    process was killed."""
    root = Path(tempfile.gettempdir()) / f"memsys-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    about = root.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():  # somebody else was there first
        root = Path(tempfile.mkdtemp(prefix="memsys-"))
    with alone(root):
        _tidied(root, os.getpid())
        return hold(root)


@lru_cache(maxsize=1)
def _tidied(root: Path, _: int) -> None:
    for folder in abandoned(root):
        remove(folder)


def let_go(held: Held) -> None:
    """Delete a folder of `scratch_folder`."""
    remove(held.path)
    held.handle.close()


def remove(folder: Path) -> None:
    """Delete a folder and what is in it, also folders in it that were closed to their owner."""

    def opened(_: Any, path: str, __: Any) -> None:
        parent = os.path.dirname(path)
        try:
            for each in (parent, path):
                if stat.S_ISDIR(os.lstat(each).st_mode):
                    os.chmod(each, 0o700)
            shutil.rmtree(path) if stat.S_ISDIR(os.lstat(path).st_mode) else os.unlink(path)
        except OSError:
            return

    shutil.rmtree(folder, onerror=opened)
