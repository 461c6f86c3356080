"""Folders and locks on this machine: the user's cache, and the files of running processes, as opposed to those of killed processes.

A lock file may have come with another person's results, so it is opened without following a link and without emptying it. On network
file systems the locks (`flock`) hold between the processes of one machine; between machines that depends on the server.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HELD = ".held"
"""The file whose lock shows that a folder's process is running. The system releases the lock however the process ends."""
NETWORK = frozenset("nfs nfs4 cifs smb3 smbfs ncpfs afs ceph glusterfs lustre beegfs gpfs 9p fuse.sshfs".split())
"""Types of file systems that several machines may share."""


def cache_folder() -> Path:
    """Our folder in the user's cache; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memsys-bench"


def open_lock(path: Path) -> int:
    """A descriptor of a lock file. The file is created if it is missing; its content stays unchanged.

    Raises:
        OSError: the path is a link, a pipe or anything else that is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise _no_lock(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_lock(path)
    return descriptor


def _no_lock(path: Path) -> OSError:
    return OSError(errno.ELOOP, "a lock must be a plain file", str(path))


@contextmanager
def locked_file(path: Path, how: int) -> Iterator[None]:
    """Hold a lock file with `how` (`fcntl.LOCK_EX`, `LOCK_SH`; add `LOCK_NB` in order not to wait).

    Raises:
        BlockingIOError: another process holds it, and `how` does not wait.
        OSError: the path is not a regular file.
    """
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def alone(folder: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock a folder against other processes; wait while another process holds it.

    Args:
        on_wait: called before the wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock(folder / ".lock")
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Held:
    """A file or folder of this process, locked while this object exists."""

    path: Path
    handle: IO[bytes]


def hold(root: Path) -> Held:
    """A new folder below `root`, locked by this process. `root` must be locked."""
    path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
    return Held(path, hold_file(path / HELD).handle)


def abandoned(root: Path) -> list[Path]:
    """Folders below `root` whose process has ended. `root` must be locked, and stay so while they are emptied."""
    return [folder for folder in sorted(root.iterdir()) if folder.is_dir() and not is_alive(folder / HELD)]


def hold_file(path: Path) -> Held:
    """A new lock file of this process. Publish its name only after this call.

    Raises:
        OSError: the folder cannot be written.
    """
    while True:
        handle = os.fdopen(open_lock(path), "r+b")
        fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), os.stat(path)):
                return Held(path, handle)
        handle.close()  # another process took the new file for a dead process's and removed it before it was locked


def is_alive(path: Path) -> bool:
    """Whether the process that made a lock file with `hold_file` is running; True if that cannot be determined. The file of a process that
    has ended is removed.
    """
    if not path.exists():
        return False
    try:
        with locked_file(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            path.unlink(missing_ok=True)  # while it is locked: see `hold_file`
    except OSError:
        return True
    return False


def read_only(path: Path) -> bool:
    """Whether a path lies on a read-only file system, where no process can change it."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def network_file_system(path: Path) -> str:
    """Type of the network file system on which a path lies; empty for a local disk, and where the system does not say (no /proc)."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    place, best, kind = path.resolve(), -1, ""
    for _, mounted, system, *_ in (line.split(" ") for line in lines):
        folder = Path(mounted.replace("\\040", " "))
        if place.is_relative_to(folder) and len(folder.parts) >= best:  # the last of two mounts of one folder is in use
            best, kind = len(folder.parts), system
    return kind if kind in NETWORK else ""
