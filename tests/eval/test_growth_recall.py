"""Evidence recall and bytes as a joined history grows, on an invented history in which everything is known."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripted import ScriptedLLM

from data_loaders.schema import Case, Gold, Question, Session, Turn, Unit
from data_loaders.units import make_units
from eval.analysis.growth import (
    FIELDS,
    RecallWatch,
    Sample,
    Schedule,
    as_csv,
    build,
    costs_at,
    long_history,
    node_bytes,
    object_bytes,
)
from eval.files.records import Prediction, Score
from eval.files.store import RunError
from eval.running.run import Run
from memsys.interface import MemorySystem, Recall
from memsys.llm.meter import Metered
from memsys.llm.protocol import EndOfRun, ModelError, Request
from memsys.systems.bm25 import BM25
from memsys.systems.controls import Nothing, Recency

UTTERANCE = {"rule": "utterance"}
SIZES = [50, 100, 200, 400]
WORDS = [f"{first}{last}" for first in "bcdfghjklm" for last in ("olo", "anta", "ipi", "emba", "uru")]


def case(name: str, turns: int = 100) -> Case:
    """A turn in five tells where a thing of its own is; the others are small talk of equal length, from few words."""
    said, asked = [], []
    for number in range(turns):
        words = " ".join(WORDS[(number * step + step) % len(WORDS)] for step in (1, 3, 7, 9))
        if number % 5 == 0:
            words = f"the item {name}x{number} is in box number {number % 9}"
            gold = Gold((str(number % 9),), (f"t{number}",))
            asked.append((Question(f"q{number}", f"Where is {name}x{number}?", after=f"t{number}"), gold))
        said.append(Turn(f"t{number}", "ann", words))
    nameless = (Question("none", "What else?"), Gold(("nothing",)))
    return Case(name, ("ann", "bob"), (Session("s1", tuple(said)),), (*asked, nameless))


CASES = [case(name) for name in ("a", "b", "c", "d")]


def measured(
    memory: MemorySystem, sizes: list[int] = SIZES, most: int = 30, cases: list[Case] = CASES, answered: Any = None
) -> list[dict[str, Any]]:
    history, names, units = long_history(cases, UTTERANCE, sizes[-1])
    watch = RecallWatch(history, names, units, (), most=most, k=10, answered=answered)
    costs = costs_at(list(build(memory, units, sizes, (), watch)), memory.OFFLINE, 10)
    return list(csv.DictReader(as_csv("m", "d", memory.OFFLINE, costs, watch.holdings).splitlines()))


def column(rows: list[dict[str, Any]], what: str, name: str) -> list[float]:
    return [float(row[name]) for row in rows if row["what"] == what]


def test_a_memory_that_keeps_the_end_only_finds_less_and_less_and_bm25_does_not() -> None:
    last, whole = measured(Recency(k=10), most=100), measured(BM25(), most=100)
    assert column(last, "read", "covered") == [0.2, 0.1, 0.05, 0.025]  # two of 10, 20, 40 and 80 questions
    assert all(share > 0.9 for share in column(whole, "read", "covered"))
    for row in whole:
        if row["what"] == "read":
            assert float(row["covered_low"]) <= float(row["covered"]) <= float(row["covered_high"])


def test_the_questions_of_the_first_size_are_read_at_every_size_whoever_is_drawn() -> None:
    last, whole = measured(Recency(k=10), most=10), measured(BM25(), most=10)
    assert column(last, "read", "covered_first") == [0.2, 0, 0, 0], (
        "two of the first ten are the last said, and then no more"
    )
    assert column(last, "read", "covered")[0] == 0.2
    assert all(share > 0.9 for share in column(whole, "read", "covered_first"))
    assert column(whole, "read", "first_questions") == column(whole, "read", "questions") == [10] * 4
    for row in last[2::4]:
        assert (row["covered_first_low"] == "") is (row["what"] != "read")


def test_the_reader_answers_the_drawn_questions_and_a_call_that_fails_has_no_score(
    make_run: Callable[..., Run],
) -> None:
    asked: Counter[str] = Counter()

    def reply(request: Request) -> str | Exception:
        prompt = request.messages[-1][1]
        thing = prompt.rpartition("Where is ")[2].partition("?")[0]
        asked[thing] += 1
        if thing == "ax10":
            return ModelError("no answer")
        told = prompt.partition(f"the item {thing} is in box number ")[2]
        return told[:1] or "nowhere"

    def right(question: Question, gold: Gold, prediction: Prediction) -> Score:
        told = prediction.outcome == "answered"
        return Score(float(prediction.answer == gold.answers[0]) if told else None)

    run = make_run(CASES, reader=Metered(ScriptedLLM(reply)))
    rows = measured(Recency(k=10), [50, 100], 100, answered=(run, right))
    assert column(rows, "read", "score") == pytest.approx([2 / 9, 2 / 19], abs=1e-6)
    assert column(rows, "read", "unscored") == [1, 1]
    assert sum(asked.values()) == 10 + 20
    assert column(rows, "read", "calls") == [0, 0], "the reader's calls are no cost of the memory"
    assert {row["score"] for row in measured(Recency(k=10), [50], 100)} == {""}, "without a reader there is none"
    ended = make_run(CASES, reader=Metered(ScriptedLLM(lambda _: EndOfRun("the cap"))), folder="ended")
    with pytest.raises(EndOfRun):
        measured(Recency(k=10), [50], 100, answered=(ended, right))


@pytest.mark.slow
def test_bytes_of_bm25_grow_in_proportion_and_the_same_in_every_measurement() -> None:
    sizes, cases = [400, 800, 1600, 3200], [case(f"c{number}", 400) for number in range(8)]
    rows = measured(BM25(), sizes, 5, cases)
    (power,) = column(rows, "cumulative_exponent", "object_bytes")
    assert power == pytest.approx(1.0, abs=0.05)
    assert [row["object_bytes_low"] for row in rows if row["what"] == "cumulative_exponent"] == [""], (
        "a total has no interval"
    )
    (power,), (low,), (high,) = (
        column(rows, "one_more_exponent", f"object_bytes{end}") for end in ("", "_low", "_high")
    )
    assert low < power < high
    held = column(rows, "cumulative", "object_bytes")
    assert column(measured(BM25(), sizes, 5, cases), "cumulative", "object_bytes") == held
    gained = column(rows, "one_more", "object_bytes")
    assert gained[-1] == pytest.approx((held[-1] - held[-2]) / 1600)
    assert {row["node_bytes"] for row in rows} == {""}  # BM25 has no nodes


def test_a_question_is_asked_once_its_evidence_is_written_and_a_drawn_one_only_gives_way_to_a_smaller_hash() -> None:
    history, names, units = long_history(CASES, UTTERANCE, 200)
    watch = RecallWatch(history, names, units, (), most=100, k=10)
    assert [probe.question.id for probe in watch.due(11)] == ["a/q0", "a/q5", "a/q10"]
    assert [probe.question.id for probe in watch.due(10)] == ["a/q0", "a/q5"]
    assert {probe.history for probe in watch.due(200)} == {"a", "b"}
    few = RecallWatch(history, names, units, (), most=5, k=10)
    early = {probe.question.id for probe in few.due(100)}
    assert len(early) == 5
    assert {probe.question.id for probe in few.due(200)} & {probe.question.id for probe in watch.due(100)} <= early


def test_evidence_that_the_unit_rule_leaves_out_counts_as_missed() -> None:
    history, names, units = long_history(CASES, UTTERANCE, 100)
    kept = [unit for unit in units if not unit.turn_ids[0].endswith("0")]
    watch = RecallWatch(history, names, kept, (), most=100, k=10)
    lines = list(build(memory := BM25(), kept, [len(kept)], (), watch))
    (holding,) = watch.holdings
    assert memory.held == 90
    assert holding.asked == 20
    assert sum(holding.covered.values) == 10
    assert len([line for line in lines if line.phase == "read"]) == 20


class Failing(BM25):
    """Fails, or ends the run, where a certain thing is asked for."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def read(self, question: Question) -> Recall:
        if question.id == "a/q5":
            raise self.error
        return super().read(question)


