"""Download raw data: `python -m scripts fetch <set>|all [--data ROOT] [--unpinned]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from data_loaders.download import download
from data_loaders.schema import DataError
from data_loaders.source import data_root
from scripts.settings.arguments import as_called
from scripts.setup.downloads import download_names, entries_to_download, set_names

GROUP = "data"


def main(arguments: Sequence[str] | None = None) -> int:
    """Downloads what is missing; returns 1 when anything failed, after trying the rest."""
    parser = argparse.ArgumentParser(prog=as_called("python -m scripts fetch"), description=__doc__)
    parser.add_argument("set", help=f"one of: all, {', '.join(download_names())}")
    parser.add_argument("--data", type=Path, help="data root (default: MEMSYS_DATA, else the user's cache)")
    parser.add_argument("--unpinned", action="store_true", help="accept downloads whose sha256 is not known")
    args = parser.parse_args(arguments)
    return _fetched(args)


def _fetched(args: argparse.Namespace) -> int:
    failed = 0
    for name in set_names() if args.set == "all" else [args.set]:
        try:
            for entry in entries_to_download(name):
                print(download(entry, data_root(args.data), unpinned=args.unpinned))
        except DataError as error:
            print(error, file=sys.stderr)
            failed = 1
        if name == "answers":
            failed |= _claims_fetched(data_root(args.data))
    return failed


def _claims_fetched(root: Path) -> int:
    """Get the files of published claims from their owners, one after the other; 1 when some are gone or are others now."""
    from scripts.answers.fetching import fetch_claims

    lines, gone = fetch_claims(root)
    print("\n".join(lines))
    print("\n".join(gone), file=sys.stderr)
    return 1 if gone else 0
