"""A local OpenAI-compatible server for tests and benchmarks: deterministic replies, chosen latency, injected faults, its own counter.

`python -m scripts mock-endpoint --port 8099 --latency 0.2 --faults 0.3` serves `/v1/chat/completions`, `/v1/embeddings` and `/stats`.
A reply depends on the request alone; whether the n-th arrival of a request fails depends on the request, n and the seed.
`--shape harmony` sends every chat reply as some server does (`scripts.mock.shapes`); the model name `mock@harmony` that one alone.
"""

from __future__ import annotations

from scripts.mock.endpoint import main

GROUP = "develop"
__all__ = ["main"]
