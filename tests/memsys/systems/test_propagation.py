"""Algorithm 2's scores, against the worked example and its invariants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memsys.systems.segtree.reading import SegTreeReading, propagated

# Root R over P and Q, P over a and b, Q over c.
NAMES = ("R", "P", "Q", "a", "b", "c")
PARENTS = (-1, 0, 0, 1, 1, 2)
RELEVANCE = np.array([0.2, 0.3, 0.1, 0.5, 0.1, 0.3])


def score(relevance: np.ndarray = RELEVANCE, **changes: Any) -> np.ndarray:
    return propagated(relevance, PARENTS, SegTreeReading(**changes))


def test_top_down_scores_are_those_of_the_worked_example() -> None:
    final = score()
    assert final == pytest.approx([0.12012, 0.18619, 0.06607, 0.30961, 0.06937, 0.18679], abs=6e-6)
    assert final.sum() == pytest.approx(0.9381, abs=5e-5)
    assert [NAMES[node] for node in np.argsort(-final)] == ["a", "c", "P", "R", "b", "Q"]


def test_bottom_up_scores_are_those_of_the_worked_example() -> None:
    final = score(policy="bottom_up")
    assert final == pytest.approx([0.14955, 0.21622, 0.07808, 0.30030, 0.06006, 0.18018], abs=6e-6)
    assert final.sum() == pytest.approx(0.9844, abs=5e-5)
    assert [NAMES[node] for node in np.argsort(-final)] == ["a", "P", "c", "R", "Q", "b"]


def test_single_steps_are_those_of_the_worked_example() -> None:
    start = score(horizon=0)
    assert start == pytest.approx([0.1333, 0.2, 0.0667, 0.3333, 0.0667, 0.2], abs=5e-5)
    first = (score(alpha=0.5, horizon=1) * 1.5 - start) / 0.5
    assert first == pytest.approx([0, 0.0667, 0.0667, 0.1, 0.1, 0.0667], abs=5e-5)
    second = (score(alpha=0.5, horizon=2) * 1.75 - start - 0.5 * first) / 0.25
    assert second == pytest.approx([0, 0, 0, 0.0333, 0.0333, 0.0667], abs=5e-5)
    up = (score(alpha=0.5, horizon=1, policy="bottom_up") * 1.5 - start) / 0.5
    assert up == pytest.approx([0.2667, 0.4, 0.2, 0, 0, 0], abs=5e-5)


@pytest.mark.parametrize("policy", ["top_down", "bottom_up"])
@pytest.mark.parametrize("sink", ["drop", "self_loop"])
@pytest.mark.parametrize("horizon", [0, 1, 2, 3])
def test_the_gathers_equal_the_paper_s_matrix(policy: str, sink: str, horizon: int) -> None:
    matrix = np.zeros((6, 6))
    for node, parent in enumerate(PARENTS):
        if parent >= 0:
            row, column = (node, parent) if policy == "top_down" else (parent, node)
            matrix[row, column] = 1
    if sink == "self_loop":
        matrix[np.diag_indices(6)] = matrix.sum(axis=0) == 0
    matrix /= np.maximum(1, matrix.sum(axis=0))
    start = RELEVANCE / RELEVANCE.sum()
    powers = [np.linalg.matrix_power(matrix, hop) @ start * 0.3**hop for hop in range(horizon + 1)]
    expected = sum(powers) / sum(0.3**hop for hop in range(horizon + 1))
    assert score(policy=policy, sink=sink, horizon=horizon, alpha=0.3) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("policy", ["top_down", "bottom_up"])
def test_no_step_and_no_weight_both_give_collapsed_retrieval(policy: str) -> None:
    collapsed = score(policy="none")
    assert collapsed == pytest.approx(RELEVANCE / RELEVANCE.sum())
    assert np.array_equal(score(policy=policy, horizon=0, alpha=0.9), collapsed)
    assert np.array_equal(score(policy=policy, horizon=3, alpha=0.0), collapsed)


@pytest.mark.parametrize("policy", ["top_down", "bottom_up"])
@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_no_mass_is_lost_when_sinks_keep_theirs(policy: str, horizon: int) -> None:
    assert score(policy=policy, horizon=horizon, alpha=0.7, sink="self_loop").sum() == pytest.approx(1)
    assert score(policy=policy, horizon=horizon, alpha=0.7, sink="drop").sum() < 0.95


def test_negative_cosines_follow_the_choice() -> None:
    relevance = np.array([0.6, -0.2, 0.2, 0.0, 0.0, 0.0])
    assert score(relevance, policy="none") == pytest.approx([0.75, 0, 0.25, 0, 0, 0])
    assert score(relevance, policy="none", neg="shift") == pytest.approx(np.array([0.8, 0.4, 0.6, 0.5, 0.5, 0.5]) / 3.3)
    assert score(relevance, policy="none", neg="softmax") == pytest.approx(np.exp(relevance) / np.exp(relevance).sum())


def test_scores_are_uniform_when_nothing_is_relevant() -> None:
    assert score(np.full(6, -0.5), policy="none") == pytest.approx(np.full(6, 1 / 6))


def test_a_tree_of_no_or_one_node_is_scored() -> None:
    assert len(propagated(np.zeros(0), (), SegTreeReading())) == 0
    for policy in ("top_down", "bottom_up"):
        alone = propagated(np.ones(1), (-1,), SegTreeReading(policy=policy))
        assert alone == pytest.approx([1 / 1.11])


@pytest.mark.parametrize(
    "wrong", [{"policy": "up"}, {"neg": "abs"}, {"sink": "keep"}, {"alpha": 1.0}, {"alpha": -0.1}, {"horizon": -1}]
)
def test_an_unknown_choice_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        score(**wrong)
