"""A memory's page: settings, outcomes of questions, costs as it grew, failures of model replies, nodes; and the lives of probes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_loaders.patterns import holds
from data_loaders.schema import Case, Gold, Question
from eval.analysis.costs import COST_COLUMNS
from eval.files.records import Prediction, Read
from eval.files.run_folder import is_complete
from eval.files.store import RunError
from eval.metrics.change import WRONG, change_answer, change_recall
from eval.report.html.cleaning import clipped
from eval.report.html.run_files import EMPTY, CaseFiles, ReadRun, ReadSet
from eval.report.html.sets import judge_templates, loaded_prompts
from eval.report.rendering import PHASES
from eval.structure.tree import read_tree
from memsys.interface import spoken
from memsys.prompts import PromptError, Prompts

NODE_TEXT = 4_000
"""Maximum number of characters of a node's text."""
COMPARED = [(each.name, each.title) for each in COST_COLUMNS if each.compared] + [("build_seconds", "build s")]
"""Costs of a run that a reader can sort and plot by."""


def memory_page(run: ReadRun, runs: ReadSet, trees: Mapping[str, str], judges: Sequence[str] = ()) -> dict[str, Any]:
    """All data about a run except its answers.

    Args:
        trees: by case id, the data file of its nodes, or a sentence that begins with `-` and gives the reason why there is none.
        judges: names of the judges' score files without their ending.
    """
    cases = runs.case_ids
    answers = [answer for case_id in cases for answer in run.case(case_id).predictions.values()]
    reasons = Counter(answer.error for answer in answers if answer.error)
    purposes = sorted({name for counter in run.purposes.values() for name in counter})
    return {
        "key": run.key,
        "settings": json.dumps(run.record.content, indent=1, ensure_ascii=False, default=str),
        "outcomes": _outcomes(answers, len(runs.asked)),
        "phases": [[cost.phase, *(show(cost) for _, show in PHASES)] for cost in run.phases],
        "phase_titles": [title for title, _ in PHASES],
        "totals": asdict(run.costs),
        "purposes": [[name, *(counter[name] for counter in run.purposes.values())] for name in purposes],
        "growth": run.growth,
        "prompts": _prompts(run, judges),
        "cases": [[case_id, trees[case_id]] for case_id in cases if case_id in trees],
        "errors": [[clipped(reason, 500), count] for reason, count in reasons.most_common(10)],
    }


def _outcomes(answers: Iterable[Prediction], questions: int) -> list[list[Any]]:
    reached: Counter[str] = Counter()
    for answer in answers:
        mark = ", cut at the token limit" if answer.cut else ", empty" if answer.empty else ""
        reached[answer.outcome + mark] += 1
    left = questions - reached.total()
    return [*([name, count] for name, count in reached.most_common()), *([["not reached", left]] if left else [])]


def _prompts(run: ReadRun, judges: Sequence[str]) -> list[list[str]]:
    """Name, hash and text of each prompt of memory, reader and judges; the reason in place of the text if the file has changed since."""
    pages = []
    known: Prompts | None = None
    with suppress(PromptError):
        known = loaded_prompts(run.record.prompts_dir)
    for name, digest in sorted({**run.record.prompts, **judge_templates(run, judges)}.items()):
        text = "not shown: the file has changed since the run, or is gone"
        with suppress(PromptError):
            if known is not None and known.digest([name])[name] == digest:
                text = f"{known[name].system}\n\n{known[name].user}".strip()
        pages.append([name, str(digest)[:12], text])
    return pages


def nodes_page(case_folder: Path) -> dict[str, Any] | str:
    """The nodes of a case: ids, numbers of their parents, levels, kinds, texts, sources; a sentence if there are no nodes."""
    if not is_complete(case_folder):
        return "-this history is not finished"
    try:
        tree = read_tree(case_folder)
    except RunError as error:
        return f"-{error}"
    if tree is None:
        return "-this memory keeps no nodes"
    return {
        "case": tree.case_id,
        "ids": tree.ids,
        "parents": tree.parents,
        "levels": tree.levels,
        "kinds": tree.kinds,
        "texts": [clipped(text, NODE_TEXT) for text in tree.texts],
        "sources": [len(sources) for sources in tree.sources],
    }


# --- lives of probes of the suite `change`: the turns, the change, and the recalls before, after and at the end, by line -


