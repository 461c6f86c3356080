"""The common part of memories of HTTP services and MCP servers: steps become calls, replies become items, and failures are counted.

There is no paper and no `mode`. Decisions:

- Each case has its own namespace, `memsys-<seed>-<random>`, so that parallel runs, or a run after a crash, do not share data.
  It is deleted when the case ends. A killed run leaves its namespaces behind, and a file for each (`memsys.services.leftovers`);
  the next run with the same service on this machine deletes them (`clear_up`).
- A call that failed for good fails its step: a memory that silently lacks a unit would be scored as if it had forgotten the unit. `ok` is
  the condition on a successful reply, for services that report failures with status 200.
- `wait` is a condition: before questions are read, the service must report all added texts as indexed. When the time limit passes, the
  case fails.
- Recalled text is cut to `k` items; extra items, blank items and repeated ids are counted.
- The evidence of an item is the turn ids that the service returns, or the ids that it gave to adds (`results.sources`); without them, the
  turns whose text occurs in the item. The report counts both, and items of unknown evidence.
- Nothing is cached and nothing can be replayed: the state is the service's. `replay=true` shows finished runs and refuses others.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Asker, Question, Turn, Unit
from memsys.interface import Item, MemorySystem, Positive, Recall, Settings, dated, union
from memsys.jsons import encoded
from memsys.llm import meter, stopping
from memsys.llm.protocol import ModelError
from memsys.llm.secrets import redact, written_key
from memsys.services.leftovers import Namespaces
from memsys.services.templates import Condition, condition, mapping, placeholders, reached

RESULTS = {"items": "", "text": "", "id": "", "score": "", "distance": "", "sources": "", "time": ""}
SHORTEST = 12
"""Minimum number of characters of a turn's text that is recognised in an item; shorter texts occur in every dialogue."""
LAST_WORDS = 5.0
"""Seconds that one call may take after a stop was requested."""
FEW = 3
"""Number of deletions that may fail before the others are left to the next run: the service is down, or refuses all of them."""
STEPS = ("open", "add", "end", "search", "reset", "delete")
OF_A_CASE = {"namespace"}
OF_A_UNIT = OF_A_CASE | {"unit", "session", "text", "dated_text", "time", "time_text", "timestamp", "turns", "turn_ids"}
OF_A_TURN = OF_A_UNIT | {"turn", "speaker", "role"}
OF_AN_ASKER = {"asker", "asker_role"}
OF_A_QUESTION = OF_A_CASE | OF_AN_ASKER | {"query", "k", "time", "time_text", "timestamp"}
KNOWN = {
    "open": OF_A_CASE,
    "add": OF_A_TURN,
    "end": OF_A_CASE | {"session"},
    "search": OF_A_QUESTION,
    "reset": OF_A_CASE,
    "delete": OF_A_CASE,
    "wait": OF_A_CASE | {"id"},
}
"""Placeholders of each step."""


class ServiceError(ModelError):
    """A service's reply says that a step failed, or lacks a needed value."""


class NotIndexed(ServiceError):
    """An added text was not reported as indexed in time."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The settings of the wait until added texts can be found."""

    call: Any
    done: Condition
    failed: Condition | None
    seconds: float
    every: float
    each: bool
    """Whether to ask for the state of each add by its id, instead of the whole namespace."""


