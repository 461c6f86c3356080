"""One memory in one column: mean, intervals, counts, difference from another memory, verdict beside the published number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from eval.judge_card import Corrected, Correction
from eval.report.published import Published, qualified, verdict
from eval.report.scores import Asked, Counts, Draws, Outcomes, Scores, mean_scores, read_draws, spread_of_draws
from eval.stats import Difference, Estimate, Interval, difference, estimate, stratified

ALL, ANSWERABLE = "all", "answerable"
ABOVE_CEILING = "ABOVE ITS CEILING"
"""Marks a score that is higher than what a perfect memory gets, before that number."""
AGGREGATES = ("question", "case", "category")


@dataclass(frozen=True, slots=True)
class Column:
    """One metric on one data set."""

    dataset: str
    title: str
    """Data set as printed."""
    metric: str
    """Metric as printed, with the judge's name or the implementation of F1."""
    questions: tuple[Asked, ...]
    aggregate: str = "question"
    """What the mean weighs equally: one of `AGGREGATES`."""
    answerable_title: str = ANSWERABLE
    scale: float = 1.0
    """Divisor that turns published values into shares: 100 for percentages."""


def categories(column: Column) -> list[str]:
    """Groups that a column's questions are reported in: all, answerable where some are not, then categories and further groups.

    Categories are left out if there is only one.
    """
    names = list(dict.fromkeys(question.category for question in column.questions if question.category))
    further = dict.fromkeys(group for question in column.questions for group in question.groups)
    groups = [ALL] if len({question.answerable for question in column.questions}) < 2 else [ALL, ANSWERABLE]
    return [*groups, *(names if len(names) > 1 else []), *(group for group in further if group not in names)]


