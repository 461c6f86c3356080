"""EverOS: `/memory/add` in batches, `/memory/flush` after each session, and `/memory/search` for each question, within the process.

Runs in the environment of conf/product/everos.txt, with Python 3.12 or later, and SQLite, LanceDB and Markdown files in the scratch
folder of the case. The requests go to the product's own application without a socket. litellm is installed for one of its files alone,
the vocabulary with which the product counts tokens, which it would fetch.

A recall holds the product's episodes, `subject: text` as in its benchmark, with the date of the session in front. The sources of an
episode are the turns of the piece of the session that it was made from, as the product's ledger has them: a window, not the sentence
that matters. Episodes are kept for each person who speaks, the same text for each; as in the benchmark, those of the first person are
searched, and `episodes_not_searched` in the report counts pieces in which this person does not speak. A speaker called assistant is one;
every other is a person, whatever the role.

The settings are those of the repository's LoCoMo runner (EverMind-AI/EverOS, benchmarks/README.md, run.py and config.py): mode `chat`,
batches of 25 messages that follow one another by 30 s, a flush after each session, `extract_foresight` and `extract_user_profile` off,
10 episodes for a question. Its wait rule is kept without its polling: the offline strategies are awaited until none runs, then the index
until no file waits; what failed for good fails the step, as it ends the runner. That README searches by `agentic`, which needs a
reranker that no chat endpoint serves; a later configuration of the runner (benchmarks/configs/evermembench.toml) searches by
`llm_multiround`, the default here. There the index is stopped before questions are asked; here a later session may follow.
"""

from __future__ import annotations

import json
from typing import Any

ENVIRONMENT = {
    "EVEROS_MEMORIZE__MODE": "chat",
    "EVEROS_DISABLE_CASCADE_WATCHER": "1",  # every flush scans; changes from outside do not occur
    "EVEROS_OBSERVABILITY__ENABLED": "false",
}
ABILITIES = {"sources": "window", "score": "rank", "time": "parameter", "read_only": True}
METHODS = ("llm_multiround", "hybrid", "vector", "keyword")
BATCH = 25
"""Messages of a request."""
APART = 30_000
"""Milliseconds from one message of a session to the next."""
STRATEGIES = """\
[strategies.extract_foresight]
enabled = false
[strategies.extract_user_profile]
enabled = false
"""


