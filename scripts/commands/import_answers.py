"""Score published answers: `python -m scripts import-answers FILE dataset=locomo as=memobase [key=value …]`.

Reads every form of conf/claims/forms.yaml, our own predictions and run folders among them, and folders of files that belong together.
The answers are joined with the data set by conversation and question, and become a run like any other, with every lexical metric, their
own grades next to ours, intervals, and the verbs `runs` and `inspect`. Answers that cannot be joined are listed. The exit code is then 1,
and also when no answer could be scored.

`as=` names the run. `format=` names the form, with options as in `format=cutoffs:cutoff=top_50`; the default is the form that reads most.
`title=`, `by=`, `licence=` and `source=` give facts that the file lacks. Real data are the default;
`protocol.judges=[mem0]` asks a judge; other settings are those of `memsys-bench run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.files.imported import THEIRS
from eval.files.run_folder import RunFolder, metric_of
from eval.files.store import RunError, replace_file
from eval.report.cell import ALL, ANSWERABLE, Cell, Column, categories, cells
from eval.report.counted import counted
from eval.report.rendering import markdown, shown
from eval.report.tables import Table
from scripts.answers.finished import score_title
from scripts.answers.formats import Origin
from scripts.setup.arguments import verb_parser
from scripts.setup.options import metric_options

if TYPE_CHECKING:
    from scripts.lab.lab import Answers

GROUP = "publish"

OWN = ("as", "format", "title", "by", "licence", "source")
"""Settings of this command; all others are those of `memsys-bench run`."""
GENERAL = "eval.metrics.lexical."
"""Metrics of this module suit any data set; those of other modules suit the data set that names them."""


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("import-answers", __doc__)
    parser.add_argument("file", type=Path, help="a file of answers, or a run folder")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="as=memobase dataset=locomo …")
    args = parser.parse_args(arguments)
    own, rest = _split(args.settings)
    origin = Origin(own.get("as", ""), *(own.get(name, "") for name in ("title", "by", "licence", "source")))
    if not origin.name:
        raise RunError("as= is missing: name the run, such as as=memobase")
    if not args.file.exists():  # before the data, which may have to be fetched first
        raise RunError(f"no file or folder {args.file}")
    from scripts.lab.lab import Lab

    lab = Lab("data.source=real", *rest)
    answers = lab.imported(args.file, origin, format=own.get("format"))
    config = answers.dataset.config
    scored = lab.score(answers, lexical(config["metrics"]), list(lab.cfg.protocol.judges or []))
    table = lab.table(replace(scored, cells={**their_cells(answers), **scored.cells}))
    file = lab.models.results / "tables" / f"imported-{answers.folder.name}.md"
    replace_file(file, markdown(table))
    facts = answers.runs[0].record.imported
    print("\n".join([*_score_lines(table), "", *_joined_lines(facts)]))
    print(f"run folder: {answers.folder}")
    print(f"written: {file} (with categories and costs)")
    answered = any(cell.scores for cell in table.rows[0].cells if isinstance(cell, Cell))
    return 0 if answered and not facts["mismatches"] else 1


def _score_lines(table: Table) -> list[str]:
    """The scores of the answered questions, one line per metric."""
    scores = {}
    for cell in table.rows[0].cells:
        if isinstance(cell, Cell):
            answerable = ANSWERABLE if ANSWERABLE in categories(cell.column) else ALL
            title = cell.column.metric if answerable == ALL else f"{cell.column.metric}, {cell.column.answerable_title}"
            scores[title] = shown(cell, answerable)
    width = max(map(len, scores), default=0)
    lines = [table.title, *(f"- {line}" for line in table.caption), ""]
    return [*lines, *(f"{title.ljust(width)}  {score}" for title, score in scores.items())]


def _split(settings: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split off the settings of this command from the others."""
    if unnamed := [setting for setting in settings if "=" not in setting]:
        raise RunError(f"cannot read the setting {unnamed[0]!r}; settings are written name=value")
    pairs = [setting.partition("=") for setting in settings]
    own = {name: value for name, _, value in pairs if name in OWN}
    return own, ["=".join((name, value)) for name, _, value in pairs if name not in OWN]


def lexical(of_the_data: Sequence[str]) -> list[str]:
    """Every lexical metric that suits a data set: its own first, then the general ones."""
    general = [name for name, option in metric_options().items() if option["target"].startswith(GENERAL)]
    return list(dict.fromkeys([*of_the_data, *general]))


def their_cells(answers: Answers) -> dict[str, Cell]:
    """The authors' own grades as cells, by score file name; empty if the file has none."""
    column = Column.of(answers.dataset.config, "", answers.questions)
    files = RunFolder(answers.folder).score_files(f"{THEIRS}*")
    return {metric_of(path): cell for path, cell in cells(column, answers.folder, files, score_title).items()}


def _joined_lines(facts: Mapping[str, Any]) -> list[str]:
    """Joined and missing parts, by name."""
    lines = [
        f"{counted(facts['answers'], 'answer')} in {facts['file']} ({facts['format']}): {facts['joined']} joined, "
        f"{facts['joined_by_order']} of them interchangeable; {facts['without_answer']} "
        f"of {counted(facts['questions'], 'question')} without an answer"
    ]
    if facts["outside_the_cut"]:
        lines.append(f"{counted(facts['outside_the_cut'], 'answer')} to questions that this cut of the data leaves out")
    lines += [f"not joined: {mismatch}" for mismatch in facts["mismatches"]]
    lines += [f"joined, but: {note}" for note in facts["notes"]]
    lines += [f"in the file: {line}" for line in facts["irregular"]]
    return lines
