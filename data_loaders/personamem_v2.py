"""PersonaMem v2, text part: long chats whose user reveals preferences in passing, and four-way questions after them.

Jiang et al. 2025 (arXiv 2512.06688). The released files were not available: this loader was written from
- the release's inference.py (bowen-upenn/PersonaMem-v2; the stored version that reads `chat_history_32k_link` and boxed letters): how
  queries, options and histories are read, and the scorer;
- a history of its development, data/chat_history/chat_history_250831_232015_persona0.json at 20ccd45: the layout of a history file;
- MemTensor/OmniMemEval at 7df23bc, data/personamem_v2 (README.md, column_descriptions.md, prepare_personamem.py): files, columns and the
  counts of questions by type;
- two projects that load revision ed956de of the hub's files: 200 histories for 5,000 questions, three wrong answers each, four different
  options, the sha256 of benchmark.csv.
The hub's page states CC BY 4.0, OmniMemEval's README MIT.

The folder has the hub's layout: `benchmark/text/benchmark.csv`, and one JSON file for each history, `{"metadata": .., "chat_history":
[..]}` with messages of a role and a content, at the path that a question's `chat_history_32k_link` or `chat_history_128k_link` names. The
common part of both versions is in `data_loaders.personamem`.

How the raw files are treated:
- A query is JSON or the literal of a Python dict with the message's `content`; if it is neither, its text is used unchanged.
- The right answer and three wrong answers have columns of their own. The official script shuffles them with a seed from Python's `hash`,
  which differs between processes; here they are in the order of a sha256 of question and option, the same on every machine.
- The system message in front describes the whole persona; the official script keeps it. `persona="drop"` leaves it out.
- `pref_type` is the category, unchanged: descriptions of the release name five or seven of them.
- All questions are asked after the whole history. There are no dates and no evidence ids; `related_conversation_snippet` is not used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from data_loaders.personamem import Persona, longest_text, options_detail, read_table, sessions_of
from data_loaders.raw import LazyCases, Raw, check_choice, python_literal, read_raw
from data_loaders.schema import Case, DataError, Gold, Question

BENCHMARK = "benchmark/text/benchmark.csv"
History = Literal["32k", "128k"]

_ANSWERS = ("correct_answer", "incorrect_answers")
_LABELS = ("topic_query", "preference", "updated", "who", "conversation_scenario")


def load(path: Path, *, history: History = "32k", persona: Persona = "keep") -> LazyCases:
    """One case per persona of the folder `path`, in the order of its first question; sizes are bytes of the history file.

    Question ids are the records' numbers, from 1. `Gold.answers` has the right letter as the official rule reads it ("Final Answer: C") and
    the text of the right option; `Gold.detail` has the fields of `personamem.options_detail`, and the labels `topic_query`, `preference`,
    `updated`, `who` and `conversation_scenario`.
    Raises DataError for malformed files and links that lead out of the folder, and ValueError for an unknown choice.
    """
    check_choice("history", history, History)
    check_choice("persona", persona, Persona)
    link = f"chat_history_{history}_link"
    asked: dict[str, list[tuple[int, Raw]]] = {}
    columns = ("persona_id", link, "user_query", *_ANSWERS, "pref_type", *_LABELS)
    for number, record in enumerate(read_table(path / BENCHMARK, columns), 1):
        if not record.value["persona_id"]:
            raise DataError(f"{record.where}.persona_id: expected a persona, found none")
        asked.setdefault(record.value["persona_id"], []).append((number, record))
    files = [_file(path, [record for _, record in records], link) for records in asked.values()]
    ids, sizes = list(asked), [file.stat().st_size for file in files]
    return LazyCases(ids, sizes, lambda index: _case(ids[index], files[index], asked[ids[index]], persona))


def length_caption(path: Path) -> str:
    """A table caption's text: the score of always choosing the longest option."""
    return longest_text(
        [_options(record, number) for number, record in enumerate(read_table(path / BENCHMARK, _ANSWERS), 1)]
    )


def _file(path: Path, records: list[Raw], link: str) -> Path:
    """The history file that the questions of a persona name."""
    place, name = f"{records[0].where}.{link}", records[0].value[link]
    if other := next((record for record in records if record.value[link] != name), None):
        raise DataError(f"{other.where}.{link}: expected one history for a persona, found another than {name[:80]!r}")
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
        raise DataError(f"{place}: expected a path below the folder, found {name[:80]!r}")
    file = path.joinpath(*parts)
    if not file.is_file():
        raise DataError(f"{place}: expected a history file, found none at {name[:80]!r}")
    return file


def _case(case_id: str, file: Path, records: list[tuple[int, Raw]], persona: Persona) -> Case:
    raw = read_raw(file)
    sessions = sessions_of(
        raw if isinstance(raw.value, list) else Raw(raw.of(list, "chat_history"), file.name), persona
    )
    notes: list[str] = []
    asked = tuple(_question(record, number, notes) for number, record in records)
    return Case(case_id, ("User", "Assistant"), sessions, asked, cluster=case_id, notes=tuple(notes))


def _question(record: Raw, number: int, notes: list[str]) -> tuple[Question, Gold]:
    fields = record.value
    text = _query(fields["user_query"], record.where)
    if text is None:
        notes.append(f"{number}: its query is no message, and is taken as text.")
        text = Raw(fields["user_query"], f"{record.where}.user_query").text()
    if not text.strip() or not fields["pref_type"]:
        raise DataError(f"{record.where}: expected a user_query and a pref_type, found none")
    options, right = _options(record, number)
    detail: dict[str, Any] = {**options_detail(options, right), **{name: fields[name] for name in _LABELS}}
    answers = (f"Final Answer: {detail['letter'][1].upper()}", options[right])
    gold = Gold(answers, (), fields["pref_type"], detail=detail)
    return Question(str(number), text, options=options), gold


def _query(text: str, where: str) -> str | None:
    """The content of a query's message; None if the query is not a message."""
    for value in _values(text, where):
        if isinstance(value, dict) and "content" in value:
            return Raw(value, f"{where}.user_query").text("content")
        if isinstance(value, str):
            return Raw(value, f"{where}.user_query").text()
    return None


def _values(text: str, where: str) -> Iterator[Any]:
    """The value of a text that is JSON or else a Python literal; the text itself if it is neither."""
    with suppress(ValueError, RecursionError):
        yield json.loads(text)
    with suppress(DataError):
        yield python_literal(text, where)


def _options(record: Raw, number: int) -> tuple[tuple[str, ...], int]:
    """The four options in their order, and the position of the right one."""
    where = f"{record.where}.incorrect_answers"
    right = record.text("correct_answer")
    listed = next(_values(record.value["incorrect_answers"], where), None)
    wrong = Raw(listed, where).texts()
    if len(wrong) != 3 or not all(each.strip() for each in (right, *wrong)):
        raise DataError(f"{where}: expected three texts, and a correct_answer, found {len(wrong)} or an empty one")
    order = sorted((right, *wrong), key=lambda option: hashlib.sha256(f"{number} {option}".encode()).digest())
    return tuple(order), order.index(right)
