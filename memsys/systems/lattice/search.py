"""A LATTICE tree with its descriptions and clusters of bounded size, and the search in it: the choice of nodes to expand, the slates that
the model is shown, scores from the ratings of several slates, and the ranking of nodes (§3.2 and §3.3).
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from data_loaders.schema import Question, Unit
from memsys import lean
from memsys.interface import NotNegative, Positive, Settings, Share, dated
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask_all, read_json
from memsys.llm.protocol import LLM, Completion
from memsys.prompts import Option, Prompt, Prompts
from memsys.tokens import count_tokens
from memsys.vectors import Embedder, best, normalised

_WORD_COUNTS = (2, 4, 6, 10, 15)
"""Words of the five labels of a unit, from the broadest to the finest."""


@dataclass(frozen=True, slots=True)
class LatticeNode:
    """A leaf (a unit), or an inner node with a description of its descendants."""

    id: str
    text: str
    children: tuple[LatticeNode, ...] = ()
    unit: Unit | None = None
    """The unit of a leaf; None for an inner node."""
    place: int = 0
    """The place of a leaf in the history."""

    def leaves(self) -> Iterator[LatticeNode]:
        """All leaves below the node; a leaf yields itself."""
        if self.unit is not None:
            yield self
        for child in self.children:
            yield from child.leaves()


def node_text(node: LatticeNode) -> str:
    """A node's text as prompts show it: a leaf has its time in front."""
    return dated(node.text, node.unit.time_text) if node.unit else node.text


def height(node: LatticeNode) -> int:
    """The number of edges to the deepest leaf below."""
    return 1 + max(map(height, node.children)) if node.children else 0


@dataclass(frozen=True)
class LatticeBuild(Settings):
    """Settings of a build."""

    build: Literal["bottom_up", "top_down"] = "bottom_up"
    """`bottom_up` describes clusters layer by layer; `top_down` splits by topics, from five labels of each unit."""
    init: Literal["session", "scratch"] = "session"
    """First layer of a bottom-up build: the units of a `session` in order, or clusters of all units (`scratch`)."""
    branching: Annotated[int, Ge(2)] = 10
    """Maximum number of children of a node."""
    partition_tokens: Positive = 8000
    """Maximum number of tokens of the labels that are shown to partition a node."""
    seed: int = 0
    """Seed of the clustering and of the draws of leaves; a draw depends on the question and the step only."""