@dataclass(frozen=True)
class Cell:
    """One memory's scores in one column; several replicates are averaged question by question."""

    column: Column
    outcomes: Outcomes
    score_files: tuple[Path, ...]
    """One per replicate."""
    published: Published | None = None
    why_not: str = ""
    """Why the published number is not comparable; empty when it is."""
    repeats: int | None = None
    """How many of the judge's repeats count, the first ones; a file may hold more from an earlier run. None counts all."""
    correction: Correction | None = None
    """What corrects a judge's score for its errors; None where nobody asked for that, or no judge gave the score."""
    errata: frozenset[tuple[str, str]] = frozenset()
    """Questions whose gold answer is known to be wrong; empty where nobody asked (`errata=`)."""
    qualifier: str = ""
    """What else differs from the published number, such as `prompts ours`; printed after the verdict."""

    @cached_property
    def draws(self) -> Draws:
        """Every score of each question."""
        return read_draws(self.score_files, self.column.questions, self.repeats)

    @cached_property
    def scores(self) -> dict[tuple[str, str], float]:
        """Score of each scored question: the mean over replicates and repeats."""
        return mean_scores(self.draws)

    @cached_property
    def spread(self) -> float | None:
        """Standard deviation of the mean over replicates and repeats; None for a single draw."""
        return spread_of_draws(self.draws)

    @property
    def chooses(self) -> bool:
        """Whether leaving out a case may change the scores of the others: True for the best of several memories."""
        return False

    def scores_without(self, cluster: str) -> Scores:
        """The scores of all cases but one; a memory's own scores do not depend on the case that is left out."""
        return {
            question.key: self.scores[question.key]
            for question in self.column.questions
            if question.cluster != cluster and question.key in self.scores
        }

    def counts(self, category: str = ALL) -> Counts:
        """Outcomes of the questions of a category."""
        keys = [question.key for question in self._questions(category)]
        scored = sum(key in self.scores for key in keys)
        rest = [self.outcomes.get(key, frozenset()) for key in keys if key not in self.scores]
        unscored = sum(bool(kinds - {"error"}) for kinds in rest)
        errored = sum(kinds == {"error"} for kinds in rest)
        aborted, cut = (
            sum(key in self.scores and kind in self.outcomes.get(key, ()) for key in keys)
            for kind in ("aborted", "cut")
        )
        return Counts(len(keys), scored, unscored, errored, len(keys) - scored - unscored - errored, aborted, cut)

    def estimate(self, category: str = ALL, aggregate: str | None = None) -> Estimate | None:
        """Mean and intervals over the scored questions of a category; None when no question is scored."""
        key = (category, aggregate or self.column.aggregate)
        if key not in self._estimates:
            self._estimates[key] = self._estimate(*key)
        return self._estimates[key]

    @cached_property
    def _estimates(self) -> dict[tuple[str, str], Estimate | None]:
        """Cache of `estimate`: Markdown, CSV, LaTeX and verdict ask for the same ones."""
        return {}

    def _estimate(self, category: str, aggregate: str) -> Estimate | None:
        scored = [question for question in self._questions(category) if question.key in self.scores]
        if not scored:
            return None
        values = [self.scores[question.key] for question in scored]
        clusters = [question.cluster for question in scored]
        by_category = [question.category for question in scored]
        groups = {"question": [""] * len(scored), "case": clusters, "category": by_category}[aggregate]
        without = None
        if self.chooses:
            without = [_mean_of_groups(scored, groups, self.scores_without(name)) for name in sorted(set(clusters))]
        if aggregate == "question":
            return estimate(values, clusters, without)
        return stratified(values, groups, clusters, without)

    def corrected(self, category: str = ALL) -> Corrected | str | None:
        """The score corrected for the judge's errors; a text says why it cannot be, None that nobody asked for it."""
        ours = self.estimate(category)
        if self.correction is None or ours is None:
            return None
        return self.correction.of(ours, (value for own in self.draws.values() for _, value in own))

    def ceiling(self, category: str = ALL) -> float | None:
        """The share of scored questions with a sound gold answer, which a perfect memory gets; None where no errata are known."""
        scored = [question.key for question in self._questions(category) if question.key in self.scores]
        if not self.errata or not scored:
            return None
        return sum(key not in self.errata for key in scored) / len(scored)

    def above_ceiling(self, category: str = ALL) -> bool:
        """Whether the mean is above the ceiling: it was earned by agreeing with wrong gold answers."""
        ours, ceiling = self.estimate(category), self.ceiling(category)
        return ours is not None and ceiling is not None and ceiling < 1.0 and ours.mean > ceiling

    def bounds(self, category: str = ALL) -> Interval | None:
        """The mean over all questions if every one without a score were wrong, and if every one were right."""
        counts = self.counts(category)
        if not counts.questions:
            return None
        total = sum(self.scores.get(question.key, 0.0) for question in self._questions(category))
        return Interval(total / counts.questions, (total + counts.questions - counts.scored) / counts.questions)

    def verdict(self) -> str:
        """The verdict on our number beside the published one."""
        plain = verdict(self.estimate(), self.published, scale=self.column.scale, why_not=self.why_not)
        return qualified(plain, self.qualifier)

    def minus(self, other: Cell, category: str = ALL, *, test: bool = True) -> Difference | None:
        """Paired difference over the questions that both memories have a score for; None when there are none.

        Args:
            test: False leaves out the permutation test.
        """
        shared = self.scores.keys() & other.scores.keys()
        both = [question for question in self._questions(category) if question.key in shared]
        if not both:
            return None
        clusters = [question.cluster for question in both]
        without = None
        if self.chooses or other.chooses:
            without = [self._gap_without(other, both, name) for name in sorted(set(clusters))]
        first, second = (
            [self.scores[question.key] for question in both],
            [other.scores[question.key] for question in both],
        )
        return difference(first, second, clusters, without=without, test=test)

    def _gap_without(self, other: Cell, questions: Sequence[Asked], cluster: str) -> float:
        first, second = self.scores_without(cluster), other.scores_without(cluster)
        gaps = {key: first[key] - second[key] for key in first.keys() & second.keys()}
        return _mean_of_groups(questions, [""] * len(questions), gaps)

    def _questions(self, category: str) -> list[Asked]:
        if category == ALL:
            return list(self.column.questions)
        if category == ANSWERABLE:
            return [question for question in self.column.questions if question.answerable]
        return [question for question in self.column.questions if question.belongs_to(category)]


def _mean_of_groups(questions: Sequence[Asked], groups: Sequence[str], scores: Scores) -> float:
    """The mean of the groups' means over scored questions; 0 when no question is scored.

    Args:
        groups: group of each question, same length.
    """
    by_group: dict[str, list[float]] = {}
    for question, group in zip(questions, groups, strict=True):
        if (score := scores.get(question.key)) is not None:
            by_group.setdefault(group, []).append(score)
    return fmean(map(fmean, by_group.values())) if by_group else 0.0
