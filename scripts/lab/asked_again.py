"""Ask the memory of a finished run a question that is not in its data set.

A run folder holds no memory that could be read, so the memory is built again with the recorded settings; the cache answers
every call of the first build. The models are those of the given settings; if these settings make another run, nothing is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from data_loaders.schema import Case, Question
from data_loaders.units import make_units
from eval.files.run_folder import RunFolder
from eval.files.store import RunError
from eval.running.reader import Reader
from eval.running.run import Run, build_memory
from eval.running.work import write_unit
from memsys.interface import Recall
from memsys.llm.meter import metering
from memsys.tokens import count_tokens
from scripts.assembly.runs import check_known, memory_run
from scripts.lab.lab import Lab

ASKED = "asked"
"""Id of the question; no data set has it."""


def recall_of(
    run_folder: Path, text: str, case_id: str | None, root: Path | None, settings: Sequence[str] = ()
) -> tuple[str, Recall]:
    """Recall of a case's memory for a text once the whole history is written; also the id of the case.

    Args:
        case_id: None takes the first case.
        settings: the settings of the run's command line: `profile=paper`, `endpoint.base_url=…`, `models.memory=…`.

    Raises:
        DataError: the data cannot be loaded.
        RunError: the run has no memory, no such case, or other settings than these.
    """
    run = _same_run(run_folder, root, settings)
    case = _case_of(run, case_id)
    units = make_units(case.sessions, count=count_tokens, **run.unit).units
    memory = build_memory(run, case)
    try:
        with metering():
            for place in range(len(units)):
                write_unit(memory, units, place)
            memory.consolidate()
            return case.id, memory.read(Question(ASKED, text))
    finally:
        memory.close()


def _same_run(run_folder: Path, root: Path | None, settings: Sequence[str]) -> Run:
    """Describe the folder's run from its record and the settings; `RunError` if these make another run."""
    record = RunFolder(run_folder).record()
    if record.imported:
        raise RunError("the answers are imported: there is no memory to ask")
    check_known(record.memory["build"])
    seed, replicate = record.seed
    built = [f"build.seed={seed}", f"build.rebuild_every={record.rebuild_every}"]
    lab = Lab(*_data_settings(record.dataset, str(record.data_status), root), *settings, *built)
    name = str(record.name)
    run = memory_run(
        lab.cfg,
        lab.models,
        lab.load(record.dataset["name"]),
        {**record.memory, "name": name, "title": name},
        Reader(**record.reader),
        unit=record.unit,
        replicate=replicate,
    )
    if run.folder.name != run_folder.resolve().name:
        differing = [
            part
            for part in ("models", "dataset", "prompts", "source", "unit")
            if getattr(run.record, part) != getattr(record, part)
        ]
        raise RunError(
            f"these settings make another run ({run.folder.name}), different in {', '.join(differing) or 'versions of libraries'}; "
            "give those of its command, such as profile=paper models.memory=…"
        )
    return run


def _case_of(run: Run, case_id: str | None) -> Case:
    ids = [case.id for case in run.cases]
    if case_id is not None and case_id not in ids:
        raise RunError(
            f"the data have no case {case_id!r}; there are {', '.join(ids[:5])}{' …' if len(ids) > 5 else ''}"
        )
    return run.cases[0 if case_id is None else ids.index(case_id)]


def _data_settings(known: Mapping[str, object], status: str, root: Path | None) -> list[str]:
    cuts = [
        f"data.{name}={'null' if known[name] is None else known[name]}"
        for name in ("transform", "size", "max_cases", "seed")
    ]
    source = "sample" if status == "sample" else "real"
    folder = [] if root is None or source == "sample" else [f"data.root={root}"]
    return [*cuts, f"data.source={source}", f"data.unpinned={str(status == 'unpinned').lower()}", *folder]
