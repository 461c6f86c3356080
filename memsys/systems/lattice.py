"""LATTICE: best-first search in a semantic tree, each step a listwise rating by the model (Gupta et al., 2025, arXiv 2510.13217).

The leaves are units, inner nodes have generated descriptions. A step shows the children of a promising node, together with some nodes
rated before; their ratings in several such slates are calibrated against each other. The path relevance of a node mixes its own
calibrated score with its parent's. After a number of steps the leaves with the highest path relevance are recalled.

`mode="code"` follows the released search of October 2025 where it differs: the frontier is ordered by first raw scores, a score of at most
.09 stands alone, the score beside a branch's children is the best expanded node of its level, and re-rated leaves are drawn with weight
16^score above the valley of a two-component mixture. The released repository holds no tree construction.

Deviations and decisions:

- Offline: `consolidate` builds the tree anew from all units so far. Summaries of closed sessions are not updated in place.
- The last layer under the root is described too; as printed, it is not. A group of one leaf takes over that leaf's text, and a
  group of one inner node is that node.
- `branching` bounds the size of clusters (the appendix bounds their number). Clusters are spectral on cosine affinities; layers of
  more than 2,000 nodes, whose eigenvectors would take too long, are clustered by k-means. When more clusters come out than half the
  nodes, the nearest single ones are joined in pairs.
- Calibration is least squares in closed form in both modes: a rating is the node's score plus the slate's bias, biases sum to zero among
  connected slates, scores are clipped to [0, 1]. The paper takes 100 steps of Adam, the release 200 of AdamW from a random start.
  In mode `code` scores are then divided by their maximum, where that is positive, as released.
- Of a reply, bad pairs are dropped and scores clamped to 0–100; unusable twice, all children of the node score 0. An earlier find
  that a reply leaves out has no rating in that slate.
- Topics: labels in no topic go to the most similar one, chunks by time replace a single topic, and clustering an unreadable partition.
- The final reranking of the best hundred, optional in the paper, and the random number in each prompt are left out.
- Items come best first; the paper evaluates rankings only.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys import lean
from memsys.embed import Embedder
from memsys.interface import MemorySystem, NodeView, Recall, dated, known_mode, positive, union, unit_item
from memsys.llm import meter
from memsys.llm.ask import ask_all
from memsys.llm.parsing import ParseFailure, read_json
from memsys.llm.protocol import LLM, Request
from memsys.prompts import Option, Prompts
from memsys.tokens import count_tokens
from memsys.vectors import best, normalised

FLOOR = 0.09
"""In mode `code` a raw score up to this is a node's path score, whatever its parent's."""
_CHOICES = {
    "build": ("bottom_up", "top_down"),
    "init": ("session", "scratch"),
}
_SPECTRAL_LIMIT = 2000
_WORD_COUNTS = (2, 4, 6, 10, 15)


@dataclass(frozen=True, slots=True)
class _Node:
    """A unit, or a description of what lies below."""

    id: str
    text: str
    children: tuple[_Node, ...] = ()
    unit: Unit | None = None
    place: int = 0
    """Of a leaf: its place in the history."""

    def leaves(self) -> Iterator[_Node]:
        """The leaves below, or itself."""
        if self.unit is not None:
            yield self
        for child in self.children:
            yield from child.leaves()


@dataclass(slots=True)
class Search:
    """One search: what was rated, and how nodes stand."""

    frontier: list[_Node]
    path: dict[str, float]
    """Path relevance by node id; the root's is 1."""
    parents: dict[str, _Node] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    found: list[_Node] = field(default_factory=list)
    """Leaves, in the order in which they were first rated."""
    slates: list[dict[str, float]] = field(default_factory=list)
    """Ratings in [0, 1] by node id, one dictionary a slate."""
    first: dict[str, float] = field(default_factory=dict)
    """Each node's first rating."""
    latent: dict[str, float] = field(default_factory=dict)
    """Calibrated scores."""
    expanded: list[_Node] = field(default_factory=list)
    failed: int = 0


