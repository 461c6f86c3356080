"""Scores of a run: its predictions are joined with the gold by id, and each metric writes `scores/<metric>-<hash of its settings>.jsonl`.

A line stays valid as long as the answer that it scored is the same. Lexical metrics need no model; judges go through the cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from data_loaders.schema import Gold, Question
from eval.files.provenance import identity, source_digest
from eval.files.records import Prediction, Score
from eval.files.run_folder import COSTS, read_items, read_predictions
from eval.files.store import Appender, RunError, locked, read_lines, write_lines
from eval.judging.judge import Judge
from eval.judging.judge_parts import judge_requests, judged_together
from eval.judging.score_files import (
    Scored,
    answer_key,
    answered,
    answers_of,
    cases_of,
    hash_of,
    order_of,
    place_of,
    score_file,
    score_lines,
    scored_answers,
    scored_line,
)
from eval.judging.score_together import score_together
from eval.metrics.lexical import EMPTY
from eval.metrics.retrieval import covered_at_k, ndcg_at_k, sources_per_item, verbatim_at_k
from eval.running.case_log import effort
from eval.running.run import Run
from memsys.jsons import fields_of
from memsys.llm.meter import Ledger, metering
from memsys.llm.protocol import LLM, Completion, ContextOverflow, EndOfRun
from memsys.llm.replies import POLICY
from memsys.llm.secrets import redact
from memsys.prompts import Prompts

UNKNOWN_RECALL = "imported answers come without what was recalled"

Scorer = Callable[..., Score]
"""A function of question, gold and prediction; with a fourth parameter `recalled` also of the texts that were recalled, in their order."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A lexical metric: a scorer whose settings are bound."""

    name: str
    score: Callable[..., Score]
    """A `Scorer`, or where it is `joint` an `eval.judging.score_together.JointScorer`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    on_recall: bool = False
    """Whether it scores the recalled texts in place of the answer."""
    joint: bool = False
    """Whether it is a function of question, gold and several reads (`eval.judging.score_together`)."""


@dataclass(frozen=True, slots=True)
class Judging:
    """A judge with the model behind it."""

    judge: Judge
    llm: LLM
    model: str
    """Identity of the model; it is part of the score file's identity."""
    prompts: Prompts
    repeats: int = 1
    """How often each answer is judged, in separate draws."""
    model_name: str = ""
    """The model's name, which is written beside the scores; it identifies nothing."""


VerdictKey = tuple[Path, str, str, str, str, int]
"""Run folder, identity of the judge, case, question, hash of the judged text, repeat."""


Sent = tuple[Ledger, tuple[Future[Completion], ...]]
"""The calls for one verdict, and the ledger that they are charged to."""


class Ahead(Protocol):
    """Verdicts that were asked for before the scoring began (`eval.judging.judging_ahead`)."""

    def take(self, key: VerdictKey) -> Sent | None:
        """The calls that were sent for a verdict, with their ledger; None when there are none."""


def score_lexical(run: Run, metrics: Sequence[Metric]) -> dict[str, Path]:
    """Score every prediction of a run in one pass over its cases; returns the score files by metric.

    A file that holds scores of exactly these answers, or recalls, is kept: its name identifies the code and settings that made it.
    """
    paths = {metric.name: score_file(run, metric.name, _metric_identity(metric)) for metric in metrics}
    score_together(run, {paths[metric.name]: metric.score for metric in metrics if metric.joint})
    single = [metric for metric in metrics if not metric.joint]
    done = {on_recall: answers_of(run, _scored_text(on_recall)) for on_recall in {each.on_recall for each in single}}
    stale = [
        metric
        for metric in single
        if not paths[metric.name].is_file() or scored_answers(paths[metric.name]) != done[metric.on_recall]
    ]
    if stale:
        lines: dict[str, list[Scored]] = {metric.name: [] for metric in stale}
        recalled = _Recalled(run)
        for case_id, question, gold, prediction in answered(run):
            for metric in stale:
                score = _lexical_score(metric, question, gold, prediction, recalled)
                text = _scored_text(metric.on_recall)(prediction)
                lines[metric.name].append(scored_line(case_id, prediction, score, text))
        for metric in stale:
            write_lines(paths[metric.name], lines[metric.name])
    return paths


