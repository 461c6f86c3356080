"""Install a released product into an environment of its own: `python -m scripts product NAME`, pinned in conf/product; `--list` shows them.

The environment is in the user's cache (or MEMSYS_PRODUCTS), named after the pins, and nothing of it is imported into our process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from eval.files.store import RunError
from memsys.products.places import INSTALLED, PINS, Place, place_of
from scripts.setup.wheels import pip

GROUP = "data"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="a file of conf/product")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args(arguments)
    if given.list or not given.name:
        for name in sorted(path.stem for path in PINS.glob("*.txt")):
            place = place_of(name)
            print(f"{name}\t{place.folder if place.installed else 'not installed'}")
        return 0
    try:
        place = place_of(given.name)
    except ValueError as error:
        raise RunError(str(error)) from error
    if place.pins is None or place.installed:
        print(f"{place.name} is installed: {place.python}")
        return 0
    seconds = install(place, place.pins)
    print(f"{place.name}: installed in {seconds:.0f} s: {place.folder}")
    return 0


def install(place: Place, pins: Path) -> float:
    """Make the environment of a product; returns the seconds that it took.

    Raises:
        RunError: a package cannot be installed.
    """
    started = time.perf_counter()
    shutil.rmtree(place.folder, ignore_errors=True)  # an earlier attempt that was interrupted
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    venv.create(place.folder, with_pip=True, symlinks=os.name != "nt")
    pip(place.python, "install", pins.read_text(encoding="utf-8").splitlines())
    (place.folder / INSTALLED).write_text(pins.read_text(encoding="utf-8"), encoding="utf-8")
    return time.perf_counter() - started
