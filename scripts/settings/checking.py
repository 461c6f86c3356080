"""Check a configuration against its schema before a run: returns typed values, or one line that says what to change."""

from __future__ import annotations

import difflib
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from data_loaders.units import Rule
from eval.files.store import RunError
from memsys.interface import parameters
from memsys.llm.secrets import register, variables, written_key
from scripts.settings.schema import COMMANDS, GROUPS, Settings, row_keys
from scripts.settings.types import FileOf, settled

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # it prints the error that `get_object` raises, too
Record = TypeVar("Record")
Model = TypeVar("Model", bound=BaseModel)
ARGUMENTS = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False, coerce_numbers_to_str=True)
NAMED_FAULTS = 3
"""Maximum number of faults that a message names; it counts the others."""
_WORDS = {
    "must be true or false": ("bool_parsing", "bool_type"),
    "must be a whole number": ("int_parsing", "int_type", "int_from_float"),
    "must be a number": ("float_parsing", "float_type"),
    "must be a finite number": ("finite_number",),
    "must be text": ("string_type",),
    "must not be empty": ("string_too_short", "too_short"),
    "must be a plain name (letters, digits, `.`, `_`, `-`)": ("string_pattern_mismatch",),
    "must be a list": ("list_type", "tuple_type"),
    "is not known": ("unexpected_keyword_argument",),
    "must be a mapping": ("dataclass_type", "dict_type", "model_type"),
}
EXPECTED = {kind: words for words, kinds in _WORDS.items() for kind in kinds}
"""Our words for pydantic's error types."""


def checked(cfg: DictConfig, command: str) -> Settings:
    """The settings of a command, checked and typed.

    Args:
        cfg: the configuration composed by Hydra.
        command: the primary file of `conf`, such as `reproduce`.

    Raises:
        RunError: a setting is unknown, missing, of another type or out of range, or holds a key.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        # Group by group, because a copy without Hydra's own settings takes as long as the check itself.
        groups = [str(name) for name in cfg if name != "hydra" and OmegaConf.is_config(cfg[name])]
        alone = OmegaConf.masked_copy(cfg, [str(name) for name in cfg if name not in ("hydra", *groups)])
        values = resolved(alone) | {name: resolved(cfg[name], name) for name in groups}
    except OmegaConfBaseException as error:
        raise RunError(" ".join(str(error).split())) from error
    return parsed(COMMANDS[command], {str(name): values[str(name)] for name in cfg if name != "hydra"}, "")


def resolved(config: Any, where: str = "") -> Any:
    """A configuration as plain values; a value that `${oc.env:…}` took from the environment is redacted from now on, unless it is a path.

    Args:
        config: a configuration of OmegaConf; plain values are returned unchanged.
        where: the dotted name of the setting, for messages.

    Raises:
        RunError: it holds a key, which would be written to run.json and to reports.
    """
    from omegaconf import OmegaConf

    if not OmegaConf.is_config(config):
        _refuse_keys(config, where)
        return config
    stated = OmegaConf.to_container(config, resolve=False)
    _refuse_keys(stated, where)
    for name in variables(stated):
        if not (value := os.environ.get(name, "")).startswith(("/", "~", "http://", "https://")):
            register(value, name)
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    _refuse_keys(plain, where)
    return plain


def _refuse_keys(settings: Any, where: str) -> None:
    if fault := written_key({where: settings} if where else settings):
        raise RunError(fault)


def checked_option(group: str, values: Mapping[str, Any], where: object = None) -> dict[str, Any]:
    """Check the values of a file of a configuration group; returns them converted to their types.

    Args:
        group: a folder of `conf`; values of a group without a schema are returned unchanged.
        where: the file, for messages.

    Raises:
        RunError: see `checked`.
    """
    if group not in GROUPS:
        return dict(values)
    place = where or f"{group} {values.get('name', '')}".strip()
    plain = dict(values)
    typed: dict[str, Any] = settled(plain, parsed(GROUPS[group], plain, f"{place}: ").model_dump(exclude_unset=True))
    return typed


def checked_unit(unit: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return a unit rule after checking that its settings fit.

    Raises:
        RunError: the rule is unknown, as the `UNIT` of a class may be; `chunk` has no `tokens`, or another rule has `tokens`.
    """
    if not isinstance(unit, Mapping) or unit.get("rule") not in get_args(Rule):
        raise RunError(
            f"{where}: the unit rule must be one of {', '.join(get_args(Rule))}, such as {{rule: utterance}}; found {unit!r}"
        )
    if (unit["rule"] == "chunk") != (unit.get("tokens") is not None):
        needs = "needs tokens, such as {rule: chunk, tokens: 512}" if unit["rule"] == "chunk" else "takes no tokens"
        raise RunError(f"{where}: the unit rule {unit['rule']} {needs}")
    return unit


