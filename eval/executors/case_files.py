"""The files of a case as bytes, for workers that do not write into the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.files.run_folder import COMPLETE
from eval.files.store import linked, replace_file

Files = Mapping[str, bytes]
"""Contents by name."""


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a case's folder; none where there is no folder."""
    if not folder.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def place(folder: Path, files: Files) -> None:
    """Write the files of a case into a folder of a worker."""
    for name, content in files.items():
        replace_file(folder / _checked(name), content)


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
