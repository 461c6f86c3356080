"""What the offline engine is given from a client's request."""

from __future__ import annotations

import asyncio
import json

from memsys.llm.gateway.accounts import Purpose
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.tokens import count_tokens

FORM = {"type": "object", "properties": {"facts": {"type": "array", "items": {"type": "string"}}}}


def test_two_patterns_of_a_field_make_a_list_and_the_engine_answers_for_each_element() -> None:
    fields = {"text": [r"New: \[(.*?)\]", r"'(.*?)'|\"(.*?)\""]}
    purpose = Purpose("decide", "", {"kind": "extract", "schema": FORM, "fields": fields})
    shown = "Old: ['Ben owns a boat'] New: ['Mara planted four tomatoes', \"Mara's brother sold his bakery\"]"
    body = {"messages": [{"role": "user", "content": shown}]}
    reply = asyncio.run(EngineUpstream(ExtractiveLLM()).reply(body, "decide", purpose)).value
    facts = json.loads(reply["choices"][0]["message"]["content"])["facts"]
    assert facts == ["Mara planted four tomatoes", "Mara's brother sold his bakery"]


def test_two_groups_of_an_element_are_its_speaker_and_its_text() -> None:
    fields = {"text": ["(.*)", '"speaker": (.*?), "content": (.*?) }']}
    purpose = Purpose("episode", "", {"kind": "extract", "schema": FORM, "fields": fields})
    shown = (
        '{ "speaker": Mara, "content": I planted four tomatoes. } { "speaker": Ben, "content": I bought a red boat. }'
    )
    body = {"messages": [{"role": "user", "content": shown}]}
    reply = asyncio.run(EngineUpstream(ExtractiveLLM()).reply(body, "episode", purpose)).value
    facts = json.loads(reply["choices"][0]["message"]["content"])["facts"]
    assert facts == ["Mara: I planted four tomatoes.", "Ben: I bought a red boat."]


def test_a_declared_record_makes_delimited_text_of_each_element_of_the_reply() -> None:
    form = {
        "type": "array",
        "items": {"type": "object", "properties": {"fact": {"type": "string"}, "kind": {"const": "event"}}},
    }
    stand_in = {"kind": "extract", "schema": form, "record": "({kind}|{fact})", "between": "##", "end": "<end>"}
    purpose = Purpose("extract", "", stand_in)
    body = {"messages": [{"role": "user", "content": "Mara planted four tomatoes. Ben bought {two} red boats."}]}
    reply = asyncio.run(EngineUpstream(ExtractiveLLM()).reply(body, "extract", purpose)).value
    text = reply["choices"][0]["message"]["content"]
    assert text == "(event|Mara planted four tomatoes.)##(event|Ben bought {two} red boats.)<end>"
    assert reply["usage"]["completion_tokens"] == count_tokens(text)
