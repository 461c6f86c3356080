from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedLLM

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import MemorySystem, with_settings
from memsys.llm.meter import metering
from memsys.prompts import Prompts
from memsys.systems.controls import FullHistory
from memsys.systems.memstream import MemoryStream
from memsys.systems.naive_rag import NaiveRag
from memsys.systems.pruned import LLMLingua2, Pruned, Surrogate, above, prune, windows, word_means
from memsys.tokens import count_tokens

TEN = "one two three four five six seven eight nine ten"
VALUES = (0.9, 0.1, 0.8, 0.3, 0.7, 0.2, 0.95, 0.05, 0.6, 0.4)


class Table:
    """Words with given values, whatever is learned."""

    name = "table"

    def __init__(self, values: Sequence[float]) -> None:
        self._values = np.array(values)
        self.windows: list[list[str]] = []

    def learn(self, text: str) -> None:
        """Nothing."""

    def pieces(self, words: Sequence[str]) -> list[int]:
        return [1] * len(words)

    def keep(self, words: Sequence[str]) -> np.ndarray:
        self.windows.append(list(words))
        return np.resize(self._values, len(words))


def unit(number: int, text: str, time_text: str = "7 May 2023") -> Unit:
    turn = Turn(f"t{number}", "Ann", text)
    return Unit(f"u{number}", (turn,), "s1", datetime(2023, 5, 7), time_text)


def pruned(inner: Callable[..., MemorySystem], **settings: Any) -> Pruned:
    llm = settings.pop("llm", ScriptedLLM({}))
    return with_settings(Pruned, settings)(inner, llm, llm, HashingEmbedder(256), Prompts(), np.random.default_rng(0))


# --- the pipeline -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "places"),
    [(0.5, [0, 2, 4, 6, 8]), (0.33, [0, 2, 6]), (0.9, [0, 1, 2, 3, 4, 5, 6, 8, 9]), (0.1, [6])],
)
def test_the_words_above_the_percentile_are_kept(rate: float, places: list[int]) -> None:
    words = TEN.split()
    assert prune(TEN, rate, Table(VALUES)).split() == [words[place] for place in places]


def test_a_word_counts_once_for_each_of_its_tokens() -> None:
    values = np.array([0.9, 0.5, 0.1])
    assert above(values, [1, 1, 1], 0.5).tolist() == [True, False, False]
    assert above(values, [1, 1, 8], 0.5).tolist() == [True, True, False]
    long = "antidisestablishmentarianism"
    assert count_tokens(long, "cl100k_base") > 4
    assert prune(f"gold {long} tea", 0.5, Table([0.9, 0.1, 0.5])) == "gold tea"


def test_a_rate_of_one_changes_nothing() -> None:
    assert prune("Well,  this\n stays .", 1.0, Table([0.5])) == "Well,  this\n stays ."


def test_equal_values_would_delete_everything_so_the_text_stays_and_that_is_counted() -> None:
    with metering() as ledger:
        assert prune(TEN, 0.5, Table([0.4])) == TEN
    assert ledger.notes == {"table.windows": 1, "table.nothing_kept": 1}


def test_where_the_threshold_is_one_words_of_value_one_are_kept() -> None:
    assert prune("alpha beta gamma delta", 0.5, Table([1.0, 1.0, 1.0, 0.2])) == "alpha beta gamma"


def test_forced_words_digits_and_line_ends_survive() -> None:
    text = "paid not 42\nfor tea ?"
    assert prune(text, 0.2, Table([0.9, 0.1, 0.1, 0.1, 0.1, 0.1])) == "paid"
    assert prune(text, 0.5, Table([0.3, 0.1, 0.1, 0.2, 0.1, 0.1, 0.1]), ("not", "?")).split()[1:] == ["not", "?"]
    assert "42" in prune(text, 0.5, Table([0.3, 0.1]), keep_digits=True).split()
    assert "\n" in prune(text, 0.7, Table([0.3, 0.1, 0.2]), ("\n",))
    assert "\n" not in prune(text, 0.7, Table([0.3, 0.1, 0.2]))


def test_kept_words_are_joined_as_they_were() -> None:
    assert (
        prune("Yes, don't! (Or so.)", 0.8, Table([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])) == "Yes, don't! (Or so"
    )
    assert prune("a-b c", 0.7, Table([0.9, 0.1, 0.8, 0.7])) == "a b c"
    assert prune("a b\nc", 0.7, Table([0.9, 0.1, 0.8]), ("\n",)) == "a\nc", "no space beside a line end"


def test_a_window_ends_after_its_last_full_stop() -> None:
    words = ["a", "b", ".", "c", "d", "e", "f"]
    assert list(windows(words, [1] * 7, limit=5)) == [(0, 3), (3, 7)]
    assert list(windows(["a"] * 7, [1] * 7, limit=5)) == [(0, 5), (5, 7)]
    assert list(windows(["a", "b", "c"], [9, 2, 3], limit=5)) == [(0, 1), (1, 3)]
    assert list(windows(words, [1] * 7, limit=7)) == [(0, 7)]
    found = itertools.islice(windows(["a", ".", "b", "c", "d", "e"], [1] * 6, limit=3), 4)
    assert list(found) == [(0, 2), (2, 5), (5, 6)], "the full stop of the window before is not its own"


def test_the_classifier_reads_510_pieces_at_once_and_each_window_has_its_own_threshold() -> None:
    class Falling(Table):
        """Every word of a later window is worth less than any of an earlier one."""

        def keep(self, words: Sequence[str]) -> np.ndarray:
            super().keep(words)
            return np.linspace(0.1, 0.9, len(words)) / 10 ** len(self.windows)

    scorer = Falling([1.0])
    numbered = [f"w{number}" for number in range(1_000)]
    kept = prune(" ".join(numbered), 0.5, scorer).split()
    assert [len(window) for window in scorer.windows] == [510, 490]
    assert kept == numbered[260:510] + numbered[760:]


