"""The experiment behind a table or a figure: load its data sets, describe its runs, run what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from data_loaders.schema import DataError
from data_loaders.source import find, manifest
from eval.files.store import RunError
from eval.running.run import Run
from scripts.answers.formats import read_answers
from scripts.answers.importing import Origin, import_run
from scripts.assembly.agreement import agreed, meter
from scripts.assembly.datasets import Data, check_data_root, fetch_missing
from scripts.assembly.local import with_local_models
from scripts.assembly.models import Models, build_models, chosen_models
from scripts.assembly.readiness import check_prices, prepared
from scripts.assembly.runs import NotInstalled, memory_run, recipe_of
from scripts.assembly.scorers import finished, judging
from scripts.assembly.steps import answer_all, score
from scripts.settings.schema import Chosen, Settings
from scripts.tables.facts import examine_and_keep, is_examined
from scripts.tables.grid import Experiment, Key, S, with_our_judge
from scripts.tables.layout import (
    ColumnGroup,
    TableRow,
    belongs,
    column_group,
    published_of,
    read_lines_of,
    table_unit,
    wanted_columns,
    wanted_rows,
)

C = TypeVar("C", bound=Chosen)


def experiment(cfg: C, table: Mapping[str, Any], *, run: bool = True) -> Experiment[C] | None:
    """Describe the runs of a table and run what is missing; None when the plan is declined.

    Args:
        cfg: the settings of the command; `only` holds names or titles.
        table: values of a file of `conf/table`.
        run: False runs nothing.

    Raises:
        RunError: the backbone, a row or a column group is unknown, or all data sets are missing.
    """
    known = table["backbones"]
    if (cfg.backbone or "default") not in known:
        raise RunError(f"{table['name']} has no backbone {cfg.backbone!r}; there are: {', '.join(known)}")
    backbone = dict(known[cfg.backbone or "default"])
    lines = read_lines_of(table, cfg.backbone)
    only = wanted_rows(table, lines, cfg.only)
    vectors = cfg.nodes.vectors
    if vectors is None:
        vectors = any("spread" in metric for column in table["columns"] for metric in column["metrics"])
    cfg = with_local_models(cfg).changed(nodes={"vectors": vectors}, only=None if only is None else sorted(only))
    cfg = with_papers(cfg, backbone["models"], table.get("repeats", 1))
    return assembled(cfg, backbone, wanted_columns(table, cfg.columns), lines, only, run=run)


def with_papers(cfg: S, models: Mapping[str, Any], repeats: int) -> S:
    """The settings with the models of each role; in profile=paper, unset models and judgements are the paper's."""
    repeats = max(cfg.judge.repeats, repeats if cfg.profile_name == "paper" else 1)
    return cfg.changed(models=chosen_models(cfg, models), judge={"repeats": repeats})


