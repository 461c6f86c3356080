"""Questions of a table that are answered right without a memory: its row `nothing` scores at least .5 in the group's first metric.

The row's first build chooses them. Its own score without them would be 0 by construction: its other builds give it
(`build.replicates=2`), or it has none.

A model may know the answer from its training, or guess it from the question. Questions that the history does not answer are not among
them: to refuse them needs no memory, and that a memory does not mislead the reader is what they test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.files.run_folder import read_predictions
from eval.files.store import replace_file
from memsys.inert import csv_text
from scripts.tables.experiments import Experiment
from scripts.tables.grid import NO_MEMORY

if TYPE_CHECKING:
    from scripts.settings.schema import Reproduce

FIELDS = ("group", "case_id", "question_id", "category", "score", "question", "gold", "answer_without_memory")


def guessable_notes(cfg: Reproduce, behind: Experiment[Any]) -> list[str]:
    """A caption line for each column group on how many questions need no memory; none where nobody asked (`guessable=keep`)."""
    if cfg.guessable == "keep":
        return []
    done = "left out of every row (costs are those of all questions)" if cfg.guessable == "exclude" else "listed"
    return [
        f"Guessable: {len(behind.grid.guessable(group))} of {sum(question.answerable for question in group.questions)} answerable "
        f"questions of {group.title} are answered right without a memory (row `{NO_MEMORY}`, first build); they are {done}."
        for group in behind.groups
        if group.dataset is not None
    ]


def write_guessable(behind: Experiment[Any], file: Path) -> None:
    """Write these questions as CSV, with the answer that was given without a memory."""
    replace_file(file, csv_text([FIELDS, *_lines(behind)]))


def _lines(behind: Experiment[Any]) -> Iterator[list[str]]:
    for group in behind.groups:
        guessed = behind.grid.guessable(group)
        if group.dataset is None or not guessed:
            continue
        run = next(
            run
            for (row, name, _), run in behind.runs.items()
            if name == group.name
            and any(line.name == row and (line.memory or {}).get("name") == NO_MEMORY for line in behind.lines)
        )
        for case in (group.dataset.cases[index] for index in range(len(group.dataset.cases))):
            predictions = read_predictions(run.case_folder(case.id))
            for question, gold in case.questions:
                if (score := guessed.get((case.id, question.id))) is not None:
                    answer = predictions[question.id].answer if question.id in predictions else ""
                    texts = [question.text, " / ".join(gold.answers), answer]
                    yield [group.name, case.id, question.id, gold.category, f"{score:.3f}", *texts]
