"""What the YAML of a table says, before anything is run: its rows, its columns, and which printed number belongs to which cell.

A row names a memory (`memory`, with settings of its own in `build`), the better of other rows (`best_of`), or nothing but the data
(`name` alone). A column group names a data set; its metrics are a `judge`, a lexical `metric`, or a figure: `cost`, `report`, `tree`,
`spread`, `coverage`, `data`. `by` spreads a metric over categories, `minus` takes the difference from another row or group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import product
from re import sub
from typing import Any

from eval.report.cell import ALL
from eval.report.published import Published, read_published
from eval.store import RunError
from scripts.experiment.assemble import load_option, metric_title, options

FIGURES = ("cost", "report", "tree", "spread", "coverage", "data")
SCORES = ("judge", "metric")


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table before it is run."""

    name: str
    title: str
    memory: Mapping[str, Any] | None
    """None: not built, or no memory of its own."""
    option: Mapping[str, Any]
    ruled: bool

    @property
    def published(self) -> Mapping[str, str] | None:
        """What the printed row is called; None for a row that is not printed."""
        return self.option.get("published")

    @property
    def data_only(self) -> bool:
        return not {"memory", "best_of"} & self.option.keys()


def read_lines_of(table: Mapping[str, Any], backbone: str | None) -> list[Line]:
    """All rows: the published ones, then the others below a rule.

    Raises:
        RunError: two rows of one name or title, a `best_of` that fits none, or an unknown memory below the rule.
    """
    printed = [one for row in table.get(f"rows_{backbone}") or table["rows"] for one in _swept(row)]
    others = [
        one for row in table.get("others", ()) for one in _swept({"memory": row} if isinstance(row, str) else row)
    ]
    known = options("memory")
    for option in others:  # a published row may name what is not built yet
        if "memory" in option and option["memory"] not in known:
            near = _near(str(option["memory"]), known)
            raise RunError(f"{table['name']}: others name {option['memory']!r}, which is no memory{near}")
    lines = [_line(option, known, place == len(printed)) for place, option in enumerate([*printed, *others])]
    for what in ("name", "title"):
        called = [getattr(line, what) for line in lines]
        if twice := {one for one in called if called.count(one) > 1}:
            raise RunError(f"{table['name']}: rows of the same {what}: {', '.join(sorted(twice))}")
    for line in lines:
        if "best_of" in line.option and not candidates(line, lines):
            raise RunError(f"{table['name']}: nothing fits best_of of {line.name}")
    return lines


def wanted_columns(table: Mapping[str, Any], columns: Sequence[str] | None) -> list[Mapping[str, Any]]:
    """The column groups that are asked for, by name or title; None: all.

    Raises:
        RunError: an unknown one.
    """
    known = {group_name(option): option for option in table["columns"]}
    if columns is None:
        return list(known.values())
    titles = {
        name: str(option.get("title") or load_option("dataset", option["dataset"])["title"])
        for name, option in known.items()
    }
    names = named(columns, titles, f"columns: {{}} is no column group of {table['name']}")
    return [option for name, option in known.items() if name in names]


def wanted_rows(table: Mapping[str, Any], lines: Sequence[Line], only: Sequence[str] | None) -> frozenset[str] | None:
    """Names of the rows that are asked for, by name or title; None: all.

    Raises:
        RunError: an unknown one.
    """
    if only is None:
        return None
    titles = {line.name: line.title for line in lines}
    return frozenset(named(only, titles, f"only: {{}} is no row of {table['name']}"))


def named(wanted: Sequence[str], titles: Mapping[str, str], message: str) -> list[str]:
    """The names among `titles` that are wanted by name or by title.

    Args:
        titles: by name; several may bear one title, and all of them are then wanted.
        message: says what is wrong with `{}`, the unknown names.

    Raises:
        RunError: `message`, with the nearest names and all that there are.
    """
    found = {one: [name for name, title in titles.items() if one in (name, title)] for one in wanted}
    if unknown := [one for one, names in found.items() if not names]:
        near = "".join(_near(one, [*titles, *titles.values()]) for one in unknown[:1])
        known = ", ".join(name if name == title else f"{name} ({title})" for name, title in titles.items())
        raise RunError(f"{message.format(', '.join(unknown))}{near}; there are, by name (title): {known}")
    return [name for names in found.values() for name in names]


def _near(word: str, known: Sequence[str]) -> str:
    """The nearest known names as a question; nothing where none is near."""
    folded = {one.casefold(): one for one in reversed(known)}
    near = [folded[one] for one in get_close_matches(word.casefold(), folded, cutoff=0.5)]
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def restriction(
    table: Mapping[str, Any], full: Mapping[str, Any], only: Sequence[str] | None, columns: Sequence[str] | None
) -> str:
    """What is added to the names of a table's files where it is not the whole table, so that they stand beside the whole one's.

    Args:
        table: as it was composed, with what the command line changed.
        full: as its file has it.
        only, columns: names of the rows and column groups that were asked for; None: all.
    """
    changed = [part for part in ("rows", "others", "columns") if table.get(part) != full.get(part)]
    parts = [("only", only), ("columns", columns)]
    if {"rows", "others"} & set(changed):
        parts.append(("rows", [line.name for line in read_lines_of(table, None)]))
    if "columns" in changed:
        parts.append(("groups", [group_name(column) for column in table["columns"]]))
    return "".join(f"-{what}-{_brief(names)}" for what, names in parts if names is not None)


