"""The adapter of Hindsight with the product itself: what a session costs, where facts come from, and what it does not pass over."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from data_loaders.schema import Question, Turn, Unit
from memsys.llm.endpoint import Sent
from memsys.llm.gateway.accounts import Purpose
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.meter import metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.products.process import Raised
from memsys.systems.released import Released
from tests.memsys.products.conftest import Make

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]  # PostgreSQL is unpacked, and its tables are made


class Engine(EngineUpstream):
    """The offline engine; its replies are small talk on request."""

    def __init__(self) -> None:
        super().__init__(ExtractiveLLM())
        self.chatty = False
        self.replies = 0

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        sent = await super().reply(body, purpose, declared)
        self.replies += 1
        if self.chatty:
            sent.value["choices"][0]["message"]["content"] = "What a nice day it is."
        return sent


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def memory(engine: Engine, released: Make) -> Released:
    memory: Released = released("released_hindsight", engine)
    return memory


def unit(day: int, session: str) -> Unit:
    said = (
        Turn(f"t{day}", "Mara", f"I planted {day} tomatoes in garden {day} this morning."),
        Turn(f"r{day}", "", f"I sold {day} pumpkins on the market.", "assistant"),
    )
    return Unit(f"u{day}", said, session, datetime(2023, 5, day, 13), f"{day} May 2023")


def test_a_session_of_hindsight_costs_a_call_a_chunk_and_its_facts_name_the_turns_of_theirs_until_none_can_be_read(
    engine: Engine, memory: Released
) -> None:
    with metering() as ledger:
        for session, days in (("s1", (1, 2)), ("s2", (3,))):
            for day in days:
                memory.write(unit(day, session))
            memory.end_session(session)
        memory.consolidate()
        items = memory.read(Question("q", "How many tomatoes are in garden 3?", datetime(2023, 6, 1))).items
    assert (dict(ledger.calls), engine.replies) == ({"hindsight.facts": 2}, 2), "no answer is asked for"
    facts = {item.text: item.sources for item in items if item.kind == "fact"}
    assert facts["[3 May 2023] Mara: I planted 3 tomatoes in garden 3 this morning. (3 May 2023)"] == ("t3", "r3")
    assert facts["[1 May 2023] Mara: I planted 2 tomatoes in garden 2 this morning. (1 May 2023)"] == (
        "t1",
        "r1",
        "t2",
        "r2",
    )
    assert [item.kind for item in items] == sorted((item.kind for item in items), reverse=True), "chunks come last"
    assert {item.sources for item in items if item.kind == "chunk"} == set(facts.values())
    assert {item.id for item in items if item.kind == "fact"} <= {node.id for node in memory.nodes()}
    report = memory.report()
    assert (report["connections_refused"], report["calls_between_steps"]) == ({}, 0)
    engine.chatty = True
    memory.write(unit(4, "s3"))
    with pytest.raises(Raised, match="Fact extraction failed"):
        memory.end_session("s3")
