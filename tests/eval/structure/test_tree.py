"""Shapes of trees worked by hand, memories' own reports against what is read from their folders, and the triplet test."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import ScriptedLLM
from small_history import history

from eval.files.store import RunError, read_lines
from eval.running.loop import run_all
from eval.structure.tree import (
    Tree,
    ancestors,
    build_calls,
    depths,
    mean_shape,
    read_tree,
    read_trees,
    shape,
    tokens_by_depth,
    top_down,
    without_chains,
)
from eval.structure.triplets import agreement, ask_triplets, sample_triplets
from memsys.interface import with_settings
from memsys.prompts import Prompts
from memsys.systems.memtree import MemTree
from memsys.systems.pruned import Pruned
from memsys.systems.segtree import SegTree
from memsys.tokens import count_tokens


def grown(parents: list[tuple[int, ...]], *, hidden_root: bool = False) -> Tree:
    count = len(parents)
    names = tuple(f"n{number}" for number in range(count))
    vectors = np.eye(count, dtype=np.float32)
    return Tree("case", names, tuple(parents), (0,) * count, ("",) * count, names, ((),) * count, vectors, hidden_root)


def test_a_small_tree_has_the_shape_that_one_counts_by_hand() -> None:
    """Root 0 over 1 and 2; 2 over 3, 4, 5."""
    found = shape(grown([(), (0,), (0,), (2,), (2,), (2,)]), calls=8)
    assert (found.nodes, found.leaves, found.inner, found.shared) == (6, 4, 2, 0)
    assert (found.depth_max, found.depth_mean) == (2, pytest.approx(8 / 6))
    assert (found.leaf_depth_max, found.leaf_depth_mean) == (2, 1.75)
    assert found.leaf_depth_std == pytest.approx(np.std([1, 2, 2, 2]))
    assert found.depth_std == pytest.approx(np.std([0, 1, 1, 2, 2, 2]))
    assert found.branching == 2.5
    assert found.calls_per_leaf == 2.0


def test_a_hidden_root_branches_and_pushes_everything_down_but_is_no_node() -> None:
    found = shape(grown([(), (), (1,), (1,)], hidden_root=True), calls=0)
    assert (found.nodes, found.depth_max, found.depth_mean) == (4, 2, 1.5)
    assert found.branching == 2.0


def test_the_paper_s_tree_of_3164_nodes_has_its_branching_and_ratio() -> None:
    """1,706 leaves and 1,458 branching nodes below a hidden root branch 2.1-fold; depth 13 is a ratio of 6.5 (MemTree Table 5)."""
    rng = np.random.default_rng(0)
    chain = [(), *((number,) for number in range(11))]
    parents: list[tuple[int, ...]] = [*chain, *((int(rng.integers(12)),) for _ in range(1446))]
    parents += [(number,) for number in range(1458)]
    parents += [(int(rng.integers(11)),) for _ in range(248)]
    found = shape(grown(parents, hidden_root=True), calls=0)
    assert (found.nodes, found.leaves, found.inner) == (3164, 1706, 1458)
    assert round(found.branching, 2) == round(3164 / 1459, 2)
    assert found.height_to_width == found.depth_max / 2


def test_a_node_with_several_parents_lies_below_the_deepest_and_counts_for_each() -> None:
    """Root 0; 1 and 2 below it; 3 below 2; 4 below both 1 and 3."""
    tree = grown([(), (0,), (0,), (2,), (1, 3)])
    assert depths(tree) == [0, 1, 1, 2, 3]
    assert ancestors(tree)[4] == {0, 1, 2, 3}
    found = shape(tree, calls=0)
    assert (found.leaves, found.shared, found.branching) == (1, 1, 5 / 4)


def test_chains_collapse_into_unequal_depths() -> None:
    """All leaves at depth 3: 0 over 1 and 4; 1 over 2 over 3; 4 over 5 over 6 and 7."""
    tree = grown([(), (0,), (1,), (2,), (0,), (4,), (5,), (5,)])
    assert shape(tree, 0).leaf_depth_std == 0
    short = without_chains(tree)
    assert short.ids == ("n0", "n3", "n5", "n6", "n7")
    assert depths(short) == [0, 1, 1, 2, 2]
    assert shape(short, 0).leaf_depth_std > 0
    assert short.vectors.tolist() == tree.vectors[[0, 3, 5, 6, 7]].tolist()


def test_a_chain_above_everything_collapses_too() -> None:
    short = without_chains(grown([(), (0,), (1,), (1,)]))
    assert (short.ids, depths(short)) == (("n1", "n2", "n3"), [0, 1, 1])


def test_means_are_taken_over_trees_not_over_nodes() -> None:
    one, other = shape(grown([(), (0,), (0,)]), 2), shape(grown([(), *[(0,)] * 10]), 10)
    assert mean_shape([one, other]).branching == 6.0
    assert mean_shape([one, other]).nodes == 7.0
    with pytest.raises(ValueError, match="no tree"):
        mean_shape([])


def test_tokens_are_counted_by_depth() -> None:
    tree = grown([(), (0,), (0,)])
    found = tokens_by_depth([tree, tree])
    assert [(depth, len(counts)) for depth, counts in found.items()] == [(0, 2), (1, 4)]
    assert found[0] == [count_tokens("n0")] * 2


@pytest.mark.parametrize("parents", [[(), (2,), (1,)], [(), (), (0, 3, 3), (4,), (3,)]])
def test_a_circle_is_refused_with_a_node_of_it(parents: list[tuple[int, ...]]) -> None:
    with pytest.raises(RunError, match=r"their own ancestors, among n[1-4]$") as refused:
        top_down(grown(parents))
    node = int(str(refused.value)[-1])
    assert node in {1, 2} if len(parents) == 3 else node in {3, 4}, "the others are above or below the circle"


MEMORIES: dict[str, Any] = {
    "memtree": with_settings(MemTree, {"base": 0.1}),
    "segtree": with_settings(SegTree, {"compatibility": "cosine", "tau_c": 0.6}),
}


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_folder_tells_what_the_memory_reports_of_itself(make_run: Any, memory: str) -> None:
    run = make_run([history(), history("case-2")], build=MEMORIES[memory])
    run_all([run])
    trees = read_trees(run.folder)
    assert [tree.case_id for tree in trees] == ["case-1", "case-2"]
    folder = run.folder / "cases" / "case-1"
    said = read_lines(folder / "case.json")[0]["memory"]
    found = shape(trees[0], build_calls(folder))
    assert found.inner > 1
    assert found.leaves == said["leaves"]
    assert found.nodes == said["nodes"]
    assert found.branching == pytest.approx(said["branching"], abs=1e-3)
    if memory == "memtree":
        assert (found.depth_max, found.depth_mean) == (said["max_depth"], pytest.approx(said["mean_depth"]))
        # Every aggregation is one call, and each leaf costs its depth less one when it is written.
        assert found.calls_per_leaf * found.leaves == sum(
            sum(line["calls"].values()) for line in read_lines(folder / "effort.jsonl") if line["phase"] == "write"
        )
    else:
        assert found.leaf_depth_max == said["max_depth"]
        short = shape(without_chains(trees[0]), 0)
        assert short.nodes == said["without_chains"]["nodes"]
        assert short.leaf_depth_mean == pytest.approx(said["without_chains"]["mean_depth"], abs=1e-3)
        assert short.leaf_depth_std == pytest.approx(said["without_chains"]["depth_std"], abs=1e-3)


def test_a_memtree_with_one_topmost_node_keeps_the_depths_of_its_hidden_root(make_run: Any) -> None:
    """A threshold that everything reaches leaves one node at the top; the root above it still counts."""
    always = with_settings(MemTree, {"base": -1.0, "rate": 0.0})
    for name, build in {"plain": always, "pruned": partial(Pruned, inner=always)}.items():
        run = make_run([history()], build=build, folder=name)
        run_all([run])
        (found,) = read_trees(run.folder)
        said = read_lines(run.folder / "cases" / "case-1" / "case.json")[0]
        assert sum(not above for above in found.parents) == 1
        assert said["hidden_root"] is found.hidden_root is True
        measured = shape(found, calls=0)
        assert (measured.depth_max, measured.depth_mean) == (
            said["memory"]["max_depth"],
            pytest.approx(said["memory"]["mean_depth"]),
        )


def test_a_tree_whose_root_is_dumped_says_so(make_run: Any) -> None:
    run = make_run([history()], build=MEMORIES["segtree"])
    run_all([run])
    assert read_lines(run.folder / "cases" / "case-1" / "case.json")[0]["hidden_root"] is False
    assert not read_trees(run.folder)[0].hidden_root


def test_calls_of_reading_and_answering_are_not_the_build_s(tmp_path: Path) -> None:
    lines = [
        {"phase": phase, "calls": {"a": count, "b": 1}}
        for phase, count in (("embed", 0), ("write", 2), ("consolidate", 3), ("read", 50), ("answer", 70))
    ]
    (tmp_path / "effort.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert build_calls(tmp_path) == 8


def test_a_memory_without_nodes_has_no_tree(make_run: Any) -> None:
    run = make_run([history()])
    run_all([run])
    assert read_trees(run.folder) == []


def test_a_damaged_dump_is_refused_with_its_folder(make_run: Any) -> None:
    run = make_run([history()], build=MEMORIES["memtree"])
    run_all([run])
    folder = run.folder / "cases" / "case-1"
    path = folder / "nodes.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(RunError, match="vectors; run the case again"):
        read_tree(folder, vectors=True)
    lines[0] = json.dumps({**json.loads(lines[0]), "parents": ["elsewhere"]}) + "\n"
    path.write_text("".join(lines))
    with pytest.raises(RunError, match="no nodes: elsewhere"):
        read_tree(folder)


# --- the triplet test ---------------------------------------------------------------------------------------------------

FAMILY = grown([(), (0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,), (4,), (4,)])
"""0 over 1 and 2; 1 over 3, 4; 2 over 5, 6; 3 over 7, 8; 4 over 9, 10."""


def test_triplets_are_what_the_paper_asks_for() -> None:
    triplets = sample_triplets([FAMILY, FAMILY], 12, np.random.default_rng(1))
    above, deep = ancestors(FAMILY), depths(FAMILY)
    assert {one.tier for one in triplets} == {"easy", "hard"}
    assert len({(one.tree, one.source, one.near, one.far, one.tier) for one in triplets}) == len(triplets)
    for one in triplets:
        assert one.source in above[one.near]
        assert one.source not in above[one.far]
        assert deep[one.near] == deep[one.far] == one.depth
        assert one.source != 0, "nothing lies beside the root"
        assert ((above[one.near] & above[one.far]) == {0}) == (one.tier == "easy")
    assert {one.near_first for one in triplets} == {True, False}
    assert {one.tree for one in triplets} == {0, 1}


def test_the_same_seed_draws_the_same_triplets() -> None:
    first, again, other = (sample_triplets([FAMILY], 5, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.slow
def test_no_more_triplets_are_drawn_than_there_are() -> None:
    """Sources 3 and 4 have two children each beside the other's two: eight hard ones, and no more."""
    triplets = sample_triplets([FAMILY], 100, np.random.default_rng(0))
    assert sum(one.tier == "hard" for one in triplets) == 8
    assert sample_triplets([grown([(), (0,), (0,)])], 3, np.random.default_rng(0)) == []