class Product:
    """One memory root for one case."""

    def __init__(self, given: dict[str, Any]) -> None:
        import os
        from pathlib import Path

        self._method = str(given["settings"].get("method", METHODS[0]))
        if self._method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; found {self._method}")
        self._root = Path(given["scratch"]) / "everos"
        self._rounds = self._root / "rounds.jsonl"
        os.environ.update(_settings(given, str(self._root), str(self._rounds)))
        self._root.mkdir()
        (self._root / "ome.toml").write_text(STRATEGIES, encoding="utf-8")
        self._waiting: list[dict[str, Any]] = []
        """Messages of the open session that no request has had yet."""
        self._session = ""
        self._last = 0
        """Time of the session's last message in milliseconds."""
        self._unflushed = False
        self._turns: dict[tuple[str, int], tuple[str, str]] = {}
        """Turn, and time of its unit as the dialogue has it, by session and time of the message."""
        self._senders: dict[str, str] = {}
        """Ids of speakers."""
        self._owner = ""
        """The person whose episodes are searched."""
        self._cells: dict[tuple[str, int], list[int]] = {}
        """Times of the messages of each piece, by its session and the time of its last message."""

    async def open(self, _: dict[str, Any]) -> None:
        """Start the product's application, which makes its tables."""
        import httpx
        from everos.core.observability.logging import configure_logging
        from everos.entrypoints.api.app import create_app

        configure_logging("WARNING")
        app = create_app()
        self._life = app.router.lifespan_context(app)
        await self._life.__aenter__()
        self._strategies, self._index = (app.state.lifespan_data[name] for name in ("ome", "cascade"))
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://everos")

    async def write(self, unit: dict[str, Any]) -> dict[str, int]:
        """Take the turns of a unit; a full batch is sent. What a session says is searched after its end."""
        if unit["session"] != self._session:
            await self.end_session({})
            self._session, self._last = unit["session"], 0
        for turn in unit["turns"]:
            self._waiting.append(self._message(unit, turn))
            if len(self._waiting) == BATCH:
                await self._send()
        return {"stored": 1, "held": len(self._cells)}

    def _message(self, unit: dict[str, Any], turn: dict[str, Any]) -> dict[str, Any]:
        import time

        # Without a date it is now; the product reads fewer milliseconds than 10^12, before September 2001, as seconds.
        stamp = max(time.time(), 1e9) if unit.get("stamp") is None else unit["stamp"]
        self._last = max(round(stamp * 1000), self._last + APART)
        self._turns[_session_id(self._session), self._last] = (turn["id"], unit["time_text"])
        role, sender = _role(turn), self._sender(turn["speaker"] or turn["role"])
        if role == "user" and not self._owner:
            self._owner = sender
        self._unflushed = True
        return {
            "sender_id": sender,
            "sender_name": turn["speaker"] or turn["role"],
            "role": role,
            "timestamp": self._last,
            "content": turn["text"],
        }

    def _sender(self, speaker: str) -> str:
        """An id that the product takes as the name of a folder."""
        if speaker not in self._senders:
            plain = "".join(each if each.isascii() and each.isalnum() else "_" for each in speaker.lower())[:60]
            self._senders[speaker] = f"{plain}_{len(self._senders)}"
        return self._senders[speaker]

    async def _send(self) -> None:
        messages, self._waiting = self._waiting, []
        if messages:
            await self._post("memory/add", {"session_id": _session_id(self._session), "messages": messages})

    async def end_session(self, _: dict[str, Any]) -> None:
        """Send what is left of the session, close its last piece, and wait until all of it is in the index.

        Raises:
            RuntimeError: something of it is not.
        """
        if not self._unflushed:
            return
        await self._send()
        await self._post("memory/flush", {"session_id": _session_id(self._session)})
        self._unflushed = False
        if not await self._strategies.wait_idle(timeout=3600):
            raise RuntimeError("the offline strategies did not end within an hour")
        await self._require_success()
        await self._fill_index()
        self._cells = _cells(self._root)

    async def _fill_index(self) -> None:
        """Bring all files of the memory into the index; `drain_fully` would also wait a minute for the tables to be compacted.

        Raises:
            RuntimeError: a file cannot be brought in.
        """
        import asyncio

        await self._index._scanner.scan_once()
        while (left := await self._index.queue_summary()).pending:
            if not await self._index._worker.drain_once():  # the product's own task has taken them
                await asyncio.sleep(0.05)
        if left.failed_permanent or left.failed_retryable:
            raise RuntimeError(f"the index lacks files of the memory: {left}")

    async def consolidate(self, _: dict[str, Any]) -> dict[str, int]:
        """Close an open session; counts the pieces in which the searched person speaks, and the others."""
        await self.end_session({})
        heard = _cells(self._root, self._owner)
        return {"episodes": len(heard), "episodes_not_searched": len(self._cells) - len(heard)}

    async def _require_success(self) -> None:
        """Raise what the product only records.

        Raises:
            RuntimeError: a strategy was given up.
        """
        from everos.infra.ome.records import RunStatus

        for name in ("extract_atomic_facts", "trigger_profile_clustering"):
            for status in (RunStatus.DEAD_LETTER, RunStatus.CRASHED):
                for run in await self._strategies.list_runs(name, status=status, limit=1):
                    raise RuntimeError(f"{name} was given up: {run.error}")

    async def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The episodes that a search finds, in its order.

        Raises:
            RuntimeError: no reply of the model that steers the search could be read, and the product would go on without.
        """
        if not self._cells or not self._owner:
            return []
        asked = {"query": question["text"] or " ", "method": self._method, "top_k": question["k"]}
        self._rounds.unlink(missing_ok=True)
        found = (await self._post("memory/search", {**asked, "user_id": self._owner}))["episodes"]
        if self._rounds.is_file() and '"decider_failed": true' in self._rounds.read_text(encoding="utf-8"):
            raise RuntimeError("no reply about the episodes found could be read; the product takes the first ones")
        return [self._item(episode) for episode in found]

    def _item(self, episode: dict[str, Any]) -> dict[str, Any]:
        from datetime import datetime

        session = episode["session_id"]
        ended = round(datetime.fromisoformat(episode["timestamp"]).timestamp() * 1000)
        turns = [self._turns[session, moment] for moment in self._cells.get((session, ended), ())]
        return {
            "id": episode["id"],
            "text": f"{episode['subject']}: {episode['episode']}",
            "time_text": turns[0][1] if turns else "",
            "sources": [turn for turn, _ in turns],
            "kind": "episode",
        }

    async def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """Every episode of the person whose episodes are searched, the oldest first."""
        held: list[dict[str, Any]] = []
        asked = {"user_id": self._owner, "memory_type": "episode", "page_size": 100, "sort_order": "asc"}
        while self._owner:
            page = (await self._post("memory/get", {**asked, "page": len(held) // 100 + 1}))["episodes"]
            held += [self._item(episode) for episode in page]
            if len(page) < 100:
                break
        return held

    async def close(self, _: dict[str, Any]) -> None:
        """Close the tables."""
        await self._client.aclose()
        await self._life.__aexit__(None, None, None)

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The data of a reply.

        Raises:
            RuntimeError: it tells of an error.
        """
        reply = await self._client.post(f"/api/v2/{path}", json=body, timeout=None)
        if reply.status_code != 200:
            raise RuntimeError(f"{path}: {reply.status_code} {reply.text[:500]}")
        data: dict[str, Any] = reply.json()["data"]
        return data


