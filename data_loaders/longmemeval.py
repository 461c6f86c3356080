"""LongMemEval: one long chat history with an assistant, and one question about it, per case.

Wu et al., "LongMemEval: Benchmarking Chat Assistants on Long-Term Interactive Memory" (ICLR 2025). The S, M and oracle files of the
original and of the cleaned release have the same schema but different data (the oracle file even has other dates), so the
configuration has a data set for each.

Deviations from the raw files:
- Sessions are sorted by time, stably; the files sort them by day only, or not at all (oracle).
- Sessions without turns are left out; a note names them.
- A session id that occurs several times in one haystack gets the suffix `#2`, `#3` … and a note.
- `has_answer` does not become part of a text; it becomes `Gold.evidence`.
- Numeric answers become text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from data_loaders.raw import MAX_TEXT, LazyCases, Raw, parse_json, read_raw, readable
from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn

CATEGORIES = (
    "single-session-user",
    "single-session-assistant",
    "single-session-preference",
    "multi-session",
    "temporal-reasoning",
    "knowledge-update",
)
"""The question types, in the order of the paper's tables. Abstention is not one of them: each type has abstention questions.
Other types are refused, because judges choose their rule by the type."""

_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant"}
_TIME = re.compile(r"(\d{4})/(\d\d)/(\d\d) \([A-Z][a-z]{2}\) (\d\d):(\d\d)", re.ASCII)


def load(path: Path) -> LazyCases:
    """One case per question of a LongMemEval file, indexed at once and parsed on access; sizes are bytes.

    Indexing reads the file once as a stream and keeps an id and two positions per record, so the 2.7 GB file M takes time but little
    memory. `Gold.answerable` is False for ids with `_abs`, as in the official scorer. `Gold.detail` has `question_id`,
    `question_type`, `answer_session_ids` and `evidence_user_turns` (the labelled turns that the official retrieval scorer counts).
    Raises DataError if the file is not a list of such records.
    """
    places = tuple(_places(path))
    return LazyCases(
        [place.id for place in places],
        [place.end - place.start for place in places],
        lambda index: _case(path, places[index]),
        f"{path.name}: question_id",
    )


def load_questions(path: Path) -> LazyCases:
    """The questions of a file whose records have no history, one case each, to judge answers of other systems.

    `Gold.detail` has `question_id`, `question_type` and `answer_session_ids`. Raises DataError for malformed records.
    """
    records = read_raw(path).each()
    ids = [record.text("question_id") for record in records]

    def parse(index: int) -> Case:
        record, name = records[index], ids[index]
        cited = record.of(dict).get("answer_session_ids") or []  # null for some abstentions
        gold = _gold(Raw({**record.value, "answer_session_ids": cited}, record.where), name, [], {}, [])
        question = Question(name, record.text("question"))
        return Case(name, ("user", "assistant"), (), ((question, gold),), name, ("The history is left out.",))

    return LazyCases(ids, [1] * len(ids), parse, f"{path.name}: question_id")


def parse_time(text: str, where: str) -> datetime:
    """The time written as `2023/05/20 (Sat) 02:21`, without a time zone. Raises DataError for other texts."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise DataError(f"{where}: expected a time such as 2023/05/20 (Sat) 02:21, found {text[:60]!r}")
    year, month, day, hour, minute = map(int, match.groups())
    try:
        return datetime(year, month, day, hour, minute)
    except ValueError as error:
        raise DataError(f"{where}: expected a time that exists, found {text!r} ({error})") from error


def parse_turn(raw: Raw, turn_id: str) -> tuple[Turn, bool | None]:
    """The turn, and its label: whether it holds the answer, or None without a label. Raises DataError."""
    role = raw.choice(_ROLES, "role")
    label = raw.of((bool, type(None)), "has_answer") if raw.has("has_answer") else None
    return Turn(id=turn_id, speaker=role, text=raw.text("content"), role=_ROLES[role]), label


def gold_of(name: str, kind: str, answers: tuple[str, ...], evidence: Sequence[Turn], **more: object) -> Gold:
    """The answer key of a question of this id and type; `more` are further fields of `Gold.detail`."""
    user_turns = tuple(turn.id for turn in evidence if turn.role == "user")
    detail = {"question_id": name, "question_type": kind, **more, "evidence_user_turns": user_turns}
    return Gold(answers, tuple(turn.id for turn in evidence), kind, "_abs" not in name, detail=detail)


def _case(path: Path, place: _Place) -> Case:
    where = f"{path.name}: {place.id}"
    with readable(path), path.open("rb") as file:
        file.seek(place.start)
        data = file.read(place.end - place.start)
    record = Raw(parse_json(data, where), where)
    if record.text("question_id") != place.id:
        raise DataError(f"{where}.question_id: expected {place.id!r} once, found it given twice")
    sessions, labels, notes = _haystack(record)
    time_text = record.text("question_date")
    time = parse_time(time_text, f"{where}.question_date")
    notes += [
        f"session {each.id} ({each.time_text}) is later than the question ({time_text})"
        for each in sessions
        if each.time and each.time > time
    ]
    question = Question(id=place.id, text=record.text("question"), time=time, time_text=time_text)
    gold = _gold(record, place.id, sessions, labels, notes)
    return Case(place.id, ("user", "assistant"), tuple(sessions), ((question, gold),), place.id, tuple(notes))


