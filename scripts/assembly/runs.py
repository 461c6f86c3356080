"""Describe one run: a memory on a data set with checked settings; its folder's name identifies everything that can change a number.

That includes the code of its memory and its loader, wherever they live, and of the run loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from traceback import extract_tb
from typing import Any

from data_loaders.schema import Case
from eval.analysis.costs import DISCOUNT
from eval.files.provenance import ROOT, distributions, identity, source_digest, source_of, surroundings
from eval.files.run_folder import RunRecord
from eval.files.store import RunError
from eval.running.failures import EXITS, described
from eval.running.gold_evidence import gold_evidence
from eval.running.oracle_editor import oracle_editor
from eval.running.reader import Reader
from eval.running.run import OUTSTANDING, SERVICES, Run, Services, built, needs
from eval.running.work import rehearse
from memsys.interface import MemorySystem, with_settings
from memsys.jsons import fields_of
from memsys.llm.batching.endpoint import BatchSettings
from memsys.llm.protocol import ModelError
from memsys.llm.replies import POLICY
from scripts.assembly.datasets import Data
from scripts.assembly.models import Model, Models
from scripts.settings.checking import checked_call, checked_option, checked_unit
from scripts.settings.schema import Settings
from scripts.setup.options import load_option, memory_classes, options

_surroundings = cache(surroundings)
BUDGET = ("max_context_tokens", "fill")
"""Settings of a reader for the amount of recall that it shows."""
DESCRIBING = ("name", "title", "unit", "waived", "untested", "fitted_to", "recall")
"""Values of a file of `conf/memory` that only describe the memory: they are no part of a run's identity."""
BATCHED = 20_000
"""Maximum number of outstanding answers in batch mode: their prompts, about 10 kB each, fit into memory."""


class NotInstalled(RunError):
    """A program that a memory runs outside this process is not installed."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of a memory, with all settings checked; it is the same on every data set."""

    memory: Mapping[str, Any]
    """Values of its file in `conf/memory`."""
    build: Any
    """Builds the memory from its services."""
    classes: tuple[type[MemorySystem], ...]
    """The memory's class and, for a wrapper, then that of its `inner` memory."""
    name: str
    """The memory's name, which starts the name of the run folder."""
    services: frozenset[str]
    """Names of the services that the innermost memory uses."""
    innermost: Mapping[str, Any]
    """The value `build` of the innermost memory."""

    @property
    def waived(self) -> dict[str, str]:
        """Contract tests and conformance checks that the memory cannot pass, with the reasons."""
        of_classes = {name: reason for each in self.classes for name, reason in each.WAIVED.items()}
        return {**of_classes, **self.memory.get("waived", {})}


def memory_run(
    cfg: Settings,
    models: Models,
    dataset: Data,
    recipe: Recipe,
    reader: Reader,
    *,
    unit: Mapping[str, Any] | None = None,
    replicate: int = 0,
    asked_for: bool = True,
) -> Run:
    """Describe the run of one memory on one data set; nothing is written and no call is made.

    Args:
        cfg: sets seed, rebuild schedule, prompts folder and whether node vectors are kept.
        unit: unit rule; None takes the memory's own, else the data set's.
        replicate: number of the build, from 0.
        asked_for: build the memory once, so that a wrong setting is refused before any call is paid for. A run outside `only` is described
            without building its memory.

    Raises:
        RunError: the unit rule is refused, or a service that the memory needs is missing.
    """
    stated = unit or unit_of(recipe.memory, dataset.config)
    unit = dict(checked_unit(stated, f"memory {recipe.name} on {dataset.name}"))
    record = _record(cfg, models, dataset, recipe, unit, reader, replicate)
    parts = {name: value for name, value in record.items() if name not in NOT_IDENTIFYING}
    suited = all(each.INDEPENDENT_CALLS for each in recipe.classes)  # to the batch API, where there is one
    services = replace(
        models.services,
        llm=models.memory.late if suited else models.memory.llm,
        gateway=models.gateway() if "gateway" in recipe.services else None,
    )
    if asked_for:
        built_once = _built_once(recipe, services)
        if "probe" in recipe.services:
            _check_logprobs(built_once, recipe.name, models.probe)
    controls: dict[str | None, Callable[[Case], MemorySystem]] = {  # they need the answer key
        "gold_evidence": partial(gold_evidence, unit=unit),
        "oracle_editor": oracle_editor,
    }
    return Run(
        name=recipe.name,
        folder=models.results / "runs" / dataset.name / f"{recipe.name}-{identity(parts)}",
        cases=dataset.cases,
        sizes=dataset.cases.sizes,
        build=recipe.build,
        reader=reader,
        unit=unit,
        services=services,
        outstanding=BATCHED if models.batches else OUTSTANDING,
        seed=cfg.build.seed,
        replicate=replicate,
        rebuild_every=cfg.build.rebuild_every,
        shared=_shared_build(parts, recipe),
        rehearse=partial(rehearse, recipe.build, unit, models.prompts),
        control=controls.get(recipe.memory.get("control")),
        vectors=bool(cfg.nodes.vectors),
        record=RunRecord.of(record),
    )


