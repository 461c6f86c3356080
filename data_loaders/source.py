"""Finds and verifies raw files; for a missing file the error names the command that downloads it (see `download.py`).

`manifest.yaml`, in this folder, lists all known files with their sha256. A file with an unknown sha256 is rejected unless the caller
sets `unpinned`, and then has the status "unpinned". Files from a verified archive are verified by the `SHA256SUMS` that was written
when the archive was unpacked.

Some loaders were written from the description of files that this project could not get. Their data sets say so (`untested` in
conf/dataset), and the first run on the real files compares its counts with the counts that the authors published.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import yaml

from data_loaders.schema import Case, DataError

Status = Literal["official", "partial", "excerpt", "derived", "unpinned", "sample"]

SUMS = "SHA256SUMS"
"""File in which the hashes of an archive's members are recorded."""

_UNPINNED = "add data.unpinned=true (in memsys-bench data and memsys-bench fetch: --unpinned)"


@dataclass(frozen=True, slots=True)
class Source:
    """A raw file or folder that may be loaded, and its status."""

    path: Path
    sha256: str
    """For a folder: the sha256 of the lines `<sha256>  <name>` of its known files, sorted by name."""
    status: Status
    note: str = ""


@dataclass(frozen=True, slots=True)
class Located:
    """The files that a data set is loaded from, and the loader's settings."""

    source: Source
    choices: Mapping[str, Any]
    """Settings of the loader: those of the data set, overridden by those of `instead` if that is used."""
    beside: tuple[Source, ...] = ()
    """Further files that the loader reads."""


@dataclass(frozen=True, slots=True)
class Hub:
    """The place of a file on the Hugging Face hub: a file of the repository, or a split to be saved as parquet."""

    repo: str
    revision: str
    file: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True)
class Archive:
    """The place of an archive, and which of its members to unpack."""

    url: str
    into: str
    """Folder below the data root."""
    keep: str
    """Pattern for the end of a member's path; the part that matches becomes the path below `into`."""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or folder of the manifest."""

    file: str
    """Path below the data root."""
    dataset: str
    status: Status
    licence: str
    bytes: int | None = None
    sha256: str = ""
    """Empty if it was never published; `<head>...<tail>` if only its two ends are known."""
    url: str = ""
    hub: Hub | None = None
    archive: Archive | None = None
    note: str = ""

    @property
    def downloadable(self) -> bool:
        return bool(self.url or self.hub or self.archive)


def locate(
    settings: Mapping[str, Any], *, real: bool = True, root: Path | None = None, unpinned: bool = False
) -> Located:
    """The files to load a data set (a file of `conf/dataset`) from: its sample, or with `real` its files below the data root.

    The real files are `file` and those in `also`. If the official release (`file`, or `instead.missing`) is missing and the file that
    `instead` names exists, that one is used.

    Raises DataError as `find` and `sample` do.
    """
    choices = {name: value for name, value in settings["load"].items() if not name.startswith("_")}
    if not real:
        return Located(sample(settings["sample"]), choices)
    file, instead, base = settings["file"], settings.get("instead"), data_root(root)
    if instead and not (base / instead.get("missing", file)).exists() and (base / instead["file"]).exists():
        file, choices = instead["file"], choices | instead.get("load", {})
    beside = tuple(find(name, root=root, unpinned=unpinned) for name in settings.get("also", ()))
    return Located(find(file, root=root, unpinned=unpinned), choices, beside)


def find(file: str, *, root: Path | None = None, unpinned: bool = False) -> Source:
    """The verified file or folder `file` below the data root; an absolute path is used as it is.

    The root is the argument, else the environment variable MEMSYS_DATA, else `memsys-bench` in the user's cache folder. A folder is
    "official" if all its official files exist, and "partial", with a note, if only some known files do.

    Raises DataError if the file is missing, its sha256 differs from the manifest's, or its sha256 is unknown and `unpinned` is False.
    """
    base = data_root(root)
    path = base / file
    if path.is_dir():
        return _folder(file, base, unpinned)
    if not path.is_file():
        named = "" if base != data_root() else "; if you have it, name its folder (--data, data.root= or make … DATA=)"
        raise DataError(f"{path}: no such file. {_remedy(file, base)}{named}")
    return _file(file, base, unpinned)


def sample(name: str) -> Source:
    """A data set's sample, a small history written for this project; `name` is a file or folder in `samples`."""
    path = Path(__file__).parent / "samples" / name
    if path.is_dir():
        return Source(path, _hash_of({below: file_sha256(path / below) for below in names_below(path)}), "sample")
    if not path.is_file():
        raise DataError(f"{path}: no such sample")
    return Source(path, file_sha256(path), "sample")


