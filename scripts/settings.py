"""Every setting: its type, its range, its choices. A new setting is one line here and one in `conf/common.yaml`.

The values stand in the YAML; nothing here has a default that would hide a missing one, apart from what a file may leave out.
`scripts.checking` compares a configuration with these classes before anything else happens.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, create_model

from data_loaders.units import OnUnpaired, Rule
from eval.judge import Judge
from eval.panels import Sheet
from eval.reader import Reader
from memsys.llm.pricing import ModelSettings

PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class Strict(BaseModel):
    """A mapping whose keys are all known; numbers are finite, and a number may stand for a name."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=())


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, found {str(value).lower()}")
    return value


def _size(value: Any) -> int | str:
    try:
        if value == "all" or (not isinstance(value, bool) and int(value) == float(value) >= 1):
            return value if value == "all" else int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"must be a whole number of at least 1, or all; found {value!r}")


def _url(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _mapping(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"must be a mapping such as {{memory: {value}}}, found {value!r}")
    return value


def _named(value: Any) -> Any:
    return {"memory": value} if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=PLAIN_NAME)]
"""A name that becomes a file or a folder."""
Count = Annotated[int, BeforeValidator(_number), Field(ge=1)]
Natural = Annotated[int, BeforeValidator(_number), Field(ge=0)]
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0)]
Amount = Annotated[float, BeforeValidator(_number), Field(ge=0)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)]
Size = Annotated[Any, PlainValidator(_size)]
Url = Annotated[str, PlainValidator(_url)]
Texts = Annotated[list[Text], BeforeValidator(_listed)]
Aggregate = Literal["question", "category", "case"]
Transform = Literal["none", "oracle", "permute"]


# --- what every experiment has ------------------------------------------------------------------------------------------


class DataCut(Strict):
    source: Literal["sample", "real"]
    root: Text | None
    unpinned: bool
    size: Size
    max_cases: Count | None
    transform: Transform
    seed: Natural


class Models(Strict):
    memory: Text
    reader: Text
    judge: Text
    probe: Text | None
    embedder: Text


class EndpointSettings(Strict):
    base_url: Url | None
    label: Text | None
    key_env: Text
    in_flight: Count
    timeout: Positive
    retries: Natural
    backoff: Amount
    transport: Literal["lean", "sdk"]


class Building(Strict):
    seed: Natural
    replicates: Count
    rebuild_every: Count


class Judgements(Strict):
    repeats: Count


class Nodes(Strict):
    vectors: bool | None


class Logger(Strict):
    name: Literal["none", "wandb"]
    project: Text | None = None
    entity: Text | None = None
    mode: Literal["offline", "online"] = "offline"


class Common(Strict):
    """`conf/common.yaml`, and the name that a profile gives."""

    profile_name: Name
    logger: Logger
    data: DataCut
    models: Models
    endpoint: EndpointSettings
    build: Building
    judge: Judgements
    nodes: Nodes
    k_evidence: Count
    results: Text
    cache: Text | None
    prompts_dir: Text | None
    replay: bool
    threads: Count
    max_usd: Amount | None
    yes: bool
    network: bool
    max_unscored: Share
    traceback: bool


# --- the files of conf --------------------------------------------------------------------------------------------------


class Unit(Strict):
    rule: Rule
    tokens: Count | None = None
    on_unpaired: OnUnpaired = "drop"


class Instead(Strict):
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
    instead: Instead | None = None
    also: list[Text] = []
    caption: dict[str, Any] | None = None
    answerable: Text = "answerable"


class Memory(Strict):
    name: Name
    title: Text
    build: dict[str, Any]
    gold_evidence: bool = False


def _of(record: type, **own: Any) -> type[Strict]:
    """The schema of a file that fills a dataclass: its fields with their types; `own` narrows some of them."""
    types = get_type_hints(record)
    known: dict[str, Any] = {}
    for field in fields(record):
        optional = field.default is not MISSING or field.default_factory is not MISSING
        known[field.name] = (own.get(field.name, types[field.name]), None if optional else ...)
    return create_model(record.__name__, __base__=Strict, **known)


READER = _of(Reader, name=Name, max_context_tokens=Count | None, answer_tokens=Count, temperature=Amount)
JUDGE = _of(Judge, name=Name, threshold=Natural)
PRICED = _of(
    ModelSettings,
    json_output=Literal["schema", "object", "none"],
    usd_per_million_in=Amount | None,
    usd_per_million_cached=Amount | None,
    usd_per_million_out=Amount | None,
    max_input_tokens=Count | None,
)
ENDPOINT_OF_ITS_OWN: dict[str, Any] = {"base_url": (Url | None, None), "key_env": (Text | None, None)}
LLM = create_model(
    "LLM",
    __base__=Strict,
    engine=(Literal["extractive", "http"], ...),
    settings=(PRICED | None, None),
    **ENDPOINT_OF_ITS_OWN,
)
EMBEDDER = create_model(
    "Embedder",
    __base__=Strict,
    engine=(Literal["hashing", "local", "http"], ...),
    settings=(PRICED | None, None),
    model=(Text | None, None),
    dimension=(Count | None, None),
    batch=(Count, 128),
    query_prefix=(str, ""),
    **ENDPOINT_OF_ITS_OWN,
)


