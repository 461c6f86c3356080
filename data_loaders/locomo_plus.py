"""LoCoMo-Plus: tests whether an old statement shapes a later reply without being asked for (Li et al. 2026, arXiv 2602.10715).

The release is a list of cues and triggers; the histories are made here by its rule, from LoCoMo's file. Entry i goes into conversation
i modulo the number of conversations; A and B become its two speakers. The trigger is said seven days after the last session, the cue a
`time_gap` before the trigger; the cue becomes a session of its own, placed by time, behind a session of the same time. The trigger is the
question, so it is in no history. Evidence is the cue's turns, `cue:1` and `cue:2`; the release names none.

Notes for readers of the tables:
- A gap is understood only as one..twelve, digits, a or an, directly before weeks, months or years (7, 30 and 365 days each). Fifteen
  entries have another wording ("several months later"): their cue is directly before the trigger and tests nothing. `gaps="official"` keeps
  them, `"readable"` leaves them out; a note and `Gold.detail["readable"]` mark them.
- As in the release, turns have no image captions (`captions=True` adds them) and no white space at their ends. The official text has
  no dates and no session bounds either: sessions here have their times, which memories may show.
- Seven cues serve two triggers. Forty entries share a conversation, so `Case.cluster` is the conversation, not the entry.
- There is no answer: `Gold.answers` is the cue, as the official judge sees it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Literal

from data_loaders import locomo
from data_loaders.raw import LazyCases, Raw, as_lazy, check_choice, read_raw
from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn

RELATIONS = ("causal", "state", "goal", "value")

Gaps = Literal["official", "readable"]

_WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
_NUMBERS: Mapping[str, int] = {"a": 1, "an": 1, **{word: number for number, word in enumerate(_WORDS, 1)}}
_DAYS: Mapping[str, int] = {"week": 7, "month": 30, "year": 365}
_GAP = re.compile(rf"\b({'|'.join(_NUMBERS)}|[0-9]{{1,6}})\s+(week|month|year)s?\b", re.IGNORECASE)
_CAPTION = re.compile(r" ?\[shares a photo: [^\n]*\]\Z")
_LATER = timedelta(days=7)
"""Time from the last session to the trigger."""


def load(
    path: Path,
    *,
    conversations: Path | str = "../locomo/locomo10.json",
    gaps: Gaps = "official",
    captions: bool = False,
) -> Sequence[Case]:
    """One case per entry, built on access; sizes are the numbers of turns of its conversation.

    Args:
        path: `locomo_plus.json`.
        conversations: LoCoMo's file; a relative path is relative to the folder of `path`.
        gaps: whether to keep entries with a time gap that the official rule does not understand.
        captions: whether the captions of images are part of a turn.

    Raises:
        DataError: a file is damaged.
        ValueError: `gaps` is unknown.
    """
    check_choice("gaps", gaps, Gaps)
    records = read_raw(path).each()
    hosts = as_lazy(locomo.load(path.parent / conversations))
    if not hosts:
        raise DataError(f"{conversations}: expected at least one conversation, found none")
    days = [days_of(record.text("time_gap")) for record in records]
    kept = [index for index in range(len(records)) if gaps == "official" or days[index] is not None]

    @cache  # forty entries share each
    def host(number: int) -> Case:
        case = hosts[number]
        if captions:
            return case
        sessions = (
            replace(each, turns=tuple(replace(turn, text=_CAPTION.sub("", turn.text).strip()) for turn in each.turns))
            for each in case.sessions
        )
        return replace(case, sessions=tuple(sessions))

    def parse(position: int) -> Case:
        index = kept[position]
        return _case(records[index], index, host(index % len(hosts)))

    return LazyCases([f"entry_{index}" for index in kept], [hosts.sizes[index % len(hosts)] for index in kept], parse)


def days_of(gap: str) -> int | None:
    """The days of a time gap by the official rule; None if the rule does not understand the gap (it then takes 0)."""
    match = _GAP.search(gap)
    if match is None:
        return None
    word, unit = match[1].lower(), match[2].lower()
    return (_NUMBERS[word] if word in _NUMBERS else int(word)) * _DAYS[unit]


def _case(record: Raw, index: int, host: Case) -> Case:
    relation, gap = record.choice(RELATIONS, "relation_type"), record.text("time_gap")
    days = days_of(gap)
    asked_at, cue_at = _moments(host, days or 0, record.where)
    cue = Session("cue", _cue(record.text("cue_dialogue"), host, record.where), cue_at, _written(cue_at))
    sessions = tuple(sorted([*host.sessions, cue], key=lambda session: session.time or asked_at))
    question = Question(
        "trigger",
        _spoken(record.text("trigger_query"), "A", f"{record.where}.trigger_query"),
        time=asked_at,
        time_text=_written(asked_at),
        instruction=f"({host.speakers[0]} says this to {host.speakers[1]}.)",
    )
    detail = {"time_gap": gap, "days": days or 0, "readable": days is not None, "position": index}
    detail |= {"conversation": host.id, "model_name": record.of(str, "model_name")}
    gold = Gold(
        ("\n".join(f"{turn.speaker}\uff1a{turn.text}" for turn in cue.turns),),
        tuple(turn.id for turn in cue.turns),
        relation,
        detail=detail,
    )
    unread = f"trigger: the time gap {gap!r} is not understood; the cue stands directly before the trigger."
    notes = (unread,) if days is None else ()
    return Case(f"entry_{index}", host.speakers, sessions, ((question, gold),), cluster=host.id, notes=notes)


def _moments(host: Case, days: int, where: str) -> tuple[datetime, datetime]:
    """The time of the trigger, and the time of the cue, this many days before."""
    times = [session.time for session in host.sessions if session.time is not None]
    if len(times) < len(host.sessions) or not times:
        raise DataError(
            f"{where}: expected a conversation whose sessions have times, found {host.id} with some without"
        )
    asked_at = times[-1] + _LATER
    try:
        return asked_at, asked_at - timedelta(days=days)
    except OverflowError as error:
        raise DataError(f"{where}.time_gap: expected a gap within the calendar, found {days} days") from error


def _cue(text: str, host: Case, where: str) -> tuple[Turn, ...]:
    turns = []
    for number, line in enumerate(text.strip().split("\n"), 1):
        side = line[:1] if line[:1] in ("A", "B") else "A"
        said = _spoken(line, side, f"{where}.cue_dialogue")
        role: Role = "user" if side == "A" else "assistant"
        turns.append(Turn(f"cue:{number}", host.speakers[side == "B"], said, role))
    return tuple(turns)


def _spoken(line: str, side: str, where: str) -> str:
    if not line.startswith(f"{side}:") or not line.removeprefix(f"{side}:").strip():
        raise DataError(f"{where}: expected a line that begins with its speaker, A: or B:, found {line[:60]!r}")
    return line.removeprefix(f"{side}:").strip()


def _written(time: datetime) -> str:
    """A time as LoCoMo writes it: `1:56 pm on 8 May, 2023`."""
    return (
        f"{(time.hour - 1) % 12 + 1}:{time:%M} {'am' if time.hour < 12 else 'pm'} on {time.day} {time:%B}, {time.year}"
    )
