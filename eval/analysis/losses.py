"""Split the points that a memory loses, from a perfect score to its own, over the steps that lost them, on the same questions.

Every question loses 1 minus its score. This loss is divided among the steps in which it happened, first to last:

- *gold errors*: an errata layer says that the gold answer is wrong (`Gold.detail["audit"]`).
- *abstention*: the question has no answer in the history, and was answered nevertheless.
- *reader*: what the reader loses even when it is shown the evidence (the run of `gold_evidence` on the same questions).
- *not stored*: an evidence turn is in no node.
- *not found*: it is stored and was not recalled.
- *cut by the budget*: it was recalled, and the reader's budget left it out or cut it.
- *misread*: the reader was shown all evidence, and answered worse than from the evidence alone; negative where it answered better.
- *unknown*: the files do not say which step: the data set names no evidence, the evidence run has no score, the run saved no nodes and
  recalled nothing of the evidence, or a paraphrase may hold the evidence or not.

A step after the reader's is the score from the evidence minus the memory's score, gains counted against losses. Answers that flip
between the two runs thus cancel out in the mean, but widen its interval: a memory that recalls exactly the evidence misreads 0 within
that interval. The steps of a question add up to its loss, so the means add up to 1 minus the mean score.

Whether a text holds an evidence turn is decided from its sources, the turn's words and the answer's words: yes, no or unknown. A text holds
a turn when, within a window of twice the turn's length,

- it has `WORDS` of the turn's words, or
- it has the answer's words (all of them, or all that the turn gives) and the share `CONTEXT` of the other words of turn and question.

Words are stems without stop words. Each weighs the logarithm of its rarity among the turns of the history, so a name that every second
turn mentions hardly counts. The window keeps a long text about something else from holding the turn by chance.

A text that names the turn and few others as its sources (`FEW`) is a rewritten form of it: fewer common words suffice (`CLOSE_WORDS`,
`CLOSE_CONTEXT`), and without them the answer is *unknown*, since a paraphrase may share none. A text that names only other turns must
have the turn's words. A text that names no source, or many, is unknown where it nearly passes.

The limits are calibrated on the released LoCoMo, whose turns come with facts written by a model. Of the 527 evidence turns whose fact
has every word of the answer, .98 count as held and none as not held; a text of 8,000 words from another conversation holds .03.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from data_loaders.schema import Case, Gold, Question, Turn
from eval.files.records import Prediction
from eval.files.run_folder import NODES, RunFolder, read_items, read_predictions, recalled_items
from eval.files.store import RunError, read_lines
from eval.judging.score_files import Items
from eval.metrics.evidence import content_words
from eval.running.reader import within
from eval.statistics.stats import ENOUGH_CLUSTERS, Estimate, Grouping, differences, estimate
from memsys.interface import Item
from memsys.tokens import stem

WORDS, CONTEXT = 0.6, 0.3
"""Share of a turn's words, or of its context without the answer's words, that a text must have."""
CLOSE_WORDS, CLOSE_CONTEXT = 0.35, 0.1
"""The same for a text that names the turn as one of few sources."""
NEARLY, SHORT_NEARLY, SHORT_CONTEXT = 0.4, 0.3, 0.2
"""Shares from which a text that names no source, or many, may hold a turn; the latter two for texts without sources that fit the window."""
FEW = 4
"""A text with at most this many sources is about each of them."""
LEAST_WINDOW, LEAST_WORDS = 16, 3
"""Words of the smallest window; a turn with fewer content words than the second must stand nearly verbatim."""


class Held(IntEnum):
    """Three ordered values: over several turns the smallest counts, over several texts the largest."""

    NO = 0
    UNKNOWN = 1
    YES = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a memory."""

    text: str
    sources: frozenset[str] = frozenset()
    """Ids of the turns that it comes from; empty where the memory does not say."""
    whole: bool = True
    """False for the rest of a text that was cut: the missing part may be the part about a source."""