def _scored_text(on_recall: bool) -> Callable[[Prediction], str]:
    return _ranking if on_recall else lambda prediction: prediction.answer


def _lexical_score(
    metric: Metric, question: Question, gold: Gold, prediction: Prediction, recalled: _Recalled
) -> Score:
    if not metric.on_recall:
        return metric.score(question, gold, prediction)
    texts = recalled.texts(prediction)
    if texts is None:
        return Score(None, UNKNOWN_RECALL)
    return metric.score(question, gold, prediction, recalled=texts)


class _Recalled:
    """The recalled texts of a run, whose files are read case by case."""

    def __init__(self, run: Run) -> None:
        self._run, self._case = run, ""
        self._items: Mapping[str, Mapping[str, Any]] = {}

    def texts(self, prediction: Prediction) -> list[str] | None:
        """What was recalled for a question; None for imported answers, which come without it."""
        if self._run.record.imported:
            return None
        if prediction.case_id != self._case:
            self._case, self._items = prediction.case_id, read_items(self._run.case_folder(prediction.case_id))
        return [self._items[item]["text"] for item in prediction.items]


def score_paths(run: Run, metrics: Sequence[Metric], judges: Mapping[str, Judging], k_evidence: int) -> dict[str, Path]:
    """Where the scores of a run stand under these settings, by metric; nothing is scored or written."""
    paths = {metric.name: place_of(run, metric.name, _metric_identity(metric)) for metric in metrics}
    paths[f"evidence@{k_evidence}"] = place_of(run, f"evidence@{k_evidence}", _evidence_identity())
    for name, judging in judges.items():
        paths[f"judge_{name}"] = place_of(run, f"judge_{judging.judge.name}", _judge_identity(judging))
    return paths


def _metric_identity(metric: Metric) -> dict[str, Any]:
    module = getattr(metric.score, "func", metric.score).__module__
    return {"settings": metric.settings, "source": source_digest([module])}


