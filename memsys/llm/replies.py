"""A chat completion as servers really send it, turned into a `Completion`: answer and reasoning apart, and why it stopped.

Models think aloud in tags (also unclosed, or with the opening tag left in the server's template), in fields of their own, in content
parts, or in the channels of the harmony format. All of it goes into `Completion.reasoning`: a parser, a judge or a scorer sees the
answer alone. What is left is one of:

| stopped        | when                                             | as an answer      | as a verdict            | in a memory            |
|----------------|--------------------------------------------------|-------------------|-------------------------|------------------------|
| (nothing)      | the model ended by itself                        | answered          | read                    | parsed                 |
| cut            | the limit was reached inside the answer          | answered, flagged | if it stands complete   | prose kept; else fails |
| cut in thought | the limit was reached before there was an answer | error             | unscored                | parse failure          |
| refused        | a content filter or the model refused            | error             | unscored                | parse failure          |
| empty          | the model ended without an answer                | error             | unscored                | parse failure          |
| tool call only | the model called a tool that nobody offered      | error             | unscored                | parse failure          |

Each is counted by purpose in the notes of the effort lines. `POLICY` is part of what identifies a run and a judge.
"""

from __future__ import annotations

import json
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
"""What is done with replies that are not whole, as it stands in `run.json` and beside each judge's scores."""

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
"""What stands between two `<|channel|>`; possessive, so that a word without end is not tried at each of its lengths."""
_BARE_CHANNELS = re.compile(r"\Aanalysis(?=[A-Z])(.*?)(?:assistantfinal(.*))?\Z", re.DOTALL)

_LIMITS = frozenset({"length", "max_tokens", "model_length"})
_FILTERS = frozenset({"content_filter", "safety", "refusal", "recitation", "prohibited_content", "blocklist"})
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")


# --- reasoning ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spoken:
    """A text with what the model thought taken out."""

    answer: str
    reasoning: str = ""
    thinking: bool = False
    """Whether the text ends inside a thought."""
    calling: bool = False
    """Whether it calls a tool."""


def without_reasoning(text: str) -> Spoken:
    """Answer and reasoning of a text; a text without reasoning is returned as it is, so that doing it twice changes nothing.

    Tags inside JSON are data. In prose a closed pair is a thought wherever it stands, an opening tag without a partner where it
    begins a line, and all before a closing tag without a partner is one: some servers put the opening tag into the prompt.
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
    """A text without its closed pairs of tags, and what stood in them.

    In one pass over the tags: a pattern for the pair would look for a partner of each tag to the very end, for minutes where a model
    repeats one.
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
    """The channel `final` is the answer; `analysis` and `commentary` are reasoning. Also where the special tokens were left out."""
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
    """Why a reply has no answer, as rows and scores say it."""
    advice = (
        "; a model that thinks needs room: thought_tokens in its file of conf/llm" if "thought" in reply.stopped else ""
    )
    return f"the reply was {reply.stopped or 'empty'} ({reply.finish_reason or 'no finish reason'}){advice}"


def cleaned(completion: Completion) -> Completion:
    """The completion with reasoning apart and `stopped` told, also when an older version kept it with its tags; idempotent."""
    spoken = without_reasoning(completion.text)
    reasoning = _joined((completion.reasoning, spoken.reasoning))
    stopped = completion.stopped or _stopped(completion.finish_reason, spoken)
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


# --- the raw reply --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a reply; None where the server reports none, or nothing that is a count."""

    prompt: int | None
    completion: int | None
    cached: int | None
    reasoning: int | None
    malformed: bool
    """Whether something was there that is no count."""


def usage_of(value: Mapping[str, Any]) -> Usage:
    """The token counts of a raw reply. What is malformed counts as not reported; nothing raises."""
    usage = value.get("usage")
    sound = isinstance(usage, Mapping)
    usage = usage if isinstance(usage, Mapping) else {}
    details = {name: usage.get(f"{name}_tokens_details") for name in ("prompt", "completion")}
    found = [
        usage.get("prompt_tokens") or None,  # no prompt has no tokens: some servers say 0 for "not counted"
        usage.get("completion_tokens"),
        _mapping(details["prompt"]).get("cached_tokens"),
        _mapping(details["completion"]).get("reasoning_tokens"),
    ]
    counts = [_count(each) for each in found]
    odd = any(count is None and each is not None for count, each in zip(counts, found, strict=True))
    odd |= not sound and value.get("usage") is not None
    odd |= "prompt_tokens" in usage and usage["prompt_tokens"] is None
    prompt, completion, cached, reasoning = counts
    return Usage(prompt, completion, cached, reasoning, malformed=odd)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    whole = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12 and value == int(value)
    return int(value) if whole else None


