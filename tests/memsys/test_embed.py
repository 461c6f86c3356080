from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scripted import TableEmbedder

from memsys.embed import HashingEmbedder
from memsys.llm.meter import metering
from memsys.tokens import stem

TEXTS = ["Mara planted tomatoes", "👩‍🌾 זרעה עגבניות", "the of and", ""]


def cosine(first: str, second: str) -> float:
    vectors = HashingEmbedder().embed([first, second])
    return float(vectors[0] @ vectors[1])


def test_vectors_are_unit_length_and_a_text_without_words_is_zero() -> None:
    vectors = HashingEmbedder(64).embed([*TEXTS, "?! …"])
    assert vectors.shape == (5, 64)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 1, 1, 0, 0], atol=1e-6)


def test_no_texts_give_no_rows() -> None:
    assert HashingEmbedder(64).embed([]).shape == (0, 64)


def test_a_text_has_the_same_vector_alone_in_a_batch_and_as_a_query() -> None:
    embedder = HashingEmbedder(64)
    batch = embedder.embed(TEXTS)
    for row, text in zip(batch, TEXTS, strict=True):
        np.testing.assert_array_equal(embedder.embed([text])[0], row)
        np.testing.assert_array_equal(embedder.embed([text], query=True)[0], row)


@pytest.mark.slow
def test_two_processes_agree(root: Path) -> None:
    code = f"from memsys.embed import HashingEmbedder; print(HashingEmbedder(64).embed({TEXTS!r}).tobytes().hex())"
    environment = {"PYTHONHASHSEED": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, check=True)
    assert done.stdout.decode().strip() == HashingEmbedder(64).embed(TEXTS).tobytes().hex()


def test_what_a_caller_writes_into_a_vector_stays_there() -> None:
    embedder = HashingEmbedder(64)
    before = embedder.embed(["tomatoes"]).copy()
    embedder.embed(["tomatoes"])[:] = 7
    np.testing.assert_array_equal(embedder.embed(["tomatoes"]), before)


def test_inflected_words_meet_and_function_words_hardly_count() -> None:
    assert cosine("planting tomatoes", "planted a tomato") > 0.8
    assert cosine("tomatoes in the garden", "tomatoes") > 0.5
    assert cosine("where is the car", "where is the dog") < 0.5
    assert abs(cosine("mountain railway", "wedding cake")) < 0.1


def test_words_of_one_weight_have_one_size_and_either_sign() -> None:
    (vector,) = HashingEmbedder(dimension=2**16).embed(["harbour violin lemon market engine winter"])
    told = vector[vector != 0.0]
    words, pairs = 1 / 8.5**0.5, 0.5**0.5 / 8.5**0.5  # six words and five pairs of half their weight
    assert sorted(np.abs(told)) == pytest.approx([pairs] * 5 + [words] * 6)
    assert 0 < (told > 0).sum() < told.size


def test_the_order_of_words_counts_a_little() -> None:
    assert 0.5 < cosine("dog bites postman", "postman bites dog") < 0.999


def test_repeating_a_word_counts_less_each_time() -> None:
    # Words and pairs weigh the square root of their count (a pair half): tea 1, sugar 1, tea-sugar .5; tea 4, tea-tea 1.5 …
    assert cosine("tea sugar", "tea") == pytest.approx(1 / (1 + 1 + 0.5) ** 0.5)
    assert cosine("tea tea tea tea sugar", "tea") == pytest.approx(2 / (4 + 1 + 1.5 + 0.5) ** 0.5)


def test_threads_share_the_stemmer_safely() -> None:
    words = [
        f"{letter}{word}" for letter in "abcdefghij" for word in ("planting", "happily", "relational", "cities")
    ] * 20
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(stem, words)) == [stem(word) for word in words]


@pytest.mark.parametrize(
    ("word", "stemmed"), [("caresses", "caress"), ("ponies", "poni"), ("relational", "relat"), ("planting", "plant")]
)
def test_stems_are_porters(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


def test_hashing_is_a_service_not_the_memorys_work() -> None:
    with metering() as ledger:
        HashingEmbedder(64).embed([f"a text never seen before, number {number}" for number in range(200)])
    assert ledger.service_cpu > 0


def test_table_vectors_are_normalised_and_in_the_order_asked() -> None:
    embedder = TableEmbedder({"a": [3, 4], "b": [0, 2]})
    vectors = embedder.embed(["b", "a", "b"])
    np.testing.assert_allclose(vectors, [[0.0, 1.0], [0.6, 0.8], [0.0, 1.0]], rtol=1e-6)
    assert vectors.dtype == np.float32
    assert embedder.embed([]).shape == (0, 2)


def test_a_text_outside_the_table_falls_to_the_other_embedder_or_raises() -> None:
    other = HashingEmbedder(2)
    mixed = TableEmbedder({"a": [0, 1]}, other).embed(["a", "tea"])
    np.testing.assert_allclose(mixed[0], [0, 1])
    np.testing.assert_array_equal(mixed[1], other.embed(["tea"])[0])
    with pytest.raises(KeyError, match="tea"):
        TableEmbedder({"a": [0, 1]}).embed(["tea"])
