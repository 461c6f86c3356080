"""Types of the schemas' fields: numbers with a range, names, sizes, units; and prices by model, in USD per million tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    WrapValidator,
)
from pydantic_core import CoreSchema, core_schema

from data_loaders.units import OnUnpaired, Rule
from eval.files.store import RunError
from memsys.llm.pricing import ModelSettings

FREE = "free"
"""Value in place of a model's prices: its calls cost nothing."""
FIELDS = {"in": "usd_per_million_in", "cached": "usd_per_million_cached", "out": "usd_per_million_out"}
NOTHING = dict.fromkeys(FIELDS.values(), 0.0)
"""The price settings of a model whose calls cost nothing."""


class PriceError(RunError, ValueError):
    """Prices cannot be used. A `ValueError`, because pydantic names it together with the other faults of a command's settings."""


def given_prices(prices: Mapping[str, Any] | str | None) -> dict[str, dict[str, float]]:
    """Return the price settings of each model, from `prices={model: {in: …, out: …}}` or a YAML file with such lines.

    Raises:
        PriceError: there is neither a mapping nor a file that can be read, a price is not a number of at least 0, or its name is not one of
            in, cached, out.
    """
    if prices is not None and not isinstance(prices, str | Mapping):
        raise PriceError(f"prices must be a mapping of models or a file, found {prices!r}")
    read = _read_prices(Path(prices).expanduser()) if isinstance(prices, str) else prices or {}
    known: dict[str, dict[str, float]] = {}
    for model, fields in read.items():
        if fields == FREE:
            known[str(model)] = dict(NOTHING)
            continue
        if not isinstance(fields, Mapping) or not fields:
            raise PriceError(f"prices.{model}: expected {{in: …, out: …}} or {FREE}, found {fields!r}")
        amounts = known[str(model)] = {}
        for name, usd in fields.items():
            if name not in FIELDS:
                raise PriceError(f"prices.{model}: no price called {name!r}; there are: {', '.join(FIELDS)}")
            if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 <= usd < float("inf"):
                raise PriceError(f"prices.{model}.{name}: expected a number of USD per million tokens, found {usd!r}")
            amounts[FIELDS[name]] = float(usd)
        cached, plain = amounts.get("usd_per_million_cached"), amounts.get("usd_per_million_in")
        if cached is not None and plain is not None and cached > plain:
            raise PriceError(f"prices.{model}: a cached token ({cached}) cannot cost more than another one ({plain})")
    return known


def priced(known: Mapping[str, Any], prices: Mapping[str, Mapping[str, float]], name: str) -> ModelSettings:
    """A model's settings with the user's prices: those of the model's own name, overridden by those of its file's name."""
    return ModelSettings(**{**known, **prices.get(known["model"], {}), **prices.get(name, {})})


def how_to_give(*models: str) -> str:
    """The setting that adds prices to a command, for messages."""
    lines = ", ".join(f"{model}: {{in: USD, out: USD}}" for model in models)
    return (
        f"prices='{{{lines}}}' (per million tokens; `{models[0]}: free` for a server of your own), or the same lines in a file: "
        "prices=file.yaml (make … PRICES=file.yaml)"
    )


def _read_prices(path: Path) -> dict[str, Any]:
    import yaml

    try:
        prices = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PriceError(f"prices={path}: cannot be read ({error})") from error
    if not isinstance(prices, dict):
        raise PriceError(f"prices={path}: expected lines such as `my-model: {{in: 0.15, out: 0.60}}`")
    return prices


PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


STRICT = ConfigDict(
    extra="forbid",
    allow_inf_nan=False,
    coerce_numbers_to_str=True,
    protected_namespaces=(),
    frozen=True,
    defer_build=True,
)
"""Unknown keys and infinite numbers are refused; a number is accepted where text is expected. Nothing is changed afterwards.

A command uses few of the mappings: their validators are built on first use, which takes 0.1 s less than building all."""


