"""Scores from the ratings of several slates (LATTICE §3.3), and the weights with which the release draws leaves to rate again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from memsys import lean


def calibrated(slates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The latent score of every rated node, in [0, 1], by node id.

    The model is: rating = score of the node + bias of the slate. Scores and biases minimise the squared error over all ratings. The biases
    of slates that share nodes, directly or through other slates, sum to zero.

    Args:
        slates: ratings in [0, 1] by node id, one mapping per slate.
    """
    ratings: dict[str, list[tuple[int, float]]] = {}
    for number, slate in enumerate(slates):
        for name, rating in slate.items():
            ratings.setdefault(name, []).append((number, rating))
    # With the scores eliminated, the biases solve a Laplacian system. Its solution of least norm has the sums of zero.
    laplacian, right = np.zeros((len(slates), len(slates))), np.zeros(len(slates))
    for pairs in ratings.values():
        rows = np.array([number for number, _ in pairs])
        values = np.array([rating for _, rating in pairs])
        laplacian[np.ix_(rows, rows)] += np.eye(len(rows)) - 1 / len(rows)
        right[rows] += values - values.mean()
    biases = np.linalg.lstsq(laplacian, right, rcond=1e-9)[0]
    scores = {
        name: math.fsum(rating - biases[number] for number, rating in pairs) / len(pairs)
        for name, pairs in ratings.items()
    }
    # Rounding makes scores tie that are equal in exact arithmetic.
    return {name: round(min(1.0, max(0.0, float(score))), 9) for name, score in scores.items()}


def gated(scores: np.ndarray) -> np.ndarray:
    """Sampling weights of the release, float64 [n]: 16^score, but 10⁻⁴ for scores below the valley of a Gaussian mixture.

    The mixture has two components and is fitted to the scores; the valley is the point of lowest density between their means.
    """
    weights: np.ndarray = 16.0**scores
    if len(np.unique(scores)) < 2:
        return weights
    with lean.one_core("sklearn.mixture"):
        from sklearn.mixture import GaussianMixture

        mixture = GaussianMixture(2, random_state=0).fit(scores[:, None])
        low, high = sorted(map(float, mixture.means_.ravel()))
        grid = np.linspace(low, high, 201)
        valley = grid[np.argmin(mixture.score_samples(grid[:, None]))]
    return np.where(scores < valley, 1e-4, weights)
