"""Score published answers under one protocol, question by question: the scores behind `make claims`.

- F1: the official score of LoCoMo (`question_score`) with the data set's category; LoCoMo's token F1 for the other data sets.
- plain F1: SQuAD's, one rule for every category. BLEU-1 of Mem0's evaluation. ROUGE-L F with stems.
- abstention: LoCoMo's official phrases, or other phrases for "I do not know".

For questions that the history does not answer (category 5, `_abs`), word overlap is not computed: their score is the official string rule.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from data_loaders.beam import ABSTENTION
from data_loaders.schema import DataError
from eval.files.store import RunError
from eval.metrics.lexical import locomo_token_f1, rouge_words, squad_token_f1, word_tokenize
from eval.metrics.locomo import abstains, question_score
from eval.report.counted import counted
from scripts.answers.declared import digest
from scripts.answers.manifest import Claim, contents_of, files_of
from scripts.answers.matching import Answer, Asked, match, own_questions, questions_of

UNKNOWN = re.compile(
    r"\b(?:not (?:mentioned|specified|stated|provided|available|known|enough information)\b|no (?:specific )?information\b"
    r"|(?:do not|don't|doesn't|does not) (?:know|have (?:any |enough )?information|mention|specify)\b|insufficient information\b"
    r"|(?:did not|didn't|never) (?:mention|specify|say|state|provide|share)|no (?:mention|record)\b"
    r"|(?:cannot|can't|unable to) (?:be )?(?:determine|answer|find))|^\W*(?:unknown|n/?a|i don't know)\W*$"
)
"""Phrases for "I do not know" in addition to the official ones; lower case."""
MEASURES = ("f1", "plain_f1", "bleu1", "rouge_l")


@dataclass(frozen=True)
class ScoredClaim:
    """The scored answers of one claim; arrays are float64 [n] over the joined answers, NaN where there is no value."""

    claim: Claim
    sha256: str
    """sha256 of its file; for several files, of the list of their sha256."""
    changed: bool
    """Whether a file differs from the file in the manifest."""
    asked: tuple[Asked, ...]
    measures: dict[str, np.ndarray]
    """`MEASURES`, and `verdict` (0 to 1), `stored_f1`, `words`, `abstains`, `tokens`, `blank` (no text), `answerable`."""
    hashes: tuple[bytes, ...]
    """Hash of each answer, ignoring white space and case; empty for answers under six words, which agree by chance."""
    answers: int
    """Number of answers of the file, joined or not."""
    verdicts: tuple[float, ...]
    """Verdicts from 0 to 1 of all answers of the file, joined or not."""
    whole: int
    """Number of questions of the data set; of the file if the data set is not joined."""
    counts: Counter[str]
    listed: tuple[str, ...]
    golds: int
    other_gold: int
    texts: tuple[str, ...] = ()
    """The answers themselves, for the pages."""
    has_questions: bool = True
    """Whether the answers were joined with the data set's questions; if not, the file's own questions are used."""

    @property
    def joined(self) -> float | None:
        """Share of the answers that have a question of the data set; None if the data set is not joined."""
        return len(self.asked) / self.answers if self.has_questions else None

    def where(self, name: str, mask: np.ndarray | None = None) -> np.ndarray:
        """Bool [n]: answers selected by `mask` that have a value."""
        known: np.ndarray = ~np.isnan(self.measures[name])
        if mask is not None:
            known &= mask
        return known

    @property
    def answerable(self) -> np.ndarray:
        known: np.ndarray = self.measures["answerable"] == 1.0
        return known

    @property
    def in_history(self) -> np.ndarray:
        """Bool [n]: the history holds the answer. BEAM's abstentions count as answerable, but there it is right not to know."""
        known: np.ndarray = self.answerable & [asked.category != ABSTENTION for asked in self.asked]
        return known


def score_claim(claim: Claim, root: Path) -> ScoredClaim:
    """Read, join and score a claim. Raises DataError if a file of it or of its data set is missing or damaged."""
    files = files_of(claim, root)
    contents = contents_of(claim, files)
    questions = questions_of(claim.questions, root)
    pairs, counts, listed = [], contents.counts.copy(), list(contents.listed)
    golds = other_gold = 0
    if questions is None:
        pairs = own_questions(contents.answers)
        counts["without a gold in the file"] = sum(not asked.gold for asked, _ in pairs)
    else:
        matched = match(contents.answers, questions)
        pairs, golds, other_gold = matched.pairs, matched.golds, len(matched.other_gold)
        counts.update(
            {"without a question of the data set": len(matched.unjoined), "duplicate": len(matched.duplicates)}
        )
        listed += [*matched.unjoined, *matched.duplicates]
    if not pairs:
        raise DataError(f"none of {counted(len(contents.answers), 'answer')} belongs to {claim.dataset}")
    rows = [_row(asked, answer, claim.dataset == "LoCoMo") for asked, answer in pairs]
    return ScoredClaim(
        claim,
        digest(files),
        {file.sha256 for file in files} != {file.sha256 for file in claim.files},
        tuple(asked for asked, _ in pairs),
        {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]},
        tuple(fingerprint(answer.answer) for _, answer in pairs),
        len(contents.answers),
        tuple(value for answer in contents.answers if (value := answer.grade("judge")) is not None),
        len(questions.asked) if questions else len(contents.answers),
        +counts,
        tuple(listed),
        golds,
        other_gold,
        tuple(answer.answer for _, answer in pairs),
        questions is not None,
    )


