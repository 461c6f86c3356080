"""Revenue against its definition, OTD against its guarantee, on instances small enough to work by hand."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval.report.shapes import revenue_lines
from eval.structure.otd import (
    Hierarchy,
    Weights,
    average_linkage,
    binarised,
    check_guarantee,
    from_matrix,
    from_vectors,
    leaf_hierarchy,
    optimum,
    otd,
    random_binary,
    report,
    revenue,
    sizes,
    upper_bound,
)
from eval.structure.tree import Tree

Nested = int | tuple[Any, ...]
"""A hierarchy in nested form: a point's number, or a tuple of hierarchies."""


def hierarchy(nested: Nested) -> Hierarchy:
    """A hierarchy from its nested form, e.g. `((0, 1), 2)`.

    Raises:
        ValueError: the points are not 0 … n-1, each once.
    """
    points: list[int] = []
    parents: dict[int, int] = {}
    inner = 0

    def place(part: Nested) -> tuple[bool, int]:
        nonlocal inner
        if not isinstance(part, tuple):
            points.append(part)
            return True, part
        own, inner = inner, inner + 1
        for leaf, number in map(place, part):
            parents[number if leaf else -1 - number] = own
        return False, own

    place(nested)
    n = len(points)
    if sorted(points) != list(range(n)):
        raise ValueError(f"points must be 0 … {n - 1}, each once, found {sorted(points)}")
    top = [parents[point] + n if point in parents else -1 for point in range(n)]
    return Hierarchy(n, (*top, *(parents[-1 - node] + n if -1 - node in parents else -1 for node in range(inner))))


def two_pairs() -> Weights:
    """Points 0, 1 alike (.9), 2, 3 alike (.8), everything else .1."""
    full = np.full((4, 4), 0.1)
    full[0, 1] = full[1, 0] = 0.9
    full[2, 3] = full[3, 2] = 0.8
    return from_matrix(full)


def random_weights(n: int, rng: np.random.Generator) -> Weights:
    upper = np.triu(rng.random((n, n)), 1)
    return from_matrix(upper + upper.T)


def random_tree(n: int, rng: np.random.Generator) -> Nested:
    """Random multi-way trees, now and then with a unary node."""
    parts: list[Nested] = list(map(int, rng.permutation(n)))
    while len(parts) > 1:
        take = int(rng.integers(1, min(4, len(parts)) + 1))
        parts = [*parts[take:], tuple(parts[:take])]
    return parts[0]


def by_definition(tree: Hierarchy, weights: Weights) -> float:
    """Pair by pair, from the lowest common ancestor."""
    size, full, earned = sizes(tree), weights.matrix, 0.0
    for one, other in combinations(range(tree.n), 2):
        above, node = set(), one
        while node >= 0:
            above.add(node)
            node = tree.parents[node]
        node = other
        while node not in above:
            node = tree.parents[node]
        earned += full[one, other] * (tree.n - size[node])
    return earned


def all_binary(points: tuple[int, ...]) -> list[Nested]:
    if len(points) == 1:
        return [points[0]]
    first, rest = points[0], points[1:]
    found: list[Nested] = []
    for count in range(len(rest)):
        for beside in combinations(rest, count):
            others = tuple(point for point in rest if point not in beside)
            found += [(a, b) for a in all_binary((first, *beside)) for b in all_binary(others)]
    return found


@pytest.mark.parametrize(
    ("tree", "earned"),
    [(((0, 1), (2, 3)), 3.4), ((((0, 1), 2), 3), 2.0), ((((0, 2), 1), 3), 1.2), ((0, 1, 2, 3), 0.0)],
)
def test_four_points_earn_what_the_worked_example_says(tree: Nested, earned: float) -> None:
    assert revenue(hierarchy(tree), two_pairs()) == pytest.approx(earned)


def test_four_points_have_the_bound_and_the_optimum_of_the_worked_example() -> None:
    assert upper_bound(two_pairs()) == pytest.approx(4.2)
    assert optimum(two_pairs()) == pytest.approx(3.4)


@pytest.mark.parametrize(("order", "tree"), [((0, 1, 2, 3), (((0, 1), 2), 3)), ((0, 2, 1, 3), ((2, (0, 1)), 3))])
def test_otd_builds_the_trees_of_the_worked_example(order: tuple[int, ...], tree: Nested) -> None:
    made = otd(two_pairs(), order)
    assert clusters(made.tree) == clusters(hierarchy(tree))
    assert revenue(made.tree, two_pairs()) == pytest.approx(2.0)


@pytest.mark.parametrize(("n", "earned"), [(3, 0.3), (4, 1.2), (5, 3.0), (6, 6.0)])
def test_with_equal_similarities_every_binary_tree_earns_a_third_of_the_bound(n: int, earned: float) -> None:
    weights = from_matrix(np.full((n, n), 0.3))
    rng = np.random.default_rng(n)
    for tree in (otd(weights).tree, average_linkage(weights), random_binary(n, rng), random_binary(n, rng)):
        assert revenue(tree, weights) == pytest.approx(earned)
    assert optimum(weights) == pytest.approx(earned)
    assert upper_bound(weights) == pytest.approx(3 * earned)


