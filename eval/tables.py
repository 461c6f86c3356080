"""Memory x data set x metric: mean, intervals, counts, the published number, a verdict; costs below. Markdown, CSV, LaTeX.

Nothing is left out: a memory that is not built prints `pending`, a data set that is not there prints `no data` and the command that
gets it, and scored + unscored + errored + not reached = questions in every cell.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

from data_loaders.schema import Case
from eval.costs import Costs, costs
from eval.published import Published, verdict
from eval.score import read_scores
from eval.stats import Difference, Estimate, Interval, by_question, difference, estimate, stratified
from eval.store import read_predictions, safe_name

ALL, ANSWERABLE = "all", "answerable"
AGGREGATES = ("question", "case", "category")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as a table needs it: where it belongs, not what it says."""

    case_id: str
    question_id: str
    category: str
    cluster: str
    answerable: bool
    evidence: bool
    """Whether the data set says where the answer stands."""


def asked(cases: Iterable[Case]) -> tuple[Asked, ...]:
    """Every question of a data set, in order."""
    return tuple(
        Asked(case.id, question.id, gold.category, case.cluster or case.id, gold.answerable, bool(gold.evidence))
        for case in cases
        for question, gold in case.questions
    )


Outcomes = Mapping[tuple[str, str], frozenset[str]]
"""What became of each (case, question), over replicates; absent when it was not reached."""


def outcomes(folders: Iterable[Path], questions: Sequence[Asked]) -> Outcomes:
    """Read the predictions of a run and its replicates."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for folder in folders:
        for case_id in dict.fromkeys(one.case_id for one in questions):
            for one in read_predictions(folder / "cases" / safe_name(case_id)).values():
                key = (case_id, one.question_id)
                found[key] = found.get(key, frozenset()) | {one.outcome}
    return found


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the questions; the four outcomes add up to `questions`."""

    questions: int
    scored: int
    unscored: int
    """Answered, but no verdict could be had."""
    errored: int
    not_reached: int
    aborted: int = 0
    """Among the scored: a memory's own search ended without a result."""

    @property
    def missing_share(self) -> float:
        """Share of the questions without a score."""
        return 1.0 - self.scored / self.questions if self.questions else 0.0


@dataclass(frozen=True, slots=True)
class Column:
    """One metric on one data set."""

    dataset: str
    title: str
    """Data set as printed."""
    metric: str
    """Metric as printed: which judge, or which F1."""
    questions: tuple[Asked, ...]
    aggregate: str = "question"
    answerable_title: str = ANSWERABLE
    scale: float = 1.0
    """What printed values are divided by to be shares."""


