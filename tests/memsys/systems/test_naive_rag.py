from __future__ import annotations

from collections.abc import Callable

import pytest

from data_loaders.schema import Question, Unit
from memsys.embed import HashingEmbedder
from memsys.systems.naive_rag import NaiveRag
from memsys.tokens import count_tokens

MakeUnit = Callable[..., Unit]
QUESTION = Question("q", "What about tomatoes?")


def rag(chunk_tokens: int = 180, k: int = 20) -> NaiveRag:
    return NaiveRag(HashingEmbedder(64), k=k, chunk_tokens=chunk_tokens)


def blocks(memory: NaiveRag) -> list[tuple[str, ...]]:
    """Turn ids of every block, in the order of the history."""
    items = memory.read(QUESTION).items
    return [item.sources for item in sorted(items, key=lambda item: int(item.id.removeprefix("block-")))]


def test_whole_messages_are_packed_up_to_the_size(unit: MakeUnit) -> None:
    two = count_tokens("Ann: one word\nAnn: one word")
    memory = rag(chunk_tokens=two)
    for number in range(5):
        memory.write(unit(f"u{number}", "one word"))
    assert blocks(memory) == [("t-u0", "t-u1"), ("t-u2", "t-u3"), ("t-u4",)]
    assert memory.held == 3


def test_one_token_less_and_they_stand_alone(unit: MakeUnit) -> None:
    memory = rag(chunk_tokens=count_tokens("Ann: one word\nAnn: one word") - 1)
    for number in range(3):
        memory.write(unit(f"u{number}", "one word"))
    assert blocks(memory) == [("t-u0",), ("t-u1",), ("t-u2",)]


def test_a_message_that_is_too_long_is_a_block_of_its_own_uncut(unit: MakeUnit) -> None:
    memory, long = rag(chunk_tokens=20), "tomato " * 100
    for name, text in (("u0", "hi"), ("u1", long), ("u2", "bye")):
        memory.write(unit(name, text))
    assert blocks(memory) == [("t-u0",), ("t-u1",), ("t-u2",)]
    assert memory.read(QUESTION).items[0].text == f"[7 May 2023] Ann: {long}"


def test_a_block_ends_with_its_session(unit: MakeUnit) -> None:
    told, untold = rag(), rag()
    for session in ("s1", "s2"):
        for memory in (told, untold):
            memory.write(unit(f"{session}a", "hi", session))
            memory.write(unit(f"{session}b", "ho", session))
        told.end_session(session)
    assert blocks(told) == blocks(untold) == [("t-s1a", "t-s1b"), ("t-s2a", "t-s2b")]
    assert told.read(QUESTION).items == untold.read(QUESTION).items


def test_the_end_of_a_session_closes_a_block_even_when_the_id_returns(unit: MakeUnit) -> None:
    memory = rag()
    memory.write(unit("u0", "hi"))
    memory.end_session("s1")
    memory.end_session("s1")
    memory.write(unit("u1", "ho"))
    assert blocks(memory) == [("t-u0",), ("t-u1",)]


def test_a_read_leaves_the_open_block_open(unit: MakeUnit) -> None:
    memory = rag()
    memory.write(unit("u0", "tomatoes"))
    assert blocks(memory) == [("t-u0",)]
    memory.write(unit("u1", "and more tomatoes"))
    assert blocks(memory) == [("t-u0", "t-u1")]


def test_the_open_block_is_ranked_with_the_others(unit: MakeUnit) -> None:
    memory = rag(k=1)
    for session, text in (("s1", "a mountain railway"), ("s2", "tomatoes tomatoes")):
        memory.write(unit(session, text, session))
    (item,) = memory.read(QUESTION).items
    assert (item.id, item.kind, item.text) == ("block-1", "chunk", "[7 May 2023] Ann: tomatoes tomatoes")
    memory.end_session("s2")
    (closed,) = memory.read(QUESTION).items
    assert closed.score == pytest.approx(item.score)


def test_a_block_shows_the_time_of_its_first_message(unit: MakeUnit) -> None:
    memory = rag()
    memory.write(unit("u0", "hi", time_text="7 May"))
    memory.write(unit("u1", "ho", time_text="8 May"))
    assert memory.read(QUESTION).items[0].text == "[7 May] Ann: hi\nAnn: ho"


def test_the_settings_are_the_papers() -> None:
    memory = NaiveRag(HashingEmbedder(64))
    assert (memory.k, memory.chunk_tokens, memory.UNIT) == (20, 180, {"rule": "utterance"})


@pytest.mark.parametrize("setting", ["k", "chunk_tokens"])
def test_a_setting_of_zero_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be at least 1"):
        NaiveRag(HashingEmbedder(64), **{setting: 0})
