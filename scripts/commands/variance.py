"""Split the variance of scores into its sources: `python -m scripts variance RUN… --scores METRIC [--detect .03]`.

Takes run folders of one data set. Runs that differ only in seed and replicate (`build.replicates=3`, `build.seed=…`) are builds of one
memory; `judge.repeats=3` gives repeats. Prints the variance of history, question, build, answer and judge for each memory and for the
paired differences from the first (`eval.statistics.variance`), the detectable differences, the gain and cost of doubling each factor, and
with `--detect` the cheapest design that detects such a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eval.analysis.costs import BUILD, built, efforts, phases
from eval.files.run_folder import RunFolder, RunRecord
from eval.files.store import RunError
from eval.judging.score_files import only_score_file
from eval.report.cell import Asked, read_draws
from eval.report.counted import counted
from eval.report.rendering import grid, span
from eval.statistics.power import POWER, shown
from eval.statistics.variance import (
    ASSURANCE,
    PARTS,
    Components,
    Design,
    Draws,
    Tokens,
    cheapest,
    components,
    contributions,
    detects,
    doubled,
    paired,
    planned_for,
    sampled,
)
from memsys.jsons import canonical
from scripts.assembly.run_folders import data_of
from scripts.setup.arguments import amount, verb_parser

GROUP = "science"

SAME = ("name", "memory", "unit", "dataset", "reader", "models", "outside", "prompts", "rebuild_every")
"""Parts of a run's record that builds of one memory have in common."""


