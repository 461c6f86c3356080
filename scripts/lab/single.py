"""Commands of a single memory: the body of `memsys-bench run`, in its own module so that `--help` imports nothing heavy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from eval.files.store import replace_file
from eval.report.rendering import markdown
from eval.report.wandb_log import log_table
from scripts.assembly.datasets import Data, data
from scripts.assembly.models import Models, build_models
from scripts.assembly.readiness import prepared
from scripts.assembly.runs import memory_run, reader
from scripts.assembly.steps import complain
from scripts.lab.lab import Lab
from scripts.terminal.printing import print_table

if TYPE_CHECKING:
    from eval.running.run import Run
    from scripts.settings.schema import Single


def single_run(cfg: Single) -> tuple[Run, Data, Models]:
    """The run of the configured memory, for a command that drives the memory itself (growth, load); no question is answered.

    Raises:
        RunError: a setting is refused, or data or models are missing.
    """
    models = prepared(cfg, build_models(cfg))
    dataset = data(cfg.data, cfg.dataset)
    answering = reader(cfg.protocol.reader or dataset.config["reader"])
    return memory_run(cfg, models, dataset, cfg.memory, answering, unit=cfg.protocol.unit), dataset, models


def run_single(cfg: Single) -> int:
    """Run, score and print; return exit code 1 if too many questions are unscored, 3 if the plan is declined."""
    lab = Lab(cfg=cfg, probe=False)
    dataset = lab.load()
    judges = lab.judges(dataset)
    if not lab.agreed([lab.memory()], dataset, judges):
        return 3
    answers = lab.ask(dataset=dataset, judges=judges)
    table = lab.table(lab.score(answers))
    print_table(table, cfg.print)
    file = answers.folder / "table.md"
    replace_file(file, markdown(table))
    print(f"run folder: {answers.folder}")
    print(f"written: {file} (with categories, evidence and costs by phase)")
    log_table(lab.cfg.plain, table)
    code = complain(table, cfg.missing_limit)
    if stop := lab.models.purse.stop:
        print(stop, file=sys.stderr)
    return code
