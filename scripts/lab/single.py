"""The run of one memory, for commands that drive the memory itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.assembly.agreement import ask_without_plan
from scripts.assembly.datasets import Data, data
from scripts.assembly.models import Models, build_models
from scripts.assembly.readiness import prepared
from scripts.assembly.runs import memory_run, reader

if TYPE_CHECKING:
    from eval.running.run import Run
    from scripts.settings.schema import Single


def single_run(cfg: Single) -> tuple[Run, Data, Models]:
    """The run of the configured memory, for a command that drives the memory itself (growth, load); no question is answered.

    Raises:
        RunError: a setting is refused, data or models are missing, or the costs were declined.
    """
    models = build_models(cfg)
    ask_without_plan(cfg, models)
    models = prepared(cfg, models)
    dataset = data(cfg.data, cfg.dataset)
    answering = reader(cfg.protocol.reader or dataset.config["reader"])
    return memory_run(cfg, models, dataset, cfg.memory, answering, unit=cfg.protocol.unit), dataset, models
