"""The table for a comparison at equal budgets: every row of a table, read at each budget from one build.

Each column group is repeated for every budget, with a reader that fills it (`eval.running.reader.within`). The read settings `k` (for short
texts of `LEAST_TOKENS` tokens) and `max_tokens` are raised so that a row's recall can fill the longest budget. Other settings that limit a
recall are unchanged; a row that cannot fill a budget is marked. The whole history is read once, without a budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memsys.interface import MemorySystem
from memsys.systems import controls
from scripts.tables.layout import SCORES, TableRow, belongs, group_name, kind_of, read_lines_of

WHOLE = "full_history"
"""The memory that every row's costs are compared with; it is read without a budget."""
LEAST_TOKENS = 8
"""Tokens of a short recalled text: `k` is the longest budget divided by this."""


def budgeted(table: Mapping[str, Any], backbone: str | None, budgets: Sequence[int]) -> dict[str, Any]:
    """Build the table with a column group for each budget, and a column group without a budget for the whole history.

    Rows without a memory (published answers, best rows, published rows only) are left out, and so are columns that are no scores.
    The other controls are left out, too: they do not rank their recall, and a budget cuts by rank.
    """
    lines = [line for line in read_lines_of(table, backbone) if line.memory is not None and _ranks(line)]
    if all(line.name != WHOLE for line in lines):
        lines += read_lines_of({"name": table["name"], "rows": [], "others": [WHOLE]}, None)
    columns = [each for option in table["columns"] for each in _columns(option, lines, budgets)]
    kept = {name: table[name] for name in ("name", "title", "paper", "backbones", "notes") if name in table}
    return {**kept, "columns": columns, "rows": [_row(line, max(budgets)) for line in lines]}


def _columns(option: Mapping[str, Any], lines: Sequence[TableRow], budgets: Sequence[int]) -> list[dict[str, Any]]:
    metrics = [_plain(metric) for metric in option["metrics"] if kind_of(metric) in SCORES and "theirs" not in metric]
    rows = [line.name for line in lines if line.name != WHOLE and belongs(line, option)]
    plain = {name: value for name, value in option.items() if name not in ("published", "group")} | {"metrics": metrics}
    if not metrics or not rows:
        return []
    named = [
        {**plain, "group": group_at(option, budget), "rows": rows, "budget": budget} for budget in sorted(set(budgets))
    ]
    return [{**plain, "group": group_name(option), "rows": [WHOLE]}, *named]


def _ranks(line: TableRow) -> bool:
    target = str((line.memory or {})["build"]["_target_"])
    return line.name == WHOLE or not target.startswith(f"{controls.__name__}.")


def group_at(option: Mapping[str, Any], budget: int) -> str:
    """Name of a column group at a budget."""
    return f"{group_name(option)}@{budget}"


def _plain(metric: Mapping[str, Any]) -> dict[str, Any]:
    """A metric over its first category, without published numbers and differences."""
    kept = {name: value for name, value in metric.items() if name not in ("by", "published", "minus", "rows")}
    return kept | ({"by": {next(iter(metric["by"])): None}} if metric.get("by") else {})


def _row(line: TableRow, longest: int) -> dict[str, Any]:
    kept = {name: value for name, value in line.option.items() if name in ("memory", "build")}
    deeper = {} if line.name == WHOLE else deepened(line.memory or {}, longest)
    return {**kept, "name": line.name, "title": line.title, "build": {**kept.get("build", {}), **deeper}}


def deepened(memory: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Read settings that make a memory recall enough for the longest budget."""
    from hydra.utils import get_class

    build = memory["build"]
    enough = {"k": -(-longest // LEAST_TOKENS), "max_tokens": 2 * longest}  # whole texts rarely reach a limit exactly
    target: type[MemorySystem] = get_class(build["_target_"])
    knobs = [name for name in target.READ_KNOBS if name in enough]
    return {name: max(build[name], enough[name]) for name in knobs if isinstance(build.get(name), int)}
