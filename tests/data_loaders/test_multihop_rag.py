"""MultiHop-RAG: articles, passages, facts and the questions no article answers."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_json

from data_loaders.multihop_rag import holders, load
from data_loaders.schema import Case, DataError
from data_loaders.units import make_units
from eval.report.measures import statistic
from memsys.tokens import count_tokens

SAMPLE = Path(__file__).parents[2] / "data_loaders" / "samples" / "multihop_rag"
DATA = Path(os.environ.get("MEMSYS_DATA") or Path(__file__).parents[3] / "shared" / "data") / "multihop_rag"
NEWS = "https://news.example.org/"
FILES = ("corpus.json", "MultiHopRAG.json")


def raw(name: str) -> Any:
    return json.loads((SAMPLE / name).read_text(encoding="utf-8"))


def folder(path: Path, corpus: Any = None, queries: Any = None) -> Path:
    write_json(path / "corpus.json", raw("corpus.json") if corpus is None else corpus)
    write_json(path / "MultiHopRAG.json", raw("MultiHopRAG.json") if queries is None else queries)
    return path


def evidence(case: Case, question: int) -> list[str]:
    return [turn_id.removeprefix(NEWS) for turn_id in case.questions[question][1].evidence]


def held(name: str) -> str:
    if not (DATA / name).exists():
        pytest.skip(f"needs the real file {DATA / name} (set MEMSYS_DATA)")
    return name


def test_all_articles_make_one_memory_in_file_order() -> None:
    cases = load(SAMPLE)
    assert len(cases) == 1
    assert [session.id for session in cases[0].sessions] == [each["url"] for each in raw("corpus.json") if each["body"]]
    assert [turn.id for turn in cases[0].sessions[0].turns] == [f"{NEWS}ferrolith-plant:{n}" for n in (1, 2, 3, 4)]


def test_an_article_without_body_is_left_out_and_noted(tmp_path: Path) -> None:
    without_field = raw("corpus.json")
    del without_field[0]["body"]
    notes = load(folder(tmp_path, without_field))[0].notes
    assert f"{NEWS}empty-wire: the article has no body and is left out." in notes
    assert f"{NEWS}ferrolith-plant: the article has no body and is left out." in notes
    assert load(SAMPLE)[0].notes == (f"{NEWS}empty-wire: the article has no body and is left out.",)


def test_the_time_is_naive_utc_and_its_text_verbatim() -> None:
    session = load(SAMPLE)[0].sessions[3]
    assert session.time == datetime(2023, 12, 1, 10, 0)
    assert session.time_text == "2023-12-01T12:00:00+02:00"


@pytest.mark.parametrize("text", ["soon", "0001-01-01T00:00:00+05:00"])
def test_a_time_that_is_no_date_leaves_the_session_without_one_and_is_noted(tmp_path: Path, text: str) -> None:
    corpus = raw("corpus.json")
    corpus[0]["published_at"] = text
    case = load(folder(tmp_path, corpus))[0]
    session = case.sessions[0]
    assert (session.time, session.time_text) == (None, text)
    assert f"{session.id} has no readable time: {text!r}." in case.notes


LINE = "Okonedo signs for Norrick (Touchline Daily, 2024-01-09T17:20:00+00:00)"


def test_title_source_and_time_stand_before_each_unit_or_each_article_or_nowhere() -> None:
    unit, article, none = (load(SAMPLE, header=header)[0].sessions[5] for header in ("unit", "article", "none"))
    assert unit == replace(none, heading=LINE)
    assert [turn.id for turn in article.turns] == [f"{NEWS}curlews-okonedo:{n}" for n in (0, 1, 2, 3)]
    assert article.turns[0].text == LINE
    assert article.turns[1:] == none.turns


def test_a_chunk_opens_with_title_source_and_date_once_as_in_memtree_a_2_1() -> None:
    session = load(SAMPLE)[0].sessions[5]
    (whole,) = make_units([session], "chunk", tokens=1024, count=count_tokens).units
    assert whole.text == "\n".join([LINE, *(turn.text for turn in session.turns)])
    parts = make_units([session], "chunk", tokens=40, count=count_tokens).units
    assert len(parts) > 1
    assert all(part.text.count(LINE) == 1 and part.text.startswith(f"{LINE}\n") for part in parts)


def test_tokens_of_an_article_are_counted_without_its_heading_as_in_memtree_table_a_1() -> None:
    def counted(header: str) -> tuple[float, ...]:
        names = ("tokens_per_session", "tokens_per_turn", "tokens")
        found = [statistic(load(SAMPLE, header=header), name, {"rule": "utterance"}) for name in names]
        return tuple(one.mean for one in found if one is not None)

    assert counted("unit") == counted("none") < counted("article")


def test_evidence_is_the_paragraph_of_the_cited_article_that_holds_the_fact() -> None:
    case = load(SAMPLE)[0]
    assert evidence(case, 0) == ["ferrolith-plant:3", "winterbourne-profile:2"]
    assert case.questions[0][1].detail["facts"] == tuple(
        each["fact"] for each in raw("MultiHopRAG.json")[0]["evidence_list"]
    )


def test_a_fact_is_found_across_a_line_wrap_and_across_paragraphs() -> None:
    case = load(SAMPLE)[0]
    assert evidence(case, 9)[0] == "ferrolith-water:3"
    assert evidence(case, 5)[1:] == ["curlews-finances:3", "curlews-finances:4"]


def test_a_fact_that_two_paragraphs_repeat_has_both_and_its_neighbours_are_not_touched() -> None:
    assert holders("fact", [("a", "xx"), ("b", "afact"), ("c", "y"), ("d", "factz")]) == ["b", "d"]
    assert holders("ac", [("a", "xa"), ("b", "cx"), ("c", "c")]) == ["a", "b"]
    assert holders("", [("a", "xa")]) == []


def test_the_same_words_in_an_article_that_is_not_cited_are_no_evidence(tmp_path: Path) -> None:
    corpus = raw("corpus.json")
    corpus[8]["body"] += "\n\n" + raw("MultiHopRAG.json")[0]["evidence_list"][0]["fact"]
    assert evidence(load(folder(tmp_path, corpus))[0], 0) == ["ferrolith-plant:3", "winterbourne-profile:2"]


def test_a_fact_that_is_not_in_the_corpus_is_noted_and_kept_raw(tmp_path: Path) -> None:
    queries = raw("MultiHopRAG.json")
    queries[0]["evidence_list"][0]["url"] = "https://elsewhere.example.org"
    queries[1]["evidence_list"][1]["fact"] = "Nobody wrote this."
    case = load(folder(tmp_path, queries=queries))[0]
    assert evidence(case, 0) == ["winterbourne-profile:2"]
    assert case.questions[0][1].detail["evidence_raw"] == (
        "https://elsewhere.example.org",
        f"{NEWS}winterbourne-profile",
    )
    assert case.notes[1:] == (
        "q0: evidence 0 is not in the corpus (https://elsewhere.example.org).",
        f"q1: evidence 1 is not in the corpus ({NEWS}tidal-array).",
    )


def test_unanswerable_questions_come_only_when_asked_for_and_move_no_id(tmp_path: Path) -> None:
    queries = raw("MultiHopRAG.json")
    queries.insert(0, queries.pop())
    path = folder(tmp_path, queries=queries)
    few, all_of_them = load(path)[0].questions, load(path, null=True)[0].questions
    assert [question.id for question, _ in few] == [f"q{n}" for n in range(1, 11)]
    assert [question.id for question, gold in all_of_them if not gold.answerable] == ["q0", "q11"]
    assert all_of_them[0][1].answers == ("Insufficient information.",)
    assert [each for each in all_of_them if each[1].answerable] == list(few)


def test_question_types_become_categories_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    assert Counter(gold.category for _, gold in load(SAMPLE, null=True)[0].questions) == {
        "inference": 4,
        "comparison": 3,
        "temporal": 3,
        "null": 2,
    }
    queries = raw("MultiHopRAG.json")
    queries[4]["question_type"] = "riddle"
    with pytest.raises(
        DataError, match=r"MultiHopRAG\.json: record 4\.question_type: expected one of .* found 'riddle'"
    ):
        load(folder(tmp_path, queries=queries))[0]


def test_an_article_that_comes_twice_is_refused(tmp_path: Path) -> None:
    corpus = raw("corpus.json")
    with pytest.raises(DataError, match="ferrolith-plant"):
        load(folder(tmp_path, [*corpus, corpus[0]]))[0]


@broken_copies(tests=2)
@given(corpus=mutated_json(raw("corpus.json")))
def test_a_broken_article_is_read_or_refused_with_a_reason(tmp_path: Path, corpus: Any) -> None:
    write_json(folder(tmp_path) / "corpus.json", corpus)
    check_only_data_errors(load, tmp_path)


@broken_copies(tests=2)
@given(queries=mutated_json(raw("MultiHopRAG.json")))
def test_a_broken_question_is_read_or_refused_with_a_reason(tmp_path: Path, queries: Any) -> None:
    write_json(folder(tmp_path) / "MultiHopRAG.json", queries)
    check_only_data_errors(lambda path: load(path, null=True), tmp_path)


def test_a_broken_file_is_read_or_refused_with_a_reason(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name in FILES:
        for damage in BROKEN_BYTES:
            with subtests.test(name=name, damage=damage):
                path = folder(tmp_path) / name
                path.write_bytes(BROKEN_BYTES[damage](path.read_bytes()))
                check_only_data_errors(load, tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"corpus\.json"):
        load(tmp_path)


@pytest.mark.data
def test_the_held_subset_has_its_questions_evidence_and_articles() -> None:
    case = load(
        DATA,
        null=True,
        corpus=held("corpus.surrogate.json"),
        queries=held("MultiHopRAG.subset500.json"),
        header="article",
    )[0]
    golds = [gold for _, gold in case.questions]
    assert Counter(gold.category for gold in golds) == {
        "inference": 161,
        "comparison": 154,
        "temporal": 114,
        "null": 71,
    }
    assert sum(len(gold.detail["facts"]) for gold in golds) == 1153
    assert len({url for gold in golds for url in gold.detail["evidence_raw"]}) == 326
    assert {gold.answers for gold in golds if not gold.answerable} == {("Insufficient information.",)}
    openings = [session.turns[0].text.rpartition(" (")[2].rpartition(", ")[0] for session in case.sessions]
    assert len(set(openings)) == 37
    assert case.notes == ()


@pytest.mark.data
def test_the_full_release_has_its_published_sizes() -> None:
    path = DATA
    held("corpus.json")
    held("MultiHopRAG.json")
    case = load(path, null=True)[0]
    assert len(case.sessions) == 609
    assert Counter(gold.category for _, gold in case.questions) == {
        "inference": 816,
        "comparison": 856,
        "temporal": 583,
        "null": 301,
    }
    assert len(load(path)[0].questions) == 2255
