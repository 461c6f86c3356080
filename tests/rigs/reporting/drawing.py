"""The drawing of the packages in ARCHITECTURE.md and their imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("data_loaders", "memsys", "eval", "scripts")
DEPTH = {"memsys.llm.offline": 3}
"""Packages that get a box of their own in addition to all packages of two levels; deeper packages are part of their parents' boxes."""
DRAWING = re.compile(r"(?<=<!-- drawing -->\n).*?(?=<!-- end of drawing -->)", re.DOTALL)


def arrows() -> set[tuple[str, str]]:
    """Pairs of packages: the first imports a module of the second.

    The modules directly in a floor are drawn as its base: their imports from their own floor are left out.
    """
    return {
        (here, there)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for imported in _imported(path)
        if (here := _room(".".join(path.relative_to(ROOT).parent.parts))) != (there := _room(imported))
        and not there.startswith(f"{here}.")
    }


def rooms(pairs: set[tuple[str, str]]) -> list[str]:
    """The packages that import or are imported, floor by floor."""
    return sorted(
        {room for pair in pairs for room in pair}, key=lambda room: (PACKAGES.index(room.split(".")[0]), room)
    )


def drawing() -> str:
    """Mermaid: a box per package; arrows point from a package to the packages that it imports, without implied arrows."""
    pairs = arrows()
    lines = ["```mermaid", "flowchart BT"]
    for package in PACKAGES:
        lines.append(f"  subgraph {package}_floor [{package}]")
        lines += [f"    {room.replace('.', '_')}[{room}]" for room in rooms(pairs) if room.split(".")[0] == package]
        lines.append("  end")
    lines += [f"  {here.replace('.', '_')} --> {there.replace('.', '_')}" for here, there in sorted(_direct(pairs))]
    return "\n".join([*lines, "```", ""])


def _direct(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The pairs without those that follow from a path over another package."""
    reached = {here: {there for one, there in pairs if one == here} for here, _ in pairs}
    grows = True
    while grows:
        further = {here: there.union(*(reached.get(over, set()) for over in there)) for here, there in reached.items()}
        grows, reached = further != reached, further
    return {
        (here, there)
        for here, there in pairs
        if not any(there in reached.get(over, ()) for one, over in pairs if one == here and over != there)
    }


def _room(module: str) -> str:
    parts = module.split(".")
    while len(parts) > 2 and ".".join(parts) not in DEPTH:
        parts.pop()
    name = ".".join(parts)
    return name if (ROOT / Path(*parts) / "__init__.py").is_file() else name.rpartition(".")[0]


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name for name in names if name.split(".")[0] in PACKAGES)
