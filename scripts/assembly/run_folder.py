"""Read a finished run's data set again, and the trees that it saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eval.files.run_folder import RunRecord
from eval.files.store import RunError
from eval.structure.tree import Tree, read_trees

if TYPE_CHECKING:
    from data_loaders.lazy import LazyCases


def data_of(record: RunRecord, root: Path | None) -> LazyCases:
    """Load the cases of a run again, from the file that `dataset.file` named.

    Args:
        root: folder of the raw files; None takes the default one.

    Raises:
        DataError: the files are missing.
        RunError: the data set has no file in `conf/dataset`, or the files differ from those of the run.
    """
    from scripts.assembly.datasets import data
    from scripts.settings.schema import DataCut
    from scripts.setup.options import load_option

    known = record.dataset
    cut = DataCut(
        source="sample" if record.data_status == "sample" else "real",
        root=None if root is None else str(root),
        unpinned=record.data_status == "unpinned",
        **{name: known[name] for name in ("transform", "size", "max_cases", "seed")},
    )
    option = load_option("dataset", known["name"])
    loaded = data(cut, {**option, "file": record.data_file or option["file"]})
    if differing := [name for name, value in loaded.settings.items() if known.get(name) != value]:
        raise RunError(f"the data set differs from that of the run in {', '.join(differing)}")
    return loaded.cases


def trees_of(run_folder: Path, record: RunRecord, *, vectors: bool = False) -> list[Tree]:
    """Read the trees of a run, with the vectors of their nodes if `vectors` is true.

    Raises:
        RunError: the memory has no tree, no case is finished, or the run did not keep vectors.
    """
    trees = read_trees(run_folder, vectors=vectors)
    if not trees:
        raise RunError(f"{run_folder}: no finished case with nodes; {record.name} may have no tree")
    return trees
