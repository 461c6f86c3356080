"""RAPTOR: a tree of summaries over soft clusters of chunks, built offline (Sarthi et al., 2024; released code of March 2024).

The history is cut into chunks of about 100 tokens. For each layer, the vectors are reduced (UMAP) and clustered by a Gaussian mixture,
first globally and then within each cluster; BIC chooses the number of components. Every cluster is summarised into a node of the next
layer. A node may belong to several clusters. A recall compares the question with the nodes of all layers (collapsed), or descends from
the top layer (traversal).

A collapsed recall takes the nodes that fit into 2,000 tokens, as in the paper; the released code takes 10 nodes within 3,500 tokens
(the settings `raptor_code`). `mode="code"` reproduces the released code where it differs: its chunker loses punctuation, emits the
unfinished chunk after an over-long sentence, and may emit an empty chunk; it clusters an oversized cluster again without the settings
`dimension` and `threshold`; and it removes line breaks from whole units, too, before it embeds them.

Deviations and decisions:

- UMAP is seeded (it is not in the release). `reducer="pca"` is a light stand-in, to be named wherever its numbers are shown.
- A chunk stays within one session, and a turn's line break ends a sentence. In mode `paper`, a sentence ends at `.`, `!` or `?` followed
  by white space, and a piece that is still too long after splitting at commas is halved until it fits.
- Fewer than five nodes form one cluster. Reclustering stops after ten rounds, or when it changes nothing (the release crashes or does
  not end).
- A mixture has at most as many components as there are distinct points: more cannot fit better, and scikit-learn warns about each.
- If a summary is empty four times, the start of its members' texts replaces it (the release stores the exception).
- The budget counts an item as the reader sees it: its date in front, which the release does not have, takes part of the tokens.
- A traversal has no token limit, as released. Its selection by `threshold`, which is inverted in the release, is not offered.
- `consolidate` builds everything again with the units since the last build; a `read` uses the last build.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys import lean
from memsys.interface import Item, NodeView, Positive, Recall, Settings, dated, period_text, spoken, union
from memsys.llm.ask import ParseFailure, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.rebuilt import RebuiltMemory
from memsys.tokens import count_tokens, first_within, truncate
from memsys.vectors import Embedder, best, cosines, descent

Mode = Literal["paper", "code"]
_count: Callable[[str], int] = partial(count_tokens, encoding="cl100k_base")


@dataclass(frozen=True, slots=True)
class _Node:
    """A chunk (layer 0) or the summary of a cluster of nodes of the layer below."""

    id: str
    text: str
    layer: int
    children: tuple[int, ...]
    sources: tuple[str, ...]
    first: Unit
    last: Unit
    failed: bool = False
    """True when no summary could be parsed; the text is then the start of the children's texts."""


@dataclass(frozen=True, slots=True)
class _Tree:
    """The result of one build; the nodes of a layer have consecutive indices, which are rows of `vectors`."""

    nodes: tuple[_Node, ...] = ()
    vectors: np.ndarray | None = None
    layers: tuple[range, ...] = ()


@dataclass(frozen=True)
class RaptorSettings(Settings):
    mode: Mode = "paper"
    k: Positive | None = None
    """Maximum number of items, None for no limit. In a traversal, the most similar of the visited nodes are kept. The paper limits only
    the tokens, the released code takes 10."""
    max_tokens: Positive | None = 2000
    """Budget of a collapsed recall (cl100k tokens), None for no limit; the first node that would exceed it ends the recall. 2,000 in the
    paper (about 20 nodes), 3,500 in the released code."""
    retrieval: Literal["collapsed", "traversal"] = "collapsed"
    """`collapsed`, or `traversal`: the `traversal_k` best of a layer, then the best of their children."""
    traversal_k: Positive = 5
    """Number of nodes that a traversal keeps per layer."""
    start_layer: int | None = None
    """Layer in which a traversal starts; None is the top."""
    traversal_layers: Positive | None = None
    """Number of layers that a traversal visits; None is all."""
    chunk_tokens: Positive | None = 100
    """Size of the leaves in cl100k tokens; None makes every unit a leaf."""
    layers: Positive = 5
    """Maximum number of layers of summaries."""
    dimension: Positive = 10
    """Number of dimensions after the reduction; a layer of at most `dimension + 1` nodes is the last."""
    threshold: float = 0.1
    """Minimum posterior (exclusive) with which a node belongs to a component."""
    max_cluster_tokens: int = 3500
    """Length above which a cluster is clustered again."""
    max_components: int = 50
    """Exclusive upper limit of a mixture's number of components."""
    summary_tokens: Positive = 100
    """Length limit of a summary."""
    reducer: Literal["umap", "pca"] = "umap"
    """`umap`, or `pca` (the offline stand-in)."""
    seed: int = 224
    """Seed of UMAP and of the mixtures that BIC compares; 224 as released. The final mixture has seed 0."""


