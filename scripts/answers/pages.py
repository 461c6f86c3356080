"""Content of the pages, as records for the templates. Numbers are those of `memsys-bench claims`; foreign texts are cut and inert.

The licence in a manifest decides which foreign texts a public site may show whole. Scores and ids are always shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import numpy as np

from data_loaders.source import manifest
from eval.files.store import safe_name
from eval.report.rendering import number, span
from eval.statistics.stats import Estimate, preferred_interval
from memsys.inert import visible
from scripts.answers.audit import (
    STAND_IN,
    STORED,
    Finding,
    Judged,
    Key,
    compared,
    judged,
    lenient,
    rank_agreement,
    regressions,
    spreads,
)
from scripts.answers.claim_tables import FULL_CONTEXT, Row, ends, numbers
from scripts.answers.manifest import Claim
from scripts.answers.matching import Asked
from scripts.answers.scoring import ScoredClaim

FREE = frozenset(("MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "CC0-1.0", "CC BY 4.0", "CC BY-SA 4.0"))
NON_COMMERCIAL = frozenset(("CC BY-NC 4.0",))
DATA_FILES = {
    "LoCoMo": "locomo/locomo10.json",
    "LongMemEval": "longmemeval/longmemeval_oracle.json",
    "BEAM": "beam/chats/100K/1/chat.json",
}
"""A file of each data set; its entry in the manifest of data names the licence."""
EXCERPTS, EXCERPT = 20, 90
"""Maximum number of quoted excerpts, and of characters of an excerpt, of texts that may not be redistributed."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A licence and whether texts under it may be shown whole on this site."""

    licence: str
    whole: bool
    why: str


def terms_of(licence: str, commercial: bool) -> Terms:
    """The terms of a licence by its name; the part after ` (` is a remark. An unknown name allows nothing."""
    name = licence.partition(" (")[0].strip()
    if name in FREE:
        return Terms(licence, True, "it allows passing texts on")
    if name in NON_COMMERCIAL:
        why = "it allows passing texts on for non-commercial use"
        return Terms(licence, not commercial, f"{why}, and this site is {'a commercial' if commercial else 'such'} one")
    if name in ("", "none stated"):
        return Terms("none stated", False, "without a licence the texts may not be passed on")
    return Terms(licence, False, "it is not among those known to allow it without further duties")


def data_terms(dataset: str, commercial: bool) -> Terms:
    """The terms of a data set's questions and gold answers."""
    entry = manifest().get(DATA_FILES.get(dataset, ""))
    return terms_of(entry.licence if entry else "", commercial)


SHARED = ("LoCoMo", "LongMemEval")
"""Data sets whose claims share one store of questions in the site; the data file of a claim on another holds its own."""
LONGEST = 2_000
"""Maximum number of characters of one text in a data file; the rest is in the owner's file."""
APART = 0.5
"""Smallest listed difference of a verdict and an F1."""


def shown(text: str, longest: int = LONGEST) -> str:
    """A text for a page: control characters and direction marks are escaped, a long text is cut and the cut characters are counted."""
    return visible(text) if len(text) <= longest else f"{visible(text[:longest])} … [{len(text):,} characters]"


def excerpt(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(visible(text[: 2 * EXCERPT]).split())
    return line if len(line) <= EXCERPT else f"{line[:EXCERPT].rstrip()} …"


SharedQuestions = dict[Key, tuple[int, Asked]]
"""The questions that any claim on a data set has answered, numbered in the order in which claims name them."""


def question_row(asked: Asked, terms: Terms) -> list[Any]:
    """Conversation, id, category, 1 if it can be answered, text and gold; both texts are empty where the terms do not allow them."""
    texts = [shown(asked.text), shown(asked.gold)] if terms.whole else ["", ""]
    return [
        shown(asked.case_id, 200),
        shown(asked.question_id, 200),
        shown(asked.category, 200),
        int(asked.answerable),
        *texts,
    ]


def claim_data(
    scored: ScoredClaim,
    shared: SharedQuestions | None,
    own: Terms,
    answers: Terms,
    judges: Mapping[str, Mapping[Key, float]] | None = None,
) -> dict[str, Any]:
    """The data file of a claim: for each answer its question, text, verdict, F1, length, and whether it says "I do not know".

    Args:
        shared: the questions of the data set so far, to which those of the claim are added; None for a claim with its own questions,
            under the terms `own`.
        answers: the terms of the claim's repository; without permission no text of an answer is in the file.
        judges: verdicts of further judges by their name, case and question.
    """
    measures = scored.measures
    data: dict[str, Any] = {
        "verdict": [_rounded(value) for value in measures["verdict"]],
        "f1": [_rounded(value) for value in measures["f1"]],
        "words": [int(value) for value in measures["words"]],
        "unknown": [int(value) for value in measures["abstains"]],
        "answers": [shown(text) for text in scored.texts] if answers.whole else None,
    }
    keys = [(each.case_id, each.question_id) for each in scored.asked]
    if judges:
        data["judges"] = [
            [shown(name, 200), [_rounded(values.get(key, np.nan)) for key in keys]] for name, values in judges.items()
        ]
    if shared is None:
        return {"questions": [question_row(asked, own) for asked in scored.asked], **data}
    places = [shared.setdefault(key, (len(shared), each))[0] for key, each in zip(keys, scored.asked, strict=True)]
    return {"at": places, **data}


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 3)


