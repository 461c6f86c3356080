"""The adapter of graphrag with the product itself: when it builds the index, and what it does not pass over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from data_loaders.schema import Question, Turn, Unit
from memsys.llm.endpoint import Sent
from memsys.llm.gateway.accounts import Purpose
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.meter import metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.products.process import Raised
from memsys.systems.released import ReleasedIndex
from tests.memsys.products.conftest import Make

pytestmark = pytest.mark.integration


class Engine(EngineUpstream):
    """The offline engine; the next reply to each purpose in `chatty` is small talk."""

    def __init__(self) -> None:
        super().__init__(ExtractiveLLM())
        self.chatty: set[str] = set()

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        sent = await super().reply(body, purpose, declared)
        if (name := purpose.partition(".")[2]) in self.chatty:
            self.chatty.remove(name)
            sent.value["choices"][0]["message"]["content"] = "What a nice day it is."
        return sent


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def made(engine: Engine, released: Make) -> Callable[..., ReleasedIndex]:
    return partial(released, "released_graphrag", engine)


def unit(day: int) -> Unit:
    said = f"I planted {day} tomatoes in garden {day} this morning."
    return Unit(f"u{day}", (Turn(f"t{day}", "Mara", said),), "s1", datetime(2023, 5, day, 13), f"{day} May 2023")


def test_graphrag_builds_its_index_once_of_the_whole_history_and_anew_after_a_further_unit(
    made: Callable[..., ReleasedIndex],
) -> None:
    memory, extracts = made(), []
    for units in ((unit(1), unit(2)), (), (unit(3),)):
        with metering() as ledger:
            for each in units:
                memory.write(each)
                memory.end_session("s1")
            assert not ledger.calls
            memory.consolidate()
        extracts.append(ledger.calls["graphrag.extract"])
    assert extracts == [4, 0, 6], "a call and a gleaning for each unit that is held"
    with metering() as ledger:
        items = memory.read(Question("q", "How many tomatoes are in garden 3?")).items
    assert (dict(ledger.calls), ledger.embedding_tokens > 0) == ({}, True), "no answer is asked for"
    passages = {item.text: item.sources for item in items if item.kind == "passage"}
    assert passages["[3 May 2023]\nMara: I planted 3 tomatoes in garden 3 this morning."] == ("t3",)
    assert not any(item.sources for item in items if item.kind != "passage")
    assert {item.kind for item in items} == {"report", "entity", "relationship", "passage"}
    assert {item.id for item in items} <= {node.id for node in memory.nodes()}
    assert memory.report()["connections_refused"] == {}
    assert memory.report()["counts"]["passages_without_entities"] == 0


def test_a_report_that_graphrag_would_leave_out_is_an_error_and_so_is_a_setting_that_it_does_not_know(
    engine: Engine, made: Callable[..., ReleasedIndex]
) -> None:
    engine.chatty = {"report"}
    memory = made()
    for day in (1, 2, 3):
        memory.write(unit(day))
    with metering() as ledger, pytest.raises(Raised, match=r"left something out; .*error generating community report"):
        memory.consolidate()
    assert ledger.calls["graphrag.report"] > 1, "the others are made"
    with pytest.raises(Raised, match=r"graphrag has no setting chunking\.knob"):
        made(settings={"chunking": {"knob": 3}}).write(unit(1))
