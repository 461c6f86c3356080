"""Chat replies through the cache: looked up, sent once to an endpoint or to the offline engine in its place, kept, metered, and checked for
the requested form. Most programs ignore a reply that does not have it, so the gateway counts such replies.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from memsys.jsons import canonical, decoded
from memsys.llm.endpoint import Call, Endpoint, Sent
from memsys.llm.gateway.accounts import (
    Account,
    Purpose,
    first_choice,
    first_difference,
    journal_key,
    keyed,
    outline,
    text_of,
)
from memsys.llm.gateway.bodies import LIMITS, MalformedBody, check_priced, checked, limit_of, most_tokens_in
from memsys.llm.meter import Ledger
from memsys.llm.network import check_url
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import LLM, Completion, ContextOverflow, EndOfRun, ModelError, Request, keeping, release
from memsys.llm.replies import usage_of
from memsys.llm.store import CacheStore
from memsys.tokens import count_tokens


class Upstream(Protocol):
    """Answers bodies of chat completions."""

    label: str
    """Part of the cache key, as in `memsys.llm.cache`."""
    model: str

    def prepared(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body as it is sent: with the row's model and limits in place of the client's.

        Args:
            body: as `bodies.checked` returned it.

        Raises:
            MalformedBody: it cannot be sent, because its cost would have no bound.
        """

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        """The reply to a prepared body.

        Raises:
            ModelError: the call failed for good.
        """


class EndpointUpstream:
    """An endpoint, with its limits, retries and spending cap."""

    def __init__(self, endpoint: Endpoint, settings: ModelSettings) -> None:
        self._endpoint, self._settings = endpoint, settings
        self.label, self.model = endpoint.label, settings.model

    def prepared(self, body: Mapping[str, Any]) -> dict[str, Any]:
        settings = self._settings
        if settings.usd_per_million_in is not None:
            check_priced(body)
        sent = {name: value for name, value in body.items() if name not in LIMITS} | {"model": settings.model}
        if (asked := limit_of(body)) is not None:
            sent[settings.token_limit_field] = settings.output_limit(asked)
        elif settings.max_output_tokens is not None:
            sent[settings.token_limit_field] = settings.max_output_tokens
        elif settings.context_tokens is None and self._endpoint.purse.max_usd is not None:
            raise MalformedBody(
                "max_usd is set, so the length of the reply needs a limit: send max_tokens, or set one for all replies "
                "(--max-output-tokens of the gateway, endpoint.max_output_tokens of a run)"
            )
        if not settings.send_temperature:
            sent = {name: value for name, value in sent.items() if name not in ("temperature", "top_p")}
        if settings.reasoning_effort is not None:
            sent["reasoning_effort"] = settings.reasoning_effort
        return {**sent, **settings.extra_body}

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        check_url(self._endpoint.base_url)
        sent = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        call = Call("/chat/completions", sent, self._worst(sent), self._settings.cost_of)
        with keeping():
            future = self._endpoint.start(call, lambda sent: sent)
        # Its place is kept until the task that writes the reply to the cache has ended.
        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(lambda _: release(future))
        return await asyncio.wrap_future(future)

    def _worst(self, sent: Mapping[str, Any]) -> float | None:
        """The highest possible cost in US dollars; None where the price is unknown or nothing limits the reply."""
        limit = limit_of(sent) or self._settings.context_tokens
        if self._settings.usd_per_million_in is None or limit is None:
            return None
        return self._settings.cost(most_tokens_in(sent), limit * (sent.get("n") or 1))


