"""PerLTQA: a character's profile, relations, events and dialogues, with questions about each.

Source: Du et al. 2024 (arXiv 2402.16288), English version en_v2: `perltmem_en_v2.json` and `perltqa_en_v2.json`. The older layout
(a list of records with a `profile.Protagonist`) can be read too.

Deviations from the raw files:
- each character with questions is a case. Its sessions are, in this order: the profile (a turn per field, plus one for the
  description), the social relations (a turn each), the events (a session of one turn each, with time) and the dialogues (with time);
  within each kind they are in file order;
- an event's turn begins with its summary and theme, on a line of their own;
- HTML entities (`&quot;`, `&#39;` …) are unescaped everywhere. Sections written as the repr of a Python object are parsed with
  `ast.literal_eval`, if they have at most MAX_LITERAL characters;
- event times are free text: a day, month or year becomes its first moment; for any other text `time` is None;
- the offsets of anchors refer to the Chinese original and are dropped; the anchors' texts are in `Gold.detail["anchors"]`;
- a reference memory that does not exist is left out of the evidence and noted. A character without any memory (one in en_v2, with 277
  questions) is a case without sessions, so that the number of questions is the published one.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_loaders.raw import (
    LazyCases,
    check_text,
    check_unique,
    expect,
    get,
    get_text,
    parsed_time,
    python_literal,
    read_json,
)
from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn

CATEGORIES: Mapping[str, str] = {
    "profile": "profile",
    "social_relationship": "social",
    "events": "events",
    "dialogues": "dialogues",
}
"""Category by the raw section of a question."""

MAX_LITERAL = 200_000
"""Maximum number of characters of a Python literal: the parser's memory and stack grow with it."""

_TIME_FORMATS = ("%Y-%m-%d %H:%M", "%Y-%m-%d", "%B %d, %Y", "%d %B %Y", "%B %Y", "%Y-%m", "%Y")


def load(path: Path, *, memory: str = "perltmem_en_v2.json", questions: str = "perltqa_en_v2.json") -> Sequence[Case]:
    """One case per character with questions, in the order of the question file.

    `memory` and `questions` are the names of the two files in the folder `path`. Turn ids are `profile:<field>`,
    `profile:profile_description`, the raw ids of relations (`4_0`) and events (`4_0_0`), and `<dialogue id>:<line from 1>`. The
    character's own lines have the role user. Question ids are `<category>_<index>`. `Gold.detail` has `evidence_raw` (the raw ids) and
    `anchors` (texts). All lines of a dialogue are evidence for a question about it. Raises DataError for malformed records.
    """
    memories = dict(_by_character(read_json(path / memory), memory))
    asked = _by_character(read_json(path / questions), questions)
    sizes = [sum(len(_section(sections, kind, where)) for kind in CATEGORIES) for _, (sections, where) in asked]

    def parse(index: int) -> Case:
        name, (sections, where) = asked[index]
        return _case(name, memories.get(name), sections, where)

    return LazyCases([name for name, _ in asked], sizes, parse)


def _by_character(raw: Any, where: str) -> list[tuple[str, tuple[Any, str]]]:
    """(character, (record, its place)) in either layout: {name: record}, or a list of such objects or of records with their name."""
    records: list[tuple[str, Any]] = []
    for number, entry in enumerate([raw] if isinstance(raw, dict) else expect(raw, list, where)):
        place = f"{where}: record {number}"
        profile = expect(entry, dict, place).get("profile")
        if isinstance(profile, dict) and "Protagonist" in profile:
            records.append((get_text(profile, "Protagonist", f"{place}.profile"), entry))
        else:
            records.extend((check_text(name, place), record) for name, record in entry.items())
    check_unique((name for name, _ in records), f"{where}: characters")
    return [(name, (expect(record, dict, f"{where}: {name}"), f"{where}: {name}")) for name, record in records]