def test_pieces_are_averaged_to_words() -> None:
    means = word_means(np.array([0.5, 0.2, 0.4, 1.0, 0.7]), [None, 0, 0, 2, None], 4)
    assert means.tolist() == pytest.approx([0.3, 0.0, 1.0, 0.0])


@pytest.mark.slow
@given(st.lists(st.sampled_from([*TEN.split(), "Luna", "the", "1999", ",", ".", "Zürich"]), min_size=1, max_size=60))
def test_what_is_kept_is_a_subsequence_and_a_lower_rate_keeps_less(words: list[str]) -> None:
    text, before = " ".join(words), words
    for rate in (0.9, 0.6, 0.3):
        kept = prune(text, rate, Surrogate()).split()
        if kept == words:
            continue  # nothing would have been left
        rest = iter(before)
        assert all(word in rest for word in kept)
        tokens = sum(count_tokens(word, "cl100k_base") for word in kept)
        assert tokens <= rate * sum(count_tokens(word, "cl100k_base") for word in words) + max(
            count_tokens(word, "cl100k_base") for word in kept
        )
        before = kept


# --- what a word is worth -----------------------------------------------------------------------------------------------


def test_the_surrogate_prefers_rare_words_names_and_numbers() -> None:
    scorer = Surrogate()
    for text in ("we bake bread", "we bake rolls", "we bake pies", "we bake tarts", "Luna ate 3 herrings"):
        scorer.learn(text)
    values = scorer.keep(["bake", "tarts", "bread", "we", "Bake", ",", "7", "tarts"])
    rarity = {"bake": np.log(6 / 5) / np.log(6), "tarts": np.log(6 / 2) / np.log(6)}
    expected = [rarity["bake"] + 0.1, rarity["tarts"] + 0.1, rarity["tarts"] + 0.1, 0.02]
    expected += [rarity["bake"] + 0.3, 0.02, 1.0, rarity["tarts"]]
    assert values == pytest.approx(expected, abs=1e-5)
    assert values[1] > values[2] > values[7], "of equals the earlier is worth more, a first mention more than a second"


def test_llmlingua_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r"memsys-bench\[prune\]"):
        LLMLingua2("/no/such/folder")


def test_asking_for_weights_never_ends_with_the_surrogate(tmp_path: Path) -> None:
    with pytest.raises((ImportError, OSError)):
        pruned(partial(FullHistory), model=str(tmp_path))


# --- the memory ---------------------------------------------------------------------------------------------------------


def rag_and_pruned(**settings: Any) -> tuple[NaiveRag, Pruned]:
    plain, wrapped = NaiveRag(HashingEmbedder(256), 3, 30), pruned(partial(NaiveRag, k=3, chunk_tokens=30), **settings)
    said = (
        "I adopted a puppy called Luna",
        "She was the loudest of the seven in the litter",
        "Rye bread is what I bake",
    )
    for number, text in enumerate(said * 3):
        for memory in (plain, wrapped):
            memory.write(unit(number, text))
    return plain, wrapped


def test_the_same_items_come_back_with_fewer_words() -> None:
    plain, wrapped = rag_and_pruned()
    before, after = plain.read(Question("q", "Luna?")).items, wrapped.read(Question("q", "Luna?")).items
    assert [(item.id, item.score, item.sources) for item in after] == [(i.id, i.score, i.sources) for i in before]
    for long, short in zip(before, after, strict=True):
        assert short.text.startswith("[7 May 2023] ")
        assert count_tokens(short.text) < 0.85 * count_tokens(long.text)
        assert "Luna" in short.text or "Luna" not in long.text


def test_without_weights_it_is_called_a_surrogate_wherever_it_shows() -> None:
    _, wrapped = rag_and_pruned()
    assert {item.kind for item in wrapped.read(Question("q", "Luna?")).items} == {"prune_surrogate"}
    assert wrapped.report()["pruned_by"] == "prune_surrogate"
    for path in (Path(__file__).parents[3] / "conf" / "memory").glob("*_pruned.yaml"):
        assert "prune_surrogate" in path.read_text()
        assert "LLMLingua" not in path.read_text()


def test_the_time_in_front_is_left_as_it_is() -> None:
    memory = pruned(partial(FullHistory), rate=0.2)
    memory.write(unit(0, "well we had tea and [biscuits] with Jonas", "the very first of May"))
    assert memory.read(Question("q", "")).items[0].text == "[the very first of May] Ann Jonas"


def test_the_inner_memory_gets_the_services_that_it_names_and_its_own_unit_rule() -> None:
    llm = ScriptedLLM({"memstream.importance": "5"})
    memory = pruned(partial(MemoryStream), llm=llm)
    memory.write(unit(0, "Luna sat"))
    assert llm.purposes == ["memstream.importance"]
    assert memory.PROMPTS == ("memstream",)
    assert pruned(partial(NaiveRag)).UNIT == {"rule": "utterance"}
    assert "llm" not in vars(pruned(partial(NaiveRag)).inner)


def test_pruning_makes_no_call() -> None:
    with metering() as ledger:
        rag_and_pruned()[1].read(Question("q", "Luna?"))
    assert not ledger.calls
    assert ledger.notes["prune_surrogate.windows"] == 3


@pytest.mark.parametrize("rate", [0, -0.5, 1.01])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=f"rate.*{rate}"):
        pruned(partial(FullHistory), rate=rate)
