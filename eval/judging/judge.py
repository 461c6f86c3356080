"""Judges: the request that asks a grading model about one answer, and the score in its reply.

The prompts are in `memsys/prompts/judge`, in our own words. The benchmarks' modules in `eval.metrics` (locomo, longmemeval, msc, realmem)
decide which rule a question gets and what a reply means. A reply without a verdict is a score without a value, never a zero.

| rule        | used by              | the reply                     | value                                   |
|-------------|----------------------|-------------------------------|-----------------------------------------|
| label       | Mem0, MemGPT (DMR)   | JSON {reason, label}          | 1 for CORRECT                           |
| binary      | MemTree              | a digit                       | 1 for 1                                 |
| beam        | BEAM                 | JSON {reason, score 0-1}, yes or no | of each rubric item or pair of events |
| gatemem     | GateMem              | JSON of four verdicts         | 1 where a utility question is right, or another leaks |
| halumem     | HaluMem              | JSON {reason, label}          | 1 for the label `counted`               |
| grade       | SegTreeMem, RealMem  | JSON {reason, score 0-3}      | 1 from `threshold` on; the grade is kept |
| longmemeval | LongMemEval, MAB     | yes or no, by one of 5 prompts | 1 for yes; `reading` decides what is yes |
| longmemeval_v2 | LongMemEval-V2    | JSON {reason, label}; none where its scorer needs no judge | 1 for CORRECT |
| locomo_plus | LoCoMo-Plus          | JSON {label, reason}          | 1 for correct                           |
| memory      | RealMem              | JSON, of the `top` retrieved texts | recall in [0, 1]; helpfulness is kept |
| rubric      | a judge of your own  | JSON {reason, label}          | 1 for CORRECT, .5 for PARTIAL           |

A judge may put several questions about one answer, or none: BEAM's puts one for each rubric item, or for each pair of a line and an event;
LongMemEval-V2's puts none where the question's own scorer decides. A part is a gold and an answer of its own. For event ordering all pairs
are asked at once, where the official script stops at the first yes: the outcome is the same. The score has no value if a part has none;
the detail keeps the replies of all parts.

A rubric needs no code: its text is in the judge's file and says when an answer is CORRECT, PARTIAL or WRONG (conf/judge/rubric.yaml).

A judge's reasoning is never read (`memsys.llm.replies`). A reply that was cut counts only if its verdict is complete before the cut: a
closed field of a JSON reply, or the word or digit that the reply begins with, followed by more text. What follows is read as in a whole
reply: a cut "0 or 1" or "No, yes it" states none.

Labels, digits, yes and no must stand alone (`eval.metrics.labels`): "NOT CORRECT" is no verdict.

Deviations: a LongMemEval reply that does not state yes or no has no verdict. The official script takes any "yes" in it for yes, and
everything else for no, as does `reading="official"` (conf/judge/longmemeval_official.yaml), with the same prompts. Replies that are
empty or refused, which the script counts as no, have no verdict here either way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from data_loaders.schema import Gold, Question
from eval.files.records import Score
from eval.files.store import RunError
from eval.metrics import beam, gatemem, halumem, locomo, locomo_plus, longmemeval, longmemeval_v2, msc, realmem
from eval.metrics.labels import FIELD, label_of, says_yes
from memsys.llm.protocol import Completion, Request
from memsys.llm.replies import why_none
from memsys.prompts import Prompts

Rule = Literal[
    "beam",
    "binary",
    "gatemem",
    "grade",
    "halumem",
    "label",
    "locomo_plus",
    "longmemeval",
    "longmemeval_v2",
    "memory",
    "rubric",
]
RUBRIC = {"CORRECT": 1.0, "PARTIAL": 0.5, "WRONG": 0.0}
"""Value by label of a rubric."""
NO_MEMORY = "(no memory is needed for this message)"
UNANSWERABLE = "This is not mentioned in the conversation."

_EVENT = "judge/beam_event"
ORDERING = "event_ordering"
"""Category of BEAM whose parts are pairs of a line and an event."""
_LONGMEMEVAL = (*dict.fromkeys(longmemeval.RULE_OF_TYPE.values()), longmemeval.ABSTENTION)


@dataclass(frozen=True, slots=True)
class Judge:
    """The settings of a judge: one file of `conf/judge`."""

    name: str
    title: str
    rule: Rule
    prompt: str
    """Name of the prompt file; with the rule `longmemeval` the common beginning of five names."""
    threshold: int = 3
    """With the rule `grade`: the lowest grade that counts as right."""
    gold_as_list: bool = False
    """Whether the gold answers are shown as a bracketed list, as MemoryAgentBench does."""
    rubric: str = ""
    """With the rule `rubric`: the user's text that says when an answer is CORRECT, PARTIAL or WRONG."""
    reading: beam.Reading = "corrected"
    """With `beam`, `locomo_plus` and `longmemeval`: read replies, and BEAM's answers, as the benchmark's own script does, or strictly."""
    halves: bool = True
    """With `beam`: whether half a rubric item counts .5; the official script truncates it to 0."""
    order: beam.Order = "final"
    """With `beam`: the score of event ordering. The paper publishes `tau_norm`."""
    counted: halumem.Label = "Correct"
    """With `halumem`: the verdict whose share is the score."""
    retries: int = 0
    """Maximum number of retries while no verdict can be read in the replies to an answer; a null in a reply that was read is final.
    The cache keeps those replies, too, so a later run gets the same ones."""
    top: int = 0
    """With `memory`: the number of recalled items with the highest scores that are judged; 0 judges all."""

    def __post_init__(self) -> None:
        wants = "needs a text in `rubric`" if self.rule == "rubric" else "takes no `rubric`; only the rule rubric does"
        if (self.rule == "rubric") != bool(self.rubric.strip()):
            raise RunError(f"judge {self.name}: the rule {self.rule} {wants}")

    @property
    def prompt_names(self) -> tuple[str, ...]:
        """Names of the prompt files that the judge may use."""
        if self.rule == "beam":
            return (self.prompt, _EVENT)
        return tuple(f"{self.prompt}_{rule}" for rule in _LONGMEMEVAL) if self.rule == "longmemeval" else (self.prompt,)