class Strict(BaseModel):
    """A mapping that is checked by `STRICT`."""

    model_config = STRICT

    def changed(self, **values: Any) -> Self:
        """A copy with other values, which are not checked again; a mapping changes some settings of a section.

        Raises:
            TypeError: there is no setting of such a name.
        """
        if unknown := values.keys() - type(self).model_fields.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        sections = {name: getattr(self, name) for name, value in values.items() if isinstance(value, Mapping)}
        nested = {name: own.changed(**values[name]) for name, own in sections.items() if isinstance(own, Strict)}
        return self.model_copy(update={**values, **nested})


def _number(value: Any, check: Callable[[Any], float]) -> float:
    """The number as written: 120 stays an integer, because identities hash it."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, found {str(value).lower()}")
    number = check(value)
    return value if type(value) is int and value == number else number


def settled(old: Any, new: Any) -> Any:
    """The typed values, in the shape and order of the old values. A value of the right type is kept, because run identities hash it."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {name: settled(value, new[name]) if name in new else value for name, value in old.items()}
    if isinstance(old, list) and isinstance(new, Sequence) and not isinstance(new, str) and len(old) == len(new):
        return [settled(before, after) for before, after in zip(old, new, strict=True)]
    if isinstance(old, Mapping | list) or isinstance(new, Mapping | list):
        return old
    whole = type(old) is int and isinstance(new, float)
    return old if type(old) is type(new) or (whole and old == new) else new


@dataclass(frozen=True, slots=True)
class FileOf:
    """Marks the values of a file of `conf` among the settings of a command: checked against a schema, and kept as a plain mapping."""

    schema: type[BaseModel]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check with `schema`; the checked values keep the shape of the file."""
        return core_schema.no_info_wrap_validator_function(
            lambda value, check: settled(value, check(value).model_dump(exclude_unset=True, by_alias=True)),
            handler.generate_schema(self.schema),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value),
        )


def _size(value: Any) -> int | str:
    try:
        if value == "all" or (not isinstance(value, bool) and int(value) == float(value) >= 1):
            return value if value == "all" else int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"must be a whole number of at least 1, or all; found {value!r}")


def _shard(value: Any) -> str:
    number, _, shards = str(value).partition("/")
    if number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards):
        return f"{int(number)}/{int(shards)}"
    raise ValueError(f"must be i/n with 1 <= i <= n, such as 1/4; found {value!r}")


def _transform(value: Any) -> str:
    name, colon, order = str(value).partition(":")
    if name not in TRANSFORMS or (colon and not (name in ORDERS and order.isdecimal())):
        raise ValueError(f"must be one of {', '.join(TRANSFORMS)}, found {value!r}")
    return str(value)


def _url(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=PLAIN_NAME)]
"""A name that is used as a file or folder name."""
Count = Annotated[int, Field(ge=1), WrapValidator(_number)]
Natural = Annotated[int, Field(ge=0), WrapValidator(_number)]
Positive = Annotated[float, Field(gt=0), WrapValidator(_number)]
Amount = Annotated[float, Field(ge=0), WrapValidator(_number)]
Share = Annotated[float, Field(ge=0, le=1), WrapValidator(_number)]
Shard = Annotated[str, PlainValidator(_shard)]
"""One of several commands that share the histories between them, `2/4`."""
Size = Annotated[Any, PlainValidator(_size)]
Url = Annotated[str, PlainValidator(_url)]
Texts = Annotated[list[Text], BeforeValidator(_listed)]
Aggregate = Literal["question", "category", "case"]
ORDERS = ("permute", "permute_between_questions", "permute_exchanges", "shuffle_sessions", "change", "change_held_out")
"""Transforms with several variants: `permute:3` is the fourth."""
TRANSFORMS = ("none", "oracle", *ORDERS)
Transform = Annotated[str, PlainValidator(_transform)]


class Unit(Strict):
    rule: Rule
    tokens: Count | None = None
    on_unpaired: OnUnpaired = "drop"
