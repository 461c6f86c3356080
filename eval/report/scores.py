"""What a table reads of a run's files: its questions, their outcomes and their scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from data_loaders.schema import Case
from eval.score_files import read_scores
from eval.store import read_predictions, safe_name


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as tables need it: which groups it belongs to, not its text."""

    case_id: str
    question_id: str
    category: str
    cluster: str
    answerable: bool
    evidence: bool
    """Whether the data set names the turns that hold the answer."""
    groups: tuple[str, ...] = ()
    """Groups beside the category that it is reported in."""

    @property
    def key(self) -> tuple[str, str]:
        """Case id and question id."""
        return self.case_id, self.question_id

    def belongs_to(self, group: str) -> bool:
        """Whether a category or a further group has the question."""
        return group in (self.category, *self.groups)


def asked(cases: Iterable[Case]) -> tuple[Asked, ...]:
    """Every question of a data set, in order."""
    return tuple(
        Asked(
            *(case.id, question.id, gold.category, case.cluster or case.id, gold.answerable),
            evidence=bool(gold.evidence),
            groups=gold.groups,
        )
        for case in cases
        for question, gold in case.questions
    )


Scores = Mapping[tuple[str, str], float]
"""Score by (case id, question id); questions without a score are absent."""
Outcomes = Mapping[tuple[str, str], frozenset[str]]
"""Outcomes by (case id, question id), over all replicates; questions that were not reached are absent."""


def outcomes(folders: Iterable[Path], questions: Sequence[Asked]) -> Outcomes:
    """Outcomes from the predictions of a run and its replicates; `cut` or `empty` is among them when an answer was.

    Args:
        folders: run folders, one per replicate.
    """
    by_question: dict[tuple[str, str], frozenset[str]] = {}
    for folder in folders:
        for case_id in dict.fromkeys(question.case_id for question in questions):
            for prediction in read_predictions(folder / "cases" / safe_name(case_id)).values():
                key = (case_id, prediction.question_id)
                marks = {name for name in ("cut", "empty") if getattr(prediction, name)}
                by_question[key] = by_question.get(key, frozenset()) | {prediction.outcome} | marks
    return by_question


@dataclass(frozen=True, slots=True)
class Counts:
    """How many questions had which outcome; scored, unscored, errored and not reached add up to `questions`."""

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

    @property
    def missing_share(self) -> float:
        """Share of the questions without a score."""
        return 1.0 - self.scored / self.questions if self.questions else 0.0


Draw = tuple[int, int]
"""Number of the replicate and of the judge's repeat."""
Draws = Mapping[tuple[str, str], Sequence[tuple[Draw, float]]]
"""Every score that a question got, with the draw that it comes from."""


def read_draws(score_files: Sequence[Path], questions: Sequence[Asked], repeats: int | None = None) -> Draws:
    """The scores of questions, from one score file per replicate.

    Args:
        repeats: how many of the judge's repeats count, the first ones; None counts all.

    Raises:
        RunError: a score file does not exist or is damaged.
    """
    keys = {question.key for question in questions}
    draws: dict[tuple[str, str], list[tuple[Draw, float]]] = {}
    for replicate, path in enumerate(score_files):
        for key, lines in read_scores(path).items():
            for line in lines:
                counts = repeats is None or line["repeat"] < repeats
                if line["value"] is not None and key in keys and counts:
                    draws.setdefault(key, []).append(((replicate, line["repeat"]), line["value"]))
    return draws


def mean_scores(draws: Draws) -> dict[tuple[str, str], float]:
    """Score of each scored question: the mean over replicates and repeats."""
    return {key: fmean(value for _, value in own) for key, own in draws.items()}


def spread_of_draws(draws: Draws) -> float | None:
    """Standard deviation of the overall mean from draw to draw; None for a single draw."""
    by_draw: dict[Draw, list[float]] = {}
    for own in draws.values():
        for draw, value in own:
            by_draw.setdefault(draw, []).append(value)
    return stdev([fmean(values) for values in by_draw.values()]) if len(by_draw) > 1 else None
