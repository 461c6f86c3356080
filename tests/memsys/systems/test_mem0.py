from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from scripted import Script, ScriptedLLM

from data_loaders.schema import Question, Session, Turn, Unit
from data_loaders.units import make_units
from memsys.embed import HashingEmbedder
from memsys.interface import tuned, with_settings
from memsys.llm import meter
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.mem0 import Mem0

EXTRACT, DECIDE, SUMMARISE = "mem0.extract", "mem0.decide", "mem0.summarise"
NO_FACTS = json.dumps({"facts": []})


class CountingEmbedder(HashingEmbedder):
    def __init__(self) -> None:
        super().__init__(256)
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        self.texts += texts
        return super().embed(texts, query=query)


def pair(number: int, first: str = "Hello.", second: str = "Hi.", day: int = 7) -> Unit:
    """Ann, the user, says the first message and Ben the second."""
    turns = (Turn(f"t{number}a", "Ann", first, "user"), Turn(f"t{number}b", "Ben", second, "assistant"))
    return Unit(f"u{number}", turns, "s1", datetime(2023, 5, day), f"{day} May 2023")


def facts(*texts: str) -> str:
    return json.dumps({"facts": texts})


def decide(*changes: tuple[str, str, str]) -> str:
    """A decision as (event, id, text) triples."""
    return json.dumps({"memory": [{"id": label, "text": text, "event": event} for event, label, text in changes]})


def add_all(request: Request) -> str:
    return decide(*(("ADD", "new", fact) for fact in request.fields["text"]))


def memory(script: Mapping[str, Script], **settings: Any) -> tuple[Mem0, ScriptedLLM]:
    """One view in mode `code`, where nothing else is said; every fact is added."""
    llm = ScriptedLLM({EXTRACT: NO_FACTS, DECIDE: add_all, **script})
    settings = {"mode": "code", "views": "user", "embedder": HashingEmbedder(256), **settings}
    return with_settings(Mem0, settings)(llm=llm, prompts=Prompts()), llm


def texts(memory: Mem0) -> dict[str, str]:
    return {node.id: node.text for node in memory.nodes()}


def asked(text: str) -> Question:
    return Question("q", text)


def shown(request: Request) -> str:
    return request.messages[-1][1]


BEES, BICYCLE, CHOIR = "Ann keeps bees.", "Ann owns a red bicycle.", "Ann sings in a choir."


def garden(*decisions: str) -> tuple[Mem0, ScriptedLLM]:
    """Three memories, then a unit for each decision on the fact that the bicycle is sold; the prompt shows the bicycle as number 0."""
    first = decide(("ADD", "", BEES), ("ADD", "", BICYCLE), ("ADD", "", CHOIR))
    found = [facts(BEES, BICYCLE, CHOIR), *(facts("Ann sold the bicycle.") for _ in decisions)]
    held, llm = memory({EXTRACT: found, DECIDE: [first, *decisions]})
    for number in range(1 + len(decisions)):
        held.write(pair(number, day=7 + number))
    return held, llm


def after(*changes: tuple[str, str, str], raw: str | None = None) -> tuple[Mem0, dict[str, int]]:
    """The garden after one decision, and what was counted on the way."""
    with meter.metering() as ledger:
        held, _ = garden(decide(*changes) if raw is None else raw)
    return held, dict(ledger.notes)


def test_the_extraction_wants_feelings_and_detail_one_paragraph_a_memory() -> None:
    """The instructions of the authors' LoCoMo evaluation: emotional states, specific detail, a paragraph for each memory."""
    held, llm = memory({})
    held.write(pair(1))
    asked = llm.requests[0].messages[0][1]
    assert "one paragraph" in asked
    assert "feelings" in asked
    assert "specific rather than general" in asked
    assert "short statement" not in asked


# --- which prompts are sent -------------------------------------------------------------------------------------------


