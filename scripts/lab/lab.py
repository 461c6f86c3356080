"""Steps of a command with one data set, one memory at a time: load, ask, score, and put into a table (`scripts.door` documents it)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from eval.conformance.checks import FAULTS
from eval.files.imported import described
from eval.files.provenance import source_digest
from eval.files.run_folder import judge_metric, judged_by, judges_of
from eval.files.store import RunError
from eval.judging.score import Judging
from eval.report.cell import ALL, Asked, Cell, Column, outcomes
from eval.report.rendering import intervals, p_text
from eval.report.tables import Row, Table, only_about
from eval.running.reader import Reader
from eval.running.run import Run
from eval.statistics.stats import ENOUGH_CLUSTERS, Difference
from memsys.interface import MemorySystem, positive
from memsys.llm import stopping
from scripts.assembly.datasets import Data, data
from scripts.assembly.models import build_models, with_local_models
from scripts.assembly.plan import Plan
from scripts.assembly.readiness import agreed, ask_without_plan, check_endpoint, check_prices, confirmed, prepared
from scripts.assembly.runs import memory_run, recipe_of
from scripts.assembly.steps import (
    answer_all,
    cell_of,
    check_no_replay,
    correction,
    finished,
    judge_prompts,
    judging,
    known_metrics,
    metric_title,
    metrics,
    score,
    unmeasured,
)
from scripts.settings.schema import Single
from scripts.setup.launch import composed
from scripts.setup.options import load_option, option_file
from scripts.setup.progress import progress_line
from scripts.tables.captions import (
    caption,
    evidence_line,
    imported_caption,
    models_line,
    prompts_line,
    usage_note,
    waivers,
)
from scripts.tables.grid import examine_and_keep, other_data

if TYPE_CHECKING:
    import pandas

    from scripts.answers.formats import Origin


AnyMemory = str | Path | type[MemorySystem] | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Answers:
    """A memory's answers to the questions of a data set."""

    title: str
    dataset: Data
    questions: tuple[Asked, ...]
    runs: tuple[Run, ...]
    """One run per replicate (`build.replicates`)."""
    capped: str = ""
    """The reason why not every question was asked (the spending cap); empty if all were."""

    def __repr__(self) -> str:  # the fields hold the data set
        return f"Answers({self.title!r}, {self.dataset.name!r}, {len(self.questions)} questions, {str(self.folder)!r})"

    @property
    def folder(self) -> Path:
        """The folder of the first replicate."""
        return self.runs[0].folder


@dataclass(frozen=True, slots=True)
class Scored:
    answers: Answers
    cells: Mapping[str, Cell]
    """Cells by metric, judges as `judge_<name>`: `cells["locomo_f1"].estimate().mean`."""
    files: tuple[Mapping[str, Path], ...]
    """Score files by metric, one mapping per replicate; also `evidence@<k>`."""

    def __repr__(self) -> str:
        means = {
            name: round(made.mean, 3) for name, cell in self.cells.items() if (made := cell.estimate()) is not None
        }
        return f"Scored({self.answers!r}, {means})"

    def row(self, name: str) -> Row:
        """The row of a table under a name that no other row has."""
        one, dataset = self.answers, self.answers.dataset.name
        evidence = next(path for key, path in self.files[0].items() if key.startswith("evidence@"))
        answered = any(run.record.stand_ins for run in one.runs)
        return Row(
            name,
            one.title,
            tuple(self.cells.values()),
            {dataset: one.folder},
            {dataset: evidence},
            by_stand_ins=answered,
        )


