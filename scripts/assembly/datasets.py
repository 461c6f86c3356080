"""Load a data set as the configuration asks: find its file, verify it, cut it to size, transform it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_loaders.counts import UNTESTED, compared, counts_of
from data_loaders.lazy import LazyCases, as_lazy
from data_loaders.schema import DataError
from data_loaders.source import Source, locate
from eval.files.store import RunError
from scripts.settings.checking import checked_call
from scripts.settings.types import TRANSFORMS
from scripts.setup.downloads import entries_to_download

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEPT_BYTES = 40 << 20
"""Data sets up to this size (40 MiB) are parsed once and stay in memory."""

ORDER_SEEDS = 10_000
"""Distance of the seeds of two orders of one transform (`permute:1`), more than anybody's `data.seed`."""


@dataclass(frozen=True, slots=True)
class Data:
    """A data set that is ready to run."""

    name: str
    title: str
    cases: LazyCases
    source: Source
    settings: Mapping[str, Any]
    """What identifies the data: loader settings, file hashes, size, transform, seed."""
    config: Mapping[str, Any]
    note: str = ""
    """A remark of the loader for captions."""
    fewer: str = ""
    """How many questions and histories are given where more were asked for, and why; empty where none are missing."""
    cut: bool = False
    """Whether `data.size` or `data.max_cases` leaves something out."""


def check_data_root(cfg: DictConfig) -> Path | None:
    """Return the folder of raw files that the configuration names; None when it names none.

    Raises:
        RunError: `data.root` or MEMSYS_DATA names a folder that does not exist, or `data.root` is given while samples are asked for.
    """
    if cfg.data.root and cfg.data.source == "sample":
        raise RunError(
            f"data.root={cfg.data.root} is not read while data.source=sample takes the shipped samples; "
            "add data.source=real (make … DATA= does), or leave data.root out"
        )
    named = cfg.data.root or (os.environ.get("MEMSYS_DATA") if cfg.data.source == "real" else None)
    if named and not Path(named).expanduser().is_dir():
        setting = "data.root (make … DATA=)" if cfg.data.root else "the environment variable MEMSYS_DATA"
        raise RunError(f"{setting}: no folder {named}; create it, or name the one that holds the data sets")
    return Path(cfg.data.root).expanduser() if cfg.data.root else None


def data(cfg: DictConfig, config: Mapping[str, Any]) -> Data:
    """Find, verify, load and cut a data set.

    Raises:
        DataError: a file is missing or differs from the manifest; the message says how to get it.
        RunError: `data.root` does not exist, or a loader setting is refused.
    """
    from hydra.utils import instantiate

    root = check_data_root(cfg)
    located = locate(config, real=cfg.data.source == "real", root=root, unpinned=cfg.data.unpinned)
    loading = checked_call(f"dataset {config['name']}: load", {**config["load"], **located.choices})
    source, load = located.source, {name: value for name, value in loading.items() if name != "_partial_"}
    cases = as_lazy(instantiate({**load, "_partial_": True})(source.path))
    settings = {
        "load": {name: str(value) for name, value in load.items()},
        "sha256": [source.sha256, *(file.sha256 for file in located.beside)],
        "transform": cfg.data.transform,
        "size": cfg.data.size,
        "max_cases": cfg.data.max_cases,
        "seed": cfg.data.seed,
    }
    suite = str(cfg.data.transform).startswith("change")
    cut = _changed(cfg, cases) if suite else _cut(cfg, cases)
    kept = _keep_if_small(cut if suite else _transformed(cfg, cut), source.path)
    own = instantiate({**config["caption"], "_partial_": True})(source.path) if "caption" in config else ""
    note = "; ".join(filter(None, (_untested(config, source, cases), own)))
    fewer = _fewer_probes(cfg, kept) if suite else _fewer(cfg, cut)
    if fewer:
        print(f"note: {config['name']}: {fewer}", file=sys.stderr)
    less = cfg.data.size != "all" or len(cut) < len(cases)
    return Data(config["name"], config["title"], kept, source, settings, config, note, fewer, less)


def _untested(config: Mapping[str, Any], source: Source, cases: LazyCases) -> str:
    """For captions: that the loader is untested, and on real files how their counts compare with the published ones."""
    if not config.get("untested"):
        return ""
    real = source.status != "sample" and config.get("published")
    return f"{UNTESTED}{', ' + compared(config['published'], counts_of(cases)) if real else ''}"


