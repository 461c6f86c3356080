from __future__ import annotations

import ast
import functools
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from hypothesis import given
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_json, write_jsonl
from omegaconf import OmegaConf

from data_loaders import longmemeval_mab
from data_loaders.longmemeval_mab import load
from data_loaders.schema import Case, DataError, Gold

SAMPLE = Path(longmemeval_mab.__file__).parent / "samples" / "longmemeval_mab.json"
HELLO = {"role": "user", "content": "Hello."}


@functools.cache
def sample() -> Case:
    (case,) = load(SAMPLE)
    return case


def gold(question_id: str) -> Gold:
    return next(gold for question, gold in sample().questions if question.id == question_id)


def row(**changes: Any) -> dict[str, Any]:
    """A row with one session and one question; `metadata` in the changes is laid over the row's own."""
    metadata = {
        "source": "longmemeval_s*",
        "haystack_sessions": [[[{**HELLO, "has_answer": True}]]],
        "qa_pair_ids": ["longmemeval_s*_7_no0"],
        "question_ids": ["q1"],
        "question_types": ["multi-session"],
        "question_dates": ["2024/01/09 (Tue) 10:00"],
    } | changes.pop("metadata", {})
    context = changes.pop("context", ["Chat Time: 2024/01/02 (Tue) 09:00", [HELLO]])
    fields = {"context": repr(context), "questions": ["What?"], "answers": [["That."]], "metadata": metadata}
    return fields | changes


def only(tmp_path: Path, **changes: Any) -> Case:
    (case,) = load(write_json(tmp_path / "rows.json", [row(**changes)]))
    return case


# --- What a case is --------------------------------------------------------------------------------------------------


def test_a_row_of_the_source_is_one_case_and_other_rows_are_none() -> None:
    assert len(json.loads(SAMPLE.read_text(encoding="utf-8"))) == 2
    loaded = load(SAMPLE)
    assert loaded.ids == ("longmemeval_s_star_sample",)
    assert len(loaded[0].questions) == 7
    assert load(SAMPLE, source="ruler_sample").ids == ("ruler_sample_0",)


def test_a_source_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match=r"expected rows with metadata\.source 'longmemeval_x', found none"):
        load(SAMPLE, source="longmemeval_x")


def test_sessions_and_turns_are_numbered_in_the_order_of_the_context() -> None:
    case = sample()
    assert [session.id for session in case.sessions] == [f"s{number}" for number in range(1, 20)]
    assert [turn.id for turn in case.sessions[1].turns] == [f"s2_{number}" for number in range(1, 7)]
    assert case.sessions[0].time == datetime(2024, 4, 2, 22, 55)
    assert case.sessions[0].time_text == "2024/04/02 (Tue) 22:55"


def test_the_order_of_the_context_is_kept_even_against_time(tmp_path: Path) -> None:
    context = ["Chat Time: 2024/01/03 (Wed) 09:00", [HELLO], "Chat Time: 2024/01/02 (Tue) 09:00", [HELLO]]
    assert [session.time_text[:10] for session in only(tmp_path, context=context).sessions] == [
        "2024/01/03",
        "2024/01/02",
    ]


def test_turns_are_the_words_of_the_literal() -> None:
    (raw,) = [each for each in json.loads(SAMPLE.read_text(encoding="utf-8")) if each["metadata"]["question_ids"]]
    said = [turn["content"] for part in ast.literal_eval(raw["context"]) if isinstance(part, list) for turn in part]
    assert [turn.text for turn in sample().turns] == said
    assert not any("has_answer" in text for text in said)


def test_an_empty_session_keeps_its_number_and_is_noted(tmp_path: Path) -> None:
    context = ["Chat Time: 2024/01/02 (Tue) 09:00", [], "Chat Time: 2024/01/03 (Wed) 09:00", [HELLO]]
    case = only(tmp_path, context=context)
    assert [session.id for session in case.sessions] == ["s2"]
    assert case.notes == ("session s1 (2024/01/02 (Tue) 09:00) has no turns",)


def test_rows_that_share_no_name_but_the_source_are_numbered(tmp_path: Path) -> None:
    bare = row(metadata={"qa_pair_ids": ["longmemeval_s*_no0"]})
    assert load(write_json(tmp_path / "rows.json", [bare, bare])).ids == (
        "longmemeval_s_star_0",
        "longmemeval_s_star_1",
    )
    assert only(tmp_path).id == "longmemeval_s_star_7"


