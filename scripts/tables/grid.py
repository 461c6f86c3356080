"""An experiment and the cells of its table: scores from score files, other measures from run folders, differences and best rows.

Facts in words stand next to the scores: recall settings, costs, and the result of conformance, which is examined once for each memory
with its settings and models, and saved in `<results>/conformance`. A table examines the requested rows if no call is paid for; otherwise
it prints the saved results of `memsys-bench conformance`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from eval.analysis.costs import Price, cost_missing, costs
from eval.files.imported import THEIRS
from eval.files.provenance import identity, source_digest
from eval.files.run_folder import RunFolder, metric_of
from eval.files.store import RunError, read_record, replace_file
from eval.judging.agreement import RIGHT
from eval.judging.judge_card import Correction
from eval.judging.score import score_paths
from eval.report.cell import ALL, Cell, Column, Outcomes, outcomes
from eval.report.measures import Factor, cost, coverage, product_of_means, report, spread, statistic, tree
from eval.report.published import MARGIN, Published, find
from eval.report.rendering import run_money
from eval.report.tables import AnyCell, Measure, choose, composed
from eval.running.loop import clear_up
from eval.running.run import Run, build_memory
from eval.statistics.stats import Estimate
from scripts.assembly.datasets import Data, layer_of
from scripts.assembly.models import Models, other_models
from scripts.assembly.plan import Plan
from scripts.assembly.readiness import Meter, meter, side_by_side
from scripts.assembly.steps import cell_of, correction, judge_prompts, judging, metrics, score
from scripts.settings.schema import Reproduce, Settings
from scripts.setup.options import memory_classes
from scripts.tables.layout import (
    ColumnGroup,
    TableMetric,
    TableRow,
    belongs,
    candidates,
    reference,
)

if TYPE_CHECKING:
    from eval.conformance.checks import ConformanceResult


NOT_EXAMINED = "not examined"
RULES = {"utterance": "single turns", "floor_pair": "pairs of turns", "ab_pair": "pairs of turns (fixed speakers)"}
"""Unit rules in words; other rules keep their names."""


def fact(run: Run, memory: Mapping[str, Any], name: str, prices: Mapping[str, Price]) -> str:
    """A fact about a run as text: `price`, `conformance`, or `recall`: the unit, the settings that only reading uses, and the memory file's
    note on its protocol.

    Args:
        memory: values of the row's memory, with the row's settings.
    """
    if name != "recall":
        return price(run, prices) if name == "price" else conformance(run)
    unit = RULES.get(run.unit["rule"], run.unit["rule"])
    known = dict.fromkeys(knob for each in memory_classes(memory["build"]) for knob in each.READ_KNOBS)
    stated = {name: memory["build"][name] for name in known if name in memory["build"]}
    knobs = {name: value for name, value in stated.items() if isinstance(value, int | str | None)}
    said = [f"{name} {'all' if value is None else value}" for name, value in knobs.items()]
    return "; ".join([unit, *said, *([memory["recall"]] if memory.get("recall") else [])])


def price(run: Run, prices: Mapping[str, Price]) -> str:
    """Model tokens of building and embedding a unit and of a question, and the dollars of the whole run with its judges."""
    spent = costs(run.folder)
    if spent.missing:
        return f"unknown: {spent.missing}"
    build, embedded = spent.build_tokens_per_unit or 0, spent.embedding_tokens_per_unit or 0
    asked, usd = spent.inference_tokens or 0, run_money(run.folder, prices)
    shown = usd if usd in ("–", "unknown") else f"${usd}"
    return f"{build:,.0f} + {embedded:,.0f} embedded tokens a unit; {asked:,.0f} a question; run {shown}"


def conformance(run: Run) -> str:
    """`accepted`, `refused` with the faults' names, or `NOT_EXAMINED` with these settings and models. Controls are built from the answer
    key and have none."""
    if run.control is not None:
        return "–"
    if not (path := _file(run)).is_file():
        return NOT_EXAMINED
    kept = read_record(path)
    if kept["refused"]:
        return f"refused: {', '.join(kept['refused'])}"
    waived = ", ".join(kept["faults"])
    return f"accepted, waived: {waived}" if waived else "accepted"


def examine_and_keep(run: Run, waived: Collection[str]) -> ConformanceResult:
    """Run the conformance checks on a run's memory and save the result.

    Raises:
        EndOfRun: no further call can be made; nothing is saved.
    """
    from eval.conformance.checks import FAULTS, examine

    clear_up([run])
    verdict = examine(lambda case: build_memory(run, case), run.unit)
    kept = {
        "memory": run.name,
        "refused": verdict.unwaived(waived),
        "faults": {name: verdict.faults[name] for name in FAULTS if name in verdict.faults},
        "unchecked": dict(verdict.unchecked),
    }
    replace_file(_file(run), json.dumps(kept, indent=1) + "\n")
    return verdict


def _file(run: Run) -> Path:
    """The file of a memory's result; its name identifies the checks and all that affects the memory: the loader, but no data or reader."""
    content = run.record.content
    parts = {name: content[name] for name in ("memory", "unit", "source", "distributions", "replies")}
    models = {role: settings for role, settings in run.record.models.items() if role != "reader"}
    checks = source_digest(["eval.conformance.checks"])
    known = identity({**parts, "models": models, "outside": content.get("outside"), "checks": checks})
    return RunFolder(run.folder).results / "conformance" / f"{run.name}-{known}.json"