def test_below_a_hidden_root_other_branches_are_easy() -> None:
    tree = grown([(), (), (0,), (1,)], hidden_root=True)
    triplets = sample_triplets([tree], 9, np.random.default_rng(0))
    assert {(one.source, one.near, one.far, one.tier) for one in triplets} == {(0, 2, 3, "easy"), (1, 3, 2, "easy")}


def test_agreement_follows_the_position_of_the_descendant_and_counts_no_reply_apart() -> None:
    triplets = sample_triplets([FAMILY], 6, np.random.default_rng(3))
    prompts = Prompts()

    def knows(request: Any) -> str:
        return next(
            option.label
            for option in request.fields["options"]
            if FAMILY.ids.index(request.fields["query"]) in ancestors(FAMILY)[FAMILY.ids.index(option.text)]
        )

    llm = ScriptedLLM({"judge.triplet": knows})
    said = ask_triplets(llm, prompts, [FAMILY], triplets)
    assert said == [True] * len(triplets)
    assert llm.purposes == ["judge.triplet"] * len(triplets)
    always_a = ask_triplets(ScriptedLLM("A"), prompts, [FAMILY], triplets)
    assert always_a == [one.near_first for one in triplets]
    garbage = ask_triplets(ScriptedLLM("both, I think"), prompts, [FAMILY], triplets)
    assert garbage == [None] * len(triplets)
    found = agreement(triplets, [True, False, None, *[True] * (len(triplets) - 3)])
    easy = sum(one.tier == "easy" for one in triplets)
    assert (found["easy", "all"].asked, found["easy", "all"].answered) == (easy, easy - 1)
    assert found["easy", "all"].share == pytest.approx((easy - 2) / (easy - 1))
    assert found["hard", "depth 6+"].share is None
