"""cognee: `add` for each unit, `cognify` after each session, the product's default (hybrid) search for each question.

Runs in the environment of conf/product/cognee.txt, with SQLite, LanceDB and Ladybug in the scratch folder of the case. Date and speaker are
put into the text, because the product keeps them nowhere else. Of what a search would show to the product's own model a recall has
the passages with their exact sources, then entities and facts of the graph, whose sources are unknown; a third of `k` each.

`k: 30` is ten of each, as many as the product's search takes by default (`top_k` 15, at most 10 a lane).

The published evaluation on BEAM (its eval_framework/beam/REPORT.md) asks the same retriever for 20 passages and 20 entities, with the
retriever's own default of 5 facts, and answers under a prompt for each type of question. It adds a whole batch as one document, one passage
for each exchange, builds an index of summaries that the reported run on 100K does not read, and distils each session into the same memory.
Differences: here a unit is a document, `cognify` follows each session, and neither index nor distillation is built; the product's answer
and its session cache are turned off; contradictions between passages, a last section of the product's own context, are left out.
"""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {
    "TELEMETRY_DISABLED": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else a price file is fetched
    "HF_HUB_OFFLINE": "1",  # else a tokenizer
    "COGNEE_SKIP_CONNECTION_TEST": "true",
    "CACHING": "false",  # else a question is shown with the next one
    "AUTO_FEEDBACK": "false",
    "LLM_PROVIDER": "custom",
    "EMBEDDING_PROVIDER": "openai_compatible",
}
ABILITIES = {
    "sources": "exact for passages, unknown for entities and facts",
    "score": "rank",
    "time": "text",
    "read_only": True,
}
DATASET = "case"


class Product:
    """One installation for one case, in folders of its own."""

    def __init__(self, given: dict[str, Any]) -> None:
        import os

        os.environ.update(_settings(given))
        import cognee

        self._cognee = cognee
        self._turns: dict[str, list[str]] = {}
        """Ids of the turns of each unit."""
        self._waiting = False
        """Whether units were added since the graph was last made."""

    async def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Add a unit as a document. It is searched after its session."""
        from cognee.tasks.ingestion.data_item import DataItem

        name = {"unit": unit["id"]}
        document = DataItem(data=unit["document"], label=unit["id"], external_metadata=name, literal_text=True)
        _require_success(await self._cognee.add(document, dataset_name=DATASET))
        self._turns[unit["id"]] = unit["turn_ids"]
        self._waiting = True
        return {"stored": 1, "held": len(self._turns)}

    async def end_session(self, _: dict[str, Any]) -> None:
        """Make the graph of what was added."""
        if self._waiting:
            for outcome in (await self._cognee.cognify(datasets=[DATASET])).values():
                _require_success(outcome)
            self._waiting = False

    consolidate = end_session

    async def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """Passages, entities and facts, in the product's order."""
        from cognee import SearchType

        if not self._turns:
            return []
        third = question["k"] // 3
        lanes = {"chunks_top_k": question["k"] - 2 * third, "entities_top_k": third, "facts_top_k": third}
        metadata = {"include_external_metadata": True, "external_metadata_keys": ["unit"]}
        (found,) = await self._cognee.search(
            query_text=question["text"] or " ",
            query_type=SearchType.HYBRID_COMPLETION,
            datasets=[DATASET],
            top_k=question["k"],
            only_context=True,
            verbose=True,
            retriever_specific_config={**lanes, **metadata},
        )
        objects = found["objects_result"]
        passages = [self._passage(chunk) for chunk in objects["chunks"]]
        entities = [_known(entity, _described(entity), "entity") for entity in objects["entities"]]
        facts = [_known(fact, fact["text"], "fact") for fact in objects["facts"]]
        return [*passages, *entities, *facts]

    def _passage(self, chunk: Any) -> dict[str, Any]:
        unit = (chunk.payload.get("external_metadata") or {}).get("unit", "")
        return {
            "id": str(chunk.id),
            "text": chunk.payload["text"],
            "sources": self._turns.get(unit, []),
            "kind": "passage",
        }


def _settings(given: dict[str, Any]) -> dict[str, str]:
    """Models, folders and the folder in which litellm ships the files of its tokenizers."""
    import importlib.util
    from pathlib import Path

    scratch, litellm = Path(given["scratch"]), importlib.util.find_spec("litellm")
    if litellm is None or not litellm.submodule_search_locations:
        raise ImportError("litellm is not installed")
    return {
        "LLM_MODEL": f"openai/{given['model']}",
        "LLM_ENDPOINT": given["base_url"],
        "LLM_API_KEY": given["key"],
        "EMBEDDING_MODEL": given["embedder"],
        "EMBEDDING_ENDPOINT": given["base_url"],
        "EMBEDDING_API_KEY": given["key"],
        "EMBEDDING_DIMENSIONS": str(given["dimension"]),
        "TIKTOKEN_CACHE_DIR": str(Path(litellm.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"),
        **{
            name: str(scratch / name.lower())
            for name in ("DATA_ROOT_DIRECTORY", "SYSTEM_ROOT_DIRECTORY", "CACHE_ROOT_DIRECTORY", "COGNEE_LOGS_DIR")
        },
    }


def _require_success(outcome: Any) -> None:
    """Raise what the product only reports.

    Raises:
        RuntimeError: the pipeline ended with an error.
    """
    if "Errored" in str(getattr(outcome, "status", "")):
        raise RuntimeError(f"{outcome.status}: {getattr(outcome, 'error_message', None) or outcome.payload}")


def _described(entity: dict[str, Any]) -> str:
    """An entity with its description and connections, one a line."""
    lines = [entity["name"], entity.get("description") or "", *(edge.get("text") or "" for edge in entity["edges"])]
    return "\n".join(dict.fromkeys(line for line in lines if line))


def _known(node: dict[str, Any], text: str, kind: str) -> dict[str, Any]:
    return {"id": str(node["id"]), "text": text, "sources": [], "kind": kind}
