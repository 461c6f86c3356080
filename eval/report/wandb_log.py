"""Configuration, numbers, tables and figures in a Weights & Biases run, for those who keep their experiments there.

Off unless `logger=wandb` is asked for. By default the run is written below `<results>/wandb` and nothing leaves this machine (`wandb sync`
uploads it, if ever); `logger.mode=online` is the only mode that connects. What is logged is the configuration as it was composed, which
names the variable that holds a key and never the key; no host name, source or git state is collected.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval.report.rendering import as_csv
from eval.report.tables import Cell, Figure, Table
from eval.store import RunError
from memsys.llm.secrets import redact_values

MODES = ("offline", "online")


def log_table(config: Mapping[str, Any], table: Table) -> None:
    """A table with the mean of every cell; nothing unless the logger is `wandb`.

    Raises:
        RunError: an unknown logger or mode, or an online one where the network is forbidden.
    """
    with _run(config, table.name, "table") as run:
        if run is not None:
            run.summary.update(means(table))
            _log_csv(run, table.name, as_csv(table))


def log_sweep(config: Mapping[str, Any], name: str, file: Path) -> None:
    """The CSV of a sweep, one line a setting; nothing unless the logger is `wandb`.

    Raises:
        RunError: as `log_table`.
    """
    with _run(config, name, "sweep") as run:
        if run is not None:
            _log_csv(run, name, file.read_text(encoding="utf-8"))


def log_figure(config: Mapping[str, Any], name: str, files: Sequence[Path]) -> None:
    """A figure and the points it was drawn from; nothing unless the logger is `wandb`.

    Raises:
        RunError: as `log_table`.
    """
    with _run(config, name, "figure") as run:
        if run is not None:
            import wandb

            for file in files:
                if file.suffix == ".png":
                    run.log({name: wandb.Image(str(file))})
                if file.suffix == ".csv":
                    _log_csv(run, f"{name}_points", file.read_text(encoding="utf-8"))


def means(table: Table) -> dict[str, float]:
    """The number of every cell that has one, by `row/data set/metric`."""
    found = {}
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            ours = cell.estimate() if isinstance(cell, Cell) else cell.ours if isinstance(cell, Figure) else None
            if ours is not None:
                found[f"{row.name}/{column.dataset}/{column.metric}"] = ours.mean
    return found


def _log_csv(run: Any, name: str, text: str) -> None:
    import wandb

    header, *rows = csv.reader(redact_values(text).splitlines())
    run.log({name: wandb.Table(columns=list[str | int](header), data=list[Iterable[Any]](rows))})


@contextmanager
def _run(config: Mapping[str, Any], name: str, kind: str) -> Iterator[Any]:
    """A W&B run, finished behind the block; None where the logger is off."""
    chosen = config["logger"]
    if chosen["name"] == "none":
        yield None
        return
    _check(config)
    try:
        import wandb
    except ImportError as error:
        raise RunError("logger=wandb needs wandb: pip install 'memsys-bench[wandb]'") from error

    folder = Path(config["results"])  # W&B makes a folder of its own name there
    folder.mkdir(parents=True, exist_ok=True)
    quiet = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
    )
    run = wandb.init(
        project=chosen["project"],
        entity=chosen["entity"],
        mode=chosen["mode"],
        dir=str(folder),
        name=name,
        job_type=kind,
        config=redact_values(config),
        settings=quiet,
    )
    try:
        yield run
    finally:
        run.finish()


def _check(config: Mapping[str, Any]) -> None:
    chosen = config["logger"]
    if chosen["name"] != "wandb":
        raise RunError(f"logger must be none or wandb, found {chosen['name']!r}")
    if chosen["mode"] not in MODES:
        raise RunError(f"logger.mode must be one of {', '.join(MODES)}, found {chosen['mode']!r}")
    if chosen["mode"] == "online" and not config["network"]:
        raise RunError("logger.mode=online needs a profile with a network; the smoke profile has none")
