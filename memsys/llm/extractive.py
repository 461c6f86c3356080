"""The offline engine: serves every kind of prompt deterministically from the request's fields, with no model.

It is a stand-in, so that every system runs without a key; its numbers are never compared with published ones. What it says is
always a piece of what it was shown: answers are the best-matching sentence narrowed to the span that the question asks for, with
relative dates resolved against the recalled item's own `[time] `; summaries are central sentences; facts are sentences; choices,
ratings and boundaries come from word overlap; judging is containment or word F1. Words are stemmed and weighted by their rarity
in the text at hand. Log-probabilities come from the strength of the match. A reply to a JSON schema is built from the schema.

Beside the fields of each kind it reads `options` of an answer (multiple choice: the best label is answered) and `unanswerable`
of a judgement (only a reply that declines is right). Of labels and enums that grade, the first is taken for the favourable one.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import Any

import numpy as np

from memsys.dates import mentions, parse_time, written
from memsys.embed import stem
from memsys.llm.protocol import Completion, ModelError, Request
from memsys.prompts import Option
from memsys.tokens import count_tokens, truncate

UNKNOWN = "unknown"
"""The answer where nothing was recalled: no abstention wording, so that a control without memory scores nothing."""
ABSTENTION = "Not mentioned in the conversation"

SIMILAR = 0.15
"""Word-overlap cosine from which an option counts as similar enough to be chosen."""
DROP = 0.5
"""A new message below this share of the history's usual similarity starts a new episode."""
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
_LINE_END = re.compile(r"\n(?=[^\s/])")
_TIME = re.compile(r"\[([^\[\]\n]{4,120})\]\s*")
_SPEAKER = re.compile(r"([^\W\d_][\w'.’\- ]{0,30}):\s+")
_CLAUSE = re.compile(r"\s*(?:[,;:!?()\"“”–—…]+|\.+(?:\s|$)|\s-+\s|\b(?:but|because|which|so|and I|and we|and it)\b)\s*")
_QUANTITY = re.compile(
    r"\b(?:\d[\d,.:/]*\b%?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|once|twice|several|couple|few|"
    r"dozen|half|hundred|thousand)\b(?: (?:hour|minute|day|week|month|year|time|mile|kilometer|dollar)s?\b)?",
    re.IGNORECASE,
)
_REASON = re.compile(r"\b(?:because|since|so that|in order to|due to|to)\b\s+(.+)", re.IGNORECASE)
_DENIAL = re.compile(r"\b(?:not|never|no)\b|n['’]t\b", re.IGNORECASE)
_ABSTAINS = re.compile(
    r"not mentioned|no information|not in the conversation|not (?:enough|available|specified|provided|stated)|insufficient|"
    r"(?:cannot|can't|could not|couldn't) be (?:answered|determined)|(?:do not|don't) know|unanswerable",
    re.IGNORECASE,
)
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


# --- text -----------------------------------------------------------------------------------------------------------


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
def _content(text: str) -> frozenset[str]:
    """Stems of what was said, without times and the names of the speakers."""
    return frozenset().union(*(sentence.stems for sentence in sentences(text)))


def _texts(value: object) -> list[str]:
    """A field's texts: itself, an option's text, or those of a sequence; blank ones are left out."""
    if isinstance(value, Option):
        value = value.text
    if isinstance(value, str):
        return [value] if value.strip() else []
    parts = value if isinstance(value, Iterable) else ()
    texts = (part if isinstance(part, str) else part.text if isinstance(part, Option) else str(part) for part in parts)
    return [text for text in texts if text.strip()]


def similarities(query: str, texts: Sequence[str]) -> np.ndarray:
    """Cosine of the query's content words with each text's, rarer words (among the texts) weighing more; [n] in [0, 1]."""
    bags = [_content(text) for text in texts]
    common = Counter(each for bag in bags for each in bag)
    asked = _content(query)

    def norm(bag: frozenset[str]) -> float:
        return math.fsum(math.log(1 + len(bags) / common.get(each, 1)) ** 2 for each in bag)

    return np.array([norm(asked & bag) / math.sqrt(norm(asked) * norm(bag)) if asked & bag else 0.0 for bag in bags])


# --- answering ------------------------------------------------------------------------------------------------------


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
def _context(texts: tuple[str, ...]) -> Context:
    return Context(texts)


def answer(question: str, texts: Sequence[str]) -> tuple[str, float]:
    """The span of the texts that best answers the question, and how well its sentence matches, in [0, 1]."""
    context = _context(tuple(texts))
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
    return kind == "number" and bool(_QUANTITY.search(sentence.text))


