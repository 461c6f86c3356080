"""Predictions joined with gold by id, scored, and kept: `scores/<metric>-<hash of its settings>.jsonl`, recomputed as often as we like.

A line is reused as long as the answer it judged is the same; lexical metrics need no model, judges go through the cache.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from data_loaders.schema import Case, Gold, Question
from eval.case_log import effort
from eval.judge import Judge, judge_request, judged
from eval.metrics.retrieval import covered_at_k, ndcg_at_k, sources_per_item, verbatim_at_k
from eval.provenance import identity, source_digest
from eval.records import Prediction, Score
from eval.run import OUTSTANDING, Run
from eval.store import Appender, RunError, locked, read_items, read_lines, read_predictions, replace_file, write_lines
from memsys.llm.meter import Ledger, metering
from memsys.llm.protocol import LLM, Completion, ContextOverflow, EndOfRun
from memsys.llm.replies import POLICY
from memsys.llm.secrets import redact
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
    """Hash of what was scored: the answer, or what was recalled."""


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
                score = metric.score(question, gold, prediction)
                lines[metric.name].append(_scored(case_id, prediction, score, prediction.answer))
        for metric in stale:
            write_lines(paths[metric.name], lines[metric.name])
    return paths


def score_paths(run: Run, metrics: Sequence[Metric], judges: Mapping[str, Judging], k_evidence: int) -> dict[str, Path]:
    """Where the scores of a run stand under these settings, by metric; nothing is scored or written."""
    paths = {metric.name: _place(run, metric.name, _metric_identity(metric)) for metric in metrics}
    paths[f"evidence@{k_evidence}"] = _place(run, f"evidence@{k_evidence}", _evidence_identity())
    for name, judging in judges.items():
        paths[f"judge_{name}"] = _place(run, f"judge_{judging.judge.name}", _judge_identity(judging))
    return paths


def _metric_identity(metric: Metric) -> dict[str, Any]:
    module = getattr(metric.score, "func", metric.score).__module__
    return {"settings": metric.settings, "source": source_digest([module])}


def _asked(run: Run, scored: Callable[[Prediction], str] = lambda one: one.answer) -> set[tuple[str, str, str]]:
    """(case, question, hash of what is scored of it) of every prediction that can be scored."""
    return {
        (one.case_id, one.question_id, _hash(scored(one)))
        for folder in sorted((run.folder / "cases").glob("*"))
        for one in read_predictions(folder).values()
        if one.outcome != "error"
    }


def _answers(path: Path) -> set[tuple[str, str, str]]:
    return {_answer(record) for record in score_lines(path, "answer")}


def _answer(record: Mapping[str, Any]) -> tuple[str, str, str]:
    return record["case_id"], record["question_id"], record.get("answer", "")  # without one it is stale


def _verdict(record: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """What a judge's line, or the line of its cost, is about."""
    return (*_answer(record), record["repeat"])


def score_evidence(run: Run, k: int) -> Path:
    """How much of the evidence the first `k` recalled items bring back.

    The value is `covered@k`; the detail holds `verbatim@k`, nDCG and the mean number of sources per item.
    """
    path = _path(run, f"evidence@{k}", _evidence_identity())
    if path.is_file() and _answers(path) == _asked(run, _ranking):
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
                unnamed = Score(None, "the data set names no evidence")
                lines.append(_scored(case.id, prediction, unnamed, _ranking(prediction)))
                continue
            # By the memory's own score, best first: a recall may be ordered for the reader instead.
            ranking = sorted(range(len(prediction.items)), key=lambda place: -prediction.scores[place])
            recalled = [items[prediction.items[place]] for place in ranking]
            score = _evidence(recalled, gold.evidence, texts, k)
            lines.append(_scored(case.id, prediction, score, _ranking(prediction)))
    write_lines(path, lines)
    return path


def _evidence_identity() -> dict[str, Any]:
    return {"source": source_digest(["eval.metrics.retrieval"])}


