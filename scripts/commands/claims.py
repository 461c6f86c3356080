"""Audit published claims from their own answers: `python -m scripts claims [NAME … | --head] [--judge JUDGE … key=value …]`.

For every claim of `conf/claims/claims.yaml` whose files are below the data root (`fetch answers` gets them from their owners): how many
answers and how many of them belong to a question, every printed score against the file's own mean, official F1, plain F1, BLEU-1, ROUGE-L,
how often the system says that it does not know, length, recalled tokens, intervals by conversation, and flags. Then what only many files
show: the judge against F1 with length held equal, leniency, the spread of one product. No model is called, unless `--judge` asks for one.

Prints the tables and writes `claims.md`, `claims.json` and `claims.csv` into RESULTS/claims. Intervals are 95 %, by conversation; `detects`
is the paired difference that these questions show with 80 % power.

With `--judge mem0` (a file of conf/judge, or `file@model`; repeatable) the answers are judged again, the plan is priced and asked
for first, and every grader stands beside the others with kappa (`scripts.lab.rejudging`); `rejudged.md` is written. Settings such as
`models.judge=gpt-4o-mini` and `yes=true` are those of `memsys-bench run`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from data_loaders.source import data_root
from eval.files.store import RunError, replace_file
from scripts.answers.claim_head import NAMES as HEAD_NAMES
from scripts.answers.claim_head import head
from scripts.answers.claim_tables import FULL_CONTEXT, Row, analysis, as_csv, as_json, inert, rows_of, table
from scripts.answers.manifest import Claim, chosen
from scripts.answers.scoring import ScoredClaim, refuse_none, scored_claims
from scripts.settings.arguments import whole

GROUP = "publish"

HEAD = (
    "Every number is made from the answers that the named repository published. F1 is LoCoMo's official score (its token F1 on the "
    "other data sets), over answerable questions; `judge` is the verdict stored in the file; `unknown` is the share of answers that say "
    "so; rows marked bar are full context, no memory."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit, print and write; 1 when files or verdicts are missing, 2 when the input is wrong, 3 when a plan is declined."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims by name, or a data set (default: all)")
    parser.add_argument(
        "--judge", action="append", default=[], help="judge the answers again; settings key=value may follow"
    )
    parser.add_argument(
        "--data", type=Path, help="folder of the raw files (default: MEMSYS_DATA, else the download folder)"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="claims/ is written into it")
    parser.add_argument("--workers", type=whole(1, 64), default=min(2, os.cpu_count() or 1), help="processes")
    parser.add_argument(
        "--head", action="store_true", help="eight claims, 80 columns wide, as in README; writes nothing"
    )
    args = parser.parse_intermixed_args(arguments)
    return _audit(args)


def _audit(args: argparse.Namespace) -> int:
    settings = [name for name in args.names if "=" in name]
    wanted = chosen(HEAD_NAMES if args.head else [name for name in args.names if "=" not in name])
    if args.judge:
        return _judged(wanted, args, settings)
    if settings:
        raise RunError(f"{settings[0]}: settings belong to --judge")
    scored, missing = scored_claims(wanted, data_root(args.data), args.workers)
    refuse_none(scored, missing)
    if args.head:
        print(head(rows_of(scored)))
        return 1 if missing else 0
    text, rows = page(scored, missing)
    folder = args.results / "claims"
    for name, content in (("claims.md", text), ("claims.json", as_json(rows, missing)), ("claims.csv", as_csv(rows))):
        replace_file(folder / name, content)
    print(text)
    print(f"\nwritten: {folder}/claims.md, claims.json, claims.csv ({len(rows)} claims)")
    return 1 if missing else 0


def _judged(wanted: Sequence[Claim], args: argparse.Namespace, settings: Sequence[str]) -> int:
    from scripts.assembly.datasets import check_data_root
    from scripts.lab.lab import Lab
    from scripts.lab.rejudging import rejudge

    data = [f"data.root={args.data}"] if args.data else []
    whole = (
        "data.source=real",
        "data.size=all",
        "data.max_cases=null",
        "data.transform=none",
    )  # whatever a profile cuts
    lab = Lab(f"results={args.results}", *settings, *whole, *data)
    text, code = rejudge(wanted, args.judge, lab, data_root(check_data_root(lab.cfg.data)))
    if text:
        place = Path(lab.cfg.results) / "claims" / "rejudged.md"
        replace_file(place, text)
        print(f"{text}\nwritten: {place}")
    return code


def page(scored: Sequence[ScoredClaim], missing: dict[str, str]) -> tuple[str, list[Row]]:
    """The whole Markdown page and its rows."""
    rows = rows_of(scored)
    parts = ["# Published claims, audited from their own answers", "", HEAD, ""]
    for dataset in dict.fromkeys(each.claim.dataset for each in scored):
        own = [row for row in rows if row.scored.claim.dataset == dataset]
        bars = [row for row in own if row.scored.claim.product == FULL_CONTEXT]
        parts += [table(f"claims_{dataset.lower()}", own), ""]
        parts += [] if bars else ["No full-context run of this data set is in the collection.", ""]
    parts.append(analysis(scored))
    if missing:
        parts += ["", "## Not there", "", *(f"- {inert(name)}: {inert(why)}" for name, why in missing.items())]
    return "\n".join(parts), rows
