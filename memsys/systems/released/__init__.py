"""Released products as memories: the installed program itself, not a re-implementation, behind the gateway.

There is no paper and no `mode`: `product` names the pins (conf/product) and the adapter (`memsys/products/adapters`). Each case has a
process of its own, with its own home folder, the dialogue's clock and seeded ids. If the system has a sandbox
(`memsys.products.sandbox`: bubblewrap, or Linux with user namespaces), the process reaches only the gateway, and sees the system's
programs, its environment and its own folder. Without a sandbox it runs with the user's rights: it gets no keys, and Python's own
connections and child processes are refused, but a malicious product can read the user's files and reach the network. The report of
a case says which applies (`abilities.sandbox`).

Deviations and decisions:

- `clock="dialogue"`: many products can only store the current time, so their clock shows the time of the unit or question (not `wall`).
- A model call that failed for good fails the step, even if the product ignores the failure: a memory that silently lacks a unit would
  be scored as if it had forgotten the unit.
- A worker that died is started again and gets the same history, whose replies are cached; after `restarts` restarts the case fails.
- Scores are rounded to six digits and ties broken by the order of storing, because products leave it open.
- The adapter reads the evidence of an item from the product's metadata; the report says whether it is exact.
- Reads of one case are taken one at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Turn, Unit
from memsys.interface import Item, MemorySystem, NodeView, Positive, Recall, dated, spoken
from memsys.jsons import encoded
from memsys.llm import meter
from memsys.llm.gateway.accounts import Account, Normalisation, Purpose
from memsys.llm.gateway.server import Gateway
from memsys.products.places import place_of
from memsys.products.process import Limits, MalformedReply, ProductSession, count
from memsys.products.surroundings import PROGRAM

CHANGES = ("stored", "changed", "deleted")


@dataclass(frozen=True)
class ReleasedSettings(Limits):
    """Settings for running a product."""

    product: str = "mem0ai"
    """Name of a file in conf/product, or the path of an adapter (`….py`) that runs in our own environment."""
    k: Positive | None = 20
    """Maximum number of items of a recall; None takes all hits of the product's search, for a search without such a number."""
    clock: Literal["dialogue", "wall"] = "dialogue"
    settings: Mapping[str, Any] | None = None
    """Passed to the adapter."""
    purposes: Sequence[Mapping[str, Any]] = ()
    """Names of its calls, and how the offline engine answers them (`memsys.llm.gateway.accounts.Purpose`)."""
    normalise: Sequence[Mapping[str, str]] = ()
    """Varying parts of the product's requests, such as dates, as `{find: regular expression, put: text}`."""
    overrides: Mapping[str, Any] | None = None
    """Fields of every chat request that are replaced, such as the temperature; None removes one."""