def recipe_of(memory: Mapping[str, Any]) -> Recipe:
    """Check the settings of a memory and find its classes.

    Args:
        memory: values of a file of `conf/memory`, with settings changed or not.

    Raises:
        RunError: a setting is refused.
    """
    memory = checked_option("memory", memory)
    name = str(memory["name"])
    innermost = stated = checked_call(f"memory {name}", memory["build"])
    memory = {**memory, "build": stated}
    classes = memory_classes(stated)
    while "inner" in innermost:
        innermost = innermost["inner"]
    try:
        build = builder(stated)
    except ValueError as error:
        raise RunError(f"memory {name}: {error}") from error
    given = inspect.signature(build).parameters.values()
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in given if each.default is each.empty and each.kind not in open_ended]
    if lacking := [name for name in needed if name not in SERVICES]:
        raise RunError(f"memory {name}: its file gives no {lacking[0]}, which is no service ({', '.join(SERVICES)})")
    return Recipe(memory, build, classes, name, needs(classes[-1]), innermost)


def builder(build: Mapping[str, Any]) -> partial[MemorySystem]:
    """The builder of a memory from its services, by the value `build` of a file of `conf/memory`.

    Raises:
        ValueError: a setting is refused.
    """
    from hydra.utils import get_object

    stated = {name: value for name, value in build.items() if name not in ("_target_", "_partial_", "_convert_")}
    if "inner" in stated:
        stated["inner"] = builder(stated["inner"])
    return with_settings(get_object(build["_target_"]), stated)


