"""The exchanges of LightMem, their buffers, and the detection of topic boundaries among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from memsys.tokens import count_tokens

THRESHOLDS = (0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.50)
"""Cosines below which neighbouring exchanges have different topics; the first threshold that gives a boundary is used."""
NEAR = 3
"""Maximum number of exchanges between a boundary by exchanges and a boundary by messages."""


@dataclass(frozen=True, slots=True)
class ExchangeMessage:
    """A pruned turn."""

    speaker: str
    text: str
    role: str
    turn: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user message and the replies to it."""

    place: int
    """Its place in the stream of exchanges."""
    messages: tuple[ExchangeMessage, ...]
    time: datetime | None
    time_text: str

    def text(self, *roles: str) -> str:
        """The texts of the messages with one of the roles."""
        return " ".join(message.text for message in self.messages if message.role in roles)


@dataclass(slots=True)
class Buffers:
    """Exchanges that are not yet turned into facts."""

    sensory: list[Exchange] = field(default_factory=list)
    short_term: list[list[Exchange]] = field(default_factory=list)
    """Topical segments."""


def peaks(distances: np.ndarray) -> list[int]:
    """Exchanges that may begin a new topic: exchange k + 1 for every strict local maximum k >= 1 of the distances.

    Args:
        distances: of exchanges k and k + 1, float [exchanges - 1].
    """
    padded = np.append(distances, -np.inf)
    return [k + 1 for k in range(1, len(distances)) if padded[k - 1] < padded[k] > padded[k + 1]]


def fine(cosines: np.ndarray, coarse: Sequence[int]) -> list[int]:
    """The first exchanges of new topics: those whose cosine with the exchange before is below the first threshold that gives any.

    Only exchanges within `NEAR` of a coarse boundary are used, unless there are none.

    Args:
        cosines: of exchanges k and k + 1, float [exchanges - 1].
        coarse: boundaries found by messages (`peaks`).
    """
    for threshold in THRESHOLDS:
        boundaries = [int(place) + 1 for place in np.flatnonzero(cosines < threshold)]
        if boundaries:
            near = [place for place in boundaries if any(abs(place - other) <= NEAR for other in coarse)]
            return near or boundaries
    return []


def tokens_of(exchanges: Sequence[Exchange], *roles: str) -> int:
    """Tokens of the messages that have one of the roles."""
    return sum(count_tokens(exchange.text(*roles)) for exchange in exchanges)
