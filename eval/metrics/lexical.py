"""Word overlap of an answer with a gold answer; each implementation has its own name.

"Token F1" names at least four different measures in this field, so no function here is called that:

- LoCoMo (snap-research/locomo, task_eval/evaluation.py): drops `and` with the articles, Porter stems, multisets;
- Mem0 and A-MEM (their evaluation metrics): four punctuation marks become spaces, sets;
- SQuAD (the MRQA code, as in HippoRAG): drops articles, no stems, multisets;
- MemoryAgentBench adds a yes/no rule to SQuAD's (`eval.metrics.longmemeval_mab`).

The functions take an answer and a gold answer, and return what the official code returns. As a metric (`conf/metrics.yaml`) each
counts at its best over the gold answers, in [0, 1] (`best_of`). An empty reply scores 0; a question whose call failed is not scored.

Deviations. nltk.word_tokenize needs the punkt model, which must be downloaded. `word_tokenize` uses the model if NLTK finds
it, and never downloads it. Without the model it runs the same sentence algorithm with a short list of abbreviations instead
of the trained parameters. The two differ in whether the period after a rare abbreviation is a token: in 3 of the 3,080
answers that Memobase published, all of which name "J.K. Rowling". The setting `sentences` of the metric chooses. Scores also
depend on the version of NLTK: since 3.10 an opening single quote is a separate token, which it was not when those answers
were scored (6 of the 3,080, such as 'Sleep' or '16). METEOR, SBERT similarity and BERTScore, which
A-MEM also reports, need downloaded models and are left out.
"""

from __future__ import annotations

import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Literal

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from memsys.lean import hide_modules

BleuOrder = Literal[1, 2, 3, 4]
RougeKind = Literal["rouge1", "rouge2", "rougeL"]
Splitter = Literal["punkt", "abbreviations"]
"""Method of NLTK's tokenizer for the ends of sentences: its trained model, or our short list of abbreviations."""
SacreSmoothing = Literal["none", "floor", "add-k", "exp"]

NOT_OF_NLTK = ("sklearn", "scipy", "scipy.sparse", "scipy.stats", "pandas", "matplotlib")
"""Packages that NLTK would load for what is not used here."""
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SQUAD_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PLAIN = re.compile(r"(?:[a-zA-Z0-9/-](?<!--)|(?<=[a-zA-Z0-9]),? (?=[a-zA-Z0-9]))*[a-zA-Z0-9]\.?")
"""Words with single spaces, commas, hyphens and slashes between them, and at most one period, at the end."""
# A-MEM's weights: those of order 3 add up to 0.99, not 1.
_NLTK_BLEU_WEIGHTS: dict[BleuOrder, tuple[float, ...]] = {
    1: (1, 0, 0, 0),
    2: (0.5, 0.5, 0, 0),
    3: (0.33, 0.33, 0.33, 0),
    4: (0.25, 0.25, 0.25, 0.25),
}
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st jr sr gen sen rep gov lt col sgt capt messrs vs inc corp co ltd bros ave "
    "jan feb aug sept oct nov dec a.m p.m u.s u.k u.n d.c e.g i.e ph.d".split()
)


# --- normal forms ---------------------------------------------------------------------------------------------------


