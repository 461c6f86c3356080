"""The official scorers of LongMemEval-V2: phrases and choices without a judge; the other questions are left to a judge.

Source: xiaowu0162/LongMemEval-V2, evaluation/qa_eval_metrics.py and `score_prediction` of evaluation/harness.py, at be15ea6. A question
names its scorer and options in one text, `norm_phrase_set_match|lower=true|separators=,;`.

The answer is the content of the last `\\boxed{}` of a reply, braces matched; the whole reply where there is no box or an empty one. The
answer "unknown" is wrong under every scorer. The scorers are:
- `norm_phrase_set_match`: every phrase of the gold, which is split at the separators, stands in the answer, with word boundaries, both
  normalised: lower case, hyphens and underscores as blanks, other marks dropped. More text in the answer does no harm.
- `norm_phrase_set_match_ordered`: the same, and each phrase must follow the previous one.
- `mc_choice_match`: the answer without "choice", "option" and dots is the gold's letter.
- `mc_choice_set_match`: the letters of the answer are the gold's. Letters of whole words count too, but for nine words such as "and":
  "A and the B" has the letters A, B, E, H and T.
- `llm_abstention_checker`: a judge's (conf/judge/longmemeval_v2.yaml). `llm_gotchas_checker` grades questions with screenshots, which the
  loader leaves out.

An option that the scorer does not know is an error there; here the question is not scored, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics.lexical import unanswered

JUDGED = "llm_abstention_checker"
_MARK = "\\boxed{"
_FILLERS = frozenset("AND ANSWER ANSWERS CHOICE CHOICES FINAL LETTER LETTERS OPTION OPTIONS".split())
_NORMALISING = ("lower", "normalize_hyphen", "strip_punct")


def boxed(reply: str) -> str:
    """The content of the last `\\boxed{}`, up to the end if it is not closed; the whole reply if the content is empty."""
    _, found, rest = reply.rpartition(_MARK)
    depth, content = 1, rest
    for place, mark in enumerate(rest if found else ""):
        depth += (mark == "{") - (mark == "}")
        if depth == 0:
            content = rest[:place]
            break
    return (content.strip() if found else "") or reply.strip()


def normalised(text: str, *, lower: bool = True, normalize_hyphen: bool = True, strip_punct: bool = True) -> str:
    """The normal form of phrases; the settings have the release's names."""
    text = text.lower() if lower else text
    text = re.sub(r"[-_]", " ", text) if normalize_hyphen else text
    text = re.sub(r"[,;]", " ", text)
    text = re.sub(r"[^\w\s]", "", text) if strip_punct else text
    return " ".join(text.split())


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """The scorer and its options. Raises ValueError for an option that is malformed or given twice."""
    name, *parts = (part.strip() for part in spec.split("|"))
    options: dict[str, Any] = {}
    for part in filter(None, parts):
        key, given, value = (each.strip() for each in part.partition("="))
        if not given or not key or key in options:
            raise ValueError(f"expected options such as lower=true, each once, found {part[:60]!r}")
        options[key] = _value(key, value)
    return name, options


def _value(key: str, value: str) -> Any:
    known: Mapping[str, Any] = {"true": True, "false": False, "none": None, "null": None}
    if value.lower() in known:
        return known[value.lower()]
    if key == "separators":
        return json.loads(value) if value.startswith("[") and value.endswith("]") else list("".join(value.split()))
    return value


def official(spec: str, answer: str, gold: str) -> bool | None:
    """Whether an answer (the result of `boxed`) is right; None if a judge decides.

    Raises ValueError for an unknown scorer or option.
    """
    name, options = parse(spec)
    if answer.strip().lower() == "unknown":
        return False
    if name == JUDGED:
        return None
    if name not in _SCORERS:
        raise ValueError(f"no rule is known for {name[:60]!r}")
    needed = options.pop("require_non_empty", True)
    return _SCORERS[name](answer, gold, options, bool(needed))


def _phrases(answer: str, gold: str, options: dict[str, Any], needed: bool, *, ordered: bool = False) -> bool:
    separators = options.pop("separators", [",", ";"])
    if unknown := set(options) - set(_NORMALISING):
        raise ValueError(f"no option {min(unknown)!r} is known")
    said = normalised(answer, **options)
    parts = re.split("|".join(map(re.escape, separators)), gold) if separators else [gold]
    phrases = [phrase for part in parts if (phrase := normalised(part, **options))]
    if needed and not (said and phrases):
        return False
    for phrase in phrases:
        found = re.search(rf"\b{re.escape(phrase)}\b", said)
        if found is None:
            return False
        said = said[found.end() :] if ordered else said
    return True


def _choice(answer: str, gold: str, options: dict[str, Any], needed: bool) -> bool:
    inner, closed, _ = answer.lower().partition(_MARK)[2].partition("}")
    letter = re.sub(r"\b(choice|option)\b", "", inner if closed else answer, flags=re.IGNORECASE)
    for mark in str(options.get("strip_chars", ".")):
        letter = letter.replace(mark, "")
    letter, wanted = letter.strip().upper(), gold.strip().upper()
    return letter == wanted and bool(letter or not needed)


def _choices(answer: str, gold: str, options: dict[str, Any], needed: bool) -> bool:
    said, wanted = _letters(answer), _letters(gold)
    return said == wanted and bool(said or not needed)


def _letters(text: str) -> set[str]:
    return {letter for word in re.findall(r"[A-Z]+", text.upper()) if word not in _FILLERS for letter in word}


_SCORERS: Mapping[str, Callable[[str, str, dict[str, Any], bool], bool]] = {
    "norm_phrase_set_match": _phrases,
    "norm_phrase_set_match_ordered": partial(_phrases, ordered=True),
    "mc_choice_match": _choice,
    "mc_choice_set_match": _choices,
}


def decided(gold: Gold, reply: str) -> Score | None:
    """The score of a reply that needs no judge; None if a judge decides. Not scored: an unknown scorer or option."""
    try:
        right = official(gold.detail["eval_function"], boxed(reply), gold.answers[0])
    except ValueError as error:
        return Score(None, f"eval_function: {error}")
    return None if right is None else Score(float(right))


# --- metrics: one prediction against one gold -----------------------------------------------------------------------


def longmemeval_v2_match(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """1 when the reply is right by the question's official scorer, else 0.

    Not scored: a failed call, and a reply that only a judge can grade (the judge `longmemeval_v2` gives these and all others).
    """
    if (score := unanswered(prediction)) is not None:
        return score
    return decided(gold, prediction.answer) or Score(None, "graded by a judge")
