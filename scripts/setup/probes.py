"""Abilities of an endpoint, from a few small calls: each probe tests one ability and explains the result.

A probe takes the settings known so far and returns better ones. `stop` marks findings that make every run with these settings fail
or give wrong results; other findings are notable.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

import numpy as np

from memsys.llm.client import chat_body
from memsys.llm.gateway.accounts import text_of
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import Request
from memsys.tokens import count_tokens
from memsys.vectors import normalised
from scripts.setup.causes import remedy
from scripts.setup.probe_calls import EndpointProbe, ProbeReply

Level = Literal["ok", "note", "stop"]
OTHER_LIMIT = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"type": "string", "enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "enum": [1, 2, 3]},
    },
    "required": ["colour", "count"],
    "additionalProperties": False,
}
SWITCHES: tuple[dict[str, Any], ...] = (
    {"reasoning_effort": "none"},
    {"reasoning_effort": "minimal"},
    {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    {"extra_body": {"enable_thinking": False}},
    {"extra_body": {"think": False}},
)
"""Ways to switch reasoning off on different servers: OpenAI's two, vLLM's and llama.cpp's, DashScope's, Ollama's."""
CODE_WORD = "amber falcon"
SHORTEST = 1000
"""Tokens of the first prompt in the search for the window; each further prompt has twice as many."""
AT_ONCE = (4, 16)
READ_LOG = "read the server's log"
"""The remedy for an error of no known kind."""


MARKS = {"ok": " ", "note": "·", "stop": "!"}
WIDTHS = (18, 46, 52)
"""Maximum widths of the three columns in characters; `MARGIN` is for the mark and the separators."""
MARGIN = 6


@dataclass(frozen=True, slots=True)
class Checked:
    """One line of the doctor's table."""

    asked: str
    found: str
    means: str
    level: Level = "ok"


@dataclass(frozen=True, slots=True)
class Examination:
    """Findings about one model at one endpoint."""

    settings: ModelSettings
    """The settings that fit."""
    findings: tuple[Checked, ...]
    in_flight: int | None = None
    """Number of calls that it accepts at once; None if no limit was observed."""

    @property
    def stops(self) -> list[Checked]:
        return [one for one in self.findings if one.level == "stop"]


def ask(line: EndpointProbe, settings: ModelSettings, text: str, limit: int = 32, **request: Any) -> ProbeReply:
    """Send one question with the request body of a run."""
    asked = Request((("user", text),), "doctor.check", max_tokens=limit, **request)
    return line.chat(chat_body(settings, asked))