def squad_normalise(text: str) -> str:
    """The text in lower case without ASCII punctuation and without a/an/the, single spaced (SQuAD and MRQA scorers)."""
    return " ".join(_SQUAD_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def locomo_normalise(text: str) -> str:
    """The text in lower case without ASCII punctuation and a/an/the/and, single spaced (official LoCoMo scorer).

    Punctuation is deleted, not replaced: "self-care" becomes "selfcare". Accents stay: "Café" is not "Cafe".
    """
    return " ".join(_locomo_articles().sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


@lru_cache(maxsize=1)
def _locomo_articles() -> Any:
    import regex  # as the scorer does: its word boundary counts combining marks as part of a word; the one of `re` does not

    return regex.compile(r"\b(a|an|the|and)\b")


@lru_cache(maxsize=4096)  # every row of a table, and every set of an audit, is compared with the same gold answers
def locomo_stems(text: str) -> tuple[str, ...]:
    """Porter stems (nltk's default mode) of the words of the normalised text (official LoCoMo scorer)."""
    return tuple(map(_porter_stem(), locomo_normalise(text).split()))


@lru_cache(maxsize=1)
def _porter_stem() -> Callable[[str], str]:
    """NLTK's stemmer in its default mode, which computes every stem once."""
    with hide_modules(*NOT_OF_NLTK):
        from nltk.stem import PorterStemmer

    return lru_cache(maxsize=50_000)(PorterStemmer().stem)


def mem0_tokens(text: str) -> list[str]:
    """The text in lower case, split at white space and at the marks . , ! ? (Mem0 and A-MEM metrics)."""
    text = text.lower()
    for mark in ".,!?":
        text = text.replace(mark, " ")
    return text.split()


def word_tokenize(text: str, sentences: Splitter | None = None) -> list[str]:
    """The Treebank tokens of each sentence (nltk.word_tokenize); the module's docstring explains `sentences`. None: `splitter()`."""
    words = _word_tokenizer()
    # A plain text is one sentence, and only NLTK's rules for contractions change it; the other rules take most of a BLEU's time.
    if _PLAIN.fullmatch(text):
        spaced = f" {text.replace(', ', ' , ').replace('.', ' .')} "
        for contraction in (*words.CONTRACTIONS2, *words.CONTRACTIONS3):
            spaced = contraction.sub(r" \1 \2 ", spaced)
        return spaced.split()
    parts = _sentence_tokenizer(sentences or splitter())
    return [str(token) for sentence in parts.tokenize(text) for token in words.tokenize(sentence)]


def splitter(choice: str = "auto") -> Splitter:
    """The sentence splitter of a setting; `auto` means punkt if NLTK finds its data, else the abbreviations.

    Raises:
        ValueError: an unknown choice, or `punkt` without its data.
    """
    if choice not in ("auto", "punkt", "abbreviations"):
        raise ValueError(f"sentences must be auto, punkt or abbreviations, found {choice!r}")
    if choice == "abbreviations" or (choice == "auto" and not _has_punkt()):
        return "abbreviations"
    if not _has_punkt():
        remedy = "run `python -m nltk.downloader punkt_tab`, or set sentences: auto"
        raise ValueError(f"NLTK does not find its punkt data: {remedy}")
    return "punkt"


@lru_cache(maxsize=1)
def _has_punkt() -> bool:
    with hide_modules(*NOT_OF_NLTK):
        from nltk.tokenize import punkt_model_available

    return bool(punkt_model_available())


@lru_cache(maxsize=2)
def _sentence_tokenizer(sentences: Splitter) -> Any:
    with hide_modules(*NOT_OF_NLTK):
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer, PunktTokenizer

    if sentences == "punkt":
        return PunktTokenizer("english")
    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters)


@lru_cache(maxsize=1)
def _word_tokenizer() -> Any:
    with hide_modules(*NOT_OF_NLTK):
        from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()


# --- F1 and exact match ---------------------------------------------------------------------------------------------


def overlap_f1(prediction: Iterable[str], gold: Iterable[str]) -> float:
    """F1 over tokens as multisets (also given as counters); 0 when the two sides share no token."""
    predicted, wanted = Counter(prediction), Counter(gold)
    shared = (predicted & wanted).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / predicted.total(), shared / wanted.total()
    return 2 * precision * recall / (precision + recall)


def locomo_token_f1(prediction: str, gold: str) -> float:
    """F1 over the stems of both (official LoCoMo scorer, categories 2, 3 and 4). Two empty sides score 0.

    For every category alike it is the F1 of TiMem's release (LoCoMo's `f1_score`).
    """
    return overlap_f1(locomo_stems(prediction), locomo_stems(gold))


def locomo_multi_answer_f1(prediction: str, gold: str) -> float:
    """Mean over the comma-separated parts of the gold of the best F1 with a part of the answer (LoCoMo, category 1)."""
    parts = [Counter(locomo_stems(part)) for part in prediction.split(",")]
    best = [max(overlap_f1(part, wanted) for part in parts) for wanted in map(locomo_stems, gold.split(","))]
    return sum(best) / len(best)


def locomo_rouge_1(prediction: str, gold: str) -> float:
    """F1 over the sets of stems of both: the `rougel_score` of the official LoCoMo scorer, which returns ROUGE-1 of the package `rouge`.

    That package counts every word of a text once. The scorer's term of 1e-8 in the denominator is left out.

    This is one of two readings of the column that TiMem's tables call ROUGE-L: the release imports LoCoMo's `rougel_score` and calls it
    for single answers only, a path that no code uses today. Rows that print ROUGE-L a little above F1 agree with it.
    """
    return overlap_f1(set(locomo_stems(prediction)), set(locomo_stems(gold)))


def locomo_rouge_l(prediction: str, gold: str) -> float:
    """ROUGE-L of the package `rouge` over the stems of both, as the evaluation of TiMem's release (6d279a5) computes it.

    That package divides the different words of the longest common subsequence by the different words of each text, so the score is
    never above `locomo_rouge_1`. Its term of 1e-8 in the denominator is left out.

    This is the other reading, and the code that the release runs today. Rows with ROUGE-L one or two points below F1 agree with it.
    """
    said, wanted = locomo_stems(prediction), locomo_stems(gold)
    common = len(set(_common_subsequence(wanted, said)))
    return 2 * common / (len(set(said)) + len(set(wanted))) if common else 0.0


def _common_subsequence(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The longest common subsequence; if there are several, the same one as the package `rouge` takes."""
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first, 1):
        for j, other in enumerate(second, 1):
            lengths[i][j] = lengths[i - 1][j - 1] + 1 if one == other else max(lengths[i - 1][j], lengths[i][j - 1])
    words: list[str] = []
    i, j = len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            words.append(first[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words[::-1]


def mem0_set_f1(prediction: str, gold: str) -> float:
    """F1 over the sets of tokens of both (Mem0 and A-MEM metrics, xMemory's tables)."""
    return overlap_f1(set(mem0_tokens(prediction)), set(mem0_tokens(gold)))


def mem0_exact_match(prediction: str, gold: str) -> bool:
    """Whether both are equal in lower case without outer white space; never when one is "" (Mem0 and A-MEM metrics)."""
    return bool(prediction and gold) and prediction.strip().lower() == gold.strip().lower()


def squad_token_f1(prediction: str, gold: str) -> float:
    """F1 over the normalised words of both (MRQA form of the SQuAD scorer: two empty sides score 0)."""
    return overlap_f1(squad_normalise(prediction).split(), squad_normalise(gold).split())


def squad_exact_match(prediction: str, gold: str) -> bool:
    """Whether both are equal once normalised; two empty sides are (SQuAD and MRQA scorers)."""
    return squad_normalise(prediction) == squad_normalise(gold)


# --- BLEU and ROUGE -------------------------------------------------------------------------------------------------


def nltk_bleu(prediction: str, gold: str, order: BleuOrder = 1, sentences: Splitter | None = None) -> float:
    """Sentence BLEU in [0, 1] of lower-cased Treebank tokens, smoothing method 1 (Mem0 and A-MEM metrics, xMemory's tables).

    Identical texts score below 1 for an order above their number of tokens.
    """
    if not prediction or not gold:
        return 0.0
    with hide_modules(*NOT_OF_NLTK):
        from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    reference, hypothesis = word_tokenize(gold.lower(), sentences), word_tokenize(prediction.lower(), sentences)
    smoothing = SmoothingFunction().method1
    weights = _NLTK_BLEU_WEIGHTS[order]
    return float(sentence_bleu([reference], hypothesis, weights=weights, smoothing_function=smoothing))


def sacre_bleu(
    prediction: str, gold: str, order: int = 1, smoothing: SacreSmoothing = "exp", lowercase: bool = False
) -> float:
    """Sentence BLEU on sacreBLEU's own scale, 0 to 100 (tokenizer 13a, effective order)."""
    return float(_sacre_bleu(order, smoothing, lowercase).sentence_score(prediction, [gold]).score)


def sacre_share(prediction: str, gold: str, order: int = 1, lowercase: bool = False) -> float:
    """`sacre_bleu` divided by 100, so in [0, 1] like every other score."""
    # sacreBLEU returns slightly more than 100 for a perfect match, because of rounding.
    return min(1.0, sacre_bleu(prediction, gold, order, lowercase=lowercase) / 100)


@lru_cache(maxsize=16)
def _sacre_bleu(order: int, smoothing: SacreSmoothing, lowercase: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(max_ngram_order=order, smooth_method=smoothing, lowercase=lowercase, effective_order=True)


def rouge(prediction: str, gold: str, kind: RougeKind, stemmer: bool = False) -> Any:
    """Precision, recall and `fmeasure` of Google's rouge-score, each in [0, 1]; its tokens are runs of ASCII letters and digits.

    Accented letters split words and other scripts vanish; a text without any token scores 0, even against itself.
    """
    return _rouge_scorer(kind, stemmer).score(target=gold, prediction=prediction)[kind]


def rouge_f(prediction: str, gold: str, kind: RougeKind, stemmer: bool = True) -> float:
    """ROUGE F; with the stemmer, as A-MEM reports it."""
    return float(rouge(prediction, gold, kind, stemmer).fmeasure)


def rouge_recall(prediction: str, gold: str, kind: RougeKind, stemmer: bool = False) -> float:
    """ROUGE recall; of ROUGE-L, the share of the gold's words that the reply has in the same order.

    MemGPT (section 3.1) and MemTree (table 1) report it for verbose answers without saying whether words are stemmed.
    """
    return float(rouge(prediction, gold, kind, stemmer).recall)


def rouge_words(text: str, stemmer: bool = False) -> list[str]:
    """The words that rouge-score compares; every stem is computed once."""
    with hide_modules(*NOT_OF_NLTK):
        from rouge_score import tokenize

    return list(tokenize.tokenize(text, SimpleNamespace(stem=_porter_stem()) if stemmer else None))


@lru_cache(maxsize=8)
def _rouge_scorer(kind: RougeKind, stemmer: bool) -> Any:
    with hide_modules(*NOT_OF_NLTK):
        from absl.logging import get_absl_handler
        from rouge_score.rouge_scorer import RougeScorer
        from rouge_score.tokenizers import Tokenizer

    # rouge-score loads absl, whose handler keeps the standard error of this moment and closes it when logging is configured again,
    # as for the next job of a multirun; it leaves Python's own open.
    get_absl_handler().python_handler.setStream(sys.__stderr__)

    class Cached(Tokenizer):  # type: ignore[misc]
        def tokenize(self, text: str) -> list[str]:
            return rouge_words(text, stemmer)

    return RougeScorer([kind], tokenizer=Cached())


# --- metrics: one prediction against one gold -----------------------------------------------------------------------


EMPTY = "empty answer"
"""The reason for the score 0 of an answer without a word."""


def unanswered(prediction: Prediction) -> Score | None:
    """The score of a question without an answer; None when the question was answered.

    A failed call has no score, because it says nothing about the memory. Aborted searches count as wrong, here and with judges, so
    that a memory does not gain by giving up.
    """
    if prediction.outcome == "answered":
        return None
    why = f"{prediction.outcome}: {prediction.error}" if prediction.error else prediction.outcome
    return Score(0.0 if prediction.outcome == "aborted" else None, why=why)


def best_of(question: Question, gold: Gold, prediction: Prediction, measure: Callable[[str, str], float]) -> Score:
    """The highest `measure(answer, gold answer)` over the gold answers: the metric of a function of two texts.

    A question whose call failed, or without a gold answer, is not scored. An empty reply and an aborted search score 0.
    """
    if (score := unanswered(prediction)) is not None:
        return score
    if not gold.answers:
        return Score(None, why="the question has no gold answer")
    if not prediction.answer.strip():
        return Score(0.0, why=EMPTY)
    return Score(float(max(measure(prediction.answer, answer) for answer in gold.answers)))
