"""The non-temporal control tree: clusters by mean vector, annotated and read as SegTreeMem is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scripted import ScriptedLLM, TableEmbedder

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import parameters, tuned, with_settings
from memsys.llm.meter import metering
from memsys.llm.protocol import Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.segtree import SegTree
from memsys.systems.segtree.similarity_tree import SimilarityTree
from memsys.tokens import count_tokens


def unit(number: int, text: str, day: int = 7) -> Unit:
    return Unit(f"u{number}", (Turn(f"t{number}", "Ann", text),), "s1", datetime(2023, 5, day), f"{day} May 2023")


def note(request: Request) -> str:
    return "(" + " | ".join(option.text for option in request.fields["texts"]) + ")"


def memory(notes: Any = note, **settings: Any) -> SimilarityTree:
    llm = ScriptedLLM({"segtree.annotate": notes})
    defaults: dict[str, Any] = {"llm": llm, "embedder": HashingEmbedder(64), "prompts": Prompts()}
    return with_settings(SimilarityTree, defaults | settings)()


def placed(vectors: Sequence[Sequence[float]], consolidating: bool = False, **settings: Any) -> SimilarityTree:
    """Units `x1`, `x2` … with the given vectors; every summary has a vector of its own."""
    table = {f"Ann: x{number}": vector for number, vector in enumerate(vectors, 1)}
    built = memory(embedder=TableEmbedder(table, HashingEmbedder(len(vectors[0]))), **settings)
    for number in range(1, len(vectors) + 1):
        built.write(unit(number, f"x{number}"))
        if consolidating:
            built.consolidate()
    return built


def clusters(built: SimilarityTree, level: int = 1) -> list[tuple[str, ...]]:
    return [view.sources for view in built.nodes() if view.level == level]


def calls(built: SimilarityTree) -> int:
    llm: Any = built.llm
    assert set(llm.purposes) <= {"segtree.annotate"}
    return len(llm.requests)


WORKED = [(1, 0), (0, 1), (0.8, 0.6), (0.6, 0.8)]


def test_units_join_the_cluster_whose_mean_is_nearest() -> None:
    # Cosines of the fourth unit: .78 / .9487 = .8222 with the mean (.9, .3) of {1, 3}, .8 with {2}.
    built = placed(WORKED)
    assert clusters(built) == [("t1", "t3", "t4"), ("t2",)]
    assert clusters(built, level=2) == [("t1", "t2", "t3", "t4")]


def test_the_mean_is_over_the_units_as_they_are_not_over_pairs() -> None:
    # After (1, 0), (1, 0), (.6, .8) the mean is (.8667, .2667); a running pairwise mean would be (.8, .4).
    vectors = [(1, 0), (1, 0), (0.6, 0.8), (0.1, 0.995)]
    near_mean, near_pairs = 0.386, 0.535
    assert clusters(placed(vectors, tau_nt=(near_mean + near_pairs) / 2)) == [("t1", "t2", "t3"), ("t4",)]
    assert clusters(placed(vectors, tau_nt=near_mean - 0.01)) == [("t1", "t2", "t3", "t4")]


def test_the_threshold_is_reached_by_equality() -> None:
    assert clusters(placed([(1, 0), (0.5, 0.75**0.5)], tau_nt=0.5)) == [("t1", "t2")]
    assert clusters(placed([(1, 0), (0.49, 0.8717)], tau_nt=0.5)) == [("t1",), ("t2",)]


def test_ties_go_to_the_older_cluster() -> None:
    assert clusters(placed([(1, 0, 0), (0, 1, 0), (0.7, 0.7, 0)])) == [("t1", "t3"), ("t2",)]


def test_order_may_change_the_clusters_but_never_the_leaves() -> None:
    one, other = placed(WORKED), placed(WORKED[::-1])
    assert clusters(one) == [("t1", "t3", "t4"), ("t2",)]
    assert clusters(other) == [("t1", "t2", "t3", "t4")]
    for built in (one, other):
        assert [view.id for view in built.nodes() if view.level == 0] == ["u1", "u2", "u3", "u4"]


def test_clusters_need_not_be_contiguous_as_a_segment_tree_s_nodes_are() -> None:
    first, second = clusters(placed(WORKED))
    assert first[0] < second[0] < first[-1]


@pytest.mark.parametrize(("tau", "count"), [(-1.0, 1), (1.01, 40)])
def test_extreme_thresholds_give_one_cluster_or_one_for_each_unit(tau: float, count: int) -> None:
    vectors = np.random.default_rng(1).normal(size=(40, 8)).tolist()
    vectors[1] = [-value for value in vectors[0]]
    built = placed(vectors, tau_nt=tau)
    assert len(clusters(built)) == built.report()["clusters"] == count
    assert built.held == 40 + count + 1


def test_the_first_unit_has_a_cluster_and_a_root_without_any_call() -> None:
    built = placed(WORKED[:1])
    assert [(view.id, view.level, view.kind, view.text) for view in built.nodes()] == [
        ("u1", 0, "leaf", "Ann: x1"), ("node-1", 1, "chain", "Ann: x1"), ("node-2", 2, "chain", "Ann: x1"),
    ]  # fmt: skip
    assert calls(built) == 0


@pytest.mark.parametrize(
    ("annotate", "counts"), [("attach_only", [0, 0, 1, 1]), ("full", [0, 1, 2, 2]), ("lazy", [0] * 4)]
)
def test_calls_per_insertion_are_one_for_the_cluster_and_one_for_each_ancestor_in_full(
    annotate: str, counts: list[int]
) -> None:
    spent = [calls(placed(WORKED[:number], annotate=annotate)) for number in range(1, 5)]
    assert np.diff([0, *spent]).tolist() == counts


def test_all_ways_of_annotating_end_in_the_same_tree_once_consolidated() -> None:
    seen = []
    for annotate in ("full", "attach_only", "lazy"):
        built = placed(WORKED, annotate=annotate)
        built.consolidate()
        seen.append([(view.id, view.text, view.parents) for view in built.nodes()])
    assert seen[0] == seen[1] == seen[2]
    assert [text for _, text, parents in seen[0] if not parents] == ["((Ann: x1 | Ann: x3 | Ann: x4) | Ann: x2)"]


def test_consolidating_is_provisional() -> None:
    plain, early = placed(WORKED), placed(WORKED, consolidating=True)
    plain.consolidate()
    question = Question("q", "x3?")
    assert early.read(question) == plain.read(question)
    before = calls(early)
    early.consolidate()
    assert calls(early) == before


def test_an_online_hierarchy_files_clusters_by_the_same_rule() -> None:
    # .8 is 36.9 degrees. The first three units share a cluster with its mean at 25 degrees; the fourth is too far from that, but not
    # from the first unit, with which the second level compares it; the fifth is far from everything.
    angles = np.deg2rad([0, 30, 45, -30, 180])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).tolist()
    built = placed(vectors, tau_nt=0.8, hierarchy="online")
    assert clusters(built, 1) == clusters(placed(vectors, tau_nt=0.8)) == [("t1", "t2", "t3"), ("t4",), ("t5",)]
    assert clusters(built, 2) == [("t1", "t2", "t3", "t4"), ("t5",)]
    assert clusters(built, 3) == [("t1", "t2", "t3", "t4", "t5")]


def test_an_empty_annotation_is_replaced_by_the_members_and_counted() -> None:
    with metering() as ledger:
        built = placed(WORKED, notes="")
    assert [view.text for view in built.nodes() if view.level == 1] == ["Ann: x1\nAnn: x3\nAnn: x4", "Ann: x2"]
    assert ledger.notes["segtree.annotate_fallback"] == 2


def test_the_control_annotates_with_the_very_prompt_of_the_segment_tree() -> None:
    """SegTreeMem App. F: the control differs in the update rule only."""
    llms = [ScriptedLLM({"segtree.annotate": "A note.", "segtree.batch": "MERGE_1"}) for _ in range(2)]
    both = (
        with_settings(SimilarityTree, {"tau_nt": -1})(llms[0], HashingEmbedder(64), Prompts()),
        SegTree(llms[1], HashingEmbedder(64), Prompts()),
    )
    for built in both:
        for number in range(1, 4):
            built.write(unit(number, f"x{number}"))
        built.consolidate()
    sent = [[one.messages for one in llm.requests if one.purpose == "segtree.annotate"][-1] for llm in llms]
    assert sent[0] == sent[1]
    assert "in chronological order:" in sent[0][1][1]
    assert sent[0][1][1].index("Ann: x1") < sent[0][1][1].index("Ann: x2") < sent[0][1][1].index("Ann: x3")


def covered(request: Request) -> str:
    """A note that keeps the name of every unit that its parts tell of."""
    return " ".join(dict.fromkeys(re.findall(r"x\d+", " ".join(option.text for option in request.fields["texts"]))))


@pytest.mark.parametrize("annotate", ["attach_only", "lazy"])
def test_no_middle_cluster_vanishes_from_a_root_that_one_prompt_cannot_show(annotate: str) -> None:
    built = memory(notes=covered, annotate=annotate, tau_nt=0.99, summary_tokens=200, embedder=HashingEmbedder(512))
    for number in range(1, 41):
        built.write(unit(number, f"x{number} walks along the sea with an old friend"))
    with metering() as ledger:
        built.consolidate()
    (root,) = [view for view in built.nodes() if not view.parents]
    assert root.text.split() == [f"x{number}" for number in range(1, 41)]
    assert ledger.notes["segtree.annotate_capped"] == built.report()["annotations_capped"] > 1
    llm: Any = built.llm
    assert all(sum(count_tokens(part.text) for part in one.fields["texts"]) <= 200 for one in llm.requests)


def test_the_root_of_many_clusters_does_not_depend_on_when_it_was_renewed() -> None:
    once, often = (
        memory(notes=covered, tau_nt=0.99, summary_tokens=200, embedder=HashingEmbedder(512)) for _ in range(2)
    )
    for number in range(1, 31):
        for built in (once, often):
            built.write(unit(number, f"x{number} walks along the sea with an old friend"))
        often.consolidate()
    once.consolidate()
    assert [(view.id, view.text) for view in once.nodes()] == [(view.id, view.text) for view in often.nodes()]


TEXTS = [
    "my cat Tofu sleeps",
    "the tax form is due",
    "Tofu the cat eats tuna",
    "I filed the tax form",
    "the cat Tofu purrs",
]


def reading(**settings: Any) -> SimilarityTree:
    built = memory(embedder=HashingEmbedder(1024), tau_nt=0.35, **settings)
    for number, text in enumerate(TEXTS, 1):
        built.write(unit(number, text, day=6 + number))
    built.consolidate()
    return built


def test_a_topic_is_recalled_across_time_by_its_cluster() -> None:
    built = reading(k=3, order="rank")
    dense = Dense(HashingEmbedder(1024), k=3)
    for number, text in enumerate(TEXTS, 1):
        dense.write(unit(number, text))
    question = Question("q", "the cat Tofu")
    items = built.read(question).items
    assert [item.id for item in items] != [item.id for item in dense.read(question).items]
    (summary,) = [item for item in items if item.level == 1]
    assert summary.sources == ("t1", "t3", "t5")
    assert summary.text.startswith("[7 May 2023 – 11 May 2023] (Ann: my cat")


def test_propagation_and_budget_are_those_of_the_segment_tree() -> None:
    built = reading(k=2, order="rank", alpha=0.95)
    question = Question("q", "the cat Tofu")
    collapsed = built.read(question)
    built = tuned(built, {"policy": "bottom_up"})
    assert [item.level for item in built.read(question).items] == [2, 1]
    assert built.read(question) != collapsed
    built = tuned(built, {"horizon": 0})
    assert built.read(question) == collapsed
    built = tuned(built, {"leaf_only": True})
    assert [item.level for item in built.read(question).items] == [0, 0]


@pytest.mark.parametrize("wrong", [{"hierarchy": "deep"}, {"policy": "up"}, {"alpha": 1.5}, {"order": "random"}])
def test_an_unknown_setting_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        memory(**wrong)


def test_the_shipped_setting_is_the_default_without_propagation_and_the_paper_s_threshold(root: Path) -> None:
    build = yaml.safe_load((root / "conf" / "memory" / "similarity_tree.yaml").read_text())["build"]
    stated = parameters(SimilarityTree).values()
    defaults = {one.name: one.default for one in stated if one.default is not inspect.Parameter.empty}
    assert build == defaults | {"_target_": "memsys.systems.segtree.similarity_tree.SimilarityTree", "_partial_": True}
    assert {"tau_nt": 0.45, "policy": "none", "k": 10}.items() <= build.items()
