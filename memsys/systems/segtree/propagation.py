"""Relevance spread over a tree for a finite number of steps: the scoring of SegTreeMem's Algorithm 2 (§4.3, Eq. 3-4).

A tree is given by each node's parent, so one step is a gather (top-down) or a scatter-add (bottom-up): the propagation matrix of
the paper (binary weights, column-normalised) is applied without ever being built. What the paper leaves open is a choice here:
negative cosines (`neg`) and columns without an outgoing edge (`sink`); with `sink="drop"`, the literal reading, their mass is lost.
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
    """Final score of every node, float64 [n]: its own relevance plus what reaches it along the tree in up to `horizon` steps.

    Args:
        relevance: cosine of the query with every node, [n].
        parents: index of every node's parent, [n]; -1 for a root.
        policy: `none`, `top_down` (a node shares its score equally among its children) or `bottom_up` (it passes it to its parent).
        alpha: decay of a step, at least 0 and below 1.
        horizon: number of steps H; 0 gives collapsed retrieval.
        neg: what becomes of negative cosines: `clip0`, `shift` ((1 + cos) / 2) or `softmax` over all nodes.
        sink: a node that can pass nothing on loses its score in a step (`drop`) or keeps it (`self_loop`).

    Raises:
        ValueError: an unknown choice, or alpha or horizon out of range.
    """
    _check(policy, alpha, horizon, neg, sink)
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
    """Node indices by score, best first; equal scores by earlier start, then lower level, then lower index."""
    order: np.ndarray = np.lexsort((np.asarray(levels), np.asarray(starts), -scores))
    return order


def _clip0(relevance: np.ndarray) -> np.ndarray:
    return _shares(np.maximum(relevance, 0.0))


def _shift(relevance: np.ndarray) -> np.ndarray:
    return _shares((1.0 + relevance) / 2.0)


def _softmax(relevance: np.ndarray) -> np.ndarray:
    return _shares(np.exp(relevance - relevance.max(initial=0.0)))


def _shares(weights: np.ndarray) -> np.ndarray:
    """Weights as shares of their sum; uniform when all are zero."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / max(1, len(weights)))


Step = Callable[[np.ndarray], np.ndarray]


def _top_down(parents: np.ndarray, keep: bool) -> Step:
    below = parents >= 0
    above = parents[below]
    children = np.bincount(above, minlength=len(parents))

    def step(scores: np.ndarray) -> np.ndarray:
        moved = np.where(children == 0, scores, 0.0) if keep else np.zeros(len(scores))
        moved[below] += scores[above] / children[above]
        return moved

    return step


def _bottom_up(parents: np.ndarray, keep: bool) -> Step:
    below = parents >= 0
    above = parents[below]

    def step(scores: np.ndarray) -> np.ndarray:
        moved = np.bincount(above, weights=scores[below], minlength=len(parents))
        return moved + np.where(below, 0.0, scores) if keep else moved

    return step


NEGATIVES: Mapping[str, Step] = {"clip0": _clip0, "shift": _shift, "softmax": _softmax}
STEPS: Mapping[str, Callable[[np.ndarray, bool], Step]] = {"top_down": _top_down, "bottom_up": _bottom_up}


def _check(policy: str, alpha: float, horizon: int, neg: str, sink: str) -> None:
    for name, found, known in (
        ("policy", policy, ("none", *STEPS)),
        ("neg", neg, tuple(NEGATIVES)),
        ("sink", sink, ("drop", "self_loop")),
    ):
        if found not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, found {found!r}")
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha must be at least 0 and below 1, found {alpha}")
    if horizon < 0:
        raise ValueError(f"horizon must be 0 or more, found {horizon}")
