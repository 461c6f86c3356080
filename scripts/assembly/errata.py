"""Errata layers by name: the audit of LoCoMo, or a CSV file of one's own.

LoCoMo-Refined is not among them: its files could not be had. Whoever has them writes a CSV with the columns case, question and gold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from data_loaders.schema import Case
from eval.report.errata import Layer, audited_layer, read_layer
from scripts.assembly.datasets import data
from scripts.settings.schema import DataCut
from scripts.setup.options import load_option

AUDITED = "locomo"
"""The layer that is made of the audit's file, in place of a CSV file."""


def layer_of(name: str, root: Path | None) -> Layer:
    """The layer called `locomo`, or that of a CSV file.

    Args:
        root: folder of the raw data files.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _audit(root) if name == AUDITED else read_layer(Path(name).expanduser())


def _audit(root: Path | None) -> Layer:
    """The audit of LoCoMo, whatever cut of the data the runs have."""
    folder = None if root is None else str(root)
    whole = DataCut(source="real", root=folder, unpinned=False, size="all", max_cases=None, transform="none", seed=0)
    released, corrected = (data(whole, load_option("dataset", f"locomo_{name}")) for name in ("audited", "corrected"))
    return audited_layer("locomo-audit", in_order(released.cases), in_order(corrected.cases))


def in_order(cases: Sequence[Case]) -> Iterator[Case]:
    """The cases one after the other; a sequence that loads lazily ends by its length."""
    return (cases[index] for index in range(len(cases)))
