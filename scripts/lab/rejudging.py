"""Judge the answers of published claims again, with judges of ours, and compare every grader (`claims NAME --judge mem0`).

The answers become a run folder, as with `import_answers`, so verdicts are saved and cached, failed calls are counted and made again the
next time, and `inspect`, `runs` and `judge_card --run` read it. The graders of each claim are saved for its page, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from data_loaders.raw import as_lazy
from data_loaders.schema import Case, DataError, Gold, Question
from data_loaders.source import Source
from eval.files.run_folder import RunFolder, judged_by, metric_of
from eval.files.store import RunError, read_record
from eval.judging.score_files import mean_values, read_scores
from eval.report.counted import counted
from eval.report.rendering import grid
from eval.running.run import Run
from memsys.inert import visible
from memsys.llm.meter import Metered
from memsys.llm.offline.extractive import ExtractiveLLM
from scripts.answers.audit import COLUMNS, STAND_IN, STORED, Grader, Judged, Key, compared, keep
from scripts.answers.declared import Parsed, digest, forms
from scripts.answers.formats import Origin, Reading, best_reading, import_run, write_run
from scripts.answers.manifest import FOLDER, Claim, contents_of, files_of
from scripts.answers.matching import LONGMEMEVAL, TIERS, Matched, own_questions
from scripts.assembly.datasets import Data, data
from scripts.assembly.models import STAND_IN as STAND_INS
from scripts.assembly.plan import Plan, Usage, duration, unjudged
from scripts.assembly.steps import judging, refuse_unfit
from scripts.lab.lab import Answers, Lab
from scripts.setup.options import load_option

DATASETS = {
    "LoCoMo": "locomo",
    "LongMemEval": "longmemeval_oracle",
    **{f"BEAM {tier}": f"beam_{tier.lower()}" for tier in TIERS},
}
"""Files of conf/dataset with the questions of a claim's data set."""
QUESTIONS_ALONE = {
    "file": LONGMEMEVAL[1],
    "load": {"_target_": "data_loaders.longmemeval.load_questions", "_partial_": True},
}
"""LongMemEval's questions without histories, used if the oracle file is missing."""


def rejudge(claims: Sequence[Claim], judges: Sequence[str], lab: Lab, root: Path) -> tuple[str, int]:
    """Judge claims; return a Markdown page and 0, 1 if answers lack a verdict or claims lack files, or 3 if the plan is declined.

    Args:
        judges: files of conf/judge, or `file@model`.
        root: folder of the raw files.
    """
    answers: list[tuple[Claim, Answers]] = []
    missing = []
    for claim in claims:
        try:
            each = imported(claim, lab, root)
            refuse_unfit(each.runs[0], [judging(lab.cfg, lab.models, name) for name in judges])
            answers.append((claim, each))
        except (DataError, RunError) as error:
            missing.append(f"- {visible(claim.name)}: {visible(str(error))}")
    if not answers:
        raise RunError(f"no claim can be judged; {missing[0][2:]}" if missing else "no claim can be judged")
    priced = not lab.cfg.replay and lab.models.paid_names
    if not lab.confirm(judging_plan(lab, [each.runs[0] for _, each in answers], judges) if priced else None):
        return "", 3
    parts = ["# Published answers, judged again", ""]
    if "judge" in lab.models.stand_ins:
        parts += ["STAND-IN: an engine without a model is the judge; its verdicts say nothing about the answers.", ""]
    failed = 0
    for claim, each in answers:
        lab.score(each, [], judges)
        graders = graders_of(each.folder)
        failed += sum(grader.failed for grader in graders if grader.name != STORED)
        if not any(grader.values or grader.failed for grader in graders if grader.name != STORED):
            missing.append(f"- {visible(claim.name)}: none of its answers was judged")
        keep(lab.models.results, claim, Judged(tuple(graders), each.runs[0].record.imported["sha256"]))
        parts += [*shown(claim, graders, {question.key: question.cluster for question in each.questions}), ""]
        if unjoined := len(each.runs[0].record.imported["mismatches"]):
            parts += [
                f"- Left out: {counted(unjoined, 'answer')} without a question or a gold answer; run.json lists them",
                "",
            ]
    parts += ["## Not judged", "", *missing] if missing else []
    return "\n".join(parts), 1 if missing or failed else 0


def imported(claim: Claim, lab: Lab, root: Path) -> Answers:
    """Import a claim's answers as a run folder; if the questions of its data set are not available, with those of its own files.

    Raises:
        DataError: its files are missing or damaged.
        RunError: no answer has a question with a gold answer.
    """
    files = files_of(claim, root)
    origin = Origin(claim.name, claim.system, claim.by, claim.licence, claim.urls[0])
    if claim.questions in DATASETS:
        dataset = _dataset(claim, lab, root)
        read = partial(best_reading, claim.name, files, known=forms(), wanted=claim.form, options=claim.options)
        run = import_run(lab.cfg, lab.models, dataset, read, origin)
    else:
        file = _own_reading(claim, files)
        dataset = _own_dataset(claim, file, lab, root)
        run = write_run(lab.models, dataset, file, origin)
    return Answers(claim.system, dataset, dataset.questions, (run,))


