"""Scores that several reads decide together: what was recalled for a question before and after, for its twin, or in another build.

`Gold.detail["reads"]` of a scored question names the reads, each by its case and question id; `end` is the question itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Read, Score
from eval.files.run_folder import read_items, read_predictions
from eval.files.store import write_lines
from eval.judging.score_files import Scored, cases_of, hash_of, scored_answers, scored_line
from eval.running.run import Run

JointScorer = Callable[[Question, Gold, Mapping[str, Read]], Score]


@dataclass(frozen=True, slots=True)
class _Joined:
    """A scored question and the predictions behind it; one that was not reached is absent."""

    question: Question
    gold: Gold
    predictions: Mapping[str, Prediction]

    @property
    def text(self) -> str:
        """What is scored: all that was recalled, and the answers."""
        parts = [(name, each.outcome, *each.items, each.answer) for name, each in self.predictions.items()]
        return "\n".join(map(" ".join, parts))


def score_together(run: Run, scorers: Mapping[Path, JointScorer]) -> None:
    """Write the score files of a run whose metrics look at several reads; files that hold scores of exactly these reads are kept.

    A question with a read that failed or was aborted has a line without a value, whose detail names the outcome `errored`; one with a
    read that was not reached has no line.

    Args:
        scorers: by the file that is written.
    """
    joined = [each for each in _joined(run) if each.predictions.keys() == each.gold.detail["reads"].keys()]
    known = {(each.predictions["end"].case_id, each.question.id, hash_of(each.text)) for each in joined}
    stale = {path: scorer for path, scorer in scorers.items() if not path.is_file() or scored_answers(path) != known}
    lines: dict[Path, list[Scored]] = {path: [] for path in stale}
    texts: dict[str, Mapping[str, str]] = {}
    for each in joined if stale else ():
        reads = {}
        for name, prediction in each.predictions.items():
            if prediction.case_id not in texts:
                items = read_items(run.case_folder(prediction.case_id))
                texts[prediction.case_id] = {key: item["text"] for key, item in items.items()}
            reads[name] = Read(prediction, tuple(texts[prediction.case_id][key] for key in prediction.items))
        failed = [name for name, read in reads.items() if read.prediction.outcome in ("error", "aborted")]
        for path, scorer in stale.items():
            score = _errored(failed) if failed else scorer(each.question, each.gold, reads)
            end = each.predictions["end"]
            lines[path].append(scored_line(end.case_id, end, score, each.text))
    for path, scored in lines.items():
        write_lines(path, scored)


def _errored(reads: Sequence[str]) -> Score:
    return Score(None, f"errored: {', '.join(reads)}", detail={"outcome": "errored"})


def _joined(run: Run) -> Iterator[_Joined]:
    predictions: dict[str, Mapping[str, Prediction]] = {}
    for case in cases_of(run):
        for question, gold in case.questions:
            if gold.supports or "reads" not in gold.detail:
                continue
            found = {}
            for name, (case_id, question_id) in gold.detail["reads"].items():
                if case_id not in predictions:
                    predictions[case_id] = read_predictions(run.case_folder(case_id))
                if (prediction := predictions[case_id].get(question_id)) is not None:
                    found[name] = prediction
            if "end" in found:
                yield _Joined(question, gold, found)
