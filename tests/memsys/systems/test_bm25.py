from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_loaders.schema import Question, Unit
from memsys.systems.bm25 import BM25, bm25_index, bm25_scores, words

MakeUnit = Callable[..., Unit]
DOCUMENTS = [["a", "b", "a"], ["b", "c"], [], ["d", "a", "e", "f"]]
vocabulary = st.sampled_from(["a", "b", "c", "d"])


def robertson(documents: list[list[str]], query: list[str], k1: float, b: float) -> list[float]:
    """The formula, written out: Lucene's idf, every occurrence of a query word counted."""
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        total = 0.0
        for word in query:
            holders = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
            count = document.count(word)
            total += idf * count / (count + k1 * (1 - b + b * len(document) / mean)) if count else 0.0
        scores.append(total)
    return scores


def question(text: str) -> Question:
    return Question("q", text)


def filled(texts: list[str], unit: MakeUnit, k: int = 10) -> BM25:
    memory = BM25(k=k)
    for number, text in enumerate(texts):
        memory.write(unit(f"u{number}", text))
    memory.consolidate()
    return memory


def ids(memory: BM25, text: str) -> list[str]:
    return [item.id for item in memory.read(question(text)).items]


def test_hand_worked_scores() -> None:
    # idf(a) = ln(1 + 2.5/2.5) = .6931; lengths 3 and 4, mean 2.25: .6931 * 2/(2 + 1.5*1.25) and .6931 * 1/(1 + 1.5*1.5833)
    scores = bm25_scores(bm25_index(DOCUMENTS, 1.5, 0.75), ["a"], 4)
    assert scores.tolist() == pytest.approx([0.35775, 0, 0, 0.20538], abs=1e-5)


@pytest.mark.slow
@given(
    st.lists(st.lists(vocabulary, max_size=6), min_size=1, max_size=8).filter(any),
    st.lists(vocabulary, max_size=5),
    st.sampled_from([0.5, 1.5]),
    st.sampled_from([0.0, 0.75, 1.0]),
)
def test_scores_agree_with_the_formula(documents: list[list[str]], query: list[str], k1: float, b: float) -> None:
    scores = bm25_scores(bm25_index(documents, k1, b), query, len(documents))
    assert scores.tolist() == pytest.approx(robertson(documents, query, k1, b), abs=1e-5)


def test_documents_without_words_have_no_index_and_score_nothing() -> None:
    assert bm25_index([[], []], 1.5, 0.75) is None
    assert bm25_scores(None, ["a"], 2).tolist() == [0.0, 0.0]


def test_unknown_words_of_a_query_are_left_out() -> None:
    index = bm25_index(DOCUMENTS, 1.5, 0.75)
    assert bm25_scores(index, ["a", "z", ""], 4).tolist() == bm25_scores(index, ["a"], 4).tolist()
    assert bm25_scores(index, ["z"], 4).tolist() == [0.0] * 4
    assert bm25_scores(index, [], 4).tolist() == [0.0] * 4


def test_words_are_lower_case_stems() -> None:
    assert words("Mara's TOMATOES, re-planted 2023!") == ["mara", "tomato", "re", "plant", "2023"]
    assert words("…👩‍🌾") == []


def test_units_are_ranked_by_score_and_a_stranger_is_not_recalled(unit: MakeUnit) -> None:
    memory = filled(["tea and sugar", "tea tea tea", "a mountain railway"], unit)
    items = memory.read(question("Did they drink teas?")).items
    assert [item.id for item in items] == ["u1", "u0"]
    assert items[0].score > items[1].score > 0
    assert items[0].text == "[7 May 2023] Ann: tea tea tea"


def test_k_is_kept_and_ties_go_to_the_earlier_unit(unit: MakeUnit) -> None:
    memory = filled(["tea time"] * 9 + ["coffee"], unit, k=2)
    assert ids(memory, "tea") == ["u0", "u1"]


def test_the_settings_are_the_papers() -> None:
    memory = BM25()
    assert (memory.k, memory.k1, memory.b) == (10, 1.5, 0.75)


def test_a_read_sees_the_last_consolidation(unit: MakeUnit) -> None:
    memory = filled(["tea"], unit)
    memory.write(unit("u1", "tea tea"))
    assert ids(memory, "tea") == ["u0"]
    assert memory.held == 2
    memory.consolidate()
    assert ids(memory, "tea") == ["u1", "u0"]


def test_the_index_is_rebuilt_only_when_units_have_come(unit: MakeUnit) -> None:
    memory = filled(["tea"], unit)
    index = memory._index
    memory.consolidate()
    assert memory._index is index
    memory.write(unit("u1", "sugar"))
    memory.consolidate()
    assert memory._index is not index


def test_a_possessive_in_the_question_only_does_no_harm(unit: MakeUnit) -> None:
    assert ids(filled(["Mara drinks tea", "coffee"], unit), "What is Mara's drink?") == ["u0"]


def test_a_question_without_words_recalls_nothing(unit: MakeUnit) -> None:
    assert ids(filled(["tea"], unit), "?!") == []
