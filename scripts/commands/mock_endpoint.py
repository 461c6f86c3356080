"""Serve an OpenAI-compatible API for tests and benchmarks: deterministic replies, chosen latency, injected faults, its own counter.

`python -m scripts mock-endpoint --port 8099 --latency 0.2 --faults 0.3` serves `/v1/chat/completions`, `/v1/embeddings` and `/stats`.
A reply depends on the request alone; whether the n-th arrival of a request fails depends on the request, n and the seed.
`--shape harmony` sends every chat reply in the form of a certain server (`scripts.mock.shapes`); the model name `mock@harmony` does so for
its own replies only.
"""

from __future__ import annotations

from collections.abc import Sequence

from scripts.mock.endpoint import Mock, Rations, application, serve
from scripts.mock.shapes import OVERFLOWS, SETS, SHAPES
from scripts.setup.arguments import amount, verb_parser, whole

GROUP = "develop"


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal comes."""
    parser = verb_parser("mock-endpoint", __doc__)
    parser.add_argument("--port", type=whole(0, 65535), default=8099)
    parser.add_argument("--latency", type=amount(0), default=0.0, help="seconds before each reply")
    parser.add_argument("--faults", type=amount(0, 1), default=0.0, help="share of arrivals that fail")
    parser.add_argument("--seed", type=whole(0), default=0)
    parser.add_argument("--shape", choices=[*SHAPES, *OVERFLOWS], default="bare", help="how chat replies come")
    parser.add_argument("--quirks", choices=list(SETS), help="behave as an endpoint with these quirks")
    parser.add_argument(
        "--rpm", type=amount(0), help="requests a minute; further ones are refused with 429 and x-ratelimit-* headers"
    )
    parser.add_argument("--tpm", type=amount(0), help="the same for tokens")
    options = parser.parse_args(arguments)
    quirks = SETS[options.quirks] if options.quirks else None
    rations = Rations(options.rpm or None, options.tpm or None)
    mock = Mock(options.latency, options.faults, options.seed, shape=options.shape, quirks=quirks, rations=rations)
    serve(application(mock), options.port, "/v1")
