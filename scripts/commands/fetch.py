"""Download raw data: `python -m scripts fetch <set>|all [--data ROOT] [--unpinned]`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from data_loaders.download import Unreachable, download
from data_loaders.schema import DataError
from data_loaders.source import Entry, data_root
from eval.files.store import RunError
from eval.report.counted import counted
from scripts.answers.declared import GZIP, unpacked
from scripts.answers.manifest import FOLDER, Claim, claims, located
from scripts.assembly.datasets import NoDownload, download_names, entries_to_download
from scripts.settings.checking import nearest_or_all
from scripts.setup.arguments import verb_parser
from scripts.setup.options import options

GROUP = "data"


def main(arguments: Sequence[str]) -> int:
    """Download the missing files; return 1 if any failed, after trying the rest."""
    parser = verb_parser("fetch", __doc__)
    parser.add_argument("set", help=f"one of: all, {', '.join(download_names())}")
    parser.add_argument("--data", type=Path, help="data root (default: MEMSYS_DATA, else the user's cache)")
    parser.add_argument("--unpinned", action="store_true", help="accept downloads whose sha256 is not known")
    args = parser.parse_args(arguments)
    if args.set not in ("all", *download_names()):
        raise RunError(f"no data set called {args.set!r}{nearest_or_all(args.set, download_names())}")
    failed, unreachable = 0, dict[str, None]()
    for name in options("dataset") if args.set == "all" else [args.set]:
        try:
            for entry in entries_to_download(name):
                print(download(entry, data_root(args.data), unpinned=args.unpinned))
        except Unreachable as error:  # said once, last
            unreachable[str(error)] = None
        except DataError as error:
            print(error, file=sys.stderr)
            failed |= args.set != "all" or not isinstance(error, NoDownload)
        if name == "answers":
            lines, gone = fetch_claims(data_root(args.data))
            said = [line for line in gone if line not in unreachable]
            for stream, text in ((sys.stdout, lines), (sys.stderr, said)):
                print(*text, sep="\n", end="\n" if text else "", file=stream)
            failed |= bool(gone)
    for sentence in unreachable:
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if failed or unreachable else 0


Download = Callable[[Entry, Path], Path]


def fetch_claims(
    root: Path, known: Sequence[Claim] | None = None, get: Download = download
) -> tuple[list[str], list[str]]:
    """Download the files that are missing below the data root; returns lines about downloads, vanished files and changed files.

    Args:
        known: the claims; None takes those of the manifest.
    """
    lines, gone, there = [], [], 0
    away: dict[str | None, str] = {}  # unreachable servers; each is tried once
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
    return [*lines, f"already there: {counted(there, 'file')} of claims"], [*gone, *away.values()]


def _sha256(place: Path) -> str:
    raw = place.read_bytes()
    return hashlib.sha256(unpacked(raw, place.name) if raw.startswith(GZIP) else raw).hexdigest()
