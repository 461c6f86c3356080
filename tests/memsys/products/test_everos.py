"""The adapter of EverOS with the product itself: what a session costs, where episodes come from, and what it does not pass over."""

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
from memsys.systems.released import Released
from tests.memsys.products.conftest import Make

pytestmark = pytest.mark.integration


class Engine(EngineUpstream):
    """The offline engine, with small talk in reply to the purposes in `chatty`."""

    def __init__(self) -> None:
        super().__init__(ExtractiveLLM())
        self.chatty: set[str] = set()
        self.replies = 0

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        sent = await super().reply(body, purpose, declared)
        self.replies += 1
        if purpose.partition(".")[2] in self.chatty:
            sent.value["choices"][0]["message"]["content"] = "What a nice day it is."
        return sent


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def made(engine: Engine, released: Make) -> Callable[..., Released]:
    return partial(released, "released_everos", engine)


def unit(day: int, session: str) -> Unit:
    said = (
        Turn(f"t{day}", "Mara", f"I planted {day} tomatoes in garden {day} this morning."),
        Turn(f"r{day}", "Ben", f"I sold {day} pumpkins on the market.", "assistant"),
    )
    return Unit(f"u{day}", said, session, datetime(2023, 5, day, 13), f"{day} May 2023")


def test_a_session_of_everos_is_one_episode_that_is_found_with_its_turns_at_once(
    engine: Engine, made: Callable[..., Released]
) -> None:
    memory = made()
    with metering() as ledger:
        for session, days in (("s1", (1, 2)), ("s2", (3,))):
            for day in days:
                memory.write(unit(day, session))
            memory.end_session(session)
        memory.consolidate()
        items = memory.read(Question("q", "How many tomatoes are in garden 3?", datetime(2023, 6, 1))).items
    # Facts are drawn from the episode of each of the two people.
    costs = {"boundaries": 4, "episode": 2, "facts": 4, "search": 1}
    assert dict(ledger.calls) == {f"everos.{name}": number for name, number in costs.items()}
    assert engine.replies == sum(ledger.calls.values())
    texts = {item.sources: item.text for item in items}
    assert texts.keys() == {("t3", "r3"), ("t1", "r1", "t2", "r2")}
    assert texts["t3", "r3"].startswith("[3 May 2023] ")
    assert "Ben: I sold 3 pumpkins" in texts["t3", "r3"]
    assert {item.id for item in items} == {node.id for node in memory.nodes()}
    report = memory.report()
    assert report["connections_refused"] == {}
    assert (report["counts"]["episodes"], report["counts"]["episodes_not_searched"]) == (2, 0)


def test_facts_that_everos_gives_up_are_an_error(engine: Engine, made: Callable[..., Released]) -> None:
    engine.chatty = {"facts"}
    memory = made()
    memory.write(unit(1, "s1"))
    with pytest.raises(Raised, match="extract_atomic_facts was given up"):
        memory.end_session("s1")


def test_everos_stores_a_session_without_dates_whose_clock_stands_at_the_year_2000(
    engine: Engine, made: Callable[..., Released]
) -> None:
    memory = made()
    memory.write(Unit("u1", (Turn("t1", "Mara", "I planted 4 tomatoes in the garden."),), "s1"))
    memory.end_session("s1")
    assert [node.sources for node in memory.nodes()] == [("t1",)]
