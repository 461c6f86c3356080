"""Raw files found, verified and downloaded; what is not there comes back as the command that gets it.

`manifest.yaml` beside this module lists every file we know by its sha256. A file whose hash is not known is refused unless
the caller says `unpinned`, and is then labelled so. Files taken out of a verified archive are known by the `SHA256SUMS`
that unpacking leaves beside them.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shlex
import shutil
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal
from urllib.parse import urlsplit

import yaml

from data_loaders.schema import DataError

Status = Literal["official", "partial", "excerpt", "derived", "unpinned", "sample"]

SUMS = "SHA256SUMS"
MAX_DOWNLOAD = 8 << 30
MAX_UNPACKED = 2 << 30
MAX_RATIO = 100
"""Unpacked bytes per packed byte; dialogue compresses to about a third, a bomb to a thousandth."""
MAX_MEMBERS = 10_000
UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)
"""What the standard library raises for damaged, encrypted and unsupported archives."""
BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """A raw file or folder that may be loaded, and what it is."""

    path: Path
    sha256: str
    """Of a folder: the hash of the lines `<sha256>  <name>` of its known files, sorted by name."""
    status: Status
    note: str = ""


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
        return Source(path, _hash_of({each: file_sha256(path / each) for each in _names_below(path)}), "sample")
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


def download(entry: Entry, root: Path, *, unpinned: bool = False) -> Path:
    """The path of the entry's file or folder, downloaded unless it is already there with the right hash.

    A plain file is resumed where an earlier attempt broke off, and moved into place only after its hash was checked.
    Raises DataError for a failed transfer, a wrong hash, an unsafe archive, and an unknown hash that is not `unpinned`.
    """
    target = root / entry.file
    pinned = entry.archive.sha256 if entry.archive else entry.sha256
    if not entry.downloadable:
        raise DataError(f"{entry.file}: no public download is known. {entry.note}")
    if not pinned and not unpinned:
        raise DataError(
            f"{entry.file}: its sha256 is not known, so a download cannot be verified; accept with --unpinned"
        )
    if target.exists() and find(entry.file, root=root, unpinned=unpinned).status != "partial":
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _say(f"{entry.file}: licence {entry.licence}")
    if entry.archive is not None:
        _download_archive(entry.archive, root)
    elif entry.hub is not None:
        _into_place(_from_hub(entry.hub, target), target, entry.sha256)
    else:
        part = target.with_name(target.name + ".part")
        _transfer(entry.url, part, limit=entry.bytes or MAX_DOWNLOAD, resume=bool(pinned))
        _into_place(part, target, entry.sha256)
    return target


def unpack(archive: Path, into: Path, keep: str) -> tuple[str, ...]:
    """The paths below `into` of the members taken out of a zip or tar archive.

    A member is taken when the end of its path matches `keep`. Nothing is put in place before all is unpacked.
    Raises DataError for links, special files, paths that leave the folder, and for more members or bytes than allowed.
    """
    into.mkdir(parents=True, exist_ok=True)
    depth = len(PurePosixPath(keep).parts)
    taken: list[str] = []
    with tempfile.TemporaryDirectory(dir=into, prefix=".unpacking-") as scratch:
        try:
            for member in _members(archive):
                if not PurePosixPath(member.name).match(keep):
                    continue
                name = str(PurePosixPath(*PurePosixPath(member.name).parts[-depth:]))
                if name in taken:
                    raise DataError(f"{archive.name}: expected one member {name}, found two")
                _copy_member(member, Path(scratch) / name, archive.name)
                taken.append(name)
        except UNREADABLE as error:
            raise DataError(f"{archive.name}: expected a readable zip or tar archive, found: {error}") from error
        if not taken:
            raise DataError(f"{archive.name}: expected members named {keep}, found none")
        for name in taken:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(scratch) / name, into / name)
    return tuple(sorted(taken))


# --- verifying ---


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
    if entry and expected and _same(expected, found):
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
    names = [f"{file}/{name}" for name in _names_below(root / file)]
    places = {(PurePosixPath(name).parent, PurePosixPath(name).suffix) for name in known}
    beside = (name for name in names if (PurePosixPath(name).parent, PurePosixPath(name).suffix) in places)
    return [name for name in beside if name not in known] if places else names


def _names_below(folder: Path) -> list[str]:
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
        place = "" if root == data_root() else f" --root {shlex.quote(str(root))}"
        return f"Get it with: python -m scripts.fetch {entries[0].dataset}{place}{'' if pinned else ' --unpinned'}"
    entry = manifest().get(file)
    where = f" ({entry.note})" if entry and entry.note else ""
    return f"No public download is known{where}: put it there yourself"


def _same(expected: str, found: str) -> bool:
    head, _, tail = expected.partition("...")
    return found.startswith(head) and found.endswith(tail)


def _hash_of(parts: Mapping[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(parts.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


@lru_cache(maxsize=1024)
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- downloading ---


def _into_place(part: Path, target: Path, expected: str) -> None:
    found = file_sha256(part)
    if expected and not _same(expected, found):
        part.unlink()
        raise DataError(f"{target.name}: expected sha256 {expected}, downloaded {found}; the download was removed")
    if not expected:
        _say(f"{target.name}: not pinned, sha256 {found}")
    os.replace(part, target)


def _transfer(url: str, part: Path, *, limit: int, resume: bool) -> None:
    """Fills `part` from the URL, going on where it ends when `resume`. Raises DataError when it cannot be completed."""
    if not resume:
        part.unlink(missing_ok=True)
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(_checked(url), headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            _checked(response.url)
            # A server that ignores the range answers 200 with the whole file.
            start = have if response.status == 206 else 0
            if start and not str(response.headers.get("Content-Range")).startswith(f"bytes {start}-"):
                raise ConnectionError(f"expected the bytes from {start:,} on")
            length = response.headers.get("Content-Length")
            end = start + int(length) if length else None
            _pour(response, part, start, end, limit)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # asked for bytes behind the end: the part is whole, or its hash will tell
            raise DataError(f"{url}: expected the file, found HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{url}: the download broke off ({error}); run the same command again to go on") from error


def _pour(response: IO[bytes], part: Path, start: int, end: int | None, limit: int) -> None:
    from rich.console import Console
    from rich.progress import Progress

    with part.open("ab" if start else "wb") as out, Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(part.name.removesuffix(".part"), total=end, completed=start)
        have = start
        while block := response.read(BLOCK):
            have += len(block)
            if have > limit:
                raise DataError(f"{part.name}: expected at most {limit:,} bytes, found more")
            out.write(block)
            progress.update(bar, completed=have)
    if end is not None and have < end:
        raise ConnectionError(f"{have:,} of {end:,} bytes came")


def _checked(url: str) -> str:
    """The URL itself. Raises DataError unless it is HTTPS, or plain HTTP on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname == "127.0.0.1"):
        return url
    raise DataError(f"{url}: expected an https address")


