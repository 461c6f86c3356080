"""Everything that a column prints is about one mean: its weights are those of the difference, the bounds, the ceiling and the choice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.files.records import Prediction
from eval.files.store import write_lines
from eval.judging.judge_card import Card, Corrected, Correction, Share
from eval.report.cell import AGGREGATES, Asked, Cell, Column
from eval.report.points import averaged
from eval.report.rendering import shown
from eval.report.tables import choose
from eval.statistics.stats import difference, estimate, weights


@dataclass(frozen=True)
class Scored(Cell):
    """A cell whose scores are given, in place of score files."""

    given: tuple[float | None, ...] = ()

    @property
    def draws(self) -> dict[tuple[str, str], list[tuple[tuple[int, int], float]]]:  # type: ignore[override]
        pairs = zip(self.column.questions, self.given, strict=True)
        return {question.key: [((0, 0), value)] for question, value in pairs if value is not None}


def scored(column: Column, values: list[float | None], wrong_gold: frozenset[tuple[str, str]] = frozenset()) -> Cell:
    return Scored(column, {}, (), errata=wrong_gold, given=tuple(values))


def column(homes: list[str], categories: list[str], aggregate: str = "case") -> Column:
    places = enumerate(zip(homes, categories, strict=True))
    return Column("toy", "Toy", "judge", tuple(Asked(c, f"q{n}", k, c, True, True) for n, (c, k) in places), aggregate)


UNEVEN = column(["small"] * 10 + ["large"] * 90, [""] * 100)


def test_the_difference_of_unequal_histories_has_the_sign_of_the_means() -> None:
    first = scored(UNEVEN, [1.0] * 10 + [1.0] * 45 + [0.0] * 45)
    second = scored(UNEVEN, [0.0] * 10 + [1.0] * 83 + [0.0] * 7)
    gap, means = first.minus(second), [cell.estimate() for cell in (first, second)]
    assert gap is not None
    assert [round(own.mean, 3) for own in means if own] == [0.75, 0.461]
    assert gap.mean == pytest.approx(0.289, abs=5e-4)
    assert gap.by_question is not None
    assert gap.by_question.low > 0


def test_one_missing_question_moves_the_mean_by_its_own_weight() -> None:
    one = scored(UNEVEN, [1.0] * 10 + [0.0] * 89 + [None])
    assert "could be 0.500–0.506" in shown(one)


@pytest.mark.parametrize(("aggregate", "truth"), [("case", 0.25), ("question", 50 / 110)])
def test_refusals_weigh_in_the_corrected_score_as_they_do_in_the_mean(
    tmp_path: Path, aggregate: str, truth: float
) -> None:
    """One persona gets refusals only; of the other's answers half are right, and the judge errs as on its probes."""
    homes = ["small"] * 10 + ["large"] * 100
    verdicts = [0.0] * 10 + [1.0] * 45 + [0.0] * 5 + [1.0] * 10 + [0.0] * 40
    keys = [each.key for each in column(homes, [""] * 110).questions]
    for name, answer in (("small", "I do not know."), ("large", "Tea.")):
        case = tmp_path / "cases" / name
        case.mkdir(parents=True)
        own = [key for key in keys if key[0] == name]
        write_lines(case / "predictions.jsonl", [Prediction(*key, answer, (), (), "answered") for key in own])
    (tmp_path / "scores").mkdir()
    judged = tmp_path / "scores" / "judge_toy-0.jsonl"
    write_lines(
        judged,
        [
            {"case_id": case, "question_id": name, "repeat": 0, "value": value}
            for (case, name), value in zip(keys, verdicts, strict=True)
        ],
    )
    card = Card((), Share(0.1, 1000.0, 1000), Share(0.2, 1000.0, 1000), None, None)
    cell = Cell(column(homes, [""] * 110, aggregate), {}, (judged,), correction=Correction(card, ""))
    fixed = cell.corrected()
    assert isinstance(fixed, Corrected)
    assert fixed.mean == pytest.approx(truth)


def test_a_perfect_memory_stands_at_the_ceiling_of_the_weighted_mean() -> None:
    wrong = frozenset(("large", f"q{n}") for n in range(50, 100))
    perfect = scored(UNEVEN, [float(question.key not in wrong) for question in UNEVEN.questions], wrong)
    assert perfect.ceiling() == pytest.approx(0.722, abs=5e-4)
    assert "ABOVE" not in shown(perfect)


