"""One job of a sweep: run, score and write the settings that share a build.

Hydra runs one job for each combination of `hydra.sweeper.params`, the settings that a memory is built with. The settings under
`sweep.read` affect reading only: all of them share one build per history (`eval.running.loop`). Every job adds its lines to
`results/sweeps/<name>-<profile>.csv`; the file is replaced as a whole and kept in order.

Decisions:

- A line stays in the file only while its `protocol` (data, models, read settings) equals that of the new lines.
- With `profile=paper` or an `endpoint.base_url`, the models that a sweep names are called; otherwise the offline engine is used for
  all of them, and the column `engine` says so.
- Each setting is charged its whole build cost, even where several settings shared one build.
- `max_usd` caps all jobs together, as long as they run one after the other (Hydra's own launcher).
"""

from __future__ import annotations

import csv
import io
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from eval.analysis.costs import costs
from eval.files.provenance import identity
from eval.files.run_folder import RunFolder, judge_metric
from eval.files.store import replace_file
from eval.report.cell import ALL, Cell
from eval.report.counted import counted
from eval.report.measures import cost
from eval.report.points import six_digits
from eval.report.rendering import interval_fields
from eval.report.wandb_log import log_files
from memsys.inert import csv_text, plain_cell
from memsys.llm.pricing import Purse, one_cap
from scripts.assembly.models import STAND_IN, with_local_models
from scripts.assembly.steps import say_missing
from scripts.settings.schema import Sweeps
from scripts.tables.captions import evidence_lines, prompts_line
from scripts.tables.grid import Experiment, prompts_behind
from scripts.tables.layout import ColumnGroup, TableRow
from scripts.tables.table import assembled

RUNTIME = (
    "results", "cache", "threads", "executor", "ray", "workers", "shard", "max_usd", "prices", "yes", "replay", "network", "logger",
    "max_unscored", "k_evidence", "nodes", "traceback",
)  # fmt: skip
"""Parts of the configuration that cannot change a number and are left out of `protocol`."""


