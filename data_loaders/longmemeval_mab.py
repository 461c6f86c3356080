"""LongMemEval in MemoryAgentBench's format (LongMemEval S*): a few long histories with sixty questions each.

Hu et al., "Evaluating Memory in LLM Agents via Incremental Multi-Turn Interactions" (MemoryAgentBench), split Accurate_Retrieval. A
row's `context` is the Python literal of a list in which times and sessions alternate.

Deviations from the raw rows:
- The context has no session ids, so sessions are named `s1`, `s2` … in its order, which is kept.
- Evidence is not given as ids. The labelled sessions of the metadata are searched in the context by their exact text. If a session
  occurs twice, the first place counts; a note names each session that does not occur.
- The `*` in the name of the source is written `_star` in case ids, because file systems may not allow it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from data_loaders.longmemeval import CATEGORIES, gold_of, parse_time, parse_turn
from data_loaders.raw import LazyCases, Raw, check_unique, python_literal, read_records
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn

_TIME_LABEL = "Chat Time: "
_MAX_CONTEXT = 16_000_000
"""Maximum number of characters of a context; the released ones have about a tenth."""
_PARQUET_ERRORS = (OSError, ValueError, LookupError, TypeError, NotImplementedError)
"""Errors that pyarrow and pandas raise for damaged files, found by experiment; most of pyarrow's are OSError or ValueError."""

_Words = tuple[tuple[str, str], ...]
"""A session as pairs of role and text, which are the same in the labelled copy and in the context."""


def load(path: Path, *, source: str = "longmemeval_s*") -> LazyCases:
    """One case per row of the given source in a parquet, JSON or JSONL file of MemoryAgentBench rows.

    Rows are read at once, their contexts parsed on access; sizes are characters of context. The id of a case is the common part of its
    `qa_pair_ids`, or the source and the row's number if they have no more in common. `Gold.answers` is the row's list of answers,
    which the official judge sees as a list with brackets. `Gold.detail` has `question_id`, `question_type`, `qa_pair_id` and
    `evidence_user_turns`. Raises DataError for malformed rows, and if no row has this source.
    """
    rows = [row for row in read_rows(path) if row.at("metadata").text("source") == source]
    if not rows:
        raise DataError(f"{path.name}: expected rows with metadata.source {source!r}, found none")
    ids = []
    for number, row in enumerate(rows):
        names = {re.sub(r"_no\d+$", "", pair) for pair in row.at("metadata").texts("qa_pair_ids")}
        name = names.pop() if len(names) == 1 else source
        ids.append((name if name != source else f"{source}_{number}").replace("*", "_star"))
    named = [Raw(row.value, f"{path.name}: {case_id}") for row, case_id in zip(rows, ids, strict=True)]
    sizes = [len(context_of(row)) for row in named]
    return LazyCases(ids, sizes, lambda index: _case(named[index], ids[index]), f"{path.name}: qa_pair_ids")


def read_rows(path: Path) -> list[Raw]:
    """The rows of a parquet, JSON or JSONL file of MemoryAgentBench. Raises DataError."""
    if path.suffix != ".parquet":
        return read_records(path)
    import pandas  # slow to import, and only this format needs it

    try:
        # Arrow types become plain lists and dicts; NumPy types would become arrays, which the checks for lists reject.
        rows = pandas.read_parquet(path, dtype_backend="pyarrow").to_dict("records")
    except _PARQUET_ERRORS as error:
        raise DataError(f"{path}: expected a readable parquet file, found {type(error).__name__}: {error}") from error
    return [Raw(row, f"{path.name}: record {number}") for number, row in enumerate(rows)]


def context_of(row: Raw) -> str:
    """The context of a row. Raises DataError if it is longer than any that is published."""
    context = row.of(str, "context")
    if len(context) > _MAX_CONTEXT:
        raise DataError(f"{row.where}.context: expected at most {_MAX_CONTEXT:,} characters, found {len(context):,}")
    return context


