"""Show the audit of published claims as a static site: `python -m scripts claims-site [NAME …] [--data ROOT] [--date DAY]`.

The numbers are those of `memsys-bench claims`. If `claims NAME --judge` has judged answers again and saved the verdicts in RESULTS, the
page of the claim shows every grader. The site opens from the disk or from any static host and sends no request to another server.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from data_loaders.raw import read_raw
from data_loaders.schema import DataError
from data_loaders.source import data_root
from eval.files.store import RunError, safe_name
from eval.report.counted import counted
from eval.report.html.build import write_page, write_whole
from eval.report.html.cleaning import Shards, cleaner
from memsys.inert import visible
from memsys.jsons import changed
from memsys.llm.secrets import redact
from scripts.answers.audit import COLUMNS, Judged, kept
from scripts.answers.claim_tables import LENIENCY, Row, as_csv, record, rows_of
from scripts.answers.manifest import chosen
from scripts.answers.pages import (
    EXCERPT,
    EXCERPTS,
    LONGEST,
    SHARED,
    Again,
    ClaimLine,
    SharedQuestions,
    Terms,
    analysis,
    claim_data,
    claim_page,
    data_terms,
    disagreements,
    judged_again,
    line_of,
    question_row,
    shown,
    terms_of,
)
from scripts.answers.scoring import ScoredClaim, scored_claims
from scripts.setup.arguments import add_data_folder, verb_parser, whole

GROUP = "publish"

ATOM = "http://www.w3.org/2005/Atom"
SCHEMA, VERSION = "memsys-bench/claims", 1
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
NUMBERS = (
    "n", "of", "joined", "file_mean", "findings", "scores", "unknown", "words", "tokens", "detectable", "flags", "same_answers",
    "counts",
)  # fmt: skip
"""Fields of a claim's record that are results; a new value in any of them is a change."""
History = dict[str, list[dict[str, Any]]]
"""By claim: the content of each version and its first day, the oldest first."""


def digest(row: Row) -> str:
    """A hash of a claim's numbers, rounded to six digits, so that rounding errors of another machine are no change."""
    known = record(row)
    numbers = {name: known[name] for name in NUMBERS}
    return hashlib.sha256(json.dumps(_rounded(numbers), sort_keys=True).encode()).hexdigest()[:16]


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return f"{value:.6g}" if isinstance(value, float) else value


def headline(row: Row) -> dict[str, str]:
    """The numbers that a summary of changes names."""
    named = {"judge, answerable": row.answerable, "F1": row.measures["f1"]}
    told = {name: f"{each.mean:.3f}" for name, each in named.items() if each is not None}
    for each in row.findings:
        printed = f"printed {each.printed.text} ({each.printed.of}, {each.printed.over})"
        file = "" if each.file is None else f", this file {each.file:.{each.printed.digits}f}"
        told[printed] = each.status + file
    return {**told, "answers": f"{len(row.scored.asked)} of {row.scored.whole}", "flags": str(len(row.flags))}


def earlier(folder: Path) -> History:
    """The history of an earlier site in this folder; empty without an earlier site. Raises RunError if its `claims.json` is damaged."""
    file = folder / "claims.json"
    if not file.is_file():
        return {}
    try:
        changes = read_raw(file).value["changes"]
        whole = all(_is_version(entry) for own in changes.values() for entry in own)
    except (DataError, AttributeError, KeyError, TypeError):
        whole = False
    if not whole:
        raise RunError(f"{file}: no history of claims; delete the folder to begin a new one")
    return dict(changes)


def _is_version(entry: Mapping[str, Any]) -> bool:
    texts = [entry["date"], entry["hash"], entry["summary"], *entry["numbers"].values()]
    return len(entry) == 4 and all(isinstance(text, str) for text in texts) and DAY.fullmatch(texts[0]) is not None


def history(rows: Sequence[Row], before: History, day: str | None) -> History:
    """The history with the changes in these rows.

    It is stored in the site's own `claims.json`, so a new site continues the history of the site that it replaces. The bytes depend on the
    numbers, that history and the given day alone.

    Args:
        day: day of the new entries; None takes a new claim's date from the manifest.

    Raises:
        RunError: numbers have changed and no day is given.
    """
    newest = max((row.scored.claim.date for row in rows if DAY.fullmatch(row.scored.claim.date)), default="1970-01-01")
    now, undated = {name: list(entries) for name, entries in before.items()}, []
    for row in rows:
        name, code, numbers = row.scored.claim.name, digest(row), headline(row)
        own = now.setdefault(name, [])
        if own and own[-1]["hash"] == code:
            continue
        if own and day is None:
            undated.append(name)
        date = day or (row.scored.claim.date if DAY.fullmatch(row.scored.claim.date) else newest)
        own.append(
            {"date": date, "hash": code, "numbers": numbers, "summary": _summary(numbers, own[-1] if own else None)}
        )
    if undated:
        raise RunError(
            f"the numbers of {', '.join(undated)} have changed; give the day of the change: --date YYYY-MM-DD"
        )
    return dict(sorted(now.items()))


