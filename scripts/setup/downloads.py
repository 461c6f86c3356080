"""The raw files that a data set needs: its configuration in `conf/dataset`, and the manifest entries to download."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_loaders.schema import Case, DataError
from data_loaders.source import Entry, entries_for, manifest
from scripts.setup.options import load_option, options


class NoDownload(DataError):
    """The files of a data set have no public address."""


def download_names() -> list[str]:
    """Every name that `entries_to_download` accepts: data sets and the manifest's own names, sorted."""
    return sorted({*options("dataset"), *(entry.dataset for entry in manifest().values())})


def entries_to_download(name: str) -> tuple[Entry, ...]:
    """Manifest entries to download for a data set, named by its configuration or by the manifest.

    Raises:
        NoDownload: none of its files can be downloaded.
        DataError: the name is unknown.
    """
    if name in options("dataset"):
        settings = load_option("dataset", name)
        files = [settings["file"], *settings.get("also", [])]
    else:
        files = [file for file, entry in manifest().items() if entry.dataset == name]
        if not files:
            raise DataError(f"data set: expected one of {', '.join(download_names())}, found {name!r}")
    entries = dict.fromkeys(entry for file in files for entry in entries_for(file))
    if not entries:
        raise NoDownload(
            f"{name}: no public download is known for {', '.join(files)}; put them below the data root yourself"
        )
    return tuple(entries)


def loader(settings: Mapping[str, Any]) -> Callable[[Path], Sequence[Case]]:
    """The loader that the configuration names, with its options filled in."""
    module, _, function = settings["load"]["_target_"].rpartition(".")
    load = getattr(importlib.import_module(module), function)
    choices = {key: value for key, value in settings["load"].items() if not key.startswith("_")}
    return lambda path: load(path, **choices)
