from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from scripted import ScriptedLLM, TableEmbedder

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import tuned, with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.memstream import MemoryStream, recency
from memsys.vectors import scaled

START = datetime(2023, 5, 7, 8)
RATE, QUESTIONS, INSIGHTS = "memstream.importance", "memstream.questions", "memstream.insights"
# Cosine .2, .6 and .9 with the question, importance 2, 8 and 5, last accessed 10, 2 and 0 hours ago.
WORKED = {"one": (0.2, 0.96**0.5), "two": (0.6, 0.8), "three": (0.9, 0.19**0.5), "q": (1.0, 0.0)}


def unit(text: str, number: int, hours: float | None = None) -> Unit:
    time = None if hours is None else START + timedelta(hours=hours)
    return Unit(f"u{number}", (Turn(f"t{number}", "", text),), "s1", time, time.isoformat() if time else "")


def stream(script: Mapping[str, Any] | None = None, **settings: Any) -> tuple[MemoryStream, ScriptedLLM]:
    llm = ScriptedLLM({RATE: "5", **(script or {})})
    table = settings.pop("table", {})
    embedder = TableEmbedder(table, HashingEmbedder(2 if table else 256))
    return with_settings(MemoryStream, settings)(llm=llm, embedder=embedder, prompts=Prompts()), llm


def worked(**settings: Any) -> MemoryStream:
    memory, _ = stream({RATE: ["2", "8", "5"]}, table=WORKED, **settings)
    for number, (text, hours) in enumerate([("one", 0), ("two", 8), ("three", 10)]):
        memory.write(unit(text, number, hours))
    return memory


def asked(text: str, hours: float | None = None) -> Question:
    return Question("q", text, time=None if hours is None else START + timedelta(hours=hours))


def reply(*insights: tuple[str, Sequence[int]]) -> str:
    return json.dumps({"insights": [{"insight": text, "evidence": list(numbers)} for text, numbers in insights]})


@pytest.mark.parametrize(
    ("mode", "scores"),
    [
        ("paper", {"u0": 0, "u1": 2.3674, "u2": 2.5}),
        ("code", {"u0": 0.5, "u1": 3.9630, "u2": 4.0}),
        ("genagents", {"u0": 0, "u1": 1.0714, "u2": 1.25}),
    ],
)
def test_the_worked_scores(mode: str, scores: dict[str, float]) -> None:
    items = worked(mode=mode).read(asked("q")).items
    assert {item.id: item.score for item in items} == pytest.approx(scores, abs=1e-4)
    order = ["u0", "u1", "u2"] if mode == "genagents" else ["u2", "u1", "u0"]
    assert [item.id for item in items] == order


def test_recency_falls_with_age_in_hours_and_is_upside_down_in_the_released_code() -> None:
    np.testing.assert_allclose(recency(np.array([0.0, 8, 10]), 0.995, by_rank=False), [0.9511, 0.9900, 1], atol=1e-4)
    np.testing.assert_allclose(recency(np.array([0.0, 8, 10]), 0.99, by_rank=True), [0.99, 0.9801, 0.970299])
    np.testing.assert_allclose(recency(np.array([8.0, 0, 8]), 0.99, by_rank=True), [0.9801, 0.99, 0.970299])


def test_terms_are_stretched_over_all_memories_and_a_constant_one_becomes_a_half() -> None:
    np.testing.assert_allclose(scaled(np.array([2.0, 8, 5]), flat=0.5), [0, 1, 0.5])
    np.testing.assert_allclose(scaled(np.array([0.2, 0.6, 0.9]), flat=0.5), [0, 0.5714, 1], atol=1e-4)
    np.testing.assert_allclose(scaled(np.array([3.0, 3.0]), flat=0.5), [0.5, 0.5])


def test_a_single_memory_scores_one_and_a_half() -> None:
    memory, _ = stream()
    memory.write(unit("the kettle boils", 0, 0))
    (item,) = memory.read(asked("kettle")).items
    assert item.score == 1.5


def test_the_time_of_the_question_does_not_move_the_scores() -> None:
    memory = worked()
    assert memory.read(asked("q", 12)) == memory.read(asked("q", 700_000)) == memory.read(asked("q"))


