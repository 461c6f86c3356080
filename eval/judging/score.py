"""Scores of a run: its predictions are joined with the gold by id, and each metric writes `scores/<metric>-<hash of its settings>.jsonl`.

A line stays valid as long as the answer that it scored is the same. Lexical metrics need no model; judges go through the cache.

A verdict may be requested as soon as its answer is saved, while other memories are still being built (`JudgingAhead`). Such a call is sent
with the lowest urgency, so it takes only places that no other call waits for. `score_judge` uses it instead of its own, with the ledger
that it was charged to, so score files and costs do not change. If the process is killed, no received verdict is lost: the cache has it.

Some metrics use several reads: the recall for a question before and after a change, for its twin question, or in another build.
`Gold.detail["reads"]` of a scored question names them, each by its case and question id; `end` is the question itself.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from data_loaders.schema import Case, Gold, Question
from eval.files.provenance import identity, source_digest
from eval.files.records import Prediction, Read, Score
from eval.files.run_folder import COSTS, RunFolder, judge_metric, read_items, read_predictions
from eval.files.store import Appender, RunError, locked, read_lines, write_lines
from eval.judging.judge import RULES, Judge, judge_requests, judged_together
from eval.judging.score_files import (
    AnswerKey,
    Items,
    Scored,
    answer_key,
    answered,
    answers_of,
    hash_of,
    place_of,
    score_file,
    score_lines,
    scored_line,
)
from eval.metrics.lexical import EMPTY, best_of
from eval.metrics.retrieval import covered_share, ndcg_at_k, sources_per_item, verbatim_share
from eval.running.case_log import effort
from eval.running.cells import JUDGING
from eval.running.run import OUTSTANDING, Run
from memsys.jsons import encoded, fields_of
from memsys.llm import stopping
from memsys.llm.limits import urgent
from memsys.llm.meter import Ledger, metering
from memsys.llm.protocol import LLM, Completion, ContextOverflow, EndOfRun, Request, failed
from memsys.llm.replies import POLICY
from memsys.llm.secrets import redact
from memsys.prompts import Prompts

UNKNOWN_RECALL = "imported answers come without what was recalled"

Scorer = Callable[..., Score]
"""A function of question, gold and prediction; a fourth parameter `recalled` gets the recalled texts, in their order."""
JointScorer = Callable[[Question, Gold, Mapping[str, Read]], Score]


@dataclass(frozen=True, slots=True)
class Metric:
    """A lexical metric: a scorer whose settings are bound."""

    name: str
    score: Callable[..., Score]
    """A `Scorer`, or where it is `joint` a `JointScorer`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    on_recall: bool = False
    """Whether it scores the recalled texts in place of the answer."""
    joint: bool = False
    """Whether its function takes question, gold and several reads."""

    @property
    def functions(self) -> list[Any]:
        """The function that computes it; with `best_of` also the function of two texts."""
        score: Any = self.score
        measure = score.keywords["measure"] if getattr(score, "func", None) is best_of else score
        return [getattr(each, "func", each) for each in (score, measure)]

    def scored(self, *given: Any, **recalled: Any) -> Score:
        """The score of an answer or of reads; without a value, and with the reason, where the function's value is not finite.

        Raises:
            RunError: the function returned no `Score` that a score file can hold, or tried to end the process.
        """
        try:
            score = self.score(*given, **recalled)
        except (SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and not stopping.raised_by_code():
                raise
            raise RunError(f"metric {self.name}: expected a Score, but it raised {error!r}") from error
        try:
            finite = score.value is None or math.isfinite(score.value)
            if not isinstance(score.value, float | int | None):  # NumPy's float32 is a number, but no number of JSON
                score = replace(score, value=float(score.value))
        except (AttributeError, TypeError) as error:
            raise RunError(f"metric {self.name}: expected a Score with a number or None, found {score!r}") from error
        try:  # before the file is written, which every later run reads
            fits = isinstance(score.why, str) and isinstance(score.detail, Mapping)
            encoded(score.detail or {})
        except (TypeError, ValueError, RecursionError):
            fits = False
        if not fits:
            raise RunError(f"metric {self.name}: expected `why` as text and `detail` as a JSON object, found {score!r}")
        return score if finite else replace(score, value=None, why=f"the metric returned {score.value}")


@dataclass(frozen=True)
class Judging:
    """A judge with the model behind it."""

    judge: Judge
    llm: LLM
    model: str
    """Identity of the model; it is part of the score file's identity."""
    prompts: Prompts
    repeats: int = 1
    """Number of times that each answer is judged, in separate draws."""
    model_name: str = ""
    """The model's name, written next to the scores; it is not part of the identity."""

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The parts that decide which file holds its verdicts; reads source files."""
        return {
            "judge": fields_of(self.judge),
            "model": self.model,
            "prompts": self.prompts.digest(self.judge.prompt_names),
            "replies": POLICY,
            "source": source_digest(["eval.judging.judge", "memsys.llm.replies"]),
        }

    @cached_property
    def stem(self) -> str:
        """Name of its score files, without their ending."""
        return f"{judge_metric(self.judge.name)}-{identity(self.identity)}"

    def file(self, run: Run) -> Path:
        """Its score file of a run, whether or not it exists."""
        return RunFolder(run.folder).scores(self.stem)

    def judged_text(self, prediction: Prediction, items: Items) -> str:
        """The part of a prediction that the judge sees: the answer, or the recalled texts if it grades the memory."""
        if self.judge.rule != "memory":
            return prediction.answer
        shown = sorted(prediction.ranking[: self.judge.top or None])
        return "\n".join(items[prediction.items[place]]["text"] for place in shown)


VerdictKey = tuple[Path, AnswerKey]
"""The judge's score file, and the answer."""
Sent = tuple[Ledger, tuple[Future[Completion], ...]]
"""The calls for one verdict, and the ledger that they are charged to."""


def score_paths(run: Run, metrics: Sequence[Metric], judges: Mapping[str, Judging], k_evidence: int) -> dict[str, Path]:
    """Paths of a run's score files under these settings, by metric; nothing is scored or written."""
    return {
        **{name: place_of(run, name, settings) for name, settings in _identities(metrics, k_evidence).items()},
        **{judge_metric(name): judging.file(run) for name, judging in judges.items()},
    }


def _identities(metrics: Sequence[Metric], k_evidence: int) -> dict[str, dict[str, Any]]:
    """The parts that decide which file holds the scores of a metric, its settings and code, by name; the evidence comes last."""
    identities: dict[str, dict[str, Any]] = {}
    for metric in metrics:
        modules = [each.__module__ for each in metric.functions]
        identities[metric.name] = {"settings": metric.settings, "source": source_digest(modules)}
    return {**identities, f"evidence@{k_evidence}": {"source": source_digest(["eval.metrics.retrieval"])}}


# --- metrics that need no model -------------------------------------------------------------------------------------------


def score_lexical(run: Run, metrics: Sequence[Metric], k_evidence: int) -> dict[str, Path]:
    """Score every prediction of a run and the evidence that it recalled, in one pass over its cases; returns the score files by metric.

    A file that holds scores of exactly these answers, or recalls, is kept: its name identifies the code and settings that made it.

    Args:
        k_evidence: recalled items in which the evidence is counted.
    """
    paths = {name: score_file(run, name, parts) for name, parts in _identities(metrics, k_evidence).items()}
    evidence = f"evidence@{k_evidence}"
    if joint := {paths[metric.name]: metric.scored for metric in metrics if metric.joint}:
        _score_together(run, joint)
    single = [metric for metric in metrics if not metric.joint]
    answers, recalls = answers_of(run, lambda each, _: each.answer, lambda each, _: _recall_text(each))
    stale = [each for each in single if not _is_current(paths[each.name], recalls if each.on_recall else answers)]
    lines: dict[str, list[Scored]] = {metric.name: [] for metric in stale}
    if not _is_current(paths[evidence], recalls):
        lines[evidence] = []
    imported, on_recall = bool(run.record.imported), evidence in lines or any(metric.on_recall for metric in stale)
    told: dict[str, dict[str, str]] = {}  # texts of the turns of one history, by its id
    for case, question, gold, prediction, items in answered(run, recalls=on_recall) if lines else ():
        time.sleep(0)  # verdicts may be on their way: else each step of their threads waits for this one's turn to end
        recall = _recall_text(prediction)
        for metric in stale:
            if not metric.on_recall:
                score = metric.scored(question, gold, prediction)
            elif imported:
                score = Score(None, UNKNOWN_RECALL)
            else:
                texts = [items[key]["text"] for key in prediction.items]
                score = metric.scored(question, gold, prediction, recalled=texts)
            lines[metric.name].append(scored_line(prediction, score, recall if metric.on_recall else prediction.answer))
        if evidence in lines:
            top = None if imported else [items[prediction.items[place]] for place in prediction.ranking[:k_evidence]]
            if case.id not in told:
                told = {case.id: {turn.id: turn.text for turn in case.turns}}
            score = _evidence_score(told[case.id], gold, top, k_evidence)
            lines[evidence].append(scored_line(prediction, score, recall))
    for name, scored in lines.items():
        write_lines(paths[name], scored)
    return paths


def _evidence_score(told: Mapping[str, str], gold: Gold, top: Sequence[Mapping[str, Any]] | None, k: int) -> Score:
    """The share of the evidence that the first `k` recalled items cover; the detail holds the other three measures of retrieval.

    Args:
        told: texts of the history's turns, by turn id.
        top: these items, best first; None where what was recalled is unknown.
    """
    if not gold.evidence or top is None:
        return Score(None, UNKNOWN_RECALL if gold.evidence else "the data set names no evidence")
    sources = [item["sources"] for item in top]
    detail = {
        "verbatim": verbatim_share([item["text"] for item in top], [told[turn] for turn in gold.evidence]),
        "ndcg": ndcg_at_k(sources, gold.evidence, k),
        "sources_per_item": sources_per_item(sources),
    }
    return Score(covered_share(sources, gold.evidence), detail=detail)


def _is_current(path: Path, answers: set[AnswerKey]) -> bool:
    """Whether a file exists and holds scores of exactly these answers."""
    return path.is_file() and {answer_key(line) for line in score_lines(path, "answer", "repeat")} == answers


def _recall_text(prediction: Prediction) -> str:
    """Hashes and scores of the recalled items, as text."""
    return " ".join(f"{item}:{score}" for item, score in zip(prediction.items, prediction.scores, strict=True))


def _score_together(run: Run, scorers: Mapping[Path, JointScorer]) -> None:
    """Write the score files of a run whose metrics look at several reads; files that hold scores of exactly these reads are kept.

    A question with a failed or aborted read has a line without a value; its detail names the outcome `errored`. A question with a read
    that was not reached has no line.
    """
    predictions: dict[str, Mapping[str, Prediction]] = {}
    joined: list[tuple[Question, Gold, dict[str, Prediction], str]] = []
    for case in run.cases:
        for question, gold in case.questions:
            if gold.supports or "reads" not in gold.detail:
                continue
            found = {}
            for name, (case_id, question_id) in gold.detail["reads"].items():
                if case_id not in predictions:
                    predictions[case_id] = read_predictions(run.case_folder(case_id))
                if (prediction := predictions[case_id].get(question_id)) is not None:
                    found[name] = prediction
            if found.keys() == gold.detail["reads"].keys():
                # All recalled texts and the answers are scored.
                parts = [" ".join((name, each.outcome, *each.items, each.answer)) for name, each in found.items()]
                joined.append((question, gold, found, "\n".join(parts)))
    known = {(found["end"].case_id, question.id, hash_of(text), 0) for question, _, found, text in joined}
    stale = {path: scorer for path, scorer in scorers.items() if not _is_current(path, known)}
    lines: dict[Path, list[Scored]] = {path: [] for path in stale}
    items: dict[str, Items] = {}
    for question, gold, found, text in joined if stale else ():
        for case_id in {each.case_id for each in found.values()} - items.keys():
            items[case_id] = read_items(run.case_folder(case_id))
        texts = {name: tuple(items[each.case_id][key]["text"] for key in each.items) for name, each in found.items()}
        reads = {name: Read(each, texts[name]) for name, each in found.items()}
        failed = [name for name, each in found.items() if each.outcome in ("error", "aborted")]
        errored = Score(None, f"errored: {', '.join(failed)}", detail={"outcome": "errored"})
        for path, scorer in stale.items():
            lines[path].append(scored_line(found["end"], errored if failed else scorer(question, gold, reads), text))
    for path, scored in lines.items():
        write_lines(path, scored)


# --- judges ---------------------------------------------------------------------------------------------------------------


def is_judged(run: Run, judging: Judging) -> bool:
    """Whether every answer of a run has all its verdicts, so that `score_judge` sends nothing."""
    if not judging.file(run).is_file():
        return False
    given, wanted = _verdicts(run, judging)
    return given.keys() == wanted


def _verdicts(run: Run, judging: Judging) -> tuple[dict[AnswerKey, dict[str, Any]], set[AnswerKey]]:
    """The lines with a verdict, by answer, and the answers that need one."""
    recalls = judging.judge.rule == "memory"
    if recalls and run.record.imported:
        why = "grades what was recalled, and imported answers come without it"
        raise RunError(f"{judging.judge.name} {why}; choose another judge")
    lines = score_lines(judging.file(run), "answer", "repeat")
    given = {answer_key(line): line for line in lines if line["value"] is not None}
    (wanted,) = answers_of(run, judging.judged_text, repeats=judging.repeats, recalls=recalls)
    return given, wanted


def score_judge(
    run: Run,
    judging: Judging,
    on_progress: Callable[[], None] = lambda: None,
    sent_ahead: Callable[[VerdictKey], Sent | None] = lambda key: None,
) -> Path:
    """Let a judge grade every answer of a run, `repeats` times; returns the score file.

    The file holds one line per answer and repeat; a second file next to it holds their costs. Verdicts on answers that have changed are
    dropped, all others are kept. A call that fails for good leaves a line without a value and is made again the next time. A reply without
    a verdict leaves such a line, too, an unreadable reply after `retries` more attempts; the next time its replies come from the
    cache. An aborted search and an empty reply score 0 without a call (GateMem's judge: no value). Other settings, another prompt or
    another model make another file.

    Args:
        on_progress: called after every verdict.
        sent_ahead: the calls for a verdict that were sent while the run was answering, or None (`JudgingAhead`); they are
            taken in place of new ones.

    Raises:
        EndOfRun: no further call can be made; verdicts so far are kept.
    """
    facts = {"model_name": judging.model_name}
    path = score_file(run, judge_metric(judging.judge.name), judging.identity, facts)
    if is_judged(run, judging):
        return path
    with locked(path.parent):
        given, wanted = _verdicts(run, judging)
        effort_path = path.with_suffix(COSTS)
        efforts = read_lines(effort_path, fields=("case_id", "question_id", "answer", "repeat"))
        last = {answer_key(line): line for line in efforts}
        # A process that was killed may have written a verdict without its cost: the judge is asked again, and the cache replies.
        kept = {key: line for key, line in given.items() if key in wanted and key in last}
        write_lines(path, kept.values())
        write_lines(effort_path, [last[key] for key in kept])
        outstanding: deque[_Call] = deque()
        places: dict[AnswerKey, int] = {}
        with closing(Appender(path)) as scores, closing(Appender(effort_path)) as costs:
            for _, question, gold, prediction, items in answered(run, recalls=judging.judge.rule == "memory"):
                judged = judging.judged_text(prediction, items)
                for repeat in range(judging.repeats):
                    key = prediction.case_id, question.id, hash_of(judged), repeat
                    places[key] = len(places)
                    if key in kept:
                        continue
                    # The published judges are asked about empty replies, too: without a text to grade their verdict is chance.
                    empty = prediction.empty and judging.judge.rule != "memory"
                    if why := f"aborted: {prediction.error}" if prediction.outcome == "aborted" else EMPTY * empty:
                        score = Score(RULES[judging.judge.rule].unasked, why, repeat)
                        scores.add(scored_line(prediction, score, judged))
                        continue
                    sent = sent_ahead((path, key)) or ask_judge(judging, question, gold, judged, repeat)
                    outstanding.append(_Call(prediction, judged, question, gold, repeat, sent))
                    if len(outstanding) >= run.outstanding:
                        _save_next(outstanding, judging, scores, costs, on_progress)
            while outstanding:
                _save_next(outstanding, judging, scores, costs, on_progress)
        write_lines(path, sorted(read_lines(path), key=lambda line: places.get(answer_key(line), -1)))
    return path


@dataclass(frozen=True, slots=True)
class _Call:
    """A judge's calls on one answer whose replies are outstanding."""

    prediction: Prediction
    judged: str
    """The text that is judged."""
    question: Question
    gold: Gold
    repeat: int
    sent: Sent
    retry: int = 0
    """Number of earlier attempts, in whose replies no verdict could be read."""


def ask_judge(
    judging: Judging,
    question: Question,
    gold: Gold,
    judged: str,
    repeat: int,
    retry: int = 0,
    ledger: Ledger | None = None,
) -> Sent:
    """Send a judge's calls on one answer, charged to a ledger, by default to a new one."""
    requests = judge_requests(judging.judge, judging.prompts, question, gold, judged, sample=repeat, retry=retry)
    with metering(ledger) as charged:
        return charged, tuple(judging.llm.submit(request) for request in requests)


def replied(judge: Judge, gold: Gold, judged: str, sent: Sent) -> tuple[Score, bool]:
    """Wait for the replies to a judge's calls; return their score and whether the judge may be asked again.

    It may where all calls succeeded and no verdict could be read. Fields that were read are final, also if the field that counts is null.
    The score has no value if a call failed.

    Raises:
        EndOfRun: no further call can be made.
    """
    _, replies = sent
    errors = [error for reply in replies if (error := reply.exception()) is not None]
    if not errors:
        score = judged_together(judge, [reply.result() for reply in replies], gold, judged)
        return score, score.value is None and not score.detail
    error = next((each for each in errors if isinstance(each, EndOfRun)), errors[0])
    if isinstance(error, EndOfRun):
        raise error
    why = "context overflow" if isinstance(error, ContextOverflow) else "the call failed"
    return Score(None, redact(f"{why}: {error}")[:500]), False


def _save_next(
    outstanding: deque[_Call], judging: Judging, scores: Appender, costs: Appender, on_progress: Callable[[], None]
) -> None:
    """Wait for the first verdict; save it and its cost, or request it again after the others: with batches, all retries share a batch."""
    call = outstanding.popleft()
    # Thousands of verdicts that were sent ahead are there at once: a flush for each would take seconds.
    if not all(reply.done() for reply in call.sent[1]):
        scores.flush()
        costs.flush()
    score, unread = replied(judging.judge, call.gold, call.judged, call.sent)
    if unread and call.retry < judging.judge.retries:
        own = call.question, call.gold, call.judged, call.repeat, call.retry + 1
        outstanding.append(replace(call, sent=ask_judge(judging, *own, call.sent[0]), retry=call.retry + 1))
        return
    line = scored_line(call.prediction, replace(score, repeat=call.repeat), call.judged)
    scores.add(line, waits=True)
    spent = fields_of(effort(line.case_id, "judge", line.question_id, 0, call.sent[0], 0.0))
    # The cost carries the verdict's repeat and hash, so that both are kept or dropped together.
    spent |= {"question_id": line.question_id, "repeat": line.repeat, "answer": line.answer}
    costs.add(spent, waits=True)
    on_progress()


# --- judging as soon as an answer is saved ----------------------------------------------------------------------------


class JudgingAhead:
    """Requests verdicts while a run is still answering. Safe to use from several threads."""

    def __init__(self) -> None:
        self._judges: dict[Path, list[Judging]] = {}
        self._waiting: dict[VerdictKey, tuple[Judging, tuple[Request, ...]]] = {}
        """Verdicts that were not requested yet."""
        self._sent: dict[VerdictKey, Sent] = {}
        """Sent requests whose replies have not been taken."""
        self._ended: EndOfRun | None = None
        self._changed = threading.Condition()
        self._outstanding, self._most = 0, OUTSTANDING
        self._thread: threading.Thread | None = None

    def expect(self, run: Run, judges: Sequence[Judging]) -> None:
        """Register the judges of a run's answers. Judges that grade recalled texts are left to `score_judge`."""
        self._most = max(self._most, run.outstanding)
        self._judges[run.folder] = [judging for judging in judges if judging.judge.rule != "memory"]

    def on_answer(self, run: Run, case: Case, prediction: Prediction) -> None:
        """Request the verdicts on an answer that was saved.

        Raises:
            EndOfRun: the call for an earlier verdict has shown that no further call can be made.
        """
        judges = self._judges.get(run.folder)
        if not judges or prediction.outcome != "answered" or prediction.empty:
            return
        question, gold = next(each for each in case.questions if each[0].id == prediction.question_id)
        with self._changed:
            if self._ended is not None:
                raise self._ended
            for judging in judges:
                for repeat in range(judging.repeats):
                    answer = prediction.answer
                    key = judging.file(run), (case.id, question.id, hash_of(answer), repeat)
                    requests = judge_requests(judging.judge, judging.prompts, question, gold, answer, sample=repeat)
                    self._waiting[key] = judging, requests
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_on, name="judging", daemon=True)
                self._thread.start()
            self._changed.notify()

    def take(self, key: VerdictKey) -> Sent | None:
        """The calls that were sent for a verdict, with their ledger; None when the caller must send them."""
        with self._changed:
            self._waiting.pop(key, None)
            return self._sent.pop(key, None)

    def _send_on(self) -> None:
        while True:
            with self._changed:
                while not self._waiting or self._outstanding >= self._most:
                    self._changed.wait()
                key = next(iter(self._waiting))
                judging, requests = self._waiting.pop(key)
                if self._ended is not None:
                    continue
                self._outstanding += len(requests)
                # Submitted with the lock held, so that `take` always sees it as either waiting or sent.
                with metering() as ledger:
                    calls = tuple(_submitted(judging.llm, request) for request in requests)
                self._sent[key] = (ledger, calls)
            for call in calls:
                call.add_done_callback(self._on_reply)

    def _on_reply(self, call: Future[Completion]) -> None:
        error = call.exception()
        with self._changed:
            self._outstanding -= 1
            if isinstance(error, EndOfRun) and self._ended is None:
                self._ended = error
            self._changed.notify()


def _submitted(llm: LLM, request: Request) -> Future[Completion]:
    try:
        with urgent(JUDGING):
            return llm.submit(request)
    except BaseException as error:
        return failed(error)
