"""Two runs' trees compared component by component, as SegTreeMem Table 9 compares its tree with the non-temporal control.

`conf/designs.yaml` describes how each tree places a unit, with the run's own settings. Units, annotation and reading are compared
as the runs recorded them, and the order in time is counted in the saved trees (`span_counts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from eval.files.run_folder import RunFolder, RunRecord
from eval.files.store import RunError
from eval.structure.tree import Tree, top_down
from memsys.systems.segtree.reading import TreeMemory
from scripts.assembly.run_folders import data_of, trees_of
from scripts.setup.options import CONF

ANNOTATION = ("annotate", "summary_tokens")
"""Settings of the annotations, next to the prompt and the model."""


def span_counts(tree: Tree, turns: Sequence[str]) -> tuple[int, int]:
    """Count the nodes of several units whose units are consecutive in the history, and all nodes of several units.

    Args:
        turns: ids of the history's turns, in order. A leaf has the position of its first turn.
    """
    place = {turn: number for number, turn in enumerate(turns)}
    below = tree.children
    leaves = [node for node, under in enumerate(below) if not under]
    leaves.sort(key=lambda node: min(place[turn] for turn in tree.sources[node]))
    held = [set[int]() for _ in below]
    for number, leaf in enumerate(leaves):
        held[leaf] = {number}
    for node in reversed(top_down(tree)):
        held[node] = held[node].union(*(held[child] for child in below[node]))
    several = [units for units in held if len(units) > 1]
    return sum(max(units) - min(units) + 1 == len(units) for units in several), len(several)


def design_lines(run_folder: Path, other: Path, root: Path | None) -> list[str]:
    """One line per component and run; a component in which both agree has one line.

    Args:
        root: folder of the raw files, which give the order of turns for the spans; None takes the default one.

    Raises:
        RunError: a folder is no run, its memory has no tree or no description, or the runs are on different data.
        DataError: the files are missing.
    """
    runs = [(folder, RunFolder(folder).record()) for folder in (run_folder, other)]
    first, second = (record.dataset for _, record in runs)
    if first != second:
        raise RunError(f"{run_folder} and {other} are not on the same data: {first['name']} and {second['name']}")
    designs = [_design(folder, record, root) for folder, record in runs]
    names = [str(record.name) for _, record in runs]
    width = max(map(len, (*names, "both")))
    lines = [f"{' and '.join(names)} on {first['name']}, in the components of SegTreeMem Table 9"]
    for component, text in designs[0].items():
        texts = [text, designs[1][component]]
        lines += ["", component]
        same = [("both", text)] if texts[0] == texts[1] else list(zip(names, texts, strict=True))
        lines += [f"  {name:<{width}}  {each}" for name, each in same]
    return lines


def _design(folder: Path, record: RunRecord, root: Path | None) -> dict[str, str]:
    """The components of one run."""
    settings = dict(record.memory["build"])
    known = yaml.safe_load((CONF / "designs.yaml").read_text(encoding="utf-8"))
    target = settings["_target_"]
    if target not in known:
        raise RunError(f"{folder}: conf/designs.yaml has no {target}; there are: {', '.join(known)}")
    placing = {name: _filled(text, settings) for name, text in known[target].items()}
    turns = {case.id: [turn.id for turn in case.turns] for case in data_of(record, root)}
    counts = [span_counts(tree, turns[tree.case_id]) for tree in trees_of(folder, record)]
    ordered, several = map(sum, zip(*counts, strict=True))
    prompt = str(record.prompts["segtree/annotate"])[:12]
    models = record.models
    return {
        "Memory unit": _listed(record.unit),
        "Candidates for a new unit": placing["candidates"],
        "Criterion": placing["criterion"],
        "Where no candidate fits": placing["no candidate fits"],
        "Order in time": f"{ordered} of {several} nodes of several units cover consecutive units ({len(counts)} trees)",
        "Leaves": placing["later units"],
        "Annotation": f"prompt segtree/annotate {prompt}, model {_model(models['memory'])}, "
        + _listed({name: settings[name] for name in ANNOTATION}),
        "Reading": f"embedder {_model(models['embedder'])}, "
        + _listed({name: settings[name] for name in TreeMemory.READ_KNOBS}),
    }


def _filled(text: str | Mapping[str, str], settings: Mapping[str, Any]) -> str:
    """A description with the run's settings filled in; a mapping has a description for each value of the setting that it names."""
    chosen = text if isinstance(text, str) else text[str(settings[text["setting"]])]
    return chosen.format_map(settings)


def _model(record: Mapping[str, Any]) -> str:
    return str(record.get("model", record.get("engine")))


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
