"""Check whether a memory depends on the order of its input: `python -m scripts order-test bm25 segtree_td --dataset locomo
[--orders 3]`.

Builds every memory on the histories in their own order and in other random orders, asks the same questions, and prints the paired
difference, other orders minus own order, with intervals, a sign-flip permutation test and Holm's p over all memories. A question's score in
another order is its mean over the orders. The own order is built again the same number of times, because models change some answers by
themselves: the share of scores that change between builds of one order is compared with the share that change with the order.

`--kind sessions` writes the sessions in another order and keeps their dates: every answer stays right, so the memory causes any difference.
`--kind turns` is SegTreeMem's experiment (section 5.4): 30 % of the pairs of turns change places, and dates stay with the places, so that
answers about time may change, too. `all` names every memory but released products. Settings of `memsys-bench run` may follow the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import Any

from eval.files.store import RunError, replace_file
from eval.report.cell import Cell
from eval.report.rendering import by_case, difference_text, grid, number, span
from eval.report.tables import NO_SPREAD, Pair, only_about
from eval.statistics.stats import ENOUGH_CLUSTERS, Difference, Estimate, difference, holm
from scripts.assembly.datasets import Data
from scripts.lab.lab import Lab, Scored
from scripts.setup.arguments import verb_parser, whole
from scripts.setup.options import options as options_of

GROUP = "science"
RUNS_MEMORIES = True

KINDS = {"sessions": "shuffle_sessions", "turns": "permute"}
"""Transform by kind of order."""
RELEASED = "released_"


@dataclass(frozen=True, slots=True)
class OrderEffect:
    title: str
    usual: Estimate
    other: Estimate
    spread: float | None
    """Standard deviation of the mean from order to order, over the questions that all have a score for; None for one order."""
    gap: Difference
    """Scores in the other orders minus scores in the usual order, on the questions that both have a score for."""
    changed: int
    """Number of questions whose score changes with the order."""
    changed_alone: int
    """Number of questions whose score changes when the usual order is built again the same number of times."""
    beyond: Difference
    """The share of questions that change with the order, minus the share that change with a new build."""
    missing: int
    """Number of questions without a score in the usual order, in every other order, or in every build of the usual order."""


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("order-test", __doc__)
    parser.add_argument(
        "words", nargs="+", metavar="MEMORY", help="files of conf/memory, or all; a data set; key=value"
    )
    parser.add_argument("--dataset", default="locomo", help="a file of conf/dataset (default: locomo)")
    parser.add_argument("--kind", choices=KINDS, default="sessions", help="what changes places (default: sessions)")
    parser.add_argument("--orders", type=whole(1), default=3, help="other orders (default: 3)")
    parser.add_argument("--metric", help="judge_<name> or a metric (default: the first)")
    args = parser.parse_intermixed_args(arguments)
    names = [word for word in args.words if "=" not in word]
    dataset = names.pop() if names and names[-1] in options_of("dataset") else args.dataset
    settings = [f"dataset={dataset}", *(word for word in args.words if "=" in word)]
    lab = Lab(*settings)
    if lab.cfg.data.transform != "none":
        raise RunError("order-test changes the order itself; data.transform must be none")
    wanted = memories(names)
    choices = [lab.memory(name) for name in wanted]  # a wrong name is refused before anything is built
    usual = lab.load()
    lab.check_metric(args.metric, usual)
    others = [lab.load(transform=f"{KINDS[args.kind]}:{order}") for order in range(args.orders)]
    place = moved(usual, others, args.kind)
    effects = []
    for option in choices:
        answered = [lab.score(lab.ask(option, dataset)) for dataset in others]
        first, *again = built_again(lab, option, usual, args.orders)
        lab.check_cap()
        effects.append(order_effect(first, answered, again, args.metric))
    metric = args.metric or next(iter(answered[0].cells))
    lines = [f"# {usual.title} in other orders of its {args.kind}: {answered[0].cells[metric].column.metric}", ""]
    if lab.models.stand_ins:
        lines += [
            f"STAND-IN: {', '.join(lab.models.stand_ins)} filled by offline engines; this tests the machinery.",
            "",
        ]
    lines += [f"{args.orders} orders; {place}.", "", *effect_lines(effects)]
    file = lab.models.results / "order_test" / f"{usual.name}-{args.kind}-{metric}.md"
    replace_file(file, "\n".join(lines) + "\n")
    print("\n".join([*lines, "", f"written: {file}"]))
    return 1 if any(effect.missing for effect in effects) else 0


def built_again(lab: Lab, option: Mapping[str, Any], dataset: Data, times: int) -> list[Scored]:
    """The usual order, then the same order built again a number of times; each with `build.replicates` builds."""
    each = int(lab.cfg.build.replicates)
    every = lab.ask(option, dataset, builds=each * (times + 1))
    return [
        lab.score(replace(every, runs=every.runs[start : start + each])) for start in range(0, len(every.runs), each)
    ]


def memories(names: Sequence[str]) -> list[str]:
    """The named memories; `all` means every memory but released products. Raises RunError if no memory is named."""
    every = [name for name in options_of("memory") if not name.startswith(RELEASED)]
    chosen = dict.fromkeys(each for name in names for each in (every if name == "all" else [name]))
    if not chosen:
        raise RunError("order-test needs the name of a memory, or all: order-test bm25 segtree_td --dataset locomo")
    return list(chosen)


def moved(usual: Data, others: Sequence[Data], kind: str) -> str:
    """The number of moved sessions or turns, as text. Raises RunError if no session or turn moves."""
    places = [_places(usual, kind) for _ in others]
    total = sum(map(len, places))
    away = sum(
        first != second
        for before, dataset in zip(places, others, strict=True)
        for first, second in zip(before, _places(dataset, kind), strict=True)
    )
    if not away:
        hint = "; try --kind turns" if kind == "sessions" else ""
        raise RunError(
            f"no order of {usual.title} differs: its histories have one of the {kind}, or questions between all of them{hint}"
        )
    return f"{away / total:.1%} of the {kind} stand in another place"


def _places(dataset: Data, kind: str) -> list[str]:
    cases = (dataset.cases[index] for index in range(len(dataset.cases)))
    return [each.id for case in cases for each in (case.sessions if kind == "sessions" else case.turns)]


def order_effect(
    usual: Scored, others: Sequence[Scored], again: Sequence[Scored], metric: str | None = None
) -> OrderEffect:
    """The effect of other orders on one memory.

    Args:
        again: the usual order, built again the same number of times.
        metric: a key of the scores; None takes the first.

    Raises:
        RunError: there is no such metric, or no question has a score in all orders.
    """
    name = metric or next(iter(usual.cells))
    if name not in usual.cells:
        raise RunError(f"no metric {name!r}; there are: {', '.join(usual.cells)}")
    cell, mean, alone = usual.cells[name], _mean_cell(others, name), _mean_cell(again, name)
    shared = [
        question for question in cell.column.questions if all(question.key in own.scores for own in (cell, mean, alone))
    ]
    gap, before, after = mean.minus(cell), cell.estimate(), mean.estimate()
    if gap is None or before is None or after is None or not shared:
        raise RunError(f"{usual.answers.title}: no question has a score by {name} in all orders")
    changed, changed_alone = (
        [float(abs(own.scores[question.key] - cell.scores[question.key]) > 1e-9) for question in shared]
        for own in (mean, alone)
    )
    beyond = difference(changed, changed_alone, [question.cluster for question in shared], test=False)
    missing, counts = len(cell.column.questions) - len(shared), (int(sum(changed)), int(sum(changed_alone)))
    orders = [each.cells[name].scores for each in others]
    asked = [question for question in shared if all(question.key in own for own in orders)]
    spread = stdev(cell.column.mean(asked, own) for own in orders) if asked and len(orders) > 1 else None
    return OrderEffect(usual.answers.title, before, after, spread, gap, *counts, beyond, missing)


def _mean_cell(scored: Sequence[Scored], name: str) -> Cell:
    """A cell with each question's mean over some orders or builds."""
    cells = [each.cells[name] for each in scored]
    return Cell.of(cells[0].column, (file for cell in cells for file in cell.score_files), cells[0].repeats)