class Raptor(RebuiltMemory):
    """Recalls the nodes, chunks and summaries, that are most similar to the question, best first.

    Raises:
        ImportError: scikit-learn or umap-learn is not installed.
    """

    READ_KNOBS: ClassVar = ("k", "max_tokens", "retrieval", "traversal_k", "start_layer", "traversal_layers")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("raptor",)
    UNIT: ClassVar = {"rule": "utterance"}
    INDEPENDENT_CALLS: ClassVar = True
    PLANNED_WITH: ClassVar = {"reducer": "pca", "max_components": 12}

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: RaptorSettings = RaptorSettings()
    ) -> None:
        for package in ("sklearn", "umap") if settings.reducer == "umap" else ("sklearn",):
            if find_spec(package) is None:
                raise ImportError(f"RAPTOR needs {package}: pip install memsys-bench[cluster]")
        super().__init__()
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        released = Clustering(
            max_tokens=settings.max_cluster_tokens, max_components=settings.max_components, reducer=settings.reducer,
            seed=settings.seed,
        )  # fmt: skip
        self._clustering = replace(released, dimension=settings.dimension, threshold=settings.threshold)
        self._reclustering = released if settings.mode == "code" else self._clustering
        self._tree = _Tree()

    def read(self, question: Question) -> Recall:
        if self._tree.vectors is None:
            return Recall(())
        similarities = cosines(self._tree.vectors, self.embedder.embed([question.text], query=True)[0])
        if self.settings.retrieval == "traversal":
            nodes, layers, start = self._tree.nodes, self._tree.layers, self.settings.start_layer
            first = layers[-1] if start is None else layers[min(start, len(layers) - 1)]
            width, k, levels = self.settings.traversal_k, self.settings.k, self.settings.traversal_layers or math.inf
            chosen = descent(similarities, first, lambda index: nodes[index].children, width, k, levels)
        else:
            chosen = best(similarities, len(similarities) if self.settings.k is None else self.settings.k)
        items = (self._node_item(index, float(similarities[index])) for index in chosen)
        if self.settings.retrieval == "traversal" or self.settings.max_tokens is None:
            return Recall(tuple(items))
        return Recall(tuple(first_within(items, self.settings.max_tokens, lambda item: _count(item.text))))

    def nodes(self) -> Iterator[NodeView]:
        """Every node of the last build; `level` is its layer, `parents` are the summaries of its clusters."""
        tree = self._tree
        parents: dict[int, list[str]] = {}
        for node in tree.nodes:
            for child in node.children:
                parents.setdefault(child, []).append(node.id)
        for index, node in enumerate(tree.nodes):
            vector = None if tree.vectors is None else tree.vectors[index].copy()
            yield NodeView(
                node.id, tuple(parents.get(index, ())), node.layer, "summary" if node.layer else "leaf", node.text,
                vector, node.sources, node.first.time, node.last.time,
            )  # fmt: skip

    @property
    def held(self) -> int:
        return len(self._tree.nodes)

    def report(self) -> dict[str, Any]:
        """Shape of the last build; `unclustered` nodes are in no cluster, `oversized` clusters exceed `max_cluster_tokens`."""
        nodes, layers = self._tree.nodes, self._tree.layers
        clustered = {child for node in nodes for child in node.children}
        sizes = [sum(_count(nodes[child].text) for child in node.children) for node in nodes if node.layer]
        return {
            "reducer": self.settings.reducer,
            "nodes": len(nodes),
            "layers": [len(layer) for layer in layers],
            "unclustered": sum(index not in clustered for layer in layers[:-1] for index in layer),
            "oversized": sum(size > self._clustering.max_tokens for size in sizes),
            "failed_summaries": sum(node.failed for node in nodes),
        }

    def _build(self) -> None:
        """Build a tree of all units, layer by layer."""
        nodes = self._leaves()
        if not nodes:
            self._tree = _Tree()
            return
        keeps_lines = self.settings.chunk_tokens is None and self.settings.mode == "paper"
        vectors = self.embedder.embed([node.text if keeps_lines else _one_line(node.text) for node in nodes])
        layers = [range(len(nodes))]
        for _ in range(self.settings.layers):
            layer = layers[-1]
            if len(layer) <= self._clustering.dimension + 1:
                break
            tokens = np.array([_count(nodes[index].text) for index in layer])
            rows = clusters(vectors[layer.start :], tokens, self._clustering, self._reclustering)
            if not rows:
                break
            members = [tuple(layer[row] for row in cluster) for cluster in rows]
            summaries = self._summaries(nodes, members, len(layers))
            nodes += summaries
            vectors = np.concatenate([vectors, self.embedder.embed([_one_line(node.text) for node in summaries])])
            layers.append(range(layer.stop, len(nodes)))
        self._tree = _Tree(tuple(nodes), vectors, tuple(layers))

    def _leaves(self) -> list[_Node]:
        """Nodes of layer 0: the chunks of each session, or the units."""
        if self.settings.chunk_tokens is None:
            return [_Node(unit.id, unit.text, 0, (), unit.turn_ids, unit, unit) for unit in self._units]
        leaves: list[_Node] = []
        for _, session in itertools.groupby(self._units, key=lambda unit: unit.session_id):
            units = list(session)
            lines = [RaptorSentence(spoken(turn), turn.id) for unit in units for turn in unit.turns]
            for chunk in chunks(lines, self.settings.chunk_tokens, self.settings.mode):
                text = " ".join(sentence.text for sentence in chunk)
                sources = union((sentence.turn_id,) for sentence in chunk)
                leaves.append(_Node(f"chunk-{len(leaves)}", text, 0, (), sources, units[0], units[-1]))
        return leaves

    def _summaries(self, nodes: Sequence[_Node], members: Sequence[tuple[int, ...]], layer: int) -> list[_Node]:
        """Nodes of a layer: one summary for each cluster, given by the indices of its members."""
        prompt = replace(self.prompts["raptor/summarise"], max_tokens=self.settings.summary_tokens)
        texts = [[_one_line(nodes[index].text) for index in cluster] for cluster in members]
        asks = [(prompt, {"texts": parts, "context": "\n\n".join(parts)}) for parts in texts]
        summaries: list[_Node] = []
        replies = ask_all(self.llm, asks, retries=3, noted="raptor.truncated_members")
        for cluster, parts, reply in zip(members, texts, replies, strict=True):
            failed = isinstance(reply, ParseFailure)
            summaries.append(
                _Node(
                    f"node-{len(nodes) + len(summaries)}",
                    truncate(" ".join(parts), self.settings.summary_tokens, "cl100k_base") if failed else reply,
                    layer,
                    cluster,
                    union(nodes[index].sources for index in cluster),
                    min((nodes[index].first for index in cluster), key=_time),
                    max((nodes[index].last for index in reversed(cluster)), key=_time),
                    failed,
                )
            )
        return summaries

    def _node_item(self, index: int, score: float) -> Item:
        node = self._tree.nodes[index]
        text, kind = dated(node.text, period_text(node.first, node.last)), "summary" if node.layer else "leaf"
        return Item(node.id, text, score, node.sources, kind, node.layer)


