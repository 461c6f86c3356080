from __future__ import annotations

import functools
import json
import tracemalloc
from collections import Counter
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from hypothesis import given
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_json
from omegaconf import OmegaConf

from data_loaders import longmemeval
from data_loaders.longmemeval import load
from data_loaders.schema import Case, DataError

SAMPLE = Path(longmemeval.__file__).parent / "samples" / "longmemeval.json"


def record(question_id: str = "q1", **changes: Any) -> dict[str, Any]:
    return {
        "question_id": question_id,
        "question_type": "multi-session",
        "question": "Where is the key?",
        "answer": "Under the mat",
        "question_date": "2024/01/09 (Tue) 10:00",
        "haystack_dates": ["2024/01/02 (Tue) 09:00"],
        "haystack_session_ids": ["s"],
        "haystack_sessions": [[{"role": "user", "content": "The key is under the mat."}]],
        "answer_session_ids": [],
        **changes,
    }


def cases(tmp_path: Path, *records: dict[str, Any]) -> list[Case]:
    return list(load(write_json(tmp_path / "set.json", list(records))))


@functools.cache
def sample(question_id: str) -> Case:
    loaded = load(SAMPLE)
    return loaded[loaded.ids.index(question_id)]


# --- What a case is --------------------------------------------------------------------------------------------------


def test_each_record_is_a_case_with_one_question() -> None:
    loaded = load(SAMPLE)
    assert loaded.ids == (
        "a1c0ffee", "b2d4e610", "c3e5f721", "gpt4_d4f60832", "gpt4_e5a71943", "f6b82a54", "07c93b65_abs",
    )  # fmt: skip
    for case in loaded:
        ((question, gold),) = case.questions
        assert question.id == case.id == case.cluster == gold.detail["question_id"]
        assert question.after is None
        assert question.options == ()
        assert case.speakers == ("user", "assistant")
    assert {case.questions[0][1].category for case in loaded} == set(longmemeval.CATEGORIES)


def test_ids_and_sizes_are_known_before_a_case_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longmemeval, "_case", lambda path, place: pytest.fail("parsed a case"))
    loaded = load(SAMPLE)
    assert len(loaded) == 7
    assert sum(loaded.sizes) < SAMPLE.stat().st_size < sum(loaded.sizes) + 50


def test_the_question_carries_its_own_date() -> None:
    question = sample("a1c0ffee").questions[0][0]
    assert question.time == datetime(2024, 4, 30, 19, 5)
    assert question.time_text == "2024/04/30 (Tue) 19:05"


def test_sessions_are_sorted_by_time_within_the_day_too() -> None:
    case = sample("a1c0ffee")
    assert [session.id for session in case.sessions][:2] == ["9d20aa63_2", "ultrachat_20417"]
    assert [session.time_text for session in case.sessions][:2] == ["2024/04/02 (Tue) 12:15", "2024/04/02 (Tue) 22:55"]
    for each in load(SAMPLE):
        times = [session.time for session in each.sessions if session.time is not None]
        assert times == sorted(times)
        assert len(times) == len(each.sessions)