def examine(line: EndpointProbe, settings: ModelSettings, *, window: int, brief: bool = False) -> Examination:
    """Run all probes of a chat model, the longest prompt of about `window` tokens; only the first if the endpoint does not answer.

    Args:
        brief: only probes for findings that make a run fail or give wrong results, in fewer than 15 calls: two lengths of prompt, no
            probes of a wrong key, speed or load.
    """
    settings, findings, first = reached(line, settings)
    if not first.ok:
        return Examination(settings, tuple(findings))
    if not brief:
        findings.append(key_checked(line, settings))
    probes: tuple[Callable[[EndpointProbe, ModelSettings], tuple[ModelSettings, Checked]], ...] = (
        thinking, token_limit, temperature, json_output, log_probabilities,
    )  # fmt: skip
    for probe in probes:
        settings, finding = probe(line, settings)
        if finding.asked not in {one.asked for one in findings}:  # the first probe detects a refused temperature
            findings.append(finding)
    if (silent := textless(line, settings, first)) is not None:
        findings.append(silent)
    settings, found, replies = longest_prompt(line, settings, window, growth=window // SHORTEST if brief else 2)
    findings += [found, *reported(first, replies)]
    if brief:
        return Examination(settings, tuple(findings))
    findings.append(speed(line, settings))
    in_flight, at_once = taken_at_once(line, settings)
    return Examination(settings, (*findings, at_once), in_flight)


def reached(line: EndpointProbe, settings: ModelSettings) -> tuple[ModelSettings, list[Checked], ProbeReply]:
    """Test whether it answers at all; a refused token limit field or temperature is left out until it does."""
    other = {"token_limit_field": OTHER_LIMIT[settings.token_limit_field]}
    tries: tuple[dict[str, Any], ...] = ({}, {"send_temperature": False}, other, {**other, "send_temperature": False})
    refused = ""
    for changes in tries:
        chosen = replace(settings, **changes)
        for _ in range(3):  # a busy or starting server
            heard = ask(line, chosen, "Reply with the word ready.")
            if not heard.busy:
                break
        if heard.ok:
            found = [Checked("endpoint", f"answers as {heard.value.get('model', settings.model)}", "it is there")]
            return chosen, [*found, *_mended(settings, chosen, refused)], heard
        refused = heard.error
        if heard.status not in (400, 422):
            break
    return settings, [Checked("endpoint", _brief(refused), remedy(refused, READ_LOG), "stop")], heard


def _mended(before: ModelSettings, after: ModelSettings, refused: str) -> Iterator[Checked]:
    if before.token_limit_field != after.token_limit_field:
        found = f"{before.token_limit_field} is refused, {after.token_limit_field} taken"
        yield Checked("token limit field", found, f"token_limit_field: {after.token_limit_field}", "stop")
    if before.send_temperature != after.send_temperature:
        yield Checked("temperature", f"refused: {_brief(refused)}", "send_temperature: false", "stop")


def key_checked(line: EndpointProbe, settings: ModelSettings) -> Checked:
    """Test whether another key is refused."""
    with EndpointProbe(line.base_url, line.key_env, key="not-a-key", settings=settings) as stranger:
        heard = ask(stranger, settings, "Reply with the word ready.")
    line.calls += 1
    if heard.status in (401, 403):
        return Checked("key", f"taken from {line.key_env}; a wrong one is refused", "the key works")
    if heard.ok:
        own = f"{line.key_env} is sent all the same" if line.has_key else "no key is needed"
        return Checked("key", "any is taken", own, "note" if line.has_key else "ok")
    return Checked("key", f"a wrong one: {_brief(heard.error)}", "not clear whether it is looked at", "note")


def thinking(line: EndpointProbe, settings: ModelSettings) -> tuple[ModelSettings, Checked]:
    """Test whether the model reasons before it answers, and which switch turns that off."""
    heard = ask(line, settings, "What is 17 plus 25? Reply with the number alone.", 400)
    if not (thought := _thought(heard)):
        return settings, Checked("thinking", "none seen", "replies are answers")
    for switch in SWITCHES:
        chosen = replace(settings, **switch)
        again = ask(line, chosen, "What is 17 plus 25? Reply with the number alone.", 400)
        if again.ok and not _thought(again):
            stopped = f"{thought}; stopped by {', '.join(f'{name}: {value}' for name, value in switch.items())}"
            return chosen, Checked("thinking", stopped, "set so in the file", "note")
    found = f"{thought}; no switch stops it"
    return settings, Checked("thinking", found, "each call pays for thought, and a low limit cuts it off", "note")


def _thought(heard: ProbeReply) -> str:
    """The place of reasoning in a reply; empty if there is none."""
    if any(heard.message.get(name) for name in ("reasoning", "reasoning_content")):
        return "in a field of its own"
    if re.search(r"<think|<\|channel\|>", heard.text):
        return "in the text"
    return f"{heard.usage.reasoning} tokens, hidden" if heard.usage.reasoning else ""


def textless(line: EndpointProbe, settings: ModelSettings, first: ProbeReply) -> Checked | None:
    """The finding that replies hold no text, so that every answer of a run would be empty; None if one of three replies has text."""
    heard, questions = first, ["Write one short sentence about the sea.", "Reply with the word ready."]
    while _silent(heard):
        if not questions:
            calls = "calls of tools, and no text" if heard.message.get("tool_calls") else "no text in the replies"
            return Checked("text", calls, "every answer would be empty: serve another model", "stop")
        heard = ask(line, settings, questions.pop(), 400)
    return None


def _silent(heard: ProbeReply) -> bool:
    """Whether a reply ended and holds neither text nor reasoning."""
    content = heard.message.get("content")
    said = text_of(content).strip() if isinstance(content, str | list) else content
    return heard.ok and said in (None, "") and not _thought(heard)


def token_limit(line: EndpointProbe, settings: ModelSettings) -> tuple[ModelSettings, Checked]:
    """Test whether replies end at the limit; a reply that ends by itself before the limit is inconclusive."""
    said, cut = _said_at_limit(line, settings)
    if said is not None and said <= 12:
        if not cut and said < 6:
            found = f"not known: the reply had {said} tokens where 8 were allowed"
            return settings, Checked("token limit", found, "replies may be of any length, and cost as much", "note")
        found = f"{settings.token_limit_field} is kept"
        return settings, Checked("token limit", found, "replies end where they should")
    other = replace(settings, token_limit_field=OTHER_LIMIT[settings.token_limit_field])
    again, cut = _said_at_limit(line, other)
    if again is not None and (6 <= again <= 12 or (cut and again <= 12)):
        found = f"{settings.token_limit_field} is ignored, {other.token_limit_field} kept"
        return other, Checked("token limit", found, f"token_limit_field: {other.token_limit_field}", "stop")
    found = "no reply" if said is None else f"ignored: {said} tokens where 8 were allowed"
    return settings, Checked("token limit", found, "replies may be of any length, and cost as much", "note")


def _said_at_limit(line: EndpointProbe, settings: ModelSettings) -> tuple[int | None, bool]:
    """Tokens of a long reply under a limit of 8, and whether the server reports that it was cut; None without a reply."""
    heard = ask(line, settings, "Count from 1 to 60, in figures, with spaces between them.", 8)
    if not heard.ok:
        return None, False
    said = heard.usage.completion or count_tokens(heard.text, settings.encoding)
    return said, heard.finish_reason == "length"


def temperature(line: EndpointProbe, settings: ModelSettings) -> tuple[ModelSettings, Checked]:
    """Test whether temperature 0 gives the same reply twice and 1 does not."""
    if not settings.send_temperature:
        return settings, Checked("temperature", "not sent", "replies vary as the server decides", "note")
    text = "Write down one random number between 1 and 1000000."
    cold = {ask(line, settings, text, temperature=0.0).text for _ in range(2)}
    body = chat_body(settings, Request((("user", text),), "doctor.check", max_tokens=32, temperature=1.0))
    warm = line.together("/chat/completions", [{**body, "seed": seed} for seed in (1, 2, 3)])
    if any(one.status in (400, 422) for one in warm):  # not every server accepts a seed
        warm = line.together("/chat/completions", [body] * 3)
    if all(one.status in (400, 422) for one in warm):
        return replace(settings, send_temperature=False), Checked(
            "temperature", f"1 is refused: {_brief(warm[0].error)}", "send_temperature: false", "stop"
        )
    said = {one.text for one in warm if one.ok}
    if len(said) <= 1:
        return settings, Checked(
            "temperature",
            "ignored: the same reply at 1, with three seeds",
            "repeats and replicates will not differ",
            "note",
        )
    if len(cold) > 1:
        found = "replies differ at 0 already"
        return settings, Checked("temperature", found, "a second run without the cache gives other answers", "note")
    return settings, Checked("temperature", "honoured", "0 repeats itself, 1 does not")


def json_output(line: EndpointProbe, settings: ModelSettings) -> tuple[ModelSettings, Checked]:
    """The strictest working way to get JSON: an enforced schema, any object, or a request in words."""
    text = "Greet me in one short sentence, as JSON."
    strict = ask(line, replace(settings, json_output="schema"), text, 100, schema=SCHEMA)
    if strict.ok and _fits(strict.text):
        return replace(settings, json_output="schema"), Checked("JSON", "a schema is enforced", "json_output: schema")
    schema = "ignored" if strict.ok else f"refused ({_brief(strict.error)})"
    loose = ask(line, replace(settings, json_output="object"), text, 100, schema=SCHEMA)
    kind = "object" if loose.ok and _object(loose.text) is not None else "none"
    rest = "an object is given" if kind == "object" else ("an object is " + ("not given" if loose.ok else "refused"))
    fails = (settings.json_output == "schema" and not strict.ok) or (settings.json_output == "object" and not loose.ok)
    finding = Checked("JSON", f"a schema is {schema}; {rest}", f"json_output: {kind}", "stop" if fails else "note")
    return replace(settings, json_output=kind), finding


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text.rpartition("</think>")[2])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _fits(text: str) -> bool:
    from jsonschema_rs import Draft202012Validator

    found = _object(text)
    return found is not None and Draft202012Validator(SCHEMA).is_valid(found)


