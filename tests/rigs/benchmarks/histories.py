"""Synthetic histories, and a run over them through the same services as a real one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def services(url: str, cache: Path, in_flight: int = 64) -> tuple[Any, Any, Any]:
    from memsys.lean import prepare_for_many_calls
    from memsys.llm.cache import CachedEmbedder, CachedLLM
    from memsys.llm.client import Client, HttpEmbedder
    from memsys.llm.endpoint import Endpoint, EndpointLimits
    from memsys.llm.meter import Metered
    from memsys.llm.pricing import ModelSettings
    from memsys.llm.store import CacheStore

    prepare_for_many_calls()  # as `scripts.assembly.models.build_models` does
    store, settings = CacheStore(cache), ModelSettings("mock")
    endpoint = Endpoint(url, EndpointLimits(in_flight=in_flight, retries=12, backoff=0.05), label="mock")
    llm = Metered(CachedLLM(Client(endpoint, settings), store, settings, "mock"))
    return llm, CachedEmbedder(HttpEmbedder(endpoint, settings), store, "mock", "mock"), endpoint


def gauges_at(endpoint: Any) -> dict[str, Any]:
    """The gauges of roles that share an endpoint."""
    return dict.fromkeys(("memory", "probe", "reader"), endpoint.places)


def bench_run(url: str, folder: Path, cases: Sequence[Any], build: Any, in_flight: int = 64) -> Any:
    from data_loaders.raw import as_lazy
    from eval.running.reader import Reader
    from eval.running.run import Run, Services
    from memsys.prompts import Prompts

    llm, embedder, endpoint = services(url, folder / "cache.sqlite", in_flight)
    lazy = as_lazy(cases)
    offered = Services(llm, llm, llm, embedder, Prompts(), gauges_at(endpoint))
    reader = Reader("bench", "bench", "reader/segtree", None, 64, 0.0)
    return Run("bench", folder / "run", lazy, lazy.sizes, build, reader, {"rule": "ab_pair"}, offered)


def histories_of_words(histories: int, questions: int, turns: int = 60) -> list[Any]:
    """Synthetic histories of one size, with about as many words per turn as LoCoMo's."""
    return histories_of_sizes([(turns, questions)] * histories)


def histories_of_sizes(sizes: Sequence[tuple[int, int]]) -> list[Any]:
    """Synthetic histories, one for each given number of turns and questions."""
    from data_loaders.schema import Case, Gold, Question, Session, Turn

    words = [f"{start}{end}" for start in "balfromkitesduv" for end in ("alan", "ering", "oth", "umi", "ester", "ivo")]
    rng = random.Random(7)

    def said(count: int) -> str:
        return " ".join(rng.choice(words) for _ in range(count))

    cases = []
    for history, (turns, questions) in enumerate(sizes):
        sessions = [
            Session(
                f"s{s}",
                tuple(
                    Turn(f"s{s}:{t}", "AB"[t % 2], said(22), ("user", "assistant")[t % 2])
                    for t in range(min(20, turns - 20 * s))
                ),
            )
            for s in range(-(-turns // 20))
        ]
        asked = [(Question(f"q{q}", f"Did {said(8)}?"), Gold((said(4),), category="x")) for q in range(questions)]
        cases.append(Case(f"case-{history}", ("A", "B"), tuple(sessions), tuple(asked), f"case-{history}"))
    return cases
