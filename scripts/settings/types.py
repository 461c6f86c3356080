"""Types that the schemas are made of: numbers with a range, names, sizes, units."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, create_model

from data_loaders.units import OnUnpaired, Rule

PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=())
"""Unknown keys and infinite numbers are refused; a number is accepted where text is expected."""


class Strict(BaseModel):
    """A mapping that is checked by `STRICT`."""

    model_config = STRICT


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
Count = Annotated[int, BeforeValidator(_number), Field(ge=1)]
Natural = Annotated[int, BeforeValidator(_number), Field(ge=0)]
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0)]
Amount = Annotated[float, BeforeValidator(_number), Field(ge=0)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)]
Shard = Annotated[str, PlainValidator(_shard)]
"""One of several commands that share the histories between them, `2/4`."""
Size = Annotated[Any, PlainValidator(_size)]
Url = Annotated[str, PlainValidator(_url)]
Texts = Annotated[list[Text], BeforeValidator(_listed)]
Aggregate = Literal["question", "category", "case"]
ORDERS = ("permute", "permute_between_questions", "permute_exchanges", "shuffle_sessions", "change", "change_held_out")
"""Transforms of which there are many: `permute:3` is the fourth."""
TRANSFORMS = ("none", "oracle", *ORDERS)
Transform = Annotated[str, PlainValidator(_transform)]


class Unit(Strict):
    rule: Rule
    tokens: Count | None = None
    on_unpaired: OnUnpaired = "drop"


def extended(name: str, base: type[BaseModel], known: dict[str, Any]) -> type[BaseModel]:
    """A schema with further fields, each a type and a default (`...` for none)."""
    return create_model(name, __base__=base, **known)
