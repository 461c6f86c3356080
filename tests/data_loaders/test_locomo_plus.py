"""LoCoMo-Plus: the rule that puts a cue into a conversation, against recorded values, and the counts of the real file."""

from __future__ import annotations

import copy
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import broken_copies, check_only_data_errors, mutated_json, write_json

from data_loaders.locomo_plus import days_of, load
from data_loaders.schema import Case, DataError
from data_loaders.source import sample

SAMPLE = sample("locomo_plus/locomo_plus.json").path
RECORDED = json.loads(
    (Path(__file__).parents[1] / "golden" / "next_locomo_plus_metrics.json").read_text(encoding="utf-8")
)
ENTRIES = json.loads(SAMPLE.read_text(encoding="utf-8"))


def written(folder: Path, entries: Any) -> Path:
    for name in ("locomo", "locomo_plus"):
        shutil.copytree(SAMPLE.parents[1] / name, folder / name, dirs_exist_ok=True)
    return write_json(folder / "locomo_plus" / "locomo_plus.json", entries)


def said(case: Case) -> str:
    """The stitched dialogue as the release writes it, the trigger last."""
    (question, _), (first, _) = case.questions[0], case.speakers
    pairs = [*((turn.speaker, turn.text) for turn in case.turns), (first, question.text)]
    return "\n".join(f'{speaker} said, "{text}"' for speaker, text in pairs)


def place_of_cue(case: Case) -> str:
    place = [session.id for session in case.sessions].index("cue")
    return {0: "before", len(case.sessions) - 1: "after"}.get(place, "inside")


def test_the_days_of_a_gap_are_the_recorded_ones(subtests: pytest.Subtests) -> None:
    for case in RECORDED["time_gap"]:
        with subtests.test(case["time_gap"]):
            assert (days_of(case["time_gap"]) or 0) == case["days"]


def test_an_entry_goes_into_the_conversation_of_its_position_with_its_speakers() -> None:
    cases = load(SAMPLE)
    assert [case.cluster for case in cases] == ["conv-911", "conv-912", "conv-911", "conv-912", "conv-911"]
    cue = next(session for session in cases[0].sessions if session.id == "cue")
    assert [(turn.id, turn.speaker) for turn in cue.turns] == [("cue:1", "Maren"), ("cue:2", "Joost")]
    assert cases[0].questions[0][1].evidence == ("cue:1", "cue:2")
    assert cases[1].questions[0][1].evidence == ("cue:1",)


def test_the_trigger_comes_a_week_after_the_last_session_and_the_cue_a_gap_before_it() -> None:
    case = load(SAMPLE)[0]
    cue = next(session for session in case.sessions if session.id == "cue")
    assert case.questions[0][0].time == datetime(2023, 7, 8, 18, 45)
    assert (cue.time, cue.time_text) == (datetime(2023, 6, 24, 18, 45), "6:45 pm on 24 June, 2023")


def test_a_cue_stands_before_inside_or_after_the_conversation() -> None:
    assert [place_of_cue(case) for case in load(SAMPLE)] == ["inside", "inside", "before", "after", "after"]


def test_a_gap_that_the_rule_does_not_understand_is_noted_and_can_be_left_out() -> None:
    case = load(SAMPLE)[3]
    cue = case.sessions[-1]
    assert (cue.id, cue.time) == ("cue", case.questions[0][0].time)
    assert case.notes == (
        "trigger: the time gap 'several months later' is not understood; the cue stands directly before the trigger.",
    )
    assert [each.id for each in load(SAMPLE, gaps="readable")] == ["entry_0", "entry_1", "entry_2", "entry_4"]


def test_turns_have_no_captions_unless_asked_for() -> None:
    assert [turn.text for turn in load(SAMPLE)[0].turns[:2]] == [
        "I pack fish at the quay now.",
        "How early do you start?",
    ]
    assert "a quay with crates" in load(SAMPLE, captions=True)[0].turns[1].text


def test_the_trigger_is_asked_and_never_part_of_the_history() -> None:
    for case, entry in zip(load(SAMPLE), ENTRIES, strict=True):
        trigger = entry["trigger_query"].removeprefix("A: ")
        assert case.questions[0][0].text == trigger
        assert not any(trigger in turn.text for turn in case.turns)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("relation_type", "luck", "relation_type: expected one of causal"),
        ("cue_dialogue", "Good morning.", "begins with its speaker"),
        ("trigger_query", "B: Good morning.", "trigger_query: expected a line"),
        ("time_gap", "999999 years later", "within the calendar"),
    ],
)
def test_a_damaged_entry_is_named(tmp_path: Path, field: str, value: str, says: str) -> None:
    entries = copy.deepcopy(ENTRIES)
    entries[1][field] = value
    with pytest.raises(DataError, match=says):
        load(written(tmp_path, entries))[1]


def test_a_conversation_with_a_session_without_a_time_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ENTRIES)
    hosts = json.loads((tmp_path / "locomo" / "locomo10.json").read_text(encoding="utf-8"))
    hosts[0]["conversation"]["session_1_date_time"] = "some day"
    write_json(tmp_path / "locomo" / "locomo10.json", hosts)
    with pytest.raises(DataError, match="whose sessions have times, found conv-911 with some without"):
        load(path)[0]


def test_an_unknown_choice_of_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="'all'"):
        load(SAMPLE, gaps="all")  # type: ignore[arg-type]


@broken_copies()
@given(raw=mutated_json(ENTRIES))
def test_a_broken_file_is_loaded_or_is_a_data_error(raw: Any, tmp_path: Path) -> None:
    check_only_data_errors(load, written(tmp_path, raw))


# --- the real file -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def entries(data_root: Path) -> Sequence[Case]:
    path = data_root / "locomo_plus" / "locomo_plus.json"
    if not path.is_file():
        pytest.skip(f"no real data: {path} does not exist")
    return tuple(load(path))


@pytest.mark.data
def test_the_stitched_dialogue_is_the_recorded_one(entries: Sequence[Case], subtests: pytest.Subtests) -> None:
    for wanted in RECORDED["insertion"]:
        with subtests.test(wanted["index"]):
            case = entries[wanted["index"]]
            cue = next(session for session in case.sessions if session.id == "cue")
            assert sha256(said(case).encode()).hexdigest() == wanted["prompt_sha256"]
            assert case.cluster == wanted["conversation"]
            assert f"{cue.time:%Y-%m-%d %H:%M}" == wanted["cue_time"]
            assert f"{case.questions[0][0].time:%Y-%m-%d %H:%M}" == wanted["query_time"]
            assert [turn.id for turn in case.turns].index("cue:1") == wanted["cue_position"]
            assert len(case.turns) == wanted["query_position"]
    for wanted in RECORDED["evidence"]:
        assert entries[wanted["index"]].questions[0][1].answers == (wanted["evidence"],)


@pytest.mark.data
def test_the_real_entries_have_the_recorded_counts(entries: Sequence[Case]) -> None:
    golds = [case.questions[0][1] for case in entries]
    assert len(golds) == 401
    assert Counter(gold.category for gold in golds) == {"causal": 101, "state": 100, "goal": 100, "value": 100}
    assert Counter(map(place_of_cue, entries)) == {"inside": 340, "after": 33, "before": 28}
    assert sum(len(gold.evidence) == 2 for gold in golds) == 357
    assert sum(not gold.detail["readable"] for gold in golds) == sum(bool(case.notes) for case in entries) == 15
    assert len({case.questions[0][0].text for case in entries}) == 401
