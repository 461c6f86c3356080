"""Measure the errors of a judge: `python -m scripts judge-card mem0 locomo [--limit N] [key=value …]`.

Makes answers that are certainly right or certainly wrong (`eval.judging.judge_probes`), lets the judge grade them, and prints its errors by
kind with intervals; its agreement with itself over repeats (`judge.repeats=`) and with the answer before the reference; and the range over
all judge prompts of conf/judge that can grade these data, with the same model. The card is saved below `<results>/judge_cards`, and tables
with `judge.corrected=true` print scores corrected by it.

With `--run RUN` it prints the run's score by this judge, corrected for the errors (`eval.judging.judge_card`), and its agreement with
every other grader of the run: other judges, the grades that came with imported answers, and a person's (`--ratings FILE`, exported from
the report). Ratings of a random sample of the run's answers, which the report supports, also give a score that needs no assumption
about the kinds of errors (`eval.report.ratings`). Settings such as `models.judge=…` and `endpoint.base_url=…` are those of
`memsys-bench run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from eval.analysis.losses import shown_estimate
from eval.files.imported import THEIRS
from eval.files.run_folder import JUDGE, RunFolder, metric_of
from eval.files.store import RunError, replace_file
from eval.judging.agreement import RIGHT, Agreement, Verdicts, agreement
from eval.judging.judge_card import (
    UNSAID,
    Card,
    Corrected,
    Correction,
    KindErrors,
    ProbeVerdicts,
    card,
    clusters_of,
    write_card,
)
from eval.judging.judge_probes import Probe, probes, spread, verdicts, why_not
from eval.judging.score import Judging
from eval.judging.score_files import mean_values
from eval.report.cell import Asked, Cell, Column, outcomes
from eval.report.counted import counted
from eval.report.ratings import FEWEST, prediction_powered, rated_sample, ratings_of
from eval.report.rendering import about_mean, grid, span
from eval.report.tables import corrected_text, shown_share
from eval.statistics.stats import ENOUGH_CLUSTERS
from scripts.assembly.steps import card_file
from scripts.lab.lab import Lab
from scripts.setup.arguments import verb_parser, whole
from scripts.setup.options import options as options_of

GROUP = "science"
WORDS = "judge dataset"
FEW = "Below five histories, intervals of kappa and alpha are about other answers to these histories, not about other histories."


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("judge-card", __doc__)
    parser.add_argument("--judge", required=True, help="a file of conf/judge, or file@model")
    parser.add_argument("--dataset", default="locomo", help="a file of conf/dataset")
    parser.add_argument("--limit", type=whole(1), help="most probes of each kind, spread over the data")
    parser.add_argument(
        "--brief", action="store_true", help="only the errors: not the order, and no other judge prompt"
    )
    parser.add_argument("--run", type=Path, help="a run folder with scores by this judge")
    parser.add_argument("--ratings", type=Path, help="with --run: a person's verdicts, exported from the HTML report")
    parser.add_argument("settings", nargs="*", help="settings of memsys-bench run: key=value")
    options = parser.parse_args(arguments)
    lab = Lab(*options.settings)
    grading = lab.judging(options.judge)
    data = lab.load(options.dataset)
    made = spread(list(probes([data.cases[index] for index in range(len(data.cases))])), options.limit)
    if not made:
        raise RunError(f"{data.title} has no questions with answers, so there is nothing to probe a judge with")
    if reason := why_not(grading.judge, grading.prompts, made):
        raise RunError(f"judge {options.judge} has no card on {data.title}: {reason}")
    graded = verdicts(made, grading, answer_first=not options.brief)
    result = card(graded)
    if not any(line.n for line in result.lines):
        raise RunError(f"no reply to {counted(len(made), 'probe')} holds a verdict; no card is written")
    title = f"{grading.judge.title} by {grading.model_name or 'a model'} on {data.title}"
    lines = card_lines(title, result, stand_in=grading.model in lab.models.stand_in_identities)
    if not options.brief:
        lines += ["", *prompt_lines(lab, options.judge, made, graded)]
    if len({probe.history for probe in made}) < ENOUGH_CLUSTERS:
        lines += ["", FEW]
    file = card_file(lab.models.results, grading, data)
    write_card(file, graded)
    replace_file(file.with_suffix(".md"), "\n".join(lines) + "\n")
    print("\n".join(lines))
    if options.run is not None:
        column = Column.of(data.config, grading.judge.title, data.questions)
        print("\n" + "\n".join(run_lines(options.run, grading, result, column, options.ratings)))
    print(f"\nwritten: {file} and .md; tables with judge.corrected=true use it")
    return 0


def card_lines(title: str, result: Card, *, stand_in: bool) -> list[str]:
    lines = [f"# {title}", ""]
    if stand_in:
        lines += ["STAND-IN: an engine without a model is the judge; its errors say nothing about models.", ""]
    rows = map(_row, sorted(result.lines, key=lambda line: not line.right))
    lines += [grid(["answer", "should be", "n", "errors [95 %]", "without a verdict"], rows), ""]
    if result.rejected is not None and result.accepted is not None:
        lines.append(
            f"Over probes: rejects {shown_share(result.rejected)} of right answers, "
            f"accepts {shown_share(result.accepted)} of wrong ones that say something{_over_kinds(result)}."
        )
    if not result.discriminates:
        lines.append("It does not tell right from wrong: no score by it can be corrected.")
    lines += [
        f"{what}: {_agreement_text(found)}."
        for what, found in (("Asked again", result.repeats), ("With the answer before the reference", result.order))
        if found is not None
    ]
    return lines


def _over_kinds(result: Card) -> str:
    spans = []
    for what, right in (("rejected", True), ("accepted", False)):
        errors = [line.errors for line in result.lines if line.right is right and line.n and line.kind not in UNSAID]
        if errors:
            spans.append(f"{what} {min(errors):.3f}–{max(errors):.3f}")
    return f" (by kind: {', '.join(spans)})" if spans else ""


def _row(line: KindErrors) -> list[str]:
    errors = f"{line.errors:.3f} {span(line.interval)}".strip() if line.n else "–"
    return [line.kind, "accepted" if line.right else "rejected", str(line.n), errors, str(line.unscored)]


def _agreement_text(found: Agreement) -> str:
    parts = [f"{found.agreeing:.3f} of the verdicts on {counted(found.n, 'answer')} agree"]
    if found.kappa is not None:
        parts.append(f"kappa {found.kappa:.3f} {span(found.kappa_interval)}".strip())
    parts.append("alpha –" if found.alpha is None else f"alpha {found.alpha:.3f} {span(found.alpha_interval)}".strip())
    return ", ".join(parts)


# --- all judge prompts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByPrompt:
    """The results of one judge prompt on the probes."""

    name: str
    card: Card
    verdicts: Verdicts
    """Whether the judge accepts, by number of the probe."""


def prompt_lines(lab: Lab, chosen: str, made: Sequence[Probe], graded: Sequence[ProbeVerdicts]) -> list[str]:
    """Verdicts of all judge prompts on the same answers with the same model, and the range that they span."""
    own, model = chosen.partition("@")[0], chosen.partition("@")[2]
    asked, refused = [ByPrompt(own, card(graded), _accepted(graded))], dict[str, list[str]]()
    for name in options_of("judge"):
        if name != own:
            grading = lab.judging(f"{name}@{model}" if model else name)
            if reason := why_not(grading.judge, grading.prompts, made):
                refused.setdefault(reason, []).append(name)
            else:
                theirs = verdicts(made, grading)
                asked.append(ByPrompt(name, card(theirs), _accepted(theirs)))
    clusters = clusters_of(graded)
    lines = ["## By judge prompt, the same model and answers", ""]
    header = ["judge", "rejects right", "accepts wrong", f"agreement with {own}"]
    rows = []
    for each in asked:
        shares = [("–" if share is None else shown_share(share)) for share in (each.card.rejected, each.card.accepted)]
        same = agreement([asked[0].verdicts, each.verdicts], clusters) if each is not asked[0] else None
        rows.append([each.name, *shares, "" if same is None else _agreement_text(same)])
    lines += [grid(header, rows), "", *_band(asked, clusters)]
    return [*lines, *(f"Not asked: {', '.join(names)}: {reason}." for reason, names in refused.items())]


def _accepted(graded: Sequence[ProbeVerdicts]) -> Verdicts:
    return {place: 2 * sum(own) > len(own) for place, verdict in enumerate(graded) if (own := verdict.accepts)}


def _band(asked: Sequence[ByPrompt], clusters: Mapping[int, str]) -> Iterator[str]:
    for what, shares in (
        ("rejects right answers", [each.card.rejected for each in asked]),
        ("accepts wrong answers", [each.card.accepted for each in asked]),
    ):
        means = [share.mean for share in shares if share is not None]
        if means:
            yield f"Band over {counted(len(means), 'prompt')}: {what} {min(means):.3f}–{max(means):.3f}."
    together = agreement([each.verdicts for each in asked], clusters) if len(asked) > 1 else None
    if together is not None:
        yield f"All prompts together: {_agreement_text(together)}."


# --- a run -----------------------------------------------------------------------------------------------------------------


def run_lines(run: Path, grading: Judging, result: Card, column: Column, ratings: Path | None) -> list[str]:
    """The raw and the corrected score of a run by this judge, and the judge's agreement with every other grader of the run.

    Raises:
        RunError: the run has no verdict by the judge.
    """
    file = RunFolder(run).scores(grading.stem)
    if not file.is_file():
        raise RunError(
            f"{run} has no scores by {grading.judge.name} of this model; score it first (protocol.judges=, or import_answers)"
        )
    values = mean_values(file)
    if not values:
        raise RunError(f"{file} holds no verdict")
    reached, known = outcomes([run], column.questions), {question.key for question in column.questions}
    asked = [each for each in column.questions if each.key in reached or each.key in values]
    asked += [Asked(*key, "", key[0], answerable=True, evidence=False) for key in values if key not in known]
    own = replace(column, questions=tuple(asked))
    cell = Cell(own, reached, (file,), correction=Correction(result, ""))
    observed, fixed = cell.estimate(), cell.corrected()
    assert observed is not None, "there are verdicts"
    after = f"not corrected: {fixed}" if not isinstance(fixed, Corrected) else corrected_text(fixed)
    lines = [f"{run.name}: {observed.mean:.3f} of {counted(observed.n, 'answer')} accepted; {after}"]
    lines += filter(None, [about_mean(cell)])
    histories = {question.key: question.cluster for question in asked}
    rated = None if ratings is None else ratings_of(ratings, run, file)
    if rated is not None:
        alike = "" if column.aggregate == "question" else "; each answer weighs the same here"
        lines.append(_rated_score(values, rated, histories) + alike)
    return [*lines, *_agreements(run, file, values, rated, histories)]


Histories = Mapping[tuple[str, str], str]
"""The history of each question; another question is its case's."""


