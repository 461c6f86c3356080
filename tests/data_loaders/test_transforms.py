from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from data_loaders import locomo, source
from data_loaders.raw import LazyCases, as_lazy
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn
from data_loaders.transforms import (
    asking,
    join,
    oracle,
    permute,
    shares,
    shuffle_sessions,
    subset,
)
from data_loaders.units import make_units


@pytest.fixture(scope="module")
def cases() -> Sequence[Case]:
    return locomo.load(source.sample("locomo.json").path)


def numbered(n: int, taken: list[int] | None = None) -> LazyCases:
    """Cases c0, c1, … of one question each, which note in `taken` when they are parsed."""

    def parse(index: int) -> Case:
        if taken is not None:
            taken.append(index)
        return Case(f"c{index}", (), (), ((Question(f"q{index}", "?"), Gold(("x",))),))

    return LazyCases([f"c{i}" for i in range(n)], list(range(n)), parse)


def question_ids(case: Case) -> list[str]:
    return [question.id for question, _ in case.questions]


# --- lazy sequences ---


def test_a_case_is_parsed_when_taken_and_not_before() -> None:
    taken: list[int] = []
    lazy = numbered(5, taken)
    part = lazy[1:4]
    assert (len(part), part.ids, part.sizes, taken) == (3, ("c1", "c2", "c3"), (1, 2, 3), [])
    assert (part[-1].id, taken) == ("c3", [3])
    assert [case.id for case in lazy] == ["c0", "c1", "c2", "c3", "c4"]
    with pytest.raises(IndexError):
        lazy[5]


def test_an_index_error_while_parsing_is_not_taken_for_the_end_of_the_data() -> None:
    def parse(index: int) -> Case:
        raise IndexError("a bug")

    with pytest.raises(IndexError, match="a bug"):
        list(LazyCases(["a"], [1], parse))


def test_a_case_id_that_occurs_twice_is_refused() -> None:
    with pytest.raises(DataError, match="case ids: expected unique ids, found 'a' twice"):
        LazyCases(["a", "a"], [1, 1], lambda index: Case("a", (), (), ()))


# --- subset ---


def test_a_subset_keeps_order_and_a_smaller_one_is_part_of_a_larger() -> None:
    lazy = numbered(40)
    few, many = (subset(lazy, n, seed=3).ids for n in (5, 12))
    assert (len(few), len(many)) == (5, 12)
    assert set(few) < set(many)
    assert list(many) == sorted(many, key=lambda name: int(name[1:]))
    assert subset(lazy, 5, seed=4).ids != few
    assert subset(lazy, 99).ids == lazy.ids


def test_questions_chosen_for_a_case_do_not_depend_on_the_other_cases(cases: Sequence[Case]) -> None:
    counts = {case.id: 4 for case in cases[:2]}
    together = asking(cases, counts, seed=1)
    alone = asking(cases[1:2], counts, seed=1)
    assert question_ids(together[1]) == question_ids(alone[0])
    assert len(question_ids(together[1])) == 4
    positions = [question_ids(cases[1]).index(each) for each in question_ids(together[1])]
    assert positions == sorted(positions) != [0, 1, 2, 3]


def test_a_subset_parses_only_what_is_taken() -> None:
    taken: list[int] = []
    chosen = subset(numbered(30, taken), 3)
    assert taken == []
    assert chosen[2].id == chosen.ids[2]
    assert [f"c{index}" for index in taken] == [chosen.ids[2]]
    with pytest.raises(ValueError, match="n_cases: expected at least 1"):
        subset(numbered(3), 0)


def with_questions(*counts: int) -> LazyCases:
    """Cases `c0`, `c1`, … with this many questions each."""

    def parse(index: int) -> Case:
        questions = ((Question(f"q{number}", "?"), Gold(("x",))) for number in range(counts[index]))
        return Case(f"c{index}", (), (), tuple(questions))

    return LazyCases([f"c{index}" for index in range(len(counts))], counts, parse)


@pytest.mark.parametrize(("size", "n_cases", "given"), [(5, None, 5), (9, None, 9), (21, 10, 20), (99, None, 20)])
def test_a_subset_has_the_number_of_questions_asked_for(size: int, n_cases: int | None, given: int) -> None:
    cases = with_questions(1, 3, 1, 1, 9, 1, 1, 1, 1, 1)
    chosen = shares(cases, size, n_cases=n_cases, seed=1)
    assert sum(chosen.values()) == given
    assert sum(len(case.questions) for case in asking(cases, chosen, seed=1)) == given


def test_a_smaller_number_of_questions_is_part_of_a_larger_one() -> None:
    cases = with_questions(4, 30, 12, 1, 7)

    def asked(size: int) -> set[tuple[str, str]]:
        chosen = asking(cases, shares(cases, size, seed=2), seed=2)
        return {(case.id, question.id) for case in chosen for question, _ in case.questions}

    grown = [asked(size) for size in range(1, 56)]
    assert [len(each) for each in grown] == [*range(1, 55), 54]
    assert all(few <= more for few, more in pairwise(grown))


