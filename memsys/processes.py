"""Child processes: their view of this process, memory use, termination, and folders."""

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
"""Seconds that the keeper of a process gets to end all processes that it has started."""


def hide_this_process() -> None:
    """Close /proc/<pid>/environ, /proc/<pid>/mem and the like of this process to its user's other processes (Linux).

    Memory dumps and debuggers are blocked as well. Root's processes may look if they have the capability.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


def quiet_tracker() -> None:
    """Call this before the first process of a pool. Python removes the semaphores of killed processes in a separate process. It warns
    about each, and the warnings would be the last lines of every stop. That process inherits this process's options for warnings."""
    option = "ignore::UserWarning:multiprocessing.resource_tracker"
    if option not in sys.warnoptions:
        sys.warnoptions.append(option)


def kept(command: Sequence[str], *, capabilities: Sequence[int] | None = FILE_CAPABILITIES, **plan: Any) -> list[str]:
    """The command line of a command under a keeper (`memsys.confine`). The keeper ends with this process, and ends all that was started.

    The thread that starts it must exist as long as the command may run (`spawned`). On systems other than Linux it is the command itself.

    Args:
        capabilities: the capabilities that root's command keeps. Without them it cannot inspect a process that has hidden itself.
        plan: the command's own namespaces.
    """
    if sys.platform != "linux":
        return list(command)
    whole = {"parent": os.getpid(), "capabilities": capabilities, **plan}
    return [sys.executable, "-I", "-S", str(CONFINE), json.dumps(whole), *command]


def spawned(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
    """Start a process from a thread that exists as long as this process: on Linux, a child watches its parent thread, not the process."""
    return _spawner(os.getpid()).submit(lambda: subprocess.Popen(command, **more)).result()


@lru_cache(maxsize=1)
def _spawner(pid: int) -> ThreadPoolExecutor:
    """The thread; a forked process has its own."""
    return ThreadPoolExecutor(1, f"spawn-{pid}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started. It leads a process group; its keeper, if any, ends the processes that have left the group.

    A keeper that does not finish in time on a busy machine is ended last, because only it knows its descendants.
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
    """The memory that this process occupies; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def megabytes(pid: int) -> float:
    """Memory of all descendants of a process, or the peak of a single one of them if that is more; 0 without /proc.

    Pages that a fork shares with its parent count twice.
    """
    now, most = 0.0, 0.0
    for each in _descendants(pid):
        try:
            lines = Path(f"/proc/{each}/status").read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:  # the process has ended meanwhile
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
    """The last part of a file that a process has written. It is read by its descriptor, because the process may have put a link or a pipe
    of the same name in its place; empty once the file is closed."""
    if said.closed:
        return ""
    end = os.fstat(said.fileno()).st_size
    return os.pread(said.fileno(), 2000, max(0, end - 2000)).decode(errors="replace").strip()


def scratch_folder() -> Held:
    """A new folder for the files of a process, below this user's folder for temporary files; the first call also deletes the folders of
    killed processes."""
    root = Path(tempfile.gettempdir()) / f"memsys-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    about = root.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():  # another user made the folder first
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
    """Delete a folder and its content, also subfolders without access rights for their owner."""

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