def test_a_failed_read_is_counted_and_has_no_score() -> None:
    rows = measured(Failing(SystemExit(0)), [50, 100], 100)
    assert column(rows, "read", "failed") == [1, 1]
    assert column(rows, "read", "questions") == [10, 20]
    assert column(rows, "read", "covered") == [1.0, 1.0]
    with pytest.raises(EndOfRun):
        measured(Failing(EndOfRun("the cap")), [50, 100], 100)


def test_a_size_before_any_evidence_has_no_recall_and_no_exponent_of_it() -> None:
    moved = Case("z", ("ann",), (Session("s", (Turn("t", "ann", "well, hello"), *CASES[0].turns[:9])),), ())
    asked = ((Question("q", "Where is ax5?"), Gold(("5",), ("t5",))),)
    history = Case("z", ("ann",), moved.sessions, asked)
    units = list(make_units(history.sessions, count=len, **UTTERANCE).units)
    watch = RecallWatch(history, ["z"], units, (), most=5, k=10)
    costs = costs_at(list(build(BM25(), units, [2, 10], (), watch)), False, 2)
    rows = list(csv.DictReader(as_csv("m", "d", False, costs, watch.holdings).splitlines()))
    assert [(row["n"], row["what"]) for row in rows if row["n"] == "2"] == [
        ("2", "one_more"),
        ("2", "consolidation"),
        ("2", "cumulative"),
    ]
    assert [row["covered"] for row in rows if row["what"].startswith("read")] == ["1.000000", ""]


