"""The offline engine: replies to every kind of prompt deterministically, from the request's fields and without a model.

It lets every system run without an API key; its results are never compared with published ones. Its replies consist of text from the
prompt:
- an answer is the span that the question asks for, taken from the best-matching sentence; relative dates are resolved against the
  `[time] ` of the recalled item;
- a summary consists of central sentences, and facts are sentences;
- choices, ratings and boundaries come from word overlap;
- a judgement is right if the gold answer is contained in the answer, or else by word F1.
Words are stemmed and weighted by their rarity in the given text. Log-probabilities come from the strength of the match. A reply to a
JSON schema is built from the schema.

In addition to the fields of each kind, the engine reads `options` of an answer (multiple choice: it answers with the best label) and
`unanswerable` of a judgement (only an abstention is right). Of labels and enums that grade, it takes the first as the favourable one.
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
from typing import Any

import numpy as np

from memsys.dates import mentions, parse_time, written
from memsys.llm.offline.reading import (
    LINE,
    LONGEST,
    QUANTITY,
    UNKNOWN,
    Sentence,
    agreement,
    answer,
    content,
    content_words,
    read,
    sentences,
    similarities,
    stems,
)
from memsys.llm.protocol import Completion, ModelError, Option, Request, failed
from memsys.tokens import count_tokens, truncate


@dataclass(frozen=True, slots=True)
class Found:
    """The engine's result for a prompt, before it is put into the form that the prompt asks for."""

    text: str
    strength: float = 0.0
    """Strength of the match in [0, 1]; the log-probabilities are computed from it."""
    parts: tuple[str, ...] = ()
    """Texts for the elements of an array."""
    labels: tuple[str, ...] = ()
    """Chosen labels, best first."""
    prefers: tuple[str, ...] = ()
    """Labels to choose if the schema allows them; they are not used as text."""
    rest: tuple[str, ...] = ()
    """Labels that were not chosen, best first."""
    ratings: tuple[tuple[str, float], ...] = ()
    """A rating in [0, 1] for each label."""
    rating: float | None = None
    """In [0, 1]; None if the result has no rating, so that numbers get the least allowed value."""
    flag: bool | None = None
    """Value of a boolean; None if the result has none."""
    title: str = ""
    time: date | None = None


# The purpose of a property, by its name.
_EXPLAINS = re.compile(r"reason|justif|thought|explan|rationale|analysis|evidence|summary|description", re.IGNORECASE)
_TITLES = re.compile(r"title|name|headline", re.IGNORECASE)
_TIMES = re.compile(r"(?:^|_)(?:time|date|timestamp|at)$", re.IGNORECASE)
_RATES = re.compile(r"score|rating|relevance|importance|confidence|weight", re.IGNORECASE)
_IDS = re.compile(r"(?:^|_)(?:ids?|index|indices|ranking|labels?|numbers?)$", re.IGNORECASE)


def form(schema: Mapping[str, Any], found: Found, name: str = "") -> Any:
    """A value that satisfies a JSON schema, filled with the engine's result; `name` is the property that the value belongs to.

    Supports const, enum, anyOf/oneOf (the first), type, properties, items, prefixItems, minimum, maximum, minItems, maxItems, minLength
    and maxLength.

    Raises:
        ValueError: the schema has no supported type.
    """
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return labelled(schema["enum"], found)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return form(choices[0], found, name)
    kinds = schema.get("type", "object" if "properties" in schema else None)
    kind = next((each for each in kinds if each != "null"), "null") if isinstance(kinds, list) else kinds
    if kind == "object":
        properties = schema.get("properties", {})
        by_key, sides = dict.fromkeys(properties, found), {key.partition("_")[0]: key for key in properties}
        if {"source", "target"} <= sides.keys():  # a relation, whose ends are named `source`, `target_name` …
            by_key = dict.fromkeys(properties, replace(found, title=""))
            for side, end in zip(("source", "target"), _ends(found.text), strict=True):
                by_key[sides[side]] = replace(found, text=end, title="")
        return {key: form(part, by_key[key], key) for key, part in properties.items()}
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
    """The first and the last content word of a statement, taken as the two ends of a relation."""
    words = content_words(text) or [text]
    return words[0], words[-1]


