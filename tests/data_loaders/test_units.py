from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn
from data_loaders.units import OnUnpaired, Rule, Units, lost_evidence, make_units

RULES: tuple[Rule, ...] = ("utterance", "floor_pair", "ab_pair", "page")


def words(text: str) -> int:
    return len(text.split())


def history(*patterns: str) -> tuple[Session, ...]:
    """One session per pattern of A and B turns; turn ids are `<session>:<position>`, both from 1."""
    roles: dict[str, Role] = {"A": "user", "B": "assistant"}
    return tuple(
        Session(
            f"s{number}",
            tuple(
                Turn(f"{number}:{i}", who, f"words {number} {i}", roles[who]) for i, who in enumerate(pattern, start=1)
            ),
            datetime(2023, 5, number, 9),
            f"{number} May 2023",
        )
        for number, pattern in enumerate(patterns, start=1)
    )


def turn_ids(made: Units) -> list[tuple[str, ...]]:
    return [unit.turn_ids for unit in made.units]


@pytest.mark.parametrize(("rule", "n"), [("utterance", 6), ("floor_pair", 3), ("ab_pair", 3), ("page", 3)])
def test_two_even_sessions_give_the_expected_number_of_units(rule: Rule, n: int) -> None:
    made = make_units(history("ABAB", "AB"), rule)
    assert (len(made.units), made.dropped) == (n, ())


def test_an_odd_session_leaves_its_last_turn_over() -> None:
    odd = history("ABA")
    for rule in ("floor_pair", "ab_pair", "page"):
        made = make_units(odd, rule)
        assert turn_ids(made) == [("1:1", "1:2")]
        assert made.dropped == ("1:3",)


def test_a_page_is_completed_by_a_reply_from_a_later_session() -> None:
    made = make_units(history("ABA", "BAB"), "page")
    assert turn_ids(made) == [("1:1", "1:2"), ("1:3", "2:1"), ("2:2", "2:3")]
    assert made.units[1].session_id == "s1"
    assert made.units[1].time == datetime(2023, 5, 1, 9)
    assert made.dropped == ()


def test_a_second_reply_overwrites_the_first_also_across_sessions() -> None:
    made = make_units(history("ABB", "BA"), "page")
    assert turn_ids(made) == [("1:1", "2:1")]
    assert made.dropped == ("1:2", "1:3", "2:2")


def test_the_same_speaker_twice_is_paired_differently_by_each_rule() -> None:
    twice = history("AAB")
    assert make_units(twice, "floor_pair").dropped == ("1:3",)
    assert turn_ids(make_units(twice, "floor_pair")) == [("1:1", "1:2")]
    assert turn_ids(make_units(twice, "ab_pair")) == [("1:2", "1:3")]
    assert make_units(twice, "ab_pair").dropped == ("1:1",)
    assert turn_ids(make_units(twice, "page")) == [("1:2", "1:3")]


def test_pairs_do_not_cross_sessions() -> None:
    apart = history("A", "B")
    assert make_units(apart, "ab_pair").units == ()
    assert make_units(apart, "floor_pair").units == ()
    assert make_units(apart, "ab_pair").dropped == ("1:1", "2:1")


def test_keeping_singles_puts_them_at_their_place_in_the_stream() -> None:
    made = make_units(history("BABA"), "ab_pair", on_unpaired="keep_single")
    assert turn_ids(made) == [("1:1",), ("1:2", "1:3"), ("1:4",)]
    assert made.dropped == ()


def test_unit_ids_come_from_the_turns_and_units_carry_their_session() -> None:
    pair, single = make_units(history("ABA"), "floor_pair", on_unpaired="keep_single").units
    assert (pair.id, single.id) == ("1:1..1:2", "1:3")
    assert (pair.session_id, pair.time_text) == ("s1", "1 May 2023")
    assert pair.text == "A: words 1 1\nB: words 1 2"


@pytest.mark.slow
@given(
    st.lists(st.text("AB", max_size=9), max_size=5),
    st.sampled_from(RULES),
    st.sampled_from(["drop", "keep_single"]),
)
def test_every_turn_is_in_one_unit_or_dropped(patterns: list[str], rule: Rule, on_unpaired: OnUnpaired) -> None:
    sessions = history(*patterns)
    made = make_units(sessions, rule, on_unpaired=on_unpaired)
    everything = [turn.id for session in sessions for turn in session.turns]
    assert sorted([each for ids in turn_ids(made) for each in ids] + list(made.dropped)) == sorted(everything)
    starts = [everything.index(ids[0]) for ids in turn_ids(made)]
    assert starts == sorted(starts)
    assert on_unpaired == "drop" or not made.dropped


