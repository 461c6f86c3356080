from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scripted import ScriptedLLM, TableEmbedder

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import tuned, union, with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.memorybank import MemoryBank, _joined, retention

CONF = Path(__file__).parents[3] / "conf" / "memory"
DAY_EVENTS, DAY_PORTRAIT = "memorybank.day_events", "memorybank.day_portrait"
ALL_EVENTS, ALL_PORTRAIT = "memorybank.global_events", "memorybank.global_portrait"
START = datetime(2023, 5, 7, 18)


def exchange(number: int, day: int | None, said: str, reply: str = "I see.") -> Unit:
    turns = (Turn(f"t{number}", "Ann", said), Turn(f"r{number}", "Bot", reply, "assistant"))
    time = None if day is None else START + timedelta(days=day)
    return Unit(f"u{number}", turns, f"s{day}", time, f"{time:%d %B %Y}" if time else "")


def summary(request: Request) -> str:
    """The first words of what was shown, so that a text can be recognised."""
    return f"{request.purpose.split('.')[1]}: {request.fields['texts'][0]}"


def bank(script: Mapping[str, Any] | None = None, **settings: Any) -> tuple[MemoryBank, ScriptedLLM]:
    llm = ScriptedLLM({"*": summary, **(script or {})})
    embedder = settings.pop("embedder", HashingEmbedder(512))
    rng = np.random.default_rng(settings.pop("seed", 0))
    return with_settings(MemoryBank, settings)(llm=llm, embedder=embedder, prompts=Prompts(), rng=rng), llm


THREE_DAYS = [
    exchange(0, 0, "I adopted a puppy."),
    exchange(1, 0, "Her name is Luna."),
    exchange(2, 1, "I bake rye bread on Mondays."),
    exchange(3, 5, "Luna learned to sit."),
]


def fed(units: list[Unit] | None = None, **settings: Any) -> tuple[MemoryBank, ScriptedLLM]:
    memory, llm = bank(**settings)
    for unit in THREE_DAYS if units is None else units:
        memory.write(unit)
    memory.consolidate()
    return memory, llm


def bank_of(units: list[Unit], **settings: Any) -> MemoryBank:
    memory, _ = bank(**settings)
    for unit in units:
        memory.write(unit)
    return memory


def asked(text: str, day: int | None = None) -> Question:
    return Question("q", text, time=None if day is None else START + timedelta(days=day))


def found(memory: MemoryBank, text: str, day: int | None = None) -> list[str]:
    return [item.id for item in memory.read(asked(text, day)).items]


# --- the forgetting curve ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("days", "strength", "published", "released"),
    [(1, 1, 0.3679, 0.8187), (5, 1, 0.0067, 0.3679), (5, 2, 0.0821, 0.1353), (10, 3, 0.0357, 0.0025)],
)
def test_retention_as_published_and_as_released(days: int, strength: int, published: float, released: float) -> None:
    at, of = np.array([days]), np.array([strength])
    np.testing.assert_allclose(retention(at, of), published, atol=5e-5)
    np.testing.assert_allclose(retention(at, of, inverted=True), released, atol=5e-5)


def test_nothing_fades_on_its_own_day_and_strength_slows_the_published_curve_only() -> None:
    strengths = np.arange(1, 9)
    for inverted in (False, True):
        np.testing.assert_array_equal(retention(np.zeros(8), strengths, inverted=inverted), 1)
    assert (np.diff(retention(np.full(8, 4), strengths)) > 0).all()
    assert (np.diff(retention(np.full(8, 4), strengths, inverted=True)) < 0).all()


def test_with_forgetting_off_nothing_is_ever_removed() -> None:
    memory, _ = fed(k=100)
    assert {"u0", "u1", "u2", "u3"} < set(found(memory, "Luna", day=100_000))
    assert memory.report()["forgotten"] == 0


def test_below_the_threshold_an_exchange_is_gone_and_with_its_last_exchange_the_days_summary() -> None:
    memory, _ = fed(k=100, forgetting="threshold", threshold=0.2, pieces="exchange")
    assert found(memory, "Luna", day=1) == [
        "events", "portrait", "u0", "u1", "events 2023-05-07", "u2", "events 2023-05-08", "u3", "events 2023-05-12",
    ]  # fmt: skip
    assert found(memory, "Luna", day=2) == ["events", "portrait", "u2", "events 2023-05-08", "u3", "events 2023-05-12"]
    assert found(memory, "Luna") == ["events", "portrait", "u3", "events 2023-05-12"]
    assert memory.report()["forgotten"] == 3


