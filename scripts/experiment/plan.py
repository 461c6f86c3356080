"""Estimate what an experiment will cost before anything is paid for.

Every memory is built on one history of each data set, the one of median size, with the offline engines, and answers some of its
questions. Calls and tokens are scaled to all histories and questions and priced at the real models' prices. It is an estimate: replies
of a real model may be longer and the structures it builds different.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from eval.costs import BUILD, phases
from eval.power import POWER, planned
from eval.power import shown as detectable
from eval.run import Run, build_memory
from eval.score import Judging, score_judge
from eval.store import read_lines
from memsys.embed import HashingEmbedder
from memsys.llm.gateway.server import Gateway
from memsys.llm.gateway.upstream import EngineUpstream
from memsys.llm.meter import Metered
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import ModelSettings
from scripts.experiment.models import Models
from scripts.experiment.scorers import judging
from scripts.experiment.steps import execute
from scripts.settings.prices import how_to_give

if TYPE_CHECKING:
    from omegaconf import DictConfig

SAMPLED = 10
"""Questions of the sampled history that are answered, spread evenly over it."""
BUILT = 3
"""The same for a memory that is rebuilt before each question."""

SECONDS_PER_CALL = 1.5
"""Assumed duration of a call; used for the estimated duration only."""

Place = tuple[str, str, str | None]
"""Case, question, and the last turn before the question (None: the question comes after the whole history)."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one role of an experiment will use."""

    role: str
    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    usd: float | None
    """None when the price is unknown."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The estimate of a whole experiment."""

    shares: tuple[Share, ...]
    seconds: float
    detectable: tuple[str, ...] = ()
    """For each data set, a line with the smallest difference between two rows that would be detected."""

    @property
    def usd(self) -> float | None:
        """Sum over the roles; None when a price is unknown."""
        known = [share.usd for share in self.shares]
        return None if None in known else sum(usd for usd in known if usd is not None)


@dataclass(frozen=True, slots=True)
class Sample:
    """A run cut down to one history and some questions, with the factors that scale it to the whole run."""

    run: Run
    questions: int
    """Questions that the sample answers."""
    write_factor: float
    consolidate_factor: float
    question_factor: float
    by_history: tuple[int, ...]
    """Questions of the whole run, by history."""

    def factor(self, phase: str) -> float:
        """Cost of a phase in the whole run, divided by its cost in the sample."""
        if phase not in BUILD:
            return self.question_factor
        return self.consolidate_factor if phase == "consolidate" else self.write_factor


@dataclass(slots=True)
class Usage:
    """Calls and tokens of one role, scaled to the whole experiment."""

    calls: float = 0.0
    tokens_in: float = 0.0
    tokens_out: float = 0.0

    def add(self, factor: float, calls: int, tokens_in: int, tokens_out: int) -> None:
        """Add what a sample used, times its factor."""
        self.calls += factor * calls
        self.tokens_in += factor * tokens_in
        self.tokens_out += factor * tokens_out

    def share(self, role: str, model: str, prices: ModelSettings | None) -> Share:
        """This usage, rounded and priced."""
        calls, tokens_in, tokens_out = round(self.calls), round(self.tokens_in), round(self.tokens_out)
        usd = None if prices is None else prices.cost(tokens_in, tokens_out)
        return Share(role, model, calls, tokens_in, tokens_out, usd)


def plan(cfg: DictConfig, models: Models, runs: Iterable[Run], judges: Mapping[str, list[str]]) -> Plan:
    """Run a sample offline in a temporary folder, scale it and price it.

    Args:
        cfg: sets threads and calls in flight.
        models: the real models, whose prices are used.
        runs: everything that would be run.
        judges: names of the judges by data set.
    """
    offline = Metered(ExtractiveLLM())
    usage = {role: Usage() for role in ("memory", "probe", "reader", "judge", "embedder")}
    with tempfile.TemporaryDirectory() as folder:
        samples = _samples(_offline(run, offline, Path(folder)) for run in runs)
        execute([sample.run for sample in samples], sum(s.questions for s in samples), cfg.threads, "planning")
        builds: set[str] = set()
        for sample in samples:
            _add_run(usage, sample, counts_build=sample.run.shared not in builds)
            builds |= {sample.run.shared} - {""}
            for name in judges.get(sample.run.folder.parent.name, ()):
                _add_judge(usage["judge"], sample, replace(judging(cfg, models, name), llm=offline))
    probe = {"probe": models.probe} if usage["probe"].calls else {}
    by_role = {"memory": models.memory, **probe, "reader": models.reader, "judge": models.judge}
    shares = [usage[role].share(role, model.name, model.prices) for role, model in by_role.items()]
    shares.append(usage["embedder"].share("embedder", models.embedder_name, models.embedder_prices))
    calls = sum(share.calls for share in shares)
    sizes = {sample.run.folder.parent.name: sample.by_history for sample in samples}
    lines = tuple(line for name, counts in sizes.items() for line in _detectable(name, counts))
    return Plan(tuple(shares), calls * SECONDS_PER_CALL / cfg.endpoint.in_flight, lines)


