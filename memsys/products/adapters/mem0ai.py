"""mem0ai 2.x: `Memory.add` for each unit, `Memory.search` for each question, an in-memory Qdrant and SQLite.

Runs in the environment of conf/product/mem0ai.txt: no spaCy and no fastembed, hence neither keyword scores nor entities, as a plain
`pip install mem0ai` has it. Names of speakers are put into the text, because the product drops the field `name`.
"""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {"MEM0_TELEMETRY": "False"}
ABILITIES = {"sources": "exact", "score": "similarity", "time": "clock", "read_only": True}
USER = "case"


class Product:
    """One `Memory` for one case."""

    def __init__(self, given: dict[str, Any]) -> None:
        import os

        os.environ["MEM0_DIR"] = given["scratch"]
        from mem0 import Memory
        from qdrant_client import QdrantClient

        shared = {"openai_base_url": given["base_url"], "api_key": given["key"]}
        model = {"model": given["model"], **given["settings"].get("llm", {}), **shared}
        store = {
            "collection_name": USER,
            "embedding_model_dims": given["dimension"],
            "client": QdrantClient(":memory:"),
        }
        self._memory = Memory.from_config(
            {
                "llm": {"provider": "openai", "config": model},
                "embedder": {"provider": "openai", "config": {"model": given["embedder"], **shared}},
                "vector_store": {"provider": "qdrant", "config": store},
                "history_db_path": ":memory:",
            }
        )
        self._order: dict[str, int] = {}
        """Ids of memories in the order in which they were first stored."""

    def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Add the turns of a unit as messages."""
        messages = [{"role": turn["role"], "content": _spoken(turn)} for turn in unit["turns"] if turn["text"].strip()]
        if not messages:
            return {"stored": 0, "changed": 0, "deleted": 0, "held": len(self._order)}
        metadata = {"source": [turn["id"] for turn in unit["turns"]], "said": unit["time_text"]}
        events = self._memory.add(messages, user_id=USER, metadata=metadata)["results"]
        counts = {"ADD": 0, "UPDATE": 0, "DELETE": 0}
        for event in events:
            kind = event.get("event", "ADD")
            counts[kind] = counts.get(kind, 0) + 1
            if kind == "ADD":
                self._order[event["id"]] = len(self._order)
            elif kind == "DELETE":
                self._order.pop(event["id"], None)
        stored, changed, deleted = counts["ADD"], counts["UPDATE"], counts["DELETE"]
        return {"stored": stored, "changed": changed, "deleted": deleted, "held": len(self._order)}

    def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The memories that a search finds; equal scores in the order of storing, which the product leaves open."""
        hits = self._memory.search(question["text"] or " ", filters={"user_id": USER}, top_k=question["k"])["results"]
        items = [_item(hit, float(hit.get("score") or 0.0)) for hit in hits]
        return sorted(items, key=lambda item: (-item["score"], self._order.get(item["id"], 0)))

    def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every memory that is held."""
        everything = self._memory.get_all(filters={"user_id": USER}, top_k=100_000)["results"]
        return sorted(
            (_item(memory, 0.0) for memory in everything),
            key=lambda item: self._order.get(item["id"], len(self._order)),
        )

    def close(self, _: dict[str, Any]) -> None:
        """Close its files."""
        self._memory.close()


def _spoken(turn: dict[str, Any]) -> str:
    return f"{turn['speaker']}: {turn['text']}" if turn["speaker"] else str(turn["text"])


def _item(hit: dict[str, Any], score: float) -> dict[str, Any]:
    metadata = hit.get("metadata") or {}
    kind = f"{hit['attributed_to']}_fact" if hit.get("attributed_to") else "fact"
    return {
        "id": hit["id"],
        "text": hit["memory"],
        "time_text": metadata.get("said", ""),
        "score": round(score, 6),
        "sources": metadata.get("source", []),
        "kind": kind,
    }