def test_a_chunk_packs_whole_turns_up_to_the_limit_and_stays_in_its_session() -> None:
    # A turn is 4 words with its speaker, so 9 words hold two.
    made = make_units(history("ABA", "AB"), "chunk", tokens=9, count=words)
    assert turn_ids(made) == [("1:1", "1:2"), ("1:3",), ("2:1", "2:2")]
    assert [unit.id for unit in made.units] == ["1:1..1:2", "1:3", "2:1..2:2"]


def test_a_chunk_may_be_filled_to_the_last_token() -> None:
    assert [len(ids) for ids in turn_ids(make_units(history("ABA"), "chunk", tokens=8, count=words))] == [2, 1]
    assert [len(ids) for ids in turn_ids(make_units(history("ABA"), "chunk", tokens=7, count=words))] == [1, 1, 1]


def test_a_long_passage_is_cut_at_sentence_ends_and_keeps_its_turn_id() -> None:
    document = Session("d", (Turn("p1", "", "One two three. Four five! Six? Seven eight nine ten. Eleven."),))
    made = make_units([document], "chunk", tokens=6, count=words)
    assert [unit.text for unit in made.units] == ["One two three. Four five! Six?", "Seven eight nine ten. Eleven."]
    assert [unit.id for unit in made.units] == ["p1#1", "p1#2"]
    assert {unit.turn_ids for unit in made.units} == {("p1",)}


def test_a_sentence_beyond_the_limit_is_cut_between_words_and_a_word_between_characters() -> None:
    document = Session("d", (Turn("p", "", "aaa bbb ccc ddd. " + "x" * 12),))
    made = make_units([document], "chunk", tokens=8, count=len)
    assert [unit.text for unit in made.units] == ["aaa bbb", "ccc ddd.", "xxxxxxxx", "xxxx"]


@pytest.mark.slow
@given(st.lists(st.text("ab. \n!", max_size=60), max_size=6), st.integers(1, 30))
def test_no_chunk_exceeds_its_limit_and_no_word_is_lost(texts: list[str], limit: int) -> None:
    document = Session("d", tuple(Turn(f"p{i}", "", text) for i, text in enumerate(texts)))
    made = make_units([document], "chunk", tokens=limit, count=len)
    assert all(len(unit.text) <= limit for unit in made.units)
    solid = "".join("".join(texts).split())
    assert "".join("".join(unit.text for unit in made.units).split()) == solid


def test_cutting_a_very_long_text_takes_time_in_proportion() -> None:
    document = Session("d", (Turn("p", "", "word " * 20_000),))
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return len(text)

    made = make_units([document], "chunk", tokens=500, count=count)
    assert len(made.units) == 200
    assert counted < 3_000_000  # 30 looks at each character; the square of the length would be thousands


def test_a_setting_that_is_missing_or_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="needs tokens"):
        make_units(history("AB"), "chunk", tokens=0, count=len)
    with pytest.raises(ValueError, match="needs tokens"):
        make_units(history("AB"), "chunk", tokens=9)
    with pytest.raises(ValueError, match="rule: expected one of"):
        make_units(history("AB"), "sentence")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_unpaired"):
        make_units(history("AB"), "ab_pair", on_unpaired="keep")  # type: ignore[arg-type]


def test_turn_ids_that_give_one_unit_id_twice_are_refused() -> None:
    session = Session("d", (Turn("a", "", "x"), Turn("a", "", "y")))
    with pytest.raises(DataError, match="found 'a' twice"):
        make_units([session], "chunk", tokens=1, count=len)


def test_questions_are_told_which_of_their_evidence_no_unit_holds() -> None:
    sessions = history("AAB")
    questions = (
        (Question("q1", "?"), Gold(("x",), evidence=("1:1", "1:2"))),
        (Question("q2", "?"), Gold(("x",), evidence=("1:3",))),
    )
    case = Case("c", ("A", "B"), sessions, questions)
    assert lost_evidence(case, make_units(sessions, "ab_pair").dropped) == {"q1": ("1:1",)}