def test_the_best_row_is_the_one_whose_printed_mean_is_highest() -> None:
    cells = {
        "even": scored(UNEVEN, [0.5] * 100),
        "small": scored(UNEVEN, [1.0] * 10 + [0.2] * 90),  # 0.6 as printed, 0.28 over questions
    }
    assert set(choose(cells, held_out=False)[0].values()) == {"small"}
    assert choose(cells, held_out=True)[0] == {"small": "even", "large": "small"}
    assert choose(cells, held_out=False)[1] == {"small": {"large": "even"}, "large": {"small": "small"}}


def test_a_row_whose_hard_questions_failed_is_not_the_best() -> None:
    cells = {
        "whole": scored(UNEVEN, [1.0] * 10 + [0.9] * 20 + [0.0] * 70),
        "failing": scored(UNEVEN, [0.9] * 10 + [0.8] * 20 + [None] * 70),
        "not run": scored(UNEVEN, [None] * 100),
    }
    assert set(choose(cells, held_out=False)[0].values()) == {"whole"}
    apart = {"first": scored(UNEVEN, [1.0] + [None] * 99), "last": scored(UNEVEN, [None] * 99 + [1.0])}
    with pytest.raises(ValueError, match="no question has a score of every candidate"):
        choose(apart, held_out=False)


QUESTION = st.tuples(st.sampled_from("abcde"), st.sampled_from("xyz"), st.floats(0, 1), st.floats(0, 1), st.booleans())


@pytest.mark.slow
@given(st.lists(QUESTION, min_size=1, max_size=30), st.sampled_from(AGGREGATES))
def test_whatever_the_weights_all_numbers_of_a_column_are_about_one_mean(
    drawn: list[tuple[str, str, float, float, bool]], aggregate: str
) -> None:
    homes, categories, ours, theirs, flags = map(list, zip(*drawn, strict=True))
    own = column(homes, categories, aggregate)  # type: ignore[arg-type]
    first, second = scored(own, ours), scored(own, theirs)  # type: ignore[arg-type]
    one, other, gap = first.estimate(), second.estimate(), first.minus(second, test=False)
    assert one and other and gap  # noqa: PT018
    assert gap.mean == pytest.approx(one.mean - other.mean, abs=1e-12)
    assert own.mean(own.questions, first.scores) == pytest.approx(one.mean, abs=1e-12)
    mark = averaged([first, second])
    assert mark is not None
    assert mark.mean == pytest.approx((one.mean + other.mean) / 2, abs=1e-12)

    wrong = frozenset(question.key for question, flag in zip(own.questions, flags, strict=True) if flag)
    perfect = scored(own, [float(question.key not in wrong) for question in own.questions], wrong)
    assert not perfect.above_ceiling()

    partial = scored(own, [None if flag else value for value, flag in zip(ours, flags, strict=True)])  # type: ignore[arg-type]
    bounds, mean = partial.bounds(), partial.estimate()
    assert bounds is not None
    assert bounds.low - 1e-12 <= one.mean <= bounds.high + 1e-12
    assert mean is None or bounds.low - 1e-12 <= mean.mean <= bounds.high + 1e-12


def test_the_tests_of_a_difference_use_its_weights() -> None:
    rng = np.random.default_rng(0)
    sizes = [4, 8, 30, 60, 90, 120]
    homes = np.repeat([f"h{n}" for n in range(6)], sizes).tolist()
    first, second = rng.uniform(size=len(homes)), rng.uniform(size=len(homes))
    gap = difference(first.tolist(), second.tolist(), homes, groups=homes)
    means = [(first - second)[np.asarray(homes) == f"h{n}"] for n in range(6)]
    assert gap.sampling is not None
    error = np.std([part.mean() for part in means], ddof=1) / 6**0.5  # the mean of six equal histories
    assert gap.sampling.error == pytest.approx(error)
    by_question = sum(part.var(ddof=1) / part.size for part in means) ** 0.5 / 6
    assert gap.by_question is not None
    assert (gap.by_question.high - gap.by_question.low) / 2 == pytest.approx(1.96 * by_question, rel=0.3)
    assert gap.p is not None
    assert gap.p != difference(first.tolist(), second.tolist(), homes).p


def test_weights_have_the_mean_one_and_groups_weigh_the_same() -> None:
    own = weights(["a"] * 3 + ["b"])
    assert own.tolist() == pytest.approx([2 / 3] * 3 + [2.0])
    assert weights([""] * 49).tolist() == [1.0] * 49
    assert estimate([0.1] * 49, ["c"] * 49).mean == pytest.approx(0.1)
