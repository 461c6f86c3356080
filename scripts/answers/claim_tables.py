"""The tables of `memsys-bench claims` as Markdown, CSV and JSON: every claim, its own file and flags. Foreign text is inert in each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from eval.report.counted import counted
from eval.report.rendering import end_fields, grid, number, span
from eval.statistics.power import planned
from eval.statistics.stats import Estimate, preferred_interval
from memsys.inert import csv_text, visible
from scripts.answers.audit import (
    Finding,
    Lenience,
    Same,
    Spread,
    duplicates,
    findings,
    flags,
    lenience,
    lenient,
    mean_of,
    rank_agreement,
    regressions,
    spreads,
)
from scripts.answers.scoring import MEASURES, ScoredClaim

FULL_CONTEXT = "full context"
LENIENCY = (
    "How many of two kinds of answers the stored verdicts count as right: those that share no word stem with the gold, and those that say "
    "that they do not know what the history holds. Some of the first are right in other words, digits or another language; the rows "
    "with the judge `people` show how many a person accepts."
)
TITLES = {"f1": "F1", "plain_f1": "plain F1", "bleu1": "BLEU-1", "rouge_l": "ROUGE-L"}


@dataclass(frozen=True)
class Row:
    scored: ScoredClaim
    findings: Sequence[Finding]
    flags: Sequence[str]
    same: Sequence[Same]
    file_mean: float | None
    """Mean of all verdicts of the file."""
    answerable: Estimate | None
    unanswerable: Estimate | None
    measures: Mapping[str, Estimate | None]
    unknown: float
    words: float
    tokens: float | None
    detectable: float | None
    """The paired difference that these questions detect with 80 % power, under `assumed`."""
    assumed: str
    """The assumption of `eval.statistics.power.planned`; empty without a difference."""
    lenience: Lenience | None

    @property
    def first(self) -> Finding | None:
        return self.findings[0] if self.findings else None

    @property
    def status(self) -> str:
        """Status of the first printed score."""
        return self.first.status if self.first else "no score printed"

    @property
    def file(self) -> float | None:
        """The file's own value for the first printed score; without one, the mean of all verdicts."""
        return self.first.file if self.first and self.first.file is not None else self.file_mean

    @property
    def remarks(self) -> list[str]:
        """The flags, and the other claims with the same answers."""
        return [*self.flags, *(f"same answers as {each}" for each in self.same)]


def rows_of(all_scored: Sequence[ScoredClaim]) -> list[Row]:
    """A row for each claim; full context comes first, as the baseline, then the claims by descending mean of their file."""
    same = duplicates(all_scored)
    rows = [_row(scored, same.get(scored.claim.name, [])) for scored in all_scored]
    return sorted(
        rows,
        key=lambda row: (
            row.scored.claim.product != FULL_CONTEXT,
            -(row.file_mean if row.file_mean is not None else -1.0),
        ),
    )


def _row(scored: ScoredClaim, same: Sequence[Same]) -> Row:
    tokens, answerable = scored.measures["tokens"], scored.answerable
    detectable, assumed = planned(list(Counter(each.case_id for each in scored.asked).values())) or (None, "")
    return Row(
        scored,
        findings(scored),
        flags(scored),
        same,
        float(np.mean(scored.verdicts)) if scored.verdicts else None,
        mean_of(scored, "verdict", answerable),
        mean_of(scored, "verdict", ~answerable),
        {name: mean_of(scored, name, answerable) for name in MEASURES},
        float(scored.measures["abstains"].mean()),
        float(scored.measures["words"].mean()),
        float(np.nanmean(tokens)) if scored.where("tokens").any() else None,
        detectable,
        assumed,
        lenience(scored),
    )


def inert(text: str) -> str:
    """Foreign text on one line, without marks that a terminal, Markdown or HTML would interpret."""
    plain = " ".join(visible(text).split())
    return re.sub(r"([\\`*_\[\]<>|#!~])", r"\\\1", plain).replace("&", "&amp;")


