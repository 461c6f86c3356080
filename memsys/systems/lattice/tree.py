"""The semantic tree of LATTICE: its nodes, and its construction bottom-up (clusters) or top-down (topics)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from data_loaders.schema import Unit
from memsys import lean
from memsys.embed import Embedder
from memsys.interface import dated
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.settings import Positive, Settings
from memsys.tokens import count_tokens
from memsys.vectors import normalised

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
        return " ".join(filter(None, lines)) or " ".join(_first_sentence(child.text) for child in group)

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


def _first_sentence(text: str) -> str:
    line = text.split("\n", 1)[0]
    return line[: line.find(". ") + 1] or line


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
    """A cluster number for each vector, int [n]: seeded k-means on the leading eigenvectors of the normalised cosine affinity."""
    with lean.one_core("sklearn.cluster"):
        from sklearn.cluster import KMeans

        points = vectors.astype(np.float64)
        if len(points) <= _SPECTRAL_LIMIT:
            points = _spectral(points, count)
        distinct = len(np.unique(points.round(8), axis=0))
        labels: np.ndarray = KMeans(min(count, distinct), n_init=4, random_state=seed).fit_predict(points)
        return labels


def _spectral(points: np.ndarray, count: int) -> np.ndarray:
    """The `count` leading eigenvectors of the normalised affinity as unit-length rows, float64 [n, count]."""
    affinity = np.maximum(points @ points.T, 0.0)
    degrees = affinity.sum(axis=1)
    scale = np.where(degrees > 0, 1 / np.sqrt(np.where(degrees > 0, degrees, 1)), 0.0)
    _, eigenvectors = np.linalg.eigh(scale[:, None] * affinity * scale)
    return normalised(eigenvectors[:, -count:])