class Lab:
    """Models, cache and results folder, built once; experiments are made with its methods.

    Args:
        settings: as on the command line of `memsys-bench run`: `profile=smoke`, `data.size=20`, `endpoint.base_url=…`.
        cfg: a configuration that is composed and checked already, instead of `settings`.
        probe: check at once that every endpoint answers; False leaves this to `agreed`, which checks only if there is work left.

    Raises:
        RunError: a setting is unknown or out of range, a model has no price under a spending cap, or an endpoint does not answer; with
            `probe` also if a model has a price and neither `max_usd` nor `yes` is set, and the question is declined or there is no
            terminal.
    """

    def __init__(self, *settings: str, cfg: Single | None = None, probe: bool = True) -> None:
        if cfg is None:
            stopping.forget()  # clears the stop of an interrupted notebook cell
            cfg = composed("config", settings)
        self.cfg = with_local_models(cfg)
        self.models = build_models(self.cfg)
        self._probed = self._agreed = False
        check_prices(self.cfg, self.models)
        if probe:
            self.ask_to_spend()
            self._check_endpoints()

    def _check_endpoints(self, dataset: Data | None = None) -> None:
        if not self._probed:
            self.models = prepared(self.cfg, self.models, lambda: dataset and dataset.questions)
            self._probed = True

    def ask_to_spend(self) -> None:
        """Ask, once, before the first call of a model that costs money (`ask_without_plan`).

        Raises:
            RunError: the answer is no, or there is no terminal.
        """
        if not self._agreed:
            ask_without_plan(self.cfg, self.models)
            self._agreed = bool(self.models.paid_names)  # a judge that is built later may be the first with a price

    def load(self, name: str | None = None, *, transform: str | None = None) -> Data:
        """Load a data set by the name of its file in conf/dataset; None takes the setting `dataset=`.

        Args:
            transform: replaces `data.transform`.

        Raises:
            DataError: its files are missing; the message says how to get them.
            RunError: there is no such data set, or no such metric as it names.
        """
        wanted = self.cfg.data if transform is None else self.cfg.data.changed(transform=transform)
        loaded = data(wanted, self.cfg.dataset if name is None else load_option("dataset", name))
        known_metrics(loaded.config["metrics"])
        return loaded

    def memory(self, what: AnyMemory = None, **settings: Any) -> dict[str, Any]:
        """A memory's configuration, with `settings` overriding those of its file.

        Args:
            what: the name of a file in conf/memory, a path to the user's YAML file (`….yaml`), a class, or a result of this method; None
                takes `memory=`.

        Raises:
            RunError: there is no such file, or the class is defined in a notebook's cell, so that its source cannot be recorded.
        """
        what = self.cfg.memory if what is None else what
        if isinstance(what, Mapping):
            option = {**what}
        elif isinstance(what, type):
            option = _of_class(what)
        elif not isinstance(what, str | Path):
            raise RunError(f"a memory is the name or path of a YAML file, or a class; found {what!r}")
        elif Path(what).suffix != ".yaml":
            option = load_option("memory", str(what))
        elif Path(what).is_file():
            option = option_file("memory", Path(what))
        else:
            raise RunError(f"no file {what}")
        if not settings:
            return option
        title = f"{option['title']} ({', '.join(f'{name}={value}' for name, value in settings.items())})"
        return {**option, "title": title, "build": {**option["build"], **settings}}

    def agreed(self, memories: Sequence[Mapping[str, Any]], dataset: Data, judges: Sequence[str]) -> bool:
        """Print the estimated costs of these memories and ask whether to spend them; True at once if no model has a price.

        Args:
            memories: as `memory` returns them.
            judges: files of conf/judge.

        Raises:
            RunError: an endpoint does not answer; only needed endpoints are checked.
        """
        if not self._probed:
            runs = [run for memory in memories for run in self._runs(memory, dataset)]
            if finished(self.cfg, self.models, runs, {dataset.name: judges}):
                self._agreed = True
                return True
            self._check_endpoints(dataset)
        runs = [run for memory in memories for run in self._runs(memory, dataset)]
        self._agreed = agreed(self.cfg, self.models, runs, {dataset.name: list(judges)})[0]
        return self._agreed

    def confirm(self, planned: Plan | None) -> bool:
        """Print a plan made elsewhere, ask whether to spend it, and check the endpoints; no question where it costs nothing."""
        self._agreed = planned is None or planned.usd == 0.0 or confirmed(self.cfg, planned)
        if self._agreed:
            self._check_endpoints()
        return self._agreed

    def run(self, memory: Mapping[str, Any], dataset: Data, replicate: int = 0) -> Run:
        """Describe the run of a memory, as `memory` returns it; nothing is built.

        Raises:
            RunError: a setting of the memory is refused, or the code of its class or of the loader has changed since it was imported.
        """
        from hydra.utils import get_object

        reading = Reader(**load_option("reader", self.cfg.protocol.reader or dataset.config["reader"]))
        unit = self.cfg.protocol.unit
        recipe = recipe_of(memory)
        made = memory_run(self.cfg, self.models, dataset, recipe, reading, unit=unit, replicate=replicate)
        _check_loaded([*recipe.classes, get_object(dataset.config["load"]["_target_"])])
        return made

    def _runs(self, memory: Mapping[str, Any], dataset: Data, builds: int | None = None) -> list[Run]:
        number = self.cfg.build.replicates if builds is None else positive("builds", builds)
        return [self.run(memory, dataset, replicate) for replicate in range(number)]

    def ask(
        self,
        memory: AnyMemory = None,
        dataset: Data | str | None = None,
        *,
        judges: Sequence[str] = (),
        builds: int | None = None,
        **settings: Any,
    ) -> Answers:
        """Build a memory on every history of a data set and answer the questions that have no answer yet.

        Args:
            memory, settings: as for `memory`.
            dataset: a result or an argument of `load`.
            judges: files of conf/judge; these judges grade each answer as soon as it is saved, and `score` takes their verdicts.
            builds: number of replicates, instead of `build.replicates`.

        Raises:
            RunError: a setting of the memory is refused.
        """
        self.ask_to_spend()
        own = dataset if isinstance(dataset, Data) else self.load(dataset)
        option = self.memory(memory, **settings)
        runs, questions = self._runs(option, own, builds), own.questions
        capped = answer_all(self.cfg, self.models, runs, len(questions) * len(runs), {own.name: _several(judges)})
        return Answers(option["title"], own, questions, tuple(runs), capped)

    def check_cap(self) -> None:
        """Check that the answers and scores so far are complete.

        Raises:
            RunError: the spending cap has refused a call; the message says how to go on.
        """
        if stop := self.models.purse.stop:
            raise RunError(stop)

    def judging(self, name: str) -> Judging:
        """Build a judge by its name, as `scripts.assembly.steps.judging`; asks first if it is the first model with a price."""
        grading = judging(self.cfg, self.models, name)
        self.ask_to_spend()
        return grading

    def judges(self, dataset: Data) -> list[str]:
        """The judges of a data set: `protocol.judges=`, else those of its file."""
        chosen = self.cfg.protocol.judges
        return list(dataset.config.get("judges", []) if chosen is None else chosen)

    def check_metric(self, name: str | None, dataset: Data) -> None:
        """Refuse a metric that the data set's scores do not have, before anything is built; None is the first of them.

        Raises:
            RunError: there is no such metric.
        """
        known = [*map(judge_metric, self.judges(dataset)), *dataset.config["metrics"]]
        if name is not None and name not in known:
            raise RunError(f"no metric {name!r}; there are: {', '.join(known)}")

    def imported(
        self, file: Path | str, origin: Origin, dataset: Data | str | None = None, format: str | None = None
    ) -> Answers:
        """Import published answers from a file (`scripts.answers`) as a run like any other; `score` adds our scores to their own grades.

        Args:
            origin: name of the run, and facts about the file.
            format: form of the file; None detects it.

        Raises:
            DataError, RunError: the file cannot be read, or does not belong to the data.
        """
        from scripts.answers.formats import import_run, read_answers

        own = dataset if isinstance(dataset, Data) else self.load(dataset)
        run = import_run(self.cfg, self.models, own, partial(read_answers, path=Path(file), wanted=format), origin)
        return Answers(origin.title or origin.name, own, own.questions, (run,))

    def score(
        self, answers: Answers, names: Sequence[str] | None = None, judges: Sequence[str] | None = None
    ) -> Scored:
        """Score answers; existing scores are read from their files.

        Args:
            names: metrics of conf/metrics.yaml; None takes the data set's.
            judges: files of conf/judge, `mem0@gpt-4o-mini` for another model; None takes `protocol.judges=`, else the data set's.

        Raises:
            RunError: an unknown metric or judge, or a metric whose code has changed since it was imported.
        """
        config, cfg = answers.dataset.config, self.cfg
        judges = self.judges(answers.dataset) if judges is None else _several(judges)
        chosen = metrics(config["metrics"] if names is None else _several(names))
        _check_loaded([function for metric in chosen for function in metric.functions])
        grading = {name: self.judging(name) for name in judges}
        count, traffic, ahead = len(answers.questions), self.models.traffic, self.models.ahead
        files = tuple(score(run, chosen, grading, cfg.k_evidence, count, traffic, ahead) for run in answers.runs)
        reached = outcomes((run.folder for run in answers.runs), answers.questions)
        cells = {}
        for name in [*map(judge_metric, judges), *(metric.name for metric in chosen)]:
            column = Column.of(config, metric_title(name), answers.questions)
            fix = None
            if cfg.judge.corrected and (judge := judged_by(name)) is not None:
                fix = correction(cfg, self.models, judge, answers.dataset)
            own = tuple(found[name] for found in files)
            cells[name] = cell_of(name)(column, reached, own, repeats=cfg.judge.repeats, correction=fix)
        return Scored(answers, cells, files)

    def table(self, first: Scored, *others: Scored, title: str | None = None, primary: str | None = None) -> Table:
        """Make a table with scored answers as its rows, with a caption; every other row is compared with the first.

        Args:
            primary: the metric whose differences are tested, a key of `cells`; None takes the first. The others are exploratory.

        Raises:
            RunError: the answers are not scored by the same metrics, or are not on the same data, or lack the primary metric.
        """
        if primary is not None and primary not in first.cells:
            raise RunError(f"no metric {primary!r}; there are: {', '.join(first.cells)}")
        for other in others:
            _check_alike(first, other)
            if first.cells.keys() != other.cells.keys():
                raise RunError("rows of a table need the same metrics; score them alike")
        every, one = (first, *others), first.answers
        runs = [run for scored in every for run in scored.answers.runs]
        names = [scored.answers.runs[0].name for scored in every]
        if len(set(names)) < len(names):  # two settings of one memory
            names = [scored.answers.folder.name for scored in every]
        rows = tuple(scored.row(name) for name, scored in zip(names, every, strict=True))
        capped = [scored.answers.capped for scored in every if scored.answers.capped]
        facts = [run.record.imported for scored in every if (run := scored.answers.runs[0]).record.imported]
        judges = judges_of(first.cells)
        used = {"judge"} if judges else set()
        used |= {role for run in runs for role in run.record.models}  # not every memory calls a model or embeds
        filled = [role for role in self.models.stand_ins if role.partition(" ")[0] in used]
        answers = {row.title: scored.answers for row, scored in zip(rows, every, strict=True)}
        prompts = {name for run in runs for name in run.record.prompts}
        prompts.update(prompt for judge in judges for prompt in judge_prompts(judge))
        said = [*self._said(answers, facts, filled, bool(judges)), prompts_line(self.models.prompts, prompts)]
        return Table(
            one.runs[0].name,
            title or f"{', '.join(row.title for row in rows)} on {one.dataset.title}",
            (*filter(None, said), *waivers(runs), *capped),
            tuple(cell.column for cell in first.cells.values()),
            rows,
            reference=rows[0].name if others else "",
            prices=self.models.prices,
            use=usage_note(
                {"stand-in"} if filled else {other_data(self.cfg, one.dataset)} - {""},
                published=False,
                stand_ins=filled,
                imported=0 < len(facts) < len(rows),
                unmeasured=unmeasured(self.cfg, self.models, [(name, one.dataset) for name in judges]),
            ),
            primary=frozenset([0 if primary is None else list(first.cells).index(primary)] if first.cells else []),
        )

    @staticmethod
    def frame(*scored: Scored) -> pandas.DataFrame:
        """Scored answers as a pandas frame, one row per memory and question, for further analysis.

        Columns: `memory` (its title), `dataset`, `case`, `question`, `category`, `cluster` (what intervals resample), `answerable`,
        `outcome` (of all replicates, joined by spaces; empty where the question was not reached), then each metric: the mean over
        replicates and repeats, NaN where there is no score. A failed answer has no score; it is not 0.
        """
        import pandas  # slow to import, and needed only for frames

        rows = [
            {
                "memory": one.answers.title,
                "dataset": one.answers.dataset.name,
                "case": question.case_id,
                "question": question.question_id,
                "category": question.category,
                "cluster": question.cluster,
                "answerable": question.answerable,
                "outcome": " ".join(sorted(reached.get(question.key, ()))),
                **{name: cell.scores.get(question.key, math.nan) for name, cell in one.cells.items()},
            }
            for one in scored
            for reached in [outcomes((run.folder for run in one.answers.runs), one.answers.questions)]
            for question in one.answers.questions
        ]
        return pandas.DataFrame(rows)

    def _said(
        self,
        answers: Mapping[str, Answers],
        facts: Sequence[Mapping[str, Any]],
        filled: Sequence[str],
        judged: bool,
    ) -> Sequence[str]:
        """Caption lines about models, data and evidence; `answers` by the title of their row."""
        dataset = next(iter(answers.values())).dataset
        if len(facts) == len(answers):
            return imported_caption(self.cfg, self.models, dataset, facts, judged)
        ours = {title: each.runs[0] for title, each in answers.items() if not each.runs[0].record.imported}
        units = {title: dict(run.unit) for title, run in ours.items()}
        first = next(iter(ours.values()))
        return [
            *caption(self.cfg, self.models, [(dataset, first.reader, first.unit)], filled, imported=bool(facts)),
            evidence_line(dataset.title, dataset.cases, units),
            *(f"Imported: {fact['title']}: {described(fact)}." for fact in facts),
        ]


