"""The rows of a table that show answers of others (`conf/answers`): their runs, imported from the files below the data root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from data_loaders.schema import DataError
from data_loaders.source import find, manifest
from eval.files.store import RunError
from eval.running.run import Run
from scripts.answers.formats import read_answers
from scripts.answers.importing import Origin, import_run
from scripts.assembly.datasets import Data, check_data_root
from scripts.assembly.models import Models
from scripts.tables.column_groups import ColumnGroup
from scripts.tables.layout import TableRow, belongs

if TYPE_CHECKING:
    from scripts.settings.schema import Settings


def published_answers(
    cfg: Settings, models: Models, groups: Sequence[ColumnGroup], lines: Sequence[TableRow]
) -> tuple[dict[tuple[str, str, int], Run], dict[tuple[str, str], str]]:
    """Import the answers of every such row.

    Returns the runs by row, column group and replicate, and by row and column group why answers are not there.
    """
    runs: dict[tuple[str, str, int], Run] = {}
    absent: dict[tuple[str, str], str] = {}
    for line in lines:
        for group in groups:
            if line.answers is None or group.dataset is None or not belongs(line, group.option):
                continue
            try:
                runs[line.name, group.name, 0] = _imported(cfg, models, group.dataset, line.answers)
            except (DataError, RunError) as error:
                absent[line.name, group.name] = f"no data: {error}"
    return runs, absent


def _imported(cfg: Settings, models: Models, dataset: Data, option: Mapping[str, Any]) -> Run:
    if cfg.data.source != "real":
        raise RunError("the answers are to the real data; set data.source=real (make … PROFILE=subset)")
    found = find(option["file"], root=check_data_root(cfg.data), unpinned=cfg.data.unpinned)
    entry = manifest()[option["file"]]
    origin = Origin(option["name"], option["title"], option["by"], entry.licence, entry.url)
    return import_run(cfg, models, dataset, partial(read_answers, path=found.path), origin)
