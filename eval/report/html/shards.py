"""Data as JavaScript files: a page that is opened from a disk may load a script, but may not fetch a file.

Each file is one call of `report.receive(name, JSON.parse("…"))`. The JSON is ASCII, and `<` is escaped, so that no text in it can end the
script or be a line separator. It is parsed, not evaluated: a key called `__proto__` is a key like any other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eval.report.html.cleaning import Cleaner


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
