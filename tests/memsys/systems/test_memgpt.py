from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedLLM

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import Item, with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.memgpt import BLOCK_CHARS, MemGPT, evicted

STEP, SUMMARY = "memgpt.step", "memgpt.summary"
START = datetime(2023, 5, 7)
QUESTION = Question("q", "What is the cat called?", time_text="9 June 2023")
DONE = json.dumps({"function": "send_message", "message": ""})
GARBAGE = [
    "",
    "Sure!",
    "```json {",
    "[]",
    "{}",
    '{"function": "fly"}',
    '{"function": "conversation_search", "query": 7}',
]


def call(function: str, again: Any = True, **arguments: Any) -> str:
    return json.dumps({"thought": "Hm.", "function": function, "request_heartbeat": again, **arguments})


def answer(text: str) -> str:
    return call("send_message", False, message=text)


def unit(number: int, text: str, role: Any = None) -> Unit:
    role = role or ("user" if number % 2 == 0 else "assistant")
    time = START + timedelta(days=number)
    turn = Turn(f"t{number}", "Ann" if role == "user" else "Bob", text, role)
    return Unit(f"u{number}", (turn,), "s1", time, f"{time:%d %B %Y}")


def gpt(steps: Any = DONE, summary: Any = "Much was said.", **settings: Any) -> tuple[MemGPT, ScriptedLLM]:
    llm = ScriptedLLM({STEP: steps, SUMMARY: summary})
    return with_settings(MemGPT, settings)(llm, HashingEmbedder(256), Prompts()), llm


def fed(texts: Sequence[str], steps: Any = DONE, **settings: Any) -> tuple[MemGPT, ScriptedLLM]:
    memory, llm = gpt(steps, **settings)
    for number, text in enumerate(texts):
        memory.write(unit(number, text))
    return memory, llm


def small(room: int, **settings: Any) -> tuple[MemGPT, ScriptedLLM]:
    """A memory whose window has this many tokens beside the instructions, and nothing else in it."""
    fixed = gpt(persona="")[0]._fixed
    return gpt(window=fixed + room, persona="", **settings)


def queue(request: Request) -> list[str]:
    return list(request.fields["queue"])


def by_id(items: Sequence[Item]) -> dict[str, Item]:
    return {item.id: item for item in items}


TALK = ["I have a cat", "What is it called?", "Tiago is its name", "Nice", "I also sail to Oslo", "When?"]


# --- reading ------------------------------------------------------------------------------------------------------------


def test_replaying_makes_no_call_and_an_answer_at_once_makes_one() -> None:
    memory, llm = fed(TALK)
    assert llm.requests == []
    memory.read(QUESTION)
    assert llm.purposes == [STEP]
    assert queue(llm.requests[0])[-1] == "(user) [9 June 2023] Question: What is the cat called?"
    assert queue(llm.requests[0])[0] == "(user) [07 May 2023] Ann: I have a cat"


def test_the_model_searches_until_it_sends_a_message() -> None:
    steps = [call("conversation_search", query="TIAGO"), call("conversation_search", query="oslo"), answer("Tiago")]
    memory, llm = fed(TALK, steps, own_answer=True)
    recall = memory.read(QUESTION)
    assert recall.answer == "Tiago"
    assert llm.purposes == [STEP] * 3
    assert "1 matches, page 0 of 1" in queue(llm.requests[1])[-1]
    assert "Tiago is its name" in queue(llm.requests[1])[-1]


def test_the_reader_answers_unless_the_agent_is_to() -> None:
    memory, _ = fed(TALK, answer("Tiago"))
    assert memory.read(QUESTION).answer is None


def in_sessions(*texts: str, **settings: Any) -> tuple[MemGPT, ScriptedLLM]:
    """A history whose every text is a session of its own."""
    memory, llm = gpt(**settings)
    for number, text in enumerate(texts):
        memory.write(replace(unit(number, text), session_id=f"s{number}"))
    return memory, llm


