"""Costs of a gateway between a client and the mock endpoint: CPU per call, and throughput."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rigs.benchmarks.measured import IN_FLIGHT, Measured, mock, post_all


def gateway() -> list[Measured]:
    """CPU of a call through the gateway minus that of the same call sent directly; seconds of both at 200 ms, 64 in flight."""
    with mock() as url, _in_front_of(url) as through:
        post_all(through, _bodies("warm", 200))
        direct, with_gateway = (post_all(where, _bodies("cpu", 3000))[0] / 3000 * 1000 for where in (url, through))
    extra = with_gateway - direct
    with mock("--latency", "0.2") as url, _in_front_of(url) as through:
        post_all(through, _bodies("warm", IN_FLIGHT))
        alone, behind = (post_all(where, _bodies("wall", 30 * IN_FLIGHT))[1] for where in (url, through))
    return [
        Measured(
            "CPU of the gateway a call: server, key, cache, meter and its own client",
            f"{extra:.3f} ms (a bare POST takes {direct:.3f} ms)",
            "≤ 1 ms",
            extra <= 1.0,
        ),
        Measured(
            "throughput through the gateway ÷ direct, 200 ms, 64 in flight",
            f"{alone / behind:.3f} ({behind:.2f} s, {30 * IN_FLIGHT} calls)",
            "≥ 0.90",
            alone / behind >= 0.9,
        ),
    ]


@contextmanager
def _in_front_of(url: str) -> Iterator[str]:
    """Start a gateway in this process; yields the base URL of an account."""
    from memsys.embed import HashingEmbedder
    from memsys.lean import prepare_for_many_calls
    from memsys.llm.endpoint import Endpoint, EndpointLimits
    from memsys.llm.gateway.accounts import Account
    from memsys.llm.gateway.chat import EndpointUpstream
    from memsys.llm.gateway.server import Gateway
    from memsys.llm.pricing import ModelSettings
    from memsys.llm.store import CacheStore

    prepare_for_many_calls()  # as `scripts.assembly.models.build_models` does
    with tempfile.TemporaryDirectory() as folder:
        store, endpoint = (
            CacheStore(Path(folder) / "cache.sqlite"),
            Endpoint(url, EndpointLimits(in_flight=IN_FLIGHT), label="mock"),
        )
        server = Gateway(EndpointUpstream(endpoint, ModelSettings("mock")), HashingEmbedder(64), store)
        try:
            yield server.open("bench", Account("bench")).base_url
        finally:
            server.close()
            endpoint.close()
            store.close()


def _bodies(name: str, count: int) -> list[bytes]:
    texts = (f"{name} {number} " + "word " * 300 for number in range(count))
    return [json.dumps({"model": "mock", "messages": [{"role": "user", "content": text}]}).encode() for text in texts]
