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

from data_loaders.raw import LazyCases, Raw, check_unique, parsed_time, python_literal, read_raw
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
    memories, asked = _by_character(read_raw(path / memory)), _by_character(read_raw(path / questions))
    sizes = [sum(len(_section(sections, kind).value) for kind in CATEGORIES) for sections in asked.values()]
    names = list(asked)
    return LazyCases(names, sizes, lambda at: _case(names[at], memories.get(names[at]), asked[names[at]]))


def _by_character(raw: Raw) -> dict[str, Raw]:
    """Records by character in either layout: {name: record}, or a list of such objects or of records with their name."""
    records: list[tuple[str, Any]] = []
    for entry in [raw] if isinstance(raw.value, dict) else raw.each():
        profile = entry.of(dict).get("profile")
        if isinstance(profile, dict) and "Protagonist" in profile:
            records.append((entry.at("profile").text("Protagonist"), entry.value))
        else:
            records.extend((Raw(name, entry.where).text(), record) for name, record in entry.value.items())
    check_unique((name for name, _ in records), f"{raw.where}: characters")
    named = {name: Raw(record, f"{raw.where}: {name}") for name, record in records}
    return {name: Raw(record.of(dict), record.where) for name, record in named.items()}


def _section(record: Raw, key: str) -> Raw:
    """A section as an object or list: empty if it is missing, parsed if it is written as a Python literal."""
    value, where = record.value.get(key, {}), f"{record.where}.{key}"
    section = Raw(_literal(value, where) if isinstance(value, str) else value, where)
    section.of((dict, list))
    return section


def _literal(text: str, where: str) -> Any:
    if len(text) > MAX_LITERAL:
        raise DataError(f"{where}: expected a literal of at most {MAX_LITERAL:,} characters, found {len(text):,}")
    return python_literal(text, where)


def _text(record: Raw, key: str) -> str:
    return html.unescape(record.text(key)).strip()


def _optional(record: Raw, key: str) -> str:
    """A text or a number such as a year, as text; empty if the record does not have it."""
    if record.of(dict).get(key) is None:
        return ""
    return html.unescape(Raw(str(record.of((str, int), key)), f"{record.where}.{key}").text()).strip()


def _case(name: str, memory: Raw | None, asked: Raw) -> Case:
    notes: list[str] = []
    sessions: tuple[Session, ...] = ()
    if memory is None:
        notes.append(f"{name}: has questions but no memory.")
    else:
        sessions = tuple(_sessions(name, memory))
        notes.extend(f"{name}: its memory has no section {kind}." for kind in CATEGORIES if not memory.has(kind))
        check_unique((session.id for session in sessions), f"{memory.where}: memories")
        check_unique((turn.id for session in sessions for turn in session.turns), f"{memory.where}: memories")
    notes.extend(
        f"{name}: the section {kind!r} of its questions is not read." for kind in asked.value if kind not in CATEGORIES
    )
    turns = _turns_by_memory(sessions)
    questions = tuple(
        _question(raw, f"{category}_{index}", category, turns, notes)
        for kind, category in CATEGORIES.items()
        for index, raw in enumerate(_entries(_section(asked, kind)))
    )
    return Case(name, (name,), sessions, questions, cluster=name, notes=tuple(notes))


def _sessions(name: str, record: Raw) -> Iterator[Session]:
    profile = tuple(_profile(record))
    if profile:
        yield Session("profile", profile)
    social = []
    for key, raw in _mapping(record, "social_relationship"):
        whom, relation = _text(raw, "Supporting Characters"), _optional(raw, "Relationship")
        social.append(Turn(key, "", f"{whom} ({relation}): {_optional(raw, 'Description')}"))
    if social:
        yield Session("social_relationship", tuple(social))
    for key, raw in _mapping(record, "events"):
        yield _event(key, raw)
    for key, raw in _mapping(record, "dialogues"):
        yield from _dialogue(name, key, raw)


def _mapping(record: Raw, key: str) -> list[tuple[str, Raw]]:
    """The section's (id, entry) pairs; in the other layout the section is a list of objects with one entry each."""
    section = _section(record, key)
    return [
        (Raw(each, part.where).text(), Raw(entry, f"{section.where}.{each}"))
        for part in ([section] if isinstance(section.value, dict) else section.each())
        for each, entry in part.of(dict).items()
    ]


