"""Values of a table that aren't mean scores: costs of a run, the shape of its memory, coverage of answers, statistics of the data.

Each function returns an `Estimate`, either a mean over histories or questions with its interval, or one number of the whole run without
an interval. It returns None where no value exists.

Deviations and decisions:

- A run with replicates is measured on its first.
- Coverage (xMemory section 5.2) is computed by `eval.metrics.evidence`. Questions whose answer is never covered, or has no content word,
  are left out; `n` is the number of questions that remain.
- Spread of a level (TiMem App. D, which gives no formulas) is computed by `eval.structure.manifold`, over all histories. Large levels are
  sampled with a fixed seed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import filter as filter_names
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from data_loaders.schema import Case, Turn
from data_loaders.units import make_units
from eval.analysis.costs import Costs, costs, efforts
from eval.files.run_folder import COMPLETE, EFFORTS, RunFolder, history_of
from eval.files.store import read_record
from eval.metrics.evidence import Coverage, recalled
from eval.report.cell import Asked, Cell
from eval.report.published import NO_RUNS, Runs
from eval.statistics.stats import Estimate, estimate, from_zero, jackknifed
from eval.structure.manifold import MEASURES, cloud
from eval.structure.tree import Shape, build_calls, read_tree, shape, without_chains
from memsys.tokens import count_tokens

OVER: Mapping[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max}
COUNTS: Mapping[str, Callable[[Case], int]] = {
    "histories": lambda case: 1,
    "sessions": lambda case: len(case.sessions),
    "questions": lambda case: len(case.questions),
}
"""Counts over all histories."""
SIZES: Mapping[str, Callable[[Case, Mapping[str, Any]], float]] = {
    "units": lambda case, unit: len(make_units(case.sessions, count=count_tokens, **unit).units),
    "turns": lambda case, unit: len(case.turns),
    "tokens": lambda case, unit: _tokens(case.turns),
    "questions_per_history": lambda case, unit: len(case.questions),
}
"""Sizes of a history, given the unit rule; their mean is printed."""
PARTS: Mapping[str, Callable[[Case], Sequence[Sequence[Turn]]]] = {
    "tokens_per_session": lambda case: [session.turns for session in case.sessions],
    "tokens_per_turn": lambda case: [[turn] for turn in case.turns],
}
"""The parts of a history whose tokens a statistic averages, each as its turns."""
NAMES: Mapping[str, Sequence[str]] = {
    "cost": [
        *(each.name for each in fields(Costs) if each.name != "missing"),
        "build_calls",
        "calls_per_insertion_std",
    ],
    "tree": [each.name for each in fields(Shape)],
    "spread": [*MEASURES],
    "coverage": [each.name for each in fields(Coverage)],
    "data": [*COUNTS, *SIZES, *PARTS],
}
"""The values of each kind of measure by name; a cost may also be `calls:<prompt>`, such as `calls:timem/gate_*`."""


def single(value: float | None, n: int) -> Estimate | None:
    """One number of a whole run, without an interval."""
    return None if value is None else Estimate(float(value), n, None, None, 0)


def mean(values: Sequence[float], clusters: Sequence[str]) -> Estimate | None:
    """The mean of counts or quantities. A quantity without a value below 0 is taken as one that has none: so has its interval."""
    if not values:
        return None
    ours = estimate(values, clusters, scores=False)
    if min(values) < 0:
        return ours
    return replace(ours, by_question=from_zero(ours.by_question), by_case=from_zero(ours.by_case))


def gathered(values: Mapping[Path, float], over: str = "mean") -> Estimate | None:
    """Combine one number per case folder into a mean with intervals by history, or into their `sum` or `max`."""
    if not values:
        return None
    if over == "mean":
        return mean(list(values.values()), [history_of(case) or case.name for case in values])
    return single(OVER[over](list(values.values())), len(values))


def cost(folder: Path, name: str, questions: frozenset[tuple[str, str]] | None = None) -> Estimate | None:
    """A cost of a run.

    Args:
        name: a field of `eval.analysis.costs.Costs`, `build_calls` (model calls of the whole build), `calls_per_insertion_std` (standard
            deviation of the calls of one write), or `calls:<prompt>` (calls per question, always over all; `*` stands for any letters,
            and a prompt that was never used has no value).
        questions: case and question ids of those whose reads and answers count; None counts all.
    """
    totals = costs(folder, questions)
    if name.startswith("calls:"):
        made: Counter[str] = Counter()
        for line in efforts(folder):
            made.update(line["calls"])
        purposes = filter_names(made, name.removeprefix("calls:").replace("/", "."))
        asked = costs(folder).questions
        return single(sum(made[purpose] for purpose in purposes) / asked, asked) if asked and purposes else None
    if name == "calls_per_insertion_std":
        by_write = [sum(line["calls"].values()) for line in efforts(folder) if line["phase"] == "write"]
        return single(float(np.std(by_write)), len(by_write)) if by_write else None
    if name == "build_calls":
        return single(sum(build_calls(path.parent) for path in RunFolder(folder).written(EFFORTS)), totals.units)
    return single(getattr(totals, name), totals.questions)


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a product: a mean, or 1 minus a mean."""

    cell: Cell
    complement: bool

    @property
    def questions(self) -> list[Asked]:
        """The questions that have a score."""
        return [question for question in self.cell.column.questions if question.key in self.cell.scores]

    def value(self, left_out: str | None = None) -> float:
        """The factor without one history; the factor of all histories if no scored question is left."""
        questions = self.questions
        kept = [question for question in questions if question.cluster != left_out]
        mean = self.cell.column.mean(kept or questions, self.cell.scores)
        return 1 - mean if self.complement else mean


