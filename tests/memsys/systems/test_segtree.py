"""SegTreeMem: shape of the tree, the three compatibility models, annotating, and what a read recalls."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scripted import ScriptedLLM, TableEmbedder

from data_loaders.schema import Question, Session, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import NodeView, parameters, tuned, with_settings
from memsys.llm.meter import metering
from memsys.llm.protocol import Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.segtree import SegTree
from memsys.systems.segtree import reading as tree_reading
from memsys.systems.segtree.reading import SegTreeReading, propagated
from memsys.tokens import count_tokens

GARBAGE = [
    "",
    "   ",
    "Sure, I would file it there!",
    '{"label": "MER',
    "[]",
    "{}",
    '{"score": "high"}',
    '{"score": 130}',
]


def unit(number: int, text: str = "", session: str = "s1", day: int = 7) -> Unit:
    turn = Turn(f"t{number}", "Ann", text or f"word{number} thing{number}")
    return Unit(f"u{number}", (turn,), session, datetime(2023, 5, day), f"{day} May 2023")


def note(request: Request) -> str:
    """A summary that shows what it was made of."""
    return "(" + " | ".join(option.text for option in request.fields["texts"]) + ")"


def lowest(request: Request) -> str:
    return str(request.fields["labels"][0])


def root(request: Request) -> str:
    return str(request.fields["labels"][-2])


def split(request: Request) -> str:
    return "SPLIT"


def memory(batch: Any = lowest, notes: Any = note, **settings: Any) -> SegTree:
    script = {"segtree.batch": batch, "segtree.annotate": notes}
    defaults: dict[str, Any] = {"llm": ScriptedLLM(script), "embedder": HashingEmbedder(64), "prompts": Prompts()}
    return with_settings(SegTree, defaults | settings)()


def purposes(built: SegTree) -> list[str]:
    assert isinstance(built.llm, ScriptedLLM)
    return [purpose.removeprefix("segtree.") for purpose in built.llm.purposes]


def calls_per_write(built: SegTree, units: Iterable[Unit]) -> list[list[str]]:
    calls = []
    for each in units:
        before = len(purposes(built))
        built.write(each)
        calls.append(purposes(built)[before:])
    return calls


def shape(built: SegTree) -> dict[str, list[str]]:
    """Inner nodes with their children, by the turns below, e.g. `t1-t3: [t1-t2, t3]`."""
    views = {view.id: view for view in built.nodes()}
    names = {view.id: f"{view.level}:" + ",".join(view.sources) for view in views.values()}
    found: dict[str, list[str]] = {}
    for view in views.values():
        for parent in view.parents:
            found.setdefault(names[parent], []).append(names[view.id])
    return {parent: sorted(children, key=order) for parent, children in found.items()}


def order(name: str) -> int:
    return int(name.split("t")[1].split(",")[0])


def assert_levelled(views: Sequence[NodeView], count: int) -> int:
    """All that must hold of a segment tree over turns t1..t<count>; the depth."""
    by_id = {view.id: view for view in views}
    children: dict[str, list[NodeView]] = {view.id: [] for view in views}
    for view in views:
        for parent in view.parents:
            children[parent].append(view)
    (top,) = [view for view in views if not view.parents]
    everything = tuple(f"t{number}" for number in range(1, count + 1))
    assert top.sources == everything
    assert tuple(view.id for view in views if not children[view.id]) == tuple(f"u{n}" for n in range(1, count + 1))
    for view in views:
        below = children[view.id]
        assert not below or sum((child.sources for child in below), ()) == view.sources
        assert not view.parents or by_id[view.parents[0]].level == view.level + 1
        assert (not below) == (view.level == 0)
    assert sum(view.sources[-1] == everything[-1] for view in views) == top.level + 1
    return top.level


# Shape


def test_the_first_unit_is_the_root_and_the_second_makes_one_without_asking() -> None:
    built = memory()
    built.write(unit(1))
    assert [(view.id, view.level, view.parents) for view in built.nodes()] == [("u1", 0, ())]
    assert purposes(built) == []
    built.write(unit(2))
    assert shape(built) == {"1:t1,t2": ["0:t1", "0:t2"]}
    assert purposes(built) == ["annotate"]


def test_attaching_everything_to_the_root_gives_one_node_more_than_units() -> None:
    built = memory(root)
    for number in range(1, 21):
        built.write(unit(number))
        assert built.held == (1 if number == 1 else number + 1)


def test_always_taking_the_lowest_gives_one_parent_with_all_leaves() -> None:
    built = memory(lowest)
    for number in range(1, 7):
        built.write(unit(number))
    assert shape(built) == {"1:t1,t2,t3,t4,t5,t6": [f"0:t{number}" for number in range(1, 7)]}


@pytest.mark.slow
def test_never_fitting_gives_a_triangular_number_of_nodes() -> None:
    built = memory(split, "A note.", annotate="attach_only", max_depth=None)
    for number in range(1, 201):
        built.write(unit(number))
        assert built.held == number * (number + 1) // 2
    report = built.report()
    assert (report["nodes"], report["max_depth"], report["depth_std"], report["none_rate"]) == (20100, 199, 0.0, 1.0)
    assert report["without_chains"]["nodes"] == 399
    assert report["without_chains"]["depth_std"] > 50


def test_three_exchanges_merged_low_or_split_have_the_expected_shapes() -> None:
    for choice, expected in ((lowest, (4, 1)), (split, (6, 2))):
        built = memory(choice)
        for number in range(1, 4):
            built.write(unit(number))
        assert (built.held, built.report()["max_depth"]) == expected


def test_a_unit_attached_high_hangs_on_a_chain_that_keeps_leaves_level() -> None:
    replies = ["SPLIT", "MERGE_1", "SPLIT", "MERGE_2", "MERGE_1"]
    built = memory(replies)
    for number in range(1, 8):
        built.write(unit(number))
    assert shape(built) == {
        "1:t1,t2": ["0:t1", "0:t2"],
        "1:t3,t4": ["0:t3", "0:t4"],
        "1:t5": ["0:t5"],
        "1:t6,t7": ["0:t6", "0:t7"],
        "2:t1,t2,t3,t4": ["1:t1,t2", "1:t3,t4"],
        "2:t5,t6,t7": ["1:t5", "1:t6,t7"],
        "3:t1,t2,t3,t4,t5,t6,t7": ["2:t1,t2,t3,t4", "2:t5,t6,t7"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(("annotate", "count"), [("full", 200), ("attach_only", 60), ("lazy", 60)])
def test_random_decisions_keep_the_tree_levelled_and_all_else_untouched(annotate: str, count: int) -> None:
    rng = np.random.default_rng(5)
    chosen: list[str] = []

    def decide(request: Request) -> str:
        *merges, stop = request.fields["labels"]
        chosen.append(stop if rng.random() < 0.03 else str(rng.choice(merges)))
        return chosen[-1]

    numbers = itertools.count()
    built = memory(decide, lambda request: f"Note {next(numbers)}.", annotate=annotate, max_depth=None)
    before: dict[str, NodeView] = {}
    for number in range(1, count + 1):
        built.write(unit(number))
        views = list(built.nodes())
        depth = assert_levelled(views, number)
        assert depth == chosen.count("SPLIT") + (number > 1)
        affected = {view.id for view in views if view.sources[-1] == f"t{number}"}
        for view in views:
            if view.id not in affected:
                old = before[view.id]
                assert (view.text, view.level, view.sources) == (old.text, old.level, old.sources)
                assert np.array_equal(view.vector, old.vector)  # type: ignore[arg-type]
                assert view.parents == old.parents or not old.parents
        before = {view.id: view for view in views}
    assert depth >= 3


def test_at_the_safety_depth_a_split_attaches_to_the_root_and_is_counted() -> None:
    built = memory(split, max_depth=3)
    with metering() as ledger:
        for number in range(1, 9):
            built.write(unit(number))
    assert assert_levelled(list(built.nodes()), 8) == 3
    assert ledger.notes["segtree.max_depth"] == 4
    assert built.report()["attached_to_root_at_max_depth"] == 4
    assert [len(children) for parent, children in shape(built).items() if parent.startswith("3:")] == [6]


# Compatibility models


def table_memory(vectors: Mapping[str, Sequence[float]], **settings: Any) -> SegTree:
    """Units named by their text; each summary is a text of the table."""
    table = {f"Ann: {name}" if name.islower() else name: vector for name, vector in vectors.items()}
    return memory(embedder=TableEmbedder(table), **settings)


def test_cosine_attaches_to_the_most_similar_annotation_and_asks_no_model() -> None:
    # Root {P: a b, Q: c} has the summaries P, R; the fourth unit is nearer to R than to c.
    vectors = {"a": (1, 0), "b": (1, 0), "c": (0, 1), "d": (0.8, 0.6), "P": (1, 0), "R": (0.7, 0.7), "R2": (0.7, 0.7)}
    built = table_memory(vectors, compatibility="cosine", tau_c=0.5, notes=["P", "R", "R2"])
    calls = calls_per_write(built, [unit(1, "a"), unit(2, "b"), unit(3, "c"), unit(4, "d")])
    assert calls == [[], ["annotate"], ["annotate"], ["annotate"]]
    assert shape(built)["2:t1,t2,t3,t4"] == ["1:t1,t2", "1:t3", "1:t4"]


@pytest.mark.parametrize(("tau", "depth"), [(0.6, 1), (0.61, 2)])
def test_cosine_opens_a_new_root_below_the_threshold_only(tau: float, depth: int) -> None:
    vectors = {"a": (1, 0), "b": (1, 0), "c": (0.6, 0.8), "P": (1, 0), "R": (1, 0)}
    built = table_memory(vectors, compatibility="cosine", tau_c=tau, notes=["P", "R"])
    for number, text in enumerate("abc", 1):
        built.write(unit(number, text))
    assert built.report()["max_depth"] == depth
    assert built.report()["none_rate"] == depth - 1


def test_cosine_ties_go_to_the_lower_level() -> None:
    vectors = {"a": (1, 0), "b": (0, 1), "c": (0, 1), "P": (1, 0), "R": (0, 1), "Q": (0, 1), "S": (0, 1)}
    built = table_memory(vectors, compatibility="cosine", tau_c=0.5, notes=["P", "R", "Q", "S"])
    for number, text in enumerate("abcc", 1):
        built.write(unit(number, text))
    assert shape(built)["1:t3,t4"] == ["0:t3", "0:t4"]


@pytest.mark.parametrize("seed", range(8))
def test_a_tie_with_the_copies_in_a_long_chain_goes_to_the_lowest(seed: int) -> None:
    """Seven unrelated units give a chain of five copies above the last; a matrix product scores these differently in the last digit."""
    vectors = dict(zip("abcdefgS", np.random.default_rng(seed).normal(size=(8, 384)).tolist(), strict=True))
    built = table_memory({**vectors, "h": vectors["g"]}, compatibility="cosine", tau_c=0.5, notes=lambda _: "S")
    for number, text in enumerate("abcdefgh", 1):
        built.write(unit(number, text))
    assert shape(built)["1:t7,t8"] == ["0:t7", "0:t8"]


def pointwise(reply: Any, step: str = "pointwise", **settings: Any) -> SegTree:
    llm = ScriptedLLM({f"segtree.{step}": reply, "segtree.annotate": note})
    return memory(llm=llm, compatibility="pointwise", pointwise="score" if step == "score" else "labels", **settings)


def deep(reply: Any, step: str = "pointwise", **settings: Any) -> SegTree:
    """Six units that never fit (15 questions, depth 5), then the given replies."""
    first = ['{"score": 0}' if step == "score" else "CONTINUE"] * 10
    built = pointwise([*first, *reply], step, **settings)
    for number in range(1, 7):
        built.write(unit(number))
    return built


def test_pointwise_asks_about_every_candidate_from_low_to_high_and_takes_the_lowest_merge() -> None:
    built = deep(["CONTINUE", "MERGE", "CONTINUE", "MERGE", "CONTINUE"], annotate="attach_only")
    (calls,) = calls_per_write(built, [unit(7)])
    assert calls == ["pointwise"] * 5 + ["annotate"]
    candidates = [request.fields["options"][0].text for request in built.llm.requests[-6:-1]]  # type: ignore[attr-defined]
    assert [text.split(";")[0] for text in candidates] == [f"(level {level}" for level in range(1, 6)]
    assert shape(built)["2:t6,t7"] == ["1:t6", "1:t7"]


def test_pointwise_stops_early_only_when_told_to() -> None:
    built = deep(["CONTINUE", "MERGE"], annotate="attach_only", early_stop=True)
    (calls,) = calls_per_write(built, [unit(7)])
    assert calls == ["pointwise", "pointwise", "annotate"]
    assert shape(built)["2:t6,t7"] == ["1:t6", "1:t7"]


def test_pointwise_scores_pick_the_highest_and_ties_the_lower() -> None:
    scores = ['{"score": 0.4}', '{"score": 0.8}', '{"score": 0.9}', '{"score": 0.9}', '{"score": 0.1}']
    built = deep(scores, "score")
    built.write(unit(7))
    assert shape(built)["3:t6,t7"] == ["2:t6", "2:t7"]


def test_pointwise_scores_below_the_threshold_open_a_new_root() -> None:
    built = deep(['{"score": 0.49}'] * 5, "score")
    built.write(unit(7))
    assert built.report()["max_depth"] == 6


@pytest.mark.parametrize("reply", GARBAGE)
@pytest.mark.parametrize("step", ["pointwise", "score"])
def test_a_garbled_pointwise_reply_counts_as_continue(step: str, reply: str) -> None:
    fits = '{"score": 0.7}' if step == "score" else "MERGE"
    built = deep([reply, reply, fits, reply, reply], step)
    with metering() as ledger:
        built.write(unit(7))
    assert shape(built)["3:t6,t7"] == ["2:t6", "2:t7"]
    assert ledger.notes["segtree.pointwise_continue"] == 4
    assert ledger.parse_failures[f"segtree.{step}"] == 4
    assert built.report()["fallback_rate"] == round(4 / 15, 4)


def test_batch_shows_all_candidates_from_low_to_high_with_labels_made_for_them() -> None:
    built = memory(["SPLIT", "MERGE_2"])
    for number, day in ((1, 7), (2, 7), (3, 8), (4, 9)):
        built.write(unit(number, session=f"s{day}", day=day))
    first, second = (request for request in built.llm.requests if request.purpose == "segtree.batch")  # type: ignore[attr-defined]
    assert first.fields["labels"] == ("MERGE_1", "SPLIT")
    assert second.fields["labels"] == ("MERGE_1", "MERGE_2", "SPLIT")
    shown = second.messages[1][1]
    assert "[MERGE_1] (level 1; 1 unit; 8 May 2023) Ann: word3 thing3" in shown
    assert "[MERGE_2] (level 2; 3 units; 7 May 2023 – 8 May 2023) ((Ann: word1 thing1 | Ann: word2" in shown
    assert shown.index("MERGE_1") < shown.index("MERGE_2")
    assert "time: 9 May 2023; first unit of a new session" in shown
    assert shown.endswith("MERGE_1\nMERGE_2\nSPLIT")
    assert shape(built)["2:t1,t2,t3,t4"] == ["1:t1,t2", "1:t3", "1:t4"]


@pytest.mark.parametrize("reply", [*GARBAGE, "MERGE_3", "MERGE_0", "MERGE_1 or MERGE_2", "CONTINUE"])
def test_a_garbled_batch_reply_is_asked_again_once_and_then_splits(reply: str) -> None:
    built = memory([reply, "MERGE_1", reply, reply])
    with metering() as ledger:
        calls = calls_per_write(built, [unit(number) for number in range(1, 5)])
    assert calls[2] == ["batch", "batch", "annotate"]
    assert calls[3] == ["batch", "batch", "annotate"]
    assert shape(built)["1:t1,t2,t3"] == ["0:t1", "0:t2", "0:t3"]
    assert built.report()["max_depth"] == 2
    assert ledger.notes["segtree.batch_split"] == 1
    assert ledger.parse_failures["segtree.batch"] == 3
    assert built.report()["fallback_rate"] == 0.5


# Annotating


@pytest.mark.parametrize("model", ["cosine", "pointwise", "batch"])
def test_attach_only_makes_one_annotation_call_a_unit(model: str) -> None:
    llm = ScriptedLLM({"segtree.pointwise": "CONTINUE", "segtree.batch": "SPLIT", "segtree.annotate": note})
    built = memory(llm=llm, compatibility=model, annotate="attach_only", tau_c=2.0, max_depth=None)
    counts = [len(calls) for calls in calls_per_write(built, [unit(number) for number in range(1, 9)])]
    asked = {"cosine": [0] * 8, "pointwise": [0, *range(7)], "batch": [0, 0] + [1] * 6}[model]
    assert counts == [number + (place > 0) for place, number in enumerate(asked)]


def test_full_annotates_the_receiver_and_then_every_ancestor_from_its_children() -> None:
    built = memory(["SPLIT", "MERGE_1"])
    calls = calls_per_write(built, [unit(number, f"x{number}") for number in range(1, 5)])
    assert calls == [[], ["annotate"], ["batch", "annotate"], ["batch", "annotate", "annotate"]]
    texts = {",".join(view.sources): view.text for view in built.nodes() if view.level}
    assert texts["t3,t4"] == "(Ann: x3 | Ann: x4)"
    assert texts["t1,t2,t3,t4"] == "((Ann: x1 | Ann: x2) | (Ann: x3 | Ann: x4))"


def test_a_node_with_one_child_copies_its_annotation_and_vector_for_free() -> None:
    built = memory(["SPLIT", "SPLIT"])
    for number in range(1, 5):
        built.write(unit(number))
    leaf, *chain = [view for view in built.nodes() if view.sources == ("t4",)]
    assert [view.kind for view in chain] == ["chain", "chain"]
    for view in chain:
        assert view.text == leaf.text
        assert np.array_equal(view.vector, leaf.vector)  # type: ignore[arg-type]
    assert purposes(built).count("annotate") == 3


def test_a_chain_above_a_growing_node_keeps_copying_it() -> None:
    built = memory(["SPLIT", "SPLIT", "MERGE_1"])
    for number in range(1, 6):
        built.write(unit(number, f"x{number}"))
    low, high = [view for view in built.nodes() if view.sources == ("t4", "t5")]
    assert low.text == high.text == "(Ann: x4 | Ann: x5)"
    assert np.array_equal(low.vector, high.vector)  # type: ignore[arg-type]
    assert purposes(built)[-3:] == ["batch", "annotate", "annotate"]


REPLIES = "SPLIT MERGE_1 SPLIT MERGE_1 MERGE_2 MERGE_1 SPLIT MERGE_1 MERGE_3 MERGE_2 MERGE_1 MERGE_3".split()
"""For the third unit and on; the last attaches above a node that is out of date when not all ancestors are annotated."""


def shown(built: SegTree) -> list[tuple[str, str, bytes]]:
    return [(view.id, view.text, view.vector.tobytes()) for view in built.nodes() if view.vector is not None]


@pytest.mark.parametrize("annotate", ["attach_only", "lazy"])
def test_consolidating_shows_what_full_annotating_would_have_written(annotate: str) -> None:
    full, cheap = memory(REPLIES), memory(REPLIES, annotate=annotate)
    for number in range(1, 15):
        for built in (full, cheap):
            built.write(unit(number))
    assert shown(cheap) != shown(full)
    cheap.consolidate()
    assert shown(cheap) == shown(full)
    assert purposes(cheap).count("annotate") < purposes(full).count("annotate")


@pytest.mark.parametrize("annotate", ["attach_only", "lazy"])
def test_consolidating_is_provisional_and_never_asks_twice_for_the_same(annotate: str) -> None:
    once, twice = memory(REPLIES, annotate=annotate), memory(REPLIES, annotate=annotate)
    untouched = memory(REPLIES, annotate=annotate)
    for number in range(1, 9):
        for built in (once, twice, untouched):
            built.write(unit(number))
    while_writing = len(purposes(twice))
    twice.consolidate()
    after_first = len(purposes(twice))
    twice.consolidate()
    assert len(purposes(twice)) == after_first > while_writing
    for number in range(9, 15):
        for built in (once, twice, untouched):
            built.write(unit(number))
    assert shown(twice) == shown(untouched)
    for built in (once, twice):
        built.consolidate()
    assert shown(once) == shown(twice)
    # The ninth unit closed every segment that the first consolidation had renewed, so all of that still held at the second.
    assert twice.report()["renewed"] == once.report()["renewed"]


def test_full_annotating_leaves_nothing_to_consolidate() -> None:
    built = memory(REPLIES)
    for number in range(1, 15):
        built.write(unit(number))
    before = purposes(built)
    built.consolidate()
    assert purposes(built) == before
    assert "renewed" not in built.report()


def test_lazy_annotating_makes_no_call_while_writing() -> None:
    built = memory(REPLIES, annotate="lazy")
    for number in range(1, 5):
        built.write(unit(number, f"x{number}"))
    assert "annotate" not in purposes(built)
    texts = {",".join(view.sources): view.text for view in built.nodes() if view.level == 2}
    assert texts == {"t1,t2,t3,t4": "Ann: x1\nAnn: x2\nAnn: x3\nAnn: x4"}
    built.consolidate()
    assert purposes(built)[2:] == ["annotate", "annotate", "annotate"]


@pytest.mark.parametrize("reply", ["", "  \n "])
def test_an_empty_annotation_is_replaced_by_the_children_cut_off_and_counted(reply: str) -> None:
    built = memory(notes=reply)
    with metering() as ledger:
        for number in range(1, 4):
            built.write(unit(number, f"x{number} " + "long " * 250))
    (text,) = [view.text for view in built.nodes() if view.level]
    assert text.startswith("Ann: x1 long")
    assert "Ann: x2 long" in text
    assert count_tokens(text) == 300
    assert ledger.notes["segtree.annotate_fallback"] == 2
    assert built.report()["annotation_fallback_rate"] == 1.0


def test_a_capped_annotation_prompt_holds_the_latest_children_behind_the_note_so_far() -> None:
    built = memory(notes=lambda request: f"Note over {len(request.fields['texts'])} parts.", summary_tokens=60)
    with metering() as ledger:
        for number in range(1, 31):
            built.write(unit(number, f"x{number} was about nine or ten tokens long"))
    last = built.llm.requests[-1].fields["texts"]  # type: ignore[attr-defined]
    assert last[0].text.startswith("Note over")
    assert [part.text.split()[1] for part in last[1:]] == ["x27", "x28", "x29", "x30"]
    for request in built.llm.requests:  # type: ignore[attr-defined]
        if request.purpose == "segtree.annotate":
            assert sum(count_tokens(part.text) for part in request.fields["texts"]) <= 60
    assert ledger.notes["segtree.annotate_capped"] == built.report()["annotations_capped"] == 25


def test_a_long_unit_is_counted_once_however_many_join_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    def counting(text: str) -> int:
        counted.append(text)
        return count_tokens(text)

    monkeypatch.setattr(tree_reading, "count_tokens", counting)
    built = memory(notes="A note.", compatibility="batch")
    texts = [f"unit {number} " + "long " * 600 for number in range(6)]
    for number, text in enumerate(texts):
        built.write(unit(number, text))
    for number, text in enumerate(texts):
        assert sum(text in each for each in counted) <= 1, number
    assert any(texts[0] in each for each in counted)


def test_a_single_child_longer_than_the_cap_is_cut() -> None:
    built = memory(summary_tokens=40)
    for number in range(1, 4):
        built.write(unit(number, f"x{number} " + "long " * 500))
    for request in built.llm.requests:  # type: ignore[attr-defined]
        if request.purpose == "segtree.annotate":
            lead, latest = request.fields["texts"]
            assert count_tokens(lead.text) + count_tokens(latest.text) <= 40
            assert latest.text.startswith("Ann: x")


def test_without_a_cap_all_children_are_shown() -> None:
    built = memory(notes="A note.", summary_tokens=None)
    for number in range(1, 41):
        built.write(unit(number, "long " * 400))
    assert len(built.llm.requests[-1].fields["texts"]) == 40  # type: ignore[attr-defined]


def test_the_annotation_prompt_shows_children_with_their_times_in_order() -> None:
    built = memory()
    for number, day in ((1, 7), (2, 8), (3, 8)):
        built.write(unit(number, f"x{number}", day=day))
    sent = built.llm.requests[-1].messages[1][1]  # type: ignore[attr-defined]
    assert "[7 May 2023] Ann: x1\n[8 May 2023] Ann: x2\n[8 May 2023] Ann: x3" in sent
    assert "in chronological order" in sent


# Reading

CATS = ["my cat Tofu sleeps", "Tofu the cat eats tuna", "the cat Tofu purrs"]
TAXES = ["the tax form is due", "I filed the tax form", "tax refund arrived"]


def reading(texts: Sequence[str], batch: Any = lowest, **settings: Any) -> SegTree:
    built = memory(batch, embedder=HashingEmbedder(1024), **settings)
    for number, text in enumerate(texts, 1):
        built.write(unit(number, text))
    built.consolidate()
    return built


def ids(built: SegTree, question: str) -> list[str]:
    return [item.id for item in built.read(Question("q", question)).items]


def test_reading_recalls_summaries_too_where_dense_retrieval_has_units_only() -> None:
    units = [unit(number, text) for number, text in enumerate([*CATS, *TAXES], 1)]
    built = memory(["MERGE_1", "SPLIT", "MERGE_1", "MERGE_1"], embedder=HashingEmbedder(1024), k=3, order="rank")
    dense = Dense(HashingEmbedder(1024), k=3)
    for each in units:
        built.write(each)
        dense.write(each)
    question = Question("q", "What does the cat Tofu eat?")
    recalled = built.read(question).items
    assert {item.kind for item in recalled} == {"leaf", "summary"}
    assert [item.id for item in recalled] != [item.id for item in dense.read(question).items]
    summary = next(item for item in recalled if item.kind == "summary")
    assert summary.level == 1
    assert summary.sources == ("t1", "t2", "t3")
    assert summary.text.startswith("[7 May 2023] (Ann: my cat")


def test_the_score_is_the_propagated_share() -> None:
    # Cosines with the question: leaves .6, 0, .8; their parent .8. Shares 6/22, 0, 8/22, 8/22; a child gets a third.
    vectors = {"a": (0.6, 0.8), "b": (0, 1), "c": (0.8, 0.6), "P": (0, 1), "S": (0.8, 0.6), "Q": (1, 0)}
    built = table_memory(vectors, notes=["P", "S"], horizon=1, order="rank", dedup=False)
    for number, text in enumerate("abc", 1):
        built.write(unit(number, text))
    items = built.read(Question("q", "Q")).items
    share = 8 / 22 / 3
    scores = [(8 / 22 + 0.1 * share) / 1.1, 8 / 22 / 1.1, (6 / 22 + 0.1 * share) / 1.1, 0.1 * share / 1.1]
    assert [item.id for item in items] == ["u3", "node-2", "u1", "u2"]
    assert [item.score for item in items] == pytest.approx(scores, abs=1e-6)


def test_policies_change_what_comes_first() -> None:
    built = reading([*CATS, *TAXES], ["MERGE_1", "SPLIT", "MERGE_1", "MERGE_1"], order="rank", alpha=0.95)
    levels = {}
    for policy in ("none", "top_down", "bottom_up"):
        built = tuned(built, {"policy": policy})
        levels[policy] = [item.level for item in built.read(Question("q", "the cat Tofu")).items]
    assert levels["bottom_up"][:2] == [2, 1]
    assert levels["top_down"][:2] == [0, 0]
    assert levels["none"] != levels["bottom_up"]


def test_chains_do_not_waste_the_budget_unless_asked_to() -> None:
    built = reading([*CATS, "the comet is seen at dawn"], ["MERGE_1", "SPLIT"], k=3, policy="none", order="rank")
    texts = [item.text for item in built.read(Question("q", "comet at dawn")).items]
    assert len(set(texts)) == 3
    built = tuned(built, {"dedup": False})
    repeated = built.read(Question("q", "comet at dawn")).items
    assert [(item.id, item.kind) for item in repeated[:2]] == [("u4", "leaf"), ("node-6", "chain")]
    assert repeated[0].text == repeated[1].text


def test_leaf_only_recalls_units_alone_but_scores_the_whole_tree() -> None:
    built = reading([*CATS, *TAXES], ["MERGE_1", "SPLIT", "MERGE_1", "MERGE_1"], order="rank", k=4)
    every = {item.id: item.score for item in built.read(Question("q", "the cat Tofu")).items}
    built = tuned(built, {"leaf_only": True})
    items = built.read(Question("q", "the cat Tofu")).items
    assert [item.level for item in items] == [0, 0, 0, 0]
    assert all(every[item.id] == item.score for item in items if item.id in every)


def test_evidence_comes_in_order_of_time_or_of_rank() -> None:
    built = reading([*TAXES, *CATS], k=4)
    timed = built.read(Question("q", "Tofu purrs")).items
    built = tuned(built, {"order": "rank"})
    ranked = built.read(Question("q", "Tofu purrs")).items
    assert {item.id for item in timed} == {item.id for item in ranked}
    starts = [int(item.sources[0][1:]) for item in timed]
    assert starts == sorted(starts)
    assert [item.score for item in ranked] == sorted((item.score for item in ranked), reverse=True)
    assert ranked[0].id == "u6"
    assert timed[0].id != "u6"


def test_equal_scores_go_to_the_earlier_unit() -> None:
    built = reading(["the same"] * 5, notes="unrelated", k=2, order="rank")
    assert ids(built, "the same") == ["u1", "u2"]


def test_the_budget_is_kept() -> None:
    built = reading([*CATS, *TAXES], split)
    for k in (1, 5, 100):
        built = tuned(built, {"k": k})
        recalled = ids(built, "the cat")
        assert len(recalled) == len(set(recalled)) <= k
    assert len(recalled) == 11  # six units and five summaries; chains repeat their unit


def test_reading_leaves_the_memory_as_it_was() -> None:
    built = reading([*CATS, *TAXES], annotate="attach_only")
    before, asked = shown(built), len(purposes(built))
    first = built.read(Question("q1", "the cat"))
    built.read(Question("q2", "the tax"))
    assert built.read(Question("q1", "the cat")) == first
    assert (shown(built), len(purposes(built))) == (before, asked)


def test_a_copy_with_other_read_settings_recalls_like_a_build_with_them() -> None:
    settings: dict[str, Any] = {
        "k": 3, "policy": "bottom_up", "alpha": 0.7, "horizon": 3, "leaf_only": True, "neg": "shift",
        "sink": "self_loop", "dedup": False, "order": "rank",
    }  # fmt: skip
    assert set(settings) == set(SegTree.READ_KNOBS)
    base = reading([*CATS, *TAXES])
    copied = copy.copy(base)
    for name, value in settings.items():
        copied = tuned(copied, {name: value})
    question = Question("q", "the cat Tofu")
    assert copied.read(question) == reading([*CATS, *TAXES], **settings).read(question)
    assert copied.read(question) != base.read(question)


@pytest.mark.parametrize(
    ("name", "value"), [("k", 0), ("alpha", 1.0), ("horizon", -1), ("neg", "x"), ("sink", "x"), ("order", "x")]
)
def test_a_wrong_read_setting_is_refused_before_a_read(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        tuned(reading([*CATS, *TAXES]), {name: value})


def test_a_topic_that_returns_later_is_not_joined_with_its_first_mention() -> None:
    replies = ["MERGE_1", "SPLIT", "MERGE_1", "MERGE_1", "SPLIT", "MERGE_1"]
    built = reading([*CATS, *TAXES, "the cat Tofu is back", "Tofu the cat naps"], replies, policy="none", k=4)
    for view in built.nodes():
        turns = set(view.sources)
        assert not (turns & {"t1", "t2", "t3"} and turns & {"t7", "t8"}) or len(view.sources) == 8
    assert {"u3", "u7"} <= set(ids(built, "the cat Tofu"))  # collapsed retrieval finds both
    near, far = _mass_from("u1", built, 1), _mass_from("u1", built, 3)
    assert {"t7", "t8"}.isdisjoint(near)
    assert {"t7", "t8"} <= far


def _mass_from(start: str, built: SegTree, horizon: int) -> set[str]:
    """Turns of the nodes that relevance at one leaf reaches upward."""
    views = list(built.nodes())
    place = {view.id: number for number, view in enumerate(views)}
    relevance = np.array([view.id == start for view in views], dtype=float)
    parents = [place[view.parents[0]] if view.parents else -1 for view in views]
    scores = propagated(relevance, parents, SegTreeReading(policy="bottom_up", alpha=0.5, horizon=horizon))
    return {turn for view, score in zip(views, scores, strict=True) if score > 0 for turn in view.sources}


# Views, settings, data


def test_collapsing_chains_leaves_single_child_nodes_out_of_the_view_alone() -> None:
    plain, collapsed = (reading([*CATS, *TAXES], split, collapse_chains=flag) for flag in (False, True))
    assert (len(list(plain.nodes())), len(list(collapsed.nodes()))) == (21, 11)
    views = {view.id: view for view in collapsed.nodes()}
    assert all(parent in views for view in views.values() for parent in view.parents)
    assert {len([v for v in views.values() if name in v.parents]) for name in views} == {0, 2}
    assert ids(plain, "the cat") == ids(collapsed, "the cat")
    assert plain.report() == collapsed.report()


def test_the_report_gives_the_shape_statistics() -> None:
    report = reading([*CATS, *TAXES], ["MERGE_1", "SPLIT", "MERGE_1", "MERGE_1"]).report()
    wanted = {"leaves": 6, "nodes": 9, "max_depth": 2, "mean_depth": 2.0, "depth_std": 0.0, "branching": 2.6667}
    assert wanted.items() <= report.items()
    assert (report["decisions"], report["none"], report["none_rate"], report["annotations"]) == (4, 1, 0.25, 7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"compatibility": "guess"}, {"pointwise": "stars"}, {"annotate_mode": "never"}, {"policy": "up"}, {"neg": "abs"},
        {"sink": "keep"}, {"order": "random"}, {"alpha": 1.0}, {"horizon": -1}, {"k": 0}, {"max_depth": 0},
        {"summary_tokens": 1},
    ],
)  # fmt: skip
def test_an_unknown_setting_is_refused_by_name(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    services = {"llm": ScriptedLLM(""), "embedder": HashingEmbedder(8), "prompts": Prompts()}
    with pytest.raises(ValueError, match=name.removesuffix("_mode")):
        with_settings(SegTree, {**services, **{name.removesuffix("_mode"): value}})()  # type: ignore[arg-type]


REPRESENTATIVE = {"compatibility": "batch", "policy": "top_down", "alpha": 0.1, "horizon": 2, "k": 10}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("segtree", {}), ("segtree_td", {}), ("segtree_bu", {"policy": "bottom_up"}),
        ("segtree_cosine", {"compatibility": "cosine", "policy": "none"}),
        ("segtree_pointwise", {"compatibility": "pointwise", "policy": "none"}),
        ("segtree_batch", {"compatibility": "batch", "policy": "none"}),
    ],
)  # fmt: skip
def test_the_shipped_settings_are_the_defaults_but_for_what_their_name_says(
    name: str, changes: dict[str, Any], root: Path
) -> None:
    build = yaml.safe_load((root / "conf" / "memory" / f"{name}.yaml").read_text())["build"]
    stated = parameters(SegTree).values()
    defaults = {one.name: one.default for one in stated if one.default is not inspect.Parameter.empty}
    assert build == defaults | changes | {"_target_": "memsys.systems.segtree.SegTree", "_partial_": True}
    assert REPRESENTATIVE.items() <= defaults.items()


def test_the_unit_rule_is_the_exchange() -> None:
    from data_loaders.units import make_units

    first = ("I adopted a puppy yesterday.", "Congrats! What is her name?", "Luna.", "Lovely.")
    sessions = [_session("S1", first), _session("S2", ("Luna learned to sit.", "Good girl!"))]
    assert len(make_units(sessions, **SegTree.UNIT).units) == 3


def _session(name: str, texts: Sequence[str]) -> Session:
    roles: tuple[Any, ...] = ("user", "assistant")
    turns = (Turn(f"{name}:{n}", "AB"[n % 2], text, roles[n % 2]) for n, text in enumerate(texts))
    return Session(name, tuple(turns))


@pytest.mark.data
def test_conversation_47_of_locomo_has_the_published_329_leaves(data_root: Path) -> None:
    from data_loaders import locomo
    from data_loaders.units import make_units

    cases: Callable[..., Iterable[Any]] = locomo.load
    (case,) = [case for case in cases(data_root / "locomo" / "locomo10.json") if case.id == "conv-47"]
    built = memory(root, annotate="lazy")
    for each in make_units(case.sessions, **{**SegTree.UNIT, "on_unpaired": "drop"}).units:  # as in SegTreeMem's tables
        built.write(each)
    assert built.report()["leaves"] == 329
    assert built.held == 330
