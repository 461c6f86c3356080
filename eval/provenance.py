"""Who made this number: the identity of a run, and what is recorded beside it.

Identity = settings (less runtime, metrics and judge) + contents of the prompts used + data sha256 + source of data_loaders, the
memory's modules, run and reader. The same identity is the same folder; anything else is another folder, filled from the cache.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("data_loaders", "memsys", "eval")


def identity(parts: Mapping[str, Any]) -> str:
    """Twelve hex digits that stand for the settings and contents given."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def source_digest(modules: Iterable[str]) -> str:
    """sha256 over the source of project modules and all project modules that they import."""
    hashed = hashlib.sha256()
    for path in sorted({path for module in modules for path in _closure(module)}):
        hashed.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return hashed.hexdigest()


@lru_cache(maxsize=512)
def _closure(module: str) -> frozenset[Path]:
    found: dict[str, Path] = {}
    open_modules = [module]
    while open_modules:
        name = open_modules.pop()
        path = _path(name)
        if name in found or path is None:
            continue
        found[name] = path
        open_modules += _imports(path)
    return frozenset(found.values())


def _path(module: str) -> Path | None:
    if module.split(".")[0] not in PACKAGES:
        return None
    stem = ROOT.joinpath(*module.split("."))
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return path
    return None


_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]+)|import[ \t]+([^\n]+))", re.MULTILINE
)


def _imports(path: Path) -> list[str]:
    """Modules that a file imports, also inside functions; a name imported from a package may be a module of it."""
    names: list[str] = []
    for base, parts, plain in _IMPORT.findall(path.read_text(encoding="utf-8")):
        words = re.findall(r"[\w.]+", plain or parts)
        names += words if plain else [base, *(f"{base}.{word}" for word in words)]
    return names


def surroundings() -> dict[str, Any]:
    """Commit, interpreter and versions of the packages that can change a number."""
    from importlib.metadata import PackageNotFoundError, version

    packages: dict[str, str] = {}
    for name in (
        "numpy",
        "scipy",
        "bm25s",
        "nltk",
        "rouge-score",
        "sacrebleu",
        "bpe-openai",
        "PyStemmer",
        "scikit-learn",
        "umap-learn",
    ):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {"commit": _commit(), "python": platform.python_version(), "packages": packages}


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
