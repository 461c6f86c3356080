"""What `memsys-bench growth` does: build one memory, measure its cost at several sizes, print and write the CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from eval.analysis.growth import Schedule, growth_file, measure
from eval.files.store import replace_file
from scripts.assembly.datasets import data
from scripts.assembly.models import build_models
from scripts.assembly.readiness import prepared
from scripts.assembly.runs import memory_run, reader
from scripts.setup.exits import configured
from scripts.setup.replays import check_no_replay

if TYPE_CHECKING:
    from omegaconf import DictConfig


SHOWN = (
    ("covered", "read", "covered"),
    ("recalled bytes a read", "read", "recalled_bytes"),
    ("CPU seconds a read", "read", "own_cpu_seconds"),
    ("CPU seconds a unit", "one_more", "own_cpu_seconds"),
    ("calls a unit", "one_more", "calls"),
    ("tokens in a unit", "one_more", "tokens_in"),
    ("bytes of objects", "cumulative", "object_bytes"),
    ("bytes of nodes", "cumulative", "node_bytes"),
)
"""What the summary prints: its name, and line and column of the CSV."""


def growth(cfg: DictConfig) -> int:
    """Build, measure, print and write; the exit code is 2 when the input is wrong."""
    return configured(cfg, "growth", _growth)


def _growth(cfg: DictConfig) -> int:
    from omegaconf import OmegaConf

    dataset_config: dict[str, Any] = dict(OmegaConf.to_container(cfg.dataset, resolve=True))  # type: ignore[arg-type]
    memory_config: dict[str, Any] = dict(OmegaConf.to_container(cfg.memory, resolve=True))  # type: ignore[arg-type]
    sizes = tuple(int(size) for size in cfg.sizes)
    schedule = Schedule(sizes, cfg.window, cfg.reads, cfg.questions, cfg.k_evidence)
    models = prepared(cfg, build_models(cfg))
    dataset = data(cfg, dataset_config)
    answering = reader(cfg.protocol.reader or dataset_config["reader"])
    run = memory_run(cfg, models, dataset, memory_config, answering, unit=cfg.protocol.unit)
    check_no_replay(cfg, run, "growth")
    path, text = growth_file(run, dataset.name, schedule), measure(run, dataset.name, schedule)
    replace_file(path, text)
    if models.stand_ins:
        print(f"STAND-IN: {', '.join(models.stand_ins)} filled by offline engines; these are not the costs of models.")
    print(text, end="")
    for line in summary(text) if schedule.questions else ():
        print(line)
    print(f"written: {path}")
    return 0


def summary(text: str) -> Iterator[str]:
    """Lines for a reader of the CSV: each quantity at every size with its 95 % interval, and its exponent."""
    rows = list(csv.DictReader(text.splitlines()))
    asked = {row["n"]: row for row in rows if row["what"] == "cumulative"}
    for n, row in asked.items():
        failed = f", {row['failed']} failed" if int(row["failed"]) else ""
        yield f"{n} units ({row['turns']} turns): {row['questions']} questions with their evidence written{failed}"
    for title, kind, column in SHOWN:
        parts = [f"{row['n']}: {_with_interval(row, column)}" for row in rows if row["what"] == kind and row[column]]
        fits = [_with_interval(row, column) for row in rows if row["what"] == f"{kind}_exponent" and row[column]]
        if parts:
            yield f"{title}: {'; '.join(parts)}" + "".join(f"; exponent {fit}" for fit in fits)


def _with_interval(row: Mapping[str, str], column: str) -> str:
    low, high = row[f"{column}_low"], row[f"{column}_high"]
    return f"{float(row[column]):.4g}" + (f" [{float(low):.4g}, {float(high):.4g}]" if low else "")
