"""The manifest of published claims (`conf/claims/claims.yaml`) and the files of answers behind them.

The files are found below the data root, where `fetch answers` puts them from their owners, as they are or compressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from data_loaders.schema import DataError
from eval.store import RunError
from scripts.answers.declared import FORMS, Contents, forms, read_declared
from scripts.answers.parsing import Parsed, parsed

CLAIMS = FORMS.with_name("claims.yaml")
FOLDER = "third_party_answers/collected"
"""Below the data root."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A score that a page or a file prints."""

    score: float
    """In [0, 1]."""
    digits: int
    """Decimal places of the printed score."""
    of: str
    """`judge` the mean verdict, `pass` the share of at least half marks, `full` that of full marks, `f1` the file's own F1."""
    over: str
    """`all` its questions, or categories `1-4`."""
    printed: str
    """Where it stands."""
    until: str = ""
    """The day on which the page dropped it."""
    other_run: str = ""
    """What it is the score of, where it is not this file's."""
    printed_at: str = ""
    """`path:line @commit` in the claim's repository."""


@dataclass(frozen=True, slots=True)
class AnswersFile:
    """One file of a claim."""

    path: str
    """In its owner's repository."""
    held: str
    """Below `FOLDER`."""
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Claim:
    """One published set of answers, with the scores that its owner prints."""

    name: str
    dataset: str
    product: str
    """What was measured, under one name over all harnesses."""
    system: str
    by: str
    """Owner of the repository that published it."""
    repository: str
    commit: str
    date: str
    licence: str
    answer_model: str
    """Empty where it is not stated."""
    judge: str
    form: str
    files: tuple[AnswersFile, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    claimed: tuple[Printed, ...] = ()
    note: str = ""
    part: str = ""
    """Which part of the data set the file covers, where it does not cover the whole."""
    extract: bool = False
    """The held file is an extract of the owner's."""

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
    """Every claim of a manifest.

    Raises:
        RunError: the manifest is damaged, or two claims have one name.
    """
    try:
        records = yaml.safe_load(path.read_text(encoding="utf-8"))
        known = tuple(_claim(record) for record in records)
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path.name}: no manifest of claims: {error}") from error
    names = [claim.name for claim in known]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RunError(f"{path.name}: two claims are called {twice[0]}")
    return known


def _claim(record: Mapping[str, Any]) -> Claim:
    fields = dict(record)
    files = tuple(AnswersFile(**file) for file in fields.pop("files"))
    printed = tuple(Printed(**each) for each in fields.pop("claimed", []))
    return Claim(**fields, files=files, claimed=printed)


def located(file: AnswersFile, root: Path) -> Path | None:
    """A file below the data root, as it is or compressed; None where it is not there."""
    plain = root / FOLDER / file.held
    return next((path for path in (plain, plain.with_name(f"{plain.name}.gz")) if path.is_file()), None)


def files_of(claim: Claim, root: Path) -> list[Parsed]:
    """The parsed files of a claim.

    Raises:
        DataError: one of them is missing or cannot be read.
    """
    places = [located(file, root) for file in claim.files]
    missing = [file.held for file, place in zip(claim.files, places, strict=True) if place is None]
    if missing:
        raise DataError(f"{len(missing)} of {len(places)} files are not there, such as {FOLDER}/{missing[0]}")
    return [parsed(place) for place in places if place is not None]


def contents_of(claim: Claim, files: list[Parsed]) -> Contents:
    """The answers of a claim. Raises DataError where its form does not fit the files."""
    return read_declared(files, forms()[claim.form], claim.options)


def chosen(names: Sequence[str]) -> list[Claim]:
    """The claims of these names or data sets; all without any.

    Raises:
        RunError: a name is neither.
    """
    known = claims()
    for name in names:
        if not any(name in (claim.name, claim.dataset) for claim in known):
            raise RunError(f"no claim or data set is called {name!r}; conf/claims/claims.yaml lists them")
    return [claim for claim in known if not names or claim.name in names or claim.dataset in names]