def test_earlier_sessions_are_in_recall_storage_only_where_the_last_is_in_view() -> None:
    """Deep memory retrieval (MemGPT §3.1.1): the question needs sessions that have left the context."""
    steps = [call("conversation_search", query="tiago"), answer("Tiago")]
    memory, llm = in_sessions(*TALK, steps=steps, in_view="last_session", own_answer=True)
    assert llm.requests == [], "leaving the view costs no call"
    assert [message.text for message in memory._state.queue] == ["[12 May 2023] Bob: When?"]
    recall = memory.read(QUESTION)
    assert recall.answer == "Tiago"
    assert len(queue(llm.requests[0])) == 2, "the last session, and the question"
    assert "Tiago is its name" in queue(llm.requests[1])[-1]
    assert [item.id for item in recall.items] == ["t5", "t2"]


def test_all_sessions_are_in_view_unless_only_the_last_is_to_be() -> None:
    memory, _ = in_sessions(*TALK)
    assert len(memory._state.queue) == len(TALK)


def test_an_agent_that_answers_itself_is_told_the_options_and_how_to_answer() -> None:
    """DMR wants the answer of Speaker 1, in the first person; a reader would be told by its own prompt."""
    asked = replace(QUESTION, options=("Tiago", "Rex"), instruction="Answer as Speaker 1.")
    for own, told in ((True, "\n(A) Tiago\n(B) Rex\nAnswer as Speaker 1."), (False, "")):
        memory, llm = fed(TALK, answer("Tiago"), own_answer=own)
        memory.read(asked)
        assert queue(llm.requests[0])[-1] == f"(user) [9 June 2023] Question: What is the cat called?{told}"


@pytest.mark.parametrize("most", [1, 3, 8])
def test_a_read_never_makes_more_calls_than_allowed(most: int) -> None:
    memory, llm = fed(TALK, call("conversation_search", query="cat"), max_calls=most, own_answer=True)
    with meter.metering() as ledger:
        recall = memory.read(QUESTION)
    assert len(llm.requests) == most
    assert recall.aborted == f"no message was sent in {most} of {most} calls"
    assert ledger.notes["memgpt.cap"] == 1
    assert recall.items


def test_a_call_that_asks_for_nothing_more_ends_the_read() -> None:
    for again in (False, None, "true", 1):
        memory, llm = fed(TALK, call("conversation_search", again, query="cat"))
        memory.read(QUESTION)
        assert len(llm.requests) == 1, f"{again!r} is not true"


def test_a_message_that_was_sent_ends_the_read_whatever_is_asked_for() -> None:
    memory, llm = fed(TALK, [call("send_message", True, message="Tiago"), answer("No")], own_answer=True)
    assert memory.read(QUESTION).answer == "Tiago"
    assert len(llm.requests) == 1


def test_evidence_is_core_then_summary_then_view_then_hits_each_once() -> None:
    append, search = (
        call("core_memory_append", False, block="human", text="a number"),
        call("conversation_search", query="number 1 "),
    )
    memory, llm = small(700, steps=append)
    for number in range(20):
        memory.write(unit(number, f"this is number {number} " + "and so on " * 8))
    assert SUMMARY in llm.purposes
    memory.llm = ScriptedLLM({STEP: [search, answer("x")], SUMMARY: "Much."})
    items = memory.read(QUESTION).items
    assert [item.kind for item in items[:2]] == ["core", "summary"]
    view = [message.id for message in memory._state.queue if message.id.startswith("t") and message.sources]
    assert [item.id for item in items[2:]] == [*view, "t1"]
    assert len({item.id for item in items}) == len(items)
    ranked = sorted(items, key=lambda item: -item.score)
    assert [item.id for item in ranked[:3]] == ["core-human", items[1].id, "t1"]
    assert [item.id for item in ranked[-2:]] == view[1::-1], "the oldest message in view goes first"


def test_what_a_search_found_is_recalled_though_it_has_left_the_view() -> None:
    memory, _ = small(400, steps=DONE)
    for number in range(40):
        memory.write(unit(number, f"keyword{number} and some more words"))
    assert all(item.id != "t0" for item in memory.read(QUESTION).items)
    memory.llm = ScriptedLLM({STEP: [call("conversation_search", query="keyword0"), answer("x")], SUMMARY: "s"})
    found = by_id(memory.read(QUESTION).items)
    assert found["t0"].sources == ("t0",)
    dense = Dense(HashingEmbedder(256), k=len(found))
    for number in range(40):
        dense.write(unit(number, f"keyword{number} and some more words"))
    assert {item.id for item in dense.read(QUESTION).items} != set(found)


