"""What `replay=true` does with memories of services: their state is not in the cache, so that only finished runs can be shown again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eval.files.run_folder import is_complete, read_predictions
from eval.files.store import RunError
from eval.running.run import Run, innermost

if TYPE_CHECKING:
    from data_loaders.schema import Case
    from scripts.settings.schema import Settings


def workable(cfg: Settings, runs: Sequence[Run]) -> list[Run]:
    """The runs that may be worked on: all of them, but in a replay without those of services, which must be finished.

    An answer that failed counts as finished: asking for it again would need the service.

    Raises:
        RunError: a replay needs a service's run that is not finished; nobody has been asked.
    """
    if not cfg.replay:
        return list(runs)
    for run in runs:
        if not _replayable(run):
            _check_finished(run)
    return [run for run in runs if _replayable(run)]


def check_no_replay(cfg: Settings, run: Run, what: str) -> None:
    """Refuse a replay of what always asks the memory itself.

    Raises:
        RunError: the memory is a service's.
    """
    if cfg.replay and not _replayable(run):
        raise RunError(f"replay=true: {what} asks the service of {run.name} itself; leave replay=true out")


def _replayable(run: Run) -> bool:
    return run.control is not None or getattr(innermost(run.build), "REPLAYABLE", True)


def _check_finished(run: Run) -> None:
    open_questions = [_open_questions(run, case) for case in run.cases]
    unfinished = [
        count
        for case, count in zip(run.cases, open_questions, strict=True)
        if count or not is_complete(run.case_folder(case.id))
    ]
    if unfinished:
        raise RunError(
            f"replay=true: the run of {run.name} on {run.dataset} is not finished: {len(unfinished)} of "
            f"{len(open_questions)} histories, {sum(unfinished)} questions without an answer (in {run.folder}). What a service holds "
            "is not in the cache, so nothing but the service can answer them; run the same command without replay=true first"
        )


def _open_questions(run: Run, case: Case) -> int:
    asked = {question.id for question, _ in case.questions if run.questions(case.id, question.id)}
    return len(asked - read_predictions(run.case_folder(case.id)).keys())