def _own_reading(claim: Claim, files: list[Parsed]) -> Reading:
    """The answers with the questions of their own files. Answers without a gold answer are left out: a judge cannot compare them."""
    contents, matched = contents_of(claim, files), Matched()
    for asking, answer in own_questions(contents.answers):
        if asking.gold:
            matched.pairs.append((asking, answer))
        else:
            matched.unjoined.append(f"{answer.place} {asking.text[:100]!r}: no gold answer in the file")
            matched.without_question.append(answer)
    return Reading(claim.name, digest(files), forms()[claim.form], contents, matched)


def _own_dataset(claim: Claim, file: Reading, lab: Lab, root: Path) -> Data:
    """The questions of the answers' own files as a data set without histories; judges do not see unit and reader, so these are the
    defaults of a user's own data."""
    conversations: dict[str, list[tuple[Question, Gold]]] = defaultdict(list)
    for asking, _ in file.matched.pairs:
        pair = Question(asking.question_id, asking.text), Gold((asking.gold,), category=asking.category)
        conversations[asking.case_id].append(pair)
    cases = [Case(name, (), (), tuple(questions)) for name, questions in conversations.items()]
    config = {
        **load_option("dataset", "jsonl"),
        "name": claim.questions.lower().replace(" ", "_"),
        "title": claim.questions,
    }
    source = Source(root / FOLDER, file.sha256, "derived", "questions and gold answers of the answers' own files")
    cut = {name: getattr(lab.cfg.data, name) for name in ("transform", "size", "max_cases", "seed")}
    settings = {"load": {"questions": "own"}, "sha256": [file.sha256], **cut}
    return Data(config["name"], config["title"], as_lazy(cases), source, settings, config)


def _dataset(claim: Claim, lab: Lab, root: Path) -> Data:
    """The questions of a claim's data set. Judges do not see histories, so these are left out of BEAM, and of LongMemEval if its oracle
    file is missing."""
    config = load_option("dataset", DATASETS[claim.questions])
    if claim.tier:
        without = {**config["load"], "chats": "none"}
        return data(lab.cfg.data, {**config, "load": without, "caption": {**config["caption"], "chats": "none"}})
    if claim.dataset == "LongMemEval" and not (root / LONGMEMEVAL[0]).exists():
        return data(lab.cfg.data, {key: value for key, value in config.items() if key != "instead"} | QUESTIONS_ALONE)
    return data(lab.cfg.data, config)


def judging_plan(lab: Lab, runs: Sequence[Run], judges: Sequence[str]) -> Plan:
    """Planned usage of judging these answers: every prompt is built and counted with the offline engine; saved verdicts cost nothing."""
    shares = []
    for name in judges:
        grading, usage = replace(judging(lab.cfg, lab.models, name), llm=Metered(ExtractiveLLM())), Usage()
        other = name.partition("@")[2]
        model = lab.models.model(other) if other else lab.models.judge
        for run in runs:
            usage.add(1.0, *unjudged(run, grading))
        shares.append(usage.share("judge", model.name, model.prices))
    lasting, discount = duration(lab.cfg, lab.models, shares, 1.0), lab.cfg.endpoint.batch.discount
    return Plan(tuple(shares), lasting, discount=discount)


def graders_of(folder: Path) -> list[Grader]:
    """The stored verdicts of an imported run, if any, and those of every judge that graded it."""
    graders = []
    for path in RunFolder(folder).score_files():
        name = metric_of(path)
        if name != STORED and judged_by(name) is None:
            continue
        values, model = mean_values(path), read_record(path.with_suffix(".json")).get("model_name")
        stand_in = STAND_IN if model == STAND_INS["judge"] else ""
        judge = judged_by(name) or name
        title = STORED if name == STORED else f"{judge}{f' by {model}' if model else ''}{stand_in}"
        graders.append(Grader(title, values, len(read_scores(path).keys() - values.keys())))
    return sorted(graders, key=lambda grader: grader.name != STORED)


def shown(claim: Claim, graders: Sequence[Grader], clusters: Mapping[Key, str]) -> list[str]:
    """The section of one claim, as Markdown."""
    rows, powered = compared(claim, graders, clusters)
    lines = [f"## {visible(claim.name)}", "", grid(COLUMNS, rows)]
    return [*lines, *([""] if powered else []), *(f"- {each}" for each in powered)]