class TreeBuilder:
    """Builds one tree. `inner` counts its inner nodes, `fallbacks` the replies that could not be used."""

    def __init__(self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: LatticeBuild) -> None:
        self._llm, self._embedder, self._prompts, self._settings = llm, embedder, prompts, settings
        self.inner = 0
        self.fallbacks = 0

    def bottom_up(self, leaves: Sequence[LatticeNode]) -> tuple[LatticeNode, ...]:
        """The root's children, built from layers of clusters.

        The first layer groups the leaves of a session in order, or clusters all leaves (`init`).
        """
        if self._settings.init == "scratch":
            return self._layers(self._clustered(leaves))
        sessions = itertools.groupby(leaves, key=lambda leaf: leaf.unit.session_id if leaf.unit else "")
        return self._layers([chunk for _, session in sessions for chunk in self._chunks(list(session))])

    def top_down(self, leaves: Sequence[LatticeNode]) -> tuple[LatticeNode, ...]:
        """The root's children, built by splitting the leaves into topics: five labels for each leaf, one call each."""
        prompt = self._prompts["lattice/keywords"]
        replies = ask_all(self._llm, [(prompt, {"text": node_text(leaf)}) for leaf in leaves])
        labels: dict[str, list[str]] = {}
        for leaf, reply in zip(leaves, replies, strict=True):
            if isinstance(reply, ParseFailure):
                self._count_fallback("first_words")
                words = leaf.text.casefold().split()
                labels[leaf.id] = [" ".join(words[:count]) for count in _WORD_COUNTS]
            else:
                labels[leaf.id] = [_normal(label) for label in reply["keywords"]]
        return self._split(leaves, labels)

    def _count_fallback(self, name: str) -> None:
        self.fallbacks += 1
        meter.note(f"lattice.{name}")

    def _inner_node(self, text: str, children: Sequence[LatticeNode]) -> LatticeNode:
        self.inner += 1
        return LatticeNode(f"node-{self.inner - 1}", text, tuple(children))

    def _layers(self, groups: Sequence[Sequence[LatticeNode]]) -> tuple[LatticeNode, ...]:
        """Describe the groups, then clusters of the nodes so made, until at most `branching` nodes are left."""
        layer = self._describe(groups)
        while len(layer) > self._settings.branching:
            layer = self._describe(self._clustered(layer))
        return tuple(layer)

    def _chunks(self, nodes: Sequence[LatticeNode]) -> list[Sequence[LatticeNode]]:
        return [
            nodes[first : first + self._settings.branching] for first in range(0, len(nodes), self._settings.branching)
        ]

    def _clustered(self, nodes: Sequence[LatticeNode]) -> list[list[LatticeNode]]:
        vectors = self._embedder.embed([node.text for node in nodes])
        return [
            [nodes[row] for row in group] for group in clusters(vectors, self._settings.branching, self._settings.seed)
        ]

    def _describe(self, groups: Sequence[Sequence[LatticeNode]]) -> list[LatticeNode]:
        """One node per group. A model describes groups of several nodes; a single inner node is its own group's node."""
        several = [group for group in groups if len(group) > 1]
        texts = [tuple(Option(str(place), node_text(child)) for place, child in enumerate(group)) for group in several]
        replies = ask_all(self._llm, [(self._prompts["lattice/describe"], {"texts": options}) for options in texts])
        descriptions = iter(
            [self._description(reply, group) for reply, group in zip(replies, several, strict=True)]
        )  # fmt: skip
        nodes = []
        for group in groups:
            if len(group) > 1:
                nodes.append(self._inner_node(next(descriptions), group))
            elif group[0].unit:
                nodes.append(self._inner_node(node_text(group[0]), group))
            else:
                nodes.append(group[0])
        return nodes

    def _description(self, reply: Any, group: Sequence[LatticeNode]) -> str:
        """The summary in a reply; else its lines about the children; else the first sentence of each child."""
        fields: Mapping[str, Any] = {} if isinstance(reply, ParseFailure) else reply
        if summary := str(fields.get("summary", "")).strip():
            return summary
        self._count_fallback("pieced_description")
        lines = [str(child.get("line", "")).strip() for child in fields.get("children", ())]
        firsts = [child.text.split("\n", 1)[0] for child in group]
        return " ".join(filter(None, lines)) or " ".join(line[: line.find(". ") + 1] or line for line in firsts)

    def _split(self, leaves: Sequence[LatticeNode], labels: Mapping[str, Sequence[str]]) -> tuple[LatticeNode, ...]:
        """The leaves as children, or topics over them where there are more than `branching`.

        Args:
            labels: five labels by leaf id, from the broadest to the finest.
        """
        if len(leaves) <= self._settings.branching:
            return tuple(leaves)
        level = next((level for level in range(len(_WORD_COUNTS)) if self._splits(leaves, labels, level)), None)
        if level is None:
            return self._layers(self._chunks(leaves))
        leaf_labels = [labels[leaf.id][level] for leaf in leaves]
        counted = [f"{label} ({count})" for label, count in Counter(leaf_labels).items()]
        fields = {"texts": tuple(counted), "least": 2, "most": self._settings.branching}
        reply = ask_all(self._llm, [(self._prompts["lattice/partition"], fields)], retries=1)[0]
        if isinstance(reply, ParseFailure):
            self._count_fallback("clustered_instead")
            return self._layers(self._clustered(leaves))
        topics = reply["clusters"][: self._settings.branching]
        members = self._members(leaves, leaf_labels, topics)
        if len(members) < 2:
            return self._layers(self._chunks(leaves))
        return tuple(
            self._inner_node(
                topics[number]["description"].strip() or topics[number]["name"], self._split(members[number], labels)
            )
            for number in sorted(members)
        )

    def _splits(self, leaves: Sequence[LatticeNode], labels: Mapping[str, Sequence[str]], level: int) -> bool:
        """Whether the labels of a level are enough to split by, and few enough for one prompt."""
        distinct = {labels[leaf.id][level] for leaf in leaves}
        return (
            len(distinct) > self._settings.branching
            and sum(map(count_tokens, distinct)) <= self._settings.partition_tokens
        )

    def _members(
        self, leaves: Sequence[LatticeNode], leaf_labels: Sequence[str], topics: Sequence[Mapping[str, Any]]
    ) -> dict[int, list[LatticeNode]]:
        """Leaves by topic number. A label that is in no topic goes to the most similar one; topics without leaves are absent."""
        topic_of: dict[str, int] = {}
        for number, topic in enumerate(topics):
            for label in topic["keywords"]:
                topic_of.setdefault(_normal(label), number)
        unassigned = list(dict.fromkeys(label for label in leaf_labels if label not in topic_of))
        if unassigned:
            titles = self._embedder.embed([f"{topic['name']}: {topic['description']}" for topic in topics])
            nearest = np.argmax(self._embedder.embed(unassigned) @ titles.T, axis=1)
            topic_of |= {label: int(number) for label, number in zip(unassigned, nearest, strict=True)}
        members: dict[int, list[LatticeNode]] = {}
        for leaf, label in zip(leaves, leaf_labels, strict=True):
            members.setdefault(topic_of[label], []).append(leaf)
        return members


def _normal(label: str) -> str:
    """A label in lower case with single spaces."""
    return " ".join(label.split()).casefold()


_SPECTRAL_LIMIT = 2000
"""Maximum number of vectors that are clustered by eigenvectors; more would take too long."""


