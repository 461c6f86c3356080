"""`ask`, `ask_all`, and the scripted model that tests use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from scripted import ScriptedLLM

from memsys.llm.ask import ParseFailure, ask, ask_all
from memsys.llm.meter import Metered, metering
from memsys.llm.protocol import Completion, ModelError, Request
from memsys.prompts import Prompt, PromptError, Prompts

Write = Callable[[dict[str, str]], Prompts]


@pytest.fixture
def decide(prompts: Write) -> Prompt:
    """A prompt whose reply is A or B."""
    return prompts({"tree/decide": "---\nkind: choose\nlabels: [A, B]\n---\n$query?"})["tree/decide"]


@pytest.fixture
def count(prompts: Write) -> Prompt:
    """A prompt whose reply is {"n": integer}."""
    schema = "{type: object, properties: {n: {type: integer}}, required: [n]}"
    return prompts({"tree/count": f"---\nkind: rate\nschema: {schema}\n---\n$text"})["tree/count"]


def test_complete_returns_the_completion_and_raises_what_failed() -> None:
    request = Request((("user", "x"),), "a.b")
    assert ScriptedLLM("hello").submit(request).result().text == "hello"
    with pytest.raises(ModelError, match="down"):
        ScriptedLLM(ModelError("down")).submit(request).result()


def test_ask_renders_calls_and_parses(decide: Prompt, count: Prompt) -> None:
    llm = ScriptedLLM({"tree.decide": "b.", "tree.count": 'I count {"n": 4}'})
    assert ask(llm, decide, query="Which") == "B"
    assert ask(llm, count, text="four") == {"n": 4}
    assert llm.purposes == ["tree.decide", "tree.count"]
    assert llm.requests[0].messages == (("user", "Which?"),)
    assert llm.requests[1].schema == count.schema


def test_without_retries_a_bad_reply_is_a_failure_after_one_call(decide: Prompt) -> None:
    llm = ScriptedLLM("perhaps")
    assert isinstance(ask(llm, decide, query="Which"), ParseFailure)
    assert len(llm.requests) == 1


def test_a_retry_is_another_request_with_its_number(decide: Prompt) -> None:
    llm = ScriptedLLM({"*": ["perhaps", "", "A"]})
    assert ask(llm, decide, retries=3, sample=7, query="Which") == "A"
    assert [request.retry for request in llm.requests] == [0, 1, 2]
    assert {request.sample for request in llm.requests} == {7}
    assert len({request.messages for request in llm.requests}) == 1


def test_the_last_failure_is_returned_when_retries_run_out(decide: Prompt) -> None:
    llm = ScriptedLLM({"*": ["one", "two", "three"]})
    failure = ask(llm, decide, retries=2, query="Which")
    assert isinstance(failure, ParseFailure)
    assert failure.text == "three"


def test_every_unparsed_reply_is_counted(decide: Prompt) -> None:
    with metering() as ledger:
        ask(Metered(ScriptedLLM({"*": ["one", "two", "A"]})), decide, retries=2, query="Which")
    assert (ledger.calls["tree.decide"], ledger.parse_failures["tree.decide"]) == (3, 2)


def test_ask_all_keeps_the_order_and_asks_again_only_where_it_failed(decide: Prompt, count: Prompt) -> None:
    llm = ScriptedLLM({"tree.decide": ["A", "?", "B", "A"], "tree.count": '{"n": 1}'})
    asks: list[tuple[Prompt, dict[str, Any]]] = [
        (decide, {"query": "first"}),
        (decide, {"query": "second"}),
        (count, {"text": "third"}),
        (decide, {"query": "fourth"}),
    ]
    assert ask_all(llm, asks, retries=1) == ["A", "A", {"n": 1}, "B"]
    assert [(request.messages[0][1], request.retry) for request in llm.requests] == [
        ("first?", 0), ("second?", 0), ("third", 0), ("fourth?", 0), ("second?", 1),
    ]  # fmt: skip


def test_ask_all_of_nothing_asks_nothing() -> None:
    assert ask_all(ScriptedLLM({}), []) == []


def test_ask_all_submits_everything_before_it_waits(decide: Prompt) -> None:
    class Together:
        """Answers only once three requests are there."""

        def __init__(self) -> None:
            self.pending: list[Future[Completion]] = []

        def submit(self, request: Request) -> Future[Completion]:
            self.pending.append(Future())
            if len(self.pending) == 3:
                for number in (2, 0, 1):
                    self.pending[number].set_result(Completion("AB?"[number]))
            return self.pending[-1]

    first, second, third = ask_all(Together(), [(decide, {"query": str(n)}) for n in range(3)])
    assert (first, second) == ("A", "B")
    assert isinstance(third, ParseFailure)


def test_calls_asked_together_are_one_stretch_of_the_critical_path_and_a_retry_another(decide: Prompt) -> None:
    replies = [("A", 1.0), ("?", 3.0), ("B", 2.0), ("B", 0.5)]
    llm = Metered(ScriptedLLM({"*": [Completion(text, seconds=seconds) for text, seconds in replies]}))
    with metering() as ledger:
        assert ask_all(llm, [(decide, {"query": "q"})] * 3, retries=1) == ["A", "B", "B"]
    assert (ledger.seconds, ledger.critical_seconds) == (6.5, 3.5)


def test_a_failed_call_fails_the_round_after_all_are_back(decide: Prompt) -> None:
    llm = ScriptedLLM({"*": ["A", ModelError("down"), "B"]})
    with metering() as ledger, pytest.raises(ModelError, match="down"):
        ask_all(Metered(llm), [(decide, {"query": "q"})] * 3)
    assert (ledger.calls["tree.decide"], ledger.failures["tree.decide"], ledger.sent) == (3, 1, 3)


def test_a_label_field_is_what_the_reply_is_checked_against(decide: Prompt) -> None:
    assert ask(ScriptedLLM("c"), decide, query="q", labels=["C"]) == "C"
    assert isinstance(ask(ScriptedLLM("A"), decide, query="q", labels=["C"]), ParseFailure)


def test_a_missing_field_is_found_before_anything_is_sent(decide: Prompt, count: Prompt) -> None:
    llm = ScriptedLLM("A")
    with pytest.raises(PromptError):
        ask_all(llm, [(decide, {"query": "q"}), (count, {"txt": "typo"})])
    assert llm.requests == []


def test_fields_are_not_part_of_what_makes_a_request() -> None:
    assert Request((("user", "x"),), "a.b", fields={"x": 1}) == Request((("user", "x"),), "a.b", fields={"x": 2})


def test_a_script_replies_by_purpose_in_sequence_or_by_function() -> None:
    llm = ScriptedLLM({"a": "same", "b": ["one", "two"], "*": lambda request: request.purpose.upper()})
    said = [llm.submit(Request((("user", "x"),), purpose)).result().text for purpose in ("a", "b", "a", "b", "c")]
    assert said == ["same", "one", "same", "two", "C"]
    assert llm.purposes == ["a", "b", "a", "b", "c"]


def test_an_unforeseen_call_is_an_assertion_error() -> None:
    llm = ScriptedLLM({"a": ["one"]})
    llm.submit(Request((), "a")).result()
    with pytest.raises(AssertionError, match="no further reply for a"):
        llm.submit(Request((), "a"))
    with pytest.raises(AssertionError, match="no reply for b"):
        llm.submit(Request((), "b"))


def test_a_scripted_exception_arrives_as_a_model_error() -> None:
    with pytest.raises(ModelError, match="boom"):
        ScriptedLLM(KeyError("boom")).submit(Request((), "a")).result()


def test_a_scripted_text_counts_tokens_and_gives_log_probabilities_when_asked() -> None:
    llm = ScriptedLLM("three short words")
    plain = llm.submit(Request((("system", "Be brief."), ("user", "Hello there")), "a")).result()
    assert (plain.prompt_tokens, plain.completion_tokens, plain.logprobs) == (5, 3, None)
    assert llm.submit(Request((), "a", logprobs=True)).result().logprobs == (-0.1, -0.1, -0.1)
