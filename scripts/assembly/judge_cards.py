"""Where the cards of judges are kept: `<results>/judge_cards/<data set>-<its sha256>/judge_<name>-<identity of judge, model and prompt>`.

A score file has the same name, so a table finds the card of the judge that gave its scores, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from eval.judging.judge_card import Correction, read_card
from eval.judging.score import Judging
from scripts.assembly.datasets import Data
from scripts.assembly.models import Models
from scripts.assembly.scorers import judging

if TYPE_CHECKING:
    from scripts.settings.schema import Settings


def card_file(results: Path, grading: Judging, dataset: Data) -> Path:
    """The file with the verdicts of a judge on the probes of a data set."""
    return results / "judge_cards" / f"{dataset.name}-{dataset.source.sha256[:12]}" / f"{grading.stem}.jsonl"


def unmeasured(cfg: Settings, models: Models, graded: Iterable[tuple[str, Data]]) -> list[str]:
    """Models that judge, and whose errors no card states: of judges by their name in a table, each on a data set."""
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
    """What corrects the scores of a judge on a data set, by its name in a table."""
    grading = judging(cfg, models, name)
    remedy = f"`make judge-card JUDGE={name} DATASET={dataset.name}` with the same models and data makes one"
    return Correction(read_card(card_file(models.results, grading, dataset)), remedy)