def test_each_pair_of_messages_is_extracted_and_decided_once_for_each_speaker() -> None:
    said = ["I adopted a puppy yesterday.", "Congrats! What is her name?", "Luna.", "Lovely."]
    first = Session("s1", tuple(_turn(f"a{n}", n, text) for n, text in enumerate(said)), datetime(2023, 5, 7, 13))
    more = ["Luna learned to sit.", "Good girl!"]
    second = Session("s2", tuple(_turn(f"b{n}", n, text) for n, text in enumerate(more)), datetime(2023, 5, 10, 9))
    units = make_units((first, second), **Mem0.UNIT).units
    assert len(units) == 3
    held, llm = memory({EXTRACT: facts("Ann has a puppy called Luna.")}, views="both")
    for unit in units:
        held.write(unit)
    assert llm.purposes == [EXTRACT, EXTRACT, DECIDE, DECIDE] * 3
    held.read(asked("Luna"))
    assert len(llm.requests) == 12


def _turn(name: str, number: int, text: str) -> Turn:
    return Turn(name, "Ben" if number % 2 else "Ann", text, "assistant" if number % 2 else "user")


def test_an_odd_last_message_is_taken_in_alone() -> None:
    session = Session("s1", tuple(_turn(f"a{n}", n, "word") for n in range(3)))
    assert [unit.turn_ids for unit in make_units((session,), **Mem0.UNIT).units] == [("a0", "a1"), ("a2",)]


def test_a_unit_without_facts_costs_one_call_and_changes_nothing() -> None:
    held, llm = memory({})
    held.write(pair(0))
    assert llm.purposes == [EXTRACT]
    assert (held.held, held.report()["units_without_facts"]) == (0, 1)


def test_facts_that_are_blank_are_none() -> None:
    held, llm = memory({EXTRACT: facts("", "  ")})
    held.write(pair(0))
    assert llm.purposes == [EXTRACT]


def test_only_the_side_with_facts_is_decided_on() -> None:
    held, llm = memory({EXTRACT: [NO_FACTS, facts("Ben paints.")]}, views="both")
    held.write(pair(0))
    assert llm.purposes == [EXTRACT, EXTRACT, DECIDE]
    assert texts(held) == {"assistant-0": "Ben paints."}


def test_the_two_sides_change_their_roles_and_share_no_memory() -> None:
    held, llm = memory({EXTRACT: [facts("Ann paints."), facts("Ben sings.")] * 2}, views="both")
    held.write(pair(0, "I paint.", "I sing."))
    held.write(pair(1))
    first, second = (shown(request) for request in llm.requests[:2])
    assert "user: Ann: I paint.\nassistant: Ben: I sing." in first
    assert "assistant: Ann: I paint.\nuser: Ben: I sing." in second
    ann, ben = (shown(request) for request in llm.requests[-2:])
    assert "[0] Ann paints." in ann
    assert "[0] Ben sings." in ben
    assert "sings" not in ann
    assert "paints" not in ben


def test_offline_each_side_holds_what_it_said_itself() -> None:
    held = Mem0(llm=ExtractiveLLM(), embedder=HashingEmbedder(256), prompts=Prompts())
    held.write(pair(0, "I planted seven cherry trees.", "I repaired an old violin."))
    assert texts(held) == {
        "user-0": "Ann: I planted seven cherry trees.",
        "assistant-0": "Ben: I repaired an old violin.",
    }


def test_speakers_without_names_are_shown_by_their_roles_alone() -> None:
    turns = (Turn("a", "user", "I paint.", "user"), Turn("b", "assistant", "Nice.", "assistant"))
    held, llm = memory({})
    held.write(Unit("u", turns, "s1"))
    assert "<dialogue>\nuser: I paint.\nassistant: Nice.\n</dialogue>" in shown(llm.requests[0])


def test_today_is_the_date_of_the_unit() -> None:
    held, llm = memory({})
    held.write(pair(0, day=21))
    assert "Today is 21 May 2023." in llm.requests[0].messages[0][1]


