"""Where a finished run loses its points: its files read into `eval.analysis.losses`, and the waterfall as tables and the report show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_loaders.schema import Case
from eval.analysis.held import Text, Texts, targets
from eval.analysis.losses import Loss, Waterfall, loss_of, reach
from eval.files.run_folder import NODES, RunFolder, read_items, read_predictions
from eval.files.store import RunError, read_lines
from eval.judging.score_files import mean_values
from eval.running.reader import within
from eval.statistics.stats import Estimate
from memsys.interface import Item

EVIDENCE = "gold_evidence"
"""The memory that recalls the evidence and nothing else."""
NET = (
    "A step after the reader's is the score from the evidence minus the memory's: answers that flip between the two runs cancel out in "
    "the mean, and the interval carries them."
)


def losses_of(
    run: Path, scores: Path, evidence_scores: Path, cases: Sequence[Case], reader: Mapping[str, Any]
) -> Iterator[Loss]:
    """What each scored question of a run lost, by step; the loss of a question without a score from the evidence is unknown.

    Args:
        run: the run folder.
        scores: a score file of the run, of values from 0 to 1.
        evidence_scores: a score file of the run of `gold_evidence`, by the same metric or judge.
        cases: the data of the run.
        reader: the reader's settings in `run.json`; `max_context_tokens` and `fill` say what it showed.

    Raises:
        RunError: no question of the run has a score from the evidence, or a file is damaged.
    """
    ours, theirs = mean_values(scores), mean_values(evidence_scores)
    if ours and not ours.keys() & theirs.keys():
        raise RunError(
            f"{evidence_scores} has no score of a question of {run}; run {EVIDENCE} on the same data, and score it alike"
        )
    for index in range(len(cases)):
        case = cases[index]
        folder = RunFolder(run).case(case.id)
        nodes = _nodes(folder / NODES)
        predictions, items = read_predictions(folder), read_items(folder)
        for question, gold in case.questions:
            key = (case.id, question.id)
            if key not in ours or question.id not in predictions:
                continue
            prediction = predictions[question.id]
            recalled = [
                _item(items[each], score) for each, score in zip(prediction.items, prediction.scores, strict=True)
            ]
            shown = shown_texts(recalled, reader)
            got = reach(targets(case, question, gold), nodes, Texts(map(_text, recalled)), Texts(shown))
            yield Loss(case.id, question.id, gold.category, ours[key], loss_of(ours[key], theirs.get(key), gold, got))


def _nodes(path: Path) -> Texts | None:
    """The texts that a memory holds; None where it does not show its nodes, which is something else than an empty memory."""
    if not path.is_file():
        return None
    return Texts(
        Text(node["text"], frozenset(node["sources"])) for node in read_lines(path, fields=("text", "sources"))
    )


def _item(record: Mapping[str, Any], score: float) -> Item:
    return Item(record["id"], record["text"], score, tuple(record["sources"]), record["kind"], record["level"])


def _text(item: Item, whole: bool = True) -> Text:
    return Text(item.text, frozenset(item.sources), whole)


def shown_texts(recalled: Sequence[Item], reader: Mapping[str, Any]) -> list[Text]:
    """What the reader's prompt had of the recalled items: all, or as much as its budget allows (`eval.running.reader.within`)."""
    kept = within(recalled, reader.get("max_context_tokens"), fill=bool(reader.get("fill")))
    return [_text(item, item in recalled) for item in kept]


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
