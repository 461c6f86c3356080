"""Prompt compression: LLMLingua-2 (Pan et al., 2024), a surrogate for it, and a memory whose recalled items are pruned.

The procedure is that of the package `llmlingua` 0.2.2. A text is cut into windows of 510 pieces (subwords), at a full stop if possible.
The value of a word is the mean probability "keep" of its pieces. In each window, the words above the percentile
int(100 · (1 - rate) + 1) are kept, where each word counts once for each of its GPT-3.5 tokens. With `rate=0.6`, this is the pruning of
xMemory §5.2 and of LightMem's LoCoMo script.

With a folder of weights (`model`), LLMLingua-2 gives the probabilities, through `transformers`. Without one, `Surrogate` does. It is not
a trained model: its results are called `prune_surrogate` in items, reports and titles and must not be called LLMLingua-2.

MemTree A.3.9 prunes with the first LLMLingua (Jiang et al., 2023), which is not offered here; the caption of Figure A.9 says so.

Deviations and decisions:

- A regular expression splits words and punctuation marks before the tokenizer; windows end at whole words.
- Kept words are joined by one space if there was white space or a deleted word between them; the package puts spaces around every mark.
- Every recalled item is pruned alone; the package's filter of whole contexts is not used. A time in brackets at the start is kept.
- If no word would be kept (all probabilities are equal), the text is not changed; this is counted.
- A forced token is a word of the regular expression or a line end; it is kept whenever the threshold is below 1.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, Protocol

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.interface import MemorySystem, NodeView, Recall, Settings, SomeOf
from memsys.llm import meter
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.tokens import count_tokens
from memsys.vectors import Embedder

WINDOW = 510
"""Number of pieces that the classifier reads at once, without its two special tokens."""
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]|\n")
_TIME = re.compile(r"\A\[[^\]\n]*\] ")
_FUNCTION_WORDS = frozenset(
    """
    a about ah also am an and are as at be been but by can could did do does for from had has have he her him his how i
    if in into is it its just kind like me mean my of oh ok okay on or our out really she should so some sort such than
    that the their them then there these they this those to too uh um up us very was we well were what when where which
    while who will with would yeah yes you your
    """.split()
)


class Scorer(Protocol):
    """Scores how much each word is worth keeping."""

    name: str
    """Name of its results in items and reports."""

    def learn(self, text: str) -> None:
        """Add a text to the corpus statistics."""

    def pieces(self, words: Sequence[str]) -> list[int]:
        """Number of pieces of each word, which add up to the length of a window."""

    def keep(self, words: Sequence[str]) -> np.ndarray:
        """Probability that each word of a window is worth keeping, float [n] in [0, 1]."""


class Surrogate:
    """A stand-in for the classifier, without a model: it keeps rare words, names and numbers.

    The value of a word is its inverse document frequency in the texts learned, from 0 (in all of them) to 1 (in none), plus 0.3 for a
    capital or a digit, plus 0.1 for its first occurrence in the window, at most 1. Function words, fillers and punctuation marks have
    0.02. Of equal words, the earlier has the higher value.
    """

    name = "prune_surrogate"

    def __init__(self) -> None:
        self._texts = 0
        self._document_frequency: Counter[str] = Counter()

    def learn(self, text: str) -> None:
        self._texts += 1
        self._document_frequency.update({word.lower() for word in _WORD.findall(text)})

    def pieces(self, words: Sequence[str]) -> list[int]:
        return [_tokens(word) for word in words]

    def keep(self, words: Sequence[str]) -> np.ndarray:
        seen: set[str] = set()
        values = np.empty(len(words))
        for place, word in enumerate(words):
            values[place] = self._value(word, word.lower() not in seen) * (1 - 1e-6 * place / len(words))
            seen.add(word.lower())
        return values

    def _value(self, word: str, first: bool) -> float:
        plain = word.lower()
        if plain in _FUNCTION_WORDS or not plain[0].isalnum():
            return 0.02
        rarity = 1.0
        if self._texts:
            rarity = 1 - math.log(self._document_frequency[plain] + 1) / math.log(self._texts + 1)
        marked = word[0].isupper() or any(letter.isdigit() for letter in word)
        return min(1.0, rarity + 0.3 * marked + 0.1 * first)


class LLMLingua2:
    """The published classifier, loaded from a local folder without downloads; needs the extra `prune`.

    Args:
        model: folder (or name in the local hub cache) of e.g. `llmlingua-2-bert-base-multilingual-cased-meetingbank`.

    Raises:
        ImportError: `transformers` or `torch` is not installed.
        OSError: the weights are not found.
    """

    name = "llmlingua2"

    def __init__(self, model: str) -> None:
        try:
            transformers, self._torch = import_module("transformers"), import_module("torch")
        except ImportError as error:
            raise ImportError("LLMLingua-2 needs transformers and torch: pip install 'memsys-bench[prune]'") from error
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
        classifier = transformers.AutoModelForTokenClassification.from_pretrained(model, local_files_only=True)
        self._model: Any = classifier.eval()

    def learn(self, text: str) -> None:
        """Do nothing: the classifier is already trained."""

    def pieces(self, words: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self._tokenizer(list(words), add_special_tokens=False)["input_ids"]]

    def keep(self, words: Sequence[str]) -> np.ndarray:
        encoding = self._tokenizer(
            [list(words)], is_split_into_words=True, truncation=True, max_length=WINDOW + 2, return_tensors="pt"
        )
        with self._torch.no_grad():
            probabilities = self._torch.softmax(self._model(**encoding).logits[0], dim=-1)[:, 1].numpy()
        return word_means(probabilities, encoding.word_ids(0), len(words))


def scorer_for(model: str | None) -> Scorer:
    """The classifier with its weights in the folder `model`, or the surrogate if `model` is None."""
    return Surrogate() if model is None else LLMLingua2(model)


def word_means(probabilities: np.ndarray, word_ids: Sequence[int | None], count: int) -> np.ndarray:
    """Mean probability of each word's pieces, float [count]; 0 for a word without pieces.

    Args:
        probabilities: probability of each piece, [pieces].
        word_ids: index of each piece's word, [pieces]; None for a special token.
        count: number of words.
    """
    places = np.array([-1 if word is None else word for word in word_ids])
    sums = np.bincount(places[places >= 0], weights=np.asarray(probabilities)[places >= 0], minlength=count)
    pieces = np.bincount(places[places >= 0], minlength=count)
    means: np.ndarray = sums / np.maximum(1, pieces)
    return means


def prune(text: str, rate: float, scorer: Scorer, forced: Sequence[str] = (), keep_digits: bool = False) -> str:
    """Delete the words of a text with the lowest values.

    Args:
        text: the text to prune.
        rate: share of the tokens to keep, in (0, 1]; from 1 on, the text is returned unchanged.
        scorer: gives the value of each word.
        forced: words, punctuation marks or the line end that are always kept.
        keep_digits: whether words with digits are always kept.
    """
    matches = [match for match in _WORD.finditer(text) if match[0] != "\n" or "\n" in forced]
    if rate >= 1 or not matches:
        return text
    words = [match[0] for match in matches]
    chosen: list[int] = []
    with meter.service_time():
        for start, end in windows(words, scorer.pieces(words)):
            values = np.array(scorer.keep(words[start:end]))
            for place, word in enumerate(words[start:end]):
                if word in forced or (keep_digits and any(letter.isdigit() for letter in word)):
                    values[place] = 1.0
            tokens = [_tokens(word) for word in words[start:end]]
            chosen += (start + np.flatnonzero(above(values, tokens, rate))).tolist()
            meter.note(f"{scorer.name}.windows")
    if not chosen:
        meter.note(f"{scorer.name}.nothing_kept")
        return text
    return _joined(matches, chosen)


def windows(words: Sequence[str], pieces: Sequence[int], limit: int = WINDOW) -> Iterator[tuple[int, int]]:
    """Yield word ranges (start, end) of at most `limit` pieces.

    A range other than the last ends after its last full stop or line end, if it has one.
    """
    start = 0
    while start < len(words):
        end, size = start + 1, pieces[start]
        while end < len(words) and size + pieces[end] <= limit:
            size += pieces[end]
            end += 1
        if end < len(words):
            end = next((place + 1 for place in range(end - 1, start - 1, -1) if words[place] in (".", "\n")), end)
        yield start, end
        start = end


def above(values: np.ndarray, tokens: Sequence[int], rate: float) -> np.ndarray:
    """Whether each word is above the percentile that keeps about `rate` of the tokens, bool [n]; at a threshold of 1, 1 counts."""
    threshold = np.percentile(np.repeat(values, tokens), int(100 * (1 - rate) + 1))
    kept: np.ndarray = values >= threshold if threshold == 1.0 else values > threshold
    return kept


def _tokens(word: str) -> int:
    return max(1, count_tokens(word, "cl100k_base"))


def _joined(matches: Sequence[re.Match[str]], chosen: Sequence[int]) -> str:
    """Join the chosen words, by one space unless they were adjacent or at a line end."""
    parts = [matches[chosen[0]][0]]
    for before, place in itertools.pairwise(chosen):
        word = matches[place][0]
        adjacent = place == before + 1 and matches[before].end() == matches[place].start()
        line_end = "\n" in (word, matches[before][0])
        parts.append(word if adjacent or line_end else f" {word}")
    return "".join(parts)


@dataclass(frozen=True)
class PrunedSettings(Settings):
    rate: SomeOf = 0.6
    """Share of an item's tokens to keep, in (0, 1]."""
    model: str | None = None
    """Folder of LLMLingua-2's weights; None uses the surrogate."""
    forced: Sequence[str] = ()
    """Words, punctuation marks or the line end that are never deleted."""
    keep_digits: bool = False
    """Whether words with digits are never deleted."""


