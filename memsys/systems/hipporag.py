"""HippoRAG: passages ranked by a walk over a graph of the phrases they mention (Gutiérrez et al., 2024; "From RAG to Memory", 2025).

A model reads every passage twice: for its named entities, then for triples about them. Subjects and objects become phrase nodes. Two
phrases are connected where a triple states a relation between them, and where their embeddings are nearly the same. A question seeds
some phrases, and personalised PageRank spreads the seeds over the graph.

- `version=2`: passages are nodes, too. A model filters the facts nearest to the question ("recognition memory"). The subjects and objects
  of the remaining facts are the seeds, and every passage is a weak seed by its own similarity to the question. Where no fact remains,
  passages are ranked by that similarity only.
- `version=1`: phrases only. Every named entity of the question is linked to one phrase; a passage scores the rank of its facts' phrases.

Weights, default values and the order of steps are those of the release (branch `legacy` for version 1). `mode="code"` keeps two habits of
the release: phrases keep only ASCII letters and digits, so that phrases in other scripts become one empty phrase (mode `paper` keeps the
letters, marks and digits of every script and leaves out triples with an empty end); and a fact that the model names twice counts twice.

Deviations and decisions:

- The released embedder embeds a question with two instructions, for facts and for passages; here there is one query vector.
- A fact is embedded as the release has it, as a printed tuple with quotes; prompts show it without them.
- The release's limit of 2047 nearest phrases is left out: a phrase has at most 101 synonyms, so it could never take effect.
- A fact that the model did not copy exactly is replaced by the most similar candidate, without a minimum similarity, as released.
- Where a chosen fact has the lowest score of all, its seed is 0. The release stops then; here the other seeds are used.
- The filter's demonstrations are three of our own instead of the released ten. Version 1's optional ensemble with dense scores, off in the
  release, is left out. Where the release would divide constant scores by zero, they are 1 here.
- A passage that is written again (the same text) is one passage: no call, and its turns and times are joined.
- `write` extracts triples. `consolidate` embeds new phrases and facts, computes all synonyms again and rebuilds the edges. A `read`
  before it uses the last graph.
"""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt
from scipy.sparse import coo_array, csr_array, hstack, vstack

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, NodeView, Positive, Recall, Settings, dated, period, period_text, union
from memsys.llm.ask import ask
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.vectors import Embedder, Vectors, best, cosines, scaled

Mode = Literal["paper", "code"]
Triple = tuple[str, str, str]
MOST_SYNONYMS = 101
"""Maximum number of synonyms of a phrase."""
_BLOCK = 512
"""Phrases whose similarities are computed at once."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """One build of the graph."""

    units: tuple[tuple[Unit, ...], ...]
    """For each passage, the units with its text."""
    passages: np.ndarray
    """Vectors of the passages, float32 [passages, d]."""
    facts: tuple[str, ...]
    fact_vectors: np.ndarray
    """float32 [facts, d]."""
    ends: np.ndarray
    """Subject and object of each fact, intp [facts, 2]."""
    phrases: tuple[str, ...]
    phrase_vectors: np.ndarray
    """float32 [phrases, d]."""
    mentions: np.ndarray
    """Number of passages whose triples contain each phrase, intp [phrases]."""
    weights: csr_array[Any]
    """Symmetric edge weights; rows are phrases, then (version 2) passages."""
    incidence: csr_array[Any]
    """How often a phrase is an end of a passage's distinct facts, [passages, phrases]."""
    synonyms: int
    """Number of ordered pairs of synonyms."""


@dataclass(frozen=True)
class HippoRagSettings(Settings):
    """Settings of `HippoRag`.

    Raises:
        ValueError: a setting is not one of the known choices, or is out of range.
    """

    version: Literal[1, 2] = 2
    """2 or 1, see the module."""
    mode: Mode = "paper"
    """`paper` or `code`, see the module."""
    k: Positive = 10
    """Maximum number of passages of a recall."""
    synonymy: Annotated[float, Gt(0)] = 0.8
    """Minimum cosine of two phrases that are connected as synonyms."""
    linking_top_k: Positive = 5
    """Facts shown to the filter, and phrases that may be seeds (version 2)."""
    max_facts: Positive = 4
    """Facts that the filter may keep (version 2)."""
    damping: Annotated[float, Ge(0), Lt(1)] = 0.5
    """Probability of following an edge instead of starting again, in [0, 1)."""
    passage_weight: Annotated[float, Ge(0)] = 0.05
    """Seed of the passage most similar to the question (version 2)."""


