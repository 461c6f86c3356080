"""HippoRAG: passages found by a walk over a graph of the phrases that they mention (Gutiérrez et al., 2024; "From RAG to Memory", 2025).

Every passage is read by a model twice: for its named entities, then for triples about them. Subjects and objects become phrase nodes,
joined where a triple states a relation and where their embeddings are nearly the same. A question seeds some phrases, and personalised
PageRank spreads the seeds over the graph.

- `version=2`: passages are nodes, too. The question's nearest facts are sifted by a model ("recognition memory"), the subjects and objects
  of those that remain are the seeds, and every passage is a weak seed by its own similarity. Where no fact remains, passages are ranked
  by that similarity alone.
- `version=1`: phrases only. The question's named entities are linked to one phrase each; a passage scores the rank of its facts' ends.

Weights, released defaults and order of steps are those of the release (branch `legacy` for version 1). `mode="code"` keeps two habits of
it: phrases lose all but ASCII letters and digits, so that other scripts melt into one empty phrase (mode `paper` keeps the letters, marks
and digits of every script, and leaves out triples with an empty end); and a fact that the model names twice counts twice.

Deviations and decisions:

- The released embedder reads a question with two instructions, for facts and for passages; here there is one query vector.
- The limit of 2047 nearest phrases is left out: of the 101 synonyms that a phrase may have it can never bind.
- A fact that the model did not copy exactly stands for the candidate most like it, as released, with no least likeness.
- The release stops where a chosen fact has the lowest score of all, because a seed is then 0; here the other seeds carry on.
- The filter's demonstrations are three of our own for the released ten. Version 1's optional ensemble with dense scores, off in the
  release, is left out; constant scores, which it divides by zero, count as 1.
- A passage written again (the same text) is one passage: no call, its turns and times are joined.
- Writing extracts; `consolidate` embeds new phrases and facts, recomputes all synonyms and rebuilds the edges. A `read` before it sees
  the last build.
"""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.sparse import coo_array, csr_array, hstack, vstack

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.vectors import Vectors, best

Mode = Literal["paper", "code"]
Triple = tuple[str, str, str]
MOST_SYNONYMS = 101
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class _Graph:
    """One build. Rows of `weights` are phrases, then (version 2) passages."""

    units: tuple[tuple[Unit, ...], ...]
    """Of each passage, where it was said."""
    passages: np.ndarray
    """Vectors, float32 [passages, d]."""
    facts: tuple[str, ...]
    fact_vectors: np.ndarray
    ends: np.ndarray
    """Subject and object of each fact, intp [facts, 2]."""
    phrases: tuple[str, ...]
    phrase_vectors: np.ndarray
    mentions: np.ndarray
    """In how many passages' triples each phrase stands, intp [phrases]."""
    weights: csr_array[Any]
    incidence: csr_array[Any]
    """How often a phrase is an end of a passage's distinct facts, [passages, phrases]."""
    synonyms: int