def disagreements(scored: ScoredClaim, most: int, data: Terms, answers: Terms) -> dict[str, dict[str, Any]]:
    """Answers that count as right and share little with the gold, and answers that count as wrong and share much: of each kind the first,
    their number, and the total.

    The largest difference comes first; equal differences keep the order of the file. The terms decide whether texts are whole or excerpts.
    """
    verdict, f1, known = scored.measures["verdict"], scored.measures["f1"], judged(scored)
    kinds = {"right": known & (verdict >= 0.5), "wrong": known & (verdict < 0.5)}
    made = {}
    for kind, mask in kinds.items():
        places = np.flatnonzero(mask & (np.abs(verdict - f1) >= APART))
        order = places[np.argsort(-np.abs(verdict - f1)[places], kind="stable")][:most]
        listed = [
            {
                "case_id": excerpt(asked.case_id),
                "question_id": excerpt(asked.question_id),
                "question": shown(asked.text, 600) if data.whole else excerpt(asked.text),
                "gold": shown(asked.gold, 600) if data.whole else excerpt(asked.gold),
                "answer": shown(scored.texts[at], 600) if answers.whole else excerpt(scored.texts[at]),
                "verdict": f"{float(verdict[at]):g}",
                "f1": f"{f1[at]:.2f}",
            }
            for at, asked in ((at, scored.asked[at]) for at in map(int, order))
        ]
        made[kind] = {"listed": listed, "count": int(places.size), "of": int(mask.sum())}
    return made


KINDS = {
    "judge": "mean verdict",
    "pass": "share of at least half marks",
    "full": "share of full marks",
    "f1": "F1",
}
OVER = {"all": "all questions", "1-4": "questions that the history answers"}
ClaimLine = Mapping[str, Any]
"""What templates show of a claim (`line_of`)."""
TEXT, LISTED = 400, 20
"""Maximum number of characters of a text on a page, and of entries of a list."""
SLUG = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMMIT = re.compile(r"[0-9a-f]{6,64}")
PLACE = re.compile(r"\S+:\d+ @[0-9a-f]{6,64}")


def bar(ours: Estimate | None) -> dict[str, Any]:
    """A score with its interval, for a table and as positions in a drawing of width 200; only `–` if there is none."""
    if ours is None:
        return {"text": "–", "interval": "", "at": None, "low": None, "high": None}
    interval = preferred_interval(ours)
    low, high = (None, None) if interval is None else (_place(interval.low), _place(interval.high))
    return {"text": number(ours.mean), "interval": span(interval), "at": _place(ours.mean), "low": low, "high": high}


def _place(value: float) -> float:
    return round(200 * min(1.0, max(0.0, value)), 1)


