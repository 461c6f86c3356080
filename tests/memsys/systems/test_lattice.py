from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scripted import ScriptedLLM

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import tuned, with_settings
from memsys.llm import meter
from memsys.llm.meter import metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import Completion, ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.lattice import Lattice
from memsys.systems.lattice.search import calibrated, clusters, fitted, gated, ratings
from memsys.tokens import count_tokens
from memsys.vectors import normalised

pytestmark = pytest.mark.slow

CONF = Path(__file__).parents[3] / "conf" / "memory"
ASKED = Question("q", "Where is the key?", time_text="9 May 2023")
GARBAGE = [
    "",
    "Sure!",
    '{"relevance_scores": [[',
    "[]",
    '{"relevance_scores": "high"}',
    '{"relevance_scores": [[9, 50], ["a", 3]]}',
]


def unit(name: str, session: str = "s1", time_text: str = "") -> Unit:
    return Unit(name, (Turn(f"t-{name}", "", name),), session, datetime(2023, 5, 7), time_text)


def described(request: Request) -> str:
    return json.dumps({"summary": "+".join(option.text for option in request.fields["texts"])})


def scores(*values: float) -> str:
    return json.dumps({"reasoning": "", "ranking": [], "relevance_scores": [[at, v] for at, v in enumerate(values)]})


def rated_by(rating: Callable[[str], float]) -> Callable[[Request], str]:
    return lambda request: scores(*(rating(option.text) for option in request.fields["options"]))


def lattice(
    sessions: Sequence[Sequence[str]], script: Mapping[str, Any] | None = None, **settings: Any
) -> tuple[Lattice, ScriptedLLM]:
    flat = rated_by(lambda text: 50)
    llm = ScriptedLLM({"lattice.describe": described, "lattice.navigate": flat, "lattice.leaf": flat, **(script or {})})
    memory = with_settings(Lattice, settings)(llm=llm, embedder=HashingEmbedder(64), prompts=Prompts())
    for number, names in enumerate(sessions):
        for name in names:
            memory.write(unit(name, f"s{number}"))
    memory.consolidate()
    return memory, llm


def rows(*sizes: int) -> list[list[str]]:
    return [[f"w{number}x{place} v{place % 7}" for place in range(size)] for number, size in enumerate(sizes)]


def shown(llm: ScriptedLLM, step: str) -> list[list[str]]:
    return [[option.text for option in r.fields["options"]] for r in llm.requests if r.purpose == f"lattice.{step}"]


def shape(memory: Lattice) -> list[tuple[Any, ...]]:
    return [(node.id, node.parents, node.level, node.text, node.sources) for node in memory.nodes()]


def assert_a_tree(memory: Lattice, count: int, most: int) -> None:
    views = list(memory.nodes())
    leaves = [node for node in views if node.kind == "leaf"]
    assert len(leaves) == len({node.id for node in leaves}) == count
    assert all(node.text for node in views)
    children = [node.parents for node in views]
    assert all(children.count(parents) <= most for parents in children)
    inner = {node.id for node in views if node.kind == "summary"}
    assert inner == {parent for parents in children for parent in parents}


# --- calibration ---


def test_calibration_finds_score_and_bias_of_the_worked_slates() -> None:
    slates = [{"A": 0.8, "B": 0.4}, {"C": 0.6, "A": 0.6}]
    assert calibrated(slates) == pytest.approx({"A": 0.7, "B": 0.3, "C": 0.7})
    slates[1]["B"] = 0.5
    assert calibrated(slates) == pytest.approx({"A": 0.7, "B": 0.45, "C": 0.625})


def test_a_single_slate_is_its_own_calibration() -> None:
    assert calibrated([{"A": 0.8, "B": 0.1, "C": 0.0}]) == {"A": 0.8, "B": 0.1, "C": 0.0}
    assert calibrated([]) == {}


def test_a_constant_added_to_a_slate_changes_no_difference_among_connected_nodes() -> None:
    slates = [{"A": 0.5, "B": 0.4}, {"B": 0.3, "C": 0.5}, {"C": 0.6, "A": 0.45}, {"X": 0.2, "Y": 0.7}]
    before = calibrated(slates)
    moved = calibrated([slates[0], {name: score + 0.06 for name, score in slates[1].items()}, *slates[2:]])
    for one, other in (("A", "B"), ("B", "C"), ("X", "Y")):
        assert moved[one] - moved[other] == pytest.approx(before[one] - before[other])
    assert (moved["X"], moved["Y"]) == (0.2, 0.7)