def _of_class(target: type[MemorySystem]) -> dict[str, Any]:
    name = target.__name__
    if target.__module__ == "__main__":
        raise RunError(
            f"{name} stands in a notebook's cell, and a run's identity needs its source: "
            f"begin the cell with `%%writefile my_memory.py`, then `from my_memory import {name}`"
        )
    build = {"_target_": f"{target.__module__}.{target.__qualname__}", "_partial_": True}
    return {"name": name.lower(), "title": name, "build": build}


_IMPORTED: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""The code of each memory's class, loader and metric when a Lab of this process first used it."""


def _check_loaded(used: Sequence[Any]) -> None:
    """Refuse an edited file whose old code is still loaded: the numbers of the old code would be saved as those of the new."""
    for each in used:
        code = source_digest([each.__module__])
        if _IMPORTED.setdefault(each, code) != code:
            raise RunError(
                f"the code of {each.__module__} has changed since it was imported: restart the kernel, or call importlib.reload on the "
                f"changed modules and import {each.__name__} again"
            )


def _several(names: Sequence[str]) -> Sequence[str]:
    """The names; a single name is a list of one."""
    return [names] if isinstance(names, str) else names


def compare(first: Scored, second: Scored, metric: str, category: str = ALL) -> Difference:
    """The paired difference, first minus second, over the questions that both have a score for.

    Args:
        metric: a key of both `cells`.
        category: category of the questions: `answerable`, or a category of the data set.

    Raises:
        RunError: the two are on different data, lack the metric, or share no scored question.
    """
    _check_alike(first, second)
    for scored in (first, second):
        if metric not in scored.cells:
            raise RunError(f"no {metric} for {scored.answers.title}; there are: {', '.join(scored.cells)}")
    gap = first.cells[metric].minus(second.cells[metric], category)
    if gap is None:
        raise RunError(f"no question of {category} is scored for both")
    return gap