def _haystack(record: Raw) -> tuple[list[Session], dict[str, bool | None], list[str]]:
    """The sessions that have turns, oldest first; the labels of their turns by id; a note on each irregularity."""
    ids, dates, contents = (record.each(f"haystack_{name}") for name in ("session_ids", "dates", "sessions"))
    if not len(ids) == len(dates) == len(contents):
        raise DataError(
            f"{record.where}.haystack_sessions: expected as many sessions as ids and dates, "
            f"found {len(contents)} sessions, {len(ids)} ids and {len(dates)} dates"
        )
    sessions: list[Session] = []
    labels: dict[str, bool | None] = {}
    notes: list[str] = []
    used: set[str] = set()
    for raw_id, date, content in zip(ids, dates, contents, strict=True):
        session_id = wanted = raw_id.text()
        number = 1
        while session_id in used:
            number += 1
            session_id = f"{wanted}#{number}"
        used.add(session_id)
        if session_id != wanted:
            notes.append(f"session id {wanted} occurs again in the haystack; this one is {session_id}")
        time_text = date.text()
        time = parse_time(time_text, date.where)
        parsed = [parse_turn(turn, f"{session_id}_{count}") for count, turn in enumerate(content.each(), 1)]
        labels |= {turn.id: label for turn, label in parsed}
        if parsed:
            sessions.append(Session(session_id, tuple(turn for turn, _ in parsed), time, time_text))
        else:
            notes.append(f"session {session_id} ({time_text}) has no turns")
    return sorted(sessions, key=lambda each: each.time or datetime.min), labels, notes


def _gold(
    record: Raw, name: str, sessions: Sequence[Session], labels: Mapping[str, bool | None], notes: list[str]
) -> Gold:
    kind, cited = record.choice(CATEGORIES, "question_type"), record.texts("answer_session_ids")
    answer = Raw(str(record.of((str, int), "answer")), f"{record.where}.answer").text()
    held = {each.id for each in sessions}
    notes += [f"answer session {each} is not in the haystack" for each in cited if each not in held]
    if all(label is None for label in labels.values()):
        notes.append("no turn is labelled, so the evidence is unknown")
    evidence = [turn for each in sessions for turn in each.turns if labels[turn.id]]
    return gold_of(name, kind, (answer,), evidence, answer_session_ids=cited)


@dataclass(frozen=True, slots=True)
class _Place:
    """A record's id and the bytes it takes in the file, `start` to `end` exclusive."""

    id: str
    start: int
    end: int


_CHUNK = 1 << 22
_MAX_RUN = 1 << 24
"""Maximum number of bytes without a bracket outside strings: more than the longest valid turn has in any escaping."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# Everything up to the next bracket outside strings. The quantifiers are possessive, so that a string cut by the end of the chunk gives
# no match, instead of a match that takes the string's content for structure.
_TO_BRACKET = re.compile(rb'([^"{}\[\]]*+(?:' + _STRING + rb'[^"{}\[\]]*+)*+)([{}\[\]])', re.DOTALL)
_QUESTION_ID = re.compile(rb'"question_id"\s*+:\s*+(' + _STRING + rb")", re.DOTALL)


def _places(path: Path) -> Iterator[_Place]:
    """The place of each record of a JSON list, in order. Raises DataError if the file is not a list of records.

    Checks only the brackets and each record's `question_id`; the rest of a record is checked when it is parsed.
    """
    brackets = _brackets(path)
    _, before, bracket = next(brackets)
    if before.strip() or bracket != b"[":
        raise DataError(f"{path.name}: expected a JSON list of records, found {_excerpt(before + bracket)}")
    depth = start = count = 0
    ids: list[bytes] = []
    for offset, before, bracket in brackets:
        if depth == 0:
            if bracket == b"]" and not before.strip():
                break
            if bracket != b"{" or before.strip() != (b"," if count else b""):
                raise DataError(
                    f"{path.name}: record {count}: expected an object after a comma, or the end of the list, "
                    f"found {_excerpt(before + bracket)} at byte {offset - len(before)}"
                )
            start, ids = offset, []
        elif depth == 1:
            ids += _QUESTION_ID.findall(before)
        if not bracket:
            raise DataError(f"{path.name}: record {count}: expected its closing bracket, found the end of the file")
        depth += 1 if bracket in b"[{" else -1
        if depth == 0:
            where = f"{path.name}: record {count}.question_id"
            if len(ids) != 1:
                raise DataError(f"{where}: expected one string, found {len(ids)}")
            yield _Place(Raw(parse_json(ids[0], where), where).text(), start, offset + 1)
            count += 1
    _, before, bracket = next(brackets)
    if before.strip() or bracket:
        raise DataError(f"{path.name}: expected nothing after the list, found {_excerpt(before + bracket)}")


def _brackets(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """Each bracket outside strings as (offset, bytes since the last one, bracket); at the end the remaining bytes with b""."""
    base, buffer = 0, b""
    with readable(path), path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            buffer += chunk
            position = 0
            while match := _TO_BRACKET.match(buffer, position):
                position = match.end()
                yield base + position - 1, match[1], match[2]
            base, buffer = base + position, buffer[position:]
            if len(buffer) > _MAX_RUN:
                raise DataError(
                    f"{path.name}: expected texts of at most {MAX_TEXT:,} characters, "
                    f"found {len(buffer):,} bytes without structure from byte {base}"
                )
    yield base + len(buffer), buffer, b""


def _excerpt(raw: bytes) -> str:
    return repr(raw.strip()[:40].decode("utf-8", "backslashreplace"))
