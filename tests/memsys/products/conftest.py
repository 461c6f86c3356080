"""Memories of released products as their files in conf/memory make them, for the tests of the adapters with the products themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest
from hydra.utils import get_class

from memsys.embed import HashingEmbedder
from memsys.interface import with_settings
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.gateway.server import Gateway
from memsys.llm.protocol import ModelError
from memsys.products.places import place_of
from scripts.setup.options import load_option

Make = Callable[..., Any]


class Away(HashingEmbedder):
    """An embedder that can be away."""

    away = False

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if self.away:
            raise ModelError("the embedder is away")
        return super().embed(texts)


@pytest.fixture
def embedder() -> Away:
    return Away(64)


@pytest.fixture
def released() -> Iterator[Make]:
    """Makes the memory of a file, `released("released_lightrag", upstream, **settings)`, behind a gateway of its own; skips where its
    product is not installed."""
    with ExitStack() as opened:

        def make(name: str, upstream: EngineUpstream, embedder: HashingEmbedder | None = None, **more: Any) -> Any:
            build = load_option("memory", name)["build"]
            if not place_of(product := build["product"]).installed:
                pytest.skip(f"{product} is not installed: make product NAME={product}")
            gateway = opened.enter_context(closing(Gateway(upstream, embedder or HashingEmbedder(64), None, "live")))
            given = {key: value for key, value in build.items() if key[0] != "_"}
            made = with_settings(get_class(build["_target_"]), {**given, **more})(gateway, np.random.default_rng(0))
            return opened.enter_context(closing(made))

        yield make
