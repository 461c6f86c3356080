"""Search in a LATTICE tree: the choice of nodes to expand, the slates shown to the model, and the ranking of nodes (§3.2 and §3.3)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from data_loaders.schema import Question
from memsys import lean
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, read_json
from memsys.llm.protocol import LLM, Request
from memsys.prompts import Option, Prompts
from memsys.settings import NotNegative, Positive, Settings
from memsys.systems.lattice.tree import LatticeNode, node_text
from memsys.tokens import count_tokens
from memsys.vectors import best

FLOOR = 0.09
"""In mode `code` a raw score up to this is a node's path relevance, whatever its parent's."""


@dataclass(frozen=True)
class SearchRules(Settings):
    """Settings of a search.

    Raises:
        ValueError: an unknown choice, or a number out of range.
    """

    mode: Literal["paper", "code"] = "paper"
    """`paper` or `code`, see the package; it changes the search only."""
    k: Positive = 10
    """Maximum number of items of a recall."""
    beam: Positive = 2
    """Nodes expanded in one step."""
    iterations: NotNegative = 20
    """Steps of a search; it ends early when every inner node is expanded."""
    alpha: float = 0.5
    """Weight of the parent's path relevance."""
    anchors: NotNegative = 10
    """Number of leaves that are rated again together with a node's children, if these are leaves."""
    slate_tokens: Positive = 30000
    """Maximum number of tokens of the texts in one slate; where they have more, all are cut to one length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, found {self.alpha}")


class Search:
    """The state of one search; `run` carries it out."""

    def __init__(
        self, llm: LLM, prompts: Prompts, rules: SearchRules, seed: int, question: Question, root: LatticeNode | None
    ) -> None:
        self._llm, self._prompts, self._rules = llm, prompts, rules
        self._seed = seed
        self.question = question
        self.frontier = [root] if root else []
        """Inner nodes that may be expanded."""
        self.expanded: list[LatticeNode] = []
        self.leaves: list[LatticeNode] = []
        """Rated leaves, in the order in which they were first rated."""
        self.path = {"root": 1.0}
        """Path relevance by node id."""
        self.parents: dict[str, LatticeNode] = {}
        self.depths = {"root": 0}
        self.slates: list[dict[str, float]] = []
        """Ratings in [0, 1] by node id, one dictionary per slate."""
        self.first_ratings: dict[str, float] = {}
        self.latent: dict[str, float] = {}
        """Calibrated scores by node id."""
        self.failed = 0
        """Nodes whose slate got no usable reply."""

    def run(self) -> None:
        """Expand the best `beam` nodes of the frontier in each step, one call per node."""
        for _ in range(self._rules.iterations):
            if not self.frontier:
                break
            order = best([self.path[node.id] for node in self.frontier], self._rules.beam)
            chosen = [self.frontier[place] for place in order]
            slates = [
                [*node.children, *self.anchors(node, len(self.expanded) + place)] for place, node in enumerate(chosen)
            ]
            for node, slate, slate_ratings in zip(chosen, slates, self._rate(slates), strict=True):
                self._expand(node, slate, slate_ratings)
            self._rescore()

    def anchors(self, node: LatticeNode, number: int) -> list[LatticeNode]:
        """Nodes rated before that are shown together with the children of `node`, so that slates can be calibrated.

        Args:
            node: the node to be expanded.
            number: how many nodes are expanded before it; with the question it seeds the draw of leaves.
        """
        if any(child.unit is None for child in node.children):
            return self._best_of_level(node)
        if len(self.leaves) <= self._rules.anchors:
            return list(self.leaves)
        paper = self._rules.mode == "paper"
        standing = self.path if paper else self.latent
        scores = np.array([standing[leaf.id] for leaf in self.leaves])
        weights = np.exp(scores) if paper else gated(scores)
        rng = np.random.default_rng((self._seed, zlib.crc32(self.question.id.encode()), number))
        drawn = rng.choice(len(scores), self._rules.anchors, replace=False, p=weights / weights.sum())
        return [self.leaves[place] for place in sorted(drawn)]

    def _best_of_level(self, node: LatticeNode) -> list[LatticeNode]:
        """The node with the highest path relevance among the siblings of `node`, or (release) among the expanded nodes of its level."""
        if node.id == "root":
            return []
        if self._rules.mode == "paper":
            rivals = [sibling for sibling in self.parents[node.id].children if sibling.id != node.id]
        else:
            rivals = [other for other in (*self.expanded, node) if self.depths[other.id] == self.depths[node.id]]
        return [rivals[place] for place in best([self.path[rival.id] for rival in rivals], 1)]

    def _rate(self, slates: Sequence[Sequence[LatticeNode]]) -> list[dict[int, float] | None]:
        """For each slate its ratings in [0, 1] by position; None where two replies were unusable."""
        requests = [self._request(slate) for slate in slates]
        rated: list[dict[int, float] | None] = [None] * len(slates)
        for retry in range(2):
            unrated = [place for place, slate_ratings in enumerate(rated) if slate_ratings is None]
            with meter.together():
                futures = [self._llm.submit(replace(requests[place], retry=retry)) for place in unrated]
                errors = [error for future in futures if (error := future.exception()) is not None]
            if errors:
                raise errors[0]
            for place, future in zip(unrated, futures, strict=True):
                reply = future.result()
                rated[place] = None if reply.stopped else ratings(reply.text, len(slates[place]))
                if rated[place] is None:
                    meter.count_parse_failure(requests[place].purpose)
        return rated

    def _request(self, slate: Sequence[LatticeNode]) -> Request:
        step = "navigate" if any(node.unit is None for node in slate) else "leaf"
        texts = [" ".join(node_text(node).split()) for node in slate]
        if sum(map(count_tokens, texts)) > self._rules.slate_tokens:
            meter.note("lattice.slate_cut")
            texts = fitted(texts, self._rules.slate_tokens)
        return self._prompts[f"lattice/{step}"].render(
            {
                "query": self.question.text,
                "now": self.question.time_text or "not known",
                "options": tuple(Option(str(place), text) for place, text in enumerate(texts)),
            }
        )

    def _expand(
        self, node: LatticeNode, slate: Sequence[LatticeNode], slate_ratings: Mapping[int, float] | None
    ) -> None:
        """Record the ratings of a node's slate and put its children on the frontier or among the leaves."""
        if slate_ratings is None:
            self.failed += 1
            meter.note("lattice.unrated_node")
            slate_ratings = {}
        children = len(node.children)
        self.slates.append(
            {
                rated.id: slate_ratings.get(place, 0.0)
                for place, rated in enumerate(slate)
                if place < children or place in slate_ratings
            }
        )
        self.frontier = [other for other in self.frontier if other.id != node.id]
        self.expanded.append(node)
        for place, child in enumerate(node.children):
            self.parents[child.id], self.depths[child.id] = node, self.depths[node.id] + 1
            self.first_ratings[child.id] = slate_ratings.get(place, 0.0)
            (self.frontier if child.unit is None else self.leaves).append(child)

    def _rescore(self) -> None:
        """Calibrate all ratings again and compute the path relevance of every node."""
        code, alpha = self._rules.mode == "code", self._rules.alpha
        self.latent = calibrated(self.slates)
        if code and (highest := max(self.latent.values(), default=0.0)) > 0:
            self.latent = {name: score / highest for name, score in self.latent.items()}
        leaves = {leaf.id for leaf in self.leaves}
        for name, parent in self.parents.items():  # parents come before their children
            raw = code and name not in leaves
            score = self.first_ratings[name] if raw else self.latent[name]
            mixed = alpha * self.path[parent.id] + (1 - alpha) * score
            self.path[name] = score if raw and score <= FLOOR else mixed