def checked_call(where: str, call: Mapping[str, Any]) -> dict[str, Any]:
    """Check the arguments of a `_target_` against its signature and convert them; nested targets (`inner`) likewise.

    Raises:
        RunError: the target does not exist, or an argument is unknown or of another type.
    """
    from hydra.utils import get_object

    from eval.running.failures import EXITS
    from eval.running.run import memorys_code

    try:
        with memorys_code():
            target = get_object(call["_target_"])
    except KeyError:
        raise RunError(f"{where}: _target_ is missing") from None
    except (Exception, *EXITS) as error:  # a user's module may raise any error when it is imported
        cause = error.__cause__ or error
        reason = " ".join(f"{type(cause).__name__}: {cause}".split())[:300]
        raise RunError(f"{where}: cannot import {call['_target_']}: {reason}") from error
    if not callable(target):
        raise RunError(f"{where}: {call['_target_']} is no class and no function; write module.Class")
    known = parameters(target)
    typed: dict[str, Any] = {}
    for name, value in call.items():
        if name in ("_target_", "_partial_", "_convert_"):
            typed[name] = value
        elif name not in known:
            raise RunError(f"{where}: {name} is not a setting of {call['_target_']}{nearest(name, known)}")
        elif isinstance(value, Mapping) and "_target_" in value:
            typed[name] = checked_call(f"{where}, {name}", value)
        else:
            leaves = list(_leaves(known[name].annotation))
            if isinstance(value, bool) and not {bool, Any, object} & set(leaves):
                raise RunError(f"{where}: {name} must be a number or text, found {str(value).lower()}")
            try:
                typed[name] = settled(value, _argument(known[name].annotation).validate_python(value))
            except ValidationError as error:
                choices = [leaf for leaf in leaves if isinstance(leaf, str)]  # the values of a `Literal`
                first = error.errors(include_url=False)[0]
                expected = f"must be one of {', '.join(choices)}" if choices else _expected(first)
                raise RunError(f"{where}: {name} {expected}, found {value!r}{nearest(str(value), choices)}") from None
    return typed


@cache
def _argument(annotation: Any) -> TypeAdapter[Any]:
    """The check of an argument's type. Hundreds of arguments share a few types, and a check takes longer to build than to make."""
    return TypeAdapter(annotation, config=ARGUMENTS)


def _leaves(annotation: Any) -> Iterator[Any]:
    """The parts of an annotation, such as `int` and `None` of `int | None`."""
    parts = get_args(annotation)
    if not parts:
        yield annotation
    for part in parts:
        yield from _leaves(part)


def parsed(schema: type[Model], plain: dict[str, Any], where: str) -> Model:
    """The values as their schema has them. Keys such as `rows_qwen` of a table are checked as `rows`.

    Args:
        where: begins the message of an error.

    Raises:
        RunError: see `checked`.
    """
    try:
        model = schema.model_validate(plain)
    except ValidationError as error:
        raise RunError(where + _sentence(schema, error)) from None
    for table in (plain, plain.get("table")):
        for name in (others := row_keys(table)):
            own = {key: value for key, value in dict(table or {}).items() if key not in others}
            parsed(GROUPS["table"], {**own, "rows": (table or {})[name]}, f"{where}{name}: ")
    return model


def typed(kind: type[Record], plain: Any, where: str) -> Record:
    """A frozen dataclass of a file's values, whose annotations are checked. It holds `STRICT` as `__pydantic_config__`.

    Args:
        where: begins the message of an error.

    Raises:
        RunError: a value is unknown, missing, of another type or out of range.
    """
    try:
        record: Record = _adapter(kind).validate_python(plain)  # type: ignore[arg-type]  # mypy doubts that a class can be hashed
    except ValidationError as error:
        raise RunError(where + _sentence(kind, error)) from None
    return record


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# --- messages -----------------------------------------------------------------------------------------------------------


def _sentence(schema: type, error: ValidationError) -> str:
    faults = error.errors(include_url=False)
    text = "; ".join(_fault(schema, fault) for fault in faults[:NAMED_FAULTS])
    return text + (f"; and {len(faults) - NAMED_FAULTS} more" if len(faults) > NAMED_FAULTS else "")


