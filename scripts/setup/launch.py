"""Start and end a Hydra command: one job or several (`-m`), one exit code, one sentence for a wrong command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from memsys.llm import stopping
from scripts.setup.exits import guarded

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from scripts.settings.schema import Reproduce, Settings, Single, Sweeps

Done = TypeVar("Done")
CONF = str(Path(__file__).resolve().parents[2] / "conf")


def launch(job: Callable[[Any], int], primary: str, *, keep_record: bool = False) -> int:
    """Compose the command line and run its jobs; the exit code is the highest of the jobs, 2 for a wrong command line.

    Args:
        job: does the work of one configuration, checked and typed, and returns its exit code.
        primary: the primary file of `conf`, such as `reproduce`.
        keep_record: keep Hydra's record of a multirun (`multirun.yaml`) in its configured place; else it is deleted.
    """
    if "--traceback" in sys.argv:  # Hydra's command line accepts settings only
        sys.argv[:] = [*(argument for argument in sys.argv if argument != "--traceback"), "traceback=true"]
    arguments = readable(sys.argv[1:], primary)
    options = any(each.startswith("-") or "hydra" in each.partition("=")[0] for each in arguments)
    sys.argv[1:] = settings_first(arguments) if options else arguments
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them; `guarded` prints one line
    traceback = "traceback=true" in sys.argv
    codes: list[int] = []

    @wraps(job)  # Hydra names the command after the file of `job`
    def run(cfg: DictConfig) -> None:
        # Each job is guarded by itself, because the jobs after a failed one in a multirun must still run.
        codes.append(guarded(lambda: perform(job, _typed(cfg, primary), primary), traceback=traceback))
        if stopping.requested() and not stopping.wound_down():  # no further job of a multirun begins
            sys.exit(codes[-1])

    def work() -> int:
        import hydra
        from hydra.core.utils import configure_log

        if primary != "sweep" and not options:  # composed once: `hydra.main` composes for its mode first
            cfg = _compose(primary, sys.argv[1:])
            configure_log(cfg.hydra.job_logging, cfg.hydra.verbose)
            return perform(job, _typed(cfg, primary), primary)
        _share_the_store()
        _at_the_top(argument.removeprefix("sweep=") for argument in sys.argv if argument.startswith("sweep="))
        with TemporaryDirectory() as folder:
            if not keep_record and not any(argument.startswith("hydra.sweep.dir=") for argument in sys.argv):
                sys.argv.insert(1, f"hydra.sweep.dir={quoted(folder)}")
            hydra.main(version_base="1.3", config_path=CONF, config_name=primary)(run)()
        return max(codes, default=0)

    return guarded(work, traceback=traceback)


def _compose(primary: str, arguments: Sequence[str]) -> DictConfig:
    from hydra import compose, initialize_config_dir

    from scripts.setup import options  # noqa: F401  # its faster parser

    _share_the_store()
    with initialize_config_dir(CONF, version_base="1.3"):
        return compose(primary, [*arguments], return_hydra_config=True)


def _share_the_store() -> None:
    """Hydra copied its only store at each composition and at each look into a group, 125 times for `--help`."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]


def _at_the_top(sweeps: Iterable[str]) -> None:
    """Refuse a file of `conf/sweep` whose settings Hydra would put below `sweep`, where it finds none of them.

    Raises:
        RunError: a chosen file has no `@package` line.
    """
    from eval.files.store import RunError
    from scripts.setup.options import folders

    for name in sweeps:
        path = next((path for folder in folders() if (path := folder / "sweep" / f"{name}.yaml").is_file()), None)
        if path is not None and not re.search(
            r"^# *@package +_global_", path.read_text("utf-8", "replace"), re.MULTILINE
        ):
            raise RunError(f"{path}: its first line must be: # @package _global_")


def _typed(cfg: DictConfig, primary: str) -> Settings:
    """A composed configuration, checked and typed.

    Raises:
        RunError: see `checked`; or a chosen file is in the working folder's `conf`, too, and Hydra has taken the shipped one.
    """
    from hydra.core.hydra_config import HydraConfig

    from eval.files.store import RunError
    from scripts.settings.checking import checked
    from scripts.setup.options import folders

    chosen = (cfg.hydra if "hydra" in cfg else HydraConfig.get()).runtime.choices
    for group, name in chosen.items():
        if sum((folder / group / f"{name}.yaml").is_file() for folder in folders()) > 1:
            raise RunError(f"conf/{group}/{name}.yaml has the name of a shipped file; give it another name")
    return checked(cfg, primary)