def test_two_rows_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"\.json: qa_pair_ids: expected unique ids, found 'longmemeval_s_star_7' twice"
    ):
        load(write_json(tmp_path / "rows.json", [row(), row()]))


def test_sizes_are_the_lengths_of_the_contexts(tmp_path: Path) -> None:
    assert load(write_json(tmp_path / "rows.json", [row()])).sizes == (len(row()["context"]),)


# --- Questions and the answer key ------------------------------------------------------------------------------------


def test_questions_have_the_dates_of_the_metadata() -> None:
    question = sample().questions[0][0]
    assert (question.id, question.time, question.time_text) == (
        "a1c0ffee",
        datetime(2024, 4, 30, 19, 5),
        "2024/04/30 (Tue) 19:05",
    )
    assert question.after is None


@pytest.mark.parametrize("dates", [None, []])
def test_questions_without_dates_have_none(tmp_path: Path, dates: Any) -> None:
    question = only(tmp_path, metadata={"question_dates": dates}).questions[0][0]
    assert (question.time, question.time_text) == (None, "")


def test_all_answers_of_a_question_are_kept_in_order() -> None:
    assert gold("f6b82a54").answers == ("25 minutes", "twenty-five minutes")
    assert gold("gpt4_d4f60832").answers == ("3",)


def test_the_category_is_the_type_and_the_id_says_what_cannot_be_answered() -> None:
    assert gold("gpt4_e5a71943").category == "temporal-reasoning"
    assert [question.id for question, key in sample().questions if not key.answerable] == ["07c93b65_abs"]
    assert gold("07c93b65_abs").category == "single-session-user"


def test_evidence_is_found_by_the_words_of_the_labelled_sessions() -> None:
    turns = {turn.id: turn for turn in sample().turns}
    assert [turns[each].text for each in gold("gpt4_d4f60832").evidence] == [
        "What light does a rubber tree need? I brought two of them home on Saturday for the flat.",
        "It's the first plant I've bought for the new flat, so I want it to live.",
    ]
    assert [turns[each].role for each in gold("b2d4e610").evidence] == ["assistant"]
    assert gold("b2d4e610").detail["evidence_user_turns"] == ()
    assert gold("a1c0ffee").detail["evidence_user_turns"] == gold("a1c0ffee").evidence == ("s2_3",)


def test_evidence_in_a_session_that_stands_twice_is_its_first(tmp_path: Path) -> None:
    context = ["Chat Time: 2024/01/02 (Tue) 09:00", [HELLO], "Chat Time: 2024/01/03 (Wed) 09:00", [HELLO]]
    assert only(tmp_path, context=context).questions[0][1].evidence == ("s1_1",)


def test_evidence_that_is_not_in_the_context_is_dropped_and_noted(tmp_path: Path) -> None:
    altered = [[[{"role": "user", "content": "Hello!", "has_answer": True}]]]
    case = only(tmp_path, metadata={"haystack_sessions": altered})
    assert case.questions[0][1].evidence == ()
    assert case.notes == ("question q1: evidence session 1 is not in the context",)


# --- Formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_parquet_json_and_jsonl_give_the_same_case(tmp_path: Path) -> None:
    import pandas

    rows = [each for each in json.loads(SAMPLE.read_text(encoding="utf-8")) if each["metadata"]["question_ids"]]
    pandas.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    (from_parquet,) = load(tmp_path / "rows.parquet")
    (from_jsonl,) = load(write_jsonl(tmp_path / "rows.jsonl", rows))
    assert from_parquet == from_jsonl == sample()


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match="expected a readable parquet file"):
        load(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="expected a readable parquet file"):
        load(tmp_path / "nothing.parquet")


# --- What is refused, and how ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "context",
    [
        "__import__('pathlib').Path('MARK').touch()",
        "[__import__('pathlib').Path('MARK').touch()]",
        "[x for x in [open('MARK', 'w')]]",
        "(lambda: open('MARK', 'w'))()",
    ],
)
def test_a_context_is_never_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_json(tmp_path / "rows.json", [{**row(), "context": context}])
    with pytest.raises(DataError, match=r"context: expected a Python literal"):
        load(path)[0]
    assert not (tmp_path / "MARK").exists()