def line_of(row: Row) -> ClaimLine:
    """A row of `memsys-bench claims` in the form of the pages: a claim's line in a leaderboard and at the top of its page."""
    scored, claim = row.scored, row.scored.claim
    first, name = row.first, safe_name(claim.name)
    remarks = [*(f"also printed: {says(finding)}" for finding in row.findings[1:]), *row.remarks]
    known = [claim.name, claim.system, claim.product, claim.by, claim.repository, claim.dataset, claim.judge]
    return {
        "name": excerpt(claim.name),
        "page": f"claim-{name}.html",
        "data": f"claim-{name}",  # name of its data file
        "system": excerpt(claim.system),
        "product": excerpt(claim.product),
        "by": excerpt(claim.by),
        "dataset": claim.dataset,
        "is_bar": claim.product == FULL_CONTEXT,
        "n": f"{len(scored.asked):,} of {scored.whole:,}",
        "printed": "–" if first is None else first.printed.text,
        "file": number(row.file, first.printed.digits if first else 3),
        "status": row.status,
        "judge": bar(row.answerable),
        "unanswerable": bar(row.unanswerable),
        "f1": bar(row.measures["f1"]),
        "others": [bar(row.measures[each])["text"] for each in ("plain_f1", "bleu1", "rouge_l")],
        "joined": number(scored.joined),
        "unknown": f"{row.unknown:.0%}",
        "words": f"{row.words:.0f}",
        "tokens": "–" if row.tokens is None else f"{row.tokens:,.0f}",
        "detectable": f"{number(row.detectable)} ({row.assumed or 'one question'})",
        "remarks": [shown(remark, TEXT) for remark in remarks],
        "search": " ".join(shown(" ".join([*known, row.status, *remarks]), 2 * TEXT).lower().split()),  # searched text
    }


def says(finding: Finding) -> str:
    """A printed score and the file's own value for it, in one sentence."""
    printed = finding.printed
    until = f" until {printed.until}" if printed.until else ""
    what = f"{KINDS.get(printed.of, printed.of)}, {OVER.get(printed.over, printed.over)}"
    score = f"{printed.text} ({what}) is printed in {printed.printed}{until}"
    other = f", which is {printed.other_run}" if printed.other_run else ""
    file = "the file stores none" if finding.file is None else f"this file gives {finding.file:.{printed.digits}f}"
    reading = f" ({finding.reading})" if finding.reading else ""
    return f"{score}{other}; {file}{reading}: {finding.status}"


@dataclass(frozen=True, slots=True)
class Link:
    """A text, and the owner's address if it is safe."""

    text: str
    address: str = ""


def files_of(claim: Claim) -> list[dict[str, Any]]:
    """The files of a claim, each with a command that prints the sha256 of the owner's file, which is empty for an extract.

    Addresses are of GitHub alone, and every part of a path is quoted.
    """
    safe = SLUG.fullmatch(claim.repository) and COMMIT.fullmatch(claim.commit)
    base = f"https://github.com/{claim.repository}/blob/{claim.commit}"
    made = []
    for file, raw in zip(claim.files, claim.urls, strict=True):
        unpack = " | gunzip" if file.path.endswith(".gz") else ""
        check = f"curl -sL '{raw}'{unpack} | sha256sum" if safe and not claim.extract else ""
        path = Link(shown(file.path, TEXT), f"{base}/{quote(file.path)}" if safe else "")
        made.append({"path": path, "sha256": excerpt(file.sha256), "bytes": f"{file.bytes:,}", "check": check})
    return made


@dataclass(frozen=True, slots=True)
class Again:
    """The comparison of graders of a claim whose answers were judged again."""

    rows: Sequence[Sequence[str]]
    """Rows in the order of `COLUMNS`."""
    powered: Sequence[str]
    note: str
    """Warnings about these verdicts."""
    verdicts: Mapping[str, Mapping[Key, float]]
    """Verdicts of every grader but the stored one, by its name."""


def judged_again(scored: ScoredClaim, judged: Judged | None) -> Again | None:
    """Results of `claims NAME --judge` for the page of a claim; None if the claim was not judged again.

    Verdicts on other files, or on questions that this file does not answer, are not shown; the note says so.
    """
    if judged is None:
        return None
    if judged.sha256 != scored.sha256:
        return Again((), (), "The answers were judged again in another version of this file; judge them once more.", {})
    homes = {(each.case_id, each.question_id): each.case_id for each in scored.asked}
    graders = [
        replace(each, values={key: value for key, value in each.values.items() if key in homes})
        for each in judged.graders
    ]
    rows, powered = compared(scored.claim, graders, homes)
    stand_in = any(each.name.endswith(STAND_IN) for each in graders)
    lost = sum(len(each.values) for each in judged.graders) - sum(len(each.values) for each in graders)
    notes = [
        "A judge that is a stand-in is an engine without a model; its verdicts say nothing about the answers."
        if stand_in
        else "",
        f"Left out are {lost:,} of the verdicts, whose questions are not on this page." if lost else "",
    ]
    return Again(
        [[shown(text, TEXT) for text in row] for row in rows],
        [shown(text, TEXT) for text in powered],
        " ".join(note for note in notes if note),
        {each.name: each.values for each in graders if each.name != STORED},
    )