def test_without_times_one_unit_is_one_unit_of_time() -> None:
    memory, _ = stream(weights=(1, 0, 0))
    for number, text in enumerate(["bread", "rope", "salt"]):
        memory.write(unit(text, number))
    scores = {item.id: item.score for item in memory.read(asked("anything")).items}
    assert scores == pytest.approx({"u0": 0, "u1": (0.995 - 0.995**2) / (1 - 0.995**2), "u2": 1})
    assert memory.report()["time_unit"] == "unit"
    assert worked().report()["time_unit"] == "hour"
    assert worked(mode="genagents").report()["time_unit"] == "unit"


def test_a_unit_without_a_time_takes_that_of_the_unit_before() -> None:
    memory, _ = stream(weights=(1, 0, 0))
    for number, hours in enumerate([0, 100, None]):
        memory.write(unit(f"text {number}", number, hours))
    assert [item.score for item in memory.read(asked("text")).items] == [1, 1, 0]


def test_each_insertion_is_one_call_and_a_read_is_none() -> None:
    memory, llm = stream()
    for number in range(7):
        memory.write(unit(f"note {number}", number))
        assert llm.purposes == [RATE] * (number + 1)
    memory.read(asked("note"))
    assert len(llm.requests) == 7
    sent = llm.requests[0].messages
    assert "an assistant who takes part in the conversation" in sent[0][1]
    assert "<memory>\nnote 0\n</memory>" in sent[1][1]


@pytest.mark.parametrize("garbage", ["", "Sure!", "```json {", "0", "11", "7.5", "[]", '{"rating": 3}'])
def test_a_rating_that_is_no_number_is_four_after_three_attempts(garbage: str) -> None:
    memory, llm = stream({RATE: garbage})
    with meter.metering() as ledger:
        memory.write(unit("note", 0))
    assert [request.retry for request in llm.requests] == [0, 1, 2]
    assert ledger.notes == {"memstream.default_importance": 1}
    assert memory.report()["mean_importance"] == 4
    assert memory.report()["default_importance"] == 1


def test_a_third_rating_that_is_a_number_counts() -> None:
    memory, _ = stream({RATE: ["high", "", "9."]})
    memory.write(unit("note", 0))
    assert memory.report()["mean_importance"] == 9


def test_a_rating_call_that_fails_for_good_is_not_hidden() -> None:
    memory, _ = stream({RATE: ModelError("the endpoint is gone")})
    with pytest.raises(ModelError):
        memory.write(unit("note", 0))
    assert memory.held == 0


def test_reading_leaves_the_memory_as_it_was() -> None:
    memory = worked()
    first = memory.read(asked("q", 20))
    memory.read(asked("two", 30))
    assert memory.read(asked("q", 20)) == first


def test_with_mutation_a_recalled_memory_is_the_most_recent_next_time() -> None:
    memory = worked(mutate_on_read=True, k=1, weights=(0, 0, 1))
    assert [item.id for item in memory.read(asked("q", 11)).items] == ["u1"]
    memory = tuned(memory, {"weights": (1, 0, 0)})
    (item,) = memory.read(asked("q", 12)).items
    assert (item.id, item.score) == ("u1", 1)


def test_with_mutation_and_no_times_a_recalled_memory_is_the_most_recent_next_time() -> None:
    memory, _ = stream(mutate_on_read=True, k=1, weights=(0, 1, 0))
    for number, text in enumerate(["bread", "rope", "salt"]):
        memory.write(unit(text, number))
    memory.read(asked("bread"))
    memory = tuned(memory, {"weights": (1, 0, 0)})
    assert [item.id for item in memory.read(asked("rope")).items] == ["u0"]


def test_the_release_neither_rates_nor_recalls_what_is_idle() -> None:
    memory, llm = stream(mode="code")
    memory.write(unit("the bed is idle", 0))
    assert not llm.requests
    assert memory.read(asked("bed")).items == ()
    memory.write(unit("an idle afternoon", 1))
    memory.write(unit("the bed is made", 2))
    assert [item.id for item in memory.read(asked("bed")).items] == ["u2"]
    assert llm.purposes == [RATE] * 2
    paper, _ = stream()
    paper.write(unit("the bed is idle", 0))
    assert len(paper.read(asked("bed")).items) == 1


