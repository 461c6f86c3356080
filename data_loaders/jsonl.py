"""Your own data: a JSONL file with one history and its questions per line.

A complete line, here broken into several for reading (in the file it is one line):

```json
{"id": "harbour",
 "speakers": ["Ines", "Tomas"],
 "sessions": [
   {"id": "S1", "time": "2024-03-02T18:30", "turns": [
     ["Ines", "I start at the harbour office on Monday."],
     ["Tomas", "Then we can have lunch at the fish market."]]},
   {"id": "S2", "time": "2024-04-11", "turns": [
     ["Ines", "They moved me to the night shift."]]}],
 "questions": [
   {"text": "Where does Ines work?", "answers": ["at the harbour office", "harbour office"],
    "evidence": ["S1:1"], "category": "single-hop", "after": "S1:2"},
   {"id": "shift", "text": "Which shift does Ines have?", "answers": ["the night shift"], "evidence": ["S2:1"]},
   {"text": "Where does Tomas work?", "answers": ["not mentioned"], "answerable": false}]}
```

A history has
- `id`: its name, unique in the file;
- `sessions`: in the order in which they are written to the memory. A session has an `id`, optionally a `time`, and `turns`:
  pairs of speaker and text. `time` is ISO 8601 without an offset (`2024-03-02` or `2024-03-02T18:30`);
- `questions`: see below; the list may be empty;
- `speakers` (optional): all speakers. The first has the role `user`, the others have the role `assistant`. Without it, the first
  speaker is the user.

The id of a turn is `<session id>:<number from 1>`, so `S1:2` is the second turn of session `S1`.

A question has
- `text`, and `answers`: the accepted answers; the first is the official answer;
- `evidence` (optional): ids of the turns that hold the answer; retrieval metrics need it;
- `category` (optional): the row group of a table that it belongs to;
- `after` (optional): id of the last turn before the question is asked; without it the question comes after the last session;
- `time` (optional): when it is asked, written as a session's;
- `answerable` (optional): false for a question that the history does not answer; true without it;
- `id` (optional): unique in the history; `q1`, `q2` … by position without it.

A field that is not in these lists is an error, so that a misspelt field is not ignored.

Count the content of the file, then run a memory on it:

    python -m scripts data jsonl --data /folder/of/the/file --unpinned
    python -m scripts run memory=bm25 dataset=jsonl data.source=real data.root=/folder/of/the/file data.unpinned=true

Both read `own.jsonl` in that folder. For a file of another name, give its full path instead of `data.root`:

    python -m scripts run memory=bm25 dataset=jsonl data.source=real dataset.file=/path/mine.jsonl data.unpinned=true

`unpinned` accepts a file whose sha256 is not in the manifest; tables call its data "unpinned". `conf/dataset/jsonl.yaml` has the
unit rule, reader, metrics and judges; override them with `protocol.unit=…`, `protocol.reader=…`, `protocol.judges=…`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from data_loaders.raw import LazyCases, check_text, check_unique, expect, get, get_text, read_lines
from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn

_HISTORY = ("id", "sessions", "questions", "speakers")
_SESSION = ("id", "time", "turns")
_QUESTION = ("id", "text", "answers", "evidence", "category", "after", "time", "answerable")


def load(path: Path) -> LazyCases:
    """One case per line of the file, in file order; sizes are numbers of turns.

    Raises DataError for a line that does not have the format of the module's description; the message names the file, the line
    and the field, and says what was expected.
    """
    lines = read_lines(path)
    if not lines:
        raise DataError(
            f"{path.name}: expected one JSON object a line, found no line (data_loaders/jsonl.py has an example)"
        )
    ids = [_identifier(record, place) for place, record in lines]
    check_unique(ids, f"{path.name}: id")
    sizes = [
        sum(len(get(session, "turns", list, f"{place}.sessions[{index}]")) for index, session in enumerate(sessions))
        for place, record in lines
        for sessions in [get(record, "sessions", list, place)]
    ]
    return LazyCases(ids, sizes, lambda index: _case(lines[index][1], ids[index], lines[index][0]))


def _case(record: Any, case_id: str, where: str) -> Case:
    _check_fields(record, _HISTORY, where)
    listed = [
        _nonempty(name, f"{where}.speakers[{index}]")
        for index, name in enumerate(_optional(record, "speakers", list, where) or ())
    ]
    check_unique(listed, f"{where}.speakers")
    raw_sessions = get(record, "sessions", list, where)
    speakers = listed or _speakers(raw_sessions, where)
    sessions = tuple(_session(raw, speakers, f"{where}.sessions[{index}]") for index, raw in enumerate(raw_sessions))
    check_unique((session.id for session in sessions), f"{where}.sessions")
    turn_ids = [turn.id for session in sessions for turn in session.turns]
    check_unique(turn_ids, f"{where}: turn ids")
    if not turn_ids:
        raise DataError(f"{where}.sessions: expected at least one turn, found none")
    known = frozenset(turn_ids)
    questions = tuple(
        _question(raw, number, known, f"{where}.questions[{number - 1}]")
        for number, raw in enumerate(get(record, "questions", list, where), 1)
    )
    check_unique((question.id for question, _ in questions), f"{where}.questions")
    return Case(case_id, tuple(speakers), sessions, questions, cluster=case_id)


def _speakers(raw_sessions: Sequence[Any], where: str) -> list[str]:
    """All speakers, in the order of their first turns."""
    names: dict[str, None] = {}
    for index, raw in enumerate(raw_sessions):
        place = f"{where}.sessions[{index}]"
        for number, pair in enumerate(get(raw, "turns", list, place)):
            names.setdefault(_speaker_and_text(pair, f"{place}.turns[{number}]")[0])
    return list(names)


def _session(raw: Any, speakers: Sequence[str], where: str) -> Session:
    _check_fields(raw, _SESSION, where)
    session_id = _identifier(raw, where)
    time, time_text = _time(raw, where)
    turns = []
    for number, pair in enumerate(get(raw, "turns", list, where), 1):
        speaker, text = _speaker_and_text(pair, f"{where}.turns[{number - 1}]")
        if speaker not in speakers:
            names = ", ".join(map(repr, speakers))
            raise DataError(
                f"{where}.turns[{number - 1}]: expected a speaker of `speakers` ({names}), found {speaker[:60]!r}"
            )
        role: Role = "user" if speaker == speakers[0] else "assistant"
        turns.append(Turn(f"{session_id}:{number}", speaker, text, role))
    return Session(session_id, tuple(turns), time, time_text)


def _speaker_and_text(raw: Any, where: str) -> tuple[str, str]:
    pair = expect(raw, list, where)
    if len(pair) != 2:
        raise DataError(f"{where}: expected a pair [speaker, text], found a list of {len(pair)}")
    return _nonempty(pair[0], f"{where}[0]"), check_text(pair[1], f"{where}[1]")


def _question(raw: Any, number: int, turn_ids: Collection[str], where: str) -> tuple[Question, Gold]:
    _check_fields(raw, _QUESTION, where)
    time, time_text = _time(raw, where)
    after = _optional(raw, "after", str, where)
    if after is not None:
        _check_turn(after, turn_ids, f"{where}.after")
    question_id = _identifier(raw, where) if "id" in raw else f"q{number}"
    question = Question(
        question_id, _nonempty(get_text(raw, "text", where), f"{where}.text"), after, (), time, time_text
    )
    answers = get(raw, "answers", list, where)
    if not answers:
        raise DataError(f"{where}.answers: expected at least one answer, found an empty list")
    evidence = _optional(raw, "evidence", list, where) or ()
    for index, turn_id in enumerate(evidence):
        _check_turn(turn_id, turn_ids, f"{where}.evidence[{index}]")
    answerable = _optional(raw, "answerable", bool, where)
    gold = Gold(
        answers=tuple(_nonempty(answer, f"{where}.answers[{index}]") for index, answer in enumerate(answers)),
        evidence=tuple(dict.fromkeys(evidence)),
        category=check_text(_optional(raw, "category", str, where) or "", f"{where}.category"),
        answerable=answerable is None or answerable,
    )
    return question, gold


def _time(raw: Mapping[str, Any], where: str) -> tuple[datetime | None, str]:
    """The field `time` as a naive time and as it is written; (None, "") without the field."""
    text = _optional(raw, "time", str, where)
    if text is None:
        return None, ""
    try:
        time = datetime.fromisoformat(check_text(text, f"{where}.time"))
    except ValueError as error:  # a DataError, too
        raise DataError(f"{where}.time: expected a time such as 2024-03-02T18:30, found {text[:60]!r}") from error
    if time.tzinfo is not None:
        raise DataError(
            f"{where}.time: expected a time without an offset, found {text!r}; write all times of a history in one time zone"
        )
    return time, text


def _check_turn(turn_id: Any, turn_ids: Collection[str], where: str) -> None:
    if expect(turn_id, str, where) not in turn_ids:
        raise DataError(
            f"{where}: expected the id of a turn of this history, `<session id>:<number from 1>`, found {turn_id[:60]!r}"
        )


def _check_fields(record: Any, known: Sequence[str], where: str) -> None:
    unknown = [name for name in expect(record, dict, where) if name not in known]
    if unknown:
        raise DataError(f"{where}: expected only the fields {', '.join(known)}, found {unknown[0][:60]!r}")


def _optional(record: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """The field, checked, or None where the record does not have it."""
    return get(record, key, kind, where) if key in record else None


def _identifier(record: Any, where: str) -> str:
    return _nonempty(get_text(record, "id", where), f"{where}.id")


def _nonempty(value: Any, where: str) -> str:
    text = check_text(value, where)
    if not text.strip():
        raise DataError(f"{where}: expected text, found {text[:20]!r}")
    return text