@dataclass(frozen=True)
class Cell:
    """One memory's scores in one column; several replicates are averaged question by question."""

    column: Column
    outcomes: Outcomes
    score_files: tuple[Path, ...]
    published: Published | None = None
    why_not: str = ""
    chosen: Mapping[str, Cell] = field(default_factory=dict)
    """Of the best of several: whose scores stand for each cluster; empty for a memory of its own."""

    @cached_property
    def values(self) -> dict[tuple[str, str], float]:
        """Score of each scored question: the mean over repeats and replicates."""
        return {key: fmean(value for _, value in found) for key, found in self._found.items()}

    @cached_property
    def _found(self) -> dict[tuple[str, str], list[tuple[tuple[int, int], float]]]:
        clusters = {(one.case_id, one.question_id): one.cluster for one in self.column.questions}
        if self.chosen:
            return {
                key: self.chosen[cluster]._found[key]
                for key, cluster in clusters.items()
                if key in self.chosen[cluster]._found
            }
        found: dict[tuple[str, str], list[tuple[tuple[int, int], float]]] = {}
        for replicate, path in enumerate(self.score_files):
            for key, lines in read_scores(path).items():
                for line in lines:
                    if line["value"] is not None and key in clusters:
                        found.setdefault(key, []).append(((replicate, line["repeat"]), line["value"]))
        return found

    @cached_property
    def spread(self) -> float | None:
        """Standard deviation of the mean over repeats and replicates; None for a single one."""
        draws: dict[tuple[int, int], list[float]] = {}
        for found in self._found.values():
            for draw, value in found:
                draws.setdefault(draw, []).append(value)
        return stdev([fmean(values) for values in draws.values()]) if len(draws) > 1 else None

    def counts(self, category: str = ALL) -> Counts:
        """What became of the questions of a category."""
        keys = [(one.case_id, one.question_id) for one in self._of(category)]
        scored = sum(key in self.values for key in keys)
        rest = [self.outcomes.get(key, frozenset()) for key in keys if key not in self.values]
        unscored = sum(bool(found - {"error"}) for found in rest)
        errored = sum(found == {"error"} for found in rest)
        aborted = sum(key in self.values and "aborted" in self.outcomes.get(key, ()) for key in keys)
        return Counts(len(keys), scored, unscored, errored, len(keys) - scored - unscored - errored, aborted)

    def estimate(self, category: str = ALL, aggregate: str | None = None) -> Estimate | None:
        """Mean and intervals over the scored questions of a category; None when there are none."""
        kept = [one for one in self._of(category) if (one.case_id, one.question_id) in self.values]
        if not kept:
            return None
        values = [self.values[one.case_id, one.question_id] for one in kept]
        clusters = [one.cluster for one in kept]
        how = aggregate or self.column.aggregate
        if how == "question":
            return estimate(values, clusters)
        return stratified(values, clusters if how == "case" else [one.category for one in kept], clusters)

    def bounds(self, category: str = ALL) -> Interval | None:
        """What the mean over all questions could be if everything without a score were wrong, or right."""
        counts = self.counts(category)
        if not counts.questions:
            return None
        keys = {(one.case_id, one.question_id) for one in self._of(category)}
        total = sum(value for key, value in self.values.items() if key in keys)
        return Interval(total / counts.questions, (total + counts.questions - counts.scored) / counts.questions)

    def verdict(self) -> str:
        """What our number means beside the published one."""
        return verdict(self.estimate(), self.published, scale=self.column.scale, why_not=self.why_not)

    def minus(self, other: Cell, category: str = ALL) -> Difference | None:
        """Paired difference over the questions that both have a score for."""
        both = [
            one
            for one in self._of(category)
            if (one.case_id, one.question_id) in self.values.keys() & other.values.keys()
        ]
        if not both:
            return None
        keys = [(one.case_id, one.question_id) for one in both]
        return difference(
            [self.values[key] for key in keys], [other.values[key] for key in keys], [one.cluster for one in both]
        )

    def _of(self, category: str) -> list[Asked]:
        if category == ALL:
            return list(self.column.questions)
        if category == ANSWERABLE:
            return [one for one in self.column.questions if one.answerable]
        return [one for one in self.column.questions if one.category == category]


def choose(cells: Mapping[str, Cell], *, held_out: bool) -> dict[str, str]:
    """By cluster the name of the candidate with the highest mean; of equals the first.

    Args:
        cells: one a candidate, in the column that decides.
        held_out: False chooses once, on all questions, those reported included (as papers do); True chooses for each cluster on the others.

    Raises:
        ValueError: `held_out` with a single cluster, so that there is nothing to choose on.
    """
    questions = next(iter(cells.values())).column.questions
    clusters = list(dict.fromkeys(one.cluster for one in questions))
    if held_out and len(clusters) < 2:
        raise ValueError("one history only: nothing to choose on")
    chosen = {}
    for cluster in clusters:
        keys = [(one.case_id, one.question_id) for one in questions if not held_out or one.cluster != cluster]
        means = {
            name: fmean([cell.values[key] for key in keys if key in cell.values] or [-1.0])
            for name, cell in cells.items()
        }
        chosen[cluster] = max(means, key=lambda name: means[name])
    return chosen


