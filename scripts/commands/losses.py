"""Where a memory loses its points: `python -m scripts.losses RUN --evidence GOLD_EVIDENCE_RUN --scores METRIC`.

Compares a run with that of the memory `gold_evidence` on the same questions, and prints the mean loss of each step, over all questions
and by category (`eval.losses` says what the steps are). The same numbers go to `<results>/losses/`, which `make report` shows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data_loaders.schema import Case
from eval.losses import Loss, Waterfall, found, loss_of, waterfall
from eval.score_files import mean_values, only_score_file
from eval.stats import Estimate
from eval.store import RunError, read_items, read_lines, read_predictions, replace_file, safe_name, stand_ins
from scripts.experiment.run_folder import data_of, record_of
from scripts.settings.arguments import add_traceback


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts.losses", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--evidence", type=Path, help="the run folder of gold_evidence on the same data")
    parser.add_argument("--scores", required=True, help="a metric or judge of the run, such as locomo_f1 or judge_mem0")
    parser.add_argument("--data", type=Path, help="data root")
    add_traceback(parser)
    options = parser.parse_args(arguments)
    record = record_of(options.run)
    losses = list(losses_of(options.run, options.evidence, options.scores, data_of(record, options.data)))
    if not losses:
        raise RunError(f"{options.run}: no question has a score by {options.scores}")
    title = f"{record['name']} on {record['dataset']['name']}, {options.scores}"
    _print(title, losses, stand_in=bool(stand_ins(record)))
    place = options.run.parents[2] / "losses" / f"{options.run.name}-{safe_name(options.scores)}.json"
    replace_file(place, json.dumps(as_json(title, waterfall(losses)), indent=1))
    print(f"\nwritten: {place}")
    return 0


def losses_of(run: Path, evidence_run: Path | None, metric: str, cases: Sequence[Case]) -> Iterator[Loss]:
    """What each scored question of a run lost, by step; questions that the evidence run has no score for count without it.

    Raises:
        RunError: a run has no scores by the metric, or several.
    """
    ours = mean_values(only_score_file(run, metric))
    theirs = {} if evidence_run is None else mean_values(only_score_file(evidence_run, metric))
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


def _print(title: str, losses: Sequence[Loss], *, stand_in: bool) -> None:
    print(f"# {title}\n")
    if stand_in:
        print("STAND-IN: engines without a model; the steps test the machinery.\n")
    groups = {"all": list(losses)}
    for loss in losses:
        groups.setdefault(loss.category or "no category", []).append(loss)
    print("| questions | n | score | step | loss [95 % by question] {by case} |\n|---|---|---|---|---|")
    for name, group in groups.items():
        fall = waterfall(group)
        for number, (step, mean) in enumerate(fall.steps.items()):
            first = (name, str(fall.score.n), f"{fall.score.mean:.3f}") if number == 0 else ("", "", "")
            print(f"| {' | '.join(first)} | {step} | {_shown_estimate(mean)} |")
        if not fall.steps:
            print(f"| {name} | {fall.score.n} | {fall.score.mean:.3f} | nothing lost | |")


def _shown_estimate(mean: Estimate) -> str:
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
        {"name": step, "value": round(mean.mean, 6), "note": _shown_estimate(mean)} for step, mean in fall.steps.items()
    ]
    left = {"name": "score", "value": round(fall.score.mean, 6), "note": _shown_estimate(fall.score)}
    return {"title": title, "unit": f"share of {fall.score.n} questions", "steps": [*steps, left]}