class HippoRag(MemorySystem):
    """Recalls the `k` passages that personalised PageRank ranks highest, best first."""

    READ_KNOBS: ClassVar = ("k", "linking_top_k", "max_facts", "damping", "passage_weight")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("hipporag",)

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: HippoRagSettings = HippoRagSettings()
    ) -> None:
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self._units: dict[str, list[Unit]] = {}  # by text: the units that say a passage
        self._triples: list[list[Triple]] = []
        self._phrases: dict[str, int] = {}
        self._facts: dict[Triple, int] = {}
        self._relations: Counter[tuple[int, int]] = Counter()
        self._passage_vectors, self._phrase_vectors, self._fact_vectors = Vectors(), Vectors(), Vectors()
        self._counts: Counter[str] = Counter()
        self._graph: _Graph | None = None
        self._stale = False

    def write(self, unit: Unit) -> None:
        self._stale = True
        if unit.text in self._units:
            self._units[unit.text].append(unit)
            return
        triples = self._extract(unit.text)
        self._passage_vectors.add(self.embedder.embed([unit.text])[0])
        self._units[unit.text] = [unit]
        self._triples.append(triples)
        for triple in triples:
            self._facts.setdefault(triple, len(self._facts))
            subject, _, object_ = triple
            first, second = (self._phrases.setdefault(end, len(self._phrases)) for end in (subject, object_))
            self._relations.update(((first, second), (second, first)) if first != second else ())

    def consolidate(self) -> None:
        if self._stale:
            self._embed_new(self._phrase_vectors, list(self._phrases))
            self._embed_new(self._fact_vectors, [str(tuple(map(str, fact))) for fact in self._facts])
            self._graph = self._build()
            self._stale = False

    def read(self, question: Question) -> Recall:
        graph = self._graph
        if graph is None:
            return Recall(())
        scores = self._by_facts(graph, question) if self.settings.version == 2 else self._by_entities(graph, question)
        return Recall(
            tuple(_passage_item(graph.units[place], float(scores[place])) for place in best(scores, self.settings.k))
        )

    def nodes(self) -> Iterator[NodeView]:
        """Passages (level 0) of the last build and the phrases of their triples (level 1), which are their parents."""
        graph = self._graph
        if graph is None:
            return
        mentioned: list[list[str]] = [[] for _ in graph.phrases]
        incidence = graph.incidence
        for passage, units in enumerate(graph.units):
            item = _passage_item(units, 0.0)
            phrases = incidence.indices[incidence.indptr[passage] : incidence.indptr[passage + 1]]
            for phrase in phrases:
                mentioned[phrase].extend(item.sources)
            parents, vector = tuple(f"phrase-{phrase}" for phrase in phrases), graph.passages[passage].copy()
            yield NodeView(item.id, parents, 0, "passage", item.text, vector, item.sources, *period(units))
        for place, phrase in enumerate(graph.phrases):
            vector = graph.phrase_vectors[place].copy()
            yield NodeView(f"phrase-{place}", (), 1, "phrase", phrase, vector, union([mentioned[place]]))

    @property
    def held(self) -> int:
        return 0 if self._graph is None else len(self._graph.units)

    def report(self) -> dict[str, Any]:
        """Size of the last build; `no_entities` and `no_triples` are passages whose extraction failed."""
        graph = self._graph
        sizes = (len(graph.units), len(graph.phrases), len(graph.facts), graph.synonyms) if graph else (0, 0, 0, 0)
        return dict(zip(("passages", "phrases", "facts", "synonyms"), sizes, strict=True)) | {
            failure: self._counts[failure] for failure in ("no_entities", "no_triples")
        }

    def _extract(self, text: str) -> list[Triple]:
        """The passage's normalised triples; a triple given twice in the same words counts once."""
        prompt, counts = self.prompts["hipporag/entities"], self._counts
        entity_reply = ask(self.llm, prompt, text=text, noted="hipporag.no_entities", counts=counts)
        entities = list(dict.fromkeys(entity_reply["named_entities"])) if entity_reply else []
        listed = json.dumps(entities, ensure_ascii=False)
        prompt = self.prompts["hipporag/triples"]
        triple_reply = ask(self.llm, prompt, text=text, entities=listed, noted="hipporag.no_triples", counts=counts)
        entries = triple_reply["triples"] if triple_reply else ()
        triads = [tuple(map(str, parts)) for parts in entries if len(parts) == 3]
        triples: list[Triple] = []
        for subject, predicate, object_ in dict.fromkeys(triads):
            triple = tuple(normalised_phrase(part, self.settings.mode) for part in (subject, predicate, object_))
            if self.settings.mode == "code" or (triple[0] and triple[2]):
                triples.append((triple[0], triple[1], triple[2]))
        return triples

    def _embed_new(self, vectors: Vectors, texts: Sequence[str]) -> None:
        """Embed the texts that `vectors` has no row for yet."""
        if len(texts) > len(vectors):
            for vector in self.embedder.embed(texts[len(vectors) :]):
                vectors.add(vector)

    def _build(self) -> _Graph:
        phrases, vectors = tuple(self._phrases), self._phrase_vectors.matrix.copy()
        incidence = self._incidence()
        linked = (incidence > 0).astype(float)
        near = synonyms(vectors, phrases, self.settings.synonymy)
        weights = undirected(self._relations, near, len(phrases))
        if self.settings.version == 2:
            no_edges = csr_array((len(self._triples), len(self._triples)))
            weights = csr_array(vstack([hstack([weights, linked.T]), hstack([linked, no_edges])]))
        return _Graph(
            units=tuple(map(tuple, self._units.values())),
            passages=self._passage_vectors.matrix.copy(),
            facts=tuple(map(fact_text, self._facts)),
            fact_vectors=self._fact_vectors.matrix.copy(),
            ends=np.array([(self._phrases[s], self._phrases[o]) for s, _, o in self._facts], dtype=np.intp).reshape(-1, 2),
            phrases=phrases,
            phrase_vectors=vectors,
            mentions=linked.sum(axis=0).astype(np.intp),
            weights=weights,
            incidence=incidence,
            synonyms=near.nnz,
        )  # fmt: skip

    def _incidence(self) -> csr_array[Any]:
        """How often each phrase is an end of a passage's distinct facts, [passages, phrases]."""
        ends = [
            (passage, self._phrases[end])
            for passage, triples in enumerate(self._triples)
            for subject, _, object_ in dict.fromkeys(triples)
            for end in (subject, object_)
        ]
        rows, columns = np.array(ends, dtype=np.intp).reshape(-1, 2).T
        shape = (len(self._triples), len(self._phrases))
        return csr_array(coo_array((np.ones(len(rows)), (rows, columns)), shape=shape))

    def _by_facts(self, graph: _Graph, question: Question) -> np.ndarray:
        """The score of each passage in version 2, float [passages]."""
        query = self.embedder.embed([question.text], query=True)[0]
        dense = scaled(cosines(graph.passages, query), flat=1.0)
        if not graph.facts:
            return dense
        relevance = scaled(cosines(graph.fact_vectors, query), flat=1.0)
        candidates = best(relevance, self.settings.linking_top_k)
        places = self._kept_facts(question, [graph.facts[fact] for fact in candidates])
        kept = [candidates[place] for place in places]
        if not kept:
            return dense
        seeds = phrase_weights(graph.ends[kept], relevance[kept], graph.mentions)
        strongest = best(seeds, self.settings.linking_top_k)
        reset = np.zeros(graph.weights.shape[0])
        reset[strongest] = seeds[strongest]
        reset[len(seeds) :] = self.settings.passage_weight * dense
        return pagerank(graph.weights, reset, self.settings.damping)[len(seeds) :] if reset.any() else dense

    def _kept_facts(self, question: Question, candidates: Sequence[str]) -> list[int]:
        """The places of the candidates that the model keeps."""
        options = [Option(fact, fact) for fact in candidates]
        limit, prompt, event = self.settings.max_facts, self.prompts["hipporag/filter"], "hipporag.dense_passages"
        value = ask(self.llm, prompt, query=question.text, options=options, facts=candidates, limit=limit, noted=event)
        if not value:
            return []
        named = [fact if isinstance(fact, str) else fact_text(fact) for fact in value["facts"][:limit]]
        kept = [candidates.index(difflib.get_close_matches(fact, candidates, 1, 0.0)[0]) for fact in named]
        return kept if self.settings.mode == "code" else list(dict.fromkeys(kept))

    def _by_entities(self, graph: _Graph, question: Question) -> np.ndarray:
        """The score of each passage in version 1, float [passages]; all are 1 where the question names no entity."""
        equal = np.ones(len(graph.units))
        if not graph.phrases:
            return equal
        prompt, event = self.prompts["hipporag/question_entities"], "hipporag.all_passages_alike"
        value = ask(self.llm, prompt, text=question.text, noted=event) or {"named_entities": ()}
        names = [normalised_phrase(name, self.settings.mode) for name in dict.fromkeys(value["named_entities"])]
        names = [name for name in names if name]
        if not names:
            return equal
        # Both sides are phrases, so none is embedded as a query: a phrase must be its own nearest neighbour.
        linked = np.argmax(graph.phrase_vectors @ self.embedder.embed(names).T, axis=0)
        reset = np.zeros(len(graph.phrases))
        reset[linked] = 1 / graph.mentions[linked]
        return scaled(graph.incidence @ pagerank(graph.weights, reset, self.settings.damping), flat=1.0)