@dataclass(frozen=True, slots=True)
class Target:
    """The part of one evidence turn that a memory must hold for one question."""

    turn: str
    """Id of the turn."""
    words: frozenset[str]
    answers: tuple[frozenset[str], ...]
    """Alternative sets of words, any of them suffices: all words of the answer, or those that the turn gives."""
    context: frozenset[str]
    """Words of the turn and the question that the answer does not have."""
    total: float
    beside: float
    """Weights of the turn's words, and of those that the answer does not have."""
    window: int
    """Length of the window in words."""
    weigh: Callable[[str], float]


def targets(case: Case, question: Question, gold: Gold) -> list[Target]:
    """The evidence turns of a question; none where the data set names none that exist."""
    weigh, turns = weights(case.turns), {turn.id: turn for turn in case.turns}
    asked, answer = _content(question.text), _content(gold.answers[0]) if gold.answers else frozenset()
    made = []
    for turn in (turns[each] for each in gold.evidence if each in turns):
        words, length = _content(turn.text), len(stems(turn.text))
        answers, context = tuple(each for each in (answer, answer & words) if each), (words | asked) - answer
        total, beside = sum(map(weigh, words)), sum(map(weigh, words - answer or asked - answer))
        window = max(2 * length, LEAST_WINDOW) if len(words) >= LEAST_WORDS else length + 1
        made.append(Target(turn.id, words, answers, context, total, beside, window, weigh))
    return made


@lru_cache(maxsize=4)
def weights(turns: tuple[Turn, ...]) -> Callable[[str], float]:
    """The weight of a stem: the logarithm of its rarity among these turns."""
    counts = Counter(word for turn in turns for word in set(stems(turn.text)))
    return lambda word: math.log((len(turns) + 1) / (counts[word] + 0.5))


class Texts:
    """Texts with an index of their words."""

    def __init__(self, texts: Iterable[Text]) -> None:
        self._texts = list(texts)
        self._places: dict[str, list[tuple[int, int]]] = {}
        self._naming: dict[str, list[int]] = {}
        for number, each in enumerate(self._texts):
            for place, word in enumerate(stems(each.text)):
                self._places.setdefault(word, []).append((number, place))
            if each.whole and len(each.sources) <= FEW:
                for source in each.sources:
                    self._naming.setdefault(source, []).append(number)

    def hold(self, target: Target) -> Held:
        """Decide whether any of the texts holds an evidence turn."""
        wanted = target.words.union(target.context, *target.answers)
        hits = sorted((*place, word) for word in wanted for place in self._places.get(word, ()))
        best = Held.UNKNOWN if target.turn in self._naming else Held.NO
        for number, own in groupby(hits, key=lambda hit: hit[0]):
            best = max(best, self._held(target, self._texts[number], [hit[1:] for hit in own]))
            if best is Held.YES:
                break
        return best

    def _held(self, target: Target, text: Text, hits: Sequence[tuple[int, str]]) -> Held:
        words, context = _shares(target, hits)
        if text.sources and target.turn not in text.sources:
            return Held.YES if words >= WORDS else Held.NO
        if words >= WORDS or context >= CONTEXT:
            return Held.YES
        if text.whole and target.turn in text.sources and len(text.sources) <= FEW:
            return Held.YES if words >= CLOSE_WORDS or context >= CLOSE_CONTEXT else Held.UNKNOWN
        short = not text.sources and len(stems(text.text)) <= target.window
        nearly = words >= NEARLY or (short and (words >= SHORT_NEARLY or context >= SHORT_CONTEXT))
        return Held.UNKNOWN if nearly else Held.NO


def all_held(wanted: Collection[Target], texts: Texts) -> Held:
    """Decide whether the texts hold all of these evidence turns: no if a turn is missing, unknown if a turn may be missing."""
    return min(map(texts.hold, wanted))


