"""Turns a server's raw chat completion into a `Completion`: separates the reasoning from the answer and says why the reply ended.

Servers return reasoning inside tags (sometimes unclosed, or without the opening tag, which is then part of the server's template), in
separate fields, in content parts, or in the channels of the harmony format. All reasoning goes into `Completion.reasoning`, so that
parsers, judges and scorers see the answer alone. `Completion.stopped` then has one of these values:

| stopped        | when                                             | as an answer      | as a verdict            | in a memory            |
|----------------|--------------------------------------------------|-------------------|-------------------------|------------------------|
| (empty)        | the model ended by itself                        | answered          | read                    | parsed                 |
| cut            | the token limit was reached inside the answer    | answered, flagged | read if complete        | prose kept; else fails |
| cut in thought | the token limit was reached before the answer    | error             | unscored                | parse failure          |
| refused        | a content filter or the model refused            | error             | unscored                | parse failure          |
| empty          | the model ended without an answer                | error             | unscored                | parse failure          |
| tool call only | the model called a tool, though none was offered | error             | unscored                | parse failure          |

A reply without an answer is never answered from the cache, except in a replay: an errored question is asked again by the next run.
The notes of the effort lines count each value by purpose. `POLICY` is part of the identity of a run and of a judge.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memsys.llm.protocol import Completion, PromptTruncated, Request, Stopped
from memsys.tokens import count_tokens

POLICY: Mapping[str, str] = {
    "reasoning": "taken out before any parse, answer or verdict",
    "cut answer": "kept and counted",
    "cut verdict": "counts if it stands complete before the cut",
    "cut list": "parse failure, unless the prompt says `cut: keep`",
    "no answer": "error; as a verdict unscored",
}
"""The treatment of incomplete replies; written to `run.json` and next to each judge's scores."""