def fact_text(triple: Sequence[object]) -> str:
    """A triple as prompts show it."""
    return f"({', '.join(map(str, triple))})"


def normalised_phrase(text: str, mode: Mode = "paper") -> str:
    """The text in lower case, stripped, with a space for every character that is not a letter, mark or digit (mode `code`: of ASCII)."""
    if mode == "code":
        return "".join(each if each.isascii() and each.isalnum() else " " for each in text.lower()).strip()
    return "".join(each if unicodedata.category(each)[0] in "LMN" else " " for each in text.lower()).strip()


def synonyms(vectors: np.ndarray, phrases: Sequence[str], threshold: float) -> csr_array[Any]:
    """Cosine of each phrase (row) with its synonyms (columns), [phrases, phrases]: the 101 nearest of at least `threshold`.

    A phrase of at most two letters and digits has no synonyms, and the empty phrase is not a synonym.

    Args:
        vectors: float32 [phrases, d], unit length.
    """
    long_enough = np.array(
        [place for place, phrase in enumerate(phrases) if sum(map(str.isalnum, phrase)) > 2], dtype=np.intp
    )
    empty = [place for place, phrase in enumerate(phrases) if not phrase]
    rows, columns, values = [np.empty(0, np.intp)], [np.empty(0, np.intp)], [np.empty(0, np.float32)]
    for start in range(0, len(long_enough), _BLOCK):
        block = long_enough[start : start + _BLOCK]
        similar = vectors[block] @ vectors.T
        similar[np.arange(len(block)), block] = -1
        similar[:, empty] = -1
        near = similar >= threshold
        for crowded in np.flatnonzero(near.sum(axis=1) > MOST_SYNONYMS):
            near[crowded] = False
            near[crowded, best(similar[crowded], MOST_SYNONYMS)] = True
        row, column = np.nonzero(near)
        rows.append(block[row])
        columns.append(column)
        values.append(similar[row, column])
    cells = (np.concatenate(rows), np.concatenate(columns))
    return csr_array(coo_array((np.concatenate(values).astype(float), cells), shape=(len(phrases), len(phrases))))


