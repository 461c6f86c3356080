"""Evidence density of recalled items, and the amount of text that covers the whole answer (xMemory section 5.2, Tables 3 and 5).

The evidence is the set of content words of the reference answer (lower-case, without stop words). A recalled item with one of them is a
1-hit block, with two a 2-hit block, with three or more a multi-hit block. Coverage is the number of items, best first, and their tokens,
until every content word has occurred. The module also reports the tokens of all recalled items (TiMem's recalled memory length) and the
levels that items come from.

Deviations. We take "minimum number of retrieved blocks" for the shortest prefix of the ranking: the printed means (10.81 of 20 for
answers of a few words) are too high for the smallest subset. Questions whose answer is never covered count in `covered` but not in the
means; the paper does not say how it treats them. The stop words are NLTK's English list as shipped with `bm25s`. Unanswerable questions
are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from data_loaders.schema import Case, Gold
from eval.files.records import Prediction
from eval.files.run_folder import RunFolder, read_items, read_predictions
from memsys.stop_words import stop_words
from memsys.tokens import count_tokens

_WORD = re.compile(r"\w+(?:'\w+)?")


@dataclass(frozen=True, slots=True)
class Coverage:
    """Items and tokens that must be read to see every content word of the answer."""

    blocks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence density over the questions of a category."""

    questions: int
    """Answerable questions with at least one content word in the answer and a recall."""
    left_out: int
    """Unanswerable questions, answers without a content word, failed questions."""
    blocks: int
    """Recalled items."""
    hits: tuple[float, float, float, float]
    """Shares of the blocks with no, one, two, and three or more content words; all 0 without blocks."""
    covered: float
    """Share of the questions whose answer is covered."""
    blocks_to_cover: float | None
    tokens_to_cover: float | None
    """Means over the covered questions."""
    recalled_tokens: float | None
    """Tokens of all recalled items, mean per question, before the reader's budget; None without questions."""
    levels: Mapping[int, float]
    """Share of the recalled items from each level."""


def content_words(text: str) -> frozenset[str]:
    """The distinct words of a text in lower case, without stop words."""
    return _words(text) - stop_words()


def answer_words(gold: Gold) -> frozenset[str]:
    """The content words of the first gold answer; none for an unanswerable question."""
    return content_words(gold.answers[0]) if gold.answerable and gold.answers else frozenset()


def hit_count(words: frozenset[str], text: str) -> int:
    """The number of the words that occur in a text as whole words."""
    return len(words & _words(text))


def coverage(words: frozenset[str], texts: Sequence[str]) -> Coverage | None:
    """The shortest prefix of `texts` that contains all words; None when all texts together do not."""
    missing, tokens = set(words), 0
    for number, text in enumerate(texts, 1):
        missing -= _words(text)
        tokens += count_tokens(text)
        if not missing:
            return Coverage(number, tokens)
    return None


@dataclass(frozen=True, slots=True)
class Recalled:
    """The recall for one question whose answer has content words."""

    hits: tuple[int, ...]
    """Number of content words in each item."""
    tokens: int
    """Tokens of all items."""
    coverage: Coverage | None
    levels: tuple[int, ...]


def recall_of(prediction: Prediction, gold: Gold, items: Mapping[str, Mapping[str, Any]]) -> Recalled | None:
    """The recall for a question; None for unanswerable or failed questions and answers without a content word.

    Items are ranked by the memory's own scores, because the order of a recall may be meant for the reader.

    Args:
        items: the recalled items of its case, by hash.
    """
    words = answer_words(gold)
    if not words or prediction.outcome == "error":
        return None
    ranked = [items[prediction.items[place]] for place in prediction.ranking]
    texts = [item["text"] for item in ranked]
    return Recalled(
        tuple(hit_count(words, text) for text in texts),
        sum(map(count_tokens, texts)),
        coverage(words, texts),
        tuple(item["level"] for item in ranked),
    )


def recalled(run_folder: Path, cases: Iterable[Case]) -> Iterator[tuple[Case, Gold, Recalled | None]]:
    """Every question that a run reached, with its recall."""
    for case in cases:
        folder = RunFolder(run_folder).case(case.id)
        predictions, items = read_predictions(folder), read_items(folder)
        for question, gold in case.questions:
            if (prediction := predictions.get(question.id)) is not None:
                yield case, gold, recall_of(prediction, gold, items)


def evidence(run_folder: Path, cases: Iterable[Case]) -> dict[str, Evidence]:
    """Evidence density of a run by category in alphabetical order, followed by `all`."""
    recalls: dict[str, list[Recalled | None]] = {}
    for _, gold, recall in recalled(run_folder, cases):
        for category in (gold.category, "all"):
            recalls.setdefault(category, []).append(recall)
    order = sorted(recalls, key=lambda name: (name == "all", name))
    return {category: _summed(recalls[category]) for category in order}


def _summed(recalls: Sequence[Recalled | None]) -> Evidence:
    kept = [recall for recall in recalls if recall is not None]
    hits = Counter(min(3, count) for recall in kept for count in recall.hits)
    levels = Counter(level for recall in kept for level in recall.levels)
    covered = [recall.coverage for recall in kept if recall.coverage is not None]
    blocks = hits.total()
    zero, one, two, more = (hits[count] / max(1, blocks) for count in range(4))
    return Evidence(
        questions=len(kept),
        left_out=len(recalls) - len(kept),
        blocks=blocks,
        hits=(zero, one, two, more),
        covered=len(covered) / max(1, len(kept)),
        blocks_to_cover=fmean(coverage.blocks for coverage in covered) if covered else None,
        tokens_to_cover=fmean(coverage.tokens for coverage in covered) if covered else None,
        recalled_tokens=fmean(recall.tokens for recall in kept) if kept else None,
        levels={level: count / blocks for level, count in sorted(levels.items())},
    )


@lru_cache(maxsize=20_000)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower().replace("’", "'")))
