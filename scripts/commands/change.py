"""Test whether a memory keeps up when facts change: `python -m scripts change bm25 locomo data.size=64`.

Prints `table=change` (docs/change.md) with the memory between the controls, on histories of the data set; without a memory, all rows of
the table. `table.others=[bm25,mem0]` takes several memories. A setting of the table's row overrides the memory's own file. The
other settings, files and exit codes are those of `reproduce`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.settings.schema import Change

GROUP = "run"
CONFIG = "change"
WORDS = "memory dataset"


def main(cfg: Change) -> int:
    from scripts.tables.table import make_table

    table = dict(cfg.table)
    if cfg.memory is not None:
        named = cfg.memory["name"]
        own = [row["build"] for row in table["others"] if not isinstance(row, str) and row["memory"] == named]
        settings = {name: value for build in (cfg.memory["build"], *own) for name, value in build.items()}
        table["others"] = [{"memory": named, "build": settings}]
        table["reference"] = named if named == table["reference"] else ""  # of the whole table
    if cfg.dataset is not None:
        table["columns"] = [{**column, "dataset": cfg.dataset["name"]} for column in table["columns"]]
    return make_table(cfg.changed(table=table)).code
