"""PersonaMem v1, 32k tier (Jiang et al., arXiv 2504.14225): long chats of a persona with an assistant, and four-way questions.

The questions are records of a CSV file, the histories lines of a JSONL file. A history has questions at several points: a question sees
the first `end_index_in_shared_context` messages only.

How irregularities of the raw files are treated:
- A system message opens each session. It describes the persona and names facts that are asked for; this is by design (issue #13 of the
  repository). It becomes a turn of the speaker "" in the user's role. `persona="drop"` leaves it out, unlike the official script.
- Message texts start with "User: " or "Assistant: ", most of the time. That becomes the turn's speaker. Other beginnings ("Patient:",
  "[Original_Code]", none) stay in the text. Roles do not alternate, so use a unit rule that drops nothing (`utterance`).
- The options are the Python literal of a list. They are parsed, never evaluated, and lose their "(a) "; their order is the release's.
- `recalling_facts_mentioned_by_the_user` and `recall_user_shared_facts` are one type (the authors, issues #19 and #27) and one category.
  The paper's "acknowledge latest preference" does not exist under this name.
- There are no session dates and no evidence labels. `num_irrelevant_tokens` (always 0) and the context lengths (estimates that differ
  at one and the same point) are not used.

Notes for readers of scores:
- Length leak: the right option is the longest of the four in about half of the questions, and nearly always the shortest in
  `suggest_new_ideas`. `length_caption` prints in every table the score of these rules without a memory; the metric `personamem_longest`
  gives the first rule's score by category. The position leaks little: the right letters are nearly uniform.
- In 17 questions the right text has two letters (`Gold.detail["right_letters"]`), and the official rule accepts only one of them.
- 64 questions about reasons repeat the last visible message, "User: " included: any memory that keeps recent turns recalls the question.
- Some questions share text, history and point, some of them also the options in another order. Only `question_id` tells them apart.
- Two histories of a persona are not independent: `Case.cluster` is the persona.

Deviation from the official script: it sends the history as chat messages (for models with an "o" in the name, system messages within
others); here the reader shows recalled turns in one prompt. A question whose call fails is dropped there and counted here.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from data_loaders.raw import LazyCases, Raw, check_choice, check_unique, python_literal, read_bytes, read_lines
from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn

CATEGORIES: Mapping[str, str] = {
    "recall_user_shared_facts": "recall-facts",
    "recalling_facts_mentioned_by_the_user": "recall-facts",
    "track_full_preference_evolution": "preference-evolution",
    "recalling_the_reasons_behind_previous_updates": "update-reasons",
    "suggest_new_ideas": "new-ideas",
    "generalizing_to_new_scenarios": "new-scenarios",
    "provide_preference_aligned_recommendations": "recommendations",
}
"""Category by the raw `question_type`."""
SHORTEST = ("new-ideas",)
"""Categories in which the right option is nearly always the shortest."""

LETTERS = "abcd"
Persona = Literal["keep", "drop"]

COLUMNS = (
    *("persona_id", "question_id", "question_type", "topic", "distance_to_ref_in_blocks"),
    *("user_question_or_message", "correct_answer", "all_options", "shared_context_id", "end_index_in_shared_context"),
)
"""The columns that are read; other releases have more."""
_SPEAKERS: Mapping[str, str] = {"user": "User", "assistant": "Assistant", "system": ""}
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "user"}


def load(
    path: Path,
    *,
    questions: str = "questions_32k.csv",
    contexts: str = "shared_contexts_32k.jsonl",
    persona: Persona = "keep",
) -> LazyCases:
    """One case per history of the folder `path` that has questions, in the order of its file; sizes are characters.

    Turn ids are the positions of messages in the history. `Gold.answers` has the letter ("(c)") and the text of the right option.
    `Gold.detail` has `letter`, `right_letters` (all whose option has the right text), `question_type`, `topic`, `blocks_back` (how
    many sessions back the reference is) and `longest` (the score of choosing the longest option).
    Raises DataError for malformed records, and ValueError for a wrong `persona`.
    """
    check_choice("persona", persona, Persona)
    asked: dict[str, list[Raw]] = {}
    records = read_table(path / questions)
    check_unique((record.value["question_id"] for record in records), f"{questions}: question_id")
    for record in records:
        asked.setdefault(record.value["shared_context_id"], []).append(record)
    histories = {case_id: history for case_id, history in _histories(path / contexts).items() if case_id in asked}
    if unknown := next((records[0] for case_id, records in asked.items() if case_id not in histories), None):
        raise DataError(f"{unknown.where}.shared_context_id: expected an id of {contexts}, found no such history")
    ids = list(histories)
    sizes = [sum(len(str(message)) for message in histories[each].value) for each in ids]
    return LazyCases(ids, sizes, lambda at: _case(ids[at], histories[ids[at]], asked[ids[at]], persona))


def read_table(path: Path, columns: Sequence[str] = COLUMNS) -> list[Raw]:
    """The records of a question file. Raises DataError if it is no CSV file with these columns, or has no record."""
    try:
        text = read_bytes(path).decode("utf-8")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path.name}: expected CSV in UTF-8, found an error: {error}") from error
    header, records = (rows[0], rows[1:]) if rows else ([], [])
    if missing := [name for name in columns if header.count(name) != 1]:
        raise DataError(f"{path.name}: expected a header with {', '.join(missing)}, each once")
    for number, row in enumerate(records, 1):
        if len(row) != len(header):
            raise DataError(f"{path.name}: record {number}: expected {len(header)} fields, found {len(row)}")
    if not records:
        raise DataError(f"{path.name}: expected records, found none")
    return [
        Raw(dict(zip(header, row, strict=True)), f"{path.name}: record {number}")
        for number, row in enumerate(records, 1)
    ]


def longest_share(options: Sequence[str], right: int, *, shortest: bool = False) -> float:
    """The score of choosing the longest (or shortest) option: 1 or 0; options of equal length share the point."""
    lengths = [-len(option) if shortest else len(option) for option in options]
    return (lengths[right] == max(lengths)) / lengths.count(max(lengths))


def length_caption(path: Path, *, questions: str = "questions_32k.csv") -> str:
    """A table caption's text on the scores of rules that need no memory: rules on the options' lengths and letters."""
    records = read_table(path / questions)
    pairs = [(_options(record), _right(record)) for record in records]
    short = [CATEGORIES.get(record.value["question_type"]) in SHORTEST for record in records]
    mixed = [longest_share(*pair, shortest=is_short) for pair, is_short in zip(pairs, short, strict=True)]
    letters = [right for _, right in pairs]
    most = max(letters.count(letter) for letter in set(letters))
    twice = sum(options.count(options[right]) > 1 for options, right in pairs)
    count = len(records)
    return (
        f"{longest_text(pairs)}, the longest or in {', '.join(SHORTEST)} the shortest {100 * sum(mixed) / count:.1f} %, "
        f"always one letter at most {100 * most / count:.1f} %; "
        f"in {twice} of {count} questions the right option stands under two letters, and the official rule takes one of them"
    )


def longest_text(pairs: Sequence[tuple[Sequence[str], int]]) -> str:
    """The score of always choosing the longest option, in words; a pair is the options and the position of the right one."""
    scores = [longest_share(options, right) for options, right in pairs]
    return f"without any memory, always the longest option scores {100 * sum(scores) / len(scores):.1f} %"


def _histories(path: Path) -> dict[str, Raw]:
    """Messages by id of the history. Raises DataError."""
    histories: dict[str, Raw] = {}
    for line in read_lines(path):
        for context_id in line.of(dict):
            if context_id in histories:
                raise DataError(f"{line.where}: expected unique ids, found {context_id!r} twice")
            messages = line.at(context_id).of(list)
            histories[Raw(context_id, line.where).text()] = Raw(messages, f"{path.name}: {context_id}")
    return histories


def sessions_of(messages: Raw, persona: Persona) -> tuple[Session, ...]:
    """A history's messages as sessions, a new one at each system message; turn ids are the messages' positions. Raises DataError."""
    sessions: list[list[Turn]] = []
    for number, message in enumerate(messages.each()):
        role = message.choice(_ROLES, "role")
        if role == "system" or not sessions:
            sessions.append([])
        if role == "system" and persona == "drop":
            continue
        speaker, text = _SPEAKERS[role], message.text("content")
        said = text.removeprefix(f"{speaker}: ") if speaker else text
        sessions[-1].append(Turn(str(number), speaker, said, _ROLES[role]))
    return tuple(Session(f"S{number}", tuple(turns)) for number, turns in enumerate(filter(None, sessions), 1))


def _case(case_id: str, messages: Raw, records: Sequence[Raw], persona: Persona) -> Case:
    kept = sessions_of(messages, persona)
    owners = {record.value["persona_id"] for record in records}
    if len(owners) > 1:
        raise DataError(f"{records[0].where}.persona_id: expected one persona for a history, found {len(owners)}")
    ids = [int(turn.id) for session in kept for turn in session.turns]
    asked = tuple(_question(record, len(messages.value), ids) for record in records)
    notes = tuple(
        f"{question.id}: the right option stands under {' and '.join(gold.detail['right_letters'])}."
        for question, gold in asked
        if len(gold.detail["right_letters"]) > 1
    )
    return Case(case_id, ("User", "Assistant"), kept, asked, cluster=f"persona {owners.pop()}", notes=notes)


def _question(record: Raw, messages: int, turn_ids: Sequence[int]) -> tuple[Question, Gold]:
    kind = record.choice(CATEGORIES, "question_type")
    end = _number(record, "end_index_in_shared_context")
    if end > messages:
        raise DataError(f"{record.where}.end_index_in_shared_context: expected at most {messages}, found {end}")
    options, right = _options(record), _right(record)
    name, text = record.value["question_id"], record.text("user_question_or_message")
    if not text.strip() or not name:
        raise DataError(f"{record.where}: expected a question_id and a user_question_or_message, found none")
    seen = [turn for turn in turn_ids if turn < end]
    question = Question(name, text, after=str(seen[-1]) if seen else "", options=options)
    detail = {
        **options_detail(options, right),
        "question_type": kind,
        "topic": record.value["topic"],
        "blocks_back": _number(record, "distance_to_ref_in_blocks"),
    }
    return question, Gold((detail["letter"], options[right]), (), CATEGORIES[kind], detail=detail)


def options_detail(options: Sequence[str], right: int) -> dict[str, Any]:
    """`Gold.detail` of four options: the right letter, all letters with its text, and the score of choosing the longest."""
    same = tuple(f"({name})" for name, each in zip(LETTERS, options, strict=True) if each == options[right])
    return {"letter": f"({LETTERS[right]})", "right_letters": same, "longest": longest_share(options, right)}


def _number(record: Raw, column: str) -> int:
    text = record.value[column]
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise DataError(f"{record.where}.{column}: expected a number, found {text[:60]!r}")
    return int(text)


def _right(record: Raw) -> int:
    """Position of the right option."""
    match = re.fullmatch(r"\(([a-d])\)", record.value["correct_answer"])
    if not match:
        found = record.value["correct_answer"][:60]
        raise DataError(f"{record.where}.correct_answer: expected (a), (b), (c) or (d), found {found!r}")
    return LETTERS.index(match[1])


def _options(record: Raw) -> tuple[str, ...]:
    """The four options without their letters."""
    where = f"{record.where}.all_options"
    texts = Raw(python_literal(record.value["all_options"], where), where).texts()
    if len(texts) != len(LETTERS):
        raise DataError(f"{where}: expected {len(LETTERS)} options, found {len(texts)}")
    for letter, text in zip(LETTERS, texts, strict=True):
        if not text.startswith(f"({letter}) ") or not text[4:].strip():
            raise DataError(f"{where}: expected an option '({letter}) <text>', found {text[:60]!r}")
    return tuple(text[4:] for text in texts)
