"""Numbers of a table that are no means of scores: what a run cost, the shape of its memory, how much recall covers an answer, the data.

Each function returns an `Estimate`, or None where there is nothing to measure: a mean over histories or questions with its interval, or
one number of the whole run without an interval.

Deviations and decisions:

- A run with replicates is measured on its first.
- Coverage (xMemory §5.3) names no tokenizer and no list of stop words: content tokens are words of at least four letters, and numbers.
  Questions whose answer the recall never covers, or whose answer has no content token, are left out; `n` says how many are left.
- Spread of a level (TiMem App. D, which gives no formulas) is taken over all histories together, on unit vectors and Euclidean distances
  to the centroid: mean, standard deviation / mean, and 95th percentile. Silhouette and separation compare histories: the latter is the
  mean distance to other histories' centroids over that to the own one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data_loaders.schema import Case, Turn
from data_loaders.units import make_units
from eval.costs import by_purpose, costs
from eval.stats import Estimate, estimate
from eval.store import read_items, read_lines, read_predictions, safe_name
from eval.structure import build_calls, read_tree, shape, without_chains
from memsys.tokens import count_tokens

OVER: Mapping[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max}
_CONTENT = re.compile(r"\d+|[^\W\d_]{4,}")


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
    reports = {path.parent.name: json.loads(path.read_text("utf-8"))["memory"] for path in _dumps(folder, "case.json")}
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
    """A property of each history's tree (`eval.structure.Shape`), over histories; `chains=False` leaves out nodes with a single child."""
    values = {}
    for path in _dumps(folder, "case.json"):
        if (found := read_tree(path.parent)) is not None:
            seen = shape(found if chains else without_chains(found), build_calls(path.parent))
            values[path.parent.name] = float(getattr(seen, name))
    return gathered(values, over)


def spread(folder: Path, name: str, level: int) -> Estimate | None:
    """How the nodes of one level lie: silhouette, separation, spread, cv or radius95; None without two nodes.

    The first two compare histories and are None as well where there are not two of them.
    """
    vectors, owners = _level(folder, level)
    if len(vectors) < 2:
        return None
    if name in ("silhouette", "separation"):
        return single(_histories_apart(vectors, owners, name), len(vectors))
    distances = np.linalg.norm(vectors - vectors.mean(axis=0), axis=1)
    middle = float(distances.mean())
    measures = {
        "spread": middle,
        "cv": float(distances.std()) / middle if middle else None,
        "radius95": float(np.percentile(distances, 95)),
    }
    return single(measures[name], len(vectors))


def _level(folder: Path, level: int) -> tuple[np.ndarray, np.ndarray]:
    vectors: list[np.ndarray] = []
    owners: list[str] = []
    for path in _dumps(folder, "nodes.jsonl"):
        rows = [row for row, node in enumerate(read_lines(path)) if node["level"] == level]
        vectors += list(np.load(path.with_name("vectors.npy"))[rows])
        owners += [path.parent.name] * len(rows)
    return np.asarray(vectors, dtype=np.float64), np.asarray(owners)


def _histories_apart(vectors: np.ndarray, owners: np.ndarray, name: str) -> float | None:
    histories = np.unique(owners)
    if len(histories) < 2 or len(histories) >= len(vectors):
        return None
    if name == "silhouette":
        from sklearn.metrics import silhouette_score

        return float(silhouette_score(vectors, owners))
    centroids = np.stack([vectors[owners == history].mean(axis=0) for history in histories])
    distances = np.linalg.norm(vectors[:, None] - centroids[None], axis=2)
    own = owners[:, None] == histories[None]
    within = float(distances[own].mean())
    return float(distances[~own].mean()) / within if within else None


def coverage(folder: Path, cases: Iterable[Case], name: str) -> Estimate | None:
    """`blocks` or `tokens` of recall, best first, until every content token of the gold answer has occurred."""
    values: list[float] = []
    clusters: list[str] = []
    for case in cases:
        where = folder / "cases" / safe_name(case.id)
        texts, predictions = read_items(where), read_predictions(where)
        for question, gold in case.questions:
            if question.id in predictions and gold.answerable and gold.answers:
                recalled = [texts[key]["text"] for key in predictions[question.id].items]
                if (found := covering(recalled, gold.answers[0])) is not None:
                    values.append(found if name == "blocks" else sum(map(count_tokens, recalled[:found])))
                    clusters.append(case.cluster or case.id)
    return mean(values, clusters)


def covering(recalled: Sequence[str], answer: str) -> int | None:
    """How many of the recalled texts, best first, it takes to hold all content tokens of the answer.

    None when not even all of them do, or the answer has no content token.
    """
    missing = set(_CONTENT.findall(answer.lower()))
    if not missing:
        return None
    for place, text in enumerate(recalled, start=1):
        missing -= set(_CONTENT.findall(text.lower()))
        if not missing:
            return place
    return None


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
