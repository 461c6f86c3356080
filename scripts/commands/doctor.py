"""Test an endpoint's abilities: `python -m scripts doctor --base-url http://localhost:8000/v1 --model my-model [--embedder my-embedder]`

A few dozen small calls test which settings the endpoint accepts, which features it lacks, and the length of prompt that it really reads. A
table gives each question, finding and meaning; suitable settings are written to `conf/llm/<name>.yaml` for you to review.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from eval.files.store import RunError
from eval.report.counted import counted
from memsys.llm.pricing import ModelSettings
from scripts.assembly.models import OPENAI
from scripts.setup.arguments import verb_parser
from scripts.setup.doctor_report import chat_file, embedder_file, file_name, table, write
from scripts.setup.options import model_option
from scripts.setup.probe_calls import EndpointProbe
from scripts.setup.probe_embedding import examine_embedder
from scripts.setup.probes import examine

GROUP = "develop"


def main(arguments: Sequence[str]) -> int:
    """Examine the endpoint; return 0 if runs can use the current or the written settings, 1 if the endpoint is not usable."""
    args = _parser().parse_args(arguments)
    known = _option("llm", args.model)
    base_url = str(args.base_url or known.get("base_url") or OPENAI).rstrip("/")
    _check_url(base_url)
    start = ModelSettings(**known["settings"])
    with EndpointProbe(base_url, args.key_env, timeout=args.timeout, settings=start) as line:
        examined = examine(line, start, window=args.window)
    print(f"{start.model} at {base_url}: {counted(line.calls, 'call')}\n{table(examined.findings)}")
    there = examined.findings[0].level != "stop"
    if there:
        text = chat_file(examined, base_url, args.key_env)
        print(write(text, "llm", file_name(args.model), args.out).note)
    code = 0 if there and not any(one.asked == "window" for one in examined.stops) else 1
    return max(code, _visit_embedder(args, base_url)) if args.embedder else code


def _visit_embedder(args: argparse.Namespace, base_url: str) -> int:
    known = _option("embedder", args.embedder)
    url = str(args.embedder_base_url or base_url).rstrip("/")
    _check_url(url)
    settings = ModelSettings(**known["settings"])
    with EndpointProbe(url, args.key_env, timeout=args.timeout, settings=settings) as line:
        findings = examine_embedder(line, settings)
    print(f"\n{settings.model} at {url}: {counted(line.calls, 'call')}\n{table(findings)}")
    if any(one.level == "stop" for one in findings):
        return 1
    beside = None if args.out is None else args.out.with_name(f"{file_name(args.embedder)}.embedder.yaml")
    print(
        write(embedder_file(settings, findings, url, args.key_env), "embedder", file_name(args.embedder), beside).note
    )
    return 0


def _option(group: str, name: str) -> dict[str, Any]:
    """`model_option` of a model at an endpoint."""
    option = model_option(group, name)
    if option["engine"] != "http":
        raise RunError(f"{name} runs on this machine without an endpoint: there is nothing to examine")
    return option


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RunError(f"base URL {url!r}: expected http://host:port/v1 or https://…")
    if parts.username or parts.password:
        raise RunError(
            "the base URL holds a user or a password, which would be written to files; give the key with --key-env"
        )


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser("doctor", __doc__)
    parser.add_argument("--base-url", help="OpenAI-compatible endpoint, usually ending in /v1 (default: OpenAI's own)")
    parser.add_argument("--model", required=True, help="a file of conf/llm, or any name that the endpoint serves")
    parser.add_argument("--embedder", help="a file of conf/embedder, or any name that the endpoint serves")
    parser.add_argument("--embedder-base-url", help="where the embedder is (default: as the model)")
    parser.add_argument("--key-env", default="OPENAI_API_KEY", help="environment variable that holds the key")
    parser.add_argument("--window", type=int, default=32000, help="tokens of the longest prompt that is tried")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that a reply may take")
    parser.add_argument(
        "--out",
        type=Path,
        help="file to write (default: conf/llm/<name>.yaml); the embedder's file is written next to it",
    )
    return parser
