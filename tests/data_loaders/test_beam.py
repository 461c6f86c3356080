"""BEAM: plan markers, truncated copies, evidence of every shape, and the counts of the real tiers."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import broken_copies, check_only_data_errors, mutated_json, write_json

from data_loaders.beam import ABILITIES, EVENT_ORDERING, MARKER, caption, load, without_marker
from data_loaders.schema import Case, DataError, Gold
from data_loaders.source import find, sample
from memsys.tokens import count_tokens

SAMPLE = sample("beam").path
RECORDED = Path(__file__).parents[1] / "golden"
MILLION = json.loads((RECORDED / "third_dataset_stats.json").read_text(encoding="utf-8"))["beam_1m"]
GOLDEN = json.loads((RECORDED / "next_beam_stats.json").read_text(encoding="utf-8")) | {"1M": MILLION}
ODD = json.loads((RECORDED / "third_beam_1m.json").read_text(encoding="utf-8"))
ASKED = json.loads((SAMPLE / "1" / "probing_questions" / "probing_questions.json").read_text(encoding="utf-8"))
CHAT = json.loads((SAMPLE / "2" / "chat.json").read_text(encoding="utf-8"))


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    return tmp_path


def gold_of(case: Case, question_id: str) -> Gold:
    return next(gold for question, gold in case.questions if question.id == question_id)


def test_a_chat_is_a_case_and_a_batch_a_session_dated_by_its_first_message() -> None:
    bees, boat = load(SAMPLE)
    assert (bees.id, boat.id) == ("1", "2")
    assert [session.time for session in bees.sessions] == [datetime(2024, 3, 4), datetime(2024, 4, 15)]
    assert bees.sessions[1].time_text == "April-15-2024"
    assert [turn.id for turn in bees.turns] == [str(number) for number in range(16)]


def test_a_batch_without_a_readable_date_is_named_in_the_notes(tmp_path: Path) -> None:
    assert not any("no readable date" in note for case in load(SAMPLE) for note in case.notes)
    copied = Path(shutil.copytree(SAMPLE, tmp_path / "beam"))
    for file in (copied / "2").glob("chat*.json"):
        file.write_text(file.read_text(encoding="utf-8").replace("May-01-2024", "in May"), encoding="utf-8")
    dated = {"id": 0, "role": "user", "content": "Hello", "time_anchor": " May-02-2024 "}
    batches = [{"batch_number": 7, "turns": []}, {"batch_number": 8, "turns": [[dated]]}]
    write_json(copied / "1" / "chat.json", batches)
    bees, boat = load(copied)
    assert boat.sessions[0].time is None
    assert "Batch 1 has no readable date: 'in May'." in boat.notes
    assert "Batch 7 has no readable date: ''." in bees.notes, "it has no message"
    assert (bees.sessions[1].time, bees.sessions[1].time_text) == (datetime(2024, 5, 2), " May-02-2024 ")


def test_a_plan_marker_is_cut_with_all_that_follows_and_kept_when_asked_for() -> None:
    assert not any(MARKER in turn.text for case in load(SAMPLE) for turn in case.turns)
    boat = load(SAMPLE)[1]
    assert boat.turns[4].text == "I replaced the planks and named the boat Wren."
    assert "3 messages hold a marker of the generation plan, which is cut off." in boat.notes
    raw = load(SAMPLE, markers="raw")[1]
    assert raw.turns[4].text.endswith("->-> 2,1, (Note: this question rests on the plan.)")


def test_a_marker_that_the_assistant_took_up_is_cut_too() -> None:
    assert load(SAMPLE)[0].turns[11].text == "Blue helps the bees find home."


def test_the_truncated_copy_is_read_unless_the_whole_chat_is_asked_for() -> None:
    assert len(load(SAMPLE)[1].sessions) == 2
    assert "The last 2 messages are left out, as in chat_trunecated.json." in load(SAMPLE)[1].notes
    assert len(load(SAMPLE, chats="whole")[1].sessions) == 3


def test_a_message_that_the_truncated_copy_words_differently_is_read_from_the_copy_and_noted(tier: Path) -> None:
    other = copy.deepcopy(CHAT[:2])
    other[0]["turns"][0][0]["content"] = "I am Bram Holt. ->-> 1,1"
    write_json(tier / "2" / "chat_trunecated.json", other)
    boat = load(tier)[1]
    assert boat.turns[0].text == "I am Bram Holt."
    assert "Message 0 is read from chat_trunecated.json, which words it differently." in boat.notes
    assert load(tier, chats="whole")[1].turns[0].text.startswith("I'm Bram Holt")


@pytest.mark.parametrize(("field", "value"), [("id", 40), ("role", "assistant")])
def test_a_truncated_copy_with_other_ids_or_roles_is_an_error(tier: Path, field: str, value: Any) -> None:
    other = copy.deepcopy(CHAT[:2])
    other[0]["turns"][0][0][field] = value
    write_json(tier / "2" / "chat_trunecated.json", other)
    with pytest.raises(DataError, match=r"2: chat_trunecated\.json: expected the beginning of chat\.json"):
        load(tier)[1]


def test_lines_after_a_marker_are_kept_and_the_message_is_noted(tier: Path) -> None:
    leaked = copy.deepcopy(CHAT)
    leaked[0]["turns"][0][1]["content"] = "Is it dry? ->-> 1,N/AStay in English.\nAssistant\n\nLook for soft wood."
    leaked[0]["turns"][0][0]["content"] += " ->-> 2,3"
    write_json(tier / "2" / "chat.json", leaked)
    (tier / "2" / "chat_trunecated.json").unlink()
    boat = load(tier)[1]
    assert boat.turns[1].text == "Is it dry?Stay in English.\nAssistant\n\nLook for soft wood."
    assert [note for note in boat.notes if "lines after" in note] == [
        "Message 1 has lines after its marker, which are kept."
    ]
    assert not any("lines after" in note for note in load(tier, markers="raw")[1].notes)


def test_two_messages_of_one_id_and_two_batches_of_one_number_are_refused(tier: Path) -> None:
    twice = copy.deepcopy(CHAT)
    twice[0]["turns"][0][1]["id"] = twice[0]["turns"][0][0]["id"]
    write_json(tier / "2" / "chat.json", twice)
    (tier / "2" / "chat_trunecated.json").unlink()
    with pytest.raises(DataError, match=r"^2: messages: expected unique ids, found '0' twice"):
        load(tier)[1]
    twice = copy.deepcopy(CHAT)
    twice[1]["batch_number"] = twice[0]["batch_number"]
    write_json(tier / "2" / "chat.json", twice)
    with pytest.raises(DataError, match=r"^2: batches: expected unique ids, found 'S1' twice"):
        load(tier)[1]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("And then? ->-> 5,", "And then?"),
        ("And then?  ->-> 5,12 (a note)\n", "And then?"),
        ("And then?\n->->", "And then?"),
        ("One ->-> 5,\ntwo ->-> 6,7\nthree", "One\ntwo\nthree"),
        ("No marker -> here", "No marker -> here"),
    ],
)
def test_a_marker_is_cut_with_its_line_or_taken_out_before_lines(text: str, kept: str) -> None:
    assert without_marker(text) == kept


def test_evidence_is_found_in_lists_nested_lists_and_dicts() -> None:
    bees, boat = load(SAMPLE)
    assert gold_of(bees, "event_ordering_0").evidence == ("2", "0", "8")
    assert gold_of(bees, "contradiction_resolution_0").evidence == ("6", "10")
    assert gold_of(boat, "event_ordering_0").evidence == ("4", "0", "2")


def test_a_question_without_evidence_is_noted_and_an_abstention_is_not() -> None:
    bees, boat = load(SAMPLE)
    assert "summarization_0: it names no evidence." in bees.notes
    assert "knowledge_update_0: it names no evidence." in boat.notes
    assert not any("abstention" in note for note in bees.notes)


def test_a_rubric_of_another_length_than_total_mentions_is_noted() -> None:
    assert "event_ordering_0: total_mentions is 3, the rubric has 4 events." in load(SAMPLE)[1].notes


def test_the_reference_comes_from_the_field_of_its_ability() -> None:
    for question, gold in load(SAMPLE)[0].questions:
        assert gold.answers == (ASKED[gold.category][0][ABILITIES[gold.category][0]],)
        assert gold.answerable == (gold.category != "abstention")
        assert gold.detail["rubric"] == tuple(ASKED[gold.category][0]["rubric"])
        assert question.id == f"{gold.category}_0"


def test_an_unknown_ability_role_or_choice_is_refused(tier: Path) -> None:
    write_json(tier / "1" / "probing_questions" / "probing_questions.json", {"guessing": []})
    with pytest.raises(DataError, match="guessing"):
        load(tier)[0]
    broken = copy.deepcopy(CHAT)
    broken[0]["turns"][0][0]["role"] = "system"
    write_json(tier / "2" / "chat.json", broken)
    (tier / "2" / "chat_trunecated.json").unlink()
    with pytest.raises(DataError, match="expected one of user, assistant, found 'system'"):
        load(tier)[1]
    with pytest.raises(ValueError, match="'half'"):
        load(tier, chats="half")  # type: ignore[arg-type]


def test_a_chat_whose_messages_are_not_held_is_left_out_and_counted(tier: Path) -> None:
    (tier / "2" / "chat.json").unlink()
    assert [case.id for case in load(tier)] == ["1"]
    assert caption(tier).startswith("1 of 2 chats, 0 with a truncated copy")
    assert caption(SAMPLE, markers="raw").endswith(
        "plan markers at the end of messages kept, as by the official runners"
    )


def test_questions_alone_are_those_of_every_chat_whose_questions_are_there(tier: Path) -> None:
    (tier / "2" / "chat.json").unlink()
    alone = load(tier, chats="none")
    assert alone.ids == ("1", "2")
    assert load(tier).ids == ("1",)
    whole = load(SAMPLE)
    for case in alone:
        assert not case.sessions
        assert not any(gold.evidence for _, gold in case.questions)
        theirs = dict(whole[whole.ids.index(case.id)].questions)
        assert {question: gold.detail["rubric"] for question, gold in case.questions} == {
            question: gold.detail["rubric"] for question, gold in theirs.items()
        }
    assert caption(tier, chats="none") == "2 chats, their questions alone"


@broken_copies(tests=2)
@given(raw=mutated_json(CHAT))
def test_a_broken_chat_is_loaded_or_is_a_data_error(raw: Any, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "2" / "chat_trunecated.json").unlink()
    write_json(tmp_path / "2" / "chat.json", raw)
    check_only_data_errors(load, tmp_path)


@broken_copies(tests=2)
@given(raw=mutated_json(ASKED))
def test_broken_questions_are_loaded_or_are_a_data_error(raw: Any, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    write_json(tmp_path / "1" / "probing_questions" / "probing_questions.json", raw)
    check_only_data_errors(load, tmp_path)


# --- the real tiers ----------------------------------------------------------------------------------------------------


def tier_of(root: Path, name: str) -> Path:
    """The folder of a tier, as a plain path: chats and copies that are not held may be missing below it."""
    return Path(root / "beam" / "chats" / name)


@cache
def held(root: Path, name: str) -> tuple[Case, ...]:
    find(f"beam/chats/{name}", root=Path(root))  # every file that is there is the official one
    return tuple(load(tier_of(root, name), chats="whole"))


@pytest.mark.data
@pytest.mark.parametrize("name", ["100K", "500K", "1M"])
def test_the_real_chats_have_the_recorded_counts(data_root: Path, name: str) -> None:
    cases = {case.id: case for case in held(data_root, name)}
    recorded = [chat for chat in GOLDEN[name]["per_chat"] if "chat.json" in chat]
    assert recorded
    for chat in recorded:
        case, raw = cases[chat["chat"]], chat["chat.json"]
        assert counted(case, distinct=name == "1M") == {
            "category": chat["category"],
            "questions": chat["questions"],
            "rubric_items": chat["rubric_items"],
            "batches": raw["batches"],
            "messages": raw["messages"],
            "messages_with_marker": raw["messages_with_marker"],
            "dates": raw["dates"],
            "evidence_ids": chat["evidence_ids"],
        }


def counted(case: Case, *, distinct: bool) -> Mapping[str, Any]:
    """The counts of a chat. The recorded ones of 1M count an evidence id once a question, the others every mention."""
    golds = [gold for _, gold in case.questions]
    marked = next(note for note in case.notes if "marker" in note)
    return {
        "category": golds[0].detail["chat_category"],
        "questions": len(golds),
        "rubric_items": sum(len(gold.detail["rubric"]) for gold in golds),
        "batches": len(case.sessions),
        "messages": len(case.turns),
        "messages_with_marker": int(marked.split()[0]),
        "dates": [session.time_text for session in case.sessions],
        "evidence_ids": sum(len((set if distinct else list)(gold.detail["evidence_raw"])) for gold in golds),
    }


@pytest.mark.data
def test_markers_of_1m_are_cut_as_recorded(data_root: Path, subtests: pytest.Subtests) -> None:
    texts = {(case.id, turn.id): turn.text for case in held(data_root, "1M") for turn in case.turns}
    raw = {case.id: case for case in load(tier_of(data_root, "1M"), chats="whole", markers="raw")}
    for chat in (each for each in MILLION["per_chat"] if "chat.json" in each):
        turns, recorded = raw[chat["chat"]].turns, chat["chat.json"]
        assert sum(len(turn.text) for turn in turns) == recorded["characters"]
        assert sum(count_tokens(turn.text) for turn in turns) == recorded["tokens_o200k"]
        assert (turns[0].id, turns[-1].id) == (str(recorded["first_id"]), str(recorded["last_id"]))
    for marker in ODD["marker"]:
        with subtests.test(chat=marker["chat"], id=marker["id"]):
            whole = next(turn for turn in raw[marker["chat"]].turns if turn.id == str(marker["id"]))
            assert (len(whole.text), whole.role) == (marker["characters"], marker["role"])
            assert whole.text.rpartition(MARKER)[2].strip() == marker["tail"]
            kept = texts[marker["chat"], str(marker["id"])]
            assert (len(kept), digest(kept)) == (marker["kept_characters"], marker["kept_sha256"])
    assert not any(MARKER in text for text in texts.values())
    assert len(texts["4", "1009"]) > 3300


@pytest.mark.data
def test_the_copy_of_chat_6_differs_in_one_message_and_is_read(data_root: Path) -> None:
    copied = ODD["truncated_copy"]
    whole, read = (
        next(case for case in load(tier_of(data_root, "1M"), chats=chats, markers="raw") if case.id == copied["chat"])
        for chats in ("whole", "truncated")
    )
    assert (len(whole.turns), len(read.turns)) == (copied["messages"], copied["messages_truncated"])
    pairs = list(zip(whole.turns, read.turns, strict=False))
    assert [int(first.id) for first, second in pairs if first != second] == copied["differing_ids"]
    first, second = pairs[copied["differing_ids"][0]]
    assert digest(first.text) == copied["whole_text_sha256"]
    assert digest(second.text) == copied["truncated_text_sha256"]
    assert "Message 476 is read from chat_trunecated.json, which words it differently." in read.notes


def rubric_items(cases: Iterable[Case]) -> Counter[str]:
    """The number of rubric items by ability."""
    items: Counter[str] = Counter()
    for case in cases:
        for _, gold in case.questions:
            items[gold.category] += len(gold.detail["rubric"])
    return items


@pytest.mark.data
def test_questions_of_all_chats_of_1m_have_the_recorded_counts_and_five_no_evidence(data_root: Path) -> None:
    alone = {case.id: case for case in load(tier_of(data_root, "1M"), chats="none")}
    golds = [gold for case in alone.values() for _, gold in case.questions]
    assert (len(alone), len(golds)) == (MILLION["chats_with_questions"], MILLION["questions"])
    assert rubric_items(alone.values()) == MILLION["rubric_items_by_ability"]
    assert len(golds) == len({question.text for case in alone.values() for question, _ in case.questions})
    assert sum(gold.answerable and not gold.detail["evidence_raw"] for gold in golds) == 5
    categories = Counter(case.questions[0][1].detail["chat_category"] for case in alone.values())
    assert categories == MILLION["categories"]
    for chat in MILLION["per_chat"]:
        case = alone[chat["chat"]]
        assert {name: chat[name] for name in ("category", "questions", "rubric_items", "evidence_ids")} == {
            "category": case.questions[0][1].detail["chat_category"],
            "questions": len(case.questions),
            "rubric_items": rubric_items([case]).total(),
            "evidence_ids": sum(len(set(gold.detail["evidence_raw"])) for _, gold in case.questions),
        }
    for example in ODD["event_ordering"]:
        assert gold_of(alone[example["chat"]], example["question"]).detail["rubric"] == tuple(example["reference"])


@pytest.mark.data
def test_the_held_chats_of_1m_are_the_recorded_ones_with_all_their_evidence(data_root: Path) -> None:
    cases, folder = held(data_root, "1M"), tier_of(data_root, "1M")
    assert [case.id for case in cases] == MILLION["held"]
    assert sum(len(case.turns) for case in cases) == MILLION["held_messages"]
    assert sum(len(case.questions) for case in cases) == MILLION["questions_of_held"]
    assert rubric_items(cases).total() == MILLION["rubric_items_of_held"]
    assert caption(folder).startswith("9 of 35 chats, 1 with a truncated copy")
    assert all(set(gold.evidence) == set(gold.detail["evidence_raw"]) for case in cases for _, gold in case.questions)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.data
def test_all_evidence_of_100k_lies_in_the_truncated_chats(data_root: Path) -> None:
    cases = load(tier_of(data_root, "100K"))
    golds = [gold for case in cases for _, gold in case.questions]
    assert len(golds) == 400
    assert sum(len(gold.detail["rubric"]) for gold in golds) == 1051
    assert all(set(gold.evidence) == set(gold.detail["evidence_raw"]) for gold in golds)
    assert sum(not gold.evidence and gold.answerable for gold in golds) == 5
    assert Counter(gold.category for gold in golds) == dict.fromkeys(ABILITIES, 40)
    assert not any(MARKER in turn.text for case in cases for turn in case.turns)
    assert sum(len(gold.detail["rubric"]) for gold in golds if gold.category == EVENT_ORDERING) == 213
