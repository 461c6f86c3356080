"""`memsys-bench reproduce`: run a paper's table, score it, and write it with the published numbers.

The experiment behind a table or a figure loads its data sets, describes its runs and runs what is missing.

Guessable questions are answered right without a memory: the row `nothing` scores at least .5 in the group's first metric. The row's first
build selects them. Its own score without them would be 0 by construction, so its other builds give it (`build.replicates=2`); without
other builds it has none. A model may know the answer from its training, or guess it from the question. Questions that the history does
not answer are not included: refusing them needs no memory, and they test that a memory does not mislead the reader.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from data_loaders.schema import DataError
from data_loaders.source import find, manifest
from eval.files.imported import described
from eval.files.run_folder import read_predictions
from eval.files.store import RunError, replace_file
from eval.report.paper import latex
from eval.report.published import read_published
from eval.report.rendering import as_csv, as_json, markdown
from eval.report.tables import Row, Table, estimate_of
from eval.report.wandb_log import log_table
from eval.running.run import Run
from memsys.inert import csv_text
from scripts.answers.formats import Origin, import_run, read_answers
from scripts.assembly.datasets import check_data_root, fetch_missing
from scripts.assembly.models import Models, build_models, chosen_models, other_models, with_local_models
from scripts.assembly.plan import Plan
from scripts.assembly.readiness import agreed, check_prices, meter, prepared
from scripts.assembly.runs import NotInstalled, Recipe, memory_run, recipe_of
from scripts.assembly.steps import answer_all, complain, finished, judging, score, unmeasured
from scripts.settings.schema import Chosen, Reproduce, Settings, Sweeps
from scripts.setup.launch import composed
from scripts.setup.options import load_option
from scripts.setup.printing import print_table
from scripts.setup.progress import progress_line
from scripts.tables.captions import caption, evidence_lines, prompts_line, unfitted, usage_note, waivers
from scripts.tables.grid import (
    NO_MEMORY,
    NOT_EXAMINED,
    NOT_INSTALLED,
    Experiment,
    Runs,
    S,
    all_prompts,
    conformance,
    examine_and_keep,
    other_data,
    why_not_comparable,
)
from scripts.tables.layout import (
    ColumnGroup,
    TableRow,
    belongs,
    column_group,
    group_name,
    joined,
    read_columns,
    read_lines_of,
    restriction,
    variation,
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
        RunError: the backbone, a row, a column group or a metric is unknown, or all data sets are missing.
    """
    known = table["backbones"]
    if (cfg.backbone or "default") not in known:
        raise RunError(f"{table['name']} has no backbone {cfg.backbone!r}; there are: {', '.join(known)}")
    backbone = dict(known[cfg.backbone or "default"])
    if isinstance(backbone["file"], str):
        backbone["file"] = [backbone["file"]]
    lines = read_lines_of(table, cfg.backbone)
    only = wanted_rows(table, lines, cfg.only)
    vectors = cfg.nodes.vectors
    if vectors is None:
        vectors = any("spread" in metric for column in table["columns"] for metric in column["metrics"])
    cfg = with_local_models(cfg).changed(nodes={"vectors": vectors}, only=None if only is None else sorted(only))
    return assembled(cfg, table, backbone, wanted_columns(table, cfg.columns), lines, only, run=run)