def assembled(
    cfg: S,
    backbone: Mapping[str, Any],
    columns: Sequence[Mapping[str, Any]],
    lines: Sequence[TableRow],
    only: frozenset[str] | None,
    *,
    run: bool = True,
) -> Experiment[S] | None:
    """Load the data sets of column groups, describe the runs of rows on them, and run what is missing; None when the plan is declined.

    Args:
        cfg: the settings of the command, with the models of each role.
        backbone: the paper's models and the files of its numbers.
        columns: the column groups of a table's YAML.
        only: names of the requested rows; None for all.
        run: False runs nothing.

    Raises:
        RunError: all data sets are missing, a memory's setting is refused, or a model has no price under a spending cap.
    """
    models = build_models(cfg)
    if run:
        check_prices(cfg, models)
    if cfg.profile_name == "paper" and cfg.data.source == "real":
        fetch_missing(cfg.data, columns)
    groups = [column_group(cfg, option) for option in columns]
    if all(group.dataset is None for group in groups):
        raise RunError("none of the data sets is there: " + "; ".join(group.missing for group in groups))
    answers, absent = published_answers(cfg, models, groups, lines)
    judges = _judges(cfg, backbone, groups)
    runs = {**_runs(cfg, models, groups, lines, only), **answers}
    wanted = {key: each for key, each in runs.items() if only is None or key[0] in only}
    run = run and not finished(cfg, models, list(wanted.values()), judges)
    if run and (examined := prepared(cfg, models)) is not models:  # the doctor may have changed settings
        models, runs = examined, {**_runs(cfg, examined, groups, lines, only), **answers}
    planned = None
    if run:
        open_runs = {each.folder: each for each in _asked_for(runs, only).values()}
        may_begin, planned = agreed(cfg, models, list(open_runs.values()), judges)
        if not may_begin:
            return None
    if planned is not None:
        runs = {key: replace(each, chain=planned.chains.get(each.folder, 0.0)) for key, each in runs.items()}
    before = meter(models)
    costs = planned.costs if planned is not None else {}
    capped = _execute(cfg, models, groups, _asked_for(runs, only), judges, costs) if run else ""
    if not (cfg.replay or models.paid or capped):
        _examine(groups, lines, runs, only)
    numbers = published_of(backbone)
    return Experiment(cfg, models, backbone, groups, lines, only, runs, numbers, absent, capped, before, planned)


def _runs(
    cfg: Settings,
    models: Models,
    groups: Sequence[ColumnGroup],
    lines: Sequence[TableRow],
    only: frozenset[str] | None,
) -> dict[Key, Run]:
    """One run for each row, column group and replicate. Rows that were not requested are left out if their packages are not installed;
    products are left out if they are not installed and not requested by name.
    """
    runs: dict[Key, Run] = {}
    for group in groups:
        for line in lines:
            if group.dataset is None or line.memory is None or not belongs(line, group.option):
                continue
            asked_for = only is None or line.name in only
            # A verdict on a published number needs the error between builds.
            builds = cfg.build.replicates if line.published is None else cfg.build.published or cfg.build.replicates
            for replicate in range(builds):
                try:
                    runs[line.name, group.name, replicate] = _run(
                        cfg, models, group, group.dataset, line, replicate, asked_for
                    )
                except NotInstalled:
                    if only is not None and asked_for:
                        raise
                except ImportError as error:
                    if asked_for:
                        raise ImportError(
                            f"{line.title}: {error}; or name the rows that you want with only=[…]"
                        ) from error
    return runs


def _examine(
    groups: Sequence[ColumnGroup], lines: Sequence[TableRow], runs: Mapping[Key, Run], only: frozenset[str] | None
) -> None:
    """Examine the conformance of the requested rows, if a column group prints it and it is not known yet."""
    rows = {line.name: line for line in lines}
    for group in groups:
        if group.dataset is None or not any(metric.get("fact") == "conformance" for metric in group.option["metrics"]):
            continue
        for (row, name, replicate), run in runs.items():
            memory, wanted = rows[row].memory, only is None or row in only
            if name == group.name and replicate == 0 and memory is not None and wanted and not is_examined(run):
                examine_and_keep(run, recipe_of(group.dataset, memory, run.unit).waived)


def _run(
    cfg: Settings,
    models: Models,
    group: ColumnGroup,
    dataset: Data,
    line: TableRow,
    replicate: int,
    asked_for: bool,
) -> Run:
    assert line.memory is not None
    unit = table_unit(line, group.option)
    run = memory_run(
        cfg, models, dataset, line.memory, group.reader, unit=unit, replicate=replicate, asked_for=asked_for
    )
    if "ask" not in group.option:
        return run
    first = {question.case_id: question.question_id for question in reversed(group.questions)}
    return replace(run, questions=lambda case_id, question_id: first[case_id] == question_id)


