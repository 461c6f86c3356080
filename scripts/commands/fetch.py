"""Download raw data: `python -m scripts fetch <set>|all [--data ROOT] [--unpinned]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from data_loaders.download import Unreachable, download
from data_loaders.schema import DataError
from data_loaders.source import data_root
from eval.files.store import RunError
from scripts.settings.arguments import as_called
from scripts.settings.checking import nearest
from scripts.setup.downloads import download_names, entries_to_download, set_names

GROUP = "data"


def main(arguments: Sequence[str] | None = None) -> int:
    """Downloads what is missing; returns 1 when anything failed, after trying the rest."""
    parser = argparse.ArgumentParser(prog=as_called("python -m scripts fetch"), description=__doc__)
    parser.add_argument("set", help=f"one of: all, {', '.join(download_names())}")
    parser.add_argument("--data", type=Path, help="data root (default: MEMSYS_DATA, else the user's cache)")
    parser.add_argument("--unpinned", action="store_true", help="accept downloads whose sha256 is not known")
    args = parser.parse_args(arguments)
    if args.set not in ("all", *download_names()):
        known = ", ".join(download_names())
        raise RunError(f"no data set called {args.set!r}{nearest(args.set, download_names())}; there are: {known}")
    return _fetched(args)


def _fetched(args: argparse.Namespace) -> int:
    failed, unreachable = 0, dict[str, None]()
    for name in set_names() if args.set == "all" else [args.set]:
        try:
            for entry in entries_to_download(name):
                print(download(entry, data_root(args.data), unpinned=args.unpinned))
        except Unreachable as error:  # said once, last
            unreachable[str(error)] = None
        except DataError as error:
            print(error, file=sys.stderr)
            failed = 1
        if name == "answers":
            lines, gone = _claims_fetched(data_root(args.data))
            said = [line for line in gone if line not in unreachable]
            for stream, text in ((sys.stdout, lines), (sys.stderr, said)):
                print(*text, sep="\n", end="\n" if text else "", file=stream)
            failed |= bool(gone)
    for sentence in unreachable:
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if failed or unreachable else 0


def _claims_fetched(root: Path) -> tuple[list[str], list[str]]:
    """Get the files of published claims from their owners, one after the other; what was done, and what is gone or another file now."""
    from scripts.answers.fetching import fetch_claims

    return fetch_claims(root)