def cell(text: str) -> str:
    """Text of a CSV cell on one line, with active marks escaped and no formula for a spreadsheet."""
    plain = " ".join(visible(text).split())
    return f"'{plain}" if plain[:1] in "=+-@" and plain and not re.fullmatch(r"-?\d+(\.\d+)?", plain) else plain


def table(title: str, rows: Sequence[Row]) -> str:
    """The Markdown table of one data set, with the flags below it."""
    header = ["claim", "n", "joined", "printed", "file", "status", "judge, answerable", "judge, unanswerable"]
    header += [*TITLES.values(), "unknown", "words", "tokens", "detects"]
    lines = [f"## {title}", "", grid(header, [_cells(row) for row in rows]), ""]
    lines += [f"- detects, {assumed}" for assumed in dict.fromkeys(row.assumed for row in rows) if assumed]
    for row in rows:
        claim = row.scored.claim
        told = [*map(_told, row.findings[1:]), *row.remarks, *([claim.note] if claim.note else [])]
        lines += [f"- {inert(claim.name)}: {inert('; '.join(told))}"] if told else []
    return "\n".join(lines)


def _told(finding: Finding) -> str:
    printed = finding.printed
    until = f" until {printed.until}" if printed.until else ""
    file = f", this file says {finding.file:.{printed.digits}f}" if finding.file is not None else ""
    other = f", which is {printed.other_run}" if printed.other_run else ""
    return f"also printed{until}: {printed.text} {printed.of}{other}, {finding.status}{file}"


def _cells(row: Row) -> list[str]:
    scored, first = row.scored, row.first
    bar = " (bar)" if scored.claim.product == FULL_CONTEXT else ""
    return [
        inert(scored.claim.name) + bar,
        f"{len(scored.asked)} of {scored.whole}",
        "–" if scored.joined is None else f"{scored.joined:.3f}",
        "–" if first is None else f"{first.printed.text} {first.printed.of}",
        number(row.file),
        row.status,
        _shown(row.answerable),
        _shown(row.unanswerable),
        *(_shown(row.measures[name]) if name == "f1" else number(_mean(row.measures[name])) for name in MEASURES),
        f"{row.unknown:.0%}",
        f"{row.words:.0f}",
        "–" if row.tokens is None else f"{row.tokens:,.0f}",
        number(row.detectable),
    ]


def _shown(ours: Estimate | None) -> str:
    return "–" if ours is None else f"{ours.mean:.3f} {span(preferred_interval(ours))}".strip()


def _mean(ours: Estimate | None) -> float | None:
    return None if ours is None else ours.mean


def analysis(all_scored: Sequence[ScoredClaim]) -> str:
    """The second analysis as Markdown: regression, ranks, leniency, spreads."""
    lines = ["## Judge and F1 with length held equal", ""]
    for who, fitted in regressions(all_scored).items():
        sizes = {"answer": fitted.questions, "file": fitted.systems, "conversation": fitted.histories}
        size = f"{', '.join(counted(count, noun) for noun, count in sizes.items())} of LoCoMo"
        effects = [
            [name, f"{points:.1f} {span(between, digits=1)}"] for name, (points, between) in fitted.effects.items()
        ]
        lines += [f"Verdicts of {who}: {size}.", "", grid(["one more", "points of the verdict"], effects), ""]
    if ranks := rank_agreement(all_scored):
        equal = f"with words held equal {number(ranks.given_words, 2)}"
        lines += [
            f"Rank correlation of mean verdict and mean F1 over {counted(ranks.claims, 'file')}: {ranks.plain:.2f}; {equal}.",
            "",
        ]
    lines += ["## Leniency", "", LENIENCY, ""]
    known = [[inert(each.name), inert(each.judge), *each.shown] for each in lenient(all_scored)]
    header = ["claim", "judge", "no stem of the gold", "not knowing an answer that is there"]
    lines += [grid(header, known), "", "## One product over harnesses", ""]
    products = [
        [inert(each.product), each.dataset, str(len(each.claims)), numbers(each), ends(each.verdict), ends(each.f1)]
        for each in spreads(all_scored)
    ]
    return "\n".join([*lines, grid(["product", "data", "files", "questions", "judge", "F1"], products)])


