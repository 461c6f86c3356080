"""The stand-in that writes MSC-E without a model: turns of other MSC conversations, and questions of the extractive engine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from memsys.llm.ask import complete
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.offline.reading import UNKNOWN
from memsys.llm.protocol import Completion, Request
from memsys.tokens import count_tokens

NAMES = ("Alex", "Bob")
Round = tuple[str, str]
"""The turns of Alex and of Bob."""


def lines(rounds: Iterable[Round]) -> list[str]:
    """Rounds as `Name: text` lines."""
    return [f"{name}: {text}" for texts in rounds for name, text in zip(NAMES, texts, strict=True)]


class StandIn:
    """Writes MSC-E without a model: rounds of other conversations, and questions for what the extractive engine finds."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        self._rounds = rounds
        self._engine = ExtractiveLLM()

    def submit(self, request: Request) -> Future[Completion]:
        text = self._continued(request) if request.purpose == "msc_e.continue" else self._asked(request)
        future: Future[Completion] = Future()
        sent = sum(count_tokens(content) for _, content in request.messages)
        future.set_result(Completion(text, sent, count_tokens(text), model="stand-in", endpoint="offline"))
        return future

    def _continued(self, request: Request) -> str:
        fields = request.fields
        start = 7919 * (fields["number"] + 1) + fields["round"]  # a prime, so that conversations start apart
        return "\n".join(lines(self._rounds[(start + n) % len(self._rounds)] for n in range(fields["rounds"])))

    def _asked(self, request: Request) -> str:
        said = request.fields["said"]
        words = self._found(request, "keywords", {"text": said}).split(", ")[:2]
        topic = " and ".join(words) if words != [UNKNOWN] else "yourself"
        question = f"What did you say about {topic} around round {request.fields['round'] + 1}?"
        response = self._found(request, "answer", {"question": question, "memories": said})
        return json.dumps({"question": question, "response": response})

    def _found(self, request: Request, kind: str, fields: Mapping[str, Any]) -> str:
        return complete(self._engine, replace(request, kind=kind, schema=None, fields=fields)).text