_OPEN = r"<(?:seed:)?(?:think|thinking|thought)>|\[THINK\]|◁think▷|<\|begin_of_thought\|>|<\|START_THINKING\|>"
_CLOSE = r"</(?:seed:)?(?:think|thinking|thought)>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>|<\|END_THINKING\|>"
_TAG = re.compile(rf"{_OPEN}|{_CLOSE}", re.IGNORECASE)
_LEADING = re.compile(rf"\s*(?:{_OPEN})(.*?)(?:{_CLOSE})", re.DOTALL | re.IGNORECASE)
_CLOSING = re.compile(_CLOSE, re.IGNORECASE)
_UNCLOSED = re.compile(rf"^[ \t]*(?:{_OPEN})(.*)\Z", re.DOTALL | re.IGNORECASE | re.MULTILINE)
_LONE_CLOSE = re.compile(rf"\A(.*)(?:{_CLOSE})", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```\w*+(.*)```", re.DOTALL)
_CHANNEL = re.compile(
    r"\s*(\w++)(.*?)<\|message\|>(.*?)(?=<\|end\|>|<\|return\|>|<\|call\|>|<\|start\|>|\Z)",
    re.DOTALL,
)
"""Text between two `<|channel|>`; possessive, so that a word without end is not tried at each of its lengths."""
_BARE_CHANNELS = re.compile(r"\Aanalysis(?=[A-Z])(.*?)(?:assistantfinal(.*))?\Z", re.DOTALL)

_LIMITS = frozenset({"length", "max_tokens", "model_length"})
_FILTERS = frozenset({"content_filter", "safety", "refusal", "recitation", "prohibited_content", "blocklist"})
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Spoken:
    """A model's text, separated into answer and reasoning."""

    answer: str
    reasoning: str = ""
    thinking: bool = False
    """Whether the text ends inside the reasoning."""
    calling: bool = False
    """Whether the text calls a tool."""


def without_reasoning(text: str) -> Spoken:
    """Separate a text into answer and reasoning. A text without reasoning stays unchanged, so the function is idempotent.

    Tags inside JSON are data. In prose, reasoning is: the text between a pair of tags; the text after an unclosed opening tag at the
    beginning of a line; and all text before a closing tag without an opening one, because some servers put that into the prompt.
    """
    if "<|channel|>" in text or _BARE_CHANNELS.match(text):
        return _harmony(text)
    if _TAG.search(text) is None:
        return Spoken(text)
    thoughts: list[str] = []
    begin = 0
    while (leading := _LEADING.match(text, begin)) is not None:
        thoughts.append(leading[1])
        begin = leading.end()
    text = text[begin:]
    thinking = False
    if not _is_json(text):
        text, closed = _without_blocks(text)
        thoughts += closed
        if (lone := _LONE_CLOSE.match(text)) is not None:
            thoughts.append(lone[1])
            text = text[lone.end() :]
        if (unclosed := _UNCLOSED.search(text)) is not None:
            thoughts.append(unclosed[1])
            text, thinking = text[: unclosed.start()], True
    return Spoken(text.strip(), _joined(thoughts), thinking)


def _without_blocks(text: str) -> tuple[str, list[str]]:
    """A text without its closed pairs of tags, and the text inside them.

    It makes one pass over the tags: a pattern for the pair would search to the end for a partner of each tag, which takes minutes when a
    model repeats a tag.
    """
    kept: list[str] = []
    thoughts: list[str] = []
    begin, opening = 0, None
    for tag in _TAG.finditer(text):
        if _CLOSING.fullmatch(tag[0]) is None:
            opening = opening or tag
        elif opening is not None:
            kept.append(text[begin : opening.start()])
            thoughts.append(text[opening.end() : tag.start()])
            begin, opening = tag.end(), None
    return "".join((*kept, text[begin:])), thoughts


def _harmony(text: str) -> Spoken:
    """The harmony format: channel `final` is the answer, `analysis` and `commentary` are reasoning; also without special tokens."""
    if (bare := _BARE_CHANNELS.match(text)) is not None:
        return Spoken((bare[2] or "").strip(), bare[1].strip(), thinking=bare[2] is None)
    found = [match for part in text.split("<|channel|>")[1:] if (match := _CHANNEL.match(part)) is not None]
    channels = [(match[1], match[3]) for match in found]
    calling = any(" to=" in match[2] for match in found)
    answer = "\n".join(body for channel, body in channels if channel == "final")
    thoughts = _joined(body for channel, body in channels if channel != "final")
    ended = text.rstrip().endswith(("<|end|>", "<|return|>", "<|call|>"))
    return Spoken(answer.strip(), thoughts, thinking=not answer.strip() and not ended, calling=calling)


def _is_json(text: str) -> bool:
    body = fenced[1].strip() if (fenced := _FENCE.fullmatch(text.strip())) else text.strip()
    try:
        return body.startswith(("{", "[")) and json.loads(body) is not None
    except (ValueError, RecursionError):
        return False


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(text.strip() for text in texts if text.strip())


def why_none(reply: Completion) -> str:
    """The reason why a reply has no answer, as predictions and scores show it."""
    advice = (
        "; give it more room with thought_tokens in the model's file of conf/llm" if "thought" in reply.stopped else ""
    )
    return f"the reply was {reply.stopped or 'empty'} ({reply.finish_reason or 'no finish reason'}){advice}"


def cleaned(completion: Completion) -> Completion:
    """The completion with separated reasoning, `stopped` set and the whole prompt counted, also if an older version stored it otherwise.

    Idempotent. Raises TypeError for token counts that are no numbers.
    """
    spoken = without_reasoning(completion.text)
    reasoning = _joined((completion.reasoning, spoken.reasoning))
    stopped = completion.stopped or _stopped(completion.finish_reason, spoken)
    prompt = whole_prompt(completion.prompt_tokens, completion.cached_prompt_tokens)
    completion = completion if prompt == completion.prompt_tokens else replace(completion, prompt_tokens=prompt)
    if (spoken.answer, reasoning, stopped) == (completion.text, completion.reasoning, completion.stopped):
        return completion
    tokens = completion.reasoning_tokens or (count_tokens(reasoning) if reasoning else 0)
    return replace(completion, text=spoken.answer, reasoning=reasoning, stopped=stopped, reasoning_tokens=tokens)


def _stopped(reason: str, spoken: Spoken, *, calling: bool = False) -> Stopped:
    reason = reason.lower()
    if reason in _FILTERS:
        return "refused"
    if spoken.answer.strip():
        return "cut" if reason in _LIMITS or spoken.thinking else ""
    if reason in _LIMITS or spoken.thinking:
        return "cut in thought"
    return "tool call only" if calling or spoken.calling else "empty"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a reply; None for a count that is missing or malformed."""

    prompt: int | None
    """With the cached tokens, as in OpenAI's protocol."""
    completion: int | None
    cached: int | None
    reasoning: int | None
    malformed: bool
    """Whether a count was present but not a valid number."""
    apart: bool = False
    """Whether the server certainly counts cached tokens apart from the prompt, so that they were added to it."""


NOT_REPORTED = Usage(None, None, None, None, malformed=False)


def whole_prompt(tokens: int, cached: int) -> int:
    """The tokens of a prompt with its cached ones, which are part of `tokens`, or counted apart where they are more than these."""
    return tokens + cached if cached > tokens else tokens


def usage_of(value: Mapping[str, Any]) -> Usage:
    """The token counts of a raw reply. A malformed count is treated as missing; raises nothing."""
    usage = value.get("usage")
    if type(usage) is not dict:
        return NOT_REPORTED if usage is None else replace(NOT_REPORTED, malformed=True)
    reported = (
        usage.get("prompt_tokens") or None,  # some servers report 0 for "not counted"; no prompt is empty
        usage.get("completion_tokens"),
        _mapping(usage.get("prompt_tokens_details")).get("cached_tokens"),
        _mapping(usage.get("completion_tokens_details")).get("reasoning_tokens"),
    )
    counts = [_count(number) for number in reported]
    malformed = counts.count(None) > reported.count(None) or usage.get("prompt_tokens", 0) is None
    prompt, completion, cached, reasoning = counts
    whole = None if prompt is None else whole_prompt(prompt, cached or 0)
    return Usage(whole, completion, cached, reasoning, malformed=malformed, apart=whole != prompt)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    if type(value) is int:
        return value if 0 <= value < 10**12 else None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if number and 0 <= value < 1e12 and value == int(value) else None


def completion_of(
    value: Mapping[str, Any], usage: Usage, request: Request, limit: int, *, encoding: str = "o200k_base", **more: Any
) -> Completion:
    """A raw reply as a `Completion`; `limit` is the token limit that was sent, `more` are further fields of the `Completion`.

    Raises:
        KeyError, TypeError, IndexError: there is no first choice with a message.
    """
    choice = value["choices"][0]
    message = choice["message"]
    if not isinstance(message, Mapping):
        raise TypeError(f"expected an object as message, found {message!r}"[:200])
    content, thoughts, refusal = _content(message.get("content"))
    spoken = without_reasoning(content)
    separate = _joined(dict.fromkeys([*(_flat(message.get(name)) for name in _THOUGHT_FIELDS), *thoughts]))
    reasoning = _joined(dict.fromkeys([separate, spoken.reasoning]))
    reason = choice.get("finish_reason")
    if not isinstance(reason, str):
        # Some servers give no reason; then a reply that is as long as the limit allows was cut.
        reason = "length" if (usage.completion or 0) >= limit else ""
    if (refusal or _flat(message.get("refusal"))) and not spoken.answer.strip():
        reason = "refusal"
    calling = bool(message.get("tool_calls") or message.get("function_call"))
    tokens = usage.reasoning or (count_tokens(reasoning, encoding) if reasoning else 0)
    return Completion(
        text=spoken.answer,
        # Missing counts are replaced by our own, so that no memory looks cheaper than it is.
        prompt_tokens=_prompt_tokens(request, encoding) if usage.prompt is None else usage.prompt,
        completion_tokens=count_tokens(content + separate, encoding) if usage.completion is None else usage.completion,
        cached_prompt_tokens=usage.cached or 0,
        reasoning_tokens=tokens,
        finish_reason=reason,
        logprobs=_logprobs(choice, spoken),
        reasoning=reasoning,
        stopped=_stopped(reason, spoken, calling=calling),
        notes=_notes(usage),
        **more,
    )


def _notes(usage: Usage) -> tuple[str, ...]:
    if usage.malformed:
        return ("usage_malformed",)
    return ("usage_not_reported",) if usage.prompt is None or usage.completion is None else ()


def _content(content: Any) -> tuple[str, list[str], bool]:
    """The text, the thoughts and whether it is a refusal, of a message's content: a JSON value or a list of typed parts."""
    if not isinstance(content, list):
        return _flat(content), [], False
    kinds = [str(part.get("type", "text")) if isinstance(part, Mapping) else "text" for part in content]
    texts = {"text": "", "output_text": "", "thinking": "", "reasoning": "", "refusal": ""}
    for kind, part in zip(kinds, content, strict=True):
        if kind in texts:  # images and tool calls have no text
            texts[kind] += _part(part)
    return texts["text"] + texts["output_text"], [texts["thinking"], texts["reasoning"]], "refusal" in kinds


def _part(part: Any) -> str:
    if not isinstance(part, Mapping):
        return _flat(part)
    inner = next((part[name] for name in ("text", "thinking", "reasoning") if part.get(name)), "")
    return "".join(map(_part, inner)) if isinstance(inner, list) else _flat(inner)


def _flat(value: Any) -> str:
    """A string as it is, None as an empty string, and any other value as JSON, because a bare number is an answer too."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _logprobs(choice: Mapping[str, Any], spoken: Spoken) -> tuple[float, ...] | None:
    """Log-probabilities of the answer's tokens, without those of the removed reasoning; None when one is missing or not finite."""
    tokens = _mapping(choice.get("logprobs")).get("content")
    if not isinstance(tokens, list):
        return None
    if spoken.reasoning:
        length, kept = 0, len(tokens)
        while kept and length < len(spoken.answer):
            kept -= 1
            length += len(tokens[kept]["token"])
        tokens = tokens[kept:]
    values = [token["logprob"] for token in tokens]
    return tuple(map(float, values)) if all(value is not None and math.isfinite(value) for value in values) else None


_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|maximum model length|too long to fit into the model"
    r"|exceeds? the (?:available |maximum )?(?:context|model's context)|exceeds? (?:maximum )?context (?:length|limit|window)"
    r"|prompt is too long|longer than the maximum model length",
    re.IGNORECASE,
)


