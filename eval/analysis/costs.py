"""Costs of a memory, from the effort lines of its run: tokens, calls, seconds and money, by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval.files.fields import PER_QUESTION
from eval.files.imported import NOT_RECORDED, recorded
from eval.files.records import BUILD_FAILED
from eval.files.run_folder import (
    COMPLETE,
    COSTS,
    EFFORTS,
    PREDICTIONS,
    RunFolder,
    RunRecord,
    metric_of,
    read_predictions,
)
from eval.files.store import AGAIN, RunError, read_lines, read_record

BUILD = ("embed", "write", "consolidate")
ROLES = {**dict.fromkeys((*BUILD, "read"), "memory"), "answer": "reader"}
"""The role whose model works in a phase, apart from the calls that a memory makes to the probe."""
EMBEDDER, PROBE = "embedder", "probe"
"""Roles without a phase. Effort lines count the calls of the probe separately (`Effort.roles`): its model may differ from the memory's."""
BATCHED = "batch"
"""The note of a reply that came in a batch (`memsys.llm.client`)."""
BATCH_EMBEDDED = f"{BATCHED}.embedding_tokens"
"""The note of the tokens of vectors that came in a batch (`memsys.llm.cache`)."""
DISCOUNT = "batch_discount"
"""Key in `made_with` of `run.json`: the price of a batched call divided by that of a live one, where it is not the usual one."""

Price = Callable[[float, float, float], float | None]
"""US dollars for tokens in, out and cached; None when the price is unknown."""

PREFIX_AGAIN = ".prefix_again"
"""End of the name of a note that counts repeated prompt tokens: an earlier prompt of the same read began with them already."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Sums and means over a run; a mean is None where nothing was measured or the effort file of a case is missing."""

    units: int
    questions: int
    recalled_tokens: float | None
    """Tokens of recalled text shown to the reader, mean per question."""
    inference_tokens: float | None
    """Model tokens in and out of reading and answering, mean per question."""
    inference_tokens_prefix_once: float | None
    """The same, but a prefix that prompts of one read share counts once, as on a server that caches it (xMemory's release)."""
    build_tokens_per_unit: float | None
    """Model tokens in and out of building, per unit; without embedding tokens."""
    embedding_tokens_per_unit: float | None
    calls_per_insertion: float | None
    """Logical model calls of building per unit, consolidations included (amortised)."""
    calls_per_query: float | None
    """Logical model calls of reading, mean per question, without the reader's own call."""
    recall_seconds_p50: float | None
    """Own CPU plus provider seconds on the critical path of a read: median over questions."""
    recall_seconds_p95: float | None
    """The same, interpolated linearly: of fewer than 20 questions it lies between the two slowest (`load` prints nearest ranks)."""
    recall_seconds_sum_p50: float | None
    """The same median, with the seconds of concurrent calls added up."""
    build_seconds: float
    """Own CPU plus provider seconds of all building."""
    parse_failures: int
    cut: int
    """Replies to the memory that were cut at their token limit, within the answer or before it."""
    failed_calls: int
    dropped_items: int
    """Recalled items that did not fit the reader's token budget."""
    held: int
    """Entries in the largest memory of any case."""
    embedding_tokens: int
    missing: str
    """The reason for missing means: the number of cases without an effort file, or `not recorded` for imported answers; else empty."""


@dataclass(frozen=True, slots=True)
class CostColumn:
    """A cost as terminal, Markdown, report and card show it. A new cost is a field of `Costs`, its sum in `costs`, and an entry of
    `COST_COLUMNS`. CSV and LaTeX show the costs that a table names as columns (`cost: NAME`).
    """

    name: str
    """Field of `Costs`."""
    title: str
    digits: int = 0
    short: str = ""
    """Header in the wide terminal table; empty where it is not shown there."""
    compared: bool = False
    """Whether the report sorts and plots memories by it."""
    once: str = ""
    """Field with the same cost when a prefix that prompts share counts once; shown next to the cost where the two differ."""


COST_COLUMNS = (
    CostColumn("recalled_tokens", "recalled tokens", short="recalled", compared=True),
    CostColumn("inference_tokens", "inference tokens", compared=True, once="inference_tokens_prefix_once"),
    CostColumn("build_tokens_per_unit", "build tokens / unit", 1, compared=True),
    CostColumn("embedding_tokens_per_unit", "embedding tokens / unit", 1),
    CostColumn("calls_per_insertion", "calls / insertion", 2, compared=True),
    CostColumn("calls_per_query", "calls / query", 2, short="calls/query", compared=True),
    CostColumn("recall_seconds_p50", "recall s P50", 4, short="recall s", compared=True),
    CostColumn("recall_seconds_p95", "recall s P95", 4),
    CostColumn("recall_seconds_sum_p50", "recall s P50, calls summed", 4),
    CostColumn("units", "units"),
    CostColumn("parse_failures", "parse failures"),
    CostColumn("cut", "replies cut"),
    CostColumn("failed_calls", "failed calls"),
    CostColumn("dropped_items", "items over budget"),
)

