"""What `memsys-bench growth` does: build one memory, measure its cost at several sizes, print and write the CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eval.analysis.growth import Schedule, growth_file, measure
from eval.files.store import replace_file
from scripts.assembly.datasets import data
from scripts.assembly.models import build_models
from scripts.assembly.readiness import prepared
from scripts.assembly.runs import memory_run, reader
from scripts.setup.exits import configured
from scripts.setup.replays import check_no_replay

if TYPE_CHECKING:
    from omegaconf import DictConfig


def growth(cfg: DictConfig) -> int:
    """Build, measure, print and write; the exit code is 2 when the input is wrong."""
    return configured(cfg, "growth", _growth)


def _growth(cfg: DictConfig) -> int:
    from omegaconf import OmegaConf

    dataset_config: dict[str, Any] = dict(OmegaConf.to_container(cfg.dataset, resolve=True))  # type: ignore[arg-type]
    memory_config: dict[str, Any] = dict(OmegaConf.to_container(cfg.memory, resolve=True))  # type: ignore[arg-type]
    schedule = Schedule(tuple(int(size) for size in cfg.sizes), cfg.window, cfg.reads)
    models = prepared(cfg, build_models(cfg))
    dataset = data(cfg, dataset_config)
    answering = reader(cfg.protocol.reader or dataset_config["reader"])
    run = memory_run(cfg, models, dataset, memory_config, answering, unit=cfg.protocol.unit)
    check_no_replay(cfg, run, "growth")
    path, text = growth_file(run, dataset.name, schedule), measure(run, dataset.name, schedule)
    replace_file(path, text)
    if models.stand_ins:
        print(f"STAND-IN: {', '.join(models.stand_ins)} filled by offline engines; these are not the costs of models.")
    print(text, end="")
    print(f"written: {path}")
    return 0
