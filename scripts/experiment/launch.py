"""How a Hydra command starts and ends: one job or several (`-m`), one exit code, and a wrong command line said in one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from scripts.experiment.exits import guarded

if TYPE_CHECKING:
    from omegaconf import DictConfig

_codes: list[int] = []


def ended(code: int) -> None:
    """A job of this command is over; the next may follow."""
    _codes.append(code)


def launch(main: Callable[[], None], *, keep_record: bool = False) -> int:
    """Run a function decorated with `hydra.main`; the exit code is the worst of its jobs, 2 for a wrong command line.

    Args:
        main: notes the exit code of each job with `ended`.
        keep_record: leave Hydra's record of a multirun (`multirun.yaml`) where the configuration puts it, instead of nowhere.
    """
    _codes.clear()
    if "--traceback" in sys.argv:  # Hydra's command line knows settings only
        sys.argv[:] = [*(one for one in sys.argv if one != "--traceback"), "traceback=true"]
    developer = "traceback=true" in sys.argv
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises what it would print, and we print one line of it

    def work() -> int:
        with TemporaryDirectory() as folder:
            if not keep_record and not any(one.startswith("hydra.sweep.dir=") for one in sys.argv):
                sys.argv.append(f"hydra.sweep.dir='{folder}'")
            main()
        return max(_codes, default=0)

    return guarded(work, traceback=developer)


def composed(primary: str, overrides: Sequence[str]) -> DictConfig:
    """The configuration of a command, as its command line composes it, every setting checked.

    Raises:
        RunError: a setting that is unknown, missing, of another type or out of range.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    from eval.provenance import ROOT
    from eval.store import RunError
    from scripts.settings.checking import checked, composition_error

    try:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            return checked(compose(primary, list(overrides)), primary)
    except HydraException as error:
        raise RunError(composition_error(error)) from error
