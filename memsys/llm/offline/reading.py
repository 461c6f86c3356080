"""Reading without a model: sentences with their speakers and dates, and the span of a text that best answers a question.

Words are stemmed and weighted by their rarity in the text at hand; relative dates are resolved against the `[time] ` of their line.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

import numpy as np

from memsys.dates import mentions, parse_time, written
from memsys.embed import stem

UNKNOWN = "unknown"
"""The answer where nothing was recalled: no abstention wording, so that a control without memory scores nothing."""

LINE, AROUND = 0.5, 0.2
"""What a question word counts that stands not in the sentence but in its line, or in a line beside it."""
SPEAKER_BONUS, KIND_BONUS, QUESTION_MALUS = 0.2, 0.2, 0.1
"""Added to a sentence's match when a named person says it and when it holds the kind of span asked for; taken off when it is a question."""
LONGEST = 8
"""Words of the longest phrase that is answered."""

STOP = frozenset(
    """
    a about above after again ago all also am an and any anyone anything are around as at away be became because become been before
    being both but by came can cannot come could did do does doing done down each either else even ever every everyone
    everything for from get getting give given go goes going gone gonna got had has have having he her here hers herself
    hey hi him himself his how however i if in into is it its itself just kind kinda know last let like likely lot lots
    made make makes making many may maybe me might mine more most much must my myself need no nor not now of off oh ok
    okay on once one only or other our ours out over own perhaps please put really right said same say see she should
    since so some someone something soon still such sure take than thank thanks that the their theirs them then there
    these they thing things think this those though through till to too took totally two under until up upon us use used very
    want wanted was way we well went were what when where which while who whom whose why will with within without wow would
    yeah yep yes yet you your yours yourself able actually always amazing awesome cool definitely glad good great haha im
    ive id ill youre thats its dont didnt doesnt isnt wasnt cant couldnt wont wouldnt theyre theres lets
    """.split()
)
_WORD = re.compile(r"[^\W_]+(?:['’.\-][^\W_]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”)]*\s+")
_TIME = re.compile(r"\[([^\[\]\n]{4,120})\]\s*")
_SPEAKER = re.compile(r"([^\W\d_][\w'.’\- ]{0,30}):\s+")
_CLAUSE = re.compile(r"\s*(?:[,;:!?()\"“”–—…]+|\.+(?:\s|$)|\s-+\s|\b(?:but|because|which|so|and I|and we|and it)\b)\s*")
QUANTITY = re.compile(
    r"\b(?:\d[\d,.:/]*\b%?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|once|twice|several|couple|few|"
    r"dozen|half|hundred|thousand)\b(?: (?:hour|minute|day|week|month|year|time|mile|kilometer|dollar)s?\b)?",
    re.IGNORECASE,
)
_REASON = re.compile(r"\b(?:because|since|so that|in order to|due to|to)\b\s+(.+)", re.IGNORECASE)
_DENIAL = re.compile(r"\b(?:not|never|no)\b|n['’]t\b", re.IGNORECASE)
_PLURAL = re.compile(
    r"\b(?:what|which)\s+(?:(?:kind|type)s? of )?(?:(?!(?:is|was|did|does|do|has)\b)\w+ )?(?!(?:is|was|does|has|this)\b)\w+s\b"
)
# What a question asks for, in order of precedence; anything else asks for a phrase.
_KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("date", r"\bwhen\b|\b(?:what|which) (?:date|day|month|year|time|week|weekend|season)\b|\bhow long ago\b"),
        ("number", r"\bhow (?:many|much|old|often|long|far|big|tall|large)\b|\bwhat (?:number|age|percentage|price)\b"),
        ("reason", r"\bwhy\b"),
        ("polar", r"^(?:did|does|do|is|was|were|are|has|have|had|can|could|would|should|will)\b"),
        ("name", r"\bwho(?:m|se)?\b"),
    )
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a text that was shown."""

    text: str
    speaker: str
    time_text: str
    said: date | None
    line: int
    """Number of its line (turn) in the text."""
    stems: frozenset[str]
    """Of its content words; the speaker's name before the colon is none."""