def undirected(relations: Counter[tuple[int, int]], near: csr_array[Any], size: int) -> csr_array[Any]:
    """Edge weights among phrases, symmetric [size, size].

    The weight of an ordered pair is its count of relations, or the cosine where the two are synonyms; both directions are summed.

    Args:
        relations: how often each ordered pair of phrases is related.
        near: cosines of synonyms, [size, size].
    """
    pairs = np.array(list(relations), dtype=np.intp).reshape(-1, 2).T
    counts = np.fromiter(relations.values(), dtype=float, count=len(relations))
    stated = csr_array(coo_array((counts, (pairs[0], pairs[1])), shape=(size, size)))
    directed = stated - stated.multiply(near > 0) + near
    return csr_array(directed + directed.T)


def phrase_weights(ends: np.ndarray, scores: np.ndarray, mentions: np.ndarray) -> np.ndarray:
    """Seed of each phrase, float [phrases]: the mean of fact score / `mentions` over the ends of facts that are this phrase.

    Args:
        ends: subject and object of each fact, intp [facts, 2].
        scores: of the facts, float [facts].
        mentions: number of passages that mention each phrase, intp [phrases].
    """
    total, places = np.zeros(len(mentions)), np.zeros(len(mentions))
    np.add.at(total, ends, scores[:, None] / mentions[ends])
    np.add.at(places, ends, 1)
    return total / np.maximum(places, 1)


def pagerank(weights: csr_array[Any], reset: np.ndarray, damping: float) -> np.ndarray:
    """Personalised PageRank of an undirected weighted graph; float [nodes], sums to 1.

    Solves (I − damping·Pᵀ) π ∝ reset by iteration; a walk at a node without edges starts again.
    The result equals that of `networkx.pagerank`.

    Args:
        weights: symmetric, [nodes, nodes].
        reset: weights of the nodes where walks start, float [nodes], not negative and not all zero; only their ratios matter.
        damping: probability of following an edge, in [0, 1).
    """
    strength = weights.sum(axis=0)
    share = np.divide(damping, strength, out=np.zeros(len(strength)), where=strength > 0)
    start = reset / reset.sum()
    rank, change = start, np.inf
    while change > 1e-12:
        next_rank = start + weights @ (share * rank)
        change = float(np.abs(next_rank - rank).sum())
        rank = next_rank
    result: np.ndarray = rank / rank.sum()
    return result


def _passage_item(units: Sequence[Unit], score: float) -> Item:
    sources = union(unit.turn_ids for unit in units)
    return Item(units[0].id, dated(units[0].text, period_text(units[0], units[-1])), score, sources, "passage")