def test_calibrated_scores_stay_between_zero_and_one() -> None:
    assert calibrated([{"A": 1.0, "B": 0.0}, {"A": 0.0, "C": 0.0}]) == {"A": 0.5, "B": 0.0, "C": 0.5}
    assert calibrated([{"A": 0.0, "B": 1.0}, {"A": 1.0, "C": 1.0}]) == {"A": 0.5, "B": 1.0, "C": 0.5}


def test_calibration_is_the_least_squares_solution() -> None:
    rng = np.random.default_rng(1)
    slates = [{f"n{at}": float(rng.uniform(0.4, 0.6)) for at in rng.choice(6, 4, replace=False)} for _ in range(5)]
    names = sorted({name for slate in slates for name in slate})
    left, right = [], []
    for number, slate in enumerate(slates):
        for name, score in slate.items():
            row = np.zeros(len(names) + len(slates))
            row[names.index(name)] = row[len(names) + number] = 1
            left.append(row)
            right.append(score)
    left.append(np.r_[np.zeros(len(names)), np.ones(len(slates))])
    right.append(0.0)
    solution = np.linalg.lstsq(np.array(left), np.array(right), rcond=None)[0]
    assert calibrated(slates) == pytest.approx(dict(zip(names, solution, strict=False)), abs=1e-6)


# --- the search ---

WORKED = {"lattice.navigate": scores(90, 80), "lattice.leaf": [scores(80, 20), scores(70, 10, 60, 0)]}


def test_the_worked_search() -> None:
    memory, llm = lattice([["a", "b"], ["c", "d"]], WORKED, beam=1, iterations=3)
    recall = memory.read(ASKED)
    assert [(item.id, item.score) for item in recall.items] == [
        ("c", pytest.approx(0.85)),
        ("a", pytest.approx(0.825)),
        ("d", pytest.approx(0.55)),
        ("b", pytest.approx(0.525)),
    ]
    assert llm.purposes[2:] == ["lattice.navigate", "lattice.leaf", "lattice.leaf"]
    assert shown(llm, "navigate") == [["a+b", "c+d"]]
    assert shown(llm, "leaf") == [["a", "b"], ["c", "d", "a", "b"]]


def test_the_worked_search_calibrates_and_weighs_paths() -> None:
    memory, _ = lattice([["a", "b"], ["c", "d"]], WORKED, beam=1, iterations=3)
    search = memory.search(ASKED)
    assert {name: search.latent[name] for name in "abcd"} == pytest.approx({"a": 0.7, "b": 0.1, "c": 0.8, "d": 0.2})
    assert (search.path["node-0"], search.path["node-1"]) == pytest.approx((0.95, 0.9))


@pytest.mark.parametrize(
    ("mode", "score", "path"),
    [
        ("paper", 60, 0.8),
        ("code", 60, 0.8),
        ("paper", 0, 0.5),
        ("code", 0, 0.0),
        ("paper", 5, 0.525),
        ("code", 5, 0.05),
        ("code", 9, 0.09),
        ("code", 10, 0.55),
    ],
)
def test_path_relevance_of_a_child_of_the_root(mode: str, score: float, path: float) -> None:
    script = {"lattice.navigate": scores(score, 100)}
    memory, _ = lattice([["a", "b"], ["c", "d"]], script, iterations=1, mode=mode)
    assert memory.search(ASKED).path["node-0"] == pytest.approx(path)


def test_path_relevance_of_a_grandchild() -> None:
    script = {"lattice.navigate": scores(60, 0), "lattice.leaf": scores(90, 0)}
    for alpha, path in ((0.5, 0.85), (0.0, 0.9), (1.0, 1.0)):
        memory, _ = lattice([["a", "b"], ["c", "d"]], script, beam=1, iterations=2, alpha=alpha)
        assert memory.search(ASKED).path["a"] == pytest.approx(path)