def _ranking(prediction: Prediction) -> str:
    """What was recalled and how it was scored."""
    return " ".join(f"{item}:{score}" for item, score in zip(prediction.items, prediction.scores, strict=True))


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

    The file holds one line for each answer as it stands and each repeat asked for, and what each cost beside it: judgements of answers
    that have changed since are dropped, the others are kept. A call that fails for good, or a reply without a verdict, is a line without
    a value, and asked for again the next time. Other settings, prompt or model: another file.

    Raises:
        EndOfRun: no further call can be made; what was judged is kept.
    """
    path = _path(run, f"judge_{judging.judge.name}", _judge_identity(judging))
    shown = _shown(run, judging.judge)
    wanted = {(*key, repeat) for key in _asked(run, shown) for repeat in range(judging.repeats)}
    if (
        path.is_file()
        and {_verdict(one) for one in score_lines(path, "answer", "repeat") if one["value"] is not None} == wanted
    ):
        return path
    with locked(path.parent):
        given = {_verdict(one): one for one in score_lines(path, "answer", "repeat") if one["value"] is not None}
        kept = {verdict: line for verdict, line in given.items() if verdict in wanted}
        write_lines(path, kept.values())
        efforts = path.with_suffix(".effort.jsonl")
        paid = read_lines(efforts, fields=("case_id", "question_id", "answer", "repeat"))
        write_lines(efforts, {_verdict(one): one for one in paid if _verdict(one) in kept}.values())
        book, costs = Appender(path), Appender(efforts)
        try:
            _judge_all(run, judging, shown, kept, book, costs, told)
        finally:
            book.close()
            costs.close()
        write_lines(path, sorted(read_lines(path), key=_order(run)))
    return path


def _judge_all(
    run: Run,
    judging: Judging,
    shown: Callable[[Prediction], str],
    kept: Container[tuple[str, str, str, int]],
    book: Appender,
    costs: Appender,
    told: Callable[[], None],
) -> None:
    under_way: deque[_Call] = deque()
    for case_id, question, gold, prediction in answered(run):
        judged = shown(prediction)
        for repeat in range(judging.repeats):
            if (case_id, question.id, _hash(judged), repeat) in kept:
                continue
            if prediction.outcome == "aborted":
                aborted = Score(0.0, f"aborted: {prediction.error}", repeat)
                book.add(_scored(case_id, prediction, aborted, judged))
                continue
            request = judge_request(judging.judge, judging.prompts, question, gold, judged, sample=repeat)
            with metering() as ledger:
                call = judging.llm.submit(request)
            under_way.append(_Call(case_id, prediction, judged, gold, repeat, ledger, call))
            if len(under_way) > OUTSTANDING:
                _book(under_way.popleft(), judging, book, costs, told)
    for one in under_way:
        _book(one, judging, book, costs, told)


@dataclass(frozen=True, slots=True)
class _Call:
    """A judgement under way."""

    case_id: str
    prediction: Prediction
    judged: str
    """The text that is judged."""
    gold: Gold
    repeat: int
    ledger: Ledger
    reply: Future[Completion]


def _book(call: _Call, judging: Judging, book: Appender, costs: Appender, told: Callable[[], None]) -> None:
    """Wait for a judgement and write it down."""
    error = call.reply.exception()
    if isinstance(error, EndOfRun):
        raise error
    why = "context overflow" if isinstance(error, ContextOverflow) else "the call failed"
    score = (
        Score(None, redact(f"{why}: {error}")[:500])
        if error is not None
        else judged(judging.judge, call.reply.result(), call.gold)
    )
    line = _scored(call.case_id, call.prediction, replace(score, repeat=call.repeat), call.judged)
    book.add(line)
    spent = effort(call.case_id, "judge", call.prediction.question_id, 0, call.ledger, 0.0)
    # Beside its verdict's repeat and hash, so that it stays or goes with the verdict.
    costs.add({**asdict(spent), "question_id": line.question_id, "repeat": line.repeat, "answer": line.answer})
    told()


def _shown(run: Run, judge: Judge) -> Callable[[Prediction], str]:
    """What a judge is shown of a prediction: its answer; for a judge of the memory, the recalled texts."""

    def recalled(prediction: Prediction) -> str:
        items = read_items(run.case_folder(prediction.case_id))
        return "\n".join(items[key]["text"] for key in prediction.items)

    return recalled if judge.rule == "memory" else lambda prediction: prediction.answer


def _judge_identity(judging: Judging) -> dict[str, Any]:
    judge = judging.judge
    return {
        "judge": {name: getattr(judge, name) for name in judge.__slots__},
        "model": judging.model,
        "prompts": judging.prompts.digest(judge.prompt_names),
        "replies": POLICY,
        "source": source_digest(["eval.judge", "memsys.llm.replies"]),
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
    path = _place(run, name, settings)
    if not path.with_suffix(".json").is_file():
        replace_file(path.with_suffix(".json"), json.dumps(settings, indent=1, sort_keys=True, default=str))
    return path


def _place(run: Run, name: str, settings: Mapping[str, Any]) -> Path:
    return run.folder / "scores" / f"{name}-{identity(settings)}.jsonl"


def _scored(case_id: str, prediction: Prediction, score: Score, scored: str) -> Scored:
    """A line about `scored`, the text that the score was given for."""
    value = None if score.value is None else round(float(score.value), 6)
    return Scored(case_id, prediction.question_id, score.repeat, value, score.why, score.detail, _hash(scored))


def _hash(answer: str) -> str:
    return hashlib.sha256(answer.encode()).hexdigest()[:12]


def _order(run: Run) -> Callable[[Mapping[str, Any]], tuple[int, int]]:
    places: dict[tuple[str, str], int] = {}
    for case in _cases(run):
        for question, _ in case.questions:
            places[case.id, question.id] = len(places)
    return lambda record: (places.get((record["case_id"], record["question_id"]), -1), record["repeat"])