def test_the_paper_shows_a_summary_and_the_last_ten_messages() -> None:
    held, llm = memory({SUMMARISE: ["They met.", "They met and parted."]}, mode="paper")
    for number in range(12):
        held.write(pair(number, f"question {number}.", f"reply {number}."))
    # Ten messages are five units: the summary is renewed before the sixth and the eleventh.
    assert llm.purposes == ([EXTRACT] * 5 + [SUMMARISE]) * 2 + [EXTRACT] * 2
    extracts = [shown(request) for request in llm.requests if request.purpose == EXTRACT]
    assert "<summary>\n(none)\n</summary>" in extracts[4]
    assert "<summary>\nThey met.\n</summary>" in extracts[5]
    assert "<summary>\nThey met and parted.\n</summary>" in extracts[10]
    earlier = "\n".join(f"Ann: question {n}.\nBen: reply {n}." for n in range(6, 11))
    assert f"<earlier>\n{earlier}\n</earlier>" in extracts[11]
    again = next(request for request in llm.requests[6:] if request.purpose == SUMMARISE)
    assert "<summary>\nThey met.\n</summary>" in shown(again)
    assert "question 5." in shown(again)
    assert "question 4." not in shown(again)


def test_an_empty_summary_leaves_the_old_one_and_is_counted() -> None:
    held, llm = memory({SUMMARISE: ["They met.", " "]}, mode="paper", window=2)
    with meter.metering() as ledger:
        for number in range(3):
            held.write(pair(number))
    assert ledger.notes["mem0.kept_old_summary"] == 1
    assert "<summary>\nThey met.\n</summary>" in shown(llm.requests[-1])


def test_the_release_shows_neither_summary_nor_history() -> None:
    held, llm = memory({}, window=2)
    for number in range(4):
        held.write(pair(number, f"question {number}."))
    assert llm.purposes == [EXTRACT] * 4
    assert "<summary>\n(none)\n</summary>" in shown(llm.requests[-1])
    assert "<earlier>\n(none)\n</earlier>" in shown(llm.requests[-1])


@pytest.mark.parametrize(("mode", "most"), [("paper", 10), ("code", 5)])
def test_a_fact_is_compared_with_the_most_similar_memories(mode: str, most: int) -> None:
    held, llm = memory(
        {EXTRACT: [facts(*(f"Ann has {n} cups." for n in range(20))), facts("Ann has cups.")]}, mode=mode
    )
    held.write(pair(0))
    assert llm.requests[-1].fields["memories"] == "(none)"
    held.write(pair(1))
    assert len(llm.requests[-1].fields["memories"]) == most
    assert "[0] Ann has 0 cups.\n[1] Ann has 1 cups." in shown(llm.requests[-1])


def test_a_memory_that_is_similar_to_several_facts_is_shown_once() -> None:
    five = facts(*(f"Ann has {word} cups." for word in ("red", "blue", "green", "white", "black")))
    held, llm = memory({EXTRACT: five})
    held.write(pair(0))
    held.write(pair(1))
    assert [option.label for option in llm.requests[-1].fields["memories"]] == ["0", "1", "2", "3", "4"]


# --- what the decision does --------------------------------------------------------------------------------------------


def test_an_update_keeps_the_id_the_creation_time_and_the_number_of_memories() -> None:
    held, notes = after(("UPDATE", "0", "Ann sold her red bicycle."))
    before = {node.id: node for node in garden()[0].nodes()}
    now = {node.id: node for node in held.nodes()}
    (changed,) = [node for node in now.values() if node.text != before[node.id].text]
    assert set(now) == set(before)
    assert (before[changed.id].text, changed.text) == (BICYCLE, "Ann sold her red bicycle.")
    assert (changed.start, changed.end) == (datetime(2023, 5, 7), datetime(2023, 5, 8))
    assert changed.sources == ("t0a", "t0b", "t1a", "t1b")
    assert not notes
    (item,) = [item for item in held.read(asked("sold bicycle")).items if item.id == changed.id]
    assert item.text == "[8 May 2023] Ann sold her red bicycle."
    np.testing.assert_allclose(item.score, _similarity("sold bicycle", "Ann sold her red bicycle."), atol=1e-6)


def _similarity(one: str, other: str) -> float:
    first, second = HashingEmbedder(256).embed([one, other])
    return float(first @ second)