def assembled(
    cfg: S,
    table: Mapping[str, Any],
    backbone: Mapping[str, Any],
    columns: Sequence[Mapping[str, Any]],
    lines: Sequence[TableRow],
    only: frozenset[str] | None,
    *,
    run: bool = True,
) -> Experiment[S] | None:
    """Load the data sets of column groups, describe the runs of rows on them, and run what is missing; None when the plan is declined.

    Args:
        cfg: the settings of the command; in profile=paper, unset models and judgements are the paper's.
        table: values of a file of `conf/table` or `conf/sweep`: name, all column groups, how often the paper judges an answer (`repeats`).
        backbone: the paper's models and the files of its numbers.
        columns: the requested column groups.
        only: names of the requested rows; None for all.
        run: False runs nothing.

    Raises:
        RunError: a column group is refused, all data sets are missing, a memory's setting is refused, or a model has no price under a cap.
    """
    repeats = max(cfg.judge.repeats, table.get("repeats", 1) if cfg.profile_name == "paper" else 1)
    cfg = cfg.changed(models=chosen_models(cfg, backbone["models"]), judge={"repeats": repeats})
    metrics = read_columns(table["name"], table["columns"], lines, keep_models=_keeps_models(cfg, backbone))
    models = build_models(cfg)
    if run:
        check_prices(cfg, models)
    if cfg.profile_name == "paper" and cfg.data.source == "real":
        fetch_missing(cfg.data, columns)
    groups = [column_group(cfg, option, metrics[group_name(option)]) for option in columns]
    if all(group.dataset is None for group in groups):
        raise RunError("none of the data sets is there: " + "; ".join(group.missing for group in groups))
    answers, absent = published_answers(cfg, models, groups, lines)
    judges = _judges(groups)
    runs = _runs(cfg, models, groups, lines, only)
    imported, asked_for = list(chain(*_chosen(answers, only).values())), _chosen(runs, only)
    run = run and not finished(cfg, models, [*chain(*asked_for.values()), *imported], judges)
    if run and (examined := prepared(cfg, models)) is not models:  # the doctor may have changed settings
        models, runs = examined, _runs(cfg, examined, groups, lines, only)
        asked_for = _chosen(runs, only)
    planned = None
    if run:
        open_runs = {each.folder: each for each in (*chain(*asked_for.values()), *imported)}
        may_begin, planned = agreed(cfg, models, list(open_runs.values()), judges)
        if not may_begin:
            return None
    before = meter(models)
    capped = _execute(cfg, models, groups, asked_for, judges, planned) if run else ""
    runs = {**runs, **answers}
    if not (cfg.replay or models.paid_names or capped):
        _examine(groups, lines, runs, only)
    numbers = read_published(*backbone["file"])
    guessing = cfg.guessable if isinstance(cfg, Reproduce) else "keep"
    return Experiment(
        cfg, models, backbone, groups, lines, only, runs, numbers, absent, capped, before, planned, guessing
    )


def _keeps_models(cfg: Settings, backbone: Mapping[str, Any]) -> bool:
    """Whether `judge@model` is asked with its model: in profile=paper if `models.judge` is the paper's.

    A sweep keeps the models outside that profile, too, if there is an endpoint, because the endpoint serves all models that a sweep names.
    """
    if cfg.profile_name == "paper":
        return bool(cfg.models.judge == backbone["models"]["judge"])
    return isinstance(cfg, Sweeps) and cfg.endpoint.base_url is not None


def _chosen(runs: Runs, only: frozenset[str] | None) -> Runs:
    return {key: builds for key, builds in runs.items() if only is None or key[0] in only}


def _runs(
    cfg: Settings,
    models: Models,
    groups: Sequence[ColumnGroup],
    lines: Sequence[TableRow],
    only: frozenset[str] | None,
) -> dict[tuple[str, str], list[Run]]:
    """The builds of each row in each column group. Rows that were not requested are left out if their packages are not installed;
    products are left out if they are not installed and not requested by name.
    """
    runs: dict[tuple[str, str], list[Run]] = {}
    recipes: dict[str, Recipe] = {}
    for group in groups:
        for line in lines:
            if group.dataset is None or line.memory is None or not belongs(line, group.option):
                continue
            asked_for = only is None or line.name in only
            # A verdict on a published number needs the error between builds.
            builds = cfg.build.replicates if line.published is None else cfg.build.published or cfg.build.replicates
            try:
                if line.name not in recipes:
                    recipes[line.name] = recipe_of(line.memory)
                describe = partial(memory_run, cfg, models, group.dataset, recipes[line.name], group.reader)
                unit = line.option.get("unit") or group.option.get("unit")
                made = [describe(unit=unit, replicate=number, asked_for=asked_for) for number in range(builds)]
                asked = [_first_only(run, group) for run in made] if "ask" in group.option else made
                runs[line.name, group.name] = asked
            except NotInstalled:
                if only is not None and asked_for:
                    raise
            except ImportError as error:
                if asked_for:
                    raise ImportError(f"{line.title}: {error}; or name the rows that you want with only=[…]") from error
    return runs


def _examine(groups: Sequence[ColumnGroup], lines: Sequence[TableRow], runs: Runs, only: frozenset[str] | None) -> None:
    """Examine the conformance of the requested rows, if a column group prints it and it is not known yet."""
    rows = {line.name: line for line in lines}
    for group in groups:
        if group.dataset is None or not any(
            (metric.kind, metric.name) == ("fact", "conformance") for metric in group.metrics
        ):
            continue
        for (row, name), (run, *_) in runs.items():
            memory, wanted = rows[row].memory, only is None or row in only
            if name == group.name and memory is not None and wanted and conformance(run) == NOT_EXAMINED:
                examine_and_keep(run, recipe_of(memory).waived)


