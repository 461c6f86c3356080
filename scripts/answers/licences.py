"""Decide which foreign texts a public site may show whole, by the licence in a manifest. Scores and ids are always shown."""

from __future__ import annotations

from dataclasses import dataclass

from data_loaders.source import manifest

FREE = frozenset(("MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "CC0-1.0", "CC BY 4.0", "CC BY-SA 4.0"))
NON_COMMERCIAL = frozenset(("CC BY-NC 4.0",))
DATA_FILES = {
    "LoCoMo": "locomo/locomo10.json",
    "LongMemEval": "longmemeval/longmemeval_oracle.json",
    "BEAM": "beam/chats/100K/1/chat.json",
}
"""A file of each data set; its entry in the manifest of data names the licence."""
EXCERPTS, EXCERPT = 20, 90
"""Maximum number of quoted excerpts, and of characters of an excerpt, of texts that may not be redistributed."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A licence and whether texts under it may be shown whole on this site."""

    licence: str
    whole: bool
    why: str


def terms_of(licence: str, commercial: bool) -> Terms:
    """The terms of a licence by its name; the part after ` (` is a remark. An unknown name allows nothing."""
    name = licence.partition(" (")[0].strip()
    if name in FREE:
        return Terms(licence, True, "it allows passing texts on")
    if name in NON_COMMERCIAL:
        why = "it allows passing texts on for non-commercial use"
        return Terms(licence, not commercial, f"{why}, and this site is {'a commercial' if commercial else 'such'} one")
    if name in ("", "none stated"):
        return Terms("none stated", False, "without a licence the texts may not be passed on")
    return Terms(licence, False, "it is not among those known to allow it without further duties")


def data_terms(dataset: str, commercial: bool) -> Terms:
    """The terms of a data set's questions and gold answers."""
    entry = manifest().get(DATA_FILES.get(dataset, ""))
    return terms_of(entry.licence if entry else "", commercial)
