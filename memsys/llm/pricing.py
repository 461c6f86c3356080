"""What is known of a model before it is called (its quirks and its prices), and the cap on what calls may cost."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memsys.llm.protocol import EndOfRun


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model at one provider: its quirks and its prices (`conf/llm/*.yaml`)."""

    model: str
    token_limit_field: str = "max_tokens"
    """`max_tokens`, or `max_completion_tokens` for reasoning models."""
    send_temperature: bool = True
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Sent as it is, e.g. `{enable_thinking: false}`."""
    json_output: str = "schema"
    """`schema` (enforced by the provider), `object` (any JSON), or `none` (asked for in the prompt only)."""
    usd_per_million_in: float | None = None
    usd_per_million_cached: float | None = None
    usd_per_million_out: float | None = None
    max_input_tokens: int | None = None
    """Embedding models: longer inputs are truncated, and counted."""
    encoding: str = "o200k_base"
    thought_tokens: int = 0
    """Models that think before they answer: added to what a prompt allows its reply, which is meant for the answer alone."""
    max_output_tokens: int | None = None
    """The most that any reply may have, thoughts included, whatever its prompt allows (`endpoint.max_output_tokens`)."""
    logprobs: bool | None = None
    """Whether the endpoint gives log-probabilities; None: not known."""
    context_tokens: int | None = None
    """How many tokens, prompt and reply together, the endpoint really takes; None: not known."""

    def output_limit(self, max_tokens: int) -> int:
        """What is sent as the limit of a reply whose prompt allows `max_tokens`."""
        allowed = max_tokens + self.thought_tokens
        return allowed if self.max_output_tokens is None else min(allowed, self.max_output_tokens)

    def cost(self, tokens_in: int, tokens_out: int, tokens_cached: int = 0) -> float | None:
        """US dollars; None when a price is unknown."""
        if self.usd_per_million_in is None or (tokens_out and self.usd_per_million_out is None):
            return None
        cached_price = self.usd_per_million_in if self.usd_per_million_cached is None else self.usd_per_million_cached
        dollars = (tokens_in - tokens_cached) * self.usd_per_million_in + tokens_cached * cached_price
        return (dollars + tokens_out * (self.usd_per_million_out or 0.0)) / 1e6


KNOWLEDGE = frozenset(
    {"usd_per_million_in", "usd_per_million_cached", "usd_per_million_out", "logprobs", "context_tokens"}
)
"""Settings that say what a model costs or can do: no request, and so no answer, depends on them."""


class SpendingCapReached(EndOfRun):
    """The next call might cost more than what is left."""


class Purse:
    """A spending cap shared by all models: the worst case of a call is reserved before it is sent, so the cap is never exceeded."""

    def __init__(self, max_usd: float | None = None) -> None:
        self.max_usd = max_usd
        self.spent = 0.0
        self._reserved = 0.0
        self._lock = threading.Lock()

    def reserve(self, worst: float | None) -> float:
        """Set the worst case aside.

        Raises:
            SpendingCapReached: it does not fit, or the price is unknown while there is a cap.
        """
        if self.max_usd is None:
            return 0.0
        if worst is None:
            raise SpendingCapReached(
                "max_usd is set, but the price of this model is unknown: give it with prices=… (conf/common.yaml says how)"
            )
        with self._lock:
            if self.spent + self._reserved + worst > self.max_usd:
                raise SpendingCapReached(
                    f"max_usd={self.max_usd} would be exceeded ({self.spent:.4f} spent, {self._reserved:.4f} in flight)"
                )
            self._reserved += worst
        return worst

    def settle(self, reserved: float, actual: float | None) -> None:
        """Give a reservation back and book what the call cost (None: assume the worst)."""
        if self.max_usd is None:
            return
        with self._lock:
            self._reserved -= reserved
            self.spent += reserved if actual is None else actual