def test_the_released_curve_keeps_longer_what_was_never_recalled() -> None:
    memory, _ = fed(mode="code", k=100, forgetting="threshold", threshold=0.3, pieces="exchange", include_global=False)
    assert "u0" in found(memory, "Luna", day=6)
    assert "u0" not in found(memory, "Luna", day=7)


@pytest.mark.slow
def test_sampled_forgetting_is_reproducible_and_follows_the_curve() -> None:
    units = [exchange(number, 0, f"note {number}") for number in range(2_000)]
    first, second, other = (
        fed(units, k=5_000, forgetting="sample", seed=seed, include_global=False)[0] for seed in (7, 7, 8)
    )
    after_a_day = found(first, "note", day=1)
    assert after_a_day == found(second, "note", day=1) != found(other, "note", day=1)
    assert len(after_a_day) == pytest.approx(2_000 * 0.3679, abs=65)
    assert len(found(first, "note", day=0)) == 2_001
    assert set(found(first, "note", day=2)) <= set(after_a_day)


def test_what_is_forgotten_does_not_depend_on_how_often_the_memory_was_consolidated() -> None:
    often, _ = bank(forgetting="sample", k=100)
    for unit in THREE_DAYS:
        often.write(unit)
        for _ in range(5):
            often.consolidate()
    once, _ = fed(forgetting="sample", k=100)
    assert [found(often, "Luna", day) for day in range(9)] == [found(once, "Luna", day) for day in range(9)]


def test_a_recall_raises_the_strength_by_one_and_starts_the_clock_again() -> None:
    settings: dict[str, Any] = {"forgetting": "threshold", "threshold": 0.2, "pieces": "exchange", "k": 1}
    memory, _ = fed([THREE_DAYS[0], THREE_DAYS[1]], mutate_on_read=True, include_global=False, **settings)
    assert memory.report()["mean_strength"] == 1
    assert found(memory, "I adopted a puppy", day=1) == ["u0"]
    assert memory.report()["mean_strength"] == 1.5
    swept = tuned(memory, {"mutate_on_read": False})
    # exp(-3 / 2) = .22: three days after the recall it is still there, u1 (exp(-4)) is not; one day later both are gone.
    assert found(swept, "Her name is Luna", day=4) == ["u0"]
    assert found(swept, "Her name is Luna", day=5) == []


def test_reading_leaves_strengths_alone_unless_asked_to_change_them() -> None:
    memory, _ = fed()
    for _ in range(3):
        found(memory, "I adopted a puppy")
    assert memory.report()["mean_strength"] == 1


# --- construction --------------------------------------------------------------------------------------------------


def test_three_days_are_six_calls_and_two_and_a_second_consolidation_is_free() -> None:
    memory, llm = bank()
    for unit in THREE_DAYS:
        memory.write(unit)
    assert llm.purposes == []
    memory.consolidate()
    assert llm.purposes == [DAY_EVENTS, DAY_PORTRAIT] * 3 + [ALL_EVENTS, ALL_PORTRAIT]
    memory.consolidate()
    memory.read(asked("Luna"))
    assert len(llm.requests) == 8


def test_on_request_a_second_consolidation_writes_the_texts_about_everything_again() -> None:
    memory, llm = fed(skip_unchanged=False)
    memory.consolidate()
    assert llm.purposes[8:] == [ALL_EVENTS, ALL_PORTRAIT]


def test_a_further_day_costs_two_calls_and_two() -> None:
    memory, llm = fed()
    memory.write(exchange(4, 9, "Luna ran away."))
    memory.consolidate()
    assert llm.purposes[8:] == [DAY_EVENTS, DAY_PORTRAIT, ALL_EVENTS, ALL_PORTRAIT]