class Lattice(MemorySystem):
    """Recalls the `k` units with the highest path relevance among those that the search has rated, best first.

    Args:
        mode: see the module's description; it concerns the search only.
        k: at most so many items.
        beam: nodes expanded together in a step.
        iterations: steps of a search; it ends early when every node is expanded.
        alpha: weight of the parent's path relevance.
        anchors: earlier finds rated again beside the children of a node, when these are leaves.
        build: `bottom_up` describes clusters layer by layer; `top_down` splits by topics from five keywords of each unit.
        init: first layer of a bottom-up build: stretches of a `session` in order, or clusters of units from `scratch`.
        branching: most children of a node.
        slate_tokens: limit of the candidates' texts in one slate; longer texts are all cut shorter until they fit.
        partition_tokens: limit of the labels shown to partition a node.
        seed: of the clustering and of the draws of earlier finds; a draw depends on the question and the expansion only.

    Raises:
        ValueError: an unknown choice, or a number out of range.
        ImportError: scikit-learn is not installed.
    """

    READ_KNOBS: ClassVar = ("mode", "k", "beam", "iterations", "alpha", "anchors", "slate_tokens")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("lattice",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "ab_pair"}
    OFFLINE: ClassVar = True

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Literal["paper", "code"] = "paper",
        k: int = 10,
        beam: int = 2,
        iterations: int = 20,
        alpha: float = 0.5,
        anchors: int = 10,
        build: Literal["bottom_up", "top_down"] = "bottom_up",
        init: Literal["session", "scratch"] = "session",
        branching: int = 10,
        slate_tokens: int = 30000,
        partition_tokens: int = 8000,
        seed: int = 0,
    ) -> None:
        self.llm, self.embedder, self.prompts, self.mode = llm, embedder, prompts, known_mode(self, mode)
        self.k, self.beam, self.iterations = positive("k", k), positive("beam", beam), iterations
        self.alpha, self.anchors, self.build, self.init, self.branching = alpha, anchors, build, init, branching
        self.slate_tokens = positive("slate_tokens", slate_tokens)
        self.partition_tokens, self.seed = positive("partition_tokens", partition_tokens), seed
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, found {getattr(self, name)!r}")
        for name, least in (("iterations", 0), ("anchors", 0), ("branching", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, found {getattr(self, name)}")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, found {alpha}")
        if find_spec("sklearn") is None:
            raise ImportError("LATTICE needs sklearn: pip install memsys-bench[cluster]")
        self._units: list[Unit] = []
        self._root: _Node | None = None
        self._built = 0
        self._inner = 0
        self._fallbacks = 0

    def write(self, unit: Unit) -> None:
        self._units.append(unit)

    def consolidate(self) -> None:
        """Build the tree anew when units have come since the last build."""
        if self._built < len(self._units):
            self._inner = self._fallbacks = 0
            leaves = [_Node(unit.id, unit.text, (), unit, place) for place, unit in enumerate(self._units)]
            self._root = _Node(
                "root", "", self._topics(leaves) if self.build == "top_down" else self._from_leaves(leaves)
            )
            self._built = len(self._units)

    def read(self, question: Question) -> Recall:
        search = self.search(question)
        meter.note("lattice.leaves_scored", len(search.found))
        meter.note("lattice.leaves_held", self._built)
        ranked = sorted(search.found, key=lambda leaf: (-search.path[leaf.id], leaf.place))
        items = (unit_item(leaf.unit, search.path[leaf.id]) for leaf in ranked[: self.k] if leaf.unit)
        return Recall(tuple(items))

    def nodes(self) -> Iterator[NodeView]:
        """Every node but the root, parents before children; `level` is the height above the deepest leaf below."""
        queue: list[tuple[_Node, tuple[str, ...]]] = [
            (child, ()) for child in (self._root.children if self._root else ())
        ]
        for node, parents in queue:
            queue += [(child, (node.id,)) for child in node.children]
            units = [leaf.unit for leaf in node.leaves() if leaf.unit]
            times = [unit.time for unit in units if unit.time is not None]
            start, end = (min(times), max(times)) if times else (None, None)
            kind, sources = "leaf" if node.unit else "summary", union(unit.turn_ids for unit in units)
            yield NodeView(node.id, parents, _height(node), kind, node.text, None, sources, start, end)

    @property
    def held(self) -> int:
        return self._built

    def report(self) -> dict[str, Any]:
        """Shape of the last build; no description is stale at a read."""
        return {
            "policy": "rebuild",
            "leaves": self._built,
            "inner": self._inner,
            "root_children": len(self._root.children) if self._root else 0,
            "height": _height(self._root) if self._root else 0,
            "fallbacks": self._fallbacks,
        }

    # --- building ---

    def _from_leaves(self, leaves: Sequence[_Node]) -> tuple[_Node, ...]:
        """Bottom-up: at most `branching` nodes that have all leaves below them."""
        if self.init == "scratch":
            return self._layers(self._clustered(leaves))
        sessions = itertools.groupby(leaves, key=lambda leaf: leaf.unit.session_id if leaf.unit else "")
        return self._layers([chunk for _, session in sessions for chunk in self._chunks(list(session))])

    def _layers(self, groups: Sequence[Sequence[_Node]]) -> tuple[_Node, ...]:
        layer = self._described(groups)
        while len(layer) > self.branching:
            layer = self._described(self._clustered(layer))
        return tuple(layer)

    def _chunks(self, nodes: Sequence[_Node]) -> list[Sequence[_Node]]:
        return [nodes[first : first + self.branching] for first in range(0, len(nodes), self.branching)]

    def _clustered(self, nodes: Sequence[_Node]) -> list[list[_Node]]:
        vectors = self.embedder.embed([node.text for node in nodes])
        return [[nodes[row] for row in group] for group in clusters(vectors, self.branching, self.seed)]

    def _described(self, groups: Sequence[Sequence[_Node]]) -> list[_Node]:
        several = [group for group in groups if len(group) > 1]
        texts = [tuple(Option(str(at), _line(child)) for at, child in enumerate(group)) for group in several]
        values = ask_all(self.llm, [(self.prompts["lattice/describe"], {"texts": each}) for each in texts])
        made = iter([self._description(value, group) for value, group in zip(values, several, strict=True)])
        return [
            self._inner_node(next(made), group)
            if len(group) > 1
            else (self._inner_node(_line(group[0]), group) if group[0].unit else group[0])
            for group in groups
        ]

    def _description(self, value: Any, group: Sequence[_Node]) -> str:
        reply: Mapping[str, Any] = {} if isinstance(value, ParseFailure) else value
        if summary := str(reply.get("summary", "")).strip():
            return summary
        self._fallbacks += 1
        meter.note("lattice.pieced_description")
        lines = [str(child.get("line", "")).strip() for child in reply.get("children", ())]
        return " ".join(filter(None, lines)) or " ".join(_first_sentence(child.text) for child in group)

    def _inner_node(self, text: str, children: Sequence[_Node]) -> _Node:
        self._inner += 1
        return _Node(f"node-{self._inner - 1}", text, tuple(children))

    def _topics(self, leaves: Sequence[_Node]) -> tuple[_Node, ...]:
        """Top-down: the children of the root."""
        prompt = self.prompts["lattice/keywords"]
        values = ask_all(self.llm, [(prompt, {"text": _line(leaf)}) for leaf in leaves])
        labels: dict[str, list[str]] = {}
        for leaf, value in zip(leaves, values, strict=True):
            words = leaf.text.casefold().split()
            if isinstance(value, ParseFailure):
                self._fallbacks += 1
                meter.note("lattice.first_words")
                labels[leaf.id] = [" ".join(words[:count]) for count in _WORD_COUNTS]
            else:
                labels[leaf.id] = [" ".join(label.split()).casefold() for label in value["keywords"]]
        return self._split(leaves, labels)

    def _split(self, leaves: Sequence[_Node], labels: Mapping[str, Sequence[str]]) -> tuple[_Node, ...]:
        if len(leaves) <= self.branching:
            return tuple(leaves)
        level = next((level for level in range(len(_WORD_COUNTS)) if self._splits(leaves, labels, level)), None)
        if level is None:
            return self._layers(self._chunks(leaves))
        own = [labels[leaf.id][level] for leaf in leaves]
        counted = [f"{label} ({count})" for label, count in Counter(own).items()]
        fields = {"texts": tuple(counted), "least": 2, "most": self.branching}
        value = ask_all(self.llm, [(self.prompts["lattice/partition"], fields)], retries=1)[0]
        if isinstance(value, ParseFailure):
            self._fallbacks += 1
            meter.note("lattice.clustered_instead")
            return self._layers(self._clustered(leaves))
        topics = value["clusters"][: self.branching]
        members = self._members(leaves, own, topics)
        if len(members) < 2:
            return self._layers(self._chunks(leaves))
        return tuple(
            self._inner_node(topics[topic]["description"].strip() or topics[topic]["name"], self._split(inside, labels))
            for topic, inside in sorted(members.items())
        )

    def _splits(self, leaves: Sequence[_Node], labels: Mapping[str, Sequence[str]], level: int) -> bool:
        distinct = {labels[leaf.id][level] for leaf in leaves}
        return len(distinct) > self.branching and sum(map(count_tokens, distinct)) <= self.partition_tokens

    def _members(
        self, leaves: Sequence[_Node], own: Sequence[str], topics: Sequence[Mapping[str, Any]]
    ) -> dict[int, list[_Node]]:
        """Topic number -> its leaves, by their labels; topics without leaves are absent."""
        told: dict[str, int] = {}
        for number, topic in enumerate(topics):
            for label in topic["keywords"]:
                told.setdefault(" ".join(label.split()).casefold(), number)
        unknown = list(dict.fromkeys(label for label in own if label not in told))
        if unknown:
            titles = self.embedder.embed([f"{topic['name']}: {topic['description']}" for topic in topics])
            nearest = np.argmax(self.embedder.embed(unknown) @ titles.T, axis=1)
            told |= {label: int(number) for label, number in zip(unknown, nearest, strict=True)}
        members: dict[int, list[_Node]] = {}
        for leaf, label in zip(leaves, own, strict=True):
            members.setdefault(told[label], []).append(leaf)
        return members

    # --- searching ---

    def search(self, question: Question) -> Search:
        """The search for one question in the tree of the last build."""
        search = Search([self._root] if self._root else [], {"root": 1.0}, depths={"root": 0})
        for _ in range(self.iterations):
            if not search.frontier:
                break
            order = best([search.path[node.id] for node in search.frontier], self.beam)
            chosen = [search.frontier[at] for at in order]
            slates = [
                [*node.children, *self._anchors(search, node, question, len(search.expanded) + at)]
                for at, node in enumerate(chosen)
            ]
            for node, slate, scores in zip(chosen, slates, self._rated(question, slates), strict=True):
                self._expand(search, node, slate, scores)
            self._rescore(search)
        return search

    def _anchors(self, search: Search, node: _Node, question: Question, number: int) -> list[_Node]:
        """Nodes rated before that are shown beside the children of a node, to compare slates by."""
        if any(child.unit is None for child in node.children):
            if node.id == "root":
                return []
            level = (
                search.parents[node.id].children
                if self.mode == "paper"
                else [each for each in (*search.expanded, node) if search.depths[each.id] == search.depths[node.id]]
            )
            rivals = [each for each in level if self.mode == "code" or each.id != node.id]
            return [rivals[at] for at in best([search.path[each.id] for each in rivals], 1)]
        if len(search.found) <= self.anchors:
            return list(search.found)
        standing = search.path if self.mode == "paper" else search.latent
        scores = np.array([standing[leaf.id] for leaf in search.found])
        weights = np.exp(scores) if self.mode == "paper" else gated(scores)
        rng = np.random.default_rng((self.seed, zlib.crc32(question.id.encode()), number))
        drawn = rng.choice(len(scores), self.anchors, replace=False, p=weights / weights.sum())
        return [search.found[at] for at in sorted(drawn)]

    def _rated(self, question: Question, slates: Sequence[Sequence[_Node]]) -> list[dict[int, float] | None]:
        """For each slate the ratings by position, in [0, 1]; None where two replies were unusable."""
        requests = [self._request(question, slate) for slate in slates]
        rated: list[dict[int, float] | None] = [None] * len(slates)
        for retry in range(2):
            open_ = [at for at, ratings in enumerate(rated) if ratings is None]
            with meter.together():
                futures = [self.llm.submit(replace(requests[at], retry=retry)) for at in open_]
                errors = [error for future in futures if (error := future.exception()) is not None]
            if errors:
                raise errors[0]
            for at, future in zip(open_, futures, strict=True):
                reply = future.result()
                rated[at] = None if reply.stopped else ratings(reply.text, len(slates[at]))
                if rated[at] is None:
                    meter.count_parse_failure(requests[at].purpose)
        return rated

    def _request(self, question: Question, slate: Sequence[_Node]) -> Request:
        step = "navigate" if any(node.unit is None for node in slate) else "leaf"
        texts = [" ".join(_line(node).split()) for node in slate]
        if sum(map(count_tokens, texts)) > self.slate_tokens:
            meter.note("lattice.slate_cut")
            texts = fitted(texts, self.slate_tokens)
        return self.prompts[f"lattice/{step}"].render(
            {
                "query": question.text,
                "now": question.time_text or "not known",
                "options": tuple(Option(str(at), text) for at, text in enumerate(texts)),
            }
        )

    def _expand(self, search: Search, node: _Node, slate: Sequence[_Node], scores: Mapping[int, float] | None) -> None:
        if scores is None:
            search.failed += 1
            meter.note("lattice.unrated_node")
        children = len(node.children)
        search.slates.append(
            {
                each.id: (scores or {}).get(at, 0.0)
                for at, each in enumerate(slate)
                if at < children or at in (scores or {})
            }
        )
        search.frontier = [each for each in search.frontier if each.id != node.id]
        search.expanded.append(node)
        for at, child in enumerate(node.children):
            search.parents[child.id], search.depths[child.id] = node, search.depths[node.id] + 1
            search.first[child.id] = (scores or {}).get(at, 0.0)
            (search.frontier if child.unit is None else search.found).append(child)

    def _rescore(self, search: Search) -> None:
        """Calibrate all ratings anew, and from them the path relevance of every node."""
        search.latent = calibrated(search.slates)
        if self.mode == "code" and (highest := max(search.latent.values(), default=0.0)) > 0:
            search.latent = {name: score / highest for name, score in search.latent.items()}
        leaves = {leaf.id for leaf in search.found}
        for name, parent in search.parents.items():  # parents come before their children
            raw = self.mode == "code" and name not in leaves
            score = search.first[name] if raw else search.latent[name]
            above = search.path[parent.id]
            search.path[name] = score if raw and score <= FLOOR else self.alpha * above + (1 - self.alpha) * score


def calibrated(slates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each node's score in [0, 1] such that score + bias of the slate comes closest to all ratings (least squares).

    The biases of slates that are connected by common nodes sum to zero.
    """
    rated: dict[str, list[tuple[int, float]]] = {}
    for number, slate in enumerate(slates):
        for name, score in slate.items():
            rated.setdefault(name, []).append((number, score))
    # With the scores eliminated, the biases solve a Laplacian system, whose solution of least norm has the sums of zero.
    laplacian, right = np.zeros((len(slates), len(slates))), np.zeros(len(slates))
    for pairs in rated.values():
        rows = np.array([number for number, _ in pairs])
        scores = np.array([score for _, score in pairs])
        laplacian[np.ix_(rows, rows)] += np.eye(len(rows)) - 1 / len(rows)
        right[rows] += scores - scores.mean()
    biases = np.linalg.lstsq(laplacian, right, rcond=1e-9)[0]
    means = {name: math.fsum(score - biases[at] for at, score in pairs) / len(pairs) for name, pairs in rated.items()}
    # Rounded, so that scores which are equal on paper tie.
    return {name: round(min(1.0, max(0.0, float(score))), 9) for name, score in means.items()}


def gated(scores: np.ndarray) -> np.ndarray:
    """Weights 16^score, but 10⁻⁴ below the valley between the two components of a Gaussian mixture over the scores; [n]."""
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


def ratings(text: str, count: int) -> dict[int, float] | None:
    """The ratings in a reply by position below `count`, scaled from 0–100 to [0, 1]; None when it holds none.

    The key is looked for at any depth; pairs that are none are dropped, scores clamped, and of duplicates the last counts.
    """
    found: dict[int, float] = {}
    value = read_json(text)
    for pairs in _values(value, "relevance_scores") if not isinstance(value, ParseFailure) else ():
        for pair in pairs if isinstance(pairs, list) else ():
            if isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair)):
                place, score = pair
                if isinstance(place, int) and 0 <= place < count:
                    found[place] = min(100.0, max(0.0, float(score))) / 100
    return found or None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(value: Any, key: str) -> Iterator[Any]:
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
    """Texts cut to a common length in characters, 100 fewer each time until they hold at most `limit` tokens (or 100 characters each)."""
    longest = max(map(len, texts), default=0)
    for cap in range(min(longest, 4 * limit), 100, -100):
        cut = [text[:cap] for text in texts]
        if sum(map(count_tokens, cut)) <= limit:
            return cut
    return [text[:100] for text in texts]


def clusters(vectors: np.ndarray, limit: int, seed: int) -> list[list[int]]:
    """Rows in clusters of at most `limit`, at most half as many as there are rows (rounded up); ordered by their first rows."""
    found = sorted(_divided(vectors, np.arange(len(vectors)), limit, seed))
    surplus = len(found) - math.ceil(len(vectors) / 2)
    while surplus > 0:
        singles = [group[0] for group in found if len(group) == 1]
        likeness = vectors[singles] @ vectors[singles].T
        np.fill_diagonal(likeness, -np.inf)
        first, second = sorted(singles[at] for at in np.unravel_index(np.argmax(likeness), likeness.shape))
        found = sorted([*(group for group in found if group not in ([first], [second])), [first, second]])
        surplus -= 1
    return found


def _divided(vectors: np.ndarray, rows: np.ndarray, limit: int, seed: int) -> list[list[int]]:
    if len(rows) <= limit:
        return [rows.tolist()]
    labels = _labels(vectors[rows], min(limit, math.ceil(len(rows) / limit)), seed)
    parts = [rows[labels == label] for label in np.unique(labels)]
    if len(parts) == 1:
        parts = [rows[first : first + limit] for first in range(0, len(rows), limit)]
    return [group for part in parts for group in _divided(vectors, part, limit, seed)]


def _labels(vectors: np.ndarray, count: int, seed: int) -> np.ndarray:
    """A cluster number for each vector: seeded k-means on the leading eigenvectors of the normalised affinity."""
    with lean.one_core("sklearn.cluster"):
        return _labelled(vectors.astype(np.float64), count, seed)


def _labelled(points: np.ndarray, count: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    if len(points) <= _SPECTRAL_LIMIT:
        affinity = np.maximum(points @ points.T, 0.0)
        degrees = affinity.sum(axis=1)
        scale = np.where(degrees > 0, 1 / np.sqrt(np.where(degrees > 0, degrees, 1)), 0.0)
        _, eigenvectors = np.linalg.eigh(scale[:, None] * affinity * scale)
        points = normalised(eigenvectors[:, -count:])
    distinct = len(np.unique(points.round(8), axis=0))
    labels: np.ndarray = KMeans(min(count, distinct), n_init=4, random_state=seed).fit_predict(points)
    return labels


def _line(node: _Node) -> str:
    return dated(node.text, node.unit.time_text) if node.unit else node.text


def _height(node: _Node) -> int:
    return 1 + max(map(_height, node.children)) if node.children else 0


def _first_sentence(text: str) -> str:
    head = text.split("\n", 1)[0]
    return head[: head.find(". ") + 1] or head
