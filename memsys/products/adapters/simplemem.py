"""simplemem: `add_dialogue` for each turn, `finalize` before questions are read, planned retrieval for each question.

Runs in the environment of conf/product/simplemem.txt, which leaves sentence-transformers (and torch) out: a module of that name asks the
gateway for vectors. Windows are processed one after another, because parallel ones come back in any order. The product prints the loss
of a window whose replies it could not read and goes on; here it is an error. An item's sources are all turns of its window. Keyword
search is silently empty with lancedb 0.40, and the planned retrieval does not use it.

The product's own evaluation on LoCoMo adds the turns of a conversation one by one and answers from all that the planned retrieval
returns: up to four queries of 25 hits each, without repetitions, and what up to two rounds of reflection add. So does a recall with
`k: null`; a number keeps the first hits, nearly all of them of the first query. Like the product's answer prompt, an item shows place,
persons, entities and topic of a memory under its text. Differences: windows and searches are not parallel, replies are not streamed,
and the answer is our reader's.
"""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {"HF_HUB_OFFLINE": "1"}
ABILITIES = {"sources": "window", "score": "rank", "time": "parameter", "read_only": True}


class Product:
    """One system for one case, its tables in the scratch folder."""

    def __init__(self, given: dict[str, Any]) -> None:
        import os

        _stand_in_for_sentence_transformers(given)
        from simplemem.config import SimpleMemConfig, set_config
        from simplemem.system import SimpleMemSystem

        config = SimpleMemConfig(
            openai_base_url=given["base_url"],
            openai_api_key=given["key"],
            llm_model=given["model"],
            embedding_model=given["embedder"],
            embedding_dimension=given["dimension"],
            lancedb_path=os.path.join(given["scratch"], "lancedb"),
            use_streaming=False,
            enable_parallel_processing=False,
            enable_parallel_retrieval=False,
            **given["settings"],
        )
        set_config(config)
        self._system = SimpleMemSystem()
        self._builder = self._system.memory_builder
        self._turns: list[str] = []
        """Ids of the turns, by the number of their dialogue entry."""
        self._window: dict[str, list[str]] = {}
        """Ids of the turns of each memory's window, in the order of storing."""
        self._watch()

    def _watch(self) -> None:
        """Keep the window of each memory, and raise where all replies to a window were unreadable."""
        generate, parse = self._builder._generate_memory_entries, self._builder._parse_llm_response
        read: list[bool] = []

        def parsed(*arguments: Any) -> Any:
            entries = parse(*arguments)
            read.append(True)
            return entries

        def generated(dialogues: list[Any]) -> Any:
            read.clear()
            entries = generate(dialogues)
            if not read:
                raise RuntimeError(
                    f"no reply to a window of {len(dialogues)} turns could be read; the product drops them"
                )
            turns = [self._turns[dialogue.dialogue_id] for dialogue in dialogues]
            self._window.update({entry.entry_id: turns for entry in entries})
            return entries

        self._builder._parse_llm_response, self._builder._generate_memory_entries = parsed, generated

    def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Add the turns of a unit; memories are made when a window is full."""
        from simplemem.models.memory_entry import Dialogue

        before = len(self._window)
        for turn in unit["turns"]:
            said = Dialogue(
                dialogue_id=len(self._turns), speaker=turn["speaker"], content=turn["text"], timestamp=unit["time"]
            )
            self._turns.append(turn["id"])
            self._builder.add_dialogue(said)
        return {"stored": len(self._window) - before, "held": len(self._window)}

    def consolidate(self, _: dict[str, Any]) -> None:
        """Make memories of the last, shorter window."""
        self._system.finalize()

    def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The memories of the planned retrieval in its order: all of them, or the first `k`."""
        found = self._system.hybrid_retriever.retrieve(question["text"] or " ")[: question["k"]]
        return [self._item(entry) for entry in found]

    def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every memory that is held."""
        entries = {entry.entry_id: entry for entry in self._system.get_all_memories()}
        return [self._item(entries[name]) for name in self._window if name in entries]

    def _item(self, entry: Any) -> dict[str, Any]:
        return {
            "id": entry.entry_id,
            "text": _shown(entry),
            "time_text": entry.timestamp or "",
            "sources": self._window.get(entry.entry_id, []),
            "kind": "fact",
        }


def _shown(entry: Any) -> str:
    """A memory as the product shows it to its own model, but for the time: its text, and a line for each field that it has."""
    fields = (
        ("Location", entry.location or ""),
        ("Persons", ", ".join(entry.persons)),
        ("Related entities", ", ".join(entry.entities)),
        ("Topic", entry.topic or ""),
    )
    return "\n".join([entry.lossless_restatement, *(f"{name}: {value}" for name, value in fields if value)])


def _stand_in_for_sentence_transformers(given: dict[str, Any]) -> None:
    """Put a module in the place of sentence-transformers, whose model asks the gateway."""
    import sys
    from types import ModuleType

    import numpy as np
    from openai import OpenAI

    client = OpenAI(base_url=given["base_url"], api_key=given["key"])

    class SentenceTransformer:
        prompts: dict[str, str] = {}  # noqa: RUF012  as in the original

        def __init__(self, name: str, **_: Any) -> None:
            self._name = name

        def get_sentence_embedding_dimension(self) -> int:
            return int(given["dimension"])

        def encode(self, texts: list[str], **_: Any) -> Any:
            vectors = client.embeddings.create(model=self._name, input=[text or " " for text in texts]).data
            return np.array([vector.embedding for vector in vectors], dtype=np.float32)

    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = SentenceTransformer  # type: ignore[attr-defined]
    sys.modules["sentence_transformers"] = module
