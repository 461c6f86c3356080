"""Transformations of a data set: a subset, gold evidence only, permuted turns or sessions, all histories as one. All but `join` are lazy.

Every random choice depends on the seed and the ids alone, not on the order of cases or on other choices: a smaller subset is part of a
larger one, and a case is permuted in the same way whichever other cases are loaded.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from data_loaders.raw import LazyCases, as_lazy
from data_loaders.schema import Case, Gold, Question, Session


def beginning_of(case: Case, turns: int) -> Case:
    """The first turns of a case; a question's position, as a share of the history, stays the same.

    The gold still names evidence that is cut off, because this function is for cost estimates, which score nothing.
    """
    sessions, left = [], turns
    for session in case.sessions:
        if left > 0:
            sessions.append(replace(session, turns=session.turns[:left]))
            left -= len(session.turns)
    place = {turn.id: number for number, turn in enumerate(case.turns)}
    kept = [turn.id for session in sessions for turn in session.turns]
    share = len(kept) / len(place)

    def moved(after: str | None) -> str | None:
        return kept[min(int((place[after] + 1) * share), len(kept) - 1)] if after else after

    return replace(
        case,
        sessions=tuple(sessions),
        questions=tuple((replace(question, after=moved(question.after)), gold) for question, gold in case.questions),
    )


def subset(cases: Sequence[Case], n_cases: int, *, seed: int = 0) -> LazyCases:
    """At most `n_cases` cases, selected by the seed, in their original order. Raises ValueError for a number below 1."""
    if n_cases < 1:
        raise ValueError(f"n_cases: expected at least 1, found {n_cases}")
    lazy = as_lazy(cases)
    return lazy.select(_chosen(lazy.ids, n_cases, f"cases:{seed}"))


def asking(cases: Sequence[Case], counts: Mapping[str, int], *, seed: int = 0) -> LazyCases:
    """The cases that `counts` names, each with that many of its questions, selected by the seed; both in their original order."""
    lazy = as_lazy(cases)

    def asked(case: Case) -> Case:
        names = [question.id for question, _ in case.questions]
        kept = _chosen(names, counts[case.id], f"questions:{seed}:{case.id}")
        return replace(case, questions=tuple(case.questions[at] for at in kept))

    return lazy.select([index for index, name in enumerate(lazy.ids) if name in counts]).mapped(asked)


def shares(cases: Sequence[Case], size: int, *, n_cases: int | None = None, seed: int = 0) -> dict[str, int]:
    """The number of questions of each case in a subset of `size` questions, by case id, for `asking`.

    `n_cases` cases share the questions as evenly as their own numbers allow. Without it two cases do, and further cases are added
    one by one where these have too few. The sum is below `size` only where the cases have no more questions. Parses the cases that
    it counts. Raises ValueError for a number below 1.
    """
    lazy = as_lazy(cases)
    ranked = by_hash(lazy.ids, f"cases:{seed}")
    if n_cases is not None:
        return _evenly({lazy.ids[at]: len(lazy[at].questions) for at in ranked[:n_cases]}, size)
    counts = {lazy.ids[at]: len(lazy[at].questions) for at in ranked[:2]}
    given = _evenly(counts, size)
    for at in ranked[2:]:
        left = size - sum(given.values())
        if not left:
            break
        given[lazy.ids[at]] = min(left, len(lazy[at].questions))
    return {name: number for name, number in given.items() if number}


def _evenly(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """`size` items dealt one by one, in turn, to names that take at most their count."""
    given = dict.fromkeys(counts, 0)
    left = min(size, sum(counts.values()))
    while left:
        open_names = [name for name in counts if given[name] < counts[name]]
        share = max(1, min(left // len(open_names), min(counts[name] - given[name] for name in open_names)))
        for name in open_names[: left if share == 1 else None]:
            given[name] += share
            left -= share
    return {name: number for name, number in given.items() if number}


def oracle(cases: Sequence[Case]) -> LazyCases:
    """One case per question, whose history consists of the question's evidence turns in their sessions.

    The case id is `<case>--<question>` and `Case.cluster` stays the original's. Questions without evidence get an empty
    history and a note. Each original case is parsed once here, to get its questions, and again when its new cases are accessed.
    """
    lazy = as_lazy(cases)
    # The cases of one original are usually accessed one after the other.
    parsed = lru_cache(maxsize=1)(lazy.__getitem__)
    places = [
        (index, number, f"{lazy.ids[index]}--{question.id}", len(gold.evidence))
        for index in range(len(lazy))
        for number, (question, gold) in enumerate(lazy[index].questions)
    ]

    def parse(position: int) -> Case:
        index, number, case_id, _ = places[position]
        case = parsed(index)
        return _evidence_only(case, *case.questions[number], case_id)

    return LazyCases([place[2] for place in places], [place[3] for place in places], parse)


def join(cases: Iterable[Case], name: str) -> Case:
    """One case whose history is that of all cases in their order; every question is asked at its end.

    Ids of turns, sessions and questions get the id of their case in front (`conv-1/D1:3`), also in `Gold.evidence`. `Gold.detail` stays as
    it is, so metrics that look for ids in it do not fit. The cases of a data set do not know of each other: a question may fit several.
    """
    joined = [_prefixed(case) for case in cases]
    return Case(
        name,
        tuple(dict.fromkeys(speaker for case in joined for speaker in case.speakers)),
        tuple(session for case in joined for session in case.sessions),
        tuple(asked for case in joined for asked in case.questions),
        notes=tuple(note for case in joined for note in case.notes),
    )


def _prefixed(case: Case) -> Case:
    def session(old: Session) -> Session:
        turns = tuple(replace(turn, id=f"{case.id}/{turn.id}") for turn in old.turns)
        return replace(old, id=f"{case.id}/{old.id}", turns=turns)

    questions = tuple(
        (
            replace(question, id=f"{case.id}/{question.id}", after=None),
            replace(gold, evidence=tuple(f"{case.id}/{turn}" for turn in gold.evidence)),
        )
        for question, gold in case.questions
    )
    return replace(case, sessions=tuple(map(session, case.sessions)), questions=questions)


def permute(
    case: Case, *, share: float = 0.30, seed: int = 0, across_questions: bool = True, exchanges: bool = False
) -> Case:
    """The case with a share of its turn pairs swapped (the temporal-order experiment, SegTreeMem §5.4, Table 3).

    Turns are paired at random, and `share` of the pairs, rounded, are swapped: a turn keeps its id, speaker and text, while session
    and time belong to the position. A question asked in the middle of the history keeps its position too.

    The paper swaps "randomly selected turn pairs" before the memory is built and does not say which pairs are eligible. Here both
    turns have the same role, so that the sequence of roles and the number of exchanges stay the same. With `across_questions` a turn
    may move past a point at which a question is asked, which the paper's wording allows; a question may then come before its
    evidence. Without it every question keeps the set of turns before it, and if questions are dense, turns move only a little
    (RealMem: a median of 6 places of 1,403 for turns that move; 431 with `across_questions`).

    With `exchanges`, the other reading of "turn pairs", whole exchanges are swapped: a user's turn with the assistant's directly after it,
    in one session. Every unit of the rule `ab_pair` then keeps its text, so that the order alone changes; single turns leave half of the
    units of LoCoMo with a question and a reply that never met. Turns outside an exchange stay.

    Raises ValueError for a share outside 0..1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share: expected a number from 0 to 1, found {share}")
    rng = random.Random(f"permute:{seed}:{case.id}")
    slots = list(case.turns)
    pairs = [pair for group in _swappable(case, across_questions, exchanges) for pair in _paired(group, rng)]
    for one, other in rng.sample(pairs, round(share * len(pairs))):
        for first, second in zip(one, other, strict=True):
            slots[first], slots[second] = slots[second], slots[first]
    moved = {old.id: new.id for old, new in zip(case.turns, slots, strict=True)}
    turns = iter(slots)
    return replace(
        case,
        sessions=tuple(replace(each, turns=tuple(next(turns) for _ in each.turns)) for each in case.sessions),
        questions=tuple((_asked_after(question, moved), gold) for question, gold in case.questions),
    )


