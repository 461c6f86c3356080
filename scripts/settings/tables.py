"""Schemas of tables, figures and sweeps; `scripts.tables.layout` explains the keys of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BeforeValidator, model_validator

from eval.report.panels import Sheet
from scripts.settings.types import (
    Aggregate,
    Count,
    Name,
    Natural,
    Positive,
    Strict,
    Text,
    Texts,
    Transform,
    Unit,
    extended,
)


def _mapping(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"must be a mapping such as {{memory: {value}}}, found {value!r}")
    return value


def _named(value: Any) -> Any:
    return {"memory": value} if isinstance(value, str) else value


def row_keys(table: Any) -> list[str]:
    """The keys `rows_<backbone>` of a table."""
    if not isinstance(table, Mapping) or "backbones" not in table:
        return []
    return [name for name in table if isinstance(name, str) and name.startswith("rows_")]


class Difference(Strict):
    row: Text | None = None
    group: Text | None = None


class MetricColumn(Strict):
    """A metric of a column group: a score or another measure (`scripts.tables.layout`)."""

    judge: Text | None = None
    metric: Text | None = None
    theirs: Text | None = None
    cost: Text | None = None
    report: Text | None = None
    tree: Text | None = None
    spread: Text | None = None
    coverage: Text | None = None
    data: Text | None = None
    fact: Literal["recall", "price", "conformance"] | None = None
    title: Text | None = None
    scale: float = 1.0
    by: dict[str, str | None] = {}
    category: Text | None = None
    published: dict[str, str] | None = None
    minus: Difference | None = None
    of: Text | None = None
    product: dict[Text, Literal["mean", "complement"]] | None = None
    rows: list[Text] = []
    over: Text = "mean"
    per: Text = ""
    primary: bool = False


class Columns(Strict):
    dataset: Text
    group: Text | None = None
    title: Text | None = None
    reader: Text | None = None
    unit: Unit | None = None
    aggregate: Aggregate | None = None
    ask: Text | None = None
    transform: Transform = "none"
    budget: Count | None = None
    rows: list[Text] = []
    published: dict[str, str] | None = None
    metrics: list[MetricColumn]


class Measure(Strict):
    level: int | None = None
    chains: bool = True


class RowFields(Strict):
    memory: Text | None = None
    answers: Text | None = None
    name: Text | None = None
    title: Text | None = None
    build: dict[str, Any] = {}
    sweep: dict[str, list[Any]] | None = None
    best_of: list[Text] | None = None
    chosen_on: Literal["test", "others"] | None = None
    published: dict[str, str] | None = None
    measure: Measure | None = None
    unit: Unit | None = None
    groups: list[Text] | None = None
    values: dict[str, Any] = {}
    drawn: bool = True


Row = Annotated[RowFields, BeforeValidator(_mapping)]
Other = Annotated[RowFields, BeforeValidator(_named)]


class PaperModels(Strict):
    memory: Text | None = None
    reader: Text | None = None
    judge: Text | None = None
    probe: Text | None = None
    embedder: Text | None = None


class Backbone(Strict):
    file: Texts
    models: PaperModels
    published: dict[str, str] | None = None


class NotReproduced(Strict):
    match: dict[str, Any]
    reason: Text


class Table(Strict):
    """A table; keys `rows_<backbone>` are left out here and checked as `rows` (`scripts.settings.checking`)."""

    name: Name
    title: Text
    paper: Text
    backbones: dict[str, Backbone]
    columns: list[Columns]
    rows: list[Row]
    others: list[Other] = []
    notes: list[Text] = []
    repeats: Count = 1
    """Number of times that the paper judged each answer: the minimum of `judge.repeats` in profile=paper."""
    reference: str = ""
    not_reproduced: list[NotReproduced] = []

    @model_validator(mode="before")
    @classmethod
    def _without_rows_of_backbones(cls, values: Any) -> Any:
        own = row_keys(values)
        return {name: value for name, value in values.items() if name not in own} if own else values


class StatedPoint(Strict):
    """A point of a figure that its paper states in a sentence."""

    panel: str
    series: str
    x: Any
    find: dict[str, str]
    scale: float = 1.0


class StatedRatio(Strict):
    """A ratio of two series of a panel that a figure's paper states in a sentence."""

    panel: str
    over: Text
    under: Text
    find: dict[str, str]


class FigureFields(Strict):
    name: Name
    paper: Text
    table: Text
    show: Literal["scores", "levels", "depths", "tree", "map", "hits", "triplets", "growth"]
    rows: list[Row] = []
    columns: list[Columns] = []
    groups: list[Text] = []
    take: Count | None = None
    without: list[Text] = []
    base: list[Text] = []
    base_series: str = ""
    backbone: Text | None = None
    backbones: list[Text] = []
    panel: str = ""
    series: str = ""
    x: Any = None
    names: dict[str, Any] = {}
    measures: dict[str, str] = {}
    categories: list[Text] = []
    case: Text | None = None
    triplets: Count | None = None
    sizes: dict[str, list[Count]] = {}
    window: Count = 10
    reads: Natural = 0
    questions: Natural = 0
    score: bool = False
    panels: dict[str, list[Text]] = {}
    marks: Text | None = None
    notes: list[Text] = []
    published: list[StatedPoint] = []
    ratios: list[StatedRatio] = []


_DRAWN = get_type_hints(Sheet) | {
    "draw": Literal["lines", "bars", "stacked", "heatmap", "tree", "map", "pareto"],
    "spacing": Literal["linear", "log", "even"],
    "across": Count,
    "width": Positive,
    "height": Positive,
}
FIGURE = extended(
    "Figure",
    FigureFields,
    {
        field.name: (_DRAWN[field.name], ... if field.default is MISSING else None)
        for field in fields(Sheet)
        if field.name != "footnote"
    },
)


class Sweep(Strict):
    name: Name
    title: Text
    repeats: Count = 1
    """As for a table: the minimum of `judge.repeats` in profile=paper."""
    models: PaperModels
    read: list[dict[str, list[Any]]]
    columns: list[Columns]