def perform(job: Callable[[Any], Done], settings: Settings, primary: str) -> Done:
    """Run a job and return its result. With `logger=wandb` its progress is logged meanwhile."""
    if settings.logger.name != "wandb":
        return job(settings)
    from scripts.setup.live_log import live

    with live(settings, primary):
        return job(settings)


VALUED = ("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn", "--package", "-p", "--cfg", "-c")
"""Options of Hydra that take the next argument."""


def settings_first(arguments: Sequence[str]) -> list[str]:
    """The settings, then the options with their values: Hydra's parser refuses settings on both sides of an option."""
    settings: list[str] = []
    options: list[str] = []
    for before, argument in pairwise(["", *arguments]):
        of_option = before in VALUED or (before in ("--info", "-i") and "=" not in argument)
        (options if of_option or argument.startswith("-") else settings).append(argument)
    return [*settings, *options]


PATHS = ("data.root", "results", "cache", "prompts_dir", "prices", "local.model", "local.embedder")
"""Settings with a path, which is no list of several in a multirun either: `a,b` is one folder and not two jobs."""
IN_SYNTAX = re.compile(r"null|['\"{].*|\[.*\]|.*\\.*|(?>.*?\$\{).*'.*", re.IGNORECASE | re.DOTALL)
"""A text in Hydra's syntax already: null, in quotes, a list, with a backslash, or an interpolation with quotes inside."""
SWEPT = re.compile(r".*,.*|(choice|range|interval|glob|shuffle|sort|tag)\(.*", re.DOTALL)
"""Several values of a multirun."""


def readable(arguments: Sequence[str], primary: str) -> list[str]:
    """A command line in Hydra's syntax, where texts are in quotes, because its parser would interpret or refuse their characters.

    Outside a multirun, several values of a setting that takes a list (`only=bm25,dense`) become one; other arguments are unchanged.
    """
    several = primary == "sweep" or bool({"-m", "--multirun", "hydra.mode=MULTIRUN"} & {*arguments})
    return [_readable(argument, primary, several) for argument in arguments]


def _readable(argument: str, primary: str, several: bool) -> str:
    given, _, value = argument.partition("=")
    name = given.lstrip("+")
    if not value:
        return argument
    if name in PATHS:
        return argument if value == "null" or value[0] in "'\"{" else f"{given}={quoted(value)}"
    from scripts.settings.checking import lists_and_texts

    if IN_SYNTAX.fullmatch(value) or (several and SWEPT.fullmatch(value)):
        return argument
    lists, texts = lists_and_texts(primary)
    if name in lists and not several:
        return f"{given}=[{value}]"
    return f"{given}={quoted(value)}" if name in texts else argument


def quoted(text: str) -> str:
    """A text in Hydra's quotes: a quote inside has a backslash before it, and backslashes before a quote are doubled."""
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", text)
    return "'" + re.sub(r"(\\+)$", lambda found: found[1] * 2, escaped) + "'"


@overload
def composed(primary: Literal["config"], overrides: Sequence[str]) -> Single: ...
@overload
def composed(primary: Literal["reproduce"], overrides: Sequence[str]) -> Reproduce: ...
@overload
def composed(primary: Literal["sweep"], overrides: Sequence[str]) -> Sweeps: ...
@overload
def composed(primary: str, overrides: Sequence[str]) -> Settings: ...
def composed(primary: str, overrides: Sequence[str]) -> Settings:
    """The settings of a command as its command line would compose them, checked and typed; also from the working folder's `conf`.

    Raises:
        RunError: a setting is no text, unknown, missing, of another type or out of range.
    """
    from hydra.errors import HydraException

    from eval.files.store import RunError
    from scripts.settings.checking import composition_error
    from scripts.setup.options import folders

    if odd := [each for each in overrides if not isinstance(each, str)]:
        raise RunError(f"settings are texts, such as 'profile=smoke'; found {odd[0]!r}")
    own = [quoted(f"file://{folder}") for folder in folders() if str(folder) != CONF]
    searched = [f"hydra.searchpath=[{','.join(own)}]"] if own else []
    try:
        return _typed(_compose(primary, [*searched, *readable(overrides, primary)]), primary)
    except HydraException as error:
        raise RunError(composition_error(error)) from error
