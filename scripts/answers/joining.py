"""Join published answers with the questions of a data set, by conversation and question; what does not fit is listed, never guessed.

A conversation is found by its id, or by its position where the format numbers conversations in the order of the data set's file. A
question is found by its text. Where a conversation asks the same text more than once, the category and then the gold answer decide;
questions that agree in all three are told apart by their order, and only if the file has as many answers as the data set has questions.
An answer whose gold differs from the data set's is joined and noted: it is scored with ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from data_loaders.schema import Case, Gold, Question
from scripts.answers.records import Answer

Asked = tuple[Question, Gold]


@dataclass(frozen=True, slots=True)
class Pair:
    """An answer with its question."""

    case_id: str
    question_id: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Joined:
    """The outcome of a join."""

    pairs: tuple[Pair, ...]
    mismatches: tuple[str, ...]
    """Answers that have no question, each with its place, its text and the reason."""
    notes: tuple[str, ...]
    """Answers that were joined although their gold differs from ours."""
    in_order: int
    """Answers to questions of the same text, category and gold, told apart by their order."""


def join(answers: Sequence[Answer], cases: Sequence[Case]) -> Joined:
    """Find the question of every answer."""
    by_id = {case.id: case for case in cases}
    pairs: list[Pair] = []
    mismatches: list[str] = []
    same: dict[tuple[str, tuple[str, ...]], list[Answer]] = {}
    for answer in answers:
        case = by_id.get(answer.conversation)
        if case is None and answer.position is not None and answer.position < len(cases):
            case = cases[answer.position]
        candidates, why = ([], "no such conversation") if case is None else _candidates(answer, case)
        if case is None or why:
            mismatches.append(_named(answer, why))
        else:
            same.setdefault((case.id, tuple(question.id for question, _ in candidates)), []).append(answer)
    in_order = 0
    for (case_id, ids), own in same.items():
        if len(own) != len(ids):
            why = f"{len(own)} answers to {len(ids)} question{'s' * (len(ids) > 1)} of this text"
            mismatches += [_named(answer, why) for answer in own]
            continue
        in_order += len(own) if len(own) > 1 else 0
        pairs += [Pair(case_id, question_id, answer) for question_id, answer in zip(ids, own, strict=True)]
    return Joined(tuple(pairs), tuple(mismatches), tuple(_notes(pairs, by_id)), in_order)


def _candidates(answer: Answer, case: Case) -> tuple[list[Asked], str]:
    """The questions of a case that an answer may belong to, or why there are none."""
    if answer.question_id:
        named = [asked for asked in case.questions if asked[0].id == answer.question_id]
        return named, "" if named else "no such question in this conversation"
    found = [asked for asked in case.questions if asked[0].text.strip() == answer.question.strip()]
    if not found:
        return [], "no question of this text in this conversation"
    if answer.category:
        fitting = [asked for asked in found if answer.category in categories_of(asked[1])]
        if not fitting:
            ours = ", ".join(sorted({" or ".join(categories_of(gold)) for _, gold in found}))
            return [], f"category {answer.category}, ours {ours}"
        found = fitting
    if len(found) > 1 and answer.gold is not None:
        found = [asked for asked in found if _same(answer.gold, asked[1])] or found
    return found, ""


def categories_of(gold: Gold) -> tuple[str, ...]:
    """The names that a file may use for a category: ours, and the benchmark's number."""
    number = gold.detail.get("category_id")
    return (gold.category,) if number is None else (str(number), gold.category)


def _same(text: str, gold: Gold) -> bool:
    return text.strip() in (each.strip() for each in gold.answers)


def _notes(pairs: Iterable[Pair], by_id: Mapping[str, Case]) -> list[str]:
    golds = {(case.id, question.id): gold for case in by_id.values() for question, gold in case.questions}
    notes = []
    for pair in pairs:
        gold, theirs = golds[pair.case_id, pair.question_id], pair.answer.gold
        if theirs is not None and gold.answerable and not _same(theirs, gold):
            notes.append(f"{pair.question_id}: the file's gold is {theirs[:80]!r}, ours {gold.answers[0][:80]!r}")
    return notes


def _named(answer: Answer, why: str) -> str:
    text = answer.question or answer.question_id
    return f"{answer.place} {text[:100]!r}: {why}"