def composed(cells: Mapping[str, Cell], chosen: Mapping[str, str]) -> Cell:
    """One cell out of the candidates' cells of a column: for each cluster the scores and outcomes of the one chosen."""
    column = next(iter(cells.values())).column
    outcomes = {
        key: cells[chosen[one.cluster]].outcomes[key]
        for one in column.questions
        if (key := (one.case_id, one.question_id)) in cells[chosen[one.cluster]].outcomes
    }
    return Cell(column, outcomes, (), chosen={cluster: cells[name] for cluster, name in chosen.items()})


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that is no mean of scores: a cost, a count, a property of a structure, the difference of two cells."""

    column: Column
    ours: Estimate | None
    published: Published | None = None
    why_not: str = ""
    tolerance: float | None = None
    """How far beyond the interval is still close; None is 5 % of the printed value."""

    def verdict(self) -> str:
        """What our number means beside the published one."""
        scale, printed = self.column.scale, self.published
        near = self.tolerance if self.tolerance is not None or printed is None else 0.05 * abs(printed.value / scale)
        return verdict(self.ours, printed, scale=scale, tolerance=near or 0.0, why_not=self.why_not)


AnyCell = Cell | Figure | str
"""A string says why there is no number: `pending`, `no data: …`, `–` where a row has nothing to say."""


@dataclass(frozen=True, slots=True)
class Row:
    """One memory and what there is to print of it."""

    name: str
    title: str
    cells: tuple[AnyCell, ...]
    runs: Mapping[str, Path] = field(default_factory=dict)
    """Run folder by data set, for the costs."""
    evidence: Mapping[str, Path] = field(default_factory=dict)
    """Evidence score file by data set."""
    ruled: bool = False
    """A rule stands above it: what follows is not among the published rows."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table ready to be printed."""

    name: str
    title: str
    caption: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    reference: str = ""
    """The memory that the others are compared with, pair by pair."""

    @property
    def missing_share(self) -> float:
        """The largest share of questions without a score in any cell."""
        return max(
            (cell.counts().missing_share for row in self.rows for cell in row.cells if isinstance(cell, Cell)),
            default=0.0,
        )


def number(value: float | None, digits: int = 3) -> str:
    """A number for print; `–` for none."""
    return "–" if value is None else f"{value:.{digits}f}"


def span(interval: Interval | None, brackets: str = "[]", digits: int = 3) -> str:
    """An interval for print; nothing for none."""
    return (
        "" if interval is None else f"{brackets[0]}{interval.low:.{digits}f}, {interval.high:.{digits}f}{brackets[1]}"
    )


def shown(cell: AnyCell, category: str = ALL, *, published: bool = True) -> str:
    """A cell for print: ours [by question] {by case} ± spread · scored/unscored/errored/not reached · published · verdict."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Figure):
        return _shown_figure(cell)
    counts, ours = cell.counts(category), cell.estimate(category)
    parts = [f"{counts.scored}/{counts.unscored}/{counts.errored}/{counts.not_reached}"]
    if ours is None:
        parts.insert(0, "–")
    else:
        spread = "" if cell.spread is None else f" ± {cell.spread:.3f}"
        parts.insert(0, f"{ours.mean:.3f}{spread} {span(ours.by_question)} {span(ours.by_case, '{}')}".strip())
    if counts.aborted:
        parts.append(f"{counts.aborted} aborted")
    if counts.missing_share and (bounds := cell.bounds(category)) is not None:
        parts.append(f"could be {bounds.low:.3f}–{bounds.high:.3f}")
    if published and cell.published is not None:
        parts += [cell.published.printed, cell.verdict()]
    return " · ".join(parts)


def _shown_figure(cell: Figure) -> str:
    ours = cell.ours
    digits = 1 if ours is not None and abs(ours.mean) >= 100 else 3
    parts = [number(None)]
    if ours is not None:
        intervals = (span(ours.by_question, digits=digits), span(ours.by_case, "{}", digits))
        parts = [" ".join([number(ours.mean, digits), *filter(None, intervals)])]
    if cell.published is not None:
        parts += [cell.published.printed, cell.verdict()]
    return " · ".join(parts)


def markdown(table: Table, *, brief: bool = False) -> str:
    """The whole table: caption, scores, categories, paired differences, costs; `brief` is without categories and differences."""
    parts = [f"# {table.title}", "", *(f"- {line}" for line in table.caption), "", _scores(table)]
    if not brief:
        parts += [*_categories(table), *_differences(table)]
    parts += [*_evidence(table), *_costs(table)]
    return "\n".join(parts) + "\n"


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(part.replace("|", "\\|").replace("\n", " ") for part in row) + " |" for row in rows]
    return "\n".join(lines)


def _scores(table: Table) -> str:
    header = ["Memory", *(f"{column.title} · {column.metric}" for column in table.columns)]
    rows: list[list[str]] = []
    for row in table.rows:
        if row.ruled:
            rows.append(["—"] * len(header))
        rows.append([row.title, *(shown(cell) for cell in row.cells)])
    return _grid(header, rows)


def categories(column: Column) -> list[str]:
    """Names under which a column's questions are reported: all, answerable where some are not, then each category."""
    found = list(dict.fromkeys(one.category for one in column.questions if one.category))
    groups = [ALL] if len({one.answerable for one in column.questions}) < 2 else [ALL, ANSWERABLE]
    return [*groups, *(found if len(found) > 1 else [])]


