"""graphrag: a document for each unit, `build_index` over all of them in `consolidate`, the context of a local search for each question.

Runs in the environment of conf/product/graphrag.txt, with its tables and LanceDB in the scratch folder of the case. Date and speaker are
put into the text, because the product keeps them nowhere else; of a unit longer than a chunk only the first chunk has the date. The
index is offline: `end_session` does nothing, and a `consolidate` after further units builds everything again, in place of the
product's incremental update, whose communities differ from those of one build. Its own response cache is off, or the meter would not
see the calls of the second build. A recall is what a local search shows to the product's own model, without the call that answers:
reports, entities, relationships and passages, in this order, the passages with their exact sources. If they are more than `k`, each table
keeps its first rows. The product goes on without a chunk or a report that failed, and logs it; here it is an error. It also goes on
where a reply names no entity: passages without one are counted, because no local search finds them. As released, only the
largest connected part of the graph is searched (`cluster_graph: {use_lcc: true}`).

The makers' evaluation (arXiv 2404.16130) asks global questions about news articles and podcasts of a million tokens, by map and reduce
over reports of one community level, and has a model compare two answers; it has no gold answers and does not use local search.
Differences: local search, questions with gold answers, our reader, and a document for each unit in place of long files.
"""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else a price file is fetched
    "HF_HUB_OFFLINE": "1",
}
ABILITIES = {
    "sources": "exact for passages, unknown for reports, entities and relationships",
    "score": "rank",
    "time": "text",
    "read_only": True,
}
TABLES = ("entities", "communities", "community_reports", "text_units", "relationships")
COMMUNITY_LEVEL = 2
"""The product's default is that of its command line; its API has none."""


class Product:
    """One index for one case, in folders of its own."""

    def __init__(self, given: dict[str, Any]) -> None:
        import os

        import litellm

        litellm.disable_hf_tokenizer_download = (
            True  # tiktoken's files come with litellm; models of some names have others at the hub
        )
        settings = dict(given["settings"])
        self._level = int(settings.pop("community_level", COMMUNITY_LEVEL))
        self._output = os.path.join(given["scratch"], "output")
        self._config = _config(given, settings, self._output)
        self._errors = _watch_errors()
        self._documents: list[dict[str, Any]] = []
        self._turns: dict[str, list[str]] = {}
        """Ids of the turns of each unit."""
        self._search: Any = None
        self._units_of: dict[str, list[str]] = {}
        """Units of each text unit, by the number that a search shows. Equal texts share an id, and the product keeps one of them."""
        self._waiting = False
        """Whether units were added since the index was last built."""

    def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Keep a unit as a document. It is searched after the next `consolidate`."""
        name, number = unit["id"], len(self._documents)
        self._documents.append({"id": name, "human_readable_id": number, "title": name, "text": unit["document"]})
        self._turns[name] = unit["turn_ids"]
        self._waiting = True
        return {"stored": 1, "held": len(self._turns)}

    async def consolidate(self, _: dict[str, Any]) -> dict[str, int]:
        """Build the index of all units; counts the passages without entities.

        Raises:
            RuntimeError: a workflow failed, or the product went on without a chunk or a report.
        """
        if not self._waiting:
            return {}
        import shutil

        import graphrag.api
        import pandas as pd

        shutil.rmtree(self._output, ignore_errors=True)
        documents = pd.DataFrame(self._documents).assign(creation_date="", raw_data=None)
        self._errors.clear()
        outcomes = await graphrag.api.build_index(config=self._config, input_documents=documents)
        _require_success(outcomes, self._errors)
        tables = {name: pd.read_parquet(f"{self._output}/{name}.parquet") for name in TABLES}
        self._units_of = _units_by_text(tables["text_units"].to_dict("records"))
        self._search = self._loaded(tables)
        self._waiting = False
        return {"passages_without_entities": sum(len(each) == 0 for each in tables["text_units"]["entity_ids"])}

    def _loaded(self, tables: dict[str, Any]) -> Any:
        """The local search over the tables of the index, as the product's own query builds it."""
        from graphrag.config.embeddings import entity_description_embedding
        from graphrag.query import indexer_adapters as read
        from graphrag.query.factory import get_local_search_engine
        from graphrag.utils.api import get_embedding_store

        communities = tables["communities"]
        return get_local_search_engine(
            config=self._config,
            reports=read.read_indexer_reports(tables["community_reports"], communities, self._level),
            text_units=read.read_indexer_text_units(tables["text_units"]),
            entities=read.read_indexer_entities(tables["entities"], communities, self._level),
            relationships=read.read_indexer_relationships(tables["relationships"]),
            covariates={},
            response_type="",
            description_embedding_store=get_embedding_store(self._config.vector_store, entity_description_embedding),
        )

    def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The context that the product builds for its own answer, in its order."""
        if self._search is None:
            return []
        builder, parameters = self._search.context_builder, self._search.context_builder_params
        shown = builder.build_context(query=question["text"] or " ", **parameters).context_records
        return _first(self._items(shown), question["k"])

    def _items(self, shown: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """The rows of each table of a context as items."""
        reports, entities, relationships, sources = (
            shown[name].to_dict("records") if name in shown else []
            for name in ("reports", "entities", "relationships", "sources")
        )
        return [
            [_item("report", row["id"], row["content"]) for row in reports],
            [_entity(row["id"], row["entity"], row["description"]) for row in entities],
            [_relationship(row["id"], row["source"], row["target"], row["description"]) for row in relationships],
            [self._passage(row["id"], row["text"]) for row in sources],
        ]

    def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every report, entity, relationship and passage that a search chooses from."""
        if self._search is None:
            return []
        held = self._search.context_builder
        entities, relationships = held.entities.values(), held.relationships.values()
        tables = [
            [_item("report", each.short_id, each.full_content) for each in held.community_reports.values()],
            [_entity(each.short_id, each.title, each.description) for each in entities],
            [_relationship(each.short_id, each.source, each.target, each.description) for each in relationships],
            [self._passage(each.short_id, each.text) for each in held.text_units.values()],
        ]
        # By number: the product orders entities by ids that it draws.
        return [item for items in tables for item in sorted(items, key=lambda item: int(item["id"].split()[-1]))]

    def _passage(self, number: str, text: str) -> dict[str, Any]:
        units = self._units_of[str(number)]
        turns = dict.fromkeys(turn for unit in units for turn in self._turns[unit])
        return {**_item("passage", number, text), "sources": list(turns)}


