"""Judges that put several questions about one answer, or none: BEAM's, one for each rubric item, or for each pair of a line and an event;
LongMemEval-V2's, none where the question's own scorer decides.

A part is a gold and an answer of its own, and a request like that of any judge (`eval.judging.judge`). Its replies become one score. Of
event ordering every pair is asked at once, where the official script asks on until the first yes: the outcome is the same.

A score has no value if one part has none; the detail keeps what all parts said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from data_loaders.schema import Gold, Question
from eval.files.records import Score
from eval.judging.judge import Judge, judge_request, judged
from eval.metrics import beam, gatemem, longmemeval_v2
from memsys.llm.protocol import Completion, Request
from memsys.prompts import Prompts

Part = tuple[Gold, str]


def judge_requests(
    judge: Judge, prompts: Prompts, question: Question, gold: Gold, answer: str, *, sample: int = 0
) -> tuple[Request, ...]:
    """The requests that ask for the verdict on one answer; one for all judges but BEAM's and LongMemEval-V2's."""
    return tuple(
        judge_request(judge, prompts, question, part, text, sample=sample) for part, text in _parts(judge, gold, answer)
    )


def judged_together(judge: Judge, replies: Sequence[Completion], gold: Gold, answer: str) -> Score:
    """The score in the replies to `judge_requests`, in their order."""
    parts = _parts(judge, gold, answer)
    if not parts and (score := longmemeval_v2.decided(gold, answer)) is not None:
        return score
    scores = [judged(judge, reply, part) for reply, (part, _) in zip(replies, parts, strict=True)]
    if judge.rule == "gatemem":
        return gatemem.with_action(scores[0], gold, answer)
    if judge.rule != "beam" or "rubric" not in gold.detail:
        return scores[0]
    if missing := [score for score in scores if score.value is None]:
        return Score(None, f"{len(missing)} of {len(scores)} parts have no verdict; the first: {missing[0].why}"[:500])
    values = [float(score.value or 0.0) for score in scores]
    if _is_ordering(gold):
        return _ordering(judge, gold, answer, values)
    return Score(sum(values) / len(values), detail={"items": values})


def _parts(judge: Judge, gold: Gold, answer: str) -> list[Part]:
    if judge.rule == "longmemeval_v2" and "eval_function" in gold.detail:
        return [(gold, answer)] if longmemeval_v2.decided(gold, answer) is None else []
    if judge.rule != "beam" or "rubric" not in gold.detail:
        return [(gold, answer)]
    if not _is_ordering(gold):
        return [(_asking(gold, item), answer) for item in gold.detail["rubric"]]
    events, lines = _events_and_lines(judge, gold, answer)
    return [(_asking(gold, event), line) for event in events for line in lines]


def _asking(gold: Gold, item: str) -> Gold:
    # Every item is a criterion that can be met, also the refusal that an abstention is to contain.
    return replace(gold, answers=(item,), answerable=True)


def _is_ordering(gold: Gold) -> bool:
    return gold.category == "event_ordering"


def _events_and_lines(judge: Judge, gold: Gold, answer: str) -> tuple[list[str], list[str]]:
    official = judge.reading == "official"
    return beam.events_of(gold.detail["rubric"], official=official), beam.lines_of(answer, official=official)


def _ordering(judge: Judge, gold: Gold, answer: str, values: Sequence[float]) -> Score:
    events, lines = _events_and_lines(judge, gold, answer)
    same = {(place // len(lines), place % len(lines)) for place, value in enumerate(values) if value}
    found = beam.ordered(events, beam.aligned(events, lines, same))
    detail = {**asdict(found), "final": found.final}
    value = detail[judge.order]
    return Score(value, "" if value is not None else "tau is not defined for these events", detail=detail)