def test_the_code_keeps_first_scores_for_branches_and_calibrates_leaves_only() -> None:
    sessions = rows(*[2] * 16)
    replies = {"lattice.navigate": lambda request: scores(*range(90, 90 - 7 * len(request.fields["options"]), -7))}
    paper, _ = lattice(sessions, replies, branching=4, iterations=9)
    code, _ = lattice(sessions, replies, branching=4, iterations=9, mode="code")
    search = code.search(ASKED)
    for name, parent in search.parents.items():
        if name.startswith("node"):
            expected = 0.5 * search.first_ratings[name] + 0.5 * search.path[parent.id]
            assert search.path[name] == pytest.approx(expected)
    assert max(search.latent.values()) == 1
    other = paper.search(ASKED)
    assert other.latent != search.latent


def test_leaves_stand_on_calibrated_scores_in_the_code_too() -> None:
    memory, _ = lattice([["a", "b"], ["c", "d"]], WORKED, beam=1, iterations=3, mode="code")
    search = memory.search(ASKED)
    assert all(search.latent[name] != pytest.approx(search.first_ratings[name]) for name in "abc")
    for name in "abcd":
        above = search.path[search.parents[name].id]
        assert search.path[name] == pytest.approx(0.5 * above + 0.5 * search.latent[name])
    plain = calibrated(search.slates)
    highest = max(plain.values())
    assert highest < 1
    assert search.latent == pytest.approx({name: score / highest for name, score in plain.items()})


def test_a_branch_slate_adds_the_best_sibling_in_the_paper_and_the_best_of_the_level_in_the_code() -> None:
    sessions = rows(*[2] * 8)
    script = {"lattice.navigate": lambda request: scores(*[80, 60, 70, 50, 40][: len(request.fields["options"])])}
    for mode in ("paper", "code"):
        memory, llm = lattice(sessions, script, branching=3, beam=1, iterations=3, mode=mode)
        search = memory.search(ASKED)
        top = search.expanded[0].children
        assert len(shown(llm, "navigate")[0]) == len(top)
        at = next(at for at, node in enumerate(search.expanded[1:], 1) if node in top and node.children[0].unit is None)
        node = search.expanded[at]
        extra = shown(llm, "navigate")[1][len(node.children) :]
        siblings = sorted((each for each in top if each is not node), key=lambda each: -search.first_ratings[each.id])
        assert extra == [node.text if mode == "code" else siblings[0].text]


def test_a_leaf_slate_has_at_most_so_many_earlier_finds_each_once() -> None:
    memory, llm = lattice(rows(12, 2), {"lattice.navigate": scores(90, 10)}, branching=12, beam=1, iterations=3)
    memory.read(ASKED)
    first, second = shown(llm, "leaf")
    assert (len(first), len(second), len(set(second))) == (12, 2 + 10, 12)
    assert second[2:] == [text for text in first if text in second]


@pytest.mark.parametrize("mode", ["paper", "code"])
def test_draws_depend_on_question_and_step_and_on_no_other_search(mode: str) -> None:
    def drawn(*questions: str) -> dict[str, list[str]]:
        script = {"lattice.navigate": scores(90, 10), "lattice.leaf": rated_by(lambda text: len(text) * 7 % 60)}
        memory, llm = lattice(rows(30, 2), script, branching=30, beam=1, iterations=3, anchors=5, mode=mode)
        found = {}
        for name in questions:
            memory.read(Question(name, "Where?"))
            found[name] = shown(llm, "leaf")[-1]
        return found

    both, alone = drawn("p", "q"), drawn("q")
    assert both["q"] == alone["q"]
    assert both["p"] != both["q"]


def test_each_expansion_draws_its_own_earlier_finds() -> None:
    memory, _ = lattice(
        rows(12, 2), {"lattice.navigate": scores(90, 10)}, branching=12, beam=1, iterations=2, anchors=5
    )
    search = memory.search(ASKED)
    drawn = [[leaf.id for leaf in search.anchors(search.frontier[0], step)] for step in (2, 3, 2)]
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize(("beam", "iterations"), [(1, 3), (2, 2)])
def test_the_most_promising_nodes_are_expanded_first(beam: int, iterations: int) -> None:
    script = {"lattice.navigate": scores(20, 60, 90)}
    memory, _ = lattice([["a", "b"], ["c", "d"], ["e", "f"]], script, beam=beam, iterations=iterations)
    assert [node.id for node in memory.search(ASKED).expanded] == ["root", "node-2", "node-1"]


