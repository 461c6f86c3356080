"""Fail a change that lowers a memory's scores: `memsys-bench gate FILE.yaml [--update] [key=value …]`.

FILE.yaml defines the measurement; only `memory` is required:

    memory: bm25              # a file of conf/memory, or a YAML file of your own (….yaml, relative to this file)
    dataset: locomo           # a file of conf/dataset
    size: all                 # questions (data.size)
    cases: null               # histories at most (data.max_cases)
    settings: []              # of `memsys-bench run`, such as profile=smoke; memory.build.k=5 changes the memory
    metrics: [evidence@10]    # evidence@K, metrics of conf/metrics.yaml, judge_NAME for a judge of conf/judge
    margin: 0.02              # the largest loss that is accepted
    baseline: null            # null: <name of this file>.baseline.json next to it

`--update` measures and writes the baseline: a score for each question, no text of the data. Commit it. Without `--update`, the memory is
measured again and each metric is compared with the baseline, question by question. The verdict is `regression` where the difference is
below -margin and its interval excludes 0, `better` where it is above the margin and its interval excludes 0, else `no regression`. The
interval is by case if there are five histories whose differences vary, else by question. Both conditions are needed: in a
large set an interval excludes 0 for a loss too small to matter, and in a small set chance moves the mean beyond the margin. Ratings
beyond [0, 1] that all move by the same amount have no interval: six or more of them count as if it excluded 0.

The gate also fails if more questions than in the baseline end in an error or have no score, by more than the share `max_unscored` of all
questions. Other data, other questions or another version of a metric than in the baseline cannot be compared and are refused. Memories
are built from scratch each time, because a stored run cannot show that a service has changed; model calls come from the cache
(`cache=`). `results=FOLDER` keeps the run, and resumes an earlier one. The Markdown summary is also appended to the file that
GITHUB_STEP_SUMMARY names. Exit codes: 0 passed or written, 1 failed, 2 refused or stopped at max_usd, 3 the plan was declined.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import yaml
from pydantic import Field

from eval.files.run_folder import JUDGE, judges_of, version_of
from eval.files.store import RunError, replace_file
from eval.report.cell import Column, outcomes, read_draws
from eval.report.counted import counted
from eval.report.rendering import by_case, grid, number, span
from eval.statistics.stats import Difference, Interval, difference
from memsys.llm.secrets import redact
from scripts.answers.claim_tables import inert
from scripts.assembly.datasets import Data
from scripts.lab.lab import Lab
from scripts.settings.checking import parsed, resolved
from scripts.settings.types import Count, Natural, Share, Size, Strict, Text
from scripts.setup.arguments import verb_parser

GROUP = "run"
RUNS_MEMORIES = True

OF_THIS_MACHINE = ("results", "cache", "data.root", "prompts_dir")
"""Settings that name folders; a baseline does not record them."""
BUILD = "memory.build."
EVIDENCE = "evidence@"
ALIKE = 6
"""Least number of ratings that all move by the same amount: by chance, one in 32 such sets moves one way (2 x .5^6)."""
UPDATE = "run the gate with --update and commit the new baseline, if the change is meant"


class Gate(Strict):
    memory: Text
    dataset: Text = "locomo"
    size: Size = "all"
    cases: Count | None = None
    settings: tuple[Text, ...] = ()
    metrics: list[Text] = Field(["evidence@10"], min_length=1)
    margin: Share = 0.02
    baseline: Text | None = None

    @property
    def cut(self) -> list[str]:
        """Size and cases as settings of a run."""
        return [f"data.size={self.size}", *([f"data.max_cases={self.cases}"] if self.cases else [])]


class Values(Strict):
    """The scores of one metric."""

    version: Text
    """Hash of the metric's settings and source; for a judge also of prompts and model."""
    values: dict[str, dict[str, float]]
    """Scores by case and question, rounded to 6 digits; questions without a score are absent."""

    @property
    def flat(self) -> dict[tuple[str, str], float]:
        """Scores by (case id, question id)."""
        return {(case, question): value for case, own in self.values.items() for question, value in own.items()}