def _rated_score(
    values: Mapping[tuple[str, str], float], rated: Mapping[tuple[str, str], float], histories: Histories
) -> str:
    """The run's score from the judge's verdicts and a person's on a random sample, or the reason why there is none."""
    sample, keys = rated_sample(rated, values), list(values)
    aside = len(rated.keys() & values.keys()) - len(sample)
    left = f"; {aside} further ratings are not of the random sample and are left out" if aside else ""
    if len(sample) < FEWEST:
        return (
            f"no score from the ratings: {len(sample)} are of the random sample{left}, and {FEWEST} are needed; the report's page "
            'Question leads from one answer to the "next of the random sample"'
        )
    score = prediction_powered(
        [values[key] for key in keys], [histories.get(key, key[0]) for key in keys], [sample.get(key) for key in keys]
    )
    return f"from the judge and {score.n} ratings of a random sample: {shown_estimate(score)}{left}"


def _agreements(
    run: Path,
    own: Path,
    values: Mapping[tuple[str, str], float],
    rated: Mapping[tuple[str, str], float] | None,
    histories: Histories,
) -> Iterator[str]:
    """The agreement with the other judges of a run, with imported grades and with a person, as Markdown."""
    others = {
        metric_of(path): mean_values(path)
        for path in RunFolder(run).score_files()
        if path != own and path.name.startswith((JUDGE, f"{THEIRS}judge"))
    }
    if rated is not None:
        others["a person"] = dict(rated)
    clusters = {key: histories.get(key, key[0]) for grades in (values, *others.values()) for key in grades}
    sides = {name: {key: value >= RIGHT for key, value in grades.items()} for name, grades in others.items()}
    ours = {key: value >= RIGHT for key, value in values.items()}
    if not sides:
        yield "No other grader of this run: no second judge, no imported grades, no --ratings."
        return
    rows = []
    for name, side in sides.items():
        found = agreement([ours, side], clusters)
        share = f"{fmean(side.values()):.3f} of {len(side)}" if side else "–"
        rows.append([name, share, "no common answer" if found is None else _agreement_text(found)])
    yield from ("", grid(["other grader", "accepts", "agreement"], rows))
    if len(sides) > 1 and (found := agreement([ours, *sides.values()], clusters)) is not None:
        yield from ("", f"All graders together: {_agreement_text(found)}.")
    if len({*clusters.values()}) < ENOUGH_CLUSTERS:
        yield FEW
