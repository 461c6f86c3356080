"""Figures: coverage counts blocks and stops, spreads are those of worked vectors, the best of several never sees its own questions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eval.measures import covering, gathered, report, spread
from eval.published import Published
from eval.stats import Estimate
from eval.store import write_lines
from eval.tables import Asked, Cell, Column, Figure, Row, Table, as_csv, choose, composed, markdown, shown

QUESTIONS = tuple(Asked(case, f"{case}{n}", "", case, True, True) for case in "abc" for n in range(2))
COLUMN = Column("toy", "Toy", "judge", QUESTIONS)
PUBLISHED = Published("P", "T", "D", "B", "M", "", "All", "tokens", 100.0, None, None, None, "", "100")


def candidate(tmp_path: Path, name: str, values: str) -> Cell:
    """One digit a question."""
    path = tmp_path / f"{name}.jsonl"
    lines = [
        {"case_id": one.case_id, "question_id": one.question_id, "repeat": 0, "value": float(value)}
        for one, value in zip(QUESTIONS, values, strict=True)
    ]
    write_lines(path, lines)
    return Cell(COLUMN, {(one.case_id, one.question_id): frozenset({"answered"}) for one in QUESTIONS}, (path,))


def test_the_best_on_the_questions_reported_is_one_for_all(tmp_path: Path) -> None:
    cells = {"x": candidate(tmp_path, "x", "111000"), "y": candidate(tmp_path, "y", "001111")}
    chosen = choose(cells, held_out=False)
    assert chosen == {"a": "y", "b": "y", "c": "y"}
    best = composed(cells, chosen).estimate()
    assert best is not None
    assert best.n == 6
    assert best.mean == pytest.approx(4 / 6)


def test_the_best_elsewhere_never_looks_at_its_own_history(tmp_path: Path) -> None:
    # Without a: x 1/4, y 4/4; without b: x 2/4, y 2/4 (the first of equals); without c: x 3/4, y 2/4.
    cells = {"x": candidate(tmp_path, "x", "111000"), "y": candidate(tmp_path, "y", "001111")}
    chosen = choose(cells, held_out=True)
    assert chosen == {"a": "y", "b": "x", "c": "x"}
    one = composed(cells, chosen)
    assert [one.values[each.case_id, each.question_id] for each in QUESTIONS] == [0, 0, 1, 0, 0, 0]
    assert one.counts().scored == 6


def test_with_one_history_there_is_nothing_to_choose_on(tmp_path: Path) -> None:
    column = Column("toy", "Toy", "judge", QUESTIONS[:2])
    with pytest.raises(ValueError, match="nothing to choose on"):
        choose({"x": Cell(column, {}, ())}, held_out=True)


@pytest.mark.parametrize(
    ("recalled", "answer", "blocks"),
    [
        (["A red kayak.", "It was bought in 2021."], "red kayak, 2021", 2),
        (["A kayak of 2021", "again"], "the kayak 2021", 1),
        (["nothing"], "kayak", None),
        (["a b c"], "a b", None),
    ],
)
def test_coverage_stops_at_the_block_that_completes_the_answer(
    recalled: list[str], answer: str, blocks: int | None
) -> None:
    assert covering(recalled, answer) == blocks


def case(folder: Path, name: str, vectors: list[list[float]], level: int = 1, **memory: object) -> None:
    where = folder / "cases" / name
    where.mkdir(parents=True)
    nodes = [
        {"id": f"n{n}", "parents": [], "level": level, "kind": "leaf", "text": "", "sources": []}
        for n in range(len(vectors))
    ]
    write_lines(where / "nodes.jsonl", nodes)
    np.save(where / "vectors.npy", np.asarray(vectors, dtype=np.float32))
    (where / "case.json").write_text(json.dumps({"case_id": name, "memory": memory}))


def test_spread_is_taken_around_the_centroid_of_all_histories(tmp_path: Path) -> None:
    case(tmp_path, "a", [[1, 0], [0, 1]])
    case(tmp_path, "b", [[-1, 0], [0, -1]])
    found = {name: spread(tmp_path, name, 1) for name in ("spread", "cv", "radius95")}
    assert {name: value.mean for name, value in found.items() if value} == {"spread": 1.0, "cv": 0.0, "radius95": 1.0}
    assert spread(tmp_path, "spread", 2) is None


def test_separation_compares_other_centroids_with_the_own_one(tmp_path: Path) -> None:
    case(tmp_path, "a", [[0, 1], [0, -1]])
    case(tmp_path, "b", [[3, 1], [3, -1]])
    apart, silhouette = spread(tmp_path, "separation", 1), spread(tmp_path, "silhouette", 1)
    assert apart is not None
    assert silhouette is not None
    assert apart.mean == pytest.approx(10**0.5)
    assert silhouette.mean == pytest.approx(1 - 2 / ((3 + 13**0.5) / 2))


def test_reports_are_summed_averaged_and_divided(tmp_path: Path) -> None:
    case(tmp_path, "a", [[1.0]], nodes={"segment": 10}, upper=3)
    case(tmp_path, "b", [[1.0]], nodes={"segment": 30}, upper=7)
    total, mean = report(tmp_path, "nodes.segment", over="sum"), report(tmp_path, "upper")
    share = report(tmp_path, "upper", per="nodes.segment")
    assert [found.mean for found in (total, mean, share) if found] == [40.0, 5.0, 0.25]
    assert report(tmp_path, "missing") is None
    assert gathered({}) is None


def test_counts_of_one_are_no_shares() -> None:
    ones, more = gathered({"a": 1.0, "b": 1.0}), gathered({"a": 1.0, "b": 3.0})
    assert ones is not None
    assert more is not None
    assert (ones.mean, ones.by_question) == (1.0, None)
    assert more.by_question is not None


@pytest.mark.parametrize(("ours", "expected"), [(100.0, "OK"), (105.0, "close"), (106.0, "off"), (94.0, "off")])
def test_a_cost_is_close_within_five_percent(ours: float, expected: str) -> None:
    assert Figure(COLUMN, Estimate(ours, 9, None, None, 0), PUBLISHED).verdict() == expected


def test_a_figure_stands_in_every_format() -> None:
    figure = Figure(COLUMN, Estimate(104.0, 9, None, None, 0), PUBLISHED)
    table = Table("toy", "Toy", (), (COLUMN,), (Row("one", "One", (figure,)),))
    assert shown(figure) == "104.0 · 100 · close"
    assert "| One | 104.0 · 100 · close |" in markdown(table)
    line = as_csv(table).splitlines()[1].split(",")
    assert (line[:5], line[11], line[-1]) == (["toy", "one", "toy", "judge", "all"], "104.000000", "close")
    assert len(line) == len(as_csv(table).splitlines()[0].split(","))
