"""Local folders for workers that do not write into the run folders: a case's files go there, and come back as bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from eval.executors.case_files import Files, files_of, place
from eval.executors.cells import Order
from eval.running.run import Run
from memsys.folders import Held, abandoned, alone, hold


@contextmanager
def placed(order: Order, runs: Sequence[Run]) -> Iterator[list[Run]]:
    """The runs of an order, in scratch folders with the case's files so far; in their own folders if the order has no files."""
    if order.files is None:
        yield list(runs)
        return
    with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
        moved = [replace(run, folder=Path(scratch) / str(number)) for number, run in enumerate(runs)]
        for run, files in zip(moved, order.files, strict=True):
            place(run.case_folder(order.case.id), files)
        yield moved


def collected(order: Order, runs: Sequence[Run]) -> tuple[Files, ...] | None:
    """Content of the case in the scratch folders; None where the runs are in their own folders."""
    return None if order.files is None else tuple(files_of(run.case_folder(order.case.id)) for run in runs)


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
