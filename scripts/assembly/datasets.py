"""Load a data set by the settings: find its file, verify it, cut it to size, transform it; also load errata layers.

Its configuration in `conf/dataset` names the raw files; entries of the manifest say where to download them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from data_loaders.raw import LazyCases, as_lazy
from data_loaders.schema import DataError
from data_loaders.source import UNTESTED, Entry, Source, compared, counts_of, entries_for, locate, manifest
from eval.files.store import RunError
from eval.report.cell import Asked, asked
from eval.report.counted import counted
from eval.report.errata import Layer, audited_layer, read_layer
from scripts.settings.checking import checked_call
from scripts.settings.schema import DataCut
from scripts.settings.types import TRANSFORMS
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


def loader(call: Mapping[str, Any]) -> Callable[[Path], Any]:
    """The function that the value `load` or `caption` of a data set's file names, with the options filled in."""
    module, _, function = call["_target_"].rpartition(".")
    choices = {name: value for name, value in call.items() if not name.startswith("_")}
    return partial(getattr(importlib.import_module(module), function), **choices)


KEPT_BYTES = 40 << 20
"""Data sets up to this size (40 MiB) are parsed once and stay in memory."""

ORDER_SEEDS = 10_000
"""Distance of the seeds of two orders of one transform (`permute:1`), larger than any usual `data.seed`."""


@dataclass(frozen=True)
class Data:
    """A data set that is ready to run."""

    name: str
    title: str
    cases: LazyCases
    source: Source
    settings: Mapping[str, Any]
    """Identity of the data: loader settings, file hashes, size, transform, seed."""
    config: Mapping[str, Any]
    note: Callable[[], str] = str  # an empty text
    """A remark for captions: that the loader is untested, a comparison of the real files' counts with the published ones, the loader's own.

    It is computed on first use, because it may need every history of the files, even if only a cut of them is run.
    """
    fewer: str = ""
    """The numbers of questions and histories if more were requested, with the reason; empty if none are missing."""
    cut: bool = False
    """Whether `data.size` or `data.max_cases` leaves something out."""

    @cached_property
    def questions(self) -> tuple[Asked, ...]:
        """Every question, in the order of the data; parses all histories on first use."""
        return asked(self.cases)


def check_data_root(wanted: DataCut) -> Path | None:
    """Return the folder of raw files that the settings name; None when they name none.

    Raises:
        RunError: `data.root` or MEMSYS_DATA names a folder that does not exist, or `data.root` is given while samples are asked for.
    """
    if wanted.root and wanted.source == "sample":
        raise RunError(
            f"data.root={wanted.root} is not read while data.source=sample takes the shipped samples; "
            "add data.source=real (make … DATA= does), or leave data.root out"
        )
    named = wanted.root or (os.environ.get("MEMSYS_DATA") if wanted.source == "real" else None)
    if named and not Path(named).expanduser().is_dir():
        setting = "data.root (make … DATA=)" if wanted.root else "the environment variable MEMSYS_DATA"
        raise RunError(f"{setting}: no folder {named}; create it, or name the one that holds the data sets")
    return wanted.folder


def data(wanted: DataCut, config: Mapping[str, Any]) -> Data:
    """Find, verify, load and cut a data set.

    Args:
        wanted: the cut of it (`data` of the settings).
        config: values of a file of `conf/dataset`.

    Raises:
        DataError: a file is missing or differs from the manifest; the message says how to get it.
        RunError: `data.root` does not exist, or a loader setting is refused.
    """
    root = check_data_root(wanted)
    located = locate(config, real=wanted.source == "real", root=root, unpinned=wanted.unpinned)
    loading = checked_call(f"dataset {config['name']}: load", {**config["load"], **located.choices})
    source, load = located.source, {name: value for name, value in loading.items() if name != "_partial_"}
    cases = as_lazy(loader(load)(source.path))
    if not cases:
        raise DataError(f"{source.path}: expected at least one history, found none")
    settings = {
        "load": {name: str(value) for name, value in load.items()},
        "sha256": [source.sha256, *(file.sha256 for file in located.beside)],
        "transform": wanted.transform,
        "size": wanted.size,
        "max_cases": wanted.max_cases,
        "seed": wanted.seed,
    }
    limited, suite = wanted.size != "all" or wanted.max_cases is not None, wanted.transform.startswith("change")
    cut = _cut(wanted, cases) if limited and not suite else cases  # the suite chooses its own hosts and probes
    kept = cut if wanted.transform == "none" else _transformed(wanted, cut)
    files = [source.path] if source.path.is_file() else [file for file in source.path.rglob("*") if file.is_file()]
    if (
        sum(file.stat().st_size for file in files) <= KEPT_BYTES
    ):  # a case of a larger data set is parsed whenever it is read
        kept = LazyCases(kept.ids, kept.sizes, lru_cache(maxsize=None)(kept.__getitem__))
    noted = config.get("untested") or "caption" in config
    note = cache(partial(_note, config, source, cases)) if noted else str
    fewer = _fewer(wanted, kept if suite else cut, suite=suite) if limited or suite else ""
    if fewer:
        print(f"note: {config['name']}: {fewer}", file=sys.stderr)
    less = wanted.size != "all" or len(kept) < len(cases)
    return Data(config["name"], config["title"], kept, source, settings, config, note, fewer, less)


