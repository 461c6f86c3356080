"""Read the YAML of a table: its rows, its column groups with their data sets, and the published number of each cell. Nothing is run.

A row names a memory (`memory`, with settings changed under `build`), published answers (`answers`, a file of `conf/answers`), the best of
other rows (`best_of`), or only the data (`name` alone). A column group names a data set. Each of its metrics is a score (`judge`, a lexical
`metric`, or `theirs`: the grades that came with published answers) or another measure (`cost`, `report`, `tree`, `spread`, `coverage`,
`data`). `by` gives a metric one column per category; `minus` subtracts another row or group; `primary` names the score of a group whose
differences from the table's `reference` are tested, instead of the first score; the other metrics are exploratory. `of` restricts a score
to a category within that of `by`; `product` multiplies its means over several categories, each unchanged (`mean`) or subtracted from 1
(`complement`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import product
from re import sub
from typing import Any

from data_loaders.schema import DataError
from eval.files.imported import THEIRS
from eval.files.run_folder import judge_metric
from eval.files.store import RunError
from eval.report.cell import ALL, Asked
from eval.report.measures import NAMES
from eval.running.reader import Reader
from scripts.assembly.datasets import Data, data
from scripts.assembly.steps import metric_title
from scripts.settings.schema import Chosen, Settings
from scripts.setup.arguments import as_called
from scripts.setup.options import load_option, metric_options, options, profile_settings

DATA_CUTS = ("source", "size", "max_cases", "transform", "seed")
"""Settings of `data` that choose histories and questions."""
FIGURES = ("cost", "report", "tree", "spread", "coverage", "data", "fact")
SCORES = ("judge", "metric", "theirs")


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table before it is run."""

    name: str
    title: str
    memory: Mapping[str, Any] | None
    """Values of the memory's file; None if the row has none."""
    option: Mapping[str, Any]
    """The row in the table's YAML."""
    ruled: bool
    """Whether a rule is printed above the row."""
    answers: Mapping[str, Any] | None = None
    """Values of the file of `conf/answers` whose answers the row shows; None for every other row."""
    published: Mapping[str, str] | None = None
    """Fields that identify the row in the published table; None for an unpublished row."""


def read_lines_of(table: Mapping[str, Any], backbone: str | None) -> list[TableRow]:
    """Return all rows: published rows, then the others below a rule.

    Raises:
        RunError: two rows share a name or title, a `best_of` matches no row, or a row names an unknown memory.
    """
    printed = [option for row in table.get(f"rows_{backbone}") or table["rows"] for option in _swept(row)]
    others = [
        option for row in table.get("others", ()) for option in _swept({"memory": row} if isinstance(row, str) else row)
    ]
    known = options("memory")
    for option in (*printed, *others):
        if "memory" in option and option["memory"] not in known:
            near = _near(str(option["memory"]), known)
            raise RunError(f"{table['name']}: a row names {option['memory']!r}, which is not a memory{near}")
    lines = []
    for place, option in enumerate([*printed, *others]):
        file = option.get("memory")
        answers = load_option("answers", option["answers"]) if "answers" in option else None
        memory = load_option("memory", file) if file is not None else None
        if memory is not None and "build" in option:
            memory = {**memory, "build": {**memory["build"], **option["build"]}}
        name = str(option.get("name") or file or option.get("answers"))
        title = option.get("title") or (memory or answers or {}).get("title") or name
        ruled = place == len(printed)
        lines.append(TableRow(name, title, memory, option, ruled, answers, option.get("published")))
    for attribute in ("name", "title"):
        values = [getattr(line, attribute) for line in lines]
        if repeated := {value for value in values if values.count(value) > 1}:
            raise RunError(f"{table['name']}: rows of the same {attribute}: {', '.join(sorted(repeated))}")
    for line in lines:
        if "best_of" in line.option and not candidates(line, lines):
            raise RunError(f"{table['name']}: no row matches best_of of {line.name}")
    return lines


