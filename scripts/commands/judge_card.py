"""How often a judge is wrong: `python -m scripts.judge_card --judge mem0 --dataset locomo [--limit N] [key=value …]`.

Makes answers that are right or wrong for certain (`eval.judge_probes`), has the judge grade them, and prints its errors by kind with
intervals. With `--run RUN` it also prints the run's score by this judge, corrected for the errors (`eval.judge_card`). Settings such as
`models.judge=…` and `endpoint.base_url=…` are those of `scripts.run`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from eval.judge_card import Card, Line, Verdict, card, corrected
from eval.judge_parts import judge_requests, judged_together
from eval.judge_probes import Probe, probes
from eval.score import Judging
from eval.score_files import only_score_file, read_scores
from eval.stats import estimate
from eval.store import RunError
from memsys.llm.protocol import EndOfRun
from scripts.experiment.lab import Lab
from scripts.experiment.scorers import judging
from scripts.settings.arguments import add_traceback, whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts.judge_card", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--judge", required=True, help="a file of conf/judge, or file@model")
    parser.add_argument("--dataset", default="locomo", help="a file of conf/dataset")
    parser.add_argument("--limit", type=whole(1), help="most probes of each kind, spread over the data")
    parser.add_argument("--run", type=Path, help="a run folder with scores by this judge")
    parser.add_argument("settings", nargs="*", help="settings of scripts.run: key=value")
    add_traceback(parser)
    options = parser.parse_args(arguments)
    lab = Lab(*options.settings)
    grading = judging(lab.cfg, lab.models, options.judge)
    if grading.judge.rule in ("memory", "beam"):
        raise RunError(f"judge {options.judge} grades recalled texts or rubric items, not answers; it has no card")
    data = lab.load(options.dataset)
    cases = [data.cases[index] for index in range(len(data.cases))]
    made = spread(list(probes(cases)), options.limit)
    result = card(verdicts(made, grading))
    title = f"{grading.judge.title} by {grading.model_name or 'a model'} on {data.title}"
    stand_in = grading.model in lab.models.stand_in_identities
    print("\n".join(card_lines(title, result, stand_in=stand_in)))
    if options.run is not None:
        print("\n" + corrected_line(options.run, grading, result))
    return 0


def spread(made: Sequence[Probe], limit: int | None) -> list[Probe]:
    """At most `limit` probes of each kind, spread evenly over the data."""
    kinds: dict[str, list[Probe]] = {}
    for probe in made:
        kinds.setdefault(probe.kind, []).append(probe)
    chosen = []
    for group in kinds.values():
        count = len(group) if limit is None else min(limit, len(group))
        chosen += [group[place * len(group) // count] for place in range(count)]
    return chosen


def verdicts(made: Sequence[Probe], grading: Judging) -> list[Verdict]:
    """Have a judge grade probes, all calls at once; a call that fails is a repeat without a verdict.

    Raises:
        EndOfRun: no further call can be made.
    """
    calls = [
        [
            [
                grading.llm.submit(request)
                for request in judge_requests(
                    grading.judge, grading.prompts, probe.question, probe.gold, probe.answer, sample=repeat
                )
            ]
            for repeat in range(grading.repeats)
        ]
        for probe in made
    ]
    graded = []
    for probe, repeats in zip(made, calls, strict=True):
        values: list[float | None] = []
        for replies in repeats:
            errors = [error for reply in replies if (error := reply.exception()) is not None]
            if any(isinstance(error, EndOfRun) for error in errors):
                raise next(error for error in errors if isinstance(error, EndOfRun))
            answers = [reply.result() for reply in replies] if not errors else []
            values.append(None if errors else judged_together(grading.judge, answers, probe.gold, probe.answer).value)
        graded.append(Verdict(probe.kind, probe.right, tuple(values)))
    return graded


def card_lines(title: str, result: Card, *, stand_in: bool) -> list[str]:
    """The card as Markdown."""
    lines = [f"# {title}", ""]
    if stand_in:
        lines += ["STAND-IN: an engine without a model is the judge; its errors say nothing about models.", ""]
    lines += ["| answer | should be | n | errors [95 %] | without a verdict |", "|---|---|---|---|---|"]
    lines += [_row(line) for line in sorted(result.lines, key=lambda line: not line.right)]
    rejects, accepts = result.errors(True), result.errors(False)
    lines += [""]
    if rejects is not None and accepts is not None:
        lines.append(f"Mean over kinds: rejects {rejects:.3f} of right answers, accepts {accepts:.3f} of wrong ones.")
    if result.consistency is not None:
        lines.append(f"All repeats agree on {result.consistency:.3f} of the probes.")
    return lines


def _row(line: Line) -> str:
    interval = "" if line.interval is None else f" [{line.interval.low:.3f}, {line.interval.high:.3f}]"
    errors = f"{line.errors:.3f}{interval}" if line.n else "–"
    return f"| {line.kind} | {'accepted' if line.right else 'rejected'} | {line.n} | {errors} | {line.unscored} |"


def corrected_line(run: Path, grading: Judging, result: Card) -> str:
    """The score of a run by this judge, as it is and corrected.

    Raises:
        RunError: the run has no scores by the judge, or several.
    """
    file = only_score_file(run, f"judge_{grading.judge.name}")
    values, cases = [], []
    for (case_id, _), lines in read_scores(file).items():
        given = [line["value"] for line in lines if line["value"] is not None]
        if given:
            values.append(float(2 * sum(value >= 0.5 for value in given) > len(given)))
            cases.append(case_id)
    if not values:
        raise RunError(f"{file} holds no verdict")
    observed = estimate(values, cases)
    fixed = corrected(observed, result)
    after = (
        "not corrected: the judge does not tell right from wrong"
        if fixed is None
        else f"corrected {fixed.mean:.3f} [{fixed.interval.low:.3f}, {fixed.interval.high:.3f}]"
    )
    return f"{run.name}: {observed.mean:.3f} of {observed.n} answers accepted; {after}"