def _shares(target: Target, hits: Sequence[tuple[int, str]]) -> tuple[float, float]:
    """The largest weighted share of the turn's words in a window, and that of the context where the answer's words are in it.

    The hits are positions and words, in the order of the positions.
    """
    counts: Counter[str] = Counter()
    words = context = most_words = 0.0
    most_context, first = -1.0, 0
    for place, word in hits:
        counts[word] += 1
        if counts[word] == 1:
            words += target.weigh(word) * (word in target.words)
            context += target.weigh(word) * (word in target.context)
        while place - hits[first][0] >= target.window:
            left = hits[first][1]
            counts[left] -= 1
            if not counts[left]:
                words -= target.weigh(left) * (left in target.words)
                context -= target.weigh(left) * (left in target.context)
            first += 1
        most_words = max(most_words, words)
        if context > most_context and any(all(counts[each] for each in answer) for answer in target.answers):
            most_context = context
    return _ratio(most_words, target.total), _ratio(most_context, target.beside)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else 0.0


@lru_cache(maxsize=50_000)
def stems(text: str) -> tuple[str, ...]:
    """The stems of all words of a text, in order."""
    return tuple(map(stem, re.findall(r"\w+", text.lower())))


@lru_cache(maxsize=50_000)
def _content(text: str) -> frozenset[str]:
    """The stems of a text's words, without stop words."""
    return frozenset(stem(word) for part in content_words(text) for word in re.findall(r"\w+", part))


# --- the steps ----------------------------------------------------------------------------------------------------------

SHARES = ("gold errors", "abstention", "reader")
STEPS = (*SHARES, "not stored", "not found", "cut by the budget", "misread", "unknown")
"""Steps whose losses are shares; those of the others are paired differences of two answers' scores, which gains make negative."""
FINE = ("CORRECT", "WRONG_CITATION")
"""Labels of an audit that leave the gold answer right."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Whether the evidence of one question was stored, recalled and shown."""

    stored: Held
    recalled: Held
    shown: Held


@dataclass(frozen=True, slots=True)
class Loss:
    """Points that one question lost, by step."""

    history: str
    question_id: str
    category: str
    score: float
    steps: Mapping[str, float]


def loss_of(score: float, with_evidence: float | None, gold: Gold, reached: Reached | None) -> dict[str, float]:
    """The loss of one question by step; the values add up to `1 - score`.

    Args:
        score: of the memory's answer, from 0 to 1.
        with_evidence: score of the answer from the evidence alone; None when it could not be had.
        reached: None when the data set names no evidence.
    """
    loss = 1.0 - score
    if str(gold.detail.get("audit", FINE[0])) not in FINE:
        return {"gold errors": loss}
    if not gold.answerable:
        return {"abstention": loss}
    if with_evidence is None or reached is None:
        return {"unknown": loss}
    return {"reader": 1.0 - with_evidence, _step(reached): with_evidence - score}


def _step(reached: Reached) -> str:
    if reached.shown == Held.YES:
        return "misread"
    steps = {"cut by the budget": reached.recalled, "not found": reached.stored, "not stored": Held.YES}
    after: Held = reached.shown
    for step, before in steps.items():  # the step at which a certain yes turns into a certain no
        if after is Held.NO and before is Held.YES:
            return step
        after = before
    return "unknown"