def test_the_telescoped_sum_is_the_definition_on_random_multi_way_trees() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        n = int(rng.integers(2, 11))
        tree = hierarchy(random_tree(n, rng))
        vectors = rng.standard_normal((n, 4))
        for weights in (random_weights(n, rng), from_vectors(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))):
            assert revenue(tree, weights) == pytest.approx(by_definition(tree, weights), abs=1e-9)


def test_unary_nodes_change_nothing() -> None:
    assert revenue(hierarchy(((((0, 1),),), ((2, 3),))), two_pairs()) == pytest.approx(3.4)


def test_similarities_of_vectors_are_half_of_one_plus_the_cosine() -> None:
    weights = from_vectors(np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    assert weights.matrix == pytest.approx(np.array([[0, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0]]))
    assert weights.total == pytest.approx(1.0)


def test_binarising_never_lowers_revenue_and_leaves_binary_nodes() -> None:
    rng = np.random.default_rng(4)
    for _ in range(100):
        n = int(rng.integers(3, 11))
        weights, tree = random_weights(n, rng), hierarchy(random_tree(n, rng))
        made = binarised(tree, weights)
        assert max(map(len, made.children)) <= 2
        assert sorted(sizes(made))[-1] == n
        assert revenue(made, weights) >= revenue(tree, weights) - 1e-9
        # Every cluster of the tree is still one.
        assert clusters(tree) <= clusters(made)


def clusters(tree: Hierarchy) -> set[frozenset[int]]:
    below: dict[int, set[int]] = {node: {node} if node < tree.n else set() for node in range(len(tree.parents))}
    for point in range(tree.n):
        node = tree.parents[point]
        while node >= 0:
            below[node].add(point)
            node = tree.parents[node]
    return {frozenset(points) for points in below.values()}


def test_a_star_earns_something_once_it_is_binarised() -> None:
    assert revenue(binarised(hierarchy((0, 1, 2, 3)), two_pairs()), two_pairs()) == pytest.approx(2.0)


def test_scaled_similarities_scale_revenue_and_optimum() -> None:
    rng = np.random.default_rng(5)
    weights, tree = random_weights(6, rng), hierarchy(random_tree(6, rng))
    scaled = from_matrix(7 * weights.matrix)
    assert revenue(tree, scaled) == pytest.approx(7 * revenue(tree, weights))
    assert optimum(scaled) == pytest.approx(7 * optimum(weights))
    assert otd(scaled).beta == pytest.approx(otd(weights).beta)


def test_numbering_the_points_otherwise_changes_no_revenue() -> None:
    rng = np.random.default_rng(6)
    weights, tree = random_weights(7, rng), random_tree(7, rng)
    other = rng.permutation(7)

    def renamed(part: Nested) -> Nested:
        return tuple(map(renamed, part)) if isinstance(part, tuple) else int(other[part])

    back = np.argsort(other)
    moved = from_matrix(weights.matrix[np.ix_(back, back)])
    assert revenue(hierarchy(renamed(tree)), moved) == pytest.approx(revenue(hierarchy(tree), weights))
    assert optimum(moved) == pytest.approx(optimum(weights))


def test_average_linkage_earns_a_third_of_the_bound() -> None:
    rng = np.random.default_rng(7)
    for _ in range(100):
        weights = random_weights(int(rng.integers(3, 12)), rng)
        assert revenue(average_linkage(weights), weights) >= upper_bound(weights) / 3 - 1e-9


def test_the_search_finds_what_trying_every_tree_finds() -> None:
    trees = [hierarchy(tree) for tree in all_binary((0, 1, 2, 3, 4))]
    assert len(trees) == 105
    rng = np.random.default_rng(8)
    for _ in range(20):
        weights = random_weights(5, rng)
        assert optimum(weights) == pytest.approx(max(by_definition(tree, weights) for tree in trees))


def test_the_search_refuses_more_points_than_it_can_try() -> None:
    with pytest.raises(ValueError, match="at most 12"):
        optimum(random_weights(13, np.random.default_rng(0)))


@pytest.mark.slow
def test_otd_keeps_its_guarantee_on_random_instances_and_even_the_stronger_one() -> None:
    found = check_guarantee(400, np.random.default_rng(0))
    assert (found.below_optimum, found.below_bound) == (0, 0)
    assert 1.0 <= found.tightest < 1.2
    assert 0.4 < found.worst < 1.0
    assert found == check_guarantee(400, np.random.default_rng(0))


def test_at_a_tie_otd_goes_into_the_second_child() -> None:
    weights = from_matrix(np.array([[0, 0.1, 0.5], [0.1, 0, 0.5], [0.5, 0.5, 0]]))
    assert frozenset({1, 2}) in clusters(otd(weights).tree)
    assert frozenset({0, 2}) in clusters(otd(weights, [1, 0, 2]).tree)


def otd_by_definition(weights: Weights, order: list[int]) -> tuple[Nested, float]:
    """OTD as it is written down, with every mean taken over the matrix."""
    full = weights.matrix
    betas = [1.0]

    def points(part: Nested) -> list[int]:
        return [point for child in part for point in points(child)] if isinstance(part, tuple) else [part]

    def inside(part: Nested) -> float:
        return float(np.mean([full[a, b] for a, b in combinations(points(part), 2)]))

    def across(part: Nested, x: int) -> float:
        return float(np.mean([full[point, x] for point in points(part)]))

    def insert(part: Nested, x: int) -> Nested:
        if not isinstance(part, tuple) or inside(part) >= across(part, x):
            return (part, x)
        first, second = part if across(part[0], x) <= across(part[1], x) else part[::-1]
        if isinstance(first, tuple):
            betas.append(inside(first) / across(first, x))
        return (first, insert(second, x))

    tree: Nested = order[0]
    for x in order[1:]:
        tree = insert(tree, x)
    return tree, min(betas)


def test_cached_sums_give_the_trees_and_the_beta_of_plain_means() -> None:
    rng = np.random.default_rng(9)
    seen = set()
    for _ in range(60):
        weights = random_weights(9, rng)
        order = list(map(int, rng.permutation(9)))
        tree, beta = otd_by_definition(weights, order)
        made = otd(weights, order)
        assert clusters(made.tree) == clusters(hierarchy(tree))
        assert made.beta == pytest.approx(beta)
        seen.add(made.beta < 1)
    assert True in seen


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 3, 4]])
def test_an_order_that_is_no_permutation_is_refused(order: list[int]) -> None:
    with pytest.raises(ValueError, match="permutation of 4"):
        otd(two_pairs(), order)


