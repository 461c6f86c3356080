"""A results card in Markdown: settings, scores, their uncertainty and costs, from the files of a run or of a table.

Scores are printed by the same functions as tables. A value that a folder does not have is printed as `not recorded`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.analysis.costs import COST_COLUMNS, costs, phases
from eval.files.imported import NOT_RECORDED, described
from eval.files.run_folder import COMPLETE, RunFolder, RunRecord, history_of, is_complete, read_predictions
from eval.files.store import read_record
from eval.judging.score_files import graded_files
from eval.report.cell import Column, answered, cells
from eval.report.counted import counted
from eval.report.rendering import cell_text, cost_texts, grid, shown
from eval.report.tables import Table
from eval.statistics.power import planned
from eval.statistics.power import shown as difference_shown
from memsys.inert import visible
from memsys.llm.secrets import redact


def table_card(table: Table, runs: Mapping[Path, RunRecord]) -> str:
    """The card of a table: its captions and cells, then a card of each run.

    Args:
        runs: the record of each run, by folder.
    """
    lines = [f"# Results card: {_line(table.title)}", "", *(f"- {_line(each)}" for each in table.lines)]
    rows = []
    for row in table.rows:
        for place, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
            if isinstance(cell, str):
                continue
            pair = table.pairs.get((row.name, place))
            tested = "–" if pair is None else pair.untested if pair.p is None else f"{pair.p:.3f}"
            rows.append([*map(_plain, (row.title, column.heading, shown(cell))), tested])
    lines += ["", grid(["row", "column", "score", "adjusted p against the reference"], rows)]
    own = [run_card(folder, record, level=2) for folder, record in runs.items()]
    return "\n".join([*map(visible, lines), "", *own])


def run_card(folder: Path, record: RunRecord, *, level: int = 1) -> str:
    """The card of one run, given its `run.json` and the level of the card's heading."""
    head = "#" * level
    name = f"{record.name} on {record.dataset['name']}"
    lines = [f"{head} {'Results card: ' if level == 1 else ''}{_line(name)}", ""]
    lines += [f"- {_line(each)}" for each in _facts(folder, record)]
    prompts = [f"- {_line(f'{name}: {_compact(digest)}')}" for name, digest in sorted(record.prompts.items())]
    kept = ("memory", "unit", "reader", "replies", "source", "distributions")
    settings = {name: record.content[name] for name in kept if name in record.content}
    for title, part in (
        ("Scores", _scores(folder, record)),
        ("Outcomes and failures", _outcomes(folder)),
        ("Costs", _costs(folder)),
        ("Prompts", prompts or [NOT_RECORDED]),
        ("Settings", ["```json", json.dumps(settings, indent=1, sort_keys=True, default=str), "```"]),
    ):
        lines += ["", f"{head}# {title}", "", *part]
    return visible(redact("\n".join(lines) + "\n"))


def _plain(text: str) -> str:
    return " ".join(text.split())


def _line(text: str) -> str:
    return cell_text(_plain(text))


def _facts(folder: Path, record: RunRecord) -> list[str]:
    """Where the run comes from: its folder, imported file, code, models, data and seeds."""
    lines = [f"Run: {folder.name}."]
    if record.imported:
        lines.append(f"Imported answers: {described(record.imported)}.")
    made, known, seed = record.made_with, record.dataset, record.seed
    packages = ", ".join(f"{name} {version}" for name, version in (made.get("packages") or {}).items()) or NOT_RECORDED
    commit, python = made.get("commit", NOT_RECORDED), made.get("python", NOT_RECORDED)
    lines.append(f"Code: commit {commit}, Python {python}, {packages}.")
    if replaced := ", ".join(record.stand_ins):
        lines.append(f"STAND-IN: {replaced} filled by engines without a model; these numbers say nothing about models.")
    named = "; ".join(f"{role} {_compact(model)}" for role, model in record.models.items()) or NOT_RECORDED
    cut = known.get("size") != "all" or known.get("max_cases") is not None
    size = f"SUBSET: size {known.get('size')}, max_cases {known.get('max_cases')}" if cut else "the whole data set"
    sums = ", ".join(known.get("sha256", [])) or NOT_RECORDED
    built = f"build seed {seed[0]}, replicate {seed[1]}" if seed else NOT_RECORDED
    every = NOT_RECORDED if record.rebuild_every is None else record.rebuild_every
    return [
        *lines,
        f"Models: {named}.",
        f"Data: {known['name']}, status {record.data_status}, sha256 {sums}; {size}; transform {known.get('transform')}.",
        f"Seeds: {built}; data seed {known.get('seed')}; rebuilt every {every}.",
    ]


