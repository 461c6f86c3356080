"""xMemory: messages, episodes, statements and themes, read from the top down ("Beyond RAG for Agent Memory", §3; code 375ae14).

Episodes and statements are Nemori's (`memsys.systems.nemori`). Once the messages are over, statements are put into themes
(`memsys.systems.xmemory.themes`), each named by a model. A recall first selects themes and statements that cover what is similar to
the question (Stage I), then admits episodes, and the messages of some, as far as they make a model surer of the answer (Stage II).

`mode` chooses between the paper and the released code:

- An episode is admitted when uncertainty falls (`paper`), or when it does not rise by .40 nats or more (`code`, where the value is
  marked as the one for Llama). `tau_include` sets another threshold.
- An overcrowded theme is split as the objective prefers (`paper`), or by its graph (`code`).
- Full themes are summarised again in the end (`paper`), or keep the summary of when they were opened (`code`).
- A statement's neighbours are the nearest of all (`paper`), or of those before it (`code`, which writes them once).
- Tiny themes are merged as later statements come (`paper`, §3.2 and §5.3), or once in the end, with pairs of near themes (`code`).
- The objective looks at the whole partition (`paper`, Eq. 1-3), or at the 10 themes around a change (`code`).
- Episodes are those of the statements selected (`paper`, §3.3), or the 10 most similar to the question beside them (`code`).
- An episode shows its messages when these lower uncertainty further (`paper`, one more probe each), or when the episode itself has
  lowered it by enough (`code`).
- Statements are taken from every episode by itself (`paper`, whose App. C.1 prints that prompt alone), or from what it holds beyond
  its prediction (`code`, as Nemori).
- The buffer of messages is cut at 20 (`paper`), or never (`code`, in which the rule cannot be reached): see `memsys.systems.nemori`.

Deviations and decisions:

- Uncertainty is the mean negative log-probability of at most 20 greedily decoded tokens (the code; the paper speaks of predictive
  uncertainty). It comes from the service `probe`, which may be another model than the reader. A reply without log-probabilities has the
  released value 5.0 and is counted; a call that fails for good fails the read (the code takes 5.0 there too).
- Each episode is tried alone against the context without episodes, not on top of those admitted before (the code).
- The reader's uncertainty is probed for the question itself, without options or instructions of a benchmark.
- `consolidate` makes the themes anew, provisionally. A set of statements that has been summarised is not summarised again, so that a
  theme costs one call whenever its members change. The geometry does not depend on the calls, which are made together.
- A merged theme keeps the number of the larger part, of equals that of the older; of equal gains the first found counts. Both are open.
  Merges are looked for among the nearest neighbours of each theme (§3.2; the code tries all near pairs). The paper does not say which
  theme is tiny, nor by how much messages must lower uncertainty "further": one of a single statement, and .25 nats, as released.
- Where no statement was selected, there are none: then the most similar episodes are tried (ours).
- Items are the episodes in order of priority, then the statements in order of selection; themes are not recalled (the code).
- Table 4: without Stage I the statements are the `max_statements` most similar, and their themes serve as context. Without Stage II
  the best `max_episodes` episodes are recalled, the best `originals` with their messages as in Nemori (the paper gives no numbers).
  Without both, episodes are ranked by similarity alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, known_mode, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask_all, complete
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.nemori import EpisodeBuilder, Extraction, Mode, Store, span
from memsys.systems.xmemory.themes import Members, MergeAt, Neighbours, Partition, ThemeRules, nearest, partition
from memsys.tokens import count_tokens
from memsys.vectors import best, normalised

TAU_INCLUDE = {"paper": 0.0, "code": -0.40}
EPISODE_POOL = {"paper": 0, "code": 10}
EXPANSION = {"paper": "further", "code": "same"}
_CHOICES = {"merge_at": ("insertion", "end"), "expansion": ("further", "same")}
NO_LOGPROBS = 5.0
_PATIENCE = ((3, 1), (10, 2))
"""Among so many probed episodes, so many that are not admitted end the search."""


@dataclass(frozen=True, slots=True)
class _Themed:
    """What one consolidation made."""

    store: Store
    partition: Partition
    summaries: tuple[str, ...]
    vectors: np.ndarray
    """Of the summaries, float32 [K, d]."""
    of: np.ndarray
    """The theme of each statement."""
    theme_graph: Neighbours
    statement_graph: Neighbours


@dataclass(frozen=True, slots=True)
class _Backbone:
    """What Stage I chose: statements with their cosines, and themes, in order of selection."""

    statements: tuple[tuple[int, float], ...]
    themes: tuple[int, ...]


class XMemory(MemorySystem):
    """Recalls the episodes that make a model surer of the answer, and statements that cover the neighbourhood of the question.

    Reads see what the last `consolidate` saw.

    Args:
        theme_cap: most statements in a theme (Table 8).
        split, merge: whether themes are split, and merged and coalesced (Table 6).
        attach, lenient, edge, small, cohesion, near, coalesce, max_merges, tiny: see `ThemeRules`.
        neighbours: of a node in the graphs that are read, and with how many nearest themes a merge is considered.
        objective_over: how many themes around a change the objective looks at; None for the mode's (`paper`: all, `code`: 10).
        merge_at: when tiny themes are merged, at each `insertion` or in the `end`; None for the mode's.
        extraction: see `memsys.systems.nemori.EpisodeBuilder`; None for the mode's (`paper`: `direct`, `code`: `predict`).
        buffer_min, buffer_max, enforce_max: see `memsys.systems.nemori.EpisodeBuilder`.
        representatives: Stage I (Table 4).
        uncertainty: Stage II (Table 4).
        pool: statements looked at.
        max_themes, max_statements: most of each that Stage I selects.
        alpha: weight of coverage against similarity in Stage I.
        episode_pool: most similar episodes looked at beside those of the statements selected; None for the mode's (`paper`: 0, `code`: 10).
        beta: weight of the statements' support in an episode's priority.
        probes: most episodes tried.
        max_episodes: most episodes recalled.
        tau_include: least fall of uncertainty, in nats, that admits an episode (exclusive); None takes the mode's.
        expansion: what must exceed `tau_expand` for its messages to be shown: the `further` fall that they bring, or the `same` fall
            of the episode; None for the mode's.
        tau_expand: least such fall, in nats (exclusive).
        originals: without Stage II, so many of the best episodes show their messages.

    Raises:
        ValueError: a setting that is none of the known choices, or out of range.
    """

    READ_KNOBS: ClassVar = (
        "representatives", "uncertainty", "pool", "max_themes", "max_statements", "alpha", "episode_pool", "beta", "probes",
        "max_episodes", "tau_include", "expansion", "tau_expand", "originals",
    )  # fmt: skip
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("nemori", "xmemory")
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "utterance"}
    OFFLINE: ClassVar = True

    def __init__(
        self,
        llm: LLM,
        probe: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Mode = "paper",
        theme_cap: int = 12,
        split: bool = True,
        merge: bool = True,
        attach: float = 0.62,
        lenient: float = 0.52,
        edge: float = 0.66,
        small: int = 8,
        cohesion: float = 0.72,
        near: float = 0.78,
        coalesce: float = 0.50,
        max_merges: int = 2,
        tiny: int = 1,
        neighbours: int = 10,
        objective_over: int | None = None,
        merge_at: MergeAt | None = None,
        extraction: Extraction | None = None,
        buffer_min: int = 1,
        buffer_max: int = 20,
        enforce_max: bool | None = None,
        representatives: bool = True,
        uncertainty: bool = True,
        pool: int = 40,
        max_themes: int = 5,
        max_statements: int = 20,
        alpha: float = 0.7,
        episode_pool: int | None = None,
        beta: float = 0.5,
        probes: int = 10,
        max_episodes: int = 10,
        tau_include: float | None = None,
        expansion: Literal["further", "same"] | None = None,
        tau_expand: float = 0.25,
        originals: int = 2,
    ) -> None:
        self.llm, self.probe, self.embedder, self.prompts = llm, probe, embedder, prompts
        self.mode = known_mode(self, mode)
        paper = mode == "paper"
        self._builder = EpisodeBuilder(
            llm, embedder, prompts, mode, buffer_min, buffer_max, enforce_max,
            extraction=extraction or ("direct" if paper else "predict"),
        )  # fmt: skip
        for name, value in {"merge_at": merge_at, "expansion": expansion}.items():
            if value not in (None, *_CHOICES[name]):
                raise ValueError(f"{name} must be one of {', '.join(_CHOICES[name])}, found {value!r}")
        for name, number, least in (("objective_over", objective_over, 1), ("episode_pool", episode_pool, 0)):
            if number is not None and number < least:
                raise ValueError(f"{name} must be at least {least}, found {number}")
        self.rules = ThemeRules(
            cap=positive("theme_cap", theme_cap), attach=attach, lenient=lenient, small=small, edge=edge, cohesion=cohesion,
            near=near, max_merges=max_merges, coalesce=coalesce, neighbours=positive("neighbours", neighbours),
            tiny=positive("tiny", tiny), objective_over=objective_over or (None if paper else 10),
            split=split, merge=merge, merge_at=merge_at or ("insertion" if paper else "end"), guided=paper, renew_full=paper,
        )  # fmt: skip
        self.representatives, self.uncertainty = representatives, uncertainty
        self.pool, self.episode_pool, self.expansion = positive("pool", pool), episode_pool, expansion
        self.max_themes = positive("max_themes", max_themes)
        self.max_statements = positive("max_statements", max_statements)
        self.max_episodes, self.probes = positive("max_episodes", max_episodes), positive("probes", probes)
        self.alpha, self.beta, self.originals = alpha, beta, originals
        self.tau_include, self.tau_expand = tau_include, tau_expand
        self._summaries: dict[tuple[str, ...], str | ParseFailure] = {}
        self._themed = self._theme(self._builder.consolidated())

    @property
    def asks_logprobs(self) -> bool:
        return self.uncertainty

    def write(self, unit: Unit) -> None:
        self._builder.write(unit)

    def consolidate(self) -> None:
        """Turn the open buffer into a provisional episode and put all statements into themes."""
        store = self._builder.consolidated()
        if store is self._themed.store:
            return
        same = store.statements == self._themed.store.statements
        self._themed = replace(self._themed, store=store) if same else self._theme(store)

    def read(self, question: Question) -> Recall:
        themed = self._themed
        if not themed.store.episodes:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        backbone = self._backbone(themed, query)
        ranked = self._ranked(themed, query, backbone)
        if self.uncertainty:
            shown = self._admitted(themed, question, backbone, ranked)
        else:
            shown = [(rank, rank < self.originals) for rank in range(min(self.max_episodes, len(ranked)))]
        items = [_episode_item(themed.store, *ranked[rank], originals=originals) for rank, originals in shown]
        return Recall((*items, *(themed.store.statement_item(index, score) for index, score in backbone.statements)))

    def nodes(self) -> Iterator[NodeView]:
        """Messages, episodes, statements and themes (levels 0 to 3)."""
        themed = self._themed
        for number, members in enumerate(themed.partition.themes):
            episodes = [themed.store.episodes[episode] for episode in _episodes_of(themed.store, members)]
            start, end = span(unit for episode in episodes for unit in episode.units)
            sources = union(episode.sources for episode in episodes)
            vector = themed.vectors[number].copy()
            yield NodeView(f"theme-{number}", (), 3, "theme", themed.summaries[number], vector, sources, start, end)
        yield from themed.store.views([f"theme-{number}" for number in themed.of])

    @property
    def held(self) -> int:
        return self._builder.held + len(self._themed.summaries)

    def report(self) -> dict[str, Any]:
        """Counts as the paper's Tables 6-8 have them; `reassigned` is the share of statements whose theme changed."""
        themed = self._themed
        sizes = [len(members) for members in themed.partition.themes]
        failed = (
            isinstance(self._summaries[self._key(themed.store, made)], ParseFailure)
            for made in themed.partition.summarised
        )
        return {
            **themed.store.report(),
            **self._builder.report(),
            "themes": len(sizes),
            "semantics_per_theme": sum(sizes) / max(1, len(sizes)),
            "largest_theme": max(sizes, default=0),
            "themes_of_one": sizes.count(1),
            "themes_not_summarised": sum(failed),
            "reassigned": themed.partition.reassigned / max(1, sum(sizes)),
        }

    # --- construction ---

    def _theme(self, store: Store) -> _Themed:
        rows = store.statement_vectors.matrix
        made = partition(rows, self.rules)
        self._summarise([self._key(store, members) for members in made.asked])
        summaries = tuple(self._summary(store, members) for members in made.summarised)
        of = np.zeros(len(rows), dtype=np.intp)
        for number, members in enumerate(made.themes):
            of[list(members)] = number
        vectors = self.embedder.embed(summaries) if summaries else np.empty((0, 0), dtype=np.float32)
        centroids = [normalised(rows[list(members)].mean(axis=0)) for members in made.themes]
        themes = nearest(np.stack(centroids), self.rules.neighbours) if centroids else Neighbours(())
        statements = nearest(rows, self.rules.neighbours, earlier=self.mode == "code")
        return _Themed(store, made, summaries, vectors, of, themes, statements)

    def _summarise(self, wanted: Iterable[tuple[str, ...]]) -> None:
        new = [texts for texts in dict.fromkeys(wanted) if texts not in self._summaries]
        prompt = self.prompts["xmemory/theme"]
        replies = ask_all(self.llm, [(prompt, {"texts": texts}) for texts in new])
        if failed := sum(isinstance(reply, ParseFailure) for reply in replies):
            meter.note("xmemory.first_statement", failed)
        self._summaries.update(zip(new, replies, strict=True))

    def _summary(self, store: Store, members: Members) -> str:
        reply = self._summaries[self._key(store, members)]
        return store.statements[members[0]].text if isinstance(reply, ParseFailure) else reply

    def _key(self, store: Store, members: Members) -> tuple[str, ...]:
        return tuple(store.statements[index].text for index in members)

    # --- Stage I ---

    def _backbone(self, themed: _Themed, query: np.ndarray) -> _Backbone:
        """Themes among those of the pool, then statements among the pool's members of these."""
        pool = themed.store.statement_vectors.top(query, self.pool)
        candidates = sorted({int(themed.of[index]) for index, _ in pool})
        similarities = themed.vectors[candidates] @ query if candidates else np.empty(0)
        if not self.representatives:
            chosen = tuple(pool[: self.max_statements])
            own = {int(themed.of[index]) for index, _ in chosen}
            order = [candidates[at] for at in best(similarities, len(candidates)) if candidates[at] in own]
            return _Backbone(chosen, tuple(order[: self.max_themes]))
        weights = themed.theme_graph.weights(candidates)
        themes = [candidates[at] for at in representatives(similarities, weights, self.alpha, self.max_themes)]
        inside = [(index, cosine) for index, cosine in pool if themed.of[index] in themes]
        weights = themed.statement_graph.weights([index for index, _ in inside])
        cosines = np.array([cosine for _, cosine in inside])
        chosen = tuple(inside[at] for at in representatives(cosines, weights, self.alpha, self.max_statements))
        return _Backbone(chosen, tuple(themes))

    # --- Stage II ---

    def _ranked(self, themed: _Themed, query: np.ndarray, backbone: _Backbone) -> list[tuple[int, float]]:
        """Episodes of the statements and the most similar others with their priority, best first."""
        if not (self.representatives or self.uncertainty):
            return themed.store.episode_vectors.top(query, self.max_episodes)
        beside = EPISODE_POOL[self.mode] if self.episode_pool is None else self.episode_pool
        similar = themed.store.episode_vectors.top(query, beside if backbone.statements else self.max_episodes)
        support: dict[int, float] = {}
        scaled = minmax([cosine for _, cosine in backbone.statements])
        for (index, _), score in zip(backbone.statements, scaled, strict=True):
            episode = themed.store.statements[index].episode
            support[episode] = max(support.get(episode, 0.0), float(score))
        pool = sorted({*support, *(index for index, _ in similar)})
        cosines = minmax(themed.store.episode_vectors.matrix[pool] @ query)
        priorities = cosines + self.beta * np.array([support.get(index, 0.0) for index in pool])
        return [(pool[at], float(priorities[at])) for at in best(priorities, len(pool))]

    def _admitted(
        self, themed: _Themed, question: Question, backbone: _Backbone, ranked: Sequence[tuple[int, float]]
    ) -> list[tuple[int, bool]]:
        """Ranks of the episodes that lower the uncertainty, and whether their messages are shown; the first where none does."""

        def shown(rank: int, *, originals: bool) -> list[str]:
            return [_episode_item(store, *ranked[rank], originals=originals).text]

        store = themed.store
        themes = [themed.summaries[number] for number in backbone.themes]
        facts = [store.statement_item(index, cosine).text for index, cosine in backbone.statements]
        bare = self._uncertainty(question, themes, facts, ())
        alone: list[float] = []  # of each episode probed, filled as the gains are asked for

        def gains() -> Iterator[float]:
            for rank in range(min(self.probes, len(ranked))):
                alone.append(self._uncertainty(question, themes, facts, shown(rank, originals=False)))
                yield bare - alone[rank]

        include = TAU_INCLUDE[self.mode] if self.tau_include is None else self.tau_include
        found = admitted(gains(), include, self.tau_expand, self.max_episodes)
        if (self.expansion or EXPANSION[self.mode]) == "further":
            further = (
                alone[rank] - self._uncertainty(question, themes, facts, shown(rank, originals=True))
                for rank, _ in found
            )
            found = [(rank, gain > self.tau_expand) for (rank, _), gain in zip(found, further, strict=True)]
        return found or [(0, False)]

    def _uncertainty(
        self, question: Question, themes: Sequence[str], facts: Sequence[str], episodes: Sequence[str]
    ) -> float:
        """Mean negative log-probability (nats) of the answer that the probed model gives in this context."""
        fields = {"themes": themes, "facts": facts, "episodes": episodes, "memories": (*themes, *facts, *episodes)}
        request = self.prompts["xmemory/probe"].render({"question": question.text, "now": question.time_text, **fields})
        if episodes:  # the prompt without them was sent before and begins alike
            text = "".join(text for _, text in request.messages)
            meter.note("xmemory.prefix_again", count_tokens(text.rpartition(episodes[0])[0]))
        logprobs = complete(self.probe, request).logprobs
        if not logprobs:
            meter.count_parse_failure(request.purpose)
            meter.note("xmemory.no_logprobs")
            return NO_LOGPROBS
        return -float(np.mean(logprobs))