def claim_page(
    row: Row,
    lines: Mapping[str, ClaimLine],
    terms: tuple[Terms, Terms],
    apart: Mapping[str, Mapping[str, Any]],
    changes: Sequence[Mapping[str, Any]],
    again: Again | None = None,
) -> dict[str, Any]:
    """The data of a claim's page, without its questions.

    Args:
        lines: every claim of the site by name.
        terms: the terms of the answers and of the data set.
    """
    scored, claim = row.scored, row.scored.claim
    facts = {
        "data set": claim.dataset + (f", {claim.part}" if claim.part else ""),
        "published by": claim.by,
        "date": claim.date or "not stated",
        "licence": claim.licence,
        "answer model": claim.answer_model or "not stated",
        "judge": claim.judge or "not stated",
        "form": claim.form + "".join(f", {name} {value}" for name, value in claim.options.items()),
        "note": claim.note,
    }
    own = lines[claim.name]
    safe = SLUG.fullmatch(claim.repository) and COMMIT.fullmatch(claim.commit)
    tree = f"https://github.com/{claim.repository}/tree/{claim.commit}"
    quoted = [each for each in (claim.name, *(each.name for each in row.same)) if re.fullmatch(r"[\w.-]+", each)]
    command = f".venv/bin/python -m scripts claims {' '.join(quoted)} --data ~/data"
    printed = []  # each printed score, with a link to the owner's line that prints it
    for each in row.findings:
        place = each.printed.printed_at
        url = claim.line_url(each.printed) if SLUG.fullmatch(claim.repository) and PLACE.fullmatch(place) else ""
        printed.append((shown(says(each), TEXT), Link(shown(place, TEXT), url)))
    same = [Link(shown(str(each), TEXT), lines[each.name]["page"] if each.name in lines else "") for each in row.same]
    return {
        "line": own,
        "claim": {name: shown(value, TEXT) for name, value in facts.items() if value},
        "repository": Link(f"{excerpt(claim.repository)} at {excerpt(claim.commit)}", tree if safe else ""),
        "files": files_of(claim),
        "extract": claim.extract,
        "says": printed,
        "flags": [shown(flag, TEXT) for flag in row.flags],
        "same": same,
        "bars": [
            each for each in lines.values() if each["is_bar"] and each["dataset"] == claim.dataset and each is not own
        ],
        "counts": [(shown(kind, TEXT), count) for kind, count in sorted(scored.counts.items())],
        "listed": [shown(each, TEXT) for each in scored.listed[:LISTED]],
        "more": max(0, len(scored.listed) - LISTED),  # irregularities that are not listed
        "disagreements": apart,
        "answers": terms[0],
        "data": terms[1],
        "commands": ["make fetch SET=answers DATA=~/data", command],
        "changes": [{**each, "summary": shown(str(each["summary"]), 2 * TEXT)} for each in reversed(changes)],
        "again": again,
    }


def analysis(all_scored: Sequence[ScoredClaim], lines: Mapping[str, ClaimLine]) -> dict[str, Any]:
    """Results over many files: regression, ranks, leniency, spreads; the functions behind the tables of `memsys-bench claims`."""
    fitted = []
    for who, result in regressions(all_scored).items():
        effects = [
            (name, f"{points:.1f}", span(between, digits=1)) for name, (points, between) in result.effects.items()
        ]
        fitted.append({"who": who, "size": result, "effects": effects})
    products = [
        (
            excerpt(each.product),
            each.dataset,
            [lines[name] for name in each.claims],
            numbers(each),
            ends(each.verdict),
            ends(each.f1),
        )
        for each in spreads(all_scored)
    ]
    return {
        "fitted": fitted,
        "ranks": rank_agreement(all_scored),
        "lenient": [(lines[each.name], excerpt(each.judge), *each.shown) for each in lenient(all_scored)],
        "products": products,
    }