def _verdict_key(record: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Answer and repeat that a judge's line, or the line of its cost, belongs to."""
    return (*answer_key(record), record["repeat"])


def score_evidence(run: Run, k: int) -> Path:
    """Score how much of the evidence the first `k` recalled items bring back; returns the score file.

    The value is `covered@k`. The detail holds `verbatim@k`, nDCG@k and the mean number of sources per item.
    """
    path = score_file(run, f"evidence@{k}", _evidence_identity())
    if path.is_file() and scored_answers(path) == answers_of(run, _ranking):
        return path
    lines: list[Scored] = []
    for case in cases_of(run):
        items = read_items(run.case_folder(case.id))
        texts = {turn.id: turn.text for turn in case.turns}
        predictions = read_predictions(run.case_folder(case.id))
        for question, gold in case.questions:
            prediction = predictions.get(question.id)
            if prediction is None or prediction.outcome == "error":
                continue
            if not gold.evidence:
                unnamed = Score(None, "the data set names no evidence")
                lines.append(scored_line(case.id, prediction, unnamed, _ranking(prediction)))
                continue
            if run.record.imported:
                unknown = Score(None, UNKNOWN_RECALL)
                lines.append(scored_line(case.id, prediction, unknown, _ranking(prediction)))
                continue
            # Ranked by the memory's own scores: the order of a recall may be meant for the reader.
            ranking = sorted(range(len(prediction.items)), key=lambda place: -prediction.scores[place])
            recalled = [items[prediction.items[place]] for place in ranking]
            score = _evidence(recalled, gold.evidence, texts, k)
            lines.append(scored_line(case.id, prediction, score, _ranking(prediction)))
    write_lines(path, lines)
    return path


def _evidence_identity() -> dict[str, Any]:
    return {"source": source_digest(["eval.metrics.retrieval"])}


def _ranking(prediction: Prediction) -> str:
    """Hashes and scores of the recalled items, as text."""
    return " ".join(f"{item}:{score}" for item, score in zip(prediction.items, prediction.scores, strict=True))


def _evidence(items: Sequence[Mapping[str, Any]], evidence: Sequence[str], texts: Mapping[str, str], k: int) -> Score:
    sources = [item["sources"] for item in items]
    detail = {
        "verbatim": verbatim_at_k([item["text"] for item in items], [texts[turn] for turn in evidence], k),
        "ndcg": ndcg_at_k(sources, evidence, k),
        "sources_per_item": sources_per_item(sources, k),
    }
    return Score(covered_at_k(sources, evidence, k), detail=detail)


def is_judged(run: Run, judging: Judging) -> bool:
    """Whether every answer of a run has all its verdicts, so that `score_judge` sends nothing."""
    path = score_file(run, f"judge_{judging.judge.name}", _judge_identity(judging), {"model_name": judging.model_name})
    return _is_judged(path, _verdicts_wanted(run, judging))


def _is_judged(path: Path, wanted: Collection[Any]) -> bool:
    if not path.is_file():
        return False
    lines = score_lines(path, "answer", "repeat")
    return {_verdict_key(line) for line in lines if line["value"] is not None} == wanted


def _verdicts_wanted(run: Run, judging: Judging) -> set[Any]:
    answers = answers_of(run, _judged_text(run, judging.judge))
    return {(*key, repeat) for key in answers for repeat in range(judging.repeats)}


def score_judge(
    run: Run, judging: Judging, on_progress: Callable[[], None] = lambda: None, ahead: Ahead | None = None
) -> Path:
    """Let a judge grade every answer of a run, `repeats` times; returns the score file.

    The file holds one line per answer and repeat; a second file beside it holds their costs. Verdicts on answers that have changed are
    dropped, all others are kept. A call that fails for good, or a reply without a verdict, is a line without a value and is repeated
    the next time. An aborted search and an empty reply score 0 without a call (GateMem's judge: no value). Other settings, another
    prompt or another model make another file.

    Args:
        on_progress: called after every verdict.
        ahead: calls that were sent while the run was answering; they are taken in place of new ones.

    Raises:
        EndOfRun: no further call can be made; verdicts so far are kept.
    """
    path = score_file(run, f"judge_{judging.judge.name}", _judge_identity(judging), {"model_name": judging.model_name})
    judged_text = _judged_text(run, judging.judge)
    wanted = _verdicts_wanted(run, judging)
    if _is_judged(path, wanted):
        return path
    with locked(path.parent):
        given = {
            _verdict_key(line): line for line in score_lines(path, "answer", "repeat") if line["value"] is not None
        }
        kept = {verdict: line for verdict, line in given.items() if verdict in wanted}
        write_lines(path, kept.values())
        effort_path = path.with_suffix(COSTS)
        efforts = {
            _verdict_key(line): line
            for line in read_lines(effort_path, fields=("case_id", "question_id", "answer", "repeat"))
        }
        write_lines(effort_path, [line for verdict, line in efforts.items() if verdict in kept])
        scores, costs = Appender(path), Appender(effort_path)
        try:
            _judge_all(run, judging, judged_text, kept, scores, costs, on_progress, ahead)
        finally:
            scores.close()
            costs.close()
        write_lines(path, sorted(read_lines(path), key=order_of(run)))
    return path


def _judge_all(
    run: Run,
    judging: Judging,
    judged_text: Callable[[Prediction], str],
    kept: Container[tuple[str, str, str, int]],
    scores: Appender,
    costs: Appender,
    on_progress: Callable[[], None],
    ahead: Ahead | None,
) -> None:
    outstanding: deque[_Call] = deque()
    for case_id, question, gold, prediction in answered(run):
        judged = judged_text(prediction)
        for repeat in range(judging.repeats):
            if (case_id, question.id, hash_of(judged), repeat) in kept:
                continue
            if why := _wrong_without_a_call(judging.judge, prediction):
                value = None if judging.judge.rule == "gatemem" else 0.0  # 0 would say that nothing leaked
                scores.add(scored_line(case_id, prediction, Score(value, why, repeat), judged))
                continue
            sent = ahead and ahead.take(verdict_key(run, judging, case_id, question.id, judged, repeat))
            ledger, calls = sent or _sent(judging, question, gold, judged, repeat)
            outstanding.append(_Call(case_id, prediction, judged, gold, repeat, ledger, calls))
            if len(outstanding) > run.outstanding:
                _save(outstanding.popleft(), judging, scores, costs, on_progress)
    for waiting in outstanding:
        _save(waiting, judging, scores, costs, on_progress)


def _wrong_without_a_call(judge: Judge, prediction: Prediction) -> str:
    """Why an answer is not judged by a call: the search was aborted, or the reply is empty; an empty text if the judge is asked.

    The published judges are asked about empty replies, too. With no text to grade their verdict is a matter of chance, above all on
    questions that cannot be answered; 0 is what the same reply gets from every lexical metric.
    """
    if prediction.outcome == "aborted":
        return f"aborted: {prediction.error}"
    return EMPTY if prediction.empty and judge.rule != "memory" else ""


def _sent(judging: Judging, question: Question, gold: Gold, judged: str, repeat: int) -> Sent:
    requests = judge_requests(judging.judge, judging.prompts, question, gold, judged, sample=repeat)
    with metering() as ledger:
        return ledger, tuple(judging.llm.submit(request) for request in requests)


def verdict_key(run: Run, judging: Judging, case_id: str, question_id: str, judged: str, repeat: int) -> VerdictKey:
    """What identifies a verdict of this process."""
    return run.folder, _judge_name(judging), case_id, question_id, hash_of(judged), repeat


def verdicts_name(judging: Judging) -> str:
    """Name of the score files of a judge, without their ending."""
    return f"judge_{judging.judge.name}-{_judge_name(judging)}"


def _judge_name(judging: Judging) -> str:
    """Identity of a judge, computed once for each model and prompts: it reads source files."""
    key = (judging.judge, judging.model, id(judging.prompts))
    if key not in _judge_names:
        _judge_names[key] = identity(_judge_identity(judging)), judging.prompts
    return _judge_names[key][0]


_judge_names: dict[tuple[Judge, str, int], tuple[str, Prompts]] = {}
"""The prompts are kept, so that no others get their id."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A judge's calls on one answer whose replies are outstanding."""

    case_id: str
    prediction: Prediction
    judged: str
    """The text that is judged."""
    gold: Gold
    repeat: int
    ledger: Ledger
    replies: tuple[Future[Completion], ...]


def _save(call: _Call, judging: Judging, scores: Appender, costs: Appender, on_progress: Callable[[], None]) -> None:
    """Wait for the judge's replies; save the verdict and its cost."""
    errors = [error for reply in call.replies if (error := reply.exception()) is not None]
    error = next((each for each in errors if isinstance(each, EndOfRun)), errors[0] if errors else None)
    if isinstance(error, EndOfRun):
        raise error
    why = "context overflow" if isinstance(error, ContextOverflow) else "the call failed"
    score = (
        Score(None, redact(f"{why}: {error}")[:500])
        if error is not None
        else judged_together(judging.judge, [reply.result() for reply in call.replies], call.gold, call.judged)
    )
    line = scored_line(call.case_id, call.prediction, replace(score, repeat=call.repeat), call.judged)
    scores.add(line)
    spent = effort(call.case_id, "judge", call.prediction.question_id, 0, call.ledger, 0.0)
    # The cost carries the verdict's repeat and hash, so that both are kept or dropped together.
    costs.add({**fields_of(spent), "question_id": line.question_id, "repeat": line.repeat, "answer": line.answer})
    on_progress()


def _judged_text(run: Run, judge: Judge) -> Callable[[Prediction], str]:
    """What a judge sees of a prediction: the answer, or the recalled texts if the judge grades the memory.

    Raises:
        RunError: the judge grades recalled texts, and imported answers have none.
    """
    if judge.rule == "memory" and run.record.imported:
        raise RunError(
            f"{judge.name} grades what was recalled, and imported answers come without it; choose another judge"
        )

    def recalled(prediction: Prediction) -> str:
        items = read_items(run.case_folder(prediction.case_id))
        # The best by the memory's own scores: the order of a recall may be meant for the reader.
        ranking = sorted(range(len(prediction.items)), key=lambda place: -prediction.scores[place])
        shown = sorted(ranking[: judge.top or None])
        return "\n".join(items[prediction.items[place]]["text"] for place in shown)

    return recalled if judge.rule == "memory" else lambda prediction: prediction.answer


def _judge_identity(judging: Judging) -> dict[str, Any]:
    judge = judging.judge
    return {
        "judge": fields_of(judge),
        "model": judging.model,
        "prompts": judging.prompts.digest(judge.prompt_names),
        "replies": POLICY,
        "source": source_digest(["eval.judging.judge", "eval.judging.judge_parts", "memsys.llm.replies"]),
    }
