"""Predictions joined with gold by id, scored, and kept: `scores/<metric>-<hash of its settings>.jsonl`, recomputed as often as we like.

A line is reused as long as the answer it judged is the same; lexical metrics need no model, judges go through the cache.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_loaders.schema import Case, Gold, Question
from eval.case_log import effort
from eval.judge import Judge, judge_request, verdict
from eval.provenance import identity, source_digest
from eval.records import Prediction, Score
from eval.retrieval import covered_at_k, ndcg_at_k, sources_per_item, verbatim_at_k
from eval.store import Appender, RunError, locked, read_items, read_lines, read_predictions, replace_file, write_lines
from eval.work import OUTSTANDING, Run
from memsys.llm.meter import Ledger, metering
from memsys.llm.pricing import SpendingCapReached
from memsys.llm.protocol import LLM, Completion
from memsys.prompts import Prompts

Scorer = Callable[[Question, Gold, Prediction], Score]


@dataclass(frozen=True, slots=True)
class Metric:
    """A lexical metric: a function of question, gold and prediction, with its settings bound."""

    name: str
    score: Scorer
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judging:
    """A judge with the model behind it."""

    judge: Judge
    llm: LLM
    model: str
    """Identity of the model: part of the score file's."""
    prompts: Prompts
    repeats: int = 1
    """How often the same answer is judged, as separate draws."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One line of a score file."""

    case_id: str
    question_id: str
    repeat: int
    value: float | None
    why: str
    detail: Mapping[str, Any]
    answer: str
    """Hash of what was scored."""


def score_lexical(run: Run, metrics: Sequence[Metric]) -> dict[str, Path]:
    """Score every prediction of a run with functions, in one pass over its cases; returns the score files by metric.

    A file that already holds exactly these answers is left as it is: its name says by which code and settings it was made.
    """
    paths = {metric.name: _path(run, metric.name, _metric_identity(metric)) for metric in metrics}
    asked = _asked(run)
    stale = [metric for metric in metrics if not paths[metric.name].is_file() or _answers(paths[metric.name]) != asked]
    if stale:
        lines: dict[str, list[Scored]] = {metric.name: [] for metric in stale}
        for case_id, question, gold, prediction in answered(run):
            for metric in stale:
                lines[metric.name].append(_scored(case_id, prediction, metric.score(question, gold, prediction)))
        for metric in stale:
            write_lines(paths[metric.name], lines[metric.name])
    return paths


def _metric_identity(metric: Metric) -> dict[str, Any]:
    module = getattr(metric.score, "func", metric.score).__module__
    return {"settings": metric.settings, "source": source_digest([module])}


def _asked(run: Run) -> set[tuple[str, str, str]]:
    """(case, question, hash of the answer) of every prediction that can be scored."""
    return {
        (one.case_id, one.question_id, _hash(one.answer))
        for folder in sorted((run.folder / "cases").glob("*"))
        for one in read_predictions(folder).values()
        if one.outcome != "error"
    }


def _answers(path: Path) -> set[tuple[str, str, str]]:
    return {_answer(record) for record in score_lines(path)}


def _answer(record: Mapping[str, Any]) -> tuple[str, str, str]:
    return record["case_id"], record["question_id"], record.get("answer", "")  # without one it is stale


def score_evidence(run: Run, k: int) -> Path:
    """How much of the evidence the first `k` recalled items bring back.

    The value is `covered@k`; the detail holds `verbatim@k`, nDCG and the mean number of sources per item.
    """
    path = _path(run, f"evidence@{k}", {"source": source_digest(["eval.retrieval"])})
    if path.is_file() and _answers(path) == _asked(run):
        return path
    lines: list[Scored] = []
    for case in _cases(run):
        items = read_items(run.case_folder(case.id))
        texts = {turn.id: turn.text for turn in case.turns}
        predictions = read_predictions(run.case_folder(case.id))
        for question, gold in case.questions:
            prediction = predictions.get(question.id)
            if prediction is None or prediction.outcome == "error":
                continue
            if not gold.evidence:
                lines.append(_scored(case.id, prediction, Score(None, "the data set names no evidence")))
                continue
            # By the memory's own score, best first: a recall may be ordered for the reader instead.
            ranking = sorted(range(len(prediction.items)), key=lambda place: -prediction.scores[place])
            recalled = [items[prediction.items[place]] for place in ranking]
            lines.append(_scored(case.id, prediction, _evidence(recalled, gold.evidence, texts, k)))
    write_lines(path, lines)
    return path


def _evidence(items: Sequence[Mapping[str, Any]], evidence: Sequence[str], texts: Mapping[str, str], k: int) -> Score:
    sources = [item["sources"] for item in items]
    detail = {
        "verbatim": verbatim_at_k([item["text"] for item in items], [texts[turn] for turn in evidence], k),
        "ndcg": ndcg_at_k(sources, evidence, k),
        "sources_per_item": sources_per_item(sources, k),
    }
    return Score(covered_at_k(sources, evidence, k), detail=detail)


