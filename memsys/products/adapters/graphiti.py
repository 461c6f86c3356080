"""graphiti-core: `Graphiti.add_episode` for each unit, a hybrid search over facts and entities for each question, Kuzu in memory.

Runs in the environment of conf/product/graphiti.txt; Kuzu is archived, and 0.11.3 is its last release. A unit is one episode of messages,
`speaker: text` a line. Episodes that share a time follow one another by a second, so that the previous episodes in the prompts are the
last ones. A recall holds facts with the day from which they hold and, where the product ended them, the day from which they no longer
do; then entities with their summaries, whose sources are the units that name them. Half of `k` is for facts, half for entities.

How a search ranks is a setting, `facts_by` and `entities_by`. `rrf`, the default, is the product's plain rule: reciprocal rank fusion of
full text and similarity, as in `Graphiti.search`, which returns ten facts. `cross_encoder` is the rule of `Graphiti.search_` without a
recipe: a third list from the neighbours in the graph, then one call of the model a candidate, ranked by the log-probability of its reply.
It needs an endpoint that returns log-probabilities; without them the product raises, and the question is an error.

The repository of the product evaluates graph building only, one message an episode. The maker evaluates its hosted service on LoCoMo:
first with 20 facts by the reranker and 20 entities with their summaries by rank fusion (getzep/zep-papers), later with 15 and 5, both by
the reranker, and an ontology of its own (getzep/zep, benchmarks/locomo). Both add one message an episode and show the day of a fact.
Differences: here an episode is a unit, and both lists are ranked by fusion unless the settings say otherwise.
"""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {
    "GRAPHITI_TELEMETRY_ENABLED": "false",
    "SEMAPHORE_LIMIT": "1",
}  # concurrent steps would draw ids in any order
ABILITIES = {"sources": "exact", "score": "rank", "time": "parameter", "read_only": True}