def _fault(schema: type, fault: ErrorDetails) -> str:
    """One fault: the setting's dotted name and what it must be."""
    path, kind = _path(fault["loc"]), fault["type"]
    if kind == "extra_forbidden":
        place = fault["loc"][:-1]
        known = [_path([*place, name]) for name in _known(schema, place)]
        return f"{path} is not a setting{nearest(path, known)}"
    if kind == "missing":
        return f"{path} is missing"
    if kind == "value_error":
        text = str(fault["ctx"]["error"])
        return text if text.startswith(path) else f"{path} {text}"
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in fault["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        near = nearest(str(fault["input"]), choices)
        return f"{path} must be one of {', '.join(choices)}, found {fault['input']!r}{near}"
    return f"{path} {_expected(fault)}, found {repr(fault['input'])[:80]}"


def _expected(fault: ErrorDetails) -> str:
    limits = fault.get("ctx", {})
    for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        if name in limits:
            return f"must be {words} {limits[name]:g}"
    return EXPECTED.get(fault["type"], f"is wrong ({fault['msg']})")


def _path(location: Iterable[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _known(schema: Any, location: Sequence[int | str]) -> list[str]:
    """Names of the settings at a location of the configuration."""
    level = schema
    for part in location:
        settings = getattr(level, "model_fields", {})
        level = next(iter(_schemas(settings[part])), settings[part].annotation) if part in settings else level
    return list(getattr(level, "model_fields", {}))


def nearest(name: str, known: Iterable[str]) -> str:
    """A question with the known name nearest to an unknown one; empty when none is near."""
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, 1, 0.6)
    return f"; did you mean {lower[near[0]]}?" if near else ""


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest of the known names, or all of them where none is near."""
    names = list(known)
    return nearest(name, names) or f"; there are: {', '.join(names)}"


def _fields(schema: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """All settings of a command with their dotted names, below `above`."""
    for name, field in schema.model_fields.items():
        yield above + name, field
        for inner in _schemas(field):
            yield from _fields(inner, f"{above}{name}.")


@cache
def lists_and_texts(command: str) -> tuple[frozenset[str], frozenset[str]]:
    """Dotted names of the settings of a command whose value is a list, and of those whose value is any text, such as a model's name or a
    URL; a `Literal` is not."""
    lists, texts = set(), set()
    for name, field in _fields(COMMANDS[command]):
        union = get_origin(field.annotation) in (Union, UnionType)
        kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType] if union else [field.annotation]
        if any(get_origin(kind) is list for kind in kinds):
            lists.add(name)
        elif all(kind is str or (get_origin(kind) is Annotated and get_args(kind)[0] is str) for kind in kinds):
            texts.add(name)
    return frozenset(lists), frozenset(texts)


def _schemas(field: FieldInfo) -> Iterator[type[BaseModel]]:
    """The schemas of a setting that is a mapping, or that holds some."""
    yield from (mark.schema for mark in field.metadata if isinstance(mark, FileOf))
    yield from (leaf for leaf in _leaves(field.annotation) if hasattr(leaf, "model_fields"))


def composition_error(error: Exception) -> str:
    """Hydra's error about a command line as one sentence, with the nearest known name."""
    from hydra.errors import MissingConfigException, OverrideParseException

    if isinstance(error, OverrideParseException):
        return f"cannot read the setting {error.override!r}; settings are written name=value"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        if name.endswith((".yaml", ".yml")):
            return f"no {group} called {name!r}: put the file into conf/{group}/ of the working folder, and name it without .yaml"
        return f"no {group} called {name!r}{nearest_or_all(name, error.options)}"
    text = str(error)
    if text.startswith("Could not override '"):
        name = text.split("'")[1]
        homes = {command: [setting for setting, _ in _fields(schema)] for command, schema in COMMANDS.items()}
        owners = ["run" if command == "config" else command for command, own in homes.items() if name in own]
        if owners:
            return f"{name} is not a setting of this command; it is one of {', '.join(owners)}"
        if name.startswith("memory.build."):
            return f"{name} is not in the memory's file, or not with these keys; +{name}=… adds it"
        return (
            f"{name} is not a setting of this command{nearest(name, dict.fromkeys(itertools.chain(*homes.values())))}"
        )
    if text.startswith("Ambiguous value for argument "):
        return f"{text.splitlines()[0].partition('argument ')[2]} has several values; with -m each is a job of its own"
    return " ".join(text.split())[:400]
