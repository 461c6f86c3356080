"""Serve an OpenAI-compatible API in front of the cache, limits, retries and meter: `python -m scripts gateway --base-url URL --model NAME`.

It prints an address with a secret token for each account (`--account NAME`): the base URL for a program, or the API key for a program with
the base URL `http://127.0.0.1:<port>/v1`. `curl ADDRESS/stats` shows the account's usage. `--mode replay` answers from the
cache alone, without a key and without the network; `--mode live` bypasses the cache; `--stand-in` uses the offline engine instead
of a model.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from eval.files.store import RunError
from memsys.embed import HashingEmbedder
from memsys.lean import prepare_for_many_calls
from memsys.llm.cache import CachedEmbedder, NoVectors
from memsys.llm.client import HttpEmbedder
from memsys.llm.endpoint import Endpoint, EndpointLimits
from memsys.llm.gateway.accounts import Account, Purpose
from memsys.llm.gateway.chat import EndpointUpstream, EngineUpstream
from memsys.llm.gateway.server import MODES, START_SECONDS, Gateway
from memsys.llm.network import OPENAI, forbid_network, is_local
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import ModelSettings, Purse
from memsys.llm.store import CacheStore
from memsys.vectors import Embedder
from scripts.settings.types import given_prices, priced
from scripts.setup.arguments import amount, verb_parser, whole
from scripts.setup.options import load_option, model_option

GROUP = "develop"


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    store = None if given.mode == "live" else CacheStore(given.cache)
    try:
        return _served(build(given, store), given)
    finally:
        if store is not None:
            store.close()


def _served(gateway: Gateway, given: argparse.Namespace) -> int:
    declared = load_option("memory", given.memory)["build"].get("purposes", []) if given.memory is not None else []
    purposes = [Purpose(**each) for each in declared]
    try:
        gateway.start()
        print(f"gateway: {given.mode}, in front of {gateway.upstream.label}; an address is a secret:")
        for name in dict.fromkeys(given.account or ["client"]):
            account = gateway.open(gateway.new_token(name), Account(name, label=name, purposes=purposes))
            print(f"{name}: {account.base_url}", flush=True)
        threading.Event().wait()  # until a signal; the server runs in the loop of the endpoints
    except TimeoutError as error:  # an OSError, too, but the port is free
        raise RunError(f"the gateway did not start within {START_SECONDS} seconds: run it again") from error
    except OSError as error:
        raise RunError(f"port {given.port} is taken ({error.strerror}): --port 0 takes any free one") from error
    finally:
        gateway.close()
    return 0


def build(given: argparse.Namespace, store: CacheStore | None) -> Gateway:
    """Build the gateway of these options, without starting it.

    Raises:
        RunError: a model is missing; or a spending cap is missing although money can be spent; or the price of a model under a cap.
    """
    prepare_for_many_calls()
    if given.mode == "replay":
        forbid_network()
    if given.stand_in:
        engine = EngineUpstream(ExtractiveLLM())
        return Gateway(engine, HashingEmbedder(given.dimension), store, given.mode, port=given.port)
    if not given.model:
        raise RunError("--model is missing (or --stand-in, for the offline engine)")
    settings, embedding = _settings("llm", given.model, given), None
    if given.embedder and given.embedder != "hashing":
        embedding = _settings("embedder", given.embedder, given)
    if given.mode != "replay":
        models = [each for each in (settings, embedding) if each is not None]
        unpriced = [each.model for each in models if each.usd_per_million_in is None]
        if given.max_usd is not None and unpriced:
            raise RunError(
                f"--max-usd is set, but the price of {unpriced[0]} is unknown: write {unpriced[0]}: {{in: USD, out: USD}} (per million "
                "tokens) into a file, and give it as --prices FILE"
            )
        if given.max_usd is None and len(unpriced) < len(models) and not is_local(given.base_url):
            raise RunError(f"{given.base_url} costs money: say how much may be spent, such as --max-usd 5")
    endpoint = Endpoint(
        given.base_url,
        EndpointLimits(in_flight=given.in_flight, timeout=given.timeout),
        label=given.label,
        key_env=given.key_env,
        purse=Purse(None if given.mode == "replay" else given.max_usd),
    )
    upstream = EndpointUpstream(endpoint, settings)
    if embedding is None:
        return Gateway(upstream, HashingEmbedder(given.dimension), store, given.mode, port=given.port)
    known = embedding

    @lru_cache(maxsize=64)
    def sized(dimensions: int) -> Embedder:
        fields = {**known.extra_body, "dimensions": dimensions}
        return _embedder(endpoint, replace(known, extra_body=fields), store, given.mode, f"{known.model}@{dimensions}")

    plain = _embedder(endpoint, known, store, given.mode, known.model)
    return Gateway(upstream, plain, store, given.mode, port=given.port, sized=sized)


def _embedder(endpoint: Endpoint, settings: ModelSettings, store: CacheStore | None, mode: str, name: str) -> Embedder:
    """An embedding model; its vectors are cached under a name."""
    inner = None if mode == "replay" else HttpEmbedder(endpoint, settings)
    return CachedEmbedder(inner, store or NoVectors(), name, endpoint.label)


def _settings(group: str, name: str, given: argparse.Namespace) -> ModelSettings:
    """Settings of a model: of its file, or the defaults; with the prices and the limit of the command line."""
    known = model_option(group, name).get("settings") or {"model": name}
    limit = {} if given.max_output_tokens is None else {"max_output_tokens": given.max_output_tokens}
    return priced({**known, **limit}, given_prices(given.prices), name)


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser("gateway", __doc__)
    parser.add_argument("--port", type=whole(0, 65535), default=8098, help="0 takes any free one")
    parser.add_argument(
        "--account", action="append", metavar="NAME", help="a client with figures of its own; may be repeated"
    )
    parser.add_argument("--max-usd", type=amount(0), help="most US dollars to spend; needed where a call has a price")
    parser.add_argument(
        "--prices", metavar="FILE", help="YAML, dollars per million tokens: my-model: {in: 0.15, out: 0.60}"
    )
    parser.add_argument(
        "--max-output-tokens", type=whole(1), help="limit of every reply, also where a client sends none"
    )
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
