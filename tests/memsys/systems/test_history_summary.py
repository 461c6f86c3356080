from __future__ import annotations

from typing import Any

import pytest
from scripted import ScriptedLLM

from data_loaders.schema import Question, Turn, Unit
from memsys.llm import meter
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.history_summary import HistorySummary
from memsys.tokens import count_tokens

SUMMARISE = "history_summary.summarise"
QUESTION = Question("q", "What was said?")


def unit(number: int, text: str = "") -> Unit:
    return Unit(f"u{number}", (Turn(f"t{number}", "Ann", text or f"item{number}"),), "s1", None, "7 May 2023")


def said(request: Request) -> str:
    """A summary that says which items it was shown."""
    words = {word.strip(".") for text in request.fields["texts"] for word in text.split()}
    return " ".join(sorted((word for word in words if word.startswith("item")), key=lambda word: int(word[4:])))


def fed(count: int, reply: Any = said, per_window: int | None = None) -> tuple[HistorySummary, ScriptedLLM]:
    llm = ScriptedLLM({SUMMARISE: reply})
    size = count_tokens("[7 May 2023] Ann: item0")
    memory = HistorySummary(llm, Prompts(), window_tokens=(per_window or 1_000) * size)
    for number in range(count):
        memory.write(unit(number))
    return memory, llm


def test_a_history_that_fits_is_one_call_and_one_item_with_all_its_turns() -> None:
    memory, llm = fed(9)
    assert llm.requests == []
    memory.consolidate()
    memory.consolidate()
    assert llm.purposes == [SUMMARISE]
    (item,) = memory.read(QUESTION).items
    assert item.text == " ".join(f"item{number}" for number in range(9))
    assert item.sources == tuple(f"t{number}" for number in range(9))
    assert (item.kind, item.level) == ("summary", 1)


def test_a_longer_history_is_summarised_window_by_window() -> None:
    memory, llm = fed(10, per_window=4)
    assert len(llm.requests) == 2, "calls made while writing: (10 - 1) // 4"
    memory.consolidate()
    assert len(llm.requests) == 3
    assert [len(request.fields["texts"]) for request in llm.requests] == [4, 5, 3]
    assert llm.requests[1].fields["texts"][0] == "Summary so far: item0 item1 item2 item3"
    assert memory.read(QUESTION).items[0].text == " ".join(f"item{number}" for number in range(10))
    assert memory.report() == {"windows": 3, "summarised_turns": 10}


def test_what_is_consolidated_in_mid_window_is_summarised_again() -> None:
    memory, _ = fed(6, per_window=4)
    memory.consolidate()
    assert memory.report()["windows"] == 2
    for number in range(6, 10):
        memory.write(unit(number))
    memory.consolidate()
    once, _ = fed(10, per_window=4)
    once.consolidate()
    assert memory.read(QUESTION) == once.read(QUESTION)
    assert memory.report() == once.report()


def test_the_questions_do_not_matter() -> None:
    memory, llm = fed(3)
    memory.consolidate()
    assert memory.read(QUESTION) == memory.read(Question("p", "item2?"))
    assert len(llm.requests) == 1


def test_a_long_unit_is_cut() -> None:
    memory, llm = fed(0, "Items.", per_window=2)
    memory.write(unit(0, "item0 " * 50))
    memory.consolidate()
    assert len(llm.requests) > 3
    assert memory.read(QUESTION).items[0].sources == ("t0",)


@pytest.mark.parametrize("reply", ["", "  \n "])
def test_without_a_summary_the_one_before_stays_and_that_is_counted(reply: str) -> None:
    memory, _ = fed(6, ["item0 first", reply], per_window=4)
    with meter.metering() as ledger:
        memory.consolidate()
    (item,) = memory.read(QUESTION).items
    assert (item.text, item.sources) == ("item0 first", ("t0", "t1", "t2", "t3"))
    assert ledger.notes == {"history_summary.unchanged": 1}


def test_without_any_summary_nothing_is_recalled() -> None:
    memory, _ = fed(2, "")
    memory.consolidate()
    assert memory.read(QUESTION).items == ()
    assert memory.held == 0


def test_blank_units_are_left_out() -> None:
    memory, llm = fed(0)
    memory.write(Unit("u", (Turn("t", "Ann", " "),), "s1"))
    memory.consolidate()
    assert llm.requests == []


def test_a_failed_call_is_not_hidden() -> None:
    memory, _ = fed(1, ModelError("down"))
    with pytest.raises(ModelError):
        memory.consolidate()


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"window_tokens.*0"):
        HistorySummary(ScriptedLLM({}), Prompts(), window_tokens=0)
