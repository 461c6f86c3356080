"""Steps that the entry points share: run, score, and complain about missing scores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from eval.judging.judging_ahead import JudgingAhead
from eval.judging.score import Judging, Metric, score_evidence, score_judge, score_lexical, score_paths
from eval.report.cell import Cell
from eval.report.tables import Table
from eval.running.loop import run_all
from eval.running.run import Run, ignore_answer
from eval.running.work import Executor
from memsys.llm.pricing import SpendingCapReached
from memsys.llm.traffic import Traffic
from scripts.checkup.causes import commonest
from scripts.settings.arguments import as_called
from scripts.terminal.progress import progress_line
from scripts.terminal.time_left import expected_cells

Watch = Callable[[], Sequence[Traffic]]
"""Returns the calls in flight at each endpoint."""


def _no_traffic() -> Sequence[Traffic]:
    return ()


def execute(
    runs: Sequence[Run],
    questions: int,
    threads: int | None,
    label: str = "answering",
    traffic: Watch = _no_traffic,
    ahead: JudgingAhead | None = None,
    executor: Executor | None = None,
) -> None:
    """Answer every question that has no answer yet.

    Args:
        questions: their number over all runs, for the progress line.
        ahead: judges answers as they are saved; None leaves that to `score`.
        executor: works on the cells; None takes the threads of this process.
    """
    builds = {run.shared or str(run.folder): len(run.sizes) for run in runs}
    cells = expected_cells(runs, questions)
    with progress_line(label, questions, histories=sum(builds.values()), traffic=traffic, expected=cells) as line:
        on_answer = ignore_answer if ahead is None else ahead.on_answer
        run_all(runs, threads=threads, on_progress=line.on_progress, on_answer=on_answer, executor=executor)


def execute_capped(
    runs: Sequence[Run],
    questions: int,
    threads: int | None,
    traffic: Watch = _no_traffic,
    ahead: JudgingAhead | None = None,
    executor: Executor | None = None,
) -> None:
    """Run `execute` up to the spending cap; the purse knows whether the cap stopped it (`Purse.stop`)."""
    with suppress(SpendingCapReached):
        execute(runs, questions, threads, traffic=traffic, ahead=ahead, executor=executor)


def score(
    run: Run,
    metrics: Sequence[Metric],
    judges: Mapping[str, Judging],
    k_evidence: int,
    questions: int,
    traffic: Watch = _no_traffic,
    ahead: JudgingAhead | None = None,
) -> dict[str, Path]:
    """Score a run with lexical metrics, evidence coverage and judges; returns the score files by metric.

    Judges are `judge_<name>`, evidence is `evidence@<k_evidence>`. `questions` is their number, for the progress line.
    """
    files = score_lexical(run, metrics)
    files[f"evidence@{k_evidence}"] = score_evidence(run, k_evidence)
    for name, judging in judges.items():
        with progress_line(f"judging {run.name}", questions * judging.repeats, traffic=traffic) as line:
            try:
                files[f"judge_{name}"] = score_judge(run, judging, line.step, ahead)
            except SpendingCapReached:  # the verdicts so far are kept, and the others count as missing
                files[f"judge_{name}"] = score_paths(run, (), {name: judging}, k_evidence)[f"judge_{name}"]
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
    """Print on standard error how much is not scored, with the most common cause and its remedy."""
    print(f"error: {share:.1%} of the questions of a {where} are not scored (limit {limit:.1%})", file=sys.stderr)
    if (cause := commonest(folders, score_files)) is not None:
        print(as_called(str(cause)), file=sys.stderr)