def unit_of(memory: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The unit rule of a memory on a data set if a table sets none: that of its file, else its class, else the data set.

    Args:
        memory: values of a file of `conf/memory`.
        config: values of a file of `conf/dataset`.
    """
    if memory.get("unit"):
        return dict(memory["unit"])
    unit: Mapping[str, Any] = next((each.UNIT for each in memory_classes(memory["build"]) if each.UNIT), config["unit"])
    return unit


NOT_IDENTIFYING = ("name", "waived", "untested", "cases", "prompts_dir", "data_status", "data_file", "made_with")
"""Facts in `run.json` that are not part of the run's identity."""


def _record(
    cfg: Settings,
    models: Models,
    dataset: Data,
    recipe: Recipe,
    unit: Mapping[str, Any],
    reader: Reader,
    replicate: int,
) -> dict[str, Any]:
    """The content of `run.json`: the parts of a run's identity, then `NOT_IDENTIFYING`. Two runs that agree in the parts of the identity
    give the same numbers.

    Raises:
        NotInstalled: a program that the memory runs outside this process is not installed.
    """
    modules = modules_of(recipe.memory["build"], dataset.config["load"]["_target_"])
    prompts = [*(name for each in recipe.classes for name in each.PROMPTS), reader.prompt]
    try:
        outside = recipe.classes[-1].outside(recipe.innermost)
    except ValueError as error:
        raise NotInstalled(f"memory {recipe.name}: {error}") from error
    discount = cfg.endpoint.batch.discount
    waived = {} if all(each.REHEARSED for each in recipe.classes) else recipe.waived
    return {
        "memory": {name: value for name, value in recipe.memory.items() if name not in DESCRIBING},
        "unit": unit,
        "dataset": {"name": dataset.name, **dataset.settings},
        "reader": fields_of(reader),
        "models": {
            "reader": models.reader.settings,
            **({"memory": models.memory.settings} if recipe.services & {"llm", "gateway"} else {}),
            **({"probe": models.probe.settings} if "probe" in recipe.services else {}),
            **({"embedder": models.embedder.settings} if recipe.services & {"embedder", "gateway"} else {}),
        },
        **({"outside": outside} if outside else {}),
        "replies": POLICY,
        "prompts": models.prompts.digest(prompts),
        "source": sources(modules),
        "distributions": distributions(modules),
        "seed": [cfg.build.seed, replicate],
        "rebuild_every": cfg.build.rebuild_every if any(each.OFFLINE for each in recipe.classes) else 1,
        "name": recipe.name,
        **({"waived": waived} if waived else {}),
        **({"untested": recipe.memory["untested"]} if recipe.memory.get("untested") else {}),
        "cases": len(dataset.cases),
        "prompts_dir": cfg.prompts_dir,
        "data_status": dataset.source.status,
        "data_file": str(dataset.config["file"]),
        "made_with": {**_surroundings(), **({DISCOUNT: discount} if discount != BatchSettings().discount else {})},
    }


def _shared_build(parts: Mapping[str, Any], recipe: Recipe) -> str:
    """Identity of the build without the settings that only reading uses; empty when reading changes the memory.

    The reader's token budget is one of these settings: a memory is built once for all budgets.
    """
    if recipe.innermost.get("mutate_on_read", False):
        return ""
    memory, read_settings = parts["memory"], recipe.classes[0].READ_KNOBS
    building = {name: value for name, value in memory["build"].items() if name not in read_settings}
    reader = {name: value for name, value in parts["reader"].items() if name not in BUDGET}
    return identity({**parts, "memory": {**memory, "build": building}, "reader": reader})


def check_known(build: Mapping[str, Any]) -> None:
    """Check that a memory of a record, which may come from an untrusted source, runs only code that files of `conf/memory` name.

    Raises:
        RunError: no file names its class; or it starts or calls a program, and no file has the same settings (except for numbers).
    """
    own = [load_option("memory", name)["build"] for name in options("memory")]
    if unknown := {*_named_in(build)} - {target for each in own for target in _named_in(each)}:
        raise RunError(f"no file of conf/memory names {min(unknown)}, so it is not run; write one if it is yours")
    if not all(each.REHEARSED for each in memory_classes(build)) and _texts(build) not in map(_texts, own):
        raise RunError(
            "the memory starts or asks a program, with settings that no file of conf/memory has; write one if they are yours"
        )


def _texts(value: Any) -> Any:
    """A configuration without its numbers."""
    if isinstance(value, Mapping):
        return {name: _texts(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_texts(inner) for inner in value]
    return value if isinstance(value, str) else None


def _built_once(recipe: Recipe, services: Services) -> MemorySystem:
    """Build the memory in the same way as a case does.

    Raises:
        RunError: its constructor raises an error; the text names the line of the memory that did, unless it refuses a setting.
    """
    import numpy as np

    try:
        return built(recipe.build, services, np.random.default_rng(0))
    except (ModelError, RunError):
        raise
    except (Exception, *EXITS) as error:  # a user's constructor may raise any error
        if isinstance(error, ImportError) and "pip install" in str(error):  # a service of ours, which names its extra
            raise
        if isinstance(error, ImportError):
            raise RunError(f"memory {recipe.name}: {error}; install the package that its code imports") from error
        own = {inspect.getfile(each) for each in recipe.classes}
        lines = [frame for frame in extract_tb(error.__traceback__) if frame.filename in own]
        if lines and not isinstance(error, ValueError):
            place = f"{lines[-1].filename}, line {lines[-1].lineno}"
            raise RunError(f"memory {recipe.name}: {described(error)} ({place})") from error
        raise RunError(f"memory {recipe.name}: {error}") from error


def _check_logprobs(memory: MemorySystem, name: str, probe: Model) -> None:
    """Refuse a memory that needs log-probabilities when the probe model is known to return none."""
    innermost: MemorySystem = getattr(memory, "inner", memory)
    has_none = probe.prices is not None and probe.prices.logprobs is False
    if innermost.asks_logprobs and has_none:
        raise RunError(
            f"memory {name} reads log-probabilities, and the probe {probe.name} gives none; choose a model that does with "
            "models.probe=… (and endpoints.probe.base_url=… when another server has it)"
        )


RUN_LOOP = ("run", "loop", "case", "question", "failures", "gold_evidence", "oracle_editor", "case_log", "reader")
"""Modules of `eval.running` whose code is part of every run's identity."""


def sources(modules: Sequence[str]) -> str:
    """Hash of the code that a run depends on, which `modules_of` names."""
    own = [source_of(ROOT / "eval" / "running" / f"{name}.py").code for name in RUN_LOOP]
    return identity({"closure": source_digest(modules), "own": own})


def modules_of(build: Mapping[str, Any], loader: str) -> list[str]:
    """The modules of a memory, of a loader and of what every run does with the data."""
    targets = [*_named_in(build), loader]
    return [
        *(name.rpartition(".")[0] for name in targets),
        "data_loaders.units",
        "data_loaders.transforms",
        "data_loaders.change",
    ]


def _named_in(build: Any) -> list[str]:
    """Every `_target_` within a memory's configuration."""
    if isinstance(build, Mapping):
        own = [str(build["_target_"])] if "_target_" in build else []
        return [*own, *(name for value in build.values() for name in _named_in(value))]
    return [name for value in build for name in _named_in(value)] if isinstance(build, list) else []