class Product:
    """One graph for one case."""

    def __init__(self, given: dict[str, Any]) -> None:
        import os

        os.environ["EMBEDDING_DIM"] = str(given["dimension"])
        self._by = _rankings(given["settings"])
        from graphiti_core import Graphiti
        from graphiti_core.driver.kuzu_driver import KuzuDriver

        driver = KuzuDriver(db=":memory:")
        self._graph = Graphiti(graph_driver=driver, **_clients(given), max_coroutines=1)
        self._turns: dict[str, list[str]] = {}
        """Ids of the turns of each episode."""
        self._said: dict[str, str] = {}
        """Time of each episode as the dialogue has it."""
        self._order: dict[str, int] = {}
        """Ids of facts in the order in which they were first stored."""
        self._naming: dict[str, list[str]] = {}
        """Turns of the episodes that name an entity, by its id, in the order in which entities were first stored."""
        self._last: Any = None

    async def open(self, _: dict[str, Any]) -> None:
        """Make the full-text indices: `build_indices_and_constraints` makes none for Kuzu, and every search would fail."""
        from graphiti_core.driver.driver import GraphProvider
        from graphiti_core.graph_queries import get_fulltext_indices

        for query in get_fulltext_indices(GraphProvider.KUZU):
            await self._graph.driver.execute_query(query)

    async def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Add a unit as an episode. Raises what the product raises; the episode is not stored then."""
        from graphiti_core.nodes import EpisodeType

        added = await self._graph.add_episode(
            name=unit["id"],
            episode_body=unit["text"],
            source=EpisodeType.message,
            source_description="conversation",
            reference_time=self._moment(unit.get("stamp")),
        )
        self._turns[added.episode.uuid] = unit["turn_ids"]
        self._said[added.episode.uuid] = unit["time_text"]
        for node in added.nodes:
            turns = self._naming.setdefault(node.uuid, [])
            turns += [turn for turn in unit["turn_ids"] if turn not in turns]
        new = [edge.uuid for edge in added.edges if edge.uuid not in self._order]
        for fact in new:
            self._order[fact] = len(self._order)
        return {"stored": len(new), "changed": len(added.edges) - len(new), "held": len(self._order)}

    def _moment(self, stamp: float | None) -> Any:
        """The time of an episode: its own, or else that of the one before; a second later for each one before it that shares it."""
        from datetime import UTC, datetime, timedelta

        start = datetime(2000, 1, 1, tzinfo=UTC) if self._last is None else self._last[0]
        said = start if stamp is None else datetime.fromtimestamp(stamp, UTC)
        same = self._last is not None and said == self._last[0]
        self._last = (said, self._last[1] + 1 if same else 0)
        return said + timedelta(seconds=self._last[1])

    async def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The facts, then the entities, that a search finds; equal scores in the order of storing."""
        from graphiti_core.search.search_config_recipes import COMBINED_HYBRID_SEARCH_CROSS_ENCODER as RERANKED
        from graphiti_core.search.search_config_recipes import COMBINED_HYBRID_SEARCH_RRF as FUSED

        half = (question["k"] + 1) // 2
        # Episodes are the dialogue itself, and communities are not built.
        changes: dict[str, Any] = {"limit": half, "episode_config": None, "community_config": None}
        changes |= {part: getattr(RERANKED, part) for part, by in self._by.items() if by == "cross_encoder"}
        recipe = FUSED.model_copy(update=changes)
        found = await self._graph.search_(question["text"] or " ", config=recipe)
        facts = [self._item(edge, score) for edge, score in zip(found.edges, found.edge_reranker_scores, strict=True)]
        entities = [
            self._entity(node, score) for node, score in zip(found.nodes, found.node_reranker_scores, strict=True)
        ][: question["k"] - half]
        return [*_ranked(facts, list(self._order)), *_ranked(entities, list(self._naming))]

    def _entity(self, node: Any, score: float) -> dict[str, Any]:
        return {
            "id": node.uuid,
            "text": f"{node.name}: {node.summary}" if node.summary else node.name,
            "time_text": "",
            "score": round(float(score), 6),
            "sources": self._naming.get(node.uuid, []),
            "kind": "entity",
        }

    async def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every fact that is held."""
        from graphiti_core.edges import EntityEdge

        edges = await EntityEdge.get_by_uuids(self._graph.driver, list(self._order))
        return sorted((self._item(edge, 0.0) for edge in edges), key=lambda item: self._order[item["id"]])

    async def close(self, _: dict[str, Any]) -> None:
        """Close the graph."""
        await self._graph.close()

    def _item(self, edge: Any, score: float) -> dict[str, Any]:
        episodes = [each for each in edge.episodes if each in self._turns]
        said = "".join(self._said[each] for each in episodes[:1])
        since = edge.valid_at.strftime("%d %B %Y") if edge.valid_at else said
        ended = f" (no longer since {edge.invalid_at.strftime('%d %B %Y')})" if edge.invalid_at else ""
        return {
            "id": edge.uuid,
            "text": edge.fact + ended,
            "time_text": since,
            "score": round(float(score), 6),
            "sources": list(dict.fromkeys(turn for each in episodes for turn in self._turns[each])),
            "kind": "fact",
        }


def _ranked(items: list[dict[str, Any]], stored: list[str]) -> list[dict[str, Any]]:
    """Items by score, best first; equal scores in the order of storing."""
    order = {name: place for place, name in enumerate(stored)}
    return sorted(items, key=lambda item: (-item["score"], order.get(item["id"], 0)))


def _rankings(settings: dict[str, Any]) -> dict[str, str]:
    """The rule by which each part of a search ranks, by its name in the product's recipes.

    Raises:
        ValueError: a rule that is neither `rrf` nor `cross_encoder`.
    """
    by = {"edge_config": settings.get("facts_by", "rrf"), "node_config": settings.get("entities_by", "rrf")}
    if unknown := set(by.values()) - {"rrf", "cross_encoder"}:
        raise ValueError(
            f"facts_by and entities_by are rrf or cross_encoder, found {', '.join(map(str, sorted(unknown)))}"
        )
    return by


def _clients(given: dict[str, Any]) -> dict[str, Any]:
    """Language model, embedder and reranker (for `cross_encoder` alone) behind the gateway."""
    from graphiti_core.cross_encoder.openai_reranker_client import OpenAIRerankerClient
    from graphiti_core.embedder.openai import OpenAIEmbedder, OpenAIEmbedderConfig
    from graphiti_core.llm_client.config import LLMConfig
    from graphiti_core.llm_client.openai_generic_client import OpenAIGenericClient

    shared = {"api_key": given["key"], "base_url": given["base_url"]}
    settings = {"temperature": 0, **given["settings"].get("llm", {})}
    config = LLMConfig(model=given["model"], small_model=given["model"], **settings, **shared)
    embedding = OpenAIEmbedderConfig(embedding_model=given["embedder"], embedding_dim=given["dimension"], **shared)
    return {
        "llm_client": OpenAIGenericClient(config=config),
        "embedder": OpenAIEmbedder(config=embedding),
        "cross_encoder": OpenAIRerankerClient(config=config),
    }
