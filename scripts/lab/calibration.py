"""`memsys-bench calibrate`: build one history's tree at several thresholds, print its shapes, write the fitted settings.

SegTreeMem gives no threshold for its cosine placement. The scale of cosines depends on the embedder, so the value that gives the
published depth of Table 5 must be searched for each embedder. No question is asked and no gold answer is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_loaders.units import make_units
from eval.files.store import RunError, replace_file
from eval.report.published import find, read_published
from eval.running.run import build_memory
from memsys.tokens import count_tokens
from scripts.assembly.readiness import check_endpoint
from scripts.assembly.steps import check_no_replay
from scripts.lab.lab import Lab
from scripts.settings.schema import Calibrate
from scripts.tables.captions import models_line

SETTING = "tau_c"


@dataclass(frozen=True, slots=True)
class Trial:
    """The tree of one history at one threshold; depth and nodes without nodes that have a single child."""

    tau_c: float
    nodes: int
    depth: int
    none_rate: float
    """Share of the placements that opened a new root, or would have, from 0 to 1."""
    at_max_depth: int
    """Number of placements that attached a unit to the root because the tree may not grow higher."""


def calibrate(cfg: Calibrate) -> int:
    lab = Lab(cfg=cfg)
    check_endpoint(cfg, lab.models)
    dataset, memory = lab.load(), lab.memory()
    if memory["build"].get("compatibility") != "cosine":
        raise RunError(
            f"{memory['name']} places units by no cosine; calibrate fits {SETTING} of such a memory: segtree_cosine"
        )
    target = cfg.target_depth
    if target is None:
        wanted = {"dataset": dataset.title, "method": "SegTreeMem", "variant": "Cosine", "metric": "max_depth"}
        if (published := find(read_published("segtreemem_t5"), wanted)) is None:
            raise RunError(f"SegTreeMem's Table 5 has no depth for {dataset.title}: give target_depth")
        target = published.value
    case = next((case for case in dataset.cases if cfg.history in (None, case.id)), None)
    if case is None:
        raise RunError(f"history: the data set has no history {cfg.history!r}")
    trials = []
    for value in sorted(set(cfg.tau_c)):
        run = lab.run({**memory, "build": {**memory["build"], SETTING: value}}, dataset)
        check_no_replay(cfg, run, "calibrate")
        tree = build_memory(run, case)  # its annotations are made as in a run
        for unit in make_units(case.sessions, count=count_tokens, **dict(run.unit)).units:
            tree.write(unit)
        report = tree.report()
        shape, capped = report["without_chains"], report.get("attached_to_root_at_max_depth", 0)
        trials.append(Trial(value, shape["nodes"], shape["max_depth"], report["none_rate"], capped))
        if trials[-1].at_max_depth and trials[-1].depth > target:
            break  # stop: a higher threshold only opens more roots, and every tree costs the calls of a whole build
    chosen = nearest(trials, target)
    embedder = lab.models.embedder.name
    path = Path(cfg.results) / "calibrated" / f"{memory['name']}-{re.sub(r'[^A-Za-z0-9._-]+', '_', embedder)}.yaml"
    replace_file(path, settings_file(memory, chosen, embedder, f"{dataset.name}, history {case.id}", target))
    print(f"{memory['title']} on history {case.id} of {dataset.title}, embedder {embedder}. {models_line(lab.models)}.")
    print(shown(trials, chosen, target))
    print(f"written: {path}")
    print(f"copy it to conf/memory/{memory['name']}.yaml of the working folder: tables and figures then take it")
    return 0


def nearest(trials: Sequence[Trial], target: float) -> Trial:
    """The trial whose depth is nearest to the target; among several, the first with the fewest roots: NONE is rare in the paper."""
    return min(trials, key=lambda trial: (abs(trial.depth - target), trial.none_rate, trial.tau_c))


def shown(trials: Sequence[Trial], chosen: Trial, target: float) -> str:
    """The trials as lines; the chosen one is marked."""
    lines = [f"target depth {target:g}", "  tau_c  nodes  depth   NONE  at the depth limit"]
    for trial in trials:
        mark = "*" if trial is chosen else " "
        lines.append(
            f"{mark} {trial.tau_c:<5g} {trial.nodes:>6} {trial.depth:>6} {trial.none_rate:>6.1%} {trial.at_max_depth:>6}"
        )
    if trials[-1].at_max_depth:
        lines.append("the last tree reached its depth limit: higher values were not built")
    if abs(chosen.depth - target) > 1:
        lines.append("no value comes within one level of the target: widen tau_c")
    return "\n".join(lines)


def settings_file(memory: Mapping[str, Any], chosen: Trial, embedder: str, data: str, target: float) -> str:
    """The memory's settings with the chosen threshold and the embedder that it is fitted to, as YAML."""
    import yaml

    values = {**memory, "fitted_to": embedder, "build": {**memory["build"], SETTING: chosen.tau_c}}
    why = f"# {SETTING} was fitted to {embedder} on {data}: depth {chosen.depth} (target {target:g}), {chosen.none_rate:.1%} NONE."
    return " ".join(why.split()) + "\n" + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
