"""What several tests of this folder build: units of one turn, and prompt files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from data_loaders.schema import Turn, Unit
from memsys.prompts import Prompts

MakeUnit = Callable[..., Unit]
WritePrompts = Callable[..., Prompts]


@pytest.fixture
def unit() -> MakeUnit:
    """`unit("u1", "text")`: Ann says the text in turn `t-u1` of session s1 on 7 May 2023."""

    def make(name: str, text: str, session: str = "s1", time_text: str = "7 May 2023") -> Unit:
        return Unit(name, (Turn(f"t-{name}", "Ann", text),), session, datetime(2023, 5, 7), time_text)

    return make


@pytest.fixture
def prompts(tmp_path: Path) -> WritePrompts:
    """`prompts({"tree/join": "---\\nkind: …"})`: the files, laid over the shipped ones."""

    def write(files: dict[str, str]) -> Prompts:
        for name, text in files.items():
            path = tmp_path / f"{name}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return Prompts(tmp_path)

    return write
