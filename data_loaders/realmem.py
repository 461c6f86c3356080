"""RealMem: a year of a persona's sessions with an assistant, with questions asked in the middle of it.

Source: Bian et al. 2026 (arXiv 2601.06966), the ten files `<Persona>_dialogues_256k.json`.

Deviations from the raw files and from the official scripts:
- a question is a user turn of the history and is asked before its own session is written. So with `ask="stream"` its `after` is the
  last turn of the session before, or "" (before the first turn) in the first session, as in the official scripts. With `ask="end"` all
  questions are asked after the whole history, unlike in the official protocol: the session that answers is then in the memory;
- sessions keep the order of the file, although the days of three personas go back and forth;
- the data set marks the sessions that hold an answer, not the turns. The turn of a gold memory is found through the memory with the
  same text that its session lists, and that memory's source (turn number and copy of the turn's text). If the copy matches no turn
  there, the memory has no evidence turn, and a note says so;
- `is_query`, `memory_used` and `extracted_memory` do not become part of a turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_loaders.raw import LazyCases, Raw, check_unique, parsed_time, read_raw
from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn

CATEGORIES: Mapping[str, str] = {
    "Dynamic Incremental": "dynamic-incremental",
    "Dynamic Updating": "dynamic-updating",
    "Implicit Preference": "implicit-preference",
    "Temporal-reasoning": "temporal-reasoning",
}
"""Category by the raw `category_name` of a query."""

NOT_A_QUERY = "not-a-query"
"""Category of a user turn that has gold memories but is not a query (`questions="all_gold_turns"`)."""

_FILES = "*_dialogues_*.json"
_ROLES: Mapping[str, Role] = {"User": "user", "Assistant": "assistant"}

Ask = Literal["stream", "end"]
Questions = Literal["queries", "all_gold_turns"]


@dataclass(frozen=True, slots=True)
class _History:
    """A persona's sessions in file order, their positions by uuid, and the turns that hold memories."""

    records: Sequence[Raw]
    sessions: Sequence[Session]
    positions: Mapping[str, Sequence[int]]
    """Positions in `sessions` by session uuid."""
    sources: Mapping[tuple[str, str], str]
    """Id of the turn that a memory was extracted from, by (session uuid, memory text)."""


def load(path: Path, *, ask: Ask = "stream", questions: Questions = "queries") -> Sequence[Case]:
    """One case per persona file of the folder `path`, sorted by file name and parsed on access; sizes are bytes.

    `ask` says when questions are asked (see the module's deviations). With `questions="queries"` they are the user turns marked as
    queries (1,415, whose answers are judged), with `"all_gold_turns"` all user turns whose reply names memories (1,458, over which the
    official retrieval metrics average). Turn ids are `<session identifier>:<turn from 1>`; question ids are the raw `query_id`, or
    the turn id if the turn is not a query. `Gold.answers` is the reference reply; `Gold.detail` has `gold_sessions` (session ids),
    `gold_memories` (texts), `reference`, `topic`, `category_name`, `session_type`, `is_query` and `evidence_raw` (session uuids).
    Raises DataError for anything malformed.
    """
    files = sorted(path.glob(_FILES))
    if not files:
        raise DataError(f"{path}: expected a folder with files {_FILES}, found none")
    personas = [file.name.partition("_dialogues_")[0] for file in files]
    sizes = [file.stat().st_size for file in files]
    return LazyCases(personas, sizes, lambda index: _case(personas[index], files[index], ask, questions))


def _case(persona: str, file: Path, ask: Ask, questions: Questions) -> Case:
    notes: list[str] = []
    dialogues = Raw(read_raw(file).of(list, "dialogues"), f"{file.name}: dialogues")
    history = _history(dialogues.each(), file.name, notes)
    asked = tuple(_questions(history, ask, questions, notes))
    check_unique((question.id for question, _ in asked), f"{file.name}: questions")
    return Case(persona, ("User", "Assistant"), tuple(history.sessions), asked, cluster=persona, notes=tuple(notes))


def _history(records: Sequence[Raw], where: str, notes: list[str]) -> _History:
    sessions: list[Session] = []
    positions: dict[str, list[int]] = {}
    sources: dict[tuple[str, str], str] = {}
    seen: dict[str, int] = {}
    for position, record in enumerate(records):
        session_id = record.text("session_identifier")
        seen[session_id] = seen.get(session_id, 0) + 1
        if seen[session_id] > 1:
            notes.append(
                f"{session_id}: the session identifier occurs again; this one is {session_id}~{seen[session_id]}."
            )
            session_id = f"{session_id}~{seen[session_id]}"
        uuid = record.text("session_uuid")
        session = _session(record, session_id, notes)
        sessions.append(session)
        positions.setdefault(uuid, []).append(position)
        for text, turn_id in _sources(record, session):
            sources.setdefault((uuid, text), turn_id)
    check_unique((session.id for session in sessions), f"{where}: dialogues")
    check_unique((turn.id for session in sessions for turn in session.turns), f"{where}: turns")
    notes.extend(
        f"{uuid}: {len(found)} sessions have this uuid." for uuid, found in positions.items() if len(found) > 1
    )
    return _History(records, sessions, positions, sources)


