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

from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path

from data_loaders.raw import LazyCases, Raw, check_unique, read_lines
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
    ids = [_filled(record.at("id")) for record in lines]
    sizes = [sum(len(session.of(list, "turns")) for session in record.each("sessions")) for record in lines]
    return LazyCases(ids, sizes, lambda index: _case(lines[index], ids[index]), f"{path.name}: id")


def _case(record: Raw, case_id: str) -> Case:
    _check_fields(record, _HISTORY)
    listed = tuple(map(_filled, record.each("speakers"))) if record.has("speakers") else ()
    check_unique(listed, f"{record.where}.speakers")
    raw_sessions = record.each("sessions")
    # Without a list: all speakers, in the order of their first turns.
    said = (_speaker_and_text(pair)[0] for raw in raw_sessions for pair in raw.each("turns")) if not listed else ()
    speakers = listed or tuple(dict.fromkeys(said))
    sessions = tuple(_session(raw, speakers) for raw in raw_sessions)
    check_unique((session.id for session in sessions), f"{record.where}.sessions")
    turn_ids = [turn.id for session in sessions for turn in session.turns]
    check_unique(turn_ids, f"{record.where}: turn ids")
    if not turn_ids:
        raise DataError(f"{record.where}.sessions: expected at least one turn, found none")
    known = frozenset(turn_ids)
    questions = tuple(_question(raw, number, known) for number, raw in enumerate(record.each("questions"), 1))
    check_unique((question.id for question, _ in questions), f"{record.where}.questions")
    return Case(case_id, speakers, sessions, questions, cluster=case_id)


def _session(raw: Raw, speakers: Sequence[str]) -> Session:
    _check_fields(raw, _SESSION)
    session_id = _filled(raw.at("id"))
    time, time_text = _time(raw)
    turns = []
    for number, pair in enumerate(raw.each("turns"), 1):
        speaker, text = _speaker_and_text(pair)
        if speaker not in speakers:
            names = ", ".join(map(repr, speakers))
            raise DataError(f"{pair.where}: expected a speaker of `speakers` ({names}), found {speaker[:60]!r}")
        role: Role = "user" if speaker == speakers[0] else "assistant"
        turns.append(Turn(f"{session_id}:{number}", speaker, text, role))
    return Session(session_id, tuple(turns), time, time_text)


def _speaker_and_text(raw: Raw) -> tuple[str, str]:
    pair = raw.each()
    if len(pair) != 2:
        raise DataError(f"{raw.where}: expected a pair [speaker, text], found a list of {len(pair)}")
    return _filled(pair[0]), pair[1].text()


def _question(raw: Raw, number: int, turn_ids: Collection[str]) -> tuple[Question, Gold]:
    _check_fields(raw, _QUESTION)
    time, time_text = _time(raw)
    after = _turn_id(raw.at("after"), turn_ids) if raw.has("after") else None
    question_id = _filled(raw.at("id")) if raw.has("id") else f"q{number}"
    question = Question(question_id, _filled(raw.at("text")), after, (), time, time_text)
    answers = tuple(map(_filled, raw.each("answers")))
    if not answers:
        raise DataError(f"{raw.where}.answers: expected at least one answer, found an empty list")
    evidence = [_turn_id(each, turn_ids) for each in raw.each("evidence")] if raw.has("evidence") else []
    gold = Gold(
        answers=answers,
        evidence=tuple(dict.fromkeys(evidence)),
        category=raw.text("category") if raw.has("category") else "",
        answerable=raw.of(bool, "answerable") if raw.has("answerable") else True,
    )
    return question, gold


def _time(raw: Raw) -> tuple[datetime | None, str]:
    """The field `time` as a naive time and as it is written; (None, "") without the field."""
    if not raw.has("time"):
        return None, ""
    text, where = raw.of(str, "time"), f"{raw.where}.time"
    try:
        time = datetime.fromisoformat(Raw(text, where).text())
    except ValueError as error:  # a DataError, too
        raise DataError(f"{where}: expected a time such as 2024-03-02T18:30, found {text[:60]!r}") from error
    if time.tzinfo is not None:
        raise DataError(
            f"{where}: expected a time without an offset, found {text!r}; write all times of a history in one time zone"
        )
    return time, text


def _turn_id(raw: Raw, turn_ids: Collection[str]) -> str:
    turn_id = raw.of(str)
    if turn_id not in turn_ids:
        raise DataError(
            f"{raw.where}: expected the id of a turn of this history, `<session id>:<number from 1>`, found {turn_id[:60]!r}"
        )
    return turn_id


def _check_fields(record: Raw, known: Sequence[str]) -> None:
    if unknown := [name for name in record.of(dict) if name not in known]:
        raise DataError(f"{record.where}: expected only the fields {', '.join(known)}, found {unknown[0][:60]!r}")


def _filled(raw: Raw) -> str:
    text = raw.text()
    if not text.strip():
        raise DataError(f"{raw.where}: expected text, found {text[:20]!r}")
    return text
