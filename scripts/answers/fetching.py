"""Get the files of published claims from their owners: verified by sha256, and what is gone is said by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from data_loaders.download import Unreachable, download
from data_loaders.schema import DataError
from data_loaders.source import Entry
from scripts.answers.manifest import FOLDER, Claim, claims, located
from scripts.answers.parsing import GZIP, unpacked

Download = Callable[[Entry, Path], Path]


def fetch_claims(
    root: Path, known: Sequence[Claim] | None = None, get: Download = download
) -> tuple[list[str], list[str]]:
    """Download what is missing below the data root; returns what was done, and what is gone or is another file now, as lines.

    Args:
        known: the claims; None takes those of the manifest.
        get: downloads an entry.
    """
    lines, gone, there = [], [], 0
    away: dict[str | None, str] = {}  # servers that cannot be reached, each asked once
    for claim in claims() if known is None else known:
        for file, url in zip(claim.files, claim.urls, strict=True):
            place = located(file, root)
            if place is not None:
                there += 1
                if _sha256(place) != file.sha256:
                    gone.append(f"{claim.name}: {FOLDER}/{file.held} is another file than the manifest names")
            elif claim.extract:
                gone.append(f"{claim.name}: the owner's file is longer than the extract that was scored; see {url}")
            elif urlsplit(url).hostname not in away:
                entry = Entry(
                    f"{FOLDER}/{file.held}", "answers", "official", claim.licence, file.bytes, file.sha256, url
                )
                try:
                    lines.append(str(get(entry, root)))
                except Unreachable as error:
                    away[urlsplit(url).hostname] = str(error)
                except DataError as error:
                    gone.append(f"{claim.name}: {error}")
    return [*lines, f"{there} files of claims were there already"], [*gone, *away.values()]


def _sha256(place: Path) -> str:
    raw = place.read_bytes()
    return hashlib.sha256(unpacked(raw, place.name) if raw.startswith(GZIP) else raw).hexdigest()
