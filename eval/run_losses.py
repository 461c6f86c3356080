"""Where a finished run loses its points: its files read into `eval.losses`, and the waterfall as tables and the report show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data_loaders.schema import Case
from eval.losses import Loss, Waterfall, found, loss_of
from eval.score_files import mean_values
from eval.stats import Estimate
from eval.store import read_items, read_lines, read_predictions, safe_name


def losses_of(run: Path, scores: Path, evidence_scores: Path | None, cases: Sequence[Case]) -> Iterator[Loss]:
    """What each scored question of a run lost, by step; questions that have no score from the evidence count without it.

    Args:
        run: the run folder.
        scores: a score file of the run, of values from 0 to 1.
        evidence_scores: a score file of the run of `gold_evidence`, by the same metric or judge.
        cases: the data of the run.
    """
    ours = mean_values(scores)
    theirs = {} if evidence_scores is None else mean_values(evidence_scores)
    for index in range(len(cases)):
        case = cases[index]
        folder = run / "cases" / safe_name(case.id)
        nodes = [node["text"] for node in read_lines(folder / "nodes.jsonl", fields=("text",))] or None
        predictions, items = read_predictions(folder), read_items(folder)
        dropped = {
            line["subject"]: int(line["dropped_items"])
            for line in read_lines(folder / "effort.jsonl", fields=("phase", "subject"))
            if line["phase"] == "answer"
        }
        texts = {turn.id: turn.text for turn in case.turns}
        for question, gold in case.questions:
            key = (case.id, question.id)
            if key not in ours or question.id not in predictions:
                continue
            prediction = predictions[question.id]
            recalled = [items[item]["text"] for item in prediction.items]
            shown = _shown(recalled, prediction.scores, dropped.get(question.id, 0))
            got = found([texts[turn] for turn in gold.evidence if turn in texts], nodes, recalled, shown)
            steps = loss_of(ours[key], theirs.get(key), gold, got)
            yield Loss(case.id, question.id, gold.category, ours[key], steps)


def _shown(recalled: Sequence[str], scores: Sequence[float], dropped: int) -> list[str]:
    """The recalled texts without those that the reader dropped: the ones with the lowest scores (`eval.reader.within`)."""
    ranking = sorted(range(len(recalled)), key=lambda place: -scores[place])
    return [recalled[place] for place in ranking[: len(ranking) - dropped]]


def shown_estimate(mean: Estimate) -> str:
    """A mean with its intervals by question and by case."""
    interval = "" if mean.by_question is None else f" [{mean.by_question.low:.3f}, {mean.by_question.high:.3f}]"
    by_case = (
        f" {{{mean.clusters} cases}}"
        if mean.by_case is None
        else f" {{{mean.by_case.low:.3f}, {mean.by_case.high:.3f}}}"
    )
    return f"{mean.mean:.3f}{interval}{by_case}"


def as_json(title: str, fall: Waterfall) -> dict[str, Any]:
    """The waterfall as the HTML report reads it: what is lost, step by step, and what is left."""
    steps = [
        {"name": step, "value": round(mean.mean, 6), "note": shown_estimate(mean)} for step, mean in fall.steps.items()
    ]
    left = {"name": "score", "value": round(fall.score.mean, 6), "note": shown_estimate(fall.score)}
    return {"title": title, "unit": f"share of {fall.score.n} questions", "steps": [*steps, left]}
