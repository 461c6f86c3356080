"""What an experiment will cost, before a token is bought: a sample of its runs with the offline engines, at the real models' prices.

Every memory lives through one history of each data set, the middle one by size, and answers some of its questions; what that takes
is scaled to all histories and questions. Replies of a real model may be longer and its structures different: an estimate.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.costs import BUILD, phases
from eval.power import POWER, planned
from eval.power import shown as detectable
from eval.run import Run, build_memory
from eval.score import Judging, score_judge
from eval.store import read_lines
from memsys.embed import HashingEmbedder
from memsys.llm.meter import Metered
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import ModelSettings
from scripts.experiment.assemble import Bench, judging
from scripts.experiment.steps import execute
from scripts.settings.prices import how_to_give

if TYPE_CHECKING:
    from omegaconf import DictConfig

SAMPLED = 10
"""Questions of the sampled history that are asked, spread evenly over it."""
BUILT = 3
"""As many of a memory that is built anew for each of them."""

SECONDS_PER_CALL = 1.5
"""Assumed time of a call, for the estimate of the duration only."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one role of an experiment will use."""

    role: str
    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    usd: float | None
    """None: the price is unknown."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The estimate of a whole experiment."""

    shares: tuple[Share, ...]
    seconds: float
    detectable: tuple[str, ...] = ()
    """By data set, how small a difference between two rows would be found."""

    @property
    def usd(self) -> float | None:
        """Sum over the roles; None when a price is unknown."""
        known = [share.usd for share in self.shares]
        return None if None in known else sum(usd for usd in known if usd is not None)


@dataclass(frozen=True, slots=True)
class Sample:
    """A run cut down to one history and some questions, and how much more of everything the whole run is."""

    run: Run
    asked: int
    """Questions that it is asked."""
    writing: float
    consolidating: float
    questions: float
    by_history: tuple[int, ...]
    """Questions that the whole run is asked, by history."""

    def factor(self, phase: str) -> float:
        """How often a phase of the whole run holds that of the sample."""
        if phase not in BUILD:
            return self.questions
        return self.consolidating if phase == "consolidate" else self.writing


def plan(cfg: DictConfig, built: Bench, runs: Iterable[Run], judged: Mapping[str, list[str]]) -> Plan:
    """Run a sample offline in a temporary folder, scale it, and price it."""
    engine = Metered(ExtractiveLLM())
    totals = {role: [0.0, 0.0, 0.0] for role in ("memory", "probe", "reader", "judge", "embedder")}
    with tempfile.TemporaryDirectory() as folder:
        samples = _samples(_offline(run, engine, Path(folder)) for run in runs)
        execute([one.run for one in samples], sum(one.asked for one in samples), cfg.threads, "planning")
        built_once: set[str] = set()
        for one in samples:
            for cost in phases(one.run.folder):
                if cost.phase in BUILD and one.run.shared in built_once:
                    continue
                factor = one.factor(cost.phase)
                for role, usage in cost.by_role.items():
                    _add(totals[role], factor, usage.calls, usage.tokens_in, usage.tokens_out)
                _add(totals["embedder"], factor, cost.steps if cost.embedding_tokens else 0, cost.embedding_tokens, 0)
            built_once |= {one.run.shared} - {""}
            for name in judged.get(one.run.folder.parent.name, ()):
                for line in _judgements(one.run, replace(judging(cfg, built, name), llm=engine)):
                    _add(
                        totals["judge"],
                        one.questions,
                        sum(line["calls"].values()),
                        line["tokens_in"],
                        line["tokens_out"],
                    )
    probes = {"probe": built.probe} if totals["probe"][0] else {}
    models = {"memory": built.memory, **probes, "reader": built.reader, "judge": built.judge}
    shares = [_share(role, model.name, model.prices, totals[role]) for role, model in models.items()]
    shares.append(_share("embedder", built.embedder_name, built.embedder_prices, totals["embedder"]))
    calls = sum(share.calls for share in shares)
    sizes = {one.run.folder.parent.name: one.by_history for one in samples}
    lines = tuple(line for name, each in sizes.items() for line in _detectable(name, each))
    return Plan(tuple(shares), calls * SECONDS_PER_CALL / cfg.endpoint.in_flight, lines)


def _detectable(dataset: str, sizes: Sequence[int]) -> list[str]:
    found = planned(sizes)
    if found is None:
        return []
    return [
        f"  {dataset}: {sum(sizes)} questions in {len(sizes)} histories; "
        f"detectable paired difference at {POWER:.0%} power: {detectable(found[0])} ({found[1]})"
    ]


