"""Captions of tables and figures: the models, data, units and readers behind the numbers, and the evidence that reached no memory.

A turn that is in no unit reaches no memory. Unit rules differ between the rows of a column group if memories have their own rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from data_loaders.raw import LazyCases
from data_loaders.units import lost_evidence, make_units
from eval.analysis.costs import phases
from eval.files.imported import described
from eval.files.run_folder import COMPLETE, RunFolder
from eval.files.store import read_record
from eval.report.counted import counted
from eval.report.tables import CELLS, NO_INTERVAL
from eval.running.reader import Reader
from eval.running.run import Run
from memsys.prompts import UNKNOWN, Prompts
from memsys.tokens import count_tokens
from scripts.assembly.datasets import Data
from scripts.assembly.models import Models
from scripts.assembly.runs import unit_of
from scripts.settings.schema import Settings
from scripts.setup.options import load_option, options
from scripts.tables.layout import (
    ColumnGroup,
    TableRow,
    belongs,
    column_group,
    group_name,
    read_columns,
    read_lines_of,
)


def caption(
    cfg: Settings,
    models: Models,
    used: Sequence[tuple[Data, Reader, Mapping[str, Any]]],
    stand_ins: Sequence[str] | None = None,
    imported: bool = False,
) -> tuple[str, ...]:
    """Lines below a table's title: models by role, each data set with its status and unit, explanation of a cell.

    Args:
        used: each data set with its reader and its unit rule.
        stand_ins: roles that offline engines fill, named first; None takes all of `models`.
        imported: whether some rows are imported answers, whose scores stand-ins have no part in unless they judged.
    """
    lines = []
    if named := models.stand_ins if stand_ins is None else stand_ins:
        numbers = "Numbers of what they answered or judged" if imported else "These numbers"
        lines.append(
            f"STAND-IN: {', '.join(named)} filled by offline engines without a model. "
            f"{numbers} test the machinery; they say nothing about models and are never compared with published ones."
        )
    probe = "" if models.probe.name == models.reader.name else f", probe {models.probe.name}"
    names = f"memory {models.memory.name}, reader {models.reader.name}, judge {models.judge.name}{probe}"
    lines.append(f"Models: {names}; embedder {models.embedder.name}.")
    if cfg.build.rebuild_every > 1:
        lines.append(
            f"Offline memories are rebuilt at every {cfg.build.rebuild_every}th question point only; they show units written since "
            "the last build as raw text. The costs below follow this schedule."
        )
    transform = "" if cfg.data.transform == "none" else f", transform {cfg.data.transform}"
    for dataset, reader, unit in used:
        gone = lost_by_row(dataset.cases, {"": unit})[""]
        rule = ", ".join(f"{name} {value}" if name != "rule" else str(value) for name, value in unit.items())
        lines.append(
            f"{_data(dataset, gone.questions)}{', ' + dataset.fewer if dataset.fewer else ''}{transform}; default unit {rule} drops "
            f"{gone.dropped} of {counted(gone.turns, 'turn')} ({gone.losing} evidence); {gone.notes} loader notes; reader {reader.name}."
        )
    built, published = f"{cfg.build.replicates}x", cfg.build.published or cfg.build.replicates
    if published != cfg.build.replicates:
        built += f", rows with a published number {published}x"
    lines.append(
        f"{CELLS}{NO_INTERVAL} "
        f"Judged {cfg.judge.repeats}x, built {built} (± standard deviation between builds, of one build between its judgements)."
        f"{' Costs are those of the first build.' if max(cfg.build.replicates, published) > 1 else ''}"
    )
    return tuple(lines)


def prompts_line(prompts: Prompts, names: Iterable[str]) -> str:
    """The caption sentence about prompts: whether they are in our own words, and which published texts are unknown; empty without prompts.

    Args:
        names: names of all prompts behind the table, as in the records of its runs.
    """
    used = [prompts[name] for name in sorted(set(names))]
    ours = [prompt for prompt in used if prompt.text != "theirs"]
    strangers = prompts.strangers()
    said = f" Of prompts_dir, {', '.join(strangers)} replaced no shipped prompt." if strangers else ""
    if not ours:
        return f"Prompts: {', '.join(prompt.name for prompt in used)}, the sources' own texts.{said}" if used else ""
    unknown: dict[str, list[str]] = {}
    for prompt in ours:
        if prompt.text in UNKNOWN:
            folder, _, step = prompt.name.partition("/")
            same = any(name.startswith(f"{folder}/") for name in unknown.setdefault(prompt.source, []))
            unknown[prompt.source].append(step if same else prompt.name)  # lattice/describe, keywords, leaf
    named = "; ".join(f"{', '.join(each)} ({source})" for source, each in unknown.items())
    kept = ", ".join(prompt.name for prompt in used if prompt.text == "theirs")
    return (
        f"Prompts are ours, written from described duties and not the sources' texts"
        f"{f', but {kept}' if kept else ''}{f'; unknown is the source text of {named}' if named else ''}.{said}"
    )


def waivers(runs: Iterable[Run]) -> tuple[str, ...]:
    """Lines below a table: which memories are untested, which tests programs outside this process cannot pass, and why, which products
    ran without a sandbox, which memories failed after their last answer, and whether replies came in batches."""
    made = list(runs)
    records = {run.name: run.record for run in made}
    lines = [f"UNTESTED: {name}: {record.untested}." for name, record in records.items() if record.untested]
    for name, record in records.items():
        reasons = "; ".join(f"{promise} ({reason})" for promise, reason in record.waived.items())
        lines += [f"Waived for {name}: {reasons}."] if reasons else []
    reports = [
        (run, [read_record(path).get("memory") or {} for path in RunFolder(run.folder).written(COMPLETE)])
        for run in made
    ]
    bare = dict.fromkeys(
        run.name
        for run, own in reports
        if run.record.waived and any((report.get("abilities") or {}).get("sandbox") == "none" for report in own)
    )
    if bare:
        rights = "they had the user's rights, could read the user's files and reach the network; only Python's own connections were refused"
        lines.append(f"NO SANDBOX: {', '.join(bare)}: {rights}.")
    for run, own in reports:
        for step in ("report", "nodes", "close"):
            if errors := [str(report[f"{step} failed"]) for report in own if f"{step} failed" in report]:
                where = f"{step}() of {run.name} in {len(errors)} of {counted(len(own), 'history')}"
                place = "errors.log of the run has the place"
                lines.append(f"FAILED after the answers, which stand: {where}: {errors[0]}; {place}.")
    if any(any(map(any, cost.batched.values())) for run in made for cost in phases(run.folder)):
        lines.append(
            "Replies that came through the batch API: their prices are discounted, and their seconds were not measured (0)."
        )
    return tuple(lines)


def unfitted(lines: Iterable[TableRow], models: Models) -> tuple[str, ...]:
    """A caption line for the rows whose threshold was fitted to another embedder than the one in use; empty without such rows."""
    fitted_to = {line.title: line.memory["fitted_to"] for line in lines if line.memory and "fitted_to" in line.memory}
    wrong = {title: embedder for title, embedder in fitted_to.items() if embedder != models.embedder.name}
    if not wrong:
        return ()
    named = ", ".join([*wrong][:3]) + (f" and {len(wrong) - 3} more rows" if len(wrong) > 3 else "")
    embedders = ", ".join(sorted(set(wrong.values())))
    return (
        f"NOT CALIBRATED: the threshold of {named} was fitted to the embedder {embedders}, not to {models.embedder.name}; these trees "
        "may be flat or too deep. `make calibrate` fits it.",
    )


def imported_caption(
    cfg: Settings, models: Models, dataset: Data, facts: Sequence[Mapping[str, Any]], judged: bool
) -> tuple[str, ...]:
    """Lines below the title of a table of imported answers: their source, the data, and the judge if one was asked.

    Args:
        facts: `imported` of each run's record.
    """
    lines = [f"Imported: {fact['title']}: {described(fact)}." for fact in facts]
    if judged and "judge" in models.stand_ins:
        lines.append(
            "STAND-IN: judge filled by an offline engine without a model. Its column says nothing about the answers."
        )
    elif judged:
        lines.append(f"Judge: {models.judge.name}, {cfg.judge.repeats}x.")
    questions = sum(len(case.questions) for case in dataset.cases)
    lines.append(f"{_data(dataset, questions)}. {CELLS}; a question that the file does not answer is not reached.")
    return tuple(lines)


def usage_note(
    reasons: Collection[str],
    *,
    published: bool = True,
    stand_ins: Sequence[str] = (),
    imported: bool = False,
    unmeasured: Sequence[str] = (),
) -> str:
    """The use of a table, in one line, with a second sentence about judges without a card.

    Args:
        reasons: reasons why its numbers are not comparable with the published ones (`scripts.tables.grid.why_not_comparable`); empty if
            they are.
        imported: whether some rows, but not all, are imported answers.
        unmeasured: judging models without a card (`scripts.assembly.steps.unmeasured`).
    """
    not_theirs = ", not with the paper" if published else ""
    if "stand-in" in reasons and imported:
        return "comparing imported rows; what stand-ins answered or judged is no result."
    if "stand-in" in reasons:
        return f"only testing the machinery; stand-ins fill {', '.join(stand_ins)}."
    judges = (
        f" How often {', '.join(unmeasured)} errs as judge is not known; judge-card measures it." if unmeasured else ""
    )
    if "sample data" in reasons:
        return f"trying things out; the data is a shipped sample, not the benchmark.{judges}"
    if reasons:
        return f"comparing its rows with each other{not_theirs} ({', '.join(sorted(reasons))}).{judges}"
    return f"comparing its rows with each other{' and with the paper' if published else ''}.{judges}"


def models_line(models: Models) -> str:
    """Models by role in one line, offline engines marked STAND-IN; for figures and their CSV."""
    names = {"memory": models.memory.name, "reader": models.reader.name, "judge": models.judge.name}
    names["embedder"] = models.embedder.name
    real = ", ".join(f"{role} {name}" for role, name in names.items() if role not in models.stand_ins)
    if not models.stand_ins:
        return f"Models: {real}"
    rest = f"; {real}" if real else ""
    return f"STAND-IN: {', '.join(models.stand_ins)} filled by offline engines without a model{rest}"


def _data(dataset: Data, questions: int) -> str:
    """A data set with its status, file, remark and size."""
    remark = f"{note}; " if (note := dataset.note()) else ""
    source = f"{dataset.source.status} data (sha256 {dataset.source.sha256[:12]})"
    return (
        f"{dataset.title}: {source}, {remark}{counted(len(dataset.cases), 'history')}, {counted(questions, 'question')}"
    )


Key = tuple[str, str]
"""Ids of a case and of its question."""
UNPAIRED = {
    "ab_pair": "turns that have no partner directly before or after them",
    "floor_pair": "the last turn of sessions with an odd number",
    "page": "turns of the user without a reply, and all replies but the last",
}
"""The turns that a unit rule leaves out."""


@dataclass(slots=True)
class Lost:
    """The turns of a data set that a unit rule leaves out, and the questions that thereby lose evidence."""

    dropped: int = 0
    """Number of turns that are in no unit."""
    turns: int = 0
    questions: int = 0
    notes: int = 0
    """Numbers of all turns, questions and notes of the loader."""
    some: frozenset[Key] = frozenset()
    """Questions that lose at least one turn of their evidence."""
    wholly: frozenset[Key] = frozenset()
    """Questions that lose all of their evidence."""

    @property
    def losing(self) -> str:
        """`1 question loses`, `2 questions lose`."""
        return f"{counted(len(self.some), 'question', ',')} {'loses' if len(self.some) == 1 else 'lose'}"


def row_units(
    option: Mapping[str, Any], lines: Sequence[TableRow], config: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """The unit rules of a column group's rows with a memory, by the row's title; `config` holds the values of a file of `conf/dataset`."""
    return {
        line.title: line.option.get("unit") or option.get("unit") or unit_of(line.memory, config)
        for line in lines
        if line.memory is not None and belongs(line, option)
    }


_KNOWN: WeakKeyDictionary[LazyCases, dict[tuple[tuple[str, Any], ...], Lost]] = WeakKeyDictionary()
"""What each unit rule leaves out of a data set in use: lines of one caption, and the tables of an audit, ask for the same rules."""


def lost_by_row(cases: LazyCases, units: Mapping[str, Mapping[str, Any]]) -> dict[str, Lost]:
    """Lost turns of each row, by title; every rule is evaluated once, and only one case is held at a time."""
    rules = {row: tuple(sorted(unit.items())) for row, unit in units.items()}
    known = _KNOWN.setdefault(cases, {})
    wanted = {rule: Lost() for rule in rules.values() if rule not in known}
    for case in cases if wanted else ():
        evidence = {question.id: gold.evidence for question, gold in case.questions}
        for rule, lost in wanted.items():
            out = make_units(case.sessions, count=count_tokens, **dict(rule)).dropped
            missing = lost_evidence(case, out)
            lost.dropped += len(out)
            lost.turns += len(case.turns)
            lost.questions += len(case.questions)
            lost.notes += len(case.notes)
            lost.some |= {(case.id, question) for question in missing}
            lost.wholly |= {(case.id, each) for each, gone in missing.items() if len(gone) == len(evidence[each])}
    known |= wanted
    return {row: known[rule] for row, rule in rules.items()}


def evidence_lines(groups: Sequence[ColumnGroup], lines: Sequence[TableRow]) -> list[str]:
    """Caption lines of a table whose rows lose evidence to their unit rules, one for each column group."""
    said = (
        evidence_line(group.title, group.dataset.cases, row_units(group.option, lines, group.dataset.config))
        for group in groups
        if group.dataset is not None
    )
    return list(filter(None, said))


def evidence_line(title: str, cases: LazyCases, units: Mapping[str, Mapping[str, Any]]) -> str:
    """The caption line of a column group: rows that lose evidence, with numbers of questions; empty if no row does."""
    losses = lost_by_row(cases, units)
    losing: dict[tuple[str, str], list[str]] = {}
    for row, each in losses.items():
        if each.some:
            gone = f"{each.dropped:,} of {counted(each.turns, 'turn', ',')}"
            text = f"{gone}; {each.losing} evidence, {len(each.wholly):,} of them all of it"
            losing.setdefault((str(units[row]["rule"]), text), []).append(row)
    if not losing:
        return ""
    # Whether rows lose the evidence of different questions.
    differ = len({(each.some, each.wholly) for each in losses.values()}) > 1
    parts = [
        f"{', '.join(rows) if differ else 'every row'}: the unit rule {rule} leaves out {UNPAIRED[rule]}: {text}"
        for (rule, text), rows in losing.items()
    ]
    complete = any(not each.some for each in losses.values())
    warning = "ROWS DO NOT SEE THE SAME TURNS. " if differ else ""
    return f"Evidence, {title}: {warning}{'. '.join(parts)}.{' Every other row has all evidence.' if complete else ''}"


def evidence_of_tables(cfg: Settings) -> Iterator[tuple[str, str, str]]:
    """For every column group of every file of `conf/table`: both names, and the caption line about lost evidence, empty for none.

    No model is called and no memory is built. A column group with a missing data set says so.

    Args:
        cfg: a configuration of `memsys-bench reproduce`; only `data` is read.

    Raises:
        RunError: `read_columns` refuses a table.
    """
    loaded: dict[tuple[str, str], ColumnGroup] = {}
    for name in options("table"):
        table = load_option("table", name)
        by_backbone = (read_lines_of(table, None if each == "default" else each) for each in table["backbones"])
        lines = list({line.name: line for lines in by_backbone for line in lines}.values())
        metrics = read_columns(name, table["columns"], lines)
        for option in table["columns"]:
            key = (option["dataset"], option.get("transform", "none"))
            if key not in loaded:
                loaded[key] = column_group(cfg, option, metrics[group_name(option)])
            group = loaded[key]
            if group.dataset is None:
                yield name, group_name(option), group.missing
            else:
                units = row_units(option, lines, group.dataset.config)
                yield name, group_name(option), evidence_line(group.title, group.dataset.cases, units)
