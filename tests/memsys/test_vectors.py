from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from memsys.vectors import Vectors, best, normalised


def brute_force(scores: list[float], k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: max(k, 0)]


# Few distinct values, so that ties stand on the border of the top k again and again.
@pytest.mark.slow
@given(st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.25, 0.5, 1.0, float("-inf")]), max_size=60), st.integers(-1, 70))
def test_best_agrees_with_sorting_everything(scores: list[float], k: int) -> None:
    assert best(scores, k) == brute_force(scores, k)
    assert best(np.asarray(scores, dtype=np.float32), k) == brute_force(scores, k)


@pytest.mark.slow
@given(st.lists(st.floats(-1, 1, width=32), max_size=200), st.integers(0, 60))
def test_best_agrees_with_sorting_on_real_scores(scores: list[float], k: int) -> None:
    assert best(scores, k) == brute_force(scores, k)


def test_equal_scores_at_the_border_go_to_the_lower_index() -> None:
    assert best([0.5] * 100, 3) == [0, 1, 2]
    assert best([0.1] * 50 + [0.9] + [0.1] * 50, 3) == [50, 0, 1]


def test_rows_are_numbered_as_they_come_and_survive_growth() -> None:
    vectors, rows = Vectors(), np.eye(300, dtype=np.float32)
    assert [vectors.add(row) for row in rows] == list(range(300))
    assert len(vectors) == 300
    assert vectors.matrix.dtype == np.float32
    np.testing.assert_array_equal(vectors.matrix, rows)


def test_growing_copies_a_row_twice_on_average_at_most() -> None:
    vectors, copied, capacity = Vectors(), 0, 0
    for row in range(10_000):
        vectors.add(np.zeros(1, dtype=np.float32))
        if len(vectors._rows) != capacity:
            copied, capacity = copied + row, len(vectors._rows)
    assert copied <= 20_000


def test_the_top_rows_come_with_their_cosines() -> None:
    vectors = Vectors()
    for row in ([1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [1.0, 0.0]):
        vectors.add(np.asarray(row, dtype=np.float32))
    top = vectors.top(np.asarray([1.0, 0.0], dtype=np.float32), 3)
    assert [index for index, _ in top] == [0, 3, 1]
    assert [cosine for _, cosine in top] == pytest.approx([1.0, 1.0, 0.6])
    assert all(type(cosine) is float for _, cosine in top)


@pytest.mark.parametrize("dimension", [4, 256, 1536])
def test_equal_rows_come_in_their_order_wherever_they_stand(dimension: int) -> None:
    rng = np.random.default_rng(0)
    for size in range(2, 40):
        row, query = normalised(rng.normal(size=(2, dimension)).astype(np.float32))
        vectors = Vectors()
        for _ in range(size):
            vectors.add(row)
        assert [index for index, _ in vectors.top(query, size)] == list(range(size)), f"{size} rows"


def test_a_row_can_be_replaced_but_not_invented() -> None:
    vectors = Vectors()
    vectors.add(np.asarray([1.0, 0.0], dtype=np.float32))
    vectors.matrix[0] = np.asarray([0.0, 1.0], dtype=np.float32)
    assert vectors.top(np.asarray([0.0, 1.0], dtype=np.float32), 1) == [(0, 1.0)]
    with pytest.raises(IndexError):
        vectors.matrix[1] = np.asarray([0.0, 1.0], dtype=np.float32)


def test_an_empty_matrix_has_no_neighbours() -> None:
    vectors = Vectors()
    assert vectors.top(np.ones(3, dtype=np.float32), 5) == []
    assert len(vectors.similarities(np.ones(3, dtype=np.float32))) == 0
    assert len(vectors.matrix) == 0


def test_vectors_are_scaled_to_unit_length_and_zero_stays_zero() -> None:
    scaled = normalised(np.asarray([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32))
    np.testing.assert_allclose(scaled, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(normalised(np.asarray([0.0, -2.0])), [0.0, -1.0])


def test_matrix_products_of_tests_keep_to_one_core_as_those_of_commands_do() -> None:
    assert {library["num_threads"] for library in threadpool_info()} == {1}
