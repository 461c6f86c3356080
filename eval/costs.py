"""What a memory costs, from the effort lines of its run: tokens, calls, seconds and money, by phase."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.store import read_lines

BUILD = ("embed", "write", "consolidate")
ROLES = {**dict.fromkeys((*BUILD, "read"), "memory"), "answer": "reader"}
"""Whose model works in a phase; what a memory asks of a probe model is booked as the memory's."""

Price = Callable[[int, int, int], float | None]
"""Tokens in, out and cached to US dollars; None when the price is unknown."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Sums and means over a run; None where there was nothing to measure."""

    units: int
    questions: int
    recalled_tokens: float | None
    """Tokens of recalled text shown to the reader, mean per question."""
    inference_tokens: float | None
    """Model tokens in and out of reading and answering, mean per question."""
    build_tokens_per_unit: float | None
    """Model tokens in and out of building, per unit; embedding tokens are apart."""
    embedding_tokens_per_unit: float | None
    calls_per_insertion: float | None
    """Logical model calls of building per unit, consolidations included (amortised)."""
    calls_per_query: float | None
    """Logical model calls of reading, mean per question; the reader's own call is not among them."""
    recall_seconds_p50: float | None
    """Own CPU + provider seconds on the critical path of a read: median over questions."""
    recall_seconds_p95: float | None
    recall_seconds_sum_p50: float | None
    """The same with concurrent calls added up: median."""
    build_seconds: float
    """Own CPU + provider seconds of all building."""
    parse_failures: int
    failed_calls: int
    dropped_items: int
    """Recalled items that did not fit the reader's token budget."""
    held: int
    """Entries at the end of the largest case."""
    tokens: Mapping[str, tuple[int, int, int]]
    """Tokens (in, out, cached) by role: memory, reader."""
    embedding_tokens: int


def costs(run_folder: Path) -> Costs:
    """Read all effort lines of a run."""
    lines = [line for path in sorted(run_folder.glob("cases/*/effort.jsonl")) for line in read_lines(path, again=False)]
    phases: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        phases.setdefault(line["phase"], []).append(line)
    built = [line for phase in BUILD for line in phases.get(phase, ())]
    reads, answers = phases.get("read", []), phases.get("answer", [])
    units, questions = len(phases.get("write", ())), len(reads)
    seconds = [line["own_cpu_seconds"] + line["provider_seconds"] for line in reads]
    plain = [line["own_cpu_seconds"] + line["provider_seconds_sum"] for line in reads]
    return Costs(
        units=units,
        questions=questions,
        recalled_tokens=_ratio(_total(answers, "context_tokens"), len(answers)),
        inference_tokens=_ratio(_tokens([*reads, *answers]), questions),
        build_tokens_per_unit=_ratio(_tokens(built), units),
        embedding_tokens_per_unit=_ratio(_total(built, "embedding_tokens"), units),
        calls_per_insertion=_ratio(_counted(built, "calls"), units),
        calls_per_query=_ratio(_counted(reads, "calls"), questions),
        recall_seconds_p50=_percentile(seconds, 50),
        recall_seconds_p95=_percentile(seconds, 95),
        recall_seconds_sum_p50=_percentile(plain, 50),
        build_seconds=sum(line["own_cpu_seconds"] + line["provider_seconds"] for line in built),
        parse_failures=int(_counted(lines, "parse_failures")),
        failed_calls=int(_counted(lines, "failures")),
        dropped_items=int(_total(lines, "dropped_items")),
        held=max((line["held"] for line in lines), default=0),
        tokens={"memory": _by_kind([*built, *reads]), "reader": _by_kind(answers)},
        embedding_tokens=int(_total(lines, "embedding_tokens")),
    )


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Sums over one phase of a run, or over one judge."""

    phase: str
    role: str
    """memory or reader; of a judge the identity of its model."""
    steps: int
    calls: int
    sent: int
    """Calls that were not answered from the cache."""
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    embedding_tokens: int
    own_cpu_seconds: float
    provider_seconds: float
    """On the critical path of each step."""
    provider_seconds_sum: float


def phases(run_folder: Path) -> list[PhaseCost]:
    """What each phase of a run cost, in order; then each judge that has scored it."""
    lines: dict[str, list[dict[str, Any]]] = {phase: [] for phase in ROLES}
    for path in sorted(run_folder.glob("cases/*/effort.jsonl")):
        for line in read_lines(path, again=False):
            lines[line["phase"]].append(line)
    found = [_phase(phase, ROLES[phase], of) for phase, of in lines.items() if of]
    for path in sorted(run_folder.glob("scores/*.effort.jsonl")):
        name = path.name.removesuffix(".effort.jsonl")
        settings = json.loads(path.with_name(f"{name}.json").read_text(encoding="utf-8"))
        found.append(_phase(name.rpartition("-")[0], settings["model"], read_lines(path, again=False)))
    return found


def _phase(phase: str, role: str, lines: Sequence[Mapping[str, Any]]) -> PhaseCost:
    return PhaseCost(
        phase=phase,
        role=role,
        steps=len(lines),
        calls=int(_counted(lines, "calls")),
        sent=int(_total(lines, "sent")),
        tokens_in=int(_total(lines, "tokens_in")),
        tokens_out=int(_total(lines, "tokens_out")),
        tokens_cached=int(_total(lines, "tokens_cached")),
        embedding_tokens=int(_total(lines, "embedding_tokens")),
        own_cpu_seconds=_total(lines, "own_cpu_seconds"),
        provider_seconds=_total(lines, "provider_seconds"),
        provider_seconds_sum=_total(lines, "provider_seconds_sum"),
    )


def by_purpose(run_folder: Path, counter: str = "calls") -> Counter[str]:
    """Calls (or attempts, failures, parse failures, notes) of a run by purpose."""
    total: Counter[str] = Counter()
    for path in sorted(run_folder.glob("cases/*/effort.jsonl")):
        for line in read_lines(path):
            total.update(line[counter])
    return total


def _total(lines: Iterable[Mapping[str, Any]], name: str) -> float:
    return float(sum(line[name] for line in lines))


def _tokens(lines: Iterable[Mapping[str, Any]]) -> float:
    return float(sum(line["tokens_in"] + line["tokens_out"] for line in lines))


def _by_kind(lines: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    return int(_total(lines, "tokens_in")), int(_total(lines, "tokens_out")), int(_total(lines, "tokens_cached"))


def _counted(lines: Iterable[Mapping[str, Any]], name: str) -> float:
    return float(sum(sum(line[name].values()) for line in lines))


def _ratio(total: float, count: int) -> float | None:
    return total / count if count else None


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None
