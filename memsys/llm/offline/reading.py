"""Question answering without a model: splits texts into sentences with speakers and dates, and finds the span that answers best.

Words are stemmed and weighted by their rarity in the given text; relative dates are resolved against the `[time] ` of their line.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

import numpy as np

from memsys.dates import mentions, parse_time, written
from memsys.tokens import stem

UNKNOWN = "unknown"
"""The answer when nothing was recalled. It does not read as an abstention, so a control without memory scores nothing."""

LINE, AROUND = 0.5, 0.2
"""Weight of a question word that is not in the sentence itself but in its line, and in a neighbouring line."""
SPEAKER_BONUS, KIND_BONUS, QUESTION_MALUS = 0.2, 0.2, 0.1
"""Added to a sentence's match if a person named in the question says it, and if it has the kind of span asked for; subtracted if it is
a question."""
LONGEST = 8
"""Maximum number of words of a phrase given as answer."""

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
_CLAUSE = re.compile(
    r"(?:(?<!\s)\s+)?(?:[,;:!?()\"“”–—…]+|(?<!\.)\.+(?:\s|$)|\s-+\s|\b(?:but|because|which|so|and I|and we|and it)\b)\s*"
)
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
# The kind of span that a question asks for, in order of precedence; all other questions ask for a phrase.
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
    """One sentence of a given text."""

    text: str
    speaker: str
    time_text: str
    said: date | None
    line: int
    """Number of its line (turn) in the text."""
    stems: frozenset[str]
    """Stems of its content words, without the speaker's name before the colon."""


@lru_cache(maxsize=1 << 15)
def sentences(text: str) -> tuple[Sentence, ...]:
    """The sentences of a text. A `[time] ` at the beginning of a line and a `speaker: ` apply until the next one."""
    result: list[Sentence] = []
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
        result += [Sentence(part, speaker, time_text, said, number, stems(part)) for part in parts if part]
    return tuple(result)


@lru_cache(maxsize=1 << 15)
def stems(text: str) -> frozenset[str]:
    """Stems of the content words of a text."""
    return frozenset(stem(word) for word in words(text) if word not in STOP)


def words(text: str) -> list[str]:
    """The words of a text in lower case, without possessive s and apostrophes."""
    return [word.removesuffix("'s").replace("'", "") for word in _WORD.findall(text.lower().replace("’", "'"))]


@lru_cache(maxsize=1 << 15)
def content(text: str) -> frozenset[str]:
    """Stems of a text's content words, without its times and speaker names."""
    return frozenset().union(*(sentence.stems for sentence in sentences(text)))


@dataclass(frozen=True, slots=True)
class _Weighed:
    """Texts with the data that `similarities` needs for any query."""

    bags: tuple[frozenset[str], ...]
    """Stems of each text's content words."""
    squares: Mapping[str, float]
    """The squared weight of each stem: the fewer texts contain it, the greater."""
    unseen: float
    """The squared weight of a stem that no text contains."""
    norms: tuple[float, ...]
    """Sum of the squared weights of each text."""


@lru_cache(maxsize=64)
def _weighed(texts: tuple[str, ...]) -> _Weighed:
    """The texts as `_Weighed`. Cached, because a memory asks many questions about the same options."""
    bags = tuple(map(content, texts))
    frequency = Counter(stemmed for bag in bags for stemmed in bag)
    by_frequency = {count: math.log(1 + len(bags) / count) ** 2 for count in {1, *frequency.values()}}
    squares = {stemmed: by_frequency[count] for stemmed, count in frequency.items()}
    norms = tuple(math.fsum(map(squares.__getitem__, bag)) for bag in bags)
    return _Weighed(bags, squares, by_frequency[1], norms)


def similarities(query: str, texts: Sequence[str]) -> np.ndarray:
    """Cosine of the query's content words with each text's, weighted by rarity among the texts; float64 [n] in [0, 1]."""
    weighed, asked = _weighed(tuple(texts)), content(query)
    norm = math.fsum(weighed.squares.get(stemmed, weighed.unseen) for stemmed in asked)
    result = np.zeros(len(weighed.bags))
    for place, bag in enumerate(weighed.bags):
        if shared := asked & bag:  # exact sums, so their order does not matter
            overlap = math.fsum(map(weighed.squares.__getitem__, shared))
            result[place] = overlap / math.sqrt(norm * weighed.norms[place])
    return result


def content_words(text: str) -> list[str]:
    """Content words of a text, one per stem, most frequent first; equally frequent ones in order of occurrence."""
    in_order = [word for sentence in sentences(text) for word in words(sentence.text) if word not in STOP]
    counts = Counter(map(stem, in_order))
    firsts: dict[str, str] = {}
    for word in in_order:
        firsts.setdefault(stem(word), word)
    return sorted(firsts.values(), key=lambda word: -counts[stem(word)])