@pytest.mark.parametrize("full", [np.ones((2, 3)), np.array([[0, 1.0], [2.0, 0]]), np.full((3, 3), -0.1)])
def test_similarities_that_are_none_are_refused(full: np.ndarray) -> None:
    with pytest.raises(ValueError, match="symmetric matrix without negative"):
        from_matrix(full)


def test_a_long_chain_is_no_deeper_than_python_goes() -> None:
    n = 1500
    angles = np.linspace(0, 0.5, n)
    weights = from_vectors(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    made = otd(weights)
    assert len(made.tree.parents) == 2 * n - 1
    assert revenue(made.tree, weights) >= made.beta / 3 * upper_bound(weights)


def dumped(parents: list[tuple[int, ...]], vectors: np.ndarray) -> Tree:
    count = len(parents)
    ids = tuple(f"n{number}" for number in range(count))
    empty = ((),) * count
    return Tree("case", ids, tuple(parents), (0,) * count, ("",) * count, ids, empty, vectors, True)


VECTORS = np.array([[1, 0], [0, 1], [0.6, 0.8], [0, 0], [0.8, 0.6]], dtype=np.float32)


def test_a_memory_s_tree_is_taken_over_its_leaves_in_the_order_given() -> None:
    """n3 is a summary above n0 and n1; n2 and n4 hang from the root that is not dumped."""
    tree = dumped([(3,), (3,), (), (), ()], VECTORS)
    found, vectors = leaf_hierarchy(tree, ["n4", "n0", "n2", "n1"])
    assert vectors.tolist() == VECTORS[[4, 0, 2, 1]].tolist()
    assert {frozenset(cluster) for cluster in clusters(found)} >= {frozenset({1, 3}), frozenset({0, 1, 2, 3})}


def test_the_report_says_what_each_tree_earned() -> None:
    tree, vectors = leaf_hierarchy(dumped([(3,), (3,), (), (), ()], VECTORS))
    weights = from_vectors(vectors)
    said = report(tree, weights, np.random.default_rng(0))
    assert list(said.earned) == ["observed", "binarised", "otd", "average linkage", "random binary", "optimum"]
    assert said.n == 4
    assert said.earned["observed"] == pytest.approx(2 * 0.5)
    assert said.earned["observed"] <= said.earned["binarised"] <= said.earned["optimum"] <= said.bound
    assert said.holds
    assert said.ratios["observed"] == pytest.approx(1.0 / said.bound)


def test_two_leaves_earn_nothing_and_have_no_ratio() -> None:
    said = report(hierarchy((0, 1)), from_vectors(VECTORS[:2]), np.random.default_rng(0))
    assert said.bound == 0
    assert set(said.ratios.values()) == {None}


@pytest.mark.parametrize(
    ("parents", "vectors", "why"),
    [
        ([(2, 3), (2,), (), ()], np.ones((4, 2), dtype=np.float32), "several parents"),
        ([(1,), ()], np.zeros((2, 2), dtype=np.float32), "no vector"),
        ([(1,), ()], np.zeros((2, 0), dtype=np.float32), "no vector"),
    ],
)
def test_structures_that_have_no_revenue_are_refused(
    parents: list[tuple[int, ...]], vectors: np.ndarray, why: str, tmp_path: Path
) -> None:
    tree = dumped(parents, vectors)
    with pytest.raises(ValueError, match=why):
        leaf_hierarchy(tree)
    assert re.match(f"no revenue: case: .*{why}", revenue_lines(tmp_path, [tree], seed=0)[0]), (
        "and the table names them"
    )
