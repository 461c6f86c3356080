"""The provenance of a number: the identity of a run, and the versions that are recorded with it.

A run's identity covers its settings (without runtime settings, metrics and judge), the prompts that it uses, the sha256 of its data, the
code of loader, memory and run loop (without docstrings, comments and formatting), and the versions of the packages that they import. Runs
with the same identity share a folder; another identity gets another folder. Its calls are answered from the cache as far as possible.
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("data_loaders", "memsys", "eval")


def identity(parts: Mapping[str, Any]) -> str:
    """Twelve hex digits that identify these settings and contents."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def source_digest(modules: Iterable[str]) -> str:
    """sha256 of the code (`Source.code`) of these modules and of the modules that they import, directly or indirectly.

    Imports of installed packages and of Python's own modules are not followed; imports of the project and of a user's own working copy
    are. A module that is named in `modules` is hashed with the rest of its package even if it is installed.
    """
    hashed = hashlib.sha256()
    for name, path in sorted({item for module in modules for item in _closure(module).files}):
        hashed.update(name.encode() + b"\0" + source_of(path).code.encode() + b"\0")
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True)
class Source:
    """What a Python file does and imports. Docstrings, comments and formatting change nothing."""

    code: str
    """Its code, in every version of Python the same text; strings that stand alone, as docstrings do, are left out."""
    imports: tuple[str, ...]
    """Modules that it imports, also inside functions; those that are relative to its package begin with dots. Names imported from a package
    are included, as they may be modules."""


def source_of(path: Path) -> Source:
    """Read a Python file, again when it has changed: a notebook may edit and reload it. One that does not parse is taken as it is."""
    stat = path.stat()
    return _source_of(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=2048)
def _source_of(path: Path, written: int, size: int) -> Source:
    text = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text)
    except SyntaxError:  # it cannot be imported by this version of Python, either
        return Source(text, ())
    imports: list[str] = []
    blocks: list[Any] = [tree]
    for part in blocks:  # statements hold statements: expressions, which are most of a tree, are passed over
        if isinstance(part, ast.Import):
            imports += [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom):
            dots, name = "." * part.level, part.module or ""
            imports += [dots + name, *(f"{dots}{name}{'.' * bool(name)}{alias.name}" for alias in part.names)]
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(part, field, ())
            blocks += inner if isinstance(inner, list) else ()
    return Source(code_of(tree), tuple(imports))


def code_of(part: Any) -> str:
    """A syntax tree as text. Empty fields are left out: newer versions of Python add fields that are empty for older code."""
    kind = type(part)
    if kind is ast.Constant:
        return repr(part.value)
    if kind is ast.JoinedStr:  # Python 3.12 ends some formats with an empty string
        return f"JoinedStr({','.join([text for text in map(code_of, part.values) if text != repr('')])})"
    if kind is list:
        # A statement that is a string alone is a docstring, or the description under a field.
        kept = [
            each
            for each in part
            if not (type(each) is ast.Expr and type(each.value) is ast.Constant and isinstance(each.value.value, str))
        ]
        return f"[{','.join(map(code_of, kept))}]"
    if isinstance(part, ast.AST):
        values = [(name, getattr(part, name, None)) for name in part._fields if name != "ctx"]
        return f"{kind.__name__}({','.join([f'{n}={code_of(v)}' for n, v in values if v is not None and v != []])})"
    return repr(part)


def has_source(module: str) -> bool:
    """Whether this process can read the source of a module."""
    path = _found(module)
    return path is not None and path.suffix == ".py"


def distributions(modules: Iterable[str]) -> dict[str, str]:
    """Versions of the installed distributions that these modules, and the modules that `source_digest` follows, import."""
    tops = sorted({name for module in modules for name in _closure(module).packages})
    names = [name for top in tops for name in installers(top)]
    return {name: version for name in names if (version := _version(name)) is not None}


def own_modules(modules: Iterable[str]) -> list[Path]:
    """Files and package folders of a user's own working copy, outside this project and not installed, that these modules are or import."""
    tops = {name.split(".")[0] for module in modules for name in _closure(module).modules} - {*PACKAGES}
    paths = [path for path in map(_found, sorted(tops)) if path is not None and not _installed(path)]
    return [path.parent if path.name == "__init__.py" else path for path in paths]