def minmax(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Scores stretched to [0, 1], float64 [n]; .5 everywhere where they are equal (as released)."""
    values = np.round(np.asarray(scores, dtype=np.float64), 6)  # else noise would be stretched where all are equal
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    scaled: np.ndarray = (values - low) / (high - low) if low < high else np.full(len(values), 0.5)
    return scaled


def representatives(similarities: np.ndarray, weights: np.ndarray, alpha: float, most: int) -> list[int]:
    """Nodes chosen one by one by `alpha` · newly covered weight + (1 - `alpha`) · similarity to the question (xMemory Eq. 4).

    `weights` [m, m] says how much each node covers each; the share is of their sum. Ends when all are covered, `most` are chosen or
    nothing is gained; ties go to the lower index. The paper's target for the share covered is 1, as released.
    """
    relevance = (1 - alpha) * minmax(similarities)
    scale = alpha / weights.sum() if weights.size else 0.0
    uncovered, left = np.ones(len(relevance), dtype=bool), np.ones(len(relevance), dtype=bool)
    chosen: list[int] = []
    while uncovered.any() and len(chosen) < most:
        values = np.where(left, np.round(scale * weights[:, uncovered].sum(axis=1) + relevance, 9), -np.inf)
        node = int(np.argmax(values))
        if values[node] <= 0:
            break
        chosen.append(node)
        left[node] = False
        uncovered &= weights[node] == 0
    return chosen


def admitted(gains: Iterable[float], include: float, expand: float, most: int) -> list[tuple[int, bool]]:
    """Places of the gains above `include`, and whether each is above `expand`; no gain is looked at after the search has ended.

    It ends after one gain that is not admitted among the first three, after two among the first ten, or with `most` admitted.
    """
    found: list[tuple[int, bool]] = []
    low = 0
    for place, gain in enumerate(gains):
        if gain > include:
            found.append((place, gain > expand))
        else:
            low += 1
        if len(found) == most or any(place < probed and low >= least for probed, least in _PATIENCE):
            break
    return found


def _episode_item(store: Store, index: int, score: float, *, originals: bool) -> Item:
    return store.episode_item(index, store.episodes[index].document, score, originals=originals)


def _episodes_of(store: Store, members: Members) -> list[int]:
    return sorted({store.statements[index].episode for index in members})