def reach(evidence: Collection[Target], nodes: Texts | None, recalled: Texts, shown: Texts) -> Reached | None:
    """Decide whether the evidence turns of a question were stored, recalled and shown to the reader; None without evidence.

    A text that was shown was also recalled, and a text that was recalled was also stored. Without `nodes` storage is unknown.
    """
    if not evidence:
        return None
    seen = all_held(evidence, shown)
    found = max(seen, all_held(evidence, recalled))
    return Reached(max(found, Held.UNKNOWN if nodes is None else all_held(evidence, nodes)), found, seen)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The mean losses of a memory by step, with intervals."""

    score: Estimate
    steps: Mapping[str, Estimate]
    """Steps that some question lost points in, in the order of `STEPS`."""


def waterfall(losses: Sequence[Loss], aggregate: str = "question") -> Waterfall:
    """The mean loss of each step over the same questions.

    Args:
        aggregate: the unit that the means weigh equally, as in tables (`eval.report.cell.Column`).

    Raises:
        ValueError: there are no questions.
    """
    histories = [loss.history for loss in losses]
    groups = {"case": histories, "category": [loss.category for loss in losses]}.get(aggregate)
    steps = {}
    for step in STEPS:
        values = [loss.steps.get(step, 0.0) for loss in losses]
        if any(values) and step in SHARES:
            steps[step] = estimate(values, histories, groups=groups)
        elif any(values):  # the intervals of a share would leave out 0 where no answer gained
            steps[step] = differences(np.array([values]), Grouping.of(histories, groups), np.array([True]))[0]
    return Waterfall(estimate([loss.score for loss in losses], histories, groups=groups), steps)


# --- of a finished run, from its files --------------------------------------------------------------------------------

EVIDENCE = "gold_evidence"
"""The memory that recalls the evidence and nothing else."""
NET = (
    "A step after the reader's is the score from the evidence minus the memory's: answers that flip between the two runs cancel out in "
    "the mean, and the interval carries them."
)


def losses_of(
    run: Path,
    ours: Mapping[tuple[str, str], float],
    theirs: Mapping[tuple[str, str], float],
    cases: Sequence[Case],
    reader: Mapping[str, Any],
    read: Callable[[Path], tuple[Mapping[str, Prediction], Items]] | None = None,
) -> Iterator[Loss]:
    """Points that each scored question of a run lost, by step; the loss of a question without a score from the evidence is unknown.

    Args:
        run: the run folder.
        ours: the run's scores by case and question id, from 0 to 1.
        theirs: those of the run of `gold_evidence`, by the same metric or judge.
        cases: the data of the run.
        reader: the reader's settings in `run.json`; `max_context_tokens` and `fill` determine the shown text.
        read: gives the predictions and items of a case, given its folder; None reads its files.

    Raises:
        RunError: no question of the run has a score from the evidence, or a file is damaged.
    """
    if ours and not ours.keys() & theirs.keys():
        none = f"the run of {EVIDENCE} has no score of a question of {run}"
        raise RunError(f"{none}; run it on the same data, and score it alike")
    for case in cases:
        folder = RunFolder(run).case(case.id)
        nodes = None  # the memory does not show its nodes; that of an empty one is an empty file
        if (folder / NODES).is_file():
            lines = read_lines(folder / NODES, fields=("text", "sources"))
            nodes = Texts(Text(node["text"], frozenset(node["sources"])) for node in lines)
        predictions, items = read(folder) if read else (read_predictions(folder), read_items(folder))
        for question, gold in case.questions:
            key = (case.id, question.id)
            if key not in ours or question.id not in predictions:
                continue
            recalled = recalled_items(predictions[question.id], items)
            kept = within(recalled, reader.get("max_context_tokens"), fill=bool(reader.get("fill")))
            shown = Texts(_text(item, item in recalled) for item in kept)
            got = reach(targets(case, question, gold), nodes, Texts(map(_text, recalled)), shown)
            lost = loss_of(ours[key], theirs.get(key), gold, got)
            yield Loss(case.cluster or case.id, question.id, gold.category, ours[key], lost)


def _text(item: Item, whole: bool = True) -> Text:
    return Text(item.text, frozenset(item.sources), whole)


def shown_estimate(mean: Estimate) -> str:
    """A mean with its intervals by question and by case, or the reason why there is none by case: `{3 cases}` or `{no spread}`."""
    interval = "" if mean.by_question is None else f" [{mean.by_question.low:.3f}, {mean.by_question.high:.3f}]"
    if mean.by_case is not None:
        by_case = f"{mean.by_case.low:.3f}, {mean.by_case.high:.3f}"
    else:
        by_case = f"{mean.clusters} cases" if mean.clusters < ENOUGH_CLUSTERS else "no spread"
    return f"{mean.mean:.3f}{interval} {{{by_case}}}"


def as_json(title: str, fall: Waterfall) -> dict[str, Any]:
    """The waterfall as the HTML report reads it: the loss of each step, and the remaining score."""
    parts = {**fall.steps, "score": fall.score}
    steps = [{"name": name, "value": round(own.mean, 6), "note": shown_estimate(own)} for name, own in parts.items()]
    return {"title": title, "unit": f"share of {fall.score.n} questions", "steps": steps}
