"""Logs configuration, numbers, tables and figures to a Weights & Biases run.

Without `logger=wandb` the functions that commands call log nothing. A command has one W&B run from its start
(`scripts.setup.live_log` logs while it works); the functions here log to that run, or to a run of their own. By default the run is
written below `<results>/wandb` and nothing leaves this machine (`wandb sync` uploads it later); only `logger.mode=online` connects. The
logged configuration names the environment variable that holds a key, never the key. No host name, source code or git state is collected,
and W&B's telemetry is off.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from eval.analysis.watching import Seen, Watcher
from eval.files.store import RunError
from eval.report.rendering import as_csv
from eval.report.tables import Table, estimate_of
from memsys.llm.secrets import redact_values

MODES = ("offline", "online")


def log_table(config: Mapping[str, Any], table: Table) -> None:
    """Log a table and the mean of every cell, if the configuration says `logger=wandb`.

    Raises:
        RunError: as `logged`.
    """
    if config["logger"]["name"] != "wandb":
        return
    with logged(config, table.name, "table") as run:
        run.summary.update(means(table) | progress_of(table))
        _log_csv(run, table.name, as_csv(table))


def log_files(config: Mapping[str, Any], kind: Literal["figure", "sweep"], name: str, files: Sequence[Path]) -> None:
    """Log a figure and its points, or the CSV of a sweep, one line per setting, if the configuration says `logger=wandb`.

    Raises:
        RunError: as `logged`.
    """
    if config["logger"]["name"] != "wandb":
        return
    with logged(config, name, kind) as run:
        import wandb

        for file in files:
            if file.suffix == ".png":
                run.log({name: wandb.Image(str(file))})
            if file.suffix == ".csv":
                _log_csv(run, name if kind == "sweep" else f"{name}_points", file.read_text(encoding="utf-8"))


def means(table: Table) -> dict[str, float]:
    """The number of every cell that has one, by `row/data set/metric`."""
    numbers = {}
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if (ours := estimate_of(cell)) is not None:
                numbers[f"{row.name}/{column.dataset}/{column.metric}"] = ours.mean
    return numbers


def progress_of(table: Table) -> dict[str, int]:
    """Values that `memsys-bench watch` shows of every run behind a table, by `runs/row/data set/name`."""
    watcher = Watcher()
    numbers: dict[str, int] = {}
    for row in table.rows:
        for dataset, folder in row.runs.items():
            if (seen := watcher.run(folder)) is not None:
                numbers |= counts_of(seen, f"runs/{row.name}/{dataset}")
    return numbers


def counts_of(seen: Seen, name: str) -> dict[str, int]:
    """Values that `memsys-bench watch` shows of a run, each under `name`."""
    counts = {"cases": seen.cases, "answered": seen.answered, "errors": seen.errors, "judged": seen.judged}
    counts |= {"tokens": seen.tokens, "failed_calls": seen.failed_calls}
    return {f"{name}/{key}": count for key, count in counts.items()}


def _log_csv(run: Any, name: str, text: str) -> None:
    import wandb

    header, *rows = csv.reader(io.StringIO(redact_values(text), newline=""))
    run.log({name: wandb.Table(columns=list[str | int](header), data=list[Iterable[Any]](rows))})


@contextmanager
def logged(config: Mapping[str, Any], name: str, kind: str) -> Iterator[Any]:
    """The W&B run of this process, or a new one that is finished when the block ends.

    Args:
        config: the plain settings of a command with `logger=wandb`.

    Raises:
        RunError: the mode is unknown, W&B is not installed, or the mode is online where the profile forbids the network.
    """
    chosen = config["logger"]
    if chosen["mode"] not in MODES:
        raise RunError(f"logger.mode must be one of {', '.join(MODES)}, found {chosen['mode']!r}")
    if chosen["mode"] == "online" and not config["network"]:
        raise RunError("logger.mode=online needs a profile with a network; the smoke profile has none")
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # else W&B calls its servers, even in offline mode
    try:
        import wandb
    except ImportError as error:
        raise RunError("logger=wandb needs wandb: pip install 'memsys-bench[wandb]'") from error
    if (begun := getattr(wandb, "run", None)) is not None:  # the run of the command
        begun.config.update(redact_values(config), allow_val_change=True)
        yield begun
        return
    folder = Path(config["results"])  # W&B makes a subfolder `wandb`
    folder.mkdir(parents=True, exist_ok=True)
    hidden = ("disable_git", "disable_code", "x_disable_meta", "x_disable_stats", "x_disable_machine_info")
    off: dict[str, Any] = {"silent": True, "console": "off", "save_code": False, **dict.fromkeys(hidden, True)}
    quiet = wandb.Settings(**off)
    named = {"project": chosen["project"], "entity": chosen["entity"], "mode": chosen["mode"], "name": name}
    run = wandb.init(**named, dir=str(folder), job_type=kind, config=redact_values(config), settings=quiet)
    try:
        yield run
    finally:
        run.finish()
