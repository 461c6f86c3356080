"""A finished run's folder: what its record says, the cases it was made of, the structures it left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.store import RunError, read_record
from eval.structure.tree import Tree, read_trees

if TYPE_CHECKING:
    from data_loaders.lazy import LazyCases


def record_of(run_folder: Path) -> dict[str, Any]:
    """What `run.json` says.

    Raises:
        RunError: the folder is no run.
    """
    path = run_folder / "run.json"
    if not path.is_file():
        raise RunError(
            f"{run_folder} is no run folder (no run.json); they are results/runs/<dataset>/<memory>-<identity>"
        )
    record = read_record(path)
    if missing := [name for name in ("name", "memory", "dataset", "models", "data_status") if name not in record]:
        raise RunError(f"{path} is damaged: it has no {missing[0]}; run the command that made it again")
    return record


def data_of(record: Mapping[str, Any], root: Path | None) -> LazyCases:
    """The cases that a run was made of, loaded again.

    Raises:
        DataError: the files are not there.
        RunError: the data set is not one of ours, or what is found is not what the run read.
    """
    from omegaconf import OmegaConf

    from scripts.experiment.datasets import data
    from scripts.experiment.options import load_option

    known = record["dataset"]
    cuts = {name: known[name] for name in ("transform", "size", "max_cases", "seed")}
    source = "sample" if record["data_status"] == "sample" else "real"
    folder = None if root is None else str(root)
    cfg = OmegaConf.create(
        {"data": {**cuts, "source": source, "root": folder, "unpinned": record["data_status"] == "unpinned"}}
    )
    loaded = data(cfg, load_option("dataset", known["name"]))
    if differing := [name for name, value in loaded.settings.items() if known.get(name) != value]:
        raise RunError(f"the data found differ from those of the run in {', '.join(differing)}")
    return loaded.cases


def trees_of(run_folder: Path, record: Mapping[str, Any], *, vectors: bool = False) -> list[Tree]:
    """The structures of a run, with the nodes' vectors where they are asked for.

    Raises:
        RunError: the memory has no structure, no case is finished, or the vectors that are asked for were not kept.
    """
    trees = read_trees(run_folder, vectors=vectors)
    if not trees:
        raise RunError(f"{run_folder}: no finished case with nodes; {record['name']} may have no structure")
    return trees
