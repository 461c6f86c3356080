"""Local folders for workers that do not write into the run folders: a case's files go there, and come back as bytes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO

from eval.executors.case_files import Files, files_of, place
from eval.executors.cells import Order
from eval.run import Run
from eval.store import locked


@contextmanager
def placed(order: Order, runs: Sequence[Run]) -> Iterator[list[Run]]:
    """The runs of an order, in scratch folders with the case's files so far; in their own folders where the order brings no files."""
    if order.files is None:
        yield list(runs)
        return
    with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
        moved = [replace(run, folder=Path(scratch) / str(number)) for number, run in enumerate(runs)]
        for run, files in zip(moved, order.files, strict=True):
            place(run.case_folder(order.case.id), files)
        yield moved


def collected(order: Order, runs: Sequence[Run]) -> tuple[Files, ...] | None:
    """What the scratch folders hold of the case; None where the runs are in their own folders."""
    return None if order.files is None else tuple(files_of(run.case_folder(order.case.id)) for run in runs)


_making = threading.Lock()


def _folder() -> Path:
    """This process's scratch folder."""
    with _making:  # cells begin at the same time, and a second folder's lock would be lost
        return _made()[0]


@lru_cache(maxsize=1)
def _made() -> tuple[Path, IO[str]]:
    """A new scratch folder, and the lock that keeps it; folders of processes that were killed are removed."""
    all_folders = Path(tempfile.gettempdir()) / f"memsys-cells-{os.getuid()}"
    with locked(all_folders):
        for folder in all_folders.iterdir():
            if folder.is_dir() and not _held(folder):
                shutil.rmtree(folder, ignore_errors=True)
        own = Path(tempfile.mkdtemp(dir=all_folders))
        handle = (own / ".held").open("w")
        fcntl.flock(handle, fcntl.LOCK_EX)
    return own, handle


def _held(folder: Path) -> bool:
    """Whether a living process holds the lock of a folder."""
    try:
        with (folder / ".held").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
