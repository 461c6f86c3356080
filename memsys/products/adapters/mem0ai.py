"""mem0ai 2.x and 1.x: `Memory.add` for each unit, `Memory.search` for each question, an in-memory Qdrant and SQLite.

Runs in the environment of conf/product/mem0ai.txt (2.x: one call that adds) or mem0ai_1.txt (1.x: facts, then a decision to add, update
or delete): no spaCy and no fastembed, hence neither keyword scores nor entities, as a plain `pip install mem0ai` has it: the title says
"semantic search only". The extras fetch a language model when they first run, and no package index has it.
Names of speakers are put into the text, because the product drops the field `name`.

Mem0's own evaluation of 2.x on LoCoMo runs with both extras, adds one turn a call, takes the 200 best memories and shows them in the
order of time. Ours adds a pair of turns and takes 20 (conf/memory/released_mem0.yaml, the default of a search);
conf/memory/released_mem0_protocol.yaml and reader=mem0_protocol have its units, number and order. The evaluation of 1.x keeps a store
for each speaker and takes 30 from each, which `memory=mem0` does with k 60; the adapter keeps one store and takes 20
(conf/memory/released_mem0_1.yaml): the two do not belong in one table without `memory.build.k=60`. Mem0's later judge is more lenient
than ours, so that its published scores stand next to none of ours.

1.x takes facts from messages of the user alone. `roles: user` sends what both speakers say as the user's messages; `roles: dialogue`
sends the roles as the data have them, and nothing that the other speaker says can be recalled. 1.x writes the day on which its module
was imported into its prompts; the adapter puts the day of the unit there.
"""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {"MEM0_TELEMETRY": "False"}
ABILITIES = {"sources": "exact", "score": "similarity", "time": "clock", "read_only": True}
USER = "case"
TODAY = "Today's date is "
"""Stands before the date in the prompts of 1.x."""


class Product:
    """One `Memory` for one case."""

    def __init__(self, given: dict[str, Any]) -> None:
        import os
        from importlib.metadata import version

        os.environ["MEM0_DIR"] = given["scratch"]
        from mem0 import Memory
        from qdrant_client import QdrantClient

        self._first = version("mem0ai").startswith("1.")
        """Whether it is 1.x."""
        self._as_user = given["settings"].get("roles", "dialogue") == "user"
        sizes = {"embedding_dims": given["dimension"]} if self._first else {}  # 1.x would ask for 1,536
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
                "embedder": {"provider": "openai", "config": {"model": given["embedder"], **sizes, **shared}},
                "vector_store": {"provider": "qdrant", "config": store},
                "history_db_path": ":memory:",
            }
        )
        self._order: dict[str, int] = {}
        """Ids of memories in the order in which they were first stored."""

    def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Add the turns of a unit as messages."""
        messages = [
            {"role": "user" if self._as_user else turn["role"], "content": turn["spoken"]} for turn in unit["turns"]
        ]
        if self._first:
            _date_prompts()
        metadata = {"source": unit["turn_ids"], "said": unit["time_text"]}
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
        hits = self._memory.search(question["text"] or " ", **self._scope(question["k"]))["results"]
        items = [_item(hit, float(hit.get("score") or 0.0)) for hit in hits]
        return sorted(items, key=lambda item: (-item["score"], self._order.get(item["id"], 0)))

    def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every memory that is held."""
        everything = self._memory.get_all(**self._scope(100_000))["results"]
        return sorted(
            (_item(memory, 0.0) for memory in everything),
            key=lambda item: self._order.get(item["id"], len(self._order)),
        )

    def _scope(self, most: int) -> dict[str, Any]:
        return {"user_id": USER, "limit": most} if self._first else {"filters": {"user_id": USER}, "top_k": most}

    def close(self, _: dict[str, Any]) -> None:
        """Close its files."""
        self._memory.close()


def _date_prompts() -> None:
    """Put today's date, by the clock that the product sees, into the prompts of 1.x in place of the day of the import."""
    import datetime

    from mem0.memory import utils

    today = datetime.datetime.now().strftime("%Y-%m-%d")
    for name in [name for name in vars(utils) if name.endswith("_PROMPT")]:
        before, dated, after = getattr(utils, name).partition(TODAY)
        if dated:
            setattr(utils, name, before + dated + today + after[len(today) :])


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