class Difference(Strict):
    row: Text | None = None
    group: Text | None = None


class Measured(Strict):
    """A metric of a column group; `scripts.table_layout` says what each key does."""

    judge: Text | None = None
    metric: Text | None = None
    cost: Text | None = None
    report: Text | None = None
    tree: Text | None = None
    spread: Text | None = None
    coverage: Text | None = None
    data: Text | None = None
    title: Text | None = None
    scale: float = 1.0
    by: dict[str, str | None] = {}
    category: Text | None = None
    published: dict[str, str] | None = None
    minus: Difference | None = None
    rows: list[Text] = []
    over: Text = "mean"
    per: Text = ""


class Columns(Strict):
    dataset: Text
    group: Text | None = None
    title: Text | None = None
    reader: Text | None = None
    unit: Unit | None = None
    aggregate: Aggregate | None = None
    ask: Text | None = None
    transform: Transform = "none"
    rows: list[Text] = []
    published: dict[str, str] | None = None
    metrics: list[Measured]


class Measure(Strict):
    level: int | None = None
    chains: bool = True


class RowFields(Strict):
    memory: Text | None = None
    name: Text | None = None
    title: Text | None = None
    build: dict[str, Any] = {}
    sweep: dict[str, list[Any]] | None = None
    best_of: list[Text] | None = None
    chosen_on: Literal["test", "others"] | None = None
    published: dict[str, str] | None = None
    measure: Measure | None = None
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
    """`rows_<backbone>` is checked as `rows`, see `scripts.checking`."""

    name: Name
    title: Text
    paper: Text
    backbones: dict[str, Backbone]
    columns: list[Columns]
    rows: list[Row]
    others: list[Other] = []
    notes: list[Text] = []
    reference: str = ""
    not_reproduced: list[NotReproduced] = []


class Stated(Strict):
    """A published point of a figure."""

    panel: str
    series: str
    x: Any
    find: dict[str, str]
    scale: float = 1.0


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
    panels: dict[str, list[Text]] = {}
    marks: Text | None = None
    notes: list[Text] = []
    published: list[Stated] = []


_DRAWN = get_type_hints(Sheet) | {
    "draw": Literal["lines", "bars", "stacked", "heatmap", "tree", "map", "pareto"],
    "spacing": Literal["linear", "log", "even"],
    "across": Count,
    "width": Positive,
    "height": Positive,
}
FIGURE = create_model(
    "Figure",
    __base__=FigureFields,
    **{
        field.name: (_DRAWN[field.name], ... if field.default is MISSING else None)
        for field in fields(Sheet)
        if field.name != "footnote"
    },
)


class Sweep(Strict):
    name: Name
    title: Text
    models: PaperModels
    read: list[dict[str, list[Any]]]
    columns: list[Columns]


GROUPS: dict[str, type[BaseModel]] = {
    "dataset": Dataset,
    "memory": Memory,
    "reader": READER,
    "judge": JUDGE,
    "llm": LLM,
    "embedder": EMBEDDER,
    "table": Table,
    "figure": FIGURE,
    "logger": Logger,
}
"""Schemas by folder of `conf`; files of `profile` and `sweep` are laid over the whole and checked with it."""


# --- commands -----------------------------------------------------------------------------------------------------------


class Protocol(Strict):
    reader: Text | None
    judges: list[Text] | None
    unit: Unit | None


class Single(Common):
    dataset: Dataset
    memory: Memory
    protocol: Protocol


class Growth(Single):
    sizes: list[Count] = Field(min_length=1)
    window: Count
    reads: Natural


class Chosen(Common):
    backbone: Text | None
    columns: list[Text] | None
    only: list[Text] | None


class Reproduce(Chosen):
    table: Table


class Sweeps(Common):
    dataset: Dataset
    memory: Memory
    sweep: Sweep


FIGURES = create_model(
    "Figures", __base__=Chosen, projection=(Literal["pca", "umap"], ...), figure=(FIGURE, ...)
)

COMMANDS: dict[str, type[BaseModel]] = {
    "config": Single,
    "growth": Growth,
    "reproduce": Reproduce,
    "figures": FIGURES,
    "sweep": Sweeps,
}
"""Schemas by the name of the primary file of `conf`."""
