"""HaluMem: years of a user's chats with an assistant, and questions after their sessions; the question answering of the benchmark.

Chen et al. 2025 (arXiv 2511.03506). The licence (CC BY-NC-ND 4.0) forbids passing on changed copies of the files, and the whole files were
not available: this loader was written from
- the release's code and README, MemTensor/HaluMem at 59402b9 (README.md, eval/eval_memzero.py, eval/evaluation.py): fields and protocol;
- MemTensor/OmniMemEval at 7df23bc, data/halumem/README.md: files, addresses, and the counts of both versions;
- earlier measurements on the lines of three of the 20 users.

A file has one user a line: `uuid`, `persona_info` and `sessions` with `start_time`, `dialogue` and, where there are any, `questions`. A
user is a case, and a question is asked after the last turn of its session.

How the raw files are treated:
- The user's name, which `persona_info` states and the official runners give to the memory as the user's id, is the speaker of the user's
  turns. Without a name, the speaker is "User", and a note says so.
- Sessions of the long version that only add noise (`is_generated_qa_session`) are sessions like any other.
- Evidence is text of memory points, not a turn: it becomes `Gold.detail["reference"]`, which the judge sees. There are no evidence ids.
- Questions of the type Memory Boundary cannot be answered from the history. Types and difficulties are taken as they are.

Extraction of memories from each session and their update are not scored here. The official scores need the list of memories that the
`write` of one session stored; our interface shows the whole content of a memory (`nodes()`), not what a session added, and a memory of
verbatim turns stores everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from data_loaders.raw import LazyCases, Raw, line_at, parsed_time, scan_lines
from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn

UNANSWERABLE = "memory-boundary"
"""The category of the questions that the history does not answer."""
_TIME = "%b %d, %Y, %H:%M:%S"

_NAME = re.compile(r"Name:\s*+([^;\n]{0,1000});")
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant"}


def load(path: Path) -> LazyCases:
    """One case per line of the file, indexed as a stream and parsed on access; sizes are utterances.

    Turn ids are `S<session>:<utterance>`, question ids `S<session>.<question>`, each from 1. `Gold.category` is the question type in lower
    case with hyphens, `Gold.groups` the difficulty. `Gold.detail` has `question_type`, `difficulty` and `reference` (the memory points
    behind the answer, one a line).
    Raises DataError for malformed records.
    """
    ids, places, sizes = [], [], []
    for position, record in scan_lines(path):
        ids.append(record.text("uuid"))
        places.append((position, record.where))
        sizes.append(sum(len(session.of(list, "dialogue")) for session in record.each("sessions")))
    return LazyCases(ids, sizes, lambda index: _case(ids[index], line_at(path, *places[index])), f"{path.name}: uuid")


def _case(case_id: str, record: Raw) -> Case:
    found = _NAME.search(record.text("persona_info"))
    name = found[1].strip() if found else ""
    notes = () if name else ("The user's name was not found in persona_info.",)
    name = name or "User"
    sessions: list[Session] = []
    questions: list[tuple[Question, Gold]] = []
    last = ""
    for number, session in enumerate(record.each("sessions"), 1):
        time_text = session.text("start_time")
        time = _time(time_text, f"{session.where}.start_time")
        turns = tuple(_turns(session, f"S{number}", name))
        sessions.append(Session(f"S{number}", turns, time, time_text))
        last = turns[-1].id if turns else last
        questions += _questions(session, f"S{number}", last, time)
    return Case(case_id, (name, "Assistant"), tuple(sessions), tuple(questions), cluster=case_id, notes=notes)


def _turns(session: Raw, session_id: str, name: str) -> Iterator[Turn]:
    for number, record in enumerate(session.each("dialogue"), 1):
        role = record.choice(_ROLES, "role")
        speaker = name if role == "user" else "Assistant"
        yield Turn(f"{session_id}:{number}", speaker, record.text("content"), _ROLES[role])


def _time(text: str, where: str) -> datetime:
    """The time written as `Sep 04, 2025, 09:05:32`. Raises DataError for other texts."""
    if (time := parsed_time(text, _TIME)) is None:
        raise DataError(f"{where}: expected a time such as Sep 04, 2025, 09:05:32, found {text[:60]!r}")
    return time


def _questions(session: Raw, session_id: str, after: str, time: datetime) -> Iterator[tuple[Question, Gold]]:
    for number, record in enumerate(session.each("questions") if session.has("questions") else [], 1):
        text, answer = record.text("question"), record.text("answer")
        if not text.strip() or not answer.strip():
            raise DataError(f"{record.where}: expected a question and an answer, found none")
        kind, difficulty = record.text("question_type"), record.text("difficulty")
        category = "-".join(re.findall(r"\w+", kind.lower()))
        points = "\n".join(point.text("memory_content") for point in record.each("evidence"))
        detail = {"question_type": kind, "difficulty": difficulty, "reference": points}
        gold = Gold((answer,), (), category, category != UNANSWERABLE, groups=(difficulty,), detail=detail)
        yield Question(f"{session_id}.{number}", text, after, time=time), gold