class HippoRag(MemorySystem):
    """Recalls the `k` passages that personalised PageRank ranks highest, best first.

    Args:
        version: 2 or 1, see the module.
        synonymy: least cosine of two phrases that are joined as synonyms.
        linking_top_k: facts shown to the filter, and phrases that may be seeds (version 2).
        max_facts: facts that the filter may keep (version 2).
        damping: probability of following an edge rather than starting again, in [0, 1).
        passage_weight: seed of the passage most similar to the question (version 2).

    Raises:
        ValueError: a setting that is none of the known choices, or out of range.
    """

    READ_KNOBS: ClassVar = ("k", "linking_top_k", "max_facts", "damping", "passage_weight")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("hipporag",)

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        version: int = 2,
        mode: Mode = "paper",
        k: int = 10,
        synonymy: float = 0.8,
        linking_top_k: int = 5,
        max_facts: int = 4,
        damping: float = 0.5,
        passage_weight: float = 0.05,
    ) -> None:
        if version not in (1, 2):
            raise ValueError(f"version must be 1 or 2, found {version!r}")
        if not (0 <= damping < 1 and synonymy > 0 and passage_weight >= 0):
            raise ValueError(
                f"damping must be in [0, 1), synonymy above 0 and passage_weight at least 0, "
                f"found {damping}, {synonymy} and {passage_weight}"
            )
        self.llm, self.embedder, self.prompts, self.version = llm, embedder, prompts, version
        self.mode = known_mode(self, mode)
        self.k, self.linking_top_k = positive("k", k), positive("linking_top_k", linking_top_k)
        self.max_facts = positive("max_facts", max_facts)
        self.synonymy, self.damping, self.passage_weight = synonymy, damping, passage_weight
        self._units: dict[str, list[Unit]] = {}  # by text: a passage, and where it was said again
        self._stated: list[list[Triple]] = []
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
        triples = self._extracted(unit.text)
        self._passage_vectors.add(self.embedder.embed([unit.text])[0])
        self._units[unit.text] = [unit]
        self._stated.append(triples)
        for triple in triples:
            self._facts.setdefault(triple, len(self._facts))
            subject, _, object_ = triple
            first, second = (self._phrases.setdefault(end, len(self._phrases)) for end in (subject, object_))
            self._relations.update(((first, second), (second, first)) if first != second else ())

    def consolidate(self) -> None:
        if self._stale:
            self._embed_new(self._phrase_vectors, list(self._phrases))
            self._embed_new(self._fact_vectors, [shown(fact) for fact in self._facts])
            self._graph = self._build()
            self._stale = False

    def read(self, question: Question) -> Recall:
        graph = self._graph
        if graph is None:
            return Recall(())
        scores = self._by_facts(graph, question) if self.version == 2 else self._by_entities(graph, question)
        return Recall(tuple(_item(graph.units[at], float(scores[at])) for at in best(scores, self.k)))

    def nodes(self) -> Iterator[NodeView]:
        """Passages (level 0) of the last build and the phrases of their triples (level 1), which are their parents."""
        graph = self._graph
        if graph is None:
            return
        mentioned: list[list[str]] = [[] for _ in graph.phrases]
        for at, units in enumerate(graph.units):
            item, times = _item(units, 0.0), [unit.time for unit in units if unit.time is not None]
            phrases = graph.incidence.indices[graph.incidence.indptr[at] : graph.incidence.indptr[at + 1]]
            for phrase in phrases:
                mentioned[phrase].extend(item.sources)
            parents, vector = tuple(f"phrase-{phrase}" for phrase in phrases), graph.passages[at].copy()
            span = min(times, default=None), max(times, default=None)
            yield NodeView(item.id, parents, 0, "passage", item.text, vector, item.sources, *span)
        for at, phrase in enumerate(graph.phrases):
            vector = graph.phrase_vectors[at].copy()
            yield NodeView(f"phrase-{at}", (), 1, "phrase", phrase, vector, union([mentioned[at]]))

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

    def _extracted(self, text: str) -> list[Triple]:
        """The passage's normalised triples; one that the model gave twice in the same words stands once."""
        named = self._asked("no_entities", "hipporag/entities", text=text)
        entities = list(dict.fromkeys(named["named_entities"])) if named else []
        told = json.dumps(entities, ensure_ascii=False)
        found = self._asked("no_triples", "hipporag/triples", text=text, entities=told)
        triads = [tuple(map(str, parts)) for parts in found["triples"] if len(parts) == 3] if found else []
        triples: list[Triple] = []
        for subject, predicate, object_ in dict.fromkeys(triads):
            triple = tuple(normalised_phrase(part, self.mode) for part in (subject, predicate, object_))
            if self.mode == "code" or (triple[0] and triple[2]):
                triples.append((triple[0], triple[1], triple[2]))
        return triples

    def _asked(self, failure: str, prompt: str, **fields: Any) -> Any:
        value = ask(self.llm, self.prompts[prompt], **fields)
        if isinstance(value, ParseFailure):
            self._counts[failure] += 1
            meter.note(f"hipporag.{failure}")
        return value

    def _embed_new(self, vectors: Vectors, texts: Sequence[str]) -> None:
        if len(texts) > len(vectors):
            for vector in self.embedder.embed(texts[len(vectors) :]):
                vectors.add(vector)

    def _build(self) -> _Graph:
        phrases, vectors = tuple(self._phrases), self._phrase_vectors.matrix.copy()
        incidence = self._incidence()
        linked = (incidence > 0).astype(float)
        near = synonyms(vectors, phrases, self.synonymy)
        weights = undirected(self._relations, near, len(phrases))
        if self.version == 2:
            nothing = csr_array((len(self._stated), len(self._stated)))
            weights = csr_array(vstack([hstack([weights, linked.T]), hstack([linked, nothing])]))
        return _Graph(
            units=tuple(map(tuple, self._units.values())),
            passages=self._passage_vectors.matrix.copy(),
            facts=tuple(map(shown, self._facts)),
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
        ends = [
            (passage, self._phrases[end])
            for passage, triples in enumerate(self._stated)
            for subject, _, object_ in dict.fromkeys(triples)
            for end in (subject, object_)
        ]
        rows, columns = np.array(ends, dtype=np.intp).reshape(-1, 2).T
        shape = (len(self._stated), len(self._phrases))
        return csr_array(coo_array((np.ones(len(rows)), (rows, columns)), shape=shape))

    def _by_facts(self, graph: _Graph, question: Question) -> np.ndarray:
        """Version 2: score of each passage, float [passages]."""
        query = self.embedder.embed([question.text], query=True)[0]
        dense = scaled(graph.passages @ query)
        if not graph.facts:
            return dense
        relevance = scaled(graph.fact_vectors @ query)
        candidates = best(relevance, self.linking_top_k)
        kept = [candidates[at] for at in self._recognised(question, [graph.facts[at] for at in candidates])]
        if not kept:
            return dense
        seeds = phrase_weights(graph.ends[kept], relevance[kept], graph.mentions)
        strongest = best(seeds, self.linking_top_k)
        reset = np.zeros(graph.weights.shape[0])
        reset[strongest] = seeds[strongest]
        reset[len(seeds) :] = self.passage_weight * dense
        return pagerank(graph.weights, reset, self.damping)[len(seeds) :] if reset.any() else dense

    def _recognised(self, question: Question, candidates: Sequence[str]) -> list[int]:
        """Places of the candidates that the model keeps."""
        options = [Option(fact, fact) for fact in candidates]
        fields: dict[str, Any] = {
            "query": question.text,
            "options": options,
            "facts": candidates,
            "limit": self.max_facts,
        }
        value = ask(self.llm, self.prompts["hipporag/filter"], **fields)
        if isinstance(value, ParseFailure):
            meter.note("hipporag.dense_passages")
            return []
        named = [fact if isinstance(fact, str) else shown(fact) for fact in value["facts"][: self.max_facts]]
        kept = [candidates.index(difflib.get_close_matches(fact, candidates, 1, 0.0)[0]) for fact in named]
        return kept if self.mode == "code" else list(dict.fromkeys(kept))

    def _by_entities(self, graph: _Graph, question: Question) -> np.ndarray:
        """Version 1: score of each passage, float [passages]; all the same where the question names nothing."""
        everywhere = np.ones(len(graph.units))
        if not graph.phrases:
            return everywhere
        value = ask(self.llm, self.prompts["hipporag/question_entities"], text=question.text)
        if isinstance(value, ParseFailure):
            meter.note("hipporag.all_passages_alike")
            return everywhere
        names = [normalised_phrase(name, self.mode) for name in dict.fromkeys(value["named_entities"])]
        names = [name for name in names if name]
        if not names:
            return everywhere
        # Phrases on both sides, so not as a query: the same phrase must be its own nearest.
        linked = np.argmax(graph.phrase_vectors @ self.embedder.embed(names).T, axis=0)
        reset = np.zeros(len(graph.phrases))
        reset[linked] = 1 / graph.mentions[linked]
        return scaled(graph.incidence @ pagerank(graph.weights, reset, self.damping))


def shown(triple: Sequence[object]) -> str:
    """A triple as it is embedded and shown."""
    return f"({', '.join(map(str, triple))})"


def normalised_phrase(text: str, mode: Mode = "paper") -> str:
    """Lower case, everything but letters, digits and spaces made a space, stripped; mode `code` knows ASCII letters only."""
    return "".join(character if _kept(character, mode) else " " for character in text.lower()).strip()


def _kept(character: str, mode: Mode) -> bool:
    if mode == "code":
        return character.isascii() and character.isalnum()
    return unicodedata.category(character)[0] in "LMN"


def synonyms(vectors: np.ndarray, phrases: Sequence[str], threshold: float) -> csr_array[Any]:
    """Cosine of each phrase with its synonyms, the 101 nearest of at least `threshold`; [phrases, phrases], row by row.

    A phrase of at most two letters and digits has none, and the empty phrase is nobody's.
    """
    asking = np.array([at for at, phrase in enumerate(phrases) if sum(map(str.isalnum, phrase)) > 2], dtype=np.intp)
    empty = [at for at, phrase in enumerate(phrases) if not phrase]
    rows, columns, values = [np.empty(0, np.intp)], [np.empty(0, np.intp)], [np.empty(0, np.float32)]
    for start in range(0, len(asking), _BLOCK):
        block = asking[start : start + _BLOCK]
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
    """Edge weights among phrases, symmetric [size, size]: counts of ordered pairs, overwritten by synonymy, both directions summed."""
    pairs = np.array(list(relations), dtype=np.intp).reshape(-1, 2).T
    counts = np.fromiter(relations.values(), dtype=float, count=len(relations))
    stated = csr_array(coo_array((counts, (pairs[0], pairs[1])), shape=(size, size)))
    directed = stated - stated.multiply(near > 0) + near
    return csr_array(directed + directed.T)


def phrase_weights(ends: np.ndarray, scores: np.ndarray, mentions: np.ndarray) -> np.ndarray:
    """Seed of each phrase, float [phrases]: the mean, over its places among the facts, of score / number of passages that mention it.

    Args:
        ends: subject and object of each fact, intp [facts, 2].
        scores: [facts].
        mentions: [phrases].
    """
    total, places = np.zeros(len(mentions)), np.zeros(len(mentions))
    np.add.at(total, ends, scores[:, None] / mentions[ends])
    np.add.at(places, ends, 1)
    return total / np.maximum(places, 1)


def scaled(scores: np.ndarray) -> np.ndarray:
    """Scores moved to [0, 1] by minimum and maximum; all the same are all 1."""
    spread = np.ptp(scores) if len(scores) else 0.0
    return (scores - scores.min()) / spread if spread > 0 else np.ones(len(scores))


def pagerank(weights: csr_array[Any], reset: np.ndarray, damping: float, tolerance: float = 1e-12) -> np.ndarray:
    """Personalised PageRank of an undirected weighted graph; float [nodes], sums to 1.

    Solves (I − damping·Pᵀ) π ∝ reset by iteration; a walk that cannot go on starts again. Equals `networkx.pagerank`.

    Args:
        weights: symmetric, [nodes, nodes].
        reset: where walks start, not negative and not all zero; only the proportions matter.
        damping: probability of following an edge, in [0, 1).
    """
    strength = weights.sum(axis=0)
    share = np.divide(damping, strength, out=np.zeros(len(strength)), where=strength > 0)
    start = reset / reset.sum()
    rank, change = start, np.inf
    while change > tolerance:
        after = start + weights @ (share * rank)
        change = float(np.abs(after - rank).sum())
        rank = after
    result: np.ndarray = rank / rank.sum()
    return result


def _item(units: Sequence[Unit], score: float) -> Item:
    times = dict.fromkeys(unit.time_text for unit in (units[0], units[-1]) if unit.time_text)
    sources = union(unit.turn_ids for unit in units)
    return Item(units[0].id, dated(units[0].text, " – ".join(times)), score, sources, "passage")