def test_a_context_that_is_no_list_is_a_data_error(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for context in [
        "",
        "[",
        "[" * 5000,
        "-" * 100_000 + "1",
        "1+" * 50_000 + "1",
        "[nan]",
        "{'a': 1}",
        "9" * 5000,
        "['\\x0'",
        "\0",
    ]:
        with subtests.test(repr(context[:6])):
            path = write_json(tmp_path / "rows.json", [{**row(), "context": context}])
            with pytest.raises(DataError, match=r"longmemeval_s_star_7\.context"):
                load(path)[0]


def test_a_context_beyond_all_measure_is_refused_unparsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longmemeval_mab, "_MAX_CONTEXT", 50)
    with pytest.raises(DataError, match=r"context: expected at most 50 characters"):
        load(write_json(tmp_path / "rows.json", [row()]))


def test_a_broken_field_is_named_with_its_case(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for changes, message in [
        ({"context": ["Chat Time: 2024/01/02 (Tue) 09:00"]}, "expected a session for each time, found 1"),
        ({"context": ["2024/01/02 (Tue) 09:00", [HELLO]]}, r"context\[0\]: expected 'Chat Time: ' and a time"),
        ({"context": ["Chat Time: today", [HELLO]]}, r"context\[0\]: expected a time such as"),
        ({"context": [[HELLO], [HELLO]]}, r"context\[0\]: expected string, found list"),
        ({"answers": []}, r"answers: expected one for each of the 1 questions, found 0"),
        ({"answers": ["That."]}, r"answers\[0\]: expected list, found string"),
        ({"answers": [[None]]}, r"answers\[0\]\[0\]: expected string or int, found null"),
        ({"metadata": {"question_types": ["riddle"]}}, r"question_types\[0\]: expected one of"),
        (
            {"metadata": {"question_ids": ["a", "b"]}},
            r"question_ids: expected one for each of the 1 questions, found 2",
        ),
        ({"metadata": {"haystack_sessions": []}}, r"haystack_sessions: expected one for each"),
        (
            {
                "questions": ["What?", "Why?"],
                "metadata": {"question_ids": ["q1", "q1"]},
            },
            r"question_ids: expected unique ids, found 'q1' twice",
        ),
    ]:
        with subtests.test(changes=changes, message=message), pytest.raises(DataError, match=message):
            only(tmp_path, **changes)


ROWS: list[Any] = json.loads(SAMPLE.read_text(encoding="utf-8"))


@broken_copies(tests=2)
@given(mutated=mutated_json(ROWS))
def test_a_mutated_sample_loads_or_is_refused(tmp_path: Path, mutated: Any) -> None:
    check_only_data_errors(load, write_json(tmp_path / "rows.json", mutated))


@broken_copies(tests=2)
@given(mutated=mutated_json(ast.literal_eval(ROWS[1]["context"])))
def test_a_mutated_context_loads_or_is_refused(tmp_path: Path, mutated: Any) -> None:
    check_only_data_errors(load, write_json(tmp_path / "rows.json", [{**ROWS[1], "context": repr(mutated)}]))


@pytest.mark.slow
def test_damaged_bytes_load_or_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    import pandas

    for name in ["rows.json", "rows.jsonl", "rows.parquet"]:
        for damage in BROKEN_BYTES:
            with subtests.test(name=name, damage=damage):
                path = tmp_path / name
                if path.suffix == ".parquet":
                    pandas.DataFrame(ROWS[1:]).to_parquet(path)
                else:
                    (write_json if path.suffix == ".json" else write_jsonl)(path, ROWS)
                path.write_bytes(BROKEN_BYTES[damage](path.read_bytes()))
                check_only_data_errors(load, path)


def test_the_configuration_loads_its_sample(root: Path) -> None:
    conf = OmegaConf.load(root / "conf" / "dataset" / "longmemeval_mab.yaml")
    assert instantiate(conf.load)(SAMPLE.parent / conf.sample)[0] == sample()


@pytest.mark.data
def test_the_derived_row_has_the_evidence_of_its_five_questions(data_root: Path) -> None:
    path = data_root / "longmemeval" / "mab_longmemeval_s_star.derived.json"
    if not path.is_file():
        pytest.skip(f"no {path}")
    (case,) = load(path)
    assert (len(case.sessions), len(case.turns), case.notes) == (49, 520, ())
    assert {question.id: len(key.evidence) for question, key in case.questions} == {
        "e47becba": 2,
        "0a995998": 3,
        "6a1eabeb": 2,
        "gpt4_59149c77": 2,
        "0862e8bf_abs": 0,
    }
