"""Schemas of the configuration: the type, range and choices of every setting.

A new setting is one line here and one in `conf/common.yaml`. Values are in the YAML: a field has a default here only if a file may
leave it out. `scripts.settings.checking` checks a configuration against these classes before a run; `scripts.tables.layout` explains the
keys of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, create_model, model_validator

from eval.judging.judge import Judge
from eval.report.panels import Sheet
from eval.running.reader import Reader
from memsys.llm.pricing import ModelSettings
from scripts.settings.types import (
    Aggregate,
    Amount,
    Count,
    FileOf,
    Name,
    Natural,
    Positive,
    Shard,
    Share,
    Size,
    Strict,
    Text,
    Texts,
    Transform,
    Unit,
    Url,
    given_prices,
)  # fmt: skip


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


Values = Annotated[list[Any], Field(min_length=1)]
"""The values of a swept setting."""


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
    sweep: dict[str, Values] | None = None
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


class ModelNames(Strict):
    """Models by role; a paper names some of them."""

    memory: Text | None = None
    reader: Text | None = None
    judge: Text | None = None
    probe: Text | None = None
    embedder: Text | None = None


class Backbone(Strict):
    file: Texts
    models: ModelNames
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


def _of(record: type, base: type[Strict] = Strict, without: str = "", **own: Any) -> type[BaseModel]:
    """Schema of a file whose values fill a dataclass: the fields of `base`, then the dataclass's but for `without`, with their types
    or those of `own`."""
    types = get_type_hints(record) | own
    known: dict[str, Any] = {}
    for field in fields(record):
        optional = field.default is not MISSING or field.default_factory is not MISSING
        if field.name != without:
            known[field.name] = (types[field.name], None if optional else ...)
    return create_model(record.__name__, __base__=base, **known)


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
    file: Text | None = None
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


FIGURE = _of(
    Sheet,
    FigureFields,
    without="footnote",
    draw=Literal["lines", "bars", "stacked", "heatmap", "tree", "map", "pareto"],
    spacing=Literal["linear", "log", "even"],
    across=Count,
    width=Positive,
    height=Positive,
)


class Sweep(Strict):
    name: Name
    title: Text
    repeats: Count = 1
    """As for a table: the minimum of `judge.repeats` in profile=paper."""
    models: ModelNames
    read: list[dict[str, Values]]
    columns: list[Columns]


# --- settings of every experiment ------------------------------------------------------------------------------------------


class DataCut(Strict):
    source: Literal["sample", "real"]
    root: Text | None
    unpinned: bool
    size: Size
    max_cases: Count | None
    transform: Transform
    seed: Natural

    @property
    def folder(self) -> Path | None:
        """`root` as a path; None if it is not set: the files are then in MEMSYS_DATA or the user's cache."""
        return None if self.root is None else Path(self.root).expanduser()


class BatchSettings(Strict):
    idle: Positive
    poll: Positive
    most_calls: Count
    enqueued_tokens: Count | None
    discount: Share


class EndpointSettings(Strict):
    mode: Literal["live", "batch", "collect"]
    batch: BatchSettings
    base_url: Url | None
    label: Text | None
    key_env: Text
    in_flight: Count
    rpm: Positive | None
    tpm: Positive | None
    timeout: Positive
    retries: Natural
    backoff: Amount
    patience: Amount
    max_reply_mb: Positive
    max_output_tokens: Count | None
    probe: bool


class Local(Strict):
    model: Text | None
    embedder: Text | None
    window: Count
    slots: Count
    threads: Count | None


class LocalModel(Strict):
    """A file of `conf/local`: the source of a model that runs on this machine."""

    title: Text
    bytes: Count
    sha256: Text
    licence: Text
    wheel: Text | None = None
    member: Text | None = None
    url: Url | None = None


class RoleEndpoint(Strict):
    base_url: Url | None
    key_env: Text | None


