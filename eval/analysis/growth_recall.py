"""Recall, reader's score and size of a growing memory, at each size of `eval.analysis.growth`.

The questions are the data set's own. A question that names evidence is asked once the history has passed its last evidence turn; evidence
that the unit rule leaves out counts as missed, as in a run. `covered` is `covered@k` of `eval.judging.score`: items ranked by the memory's
own score.
`score` is a lexical metric of the reader's answers to the same questions.

The set of questions differs between sizes: more are due as the history grows. Questions are drawn by hash, so a drawn question stays until
others with smaller hashes come in. The curve therefore mixes growth with a change of questions. `covered_first` is about the questions of
the first size alone, which are read at every size. Where histories of different people are joined, a question may fit several of them.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from statistics import fmean
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from data_loaders.schema import Case, Gold, Question, Unit
from data_loaders.transforms import by_hash
from eval.files.records import Prediction
from eval.files.store import item_score
from eval.judging.score import Scorer
from eval.metrics.retrieval import covered_at_k
from eval.running.failures import raise_if_stopped, stops
from eval.running.question import outcome_of
from eval.running.reader import render
from eval.running.run import Run
from eval.statistics.stats import Interval, estimate, preferred_interval
from memsys.interface import MemorySystem, Recall
from memsys.llm.meter import metering
from memsys.llm.protocol import Completion
from memsys.prompts import Prompts

SHARED = (ModuleType, type, FunctionType, BuiltinFunctionType, CodeType, FrameType, threading.Thread, Prompts)
"""Types of objects that belong to the program and lead to all of it."""


def object_bytes(memory: MemorySystem, services: Collection[object]) -> int | None:
    """Bytes of all objects that the memory refers to; None for a memory that stores its data outside this process.

    The objects are added up, because the resident size of the process includes the harness, the model clients and the allocator's reserve,
    and differs between two equal runs. Each object counts once, with the size that Python or NumPy gives it; memory that other C libraries
    allocate is not seen. The services that the run hands over, and code, are left out.

    Args:
        services: objects that the memory uses and does not own (model clients, the embedder).
    """
    if not memory.REHEARSED:
        return None
    seen = {id(service) for service in services}
    left: list[Any] = [memory]
    total = 0
    while left:
        thing = left.pop()
        if id(thing) in seen or isinstance(thing, SHARED):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        left += gc.get_referents(thing)
        if isinstance(thing, np.ndarray):  # the garbage collector does not know which objects it refers to
            # The list of all elements that is made here is not counted.
            left += [thing.base, *(thing.ravel().tolist() if thing.dtype.hasobject else ())]
    return total


def node_bytes(memory: MemorySystem) -> int | None:
    """Bytes of the nodes' texts (UTF-8) and vectors, without ids and links; None for a memory without nodes."""
    total = None
    for node in memory.nodes():
        vector = 0 if node.vector is None else node.vector.nbytes
        total = (total or 0) + len(node.text.encode(errors="replace")) + vector
    return total


@dataclass(frozen=True, slots=True)
class DueQuestion:
    """A question with evidence, and when it is due."""

    question: Question
    gold: Gold
    history: str
    """The original history that the question is about."""
    due: int
    """Index of its last evidence turn in the joined history, from 0."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One number for each of several questions."""

    values: tuple[float, ...]
    histories: tuple[str, ...]
    """The original history of each question."""

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the mean, by the histories that were joined (`eval.statistics.stats`); no value is below 0."""
        span = preferred_interval(estimate(self.values, self.histories)) if self.values else None
        return span and Interval(max(0.0, span.low), span.high)


@dataclass(frozen=True, slots=True)
class Holding:
    """Size and recall of a memory at one size."""

    n: int
    """Units written."""
    turns: int
    """Turns of the history up to the last unit."""
    object_bytes: int | None
    node_bytes: int | None
    asked: int
    """Questions drawn at this size."""
    first: int
    """Questions of the first size; all of them are read."""
    failed: int
    """Questions of both groups whose read failed; they have no coverage and no score."""
    unscored: int
    """Drawn questions that were read but for which no answer could be obtained."""
    covered: Sample
    """Share of the evidence that was recalled, for each drawn question."""
    covered_first: Sample
    """The same share, for each question of the first size."""
    recalled_bytes: Sample
    """Bytes of the recalled texts (UTF-8), for each drawn question."""
    score: Sample
    """Score of the reader's answer to each drawn question; empty where no reader is asked."""


