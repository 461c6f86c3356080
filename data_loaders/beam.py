"""BEAM: long chats with an assistant, and twenty questions of ten abilities about each (Tavakoli et al. 2026, arXiv 2510.27246).

A length tier is a folder `<chat>/{chat.json, chat_trunecated.json, topic.json, probing_questions/probing_questions.json}`; the misspelling
is the repository's. The `.pickle` copies are never opened. A chat with questions but without messages is left out.

How irregularities of the raw files are treated:
- Main questions, and some other messages, end in `->-> <batch>,<bullet>`, their place in the plan that generated them. It is cut off, with
  the rest of its line, and `Case.notes` counts it; `markers="raw"` keeps it, as the official runners do. One reply of 1M (chat 4, message
  1009) continues for many lines after the marker: there only the marker is removed, and a note names the message.
- Ten chats of 100K have a truncated copy, which the official answer script reads and which holds all evidence. It is the default;
  `chats="whole"` reads the full chat, as the release on the hub has it. A copy whose ids and roles are not the beginning of its chat's is
  an error. A message with another wording in the copy (1M, chat 6, message 476) is read from the copy, and a note names it.
- The date of a batch is on its first message only; the field of the batch is always null.
- `source_chat_ids` is a list, a nested list, or a dict of lists; all ids in it count, in the order of the file. Abstention has none, and
  five other questions name none: they have no evidence, and a note says so (the free-text references are not reliable).
- A rubric of event ordering whose length is not `total_mentions`, and a contradiction whose two statements are one message, are notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from data_loaders.raw import (
    LazyCases,
    check_choice,
    check_text,
    check_unique,
    expect,
    get,
    get_text,
    parsed_time,
    read_json,
)
from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn

ABSTENTION, CONTRADICTION, EVENT_ORDERING = "abstention", "contradiction_resolution", "event_ordering"
REFERENCES: Mapping[str, str] = {
    ABSTENTION: "ideal_response",
    CONTRADICTION: "ideal_answer",
    EVENT_ORDERING: "answer",
    "information_extraction": "answer",
    "instruction_following": "expected_compliance",
    "knowledge_update": "answer",
    "multi_session_reasoning": "answer",
    "preference_following": "expected_compliance",
    "summarization": "ideal_summary",
    "temporal_reasoning": "answer",
}
"""The ten abilities, and the field that holds the reference text of each."""
SUBTYPES: Mapping[str, str] = {
    ABSTENTION: "abstention_type",
    CONTRADICTION: "contradiction_type",
    EVENT_ORDERING: "ordering_type",
    "information_extraction": "question_type",
    "instruction_following": "instruction_type",
    "knowledge_update": "update_type",
    "multi_session_reasoning": "reasoning_type",
    "preference_following": "preference_type",
    "summarization": "summarization_type",
    "temporal_reasoning": "temporal_type",
}
MARKER = "->->"
_MARKED = re.compile(rf"(\s++(?!{MARKER}))|\s*{MARKER} *(?:\d+, *(?:\d+|N/A)?)?")
"""A marker with the blanks before it and its place in the plan; the bullet's number is missing in some. Other blanks are the group."""

Chats = Literal["truncated", "whole", "none"]
Markers = Literal["cut", "raw"]

_WHOLE, _TRUNCATED = "chat.json", "chat_trunecated.json"
_QUESTIONS = "probing_questions/probing_questions.json"
_SPEAKERS: Mapping[str, tuple[str, Role]] = {"user": ("User", "user"), "assistant": ("Assistant", "assistant")}


def load(path: Path, *, chats: Chats = "truncated", markers: Markers = "cut") -> Sequence[Case]:
    """One case per chat of the tier's folder, by number, parsed on access; sizes are bytes.

    `chats="none"` gives the questions of every chat without its messages, to judge answers of other systems. Turn ids are the message
    ids; question ids are `<ability>_<number from 0>`. All questions are asked after the whole chat. `Gold.detail` has `rubric` (texts),
    `difficulty`, `subtype`, `topic` and `chat_category`.

    Raises DataError if a file is malformed, and ValueError for an unknown choice.
    """
    check_choice("chats", chats, Chats)
    check_choice("markers", markers, Markers)
    needed = _needed(chats)
    folders = _folders(path, needed)
    if not folders:
        raise DataError(f"{path}: expected folders with {_WHOLE} and {_QUESTIONS}, found none")
    sizes = [(folder / needed).stat().st_size for folder in folders]
    return LazyCases([folder.name for folder in folders], sizes, lambda index: _case(folders[index], chats, markers))


