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

from data_loaders.raw import LazyCases, Raw, check_choice, check_unique, parsed_time, read_raw
from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn

ABSTENTION, CONTRADICTION, EVENT_ORDERING = "abstention", "contradiction_resolution", "event_ordering"
ABILITIES: Mapping[str, tuple[str, str]] = {
    ABSTENTION: ("ideal_response", "abstention_type"),
    CONTRADICTION: ("ideal_answer", "contradiction_type"),
    EVENT_ORDERING: ("answer", "ordering_type"),
    "information_extraction": ("answer", "question_type"),
    "instruction_following": ("expected_compliance", "instruction_type"),
    "knowledge_update": ("answer", "update_type"),
    "multi_session_reasoning": ("answer", "reasoning_type"),
    "preference_following": ("expected_compliance", "preference_type"),
    "summarization": ("ideal_summary", "summarization_type"),
    "temporal_reasoning": ("answer", "temporal_type"),
}
"""The ten abilities, and of each the fields that hold the reference text and the subtype."""
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
    needed = _QUESTIONS if chats == "none" else _WHOLE
    folders = _folders(path, needed)
    if not folders:
        raise DataError(f"{path}: expected folders with {_WHOLE} and {_QUESTIONS}, found none")
    sizes = [(folder / needed).stat().st_size for folder in folders]
    return LazyCases([folder.name for folder in folders], sizes, lambda index: _case(folders[index], chats, markers))


def caption(path: Path, *, chats: Chats = "truncated", markers: Markers = "cut") -> str:
    """A table caption's text: the number of chats, the chats that are read truncated, and whether plan markers are cut."""
    if chats == "none":
        return f"{len(_folders(path, _QUESTIONS))} chats, their questions alone"
    folders = _folders(path, _WHOLE)
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
    marked = [message.value for message in _all_messages(batches) if MARKER in message.value["content"]]
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
    topic = _file(folder, "topic.json")
    labels = {"topic": topic.text("title"), "chat_category": topic.text("category")}
    questions = tuple(_questions(_file(folder, _QUESTIONS), {turn.id for turn in turns}, labels, notes))
    if chats == "none":
        notes = ["The chat is left out, and the evidence with it."]
    return Case(name, ("User", "Assistant"), sessions, questions, cluster=name, notes=tuple(notes))


def _file(folder: Path, name: str) -> Raw:
    return Raw(read_raw(folder / name).value, f"{folder.name}: {Path(name).name}")


def _batches(folder: Path, chats: Chats) -> tuple[list[Raw], list[str]]:
    """The batches to read, and a note if they come from the truncated copy."""
    whole = _file(folder, _WHOLE).each()
    if chats == "whole" or not (folder / _TRUNCATED).is_file():
        return whole, []
    shorter = _file(folder, _TRUNCATED).each()
    every, kept = _all_messages(whole), _all_messages(shorter)
    if [_fields(message, "id", "role") for message in every[: len(kept)]] != [
        _fields(each, "id", "role") for each in kept
    ]:
        raise DataError(f"{folder.name}: {_TRUNCATED}: expected the beginning of {_WHOLE}, found other messages")
    notes = [f"The last {len(every) - len(kept)} messages are left out, as in {_TRUNCATED}."]
    for first, second in zip(every, kept, strict=False):
        if _fields(first, "content") != _fields(second, "content"):
            notes.append(f"Message {second.value['id']} is read from {_TRUNCATED}, which words it differently.")
    return shorter, notes


def _all_messages(batches: Iterable[Raw]) -> list[Raw]:
    return [message for batch in batches for message in _messages(batch)]


def _fields(message: Raw, *names: str) -> Any:
    return [message.value.get(name) for name in names] if isinstance(message.value, dict) else message.value


def _messages(batch: Raw) -> list[Raw]:
    return [message for turn in batch.each("turns") for message in turn.each()]


def _sessions(batches: Sequence[Raw], markers: Markers, name: str, notes: list[str]) -> tuple[Session, ...]:
    sessions = []
    for batch in batches:
        number, raw = batch.of(int, "batch_number"), _messages(batch)
        turns = tuple(_turn(message, markers) for message in raw)
        time_text = raw[0].optional("time_anchor") if raw else ""
        time = parsed_time(time_text.strip(), "%B-%d-%Y")
        if time is None:
            notes.append(f"Batch {number} has no readable date: {time_text!r}.")
        sessions.append(Session(f"S{number}", turns, time, time_text))
    check_unique((session.id for session in sessions), f"{name}: batches")
    return tuple(sessions)


def _turn(message: Raw, markers: Markers) -> Turn:
    speaker, side = _SPEAKERS[message.choice(_SPEAKERS, "role")]
    text = message.text("content")
    return Turn(str(message.of(int, "id")), speaker, without_marker(text) if markers == "cut" else text, side)


def without_marker(text: str) -> str:
    """The text of a message without its plan marker: cut off at the marker if the rest is one line, else only the marker is removed."""
    if MARKER not in text:
        return text
    return _MARKED.sub(r"\1", text) if _has_lines_after_marker(text) else text.partition(MARKER)[0].rstrip()


def _has_lines_after_marker(text: str) -> bool:
    return "\n" in text.partition(MARKER)[2].strip()


def _questions(
    raw: Raw, known: set[str], labels: Mapping[str, str], notes: list[str]
) -> Iterator[tuple[Question, Gold]]:
    for ability in raw.of(dict):
        Raw(ability, raw.where).choice(ABILITIES)
        for number, record in enumerate(raw.each(ability)):
            gold = _gold(record, ability, known, labels)
            notes.extend(f"{ability}_{number}: {oddity}" for oddity in _oddities(record.value, ability, gold))
            yield Question(f"{ability}_{number}", record.text("question")), gold


def _gold(record: Raw, ability: str, known: set[str], labels: Mapping[str, str]) -> Gold:
    rubric = record.texts("rubric")
    if not rubric:
        raise DataError(f"{record.where}.rubric: expected at least one item, found none")
    cited = tuple(_ids(record.value.get("source_chat_ids", []), f"{record.where}.source_chat_ids"))
    reference, subtype = ABILITIES[ability]
    return Gold(
        (record.text(reference),),
        evidence=tuple(turn_id for turn_id in dict.fromkeys(cited) if turn_id in known),
        category=ability,
        answerable=ability != ABSTENTION,
        detail={
            "rubric": rubric,
            "difficulty": record.text("difficulty"),
            "subtype": record.text(subtype),
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
        yield str(Raw(raw, where).of(int))


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
