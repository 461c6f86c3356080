from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.metrics.retrieval import covered_share, ndcg_at_k, sources_per_item, verbatim_share

TURNS = [f"t{number}" for number in range(8)]
items = st.lists(st.frozensets(st.sampled_from(TURNS), max_size=8), max_size=6)
evidence_sets = st.frozensets(st.sampled_from(TURNS), min_size=1)


def test_coverage_counts_evidence_among_the_sources_of_the_top_items() -> None:
    sources = [["t1"], ["t2", "t3"], ["t4"]]
    assert covered_share(sources[:1], ["t1", "t4"]) == 0.5
    assert covered_share(sources[:2], ["t1", "t4"]) == 0.5
    assert covered_share(sources[:3], ["t1", "t4"]) == 1
    assert covered_share(sources[:3], ["t1", "t9"]) == 0.5


def test_evidence_named_twice_counts_once() -> None:
    assert covered_share([["t1"]], ["t1", "t1", "t2"]) == 0.5


def test_a_root_summary_covers_everything_but_does_not_look_like_perfect_recall() -> None:
    said = {"t1": "I adopted Luna.", "t2": "She sat today.", "t3": "We moved house."}
    root_sources, root_text = [list(said)], ["They talk about a pet and a house."]
    assert covered_share(root_sources[:5], list(said)) == 1
    assert verbatim_share(root_text[:5], list(said.values())) == 0
    assert sources_per_item(root_sources[:5]) == 3
    assert ndcg_at_k(root_sources, list(said), 5) == pytest.approx(1 / (1 + 1 / 1.5849625 + 1 / 2))


def test_verbatim_needs_the_words_of_the_turn_with_white_space_folded() -> None:
    texts = ["Ann: I adopted\n Luna  yesterday. Bob: Nice!"]
    assert verbatim_share(texts[:1], ["I  adopted Luna yesterday."]) == 1
    assert verbatim_share(texts[:1], ["I adopted Luna yesterday.", "I adopted a dog."]) == 0.5
    assert verbatim_share(texts[:1], ["i adopted luna yesterday."]) == 0


def test_a_short_turn_is_not_found_inside_a_word() -> None:
    assert verbatim_share(["nothing is known"], ["no"]) == 0
    assert verbatim_share(["nothing, no, is known"], ["no"]) == 1
    assert verbatim_share(['he said"No!"'], ["No!"]) == 1


def test_a_turn_without_words_is_neither_found_nor_missed() -> None:
    assert verbatim_share(["some text"], ["", "some"]) == 1
    assert verbatim_share(["some text"], [" \n"]) is None


def test_ndcg_rewards_early_and_new_evidence() -> None:
    # Worked by hand: gains at ranks 2 and 4 are 1/log2(3) and 1/log2(5); ideal are ranks 1 and 2.
    sources = [["t9"], ["t1"], ["t1"], ["t2"]]
    assert ndcg_at_k(sources, ["t1", "t2"], 4) == pytest.approx((0.6309298 + 0.4306766) / (1 + 0.6309298))
    assert ndcg_at_k([["t1"], ["t2"]], ["t1", "t2"], 4) == 1


def test_without_evidence_there_is_nothing_to_measure() -> None:
    assert covered_share([["t1"]], []) is None
    assert ndcg_at_k([["t1"]], [], 3) is None
    assert sources_per_item([]) is None


def test_an_empty_recall_finds_nothing() -> None:
    assert covered_share([], ["t1"]) == ndcg_at_k([], ["t1"], 3) == verbatim_share([], ["words"]) == 0


def test_sources_per_item_is_a_mean_over_the_top_items() -> None:
    assert sources_per_item([["t1"], ["t1", "t2", "t2"], TURNS][:2]) == 1.5


@pytest.mark.slow
@given(items, evidence_sets, st.integers(1, 8))
def test_coverage_and_ndcg_stay_between_0_and_1(
    sources: list[frozenset[str]], evidence: frozenset[str], k: int
) -> None:
    for value in (covered_share(sources[:k], evidence), ndcg_at_k(sources, evidence, k)):
        assert value is not None
        assert 0 <= value <= 1 + 1e-12


@pytest.mark.slow
@given(items, evidence_sets, st.integers(1, 7))
def test_a_longer_list_never_covers_less(sources: list[frozenset[str]], evidence: frozenset[str], k: int) -> None:
    shorter, longer = covered_share(sources[:k], evidence), covered_share(sources[: k + 1], evidence)
    assert shorter is not None
    assert longer is not None
    assert shorter <= longer