def _time(unit: Unit) -> datetime:
    """The time of a unit; an unknown time is before all others."""
    return unit.time or datetime.min


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


@dataclass(frozen=True, slots=True)
class RaptorSentence:
    """A sentence of a turn, or a part of one."""

    text: str
    turn_id: str


def chunks(
    lines: Iterable[RaptorSentence], limit: int, mode: Mode = "paper", count: Callable[[str], int] = _count
) -> list[list[RaptorSentence]]:
    """Pack sentences in order into chunks of at most `limit` tokens; a sentence is counted with a leading space.

    Mode `code` reproduces the released chunker (see the module's description).
    """
    packed: list[list[RaptorSentence]] = []
    current: list[RaptorSentence] = []
    length = 0
    for line in lines:
        for sentence in _split(line, r"[.!?\n]" if mode == "code" else r"(?<=[.!?])\s+|\n+", mode):
            tokens = count(" " + sentence.text)
            if tokens > limit:
                if current and mode == "paper":
                    packed.append(current)
                    current, length = [], 0
                packed += _cut(sentence, limit, mode, count)
            elif length + tokens > limit:
                packed.append(current)
                current, length = [sentence], tokens
            else:
                current.append(sentence)
                length += tokens
    return [*packed, current] if current else packed


def _split(whole: RaptorSentence, pattern: str, mode: Mode) -> list[RaptorSentence]:
    """Split a sentence at a pattern and drop blank parts; mode `paper` strips the parts."""
    parts = [part for part in re.split(pattern, whole.text) if part.strip()]
    return [replace(whole, text=part if mode == "code" else part.strip()) for part in parts]


