"""Check a file of answers before it is submitted: `python -m scripts check-answers FILE [--dataset LoCoMo] [--form NAME] [--data ROOT]`.

Prints the form of the file, the number of answers with a question of the data set, and what is missing: questions without an answer,
answers without a question, texts, failed verdicts, different gold answers. The exit code is 0 if the file has everything that a claim
needs, 1 if something is missing, 2 if the file cannot be read. `export --format mem0` writes a file that passes; so does the form
`extract`, one JSON line per answer with conversation, question_id, question, category, gold, answer, verdicts and tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data_loaders.source import data_root
from eval.report.counted import counted
from memsys.inert import visible
from scripts.answers.declared import forms, parsed
from scripts.answers.formats import Reading, best_reading
from scripts.answers.matching import LOADERS, Questions, questions_of
from scripts.setup.arguments import add_data_folder, verb_parser

GROUP = "publish"

SHOWN = 10
"""Maximum number of printed irregularities."""


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("check-answers", __doc__)
    parser.add_argument("file", type=Path, nargs="+", help="the file, or the files of one set of answers")
    parser.add_argument("--dataset", choices=list(LOADERS), default="LoCoMo")
    parser.add_argument(
        "--form", help="a form of conf/claims/forms.yaml, or of --forms (default: the one that reads most)"
    )
    parser.add_argument("--forms", type=Path, help="a YAML file of forms of your own")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the form")
    add_data_folder(parser)
    args = parser.parse_args(arguments)
    known = forms(args.forms) if args.forms else forms()
    options = dict(option.partition("=")[::2] for option in args.option)
    files = [parsed(path) for path in args.file]
    questions = questions_of(args.dataset, data_root(args.data))
    assert questions is not None  # the choices are the data sets that are joined
    told, lacking = report(best_reading(files[0].name, files, questions, known, args.form or "", options), questions)
    print("\n".join(visible(line) for line in [*told, *(f"missing: {line}" for line in lacking)]))
    print(
        "complete: this file can be submitted"
        if not lacking
        else f"incomplete: {counted(len(lacking), 'entry')} missing"
    )
    return 1 if lacking else 0


def report(reading: Reading, questions: Questions) -> tuple[list[str], list[str]]:
    """Content of the file, and the fields that a claim needs and the file lacks."""
    matched, contents = reading.matched, reading.contents
    asked = {each.question_id for each, _ in matched.pairs}
    open_ = [each for each in questions.asked if each.answerable and each.question_id not in asked]
    verdicts = sum(answer.grade("judge") is not None for _, answer in matched.pairs)
    tokens = sum(answer.recalled_tokens is not None for _, answer in matched.pairs)
    told = [
        f"form: {reading.form.name} ({reading.form.about})",
        f"answers: {len(contents.answers)}; {len(matched.pairs)} belong to one of {counted(len(questions.asked), 'question')} "
        f"of {questions.title}",
        f"verdicts: {verdicts}; recalled tokens: {tokens}; golds that are not the data set's: {len(matched.other_gold)} of {matched.golds}",
        *(f"{count} × {kind}" for kind, count in sorted(contents.counts.items())),
    ]
    irregular = [*contents.listed, *matched.unjoined, *matched.duplicates]
    told += [f"  {line}" for line in irregular[:SHOWN]]
    told += [f"  … and {len(irregular) - SHOWN} more"] if len(irregular) > SHOWN else []
    lacking = []
    if open_:
        lacking.append(
            f"answers to {len(open_)} answerable questions, such as {open_[0].question_id} {open_[0].text[:80]!r}"
        )
    if matched.unjoined:
        lacking.append(f"the question of {counted(len(matched.unjoined), 'answer')}")
    if matched.duplicates:
        lacking.append(f"one answer a question: {len(matched.duplicates)} are duplicates")
    if matched.golds and len(matched.other_gold) > matched.golds / 100:
        lacking.append(f"the data set's gold: {len(matched.other_gold)} of {matched.golds} differ")
    lacking += [f"the system's answers: {warning}" for warning in matched.only_golds]
    empty = contents.counts["missing answer"] + contents.counts["blank answer"]
    lacking += [f"the text of {counted(empty, 'answer')}"] if empty else []
    errors = contents.counts["judge error"]
    lacking += [f"the verdict of {counted(errors, 'answer')}, which failed to be judged"] if errors else []
    without = sum(each.answerable and "judge" not in answer.grades for each, answer in matched.pairs) if verdicts else 0
    lacking += (
        [f"the verdict of {counted(without, 'answer')} to answerable questions, which have none"] if without else []
    )
    return told, lacking
