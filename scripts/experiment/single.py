"""Body of `scripts.run`, in its own module so that `--help` imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eval.report.rendering import markdown
from eval.report.wandb_log import log_table
from scripts.experiment.exits import configured
from scripts.experiment.lab import Lab
from scripts.experiment.steps import complain

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run_single(cfg: DictConfig) -> int:
    """Run, score and print; return exit code 1 if too many questions are unscored, 2 if the input is wrong."""
    return configured(cfg, "config", _run_single)


def _run_single(cfg: DictConfig) -> int:
    from omegaconf import OmegaConf

    lab = Lab(cfg=cfg)
    dataset = lab.load()
    answers = lab.ask(dataset=dataset, judges=lab.judges(dataset))
    table = lab.table(lab.score(answers))
    print(markdown(table))
    print(f"run folder: {answers.folder}")
    log_table(OmegaConf.to_container(cfg, resolve=True), table)  # type: ignore[arg-type]
    return complain(table, cfg.max_unscored)