class EngineUpstream:
    """The offline engine: it answers requests by the `stand_in` of their purpose, and fills the schema or tool of other requests.

    A declared schema replaces the client's, which may allow replies that make no sense together. A declared `record` turns the values of
    the schema into plain text, for clients that do not ask for JSON.
    """

    def __init__(self, engine: LLM) -> None:
        self._engine = engine
        self.label, self.model = "offline", "extractive"

    def prepared(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, "model": self.model}

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        stand_in = declared.stand_in if declared else {}
        tool = asked_tool(body, str(stand_in.get("tool", "")))
        schema = dict(stand_in.get("schema") or {}) or asked_schema(body, tool)
        request = self._request(body, purpose, stand_in, schema)
        # In a thread: the engine computes, and the loop serves others meanwhile.
        completion = await asyncio.to_thread(lambda: self._engine.submit(request).result())
        text, tokens_out = completion.text, completion.completion_tokens
        if "record" in stand_in:
            text = _records(stand_in, text)
            tokens_out = count_tokens(text)
        value = _as_reply(tool, text, completion.prompt_tokens, tokens_out)
        return Sent(value, usage_of(value), 0.0, 1)

    def _request(
        self, body: Mapping[str, Any], purpose: str, stand_in: Mapping[str, Any], schema: Mapping[str, Any]
    ) -> Request:
        messages = tuple((str(each.get("role")), text_of(each.get("content"))) for each in body["messages"])
        last = messages[-1][1] if messages else ""
        fields: dict[str, Any] = {"text": last, "texts": [last], "question": last}
        for name, pattern in (stand_in.get("fields") or {}).items():
            fields[name] = _picked([pattern] if isinstance(pattern, str) else pattern, last)
        limit = limit_of(body) or 512
        kind = str(stand_in.get("kind", "summarise" if schema else "chat"))
        return Request(messages, purpose, limit, schema=schema or None, kind=kind, fields=fields)


def asked_schema(body: Mapping[str, Any], tool: Mapping[str, Any] | None) -> dict[str, Any]:
    """The JSON schema that the reply, or the arguments of the called tool, must satisfy; empty if the request has no schema."""
    if tool is not None:
        return inlined(tool.get("parameters") or {"type": "object"})
    form = (body.get("response_format") or {}).get("json_schema") or {}
    return inlined(form["schema"]) if form.get("schema") else {}


def asked_tool(body: Mapping[str, Any], preferred: str = "") -> Mapping[str, Any] | None:
    """The tool to call: the tool that the client names, else the preferred tool, else the first; None if no tool is requested."""
    offered = [tool.get("function") for tool in body.get("tools") or ()]
    tools: list[Mapping[str, Any]] = [tool for tool in offered if isinstance(tool, Mapping)]
    choice = body.get("tool_choice", "auto")
    if not tools or choice == "none":
        return None
    wanted = choice.get("function", {}).get("name") if isinstance(choice, Mapping) else preferred
    return next((tool for tool in tools if tool.get("name") == wanted), tools[0])


def inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with its local references (`$ref`) replaced by their targets; a reference to itself becomes an empty object."""

    def resolve(value: Any, above: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [resolve(inner, above) for inner in value]
        if not isinstance(value, Mapping):
            return value
        target = value.get("$ref")
        if isinstance(target, str) and target.startswith("#/"):
            if target in above:
                return {"type": "object", "properties": {}}
            found: Any = schema
            for part in target[2:].split("/"):
                found = found[part]
            return resolve(found, (*above, target))
        return {name: resolve(inner, above) for name, inner in value.items() if name not in ("$defs", "definitions")}

    resolved: dict[str, Any] = resolve(dict(schema), ())
    return resolved


def _as_reply(tool: Mapping[str, Any] | None, text: str, tokens_in: int, tokens_out: int) -> dict[str, Any]:
    """A chat completion with this text, or with a call of the tool."""
    name = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    reason = "stop"
    if tool is not None:
        arguments = text if _is_object(text) else json.dumps({"text": text})
        function = {"name": tool.get("name"), "arguments": arguments}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"id": f"call_{name}", "type": "function", "function": function}]
        reason = "tool_calls"
    usage = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"id": f"engine-{name}", "object": "chat.completion", "created": 0, "choices": [choice], "usage": usage}


def _records(stand_in: Mapping[str, Any], text: str) -> str:
    """A reply in plain text in place of JSON: a record for each element of a list, or one for an object."""
    value = json.loads(text)
    records = [stand_in["record"].format(**each) for each in (value if isinstance(value, list) else [value])]
    return str(stand_in.get("between", "\n")).join(records) + str(stand_in.get("end", ""))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _picked(patterns: Sequence[str], text: str) -> str | list[str]:
    """The first group of a pattern; with two patterns, the groups of each match of the second in the match of the first, joined by `: `."""
    outer, *inner = patterns
    match = re.search(outer, text, re.DOTALL)
    found = match[1] if match else ""
    return [_joined(each) for each in re.finditer(inner[0], found, re.DOTALL)] if inner else found


def _joined(match: re.Match[str]) -> str:
    """The groups that took part in a match; the whole match if there are none."""
    groups = [group for group in match.groups() if group is not None]
    return ": ".join(groups) if groups else match[0]


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
        digest = hashlib.sha256(canonical(kept)).digest()
        purpose, declared = account.purpose_of(body)
        occurrence, place, again = account.numbered(digest, again=again)
        named = [b"gateway", upstream.label.encode(), digest, str(occurrence).encode()]
        key = hashlib.sha256(b"\0".join(named)).digest()
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
            sent = await self._upstream.reply(call.body, call.purpose, call.declared)
        except EndOfRun:
            raise
        except ModelError as error:  # a program may go on differently after a failure: a replay must fail alike
            await self._kept(call, _failed(error, self._upstream.label))
            raise
        completion = _completion(sent, call, self._upstream.label)
        await self._kept(call, completion)
        return completion if self._store is None else self._store.first(call.key, completion)

    async def _kept(self, call: ChatCall, completion: Completion) -> None:
        if self._store is None:
            return
        journal = journal_key(self._upstream.label, call.account.client, call.place)
        parts = Completion(_text({"outline": outline(call.kept), "changed": _changed(call)}))
        await asyncio.wrap_future(self._store.keep_answer(call.key, completion, (journal, parts)))

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


def _completion(sent: Sent, call: ChatCall, label: str) -> Completion:
    """A raw reply as the cache and the meter take it; its text is the whole reply as JSON, with token counts filled in."""
    value, usage = sent.value, sent.usage
    _, message = first_choice(value)
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
        seconds=sent.seconds,
        model=str(value.get("model", "")),
        endpoint=label,
        attempts=sent.attempts,
        # A reply without content may differ the next time: it is kept as the outcome of this call only, for replays.
        stopped="" if said or calls else "empty",
        notes=("gateway: no token counts",) if usage.prompt is None else (),
    )


def misfit(body: Mapping[str, Any], reply: Mapping[str, Any]) -> str:
    """The fault of a reply's form: `no JSON`, `not the schema`, `no tool call`, `unknown tool`, `cut` or `empty`; "" without a fault."""
    choice, message = first_choice(reply)
    calls = message.get("tool_calls") or []
    if choice.get("finish_reason") == "length":
        return "cut"
    if body.get("tools"):
        return _wrong_calls(body, calls)
    text = text_of(message.get("content"))
    if not text.strip() and not calls:
        return "empty"
    form = body.get("response_format") or {}
    if form.get("type") not in ("json_object", "json_schema"):
        return ""
    try:
        value = json.loads(text)
    except ValueError:
        return "no JSON"
    schema = {"type": "object"} if form["type"] == "json_object" else (form.get("json_schema") or {}).get("schema")
    return "not the schema" if schema and not fits(value, schema) else ""


def _wrong_calls(body: Mapping[str, Any], calls: list[Any]) -> str:
    functions = [tool["function"] for tool in body["tools"] if tool.get("type", "function") == "function"]
    tools = {function["name"]: function.get("parameters") for function in functions}
    if not calls:
        wanted = body.get("tool_choice", "auto")
        return "no tool call" if wanted == "required" or isinstance(wanted, Mapping) else ""
    for call in calls:
        if call.get("type", "function") != "function":
            continue  # a custom tool takes any text
        function = call.get("function") or {}
        if function.get("name") not in tools:
            return "unknown tool"
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except ValueError:
            return "no JSON"
        if (schema := tools[function["name"]]) and not fits(arguments, schema):
            return "not the schema"
    return ""


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value satisfies a JSON schema; a schema that is not valid itself is satisfied by everything."""
    from jsonschema_rs import Draft202012Validator

    try:
        validator = Draft202012Validator(inlined(schema), retriever=_refused)
    except (KeyError, TypeError, ValueError):
        return True
    try:
        return bool(validator.is_valid(value))
    except UnicodeEncodeError:  # half of a surrogate pair in a name: no text
        return False


def _refused(address: str) -> Any:
    """Refuse to fetch the remote references of a schema, because the schema comes from a product."""
    raise ValueError(f"{address} is not fetched")
