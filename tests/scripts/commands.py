"""The jobs of commands as their command line ends them: settings checked, an error as exit code 2 and one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig

from scripts.commands import budgets as budgeting
from scripts.commands import calibrate as calibrating
from scripts.commands import change as changing
from scripts.commands import conformance as conforming
from scripts.commands import figures, run
from scripts.commands import growth as growing
from scripts.commands import load as loading
from scripts.commands import reproduce as reproducing
from scripts.settings.checking import checked
from scripts.settings.schema import Settings
from scripts.setup.exits import guarded
from scripts.setup.launch import perform
from scripts.tables import sweep as sweeping

Job = Callable[..., int]


def typed(cfg: Settings | DictConfig, command: str = "config") -> Any:
    """The settings of a command, as its command line checks them."""
    return cfg if isinstance(cfg, Settings) else checked(cfg, command)


def ended(job: Job, command: str) -> Job:
    """The exit code of a job; its settings are typed, or as Hydra composed them."""

    def end(cfg: Settings | DictConfig, *others: Any) -> int:
        def work() -> int:
            return perform(lambda settings: job(settings, *others), typed(cfg, command), command)

        return guarded(work)

    return end


budgets = ended(budgeting.main, "budgets")
calibrate = ended(calibrating.main, "calibrate")
change = ended(changing.main, "change")
conformance = ended(conforming.main, "config")
figure = ended(figures.main, "figures")
load = ended(loading.main, "load")
growth = ended(growing.main, "growth")
reproduce = ended(reproducing.main, "reproduce")
run_single = ended(run.main, "config")
sweep = ended(sweeping.sweep, "sweep")