def shuffle_sessions(case: Case, *, seed: int = 0) -> Case:
    """The case with its sessions in a random order; each keeps its date, so that every answer stays right.

    Only the order in which a memory gets the sessions changes. `permute` also moves turns to other sessions and dates. A
    question in the middle of the history keeps the sessions before it: sessions change places between two such points only.
    """
    rng = random.Random(f"sessions:{seed}:{case.id}")
    shuffled: list[Session] = []
    moved: dict[str, str] = {}
    for span in _between_questions(case):
        last = [turn.id for session in span for turn in session.turns][-1:]
        rng.shuffle(span)
        shuffled += span
        # A question that was asked after the span is still asked after it, whichever session is now the last.
        moved |= dict(zip(last, [turn.id for session in span for turn in session.turns][-1:], strict=True))
    questions = tuple((_asked_after(question, moved), gold) for question, gold in case.questions)
    return replace(case, sessions=tuple(shuffled), questions=questions)


def _between_questions(case: Case) -> list[list[Session]]:
    """The sessions between two points at which questions are asked; a session with a question in its middle is a span of its own."""
    points = {question.after for question, _ in case.questions}
    spans: list[list[Session]] = [[]]
    for session in case.sessions:
        places = [place for place, turn in enumerate(session.turns, 1) if turn.id in points]
        if any(place < len(session.turns) for place in places):
            spans += [[session], []]
        else:
            spans[-1].append(session)
            spans += [[]] if places else []
    return spans