def _scores(folder: Path, record: RunRecord) -> list[str]:
    cases = RunFolder(folder).cases()
    questions = answered((history_of(case), read_predictions(case).values()) for case in cases)
    column = Column(record.dataset["name"], record.dataset["name"], "", questions)
    rows = []
    for path, cell in cells(column, folder, graded_files(folder), lambda path: path.stem).items():
        settings = read_record(path.with_suffix(".json")) if path.with_suffix(".json").is_file() else {}
        prompts = _compact(settings["prompts"]) if settings.get("prompts") else "–"
        model = str(settings.get("model_name") or settings.get("model", "–"))
        rows.append(list(map(_plain, (path.stem, shown(cell), model, prompts))))
    if not rows:
        return ["not scored"]
    lines = [
        grid(["score file", "score", "judge's model", "judge's prompts"], rows),
        "",
        "mean {95 % by case} [95 % by question] · scored/unscored/errored/not reached, over the questions that the run has a line for.",
    ]
    if (assumed := planned(list(Counter(asked.cluster for asked in questions).values()))) is not None:
        least = difference_shown(assumed[0])
        lines.append(f"Detectable difference from another memory at 80 % power: {least} ({assumed[1]}).")
    if (facts := record.imported).get("without_answer"):
        lines.append(f"{facts['without_answer']} of {facts['questions']} questions have no answer in the file.")
    return lines


def _outcomes(folder: Path) -> list[str]:
    cases = RunFolder(folder).cases()
    answers = [answer for case in cases for answer in read_predictions(case).values()]
    counts = Counter(answer.outcome for answer in answers)
    recalled = f"{counts['recalled']} scored by their recall only, " if counts["recalled"] else ""
    complete = [read_record(case / COMPLETE) for case in cases if is_complete(case)]
    open_cases = len(cases) - len(complete)
    cut, empty = sum(answer.cut for answer in answers), sum(answer.empty for answer in answers)
    lines = [
        f"- {counted(len(answers), 'question')}: {counts['answered']} answered, {recalled}{counted(counts['error'], 'error')}, "
        f"{counts['aborted']} aborted, {cut} cut at the token limit, {empty} empty."
    ]
    lines += [f"- Not finished: {counted(open_cases, 'case')} without a case.json."] if open_cases else []
    errors = Counter(" ".join(answer.error.split())[:120] for answer in answers if answer.outcome == "error")
    lines += [f"- {count} × {_line(error)}" for error, count in errors.most_common(5)]
    notes, dropped = (sum(len(record.get(name, ())) for record in complete) for name in ("notes", "dropped_turns"))
    return [
        *lines,
        f"- Data: {counted(notes, 'note')} of the loader, {counted(dropped, 'turn')} dropped by the unit rule.",
    ]


def _costs(folder: Path) -> list[str]:
    titles, found = (each.title for each in COST_COLUMNS), costs(folder)
    totals = grid(["cost", "value"], zip(titles, cost_texts(found), strict=True))
    spent = []
    for each in phases(folder):
        counts = map(str, (each.calls, each.sent, each.tokens_in, each.tokens_out))
        spent.append([each.phase, *counts, f"{each.provider_seconds:.2f}"])
    if not spent:
        return [totals, "", f"By phase: {found.missing or NOT_RECORDED}."]
    header = ["phase", "calls", "not from the cache", "tokens in", "tokens out", "provider s"]
    return [totals, "", grid(header, spent), *([f"By phase: {found.missing}."] if found.missing else [])]


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
