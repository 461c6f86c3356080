"""What an endpoint can do: `python -m scripts.doctor --base-url http://localhost:8000/v1 --model my-model [--embedder my-embedder]`

A few dozen small calls find out how it takes its settings, what it leaves out, and how long a prompt it really reads. A table says what was
asked, what was found and what it means; the settings that fit are written to `conf/llm/<name>.yaml` for you to look at.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.experiment.exits import guarded
from scripts.settings.arguments import as_called


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    from scripts.commands.doctor import visit  # heavy imports stay behind --help
    from scripts.experiment.exits import guarded

    return guarded(lambda: visit(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=as_called("python -m scripts.doctor"), description=__doc__.split("\n\n")[0])
    parser.add_argument("--base-url", help="OpenAI-compatible endpoint, usually ending in /v1 (default: OpenAI's own)")
    parser.add_argument("--model", required=True, help="a file of conf/llm, or any name that the endpoint serves")
    parser.add_argument("--embedder", help="a file of conf/embedder, or any name that the endpoint serves")
    parser.add_argument("--embedder-base-url", help="where the embedder is (default: as the model)")
    parser.add_argument("--key-env", default="OPENAI_API_KEY", help="environment variable that holds the key")
    parser.add_argument("--window", type=int, default=32000, help="tokens of the longest prompt that is tried")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that a reply may take")
    parser.add_argument(
        "--out", type=Path, help="file to write (default: conf/llm/<name>.yaml); the embedder's stands beside it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(guarded(main))
