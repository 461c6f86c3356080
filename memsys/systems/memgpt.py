"""MemGPT as published (Packer et al., 2023), re-implemented: a model that manages its own memory by calling functions.

The model sees at most `window` tokens: instructions, a working context that it edits (two blocks of 2000 characters), and a queue of
messages. When these nearly fill the window, the model is warned once and may save important content. When the window is full, the oldest
messages leave the queue and one recursive summary replaces them. Everything said stays in the recall store and can be searched; the
archival store holds texts that the model writes to it. A question is one more message: the model searches until it sends a message.

`mode="paper"`: the warning comes at 70 % of the window, and half of the messages leave when it is full (§2.2: "50% of the context window",
which may also count tokens). `mode="code"` (releases 0.2.3 to 0.6.5): the warning comes at 75 %; messages worth 75 % of the queue's tokens
leave, but never the last three, and the first message that stays is neither a user's nor a tool's.

Deviations and decisions:

- `ingest="replay"` puts both speakers' turns into the queue, with no call until memory is short. `active` runs the model after every turn
  of the user, so that it can manage its memory. Its messages to the user are not kept, because the history holds the real reply.
- `in_view="last_session"` empties the queue, without a summary, when a new session begins. The turns stay in the recall store, and what
  the model wrote to its working context and archival store stays too. This is deep memory retrieval (§3.1.1 of the paper), where the
  question needs sessions that are no longer in view.
- A function call is a JSON reply with a schema. One reply is one call. A reply without JSON is a thought and ends the run; any other
  unusable reply is a failed call, after which the model runs again.
- A read works on a copy: its messages, edits and insertions are discarded. It makes at most `max_calls` calls, and one more for each
  summary where its searches fill the window. Messages of a read are not in the recall store.
- The window is measured before a call; the paper waits for the provider's error. A message longer than an eighth of it is cut when shown.
- Search results show the true numbers of matches and pages; the release always says "page 0 of 0". Nothing is cached.
- Recall search matches the whole query as a substring, as released; `bm25` and `embedding` are alternatives. `core_memory_replace` fails
  when the old text is missing. A first reply of a run without a thought is not requested again.
- Evidence of a text that the model writes is the turn in view that shares most words with it; evidence of a summary is all turns that
  it replaced.
- Where a summary cannot be read, a line says how many messages are hidden, with the earlier summary after it.
- A recall has the order: working context, summary, messages in view, search hits. Scores give the order in which items are dropped if not
  all fit the reader: the oldest messages in view, then the newer ones, then the hits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, Positive, Recall, Settings, dated, spoken, union
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts, lettered
from memsys.systems.bm25 import bm25_index, bm25_scores, words
from memsys.tokens import count_tokens, split_tokens, truncate
from memsys.vectors import Embedder, Vectors, best


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the queue or of the recall store."""

    id: str
    role: str
    """user, assistant, system, tool or summary."""
    text: str
    """The text as the model sees it, with time and speaker in front."""
    tokens: int
    sources: tuple[str, ...] = ()
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """A text that the model wrote, and the turns it is based on."""

    text: str
    sources: tuple[str, ...]


@dataclass(slots=True)
class State:
    """Everything that a run of the model may change."""

    blocks: dict[str, Written]
    queue: list[Message] = field(default_factory=list)
    archival: list[Written] = field(default_factory=list)
    archival_vectors: Vectors = field(default_factory=Vectors)
    alerted: bool = False
    hidden: int = 0
    """Number of messages that have left the queue."""
    flushes: int = 0
    hits: dict[str, Item] = field(default_factory=dict)
    """Results of the searches of a read, by id."""
    sent: str | None = None
    """The message that the model sent to the user."""

    def copy(self) -> State:
        """A copy for a read, without hits and sent message."""
        return replace(
            self,
            blocks=dict(self.blocks),
            queue=list(self.queue),
            archival=list(self.archival),
            archival_vectors=deepcopy(self.archival_vectors),
            hits={},
            sent=None,
        )


def evicted(tokens: Sequence[int], roles: Sequence[str]) -> int:
    """Number of oldest messages that the released code evicts: those worth 75 % of all tokens, but none of the last three.

    The message that exceeds the 75 % stays; where none does, the last candidate stays. If the first message that stays is a user's, it
    is evicted as well; then all tool messages at the front are.
    """
    target, count, total = int(0.75 * sum(tokens)), 0, 0
    for place, size in enumerate(tokens[: max(0, len(tokens) - 3)]):
        count, total = place, total + size
        if total > target:
            break
    if count < len(roles) and roles[count] == "user":
        count += 1
    while count < len(roles) and roles[count] == "tool":
        count += 1
    return count