def settings(grids: Iterable[Mapping[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """Every combination of values of each grid once, one grid after the other; an empty grid is the memory's own configuration."""
    listed = [dict(zip(grid, each, strict=True)) for grid in grids for each in itertools.product(*grid.values())]
    return [each for place, each in enumerate(listed) if each not in listed[:place]]


def swept_settings() -> tuple[str, ...]:
    """Dotted names of the settings that differ between the jobs of the command that Hydra is running."""
    from hydra.core.hydra_config import HydraConfig

    job = HydraConfig.get()
    given = [override.lstrip("+~").partition("=")[0] for override in job.overrides.task]
    built_with = [name for name in given if name.startswith("memory.build.")]
    return tuple(dict.fromkeys([*(job.sweeper.params or ()), *built_with]))


def sweep(cfg: Sweeps, swept: Sequence[str], purses: list[Purse]) -> int:
    """Run, score and write the settings of one job; return 1 if too much is not scored, 3 if the plan is declined.

    Args:
        swept: dotted names of the settings that differ between jobs.
        purses: the purses of the command's earlier jobs; this job's is appended.
    """
    job_settings: dict[str, Any] = {}
    for name in swept:  # the value of a memory is its name
        value = cfg.memory["name"] if name == "memory" else reduce(getitem, name.split("."), cfg.plain)
        job_settings[name.removeprefix("memory.build.")] = value
    given = {role: model for role, model in cfg.sweep["models"].items() if model is not None}
    backbone: dict[str, Any] = {"models": {**STAND_IN, **given}, "file": []}
    local = with_local_models(cfg)
    if local.profile_name != "paper" and local.endpoint.base_url is None:
        local = local.changed(models={role: engine for role, engine in STAND_IN.items() if f"models.{role}" in swept})
    grid = settings(cfg.sweep["read"])
    memory, option = cfg.memory, {"memory": cfg.memory["name"]}
    built = [{**memory, "build": {**memory["build"], **read}} for read in grid]
    rows = [TableRow(str(number), memory["title"], each, option, False) for number, each in enumerate(built)]
    with one_cap(purses):
        names = frozenset(row.name for row in rows)
        experiment = assembled(local, cfg.sweep, backbone, cfg.sweep["columns"], rows, names)
    if experiment is None:
        return 3
    for group in experiment.groups:
        if group.dataset is None:
            print(f"note: {group.title}: {group.missing}", file=sys.stderr)
    groups = [group for group in experiment.groups if group.dataset is not None]
    plain = experiment.cfg.changed(endpoint=cfg.endpoint, endpoints=cfg.endpoints).plain
    protocol = identity(_without(plain, (*RUNTIME, "hydra", *swept)))
    lines = [
        SweepLine({**job_settings, **read}, {**values, "protocol": protocol}, missing_share, scored)
        for group in groups
        for row, read in zip(rows, grid, strict=True)
        for values, missing_share, scored in _lines(experiment, group, row)
    ]
    path = experiment.models.results / "sweeps" / f"{cfg.sweep['name']}-{cfg.profile_name}.csv"
    replace_file(path, merged(path.read_text(encoding="utf-8") if path.is_file() else "", lines))
    if outcome := experiment.outcome():
        print(outcome)
    log_files(experiment.cfg.plain, "sweep", cfg.sweep["name"], [path])
    for line in evidence_lines(groups, rows[:1]):  # all read settings share the units
        print(line)
    return _report(experiment, path, lines)


def _without(tree: Mapping[str, Any], names: Sequence[str], above: str = "") -> dict[str, Any]:
    """A nested configuration without the settings of these dotted names."""
    return {
        name: _without(value, names, f"{above}{name}.") if isinstance(value, Mapping) else value
        for name, value in tree.items()
        if f"{above}{name}" not in names
    }


def _lines(
    experiment: Experiment[Sweeps], group: ColumnGroup, row: TableRow
) -> Iterator[tuple[dict[str, Any], float, frozenset[Any]]]:
    """Score one setting on one data set; yields for each metric the line's values, the share of unscored questions and the scored ones."""
    folder = experiment.runs[row.name, group.name][0].folder
    spent, calls, models = costs(folder), cost(folder, "build_calls"), experiment.models
    engines = (f"{role} {'stand-in' if role in models.stand_ins else getattr(models, role).name}" for role in STAND_IN)
    engine = "; ".join(engines)
    for metric in group.metrics:
        cell = experiment.cell(row, group, metric)
        assert isinstance(cell, Cell), f"a metric of a sweep is a score: {metric.title}"
        values, missing_share = _scores(cell, metric.category)
        yield (
            {
                **values,
                "metric": judge_metric(metric.name) if metric.judge else metric.score,
                "recalled_tokens": spent.recalled_tokens,
                "build_calls": None if calls is None else int(calls.mean),
                "engine": engine,
                "prompts": prompts_line(models.prompts, prompts_behind(experiment, row, group, metric)),
                "run": RunFolder(folder).key,
            },
            missing_share,
            frozenset(cell.scores).intersection(each.key for each in cell.applicable(metric.category)),
        )


def _scores(cell: Cell, category: str) -> tuple[dict[str, Any], float]:
    """Mean, intervals and counts of a cell, and its share of unscored questions."""
    counts, estimate = cell.counts(category), cell.estimate(category)
    values = {
        "dataset": cell.column.dataset,
        "metric": cell.column.metric,
        "category": category,
        "mean": None if estimate is None else estimate.mean,
        **interval_fields(estimate),
        "n": counts.scored,
        "questions": counts.questions,
        "errors": counts.errored,
        "unscored": counts.unscored,
        "not_reached": counts.not_reached,
        "empty": counts.empty,
    }
    return values, cell.missing_share(category)


def mean_text(line: SweepLine) -> str:
    """Mean and 95 % interval: in braces by case, in brackets that of few or alike histories, or by question for a single one."""
    mean = line.values["mean"]
    if mean is None:
        return "mean –"
    for name, brackets in (("case", "{}"), ("cautious", "[]"), ("question", "[]")):
        if (low := line.values[f"{name}_low"]) is not None:
            return f"mean {mean:.3f} {brackets[0]}{low:.3f}, {line.values[f'{name}_high']:.3f}{brackets[1]}"
    return f"mean {mean:.3f}"


def _scored(line: SweepLine) -> str:
    """Data set, metric and, of a metric by category, the category."""
    values = line.values
    category = "" if values["category"] == ALL else f" ({values['category']})"
    return f"{values['dataset']} {values['metric']}{category}"


def best_lines(lines: Sequence[SweepLine]) -> list[str]:
    """The best setting for each data set and metric with several settings."""
    columns: dict[tuple[str, str, str], list[SweepLine]] = {}
    for line in lines:
        key = (line.values["dataset"], line.values["metric"], line.values["category"])
        columns.setdefault(key, []).extend([line] if line.values["mean"] is not None else [])
    texts = []
    for own in columns.values():
        if len(own) > 1:
            best = max(own, key=lambda line: line.values["mean"])
            setting = " ".join(f"{name}={value}" for name, value in best.setting.items())
            equal = sum(line.values["mean"] == best.values["mean"] for line in own) - 1
            also = f", {counted(equal, 'other setting')} with the same mean" if equal else ""
            if len({line.scored for line in own}) > 1:  # a setting whose hard questions failed has a high mean
                every = frozenset[Any]().union(*(line.scored for line in own))
                also += f", over {best.values['n']} of {len(every)} questions, not the same ones for each setting"
            texts.append(
                f"best on {_scored(best)}: {setting} ({mean_text(best)}){also}, chosen on these questions, so on average too high"
            )
    return texts


def _report(experiment: Experiment[Sweeps], path: Path, lines: Sequence[SweepLine]) -> int:
    """Print the job's lines; return 1 if more than `max_unscored` of a line's questions are not scored."""
    models, limit = experiment.models, experiment.cfg.missing_limit
    if models.stand_ins:
        print(
            f"STAND-IN: {', '.join(models.stand_ins)} filled by offline engines; never compared with published numbers."
        )
    for line in lines:
        setting = " ".join(f"{name}={value}" for name, value in line.setting.items()) or "as configured"
        values = ", ".join(
            f"{name} {six_digits(line.values[name]) or '–'}" for name in ("n", "errors", "unscored", "empty")
        )
        print(f"{setting} · {_scored(line)}: {mean_text(line)}, {values}")
    for text in [*best_lines(lines), *dict.fromkeys(line.values["prompts"] for line in lines)]:
        print(text)
    if not experiment.stopped:
        print(f"written: {path}")
    folders = [models.results / "runs" / line.values["run"] for line in lines]
    scores = [path for folder in folders for path in RunFolder(folder).score_files()]
    return say_missing(max(line.missing_share for line in lines), "line", limit, folders, scores, experiment.stopped)


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One setting on one data set in one metric."""

    setting: Mapping[str, Any]
    values: Mapping[str, Any]
    """Values of the columns of the CSV after those of the settings, in their order."""
    missing_share: float
    """Share of the questions without a score."""
    scored: frozenset[Any]
    """Keys of the questions with a score."""


def merged(text: str, new_lines: Sequence[SweepLine]) -> str:
    """The CSV with new lines added or replaced, in order of their settings.

    Old lines of another protocol, or with other columns, are left out.

    Args:
        text: the CSV so far; empty for none.
        new_lines: at least one line.
    """
    names = list(dict.fromkeys(name for line in new_lines for name in line.setting))
    header = [*names, *new_lines[0].values]
    reader = csv.DictReader(io.StringIO(text))
    keys = [*names, "dataset", "metric", "category"]
    new = [
        {
            name: plain_cell(six_digits(value))
            for name, value in ({**dict.fromkeys(names), **line.setting, **line.values}).items()
        }
        for line in new_lines
    ]
    old = list(reader) if reader.fieldnames == header else []
    kept = [line for line in old if line["protocol"] == new[0]["protocol"]]
    lines = {tuple(line[key] for key in keys): line for line in [*kept, *new]}
    ordered = sorted(lines.items(), key=lambda entry: [_order(part) for part in entry[0]])
    return csv_text([header, *([line[name] for name in header] for _, line in ordered)])


def _order(text: str) -> tuple[int, float, str]:
    """Sort key: empty first, then numbers by size, then words."""
    try:
        return (1, float(text), "")
    except ValueError:
        return (2 if text else 0, 0.0, text)