def numbers(spread: Spread) -> str:
    """The fewest and the most questions of a product's files, one number where they are equal."""
    return " to ".join(dict.fromkeys(f"{size:,}" for size in spread.questions))


def ends(means: tuple[float, float] | None) -> str:
    """The lowest and the highest mean of a product's files."""
    return "–" if means is None else f"{means[0]:.3f} to {means[1]:.3f}"


FACTS = (
    "name", "dataset", "product", "system", "by", "repository", "commit", "date", "licence", "answer_model", "judge", "note",
    "part", "urls",
)  # fmt: skip


def record(row: Row) -> dict[str, Any]:
    """One claim for JSON: provenance, printed scores with their status, and our scores with intervals by case."""
    scored, claim = row.scored, row.scored.claim
    scores = {"verdict": row.answerable, "verdict_unanswerable": row.unanswerable, **row.measures}
    printed = [
        {
            **asdict(each.printed),
            "line": claim.line_url(each.printed),
            "status": each.status,
            "file": each.file,
            "reading": each.reading,
        }
        for each in row.findings
    ]
    return {
        **{name: getattr(claim, name) for name in FACTS},
        "files": [asdict(each) for each in claim.files],
        "sha256": scored.sha256,
        "answers": scored.answers,
        "n": len(scored.asked),
        "of": scored.whole,
        "joined": scored.joined,
        "file_mean": row.file_mean,
        "findings": printed,
        "scores": {name: None if each is None else asdict(each) for name, each in scores.items()},
        "unknown": row.unknown,
        "words": row.words,
        "tokens": row.tokens,
        "detectable": row.detectable,
        "flags": list(row.flags),
        "same_answers": [asdict(each) for each in row.same],
        "counts": dict(scored.counts),
        "listed": list(scored.listed),
        "lenience": None if row.lenience is None else asdict(row.lenience),
    }


def as_json(rows: Sequence[Row], missing: Mapping[str, str]) -> str:
    """All data about every claim, and the reasons for missing claims."""
    return json.dumps({"claims": [record(row) for row in rows], "missing": dict(missing)}, indent=1)


def as_csv(rows: Sequence[Row]) -> str:
    """One line per printed score; a claim without printed scores has one line."""
    lines = [line for row in rows for line in _csv_lines(row)]
    return csv_text([list(lines[0]), *(line.values() for line in lines)])


NO_SCORE: dict[str, Any] = {"printed": None, "printed_of": "", "printed_over": "", "printed_at": ""}
NO_SCORE |= {"file": None, "reading": "", "status": "no score printed"}


def _csv_lines(row: Row) -> list[dict[str, Any]]:
    known = record(row)
    means = {"judge_answerable": row.answerable, "judge_unanswerable": row.unanswerable, **row.measures}
    with_ends = {name: means[name] for name in ("judge_answerable", "judge_unanswerable", "f1")}
    facts = {name: known[name] for name in ("name", "dataset", "product", "by", "repository", "commit", "licence")}
    measured = {
        **{name: known[name] for name in ("n", "of", "joined", "file_mean")},
        **{name: _mean(ours) for name, ours in means.items()},
        **{
            end: value
            for name, ours in with_ends.items()
            for end, value in end_fields(name, None if ours is None else preferred_interval(ours)).items()
        },
        **{name: known[name] for name in ("unknown", "words", "tokens", "detectable")},
        "flags": "; ".join(row.remarks),
    }
    printed = [
        {
            "printed": each.printed.score,
            "printed_of": each.printed.of,
            "printed_over": each.printed.over,
            "printed_at": each.printed.printed_at,
            "file": each.file,
            "reading": each.reading,
            "status": each.status,
        }
        for each in row.findings
    ]
    return [
        {
            name: cell(value) if isinstance(value, str) else value
            for name, value in {**facts, **each, **measured}.items()
        }
        for each in printed or [NO_SCORE]
    ]
