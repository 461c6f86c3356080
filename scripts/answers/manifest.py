"""The manifest of published claims (`conf/claims/claims.yaml`) and the files of answers behind them.

The files are found below the data root, where `fetch answers` puts them from their owners, as they are or compressed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import AfterValidator, Field

from data_loaders.schema import DataError
from eval.files.store import RunError
from scripts.answers.declared import FORMS, Contents, Parsed, forms, parsed, read_declared, read_yaml
from scripts.settings.checking import nearest, typed
from scripts.settings.types import STRICT, Name, Natural, Share, Text

CLAIMS = FORMS.with_name("claims.yaml")
FOLDER = "third_party_answers/collected"
"""Folder of the claims' files, below the data root."""
PEOPLE = "people"
"""The judge of a claim whose stored verdicts are labels by people."""


def _below(text: str) -> str:
    if PurePosixPath(text).is_absolute() or ".." in text.split("/") or "\\" in text or "\0" in text:
        raise ValueError(f"must be a path below {FOLDER}, found {text!r}")
    return text


def _sha256(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError("must be a sha256 of 64 digits from 0 to f")
    return text


@dataclass(frozen=True, slots=True)
class Printed:
    """A score that a page or a file prints."""

    __pydantic_config__ = STRICT

    score: Share
    digits: Annotated[Natural, Field(le=6)]
    """Decimal places of the printed score."""
    of: Literal["judge", "pass", "full", "f1"]
    """`judge`: the mean verdict; `pass`: the share of at least half marks; `full`: the share of full marks; `f1`: the file's own F1."""
    over: Literal["all", "1-4"]
    """Questions of the score: `all`, or categories `1-4`."""
    printed: Text
    """The page or file that prints it."""
    until: str = ""
    """The day on which the page dropped it."""
    other_run: str = ""
    """The subject of the score, if it is not the score of this file."""
    printed_at: str = ""
    """`path:line @commit` in the claim's repository."""

    @property
    def text(self) -> str:
        """The score as it is printed."""
        return f"{self.score:.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class AnswersFile:
    __pydantic_config__ = STRICT

    path: Text
    """Path in its owner's repository."""
    held: Annotated[Text, AfterValidator(_below)]
    """Path below `FOLDER`."""
    sha256: Annotated[str, AfterValidator(_sha256)]
    bytes: Natural


@dataclass(frozen=True, slots=True)
class Claim:
    """One published set of answers, with the scores that its owner prints."""

    __pydantic_config__ = STRICT

    name: Name
    dataset: str
    product: str
    """The product, under one name over all harnesses."""
    system: str
    by: str
    """Owner of the repository that published it."""
    repository: str
    commit: str
    date: str
    licence: str
    answer_model: str
    """The answering model; empty if it is not stated."""
    judge: str
    form: str
    files: tuple[AnswersFile, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    claimed: tuple[Printed, ...] = ()
    note: str = ""
    tier: str = ""
    """For BEAM, the length tier."""
    part: str = ""
    """The part of the data set that the file covers; empty for the whole."""
    extract: bool = False
    """Whether the held file is an extract of the owner's file."""

    @property
    def questions(self) -> str:
        """Name of the questions that the answers belong to (`scripts.answers.matching`)."""
        return f"{self.dataset} {self.tier}".rstrip()

    @property
    def urls(self) -> list[str]:
        """Addresses of the files at their owner."""
        base = f"https://raw.githubusercontent.com/{self.repository}/{self.commit}"
        return [f"{base}/{quote(file.path)}" for file in self.files]

    def line_url(self, printed: Printed) -> str:
        """Address of the line that prints a score; empty where the claim names none."""
        place, _, commit = printed.printed_at.partition(" @")
        path, _, line = place.rpartition(":")
        return f"https://github.com/{self.repository}/blob/{commit}/{quote(path)}#L{line}" if path else ""


@lru_cache(maxsize=4)
def claims(path: Path = CLAIMS) -> tuple[Claim, ...]:
    """Every claim of a manifest. Raises RunError if the manifest is damaged, or two claims have one name."""
    records = read_yaml(path)
    if not isinstance(records, list):
        raise RunError(f"{path.name}: expected a list of claims")
    known = []
    for number, record in enumerate(records):
        name = record.get("name") if isinstance(record, dict) else None
        where = f"{path.name}: {name or f'entry {number + 1}'}: "
        claim = typed(Claim, record, where)
        if not claim.files:
            raise RunError(f"{where}files must not be empty")
        if claim.form not in forms():
            raise RunError(f"{where}form {claim.form} is not known{nearest(claim.form, forms())}")
        known.append(claim)
    names = Counter(claim.name.casefold() for claim in known)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise RunError(f"{path.name}: two claims are called {twice[0]}")
    return tuple(known)


def located(file: AnswersFile, root: Path) -> Path | None:
    """A file below the data root, plain or compressed; None if it is missing."""
    plain = root / FOLDER / file.held
    return next((path for path in (plain, plain.with_name(f"{plain.name}.gz")) if path.is_file()), None)


def files_of(claim: Claim, root: Path) -> list[Parsed]:
    """The parsed files of a claim. Raises DataError if one of them is missing or cannot be read."""
    places = [located(file, root) for file in claim.files]
    missing = [file.held for file, place in zip(claim.files, places, strict=True) if place is None]
    if missing:
        raise DataError(f"{len(missing)} of {len(places)} files are not there, such as {FOLDER}/{missing[0]}")
    return [parsed(place) for place in places if place is not None]


def contents_of(claim: Claim, files: list[Parsed]) -> Contents:
    """The answers of a claim. Raises DataError if its form does not fit the files."""
    return read_declared(files, forms()[claim.form], claim.options)


def chosen(names: Sequence[str]) -> list[Claim]:
    """The claims of these names or data sets; all claims if none is given. Raises RunError if a name is neither a claim nor a data set."""
    known = claims()
    for name in names:
        if not any(name in (claim.name, claim.dataset) for claim in known):
            raise RunError(f"no claim or data set is called {name!r}; conf/claims/claims.yaml lists them")
    return [claim for claim in known if not names or claim.name in names or claim.dataset in names]
