"""A model's settings (request format, limits, prices), and the spending cap shared by all models."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memsys.llm.protocol import EndOfRun

if TYPE_CHECKING:
    from memsys.llm.replies import Usage


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model at one provider: request format, limits and prices (`conf/llm/*.yaml`)."""

    model: str
    token_limit_field: str = "max_tokens"
    """`max_tokens`, or `max_completion_tokens` for reasoning models."""
    send_temperature: bool = True
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request body, e.g. `{enable_thinking: false}`."""
    json_output: str = "schema"
    """The form of a request for JSON: `schema` (the provider enforces it), `object` (any JSON object) or `none` (in the prompt only)."""
    usd_per_million_in: float | None = None
    usd_per_million_cached: float | None = None
    usd_per_million_out: float | None = None
    max_input_tokens: int | None = None
    """Embedding models: longer inputs are truncated and counted."""
    encoding: str = "o200k_base"
    """Vocabulary with which tokens are counted here."""
    thought_tokens: int = 0
    """Reasoning models: tokens added to a prompt's `max_tokens`, which is meant for the answer alone."""
    max_output_tokens: int | None = None
    """Upper limit for every reply, reasoning included, whatever its prompt allows (`endpoint.max_output_tokens`)."""
    logprobs: bool | None = None
    """Whether the endpoint returns log-probabilities; None when unknown."""
    context_tokens: int | None = None
    """Size of the endpoint's context window in tokens, prompt and reply together; None when unknown."""
    rpm: float | None = None
    """Maximum number of requests a minute; None takes the endpoint's (`endpoint.rpm`)."""
    tpm: float | None = None
    """Tokens a minute, prompt and reply together; None takes the endpoint's (`endpoint.tpm`)."""

    def output_limit(self, max_tokens: int) -> int:
        """The token limit to send for a prompt that allows `max_tokens`."""
        allowed = max_tokens + self.thought_tokens
        return allowed if self.max_output_tokens is None else min(allowed, self.max_output_tokens)

    def cost(self, tokens_in: float, tokens_out: float, tokens_cached: float = 0) -> float | None:
        """Cost of a call in US dollars; None when a price is unknown.

        Cached tokens are part of `tokens_in`, as in OpenAI's protocol. Effort lines of older versions may have more of them, counted apart
        (`replies.whole_prompt`); they are added.
        """
        if self.usd_per_million_in is None or (tokens_out and self.usd_per_million_out is None):
            return None
        cached_price = self.usd_per_million_in if self.usd_per_million_cached is None else self.usd_per_million_cached
        plain = tokens_in if tokens_cached > tokens_in else tokens_in - tokens_cached
        dollars = plain * self.usd_per_million_in + tokens_cached * cached_price
        return (dollars + tokens_out * (self.usd_per_million_out or 0.0)) / 1e6

    def cost_of(self, usage: Usage) -> float | None:
        """Cost of a chat completion in US dollars; None when a count or a price is unknown."""
        if usage.prompt is None or usage.completion is None:
            return None
        return self.cost(usage.prompt, usage.completion, usage.cached or 0)


KNOWLEDGE = frozenset(
    {"usd_per_million_in", "usd_per_million_cached", "usd_per_million_out", "logprobs", "context_tokens", "rpm", "tpm"}
)
"""Settings that describe a model's prices, abilities and limits. They change no request, and so no answer."""


class SpendingCapReached(EndOfRun):
    """The next call might cost more than is left below the spending cap."""


SUSPECTED = 8.0
"""Assumed cost of a call in flight, as a multiple of its reservation, because a server's bill is not known before its reply."""

AGAIN = "the same command with a higher max_usd (make … MAX_USD=) goes on from there"
EQUAL = 1e-9
"""Costs that differ by a smaller share are equal."""


@dataclass(eq=False, slots=True)
class Bills:
    """The purse's record of the bills of a model at a server."""

    kept: int = 0
    """Number of replies since the last reply that cost more than its reservation."""
    live: int = 0
    """Calls in flight."""
    batched: int = 0
    """Calls in batches under way."""
    surcharge: float = 0.0
    """The largest excess of a call's cost over its limits, in US dollars; later calls reserve as much more."""