def test_histories_share_the_questions_evenly() -> None:
    assert sorted(shares(with_questions(100, 100, 100), 7, n_cases=3).values()) == [2, 2, 3]
    assert sorted(shares(with_questions(100, 1, 100), 9, n_cases=3).values()) == [1, 4, 4]


# --- oracle ---


def test_oracle_keeps_exactly_the_evidence_of_one_question(cases: Sequence[Case]) -> None:
    made = oracle(cases)
    assert len(made) == sum(len(case.questions) for case in cases)
    case = made[made.ids.index("conv-902--conv-902_q9")]
    assert question_ids(case) == ["conv-902_q9"]
    assert [turn.id for turn in case.turns] == ["D3:17", "D6:17"]
    assert [session.time_text for session in case.sessions] == [
        "9:40 pm on 6 June, 2023",
        "6:35 pm on 20 December, 2023",
    ]
    assert case.cluster == "conv-902"
    assert made.sizes[made.ids.index(case.id)] == 2


def test_oracle_without_evidence_is_an_empty_history_that_says_so(cases: Sequence[Case]) -> None:
    case = oracle(cases)[11]
    assert (case.turns, case.notes) == ((), ("conv-901_q11 has no evidence, so its history is empty.",))


def test_oracle_asks_after_everything_because_the_point_may_be_gone() -> None:
    session = Session("s", (Turn("t1", "A", "a"), Turn("t2", "A", "b")))
    case = Case("c", (), (session,), ((Question("q", "?", after="t2"), Gold(("x",), evidence=("t1",))),))
    assert oracle([case])[0].questions[0][0].after is None


# --- permute ---


def moved(before: Case, after: Case) -> int:
    return sum(old.id != new.id for old, new in zip(before.turns, after.turns, strict=True))


def test_permuting_moves_turns_whole_and_leaves_sessions_and_times_in_place(cases: Sequence[Case]) -> None:
    case = cases[0]
    changed = permute(case, share=0.3, seed=0)
    assert {turn.id: turn for turn in changed.turns} == {turn.id: turn for turn in case.turns}
    assert [(s.id, s.time, len(s.turns)) for s in changed.sessions] == [
        (s.id, s.time, len(s.turns)) for s in case.sessions
    ]
    assert [gold for _, gold in changed.questions] == [gold for _, gold in case.questions]


def test_a_share_of_all_turns_moves_and_roles_stay_in_their_pattern(cases: Sequence[Case]) -> None:
    case = cases[0]
    changed = permute(case, share=0.3, seed=0)
    assert moved(case, changed) == 36  # 61 and 59 turns of the roles make 30 + 29 pairs: 18 swaps
    assert [turn.role for turn in changed.turns] == [turn.role for turn in case.turns]
    assert len(make_units(changed.sessions, "ab_pair").units) == len(make_units(case.sessions, "ab_pair").units)


def test_permuting_by_nothing_changes_nothing_and_by_all_moves_every_pair(cases: Sequence[Case]) -> None:
    assert permute(cases[0], share=0, seed=0) == cases[0]
    assert moved(cases[0], permute(cases[0], share=1, seed=0)) == 118
    with pytest.raises(ValueError, match="share"):
        permute(cases[0], share=1.1)


def test_the_seed_and_the_case_decide_the_permutation(cases: Sequence[Case]) -> None:
    first = permute(cases[0], seed=0)
    assert first == permute(cases[0], seed=0)
    assert first != permute(cases[0], seed=1)
    other = replace(cases[0], id="another")
    assert permute(other, seed=0).sessions != first.sessions
    assert as_lazy(cases).mapped(permute)[0] == first


def between_questions() -> tuple[tuple[Turn, ...], Case]:
    turns = tuple(Turn(f"t{i}", "A", f"text {i}") for i in range(40))
    sessions = (Session("s1", turns[:15]), Session("s2", turns[15:]))
    questions = tuple(
        (Question(f"q{i}", "?", after=after), Gold(("x",))) for i, after in enumerate([None, "", "t9", "t24"])
    )
    return turns, Case("c", (), sessions, questions)


def test_turns_are_swapped_over_the_whole_history_as_segtreemem_5_4_has_it() -> None:
    _, case = between_questions()
    changed = permute(case, share=1, seed=5)
    before = {turn.id: place for place, turn in enumerate(case.turns)}
    spans = [sum(place >= end for end in (10, 25)) for place in range(40)]
    crossed = sum(spans[before[turn.id]] != spans[place] for place, turn in enumerate(changed.turns))
    assert crossed > 10
    assert [question.after for question, _ in changed.questions] == [
        None,
        "",
        changed.turns[9].id,
        changed.turns[24].id,
    ]


