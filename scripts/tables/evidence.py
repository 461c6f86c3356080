"""Evidence that the unit rules of a table withhold from its rows.

A turn that is in no unit reaches no memory. Rules differ between the rows of a column group where memories have rules of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from data_loaders.schema import Case
from data_loaders.units import lost_evidence, make_units
from memsys.tokens import count_tokens
from scripts.assembly.runs import unit_of
from scripts.setup.options import load_option, options
from scripts.tables.column_groups import ColumnGroup, column_group
from scripts.tables.layout import TableRow, belongs, group_name, read_lines_of, table_unit

if TYPE_CHECKING:
    from scripts.settings.schema import Settings

Key = tuple[str, str]
"""Ids of a case and of its question."""
UNPAIRED = {
    "ab_pair": "turns that have no partner directly before or after them",
    "floor_pair": "the last turn of sessions with an odd number",
    "page": "turns of the user without a reply, and all replies but the last",
}
"""The turns that a unit rule leaves out."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The turns of a data set that a unit rule leaves out, and the questions that lose evidence by it."""

    dropped: int = 0
    """Turns that are in no unit."""
    turns: int = 0
    """All turns."""
    some: frozenset[Key] = frozenset()
    """Questions that lose at least one turn of their evidence."""
    wholly: frozenset[Key] = frozenset()
    """Questions that lose all of it."""

    @property
    def text(self) -> str:
        """The counts in words."""
        lose = "1 question loses" if len(self.some) == 1 else f"{len(self.some):,} questions lose"
        return f"{self.dropped:,} of {self.turns:,} turns; {lose} evidence, {len(self.wholly):,} of them all of it"


def lost(cases: Iterable[Case], unit: Mapping[str, Any]) -> Lost:
    """The evidence that a unit rule withholds; each case is taken once and let go."""
    dropped = turns = 0
    some: set[Key] = set()
    wholly: set[Key] = set()
    for case in cases:
        out = make_units(case.sessions, count=count_tokens, **unit).dropped
        missing = lost_evidence(case, out)
        dropped, turns = dropped + len(out), turns + len(case.turns)
        some |= {(case.id, question) for question in missing}
        evidence = {question.id: gold.evidence for question, gold in case.questions}
        wholly |= {(case.id, question) for question, gone in missing.items() if len(gone) == len(evidence[question])}
    return Lost(dropped, turns, frozenset(some), frozenset(wholly))


def row_units(
    option: Mapping[str, Any], lines: Sequence[TableRow], config: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """The unit rule of every row of a column group that writes a memory, by the row's title.

    Args:
        option: the column group as the table's YAML describes it.
        lines: rows of the table.
        config: values of the data set's file in `conf/dataset`.
    """
    return {
        line.title: table_unit(line, option) or unit_of(line.memory, config)
        for line in lines
        if line.memory is not None and belongs(line, option)
    }


def lost_by_row(cases: Iterable[Case], units: Mapping[str, Mapping[str, Any]]) -> dict[str, Lost]:
    """What each row loses, by title; a rule that several rows share is tried once.

    Args:
        cases: the histories of a data set; they can be read repeatedly.
        units: unit rule by row.
    """
    tried = cache(lambda rule: lost(cases, dict(rule)))
    return {row: tried(tuple(sorted(unit.items()))) for row, unit in units.items()}


def differ(losses: Mapping[str, Lost]) -> bool:
    """Whether the rows of a column group lose the evidence of different questions."""
    return len({(each.some, each.wholly) for each in losses.values()}) > 1


def evidence_lines(groups: Sequence[ColumnGroup], lines: Sequence[TableRow]) -> list[str]:
    """Caption lines of a table whose rows lose evidence to their unit rules, one for each column group."""
    said = []
    for group in groups:
        if group.dataset is not None:
            units = row_units(group.option, lines, group.dataset.config)
            said.append(evidence_line(group.title, units, lost_by_row(group.dataset.cases, units)))
    return [line for line in said if line]


def evidence_line(title: str, units: Mapping[str, Mapping[str, Any]], losses: Mapping[str, Lost]) -> str:
    """The caption line of a column group: which rows lose evidence of how many questions; empty where none does.

    Args:
        title: of the column group.
        units: unit rule by row.
        losses: what each row loses.
    """
    losing: dict[tuple[str, str], list[str]] = {}
    for row, each in losses.items():
        if each.some:
            losing.setdefault((str(units[row]["rule"]), each.text), []).append(row)
    if not losing:
        return ""
    parts = [
        f"{', '.join(rows) if differ(losses) else 'every row'}: the unit rule {rule} leaves out {UNPAIRED[rule]}: {text}"
        for (rule, text), rows in losing.items()
    ]
    complete = any(not each.some for each in losses.values())
    warning = "ROWS DO NOT SEE THE SAME TURNS. " if differ(losses) else ""
    return f"Evidence, {title}: {warning}{'. '.join(parts)}.{' Every other row has all evidence.' if complete else ''}"


def evidence_of_tables(cfg: Settings) -> Iterator[tuple[str, str, str]]:
    """For every column group of every file of `conf/table`: both names, and the caption line about lost evidence, empty for none.

    No model is called and no memory is built. A column group whose data set is not there says so.

    Args:
        cfg: a configuration of `memsys-bench reproduce`; only `data` is read.
    """
    loaded: dict[tuple[str, str], ColumnGroup] = {}
    for name in options("table"):
        table = load_option("table", name)
        by_backbone = (read_lines_of(table, None if each == "default" else each) for each in table["backbones"])
        lines = list({line.name: line for lines in by_backbone for line in lines}.values())
        for option in table["columns"]:
            key = (option["dataset"], option.get("transform", "none"))
            group = loaded.setdefault(key, loaded.get(key) or column_group(cfg, option))
            if group.dataset is None:
                yield name, group_name(option), group.missing
            else:
                units = row_units(option, lines, group.dataset.config)
                yield (
                    name,
                    group_name(option),
                    evidence_line(group.title, units, lost_by_row(group.dataset.cases, units)),
                )