def _summary(numbers: Mapping[str, str], last: Mapping[str, Any] | None) -> str:
    if last is None:
        return "; ".join(f"{name}: {value}" for name, value in numbers.items())
    old = last["numbers"]
    names = [name for name in {**old, **numbers} if old.get(name) != numbers.get(name)]
    told = [f"{name}: {old.get(name, 'not there')} → {numbers.get(name, 'not there')}" for name in names]
    return "; ".join(told) or "intervals, counts or flags have changed"


def atom(entries: History, pages: Mapping[str, str], base: str) -> bytes:
    """The Atom feed (RFC 4287): an entry for every version of every claim, the newest first.

    Args:
        pages: file name of each present claim's page.
        base: address of the site with a slash at its end; empty for links that are relative to the feed.
    """
    ElementTree.register_namespace("", ATOM)
    feed = ElementTree.Element(f"{{{ATOM}}}feed")
    versions = sorted(
        ((entry["date"], name, place, entry) for name, own in entries.items() for place, entry in enumerate(own)),
        key=lambda version: (version[0], version[2], version[1]),
        reverse=True,
    )
    _add(feed, "id", "tag:memsys-bench,2026:claims")
    _add(feed, "title", "Published claims, audited from their own answers: changes")
    _add(feed, "updated", f"{versions[0][0] if versions else '1970-01-01'}T00:00:00Z")
    _add(_add(feed, "author"), "name", "memsys-bench")
    _add(feed, "link", rel="self", href=f"{base}atom.xml")
    _add(feed, "link", rel="alternate", href=f"{base}index.html")
    for date, name, place, entry in versions:
        node = _add(feed, "entry")
        _add(node, "id", f"tag:memsys-bench,2026:claims/{_plain(name)}/{entry['hash']}")
        _add(node, "title", f"{_plain(name)}: {'numbers have changed' if place else 'new'}")
        _add(node, "updated", f"{date}T00:00:00Z")
        _add(node, "link", rel="alternate", href=f"{base}{pages.get(name, 'index.html')}")
        _add(node, "summary", _plain(entry["summary"]))
    text: str = ElementTree.tostring(feed, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _add(parent: ElementTree.Element, name: str, text: str | None = None, **attributes: str) -> ElementTree.Element:
    node = ElementTree.SubElement(parent, f"{{{ATOM}}}{name}", attributes)
    node.text = text
    return node


def _plain(text: str) -> str:
    """A text that XML may hold: without the control codes and lone surrogates that XML forbids."""
    return " ".join(visible(text).replace("\ufffe", "").replace("\uffff", "").split())


MARK = "claims.json"
"""A file in every site: a folder without it is not replaced."""
APART_EACH = EXCERPTS // 2
"""Number of answers with differing verdict and F1, of each of two kinds, on the page of a claim."""
STATIC = {"eval.report.html": ("report.css", "dom.js"), "scripts.answers": ("claims.css", "claims.js")}
"""Files that are copied into the site, by the package that has them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    day: str | None = None
    """Day of the changes; None takes the manifest's dates."""
    base: str = ""
    """Future address of the site, with a slash at its end, for the feed."""
    contact: str = ""
    """Contact for corrections, in words or as an address."""
    commercial: bool = False
    private: tuple[Path | str | None, ...] = ()
    """Folders of this machine whose names must not be in the site."""


def build(
    scored: Sequence[ScoredClaim],
    rows: Sequence[Row],
    missing: Mapping[str, str],
    target: Path,
    wanted: Wanted,
    judged: Mapping[str, Judged] | None = None,
) -> Path:
    """Build the site of these claims in a new folder, which replaces the old one when it is complete; returns its first page.

    Args:
        scored, rows: from `scripts.answers.scoring`, so every number equals the output of `memsys-bench claims`.
        missing: by name, the reasons why other claims have no scores.
        judged: by name, the graders of claims that were judged again.

    Raises:
        RunError: the target is a folder that is no site, its history is damaged, or numbers have changed and no day is given.
    """
    changes = history(rows, earlier(target), wanted.day)
    again = {row.scored.claim.name: judged_again(row.scored, (judged or {}).get(row.scored.claim.name)) for row in rows}
    return write_whole(target, lambda draft: _fill(draft, scored, rows, missing, changes, wanted, again), MARK)


def _fill(
    draft: Path,
    scored: Sequence[ScoredClaim],
    rows: Sequence[Row],
    missing: Mapping[str, str],
    changes: History,
    wanted: Wanted,
    again: Mapping[str, Again | None],
) -> None:
    clean = cleaner(Path("results"), wanted.private)
    lines = {row.scored.claim.name: line_of(row) for row in rows}
    terms = {name: data_terms(name, wanted.commercial) for name in dict.fromkeys(each.claim.dataset for each in scored)}
    always = {
        "contact": visible(wanted.contact),
        "excerpts": EXCERPTS,
        "excerpt": EXCERPT,
        "anchor": lambda name: f"set-{safe_name(name)}",
    }

    def write(name: str, template: str, values: Mapping[str, Any]) -> None:
        write_page(draft / name, clean, template, {**always, **values}, "scripts.answers")

    _write_claims(write, Shards(draft / "data", clean), rows, lines, terms, changes, again, wanted.commercial)
    boards = [(name, [line for line in lines.values() if line["dataset"] == name], terms[name]) for name in terms]
    more = {
        "boards": boards,
        "statuses": Counter(finding.status for row in rows for finding in row.findings).most_common(),
        "missing": {shown(name): shown(why) for name, why in missing.items()},
    }
    write("index.html", "index.html.j2", more)
    write("analysis.html", "analysis.html.j2", {**analysis(scored, lines), "leniency": LENIENCY})
    for package, names in STATIC.items():
        for name in names:
            text = (files(package) / "static" / name).read_text(encoding="utf-8")
            (draft / name).write_text(text, encoding="utf-8")
    (draft / "claims.csv").write_text(clean.page(as_csv(rows)), encoding="utf-8")
    (draft / "atom.xml").write_bytes(atom(changes, {name: line["page"] for name, line in lines.items()}, wanted.base))
    claims = [{**record(row), "page": lines[row.scored.claim.name]["page"], "hash": digest(row)} for row in rows]
    for claim in claims:  # in the form of `memsys-bench claims`, with its page, hash, graders and history
        if graded := again[claim["name"]]:
            graders = [dict(zip(COLUMNS, row, strict=True)) for row in graded.rows]
            claim["judged_again"] = {"graders": graders, "prediction_powered": graded.powered, "note": graded.note}
    known = {"schema": SCHEMA, "version": VERSION, "claims": claims, "missing": dict(missing), "changes": changes}
    content = clean.value(
        changed(known, lambda text: shown(text) if len(text) > LONGEST else text)
    )  # cut as on the pages
    (draft / MARK).write_text(redact(json.dumps(content, indent=1)) + "\n", encoding="utf-8")


def _write_claims(
    write: Callable[..., None],
    shards: Shards,
    rows: Sequence[Row],
    lines: Mapping[str, ClaimLine],
    terms: Mapping[str, Terms],
    changes: History,
    again: Mapping[str, Again | None],
    commercial: bool,
) -> None:
    """Write a page and a data file for each claim, and a data file of questions for each data set."""
    shared: dict[str, SharedQuestions] = {name: {} for name in SHARED if name in terms}
    for row in rows:
        claim, line = row.scored.claim, lines[row.scored.claim.name]
        data, answers = terms[claim.dataset], terms_of(claim.licence, commercial)
        graded = again[claim.name]
        judges = graded.verdicts if graded else None
        shards.write(line["data"], claim_data(row.scored, shared.get(claim.dataset), data, answers, judges))
        apart = disagreements(row.scored, APART_EACH, data, answers)
        page = claim_page(row, lines, (answers, data), apart, changes[claim.name], graded)
        questions = f"questions-{claim.dataset.lower()}" if claim.dataset in shared else ""
        write(line["page"], "claim.html.j2", {"page": page, "shared": questions, "columns": COLUMNS})
    for name, asked in shared.items():
        shards.write(f"questions-{name.lower()}", [question_row(each, terms[name]) for _, each in asked.values()])


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
    base = f"{args.url.rstrip('/')}/" if args.url else ""
    private = (args.results, args.data, os.environ.get("MEMSYS_DATA"))
    wanted = Wanted(args.date, base, args.contact, args.commercial, private)
    judged = {each.claim.name: found for each in scored if (found := kept(args.results, each.claim))}
    page = build(scored, rows_of(scored), missing, args.out or args.results / "claims_site", wanted, judged)
    print(f"{counted(len(scored), 'claim')}; open in a browser: {page}")
    for name, why in missing.items():
        print(f"not there: {name}: {why}")
    return 1 if missing else 0


def _day(text: str) -> str:
    if not DAY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected a day such as 2026-11-24, found {text!r}")
    return text