def completion_of(
    value: Mapping[str, Any], request: Request, limit: int, *, encoding: str = "o200k_base", **more: Any
) -> Completion:
    """A raw reply as a `Completion`; `limit` is what its tokens were limited to, `more` are further fields.

    Raises:
        KeyError, TypeError, IndexError: there is no first choice with a message.
    """
    choice = value["choices"][0]
    message, usage = choice["message"], usage_of(value)
    if not isinstance(message, Mapping):
        raise TypeError(f"the message is no object but {message!r}"[:200])
    said, thoughts, refusal = _content(message.get("content"))
    spoken = without_reasoning(said)
    apart = _joined(dict.fromkeys([*(_flat(message.get(name)) for name in _THOUGHT_FIELDS), *thoughts]))
    reasoning = _joined(dict.fromkeys([apart, spoken.reasoning]))
    reason = choice.get("finish_reason")
    if not isinstance(reason, str):
        # Some servers do not say; a reply that is as long as it may be was cut.
        reason = "length" if (usage.completion or 0) >= limit else ""
    if (refusal or _flat(message.get("refusal"))) and not spoken.answer.strip():
        reason = "refusal"
    calling = bool(message.get("tool_calls") or message.get("function_call"))
    tokens = usage.reasoning or (count_tokens(reasoning, encoding) if reasoning else 0)
    return Completion(
        text=spoken.answer,
        # A count that is not reported is our own, so that no row looks cheaper than it is.
        prompt_tokens=_own(request, encoding) if usage.prompt is None else usage.prompt,
        completion_tokens=count_tokens(said + apart, encoding) if usage.completion is None else usage.completion,
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
    """Text, thoughts and whether it is a refusal, of a content: a string, nothing, a number, an object, or a list of typed parts."""
    if not isinstance(content, list):
        return _flat(content), [], False
    kinds = [str(part.get("type", "text")) if isinstance(part, Mapping) else "text" for part in content]
    said = {"text": "", "output_text": "", "thinking": "", "reasoning": "", "refusal": ""}
    for kind, part in zip(kinds, content, strict=True):
        if kind in said:  # pictures and tool calls are no text
            said[kind] += _part(part)
    return said["text"] + said["output_text"], [said["thinking"], said["reasoning"]], "refusal" in kinds


def _part(part: Any) -> str:
    if not isinstance(part, Mapping):
        return _flat(part)
    inner = next((part[name] for name in ("text", "thinking", "reasoning") if part.get(name)), "")
    return "".join(map(_part, inner)) if isinstance(inner, list) else _flat(inner)


def _flat(value: Any) -> str:
    """A text as it is, nothing as an empty one, and anything else as its JSON: a bare number is an answer too."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _logprobs(choice: Mapping[str, Any], spoken: Spoken) -> tuple[float, ...] | None:
    """Log-probabilities of the answer's tokens: those of a thought that was taken out go with it."""
    tokens = _mapping(choice.get("logprobs")).get("content")
    if not isinstance(tokens, list):
        return None
    if spoken.reasoning:
        length, kept = 0, len(tokens)
        while kept and length < len(spoken.answer):
            kept -= 1
            length += len(tokens[kept]["token"])
        tokens = tokens[kept:]
    return tuple(float(token["logprob"]) for token in tokens)


# --- context windows ------------------------------------------------------------------------------------------------

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|maximum model length|too long to fit into the model"
    r"|exceeds? the (?:available |maximum )?(?:context|model's context)|exceeds? (?:maximum )?context (?:length|limit|window)"
    r"|prompt is too long|longer than the maximum model length",
    re.IGNORECASE,
)


def is_overflow(status: int, body: bytes) -> bool:
    """Whether an error reply says that the prompt does not fit: as OpenAI, vLLM, llama.cpp and Ollama word it."""
    return status in (400, 413, 422, 500) and _OVERFLOW.search(body[:4000].decode(errors="replace")) is not None


LONG_PROMPT = 2000
"""Tokens, by our own count, from which a prompt is compared with what the server reports."""
LEAST_SHARE = 0.6
"""A server that reports fewer of them than this share has cut the prompt."""
_BYTES = 5
"""Of a token at most, on average over a long prompt (English has four and a half): only fewer reported tokens are worth counting ours."""


def check_window(request: Request, completion: Completion, *, most_seen: int, encoding: str, where: str) -> None:
    """Compare the prompt tokens a server reports with our own count: far fewer on a long prompt means that it read only a part.

    Vocabularies in use differ from ours by a few percent on English and give more tokens, not fewer, on most other text: 60 % is far
    outside of that. Cached tokens are added, for servers that report them apart. `most_seen`, the most tokens that the server has
    reported of any prompt, spares one that reports only what it had not read before: a window lets no more through than it holds.

    Raises:
        PromptTruncated: the run should stop, because every memory would look alike.
    """
    if completion.notes:  # the count is our own
        return
    reported = completion.prompt_tokens + completion.cached_prompt_tokens
    size = sum(len(content.encode(errors="replace")) for _, content in request.messages)
    if size <= max(LONG_PROMPT, _BYTES * reported):  # a token is at least one byte
        return
    own = _own(request, encoding)
    if own > LONG_PROMPT and max(reported, most_seen) < LEAST_SHARE * own:
        raise PromptTruncated(
            f"{where} read {reported} tokens of a prompt of about {own} ({request.purpose}): it cuts prompts to its context window "
            "without saying so, and every memory would look alike. Give it a longer window and run again "
            "(Ollama: OLLAMA_CONTEXT_LENGTH or num_ctx; vLLM: --max-model-len; llama.cpp: --ctx-size), or show less (a smaller k)."
        )


def _own(request: Request, encoding: str) -> int:
    return sum(count_tokens(content, encoding) for _, content in request.messages)