@dataclass(eq=False, slots=True)
class Reservation:
    """US dollars held back for a call."""

    bills: Bills
    worst: float
    """The highest cost that the call's limits allow."""
    usd: float
    """The reserved sum: `worst` and the surcharge of its bills."""
    sent: str = ""
    """`live` or `batched` once the call is under way."""

    @property
    def held(self) -> float:
        """Assumed cost of the call while its bill is unknown."""
        return max(SUSPECTED * self.worst, self.usd)


@dataclass(eq=False, slots=True)
class Purse:
    """A spending cap shared by all models. It reserves a call's highest possible cost before the call is sent, so the cap holds.

    A server may bill more than a call can cost by its limits (thinking that it does not report, or a limit that it ignores). The purse
    sees that when the reply arrives, and reserves as much more for each later call of that model. It cannot recall the calls in flight at
    that time, so it permits only few before a server has shown what it bills, and few when the cap is near:

    - first a single call of a model that has not been answered yet, and of no other such model; then one more with each reply that costs
      no more than was reserved, so 1, 2, 4, … within the time of a reply each;
    - no call while others are in flight, unless the cap has room for `SUSPECTED` times the reservations of all of them.

    So the first wrong bill of a server exceeds the cap by no more than that one call, if it comes first or is at most `SUSPECTED` times
    its reservation.
    """

    max_usd: float | None = None
    spent: float = 0.0
    reached: bool = False
    """Whether a call was refused because of the cap."""
    unbilled: int = 0
    """Calls whose bill is unknown: no usable usage, no reply in time."""
    unbilled_usd: float = 0.0
    """Their highest costs, which are part of `spent`."""
    _reserved: float = 0.0
    _held: float = 0.0
    _bills: dict[Hashable, Bills] = field(default_factory=dict)
    _turns: list[tuple[Reservation, Future[None]]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self, worst: float | None, model: Hashable = "") -> Reservation:
        """Reserve the highest possible cost of a call, in US dollars; nothing without a cap. `batched` says when it may be sent.

        Args:
            model: a model at a server; calls with the same name are billed alike.

        Raises:
            SpendingCapReached: the cost exceeds the remaining amount, or the model's price is unknown.
        """
        with self._lock:
            made = self._made(worst, model)
            if not self._fits(made.usd):
                raise self._refusal()
            self._reserved += made.usd
        return made

    async def admitted(self, worst: float | None, model: Hashable = "") -> Reservation:
        """As `reserve`, for a call that is sent at once: wait until it may be in flight together with the others.

        Raises:
            SpendingCapReached: as `reserve`, when no call is in flight that might cost less than is reserved for it.
        """
        with self._lock:
            made = self._made(worst, model)
            if self._entered(made):
                return made
            turn: Future[None] = Future()
            self._turns.append((made, turn))
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            with self._lock:
                self._turns = [waiting for waiting in self._turns if waiting[0] is not made]
            if made.sent:  # cancelled after its turn had come
                self.settle(made, 0.0)
            raise
        return made

    def batched(self, made: Reservation) -> bool:
        """Whether a call with a reservation may be sent in a batch now; if so, it counts as under way.

        Raises:
            SpendingCapReached: the server has billed more than was reserved since then, and as much more is not left.
        """
        if made.sent or made.usd == 0.0:
            return True
        with self._lock:
            bills, usd = made.bills, made.worst + made.bills.surcharge
            if not self._fits(usd - made.usd):
                raise self._refusal()
            self._reserved += usd - made.usd
            made.usd = usd
            if not (bills.kept or bills.live + bills.batched == 0):
                return False
            if any(each.batched for each in self._bills.values()) and not self._covered(made):
                return False
            bills.batched += 1
            self._held += made.held
            made.sent = "batched"
        return True

    def _made(self, worst: float | None, model: Hashable) -> Reservation:
        """A reservation that is not booked yet."""
        if self.max_usd is None:
            return Reservation(Bills(), 0.0, 0.0)
        if worst is None:
            raise SpendingCapReached(
                "max_usd is set, but the price of this model is unknown: give it with prices=… (conf/common.yaml says how)"
            )
        bills = self._bills.setdefault(model, Bills())
        return Reservation(bills, worst, worst + bills.surcharge if worst else 0.0)

    def _fits(self, usd: float) -> bool:
        return self.max_usd is None or self.spent + self._reserved + usd <= self.max_usd

    def _covered(self, made: Reservation) -> bool:
        return self.max_usd is None or self.spent + self._held + made.held <= self.max_usd

    def _refusal(self) -> SpendingCapReached:
        self.reached = True
        return SpendingCapReached(
            f"max_usd={self.max_usd} would be exceeded ({self.spent:.4f} spent, {self._reserved:.4f} in flight); {AGAIN}"
        )

    def _entered(self, made: Reservation) -> bool:
        """Count a call as in flight, if it may be sent."""
        if made.usd == 0.0:
            return True
        bills = made.bills
        made.usd = made.worst + bills.surcharge
        alone = not any(each.live for each in self._bills.values())
        if not self._fits(made.usd):
            if alone:
                raise self._refusal()
            return False
        if not alone:
            if bills.live > bills.kept or not self._covered(made):
                return False
            if not bills.kept and any(each.live and not each.kept for each in self._bills.values()):
                return False
        bills.live += 1
        self._reserved += made.usd
        self._held += made.held
        made.sent = "live"
        return True

    def _serve(self) -> None:
        """Release the waiting calls that may be sent, the longest wait first."""
        waiting, self._turns = self._turns, []
        for made, turn in waiting:
            try:
                if not self._entered(made):
                    self._turns.append((made, turn))
                elif turn.set_running_or_notify_cancel():
                    turn.set_result(None)
            except SpendingCapReached as refusal:
                if turn.set_running_or_notify_cancel():
                    turn.set_exception(refusal)

    @property
    def stop(self) -> str:
        """If the cap refused a call: the amount spent and how to continue; else empty."""
        if not self.reached:
            return ""
        said = f"Stopped at max_usd={self.max_usd:g}: {self.spent:.4f} USD spent"
        if self.unbilled:
            said += f" ({self.unbilled_usd:.4f} of it the highest cost of calls without a known bill: {self.unbilled})"
        return f"{said}; {AGAIN}."

    def settle(self, made: Reservation, actual: float | None) -> None:
        """Replace a reservation by the call's actual cost; None means unknown, and the reserved amount is taken."""
        with self._lock:
            bills = made.bills
            self._reserved -= made.usd
            self.spent += made.usd if actual is None else actual
            if actual is None and made.usd:
                self.unbilled, self.unbilled_usd = self.unbilled + 1, self.unbilled_usd + made.usd
            if made.sent:
                self._held -= made.held
                setattr(bills, made.sent, getattr(bills, made.sent) - 1)
            if actual is None or 0.0 < actual <= made.usd * (1 + EQUAL):
                bills.kept += 1
            beyond = 0.0 if actual is None or self.max_usd is None else actual - made.worst
            beyond = beyond if beyond > EQUAL * made.worst else 0.0
            if beyond > bills.surcharge:
                bills.kept = 0  # the next bill may be higher again
            first, bills.surcharge = bills.surcharge == 0.0 < beyond, max(bills.surcharge, beyond)
            self._serve()
        if first:
            print(
                f"note: a call cost {actual:.6f} USD where its limits allow {made.worst:.6f}: the server bills more than was asked for; "
                "later calls reserve as much more",
                file=sys.stderr,
                flush=True,
            )


_purses: ContextVar[list[Purse] | None] = ContextVar("purses", default=None)


@contextmanager
def one_cap(purses: list[Purse]) -> Iterator[None]:
    """Let all purses that `next_purse` makes inside the `with` block share one cap, with those of an outer block.

    Args:
        purses: the purses of earlier blocks of the same command; new ones are appended.
    """
    outer = _purses.get()
    token = _purses.set(purses if outer is None else outer)
    try:
        yield
    finally:
        _purses.reset(token)


def next_purse(max_usd: float | None) -> Purse:
    """A purse that begins with the amount that the earlier purses under the same cap (`one_cap`) have spent."""
    purses = _purses.get()
    purse = Purse(max_usd, purses[-1].spent if purses else 0.0)
    if purses is not None:
        purses.append(purse)
    return purse