def test_relevance_alone_ranks_as_dense_retrieval_does_and_the_full_score_differently() -> None:
    texts = [f"topic {index % 3} word {index}" for index in range(12)]
    relevance, _ = stream(weights=[0, 1, 0], k=5)
    full, _ = stream({RATE: [str(10 - index % 10) for index in range(12)]}, k=5)
    dense = Dense(HashingEmbedder(256), k=5)
    for number, text in enumerate(texts):
        for memory in (relevance, full, dense):
            memory.write(unit(text, number, 24 * number))
    ids = {
        name: [item.id for item in memory.read(asked("word 0 topic 0")).items]
        for name, memory in {"relevance": relevance, "full": full, "dense": dense}.items()
    }
    assert ids["relevance"] == ids["dense"] != ids["full"]


def test_k_and_the_budget_limit_the_recall() -> None:
    memory = worked(k=2)
    assert len(memory.read(asked("q")).items) == 2
    shorter = tuned(memory, {"max_tokens": 3})
    (item,) = shorter.read(asked("q")).items
    assert item.text == "[2023"
    shorter = tuned(shorter, {"max_tokens": None})
    assert len(shorter.read(asked("q")).items) == 2


def test_no_reflection_unless_asked_for() -> None:
    memory, llm = stream({RATE: "10"})
    for number in range(40):
        memory.write(unit(f"note {number}", number))
    assert set(llm.purposes) == {RATE}
    assert memory.report()["thoughts"] == 0


def reflecting(insights: str | list[str], **settings: Any) -> tuple[MemoryStream, ScriptedLLM]:
    questions = json.dumps({"questions": ["who gardens?", "who cooks?", "who sails?", "who sleeps?"]})
    return stream({RATE: "10", QUESTIONS: questions, INSIGHTS: insights}, reflections=True, **settings)


def test_fifteen_events_of_importance_ten_start_a_reflection_at_the_fifteenth() -> None:
    memory, llm = reflecting(reply(("gardens keep people busy", [1, 2])))
    for number in range(14):
        memory.write(unit(f"note {number}", number))
    assert set(llm.purposes) == {RATE}
    memory.write(unit("note 14", 14))
    assert llm.purposes[14:] == [RATE, QUESTIONS, INSIGHTS, INSIGHTS, INSIGHTS, RATE, RATE, RATE]
    for number in range(15, 29):
        memory.write(unit(f"note {number}", number))
    assert memory.report()["reflections"] == 1
    memory.write(unit("note 29", 29))
    assert memory.report()["reflections"] == 2


def test_a_full_reflection_is_nineteen_calls() -> None:
    memory, llm = reflecting(reply(*((f"insight {index}", [1]) for index in range(6))))
    for number in range(15):
        memory.write(unit(f"note {number}", number))
    assert len(llm.requests) - 15 == 19
    assert memory.report()["thoughts"] == 15
    assert memory.held == 30


def test_an_insight_stands_for_the_turns_of_the_memories_that_it_cites() -> None:
    memory, llm = reflecting(
        [reply(("Ann gardens", [2, 1])), reply(("Bob cooks", [3])), reply(("nobody sails", []))], trigger=30
    )
    for number, text in enumerate(["Ann plants beans", "Bob fries fish", "Ann waters beans"]):
        memory.write(unit(text, number, number))
    first, second, third = (node for node in memory.nodes() if node.kind == "thought")
    shown = [option.text for option in next(r for r in llm.requests if r.purpose == INSIGHTS).fields["statements"]]
    written = ["Ann plants beans", "Bob fries fish", "Ann waters beans"]
    assert first.sources == (f"t{written.index(shown[1])}", f"t{written.index(shown[0])}")
    assert (first.id, first.level, first.text) == ("thought-3", 1, "Ann gardens")
    assert third.sources == ()
    assert {node.id for node in memory.nodes() if "thought-3" in node.parents} == {
        f"u{written.index(shown[0])}", f"u{written.index(shown[1])}",
    }  # fmt: skip
    item = next(item for item in memory.read(asked("Ann gardens")).items if item.id == "thought-3")
    assert item.text == "[2023-05-07T10:00:00] Ann gardens"
    assert (item.kind, item.level, item.sources) == ("thought", 1, first.sources)
    assert second.start == START + timedelta(hours=2)


