"""JSON through orjson, and what orjson refuses."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from memsys.jsons import canonical, decoded, encoded


def test_what_is_written_is_json_in_the_order_given_or_sorted() -> None:
    value = {"b": [1, 2.5, None], "a": "é"}
    assert encoded(value) == '{"b":[1,2.5,null],"a":"é"}'.encode()
    assert canonical(value) == '{"a":"é","b":[1,2.5,null]}'.encode()


def test_a_lone_surrogate_is_escaped_and_read_back() -> None:
    text = encoded({"text": "\ud83d"})
    assert text == canonical({"text": "\ud83d"})
    assert text == b'{"text":"\\ud83d"}'
    assert decoded(text) == {"text": "\ud83d"}


@pytest.mark.parametrize("text", ['{"a": 1}', b'[1, "\xc3\xa9"]'])
def test_what_json_reads_is_read_alike(text: str | bytes) -> None:
    assert decoded(text) == json.loads(text)


def test_what_python_alone_writes_is_read() -> None:
    read = decoded(json.dumps([math.nan, math.inf]))
    assert math.isnan(read[0])
    assert read[1] == math.inf


@pytest.mark.parametrize("text", ["", "{", b'{"a": "\xff"}', "[1] [2]"])
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra data|can't decode"):
        decoded(text)


def test_a_subclass_of_float_is_written_as_a_number() -> None:
    assert encoded({"cosine": np.float64(0.25)}) == b'{"cosine":0.25}'
