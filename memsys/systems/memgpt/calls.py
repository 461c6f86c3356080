"""The arguments of a MemGPT function call, and the error that the model is shown where they cannot be used."""

from __future__ import annotations

from datetime import date
from typing import Any


class CallError(ValueError):
    """A function call that cannot be carried out; the model is shown the message."""


def block_name(call: dict[str, Any]) -> str:
    """The block that a call names; raises CallError where there is no such block."""
    name = call.get("block")
    if name not in ("persona", "human"):
        raise CallError(f"block must be persona or human, found {name!r}")
    return str(name)


def argument_of(call: dict[str, Any], argument: str) -> str:
    """An argument of a call; raises CallError where it is missing or empty."""
    value = str(call.get(argument) or "")
    if not value.strip():
        raise CallError(f"the argument {argument} is missing")
    return value


def day_of(call: dict[str, Any], argument: str) -> date:
    """An argument of a call as a date; raises CallError if it is not a date."""
    try:
        return date.fromisoformat(argument_of(call, argument).strip())
    except ValueError as error:
        raise CallError(f"{argument} must be a date like 2023-05-07") from error