def ratings(text: str, count: int) -> dict[int, float] | None:
    """The ratings in a reply by position below `count`, scaled from 0–100 to [0, 1]; None where there are none.

    The key `relevance_scores` may be at any depth. Entries that are not pairs of numbers are dropped, scores are clamped, and of
    two ratings of one position the last counts.
    """
    by_place: dict[int, float] = {}
    value = read_json(text)
    for pairs in _values(value, "relevance_scores") if not isinstance(value, ParseFailure) else ():
        for pair in pairs if isinstance(pairs, list) else ():
            if isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair)):
                place, score = pair
                if isinstance(place, int) and 0 <= place < count:
                    by_place[place] = min(100.0, max(0.0, float(score))) / 100
    return by_place or None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(value: Any, key: str) -> Iterator[Any]:
    """The values of a key at every depth of a JSON value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            else:
                yield from _values(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, key)


def fitted(texts: Sequence[str], limit: int) -> list[str]:
    """Texts cut to a common length in characters, so that together they have at most `limit` tokens.

    The length is reduced in steps of 100 characters, but not below 100.
    """
    longest = max(map(len, texts), default=0)
    for length in range(min(longest, 4 * limit), 100, -100):
        cut = [text[:length] for text in texts]
        if sum(map(count_tokens, cut)) <= limit:
            return cut
    return [text[:100] for text in texts]


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
