"""xMemory: messages, episodes, statements and themes, read from the top down ("Beyond RAG for Agent Memory", §3; code 375ae14).

Episodes and statements are Nemori's (`memsys.systems.nemori`). `consolidate` groups the statements into themes
(`memsys.systems.xmemory.themes`), each summarised by a model. A read (`memsys.systems.xmemory.reading`) first selects themes and
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
  both open. Merges are searched among the nearest neighbours of each theme (§3.2; the code tries all near pairs). The paper does not
  say which theme is tiny, nor by how much messages must lower the uncertainty "further": a theme of a single statement, and 0.25 nats,
  as released.
- If no statement was selected, there are no statements at all; the most similar episodes are then the candidates (our choice).
- Items are the episodes in order of priority, then the statements in order of selection; themes are not recalled (the code). The score of
  an episode is its priority, that of a statement its cosine. Coverage (Tables 3 and 5) ranks both kinds of blocks by these scores; the
  paper does not say how it ranks them.
- Table 4: without Stage I, the statements are the `max_statements` most similar, and their themes serve as context. Without Stage II,
  the best `max_episodes` episodes are recalled, the best `originals` of them with their messages, as in Nemori (the paper gives no
  numbers). Without both, episodes are ranked by similarity alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, period, union
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask_all, complete
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.settings import filled
from memsys.systems.nemori import EpisodeBuilder, EpisodeRules, NemoriStore
from memsys.systems.xmemory.reading import Backbone, Hierarchy, XMemoryReading, admitted, rank_episodes, select_backbone
from memsys.systems.xmemory.themes import Members, Neighbours, ThemeRules, nearest, partition
from memsys.tokens import count_tokens
from memsys.vectors import normalised

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
        items = [_episode_item(store, *ranked[rank], originals=originals) for rank, originals in chosen]
        return Recall((*items, *(store.statement_item(index, score) for index, score in backbone.statements)))

    def nodes(self) -> Iterator[NodeView]:
        """Messages, episodes, statements and themes (levels 0 to 3)."""
        hierarchy = self._hierarchy
        for number, members in enumerate(hierarchy.partition.themes):
            store = hierarchy.store
            episodes = [store.episodes[place] for place in sorted({store.statements[each].episode for each in members})]
            start, end = period(unit for episode in episodes for unit in episode.units)
            sources = union(episode.sources for episode in episodes)
            vector = hierarchy.vectors[number].copy()
            yield NodeView(f"theme-{number}", (), 3, "theme", hierarchy.summaries[number], vector, sources, start, end)
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
        replies = ask_all(self.llm, [(prompt, {"texts": texts}) for texts in new])
        if failed := sum(isinstance(reply, ParseFailure) for reply in replies):
            meter.note("xmemory.first_statement", failed)
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
            episode = _episode_item(store, *ranked[rank], originals=originals).text
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
        logprobs = complete(self.probe, request).logprobs
        if not logprobs:
            meter.count_parse_failure(request.purpose)
            meter.note("xmemory.no_logprobs")
            return NO_LOGPROBS
        return -float(np.mean(logprobs))


def _texts(store: NemoriStore, members: Members) -> tuple[str, ...]:
    """Texts of the statements with these numbers."""
    return tuple(store.statements[index].text for index in members)


def _episode_item(store: NemoriStore, index: int, score: float, *, originals: bool) -> Item:
    return store.episode_item(index, store.episodes[index].document, score, originals=originals)
