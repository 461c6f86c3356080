"""The sandbox of a product, by bubblewrap or by our own namespaces; `none` if the system supports neither.

In a sandbox a process sees the system's programs and libraries, its Python environment and its adapter, read-only; its scratch folder,
and an empty /tmp and home; no other process; and its own network, which contains only the gateway. Without a sandbox it runs with the
user's rights, and sees the user's files. MEMSYS_SANDBOX chooses: `auto` (default), `required` refuses to start a product without a
sandbox, `off` uses none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from memsys import processes
from memsys.confine import USER

Kind = Literal["bubblewrap", "namespaces", "none"]
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/sys/devices/system/cpu"),
    *(
        "/etc/alternatives",
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
        "/etc/localtime",
        "/etc/ssl/certs",
    ),
)
"""System folders that programs need; none of them belongs to the user."""
WISHES = ("auto", "required", "off")


def kind() -> Kind:
    """The kind of sandbox that products get on this machine.

    Raises:
        RuntimeError: MEMSYS_SANDBOX is `required`, and there is no sandbox.
        ValueError: MEMSYS_SANDBOX has another value than the three.
    """
    wish = os.environ.get("MEMSYS_SANDBOX", "auto")
    if wish not in WISHES:
        raise ValueError(f"MEMSYS_SANDBOX must be one of {', '.join(WISHES)}; found {wish!r}")
    best = "none" if wish == "off" else _best()
    if best == "none" and wish == "required":
        raise RuntimeError(
            "MEMSYS_SANDBOX=required, but this system has no sandbox: install bubblewrap, or allow user namespaces"
        )
    return best


@lru_cache(maxsize=1)
def _best() -> Kind:
    """The first kind of sandbox in which Python can be started."""
    kinds: tuple[Kind, ...] = ("bubblewrap", "namespaces") if sys.platform == "linux" else ()
    return next((each for each in kinds if works(each)), "none")


def works(kind: Kind) -> bool:
    """Whether Python can be started in such a sandbox on this system."""
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        python = Path(sys.executable)
        command = confined(kind, Path(folder), python, (), [str(python), "-I", "-S", "-c", ""])
        try:
            return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False


def confined(kind: Kind, folder: Path, python: Path, readable: Sequence[Path], command: Sequence[str]) -> list[str]:
    """The command line that runs a command in a sandbox, or without one as a process whose descendants end with it.

    Args:
        folder: holds `scratch`, which the command may write to, and the files that the sandbox is made of.
        python: an interpreter; its environment is readable.
        readable: further readable files.

    Raises:
        ValueError: the environment of `python` is a folder that holds the user's home.
    """
    if kind == "none":
        return processes.kept(command)
    binds = _binds(folder, [*_environment_of(python), *readable])
    if kind == "namespaces":
        (folder / "root").mkdir(exist_ok=True)
        return processes.kept(command, capabilities=[], root=str(folder / "root"), binds=binds)
    return processes.kept([*_bubblewrap(binds), *command], capabilities=None)


def _binds(folder: Path, readable: Sequence[Path]) -> list[tuple[str, str, bool]]:
    """Source, target and whether it is writable, for each mount; nested mounts come after those that contain them."""
    tmp, own = folder / "tmp", folder / "etc"
    for each in (tmp, own, folder / "scratch"):
        each.mkdir(exist_ok=True)
    home = folder / "scratch" / "home"
    (own / "hosts").write_text("127.0.0.1 localhost\n", encoding="ascii")
    (own / "passwd").write_text(f"user:x:{USER}:{USER}::{home}:/bin/sh\n", encoding="utf-8")
    (own / "group").write_text(f"user:x:{USER}:\n", encoding="ascii")
    places: list[tuple[str, str, bool]] = [(path, path, False) for path in SYSTEM if os.path.exists(path)]
    places += [(str(path), f"/etc/{path.name}", False) for path in sorted(own.iterdir())]
    places.append((str(tmp), "/tmp", True))
    shown = {str(path) for path in readable if not any(_within(str(path), place) for place in SYSTEM)}
    places += [(os.path.realpath(path), path, False) for path in sorted(shown)]
    return [*places, (str(folder / "scratch"), str(folder / "scratch"), True)]


def _environment_of(python: Path) -> list[Path]:
    """The folders that an interpreter needs: its environment, and the Python installation that the environment was made from."""
    environment, resolved = python.parent.parent, Path(os.path.realpath(python)).parent.parent
    folders = {resolved}
    if (settings := environment / "pyvenv.cfg").is_file():
        lines = [line.partition("=") for line in settings.read_text(encoding="utf-8").splitlines()]
        folders |= {environment, *(Path(value.strip()).parent for name, _, value in lines if name.strip() == "home")}
    folders |= {Path(os.path.realpath(each)) for each in folders}
    if holding := [each for each in folders if _within(os.path.realpath(Path.home()), str(each))]:
        raise ValueError(f"{holding[0]} holds both Python and the home folder: use a Python in a folder of its own")
    return sorted(folders)


def _within(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _bubblewrap(binds: Sequence[tuple[str, str, bool]]) -> list[str]:
    """The program's options, in the order of the mounts."""
    options = ["bwrap", "--unshare-user", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--proc", "/proc"]
    options += ["--uid", str(USER), "--gid", str(USER)]
    options += ["--dev", "/dev"]
    for source, target, writable in binds:
        if os.path.islink(source) and not os.path.isabs(os.readlink(source)):
            options += ["--symlink", os.readlink(source), target]
        else:
            options += ["--bind" if writable else "--ro-bind", source, target]
    return [*options, "--remount-ro", "/", "--chdir", binds[-1][1], "--"]