TOKENS = ("tokens_in", "tokens_out", "tokens_cached")
SECONDS = ("own_cpu_seconds", "provider_seconds", "provider_seconds_sum")
SUMMED = ("sent", *TOKENS, "embedding_tokens", *SECONDS, "context_tokens", "dropped_items")
COUNTED = ("calls", "failures", "parse_failures")
"""Fields of an effort line that hold counts by purpose."""
NEEDED = ("case_id", "phase", "subject", "held", "notes", *SUMMED, *COUNTED)


class Sums(Counter[str]):
    """Effort lines added up; `steps` counts the lines, `tokens` those of models in and out, `probe.<field>` holds the probe's share."""

    def add(self, line: Mapping[str, Any]) -> None:
        self["steps"] += 1
        self["tokens"] += line["tokens_in"] + line["tokens_out"]
        for name in SUMMED:
            self[name] += line[name]
        for name in COUNTED:
            self[name] += sum(line[name].values())
        for name, ends in (("cut", (": cut", ": cut in thought")), ("prefix_again", PREFIX_AGAIN)):
            self[name] += sum(count for note, count in line["notes"].items() if note.endswith(ends))
        self[BATCH_EMBEDDED] += line["notes"].get(BATCH_EMBEDDED, 0)
        probe = line.get("roles", {}).get(PROBE, {})  # lines of earlier versions have no roles
        for name, count in probe.items():
            self[f"{PROBE}.{name}"] += count
        if batched := line["notes"].get(BATCHED, 0):  # the probe is never batched
            came = sum(line["calls"].values()) - sum(line["failures"].values()) - probe.get("calls", 0)
            for name in TOKENS:
                self[f"{BATCHED}.{name}"] += (line[name] - probe.get(name, 0)) * batched / max(batched, came)


@dataclass
class Spent:
    """Effort lines of one history or several, added up; further lines may follow while a run goes on.

    A build's step counts the embedding tokens of vectors that its case has bought in advance (phase `embed`), although it takes them from
    the cache. They count where they are used: `by_phase` subtracts them from the purchase.
    """

    seconds: list[float] = field(default_factory=list)
    """Seconds of each read on its critical path."""
    summed_seconds: list[float] = field(default_factory=list)
    """The same, with the seconds of concurrent calls added up."""
    held: int = 0
    """Entries in the largest memory of any case."""
    _by_phase: dict[str, Sums] = field(default_factory=lambda: {phase: Sums() for phase in ROLES})
    _bought: dict[str, Sums] = field(default_factory=dict)
    """Lines of phase `embed` by case."""
    _used: Counter[str] = field(default_factory=Counter)
    """Embedding tokens by case that were bought in advance and used."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Add an effort line with the fields `NEEDED`."""
        phase, case_id = line["phase"], line["case_id"]
        self._by_phase.setdefault(phase, Sums()).add(line)
        if phase == "embed":
            self._bought.setdefault(case_id, Sums()).add(line)
        elif phase in BUILD and case_id in self._bought:
            left = self._bought[case_id]["embedding_tokens"] - self._used[case_id]
            self._used[case_id] += min(left, line["embedding_tokens"])
        self.held = max(self.held, line["held"])
        if phase == "read":
            self.seconds.append(line["own_cpu_seconds"] + line["provider_seconds"])
            self.summed_seconds.append(line["own_cpu_seconds"] + line["provider_seconds_sum"])

    def by_phase(self) -> dict[str, Sums]:
        """The sums of each phase, in the order of `ROLES`, then of other phases; without what was bought in advance and used."""
        embed = Sums(self._by_phase["embed"])
        for case_id, own in self._bought.items():
            embed["embedding_tokens"] -= self._used[case_id]
            # A counter's values are typed as integers.
            share: Any = self._used[case_id] / max(1, own["embedding_tokens"])
            for name in ("provider_seconds", "provider_seconds_sum", BATCH_EMBEDDED):
                embed[name] -= own[name] * share
        return {**self._by_phase, "embed": embed}


