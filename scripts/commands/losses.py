"""Show the steps at which a memory loses points: `python -m scripts losses RUN --evidence GOLD_EVIDENCE_RUN --scores METRIC`.

Compares a run with the run of the memory `gold_evidence` on the same questions, and prints the mean loss of each step, over all questions
and by category (`eval.analysis.losses` defines the steps). The same numbers go to `<results>/losses/`; with `--figure` the losses over all
questions are drawn, too (PDF, PNG and CSV in `<results>/figures/`). `make report` shows them; it computes the losses of a table's first
metric itself if there is a run of `gold_evidence`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eval.analysis.losses import EVIDENCE, NET, as_json, losses_of, shown_estimate, waterfall
from eval.files.run_folder import RUN, RunFolder, RunRecord
from eval.files.store import RunError, replace_file, safe_name
from eval.judging.score_files import mean_values, only_score_file
from eval.report.cell import Cell, Column
from eval.report.rendering import about_mean
from scripts.assembly.run_folders import data_of
from scripts.setup.arguments import verb_parser

GROUP = "science"


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("losses", __doc__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--evidence", type=Path, help="the run folder of gold_evidence on the same data (needed)")
    parser.add_argument("--scores", required=True, help="a metric or judge of the run, such as locomo_f1 or judge_mem0")
    parser.add_argument("--data", type=Path, help="data root")
    parser.add_argument("--figure", action="store_true", help="draw the waterfall, too")
    options = parser.parse_args(arguments)
    record = RunFolder(options.run).record()
    scores = only_score_file(options.run, options.scores)
    evidence = only_score_file(_evidence_run(options.evidence, options.run, record), options.scores)
    data = data_of(record, options.data)
    cell = Cell.of(Column.of(data.config, options.scores, data.questions), [scores])
    aggregate = cell.column.aggregate
    losses = list(losses_of(options.run, mean_values(scores), mean_values(evidence), data.cases, record.reader))
    if not losses:
        raise RunError(f"{options.run}: no question has a score by {options.scores}")
    title = f"{record.name} on {record.dataset['name']}, {options.scores}"
    filled, fall = record.stand_ins, waterfall(losses, aggregate)
    note = f"STAND-IN: {', '.join(filled)} filled by engines without a model." if filled else ""
    print("\n\n".join(filter(None, (f"# {title}", note, about_mean(cell)))) + "\n")
    groups = {"all": list(losses)}
    for loss in losses:
        groups.setdefault(loss.category or "no category", []).append(loss)
    print("| questions | n | score | step | loss [95 % by question] {by case} |\n|---|---|---|---|---|")
    for name, group in groups.items():
        own = waterfall(group, aggregate)
        for number, (step, mean) in enumerate(own.steps.items()):
            first = (name, str(own.score.n), f"{own.score.mean:.3f}") if number == 0 else ("", "", "")
            print(f"| {' | '.join(first)} | {step} | {shown_estimate(mean)} |")
        if not own.steps:
            print(f"| {name} | {own.score.n} | {own.score.mean:.3f} | nothing lost | |")
    results, name = RunFolder(options.run).results, f"{options.run.name}-{safe_name(options.scores)}"
    place = results / "losses" / f"{name}.json"
    replace_file(place, json.dumps(as_json(title, fall), indent=1))
    files = [place]
    if options.figure:
        from eval.report.panels import fall_points, fall_sheet
        from scripts.tables.figures import write_figure

        points = fall_points(fall)
        sheet = fall_sheet(f"Where points are lost: {title}", points, (note,) if note else ())
        files += write_figure(results / "figures" / f"losses-{name}", sheet, points, note or "models")
    print(f"\n{NET}\nwritten: {', '.join(map(str, files))}")
    return 0


def _evidence_run(folder: Path | None, run: Path, record: RunRecord) -> Path:
    """The run folder of `gold_evidence` to compare with."""
    data = record.dataset
    remedy = (
        f"run memory={EVIDENCE} dataset={data['name']} with the same data settings, reader and metrics as {run.name}, "
        f"and give its folder as --evidence"
    )
    if folder is None:
        known = sorted(run.parent.glob(f"{EVIDENCE}-*/{RUN}"))
        there = f"; there are: {', '.join(str(path.parent) for path in known)}" if known else ""
        raise RunError(
            f"without the answers from the evidence the reader's losses would count as the memory's; {remedy}{there}"
        )
    theirs = RunFolder(folder).record()
    if theirs.name != EVIDENCE:
        raise RunError(f"{folder} is a run of {theirs.name}; {remedy}")
    if theirs.dataset != data:
        raise RunError(f"{folder} is a run on other data; {remedy}")
    return folder