@lru_cache(maxsize=512)
def installers(top: str) -> tuple[str, ...]:
    """Names of the distributions that installed a top-level module; the module's own name if none did."""
    return tuple(sorted({each.metadata["Name"] for each in _distributions().get(top, ())})) or (top,)


@lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[metadata.Distribution]]:
    """The distributions that installed each top-level module.

    `importlib.metadata.packages_distributions` reads the names of all, too: .13 s in place of .01 s at the start of every command.
    """
    found: dict[str, list[metadata.Distribution]] = {}
    for each in metadata.distributions():
        declared = (each.read_text("top_level.txt") or "").split()
        for top in declared or set(_TOP.findall(each.read_text("RECORD") or "")):
            found.setdefault(top, []).append(each)
    return found


_TOP = re.compile(r"^([^/,\n]+)(?:/|\.py,)", re.MULTILINE)
"""The top-level module of a line of RECORD, which is the path of an installed file."""


@lru_cache(maxsize=512)
def _version(distribution: str) -> str | None:
    """The installed version; None for an optional package that is missing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Closure:
    """The source files and packages that a module depends on."""

    files: frozenset[tuple[str, Path]]
    """Name and file of each module whose imports are followed."""
    modules: frozenset[str]
    """Names of these modules."""
    packages: frozenset[str]
    """Top-level names of the installed packages that they import."""


@lru_cache(maxsize=512)
def _closure(module: str) -> Closure:
    own = module.split(".")[0]
    files: dict[str, Path] = {}
    packages: set[str] = set()
    seen: set[str] = set()
    open_modules = [module]
    while open_modules:
        name = open_modules.pop()
        if name in seen:
            continue
        seen.add(name)
        top, package = name.split(".")[0], name.rpartition(".")[0]
        open_modules += [package] if package else []  # importing a module runs its package first
        path = _found(name)
        if path is None or path.suffix != ".py":
            if top not in PACKAGES and _installed(_found(top)):
                packages.add(top)
        elif top not in (*PACKAGES, own) and _installed(path):
            packages.add(top)
        else:
            files[name] = path
            inside = name if path.name == "__init__.py" else package
            for each in source_of(path).imports:
                with suppress(ImportError):  # more dots than packages
                    open_modules.append(resolve_name(each, inside))
    named = {
        (path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else name, path) for name, path in files.items()
    }
    return Closure(frozenset(named), frozenset(files), frozenset(packages))


@lru_cache(maxsize=4096)
def _found(module: str) -> Path | None:
    """The file that Python would import a module from, or the folder of a package without one; None when there is none."""
    if module in PACKAGES:
        return ROOT / module / "__init__.py"
    if module.split(".")[0] in sys.stdlib_module_names:
        return None
    above, _, last = module.rpartition(".")
    if above:  # searched in the package's folder, because find_spec would import the package
        package = _found(above)
        folder = package.parent if package is not None and package.name == "__init__.py" else package
        files = () if folder is None else (folder / f"{last}.py", folder / last / "__init__.py", folder / last)
        return next((path for path in files if path.is_file() or path.is_dir()), None)
    try:
        spec = find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec.has_location and spec.origin else Path(places[0]) if places else None


def _installed(path: Path | None) -> bool:
    """Whether a file belongs to an installed package, not to a working copy."""
    return path is not None and bool({"site-packages", "dist-packages"} & set(path.parts))


COMPUTING = "numpy scipy bm25s nltk rouge-score sacrebleu bpe-openai PyStemmer scikit-learn umap-learn".split()
"""Packages that can change a number."""


def surroundings() -> dict[str, Any]:
    """Commit, Python version and versions of the packages that can change a number."""
    return {"commit": _commit(), "python": platform.python_version(), "packages": versions()}


def versions(*more: str) -> dict[str, str]:
    """Versions of the packages that can change a number, and of `more`."""
    return {name: _version(name) or "not installed" for name in (*COMPUTING, *more)}


def _commit() -> str:
    """The checkout's commit, with `-dirty` after it where a tracked file differs; `unknown` outside a checkout.

    Not `git describe --dirty`: it rewrites the checkout's index, also where another process works with it.
    """
    said = []
    for arguments in (["describe", "--always", "--abbrev=12"], ["status", "--porcelain", "--untracked-files=no"]):
        command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]  # writes nothing
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return "unknown"
        if done.returncode:
            return "unknown"
        said.append(done.stdout.strip())
    commit, changes = said
    return f"{commit}{'-dirty' * bool(changes)}" if commit else "unknown"
