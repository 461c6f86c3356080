"""One memory in one column: mean, intervals, counts, difference from another memory, verdict on the published number.

A table reads a run's files through `Asked`, `outcomes` and `read_draws`: its questions, their outcomes and their scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

import numpy as np

from data_loaders.schema import Case
from eval.files.records import Prediction
from eval.files.run_folder import RunFolder, read_predictions, run_of
from eval.judging.answer_forms import is_refusal
from eval.judging.judge_card import Corrected, Correction
from eval.judging.score_files import ScoreLines, read_scores
from eval.metrics.change import RIGHT, WRONG
from eval.report.published import NO_RUNS, ROUNDING, Published, Runs, assumed_runs, measured_runs, verdict
from eval.statistics.stats import (
    Difference,
    Estimate,
    Grouping,
    Interval,
    are_scores,
    difference,
    differences,
    estimate,
    numbered,
    weights,
)

ALL, ANSWERABLE = "all", "answerable"
ABOVE_CEILING = "ABOVE ITS CEILING"
"""Mark of a score above that of a perfect memory; the perfect score is printed after it."""
AGGREGATES = ("question", "case", "category")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question for tables: its groups, without its text."""

    case_id: str
    question_id: str
    category: str
    cluster: str
    answerable: bool
    evidence: bool
    """Whether the data set names the turns that hold the answer."""
    groups: tuple[str, ...] = ()
    """Groups that it is reported in, in addition to the category."""
    supports: bool = False
    """Whether its read only serves the score of another question."""

    @property
    def key(self) -> tuple[str, str]:
        """Case id and question id."""
        return self.case_id, self.question_id

    def belongs_to(self, category: str) -> bool:
        """Whether it is reported under `all`, `answerable`, a category or a further group."""
        if category in (ALL, ANSWERABLE):
            return category == ALL or self.answerable
        return category in (self.category, *self.groups)


def asked(cases: Iterable[Case]) -> tuple[Asked, ...]:
    """Every question of a data set, in order."""
    every = []
    for case in cases:
        for question, gold in case.questions:
            own = gold.category, case.cluster or case.id, gold.answerable, bool(gold.evidence)
            every.append(Asked(case.id, question.id, *own, gold.groups, bool(gold.supports)))
    return tuple(every)


def answered(cases: Iterable[tuple[str | None, Iterable[Prediction]]]) -> tuple[Asked, ...]:
    """The questions that cases (their history, if known, and predictions) have a line for, each once; the data's categories and evidence
    are not known here."""
    clusters: dict[tuple[str, str], str] = {}
    for history, predictions in cases:
        for prediction in predictions:
            clusters.setdefault((prediction.case_id, prediction.question_id), history or prediction.case_id)
    return tuple(Asked(*key, "", cluster, True, False) for key, cluster in clusters.items())


def refusals(score_files: Sequence[Path], questions: Iterable[Asked]) -> frozenset[tuple[str, str]]:
    """Answerable questions that the answers behind these score files refuse in every replicate: wrong without a judge."""
    own = [question for question in questions if question.answerable]
    refused = []
    for path in score_files:
        answers = {case_id: read_predictions(run_of(path).case(case_id)) for case_id in {q.case_id for q in own}}
        given = {q.key: answers[q.case_id][q.question_id] for q in own if q.question_id in answers[q.case_id]}
        refused.append(frozenset(key for key, prediction in given.items() if is_refusal(prediction.answer)))
    return frozenset.intersection(*refused) if refused else frozenset()


Scores = Mapping[tuple[str, str], float]
"""Score by (case id, question id); questions without a score are absent."""
Outcomes = Mapping[tuple[str, str], frozenset[str]]
"""Outcomes by (case id, question id), over all replicates; questions that were not reached are absent."""


