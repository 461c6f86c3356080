"""Install a released product into an environment of its own: `python -m scripts product NAME`, pinned in conf/product.

Without NAME it lists the products. `all` installs every missing product, after printing their sizes. The environment is in the
user's cache (or MEMSYS_PRODUCTS), named after the pins, and nothing of it is imported into our process. Wheels have a known sha256. uv
installs them if it is available, otherwise pip; `--pip` forces pip, for an index that only pip's settings name.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml

from eval.files.store import RunError
from memsys.products.places import INSTALLED, PINS, Place, place_of, products_folder
from scripts.setup import wheels
from scripts.setup.arguments import verb_parser

GROUP = "data"
SIZES = PINS / "megabytes.yaml"


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("product", __doc__)
    parser.add_argument("name", nargs="?", help="a file of conf/product, or all")
    parser.add_argument("--pip", action="store_true", help="install with pip where uv is found, too")
    given = parser.parse_args(arguments)
    uv = None if given.pip else wheels.find_uv()
    if not given.name:
        for place in _all():
            print(f"{place.name}\t{place.folder if place.installed else f'not installed, {_size(place)}'}")
        return 0
    if given.name == "all":
        return _install_all([place for place in _all() if not place.installed], uv)
    try:
        place = place_of(given.name)
    except ValueError as error:
        raise RunError(str(error)) from error
    if place.pins is None or place.installed:
        print(f"{place.name} is installed: {place.python}")
        return 0
    _install(place, place.pins, uv)
    return 0


def _all() -> list[Place]:
    return [place_of(path.stem) for path in sorted(PINS.glob("*.txt"))]


@cache
def sizes() -> dict[str, int]:
    """Megabytes of each product's environment, as measured in `SIZES`."""
    read: dict[str, int] = yaml.safe_load(SIZES.read_text(encoding="utf-8"))
    return read


def _size(place: Place) -> str:
    return f"{sizes()[place.name]:,} MB" if place.name in sizes() else "size unknown"


def _install_all(places: Sequence[Place], uv: str | None) -> int:
    """Install products one after another, after printing their sizes; return 1 if one could not be installed."""
    if not places:
        print("all products are installed")
        return 0
    needed = sum(sizes().get(place.name, 0) for place in places)
    for place in places:
        print(f"{place.name}\t{_size(place)}")
    print(f"in all {needed:,} MB, into {products_folder()}", flush=True)
    products_folder().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(products_folder()).free // 10**6
    if free < needed:
        raise RunError(
            f"{products_folder()} has {free:,} MB left, and these products need {needed:,}; nothing was installed"
        )
    failed = []
    for place in places:
        assert place.pins is not None
        try:
            _install(place, place.pins, uv)
        except RunError as error:
            failed.append(place.name)
            print(f"error: {place.name}: {error}", file=sys.stderr, flush=True)
    if failed:
        print(f"not installed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _install(place: Place, pins: Path, uv: str | None) -> None:
    """Make the environment of a product with uv or, for None, with pip."""
    started = time.perf_counter()
    shutil.rmtree(place.folder, ignore_errors=True)  # left by an interrupted earlier attempt
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    wheels.install(place.folder, pins.read_text(encoding="utf-8").splitlines(), uv)
    (place.folder / INSTALLED).write_text(pins.read_text(encoding="utf-8"), encoding="utf-8")
    seconds = time.perf_counter() - started
    print(f"{place.name}: installed by {'uv' if uv else 'pip'} in {seconds:.0f} s: {place.folder}", flush=True)