def test_without_anchors_slates_hold_children_only() -> None:
    memory, llm = lattice(rows(3, 3), iterations=3, anchors=0)
    memory.read(ASKED)
    assert [len(slate) for slate in shown(llm, "leaf")] == [3, 3]


def test_the_draw_favours_what_scores_high() -> None:
    values = np.array([1, 0.8, 0.5, 0.2])
    weights = 16.0**values
    assert weights.tolist() == pytest.approx([16, 9.19, 4, 1.74], abs=0.01)
    found = gated(np.array([0.9, 0.88, 0.91, 0.1, 0.12, 0.11]))
    assert found[:3].tolist() == pytest.approx((16.0 ** np.array([0.9, 0.88, 0.91])).tolist())
    assert found[3:].tolist() == [1e-4] * 3
    assert gated(np.array([0.5, 0.5])).tolist() == [4.0, 4.0]
    paper = np.exp(values) / np.exp(values).sum()
    assert paper.tolist() == pytest.approx([0.348, 0.285, 0.211, 0.156], abs=1e-3)


@pytest.mark.parametrize(
    ("mode", "shares"), [("paper", [0.348, 0.285, 0.211, 0.156]), ("code", [0.517, 0.297, 0.129, 0.056])]
)
def test_finds_are_drawn_with_the_weights_of_the_mode(
    mode: str, shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of four finds is drawn for each of many questions; calibrated scores and paths are set to the worked values."""
    monkeypatch.setattr("memsys.systems.lattice.search.gated", lambda values: 16.0**values)
    memory, _ = lattice([["a", "b", "c", "d"], ["e", "f"]], iterations=2, beam=1, anchors=1, mode=mode)
    search = memory.search(ASKED)
    assert [leaf.id for leaf in search.leaves] == ["a", "b", "c", "d"]
    for name, value in zip("abcd", (1, 0.8, 0.5, 0.2), strict=True):
        search.path[name] = search.latent[name] = value
    node = search.frontier[0]
    drawn = []
    for number in range(3000):
        search.question = Question(f"q{number}", "")
        drawn.append(search.anchors(node, 2)[0].id)
    assert [drawn.count(name) / 3000 for name in "abcd"] == pytest.approx(shares, abs=0.03)


@pytest.mark.parametrize(("beam", "iterations", "calls"), [(2, 20, 39), (2, 5, 9), (1, 40, 40)])
def test_a_search_costs_at_most_one_call_and_then_the_beam_at_each_step(beam: int, iterations: int, calls: int) -> None:
    memory, llm = lattice(rows(*[1] * 70), branching=8, beam=beam, iterations=iterations)
    before = len(llm.requests)
    search = memory.search(ASKED)
    assert len(llm.requests) - before == len(search.expanded) == calls
    assert len({node.id for node in search.expanded}) == calls
    assert len({leaf.id for leaf in search.leaves}) == len(search.leaves)


def test_a_small_tree_is_read_whole_and_the_search_stops() -> None:
    memory, llm = lattice(rows(2, 2, 2, 2))
    before = len(llm.requests)
    with meter.metering() as ledger:
        memory.read(ASKED)
    assert len(llm.requests) - before == 5
    assert ledger.notes["lattice.leaves_scored"] == ledger.notes["lattice.leaves_held"] == 8


def test_a_short_search_reports_that_it_saw_a_part() -> None:
    memory, _ = lattice(rows(*[2] * 20), iterations=5)
    with meter.metering() as ledger:
        memory.read(ASKED)
    assert 0 < ledger.notes["lattice.leaves_scored"] < ledger.notes["lattice.leaves_held"] == 40


def test_a_leaf_below_a_better_branch_comes_before_one_with_a_better_score_of_its_own() -> None:
    script = {"lattice.navigate": scores(90, 10), "lattice.leaf": [scores(50, 40), scores(60, 0)]}
    memory, _ = lattice([["a", "b"], ["c", "d"]], script, beam=1, iterations=3, anchors=0)
    assert memory.search(ASKED).latent["c"] == 0.6
    memory.llm = ScriptedLLM(script)
    assert [item.id for item in memory.read(ASKED).items] == ["a", "b", "c", "d"]


def test_no_steps_recall_nothing() -> None:
    memory, llm = lattice(rows(2, 2), iterations=0)
    before = len(llm.requests)
    assert memory.read(ASKED).items == ()
    assert len(llm.requests) == before


def test_equal_scores_go_to_the_earlier_leaf_and_k_is_kept() -> None:
    memory, _ = lattice(rows(4, 4), {"lattice.navigate": scores(50, 50)}, k=6)
    assert [item.id[:2] for item in memory.read(ASKED).items] == ["w0"] * 4 + ["w1"] * 2


# --- replies ---


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"relevance_scores": [[0, 50], [1, 130], [2, -4]]}', {0: 0.5, 1: 1.0, 2: 0.0}),
        ('{"relevance_scores": [[-1, 50], [3, 50], [0, 20], ["1", 9], [1], [true, 5], [2, "x"]]}', {0: 0.2}),
        ('{"relevance_scores": [[0, 20], [0, 70]]}', {0: 0.7}),
        ('{"reply": [{"relevance_scores": [[1, 10]]}]}', {1: 0.1}),
        ('Here: ```json\n{"relevance_scores": [[1, 10]]}\n```', {1: 0.1}),
        ('{"relevance_scores": [[0, 10], [1, 20], [2', {0: 0.1, 1: 0.2}),
        ('{"relevance_scores": [[0.5, 10]]}', None),
        *((text, None) for text in GARBAGE),
    ],
)
def test_what_can_be_used_of_a_reply_is_used(text: str, found: dict[int, float] | None) -> None:
    assert ratings(text, 3) == found


def test_a_child_without_a_score_gets_zero_and_a_find_without_one_is_not_rated() -> None:
    script = {
        "lattice.navigate": scores(90, 80),
        "lattice.leaf": [scores(80, 20), '{"relevance_scores": [[0, 70], [2, 60]]}'],
    }
    memory, _ = lattice([["a", "b"], ["c", "d"]], script, beam=1, iterations=3)
    assert memory.search(ASKED).slates[-1] == {"c": 0.7, "d": 0.0, "a": 0.6}


@pytest.mark.parametrize("reply", GARBAGE)
def test_a_node_whose_reply_is_unusable_twice_is_marked_and_its_children_score_zero(reply: str) -> None:
    script = {"lattice.navigate": scores(90, 80), "lattice.leaf": [reply, reply, scores(70, 10)]}
    memory, llm = lattice([["a", "b"], ["c", "d"]], script, beam=1, iterations=3)
    before = shape(memory)
    with meter.metering() as ledger:
        search = memory.search(ASKED)
    assert (search.failed, ledger.notes["lattice.unrated_node"], ledger.parse_failures["lattice.leaf"]) == (1, 1, 2)
    assert search.slates[1] == {"a": 0.0, "b": 0.0}
    assert [r.retry for r in llm.requests if r.purpose == "lattice.leaf"] == [0, 1, 0]
    assert [node.id for node in search.expanded] == ["root", "node-0", "node-1"]
    assert shape(memory) == before


def test_one_retry_is_enough() -> None:
    memory, _ = lattice(rows(2, 2), {"lattice.navigate": ["?", scores(10, 90)]}, iterations=1)
    search = memory.search(ASKED)
    assert (search.failed, search.path["node-1"]) == (0, pytest.approx(0.95))


def test_a_call_that_fails_for_good_is_not_swallowed() -> None:
    memory, _ = lattice(rows(2, 2), {"lattice.navigate": ModelError("gone")})
    with pytest.raises(ModelError):
        memory.read(ASKED)


def test_slates_show_one_line_each_and_the_dates_and_are_cut_when_too_long() -> None:
    memory, llm = lattice([])
    turns = (Turn("t1", "Ann", "Hello there."), Turn("t2", "Bo", "Good day."))
    memory.write(Unit("u1", turns, "s1", None, "7 May 2023"))
    memory.write(Unit("u2", (Turn("t3", "Ann", "word " * 900),), "s1", None, "7 May 2023"))
    memory.consolidate()
    memory.read(ASKED)
    assert shown(llm, "leaf")[0][0] == "[7 May 2023] Ann: Hello there. Bo: Good day."
    assert "9 May 2023" in llm.requests[-1].messages[1][1]
    memory = tuned(memory, {"slate_tokens": 200})
    with meter.metering() as ledger:
        memory.read(ASKED)
    assert sum(map(count_tokens, shown(llm, "leaf")[-1])) <= 200
    assert ledger.notes["lattice.slate_cut"] == 2  # the branch and its leaves


def test_texts_are_cut_by_hundreds_of_characters_to_a_common_length() -> None:
    cut = fitted(["a b " * 100, "short"], 100)
    assert cut[1] == "short"
    assert sum(map(count_tokens, cut)) <= 100
    assert fitted(["x y " * 500] * 3, 10) == [("x y " * 500)[:100]] * 3


# --- the tree ---


def test_sessions_are_cut_into_stretches_of_at_most_the_branching() -> None:
    memory, llm = lattice(rows(3, 25, 10), branching=10)
    level = [node for node in memory.nodes() if node.level == 1]
    assert [len(node.sources) for node in level] == [3, 10, 10, 5, 10]
    assert llm.purposes == ["lattice.describe"] * 5
    assert_a_tree(memory, 38, 10)


def test_the_small_fixture_copies_the_single_leaf() -> None:
    memory, llm = lattice([["a", "b"], ["c"]])
    assert [(node.id, node.text) for node in memory.nodes()][:2] == [("node-0", "a+b"), ("node-1", "c")]
    assert len(llm.requests) == 1
    search = memory.search(ASKED)
    assert (len(search.expanded), len(search.leaves)) == (3, 3)


@pytest.mark.parametrize("settings", [{}, {"init": "scratch"}])
@pytest.mark.parametrize("branching", [2, 3, 7])
def test_every_leaf_is_in_the_tree_once_and_no_node_has_too_many_children(
    branching: int, settings: dict[str, Any]
) -> None:
    memory, llm = lattice(rows(3, 14, 1, 9, 6, 20), branching=branching, **settings)
    assert_a_tree(memory, 53, branching)
    inner = [node for node in memory.nodes() if node.kind == "summary"]
    several = [node for node in inner if sum(node.id in other.parents for other in memory.nodes()) > 1]
    assert len(llm.requests) == len(several)


@pytest.mark.parametrize("limit", [2, 5, 10])
def test_clusters_are_small_enough_few_enough_and_the_same_every_time(limit: int) -> None:
    for seed in range(3):
        vectors = normalised(np.random.default_rng(seed).normal(size=(41, 8)).astype(np.float32))
        found = clusters(vectors, limit, 0)
        assert sorted(row for group in found for row in group) == list(range(41))
        assert max(map(len, found)) <= limit
        assert len(found) <= 21
        assert found == clusters(vectors, limit, 0)


def test_clusters_hold_what_is_alike() -> None:
    vectors = normalised(np.array([[1, 0, 0.1 * n] if n % 2 else [0, 1, 0.1 * n] for n in range(10)], dtype=np.float32))
    assert clusters(vectors, 5, 0) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_of_too_many_clusters_the_nearest_single_ones_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = normalised(np.array([[1, 0, 0], [0, 1, 0], [1, 0.1, 0], [0, 1, 0.3], [0, 0, 1]], dtype=np.float32))
    monkeypatch.setattr("memsys.systems.lattice.search._divided", lambda *_: [[row] for row in range(5)])
    assert clusters(vectors, 2, 0) == [[0, 2], [1, 3], [4]]


def test_equal_and_empty_vectors_can_be_clustered() -> None:
    for vectors in (np.ones((12, 3), dtype=np.float32) / 3**0.5, np.zeros((12, 3), dtype=np.float32)):
        found = clusters(vectors, 5, 0)
        assert max(map(len, found)) <= 5
        assert sum(map(len, found)) == 12


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ('{"children": [{"line": "One."}, {"line": "Two."}], "summary": " "}', "One. Two."),
        ("", "First. Second."),
        ("prose", "First. Second."),
        ('{"summary": 7}', "First. Second."),
        ('{"children": []}', "First. Second."),
    ],
)
def test_a_description_that_does_not_come_is_pieced_together(reply: str, text: str) -> None:
    with meter.metering() as ledger:
        memory, _ = lattice([["First. More of it.", "Second. And more."]], {"lattice.describe": reply})
    assert next(memory.nodes()).text == text
    assert ledger.notes["lattice.pieced_description"] == memory.report()["fallbacks"] == 1


def test_a_build_on_a_prefix_knows_nothing_of_what_follows() -> None:
    memory, _ = lattice(rows(3, 3))
    assert "later" not in repr(shape(memory))
    memory.write(unit("later", "s9"))
    assert memory.held == 6
    memory.consolidate()
    assert "later" in repr(shape(memory))
    assert shape(memory) == shape(lattice([*rows(3, 3), ["later"]])[0])


# --- top-down ---


def fives(request: Request) -> str:
    text = request.fields["text"]
    return json.dumps({"keywords": [f"Topic {text[1]}", text, text + " x", text + " y", text + " z"]})


def by_topic(request: Request) -> str:
    labels = [text.rsplit(" (", 1)[0] for text in request.fields["texts"]]
    firsts = sorted({label[1] for label in labels})
    topics = [
        {
            "name": f"t{first}",
            "description": f"All of {first}",
            "keywords": [label for label in labels if label[1] == first],
        }
        for first in firsts
    ]
    return json.dumps({"clusters": topics})


def topical(script: Mapping[str, Any], **settings: Any) -> tuple[Lattice, ScriptedLLM]:
    sessions = [[f"w{place % 3}n{place}" for place in range(12)]]
    known = {"lattice.keywords": fives, "lattice.partition": by_topic, **script}
    return lattice(sessions, known, **({"build": "top_down", "branching": 4} | settings))


def test_a_top_down_build_sorts_units_by_the_first_level_of_labels_that_is_fine_enough() -> None:
    memory, llm = topical({})
    assert llm.purposes == ["lattice.keywords"] * 12 + ["lattice.partition"]
    assert llm.requests[-1].fields["texts"][0] == "w0n0 (1)"
    assert (llm.requests[-1].fields["least"], llm.requests[-1].fields["most"]) == (2, 4)
    topics = [node for node in memory.nodes() if node.kind == "summary"]
    assert [node.text for node in topics] == ["All of 0", "All of 1", "All of 2"]
    assert topics[1].sources == ("t-w1n1", "t-w1n4", "t-w1n7", "t-w1n10")
    assert_a_tree(memory, 12, 4)


def test_a_topic_that_is_too_large_is_split_again() -> None:
    memory, llm = topical({}, branching=3)
    assert llm.purposes.count("lattice.partition") == 1 + 3
    assert_a_tree(memory, 12, 3)
    assert max(node.level for node in memory.nodes()) == 2


def test_labels_in_no_topic_go_to_the_most_similar_and_in_two_to_the_first() -> None:
    reply = json.dumps({"clusters": [
        {"name": "w0n0", "description": "", "keywords": ["w0n0", "w1n1"]},
        {"name": "w1n4", "description": "w2n5", "keywords": ["w1n1", "W2N2"]},
        {"name": "nobody", "description": "", "keywords": ["other"]},
    ]})  # fmt: skip
    memory, _ = topical({"lattice.partition": reply}, branching=11)
    first = {turn for node in memory.nodes() if node.text == "w0n0" and node.kind == "summary" for turn in node.sources}
    second = {
        turn for node in memory.nodes() if node.text == "w2n5" and node.kind == "summary" for turn in node.sources
    }
    assert {"t-w0n0", "t-w1n1"} <= first
    assert {"t-w2n2", "t-w1n4", "t-w2n5"} <= second
    assert "nobody" not in [node.text for node in memory.nodes()]
    assert len(first) + len(second) == 12


def test_topics_beyond_the_branching_are_dropped_and_their_labels_go_to_the_others() -> None:
    def one_each(request: Request) -> str:
        labels = [text.rsplit(" (", 1)[0] for text in request.fields["texts"]]
        return json.dumps({"clusters": [{"name": f"t{one}", "description": "", "keywords": [one]} for one in labels]})

    memory, _ = topical({"lattice.partition": one_each})
    top = [node for node in memory.nodes() if not node.parents]
    assert {node.text for node in top} == {f"tw{place % 3}n{place}" for place in range(4)}
    assert_a_tree(memory, 12, 4)


def test_one_topic_for_all_is_replaced_by_stretches_of_time() -> None:
    reply = json.dumps({"clusters": [{"name": "all", "description": "all", "keywords": []}]})
    memory, _ = topical({"lattice.partition": reply})
    level = [node for node in memory.nodes() if node.level == 1]
    assert [node.sources[0] for node in level] == ["t-w0n0", "t-w1n4", "t-w2n8"]


@pytest.mark.parametrize("reply", ["", "prose", '{"clusters": [', "[]", '{"clusters": 3}'])
def test_an_unreadable_partition_is_replaced_by_clusters(reply: str) -> None:
    with meter.metering() as ledger:
        memory, llm = topical({"lattice.partition": reply})
    assert ledger.notes["lattice.clustered_instead"] == 1
    assert llm.purposes.count("lattice.partition") == 2
    assert_a_tree(memory, 12, 4)


@pytest.mark.parametrize("reply", ["", "prose", '{"keywords": ["one"]}', "[]", '{"keywords": 3}'])
def test_a_unit_without_labels_is_labelled_by_its_first_words(reply: str) -> None:
    with meter.metering() as ledger:
        memory, llm = topical({"lattice.keywords": reply})
    assert ledger.notes["lattice.first_words"] == 12
    assert "w0n0 (1)" in llm.requests[-1].fields["texts"]
    assert_a_tree(memory, 12, 4)


# --- settings and rows ---


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("mode", "both"),
        ("build", "up"),
        ("init", "none"),
        ("k", 0),
        ("branching", 1),
        ("alpha", 1.5),
        ("iterations", -1),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        lattice([], **{setting: value})


def test_the_small_row_differs_in_its_steps_only() -> None:
    large, small = (
        yaml.safe_load((CONF / f"{name}.yaml").read_text())["build"] for name in ("lattice", "lattice_small")
    )
    assert (large["beam"], large["iterations"], large["alpha"], large["anchors"]) == (2, 20, 0.5, 10)
    assert {key for key in large if large[key] != small[key]} == {"iterations"}
    assert small["iterations"] == 5


def test_the_order_of_searches_does_not_matter() -> None:
    memory, _ = lattice(rows(12, 12, 3), branching=12, anchors=4)
    other = Question("p", "And the lock?")
    first = [memory.read(ASKED), memory.read(other)]
    assert [memory.read(other), memory.read(ASKED)] == first[::-1]


def test_the_offline_engine_finds_what_a_branch_describes_in_another_order_than_plain_similarity() -> None:
    memory = with_settings(Lattice, {"k": 5, "branching": 4})(
        llm=ExtractiveLLM(), embedder=HashingEmbedder(), prompts=Prompts()
    )
    dense = Dense(embedder=HashingEmbedder(), k=5)
    for number in range(20):
        text = (
            "The brass key hangs in the boathouse."
            if number == 11
            else f"Item {number} is a key figure of list {number * 7}."
        )
        for each in (memory, dense):
            each.write(Unit(f"u{number}", (Turn(f"t{number}", "Ann", text),), f"s{number // 5}"))
    memory.consolidate()
    dense.consolidate()
    question = Question("q", "Where does the brass key hang?")
    found = [item.id for item in memory.read(question).items]
    assert found[0] == "u11"
    assert found != [item.id for item in dense.read(question).items]


def test_ratings_that_were_cut_are_no_ratings() -> None:
    cut = Completion(scores(60, 90)[:-8], stopped="cut")
    memory, _ = lattice([["a", "b"], ["c", "d"]], {"lattice.navigate": cut}, beam=1, iterations=1)
    with metering() as ledger:
        memory.read(ASKED)
    assert ledger.parse_failures == {"lattice.navigate": 2}
    assert ledger.notes["lattice.unrated_node"] == 1