class RoleEndpoints(Strict):
    memory: RoleEndpoint
    reader: RoleEndpoint
    judge: RoleEndpoint
    probe: RoleEndpoint
    embedder: RoleEndpoint


class Building(Strict):
    seed: Natural
    replicates: Count
    published: Count | None
    rebuild_every: Count


class Judgements(Strict):
    repeats: Count
    corrected: bool


class Nodes(Strict):
    vectors: bool | None


class Logger(Strict):
    name: Literal["none", "wandb", "otel"]
    project: Text | None = None
    entity: Text | None = None
    mode: Literal["offline", "online"] = "offline"
    texts: bool = False


class RayCluster(Strict):
    address: Text


class Settings(Strict):
    """Settings of every command: `conf/common.yaml`, and the name from the profile."""

    profile_name: Name
    logger: Logger
    data: DataCut
    models: ModelNames
    endpoint: EndpointSettings
    local: Local
    endpoints: RoleEndpoints
    prices: Annotated[dict[str, dict[str, float]], PlainValidator(given_prices)]
    """Prices, as settings of `ModelSettings`, by model."""
    build: Building
    judge: Judgements
    nodes: Nodes
    k_evidence: Count
    results: Text
    cache: Text | None
    prompts_dir: Text | None
    replay: bool
    threads: Count | None
    executor: Literal["auto", "threads", "processes", "ray"]
    ray: RayCluster
    workers: Count | None
    shard: Shard | None
    max_usd: Amount | None
    yes: bool
    network: bool
    max_unscored: Share
    traceback: bool

    @property
    def plain(self) -> dict[str, Any]:
        """The settings as plain values, in the form of a file of `conf`."""
        return self.model_dump(exclude_unset=True, by_alias=True)

    @property
    def missing_limit(self) -> float:
        """The largest share of a cell's questions that may be unscored: all in a shard, because other commands answer most of them."""
        return self.max_unscored if self.shard is None else 1.0


# --- the files of conf --------------------------------------------------------------------------------------------------


class Fallback(Strict):
    """Data to use if the official release of a data set is missing."""

    file: Text
    missing: Text = ""
    load: dict[str, Any] = {}


class Dataset(Strict):
    name: Name
    title: Text
    load: dict[str, Any]
    file: Text
    sample: Text
    unit: Unit
    aggregate: list[Aggregate] = Field(min_length=1)
    metrics: list[Text]
    judges: list[Text]
    reader: Text
    instead: Fallback | None = None
    also: list[Text] = []
    caption: dict[str, Any] | None = None
    metric_notes: dict[Text, Text] = {}
    """Sentences for tables with a metric whose printed name contains the key."""
    answerable: Text = "answerable"
    untested: bool = False
    """Whether its loader was written from a description and was never run on the released files."""
    published: dict[Text, Count] = {}
    """Counts that its authors published, by name (`data_loaders.source`); a run on the real files reports differing counts."""


class Memory(Strict):
    name: Name
    title: Text
    build: dict[str, Any]
    control: Literal["gold_evidence", "oracle_editor"] | None = None
    unit: Unit | None = None
    """The unit rule of a published protocol, instead of that of its class; a table's own rule has priority."""
    waived: dict[Text, Text] = {}
    """Contract tests and conformance checks that it cannot pass, with the reasons; in addition to those of its class."""
    fitted_to: Text | None = None
    """The embedder to which a threshold of its build was fitted (`memsys-bench calibrate`); tables with another embedder say so."""
    recall: Text | None = None
    """The meaning of its `k`, and what a write waits for; printed in a table's notes on recall."""
    untested: Text | None = None
    """The reason why it is not known to work, such as a service that was described from its documentation alone."""


class AnswersEntry(Strict):
    """A file of published answers; its licence, sha256 and address are in the manifest."""

    name: Name
    title: Text
    by: Text
    file: Text


