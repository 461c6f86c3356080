"""Settings from a file, checked against the types of their record."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from eval.files.store import RunError
from memsys.jsons import encoded

T = TypeVar("T")


def checked(adapter: TypeAdapter[T], content: Any) -> T:
    """The content as a record.

    Raises:
        RunError: a field is missing or has a wrong type; the message is the first such field and what is wrong with it.
    """
    try:
        return adapter.validate_json(encoded(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
