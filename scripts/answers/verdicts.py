"""The value of a stored verdict: true or false, a number, a word, a list of votes, or a list of failures.

A verdict is a number from 0 to the form's full mark. An unknown word, a number off the scale and an empty text are judge errors:
they are counted, listed, and give no verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scripts.settings.types import STRICT, Amount, Positive, Share

State = Literal["judged", "absent", "not judged", "error"]
"""`absent`: the file has no verdict here; `not judged`: it says that the answer was left out of judging; `error`: judging failed."""

WORDS: Mapping[str, float | None] = {
    **dict.fromkeys(("correct", "yes", "true", "pass", "passed", "right", "accurate"), 1.0),
    **dict.fromkeys(("partially_correct", "partially correct", "partial"), 0.5),
    **dict.fromkeys(("wrong", "incorrect", "no", "false", "fail", "failed", "inaccurate"), 0.0),
    **dict.fromkeys(("skip", "skipped", "not_judged", "excluded"), None),
}
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
FAILED = frozenset({"", "error", "parse_error", "parse error", "unknown", "failed to parse", "timeout"})


@dataclass(frozen=True, slots=True)
class Scale:
    """The form's notation of verdicts."""

    __pydantic_config__ = STRICT

    scale: Positive = 1
    """The full mark; verdicts stay on this scale."""
    absent: Amount | None = None
    """The verdict of a record that has none, for forms that leave out zeros."""
    failures: bool = False
    """Whether the field lists failures: an empty list is right, any other is wrong."""
    fails: str = ""
    """Place of a word that says whether judging failed."""
    words: Mapping[str, Share | None] = field(default_factory=dict)
    """Values of the form's own words, as shares of the full mark; in lower case."""

    def __post_init__(self) -> None:
        if self.absent is not None and self.absent > self.scale:
            raise ValueError(f"absent must be at most the scale, {self.scale:g}")
        object.__setattr__(self, "words", {word.casefold(): worth for word, worth in self.words.items()})


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verdict of the file."""

    value: float | None
    state: State
    said: str = ""
    """The message of an error, shortened."""
    votes: tuple[float | None, ...] = ()
    """Several verdicts, whose mean is `value`; None for a failed verdict."""


def verdict_of(stored: Any, scale: Scale, word: Any = None) -> Verdict:
    """Read one verdict.

    Args:
        stored: the record's value; None if it has none.
        word: the value at `scale.fails`.
    """
    if stored is None:
        return Verdict(scale.absent, "absent")
    verdict = _value(stored, scale)
    if scale.fails and isinstance(word, str) and word.strip().casefold() in FAILED:
        # A number that the file stores with a failure stays in the file's mean; the failure is counted.
        return replace(verdict, state="error", said=word or "empty label")
    return verdict


def _value(stored: Any, scale: Scale) -> Verdict:
    if isinstance(stored, dict):
        stored = list(stored.values())
    if isinstance(stored, list):
        if scale.failures:
            return Verdict(0.0 if stored else 1.0, "judged")
        votes = [_value(vote, scale) for vote in stored if not isinstance(vote, list | dict)]
        values = [vote.value for vote in votes if vote.value is not None]
        if values:
            return Verdict(sum(values) / len(values), "judged", votes=tuple(vote.value for vote in votes))
        return votes[0] if votes else Verdict(None, "absent")
    if isinstance(stored, str):
        return _word(stored, scale)
    if isinstance(stored, bool):
        return Verdict(float(stored) * scale.scale, "judged")
    if isinstance(stored, int | float) and 0 <= stored <= scale.scale and math.isfinite(stored):
        return Verdict(float(stored), "judged")
    huge = isinstance(stored, int) and stored.bit_length() > 64  # repr refuses integers with thousands of digits
    return Verdict(None, "error", "too large a number" if huge else repr(stored)[:40])


def _word(stored: str, scale: Scale) -> Verdict:
    word = stored.strip().casefold().strip(".!")
    words = {**WORDS, **scale.words}
    if word in words:
        worth = words[word]
        return Verdict(None, "not judged") if worth is None else Verdict(worth * scale.scale, "judged")
    # float() would read `1_0` as ten, and accept digits of any script.
    if len(word) > 40 or not re.fullmatch(NUMBER, word, re.ASCII):
        return Verdict(None, "error", stored[:40] or "empty label")
    return _value(float(word), scale)
