"""Test an endpoint's abilities: `python -m scripts doctor --base-url http://localhost:8000/v1 --model my-model [--embedder my-embedder]`

A few dozen small calls test which settings the endpoint accepts, which features it lacks, and the length of prompt that it really reads. A
table gives each question, finding and meaning; suitable settings are written to `conf/llm/<name>.yaml` for you to review.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from eval.files.provenance import ROOT
from eval.files.store import RunError
from eval.report.counted import counted
from memsys.llm.network import OPENAI
from memsys.llm.outcome import check_base_url
from memsys.llm.pricing import ModelSettings
from scripts.setup.arguments import verb_parser
from scripts.setup.options import model_option
from scripts.setup.probe_calls import EndpointProbe
from scripts.setup.probes import Checked, examine, examine_embedder, table

GROUP = "develop"


def file_name(model: str) -> str:
    """A name for the settings file of a model: letters, digits, `._-` only, no path and no hidden file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.rpartition("/")[2] or model).strip(".-_")[:80] or "model"


def settings_file(top: Mapping[str, Any], settings: ModelSettings, findings: Sequence[Checked]) -> str:
    """The text of `conf/llm/<name>.yaml` or `conf/embedder/<name>.yaml`, with the values of `top` next to the model's settings."""
    said = [f"{one.asked}: {' '.join(one.found.split())}" for one in findings]
    comments = [f"Found by the doctor on {date.today().isoformat()}; look through it, and fill in the prices.", *said]
    head = "".join(f"# {''.join(char for char in line if char.isprintable())}\n" for line in comments)
    plain = {"engine": "http", **top, "settings": _changed(settings)}
    return head + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=1000)


def _changed(settings: ModelSettings) -> dict[str, Any]:
    """Settings that differ from their defaults, and the prices, which the user must fill in."""
    shown: dict[str, Any] = {"model": settings.model}
    default = ModelSettings(settings.model)
    for name in settings.__slots__:
        value = getattr(settings, name)
        if value != getattr(default, name) or name in ("usd_per_million_in", "usd_per_million_out", "json_output"):
            shown[name] = dict(value) if isinstance(value, Mapping) else value
    return shown


def write(text: str, group: str, name: str, out: Path | None) -> tuple[Path, str]:
    """Write a settings file; an existing file is kept, and the new file is written next to it. Returns its path and a message about it.

    Args:
        group: `llm` or `embedder`: the folder of `conf`; the working folder is used if that is not writable.
        out: another file to write.

    Raises:
        RunError: the file that `out` names exists already, or cannot be written.
    """
    if out is not None and out.exists():
        raise RunError(f"{out} is there already; remove it, or name another with --out")
    path = out or _place(group) / f"{name}.yaml"
    note = ""
    if path.exists():
        path = path.with_name(f"{name}.doctor.yaml")
        note = f"; {name}.yaml is left as it is" + (f", the earlier {path.name} is replaced" if path.exists() else "")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error}); name another file with --out") from error
    role = "MODEL" if group == "llm" else "EMBEDDER"
    use = f"; look through it, then use it as {role}={path.stem}" if path.parent == ROOT / "conf" / group else ""
    return path, f"written: {path}{note}{use}"


def _place(group: str) -> Path:
    folder = ROOT / "conf" / group
    own = folder.is_dir() and os.access(folder, os.W_OK) and "site-packages" not in folder.parts
    return folder if own else Path.cwd()


def main(arguments: Sequence[str]) -> int:
    """Examine the endpoint; return 0 if runs can use the current or the written settings, 1 if the endpoint is not usable."""
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
    args = parser.parse_args(arguments)
    known = _option("llm", args.model)
    base_url = str(args.base_url or known.get("base_url") or OPENAI).rstrip("/")
    check_base_url(base_url)
    start = ModelSettings(**known["settings"])
    with EndpointProbe(base_url, args.key_env, timeout=args.timeout, settings=start) as line:
        examined = examine(line, start, window=args.window)
    print(f"{start.model} at {base_url}: {counted(line.calls, 'call')}\n{table(examined.findings)}")
    there = examined.findings[0].level != "stop"
    if there:
        limit = {} if examined.in_flight is None else {"in_flight": examined.in_flight}
        top = {"base_url": base_url, "key_env": args.key_env, **limit}
        text = settings_file(top, examined.settings, examined.findings)
        print(write(text, "llm", file_name(args.model), args.out)[1])
    code = 0 if there and not any(one.asked == "window" for one in examined.stops) else 1
    return max(code, _visit_embedder(args, base_url)) if args.embedder else code


def _visit_embedder(args: argparse.Namespace, base_url: str) -> int:
    known = _option("embedder", args.embedder)
    url = str(args.embedder_base_url or base_url).rstrip("/")
    check_base_url(url)
    settings = ModelSettings(**known["settings"])
    with EndpointProbe(url, args.key_env, timeout=args.timeout, settings=settings) as line:
        findings = examine_embedder(line, settings)
    print(f"\n{settings.model} at {url}: {counted(line.calls, 'call')}\n{table(findings)}")
    if any(one.level == "stop" for one in findings):
        return 1
    beside = None if args.out is None else args.out.with_name(f"{file_name(args.embedder)}.embedder.yaml")
    text = settings_file({"base_url": url, "key_env": args.key_env, "batch": 64}, settings, findings)
    print(write(text, "embedder", file_name(args.embedder), beside)[1])
    return 0


def _option(group: str, name: str) -> dict[str, Any]:
    """`model_option` of a model at an endpoint."""
    option = model_option(group, name)
    if option["engine"] != "http":
        raise RunError(f"{name} runs on this machine without an endpoint: there is nothing to examine")
    return option