def log_probabilities(line: EndpointProbe, settings: ModelSettings) -> tuple[ModelSettings, Checked]:
    """Test whether each token comes with its log-probability."""
    heard = ask(line, settings, "Reply with the word ready.", 8, logprobs=True)
    content = (heard.value["choices"][0].get("logprobs") or {}).get("content") or [] if heard.ok else []
    if content and all(isinstance(token.get("logprob"), int | float) for token in content):
        return replace(settings, logprobs=True), Checked(
            "log-probabilities", "given", "xMemory can probe with this model"
        )
    found = "left out" if heard.ok else f"refused ({_brief(heard.error)})"
    means = "logprobs: false; xMemory is refused with this model as its probe"
    return replace(settings, logprobs=False), Checked("log-probabilities", found, means, "note")


def needle(tokens: int, encoding: str) -> str:
    """A prompt of about `tokens` tokens; its first sentence answers the question in its last."""
    lines = [f"The code word is {CODE_WORD}. Keep it in mind."]
    size = count_tokens("Line 1000 of the log: nothing happened on this day.\n", encoding)
    lines += [
        f"Line {number} of the log: nothing happened on this day." for number in range(1000, 1000 + tokens // size)
    ]
    return "\n".join([*lines, "What is the code word given at the beginning? Reply with it alone."])


def longest_prompt(
    line: EndpointProbe, settings: ModelSettings, most: int, growth: int = 2
) -> tuple[ModelSettings, Checked, list[ProbeReply]]:
    """Find the length of prompt that is refused, or silently truncated; each prompt is `growth` times as long as the one before."""
    replies: list[ProbeReply] = []
    rate, remembered, tokens = 0.0, False, SHORTEST
    while tokens <= most:
        prompt = needle(tokens, settings.encoding)
        ours = count_tokens(prompt, settings.encoding)
        heard = ask(line, settings, prompt)
        if not heard.ok:
            return (*_refused(settings, heard, replies), replies)
        theirs, recalled = heard.usage.prompt or 0, CODE_WORD in heard.text.lower()
        rate = rate or theirs / ours
        # Relative to the first prompt's rate, so that another tokenizer is not mistaken for a truncation.
        if theirs < 0.75 * rate * ours or (not theirs and remembered and not recalled):
            return (*_cut(settings, ours, theirs), [*replies, heard])
        remembered = remembered or recalled
        replies.append(heard)
        tokens *= growth
    reach = f"at least {replies[-1].usage.prompt or tokens // growth} tokens"
    if not rate and not remembered:
        return (
            settings,
            Checked(
                "window", f"{reach} are accepted, not seen whether they are read", "no usage to compare with", "note"
            ),
            replies,
        )
    told = "and the beginning is recalled" if CODE_WORD in replies[-1].text.lower() else "the beginning is not recalled"
    return settings, Checked("window", f"{reach}, {told}", "no prompt was cut; --window=… looks further"), replies


def _refused(
    settings: ModelSettings, heard: ProbeReply, replies: Sequence[ProbeReply]
) -> tuple[ModelSettings, Checked]:
    if heard.status not in (400, 413, 422, 500):
        found = f"not determined: {_brief(heard.error)}"
        return settings, Checked("window", found, remedy(heard.error, READ_LOG), "note")
    stated = re.search(r"(?:n_ctx|context (?:length|window|size)|max_model_len)\D{0,30}?(\d{3,7})", heard.error)
    taken = max((one.usage.prompt or 0 for one in replies), default=0)
    limit = int(stated[1]) if stated else taken
    means = "longer prompts fail, and say so"
    found = f"{limit} tokens; longer ones are refused" if stated else f"{_brief(heard.error)} above {limit} tokens"
    return replace(settings, context_tokens=limit or None), Checked("window", found, means)


def _cut(settings: ModelSettings, ours: int, theirs: int) -> tuple[ModelSettings, Checked]:
    found = f"the server cuts prompts without an error: {theirs or 'fewer'} of about {ours} tokens were read"
    means = "every memory would look alike: serve a longer window (Ollama: OLLAMA_CONTEXT_LENGTH or num_ctx)"
    return replace(settings, context_tokens=theirs or None), Checked("window", found, means, "stop")


def reported(first: ProbeReply, replies: Sequence[ProbeReply]) -> list[Checked]:
    """Test whether replies report their token usage, and the tokens from the server's own cache."""
    if not first.usage.prompt or not first.usage.completion:
        means = "costs are unknown, a cut prompt cannot be noticed, and max_usd assumes the worst"
        return [Checked("usage", "not reported", means, "note")]
    cached = max((one.usage.cached or 0 for one in replies), default=0)
    said = f"{cached} tokens of a repeated beginning" if cached else "none reported"
    price = "the cached price applies" if cached else "each token is counted in full"
    return [Checked("usage", "reported", "costs are known"), Checked("cached tokens", said, price)]


def speed(line: EndpointProbe, settings: ModelSettings) -> Checked:
    """Measure the seconds of a short reply, and the tokens per second of a longer reply."""
    short = [ask(line, settings, f"Reply with the number {number}.", 4) for number in range(3)]
    long = ask(line, settings, "Count from 1 to 60, in figures, with spaces between them.", 128)
    latency = median(one.seconds for one in short)
    said = long.usage.completion or count_tokens(long.text, settings.encoding)
    if not long.ok or not long.seconds or not said:
        found = f"{latency:.2f} s to a short reply, no tokens to count"
        return Checked("speed", found, "how long a run takes is not known", "note")
    rate = said / long.seconds
    found = f"{latency:.2f} s to a short reply, {rate:.0f} tokens/s"
    seconds = 1000 * (latency + 50 / rate)
    takes = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s"
    return Checked("speed", found, f"1,000 answers of 50 tokens one by one: {takes}")


def taken_at_once(line: EndpointProbe, settings: ModelSettings) -> tuple[int | None, Checked]:
    """Measure the number of calls that it accepts at once, and the speed-up."""
    best, rates = 0, []
    for count in AT_ONCE:
        bodies = [
            chat_body(
                settings, Request((("user", f"Reply with the number {count + number}."),), "doctor.check", max_tokens=4)
            )
            for number in range(count)
        ]
        heard = line.together("/chat/completions", bodies)
        done = [one for one in heard if one.ok]
        if len(done) < count:
            fewer = max(best, len(done), 1)
            why = _brief(next(one.error for one in heard if not one.ok))
            found = f"{len(done)} of {count} were answered; the others: {why}"
            return fewer, Checked("calls at once", found, f"in_flight: {fewer}", "note")
        best = count
        rates.append(count / max(one.seconds for one in heard))
    return pace(*rates)


def pace(few: float, many: float) -> tuple[int | None, Checked]:
    """Explain the answers per second: `few` with the first count of `AT_ONCE`, `many` with the last."""
    found = f"{AT_ONCE[-1]} were answered ({many:.1f} a second; {few:.1f} with {AT_ONCE[0]})"
    if many < 0.7 * few:
        advice = f"more are slower, not faster: in_flight: {AT_ONCE[0]}"
        return AT_ONCE[0], Checked("calls at once", found, advice, "note")
    return None, Checked("calls at once", found, "endpoint.in_flight may stay")


def _brief(error: str) -> str:
    """The end of an error message: the server's text, without the URL."""
    said = re.search(r'"message"\s*:\s*"([^"]*)"', error)
    status = re.search(r"HTTP \d{3}", error)
    text = said[1] if said else error.partition(": ")[2] or error
    return f"{status[0] + ': ' if status and said else ''}{' '.join(text.split())}"[:150]


TEXTS = (
    "The cat sleeps on the warm roof.",
    "Interest rates rose again in October.",
    "He repaired the engine of the old boat.",
    "She plays the violin every evening.",
)
SAME = 0.98
"""Minimum cosine of two vectors of the same text: a batch is padded, and rounding differs."""

SMALL = 256
"""Minimum dimension of a current embedding model's vectors."""


def examine_embedder(line: EndpointProbe, settings: ModelSettings) -> tuple[Checked, ...]:
    """Run all probes of an embedding model; one line if it does not answer."""
    batch = line.embed(_body(settings, list(TEXTS)))
    if not batch.ok:
        return (Checked("embeddings", batch.error[:150], remedy(batch.error, READ_LOG), "stop"),)
    rows = _rows(batch)
    if isinstance(rows, str):
        return (Checked("embeddings", rows, "such vectors cannot be used", "stop"),)
    ordered, as_sent = rows
    single = [_rows(line.embed(_body(settings, [text]))) for text in TEXTS]
    alone = [one[0][0] for one in single if not isinstance(one, str)]
    size = ordered.shape[1]
    sized = Checked("embedding size", f"{size} numbers", "compare it with the model's")
    if size < SMALL:
        sized = Checked("embedding size", f"{size} numbers", "SMALL: is this the model you mean, uncut?", "note")
    if len(alone) < len(TEXTS) or any(len(one) != size for one in alone):
        return sized, Checked("embedding order", "single texts come in another form than batches", "not usable", "stop")
    usage = Checked("embedding usage", "reported", "costs are known")
    if not batch.usage.prompt:
        usage = Checked("embedding usage", "not reported", "tokens are counted here", "note")
    return sized, _order(ordered, as_sent, np.stack(alone)), usage


def _body(settings: ModelSettings, texts: list[str]) -> dict[str, Any]:
    return {"model": settings.model, "input": texts, **settings.extra_body}


def _rows(heard: ProbeReply) -> tuple[np.ndarray, np.ndarray] | str:
    """The vectors of a reply, unit length, in the client's order and in that of the reply; or the reason why there are none."""
    data = heard.value.get("data")
    if not isinstance(data, list) or not all(isinstance(row, Mapping) for row in data):
        return heard.error[:150] or "the reply holds no list of vectors"
    vectors = [row.get("embedding") for row in data]
    if len({len(one) if isinstance(one, list) else 0 for one in vectors}) != 1 or not vectors[0]:
        return "vectors of several sizes, or none"
    places = [row.get("index") for row in data]
    if sorted(places, key=str) != sorted(range(len(data)), key=str):
        return f"the field index is {places}, not 0 to {len(data) - 1}"
    try:
        matrix = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError):
        return "vectors that hold something other than numbers"
    if not np.isfinite(matrix).all():
        return "vectors that hold NaN or infinity"
    matrix = normalised(matrix)
    return matrix[np.argsort(places)], matrix