READER = _of(Reader, name=Name, max_context_tokens=Count | None, answer_tokens=Count, temperature=Amount)
JUDGE = _of(Judge, name=Name, threshold=Natural)
PRICED = _of(
    ModelSettings,
    json_output=Literal["schema", "object", "none"],
    usd_per_million_in=Amount | None,
    usd_per_million_cached=Amount | None,
    usd_per_million_out=Amount | None,
    max_input_tokens=Count | None,
    rpm=Positive | None,
    tpm=Positive | None,
)


class OfAModel(Strict):
    settings: PRICED | None = None  # type: ignore[valid-type]  # a class that was made of a dataclass
    base_url: Url | None = None
    key_env: Text | None = None
    in_flight: Count | None = None


class LLM(OfAModel):
    engine: Literal["extractive", "http"]


class Embedder(OfAModel):
    engine: Literal["hashing", "local", "http"]
    model: Text | None = None
    dimension: Count | None = None
    batch: Count = 128
    query_prefix: str = ""


GROUPS: dict[str, type[BaseModel]] = {
    "dataset": Dataset,
    "memory": Memory,
    "answers": AnswersEntry,
    "reader": READER,
    "judge": JUDGE,
    "llm": LLM,
    "embedder": Embedder,
    "table": Table,
    "figure": FIGURE,
    "logger": Logger,
    "local": LocalModel,
}
"""Schemas by folder of `conf`. Files of `profile` and `sweep` are merged into the whole configuration and checked with it."""


# --- commands -----------------------------------------------------------------------------------------------------------


class Protocol(Strict):
    reader: Text | None
    judges: list[Text] | None
    unit: Annotated[dict[str, Any], FileOf(Unit)] | None


Printed = Literal["paper", "narrow", "wide", "plain"]
PRINTED = get_args(Printed)
"""Forms in which a table is printed."""


class Single(Settings):
    print: Printed | None
    dataset: Annotated[dict[str, Any], FileOf(Dataset)]
    memory: Annotated[dict[str, Any], FileOf(Memory)]
    protocol: Protocol


class Growth(Single):
    sizes: list[Count] = Field(min_length=1)
    window: Count
    reads: Natural
    questions: Natural
    score: bool


class Load(Single):
    users: list[Count] = Field(min_length=1)
    writes: Count
    reads: Natural
    write_rate: Positive
    read_rate: Positive
    patience: Amount
    seconds: Positive


class Calibrate(Single):
    tau_c: list[float] = Field(min_length=1)
    target_depth: Positive | None
    history: Text | None


class Chosen(Settings):
    """Settings of a command that runs a table or a part of it."""

    backbone: Text | None
    columns: list[Text] | None
    only: list[Text] | None


class Reproduce(Chosen):
    print: Printed | None
    errata: Text | None
    guessable: Literal["keep", "list", "exclude"]
    table: Annotated[dict[str, Any], FileOf(Table)]
    report: bool


class Change(Reproduce):
    memory: Annotated[dict[str, Any], FileOf(Memory)] | None = None
    dataset: Annotated[dict[str, Any], FileOf(Dataset)] | None = None


class Budgets(Chosen):
    table: Annotated[dict[str, Any], FileOf(Table)]
    budget: list[Count] = Field(min_length=1)


class Figures(Chosen):
    projection: Literal["pca", "umap"]
    bare: bool
    figure: Annotated[dict[str, Any], FileOf(FIGURE)]


class Sweeps(Settings):
    dataset: Annotated[dict[str, Any], FileOf(Dataset)]
    memory: Annotated[dict[str, Any], FileOf(Memory)]
    sweep: Annotated[dict[str, Any], FileOf(Sweep)]


COMMANDS: dict[str, type[Settings]] = {
    "config": Single,
    "growth": Growth,
    "load": Load,
    "calibrate": Calibrate,
    "reproduce": Reproduce,
    "change": Change,
    "budgets": Budgets,
    "figures": Figures,
    "sweep": Sweeps,
}
"""Schemas by the primary file of `conf`."""
