"""Evidence density counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_loaders.schema import Case, Gold, Question
from eval.files.records import Prediction
from eval.files.store import item_record, write_lines
from eval.metrics.evidence import Coverage, content_words, coverage, evidence, hit_count
from memsys.interface import Item
from memsys.tokens import count_tokens

ITEMS = {
    "two": Item("two", "Rosa keeps a red kayak.", 0.0, ("t1",), "leaf", 0),
    "one": Item("one", "The oars are long.", 0.0, ("t2",), "leaf", 0),
    "none": Item("none", "Reddish kayaking is something else.", 0.0, ("t3",), "summary", 1),
    "three": Item("three", "A RED kayak with long oars!", 0.0, ("t4",), "summary", 2),
}


def test_content_words_are_distinct_and_no_stop_words() -> None:
    assert content_words("The kayak, the red kayak with the oars") == {"kayak", "red", "oars"}
    assert content_words("with the") == frozenset()
    assert content_words("Did she have those before him?") == frozenset()
    assert content_words("Rosa’s 3 cats") == {"rosa's", "3", "cats"}


def test_hits_are_whole_words_in_any_case_counted_once() -> None:
    words = frozenset({"red", "kayak", "oars"})
    assert [hit_count(words, item.text) for item in ITEMS.values()] == [2, 1, 0, 3]
    assert hit_count(words, "red red red") == 1


def test_coverage_is_the_shortest_prefix_with_its_tokens() -> None:
    words = frozenset({"red", "kayak", "oars"})
    texts = [ITEMS[name].text for name in ("one", "none", "two", "three")]
    assert coverage(words, texts) == Coverage(3, sum(map(count_tokens, texts[:3])))
    assert coverage(words, texts[:2]) is None
    assert coverage(words, []) is None


def folder_with(tmp_path: Path, lines: list[tuple[str, list[str], list[float], str]]) -> Path:
    records = {name: item_record(item) for name, item in ITEMS.items()}
    case = tmp_path / "cases" / "c"
    write_lines(case / "items.jsonl", records.values())
    write_lines(
        case / "predictions.jsonl",
        [
            Prediction("c", question, "said", tuple(records[name]["key"] for name in names), tuple(scores), outcome)  # type: ignore[arg-type]
            for question, names, scores, outcome in lines
        ],
    )
    return tmp_path


def asked(**golds: Gold) -> Case:
    return Case("c", ("A",), (), tuple((Question(name, "?"), gold) for name, gold in golds.items()), "c")


def test_shares_means_and_levels_are_those_of_the_recalled_items(tmp_path: Path) -> None:
    gold = Gold(("a red kayak with oars",), category="x")
    folder = folder_with(
        tmp_path,
        [
            ("q1", ["two", "one", "none"], [3, 2, 1], "answered"),  # covered by two blocks
            ("q2", ["three"], [1], "answered"),  # covered by one
            ("q3", ["none"], [1], "answered"),  # never covered
            ("q4", [], [], "answered"),
        ],
    )
    found = evidence(folder, [asked(q1=gold, q2=gold, q3=gold, q4=gold)])
    assert list(found) == ["x", "all"]
    one = found["x"]
    assert (one.questions, one.left_out, one.blocks) == (4, 0, 5)
    assert one.hits == (0.4, 0.2, 0.2, 0.2)
    assert one.covered == 0.5
    assert one.blocks_to_cover == 1.5
    first = count_tokens(ITEMS["two"].text) + count_tokens(ITEMS["one"].text)
    assert one.tokens_to_cover == (first + count_tokens(ITEMS["three"].text)) / 2
    lengths = {name: count_tokens(item.text) for name, item in ITEMS.items()}
    assert one.recalled_tokens == (lengths["two"] + lengths["one"] + 2 * lengths["none"] + lengths["three"]) / 4
    assert one.levels == {0: 0.4, 1: 0.4, 2: 0.2}


def test_blocks_are_taken_by_score_not_in_the_reader_s_order(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, [("q1", ["none", "one", "three"], [0.1, 0.2, 0.9], "answered")])
    found = evidence(folder, [asked(q1=Gold(("red kayak, oars",), category="x"))])
    assert found["all"].blocks_to_cover == 1


def test_what_has_no_evidence_to_find_is_left_out_and_counted(tmp_path: Path) -> None:
    names = ["q1", "q2", "q3", "q4"]
    folder = folder_with(tmp_path, [(name, ["two"], [1], "error" if name == "q3" else "answered") for name in names])
    case = asked(
        q1=Gold(("red kayak",), answerable=False),
        q2=Gold(("No",)),
        q3=Gold(("red kayak",)),
        q4=Gold(("red kayak",)),
        q5=Gold(("never reached",)),
    )
    found = evidence(folder, [case])["all"]
    assert (found.questions, found.left_out, found.blocks) == (1, 3, 1)


def test_without_any_question_the_means_are_absent(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, [("q1", ["two"], [1], "answered")])
    found = evidence(folder, [asked(q1=Gold((), answerable=False))])["all"]
    assert (found.questions, found.blocks_to_cover, found.tokens_to_cover, found.recalled_tokens) == (
        0,
        None,
        None,
        None,
    )
    assert found.hits == (0, 0, 0, 0)
    assert found.covered == pytest.approx(0)
