"""Output of the doctor: the table of its findings, and settings files for the user to look at."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from eval.files.provenance import ROOT
from eval.files.store import RunError
from memsys.llm.pricing import ModelSettings
from scripts.setup.probes import Checked, Examination

MARKS = {"ok": " ", "note": "·", "stop": "!"}
WIDTHS = (18, 46, 52)
"""Maximum widths of the three columns in characters; `MARGIN` is for the mark and the separators."""
MARGIN = 6


@dataclass(frozen=True, slots=True)
class Written:
    """A settings file, and a message about it."""

    path: Path
    note: str


def table(findings: Sequence[Checked], width: int | None = None) -> str:
    """Question, finding and meaning; `!` marks findings that make runs fail or give wrong results, `·` other notable findings.

    Args:
        width: characters of a line; None takes those of the terminal, at least 80.
    """
    room = min(sum(WIDTHS), max(80, width or shutil.get_terminal_size((122, 25)).columns) - MARGIN)
    share = (room - WIDTHS[0]) / sum(WIDTHS[1:])
    widths = (WIDTHS[0], int(WIDTHS[1] * share), int(WIDTHS[2] * share))
    rows = [("asked", "found", "means", " ")]
    rows += [(one.asked, one.found, one.means, MARKS[one.level]) for one in findings]
    lines = []
    for asked, found, means, mark in rows:
        columns = [
            textwrap.wrap(text, width) or [""] for text, width in zip((asked, found, means), widths, strict=True)
        ]
        for place in range(max(map(len, columns))):
            parts = [column[place] if place < len(column) else "" for column in columns]
            cells = "  ".join(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True))
            lines.append(f"{mark if not place else ' '} {cells}".rstrip())
    return "\n".join([lines[0], "-" * (sum(widths) + MARGIN), *lines[1:]])


def file_name(model: str) -> str:
    """A name for the settings file of a model: letters, digits, `._-` only, no path and no hidden file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.rpartition("/")[2] or model).strip(".-_")[:80] or "model"


def chat_file(examined: Examination, base_url: str, key_env: str) -> str:
    """The text of `conf/llm/<name>.yaml`."""
    top: dict[str, Any] = {"base_url": base_url, "key_env": key_env}
    if examined.in_flight is not None:
        top["in_flight"] = examined.in_flight
    return _text(top, examined.settings, examined.findings)


def embedder_file(settings: ModelSettings, findings: Sequence[Checked], base_url: str, key_env: str) -> str:
    """The text of `conf/embedder/<name>.yaml`."""
    return _text({"base_url": base_url, "key_env": key_env, "batch": 64}, settings, findings)


def _text(top: Mapping[str, Any], settings: ModelSettings, findings: Sequence[Checked]) -> str:
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


def write(text: str, group: str, name: str, out: Path | None) -> Written:
    """Write a settings file; an existing file is kept, and the new file is written next to it.

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
    return Written(path, f"written: {path}{note}{use}")


def _place(group: str) -> Path:
    folder = ROOT / "conf" / group
    own = folder.is_dir() and os.access(folder, os.W_OK) and "site-packages" not in folder.parts
    return folder if own else Path.cwd()