def test_columns_are_added_at_the_end_and_only_where_recall_is_measured() -> None:
    history, _, units = long_history(CASES, UTTERANCE, 10)
    costs = costs_at(list(build(BM25(), units, [5, 10])), False, 5)
    plain = as_csv("m", "d", False, costs).splitlines()
    assert plain[0] == ",".join(["memory,dataset,rebuilds,n,held,what", *FIELDS])
    assert len(plain) == 1 + 2 * 3
    watch = RecallWatch(history, ["a"] * len(history.questions), units, (), most=5, k=10)
    costs = costs_at(list(build(BM25(), units, [5, 10], (), watch)), False, 5)
    longer, shorter = (as_csv("m", "d", False, costs, holdings).splitlines() for holdings in (watch.holdings, ()))
    assert [line[: len(start)] for line, start in zip(longer, shorter, strict=False)] == shorter


def test_a_rebuild_is_measured_once_and_has_no_interval() -> None:
    class Rebuilt(BM25):
        OFFLINE = True

    ends = [row["own_cpu_seconds_low"] for row in measured(Rebuilt(), [50, 100]) if row["what"] == "one_more"]
    assert ends == ["", ""]
    ends = [row["own_cpu_seconds_low"] for row in measured(BM25(), [50, 100]) if row["what"] == "one_more"]
    assert all(ends)


def test_what_sizes_share_has_exponents_without_an_interval() -> None:
    rows = measured(BM25(), [50, 75, 100], 20)
    ends = {
        row["what"]: (row["recalled_bytes"] != "", {value for name, value in row.items() if name.endswith("_low")})
        for row in rows
        if row["what"] in ("read_exponent", "cumulative_exponent")
    }
    assert ends == {"read_exponent": (True, {""}), "cumulative_exponent": (False, {""})}


def test_windows_that_share_writes_have_an_exponent_without_an_interval() -> None:
    """The window is of ten writes. Sizes 5 apart gave intervals that cover .74."""
    for sizes, held in (([50, 60, 70], True), ([50, 55, 70], False)):
        (row,) = [row for row in measured(BM25(), sizes, 20) if row["what"] == "one_more_exponent"]
        assert row["own_cpu_seconds"]
        assert (bool(row["own_cpu_seconds_low"]), bool(row["object_bytes_low"])) == (held, True)


