"""Broken copies of well-formed raw data, and the one promise loaders make about them.

A loader may accept a broken file or refuse it with `DataError`; anything else it raises is a bug. Mutations act on
parsed objects, so that an example is cheap and still a readable file; `BROKEN_BYTES` covers what only bytes can be
(truncated, not UTF-8, nested beyond any parser's stack).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from data_loaders.raw import read_lines
from data_loaders.schema import Case, DataError
from tests.rigs.campaign.mutations import BROKEN_BYTES, HUGE_TURN, STRANGE_VALUES, mutated

__all__ = ["BROKEN_BYTES", "HUGE_TURN", "STRANGE_VALUES", "broken_copies", "check_only_data_errors", "mutated_json"]

MUTATIONS = int(os.environ.get("MEMSYS_MUTATIONS", "50"))
"""Broken copies of each data set's sample; continuous integration sets a larger number through the environment."""


def broken_copies(tests: int = 1) -> settings:
    """Decorate a property test with it, above `@given`, and say how many tests share the copies of its data set.

    A `tmp_path` shared by the examples is fine, they overwrite.
    """
    return settings(
        max_examples=MUTATIONS // tests,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )


def read_values(path: Path) -> list[Any]:
    """The values of a JSONL file's lines."""
    return [line.value for line in read_lines(path)]


def mutated_json(obj: Any) -> st.SearchStrategy[Any]:
    """Deep copies of `obj` with one to three random structural mutations.

    `obj` is what `json.loads` gives. Hypothesis draws a seed, and the seed decides the rest: drawing each choice takes five times
    as long.
    """
    text = json.dumps(obj)  # parsing it again is several times faster than copy.deepcopy
    return st.integers(0, 2**64 - 1).map(lambda seed: mutated(text, seed))


def check_only_data_errors(load: Callable[[Path], Sequence[Case]], path: Path) -> None:
    """Loads and takes every case; returns normally when that works or raises `DataError`, and lets all else through.

    What it accepts must keep the promises of a case: unique turn and question ids, evidence that exists, text that can
    be saved. What it refuses it must explain: an empty message fails too.
    """
    try:
        cases = load(path)
        for index in range(len(cases)):
            _check_promises(cases[index])
    except DataError as error:
        if not str(error):
            raise


def _check_promises(case: Case) -> None:
    turn_ids = [turn.id for turn in case.turns]
    assert len(turn_ids) == len(set(turn_ids)), "an accepted case has ambiguous turn ids"
    question_ids = [question.id for question, _ in case.questions]
    assert len(question_ids) == len(set(question_ids)), "an accepted case has ambiguous question ids"
    for _, gold in case.questions:
        assert set(gold.evidence) <= set(turn_ids), "an accepted case has dangling evidence"
    for text in [case.id, *(turn.text for turn in case.turns), *(question.text for question, _ in case.questions)]:
        text.encode("utf-8")


def write_json(path: Path, obj: Any) -> Path:
    """`path`, now holding `obj` as one JSON document (NaN and lone surrogates written as Python writes them)."""
    path.write_text(json.dumps(obj), encoding="utf-8")
    return path


def write_jsonl(path: Path, rows: Any) -> Path:
    """`path`, now holding one JSON document a line; what is no list of rows becomes a single line."""
    lines = rows if isinstance(rows, list) else [rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
    return path