def _from_hub(hub: Hub, target: Path) -> Path:
    part = target.with_name(target.name + ".part")
    try:
        if hub.split:
            import datasets

            datasets.load_dataset(hub.repo, revision=hub.revision, split=hub.split).to_parquet(part)
        else:
            import huggingface_hub

            cached = huggingface_hub.hf_hub_download(hub.repo, hub.file, repo_type="dataset", revision=hub.revision)
            shutil.copyfile(cached, part)
    except (OSError, ValueError) as error:  # what both libraries raise for a closed network, a wrong name, a full disk
        raise DataError(f"{hub.repo} at {hub.revision}: expected a download from the hub, found: {error}") from error
    return part


def _download_archive(archive: Archive, root: Path) -> None:
    into = root / archive.into
    into.mkdir(parents=True, exist_ok=True)
    packed = into / PurePosixPath(urlsplit(archive.url).path).name
    part = packed.with_name(packed.name + ".part")
    _transfer(archive.url, part, limit=MAX_DOWNLOAD, resume=bool(archive.sha256))
    _into_place(part, packed, archive.sha256)
    names = unpack(packed, into, archive.keep)
    packed.unlink()
    if archive.sha256:
        lines = (f"{file_sha256(into / name)}  {name}\n" for name in names)
        (into / SUMS).write_text("".join(lines), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    size: int
    content: IO[bytes]


def _members(archive: Path) -> Iterator[_Member]:
    """The files in an archive, each readable until the next is asked for."""
    budget = min(MAX_UNPACKED, MAX_RATIO * archive.stat().st_size)
    members = _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)
    for number, member in enumerate(members, 1):
        budget -= member.size  # as declared; `_copy_member` holds it to that
        if number > MAX_MEMBERS or budget < 0:
            raise DataError(f"{archive.name}: expected a data archive, found a bomb (too many members or bytes)")
        yield member


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as tar:
        for info in tar:
            name = _safe(info.name, archive.name, regular=info.isfile() or info.isdir())
            content = tar.extractfile(info) if info.isfile() else None
            if content is not None:
                yield _Member(name, info.size, content)


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            name = _safe(info.filename, archive.name, regular=kind in (0, stat.S_IFREG, stat.S_IFDIR))
            if not info.is_dir():
                with packed.open(info) as content:
                    yield _Member(name, info.file_size, content)


def _safe(name: str, archive: str, *, regular: bool) -> str:
    path = PurePosixPath(name)
    if not regular or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise DataError(f"{archive}: expected plain files with relative paths, found {name!r}")
    return name


def _copy_member(member: _Member, target: Path, archive: str) -> None:
    """Copies at most the declared size, so that a member that lies about it cannot fill the disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    left = member.size
    with target.open("wb") as out:
        while block := member.content.read(BLOCK):
            left -= len(block)
            if left < 0:
                raise DataError(f"{archive}: member {member.name} is larger than it declares")
            out.write(block)


def _say(line: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(line, markup=False, highlight=False)
