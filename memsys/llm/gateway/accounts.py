"""The calls of one client of the gateway: the step they are charged to, their purpose, and their failures.

The parts of a request that determine its reply are the body without a declared list of fields, and the number of earlier equal requests
of the same client and step: programs repeat a request to get another answer.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from memsys.jsons import changed, encoded
from memsys.llm.meter import Ledger, current
from memsys.llm.protocol import ModelError

UNKEYED = frozenset(
    {"stream", "stream_options", "store", "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}
)
"""Fields of a body that do not change the reply: how it is sent, kept and billed."""
EXCERPT = 60
Item = Mapping[str, Any]
"""A part of a reply of the Responses API: a message or a function call."""
MOST_ITEMS = 10_000


@dataclass(frozen=True, slots=True)
class Normalisation:
    """A part of the texts that a product writes differently each time, such as a request id or today's date."""

    find: str
    """Regular expression."""
    put: str
    """Replaces the matched text in the key; the body that is sent keeps the original."""


def keyed(body: Mapping[str, Any], normalisations: Sequence[Normalisation] = ()) -> dict[str, Any]:
    """The part of a body that determines its reply, with the normalisations applied to all its texts."""
    kept = {name: value for name, value in body.items() if name not in UNKEYED}
    for each in normalisations:
        kept = changed(kept, partial(re.compile(each.find).sub, each.put))
    return kept


def journal_key(label: str, client: str, place: str) -> bytes:
    """The cache key under which the outline of a client's n-th request is kept."""
    return hashlib.sha256("\0".join(["gateway journal", label, client, place]).encode()).digest()


def outline(kept: Mapping[str, Any]) -> list[list[str]]:
    """Name, hash and beginning of each part of a body, messages one by one: enough to tell where two requests differ."""
    return [
        [name, hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12], text[:EXCERPT]]
        for name, text in sorted(_parts(kept))
    ]


