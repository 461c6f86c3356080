"""A record of the namespaces of this user's processes at a service: one file each, so that the next run deletes those of a killed run.

The files are in a folder that their process locks (`memsys.folders`), below `namespaces/<service>` of the user's cache, or of
MEMSYS_NAMESPACES. A process first takes over the files of ended processes, so that only one of two runs that start at once deletes them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from memsys.folders import Held, abandoned, alone, cache_folder, hold
from memsys.jsons import canonical, encoded
from memsys.llm.secrets import redact, redact_bytes

_making = threading.Lock()
OURS = re.compile(r"memsys-[0-9a-f]{8}-[0-9a-f]{8}")
"""Names of namespaces, from a seed and random digits; a namespace with another name is never deleted."""


class Namespaces:
    """The namespaces of this process at one service.

    Args:
        folder: of the service; those of processes are below it.
    """

    def __init__(self, service: str, folder: Path) -> None:
        self.service, self.folder = service, folder
        self._own: Held | None = None
        self._lock = threading.Lock()

    def add(self, namespace: str) -> None:
        """Write a namespace's file.

        Raises:
            OSError: it cannot be written.
        """
        record = {
            "service": redact(self.service),
            "namespace": namespace,
            "pid": os.getpid(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.file(namespace).write_bytes(redact_bytes(encoded(record)) + b"\n")

    def remove(self, namespace: str) -> None:
        """Remove the file of a namespace that was deleted."""
        if self._own is not None:
            self.file(namespace).unlink(missing_ok=True)

    def taken_over(self) -> list[str]:
        """Namespaces of processes that have ended; from now on their files belong to this process.

        Raises:
            OSError: a file cannot be moved.
        """
        if not self.folder.is_dir():
            return []
        own, names = self._own_folder(), []
        with alone(self.folder):
            for folder in abandoned(self.folder):
                for file in sorted(folder.glob("*.json")):
                    if OURS.fullmatch(file.stem):
                        file.replace(own / file.name)
                        names.append(file.stem)
                shutil.rmtree(folder, ignore_errors=True)
        return names

    def cleared(self, count: int, kept: Sequence[str], failures: Sequence[str]) -> str:
        """A sentence about `count` namespaces left behind by killed runs, and how many of them were kept; empty if there were none."""
        if not count:
            return ""
        said = f"{count - len(kept)} of {count} namespaces that killed runs left at {redact(self.service)} are deleted"
        if not kept:
            return said
        why = f" ({failures[0]})" if failures else ""
        return f"{said}, {len(kept)} are not{why}: their files stay in {self.file(kept[0]).parent}, and the next run tries again"

    def file(self, namespace: str) -> Path:
        """The path of the file of one of this process's namespaces."""
        return self._own_folder() / f"{namespace}.json"

    def _own_folder(self) -> Path:
        with self._lock:
            if self._own is None:
                with alone(self.folder):
                    self._own = hold(self.folder)
            return self._own.path


def namespaces_at(name: str, service: str, door: object) -> Namespaces:
    """The namespaces at a service; this process has one such object per service.

    Args:
        name: a short name for the folder; characters that a file name should not have are replaced.
        service: its address, for messages.
        door: everything that distinguishes it from other services, without secrets.
    """
    digest = hashlib.sha256(canonical([service, door])).hexdigest()[:12]
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:60]
    root = Path(os.environ.get("MEMSYS_NAMESPACES") or cache_folder() / "namespaces")
    with _making:  # cases begin at the same time, and one of two objects would lose its lock
        return _made(service, root / f"{plain}-{digest}", os.getpid())


@lru_cache(maxsize=64)
def _made(service: str, folder: Path, process: int) -> Namespaces:
    """One object per folder and process: a forked child begins a folder of its own."""
    return Namespaces(service, folder)
