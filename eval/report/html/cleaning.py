"""Remove content from a report before it is written: keys, paths of this machine, very long texts; and write it as data files.

A report is meant to be sent to others. Known folders are replaced by a word in angle brackets wherever they occur as a whole path.

Data are JavaScript files: a page that is opened from a disk may load a script, but may not fetch a file. Each file is one call of
`report.receive(name, JSON.parse("…"))`. The JSON is ASCII, and `<` is escaped, so that no text in it can end the script or be a line
separator. It is parsed, not evaluated: a key called `__proto__` is a key like any other.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.files.provenance import ROOT
from memsys.jsons import changed
from memsys.llm.secrets import redact, secrets_of_environment

LONGEST = 50_000
"""Maximum number of characters of one text in a report; the rest stays in the run's file."""


@dataclass(frozen=True, slots=True)
class Cleaner:
    """Removes keys and folders of this machine from everything that a report shows."""

    pattern: re.Pattern[str]
    names: dict[str, str]

    def text(self, text: str) -> str:
        """The text without folders and without secrets of the environment; `redact` also removes keys that were set elsewhere."""
        return self.pattern.sub(lambda match: self.names[match.group(0)], text)

    def page(self, text: str) -> str:
        """A whole page without keys and folders."""
        return redact(self.text(text))

    def value(self, value: Any) -> Any:
        """A nested value with every text and key in it cleaned."""
        return changed(value, self.text)

    def encoded(self, value: Any) -> str:
        """The value as JSON in ASCII, cleaned. Most values hold no folder name and no secret; they are not traversed."""
        text = json.dumps(value, separators=(",", ":"))
        if any(json.dumps(name)[1:-1] in text for name in self.names):
            text = json.dumps(self.value(value), separators=(",", ":"))
        return redact(text)


def cleaner(results: Path, more: Iterable[Path | str | None] = ()) -> Cleaner:
    """Build a cleaner that knows the folders of this machine, and `more`, such as those of raw data or of prompts."""
    named: list[tuple[Path | str, str]] = [(results, "<results>"), *((folder, "<folder>") for folder in more if folder)]
    named += [(ROOT, "<project>"), (sys.prefix, "<python>"), (Path.cwd(), "<working folder>")]
    named += [(tempfile.gettempdir(), "<temporary folder>"), (Path.home(), "~")]
    names: dict[str, str] = {}
    for folder, name in named:
        for spelling in dict.fromkeys((str(folder), str(Path(folder).absolute()), str(Path(folder).resolve()))):
            if len(Path(spelling).parts) > 1 and Path(spelling).is_absolute():  # the root of the disk is in every path
                names.setdefault(spelling, name)
    paths = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    secrets = secrets_of_environment()
    keys = "|".join(map(re.escape, sorted(secrets, key=len, reverse=True))) or r"(?!)"
    return Cleaner(re.compile(rf"{keys}|(?<![\w.-])(?:{paths})(?![\w-])"), {**names, **secrets})


def clipped(text: str, longest: int = LONGEST) -> str:
    """The text, or its beginning and a sentence with its length."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n[cut here: {len(text):,} characters in the run's file]"


def as_script(name: str, text: str) -> str:
    """The source of a data file.

    Args:
        name: name under which the page requests it: letters, digits and hyphens.
        text: JSON in ASCII.
    """
    return f"report.receive({json.dumps(name)}, JSON.parse({json.dumps(text)}));\n".replace("<", "\\u003c")


class Shards:
    """Writes the data files of a report."""

    def __init__(self, folder: Path, clean: Cleaner) -> None:
        self.folder, self.clean = folder, clean
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, value: Any) -> None:
        """Write one data file without keys and paths of this machine."""
        text = as_script(name, self.clean.encoded(value))
        (self.folder / f"{name}.js").write_text(text, encoding="ascii")
