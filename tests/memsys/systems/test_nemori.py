"""Nemori: boundaries, episodes, prediction and comparison, and a recall of episodes and statements."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from scripted import Script, ScriptedLLM, TableEmbedder

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import with_settings
from memsys.llm import meter
from memsys.llm.protocol import Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.nemori import NO_PREDICTION, EpisodeBuilder, EpisodeRules, Nemori, _earliest, fused
from memsys.vectors import Embedder

GARBAGE = [
    "",
    "Sure!",
    "```json {",
    "[]",
    "{}",
    '{"should_end": "maybe", "title": 1, "content": [], "statements": "none"}',
]
each_garbage = pytest.mark.parametrize("garbage", GARBAGE)


def unit(number: int, text: str, day: int | None = 7) -> Unit:
    time = None if day is None else datetime(2023, 5, day, 13)
    return Unit(
        f"u{number}", (Turn(f"t{number}", "Ann", text),), f"s{day}", time, f"1:00 pm on {day} May, 2023" if day else ""
    )


def stream(count: int, day: int = 7) -> list[Unit]:
    return [unit(number, f"message {number}", day) for number in range(count)]


def says(**reply: Any) -> str:
    return json.dumps(reply)


def ends_before(*texts: str) -> Callable[[Request], str]:
    """A boundary before each message that ends with one of the texts."""
    return lambda request: says(should_end=request.fields["new"].endswith(texts), reason="because")


def story(request: Request) -> str:
    return says(
        title=f"Title of {len(request.fields['texts'])}", content=" / ".join(request.fields["texts"]), timestamp=""
    )


SCRIPT: dict[str, Script] = {
    "nemori.boundary": says(should_end=False),
    "nemori.episode": story,
    "nemori.learn": says(statements=["Ann has a dog."]),
    "nemori.predict": "Ann walks the dog.",
    "nemori.compare": says(statements=["Ann has a cat."]),
    "nemori.direct": says(statements=["Ann has a horse."]),
}


def nemori(
    embedder: Embedder | None = None, script: dict[str, Script] | None = None, **settings: Any
) -> tuple[Nemori, ScriptedLLM]:
    llm = ScriptedLLM({**SCRIPT, **(script or {})})
    return with_settings(Nemori, settings)(llm=llm, embedder=embedder or HashingEmbedder(64), prompts=Prompts()), llm


def builder(
    script: dict[str, Script] | None = None, embedder: Embedder | None = None, **settings: Any
) -> tuple[EpisodeBuilder, ScriptedLLM]:
    llm = ScriptedLLM({**SCRIPT, **(script or {})})
    return EpisodeBuilder(llm, embedder or HashingEmbedder(64), Prompts(), EpisodeRules(**settings)), llm


def written(memory: EpisodeBuilder, units: Sequence[Unit]) -> list[list[str]]:
    """The ids of the messages of each episode."""
    for one in units:
        memory.write(one)
    return [[one.id for one in episode.units] for episode in memory.consolidated().episodes]


def test_the_time_of_an_episode_is_that_of_its_earliest_message_with_a_time() -> None:
    assert _earliest([unit(0, "a", None), unit(1, "b", 9), unit(2, "c", 3)]) == "1:00 pm on 3 May, 2023"
    assert _earliest([unit(0, "a", None)]) == ""


def test_the_first_message_is_not_asked_about() -> None:
    memory, llm = builder()
    memory.write(unit(0, "hello"))
    assert llm.purposes == []


def test_two_sessions_cost_five_boundaries_two_stories_and_two_lessons_in_this_order() -> None:
    puppy = [
        "I adopted a puppy yesterday.",
        "What is her name?",
        "Luna.",
        "Lovely.",
        "Luna learned to sit.",
        "Good girl!",
    ]
    memory, llm = builder({"nemori.boundary": ends_before("to sit.")})
    episodes = written(memory, [unit(number, text, 7 if number < 4 else 10) for number, text in enumerate(puppy)])
    assert episodes == [["u0", "u1", "u2", "u3"], ["u4", "u5"]]
    assert [purpose.removeprefix("nemori.") for purpose in llm.purposes] == [
        *["boundary"] * 4, "episode", "learn", "boundary", "episode", "compare",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 3, 4, 7, 9])
def test_without_boundaries_a_full_buffer_is_cut_and_not_asked_about(count: int) -> None:
    memory, llm = builder(buffer_max=3)
    episodes = written(memory, stream(count))
    assert len(episodes) == math.ceil(count / 3)
    assert [name for episode in episodes for name in episode] == [f"u{number}" for number in range(count)]
    assert llm.purposes.count("nemori.boundary") == count - math.ceil(count / 3)
    assert memory.consolidated().report()["episodes_at_max"] == math.ceil(count / 3) - 1


@pytest.mark.parametrize("settings", [{"enforce_max": False}, {"mode": "code"}])
def test_the_release_never_reaches_the_maximum(settings: dict[str, Any]) -> None:
    memory, llm = builder(buffer_max=3, **settings)
    assert len(written(memory, stream(12))) == 1
    assert llm.purposes.count("nemori.boundary") == 11


def test_the_release_hides_the_last_message_of_a_history_of_more_than_ten() -> None:
    shown = {}
    for mode in ("paper", "code"):
        memory, llm = builder(mode=mode)
        written(memory, stream(13))
        asked = [request for request in llm.requests if request.kind == "boundary"]
        shown[mode] = [len(request.fields["history"]) for request in asked]
    assert shown["paper"] == list(range(1, 13))
    assert shown["code"] == [*range(1, 11), 10, 11]


def test_the_boundary_is_asked_with_the_buffer_and_the_new_message_and_their_times() -> None:
    memory, llm = builder({"nemori.boundary": ends_before("message 2")})
    written(memory, stream(4))
    assert [
        (request.fields["history"], request.fields["new"]) for request in llm.requests if request.kind == "boundary"
    ][-1] == (
        ["[1:00 pm on 7 May, 2023] Ann: message 2"],
        "[1:00 pm on 7 May, 2023] Ann: message 3",
    )
    assert llm.requests[0].temperature == 0.1


def test_the_release_shows_the_boundary_prompt_no_times() -> None:
    memory, llm = builder(mode="code")
    written(memory, stream(3))
    (_, last) = [request for request in llm.requests if request.kind == "boundary"]
    assert (last.fields["history"], last.fields["new"]) == (["Ann: message 0", "Ann: message 1"], "Ann: message 2")


def test_calls_have_the_released_temperatures_and_room_for_a_reason_and_a_summary() -> None:
    prompts = Prompts()
    names = ("boundary", "episode", "predict", "learn", "compare", "direct")
    heat = {name: prompts[f"nemori/{name}"].temperature for name in names}
    assert heat == {"boundary": 0.1, "episode": 0.3, "predict": 0.3, "learn": 0.2, "compare": 0.2, "direct": 0.2}
    assert prompts["nemori/boundary"].max_tokens >= 1000


def test_a_boundary_counts_only_with_enough_messages_in_the_buffer() -> None:
    memory, _ = builder({"nemori.boundary": says(should_end=True)}, buffer_min=2)
    assert written(memory, stream(5)) == [["u0", "u1"], ["u2", "u3"], ["u4"]]


def test_a_boundary_without_a_reason_is_a_boundary() -> None:
    memory, _ = builder({"nemori.boundary": says(should_end=True, reason="")})
    assert len(written(memory, stream(3))) == 3


@each_garbage
def test_an_unreadable_boundary_is_none_and_counted(garbage: str) -> None:
    memory, _ = builder({"nemori.boundary": garbage})
    with meter.metering() as ledger:
        assert len(written(memory, stream(3))) == 1
    assert ledger.notes["nemori.no_boundary"] == ledger.parse_failures["nemori.boundary"] == 2
    assert memory.report() == {"boundaries_undecided": 2}


def test_the_story_is_asked_for_with_the_messages_and_why_they_end() -> None:
    memory, llm = builder({"nemori.boundary": ends_before("message 1")})
    written(memory, stream(2))
    first = next(request for request in llm.requests if request.purpose == "nemori.episode")
    assert first.fields["texts"] == ["[1:00 pm on 7 May, 2023] Ann: message 0"]
    assert first.fields["reason"] == "because"
    assert first.temperature == 0.3


@each_garbage
def test_an_unreadable_story_is_the_first_and_last_message(garbage: str) -> None:
    memory, _ = builder({"nemori.episode": garbage})
    with meter.metering() as ledger:
        written(memory, stream(3))
    (episode,) = memory.consolidated().episodes
    assert (episode.title, episode.content) == ("Ann: message 0", "Ann: message 0\nAnn: message 2")
    assert (episode.time_text, episode.retold) == ("1:00 pm on 7 May, 2023", False)
    assert ledger.notes["nemori.first_and_last_message"] == 1
    assert memory.consolidated().report()["episodes_not_retold"] == 1


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ("2023-05-09T20:00:00", "1:00 pm on 9 May, 2023"),
        ("2023-05-08T20:00:00", "2023-05-08 20:00"),
        ("2023-05-10T00:00:00", "1:00 pm on 7 May, 2023"),
        ("2099-01-01T00:00:00Z", "1:00 pm on 7 May, 2023"),
        ("last Tuesday", "1:00 pm on 7 May, 2023"),
        ("", "1:00 pm on 7 May, 2023"),
    ],
)
def test_an_episode_has_the_stated_time_unless_it_is_none_or_after_the_last_message(stated: str, shown: str) -> None:
    memory, _ = builder({"nemori.episode": says(title="T", content="C", timestamp=stated)})
    with meter.metering() as ledger:
        written(memory, [unit(0, "early", 7), unit(1, "late", 9)])
    assert memory.consolidated().episodes[0].time_text == shown
    assert ledger.notes["nemori.time_of_messages"] == (shown == "1:00 pm on 7 May, 2023")


def test_messages_without_a_time_make_an_episode_without_one() -> None:
    memory, _ = builder({"nemori.episode": says(title="T", content="C", timestamp="2023-05-09T20:00:00")})
    written(memory, [unit(0, "when?", None)])
    assert memory.consolidated().episodes[0].time_text == ""


def test_the_cold_start_happens_once_and_reads_the_story() -> None:
    memory, llm = builder({"nemori.boundary": says(should_end=True)})
    written(memory, stream(4))
    lessons = [request for request in llm.requests if request.kind == "extract"]
    assert [request.purpose for request in lessons] == ["nemori.learn", *["nemori.compare"] * 3]
    assert lessons[0].fields["text"] == "Title of 1. [1:00 pm on 7 May, 2023] Ann: message 0"
    assert lessons[1].fields["text"] == ["[1:00 pm on 7 May, 2023] Ann: message 1"]


def instructions(step: str) -> str:
    return next(
        text
        for role, text in Prompts()[f"nemori/{step}"].render({"text": "", "prediction": ""}).messages
        if role == "system"
    )


def test_the_cold_start_wants_seven_kinds_of_facts_without_dates() -> None:
    """The released cold start (prediction_correction_engine, e1a7f9d): beliefs and values too, no time in a statement."""
    text = instructions("learn")
    assert re.findall(r"^(\d)\. (\w+)", text, re.MULTILINE) == [
        ("1", "identity"), ("2", "preferences"), ("3", "techniques"), ("4", "relationships"), ("5", "goals"), ("6", "beliefs"),
        ("7", "habits"),
    ]  # fmt: skip
    assert "without dates" in text
    assert "Give dates" not in text


def test_direct_extraction_wants_six_kinds_of_facts_and_lets_them_hold_dates() -> None:
    """xMemory App. C.1, whose examples name months and years."""
    text = instructions("direct")
    assert len(re.findall(r"^\d\. ", text, re.MULTILINE)) == 6
    assert "beliefs" not in text
    assert "Give dates where they belong to the fact." in text


def test_direct_extraction_learns_from_every_story_by_itself() -> None:
    """xMemory App. C.1 prints one prompt for statements, which is shown episodes: no prediction, no comparison."""
    memory, llm = builder({"nemori.boundary": says(should_end=True)}, extraction="direct")
    written(memory, stream(3))
    lessons = [request for request in llm.requests if request.kind == "extract"]
    assert [request.purpose for request in lessons] == ["nemori.direct"] * 3
    assert "nemori.predict" not in llm.purposes
    assert lessons[1].fields["text"] == ("[1:00 pm on 7 May, 2023] Title of 1. [1:00 pm on 7 May, 2023] Ann: message 1")
    assert [(one.text, one.episode) for one in memory.consolidated().statements] == [
        ("Ann has a horse.", number) for number in range(3)
    ]


def test_an_unknown_extraction_is_refused() -> None:
    with pytest.raises(ValueError, match="extraction must be one of predict, direct"):
        nemori(extraction="both")


def test_a_first_episode_that_teaches_nothing_leaves_the_next_to_start_cold() -> None:
    learned: Script = [says(statements=[]), says(statements=["  ", "Ann has a dog."])]
    memory, llm = builder({"nemori.boundary": says(should_end=True), "nemori.learn": learned})
    written(memory, stream(3))
    assert [request.purpose for request in llm.requests if request.kind == "extract"] == [
        "nemori.learn",
        "nemori.learn",
        "nemori.compare",
    ]
    assert [(one.text, one.episode) for one in memory.consolidated().statements] == [
        ("Ann has a dog.", 1),
        ("Ann has a cat.", 2),
    ]


@pytest.mark.parametrize(("cosine", "predicted"), [(0.85, True), (0.8499, False), (0.80, False), (1.0, True)])
def test_a_statement_predicts_an_episode_from_a_cosine_of_85_hundredths(cosine: float, predicted: bool) -> None:
    sine = math.sqrt(1 - cosine**2)
    table = TableEmbedder(
        {"Ann has a dog.": (1, 0), "two. B": (cosine, sine), "one. A": (0, 1), "Ann has a cat.": (0, 1)}
    )
    stories: Script = [says(title="one", content="A"), says(title="two", content="B")]
    memory, llm = builder({"nemori.boundary": says(should_end=True), "nemori.episode": stories}, table)
    written(memory, stream(2))
    assert ("nemori.predict" in llm.purposes) == predicted
    compared = llm.requests[-1].fields["prediction"]
    assert compared == ("Ann walks the dog." if predicted else NO_PREDICTION)
    if predicted:
        assert llm.purposes[-3:] == ["nemori.episode", "nemori.predict", "nemori.compare"]
        assert llm.requests[-2].fields == {"title": "two", "texts": ["Ann has a dog."], "labels": ()}


def test_at_most_ten_statements_predict_the_most_similar_first() -> None:
    facts = [f"fact {number}" for number in range(12)]
    angles = {
        text: (math.cos(0.03 * (12 - number)), math.sin(0.03 * (12 - number))) for number, text in enumerate(facts)
    }
    table = TableEmbedder({**angles, "one. A": (0, 1), "two. B": (1, 0), "Ann has a cat.": (0, 1)})
    stories: Script = [says(title="one", content="A"), says(title="two", content="B")]
    script: dict[str, Script] = {"nemori.boundary": says(should_end=True), "nemori.episode": stories}
    memory, llm = builder({**script, "nemori.learn": says(statements=facts)}, table)
    written(memory, stream(2))
    predict = next(request for request in llm.requests if request.purpose == "nemori.predict")
    assert predict.fields["texts"] == facts[:1:-1]


@each_garbage
@pytest.mark.parametrize("stage", ["learn", "compare"])
def test_unreadable_lessons_teach_nothing_and_are_counted(garbage: str, stage: str) -> None:
    memory, _ = builder({"nemori.boundary": says(should_end=True), f"nemori.{stage}": garbage})
    with meter.metering() as ledger:
        written(memory, stream(2))
    assert len(memory.consolidated().statements) == {"learn": 0, "compare": 1}[stage]
    assert ledger.notes["nemori.no_statements"] == memory.consolidated().report()["episodes_not_learned"]
    assert ledger.notes["nemori.no_statements"] == {"learn": 2, "compare": 1}[stage]


def test_an_empty_prediction_is_the_fixed_sentence() -> None:
    same = TableEmbedder({}, HashingEmbedder(8))
    flat = says(title="Ann has", content="a dog")
    script: dict[str, Script] = {
        "nemori.boundary": says(should_end=True),
        "nemori.episode": flat,
        "nemori.predict": "  ",
    }
    memory, llm = builder(script, same)
    with meter.metering() as ledger:
        written(memory, stream(2))
    assert llm.requests[-1].fields["prediction"] == NO_PREDICTION
    assert ledger.notes["nemori.no_prediction"] == 1


def test_calls_are_one_boundary_a_message_one_story_an_episode_and_one_or_two_lessons() -> None:
    memory, llm = builder({"nemori.boundary": ends_before("3", "5", "9")})
    episodes = written(memory, stream(10))
    count = {
        step: llm.purposes.count(f"nemori.{step}") for step in ("boundary", "episode", "learn", "compare", "predict")
    }
    assert count["boundary"] == 10 - 1
    assert count["episode"] == len(episodes) == 4
    assert (count["learn"], count["compare"]) == (1, 3)
    assert len(llm.purposes) == 9 + 4 + 4 + count["predict"]


def test_a_provisional_episode_is_told_anew_and_changes_nothing() -> None:
    twice, llm = builder({"nemori.boundary": ends_before("message 4")})
    written(twice, stream(3))
    calls = len(llm.requests)
    first = twice.consolidated()
    assert twice.consolidated() is first
    assert len(llm.requests) == calls
    once, _ = builder({"nemori.boundary": ends_before("message 4")})
    assert written(twice, stream(6)[3:]) == written(once, stream(6)) == [["u0", "u1", "u2", "u3"], ["u4", "u5"]]
    assert twice.consolidated().statements == once.consolidated().statements
    np.testing.assert_array_equal(
        twice.consolidated().statement_vectors.matrix, once.consolidated().statement_vectors.matrix
    )
    assert [len(episode.units) for episode in first.episodes] == [3]
    assert len(first.statement_vectors) == 1


def asked(memory: Nemori, text: str) -> list[tuple[str, str, int]]:
    return [(item.id, item.kind, item.level) for item in memory.read(Question("q", text)).items]


def test_ten_episodes_and_twenty_statements_are_recalled_best_first() -> None:
    memory, _ = nemori(
        HashingEmbedder(256),
        {
            "nemori.boundary": says(should_end=True),
            "nemori.compare": lambda request: says(statements=[f"{request.fields['text'][0]} {part}" for part in "ab"]),
        },
    )
    for one in stream(15):
        memory.write(one)
    memory.consolidate()
    items = memory.read(Question("q", "message 12 b")).items
    assert [(item.kind, item.level) for item in items] == [("episode", 1)] * 10 + [("semantic", 2)] * 20
    for group in (items[:10], items[10:]):
        assert [item.score for item in group] == sorted((item.score for item in group), reverse=True)
    assert items[0].id == "episode-12"
    assert items[10].text == "[1:00 pm on 7 May, 2023] [1:00 pm on 7 May, 2023] Ann: message 12 b"
    assert items[10].sources == ("t12",)


def test_recalled_episodes_show_their_titles_and_the_two_best_their_messages() -> None:
    memory, _ = nemori(
        script={"nemori.boundary": says(should_end=True), "nemori.episode": says(title="T", content="C")}
    )
    for one in stream(4):
        memory.write(one)
    memory.consolidate()
    texts = [item.text for item in memory.read(Question("q", "what?")).items if item.kind == "episode"]
    assert texts[:2] == [
        f"[1:00 pm on 7 May, 2023] T. C\nMessages:\n[1:00 pm on 7 May, 2023] Ann: message {number}" for number in (0, 1)
    ]
    assert texts[2:] == ["[1:00 pm on 7 May, 2023] T. C"] * 2


def test_a_read_sees_what_the_last_consolidation_saw() -> None:
    memory, _ = nemori()
    memory.write(unit(0, "one"))
    assert memory.read(Question("q", "one")).items == ()
    memory.consolidate()
    memory.write(unit(1, "two"))
    assert memory.read(Question("q", "two")).items[0].sources == ("t0",)


def test_rankings_are_fused_by_the_sum_of_reciprocal_ranks() -> None:
    assert fused([[3, 1], [1, 2]], 3) == [(1, 1 / 62 + 1 / 61), (3, 1 / 61), (2, 1 / 62)]
    assert fused([[5], [4]], 1) == [(4, 1 / 61)]


def test_the_hybrid_search_finds_the_word_that_the_vectors_miss() -> None:
    facts = ["Ann likes tea.", "Ann met Bruno.", "Ann likes jam."]
    vectors = {facts[0]: (1.0, 0.0), facts[1]: (0.0, 1.0), facts[2]: (0.9, 0.1), "T. C": (1, 0), "Bruno?": (1, 0)}
    script: dict[str, Script] = {
        "nemori.learn": says(statements=facts),
        "nemori.episode": says(title="T", content="C"),
    }
    found = {}
    for search in ("vector", "hybrid"):
        memory, _ = nemori(TableEmbedder(vectors), script, search=search, k_statements=2)
        memory.write(unit(0, "hello"))
        memory.consolidate()
        found[search] = [item.id for item in memory.read(Question("q", "Bruno?")).items][1:]
    assert found == {"vector": ["statement-0", "statement-2"], "hybrid": ["statement-1", "statement-0"]}


def test_a_recall_is_not_that_of_dense_retrieval() -> None:
    memory, _ = nemori(script={"nemori.boundary": ends_before("message 3")})
    dense = Dense(HashingEmbedder(64))
    for one in stream(6):
        memory.write(one)
        dense.write(one)
    memory.consolidate()
    question = Question("q", "message 4")
    assert {item.sources for item in memory.read(question).items} == {("t0", "t1", "t2"), ("t3", "t4", "t5")}
    assert {len(item.sources) for item in dense.read(question).items} == {1}


def test_messages_lie_below_episodes_and_episodes_below_what_they_taught() -> None:
    memory, _ = nemori(script={"nemori.boundary": ends_before("message 1")})
    for one in stream(2):
        memory.write(one)
    memory.consolidate()
    assert sorted((node.level, node.id, node.parents, node.kind) for node in memory.nodes()) == [
        (0, "u0", ("episode-0",), "message"),
        (0, "u1", ("episode-1",), "message"),
        (1, "episode-0", ("statement-0",), "episode"),
        (1, "episode-1", ("statement-1",), "episode"),
        (2, "statement-0", (), "semantic"),
        (2, "statement-1", (), "semantic"),
    ]
    assert memory.held == 4


@pytest.mark.parametrize("setting", ["k_episodes", "k_statements", "buffer_min", "buffer_max", "known"])
def test_sizes_of_zero_are_refused_by_name(setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be at least 1"):
        nemori(**{setting: 0})  # type: ignore[arg-type]
