"""The files of a case as bytes, and scratch folders, for workers that do not write into the run folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from eval.files.run_folder import COMPLETE
from eval.files.store import linked, replace_file
from eval.running.run import Run
from memsys.folders import Held, abandoned, alone, hold

Files = Mapping[str, bytes]
"""Contents by name."""


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a case's folder; none where there is no folder."""
    if not folder.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def collected(runs: Sequence[Run], case_id: str) -> tuple[Files, ...]:
    """The files of a case in each run's folder."""
    return tuple(files_of(run.case_folder(case_id)) for run in runs)


@contextmanager
def placed(runs: Sequence[Run], case_id: str, contents: Sequence[Files] | None) -> Iterator[list[Run]]:
    """The runs in scratch folders that hold these files of a case; in their own folders where there are no contents.

    A scratch folder has the name of the run's own, by which events name the run.
    """
    if contents is None:
        yield list(runs)
        return
    with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
        moved = [replace(run, folder=Path(scratch, str(number), run.folder.name)) for number, run in enumerate(runs)]
        for run, files in zip(moved, contents, strict=True):
            for name, content in files.items():
                replace_file(run.case_folder(case_id) / _checked(name), content)
        yield moved


def commit(folders: Sequence[Path], contents: Sequence[Files]) -> None:
    """Make these files the contents of a cell's case folders, one for each run.

    `COMPLETE` comes last, so that a case counts as complete only when all its files are there. Vectors that equal the first run's
    are linked to them, as in a run without workers.
    """
    for folder, files in zip(folders, contents, strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name == COMPLETE or (path.is_file() and path.name not in files):
                path.unlink()
        for name in sorted(files, key=lambda name: (name == COMPLETE, name)):
            first = folders[0] / name
            # Vectors; other files may be changed by a later run.
            shared = folder != folders[0] and name.endswith(".npy")
            if not (shared and linked(first, folder / _checked(name), files[name])):
                replace_file(folder / _checked(name), files[name])


def _checked(name: str) -> str:
    if Path(name).name != name:
        raise ValueError(f"{name!r} is not the name of a file in a case's folder")
    return name


_making = threading.Lock()


def _folder() -> Path:
    """This process's scratch folder."""
    with _making:  # cells start at the same time, and the lock of a second folder would be lost
        return _made().path


@lru_cache(maxsize=1)
def _made() -> Held:
    """A new scratch folder; folders of processes that were killed are removed."""
    all_folders = Path(tempfile.gettempdir()) / f"memsys-cells-{os.getuid()}"
    with alone(all_folders):
        for folder in abandoned(all_folders):
            shutil.rmtree(folder, ignore_errors=True)
        return hold(all_folders)
