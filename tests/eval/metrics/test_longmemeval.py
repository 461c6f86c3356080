from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_loaders.schema import Session, Turn
from eval.metrics import longmemeval
from eval.metrics.longmemeval import JudgedQuestion, RetrievalScores

SESSIONS = (
    Session(
        "x1", (Turn("x1_1", "user", "hello"), Turn("x1_2", "assistant", "hi", "assistant"), Turn("x1_3", "user", "bye"))
    ),
    Session("answer_a", (Turn("answer_a_1", "user", "my cat"), Turn("answer_a_2", "user", "is Luna"))),
    Session("answer_b", (Turn("answer_b_1", "user", "tip?"), Turn("answer_b_2", "assistant", "rest", "assistant"))),
    Session("y1", ()),
)


def test_abstention_goes_by_the_id_before_the_type() -> None:
    assert longmemeval.judge_rule("q_abs", "temporal-reasoning") is longmemeval.ABSTENTION
    assert longmemeval.judge_rule("q_abs_2", "anything") is longmemeval.ABSTENTION
    assert longmemeval.judge_rule("q", "temporal-reasoning") is longmemeval.TEMPORAL


def test_the_five_rules_differ_and_cover_the_six_types() -> None:
    rules = [longmemeval.judge_rule("q", kind) for kind in longmemeval.QUESTION_TYPES]
    assert {rule.name for rule in rules} == {"standard", "temporal", "knowledge-update", "preference"}
    assert [rule.name for rule in rules].count("standard") == 3


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="multi-hop"):
        longmemeval.judge_rule("q", "multi-hop")
    with pytest.raises(ValueError, match="multi-hop"):
        longmemeval.summarise([JudgedQuestion("q", "multi-hop", 1)])


def test_the_task_average_weighs_types_and_the_overall_score_questions() -> None:
    judged = [JudgedQuestion(f"q{n}", "multi-session", 1) for n in range(3)] + [
        JudgedQuestion("p", "knowledge-update", 0)
    ]
    summary = longmemeval.summarise(judged)
    assert (summary.task_averaged, summary.overall, summary.abstention) == (0.5, 0.75, None)
    with pytest.raises(ValueError, match="at least one"):
        longmemeval.summarise([])


def test_abstention_questions_count_inside_their_type_and_once_more_apart() -> None:
    judged = [JudgedQuestion("q", "multi-session", 1), JudgedQuestion("q_abs", "multi-session", 0)]
    summary = longmemeval.summarise(judged)
    assert summary.by_type == {"multi-session": 0.5}
    assert summary.abstention == 0


def test_sessions_without_a_labelled_user_turn_are_not_relevant() -> None:
    corpus = longmemeval.retrieval_corpus(SESSIONS, {"answer_a_2", "answer_b_2"}, "session")
    assert corpus.ids == ("x1", "answer_a", "noans_b", "y1")
    assert corpus.texts == ("hello bye", "my cat is Luna", "tip?", "")
    assert corpus.relevant == ("answer_a",)


def test_turns_keep_their_place_in_the_whole_session_as_id() -> None:
    corpus = longmemeval.retrieval_corpus(SESSIONS, {"answer_a_2", "answer_b_2"}, "turn")
    assert corpus.ids == ("x1_1", "x1_3", "noans_a_1", "answer_a_2", "noans_b_1")
    assert corpus.relevant == ("answer_a_2",)


def test_retrieval_skips_abstention_and_what_only_the_assistant_said() -> None:
    assert longmemeval.counts_for_retrieval("q", SESSIONS, {"answer_a_2"})
    assert not longmemeval.counts_for_retrieval("q_abs", SESSIONS, {"answer_a_2"})
    assert not longmemeval.counts_for_retrieval("q", SESSIONS, {"answer_b_2"})


def test_a_position_outside_the_corpus_is_an_error() -> None:
    with pytest.raises(IndexError):
        longmemeval.retrieval_at_k([3], ["a"], ["a", "b"], 1)


def test_widening_stops_at_the_end_of_the_corpus() -> None:
    scores = longmemeval.turn_to_session_at_k([0, 1], ["answer_a_1"], ["x_1", "answer_a_1"], 5)
    assert scores == RetrievalScores(1, 1, 1)


def test_ranks_1_and_2_weigh_the_same() -> None:
    assert longmemeval.dcg([0, 1], 2) == longmemeval.dcg([1, 0], 2) == 1
    assert longmemeval.dcg([], 3) == 0


@given(st.permutations(range(6)), st.sets(st.sampled_from("abcdef")), st.integers(1, 8))
def test_retrieval_scores_stay_between_0_and_1(rankings: list[int], correct: set[str], k: int) -> None:
    scores = longmemeval.retrieval_at_k(rankings, correct, "abcdef", k)
    assert scores.recall_any in (0, 1)
    assert scores.recall_all in (0, 1)
    assert 0 <= scores.ndcg_any <= 1 + 1e-12


@given(st.sets(st.sampled_from("abcdef"), min_size=1), st.integers(6, 9))
def test_everything_is_found_when_everything_is_looked_at(correct: set[str], k: int) -> None:
    scores = longmemeval.retrieval_at_k(range(6), correct, "abcdef", k)
    assert (scores.recall_any, scores.recall_all) == (1, 1)