def is_overflow(status: int, body: bytes) -> bool:
    """Whether an error reply says that the prompt exceeds the context window, in the words of OpenAI, vLLM, llama.cpp or Ollama."""
    return status in (400, 413, 422, 500) and _OVERFLOW.search(body[:4000].decode(errors="replace")) is not None


def filtered_reply(body: bytes) -> dict[str, Any] | None:
    """The refusal behind an HTTP 400 of Azure's content filter, as a raw chat completion; None for another error.

    Azure refuses a filtered prompt with an error, and a filtered reply with `finish_reason`: both are the same outcome. The error has no
    usage, though the prompt is charged, so that the call is booked at its highest possible cost.
    """
    try:
        error = _mapping(_mapping(json.loads(body)).get("error"))
    except (ValueError, RecursionError):
        return None
    if error.get("code") != "content_filter":
        return None
    return {
        "choices": [{"index": 0, "finish_reason": "content_filter", "message": {"role": "assistant", "content": None}}]
    }


LONG_PROMPT = 2000
"""Prompts with more tokens than this, by our own count, are compared with the server's count."""
LEAST_SHARE = 0.6
"""A server that reports less than this share of our count has cut the prompt."""
_BYTES = 5
"""Maximum average number of bytes per token of a long prompt (English has 4.5). Our own count is made only if there are more."""