def _row(asked: Asked, answer: Answer, official: bool) -> dict[str, float]:
    text, gold = answer.answer, asked.gold
    verdict, stored = answer.grade("judge"), answer.grade("f1")
    row = {
        "verdict": math.nan if verdict is None else verdict,
        "stored_f1": math.nan if stored is None else stored,
        "words": float(len(text.split())),
        "abstains": float(says_unknown(text)),
        "tokens": float(answer.recalled_tokens or math.nan),
        "blank": float(not text.strip()),
        "answerable": float(asked.answerable),
    }
    if not asked.answerable or not gold:  # the files of some data sets have no gold for some questions
        return row | dict.fromkeys(MEASURES, math.nan)
    f1 = question_score(text, gold, int(asked.category)) if official else locomo_token_f1(text, gold)
    return row | {
        "f1": f1,
        "plain_f1": squad_token_f1(text, gold),
        "bleu1": unigram_bleu(text, gold),
        "rouge_l": rouge_l(text, gold),
    }


def says_unknown(text: str) -> bool:
    """Whether a reply says "I do not know"; a long reply that says so about one of several things counts, too."""
    lower = text.lower().replace("’", "'")
    return abstains(text) or UNKNOWN.search(lower) is not None


def unigram_bleu(prediction: str, gold: str) -> float:
    """`nltk_bleu` of order 1, in a tenth of the time: clipped precision times the brevity penalty."""
    said, wanted = Counter(_tokens(prediction.lower())), _counted(gold.lower())
    shared, length = (said & wanted).total(), said.total()
    if not shared:
        return 0.0
    return shared / length * min(1.0, math.exp(1 - wanted.total() / length))


def rouge_l(prediction: str, gold: str) -> float:
    """`rouge_l_f` with stems: the longest common subsequence by bit-parallel addition (Hyyrö 2004), in a tenth of a table's time."""
    said, wanted = rouge_words(prediction, stemmer=True), _rouge_gold(gold)
    if not said or not wanted:
        return 0.0
    places: dict[str, int] = {}
    for at, word in enumerate(wanted):
        places[word] = places.get(word, 0) | 1 << at
    full = open_ = (1 << len(wanted)) - 1
    for word in said:
        hit = open_ & places.get(word, 0)
        open_ = ((open_ + hit) | (open_ - hit)) & full
    common = len(wanted) - open_.bit_count()
    return 2 * common / (len(said) + len(wanted))


@lru_cache(maxsize=4096)
def _rouge_gold(text: str) -> tuple[str, ...]:
    return tuple(rouge_words(text, stemmer=True))


def _tokens(text: str) -> list[str]:
    return word_tokenize(text) if text else []


@lru_cache(maxsize=4096)
def _counted(text: str) -> Counter[str]:
    return Counter(_tokens(text))


def fingerprint(text: str) -> bytes:
    """An eight-byte hash of an answer, ignoring white space and case; empty for an answer under six words."""
    words = text.casefold().split()
    return hashlib.sha256(" ".join(words).encode()).digest()[:8] if len(words) > 5 else b""


def scored_claims(wanted: Sequence[Claim], root: Path, workers: int) -> tuple[list[ScoredClaim], dict[str, str]]:
    """Score claims in worker processes; returns the scores in order, and by name the reasons for missing scores.

    Raises:
        RunError: no claim could be scored.
    """
    largest_first = sorted(wanted, key=lambda claim: -sum(file.bytes for file in claim.files))
    work = partial(_scored, root=root)
    if workers == 1 or len(wanted) < 3:
        outcomes = list(map(work, largest_first))
    else:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            outcomes = list(pool.map(work, largest_first))
    by_name = dict(zip((claim.name for claim in largest_first), outcomes, strict=True))
    scored = [each for claim in wanted if isinstance(each := by_name[claim.name], ScoredClaim)]
    missing = {claim.name: each for claim in wanted if isinstance(each := by_name[claim.name], str)}
    if not scored:
        name, reason = next(iter(missing.items()))
        raise RunError(
            f"no claim's files are there; {name}: {reason} (below {root}); get them with: python -m scripts fetch answers"
        )
    return scored, missing


def _scored(claim: Claim, root: Path) -> ScoredClaim | str:
    try:
        return score_claim(claim, root)
    except (DataError, RunError) as error:
        return str(error)
