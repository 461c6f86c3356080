"""RAPTOR: a tree of summaries over soft clusters of chunks, built offline (Sarthi et al., 2024; released code of March 2024).

The history is cut into chunks of about 100 tokens. Layer by layer, the vectors are reduced (UMAP), grouped by a Gaussian mixture whose size
BIC chooses, first globally and then within each group, and every group is summarised into a node of the next layer. A node may belong to
several groups. A recall compares the question with the nodes of all layers at once, or goes down from the top.

A collapsed recall takes what 2,000 tokens hold, as in the paper; the released code takes 10 nodes within 3,500 tokens, which is the row
`raptor_code`. `mode="code"` reproduces the released code where it differs: its chunker loses punctuation, emits a chunk being filled
after an over-long sentence and may emit an empty one; reclustering a group that is too long forgets `dimension` and `threshold`; line
breaks are removed from whole units too before they are embedded.

Deviations and decisions:

- UMAP is seeded (it is not in the release); `reducer="pca"` is a light stand-in that must be named wherever its numbers are shown.
- A chunk stays within one session, and a turn's line break ends a sentence. In mode `paper` a sentence ends at `.`, `!` or `?` followed by
  white space, and what is still too long after splitting at commas is halved until it fits.
- Fewer than five nodes are one group, and reclustering stops after ten rounds or where it changes nothing (the release crashes or does
  not end).
- A mixture has no more components than there are distinct points: more could only fit worse, and scikit-learn warns about each.
- A summary that comes back empty four times is the start of its members' texts (the release stores the exception).
- A traversal has no token limit, as released; its `threshold` selection, which is inverted in the release, is not offered.
- New units wait for the next `consolidate`, which builds everything anew; a `read` before it sees the last build.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask_all
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.raptor.clustering import Clustering, clusters
from memsys.tokens import count_tokens, truncate
from memsys.vectors import best

Mode = Literal["paper", "code"]
_CHOICES = {"reducer": ("umap", "pca"), "retrieval": ("collapsed", "traversal")}
_count: Callable[[str], int] = partial(count_tokens, encoding="cl100k_base")


@dataclass(frozen=True, slots=True)
class _Node:
    """A chunk (layer 0) or the summary of a group of nodes of the layer below."""

    id: str
    text: str
    layer: int
    children: tuple[int, ...]
    sources: tuple[str, ...]
    first: Unit
    last: Unit
    failed: bool = False
    """The summary could not be had: the text is the start of the children's."""


@dataclass(frozen=True, slots=True)
class _Tree:
    """One build; nodes of a layer have consecutive numbers, which are rows of `vectors`."""

    nodes: tuple[_Node, ...] = ()
    vectors: np.ndarray | None = None
    layers: tuple[range, ...] = ()


