"""Manifold metrics on point clouds whose geometry is known."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from eval.files.store import RunError
from eval.report.published import read_published
from eval.structure.manifold import (
    MEASURES,
    Cloud,
    cloud,
    intrinsic_dimension,
    manifold,
    separation_ratio,
    silhouette,
)
from eval.structure.tree import Tree


def tree(vectors: np.ndarray, levels: list[int]) -> Tree:
    names = tuple(str(number) for number in range(len(vectors)))
    none = ((),) * len(names)
    return Tree("case", names, none, tuple(levels), names, names, none, vectors.astype(np.float32), True)


@pytest.mark.slow
def test_points_on_a_plane_have_two_dimensions_and_no_more_than_a_hundred_are_counted() -> None:
    rng = np.random.default_rng(0)
    plane = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 50))
    assert intrinsic_dimension(plane) == 2
    assert intrinsic_dimension(rng.standard_normal((400, 300))) == 100
    assert intrinsic_dimension(np.ones((5, 3))) is None


def test_a_direction_counts_until_95_percent_are_explained() -> None:
    """Variances 90, 6, 4: two of them explain 96 %; with 94, 3, 3 two explain 97 %, one 94 %; with 96, 2, 2 one does."""
    for variances, expected in (((90, 6, 4), 2), ((94, 3, 3), 2), ((96, 2, 2), 1)):
        axes = np.diag(np.sqrt(np.array(variances, dtype=float)))
        assert intrinsic_dimension(np.vstack([axes, -axes])) == expected


def test_histories_apart_have_a_high_silhouette_and_separation() -> None:
    labels = np.array([0, 0, 1, 1])
    apart = np.array([[1, 0.1], [1, -0.1], [0.1, 1], [-0.1, 1]])
    assert silhouette(apart, labels) > 0.9
    assert silhouette(apart, np.array([0, 1, 0, 1])) < 0
    # Centroids (1, 0) and (0, 1), every node .1 from its own.
    assert separation_ratio(apart, labels) == pytest.approx(np.sqrt(2) / 0.1)


def test_one_history_or_one_node_each_cannot_be_separated() -> None:
    vectors = np.eye(3)
    assert silhouette(vectors, np.zeros(3)) is None
    assert silhouette(vectors, np.arange(3)) is None
    assert separation_ratio(vectors, np.zeros(3)) is None
    assert separation_ratio(vectors, np.arange(3)) is None


def projected(vectors: np.ndarray) -> tuple[float | None, float | None]:
    """Trustworthiness and continuity."""
    nodes = Cloud(len(vectors), vectors, np.zeros(len(vectors), int))
    return MEASURES["trustworthiness"](nodes), MEASURES["continuity"](nodes)


def test_a_plane_is_projected_without_loss_and_a_ball_is_not() -> None:
    rng = np.random.default_rng(1)
    flat = rng.standard_normal((60, 2)) @ np.linalg.qr(rng.standard_normal((20, 2)))[0].T
    assert projected(flat) == (pytest.approx(1.0), pytest.approx(1.0))
    ball = rng.standard_normal((60, 20))
    trust, continued = projected(ball)
    assert trust is not None
    assert continued is not None
    assert 0.5 < trust < 0.95
    assert trust != continued
    few = rng.standard_normal((10, 3))
    assert projected(few) == (None, None)


def test_continuity_counts_neighbours_that_the_projection_tears_apart() -> None:
    """Trustworthiness by its formula, with ranks in the original space; continuity with ranks in the projection."""
    vectors = np.random.default_rng(2).standard_normal((30, 6))
    centred = vectors - vectors.mean(axis=0)
    flat = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T

    def ranks(points: np.ndarray) -> np.ndarray:
        far = np.linalg.norm(points[:, None] - points[None], axis=2)
        return np.argsort(np.argsort(far, axis=1), axis=1)

    def by_formula(space: np.ndarray, shown: np.ndarray, k: int = 5) -> float:
        n, true, seen = len(space), ranks(space), ranks(shown)
        penalty = sum(true[i, j] - k for i in range(n) for j in range(n) if 0 < seen[i, j] <= k and true[i, j] > k)
        return 1 - 2 / (n * k * (2 * n - 3 * k - 1)) * penalty

    assert projected(vectors) == (pytest.approx(by_formula(vectors, flat)), pytest.approx(by_formula(flat, vectors)))


def test_a_level_is_decomposed_once_for_its_dimension_and_once_for_its_projection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    svd = np.linalg.svd
    monkeypatch.setattr(np.linalg, "svd", lambda *given, **named: made.append(1) or svd(*given, **named))
    manifold([tree(np.random.default_rng(3).standard_normal((30, 6)), [1] * 30)], np.random.default_rng(0))
    assert len(made) == 2


def test_levels_are_measured_apart_and_nodes_without_a_vector_left_out() -> None:
    square = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1], [0, 0], [9, 9]])
    first, second = manifold([tree(square, [1, 1, 1, 1, 1, 2])], np.random.default_rng(0))
    assert (first["level"], first["nodes"], first["histories"]) == (1, 4, 1)
    assert (first["spread"], first["cv"], first["radius95"]) == pytest.approx((np.sqrt(2), 0.0, np.sqrt(2)))
    assert (second["level"], second["nodes"], second["spread"], second["cv"]) == (2, 1, 0.0, None)
    assert manifold([tree(np.zeros((3, 2)), [0, 0, 0])], np.random.default_rng(0)) == []


def test_radius_is_the_95th_percentile_and_variation_the_relative_deviation() -> None:
    places = np.arange(1, 51) ** 2 / 50  # mean 17.17, median 13.01
    line = np.concatenate([-places, places]).reshape(-1, 1) @ np.array([[1.0, 0.0]])
    (found,) = manifold([tree(line, [0] * 100)], np.random.default_rng(0))
    far = np.abs(line[:, 0])
    assert found["spread"] == pytest.approx(17.17)
    assert found["radius95"] == pytest.approx(np.percentile(far, 95))
    assert found["cv"] == pytest.approx(far.std() / far.mean())


def test_large_levels_are_sampled_but_counted_whole() -> None:
    rng = np.random.default_rng(0)
    large = tree(rng.standard_normal((80, 4)), [0] * 80)
    (sampled,) = manifold([large], np.random.default_rng(5), most=20)
    (again,) = manifold([large], np.random.default_rng(5), most=20)
    (whole,) = manifold([large], np.random.default_rng(5))
    assert sampled == again
    assert (sampled["nodes"], whole["nodes"]) == (80, 80)
    assert sampled["spread"] != whole["spread"]


def test_the_printed_rows_agree_with_the_reading_of_spread_variation_and_radius() -> None:
    numbers = {(one.variant, one.metric): one.value for one in read_published("timem_t12")}
    for level in ("L1", "L2", "L3", "L4", "L5"):
        spread, variation, radius = (numbers[level, name] for name in ("Spread", "CV", "Radius95"))
        assert spread * (1 + 1.645 * variation) == pytest.approx(radius, rel=0.03)


def test_the_printed_silhouettes_are_nearer_to_cosine_than_to_euclidean_distance() -> None:
    numbers = {(one.variant, one.metric): one.value for one in read_published("timem_t11")}
    for level in ("L1", "L2", "L3", "L4"):
        square = numbers[level, "SeparationRatio"] ** 2
        by_cosine, by_distance = square / (2 + square), 1 - np.sqrt(2 / (2 + square))
        printed = numbers[level, "Silhouette"]
        assert abs(printed - by_cosine) < 0.06 < abs(printed - by_distance)


def test_evenly_scattered_nodes_have_the_silhouette_of_their_separation_ratio() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1], 100)
    vectors = rng.standard_normal((200, 2000)) / np.sqrt(2000)
    vectors[:, 0] += 3  # all point the same way, so that none is much longer
    vectors[:, 1] += np.where(labels, 0.5, -0.5)
    ratio = separation_ratio(vectors, labels)
    assert ratio == pytest.approx(1, abs=0.03)
    assert silhouette(vectors, labels) == pytest.approx(1 / 3, abs=0.03)


def test_a_cloud_keeps_each_node_with_its_history_and_samples_in_order() -> None:
    first, second = tree(np.arange(1, 9).reshape(4, 2), [0, 1, 0, 0]), tree(np.array([[0, 0], [7, 7]]), [0, 0])
    found = cloud(iter([first, second]), 0, np.random.default_rng(0))
    assert found.vectors.tolist() == [[1, 2], [5, 6], [7, 8], [7, 7]]
    assert found.histories.tolist() == [0, 0, 0, 1]
    draws = [cloud([first, second], 0, np.random.default_rng(seed), most=2).vectors.tolist() for seed in range(9)]
    assert len({str(draw) for draw in draws}) > 2, "drawn, not the first ones"
    some = cloud([first, second], 0, np.random.default_rng(0), most=3)
    places = [found.vectors.tolist().index(row) for row in some.vectors.tolist()]
    assert places == sorted(set(places))
    assert (some.nodes, len(places)) == (4, 3)
    assert some.histories.tolist() == [found.histories[place] for place in places]
    assert cloud([first], 5, np.random.default_rng(0)).nodes == 0


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(RunError, match=r"pip install 'memsys-bench\[cluster\]'"):
        silhouette(np.eye(4), np.array([0, 0, 1, 1]))
