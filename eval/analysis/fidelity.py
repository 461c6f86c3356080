"""Compare two memories on the same units and questions: paired differences of costs, and overlaps of their stored and recalled texts.

All values are read from two run folders; no model is called. Two texts are alike when they share four fifths of their words, without
the time at their beginning. The overlap of two recalls is the overlap of their sets of source turns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.analysis.costs import BUILD, efforts
from eval.files.run_folder import NODES, RunFolder, history_of, read_items, read_predictions
from eval.files.store import read_lines
from eval.statistics.stats import Difference, Estimate, difference, estimate
from memsys.tokens import count_tokens

ALIKE = 0.8
"""Share of common words (Jaccard) from which on two texts count as one."""
Place = tuple[str, str]
"""Case and unit, or case and question."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One quantity of both memories."""

    what: str
    first: float
    second: float
    gap: Difference


@dataclass(frozen=True, slots=True)
class Fidelity:
    """All comparisons of two memories."""

    per_unit: tuple[Compared, ...]
    per_question: tuple[Compared, ...]
    overlaps: Mapping[str, Estimate | None]
    """Measures of agreement over questions or stored texts, by what they measure; None where there is nothing to compare."""
    purposes: tuple[Mapping[str, float], Mapping[str, float]]
    """Calls of the build per unit by purpose, consolidations included."""
    notes: tuple[Mapping[str, int], Mapping[str, int]]
    """Events of the builds: misfits, fallbacks, stored texts."""