@dataclass(frozen=True)
class ServiceSettings(Settings):
    """Settings of a memory behind an interface.

    Raises:
        ValueError: an unknown choice, a number below 1, or a key among the values.
    """

    k: Positive = 10
    """Maximum number of items of a recall."""
    per: Literal["unit", "turn"] = "unit"
    """The content of one add."""
    version: str = ""
    """The program's version, part of the run's identity."""
    headers: Mapping[str, str] | None = None
    """Sent with every call over HTTP."""
    open: Mapping[str, Any] | None = None
    """The call before the first add of a case; like the other five, None for a step that the service does not have."""
    add: Mapping[str, Any] | None = None
    end: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None
    reset: Mapping[str, Any] | None = None
    delete: Mapping[str, Any] | None = None
    results: Mapping[str, str] | None = None
    """Paths in the reply of a search; `items` is the list, the others are within an entry."""
    wait: Mapping[str, Any] | None = None
    """`{call: …, done: {path, equals}, failed: {path, equals}, seconds: 60, every: 0.5}`; None for a service that is ready when an add
    returns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        stated = {name: value for name, value in vars(self).items() if name not in ("key_env", "keys")}
        if fault := written_key(stated):
            raise ValueError(fault)

    @property
    def steps(self) -> dict[str, Mapping[str, Any]]:
        """The steps that the service supports."""
        return {name: call for name in STEPS if (call := getattr(self, name)) is not None}


class ServiceMemory(MemorySystem):
    """Recalls the hits of a service. A subclass turns the description of a step into a call (`_prepared`) and makes it (`_send`).

    Raises:
        ValueError: a setting has another form.
    """

    settings: ServiceSettings
    READ_KNOBS: ClassVar = ("k",)
    EMBEDS_UNITS: ClassVar = False
    REHEARSED: ClassVar = False
    REPLAYABLE: ClassVar = False
    WAITS_TO_READ: ClassVar = True
    WAIVED: ClassVar = {
        "reading leaves the memory as it was": "its state lies in another program; conformance compares what it recalls",
        "no clock is looked at": "a service reads its own clock; conformance looks for the dialogue's dates",
        "two memories share nothing": "its state lies in another program; conformance looks for leaks between cases",
        "a model that babbles breaks nothing": "the models that it calls are its own",
    }

    NEEDED: ClassVar[tuple[str, ...]] = ("add", "search", "delete")
    """Steps without which nothing can be measured."""

    def __init__(self, rng: np.random.Generator, settings: ServiceSettings) -> None:
        self._results = RESULTS | mapping("results", settings.results or {}, set(RESULTS))
        self._steps = {name: self._checked(name, given) for name, given in settings.steps.items()}
        if missing := sorted(set(self.NEEDED) - set(self._steps)):
            raise ValueError(f"{missing[0]} is missing: this memory needs {', '.join(self.NEEDED)}")
        self._oks = {name: condition(f"{name}.ok", given.get("ok")) for name, given in self._steps.items()}
        self._wait = None if settings.wait is None else self._rule(settings.wait)
        self.namespace = f"memsys-{rng.integers(2**32):08x}-{secrets.token_hex(4)}"
        self._texts: dict[str, str] = {}
        self._adds: dict[str, tuple[str, ...]] = {}
        self._pending: list[str] = []
        self._opened = False
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    # --- for subclasses --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _prepared(self, where: str, given: Any) -> dict[str, Any]:
        """The description of a call, checked; raises ValueError for another form."""

    @abstractmethod
    def _send(self, step: str, call: Mapping[str, Any], values: Mapping[str, Any], *, last: bool = False) -> Any:
        """Make a call and return the decoded reply; raises ModelError if it failed for good.

        Args:
            last: make it although a stop was requested, once and for a few seconds.
        """

    @property
    @abstractmethod
    def _namespaces(self) -> Namespaces:
        """The files of this process's namespaces at the service."""

    def _shut(self) -> None:
        """Release the resources of this memory alone, such as a process."""

    def write(self, unit: Unit) -> None:
        self._open()
        for turns in (unit.turns,) if self.settings.per == "unit" else ((turn,) for turn in unit.turns):
            spoken = tuple(turn for turn in turns if turn.text.strip())
            if spoken:
                reply = self._ask("add", _values(unit, spoken))
                self._keep_ids(reply, spoken)
                self._texts.update((turn.id, turn.text.strip()) for turn in spoken)

    def end_session(self, session_id: str) -> None:
        if self._texts and "end" in self._steps:
            self._ask("end", {"session": session_id})

    def consolidate(self) -> None:
        """Wait until all added texts are indexed.

        Raises:
            NotIndexed: a text was not indexed in time.
            ServiceError: the service reports that indexing failed.
        """
        if self._wait is None or not self._texts:
            return
        if not self._wait.each:
            self._await({})
        while self._pending:
            self._await({"id": self._pending[0]})
            del self._pending[0]

    def read(self, question: Question) -> Recall:
        if not self._texts:
            return Recall(())
        asker = question.asker or Asker("")
        who = {"asker": asker.id, "asker_role": asker.role}
        asked = {"query": question.text, "k": self.settings.k, **who, **_times(question)}
        return Recall(tuple(self._items(self._ask("search", asked))))

    @property
    def uses_asker(self) -> bool:
        return bool(OF_AN_ASKER & placeholders(self._steps["search"]))

    @property
    def can_reset(self) -> bool:
        """Whether the namespace can be emptied before the case ends."""
        return bool({"reset", "delete"} & set(self._steps))

    def reset(self) -> None:
        """Empty the namespace; it can be written to again."""
        self._ask("reset" if "reset" in self._steps else "delete", {})
        self._opened = "reset" in self._steps
        if not self._opened:
            self._namespaces.remove(self.namespace)
        self._pending.clear()

    def close(self) -> None:
        """Delete the namespace. A failure is counted; the case is complete all the same."""
        try:
            if self._opened and "delete" in self._steps:
                if stopping.requested():
                    self._send("delete", self._steps["delete"], {"namespace": self.namespace}, last=True)
                else:
                    self._ask("delete", {})
                self._namespaces.remove(self.namespace)
        except (ModelError, OSError, TimeoutError):
            self._count("not_deleted")
        finally:
            self._opened = False
            self._shut()

    @property
    def held(self) -> int:
        return self._counts["add"]

    def report(self) -> dict[str, Any]:
        """Number of calls that change the memory, and of failures."""
        return {"counts": {name: n for name, n in sorted(self._counts.items()) if n}}

    def clear_up(self) -> str:
        if "delete" not in self._steps:
            return ""
        try:
            left = self._namespaces.taken_over()
        except OSError as error:
            return f"the files of namespaces that killed runs left cannot be read: {error}"
        kept, failures = list(left), list[str]()
        try:
            for namespace in left:
                if len(failures) == FEW:
                    break
                try:
                    self._ask("delete", {}, namespace)
                    self._namespaces.remove(namespace)
                    kept.remove(namespace)
                except (ModelError, OSError, TimeoutError) as error:
                    stopping.check()
                    failures.append(redact(f"{type(error).__name__}: {error}")[:300])
        finally:
            self._shut()
        return self._namespaces.cleared(len(left), kept, failures)

    def _open(self) -> None:
        if not self._opened:
            if "delete" in self._steps:
                try:  # before the first call with the namespace
                    self._namespaces.add(self.namespace)
                except OSError:
                    self._count("not_recorded")
            if "open" in self._steps:
                self._ask("open", {})
            self._opened = True

    def _ask(self, step: str, values: Mapping[str, Any], namespace: str = "") -> Any:
        """Make the call of a step.

        Args:
            namespace: in place of this memory's own.

        Raises:
            ModelError: it failed for good, or its reply says so.
        """
        self._count(step, reported=step != "search")
        try:
            reply = self._send(step, self._steps[step], {**values, "namespace": namespace or self.namespace})
            if (ok := self._oks[step]) is not None and not ok.holds(reply):
                wanted = f"{ok.path or 'the reply'} to be {' or '.join(map(repr, ok.equals))}"
                raise ServiceError(f"{step}: expected {wanted}, the reply is {_excerpt(reply)}")
        except ModelError:
            self._count(f"{step}.failed")
            raise
        return reply

    def _await(self, values: Mapping[str, Any]) -> None:
        rule = self._wait
        assert rule is not None
        deadline = time.monotonic() + rule.seconds
        while True:
            stopping.check()
            reply = self._send("wait", rule.call, {**values, "namespace": self.namespace})
            if rule.failed is not None and rule.failed.holds(reply):
                self._count("wait.failed")
                raise ServiceError(f"wait: the service failed to index what was added: {_excerpt(reply)}")
            if rule.done.holds(reply):
                return
            if time.monotonic() + rule.every > deadline:
                self._count("wait.expired")
                raise NotIndexed(f"wait: not indexed within {rule.seconds:g} s; the last reply is {_excerpt(reply)}")
            meter.note("service.wait")
            time.sleep(rule.every)

    def _keep_ids(self, reply: Any, turns: tuple[Turn, ...]) -> None:
        """Remember the service's id of an add: to wait for it, and to find the turns of a recalled item."""
        if (path := self._steps["add"].get("id")) is None:
            return
        ids = [str(value) for value in reached(reply, str(path)) if value is not None]
        self._adds.update((name, tuple(turn.id for turn in turns)) for name in ids)
        if self._wait is not None and self._wait.each:
            if not ids:
                raise ServiceError(f"add: no id at {path!r} to wait for; the reply is {_excerpt(reply)}")
            self._pending += ids

    def _count(self, event: str, *, reported: bool = True) -> None:
        meter.note(f"service.{event}")
        if reported:
            with self._lock:
                self._counts[event] += 1

    def _items(self, reply: Any) -> Iterator[Item]:
        known: set[str] = set()
        hits = self._hits(reply)
        if len(hits) > self.settings.k:
            self._count("more_than_k", reported=False)
        for rank, hit in enumerate(hits):
            if len(known) == self.settings.k:
                return
            text = _first(hit, self._results["text"]) if self._results["text"] else hit
            name = f"hit-{rank}" if (given := _first(hit, self._results["id"])) in (None, "") else str(given)
            text = text if text is None or isinstance(text, str) else encoded(text).decode()
            if text is None or not text.strip():
                self._count("blank", reported=False)
            elif name in known:
                self._count("repeated", reported=False)
            else:
                known.add(name)
                shown = dated(text, str(_first(hit, self._results["time"]) or ""))
                yield Item(name, shown, self._score(rank, hit), self._evidence(hit, shown))

    def _hits(self, reply: Any) -> list[Any]:
        """The entries of a search's reply; null is none, as some services write an empty list, and a reply that is itself a hit is one."""
        path = self._results["items"]
        for value in reached(reply, path):
            if isinstance(value, list):
                return value
            if (
                value is None
                or isinstance(value, str)
                or (not path and _first(value, self._results["text"]) is not None)
            ):
                return [value] if value else []
        raise ServiceError(f"search: no list of items at {path!r}; the reply is {_excerpt(reply)}")

    def _score(self, rank: int, hit: Any) -> float:
        score, distance = _first(hit, self._results["score"]), _first(hit, self._results["distance"])
        ranked = score if _is_number(score) else -distance if _is_number(distance) else -rank
        return round(float(ranked), 6)

    def _evidence(self, hit: Any, text: str) -> tuple[str, ...]:
        """Ids of the turns that an item comes from."""
        path = self._results["sources"]
        named = [name for value in reached(hit, path) for name in _listed(value)] if path else []
        if turns := union(self._adds.get(name, (name,) if name in self._texts else ()) for name in named):
            how = "named"
        else:
            turns = tuple(turn for turn, said in self._texts.items() if len(said) >= SHORTEST and said in text)
            how = "matched" if turns else "unknown"
        self._count(f"evidence_{how}", reported=False)
        return turns

    def _checked(self, step: str, given: Any) -> dict[str, Any]:
        call = self._prepared(step, given)
        if unknown := sorted(placeholders(call) - KNOWN[step]):
            raise ValueError(f"{step}: {{{unknown[0]}}} is not known there; there are {', '.join(sorted(KNOWN[step]))}")
        return call

    def _rule(self, given: Mapping[str, Any]) -> Wait:
        given = mapping("wait", given, {"call", "done", "failed", "seconds", "every"})
        call, done = self._checked("wait", given.get("call")), condition("wait.done", given.get("done"))
        seconds, every = float(given.get("seconds", 60.0)), float(given.get("every", 0.5))
        if done is None or seconds <= 0 or every <= 0:
            raise ValueError("wait needs call and done, and seconds and every above 0")
        each = "id" in placeholders(call)
        if each and "id" not in self._steps["add"]:
            raise ValueError("wait asks for {id}: add.id must say where the reply of an add has it")
        return Wait(call, done, condition("wait.failed", given.get("failed")), seconds, every, each)