def test_sessions_of_one_minute_keep_the_order_of_the_file(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Hello."}]
    (case,) = cases(
        tmp_path,
        record(
            haystack_session_ids=["z", "b", "a"],
            haystack_dates=["2024/01/02 (Tue) 09:00", "2024/01/01 (Mon) 09:00", "2024/01/01 (Mon) 09:00"],
            haystack_sessions=[turns, turns, turns],
        ),
    )
    assert [session.id for session in case.sessions] == ["b", "a", "z"]


def test_turn_ids_count_all_turns_of_the_session_from_one() -> None:
    case = sample("b2d4e610")
    session = next(each for each in case.sessions if each.id == "answer_2c9e_1")
    assert [turn.id for turn in session.turns] == [f"answer_2c9e_1_{number}" for number in (1, 2, 3, 4)]
    assert [turn.role for turn in session.turns] == ["user", "assistant", "user", "assistant"]
    assert [turn.speaker for turn in session.turns] == ["user", "assistant", "user", "assistant"]


def test_a_session_may_begin_with_the_assistant() -> None:
    session = next(each for each in sample("c3e5f721").sessions if each.id == "sharegpt_pQ77a_1")
    assert [turn.role for turn in session.turns] == ["assistant", "user", "assistant"]


def test_an_empty_session_is_a_note_and_no_session() -> None:
    case = sample("a1c0ffee")
    assert "5ab0f7d1_1" not in {session.id for session in case.sessions}
    assert case.notes == ("session 5ab0f7d1_1 (2024/04/18 (Thu) 09:00) has no turns",)


def test_a_repeated_session_id_is_told_apart_and_noted() -> None:
    case = sample("gpt4_e5a71943")
    assert [session.id for session in case.sessions][-2:] == ["9d20aa63_2", "9d20aa63_2#2"]
    assert case.sessions[-1].turns[0].id == "9d20aa63_2#2_1"
    assert case.notes == ("session id 9d20aa63_2 occurs again in the haystack; this one is 9d20aa63_2#2",)


def test_a_made_up_session_id_never_takes_one_that_is_there(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Hello."}]
    (case,) = cases(
        tmp_path,
        record(
            haystack_session_ids=["s#2", "s", "s"],
            haystack_dates=["2024/01/02 (Tue) 09:00"] * 3,
            haystack_sessions=[turns] * 3,
        ),
    )
    assert [session.id for session in case.sessions] == ["s#2", "s", "s#3"]


def test_a_session_later_than_the_question_is_noted(tmp_path: Path) -> None:
    (case,) = cases(tmp_path, record(haystack_dates=["2024/01/09 (Tue) 10:01"]))
    assert "session s (2024/01/09 (Tue) 10:01) is later than the question (2024/01/09 (Tue) 10:00)" in case.notes
    (case,) = cases(tmp_path, record(haystack_dates=["2024/01/09 (Tue) 10:00"]))
    assert not any("later" in note for note in case.notes)


# --- The answer key --------------------------------------------------------------------------------------------------


def test_evidence_is_every_turn_labelled_true_in_the_order_of_time() -> None:
    assert sample("gpt4_d4f60832").questions[0][1].evidence == ("answer_4b10_1_3", "answer_4b10_2_1")
    assert sample("c3e5f721").questions[0][1].evidence == ("answer_3d77_1_1", "answer_3d77_1_3")


def test_evidence_user_turns_leave_the_assistants_out() -> None:
    gold = sample("b2d4e610").questions[0][1]
    assert gold.category == "single-session-assistant"
    assert gold.evidence == ("answer_2c9e_1_2",)
    assert gold.detail["evidence_user_turns"] == ()
    assert sample("a1c0ffee").questions[0][1].detail["evidence_user_turns"] == ("answer_1f3a_1_3",)


def test_answer_session_ids_stay_as_the_file_has_them() -> None:
    assert sample("gpt4_d4f60832").questions[0][1].detail["answer_session_ids"] == ("answer_4b10_2", "answer_4b10_1")


def test_an_answer_session_that_is_not_there_is_noted(tmp_path: Path) -> None:
    (case,) = cases(tmp_path, record(answer_session_ids=["s", "answer_x"]))
    assert "answer session answer_x is not in the haystack" in case.notes
    assert not any("answer session s " in note for note in case.notes)


def test_an_abstention_question_is_unanswerable_and_keeps_its_type() -> None:
    gold = sample("07c93b65_abs").questions[0][1]
    assert not gold.answerable
    assert gold.category == gold.detail["question_type"] == "single-session-user"
    assert gold.evidence == ("answer_7f41_abs_1_1",)
    assert all(case.questions[0][1].answerable for case in load(SAMPLE) if "_abs" not in case.id)


def test_a_number_as_answer_becomes_text() -> None:
    assert sample("gpt4_d4f60832").questions[0][1].answers == ("3",)


def test_labels_are_in_no_text() -> None:
    texts = [turn.text for case in load(SAMPLE) for turn in case.turns]
    assert texts
    assert not any("has_answer" in text for text in texts)


def test_a_history_without_labels_says_that_the_evidence_is_unknown(tmp_path: Path) -> None:
    note = "no turn is labelled, so the evidence is unknown"
    (case,) = cases(tmp_path, record())
    assert note in case.notes
    labelled = [[{"role": "user", "content": "Hello.", "has_answer": False}]]
    (case,) = cases(tmp_path, record(haystack_sessions=labelled))
    assert note not in case.notes


# --- Finding the records in the file ---------------------------------------------------------------------------------


TRICKY = [
    record("one", question='A quote " and a backslash \\ and both \\" and a bracket ]}'),
    record("two", question='"question_id": "not me", [{', extra={"question_id": "nor me", "list": [[], {}]}),
    record("thrée ☃", question="ends with a backslash \\", answer="\\\\"),
]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1 << 22])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("escaped", [True, False])
def test_records_are_found_wherever_the_chunks_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None, escaped: bool
) -> None:
    monkeypatch.setattr(longmemeval, "_CHUNK", chunk)
    path = tmp_path / "set.json"
    path.write_text(json.dumps(TRICKY, indent=indent, ensure_ascii=escaped) + "\n", encoding="utf-8")
    loaded = load(path)
    assert loaded.ids == ("one", "two", "thrée ☃")
    assert [case.questions[0][0].text for case in loaded] == [each["question"] for each in TRICKY]


