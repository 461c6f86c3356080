"""Count the content of a data set: `python -m scripts data <set> [--data ROOT] [--sample] [--unpinned]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from data_loaders.schema import Case
from data_loaders.source import UNTESTED, Source, compared, counts_of, locate
from data_loaders.units import lost_evidence, make_units
from eval.report.counted import counted
from scripts.assembly.datasets import loader
from scripts.setup.arguments import verb_parser, whole
from scripts.setup.options import load_option, options

GROUP = "data"


@dataclass(slots=True)
class DatasetCounts:
    """Running counts over the cases of a data set."""

    content: Counter[str] = field(default_factory=Counter)
    """The counts of `data_loaders.source`."""
    tokens: int = 0
    units: int = 0
    dropped: int = 0
    categories: Counter[str] = field(default_factory=Counter)
    unanswerable: int = 0
    without_evidence: int = 0
    losing_evidence: int = 0
    """Number of questions with an evidence turn that is in no unit."""
    undated: int = 0
    """Number of sessions without a readable time."""
    first: datetime | None = None
    last: datetime | None = None
    notes: list[str] = field(default_factory=list)


def survey(cases: Iterable[Case], unit: Mapping[str, Any], count: Callable[[str], int]) -> DatasetCounts:
    """Count over all cases, holding one case at a time; units by the rule `unit`, tokens by `count`."""
    seen = DatasetCounts()
    for case in cases:
        made = make_units(case.sessions, count=count, **unit)
        times = [session.time for session in case.sessions if session.time is not None]
        seen.content += counts_of([case])
        seen.tokens += sum(count(turn.text) for turn in case.turns)
        seen.units += len(made.units)
        seen.dropped += len(made.dropped)
        seen.categories.update(gold.category for _, gold in case.questions)
        seen.unanswerable += sum(not gold.answerable for _, gold in case.questions)
        seen.without_evidence += sum(not gold.evidence for _, gold in case.questions)
        seen.losing_evidence += len(lost_evidence(case, made.dropped))
        seen.undated += len(case.sessions) - len(times)
        seen.first = min([*times, *filter(None, [seen.first])], default=None)
        seen.last = max([*times, *filter(None, [seen.last])], default=None)
        seen.notes += [note if note.startswith(case.id) else f"{case.id}: {note}" for note in case.notes]
    return seen


def report(source: Source, settings: Mapping[str, Any], seen: DatasetCounts, shown: int) -> str:
    """The counts as text, with at most `shown` of the loader's notes."""
    title = f"{settings['title']} ({source.status}{', ' + source.note if source.note else ''})"
    rule = ", ".join(str(value) for value in settings["unit"].values())
    rows = [
        ("file", f"{source.path}  sha256 {source.sha256}"),
        ("cases", f"{seen.content['histories']:,}"),
        ("sessions", f"{seen.content['sessions']:,} ({seen.undated:,} without a readable time)"),
        ("turns", f"{seen.content['turns']:,}"),
        ("tokens", f"{seen.tokens:,} (o200k)"),
        ("time span", f"{seen.first} to {seen.last}" if seen.first else "none"),
        ("units", f"{seen.units:,} by {rule}; {counted(seen.dropped, 'turn', ',')} in none"),
        ("questions", f"{seen.categories.total():,} ({seen.unanswerable:,} unanswerable)"),
        *((f"  {name}", f"{n:,}") for name, n in sorted(seen.categories.items())),
        (
            "evidence",
            f"{counted(seen.without_evidence, 'question', ',')} without, {seen.losing_evidence:,} lose some to the unit rule",
        ),
        ("notes", f"{len(seen.notes):,} by the loader"),
        *(("  ", note) for note in seen.notes[:shown]),
    ]
    if settings.get("untested"):
        rows.insert(1, ("", UNTESTED))
        if source.status != "sample" and "published" in settings:
            rows.insert(2, ("published", compared(settings["published"], seen.content)))
    return "\n".join([title, *(f"{name:<14} {value}" for name, value in rows)])


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("data", __doc__)
    parser.add_argument("set", choices=options("dataset"))
    parser.add_argument("--data", type=Path, help="data root (default: MEMSYS_DATA, else the user's cache)")
    parser.add_argument("--sample", action="store_true", help="the small history shipped with the loaders")
    parser.add_argument("--unpinned", action="store_true", help="accept files whose sha256 is not known")
    parser.add_argument("--notes", type=whole(0), default=20, help="how many of the loader's notes to print")
    args = parser.parse_args(arguments)
    from memsys.tokens import count_tokens

    settings = load_option("dataset", args.set)
    located = locate(settings, real=not args.sample, root=args.data, unpinned=args.unpinned)
    cases = loader({**settings["load"], **located.choices})(located.source.path)
    seen = survey(cases, settings["unit"], count_tokens)
    print(report(located.source, settings, seen, args.notes))
    return 0