def _section(record: Mapping[str, Any], key: str, where: str) -> Any:
    """A section as an object or list: empty if it is missing, parsed if it is written as a Python literal."""
    value = record.get(key, {})
    if isinstance(value, str):
        value = _literal(value, f"{where}.{key}")
    return expect(value, (dict, list), f"{where}.{key}")


def _literal(text: str, where: str) -> Any:
    if len(text) > MAX_LITERAL:
        raise DataError(f"{where}: expected a literal of at most {MAX_LITERAL:,} characters, found {len(text):,}")
    return python_literal(text, where)


def _text(record: Any, key: str, where: str) -> str:
    return html.unescape(get_text(record, key, where)).strip()


def _optional(record: Mapping[str, Any], key: str, where: str) -> str:
    """A text or a number such as a year, as text; empty if the record does not have it."""
    value = record.get(key)
    if value is None:
        return ""
    return html.unescape(check_text(str(expect(value, (str, int), f"{where}.{key}")), f"{where}.{key}")).strip()


def _case(name: str, memory: tuple[Any, str] | None, asked: Mapping[str, Any], where: str) -> Case:
    notes: list[str] = []
    sessions: tuple[Session, ...] = ()
    if memory is None:
        notes.append(f"{name}: has questions but no memory.")
    else:
        sessions = tuple(_sessions(name, *memory))
        notes.extend(f"{name}: its memory has no section {kind}." for kind in CATEGORIES if kind not in memory[0])
        check_unique((session.id for session in sessions), f"{memory[1]}: memories")
        check_unique((turn.id for session in sessions for turn in session.turns), f"{memory[1]}: memories")
    notes.extend(
        f"{name}: the section {kind!r} of its questions is not read." for kind in asked if kind not in CATEGORIES
    )
    turns = _turns_by_memory(sessions)
    questions = tuple(
        _question(raw, place, f"{category}_{index}", category, turns, notes)
        for kind, category in CATEGORIES.items()
        for index, (raw, place) in enumerate(_entries(_section(asked, kind, where), f"{where}.{kind}"))
    )
    return Case(name, (name,), sessions, questions, cluster=name, notes=tuple(notes))


def _sessions(name: str, record: Mapping[str, Any], where: str) -> Iterator[Session]:
    profile = tuple(_profile(record, where))
    social = tuple(
        Turn(check_text(key, where), "", _relation(raw, f"{where}.social_relationship.{key}"))
        for key, raw in _mapping(record, "social_relationship", where)
    )
    if profile:
        yield Session("profile", profile)
    if social:
        yield Session("social_relationship", social)
    for key, raw in _mapping(record, "events", where):
        yield _event(check_text(key, where), raw, f"{where}.events.{key}")
    for key, raw in _mapping(record, "dialogues", where):
        yield from _dialogue(name, check_text(key, where), raw, f"{where}.dialogues.{key}")


def _mapping(record: Mapping[str, Any], key: str, where: str) -> list[tuple[str, Any]]:
    """The section's (id, entry) pairs; in the other layout the section is a list of objects with one entry each."""
    section = _section(record, key, where)
    parts = [section] if isinstance(section, dict) else section
    return [
        (expect(each, str, f"{where}.{key}: id"), entry)
        for part in parts
        for each, entry in expect(part, dict, f"{where}.{key}").items()
    ]


def _profile(record: Mapping[str, Any], where: str) -> Iterator[Turn]:
    for field, value in _mapping(record, "profile", where):
        place = f"{where}.profile.{field}"
        values = value if isinstance(value, list) else [] if value is None else [value]
        words = ", ".join(str(expect(each, (str, int, float), place)) for each in values)
        if words:
            yield Turn(f"profile:{check_text(field, place)}", "", html.unescape(check_text(f"{field}: {words}", place)))
    if record.get("profile_description"):
        yield Turn("profile:profile_description", "", _text(record, "profile_description", where))


def _relation(raw: Any, where: str) -> str:
    who, relation = _text(raw, "Supporting Characters", where), _optional(raw, "Relationship", where)
    return f"{who} ({relation}): {_optional(raw, 'Description', where)}"