def _config(given: dict[str, Any], settings: dict[str, Any], output: str) -> Any:
    """The product's configuration: models behind the gateway, folders of the case, no response cache; then the given settings.

    Raises:
        ValueError: a setting that the product does not know; it would pass over it.
    """
    import os

    from graphrag.config.models.graph_rag_config import GraphRagConfig

    shared = {"model_provider": "openai", "api_base": given["base_url"], "api_key": given["key"]}
    own: dict[str, Any] = {
        "completion_models": {"default_completion_model": {**shared, "model": given["model"]}},
        "embedding_models": {"default_embedding_model": {**shared, "model": given["embedder"]}},
        "vector_store": {"db_uri": os.path.join(output, "lancedb"), "vector_size": given["dimension"]},
        "output_storage": {"base_dir": output},
        "reporting": {"base_dir": os.path.join(given["scratch"], "logs")},
        "cache": {"type": "none", "storage": None},
    }
    for name, value in settings.items():
        own[name] = {**own.get(name, {}), **value} if isinstance(value, dict) else value
    config = GraphRagConfig(**own)
    if unknown := sorted(_unknown(settings, config)):
        raise ValueError(f"graphrag has no setting {', '.join(unknown)}")
    return config


def _unknown(settings: dict[str, Any], config: Any) -> list[str]:
    """Names in settings, `section.name`, that a configuration has no field for."""
    unknown = []
    for name, value in settings.items():
        if name not in type(config).model_fields:
            unknown.append(name)
        elif isinstance(value, dict) and hasattr(section := getattr(config, name), "model_fields"):
            unknown += [f"{name}.{each}" for each in value if each not in type(section).model_fields]
    return unknown


def _watch_errors() -> list[str]:
    """A list to which every error is added that the product logs while it builds an index."""
    import logging

    errors: list[str] = []

    class Errors(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raised = record.exc_info[1] if record.exc_info else None
            errors.append(record.getMessage() + (f": {raised}" if raised else ""))

    # Not `graphrag` itself, whose handlers each build replaces.
    logging.getLogger("graphrag.index").addHandler(Errors(logging.ERROR))
    return errors


def _require_success(outcomes: list[Any], errors: list[str]) -> None:
    """Raise what the product only reports or logs.

    Raises:
        RuntimeError: a workflow ended with an error, or something was left out of the index.
    """
    first = f"logged first of {len(errors)} errors: {errors[0]}" if errors else "no error was logged"
    for outcome in outcomes:
        if outcome.error is not None:
            raise RuntimeError(f"{outcome.workflow}: {outcome.error}; {first}") from outcome.error
    if errors:
        raise RuntimeError(f"the product went on, but it left something out; {first}")


def _units_by_text(texts: list[dict[Any, Any]]) -> dict[str, list[str]]:
    """Units of each text unit by the number that a search shows; equal texts share their units."""
    units: dict[str, list[str]] = {}
    for text in texts:
        units.setdefault(text["id"], []).append(text["document_id"])
    return {str(text["human_readable_id"]): units[text["id"]] for text in texts}


def _first(tables: list[list[dict[str, Any]]], k: int) -> list[dict[str, Any]]:
    """At most `k` items, taken from the tables in turn, in the order of the tables."""
    places = sorted((row, table) for table, items in enumerate(tables) for row in range(len(items)))[:k]
    return [tables[table][row] for table, row in sorted((table, row) for row, table in places)]


def _entity(number: str, title: str, description: str) -> dict[str, Any]:
    return _item("entity", number, f"{title}: {description}")


def _relationship(number: str, source: str, target: str, description: str) -> dict[str, Any]:
    return _item("relationship", number, f"{source} – {target}: {description}")


def _item(kind: str, number: str, text: str) -> dict[str, Any]:
    return {"id": f"{kind} {number}", "text": text, "sources": [], "kind": kind}
