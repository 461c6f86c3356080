"""Errata layers: a perfect memory's score as released is the ceiling, and agreeing with errors puts a score above it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from data_loaders.locomo import ceilings, load
from data_loaders.schema import DataError
from eval.report.cell import Asked, Column, asked
from eval.report.errata import Layer, audited_layer, overlaid, read_layer

SAMPLE = Path(__file__).resolve().parents[3] / "data_loaders" / "samples" / "locomo.json"
QUESTIONS = [
    Asked(f"c{number % 2}", f"q{number}", "temporal" if number < 4 else "single-hop", f"c{number % 2}", True, True)
    for number in range(10)
]
COLUMN = Column("toy", "Toy", "F1", tuple(QUESTIONS))
FAULTY = Layer("mine.csv", {("c0", "q0"): "the right one", ("c1", "q1"): ""})
SOUND = {question.key for question in QUESTIONS} - FAULTY.gold.keys()


def test_a_perfect_memory_reaches_the_ceiling_as_released_and_one_without_the_known_errors() -> None:
    perfect = {question.key: float(question.key in SOUND) for question in QUESTIONS}
    whole, temporal, single = overlaid(perfect, {("c0", "q0"): 1.0}, COLUMN, FAULTY)
    assert (whole.category, temporal.category, single.category) == ("all", "temporal", "single-hop")
    assert (whole.ceiling, temporal.ceiling, single.ceiling) == (0.8, 0.5, 1.0)
    assert (whole.released.mean, whole.faulty, whole.above) == (0.8, 2, False)
    for group in (whole, temporal, single):
        assert group.sound is not None
        assert group.sound.mean == 1.0
    assert whole.corrected is not None
    assert (whole.corrected.mean, whole.corrected.n) == (1.0, 9)  # for one error nobody knows the right answer
    assert single.corrected is None
    assert not single.above


def test_a_memory_that_agrees_with_errors_is_above_its_ceiling_where_the_errors_are() -> None:
    memorised = dict.fromkeys((question.key for question in QUESTIONS), 1.0)
    whole, temporal, single = overlaid(memorised, {}, COLUMN, FAULTY)
    assert (whole.above, temporal.above, single.above) == (True, True, False)
    assert whole.corrected is None
    lost = overlaid({("c0", "q0"): 1.0}, {}, COLUMN, FAULTY)[0]
    assert (lost.sound, lost.ceiling) == (None, 0.0)


def test_the_weights_of_a_column_are_those_of_its_ceiling_and_of_its_corrected_score() -> None:
    """Six questions of one category are sound; of the four of the other two are not: by question the ceiling was .8."""
    perfect = {question.key: float(question.key in SOUND) for question in QUESTIONS}
    whole = overlaid(perfect, {("c0", "q0"): 1.0}, replace(COLUMN, aggregate="category"), FAULTY)[0]
    assert (whole.released.mean, whole.ceiling, whole.above) == (0.75, 0.75, False)
    assert whole.corrected is not None
    assert whole.corrected.mean == 1.0


def test_the_audit_s_layer_gives_the_loader_s_own_ceilings() -> None:
    released = load(SAMPLE, overlay="audit/errors.json")
    corrected = load(SAMPLE, overlay="audit/errors.json", overlay_mode="corrected")
    layer = audited_layer("audit", released, corrected)
    answerable = [question for question in asked(released) if question.answerable]
    groups = overlaid(
        {question.key: 0.0 for question in answerable}, {}, replace(COLUMN, questions=tuple(answerable)), layer
    )
    expected = ceilings(released)
    assert layer.gold
    assert all(layer.gold.values())
    assert groups[0].ceiling == pytest.approx(expected["overall"])
    assert {group.category: group.ceiling for group in groups[1:]} == pytest.approx(
        {name: share for name, share in expected.items() if name != "overall"}
    )


def test_a_layer_of_one_s_own_is_read_or_refused_with_its_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('\ufeffcase,question,gold,why\nc0,q0,"7, May",typo\nc1,q1,,\n', encoding="utf-8")
    assert read_layer(path) == Layer("mine.csv", {("c0", "q0"): "7, May", ("c1", "q1"): ""})
    damaged = {
        "case,question\nc0,q0\n": "line 2: expected case, question and gold",
        "case,question,gold\nc0,,x\n": "line 2: expected case",
        "case,question,gold\nc0,q0,x\nc0,q0,y\n": "line 3: question q0 of case c0 stands there twice",
    }
    for text, message in damaged.items():
        with subtests.test(message=message):
            path.write_text(text, encoding="utf-8")
            with pytest.raises(DataError, match=message):
                read_layer(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_layer(tmp_path / "none.csv")