def test_a_day_that_has_grown_is_written_anew() -> None:
    memory, llm = fed(THREE_DAYS[:1])
    memory.write(THREE_DAYS[1])
    memory.consolidate()
    assert llm.purposes == [DAY_EVENTS, DAY_PORTRAIT, ALL_EVENTS, ALL_PORTRAIT] * 2
    assert list(memory.read(asked("Luna")).items) == list(fed(THREE_DAYS[:2])[0].read(asked("Luna")).items)


def test_prompts_show_the_days_dialogue_and_the_user_and_dates_to_the_global_ones() -> None:
    _, llm = fed()
    day = llm.requests[1].messages[1][1]
    assert "The person: Ann" in day
    assert "<dialogue>\nAnn: I adopted a puppy.\nBot: I see.\nAnn: Her name is Luna.\nBot: I see.\n</dialogue>" in day
    assert "[08 May 2023] day_events: Ann: I bake rye bread" in llm.requests[6].messages[1][1]
    assert "[12 May 2023] day_portrait: Ann: Luna learned to sit." in llm.requests[7].messages[1][1]
    assert {(request.temperature, request.max_tokens) for request in llm.requests} == {(0.7, 400)}


@pytest.mark.parametrize("garbage", ["", "  \n "])
def test_an_empty_text_is_missing_counted_and_asked_for_again(garbage: str) -> None:
    memory, llm = bank({DAY_EVENTS: [garbage, "Ann got a puppy."]})
    memory.write(THREE_DAYS[0])
    with meter.metering() as ledger:
        memory.consolidate()
    assert llm.purposes == [DAY_EVENTS, DAY_PORTRAIT, ALL_PORTRAIT]
    assert ledger.notes == {"memorybank.no_day_events": 1}
    assert found(memory, "puppy") == ["portrait", "u0"]
    memory.consolidate()
    assert llm.purposes[3:] == [DAY_EVENTS, ALL_EVENTS, ALL_PORTRAIT]
    assert found(memory, "puppy") == ["events", "portrait", "u0", "events 2023-05-07"]


@pytest.mark.parametrize("purpose", [ALL_EVENTS, ALL_PORTRAIT])
def test_a_missing_text_about_everything_is_asked_for_again(purpose: str) -> None:
    memory, llm = bank({purpose: ["", "all of it"]})
    memory.write(THREE_DAYS[0])
    with meter.metering() as ledger:
        memory.consolidate()
    assert ledger.notes == {f"memorybank.no_{purpose.split('.')[1]}": 1}
    assert memory.report()["missing_global_texts"] == 1
    memory.consolidate()
    assert llm.purposes[4:] == [ALL_EVENTS, ALL_PORTRAIT]
    assert memory.report()["missing_global_texts"] == 0


def test_any_prose_is_taken_as_the_text() -> None:
    memory, _ = bank({"*": '```json {"events": '})
    memory.write(THREE_DAYS[0])
    memory.consolidate()
    assert memory.read(asked("puppy")).items[0].text == '[07 May 2023] ```json {"events":'


def test_a_call_that_fails_for_good_is_not_hidden() -> None:
    memory, _ = bank({ALL_PORTRAIT: ModelError("the endpoint is gone")})
    memory.write(THREE_DAYS[0])
    with pytest.raises(ModelError):
        memory.consolidate()


def test_sessions_without_times_are_days_one_apart() -> None:
    units = [Unit(f"u{n}", (Turn(f"t{n}", "Ann", f"note {n}"),), f"s{n // 2}") for n in range(6)]
    memory, llm = fed(units, k=100, forgetting="threshold", threshold=0.2, include_global=False)
    assert llm.purposes.count(DAY_EVENTS) == 3
    assert found(memory, "note", day=400) == ["u2", "u3", "events session s1", "u4", "u5", "events session s2"]


# --- recall --------------------------------------------------------------------------------------------------------


def test_a_recall_is_everything_in_brief_then_the_two_nearest_pieces_in_order_of_time() -> None:
    memory, _ = fed()
    items = memory.read(asked("What did Luna learn? Is Luna the name?")).items
    assert [item.id for item in items][:2] == ["events", "portrait"]
    assert len(items) == 4
    assert [item.level for item in items[:2]] == [2, 2]
    assert items[0].sources == ("t0", "r0", "t1", "r1", "t2", "r2", "t3", "r3")
    assert items[0].text.startswith(
        "[07 May 2023 – 12 May 2023] global_events: [07 May 2023] day_events: Ann: I adopted"
    )