class Measured(Strict):
    """The measurements of a gate in the form of a baseline; without text of the data set."""

    schema_version: Literal[1] = 1
    memory: Text
    settings: list[Text]
    dataset: Text
    sha256: list[Text]
    """sha256 of the data set's files."""
    questions: list[Any]
    """Number of questions, and the sha256 of their ids."""
    errors: Natural = 0
    """Number of questions that ended in an error."""
    metrics: dict[Text, Values] = {}  # noqa: RUF012 - pydantic copies defaults


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("gate", __doc__)
    parser.add_argument("file", type=Path, help="the gate's file, YAML")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="laid over the settings of the file")
    parser.add_argument("--update", action="store_true", help="write the baseline")
    args = parser.parse_intermixed_args(arguments)
    if "=" in str(args.file) and not args.file.is_file():
        parser.error("the first argument is the gate's file, such as gate.yaml")
    gate = parsed(Gate, read_mapping(args.file), f"{args.file}: ")
    place = args.file.parent / (gate.baseline or f"{args.file.stem}.baseline.json")
    stored = None
    if not args.update:
        if not place.is_file():
            raise RunError(f"no baseline {place}: run the gate once with --update, and commit the file")
        stored = parsed(Measured, read_mapping(place), f"{place}: ")
    with tempfile.TemporaryDirectory(prefix="memsys-gate-") as folder:
        return run(gate, args.file.parent, place, stored, [*gate.settings, *args.settings], Path(folder))


