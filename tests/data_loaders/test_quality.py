"""QuALITY: articles, paragraphs, options and labels."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_jsonl

from data_loaders.quality import load, paragraphs
from data_loaders.schema import DataError

SAMPLE = Path(__file__).parents[2] / "data_loaders" / "samples" / "quality.jsonl"
DATA = Path(os.environ.get("MEMSYS_DATA") or Path(__file__).parents[3] / "shared" / "data") / "quality"


def lines() -> list[Any]:
    return [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]


def held(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"needs the real file {DATA / name} (set MEMSYS_DATA)")
    return DATA / name


def test_the_lines_of_one_article_become_one_case_although_another_lies_between() -> None:
    cases = load(SAMPLE)
    assert [case.id for case in cases] == ["90001", "90002", "90003"]
    assert [question.id for question, _ in cases[0].questions] == [
        *(f"90001_SAMPLE01_{n}" for n in (1, 2, 3, 4)),
        *(f"90001_SAMPLE02_{n}" for n in (1, 2, 3)),
    ]
    assert len(cases[0].sessions) == 1
    assert cases[0].notes == ()


def test_paragraphs_are_turns_without_a_speaker_that_hold_every_word_of_the_article() -> None:
    for case, line in zip(load(SAMPLE), [lines()[0], lines()[1], lines()[3]], strict=True):
        assert " ".join(turn.text for turn in case.turns).split() == line["article"].split()
        assert {turn.speaker for turn in case.turns} == {""}
        assert [turn.id for turn in case.turns] == [f"{case.id}:{n}" for n in range(1, len(case.turns) + 1)]


def test_an_italic_span_on_its_own_line_does_not_end_a_paragraph() -> None:
    assert paragraphs("One\n \n\n  He read\n  \n   The Book\n  \n  and slept.\n \n\n\n  Two\n") == [
        "One",
        "He read The Book and slept.",
        "Two",
    ]


def test_an_article_without_wide_gaps_is_split_at_blank_lines() -> None:
    assert paragraphs("One \n\n   two\n three \n\n") == ["One", "two three"]
    assert len(load(SAMPLE)[2].turns) == 7


def test_the_gold_is_the_option_of_the_gold_label_not_of_the_writers() -> None:
    _, gold = load(SAMPLE)[0].questions[1]
    raw = lines()[0]["questions"][1]
    assert raw["writer_label"] != raw["gold_label"] == gold.detail["gold_label"] == 3
    assert gold.answers == ("The piano in the tower",)


def test_options_are_shown_in_the_choice_setting_only_and_are_trimmed() -> None:
    (asked, gold), (hidden, same) = load(SAMPLE, setting="choice")[0].questions[0], load(SAMPLE)[0].questions[0]
    assert hidden.options == ()
    assert asked.options == gold.detail["options"] == same.detail["options"]
    assert asked.options[1] == "Because a brighter lamp makes birds strike the glass"
    assert asked.options[3] == "Because the wick burns out above it"
    assert gold == same


def test_difficulty_is_the_category_and_its_absence_too() -> None:
    assert [Counter(gold.category for _, gold in case.questions) for case in load(SAMPLE)] == [
        {"easy": 4, "hard": 3},
        {"easy": 3, "hard": 1},
        {"ungraded": 2},
    ]


@pytest.mark.parametrize("label", [0, 5, -1])
def test_a_label_beside_the_options_is_refused(tmp_path: Path, label: int) -> None:
    raw = lines()
    raw[0]["questions"][2]["gold_label"] = label
    with pytest.raises(DataError, match=r"record 0\.questions\[2\]\.gold_label: expected 1 to 4"):
        load(write_jsonl(tmp_path / "q.jsonl", raw))[0]


def test_the_unlabelled_test_split_is_refused(tmp_path: Path) -> None:
    raw = lines()
    del raw[0]["questions"][0]["gold_label"]
    with pytest.raises(DataError, match="gold_label"):
        load(write_jsonl(tmp_path / "q.jsonl", raw))[0]


def test_a_second_line_with_another_text_is_noted_and_the_first_is_used(tmp_path: Path) -> None:
    raw = lines()
    raw[2]["article"] = "Something else."
    case = load(write_jsonl(tmp_path / "q.jsonl", raw))[0]
    assert case.notes == ("90001_SAMPLE02: its article text differs from the first line's and is not used.",)
    assert len(case.turns) == 21
    assert len(case.questions) == 7


def test_a_question_id_used_twice_is_refused(tmp_path: Path) -> None:
    raw = lines()
    raw[2]["questions"][0]["question_unique_id"] = "90001_SAMPLE01_1"
    with pytest.raises(DataError, match="90001_SAMPLE01_1"):
        load(write_jsonl(tmp_path / "q.jsonl", raw))[0]


@broken_copies()
@given(raw=mutated_json(lines()), setting=st.sampled_from(["open", "choice"]))
def test_a_broken_record_is_read_or_refused_with_a_reason(tmp_path: Path, raw: Any, setting: Any) -> None:
    check_only_data_errors(lambda path: load(path, setting=setting), write_jsonl(tmp_path / "q.jsonl", raw))


def test_a_broken_file_is_read_or_refused_with_a_reason(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for damage in BROKEN_BYTES:
        with subtests.test(damage=damage):
            path = tmp_path / "q.jsonl"
            path.write_bytes(BROKEN_BYTES[damage](SAMPLE.read_bytes()))
            check_only_data_errors(load, path)


@pytest.mark.data
def test_the_held_line_of_the_development_set_has_its_paragraphs_and_labels() -> None:
    (case,) = load(held("QuALITY.v1.0.1.htmlstripped.dev.sample1"))
    assert (case.id, len(case.turns), len(case.questions)) == ("52845", 100, 6)
    labels = [(gold.detail["gold_label"], gold.detail["difficult"]) for _, gold in case.questions]
    assert labels == [(2, 0), (2, 1), (3, 1), (4, 1), (1, 1), (4, 0)]


@pytest.mark.data
def test_the_fifteen_articles_of_l_eval_have_their_questions_and_labels() -> None:
    cases = load(held("quality_from_leval.converted.jsonl"))
    golds = [gold for case in cases for _, gold in case.questions]
    assert (len(cases), len(golds)) == (15, 202)
    assert Counter(gold.detail["gold_label"] for gold in golds) == {1: 56, 2: 52, 3: 43, 4: 51}


@pytest.mark.data
@pytest.mark.parametrize(("split", "articles", "questions"), [("train", 150, 2523), ("dev", 115, 2086)])
def test_the_full_splits_have_their_published_sizes(split: str, articles: int, questions: int) -> None:
    cases = load(held(f"QuALITY.v1.0.1.htmlstripped.{split}"))
    assert (len(cases), sum(len(case.questions) for case in cases)) == (articles, questions)


@pytest.mark.data
def test_the_development_set_has_the_easy_and_hard_questions_memtree_counts() -> None:
    cases = load(held("QuALITY.v1.0.1.htmlstripped.dev"))
    assert Counter(gold.category for case in cases for _, gold in case.questions) == {"easy": 1021, "hard": 1065}