def _add_run(usage: Mapping[str, Usage], sample: Sample, *, counts_build: bool) -> None:
    """Add what a sample's memory, reader and embedder used; a build that several runs share counts once."""
    for cost in phases(sample.run.folder):
        if cost.phase in BUILD and not counts_build:
            continue
        factor = sample.factor(cost.phase)
        for role, used in cost.by_role.items():
            usage[role].add(factor, used.calls, used.tokens_in, used.tokens_out)
        usage["embedder"].add(factor, cost.steps if cost.embedding_tokens else 0, cost.embedding_tokens, 0)


def _add_judge(usage: Usage, sample: Sample, judge: Judging) -> None:
    for line in read_lines(score_judge(sample.run, judge).with_suffix(".effort.jsonl")):
        calls = sum(line["calls"].values())
        usage.add(sample.question_factor, calls, int(line["tokens_in"]), int(line["tokens_out"]))


def _detectable(dataset: str, sizes: Sequence[int]) -> list[str]:
    difference = planned(sizes)
    if difference is None:
        return []
    return [
        f"  {dataset}: {sum(sizes)} questions in {len(sizes)} histories; "
        f"detectable paired difference at {POWER:.0%} power: {detectable(difference[0])} ({difference[1]})"
    ]


def plan_text(plan: Plan) -> str:
    """A plan as it is printed."""
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
    """Print the plan and ask whether to spend it. `yes=true` agrees; without a terminal the answer is no."""
    print(plan_text(plan))
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
    gateway = Gateway(EngineUpstream(engine), HashingEmbedder(), None, "live")
    services = replace(
        run.services,
        llm=engine,
        reader=engine,
        probe=engine.in_role("probe"),
        embedder=HashingEmbedder(),
        gateway=gateway,
    )
    return replace(run, services=services, folder=folder / run.folder.parent.name / run.folder.name)


def _samples(runs: Iterable[Run]) -> list[Sample]:
    places: dict[int, list[list[Place]]] = {}
    samples = []
    for run in runs:
        if id(run.cases) not in places:  # runs on one data set hold the same cases
            places[id(run.cases)] = [
                [(case.id, question.id, question.after) for question, _ in case.questions] for case in run.cases
            ]
        samples.append(_sample(run, places[id(run.cases)]))
    return samples


def _sample(run: Run, places: Sequence[Sequence[Place]]) -> Sample:
    """Cut a run down to its history of median size and a few of that history's questions."""
    asked = [[place for place in history if run.questions(*place[:2])] for history in places]
    by_size = sorted((index for index in range(len(asked)) if asked[index]), key=lambda index: run.sizes[index])
    median = by_size[len(by_size) // 2]
    history = asked[median]
    rebuilt = len({after for *_, after in history}) > 1 and build_memory(run, run.cases[median]).OFFLINE
    count = min(BUILT if rebuilt else SAMPLED, len(history))
    chosen = [history[(2 * number + 1) * len(history) // (2 * count)] for number in range(count)]
    every = run.rebuild_every if count == len(history) else 1  # each sampled question stands for several rebuilds
    builds = [size * _builds(each, run.rebuild_every) for size, each in zip(run.sizes, asked, strict=True)]
    return Sample(
        replace(
            run,
            cases=[run.cases[median]],
            sizes=[run.sizes[median]],
            rebuild_every=every,
            questions=ChosenQuestions(frozenset(place[:2] for place in chosen)),
        ),
        questions=len(chosen),
        write_factor=sum(run.sizes) / run.sizes[median],
        consolidate_factor=sum(builds) / (run.sizes[median] * _builds(chosen, every)),
        question_factor=sum(map(len, asked)) / len(chosen),
        by_history=tuple(map(len, asked)),
    )


@dataclass(frozen=True, slots=True)
class ChosenQuestions:
    """Tells whether a question is asked. Two with the same ids are equal, so that runs can share a build."""

    ids: frozenset[tuple[str, str]]

    def __call__(self, case_id: str, question_id: str) -> bool:
        return (case_id, question_id) in self.ids


def _builds(places: Sequence[Place], every: int) -> int:
    """How often an offline memory is built for these questions."""
    return math.ceil(len({after for *_, after in places}) / every)