@lru_cache(maxsize=1 << 15)
def sentences(text: str) -> tuple[Sentence, ...]:
    """The sentences of a text. A `[time] ` at the head of a line holds until the next, a `speaker: ` for what follows it."""
    found: list[Sentence] = []
    speaker, time_text, said = "", "", None
    for number, line in enumerate(text.split("\n")):
        head = _TIME.match(line)
        when = parse_time(head[1]) if head else None
        if head and when is not None:
            speaker, time_text, said, line = "", head[1], when.date(), line[head.end() :]
        name = _SPEAKER.match(line)
        if name:
            speaker, line = name[1], line[name.end() :]
        parts = [part.strip() for part in _SENTENCE_END.split(line)]
        found += [Sentence(part, speaker, time_text, said, number, stems(part)) for part in parts if part]
    return tuple(found)


@lru_cache(maxsize=1 << 15)
def stems(text: str) -> frozenset[str]:
    """Stems of the content words of a text."""
    return frozenset(stem(word) for word in words(text) if word not in STOP)


def words(text: str) -> list[str]:
    """The words of a text in lower case, without apostrophes and possessive s."""
    return [word.removesuffix("'s").replace("'", "") for word in _WORD.findall(text.lower().replace("’", "'"))]


@lru_cache(maxsize=1 << 15)
def content(text: str) -> frozenset[str]:
    """Stems of what was said, without times and the names of the speakers."""
    return frozenset().union(*(sentence.stems for sentence in sentences(text)))


def similarities(query: str, texts: Sequence[str]) -> np.ndarray:
    """Cosine of the query's content words with each text's, rarer words (among the texts) weighing more; [n] in [0, 1]."""
    bags = [content(text) for text in texts]
    common = Counter(each for bag in bags for each in bag)
    asked = content(query)

    def norm(bag: frozenset[str]) -> float:
        return math.fsum(math.log(1 + len(bags) / common.get(each, 1)) ** 2 for each in bag)

    return np.array([norm(asked & bag) / math.sqrt(norm(asked) * norm(bag)) if asked & bag else 0.0 for bag in bags])


def content_words(text: str) -> list[str]:
    """Content words, most frequent first, else in order; one of each stem."""
    said = [word for sentence in sentences(text) for word in words(sentence.text) if word not in STOP]
    counts = Counter(map(stem, said))
    firsts = {stem(word): word for word in reversed(said)}
    return sorted(firsts.values(), key=lambda word: (-counts[stem(word)], said.index(word)))


def agreement(gold: str, given: str) -> float:
    """1 where the gold answer stands in the given one word for word, else the F1 of their stems; in [0, 1]."""
    wanted, said = ([stem(word) for word in words(text) if word not in ("a", "an", "the")] for text in (gold, given))
    if wanted and f" {' '.join(wanted)} " in f" {' '.join(said)} ":
        return 1.0
    shared = sum((Counter(wanted) & Counter(said)).values())
    return 2 * shared / (len(wanted) + len(said)) if shared else 0.0


class Context:
    """The sentences of what was recalled, with an inverted index; never changed once made."""

    def __init__(self, texts: Sequence[str]) -> None:
        found: list[Sentence] = []
        lines: list[int] = []
        first = 1
        for text in texts:
            part = sentences(text)
            found += part
            lines += [first + sentence.line for sentence in part]
            first = lines[-1] + 2 if lines else 1  # the gap keeps the items' lines from being each other's neighbours
        self.sentences = tuple(found)
        self.speakers = sorted({sentence.speaker for sentence in found if sentence.speaker})
        self._speakers = np.array([self.speakers.index(one.speaker) if one.speaker else -1 for one in found])
        self.questions = np.array([sentence.text.endswith("?") for sentence in found], dtype=bool)
        self._lines = np.array(lines, dtype=np.intp)
        self._postings: dict[str, list[int]] = {}
        for index, sentence in enumerate(found):
            for each in sentence.stems:
                self._postings.setdefault(each, []).append(index)

    def rarity(self, stemmed: str) -> float:
        """The weight of a stem: the fewer sentences have it, the more."""
        return math.log(1 + (len(self.sentences) + 1) / (len(self._postings.get(stemmed, ())) + 0.5))

    def said_by(self, names: Sequence[str]) -> np.ndarray:
        """Which sentences one of the speakers says, bool [n]."""
        found = np.zeros(len(self.sentences), dtype=bool)
        for name in names:
            found |= self._speakers == self.speakers.index(name)
        return found

    def match(self, query: frozenset[str]) -> np.ndarray:
        """The share of the query's weight that each sentence has, its line and the lines beside it counting in part; [n] in [0, 1]."""
        own = np.zeros(len(self.sentences))
        line = np.zeros(int(self._lines[-1]) + 2)
        total = 0.0
        for each in sorted(query):  # a fixed order, so that sums are the same in every process
            weight = self.rarity(each)
            total += weight
            if each in self._postings:
                places = self._postings[each]
                own[places] += weight
                line[self._lines[places]] += weight  # a line that is named twice still gets the weight once
        inside = line[self._lines]
        beside = np.maximum(line[self._lines - 1], line[self._lines + 1])
        score: np.ndarray = own + LINE * (inside - own) + AROUND * np.maximum(beside - inside, 0.0)
        return score / total if total else own