def _session(record: Raw, session_id: str, notes: list[str]) -> Session:
    turns = []
    for number, raw in enumerate(record.each("dialogue_turns"), 1):
        speaker = raw.choice(_ROLES, "speaker")
        turn = Turn(f"{session_id}:{number}", speaker, raw.text("content"), _ROLES[speaker])
        if not turn.text.strip():
            notes.append(f"{turn.id}: the turn is empty.")
        if raw.has("is_query"):
            raw.of(bool, "is_query")
        else:
            notes.append(f"{turn.id}: the turn does not say whether it is a query; taken as none.")
        turns.append(turn)
    time_text = record.text("current_time")
    return Session(session_id, tuple(turns), parsed_time(time_text.partition(" ")[0], "%Y-%m-%d"), time_text)


def _sources(record: Raw, session: Session) -> Iterator[tuple[str, str]]:
    """(memory text, id of its source turn) for each extracted memory whose source turn can be found."""
    for raw in record.each("extracted_memory"):
        number, copy = raw.of(int, "source_turn"), " ".join(raw.text("source_content_snapshot").split())
        text = raw.of((str, dict), "content")
        if not copy or not isinstance(text, str):
            continue
        # Numbers count from 1 in most sessions and from 0 in others, so the copied text decides.
        near = [session.turns[index] for index in (number - 1, number) if 0 <= index < len(session.turns)]
        texts = {turn.id: " ".join(turn.text.split()) for turn in near}
        equal = [turn_id for turn_id, said in texts.items() if said == copy]
        # Some copies are shorter than the turn, others longer.
        likely = [turn_id for turn_id, said in texts.items() if said and (copy in said or said in copy)]
        if equal or likely:
            yield text, (equal or likely)[0]


def _questions(history: _History, ask: Ask, questions: Questions, notes: list[str]) -> Iterator[tuple[Question, Gold]]:
    before = ""
    for position, (record, session) in enumerate(zip(history.records, history.sessions, strict=True)):
        raw_turns = record.each("dialogue_turns")
        for index, (turn, raw) in enumerate(zip(session.turns, raw_turns, strict=True)):
            reply = raw_turns[index + 1].value if index + 1 < len(raw_turns) else {}
            is_query = raw.value.get("is_query") is True
            names_memories = reply.get("speaker") == "Assistant" and "memory_used" in reply
            is_asked = names_memories if questions == "all_gold_turns" else is_query
            if turn.role == "user" and is_asked:
                question = Question(
                    raw.text("query_id") if is_query else turn.id,
                    turn.text,
                    after=before if ask == "stream" else None,
                    time=session.time,
                    time_text=session.time_text,
                )
                gold, memories = _gold(history, Raw(reply, f"{raw.where} (its reply)"), raw)
                over = position if ask == "stream" else len(history.sessions)
                oddities = _oddities(history, over, gold.detail["evidence_raw"], memories)
                notes.extend(f"{question.id}: {oddity}" for oddity in oddities)
                yield question, gold
        if session.turns:
            before = session.turns[-1].id


def _gold(history: _History, reply: Raw, raw: Raw) -> tuple[Gold, list[tuple[str, str]]]:
    """The gold of a question, and the memories that the reply names, as pairs of session uuid and text. Gold sessions are those that the
    reply names, else those of its memories (official rule)."""
    if reply.text("speaker") != "Assistant":
        raise DataError(f"{reply.where}.speaker: expected Assistant after a query, found {reply.value['speaker']!r}")
    memories = [(used.text("session_uuid"), used.text("content")) for used in reply.each("memory_used")]
    named = reply.texts("memory_session_uuids")
    uuids = tuple(dict.fromkeys(named or [uuid for uuid, _ in memories]))
    reference = reply.text("content")
    is_query = raw.value.get("is_query") is True
    kind = raw.choice(CATEGORIES, "category_name") if is_query else ""
    topic, span = (raw.text(field) if is_query else "" for field in ("topic", "session_type"))
    gold = Gold(
        (reference,),
        evidence=tuple(dict.fromkeys(history.sources[each] for each in memories if each in history.sources)),
        category=CATEGORIES[kind] if is_query else NOT_A_QUERY,
        detail={
            "gold_sessions": tuple(history.sessions[at].id for uuid in uuids for at in history.positions.get(uuid, ())),
            "gold_memories": tuple(text for _, text in memories),
            "reference": reference,
            "topic": topic,
            "category_name": kind,
            "session_type": span,
            "is_query": is_query,
            "evidence_raw": uuids,
        },
    )
    return gold, memories


def _oddities(history: _History, over: int, uuids: Sequence[str], memories: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Sentences on gold that cannot be recalled if only the first `over` sessions are written when the question is asked."""
    for uuid in uuids:
        positions = history.positions.get(uuid, ())
        if not positions:
            yield f"its gold session {uuid} does not exist."
        elif min(positions) >= over:
            yield f"its gold session {history.sessions[min(positions)].id} is not over when it is asked."
    if lost := sum(each not in history.sources for each in memories):
        yield f"{lost} of its {len(memories)} gold memories cannot be traced to a turn."