def compared(first: Path, second: Path, k: int) -> Fidelity:
    """Compare two run folders on one data set.

    Args:
        k: length of the recalls that are compared.

    Raises:
        ValueError: the two have no unit or no question in common.
    """
    runs = (_read(first), _read(second))
    units = [place for place in runs[0].per_unit if place in runs[1].per_unit]
    questions = [place for place in runs[0].recalls if place in runs[1].recalls]
    if not units or not questions:
        why = "another unit rule, another cut, or an unfinished run"
        raise ValueError(f"the runs have no unit or no question in common: {why}")
    calls = [{purpose: n / len(run.per_unit) for purpose, n in _summed(run, "calls").items()} for run in runs]
    return Fidelity(
        tuple(_gaps(units, runs[0].histories, *(run.per_unit for run in runs))),
        tuple(_gaps(questions, runs[0].histories, *(run.per_question for run in runs))),
        {**_recall_overlaps(questions, *runs, k=k), **_stored_overlaps(*runs)},
        (calls[0], calls[1]),
        (_summed(runs[0], "notes"), _summed(runs[1], "notes")),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    building: Sequence[Mapping[str, Any]]
    """Effort of each write and each consolidation."""
    per_unit: Mapping[Place, Mapping[str, float]]
    """Measures of each write, by name."""
    recalls: Mapping[Place, Mapping[str, Any]]
    """Items and answer of each question."""
    per_question: Mapping[Place, Mapping[str, float]]
    """Measures of each question, by name."""
    nodes: Mapping[str, Sequence[Mapping[str, Any]]]
    """Stored texts by case."""
    histories: Mapping[str, str]
    """History by case."""


def _read(folder: Path) -> _Run:
    building: list[Mapping[str, Any]] = []
    per_unit: dict[Place, Mapping[str, float]] = {}
    reads: dict[Place, Mapping[str, Any]] = {}
    held: Counter[str] = Counter()
    for line in efforts(folder):
        place = line["case_id"], line["subject"]
        if line["phase"] in BUILD:
            building.append(line)
        if line["phase"] == "write":
            per_unit[place] = {
                "model calls": float(sum(line["calls"].values())),
                "tokens in": float(line["tokens_in"]),
                "tokens out": float(line["tokens_out"]),
                "embedding requests": float(line["embedding_calls"]),
                "embedding tokens": float(line["embedding_tokens"]),
                "entries more": float(line["held"] - held[place[0]]),
                "own CPU ms": 1000 * float(line["own_cpu_seconds"]),
            }
            held[place[0]] = line["held"]
        elif line["phase"] == "read":
            reads[place] = line
    recalls, per_question, nodes, histories = {}, {}, {}, {}
    for case in RunFolder(folder).cases():
        items, history = read_items(case), history_of(case)
        for prediction in read_predictions(case).values():
            histories[prediction.case_id] = history or prediction.case_id
            if prediction.outcome == "error":  # what a failed read would have recalled is unknown
                continue
            place = prediction.case_id, prediction.question_id
            shown = [items[key] for key in prediction.items]
            recalls[place] = {"items": shown, "answer": prediction.answer}
            per_question[place] = {
                "items recalled": float(len(shown)),
                "tokens recalled": float(sum(count_tokens(item["text"]) for item in shown)),
                "embedding tokens": float(reads.get(place, {}).get("embedding_tokens", 0)),
                "words of the answer": float(len(prediction.answer.split())),
            }
            if (case / NODES).is_file() and prediction.case_id not in nodes:
                nodes[prediction.case_id] = [node for node in read_lines(case / NODES) if node["kind"] != "entity"]
    return _Run(building, per_unit, recalls, per_question, nodes, histories)


def _gaps(
    places: Sequence[Place],
    histories: Mapping[str, str],
    first: Mapping[Place, Mapping[str, float]],
    second: Mapping[Place, Mapping[str, float]],
) -> Iterator[Compared]:
    clusters = [histories[case] for case, _ in places]
    for measure in first[places[0]]:
        ours, theirs = ([side[place][measure] for place in places] for side in (first, second))
        gap = difference(ours, theirs, clusters, scores=False)  # calls, tokens, items
        yield Compared(measure, sum(ours) / len(ours), sum(theirs) / len(theirs), gap)


def _recall_overlaps(places: Sequence[Place], first: _Run, second: _Run, *, k: int) -> dict[str, Estimate]:
    clusters = [first.histories[case] for case, _ in places]
    turns, texts, tops, answers = [], [], [], []
    for place in places:
        ours, theirs = first.recalls[place], second.recalls[place]
        shown = [list(each["items"][:k]) for each in (ours, theirs)]
        sets = [{turn for item in side for turn in item["sources"]} for side in shown]
        turns.append(_jaccard(*sets))
        texts.append(_matched([item["text"] for item in shown[0]], [item["text"] for item in shown[1]]))
        first_turns = [set(side[0]["sources"]) if side else set() for side in shown]
        tops.append(float(bool(first_turns[0] & first_turns[1]) or not any(first_turns)))
        answers.append(float(_words(ours["answer"]) == _words(theirs["answer"])))
    named = {
        f"turns behind the first {k} items, common share": turns,
        f"texts of the first {k} items with one alike on the other side": texts,
        "first item from the same unit": tops,
        "answers with the same words": answers,
    }
    return {what: estimate(values, clusters) for what, values in named.items()}


def _stored_overlaps(first: _Run, second: _Run) -> dict[str, Estimate | None]:
    cases, overlaps = [case for case in first.nodes if case in second.nodes], {}
    for what, one, other in (("first", first, second), ("second", second, first)):
        values, clusters = [], []
        for case in cases:
            known = [_words(node["text"]) for node in other.nodes[case]]
            for node in one.nodes[case]:
                words = _words(node["text"])
                values.append(float(any(_jaccard(words, each) >= ALIKE for each in known)))
                clusters.append(first.histories[case])
        title = f"texts stored by the {what} memory that the other stores alike"
        overlaps[title] = estimate(values, clusters) if values else None
    return overlaps


def _matched(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Share of the texts of both sides that have an alike text on the other side; 1 where there are no texts."""
    sides = [[_words(text) for text in texts] for texts in (ours, theirs)]
    pairs = [(words, sides[1]) for words in sides[0]] + [(words, sides[0]) for words in sides[1]]
    alike = [any(_jaccard(words, each) >= ALIKE for each in known) for words, known in pairs]
    return sum(alike) / len(alike) if alike else 1.0


def _words(text: str) -> frozenset[str]:
    """The words of a text in lower case, without the time at its beginning and without roles."""
    bare = re.sub(r"^\[[^\]]*\]\s*", "", text.lower())
    return frozenset(re.findall(r"\w+", bare)) - {"user", "assistant"}


def _jaccard(first: frozenset[str] | set[str], second: frozenset[str] | set[str]) -> float:
    union = first | second
    return len(first & second) / len(union) if union else 1.0


def _summed(run: _Run, name: str) -> dict[str, int]:
    """The counts of a field over the whole build, added up."""
    total: Counter[str] = Counter()
    for line in run.building:
        total.update(line[name])
    return dict(sorted(total.items()))