def read_mapping(file: Path) -> dict[str, Any]:
    """The values of a YAML or JSON file. Raises RunError if it does not exist, cannot be read, or is no mapping."""
    if not file.is_file():
        raise RunError(f"no file {file}")
    from omegaconf import OmegaConf

    try:  # JSON is read by its own parser: a baseline is data, so ${…} has no meaning in it
        values = (
            json.loads(file.read_text(encoding="utf-8")) if file.suffix == ".json" else resolved(OmegaConf.load(file))
        )
    except (yaml.YAMLError, ValueError, OSError, RecursionError) as error:
        raise RunError(f"{file} cannot be read: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(values, Mapping):
        raise RunError(f"{file} must be a mapping of names to values")
    return {str(name): value for name, value in values.items()}


def run(gate: Gate, home: Path, place: Path, stored: Measured | None, settings: Sequence[str], folder: Path) -> int:
    """Measure the memory, then compare with the baseline `stored`, or write it to `place` if that is None; return the exit code.

    The summary is printed, and appended to the file that GITHUB_STEP_SUMMARY names.

    Args:
        home: folder of the gate's file.
        folder: results folder of the run, unless a setting names `results`.

    Raises:
        RunError: a setting is refused, or the baseline is of other data or metrics.
    """
    build = dict(each.removeprefix(BUILD).split("=", 1) for each in settings if each.startswith(BUILD) and "=" in each)
    lab = lab_of(gate, [each for each in settings if not each.startswith(BUILD)], folder)
    memory = lab.memory(
        str(home / gate.memory) if gate.memory.endswith(".yaml") else gate.memory,
        **{name: yaml.safe_load(value) for name, value in build.items()},
    )
    dataset, judges = lab.load(gate.dataset), judges_of(gate.metrics)
    keys = sorted(each.key for each in dataset.questions)
    begun = Measured(
        memory=gate.memory,
        settings=[*gate.cut, *(each for each in settings if each.split("=")[0] not in OF_THIS_MACHINE)],
        dataset=dataset.name,
        sha256=list(dataset.settings["sha256"]),
        questions=[len(keys), hashlib.sha256(json.dumps(keys).encode()).hexdigest()],
    )
    if stored is not None:
        refuse_others(begun, stored, place)  # before anything is built
    if not lab.agreed([memory], dataset, judges):
        return 3
    (now, missing), limit = measured(lab, gate.metrics, memory, dataset, judges, begun), lab.cfg.max_unscored
    if stored is None:
        return write_baseline(now, missing, place, limit)
    refuse_others(now, stored, place)
    gaps = {name: compared(name, now, stored, dataset) for name in gate.metrics}
    failures = list(lost(now, stored, limit * len(keys)))
    failed = bool(failures) or any(
        verdict(gap, gate.margin) in ("regression", "not scored") for *_, gap in gaps.values()
    )
    title = f"## Memory gate {'FAILED' if failed else 'passed'}: {inert(memory['title'])} on {inert(dataset.title)}"
    text = "\n".join([title, "", *summary(gaps, failures, gate.margin, now, stored)])
    print(text)
    if named := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(named, "a", encoding="utf-8") as file:
            file.write(redact(text) + "\n\n")
    return int(failed)


def lab_of(gate: Gate, settings: Sequence[str], folder: Path) -> Lab:
    """Build the lab with a gate's settings; runs are written to `folder` unless a setting names `results`.

    Raises:
        RunError: a setting or a metric is refused.
    """
    depth = [name.removeprefix(EVIDENCE) for name in gate.metrics if name.startswith(EVIDENCE)]
    if wrong := [each for each in settings if each.split("=")[0].split(".")[0] in Gate.model_fields]:
        raise RunError(f"{wrong[0]} is not a setting of a gate: memory, dataset, metrics and margin stand in its file")
    if len(depth) > 1 or not all(map(str.isdecimal, depth)):
        raise RunError(f"metrics: at most one evidence@K with a whole number K, found {', '.join(gate.metrics)}")
    named = {each.split("=")[0] for each in settings}
    if "shard" in named:
        raise RunError("shard is not a setting of a gate: it would judge a memory by a part of the questions")
    own = [] if "results" in named else [f"results={folder}"]
    own += [] if {"results", "cache"} & named else ["cache=results/cache.sqlite"]
    return Lab(*gate.cut, *own, *settings, *(f"k_evidence={k}" for k in depth), probe=False)


def measured(
    lab: Lab, names: Sequence[str], memory: Mapping[str, Any], dataset: Data, judges: Sequence[str], begun: Measured
) -> tuple[Measured, dict[str, float]]:
    """Run and score the memory; `begun` with scores and errors, and the unscored share of the questions by metric.

    Evidence has no such share: a question without gold evidence has no score.

    Raises:
        RunError: the spending cap was reached.
    """
    answers = lab.ask(memory, dataset, judges=judges)
    scored = lab.score(answers, [name for name in names if not name.startswith((EVIDENCE, JUDGE))], judges)
    lab.check_cap()
    metrics = {}
    for name in names:
        files, values = [own[name] for own in scored.files], dict[str, dict[str, float]]()
        for (case, question), draws in read_draws(files, answers.questions, lab.cfg.judge.repeats).items():
            values.setdefault(case, {})[question] = round(fmean(value for _, value in draws), 6)
        metrics[name] = Values(version=version_of(files[0]), values=values)
    reached = outcomes((run.folder for run in answers.runs), answers.questions)
    now = begun.model_copy(update={"errors": sum("error" in each for each in reached.values()), "metrics": metrics})
    return now, {name: cell.missing_share() for name, cell in scored.cells.items()}


def write_baseline(now: Measured, missing: Mapping[str, float], place: Path, limit: float) -> int:
    """Write the baseline; return 0.

    Raises:
        RunError: too many questions ended in an error or have no score, or a metric has fewer than two scores, so that nothing could be
            compared.
    """
    if now.errors > limit * now.questions[0]:
        raise RunError(
            f"{now.errors} of {counted(now.questions[0], 'question')} ended in an error; no baseline is written"
        )
    if few := [name for name, own in now.metrics.items() if len(own.flat) < 2]:
        raise RunError(f"fewer than two questions have a score for {few[0]}; no baseline is written")
    if many := [name for name, share in missing.items() if share > limit]:
        raise RunError(
            f"{missing[many[0]]:.1%} of the questions have no score for {many[0]} (limit {limit:.1%}, max_unscored); no baseline is written"
        )
    replace_file(place, json.dumps(now.model_dump(), indent=1, sort_keys=True) + "\n")
    print(f"written: {place}: {', '.join(now.metrics)} of {counted(now.questions[0], 'question')}")
    return 0


def refuse_others(now: Measured, stored: Measured, place: Path) -> None:
    """Check that the baseline has the same questions, and the metrics measured so far in the same version.

    Raises:
        RunError: it differs; the message says how.
    """
    names = {"dataset": "another data set", "sha256": "other data (sha256)", "questions": "another question set"}
    differ = [words for name, words in names.items() if getattr(now, name) != getattr(stored, name)]
    for name, own in now.metrics.items():
        if name not in stored.metrics:
            differ.append(f"no values of {name}")
        elif own.version != stored.metrics[name].version:
            differ.append(f"another version of {name}")
    if differ:
        raise RunError(f"{place} has {', '.join(differ)}; {UPDATE}")


def compared(metric: str, now: Measured, stored: Measured, dataset: Data) -> tuple[float, float, Difference | None]:
    """Current mean, baseline mean and paired difference, weighted by the data set's rule; None for fewer than two pairs."""
    first, second = now.metrics[metric].flat, stored.metrics[metric].flat
    column = Column.of(dataset.config, metric, dataset.questions)
    both = [each for each in column.questions if each.key in first and each.key in second]
    gap = None
    if len(both) > 1:
        pairs, clusters = [(first[each.key], second[each.key]) for each in both], [each.cluster for each in both]
        ours, theirs = zip(*pairs, strict=True)
        gap = difference(ours, theirs, clusters, test=False, groups=column.groups(both))
    return column.mean(both, first), column.mean(both, second), gap


def verdict(gap: Difference | None, margin: float) -> str:
    """`regression`, `better`, `no regression` (the module's docstring states the rule), or `not scored` for None."""
    if gap is None:
        return "not scored"
    interval = gap.by_case or gap.by_question
    if interval is None and gap.n >= ALIKE:
        interval = Interval(gap.mean, gap.mean)
    if interval is not None and gap.mean < -margin and interval.high < 0:
        return "regression"
    return "better" if interval is not None and gap.mean > margin and interval.low > 0 else "no regression"


def lost(now: Measured, stored: Measured, limit: float) -> Iterator[str]:
    """Questions missing now and not in the baseline, if there are more than `limit`."""
    if now.errors - stored.errors > limit:
        yield f"{counted(now.errors, 'question')} ended in an error, {stored.errors} in the baseline"
    for name, own in now.metrics.items():
        here, there = len(own.flat), len(stored.metrics[name].flat)
        if there - here > limit:
            yield f"{counted(here, 'question')} with a score for {name}, {there} in the baseline"


def summary(
    gaps: Mapping[str, tuple[float, float, Difference | None]],
    failures: Sequence[str],
    margin: float,
    now: Measured,
    stored: Measured,
) -> Iterator[str]:
    """Lines of Markdown; texts of files are inert."""
    rows = []
    for name, (ours, theirs, gap) in gaps.items():
        cells = ["0", "–", "–", "–", "–", "–"]
        if gap is not None:
            ranges = span(gap.by_question) or "–", by_case(gap)
            cells = [str(gap.n), number(ours), number(theirs), f"{gap.mean:+.3f}", *ranges]
        rows.append([inert(name), *cells, verdict(gap, margin)])
    yield grid(["metric", "n", "now", "baseline", "difference", "by question", "by case", "verdict"], rows)
    yield ""
    yield from (f"- FAILED: {inert(failure)}." for failure in failures)
    yield f"- {counted(now.questions[0], 'question')}; {now.errors} ended in an error, {stored.errors} in the baseline."
    if now.memory != stored.memory:
        yield f"- Memory: {inert(now.memory)}; in the baseline: {inert(stored.memory)}."
    if now.settings != stored.settings:
        yield f"- Settings: {inert(' '.join(now.settings))}; in the baseline: {inert(' '.join(stored.settings))}."
    yield f"- Regression: the difference is below -{margin:g} and its interval, by case if there is one, else by question, excludes 0."
    yield "- The margin accepts losses too small to matter; the interval accepts those that chance explains."