def _parts(kept: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in kept.items():
        if isinstance(value, list) and name in ("messages", "input"):
            for place, entry in enumerate(value):
                content = entry.get("content") if isinstance(entry, Mapping) else entry
                yield f"{name}[{place}]", content if isinstance(content, str) else encoded(entry).decode()
        else:
            yield name, value if isinstance(value, str) else encoded(value).decode()


def first_difference(recorded: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> str:
    """A description of where a request differs from the recorded request; empty if it does not."""
    before, after = ({part[0]: part for part in parts} for parts in (recorded, now))
    for name in dict.fromkeys([*after, *before]):
        if name not in before:
            return f"{name} is new: {after[name][2]!r}"
        if name not in after:
            return f"{name} is gone: it was {before[name][2]!r}"
        if before[name][1] != after[name][1]:
            return f"{name} differs: {after[name][2]!r}, recorded {before[name][2]!r}"
    return ""


@dataclass(frozen=True, slots=True)
class Purpose:
    """A purpose, and how the calls of a client that serve it are recognised."""

    name: str
    find: str
    """Regular expression that must match in the system message, or in the first message where there is no system message."""
    stand_in: Mapping[str, Any] = field(default_factory=dict)
    """The offline engine's answer to such a call: `kind`, `schema`, `tool` (the offered tool that it calls; else the first), and `fields`,
    regular expressions whose first group is the field. Two expressions make a list: the second finds its elements within the group of
    the first, and its groups are joined by `: `, as speaker and text are. `record` turns each object of the reply into text (`{name}` is
    a property of it), `between` separates two of them (default a line end), and `end` follows the last."""


class Account:
    """One client of the gateway. `credit` names the step that its calls are charged to; others are charged to `idle`.

    Args:
        client: name of the client; it does not change between a recording and its replay.
        label: begins every purpose, such as the product's name.
        purposes: names for calls, the first that matches; others are named after their tool, their schema or a hash.
        normalisations: parts of a request that its key leaves out.
        overrides: fields of every request body that are replaced, such as the temperature; None removes a field.
    """

    def __init__(
        self,
        client: str,
        *,
        label: str = "client",
        purposes: Sequence[Purpose] = (),
        normalisations: Sequence[Normalisation] = (),
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self.client, self.label = client, label
        self.normalisations, self.overrides = tuple(normalisations), dict(overrides or {})
        self.purposes = tuple(purposes)
        self._patterns = [(re.compile(purpose.find), purpose) for purpose in purposes]
        self.base_url = ""
        """Set by the gateway that opens the account."""
        self.idle = Ledger()
        """Calls that arrived while no step was under way."""
        self.failures: list[ModelError] = []
        """Calls of the step under way that failed for good; the client itself may have ignored the failure."""
        self.misfits: Counter[str] = Counter()
        """Number of replies that do not have the requested form, by purpose."""
        self.items: dict[str, Item | None] = {}
        """The newest MOST_ITEMS items of replies, by id, to which later requests may refer; None where an id had different items, because
        the ids come from the server, and some servers repeat them."""
        self._ledger: Ledger | None = None
        self._scope = ""
        self._occurrences: Counter[tuple[str, bytes]] = Counter()
        self._places: dict[tuple[str, bytes], str] = {}
        self._settled: set[str] = set()
        self._failed: dict[str, ModelError] = {}
        self._numbers = itertools.count()
        self._arrived: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def ledger(self) -> Ledger:
        """The charge for a call that arrives now."""
        return self._ledger or self.idle

    @contextmanager
    def credit(self, scope: str, *, afresh: bool = False) -> Iterator[None]:
        """Charge the calls of this block to the ledger of the calling step (`meter.metering`).

        Args:
            scope: equal requests are numbered within it: `build` for all writes of a case, one for each question.
            afresh: numbers start at 0 again, as for a history that is written a second time.
        """
        with self._lock:
            self._ledger, self._scope = current() or self.idle, scope
            self.failures = []
            if afresh:
                self._occurrences = Counter({key: n for key, n in self._occurrences.items() if key[0] != scope})
                self._settled = {place for place in self._settled if place.rpartition("#")[0] != scope}
                self._arrived.pop(scope, None)
        try:
            yield
        finally:
            with self._lock:
                self._ledger, self._scope = None, ""

    def numbered(self, digest: bytes, *, again: bool) -> tuple[int, str, bool]:
        """Number of earlier equal requests in this scope, the request's place among all requests of the scope, and whether it is repeated.

        Args:
            again: the client's transport repeats a request that got no reply; this does not count as a new occurrence.
        """
        with self._lock:
            key = (self._scope, digest)
            if again and self._occurrences[key]:
                return self._occurrences[key] - 1, self._places[key], True
            self._occurrences[key] += 1
            self._arrived[self._scope] += 1
            self._places[key] = f"{self._scope}#{self._arrived[self._scope] - 1}"
            return self._occurrences[key] - 1, self._places[key], False

    def failed(self, error: ModelError, place: str = "") -> None:
        """Report a call that failed for good to the harness."""
        with self._lock:
            self.failures.append(error)
            if place:
                self._failed[place] = error

    def keep_items(self, output: Sequence[Item]) -> None:
        """Keep the items of a reply, so that a later request can refer to them."""
        with self._lock:
            for item in output:
                name = str(item["id"])
                self.items[name] = item if self.items.pop(name, item) == item else None
            while len(self.items) > MOST_ITEMS:
                del self.items[next(iter(self.items))]

    def settled(self, place: str) -> bool:
        """Whether this is the first reply for a place; then it is charged, and an earlier failure of that place is forgotten."""
        with self._lock:
            if place in self._settled:
                return False
            self._settled.add(place)
            if (failure := self._failed.pop(place, None)) in self.failures:
                self.failures.remove(failure)
            return True

    def purpose_of(self, body: Mapping[str, Any]) -> tuple[str, Purpose | None]:
        """The purpose of a chat request as `label.name`, and the declared purpose that matched, if any."""
        head = system_text(body)
        for pattern, purpose in self._patterns:
            if pattern.search(head):
                return f"{self.label}.{purpose.name}", purpose
        return f"{self.label}.{_form_name(body) or hashlib.sha256(head.encode(errors='replace')).hexdigest()[:8]}", None

    def call_number(self) -> int:
        """A number for the group of one call in the ledger; negative, so that it differs from the meter's own numbers."""
        with self._lock:
            return -1 - next(self._numbers)


def text_of(content: Any) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def first_choice(reply: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The first choice of a chat completion and its message; empty where a server sent something else."""
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    message = choice.get("message")
    return choice, message if isinstance(message, Mapping) else {}


def system_text(body: Mapping[str, Any]) -> str:
    """The system message of a chat request, or its first message where there is none."""
    messages = [message for message in body.get("messages") or () if isinstance(message, Mapping)]
    leading = [message for message in messages if message.get("role") in ("system", "developer")] or messages[:1]
    return text_of(leading[0].get("content")) if leading else ""


NAMED = 60
"""Characters of a purpose's name that come from the names of tools."""


def _form_name(body: Mapping[str, Any]) -> str:
    """The names of the tools, or of the schema, that a request asks for, shortened if there are many; empty if it asks for none."""
    names = [str(tool["function"]["name"]) for tool in body.get("tools") or () if tool.get("function")]
    schema = (body.get("response_format") or {}).get("json_schema") or {}
    whole = "+".join(names) or str(schema.get("name") or "")
    return whole if len(whole) <= NAMED else f"{whole[:NAMED]}… ({hashlib.sha256(whole.encode()).hexdigest()[:8]})"