def agreement(gold: str, given: str) -> float:
    """1 if the given answer contains the gold answer's words in order, else the F1 of their stems; in [0, 1]."""
    expected, actual = (
        [stem(word) for word in words(text) if word not in ("a", "an", "the")] for text in (gold, given)
    )
    if expected and f" {' '.join(expected)} " in f" {' '.join(actual)} ":
        return 1.0
    shared = sum((Counter(expected) & Counter(actual)).values())
    return 2 * shared / (len(expected) + len(actual)) if shared else 0.0


class Context:
    """The sentences of the recalled texts with an inverted index. Immutable."""

    def __init__(self, texts: Sequence[str]) -> None:
        all_sentences: list[Sentence] = []
        lines: list[int] = []
        first = 1
        for text in texts:
            part = sentences(text)
            all_sentences += part
            lines += [first + sentence.line for sentence in part]
            first = lines[-1] + 2 if lines else 1  # the gap keeps lines of different items from being neighbours
        self.sentences = tuple(all_sentences)
        self.speakers = sorted({sentence.speaker for sentence in all_sentences if sentence.speaker})
        self.questions = np.array([sentence.text.endswith("?") for sentence in all_sentences], dtype=bool)
        self._lines = np.array(lines, dtype=np.intp)
        self._postings: dict[str, list[int]] = {}
        for index, sentence in enumerate(all_sentences):
            for stemmed in sentence.stems:
                self._postings.setdefault(stemmed, []).append(index)

    def rarity(self, stemmed: str) -> float:
        """The weight of a stem: the fewer sentences contain it, the greater."""
        return math.log(1 + (len(self.sentences) + 1) / (len(self._postings.get(stemmed, ())) + 0.5))

    def match(self, query: frozenset[str]) -> np.ndarray:
        """The share of the query's weight in each sentence, with its line and the neighbouring lines counted in part; [n] in [0, 1]."""
        in_sentence = np.zeros(len(self.sentences))
        by_line = np.zeros(int(self._lines[-1]) + 2)
        total = 0.0
        for stemmed in sorted(query):  # in a fixed order, so that floating-point sums are the same in every process
            weight = self.rarity(stemmed)
            total += weight
            if stemmed in self._postings:
                places = self._postings[stemmed]
                in_sentence[places] += weight
                by_line[self._lines[places]] += weight  # once per line, even if several of its sentences have the stem
        in_line = by_line[self._lines]
        in_neighbour = np.maximum(by_line[self._lines - 1], by_line[self._lines + 1])
        score: np.ndarray = (
            in_sentence + LINE * (in_line - in_sentence) + AROUND * np.maximum(in_neighbour - in_line, 0.0)
        )
        return score / total if total else in_sentence


read = lru_cache(maxsize=64)(Context)
"""The texts, a tuple, as a `Context`. Cached, because one recall may be read for several questions."""


def answer(question: str, texts: Sequence[str]) -> tuple[str, float]:
    """The span of the texts that answers the question best, and the match of its sentence in [0, 1]."""
    context = read(tuple(texts))
    if not context.sentences:
        return UNKNOWN, 0.0
    kind = next((kind for kind, pattern in _KINDS if pattern.search(question)), "phrase")
    asked = stems(question)
    named = [name for name in context.speakers if stems(name) & asked]
    names = frozenset[str]().union(*map(stems, named))
    match = context.match(asked - names or asked)
    said_by_named = np.array([sentence.speaker in named for sentence in context.sentences])
    rank = match + SPEAKER_BONUS * said_by_named - QUESTION_MALUS * context.questions
    top = [int(index) for index in np.argsort(-rank, kind="stable")[:8]]
    for index in top:
        sentence = context.sentences[index]
        dated = kind == "date" and bool(mentions(sentence.text, sentence.said))
        rank[index] += KIND_BONUS * (dated or (kind == "number" and bool(QUANTITY.search(sentence.text))))
    top.sort(key=lambda index: -rank[index])
    wanted = top[:3] if kind == "phrase" and _PLURAL.search(question.lower()) else top[:1]
    spans = [_span(kind, context.sentences[index], context, asked) for index in wanted]
    return ", ".join(dict.fromkeys(spans)), min(1.0, float(match[top[0]]))


def _span(kind: str, sentence: Sentence, context: Context, asked: frozenset[str]) -> str:
    """The part of a sentence that a question of this kind asks for; the most informative phrase if there is none."""
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
    if kind == "name":  # the first capitalised words inside the sentence that do not occur in the question
        for run in re.findall(r"(?<=[\w,] )[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*", sentence.text):
            if stems(run) and not stems(run) & asked:
                return str(run)
    # The clause with the most new and rare words, without uninformative words at its ends.
    clauses = _CLAUSE.split(sentence.text)
    tokens = max(clauses, key=lambda clause: math.fsum(map(context.rarity, stems(clause) - asked))).split()
    informative = [index for index, token in enumerate(tokens) if stems(token) - asked]
    if informative:
        tokens = tokens[informative[0] : informative[-1] + 1]
    return " ".join(tokens[-LONGEST:]).strip(" .,!?;:\"'*") or sentence.text
