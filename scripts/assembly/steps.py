"""Steps that the entry points share: choose cells and executor, run the cells, score, and report missing scores.

Judges, their cards and lexical metrics are built by name, as `conf/judge` and `conf/metrics.yaml` configure them.

With `replay=true` only finished runs of a service's memory can be shown: its state is not in the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

from data_loaders.raw import as_lazy
from eval.analysis.costs import costs
from eval.executors.channel import runs_anywhere
from eval.files.run_folder import is_complete, judge_metric, judged_by, read_predictions
from eval.files.store import RunError
from eval.judging.judge import Judge, judge_requests
from eval.judging.judge_card import Correction, read_card
from eval.judging.score import (
    Judging,
    JudgingAhead,
    Metric,
    is_judged,
    score_judge,
    score_lexical,
)
from eval.metrics.lexical import best_of, splitter
from eval.report.cell import Cell, OutcomeCell
from eval.report.counted import counted
from eval.report.tables import Table
from eval.running.case import answered_case
from eval.running.cells import at_once
from eval.running.loop import run_all
from eval.running.run import Run, ignore_answer, innermost, needs
from eval.running.work import Executor
from memsys.lean import cores
from memsys.llm.endpoint import Traffic
from memsys.llm.pricing import SpendingCapReached
from scripts.assembly.datasets import Data
from scripts.assembly.models import Models
from scripts.settings.checking import checked_call, nearest_or_all
from scripts.settings.schema import Settings
from scripts.setup.arguments import as_called
from scripts.setup.causes import commonest
from scripts.setup.options import load_option, metric_options
from scripts.setup.progress import Expected, progress_line


def judging(cfg: Settings, models: Models, name: str) -> Judging:
    """Build a judge from its file in `conf/judge`.

    Args:
        cfg: sets `judge.repeats`.
        models: holds the model of the role `judge`.
        name: the file, or `file@model` to use another model than `models.judge`, such as `mem0@gpt-4o-mini`.
    """
    file, _, other = name.partition("@")
    model = models.model(other) if other else models.judge
    judge = Judge(**load_option("judge", file))
    return Judging(judge, model.late, model.identity, models.prompts, cfg.judge.repeats, model.name)


def judge_prompts(name: str) -> set[str]:
    """Names of the prompts of a judge, by its name in a table."""
    return set(Judge(**load_option("judge", name.partition("@")[0])).prompt_names)


def refuse_unfit(run: Run, graders: Sequence[Judging]) -> None:
    """Raise RunError if a judge cannot grade the first question of a run's data, before any call is made."""
    for question, gold in run.cases[0].questions[:1] if len(run.cases) else ():
        for grader in graders:
            judge_requests(grader.judge, grader.prompts, question, gold, "")


def finished(cfg: Settings, models: Models, runs: Sequence[Run], judges: Mapping[str, Sequence[str]]) -> bool:
    """Whether every question of these runs is answered and judged, so that no model will be called; builds the judges' models.

    Args:
        judges: names of the judges by data set.

    Raises:
        RunError: a file of a run is damaged.
    """
    graders = {name: [judging(cfg, models, each) for each in own] for name, own in judges.items()}
    return all(
        all(answered_case([run], index) is not None for index in range(len(run.cases)))
        and all(is_judged(run, grader) for grader in graders.get(run.dataset, ()))
        for run in runs
    )


def known_metrics(names: Sequence[str]) -> Mapping[str, Any]:
    """The entries of conf/metrics.yaml by name; nothing is imported, so that a wrong name is refused before anything is built.

    Raises:
        RunError: one of these names is unknown.
    """
    known = metric_options()
    if unknown := [name for name in names if name not in known]:
        raise RunError(f"no metric called {', '.join(unknown)}{nearest_or_all(unknown[0], sorted(known))}")
    return known


