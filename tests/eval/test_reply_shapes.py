"""Every prompt and every judge, with the same reply in each shape in which servers send it, over HTTP through the real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from data_loaders.schema import Gold, Question
from eval.files.records import Score
from eval.judging.judge import Judge, judge_requests, judged
from memsys.llm.ask import ParseFailure, ask, parse
from memsys.llm.client import Client, Endpoint
from memsys.llm.endpoint import EndpointLimits
from memsys.llm.meter import Ledger, Metered, metering
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import ContextOverflow, Request
from memsys.prompts import SHIPPED, Prompt, Prompts
from scripts.mock.endpoint import Mock, application, serving
from scripts.mock.shapes import OVERFLOWS, SHAPES

NAMES = sorted(path.relative_to(SHIPPED).with_suffix("").as_posix() for path in SHIPPED.glob("*/*.md"))
JUDGES = sorted(
    path.stem
    for path in (Path(__file__).parents[2] / "conf" / "judge").glob("*.yaml")
    if path.stem not in ("halumem_hallucination", "halumem_omission")  # their score is a share of wrong answers
)
WHOLE = [
    "bare",
    "thought before",
    "thought without opening tag",
    "thought in its own field",
    "thought in a part",
    "harmony",
    "harmony without tokens",
    "parts",
    "null usage",
    "string usage",
    "no usage",
]
"""Shapes that hold the whole reply."""
ENDED = {
    "thought unclosed": "cut in thought",
    "cut in thought": "cut in thought",
    "empty": "empty",
    "refused": "refused",
    "tool call only": "tool call only",
}
"""Shapes without a reply, and the outcome of each."""
PROMPTS = Prompts()
PROSE = "Ines learned to weave in Oaxaca. She sold two looms and a rug."
DECOY = "Could it be yes? Perhaps CORRECT, 1, or Action: 2. No: it is WRONG, 0."


class Served:
    """One server for all tests: it answers with the reply of the test, after the thought of the test."""

    def __init__(self, url: str, mock: Mock) -> None:
        self.mock, self._endpoint = mock, Endpoint(url, EndpointLimits(timeout=10.0, retries=1, backoff=0.01))

    def replying(self, reply: str, thought: str, shape: str) -> Metered:
        self.mock.said = lambda body, key: reply
        self.mock.thought = lambda body, key: thought
        # The schema would be enforced by a provider; here it only makes the request longer.
        return Metered(Client(self._endpoint, ModelSettings(f"mock@{shape}")))

    def close(self) -> None:
        self._endpoint.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    mock = Mock()
    with serving(application(mock)) as url:
        one = Served(url, mock)
        yield one
        one.close()


def filled(schema: dict[str, Any], other: bool) -> Any:
    """A value that satisfies a schema, with three elements in each list; `other` gives one that differs wherever it may."""
    if "enum" in schema:
        return schema["enum"][-1 if other else 0]
    if "type" not in schema and (choices := schema.get("anyOf") or schema.get("oneOf")):
        return filled(choices[0], other)
    kinds = schema.get("type", "object")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if kind == "object":
        return {name: filled(part, other) for name, part in schema.get("properties", {}).items()}
    if kind == "array" and "prefixItems" in schema:
        return [filled(part, other) for part in schema["prefixItems"]]
    if kind == "array":
        size = min(schema.get("maxItems", 3), max(schema.get("minItems", 0), 3))
        return [filled(schema.get("items", {"type": "string"}), other) for _ in range(size)]
    if kind in ("integer", "number"):
        return schema.get("maximum", 3) if other else schema.get("minimum", 0)
    if kind in ("boolean", "null"):
        return other if kind == "boolean" else None
    return ("yes, another value" if other else "a value")[: schema.get("maxLength")]


def fields_of(prompt: Prompt) -> dict[str, Any]:
    names = {name for text in (prompt.system, prompt.user) for name in Template(text).get_identifiers()}
    fields: dict[str, Any] = dict.fromkeys(names, "x")
    return fields | ({"labels": ("MERGE_1", "MERGE_2", "SPLIT")} if "labels" in names else {})


def replies_of(prompt: Prompt, fields: dict[str, Any]) -> tuple[str, str]:
    """A reply that holds a value, and a thought that holds another one."""
    if prompt.schema is not None:
        reply, other = (json.dumps(filled(dict(prompt.schema), each)) for each in (False, True))
        return reply, f"{DECOY} {other} or:\n```json\n{other}\n```"
    if labels := prompt.render(fields).fields["labels"]:
        return labels[0], f"{DECOY}\n{labels[-1]}\n{labels[-1]}"
    return PROSE, DECOY


def told(served: Served, prompt: Prompt, shape: str) -> tuple[Any, Ledger]:
    fields = fields_of(prompt)
    with metering() as ledger:
        return ask(served.replying(*replies_of(prompt, fields), shape), prompt, **fields), ledger


@pytest.mark.slow
def test_every_prompt_reads_the_bare_value_or_a_typed_failure_whatever_the_shape(
    served: Served, subtests: pytest.Subtests
) -> None:
    for name in NAMES:
        with subtests.test(name=name):
            prompt = PROMPTS[name]
            fields, purpose = fields_of(prompt), name.replace("/", ".")
            reply, _ = replies_of(prompt, fields)
            labels = prompt.render(fields).fields["labels"]
            value = parse(reply, prompt.schema, labels)
            assert not isinstance(value, ParseFailure)

            assert {shape: told(served, prompt, shape)[0] for shape in WHOLE} == dict.fromkeys(WHOLE, value)

            for shape, stopped in ENDED.items():
                failure, ledger = told(served, prompt, shape)
                assert isinstance(failure, ParseFailure)
                assert (failure.stopped, DECOY in failure.text) == (stopped, False)
                assert ledger.parse_failures == {purpose: 1}
                assert ledger.notes[f"{purpose}: {stopped}"] == 1

            fenced, _ = told(served, prompt, "fenced")
            assert fenced == (value if prompt.schema is not None else f"```json\n{reply}\n```") or isinstance(
                fenced, ParseFailure
            )

            cut, ledger = told(served, prompt, "cut")
            assert ledger.notes[f"{purpose}: cut"] == 1
            if prompt.schema is not None or labels or prompt.cut == "fail":
                assert isinstance(cut, ParseFailure)
                assert (cut.stopped, ledger.parse_failures) == ("cut", {purpose: 1})
            else:
                assert cut
                assert reply.startswith(cut)


@pytest.mark.parametrize("body", OVERFLOWS)
def test_a_prompt_that_the_server_refuses_as_too_long_is_a_context_overflow_and_not_retried(
    served: Served, body: str
) -> None:
    with pytest.raises(ContextOverflow) as caught:
        served.replying("x", "y", body).submit(Request((("user", body),), "test.step")).result()
    assert caught.value.attempts == 1


GOLD = Gold(("Oaxaca",), category="single-hop", detail={"category_id": 4, "question_type": "multi-session"})
RIGHT_AND_WRONG = {
    "locomo_plus": ({"reason": "As it says.", "label": "correct"}, {"reason": "As it says.", "label": "wrong"}),
    "beam": ({"reason": "As it says.", "score": 1}, {"reason": "As it says.", "score": 0}),
    "halumem": ({"reason": "As it says.", "label": "Correct"}, {"reason": "As it says.", "label": "Omission"}),
    "longmemeval_v2": ({"reason": "As it says.", "label": "CORRECT"}, {"reason": "As it says.", "label": "WRONG"}),
    "label": ({"reason": "As it says.", "label": "CORRECT"}, {"reason": "As it says.", "label": "WRONG"}),
    "rubric": ({"reason": "As it says.", "label": "CORRECT"}, {"reason": "As it says.", "label": "WRONG"}),
    "gatemem": tuple(
        {"action_ok": True, "utility_ok": right, "privacy_leak": None, "deletion_leak": None, "notes": "As it says."}
        for right in (True, False)
    ),
    "grade": ({"reason": "As it says.", "score": 3}, {"reason": "As it says.", "score": 0}),
    "memory": tuple(
        {"Mem_hits": [], "Mem_recall": recall, "Mem_helpful_score": 1, "Mem_helpful_reason": "As it says."}
        for recall in (1.0, 0.0)
    ),
    "binary": ("1", "0"),
    "longmemeval": ("yes", "no"),
}


@cache
def judge_of(name: str) -> Judge:
    folder = Path(__file__).parents[2] / "conf" / "judge"
    return Judge(**yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8")))


KINDS = ("multi-session", "temporal-reasoning", "knowledge-update", "single-session-preference")
GRADED = [(name, kind) for name in JUDGES for kind in (KINDS if judge_of(name).rule == "longmemeval" else KINDS[:1])]


def graded(served: Served, name: str, kind: str, right: bool, shape: str) -> Score:
    """What a judge makes of a reply in this shape: one that is right or wrong, behind a thought that says the contrary."""
    judge = judge_of(name)
    gold = Gold(GOLD.answers, category=GOLD.category, detail={**GOLD.detail, "question_type": kind})
    forms = [form if isinstance(form, str) else json.dumps(form) for form in RIGHT_AND_WRONG[judge.rule]]
    reply, other = forms if right else forms[::-1]
    request = judge_requests(judge, PROMPTS, Question("q7", "Where did Ines learn to weave?"), gold, "In Oaxaca")[0]
    thought = f"Could it be {other}? I should say {other}.\n{other}"
    return judged(judge, served.replying(reply, thought, shape).submit(request).result(), gold)


@pytest.mark.slow
def test_every_judge_gives_the_bare_verdict_or_none_whatever_the_shape(
    served: Served, subtests: pytest.Subtests
) -> None:
    for (name, kind), right in product(GRADED, (True, False)):
        with subtests.test(name=name, kind=kind, right=right):
            scores = {shape: graded(served, name, kind, right, shape) for shape in (*WHOLE, *ENDED, "fenced", "cut")}
            assert {shape: scores[shape].value for shape in WHOLE} == dict.fromkeys(WHOLE, float(right))
            for shape, stopped in ENDED.items():
                assert scores[shape].value is None
                assert scores[shape].why.startswith(f"no verdict: the reply was {stopped} (")
            assert scores["fenced"].value in (float(right), None)
            judge = judge_of(name)
            if (judge.rule, judge.reading) == (
                "longmemeval",
                "official",
            ):  # whatever holds no "yes" is no, even the start
                assert (scores["cut"].value, scores["cut"].why) == (0.0, "")
                continue
            assert scores["cut"].value is None
            assert "cut" in scores["cut"].why


def test_every_shape_of_the_mock_is_tried() -> None:
    assert {*WHOLE, *ENDED, "fenced", "cut", "number", "prompt cut"} == set(SHAPES)