def _note(config: Mapping[str, Any], source: Source, cases: LazyCases) -> str:
    """The remark on a data set for captions (`Data.note`); `cases` are all cases of its files."""
    notes = [UNTESTED] if config.get("untested") else []
    if notes and source.status != "sample" and config.get("published"):
        notes = [f"{UNTESTED}, {compared(config['published'], counts_of(cases))}"]
    own = loader(config["caption"])(source.path) if "caption" in config else ""
    return "; ".join(filter(None, [*notes, own]))


def fetch_missing(wanted: DataCut, columns: Iterable[Mapping[str, Any]]) -> None:
    """Download the files of the data sets of column groups; a note on standard error names those that cannot be downloaded."""
    from data_loaders.download import download
    from data_loaders.source import data_root

    root = data_root(check_data_root(wanted))
    for option in columns:
        try:
            for entry in entries_to_download(option["dataset"]):
                download(entry, root, unpinned=wanted.unpinned)
        except DataError as error:
            print(f"note: {option['dataset']}: {error}", file=sys.stderr)


def _cut(wanted: DataCut, cases: LazyCases) -> LazyCases:
    """Apply `data.size` and `data.max_cases`."""
    from data_loaders.transforms import asking, shares, subset

    if wanted.size != "all":
        counts = shares(cases, int(wanted.size), n_cases=wanted.max_cases, seed=wanted.seed)
        return asking(cases, counts, seed=wanted.seed)
    return cases if wanted.max_cases is None else subset(cases, wanted.max_cases, seed=wanted.seed)


def _probes(wanted: DataCut) -> int:
    """Number of probes per family: `data.size`, else 640, or 64 for samples."""
    from data_loaders.change import SIZE, SMOKE

    usual = SMOKE if wanted.source == "sample" else SIZE
    return usual if wanted.size == "all" else int(wanted.size)


def _fewer(wanted: DataCut, cut: LazyCases, *, suite: bool) -> str:
    """A text such as `200 questions asked, 2 given (data.max_cases=2)`, for the suite `change` about probes a family; empty if none are
    missing."""
    limit, size = wanted.max_cases, wanted.size
    if suite:
        from data_loaders.change import VARIANTS, probes

        asked, given = _probes(wanted), sum(1 for case in cut for _ in probes(case)) // len(VARIANTS)
        why = "data.max_cases" if limit is not None else "the data has no more histories"
        return f"{counted(asked, 'probe')} a family asked, {given} given ({why})" if given < asked else ""
    if size != "all" and (given := sum(len(case.questions) for case in cut)) < int(size):
        why = f"data.max_cases={limit}" if len(cut) == limit else "the data has no more"
        return f"{counted(size, 'question')} asked, {given} given ({why})"
    if size == "all" and limit is not None and len(cut) < limit:
        return f"{counted(limit, 'history')} asked, {len(cut)} given (the data has no more)"
    return ""


def _transformed(wanted: DataCut, cases: LazyCases) -> LazyCases:
    """Apply `data.transform`. The suite `change` has `data.size` probes per family and at most `data.max_cases` hosts."""
    from data_loaders.change import change
    from data_loaders.transforms import oracle, permute, shuffle_sessions

    name, _, order = str(wanted.transform).partition(":")
    seed = wanted.seed + ORDER_SEEDS * int(order or 0)
    if name.startswith("change"):
        held_out = name == "change_held_out"
        return change(cases, seed=seed, size=_probes(wanted), hosts=wanted.max_cases, held_out=held_out)
    if name == "oracle":
        return oracle(cases)
    if name in ("permute", "permute_between_questions", "permute_exchanges"):
        between, exchanges = name == "permute_between_questions", name == "permute_exchanges"
        return cases.mapped(partial(permute, seed=seed, across_questions=not between, exchanges=exchanges))
    if name == "shuffle_sessions":
        return cases.mapped(partial(shuffle_sessions, seed=seed))
    raise RunError(f"data.transform must be one of {', '.join(TRANSFORMS)}, found {wanted.transform!r}")


AUDITED = "locomo"
"""Name of the layer that is built from the audit's file instead of a CSV file."""


def layer_of(name: str, root: Path | None) -> Layer:
    """Load an errata layer: `locomo` is the audit of LoCoMo, any other name is a CSV file of the user.

    There is no layer named LoCoMo-Refined, because its files were not available. A user who has them can write a CSV with the columns case,
    question and gold.

    Args:
        root: folder of the raw data files.

    Raises:
        DataError: a file is missing or damaged.
    """
    if name != AUDITED:
        return read_layer(Path(name).expanduser())
    # The audit covers all cases, whatever the cut of a run.
    folder = None if root is None else str(root)
    whole = DataCut(source="real", root=folder, unpinned=False, size="all", max_cases=None, transform="none", seed=0)
    released, corrected = (data(whole, load_option("dataset", f"locomo_{name}")) for name in ("audited", "corrected"))
    return audited_layer("locomo-audit", released.cases, corrected.cases)
