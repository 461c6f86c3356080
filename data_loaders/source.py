"""Raw files found and verified; what is not there comes back as the command that gets it (`download.py` does).

`manifest.yaml` beside this module lists every file we know by its sha256. A file whose hash is not known is refused unless
the caller says `unpinned`, and is then labelled so. Files taken out of a verified archive are known by the `SHA256SUMS`
that unpacking leaves beside them.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import yaml

from data_loaders.schema import DataError

Status = Literal["official", "partial", "excerpt", "derived", "unpinned", "sample"]

SUMS = "SHA256SUMS"


@dataclass(frozen=True, slots=True)
class Source:
    """A raw file or folder that may be loaded, and what it is."""

    path: Path
    sha256: str
    """Of a folder: the hash of the lines `<sha256>  <name>` of its known files, sorted by name."""
    status: Status
    note: str = ""


@dataclass(frozen=True, slots=True)
class Located:
    """What a data set is loaded from."""

    source: Source
    choices: Mapping[str, Any]
    """Settings of the loader: those of the data set, and over them those of what is taken instead."""
    beside: tuple[Source, ...] = ()
    """Further files that the loader reads."""


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a file stands on the Hugging Face hub: a file of the repository, or a split written out as parquet."""

    repo: str
    revision: str
    file: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True)
class Archive:
    """Where an archive stands, and which of its members are wanted."""

    url: str
    into: str
    """Folder below the data root."""
    keep: str
    """Pattern for the end of a member's path; what it matches is the member's path below `into`."""
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
    """Empty when nobody published it; `<head>...<tail>` where only the ends are known."""
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
    """What a data set (a file of `conf/dataset`) is loaded from: its sample, or its real files below the data root.

    Of the real ones: `file` and those in `also`; while the official release (`file`, or `instead.missing`) is not there, what
    `instead` names, if that is there.

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
    """The verified file or folder `file` below the data root.

    The root is the argument, else the environment's MEMSYS_DATA, else `memsys-bench` in the user's cache. A folder is
    "official" when all its official files are there, and "partial", with a note, when only some known files are.

    Raises DataError for what is missing, has another hash than the manifest's, or has an unknown one and is not `unpinned`.
    """
    base = data_root(root)
    path = base / file
    if path.is_dir():
        return _folder(file, base, unpinned)
    if not path.is_file():
        raise DataError(f"{path}: no such file. {_remedy(file, base)}")
    return _file(file, base, unpinned)


def sample(name: str) -> Source:
    """The small history written for this project that stands in for a data set; `name` is a file or folder in `samples`."""
    path = Path(__file__).parent / "samples" / name
    if path.is_dir():
        return Source(path, _hash_of({each: file_sha256(path / each) for each in names_below(path)}), "sample")
    if not path.is_file():
        raise DataError(f"{path}: no such sample")
    return Source(path, file_sha256(path), "sample")


def data_root(root: Path | None = None) -> Path:
    """The folder that raw files live in; it need not exist."""
    if root is not None:
        return root
    if os.environ.get("MEMSYS_DATA"):
        return Path(os.environ["MEMSYS_DATA"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memsys-bench"


@lru_cache(maxsize=1)
def manifest() -> Mapping[str, Entry]:
    """Every known file and folder by its path below the data root."""
    safe = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times faster, and this is read at every start
    raw = safe((Path(__file__).parent / "manifest.yaml").read_text(encoding="utf-8")).get_single_data()
    return {each["file"]: _entry(each) for each in raw}


def entries_for(file: str) -> tuple[Entry, ...]:
    """The entries to download so that `file` exists: its own, those below it, or else the archive above it."""
    known = manifest()
    if file in known and known[file].downloadable:
        return (known[file],)
    below = tuple(each for name, each in known.items() if name.startswith(f"{file}/") and each.status == "official")
    if below and all(each.downloadable for each in below):
        return below
    above = (known.get(str(parent)) for parent in PurePosixPath(file).parents)
    return next(((each,) for each in above if each is not None and each.archive is not None), ())


def file_sha256(path: Path) -> str:
    """The hexadecimal sha256 of a file's bytes, remembered for as long as size and time of the file stay."""
    info = path.stat()
    return _sha256(path, info.st_size, info.st_mtime_ns)


def _entry(raw: dict[str, Any]) -> Entry:
    fields = dict(raw)
    if "hub" in fields:
        fields["hub"] = Hub(**fields["hub"])
    if "archive" in fields:
        fields["archive"] = Archive(**fields["archive"])
    return Entry(**fields)


def _file(file: str, root: Path, unpinned: bool) -> Source:
    found = file_sha256(root / file)
    entry = manifest().get(file)
    expected = (entry.sha256 or _recorded(root, file)) if entry else ""
    if entry and expected and same_hash(expected, found):
        return Source(root / file, found, entry.status, entry.note)
    if unpinned:
        return Source(root / file, found, "unpinned", entry.note if entry else "")
    if not expected:
        raise DataError(f"{root / file}: sha256 {found} is not one we know; say unpinned to use the file all the same")
    raise DataError(
        f"{root / file}: expected sha256 {expected}, found {found}. Remove the file and get it again "
        f"({_remedy(file, root)}), or say unpinned to use it as it is"
    )


def _folder(file: str, root: Path, unpinned: bool) -> Source:
    known = {name: entry for name, entry in manifest().items() if name.startswith(f"{file}/")}
    official = [name for name, entry in known.items() if entry.status == "official"]
    present = [name for name in known if (root / name).is_file()]
    missing = [name for name in official if name not in present]
    unknown = _unknown_files(file, root, known)
    if unknown and not unpinned:
        raise DataError(f"{root / file}: found files we do not know ({', '.join(unknown)}); say unpinned to use them")
    if not present and not unknown:
        raise DataError(f"{root / file}: none of its files is there. {_remedy(file, root)}")
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
    """Files that a loader could take for data: beside a known file and with its suffix; all of them where none is known."""
    names = [f"{file}/{name}" for name in names_below(root / file)]
    places = {(PurePosixPath(name).parent, PurePosixPath(name).suffix) for name in known}
    beside = (name for name in names if (PurePosixPath(name).parent, PurePosixPath(name).suffix) in places)
    return [name for name in beside if name not in known] if places else names


def names_below(folder: Path) -> list[str]:
    """Paths of the data files below a folder, without hidden files and downloads under way."""
    files = (each for each in folder.rglob("*") if each.is_file() and each.suffix not in (".py", ".pyc", ".part"))
    return sorted(each.relative_to(folder).as_posix() for each in files if not each.name.startswith("."))


def _recorded(root: Path, file: str) -> str:
    """The hash that unpacking a verified archive recorded for the file; empty when there is none."""
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
        return f"Get it with: python -m scripts.fetch {entries[0].dataset}{place}{'' if pinned else ' --unpinned'}"
    entry = manifest().get(file)
    where = f" ({entry.note})" if entry and entry.note else ""
    return f"No public download is known{where}: put it there yourself"


def same_hash(expected: str, found: str) -> bool:
    head, _, tail = expected.partition("...")
    return found.startswith(head) and found.endswith(tail)


def _hash_of(parts: Mapping[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(parts.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


@lru_cache(maxsize=1024)
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
