"""A run's folder and its `run.json` as records: the only module that defines the names and places of a run's files.

`<results>/runs/<data set>/<memory>-<identity>/` holds `run.json`; a folder a case in `cases/` with `predictions.jsonl`, `effort.jsonl`,
`items.jsonl`, `nodes.jsonl`, and `case.json` once the case is complete; and score files `scores/<metric>-<hash of its settings>.jsonl`,
each with its settings in a `.json` of the same name and, for a judge, its costs in `.effort.jsonl`.

A folder may come from another machine. `RunFolder.record` therefore refuses a folder that holds anything but plain files and folders: a
link would take other files of this machine into reports and merged results, and reading a FIFO would wait for ever.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from eval.files.records import Prediction
from eval.files.store import AGAIN, RunError, read_lines, read_record, safe_name
from memsys.interface import Item

RUN = "run.json"
CASES, SCORES = "cases", "scores"
PREDICTIONS, ITEMS, EFFORTS, NODES = "predictions.jsonl", "items.jsonl", "effort.jsonl", "nodes.jsonl"
VECTORS = "vectors.npy"
"""Vectors, one row for each line of `NODES`."""
RECORDED = "recorded.jsonl"
"""For imported answers: one line per question, with the fields of `eval.files.imported.RECORDABLE` that the imported file has."""
ERRORS = "errors.log"
"""Tracebacks of failures in a case."""
COMPLETE = "case.json"
"""The file that says that a case is complete."""
TIMELESS = (PREDICTIONS, ITEMS, NODES, VECTORS, COMPLETE)
"""Files of a complete case that hold no measured time: they are equal in two runs with the same identity."""
COSTS = f".{EFFORTS}"
"""End of the name of the file with the costs of judging, next to a judge's score file."""
JUDGE = "judge_"
"""Beginning of the metric that a judge's score file is named after."""
NO_MODEL = ("extractive", "hashing")
"""Engines without a model."""

IN_WORDS = {str: "text", Mapping: "a mapping", int: "a whole number", list: "a list"}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The content of a run's `run.json`. Fields that its file lacks have the values below."""

    name: str = ""
    """Name of the memory."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Its settings, `build` among them."""
    dataset: Mapping[str, Any] = field(default_factory=dict)
    """`name`, `load`, `sha256`, and the cuts `transform`, `size`, `max_cases`, `seed`."""
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the model, or the engine, that filled each role."""
    data_status: str = ""
    """`sample`, `pinned` or `unpinned`."""
    prompts_dir: str | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Hash of each prompt that the run may use."""
    reader: Mapping[str, Any] = field(default_factory=dict)
    unit: Mapping[str, Any] = field(default_factory=dict)
    cases: int | None = None
    seed: Sequence[int] = ()
    """Seed of the build and number of the replicate."""
    rebuild_every: int | None = None
    data_file: str | None = None
    source: str | None = None
    """Hash of the code that the run depends on."""
    distributions: Mapping[str, str] | None = None
    made_with: Mapping[str, Any] = field(default_factory=dict)
    imported: Mapping[str, Any] = field(default_factory=dict)
    """About the imported file that the answers were read from; empty for a run of this harness."""
    untested: str = ""
    """The reason why the memory has never been tested; empty if it has."""
    waived: Mapping[str, str] = field(default_factory=dict)
    """Promises of the memory contract that a program outside this process cannot keep, with the reasons."""
    content: Mapping[str, Any] = field(default_factory=dict)
    """The whole content of the file."""

    @classmethod
    def of(cls, content: Mapping[str, Any], path: Path | None = None, *, whole: bool = True) -> RunRecord:
        """The record with this content; unless it is `whole`, as for an overview, fields of `NEEDED` may lack. `path` is for messages.

        Raises:
            RunError: a field is missing or has another type.
        """
        missing = [name for name in NEEDED if name not in content]
        if whole and missing:
            raise RunError(f"{path} is damaged: it has no {missing[0]}; run its command again")
        for name, value, kind in _typed(content):
            if not isinstance(value, kind) or isinstance(value, bool):
                wrong = f"{name} must be {IN_WORDS[kind]}, found {str(value)[:40]!r}"
                raise RunError(f"{path} is damaged: {wrong}; {AGAIN}")
        known = {each.name for each in fields(cls)} - {"content"}
        return cls(**{name: content[name] for name in known if content.get(name) is not None}, content=content)

    @property
    def stand_ins(self) -> list[str]:
        """Roles that an engine without a model filled."""
        return [role for role, model in self.models.items() if model.get("engine") in NO_MODEL]