def _brief(names: Sequence[str]) -> str:
    """Names for a file name; many are counted and hashed."""
    text = "+".join(sub(r"[^\w.=-]+", "_", name) for name in names)
    return text if len(text) <= 60 else f"{len(names)}_{sha256(text.encode()).hexdigest()[:8]}"


def candidates(line: Line, lines: Sequence[Line]) -> list[Line]:
    """The rows that a `best_of` row chooses among: names, or patterns of them, in the order of the table."""
    wanted = line.option["best_of"]
    return [one for one in lines if one.memory is not None and any(fnmatchcase(one.name, each) for each in wanted)]


def _swept(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The row, or one row for each combination of the settings under `sweep`."""
    grid = row.get("sweep")
    if grid is None:
        yield row
        return
    for values in product(*grid.values()):
        setting = dict(zip(grid, values, strict=True))
        suffix = " ".join(f"{name}={value}" for name, value in setting.items())
        rest = {key: value for key, value in row.items() if key != "sweep"}
        title = f"{row.get('title', row['memory'])}, {suffix}"
        build = {**row.get("build", {}), **setting}
        yield {**rest, "name": f"{row['memory']} {suffix}", "title": title, "build": build}


def _line(option: Mapping[str, Any], known: Sequence[str], ruled: bool) -> Line:
    file = option.get("memory")
    name = str(option.get("name") or file)
    memory = load_option("memory", file) if file in known and file is not None else None
    if memory is not None and "build" in option:
        memory = {**memory, "build": {**memory["build"], **option["build"]}}
    title = option.get("title") or (memory["title"] if memory else name)
    return Line(name, title, memory, option, ruled)


def group_name(column: Mapping[str, Any]) -> str:
    """What a column group is called: its `group`, else its data set."""
    return str(column.get("group") or column["dataset"])


def cells_of(column: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The metrics of a column group, one for each category that `by` names."""
    cells: list[Mapping[str, Any]] = []
    for metric in column["metrics"]:
        for ours, printed in metric.get("by", {ALL: None}).items():
            named = {} if printed is None else {"category": printed}
            cells.append({**metric, "category": ours, "published": {**metric.get("published", {}), **named}})
    return cells


def kind_of(metric: Mapping[str, Any]) -> str:
    """Which of the kinds a metric is.

    Raises:
        RunError: none of them, or several.
    """
    found = [kind for kind in (*SCORES, *FIGURES) if kind in metric]
    if len(found) != 1:
        raise RunError(f"a metric must name one of {', '.join((*SCORES, *FIGURES))}; found {sorted(metric)}")
    return found[0]


def score_name(metric: Mapping[str, Any]) -> str:
    """The name of a metric's score file."""
    return f"judge_{metric['judge']}" if "judge" in metric else str(metric["metric"])


def title_of(metric: Mapping[str, Any]) -> str:
    """What a metric's column is called."""
    kind = kind_of(metric)
    plain = metric_title(score_name(metric)) if kind in SCORES else f"{kind} {metric[kind]}"
    title = str(metric.get("title") or plain)
    category = metric.get("category", ALL)
    return title if category == ALL else f"{title}, {category}"


def belongs(line: Line, column: Mapping[str, Any]) -> bool:
    """Whether a row has anything to say in a column group."""
    name = group_name(column)
    return line.name in column.get("rows", [line.name]) and name in line.option.get("groups", [name])


def reference(
    backbone: Mapping[str, Any], line: Line, column: Mapping[str, Any], metric: Mapping[str, Any]
) -> dict[str, str] | None:
    """What identifies the printed number of a cell; None where none is looked for."""
    if line.published is None or not belongs(line, column) or line.name not in metric.get("rows", [line.name]):
        return None
    parts = (backbone.get("published"), column.get("published"), metric.get("published"), line.published)
    wanted = {name: value for part in parts for name, value in (part or {}).items()}
    return wanted if "metric" in wanted else None


def references(table: Mapping[str, Any], backbone: str) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Row, column group, metric and wanted fields of every cell that a printed number may belong to."""
    chosen = table["backbones"][backbone]
    for line in read_lines_of(table, None if backbone == "default" else backbone):
        for column in table["columns"]:
            for metric in cells_of(column):
                if (wanted := reference(chosen, line, column, metric)) is not None:
                    yield line.name, group_name(column), str(metric[kind_of(metric)]), wanted


def published_of(backbone: Mapping[str, Any]) -> tuple[Published, ...]:
    """The printed numbers of a backbone's `file`, or of several."""
    files = [backbone["file"]] if isinstance(backbone["file"], str) else backbone["file"]
    return tuple(number for file in files for number in read_published(file))


def excused(table: Mapping[str, Any], number: Published) -> str:
    """Why a printed number is not reproduced; empty when nothing says so."""
    for entry in table.get("not_reproduced", ()):
        if all(getattr(number, name) in _several(value) for name, value in entry["match"].items()):
            return str(entry["reason"])
    return ""


def _several(value: Any) -> Sequence[str]:
    return value if isinstance(value, list) else [str(value)]
