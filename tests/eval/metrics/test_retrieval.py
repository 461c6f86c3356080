from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.metrics.retrieval import covered_at_k, ndcg_at_k, sources_per_item, verbatim_at_k

TURNS = [f"t{number}" for number in range(8)]
items = st.lists(st.frozensets(st.sampled_from(TURNS), max_size=8), max_size=6)
evidence_sets = st.frozensets(st.sampled_from(TURNS), min_size=1)


def test_coverage_counts_evidence_among_the_sources_of_the_top_items() -> None:
    sources = [["t1"], ["t2", "t3"], ["t4"]]
    assert covered_at_k(sources, ["t1", "t4"], 1) == 0.5
    assert covered_at_k(sources, ["t1", "t4"], 2) == 0.5
    assert covered_at_k(sources, ["t1", "t4"], 3) == 1
    assert covered_at_k(sources, ["t1", "t9"], 3) == 0.5


def test_evidence_named_twice_counts_once() -> None:
    assert covered_at_k([["t1"]], ["t1", "t1", "t2"], 1) == 0.5


def test_a_root_summary_covers_everything_but_does_not_look_like_perfect_recall() -> None:
    said = {"t1": "I adopted Luna.", "t2": "She sat today.", "t3": "We moved house."}
    root_sources, root_text = [list(said)], ["They talk about a pet and a house."]
    assert covered_at_k(root_sources, list(said), 5) == 1
    assert verbatim_at_k(root_text, list(said.values()), 5) == 0
    assert sources_per_item(root_sources, 5) == 3
    assert ndcg_at_k(root_sources, list(said), 5) == pytest.approx(1 / (1 + 1 / 1.5849625 + 1 / 2))


def test_verbatim_needs_the_words_of_the_turn_with_white_space_folded() -> None:
    texts = ["Ann: I adopted\n Luna  yesterday. Bob: Nice!"]
    assert verbatim_at_k(texts, ["I  adopted Luna yesterday."], 1) == 1
    assert verbatim_at_k(texts, ["I adopted Luna yesterday.", "I adopted a dog."], 1) == 0.5
    assert verbatim_at_k(texts, ["i adopted luna yesterday."], 1) == 0


def test_verbatim_looks_only_at_the_top_items() -> None:
    assert verbatim_at_k(["first", "second"], ["second"], 1) == 0
    assert verbatim_at_k(["first", "second"], ["second"], 2) == 1


def test_a_short_turn_is_not_found_inside_a_word() -> None:
    assert verbatim_at_k(["nothing is known"], ["no"], 1) == 0
    assert verbatim_at_k(["nothing, no, is known"], ["no"], 1) == 1
    assert verbatim_at_k(['he said"No!"'], ["No!"], 1) == 1


def test_a_turn_without_words_is_neither_found_nor_missed() -> None:
    assert verbatim_at_k(["some text"], ["", "some"], 1) == 1
    assert verbatim_at_k(["some text"], [" \n"], 1) is None


def test_ndcg_rewards_early_and_new_evidence() -> None:
    # Worked by hand: gains at ranks 2 and 4 are 1/log2(3) and 1/log2(5); ideal are ranks 1 and 2.
    sources = [["t9"], ["t1"], ["t1"], ["t2"]]
    assert ndcg_at_k(sources, ["t1", "t2"], 4) == pytest.approx((0.6309298 + 0.4306766) / (1 + 0.6309298))
    assert ndcg_at_k([["t1"], ["t2"]], ["t1", "t2"], 4) == 1


def test_without_evidence_there_is_nothing_to_measure() -> None:
    assert covered_at_k([["t1"]], [], 3) is None
    assert ndcg_at_k([["t1"]], [], 3) is None
    assert sources_per_item([], 3) is None


def test_an_empty_recall_finds_nothing() -> None:
    assert covered_at_k([], ["t1"], 3) == ndcg_at_k([], ["t1"], 3) == verbatim_at_k([], ["words"], 3) == 0


def test_sources_per_item_is_a_mean_over_the_top_items() -> None:
    assert sources_per_item([["t1"], ["t1", "t2", "t2"], TURNS], 2) == 1.5


@pytest.mark.parametrize("k", [0, -1])
def test_a_cut_off_below_1_is_refused(k: int) -> None:
    for measure in (covered_at_k, ndcg_at_k):
        with pytest.raises(ValueError, match="at least 1"):
            measure([["t1"]], ["t1"], k)
    with pytest.raises(ValueError, match="at least 1"):
        verbatim_at_k(["text"], ["text"], k)
    with pytest.raises(ValueError, match="at least 1"):
        sources_per_item([["t1"]], k)


@pytest.mark.slow
@given(items, evidence_sets, st.integers(1, 8))
def test_coverage_and_ndcg_stay_between_0_and_1(
    sources: list[frozenset[str]], evidence: frozenset[str], k: int
) -> None:
    for measure in (covered_at_k, ndcg_at_k):
        value = measure(sources, evidence, k)
        assert value is not None
        assert 0 <= value <= 1 + 1e-12


@pytest.mark.slow
@given(items, evidence_sets, st.integers(1, 7))
def test_a_longer_list_never_covers_less(sources: list[frozenset[str]], evidence: frozenset[str], k: int) -> None:
    shorter, longer = covered_at_k(sources, evidence, k), covered_at_k(sources, evidence, k + 1)
    assert shorter is not None
    assert longer is not None
    assert shorter <= longer