def metrics(names: Sequence[str]) -> list[Metric]:
    """Build lexical metrics by name. Raises RunError if a name is unknown."""
    known = known_metrics(names)
    from hydra.utils import get_method

    built = []
    for name, option in ((name, dict(known[name])) for name in names):
        option.pop("title", None)
        joint = bool(option.pop("joint", False))
        splitter_version: dict[str, str] = {}
        if "sentences" in option:
            try:
                option["sentences"], splitter_version = splitter(option["sentences"]), {"nltk": version("nltk")}
            except ValueError as error:
                raise RunError(f"metric {name}: {error}") from error
        option = checked_call(f"metric {name}", {"_target_": option.pop("target", ""), **option})
        function = get_method(option.pop("_target_"))
        left = [each for key, each in signature(function).parameters.items() if key not in option]
        on_recall = not joint and any(each.name == "recalled" for each in left)
        texts = [each for each in left if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
        score = partial(function, **option)
        if len(texts) == 2:  # an answer and a gold answer
            score = partial(best_of, measure=score)
        built.append(Metric(name, score, {**option, **splitter_version}, on_recall, joint))
    return built


def answer_metric(dataset: Mapping[str, Any]) -> Metric | None:
    """The first lexical metric of a data set that scores single answers; None if there is none."""
    return next((each for each in metrics(dataset.get("metrics", [])) if not each.joint and not each.on_recall), None)


def cell_of(name: str) -> type[Cell]:
    """The class of a metric's cells: metrics of several reads name outcomes, and some outcomes are not applicable."""
    return OutcomeCell if metric_options().get(name, {}).get("joint", False) else Cell


def metric_title(name: str) -> str:
    """Title of a metric's column; it names the implementation, because implementations of one metric differ."""
    if (grading := judged_by(name)) is not None:
        file, _, model = grading.partition("@")
        return f"{load_option('judge', file)['title']}{f' by {model}' if model else ''}"
    option = metric_options()[name]
    by_punkt = option.get("sentences") in ("auto", "punkt") and splitter() == "punkt"
    return str(option.get("title", name)) + (", sentences by punkt" if by_punkt else "")


def card_file(results: Path, grading: Judging, dataset: Data) -> Path:
    """The file with the verdicts of a judge on the probes of a data set.

    A score file has the same name (judge, model and prompt): a table uses only the card of the judge that gave its scores.
    """
    return results / "judge_cards" / f"{dataset.name}-{dataset.source.sha256[:12]}" / f"{grading.stem}.jsonl"


def unmeasured(cfg: Settings, models: Models, graded: Iterable[tuple[str, Data]]) -> list[str]:
    """Judging models without a card of their errors, for judges given by their name in a table, each on a data set."""
    gradings = [(judging(cfg, models, name), dataset) for name, dataset in graded]
    return sorted(
        {
            grading.model_name
            for grading, dataset in gradings
            if grading.model not in models.stand_in_identities
            and not card_file(models.results, grading, dataset).is_file()
        }
    )


def correction(cfg: Settings, models: Models, name: str, dataset: Data) -> Correction:
    """Corrections of the scores of a judge on a data set, by its name in a table."""
    grading = judging(cfg, models, name)
    remedy = f"`make judge-card JUDGE={name} DATASET={dataset.name}` with the same models and data makes one"
    return Correction(read_card(card_file(models.results, grading, dataset)), remedy)


Watch = Callable[[], Sequence[Traffic]]
"""Returns the calls in flight at each endpoint."""


def execute(
    runs: Sequence[Run],
    questions: int,
    threads: int | None,
    label: str,
    traffic: Watch = lambda: (),
    ahead: JudgingAhead | None = None,
    executor: Executor | None = None,
) -> None:
    """Answer every question that has no answer yet.

    Args:
        questions: number of questions over all runs, for the progress line.
        ahead: judges answers as they are saved; None leaves judging to `score`.
        executor: works on the cells; None takes the threads of this process.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:  # cells with the same build count once
        groups.setdefault(run.shared or str(run.folder), []).append(run)
    share = questions / max(1, sum(len(run.sizes) for run in runs))  # the same of each history
    cells = [
        Expected(
            group[0].name,
            case_id,
            float(size),
            share * len(group),
            group[0].chain,
            tuple(run.folder.name for run in group),
        )
        for group in groups.values()
        for case_id, size in zip(as_lazy(group[0].cases).ids, group[0].sizes, strict=True)
    ]
    with progress_line(label, questions, traffic=traffic, expected=cells) as line:
        on_answer = ignore_answer if ahead is None else ahead.on_answer
        run_all(runs, threads=threads, on_progress=line.on_progress, on_answer=on_answer, executor=executor)


def score(
    run: Run,
    metrics: Sequence[Metric],
    judges: Mapping[str, Judging],
    k_evidence: int,
    questions: int,
    traffic: Watch,
    ahead: JudgingAhead,
) -> dict[str, Path]:
    """Score a run with lexical metrics, evidence coverage and judges; returns the score files by metric.

    Judges are `judge_<name>`, evidence is `evidence@<k_evidence>`. `questions` is their number, for the progress line.
    """
    # The table's intervals, its printing and its costs need them. Here they are made while verdicts that were requested ahead are awaited.
    for needed in ("scipy.special", "eval.report.terminal"):
        import_module(needed)
    files = score_lexical(run, metrics, k_evidence)
    costs(run.folder)
    for name, grader in judges.items():
        metric = judge_metric(name)
        with progress_line(f"judging {run.name}", questions * grader.repeats, traffic=traffic) as line:
            try:
                files[metric] = score_judge(run, grader, line.step, ahead.take)
            except SpendingCapReached:  # the verdicts so far are kept, and the others count as missing
                files[metric] = grader.file(run)
    return files


def complain(table: Table, limit: float, stop: str) -> int:
    """Return 1 when more than `limit` of a cell's scores are missing, else 0; they are named with their cause."""
    files = [path for row in table.rows for cell in row.cells if isinstance(cell, Cell) for path in cell.score_files]
    folders = [folder for row in table.rows for folder in row.runs.values()]
    return say_missing(table.missing_share, "cell", limit, folders, files, stop)


def say_missing(
    share: float, where: str, limit: float, folders: Sequence[Path], score_files: Sequence[Path], stop: str
) -> int:
    """Return 1 and print on standard error that more than `limit` is not scored, with the most common cause and its remedy; else return 0.

    Args:
        stop: what a reached cap says (`Purse.stop`): it is then the cause, and printed in both cases.
    """
    if missing := share > limit:
        lacking = f"{share:.1%} of the answers or verdicts of a {where} are not scored"
        print(f"error: {lacking} (limit {limit:.1%})", file=sys.stderr)
    if cause := stop or (commonest(folders, score_files) if missing else None):
        print(as_called(str(cause)), file=sys.stderr)
    return int(missing)


def replayable(runs: Sequence[Run]) -> list[Run]:
    """The runs that a replay may execute: all but those of services, which must be finished.

    An answer that failed counts as finished: asking for it again would need the service.

    Raises:
        RunError: a replay needs a service's run that is not finished; no call has been made.
    """
    for run in (run for run in runs if not _replayable(run)):
        counts = []
        for case in run.cases:
            asked = {question.id for question, _ in case.questions if run.questions(case.id, question.id)}
            folder = run.case_folder(case.id)
            counts.append((len(asked - read_predictions(folder).keys()), is_complete(folder)))
        if unfinished := [count for count, complete in counts if count or not complete]:
            raise RunError(
                f"replay=true: the run of {run.name} on {run.dataset} is not finished: {len(unfinished)} of "
                f"{counted(len(counts), 'history')}, {counted(sum(unfinished), 'question')} without an answer "
                f"(in {run.folder}). What a service holds "
                "is not in the cache, so nothing but the service can answer them; run the same command without replay=true first"
            )
    return [run for run in runs if _replayable(run)]


def check_no_replay(cfg: Settings, run: Run, what: str) -> None:
    """Refuse a replay of a step that always calls the memory itself. Raises RunError if the memory is a service's."""
    if cfg.replay and not _replayable(run):
        raise RunError(f"replay=true: {what} asks the service of {run.name} itself; leave replay=true out")


def _replayable(run: Run) -> bool:
    return run.control is not None or getattr(innermost(run.build), "REPLAYABLE", True)


ENOUGH = 8
"""Minimum number of cells of real data for worker processes, which need two seconds to start."""
CPU_A_CALL = 0.0013
"""Seconds of one interpreter for a call in a table of 16 memories; an endpoint that takes less for each call is faster than that."""


def executor_of(cfg: Settings, runs: Sequence[Run], latency: float | None = None) -> Executor | None:
    """The executor that the configuration names; None for the threads of this process.

    `auto` takes processes for runs on real data, on a machine with several cores, if there are at least `ENOUGH` cells offline, or
    enough to fill an endpoint that is faster than one interpreter (16 memories at 50 ms and 64 in flight: 145 s in place of 163; at
    100 ms 224 s in place of 216). The cells of samples are small.

    Args:
        latency: seconds of a short call; None when not measured, or where calls are not sent one by one.

    Raises:
        RunError: workers are requested, but a run needs the gateway, or a tracer is active; both exist only in this process.
    """
    only_here = ""
    if any("gateway" in needs(run.build) for run in runs):
        only_here = "released products have processes of their own: run them with executor=threads"
    elif cfg.logger.name == "otel":
        only_here = "logger=otel traces this process alone: run with executor=threads"
    if only_here:
        if cfg.executor in ("processes", "ray"):
            raise RunError(only_here)
        return None
    if cfg.executor == "ray":
        from eval.executors.cluster import in_ray

        return in_ray(cfg.ray.address, cfg.workers, cfg.threads or at_once(runs))
    workers = cfg.workers or cores()
    cells = sum({run.shared or str(run.folder): len(run.sizes) for run in runs}.values())  # runs may share a build
    several = cfg.executor == "auto" and workers > 1 and cfg.data.source == "real"
    if several and _offline(runs):
        several = cells >= ENOUGH
    elif several:
        several = (
            latency is not None and latency / cfg.endpoint.in_flight < CPU_A_CALL and cells >= cfg.endpoint.in_flight
        )
    if cfg.executor == "processes" or several:
        from eval.executors.processes import in_processes

        return in_processes(workers, cfg.threads or at_once(runs))
    return None


def _offline(runs: Sequence[Run]) -> bool:
    return all(runs_anywhere(run.services) for run in runs)


def answer_all(
    cfg: Settings, models: Models, runs: Sequence[Run], questions: int, judges: Mapping[str, Sequence[str]]
) -> str:
    """Answer every question of the runs, or of this command's shard, that has no answer yet.

    Args:
        questions: their number over all runs, for the progress line.
        judges: names of the judges by data set. Those that are models at an endpoint judge each answer as soon as it is there.

    Returns:
        A caption line when not all of them were asked, because of a spending cap or a shard; else an empty string.

    Raises:
        RunError: a judge cannot grade a data set, or a replay needs a service's run that is not finished.
    """
    for run in runs:
        graders = [judging(cfg, models, name) for name in judges.get(run.dataset, ())]
        refuse_unfit(run, graders)
        models.ahead.expect(run, [grader for grader in graders if grader.model not in models.stand_in_identities])
    if cfg.shard is not None:
        number, shards = map(int, cfg.shard.split("/"))
        runs, questions = [in_shard(run, number, shards) for run in runs], questions // shards
    runs = replayable(runs) if cfg.replay else runs
    live = models.endpoints.values() if cfg.endpoint.mode == "live" else ()
    latency = max((endpoint.latency for endpoint in live if endpoint.latency is not None), default=None)
    executor = executor_of(cfg, runs, latency)
    with suppress(SpendingCapReached):  # the purse records whether the cap stopped it
        execute(runs, questions, cfg.threads, "answering", models.traffic, models.ahead, executor)
    if cfg.shard is None:
        return models.purse.stop
    return f"Shard {cfg.shard} of the histories; merge all with python -m scripts merge. {models.purse.stop}".strip()


def in_shard(run: Run, number: int, shards: int) -> Run:
    """The run with the cases of one shard, numbered from 1: cases are dealt by size, back and forth, so that shards have similar sizes."""
    order = sorted(range(len(run.sizes)), key=lambda index: (-run.sizes[index], index))
    turns = (divmod(place, shards) for place in range(len(order)))
    dealt = [slot if turn % 2 == 0 else shards - 1 - slot for turn, slot in turns]
    mine = sorted(index for index, shard in zip(order, dealt, strict=True) if shard == number - 1)
    cases = as_lazy(run.cases).select(mine)
    return replace(run, cases=cases, sizes=tuple(run.sizes[index] for index in mine))
