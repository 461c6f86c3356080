"""Join published answers of any form with the questions of a data set: by conversation, text, category and gold; never by a guess.

The conversation is used if the file names it, by its id or by its number. It is not used if conversations have numbers as names (some
files count from 0) and no two questions have the same text. Category and gold only distinguish questions with the same text, because
names of categories differ between files: the category is always the data set's. Questions that agree in text and gold are
interchangeable, since every score of an answer is the same for each of them; they are assigned in the order of the data set. Two answers
to one question are duplicates: if they are equal the first counts, if they differ none counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from eval.report.counted import counted
from scripts.answers.records import Answer


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of a data set, with the data that scores need."""

    case_id: str
    question_id: str
    text: str
    gold: str
    category: str
    """Category in the data set: `1` to `5` for LoCoMo, the question type for LongMemEval, the ability for BEAM."""
    answerable: bool = True
    also: tuple[str, ...] = ()
    """Further gold answers."""

    def is_gold(self, text: str | None) -> bool:
        """Whether a file's gold answer is one of the data set's."""
        return (text or "").strip() in (each.strip() for each in (self.gold, *self.also))


@dataclass(frozen=True)
class Questions:
    """The questions of a data set."""

    title: str
    asked: tuple[Asked, ...]
    cases: tuple[str, ...]
    """Names of the conversations in the order of the data set's file."""

    @cached_property
    def by_text(self) -> Mapping[str, tuple[Asked, ...]]:
        texts: dict[str, list[Asked]] = defaultdict(list)
        for each in self.asked:
            texts[each.text.strip()].append(each)
        return {text: tuple(same) for text, same in texts.items()}

    @cached_property
    def by_id(self) -> Mapping[str, tuple[Asked, ...]]:
        ids: dict[str, list[Asked]] = defaultdict(list)
        for each in self.asked:
            ids[each.question_id].append(each)
        return {name: tuple(same) for name, same in ids.items()}

    @cached_property
    def only_numbered(self) -> bool:
        """Whether a question's text identifies it better than the conversation that a file names."""
        return len(self.by_text) == len(self.asked) and all(name.isdecimal() for name in self.cases)


@dataclass(slots=True)
class Matched:
    """Answers with their questions, and answers without a question."""

    pairs: list[tuple[Asked, Answer]] = field(default_factory=list)
    unjoined: list[str] = field(default_factory=list)
    """Places of unjoined answers, with reasons."""
    without_question: list[Answer] = field(default_factory=list)
    """The answers that `unjoined` names, without the duplicates."""
    duplicates: list[str] = field(default_factory=list)
    interchangeable: int = 0
    other_gold: list[str] = field(default_factory=list)
    """Joined answers whose gold differs from the data set's, with both golds."""
    other_category: list[str] = field(default_factory=list)
    """Joined answers whose category number differs from the data set's, with both numbers."""
    golds: int = 0
    """Number of joined answers that have a gold."""

    @property
    def only_golds(self) -> list[str]:
        """A warning if no gold was read and every answer is its question's gold: the field that was read may hold the golds; else empty."""
        same = [asked.is_gold(answer.answer) for asked, answer in self.pairs if asked.answerable]
        if self.golds or len(same) < 2 or not all(same):
            return []
        return [
            f"each of {len(same)} answers is the data set's gold, word for word; the system's may be in another field"
        ]


def own_questions(answers: Sequence[Answer]) -> list[tuple[Asked, Answer]]:
    """Each answer with the question, gold and category of its own file, for data sets whose questions are not available."""
    return [
        (
            Asked(
                answer.conversation or "one",
                answer.question_id or f"{answer.conversation}_{number}",
                answer.question,
                answer.gold or "",
                answer.category,
            ),
            answer,
        )
        for number, answer in enumerate(answers)
    ]


def match(answers: Sequence[Answer], questions: Questions) -> Matched:
    """Find the question of every answer."""
    matched = Matched()
    groups: dict[tuple[Asked, ...], list[Answer]] = defaultdict(list)
    for answer in answers:
        candidates = _candidates(answer, questions)
        if isinstance(candidates, str):
            matched.unjoined.append(f"{answer.place} {(answer.question or answer.question_id)[:100]!r}: {candidates}")
            matched.without_question.append(answer)
        else:
            groups[candidates].append(answer)
    for candidates, own in groups.items():
        kept = _without_duplicates(candidates, own, matched)
        matched.interchangeable += len(kept) if len(candidates) > 1 else 0
        matched.pairs += zip(candidates, kept, strict=False)
    for asked, answer in matched.pairs:
        if answer.gold is not None and asked.answerable:
            matched.golds += 1
            if not asked.is_gold(answer.gold):
                both = f"the file's gold is {answer.gold[:80]!r}, ours {asked.gold[:80]!r}"
                matched.other_gold.append(f"{asked.question_id}: {both}")
        if answer.category.isdecimal() and asked.category.isdecimal() and answer.category != asked.category:
            both = f"the file's category is {answer.category[:20]}, ours {asked.category}"
            matched.other_category.append(f"{asked.question_id}: {both}")
    return matched


def _without_duplicates(candidates: Sequence[Asked], own: list[Answer], matched: Matched) -> list[Answer]:
    if len(own) <= len(candidates):
        return own
    equal = len({answer.answer for answer in own}) == 1
    kept = own[: len(candidates)] if equal else []
    why = f"{len(own)} {'equal' if equal else 'different'} answers to {len(candidates)} question"
    matched.duplicates += [f"{answer.place} {answer.question[:100]!r}: {why}" for answer in own[len(kept) :]]
    return kept


def _candidates(answer: Answer, questions: Questions) -> tuple[Asked, ...] | str:
    """The interchangeable questions of an answer, or the reason why there are none."""
    named = questions.by_id.get(answer.question_id, ())
    same = named or questions.by_text.get(answer.question.strip(), ())
    by = "text" if answer.question else "id"
    if not same:
        return f"no question of this {by}"
    if case := _case(answer, questions):
        same = tuple(each for each in same if each.case_id == case)
        if not same:
            return f"no question of this {by} in {case}"
    # This is the only name that all files give to the same category.
    adversarial = "adversarial" in answer.category.casefold()
    same = tuple(each for each in same if each.category == answer.category or adversarial > each.answerable) or same
    same = tuple(each for each in same if each.answerable and each.is_gold(answer.gold)) or same
    if len({(each.gold, each.category) for each in same}) > 1:
        return f"{counted(len(same), 'question')} of this text, which neither conversation nor gold tells apart"
    return same


def _case(answer: Answer, questions: Questions) -> str:
    """The conversation that an answer names; empty if it names no conversation of the data set."""
    if questions.only_numbered:
        return ""
    if answer.conversation in questions.cases:
        return answer.conversation
    known = answer.position is not None and 0 <= answer.position < len(questions.cases)
    return questions.cases[answer.position] if known and answer.position is not None else ""