def test_indexing_holds_no_more_than_a_few_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longmemeval, "_CHUNK", 1 << 13)
    turns = [{"role": "user", "content": "x" * 1000}] * 100
    path = write_json(tmp_path / "big.json", [record(str(index), haystack_sessions=[turns]) for index in range(20)])
    assert path.stat().st_size > 2_000_000
    load(path)  # so that what is built once is not counted
    tracemalloc.start()
    try:
        load(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_text_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longmemeval, "_CHUNK", 1 << 10)
    monkeypatch.setattr(longmemeval, "_MAX_RUN", 1 << 12)
    path = tmp_path / "set.json"
    path.write_text('[{"question_id": "' + "x" * 10_000, encoding="utf-8")
    with pytest.raises(DataError, match=r"set\.json: expected texts of at most 1,000,000 characters"):
        load(path)


def test_a_file_that_is_no_list_of_records_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, message in [
        ("", r"expected a JSON list of records, found ''"),
        ("{}", r"expected a JSON list of records, found '\{'"),
        ('x[{"question_id": "a"}]', r"expected a JSON list of records"),
        ("[1]", r"record 0: expected an object"),
        ('[{"question_id": "a"} {"question_id": "b"}]', r"record 1: expected an object after a comma"),
        ('[{"question_id": "a"},]', r"record 1: expected an object after a comma"),
        ('[{"question_id": "a"}, null]', r"record 1: expected an object after a comma"),
        ('[{"question_id": "a"}', r"record 1: expected an object after a comma, or the end of the list"),
        ('[{"question_id": "a"', r"record 0: expected its closing bracket"),
        ('[{"question_id": "a"}] []', r"expected nothing after the list"),
        ('[{"question_id": "a"}] x', r"expected nothing after the list"),
        ("[{}]", r"record 0\.question_id: expected one string, found 0"),
        ('[{"question_id": 7}]', r"record 0\.question_id: expected one string, found 0"),
        ('[{"question_id": "a", "question_id": "b"}]', r"record 0\.question_id: expected one string, found 2"),
        ('[{"question_id": "a"}, {"question_id": "a"}]', r"\.json: question_id: expected unique ids, found 'a' twice"),
    ]:
        with subtests.test(text=text, message=message):
            path = tmp_path / "set.json"
            path.write_text(text, encoding="utf-8")
            with pytest.raises(DataError, match=message):
                load(path)


def test_an_empty_list_has_no_cases(tmp_path: Path) -> None:
    assert len(load(write_json(tmp_path / "set.json", []))) == 0


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a readable file"):
        load(tmp_path / "nothing.json")


def test_a_file_that_changed_after_indexing_is_noticed(tmp_path: Path) -> None:
    loaded = load(write_json(tmp_path / "set.json", [record("first"), record("second")]))
    write_json(tmp_path / "set.json", [record("third"), record("second")])
    with pytest.raises(DataError, match="first"):
        loaded[0]


# --- What is refused, and how ----------------------------------------------------------------------------------------


