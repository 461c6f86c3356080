"""A sweep of a paper: `python -m scripts.sweep sweep=segtree_propagation profile=smoke|subset|paper [data.size=20]`

Hydra runs one job for each combination of `hydra.sweeper.params`, settings that a memory is built with. The settings under `sweep.read`
are those that reading alone looks at: inside a job all of them share one build a history (`eval.loop`). Every job adds its lines to
`results/sweeps/<name>-<profile>.csv`, which at any moment is whole and in order; run again to resume.

Decisions:

- Lines that were measured otherwise (other data, models or read settings: the column `protocol`) leave the file.
- Models that a sweep names are asked for by name with `profile=paper` or an `endpoint.base_url`; else the offline engine stands in for
  all of them, and the column `engine` says so.
- Costs of building are those of a setting by itself, also where several shared one build.
- `max_usd` caps all jobs together, as long as they run one after the other (Hydra's own launcher).
"""

from __future__ import annotations

import csv
import io
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra

from eval.costs import costs
from eval.provenance import identity
from eval.report.cell import ALL, Cell, Column
from eval.report.measures import cost
from eval.report.scores import outcomes
from eval.report.wandb_log import log_sweep
from eval.run import Run
from eval.stats import Interval
from eval.store import RunError, replace_file
from scripts.experiment.assemble import Bench, bench, judging, memory_run, metrics
from scripts.experiment.exits import configured
from scripts.experiment.grid import Benchmark, benchmark, fetch_missing
from scripts.experiment.launch import ended, launch
from scripts.experiment.layout import score_name
from scripts.experiment.plan import confirmed, plan
from scripts.experiment.readiness import prepared
from scripts.experiment.roles import STAND_IN, chosen_models
from scripts.experiment.steps import execute_capped, print_missing, score

if TYPE_CHECKING:
    from omegaconf import DictConfig

MEASURED = (
    "dataset",
    "metric",
    "category",
    "mean",
    "question_low",
    "question_high",
    "case_low",
    "case_high",
    "n",
    "questions",
    "errors",
    "unscored",
    "not_reached",
    "recalled_tokens",
    "build_calls",
    "engine",
    "run",
    "protocol",
)
RUNTIME = (
    "results", "cache", "threads", "max_usd", "prices", "yes", "replay", "network", "logger", "max_unscored", "k_evidence",
    "nodes", "traceback",
)  # fmt: skip
"""Parts of the configuration that change no number."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One setting on one data set in one metric, ready to be written."""

    setting: Mapping[str, Any]
    values: Mapping[str, Any]
    """By the names of `MEASURED`."""
    missing_share: float
    """Share of the questions without a score."""


