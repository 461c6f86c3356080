"""The adapter of mem0ai 1.x, with replies of a scripted model: what a decision does to the memories, and the date in the prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from data_loaders.schema import Question, Turn, Unit
from memsys.llm.endpoint import Sent
from memsys.llm.gateway.accounts import Purpose, system_text
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.meter import metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.replies import usage_of
from memsys.systems.released import Released
from tests.memsys.products.conftest import Make

DECISIONS = (
    [{"id": "0", "text": "Mara planted 4 tomatoes", "event": "ADD"}],
    [{"id": "0", "text": "Mara planted 9 tomatoes", "event": "UPDATE", "old_memory": "Mara planted 4 tomatoes"}],
    [
        {"id": "0", "text": "Mara planted 9 tomatoes", "event": "DELETE"},
        {"id": "1", "text": "Mara sold the garden", "event": "ADD"},
    ],
)


class Scripted(EngineUpstream):
    """Extracts the same fact from everything, and decides as it is told."""

    def __init__(self, decisions: Sequence[Sequence[Mapping[str, str]]]) -> None:
        super().__init__(ExtractiveLLM())
        self._decisions = iter(decisions)
        self.heads: list[str] = []

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        reply: dict[str, Any] = {"facts": ["Mara has tomatoes"]}
        if purpose.endswith("decide"):
            reply = {"memory": list(next(self._decisions))}
        else:
            self.heads.append(system_text(body))
        message = {"role": "assistant", "content": json.dumps(reply)}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        value = {"id": "r", "object": "chat.completion", "created": 0, "choices": [choice], "usage": usage}
        return Sent(value, usage_of(value), 0.0, 1)


@pytest.fixture
def scripted(released: Make) -> tuple[Scripted, Released]:
    upstream = Scripted(DECISIONS)
    return upstream, released("released_mem0_1", upstream)


def recalled(memory: Released) -> list[tuple[str, tuple[str, ...]]]:
    items = memory.read(Question("q", "How many tomatoes has Mara planted?")).items
    return [(item.text.partition("] ")[2], item.sources) for item in items]


@pytest.mark.integration
def test_a_decision_of_mem0_1_adds_rewrites_and_deletes_and_its_prompts_have_the_day_of_the_unit(
    scripted: tuple[Scripted, Released],
) -> None:
    upstream, memory = scripted
    after = []
    with metering() as ledger:
        for day in (1, 2, 3):
            turn = Turn(f"t{day}", "Mara", f"I told you about the tomatoes of garden {day}.")
            memory.write(Unit(f"u{day}", (turn,), "s1", datetime(2023, 5, day, 13), f"{day} May 2023"))
            after.append(recalled(memory))
    assert after == [
        [("Mara planted 4 tomatoes", ("t1",))],
        [("Mara planted 9 tomatoes", ("t2",))],  # the product replaces the metadata, and with them the sources
        [("Mara sold the garden", ("t3",))],
    ]
    assert dict(ledger.calls) == {"mem0ai_1.extract": 3, "mem0ai_1.decide": 3}
    assert [ledger.notes[f"released.{name}"] for name in ("stored", "changed", "deleted")] == [2, 1, 1]
    assert memory.held == 1
    for day, head in zip((1, 2, 3), upstream.heads, strict=True):
        assert f"Today's date is 2023-05-0{day}." in head
