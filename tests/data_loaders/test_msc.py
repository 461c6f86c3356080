from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from hypothesis import given
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_jsonl
from omegaconf import OmegaConf

from data_loaders import msc
from data_loaders.msc import load, load_dmr
from data_loaders.schema import Case, DataError

SAMPLES = Path(msc.__file__).parent / "samples"
DMR = SAMPLES / "msc_self_instruct.jsonl"
DMR_ROWS: list[Any] = [json.loads(line) for line in DMR.read_text(encoding="utf-8").splitlines()]


def record(**changes: Any) -> dict[str, Any]:
    return {
        "dialog": [{"text": "Hi!", "id": "Speaker 1"}, {"text": "Hello!", "id": "Speaker 2"}],
        "metadata": {"initial_data_id": "valid_9", "session_id": 1},
        "previous_dialogs": [{"dialog": [{"text": "First."}, {"text": "Second."}], "time_back": " 4 hours ago"}],
        "self_instruct": {"B": "Hey, who was first?", "A": "Me!"},
        **changes,
    }


def only(tmp_path: Path, **changes: Any) -> Case:
    (case,) = load(write_jsonl(tmp_path / "set.txt", [record(**changes)]))
    return case


# --- MSC -------------------------------------------------------------------------------------------------------------


def test_a_case_has_the_earlier_sessions_and_then_its_own() -> None:
    loaded = load(SAMPLES / "msc")
    assert loaded.ids == ("valid_0", "valid_1", "valid_2")
    case = loaded[1]
    assert [session.id for session in case.sessions] == ["S1", "S2", "S3"]
    assert [len(session.turns) for session in case.sessions] == [8, 6, 6]
    assert case.sessions[0].turns[1].text == "I teach geography, and at weekends I look after my bees. You?"
    assert case.sessions[2].turns[0].text == "You were going to tell me about your school trip."
    assert [turn.id for turn in case.sessions[1].turns][:2] == ["S2:1", "S2:2"]
    assert loaded.sizes[1] == 20
    assert case.notes == ()


def test_a_chat_has_no_questions() -> None:
    assert all(case.questions == () for case in load(SAMPLES / "msc"))


def test_the_session_choice_picks_the_file_of_a_folder() -> None:
    folder = SAMPLES / "msc"
    two, three = load(folder, session=2), load(folder, session=3)
    assert [len(case.sessions) for case in two] == [2, 2, 2]
    assert two[0].sessions[0].turns == three[0].sessions[0].turns
    assert list(load(folder / "session_2" / "valid.txt")) == list(two)
    with pytest.raises(DataError, match=r"session_5/valid\.txt: expected a readable file"):
        load(folder, session=5)
    with pytest.raises(DataError, match=r"session_3/test\.txt: expected a readable file"):
        load(folder, split="test")


def test_parity_decides_the_speaker_in_each_session_anew() -> None:
    case = load(SAMPLES / "msc")[0]
    assert case.speakers == ("Speaker 1", "Speaker 2")
    assert len(case.sessions[0].turns) == 7  # an odd session, after which Speaker 1 begins again
    for session in case.sessions:
        assert [turn.speaker for turn in session.turns] == [
            f"Speaker {1 + index % 2}" for index in range(len(session.turns))
        ]
        assert {(turn.speaker, turn.role) for turn in session.turns} == {
            ("Speaker 1", "user"),
            ("Speaker 2", "assistant"),
        }


def test_a_worker_number_is_no_speaker() -> None:
    raw = json.loads((SAMPLES / "msc" / "session_3" / "valid.txt").read_text(encoding="utf-8").splitlines()[0])
    assert raw["dialog"][0]["id"] == "51883"
    case = load(SAMPLES / "msc")[0]
    assert case.sessions[-1].turns[0].speaker == "Speaker 1"
    assert "51883" not in repr(case)


def test_a_turn_that_names_the_other_speaker_is_noted(tmp_path: Path) -> None:
    case = only(tmp_path, dialog=[{"text": "Hi!", "id": "Speaker 2"}, {"text": "Hello!", "id": None}])
    assert [turn.speaker for turn in case.sessions[-1].turns] == ["Speaker 1", "Speaker 2"]
    assert case.notes == ("turn S2:1 names Speaker 2 where Speaker 1 is due",)


