"""Points of figures by hand, and the sheets they are drawn on: same bytes, names where they belong, nothing published that is ours."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_loaders.schema import Case, Session, Turn
from eval.files.store import RunError, write_lines
from eval.report.cell import Asked, Cell, Column
from eval.report.figures import _key, draw, save
from eval.report.panels import BANDS, COLOURS, KINDS, Sheet, Style, apart
from eval.report.points import (
    FIELDS,
    Point,
    as_csv,
    averaged,
    by_depth,
    drawn_tree,
    front,
    mapped,
    projected,
    recalled_levels,
    scored,
)
from eval.report.published import Published
from eval.report.tables import Measure
from eval.statistics.stats import Estimate, Interval, preferred_interval
from eval.structure.tree import Tree

pytestmark = pytest.mark.slow

QUESTIONS = tuple(Asked(case, f"q{number}", "", case, True, False) for case in ("a", "b") for number in (1, 2))
PRINTED = Published("P", "T1", "D", "", "m", "", "", "acc", 50.0, 45.0, 55.0, None, "", "50.0").divided(100.0)
AT = Point("panel", "line", 0.5, 0.0)


def cell(folder: Path, name: str, values: dict[str, float], **more: Any) -> Cell:
    """A cell whose score file holds `values` by case and question, such as `a/q1`."""
    path = folder / f"{name}.jsonl"
    lines = []
    for key, value in values.items():
        case, _, question = key.partition("/")
        lines.append(
            {
                "case_id": case,
                "question_id": question,
                "repeat": 0,
                "value": value,
                "why": "",
                "detail": {},
                "answer": "",
            }
        )
    write_lines(path, lines)
    return Cell(Column("d", "D", "acc", QUESTIONS), {}, (path,), **more)


def tree(parents: list[tuple[int, ...]], sources: list[tuple[str, ...]], **more: Any) -> Tree:
    size = len(parents)
    vectors = np.random.default_rng(0).normal(size=(size, 4)).astype(np.float32)
    return Tree(
        "case",
        tuple(f"n{number}" for number in range(size)),
        tuple(parents),
        tuple(more.pop("levels", [0] * size)),
        ("leaf",) * size,
        tuple(more.pop("texts", [f"text {number}" for number in range(size)])),
        tuple(sources),
        more.pop("vectors", vectors),
        more.pop("hidden_root", False),
    )


def history() -> Case:
    sessions = tuple(
        Session(f"s{number}", tuple(Turn(f"t{number}{letter}", "ann", "hello") for letter in "ab")) for number in (1, 2)
    )
    return Case("case", ("ann", "bob"), sessions, ())


# --- points of scores ---------------------------------------------------------------------------------------------------


def test_several_settings_under_one_mark_are_averaged_question_by_question(tmp_path: Path) -> None:
    first = cell(tmp_path, "first", {"a/q1": 1.0, "a/q2": 0.0, "b/q1": 1.0, "b/q2": 1.0})
    second = cell(tmp_path, "second", {"a/q1": 0.0, "a/q2": 0.0, "b/q1": 1.0})
    found = averaged([first, second])
    assert found is not None
    assert found.n == 3  # b/q2 has no score in one of them
    assert found.mean == pytest.approx((0.5 + 0.0 + 1.0) / 3)


def test_a_mean_over_cases_stays_one_when_settings_are_averaged(tmp_path: Path) -> None:
    values = {"a/q1": 1.0, "a/q2": 1.0, "b/q1": 0.0}
    cells = [cell(tmp_path, name, values) for name in ("first", "second")]
    cells = [replace(one, column=replace(one.column, aggregate="case")) for one in cells]
    found = averaged(cells)
    assert found is not None
    assert found.mean == pytest.approx(0.5)


def test_costs_are_not_averaged_question_by_question() -> None:
    figure = Measure(Estimate(3.0, 1, None, None, 0))
    assert averaged([figure]) == figure.ours
    with pytest.raises(ValueError, match="cannot be averaged"):
        averaged([figure, figure])


def test_a_published_number_is_scaled_and_stays_apart_from_ours(tmp_path: Path) -> None:
    one = cell(tmp_path, "one", {"a/q1": 1.0, "b/q1": 0.0}, published=PRINTED)
    ours, theirs = scored(AT, [one])
    interval = preferred_interval(one.estimate())
    assert interval is not None
    assert (ours.origin, ours.y, ours.low, ours.high, ours.n) == ("ours", 0.5, interval.low, interval.high, 2)
    assert (theirs.origin, theirs.y, theirs.low, theirs.high, theirs.n) == ("published", 0.5, 0.45, 0.55, 0)
    assert (theirs.panel, theirs.series, theirs.x) == (AT.panel, AT.series, AT.x)


def test_where_settings_are_averaged_no_published_number_stands(tmp_path: Path) -> None:
    cells = [cell(tmp_path, name, {"a/q1": 1.0}, published=PRINTED) for name in ("first", "second")]
    assert [point.origin for point in scored(AT, cells)] == ["ours"]


def test_a_cell_without_a_score_has_no_mark(tmp_path: Path) -> None:
    assert scored(AT, ["pending"]) == []
    assert scored(AT, [cell(tmp_path, "none", {})]) == []


@pytest.mark.parametrize(("clusters", "low"), [(4, 0.1), (5, 0.2)])
def test_the_interval_is_by_case_from_five_histories_on(clusters: int, low: float) -> None:
    found = preferred_interval(Estimate(0.5, 9, Interval(0.1, 0.9), Interval(0.2, 0.8), clusters))
    assert found is not None
    assert found.low == low


def test_the_csv_has_a_line_a_point_and_names_its_engine_in_each() -> None:
    text = as_csv([AT, replace(AT, x="", low=0.123456789)], "STAND-IN: reader")
    rows = list(csv.DictReader(text.splitlines()))
    assert list(rows[0]) == [*FIELDS, "engine"]
    assert [row["engine"] for row in rows] == ["STAND-IN: reader"] * 2
    assert (rows[0]["low"], rows[1]["low"], rows[1]["x"]) == ("", "0.123457", "")


def test_levels_are_counted_over_the_items_of_all_questions(tmp_path: Path) -> None:
    case = tmp_path / "cases" / "a"
    items = [{"key": f"k{level}", "id": "i", "text": "", "sources": [], "kind": "", "level": level} for level in (0, 2)]
    write_lines(case / "items.jsonl", items)
    line = {"case_id": "a", "answer": "", "outcome": "answered", "error": ""}
    write_lines(
        case / "predictions.jsonl",
        [
            {**line, "question_id": "q1", "items": ["k0", "k2"], "scores": [1.0, 0.5]},
            {**line, "question_id": "q2", "items": ["k0"], "scores": [1.0]},
        ],
    )
    assert recalled_levels(tmp_path) == Counter({0: 2, 2: 1})


# --- points of trees ----------------------------------------------------------------------------------------------------

SMALL = tree(
    [(), (0,), (0,), (1,)], [("t1a", "t1b", "t2a"), ("t1b",), ("t2a",), ("t1b",)], texts=["a", "a b", "a b c", "a"]
)


def test_nodes_and_tokens_are_those_of_each_depth() -> None:
    at = Point("", "MemTree", "", 0.0)
    nodes = {point.x: point.y for point in by_depth([SMALL, SMALL], at, "nodes")}
    tokens = {point.x: (point.low, point.y, point.high) for point in by_depth([SMALL, SMALL], at, "tokens")}
    assert nodes == {0.0: 1.0, 1.0: 2.0, 2.0: 1.0}
    assert tokens[1.0] == (2.0, 2.5, 3.0)


def test_leaves_stand_in_the_order_of_the_history_and_parents_above_their_middle() -> None:
    mixed = tree([(), (0,), (0,), (0,)], [("t1a", "t2a"), ("t2a",), ("t1a",), ("t1b",)])
    root, late, first, second = drawn_tree(mixed, history(), "tree")
    assert [first.x, second.x, late.x, root.x] == [0.0, 1.0, 2.0, 1.0]
    assert [point.y for point in (root, late)] == [0.0, -1.0]
    assert [point.series for point in (root, late)] == ["inner", "leaf"]
    assert (first.shade, late.shade, root.shade) == (1.0, 2.0, 1.5)


def test_a_node_with_several_parents_is_drawn_once_and_linked_to_all() -> None:
    shared = tree([(), (), (0, 1), (1,)], [("t1a",), ("t2a",), ("t1a",), ("t2a",)])
    points = drawn_tree(shared, history(), "tree")
    assert len(points) == 4
    assert points[2].link == "0 1"
    assert [point.x for point in points] == [0.0, 1.0, 0.0, 1.0]  # below the first of them


def test_a_hidden_root_is_drawn_above_the_topmost_nodes() -> None:
    points = drawn_tree(tree([(), ()], [("t1a",), ("t2a",)], hidden_root=True), history(), "tree")
    assert (points[-1].label, points[-1].x, points[-1].y) == ("(root)", 0.5, 0.0)
    assert [point.link for point in points] == ["2", "2", ""]
    assert [point.y for point in points[:2]] == [-1.0, -1.0]


# --- points of maps, and the front --------------------------------------------------------------------------------------


def test_the_projection_keeps_the_directions_of_most_variance_with_fixed_signs() -> None:
    flat = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0], [4.0, 2.0]])
    turned = np.hstack([np.zeros((4, 1)), -flat])
    found = projected(turned, "pca", 0)
    assert np.ptp(found[:, 0]) == pytest.approx(4.0)
    assert np.ptp(found[:, 1]) == pytest.approx(2.0)
    assert np.allclose(projected(turned, "pca", 1), found)
    assert np.allclose(projected(-turned, "pca", 0), -found)  # signs follow the axes, not the solver


def test_a_map_has_a_panel_a_level_and_leaves_out_what_has_no_vector() -> None:
    vectors = np.eye(4, dtype=np.float32)
    vectors[3] = 0
    points = mapped([tree([(), (0,), (0,), (0,)], [()] * 4, levels=[1, 0, 0, 0], vectors=vectors)], "LoCoMo")
    assert [point.panel for point in points] == ["LoCoMo, level 0"] * 2 + ["LoCoMo, level 1"]
    assert {point.label for point in points} == {"n0", "n1", "n2"}


def test_what_cannot_be_mapped_is_refused() -> None:
    with pytest.raises(RunError, match="needs three nodes"):
        mapped([tree([(), (0,)], [(), ()])], "x")
    with pytest.raises(RunError, match="projection must be one of pca, umap, found 'tsne'"):
        projected(np.eye(4), "tsne", 0)


def test_the_front_holds_what_nothing_else_beats_in_both() -> None:
    good, cheap, worse, same = (replace(AT, series=name) for name in "gcws")
    good, cheap = replace(good, x=10.0, y=0.9), replace(cheap, x=1.0, y=0.5)
    worse, same = replace(worse, x=10.0, y=0.5), replace(same, x=1.0, y=0.5)
    dearer = replace(good, series="d", x=11.0)
    assert [point.series for point in front([good, cheap, worse, same, dearer])] == ["g", "c", "s"]


# --- drawing ------------------------------------------------------------------------------------------------------------

FOOT = ("STAND-IN: reader filled by offline engines without a model.",)
LINE = [replace(AT, x=float(x), y=y, low=y - 0.1, high=y + 0.1) for x, y in ((1, 0.2), (2, 0.4), (3, 0.3))]
LEVEL = replace(AT, series="none", x="", y=0.35)


def texts(figure: Any) -> list[str]:
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in [*axes.texts, axes.title, axes._left_title]]
    return [text for text in found if text]


def points_of(kind: str) -> list[Point]:
    if kind == "tree":
        return drawn_tree(SMALL, history(), "tree")
    if kind == "stacked":
        return [replace(AT, series=f"level {level}", x=0.1, y=0.5) for level in (0, 1)]
    return [*LINE, *([LEVEL] if kind == "lines" else [])]


@pytest.mark.parametrize("kind", ["lines", "tree"])  # what is drawn by panels, and what is drawn whole
def test_the_same_points_give_the_same_bytes(kind: str, tmp_path: Path) -> None:
    sheet = Sheet("Title", FOOT, kind)
    for name in ("first", "second"):
        save(draw(sheet, points_of(kind)), tmp_path / name, "about")
    for suffix in ("pdf", "png"):
        first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("first", "second"))
        assert first == second
        assert not re.search(rb"/(CreationDate|ModDate|Producer)", first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.pdf", "first.png", "second.pdf", "second.png"]


def test_every_kind_carries_title_panel_and_footnote_and_nothing_is_beyond_the_paper(subtests: pytest.Subtests) -> None:
    title = "A title long enough to be broken into several lines of print"
    for kind in sorted(KINDS):
        with subtests.test(kind=kind):
            figure = draw(Sheet(title, FOOT, kind), points_of(kind))
            said = texts(figure)
            assert title in [" ".join(text.split()) for text in said]
            assert points_of(kind)[0].panel in said
            assert FOOT[0].split()[0] in " ".join(said)
            assert figure.get_size_inches()[0] == pytest.approx(3.3)
            box = figure.get_tightbbox()
            assert box.x0 >= -0.02
            assert box.x1 <= 3.32
            assert box.y0 >= -0.02
            assert box.y1 <= figure.get_size_inches()[1] + 0.02


def test_lines_are_named_where_they_end_and_bands_are_the_intervals() -> None:
    (axes,) = draw(Sheet("Title", FOOT, "lines"), [*LINE, LEVEL]).axes
    assert {text.get_text() for text in axes.texts} == {"line", "none"}
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (pytest.approx(0.1), pytest.approx(0.5))


def test_many_intervals_are_strokes_side_by_side_that_the_panel_holds() -> None:
    spread = {"low": 0.1, "high": 0.9}
    points = [replace(AT, x=x, y=0.5, series=f"s{number}", **spread) for x in (1.0, 2.0) for number in range(BANDS + 1)]
    (axes,) = draw(Sheet("Title", FOOT, "lines"), points).axes
    assert len(axes.collections) == BANDS + 1
    left = []
    for strokes in axes.collections:
        ends = strokes.get_transform().transform(strokes.get_paths()[0].vertices)
        assert strokes.get_paths()[0].vertices[:, 1].tolist() == [0.1, 0.9]
        left.append(ends[0, 0])
    assert left == sorted(set(left)), "no stroke stands on another"
    low, high = axes.get_ylim()
    assert low < 0.1
    assert high > 0.9


def test_only_the_panels_that_are_named_have_a_logarithmic_axis() -> None:
    points = [replace(AT, x=x, y=10**x, panel=panel) for panel in ("share", "bytes") for x in (1.0, 2.0)]
    named = {
        axes.get_title("left"): axes for axes in draw(Sheet("Title", FOOT, "lines", log_y=("bytes",)), points).axes
    }
    assert {name: axes.get_yscale() for name, axes in named.items()} == {"share": "linear", "bytes": "symlog"}
    both = draw(Sheet("Title", FOOT, "lines", log_y=True), points).axes
    assert [axes.get_yscale() for axes in both] == ["symlog", "symlog"]


def test_published_points_are_open_diamonds_and_the_key_says_so() -> None:
    figure = draw(Sheet("Title", FOOT, "lines"), [*LINE, replace(AT, x=2.0, y=0.9, origin="published")])
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "D"]
    assert [tuple(line.get_ydata()) for line in marks] == [(0.9,)]
    assert [line.get_markerfacecolor() for line in marks] == ["white"]
    assert "published" in texts(figure)
    assert "published" not in texts(draw(Sheet("Title", FOOT, "lines"), LINE))
    (axes,) = draw(Sheet("Title", FOOT, "lines"), [*LINE, LEVEL, replace(LEVEL, y=0.5, origin="published")]).axes
    (mark,) = [line for line in axes.lines if line.get_marker() == "D"]
    assert mark.get_color() == next(text for text in axes.texts if text.get_text() == "none").get_color()


def test_long_names_of_panels_side_by_side_stay_on_the_paper() -> None:
    names = [f"LongMemEval-MAB, {way}" for way in ("bottom-up", "top-down")]
    points = [replace(point, panel=name) for name in names for point in [*LINE, LEVEL]]
    figure = draw(Sheet("Title", FOOT, "lines", across=2, y_label="score of the judge"), points)
    assert [" ".join(axes.get_title("left").split()) for axes in figure.axes] == names
    assert figure.get_tightbbox().x1 <= 3.32


def test_the_key_names_the_series_that_are_drawn_and_numbers_a_front_in_order() -> None:
    def names(sheet: Sheet, points: list[Point], *series: str) -> list[str]:
        return [name for name, _ in _key(sheet, points, Style(series))]

    bar, line = Point("p", "bm25", "x", 0.5), Point("p", "mean", "x", 0.5)
    stacked = Sheet("Title", FOOT, "stacked", overlay="mean")
    assert names(stacked, [bar], "bm25", "dense", "mean") == ["■ bm25", "■ dense"]
    assert names(stacked, [bar, line], "bm25", "dense", "mean")[2:] == ["–•– mean"]
    assert names(stacked, [bar], "bm25", "mean") == [], "one series needs no name"
    assert names(Sheet("Title", FOOT, "map"), [bar], "bm25", "dense") == ["● bm25", "■ dense"]
    rows = [Point("p", f"row {at}", float(at), float(at), label=str(at)) for at in (2, 10)]
    rows.append(Point("p", "row 11", 11.0, 1.0, label="11"))
    assert names(Sheet("Title", FOOT, "pareto"), rows, "row 2", "row 10", "row 11") == ["2 row 2", "10 row 10"]


def test_a_star_stands_at_the_best_and_tells_the_gain_over_the_level() -> None:
    figure = draw(Sheet("Title", FOOT, "lines", stars=True), [*LINE, replace(LEVEL, y=0.32)])
    (star,) = [line for line in figure.axes[0].lines if line.get_marker() == "*"]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (2.0, 0.4)
    assert "+25.0 %" in texts(figure)


def test_settings_at_equal_distances_keep_their_order_as_numbers() -> None:
    points = [replace(AT, x=x, y=0.1) for x in (0.5, 0.05, 0.1)]
    (axes,) = draw(Sheet("Title", FOOT, "lines", spacing="even"), points).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [".5", ".05", ".1"]
    assert list(axes.get_xticks()) == [2.0, 0.0, 1.0]


def test_bars_are_as_long_as_their_values_and_say_them() -> None:
    (axes,) = draw(Sheet("Title", FOOT, "bars"), [replace(AT, x="a", y=0.25), replace(AT, x="b", y=1234.5)]).axes
    assert [bar.get_width() for bar in axes.patches] == [0.25, 1234.5]
    assert [text.get_text() for text in axes.texts] == ["0.250", "1,234"]


def test_stacked_parts_stand_on_top_of_one_another() -> None:
    parts = [replace(AT, series=name, x="a", y=share) for name, share in (("low", 0.3), ("high", 0.7))]
    figure = draw(Sheet("Title", FOOT, "stacked", overlay="score"), [*parts, replace(AT, series="score", x="a", y=0.6)])
    (axes,) = figure.axes
    assert [(bar.get_y(), bar.get_height()) for bar in axes.patches] == [(0.0, 0.3), (0.3, 0.7)]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.6]]


def test_every_link_of_a_tree_is_drawn_once() -> None:
    from matplotlib.collections import LineCollection

    figure = draw(Sheet("Title", FOOT, "tree"), drawn_tree(SMALL, history(), "tree"))
    (links,) = [one for one in figure.axes[0].collections if isinstance(one, LineCollection)]
    assert len(links.get_segments()) == 3


def test_only_the_non_dominated_are_named_in_a_pareto_figure() -> None:
    points = [replace(AT, series="Good", label="1", x=5.0, y=0.9), replace(AT, series="Bad", label="2", x=6.0, y=0.5)]
    figure = draw(Sheet("Title", FOOT, "pareto"), points)
    assert [text.get_text() for text in figure.axes[0].texts] == ["1"]
    assert {"1", "Good"} <= set(texts(figure))
    assert "Bad" not in texts(figure)


@pytest.mark.parametrize("free", [True, False])
def test_a_pareto_figure_of_34_rows_keeps_labels_and_ticks_apart_and_on_the_paper(free: bool) -> None:
    rng = np.random.default_rng(0)
    costs = [0.0] * 4 * free + sorted(float(cost) for cost in rng.uniform(1, 4, 34 - 4 * free))
    points = [
        replace(
            AT,
            series=f"A memory of number {place}",
            label=str(place),
            x=round(10**cost) if cost else 0.0,
            y=0.2 + place / 60,
        )
        for place, cost in enumerate(costs, 1)
    ]
    points += [replace(point, panel="other") for point in points]
    figure = draw(Sheet("Title", FOOT, "pareto", spacing="log", height=1.75, across=2), points)
    axes = figure.axes[1]
    ticks = [tick for tick in axes.get_xticklabels() if tick.get_text()]
    for marks in (ticks, axes.texts):
        boxes = sorted((mark.get_window_extent() for mark in marks), key=lambda box: box.x0)
        assert not [1 for one, other in pairwise(boxes) if one.overlaps(other)]
    assert len(ticks) >= 2
    assert figure.get_tightbbox().x1 <= 3.32


def test_twelve_series_have_twelve_colours() -> None:
    points = [replace(one, series=f"series {number}") for one in LINE for number in range(12)]
    (axes,) = draw(Sheet("Title", FOOT, "lines"), points).axes
    assert len({line.get_color() for line in axes.lines}) == 12


def test_a_panel_that_is_0_throughout_is_named_below_and_not_drawn() -> None:
    figure = draw(Sheet("Title", FOOT, "lines"), [*LINE, *(replace(one, panel="idle", y=0.0) for one in LINE)])
    assert len(figure.axes) == 1
    assert "not drawn: idle" in " ".join(texts(figure)).replace("\n", " ")
    assert len(draw(Sheet("Title", FOOT, "lines"), [replace(one, y=0.0) for one in LINE]).axes) == 1


def test_a_bare_figure_has_neither_title_nor_footnote_and_is_lower() -> None:
    full, bare = (draw(Sheet("Title", FOOT, "lines", bare=bare), LINE) for bare in (False, True))
    assert "Title" not in texts(bare)
    assert "STAND-IN" not in " ".join(texts(bare))
    assert bare.get_size_inches()[1] < full.get_size_inches()[1]


def test_a_series_has_one_colour_in_all_panels() -> None:
    points = [*LINE, *(replace(one, panel="other", series=name) for one in LINE for name in ("second", "line"))]
    figure = draw(Sheet("Title", FOOT, "lines"), points)
    drawn = {axes._left_title.get_text(): {line.get_color() for line in axes.lines} for axes in figure.axes}
    assert drawn == {"panel": {COLOURS[0]}, "other": {COLOURS[0], COLOURS[1]}}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [([0.0, 1.0], [0.0, 1.0]), ([0.5, 0.5], [0.4, 0.6]), ([0.0, 0.1, 0.9], [-0.05, 0.15, 0.9]), ([], [])],
)
def test_names_move_apart_as_little_as_it_takes(wanted: list[float], found: list[float]) -> None:
    assert apart(wanted, 0.2) == pytest.approx(found)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(Sheet("Title", FOOT, "lines"), [])
    with pytest.raises(ValueError, match=r"draw must be one of .* found 'pie'"):
        draw(Sheet("Title", FOOT, "pie"), LINE)


def test_dollar_signs_in_names_begin_no_formula() -> None:
    said = r"a $\frac{ b$ c"
    figure = draw(Sheet(said, (said,), "bars"), [replace(LINE[0], panel=said, series=said, x=said)])
    figure.draw_without_rendering()
    assert {text for text in texts(figure) if "frac" in text} == {said.replace("$", r"\$")}