def labelled(labels: Sequence[Any], found: Found) -> Any:
    """The first chosen label that is allowed; else a label by rating or flag (the first label is the favourable one); else a label that
    belongs to no option.
    """
    numbers = sorted(label for label in labels if isinstance(label, int | float) and not isinstance(label, bool))
    if found.rating is not None and (numbers or found.flag is None):
        return (numbers or labels)[round(found.rating * (len(numbers or labels) - 1))]
    by_name = {str(label): label for label in labels}
    if chosen := [by_name[label] for label in (*found.labels, *found.prefers) if label in by_name]:
        return chosen[0]
    if found.flag is not None:
        return labels[0] if found.flag else labels[-1]
    without_option = [label for label in labels if str(label) not in found.rest]
    return without_option[0] if without_option else by_name[found.rest[0]]


def _array(schema: Mapping[str, Any], found: Found, name: str) -> list[Any]:
    if len(tuple_items := schema.get("prefixItems", ())) == 3:  # a triplet: subject, relation, object
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
    """The results that an array's elements are filled from, one per rating, chosen label or part."""
    if found.ratings:
        rated = [Found(label, rating, labels=(label,), rating=rating) for label, rating in found.ratings]
        return sorted(rated, key=lambda element: -element.strength) if _IDS.search(name) else rated
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
    """A rating scaled to the schema's bounds (0 to 1 without bounds), else the number in the chosen label, else the least allowed."""
    least = schema.get("minimum", 0)
    rating = found.strength if found.rating is None and _RATES.search(name) else found.rating
    labels = found.labels or (found.rest if str(least) in found.rest else ())
    digits = re.search(r"-?\d+", labels[0]) if labels else None
    if rating is not None and not (digits and _IDS.search(name)):
        value: float = least + rating * (schema.get("maximum", least + 1) - least)
    else:
        value = float(digits.group()) if digits else least
    return float(min(max(value, least), schema.get("maximum", math.inf)))


ABSTENTION = "Not mentioned in the conversation"
SIMILAR = 0.15
"""Minimum cosine of word overlap with which an option is chosen."""
DROP = 0.5
"""A new message starts a new episode if its similarity is below this share of the history's usual similarity."""

_ABSTAINS = re.compile(
    r"not mentioned|no information|not in the conversation|not (?:enough|available|specified|provided|stated)|insufficient|"
    r"(?:cannot|can't|could not|couldn't) be (?:answered|determined)|(?:do not|don't) know|unanswerable",
    re.IGNORECASE,
)
_LINE_END = re.compile(r"\n(?=[^\s/])")


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
    logs = {count: math.log(count) for count in set(common.values())}
    weights = {each: logs[count] for each, count in common.items()}
    bags = [sentence.stems for sentence in shown]
    central = [math.fsum(map(weights.__getitem__, bag)) / math.sqrt(1 + len(bag)) for bag in bags]
    budget = _budget(request)
    chosen: list[int] = []
    for index in sorted(range(len(shown)), key=lambda index: (-central[index], index)):
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
    """The sentences as one text; a speaker and a time are written only where they change."""
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
    """A sentence with its speaker in front and, in parentheses, the dates it mentions or else the day it was said."""
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
    weight = 1 - math.exp(-(len(content(text)) + 3 * len(QUANTITY.findall(text))) / 30)
    return Found(str(1 + round(9 * weight)), weight, rating=weight)


def _keywords(request: Request) -> Found:
    found = tuple(content_words("\n".join(_texts(request.fields["text"])))[:5])
    return Found(", ".join(found) or UNKNOWN, 0.5, parts=found)


