"""Locations of a product's files: its pins in conf/product, its environment in a folder of the user, its adapter here."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from memsys.folders import cache_folder

ADAPTERS = Path(__file__).parent / "adapters"
PINS = Path(__file__).resolve().parents[2] / "conf" / "product"
OURS = ("worker.py", "surroundings.py")


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one product."""

    name: str
    adapter: Path
    pins: Path | None
    """Names and versions of all packages of its environment; None for a product that runs in our environment."""

    @property
    def folder(self) -> Path:
        """Its environment, named after its pins, so that other pins give another environment."""
        assert self.pins is not None
        return products_folder() / f"{self.name}-{_digest(self.pins)[:12]}"

    @property
    def python(self) -> Path:
        """The interpreter that runs the worker."""
        if self.pins is None:
            return Path(sys.executable)
        return self.folder / "bin/python"

    @property
    def installed(self) -> bool:
        """Whether the environment is complete."""
        return self.pins is None or (self.folder / INSTALLED).is_file()

    @property
    def identity(self) -> dict[str, str]:
        """Digests of the files that determine the product's behaviour apart from its settings: versions, adapter and worker."""
        own = {name: _digest(Path(__file__).with_name(name)) for name in OURS}
        pins = {} if self.pins is None else {"pins": _digest(self.pins)}
        return {"product": self.name, **pins, "adapter": _digest(self.adapter), **own}


INSTALLED = ".installed"
"""A file in a complete environment."""


def products_folder() -> Path:
    """The folder of the products' environments: MEMSYS_PRODUCTS, or a folder in the user's cache."""
    return Path(os.environ.get("MEMSYS_PRODUCTS") or cache_folder() / "products")


def place_of(product: str) -> Place:
    """The files of a product by name, or by the path of an adapter that runs in our own environment (`….py`).

    Raises:
        ValueError: there is no such product.
    """
    if product.endswith(".py"):
        adapter = Path(product)
        if not adapter.is_file():
            raise ValueError(f"no adapter {product}")
        return Place(adapter.stem, adapter.resolve(), None)
    known = sorted(path.stem for path in PINS.glob("*.txt"))
    if product not in known:
        raise ValueError(f"no product called {product!r}; there are: {', '.join(known)}")
    return Place(product, ADAPTERS / f"{product.split('_')[0]}.py", PINS / f"{product}.txt")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
