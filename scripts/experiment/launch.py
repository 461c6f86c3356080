"""Start and end a Hydra command: one job or several (`-m`), one exit code, one sentence for a wrong command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from scripts.experiment.exits import guarded

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONF = str(Path(__file__).resolve().parents[2] / "conf")


def launch(job: Callable[[DictConfig], int], primary: str, *, keep_record: bool = False) -> int:
    """Compose the command line and run its jobs; the exit code is the highest of the jobs, 2 for a wrong command line.

    Args:
        job: does the work of one configuration and returns its exit code.
        primary: the primary file of `conf`, such as `reproduce`.
        keep_record: keep Hydra's record of a multirun (`multirun.yaml`) where the configuration puts it; else it is deleted.
    """
    if "--traceback" in sys.argv:  # Hydra's command line accepts settings only
        sys.argv[:] = [*(argument for argument in sys.argv if argument != "--traceback"), "traceback=true"]
    sys.argv[1:] = [bracketed(argument) for argument in sys.argv[1:]]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them; `guarded` prints one line
    codes: list[int] = []

    @wraps(job)  # Hydra names the command after the file of `job`
    def run(cfg: DictConfig) -> None:
        codes.append(job(cfg))

    def work() -> int:
        import hydra

        with TemporaryDirectory() as folder:
            if not keep_record and not any(argument.startswith("hydra.sweep.dir=") for argument in sys.argv):
                sys.argv.append(f"hydra.sweep.dir='{folder}'")
            hydra.main(version_base="1.3", config_path=CONF, config_name=primary)(run)()
        return max(codes, default=0)

    return guarded(work, traceback="traceback=true" in sys.argv)


def bracketed(argument: str) -> str:
    """`budget=1000,2000` as Hydra's list `budget=[1000,2000]`, which would otherwise be two jobs; other arguments as they are."""
    name, _, values = argument.partition("=")
    return f"{name}=[{values}]" if name == "budget" and values and not values.startswith("[") else argument


def composed(primary: str, overrides: Sequence[str]) -> DictConfig:
    """Compose the configuration of a command as its command line would, and check every setting.

    Raises:
        RunError: a setting is unknown, missing, of another type or out of range.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    from eval.store import RunError
    from scripts.settings.checking import checked, composition_error

    try:
        with initialize_config_dir(CONF, version_base="1.3"):
            return checked(compose(primary, [bracketed(each) for each in overrides]), primary)
    except HydraException as error:
        raise RunError(composition_error(error)) from error
