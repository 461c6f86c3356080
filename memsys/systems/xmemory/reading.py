"""Reading xMemory: the read settings, the selection of statements and themes (Stage I), and the ranking of episodes (Stage II, §3.3).

Stage II asks a model how certain it is; `memsys.systems.xmemory.XMemory` makes these calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from memsys.settings import NotNegative, Positive, Settings, filled
from memsys.systems.nemori import Mode, NemoriStore
from memsys.systems.xmemory.themes import Neighbours, Partition
from memsys.vectors import best, cosines

_PATIENCE = ((3, 1), (10, 2))
"""(n, m): among the first n probed episodes, the search ends after m that are not admitted."""


@dataclass(frozen=True)
class XMemoryReading(Settings):
    """Settings of a read."""

    representatives: bool = True
    """Whether Stage I is on (Table 4)."""
    uncertainty: bool = True
    """Whether Stage II is on (Table 4)."""
    pool: Positive = 40
    """Number of most similar statements that Stage I starts from."""
    max_themes: Positive = 5
    """Maximum number of themes that Stage I selects."""
    max_statements: Positive = 20
    """Maximum number of statements that Stage I selects."""
    alpha: float = 0.7
    """Weight of coverage against similarity in Stage I (Eq. 4)."""
    episode_pool: NotNegative | None = None
    """Number of most similar episodes that are candidates in addition to those of the selected statements; None is the mode's."""
    beta: float = 0.5
    """Weight of the statements' support in an episode's priority."""
    support_over: Literal["selected", "all"] | None = None
    """Cosines that a statement's support is scaled by: those of the `selected` statements, or of `all` statements of the memory; None is
    the mode's."""
    probes: Positive = 10
    """Maximum number of episodes to probe."""
    max_episodes: Positive = 10
    """Maximum number of episodes to recall."""
    tau_include: float | None = None
    """An episode is admitted when it lowers the uncertainty by more than this, in nats; None is the mode's."""
    expansion: Literal["further", "same"] | None = None
    """The fall in uncertainty that decides on an episode's messages: the `further` fall that they bring, or the `same` as its own; None is
    the mode's."""
    tau_expand: float = 0.25
    """The messages are included when that fall exceeds this, in nats."""
    originals: int = 2
    """Without Stage II, the number of best episodes that include their messages."""

    def of(self, mode: Mode) -> XMemoryReading:
        """These settings with the mode's values in the place of None."""
        if mode == "paper":
            values = {"episode_pool": 0, "tau_include": 0.0, "expansion": "further", "support_over": "selected"}
        else:
            values = {"episode_pool": 10, "tau_include": -0.40, "expansion": "same", "support_over": "all"}
        return filled(self, values)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The four levels as one consolidation leaves them: messages and episodes and statements (`store`), and themes."""

    store: NemoriStore
    partition: Partition
    summaries: tuple[str, ...]
    """One per theme."""
    vectors: np.ndarray
    """Vectors of the summaries, float32 [K, d]."""
    theme_of: np.ndarray
    """Theme number of each statement, [n]."""
    theme_graph: Neighbours
    statement_graph: Neighbours


@dataclass(frozen=True, slots=True)
class Backbone:
    """The result of Stage I: statements with their cosines, and themes, in order of selection."""

    statements: tuple[tuple[int, float], ...]
    themes: tuple[int, ...]


def select_backbone(hierarchy: Hierarchy, query: np.ndarray, settings: XMemoryReading) -> Backbone:
    """Stage I: select themes among those of the most similar statements, then statements among these themes' members.

    Without Stage I, take the most similar statements, and their themes by similarity.
    """
    pool = hierarchy.store.statement_vectors.top(query, settings.pool)
    candidates = sorted({int(hierarchy.theme_of[index]) for index, _ in pool})
    similarities = cosines(hierarchy.vectors[candidates], query) if candidates else np.empty(0)
    if not settings.representatives:
        statements = tuple(pool[: settings.max_statements])
        occupied = {int(hierarchy.theme_of[index]) for index, _ in statements}
        order = [candidates[at] for at in best(similarities, len(candidates)) if candidates[at] in occupied]
        return Backbone(statements, tuple(order[: settings.max_themes]))
    weights = hierarchy.theme_graph.weights(candidates)
    selected = representatives(similarities, weights, settings.alpha, settings.max_themes)
    themes = [candidates[at] for at in selected]
    members = [(index, cosine) for index, cosine in pool if hierarchy.theme_of[index] in themes]
    weights = hierarchy.statement_graph.weights([index for index, _ in members])
    similarities = np.array([cosine for _, cosine in members])
    selected = representatives(similarities, weights, settings.alpha, settings.max_statements)
    return Backbone(tuple(members[at] for at in selected), tuple(themes))


def rank_episodes(
    hierarchy: Hierarchy, query: np.ndarray, backbone: Backbone, settings: XMemoryReading
) -> list[tuple[int, float]]:
    """Rank the episodes of the selected statements, and the most similar others, by priority: (episode, priority), best first."""
    store = hierarchy.store
    if not (settings.representatives or settings.uncertainty):
        return store.episode_vectors.top(query, settings.max_episodes)
    others = settings.episode_pool or 0
    similar = store.episode_vectors.top(query, others if backbone.statements else settings.max_episodes)
    support: dict[int, float] = {}
    selected = [cosine for _, cosine in backbone.statements]
    # The selected statements come first, so that the first of the scaled values are theirs.
    rest = store.statement_vectors.similarities(query) if settings.support_over == "all" and selected else ()
    scaled = minmax([*selected, *rest])[: len(selected)]
    for (index, _), score in zip(backbone.statements, scaled, strict=True):
        episode = store.statements[index].episode
        support[episode] = max(support.get(episode, 0.0), float(score))
    pool = sorted({*support, *(index for index, _ in similar)})
    similarities = minmax(cosines(store.episode_vectors.matrix[pool], query))
    priorities = similarities + settings.beta * np.array([support.get(index, 0.0) for index in pool])
    return [(pool[at], float(priorities[at])) for at in best(priorities, len(pool))]


def minmax(scores: Iterable[float] | np.ndarray) -> np.ndarray:
    """Scale scores to [0, 1], float64 [n]; equal scores all become 0.5 (as released)."""
    # Without rounding, noise between equal scores would be scaled up.
    values = np.round(np.asarray(scores, dtype=np.float64), 6)
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    scaled: np.ndarray = (values - low) / (high - low) if low < high else np.full(len(values), 0.5)
    return scaled


def representatives(similarities: np.ndarray, weights: np.ndarray, alpha: float, most: int) -> list[int]:
    """Select nodes greedily by `alpha` · newly covered weight + (1 - `alpha`) · similarity to the question (xMemory Eq. 4).

    Args:
        similarities: cosine of each node with the question, [m].
        weights: how much each node (row) covers each other (column), [m, m]; covered weight is a share of their sum.
        alpha: weight of coverage.
        most: maximum number of nodes to select.

    The selection ends when all nodes are covered, `most` are selected, or no node has a positive value. Ties go to the lower index.
    The target share of coverage, which the paper has as a parameter, is 1, as released.
    """
    relevance = (1 - alpha) * minmax(similarities)
    scale = alpha / weights.sum() if weights.size else 0.0
    uncovered, available = np.ones(len(relevance), dtype=bool), np.ones(len(relevance), dtype=bool)
    chosen: list[int] = []
    while uncovered.any() and len(chosen) < most:
        values = np.where(available, np.round(scale * weights[:, uncovered].sum(axis=1) + relevance, 9), -np.inf)
        node = int(np.argmax(values))
        if values[node] <= 0:
            break
        chosen.append(node)
        available[node] = False
        uncovered &= weights[node] == 0
    return chosen


def admitted(gains: Iterable[float], include: float, expand: float, most: int) -> list[tuple[int, bool]]:
    """Indices of the gains above `include`, each with whether it is above `expand`; no gain after the end is computed.

    The search ends after one rejected gain among the first three, after two among the first ten, or with `most` admitted.
    """
    accepted: list[tuple[int, bool]] = []
    rejected = 0
    for index, gain in enumerate(gains):
        if gain > include:
            accepted.append((index, gain > expand))
        else:
            rejected += 1
        if len(accepted) == most or any(index < probed and rejected >= limit for probed, limit in _PATIENCE):
            break
    return accepted