NEEDED: dict[str, type] = {"name": str, "memory": Mapping, "dataset": Mapping, "models": Mapping, "data_status": str}
"""Fields of every `run.json`."""
MORE: dict[str, type] = {
    **dict.fromkeys(("prompts_dir", "data_file", "source", "untested"), str),
    **dict.fromkeys(("prompts", "reader", "unit", "distributions", "made_with", "imported", "waived"), Mapping),
    **dict.fromkeys(("cases", "rebuild_every"), int),
    "seed": list,
}
"""Fields that may be missing or null."""


def _typed(content: Mapping[str, Any]) -> Iterator[tuple[str, Any, type]]:
    """Yield name, value and type of the fields that are there; a field is read once the fields before it are known to be right."""
    yield from ((name, content[name], kind) for name, kind in NEEDED.items() if name in content)
    yield from ((name, content[name], kind) for name, kind in MORE.items() if content.get(name) is not None)
    yield from ((f"models.{role}", model, Mapping) for role, model in content.get("models", {}).items())
    if "dataset" in content:
        dataset = content["dataset"]
        yield "dataset.name", dataset.get("name"), str
        cuts = {"transform": str, "max_cases": int, "seed": int}
        yield from (
            (f"dataset.{name}", dataset[name], kind) for name, kind in cuts.items() if dataset.get(name) is not None
        )


@dataclass(frozen=True, slots=True, order=True)
class RunFolder:
    """The paths of a run's files; only `record` reads a file."""

    path: Path

    @classmethod
    def all(cls, results: Path) -> list[RunFolder]:
        """The runs below a results folder that have begun, by data set and memory."""
        return [cls(path.parent) for path in sorted((results / "runs").glob(f"*/*/{RUN}"))]

    @property
    def dataset(self) -> str:
        """Name of the data set (`conf/dataset`)."""
        return self.path.parent.name

    @property
    def memory(self) -> str:
        """Name of the memory in the folder's name; the record has it, too, if it can be read."""
        return self.path.name.rpartition("-")[0]

    @property
    def identity(self) -> str:
        return self.path.name.rpartition("-")[2]

    @property
    def results(self) -> Path:
        """The results folder; absolute if the folder's path does not lead through it, as inside of `runs`."""
        through = len(self.path.parents) > 2 and ".." not in self.path.parts
        return (self.path if through else self.path.resolve()).parents[2]

    @property
    def key(self) -> str:
        """Data set and folder name, `locomo/bm25-0123456789ab`: unique within a results folder."""
        return f"{self.dataset}/{self.path.name}"

    @property
    def file(self) -> Path:
        return self.path / RUN

    def record(self) -> RunRecord:
        """Read the record; the folder must hold only plain files and folders. The folder itself may be a link, because the user named it.

        Raises:
            RunError: the folder is not a run folder, holds a link, a FIFO, a socket or a device, a folder in it cannot be
                read, or its record is damaged.
        """
        if not self.file.is_file():
            raise RunError(
                f"{self.path} is not a run folder (no {RUN}); run folders are results/runs/<dataset>/<memory>-<identity>"
            )

        def unreadable(error: OSError) -> None:
            raise RunError(f"{error.filename} cannot be read: {error.strerror}") from error

        for place, folders, files in os.walk(self.path, onerror=unreadable):
            for name in (*folders, *files):
                path = Path(place, name)
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    found = f"{path} is {'a link' if stat.S_ISLNK(mode) else 'no plain file'}"
                    raise RunError(f"{found}: run folders hold files and folders only; remove it if you trust the rest")
        return RunRecord.of(read_record(self.file), self.file)

    @property
    def is_linked(self) -> bool:
        """Whether the run's folder or that of its data set is a link; a link leads out of the results."""
        return self.path.is_symlink() or self.path.parent.is_symlink()

    def case(self, case_id: str) -> Path:
        """The folder of a case, whether or not it exists."""
        return self.path / CASES / safe_name(case_id)

    def cases(self) -> list[Path]:
        """The folders of all started cases, sorted by name."""
        return sorted(path for path in self.path.glob(f"{CASES}/*") if path.is_dir())

    def complete(self) -> list[Path]:
        """The folders of the complete cases, sorted by name."""
        return [path.parent for path in self.written(COMPLETE)]

    def written(self, name: str) -> list[Path]:
        """The files of this name in the cases that have it, sorted by case; `name` may be a pattern."""
        return sorted(self.path.glob(f"{CASES}/*/{name}"))

    def scores(self, stem: str) -> Path:
        """The score file of this stem, whether or not it exists."""
        return self.path / SCORES / f"{stem}.jsonl"

    def score_files(self, metric: str = "*") -> list[Path]:
        """The score files of a metric, or of all metrics, without the files of their costs."""
        return sorted(path for path in self.path.glob(f"{SCORES}/{metric}-*.jsonl") if not path.name.endswith(COSTS))

    def score_costs(self) -> list[Path]:
        """The files with the costs of judging."""
        return sorted(self.path.glob(f"{SCORES}/*{COSTS}"))


