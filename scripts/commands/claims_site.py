"""Show the audit of published claims as a static site: `python -m scripts claims-site [NAME …] [--data ROOT] [--date DAY]`.

The numbers are those of `memsys-bench claims`. If `claims NAME --judge` has judged answers again and saved the verdicts in RESULTS, the
page of the claim shows every grader. The site opens from the disk or from any static host and sends no request to another server.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from data_loaders.source import data_root
from eval.files.store import RunError
from scripts.answers.claim_tables import rows_of
from scripts.answers.feed import DAY
from scripts.answers.graders import kept
from scripts.answers.manifest import chosen
from scripts.answers.scoring import refuse_none, scored_claims
from scripts.answers.site import Wanted, build
from scripts.setup.arguments import add_data_folder, verb_parser, whole

GROUP = "publish"


def main(arguments: Sequence[str]) -> int:
    """Build the site and print its path; return 1 if the files of a claim are missing, 2 if the input is wrong."""
    parser = verb_parser("claims-site", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims by name, or a data set (default: all)")
    add_data_folder(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), help="claims_site/ is written into it")
    parser.add_argument("--out", type=Path, help="folder of the site (default: RESULTS/claims_site)")
    parser.add_argument("--date", type=_day, help="day of what has changed, YYYY-MM-DD (default: that of the manifest)")
    parser.add_argument("--url", default="", help="address that the site will have, for the links of the feed")
    parser.add_argument("--contact", default="", help="where corrections go: an address or a sentence, on every page")
    parser.add_argument(
        "--commercial", action="store_true", help="for a commercial host: leave out texts under non-commercial licences"
    )
    parser.add_argument("--workers", type=whole(1, 64), default=min(2, os.cpu_count() or 1), help="processes")
    args = parser.parse_args(arguments)
    if args.url and not args.url.startswith(("https://", "http://")):
        raise RunError(f"--url: expected an address that begins with https://, found {args.url!r}")
    scored, missing = scored_claims(chosen(args.names), data_root(args.data), args.workers)
    refuse_none(scored, missing)
    base = f"{args.url.rstrip('/')}/" if args.url else ""
    private = (args.results, args.data, os.environ.get("MEMSYS_DATA"))
    wanted = Wanted(args.date, base, args.contact, args.commercial, private)
    judged = {each.claim.name: found for each in scored if (found := kept(args.results, each.claim))}
    page = build(scored, rows_of(scored), missing, args.out or args.results / "claims_site", wanted, judged)
    print(f"{len(scored)} claims; open in a browser: {page}")
    for name, why in missing.items():
        print(f"not there: {name}: {why}")
    return 1 if missing else 0


def _day(text: str) -> str:
    if not DAY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected a day such as 2026-11-24, found {text!r}")
    return text