def in_words(gap: Difference) -> str:
    """A paired difference in one line: mean, interval {by case}, then by question, p by case, number of pairs.

    For fewer than five histories p comes from a permutation over questions, and the line says that it is about these histories alone.
    """
    few = gap.clusters < ENOUGH_CLUSTERS
    p = f"p {p_text(gap.p)} {only_about(gap.clusters)}" if few else f"p {p_text(gap.p_by_case)}"
    return f"{gap.mean:+.3f} {intervals(gap)}, {p}, n {gap.n}"


def _check_alike(first: Scored, second: Scored) -> None:
    ours, theirs = first.answers.dataset, second.answers.dataset
    if (ours.name, ours.settings) != (theirs.name, theirs.settings):
        raise RunError(f"answers to different data cannot be compared: {ours.title} and {theirs.title}, or other cuts")


def examined(lab: Lab, dataset: Data, memory: Mapping[str, Any]) -> bool:
    """Write and read the canaries, print the results, and return whether the memory is accepted.

    Args:
        dataset: the memory is built with its reader and unit rule.
        memory: as `Lab.memory` returns it.

    Raises:
        RunError: the memory is built from the answer key, or a replay would have to call a service.
    """
    if memory.get("control"):
        raise RunError(f"{memory['name']} is made of the answer key; it has nothing to conform to")
    recipe = recipe_of(memory)
    run = memory_run(lab.cfg, lab.models, dataset, recipe, Reader(**load_option("reader", dataset.config["reader"])))
    check_no_replay(lab.cfg, run, "conformance")
    check_endpoint(lab.cfg, lab.models)
    started = time.perf_counter()
    with progress_line("conformance", 1, traffic=lab.models.traffic) as line:
        verdict = examine_and_keep(run, recipe.waived)
        line.step()
    seconds = time.perf_counter() - started
    print(f"Conformance of {recipe.name} ({memory['title']})")
    for fault, meaning in FAULTS.items():
        seen = verdict.faults.get(fault)
        if seen is not None and fault in recipe.waived:
            print(f"  waived       {fault}: {seen}. {recipe.waived[fault]}")
        elif seen is not None:
            print(f"  FAULT        {fault}: {meaning}; {seen}")
        elif fault in verdict.unchecked:
            print(f"  not checked  {fault}: {verdict.unchecked[fault]}")
        else:
            print(f"  passed       {fault}")
    refused = verdict.unwaived(recipe.waived)
    print(f"refused: {', '.join(refused)}" if refused else "accepted")
    print(f"{seconds:.1f} s. {models_line(lab.models)}.")
    return not refused