def product_of_means(factors: Sequence[Factor]) -> tuple[Estimate | None, Runs]:
    """The product of several means of one memory, with its jackknife interval over the histories, and its variance from run to run.

    None where a mean has no scored question. The run error is of first order and assumes that the means' errors are independent.
    """
    if not all(factor.questions for factor in factors):
        return None, NO_RUNS
    sizes = Counter(question.cluster for factor in factors for question in factor.questions)
    clusters = sorted(sizes)
    without = [math.prod(factor.value(cluster) for factor in factors) for cluster in clusters]
    values = [factor.value() for factor in factors]
    slopes = [math.prod(values[:place] + values[place + 1 :]) for place in range(len(values))]
    own = zip((factor.cell.runs for factor in factors), slopes, strict=True)
    runs = [replace(each, variance=each.variance * slope**2) for each, slope in own]
    counts = [sizes[cluster] for cluster in clusters]
    return jackknifed(math.prod(values), without, counts), reduce(Runs.plus, runs)


def report(folder: Path, name: str, *, over: str = "mean", per: str = "") -> Estimate | None:
    """A number of the memory's own report (`MemorySystem.report`) by its key, in which dots separate nested keys (`nodes.segment`).

    With `per`, the key of another number, the sum of the first is divided by the sum of the second.
    """
    reports = {path.parent: read_record(path).get("memory", {}) for path in RunFolder(folder).written(COMPLETE)}
    values = {case: float(value) for case, own in reports.items() if (value := _nested(own, name)) is not None}
    if not per:
        return gathered(values, over)
    whole = sum(float(_nested(own, per) or 0) for own in reports.values())
    return single(sum(values.values()) / whole, len(values)) if whole and values else None


def _nested(value: Any, name: str) -> Any:
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def tree(folder: Path, name: str, *, over: str = "mean", chains: bool = True) -> Estimate | None:
    """A field of `eval.structure.tree.Shape`, over the trees of all histories; without `chains`, nodes with a single child are left out."""
    values = {}
    for path in RunFolder(folder).written(COMPLETE):
        if (built := read_tree(path.parent)) is not None:
            own = shape(built if chains else without_chains(built), build_calls(path.parent))
            values[path.parent] = float(getattr(own, name))
    return gathered(values, over)


def spread(folder: Path, name: str, level: int) -> Estimate | None:
    """One of `eval.structure.manifold.MEASURES` over the nodes of a level; None for fewer than two nodes.

    Raises:
        RunError: scikit-learn is not installed; the silhouette needs it.
    """
    trees = (read_tree(path.parent, vectors=True) for path in RunFolder(folder).written(COMPLETE))
    nodes = cloud((tree for tree in trees if tree is not None), level, np.random.default_rng(0))
    return single(MEASURES[name](nodes), nodes.nodes) if nodes.nodes > 1 else None


def coverage(folder: Path, cases: Iterable[Case], name: str) -> Estimate | None:
    """Recalled `blocks` or `tokens`, best first, until every content word of the gold answer has occurred."""
    values: list[float] = []
    clusters: list[str] = []
    for case, _, recall in recalled(folder, cases):
        if recall is not None and recall.coverage is not None:
            values.append(getattr(recall.coverage, name))
            clusters.append(case.cluster or case.id)
    return mean(values, clusters)


def statistic(cases: Iterable[Case], name: str, unit: Mapping[str, Any], category: str = "") -> Estimate | None:
    """A statistic of the data: one of `COUNTS`, `SIZES` (by the unit rule) and `PARTS`; `category` counts only its `questions`."""
    histories = list(cases)
    clusters = [case.cluster or case.id for case in histories]
    if not histories:
        return None
    if name == "questions" and category:
        asked = sum(gold.category == category for case in histories for _, gold in case.questions)
        return single(asked, len(histories))
    if name in COUNTS:
        return single(sum(map(COUNTS[name], histories)), len(histories))
    if name in PARTS:
        parts = [PARTS[name](case) for case in histories]
        owners = [owner for own, owner in zip(parts, clusters, strict=True) for _ in own]
        return mean([_tokens(turns) for own in parts for turns in own], owners)
    return mean([SIZES[name](case, unit) for case in histories], clusters)


def _tokens(turns: Iterable[Turn]) -> int:
    return sum(count_tokens(turn.text) for turn in turns)