def judge_requests(
    judge: Judge, prompts: Prompts, question: Question, gold: Gold, answer: str, *, sample: int = 0, retry: int = 0
) -> tuple[Request, ...]:
    """Build the requests for the verdict on an answer; with the rule `memory`, on the recalled texts. Only BEAM's and LongMemEval-V2's
    judges may need another number than one. Requests of another `sample` (repeat) or `retry` are separate draws.

    Raises:
        RunError: the judge is LongMemEval's, and the question has none of its types.
        PromptError: the judge's prompt is missing or needs a field that judges do not have.
    """
    requests = []
    for part, text in RULES[judge.rule].parts(judge, gold, answer):
        request = prompts[_prompt(judge, question, part)].render(
            {
                "question": question.text,
                "gold": _gold(judge, part),
                "answer": text,
                "category": part.category,
                "reference": part.detail.get("reference", ""),
                "unanswerable": not part.answerable,
                **RULES[judge.rule].fields(judge, question, part, text),
            }
        )
        requests.append(replace(request, sample=sample, retry=retry))
    return tuple(requests)


def judged_together(judge: Judge, replies: Sequence[Completion], gold: Gold, answer: str) -> Score:
    """The score in the replies to `judge_requests`, in their order."""
    parts = RULES[judge.rule].parts(judge, gold, answer)
    scores = [judged(judge, reply, part) for reply, (part, _) in zip(replies, parts, strict=True)]
    return RULES[judge.rule].together(judge, scores, gold, answer)


def judged(judge: Judge, reply: Completion, gold: Gold) -> Score:
    """The score in a judge's reply; without a value, but with the reason, when the reply is empty, has no verdict or was cut before it.

    Replies are parsed strictly: a missing label or number is not guessed from the prose around it.
    """
    if not reply.usable:
        return Score(None, f"no verdict: {why_none(reply)}")
    parse, shown = RULES[judge.rule].score, f"{reply.text[:200]!r}"
    # LongMemEval's script looks for a word anywhere in the first ten tokens: its reading takes a cut reply as a whole.
    if reply.stopped != "cut" or (judge.rule == "longmemeval" and judge.reading == "official"):
        return parse(judge, reply.text, gold) or Score(None, f"no verdict in the reply: {shown}")
    rule: Rule = "longmemeval" if _is_pair(judge, gold) else judge.rule  # the replies of both are yes or no
    complete = RULES[rule].complete(reply.text)
    score = parse(judge, complete, gold) if complete else None
    if score is None or score.value is None:
        return Score(None, f"no verdict before the judge's reply was cut: {shown}")
    return score


def _prompt(judge: Judge, question: Question, gold: Gold) -> str:
    if _is_pair(judge, gold):
        return _EVENT
    if judge.rule != "longmemeval":
        return judge.prompt
    named = str(gold.detail.get("question_id", question.id)), str(gold.detail.get("question_type", ""))
    try:
        rule = longmemeval.judge_rule(*named)
    except ValueError as error:
        why = f"judge {judge.name} cannot grade these data, its prompts go by LongMemEval's types of questions"
        raise RunError(f"{why}; {error}") from error
    return f"{judge.prompt}_{rule}"