def test_a_deleted_memory_is_never_found_again() -> None:
    held, _ = after(("DELETE", "0", BICYCLE))
    assert BICYCLE not in texts(held).values()
    assert BICYCLE not in [item.text.partition("] ")[2] for item in held.read(asked(BICYCLE)).items]
    assert held.held == len(held.read(asked(BICYCLE)).items) == 2


def test_a_deleted_memory_takes_no_place_among_those_recalled() -> None:
    held, _ = after(("DELETE", "0", BICYCLE))
    held = tuned(held, {"k": 2})
    assert len(held.read(asked(BICYCLE)).items) == 2


def test_a_deleted_memory_is_not_shown_to_the_next_decision() -> None:
    _, llm = garden(decide(("DELETE", "0", BICYCLE)), decide())
    before, last = (
        shown(request) for request in llm.requests if request.purpose == DECIDE and "sold" in shown(request)
    )
    assert f"[0] {BICYCLE}" in before
    assert BICYCLE not in last


def test_an_id_that_was_not_shown_is_skipped_and_the_rest_holds() -> None:
    held, notes = after(("UPDATE", "7", "x"), ("DELETE", "7", "x"), ("UPDATE", "0", "Sold."), ("ADD", "9", "New."))
    assert sorted(texts(held).values()) == ["Ann keeps bees.", "Ann sings in a choir.", "New.", "Sold."]
    assert notes == {"mem0.skipped_decision": 2}
    assert held.report()["skipped"] == 2


def test_an_item_without_text_is_skipped_whatever_its_event() -> None:
    held, notes = after(("DELETE", "0", ""), ("ADD", "", " "), ("UPDATE", "0", ""), ("ADD", "", "New."))
    assert texts(held) == {**texts(garden()[0]), "user-3": "New."}
    assert notes == {"mem0.skipped_decision": 3}


def test_nothing_happens_where_the_event_is_none_even_with_a_made_up_id() -> None:
    held, notes = after(("NONE", "12", ""), ("NONE", "0", "Ann keeps bees."))
    assert texts(held) == texts(garden()[0])
    assert not notes
    assert held.report()["none"] == 2


def test_of_two_updates_of_a_memory_the_last_remains() -> None:
    held, _ = after(("UPDATE", "0", "First."), ("UPDATE", "0", "Second."))
    assert "Second." in texts(held).values()
    assert "First." not in texts(held).values()


def test_a_memory_that_was_just_deleted_cannot_be_updated() -> None:
    held, notes = after(("DELETE", "0", BICYCLE), ("UPDATE", "0", "Back again."))
    assert (held.held, notes) == (2, {"mem0.skipped_decision": 1})


def test_ids_may_be_written_as_numbers() -> None:
    raw = json.dumps({"memory": [{"id": 0, "text": "Sold.", "event": "UPDATE"}]})
    assert "Sold." in texts(after(raw=raw)[0]).values()


def test_a_text_that_is_a_fact_is_not_embedded_again() -> None:
    embedder = CountingEmbedder()
    held, _ = memory(
        {EXTRACT: facts("Ann keeps bees."), DECIDE: decide(("ADD", "", "Ann keeps bees."))}, embedder=embedder
    )
    held.write(pair(0))
    assert embedder.texts == ["Ann keeps bees."]


# --- replies that cannot be used ---------------------------------------------------------------------------------------

GARBAGE = ["", "Sure!", "```json {", "[]", "{}"]


@pytest.mark.parametrize("reply", [*GARBAGE, '{"facts": [3]}', '{"facts": "Ann"}'])
def test_facts_that_cannot_be_read_are_none(reply: str) -> None:
    held, llm = memory({EXTRACT: reply})
    with meter.metering() as ledger:
        held.write(pair(0))
    assert llm.purposes == [EXTRACT]
    assert held.held == 0
    assert ledger.notes == {"mem0.no_facts": 1}
    assert ledger.parse_failures == {EXTRACT: 1}


