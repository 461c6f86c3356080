"""What an experiment will cost, before a token is bought: the same runs with the offline engines, at the real models' prices.

Calls and tokens are those of the offline run; replies of a real model may be longer and its structures different: an estimate.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.costs import BUILD, phases
from eval.run import Run, run_all
from eval.score import Judging, score_judge
from eval.store import read_lines
from memsys.embed import HashingEmbedder
from memsys.llm.client import ModelSettings
from memsys.llm.extractive import ExtractiveLLM
from memsys.llm.meter import Metered
from scripts.assemble import Bench, judging

if TYPE_CHECKING:
    from omegaconf import DictConfig

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

    @property
    def usd(self) -> float | None:
        """Sum over the roles; None when a price is unknown."""
        known = [share.usd for share in self.shares]
        return None if None in known else sum(usd for usd in known if usd is not None)


def plan(cfg: DictConfig, built: Bench, runs: Iterable[Run], judged: Mapping[str, list[str]]) -> Plan:
    """Run everything offline in a temporary folder and price it."""
    engine = Metered(ExtractiveLLM())
    totals = {role: [0, 0, 0] for role in ("memory", "reader", "judge", "embedder")}
    with tempfile.TemporaryDirectory() as folder:
        offline = [_offline(run, engine, Path(folder)) for run in runs]
        run_all(offline, threads=cfg.threads)
        built_once: set[str] = set()
        for run in offline:
            for cost in phases(run.folder):
                if cost.phase in BUILD and run.shared in built_once:
                    continue
                _add(totals[cost.role], cost.calls, cost.tokens_in, cost.tokens_out)
                _add(totals["embedder"], cost.steps if cost.embedding_tokens else 0, cost.embedding_tokens, 0)
            built_once |= {run.shared} - {""}
            for name in judged.get(run.folder.parent.name, ()):
                for line in _judgements(run, replace(judging(cfg, built, name), llm=engine)):
                    _add(totals["judge"], sum(line["calls"].values()), line["tokens_in"], line["tokens_out"])
    models = {"memory": built.memory, "reader": built.reader, "judge": built.judge}
    shares = [_share(role, str(model.settings["model"]), model.prices, totals[role]) for role, model in models.items()]
    shares.append(_share("embedder", built.embedder_name, built.embedder_prices, totals["embedder"]))
    calls = sum(share.calls for share in shares)
    return Plan(tuple(shares), calls * SECONDS_PER_CALL / cfg.endpoint.in_flight)


def shown(plan: Plan) -> str:
    """A plan for print."""
    lines = ["Plan (estimated from the same runs with the offline engines):"]
    for share in plan.shares:
        price = "unknown price" if share.usd is None else f"{share.usd:.2f} USD"
        lines.append(
            f"  {share.role:<9}{share.model:<32}{share.calls:>9} calls {share.tokens_in:>12} tokens in {share.tokens_out:>10} out  {price}"
        )
    total = "unknown" if plan.usd is None else f"{plan.usd:.2f} USD"
    lines.append(f"  total {total}, about {plan.seconds / 60:.0f} minutes at {SECONDS_PER_CALL} s a call")
    return "\n".join(lines)


def confirmed(cfg: DictConfig, plan: Plan) -> bool:
    """Print the plan and ask; `yes=true` answers. Without a terminal to ask on, the answer is no."""
    print(shown(plan))
    if cfg.max_usd is not None and plan.usd is None:
        print("error: max_usd is set, but a price is unknown; fill in conf/llm and conf/embedder", file=sys.stderr)
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
    services = replace(run.services, llm=engine, reader=engine, probe=engine, embedder=HashingEmbedder())
    return replace(run, services=services, folder=folder / run.folder.parent.name / run.folder.name)


def _judgements(run: Run, judge: Judging) -> list[dict[str, Any]]:
    return read_lines(score_judge(run, judge).with_suffix(".effort.jsonl"))


def _add(total: list[int], calls: int, tokens_in: object, tokens_out: object) -> None:
    for place, amount in enumerate((calls, tokens_in, tokens_out)):
        total[place] += int(amount)  # type: ignore[call-overload]


def _share(role: str, model: str, prices: ModelSettings | None, total: list[int]) -> Share:
    usd = None if prices is None else prices.cost(total[1], total[2])
    return Share(role, model, total[0], total[1], total[2], usd)
