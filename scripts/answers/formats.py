"""Read a file of published answers in whichever known format it has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_loaders.raw import read_json, read_jsonl
from data_loaders.schema import DataError
from data_loaders.source import file_sha256
from eval.store import RunError
from scripts.answers.mem0 import MEM0
from scripts.answers.omnimemeval import OMNIMEMEVAL
from scripts.answers.ours import OURS
from scripts.answers.records import Answer, Format
from scripts.answers.zep import ZEP

FORMATS: Mapping[str, Format] = {each.name: each for each in (MEM0, ZEP, OMNIMEMEVAL, OURS)}


@dataclass(frozen=True, slots=True)
class AnswerFile:
    """A file of published answers."""

    name: str
    """File name without folders: the folders of this machine are nobody's business."""
    sha256: str
    """Of the file; of a run folder: of the sha256 of each of its prediction files."""
    format: str
    answers: tuple[Answer, ...]


def read_answers(path: Path, wanted: str | None = None) -> AnswerFile:
    """Read a file, or a run folder.

    Args:
        wanted: name of its format; None finds out.

    Raises:
        DataError: the file is damaged.
        RunError: there is no such file, or it has none of the known formats.
    """
    if wanted is not None and wanted not in FORMATS:
        raise RunError(f"format={wanted} is not known; there are: {', '.join(FORMATS)}")
    parts = sorted(path.glob("cases/*/predictions.jsonl")) if path.is_dir() else [path]
    if not parts or not all(part.is_file() for part in parts):
        raise RunError(f"{path}: no such file, and no run folder with predictions")
    raw = _parsed(path, parts)
    found = FORMATS[wanted] if wanted else next((each for each in FORMATS.values() if each.fits(raw)), None)
    if found is None or not found.fits(raw):
        known = "; ".join(f"{each.name}: {each.about}" for each in FORMATS.values())
        raise RunError(f"{path.name} is not in the format {wanted or 'of any known kind'}; formats: {known}")
    try:
        answers = tuple(found.read(raw))
    except DataError as error:
        raise DataError(f"{path.name}: {error}") from error
    sums = [file_sha256(part) for part in parts]
    digest = sums[0] if path.is_file() else hashlib.sha256("\n".join(sums).encode()).hexdigest()
    return AnswerFile(path.name, digest, found.name, answers)


def _parsed(path: Path, parts: list[Path]) -> Any:
    if path.is_file() and path.suffix != ".jsonl":
        return read_json(path)
    return [record for part in parts for record in read_jsonl(part)]