def _needed(chats: Chats) -> str:
    """The file that a chat's folder must hold."""
    return _QUESTIONS if chats == "none" else _WHOLE


def caption(path: Path, *, chats: Chats = "truncated", markers: Markers = "cut") -> str:
    """A table caption's text: the number of chats, the chats that are read truncated, and whether plan markers are cut."""
    folders = _folders(path, _needed(chats))
    if chats == "none":
        return f"{len(folders)} chats, their questions alone"
    shorter = [folder.name for folder in folders if (folder / _TRUNCATED).is_file()]
    asked = len([folder for folder in path.iterdir() if (folder / _QUESTIONS).is_file()])
    read = "read truncated, as by the official answer script" if chats == "truncated" else "read whole"
    plan = "cut off" if markers == "cut" else "kept, as by the official runners"
    held = f"{len(folders)} chats" if asked == len(folders) else f"{len(folders)} of {asked} chats"
    return f"{held}, {len(shorter)} with a truncated copy {read}; plan markers at the end of messages {plan}"


def _folders(path: Path, needed: str) -> list[Path]:
    folders = [folder for folder in path.iterdir() if folder.is_dir()] if path.is_dir() else []
    held = [folder for folder in folders if (folder / needed).is_file()]
    return sorted(held, key=lambda folder: (len(folder.name), folder.name))


def _case(folder: Path, chats: Chats, markers: Markers) -> Case:
    name = folder.name
    batches, notes = ([], []) if chats == "none" else _batches(folder, chats)
    sessions = _sessions(batches, markers, name, notes)
    turns = [turn for session in sessions for turn in session.turns]
    check_unique((turn.id for turn in turns), f"{name}: messages")
    marked = [message for message in _all_messages(batches, name) if MARKER in message["content"]]
    if marked:
        notes.append(
            f"{len(marked)} messages hold a marker of the generation plan, which is {'cut off' if markers == 'cut' else 'kept'}."
        )
    if markers == "cut":
        notes += [
            f"Message {message['id']} has lines after its marker, which are kept."
            for message in marked
            if _has_lines_after_marker(message["content"])
        ]
    topic = read_json(folder / "topic.json")
    labels = {field: get_text(topic, key, f"{name}: topic.json") for field, key in _TOPIC.items()}
    raw = expect(read_json(folder / _QUESTIONS), dict, f"{name}: {Path(_QUESTIONS).name}")
    questions = tuple(_questions(raw, {turn.id for turn in turns}, labels, f"{name}: {Path(_QUESTIONS).name}", notes))
    if chats == "none":
        notes = ["The chat is left out, and the evidence with it."]
    return Case(name, ("User", "Assistant"), sessions, questions, cluster=name, notes=tuple(notes))


_TOPIC = {"topic": "title", "chat_category": "category"}


def _batches(folder: Path, chats: Chats) -> tuple[list[Any], list[str]]:
    """The batches to read, and a note if they come from the truncated copy."""
    whole = expect(read_json(folder / _WHOLE), list, f"{folder.name}: {_WHOLE}")
    if chats == "whole" or not (folder / _TRUNCATED).is_file():
        return whole, []
    shorter = expect(read_json(folder / _TRUNCATED), list, f"{folder.name}: {_TRUNCATED}")
    every, kept = _all_messages(whole, folder.name), _all_messages(shorter, folder.name)
    if [_fields(message, "id", "role") for message in every[: len(kept)]] != [
        _fields(each, "id", "role") for each in kept
    ]:
        raise DataError(f"{folder.name}: {_TRUNCATED}: expected the beginning of {_WHOLE}, found other messages")
    notes = [f"The last {len(every) - len(kept)} messages are left out, as in {_TRUNCATED}."]
    for first, second in zip(every, kept, strict=False):
        if _fields(first, "content") != _fields(second, "content"):
            notes.append(f"Message {second['id']} is read from {_TRUNCATED}, which words it differently.")
    return shorter, notes


def _all_messages(batches: Iterable[Any], where: str) -> list[Any]:
    return [message for batch in batches for message in _messages(batch, where)]


def _fields(message: Any, *names: str) -> Any:
    return [message.get(name) for name in names] if isinstance(message, dict) else message


def _messages(batch: Any, where: str) -> Iterator[Any]:
    for number, turn in enumerate(get(batch, "turns", list, where)):
        yield from expect(turn, list, f"{where}: turns[{number}]")


