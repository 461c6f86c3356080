"""The adapter of LightRAG with the product itself: what names its sources, and what is counted or raised that the product only logs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from data_loaders.schema import Question, Turn, Unit
from memsys.interface import tuned
from memsys.llm.endpoint import Sent
from memsys.llm.gateway.accounts import Purpose
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.meter import metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import ModelError
from memsys.systems.released import Released
from tests.memsys.products.conftest import Make

pytestmark = pytest.mark.integration


class Engine(EngineUpstream):
    """The offline engine; its extractions are small talk or fail on request."""

    def __init__(self) -> None:
        super().__init__(ExtractiveLLM())
        self.mood = ""

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        if self.mood == "away":
            raise ModelError("the model is away")
        sent = await super().reply(body, purpose, declared)
        if self.mood == "chatty" and purpose.endswith("extract"):
            sent.value["choices"][0]["message"]["content"] = "What a nice day it is."
        return sent


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def memory(engine: Engine, released: Make) -> Released:
    memory: Released = released("released_lightrag", engine)
    return memory


def unit(day: int) -> Unit:
    said = f"I planted {day} tomatoes in garden {day}, <|endoftext|> included."
    return Unit(f"u{day}", (Turn(f"t{day}", "Mara", said),), "s1", datetime(2023, 5, day, 13), f"{day} May 2023")


def test_rows_of_lightrag_name_the_turns_of_their_documents_and_an_unreadable_extraction_is_counted(
    engine: Engine, memory: Released
) -> None:
    with metering() as ledger:
        for day in (1, 2):
            memory.write(unit(day))
        engine.mood = "chatty"
        memory.write(unit(3))
        memory.consolidate()
    assert ledger.calls["lightrag.extract"] == 6, "a call and a gleaning for each unit"
    assert memory.report()["counts"]["passages_without_entities"] == 1
    with metering() as ledger:
        items = memory.read(Question("q", "How many tomatoes did Mara plant in the garden?")).items
    assert dict(ledger.calls) == {"lightrag.keywords": 1}, "no answer is asked for"
    assert {item.kind for item in items} == {"entity", "relationship", "passage"}
    assert all(item.sources for item in items)
    passages = {item.text: item.sources for item in items if item.kind == "passage"}
    assert passages["[2 May 2023]\nMara: I planted 2 tomatoes in garden 2, <|endoftext|> included."] == ("t2",)
    assert {item.id for item in items} <= {node.id for node in memory.nodes()}
    assert memory.report()["connections_refused"] == {}
    assert (
        len(tuned(memory, {"k": 2}).read(Question("q", "How many tomatoes did Mara plant in the garden?")).items) == 2
    )


def test_a_document_that_lightrag_keeps_as_failed_is_an_error(engine: Engine, memory: Released) -> None:
    memory.write(unit(1))
    engine.mood = "away"
    with pytest.raises(ModelError, match="the model is away"):
        memory.write(unit(2))