def _order(ordered: np.ndarray, as_sent: np.ndarray, alone: np.ndarray) -> Checked:
    if _same(ordered, alone):
        return Checked("embedding order", "each text gets its own vector, alone and in a batch", "batches can be used")
    if _same(as_sent, alone):
        found = "the field index contradicts the order of the reply"
        return Checked("embedding order", found, "texts would get each other's vectors: mend the server", "stop")
    nearest = [int(place) for place in (ordered @ alone.T).argmax(axis=1)]
    if sorted(nearest) == list(range(len(nearest))) and nearest != sorted(nearest):
        found = f"WRONG ORDER: the vectors of a batch of {len(nearest)} come as {nearest}"
        return Checked("embedding order", found, "texts would get each other's vectors: mend the server", "stop")
    means = "results depend on the batches; with batch: 1 in conf/embedder they do not"
    return Checked("embedding order", "a text in a batch gets another vector than alone", means, "note")


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return bool(((first * second).sum(axis=1) >= SAME).all())


def table(findings: Sequence[Checked], width: int | None = None) -> str:
    """Question, finding and meaning; `!` marks findings that make runs fail or give wrong results, `·` other notable findings.

    Args:
        width: characters of a line; None takes those of the terminal, at least 80.
    """
    room = min(sum(WIDTHS), max(80, width or shutil.get_terminal_size((122, 25)).columns) - MARGIN)
    share = (room - WIDTHS[0]) / sum(WIDTHS[1:])
    widths = (WIDTHS[0], int(WIDTHS[1] * share), int(WIDTHS[2] * share))
    rows = [("asked", "found", "means", " ")]
    rows += [(one.asked, one.found, one.means, MARKS[one.level]) for one in findings]
    lines = []
    for asked, found, means, mark in rows:
        columns = [
            textwrap.wrap(text, width) or [""] for text, width in zip((asked, found, means), widths, strict=True)
        ]
        for place in range(max(map(len, columns))):
            parts = [column[place] if place < len(column) else "" for column in columns]
            cells = "  ".join(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True))
            lines.append(f"{mark if not place else ' '} {cells}".rstrip())
    return "\n".join([lines[0], "-" * (sum(widths) + MARGIN), *lines[1:]])
