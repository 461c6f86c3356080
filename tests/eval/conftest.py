"""Runs over small histories, with engines of the test's choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from data_loaders.raw import as_lazy
from data_loaders.schema import Case
from eval.running.reader import Reader
from eval.running.run import Run, Services
from memsys.embed import HashingEmbedder
from memsys.llm.meter import Metered
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.bm25 import BM25

READER = Reader("test", "test", "reader/segtree", None, 64, 0.0)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """A run of bm25 (or another memory) over given cases, in a folder of its own name."""

    def make(
        cases: list[Case],
        *,
        build: Any = None,
        llm: LLM | None = None,
        reader: LLM | None = None,
        folder: str = "run",
        **more: Any,
    ) -> Run:
        engine = Metered(ExtractiveLLM())
        services = Services(llm or engine, reader or engine, engine, HashingEmbedder(64), Prompts())
        lazy = as_lazy(cases)
        return Run(
            name="bm25",
            folder=tmp_path / folder,
            cases=lazy,
            sizes=lazy.sizes,
            build=build or partial(BM25, k=3),
            reader=READER,
            unit={"rule": "ab_pair"},
            services=services,
            **more,
        )

    return make