def _gold(judge: Judge, gold: Gold) -> str | tuple[str, ...]:
    """The reference answer for the judge; never the tempting wrong answer of an unanswerable question."""
    if "gold_memories" in gold.detail and judge.rule in ("grade", "memory"):
        return tuple(gold.detail["gold_memories"]) or NO_MEMORY
    if judge.rule == "grade" and "category_id" in gold.detail:
        return locomo.judge_gold(gold)
    if judge.gold_as_list:
        return str(list(gold.answers))
    return " / ".join(gold.answers) or UNANSWERABLE


def _is_pair(judge: Judge, gold: Gold) -> bool:
    """Whether the question to the judge is if a line and an event are the same."""
    return judge.rule == "beam" and gold.category == ORDERING and "rubric" in gold.detail


def _rubric_item(judge: Judge, text: str, gold: Gold) -> Score | None:
    official = judge.reading == "official"
    if _is_pair(judge, gold):
        return _valued(says_yes(text, official=official))
    value = beam.item_score(text, official=official)
    return _valued(value if judge.halves else beam.truncated(value, text))


def _memory(judge: Judge, text: str, gold: Gold) -> Score | None:
    recall, helpful = realmem.memory_verdict(text)
    if recall is None and helpful is None:
        return None
    detail = {} if helpful is None else {"helpful": helpful}
    return Score(recall, "" if recall is not None else f"no recall in the reply: {text[:200]!r}", detail=detail)


def _valued(value: float | None) -> Score | None:
    return None if value is None else Score(float(value))


def _halumem(judge: Judge, text: str, gold: Gold) -> Score | None:
    """HaluMem: 1 for the label that the judge counts."""
    label = halumem.verdict(text)
    return Score(float(label == judge.counted), detail={"label": label}) if label else None


def _grade(judge: Judge, text: str, gold: Gold) -> Score | None:
    """RealMem: 1 for a grade from the threshold on."""
    grade = realmem.qa_score(text)
    return None if grade is None else Score(float(grade >= judge.threshold), detail={"grade": grade})


def _locomo_plus(judge: Judge, text: str, gold: Gold) -> Score | None:
    """LoCoMo-Plus, read as its own program reads a reply or strictly."""
    return _valued(locomo_plus.official_score(text) if judge.reading == "official" else locomo_plus.verdict(text))


def _rubric(judge: Judge, text: str, gold: Gold) -> Score | None:
    """The user's rubric: the value of the label."""
    label = label_of(text, tuple(RUBRIC))
    return Score(RUBRIC[label]) if label else None


def _field(pattern: str) -> Callable[[str], str]:
    """A parser that returns the deciding field as a JSON object if it is closed and always has the same value, else the empty text."""
    field = re.compile(pattern)
    return lambda text: "{" + closed.pop() + "}" if len(closed := set(field.findall(text))) == 1 else ""


def _beginning(pattern: str) -> Callable[[str], str]:
    """A parser that returns the text if its beginning matches, else the empty text."""
    start = re.compile(rf"[\s\"'`*(]*{pattern}", re.IGNORECASE)
    return lambda text: text if start.match(text) else ""


# --- several questions about one answer -----------------------------------------------------------------------------------


def _parts_of_rubric(judge: Judge, gold: Gold, answer: str) -> list[tuple[Gold, str]]:
    if "rubric" not in gold.detail:
        return [(gold, answer)]
    if gold.category != ORDERING:
        return [(_asking(gold, item), answer) for item in gold.detail["rubric"]]
    events, lines = _events_and_lines(judge, gold, answer)
    return [(_asking(gold, event), line) for event in events for line in lines]


def _asking(gold: Gold, item: str) -> Gold:
    # Every item is a criterion that can be met, also the refusal that an abstention must contain.
    return replace(gold, answers=(item,), answerable=True)


def _events_and_lines(judge: Judge, gold: Gold, answer: str) -> tuple[list[str], list[str]]:
    official = judge.reading == "official"
    return beam.events_of(gold.detail["rubric"], official=official), beam.lines_of(answer, official=official)


