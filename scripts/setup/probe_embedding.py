"""Properties of an endpoint's embedding model: the size of its vectors, their order, and whether batches and single calls agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from memsys.llm.pricing import ModelSettings
from memsys.vectors import normalised
from scripts.setup.causes import remedy
from scripts.setup.probe_calls import EndpointProbe, ProbeReply
from scripts.setup.probes import Checked

TEXTS = (
    "The cat sleeps on the warm roof.",
    "Interest rates rose again in October.",
    "He repaired the engine of the old boat.",
    "She plays the violin every evening.",
)
SAME = 0.98
"""Minimum cosine of two vectors of the same text: a batch is padded, and rounding differs."""

SMALL = 256
"""Minimum dimension of a current embedding model's vectors."""


def examine_embedder(line: EndpointProbe, settings: ModelSettings) -> tuple[Checked, ...]:
    """Run all probes of an embedding model; one line if it does not answer."""
    batch = line.embed(_body(settings, list(TEXTS)))
    if not batch.ok:
        return (Checked("embeddings", batch.error[:150], remedy(batch.error), "stop"),)
    rows = _rows(batch)
    if isinstance(rows, str):
        return (Checked("embeddings", rows, "such vectors cannot be used", "stop"),)
    ordered, as_sent = rows
    single = [_rows(line.embed(_body(settings, [text]))) for text in TEXTS]
    alone = [one[0][0] for one in single if not isinstance(one, str)]
    size = ordered.shape[1]
    sized = Checked("embedding size", f"{size} numbers", "compare it with the model's")
    if size < SMALL:
        sized = Checked("embedding size", f"{size} numbers", "SMALL: is this the model you mean, uncut?", "note")
    if len(alone) < len(TEXTS) or any(len(one) != size for one in alone):
        return sized, Checked("embedding order", "single texts come in another form than batches", "not usable", "stop")
    return sized, _order(ordered, as_sent, np.stack(alone)), _usage(batch)


def _body(settings: ModelSettings, texts: list[str]) -> dict[str, Any]:
    return {"model": settings.model, "input": texts, **settings.extra_body}


def _rows(heard: ProbeReply) -> tuple[np.ndarray, np.ndarray] | str:
    """The vectors of a reply, unit length, in the client's order and in that of the reply; or the reason why there are none."""
    data = heard.value.get("data")
    if not isinstance(data, list) or not all(isinstance(row, Mapping) for row in data):
        return heard.error[:150] or "the reply holds no list of vectors"
    vectors = [row.get("embedding") for row in data]
    if len({len(one) if isinstance(one, list) else 0 for one in vectors}) != 1 or not vectors[0]:
        return "vectors of several sizes, or none"
    places = [row.get("index") for row in data]
    if sorted(places, key=str) != sorted(range(len(data)), key=str):
        return f"the field index is {places}, not 0 to {len(data) - 1}"
    try:
        matrix = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError):
        return "vectors that hold something other than numbers"
    if not np.isfinite(matrix).all():
        return "vectors that hold NaN or infinity"
    matrix = normalised(matrix)
    return matrix[np.argsort(places)], matrix


def _order(ordered: np.ndarray, as_sent: np.ndarray, alone: np.ndarray) -> Checked:
    if _same(ordered, alone):
        return Checked("embedding order", "each text gets its own vector, alone and in a batch", "batches can be used")
    if _same(as_sent, alone):
        found = "the field index contradicts the order of the reply"
        return Checked("embedding order", found, "texts would get each other's vectors: mend the server", "stop")
    nearest = [int(place) for place in (ordered @ alone.T).argmax(axis=1)]
    if sorted(nearest) == list(range(len(nearest))) and nearest != sorted(nearest):
        found = f"WRONG ORDER: the vectors of a batch of {len(nearest)} come as {nearest}"
        return Checked("embedding order", found, "texts would get each other's vectors: mend the server", "stop")
    means = "results depend on the batches; with batch: 1 in conf/embedder they do not"
    return Checked("embedding order", "a text in a batch gets another vector than alone", means, "note")


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return bool(((first * second).sum(axis=1) >= SAME).all())


def _usage(batch: ProbeReply) -> Checked:
    if batch.tokens("prompt_tokens"):
        return Checked("embedding usage", "reported", "costs are known")
    return Checked("embedding usage", "not reported", "tokens are counted here", "note")