def _profile(record: Raw) -> Iterator[Turn]:
    for field, raw in _mapping(record, "profile"):
        value = raw.value
        values = value if isinstance(value, list) else [] if value is None else [value]
        words = ", ".join(str(Raw(each, raw.where).of((str, int, float))) for each in values)
        if words:
            yield Turn(f"profile:{field}", "", html.unescape(Raw(f"{field}: {words}", raw.where).text()))
    if record.value.get("profile_description"):
        yield Turn("profile:profile_description", "", _text(record, "profile_description"))


def _event(key: str, raw: Raw) -> Session:
    content = _text(raw, "content")
    heading = " — ".join(text for text in (_optional(raw, "summary"), _optional(raw, "Theme")) if text)
    time_text = _optional(raw, "Creation Time")
    turn = Turn(key, "", f"{heading}\n{content}" if heading else content)
    return Session(key, (turn,), parsed_time(time_text, *_TIME_FORMATS), time_text)


def _dialogue(name: str, key: str, raw: Raw) -> Iterator[Session]:
    """A session for each time of the dialogue; lines are numbered across its sessions."""
    contents = raw.at("contents")
    line = 0
    for time_text in contents.of(dict):
        turns: list[Turn] = []
        for each in contents.texts(time_text):
            line += 1
            speaker, colon, text = html.unescape(each).partition(":")
            if not colon:
                speaker, text = "", speaker
            role: Role = "user" if not colon or speaker.strip() == name else "assistant"
            turns.append(Turn(f"{key}:{line}", speaker.strip(), text.strip(), role))
        if turns:
            session_id = key if len(contents.value) == 1 else f"{key}@{Raw(time_text, contents.where).text()}"
            yield Session(session_id, tuple(turns), parsed_time(time_text.strip(), *_TIME_FORMATS), time_text)


def _turns_by_memory(sessions: Sequence[Session]) -> dict[str, list[str]]:
    """Ids of the turns that hold each reference memory (the id of a profile field, relation, event or dialogue)."""
    turns: dict[str, list[str]] = {}
    for session in sessions:
        for turn in session.turns:
            key = turn.id.removeprefix("profile:") if session.id == "profile" else turn.id.rpartition(":")[0] or turn.id
            turns.setdefault(key, []).append(turn.id)
    return turns


def _entries(section: Raw) -> Iterator[Raw]:
    """The section's questions: a flat list, or a list of {memory id: questions}."""
    for part in [section] if isinstance(section.value, dict) else section.each():
        if part.has("Question"):
            yield part
        else:
            yield from (entry for key in part.value for entry in part.each(key))


def _question(
    raw: Raw, question_id: str, category: str, turns: Mapping[str, Sequence[str]], notes: list[str]
) -> tuple[Question, Gold]:
    references = parse_references(raw.of((str, list), "Reference Memory"), f"{raw.where}.Reference Memory")
    missing = [each for each in references if each not in turns]
    if missing:
        notes.append(f"{question_id}: its reference memory does not exist ({', '.join(missing)}).")
    anchors = tuple(
        html.unescape(Raw(text, anchor.where).text())
        for anchor in raw.each("Memory Anchors")
        for text in anchor.of(dict)
    )
    gold = Gold(
        (_text(raw, "Answer"),),
        evidence=tuple(dict.fromkeys(turn for each in references for turn in turns.get(each, ()))),
        category=category,
        detail={"evidence_raw": references, "anchors": anchors},
    )
    return Question(question_id, _text(raw, "Question")), gold


def parse_references(raw: str | list[Any], where: str = "Reference Memory") -> tuple[str, ...]:
    """The memory ids of a question: the string is a profile field, or the repr of a list of ids. Raises DataError."""
    if isinstance(raw, str) and not raw.lstrip().startswith("["):
        return (html.unescape(Raw(raw, where).text()).strip(),)
    return Raw(_literal(raw.strip(), where) if isinstance(raw, str) else raw, where).texts()