def test_the_order_is_that_of_dates_not_of_scores_or_of_the_stream() -> None:
    units = [exchange(0, 5, "rye bread"), exchange(1, 0, "rye bread rye"), exchange(2, 5, "rye")]
    memory, _ = fed(units, k=100, include_global=False)
    assert found(memory, "rye bread rye") == ["u1", "events 2023-05-07", "u0", "u2", "events 2023-05-12"]


def test_daily_summaries_are_found_and_stand_for_the_turns_of_their_day() -> None:
    memory, _ = bank({DAY_EVENTS: "zebra stripes"}, k=1)
    for unit in THREE_DAYS[:2]:
        memory.write(unit)
    memory.consolidate()
    item = memory.read(asked("zebra stripes")).items[2]
    assert (item.id, item.kind, item.level) == ("events 2023-05-07", "day_events", 1)
    assert item.text == "[07 May 2023] zebra stripes"
    assert item.sources == ("t0", "r0", "t1", "r1")


def test_the_texts_about_everything_can_be_left_out_and_the_release_shows_only_the_portrait() -> None:
    memory, _ = fed(include_global=False)
    assert len(found(memory, "Luna")) == 2
    released, llm = fed(mode="code")
    assert found(released, "Luna")[0] == "portrait"
    assert "events" not in found(released, "Luna")
    assert llm.purposes[-2:] == [ALL_EVENTS, ALL_PORTRAIT]


def test_a_sentence_found_is_extended_with_its_neighbours_up_to_two_hundred_characters() -> None:
    sentences = [f"{word} " + word[0] * 60 + "." for word in ("alpha", "beta", "gamma", "delta", "omega")]
    unit = Unit("u0", (Turn("t0", "", " ".join(sentences)),), "s0", START, "7 May 2023")
    memory, _ = bank(pieces="sentence", k=1, include_global=False)
    memory.write(unit)
    (item,) = memory.read(asked("gamma")).items
    # 67 characters, 67 of the later neighbour and 66 of the earlier one are 200; as released, spaces between them do not count.
    assert item.text == f"[7 May 2023] {sentences[1]} {sentences[2]} {sentences[3]}"
    memory = tuned(memory, {"join_chars": 199})
    assert memory.read(asked("gamma")).items[0].text == f"[7 May 2023] {sentences[2]} {sentences[3]}"
    memory = tuned(memory, {"join_chars": 10})
    assert memory.read(asked("gamma")).items[0].text == f"[7 May 2023] {sentences[2]}"


def test_in_the_release_an_exchange_found_is_joined_by_its_neighbours_of_the_day() -> None:
    """The store's metadata give the date as an exchange's source (local_doc_qa.py); 200 characters are its chunk size."""
    said = ["start", "rain", "tea", "soup", "bread"]
    units = [exchange(number, 0 if number < 1 else 1, text) for number, text in enumerate(said)]
    memory, _ = bank({DAY_EVENTS: "A day."}, mode="code", k=1, include_global=False)
    for unit in units:
        memory.write(unit)
    memory.consolidate()
    (item,) = memory.read(asked("soup")).items
    assert item.text.split("\n")[::2] == ["[08 May 2023] Ann: rain", "Ann: tea", "Ann: soup", "Ann: bread", "A day."]
    assert (item.id, item.sources) == ("day 2023-05-08", union(unit.turn_ids for unit in units[1:]))
    assert [one.id for one in bank_of(units, k=1, include_global=False).read(asked("soup")).items] == ["u3"]


