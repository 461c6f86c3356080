"""Unit rules: how sessions are divided into the units that a memory takes in. Every table names its rule.

The literature uses four ways to group turns, which give different numbers of units on the same dialogue; `chunk` is for documents and
for protocols that use windows of n tokens:

| rule       | a unit is                                                                              | used by            |
|------------|----------------------------------------------------------------------------------------|--------------------|
| utterance  | a turn                                                                                 | Mem0, A-MEM, …     |
| floor_pair | turns 1+2, 3+4, … of a session; an odd last turn is unpaired                           | TiMem, Table 5     |
| ab_pair    | a user turn directly followed by an assistant turn in the session; others are unpaired | SegTreeMem         |
| page       | a user turn and the last assistant turn before the next user turn, across sessions     | MemoryOS (eval/)   |
| chunk      | whole turns of a session, up to n tokens; a longer turn is cut at sentence ends        | documents, windows |

Every unit of a session with a `heading` begins with it, on a line of its own in the unit's first turn.

A page whose reply comes from a later session holds a turn of that session but keeps the session and time of its user turn, as in
MemoryOS. Do not use `page` if questions are asked in the middle of a history.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from data_loaders.raw import check_choice, check_unique
from data_loaders.schema import Case, Session, Turn, Unit

Rule = Literal["utterance", "floor_pair", "ab_pair", "page", "chunk"]
OnUnpaired = Literal["drop", "keep_single"]
Count = Callable[[str], int]

# Where a text may be cut, from coarse to fine: at sentence ends, between words, between characters.
_CUTS = (r"(?<=[.!?。！？])\s+|(?<=[。！？])|\n+", r"\s+", r"")


@dataclass(frozen=True, slots=True)
class Units:
    """The units in order, and the ids of the turns that are in no unit."""

    units: tuple[Unit, ...]
    dropped: tuple[str, ...] = ()


def make_units(
    sessions: Iterable[Session],
    rule: Rule,
    *,
    tokens: int | None = None,
    on_unpaired: OnUnpaired = "drop",
    count: Count | None = None,
) -> Units:
    """The units of a history under a rule (see the module's table).

    `tokens` and `count` (a function from a text to its number of tokens) are for `chunk`: a unit without its session's heading has at
    most `tokens` tokens, unless a single character has more. `on_unpaired` is for unpaired turns: "drop" leaves them out and lists
    their ids, "keep_single" makes each a unit at its place. The id of a unit is the id of its turn, or `<first>..<last>` of several;
    part k of a turn that was cut is `<turn>#k` in it, and keeps the turn's own id as `Turn.id`.

    Raises ValueError for an unknown rule or missing settings, and DataError if two units get the same id.
    """
    history = tuple(sessions)
    check_choice("on_unpaired", on_unpaired, OnUnpaired)
    check_choice("rule", rule, Rule)
    units: list[Unit] = []
    dropped: list[str] = []
    if rule == "chunk":
        if tokens is None or tokens < 1 or count is None:
            raise ValueError(
                f"rule chunk needs tokens of at least 1 and a count function, found {tokens!r} and {count!r}"
            )
        units += (unit for session in history for unit in _chunks(session, tokens, count))
    else:
        by_first = {group[0].id: group for group in _GROUPS[rule](history)}
        taken = {turn.id for group in by_first.values() for turn in group}
        for session in history:
            for turn in session.turns:
                if turn.id in by_first:
                    units.append(_unit(by_first[turn.id], session))
                elif turn.id not in taken and on_unpaired == "keep_single":
                    units.append(_unit([turn], session))
                elif turn.id not in taken:
                    dropped.append(turn.id)
    check_unique((unit.id for unit in units), f"units by {rule}")
    return Units(tuple(units), tuple(dropped))


def lost_evidence(case: Case, dropped: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Evidence turns that are in no unit, by question id; questions with complete evidence are absent."""
    missing = frozenset(dropped)
    lost = {
        question.id: tuple(turn_id for turn_id in gold.evidence if turn_id in missing)
        for question, gold in case.questions
    }
    return {question_id: evidence for question_id, evidence in lost.items() if evidence}


def _floor_pairs(history: Sequence[Session]) -> list[list[Turn]]:
    return [
        [first, second]
        for session in history
        for first, second in zip(session.turns[::2], session.turns[1::2], strict=False)
    ]


def _ab_pairs(history: Sequence[Session]) -> list[list[Turn]]:
    return [
        [first, second]
        for session in history
        for first, second in zip(session.turns, session.turns[1:], strict=False)
        if first.role == "user" and second.role == "assistant"
    ]


def _pages(history: Sequence[Session]) -> list[list[Turn]]:
    pages: list[list[Turn]] = []
    for session in history:
        for turn in session.turns:
            if turn.role == "user":
                pages.append([turn])
            elif pages:
                pages[-1][1:] = [turn]  # a second reply replaces the first, as in MemoryOS's evaluation code
    return [page for page in pages if len(page) == 2]


_GROUPS: dict[str, Callable[[Sequence[Session]], list[list[Turn]]]] = {
    "utterance": lambda history: [[turn] for session in history for turn in session.turns],
    "floor_pair": _floor_pairs,
    "ab_pair": _ab_pairs,
    "page": _pages,
}


def _unit(turns: Sequence[Turn], session: Session, labels: Sequence[str] = ()) -> Unit:
    names = labels or [turn.id for turn in turns]
    unit_id = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
    if session.heading:
        turns = (replace(turns[0], text=f"{session.heading}\n{turns[0].text}"), *turns[1:])
    return Unit(unit_id, tuple(turns), session.id, session.time, session.time_text)


def _chunks(session: Session, limit: int, count: Count) -> Iterator[Unit]:
    """Fill each chunk with turns, or parts of long turns, until the next one would exceed the limit. The heading is not counted."""
    bare = replace(session, heading="")
    turns: list[Turn] = []
    labels: list[str] = []
    for label, turn in _fragments(bare, limit, count):
        if turns and count(_unit([*turns, turn], bare).text) > limit:
            yield _unit(turns, session, labels)
            turns, labels = [], []
        turns.append(turn)
        labels.append(label)
    if turns:
        yield _unit(turns, session, labels)


def _fragments(session: Session, limit: int, count: Count) -> Iterator[tuple[str, Turn]]:
    for turn in session.turns:

        def fits(text: str, turn: Turn = turn) -> bool:
            return count(_unit([replace(turn, text=text)], session).text) <= limit

        if fits(turn.text):
            yield turn.id, turn
        else:
            for number, part in enumerate(_split(turn.text, fits, _CUTS), 1):
                yield f"{turn.id}#{number}", replace(turn, text=part)


def _split(text: str, fits: Callable[[str], bool], cuts: Sequence[str]) -> Iterator[str]:
    """Split a text into the longest parts that fit, cut at the coarsest possible places. Drops white space around each part."""
    ends = [match.end() for match in re.finditer(cuts[0], text) if 0 < match.end() < len(text)] + [len(text)]
    start = at = 0
    while at < len(ends):
        stop = _first_end_beyond(text, start, ends, at, fits)
        if stop > at or len(cuts) == 1:
            at = max(stop, at + 1)
            parts: Iterable[str] = [text[start : ends[at - 1]].strip()]
        else:
            at += 1
            parts = _split(text[start : ends[at - 1]], fits, cuts[1:])
        yield from (part for part in parts if part)
        start = ends[at - 1]


def _first_end_beyond(text: str, start: int, ends: Sequence[int], at: int, fits: Callable[[str], bool]) -> int:
    """The first index from `at` on for which the text from `start` to that end does not fit.

    Searches with doubling steps, then by bisection, so that the work depends on the length of the part, not of the remaining text.
    """
    low, step = at, 1
    while low + step <= len(ends) and fits(text[start : ends[low + step - 1]].strip()):
        low, step = low + step, 2 * step
    high = min(low + step - 1, len(ends))
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(text[start : ends[middle]].strip()) else (low, middle)
    return low
