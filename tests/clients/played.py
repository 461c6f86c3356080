"""Plays the cases of a client: each prints a line, the reply or the error. A case called `refused: …` must end with an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else ""
PNG = "data:image/png;base64,iVBORw0KGgo="
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
ASK = [{"role": "user", "content": "What is the weather in Turin?"}]


def play(cases: Mapping[str, Callable[[], Any]]) -> None:
    for name, ask in cases.items():
        try:
            line = {"case": name, "reply": json.dumps(ask(), default=str, sort_keys=True)}
        except Exception as error:  # whatever a client raises is what its user gets
            line = {"case": name, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(line), flush=True)