def test_a_read_leaves_neither_edits_nor_insertions_behind() -> None:
    steps = [
        call("core_memory_append", block="human", text="cat person"),
        call("archival_memory_insert", text="The cat is Tiago"),
        call("archival_memory_search", query="cat"),
        answer("Tiago"),
    ]
    memory, llm = fed(TALK, steps * 2)
    before = memory.report()
    first = memory.read(QUESTION)
    assert {"core-human", "archival-0"} <= set(by_id(first.items))
    assert memory.report() == before
    assert len(memory._state.archival_vectors.matrix) == 0
    assert memory.read(QUESTION) == first
    assert queue(llm.requests[4]) == queue(llm.requests[0])


# --- searching ----------------------------------------------------------------------------------------------------------


def searched(texts: Sequence[str], *calls: str, **settings: Any) -> list[str]:
    """What the model is shown after each call."""
    memory, llm = fed(texts, [*calls, answer("x")], **settings)
    memory.read(QUESTION)
    return [queue(request)[-1] for request in llm.requests[1:]]


def test_twelve_matches_are_pages_of_five_five_and_two() -> None:
    calls = [call("conversation_search", query="match", page=page) for page in range(4)]
    shown = searched([f"a match, no {n}" if n < 12 else "else" for n in range(15)], *calls)
    assert [len(text.split("\n")) - 1 for text in shown] == [5, 5, 2, 0]
    assert all(f"12 matches, page {page} of 3" in text for page, text in enumerate(shown))


def test_the_whole_query_is_looked_for_unless_the_search_is_another() -> None:
    query = call("conversation_search", query="cat name")
    assert "0 matches" in searched(TALK, query)[0]
    assert "2 matches" in searched(TALK, query, recall_search="bm25")[0]
    assert "Tiago" in searched(TALK, query, recall_search="embedding")[0]


def test_calls_results_and_notices_are_not_found() -> None:
    memory, _ = fed(TALK, [call("conversation_search", query="sail"), *[DONE] * 3], ingest="active")
    assert any("call conversation_search" in message.text for message in memory._recall)
    assert memory._matches("conversation_search") == []


def test_days_are_searched_by_date() -> None:
    shown = searched(
        TALK,
        call("conversation_search_date", start="2023-05-09", end="2023-05-10"),
        call("conversation_search_date", start="May", end="2023-05-10"),
    )
    assert "2 matches" in shown[0]
    assert "Tiago" in shown[0]
    assert "failed: start must be a date" in shown[1]


def test_archival_passages_are_found_by_meaning_right_after_they_were_stored() -> None:
    shown = searched(
        TALK,
        call("archival_memory_search", query="sailing boat"),
        call("archival_memory_insert", text="Ann owns a sailing boat"),
        call("archival_memory_search", query="sailing boat"),
    )
    assert "0 matches" in shown[0]
    assert "Ann owns a sailing boat" in shown[2]


def test_a_long_passage_is_stored_in_parts_of_300_tokens() -> None:
    memory, _ = fed(["tell me"], [call("archival_memory_insert", text="word " * 650), DONE], ingest="active")
    assert memory.report()["archival"] == 3


def test_what_the_model_writes_stands_for_the_turn_that_shares_its_words() -> None:
    steps = [call("core_memory_append", block="human", text="cat Tiago"), answer("x")]
    memory, _ = fed(TALK, steps)
    assert by_id(memory.read(QUESTION).items)["core-human"].sources == ("t2",)


# --- working context ----------------------------------------------------------------------------------------------------


def test_a_full_block_refuses_one_more_character_and_the_model_is_run_again() -> None:
    full = "x" * BLOCK_CHARS
    memory, llm = fed(TALK, [call("core_memory_append", False, block="human", text="y"), answer("x")], human=full)
    memory.read(QUESTION)
    assert len(llm.requests) == 2
    assert queue(llm.requests[1])[-1].startswith("(tool) failed: the block human would have 2002")
    assert llm.requests[1].fields["human"] == full


@pytest.mark.parametrize(("held", "fits"), [(BLOCK_CHARS - 2, True), (BLOCK_CHARS - 1, False)])
def test_a_block_may_be_exactly_full(held: int, fits: bool) -> None:
    """A line break comes before what is added."""
    memory, llm = fed(TALK, [call("core_memory_append", block="human", text="y"), answer("x")], human="x" * held)
    memory.read(QUESTION)
    assert llm.requests[1].fields["human"].endswith("\ny") is fits


