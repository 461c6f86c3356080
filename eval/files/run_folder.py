"""A run's folder as one object: the only module that spells where the parts of a run lie, and which file completes a case.

`<results>/runs/<data set>/<memory>-<identity>/` holds `run.json`; a folder a case in `cases/` with `predictions.jsonl`, `effort.jsonl`,
`items.jsonl`, `nodes.jsonl`, and `case.json` once the case is complete; and score files `scores/<metric>-<hash of its settings>.jsonl`,
each with its settings in a `.json` of the same name and, for a judge, its costs in `.effort.jsonl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eval.files.store import safe_name

CASES, SCORES = "cases", "scores"
COMPLETE = "case.json"
"""The file that says that a case is complete."""
COSTS = ".effort.jsonl"
"""End of the file beside a judge's score file that holds what judging cost."""
JUDGE = "judge_"
"""Beginning of the metric that a judge's score file is named after."""


@dataclass(frozen=True, slots=True, order=True)
class RunFolder:
    """Where everything of a run lies; nothing is read or made."""

    path: Path

    @property
    def dataset(self) -> str:
        """Name of the data set (`conf/dataset`)."""
        return self.path.parent.name

    @property
    def results(self) -> Path:
        """The results folder that the run belongs to."""
        return self.path.parents[2]

    @property
    def key(self) -> str:
        """Data set and folder name, `locomo/bm25-0123456789ab`: unique within a results folder."""
        return f"{self.dataset}/{self.path.name}"

    def case(self, case_id: str) -> Path:
        """The folder of a case, be it there or not."""
        return self.path / CASES / safe_name(case_id)

    def cases(self) -> list[Path]:
        """The folders of all cases that were begun, by name."""
        return sorted(path for path in self.path.glob(f"{CASES}/*") if path.is_dir())

    def complete(self) -> list[Path]:
        """The folders of the cases that are complete, by name."""
        return [path.parent for path in self.written(COMPLETE)]

    def written(self, name: str) -> list[Path]:
        """The files of this name, one a case that has it, by case; `name` may be a pattern."""
        return sorted(self.path.glob(f"{CASES}/*/{name}"))

    def scores(self, stem: str) -> Path:
        """The score file of this stem, be it there or not."""
        return self.path / SCORES / f"{stem}.jsonl"

    def score_files(self, metric: str = "*") -> list[Path]:
        """The score files of a metric, or all of them, without those of their costs."""
        return sorted(path for path in self.path.glob(f"{SCORES}/{metric}-*.jsonl") if not path.name.endswith(COSTS))

    def score_costs(self) -> list[Path]:
        """The files with what judging cost."""
        return sorted(self.path.glob(f"{SCORES}/*{COSTS}"))


def is_complete(case_folder: Path) -> bool:
    """Whether a case is finished: its last file is written."""
    return (case_folder / COMPLETE).is_file()


def metric_of(score_file: Path) -> str:
    """The metric that a score file is named after: its name without the hash of the settings."""
    return score_file.name.removesuffix(COSTS).removesuffix(".jsonl").rpartition("-")[0]


def judged_by(metric: str) -> str | None:
    """The judge of a metric; None for a metric without one."""
    return metric.removeprefix(JUDGE) if metric.startswith(JUDGE) else None
