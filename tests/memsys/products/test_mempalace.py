"""The adapter of MemPalace with the product itself: what it files, finds and does not pass over."""

from __future__ import annotations

from datetime import datetime

import pytest

from data_loaders.schema import Question, Turn, Unit
from memsys.interface import tuned
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.meter import metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import ModelError
from memsys.systems.released import Released
from tests.memsys.products.conftest import Away, Make

pytestmark = pytest.mark.integration


@pytest.fixture
def memory(embedder: Away, released: Make) -> Released:
    memory: Released = released("released_mempalace", EngineUpstream(ExtractiveLLM()), embedder)
    return memory


def unit(day: int, said: str) -> Unit:
    turns = (Turn(f"t{day}a", "Mara", said), Turn(f"t{day}b", "Ben", f"So that is day {day}."))
    return Unit(f"u{day}", turns, "s1", datetime(2023, 5, day, 13), f"{day} May 2023")


def test_mempalace_finds_units_verbatim_with_their_day_and_turns_and_asks_no_model(memory: Released) -> None:
    with metering() as ledger:
        for day, said in ((1, "I planted tomatoes."), (2, "The ferry to Porto was late."), (3, " ")):
            memory.write(unit(day, said))
        items = memory.read(Question("q", "How late was the ferry to Porto?")).items
    assert (dict(ledger.calls), ledger.embedding_tokens > 0) == ({}, True)
    assert items[0].text == "[2 May 2023] Mara: The ferry to Porto was late.\nBen: So that is day 2."
    assert (items[0].id, items[0].sources, len(items)) == ("u2", ("t2a", "t2b"), 3)
    assert [(node.id, node.sources) for node in memory.nodes()] == [
        (f"u{day}", (f"t{day}a", f"t{day}b")) for day in (1, 2, 3)
    ]
    assert (memory.report()["connections_refused"], memory.report()["programs_refused"]) == ({}, {})
    assert len(tuned(memory, {"k": 2}).read(Question("q", "ferry")).items) == 2


def test_a_search_of_mempalace_whose_question_is_not_embedded_is_an_error_and_no_empty_recall(
    memory: Released, embedder: Away
) -> None:
    memory.write(unit(1, "I planted tomatoes."))
    embedder.away = True
    with pytest.raises(ModelError, match="the embedder is away"):
        memory.read(Question("q", "What was planted?"))
    embedder.away = False
    assert [item.id for item in memory.read(Question("q", "What was planted?")).items] == ["u1"]