def costs(run_folder: Path, questions: frozenset[tuple[str, str]] | None = None, spent: Spent | None = None) -> Costs:
    """Add up all effort lines of a run; for imported answers, return the costs of their file.

    Args:
        questions: case and question ids whose reads and answers count; None counts all. Builds count in either case. The recorded costs
            of imported answers are not split by question.
        spent: the sums of the effort lines, where they have been read.
    """
    if _record(RunFolder(run_folder)).imported:
        return _recorded_costs(run_folder)
    spent = spent or _spent(run_folder, _stamp(RunFolder(run_folder).written(EFFORTS)), questions)
    by_phase, seconds, summed_seconds = spent.by_phase(), spent.seconds, spent.summed_seconds
    cases = [path.parent for path in RunFolder(run_folder).written(PREDICTIONS)]
    lost = sum(not (case / EFFORTS).is_file() for case in cases)
    missing = f"effort of {lost} of {len(cases)} cases missing" if lost else ""
    units, reads, answers = by_phase["write"]["steps"], by_phase["read"], by_phase["answer"]
    built, memory, everything = Sums(), Sums(), Sums()
    for phase, sums in by_phase.items():
        for total, belongs in ((built, phase in BUILD), (memory, ROLES[phase] == "memory"), (everything, True)):
            if belongs:
                total.update(sums)
    inference, asked = reads["tokens"] + answers["tokens"], reads["steps"]
    shares = {
        "recalled_tokens": (answers["context_tokens"], answers["steps"]),
        "inference_tokens": (inference, asked),
        "inference_tokens_prefix_once": (inference - reads["prefix_again"], asked),
        "build_tokens_per_unit": (built["tokens"], units),
        "embedding_tokens_per_unit": (built["embedding_tokens"], units),
        "calls_per_insertion": (built["calls"], units),
        "calls_per_query": (reads["calls"], asked),
    }
    if missing:
        shares, seconds, summed_seconds = dict.fromkeys(shares, (0, 0)), [], []
    return Costs(
        units=units,
        questions=asked,
        **{name: total / count if count else None for name, (total, count) in shares.items()},
        recall_seconds_p50=_percentile(seconds, 50),
        recall_seconds_p95=_percentile(seconds, 95),
        recall_seconds_sum_p50=_percentile(summed_seconds, 50),
        build_seconds=float(built["own_cpu_seconds"] + built["provider_seconds"]),
        parse_failures=everything["parse_failures"],
        cut=memory["cut"],
        failed_calls=everything["failures"],
        dropped_items=everything["dropped_items"],
        held=spent.held,
        embedding_tokens=everything["embedding_tokens"],
        missing=missing,
    )


def _record(run: RunFolder) -> RunRecord:
    return RunRecord.of(read_record(run.file), run.file, whole=False) if run.file.is_file() else RunRecord()


def _recorded_costs(run_folder: Path) -> Costs:
    """The costs of imported answers: a value that the file does not have is None, and counts are 0 because nothing was counted."""
    values: dict[str, Any] = {field.name: None if "None" in str(field.type) else 0 for field in fields(Costs)}
    tokens, seconds = recorded(run_folder, "recalled_tokens"), recorded(run_folder, "recall_seconds")
    values["recalled_tokens"] = sum(tokens) / len(tokens) if tokens else None
    values["recall_seconds_p50"], values["recall_seconds_p95"] = (_percentile(seconds, each) for each in (50, 95))
    return Costs(**{**values, "missing": NOT_RECORDED})


RECORDED_COSTS = ("recalled_tokens", "recall_seconds_p50", "recall_seconds_p95")
"""Fields of `Costs` that the file of imported answers may have."""


def cost_missing(run_folder: Path, name: str) -> str:
    """Say why a run lacks a cost (a field of `Costs`, or another name that `eval.report.measures.cost` takes); empty when it has it."""
    known = costs(run_folder)
    recorded_there = known.missing == NOT_RECORDED and name in RECORDED_COSTS and getattr(known, name) is not None
    return "" if recorded_there else known.missing


# Larger than the number of runs in any table, because a table asks for the same sums several times. No argument has a default: a sum
# asked for with and without it would be two entries.
@lru_cache(maxsize=512)
def _spent(run_folder: Path, stamp: object, questions: frozenset[tuple[str, str]] | None) -> Spent:
    """The effort lines of a run added up; `questions` as for `costs`.

    Args:
        stamp: `_stamp` of the effort files: a changed file changes it, so the sums are computed again.
    """
    spent = Spent()
    for line in efforts(run_folder):
        if questions is None or line["phase"] not in PER_QUESTION or (line["case_id"], line["subject"]) in questions:
            spent.add(line)
    return spent