def test_a_block_stands_for_all_the_turns_that_its_pieces_come_from() -> None:
    steps = [call("core_memory_append", block="human", text=text) for text in ("has a cat", "will sail to Oslo")]
    memory, _ = fed(TALK, [*steps, answer("x")])
    assert by_id(memory.read(QUESTION).items)["core-human"].sources == ("t0", "t4")


def test_replacing_needs_the_old_text() -> None:
    steps = [
        call("core_memory_replace", block="human", old="dog", text="cat"),
        call("core_memory_replace", block="human", old="bird", text="cat"),
        answer("x"),
    ]
    memory, llm = fed(TALK, steps, human="has a bird")
    memory.read(QUESTION)
    assert "does not contain 'dog'" in queue(llm.requests[1])[-1]
    assert llm.requests[2].fields["human"] == "has a cat"


# --- memory pressure ----------------------------------------------------------------------------------------------------


def test_the_released_code_evicts_as_worked_out_by_hand() -> None:
    tokens, roles = [100, 200, 150, 250, 300, 120, 80, 90], ["user", "assistant"] * 4
    assert evicted(tokens, roles) == 5
    assert evicted(tokens, ["assistant", "user"] * 4) == 4, "an assistant's message may come first"
    assert evicted([5, 5, 30, 30, 30], ["assistant"] * 5) == 1, "never the last three"
    assert evicted([50, 25, 5, 10, 5, 5], ["assistant"] * 6) == 2, "exactly 75 % leaves"
    assert evicted([10, 10, 10, 10, 10, 1, 1, 1], ["assistant"] * 3 + ["tool"] * 2 + ["assistant"] * 3) == 5


def test_the_released_code_keeps_the_last_candidate_where_none_reaches_75_percent() -> None:
    """Release 0.3.25: the cut stands at the message that the walk looked at last, whether or not it passed the target."""
    assert evicted([10, 10, 10, 40, 40, 40], ["assistant"] * 6) == 2
    assert evicted([10, 40, 40, 40], ["assistant"] * 4) == 0
    assert evicted([40, 40, 40], ["assistant"] * 3) == 0


def test_the_model_is_warned_once_between_flushes_and_the_summary_is_recursive() -> None:
    summaries = (f"Summary {number}." for number in range(99))
    memory, llm = small(500, steps=DONE, summary=lambda request: next(summaries))
    for number in range(60):
        memory.write(unit(number, f"message {number}"))
        assert memory._usage(memory._state) <= memory.settings.window
    alerts = [index for index, purpose in enumerate(llm.purposes) if purpose == STEP]
    flushes = [index for index, purpose in enumerate(llm.purposes) if purpose == SUMMARY]
    assert len(flushes) >= 2
    assert llm.purposes == [STEP if index % 2 == 0 else SUMMARY for index in range(len(llm.purposes))]
    assert memory.report()["alerts"] == len(alerts)
    assert "Memory pressure" in queue(llm.requests[alerts[0]])[-1]
    assert any("Summary 0." in text for text in llm.requests[flushes[1]].fields["texts"])
    first = memory._state.queue[0]
    assert first.role == "summary"
    assert first.text.startswith(f"{memory._state.hidden} of ")
    said = sum(message.role != "summary" for message in memory._recall)
    assert memory._state.hidden + memory.report()["in_view"] - 1 == said, "a summary that left is no hidden message"
    shown = [text for index in flushes for text in llm.requests[index].fields["texts"]]
    assert not any("Memory pressure" in text for text in shown)
    assert first.sources[:3] == ("t0", "t1", "t2")


def test_every_message_that_has_left_is_still_found() -> None:
    memory, _ = small(300, steps=DONE)
    for number in range(50):
        memory.write(unit(number, f"keyword{number}."))
    assert memory.report()["flushes"] > 0
    assert all(memory._matches(f"keyword{number}.") for number in range(50))


def test_paper_and_code_warn_and_evict_differently() -> None:
    assert gpt()[0].warn == 0.70
    assert gpt(mode="code")[0].warn == 0.75
    paper, code = small(400, mode="paper")[0], small(400, mode="code")[0]
    for memory in (paper, code):
        number = 0
        while not memory.report()["flushes"]:
            memory.write(unit(number, f"message number {number}"))
            number += 1
    assert paper.report()["in_view"] > code.report()["in_view"]
    gone, _, held, *_ = paper._state.queue[0].text.split()
    assert int(gone) == int(held) // 2 > 1


