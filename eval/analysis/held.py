"""Decide whether a memory's texts hold an evidence turn: yes, no or unknown, from their sources, the turn's words and the answer's words.

A text holds a turn when, within a window of twice the turn's length,

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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import groupby

from data_loaders.schema import Case, Gold, Question, Turn
from eval.metrics.evidence import content_words
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
    return [_target(turns[each], asked, answer, weigh) for each in gold.evidence if each in turns]


def _target(turn: Turn, asked: frozenset[str], answer: frozenset[str], weigh: Callable[[str], float]) -> Target:
    words, length = _content(turn.text), len(stems(turn.text))
    beside = words - answer or asked - answer
    return Target(
        turn.id,
        words,
        tuple(each for each in (answer, answer & words) if each),
        (words | asked) - answer,
        sum(map(weigh, words)),
        sum(map(weigh, beside)),
        max(2 * length, LEAST_WINDOW) if len(words) >= LEAST_WORDS else length + 1,
        weigh,
    )


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

    Args:
        hits: positions and words, in the order of the positions.
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
    return tuple(_stems(re.findall(r"\w+", text.lower())))


@lru_cache(maxsize=50_000)
def _content(text: str) -> frozenset[str]:
    """The stems of a text's words, without stop words."""
    return frozenset(_stems(word for part in content_words(text) for word in re.findall(r"\w+", part)))


def _stems(words: Iterable[str]) -> Iterator[str]:
    return map(stem, words)
