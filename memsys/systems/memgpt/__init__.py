"""MemGPT as published (Packer et al., 2023), re-implemented: a model that pages its own memory in and out by calling functions.

What the model sees is bounded by `window` tokens: instructions, a working context that it edits (two blocks of 2000 characters), and a
queue of messages. When these nearly fill the window, the model is told once, and may save what matters; when the window is full, the
oldest messages leave the queue and one recursive summary takes their place. Everything said stays in the recall store and can be
searched; the archival store holds what the model chose to put there. A question is one more message: the model searches until it sends
a message.

`mode="paper"`: warned at 70 % of the window, half of the messages leave when it is full. `mode="code"` (releases 0.2.3 to 0.6.5): warned at
75 %, the messages worth 75 % of the queue's tokens leave, but never the last three, and the queue begins with no user or tool message.

Deviations and decisions:

- `ingest="replay"` puts both speakers' turns into the queue as they stand, without a call until memory is short; in `active` the model is
  run after every turn of the user, to look after its memory. What it then says to the user is not kept: the history holds the real reply.
- `in_view="last_session"` lets a session leave the queue, without a summary, when the next begins: it stays in the recall store, and what
  the model wrote to its working context and archive meanwhile stays too. That is deep memory retrieval (§3.1.1 of the paper), in which
  the question needs sessions that are no longer in view.
- A function call is a JSON reply with a schema. One reply is one call; a reply without JSON is a thought and ends the run; any other reply
  that cannot be used is a failed call, upon which the model is run again.
- A read works on a copy: its messages, edits and insertions are gone afterwards. It makes at most `max_calls` calls, and one more for each
  summary where its searches fill the window. Messages of the read itself are not in the recall store.
- The window is measured before a call instead of waiting for the provider's error. A message longer than an eighth of it is shown cut.
- Search results show the true numbers of matches and pages; the release always says "page 0 of 0". Nothing is cached.
- Recall search matches the whole query as a substring, as released; `bm25` and `embedding` are alternatives. `core_memory_replace` fails
  when the old text is missing. The first reply of a run is not drawn again when it thinks nothing.
- What the model writes stands for the one turn in view that shares most words with it; a summary for all turns that it took the place of.
- A summary that cannot be had is replaced by a line that says how many messages are hidden, with the summary before it.
- Items come back as working context, summary, messages in view, search hits. Where not all fit the reader, scores say which go first: the
  oldest messages in view, then the newer ones, then the hits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, Recall, dated, known_mode, one_of, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.bm25 import bm25_index, bm25_scores, words
from memsys.systems.memgpt.state import Message, State, Written, evicted, origin, recalled, speaks
from memsys.tokens import count_tokens, split_tokens, truncate
from memsys.vectors import Vectors, best

PAGE = 5
"""Search results shown at once."""
BLOCK_CHARS = 2000
RESULT_CHARS = 3000
PASSAGE_TOKENS = 300
SUMMARY_WORDS = 100
_ALERT = (
    "Memory pressure: the oldest messages will soon leave your view. Save what matters from them to working context or archival "
    "storage now. The user does not see this notice; send no message about it."
)


class CallError(ValueError):
    """A function call that cannot be carried out; the message is what the model is told."""


class MemGPT(MemorySystem):
    """Recalls the working context, the summary, what the model's searches found, and the messages in view.

    Args:
        mode: thresholds and eviction of the paper, or of the released code.
        window: tokens that the model may be shown.
        in_view: what stands in the queue until memory is short: turns of `all` sessions, or of the `last_session` only.
        ingest: whether turns are only stored (`replay`) or the model is run after each of the user's (`active`).
        max_calls: model calls of a read.
        max_chain: model calls that follow one event while the history is taken in.
        recall_search: how the recall store is searched: `substring`, `bm25` or `embedding`.
        own_answer: whether the message that the model sends is the answer; else the reader answers from what was recalled.
        persona: what the working context says of the assistant at first.
        human: what it says of the user at first.

    Raises:
        ValueError: an unknown choice, or a number below 1.
    """

    READ_KNOBS: ClassVar = ("max_calls", "own_answer")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("memgpt",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "utterance"}

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Literal["paper", "code"] = "paper",
        window: int = 8192,
        ingest: Literal["replay", "active"] = "replay",
        max_calls: int = 8,
        max_chain: int = 8,
        recall_search: Literal["substring", "bm25", "embedding"] = "substring",
        own_answer: bool = False,
        in_view: Literal["all", "last_session"] = "all",
        persona: str = "An attentive assistant who remembers what was said.",
        human: str = "",
    ) -> None:
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.mode = known_mode(self, mode)
        self.window, self.warn = positive("window", window), 0.70 if mode == "paper" else 0.75
        self.ingest = one_of("ingest", ingest, ("replay", "active"))
        self.max_calls, self.max_chain = positive("max_calls", max_calls), positive("max_chain", max_chain)
        self.recall_search = one_of("recall_search", recall_search, ("substring", "bm25", "embedding"))
        self.own_answer = own_answer
        self.in_view = one_of("in_view", in_view, ("all", "last_session"))
        self._session = ""
        step = prompts["memgpt/step"]
        self._fixed = count_tokens(f"{step.system}\n{step.user}")
        self._recall: list[Message] = []
        self._recall_vectors = Vectors()
        self._state = State({"persona": Written(persona, ()), "human": Written(human, ())})
        self._alerts = 0

    # --- construction ---------------------------------------------------------------------------------------------

    def write(self, unit: Unit) -> None:
        """Put the unit's turns into queue and recall store; the model is run when memory is short, or (`active`) after the user's turns."""
        if self.in_view == "last_session" and unit.session_id != self._session:
            self._state.hidden += sum(message.role != "summary" for message in self._state.queue)
            self._state.queue, self._state.alerted = [], False
        self._session = unit.session_id
        for turn in unit.turns:
            if not turn.text.strip():
                continue
            self._remember(self._state, self._message(turn, unit))
            acts = self.ingest == "active" and turn.role == "user"
            if self._make_room(self._state, reading=False) or acts:
                self._run(self._state, self.max_chain, reading=False)
            self._state.sent = None

    def _message(self, turn: Turn, unit: Unit) -> Message:
        said = f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text
        text = dated(said, unit.time_text)
        return Message(turn.id, turn.role, text, count_tokens(self._shown(text)), (turn.id,), unit.time)

    def _remember(self, state: State, message: Message) -> None:
        """A message of the history (or a summary, a call, a result while it is taken in) enters queue and recall store."""
        state.queue.append(message)
        self._store(message)

    def _store(self, message: Message) -> None:
        self._recall.append(message)
        if self.recall_search == "embedding":
            self._recall_vectors.add(self.embedder.embed([message.text])[0])

    # --- the loop -------------------------------------------------------------------------------------------------

    def _run(self, state: State, most: int, *, reading: bool, asked: str = "") -> int:
        """Call the model until nothing asks for another call, at most so many times; the number of calls."""
        for number in range(1, most + 1):
            self._make_room(state, reading=reading)
            reply = ask(self.llm, self.prompts["memgpt/step"], **self._view(state, asked))
            again = self._acted(state, reply, reading=reading)
            if state.sent is not None and reading:
                return number
            if not (self._make_room(state, reading=reading) or again):
                return number
        meter.note("memgpt.cap")
        return most

    def _acted(self, state: State, reply: Any, *, reading: bool) -> bool:
        """Carry out a reply; whether the model is to be run again because of it."""
        if isinstance(reply, ParseFailure):
            if not {"{", "["} & set(reply.text):
                meter.note("memgpt.thought_only")
                return False
            meter.note("memgpt.failed_call")
            self._event(state, "tool", f"failed: not a function call ({reply.why})", reading=reading)
            return True
        name = reply["function"]
        shown = {key: value for key, value in reply.items() if key not in ("function", "thought", "request_heartbeat")}
        if name != "send_message":
            self._event(state, "tool", f"call {name} {shown}", reading=reading)
        try:
            result = self._functions[name](self, state, reply)
        except CallError as error:
            meter.note("memgpt.failed_call")
            self._event(state, "tool", f"failed: {error}", reading=reading)
            return True
        if name == "send_message":
            return reply.get("request_heartbeat") is True
        searched = name.endswith(("search", "search_date"))
        self._event(state, "tool", result if searched else result[:RESULT_CHARS], reading=reading)
        return reply.get("request_heartbeat") is True

    def _event(self, state: State, role: str, text: str, *, reading: bool) -> None:
        message = Message(f"{role}-{len(self._recall)}", role, text, count_tokens(self._shown(text)))
        state.queue.append(message)
        if not reading:
            self._store(message)

    def _view(self, state: State, asked: str) -> dict[str, Any]:
        lines = [self._shown(f"({message.role}) {message.text}") for message in state.queue]
        return {
            "persona": state.blocks["persona"].text,
            "human": state.blocks["human"].text,
            "recall_count": len(self._recall),
            "archival_count": len(state.archival),
            "queue": lines,
            "question": asked or (lines[-1] if lines else ""),
        }

    def _shown(self, text: str) -> str:
        return truncate(text, max(1, self.window // 8))

    # --- memory pressure ------------------------------------------------------------------------------------------

    def _usage(self, state: State) -> int:
        """Tokens of the next prompt."""
        blocks = sum(count_tokens(block.text) for block in state.blocks.values())
        return self._fixed + blocks + sum(message.tokens + 4 for message in state.queue)

    def _make_room(self, state: State, *, reading: bool) -> bool:
        """Flush the queue where the window is full; whether the model has just been told that memory is short."""
        while self._usage(state) > self.window:
            leaving = self._leaving(state.queue)
            if leaving < 2:
                meter.note("memgpt.overflow")
                break
            self._flush(state, leaving, reading=reading)
        if state.alerted or self._usage(state) <= self.warn * self.window:
            return False
        state.alerted = True
        self._alerts += not reading
        self._event(state, "system", _ALERT, reading=reading)
        return True

    def _leaving(self, queue: Sequence[Message]) -> int:
        """How many of the oldest messages leave."""
        if self.mode == "paper":
            return len(queue) // 2
        return evicted([message.tokens for message in queue], [message.role for message in queue])

    def _flush(self, state: State, leaving: int, *, reading: bool) -> None:
        gone, kept = state.queue[:leaving], state.queue[leaving:]
        state.hidden += sum(message.role != "summary" for message in gone)
        total = state.hidden + len(kept)
        text = f"{state.hidden} of {total} messages are hidden. {self._summary(gone)}".strip()
        sources = union(message.sources for message in gone)
        summary = Message(f"summary-{state.flushes}", "summary", text, count_tokens(self._shown(text)), sources)
        state.queue = [summary, *kept]
        if not reading:
            self._store(summary)
        state.alerted, state.flushes = False, state.flushes + 1

    def _summary(self, gone: Sequence[Message]) -> str:
        """At most about a hundred words on the messages; the head first where they are too long for one call."""
        if len(gone) > 2 and sum(message.tokens for message in gone) > 0.75 * self.window:
            half = len(gone) // 2
            head = self._summary(gone[:half])
            gone = [Message("", "summary", head, count_tokens(head)), *gone[half:]]
        texts = [self._shown(message.text) for message in gone if message.role != "system"]
        reply = ask(self.llm, self.prompts["memgpt/summary"], texts=texts, words=SUMMARY_WORDS)
        if isinstance(reply, ParseFailure):
            meter.note("memgpt.no_summary")
            return _HIDDEN.sub("", gone[0].text) if gone[0].role == "summary" else ""
        return str(reply)

    # --- functions ------------------------------------------------------------------------------------------------

    def _send(self, state: State, call: dict[str, Any]) -> str:
        state.sent = str(call.get("message", ""))
        return ""

    def _append(self, state: State, call: dict[str, Any]) -> str:
        name, text = _block(call), _given(call, "text")
        old = state.blocks[name]
        self._set_block(state, name, f"{old.text}\n{text}".strip("\n"), text)
        return "done"

    def _replace(self, state: State, call: dict[str, Any]) -> str:
        name, old, text = _block(call), _given(call, "old"), str(call.get("text", ""))
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
        text = _given(call, "text")
        passages = split_tokens(text, PASSAGE_TOKENS)
        for passage, vector in zip(passages, self.embedder.embed(passages), strict=True):
            state.archival.append(Written(passage, origin(passage, state.queue)))
            state.archival_vectors.add(vector)
        return "done"

    def _search(self, state: State, call: dict[str, Any]) -> str:
        return self._paged(state, [recalled(message) for message in self._matches(_given(call, "query"))], call)

    def _search_date(self, state: State, call: dict[str, Any]) -> str:
        first, last = _day(call, "start"), _day(call, "end")
        within = [m for m in self._recall if speaks(m) and m.time is not None and first <= m.time.date() <= last]
        return self._paged(state, [recalled(message) for message in within], call)

    def _search_archival(self, state: State, call: dict[str, Any]) -> str:
        query = self.embedder.embed([_given(call, "query")], query=True)[0]
        ranked = best(state.archival_vectors.similarities(query), len(state.archival))
        passages = [(index, state.archival[index]) for index in ranked]
        items = [Item(f"archival-{index}", p.text, 0.0, p.sources, "archival", 1) for index, p in passages]
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
        """The messages that a search of the recall store finds, in its order."""
        if self.recall_search == "substring":
            wanted = query.lower()
            return [message for message in self._recall if speaks(message) and wanted in message.text.lower()]
        if self.recall_search == "bm25":
            index = bm25_index([words(message.text) for message in self._recall], 1.5, 0.75)
            scores = bm25_scores(index, words(query), len(self._recall))
        else:
            scores = self._recall_vectors.similarities(self.embedder.embed([query], query=True)[0])
        ranked = best(np.asarray(scores), len(self._recall))
        return [self._recall[index] for index in ranked if scores[index] > 0 and speaks(self._recall[index])]

    def _paged(self, state: State, items: Sequence[Item], call: dict[str, Any]) -> str:
        page, pages = max(0, int(call.get("page") or 0)), -(-len(items) // PAGE)
        shown = items[page * PAGE : (page + 1) * PAGE]
        state.found.update((item.id, item) for item in shown if item.id not in state.found)
        lines = [self._shown(item.text) for item in shown]
        return "\n".join([f"{len(items)} matches, page {page} of {pages} (first page 0)", *lines])

    # --- recall ---------------------------------------------------------------------------------------------------

    def read(self, question: Question) -> Recall:
        if not self._recall:
            return Recall(())
        state = self._state.copy()
        view = list(state.queue)
        self._event(state, "user", self._question(question), reading=True)
        self._run(state, self.max_calls, reading=True, asked=question.text)
        items = self._evidence(state, view)
        if not self.own_answer:
            return Recall(items)
        if state.sent is None:
            return Recall(items, aborted=f"no message was sent within {self.max_calls} calls")
        return Recall(items, answer=state.sent)

    def _question(self, question: Question) -> str:
        """The question as a message of the user; where the agent answers it, with its options and how it is to be answered."""
        lines = [f"Question: {question.text}"]
        if self.own_answer:
            lines += [f"({chr(65 + place)}) {option}" for place, option in enumerate(question.options)]
            lines += [question.instruction] if question.instruction else []
        return dated("\n".join(lines), question.time_text)

    def _evidence(self, state: State, view: Sequence[Message]) -> tuple[Item, ...]:
        blocks = [
            Item(f"core-{name}", f"{name}: {block.text}", 0.0, block.sources, "core", 1)
            for name, block in state.blocks.items()
            if block.sources and block.text
        ]
        said = [recalled(message) for message in view if message.sources]
        summary = [item for item in said if item.kind == "summary"]
        turns = [item for item in said if item.kind != "summary"]
        hits = [item for item in state.found.values() if item.sources]
        ranking = dict.fromkeys(item.id for item in (*blocks, *summary, *hits, *reversed(turns)))
        score = {name: 1 / place for place, name in enumerate(ranking, start=1)}
        items = {item.id: replace(item, score=score[item.id]) for item in (*blocks, *summary, *turns, *hits)}
        return tuple(items.values())

    @property
    def held(self) -> int:
        return len(self._recall) + len(self._state.archival)

    def report(self) -> dict[str, Any]:
        return {
            "recall": len(self._recall),
            "archival": len(self._state.archival),
            "in_view": len(self._state.queue),
            "flushes": self._state.flushes,
            "alerts": self._alerts,
            "core_chars": {name: len(block.text) for name, block in self._state.blocks.items()},
        }


_HIDDEN = re.compile(r"\A\d+ of \d+ messages are hidden\. ?")


def _block(call: dict[str, Any]) -> str:
    name = call.get("block")
    if name not in ("persona", "human"):
        raise CallError(f"block must be persona or human, found {name!r}")
    return str(name)


def _given(call: dict[str, Any], argument: str) -> str:
    value = str(call.get(argument) or "")
    if not value.strip():
        raise CallError(f"the argument {argument} is missing")
    return value


def _day(call: dict[str, Any], argument: str) -> date:
    try:
        return date.fromisoformat(_given(call, argument).strip())
    except ValueError as error:
        raise CallError(f"{argument} must be a date like 2023-05-07") from error
