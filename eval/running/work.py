"""Builds to make: one build of a memory on one case each, in order of estimated work; and the writing of a unit in any build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data_loaders.schema import Case, Unit
from eval.files.run_folder import is_complete
from eval.running.run import OnAnswer, OnProgress, Run
from memsys.interface import MemorySystem


@dataclass(frozen=True, slots=True)
class Build:
    """One build on one case."""

    runs: tuple[Run, ...]
    """The runs that share the build; they differ in read knobs only."""
    group: int
    """Number of the runs that share a build among those of the experiment."""
    index: int
    """Position of the case in the runs' `cases`."""

    @property
    def size(self) -> int:
        """Approximate work, comparable between the builds of one group."""
        return self.runs[0].sizes[self.index]

    def case(self) -> Case:
        """The case; a large data set parses it again each time."""
        return self.runs[0].cases[self.index]

    def may_be_answered(self) -> bool:
        """Whether every run has finished files of the case; it does not check whether they answer all questions."""
        ids = getattr(self.runs[0].cases, "ids", None)  # known before the case is parsed
        case_id = ids[self.index] if ids is not None else self.case().id
        return all(is_complete(run.case_folder(case_id)) for run in self.runs)


Executor = Callable[[Sequence[Build], OnProgress, OnAnswer], None]
"""Works on every build, longest first; raises what `eval.running.loop.run_all` raises."""


def builds_of(groups: Sequence[Sequence[Run]]) -> list[Build]:
    """The builds of groups of runs that share a build, the largest case first."""
    builds = [
        Build(tuple(runs), group, index) for group, runs in enumerate(groups) for index in range(len(runs[0].sizes))
    ]
    return sorted(builds, key=lambda build: -build.size)


def write_unit(memory: MemorySystem, units: Sequence[Unit], place: int) -> None:
    """Write the unit at an index, and end its session if the next unit is of another one, or there is none."""
    unit = units[place]
    memory.write(unit)
    if place + 1 == len(units) or units[place + 1].session_id != unit.session_id:
        memory.end_session(unit.session_id)