def _cut(sentence: RaptorSentence, limit: int, mode: Mode, count: Callable[[str], int]) -> list[list[RaptorSentence]]:
    """Split an over-long sentence at commas, semicolons and colons, and pack the parts into chunks."""
    parts = _split(sentence, r"[,;:]" if mode == "code" else r"(?<=[,;:])\s+", mode)
    if mode == "paper":
        parts = [replace(part, text=half) for part in parts for half in _halves(part.text, limit, count)]
    packed: list[list[RaptorSentence]] = [[]]
    length = 0
    for part in parts:
        tokens = count(" " + part.text)
        if length + tokens > limit:
            packed.append([])
            length = 0
        packed[-1].append(part)
        length += tokens
    return packed if mode == "code" else [chunk for chunk in packed if chunk]


def _halves(text: str, limit: int, count: Callable[[str], int]) -> list[str]:
    """Halve the text, if possible at a space, until every piece fits."""
    if len(text) < 2 or count(" " + text) <= limit:
        return [text]
    middle = text.rfind(" ", 1, len(text) // 2)
    middle = len(text) // 2 if middle < 0 else middle
    return [half for part in (text[:middle], text[middle:].strip()) if part for half in _halves(part, limit, count)]


@dataclass(frozen=True, slots=True)
class Clustering:
    """Settings of the clustering; the defaults are those of the release."""

    dimension: int = 10
    """Number of dimensions after the reduction."""
    threshold: float = 0.1
    """Minimum posterior (exclusive) with which a point belongs to a component."""
    max_tokens: int = 3500
    """Length above which a cluster is clustered again."""
    max_components: int = 50
    """Exclusive upper limit of a mixture's number of components."""
    reducer: Literal["umap", "pca"] = "umap"
    seed: int = 224


LEAST_VARIANCE = 1e-6
"""Added to the variances of a mixture, as by scikit-learn's default, which the release takes."""
_FEWEST = 5
"""Fewer nodes form a single cluster."""
_ROUNDS = 10
"""Number of times that an oversized cluster is clustered again."""


def clusters(
    vectors: np.ndarray, tokens: np.ndarray, settings: Clustering, reclustering: Clustering
) -> list[list[int]]:
    """Cluster the nodes of a layer; the clusters may overlap and may leave nodes out.

    Args:
        vectors: vectors of the nodes, [n, d], unit length.
        tokens: length of each node's text, [n].
        settings: settings of the first clustering.
        reclustering: settings with which an oversized cluster is clustered again.

    Returns:
        The row indices of each cluster.
    """
    with lean.one_core("sklearn.mixture", *(["umap"] if settings.reducer == "umap" else [])):
        from sklearn import config_context

        # Hundreds of fits of a few points each.
        with config_context(assume_finite=True, skip_parameter_validation=True):
            return _clusters(vectors, tokens, settings, reclustering, 0)


def _clusters(
    vectors: np.ndarray, tokens: np.ndarray, settings: Clustering, reclustering: Clustering, rounds: int
) -> list[list[int]]:
    if len(vectors) < _FEWEST:
        return [list(range(len(vectors)))]
    final: list[list[int]] = []
    for member in _memberships(vectors, settings):
        rows = np.flatnonzero(member)
        unchanged = len(rows) == len(vectors) and settings == reclustering
        if tokens[rows].sum() <= settings.max_tokens or rounds == _ROUNDS or len(rows) < _FEWEST or unchanged:
            final.append(rows.tolist())
        else:
            parts = _clusters(vectors[rows], tokens[rows], reclustering, reclustering, rounds + 1)
            final += [rows[part].tolist() for part in parts]
    return final


def _memberships(vectors: np.ndarray, settings: Clustering) -> list[np.ndarray]:
    """Membership of the rows in each local cluster, bool [n] each, in order of the global clusters; no cluster is empty."""
    count = len(vectors)
    _, identity = np.unique(vectors, axis=0, return_inverse=True)
    identity = identity.reshape(count)
    reduced = _reduced(vectors, settings, min(settings.dimension, count - 2), math.isqrt(count - 1))
    local_clusters: list[np.ndarray] = []
    for component in _mixture(reduced, settings).T:
        members = np.flatnonzero(component)
        if len(members) <= settings.dimension + 1:
            local_clusters.append(members)
        else:
            local = _mixture(_reduced(vectors[members], settings, settings.dimension, 10), settings)
            local_clusters += [members[inside] for inside in local.T]
    # Equal vectors belong to the same clusters, as in the release, which finds a cluster's rows by comparing vectors.
    return [np.isin(identity, identity[members]) for members in local_clusters if len(members)]


def _mixture(points: np.ndarray, settings: Clustering) -> np.ndarray:
    """Fit a Gaussian mixture with the number of components that BIC prefers; memberships, bool [n, components]."""
    from sklearn.mixture import GaussianMixture

    points = points.astype(np.float64)
    distinct = len(np.unique(points, axis=0))
    mixture = partial(GaussianMixture, reg_covar=LEAST_VARIANCE)
    best, lowest = 1, math.inf
    for size in range(1, max(2, min(settings.max_components, len(points), distinct + 1))):
        if _least_bic(points.shape, size) >= lowest:
            break
        bic = mixture(size, random_state=settings.seed).fit(points).bic(points)
        if bic < lowest:
            best, lowest = size, bic
    belongs: np.ndarray = mixture(best, random_state=0).fit(points).predict_proba(points) > settings.threshold
    return belongs


def _least_bic(shape: tuple[int, ...], components: int) -> float:
    """A lower bound of the BIC of every mixture of `components` on points of this shape, [n, d]; it grows with `components`.

    No density exceeds that of a component with the least variance at its mean. The release fits every size; the sizes that are left
    out here (half of the time for clusters of fifty points) cannot have the lowest BIC.
    """
    count, dimension = shape
    densest = -dimension / 2 * math.log(2 * math.pi * LEAST_VARIANCE)
    parameters = components * (dimension * (dimension + 1) / 2 + dimension + 1) - 1
    return parameters * math.log(count) - 2 * count * densest


def _reduced(vectors: np.ndarray, settings: Clustering, components: int, neighbours: int) -> np.ndarray:
    """Reduce vectors to `components` dimensions (PCA to fewer when their rank is lower)."""
    if settings.reducer == "pca":
        left, values, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
        projected: np.ndarray = left[:, :components] * values[:components]
        return projected
    reducer = lean.umap().UMAP(
        n_neighbors=min(neighbours, len(vectors) - 1),
        n_components=components,
        metric="cosine",
        random_state=settings.seed,
        n_jobs=1,
    )
    with _seeded_eigenvectors(settings.seed):
        reduced: np.ndarray = reducer.fit_transform(vectors)
    return reduced


@contextmanager
def _seeded_eigenvectors(seed: int) -> Iterator[None]:
    """Give SciPy's sparse eigenvectors this seed, so that UMAP's first layout of the same points is the same.

    UMAP passes its random state to everything but `eigsh`, whose restarts SciPy draws from fresh entropy since 1.17. Only one thread
    reduces at a time (`memsys.lean.one_core`).
    """
    from scipy.sparse import linalg

    plain = linalg.eigsh
    if "rng" in inspect.signature(plain).parameters:
        linalg.eigsh = partial(plain, rng=seed)  # type: ignore[assignment]
    try:
        yield
    finally:
        linalg.eigsh = plain