@pytest.mark.parametrize(
    "reply",
    [
        *GARBAGE,
        '{"memory": [{"id": "0", "text": "x", "event": "ERASE"}]}',
        '{"memory": [{"event": "DELETE", "text": 7}]}',
    ],
)
def test_a_decision_that_cannot_be_read_changes_nothing(reply: str) -> None:
    held, notes = after(raw=reply)
    assert texts(held) == texts(garden()[0])
    assert notes == {"mem0.no_decision": 1}


def test_an_unreadable_decision_is_counted_as_a_parse_failure() -> None:
    held, _ = memory({EXTRACT: facts("Ann keeps bees."), DECIDE: "Sure!"})
    with meter.metering() as ledger:
        held.write(pair(0))
    assert ledger.parse_failures == {DECIDE: 1}


@pytest.mark.parametrize("purpose", [EXTRACT, DECIDE])
def test_a_call_that_fails_for_good_leaves_the_memories_as_they_were(purpose: str) -> None:
    script: dict[str, Script] = {EXTRACT: facts("Ann keeps bees.")}
    held, _ = memory({**script, purpose: ModelError("the endpoint is gone")})
    with pytest.raises(ModelError):
        held.write(pair(0))
    assert held.held == 0


# --- recall ------------------------------------------------------------------------------------------------------------


def two_sides(**settings: Any) -> Mem0:
    ann, ben = ([f"{name} has {n} cups." for n in range(4)] for name in ("Ann", "Ben"))
    held, _ = memory({EXTRACT: [facts(*ann), facts(*ben)]}, views="both", **settings)
    held.write(pair(0))
    return held


def test_each_side_gives_its_share_and_its_items_stand_together() -> None:
    items = two_sides(k=4).read(asked("Ben has cups")).items
    assert [item.kind for item in items] == ["user_fact"] * 2 + ["assistant_fact"] * 2
    assert [item.kind for item in two_sides(k=5).read(asked("cups")).items].count("user_fact") == 3
    for side in ("user_fact", "assistant_fact"):
        scores = [item.score for item in items if item.kind == side]
        assert scores == sorted(scores, reverse=True)


def test_a_side_without_memories_takes_no_share() -> None:
    held, _ = memory({EXTRACT: [facts("Ann has cups.", "Ann has bees."), NO_FACTS]}, views="both", k=2)
    held.write(pair(0))
    assert len(held.read(asked("cups")).items) == 2


def test_the_best_of_both_sides_together_are_those_most_similar() -> None:
    held = tuned(two_sides(k=4), {"per_view": False})
    items = held.read(asked("Ben has cups")).items
    assert [item.kind for item in items] == ["assistant_fact"] * 4


def test_exactly_k_are_recalled_when_there_are_more() -> None:
    held, _ = memory({EXTRACT: facts(*(f"Ann has {n} cups." for n in range(12)))}, k=7)
    held.write(pair(0))
    assert len(held.read(asked("cups")).items) == 7


def test_equal_scores_go_to_the_earlier_memory() -> None:
    held, _ = memory({EXTRACT: facts("Ann sings.", "Ann paints.")}, k=2)
    held.write(pair(0))
    assert [item.id for item in held.read(asked("?")).items] == ["user-0", "user-1"]


def test_what_is_recalled_are_facts_and_not_the_nearest_messages() -> None:
    held, _ = memory({EXTRACT: [facts("Ann moved to Oslo."), NO_FACTS]}, k=1)
    dense = Dense(HashingEmbedder(256), k=1)
    for unit in (pair(0, "The boxes are unpacked.", "How is the fjord?"), pair(1, "Who has moved my Oslo map?")):
        held.write(unit)
        dense.write(unit)
    question = asked("Who moved to Oslo?")
    (item,) = held.read(question).items
    assert item.text == "[7 May 2023] Ann moved to Oslo."
    assert item.sources == ("t0a", "t0b")
    assert dense.read(question).items[0].sources == ("t1a", "t1b")


@pytest.mark.parametrize(("setting", "value"), [("neighbours", 0), ("window", 0)])
def test_nonsense_is_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        memory({}, **{setting: value})