@lru_cache(maxsize=64)
def read(texts: tuple[str, ...]) -> Context:
    """The texts as a `Context`; the last few are kept, since one recall is read for several questions."""
    return Context(texts)


def answer(question: str, texts: Sequence[str]) -> tuple[str, float]:
    """The span of the texts that best answers the question, and how well its sentence matches, in [0, 1]."""
    context = read(tuple(texts))
    if not context.sentences:
        return UNKNOWN, 0.0
    kind = next((kind for kind, pattern in _KINDS if pattern.search(question)), "phrase")
    asked = stems(question)
    named = [name for name in context.speakers if stems(name) & asked]
    names = frozenset[str]().union(*map(stems, named))
    match = context.match(asked - names or asked)
    rank = match + SPEAKER_BONUS * context.said_by(named) - QUESTION_MALUS * context.questions
    top = [int(index) for index in np.argsort(-rank, kind="stable")[:8]]
    for index in top:
        rank[index] += KIND_BONUS * _holds(kind, context.sentences[index])
    top.sort(key=lambda index: -rank[index])
    wanted = top[:3] if kind == "phrase" and _PLURAL.search(question.lower()) else top[:1]
    spans = [_span(kind, context.sentences[index], context, asked) for index in wanted]
    return ", ".join(dict.fromkeys(spans)), min(1.0, float(match[top[0]]))


def _holds(kind: str, sentence: Sentence) -> bool:
    if kind == "date":
        return bool(mentions(sentence.text, sentence.said))
    return kind == "number" and bool(QUANTITY.search(sentence.text))


def _span(kind: str, sentence: Sentence, context: Context, asked: frozenset[str]) -> str:
    """The part of a sentence that a question of this kind asks for; the most telling phrase where it has none."""
    if kind == "date":
        dates = mentions(sentence.text, sentence.said)
        if dates or sentence.said:
            return dates[0].resolved if dates else written(sentence.said or date.min)
    if kind == "number" and (quantity := QUANTITY.search(sentence.text)):
        return quantity.group()
    if kind == "polar":
        return "No" if _DENIAL.search(sentence.text) else "Yes"
    if kind == "reason" and (reason := _REASON.search(sentence.text)):
        return " ".join(reason[1].split()[: LONGEST + 2]).strip(" .,!?")
    if kind == "name" and (name := _name(sentence, asked)):
        return name
    return _phrase(sentence, context, asked)


def _name(sentence: Sentence, asked: frozenset[str]) -> str:
    """The first capitalised words inside a sentence that the question does not have itself."""
    runs = re.findall(r"(?<=[\w,] )[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*", sentence.text)
    return next((run for run in runs if stems(run) and not stems(run) & asked), "")


def _phrase(sentence: Sentence, context: Context, asked: frozenset[str]) -> str:
    """The clause with most new and rare words, without idle words at its ends."""

    def news(clause: str) -> float:
        return math.fsum(context.rarity(each) for each in stems(clause) - asked)

    tokens = max(_CLAUSE.split(sentence.text), key=news).split()
    telling = [index for index, token in enumerate(tokens) if stems(token) - asked]
    if telling:
        tokens = tokens[telling[0] : telling[-1] + 1]
    return " ".join(tokens[-LONGEST:]).strip(" .,!?;:\"'*") or sentence.text