class Raptor(MemorySystem):
    """Recalls the nodes, chunks and summaries alike, that are most similar to the question, best first.

    Args:
        k: at most so many items, None for no limit. In a traversal the most similar of the visited nodes are kept. The paper has no limit
            beside the tokens, the released code 10.
        max_tokens: budget of a collapsed recall (cl100k tokens), None for no limit; the first node that would exceed it ends the recall.
            2,000 in the paper (about 20 nodes), 3,500 in the released code.
        retrieval: `collapsed`, or `traversal`: the `traversal_k` best of a layer, then the best of their children.
        start_layer, traversal_layers: where a traversal starts (None = the top) and how many layers it visits (None = all).
        chunk_tokens: size of the leaves in cl100k tokens; None makes every unit a leaf.
        layers: at most so many layers of summaries.
        dimension: components that vectors are reduced to; a layer of at most `dimension + 1` nodes is the last.
        threshold: a node belongs to every component whose posterior exceeds it.
        max_cluster_tokens: a longer group is clustered again.
        max_components: the mixture has fewer components than this.
        summary_tokens: length limit of a summary.
        reducer: `umap`, or `pca` (the offline stand-in).
        seed: of UMAP and of the mixtures that BIC compares; 224 as released. The final mixture has seed 0.

    Raises:
        ValueError: an unknown choice, or a number below 1.
        ImportError: scikit-learn or umap-learn is not installed.
    """

    READ_KNOBS: ClassVar = ("k", "max_tokens", "retrieval", "traversal_k", "start_layer", "traversal_layers")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("raptor",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "utterance"}
    OFFLINE: ClassVar = True

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Mode = "paper",
        k: int | None = None,
        max_tokens: int | None = 2000,
        retrieval: Literal["collapsed", "traversal"] = "collapsed",
        traversal_k: int = 5,
        start_layer: int | None = None,
        traversal_layers: int | None = None,
        chunk_tokens: int | None = 100,
        layers: int = 5,
        dimension: int = 10,
        threshold: float = 0.1,
        max_cluster_tokens: int = 3500,
        max_components: int = 50,
        summary_tokens: int = 100,
        reducer: Literal["umap", "pca"] = "umap",
        seed: int = 224,
    ) -> None:
        self.llm, self.embedder, self.prompts, self.reducer = llm, embedder, prompts, reducer
        self.mode = known_mode(self, mode)
        self.k, self.max_tokens, self.retrieval = k, max_tokens, retrieval
        self.traversal_k, self.start_layer, self.traversal_layers = traversal_k, start_layer, traversal_layers
        self.chunk_tokens, self.layers, self.summary_tokens = chunk_tokens, layers, summary_tokens
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, found {getattr(self, name)!r}")
        for name in ("k", "max_tokens", "traversal_k", "traversal_layers", "chunk_tokens", "layers", "summary_tokens"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        positive("dimension", dimension)
        for package in ("sklearn", "umap") if reducer == "umap" else ("sklearn",):
            if find_spec(package) is None:
                raise ImportError(f"RAPTOR needs {package}: pip install memsys-bench[cluster]")
        defaults = Clustering(max_tokens=max_cluster_tokens, max_components=max_components, reducer=reducer, seed=seed)
        self._clustering = replace(defaults, dimension=dimension, threshold=threshold)
        self._reclustering = defaults if mode == "code" else self._clustering
        self._units: list[Unit] = []
        self._built = 0
        self._tree = _Tree()

    def write(self, unit: Unit) -> None:
        self._units.append(unit)

    def consolidate(self) -> None:
        """Build the tree anew when units have come since the last build."""
        if self._built < len(self._units):
            self._tree = self._build()
            self._built = len(self._units)

    def read(self, question: Question) -> Recall:
        if self._tree.vectors is None:
            return Recall(())
        similarities = self._tree.vectors @ self.embedder.embed([question.text], query=True)[0]
        chosen = {"collapsed": self._collapsed, "traversal": self._traversal}[self.retrieval](similarities)
        items = (self._item(index, float(similarities[index])) for index in chosen)
        return Recall(tuple(items if self.retrieval == "traversal" else _until_full(items, self.max_tokens)))

    def nodes(self) -> Iterator[NodeView]:
        """Every node of the last build; `level` is its layer, `parents` are the summaries of the groups that it is in."""
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
        """Shape of the last build; `unclustered` nodes are in no group, `oversized` groups are longer than the limit."""
        nodes, layers = self._tree.nodes, self._tree.layers
        grouped = {child for node in nodes for child in node.children}
        sizes = [sum(_count(nodes[child].text) for child in node.children) for node in nodes if node.layer]
        return {
            "reducer": self.reducer,
            "nodes": len(nodes),
            "layers": [len(layer) for layer in layers],
            "unclustered": sum(index not in grouped for layer in layers[:-1] for index in layer),
            "oversized": sum(size > self._clustering.max_tokens for size in sizes),
            "failed_summaries": sum(node.failed for node in nodes),
        }

    def _build(self) -> _Tree:
        nodes = self._leaves()
        if not nodes:
            return _Tree()
        as_written = self.chunk_tokens is None and self.mode == "paper"
        vectors = self.embedder.embed([node.text if as_written else _flat(node.text) for node in nodes])
        layers = [range(len(nodes))]
        for _ in range(self.layers):
            layer = layers[-1]
            if len(layer) <= self._clustering.dimension + 1:
                break
            tokens = np.array([_count(nodes[index].text) for index in layer])
            groups = clusters(vectors[layer.start :], tokens, self._clustering, self._reclustering)
            if not groups:
                break
            members = [tuple(layer[position] for position in group) for group in groups]
            summaries = self._summaries(nodes, members, len(layers))
            nodes += summaries
            vectors = np.concatenate([vectors, self.embedder.embed([_flat(node.text) for node in summaries])])
            layers.append(range(layer.stop, len(nodes)))
        return _Tree(tuple(nodes), vectors, tuple(layers))

    def _leaves(self) -> list[_Node]:
        if self.chunk_tokens is None:
            return [_Node(unit.id, unit.text, 0, (), unit.turn_ids, unit, unit) for unit in self._units]
        leaves: list[_Node] = []
        for _, group in itertools.groupby(self._units, key=lambda unit: unit.session_id):
            units = list(group)
            lines = [
                Sentence(f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text, turn.id)
                for unit in units
                for turn in unit.turns
            ]
            for chunk in chunks(lines, self.chunk_tokens, self.mode):
                text = " ".join(sentence.text for sentence in chunk)
                sources = union((sentence.turn_id,) for sentence in chunk)
                leaves.append(_Node(f"chunk-{len(leaves)}", text, 0, (), sources, units[0], units[-1]))
        return leaves

    def _summaries(self, nodes: Sequence[_Node], groups: Sequence[tuple[int, ...]], layer: int) -> list[_Node]:
        prompt = replace(self.prompts["raptor/summarise"], max_tokens=self.summary_tokens)
        texts = [[_flat(nodes[index].text) for index in group] for group in groups]
        asks = [(prompt, {"texts": members, "context": "\n\n".join(members)}) for members in texts]
        made: list[_Node] = []
        for group, members, summary in zip(groups, texts, ask_all(self.llm, asks, retries=3), strict=True):
            failed = isinstance(summary, ParseFailure)
            if failed:
                meter.note("raptor.truncated_members")
            made.append(
                _Node(
                    f"node-{len(nodes) + len(made)}",
                    truncate(" ".join(members), self.summary_tokens, "cl100k_base") if failed else summary,
                    layer,
                    group,
                    union(nodes[index].sources for index in group),
                    min((nodes[index].first for index in group), key=_time),
                    max((nodes[index].last for index in reversed(group)), key=_time),
                    failed,
                )
            )
        return made

    def _collapsed(self, similarities: np.ndarray) -> list[int]:
        return best(similarities, len(similarities) if self.k is None else self.k)

    def _traversal(self, similarities: np.ndarray) -> list[int]:
        layers = self._tree.layers
        start = len(layers) - 1 if self.start_layer is None else min(self.start_layer, len(layers) - 1)
        candidates = list(layers[start])
        visited: list[int] = []
        for _ in range(start + 1 if self.traversal_layers is None else self.traversal_layers):
            kept = [candidates[at] for at in best(similarities[candidates], self.traversal_k)]
            visited += kept
            candidates = sorted({child for index in kept for child in self._tree.nodes[index].children})
            if not candidates:
                break
        if self.k is None:
            return visited
        return [visited[at] for at in sorted(best(similarities[visited], self.k))]

    def _item(self, index: int, score: float) -> Item:
        node = self._tree.nodes[index]
        span = " – ".join(dict.fromkeys(text for text in (node.first.time_text, node.last.time_text) if text))
        kind = "summary" if node.layer else "leaf"
        return Item(node.id, dated(node.text, span), score, node.sources, kind, node.layer)


def _time(unit: Unit) -> float:
    """Seconds since the year 1, for comparisons within one history; 0 where the time is not known."""
    if unit.time is None:
        return 0.0
    return (unit.time.replace(tzinfo=None) - unit.time.min).total_seconds()


def _flat(text: str) -> str:
    return " ".join(text.splitlines())


def _until_full(items: Iterable[Item], budget: int | None) -> Iterator[Item]:
    left = math.inf if budget is None else budget
    for item in items:
        left -= _count(item.text)
        if left < 0:
            return
        yield item


@dataclass(frozen=True, slots=True)
class Sentence:
    """A piece of a turn."""

    text: str
    turn_id: str


def chunks(
    lines: Iterable[Sentence], limit: int, mode: Mode = "paper", count: Callable[[str], int] = _count
) -> list[list[Sentence]]:
    """Sentences packed in order into chunks of at most `limit` tokens; a sentence is measured with a space before it.

    In mode `code` as released: see the module's description.
    """
    packed: list[list[Sentence]] = []
    current: list[Sentence] = []
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


def _split(whole: Sentence, pattern: str, mode: Mode) -> list[Sentence]:
    """The parts that are not blank; mode `paper` strips them."""
    parts = [part for part in re.split(pattern, whole.text) if part.strip()]
    return [replace(whole, text=part if mode == "code" else part.strip()) for part in parts]


def _cut(sentence: Sentence, limit: int, mode: Mode, count: Callable[[str], int]) -> list[list[Sentence]]:
    """Chunks made of one over-long sentence, split at commas, semicolons and colons."""
    parts = _split(sentence, r"[,;:]" if mode == "code" else r"(?<=[,;:])\s+", mode)
    if mode == "paper":
        parts = [replace(part, text=half) for part in parts for half in _halves(part.text, limit, count)]
    groups: list[list[Sentence]] = [[]]
    length = 0
    for part in parts:
        tokens = count(" " + part.text)
        if length + tokens > limit:
            groups.append([])
            length = 0
        groups[-1].append(part)
        length += tokens
    return groups if mode == "code" else [group for group in groups if group]


def _halves(text: str, limit: int, count: Callable[[str], int]) -> list[str]:
    """The text halved, at a space where there is one, until every piece fits."""
    if len(text) < 2 or count(" " + text) <= limit:
        return [text]
    middle = text.rfind(" ", 1, len(text) // 2)
    middle = len(text) // 2 if middle < 0 else middle
    return [half for part in (text[:middle], text[middle:].strip()) if part for half in _halves(part, limit, count)]
