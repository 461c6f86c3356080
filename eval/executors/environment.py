"""Properties that a worker on another machine must share with the driver: project source, Python, and packages that can change a number."""

from __future__ import annotations

import hashlib
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from eval.files.provenance import PACKAGES, versions


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and software of a worker."""

    machine: str
    versions: Mapping[str, str]
    """Versions of Python and of packages, by name."""
    source: str
    """sha256 of this project's modules."""

    def difference(self, other: Environment) -> str:
        """Differences between another machine and this one, in words; empty if there is no difference that can change a number."""
        names = sorted({*self.versions, *other.versions})
        pairs = [(name, self.versions.get(name, "unknown"), other.versions.get(name, "unknown")) for name in names]
        parts = [f"{name} {theirs} instead of {ours}" for name, ours, theirs in pairs if ours != theirs]
        return ", ".join(parts + ["other source code of this project"] * (self.source != other.source))


def this_home(address: str = "") -> Environment:
    """The environment of this process.

    Args:
        address: address of the machine, where it is known.
    """
    name = socket.gethostname()
    python = ".".join(platform.python_version_tuple()[:2])
    return Environment(f"{name} ({address})" if address else name, {"Python": python, **versions("ray")}, _source())


def _source() -> str:
    hashed = hashlib.sha256()
    for folder in (package_folder(name) for name in PACKAGES):
        for path in sorted(folder.rglob("*.py")):
            hashed.update(path.relative_to(folder.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return hashed.hexdigest()


def package_folder(name: str) -> Path:
    """The folder of a package of this project."""
    return Path(str(import_module(name).__file__)).parent