def _bounded(request: Request) -> Found:
    history = [line for text in _texts(request.fields["history"]) for line in text.split("\n") if line.strip()][-12:]
    messages = [*history, str(request.fields["new"])]
    # Each message's greatest similarity to one of the six before it; the last is compared with the mean of the others.
    closest = [
        float(similarities(messages[place], messages[max(0, place - 6) : place]).max())
        for place in range(1, len(messages))
    ]
    usual = float(np.mean(closest[:-1])) if len(closest) > 1 else 0.0
    ends = bool(closest) and closest[-1] < DROP * usual
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
    """Tokens for each string of the reply; the schema's field names take one share."""
    return request.max_tokens if request.schema is None else request.max_tokens // (1 + _strings(request.schema))


def _strings(schema: Mapping[str, Any]) -> int:
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return sum(map(_strings, inner)) + (schema.get("type") == "string")


def _texts(value: object) -> list[str]:
    """The non-blank texts of a field: of a string, of an option, or of a sequence of them."""
    if isinstance(value, Option):
        value = value.text
    if isinstance(value, str):
        return [value] if value.strip() else []
    parts = value if isinstance(value, Iterable) else ()
    texts = (part if isinstance(part, str) else part.text if isinstance(part, Option) else str(part) for part in parts)
    return [text for text in texts if text.strip()]


def _best_option(question: str, options: Sequence[Option], texts: Sequence[str]) -> tuple[str, float]:
    """The label of the option with the best support: the sentence that matches the option, and the question, most. And its strength."""
    context = read(tuple(texts))
    if not context.sentences:
        return UNKNOWN, 0.0
    near = context.match(stems(question))
    support = [float(np.max(context.match(stems(option.text)) + LINE * near)) for option in options]
    best = int(np.argmax(support))
    return options[best].label, min(1.0, support[best])


@dataclass(frozen=True, eq=False)
class ExtractiveLLM:
    """The offline engine as an `LLM`: deterministic and thread-safe."""

    abstain_below: float = 0.0
    """An answer becomes "Not mentioned in the conversation" if its sentence matches less than this (0 to 1)."""

    def submit(self, request: Request) -> Future[Completion]:
        """A completed future with the reply, or with a `ModelError` for an unknown kind of prompt."""
        if request.kind not in _FINDERS:
            return failed(ModelError(f"the extractive engine knows no prompt of kind {request.kind!r}"))
        started = time.thread_time()
        try:
            text, strength = self._reply(request)
        except KeyError as missing:
            kind = f"a prompt of kind {request.kind!r}"
            return failed(ModelError(f"the extractive engine needs the field {missing} of {kind}"))
        tokens = count_tokens(text)
        certainty = math.log(0.02 + 0.96 * strength)
        completion = Completion(
            text,
            prompt_tokens=sum(_tokens(content) for _, content in request.messages),
            completion_tokens=tokens,
            seconds=time.thread_time() - started,
            logprobs=(certainty,) * tokens if request.logprobs else None,
            model="extractive",
            endpoint="offline",
        )
        future: Future[Completion] = Future()
        future.set_result(completion)
        return future

    def _reply(self, request: Request) -> tuple[str, float]:
        """The text of the reply in the form that the request asks for, and the strength of its match, 0 to 1."""
        found = _FINDERS[request.kind](request)
        if request.kind == "answer" and found.text != UNKNOWN and found.strength < self.abstain_below:
            found = replace(found, text=ABSTENTION, parts=(ABSTENTION,), labels=(ABSTENTION,))
        found = replace(found, text=truncate(found.text, max(1, _budget(request))))
        if request.schema is not None:
            return json.dumps(form(request.schema, found), ensure_ascii=False), found.strength
        labels = request.fields.get("labels")
        return str(labelled(labels, found)) if labels else found.text, found.strength


def _tokens(content: str) -> int:
    """`count_tokens` line by line, because most lines were counted before (and cached); no token spans such a line end."""
    *lines, last = _LINE_END.split(content)
    return sum(count_tokens(f"{line}\n") for line in lines) + count_tokens(last)
