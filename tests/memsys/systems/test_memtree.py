from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scripted import Script, ScriptedLLM

from data_loaders.schema import Question, Turn, Unit
from memsys.interface import tuned, with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.memtree import MemTree
from memsys.tokens import count_tokens
from memsys.vectors import best, normalised

CONF = Path(__file__).parents[3] / "conf" / "memory"
WORKED = {"A": (1, 0, 0), "B": (0.8, 0.6, 0), "C": (0, 0, 1), "D": (0.9, 0.1, 0)}


class MeanEmbedder:
    """The vector of "A+B" is the normalised mean of those of A and B: a summary that is the mean of its leaves."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = {name: normalised(np.asarray(vector, dtype=np.float32)) for name, vector in table.items()}

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        return np.stack([normalised(sum(self._table[part] for part in text.split("+"))) for text in texts])


def joined(request: Request) -> str:
    return f"{request.fields['existing']}+{request.fields['new']}"


def unit(text: str, number: int = 0, day: int | None = None) -> Unit:
    time = None if day is None else datetime(2023, 5, day)
    return Unit(f"u{number}", (Turn(f"t{number}", "", text),), "s1", time, f"{day} May 2023" if day else "")


def question(text: str) -> Question:
    return Question("q", text)


def tree(table: Mapping[str, Any], script: Script = joined, **settings: Any) -> tuple[MemTree, ScriptedLLM]:
    llm = ScriptedLLM({"memtree.aggregate": script})
    return with_settings(MemTree, settings)(llm=llm, embedder=MeanEmbedder(table), prompts=Prompts()), llm


def random_table(count: int, seed: int = 0, dimension: int = 4) -> dict[str, np.ndarray]:
    vectors = np.abs(np.random.default_rng(seed).normal(size=(count, dimension)))
    return {f"x{index}": vector for index, vector in enumerate(vectors)}


def shape(memory: MemTree) -> list[tuple[Any, ...]]:
    return [(node.id, node.parents, node.level, node.text, node.sources) for node in memory.nodes()]


def assert_identities(memory: MemTree, written: list[Unit], calls: int) -> None:
    nodes = {node.id: node for node in memory.nodes()}
    leaves = {name: node for name, node in nodes.items() if node.kind == "leaf"}
    inner = {name: node for name, node in nodes.items() if node.kind == "summary"}
    children: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        for parent in node.parents:
            children[parent].append(name)

    def below(name: str) -> set[str]:
        return {name} if name in leaves else set().union(*(below(child) for child in children[name]))

    def depth(name: str) -> int:
        return 1 + sum(depth(parent) for parent in nodes[name].parents)

    report = memory.report()
    assert sorted((node.id, node.text) for node in leaves.values()) == sorted((one.id, one.text) for one in written)
    assert report["inner"] == len(inner)
    assert report["nodes"] == memory.held == len(leaves) + len(inner)
    assert report["branching"] == pytest.approx(len(nodes) / (len(inner) + 1))
    assert all(len(children[name]) >= 2 for name in inner)
    assert not any(children[name] for name in leaves)
    assert report["max_depth"] == max(depth(name) for name in nodes)
    assert report["mean_depth"] == pytest.approx(np.mean([depth(name) for name in nodes]))
    for name, node in nodes.items():
        assert set(node.sources) == {turn for leaf in below(name) for turn in leaves[leaf].sources}
        assert node.level == (0 if name in leaves else 1 + max(nodes[child].level for child in children[name]))
    newest = written[-1].id
    assert calls == depth(newest) - 1


def test_the_worked_example_gives_the_hand_computed_tree() -> None:
    memory, llm = tree(WORKED)
    calls = []
    for number, name in enumerate("ABCD"):
        before = len(llm.requests)
        memory.write(unit(name, number))
        calls.append(len(llm.requests) - before)
    assert calls == [0, 1, 0, 2]
    report = memory.report()
    assert (report["nodes"], report["leaves"], report["inner"]) == (6, 4, 2)
    assert (report["max_depth"], report["mean_depth"], report["branching"]) == (3, 2.0, 2.0)
    assert shape(memory) == [
        ("node-0", (), 2, "A+B+D", ("t0", "t1", "t3")),
        ("node-1", ("node-0",), 1, "A+D", ("t0", "t3")),
        ("u1", ("node-0",), 0, "B", ("t1",)),
        ("u2", (), 0, "C", ("t2",)),
        ("u0", ("node-1",), 0, "A", ("t0",)),
        ("u3", ("node-1",), 0, "D", ("t3",)),
    ]
    assert [request.fields["n"] for request in llm.requests] == [1, 2, 1]


def test_an_expanded_leaf_keeps_its_number_and_copy_and_newcomer_get_the_next_two() -> None:
    memory, _ = tree(WORKED)
    for number, name in enumerate("AB"):
        memory.write(unit(name, number))
    assert [(node.id, node.parents) for node in memory.nodes()] == [
        ("node-0", ()),
        ("u0", ("node-0",)),
        ("u1", ("node-0",)),
    ]
    vectors = [node.vector for node in memory.nodes()]
    np.testing.assert_allclose(vectors[0], [0.9487, 0.3162, 0], atol=1e-4)
    np.testing.assert_allclose(vectors[1], [1, 0, 0], atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"base": 0.45, "rate": 1.0, "max_depth": 8},
        {"n_mode": "leaves", "base": 0.9},
        {"threshold_law": "exp"},
        {"threshold_law": "multiplicative", "base": 0.5, "rate": 0.1},
    ],
)
def test_the_identities_of_the_tree_hold_after_every_insertion(settings: dict[str, Any]) -> None:
    table = random_table(40)
    memory, llm = tree(table, **settings)
    written: list[Unit] = []
    for number, name in enumerate(table):
        before = len(llm.requests)
        written.append(unit(name, number))
        memory.write(written[-1])
        assert_identities(memory, written, len(llm.requests) - before)
    assert memory.report()["inner"] > 3


@pytest.mark.parametrize("reply", ["", " \n\t"])
def test_an_empty_summary_keeps_the_old_text_and_every_identity(reply: str) -> None:
    table = random_table(25)
    memory, llm = tree(table, reply)
    written: list[Unit] = []
    for number, name in enumerate(table):
        before = len(llm.requests)
        written.append(unit(name, number))
        with meter.metering() as ledger:
            memory.write(written[-1])
        asked = len(llm.requests) - before
        assert asked % 3 == 0  # each aggregation is tried three times
        assert ledger.notes["memtree.kept_old_summary"] == asked // 3
        assert ledger.parse_failures["memtree.aggregate"] == asked
        assert_identities(memory, written, asked // 3)
    assert memory.report()["failed_aggregations"] == len(llm.requests) // 3
    assert memory.report()["stale"] == memory.report()["inner"] > 0
    assert all("+" not in node.text for node in memory.nodes())


def test_a_second_attempt_is_enough() -> None:
    memory, llm = tree(WORKED, ["", "A+B"])
    memory.write(unit("A", 0))
    memory.write(unit("B", 1))
    assert [request.retry for request in llm.requests] == [0, 1]
    assert next(memory.nodes()).text == "A+B"
    assert memory.report()["stale"] == 0


@pytest.mark.parametrize("reply", ["Sure!", '```json {"a": [', "[]", "{}"])
def test_any_other_reply_is_the_summary_because_the_step_asks_for_plain_text(reply: str) -> None:
    memory, _ = tree({**WORKED, reply: (1, 1, 1)}, reply)
    memory.write(unit("A", 0))
    memory.write(unit("B", 1))
    assert next(memory.nodes()).text == reply


def test_an_insertion_whose_call_fails_leaves_the_tree_as_it_was() -> None:
    memory, _ = tree(WORKED, ["A+B", "A+B+D", ModelError("the endpoint is gone")])
    for number, name in enumerate("ABC"):
        memory.write(unit(name, number))
    before = shape(memory)
    with pytest.raises(ModelError):
        memory.write(unit("D", 3))
    assert shape(memory) == before
    assert memory.held == 4


def test_every_parent_gets_the_raw_new_text_from_the_top_down() -> None:
    memory, llm = tree(WORKED)
    for number, name in enumerate("ABCD"):
        memory.write(unit(name, number))
    assert llm.purposes == ["memtree.aggregate"] * 3
    assert [(request.fields["existing"], request.fields["new"]) for request in llm.requests] == [
        ("A", "B"),
        ("A+B", "D"),
        ("A", "D"),
    ]
    sent = llm.requests[1].messages[1][1]
    assert "<existing>\nA+B\n</existing>" in sent
    assert "<new>\nD\n</new>" in sent
    assert "stands for 2 earlier" in sent
    assert llm.requests[0].max_tokens == 512


def test_the_count_of_earlier_entries_can_be_leaves() -> None:
    table = {"A": (1, 0), "B": (0.9, 0.1), "C": (0.95, 0.05), "D": (1, 0.02)}
    counts = {}
    for n_mode in ("children", "leaves"):
        memory, llm = tree(table, n_mode=n_mode)
        for number, name in enumerate(table):
            memory.write(unit(name, number))
        counts[n_mode] = [request.fields["n"] for request in llm.requests if request.fields["existing"] == "A+B+C"]
    assert counts == {"children": [2], "leaves": [3]}


def test_the_same_text_over_and_over_deepens_the_path_by_one_each_time() -> None:
    memory, llm = tree({"A": (1, 0)}, "A")
    for number in range(8):
        before = len(llm.requests)
        memory.write(unit("A", number))
        assert len(llm.requests) - before == number
        assert memory.report()["max_depth"] == number + 1


def test_a_threshold_above_one_makes_a_star_without_calls() -> None:
    table = random_table(20)
    memory, llm = tree(table, base=1.01)
    for number, name in enumerate(table):
        memory.write(unit(name, number))
    assert memory.report()["max_depth"] == 1
    assert memory.held == 20
    assert not llm.requests


def test_a_threshold_of_zero_expands_a_leaf_at_every_insertion_after_the_first() -> None:
    table = random_table(20)
    memory, _ = tree(table, base=0.0)
    for number, name in enumerate(table):
        memory.write(unit(name, number))
    assert memory.report()["inner"] == 19


def test_a_similarity_equal_to_the_threshold_is_enough() -> None:
    memory, _ = tree({"A": (1, 0), "B": (0.5, math.sqrt(0.75))}, base=0.5)
    memory.write(unit("A", 0))
    memory.write(unit("B", 1))
    assert memory.report()["inner"] == 1


def test_of_equally_similar_children_the_older_is_entered() -> None:
    memory, _ = tree({"A": (1, 0, 0), "B": (0, 1, 0), "C": (1, 1, 0)})
    for number, name in enumerate("ABC"):
        memory.write(unit(name, number))
    assert {node.id: node.parents for node in memory.nodes()}["u2"] == ("node-0",)
    assert next(memory.nodes()).text == "A+C"


@pytest.mark.parametrize(
    ("deepest", "table"),
    [
        (2, [0.4, 0.5136, 0.6595]),
        (3, [0.4, 0.4725, 0.5582, 0.6595]),
        (8, [0.4, 0.4258, 0.4533, 0.4825, 0.5136, 0.5467, 0.5820, 0.6195, 0.6595]),
    ],
)
def test_the_normalised_threshold_rises_from_base_to_base_times_exp_rate(deepest: int, table: list[float]) -> None:
    memory, _ = tree(WORKED, max_depth=deepest)
    thresholds = [memory.threshold(depth) for depth in range(deepest + 1)]
    assert thresholds == pytest.approx(table, abs=1e-4)
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] == pytest.approx(0.4 * math.exp(0.5))


def test_the_dynamic_depth_is_that_of_the_tree_before_the_insertion_and_at_least_one() -> None:
    memory, _ = tree(WORKED)
    assert memory.threshold(1) == pytest.approx(0.6595, abs=1e-4)
    for number, name in enumerate("ABCD"):
        memory.write(unit(name, number))
        deepest = memory.report()["max_depth"]
        assert memory.threshold(1) == pytest.approx(0.4 * math.exp(0.5 / deepest))


def test_the_other_threshold_laws() -> None:
    exponential, _ = tree(WORKED, threshold_law="exp")
    assert [exponential.threshold(depth) for depth in range(3)] == pytest.approx([0.4, 0.6595, 1.0873], abs=1e-4)
    multiplicative, _ = tree(WORKED, threshold_law="multiplicative", base=0.5, rate=0.1)
    assert [multiplicative.threshold(depth) for depth in range(3)] == pytest.approx([0.5, 0.55, 0.605])


def test_the_unnormalised_law_keeps_the_tree_shallow() -> None:
    table = random_table(60, dimension=3)
    memory, _ = tree(table, threshold_law="exp")
    for number, name in enumerate(table):
        memory.write(unit(name, number))
    assert memory.report()["max_depth"] == 3


def test_algorithm_one_as_printed_makes_a_chain_of_fifteen_under_an_exact_duplicate() -> None:
    calls = {}
    for rule in ("text", "algorithm"):
        memory, llm = tree({"A": (1, 0)}, "A", expand_rule=rule, max_depth=8)
        memory.write(unit("A", 0))
        memory.write(unit("A", 1))
        calls[rule] = len(llm.requests)
    assert calls == {"text": 1, "algorithm": 15}
    assert memory.report() == {
        "nodes": 17, "leaves": 2, "inner": 15, "max_depth": 16, "mean_depth": pytest.approx(sum((*range(17), 16)) / 17),
        "branching": 17 / 16, "stale": 0, "failed_aggregations": 0,
    }  # fmt: skip
    assert [node.parents for node in memory.nodes()][-2:] == [("node-14",), ("node-14",)]
    assert all(set(node.sources) == {"t0", "t1"} for node in memory.nodes() if node.kind == "summary")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"expand_rule": "algorithm", "rate": 0.0}, "base and rate above 0"),
        ({"expand_rule": "never"}, "expand_rule must be one of text, algorithm"),
        ({"retrieval": "collapse"}, "retrieval must be one of collapsed, traversal"),
        ({"max_depth": 0}, "max_depth must be at least 1, found 0"),
        ({"width": 0}, "width must be at least 1, found 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tree(WORKED, **settings)


def test_the_final_parent_of_an_attached_unit_can_be_left_as_it_is() -> None:
    table = {"A": (1, 0), "B": (0.95, 0.05), "C": (0.7, 0.714)}
    calls, texts = {}, {}
    for aggregated in (True, False):
        memory, llm = tree(table, base=0.65, aggregate_final_parent=aggregated)
        for number, name in enumerate(table):
            memory.write(unit(name, number))
        calls[aggregated] = len(llm.requests)
        texts[aggregated] = next(memory.nodes()).text
    assert calls == {True: 2, False: 1}
    assert texts == {True: "A+B+C", False: "A+B"}


def test_a_collapsed_recall_is_the_brute_force_top_k_over_leaves_and_summaries() -> None:
    table = random_table(50)
    memory, _ = tree(table, k=7, max_tokens=None)
    for number, name in enumerate(table):
        memory.write(unit(name, number))
    query = MeanEmbedder(table).embed(["x3+x4"])[0]
    nodes = list(memory.nodes())
    cosines = np.stack([node.vector for node in nodes if node.vector is not None]) @ query
    items = memory.read(question("x3+x4")).items
    assert [item.id for item in items] == [nodes[index].id for index in best(cosines, 7)]
    assert [item.score for item in items] == pytest.approx(sorted(cosines, reverse=True)[:7])
    assert {item.kind for item in items} == {"leaf", "summary"}


def test_nodes_below_the_retrieval_threshold_are_not_recalled() -> None:
    memory, _ = tree(WORKED)
    for number, name in enumerate("ABCD"):
        memory.write(unit(name, number))
    assert len(memory.read(question("A")).items) == 6
    strict = tuned(memory, {"theta_retrieve": 0.9})
    assert {item.id for item in strict.read(question("A")).items} == {"u0", "u3", "node-0", "node-1"}
    strict = tuned(strict, {"theta_retrieve": 1.1})
    assert strict.read(question("A")).items == ()


def test_a_wide_traversal_visits_every_node_level_by_level() -> None:
    table = random_table(40)
    memory, _ = tree(table, retrieval="traversal", k=None, width=1000, max_tokens=None)
    for number, name in enumerate(table):
        memory.write(unit(name, number))
    items = memory.read(question("x0")).items
    parents = {node.id: node.parents for node in memory.nodes()}

    def depth(name: str) -> int:
        return 1 + sum(depth(parent) for parent in parents[name])

    assert sorted(item.id for item in items) == sorted(parents)
    assert [depth(item.id) for item in items] == sorted(depth(item.id) for item in items)


def test_a_narrow_traversal_keeps_the_best_of_each_level_and_their_children_only() -> None:
    memory, _ = tree(WORKED, retrieval="traversal", k=None, width=1)
    for number, name in enumerate("ABCD"):
        memory.write(unit(name, number))
    assert [item.id for item in memory.read(question("D")).items] == ["node-0", "node-1", "u3"]
    assert [item.id for item in memory.read(question("C")).items] == ["u2"]
    capped = tuned(memory, {"k": 2})
    assert [item.id for item in capped.read(question("D")).items] == ["node-1", "u3"]


def test_the_first_item_that_exceeds_the_budget_ends_the_recall_and_a_first_one_is_cut() -> None:
    texts = {"one two three": (1, 0), "four five six seven eight nine": (0.9, 0.4), "ten": (0.7, 0.7), "q": (1, 0)}
    memory, _ = tree(texts, base=1.01, max_tokens=6)
    for number, text in enumerate(list(texts)[:3]):
        memory.write(unit(text, number))
    assert [item.text for item in memory.read(question("q")).items] == ["one two three"]
    memory = tuned(memory, {"max_tokens": 2})
    (item,) = memory.read(question("q")).items
    assert item.text == "one two"
    memory = tuned(memory, {"max_tokens": None})
    assert len(memory.read(question("q")).items) == 3


def test_a_summary_shows_the_days_it_spans_and_stands_for_all_its_turns() -> None:
    memory, _ = tree(WORKED)
    for number, (name, day) in enumerate([("A", 7), ("B", 9), ("D", 3)]):
        memory.write(unit(name, number, day))
    items = {item.id: item for item in memory.read(question("A")).items}
    assert items["node-0"].text == "[3 May 2023 – 9 May 2023] A+B+D"
    assert items["node-0"].sources == ("t0", "t1", "t2")
    assert items["node-0"].level == 2
    assert items["u0"].text == "[7 May 2023] A"
    top = next(memory.nodes())
    assert (top.start, top.end) == (datetime(2023, 5, 3), datetime(2023, 5, 9))


def test_without_dates_a_recalled_node_is_its_text_alone() -> None:
    """MemTree Tables A.5-A.9 print summaries without a date, and leaves with no more than the date in their own text."""
    recalls = {}
    for dates in (True, False):
        memory, _ = tree(WORKED, dates=dates)
        for number, name in enumerate("ABD"):
            memory.write(unit(name, number, day=number + 1))
        recalls[dates] = {item.id: item for item in memory.read(question("A")).items}
    assert recalls[True].keys() == recalls[False].keys()
    assert all(item.text.startswith("[") for item in recalls[True].values())
    for key, item in recalls[False].items():
        dated = recalls[True][key]
        assert dated.text.endswith(f"] {item.text}")
        assert (item.score, item.sources, item.kind, item.level) == (
            dated.score,
            dated.sources,
            dated.kind,
            dated.level,
        )


def test_summaries_that_reach_the_length_limit_are_counted() -> None:
    long = "word " * 600
    assert count_tokens(long) > 512
    memory, _ = tree({**WORKED, long.strip(): (1, 1, 0)}, long)
    with meter.metering() as ledger:
        memory.write(unit("A", 0))
        memory.write(unit("B", 1))
    assert ledger.notes == {"memtree.summary_at_limit": 1}


def test_reading_leaves_the_memory_as_it_was_and_calls_no_model() -> None:
    memory, llm = tree(WORKED)
    for number, name in enumerate("ABCD"):
        memory.write(unit(name, number))
    before, asked = shape(memory), len(llm.requests)
    assert memory.read(question("A")) == memory.read(question("A"))
    memory.consolidate()
    assert shape(memory) == before
    assert len(llm.requests) == asked


def test_the_recall_differs_from_that_of_dense_retrieval() -> None:
    memory, _ = tree(WORKED, k=3)
    dense = Dense(MeanEmbedder(WORKED), k=3)
    for number, name in enumerate("ABCD"):
        memory.write(unit(name, number))
        dense.write(unit(name, number))
    ours = [item.id for item in memory.read(question("D")).items]
    assert ours != [item.id for item in dense.read(question("D")).items]
    assert "node-1" in ours


def test_the_variant_of_the_segment_tree_paper_has_its_settings() -> None:
    build = yaml.safe_load((CONF / "memtree_segt.yaml").read_text())["build"]
    assert (build["base"], build["rate"], build["max_depth"], build["theta_retrieve"]) == (0.45, 1.0, 8, 0.1)
    assert (build["k"], build["retrieval"], build["threshold_law"]) == (10, "collapsed", "normalised")