def with_transform(cfg: DictConfig, transform: str) -> DictConfig:
    """The configuration with another `data.transform`."""
    from omegaconf import OmegaConf

    merged = OmegaConf.merge(cfg, {"data": {"transform": transform}})
    assert isinstance(merged, type(cfg))
    return merged


def fetch_missing(cfg: DictConfig, table: Mapping[str, Any]) -> None:
    """Download the files of a table's data sets; a note on standard error names those that cannot be downloaded."""
    from data_loaders.download import download
    from data_loaders.source import data_root

    root = data_root(check_data_root(cfg))
    for option in table["columns"]:
        try:
            for entry in entries_to_download(option["dataset"]):
                download(entry, root, unpinned=cfg.data.unpinned)
        except DataError as error:
            print(f"note: {option['dataset']}: {error}", file=sys.stderr)


def _keep_if_small(cases: LazyCases, path: Path) -> LazyCases:
    """Keep the parsed cases of a small data set; a case of a large one is parsed whenever it is read."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    if sum(file.stat().st_size for file in files) > KEPT_BYTES:
        return cases
    return LazyCases(cases.ids, cases.sizes, lru_cache(maxsize=None)(cases.__getitem__))


def _cut(cfg: DictConfig, cases: LazyCases) -> LazyCases:
    """Apply `data.size` and `data.max_cases`."""
    from data_loaders.transforms import shares, subset

    if cfg.data.size != "all":
        given = shares(cases, int(cfg.data.size), n_cases=cfg.data.max_cases, seed=cfg.data.seed)
        return subset(cases, n_questions=given, seed=cfg.data.seed)
    return cases if cfg.data.max_cases is None else subset(cases, n_cases=cfg.data.max_cases, seed=cfg.data.seed)


def _changed(cfg: DictConfig, cases: LazyCases) -> LazyCases:
    """The suite `change` on the histories of a data set, of `data.size` probes a family and at most `data.max_cases` hosts."""
    from data_loaders.change import change

    name, _, order = str(cfg.data.transform).partition(":")
    seed = cfg.data.seed + ORDER_SEEDS * int(order or 0)
    return change(cases, seed=seed, size=_probes(cfg), hosts=cfg.data.max_cases, held_out=name == "change_held_out")


def _probes(cfg: DictConfig) -> int:
    """Probes a family: `data.size`, else 640, of samples 64."""
    from data_loaders.change import SIZE, SMOKE

    usual = SMOKE if cfg.data.source == "sample" else SIZE
    return usual if cfg.data.size == "all" else int(cfg.data.size)


def _fewer_probes(cfg: DictConfig, suite: LazyCases) -> str:
    """`640 probes a family asked, 96 given (the data has no more histories)`; empty where they are all there."""
    from data_loaders.change import VARIANTS, probes

    given = sum(1 for case in suite for _ in probes(case)) // len(VARIANTS)
    why = "data.max_cases" if cfg.data.max_cases is not None else "the data has no more histories"
    return f"{_probes(cfg)} probes a family asked, {given} given ({why})" if given < _probes(cfg) else ""


def _fewer(cfg: DictConfig, cut: LazyCases) -> str:
    """`200 questions asked, 2 given (data.max_cases=2)`; empty where everything that was asked for is there."""
    limit, size = cfg.data.max_cases, cfg.data.size
    if size != "all" and (given := sum(len(case.questions) for case in cut)) < int(size):
        why = f"data.max_cases={limit}" if len(cut) == limit else "the data has no more"
        return f"{size} questions asked, {given} given ({why})"
    if size == "all" and limit is not None and len(cut) < limit:
        return f"{limit} histories asked, {len(cut)} given (the data has no more)"
    return ""


def _transformed(cfg: DictConfig, cases: LazyCases) -> LazyCases:
    """Apply `data.transform`.

    Raises:
        RunError: an unknown transform.
    """
    from data_loaders.transforms import oracle, permute_all, shuffle_sessions_all

    name, _, order = str(cfg.data.transform).partition(":")
    seed = cfg.data.seed + ORDER_SEEDS * int(order or 0)
    if name == "oracle":
        return oracle(cases)
    if name in ("permute", "permute_between_questions", "permute_exchanges"):
        between, exchanges = name == "permute_between_questions", name == "permute_exchanges"
        return permute_all(cases, seed=seed, across_questions=not between, exchanges=exchanges)
    if name == "shuffle_sessions":
        return shuffle_sessions_all(cases, seed=seed)
    if name != "none":
        raise RunError(f"data.transform must be one of {', '.join(TRANSFORMS)}, found {cfg.data.transform!r}")
    return cases