def _first_only(run: Run, group: ColumnGroup) -> Run:
    """The run with the first question of each history."""
    first = {question.case_id: question.question_id for question in reversed(group.questions)}
    return replace(run, questions=lambda case_id, question_id: first[case_id] == question_id)


def _judges(groups: Sequence[ColumnGroup]) -> dict[str, list[str]]:
    """Names of the judges by data set, each once."""
    judges: dict[str, list[str]] = {}
    for group in groups:
        if group.dataset is not None:
            names = [metric.judge for metric in group.metrics if metric.judge]
            judges[group.dataset.name] = list(dict.fromkeys([*judges.get(group.dataset.name, ()), *names]))
    return judges


def _execute(
    cfg: Settings,
    models: Models,
    groups: Sequence[ColumnGroup],
    asked_for: Runs,
    judges: Mapping[str, Sequence[str]],
    planned: Plan | None,
) -> str:
    """Execute the requested runs; returns the reason if it stopped early, else an empty text.

    Under a spending cap the rows run one after another, in ascending order of their planned costs, and each is judged before the next
    begins: a cap leaves complete rows.
    """
    costs: Mapping[Path, float] = {} if planned is None else planned.costs
    chains: Mapping[Path, float] = {} if planned is None else planned.chains
    counts = {
        group.name: len({question.case_id for question in group.questions})
        if "ask" in group.option
        else len(group.questions)
        for group in groups
    }
    # Two column groups may share a folder: the group with more questions comes last and is kept.
    by_size = sorted(asked_for.items(), key=lambda item: counts[item[0][1]])
    chosen = {run.folder: (run, counts[group]) for (_, group), builds in by_size for run in builds}
    rows: dict[str, list[tuple[Run, int]]] = {}
    for folder, (run, count) in chosen.items():
        planned_run = replace(run, chain=chains.get(folder, 0.0))
        rows.setdefault(run.name if cfg.max_usd is not None else "", []).append((planned_run, count))
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
) -> tuple[dict[tuple[str, str], list[Run]], dict[tuple[str, str], str]]:
    """Import the answers of every row with published answers.

    Returns the runs and the reasons for missing answers, both by row and column group.
    """
    runs: dict[tuple[str, str], list[Run]] = {}
    absent: dict[tuple[str, str], str] = {}
    for line in lines:
        for group in groups:
            if line.answers is None or group.dataset is None or not belongs(line, group.option):
                continue
            option = line.answers
            try:
                if cfg.data.source != "real":
                    raise RunError("the answers are to the real data; set data.source=real (make … PROFILE=subset)")
                found = find(option["file"], root=check_data_root(cfg.data), unpinned=cfg.data.unpinned)
                entry = manifest()[option["file"]]
                origin = Origin(option["name"], option["title"], option["by"], entry.licence, entry.url)
                read = partial(read_answers, path=found.path)
                runs[line.name, group.name] = [import_run(cfg, models, group.dataset, read, origin)]
            except (DataError, RunError) as error:
                absent[line.name, group.name] = f"no data: {error}"
    return runs, absent


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code of a command, and the main file it wrote."""

    code: int
    """0 done, 1 too much is not scored, 3 the plan was declined."""
    file: Path | None = None
    """The main file; None if nothing was written."""


def make_table(cfg: Reproduce) -> Outcome:
    """Run what is missing, score, print, and write `<results>/tables/<name>-<profile>.md`, `.csv`, `.tex` and `.json`."""
    option = cfg.table
    assembled = experiment(cfg, option)
    if assembled is None:
        return Outcome(3)
    stem, cfg = table_stem(cfg, assembled.only, assembled.groups), assembled.cfg
    table = _table(option, assembled)
    if table.reference and table.reference_row is None:
        print(
            f"note: nothing is compared: {table.reference}, the reference of {option['name']}, is none of its rows",
            file=sys.stderr,
        )
    file = assembled.models.results / "tables" / f"{stem}.md"
    if cfg.guessable != "keep":
        replace_file(file.with_suffix(".guessable.csv"), csv_text([FIELDS, *_guessable_lines(assembled)]))
    origins = as_json(table, assembled.models.results)
    for suffix, text in ((".md", markdown(table)), (".csv", as_csv(table)), (".tex", latex(table)), (".json", origins)):
        replace_file(file.with_name(stem + suffix), text)
    print_table(table, cfg.print)
    if outcome := assembled.outcome():
        print(outcome)
    print(f"written: {file} (with categories, paired differences and costs by phase), .csv, .tex, .json")
    log_table(cfg.plain, table)
    return Outcome(complain(table, cfg.missing_limit, assembled.models.purse.stop), file)


def finished_table(name: str, settings: Sequence[str]) -> tuple[Table, Path]:
    """Make a table from existing runs and score files; return it with the path of its files without an ending. Nothing is run or judged.

    Args:
        name: a file of `conf/table`.
        settings: settings of `memsys-bench reproduce`.

    Raises:
        RunError: a setting is refused, all data sets are missing, or no row has a number.
    """
    cfg = composed("reproduce", [f"table={name}", *settings, "replay=true", "yes=true"])
    option = cfg.table
    assembled = experiment(cfg.changed(only=[]), option, run=False)  # no row is scored
    assert assembled is not None, "nothing is run, so there is no plan to decline"
    chosen = wanted_rows(option, assembled.lines, cfg.only)
    stem, cfg = table_stem(cfg, chosen, assembled.groups), assembled.cfg
    table = _table(option, assembled)
    rows = tuple(row for row in table.rows if chosen is None or row.name in chosen)
    table = replace(table, rows=rows, wanted=None)  # all remaining rows were requested
    if not any(estimate_of(cell) is not None for row in table.rows if row.runs for cell in row.cells):
        command = " ".join(["python -m scripts reproduce", f"table={name}", *settings])
        raise RunError(f"no row of {name} has been run with these settings: {command}")
    if any(group.dataset is not None and group.dataset.cut for group in assembled.groups):
        cut = f"SUBSET: data.size={cfg.data.size}, data.max_cases={cfg.data.max_cases}, seed {cfg.data.seed}; not the whole data set."
        table = replace(table, caption=(cut, *table.caption))
    return table, assembled.models.results / "tables" / stem


def table_stem(cfg: Reproduce, only: frozenset[str] | None, groups: Sequence[ColumnGroup]) -> str:
    """Name of a table's files: other data, models, rows, columns, questions or corrections than the table's own replace no file of theirs.

    Args:
        cfg: the settings of the command, before models are filled in.
        only: names of the requested rows; None for all.
        groups: the requested column groups.
    """
    option = cfg.table
    name = "-".join([option["name"], *([cfg.backbone] if cfg.backbone else []), cfg.profile_name]) + variation(cfg)
    columns = None if cfg.columns is None else [group.name for group in groups]
    full = load_option("table", option["name"])
    name += restriction(option, full, None if only is None else sorted(only), columns)
    name += "-unguessable" if cfg.guessable == "exclude" else ""
    name += f"-errata-{joined([Path(cfg.errata).stem])}" if cfg.errata else ""
    return name + ("-corrected" if cfg.judge.corrected else "")


def _table(option: Mapping[str, Any], assembled: Experiment[Reproduce]) -> Table:
    cfg, rows, evidence = assembled.cfg, [], f"evidence@{assembled.cfg.k_evidence}"
    with progress_line("scoring", len(assembled.lines)) as progress:
        for line in assembled.lines:
            cells = [assembled.cell(line, group, metric) for group in assembled.groups for metric in group.metrics]
            runs = {group: builds for (name, group), builds in assembled.runs.items() if name == line.name}
            folders = {group: builds[0].folder for group, builds in runs.items()}
            answered = any(run.record.stand_ins for builds in runs.values() for run in builds)
            first = {group.name: files[0] for group in assembled.groups if (files := assembled.files(line, group))}
            coverage = {group: files[evidence] for group, files in first.items() if evidence in files}
            rows.append(Row(line.name, line.title, tuple(cells), folders, coverage, line.ruled, answered))
            progress.step()
    used = [(group.dataset, group.reader, group.unit) for group in assembled.groups if group.dataset is not None]
    names = _judges(assembled.groups)
    judges = [(name, dataset) for dataset, _, _ in used for name in names[dataset.name]]
    columns = [(group, metric) for group in assembled.groups for metric in group.metrics]
    imported = {name for (name, _), (run, *_) in assembled.runs.items() if run.record.imported}
    reasons = {why_not_comparable(cfg, assembled.models, assembled.backbone, dataset) for dataset, _, _ in used}
    reasons |= {other_data(cfg, dataset) for dataset, _, _ in used}  # the caption always names a sample
    return Table(
        option["name"],
        option["title"],
        (
            *caption(cfg, assembled.models, used, imported=bool(imported)),
            *evidence_lines(assembled.groups, assembled.lines),
            *_notes(option, assembled),
        ),
        tuple(assembled.column(group, metric) for group, metric in columns),
        tuple(rows),
        option.get("reference", ""),
        assembled.models.prices,
        assembled.only,
        usage_note(
            reasons - {""},
            published=any(line.published is not None for line in assembled.lines),
            stand_ins=assembled.models.stand_ins,
            imported=0 < len(imported) < len(assembled.lines),
            unmeasured=unmeasured(cfg, assembled.models, judges),
        ),
        frozenset(place for place, (_, metric) in enumerate(columns) if metric.primary),
    )


def _notes(option: Mapping[str, Any], assembled: Experiment[Reproduce]) -> list[str]:
    """Caption lines about the paper: the source of its numbers, its models, the parts not reproduced, the chosen best rows."""
    cfg, backbone = assembled.cfg, assembled.backbone
    models = ", ".join(f"{role} {model}" for role, model in backbone["models"].items())
    files = ", ".join(f"{file}.csv" for file in backbone["file"])
    notes = [f"Published: {option['paper']}, {files} ({models}).", *option.get("notes", ())]
    notes += [said] if (said := prompts_line(assembled.models.prompts, all_prompts(assembled))) else []
    if cfg.profile_name == "paper" and (others := other_models(cfg, backbone)):
        notes.insert(
            0, f"OTHER MODEL than the paper's: {', '.join(others)}. Nothing here is compared with its numbers."
        )
    runs = [run for builds in assembled.runs.values() for run in builds]
    imported = {run.name: run.record.imported for run in runs if run.record.imported}
    notes += [f"Imported: {facts['title']}: {described(facts)}." for facts in imported.values()]
    notes += [f"Not reproduced: {entry['reason']}" for entry in option.get("not_reproduced", ())]
    absent = dict.fromkeys(
        str(line.memory["build"]["product"])
        for line in assembled.lines
        for group in assembled.groups
        if line.memory is not None and "product" in line.memory["build"]
        if assembled.cell(line, group, group.metrics[0]) == NOT_INSTALLED
    )
    if absent:
        notes.append(f"Not installed: {', '.join(absent)}: make product NAME=…, or NAME=all.")
    if cfg.guessable != "keep":
        out = "left out of every row (costs are those of all questions)"
        done = out if cfg.guessable == "exclude" else "listed"
        notes += [
            f"Guessable: {len(assembled.guessable(group))} of {sum(question.answerable for question in group.questions)} answerable "
            f"questions of {group.title} are answered right without a memory (row `{NO_MEMORY}`, first build); they are {done}."
            for group in assembled.groups
            if group.dataset is not None
        ]
    notes += [
        *waivers(runs),
        *unfitted(assembled.lines, assembled.models),
    ]
    if wrong := assembled.errata:
        notes.append(
            f"Errata {cfg.errata}: {len(wrong)} gold answers are known to be wrong. A score above the share of sound ones is marked."
        )
    return [*notes, *assembled.choices(), *([assembled.stopped] if assembled.stopped else [])]


FIELDS = ("group", "case_id", "question_id", "category", "score", "question", "gold", "answer_without_memory")


def _guessable_lines(assembled: Experiment[Any]) -> Iterator[list[str]]:
    """The guessable questions with the answer given without a memory, by `FIELDS`."""
    for group in assembled.groups:
        guessed = assembled.guessable(group)
        if group.dataset is None or not guessed:
            continue
        run = next(
            run
            for (row, name), (run, *_) in assembled.runs.items()
            if name == group.name
            and any(line.name == row and (line.memory or {}).get("name") == NO_MEMORY for line in assembled.lines)
        )
        for case in group.dataset.cases:
            predictions = read_predictions(run.case_folder(case.id))
            for question, gold in case.questions:
                if (score := guessed.get((case.id, question.id))) is not None:
                    answer = predictions[question.id].answer if question.id in predictions else ""
                    texts = [question.text, " / ".join(gold.answers), answer]
                    yield [group.name, case.id, question.id, gold.category, f"{score:.3f}", *texts]
