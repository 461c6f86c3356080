"""What `memsys-bench conformance` does: build the memory as a run would, put the canaries through it, print what they came to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from eval.conformance.checks import FAULTS, ConformanceResult, examine
from eval.files.store import RunError
from eval.running.loop import clear_up
from eval.running.run import build_memory
from scripts.assembly.runs import memory_run, reader, recipe_of
from scripts.lab.lab import Lab
from scripts.setup.exits import configured
from scripts.setup.replays import check_no_replay
from scripts.tables.captions import models_line

if TYPE_CHECKING:
    from omegaconf import DictConfig


def conformance(cfg: DictConfig) -> int:
    """Examine one memory; 1 if it is refused, 2 if the input is wrong."""
    return configured(cfg, "config", _conformance)


def _conformance(cfg: DictConfig) -> int:
    from omegaconf import OmegaConf

    lab = Lab(cfg=cfg)
    dataset = lab.load()
    memory: dict[str, object] = dict(OmegaConf.to_container(cfg.memory, resolve=True))  # type: ignore[arg-type]
    if memory.get("control"):
        raise RunError(f"{memory['name']} is made of the answer key; it has nothing to conform to")
    run = memory_run(cfg, lab.models, dataset, memory, reader(dataset.config["reader"]))
    check_no_replay(cfg, run, "conformance")
    recipe = recipe_of(dataset, memory)
    clear_up([run])
    started = time.perf_counter()
    verdict = examine(lambda case: build_memory(run, case), run.unit)
    seconds = time.perf_counter() - started
    print(shown(recipe.name, str(memory["title"]), verdict, recipe.waived))
    print(f"{seconds:.1f} s. {models_line(lab.models)}.")
    return 1 if verdict.unwaived(recipe.waived) else 0


def shown(name: str, title: str, verdict: ConformanceResult, waived: Mapping[str, str]) -> str:
    """The verdict as text: a line for each check, and whether the memory is refused."""
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
