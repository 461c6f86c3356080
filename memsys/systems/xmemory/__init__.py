"""xMemory: messages, episodes, statements and themes, read from the top down ("Beyond RAG for Agent Memory", §3; code 375ae14).

Episodes and statements are Nemori's (`memsys.systems.nemori`). `consolidate` groups the statements into themes
(`memsys.systems.xmemory.themes`), each summarised by a model. A read first selects themes and
statements that cover the neighbourhood of the question (Stage I). Then it admits episodes, and the messages of some, that lower a
model's uncertainty about the answer (Stage II).

`mode` chooses between the paper and the released code:

- An episode is admitted when it lowers the uncertainty (`paper`), or when it does not raise it by 0.40 nats or more (`code`, where this
  value is marked as the one for Llama). `tau_include` sets another threshold.
- An overcrowded theme is split as the objective prefers (`paper`), or by its graph (`code`).
- At the end of a build, full themes are summarised again (`paper`), or keep the summary of when they were opened (`code`).
- The neighbours of a statement are the nearest of all statements (`paper`), or of those before it (`code`, which writes them once).
- Tiny themes are merged as later statements arrive (`paper`, §3.2 and §5.3), or once at the end, with pairs of near themes (`code`).
- The objective covers the whole partition (`paper`, Eq. 1-3), or the 10 themes around a change (`code`).
- Candidate episodes are those of the selected statements (`paper`, §3.3), or also the 10 most similar to the question (`code`).
- The support of a statement for its episode is its cosine, scaled over the selected statements (`paper`, silent: "semantic support"), or
  over all statements of the memory (`code`), among which the selected ones differ little. `support_over` sets either.
- An episode includes its messages when they lower the uncertainty further (`paper`, one more probe per episode), or when the episode
  itself has lowered it by enough (`code`).
- Statements are extracted from every episode alone (`paper`, whose App. C.1 prints only that prompt), or from the content of an episode
  beyond its prediction (`code`, as in Nemori).
- The buffer of messages is cut at 20 (`paper`), or never (`code`, where the rule cannot apply): see `memsys.systems.nemori`.

Deviations and decisions:

- Uncertainty is the mean negative log-probability of at most 20 greedily decoded tokens (the code; the paper speaks of predictive
  uncertainty). The service `probe` provides it and may be another model than the reader. A reply without log-probabilities gets the
  released value 5.0 and is counted; a call that finally fails makes the read fail (the code uses 5.0 there too).
- Each episode is probed alone, in the context without episodes, and not together with those admitted before it (the code).
- The uncertainty is probed for the bare question, without a benchmark's options or instructions.
- `consolidate` builds the themes again, provisionally. A set of statements that has been summarised is not summarised again, so a theme
  costs one call per change of its members. The geometry does not depend on the calls, which are submitted together.
- A merged theme keeps the number of its larger part (of equals, the older); of equal gains, the first computed wins. The paper leaves
  both open. Merges are searched among the nearest neighbours of each theme (§3.2; the code tries all near pairs).
- If no statement was selected, there are no statements at all; the most similar episodes are then the candidates (our choice).
- What the paper leaves open is as released: which theme is tiny (one statement) or, besides those above the cap, overcrowded (a full one
  of low cohesion, at the end), by how much messages must lower the uncertainty "further" (0.25 nats), when the search stops early, and
  what is recalled if no episode lowers the uncertainty (the first).
- Items are the episodes in order of priority, then the statements in order of selection; themes are not recalled (the code). The score of
  an episode is its priority, that of a statement its cosine. Coverage (Tables 3 and 5) ranks both kinds of blocks by these scores; the
  paper does not say how it ranks them.
- Table 4: without Stage I, the statements are the `max_statements` most similar, and their themes serve as context. Without Stage II,
  the best `max_episodes` episodes are recalled, the best `originals` of them with their messages, as in Nemori (the paper gives no
  numbers). Without both, episodes are ranked by similarity alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.interface import MemorySystem, NodeView, NotNegative, Positive, Recall, Settings, filled, period, union
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.nemori import EpisodeBuilder, EpisodeRules, Mode, NemoriStore
from memsys.systems.xmemory.themes import Members, Neighbours, Partition, ThemeRules, nearest, partition
from memsys.tokens import count_tokens
from memsys.vectors import Embedder, best, cosines, normalised, scaled

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
    supports = minmax([*selected, *rest])[: len(selected)]
    for (index, _), score in zip(backbone.statements, supports, strict=True):
        episode = store.statements[index].episode
        support[episode] = max(support.get(episode, 0.0), float(score))
    pool = sorted({*support, *(index for index, _ in similar)})
    similarities = minmax(cosines(store.episode_vectors.matrix[pool], query))
    priorities = similarities + settings.beta * np.array([support.get(index, 0.0) for index in pool])
    return [(pool[at], float(priorities[at])) for at in best(priorities, len(pool))]


def minmax(scores: Iterable[float] | np.ndarray) -> np.ndarray:
    """Scale scores to [0, 1], float64 [n]; equal scores all become 0.5 (as released)."""
    # Without rounding, noise between equal scores would be scaled up.
    return scaled(np.round(np.asarray(scores, dtype=np.float64), 6), flat=0.5)


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


NO_LOGPROBS = 5.0
"""Uncertainty of a reply without log-probabilities, in nats (as released)."""


class XMemory(MemorySystem):
    """Recalls the episodes that lower a model's uncertainty about the answer, and statements that cover the question's neighbourhood.

    Reads use the state of the last `consolidate`.
    """

    READ_KNOBS: ClassVar = tuple(setting.name for setting in fields(XMemoryReading))
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
        episodes: EpisodeRules = EpisodeRules(extraction=None),
        themes: ThemeRules = ThemeRules(),
        reading: XMemoryReading = XMemoryReading(),
    ) -> None:
        self.llm, self.probe, self.embedder, self.prompts = llm, probe, embedder, prompts
        self.episodes = filled(episodes, {"extraction": "direct" if episodes.mode == "paper" else "predict"})
        self.themes, self.reading = themes.of(episodes.mode), reading
        self._builder = EpisodeBuilder(llm, embedder, prompts, self.episodes)
        self._summaries: dict[tuple[str, ...], str | ParseFailure] = {}
        """Replies by the texts of the statements that were summarised."""
        self._hierarchy = self._built(self._builder.consolidated())

    @property
    def asks_logprobs(self) -> bool:
        return self.reading.uncertainty

    def write(self, unit: Unit) -> None:
        self._builder.write(unit)

    def consolidate(self) -> None:
        """Turn the open buffer into a provisional episode and group all statements into themes."""
        store = self._builder.consolidated()
        if store is self._hierarchy.store:
            return
        unchanged = store.statements == self._hierarchy.store.statements
        self._hierarchy = replace(self._hierarchy, store=store) if unchanged else self._built(store)

    def read(self, question: Question) -> Recall:
        hierarchy, settings = self._hierarchy, self.reading.of(self.episodes.mode)
        store = hierarchy.store
        if not store.episodes:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        backbone = select_backbone(hierarchy, query, settings)
        ranked = rank_episodes(hierarchy, query, backbone, settings)
        if settings.uncertainty:
            chosen = self._admitted(question, hierarchy, backbone, ranked, settings)
        else:
            chosen = [(rank, rank < settings.originals) for rank in range(min(settings.max_episodes, len(ranked)))]
        items = [store.episode_item(*ranked[rank], originals=originals) for rank, originals in chosen]
        return Recall((*items, *(store.statement_item(index, score) for index, score in backbone.statements)))

    def nodes(self) -> Iterator[NodeView]:
        """Messages, episodes, statements and themes (levels 0 to 3)."""
        hierarchy = self._hierarchy
        for number, members in enumerate(hierarchy.partition.themes):
            store = hierarchy.store
            episodes = [store.episodes[place] for place in sorted({store.statements[each].episode for each in members})]
            units = [unit for episode in episodes for unit in episode.units]
            sources = union(episode.sources for episode in episodes)
            text, vector = hierarchy.summaries[number], hierarchy.vectors[number].copy()
            yield NodeView(f"theme-{number}", (), 3, "theme", text, vector, sources, *period(units))
        yield from hierarchy.store.views([f"theme-{number}" for number in hierarchy.theme_of])

    @property
    def held(self) -> int:
        return self._builder.held + len(self._hierarchy.summaries)

    def report(self) -> dict[str, Any]:
        """Counts as in the paper's Tables 6-8; `reassigned` is the number of statements whose theme changed."""
        store, themes = self._hierarchy.store, self._hierarchy.partition
        sizes = [len(members) for members in themes.themes]
        replies = [self._summaries[_texts(store, members)] for members in themes.summarised]
        return {
            **store.report(),
            **self._builder.report(),
            "themes": len(sizes),
            "semantics_per_theme": sum(sizes) / max(1, len(sizes)),
            "largest_theme": max(sizes, default=0),
            "themes_of_one": sizes.count(1),
            "themes_not_summarised": sum(isinstance(reply, ParseFailure) for reply in replies),
            "reassigned": themes.reassigned,
        }

    def _built(self, store: NemoriStore) -> Hierarchy:
        """Group the statements of a store into themes and summarise these."""
        vectors = store.statement_vectors.matrix
        themes = partition(vectors, self.themes)
        self._summarise(_texts(store, members) for members in themes.asked)
        summaries = tuple(self._summary(store, members) for members in themes.summarised)
        theme_of = np.zeros(len(vectors), dtype=np.intp)
        for number, members in enumerate(themes.themes):
            theme_of[list(members)] = number
        centroids = [normalised(vectors[list(members)].mean(axis=0)) for members in themes.themes]
        return Hierarchy(
            store,
            themes,
            summaries,
            self.embedder.embed(summaries) if summaries else np.empty((0, 0), dtype=np.float32),
            theme_of,
            nearest(np.stack(centroids), self.themes.neighbours) if centroids else Neighbours(()),
            nearest(vectors, self.themes.neighbours, earlier=self.episodes.mode == "code"),
        )

    def _summarise(self, statements: Iterable[tuple[str, ...]]) -> None:
        """Ask for the summary of each set of statements that has none yet."""
        new = [texts for texts in dict.fromkeys(statements) if texts not in self._summaries]
        prompt = self.prompts["xmemory/theme"]
        asks = [(prompt, {"texts": texts}) for texts in new]
        replies = ask_all(self.llm, asks, noted="xmemory.first_statement")
        self._summaries.update(zip(new, replies, strict=True))

    def _summary(self, store: NemoriStore, members: Members) -> str:
        """Summary of a theme; its first statement replaces a reply that cannot be parsed."""
        reply = self._summaries[_texts(store, members)]
        return store.statements[members[0]].text if isinstance(reply, ParseFailure) else reply

    def _admitted(
        self,
        question: Question,
        hierarchy: Hierarchy,
        backbone: Backbone,
        ranked: Sequence[tuple[int, float]],
        settings: XMemoryReading,
    ) -> list[tuple[int, bool]]:
        """Ranks of the episodes that lower the uncertainty, each with whether it includes its messages; the first if none does."""
        store = hierarchy.store
        themes = [hierarchy.summaries[number] for number in backbone.themes]
        facts = [store.statement_item(index, cosine).text for index, cosine in backbone.statements]

        def uncertainty_with(rank: int, *, originals: bool) -> float:
            episode = store.episode_item(*ranked[rank], originals=originals).text
            return self._uncertainty(question, themes, facts, [episode])

        without_episodes = self._uncertainty(question, themes, facts, ())
        probed: list[
            float
        ] = []  # the uncertainty with each episode alone, appended as `admitted` asks for the next gain

        def gains() -> Iterator[float]:
            for rank in range(min(settings.probes, len(ranked))):
                probed.append(uncertainty_with(rank, originals=False))
                yield without_episodes - probed[rank]

        chosen = admitted(gains(), settings.tau_include or 0.0, settings.tau_expand, settings.max_episodes)
        if settings.expansion == "further":
            falls = [probed[rank] - uncertainty_with(rank, originals=True) for rank, _ in chosen]
            chosen = [(rank, fall > settings.tau_expand) for (rank, _), fall in zip(chosen, falls, strict=True)]
        return chosen or [(0, False)]

    def _uncertainty(
        self, question: Question, themes: Sequence[str], facts: Sequence[str], episodes: Sequence[str]
    ) -> float:
        """Mean negative log-probability (nats) of the answer that the probed model gives in this context."""
        fields = {"themes": themes, "facts": facts, "episodes": episodes, "memories": (*themes, *facts, *episodes)}
        request = self.prompts["xmemory/probe"].render({"question": question.text, "now": question.time_text, **fields})
        if episodes:  # count the prefix that this prompt shares with the one without episodes, which was sent before
            text = "".join(text for _, text in request.messages)
            meter.note("xmemory.prefix_again", count_tokens(text.rpartition(episodes[0])[0]))
        logprobs = self.probe.submit(request).result().logprobs
        if not logprobs:
            meter.count_parse_failure(request.purpose)
            meter.note("xmemory.no_logprobs")
            return NO_LOGPROBS
        return -float(np.mean(logprobs))


def _texts(store: NemoriStore, members: Members) -> tuple[str, ...]:
    """Texts of the statements with these numbers."""
    return tuple(store.statements[index].text for index in members)