def read_columns(
    name: str, columns: Sequence[Mapping[str, Any]], lines: Sequence[TableRow], *, keep_models: bool = False
) -> dict[str, tuple[TableMetric, ...]]:
    """The metrics of each column group, by the group's name.

    Args:
        name: the table or sweep, for messages.
        columns: all its column groups.
        lines: all its rows.
        keep_models: see `metrics_of`.

    Raises:
        RunError: column groups share a name, `metrics_of` refuses a metric, or a metric subtracts an unknown row.
    """
    groups = [group_name(column) for column in columns]
    if repeated := {group for group in groups if groups.count(group) > 1}:
        raise RunError(
            f"{name}: column groups of the same name: {', '.join(sorted(repeated))}; give each its own `group`"
        )
    rows = [line.name for line in lines]
    metrics: dict[str, tuple[TableMetric, ...]] = {}
    for group, column in zip(groups, columns, strict=True):
        try:
            metrics[group] = metrics_of(column, keep_models=keep_models)
        except RunError as error:
            raise RunError(f"{name}, {error}") from error
        for row in [metric.minus.get("row") for metric in metrics[group] if metric.minus is not None]:
            if row and row not in rows:
                raise RunError(f"{name}, {group}: no row called {row}{_near(row, rows)}; there are: {', '.join(rows)}")
    return metrics


def wanted_columns(table: Mapping[str, Any], columns: Sequence[str] | None) -> list[Mapping[str, Any]]:
    """The column groups that `columns` gives by name or title; None means all. Raises RunError if one of them is unknown."""
    known = {group_name(option): option for option in table["columns"]}
    if columns is None:
        return list(known.values())
    titles = {
        name: str(option.get("title") or load_option("dataset", option["dataset"])["title"])
        for name, option in known.items()
    }
    names = named(columns, titles, f"columns: {{}} is no column group of {table['name']}")
    return [option for name, option in known.items() if name in names]


def wanted_rows(
    table: Mapping[str, Any], lines: Sequence[TableRow], only: Sequence[str] | None
) -> frozenset[str] | None:
    """Names of the rows that `only` gives by name or title; None means all. Raises RunError if one of them is unknown."""
    if only is None:
        return None
    titles = {line.name: line.title for line in lines}
    return frozenset(named(only, titles, f"only: {{}} is no row of {table['name']}"))


def named(wanted: Sequence[str], titles: Mapping[str, str], message: str) -> list[str]:
    """The names in `titles` whose name or title is in `wanted`.

    Args:
        titles: titles by name; a title that several names share selects all of them.
        message: the error, with `{}` for the unknown names.

    Raises:
        RunError: a name is unknown; the text is `message`, the nearest name and all known names.
    """
    matches = {word: [name for name, title in titles.items() if word in (name, title)] for word in wanted}
    if unknown := [word for word, names in matches.items() if not names]:
        near = _near(unknown[0], [*titles, *titles.values()])
        known = ", ".join(name if name == title else f"{name} ({title})" for name, title in titles.items())
        raise RunError(f"{message.format(', '.join(unknown))}{near}; there are, by name (title): {known}")
    return [name for names in matches.values() for name in names]


def _near(word: str, known: Sequence[str]) -> str:
    """The nearest known names as a question; empty when none is near."""
    folded = {name.casefold(): name for name in reversed(known)}
    near = [folded[match] for match in get_close_matches(word.casefold(), folded, cutoff=0.5)]
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def restriction(
    table: Mapping[str, Any], full: Mapping[str, Any], only: Sequence[str] | None, columns: Sequence[str] | None
) -> str:
    """Suffix for the file names of a restricted table, so that the files of the whole table are kept; empty for the whole table.

    Args:
        table: the composed table, with the changes of the command line.
        full: the table of the file in `conf/table`.
        only: names of the requested rows; None for all.
        columns: names of the requested column groups; None for all.
    """
    changed = [part for part in ("rows", "others", "columns") if table.get(part) != full.get(part)]
    parts = [("only", only), ("columns", columns)]
    if {"rows", "others"} & set(changed):
        parts.append(("rows", [line.name for line in read_lines_of(table, None)]))
    if "columns" in changed:
        parts.append(("groups", [group_name(column) for column in table["columns"]]))
    return "".join(f"-{part}-{joined(names)}" for part, names in parts if names is not None)


def variation(cfg: Chosen) -> str:
    """Suffix for the file names of a table with other data, sizes or models than its profile's; empty if there are none.

    Two commands that differ in these write two tables, and neither replaces the other. It is computed before models are filled in.
    """
    usual = profile_settings(cfg.profile_name)
    cuts = {name: getattr(cfg.data, name) for name in DATA_CUTS}
    parts = [(name, [str(value)]) for name, value in cuts.items() if value != usual["data"][name]]
    chosen = [*dict(cfg.models).values(), cfg.local.model]
    named = [str(name).rpartition("/")[2] for name in chosen if name is not None]
    models = [name for name in dict.fromkeys(named) if name != usual["local"]["model"]]
    return "".join(f"-{part}-{joined(values)}" for part, values in [*parts, *([("models", models)] if models else [])])


