"""Judges, their cards and lexical metrics by name, as `conf/judge` and `conf/metrics.yaml` configure them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.files.run_folder import judged_by
from eval.files.store import RunError
from eval.judging.judge import Judge, judge_requests
from eval.judging.judge_card import Correction, read_card
from eval.judging.score import Judging, Metric, is_judged
from eval.metrics.lexical import splitter
from eval.report.cell import Cell, OutcomeCell
from eval.running.case import is_answered
from eval.running.run import Run
from scripts.assembly.datasets import Data
from scripts.assembly.models import Models
from scripts.settings.checking import checked_call, nearest
from scripts.setup.options import load_option, metric_options

if TYPE_CHECKING:
    from scripts.settings.schema import Settings


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
    return Judging(judge, model.batched_or_live, model.identity, models.prompts, cfg.judge.repeats, model.name)


def judge_prompts(metric: Mapping[str, Any]) -> set[str]:
    """Names of the prompts of a metric's judge; none for a metric without a judge."""
    if "judge" not in metric:
        return set()
    return set(Judge(**load_option("judge", metric["judge"].partition("@")[0])).prompt_names)


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
        all(is_answered([run], case) for case in run.cases)
        and all(is_judged(run, grader) for grader in graders.get(run.dataset, ()))
        for run in runs
    )


def metrics(names: Sequence[str]) -> list[Metric]:
    """Build lexical metrics by name.

    Raises:
        RunError: a name is unknown.
    """
    known = metric_options()
    if unknown := [name for name in names if name not in known]:
        near = nearest(unknown[0], known)
        raise RunError(f"no metric called {', '.join(unknown)}{near}; there are: {', '.join(sorted(known))}")
    return [_metric(name, dict(known[name])) for name in names]


def answer_metric(dataset: Mapping[str, Any]) -> Metric | None:
    """The first lexical metric of a data set that scores single answers; None if there is none."""
    return next((each for each in metrics(dataset.get("metrics", [])) if not each.joint and not each.on_recall), None)


def _metric(name: str, option: dict[str, Any]) -> Metric:
    from hydra.utils import get_method

    option.pop("title", None)
    joint = bool(option.pop("joint", False))
    splitter_version: dict[str, str] = {}
    if "sentences" in option:
        try:
            option["sentences"], splitter_version = splitter(option["sentences"]), {"nltk": version("nltk")}
        except ValueError as error:
            raise RunError(f"metric {name}: {error}") from error
    option = checked_call(f"metric {name}", {"_target_": option.pop("target", ""), **option})
    target = option.pop("_target_")
    function = get_method(target)
    on_recall = not joint and "recalled" in signature(function).parameters
    return Metric(name, partial(function, **option), {**option, **splitter_version}, on_recall, joint)


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