S = TypeVar("S", bound=Settings)

Runs = Mapping[tuple[str, str], Sequence[Run]]
"""The builds of a row in a column group, by both names."""
OURS = ("judge", "metric")
"""Scores that every row can have."""
NO_MEMORY = "nothing"
"""The memory that recalls nothing."""
PROMPTS_OURS = "prompts ours"
"""Remark after a verdict on a number that comes from prompts in our own words."""
STRUCTURE = ("report", "tree", "spread", "coverage", "data", "fact")
"""Measures of a memory's structure, which need no reader."""
CHOOSES = "chooses the questions left out"
"""Printed for the row `nothing` if it has no second build."""
NOT_INSTALLED = "not installed"
"""Printed for a row whose packages or product are missing."""
NOTHING = "–"
"""Printed where a column does not apply to a row."""


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """A table before it is printed: rows, column groups, runs and cells.

    A cell is computed on first use, because differences and best rows need other cells.
    """

    cfg: S
    """Settings of the command, with the models of the backbone; for a table, `only` holds names of rows."""
    models: Models
    backbone: Mapping[str, Any]
    groups: Sequence[ColumnGroup]
    lines: Sequence[TableRow]
    only: frozenset[str] | None
    """Names of the requested rows; None for all."""
    runs: Runs
    numbers: Sequence[Published]
    """Published numbers of the backbone."""
    absent: Mapping[tuple[str, str], str]
    """Reasons for missing published answers, by row and column group."""
    capped: str
    """The reason why the runs stopped early; empty if they did not."""
    before: Meter
    """Usage before the first run."""
    planned: Plan | None
    """The agreed estimate; None if nothing was planned."""
    guessing: str
    """Treatment of guessable questions: the setting `guessable` of `memsys-bench reproduce`; `keep` for other commands."""
    _cells: dict[tuple[str, str, TableMetric], AnyCell] = field(default_factory=dict)
    _files: dict[tuple[str, str], list[dict[str, Path]]] = field(default_factory=dict)
    _reached: dict[tuple[str, str, int | None, int | None], Outcomes] = field(default_factory=dict)
    _guessable: dict[str, dict[tuple[str, str], float]] = field(default_factory=dict)

    @property
    def stopped(self) -> str:
        """The reason why the work stopped early, with the amount spent by now; empty if it did not."""
        return self.models.purse.stop or self.capped

    def outcome(self) -> str:
        """The plan next to the usage so far; empty if nothing was planned."""
        return "" if self.planned is None else side_by_side(self.planned, self.before, meter(self.models))

    def cell(self, line: TableRow, group: ColumnGroup, metric: TableMetric) -> AnyCell:
        """The cell of a row, a column group and a metric; a string gives the reason for a missing number."""
        key = (line.name, group.name, metric)
        if key not in self._cells:
            cell = self._cell(line, group, metric)
            fields = None if isinstance(cell, str) else reference(self.backbone, line, group.option, metric)
            published = None if fields is None else find(self.numbers, fields)
            if published is not None and not isinstance(cell, str):
                why_not = self._why_not(line, group, metric)
                names = prompts_behind(self, line, group, metric)
                qualifier = PROMPTS_OURS if any(self.models.prompts[name].text != "theirs" for name in names) else ""
                number = replace(published.divided(metric.scale), why_not=why_not, qualifier=qualifier)
                cell = replace(cell, published=number)
            self._cells[key] = cell
        return self._cells[key]

    def _cell(self, line: TableRow, group: ColumnGroup, metric: TableMetric) -> AnyCell:
        if group.dataset is None:
            return group.missing
        data_only = not {"memory", "best_of", "answers"} & line.option.keys()
        if not belongs(line, group.option) or data_only != (metric.kind == "data"):
            return NOTHING
        if metric.minus is not None:
            return self._difference(line, group, metric, metric.minus)
        if metric.product is not None:
            return self._product(line, group, metric, metric.product)
        if "best_of" in line.option:
            return self._best(line, group, metric)
        if (line.name, group.name) in self.absent:
            return self.absent[line.name, group.name]
        runs = self.runs.get((line.name, group.name), ())
        if line.memory is not None and not runs:
            return NOT_INSTALLED
        if metric.kind == "theirs" and metric.score not in self.files(line, group)[0]:
            return NOTHING
        if metric.kind == "fact":
            return NOTHING if line.memory is None else fact(runs[0], line.memory, metric.name, self.models.prices)
        if metric.kind == "cost" and (missing := cost_missing(runs[0].folder, metric.name)):
            return missing
        if not metric.score:
            return Measure(self._measure(line, group, metric))
        chooses = self.guessing == "exclude" and line.memory is not None and line.memory["name"] == NO_MEMORY
        if chooses and len(runs) < 2:
            return CHOOSES
        return self._scores(line, group, metric, self.column(group, metric), slice(int(chooses), None))

    def _scores(
        self,
        line: TableRow,
        group: ColumnGroup,
        metric: TableMetric,
        column: Column,
        builds: slice,
    ) -> Cell:
        files = tuple(files[metric.score] for files in self.files(line, group)[builds] if metric.score in files)
        key = (line.name, group.name, builds.start, builds.stop)
        if key not in self._reached:  # the same for every metric, and read from every prediction of the runs
            runs = self.runs.get((line.name, group.name), ())
            self._reached[key] = outcomes((run.folder for run in runs[builds]), group.questions)
        repeats = None if metric.kind == "theirs" else self.cfg.judge.repeats
        fix: Correction | None = None
        if self.cfg.judge.corrected and group.dataset is not None:
            if (metric.kind, metric.name) == ("theirs", "judge"):
                fix = Correction(None, "the judge of these grades is the authors', and cannot be asked")
            elif metric.judge:
                fix = correction(self.cfg, self.models, metric.judge, group.dataset)
        return cell_of(metric.score)(
            column, self._reached[key], files, repeats=repeats, correction=fix, errata=self.errata
        )

    def column(self, group: ColumnGroup, metric: TableMetric, *, whole: bool = False) -> Column:
        """The column of a metric, without guessable questions if `guessable=exclude`; a measure that is no score has no questions.

        Args:
            whole: keep guessable questions in any case.
        """
        left_out = self.guessable(group) if self.guessing == "exclude" and not whole else ()
        inside = (metric.category, metric.of)
        asked = group.questions if metric.score else ()
        questions = tuple(each for each in asked if all(map(each.belongs_to, inside)) and each.key not in left_out)
        return Column.of(group.config, metric.title, questions)

    def guessable(self, group: ColumnGroup) -> dict[tuple[str, str], float]:
        """The answerable questions of a column group that the row `nothing` answers right, with its score in the first metric.

        The row's first build selects them. If the table leaves them out, the row itself is scored by its other builds, because its first
        build would score 0 by construction; without other builds it has no number.

        Raises:
            RunError: the table has no such row, or it has no scores.
        """
        if group.name in self._guessable:
            return self._guessable[group.name]
        plain = (each for each in group.metrics if each.minus is None and each.product is None)
        metric = next((each for each in plain if each.kind in OURS), None)
        if group.dataset is None or metric is None:
            return {}
        nothing = [line for line in self.lines if line.memory is not None and line.memory["name"] == NO_MEMORY]
        lines = [line for line in nothing if belongs(line, group.option)]
        whole = replace(metric, category=ALL)
        column = self.column(group, whole, whole=True)
        scores = self._scores(lines[0], group, whole, column, slice(1)).scores if lines else {}
        if not scores:
            raise RunError(
                f"guessable={self.guessing}: {group.title} needs scores of the row `{NO_MEMORY}`; "
                f"add it to the table's rows, and to `only`"
            )
        answerable = {question.key for question in group.questions if question.answerable}
        guessed = {key: score for key, score in scores.items() if key in answerable and score >= RIGHT}
        self._guessable[group.name] = guessed
        return guessed

    @cached_property
    def errata(self) -> frozenset[tuple[str, str]]:
        """Questions whose gold answer is known to be wrong by the layer of `errata=`; empty without `errata=`.

        Raises:
            RunError: the layer names no question of the table.
        """
        name = self.cfg.errata if isinstance(self.cfg, Reproduce) else None
        if not name:
            return frozenset()
        wrong = frozenset(layer_of(name, self.cfg.data.folder).gold)
        if not any(question.key in wrong for group in self.groups for question in group.questions):
            raise RunError(f"errata={name} names no question of this table")
        return wrong

    def _difference(self, line: TableRow, group: ColumnGroup, metric: TableMetric, minus: Mapping[str, str]) -> AnyCell:
        """The paired difference from another row or group, given by `minus`."""
        plain = replace(metric, minus=None, published={})
        other_line = next(each for each in self.lines if each.name == minus.get("row", line.name))
        other_group = next((each for each in self.groups if each.name == minus.get("group", group.name)), None)
        if other_group is None:  # left out by `columns`
            return NOTHING
        first, second = self.cell(line, group, plain), self.cell(other_line, other_group, plain)
        if first is second or not (isinstance(first, Cell) and isinstance(second, Cell)):
            return first if isinstance(first, str) else NOTHING
        return Measure(first.minus(second), margin=MARGIN, runs=first.runs.plus(second.runs))

    def _product(self, line: TableRow, group: ColumnGroup, metric: TableMetric, product: Mapping[str, str]) -> AnyCell:
        """The product of a score's means over categories, given by `product`; its interval leaves out one history at a time."""
        plain = replace(metric, product=None, published={})
        factors: list[Factor] = []
        for category, taken in product.items():
            cell = self.cell(line, group, replace(plain, of=category))
            if not isinstance(cell, Cell):
                return cell
            factors.append(Factor(cell, taken == "complement"))
        ours, runs = product_of_means(factors)
        return Measure(ours, margin=MARGIN, runs=runs)

    def _best(self, line: TableRow, group: ColumnGroup, metric: TableMetric) -> AnyCell:
        """For each history, the scores of the candidate chosen for it."""
        if not metric.score:
            return NOTHING
        choice = self._choice(line, group)
        if isinstance(choice, str):
            return choice
        return composed(self._candidate_cells(line, group, metric), *choice, held_out=_held_out(line))

    def _candidate_cells(self, line: TableRow, group: ColumnGroup, metric: TableMetric) -> dict[str, Cell]:
        cells = {each.name: self.cell(each, group, metric) for each in candidates(line, self.lines)}
        return {name: cell for name, cell in cells.items() if isinstance(cell, Cell)}

    def _choice(self, line: TableRow, group: ColumnGroup) -> tuple[dict[str, str], dict[str, dict[str, str]]] | str:
        """The best candidate by history in the group's first metric (`choose`), or the reason why none can be chosen."""
        try:
            return choose(self._candidate_cells(line, group, group.metrics[0]), held_out=_held_out(line))
        except ValueError as error:
            return str(error)

    def choices(self) -> list[str]:
        """A caption line for each best row and column group: the chosen candidates, and the questions that decided."""
        lines = []
        for line in self.lines:
            for group in self.groups if "best_of" in line.option else ():
                if group.dataset is not None and belongs(line, group.option):
                    choice = self._choice(line, group)
                    names = choice if isinstance(choice, str) else "; ".join(dict.fromkeys(choice[0].values()))
                    warning = "" if _held_out(line) else " Chosen on the reported questions: biased upwards."
                    lines.append(f"{line.title} on {group.title}: {names}.{warning}")
        return lines

    def _measure(self, line: TableRow, group: ColumnGroup, metric: TableMetric) -> Estimate | None:
        """The value of a metric that is no score, from the data or from the first replicate's run folder."""
        assert group.dataset is not None
        kind, name, over, category = metric.kind, metric.name, metric.over, metric.category
        settings = line.option.get("measure", {})
        if kind == "data":
            return statistic(group.dataset.cases, name, group.unit, "" if category == ALL else category)
        folder = self.runs[line.name, group.name][0].folder
        if kind == "cost":
            return cost(folder, name, None if category == ALL else group.keys(category))
        if kind == "report":
            return report(folder, name, over=over, per=metric.per)
        if kind == "tree":
            return tree(folder, name, over=over, chains=settings.get("chains", True))
        if kind == "spread":
            return spread(folder, name, settings["level"])
        return coverage(folder, group.dataset.cases, name)

    def files(self, line: TableRow, group: ColumnGroup) -> list[dict[str, Path]]:
        """Score files by metric, one mapping per replicate.

        A row outside `only` is not scored: its mappings hold the existing score files.
        """
        key = (line.name, group.name)
        if key in self._files:
            return self._files[key]
        names = dict.fromkeys(metric.judge for metric in group.metrics if metric.judge)
        judges = {name: judging(self.cfg, self.models, name) for name in names}
        lexical = metrics(list(dict.fromkeys(metric.name for metric in group.metrics if metric.kind == "metric")))
        found: list[dict[str, Path]] = []
        for run in self.runs.get(key, ()):
            known = (run, lexical, judges, self.cfg.k_evidence)
            if self.only is None or line.name in self.only:
                files = score(*known, len(group.questions), self.models.traffic, self.models.ahead)
            else:
                files = {name: path for name, path in score_paths(*known).items() if path.is_file()}
            if line.answers is not None and files:  # the authors' own grades are shown next to ours
                folder = next(iter(files.values())).parent
                files |= {metric_of(path): path for path in sorted(folder.glob(f"{THEIRS}*.jsonl"))}
            found.append(files)
        self._files[key] = found
        return found

    def _why_not(self, line: TableRow, group: ColumnGroup, metric: TableMetric) -> str:
        """The reason why a published number is not comparable with ours; for published answers, that we score by another judge or have
        other data."""
        if group.dataset is None:
            return ""
        if line.answers is not None and metric.judge:
            return "stand-in" if "judge" in self.models.stand_ins else "other judge"
        if line.answers is not None or metric.kind == "data":
            return other_data(self.cfg, group.dataset)
        if self.guessing == "exclude" and self.guessable(group):
            return "questions left out"
        reason = why_not_comparable(self.cfg, self.models, self.backbone, group.dataset)
        return reason or ("other model" if metric.judge and metric.judge != metric.name else "")