def _categories(table: Table) -> list[str]:
    parts: list[str] = []
    for place, column in enumerate(table.columns):
        names = categories(column)
        if len(names) == 1:
            continue
        titles = [column.answerable_title if name == ANSWERABLE else name for name in names]
        rows = [
            [
                row.title,
                *(shown(row.cells[place], name, published=False) for name in names),
            ]
            for row in table.rows
            if isinstance(row.cells[place], Cell)
        ]
        if rows:
            parts += ["", f"## {column.title} · {column.metric}, by category", "", _grid(["Memory", *titles], rows)]
    return parts


def _differences(table: Table) -> list[str]:
    reference = next((row for row in table.rows if row.name == table.reference), None)
    if reference is None:
        return []
    rows = []
    for row in table.rows:
        if row.name != reference.name and any(isinstance(cell, Cell) for cell in row.cells):
            pairs = zip(row.cells, reference.cells, strict=True)
            rows.append([row.title, *(_difference(cell, other) for cell, other in pairs)])
    header = ["Memory", *(f"{column.title} · {column.metric}" for column in table.columns)]
    title = f"## Paired difference from {reference.title}: mean [by question] {{by case}}, p (sign-flip permutation), n pairs"
    return ["", title, "", _grid(header, rows)] if rows else []


def _difference(cell: AnyCell, other: AnyCell) -> str:
    if not (isinstance(cell, Cell) and isinstance(other, Cell)) or (gap := cell.minus(other)) is None:
        return "–"
    p = "" if gap.p is None else f", p {'<' if gap.p < 0.001 else '='} {max(gap.p, 0.001):.3f}"
    return f"{gap.mean:+.3f} {span(gap.by_question)} {span(gap.by_case, '{}')}{p}, n {gap.n}"


def _evidence(table: Table) -> list[str]:
    """How much of the evidence came back: as sources, in its own words, how early, and how many turns an item stands for."""
    parts: list[str] = []
    for dataset, title in dict.fromkeys((column.dataset, column.title) for column in table.columns):
        rows = [[row.title, *_evidence_means(row.evidence[dataset])] for row in table.rows if dataset in row.evidence]
        if any(row[-1] != "0" for row in rows):
            depth = next(iter(row.evidence[dataset].name for row in table.rows if dataset in row.evidence)).partition(
                "-"
            )[0]
            header = ["Memory", "covered", "verbatim", "nDCG", "turns per item", "questions"]
            parts += ["", f"## {depth} on {title} (means over questions that name evidence)", "", _grid(header, rows)]
    return parts


def _evidence_means(path: Path) -> list[str]:
    lines = [line for found in read_scores(path).values() for line in found if line["value"] is not None]
    covered = by_question([line["value"] for line in lines])
    means = [_mean(line["detail"][name] for line in lines) for name in ("verbatim", "ndcg", "sources_per_item")]
    first = f"{number(_mean(line['value'] for line in lines))} {span(covered)}".strip()
    return [first, *(number(mean) for mean in means), str(len(lines))]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


COSTS: tuple[tuple[str, Callable[[Costs], str]], ...] = (
    ("recalled tokens", lambda c: number(c.recalled_tokens, 0)),
    ("inference tokens", lambda c: number(c.inference_tokens, 0)),
    ("build tokens / unit", lambda c: number(c.build_tokens_per_unit, 1)),
    ("embedding tokens / unit", lambda c: number(c.embedding_tokens_per_unit, 1)),
    ("calls / insertion", lambda c: number(c.calls_per_insertion, 2)),
    ("calls / query", lambda c: number(c.calls_per_query, 2)),
    ("recall s P50", lambda c: number(c.recall_seconds_p50, 4)),
    ("recall s P95", lambda c: number(c.recall_seconds_p95, 4)),
    ("recall s P50, calls summed", lambda c: number(c.recall_seconds_sum_p50, 4)),
    ("units", lambda c: str(c.units)),
    ("parse failures", lambda c: str(c.parse_failures)),
    ("failed calls", lambda c: str(c.failed_calls)),
    ("items over budget", lambda c: str(c.dropped_items)),
)


