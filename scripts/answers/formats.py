"""Read files of published answers in any known form, and join them with a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_loaders.schema import DataError
from eval.files.store import RunError
from scripts.answers.declared import Contents, Form, forms, read_declared
from scripts.answers.matching import Matched, Questions, match
from scripts.answers.parsing import Parsed, digest, parsed


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading files by one form."""

    name: str
    """File name without folders: the folders of this machine stay private."""
    sha256: str
    """sha256 of the file; for several files, of the list of their sha256."""
    form: Form
    contents: Contents
    matched: Matched

    @property
    def golds_are_right(self) -> bool:
        """Whether most of the golds that the form reads are the data set's."""
        return 2 * len(self.matched.other_gold) < self.matched.golds


def read_answers(questions: Questions, path: Path, wanted: str | None = None) -> Reading:
    """Read a file, a folder of files that belong together, or a run folder.

    Args:
        wanted: its form, as `NAME` or `NAME:option=value`; None takes the form that reads most.

    Raises:
        DataError: a file is damaged, or the wanted form does not fit.
        RunError: there is no such file or form, or no form fits.
    """
    parts = [path]
    if path.is_dir():
        parts = sorted(path.glob("cases/*/predictions.jsonl")) or sorted(
            each for each in path.iterdir() if each.is_file()
        )
    if not parts or not all(part.is_file() for part in parts):
        raise RunError(f"{path}: no such file, and no run folder with predictions")
    name, _, given = (wanted or "").partition(":")
    options = dict(option.partition("=")[::2] for option in given.split(",") if option)
    return best_reading(path.name, [parsed(part) for part in parts], questions, forms(), name, options)


def best_reading(
    name: str,
    files: Sequence[Parsed],
    questions: Questions,
    known: Mapping[str, Form],
    wanted: str = "",
    options: Mapping[str, str] | None = None,
) -> Reading:
    """Read the files by the wanted form, else by the form that reads most of them.

    Raises:
        DataError: the wanted form does not read them.
        RunError: there is no such form, or no form reads them.
    """
    if wanted and wanted not in known:
        raise RunError(f"the form {wanted} is not known; there are: {', '.join(known)}")
    readings, refused = [], []
    for form in [known[wanted]] if wanted else known.values():
        try:
            contents = read_declared(files, form, options)
        except DataError as error:
            refused.append(str(error))
            continue
        readings.append(Reading(name, digest(files), form, contents, match(contents.answers, questions)))
    if readings:
        return max([each for each in readings if not _reads_golds(each, readings)] or readings, key=_worth)
    if wanted:
        raise DataError(refused[0])
    about = "; ".join(f"{form.name}: {form.about}" for form in known.values())
    raise RunError(f"{name}: none of {len(known)} forms reads it; forms: {about}")


def _reads_golds(reading: Reading, others: Sequence[Reading]) -> bool:
    """Whether another form reads these answers as the data set's golds, from records with a field for the answer, empty or not.

    A form that reads the golds elsewhere is right: its system answers in the words of the golds.
    """
    texts = [answer.answer for answer in reading.contents.answers]
    return not reading.golds_are_right and any(
        other.contents.fields_of_answers
        and other.golds_are_right
        and [answer.gold for answer in other.contents.answers] == texts
        for other in others
    )


def _worth(reading: Reading) -> tuple[bool, int, bool, int, int, int]:
    """The quality of a form's reading.

    In order: whether there is any text, number of answers with a question, whether most golds are the data set's, numbers of answers with
    text, with the data set's gold, with a verdict. A form that mistakes the gold for the answer reads a text where an answer is missing, so
    right golds come before texts. It also turns two different answers into equal ones: duplicates are a criterion, too.
    """
    answers, matched = reading.contents.answers, reading.matched
    texts = sum(bool(answer.answer.strip()) for answer in answers)
    verdicts = sum(_is_verdict(answer.grade("judge")) for answer in answers)
    joined, right = len(answers) - len(matched.without_question), matched.golds - len(matched.other_gold)
    return texts > 0, joined, reading.golds_are_right, texts, right, verdicts


def _is_verdict(grade: float | None) -> bool:
    """Whether a grade counts as a verdict: 1 of 100 does not, because it is the full mark of a file from 0 to 1 that is read in percent."""
    return grade is not None and not 0 < grade <= 0.01
