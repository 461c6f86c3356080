"""Numbers of a table that are no means of scores: what a run cost, the shape of its memory, how much recall covers an answer, the data.

Each function returns an `Estimate`, or None where there is nothing to measure: a mean over histories or questions with its interval, or
one number of the whole run without an interval.

Deviations and decisions:

- A run with replicates is measured on its first.
- Coverage (xMemory section 5.2) is that of `eval.metrics.evidence`. Questions whose answer the recall never covers, or whose answer has no
  content word, are left out; `n` says how many are left.
- Spread of a level (TiMem App. D, which gives no formulas) is that of `eval.structure.manifold`, over all histories; where a level must be
  sampled, always the same nodes are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data_loaders.schema import Case, Turn
from data_loaders.units import make_units
from eval.costs import by_purpose, costs
from eval.metrics.evidence import recalled
from eval.stats import Estimate, estimate
from eval.store import read_record
from eval.structure.manifold import MEASURES, cloud
from eval.structure.tree import build_calls, read_tree, shape, without_chains
from memsys.tokens import count_tokens

OVER: Mapping[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max}


def single(value: float | None, n: int) -> Estimate | None:
    """One number of a whole run: no interval."""
    return None if value is None else Estimate(float(value), n, None, None, 0)


def mean(values: Sequence[float], clusters: Sequence[str]) -> Estimate | None:
    """The mean of numbers that are no verdicts: all 0 or 1, they get no interval by question, because Wilson's is meant for shares."""
    if not values:
        return None
    found = estimate(values, clusters)
    return replace(found, by_question=None) if set(values) <= {0, 1} else found


def gathered(values: Mapping[str, float], over: str = "mean") -> Estimate | None:
    """One number a history as a mean with intervals, or as the `sum` or `max` of all."""
    if not values:
        return None
    if over == "mean":
        return mean(list(values.values()), list(values))
    return single(OVER[over](list(values.values())), len(values))


def cost(folder: Path, name: str) -> Estimate | None:
    """A field of `eval.costs.Costs`, `build_calls` (all model calls of building), or `calls:<purpose>` (of that purpose per question)."""
    found = costs(folder)
    if name.startswith("calls:"):
        calls = by_purpose(folder)[name.removeprefix("calls:")]
        return single(calls / found.questions, found.questions) if found.questions else None
    if name == "build_calls":
        return single(sum(build_calls(path.parent) for path in _dumps(folder, "effort.jsonl")), found.units)
    return single(getattr(found, name), found.questions)


def report(folder: Path, name: str, *, over: str = "mean", per: str = "") -> Estimate | None:
    """A number of the memory's own report; dots lead into it (`nodes.segment`).

    Args:
        per: another one by which it is divided, sum by sum.
    """
    reports = {path.parent.name: read_record(path).get("memory", {}) for path in _dumps(folder, "case.json")}
    values = {case: float(value) for case, found in reports.items() if (value := _within(found, name)) is not None}
    if not per:
        return gathered(values, over)
    whole = sum(float(_within(found, per) or 0) for found in reports.values())
    return single(sum(values.values()) / whole, len(values)) if whole else None


def _within(found: Any, name: str) -> Any:
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def tree(folder: Path, name: str, *, over: str = "mean", chains: bool = True) -> Estimate | None:
    """A property (of `Shape`) of each history's tree, over histories; `chains=False` leaves out nodes with a single child."""
    values = {}
    for path in _dumps(folder, "case.json"):
        if (found := read_tree(path.parent)) is not None:
            seen = shape(found if chains else without_chains(found), build_calls(path.parent))
            values[path.parent.name] = float(getattr(seen, name))
    return gathered(values, over)


def spread(folder: Path, name: str, level: int) -> Estimate | None:
    """How the nodes of one level lie, by a name of `eval.structure.manifold.MEASURES`; None without two nodes.

    Raises:
        RunError: scikit-learn, which the silhouette needs, is not installed.
    """
    trees = (read_tree(path.parent, vectors=True) for path in _dumps(folder, "case.json"))
    found = cloud((tree for tree in trees if tree is not None), level, np.random.default_rng(0))
    return single(MEASURES[name](found), found.nodes) if found.nodes > 1 else None


def coverage(folder: Path, cases: Iterable[Case], name: str) -> Estimate | None:
    """`blocks` or `tokens` of recall, best first, until every content word of the gold answer has occurred."""
    values: list[float] = []
    clusters: list[str] = []
    for case, _, found in recalled(folder, cases):
        if found is not None and found.coverage is not None:
            values.append({"blocks": found.coverage.blocks, "tokens": found.coverage.tokens}[name])
            clusters.append(case.cluster or case.id)
    return mean(values, clusters)


def statistic(cases: Iterable[Case], name: str, unit: Mapping[str, Any], category: str = "") -> Estimate | None:
    """A property of the data: `histories`, `sessions`, `questions` (of a category), or a mean.

    Means: `units`, `turns`, `tokens` and `questions_per_history` by history, `tokens_per_session`, `tokens_per_turn`.
    """
    found = list(cases)
    clusters = [case.cluster or case.id for case in found]
    if not found:
        return None
    if name == "histories":
        return single(len(found), len(found))
    if name == "questions":
        counts = Counter(gold.category for case in found for _, gold in case.questions)
        return single(counts[category] if category else counts.total(), len(found))
    if name == "sessions":
        return single(sum(len(case.sessions) for case in found), len(found))
    if name == "tokens_per_session":
        lengths = [
            (_tokens(session.turns), owner)
            for case, owner in zip(found, clusters, strict=True)
            for session in case.sessions
        ]
        return mean([tokens for tokens, _ in lengths], [owner for _, owner in lengths])
    if name == "tokens_per_turn":
        pairs = [
            (count_tokens(turn.text), owner) for case, owner in zip(found, clusters, strict=True) for turn in case.turns
        ]
        return mean([tokens for tokens, _ in pairs], [owner for _, owner in pairs])
    return mean([_size(case, name, unit) for case in found], clusters)


def _size(case: Case, name: str, unit: Mapping[str, Any]) -> float:
    if name == "units":
        return len(make_units(case.sessions, count=count_tokens, **unit).units)
    if name == "tokens":
        return _tokens(case.turns)
    return len({"turns": case.turns, "questions_per_history": case.questions}[name])


def _tokens(turns: Iterable[Turn]) -> int:
    return sum(count_tokens(turn.text) for turn in turns)


def _dumps(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"cases/*/{name}"))
