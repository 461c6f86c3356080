"""Install packages for the user: only wheels with a known sha256, by a uv or pip process that gets no key.

Building a source archive would run its setup.py before any check. `conf/hashes.txt` names the pins without a wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from eval.files.store import RunError
from memsys.llm.secrets import environment_without_secrets
from memsys.products.places import PINS

PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
HASHES = PINS.parent / "hashes.txt"
NEWEST = (3, 13)
"""The newest Python version with known hashes of wheels."""


def find_uv() -> str | None:
    """The program uv: the one that started this process, next to our Python, or on PATH; None if there is none."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which(os.environ.get("UV") or "uv", path=beside) or shutil.which("uv", path=beside)


def install(folder: Path, pins: Iterable[str], uv: str | None) -> None:
    """Make a virtual environment that holds only these pins, with a Python of our version or of the version that they need.

    Args:
        pins: `name==version` each, the complete list: nothing is resolved. A line `# python>=3.12` requires a Python version.
        uv: the result of `find_uv`; None installs with pip, which is about ten times slower.

    Raises:
        RunError: a pin has no known sha256, a downloaded file has another sha256, the installer failed, or there is no such Python.
    """
    pins = list(pins)
    text = requirements(pins)
    _make_environment(folder, uv, oldest_python(pins))
    python = str(folder / "bin" / "python")
    if uv is None:
        _run([python, *PIP, "install"], text)
    else:
        # Copy files: links to uv's cache would let a product change them for every other environment of the user.
        _run([uv, "pip", "install", "--python", python, "--quiet", "--link-mode=copy", "--compile-bytecode"], text)


def oldest_python(pins: Iterable[str]) -> tuple[int, int]:
    """The oldest Python that works with the pins: that of a line `# python>=3.12`, or ours."""
    lines = [match for pin in pins if (match := re.fullmatch(r"# python>=(\d+)\.(\d+)\s*", pin))]
    return (int(lines[0][1]), int(lines[0][2])) if lines else sys.version_info[:2]


def _make_environment(folder: Path, uv: str | None, oldest: tuple[int, int]) -> None:
    """Make an environment with our Python if it is new enough, else with a Python on PATH, or one that uv finds or downloads."""
    if sys.version_info[:2] >= oldest:
        venv.create(folder, with_pip=uv is None, symlinks=True)
    elif python := _newer_python(oldest):
        _finish([python, "-m", "venv", *(["--without-pip"] if uv else []), str(folder)])
    elif uv is not None:
        wanted = f">={oldest[0]}.{oldest[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
        _finish([uv, "venv", "--quiet", "--python", wanted, str(folder)])
    else:
        raise RunError(f"this product needs Python {oldest[0]}.{oldest[1]} or later: put one on PATH, or install uv")


def _newer_python(oldest: tuple[int, int]) -> str | None:
    """The first Python on PATH that is new enough and starts.

    A shim of pyenv starts only the versions that are selected for this folder; PYENV_VERSION selects another.
    """
    for minor in range(oldest[1], NEWEST[1] + 1):
        version = f"{oldest[0]}.{minor}"
        for folder in os.get_exec_path():
            if python := shutil.which(f"python{version}", path=folder):
                asked = [python, "-I", "-c", "import sys; print(sys.executable)"]
                environment = {**environment_without_secrets(), "PYENV_VERSION": version}
                said = subprocess.run(asked, capture_output=True, text=True, check=False, env=environment)
                if said.returncode == 0:
                    return said.stdout.strip()
    return None


def download(pins: Iterable[str], to: Path) -> None:
    """Download the wheels of pins into a folder, without installing them.

    Raises:
        RunError: as for `install`.
    """
    text = requirements(pins)
    with tempfile.TemporaryDirectory() as folder:
        python = sys.executable
        if find_spec("pip") is None:  # an environment made by uv has no pip
            venv.create(folder, with_pip=True, symlinks=True)
            python = str(Path(folder) / "bin" / "python")
        _run([python, *PIP, "download", "--dest", str(to)], text)


def _run(command: list[str], text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text(text, encoding="utf-8")
        _finish([*command, "--no-deps", "--require-hashes", "-r", str(file)])


def _finish(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment_without_secrets())
    if done.returncode:
        raise RunError(f"{' '.join(command[:4])} … failed:\n{done.stderr[-1500:]}")


def requirements(pins: Iterable[str]) -> str:
    """Pins as a requirements file with their hashes, wheels only. Raises RunError if a pin has no known sha256."""
    known, options = _hashes(HASHES)
    pins = [pin.strip() for pin in pins if pin.strip() and not pin.startswith("#")]
    if missing := [pin for pin in pins if pin not in known]:
        raise RunError(f"{HASHES} has no sha256 of {missing[0]}; nothing was installed")
    names = {pin.partition("==")[0] for pin in pins}
    kept = [option for option in options if option.split()[-1] in (":all:", *names)]
    return "\n".join([*kept, *(known[pin] for pin in pins)]) + "\n"


@lru_cache(maxsize=2)
def _hashes(file: Path) -> tuple[dict[str, str], list[str]]:
    """The lines of a file of hashes: hashes by pin, and options of pip."""
    lines = re.sub(r" \\\n *", " ", file.read_text(encoding="utf-8")).splitlines()
    options = [line for line in lines if line.startswith("--")]
    return {line.partition(" ")[0]: line for line in lines if "==" in line.partition(" ")[0]}, options
