"""Simulate coverage, size and power of the tables' statistics: `python -m scripts coverage` writes the table into docs/statistics.md.

Every module of `tests.rigs.coverage` that has a function `rows` is run, two at a time. It returns `tests.rigs.coverage.rows.Row`s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from pkgutil import iter_modules

from eval.files.provenance import ROOT
from eval.files.store import replace_file
from eval.report.counted import counted
from eval.report.rendering import grid
from scripts.setup.arguments import amount, verb_parser
from tests.rigs import coverage
from tests.rigs.coverage.rows import Row

GROUP = "develop"
CHECKOUT = True

PAGE = ROOT / "docs" / "statistics.md"
TABLE = re.compile(r"(?<=<!-- simulations -->\n).*?(?=<!-- end of simulations -->)", re.DOTALL)
NAMED = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)
"""The printed numbers in the first table of the page."""
PROCESSES = 2


def modules() -> list[str]:
    """The modules that simulate, by name."""
    names = sorted(f"{coverage.__name__}.{each.name}" for each in iter_modules(coverage.__path__))
    return [name for name in names if hasattr(import_module(name), "rows")]


def simulated(name: str, share: float = 1.0) -> list[Row]:
    """The rows of one module, from a share of its repetitions."""
    return list(import_module(name).rows(share))


def table(rows: Sequence[Row]) -> str:
    header = ["Number", "situation", "measure", "simulated", "repetitions"]
    lines = [[row.number, row.situation, row.measure, f"{row.value:.3f}", f"{row.repetitions:,}"] for row in rows]
    return f"\n{grid(header, lines)}\n\n"


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("coverage", __doc__)
    parser.add_argument("--share", type=amount(0.001, 1.0), default=1.0, help="of the repetitions (default: 1)")
    share = parser.parse_args(arguments).share
    rows: list[Row] = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for name, own in zip(modules(), pool.map(partial(simulated, share=share), modules()), strict=True):
            print(f"{name}: {counted(len(own), 'row')}", flush=True)
            rows += own
    text = PAGE.read_text(encoding="utf-8")
    replace_file(PAGE, TABLE.sub(lambda _: table(rows), text))
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0
