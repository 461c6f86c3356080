"""Every bad reply of the catalogue on every memory: a run that gets it, and a healthy run after it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from scripts.commands.cache import repair
from scripts.mock.endpoint import Mock, application, serving
from tests.rigs.campaign.catalogue import CATALOGUE, Bad, Sent
from tests.rigs.campaign.trial import (
    QUESTIONS,
    Ended,
    Outcome,
    broken_promises,
    differing,
    history,
    predictions,
    run_here,
    settings,
)
from tests.rigs.campaign.trial import results as left_by

SHARE = 0.25
"""Share of requests that get a bad reply, for replies that end the run's work on the request; readable replies are always sent."""
NEVER = 1.0
"""The position of a request that no run makes."""
LATE = 2.0
"""Seconds of the client's timeout: more than a loaded machine needs for a reply that is not late."""

STARTS = 5
"""Maximum number of starts until a run without bad replies is complete: a loaded machine is late by itself, and a new start retries."""


class BadServer(Mock):
    """The mock, with one kind of bad reply to a fixed set of requests; the undisturbed run makes at least one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: Bad | None = None
        self.undisturbed = True
        """Whether the undisturbed run is running."""
        self.lowest = {"chat": NEVER, "embeddings": NEVER}
        """The smallest position of the undisturbed run's requests, by kind of request: this request gets a bad reply first."""

    async def handle(self, request: Any) -> Any:
        bad, to = self.bad, "embeddings" if request.path.endswith("/embeddings") else "chat"
        if bad is not None and to != bad.to:
            return await super().handle(request)
        body = await request.read()
        key = hashlib.sha256(body).hexdigest()
        if self.undisturbed:
            self.lowest[to] = min(self.lowest[to], _place(key))
        if bad is None or (bad.taken != "read" and _place(key) > max(SHARE, self.lowest[to])):
            return await super().handle(request)
        self.arrivals[key] += 1
        self.injected[bad.kind] += 1
        made = bad.made(self._reply(request.path, json.loads(body), key, "bare"))
        return await _sent(request, made if isinstance(made, Sent) else Sent(json.dumps(made).encode()))


def _place(key: str) -> float:
    """A request's position between 0 and 1, from its hash."""
    return int(key[:8], 16) / 2**32


async def _sent(request: Any, sent: Sent) -> Any:
    from aiohttp import web

    if sent.late:
        await asyncio.sleep(1.5 * LATE)
    if not sent.broken_off:
        headers = {"Content-Type": "application/json", **sent.headers}
        return web.Response(status=sent.status, body=sent.body, headers=headers)
    response = web.StreamResponse(headers={"Content-Length": "4096"})
    if sent.body:
        await response.prepare(request)
        await response.write(sent.body)
    request.transport.close()
    return response


def memories() -> list[str]:
    """The memories by name; only the first of memories that differ only in numbers."""
    return _first_of_each(lambda build: json.dumps(_without_numbers(build), sort_keys=True))


def systems() -> list[str]:
    """The memories by name; only the first of memories with the same classes: the others are its variants."""
    return _first_of_each(lambda build: json.dumps(_targets(build)))


def _first_of_each(kind_of: Callable[[Any], str]) -> list[str]:
    from scripts.setup.options import load_option, memories_here

    kinds: dict[str, str] = {}
    for name in memories_here():  # products and services handle bad replies in their own way
        kinds.setdefault(kind_of(load_option("memory", name)["build"]), name)
    return list(kinds.values())


def _targets(value: Any) -> list[str]:
    """The classes of a memory and of its wrapped memories, the outermost first."""
    if not isinstance(value, dict):
        return []
    own = [value["_target_"]] if "_target_" in value else []
    return [*own, *(target for inner in value.values() for target in _targets(inner))]


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_numbers(inner) for inner in value]
    return 0 if type(value) in (int, float) else value


def pairs(names: Sequence[str], share: float, seed: int) -> dict[str, list[int]]:
    """The replies of the catalogue, by index, that each memory gets; with a share, each reply is used once.

    In the whole campaign, a system gets all replies, and its variants get the replies that reach a memory's own code: a changed text, or
    no text. The other replies end in the client, which all variants share. A share is given to few memories, because each needs a run
    before its first reply, and vectors only to memories that embed.
    """
    own = systems()
    if share >= 1:
        said = [number for number, bad in enumerate(CATALOGUE) if bad.taken in ("told", "none")]
        return {name: list(range(len(CATALOGUE))) if name in own else said for name in names}
    dice = random.Random(seed)
    chosen = dice.sample(names, min(len(names), max(1, round(share * len(own)))))
    chosen_embedding = [name for name in chosen if _embeds(name)]
    if not chosen_embedding:
        chosen_embedding = [next(name for name in dice.sample(names, len(names)) if _embeds(name))]
    met: dict[str, list[int]] = {name: [] for name in (*chosen, *chosen_embedding)}
    for number, bad in enumerate(CATALOGUE):
        among = chosen_embedding if bad.to == "embeddings" else chosen
        met[min(among, key=lambda name: len(met[name]))].append(number)
    return met


