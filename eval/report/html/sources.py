"""The sources of a report: the run folders and table files below a results folder.

Runs on the same data with the same cut make a set: they were asked the same questions, so they can be compared pair by pair. Question
texts and gold are not in a run folder. They are read from the data again; where this fails, the report says why and uses
the content of the run folders alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from data_loaders.schema import Case, DataError
from eval.files.provenance import identity
from eval.files.run_folder import RunFolder, RunRecord
from eval.files.store import RunError, read_record
from eval.report.cell import ALL
from eval.report.checked import checked
from memsys.inert import visible
from memsys.jsons import changed

CasesOf = Callable[[RunRecord], Sequence[Case]]
"""Loads the cases of a run again, given its `run.json`."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run: one memory on one data set."""

    key: str
    """The run's folder below `runs`, such as `locomo/bm25-0a1b2c3d4e5f`."""
    folder: Path
    record: RunRecord
    title: str

    def score_file(self, stem: str) -> Path:
        """The score file of this stem, whether or not it exists."""
        return RunFolder(self.folder).scores(stem)


@dataclass(frozen=True)
class RunSet:
    """Runs that were asked the same questions."""

    key: str
    """Name and identity of the data, such as `locomo-0a1b2c`."""
    name: str
    runs: tuple[ReportedRun, ...]
    cases: Sequence[Case]
    """Cases of the set; empty where the data could not be read again."""
    why: str = ""
    """The reason why the data could not be read again; empty when they were."""
    aggregate: str = "question"
    """The unit that the data set's means weigh equally (`eval.report.cell.Column`)."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """One table, as `eval.report.rendering` wrote it."""

    stem: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sources:
    """The data of a report."""

    results: Path
    sets: tuple[RunSet, ...]
    tables: tuple[TableFile, ...]
    losses: tuple[TableFile, ...]
    """Loss waterfalls: files of `<results>/losses`."""
    ceilings: tuple[TableFile, ...]
    """Scores with known errors of the gold applied: files of `<results>/ceilings`."""
    missing: list[str] = field(default_factory=list)
    """Sentences about missing parts."""
    damaged: list[str] = field(default_factory=list)
    """Sentences about runs that are left out because their record is damaged or cannot be read."""


@dataclass(frozen=True, slots=True)
class _Column:
    dataset: str
    title: str
    metric: str
    aggregate: str
    questions: int


@dataclass(frozen=True, slots=True)
class _Cell:
    kind: Literal["text", "measure", "score"]
    files: list[str] = field(default_factory=list)
    repeats: int | None = None
    estimates: dict[str, _Mean | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Row:
    title: str
    runs: dict[str, str]
    cells: list[_Cell]


@dataclass(frozen=True, slots=True)
class _Mean:
    """An estimate of a score."""

    mean: float
    n: int


@dataclass(frozen=True, slots=True)
class _Form:
    """The fields of a table's file that the report's code reads; fields that its pages only display are not checked."""

    title: str
    caption: list[str]
    columns: list[_Column]
    rows: list[_Row]


_FORM = TypeAdapter(_Form)


def _fault(content: Mapping[str, Any]) -> str:
    """The first field of a table's file that is missing or has a wrong type; empty where all are right."""
    try:
        form = checked(_FORM, content)
    except RunError as error:
        return str(error)
    if any(len(row.cells) != len(form.columns) for row in form.rows):
        return "a row has another number of cells than there are columns"
    scores = [cell for row in form.rows for cell in row.cells if cell.kind == "score"]
    return "a score has no estimate" if any(ALL not in cell.estimates for cell in scores) else ""


