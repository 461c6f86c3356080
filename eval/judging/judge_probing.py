"""Have a judge grade probes: as always, asked again, and with the answer before the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

from eval.judging.judge import Judge, judge_request
from eval.judging.judge_card import ProbeVerdicts
from eval.judging.judge_parts import judge_requests, judged_together
from eval.judging.judge_probes import Probe
from eval.judging.score import Judging
from memsys.llm.protocol import Completion, EndOfRun
from memsys.prompts import Prompt, PromptError, Prompts

AT_ONCE = 512
"""Probes whose calls are outstanding at once."""
_BLOCKS = re.compile(r"(<(\w+)>\s*\$gold\s*</\2>)(.*?)(<(\w+)>\s*\$answer\s*</\5>)", re.DOTALL)

Calls = tuple[Future[Completion], ...]


class AnswerFirst(Prompts):
    """The same judge prompts with the answer in the place of the reference, and the reference in the place of the answer."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts

    def __getitem__(self, name: str) -> Prompt:
        """The prompt with both blocks exchanged.

        Raises:
            PromptError: the prompt does not have `$gold` and `$answer` in blocks of their own, in this order.
        """
        prompt = self._prompts[name]
        turned, count = _BLOCKS.subn(r"\4\3\1", prompt.user)
        if count != 1:
            raise PromptError(f"prompt {name}: expected <…>$gold</…> before <…>$answer</…>, once each")
        return replace(prompt, user=turned)


def spread(made: Sequence[Probe], limit: int | None) -> list[Probe]:
    """At most `limit` probes of each kind, spread evenly over the data."""
    kinds: dict[str, list[Probe]] = {}
    for probe in made:
        kinds.setdefault(probe.kind, []).append(probe)
    chosen = []
    for group in kinds.values():
        count = len(group) if limit is None else min(limit, len(group))
        chosen += [group[place * len(group) // count] for place in range(count)]
    return chosen


def why_not(judge: Judge, prompts: Prompts, made: Sequence[Probe]) -> str:
    """Why a judge cannot grade answers to these questions; empty when it can."""
    if judge.rule == "memory":
        return "it grades recalled texts, not answers"
    if judge.counted != "Correct":
        return "it counts a kind of wrong answer, and the probes are right and wrong answers"
    if judge.rule == "gatemem":
        return "it says whether a reply leaks, and the probes are right and wrong answers"
    for probe in {(probe.gold.category, str(probe.gold.detail.get("question_type"))): probe for probe in made}.values():
        detail = probe.gold.detail
        if judge.rule == "beam" and "rubric" not in detail:
            return "it grades the items of a rubric, and these data have none"
        if judge.rule == "locomo_plus" and "time_gap" not in detail:
            return "it asks whether a reply uses an earlier remark, and these data do not name one"
        if judge.rule == "grade" and judge.prompt.endswith("realmem") and "reference" not in detail:
            return "it compares with a reference reply, and these data have none"
        try:
            judge_request(judge, prompts, probe.question, probe.gold, probe.answer)
        except ValueError:
            return "its prompts go by types of questions that these data do not have"
    return ""


def verdicts(made: Sequence[Probe], grading: Judging, *, answer_first: bool = False) -> list[ProbeVerdicts]:
    """Have a judge grade probes; a call that fails is a repeat without a verdict.

    Args:
        answer_first: also grade each probe with the answer before the reference.

    Raises:
        EndOfRun: no further call can be made.
    """
    return [
        verdict
        for start in range(0, len(made), AT_ONCE)
        for verdict in _graded(made[start : start + AT_ONCE], grading, answer_first)
    ]


def _graded(made: Sequence[Probe], grading: Judging, answer_first: bool) -> Iterator[ProbeVerdicts]:
    turned = AnswerFirst(grading.prompts)
    sent = [
        (
            [_sent(probe, grading, grading.prompts, repeat) for repeat in range(grading.repeats)],
            _sent(probe, grading, turned, 0) if answer_first else None,
        )
        for probe in made
    ]
    for probe, (repeats, other) in zip(made, sent, strict=True):
        values = tuple(_value(probe, grading.judge, calls) for calls in repeats)
        first = None if other is None else _value(probe, grading.judge, other)
        yield ProbeVerdicts(probe.kind, probe.right, values, (probe.case_id, probe.question.id), first)


def _sent(probe: Probe, grading: Judging, prompts: Prompts, repeat: int) -> Calls:
    requests = judge_requests(grading.judge, prompts, probe.question, probe.gold, probe.answer, sample=repeat)
    return tuple(grading.llm.submit(request) for request in requests)


def _value(probe: Probe, judge: Judge, calls: Calls) -> float | None:
    """The judge's score of a probe; None where it gave none."""
    errors = [error for call in calls if (error := call.exception()) is not None]
    for error in errors:
        if isinstance(error, EndOfRun):
            raise error
    if errors:
        return None
    return judged_together(judge, [call.result() for call in calls], probe.gold, probe.answer).value
