"""Check published tables, or a table of yours, against themselves: `python -m scripts audit [TABLE.csv --counts 282,321,96,841]`

Without a file it checks every table of results/published, from the numbers there and the question counts of `conf/audit.yaml`. The file
is a CSV with a header and, in each line, the row's name, one cell per category in the order of `--counts`, and the total. The exit code
is 0; with `--strict` it is 1 if there is a finding; it is 2 for an unreadable file.

With `--evidence` it prints the share of the evidence that rows of the tables in `conf/table` lose to their unit rules, on the shipped
samples or, with `--data`, on the real files. No model is called.

The five history lengths of MemTree Table 2 are left out: the paper does not print their numbers of questions.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import groupby, product
from pathlib import Path

import yaml

from eval.files.store import RunError
from eval.report.audit import (
    OVERALL,
    AuditedRow,
    Finding,
    Relation,
    Setting,
    Value,
    audit_differences,
    audit_intervals,
    audit_lines,
    audit_relations,
    audit_repetitions,
    lines_of,
    reordered,
    row_name,
    weighted_mean,
    where,
)
from eval.report.counted import counted
from eval.report.published import FOLDER, Published, read_published
from scripts.setup.arguments import verb_parser, whole
from scripts.setup.options import CONF

GROUP = "science"

NOT_NUMBERS = ("consistency_checks",)
"""Files of results/published that hold recomputations, not printed numbers."""

FACTS = yaml.safe_load((CONF / "audit.yaml").read_text(encoding="utf-8"))
"""What the papers and the released files say of their questions, settings and orders."""
ACCURACIES = ("accuracy", "LLM-judge accuracy", "LLJ")

RELATIONS = (
    Relation("nodes", ("leaf_nodes", "branching_nodes"), lambda a, b: a + b, "leaves + branching nodes"),
    Relation(
        "branching_factor", ("nodes", "branching_nodes"), lambda n, b: (n - 1) / b, "(nodes - 1) / branching nodes"
    ),
    Relation("extra_calls", ("calls_full_TMT", "calls_L1_only"), lambda a, b: a - b, "full - first level"),
    Relation("extra_rate_percent", ("extra_calls", "calls_L1_only"), lambda a, b: 100 * a / b, "extra / first level"),
    Relation("avg_semantics_per_theme", ("semantics", "themes"), lambda a, b: a / b, "semantics / themes"),
    Relation("depth_std", (), lambda: 0.0, "equal depth of all leaves (Algorithm 1)", ("SegTreeMem",)),
    Relation(
        "MGS", ("U", "A", "F"), lambda u, a, f: u * (100 - a) * (100 - f) / 1e4, "U (1 - A) (1 - F)", rounded=True
    ),
    Relation("max_depth", ("mean_depth",), lambda a: a, "equal depth of all leaves (Algorithm 1)", ("SegTreeMem",)),
)


def setting(one: Published) -> Setting:
    """The setting of a number, with one spelling where tables differ."""
    models = one.backbone.removeprefix("answer ")
    if not models.startswith("internal "):  # these name both the building and the answering model: both count
        models = models.split(";")[0]
    method, variant = one.method, FACTS["same_variant"].get(one.paper, {}).get(one.variant, one.variant)
    if variant == "Naive RAG":
        method, variant = variant, ""
    if (one.paper, models) == ("MemTree", ""):
        models = "GPT-4o"
    category = "all" if one.category in OVERALL else one.category
    return one.paper, one.dataset, models, method, variant, category, one.metric


def audit_orderings(numbers: Sequence[Published]) -> list[Finding]:
    """Statements that contradict the table that they are about."""
    printed = {(where(one), one.dataset, one.category, one.metric, row_name(one)): one for one in numbers}
    findings = []
    for said in FACTS["orderings"]:
        rows = (said[part] for part in ("datasets", "categories", "above", "below", "metrics"))
        for dataset, category, upper, lower, metric in product(*rows):
            above = printed[said["where"], dataset, category, metric, upper]
            below = printed[said.get("below_where", said["where"]), dataset, category, metric, lower]
            if above.value <= below.value:
                text = f"said to be above {lower}; printed {above.printed} and {below.printed}"
                findings.append(Finding("claim", said["where"], f"{dataset}, {category} {metric} · {upper}", text))
    return findings


def _propagation_gain(said: Published, numbers: Sequence[Published], lines: Sequence[AuditedRow]) -> Iterator[Finding]:
    """A gain of propagation in points, if the totals computed from the cells give another."""
    means = {
        line.name: weighted_mean(line)
        for line in lines
        if line.column == f"{said.dataset}, {said.backbone}, LLM-judge accuracy"
    }
    best, plain = means.get("SegTreeMem / Best"), means.get("SegTreeMem / No-Propagation")
    if best is None or plain is None:
        return
    gain = 100 * (best - plain)
    if abs(gain - Fraction(said.printed)) > Fraction(1, 10):
        strongest = _strongest_baseline(numbers, said, ("SegTreeMem T6",))
        other = means.get(row_name(strongest).removesuffix(" / Default")) if strongest else None
        beside = f"; without propagation {float(plain):.3f}"
        beside += (
            f", strongest baseline {strongest.method} {float(other):.3f}" if strongest and other is not None else ""
        )
        text = f"{said.printed} points said; the cells of both rows give {float(gain):.1f}{beside}"
        yield Finding("claim", where(said), f"{said.dataset}, {said.backbone} · {row_name(said)}", text)


def _strongest_baseline(numbers: Sequence[Published], like: Published, tables: Sequence[str]) -> Published | None:
    found = [
        one
        for one in numbers
        if where(one) in tables
        and one.dataset == like.dataset
        and one.backbone.split(";")[0] == like.backbone.split(";")[0]
        and one.metric == "LLM-judge accuracy"
        and one.category in OVERALL
        and one.method != "SegTreeMem"
    ]
    return max(found, key=lambda one: one.value, default=None)


def _relative_gains(said: Published, numbers: Sequence[Published]) -> Iterator[Finding]:
    """Numbers of the main tables on each data set, if any of them rounds to less than the stated gain."""
    gains = {}
    for table in ("SegTreeMem T4", "SegTreeMem T6"):
        own = [
            one
            for one in numbers
            if where(one) == table and one.method == "SegTreeMem" and one.metric == "LLM-judge accuracy"
        ]
        for dataset in dict.fromkeys(one.dataset for one in own):
            best = max((one for one in own if one.dataset == dataset), key=lambda one: one.value)
            baseline = _strongest_baseline(numbers, best, (table,))
            if baseline is not None:
                gains[f"{table} {dataset} over {baseline.method}"] = 100 * (best.value / baseline.value - 1)
    if min(gains.values()) < said.value - 0.5:
        text = ", ".join(f"{name} {gain:+.1f} %" for name, gain in gains.items())
        yield Finding("claim", where(said), row_name(said), f"{said.printed} % said; {text}")


def audit_units(numbers: Sequence[Published]) -> list[Finding]:
    """Printed leaves per conversation that differ from the turns of the released files."""
    findings = []
    for one in numbers:
        if one.metric != "mean_leaves" or one.dataset not in FACTS["units"]:
            continue
        known = FACTS["units"][one.dataset]
        unit, held = next(iter(known.items()))  # turns, where their number is known
        if abs(one.value - held) > 0.5:
            fits = [name for name, count in known.items() if abs(one.value - count) <= 0.5]
            text = f"{one.printed} leaves a conversation, which holds {held} {unit}"
            text += f"; {one.printed} is its number of {fits[0]} ({known[fits[0]]})" if fits else ""
            findings.append(Finding("relation", where(one), one.dataset, text))
    return findings


def audit_published() -> list[Finding]:
    """All findings in the four papers, by paper and table."""
    names = sorted(path.stem for path in FOLDER.glob("*.csv") if path.stem not in NOT_NUMBERS)
    numbers = [one for name in names for one in read_published(name)]
    lines = lines_of(numbers, FACTS["counts"], ACCURACIES, FACTS["runs"])
    findings = [
        *audit_lines(lines),
        *audit_intervals(numbers, FACTS["questions"], ACCURACIES),
        *audit_differences(numbers),
        *audit_repetitions(numbers, setting),
        *audit_relations(numbers, RELATIONS),
        *audit_units(numbers),
        *audit_orderings(numbers),
    ]
    fixed = reordered(lines)[0]
    for said in numbers:
        if said.metric == "accuracy_gain_points":
            findings += _propagation_gain(said, numbers, fixed)
        elif said.metric == "relative_gain_percent":
            findings += _relative_gains(said, numbers)
    return sorted(findings, key=lambda one: one.where)


def read_table(path: Path, counts: Sequence[int], *, runs: int, means: bool) -> list[AuditedRow]:
    """The rows of a CSV: name, a cell per count, total.

    Raises:
        RunError: no such file, no rows, a line of another length, or a cell that is no number.
    """
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            header, *rows = [row for row in csv.reader(handle) if row] or [[]]
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    if not rows:
        raise RunError(f"{path}: a header and at least one row are needed")
    for number, row in enumerate([header, *rows], 1):
        if len(row) != len(counts) + 2:
            raise RunError(
                f"{path}, row {number}: {len(row)} fields; a name, {counted(len(counts), 'cell')} and a total are {len(counts) + 2}"
            )
    odd = [cell for row in rows for cell in row[1:] if not re.fullmatch(r"-?(?:\d*\.)?\d+", cell.strip())]
    if odd:
        raise RunError(f"{path}: {odd[0]!r} is no number; cells are plain decimals such as 0.482 or 48.2")
    largest = max(float(cell) for row in rows for cell in row[1:])
    return [
        AuditedRow(
            path.name,
            header[-1],
            row[0],
            tuple(header[1:-1]),
            tuple(counts),
            tuple(Value(cell.strip()) for cell in row[1:-1]),
            Value(row[-1].strip()),
            100 if largest > 1 else 1,
            not means,
            runs,
        )
        for row in rows
    ]


def report(findings: Sequence[Finding]) -> str:
    """The findings under their tables."""
    if not findings:
        return "everything adds up\n"
    parts = []
    for place, found in groupby(findings, key=lambda one: one.where):
        parts += ["", f"## {place}", ""]
        parts += [f"- [{one.kind}] {one.row + ': ' if one.row else ''}{one.text}" for one in found]
    tables = len({one.where for one in findings})
    return "\n".join([*parts[1:], "", f"{counted(len(findings), 'finding')} in {tables} tables and sections"]) + "\n"


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise ValueError(text)
    return counts


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("audit", __doc__)
    parser.add_argument(
        "table", nargs="?", type=Path, help="a CSV: name, one cell per count, total (default: the papers' tables)"
    )
    parser.add_argument("--counts", type=_counts, help="questions of each category, e.g. 282,321,96,841")
    parser.add_argument("--runs", type=whole(1), default=1, help="repetitions that a cell is the mean of (default: 1)")
    parser.add_argument(
        "--means", action="store_true", help="cells are means such as F1, not right answers of questions"
    )
    parser.add_argument("--evidence", action="store_true", help="evidence that rows of conf/table lose to unit rules")
    parser.add_argument("--data", type=Path, help="with --evidence: folder of the real files (default: the samples)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when anything is found")
    chosen = parser.parse_args(arguments)
    if (chosen.table is None) != (chosen.counts is None):
        parser.error("a table needs --counts, and --counts a table")
    if chosen.evidence:
        from scripts.setup.launch import composed
        from scripts.tables.captions import evidence_of_tables

        real = ["data.source=real", f"data.root={chosen.data}", "data.unpinned=true"]
        cut = ["data.source=sample"] if chosen.data is None else real
        lines = evidence_of_tables(composed("reproduce", ["table=regression", *cut]))
        findings = [Finding("evidence", table, group, text) for table, group, text in lines if text]
    elif chosen.table is None:
        findings = audit_published()
    else:
        findings = audit_lines(read_table(chosen.table, chosen.counts, runs=chosen.runs, means=chosen.means))
    print(report(findings), end="")
    if chosen.table is None and not chosen.evidence:
        print(f"\n{NOT_MADE}")
    return 1 if chosen.strict and findings else 0


NOT_MADE = (
    "Not made here: the diagrams of MemTree (Figures 1-3), TiMem (1, 2, 4), SegTreeMem (1-3, 9-11) and xMemory (1, 2). "
    "MemTree's Tables A.5-A.7 and A.9 ask queries that the held data do not: `inspect RUN --ask TEXT` shows their layout for any text. "
    "SegTreeMem's Table 9 compares two trees in words: `inspect RUN --design OTHER` prints its components for two runs, and counts nodes "
    "that cover consecutive units; conf/table/segtreemem_t9 has both shapes. Its cases Q1-Q5: `inspect RUN --worked segtreemem_q1`."
)
"""Figures and tables of the four papers that no table of conf reproduces, and the commands for those that are in scope."""
