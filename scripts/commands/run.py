"""Run one memory on one data set: `python -m scripts run memory=segtree dataset=locomo profile=smoke`.

Prints a table of scores and costs. Answers, scores and costs are written to `results/runs/<dataset>/<memory>-<identity>/`; the same
command run again resumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.settings.schema import Single

GROUP = "run"
CONFIG = "config"
WORDS = "memory dataset"


def main(cfg: Single) -> int:
    """Run, score and print; 1 if too many questions are unscored, 3 if the plan is declined."""
    from eval.files.store import replace_file
    from eval.report.rendering import markdown
    from eval.report.wandb_log import log_table
    from scripts.assembly.steps import complain
    from scripts.lab.lab import Lab
    from scripts.setup.printing import print_table

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
    return complain(table, cfg.missing_limit, lab.models.purse.stop)
