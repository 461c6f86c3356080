"""Chat replies through the cache: looked up, sent once, kept, metered, and checked for the requested form."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memsys.jsons import canonical, decoded
from memsys.llm.gateway.accounts import Account, Purpose, first_choice, text_of
from memsys.llm.gateway.bodies import checked
from memsys.llm.gateway.fit import misfit
from memsys.llm.gateway.keys import body_digest, first_difference, journal_key, keyed, outline, reply_key
from memsys.llm.gateway.upstream import Upstream
from memsys.llm.meter import Ledger
from memsys.llm.protocol import Completion, ContextOverflow, EndOfRun, ModelError
from memsys.llm.replies import usage_of
from memsys.llm.store import CacheStore, Kept
from memsys.tokens import count_tokens


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One chat request of a client."""

    account: Account
    ledger: Ledger
    """The charge of the step that was under way when the request arrived."""
    asked: Mapping[str, Any]
    """The body as the client sent it."""
    body: Mapping[str, Any]
    """The body as it is sent upstream."""
    kept: Mapping[str, Any]
    """The part of the body that determines the reply."""
    key: bytes
    place: str
    """The scope, and the request's number within it; a repetition has the number of the request that it repeats."""
    again: bool
    """Whether the client's transport repeats a request that got no reply."""
    purpose: str
    declared: Purpose | None

    @classmethod
    def of(cls, account: Account, upstream: Upstream, asked: Mapping[str, Any], *, again: bool) -> ChatCall:
        """A request as it arrives. `again`: the client's transport says that it repeats a request that got no reply.

        Raises:
            MalformedBody: it is not a request, or its cost has no bound.
        """
        overridden = {name: value for name, value in {**asked, **account.overrides}.items() if value is not None}
        body = upstream.prepared(checked(overridden))
        kept = keyed(body, account.normalisations)
        digest = body_digest(kept)
        purpose, declared = account.purpose_of(body)
        occurrence, place, again = account.numbered(digest, again=again)
        key = reply_key(upstream.label, digest, occurrence)
        return cls(account, account.ledger, asked, body, kept, key, place, again, purpose, declared)


class ChatReplies:
    """Replies by key; each is requested once.

    Args:
        store: None keeps and looks up nothing.
        replay: a reply that is not in the store is an error.
    """

    def __init__(self, upstream: Upstream, store: CacheStore | None, *, replay: bool) -> None:
        self._upstream, self._store, self._replay = upstream, store, replay
        self._under_way: dict[bytes, asyncio.Task[Completion]] = {}

    async def reply(self, call: ChatCall) -> Mapping[str, Any]:
        """The reply as an OpenAI-compatible server gives it, charged to the call's step.

        Raises:
            ModelError: the call failed for good, or is not in the cache during a replay.
        """
        account, ledger, number = call.account, call.ledger, call.account.call_number()
        if not call.again:
            ledger.add_call(call.purpose)
        try:
            completion = await self._completed(call)
            value: dict[str, Any] = decoded(completion.text)
        except Exception as error:
            failure = error if isinstance(error, ModelError) else ModelError(f"the gateway failed: {error!r}"[:500])
            if not call.again:
                ledger.add_failure(call.purpose, failure.attempts, failure.seconds, number)
                account.failed(failure, call.place)
            raise failure from error
        # A request that the transport repeats is charged once, whichever attempt got the reply.
        if account.settled(call.place):
            ledger.add_completion(call.purpose, completion, number)
            if wrong := misfit(call.body, value):
                account.misfits[f"{call.purpose}: {wrong}"] += 1
                if wrong != "cut":  # a text that was cut may be of use
                    ledger.count(ledger.parse_failures, call.purpose)
                if wrong != completion.stopped:  # noted already
                    ledger.count(ledger.notes, f"{call.purpose}: {wrong}")
        return value | {"model": call.asked.get("model") or self._upstream.model}

    async def _completed(self, call: ChatCall) -> Completion:
        if (task := self._under_way.get(call.key)) is None:
            if (stored := self._looked_up(call.key)) is not None:
                if stored.stopped and (failure := _recorded_failure(stored)) is not None:
                    raise failure
                return replace(stored, cached=True)
            if self._replay:
                raise ModelError(self._miss(call))
            task = asyncio.get_running_loop().create_task(self._sent(call))
            self._under_way[call.key] = task
            task.add_done_callback(lambda done: self._under_way.pop(call.key, None))
        return await asyncio.shield(task)

    def _looked_up(self, key: bytes) -> Completion | None:
        if self._store is None:
            return None
        stored = self._store.answer(key)
        return self._store.outcome(key) if stored is None and self._replay else stored

    async def _sent(self, call: ChatCall) -> Completion:
        if self._store is not None:
            self._store.check()
        try:
            value, seconds, attempts = await self._upstream.reply(call.body, call.purpose, call.declared)
        except EndOfRun:
            raise
        except ModelError as error:  # a program may go on differently after a failure: a replay must fail alike
            await self._kept(call, _failed(error, self._upstream.label))
            raise
        completion = _completion(value, call, seconds, attempts, self._upstream.label)
        await self._kept(call, completion)
        return completion if self._store is None else self._store.first(call.key, completion)

    async def _kept(self, call: ChatCall, completion: Completion) -> None:
        if self._store is not None:
            journal = journal_key(self._upstream.label, call.account.client, call.place)
            parts = Completion(_text({"outline": outline(call.kept), "changed": _changed(call)}))
            await self._committed((call.key, completion), (journal, parts))

    async def _committed(self, reply: Kept, journal: Kept) -> None:
        assert self._store is not None
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()

        def on_written(error: Exception | None) -> None:
            if error is None:
                loop.call_soon_threadsafe(written.set_result, None)
            else:
                loop.call_soon_threadsafe(written.set_exception, error)

        self._store.keep_answer(*reply, on_written, journal)
        await written

    def _miss(self, call: ChatCall) -> str:
        """The reason why a replay has no reply: where the request differs from the recorded request at its place."""
        assert self._store is not None
        where = f"replay: {self._store.path} has no reply for request {call.place} of {call.account.client} ({call.purpose})"
        recorded = self._store.answer(journal_key(self._upstream.label, call.account.client, call.place))
        if recorded is None:
            return f"{where}; no request was recorded at this place"
        difference = first_difference(decoded(recorded.text)["outline"], outline(call.kept))
        return f"{where}: {difference or 'its body was recorded, but not so often'}"


