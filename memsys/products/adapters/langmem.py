"""langmem: the store manager with its default settings for each unit, a search of its store for each question, all in memory.

Runs in the environment of conf/product/langmem.txt. Date and speaker are put into the text of messages, because the product has no
field for them. It keeps no metadata either: a memory's sources are the units whose write put it, as the product reports them. Of a unit
it looks up related memories by the last message alone.

The product has no published evaluation. Its search tool shows a model every field of a stored item, so an item here has the day of
`updated_at`: by the dialogue's clock the day of the unit that wrote the memory last. Differences: namespace and key are not shown, nor
the time of day; a memory from a unit without a date shows none, because the clock then has only a stand-in for it.
"""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}
ABILITIES = {"sources": "exact", "score": "similarity", "time": "text", "read_only": True}
CONFIG = {"configurable": {"langgraph_user_id": "case"}}
NAMESPACE = ("memories", "case")
ALL = 100_000


class Product:
    """One store for one case."""

    def __init__(self, given: dict[str, Any]) -> None:
        from langchain_openai import ChatOpenAI, OpenAIEmbeddings
        from langgraph.store.memory import InMemoryStore
        from langmem import create_memory_store_manager

        shared = {"base_url": given["base_url"], "api_key": given["key"]}
        # With its check of lengths it would fetch a tokenizer.
        embed = OpenAIEmbeddings(model=given["embedder"], check_embedding_ctx_length=False, **shared)
        model = ChatOpenAI(model=given["model"], **given["settings"].get("llm", {}), **shared)
        self._store = InMemoryStore(index={"dims": given["dimension"], "embed": embed, "fields": ["content.content"]})
        self._manager = create_memory_store_manager(
            model,
            namespace=("memories", "{langgraph_user_id}"),
            store=self._store,
            **given["settings"].get("manager", {}),
        )
        # As soon as there are memories the product repeats a failed call until its graph has made this many steps.
        self._config = {**CONFIG, "recursion_limit": given["settings"].get("recursion_limit", 25)}
        self._undated: set[str] = set()
        """Keys of memories that were last written by a unit without a date."""
        self._sources: dict[str, list[str]] = {}
        """Turns behind each memory, by its key, in the order of storing."""

    def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Have the manager store what is worth it in the turns of a unit.

        Raises:
            RuntimeError: the store lacks a memory that the manager reports as stored.
        """
        said = f"[{unit['time_text']}] " if unit["time_text"] else ""
        messages = [{"role": turn["role"], "content": said + turn["spoken"]} for turn in unit["turns"]]
        put = [each["key"] for each in self._manager.invoke({"messages": messages}, config=self._config)]
        lost = [key for key in put if self._store.get(NAMESPACE, key) is None]
        if lost:
            raise RuntimeError(
                f"{len(lost)} of {len(put)} memories that langmem reports as stored are not in its store"
            )
        new = [key for key in put if key not in self._sources]
        self._undated = self._undated - set(put) if said else self._undated | set(put)
        for key in put:
            turns = self._sources.setdefault(key, [])
            turns += [turn for turn in unit["turn_ids"] if turn not in turns]
        return {"stored": len(new), "changed": len(put) - len(new), "held": len(self._sources)}

    def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The memories that a search finds; equal scores in the order of storing."""
        hits = self._manager.search(query=question["text"] or " ", limit=question["k"], config=self._config)
        order = {key: place for place, key in enumerate(self._sources)}
        items = [self._item(hit, float(hit.score or 0.0)) for hit in hits]
        return sorted(items, key=lambda item: (-item["score"], order.get(item["id"], 0)))

    def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every memory that is held."""
        held = {hit.key: hit for hit in self._store.search(NAMESPACE, limit=ALL)}
        return [self._item(held[key], 0.0) for key in self._sources if key in held]

    def _item(self, hit: Any, score: float) -> dict[str, Any]:
        return {
            "id": hit.key,
            "text": _content(hit.value),
            "time_text": "" if hit.key in self._undated else hit.updated_at.strftime("%d %B %Y"),
            "score": round(score, 6),
            "sources": self._sources.get(hit.key, []),
            "kind": "fact",
        }


def _content(value: Any) -> str:
    """The text of a memory: the store holds it as JSON, a search of the manager returns an object."""
    return str(value["content"]["content"] if isinstance(value, dict) else value.content)
