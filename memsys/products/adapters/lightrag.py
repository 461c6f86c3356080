"""LightRAG: a document for each unit, the context of a query in hybrid mode for each question, all files in the scratch folder.

Runs in the environment of conf/product/lightrag.txt, which leaves out what this path never imports (pandas, cryptography, Google's
client). Date and speaker are put into the text, because the product keeps them nowhere else. Every document has a name, which the
product keeps with its passages, entities and relationships: exact sources. `ainsert` returns when the document is in the graph; one that
failed only gets a status, which is an error here. The product's caches of replies are off, or the meter would count a repeated call
once; units follow one another. A recall is what `aquery_data` would show to the product's own model, within its budgets of tokens:
entities, relationships, passages. In hybrid mode passages are found through entities, so one without any is never recalled: these are
counted.

The product counts tokens with a vocabulary that tiktoken downloads; here bpe-openai, a package that contains it, counts the same tokens.

The makers evaluate it (arXiv 2410.05779; `reproduce/Step_1.py`, `Step_3.py` of HKUDS/LightRAG) by global questions about textbooks, with
mode `hybrid` and its defaults, and a model compares two answers; there is no conversation and no gold answer. Here: that mode and the
defaults of the release, `top_k` 40 and at most 6,000 tokens of entities, 8,000 of relationships and 30,000 in all. `k: null` recalls
all of it; a number keeps the first rows of every table. Differences: questions with gold answers, our reader, and no reranker, as in
the release until one is configured.
"""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {
    "MAX_ASYNC": "1",  # calls of one unit, such as its summaries, in one order
    "MAX_PARALLEL_INSERT": "1",
    "RERANK_BY_DEFAULT": "false",
}
ABILITIES = {"sources": "exact", "score": "rank", "time": "text", "read_only": True}
VOCABULARY = "o200k_base"
ALL = 1_000_000


class Product:
    """One graph for one case."""

    def __init__(self, given: dict[str, Any]) -> None:
        import os
        from functools import partial

        from lightrag import LightRAG, QueryParam
        from lightrag.llm.openai import openai_complete_if_cache, openai_embed
        from lightrag.utils import EmbeddingFunc, Tokenizer

        shared = {"base_url": given["base_url"], "api_key": given["key"]}
        embed = partial(openai_embed.func, model=given["embedder"], **shared)
        self._graph = LightRAG(
            working_dir=os.path.join(given["scratch"], "graph"),
            llm_model_func=partial(openai_complete_if_cache, given["model"], **shared),
            llm_model_name=given["model"],
            embedding_func=EmbeddingFunc(embedding_dim=given["dimension"], func=embed),
            tokenizer=Tokenizer(VOCABULARY, _Vocabulary()),
            enable_llm_cache=False,
            enable_llm_cache_for_entity_extract=False,
            max_file_paths=ALL,  # else an entity names 75 documents at most
            **given["settings"].get("graph", {}),
        )
        self._asked = partial(QueryParam, **given["settings"].get("query", {}))
        self._units: dict[str, list[str]] = {}
        """Ids of the turns of each document."""

    async def open(self, _: dict[str, Any]) -> None:
        """Make the product's files."""
        await self._graph.initialize_storages()

    async def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Insert a unit as a document and wait until it is in the graph.

        Raises:
            RuntimeError: the product keeps it as failed.
        """
        name = str(len(self._units))
        await self._graph.ainsert(unit["document"], ids=name, file_paths=name)
        _require_success(await self._graph.doc_status.get_by_id(name))
        self._units[name] = unit["turn_ids"]
        return {"stored": 1, "held": len(self._units)}

    async def consolidate(self, _: dict[str, Any]) -> dict[str, int]:
        """Nothing is left to do; counts the passages that no entity leads to."""
        named = [await self._graph.full_entities.get_by_id(name) for name in self._units]
        return {"passages_without_entities": sum(not (each or {}).get("entity_names") for each in named)}

    async def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The context that the product builds for its own answer, in its order.

        Raises:
            RuntimeError: the product reports a failure that is no empty context.
        """
        if not self._units:
            return []
        found = await self._graph.aquery_data(question["text"] or "?", self._asked())
        if found.get("status") == "failure" and found.get("metadata", {}).get("failure_reason") != "no_results":
            raise RuntimeError(f"the query failed: {found.get('message')}")
        data = found.get("data") or {}  # none where it named no keyword of a long question
        tables = [[self._item(kind, row) for row in data.get(name) or []] for kind, name in KINDS.items()]
        return _first(tables, question["k"])

    async def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every entity, relationship and passage that is held."""
        graph = self._graph.chunk_entity_relation_graph
        documents = [await self._graph.doc_status.get_by_id(name) for name in self._units]
        chunks = [chunk for document in documents for chunk in document["chunks_list"]]
        texts = await self._graph.text_chunks.get_by_ids(chunks)
        tables = {
            "entity": [{"entity_name": node["id"], **node} for node in await graph.get_all_nodes()],
            "relationship": [
                {"src_id": edge["source"], "tgt_id": edge["target"], **edge} for edge in await graph.get_all_edges()
            ],
            "passage": [{"chunk_id": name, **text} for name, text in zip(chunks, texts, strict=True)],
        }
        return [self._item(kind, row) for kind, rows in tables.items() for row in rows]

    async def close(self, _: dict[str, Any]) -> None:
        """Write and close its files."""
        await self._graph.finalize_storages()

    def _item(self, kind: str, row: dict[str, Any]) -> dict[str, Any]:
        """A row of the context with the turns of the documents that it names."""
        units = [each for each in row.get("file_path", "").split("<SEP>") if each in self._units]
        return {
            "id": f"{kind} {_name(kind, row)}",
            "text": row["content"] if kind == "passage" else f"{_name(kind, row)}: {row.get('description', '')}",
            "sources": list(dict.fromkeys(turn for each in units for turn in self._units[each])),
            "kind": kind,
        }


KINDS = {"entity": "entities", "relationship": "relationships", "passage": "chunks"}
"""The table of a context for each kind of row."""


def _name(kind: str, row: dict[str, Any]) -> str:
    if kind == "relationship":
        return " – ".join(sorted((row["src_id"], row["tgt_id"])))
    return str(row["chunk_id"] if kind == "passage" else row["entity_name"])


def _require_success(status: Any) -> None:
    """Raise what the product only keeps as the status of a document.

    Raises:
        RuntimeError: the document is not in the graph.
    """
    state = (status or {}).get("status", "missing")
    if str(getattr(state, "value", state)) != "processed":
        raise RuntimeError(f"the document is {getattr(state, 'value', state)}: {(status or {}).get('error_msg')}")


def _first(tables: list[list[dict[str, Any]]], k: int | None) -> list[dict[str, Any]]:
    """All items or at most `k`, taken from the tables in turn, in the order of the tables."""
    places = sorted((row, table) for table, items in enumerate(tables) for row in range(len(items)))[:k]
    return [tables[table][row] for table, row in sorted((table, row) for row, table in places)]


class _Vocabulary:
    """The tokens that tiktoken would count, without its download."""

    def __init__(self) -> None:
        import bpe_openai

        self._tokens = bpe_openai.get_encoding(VOCABULARY)

    def __deepcopy__(self, _: Any) -> _Vocabulary:
        return self

    def encode(self, content: str) -> list[int]:
        return list(self._tokens.encode(content, disallowed_special=()))

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokens.decode(tokens))