def _by_parts(judge: Judge, scores: Sequence[Score], gold: Gold, answer: str) -> Score:
    if "rubric" not in gold.detail:
        return scores[0]
    if missing := [score for score in scores if score.value is None]:
        return Score(None, f"{len(missing)} of {len(scores)} parts have no verdict; the first: {missing[0].why}"[:500])
    values = [float(score.value or 0.0) for score in scores]
    if gold.category != ORDERING:
        return Score(sum(values) / len(values), detail={"items": values})
    events, lines = _events_and_lines(judge, gold, answer)
    same = {(place // len(lines), place % len(lines)) for place, value in enumerate(values) if value}
    found = beam.ordered(events, beam.aligned(events, lines, same))
    detail = {**asdict(found), "final": found.final}
    value = detail[judge.order]
    return Score(value, "" if value is not None else "tau is not defined for these events", detail=detail)


def _undecided(judge: Judge, gold: Gold, answer: str) -> list[tuple[Gold, str]]:
    """LongMemEval-V2: no part where the question's own scorer decides."""
    decided = "eval_function" in gold.detail and longmemeval_v2.decided(gold, answer) is not None
    return [] if decided else [(gold, answer)]


def _asked_or_decided(judge: Judge, scores: Sequence[Score], gold: Gold, answer: str) -> Score:
    """LongMemEval-V2: the judge's score; where no judge is asked, the score of the question's own scorer."""
    decided = None if scores else longmemeval_v2.decided(gold, answer)
    return scores[0] if decided is None else decided


# --- the rules ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GradingRule:
    """A grading rule: the parser of replies, and everything else in which its judges differ from others."""

    score: Callable[[Judge, str, Gold], Score | None]
    """The score in the text of a reply; None where it has no verdict."""
    complete: Callable[[str], str]
    """The part of a cut reply that holds a complete verdict; empty where there is none."""
    fields: Callable[[Judge, Question, Gold, str], Mapping[str, Any]] = lambda *_: {}
    """Fields of the prompt that are added to the fields of all prompts, or replace them."""
    parts: Callable[[Judge, Gold, str], list[tuple[Gold, str]]] = lambda judge, gold, answer: [(gold, answer)]
    """Gold and answer for each question to the judge about one answer."""
    together: Callable[[Judge, Sequence[Score], Gold, str], Score] = lambda judge, scores, *_: scores[0]
    """The score of an answer from those of its parts."""
    unasked: float | None = 0.0
    """Score of an aborted search and of an empty reply, which are not judged. None for GateMem: 0 would say that nothing leaked."""
    no_probes: str = ""
    """The reason why its judges cannot grade probes (right and wrong answers, `eval.judging.judge_probes`); empty if they can."""
    needs: str = ""
    """The field of `Gold.detail` without which they cannot grade; empty where they need none."""
    lacking: str = ""
    """The reason why they cannot grade data without this field."""


_STATED_LABEL = _field(FIELD)
_LABEL = GradingRule(lambda judge, text, gold: _valued(locomo.label_verdict(text)), _STATED_LABEL)
RULES: Mapping[Rule, GradingRule] = {
    "beam": GradingRule(
        _rubric_item,
        _field(r'("score"\s*:\s*(?:0\.5|[01](?:\.0)?))\s*[,}]'),
        parts=_parts_of_rubric,
        together=_by_parts,
        needs="rubric",
        lacking="it grades the items of a rubric, and these data have none",
    ),
    "label": _LABEL,
    "longmemeval_v2": replace(
        _LABEL,
        parts=_undecided,
        together=_asked_or_decided,
        needs="eval_function",
        lacking="it grades replies to questions with a false premise, and these data do not name any",
    ),
    "halumem": GradingRule(_halumem, _STATED_LABEL),
    "binary": GradingRule(
        lambda judge, text, gold: _valued(msc.memtree_verdict(text)), _beginning(r"[01](?=[^\w.]|\.\D)")
    ),
    "gatemem": GradingRule(
        lambda judge, text, gold: gatemem.judge_score(text, gold),
        lambda text: text,  # its parser accepts only a closed JSON object or whole lines
        lambda judge, question, gold, answer: gatemem.judge_fields(question, gold, answer),
        together=lambda judge, scores, gold, answer: gatemem.with_action(scores[0], gold, answer),
        unasked=None,
        no_probes="it says whether a reply leaks, and the probes are right and wrong answers",
    ),
    "grade": GradingRule(_grade, _field(r'("score"\s*:\s*\d+)\s*[,}]')),
    "locomo_plus": GradingRule(
        _locomo_plus,
        _STATED_LABEL,
        needs="time_gap",
        lacking="it asks whether a reply uses an earlier remark, and these data do not name one",
    ),
    "longmemeval": GradingRule(
        lambda judge, text, gold: _valued(says_yes(text, official=judge.reading == "official")),
        _beginning(r"(?:yes|no)(?=\W)"),
    ),
    "memory": GradingRule(
        _memory,
        lambda text: text,  # its parser accepts only a closed JSON object
        no_probes="it grades recalled texts, not answers",
    ),
    "rubric": GradingRule(_rubric, _STATED_LABEL, lambda judge, *_: {"rubric": judge.rubric.strip()}),
}
