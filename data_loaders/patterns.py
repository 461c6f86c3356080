"""Search for a pattern in a text: a literal, or a regular expression of a data set's answer key.

A pattern is a regular expression if it has a backslash or one of `[ ] ( ) | ? + * { }` and compiles; everything else is a literal.
`official_hit` is the rule of GateMem's scorer (rzhub/GateMem at 603f9f4, bench/eval/metrics.py), `strict_hit` is our own rule.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

_SPECIAL = frozenset("\\[]()|?+*{}")
_WORDLIKE = re.compile(r"[a-z0-9][a-z0-9 _\-/.:]*[a-z0-9]")
_UNIFIED = {
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u2035"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f\u2033\u2036"), '"'),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212"), "-"),
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"), ""),
}
"""Curly quotes, primes and dashes by their plain forms; zero-width characters and soft hyphens by nothing."""


def official_hit(pattern: str, text: str) -> bool:
    """Whether a pattern is in a text by the official rule; a blank pattern never is."""
    if not pattern.strip():
        return False
    if (expression := _expression(pattern)) is not None:
        return bool(expression.search(text))
    wanted, said = _squeezed(pattern).lower(), _squeezed(text).lower()
    if len(wanted) >= 2 and _WORDLIKE.fullmatch(wanted):
        return bool(re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", said))
    return wanted in said


def strict_hit(pattern: str, text: str) -> bool:
    """Whether a pattern is in a text by our rule (spec 1): cleaned, and not inside a longer word or number."""
    return hit_in_cleaned(pattern, text, cleaned(text))


def hit_in_cleaned(pattern: str, text: str, clean: str) -> bool:
    """`strict_hit` for callers that search one text for many patterns: `clean` is the cleaned text."""
    if not pattern.strip():
        return False
    if (expression := _expression(pattern)) is not None:
        return bool(expression.search(text) or expression.search(clean))
    return bool(_edged(pattern).search(clean))


def holds(text: str, value: str) -> bool:
    """`strict_hit` of a text as a literal, even if it contains signs of a regular expression; a blank value is in no text."""
    clean = cleaned(text)
    return bool(value.strip()) and cleaned(value) in clean and _edged(value).search(clean) is not None


@lru_cache(maxsize=100_000)  # the lines of a history are recalled again and again
def cleaned(text: str) -> str:
    """A text with unified quotes and dashes, without invisible characters, white space squeezed, case folded."""
    # Primes are folded before NFKC, too, which would take a double prime apart into two.
    return _squeezed(unicodedata.normalize("NFKC", text.translate(_UNIFIED)).translate(_UNIFIED)).casefold()


def strict_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Patterns without repetitions, blanks, and the words yes and no, which our rule reads as confirming and denying."""
    distinct: dict[str, str] = {}
    for pattern in patterns:
        distinct.setdefault(cleaned(pattern), pattern)
    return tuple(pattern for key, pattern in distinct.items() if key not in ("", "yes", "no"))


def _squeezed(text: str) -> str:
    return " ".join(text.split())


@lru_cache(maxsize=16_384)
def _expression(pattern: str) -> re.Pattern[str] | None:
    """The pattern as a regular expression; None for a literal, and for a pattern that does not compile."""
    if not _SPECIAL & set(pattern):
        return None
    try:
        return re.compile(pattern, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError):
        return None


@lru_cache(maxsize=16_384)
def _edged(pattern: str) -> re.Pattern[str]:
    """A regular expression for a literal whose edges are not inside a longer word or number."""
    literal = cleaned(pattern)
    before = (r"(?<!\d[.,])" if literal[:1].isdigit() else "") + (r"(?<!\w)" if re.match(r"\w", literal) else "")
    after = (r"(?![.,]\d)" if literal[-1:].isdigit() else "") + (r"(?!\w)" if re.search(r"\w\Z", literal) else "")
    return re.compile(before + re.escape(literal) + after if literal else r"(?!)")