def test_exchanges_are_swapped_whole_so_that_every_unit_keeps_its_text_and_the_order_alone_changes(
    cases: Sequence[Case],
) -> None:
    """The second reading of SegTreeMem §5.4: a tree that clusters by content loses nothing of an exchange."""

    def texts(case: Case) -> list[str]:
        return [unit.text for unit in make_units(case.sessions, "ab_pair").units]

    for case in cases:
        whole, single = permute(case, exchanges=True), permute(case)
        assert sorted(texts(whole)) == sorted(texts(case)) != sorted(texts(single))
        moved = sum(old != new for old, new in zip(texts(case), texts(whole), strict=True))
        assert moved == 2 * round(0.3 * (len(texts(case)) // 2)) > 0
        assert [turn.role for turn in whole.turns] == [turn.role for turn in case.turns]
        assert [session.time for session in whole.sessions] == [session.time for session in case.sessions]


def test_a_turn_without_a_partner_stays_when_exchanges_are_swapped() -> None:
    roles = ["user", "assistant", "user", "user", "assistant", "assistant"]
    turns = tuple(Turn(f"t{n}", "", str(n), role) for n, role in enumerate(roles))
    case = Case("c", (), (Session("s", turns),), ())
    assert [turn.text for turn in permute(case, share=1, exchanges=True).turns] == ["3", "4", "2", "0", "1", "5"]


def test_no_turn_crosses_a_point_at_which_a_question_is_asked_unless_it_may() -> None:
    turns, case = between_questions()
    changed = permute(case, share=1, seed=5, across_questions=False)
    assert changed == as_lazy([case]).mapped(partial(permute, share=1, seed=5, across_questions=False))[0]
    names = [turn.id for turn in changed.turns]
    assert names != [turn.id for turn in turns]
    for start, end in ((0, 10), (10, 25), (25, 40)):
        assert set(names[start:end]) == {f"t{i}" for i in range(start, end)}
    # The point of a question is a place in the stream: whatever turn stands there now.
    assert [question.after for question, _ in changed.questions] == [None, "", names[9], names[24]]


def test_transforms_compose(cases: Sequence[Case]) -> None:
    chosen = oracle(asking(subset(cases, 2, seed=2), {case.id: 3 for case in cases}, seed=2))
    assert len(chosen) == 6
    assert len({case.cluster for case in chosen}) == 2


# --- shuffle_sessions ---


def in_sessions(*asked: str | None) -> Case:
    """Eight sessions of three turns, with a question asked after each of these turns."""
    sessions = tuple(
        Session(
            f"s{number}", tuple(Turn(f"s{number}t{place}", "A", "text") for place in range(3)), None, f"day {number}"
        )
        for number in range(8)
    )
    questions = tuple((Question(f"q{place}", "?", after=after), Gold(("x",))) for place, after in enumerate(asked))
    return Case("c", (), sessions, questions)


def test_shuffled_sessions_keep_their_turns_and_dates_and_the_seed_decides_their_order() -> None:
    case = in_sessions(None, "")
    changed = shuffle_sessions(case, seed=1)
    assert changed.sessions != case.sessions
    assert set(changed.sessions) == set(case.sessions)
    assert changed.questions == case.questions
    assert changed == as_lazy([case]).mapped(partial(shuffle_sessions, seed=1))[0]
    assert changed.sessions != shuffle_sessions(case, seed=2).sessions


def test_a_question_keeps_the_set_of_turns_before_it_when_sessions_are_shuffled() -> None:
    case = in_sessions("s3t2", "s5t1", None)
    for seed in range(20):
        changed = shuffle_sessions(case, seed=seed)
        for (before, _), (after, _) in zip(case.questions, changed.questions, strict=True):
            assert seen_by(before, case) == seen_by(after, changed)
        assert [session.id for session in changed.sessions][5] == "s5", "a question is asked in its middle"
    assert len({shuffle_sessions(case, seed=seed).sessions[0].id for seed in range(20)}) == 4


def seen_by(question: Question, case: Case) -> set[str]:
    """The turns before a question."""
    names = [turn.id for turn in case.turns]
    return set(names if question.after is None else names[: names.index(question.after) + 1])


# --- all histories as one ---


def test_a_joined_history_keeps_every_turn_and_its_evidence_ids_valid(cases: Sequence[Case]) -> None:
    joined = join(cases, "all")
    assert [turn.text for turn in joined.turns] == [turn.text for case in cases for turn in case.turns]
    texts = {turn.id: turn.text for turn in joined.turns}
    assert len(texts) == len(joined.turns)
    before = [
        [turn.text for name in gold.evidence for turn in case.turns if turn.id == name]
        for case in cases
        for _, gold in case.questions
    ]
    assert [[texts[name] for name in gold.evidence] for _, gold in joined.questions] == before
    assert sum(map(len, before)) > 10


def test_questions_of_a_joined_history_have_ids_of_their_own_and_are_asked_at_its_end(cases: Sequence[Case]) -> None:
    joined = join(cases, "all")
    assert len(set(question_ids(joined))) == sum(len(case.questions) for case in cases)
    assert {question.after for question, _ in joined.questions} == {None}
    assert len({session.id for session in joined.sessions}) == sum(len(case.sessions) for case in cases)
    assert joined.speakers == tuple(dict.fromkeys(name for case in cases for name in case.speakers))