HOSTS = 2
"""Number of hosts of a set whose probes are shown; each pair of outcomes, at recall and of the answer, once per family and memory."""
LINES, LONGEST = 12, 500
"""Maximum number of lines of one read on a page, and of characters of a line."""
READS: Mapping[str, str] = {
    "before": "right before the change",
    "after": "right after it",
    "end": "at the end",
    "twin": "at the end, about the twin, which never changed",
    "clean": "at the end, in the build without the mail",
    "owner": "at the end, asked by the owner",
    "yes": "at the end, about the right value",
    "yes_twin": "at the end, about the twin, which never changed",
}


@dataclass(frozen=True, slots=True)
class RecalledLines:
    """One read of a life."""

    when: str
    question: str
    lines: tuple[str, ...]
    """Recalled lines that hold one of the probe's values."""
    others: int
    """Number of recalled lines that are not shown: lines without a value, and lines above the limit."""


@dataclass(frozen=True, slots=True)
class Life:
    """The life of one probe in one memory."""

    memory: str
    family: str
    variant: str
    host: str
    recall: str
    answered: str
    """Outcomes at recall and of the answer."""
    values: tuple[str, ...]
    """Values of the probe, such as `old: Brunokel`."""
    said: tuple[str, ...]
    """The turns put into the history about the probe and its twin, in order."""
    reads: tuple[RecalledLines, ...]
    answer: str


def lives(own: ReadSet) -> dict[str, dict[str, list[Life]]]:
    """By family and memory, the first probe of each pair of outcomes in two hosts; empty for data of another suite."""
    hosts = list(dict.fromkeys(case.cluster for case in own.cases if case.cluster))[:HOSTS]
    cases = {case.id: case for case in own.cases if case.cluster in hosts}
    scored = [
        (case, question, gold)
        for case in cases.values()
        for question, gold in case.questions
        if gold.category in WRONG and not gold.supports and "reads" in gold.detail
    ]
    found: dict[tuple[str, ...], Life] = {}
    for run in own.runs if scored else ():
        files = {case_id: run.case(case_id) for case_id in cases}
        for case, question, gold in scored:
            if (life := _life(run.title, case, question, gold, cases, files)) is not None:
                found.setdefault((life.family, run.key, life.recall, life.answered), life)
    groups: dict[str, dict[str, list[Life]]] = {family: {} for family in WRONG}
    for life in found.values():
        groups[life.family].setdefault(life.memory, []).append(life)
    return {family: memories for family, memories in groups.items() if memories}


def _life(
    memory: str, case: Case, question: Question, gold: Gold, cases: Mapping[str, Case], files: Mapping[str, CaseFiles]
) -> Life | None:
    """The life of a probe; None where a read failed or is missing."""
    reads, asked = dict[str, Read](), dict[str, str]()
    for name, (case_id, question_id) in gold.detail["reads"].items():
        own = files.get(case_id, EMPTY)
        prediction = own.predictions.get(question_id)
        if prediction is None or prediction.outcome in ("error", "aborted"):
            return None
        reads[name] = Read(prediction, tuple(str(own.items[key]["text"]) for key in prediction.items))
        asked[name] = next(each.text for each, _ in cases[case_id].questions if each.id == question_id)
    values: Mapping[str, str] = gold.detail["values"]
    # The turns that the key names, and those of the suite that say the probe's subject or one of its values.
    words = [gold.detail["subject"], *values.values()]
    said = (turn for turn in case.turns if "+" in turn.id and any(holds(turn.text, word) for word in words))
    named = {turn.id for turn in said}.union(gold.detail["edits"])
    return Life(
        memory,
        gold.category,
        gold.detail["variant"],
        case.cluster,
        str(change_recall(question, gold, reads).detail["outcome"]),
        str(change_answer(question, gold, reads).detail["outcome"]),
        tuple(f"{name}: {value}" for name, value in values.items()),
        tuple(clipped(spoken(turn), LONGEST) for turn in case.turns if turn.id in named),
        tuple(_recalled(name, asked[name], read, values) for name, read in reads.items()),
        clipped(reads["end"].prediction.answer, LONGEST),
    )


def _recalled(name: str, question: str, read: Read, values: Mapping[str, str]) -> RecalledLines:
    lines = [line for text in read.texts for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if any(holds(line, value) for value in values.values())]
    shown = tuple(clipped(line, LONGEST) for line in telling[:LINES])
    return RecalledLines(READS[name], question, shown, len(lines) - len(shown))