def data_root(root: Path | None = None) -> Path:
    """The folder that holds the raw files; it may not exist yet."""
    if root is not None:
        return root
    if os.environ.get("MEMSYS_DATA"):
        return Path(os.environ["MEMSYS_DATA"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memsys-bench"


@lru_cache(maxsize=1)
def manifest() -> Mapping[str, Entry]:
    """All known files and folders by their path below the data root."""
    # libyaml's loader is ten times faster, and every script reads the manifest at its start.
    read = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    raw_entries = read((Path(__file__).parent / "manifest.yaml").read_text(encoding="utf-8")).get_single_data()
    parts = {"hub": Hub, "archive": Archive}
    return {
        raw["file"]: Entry(**{name: parts[name](**value) if name in parts else value for name, value in raw.items()})
        for raw in raw_entries
    }


def entries_for(file: str) -> tuple[Entry, ...]:
    """The entries to download to get `file`: its own entry, those of the files below it, or that of the archive that contains it."""
    known = manifest()
    if file in known and known[file].downloadable:
        return (known[file],)
    below = tuple(each for name, each in known.items() if name.startswith(f"{file}/") and each.status == "official")
    if below and all(each.downloadable for each in below):
        return below
    above = (known.get(str(parent)) for parent in PurePosixPath(file).parents)
    return next(((each,) for each in above if each is not None and each.archive is not None), ())


def file_sha256(path: Path) -> str:
    """The hexadecimal sha256 of a file's bytes, cached until the file's size or modification time changes."""
    info = path.stat()
    return _sha256(path, info.st_size, info.st_mtime_ns)


def _file(file: str, root: Path, unpinned: bool) -> Source:
    actual = file_sha256(root / file)
    entry = manifest().get(file)
    expected = (entry.sha256 or _recorded(root, file)) if entry else ""
    if entry and expected and same_hash(expected, actual):
        return Source(root / file, actual, entry.status, entry.note)
    if unpinned:
        return Source(root / file, actual, "unpinned", entry.note if entry else "")
    if not expected:
        raise DataError(
            f"{root / file}: expected a file whose sha256 is in the manifest, found sha256 {actual}. To use the file anyway, {_UNPINNED}"
        )
    raise DataError(
        f"{root / file}: expected sha256 {expected}, found {actual}. Remove the file and download it again "
        f"({_remedy(file, root)}). To use it as it is, {_UNPINNED}"
    )


def _folder(file: str, root: Path, unpinned: bool) -> Source:
    known = {name: entry for name, entry in manifest().items() if name.startswith(f"{file}/")}
    official = [name for name, entry in known.items() if entry.status == "official"]
    present = [name for name in known if (root / name).is_file()]
    missing = [name for name in official if name not in present]
    unknown = _unknown_files(file, root, known)
    if unknown and not unpinned:
        names = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise DataError(
            f"{root / file}: expected files of the manifest only, found {names}. To use them too, {_UNPINNED}"
        )
    if not present and not unknown:
        raise DataError(f"{root / file}: the folder has none of its files. {_remedy(file, root)}")
    used = sorted([*(official if official and not missing else present), *unknown])
    parts = [_file(name, root, unpinned) for name in used]
    digest = _hash_of({name.removeprefix(f"{file}/"): part.sha256 for name, part in zip(used, parts, strict=True)})
    if any(part.status == "unpinned" for part in parts):
        return Source(root / file, digest, "unpinned")
    if missing or not official:
        names = ", ".join(name.removeprefix(f"{file}/") for name in missing)
        return Source(root / file, digest, "partial", f"missing: {names}. {_remedy(file, root)}" if missing else "")
    return Source(root / file, digest, "official")


def _unknown_files(file: str, root: Path, known: Iterable[str]) -> list[str]:
    """Unknown files that a loader could read as data: in the folder of a known file and with its suffix. All files if none is known."""
    names = [f"{file}/{name}" for name in names_below(root / file)]
    places = {(PurePosixPath(name).parent, PurePosixPath(name).suffix) for name in known}
    beside = (name for name in names if (PurePosixPath(name).parent, PurePosixPath(name).suffix) in places)
    return [name for name in beside if name not in known] if places else names


def names_below(folder: Path) -> list[str]:
    """Relative paths of the data files below a folder, without hidden files and unfinished downloads."""
    files = (each for each in folder.rglob("*") if each.is_file() and each.suffix not in (".py", ".pyc", ".part"))
    return sorted(each.relative_to(folder).as_posix() for each in files if not each.name.startswith("."))


def _recorded(root: Path, file: str) -> str:
    """The sha256 that was recorded when a verified archive was unpacked; empty if there is none."""
    for parent in PurePosixPath(file).parents:
        sums = root / parent / SUMS
        if sums.is_file():
            lines = (line.split("  ", 1) for line in sums.read_text(encoding="utf-8").splitlines() if "  " in line)
            return {name: digest for digest, name in lines}.get(str(PurePosixPath(file).relative_to(parent)), "")
    return ""


def _remedy(file: str, root: Path) -> str:
    entries = entries_for(file)
    if entries:
        pinned = all(each.sha256 or (each.archive and each.archive.sha256) for each in entries)
        place = "" if root == data_root() else f" --data {shlex.quote(str(root))}"
        return f"Get it with: python -m scripts fetch {entries[0].dataset}{place}{'' if pinned else ' --unpinned'}"
    entry = manifest().get(file)
    where = f" ({entry.note})" if entry and entry.note else ""
    return f"No public download is known{where}; put the file there yourself"


def same_hash(expected: str, actual: str) -> bool:
    """Whether a sha256 is the expected one, which may be abbreviated as `<head>...<tail>`."""
    head, _, tail = expected.partition("...")
    return actual.startswith(head) and actual.endswith(tail)


def _hash_of(parts: Mapping[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(parts.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


@lru_cache(maxsize=1024)
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


UNTESTED = "data_status: untested on the released files"
"""A text in the caption of every table of such a data set."""


def counts_of(cases: Iterable[Case]) -> Counter[str]:
    """Numbers of histories, sessions, turns and questions; those of each category under its own name."""
    counts: Counter[str] = Counter()
    for case in cases:
        counts["histories"] += 1
        counts["sessions"] += len(case.sessions)
        counts["turns"] += len(case.turns)
        counts["questions"] += len(case.questions)
        counts.update(gold.category for _, gold in case.questions)
    return counts


def compared(published: Mapping[str, int], found: Mapping[str, int]) -> str:
    """A sentence on the published counts: it says that they are the same, or names each count that differs."""
    differing = [
        f"{name} {found.get(name, 0):,} (published {count:,})"
        for name, count in published.items()
        if found.get(name, 0) != count
    ]
    if differing:
        return f"counts differ from the published ones: {', '.join(differing)}"
    return f"counts as published ({', '.join(f'{name} {count:,}' for name, count in published.items())})"
