"""Judges: what a grading model is asked about one answer, and what its reply says.

The prompts are in `memsys/prompts/judge`, in our own words. Which rule a question gets and what a reply means is decided by the
benchmarks' own modules in `eval.metrics` (locomo, longmemeval, msc, realmem); a reply without a verdict is a score without a value,
never a zero.

| rule        | used by              | the reply                     | value                                   |
|-------------|----------------------|-------------------------------|-----------------------------------------|
| label       | Mem0, MemGPT (DMR)   | JSON {reason, label}          | 1 for CORRECT                           |
| binary      | MemTree              | a digit                       | 1 for 1                                 |
| grade       | SegTreeMem, RealMem  | JSON {reason, score 0-3}      | 1 from `threshold` on; the grade is kept |
| longmemeval | LongMemEval, MAB     | yes or no, by one of 5 prompts | 1 for yes                               |
| memory      | RealMem              | JSON, of the retrieved texts  | recall in [0, 1]; helpfulness is kept   |
| rubric      | a judge of your own  | JSON {reason, label}          | 1 for CORRECT, .5 for PARTIAL           |

A rubric needs no code: its text stands in the judge's file and says when an answer is CORRECT, PARTIAL or WRONG (conf/judge/rubric.yaml).

A judge's reasoning is never read (`memsys.llm.replies`). A reply that was cut counts only if its verdict stands complete before the cut:
the closed field of a JSON reply, or the bare word or digit that the reply begins with and goes on after.

Labels, digits, yes and no are matched whole (`eval.metrics.labels`): "NOT CORRECT" is no verdict.

Deviations: a LongMemEval reply that does not say yes or no by itself has no verdict; the official script takes any "yes" inside it for
yes, and everything else, also an empty reply, for no.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from data_loaders.schema import Gold, Question
from eval.metrics import locomo, longmemeval, msc, realmem
from eval.metrics.labels import stated
from eval.records import Score
from eval.store import RunError
from memsys.llm.protocol import Completion, Request
from memsys.llm.replies import why_none
from memsys.prompts import Prompts

Rule = Literal["label", "binary", "grade", "longmemeval", "memory", "rubric"]
RUBRIC = {"CORRECT": 1.0, "PARTIAL": 0.5, "WRONG": 0.0}
"""Value by label of a rubric."""
NO_MEMORY = "(no memory is needed for this message)"
UNANSWERABLE = "This is not mentioned in the conversation."

_FILES = {"knowledge-update": "update"}
_LONGMEMEVAL = ("standard", "temporal", "update", "preference", "abstention")


@dataclass(frozen=True, slots=True)
class Judge:
    """How answers are graded: one file of `conf/judge`."""

    name: str
    title: str
    rule: Rule
    prompt: str
    """Name of the prompt file; of `longmemeval`, the beginning of five names."""
    threshold: int = 3
    """Of `grade`: the grade from which an answer counts as right."""
    gold_as_list: bool = False
    """Whether the gold answers are shown as a bracketed list, as MemoryAgentBench does."""
    rubric: str = ""
    """Of `rubric`: when an answer is CORRECT, PARTIAL or WRONG, in the user's words."""

    def __post_init__(self) -> None:
        if (self.rule == "rubric") != bool(self.rubric.strip()):
            wants = (
                "needs a text in `rubric`" if self.rule == "rubric" else "takes no `rubric`; only the rule rubric does"
            )
            raise RunError(f"judge {self.name}: the rule {self.rule} {wants}")

    @property
    def prompt_names(self) -> tuple[str, ...]:
        """The prompt files it may use."""
        return tuple(f"{self.prompt}_{rule}" for rule in _LONGMEMEVAL) if self.rule == "longmemeval" else (self.prompt,)


def judge_request(
    judge: Judge, prompts: Prompts, question: Question, gold: Gold, answer: str, *, sample: int = 0
) -> Request:
    """The request that asks for a verdict on an answer (of the rule `memory`: on the recalled texts); `sample` numbers repeats.

    Raises:
        ValueError: a LongMemEval question of an unknown type.
        PromptError: the judge's prompt is missing or needs a field that judges do not have.
    """
    request = prompts[_prompt(judge, question, gold)].render(
        {
            "question": question.text,
            "gold": _gold(judge, gold),
            "answer": answer,
            "category": gold.category,
            "reference": gold.detail.get("reference", ""),
            "unanswerable": not gold.answerable,
            **({"rubric": judge.rubric.strip()} if judge.rule == "rubric" else {}),
        }
    )
    return replace(request, sample=sample)


