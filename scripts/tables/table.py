"""`memsys-bench reproduce`: run a paper's table, score it, and write it with the published numbers.

Guessable questions are answered right without a memory: the row `nothing` scores at least .5 in the group's first metric. The row's first
build selects them. Its own score without them would be 0 by construction, so its other builds give it (`build.replicates=2`); without
other builds it has none. A model may know the answer from its training, or guess it from the question. Questions that the history does
not answer are not included: refusing them needs no memory, and they test that a memory does not mislead the reader.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.files.imported import described
from eval.files.run_folder import read_predictions
from eval.files.store import RunError, replace_file
from eval.report.paper import latex
from eval.report.rendering import as_csv, as_json, markdown
from eval.report.tables import Row, Table, estimate_of
from eval.report.wandb_log import log_table
from memsys.inert import csv_text
from scripts.assembly.models import other_models
from scripts.assembly.scorers import unmeasured
from scripts.assembly.steps import complain
from scripts.setup.launch import composed
from scripts.setup.options import load_option
from scripts.setup.printing import print_table
from scripts.setup.progress import progress_line
from scripts.tables.captions import caption, evidence_lines, prompts_line, unfitted, usage_note, waivers
from scripts.tables.experiments import Outcome, experiment
from scripts.tables.grid import NO_MEMORY, Experiment, all_prompts, other_data, why_not_comparable, with_our_judge
from scripts.tables.layout import (
    TableRow,
    cells_of,
    group_name,
    joined,
    primary_of,
    published_files,
    read_lines_of,
    restriction,
    variation,
    wanted_columns,
    wanted_rows,
)

if TYPE_CHECKING:
    from scripts.settings.schema import Reproduce


def make_table(cfg: Reproduce) -> Outcome:
    """Run what is missing, score, print, and write `<results>/tables/<name>-<profile>.md`, `.csv`, `.tex` and `.json`."""
    option = cfg.table
    assembled = experiment(cfg, option)
    if assembled is None:
        return Outcome(3)
    stem, cfg = _stem(cfg), assembled.cfg
    table = _table(option, assembled)
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
    code = complain(table, cfg.missing_limit)
    if stop := assembled.models.purse.stop:
        print(stop, file=sys.stderr)
    return Outcome(code, file)


def finished_table(name: str, settings: Sequence[str]) -> tuple[Table, Path]:
    """Make a table from existing runs and score files; return it with the path of its files without an ending. Nothing is run or judged.

    Args:
        name: a file of `conf/table`.
        settings: settings of `memsys-bench reproduce`.

    Raises:
        RunError: a setting is refused, all data sets are missing, or no row has a number.
    """
    cfg = composed("reproduce", [f"table={name}", *settings, "replay=true", "yes=true"])
    wanted, option, stem = cfg.only, cfg.table, _stem(cfg)
    assembled = experiment(cfg.changed(only=[]), option, run=False)  # no row is scored
    assert assembled is not None, "nothing is run, so there is no plan to decline"
    cfg = assembled.cfg
    table = _table(option, assembled)
    if wanted is not None:
        chosen = wanted_rows(option, assembled.lines, wanted)
        table = replace(table, rows=tuple(row for row in table.rows if chosen is None or row.name in chosen))
    table = replace(table, wanted=None)  # all remaining rows were requested
    if not any(estimate_of(cell) is not None for row in table.rows if row.runs for cell in row.cells):
        command = " ".join(["python -m scripts reproduce", f"table={name}", *settings])
        raise RunError(f"no row of {name} has been run with these settings: {command}")
    if any(group.dataset is not None and group.dataset.cut for group in assembled.groups):
        cut = f"SUBSET: data.size={cfg.data.size}, data.max_cases={cfg.data.max_cases}, seed {cfg.data.seed}; not the whole data set."
        table = replace(table, caption=(cut, *table.caption))
    return table, assembled.models.results / "tables" / stem


def _stem(cfg: Reproduce) -> str:
    """Name of a table's files: other data, models, rows, columns, questions or corrections than the table's own replace no file of theirs.

    Args:
        cfg: the settings of the command, before models are filled in.
    """
    option = cfg.table
    name = "-".join([option["name"], *([cfg.backbone] if cfg.backbone else []), cfg.profile_name]) + variation(cfg)
    only = wanted_rows(option, read_lines_of(option, cfg.backbone), cfg.only)
    columns = None if cfg.columns is None else [group_name(group) for group in wanted_columns(option, cfg.columns)]
    full = load_option("table", option["name"])
    name += restriction(option, full, None if only is None else sorted(only), columns)
    name += "-unguessable" if cfg.guessable == "exclude" else ""
    name += f"-errata-{joined([Path(cfg.errata).stem])}" if cfg.errata else ""
    return name + ("-corrected" if cfg.judge.corrected else "")


def _table(option: Mapping[str, Any], assembled: Experiment[Reproduce]) -> Table:
    cfg, rows = assembled.cfg, []
    with progress_line("scoring", len(assembled.lines)) as progress:
        for line in assembled.lines:
            rows.append(_row(assembled, line))
            progress.step()
    used = [(group.dataset, group.reader, group.unit) for group in assembled.groups if group.dataset is not None]
    judges = [
        (metric["judge"], group.dataset)
        for group in assembled.groups
        if group.dataset is not None
        for metric in (with_our_judge(cfg, assembled.backbone, each) for each in cells_of(group.option))
        if "judge" in metric
    ]
    primaries, start = set[int](), 0
    for group in assembled.groups:
        primaries |= {start + place for place in primary_of(group.option)}
        start += len(cells_of(group.option))
    imported = {name for (name, _, _), run in assembled.runs.items() if run.record.imported}
    reasons = {why_not_comparable(cfg, assembled.models, assembled.backbone, dataset) for dataset, _, _ in used}
    reasons |= {other_data(cfg, dataset) for dataset, _, _ in used}  # the caption always names a sample
    return Table(
        option["name"],
        option["title"],
        (
            *caption(cfg, assembled.models, used),
            *evidence_lines(assembled.groups, assembled.lines),
            *_notes(option, assembled),
        ),
        tuple(assembled.column(group, metric) for group in assembled.groups for metric in cells_of(group.option)),
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
        frozenset(primaries),
    )


def _notes(option: Mapping[str, Any], assembled: Experiment[Reproduce]) -> list[str]:
    """Caption lines about the paper: the source of its numbers, its models, the parts not reproduced, the chosen best rows."""
    cfg, backbone = assembled.cfg, assembled.backbone
    models = ", ".join(f"{role} {model}" for role, model in backbone["models"].items())
    files = ", ".join(f"{file}.csv" for file in published_files(backbone))
    notes = [f"Published: {option['paper']}, {files} ({models}).", *option.get("notes", ())]
    notes += [said] if (said := prompts_line(assembled.models.prompts, all_prompts(assembled))) else []
    if cfg.profile_name == "paper" and (others := other_models(cfg, backbone)):
        notes.insert(
            0, f"OTHER MODEL than the paper's: {', '.join(others)}. Nothing here is compared with its numbers."
        )
    imported = {run.name: run.record.imported for run in assembled.runs.values() if run.record.imported}
    notes += [f"Imported: {facts['title']}: {described(facts)}." for facts in imported.values()]
    notes += [f"Not reproduced: {entry['reason']}" for entry in option.get("not_reproduced", ())]
    if absent := assembled.absent_products():
        notes.append(f"Not installed: {', '.join(absent)}: make product NAME=…, or NAME=all.")
    notes += [
        *guessable_notes(assembled),
        *waivers(assembled.runs.values()),
        *unfitted(assembled.lines, assembled.models),
    ]
    if wrong := assembled.errata:
        notes.append(
            f"Errata {cfg.errata}: {len(wrong)} gold answers are known to be wrong. A score above the share of sound ones is marked."
        )
    return [*notes, *assembled.choices(), *([assembled.stopped] if assembled.stopped else [])]


def _row(assembled: Experiment[Reproduce], line: TableRow) -> Row:
    cells = [assembled.cell(line, group, metric) for group in assembled.groups for metric in cells_of(group.option)]
    folders = {
        group: run.folder
        for (name, group, replicate), run in assembled.runs.items()
        if name == line.name and replicate == 0
    }
    answered = any(run.record.stand_ins for (name, _, _), run in assembled.runs.items() if name == line.name)
    evidence = f"evidence@{assembled.cfg.k_evidence}"
    first = {group.name: files[0] for group in assembled.groups if (files := assembled.files(line, group))}
    coverage = {group: files[evidence] for group, files in first.items() if evidence in files}
    return Row(line.name, line.title, tuple(cells), folders, coverage, line.ruled, answered)


FIELDS = ("group", "case_id", "question_id", "category", "score", "question", "gold", "answer_without_memory")


def guessable_notes(assembled: Experiment[Reproduce]) -> list[str]:
    """A caption line for each column group about the questions that need no memory; empty with `guessable=keep`."""
    if assembled.cfg.guessable == "keep":
        return []
    done = (
        "left out of every row (costs are those of all questions)" if assembled.cfg.guessable == "exclude" else "listed"
    )
    return [
        f"Guessable: {len(assembled.guessable(group))} of {sum(question.answerable for question in group.questions)} answerable "
        f"questions of {group.title} are answered right without a memory (row `{NO_MEMORY}`, first build); they are {done}."
        for group in assembled.groups
        if group.dataset is not None
    ]


def _guessable_lines(assembled: Experiment[Any]) -> Iterator[list[str]]:
    """The guessable questions with the answer given without a memory, by `FIELDS`."""
    for group in assembled.groups:
        guessed = assembled.guessable(group)
        if group.dataset is None or not guessed:
            continue
        run = next(
            run
            for (row, name, _), run in assembled.runs.items()
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