def clusters(vectors: np.ndarray, limit: int, seed: int) -> list[list[int]]:
    """Rows of `vectors` in clusters, ordered by their first rows.

    A cluster has at most `limit` rows. There are at most half as many clusters as rows, rounded up: until then the two most similar
    single rows are joined.

    Args:
        vectors: float32 [n, d], unit length.
    """
    groups = sorted(_divided(vectors, np.arange(len(vectors)), limit, seed))
    surplus = len(groups) - math.ceil(len(vectors) / 2)
    while surplus > 0:
        singles = [group[0] for group in groups if len(group) == 1]
        similarities = vectors[singles] @ vectors[singles].T
        np.fill_diagonal(similarities, -np.inf)
        most_similar = np.unravel_index(np.argmax(similarities), similarities.shape)
        first, second = sorted(singles[place] for place in most_similar)
        groups = sorted([*(group for group in groups if group not in ([first], [second])), [first, second]])
        surplus -= 1
    return groups


def _divided(vectors: np.ndarray, rows: np.ndarray, limit: int, seed: int) -> list[list[int]]:
    """The rows, clustered again and again until no cluster has more than `limit`."""
    if len(rows) <= limit:
        return [rows.tolist()]
    labels = _labels(vectors[rows], min(limit, math.ceil(len(rows) / limit)), seed)
    parts = [rows[labels == label] for label in np.unique(labels)]
    if len(parts) == 1:
        parts = [rows[first : first + limit] for first in range(0, len(rows), limit)]
    return [group for part in parts for group in _divided(vectors, part, limit, seed)]


def _labels(vectors: np.ndarray, count: int, seed: int) -> np.ndarray:
    """A cluster number for each vector, int [n]: seeded k-means on the `count` leading eigenvectors of the normalised cosine affinity."""
    with lean.one_core("sklearn.cluster"):
        from sklearn.cluster import KMeans

        points = vectors.astype(np.float64)
        if len(points) <= _SPECTRAL_LIMIT:
            affinity = np.maximum(points @ points.T, 0.0)
            degrees = affinity.sum(axis=1)
            scale = np.where(degrees > 0, 1 / np.sqrt(np.where(degrees > 0, degrees, 1)), 0.0)
            _, eigenvectors = np.linalg.eigh(scale[:, None] * affinity * scale)
            points = normalised(eigenvectors[:, -count:])
        distinct = len(np.unique(points.round(8), axis=0))
        labels: np.ndarray = KMeans(min(count, distinct), n_init=4, random_state=seed).fit_predict(points)
        return labels


FLOOR = 0.09
"""In mode `code` a raw score up to this is a node's path relevance, whatever its parent's."""


@dataclass(frozen=True)
class SearchRules(Settings):
    """Settings of a search."""

    mode: Literal["paper", "code"] = "paper"
    """`paper` or `code`, see the package; it changes the search only."""
    k: Positive = 10
    """Maximum number of items of a recall."""
    beam: Positive = 2
    """Nodes expanded in one step."""
    iterations: NotNegative = 20
    """Steps of a search; it ends early when every inner node is expanded."""
    alpha: Share = 0.5
    """Weight of the parent's path relevance."""
    anchors: NotNegative = 10
    """Number of leaves that are rated again together with a node's children, if these are leaves."""
    slate_tokens: Positive = 30000
    """Maximum number of tokens of the texts in one slate; where they have more, all are cut to one length."""


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
            asks = [self._asked(slate) for slate in slates]
            rated = ask_all(self._llm, asks, retries=1, noted="lattice.unrated_node", read=_read_ratings)
            for node, slate, slate_ratings in zip(chosen, slates, rated, strict=True):
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

    def _asked(self, slate: Sequence[LatticeNode]) -> tuple[Prompt, dict[str, Any]]:
        """The prompt that rates a slate, and its fields."""
        step = "navigate" if any(node.unit is None for node in slate) else "leaf"
        texts = [" ".join(node_text(node).split()) for node in slate]
        if sum(map(count_tokens, texts)) > self._rules.slate_tokens:
            meter.note("lattice.slate_cut")
            texts = fitted(texts, self._rules.slate_tokens)
        return self._prompts[f"lattice/{step}"], {
            "query": self.question.text,
            "now": self.question.time_text or "not known",
            "options": tuple(Option(str(place), text) for place, text in enumerate(texts)),
        }

    def _expand(
        self, node: LatticeNode, slate: Sequence[LatticeNode], slate_ratings: Mapping[int, float] | ParseFailure
    ) -> None:
        """Record the ratings of a node's slate and put its children on the frontier or among the leaves."""
        if isinstance(slate_ratings, ParseFailure):
            self.failed += 1
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


def _read_ratings(reply: Completion, prompt: Prompt, fields: Mapping[str, Any]) -> dict[int, float] | ParseFailure:
    """The ratings in [0, 1] of a slate's nodes by position."""
    found = None if reply.stopped else ratings(reply.text, len(fields["options"]))
    return found or ParseFailure(reply.text, "no ratings", reply.stopped)


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
