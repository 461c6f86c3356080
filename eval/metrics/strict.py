"""Whether a text holds a value, letter by letter but not sign by sign (datasets_third.md section 1, the strict matcher's literals).

Text is cleaned first: NFKC; curly quotes and primes become straight ones, dashes and the minus sign become "-"; zero-width characters and
soft hyphens go; white space is squeezed; case is folded. A value then counts where no word character touches a word character at its
edge, and where a digit at its edge is not part of a longer number ("2" is not in "3.2" nor in "2,000").
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_SIGNS = {
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u2035"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f\u2033\u2036"), '"'),
    **dict.fromkeys([*range(0x2010, 0x2015), 0x2212], "-"),
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"), ""),
}


@lru_cache(maxsize=100_000)  # the lines of a history are recalled again and again
def clean(text: str) -> str:
    """The text as it is compared."""
    # Primes are folded before NFKC, too, which would take a double prime apart into two.
    return " ".join(unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS).split()).casefold()


def holds(text: str, value: str) -> bool:
    """Whether a text holds a value; a blank value is in no text."""
    literal, cleaned = clean(value), clean(text)
    return bool(literal) and literal in cleaned and _pattern(literal).search(cleaned) is not None


@lru_cache(maxsize=10_000)
def _pattern(literal: str) -> re.Pattern[str]:
    """What finds a cleaned value in a cleaned text."""
    before = r"(?<!\w)" if re.match(r"\w", literal) else ""
    before += r"(?<!\d[.,])" if literal[0].isdigit() else ""
    after = r"(?!\w)" if re.search(r"\w$", literal) else ""
    after += r"(?![.,]\d)" if literal[-1].isdigit() else ""
    return re.compile(before + re.escape(literal) + after)