def shown(plan: Plan) -> str:
    """A plan for print."""
    lines = ["Plan (estimated from a sample of the same runs with the offline engines):"]
    for share in plan.shares:
        price = "unknown price" if share.usd is None else f"{share.usd:.2f} USD"
        lines.append(
            f"  {share.role:<9}{share.model:<32}{share.calls:>9} calls {share.tokens_in:>12} tokens in {share.tokens_out:>10} out  {price}"
        )
    unknown = dict.fromkeys(share.model for share in plan.shares if share.usd is None)
    lines += [f"  the price of {model} is not known; give it with {how_to_give(model)}" for model in unknown]
    total = "unknown" if plan.usd is None else f"{plan.usd:.2f} USD"
    lines.append(f"  total {total}, about {plan.seconds / 60:.0f} minutes at {SECONDS_PER_CALL} s a call")
    return "\n".join([*lines, *plan.detectable])


def confirmed(cfg: DictConfig, plan: Plan) -> bool:
    """Print the plan and ask; `yes=true` answers. Without a terminal to ask on, the answer is no."""
    print(shown(plan))
    if cfg.max_usd is not None and plan.usd is None:
        print("error: max_usd is set, but a price is unknown; the plan above says how to give it", file=sys.stderr)
        return False
    if cfg.max_usd is not None and plan.usd is not None and plan.usd > cfg.max_usd:
        print(f"note: the estimate exceeds max_usd={cfg.max_usd}; the run will stop there")
    if cfg.yes:
        return True
    if not sys.stdin.isatty():
        print("error: not asked, because there is no terminal; repeat with yes=true (make … YES=1)", file=sys.stderr)
        return False
    return input("Spend this? [y/N] ").strip().lower() in ("y", "yes")


def _offline(run: Run, engine: Metered, folder: Path) -> Run:
    services = replace(
        run.services, llm=engine, reader=engine, probe=engine.in_role("probe"), embedder=HashingEmbedder()
    )
    return replace(run, services=services, folder=folder / run.folder.parent.name / run.folder.name)


def _samples(runs: Iterable[Run]) -> list[Sample]:
    known: dict[int, list[list[tuple[str, str, str | None]]]] = {}
    samples = []
    for run in runs:
        if id(run.cases) not in known:  # runs on one data set hold the same cases
            known[id(run.cases)] = [
                [(case.id, question.id, question.after) for question, _ in case.questions] for case in run.cases
            ]
        samples.append(_sample(run, known[id(run.cases)]))
    return samples


def _sample(run: Run, questions: Sequence[Sequence[tuple[str, str, str | None]]]) -> Sample:
    asked = [[one for one in own if run.questions(*one[:2])] for own in questions]
    order = sorted((index for index in range(len(asked)) if asked[index]), key=lambda index: run.sizes[index])
    middle = order[len(order) // 2]
    own = asked[middle]
    rebuilt = len({after for *_, after in own}) > 1 and build_memory(run, run.cases[middle]).OFFLINE
    count = min(BUILT if rebuilt else SAMPLED, len(own))
    chosen = [own[(2 * place + 1) * len(own) // (2 * count)] for place in range(count)]
    every = run.rebuild_every if count == len(own) else 1  # where only some are asked, each stands for several builds
    builds = [size * _builds(each, run.rebuild_every) for size, each in zip(run.sizes, asked, strict=True)]
    return Sample(
        replace(
            run,
            cases=[run.cases[middle]],
            sizes=[run.sizes[middle]],
            rebuild_every=every,
            questions=_Chosen(frozenset(one[:2] for one in chosen)),
        ),
        asked=len(chosen),
        writing=sum(run.sizes) / run.sizes[middle],
        consolidating=sum(builds) / (run.sizes[middle] * _builds(chosen, every)),
        questions=sum(map(len, asked)) / len(chosen),
        by_history=tuple(map(len, asked)),
    )


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Which questions are asked; equal for equal ones, so that runs go on sharing their builds."""

    ids: frozenset[tuple[str, str]]

    def __call__(self, case_id: str, question_id: str) -> bool:
        return (case_id, question_id) in self.ids


def _builds(asked: Sequence[tuple[str, str, str | None]], every: int) -> int:
    """How often an offline memory is built for these questions."""
    return math.ceil(len({after for *_, after in asked}) / every)


def _judgements(run: Run, judge: Judging) -> list[dict[str, Any]]:
    return read_lines(score_judge(run, judge).with_suffix(".effort.jsonl"))


def _add(total: list[float], factor: float, calls: int, tokens_in: object, tokens_out: object) -> None:
    for place, amount in enumerate((calls, tokens_in, tokens_out)):
        total[place] += factor * int(amount)  # type: ignore[call-overload]


def _share(role: str, model: str, prices: ModelSettings | None, total: Sequence[float]) -> Share:
    calls, tokens_in, tokens_out = map(round, total)
    usd = None if prices is None else prices.cost(tokens_in, tokens_out)
    return Share(role, model, calls, tokens_in, tokens_out, usd)
