"""What there is to do: a run is one memory on one data set; with the services it is handed, and what is told while it is done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_loaders.schema import Case
from eval.reader import Reader
from eval.store import safe_name
from memsys.embed import Embedder
from memsys.interface import MemorySystem
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts


@dataclass(frozen=True, slots=True)
class Services:
    """What memories and readers are handed: models by role, the embedder, the prompts."""

    llm: LLM
    reader: LLM
    probe: LLM
    embedder: Embedder
    prompts: Prompts


@dataclass(frozen=True, slots=True)
class Run:
    """One memory on one data set: everything that a cell needs."""

    name: str
    folder: Path
    cases: Sequence[Case]
    sizes: Sequence[int]
    """Approximate work of each case; the longest start first."""
    build: Callable[..., MemorySystem]
    reader: Reader
    unit: Mapping[str, Any]
    """The unit rule and its settings (`data_loaders.units.make_units`)."""
    services: Services
    seed: int = 0
    replicate: int = 0
    rebuild_every: int = 1
    """Offline memories: consolidate only at every n-th due point (and at the first); units since then are kept raw."""
    questions: Callable[[str, str], bool] = field(default=lambda case_id, question_id: True)
    """Which questions are asked."""
    gold_evidence: bool = False
    """A control, not a memory: every question is answered from the units that hold its evidence, whatever the memory recalls."""
    shared: str = ""
    """Runs of one name differ in nothing but read knobs (`MemorySystem.READ_KNOBS`) and share their builds; empty = shares none."""
    rehearse: Callable[[], None] = field(default=lambda: None)
    """Called before a case is built: loads and compiles what a first build would otherwise be timed for."""
    vectors: bool = True
    """Whether the nodes' vectors are kept; they are most of a run folder, and few tools read them."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What identifies the run and what was known when it was made: written to `run.json`."""

    def case_folder(self, case_id: str) -> Path:
        return self.folder / "cases" / safe_name(case_id)


OUTSTANDING = 256
"""Answers, or judgements, that may be awaited at once: enough for any in-flight limit, few enough to keep their prompts in memory."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Told after every question, and (`question_id` empty) when a case begins, after each of its units, and when it is complete."""

    run: str
    case_id: str
    question_id: str
    outcome: str
    """Of a question; else `begun`, `written`, `kept` or `complete`."""
    kept: int = 0
    """Questions of a case whose answers are there already."""
    units: int = 0
    """Units of a case that has begun; 0 when all its answers are there."""


def build_memory(run: Run, case: Case) -> MemorySystem:
    """A fresh memory for a case, given the services that its signature names."""
    code = np.frombuffer(case.id.encode() or b"\0", dtype=np.uint8)
    offered: dict[str, Any] = {
        "llm": run.services.llm,
        "probe": run.services.probe,
        "embedder": run.services.embedder,
        "prompts": run.services.prompts.only(declared_prompts(run.build)),
        "rng": np.random.default_rng([run.seed, run.replicate, *map(int, code)]),
    }
    return run.build(**{name: service for name, service in offered.items() if name in needs(run.build)})


def declared_prompts(build: Callable[..., MemorySystem]) -> tuple[str, ...]:
    """Folders of prompts that a memory's class declares, and the class of the memory that it wraps."""
    target, given = (build.func, build.keywords) if isinstance(build, partial) else (build, {})
    inner = declared_prompts(given["inner"]) if "inner" in given else ()
    return (*getattr(target, "PROMPTS", ()), *inner)


def needs(build: Callable[..., MemorySystem]) -> frozenset[str]:
    """Names of the services that a memory's constructor asks for and its configuration has not filled."""
    target = build.func if isinstance(build, partial) else build
    given = build.keywords if isinstance(build, partial) else {}
    return frozenset(inspect.signature(target).parameters) - frozenset(given)