def _values(unit: Unit, turns: tuple[Turn, ...]) -> dict[str, Any]:
    """The values that an add may name."""
    text = Unit(unit.id, turns, unit.session_id).text
    of_turns = [{"turn": turn.id, "speaker": turn.speaker, "role": turn.role, "text": turn.text} for turn in turns]
    own = {**of_turns[0]} if len(turns) == 1 else {"turn": None, "speaker": None, "role": None}
    return {
        **own,
        "unit": unit.id,
        "session": unit.session_id,
        "text": text,
        "dated_text": dated(text, unit.time_text),
        "turns": of_turns,
        "turn_ids": [turn.id for turn in turns],
        **_times(unit),
    }


def _times(given: Unit | Question) -> dict[str, Any]:
    """The time as text of the data set, as ISO 8601 in UTC, and in seconds since 1970; None where it is unknown."""
    moment = None if given.time is None else given.time.replace(tzinfo=UTC)
    return {
        "time": None if moment is None else moment.isoformat().replace("+00:00", "Z"),
        "time_text": given.time_text or None,
        "timestamp": None if moment is None else int(moment.timestamp()),
    }


def _first(hit: Any, path: str) -> Any:
    """The first value at a path that is not null; None for an empty path."""
    return next((value for value in reached(hit, path) if value is not None), None) if path else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _listed(value: Any) -> list[str]:
    return (
        [str(entry) for entry in value] if isinstance(value, list) else [name.strip() for name in str(value).split(",")]
    )


def _excerpt(reply: Any) -> str:
    return redact(repr(reply))[:200]