def prompts_behind(experiment: Experiment[Any], line: TableRow, group: ColumnGroup, metric: TableMetric) -> set[str]:
    """Names of the prompts behind a cell: the memory's, the reader's (unless the memory's structure is measured), and the judge's."""
    rows = {each.name for each in (candidates(line, experiment.lines) if "best_of" in line.option else [line])}
    runs = (run for row in rows for run in experiment.runs.get((row, group.name), ()))
    names = {name for run in runs for name in run.record.prompts}
    if metric.kind in STRUCTURE:
        names.discard(group.reader.prompt)
    return names | judge_prompts(metric.judge) if metric.judge else names


def all_prompts(experiment: Experiment[Any]) -> set[str]:
    """Names of the prompts behind the cells of a table, or behind the points of a figure."""
    cells = [
        (line, group, metric) for line in experiment.lines for group in experiment.groups for metric in group.metrics
    ]
    return {name for line, group, metric in cells for name in prompts_behind(experiment, line, group, metric)}


def _held_out(line: TableRow) -> bool:
    """Whether a best row is chosen for each history on the other histories."""
    return bool(line.option["chosen_on"] == "others")


def why_not_comparable(cfg: Settings, models: Models, backbone: Mapping[str, Any], dataset: Data) -> str:
    """The reason why our numbers are not comparable with the paper's; empty if they are."""
    if models.stand_ins:
        return "stand-in"
    if other_models(cfg, backbone):
        return "other model"
    return other_data(cfg, dataset)


def other_data(cfg: Settings, dataset: Data) -> str:
    """The reason why the data are not the paper's; empty if they are."""
    if dataset.source.status != "official":
        return f"{dataset.source.status} data"
    if dataset.cut:
        return "subset"
    if cfg.data.transform != "none":
        return "other data"
    return ""
