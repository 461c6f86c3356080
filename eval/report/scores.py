"""What a table reads of a run's files: its questions, their outcomes and their scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from data_loaders.schema import Case
from eval.files.run_folder import RunFolder, read_predictions
from eval.judging.answer_forms import is_refusal
from eval.judging.score_files import read_scores


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
    supports: bool = False
    """Whether it is asked for the sake of another question, which is the one that is scored."""

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
            supports=bool(gold.supports),
        )
        for case in cases
        for question, gold in case.questions
    )


def refusals(score_files: Sequence[Path], questions: Iterable[Asked]) -> frozenset[tuple[str, str]]:
    """Questions with an answer that the answers behind these score files refuse in every replicate: wrong without a judge."""
    refused = None
    own = [question for question in questions if question.answerable]
    for path in score_files:
        answers = {
            case_id: read_predictions(RunFolder(path.parents[1]).case(case_id)) for case_id in {q.case_id for q in own}
        }
        keys = {
            q.key
            for q in own
            if q.question_id in answers[q.case_id] and is_refusal(answers[q.case_id][q.question_id].answer)
        }
        refused = keys if refused is None else refused & keys
    return frozenset(refused or ())


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
            for prediction in read_predictions(RunFolder(folder).case(case_id)).values():
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


def scores_by_run(draws: Draws) -> list[dict[tuple[str, str], float]]:
    """The scores of each build, the judge's repeats averaged; of a single build, those of each repeat.

    Repeats of one build share its answers: as runs of their own they would make a spread between runs too small.
    """
    builds = {replicate for own in draws.values() for (replicate, _), _ in own}
    by_run: dict[int, dict[tuple[str, str], list[float]]] = {}
    for key, own in draws.items():
        for (replicate, repeat), value in own:
            run = replicate if len(builds) > 1 else repeat
            by_run.setdefault(run, {}).setdefault(key, []).append(value)
    return [{key: fmean(values) for key, values in by_run[run].items()} for run in sorted(by_run)]
