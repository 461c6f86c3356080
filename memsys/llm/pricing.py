"""A model's settings (request format, limits, prices), and the spending cap shared by all models."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
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
    """How JSON is requested: `schema` (the provider enforces it), `object` (any JSON object) or `none` (in the prompt only)."""
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
    """Requests a minute that are sent at most; None takes the endpoint's (`endpoint.rpm`)."""
    tpm: float | None = None
    """Tokens a minute, prompt and reply together; None takes the endpoint's (`endpoint.tpm`)."""

    def output_limit(self, max_tokens: int) -> int:
        """The token limit to send for a prompt that allows `max_tokens`."""
        allowed = max_tokens + self.thought_tokens
        return allowed if self.max_output_tokens is None else min(allowed, self.max_output_tokens)

    def cost(self, tokens_in: int, tokens_out: int, tokens_cached: int = 0) -> float | None:
        """Cost of a call in US dollars; None when a price is unknown.

        Cached tokens are part of `tokens_in`, as in OpenAI's protocol. Where they are more than that, the server counts them apart
        (`memsys.llm.replies`), and they are added.
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


class Reservation(float):
    """US dollars held back for a call that is under way."""

    surcharge: float = 0.0
    """The part that was added because the server had billed more than the highest possible cost before."""


class Purse:
    """A spending cap shared by all models. It reserves a call's highest possible cost before the call is sent, so the cap holds.

    A server may bill more than a call can cost by its limits (thinking that it does not report, or a limit that it ignores). The purse
    sees that when the reply arrives, and reserves as much more for each later call; calls already under way are past its reach.
    """

    def __init__(self, max_usd: float | None = None) -> None:
        self.max_usd = max_usd
        self.spent = 0.0
        self.reached = False
        """Whether a call was refused because of the cap."""
        self._reserved = 0.0
        self._surcharge = 0.0
        self._lock = threading.Lock()

    def reserve(self, worst: float | None) -> Reservation:
        """Reserve the highest possible cost of a call, in US dollars, and return it; 0 without a cap.

        Raises:
            SpendingCapReached: the cost exceeds what is left, or the model's price is unknown.
        """
        if self.max_usd is None:
            return Reservation(0.0)
        if worst is None:
            raise SpendingCapReached(
                "max_usd is set, but the price of this model is unknown: give it with prices=… (conf/common.yaml says how)"
            )
        with self._lock:
            made = Reservation(worst + self._surcharge if worst else 0.0)
            made.surcharge = self._surcharge
            if self.spent + self._reserved + made > self.max_usd:
                self.reached = True
                raise SpendingCapReached(
                    f"max_usd={self.max_usd} would be exceeded ({self.spent:.4f} spent, {self._reserved:.4f} in flight)"
                )
            self._reserved += made
        return made

    @property
    def stop(self) -> str:
        """How much was spent where the cap refused a call, and how to go on; empty where it refused none."""
        if not self.reached:
            return ""
        again = "the same command with a higher max_usd (make … MAX_USD=) goes on from there"
        return f"Stopped at max_usd={self.max_usd:g}: {self.spent:.4f} USD spent; {again}."

    def settle(self, reserved: Reservation, actual: float | None) -> None:
        """Replace a reservation by the call's actual cost; None means unknown, and the reserved amount is taken."""
        with self._lock:
            self._reserved -= reserved
            self.spent += reserved if actual is None else actual
            beyond = 0.0 if actual is None or self.max_usd is None else actual - reserved + reserved.surcharge
            first, self._surcharge = self._surcharge == 0.0 < beyond, max(self._surcharge, beyond)
        if first:
            print(
                f"note: a call cost {actual:.6f} USD where its limits allow {reserved:.6f}: the server bills more than was asked for; "
                "later calls reserve as much more",
                file=sys.stderr,
                flush=True,
            )
