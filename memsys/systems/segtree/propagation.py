"""Propagation of relevance along the edges of a tree: the scoring of SegTreeMem's Algorithm 2 (§4.3, Eq. 3-4).

A tree is an array of parent indices, so one step is a gather (top-down) or a scatter-add (bottom-up). This applies the paper's
propagation matrix (binary weights, column-normalised) without building it. Two choices that the paper leaves open are settings:
the treatment of negative cosines (`neg`), and of columns without an outgoing edge (`sink`). `sink="drop"` is the literal reading
and loses the mass of these columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np


def propagated(
    relevance: np.ndarray,
    parents: Sequence[int] | np.ndarray,
    *,
    policy: str,
    alpha: float,
    horizon: int,
    neg: str = "clip0",
    sink: str = "drop",
) -> np.ndarray:
    """Compute the final score of every node, float64 [n]: its relevance plus what reaches it in up to `horizon` steps.

    Args:
        relevance: cosine of the query with every node, [n].
        parents: index of every node's parent, [n]; -1 for a root.
        policy: `none`, `top_down` (a node divides its score equally among its children) or `bottom_up` (a node passes its score to
            its parent).
        alpha: decay per step, at least 0 and below 1.
        horizon: number of steps H; 0 gives collapsed retrieval.
        neg: treatment of negative cosines: `clip0`, `shift` ((1 + cos) / 2) or `softmax` over all nodes.
        sink: whether a node without an outgoing edge loses its score in a step (`drop`) or keeps it (`self_loop`).

    Raises:
        ValueError: an unknown choice, or alpha or horizon out of range.
    """
    check_propagation(policy, alpha, horizon, neg, sink)
    scores = total = NEGATIVES[neg](np.asarray(relevance, dtype=np.float64))
    if policy == "none" or not len(total):
        return total
    step = STEPS[policy](np.asarray(parents, dtype=np.intp), sink == "self_loop")
    for hop in range(1, horizon + 1):
        scores = step(scores)
        total = total + alpha**hop * scores
    result: np.ndarray = total / sum(alpha**hop for hop in range(horizon + 1))
    return result


def ranking(scores: np.ndarray, starts: Sequence[int], levels: Sequence[int]) -> np.ndarray:
    """Sort node indices by score, best first; ties go to the earlier start, then the lower level, then the lower index."""
    order: np.ndarray = np.lexsort((np.asarray(levels), np.asarray(starts), -scores))
    return order


def _clip0(relevance: np.ndarray) -> np.ndarray:
    return _shares(np.maximum(relevance, 0.0))


def _shift(relevance: np.ndarray) -> np.ndarray:
    return _shares((1.0 + relevance) / 2.0)


def _softmax(relevance: np.ndarray) -> np.ndarray:
    return _shares(np.exp(relevance - relevance.max(initial=0.0)))


def _shares(weights: np.ndarray) -> np.ndarray:
    """Divide the weights by their sum; return uniform shares when all weights are zero."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / max(1, len(weights)))


Step = Callable[[np.ndarray], np.ndarray]


def _top_down(parents: np.ndarray, self_loop: bool) -> Step:
    below = parents >= 0
    above = parents[below]
    children = np.bincount(above, minlength=len(parents))

    def step(scores: np.ndarray) -> np.ndarray:
        moved = np.where(children == 0, scores, 0.0) if self_loop else np.zeros(len(scores))
        moved[below] += scores[above] / children[above]
        return moved

    return step


def _bottom_up(parents: np.ndarray, self_loop: bool) -> Step:
    below = parents >= 0
    above = parents[below]

    def step(scores: np.ndarray) -> np.ndarray:
        moved = np.bincount(above, weights=scores[below], minlength=len(parents))
        return moved + np.where(below, 0.0, scores) if self_loop else moved

    return step


NEGATIVES: Mapping[str, Step] = {"clip0": _clip0, "shift": _shift, "softmax": _softmax}
STEPS: Mapping[str, Callable[[np.ndarray, bool], Step]] = {"top_down": _top_down, "bottom_up": _bottom_up}


def check_propagation(policy: str, alpha: float, horizon: int, neg: str, sink: str) -> None:
    """Check the settings of `propagated`.

    Raises:
        ValueError: an unknown choice, or alpha or horizon out of range.
    """
    for name, choice, known in (
        ("policy", policy, ("none", *STEPS)),
        ("neg", neg, tuple(NEGATIVES)),
        ("sink", sink, ("drop", "self_loop")),
    ):
        if choice not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, found {choice!r}")
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha must be at least 0 and below 1, found {alpha}")
    if horizon < 0:
        raise ValueError(f"horizon must be 0 or more, found {horizon}")
