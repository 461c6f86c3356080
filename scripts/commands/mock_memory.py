"""Serve the reference memory service on this machine: `python -m scripts mock-memory --port 8095`, with a fault: `--fault "k ignored"`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from scripts.mock.endpoint import serve
from scripts.mock.memory_service import Service
from scripts.mock.memory_store import FAULTS, Store
from scripts.setup.arguments import verb_parser, whole

GROUP = "develop"


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal comes."""
    parser = verb_parser("mock-memory", __doc__)
    parser.add_argument("--port", type=whole(0, 65535), default=8095)
    parser.add_argument("--fault", choices=sorted(FAULTS), default="", help="what goes wrong")
    parser.add_argument("--delay", type=whole(0), default=0, help="polls after which an add is indexed")
    parser.add_argument("--key-env", default="", help="environment variable that holds the key that callers must send")
    options = parser.parse_args(arguments)
    key = os.environ.get(options.key_env, "") if options.key_env else ""
    serve(Service(Store(options.fault, options.delay), key).application(), options.port)
