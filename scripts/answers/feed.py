"""Changes since the last site: a hash of each claim's numbers, its history, and an Atom feed of it (RFC 4287).

The history is stored in the site's own `claims.json`, so a new site continues the history of the site that it replaces. The bytes depend
on the numbers, that history and the given day alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from data_loaders.raw import read_json
from data_loaders.schema import DataError
from eval.files.store import RunError
from memsys.inert import visible
from scripts.answers.claim_tables import Row, record

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
    text = json.dumps(_coarse({name: known[name] for name in NUMBERS}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _coarse(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return {str(name): _coarse(inner) for name, inner in value.items()}
    return [_coarse(inner) for inner in value] if isinstance(value, list | tuple) else value


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
    """The history of an earlier site in this folder; empty without an earlier site.

    Raises:
        RunError: its `claims.json` is damaged.
    """
    file = folder / "claims.json"
    if not file.is_file():
        return {}
    try:
        changes = read_json(file)["changes"]
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
    """The feed: an entry for every version of every claim, the newest first.

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
    _add(feed, "updated", _midnight(versions[0][0] if versions else "1970-01-01"))
    _add(_add(feed, "author"), "name", "memsys-bench")
    _add(feed, "link", rel="self", href=f"{base}atom.xml")
    _add(feed, "link", rel="alternate", href=f"{base}index.html")
    for date, name, place, entry in versions:
        node = _add(feed, "entry")
        _add(node, "id", f"tag:memsys-bench,2026:claims/{_plain(name)}/{entry['hash']}")
        _add(node, "title", f"{_plain(name)}: {'numbers have changed' if place else 'new'}")
        _add(node, "updated", _midnight(date))
        _add(node, "link", rel="alternate", href=f"{base}{pages.get(name, 'index.html')}")
        _add(node, "summary", _plain(entry["summary"]))
    text: str = ElementTree.tostring(feed, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _add(parent: ElementTree.Element, name: str, text: str | None = None, **attributes: str) -> ElementTree.Element:
    node = ElementTree.SubElement(parent, f"{{{ATOM}}}{name}", attributes)
    node.text = text
    return node


def _midnight(day: str) -> str:
    return f"{day}T00:00:00Z"


def _plain(text: str) -> str:
    """A text that XML may hold: without the control codes and lone surrogates that XML forbids."""
    return " ".join(visible(text).replace("\ufffe", "").replace("\uffff", "").split())