@dataclass(frozen=True, slots=True)
class Replicated:
    """The builds of one memory with their scores."""

    title: str
    draws: Draws
    left_out: int
    """Number of questions that lack a score in some build or repeat."""
    tokens: Tokens


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("variance", __doc__)
    parser.add_argument(
        "runs", type=Path, nargs="+", help="run folders of one data set; the first memory is the reference"
    )
    parser.add_argument(
        "--scores", required=True, help="a metric or judge of the runs, such as locomo_f1 or judge_mem0"
    )
    parser.add_argument(
        "--detect", type=amount(0.0001, 1.0), help="the difference that is to be detected with 80 %% power"
    )
    parser.add_argument("--data", type=Path, help="data root")
    options = parser.parse_args(arguments)
    records = {folder: RunFolder(folder).record() for folder in options.runs}
    first = records[options.runs[0]]
    if any(canonical(record.dataset) != canonical(first.dataset) for record in records.values()):
        raise RunError("the runs are about different data sets, or different cuts of one")
    data = data_of(first, options.data)
    questions, unit = data.questions, data.config["aggregate"][0]
    memories = list(replicated(records, questions, options.scores))
    subjects = list(_subjects(memories))
    print(f"# Variance of {options.scores} on {first.dataset['name']}\n")
    if any(record.stand_ins for record in records.values()):
        print("STAND-IN: engines without a model; these numbers test the machinery.\n")
    if unit != "question":
        print(f"Each question weighs the same here; means of tables are of {unit} means.\n")
    print("\n".join([*_components_text(subjects), "", *_designs_text(subjects)]))
    if options.detect is not None:
        histories = len({question.cluster for question in questions})
        most = max(1, len(questions) // max(1, histories))
        print("\n".join(["", *_proposals(subjects, options.detect, histories, most)]))
    return 0


def replicated(records: Mapping[Path, RunRecord], questions: Sequence[Asked], metric: str) -> Iterator[Replicated]:
    """The memories of some runs, each with its builds.

    Raises:
        RunError: a run has no scores by the metric, or no question of a memory is scored in every build and repeat.
    """
    groups: dict[bytes, list[Path]] = {}
    for folder, record in records.items():
        groups.setdefault(canonical([record.content.get(part) for part in SAME]), []).append(folder)
    names = [records[folders[0]].name for folders in groups.values()]
    homes = {question.key: question.cluster for question in questions}
    for name, folders in zip(names, groups.values(), strict=True):
        draws = read_draws([only_score_file(folder, metric) for folder in folders], questions)
        labels = sorted({label for own in draws.values() for label, _ in own})
        repeats = 1 + max((repeat for _, repeat in labels), default=0)
        shape = (len(folders), repeats)
        arrays = {
            (homes[key], f"{key[0]} {key[1]}"): np.array([value for _, value in sorted(own)]).reshape(shape)
            for key, own in draws.items()
            if len(own) == len(folders) * repeats
        }
        if len(arrays) < 2:
            raise RunError(f"{name}: fewer than two questions have a score by {metric} in every build and repeat")
        title = name if names.count(name) == 1 else folders[0].name
        yield Replicated(title, arrays, len(homes) - len(arrays), _tokens(folders[0], metric))


def _tokens(folder: Path, metric: str) -> Tokens:
    """Mean model tokens of building a history, of a question, and of a grade."""
    costs, whole = phases(folder), built(folder)  # a part of a build would pass for the whole
    building = (line for line in efforts(folder) if line["phase"] in BUILD and line["case_id"] in whole)
    build = sum(line["tokens_in"] + line["tokens_out"] for line in building) / max(1, len(whole))

    def mean(names: Sequence[str], per: int) -> float:
        return sum(cost.tokens_in + cost.tokens_out for cost in costs if cost.phase in names) / max(1, per)

    answers = sum(cost.steps for cost in costs if cost.phase == "answer")
    grades = sum(cost.steps for cost in costs if cost.phase == metric)
    return Tokens(build, mean(("read", "answer"), answers), mean((metric,), grades))


Subject = tuple[str, Components, Tokens, int]
"""Decomposed scores: a title, components, costs, and the number of questions left out."""


def _subjects(memories: Sequence[Replicated]) -> Iterator[Subject]:
    """Every memory, then the paired difference of every other memory from the first; a difference has the costs of both."""
    for memory in memories:
        yield memory.title, components(memory.draws), memory.tokens, memory.left_out
    reference, *others = memories
    for other in others:
        gaps = paired(other.draws, reference.draws)
        if len(gaps) < 2:
            raise RunError(f"{other.title} and {reference.title} share fewer than two scored questions")
        both = Tokens(
            other.tokens.build + reference.tokens.build,
            other.tokens.answer + reference.tokens.answer,
            other.tokens.judge + reference.tokens.judge,
        )
        left_out = other.left_out + len(other.draws) - len(gaps)
        yield f"{other.title} − {reference.title}", components(gaps), both, left_out


def _components_text(subjects: Sequence[Subject]) -> Iterator[str]:
    yield "One score of one question: standard deviation, share of the variance, [95 % of the variance by history]."
    yield "–: drawn once, or one question a history: it is part of what stands above it (build of history, judge of answer of question).\n"
    header = ["", "histories × questions × builds × repeats", "left out", "mean", *PARTS]
    rows = []
    for title, parts, _, left_out in subjects:
        design = _design_text(parts.design)
        rows.append([title, design, str(left_out), f"{parts.mean:.3f}", *(_part_text(parts, part) for part in PARTS)])
    yield grid(header, rows)


def _part_text(parts: Components, part: str) -> str:
    variance = parts.variances[part]
    if variance is None:
        return "–"
    share = parts.positive(part) / parts.total if parts.total else 0.0
    negative = " (estimated below 0)" if variance < -1e-12 else ""
    return f"{parts.positive(part) ** 0.5:.3f} {share:.0%} {span(parts.intervals[part], digits=4)}{negative}".strip()


def _design_text(design: Design) -> str:
    return f"{design.histories} × {design.questions:.4g} × {design.builds} × {design.repeats}"


def _designs_text(subjects: Sequence[Subject]) -> Iterator[str]:
    yield f"The difference that is detected with {POWER:.0%} power, now and with twice as many of one factor (model tokens in all):\n"
    factors = ("histories", "questions", "builds", "repeats")
    rows = []
    for title, parts, tokens, _ in subjects:
        twice = dict(doubled(parts))
        cells = [
            f"{shown(detects(parts, twice[name]))} ({tokens.of(twice[name]):,.0f})" if name in twice else "–"
            for name in factors
        ]
        now = f"{shown(detects(parts, parts.design))} ({tokens.of(parts.design):,.0f})"
        adds = contributions(parts, parts.design)
        part, total = max(adds, key=adds.__getitem__), sum(adds.values())
        rows.append([title, now, *cells, f"{part} ({adds[part] / total:.0%})" if total else "none"])
    yield grid(["", "now", *factors, "largest part of the error"], rows)
    if few := [title for title, parts, _, _ in subjects if not sampled(parts.design)]:
        which = f" ({', '.join(few)})" if len(few) < len(subjects) else ""
        yield f"\nFewer than five histories{which}: they are not a sample, and every number is about these histories alone."


def _proposals(subjects: Sequence[Subject], wished: float, histories: int, questions: int) -> Iterator[str]:
    """The cheapest design for each subject within the available data."""
    data = f"{counted(histories, 'history')} of {counted(questions, 'question')}"
    yield f"Cheapest design that detects {wished:g} with {POWER:.0%} power, from {data}."
    yield f"From five histories on, it is planned with the upper {ASSURANCE:.0%} limit of the error.\n"
    rows = []
    for title, parts, tokens, _ in subjects:
        design = cheapest(parts, wished, tokens, histories, questions)
        if design is None:
            alone = contributions(parts, parts.design)
            lacking = "histories" if alone["history"] > 0.5 * sum(alone.values()) else "questions"
            why = f"none up to 10 builds and 5 repeats: the data have too few {lacking}"
            rows.append([title, why if any(alone.values()) else "none: the scores do not differ", "", ""])
        else:
            rows.append([title, _design_text(design), shown(planned_for(parts, design)), f"{tokens.of(design):,.0f}"])
    yield grid(["", "histories × questions × builds × repeats", "detects", "model tokens"], rows)