def _sessions(batches: Sequence[Any], markers: Markers, name: str, notes: list[str]) -> tuple[Session, ...]:
    sessions = []
    for batch in batches:
        number = get(batch, "batch_number", int, f"{name}: batch")
        where = f"{name}: batch {number}"
        raw = list(_messages(batch, where))
        turns = tuple(_turn(message, markers, f"{where}: message {place}") for place, message in enumerate(raw))
        said = raw[0].get("time_anchor") if raw else None
        time_text = "" if said is None else check_text(said, f"{where}: time_anchor")
        time = parsed_time(time_text.strip(), "%B-%d-%Y")
        if time is None:
            notes.append(f"Batch {number} has no readable date: {time_text!r}.")
        sessions.append(Session(f"S{number}", turns, time, time_text))
    check_unique((session.id for session in sessions), f"{name}: batches")
    return tuple(sessions)


def _turn(message: Any, markers: Markers, where: str) -> Turn:
    role = get_text(message, "role", where)
    if role not in _SPEAKERS:
        raise DataError(f"{where}.role: expected user or assistant, found {role!r}")
    text = get_text(message, "content", where)
    if markers == "cut":
        text = without_marker(text)
    speaker, side = _SPEAKERS[role]
    return Turn(str(get(message, "id", int, where)), speaker, text, side)


def without_marker(text: str) -> str:
    """The text of a message without its plan marker: cut off at the marker if the rest is one line, else only the marker is removed."""
    if MARKER not in text:
        return text
    return _MARKED.sub(r"\1", text) if _has_lines_after_marker(text) else text.partition(MARKER)[0].rstrip()


def _has_lines_after_marker(text: str) -> bool:
    return "\n" in text.partition(MARKER)[2].strip()


def _questions(
    raw: Mapping[str, Any], known: set[str], labels: Mapping[str, str], where: str, notes: list[str]
) -> Iterator[tuple[Question, Gold]]:
    if unknown := set(raw) - set(REFERENCES):
        raise DataError(f"{where}: expected abilities of {', '.join(REFERENCES)}, found {sorted(unknown)[0]!r}")
    for ability in raw:
        for number, record in enumerate(get(raw, ability, list, where)):
            question_id, place = f"{ability}_{number}", f"{where}: {ability}[{number}]"
            gold = _gold(record, ability, known, labels, place)
            notes.extend(f"{question_id}: {oddity}" for oddity in _oddities(record, ability, gold))
            yield Question(question_id, get_text(record, "question", place)), gold


def _gold(record: Any, ability: str, known: set[str], labels: Mapping[str, str], where: str) -> Gold:
    rubric = tuple(check_text(item, f"{where}.rubric") for item in get(record, "rubric", list, where))
    if not rubric:
        raise DataError(f"{where}.rubric: expected at least one item, found none")
    cited = tuple(_ids(record.get("source_chat_ids", []), f"{where}.source_chat_ids"))
    return Gold(
        (get_text(record, REFERENCES[ability], where),),
        evidence=tuple(turn_id for turn_id in dict.fromkeys(cited) if turn_id in known),
        category=ability,
        answerable=ability != ABSTENTION,
        detail={
            "rubric": rubric,
            "difficulty": get_text(record, "difficulty", where),
            "subtype": get_text(record, SUBTYPES[ability], where),
            "evidence_raw": cited,
            **labels,
        },
    )


def _ids(raw: object, where: str) -> Iterator[str]:
    """All message ids in a list, a nested list, or a dict of lists."""
    if isinstance(raw, dict | list):
        for part in raw.values() if isinstance(raw, dict) else raw:
            yield from _ids(part, where)
    else:
        yield str(expect(raw, int, where))


def _oddities(record: Mapping[str, Any], ability: str, gold: Gold) -> Iterator[str]:
    cited = gold.detail["evidence_raw"]
    if not cited and ability != ABSTENTION:
        yield "it names no evidence."
    for turn_id in dict.fromkeys(cited):
        if turn_id not in gold.evidence:
            yield f"its evidence, message {turn_id}, is not in the chat."
    statements = record.get("source_chat_ids")
    if ability == CONTRADICTION and isinstance(statements, dict) and len(statements) > len(set(cited)) > 0:
        yield "both statements of the contradiction are in one message."
    if ability == EVENT_ORDERING and (said := record.get("total_mentions")) != len(gold.detail["rubric"]):
        yield f"total_mentions is {said}, the rubric has {len(gold.detail['rubric'])} events."