def _chosen(names: Sequence[str], n: int, key: str) -> list[int]:
    """Positions of at most n names in ascending order; the names are those with the smallest hashes of key and name."""
    return sorted(by_hash(names, key)[:n])


def by_hash(names: Sequence[str], key: str) -> list[int]:
    """Positions of the names in the order of the hashes of key and name: a random order in which a name's own hash decides its place."""
    return sorted(range(len(names)), key=lambda index: hashlib.sha256(f"{key}:{names[index]}".encode()).digest())


def _evidence_only(case: Case, question: Question, gold: Gold, case_id: str) -> Case:
    kept = frozenset(gold.evidence)
    sessions = (
        replace(session, turns=tuple(turn for turn in session.turns if turn.id in kept)) for session in case.sessions
    )
    note = () if kept else (f"{question.id} has no evidence, so its history is empty.",)
    return replace(
        case,
        id=case_id,
        sessions=tuple(session for session in sessions if session.turns),
        questions=((replace(question, after=None), gold),),
        cluster=case.cluster or case.id,
        notes=note,
    )


def _swappable(case: Case, across_questions: bool, exchanges: bool) -> list[list[tuple[int, ...]]]:
    """Groups of positions that may be swapped: of the same role and, unless `across_questions`, between the same questions.

    With `exchanges` an entry holds the two positions of an exchange; it lies where its last turn does.
    """
    points = set() if across_questions else {question.after for question, _ in case.questions}
    groups: dict[tuple[int, str], list[tuple[int, ...]]] = {}
    span = slot = 0
    for session in case.sessions:
        before = ""  # the role of the turn before, in the session
        for turn in session.turns:
            if not exchanges:
                groups.setdefault((span, turn.role), []).append((slot,))
            elif (before, turn.role) == ("user", "assistant"):
                groups.setdefault((span, ""), []).append((slot - 1, slot))
            before, slot = turn.role, slot + 1
            span += turn.id in points
    return list(groups.values())


def _paired(slots: Iterable[tuple[int, ...]], rng: random.Random) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    shuffled = list(slots)
    rng.shuffle(shuffled)
    return list(zip(shuffled[::2], shuffled[1::2], strict=False))


def _asked_after(question: Question, moved: dict[str, str]) -> Question:
    # None (after the whole history) and "" (before the first turn) are not turn ids and stay.
    return replace(question, after=moved.get(question.after, question.after)) if question.after else question