def message_item(message: Message) -> Item:
    """A message as a recalled item."""
    kind, level = ("summary", 1) if message.role == "summary" else ("turn", 0)
    return Item(message.id, message.text, 0.0, message.sources, kind, level)


def is_searchable(message: Message) -> bool:
    """Whether a search of the recall store may return the message."""
    return message.role not in ("system", "tool")


def origin(text: str, queue: Iterable[Message]) -> tuple[str, ...]:
    """Turn ids of the turn in view that shares most words with a text; of several, the latest."""
    stems = set(words(text))
    turns = [message for message in queue if message.sources and message.role != "summary"]
    shared = [(len(stems & set(words(turn.text))), place) for place, turn in enumerate(turns)]
    return turns[max(shared)[1]].sources if shared else ()


class CallError(ValueError):
    """A function call that cannot be carried out; the model is shown the message."""


def block_name(call: dict[str, Any]) -> str:
    """The block that a call names; raises CallError where there is no such block."""
    name = call.get("block")
    if name not in ("persona", "human"):
        raise CallError(f"block must be persona or human, found {name!r}")
    return str(name)


def argument_of(call: dict[str, Any], argument: str) -> str:
    """An argument of a call; raises CallError where it is missing or empty."""
    value = str(call.get(argument) or "")
    if not value.strip():
        raise CallError(f"the argument {argument} is missing")
    return value


def day_of(call: dict[str, Any], argument: str) -> date:
    """An argument of a call as a date; raises CallError if it is not a date."""
    try:
        return date.fromisoformat(argument_of(call, argument).strip())
    except ValueError as error:
        raise CallError(f"{argument} must be a date like 2023-05-07") from error


PAGE = 5
"""Search results on a page."""
BLOCK_CHARS = 2000
"""Maximum number of characters of a block of the working context."""
RESULT_CHARS = 3000
"""Maximum number of characters of a function's result, except for searches."""
PASSAGE_TOKENS = 300
"""Maximum number of tokens of an archival passage."""
SUMMARY_WORDS = 100
"""Length that the summary prompt asks for."""
_ALERT = (
    "Memory pressure: the oldest messages will soon leave your view. Save what matters from them to working context or archival "
    "storage now. The user does not see this notice; send no message about it."
)


@dataclass(frozen=True)
class MemGPTSettings(Settings):
    mode: Literal["paper", "code"] = "paper"
    """`paper` or `code`, see the module: thresholds and eviction."""
    window: Positive = 8192
    """Maximum number of tokens that the model sees."""
    ingest: Literal["replay", "active"] = "replay"
    """Whether turns are only stored (`replay`), or the model runs after each turn of the user (`active`)."""
    max_calls: Positive = 8
    """Maximum number of model calls of a read."""
    max_chain: Positive = 8
    """Maximum number of model calls after one event while the history is written."""
    recall_search: Literal["substring", "bm25", "embedding"] = "substring"
    """The search of the recall store: `substring`, `bm25` or `embedding`."""
    own_answer: bool = False
    """Whether the message that the model sends is the answer; if not, the reader answers from the recall."""
    in_view: Literal["all", "last_session"] = "all"
    """The turns that stay in the queue until memory is short: of `all` sessions, or of the `last_session` only."""
    persona: str = "An attentive assistant who remembers what was said."
    """The first text of the working context about the assistant."""
    human: str = ""
    """The first text of the working context about the user."""


