"""Installs for the user: wheels with a known sha256 only, by a pip that sees no key.

Building a source archive runs its setup.py, before anything could be compared. `conf/hashes.txt` says which pin has no wheel.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from eval.files.store import RunError
from memsys.llm.secrets import environment_without_secrets
from memsys.products.places import PINS

HASHES = PINS.parent / "hashes.txt"


def pip(python: Path | str, verb: str, pins: Iterable[str], *arguments: str) -> None:
    """Run `pip install` or `pip download` on pins, all of them named, so that nothing is resolved.

    Args:
        python: the interpreter whose pip is run.
        pins: `name==version` each.

    Raises:
        RunError: a pin has no known sha256, what came has another one, or pip failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text(requirements(pins), encoding="utf-8")
        command = [str(python), "-m", "pip", verb, "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", *arguments, "-r", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment_without_secrets())
    if done.returncode:
        raise RunError(f"{' '.join(command[:4])} … failed:\n{done.stderr[-1500:]}")


def requirements(pins: Iterable[str]) -> str:
    """Pins as a requirements file with their hashes, wheels only.

    Raises:
        RunError: a pin has no known sha256.
    """
    known, options = _hashes(HASHES)
    pins = [pin.strip() for pin in pins if pin.strip() and not pin.startswith("#")]
    if missing := [pin for pin in pins if pin not in known]:
        raise RunError(f"{HASHES} has no sha256 of {missing[0]}; nothing was installed")
    names = {pin.partition("==")[0] for pin in pins}
    kept = [option for option in options if option.split()[-1] in (":all:", *names)]
    return "\n".join([*kept, *(known[pin] for pin in pins)]) + "\n"


@lru_cache(maxsize=2)
def _hashes(file: Path) -> tuple[dict[str, str], list[str]]:
    """The lines of a file of hashes: by pin, and its options of pip."""
    lines = re.sub(r" \\\n *", " ", file.read_text(encoding="utf-8")).splitlines()
    options = [line for line in lines if line.startswith("--")]
    return {line.partition(" ")[0]: line for line in lines if "==" in line.partition(" ")[0]}, options
