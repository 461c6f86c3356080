"""Steps that the entry points share: choose cells and executor, run the cells, score, and report missing scores.

With `replay=true` only finished runs of a service's memory can be shown: its state is not in the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from data_loaders.raw import as_lazy
from eval.executors.cluster import in_ray
from eval.executors.processes import in_processes
from eval.executors.service_host import runs_anywhere
from eval.files.run_folder import is_complete, judge_metric, read_predictions
from eval.files.store import RunError
from eval.judging.judging_ahead import JudgingAhead
from eval.judging.score import Judging, Metric, score_evidence, score_judge, score_lexical, score_paths
from eval.report.cell import Cell
from eval.report.counted import counted
from eval.report.tables import Table
from eval.running.cells import WORKING
from eval.running.loop import run_all
from eval.running.run import Run, ignore_answer, innermost, needs
from eval.running.work import Executor
from memsys.lean import cores
from memsys.llm.endpoint import Traffic
from memsys.llm.pricing import SpendingCapReached
from scripts.assembly.models import Models
from scripts.assembly.scorers import judging, refuse_unfit
from scripts.setup.arguments import as_called
from scripts.setup.causes import commonest
from scripts.setup.progress import expected_cells, progress_line

if TYPE_CHECKING:
    from scripts.settings.schema import Settings


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
    cells = expected_cells(runs, questions)
    with progress_line(label, questions, histories=_builds(runs), traffic=traffic, expected=cells) as line:
        on_answer = ignore_answer if ahead is None else ahead.on_answer
        run_all(runs, threads=threads, on_progress=line.on_progress, on_answer=on_answer, executor=executor)


def _builds(runs: Sequence[Run]) -> int:
    """Number of histories that are built: runs may share a build."""
    return sum({run.shared or str(run.folder): len(run.sizes) for run in runs}.values())


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
    files = score_lexical(run, metrics)
    files[f"evidence@{k_evidence}"] = score_evidence(run, k_evidence)
    for name, grader in judges.items():
        metric = judge_metric(name)
        with progress_line(f"judging {run.name}", questions * grader.repeats, traffic=traffic) as line:
            try:
                files[metric] = score_judge(run, grader, line.step, ahead.take)
            except SpendingCapReached:  # the verdicts so far are kept, and the others count as missing
                files[metric] = score_paths(run, (), {name: grader}, k_evidence)[metric]
    return files


def complain(table: Table, limit: float) -> int:
    """Return 1 and print the reason when more than `limit` of a cell's questions are not scored; else return 0."""
    if table.missing_share <= limit:
        return 0
    files = [path for row in table.rows for cell in row.cells if isinstance(cell, Cell) for path in cell.score_files]
    print_missing(
        table.missing_share, "cell", limit, [folder for row in table.rows for folder in row.runs.values()], files
    )
    return 1


def print_missing(share: float, where: str, limit: float, folders: Sequence[Path], score_files: Sequence[Path]) -> None:
    """Print the unscored share on standard error, with the most common cause and its remedy."""
    print(f"error: {share:.1%} of the questions of a {where} are not scored (limit {limit:.1%})", file=sys.stderr)
    if (cause := commonest(folders, score_files)) is not None:
        print(as_called(str(cause)), file=sys.stderr)


def workable(cfg: Settings, runs: Sequence[Run]) -> list[Run]:
    """The runs that may be executed: all, but in a replay not those of services, which must be finished.

    An answer that failed counts as finished: asking for it again would need the service.

    Raises:
        RunError: a replay needs a service's run that is not finished; no call has been made.
    """
    if not cfg.replay:
        return list(runs)
    for run in runs:
        if not _replayable(run):
            _check_finished(run)
    return [run for run in runs if _replayable(run)]


def check_no_replay(cfg: Settings, run: Run, what: str) -> None:
    """Refuse a replay of a step that always calls the memory itself.

    Raises:
        RunError: the memory is a service's.
    """
    if cfg.replay and not _replayable(run):
        raise RunError(f"replay=true: {what} asks the service of {run.name} itself; leave replay=true out")


def _replayable(run: Run) -> bool:
    return run.control is not None or getattr(innermost(run.build), "REPLAYABLE", True)


def _check_finished(run: Run) -> None:
    open_questions = []
    for case in run.cases:
        asked = {question.id for question, _ in case.questions if run.questions(case.id, question.id)}
        open_questions.append(len(asked - read_predictions(run.case_folder(case.id)).keys()))
    unfinished = [
        count
        for case, count in zip(run.cases, open_questions, strict=True)
        if count or not is_complete(run.case_folder(case.id))
    ]
    if unfinished:
        raise RunError(
            f"replay=true: the run of {run.name} on {run.dataset} is not finished: {len(unfinished)} of "
            f"{counted(len(open_questions), 'history')}, {counted(sum(unfinished), 'question')} without an answer "
            f"(in {run.folder}). What a service holds "
            "is not in the cache, so nothing but the service can answer them; run the same command without replay=true first"
        )


ENOUGH = 8
"""Minimum number of cells of real data for worker processes, which need two seconds to start."""


def executor_of(cfg: Settings, runs: Sequence[Run]) -> Executor | None:
    """The executor that the configuration names; None for the threads of this process.

    `auto` takes processes for offline runs on real data with at least `ENOUGH` cells, on a machine with several cores: while calls are
    under way one process is enough, and the cells of samples are small.

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
        return in_ray(cfg.ray.address, cfg.workers, cfg.threads or WORKING)
    workers = cfg.workers or cores()
    if cfg.executor == "processes" and cfg.threads is None and not _offline(runs):
        print(
            f"note: executor=processes builds {WORKING} histories at once, fewer than the endpoint may answer; "
            "executor=threads builds as many as keep it busy, and threads=N sets how many processes build",
            file=sys.stderr,
        )
    several = cfg.executor == "auto" and workers > 1 and _offline(runs)
    if cfg.executor == "processes" or (several and cfg.data.source == "real" and _builds(runs) >= ENOUGH):
        return in_processes(workers, cfg.threads or WORKING)
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
    runs = workable(cfg, runs)
    with suppress(SpendingCapReached):  # the purse records whether the cap stopped it
        execute(runs, questions, cfg.threads, "answering", models.traffic, models.ahead, executor_of(cfg, runs))
    if cfg.shard is None:
        return models.purse.stop
    return f"Shard {cfg.shard} of the histories; merge all with python -m scripts merge. {models.purse.stop}".strip()


def in_shard(run: Run, number: int, shards: int) -> Run:
    """The run with the cases of one shard, numbered from 1: cases are dealt by size, back and forth, so that shards have similar sizes."""
    order = sorted(range(len(run.sizes)), key=lambda index: (-run.sizes[index], index))
    mine = sorted(index for place, index in enumerate(order) if _shard_of(place, shards) == number)
    cases = as_lazy(run.cases).select(mine)
    return replace(run, cases=cases, sizes=tuple(run.sizes[index] for index in mine))


def _shard_of(place: int, shards: int) -> int:
    round_number, slot = divmod(place, shards)
    return 1 + (slot if round_number % 2 == 0 else shards - 1 - slot)
