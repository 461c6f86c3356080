"""An OpenAI-compatible server in front of our cache, limits, retries and meter: `python -m scripts.gateway --base-url URL --model NAME`.

Give any program `http://127.0.0.1:8098/<token>/v1` as its base URL; the token names whom its calls are credited to, and
`curl http://127.0.0.1:8098/stats` shows what each has spent. `--mode replay` answers from the cache alone, without a key and without
the network; `--mode live` bypasses the cache; `--stand-in` puts the offline engine in the place of a model.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.store import RunError
from memsys.embed import Embedder, HashingEmbedder
from memsys.lean import prepare_for_many_calls
from memsys.llm import meter
from memsys.llm.cache import CachedEmbedder
from memsys.llm.client import Embedded, HttpEmbedder
from memsys.llm.endpoint import Endpoint
from memsys.llm.gateway.accounts import Account, Purpose
from memsys.llm.gateway.server import MODES, Gateway
from memsys.llm.gateway.upstream import EndpointUpstream, EngineUpstream, Upstream
from memsys.llm.network import forbid_network
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import ModelSettings, Purse
from memsys.llm.protocol import ModelError
from memsys.llm.store import Store
from scripts.experiment.options import load_option, options
from scripts.settings.arguments import amount, whole

OPENAI = "https://api.openai.com/v1"


def main() -> int:
    options_given = _parser().parse_args()
    gateway = build(options_given)
    address = gateway.start()
    print(f"gateway: {address}/<token>/v1, {options_given.mode}, in front of {gateway.upstream.label}", flush=True)
    try:
        threading.Event().wait()  # until a signal; the server runs in the loop of the endpoints
    finally:
        gateway.close()
    return 0


def build(given: argparse.Namespace) -> Gateway:
    """The gateway of these options.

    Raises:
        RunError: a model is missing.
    """
    prepare_for_many_calls()
    if given.mode == "replay":
        forbid_network()
    store = None if given.mode == "live" else Store(given.cache)
    upstream, embedder = _models(given, store)
    purposes = [Purpose(**each) for each in declared_purposes(given.memory)]

    def account(token: str) -> Account:
        return Account(token or "-", label=token or "client", purposes=purposes)

    return Gateway(upstream, embedder, store, given.mode, port=given.port, welcome=account)


def declared_purposes(memory: str | None) -> list[Mapping[str, Any]]:
    """The purposes that a file of conf/memory declares for its product; none without a file."""
    return [] if memory is None else list(load_option("memory", memory)["build"].get("purposes", []))


def _models(given: argparse.Namespace, store: Store | None) -> tuple[Upstream, Embedder]:
    if given.stand_in:
        return EngineUpstream(ExtractiveLLM()), HashingEmbedder(given.dimension)
    if not given.model:
        raise RunError("--model is missing (or --stand-in, for the offline engine)")
    purse = Purse()
    endpoint = Endpoint(
        given.base_url,
        label=given.label,
        key_env=given.key_env,
        in_flight=given.in_flight,
        timeout=given.timeout,
        purse=purse,
    )
    upstream = EndpointUpstream(endpoint, _settings("llm", given.model))
    if not given.embedder or given.embedder == "hashing":
        return upstream, HashingEmbedder(given.dimension)
    settings = _settings("embedder", given.embedder)
    inner = HttpEmbedder(endpoint, settings)
    if store is None:
        return upstream, DirectEmbedder(inner)
    return upstream, CachedEmbedder(None if given.mode == "replay" else inner, store, settings.model, endpoint.label)


class DirectEmbedder:
    """An embedding model without a cache, metered."""

    def __init__(self, inner: HttpEmbedder) -> None:
        self._inner = inner

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        """Unit vectors, float32 [n, d].

        Raises:
            ModelError: a call failed for good.
        """
        outcomes = self._inner.fetch(texts, query=query)
        embedded = [outcome for outcome in outcomes if isinstance(outcome, Embedded)]
        for outcome in outcomes:
            if isinstance(outcome, ModelError):
                raise outcome
        if (ledger := meter.current()) is not None:
            ledger.add_embedding(sum(each.tokens for each in embedded), sum(each.seconds for each in embedded))
        return np.stack([each.vector for each in embedded])


def _settings(group: str, name: str) -> ModelSettings:
    """Settings of a model: those of its file, or the plain ones."""
    known = load_option(group, name).get("settings") if name in options(group) else None
    return ModelSettings(**(known or {"model": name}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=whole(0, 65535), default=8098, help="0 takes any free one")
    parser.add_argument("--mode", choices=MODES, default="record")
    parser.add_argument("--cache", type=Path, default=Path("results/cache.sqlite"))
    parser.add_argument("--base-url", default=OPENAI)
    parser.add_argument("--label", default="", help="part of the cache key (default: the base URL)")
    parser.add_argument("--model", help="takes the place of whatever model a client names")
    parser.add_argument("--embedder", help="likewise; without it, vectors come from the hashing embedder")
    parser.add_argument("--dimension", type=whole(1), default=1024, help="of the hashing embedder")
    parser.add_argument("--key-env", default="OPENAI_API_KEY", help="environment variable that holds the key")
    parser.add_argument("--in-flight", type=whole(1), default=64)
    parser.add_argument("--timeout", type=amount(0), default=120.0)
    parser.add_argument("--stand-in", action="store_true", help="the offline engine answers")
    parser.add_argument("--memory", help="a file of conf/memory whose purposes name the calls")
    return parser