def _costs(table: Table) -> list[str]:
    parts: list[str] = []
    for dataset, title in dict.fromkeys((column.dataset, column.title) for column in table.columns):
        rows = [
            [row.title, *(show(found) for _, show in COSTS)]
            for row in table.rows
            if dataset in row.runs
            for found in (costs(row.runs[dataset]),)
        ]
        if rows:
            header = ["Memory", *(name for name, _ in COSTS)]
            parts += [
                "",
                f"## Costs on {title} (per question or per unit, means; recall seconds = own CPU + provider time)",
                "",
                _grid(header, rows),
            ]
    return parts


FIELDS = (
    "table,memory,dataset,metric,category,questions,scored,unscored,errored,not_reached,aborted,mean,question_low,question_high,"
    "case_low,case_high,clusters,spread,could_be_low,could_be_high,published,published_low,published_high,verdict"
).split(",")


def as_csv(table: Table) -> str:
    """One line a cell and category, everything that the Markdown shows of scores."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            writer.writerows(_csv_lines(table, row, column, cell))
    return out.getvalue()


def _csv_lines(table: Table, row: Row, column: Column, cell: AnyCell) -> list[list[str]]:
    start = [table.name, row.name, column.dataset, column.metric]
    if isinstance(cell, Figure):
        return [
            [*start, ALL, *[""] * 6, *_csv_ours(cell.ours), "", "", "", *_csv_printed(cell.published), cell.verdict()]
        ]
    if isinstance(cell, str):
        return [[*start, ALL, *[""] * (len(FIELDS) - 6), cell]]
    lines = []
    for name in categories(column):
        counts, ours, bounds = cell.counts(name), cell.estimate(name), cell.bounds(name)
        outcome = (counts.questions, counts.scored, counts.unscored, counts.errored, counts.not_reached, counts.aborted)
        lines.append(
            [
                *start,
                name,
                *map(str, outcome),
                *_csv_ours(ours),
                _exact(cell.spread if name == ALL else None),
                *map(_exact, _ends(bounds)),
                *_csv_printed(cell.published if name == ALL else None),
                cell.verdict() if name == ALL else "",
            ]
        )
    return lines


def _csv_ours(ours: Estimate | None) -> list[str]:
    if ours is None:
        return [""] * 6
    return [*map(_exact, (ours.mean, *_ends(ours.by_question), *_ends(ours.by_case))), str(ours.clusters)]


def _csv_printed(published: Published | None) -> list[str]:
    return ["", "", ""] if published is None else [published.printed, _exact(published.low), _exact(published.high)]


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _exact(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


_TEX = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
    }
)


def latex(table: Table) -> str:
    """The scores as a booktabs table: ours with its interval by question, the published number in small print."""
    lines = [
        r"\begin{table}",
        r"\centering",
        r"\small",
        rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"\toprule",
    ]
    header = ["Memory", *(f"{column.title} {column.metric}" for column in table.columns)]
    lines += [" & ".join(part.translate(_TEX) for part in header) + r" \\", r"\midrule"]
    for row in table.rows:
        if row.ruled:
            lines.append(r"\midrule")
        lines.append(" & ".join([row.title.translate(_TEX), *(_tex(cell) for cell in row.cells)]) + r" \\")
    caption = " ".join([table.title + ".", *table.caption]).translate(_TEX)
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _tex(cell: AnyCell) -> str:
    if isinstance(cell, str):
        return cell.translate(_TEX)
    ours = cell.ours if isinstance(cell, Figure) else cell.estimate()
    if ours is None:
        return "--"
    interval = (
        "" if ours.by_question is None else rf" {{\tiny [{ours.by_question.low:.3f}, {ours.by_question.high:.3f}]}}"
    )
    printed = "" if cell.published is None else rf" {{\tiny ({cell.published.printed})}}"
    return f"{ours.mean:.3f}{interval}{printed}"