def judged(judge: Judge, reply: Completion, gold: Gold) -> Score:
    """What a judge's reply says; a score without a value, and why, where it has no answer or was cut before its verdict was complete."""
    if not reply.usable:
        return Score(None, f"no verdict: {why_none(reply)}")
    if reply.stopped != "cut":
        return verdict(judge, reply.text, gold)
    complete = _COMPLETE[judge.rule](reply.text)
    score = verdict(judge, complete, gold) if complete else Score(None)
    return (
        score
        if score.value is not None
        else Score(None, f"no verdict before the judge's reply was cut: {reply.text[:200]!r}")
    )


def verdict(judge: Judge, text: str, gold: Gold) -> Score:
    """What a judge's reply says; a score without a value, and the reply as the reason, where it says nothing.

    A reply is read strictly: nothing is guessed from prose around a missing label or number.
    """
    score = _READINGS[judge.rule](judge, text)
    return Score(None, f"no verdict in the reply: {text[:200]!r}") if score is None else score


def _prompt(judge: Judge, question: Question, gold: Gold) -> str:
    if judge.rule != "longmemeval":
        return judge.prompt
    rule = longmemeval.judge_rule(
        str(gold.detail.get("question_id", question.id)), str(gold.detail.get("question_type", ""))
    )
    return f"{judge.prompt}_{_FILES.get(rule.name, rule.name)}"


def _gold(judge: Judge, gold: Gold) -> str | tuple[str, ...]:
    """The reference as the judge sees it: never the trap of a question that should be declined."""
    if "gold_memories" in gold.detail and judge.rule in ("grade", "memory"):
        return tuple(gold.detail["gold_memories"]) or NO_MEMORY
    if judge.rule == "grade" and "category_id" in gold.detail:
        return locomo.judge_gold(gold)
    if judge.gold_as_list:
        return str(list(gold.answers))
    return " / ".join(gold.answers) or UNANSWERABLE


def _label(judge: Judge, text: str) -> Score | None:
    return _binary(locomo.label_verdict(text))


def _digit(judge: Judge, text: str) -> Score | None:
    return _binary(msc.memtree_verdict(text))


def _grade(judge: Judge, text: str) -> Score | None:
    grade = realmem.qa_score(text)
    return (
        None if grade is None else Score(float(locomo.graded_correct(grade, judge.threshold)), detail={"grade": grade})
    )


def _yes_or_no(judge: Judge, text: str) -> Score | None:
    return _binary(longmemeval.stated_verdict(text))


def _memory(judge: Judge, text: str) -> Score | None:
    found = realmem.memory_verdict(text)
    return None if found is None else Score(found.recall, detail={"helpful": found.helpful})


def _by_rubric(judge: Judge, text: str) -> Score | None:
    """The JSON field decides where there is one, else a phrase that is nothing but the label; two labels are no verdict."""
    labels = set(re.findall(r'"label"\s*:\s*"([^"]*)"', text))
    if not labels and len(set(re.findall(r"\b(?:CORRECT|PARTIAL|WRONG)\b", text))) == 1:
        labels = {stated(text, tuple(RUBRIC), capitals=True)}
    value = RUBRIC.get(labels.pop()) if len(labels) == 1 else None
    return None if value is None else Score(value)


def _binary(right: bool | None) -> Score | None:
    return None if right is None else Score(float(right))


_READINGS: Mapping[Rule, Callable[[Judge, str], Score | None]] = {
    "label": _label,
    "binary": _digit,
    "grade": _grade,
    "longmemeval": _yes_or_no,
    "memory": _memory,
    "rubric": _by_rubric,
}


def _field(pattern: str) -> Callable[[str], str]:
    """A JSON object of the one field that decides, where it closes in the text and always says the same; else nothing."""
    field = re.compile(pattern)
    return lambda text: "{" + closed.pop() + "}" if len(closed := set(field.findall(text))) == 1 else ""


def _beginning(pattern: str) -> Callable[[str], str]:
    """What the text begins with, where it matches; else nothing."""
    start = re.compile(rf"[\s\"'`*(]*({pattern})", re.IGNORECASE)
    return lambda text: found[1] if (found := start.match(text)) else ""


_COMPLETE: Mapping[Rule, Callable[[str], str]] = {
    "label": _field(r'"label"\s*:\s*"[^"]*"'),
    "rubric": _field(r'"label"\s*:\s*"[^"]*"'),
    "grade": _field(r'("score"\s*:\s*\d+)\s*[,}]'),
    "binary": _beginning(r"[01](?=[^\w.]|\.\D)"),
    "longmemeval": _beginning(r"(?:yes|no)(?=\W)"),
    "memory": lambda text: text,  # its reader takes nothing but a JSON object that closes
}
"""By rule, the part of a cut reply that holds a complete verdict."""
