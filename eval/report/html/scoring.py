"""The scores of a set's runs by question, and comparisons of all pairs of runs, computed by the same `Cell` as in tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.files.run_folder import judged_by, metric_of, version_of
from eval.judging.agreement import RIGHT
from eval.judging.score_files import ScoreLines
from eval.report.cell import ALL, Cell, Column, Outcomes, categories
from eval.report.html.run_files import ReadSet
from eval.report.html.sources import TableFile
from eval.report.rendering import ends


@dataclass(frozen=True, slots=True)
class Scorer:
    """A metric or a judge with its settings: the score files of one name are comparable between runs."""

    stem: str
    """Name of the score files without their ending, such as `locomo_f1-0a1b2c3d4e5f`."""
    title: str
    repeats: int | None
    """Number of the judge's repeats that count, as in the tables; None counts all."""
    aggregate: str = "question"
    """The unit that the mean weighs equally, as in the tables; that of the data set, for a scorer without a table."""

    @property
    def is_judge(self) -> bool:
        return judged_by(self.stem) is not None


def scorers(own: ReadSet, tables: Sequence[TableFile]) -> list[Scorer]:
    """Every scorer of a set's runs; the scorers of the data set's columns in tables come first, in their order."""
    files = {path.stem: path for run in own.runs for path in run.scores}
    known: dict[str, Scorer] = {}
    for table in tables:
        for row in table.content["rows"]:
            for column, cell in zip(table.content["columns"], row["cells"], strict=True):
                for file in map(Path, cell.get("files", ())):
                    stem = file.stem
                    if stem in files and own.name in file.parts[-4:-3]:  # `runs/<data set>/<run>/scores/<stem>.jsonl`
                        known.setdefault(stem, Scorer(stem, column["metric"], cell["repeats"], column["aggregate"]))
    rest = [path for stem, path in files.items() if stem not in known]
    names = [metric_of(path) for path in rest]
    versions = [f" ({version_of(path)[:6]})" if names.count(metric_of(path)) > 1 else "" for path in rest]
    titled = zip(rest, names, versions, strict=True)
    more = (Scorer(path.stem, name + version, None, own.aggregate) for path, name, version in titled)
    return [*known.values(), *more]


def cells(runs: ReadSet, scorer: Scorer, reached: Sequence[Outcomes]) -> dict[int, Cell]:
    """The cells of all runs that the scorer has scored, by the run's index in the set; `reached` are the outcomes of each run."""
    column = Column(runs.name, runs.name, scorer.title, runs.asked, scorer.aggregate)
    return {
        place: Cell(column, outcomes, (file,), repeats=scorer.repeats, read=run.scores.__getitem__)
        for place, (run, outcomes) in enumerate(zip(runs.runs, reached, strict=True))
        if (file := run.score_file(scorer.stem)) in run.scores
    }


def vector(own: Cell) -> list[float | None]:
    """The score of each question, in order."""
    values = [own.scores.get(question.key) for question in own.column.questions]
    return [None if value is None else round(value, 4) for value in values]


def pairs(found: Mapping[int, Cell]) -> Iterator[list[Any]]:
    """Compare every pair of runs in every category: first, second, category, mean, n, both intervals, number of histories, p by case.

    p is None for fewer than five histories. It is not adjusted: the runs in the folder are no declared family, so these pairs are
    exploratory. Tables test and star a declared family.
    """
    places = list(found)
    for at, first in enumerate(places):
        rest = [found[second] for second in places[at + 1 :]]
        names = categories(found[first].column)
        gaps = [found[first].minus_each(rest, category) for category in names]
        for second, own in zip(places[at + 1 :], zip(*gaps, strict=True), strict=True):
            for category, gap in zip(names, own, strict=True):
                if gap is not None:
                    about = gap.mean, gap.n, ends(gap.by_question), ends(gap.by_case), gap.clusters, gap.p_by_case
                    yield [first, second, category, *about]


def disputed(found: Sequence[Cell]) -> set[tuple[str, str]]:
    """Questions whose answer got different verdicts from the judges, or from one judge's repeats."""
    sides: dict[tuple[str, str], set[bool]] = {}
    for own in found:
        for key, draws in own.draws.items():
            sides.setdefault(key, set()).update(value >= RIGHT for _, value in draws)
    return {key for key, own in sides.items() if len(own) > 1}


def stale(results: Path, own: ReadSet, tables: Sequence[TableFile]) -> dict[tuple[int, int, int], str]:
    """Find cells of tables whose score files now give another mean: the table is older than its runs.

    A cell over some categories only, or over a run that is left out, is not checked.

    Returns:
        A sentence for each such cell, by numbers of table, row and column.
    """
    scores = {path.resolve(): lines for run in own.runs for path, lines in run.scores.items()}
    lines = {}
    for number, table in enumerate(tables):
        for place, row in enumerate(table.content["rows"]):
            for index, (column, printed) in enumerate(zip(table.content["columns"], row["cells"], strict=True)):
                if printed["kind"] == "score" and _differs(results, own, scores, column, printed):
                    cell = f"table {table.stem}, {row['title']}, {column['metric']}"
                    lines[number, place, index] = f"{cell}: the run has changed since; run its command again"
    return lines


def _differs(
    results: Path,
    runs: ReadSet,
    scores: Mapping[Path, ScoreLines],
    column: Mapping[str, Any],
    printed: Mapping[str, Any],
) -> bool:
    paths = tuple((results / file).resolve() for file in printed["files"])
    if not paths or len(runs.asked) != column["questions"] or not scores.keys() >= set(paths):
        return False
    printed_in = Column(column["dataset"], column["title"], column["metric"], runs.asked, column["aggregate"])
    own = Cell(printed_in, {}, paths, repeats=printed["repeats"], read=scores.__getitem__)
    now, then = own.estimate(), printed["estimates"][ALL]
    if now is None or then is None:
        return (now is None) != (then is None)
    return bool(now.n != then["n"] or abs(now.mean - then["mean"]) > 1e-9)
