"""The drawing in ARCHITECTURE.md: ten boxes, and the imports between them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("data_loaders", "memsys", "eval", "scripts")
BOXES = (
    ("data_loaders",),
    ("memsys",),
    ("memsys.llm", "memsys.embed", "memsys.prompts"),
    ("memsys.products", "memsys.services"),
    ("memsys.systems",),
    ("eval.files", "eval.running", "eval.executors", "eval.conformance"),
    ("eval.metrics", "eval.judging", "eval.statistics"),
    ("eval.analysis", "eval.structure", "eval.report"),
    ("scripts.settings", "scripts.setup", "scripts.assembly", "scripts.answers"),
    ("scripts.tables", "scripts.lab", "scripts.command", "scripts.commands", "scripts.mock", "scripts"),
)
"""Packages and modules of each box, from below to above. A floor alone, `memsys`, stands for the modules directly in its folder."""
DRAWING = re.compile(r"(?<=<!-- drawing -->\n).*?(?=<!-- end of drawing -->)", re.DOTALL)


@cache
def arrows() -> set[tuple[int, int]]:
    """Pairs of boxes, by their numbers in BOXES: a module of the first imports a module of the second."""
    return {
        (here, there)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for imported in _imported(path)
        if (here := box(".".join(path.relative_to(ROOT).with_suffix("").parts))) != (there := box(imported))
    }


def box(dotted: str) -> int:
    """The number of the box of a module, or of a name in one.

    Raises:
        KeyError: the module is in a package that no box names.
    """
    floor, *below = dotted.split(".")
    room = ".".join([floor, *below[:1]])
    named = {name: number for number, names in enumerate(BOXES) for name in names}
    if room in named:
        return named[room]
    if below and (ROOT / floor / below[0]).is_dir():
        raise KeyError(f"name {room} in a box of BOXES")
    return named[floor]


def drawing() -> str:
    """Mermaid: a box for each line of BOXES; arrows point to the boxes that are imported, without implied arrows."""
    lines = ["```mermaid", "flowchart BT"]
    for package in PACKAGES:
        lines.append(f"  subgraph {package}_floor [{package}]")
        lines += [
            f'    {_id(number)}["{_label(names)}"]'
            for number, names in enumerate(BOXES)
            if names[0].split(".")[0] == package
        ]
        lines.append("  end")
    lines += [f"  {_id(here)} --> {_id(there)}" for here, there in sorted(_direct(arrows()))]
    return "\n".join([*lines, "```", ""])


def _id(number: int) -> str:
    return BOXES[number][0].replace(".", "_")


def _label(names: tuple[str, ...]) -> str:
    return ", ".join(name.partition(".")[2] or f"{name}/*.py" for name in names)


def _direct(pairs: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """The pairs without those that follow from a path over another box."""
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


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name for name in names if name.split(".")[0] in PACKAGES)