def check_window(request: Request, usage: Usage, *, most_seen: int, encoding: str, where: str) -> None:
    """Compare the server's count of prompt tokens with our own; a far lower count for a long prompt means that it read only a part.

    Other vocabularies differ from ours by a few percent on English and give more tokens, not fewer, on most other text, so 60 % is far
    outside the normal range. Cached tokens are added, because some servers report them separately. `most_seen` is the highest count
    that the server has reported for any prompt; it clears servers that report only the uncached part of a prompt, because a context
    window never passes more tokens than it holds.

    Raises:
        PromptTruncated: the prompt was cut. The run should stop, because results of all memories would become alike.
    """
    if usage.prompt is None or usage.completion is None or usage.malformed:  # the counts are our own
        return
    reported = usage.prompt if usage.apart else usage.prompt + (usage.cached or 0)
    size = sum(len(content.encode(errors="replace")) for _, content in request.messages)
    if size <= max(LONG_PROMPT, _BYTES * reported):  # a token is at least one byte
        return
    counted = _prompt_tokens(request, encoding)
    if counted > LONG_PROMPT and max(reported, most_seen) < LEAST_SHARE * counted:
        raise PromptTruncated(
            f"{where} read {reported} tokens of a prompt of about {counted} ({request.purpose}): it cuts prompts to its context window "
            "without an error, so the results of all memories would become alike. Give it a longer context window and run again "
            "(Ollama: OLLAMA_CONTEXT_LENGTH or num_ctx; vLLM: --max-model-len; llama.cpp: --ctx-size), or recall less (a smaller k)."
        )


def _prompt_tokens(request: Request, encoding: str) -> int:
    """Our own count of the prompt's tokens."""
    return sum(count_tokens(content, encoding) for _, content in request.messages)