def test_sessions_have_distances_instead_of_dates(tmp_path: Path) -> None:
    case = load(SAMPLES / "msc")[1]
    assert [session.time_text for session in case.sessions] == ["5 days 3 hours ago", "3 hours ago", ""]
    assert {session.time for session in case.sessions} == {None}
    assert only(tmp_path).sessions[0].time_text == "4 hours ago"
    unknown = [{"dialog": [{"text": "First."}], "time_back": None}]
    assert only(tmp_path, previous_dialogs=unknown).sessions[0].time_text == ""


def test_a_number_of_sessions_other_than_announced_is_noted(tmp_path: Path) -> None:
    case = only(tmp_path, metadata={"initial_data_id": "valid_9", "session_id": 4})
    assert case.notes == ("the record announces 4 earlier sessions and has 1",)


def test_a_session_without_turns_is_noted_and_keeps_its_number(tmp_path: Path) -> None:
    case = only(tmp_path, previous_dialogs=[{"dialog": [], "time_back": "1 day ago"}])
    assert [session.id for session in case.sessions] == ["S2"]
    assert case.notes == ("session 1 has no turns",)


def test_personas_are_not_part_of_the_history() -> None:
    said = " ".join(turn.text for case in load(SAMPLES / "msc") for turn in case.turns)
    assert "I am learning to sail." not in said


# --- DMR -------------------------------------------------------------------------------------------------------------


def test_a_dmr_case_has_five_sessions_and_one_question() -> None:
    loaded = load_dmr(DMR)
    assert loaded.ids == ("valid_1", "valid_2", "valid_0")
    for case in loaded:
        assert [session.id for session in case.sessions] == ["S1", "S2", "S3", "S4", "S5"]
        assert len(case.questions) == 1
    question, gold = loaded[0].questions[0]
    assert question.id == "valid_1_q0"
    assert question.text == "Hey, remember when we talked about our families? What does your brother do for a living?"
    assert question.after is None
    assert gold.answers == ("He cooks on a ferry!",)
    assert (gold.evidence, gold.answerable) == ((), True)


def test_the_instruction_says_who_asks_whom() -> None:
    instruction = load_dmr(DMR)[0].questions[0][0].instruction
    assert instruction == "Speaker 2 asks this of Speaker 1. Answer as Speaker 1, in the first person."


def test_the_last_session_alone_is_the_sitting_of_the_question() -> None:
    for whole, short in zip(load_dmr(DMR), load_dmr(DMR, history="last_session"), strict=True):
        assert short.sessions == whole.sessions[-1:]
        assert short.sessions[0].id == "S5"
        assert short.questions == whole.questions


def test_a_history_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="history: expected all or last_session, found 'some'"):
        load_dmr(DMR, history="some")  # type: ignore[arg-type]


def test_a_missing_last_session_is_never_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "set.jsonl", [record(dialog=[])])
    assert [session.id for session in load_dmr(path)[0].sessions] == ["S1"]
    with pytest.raises(DataError, match=r"valid_9\.dialog: expected the turns of the last session"):
        load_dmr(path, history="last_session")[0]


# --- What is refused, and how ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {}}, r"set\.txt: record 0\.metadata\.initial_data_id: expected a value"),
        (
            {"metadata": {"initial_data_id": "valid_9", "session_id": "1"}},
            r"valid_9\.metadata\.session_id: expected int",
        ),
        ({"dialog": None}, r"valid_9\.dialog: expected list, found null"),
        ({"dialog": [{"text": 7}]}, r"valid_9\.dialog\[0\]\.text: expected string, found int 7"),
        ({"dialog": [{"text": "Hi!", "id": 7}]}, r"valid_9\.dialog\[0\]\.id: expected string or null, found int 7"),
        ({"dialog": [{"text": "x" * 1_000_001}]}, r"valid_9\.dialog\[0\]\.text: expected at most 1,000,000"),
        (
            {"previous_dialogs": [{"dialog": [{"text": ""}]}]},
            r"valid_9\.previous_dialogs\[0\]\.time_back: expected a value, found no such field",
        ),
    ],
)
def test_a_broken_field_is_named_with_its_record(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        only(tmp_path, **changes)


def test_two_records_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"set\.txt: initial_data_id: expected unique ids, found 'valid_9' twice"):
        load(write_jsonl(tmp_path / "set.txt", [record(), record()]))