def effect_lines(effects: Sequence[OrderEffect]) -> list[str]:
    """The effects as a table, with p adjusted over all memories."""
    adjusted = holm([effect.gap.p_by_case for effect in effects])
    header = ["Memory", "as it is", "in another order", "difference {by case} [by question]"]
    header += ["scores changed", "built again", "beyond that", "not scored"]
    rows = []
    for effect, p in zip(effects, adjusted, strict=True):
        few = only_about(effect.gap.clusters) if effect.gap.clusters < ENOUGH_CLUSTERS else NO_SPREAD
        pair = Pair(effect.gap, p, "" if p is not None else few)
        spread = "" if effect.spread is None else f" ± {effect.spread:.3f}"
        means = [number(effect.usual.mean), f"{number(effect.other.mean)}{spread}", difference_text(pair)]
        changed = [f"{effect.changed} of {effect.beyond.n}", str(effect.changed_alone)]
        beyond = f"{effect.beyond.mean:+.3f} {span(effect.beyond.by_question)} {by_case(effect.beyond)}"
        rows.append([effect.title, *means, *changed, beyond, str(effect.missing)])
    tested = any(p is not None for p in adjusted)
    p_is = "t-test by case; adjusted: Holm over the memories" if tested else "sign flips over the questions"
    note = f"±: standard deviation from order to order. p: {p_is}."
    null = "built again: scores that change when the usual order is built as often; beyond that: share changed by the order minus that."
    return [grid(header, rows), "", note, null]
