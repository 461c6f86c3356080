"""Compare memories on one data set: `python -m scripts compare mine bm25 segtree --dataset locomo [--limit 100]`.

Runs what is missing, then prints scores, paired differences from the first memory with intervals and adjusted p, wins and losses
by category, and the questions with the largest differences. Settings of `memsys-bench run` may follow the names: `profile=subset
data.root=~/data`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from textwrap import fill

from eval.files.run_folder import read_predictions
from eval.files.store import RunError
from eval.report.cell import Asked, Cell, categories
from eval.report.counted import counted
from eval.report.rendering import difference_text
from eval.report.tables import Table, how_tested
from memsys.inert import visible
from scripts.assembly.steps import complain
from scripts.lab.lab import Lab, Scored
from scripts.settings.schema import PRINTED
from scripts.setup.arguments import verb_parser, whole
from scripts.setup.printing import columns, cut, print_table

GROUP = "run"
RUNS_MEMORIES = True


def differences(table: Table) -> Iterator[str]:
    """The paired difference of every memory from the first, metric by metric."""
    reference, *others = table.rows
    yield f"Paired differences from {reference.title}: mean {{by case}} [by question], p by case and adjusted"
    for place, column in enumerate(table.columns):
        yield f"  {column.metric}"
        yield from (f"    {line}" for line in how_tested(table, place))
        for row in others:
            yield f"    {row.title}: {difference_text(table.pairs.get((row.name, place)))}"


def wins_and_losses(scored: Sequence[Scored], metric: str) -> Iterator[str]:
    """Wins/losses/ties of the first memory against each other one, by category."""
    first, *others = scored
    yield f"Wins/losses/ties of {first.answers.title} by category, {first.cells[metric].column.metric}"
    for other in others:
        counts = tallies(first.cells[metric], other.cells[metric])
        yield f"  against {other.answers.title}"
        width = max(map(len, counts))
        yield from (f"    {category:<{width}}  {'/'.join(map(str, own))}" for category, own in counts.items())


def telling_questions(scored: Sequence[Scored], metric: str, count: int) -> Iterator[str]:
    """The questions with the largest gaps: question, gold, and the answer of every memory."""
    entries = telling([one.cells[metric] for one in scored], count)
    if not entries:
        yield f"No question tells them apart, {scored[0].cells[metric].column.metric}"
        return
    yield f"The {counted(len(entries), 'most telling question')}, {scored[0].cells[metric].column.metric}"
    cases = scored[0].answers.dataset.cases
    for number, (asked, scores) in enumerate(entries, 1):
        case = cases[cases.ids.index(asked.case_id)]
        question, gold = next(pair for pair in case.questions if pair[0].id == asked.question_id)
        yield f"{number:>3}. {asked.case_id} {asked.question_id}{f' ({asked.category})' if asked.category else ''}"
        yield f"     Q     {cut(question.text, columns() - 11)}"
        yield f"     gold  {cut(' | '.join(gold.answers), columns() - 11) or '–'}"
        for one, score in zip(scored, scores, strict=True):
            shown, answer = "–" if score is None else f"{score:.2f}", "not reached"  # of the first replicate
            predictions = read_predictions(one.answers.runs[0].case_folder(asked.case_id))
            if (said := predictions.get(asked.question_id)) is not None:
                answer = said.answer if said.outcome == "answered" else f"{said.outcome}: {said.error}"
            line = f"     {shown:<5} {one.answers.title}: "
            yield line + cut(answer, columns() - len(line))


def compare(names: Sequence[str], settings: Sequence[str], metric: str | None, count: int, choice: str) -> int:
    """Run and print the comparison; the exit code is 1 if too much is not scored, 3 if the plan is declined.

    Args:
        names: files of `conf/memory`; the first is the reference.
        settings: settings of `memsys-bench run`.
        metric: a key of the scores, `judge_<name>` or a metric's name, tested and used for wins and questions; None takes the first.

    Raises:
        RunError: fewer than two memories, one named twice, or an unknown name.
    """
    if len(set(names)) < len(names) or len(names) < 2:
        raise RunError(f"compare needs two memories or more, each named once; found: {', '.join(names) or 'none'}")
    lab = Lab(*settings, probe=False)
    options = [lab.memory(name) for name in names]  # a wrong name is refused before anything is built
    dataset = lab.load()
    lab.check_metric(metric, dataset)
    if not lab.agreed(options, dataset, lab.judges(dataset)):
        return 3
    scored = [lab.score(lab.ask(option, dataset)) for option in options]
    chosen = metric or next(iter(scored[0].cells))
    table = lab.table(*scored, primary=chosen)
    print_table(table, choice)
    parts = (differences(table), wins_and_losses(scored, chosen), telling_questions(scored, chosen, count))
    for part in parts:
        print()
        for line in part:
            print(fill(visible(line), columns(), subsequent_indent=" " * 6, break_on_hyphens=False))
    for one in scored:
        print(f"{one.answers.title}: {one.answers.folder}")
    return complain(table, lab.cfg.missing_limit, lab.models.purse.stop)


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("compare", __doc__)
    parser.add_argument("words", nargs="+", metavar="MEMORY", help="files of conf/memory; then settings, key=value")
    parser.add_argument("--dataset", default="locomo", help="a file of conf/dataset (default: locomo)")
    parser.add_argument("--limit", type=whole(1), help="at most this many questions (data.size)")
    parser.add_argument(
        "--metric", help="tested, and for wins and questions: judge_<name> or a metric (default: the first)"
    )
    parser.add_argument("--questions", type=whole(1), default=10, help="telling questions that are shown (default: 10)")
    parser.add_argument("--print", choices=PRINTED, default="narrow", help="form of the table (default: narrow)")
    args = parser.parse_intermixed_args(arguments)
    settings = [f"dataset={args.dataset}", *(word for word in args.words if "=" in word)]
    settings += [f"data.size={args.limit}"] if args.limit else []
    names = [word for word in args.words if "=" not in word]
    return compare(names, settings, args.metric, args.questions, args.print)


def tallies(first: Cell, second: Cell) -> dict[str, tuple[int, int, int]]:
    """Wins, losses and ties of `first` against `second` by category, `all` first, over the questions that both have a score for. The cells
    have the same column."""
    shared = first.scores.keys() & second.scores.keys()
    counts = {}
    for category in categories(first.column):
        gaps = [
            first.scores[question.key] - second.scores[question.key]
            for question in first.column.questions
            if question.key in shared and question.belongs_to(category)
        ]
        wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
        counts[category] = (wins, losses, len(gaps) - wins - losses)
    return counts


def telling(cells: Sequence[Cell], count: int) -> list[tuple[Asked, tuple[float | None, ...]]]:
    """The questions with the largest gap between the first memory and another one, at most `count`, each with the score of every memory
    (None where there is no score).

    Among equal gaps the question with the larger mean gap over all other memories comes first, then the earlier question in the data.
    Questions without any difference are left out.
    """
    first = cells[0]
    ranked: list[tuple[float, float, tuple[Asked, tuple[float | None, ...]]]] = []
    for question in first.column.questions:
        own = first.scores.get(question.key)
        scores = tuple(cell.scores.get(question.key) for cell in cells)
        if own is None:
            continue
        gaps = [abs(own - score) for score in scores[1:] if score is not None]
        if gaps and max(gaps) > 0:
            ranked.append((max(gaps), fmean(gaps), (question, scores)))
    ranked.sort(key=lambda entry: (-entry[0], -entry[1]))  # the sort is stable: equal gaps keep the order of the data
    return [entry for _, _, entry in ranked[:count]]
