"""Multi-Session Chat (raw release 0.1), and the Deep Memory Retrieval questions asked about it.

Xu et al., "Beyond Goldfish Memory: Long-Term Open-Domain Conversation" (ACL 2022), for the chats: they have no questions.
Packer et al., "MemGPT: Towards LLMs as Operating Systems" (2023), for DMR (the data set MSC-Self-Instruct): five sessions
and one question each. Both have the same records.

Deviations from the raw records:
- Speakers alternate, and Speaker 1 always begins: turns of earlier sessions have no speaker, others a worker's number. A turn that
  names the other speaker gets a note.
- Sessions have no dates. `Session.time` is None, and `Session.time_text` is the raw distance to the last session ("5 days 4 hours ago",
  already summed by the data set) without leading blanks; for the last session it is empty.
- Personas and summaries are annotations, not dialogue, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from data_loaders.raw import LazyCases, Raw, read_records
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn

SPEAKERS = ("Speaker 1", "Speaker 2")

DMR_INSTRUCTION = "Speaker 2 asks this of Speaker 1. Answer as Speaker 1, in the first person."


def load(path: Path, *, session: int = 3, split: Literal["train", "valid", "test"] = "valid") -> LazyCases:
    """One case without questions per conversation of MSC, with its sessions 1 to `session`; sizes are numbers of turns.

    `path` is one of the release's text files, which determines session and split itself, or the folder with the files
    `session_<n>/<split>.txt`. Raises DataError for a missing file and for malformed records.
    """
    file = path / f"session_{session}" / f"{split}.txt" if path.is_dir() else path
    return _cases(file, _case)


def load_dmr(path: Path, *, history: Literal["all", "last_session"] = "all") -> LazyCases:
    """One case with one question per line of MSC-Self-Instruct; sizes are numbers of turns of all sessions.

    `history` selects the sessions that are written to the memory: all five, or only the last one, in which the question is asked.
    Speaker 2 asks the question and Speaker 1 answers it, as `Question.instruction` says. The data set does not mark evidence, so
    `Gold.evidence` is empty. Raises DataError for malformed records.
    """
    if history not in ("all", "last_session"):
        raise ValueError(f"history: expected all or last_session, found {history!r}")
    return _cases(path, partial(_dmr_case, history))


def _cases(file: Path, parse: Callable[[Raw, str], Case]) -> LazyCases:
    """The cases of a file, each parsed on access from its record and its id."""
    records = read_records(file)
    ids = [record.at("metadata").text("initial_data_id") for record in records]
    named = [Raw(record.value, f"{file.name}: {case_id}") for record, case_id in zip(records, ids, strict=True)]
    sizes = [sum(len(each.of(list, "dialog")) for each in [*one.each("previous_dialogs"), one]) for one in named]
    return LazyCases(ids, sizes, lambda index: parse(named[index], ids[index]), f"{file.name}: initial_data_id")


def _dmr_case(history: str, record: Raw, case_id: str) -> Case:
    case = _case(record, case_id)
    pair = record.at("self_instruct")
    question = Question(id=f"{case_id}_q0", text=pair.text("B"), instruction=DMR_INSTRUCTION)
    gold = Gold(answers=(pair.text("A"),))
    sessions = case.sessions
    if history == "last_session":
        if not record.of(list, "dialog"):
            raise DataError(f"{record.where}.dialog: expected the turns of the last session, found none")
        sessions = sessions[-1:]
    return Case(case_id, SPEAKERS, sessions, ((question, gold),), cluster=case_id, notes=case.notes)


def _case(record: Raw, case_id: str) -> Case:
    """The conversation: each earlier session, then the record's own."""
    sessions: list[Session] = []
    notes: list[str] = []
    previous = record.each("previous_dialogs")
    for number, earlier in enumerate(previous, 1):
        time_back = earlier.of((str, type(None)), "time_back")
        time_text = Raw(time_back or "", f"{earlier.where}.time_back").text().strip()
        sessions += _session(earlier, number, time_text, notes)
    sessions += _session(record, len(previous) + 1, "", notes)
    expected = record.at("metadata").of(int, "session_id")
    if len(previous) != expected:
        notes.append(f"the record announces {expected} earlier sessions and has {len(previous)}")
    return Case(case_id, SPEAKERS, tuple(sessions), (), cluster=case_id, notes=tuple(notes))


def _session(record: Raw, number: int, time_text: str, notes: list[str]) -> list[Session]:
    """The session, or nothing and a note when it has no turns."""
    turns = tuple(
        _turn(turn, index, f"S{number}:{index + 1}", notes) for index, turn in enumerate(record.each("dialog"))
    )
    if not turns:
        notes.append(f"session {number} has no turns")
    return [Session(f"S{number}", turns, time_text=time_text)] if turns else []


def _turn(raw: Raw, index: int, turn_id: str, notes: list[str]) -> Turn:
    speaker = SPEAKERS[index % 2]
    named = raw.of((str, type(None)), "id") if raw.has("id") else None
    if named in SPEAKERS and named != speaker:
        notes.append(f"turn {turn_id} names {named} where {speaker} is due")
    return Turn(turn_id, speaker, raw.text("text"), "assistant" if index % 2 else "user")
