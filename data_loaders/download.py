"""Downloads raw files: from a URL (an interrupted download is resumed), from the Hugging Face hub, or from an untrusted archive."""

from __future__ import annotations

import http.client
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from data_loaders.schema import DataError
from data_loaders.source import SUMS, Archive, Entry, Hub, file_sha256, find, names_below, same_hash

MAX_DOWNLOAD = 8 << 30
MAX_UNPACKED = 2 << 30
MAX_RATIO = 100
"""Maximum ratio of unpacked to packed bytes; dialogue compresses to about a third, a decompression bomb to a thousandth."""
MAX_MEMBERS = 10_000
UNREADABLE = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError, OverflowError,
)  # fmt: skip
"""Errors of the standard library for damaged, encrypted and unsupported archives; ValueError comes from malformed sparse members."""
BLOCK = 1 << 20


class Unreachable(DataError):
    """A server that cannot be reached; its message names no file, and is the same for all files of that server."""


def download(entry: Entry, root: Path, *, unpinned: bool = False) -> Path:
    """Download the entry's file or folder, unless it exists with the right sha256, and return its path.

    An interrupted download of a plain file is resumed; a file is moved to its place only after its sha256 was verified.
    Raises Unreachable for a server that does not answer, and DataError for a failed transfer,
    a wrong sha256, an unsafe archive, and an unknown sha256 if `unpinned` is False.
    """
    target = root / entry.file
    pinned = entry.archive.sha256 if entry.archive else entry.sha256
    if not entry.downloadable:
        raise DataError(f"{entry.file}: no public download is known. {entry.note}")
    if not pinned and not unpinned:
        raise DataError(
            f"{entry.file}: its sha256 is not known, so a download cannot be verified; accept with --unpinned"
        )
    unfinished = target.is_dir() and not names_below(target)  # the empty folder of an interrupted download
    if target.exists() and not unfinished and find(entry.file, root=root, unpinned=unpinned).status != "partial":
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"{entry.file}: licence {entry.licence}", file=sys.stderr)
    if entry.archive is not None:
        _download_archive(entry.archive, root)
    elif entry.hub is not None:
        _into_place(_from_hub(entry.hub, target), target, entry.sha256)
    else:
        part = target.with_name(target.name + ".part")
        _transfer(entry.url, part, limit=entry.bytes or MAX_DOWNLOAD, resume=bool(pinned))
        _into_place(part, target, entry.sha256)
    return target


def unpack(archive: Path, into: Path, keep: str = "") -> tuple[str, ...]:
    """Unpack the members of a zip or tar archive whose path ends match `keep`; returns their paths below `into`.

    Without `keep`, every member is unpacked, at its whole path.

    Files are moved to their places only after all members are unpacked.
    Raises DataError for links, special files, paths outside the folder, and too many members or bytes.
    """
    into.mkdir(parents=True, exist_ok=True)
    depth = len(PurePosixPath(keep).parts)
    taken: list[str] = []
    with tempfile.TemporaryDirectory(dir=into, prefix=".unpacking-") as scratch:
        try:
            for member in _members(archive):
                path = PurePosixPath(member.name)
                if keep and not path.match(keep):
                    continue
                name = str(PurePosixPath(*path.parts[-depth:]))  # without `keep`, depth is 0 and the path whole
                if name in taken:
                    raise DataError(f"{archive.name}: expected one member {name}, found two")
                _copy_member(member, Path(scratch) / name, archive.name)
                taken.append(name)
        except DataError:
            raise
        except UNREADABLE as error:
            raise DataError(
                f"{archive.name}: expected a readable zip or tar archive, found: {error}. Run the same command again to download it again"
            ) from error
        if not taken:
            raise DataError(f"{archive.name}: expected members{keep and f' named {keep}'}, found none")
        for name in taken:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(scratch) / name, into / name)
    return tuple(sorted(taken))


def _into_place(part: Path, target: Path, expected: str) -> None:
    actual = file_sha256(part)
    if expected and not same_hash(expected, actual):
        part.unlink()
        raise DataError(f"{target.name}: expected sha256 {expected}, downloaded {actual}; the download was removed")
    if not expected:
        print(f"{target.name}: not pinned, sha256 {actual}", file=sys.stderr)
    os.replace(part, target)


def _transfer(url: str, part: Path, *, limit: int, resume: bool) -> None:
    """Download the URL into `part`, with `resume` from where that file ends. Raises DataError if the download is not completed."""
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
            length = response.length  # None where the header is missing or is no number
            _pour(response, part, start, None if length is None else start + length, limit)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing is left to download; the sha256 shows whether the part is right
            raise DataError(f"{url}: expected the file, found HTTP status {error.code}") from error
    except urllib.error.URLError as error:  # no connection was made
        host = urlsplit(url).hostname
        raise Unreachable(
            f"{host} cannot be reached ({error.reason}); once it can, run the same command again"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{url}: the download broke off ({error}); run the same command again to resume it") from error


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
        raise ConnectionError(f"received {have:,} of {end:,} bytes")


def _checked(url: str) -> str:
    """Return the URL if it is HTTPS, or plain HTTP on this machine. Raises DataError otherwise."""
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
    except (OSError, ValueError) as error:  # of both libraries, for the network, the name or the disk
        raise DataError(f"{hub.repo} at {hub.revision}: expected a download from the hub, found: {error}") from error
    return part


def _download_archive(archive: Archive, root: Path) -> None:
    into = root / archive.into
    into.mkdir(parents=True, exist_ok=True)
    packed = into / PurePosixPath(urlsplit(archive.url).path).name
    part = packed.with_name(packed.name + ".part")
    _transfer(archive.url, part, limit=MAX_DOWNLOAD, resume=bool(archive.sha256))
    _into_place(part, packed, archive.sha256)
    try:
        names = unpack(packed, into, archive.keep)
    finally:
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
    """The files of an archive; each can be read until the iterator moves on to the next."""
    budget = min(MAX_UNPACKED, MAX_RATIO * archive.stat().st_size)
    members = _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)
    for number, member in enumerate(members, 1):
        budget -= member.size  # the declared size, which `_copy_member` enforces
        if number > MAX_MEMBERS or budget < 0:
            raise DataError(f"{archive.name}: expected a data archive, found a bomb (too many members or bytes)")
        yield member


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as tar:
        for info in tar:
            plain = (info.isfile() and not info.issparse()) or info.isdir()
            name = _safe(info.name, archive.name, regular=plain)
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
    """Copy at most the declared size, so that a member with a false size cannot fill the disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    left = member.size
    with target.open("wb") as out:
        while block := member.content.read(BLOCK):
            left -= len(block)
            if left < 0:
                raise DataError(f"{archive}: member {member.name} is larger than it declares")
            out.write(block)