def _case(row: Raw, case_id: str) -> Case:
    place = f"{row.where}.context"
    sessions, notes = _sessions(Raw(python_literal(context_of(row), place), place))
    held: dict[_Words, Session] = {}
    for session in sessions:
        held.setdefault(_words(session.turns), session)
    questions = tuple(_questions(row, held, notes))
    return Case(case_id, ("user", "assistant"), sessions, questions, cluster=case_id, notes=tuple(notes))


def _sessions(context: Raw) -> tuple[tuple[Session, ...], list[str]]:
    """The sessions of a context that have turns, in order, and a note on each session without turns."""
    parts = context.each()
    if len(parts) % 2:
        raise DataError(f"{context.where}: expected a session for each time, found {len(parts)} list members")
    sessions: list[Session] = []
    notes: list[str] = []
    for number, (time_part, content) in enumerate(zip(parts[::2], parts[1::2], strict=True), 1):
        label = time_part.of(str)
        if not label.startswith(_TIME_LABEL):
            raise DataError(f"{time_part.where}: expected {_TIME_LABEL!r} and a time, found {label[:60]!r}")
        time_text = label.removeprefix(_TIME_LABEL)
        time = parse_time(time_text, time_part.where)
        turns = tuple(parse_turn(turn, f"s{number}_{count}")[0] for count, turn in enumerate(content.each(), 1))
        if turns:
            sessions.append(Session(f"s{number}", turns, time, time_text))
        else:
            notes.append(f"session s{number} ({time_text}) has no turns")
    return tuple(sessions), notes


def _questions(row: Raw, held: Mapping[_Words, Session], notes: list[str]) -> Iterator[tuple[Question, Gold]]:
    """The questions with their gold; `notes` gets a sentence on each labelled session that the context lacks."""
    metadata, texts = row.at("metadata"), row.texts("questions")
    ids = metadata.texts("question_ids")
    check_unique(ids, f"{metadata.where}.question_ids")
    types, pairs = metadata.each("question_types"), metadata.texts("qa_pair_ids")
    dated = bool(metadata.of(dict).get("question_dates"))
    dates = metadata.texts("question_dates") if dated else ("",) * len(texts)
    labels, answers = metadata.each("haystack_sessions"), row.each("answers")
    columns = {"question_ids": ids, "question_types": types, "qa_pair_ids": pairs, "question_dates": dates}
    for name, values in {**columns, "haystack_sessions": labels}.items():
        expect_length(values, len(texts), f"{metadata.where}.{name}")
    expect_length(answers, len(texts), f"{row.where}.answers")
    for index, (question_id, text) in enumerate(zip(ids, texts, strict=True)):
        evidence, missing = _evidence(labels[index], held)
        notes += [f"question {question_id}: evidence session {each} is not in the context" for each in missing]
        time = parse_time(dates[index], f"{metadata.where}.question_dates[{index}]") if dated else None
        accepted = [str(answer.of((str, int))) for answer in answers[index].each()]
        golds = tuple(Raw(answer, answers[index].where).text() for answer in accepted)
        gold = gold_of(question_id, types[index].choice(CATEGORIES), golds, evidence, qa_pair_id=pairs[index])
        yield Question(id=question_id, text=text, time=time, time_text=dates[index]), gold


def _evidence(labelled: Raw, held: Mapping[_Words, Session]) -> tuple[tuple[Turn, ...], tuple[int, ...]]:
    """The history's turns that a question's labelled sessions mark as evidence, and the numbers (from 1) of sessions not found."""
    evidence: dict[str, Turn] = {}
    missing: list[int] = []
    for number, session in enumerate(labelled.each(), 1):
        turns = [parse_turn(turn, "") for turn in session.each()]
        in_context = held.get(_words([turn for turn, _ in turns]))
        if in_context is None:
            missing.append(number)
            continue
        evidence |= {turn.id: turn for turn, (_, label) in zip(in_context.turns, turns, strict=True) if label}
    return tuple(evidence.values()), tuple(missing)


def _words(turns: Sequence[Turn]) -> _Words:
    return tuple((turn.role, turn.text) for turn in turns)


def expect_length(values: Sequence[object], count: int, where: str) -> None:
    """Raise DataError unless there is a value for each question."""
    if len(values) != count:
        raise DataError(f"{where}: expected one for each of the {count} questions, found {len(values)}")