def _span(kind: str, sentence: Sentence, context: Context, asked: frozenset[str]) -> str:
    """The part of a sentence that a question of this kind asks for; the most telling phrase where it has none."""
    if kind == "date":
        dates = mentions(sentence.text, sentence.said)
        if dates or sentence.said:
            return dates[0].resolved if dates else written(sentence.said or date.min)
    if kind == "number" and (quantity := _QUANTITY.search(sentence.text)):
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


def _best_option(question: str, options: Sequence[Option], texts: Sequence[str]) -> tuple[str, float]:
    """The label of the option that a sentence near the question's words supports most."""
    context = _context(tuple(texts))
    if not context.sentences:
        return UNKNOWN, 0.0
    near = context.match(stems(question))
    support = [float(np.max(context.match(stems(option.text)) + LINE * near)) for option in options]
    best = int(np.argmax(support))
    return options[best].label, min(1.0, support[best])


# --- what each kind of prompt finds ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to say, before it is put in the form that the prompt asks for."""

    text: str
    strength: float = 0.0
    """In [0, 1]; becomes the log-probabilities."""
    parts: tuple[str, ...] = ()
    """The elements of an array."""
    labels: tuple[str, ...] = ()
    """Chosen labels, best first."""
    prefers: tuple[str, ...] = ()
    """Labels to choose where they are allowed, but not to be told."""
    rest: tuple[str, ...] = ()
    """Labels that could have been chosen, best first."""
    ratings: tuple[tuple[str, float], ...] = ()
    """A rating in [0, 1] for each label."""
    rating: float | None = None
    """In [0, 1]; None where numbers mean nothing, so that they become the least allowed."""
    flag: bool | None = None
    title: str = ""
    time: date | None = None


def _answered(request: Request) -> Found:
    fields = request.fields
    texts = _texts(fields.get("memories", ()))
    options = fields.get("options") or ()
    text, strength = (
        _best_option(str(fields["question"]), options, texts) if options else answer(str(fields["question"]), texts)
    )
    return Found(text, strength, parts=(text,), labels=(text,) if options else (), flag=strength >= 0.5)


def _summarised(request: Request) -> Found:
    shown = [sentence for text in _texts(request.fields["texts"]) for sentence in sentences(text)]
    if not shown:
        return Found(UNKNOWN)
    common = Counter(each for sentence in shown for each in sentence.stems)

    def central(index: int) -> float:
        bag = shown[index].stems
        return math.fsum(math.log(common[each]) for each in bag) / math.sqrt(1 + len(bag))

    budget = _budget(request)
    chosen: list[int] = []
    for index in sorted(range(len(shown)), key=lambda index: (-central(index), index)):
        sentence = shown[index]
        budget -= count_tokens(sentence.text) + count_tokens(f"[{sentence.time_text}] {sentence.speaker}: ")
        if budget < 0 and chosen:
            break
        chosen.append(index)
    kept = [shown[index] for index in sorted(chosen)]
    first = next((sentence.said for sentence in shown if sentence.said), None)
    title = " ".join(kept[0].text.split()[:LONGEST])
    return Found(_script(kept), 0.5, parts=tuple(sentence.text for sentence in kept), title=title, time=first)


def _script(kept: Sequence[Sentence]) -> str:
    """Sentences as text again; a speaker and a time are written where they change."""
    lines: list[str] = []
    before: tuple[str, str] | None = None
    for sentence in kept:
        if before == (sentence.time_text, sentence.speaker):
            lines[-1] += f" {sentence.text}"
            continue
        time_text = (
            f"[{sentence.time_text}] " if sentence.time_text and (before or ("",))[0] != sentence.time_text else ""
        )
        lines.append(
            f"{time_text}{sentence.speaker}: {sentence.text}" if sentence.speaker else time_text + sentence.text
        )
        before = sentence.time_text, sentence.speaker
    return "\n".join(lines)


def _extracted(request: Request) -> Found:
    when = parse_time(str(request.fields.get("time", "")))
    budget = _budget(request)
    facts: list[str] = []
    for sentence in (each for text in _texts(request.fields["text"]) for each in sentences(text)):
        if len(sentence.stems) < 3 or sentence.text.endswith("?"):
            continue
        fact = _fact(sentence, sentence.said or (when.date() if when else None))
        budget -= count_tokens(fact) + 8
        if budget < 0 and facts:
            break
        facts.append(fact)
    return Found("\n".join(facts) or UNKNOWN, 0.5, parts=tuple(facts), time=when.date() if when else None)