def test_equal_measurements_show_no_error_and_recalled_bytes_vary_by_history() -> None:
    history, names, units = long_history(CASES, UTTERANCE, 50)
    watch = RecallWatch(history, names, units, (), most=10, k=10)
    costs = costs_at(list(build(BM25(), units, [50], (), watch)), False, 10)
    values, histories = np.repeat([90.0, 100.0, 100.0, 110.0, 120.0], 20), np.repeat(list("abcde"), 20)
    holding = replace(watch.holdings[0], recalled_bytes=Sample(tuple(values), tuple(histories), shares=False))
    write, _, _, read, *_ = csv.DictReader(as_csv("m", "d", False, costs, [holding]).splitlines())
    assert (write["calls"], write["calls_low"], read["histories"]) == ("0.000000", "", "1")
    half = 2.776445 * (130 / 5) ** 0.5  # t(4), and the variance of the histories' means
    ends = [float(read[f"recalled_bytes_{end}"]) for end in ("low", "high")]
    assert ends == pytest.approx([104 - half, 104 + half], abs=1e-4)


def test_bytes_that_are_all_zero_get_no_interval_of_a_share() -> None:
    """A memory that recalls nothing: Wilson's interval of its bytes would end at a fraction of one byte."""
    rows = measured(Nothing(), [50, 75], 20)
    reads = [row for row in rows if row["what"] == "read"]
    assert [row["recalled_bytes"] for row in reads] == ["0.000000", "0.000000"]
    assert {row[f"recalled_bytes_{end}"] for row in reads for end in ("low", "high")} == {""}
    assert all(float(row["covered_high"]) > 0 for row in reads), "a share of 0 keeps Wilson's"


def test_two_ways_to_choose_the_questions_exclude_each_other() -> None:
    with pytest.raises(RunError, match="set one of them to 0"):
        Schedule((5,), 1, reads=3, questions=3)


class Holder(MemorySystem):
    """Holds what it is given."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def write(self, unit: Unit) -> None:
        raise NotImplementedError

    def read(self, question: Question) -> Recall:
        raise NotImplementedError


def test_bytes_count_every_object_once_with_arrays_behind_views_and_without_services_and_code() -> None:
    text, service, vectors = "x" * 10_000, ["y" * 50_000], np.zeros((100, 10))
    empty = object_bytes(Holder(), ())

    def more(**held: Any) -> int:
        found, nothing = object_bytes(Holder(**held), [service]), empty
        assert found is not None
        assert nothing is not None
        return found - nothing

    assert 9_900 <= more(a=text) < 11_000  # the attributes' dictionary may be stored in another way
    assert more(a=text, b=text, c=[text]) < 11_000
    assert more(a=service) < 1_000
    assert 8_000 <= more(a=vectors[5:50]) < 9_000
    assert 10_000 <= more(a=np.array([text, None], dtype=object)) < 11_000
    assert more(a=np, b=np.zeros, c=Holder, d=more) < 1_000


def test_bytes_of_a_memory_outside_this_process_are_not_known() -> None:
    class Outside(Holder):
        REHEARSED = False

    assert object_bytes(Outside(), ()) is None
    assert node_bytes(Outside()) is None


@pytest.fixture
def nodes() -> Callable[[str], MemorySystem]:
    from memsys.interface import NodeView

    class WithNodes(Holder):
        def nodes(self) -> Any:
            yield NodeView("n1", (), 0, "leaf", self.text, np.zeros(4, dtype=np.float32), ())
            yield NodeView("n2", (), 1, "inner", "ab", None, ())

    return lambda text: WithNodes(text=text)


def test_bytes_of_nodes_are_those_of_text_and_vectors(nodes: Callable[[str], MemorySystem]) -> None:
    assert node_bytes(nodes("é\ud800")) == 2 + 1 + 16 + 2