def _changed(call: ChatCall) -> dict[str, Any]:
    """Fields of the request that the gateway changed: [asked, sent]. Messages are never changed."""
    names = [name for name in {**call.asked, **call.body} if name != "messages"]
    pairs = {name: [call.asked.get(name), call.body.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _text(value: Any) -> str:
    """JSON without `<`: the store looks for reasoning in tags, and here it belongs to the reply."""
    return canonical(value).decode(errors="replace").replace("<", "\\u003c")


FAILURES: Mapping[str, type[ModelError]] = {kind.__name__: kind for kind in (ModelError, ContextOverflow)}
"""The kinds of failure that are reported to clients by a code of their own."""


def _failed(error: ModelError, label: str) -> Completion:
    """A call that failed for good, recorded as its own outcome; the next recording sends it again."""
    kind = type(error).__name__ if type(error).__name__ in FAILURES else ModelError.__name__
    text = _text({"failure": kind, "message": str(error)})
    return Completion(text, seconds=error.seconds, endpoint=label, attempts=error.attempts, stopped="empty")


def _recorded_failure(stored: Completion) -> ModelError | None:
    """The failure that was recorded in place of a reply; None for a reply."""
    value = decoded(stored.text)
    if "failure" not in value:
        return None
    kind = FAILURES.get(value["failure"], ModelError)
    return kind(str(value["message"]), attempts=stored.attempts, seconds=stored.seconds)


def _completion(value: Mapping[str, Any], call: ChatCall, seconds: float, attempts: int, label: str) -> Completion:
    """A raw reply as the cache and the meter take it; its text is the whole reply as JSON, with token counts filled in."""
    (_, message), usage = first_choice(value), usage_of(value)
    said, calls = text_of(message.get("content")), message.get("tool_calls") or []
    tokens_in, tokens_out = usage.prompt, usage.completion
    if tokens_in is None:
        tokens_in = sum(count_tokens(text_of(each.get("content"))) for each in call.body["messages"])
    if tokens_out is None:
        tokens_out = count_tokens(said) + sum(count_tokens(json.dumps(each)) for each in calls)
    counts = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}
    whole = {
        "object": "chat.completion",
        "created": int(time.time()),
        **value,
        "usage": {**(value["usage"] if isinstance(value.get("usage"), Mapping) else {}), **counts},
    }
    return Completion(
        _text(whole),
        prompt_tokens=tokens_in,
        completion_tokens=tokens_out,
        cached_prompt_tokens=usage.cached or 0,
        reasoning_tokens=usage.reasoning or 0,
        seconds=seconds,
        model=str(value.get("model", "")),
        endpoint=label,
        attempts=attempts,
        # A reply without content may differ the next time: it is kept as the outcome of this call only, for replays.
        stopped="" if said or calls else "empty",
        notes=("gateway: no token counts",) if usage.prompt is None else (),
    )