def _fact(sentence: Sentence, said: date | None) -> str:
    """A sentence with its speaker, and with the date it speaks of (else the date it was said) in brackets."""
    resolved = [each.resolved for each in mentions(sentence.text, said) if each.relative and said]
    known = resolved or ([written(said)] if said else [])
    dates = f" ({', '.join(known)})" if known else ""
    return f"{sentence.speaker}: {sentence.text}{dates}" if sentence.speaker else sentence.text + dates


def _chosen(request: Request) -> Found:
    options: Sequence[Option] = request.fields["options"]
    scores = similarities(str(request.fields["query"]), [option.text for option in options])
    order = [int(index) for index in np.argsort(-scores, kind="stable")]
    ranked = tuple(options[index].label for index in order)
    best = float(scores[order[0]]) if order else 0.0
    if best < SIMILAR:
        return Found("None is similar enough.", best, rest=ranked)
    chosen = tuple(options[index].label for index in order if scores[index] >= best / 2)
    return Found(options[order[0]].text, best, parts=chosen, labels=chosen, rest=ranked[len(chosen) :], flag=True)


def _rated(request: Request) -> Found:
    if "options" in request.fields:
        options: Sequence[Option] = request.fields["options"]
        scores = similarities(str(request.fields["query"]), [option.text for option in options]).tolist()
        pairs = tuple(zip((option.label for option in options), scores, strict=True))
        highest = max(scores, default=0.0)
        return Found(str(1 + round(9 * highest)), highest, ratings=pairs, rating=highest)
    text = "\n".join(_texts(request.fields["text"]))
    weight = 1 - math.exp(-(len(_content(text)) + 3 * len(_QUANTITY.findall(text))) / 30)
    return Found(str(1 + round(9 * weight)), weight, rating=weight)


def _keywords(request: Request) -> Found:
    found = tuple(_content_words("\n".join(_texts(request.fields["text"])))[:5])
    return Found(", ".join(found) or UNKNOWN, 0.5, parts=found)


def _content_words(text: str) -> list[str]:
    """Content words, most frequent first, else in order; one of each stem."""
    said = [word for sentence in sentences(text) for word in words(sentence.text) if word not in STOP]
    counts = Counter(map(stem, said))
    firsts = {stem(word): word for word in reversed(said)}
    return sorted(firsts.values(), key=lambda word: (-counts[stem(word)], said.index(word)))


def _bounded(request: Request) -> Found:
    history = [line for text in _texts(request.fields["history"]) for line in text.split("\n") if line.strip()][-12:]
    messages = [*history, str(request.fields["new"])]
    # How much each message has in common with the six before it; a drop is judged against what is usual here.
    kinship = [
        float(similarities(messages[place], messages[max(0, place - 6) : place]).max())
        for place in range(1, len(messages))
    ]
    usual = float(np.mean(kinship[:-1])) if len(kinship) > 1 else 0.0
    ends = bool(kinship) and kinship[-1] < DROP * usual
    return Found("yes" if ends else "no", 0.5, flag=ends)


def _judged(request: Request) -> Found:
    golds, given = _texts(request.fields["gold"]), " ".join(_texts(request.fields["answer"]))
    if request.fields.get("unanswerable") or any(_ABSTAINS.search(gold) for gold in golds):
        right = float(bool(_ABSTAINS.search(given)))
    else:
        right = float(np.mean([agreement(gold, given) for gold in golds])) if golds else 0.0
    hits = tuple(gold for gold in golds if agreement(gold, given) >= 0.5)
    text = f"{len(hits)} of {len(golds)} reference answers are met."
    return Found(text, right, parts=hits, rating=right, flag=right >= 0.5)


def agreement(gold: str, given: str) -> float:
    """1 where the gold answer stands in the given one word for word, else the F1 of their stems; in [0, 1]."""
    wanted, said = ([stem(word) for word in words(text) if word not in ("a", "an", "the")] for text in (gold, given))
    if wanted and f" {' '.join(wanted)} " in f" {' '.join(said)} ":
        return 1.0
    shared = sum((Counter(wanted) & Counter(said)).values())
    return 2 * shared / (len(wanted) + len(said)) if shared else 0.0


