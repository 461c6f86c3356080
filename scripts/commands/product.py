"""Install a released product into an environment of its own: `python -m scripts product NAME`, pinned in conf/product; `--list` shows them.

The environment is in the user's cache (or MEMSYS_PRODUCTS), named after the pins, and nothing of it is imported into our process. Wheels
have a known sha256. uv installs them where it is found, pip elsewhere; `--pip` takes pip, for an index that only pip's settings name.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from eval.files.store import RunError
from memsys.products.places import INSTALLED, PINS, Place, place_of
from scripts.setup import wheels

GROUP = "data"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="a file of conf/product")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--pip", action="store_true", help="install with pip where uv is found, too")
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
    uv = None if given.pip else wheels.find_uv()
    seconds = install(place, place.pins, uv)
    print(f"{place.name}: installed by {'uv' if uv else 'pip'} in {seconds:.0f} s: {place.folder}")
    return 0


def install(place: Place, pins: Path, uv: str | None) -> float:
    """Make the environment of a product with uv or, for None, with pip; returns the seconds that it took.

    Raises:
        RunError: a package cannot be installed.
    """
    started = time.perf_counter()
    shutil.rmtree(place.folder, ignore_errors=True)  # an earlier attempt that was interrupted
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    wheels.install(place.folder, pins.read_text(encoding="utf-8").splitlines(), uv)
    (place.folder / INSTALLED).write_text(pins.read_text(encoding="utf-8"), encoding="utf-8")
    return time.perf_counter() - started