def _embeds(memory: str) -> bool:

    from eval.running.run import needs
    from scripts.assembly.runs import builder
    from scripts.setup.options import load_option

    return "embedder" in needs(builder(load_option("memory", memory)["build"]))


def meet(memory: str, numbers: Iterable[int], folder: Path) -> Outcome:
    """Run one memory with replies of the catalogue, given by index."""
    from scripts.setup.launch import composed

    outcome, server, data = Outcome("bad replies"), BadServer(), history(folder / "data")
    with serving(application(server)) as url:
        more = ["endpoint.retries=1", f"endpoint.timeout={LATE}"]
        cfg = composed("config", settings(memory, url, folder / "x", *more, data=data))
        if not any(run_here(cfg, results=str(folder / "undisturbed")).code == 0 for _ in range(STARTS)):
            outcome.defects.append(f"{memory}: the run without a bad reply is not complete after {STARTS} starts")
            return outcome
        undisturbed, server.undisturbed = left_by(folder / "undisturbed"), False
        for number in numbers:
            bad, results = CATALOGUE[number], folder / f"reply-{number}"
            where = f"{memory}, {bad.to}: {bad.kind}"
            try:
                ends, defects = _one(cfg, server, bad, results, undisturbed)
            except TimeoutError as error:
                ends, defects = "hangs", [str(error)]
            outcome.tried["bad replies x memories"] += 1
            outcome.replies.setdefault((bad.to, bad.kind), Counter())[ends] += 1
            outcome.defects += [f"{where}: {defect}" for defect in defects]
            shutil.rmtree(results, ignore_errors=True)
    return outcome


def _one(
    cfg: Any, server: BadServer, bad: Bad, results: Path, undisturbed: Mapping[str, bytes]
) -> tuple[str, list[str]]:
    """The end of the run, and the broken guarantees."""
    if server.lowest[bad.to] == NEVER:
        return "not met", []
    server.injected.clear()
    server.bad = bad
    ended = run_here(cfg, results=str(results))
    server.bad = None
    if not server.injected:
        return "not met", []
    defects = list(broken_promises(ended, results, QUESTIONS))
    ends = _ends(ended, results, undisturbed)
    if bad.taken == "read":
        differs = differing(left_by(results), undisturbed)
        return ends, [*defects, *([f"should be read, but {differs} differ"] if differs else [])]
    again = run_here(cfg, results=str(results))
    if (advice := re.search(r"repair --drop-vectors (\d+)", again.err)) is not None:
        # The very first vector had another length: only the user can know which length is right.
        # A copy, because the runs of this process still have the cache open.
        results = shutil.copytree(results, results.with_name(f"{results.name}-as-advised"))
        with redirect_stdout(io.StringIO()):
            repair(results / "cache.sqlite", int(advice[1]))
        again = run_here(cfg, results=str(results))
    defects += [f"healthy rerun: {defect}" for defect in broken_promises(again, results, QUESTIONS)]
    if again.code and bad.taken != "told":
        defects.append(f"healthy rerun: exit {again.code}: {again.err.strip()[-300:]}")
    if bad.taken == "fails" and (differs := differing(left_by(results), undisturbed)):
        defects.append(f"healthy rerun: {differs} differ from an undisturbed run")
    return ends, defects


def _ends(ended: Ended, results: Path, undisturbed: Mapping[str, bytes]) -> str:
    if ended.code not in (0, 1):
        return f"exit {ended.code}"
    errors = sum(one["outcome"] == "error" for one in predictions(results))
    if errors:
        return "all questions errored" if errors == QUESTIONS else "some questions errored"
    if ended.code:
        return "some unscored"
    return "as undisturbed" if not differing(left_by(results), undisturbed) else "other answers"


def table(outcome: Outcome) -> str:
    """The catalogue as Markdown: each kind, its required reaction, and the ends of the runs that got it."""
    rows = ["| reply to | kind | taken as | how runs ended (memories) |", "|---|---|---|---|"]
    for bad in CATALOGUE:
        ends = outcome.replies.get((bad.to, bad.kind), Counter())
        said = ", ".join(f"{name} {count}" for name, count in sorted(ends.items())) or "not tried"
        rows.append(f"| {bad.to} | {bad.kind} | {bad.taken} | {said} |")
    return "\n".join(rows) + "\n"
