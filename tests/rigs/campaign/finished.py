"""Which calls of a run are finished, and whether a start of its command makes a finished one again.

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
"""What the mock endpoint says of the request that it answers: the beginning of its hash."""

Calls = Counter[str]
"""How often each was made: chat completions by the beginning of their request's hash, embeddings by text."""


class Counting(Mock):
    """The mock endpoint; it remembers what each call that it answered asked for."""

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
        """Calls that have arrived and are not answered."""
        return sum(self.arrivals.values()) - len(self.log)


def made(calls: Sequence[tuple[str, ...]]) -> Calls:
    """What calls asked for, counted."""
    return Counter(asked for call in calls for asked in call)


def committed(cache: Path, texts: Collection[str]) -> Calls:
    """What a cache file holds: completions, and the vectors of these texts. A copy of it is opened: the next run has to recover it itself.

    Raises:
        ValueError: it holds something that this endpoint did not say.
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
    """What one start of the command did, up to its end or its kill."""

    calls: int
    again: int
    """Calls, and texts of embedding calls, that it made although all their answers were committed before it began."""
    lost: int
    """Calls that were answered and not committed."""


def life(calls: Sequence[tuple[str, ...]], whole: Calls, before: Calls, after: Calls) -> Life:
    """What one start did.

    Args:
        calls: those that were answered.
        whole: what an undisturbed run makes, some requests more than once.
        before: what was committed when it began.
        after: what was committed when it had ended.
    """
    asked, new = made(calls), after - before
    again = sum(max(0, count - (whole[name] - before[name])) for name, count in asked.items())
    lost = 0
    for call in reversed(calls):  # of several for the same, the last are lost
        missing = [name for name in call if asked[name] > new[name]]
        lost += bool(missing)
        asked.subtract(missing)
    return Life(len(calls), again, lost)
