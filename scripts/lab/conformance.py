"""Build a memory as a run would, write and read test facts (canaries), print the results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from eval.conformance.checks import FAULTS, ConformanceResult
from eval.files.store import RunError
from scripts.assembly.datasets import Data
from scripts.assembly.runs import memory_run, reader, recipe_of
from scripts.assembly.steps import check_no_replay
from scripts.lab.lab import Lab
from scripts.tables.captions import models_line
from scripts.tables.facts import examine_and_keep


def examined(lab: Lab, dataset: Data, memory: Mapping[str, Any]) -> bool:
    """Write and read the canaries, print the results, and return whether the memory is accepted.

    Args:
        dataset: the memory is built with its reader and unit rule.
        memory: as `Lab.memory` returns it.

    Raises:
        RunError: the memory is built from the answer key, or a replay would have to call a service.
    """
    if memory.get("control"):
        raise RunError(f"{memory['name']} is made of the answer key; it has nothing to conform to")
    run = memory_run(lab.cfg, lab.models, dataset, memory, reader(dataset.config["reader"]))
    check_no_replay(lab.cfg, run, "conformance")
    recipe = recipe_of(dataset, memory)
    started = time.perf_counter()
    verdict = examine_and_keep(run, recipe.waived)
    seconds = time.perf_counter() - started
    print(shown(recipe.name, str(memory["title"]), verdict, recipe.waived))
    print(f"{seconds:.1f} s. {models_line(lab.models)}.")
    return not verdict.unwaived(recipe.waived)


def shown(name: str, title: str, verdict: ConformanceResult, waived: Mapping[str, str]) -> str:
    """The result as text: a line for each check, and whether the memory is refused."""
    lines = [f"Conformance of {name} ({title})"]
    for fault, meaning in FAULTS.items():
        seen = verdict.faults.get(fault)
        if seen is not None and fault in waived:
            lines.append(f"  waived       {fault}: {seen}. {waived[fault]}")
        elif seen is not None:
            lines.append(f"  FAULT        {fault}: {meaning}; {seen}")
        elif fault in verdict.unchecked:
            lines.append(f"  not checked  {fault}: {verdict.unchecked[fault]}")
        else:
            lines.append(f"  passed       {fault}")
    refused = verdict.unwaived(waived)
    lines.append(f"refused: {', '.join(refused)}" if refused else "accepted")
    return "\n".join(lines)
