"""Replies as servers send them: reasoning apart, typed outcomes, usage that is no usage, prompts that were cut in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from scripted import ScriptedLLM, fetched

from memsys.llm.ask import ParseFailure, ask, parse_reply
from memsys.llm.cache import CachedLLM, request_key
from memsys.llm.client import Client, Endpoint, HttpEmbedder, chat_body
from memsys.llm.endpoint import EndpointLimits
from memsys.llm.meter import Metered, metering
from memsys.llm.pricing import ModelSettings, Purse
from memsys.llm.protocol import Completion, ModelError, PromptTruncated, Request, Stopped
from memsys.llm.replies import (
    LONG_PROMPT,
    Spoken,
    check_window,
    cleaned,
    completion_of,
    is_overflow,
    usage_of,
    without_reasoning,
)
from memsys.llm.store import CacheStore
from memsys.prompts import Prompt, PromptError, Prompts
from memsys.tokens import count_tokens
from scripts.mock.endpoint import Mock, application, serving

ASKED = Request((("user", "Where did Ines learn to weave?"),), "test.step", max_tokens=50)


def raw(content: Any, reason: Any = "stop", usage: Any = None, **message: Any) -> dict[str, Any]:
    reply: dict[str, Any] = {"choices": [{"message": {"content": content, **message}, "finish_reason": reason}]}
    return reply if usage is None else {**reply, "usage": usage}


def read(*args: Any, **message: Any) -> Completion:
    reply = raw(*args, **message)
    return completion_of(reply, usage_of(reply), ASKED, 50)


# --- reasoning ------------------------------------------------------------------------------------------------------


def test_reasoning_is_taken_out_of_a_text_and_a_second_time_changes_nothing(subtests: pytest.Subtests) -> None:
    for text, spoken in [
        ("No", Spoken("No")),
        ("<think>Could it be yes?</think> No", Spoken("No", "Could it be yes?")),
        ("<THINK>yes</THINK>\n\nNo", Spoken("No", "yes")),
        ("[THINK]yes[/THINK]No", Spoken("No", "yes")),
        ("◁think▷yes◁/think▷No", Spoken("No", "yes")),
        ("<think>a <think>b</think> yes</think> No", Spoken("No", "a <think>b\n\nyes")),
        ("<think>a</think><think>b</think>No", Spoken("No", "a\n\nb")),
        ("Well. <think>yes</think> No", Spoken("Well.  No", "yes")),
        ("Could it be yes?\n</think>\nNo", Spoken("No", "Could it be yes?")),
        ("<think>Could it be yes?", Spoken("", "Could it be yes?", thinking=True)),
        ("No\n<think>or yes", Spoken("No", "or yes", thinking=True)),
        ("<think></think>No", Spoken("No")),
        ('{"a": "</think> and <think>"}', Spoken('{"a": "</think> and <think>"}')),
        ('<think>[1]</think>{"a": "<think>x</think>"}', Spoken('{"a": "<think>x</think>"}', "[1]")),
        ("The tag <think> opens a thought.", Spoken("The tag <think> opens a thought.")),
        ("<|channel|>analysis<|message|>yes?<|end|><|channel|>final<|message|>No<|return|>", Spoken("No", "yes?")),
        ("<|channel|>analysis<|message|>is it yes", Spoken("", "is it yes", thinking=True)),
        (
            '<|channel|>commentary to=functions.find <|constrain|>json<|message|>{"a": 1}<|call|>',
            Spoken("", '{"a": 1}', calling=True),
        ),
        ("analysisIt may be yes.assistantfinalNo", Spoken("No", "It may be yes.")),
        ("analysisIt may be yes.", Spoken("", "It may be yes.", thinking=True)),
    ]:
        with subtests.test(text=text, spoken=spoken):
            found = without_reasoning(text)
            assert found == spoken
            assert without_reasoning(found.answer).answer == found.answer


def test_reasoning_tokens_are_the_providers_count_where_it_has_one_and_ours_where_not() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 40}
    ours = read("<think>one two three</think>No", "stop", usage)
    assert (ours.text, ours.reasoning, ours.reasoning_tokens) == ("No", "one two three", 3)
    theirs = read(
        "<think>one two three</think>No", "stop", {**usage, "completion_tokens_details": {"reasoning_tokens": 31}}
    )
    assert theirs.reasoning_tokens == 31


def test_log_probabilities_of_a_thought_go_with_it() -> None:
    reply = raw("<think>yes</think>Oaxaca")
    words = ["<think>", "yes", "</think>", "Oax", "aca"]
    reply["choices"][0]["logprobs"] = {"content": [{"token": word, "logprob": -at} for at, word in enumerate(words)]}
    assert completion_of(reply, usage_of(reply), ASKED, 50).logprobs == (-3.0, -4.0)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), None])
def test_log_probabilities_that_are_no_numbers_count_as_missing(value: float | None) -> None:
    reply = raw("No way")
    tokens = [{"token": "No", "logprob": -0.5}, {"token": " way", "logprob": value}]
    reply["choices"][0]["logprobs"] = {"content": tokens}
    assert completion_of(reply, usage_of(reply), ASKED, 50).logprobs is None


def test_a_reply_without_a_whole_answer_says_why(subtests: pytest.Subtests) -> None:
    for reply, stopped, text in [
        (raw("No", "length"), "cut", "No"),
        (raw("No", "stop"), "", "No"),
        (raw("", "length"), "cut in thought", ""),
        (raw("<think>yes", "stop"), "cut in thought", ""),
        (raw(None, "length", reasoning="yes"), "cut in thought", ""),
        (raw(None, "stop", reasoning_content="yes"), "empty", ""),
        (raw("", "stop"), "empty", ""),
        (raw(" \n", "stop"), "empty", " \n"),
        (raw("I", "content_filter"), "refused", "I"),
        (raw(None, "stop", refusal="No."), "refused", ""),
        (raw([{"type": "refusal", "refusal": "No."}]), "refused", ""),
        (raw(None, "tool_calls", tool_calls=[{"id": "1"}]), "tool call only", ""),
        (raw("No", None, {"prompt_tokens": 1, "completion_tokens": 50}), "cut", "No"),
        (raw("No", None, {"prompt_tokens": 1, "completion_tokens": 49}), "", "No"),
    ]:
        with subtests.test(reply=reply, stopped=stopped, text=text):
            found = completion_of(reply, usage_of(reply), ASKED, 50)
            assert (found.stopped, found.text) == (stopped, text)
            assert cleaned(found) == found


def test_content_given_as_parts_or_as_a_number_is_text(subtests: pytest.Subtests) -> None:
    for content, text in [
        (42, "42"),
        (2.5, "2.5"),
        (True, "true"),
        ({"label": "WRONG"}, '{"label": "WRONG"}'),
        ([{"type": "text", "text": "It was "}, {"type": "output_text", "text": "Oaxaca"}], "It was Oaxaca"),
        (["It was ", "Oaxaca"], "It was Oaxaca"),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "yes"}]}, {"type": "text", "text": "No"}], "No"),
        ([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "No"}], "No"),
    ]:
        with subtests.test(content=content, text=text):
            assert read(content).text == text


def test_malformed_usage_is_counted_as_not_reported_and_never_raises(subtests: pytest.Subtests) -> None:
    for usage in [
        {"prompt_tokens": None, "completion_tokens": 3},
        {"prompt_tokens": "9", "completion_tokens": 3},
        {"prompt_tokens": 9, "completion_tokens": -1},
        {"prompt_tokens": float("nan"), "completion_tokens": 3},
        {"prompt_tokens": True, "completion_tokens": 3},
        {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": "all"}},
        "many",
        [1],
    ]:
        with subtests.test(usage=usage):
            with metering() as ledger:
                found = Metered(ScriptedLLM(read("It was Oaxaca", "stop", usage))).submit(ASKED).result()
            assert ledger.notes == {"usage_malformed": 1}
            assert found.prompt_tokens in (7, 8, 9)  # the provider's 9 where that is sound, else our own count
            assert found.completion_tokens in (3, 4, 5)


def test_tokens_that_are_not_reported_are_our_own_count_thoughts_included() -> None:
    assert (
        read("No", "stop", {"prompt_tokens": 0, "completion_tokens": 1}).prompt_tokens == read("No").prompt_tokens > 0
    )
    found = read("It was Oaxaca", reasoning="one two three")
    assert (found.completion_tokens, found.reasoning_tokens, found.notes) == (
        count_tokens("It was Oaxaca") + 3,
        3,
        ("usage_not_reported",),
    )


ENDLESS = {
    "an opening tag": "<think>" * 300_000,
    "pairs of tags": "<think></think>" * 300_000,
    "a closing tag": "x" + "</think>" * 300_000,
    "tags inside lines": "a <think>\n" * 200_000,
    "channels": "<|channel|>" * 300_000,
    "the name of a channel": "<|channel|>" + "a" * 3_000_000,
    "a channel that says nothing": "<|channel|>final <|message|>" * 200_000,
    "spaces in a fence": "```" + " " * 1_000_000 + "<think>",
    "brackets before a tag": "[" * 1_000_000 + "<think>",
}
"""What a model may repeat until its limit; a pattern that tries every pair of places would take hours for each of them."""


@pytest.mark.slow
@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_reply_that_repeats_itself_for_ever_is_read_once(text: str) -> None:
    assert len(without_reasoning(text).answer) <= len(text)


# --- parsing --------------------------------------------------------------------------------------------------------


def prompt(cut: str = "", schema: Any = None, labels: tuple[str, ...] = ()) -> Prompt:
    return Prompt("test/step", "extract", "", "x", 100, 0.0, schema, labels, False, cut)


LISTED = {
    "type": "object",
    "properties": {"facts": {"type": "array", "items": {"type": "string"}}},
    "required": ["facts"],
}
FACTS = '{"facts": ["Ines weaves", "Tobias sails", "Marek [the baker] bakes"]}'


def test_a_cut_list_is_never_shortened_wherever_it_is_cut() -> None:
    asked = prompt(schema=LISTED)
    for text in (FACTS, f"```json\n{FACTS}\n```", f"{FACTS} That is all I know, and"):
        for end in range(1, len(text)):
            value = parse_reply(Completion(text[:end], stopped="cut"), asked, {"labels": ()})
            if FACTS in text[:end]:
                assert value == json.loads(FACTS)
            else:
                assert isinstance(value, ParseFailure)
                assert (value.stopped, value.why) == ("cut", "the reply was cut")


def test_a_prompt_may_say_that_the_whole_part_of_a_cut_list_is_used() -> None:
    reply = Completion(FACTS[:40], stopped="cut")
    with metering() as ledger:
        value = ask(Metered(ScriptedLLM(reply)), prompt("keep", LISTED))
    assert value["facts"][0] == "Ines weaves"
    assert ledger.notes == {"test.step: cut": 1}


def test_a_cut_label_is_no_label_and_cut_prose_is_prose() -> None:
    assert parse_reply(Completion("1", stopped="cut"), prompt(), {"labels": ("1", "10")}).stopped == "cut"
    assert parse_reply(Completion("Ines weaves and", stopped="cut"), prompt(), {"labels": ()}) == "Ines weaves and"
    assert parse_reply(Completion("weaving, loo", stopped="cut"), prompt("fail"), {"labels": ()}).stopped == "cut"


def test_a_prompt_with_another_rule_for_cut_replies_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.md").write_text("---\nkind: answer\ncut: shorten\n---\nx", encoding="utf-8")
    with pytest.raises(PromptError, match="cut must be keep or fail"):
        Prompts(tmp_path)["a/b"]


# --- the cache ------------------------------------------------------------------------------------------------------


def test_an_answer_cached_with_its_thoughts_is_read_without_them(tmp_path: Path) -> None:
    store = CacheStore(tmp_path / "cache.sqlite")
    settings = ModelSettings("m")
    llm = CachedLLM(ScriptedLLM(Completion("<think>Could it be yes?</think> No", 9, 9)), store, settings, "here")
    llm.submit(ASKED).result()  # as an older client handed it on
    found = CachedLLM(None, store, settings, "here").submit(ASKED).result()
    assert (found.text, found.reasoning, found.reasoning_tokens, found.stopped) == ("No", "Could it be yes?", 5, "")
    store.close()


@pytest.mark.parametrize("stopped", get_args(Stopped))
@pytest.mark.parametrize("text", ["No", "", " \n"])
def test_a_reply_without_an_answer_is_asked_for_again_and_replayed_where_nothing_can_be_asked(
    tmp_path: Path, stopped: Any, text: str
) -> None:
    store, settings = CacheStore(tmp_path / "cache.sqlite"), ModelSettings("m")
    answered = stopped in ("", "cut") and text == "No"
    model = ScriptedLLM(Completion(text, stopped=stopped))
    first = CachedLLM(model, store, settings, "here").submit(ASKED).result()
    replayed = CachedLLM(None, store, settings, "here").submit(ASKED).result()
    assert (replayed.stopped, replayed.text.strip()) == (stopped or ("" if answered else "empty"), first.text.strip())
    mended = ScriptedLLM("Oaxaca")
    again = CachedLLM(mended, store, settings, "here").submit(ASKED).result()
    assert (again.text, len(mended.requests)) == (("No", 0) if answered else ("Oaxaca", 1))
    assert CachedLLM(None, store, settings, "here").submit(ASKED).result().text == again.text
    store.close()


def test_a_reply_cut_in_thought_that_an_older_version_kept_as_an_answer_is_asked_for_again(tmp_path: Path) -> None:
    store, settings = CacheStore(tmp_path / "cache.sqlite"), ModelSettings("m")
    row = json.dumps(asdict(Completion("", finish_reason="length", stopped="cut in thought")))
    store._out.execute("INSERT INTO answers VALUES (?, ?)", (request_key(settings, "here", ASKED), row))
    assert CachedLLM(None, store, settings, "here").submit(ASKED).result().stopped == "cut in thought"
    assert CachedLLM(ScriptedLLM("Oaxaca"), store, settings, "here").submit(ASKED).result().text == "Oaxaca"
    assert CachedLLM(None, store, settings, "here").submit(ASKED).result().text == "Oaxaca"
    store.close()


def test_cached_tokens_that_a_server_counts_apart_are_part_of_the_prompt_also_in_an_older_cache(tmp_path: Path) -> None:
    apart = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 990}}
    found = read("It was Oaxaca", "stop", apart)
    assert (found.prompt_tokens, found.cached_prompt_tokens) == (1000, 990)
    store, settings = CacheStore(tmp_path / "cache.sqlite"), ModelSettings("m")
    for row in (asdict(replace(found, prompt_tokens=10)), asdict(found)):
        store._out.execute(
            "INSERT OR REPLACE INTO answers VALUES (?, ?)", (request_key(settings, "here", ASKED), json.dumps(row))
        )
        assert CachedLLM(None, store, settings, "here").submit(ASKED).result().prompt_tokens == 1000
    store.close()


# --- limits ---------------------------------------------------------------------------------------------------------


def test_what_a_reply_may_have_is_capped_by_the_endpoint_and_enters_the_key_where_it_bites() -> None:
    free, capped = ModelSettings("m"), ModelSettings("m", max_output_tokens=40)
    assert [chat_body(each, ASKED)["max_tokens"] for each in (free, capped)] == [50, 40]
    assert request_key(free, "here", ASKED) != request_key(capped, "here", ASKED)
    short = Request(ASKED.messages, ASKED.purpose, max_tokens=30)
    assert request_key(free, "here", short) == request_key(capped, "here", short)
    thinks = ModelSettings("m", thought_tokens=1000, max_output_tokens=1040)
    assert [thinks.output_limit(each) for each in (30, 50)] == [1030, 1040]


def test_the_spending_cap_reserves_what_the_capped_reply_may_cost() -> None:
    settings = ModelSettings("m", usd_per_million_in=0.0, usd_per_million_out=1e6, max_output_tokens=40)
    client = Client(Endpoint("http://127.0.0.1:9/v1", EndpointLimits(retries=0), purse=Purse(39.0)), settings)
    with pytest.raises(ModelError, match="max_usd"):
        client.submit(ASKED).result()
    with pytest.raises(ModelError, match="annot connect"):
        Client(Endpoint("http://127.0.0.1:9/v1", EndpointLimits(retries=0), purse=Purse(41.0)), settings).submit(
            ASKED
        ).result()


# --- windows --------------------------------------------------------------------------------------------------------

LONG = "".join(f"Ines told Tobias on day {day} that the loom was mended again.\n" for day in range(400))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(application(Mock())) as at:
        yield at


def test_a_prompt_that_the_server_cut_in_silence_stops_the_run_with_what_to_change(url: str) -> None:
    at = Endpoint(url)
    client = Client(at, ModelSettings("mock@prompt cut"))
    client.submit(ASKED).result()  # 1,500 reported for a short prompt: nothing was cut
    with pytest.raises(
        PromptTruncated, match=r"read 1500 tokens of a prompt of about \d{4}.*OLLAMA_CONTEXT_LENGTH.*--max-model-len"
    ):
        client.submit(Request((("user", LONG),), "test.step")).result()
    Client(at, ModelSettings("mock")).submit(Request((("user", LONG),), "test.step")).result()
    at.close()


def judged(text: str, reported: int, *, cached: int = 0, most_seen: int = 0, spoken: int | None = 1) -> None:
    counts = {"prompt_tokens": reported, "prompt_tokens_details": {"cached_tokens": cached}}
    usage = usage_of({"usage": counts if spoken is None else {**counts, "completion_tokens": spoken}})
    asked = Request((("user", text),), "test.step")
    check_window(asked, usage, most_seen=most_seen, encoding="o200k_base", where="m at u")


def test_a_window_is_suspected_only_where_nothing_else_explains_the_count() -> None:
    with pytest.raises(PromptTruncated):
        judged(LONG, 2000)
    judged(LONG, 5000)
    with pytest.raises(PromptTruncated):
        judged(LONG, 100, cached=2500)  # a server that reports cached tokens apart
    judged(LONG, 2000, cached=4000)
    judged(LONG, 3000, cached=2900)  # perhaps another
    judged(LONG, 2000, most_seen=6000)  # one that reports what it had not read before
    judged(LONG, 2000, spoken=None)  # the counts of the reply are our own
    judged("word " * (LONG_PROMPT - 1), 10)  # of no more than 2,000 tokens nothing is concluded


@pytest.mark.slow
def test_texts_that_an_embedding_model_cut_in_silence_are_counted(url: str) -> None:
    at = Endpoint(url)
    embedder = HttpEmbedder(at, ModelSettings("mock"))
    with metering() as ledger:
        fetched(embedder, [LONG])
        assert not ledger.notes
        fetched(embedder, [LONG.replace(" ", "-")])  # one word, as the mock counts
    assert ledger.notes == {"embedding_truncated_by_server": 1}
    at.close()


# --- refusals of the server -----------------------------------------------------------------------------------------


def test_only_a_refusal_for_length_is_a_context_overflow(subtests: pytest.Subtests) -> None:
    for status, body, overflow in [
        (400, b'{"error": {"message": "Please reduce the length", "code": "context_length_exceeded"}}', True),
        (
            400,
            b'{"object": "error", "message": "This model\'s maximum context length is 4096 tokens.", "code": 400}',
            True,
        ),
        (400, b'{"error": {"code": 400, "type": "exceed_context_size_error", "n_ctx": 4096}}', True),
        (500, b'{"error": "the input length exceeds the context length"}', True),
        (400, b'{"error": {"message": "Invalid schema for response_format"}}', False),
        (429, b'{"error": {"message": "Rate limit reached; maximum context length is fine"}}', False),
        (400, b"\xff\xfe", False),
    ]:
        with subtests.test(status=status, body=body, overflow=overflow):
            assert is_overflow(status, body) is overflow