def test_a_broken_field_is_named_with_its_record(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for changes, message in [
        ({"question_type": "riddle"}, r"set\.json: q1\.question_type: expected one of single-session-user"),
        ({"answer": None}, r"set\.json: q1\.answer: expected string or int, found"),
        ({"answer": True}, r"q1\.answer: expected string or int, found"),
        ({"question_date": "9 January"}, r"q1\.question_date: expected a time such as .* found '9 January'"),
        ({"haystack_dates": ["2024/02/30 (Fri) 09:00"]}, r"q1\.haystack_dates\[0\]: expected a time that exists"),
        ({"haystack_dates": []}, r"found 1 sessions, 1 ids and 0 dates"),
        ({"haystack_sessions": [[{"role": "user"}]]}, r"q1\.haystack_sessions\[0\]\[0\]\.content: expected a value"),
        ({"haystack_sessions": [[{"role": "system", "content": ""}]]}, r"\.role: expected one of user, assistant"),
        (
            {"haystack_sessions": [[{"role": "user", "content": "", "has_answer": "yes"}]]},
            r"q1\.haystack_sessions\[0\]\[0\]\.has_answer: expected true/false or null, found string 'yes'",
        ),
        ({"haystack_sessions": [[{"role": "user", "content": "x" * 1_000_001}]]}, r"found 1,000,001"),
    ]:
        with subtests.test(changes=changes, message=message), pytest.raises(DataError, match=message):
            cases(tmp_path, record(**changes))


@pytest.mark.slow
@broken_copies()
@given(mutated=mutated_json(json.loads(SAMPLE.read_text(encoding="utf-8"))))
def test_a_mutated_sample_loads_or_is_refused(tmp_path: Path, mutated: Any) -> None:
    check_only_data_errors(load, write_json(tmp_path / "set.json", mutated))


def test_damaged_bytes_load_or_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for damage in BROKEN_BYTES:
        with subtests.test(damage=damage):
            path = tmp_path / "set.json"
            path.write_bytes(BROKEN_BYTES[damage](SAMPLE.read_bytes()))
            check_only_data_errors(load, path)


@pytest.mark.parametrize("name", ["longmemeval_s", "longmemeval_s_cleaned", "longmemeval_m", "longmemeval_oracle"])
def test_the_configuration_loads_its_sample(root: Path, name: str) -> None:
    conf = OmegaConf.load(root / "conf" / "dataset" / f"{name}.yaml")
    assert conf.name == name
    assert len(instantiate(conf.load)(SAMPLE.parent / conf.sample)) == 7


# --- Real files ------------------------------------------------------------------------------------------------------


def _real(data_root: Path, name: str) -> Path:
    return data_root / "longmemeval" / name


@pytest.mark.data
def test_the_five_s_records_have_the_counted_sessions_and_turns(data_root: Path) -> None:
    loaded = load(_real(data_root, "longmemeval_s.5.json"))
    counts = {case.id: (len(case.sessions), len(case.notes), len(case.turns)) for case in loaded}
    assert counts == {
        "e47becba": (53, 1, 550),
        "0a995998": (44, 1, 484),
        "6a1eabeb": (40, 1, 413),
        "gpt4_59149c77": (48, 3, 484),
        "0862e8bf_abs": (52, 3, 523),
    }
    assert all(note.endswith("has no turns") for case in loaded for note in case.notes)


@pytest.mark.data
def test_the_cleaned_record_differs_by_the_empty_session_only(data_root: Path) -> None:
    (cleaned,) = load(_real(data_root, "longmemeval_s.1.lightmem.json"))
    original = load(_real(data_root, "longmemeval_s.5.json"))[0]
    assert (len(cleaned.sessions), len(cleaned.turns), cleaned.notes) == (53, 550, ())
    assert cleaned.sessions == original.sessions
    assert "0e9551fc_1" in original.notes[0]


@pytest.mark.data
def test_the_oracle_file_has_dates_of_its_own(data_root: Path) -> None:
    case = load(_real(data_root, "adit_longmemeval_sample.json"))[0]
    assert case.id == "6a1eabeb"
    assert case.questions[0][0].time_text[:10] == "2023/06/01"
    assert [session.time_text[:10] for session in case.sessions] == ["2023/05/25", "2023/05/27"]


@pytest.mark.data
def test_the_500_questions_have_the_counted_types(data_root: Path, tmp_path: Path) -> None:
    rows = json.loads(_real(data_root, "longmemeval_questions_500.json").read_text(encoding="utf-8"))
    empty = {"haystack_dates": [], "haystack_session_ids": [], "haystack_sessions": []}
    # The derived file has the day alone and, for some abstention rows, no evidence ids.
    full = [
        {
            **row,
            **empty,
            "question_date": f"{date.fromisoformat(row['question_day']):%Y/%m/%d (%a)} 00:00",
            "answer_session_ids": row["answer_session_ids"] or [],
        }
        for row in rows
    ]
    golds = {case.id: case.questions[0][1] for case in load(write_json(tmp_path / "set.json", full))}
    assert len(golds) == 500
    assert Counter(gold.category for gold in golds.values()) == {
        "single-session-user": 70,
        "single-session-assistant": 56,
        "single-session-preference": 30,
        "multi-session": 133,
        "temporal-reasoning": 133,
        "knowledge-update": 78,
    }
    assert Counter(gold.category for gold in golds.values() if not gold.answerable) == {
        "multi-session": 12,
        "single-session-user": 6,
        "temporal-reasoning": 6,
        "knowledge-update": 6,
    }
    assert sum(isinstance(row["answer"], int) for row in rows) == 32
    assert [golds[row["question_id"]].answers for row in rows] == [(str(row["answer"]),) for row in rows]
    assert sum(each.startswith("gpt4_") for each in golds) == 107
