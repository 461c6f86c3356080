"""Which texts hold an evidence turn: verbatim, rewritten, cut, about something else, long or of unknown origin."""

from __future__ import annotations

from data_loaders.schema import Case, Gold, Question, Session, Turn
from eval.analysis.losses import Held, Text, Texts, all_held, targets

TURN = "Ines learned weaving with backstrap looms in Oaxaca last spring."
OTHERS = (
    "Bruno repairs accordions for a band that plays at weddings.",
    "Ines lives near the harbour and keeps two parrots.",
    "My cousin opened a bakery behind the old cinema.",
    "We drove along the coast until the tyres gave out.",
)
TURNS = tuple(Turn(f"t{number}", "Ines", text) for number, text in enumerate((TURN, *OTHERS)))
QUESTION = Question("q", "Where did Ines learn to weave?")
GOLD = Gold(("Oaxaca",), ("t0",))
CASE = Case("c", ("Ines", "Bruno"), (Session("s", TURNS),), ((QUESTION, GOLD),))


def held(*texts: Text) -> Held:
    (target,) = targets(CASE, QUESTION, GOLD)
    return Texts(texts).hold(target)


def text(words: str, *sources: str, whole: bool = True) -> Text:
    return Text(words, frozenset(sources), whole)


def test_a_turn_is_held_verbatim_and_by_most_of_its_words_whatever_the_sources_say() -> None:
    for words in (TURN, "Last spring Ines learned to weave in Oaxaca, on looms."):
        assert held(text("Notes: " + words)) is held(text(words, "t0")) is held(text(words, "t9")) is Held.YES
    assert held() is Held.NO


def test_the_answer_and_its_context_make_a_rewritten_turn_whole() -> None:
    fact = "Oaxaca taught Ines to weave."
    assert held(text(fact, "t0")) is Held.YES
    assert held(text("In Oaxaca they eat well.", "t1")) is Held.NO


def test_a_paraphrase_without_a_common_word_is_unknown_where_its_source_is_named() -> None:
    assert held(text("She took up a craft in Mexico.", "t0")) is Held.UNKNOWN
    assert held(text("She took up a craft in Mexico.", "t1")) is Held.NO


def test_a_summary_of_all_turns_holds_one_only_by_its_words() -> None:
    every = [turn.id for turn in TURNS]
    assert held(text("They talked about crafts, music, animals and family.", *every)) is Held.NO
    assert held(text("Ines learned weaving in Oaxaca; Bruno repairs accordions.", *every)) is Held.YES


def test_a_turn_of_stop_words_alone_is_held_by_no_text_that_does_not_name_it() -> None:
    (target,) = targets(
        Case("c", ("A",), (Session("s", (Turn("t0", "A", "It was on you."), *TURNS[1:])),), ()), QUESTION, GOLD
    )
    assert target.words == frozenset()
    assert Texts([text("Oaxaca")]).hold(target) is Held.NO


def test_words_that_are_scattered_over_a_long_text_do_not_hold_a_turn() -> None:
    filler = " ".join(f"filler{number}" for number in range(60))
    assert held(text(f" {filler} ".join(TURN.split()))) is Held.NO
    assert held(text(f"{filler} {TURN} {filler}")) is Held.YES


def test_the_sources_of_a_text_that_was_cut_vouch_for_nothing() -> None:
    assert held(text("Bruno repairs accordions", "t1", "t0", whole=False)) is Held.NO


def test_all_turns_of_a_question_must_be_held() -> None:
    both = targets(CASE, QUESTION, Gold(("Oaxaca",), ("t0", "t1", "no such turn")))
    assert len(both) == 2
    assert all_held(both, Texts([text(TURN, "t0")])) is Held.NO
    assert all_held(both, Texts([text(TURN, "t0"), text("Something about music.", "t1")])) is Held.UNKNOWN
    assert all_held(both, Texts([text(TURN, "t0"), text(OTHERS[0], "t1")])) is Held.YES