class Released(MemorySystem):
    """Recalls the hits of a product's search.

    Raises:
        ValueError: an unknown product.
    """

    READ_KNOBS: ClassVar = ("k",)
    UNIT: ClassVar = {"rule": "floor_pair", "on_unpaired": "keep_single"}
    EMBEDS_UNITS: ClassVar = False
    REHEARSED: ClassVar = False
    WAIVED: ClassVar = {
        "reading leaves the memory as it was": "its state lies in another process; what it recalls is compared instead",
        "no clock is looked at": "a product reads its clock, which is patched in its own process",
        "two memories share nothing": "its state lies in another process; a case has a process of its own",
        "a model that babbles breaks nothing": "its calls pass through the gateway, which counts misfits",
    }

    def __init__(
        self, gateway: Gateway, rng: np.random.Generator, options: ReleasedSettings = ReleasedSettings()
    ) -> None:
        self.options = options
        seed = int(rng.integers(2**31))
        place = place_of(options.product)
        account = Account(
            f"{place.name}/{seed:08x}",
            label=place.name,
            purposes=tuple(Purpose(**each) for each in options.purposes),
            normalisations=tuple(Normalisation(**each) for each in options.normalise),
            overrides=dict(options.overrides or {}),
        )
        opening: dict[str, Any] = {"seed": seed, "clock": options.clock, "settings": dict(options.settings or {})}
        self._account, self._life = account, ProductSession(gateway, account, place, opening, options)

    @classmethod
    def outside(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Versions of the product's packages, and its adapter and worker.

        Raises:
            ValueError: the product is not installed.
        """
        place = place_of(str(settings.get("product", "mem0ai")))
        if not place.installed:
            raise ValueError(f"the product {place.name} is not installed: make product NAME={place.name}")
        return dict(place.identity)

    def write(self, unit: Unit) -> None:
        """Pass the unit to the product, unless nothing is said in it."""
        said = [turn for turn in unit.turns if turn.text.strip()]
        counts = self._build("write", _given(unit, said)) if said else {"held": self.held}
        for name in CHANGES:
            if amount := counts.get(name, 0):
                meter.note(f"released.{name}", amount)
                self._life.counts[name] += amount
        self._life.counts["held"] = counts.get("held", 0)
        self._life.counts["units"] += 1
        self._life.counts["units_without_change"] += not any(counts.get(name) for name in CHANGES)

    def end_session(self, session_id: str) -> None:
        if self._life.counts["units"]:
            self._build("end_session", {"id": session_id})

    def consolidate(self) -> None:
        if self._life.counts["units"]:
            # The adapter's counts of this step are in the report, such as passages that no search finds.
            for name, amount in self._build("consolidate", {}).items():
                self._life.counts[name] = amount

    def read(self, question: Question) -> Recall:
        if not self._life.counts["units"]:
            return Recall(())
        given = {"id": question.id, "text": question.text, "k": self.options.k, "stamp": _stamp(question)}
        items = _listed("read", self._life.read("read", given, f"read {question.id}"))
        if self.options.k is not None and len(items) > self.options.k:
            meter.note("released.more_than_k")
        kept = items[: self.options.k]
        # Where the adapter gives no score, the rank is the score.
        return Recall(tuple(_item({"score": len(kept) - place, **each}) for place, each in enumerate(kept)))

    def nodes(self) -> Iterator[NodeView]:
        """Content of the product, if its adapter can list it; without structure."""
        if not self._life.counts["units"]:
            return
        for each in _listed("nodes", self._life.read("nodes", {}, "nodes")):
            item = _item(each)
            yield NodeView(item.id, (), 0, item.kind, item.text, None, item.sources)

    @property
    def held(self) -> int:
        return self._life.counts["held"]

    def report(self) -> dict[str, Any]:
        """Identity of the product, its stored items, and failures around it."""
        idle, refused = self._account.idle, self._life.refused
        return {
            "product": place_of(self.options.product).identity,
            "abilities": self._life.abilities,
            "counts": dict(self._life.counts),
            "connections_refused": {name: n for name, n in refused.items() if not name.startswith(PROGRAM)},
            "programs_refused": {name[len(PROGRAM) :]: n for name, n in refused.items() if name.startswith(PROGRAM)},
            "misfits": dict(self._account.misfits),
            "calls_between_steps": sum(idle.calls.values()),
        }

    def close(self) -> None:
        self._life.close()

    def _build(self, step: str, given: dict[str, Any]) -> dict[str, int]:
        """Take a step and return its counts."""
        counts = self._life.build(step, given) or {}
        if not isinstance(counts, dict):
            raise MalformedReply(f"{step}: expected counts by name, found {str(counts)[:60]!r}")
        return {name: count(amount, f"{step}: {name}") for name, amount in counts.items()}


class ReleasedIndex(Released):
    """Recalls from an index that `consolidate` builds of the whole history, again after every further unit."""

    OFFLINE: ClassVar = True


def _given(unit: Unit, said: Sequence[Turn]) -> dict[str, Any]:
    """A unit as adapters get it (`memsys.products.worker`).

    Args:
        said: its turns that say something.
    """
    text = Unit(unit.id, tuple(said), unit.session_id).text
    turns = [
        {"id": turn.id, "speaker": turn.speaker, "role": turn.role, "text": turn.text, "spoken": spoken(turn)}
        for turn in said
    ]
    document = f"[{unit.time_text}]\n{text}" if unit.time_text else text
    words = {"turns": turns, "turn_ids": unit.turn_ids, "text": text, "document": document}
    time = {"time_text": unit.time_text, "stamp": _stamp(unit), "time": unit.time and unit.time.isoformat()}
    return {"id": unit.id, "session": unit.session_id, **words, **time}


def _stamp(dated_thing: Unit | Question) -> float | None:
    """The time as seconds since 1970, taken as UTC; None where it is unknown."""
    from datetime import UTC

    return None if dated_thing.time is None else dated_thing.time.replace(tzinfo=UTC).timestamp()


def _listed(step: str, items: Any) -> list[dict[str, Any]]:
    """The items that a step returned; None counts as no items."""
    listed = items or []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise MalformedReply(f"{step}: expected a list of items, found {str(items)[:60]!r}")
    for each in listed:
        score, sources = each.get("score") or 0.0, each.get("sources") or []
        finite = isinstance(score, int | float) and abs(score) <= sys.float_info.max
        if not {"id", "text"} <= each.keys() or not finite:
            raise MalformedReply(
                f"{step}: expected an item with id, text and a finite score, found {str(each)[:200]!r}"
            )
        if not isinstance(sources, list):
            raise MalformedReply(f"{step}: expected a list of sources, found {str(sources)[:60]!r}")
    return listed


def _item(each: Mapping[str, Any]) -> Item:
    plain = "" if each["text"] is None else each["text"]
    text = dated(plain if isinstance(plain, str) else encoded(plain).decode(), str(each.get("time_text") or ""))
    sources = tuple(map(str, each.get("sources") or ()))
    return Item(str(each["id"]), text, float(each.get("score") or 0.0), sources, str(each.get("kind", "fact")), level=1)