def test_a_read_whose_searches_fill_the_window_is_summarised_too() -> None:
    memory, llm = small(600, steps=call("conversation_search", query="match"), max_calls=6)
    memory.llm = llm
    for number in range(6):
        memory.write(unit(number, "a match " + "of words " * 10))
    before = memory.report()
    memory.read(QUESTION)
    assert SUMMARY in llm.purposes
    assert llm.purposes.count(STEP) <= 6 + before["alerts"]
    assert memory.report() == before


def test_a_message_larger_than_the_window_is_shown_cut() -> None:
    memory, llm = gpt(window=4000)
    memory.write(unit(0, "word " * 9000))
    memory.read(QUESTION)
    assert len(queue(llm.requests[-1])[0]) < 4000
    assert by_id(memory.read(QUESTION).items)["t0"].text.count("word") == 9000


# --- active ingestion ---------------------------------------------------------------------------------------------------


def test_active_ingestion_runs_the_model_after_every_turn_of_the_user() -> None:
    memory, llm = fed(TALK, answer("Oh!"), ingest="active")
    assert llm.purposes == [STEP] * 3
    assert not any("Oh!" in message.text for message in memory._recall), "the history holds the real replies"


def test_what_the_model_saved_while_listening_is_recalled() -> None:
    steps = [call("core_memory_append", False, block="human", text="has a cat"), *[DONE] * 9]
    memory, _ = fed(TALK, steps, ingest="active")
    item = memory.read(QUESTION).items[0]
    assert (item.id, item.text, item.sources) == ("core-human", "human: has a cat", ("t0",))


def test_a_chain_of_calls_is_bounded() -> None:
    _, llm = fed(["hello"], call("conversation_search", query="x"), ingest="active", max_chain=3)
    assert len(llm.requests) == 3


# --- replies that cannot be used ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", GARBAGE)
def test_a_failed_call_is_told_to_the_model_and_a_mere_thought_ends_the_run(reply: str) -> None:
    memory, llm = fed(TALK, [reply, answer("x")], own_answer=True)
    with meter.metering() as ledger:
        recall = memory.read(QUESTION)
    thought = "{" not in reply and "[" not in reply
    assert len(llm.requests) == (1 if thought else 2)
    assert ledger.notes == {"memgpt.thought_only" if thought else "memgpt.failed_call": 1}
    assert recall.aborted == ("no message was sent in 1 of 8 calls" if thought else "")
    if not thought:
        assert queue(llm.requests[1])[-1].startswith("(tool) failed:")


@pytest.mark.parametrize("arguments", [{}, {"query": ""}, {"query": None}])
def test_a_missing_argument_is_a_failed_call(arguments: Mapping[str, Any]) -> None:
    memory, llm = fed(TALK, [call("conversation_search", False, **arguments), answer("x")])
    memory.read(QUESTION)
    assert "failed: the argument query is missing" in queue(llm.requests[1])[-1]


def test_a_summary_that_cannot_be_had_keeps_the_one_before_and_is_counted() -> None:
    replies = iter(["Ann has a cat.", *[""] * 99])
    memory, _ = small(500, steps=DONE, summary=lambda request: next(replies))
    with meter.metering() as ledger:
        for number in range(60):
            memory.write(unit(number, f"message {number}"))
    assert ledger.notes["memgpt.no_summary"] == memory.report()["flushes"] - 1 > 0
    assert memory._state.queue[0].text.endswith("messages are hidden. Ann has a cat.")
    assert memory._state.queue[0].text.count("hidden") == 1


def test_a_call_that_fails_for_good_is_not_hidden() -> None:
    memory, _ = fed(TALK, ModelError("down"))
    with pytest.raises(ModelError):
        memory.read(QUESTION)


def test_it_is_never_called_letta() -> None:
    conf = Path(__file__).parents[3] / "conf" / "memory"
    titles = [
        line for path in conf.glob("memgpt*.yaml") for line in path.read_text().split("\n") if line.startswith("title:")
    ]
    assert len(titles) == 4
    assert all("re-implemented" in title and "Letta" not in title for title in titles)