def _event(key: str, raw: Any, where: str) -> Session:
    content = _text(raw, "content", where)
    heading = " — ".join(text for text in (_optional(raw, "summary", where), _optional(raw, "Theme", where)) if text)
    time_text = _optional(raw, "Creation Time", where)
    turn = Turn(key, "", f"{heading}\n{content}" if heading else content)
    return Session(key, (turn,), parsed_time(time_text, *_TIME_FORMATS), time_text)


def _dialogue(name: str, key: str, raw: Any, where: str) -> Iterator[Session]:
    """A session for each time of the dialogue; lines are numbered across its sessions."""
    contents = get(raw, "contents", dict, where)
    line = 0
    for time_text, lines in contents.items():
        place = f"{where}.contents.{time_text}"
        turns: list[Turn] = []
        for each in expect(lines, list, place):
            line += 1
            turns.append(_turn(f"{key}:{line}", html.unescape(check_text(each, f"{place}[{len(turns)}]")), name))
        if turns:
            session_id = key if len(contents) == 1 else f"{key}@{check_text(time_text, place)}"
            yield Session(session_id, tuple(turns), parsed_time(time_text.strip(), *_TIME_FORMATS), time_text)


def _turn(turn_id: str, line: str, name: str) -> Turn:
    speaker, colon, text = line.partition(":")
    if not colon:
        return Turn(turn_id, "", line.strip())
    role: Role = "user" if speaker.strip() == name else "assistant"
    return Turn(turn_id, speaker.strip(), text.strip(), role)


def _turns_by_memory(sessions: Sequence[Session]) -> dict[str, list[str]]:
    """Ids of the turns that hold each reference memory (the id of a profile field, relation, event or dialogue)."""
    turns: dict[str, list[str]] = {}
    for session in sessions:
        for turn in session.turns:
            key = turn.id.removeprefix("profile:") if session.id == "profile" else turn.id.rpartition(":")[0] or turn.id
            turns.setdefault(key, []).append(turn.id)
    return turns


def _entries(section: Any, where: str) -> Iterator[tuple[Any, str]]:
    """The section's questions with their places: a flat list, or a list of {memory id: questions}."""
    for number, part in enumerate([section] if isinstance(section, dict) else section):
        place = f"{where}[{number}]"
        if "Question" in expect(part, dict, place):
            yield part, place
            continue
        for key, entries in part.items():
            for index, raw in enumerate(expect(entries, list, f"{place}.{key}")):
                yield raw, f"{place}.{key}[{index}]"


def _question(
    raw: Any, where: str, question_id: str, category: str, turns: Mapping[str, Sequence[str]], notes: list[str]
) -> tuple[Question, Gold]:
    references = parse_references(get(raw, "Reference Memory", (str, list), where), f"{where}.Reference Memory")
    missing = [each for each in references if each not in turns]
    if missing:
        notes.append(f"{question_id}: its reference memory does not exist ({', '.join(missing)}).")
    anchors = tuple(
        html.unescape(check_text(text, f"{where}.Memory Anchors[{number}]"))
        for number, anchor in enumerate(get(raw, "Memory Anchors", list, where))
        for text in expect(anchor, dict, f"{where}.Memory Anchors[{number}]")
    )
    gold = Gold(
        (_text(raw, "Answer", where),),
        evidence=tuple(dict.fromkeys(turn for each in references for turn in turns.get(each, ()))),
        category=category,
        detail={"evidence_raw": references, "anchors": anchors},
    )
    return Question(question_id, _text(raw, "Question", where)), gold


def parse_references(raw: str | list[Any], where: str = "Reference Memory") -> tuple[str, ...]:
    """The memory ids of a question: the string is a profile field, or the repr of a list of ids. Raises DataError."""
    if isinstance(raw, str) and not raw.lstrip().startswith("["):
        return (html.unescape(check_text(raw, where)).strip(),)
    ids = expect(_literal(raw.strip(), where) if isinstance(raw, str) else raw, list, where)
    return tuple(check_text(each, where) for each in ids)