def outcomes(
    folders: Iterable[Path],
    questions: Sequence[Asked],
    read: Callable[[Path], Mapping[str, Prediction]] = read_predictions,
) -> Outcomes:
    """Outcomes from the predictions of the run folders of replicates; `cut` or `empty` is among them when an answer was.

    `read` gives the predictions of a case folder.
    """
    case_ids = dict.fromkeys(question.case_id for question in questions)
    by_question: dict[tuple[str, str], frozenset[str]] = {}
    for folder, case_id in product(folders, case_ids):
        for prediction in read(RunFolder(folder).case(case_id)).values():
            key = (case_id, prediction.question_id)
            marks = {name for name in ("cut", "empty") if getattr(prediction, name)}
            by_question[key] = by_question.get(key, frozenset()) | {prediction.outcome} | marks
    return by_question


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of questions by outcome; scored, unscored, errored and not reached add up to `questions`."""

    questions: int
    scored: int
    unscored: int
    """Answered, but without a verdict."""
    errored: int
    not_reached: int
    aborted: int = 0
    """Scored questions whose search the memory aborted; they count as wrong."""
    cut: int = 0
    """Scored questions whose answer was cut at the reader's token limit."""
    empty: int = 0
    """Scored questions whose answer is empty; they count as wrong."""

    def __str__(self) -> str:
        """`scored/unscored/errored/not reached`."""
        return f"{self.scored}/{self.unscored}/{self.errored}/{self.not_reached}"


Draw = tuple[int, int]
"""Number of the replicate and of the judge's repeat."""
Draws = Mapping[tuple[str, str], Sequence[tuple[Draw, float]]]
"""Every score of a question, with its draw."""


def read_draws(
    score_files: Sequence[Path],
    questions: Sequence[Asked],
    repeats: int | None = None,
    read: Callable[[Path], ScoreLines] = read_scores,
) -> Draws:
    """The scores of questions, from one score file per replicate; `repeats` and `read` as in `Cell`.

    Raises:
        RunError: a score file does not exist or is damaged.
    """
    keys = {question.key for question in questions}
    draws: dict[tuple[str, str], list[tuple[Draw, float]]] = {}
    for replicate, path in enumerate(score_files):
        for key, lines in read(path).items():
            for line in lines:
                counts = repeats is None or line["repeat"] < repeats
                if line["value"] is not None and key in keys and counts:
                    draws.setdefault(key, []).append(((replicate, line["repeat"]), line["value"]))
    return draws


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
    """The unit that the mean weighs equally: one of `AGGREGATES`."""
    answerable_title: str = ANSWERABLE
    note: str = ""
    """A sentence about the metric on this data set, printed below the table; empty for none."""

    @classmethod
    def of(cls, dataset: Mapping[str, Any], metric: str, questions: tuple[Asked, ...]) -> Column:
        """The printed column of a metric from a file of conf/dataset."""
        answerable, notes = dataset.get("answerable", ANSWERABLE), dataset.get("metric_notes", {})
        note = " ".join(text for part, text in notes.items() if part in metric)
        names = (dataset["name"], dataset["title"], metric)
        return cls(*names, questions, dataset["aggregate"][0], answerable, note)

    @property
    def heading(self) -> str:
        """Data set and metric, above the column in Markdown."""
        return f"{self.title} · {self.metric}"

    def groups(self, questions: Sequence[Asked]) -> list[str]:
        """The unit that the mean weighs equally: each question's group, from which `eval.statistics.stats.weights` makes weights."""
        names = {"question": lambda _: "", "case": lambda each: each.cluster, "category": lambda each: each.category}
        return list(map(names[self.aggregate], questions))

    def estimate(
        self, questions: Sequence[Asked], values: Sequence[float], without: Sequence[float] | None = None
    ) -> Estimate:
        """The weighted mean of a value for each question, with its intervals; `without` as for `eval.statistics.stats.estimate`."""
        groups = None if self.aggregate == "question" else self.groups(questions)
        return estimate(values, [question.cluster for question in questions], without, groups=groups)

    def mean(self, questions: Sequence[Asked], scores: Scores) -> float:
        """The weighted mean over the questions that have a score; 0 when none has."""
        scored = [question for question in questions if question.key in scores]
        if not scored:
            return 0.0
        return float((weights(self.groups(scored)) * [scores[question.key] for question in scored]).mean())