def test_an_insight_about_an_insight_is_one_deeper() -> None:
    memory, _ = reflecting(reply(("everything is about beans", range(1, 8))), trigger=20)
    for number in range(4):
        memory.write(unit("beans", number))
    assert [node.level for node in memory.nodes() if node.kind == "thought"] == [1, 1, 1, 2, 2, 2]


def test_a_reflection_asks_about_the_recent_and_shows_what_each_question_recalls() -> None:
    memory, llm = reflecting(reply(("fine", [1])), trigger=50, window=3, reflection_k=2)
    texts = ["Ann gardens", "Bob cooks", "Cid sails", "Dot gardens", "Eve cooks"]
    for number, text in enumerate(texts):
        memory.write(unit(text, number))
    questions = next(request for request in llm.requests if request.purpose == QUESTIONS)
    assert questions.fields["text"] == texts[-3:]
    assert "[1] Cid sails\n[2] Dot gardens\n[3] Eve cooks" in questions.messages[1][1]
    insights = [request for request in llm.requests if request.purpose == INSIGHTS]
    assert [request.fields["question"] for request in insights] == ["who gardens?", "who cooks?", "who sails?"]
    assert all(len(request.fields["text"]) == 2 for request in insights)
    assert insights[2].fields["text"][0] == "Cid sails"


def test_the_release_asks_about_as_many_memories_as_came_since_the_last_reflection() -> None:
    memory, llm = reflecting(reply(("fine", [1])), trigger=20, mode="code", weights=(0, 1, 0), reflection_k=1)
    for number, text in enumerate(["Ann gardens", "Bob cooks", "Cid sails", "Dot rests"]):
        memory.write(unit(text, number))
    texts = [request.fields["text"] for request in llm.requests if request.purpose == QUESTIONS]
    assert texts == [["Ann gardens", "Bob cooks"], ["Cid sails", "Dot rests"]]


def test_a_reflection_makes_what_it_looks_up_recent() -> None:
    memory, _ = reflecting("", trigger=20, weights=(0, 1, 0), reflection_k=1)
    memory.write(unit("Ann gardens and cooks and sails", 0, 0))
    memory.write(unit("Bob sleeps", 1, 50))
    memory = tuned(memory, {"weights": (1, 0, 0)})
    assert [item.score for item in memory.read(asked("x")).items] == [0.5, 0.5]


@pytest.mark.parametrize("garbage", ["", "Sure!", "```json {", "[]", "{}", '{"questions": "one"}', '{"questions": []}'])
def test_questions_that_cannot_be_parsed_become_one_general_question_three_times(garbage: str) -> None:
    memory, llm = stream({RATE: "10", QUESTIONS: garbage, INSIGHTS: reply(("fine", [1]))}, reflections=True, trigger=10)
    with meter.metering() as ledger:
        memory.write(unit("note", 0))
    assert ledger.notes["memstream.general_question"] == 1
    assert llm.purposes == [RATE, *[QUESTIONS] * 3, *[INSIGHTS] * 3, *[RATE] * 3]
    assert len({request.fields["question"] for request in llm.requests if request.purpose == INSIGHTS}) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "Sure!",
        "```json {",
        "[]",
        "{}",
        '{"insights": [{"insight": 3, "evidence": [1]}]}',
        '{"insights": [{"insight": "x"',
    ],
)
def test_insights_that_cannot_be_parsed_are_none_and_counted(garbage: str) -> None:
    memory, llm = reflecting(garbage, trigger=10)
    with meter.metering() as ledger:
        memory.write(unit("note", 0))
    assert ledger.notes["memstream.no_insights"] == 3
    assert llm.purposes == [RATE, QUESTIONS, *[INSIGHTS] * 9]
    assert memory.held == 1


def test_citations_of_statements_that_were_not_shown_are_dropped_and_counted() -> None:
    memory, _ = reflecting(reply(("fine", [0, 1, 99, -1])), trigger=10)
    with meter.metering() as ledger:
        memory.write(unit("note", 0))
    assert ledger.notes == {"memstream.bad_citation": 3}
    assert [node.sources for node in memory.nodes() if node.kind == "thought"] == [("t0",)] * 3


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="mode must be one of paper, code, genagents"):
        stream(mode="papr")
    with pytest.raises(ValueError, match="trigger must be at least 1, found 0"):
        stream(trigger=0)
