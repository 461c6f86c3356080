"""Audit published claims from their own answers: `python -m scripts claims [NAME … | --head] [--judge JUDGE … key=value …]`.

For every claim of `conf/claims/claims.yaml` whose files are below the data root (`fetch answers` gets them from their owners): numbers of
answers with and without a question, every printed score against the file's own mean, official F1, plain F1, BLEU-1, ROUGE-L, the share of
"I do not know" answers, length, recalled tokens, intervals by conversation, and flags. Then an analysis over many files: the judge against
F1 at equal length, leniency, the spread of one product. No model is called without `--judge`.

Prints the tables and writes `claims.md`, `claims.json` and `claims.csv` into RESULTS/claims. Intervals are 95 %, by conversation (by
question where a file has one); `detects` is the paired difference that these questions detect with 80 % power.

With `--judge mem0` (a file of conf/judge, or `file@model`; repeatable) the answers are judged again. The plan is priced and confirmed
first, and all graders are compared, with kappa (`scripts.lab.rejudging`); `rejudged.md` is written. Settings such as
`models.judge=gpt-4o-mini` and `yes=true` are those of `memsys-bench run`.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from data_loaders.source import data_root
from eval.files.store import RunError, replace_file
from eval.report.counted import counted
from eval.report.rendering import number
from memsys.inert import visible
from scripts.answers.claim_tables import FULL_CONTEXT, Row, analysis, as_csv, as_json, inert, rows_of, table
from scripts.answers.manifest import Claim, chosen
from scripts.answers.scoring import ScoredClaim, scored_claims
from scripts.setup.arguments import add_data_folder, verb_parser, whole

GROUP = "publish"

HEAD = (
    "Every number is made from the answers that the named repository published. F1 is LoCoMo's official score (its token F1 on the "
    "other data sets), over answerable questions, BEAM's abstentions among them; `judge` is the verdict stored in the file; `unknown` "
    "is the share of answers that say so; rows marked bar are full context, no memory. Intervals are by conversation, by question where "
    "a file has one. Each interval of 95 % is for its own cell: of twenty, one misses on average, and the first rows of many stand too "
    "high."
)


HEAD_NAMES = (
    "full-context-run-by-mirix-authors",
    "trpc-agent-go-long-context",
    "memorylake",
    "mem0-platform-top-200",
    "mem0-run-by-mirix-authors",
    "mem0-answers-with-human-failure-labels",
    "total-agent-memory-v11",
    "gpt-5-nano-evidence-judge-without-key",
)
"""Full context with long and with short answers; a memory; one name from three harnesses, once with people as judges; a mean that questions
without an answer raise; a score of 100 %. The rows of `--head`."""
WIDTH = 80
COLUMNS = ("product · who published", "printed", "file", "judge", "F1", "words")
WIDTHS = (33, 7, 6, 5, 5, 5)
"""Widths of the columns in characters; with rules and spaces they make a line of `WIDTH`."""


def head(rows: Sequence[Row]) -> str:
    """The table in the order of `HEAD_NAMES`, and below it a line for each row with a remark; no line is wider than 80 characters."""
    by_name = {row.scored.claim.name: row for row in rows}
    own = [by_name[name] for name in HEAD_NAMES if name in by_name]
    rule = [f"{'-' * (WIDTHS[0] + 2)}", *(f"{'-' * (width + 1)}:" for width in WIDTHS[1:])]
    lines = [_line(COLUMNS), f"|{'|'.join(rule)}|"]
    lines += [_line(_cells(row)) for row in own]
    for row in own:
        if remarks := _remarks(row):
            lines += ["", *_wrapped(remarks)] if lines[-1].startswith("|") else _wrapped(remarks)
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    numbers = (cell.rjust(width) for cell, width in zip(cells[1:], WIDTHS[1:], strict=True))
    return f"| {cells[0].ljust(WIDTHS[0])} | {' | '.join(numbers)} |"


def _label(row: Row) -> str:
    claim = row.scored.claim
    return " ".join(visible(f"{claim.product} · {claim.by}").split()).replace("|", "/")[: WIDTHS[0]]


def _cells(row: Row) -> list[str]:
    first, f1 = row.first, row.measures["f1"]
    return [
        _label(row),
        "–" if first is None else first.printed.text,
        number(row.file, first.printed.digits if first else 3),
        number(None if row.answerable is None else row.answerable.mean),
        number(None if f1 is None else f1.mean),
        f"{row.words:.0f}",
    ]


def _remarks(row: Row) -> str:
    """Statuses that are not `supported`, flags and the manifest's note."""
    told = [
        f"{each.printed.text} is {each.status}"
        if each.status == "not supported by this file"
        else f"{each.printed.text}: {each.status}"
        for each in row.findings
        if each.status != "supported"
    ]
    told += [*row.flags, *([row.scored.claim.note] if row.scored.claim.note else [])]
    return f"- {inert(_label(row))}: {inert('; '.join(told))}" if told else ""


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=True, break_on_hyphens=False)


def main(arguments: Sequence[str]) -> int:
    """Audit, print and write; return 1 if files or verdicts are missing, 2 if the input is wrong, 3 if a plan is declined."""
    parser = verb_parser("claims", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims by name, or a data set (default: all)")
    parser.add_argument(
        "--judge", action="append", default=[], help="judge the answers again; settings key=value may follow"
    )
    add_data_folder(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), help="claims/ is written into it")
    parser.add_argument("--workers", type=whole(1, 64), default=min(2, os.cpu_count() or 1), help="processes")
    parser.add_argument(
        "--head", action="store_true", help="eight claims, 80 columns wide, as in README; writes nothing"
    )
    args = parser.parse_intermixed_args(arguments)
    settings = [name for name in args.names if "=" in name]
    wanted = chosen(HEAD_NAMES if args.head else [name for name in args.names if "=" not in name])
    if args.judge:
        return _judged(wanted, args, settings)
    if settings:
        raise RunError(f"{settings[0]}: settings belong to --judge")
    scored, missing = scored_claims(wanted, data_root(args.data), args.workers)
    if args.head:
        print(head(rows_of(scored)))
        return 1 if missing else 0
    text, rows = page(scored, missing)
    folder = args.results / "claims"
    for name, content in (("claims.md", text), ("claims.json", as_json(rows, missing)), ("claims.csv", as_csv(rows))):
        replace_file(folder / name, content)
    print(text)
    print(f"\nwritten: {folder}/claims.md, claims.json, claims.csv ({counted(len(rows), 'claim')})")
    return 1 if missing else 0


def _judged(wanted: Sequence[Claim], args: argparse.Namespace, settings: Sequence[str]) -> int:
    from scripts.assembly.datasets import check_data_root
    from scripts.lab.lab import Lab
    from scripts.lab.rejudging import rejudge

    data = [f"data.root={args.data}"] if args.data else []
    # regardless of the profile's cut
    whole = ("data.source=real", "data.size=all", "data.max_cases=null", "data.transform=none")
    lab = Lab(f"results={args.results}", *settings, *whole, *data, probe=False)
    text, code = rejudge(wanted, args.judge, lab, data_root(check_data_root(lab.cfg.data)))
    if text:
        place = Path(lab.cfg.results) / "claims" / "rejudged.md"
        replace_file(place, text)
        print(f"{text}\nwritten: {place}")
    return code


def page(scored: Sequence[ScoredClaim], missing: dict[str, str]) -> tuple[str, list[Row]]:
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
