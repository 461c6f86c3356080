"""Read the YAML files of `conf`: one option (a file) of a configuration group, checked against its schema."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import OmegaConf
from omegaconf import _utils as omegaconf_yaml
from omegaconf.errors import InterpolationKeyError

from eval.files.provenance import ROOT
from eval.files.store import RunError
from scripts.settings.checking import checked_option, nearest_or_all, resolved

if TYPE_CHECKING:
    from memsys.interface import MemorySystem

CONF = ROOT / "conf"
INTERPRETED = re.compile(r"\$\{|\?\?\?|&")
"""What OmegaConf interprets, and the anchors that it copies; other files have the same values without it, in a fifth of the time."""

if hasattr(yaml, "CSafeLoader"):
    # With libyaml, OmegaConf and Hydra read files by the same rules in a tenth of the time.
    class _Loader(yaml.CSafeLoader, omegaconf_yaml.get_yaml_loader()):  # type: ignore[misc]
        pass

    omegaconf_yaml.get_yaml_loader = lambda: _Loader


def folders() -> tuple[Path, ...]:
    """The folders that are searched for files of `conf`: a `conf` folder of the working folder first, then the shipped one."""
    own = Path.cwd() / "conf"
    return (own, CONF) if own.is_dir() and own != CONF else (CONF,)


def not_utf8() -> str:
    """The first file of `conf` that is not UTF-8, with its first wrong byte, because Hydra names no file; empty if there is none."""
    for path in (path for folder in folders() for path in sorted(folder.rglob("*.yaml"))):
        try:
            path.read_bytes().decode()
        except UnicodeDecodeError as error:
            return f"{path}: expected UTF-8, found byte {error.object[error.start]:#04x} at offset {error.start}"
    return ""


def options(group: str) -> list[str]:
    """Names of the files of a configuration group, sorted."""
    return sorted({path.stem for folder in folders() for path in (folder / group).glob("*.yaml")})


def load_option(group: str, name: str) -> dict[str, Any]:
    """Read one file of a configuration group; the caller may change the returned copy.

    Raises:
        RunError: the file does not exist (the message names the nearest, else all), states another name, or its schema refuses a value.
    """
    paths = (folder / group / f"{name}.yaml" for folder in folders())
    path = next((path for path in paths if path.is_file()), None)
    if "/" in name or path is None:
        known = options(group)
        raise RunError(f"no {group} called {name!r}{nearest_or_all(name, known)}")
    option = option_file(group, path)
    if (stated := option.get("name", name)) != name:  # results of both would have one name
        raise RunError(f"{path}: its name is {stated!r}; write name: {name}, as the file is called")
    return option


def option_file(group: str, path: Path) -> dict[str, Any]:
    """Read a file that has the form of a configuration group; the caller may change the returned copy.

    Raises:
        RunError: the file holds no mapping, or its schema refuses a value.
    """
    return deepcopy(_read(group, path, path.stat().st_mtime_ns))


def model_option(group: str, name: str, *, served: bool = True) -> dict[str, Any]:
    """The file of a model, or for any other name a model at an endpoint with default settings.

    Args:
        group: `llm` or `embedder`.
        served: whether an endpoint is configured that could serve a model without a file.

    Raises:
        RunError: there is no such file, and no endpoint.
    """
    if name in (known := options(group)):
        return load_option(group, name)
    if not served:
        raise RunError(
            f"no {group} called {name!r} (there are: {', '.join(known)}), and no endpoint.base_url that could serve it"
        )
    return {"engine": "http", "settings": {"model": name}}


def profile_settings(profile: str) -> Mapping[str, Any]:
    """The settings of a profile by section: `conf/common.yaml`, overridden by the profile's own."""
    paths = [path for folder in folders() for path in [folder / "profile" / f"{profile}.yaml"] if path.is_file()]
    merged = OmegaConf.merge(OmegaConf.load(CONF / "common.yaml"), *map(OmegaConf.load, paths[:1]))
    return {name: merged[name] for name in merged if name != "hydra"}  # type: ignore[misc, index]


def memory_classes(build: Mapping[str, Any]) -> tuple[type[MemorySystem], ...]:
    """The class of a memory and, for a wrapper, then that of its `inner` memory, by the value `build` of its file.

    Raises:
        RunError: the target is no class of a memory, or one of its methods is a coroutine, which nothing would await, or its `PROMPTS` or
            `held` is of another kind than in `MemorySystem`.
    """
    from hydra.utils import get_object

    from memsys.interface import MemorySystem

    kind = get_object(build["_target_"])
    if not (isinstance(kind, type) and issubclass(kind, MemorySystem)):
        raise RunError(f"{build['_target_']} is no class of a memory; derive it from memsys.interface.MemorySystem")
    for step in ("write", "end_session", "consolidate", "read"):
        if inspect.iscoroutinefunction(getattr(kind, step)):
            raise RunError(
                f"{build['_target_']}: {step} is `async def`, and the run does not await it; write it as a plain method"
            )
    if isinstance(kind.PROMPTS, str):
        raise RunError(f"{build['_target_']}: PROMPTS is a text; write a tuple: ({kind.PROMPTS!r},)")
    if inspect.isfunction(kind.held):
        raise RunError(f"{build['_target_']}: held is a method; write @property above it")
    return (kind, *(memory_classes(build["inner"]) if "inner" in build else ()))


def memories_here() -> list[str]:
    """Names of the memories that run in this process; the others need a product, a service or a server."""
    classes = {name: memory_classes(load_option("memory", name)["build"]) for name in options("memory")}
    return [name for name, own in classes.items() if all(each.REHEARSED for each in own)]


def metric_options() -> dict[str, Any]:
    """Settings of every lexical metric, by name (`conf/metrics.yaml`), also of the working folder's, which replaces a shipped one."""
    files = [path for folder in reversed(folders()) for path in [folder / "metrics.yaml"] if path.is_file()]
    return {name: option for path in files for name, option in option_file("metrics", path).items()}


@cache
def _read(group: str, path: Path, written: int) -> dict[str, Any]:
    """Read and check a file once, and again after a change: a table with sweeps asks for the same few files hundreds of times.

    Args:
        written: when the file was last changed.
    """
    with path.open(encoding="utf-8") as file:
        interpreted = INTERPRETED.search(file.read())
        file.seek(0)
        values = omegaconf_yaml.get_yaml_loader()(file).get_single_data()
    values = {} if values is None else values  # an empty file
    if not isinstance(values, dict):
        raise RunError(f"{path} must be a mapping, found {values!r}")
    try:
        plain = resolved(OmegaConf.create(values) if interpreted else values)
        return checked_option(group, plain, Path(*path.parts[-3:]))
    except InterpolationKeyError as error:
        text, _, key = str(error).partition("\n    full_key: ")
        raise RunError(f"{path}: {key.split()[0]}: {text}; write \\${{ for the characters ${{ themselves") from error