def joined(names: Sequence[str]) -> str:
    """Names joined for a file name; a long list becomes its length and a hash."""
    text = "+".join(sub(r"[^\w.=-]+", "_", name) for name in names)
    return text if len(text) <= 60 else f"{len(names)}_{sha256(text.encode()).hexdigest()[:8]}"


def candidates(line: TableRow, lines: Sequence[TableRow]) -> list[TableRow]:
    """The rows that a `best_of` row chooses from (names or patterns), in the order of the table."""
    patterns = line.option["best_of"]
    return [row for row in lines if row.memory is not None and any(fnmatchcase(row.name, each) for each in patterns)]


def _swept(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The row itself, or one row for each combination of the values under `sweep`."""
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


def group_name(column: Mapping[str, Any]) -> str:
    """Name of a column group: its `group`, else its data set."""
    return str(column.get("group") or column["dataset"])


@dataclass(frozen=True, slots=True)
class TableMetric:
    """A metric of a column group in one category: a column of the table before it has cells."""

    kind: str
    """One of `SCORES` or `FIGURES`."""
    name: str
    """What the kind names: a judge (`file@model` with the paper's model), a lexical metric, a cost, …"""
    title: str
    """Title with the category, as printed."""
    whole_title: str
    """Title without the category."""
    judge: str
    """The judge that is asked; empty for a metric without one."""
    score: str
    """Name of the score files; empty for a measure that is no score."""
    category: str
    primary: bool
    """Whether its differences from the table's reference are tested."""
    of: str
    """The category that the questions are in, too."""
    scale: float
    """Published numbers are divided by it."""
    over: str
    per: str
    """How a measure is taken over histories, and what it is divided by (`eval.report.measures`)."""
    published: Mapping[str, str] = field(hash=False)
    """Fields that identify its published numbers."""
    rows: Sequence[str] | None = field(hash=False)
    """Rows with a published number; None for all."""
    minus: Mapping[str, str] | None = field(hash=False)
    product: Mapping[str, str] | None = field(hash=False)


def metrics_of(column: Mapping[str, Any], *, keep_models: bool = False) -> tuple[TableMetric, ...]:
    """The metrics of a column group, repeated for each category under `by`.

    The primary metric is the one marked `primary: true`, else the first score. If it is split by category, it is tested over all
    questions if the table prints that, else in each category.

    Args:
        column: the group in the table's YAML.
        keep_models: whether `judge@model` is asked with its model, not with `models.judge`.

    Raises:
        RunError: a metric names no kind or several, or does not exist; several metrics are marked, or one that is no score.
    """
    made = [
        _metric(group_name(column), option, category, printed, keep_models)
        for option in column["metrics"]
        for category, printed in option.get("by", {option.get("category", ALL): None}).items()
    ]
    scores = [each for each in made if each.kind in SCORES and each.minus is None and each.product is None]
    if sum(bool(option.get("primary")) for option in column["metrics"]) > 1:
        raise RunError(f"{group_name(column)}: one metric can be primary")
    if any(each.primary and each not in scores for each in made):
        raise RunError(f"{group_name(column)}: only a score can be primary")
    marked = [each for each in scores if each.primary] or scores
    own = [each for each in marked if each.whole_title == marked[0].whole_title]
    tested = [each for each in own if each.category == ALL][:1] or own
    return tuple(replace(metric, primary=any(metric is each for each in tested)) for metric in made)


def _metric(
    group: str, option: Mapping[str, Any], category: str, printed: str | None, keep_models: bool
) -> TableMetric:
    kinds = [kind for kind in (*SCORES, *FIGURES) if kind in option]
    if len(kinds) != 1:
        raise RunError(f"{group}: a metric must name one of {', '.join((*SCORES, *FIGURES))}; found {sorted(option)}")
    (kind,) = kinds
    name = str(option[kind])
    known = metric_options() if kind == "metric" else NAMES.get(kind, [name])
    if name not in known and not (kind == "cost" and name.startswith("calls:")):
        raise RunError(f"{group}: no {kind} called {name}{_near(name, [*known])}; there are: {', '.join(known)}")
    judge = name if keep_models else name.partition("@")[0]
    scores = {"judge": judge_metric(judge), "metric": name, "theirs": f"{THEIRS}{name}"}
    plain = {"judge": judge_metric(name), "metric": name}  # the title names the paper's model, whoever judges
    title = option.get("title") or (metric_title(plain[kind]) if kind in plain else f"{kind} {name}")
    return TableMetric(
        kind=kind,
        name=name,
        title=title if category == ALL else f"{title}, {category}",
        whole_title=title,
        judge=judge if kind == "judge" else "",
        score=scores.get(kind, ""),
        category=category,
        primary=option.get("primary", False),
        of=option.get("of", ALL),
        scale=option.get("scale", 1.0),
        over=option.get("over", "mean"),
        per=option.get("per", ""),
        published={**option.get("published", {}), **({} if printed is None else {"category": printed})},
        rows=option.get("rows"),
        minus=option.get("minus"),
        product=option.get("product"),
    )


def belongs(line: TableRow, column: Mapping[str, Any]) -> bool:
    """Whether a row has cells in a column group."""
    name = group_name(column)
    return line.name in column.get("rows", [line.name]) and name in line.option.get("groups", [name])


def reference(
    backbone: Mapping[str, Any], line: TableRow, column: Mapping[str, Any], metric: TableMetric
) -> dict[str, str] | None:
    """Fields that identify the published number of a cell; None for a cell outside the paper.

    The score of a category whose published name is not given is outside the paper: the number of all questions is not its number.
    """
    if line.published is None or not belongs(line, column) or not (metric.rows is None or line.name in metric.rows):
        return None
    parts = (backbone.get("published"), column.get("published"), metric.published, line.published)
    wanted = {name: value for part in parts for name, value in (part or {}).items()}
    named = metric.category == ALL or "category" in wanted
    return wanted if "metric" in wanted and named else None


@dataclass(frozen=True, slots=True)
class ColumnGroup:
    """A column group of a table with its data set."""

    option: Mapping[str, Any]
    """The group in the table's YAML."""
    name: str
    title: str
    metrics: tuple[TableMetric, ...]
    """Its columns, in order."""
    dataset: Data | None
    """The data set; None if it could not be loaded."""
    missing: str
    """The reason why the data set could not be loaded; empty if it was."""
    reader: Reader
    questions: tuple[Asked, ...]
    unit: Mapping[str, Any]
    """Unit rule of the group, else of its data set."""
    config: Mapping[str, Any]
    """Values of the data set's file, with the name, title and aggregate of the group."""

    def keys(self, category: str) -> frozenset[tuple[str, str]]:
        """Case and question ids of the questions of a category."""
        return frozenset(question.key for question in self.questions if question.belongs_to(category))


def column_group(cfg: Settings, option: Mapping[str, Any], metrics: tuple[TableMetric, ...]) -> ColumnGroup:
    """Load the data set of a column group, cut by the configuration; a missing real data set is noted in `missing`.

    Args:
        cfg: only `data` is read.
        option: the group in the table's YAML.
        metrics: of the group (`read_columns`).

    Raises:
        DataError: a sample, which is shipped, cannot be loaded.
        RunError: the group and the configuration both set a transform.
    """
    wanted = cfg.data
    if "transform" in option:
        if wanted.transform != "none":
            raise RunError(
                f"{group_name(option)} sets the transform {option['transform']} itself; data.transform must be none"
            )
        wanted = wanted.changed(transform=option["transform"])
    config = load_option("dataset", option["dataset"])
    config["title"] = option.get("title") or config["title"]
    shown_by = Reader(**load_option("reader", option.get("reader") or config["reader"]))
    if (budget := option.get("budget")) is not None:  # this reader fills the budget from every recall
        shown_by = replace(shown_by, max_context_tokens=budget, fill=True)
    dataset, missing = None, ""
    try:
        dataset = data(wanted, config)
    except DataError as error:
        if cfg.data.source != "real":
            raise
        missing = as_called(f"no data: {error}")
    questions, name = dataset.questions if dataset is not None else (), group_name(option)
    _note_empty(name, metrics, questions)
    aggregate = option.get("aggregate") or config["aggregate"][0]
    return ColumnGroup(
        option,
        name,
        config["title"],
        metrics,
        dataset,
        missing,
        shown_by,
        questions,
        option.get("unit") or config["unit"],
        {**config, "name": name, "aggregate": [aggregate]},
    )


def _note_empty(group: str, metrics: Sequence[TableMetric], questions: Sequence[Asked]) -> None:
    """Name the categories under `by` that no question has: a sample or a cut may lack them, or the name is misspelled."""
    named = dict.fromkeys(metric.category for metric in metrics)
    if questions and (empty := [name for name in named if not any(each.belongs_to(name) for each in questions)]):
        known = dict.fromkeys(name for each in questions for name in (each.category, *each.groups) if name)
        lacking = "; ".join(f"{name}{_near(name, [*known])}" for name in empty)
        note = f"note: {group}: no question of these data is in the category {lacking}; there are: {', '.join(known)}"
        print(note, file=sys.stderr)
