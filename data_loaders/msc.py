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

from data_loaders.raw import LazyCases, check_text, check_unique, expect, get, get_text, read_jsonl
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


def _cases(file: Path, parse: Callable[[object, str, str], Case]) -> LazyCases:
    """The cases of a file, each parsed on access from its record, its id and its place."""
    records = read_jsonl(file)
    ids = []
    for index, record in enumerate(records):
        where = f"{file.name}: record {index}"
        ids.append(get_text(get(record, "metadata", dict, where), "initial_data_id", f"{where}.metadata"))
    check_unique(ids, f"{file.name}: initial_data_id")
    places = [f"{file.name}: {case_id}" for case_id in ids]
    sizes = [_turn_count(record, place) for record, place in zip(records, places, strict=True)]
    return LazyCases(ids, sizes, lambda index: parse(records[index], ids[index], places[index]))


def _turn_count(record: object, where: str) -> int:
    previous = get(record, "previous_dialogs", list, where)
    dialogs = [(each, f"{where}.previous_dialogs[{index}]") for index, each in enumerate(previous)]
    return sum(len(get(each, "dialog", list, place)) for each, place in [*dialogs, (record, where)])


def _dmr_case(history: str, record: object, case_id: str, where: str) -> Case:
    case = _case(record, case_id, where)
    place = f"{where}.self_instruct"
    pair = get(record, "self_instruct", dict, where)
    question = Question(id=f"{case_id}_q0", text=get_text(pair, "B", place), instruction=DMR_INSTRUCTION)
    gold = Gold(answers=(get_text(pair, "A", place),))
    sessions = case.sessions
    if history == "last_session":
        if not get(record, "dialog", list, where):
            raise DataError(f"{where}.dialog: expected the turns of the last session, found none")
        sessions = sessions[-1:]
    return Case(case_id, SPEAKERS, sessions, ((question, gold),), cluster=case_id, notes=case.notes)


def _case(record: object, case_id: str, where: str) -> Case:
    """The conversation: each earlier session, then the record's own."""
    sessions: list[Session] = []
    notes: list[str] = []
    previous = get(record, "previous_dialogs", list, where)
    for number, earlier in enumerate(previous, 1):
        place = f"{where}.previous_dialogs[{number - 1}]"
        time_back = get(earlier, "time_back", (str, type(None)), place)
        time_text = check_text(time_back or "", f"{place}.time_back").strip()
        sessions += _session(earlier, number, time_text, notes, place)
    sessions += _session(record, len(previous) + 1, "", notes, where)
    expected = get(get(record, "metadata", dict, where), "session_id", int, f"{where}.metadata")
    if len(previous) != expected:
        notes.append(f"the record announces {expected} earlier sessions and has {len(previous)}")
    return Case(case_id, SPEAKERS, tuple(sessions), (), cluster=case_id, notes=tuple(notes))


def _session(record: object, number: int, time_text: str, notes: list[str], where: str) -> list[Session]:
    """The session, or nothing and a note when it has no turns."""
    turns = get(record, "dialog", list, where)
    if not turns:
        notes.append(f"session {number} has no turns")
        return []
    return [
        Session(
            id=f"S{number}",
            turns=tuple(
                _turn(turn, index, f"S{number}:{index + 1}", notes, f"{where}.dialog[{index}]")
                for index, turn in enumerate(turns)
            ),
            time_text=time_text,
        )
    ]


def _turn(raw: object, index: int, turn_id: str, notes: list[str], where: str) -> Turn:
    speaker = SPEAKERS[index % 2]
    named = expect(raw, dict, where).get("id")
    if expect(named, (str, type(None)), f"{where}.id") in SPEAKERS and named != speaker:
        notes.append(f"turn {turn_id} names {named} where {speaker} is due")
    return Turn(turn_id, speaker, get_text(raw, "text", where), "assistant" if index % 2 else "user")