def is_complete(case_folder: Path) -> bool:
    """Whether a case is finished: its last file is written."""
    return (case_folder / COMPLETE).is_file()


def history_of(case_folder: Path) -> str | None:
    """The history that a finished case is part of; None if it is unfinished, or was written before this was recorded."""
    history = read_record(case_folder / COMPLETE).get("cluster") if is_complete(case_folder) else None
    return str(history) if history else None


def run_of(score_file: Path) -> RunFolder:
    """The run that a score file belongs to."""
    return RunFolder(score_file.parents[1])


def metric_of(score_file: Path) -> str:
    """The metric that a score file is named after: its name without the hash of the settings."""
    return score_file.name.rpartition("-")[0]


def version_of(score_file: Path) -> str:
    """The hash of the settings in a score file's name."""
    return score_file.name.rpartition("-")[2].partition(".")[0]


def judge_metric(judge: str) -> str:
    """The metric that a judge's score files are named after; that of `*` stands for all judges."""
    return f"{JUDGE}{judge}"


def judged_by(metric: str) -> str | None:
    """The judge of a metric; None for a metric without one."""
    return metric.removeprefix(JUDGE) if metric.startswith(JUDGE) else None


def judges_of(metrics: Iterable[str]) -> list[str]:
    """The judges among these metrics, in order."""
    return [judge for metric in metrics if (judge := judged_by(metric)) is not None]


def read_predictions(case_folder: Path, *, finished: bool = False) -> dict[str, Prediction]:
    """Predictions of a case by question id; a later line replaces an earlier one.

    Args:
        finished: refuse a second line of a question, and a last line that was cut: the file of a finished case has none.

    Raises:
        RunError: a line is not a prediction.
    """
    path = case_folder / PREDICTIONS
    predictions: dict[str, Prediction] = {}
    try:
        for record in read_lines(path, finished=finished):
            items, scores = tuple(record["items"]), tuple(record["scores"])
            if len(items) != len(scores):
                raise TypeError(f"{len(items)} items with {len(scores)} scores")
            if finished and record["question_id"] in predictions:
                raise TypeError(f"a second one of question {record['question_id']}")
            predictions[record["question_id"]] = Prediction(**{**record, "items": items, "scores": scores})
    except (KeyError, TypeError) as error:
        raise RunError(f"{path}: a line is no prediction ({error}); {AGAIN}") from error
    return predictions


def read_items(case_folder: Path, *, finished: bool = False) -> dict[str, dict[str, Any]]:
    """Recalled items of a case by their hash; `finished` refuses a last line that was cut.

    Raises:
        RunError: a line is not an item.
    """
    path = case_folder / ITEMS
    records = read_lines(path, fields=("key", "id", "text", "sources", "kind", "level"), finished=finished)
    items = Items({record["key"]: record for record in records})
    items.path = path
    return items


def recalled_items(prediction: Prediction, items: Mapping[str, Mapping[str, Any]]) -> tuple[Item, ...]:
    """The recall behind a prediction, from the items of its case."""
    return tuple(
        Item(item["id"], item["text"], score, tuple(item["sources"]), item["kind"], item["level"])
        for item, score in zip((items[key] for key in prediction.items), prediction.scores, strict=True)
    )


class Items(dict[str, dict[str, Any]]):
    """Recalled items by hash; looking up an unknown hash raises `RunError`, because the file must be damaged."""

    path: Path

    def __missing__(self, key: str) -> dict[str, Any]:
        folder = self.path.parent
        raise RunError(f"{self.path} lacks the item {key} that a prediction names; delete {folder} and run again")


def read_efforts(case_folder: Path, *needed: str) -> list[dict[str, Any]]:
    """The effort lines of a case, which must have `phase` and these fields; empty where it has none.

    Raises:
        RunError: a line is damaged or lacks a field.
    """
    return read_lines(case_folder / EFFORTS, fields=("phase", *needed))