def test_a_chat_without_a_question_is_no_dmr_record(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "set.txt", [record(self_instruct=None)])
    assert len(load(path)[0].turns) == 4
    with pytest.raises(DataError, match=r"valid_9\.self_instruct: expected object, found null"):
        load_dmr(path)[0]


@broken_copies()
@given(mutated=mutated_json(DMR_ROWS))
def test_a_mutated_sample_loads_or_is_refused(tmp_path: Path, mutated: Any) -> None:
    path = write_jsonl(tmp_path / "set.txt", mutated)
    check_only_data_errors(load, path)
    check_only_data_errors(load_dmr, path)


def test_damaged_bytes_load_or_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for damage in BROKEN_BYTES:
        with subtests.test(damage=damage):
            path = tmp_path / "set.txt"
            path.write_bytes(BROKEN_BYTES[damage](DMR.read_bytes()))
            check_only_data_errors(load, path)
            check_only_data_errors(load_dmr, path)


@pytest.mark.parametrize("name", ["msc", "dmr"])
def test_the_configuration_loads_its_sample(root: Path, name: str) -> None:
    conf = OmegaConf.load(root / "conf" / "dataset" / f"{name}.yaml")
    assert conf.name == name
    assert len(instantiate(conf.load)(SAMPLES / conf.sample)) == 3


# --- Real files ------------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize(
    ("session", "split", "episodes", "current", "previous"),
    [
        (2, "valid", 500, 5897, 7768),
        (2, "test", 501, 5939, 6572),
        (3, "valid", 500, 5890, 13665),
        (3, "test", 501, 5924, 12511),
    ],
)
def test_msc_has_the_counted_episodes_and_utterances(
    data_root: Path, session: int, split: Any, episodes: int, current: int, previous: int
) -> None:
    loaded = load(data_root / "msc/msc_dialogue", session=session, split=split)
    sessions = [case.sessions for case in loaded]
    assert len(loaded) == episodes
    assert {len(each) for each in sessions} == {session}
    assert sum(len(each[-1].turns) for each in sessions) == current
    assert sum(len(earlier.turns) for each in sessions for earlier in each[:-1]) == previous
    assert not any(case.notes for case in loaded)


@pytest.mark.data
def test_the_first_official_dmr_records_have_five_sessions(data_root: Path) -> None:
    loaded = load_dmr(data_root / "msc_self_instruct/msc_self_instruct.first.jsonl")
    assert loaded.ids == ("valid_1", "valid_2", "valid_0", "valid_10", "valid_7")
    assert [len(case.sessions) for case in loaded] == [5] * 5
    assert not any(case.notes for case in loaded)
    assert loaded[0].sessions[0].time_text == "7 days 8 hours ago"


@pytest.mark.data
def test_the_500_dmr_questions_are_as_counted(data_root: Path, tmp_path: Path) -> None:
    path = data_root / "msc_self_instruct/dmr_qa_500.jsonl"
    pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    # The derived file has questions and answers only; a history of one turn makes records of them.
    rows = [
        record(metadata={"initial_data_id": f"row_{pair['row']}", "session_id": 1}, self_instruct=pair["self_instruct"])
        for pair in pairs
    ]
    asked = [case.questions[0] for case in load_dmr(write_jsonl(tmp_path / "set.jsonl", rows))]
    answers = [gold.answers[0] for _, gold in asked]
    assert len({question.text for question, _ in asked}) == len(asked) == 500
    assert all(question.text.startswith("Hey") for question, _ in asked)
    assert sum(answer.endswith("!") for answer in answers) == 307
    assert statistics.mean(len(answer.split()) for answer in answers) == pytest.approx(4.238)
    assert max(len(answer.split()) for answer in answers) == 23