class RecallWatch:
    """Asks the questions that are due at a size and records their recalls and answers.

    Args:
        history: the joined history with its questions.
        histories: the original history of each question.
        units: all units that are written.
        services: objects that the memory uses and does not own.
        most: maximum number of questions drawn at each size.
        k: items of a recall that count.
        seed: seed of the draw.
        answered: the run whose reader answers, and the metric of its answers; None asks no reader.
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
        answered: tuple[Run, Scorer] | None = None,
    ) -> None:
        place = {turn.id: number for number, turn in enumerate(history.turns)}
        self._probes = [
            DueQuestion(question, gold, name, max(place[turn] for turn in gold.evidence))
            for (question, gold), name in zip(history.questions, histories, strict=True)
            if gold.evidence
        ]
        self._reached: list[int] = []
        """Index of the last turn that each number of units reaches."""
        for unit in units:
            self._reached.append(max([place[turn] for turn in unit.turn_ids] + self._reached[-1:]))
        self._services = services
        self._most, self._k, self._seed, self._answered = most, k, seed, answered
        self._first: frozenset[str] | None = None
        self._drawn: frozenset[str] = frozenset()
        """Ids of the questions of the first and of the current size."""
        self._recalls: list[tuple[DueQuestion, Recall | None]] = []
        self.holdings: list[Holding] = []

    def due(self, n: int) -> list[DueQuestion]:
        """The questions to ask after `n` units, in the order of the history: the drawn ones, and those of the first call."""
        due = [probe for probe in self._probes if probe.due <= self._reached[n - 1]]
        drawn = by_hash([probe.question.id for probe in due], f"growth:{self._seed}")[: self._most]
        self._drawn = frozenset(due[place].question.id for place in drawn)
        if self._first is None:
            self._first = self._drawn
        return [probe for probe in due if probe.question.id in self._drawn | self._first]

    def read(self, memory: MemorySystem, probe: DueQuestion) -> None:
        """Read one question and keep the recall; a read that fails is counted."""
        recall: Recall | None = None
        try:
            recall = memory.read(probe.question)
        except (Exception, SystemExit) as error:
            if stops(error):
                raise
            raise_if_stopped(error)
        self._recalls.append((probe, recall))

    def note(self, memory: MemorySystem, n: int) -> None:
        """Score the recalls since the last size, and measure the memory's bytes."""
        first = self._first or frozenset()
        scored = [(probe, recall) for probe, recall in self._recalls if recall is not None]
        drawn = [pair for pair in scored if pair[0].question.id in self._drawn]
        kept = [pair for pair in scored if pair[0].question.id in first]
        scores = self._scores(drawn)
        recalled = [float(sum(len(item.text.encode(errors="replace")) for item in r.items)) for _, r in drawn]
        self.holdings.append(
            Holding(
                n,
                self._reached[n - 1] + 1,
                object_bytes(memory, self._services),
                node_bytes(memory),
                len(self._drawn),
                len(first),
                len(self._recalls) - len(scored),
                scores.count(None),
                _sample(drawn, [self._covered(probe, recall) for probe, recall in drawn]),
                _sample(kept, [self._covered(probe, recall) for probe, recall in kept]),
                _sample(drawn, recalled),
                _sample(drawn, scores),
            )
        )
        self._recalls = []

    def _scores(self, read: Sequence[tuple[DueQuestion, Recall]]) -> list[float | None]:
        """The score of the reader's answer to each recall; None where there is none. An aborted recall has an empty answer."""
        if self._answered is None:
            return []
        run, scorer = self._answered
        answers: list[Future[Completion] | Prediction] = []
        with metering():  # not a cost of the memory
            for probe, recall in read:
                known = Prediction("growth", probe.question.id, recall.answer or "", (), (), "answered", recall.aborted)
                if recall.answer is not None or recall.aborted:
                    answers.append(replace(known, outcome="aborted") if recall.aborted else known)
                    continue
                request = render(run.reader, run.services.prompts, probe.question, recall).request
                answers.append(run.services.reader.submit(request))
        scores: list[float | None] = []
        for (probe, _), answer in zip(read, answers, strict=True):
            if isinstance(answer, Future):
                if (error := answer.exception()) is not None and stops(error):
                    raise error
                outcome, text, why, cut = outcome_of(answer)
                answer = Prediction("growth", probe.question.id, text, (), (), outcome, why, cut)
            scores.append(scorer(probe.question, probe.gold, answer).value)
        return scores

    def _covered(self, probe: DueQuestion, recall: Recall) -> float:
        ranking = sorted(recall.items, key=lambda item: -item_score(item))  # as predictions keep it
        covered = covered_at_k([item.sources for item in ranking], probe.gold.evidence, self._k)
        assert covered is not None  # every probe has evidence
        return covered


def _sample(read: Sequence[tuple[DueQuestion, Recall]], values: Sequence[float | None]) -> Sample:
    """The sample of the values that are not None; it is empty without any."""
    pairs = [(value, probe.history) for (probe, _), value in zip(read, values, strict=False) if value is not None]
    return Sample(tuple(value for value, _ in pairs), tuple(history for _, history in pairs))