def test_in_the_release_a_join_stops_at_two_hundred_characters_and_at_the_days_border() -> None:
    units = [exchange(n, n // 3, f"word{n} " + "x" * (150 if n == 4 else 30)) for n in range(6)]
    memory = bank_of(units, mode="code", k=1, include_global=False)
    (long,) = memory.read(asked("word4")).items
    assert (long.id, len(long.text)) == ("u4", len("[08 May 2023] ") + len(units[4].text))
    (short,) = memory.read(asked("word2")).items
    assert short.sources == union((units[1].turn_ids, units[2].turn_ids))  # the third in the store looks one place far
    (around,) = memory.read(asked("word3")).items
    assert around.sources == union((units[3].turn_ids, units[5].turn_ids))  # around the long one between them


def test_in_the_release_with_forgetting_a_sentence_is_joined_within_its_exchange() -> None:
    """There the source is the exchange's own id (forget_memory.py)."""
    units = [Unit(f"u{n}", (Turn(f"t{n}", "", f"Cat {n}. Dog {n}. Owl{n}."),), "s0", START) for n in range(3)]
    memory = bank_of(units, mode="code", k=1, include_global=False, forgetting="threshold", threshold=0.0)
    (item,) = memory.read(asked("Owl1")).items
    assert (item.id, item.text) == ("u1", "Cat 1. Dog 1. Owl1.")


def test_a_neighbour_that_does_not_fit_keeps_out_the_earlier_one_and_not_those_farther_away() -> None:
    sources = [(0, None)] * 7
    assert _joined([9, 9, 9, 9, 900, 9, 9], sources, 3, 200, 7) == {1, 3, 5, 6, 0}
    assert _joined([9, 9, 9, 9, 9, 9, 9], sources, 3, 29, 7) == {2, 3, 4}


@pytest.mark.parametrize(
    "name", ["memorybank", "memorybank_code", "memorybank_code_forgetting", "memorybank_forgetting"]
)
def test_two_pieces_are_looked_up_on_both_paths_of_the_release(name: str) -> None:
    """The release's argument `memory_search_top_k` overrides the 3 and 6 of its modules (sys_args.py)."""
    assert yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))["build"]["k"] == 2


def test_neighbours_come_from_the_same_exchange_only() -> None:
    memory, _ = bank(pieces="sentence", k=1, include_global=False)
    for number, text in enumerate(["One cat.", "Two dogs. Three mice.", "Four owls."]):
        memory.write(Unit(f"u{number}", (Turn(f"t{number}", "", text),), "s0", START))
    (item,) = memory.read(asked("dogs")).items
    assert (item.id, item.text, item.sources) == ("u1", "Two dogs. Three mice.", ("t1",))


def test_sentences_of_one_exchange_become_one_item() -> None:
    memory, _ = bank(pieces="sentence", k=2, join_chars=1, include_global=False)
    memory.write(Unit("u0", (Turn("t0", "", "Luna barks. Rain fell. Luna sleeps."),), "s0", START))
    (item,) = memory.read(asked("Luna")).items
    assert item.text == "Luna barks. Luna sleeps."


def test_pieces_are_whole_exchanges_unless_forgetting_is_on() -> None:
    whole, split = fed()[0], fed(forgetting="sample")[0]
    assert whole.held == 4 + 3
    assert split.held == 8 + 6
    assert fed(forgetting="sample", pieces="exchange")[0].held == 7


def test_a_whole_exchange_is_embedded_as_the_units_text() -> None:
    table = {unit.text: (1.0, float(number)) for number, unit in enumerate(THREE_DAYS)}
    memory, _ = bank(embedder=TableEmbedder(table))
    for unit in THREE_DAYS:
        memory.write(unit)
    assert memory.held == 4


def test_the_recall_differs_from_dense_retrieval() -> None:
    memory, _ = fed(k=2)
    dense = Dense(HashingEmbedder(512), k=4)
    for unit in THREE_DAYS:
        dense.write(unit)
    assert found(memory, "Luna") != [item.id for item in dense.read(asked("Luna")).items]


# --- structure -----------------------------------------------------------------------------------------------------


def test_exchanges_lie_below_their_days_texts_and_those_below_the_texts_about_everything() -> None:
    memory, _ = fed()
    nodes = {node.id: node for node in memory.nodes()}
    assert nodes["u1"].parents == ("events 2023-05-07", "portrait 2023-05-07")
    assert nodes["events 2023-05-07"].parents == ("events",)
    assert nodes["portrait 2023-05-07"].parents == ("portrait",)
    assert nodes["portrait"].parents == ()
    assert nodes["portrait"].sources == nodes["events"].sources
    assert (nodes["events"].start, nodes["events"].end) == (START, START + timedelta(days=5))
    assert [node.level for node in nodes.values()].count(1) == 6


@pytest.mark.parametrize(("name", "value"), [("join_chars", 0)])
def test_nonsense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        bank(**{name: value})
