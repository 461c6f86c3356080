"""BEAM's rules: the score in a judge's reply on one rubric item, and the comparison of a list of events with the reference order.

There are two readings. `official` is that of the repository's `compute_metrics.py`:
- nine abilities truncate every item's score with `int()`, so that a half counts nothing (the paper says 0, .5 and 1);
- an answer on event ordering is split at every newline, headings and blank lines included, and "yes" anywhere in a reply on a pair is a
  yes, "yesterday" too;
- the published score of event ordering is tau_norm alone. A refusal of one line gets .215 on 100K, .246 on 500K and .268 on 1M, more
  than every published system (`beam_refusal` is that bar).

`corrected` counts halves, leaves out blank lines and headings, takes numbers and bullets off lines, cuts "LLM response should …:" off
events, leaves out items that name no event, reads verdicts strictly, and multiplies tau_norm by F1, as the repository's unpublished
`final_score` does.

Of several JSON values in a reply the official reading takes the first, the corrected one none if their scores differ. Deviation: a reply
that makes the official script stop has no verdict.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from memsys.llm.ask import read_json

Reading = Literal["official", "corrected"]
Order = Literal["tau_norm", "final", "f1"]

REFUSAL = "I do not have that information."

_PREFIX = re.compile(r"(?:(?<!\s)\s+)?LLM response should [^:]{1,80}:\s*", re.IGNORECASE)
_NO_EVENT = re.compile(r"\s*LLM response should [^:]*\border\b", re.IGNORECASE)
_SCORE = re.compile(r"""["']score["']\s*:\s*([^\s,}\]]+)""")
_BULLET = re.compile(r"^\s*(?:[-*•–]+|\(?\d{1,3}[.):]|#+)\s*")


@dataclass(frozen=True, slots=True)
class Ordered:
    """Comparison of an answer's events with the reference."""

    precision: float
    recall: float
    f1: float
    tau_norm: float | None
    """(Kendall's tau-b + 1) / 2; None where it is not defined, as for one event that is found alone."""

    @property
    def final(self) -> float | None:
        """tau_norm times F1, which is 0 where nothing is found."""
        if not self.f1:
            return 0.0
        return None if self.tau_norm is None else self.tau_norm * self.f1


def item_score(text: str, *, official: bool) -> float | None:
    """The score in a judge's reply on one rubric item, halves kept; None without a verdict."""
    score = _first_score(text)
    if official:  # as the script converts it: numbers, booleans, and text that Python's `float` reads
        try:
            value = float(score) if isinstance(score, int | float | str) else math.nan
        except (ValueError, OverflowError):
            return None
        return value if math.isfinite(value) else None  # the script's `int()` stops at others
    fits = isinstance(score, int | float) and not isinstance(score, bool) and score in (0, 0.5, 1)
    return float(score) if fits and score is not None and len(set(_SCORE.findall(text))) < 2 else None


def _first_score(text: str) -> Any:
    """The score in the first JSON value of a reply."""
    starts = [
        (start, text.find(closing, start)) for opening, closing in ("{}", "[]") if (start := text.find(opening)) >= 0
    ]
    start, end = min((span for span in starts if span[1] >= 0), default=(0, len(text)))
    try:
        json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        start, end = 0, len(text)
    value = read_json(text[start : end + 1])
    return value.get("score") if isinstance(value, dict) else None


def truncated(score: float | None, text: str) -> float | None:
    """An item's score after the official `int()`; None for a fraction given as text, which makes the official script stop."""
    raw = _first_score(text)
    if score is None or (isinstance(raw, str) and not re.fullmatch(r"\s*[+-]?\d+\s*", raw)):
        return None
    return float(int(score))


def lines_of(answer: str, *, official: bool) -> list[str]:
    """The events that an answer names: officially its lines, as they are."""
    lines = answer.split("\n")
    if official:
        return lines
    named = [_BULLET.sub("", line).strip() for line in lines if line.strip() and not line.rstrip(" *_").endswith(":")]
    return [line for line in dict.fromkeys(named) if line]


def events_of(rubric: Sequence[str], *, official: bool) -> list[str]:
    """The events of a rubric: officially its items, as they are."""
    if official:
        return list(rubric)
    return [_PREFIX.sub("", item).strip() for item in rubric if _PREFIX.match(item) or not _NO_EVENT.match(item)]


def aligned(events: Sequence[str], lines: Sequence[str], same: Collection[tuple[int, int]]) -> list[str]:
    """The lines, each replaced by the first unused event that matches it.

    Args:
        same: pairs of the position of an event and of a line.
    """
    used: set[int] = set()
    texts = []
    for place, line in enumerate(lines):
        match = next((event for event in range(len(events)) if event not in used and (event, place) in same), None)
        if match is not None:
            used.add(match)
        texts.append(line if match is None else events[match])
    return texts


def ordered(events: Sequence[str], texts: Sequence[str]) -> Ordered:
    """Precision, recall, F1 and tau_norm of aligned lines; items missing from a list are tied after the end of both.

    An item that both lists hold counts once, however often; a repeated item that only one of them holds counts each time.
    """
    from scipy.stats import kendalltau

    both = len(set(events) & set(texts))
    precision = both / (both + sum(text not in events for text in texts)) if both else 0.0
    recall = both / (both + sum(event not in texts for event in events)) if both else 0.0
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    union = list(dict.fromkeys([*events, *texts]))
    first, second = _ranks(events, union), _ranks(texts, union)
    if len(set(first)) < 2 or len(set(second)) < 2:  # no order in a single rank
        return Ordered(precision, recall, f1, None)
    return Ordered(precision, recall, f1, (float(kendalltau(first, second).statistic) + 1) / 2)


def _ranks(texts: Sequence[str], union: Sequence[str]) -> list[int]:
    places = {text: place for place, text in enumerate(texts, 1)}
    return [places.get(text, len(union) + 1) for text in union]


# --- metrics: one prediction against one gold -----------------------------------------------------------------------


def beam_refusal(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """A control: the official tau_norm of a one-line refusal, whatever the reply. Not scored: questions that order no events."""
    if gold.category != "event_ordering":
        return Score(None, why="the question orders no events")
    events = events_of(gold.detail["rubric"], official=True)
    return Score(ordered(events, lines_of(REFUSAL, official=True)).tau_norm)