class MemGPT(MemorySystem):
    """Recalls the working context, the summary, the messages in view and the hits of the model's searches."""

    READ_KNOBS: ClassVar = ("max_calls", "own_answer")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("memgpt",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "utterance"}

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: MemGPTSettings = MemGPTSettings()
    ) -> None:
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self.warn = 0.70 if settings.mode == "paper" else 0.75
        self._session = ""
        step = prompts["memgpt/step"]
        self._fixed = count_tokens(f"{step.system}\n{step.user}")
        self._recall: list[Message] = []
        self._recall_vectors = Vectors()
        self._state = State({"persona": Written(settings.persona, ()), "human": Written(settings.human, ())})
        self._alerts = 0

    def write(self, unit: Unit) -> None:
        """Put the unit's turns into queue and recall store; run the model when memory is short, or (`active`) after the user's turns."""
        if self.settings.in_view == "last_session" and unit.session_id != self._session:
            self._state.hidden += sum(message.role != "summary" for message in self._state.queue)
            self._state.queue, self._state.alerted = [], False
        self._session = unit.session_id
        for turn in unit.turns:
            if not turn.text.strip():
                continue
            text = dated(spoken(turn), unit.time_text)
            message = Message(turn.id, turn.role, text, count_tokens(self._cut(text)), (turn.id,), unit.time)
            self._state.queue.append(message)
            self._store(message)
            responds = self.settings.ingest == "active" and turn.role == "user"
            if self._make_room(self._state, reading=False) or responds:
                self._run(self._state, self.settings.max_chain, reading=False)
            self._state.sent = None

    def _store(self, message: Message) -> None:
        """Put a message into the recall store."""
        self._recall.append(message)
        if self.settings.recall_search == "embedding":
            self._recall_vectors.add(self.embedder.embed([message.text])[0])

    def _run(self, state: State, most: int, *, reading: bool, question: str = "") -> int:
        """Call the model while a reply or memory pressure asks for another call, at most `most` times; returns the number of calls.

        `question` is the one that the run answers; empty while the history is written.
        """
        for number in range(1, most + 1):
            self._make_room(state, reading=reading)
            reply = ask(self.llm, self.prompts["memgpt/step"], **self._step_fields(state, question))
            again = self._carry_out(state, reply, reading=reading)
            if state.sent is not None and reading:
                return number
            if not (self._make_room(state, reading=reading) or again):
                return number
        meter.note("memgpt.cap")
        return most

    def _carry_out(self, state: State, reply: Any, *, reading: bool) -> bool:
        """Carry out a reply; returns whether it asks for another call."""
        if isinstance(reply, ParseFailure):
            if not {"{", "["} & set(reply.text):
                meter.note("memgpt.thought_only")
                return False
            meter.note("memgpt.failed_call")
            self._event(state, "tool", f"failed: not a function call ({reply.why})", reading=reading)
            return True
        name = reply["function"]
        arguments = {key: reply[key] for key in reply if key not in ("function", "thought", "request_heartbeat")}
        if name != "send_message":
            self._event(state, "tool", f"call {name} {arguments}", reading=reading)
        try:
            result = self._functions[name](self, state, reply)
        except CallError as error:
            meter.note("memgpt.failed_call")
            self._event(state, "tool", f"failed: {error}", reading=reading)
            return True
        if name == "send_message":
            return reply.get("request_heartbeat") is True
        is_search = name.endswith(("search", "search_date"))
        self._event(state, "tool", result if is_search else result[:RESULT_CHARS], reading=reading)
        return reply.get("request_heartbeat") is True

    def _event(self, state: State, role: str, text: str, *, reading: bool) -> None:
        """Put a message into the queue, and while the history is written also into the recall store."""
        message = Message(f"{role}-{len(self._recall)}", role, text, count_tokens(self._cut(text)))
        state.queue.append(message)
        if not reading:
            self._store(message)

    def _step_fields(self, state: State, question: str) -> dict[str, Any]:
        """The fields of the prompt for the next step."""
        lines = [self._cut(f"({message.role}) {message.text}") for message in state.queue]
        return {
            "persona": state.blocks["persona"].text,
            "human": state.blocks["human"].text,
            "recall_count": len(self._recall),
            "archival_count": len(state.archival),
            "queue": lines,
            "question": question or (lines[-1] if lines else ""),
        }

    def _cut(self, text: str) -> str:
        """The text, cut to an eighth of the window."""
        return truncate(text, max(1, self.settings.window // 8))

    def _usage(self, state: State) -> int:
        """Tokens of the next prompt."""
        blocks = sum(count_tokens(block.text) for block in state.blocks.values())
        return self._fixed + blocks + sum(message.tokens + 4 for message in state.queue)

    def _make_room(self, state: State, *, reading: bool) -> bool:
        """Flush the queue where the window is full, and warn the model where it nearly is; returns whether it was warned."""
        while self._usage(state) > self.settings.window:
            tokens, roles = [message.tokens for message in state.queue], [message.role for message in state.queue]
            leaving = len(tokens) // 2 if self.settings.mode == "paper" else evicted(tokens, roles)
            if leaving < 2:
                meter.note("memgpt.overflow")
                break
            self._flush(state, leaving, reading=reading)
        if state.alerted or self._usage(state) <= self.warn * self.settings.window:
            return False
        state.alerted = True
        self._alerts += not reading
        self._event(state, "system", _ALERT, reading=reading)
        return True

    def _flush(self, state: State, leaving: int, *, reading: bool) -> None:
        """Replace the oldest messages by one summary."""
        removed, kept = state.queue[:leaving], state.queue[leaving:]
        state.hidden += sum(message.role != "summary" for message in removed)
        total = state.hidden + len(kept)
        text = f"{state.hidden} of {total} messages are hidden. {self._summary(removed)}".strip()
        sources = union(message.sources for message in removed)
        summary = Message(f"summary-{state.flushes}", "summary", text, count_tokens(self._cut(text)), sources)
        state.queue = [summary, *kept]
        if not reading:
            self._store(summary)
        state.alerted, state.flushes = False, state.flushes + 1

    def _summary(self, messages: Sequence[Message]) -> str:
        """A summary of the messages in about a hundred words; where they are too long for one call, their first half is summarised first.

        Where the reply cannot be read: the earlier summary, or nothing.
        """
        if len(messages) > 2 and sum(message.tokens for message in messages) > 0.75 * self.settings.window:
            half = len(messages) // 2
            head = self._summary(messages[:half])
            messages = [Message("", "summary", head, count_tokens(head)), *messages[half:]]
        texts = [self._cut(message.text) for message in messages if message.role != "system"]
        prompt = self.prompts["memgpt/summary"]
        reply = ask(self.llm, prompt, texts=texts, words=SUMMARY_WORDS, noted="memgpt.no_summary")
        if not reply:
            return _HIDDEN.sub("", messages[0].text) if messages[0].role == "summary" else ""
        return str(reply)

    def _send(self, state: State, call: dict[str, Any]) -> str:
        state.sent = str(call.get("message", ""))
        return ""

    def _append(self, state: State, call: dict[str, Any]) -> str:
        name, text = block_name(call), argument_of(call, "text")
        self._set_block(state, name, f"{state.blocks[name].text}\n{text}".strip("\n"), text)
        return "done"

    def _replace(self, state: State, call: dict[str, Any]) -> str:
        name, old, text = block_name(call), argument_of(call, "old"), str(call.get("text", ""))
        block = state.blocks[name]
        if old not in block.text:
            raise CallError(f"the block {name} does not contain {old!r}")
        self._set_block(state, name, block.text.replace(old, text), text)
        return "done"

    def _set_block(self, state: State, name: str, whole: str, written: str) -> None:
        if len(whole) > BLOCK_CHARS:
            raise CallError(f"the block {name} would have {len(whole)} characters, at most {BLOCK_CHARS} are allowed")
        sources = union([state.blocks[name].sources, origin(written, state.queue)])
        state.blocks[name] = Written(whole, sources)

    def _insert(self, state: State, call: dict[str, Any]) -> str:
        text = argument_of(call, "text")
        passages = split_tokens(text, PASSAGE_TOKENS)
        for passage, vector in zip(passages, self.embedder.embed(passages), strict=True):
            state.archival.append(Written(passage, origin(passage, state.queue)))
            state.archival_vectors.add(vector)
        return "done"

    def _search(self, state: State, call: dict[str, Any]) -> str:
        return self._paged(state, [message_item(each) for each in self._matches(argument_of(call, "query"))], call)

    def _search_date(self, state: State, call: dict[str, Any]) -> str:
        first, last = day_of(call, "start"), day_of(call, "end")
        messages = [
            message
            for message in self._recall
            if is_searchable(message) and message.time is not None and first <= message.time.date() <= last
        ]
        return self._paged(state, [message_item(message) for message in messages], call)

    def _search_archival(self, state: State, call: dict[str, Any]) -> str:
        query = self.embedder.embed([argument_of(call, "query")], query=True)[0]
        ranked = best(state.archival_vectors.similarities(query), len(state.archival))
        items = [
            Item(f"archival-{index}", state.archival[index].text, 0.0, state.archival[index].sources, "archival", 1)
            for index in ranked
        ]
        return self._paged(state, items, call)

    def _pause(self, state: State, call: dict[str, Any]) -> str:
        return "done"

    _functions: ClassVar[dict[str, Callable[[MemGPT, State, dict[str, Any]], str]]] = {
        "send_message": _send,
        "core_memory_append": _append,
        "core_memory_replace": _replace,
        "conversation_search": _search,
        "conversation_search_date": _search_date,
        "archival_memory_insert": _insert,
        "archival_memory_search": _search_archival,
        "pause_heartbeats": _pause,
    }

    def _matches(self, query: str) -> list[Message]:
        """The messages that match a search of the recall store: in order of time (`substring`), else best first."""
        if self.settings.recall_search == "substring":
            lowered = query.lower()
            return [message for message in self._recall if is_searchable(message) and lowered in message.text.lower()]
        if self.settings.recall_search == "bm25":
            index = bm25_index([words(message.text) for message in self._recall], 1.5, 0.75)
            scores = bm25_scores(index, words(query), len(self._recall))
        else:
            scores = self._recall_vectors.similarities(self.embedder.embed([query], query=True)[0])
        ranked = best(np.asarray(scores), len(self._recall))
        return [self._recall[index] for index in ranked if scores[index] > 0 and is_searchable(self._recall[index])]

    def _paged(self, state: State, items: Sequence[Item], call: dict[str, Any]) -> str:
        """The page of search results that the call asks for, as text; its items count as hits of the read."""
        page, pages = max(0, int(call.get("page") or 0)), -(-len(items) // PAGE)
        page_items = items[page * PAGE : (page + 1) * PAGE]
        state.hits.update((item.id, item) for item in page_items if item.id not in state.hits)
        lines = [self._cut(item.text) for item in page_items]
        return "\n".join([f"{len(items)} matches, page {page} of {pages} (first page 0)", *lines])

    def read(self, question: Question) -> Recall:
        if not self._recall:
            return Recall(())
        state = self._state.copy()
        view = list(state.queue)
        lines = [f"Question: {question.text}"]
        if self.settings.own_answer:  # without a reader, the agent needs options, asker and instruction
            lines += [f"({option.label}) {option.text}" for option in lettered(question.options)]
            lines += [line for line in (question.asked_by, question.instruction) if line]
        self._event(state, "user", dated("\n".join(lines), question.time_text), reading=True)
        calls = self._run(state, self.settings.max_calls, reading=True, question=question.text)
        items = self._recalled_items(state, view)
        if not self.settings.own_answer:
            return Recall(items)
        if state.sent is None:
            return Recall(items, aborted=f"no message was sent in {calls} of {self.settings.max_calls} calls")
        return Recall(items, answer=state.sent)

    @property
    def uses_asker(self) -> bool:
        return self.settings.own_answer

    def _recalled_items(self, state: State, view: Sequence[Message]) -> tuple[Item, ...]:
        """Working context, summary, turns in view and hits, scored by the order in which to keep them (1 / rank).

        Args:
            view: the queue before the question.
        """
        blocks = [
            Item(f"core-{name}", f"{name}: {block.text}", 0.0, block.sources, "core", 1)
            for name, block in state.blocks.items()
            if block.sources and block.text
        ]
        messages = [message_item(message) for message in view if message.sources]
        summary = [item for item in messages if item.kind == "summary"]
        turns = [item for item in messages if item.kind != "summary"]
        hits = [item for item in state.hits.values() if item.sources]
        ranking = dict.fromkeys(item.id for item in (*blocks, *summary, *hits, *reversed(turns)))
        score = {name: 1 / place for place, name in enumerate(ranking, start=1)}
        items = {item.id: replace(item, score=score[item.id]) for item in (*blocks, *summary, *turns, *hits)}
        return tuple(items.values())

    @property
    def held(self) -> int:
        return len(self._recall) + len(self._state.archival)

    def report(self) -> dict[str, Any]:
        """Entries of each store and of the queue, flushes, warnings, and characters of the working context."""
        return {
            "recall": len(self._recall),
            "archival": len(self._state.archival),
            "in_view": len(self._state.queue),
            "flushes": self._state.flushes,
            "alerts": self._alerts,
            "core_chars": {name: len(block.text) for name, block in self._state.blocks.items()},
        }


_HIDDEN = re.compile(r"\A\d+ of \d+ messages are hidden\. ?")