def categories(column: Column) -> list[str]:
    """Groups in which a column's questions are reported: all, answerable (if some are not), then categories and further groups.

    Categories are left out if there is only one.
    """
    names = list(dict.fromkeys(question.category for question in column.questions if question.category))
    further = dict.fromkeys(group for question in column.questions for group in question.groups)
    groups = [ALL] if len({question.answerable for question in column.questions}) < 2 else [ALL, ANSWERABLE]
    return [*groups, *(names if len(names) > 1 else []), *(group for group in further if group not in names)]


Vectors = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Cell:
    """One memory's scores in one column; several replicates are averaged question by question."""

    column: Column
    outcomes: Outcomes
    score_files: tuple[Path, ...]
    """One per replicate."""
    published: Published | None = None
    repeats: int | None = None
    """Number of the judge's repeats that count, from the first on; a file may hold more from an earlier run. None counts all."""
    correction: Correction | None = None
    """The correction of a judge's score for its errors; None if it was not requested, or if no judge gave the score."""
    errata: frozenset[tuple[str, str]] = frozenset()
    """Questions whose gold answer is known to be wrong; empty if no errata were requested (`errata=`)."""
    read: Callable[[Path], ScoreLines] = read_scores
    """Gives the lines of a score file; a report passes those that it has read."""

    digits: ClassVar[int] = 3
    """Digits of the printed mean."""
    marks: ClassVar[tuple[str, ...]] = ("aborted", "cut", "empty")
    """Marks of answers that are counted among the scored ones."""
    chooses: ClassVar[bool] = False
    """Whether leaving out a case may change the scores of the others: True for the best of several memories."""
    _estimates: dict[str, Estimate | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Estimates by category, computed once: the writers of Markdown, CSV, LaTeX and verdict need the same ones."""
    _vectors: dict[str, Vectors] = field(default_factory=dict, init=False, repr=False, compare=False)
    _asked: dict[str, list[Asked]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, column: Column, score_files: Iterable[Path], repeats: int | None = None) -> Cell:
        """The cell of score files, one per replicate, with the outcomes of their runs."""
        files = tuple(score_files)
        return cls(column, outcomes([run_of(path).path for path in files], column.questions), files, repeats=repeats)

    @cached_property
    def draws(self) -> Draws:
        """Every score of each question."""
        return read_draws(self.score_files, self.column.questions, self.repeats, self.read)

    @cached_property
    def scores(self) -> dict[tuple[str, str], float]:
        """Score of each scored question: the mean over replicates and repeats."""
        return {key: fmean(value for _, value in own) for key, own in self.draws.items()}

    def spread(self, category: str = ALL) -> float | None:
        """Standard deviation of the mean between builds, or for a single build between the judge's repeats; None for a single draw."""
        _, by_run, complete = self._runs_of_all
        own = [each for each in complete if each.belongs_to(category)]
        return stdev(self.column.mean(own, scores) for scores in by_run) if len(by_run) > 1 and own else None

    @cached_property
    def _runs_of_all(self) -> tuple[bool, list[dict[tuple[str, str], float]], list[Asked]]:
        """Whether there are several builds; the scores of each, averaged over the judge's repeats, or of a single build those of each
        repeat; and the questions that all of these scored: means over other questions would differ by their difficulty, too.

        Repeats of one build share its answers: counted as separate runs they would make the spread between runs too small.
        """
        several = len({replicate for own in self.draws.values() for (replicate, _), _ in own}) > 1
        runs: dict[int, dict[tuple[str, str], list[float]]] = {}
        for key, own in self.draws.items():
            for (replicate, repeat), value in own:
                runs.setdefault(replicate if several else repeat, {}).setdefault(key, []).append(value)
        by_run = [{key: fmean(values) for key, values in runs[run].items()} for run in sorted(runs)]
        return several, by_run, [each for each in self._questions(ALL) if all(each.key in own for own in by_run)]

    @cached_property
    def runs(self) -> Runs:
        """The change of the mean from run to run: measured between builds over the questions that all of them scored, else assumed."""
        scored = [question for question in self._questions(ALL) if question.key in self.scores]
        if not scored:
            return NO_RUNS
        several, by_build, complete = self._runs_of_all
        if not several or not complete:
            values, homes = np.array([self.scores[each.key] for each in scored]), [each.cluster for each in scored]
            return assumed_runs(values, weights(self.column.groups(scored)), numbered(homes))
        places = {name: place for place, name in enumerate(dict.fromkeys(each.cluster for each in complete))}
        parts = np.zeros((len(places), len(by_build)))
        rows = [[scores[question.key] for scores in by_build] for question in complete]
        shares = weights(self.column.groups(complete))[:, None] / len(complete) * np.array(rows)
        np.add.at(parts, [places[question.cluster] for question in complete], shares)
        return measured_runs(parts, float(shares.var(axis=1, ddof=1).sum()))

    def scores_without(self, cluster: str) -> Scores:
        """The scores of all cases but one; the scores of a single memory do not depend on the left-out case."""
        rest = (question.key for question in self.column.questions if question.cluster != cluster)
        return {key: self.scores[key] for key in rest if key in self.scores}

    def applicable(self, category: str = ALL) -> list[Asked]:
        """The questions of a category that say something about this memory: all, unless the metric names others (`OutcomeCell`)."""
        return self._questions(category)

    def counts(self, category: str = ALL) -> Counts:
        """Outcomes of the applicable questions of a category."""
        keys = [question.key for question in self.applicable(category)]
        scored = [key for key in keys if key in self.scores]
        states = [self._missing(key) for key in keys if key not in self.scores]
        errored, left = states.count("errored"), states.count("")
        marked = {name: sum(name in self.outcomes.get(key, ()) for key in scored) for name in self.marks}
        return Counts(len(keys), len(scored), len(states) - errored - left, errored, left, **marked)

    def _missing(self, key: tuple[str, str]) -> str:
        """The state of a question without a score: `errored`, empty where it was not reached, any other text where it has no verdict."""
        kinds = self.outcomes.get(key, frozenset())
        return "unscored" if kinds - {"error"} else "errored" if kinds else ""

    def unscored_draws(self, category: str = ALL) -> str:
        """How many answers of several builds, or verdicts of several repeats, are missing; empty if `counts` sees all of them.

        `counts` does not see those of a question that has another answer or verdict with a score.
        """
        (lost, draws), (builds, repeats), counts = self._lost(category), self.drawn, self.counts(category)
        if lost == (counts.questions - counts.scored) * builds * repeats:
            return ""
        if repeats == 1:
            return f"{lost} of {draws} answers of {builds} builds not scored"
        return f"{lost} of {draws} verdicts missing, {repeats} an answer{f' of {builds} builds' * (builds > 1)}"

    def missing_share(self, category: str = ALL) -> float:
        """Share of the questions without a score; of several builds or repeats, of their answers or verdicts."""
        lost, draws = self._lost(category)
        return lost / draws if draws else 0.0

    def _lost(self, category: str) -> tuple[int, int]:
        """The scores that are missing, over all builds and repeats, and the scores that there should be."""
        keys = [question.key for question in self.applicable(category)]
        draws = sum(map(self._due, keys))
        return draws - sum(len(self.draws.get(key, ())) for key in keys), draws

    def _due(self, key: tuple[str, str]) -> int:
        """The scores that an applicable question should have, over all builds and repeats."""
        return prod(self.drawn)

    def filled(self, questions: Iterable[Asked], value: float) -> Scores:
        """The score of each question if every missing answer or verdict were worth `value`."""
        filled = {}
        for key in (question.key for question in questions):
            own = [score for _, score in self.draws.get(key, ())]
            filled[key] = fmean([*own, *[value] * (self._due(key) - len(own))])
        return filled

    @cached_property
    def drawn(self) -> tuple[int, int]:
        """Number of builds, and of times that each answer was judged, with or without a verdict; the latter is 1 for other scores."""
        repeats = 1
        if self.repeats != 1:
            lines = (line for path in self.score_files for own in self.read(path).values() for line in own)
            judged = 1 + max((line["repeat"] for line in lines), default=0)
            repeats = judged if self.repeats is None else min(judged, self.repeats)
        return max(1, len(self.score_files)), repeats

    def estimate(self, category: str = ALL) -> Estimate | None:
        """Mean and intervals over the scored questions of a category; None when no question is scored."""
        if category in self._estimates:
            return self._estimates[category]
        scored = [question for question in self._questions(category) if question.key in self.scores]
        values = [self.scores[question.key] for question in scored]
        without = None
        if self.chooses:
            clusters = sorted({question.cluster for question in scored})
            without = [self.column.mean(scored, self.scores_without(name)) for name in clusters]
        self._estimates[category] = self.column.estimate(scored, values, without) if scored else None
        return self._estimates[category]

    def corrected(self, category: str = ALL) -> Corrected | str | None:
        """The score corrected for the judge's errors; a text says why it cannot be corrected; None if no correction was requested."""
        ours = self.estimate(category)
        if self.correction is None or ours is None:
            return None
        scored = [question for question in self._questions(category) if question.key in self.scores]
        refused = refusals(self.score_files, scored)
        weighed = zip(scored, weights(self.column.groups(scored)), strict=True)
        given_up = [(self.scores[each.key], float(weight)) for each, weight in weighed if each.key in refused]
        values = (value for own in self.draws.values() for _, value in own)
        return self.correction.of(ours, values, [score for score, _ in given_up], [weight for _, weight in given_up])

    def ceiling(self, category: str = ALL) -> float | None:
        """Score of a perfect memory: the mean with 1 for each scored question with a correct gold answer; None if no errata are known."""
        scored = [question for question in self._questions(category) if question.key in self.scores]
        if not self.errata or not scored:
            return None
        return self.column.mean(scored, {each.key: float(each.key not in self.errata) for each in scored})

    def above_ceiling(self, category: str = ALL) -> bool:
        """Whether the mean is above the ceiling: some points then come from agreement with wrong gold answers."""
        ours, ceiling = self.estimate(category), self.ceiling(category)
        return ours is not None and ceiling is not None and ceiling < 1.0 and ours.mean > ceiling + ROUNDING

    def bounds(self, category: str = ALL) -> Interval | None:
        """The mean over all questions if every missing answer or verdict were wrong, and if every one were right."""
        questions = self.applicable(category)
        if not questions:
            return None
        low, high = (self.column.mean(questions, self.filled(questions, value)) for value in (0.0, 1.0))
        return Interval(low, high)

    def verdict(self) -> str:
        """The verdict on our number against the published number."""
        ours = None if self.published is None or self.published.why_not else self.estimate()
        if ours is None:  # no number to compare
            return verdict(None, self.published)
        span = self.bounds() if self.missing_share() else None
        return verdict(ours.mean, self.published, runs=self.runs, span=span)

    def minus(self, other: Cell, category: str = ALL, *, test: bool = True) -> Difference | None:
        """Paired difference over the questions that both memories have a score for; None when there are none.

        Args:
            test: False leaves out the permutation test.
        """
        first, clusters, groups = self._arrays(category)
        second = other._arrays(category)[0]
        both = ~(np.isnan(first) | np.isnan(second))
        if not both.any():
            return None
        without = None
        if self.chooses or other.chooses:
            questions = [question for question, held in zip(self._questions(category), both, strict=True) if held]
            without = []
            for name in sorted({question.cluster for question in questions}):
                own, theirs = self.scores_without(name), other.scores_without(name)
                gaps = {key: own[key] - theirs[key] for key in own.keys() & theirs.keys()}
                without.append(self.column.mean(questions, gaps))
        return difference(first[both], second[both], clusters[both], without=without, test=test, groups=groups[both])

    def minus_each(self, others: Sequence[Cell], category: str = ALL) -> list[Difference | None]:
        """`minus` for each cell, without the permutation test; cells that have all questions scored are computed together.

        All are cells of single memories, of one column.
        """
        first, clusters, groups = self._arrays(category)
        scores = np.array([each._arrays(category)[0] for each in others]).reshape(len(others), first.size)
        whole = ~np.isnan(scores).any(axis=1) & (first.size > 0) & ~np.isnan(first).any()
        gaps, bounded = first - scores[whole], (scores[whole] >= 0.0).all(axis=1) & (scores[whole] <= 1.0).all(axis=1)
        together = iter(
            differences(gaps, Grouping.of(clusters, groups), bounded & are_scores(first)) if whole.any() else []
        )
        return [
            next(together) if all_ else self.minus(each, category, test=False)
            for each, all_ in zip(others, whole, strict=True)
        ]

    def _arrays(self, category: str) -> Vectors:
        """Scores (NaN: none), histories and groups of the questions of a category, names as numbers; computed once."""
        if category not in self._vectors:
            questions = self._questions(category)
            scores = np.array([self.scores.get(question.key, np.nan) for question in questions], dtype=float)
            clusters = numbered([question.cluster for question in questions])
            self._vectors[category] = scores, clusters, numbered(self.column.groups(questions))
        return self._vectors[category]

    def _questions(self, category: str) -> list[Asked]:
        if category not in self._asked:
            own = [each for each in self.column.questions if not each.supports and each.belongs_to(category)]
            self._asked[category] = own
        return self._asked[category]


def cells(column: Column, folder: Path, files: Iterable[Path], title: Callable[[Path], str]) -> dict[Path, Cell]:
    """A cell for each of these score files of a run, in a column that differs in the printed metric only; outcomes are read once."""
    reached = outcomes([folder], column.questions)
    return {path: Cell(replace(column, metric=title(path)), reached, (path,)) for path in files}


# --- named outcomes (the suite `change`) ------------------------------------------------------------------------------


KINDS = tuple(name for names in WRONG.values() for name in names)
"""Wrong outcomes, the most important of each family first."""
NOT_APPLICABLE = "n/a"
"""Beginning of the outcome of a question that says nothing about the memory."""


@dataclass(frozen=True)
class OutcomeCell(Cell):
    """A cell with named outcomes. Of several builds, the outcomes are those of the first build; the mean is over all builds."""

    marks: ClassVar[tuple[str, ...]] = ("cut",)

    @property
    def named(self) -> dict[tuple[str, str], str]:
        """The outcome of each question that was reached."""
        return self._by_build[0] if self._by_build else {}

    @cached_property
    def _by_build(self) -> list[dict[tuple[str, str], str]]:
        files = map(self.read, self.score_files)
        return [{key: str(own[0]["detail"].get("outcome", "")) for key, own in lines.items()} for lines in files]

    def _due(self, key: tuple[str, str]) -> int:
        return prod(self.drawn) - sum(named.get(key, "").startswith(NOT_APPLICABLE) for named in self._by_build)

    def applicable(self, category: str = ALL) -> list[Asked]:
        """The questions that say something about the memory; the others count neither as scored nor as missing."""
        silent = {key for key, outcome in self.named.items() if outcome.startswith(NOT_APPLICABLE)} - self.scores.keys()
        return [each for each in self._questions(category) if each.key not in silent]

    def _missing(self, key: tuple[str, str]) -> str:
        # No line in the score file: the question's read failed, or a read that belongs to it was not reached (empty).
        return self.named.get(key) or "errored" * (self.outcomes.get(key) == frozenset({"error"}))

    def failures(self, category: str = ALL) -> str:
        """Counts of wrong outcomes, such as `both 12, lost 3`, the most important first; empty if there are none."""
        scored = [question.key for question in self.applicable(category) if question.key in self.scores]
        found = Counter(self.named.get(key, "") for key in scored)
        names = (name for name in dict.fromkeys([*KINDS, *sorted(found)]) if found[name] and name not in RIGHT)
        return ", ".join(f"{name} {found[name]}" for name in names)

    def skipped(self, category: str = ALL) -> int:
        """Number of questions of a category that say nothing about the memory."""
        return len(self._questions(category)) - len(self.applicable(category))

    def split(self, category: str = ALL) -> str:
        """Counts such as `610/20/10`: right, wrong, not applicable; followed by the counts of other outcomes if there are any."""
        counts = self.counts(category)
        right = sum(self.scores[each.key] for each in self.applicable(category) if each.key in self.scores)
        named = (("unscored", counts.unscored), ("errored", counts.errored), ("not reached", counts.not_reached))
        missing = [f"{count} {name}" for name, count in named if count]
        return ", ".join([f"{right:g}/{counts.scored - right:g}/{self.skipped(category)}", *missing])