def _asked_for(runs: Mapping[Key, Run], only: frozenset[str] | None) -> dict[Key, Run]:
    """The runs of the requested rows; imported answers exist already."""
    wanted = {key: run for key, run in runs.items() if only is None or key[0] in only}
    return {key: run for key, run in wanted.items() if not run.record.imported}


def _judges(cfg: Settings, backbone: Mapping[str, Any], groups: Sequence[ColumnGroup]) -> dict[str, list[str]]:
    """Names of the judges by data set, each once."""
    judges: dict[str, list[str]] = {}
    for group in groups:
        if group.dataset is not None:
            metrics = [with_our_judge(cfg, backbone, metric) for metric in group.option["metrics"]]
            names = [metric["judge"] for metric in metrics if "judge" in metric]
            judges[group.dataset.name] = list(dict.fromkeys([*judges.get(group.dataset.name, ()), *names]))
    return judges


def _execute(
    cfg: Settings,
    models: Models,
    groups: Sequence[ColumnGroup],
    asked_for: Mapping[Key, Run],
    judges: Mapping[str, Sequence[str]],
    costs: Mapping[Path, float],
) -> str:
    """Execute the requested runs; returns the reason if it stopped early, else an empty text.

    Under a spending cap the rows run one after another, in ascending order of `costs`, and each is judged before the next begins: a
    cap leaves complete rows.
    """
    counts = {
        group.name: len({question.case_id for question in group.questions})
        if "ask" in group.option
        else len(group.questions)
        for group in groups
    }
    # Two column groups may share a folder: the group with more questions comes last and is kept.
    by_size = sorted(asked_for.items(), key=lambda item: counts[item[0][1]])
    chosen = {run.folder: (run, counts[key[1]]) for key, run in by_size}
    rows: dict[str, list[tuple[Run, int]]] = {}
    for run, count in chosen.values():
        rows.setdefault(run.name if cfg.max_usd is not None else "", []).append((run, count))
    said = ""
    for row in sorted(rows.values(), key=lambda row: sum(costs.get(run.folder, 0.0) for run, _ in row)):
        said = answer_all(cfg, models, [run for run, _ in row], sum(count for _, count in row), judges)
        for run, count in row if cfg.max_usd is not None else ():
            grading = {name: judging(cfg, models, name) for name in judges.get(run.dataset, ())}
            score(run, (), grading, cfg.k_evidence, count, models.traffic, models.ahead)
        if models.purse.reached:
            break
    return said


def published_answers(
    cfg: Settings, models: Models, groups: Sequence[ColumnGroup], lines: Sequence[TableRow]
) -> tuple[dict[tuple[str, str, int], Run], dict[tuple[str, str], str]]:
    """Import the answers of every row with published answers.

    Returns the runs by row, column group and replicate, and by row and column group the reasons for missing answers.
    """
    runs: dict[tuple[str, str, int], Run] = {}
    absent: dict[tuple[str, str], str] = {}
    for line in lines:
        for group in groups:
            if line.answers is None or group.dataset is None or not belongs(line, group.option):
                continue
            try:
                runs[line.name, group.name, 0] = _imported(cfg, models, group.dataset, line.answers)
            except (DataError, RunError) as error:
                absent[line.name, group.name] = f"no data: {error}"
    return runs, absent


def _imported(cfg: Settings, models: Models, dataset: Data, option: Mapping[str, Any]) -> Run:
    if cfg.data.source != "real":
        raise RunError("the answers are to the real data; set data.source=real (make … PROFILE=subset)")
    found = find(option["file"], root=check_data_root(cfg.data), unpinned=cfg.data.unpinned)
    entry = manifest()[option["file"]]
    origin = Origin(option["name"], option["title"], option["by"], entry.licence, entry.url)
    return import_run(cfg, models, dataset, partial(read_answers, path=found.path), origin)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code of a command, and the main file it wrote."""

    code: int
    """0 done, 1 too much is not scored, 3 the plan was declined."""
    file: Path | None = None
    """The main file; None if nothing was written."""