def _chatted(request: Request) -> Found:
    last = next((content for role, content in reversed(request.messages) if role == "user"), "")
    *shown, asked = [line for line in last.split("\n") if line.strip()] or [""]
    text, strength = answer(str(request.fields.get("question", asked)), shown or [asked])
    return Found(text, strength, parts=(text,), prefers=("send_message", "respond", "answer", "finish"))


_FINDERS: Mapping[str, Callable[[Request], Found]] = {
    "answer": _answered,
    "summarise": _summarised,
    "extract": _extracted,
    "choose": _chosen,
    "rate": _rated,
    "keywords": _keywords,
    "boundary": _bounded,
    "judge": _judged,
    "chat": _chatted,
    "": _chatted,
}


def _budget(request: Request) -> int:
    """Tokens for each string of the reply: a schema's own words take their part, too."""
    return request.max_tokens if request.schema is None else request.max_tokens // (1 + _strings(request.schema))


def _strings(schema: Mapping[str, Any]) -> int:
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return sum(map(_strings, inner)) + (schema.get("type") == "string")


# --- the form of the reply ------------------------------------------------------------------------------------------


# What a property is for, by its name.
_EXPLAINS = re.compile(r"reason|justif|thought|explan|rationale|analysis|evidence|summary|description", re.IGNORECASE)
_TITLES = re.compile(r"title|name|headline", re.IGNORECASE)
_TIMES = re.compile(r"(?:^|_)(?:time|date|timestamp)$", re.IGNORECASE)
_RATES = re.compile(r"score|rating|relevance|importance|confidence|weight", re.IGNORECASE)
_IDS = re.compile(r"(?:^|_)(?:ids?|index|indices|ranking|labels?|numbers?)$", re.IGNORECASE)


def form(schema: Mapping[str, Any], found: Found, name: str = "") -> Any:
    """A value that satisfies a JSON schema, filled with what was found; `name` is the property it is for.

    Known are const, enum, anyOf/oneOf (the first), type, properties, items, prefixItems, minimum, maximum, minItems, maxItems, minLength
    and maxLength.

    Raises:
        ValueError: a schema without a type that this can fill.
    """
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return _labelled(schema["enum"], found)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return form(choices[0], found, name)
    kinds = schema.get("type", "object" if "properties" in schema else None)
    kind = next((each for each in kinds if each != "null"), "null") if isinstance(kinds, list) else kinds
    if kind == "object" and {"source", "target"} <= set(schema.get("properties", {})):
        ends = dict(zip(("source", "target"), _ends(found.text), strict=True))
        found_at = {key: replace(found, text=ends.get(key, found.text), title="") for key in schema["properties"]}
        return {key: form(part, found_at[key], key) for key, part in schema["properties"].items()}
    if kind == "object":
        return {key: form(part, found, key) for key, part in schema.get("properties", {}).items()}
    if kind == "array":
        return _array(schema, found, name)
    if kind == "string":
        return _string(schema, found, name)
    if kind in ("integer", "number"):
        number = _number(schema, found, name)
        return round(number) if kind == "integer" else round(number, 4)
    if kind == "boolean":
        return bool(found.flag)
    if kind == "null":
        return None
    raise ValueError(f"the extractive engine cannot fill a schema of type {kind!r} ({name or 'reply'})")


def _ends(text: str) -> tuple[str, str]:
    """The first and the last content word of a statement: the two ends of a relation, as far as an engine without a model can tell."""
    said = _content_words(text) or [text]
    return said[0], said[-1]


def _labelled(labels: Sequence[Any], found: Found) -> Any:
    """The allowed label that was found; else by rating or flag (the first is the favourable one); else one that belongs to no option."""
    numbers = sorted(label for label in labels if isinstance(label, int | float) and not isinstance(label, bool))
    if found.rating is not None and (numbers or found.flag is None):
        return (numbers or labels)[round(found.rating * (len(numbers or labels) - 1))]
    by_name = {str(label): label for label in labels}
    if chosen := [by_name[label] for label in (*found.labels, *found.prefers) if label in by_name]:
        return chosen[0]
    if found.flag is not None:
        return labels[0] if found.flag else labels[-1]
    nobody = [label for label in labels if str(label) not in found.rest]
    return nobody[0] if nobody else by_name[found.rest[0]]