def score_judge(run: Run, judging: Judging, told: Callable[[], None] = lambda: None) -> Path:
    """Let a judge grade every answer of a run, `repeats` times; returns the score file.

    Judgements of answers that have not changed are kept. A call that fails for good, or a reply without a verdict, is a line without
    a value. Other settings, prompt or model: another file.

    Raises:
        SpendingCapReached: what was judged is kept.
    """
    path = _path(run, f"judge_{judging.judge.name}", _judge_identity(judging))
    wanted = {(*key, repeat) for key in _asked(run) for repeat in range(judging.repeats)}
    if (
        path.is_file()
        and {(*_answer(one), one["repeat"]) for one in score_lines(path, "repeat") if one["value"] is not None}
        == wanted
    ):
        return path
    with locked(path.parent):
        kept = {key: record for key, record in _previous(path).items() if record["value"] is not None}
        write_lines(path, kept.values())
        efforts = path.with_suffix(".effort.jsonl")
        write_lines(efforts, read_lines(efforts))
        book, costs = Appender(path), Appender(efforts)
        try:
            _judge_all(run, judging, kept, book, costs, told)
        finally:
            book.close()
            costs.close()
        write_lines(path, sorted(_previous(path).values(), key=_order(run)))
    return path


def _judge_all(
    run: Run, judging: Judging, kept: Mapping[Any, Any], book: Appender, costs: Appender, told: Callable[[], None]
) -> None:
    under_way: deque[_Call] = deque()
    for case_id, question, gold, prediction in answered(run):
        judged = prediction.answer if judging.judge.rule != "memory" else _recalled(run, case_id, prediction)
        for repeat in range(judging.repeats):
            if (case_id, question.id, repeat, _hash(prediction.answer)) in kept:
                continue
            if prediction.outcome == "aborted":
                book.add(_scored(case_id, prediction, Score(0.0, f"aborted: {prediction.error}", repeat)))
                continue
            request = judge_request(judging.judge, judging.prompts, question, gold, judged, sample=repeat)
            with metering() as ledger:
                call = judging.llm.submit(request)
            under_way.append(_Call(case_id, prediction, gold, repeat, ledger, call))
            if len(under_way) > OUTSTANDING:
                _book(under_way.popleft(), judging, book, costs, told)
    for one in under_way:
        _book(one, judging, book, costs, told)


@dataclass(frozen=True, slots=True)
class _Call:
    """A judgement under way."""

    case_id: str
    prediction: Prediction
    gold: Gold
    repeat: int
    ledger: Ledger
    reply: Future[Completion]


def _book(call: _Call, judging: Judging, book: Appender, costs: Appender, told: Callable[[], None]) -> None:
    """Wait for a judgement and write it down."""
    error = call.reply.exception()
    if isinstance(error, SpendingCapReached):
        raise error
    score = (
        Score(None, f"the call failed: {error}"[:500])
        if error is not None
        else verdict(judging.judge, call.reply.result().text, call.gold)
    )
    book.add(_scored(call.case_id, call.prediction, Score(score.value, score.why, call.repeat, score.detail)))
    costs.add(effort(call.case_id, "judge", call.prediction.question_id, 0, call.ledger, 0.0))
    told()


def _recalled(run: Run, case_id: str, prediction: Prediction) -> str:
    """The recalled texts, for a judge of the memory instead of the answer."""
    items = read_items(run.case_folder(case_id))
    return "\n".join(items[key]["text"] for key in prediction.items)


def _judge_identity(judging: Judging) -> dict[str, Any]:
    judge = judging.judge
    return {
        "judge": {name: getattr(judge, name) for name in judge.__slots__},
        "model": judging.model,
        "prompts": judging.prompts.digest(judge.prompt_names),
        "source": source_digest(["eval.judge"]),
    }


def answered(run: Run) -> Iterator[tuple[str, Question, Gold, Prediction]]:
    """Every question of a run that has an answer to score, with its gold, in order of the data."""
    for case in _cases(run):
        predictions = read_predictions(run.case_folder(case.id))
        for question, gold in case.questions:
            prediction = predictions.get(question.id)
            if prediction is not None and prediction.outcome != "error":
                yield case.id, question, gold, prediction


def read_scores(path: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Score lines by (case, question), repeats in order.

    Raises:
        RunError: there is no such file.
    """
    if not path.is_file():
        raise RunError(f"{path} does not exist: run the experiment again to score it")
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in score_lines(path):
        found.setdefault((record["case_id"], record["question_id"]), []).append(record)
    return found


def score_lines(path: Path, *more: str) -> list[dict[str, Any]]:
    """The lines of a score file, each with its value and what else is asked for.

    Raises:
        RunError: a damaged line.
    """
    return read_lines(path, fields=("case_id", "question_id", "value", *more))


def _cases(run: Run) -> Iterator[Case]:
    return (run.cases[index] for index in range(len(run.cases)))


def _path(run: Run, name: str, settings: Mapping[str, Any]) -> Path:
    """The score file under these settings; they stand beside it in a file of their own."""
    path = run.folder / "scores" / f"{name}-{identity(settings)}.jsonl"
    if not path.with_suffix(".json").is_file():
        replace_file(path.with_suffix(".json"), json.dumps(settings, indent=1, sort_keys=True, default=str))
    return path


def _scored(case_id: str, prediction: Prediction, score: Score) -> Scored:
    value = None if score.value is None else round(float(score.value), 6)
    return Scored(
        case_id, prediction.question_id, score.repeat, value, score.why, score.detail, _hash(prediction.answer)
    )


def _hash(answer: str) -> str:
    return hashlib.sha256(answer.encode()).hexdigest()[:12]


def _previous(path: Path) -> dict[tuple[str, str, int, str], dict[str, Any]]:
    return {
        (one["case_id"], one["question_id"], one["repeat"], one["answer"]): one
        for one in score_lines(path, "repeat", "answer")
    }


def _order(run: Run) -> Callable[[Mapping[str, Any]], tuple[int, int]]:
    places: dict[tuple[str, str], int] = {}
    for case in _cases(run):
        for question, _ in case.questions:
            places[case.id, question.id] = len(places)
    return lambda record: (places.get((record["case_id"], record["question_id"]), -1), record["repeat"])
