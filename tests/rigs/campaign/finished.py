"""Find the finished calls of a run, and check whether a start of its command repeats a finished call.

A call is finished once its answer is committed in the cache.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from memsys.jsons import canonical
from scripts.mock.endpoint import Mock

MODEL = "mock"
"""Name of the model and label of the endpoint."""
REPLY = re.compile(r"mock (?:answer )?([0-9a-f]{8})")
"""The mock endpoint's replies: they contain the beginning of the hash of the request."""

Calls = Counter[str]
"""Number of times that each call was made: chat completions by the beginning of their request's hash, embeddings by text."""


class Counting(Mock):
    """The mock endpoint; it records the content of each call that it answered."""

    def __init__(self, latency: float = 0.0) -> None:
        super().__init__(latency)
        self.log: list[tuple[str, ...]] = []

    async def handle(self, request: Any) -> Any:
        response = await super().handle(request)
        body = await request.read()
        texts = json.loads(body).get("input")
        self.log.append(tuple(map(str, texts)) if texts is not None else (sha256(body).hexdigest()[:8],))
        return response

    def in_flight(self) -> int:
        """Number of calls that have arrived and are not answered."""
        return sum(self.arrivals.values()) - len(self.log)


def made(calls: Sequence[tuple[str, ...]]) -> Calls:
    """Count the calls by their content."""
    return Counter(asked for call in calls for asked in call)


def committed(cache: Path, texts: Collection[str]) -> Calls:
    """The content of a cache file: completions, and vectors of these texts. A copy is opened, because the next run must recover the file.

    Raises:
        ValueError: it holds a reply that this endpoint did not send.
    """
    if not cache.is_file():
        return Counter()
    with tempfile.TemporaryDirectory() as folder:
        for path in cache.parent.glob(f"{cache.name}*"):
            shutil.copy(path, folder)
        with closing(sqlite3.connect(Path(folder, cache.name))) as file:
            rows = file.execute("SELECT completion FROM answers UNION ALL SELECT completion FROM outcomes").fetchall()
            vectors = {key for (key,) in file.execute("SELECT key FROM vectors")}
    found = [REPLY.search(json.loads(completion)["text"]) for (completion,) in rows]
    by_key = {sha256(canonical(["embedding", MODEL, MODEL, False, text])).digest(): text for text in texts}
    if None in found or vectors - by_key.keys():
        raise ValueError(f"{cache} holds an answer of another endpoint")
    return Counter([reply[1] for reply in found if reply]) + Counter(by_key[key] for key in vectors)


@dataclass(frozen=True, slots=True)
class Life:
    """Counts of one start of the command, up to its end or its kill."""

    calls: int
    again: int
    """Number of calls, and texts of embedding calls, that it made although all their answers were committed before it began."""
    lost: int
    """Number of calls that were answered and not committed."""


def life(calls: Sequence[tuple[str, ...]], whole: Calls, before: Calls, after: Calls) -> Life:
    """Count the repeated and lost calls of one start.

    Args:
        calls: the answered calls.
        whole: the calls of an undisturbed run, which makes some requests more than once.
        before: the calls that were committed when it began.
        after: the calls that were committed when it had ended.
    """
    asked, new = made(calls), after - before
    again = sum(max(0, count - (whole[name] - before[name])) for name, count in asked.items())
    lost = 0
    for call in reversed(calls):  # of several calls with the same content, the last are lost
        missing = [name for name in call if asked[name] > new[name]]
        lost += bool(missing)
        asked.subtract(missing)
    return Life(len(calls), again, lost)
