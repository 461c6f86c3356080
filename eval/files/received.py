"""Run folders that may come from elsewhere: plain files and folders only, and a `run.json` whose fields have their types.

A link would take other files of this machine into reports and merged results, reading a FIFO would wait for ever.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eval.files.store import AGAIN, RunError, read_record

NEEDED: dict[str, type] = {"name": str, "memory": Mapping, "dataset": Mapping, "models": Mapping, "data_status": str}
"""Fields of every `run.json`."""
MORE: dict[str, type] = {
    "prompts_dir": str,
    "prompts": Mapping,
    "reader": Mapping,
    "unit": Mapping,
    "cases": int,
    "seed": list,
    "data_file": str,
    "distributions": Mapping,
    "made_with": Mapping,
    "imported": Mapping,
    "source": str,
}
"""Fields that may be missing or null."""
IN_WORDS = {str: "text", Mapping: "a mapping", int: "a whole number", list: "a list"}


def run_record(folder: Path) -> dict[str, Any]:
    """The checked `run.json` of a run folder that holds nothing but plain files and folders.

    Raises:
        RunError: it holds anything else, or the record is damaged.
    """
    refuse_foreign(folder)
    return checked_record(folder / "run.json")


def checked_record(path: Path, *, whole: bool = True) -> dict[str, Any]:
    """A `run.json`.

    Args:
        whole: whether it needs the fields of every run; an overview does with what is there.

    Raises:
        RunError: it is damaged, a field is missing or has another type.
    """
    record = read_record(path)
    missing = [name for name in NEEDED if name not in record]
    if whole and missing:
        raise RunError(f"{path} is damaged: it has no {missing[0]}; run its command again")
    for name, value, kind in _fields(record):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RunError(f"{path} is damaged: {name} must be {IN_WORDS[kind]}, found {str(value)[:40]!r}; {AGAIN}")
    return record


def _fields(record: Mapping[str, Any]) -> Iterator[tuple[str, Any, type]]:
    """Name, value and type of the fields that are there."""
    for name, kind in NEEDED.items():
        if name in record:
            yield name, record[name], kind
    for name, kind in MORE.items():
        if record.get(name) is not None:
            yield name, record[name], kind
    for role, model in record.get("models", {}).items():
        yield f"models.{role}", model, Mapping
    if "dataset" in record:
        yield "dataset.name", record["dataset"].get("name"), str


def refuse_foreign(folder: Path) -> None:
    """Refuse a run folder that holds a link, a FIFO, a socket or a device. The folder itself may be a link, which its user named.

    Raises:
        RunError: it holds one.
    """
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise RunError(
                    f"{path} is {'a link' if stat.S_ISLNK(mode) else 'no plain file'}: run folders hold files and folders only; "
                    "remove it if you trust the rest"
                )


def is_linked(path: Path) -> bool:
    """Whether a run or the folder of its data set is a link, which leads out of the results."""
    return path.is_symlink() or path.parent.is_symlink()