def read_sources(
    results: Path,
    cases_of: CasesOf,
    stems: Sequence[str] = (),
    aggregate_of: Callable[[str], str] = lambda name: "question",
) -> Sources:
    """Read the results folder.

    Args:
        cases_of: loads the cases of a run again.
        aggregate_of: gives the unit that the means of a data set weigh equally, by its name.
        stems: names of table files without their ending; only these and the runs behind them are read. Empty: everything.

    Raises:
        RunError: a requested table is missing, or there is nothing to report.
    """
    missing: list[str] = []
    tables = _tables(results, stems, missing)
    titles = {  # of the row that each run belongs to, by run key
        run.removeprefix("runs/"): row["title"]
        for table in tables
        for row in table.content["rows"]
        for run in row["runs"].values()
    }
    records: dict[str, RunRecord] = {}
    folders = [path for pattern in ("*", "*/*") for path in sorted((results / "runs").glob(pattern)) if path.is_dir()]
    shut = [path for path in folders if not os.access(path, os.R_OK | os.X_OK)]  # a search for runs passes over them
    wanted = [path for path in shut if not stems or str(path.relative_to(results / "runs")) in titles]
    damaged = [f"{path} is left out: it may not be read" for path in wanted]
    for run in RunFolder.all(results):
        if stems and run.key not in titles:
            continue
        try:
            if run.is_linked:
                raise RunError(f"{run.path}: it is a link, and the run may lie outside the results")
            records[run.key] = run.record()
        except (RunError, OSError) as error:
            damaged.append(f"run {run.key} is left out: {error}")
    if not records and not tables:
        raise nothing(results, damaged)
    by_data: dict[str, list[tuple[str, RunRecord]]] = {}
    for key, record in records.items():
        data = f"{record.dataset['name']}-{identity(record.dataset)[:6]}"
        by_data.setdefault(data, []).append((key, record))
    sets = tuple(_set(results, key, runs, titles, cases_of, aggregate_of) for key, runs in sorted(by_data.items()))
    missing += [f"{each.name}: questions and gold are not shown: {each.why}" for each in sets if each.why]
    losses, ceilings = (_table_files(results / name, missing) for name in ("losses", "ceilings"))
    return Sources(results, sets, tables, losses, ceilings, missing, damaged)


def nothing(results: Path, damaged: Sequence[str]) -> RunError:
    """The error of a report without content."""
    why = "; ".join(damaged) or "run something first, such as: make reproduce-table4"
    return RunError(f"{results}: no runs and no tables: {why}")


def _tables(results: Path, stems: Sequence[str], missing: list[str]) -> tuple[TableFile, ...]:
    folder = results / "tables"
    if absent := [stem for stem in stems if not (folder / f"{stem}.json").is_file()]:
        raise RunError(f"{folder} has no table {absent[0]}.json; python -m scripts reproduce writes it")
    missing += [
        f"table {path.stem} has no .json file, so it is not shown; its command, run again, may write one"
        for path in (sorted(folder.glob("*.md")) if not stems else ())
        if not path.with_suffix(".json").is_file() and not path.stem.startswith("imported-")  # Markdown alone
    ]
    tables = []
    for table in _table_files(folder, missing):
        if fault := _fault(table.content):
            missing.append(f"{folder / table.stem}.json is left out: {fault}")
        elif not stems or table.stem in stems:
            tables.append(table)
    return tuple(tables)


def _table_files(folder: Path, missing: list[str]) -> tuple[TableFile, ...]:
    files = []
    for path in sorted(folder.glob("*.json")):
        if path.is_symlink() or not path.is_file():
            missing.append(f"{path} is left out: it is no plain file")
            continue
        try:
            files.append(TableFile(path.stem, changed(read_record(path), visible)))
        except RunError as error:
            missing.append(str(error))
    return tuple(files)


def _set(
    results: Path,
    key: str,
    runs: Sequence[tuple[str, RunRecord]],
    titles: Mapping[str, str],
    cases_of: CasesOf,
    aggregate_of: Callable[[str], str],
) -> RunSet:
    """The runs of one data set; `cases_of` and `aggregate_of` as for `read_sources`."""
    names, folders = [titles.get(run, record.name) for run, record in runs], []
    for (run, record), title in zip(runs, names, strict=True):
        folder, replicate = results / "runs" / run, record.seed[1] if record.seed else 0
        # Runs of the same title differ in the replicate, and in the end of the folder's name.
        which = f"{f'replicate {replicate}, ' if replicate else ''}{RunFolder(folder).identity[:6]}"
        folders.append(ReportedRun(run, folder, record, f"{title} ({which})" if names.count(title) > 1 else title))
    name = str(runs[0][1].dataset["name"])
    try:
        return RunSet(key, name, tuple(folders), cases_of(runs[0][1]), aggregate=aggregate_of(name))
    except (DataError, RunError) as error:
        return RunSet(key, name, tuple(folders), (), str(error))