def _array(schema: Mapping[str, Any], found: Found, name: str) -> list[Any]:
    if len(tuple_items := schema.get("prefixItems", ())) == 3:  # a statement: what it is about, itself, what it ends on
        subject, target = _ends(found.text)
        texts = (subject, found.text, target)
        return [form(part, replace(found, text=text), name) for part, text in zip(tuple_items, texts, strict=True)]
    if tuple_items:
        return [form(part, found, name) for part in tuple_items]
    items = schema.get("items", {"type": "string"})
    if found.rating is not None and found.labels and items.get("type") in ("integer", "number"):
        return [form(items, found, "id"), form(items, found, "score")]  # a pair inside a list of ratings
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    elements = [form(items, element, name) for element in _elements(found, name)][:most]
    spare = [form(items, replace(found, text=label, labels=(label,)), name) for label in found.rest]
    spare += [form(items, replace(found, parts=(), ratings=()), name)] * least
    return elements + spare[: max(0, least - len(elements))]


def _elements(found: Found, name: str) -> list[Found]:
    """What each element of an array is filled from: a rating, a chosen label, or a part."""
    if found.ratings:
        rated = [Found(label, rating, labels=(label,), rating=rating) for label, rating in found.ratings]
        return sorted(rated, key=lambda each: -each.strength) if _IDS.search(name) else rated
    if found.labels:
        return [replace(found, labels=(label,)) for label in found.labels]
    return [replace(found, text=part, title="", parts=(part,)) for part in found.parts]


def _string(schema: Mapping[str, Any], found: Found, name: str) -> str:
    if found.labels and not _EXPLAINS.search(name):
        text = found.labels[0]
    elif _TIMES.search(name) and found.time is not None:
        text = found.time.isoformat()
    elif _TITLES.search(name) and found.title:
        text = found.title
    else:
        text = found.text
    return text[: schema.get("maxLength")].ljust(schema.get("minLength", 0), ".")


def _number(schema: Mapping[str, Any], found: Found, name: str) -> float:
    """A rating scaled to the bounds (0 to 1 where there are none), the number in the chosen label, or else the least allowed."""
    least = schema.get("minimum", 0)
    rating = found.strength if found.rating is None and _RATES.search(name) else found.rating
    labels = found.labels or (found.rest if str(least) in found.rest else ())
    digits = re.search(r"-?\d+", labels[0]) if labels else None
    if rating is not None and not (digits and _IDS.search(name)):
        value: float = least + rating * (schema.get("maximum", least + 1) - least)
    else:
        value = float(digits.group()) if digits else least
    return float(min(max(value, least), schema.get("maximum", math.inf)))


# --- the engine -----------------------------------------------------------------------------------------------------


class ExtractiveLLM:
    """A model without a model: deterministic, offline, safe from several threads.

    Args:
        abstain_below: an answer whose sentence matches less than this (0 to 1) becomes "Not mentioned in the conversation".
    """

    def __init__(self, abstain_below: float = 0.0) -> None:
        self.abstain_below = abstain_below

    def submit(self, request: Request) -> Future[Completion]:
        """A completed future with the reply; it holds a `ModelError` for a kind of prompt that the engine does not know."""
        future: Future[Completion] = Future()
        if request.kind in _FINDERS:
            future.set_result(self._complete(request))
        else:
            future.set_exception(ModelError(f"the extractive engine knows no prompt of kind {request.kind!r}"))
        return future

    def _complete(self, request: Request) -> Completion:
        started = time.thread_time()
        found = self._weighed(request, _FINDERS[request.kind](request))
        text = _reply(request, found)
        tokens = count_tokens(text)
        certainty = math.log(0.02 + 0.96 * found.strength)
        return Completion(
            text,
            prompt_tokens=sum(_tokens(content) for _, content in request.messages),
            completion_tokens=tokens,
            seconds=time.thread_time() - started,
            logprobs=(certainty,) * tokens if request.logprobs else None,
            model="extractive",
            endpoint="offline",
        )

    def _weighed(self, request: Request, found: Found) -> Found:
        weak = request.kind == "answer" and found.text != UNKNOWN and found.strength < self.abstain_below
        return replace(found, text=ABSTENTION, parts=(ABSTENTION,), labels=(ABSTENTION,)) if weak else found


def _reply(request: Request, found: Found) -> str:
    found = replace(found, text=truncate(found.text, max(1, _budget(request))))
    if request.schema is not None:
        return json.dumps(form(request.schema, found), ensure_ascii=False)
    if labels := request.fields.get("labels"):
        return str(_labelled(labels, found))
    return found.text


def _tokens(content: str) -> int:
    """`count_tokens`, a line at a time, because most lines have been counted before; no token crosses such a line end."""
    *lines, last = _LINE_END.split(content)
    return sum(count_tokens(f"{line}\n") for line in lines) + count_tokens(last)