def _settings(given: dict[str, Any], root: str, rounds: str) -> dict[str, str]:
    """Models, folders, and the folder in which litellm ships the vocabulary."""
    import importlib.util
    from pathlib import Path

    litellm = importlib.util.find_spec("litellm")
    if litellm is None or not litellm.submodule_search_locations:
        raise ImportError("litellm is not installed")
    return {
        "EVEROS_ROOT": root,
        "EVEROS_LLM__MODEL": given["model"],
        "EVEROS_LLM__BASE_URL": given["base_url"],
        "EVEROS_LLM__API_KEY": given["key"],
        "EVEROS_EMBEDDING__MODEL": given["embedder"],
        "EVEROS_EMBEDDING__BASE_URL": given["base_url"],
        "EVEROS_EMBEDDING__API_KEY": given["key"],
        "EVEROS_EMBEDDING__DIM": str(given["dimension"]),
        "EVEROS_LLMMR_TRACE_DUMP": rounds,
        "TIKTOKEN_CACHE_DIR": str(Path(litellm.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"),
    }


def _session_id(session: str) -> str:
    """A session's id as the product takes it: at most 128 characters, and told apart from others."""
    import hashlib

    return session if len(session) <= 100 else f"{session[:60]}-{hashlib.sha256(session.encode()).hexdigest()[:16]}"


def _role(turn: dict[str, Any]) -> str:
    """`assistant` for a speaker of that name, or without one; everybody else is a person, as in the product's benchmark."""
    named = turn["speaker"].strip().casefold()
    return "assistant" if turn["role"] == "assistant" and named in ("", "assistant") else "user"


def _cells(root: Any, person: str = "") -> dict[tuple[str, int], list[int]]:
    """Times of the messages of each piece, by its session and the time of its last message.

    Args:
        person: only pieces in which this person speaks.
    """
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(f"file:{root}/.index/sqlite/system.db?mode=ro", uri=True)) as ledger:
        rows = ledger.execute("SELECT session_id, payload_json FROM memcell").fetchall()
    cells: dict[tuple[str, int], list[int]] = {}
    for session, payload in rows:
        messages = json.loads(payload)["items"]
        if not person or any(each["sender_id"] == person and each["role"] == "user" for each in messages):
            cells[session, messages[-1]["timestamp"]] = [each["timestamp"] for each in messages]
    return cells
