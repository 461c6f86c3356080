"""Known errors of a data set's gold answers, applied to existing scores: an errata layer names the questions with a wrong answer.

- *as released*: the mean over all questions.
- *without known errors*: the mean over the questions that the layer does not name.
- *corrected*: the mean over all questions, those of the layer scored again with the layer's gold answers; only where a score needs no
  model, and only over questions for which the layer has an answer.
- *ceiling*: the share of questions with a correct gold answer, weighted as the mean. It is the score of a perfect memory on the released
  data, because such a memory disagrees with wrong gold answers. A score above it contains points for agreeing with errors.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_loaders.schema import Case, DataError
from eval.analysis.losses import FINE
from eval.report.cell import Asked, Column
from eval.statistics.stats import Estimate

Key = tuple[str, str]
COLUMNS = ("case", "question", "gold")


@dataclass(frozen=True, slots=True)
class Layer:
    """Questions whose released gold answer is wrong, with the right answer; empty where none is known."""

    name: str
    gold: Mapping[Key, str]


def read_layer(path: Path) -> Layer:
    """Read a user's layer: a CSV file with the columns case, question (ids) and gold.

    Raises:
        DataError: the file cannot be read, lacks a column, or names a question twice or without an id.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = list(csv.DictReader(handle))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    gold: dict[Key, str] = {}
    for number, row in enumerate(rows, 2):
        case, question, answer = ((row.get(name) or "").strip() for name in COLUMNS)
        if any(name not in row for name in COLUMNS) or not (case and question):
            raise DataError(f"{path}, line {number}: expected case, question and gold, found {list(row.values())}")
        if (case, question) in gold:
            raise DataError(f"{path}, line {number}: question {question} of case {case} stands there twice")
        gold[case, question] = answer
    return Layer(path.name, gold)


def audited_layer(name: str, released: Iterable[Case], corrected: Iterable[Case]) -> Layer:
    """Build the layer of an audit whose labels a loader writes into `Gold.detail["audit"]`.

    Args:
        released: the cases with their labels and the released answers.
        corrected: the same cases with the audit's answers.
    """
    right = {(case.id, question.id): gold.answers[0] for case in corrected for question, gold in case.questions}
    faulty = {
        (case.id, question.id): right.get((case.id, question.id), "")
        for case in released
        for question, gold in case.questions
        if str(gold.detail.get("audit", FINE[0])) not in FINE
    }
    return Layer(name, faulty)


@dataclass(frozen=True, slots=True)
class Overlaid:
    """The scores of one group of questions with an errata layer applied."""

    category: str
    faulty: int
    """Scored questions that the layer names."""
    released: Estimate
    sound: Estimate | None
    """Score without known errors; None where no question is left."""
    corrected: Estimate | None
    """Corrected score; None where the scores need a model, or the layer has no answers."""
    ceiling: float

    @property
    def above(self) -> bool:
        """Whether the score as released is above that of a perfect memory."""
        return self.faulty > 0 and self.released.mean > self.ceiling


def overlaid(scores: Mapping[Key, float], again: Mapping[Key, float], column: Column, layer: Layer) -> list[Overlaid]:
    """Apply the layer to all scored questions, then to each category that has one; all means have the column's weights.

    Args:
        again: scores of the layer's questions with the layer's answers; empty where they need a model.
    """
    scored = [question for question in column.questions if question.key in scores]
    names = list(dict.fromkeys(question.category for question in scored))
    groups = {"all": scored, **{name: [each for each in scored if each.category == name] for name in names if name}}
    results = []
    for name, group in groups.items() if scored else ():
        sound = [question for question in group if question.key not in layer.gold]
        fixed = [question for question in group if question.key not in layer.gold or question.key in again]
        alone = _mean(column, sound, scores) if sound else None
        mended = _mean(column, fixed, {**scores, **again}) if len(fixed) > len(sound) else None
        means = _mean(column, group, scores), alone, mended
        ceiling = _mean(column, group, {each.key: float(each.key not in layer.gold) for each in group}).mean
        results.append(Overlaid(name, len(group) - len(sound), *means, ceiling))
    return results


def _mean(column: Column, questions: Sequence[Asked], scores: Mapping[Key, float]) -> Estimate:
    return column.estimate(questions, [scores[question.key] for question in questions])
