"""The adapter of the archived Letta server with the product itself: a file a session, the lines that it shows, and failed calls."""

from __future__ import annotations

from datetime import datetime

import pytest

from data_loaders.schema import Question, Turn, Unit
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.meter import metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import ModelError
from memsys.systems.released import Released
from tests.memsys.products.conftest import Away, Make

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]  # PostgreSQL is unpacked, and its tables are made


@pytest.fixture
def memory(embedder: Away, released: Make) -> Released:
    memory: Released = released("released_letta", EngineUpstream(ExtractiveLLM()), embedder)
    return memory


def unit(day: int, session: str, *said: str) -> Unit:
    turns = tuple(Turn(f"t{day}_{number}", "Mara", text) for number, text in enumerate(said))
    return Unit(f"u{day}", turns, session, datetime(2023, 5, day, 13), f"{day} May 2023")


def test_letta_recalls_the_first_lines_of_whole_sessions_with_their_turns_and_its_failed_calls_are_errors(
    memory: Released, embedder: Away
) -> None:
    with metering() as ledger:
        memory.write(unit(1, "s1", "I planted tomatoes.", "Then it rained.\nIt rained for hours."))
        memory.write(unit(2, "s1", " ", "Now they are red."))
        memory.end_session("s1")
        memory.write(unit(3, "s2", *(f"The ferry to Porto was late {number} times." for number in range(30))))
        memory.consolidate()
        items = memory.read(Question("q", "How late was the ferry to Porto?", datetime(2023, 6, 1))).items
    assert (dict(ledger.calls), ledger.embedding_tokens > 0) == ({}, True), "no chat model is asked"
    late, planted = items
    assert late.sources == tuple(f"t3_{number}" for number in range(19)), "20 lines with the date"
    assert late.text.startswith("[3 May 2023] Mara: The ferry to Porto was late 0 times.\nMara: ")
    assert planted.text == (
        "[1 May 2023] Mara: I planted tomatoes.\nMara: Then it rained.\nIt rained for hours.\nMara: Now they are red."
    )
    assert planted.sources == ("t1_0", "t1_1", "t2_1")
    assert [node.id for node in memory.nodes()] == [planted.id, late.id]
    report = memory.report()
    assert (report["connections_refused"], report["calls_between_steps"]) == ({}, 0)
    embedder.away = True
    with pytest.raises(ModelError, match="the embedder is away"):
        memory.read(Question("q", "What was planted?"))
    memory.write(unit(4, "s3", "I sold pumpkins."))
    with pytest.raises(ModelError, match="the embedder is away"):
        memory.end_session("s3")
