from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scripted import TableEmbedder

from data_loaders.schema import Question, Unit
from memsys.systems.dense import Dense

MakeUnit = Callable[..., Unit]
TABLE = {
    "Ann: north": [0.0, 1.0],
    "Ann: north again": [0.0, 2.0],
    "Ann: north-east": [3.0, 4.0],
    "Ann: east": [1.0, 0.0],
    "Which way?": [0.0, 1.0],
}
QUESTION = Question("q", "Which way?")


class Recording(TableEmbedder):
    """Remembers what it was asked to embed."""

    def __init__(self) -> None:
        super().__init__(TABLE)
        self.asked: list[tuple[tuple[str, ...], bool]] = []

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        self.asked.append((tuple(texts), query))
        return super().embed(texts, query=query)


def filled(unit: MakeUnit, k: int = 10) -> tuple[Dense, Recording]:
    embedder = Recording()
    memory = Dense(embedder, k=k)
    for number, text in enumerate(("east", "north", "north-east", "north again")):
        memory.write(unit(f"u{number}", text))
    return memory, embedder


def test_units_are_ranked_by_cosine_and_ties_go_to_the_earlier(unit: MakeUnit) -> None:
    memory, _ = filled(unit)
    items = memory.read(QUESTION).items
    assert [item.id for item in items] == ["u1", "u3", "u2", "u0"]
    assert [item.score for item in items] == pytest.approx([1.0, 1.0, 0.8, 0.0])
    assert items[2].text == "[7 May 2023] Ann: north-east"
    assert items[2].sources == ("t-u2",)


def test_k_units_are_recalled(unit: MakeUnit) -> None:
    memory, _ = filled(unit, k=2)
    assert [item.id for item in memory.read(QUESTION).items] == ["u1", "u3"]
    assert memory.held == 4


def test_units_are_embedded_as_their_own_text_and_the_question_as_a_query(unit: MakeUnit) -> None:
    memory, embedder = filled(unit)
    memory.read(QUESTION)
    assert embedder.asked[0] == (("Ann: east",), False)
    assert embedder.asked[-1] == (("Which way?",), True)
    assert len(embedder.asked) == 5


def test_an_empty_memory_embeds_nothing() -> None:
    embedder = Recording()
    assert Dense(embedder).read(QUESTION).items == ()
    assert embedder.asked == []


def test_the_settings_are_the_papers() -> None:
    assert Dense(Recording()).k == 10
