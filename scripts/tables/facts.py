"""Facts in words next to a row's scores: its recall settings, its costs, and the result of conformance.

Conformance is examined once for each memory with its settings and models, and saved in `<results>/conformance`. A table examines the
requested rows if no call is paid for; otherwise it prints the saved results of `memsys-bench conformance`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.analysis.costs import Price, costs
from eval.files.provenance import identity
from eval.files.run_folder import RunFolder
from eval.files.store import read_record, replace_file
from eval.report.rendering import run_money
from eval.running.loop import clear_up
from eval.running.run import Run, build_memory
from scripts.assembly.runs import knobs_of

if TYPE_CHECKING:
    from eval.conformance.checks import ConformanceResult

NOT_EXAMINED = "not examined"
RULES = {"utterance": "single turns", "floor_pair": "pairs of turns", "ab_pair": "pairs of turns (fixed speakers)"}
"""Unit rules in words; other rules keep their names."""


def fact(run: Run, memory: Mapping[str, Any], name: str, prices: Mapping[str, Price]) -> str:
    """A fact about a run as text: `recall`, `price` or `conformance`.

    Args:
        memory: values of the row's memory, with the row's settings.
    """
    if name == "recall":
        return recall_protocol(run, memory)
    return price(run, prices) if name == "price" else conformance(run)


def recall_protocol(run: Run, memory: Mapping[str, Any]) -> str:
    """The unit, the settings that only reading uses, and the memory file's note on its protocol (`recall`)."""
    unit = RULES.get(run.unit["rule"], run.unit["rule"])
    knobs = {name: value for name, value in knobs_of(memory).items() if isinstance(value, int | str | None)}
    said = [f"{name} {'all' if value is None else value}" for name, value in knobs.items()]
    return "; ".join([unit, *said, *([memory["recall"]] if memory.get("recall") else [])])


def price(run: Run, prices: Mapping[str, Price]) -> str:
    """Model tokens of building and embedding a unit and of a question, and the dollars of the whole run with its judges."""
    spent = costs(run.folder)
    if spent.missing:
        return f"unknown: {spent.missing}"
    build, embedded = spent.build_tokens_per_unit or 0, spent.embedding_tokens_per_unit or 0
    asked, usd = spent.inference_tokens or 0, run_money(run.folder, prices)
    shown = usd if usd in ("–", "unknown") else f"${usd}"
    return f"{build:,.0f} + {embedded:,.0f} embedded tokens a unit; {asked:,.0f} a question; run {shown}"


def conformance(run: Run) -> str:
    """`accepted`, `refused` with the faults' names, or a note that the memory was not examined with these settings and models."""
    if run.control is not None:
        return "–"
    if not (path := _file(run)).is_file():
        return NOT_EXAMINED
    kept = read_record(path)
    if kept["refused"]:
        return f"refused: {', '.join(kept['refused'])}"
    waived = ", ".join(kept["faults"])
    return f"accepted, waived: {waived}" if waived else "accepted"


def examine_and_keep(run: Run, waived: Collection[str]) -> ConformanceResult:
    """Run the conformance checks on a run's memory and save the result.

    Raises:
        EndOfRun: no further call can be made; nothing is saved.
    """
    from eval.conformance.checks import FAULTS, examine

    clear_up([run])
    verdict = examine(lambda case: build_memory(run, case), run.unit)
    kept = {
        "memory": run.name,
        "refused": verdict.unwaived(waived),
        "faults": {name: verdict.faults[name] for name in FAULTS if name in verdict.faults},
        "unchecked": dict(verdict.unchecked),
    }
    replace_file(_file(run), json.dumps(kept, indent=1) + "\n")
    return verdict


def is_examined(run: Run) -> bool:
    """Whether conformance is known; controls are built from the answer key and have none."""
    return run.control is not None or _file(run).is_file()


def _file(run: Run) -> Path:
    """The file of a memory's result; its name identifies everything that affects the memory: the loader, but no data or reader."""
    content = run.record.content
    parts = {name: content[name] for name in ("memory", "unit", "source", "distributions", "replies")}
    models = {role: settings for role, settings in run.record.models.items() if role != "reader"}
    known = identity({**parts, "models": models, "outside": content.get("outside")})
    return RunFolder(run.folder).results / "conformance" / f"{run.name}-{known}.json"
