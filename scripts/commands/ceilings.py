"""Compare scores with and without known errors of the gold answers: `python -m scripts ceilings RUN… --scores METRIC --errata
locomo|FILE.csv`.

Applies a list of wrong gold answers to the scores of finished runs (`eval.report.errata`): `locomo` is the audit next to the raw LoCoMo
file (`python -m scripts fetch locomo_corrected`), any other name is a CSV file of your own with the columns case, question and gold (the
ids of the run; gold may be empty). Prints the score as released, without the known errors, and with corrected answers where no model is
needed, by category, and marks the cells above the score of a perfect memory. No model is called. The output is also written to
`<results>/ceilings`, where the report finds it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_loaders.schema import Case
from eval.files.run_folder import RunFolder, read_predictions
from eval.files.store import RunError, replace_file, safe_name
from eval.judging.score_files import mean_values, only_score_file
from eval.report.cell import ABOVE_CEILING, Cell, Column
from eval.report.counted import counted
from eval.report.errata import Key, Layer, Overlaid, overlaid
from eval.report.rendering import about_mean, by_case, estimated, grid, number, span
from scripts.assembly.datasets import AUDITED, layer_of
from scripts.assembly.run_folders import data_of
from scripts.assembly.steps import metrics
from scripts.setup.arguments import verb_parser
from scripts.setup.options import metric_options

GROUP = "science"


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("ceilings", __doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument(
        "--scores", required=True, help="a metric or judge of the runs, such as locomo_f1 or judge_mem0"
    )
    parser.add_argument(
        "--errata", required=True, help=f"{AUDITED}, or a CSV file with the columns case, question, gold"
    )
    parser.add_argument("--data", type=Path, help="data root")
    options = parser.parse_args(arguments)
    records = {folder: RunFolder(folder).record() for folder in options.runs}
    layer = layer_of(options.errata, options.data)
    rows: list[list[str]] = []
    notes: list[str] = []
    for folder, record in records.items():
        dataset = data_of(record, options.data)
        questions = dataset.questions
        if not any(question.key in layer.gold for question in questions):
            raise RunError(f"{folder}: the errata {layer.name} name none of its {counted(len(questions), 'question')}")
        file = only_score_file(folder, options.scores)
        cell = Cell.of(Column.of(dataset.config, options.scores, questions), [file])
        again = _again(folder, dataset.cases, options.scores, layer)
        groups = overlaid(mean_values(file), again, cell.column, layer)
        notes += [f"{record.name}: {note}" for note in [about_mean(cell)] if note]
        rows += [[record.name if place == 0 else "", *cells(group)] for place, group in enumerate(groups)]
        title = f"{record.name} on {record.dataset['name']}, {options.scores}, errata {layer.name}"
        name = f"{folder.name}-{safe_name(options.scores)}-{safe_name(layer.name)}.json"
        shown = json.dumps(as_json(title, groups, record.stand_ins), indent=1)
        replace_file(RunFolder(folder).results / "ceilings" / name, shown)  # the report shows it
    print(f"# {options.scores} with the errata {layer.name}\n")
    if any(record.stand_ins for record in records.values()):
        print("STAND-IN: engines without a model; these numbers test the machinery.\n")
    means = ["as released", "without known errors", "corrected", "ceiling"]
    print("\n\n".join([grid(["memory", "questions", "n", "wrong gold", *means, ""], rows), *notes]))
    return 0


def _again(folder: Path, cases: Sequence[Case], metric: str, layer: Layer) -> dict[Key, float]:
    """Scores of the layer's questions with the layer's answers, by a metric of answers that calls no model; empty for other metrics."""
    if metric not in metric_options():
        return {}
    (scorer,) = metrics([metric])
    if scorer.on_recall:
        return {}
    scores = {}
    for case in cases:
        predictions = read_predictions(RunFolder(folder).case(case.id))
        for question, gold in case.questions:
            right, prediction = layer.gold.get((case.id, question.id)), predictions.get(question.id)
            if right and prediction is not None and prediction.outcome != "error":
                value = scorer.scored(question, replace(gold, answers=(right,)), prediction).value
                if value is not None:
                    scores[case.id, question.id] = value
    return scores


def cells(group: Overlaid) -> list[str]:
    counts = [group.category, str(group.released.n), str(group.faulty)]
    means = [
        "–" if each is None else f"{each.mean:.3f} {span(each.by_question)} {by_case(each)}"
        for each in (group.released, group.sound, group.corrected)
    ]
    return [*counts, *means, number(group.ceiling), ABOVE_CEILING if group.above else ""]


def as_json(title: str, groups: Sequence[Overlaid], stand_in: Sequence[str]) -> dict[str, Any]:
    """The corrected scores in the form of the HTML report, all questions first."""
    rows = [
        {
            "category": group.category,
            "n": group.released.n,
            "faulty": group.faulty,
            "released": estimated(group.released),
            "sound": estimated(group.sound),
            "corrected": estimated(group.corrected),
            "ceiling": group.ceiling,
            "above": group.above,
        }
        for group in groups
    ]
    return {"title": title, "stand_ins": list(stand_in), "rows": rows}