class Pruned(MemorySystem):
    """Recalls the items of another memory with their texts pruned; ids, order, scores and sources stay the same.

    Args:
        inner: builds the other memory; it receives the services that it names.

    Raises:
        ImportError, OSError: see `LLMLingua2`.
    """

    READ_KNOBS: ClassVar = ("rate", "forced", "keep_digits")
    WAIVED: ClassVar = {"speaker lost": "it deletes words of what is recalled, and a speaker's name may be among them"}

    def __init__(
        self,
        inner: Callable[..., MemorySystem],
        llm: LLM,
        probe: LLM,
        embedder: Embedder,
        prompts: Prompts,
        rng: np.random.Generator,
        settings: PrunedSettings = PrunedSettings(),
    ) -> None:
        services = {"llm": llm, "probe": probe, "embedder": embedder, "prompts": prompts, "rng": rng}
        self.inner, self.settings = _built(inner, services), settings
        self.scorer = scorer_for(settings.model)
        for name in ("PROMPTS", "UNIT", "OFFLINE", "PAST_K", "EMBEDS_UNITS", "HIDDEN_ROOT"):
            setattr(self, name, getattr(self.inner, name))

    def write(self, unit: Unit) -> None:
        self.scorer.learn(unit.text)
        self.inner.write(unit)

    def end_session(self, session_id: str) -> None:
        self.inner.end_session(session_id)

    def consolidate(self) -> None:
        self.inner.consolidate()

    def read(self, question: Question) -> Recall:
        """The other memory's recall with the texts pruned, except a time in brackets at the start of each."""
        rate, forced, keep_digits = self.settings.rate, self.settings.forced, self.settings.keep_digits
        recall, items = self.inner.read(question), []
        for item in recall.items:
            head = match[0] if (match := _TIME.match(item.text)) else ""
            text = prune(item.text[len(head) :], rate, self.scorer, forced, keep_digits)
            items.append(replace(item, text=head + text, kind=self.scorer.name))
        return replace(recall, items=tuple(items))

    def nodes(self) -> Iterator[NodeView]:
        return self.inner.nodes()

    @property
    def held(self) -> int:
        return self.inner.held

    def report(self) -> dict[str, Any]:
        return self.inner.report() | {"pruned_by": self.scorer.name}

    def close(self) -> None:
        self.inner.close()


def _built(make: Callable[..., MemorySystem], services: dict[str, Any]) -> MemorySystem:
    """Build a memory with the services that its constructor names."""
    parameters = inspect.signature(make).parameters
    return make(**{name: service for name, service in services.items() if name in parameters})
