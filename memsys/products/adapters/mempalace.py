"""MemPalace: one drawer for each unit, filed as its live integrations file an exchange; `search_memories` for each question; no model.

Runs in the environment of conf/product/mempalace.txt, its palace (Chroma) in the scratch folder of the case. The pins leave out what this
path never imports, above all ONNX Runtime, tokenizers and kubernetes, 285 of 499 MB. By default the product embeds with a model that it
downloads; its setting `openai-compat` asks the gateway instead, and these are its only calls. `convo_miner.file_conversation_exchange`
files the lines of a unit verbatim, with the unit's time as `authored_at`; a drawer can be found when the call returns. The product makes
the ids of drawers from the moment of filing, so an item here has the id of its unit, whose turns are its exact sources. A search reports
errors in its reply; here they are raised.

A search is the product's default: the drawers that are nearest by cosine, four times `k` of them, reranked by 0.6 similarity and 0.4 BM25.
The makers evaluate something else: `benchmarks/locomo_bench.py` of MemPalace/mempalace calls Chroma itself, with MiniLM, and measures
the recall of evidence; nothing is answered. `benchmarks/BENCHMARKS.md` reports it at ten results for each question (60.3 % by sessions,
48.0 % by turns, 88.9 % with boosts that are in the benchmark's script and not in the product): hence `k: 10`.
Differences: the product's own search, its exchange (a pair of turns) as the unit, the embedder of the table, our reader.
"""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {"MEMPALACE_EMBEDDING_MODEL": "openai-compat", "ANONYMIZED_TELEMETRY": "False"}
ABILITIES = {"sources": "exact", "score": "rank", "time": "parameter", "read_only": True}
WING, ROOM, SOURCE = "case", "conversations", "dialogue"


class Product:
    """One palace for one case."""

    def __init__(self, given: dict[str, Any]) -> None:
        import os

        os.environ["MEMPALACE_EMBEDDING_API_URL"] = given["base_url"]
        os.environ["MEMPALACE_EMBEDDING_API_MODEL"] = given["embedder"]
        os.environ["MEMPALACE_EMBEDDING_API_KEY"] = given["key"]
        from mempalace.palace import get_collection

        self._palace = os.path.join(given["scratch"], "palace")
        self._drawers = get_collection(self._palace, create=True)
        self._units: dict[str, dict[str, Any]] = {}
        """Filed units, by the id of their drawer, in the order of filing."""

    def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """File a unit as one drawer."""
        from mempalace.convo_miner import file_conversation_exchange

        drawer = file_conversation_exchange(
            self._drawers,
            wing=WING,
            room=ROOM,
            text=unit["text"],
            source_file=SOURCE,
            agent="harness",
            authored_at=unit["time"],
        )
        if drawer is not None:
            self._units[drawer] = unit
        return {"stored": int(drawer is not None), "held": len(self._units)}

    def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The drawers that a search finds, in its order.

        Raises:
            RuntimeError: the product reports an error.
        """
        from mempalace.searcher import search_memories

        if not self._units:
            return []
        reply = search_memories(question["text"] or " ", self._palace, n_results=question["k"])
        if "error" in reply:
            raise RuntimeError(f"the search failed: {reply['error']}")
        return [self._item(hit["drawer_id"], hit["text"]) for hit in reply["results"]]

    def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every drawer that is held, in the order of filing."""
        held = self._drawers.get(ids=list(self._units), include=["documents"])
        texts = dict(zip(held.ids, held.documents, strict=True))
        return [self._item(drawer, texts[drawer]) for drawer in self._units if drawer in texts]

    def _item(self, drawer: str, text: str) -> dict[str, Any]:
        unit = self._units[drawer]
        return {
            "id": unit["id"],
            "text": text,
            "time_text": unit["time_text"],
            "sources": unit["turn_ids"],
            "kind": "drawer",
        }
