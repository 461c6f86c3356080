"""What a growing memory still finds, and how much it holds: evidence recall and bytes at each size of `eval.analysis.growth`.

Asked are the data set's own questions that name evidence, once the history has passed their last evidence turn; evidence that the unit
rule leaves out counts as missed, as in a run. The score is `covered@k` of `eval.judging.score`: items ranked by the memory's own score.

Deviations. Each size asks other questions: more are due as the history grows. They are drawn by hash, so a question that was drawn stays
until others with smaller hashes come in. Where histories of different people are joined, a question may fit several of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from data_loaders.schema import Case, Question, Unit
from data_loaders.transforms import by_hash
from eval.analysis.footprint import node_bytes, object_bytes
from eval.metrics.retrieval import covered_at_k
from eval.running.failures import raise_if_stopped, stops
from eval.statistics.stats import Interval, estimate, preferred_interval
from memsys.interface import MemorySystem, Recall


@dataclass(frozen=True, slots=True)
class DueQuestion:
    """A question with evidence, and when it is due."""

    question: Question
    evidence: tuple[str, ...]
    history: str
    """The history that it is about, of those that were joined."""
    due: int
    """Place of its last evidence turn in the joined history, from 0."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a memory holds and finds at one size."""

    n: int
    """Units written."""
    turns: int
    """Turns of the history up to the last unit."""
    object_bytes: int | None
    node_bytes: int | None
    asked: int
    """Questions read."""
    failed: int
    """Of them those whose read failed; they have no score."""
    covered: tuple[float, ...]
    """Share of the evidence that was recalled, of each question whose read did not fail."""
    recalled_bytes: tuple[float, ...]
    """Bytes of the recalled texts (UTF-8), of the same questions."""
    histories: tuple[str, ...]
    """The histories of the same questions."""

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the mean coverage, by the histories that were joined (`eval.statistics.stats`)."""
        return preferred_interval(estimate(self.covered, self.histories)) if self.covered else None


class RecallWatch:
    """Asks the questions that are due at a size and notes what comes back.

    Args:
        history: the joined history with its questions.
        histories: the original history of each question.
        units: all units that are written.
        services: objects that the memory does not own.
        most: questions at each size, at most.
        k: items of a recall that count.
        seed: of the draw.
    """

    def __init__(
        self,
        history: Case,
        histories: Sequence[str],
        units: Sequence[Unit],
        services: Collection[object],
        *,
        most: int,
        k: int,
        seed: int = 0,
    ) -> None:
        place = {turn.id: number for number, turn in enumerate(history.turns)}
        self._probes = [
            DueQuestion(question, gold.evidence, name, max(place[turn] for turn in gold.evidence))
            for (question, gold), name in zip(history.questions, histories, strict=True)
            if gold.evidence
        ]
        self._reached: list[int] = []
        """Last place in the history that each number of units reaches."""
        for unit in units:
            self._reached.append(max([place[turn] for turn in unit.turn_ids] + self._reached[-1:]))
        self._services = services
        self._most, self._k, self._seed = most, k, seed
        self._recalls: list[tuple[DueQuestion, Recall | None]] = []
        self.holdings: list[Holding] = []

    def due(self, n: int) -> list[DueQuestion]:
        """The questions to ask after `n` units, in the order of the history."""
        due = [probe for probe in self._probes if probe.due <= self._reached[n - 1]]
        drawn = by_hash([probe.question.id for probe in due], f"growth:{self._seed}")[: self._most]
        return [due[place] for place in sorted(drawn)]

    def read(self, memory: MemorySystem, probe: DueQuestion) -> None:
        """Read one question and keep the recall; a read that fails is counted."""
        recall: Recall | None = None
        try:
            recall = memory.read(probe.question)
        except Exception as error:
            if stops(error):
                raise
            raise_if_stopped(error)
        self._recalls.append((probe, recall))

    def note(self, memory: MemorySystem, n: int) -> None:
        """Score what was read since the last size, and weigh the memory."""
        scored = [(probe, recall) for probe, recall in self._recalls if recall is not None]
        self.holdings.append(
            Holding(
                n,
                self._reached[n - 1] + 1,
                object_bytes(memory, self._services),
                node_bytes(memory),
                len(self._recalls),
                len(self._recalls) - len(scored),
                tuple(self._covered(probe, recall) for probe, recall in scored),
                tuple(float(sum(len(item.text.encode(errors="replace")) for item in r.items)) for _, r in scored),
                tuple(probe.history for probe, _ in scored),
            )
        )
        self._recalls = []

    def _covered(self, probe: DueQuestion, recall: Recall) -> float:
        ranking = sorted(recall.items, key=lambda item: -round(float(item.score), 4))  # as predictions keep it
        covered = covered_at_k([item.sources for item in ranking], probe.evidence, self._k)
        assert covered is not None  # every probe has evidence
        return covered
