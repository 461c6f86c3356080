"""The jobs of commands as their command line ends them: settings checked, an error as exit code 2 and one line."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
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
from scripts.setup.launch import CONF, perform, readable
from scripts.tables import sweep as sweeping

Job = Callable[..., int]
CONFIGS = Path(CONF)


def configuration(command: str, *overrides: str) -> DictConfig:
    """As the command line composes it, nothing checked. A choice of files is composed once; Hydra sets the other settings in a copy."""
    files = tuple(each for each in overrides if (CONFIGS / each.partition("=")[0]).is_dir())
    cfg: DictConfig = pickle.loads(_of_files(command, files))  # a sixth of the time of a deep copy
    settings = OverridesParser.create().parse_overrides([each for each in overrides if each not in files])
    ConfigLoaderImpl._apply_overrides_to_config(settings, cfg)
    return cfg


@cache
def _of_files(command: str, files: tuple[str, ...]) -> bytes:
    with initialize_config_dir(CONF, version_base="1.3"):
        return pickle.dumps(compose(command, list(files)))


def typed(cfg: Settings | DictConfig, command: str = "config") -> Any:
    """The settings of a command, as its command line checks them."""
    return cfg if isinstance(cfg, Settings) else checked(cfg, command)


def composed(command: str, overrides: Sequence[str]) -> Any:
    """As `scripts.setup.launch.composed`, of shipped files alone, which are composed once."""
    return typed(configuration(command, *readable(overrides, command)), command)


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