def settings(grids: Iterable[Mapping[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """Every combination of values of each grid, one grid after the other; an empty grid is the memory as it is configured."""
    return [
        dict(zip(grid, values, strict=True))
        for grid in grids
        for values in itertools.product(*map(list, grid.values()))
    ]


def merged(text: str, found: Sequence[Measured]) -> str:
    """The lines of a sweep's CSV with new ones in their place, in order of their settings.

    Lines of another protocol, or with other columns, are left out.
    """
    names = list(dict.fromkeys(name for one in found for name in one.setting))
    header = [*names, *MEASURED]
    reader = csv.DictReader(io.StringIO(text))
    keys = [*names, "dataset", "metric", "category"]
    new = [
        {name: _cell(value) for name, value in ({**dict.fromkeys(names), **one.setting, **one.values}).items()}
        for one in found
    ]
    old = list(reader) if reader.fieldnames == header else []
    kept = [line for line in old if line["protocol"] == new[0]["protocol"]]
    lines = {tuple(line[key] for key in keys): line for line in [*kept, *new]}
    out = io.StringIO()
    writer = csv.DictWriter(out, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(line for _, line in sorted(lines.items(), key=lambda entry: [_order(part) for part in entry[0]]))
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _order(text: str) -> tuple[int, float, str]:
    """Nothing first, numbers by size, words by letter."""
    try:
        return (1, float(text), "")
    except ValueError:
        return (2 if text else 0, 0.0, text)


def sweep(cfg: DictConfig, swept: Sequence[str]) -> int:
    """One job: run, score and write the settings that share its builds; 1 when too much is not scored, 2 when the input is wrong.

    Args:
        cfg: the configuration of this job.
        swept: dotted names of the settings that differ between jobs.
    """
    return configured(cfg, "sweep", lambda typed: _sweep(typed, swept))


def _sweep(cfg: DictConfig, swept: Sequence[str]) -> int:
    from omegaconf import OmegaConf

    outer = {name.removeprefix("memory.build."): _chosen(cfg, name) for name in swept}
    _set_models(cfg, swept)
    plain: dict[str, Any] = dict(OmegaConf.to_container(cfg, resolve=True))  # type: ignore[arg-type]
    protocol = _protocol(plain, swept)
    if cfg.profile_name == "paper" and cfg.data.source == "real":
        fetch_missing(cfg, plain["sweep"])
    built = prepared(cfg, bench(cfg))
    benchmarks = _present([benchmark(cfg, option) for option in plain["sweep"]["columns"]])
    read = settings(plain["sweep"]["read"])
    runs = {
        (place, one.group): _replicates(cfg, built, one, _with(plain["memory"], own))
        for one in benchmarks
        for place, own in enumerate(read)
    }
    every = [run for found in runs.values() for run in found]
    if cfg.profile_name == "paper" and not confirmed(cfg, plan(cfg, built, every, _judged(cfg, benchmarks))):
        return 3
    count = sum(len(one.questions) for one in benchmarks) * len(read) * cfg.build.replicates
    capped = execute_capped(every, count, cfg.threads, built.traffic)
    found = [
        Measured({**outer, **own}, {**values, "protocol": protocol}, missing)
        for one in benchmarks
        for place, own in enumerate(read)
        for values, missing in _measured(cfg, built, one, runs[place, one.group])
    ]
    _spent.append(built.purse.spent)
    path = built.results / "sweeps" / f"{plain['sweep']['name']}-{cfg.profile_name}.csv"
    replace_file(path, merged(path.read_text(encoding="utf-8") if path.is_file() else "", found))
    log_sweep(plain, plain["sweep"]["name"], path)
    return _told(cfg, built, path, found, capped)


_spent: list[float] = []
"""What earlier jobs of this process spent, in USD."""


def _chosen(cfg: DictConfig, name: str) -> Any:
    """The value of a swept setting; a memory by its name."""
    from omegaconf import OmegaConf

    return cfg.memory.name if name == "memory" else OmegaConf.select(cfg, name)


def _offline(cfg: DictConfig) -> bool:
    return bool(cfg.profile_name != "paper" and cfg.endpoint.base_url is None)


def _set_models(cfg: DictConfig, swept: Sequence[str]) -> None:
    """The paper's models in its profile, stand-ins for models that a sweep names offline; and what is left to be spent."""
    if _offline(cfg):
        cfg.models.update({role: engine for role, engine in STAND_IN.items() if f"models.{role}" in swept})
    cfg.models.update(chosen_models(cfg, dict(cfg.sweep.models)))
    if cfg.max_usd is not None:
        cfg.max_usd = max(0.0, cfg.max_usd - sum(_spent))


def _protocol(plain: Mapping[str, Any], swept: Sequence[str]) -> str:
    """Identity of all that must be equal for two lines to stand in one file."""
    return identity(_less({name: value for name, value in plain.items() if name not in (*RUNTIME, "hydra")}, swept))


def _less(tree: Mapping[str, Any], names: Sequence[str], above: str = "") -> dict[str, Any]:
    """A nested configuration without the dotted names."""
    return {
        name: _less(value, names, f"{above}{name}.") if isinstance(value, Mapping) else value
        for name, value in tree.items()
        if f"{above}{name}" not in names
    }


def _present(benchmarks: Sequence[Benchmark]) -> list[Benchmark]:
    for one in benchmarks:
        if one.dataset is None:
            print(f"note: {one.title}: {one.missing}", file=sys.stderr)
    found = [one for one in benchmarks if one.dataset is not None]
    if not found:
        raise RunError("none of the sweep's data sets is there; `python -m scripts.fetch` gets what is public")
    return found


def _with(memory: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return {**memory, "build": {**memory["build"], **own}}


def _replicates(cfg: DictConfig, built: Bench, one: Benchmark, memory: Mapping[str, Any]) -> list[Run]:
    assert one.dataset is not None
    unit = one.option.get("unit")
    return [
        memory_run(cfg, built, one.dataset, memory, one.reading, unit=unit, replicate=replicate)
        for replicate in range(cfg.build.replicates)
    ]


def _judge(cfg: DictConfig, name: str) -> str:
    """The judge as it is asked: offline, and with a judge of one's own in the paper profile, there is one model behind all."""
    theirs = cfg.sweep.models.get("judge") or STAND_IN["judge"]
    own = cfg.profile_name == "paper" and cfg.models.judge != theirs
    return name.partition("@")[0] if own or _offline(cfg) else name


def _judged(cfg: DictConfig, benchmarks: Sequence[Benchmark]) -> dict[str, list[str]]:
    """Judges by data set."""
    return {
        one.dataset.name: [_judge(cfg, metric["judge"]) for metric in one.option["metrics"] if "judge" in metric]
        for one in benchmarks
        if one.dataset is not None
    }


def _measured(
    cfg: DictConfig, built: Bench, one: Benchmark, runs: Sequence[Run]
) -> Iterator[tuple[dict[str, Any], float]]:
    """A setting's lines on one data set, one a metric, each with the share of questions that have no score."""
    chosen = one.option["metrics"]
    judges = {
        name: judging(cfg, built, name) for name in (_judge(cfg, each["judge"]) for each in chosen if "judge" in each)
    }
    lexical = metrics(list(dict.fromkeys(each["metric"] for each in chosen if "metric" in each)))
    files = [score(run, lexical, judges, cfg.k_evidence, len(one.questions), built.traffic) for run in runs]
    reached = outcomes((run.folder for run in runs), one.questions)
    spent, calls = costs(runs[0].folder), cost(runs[0].folder, "build_calls")
    for metric in chosen:
        name, category = score_name(metric), metric.get("category", ALL)
        asked = {**metric, "judge": _judge(cfg, metric["judge"])} if "judge" in metric else metric
        paths = tuple(found[score_name(asked)] for found in files)
        column = Column(one.group, one.title, name, one.questions, one.aggregate, one.answerable)
        cell = Cell(column, reached, paths, repeats=cfg.judge.repeats)
        counts, ours = cell.counts(category), cell.estimate(category)
        values = {
            "dataset": one.group,
            "metric": name,
            "category": category,
            "mean": None if ours is None else ours.mean,
            **_ends("question", None if ours is None else ours.by_question),
            **_ends("case", None if ours is None else ours.by_case),
            "n": counts.scored,
            "questions": counts.questions,
            "errors": counts.errored,
            "unscored": counts.unscored,
            "not_reached": counts.not_reached,
            "recalled_tokens": spent.recalled_tokens,
            "build_calls": None if calls is None else int(calls.mean),
            "engine": _engine(built),
            "run": f"{runs[0].folder.parent.name}/{runs[0].folder.name}",
        }
        yield values, counts.missing_share


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": low, f"{name}_high": high}


def _engine(built: Bench) -> str:
    """Which models made a line; stand-ins are called so."""
    stands = built.stand_ins
    names = {
        "memory": built.memory.name,
        "reader": built.reader.name,
        "judge": built.judge.name,
        "embedder": built.embedder_name,
    }
    return "; ".join(f"{role} {'stand-in' if role in stands else name}" for role, name in names.items())


def _told(cfg: DictConfig, built: Bench, path: Path, found: Sequence[Measured], capped: str) -> int:
    """Print the job's lines; 1 when a larger share than `max_unscored` of a line's questions is not scored."""
    if built.stand_ins:
        print(
            f"STAND-IN: {', '.join(built.stand_ins)} filled by offline engines; never compared with published numbers."
        )
    for one in found:
        setting = " ".join(f"{name}={value}" for name, value in one.setting.items()) or "as configured"
        shown = ", ".join(f"{name} {_cell(one.values[name]) or '–'}" for name in ("mean", "n", "errors", "unscored"))
        print(f"{setting} · {one.values['dataset']} {one.values['metric']}: {shown}")
    print(capped or f"written: {path}")
    worst = max(one.missing_share for one in found)
    if worst > cfg.max_unscored:
        folders = [built.results / "runs" / one.values["run"] for one in found]
        scores = [path for folder in folders for path in folder.glob("scores/*.jsonl") if ".effort" not in path.name]
        print_missing(worst, "line", cfg.max_unscored, folders, scores)
        return 1
    return 0


@hydra.main(version_base="1.3", config_path="../conf", config_name="sweep")
def main(cfg: DictConfig) -> None:
    from hydra.core.hydra_config import HydraConfig

    job = HydraConfig.get()
    given = [override.lstrip("+~").partition("=")[0] for override in job.overrides.task]
    swept = [*(job.sweeper.params or ()), *(name for name in given if name.startswith("memory.build."))]
    code = sweep(cfg, tuple(dict.fromkeys(swept)))
    ended(code)
    if code > 1:  # what is wrong here is wrong in the jobs that follow
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(launch(main, keep_record=True))
