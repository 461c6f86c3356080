"""Check a file of answers before it is submitted: `python -m scripts check-answers FILE [--dataset LoCoMo]`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_loaders.schema import DataError
from data_loaders.source import data_root
from eval.store import RunError
from memsys.inert import visible
from scripts.answers.declared import Contents, Form, forms, read_declared
from scripts.answers.matching import Matched, match
from scripts.answers.parsing import Parsed, parsed
from scripts.answers.questions import LOADERS, questions_of

GROUP = "publish"

SHOWN = 10
"""At most so many irregularities are printed."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A file as one form reads it."""

    form: Form
    contents: Contents
    matched: Matched


def main(arguments: Sequence[str] | None = None) -> int:
    """Check one file; 0 when it is complete, 1 when something is missing, 2 when it cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts check-answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, nargs="+", help="the file, or the files of one set of answers")
    parser.add_argument("--dataset", choices=list(LOADERS), default="LoCoMo")
    parser.add_argument(
        "--form", help="a form of conf/claims/forms.yaml, or of --forms (default: the one that reads most)"
    )
    parser.add_argument("--forms", type=Path, help="a YAML file of forms of your own")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the form")
    parser.add_argument(
        "--data", type=Path, help="folder of the raw files (default: MEMSYS_DATA, else the download folder)"
    )
    args = parser.parse_args(arguments)
    return _check(args)


def _check(args: argparse.Namespace) -> int:
    known = forms(args.forms) if args.forms else forms()
    options = dict(option.partition("=")[::2] for option in args.option)
    files = [parsed(path) for path in args.file]
    reading = best_reading(files, known, args.form, args.dataset, data_root(args.data), options)
    told, lacking = report(reading, args.dataset, data_root(args.data))
    print("\n".join(visible(line) for line in [*told, *(f"missing: {line}" for line in lacking)]))
    print("complete: this file can be submitted" if not lacking else f"{len(lacking)} things are missing")
    return 1 if lacking else 0


def best_reading(
    files: Sequence[Parsed],
    known: Mapping[str, Form],
    wanted: str | None,
    dataset: str,
    root: Path | None,
    options: Mapping[str, str],
) -> Reading:
    """The file as the wanted form reads it, else as that of all forms which joins most answers that have text.

    Raises:
        RunError: there is no such form.
        DataError: no form reads the file.
    """
    if wanted is not None and wanted not in known:
        raise RunError(f"--form {wanted} is not known; there are: {', '.join(known)}")
    questions = questions_of(dataset, root)
    assert questions is not None
    readings, refused = [], []
    for form in [known[wanted]] if wanted else known.values():
        try:
            contents = read_declared(files, form, options)
        except DataError as error:
            refused.append(str(error))
            continue
        readings.append(Reading(form, contents, match(contents.answers, questions)))
    if not readings:
        raise DataError(refused[0] if wanted else f"{files[0].name}: none of {len(refused)} forms reads it")
    return max(readings, key=_worth)


def _worth(reading: Reading) -> tuple[int, int, int, int]:
    """How much a form makes of a file: answers joined, with text, with the data set's gold, with a verdict."""
    pairs = reading.matched.pairs
    texts = sum(bool(answer.answer.strip()) for _, answer in pairs)
    own = reading.matched.golds - len(reading.matched.other_gold)
    return len(pairs), texts, own, sum(answer.grades["judge"][0] is not None for _, answer in pairs)


def report(reading: Reading, dataset: str, root: Path | None) -> tuple[list[str], list[str]]:
    """What the file holds, and what a claim needs and the file does not have."""
    questions = questions_of(dataset, root)
    assert questions is not None
    matched, contents = reading.matched, reading.contents
    asked = {each.question_id for each, _ in matched.pairs}
    open_ = [each for each in questions.asked if each.answerable and each.question_id not in asked]
    verdicts = sum(answer.grades["judge"][0] is not None for _, answer in matched.pairs)
    tokens = sum(answer.recalled_tokens is not None for _, answer in matched.pairs)
    told = [
        f"form: {reading.form.name} ({reading.form.about})",
        f"answers: {len(contents.answers)}, of which {len(matched.pairs)} belong to one of {len(questions.asked)} questions of {dataset}",
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
        lacking.append(f"the question of {len(matched.unjoined)} answers")
    if matched.duplicates:
        lacking.append(f"one answer a question: {len(matched.duplicates)} are duplicates")
    if matched.golds and len(matched.other_gold) > matched.golds / 100:
        lacking.append(f"the data set's gold: {len(matched.other_gold)} of {matched.golds} differ")
    empty = contents.counts["missing answer"] + contents.counts["blank answer"]
    lacking += [f"the text of {empty} answers"] if empty else []
    errors = contents.counts["judge error"]
    lacking += [f"the verdict of {errors} answers, which failed to be judged"] if errors else []
    return told, lacking