@lru_cache(maxsize=2048)  # a run has a few judges
def _judged(path: Path, stamp: object) -> Sums:
    """A judge's effort lines added up; `stamp` as for `_spent`."""
    sums = Sums()
    for line in read_lines(path, fields=NEEDED):
        sums.add(line)
    return sums


def _stamp(files: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """Path, size and time of each file; they change when a file is written."""
    stats = [(path, path.stat()) for path in files]
    return tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def efforts(run_folder: Path) -> Iterator[dict[str, Any]]:
    """The effort lines of a run, case by case."""
    for path in RunFolder(run_folder).written(EFFORTS):
        yield from read_lines(path, fields=NEEDED)


def built(run_folder: Path) -> frozenset[str]:
    """Ids of the cases with a whole build: they are complete, and no question is left over from a build that failed."""
    whole = set()
    for case in RunFolder(run_folder).complete():
        answers = read_predictions(case).values()
        if not any(each.outcome == "error" and each.error.startswith(BUILD_FAILED) for each in answers):
            whole.add(str(read_record(case / COMPLETE)["case_id"]))
    return frozenset(whole)


class Usage(NamedTuple):
    """Calls and tokens of one role."""

    calls: int
    tokens_in: int
    tokens_out: int
    tokens_cached: int


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Sums over one phase of a run, or over one judge."""

    phase: str
    role: str
    """memory or reader; of a judge, the identity of its model."""
    by_role: Mapping[str, Usage]
    """The sums by the role whose model is paid for them: `role`, and the probe where the memory asked it."""
    batched: Mapping[str, tuple[float, float, float]]
    """Tokens in, out and cached that came in batches: of `role`, and of the embedder."""
    discount: float
    """Of the run (`batch_discount`)."""
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
    """Seconds on the critical path of each step."""
    provider_seconds_sum: float
    """Seconds of all calls, concurrent ones added up."""


def phases(run_folder: Path, spent: Spent | None = None) -> list[PhaseCost]:
    """Costs of each phase of a run, in order, then of each judge; `spent` as for `costs`."""
    folder = RunFolder(run_folder)
    discount = batch_discount(_record(folder).made_with)
    by_phase = (spent or _spent(run_folder, _stamp(folder.written(EFFORTS)), None)).by_phase()
    made = [phase_cost(phase, ROLES[phase], sums, discount) for phase, sums in by_phase.items() if sums["steps"]]
    for path in folder.score_costs():
        settings = path.with_name(f"{path.name.removesuffix(COSTS)}.json")
        model = read_record(settings).get("model")
        if not isinstance(model, str):
            raise RunError(f"{settings} names no model; {AGAIN}")
        made.append(phase_cost(metric_of(path), model, _judged(path, _stamp([path])), discount))
    return made


def phase_cost(phase: str, role: str, sums: Sums, discount: float) -> PhaseCost:
    """The costs of a phase from the sums of its lines; the other arguments are fields of `PhaseCost`."""
    probe = Usage(*(sums[f"{PROBE}.{name}"] for name in Usage._fields))
    own = Usage(*(sums[name] - asked for name, asked in zip(Usage._fields, probe, strict=True)))
    by_role = {role: own, PROBE: probe} if probe.calls else {role: own}
    replies = tuple(sums[f"{BATCHED}.{name}"] for name in TOKENS)
    batched = {role: replies, EMBEDDER: (sums[BATCH_EMBEDDED], 0, 0)}
    values: dict[str, Any] = {each.name: sums[each.name] for each in fields(PhaseCost)}
    values |= {"phase": phase, "role": role, "by_role": by_role, "batched": batched, "discount": discount}
    return PhaseCost(**values)


def batch_discount(made_with: Mapping[str, Any]) -> float:
    """The price of a batched call divided by that of a live one, as the command of the run named it (`endpoint.batch.discount`)."""
    from memsys.llm.batching.endpoint import BatchSettings

    discount = made_with.get(DISCOUNT)
    return discount if isinstance(discount, int | float) else BatchSettings().discount


def dollars(cost: PhaseCost, prices: Mapping[str, Price]) -> list[float | None]:
    """Cost of each priced model of a phase, and what batches saved; None where the price is unknown. Offline engines have no price."""
    used = {role: usage[1:] for role, usage in cost.by_role.items()}
    parts: list[float | None] = []
    paid = {**used, EMBEDDER: (cost.embedding_tokens, 0, 0)}
    for factor, tokens in ((1.0, paid), (cost.discount - 1.0, cost.batched)):
        priced = (prices[role](*amounts) for role, amounts in tokens.items() if role in prices and any(amounts))
        parts += [None if usd is None else factor * usd for usd in priced]
    return parts


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None
