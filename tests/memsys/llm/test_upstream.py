"""What the offline engine is given from a client's request."""

from __future__ import annotations

import asyncio
import json

from memsys.llm.gateway.accounts import Purpose
from memsys.llm.gateway.upstream import EngineUpstream
from memsys.llm.offline.extractive import ExtractiveLLM

FORM = {"type": "object", "properties": {"facts": {"type": "array", "items": {"type": "string"}}}}


def test_two_patterns_of_a_field_make_a_list_and_the_engine_answers_for_each_element() -> None:
    fields = {"text": [r"New: \[(.*?)\]", r"'(.*?)'|\"(.*?)\""]}
    purpose = Purpose("decide", "", {"kind": "extract", "schema": FORM, "fields": fields})
    shown = "Old: ['Ben owns a boat'] New: ['Mara planted four tomatoes', \"Mara's brother sold his bakery\"]"
    body = {"messages": [{"role": "user", "content": shown}]}
    reply, _, _ = asyncio.run(EngineUpstream(ExtractiveLLM()).reply(body, "decide", purpose))
    facts = json.loads(reply["choices"][0]["message"]["content"])["facts"]
    assert facts == ["Mara planted four tomatoes", "Mara's brother sold his bakery"]
