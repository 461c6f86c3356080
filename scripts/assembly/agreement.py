"""Agree to the costs of an experiment: print its plan, ask whether to spend it, and later compare the plan with the usage."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eval.files.store import RunError
from eval.running.run import Run
from scripts.assembly.local import at_pace, pace
from scripts.assembly.models import Models
from scripts.assembly.plan import Plan, plan, total_usd
from scripts.assembly.scorers import judging
from scripts.assembly.steps import workable
from scripts.settings.prices import how_to_give
from scripts.setup.printing import agrees

if TYPE_CHECKING:
    from scripts.settings.schema import Settings


def ask_without_plan(cfg: Settings, models: Models) -> None:
    """Ask before a command that plans nothing makes its first call, if a model has a price; `yes=true` or a cap agrees.

    Raises:
        RunError: the answer is no, or there is no terminal.
    """
    names = models.paid_names
    if cfg.replay or cfg.yes or cfg.max_usd is not None or not names:
        return
    costs = f"{', '.join(names)} cost{'' if len(names) > 1 else 's'} money, and this command does not estimate how much"
    if not sys.stdin.isatty():
        raise RunError(f"{costs}; set a cap with max_usd=DOLLARS, or agree with yes=true (make … MAX_USD=, YES=1)")
    if not agrees(f"{costs}. Spend without a cap?"):
        raise RunError("the costs were declined; max_usd=DOLLARS sets a cap")


def agreed(
    cfg: Settings, models: Models, runs: Sequence[Run], judges: Mapping[str, list[str]]
) -> tuple[bool, Plan | None]:
    """Plan the remaining work of these runs, print the plan, and ask whether to spend it.

    Returns whether the work may begin, and the plan. There is no plan in a replay, nor where nothing is paid for and no model runs on
    this machine (except with profile=paper). The minutes of a model on this machine are printed without a question.

    Args:
        judges: names of the judges by data set.

    Raises:
        RunError: a replay needs a service's run that is not finished, or no model uses the endpoint that the settings name.
    """
    for name in dict.fromkeys(name for names in judges.values() for name in names):
        judging(cfg, models, name)  # a judge's own model may have a price
    if cfg.endpoint.base_url is not None and not models.endpoints:
        raise RunError(
            f"endpoint.base_url={cfg.endpoint.base_url} is not used, because no model is named and stand-ins would answer; "
            "add models.reader=NAME (make … MODEL=NAME names the model of all roles), or leave it out"
        )
    local = models.memory.endpoint if cfg.profile_name == "local" else None
    if cfg.replay or not (cfg.profile_name == "paper" or local is not None or models.paid):
        return True, None
    window = cfg.local.window if local is not None and cfg.local.model is not None else None
    planned = plan(cfg, models, workable(cfg, runs), judges, window)
    if local is not None:
        speed = pace(local.base_url, models.memory.name)
        planned = at_pace(planned, speed, cfg.endpoint.max_output_tokens or 512)
    if cfg.profile_name == "paper" or (models.paid and planned.usd != 0.0):  # None: a price of another model is unknown
        return confirmed(cfg, replace(planned, spent=models.purse.spent)), planned
    print("\n".join([planned.duration.text, *planned.failures]), file=sys.stderr)
    return True, planned


@dataclass(frozen=True, slots=True)
class Meter:
    """Totals of all endpoints at one moment."""

    calls: int
    tokens_in: int
    tokens_out: int
    usd: float
    seconds: float

    def since(self, before: Meter) -> Meter:
        """Usage since an earlier moment."""
        return Meter(
            self.calls - before.calls,
            self.tokens_in - before.tokens_in,
            self.tokens_out - before.tokens_out,
            self.usd - before.usd,
            self.seconds - before.seconds,
        )


def meter(models: Models) -> Meter:
    """The current totals, without calls answered by the cache, which cost nothing."""
    traffic = models.traffic()
    return Meter(
        sum(each.finished for each in traffic),
        sum(each.tokens_in for each in traffic),
        sum(each.tokens_out for each in traffic),
        models.purse.spent,
        time.monotonic(),
    )


def side_by_side(plan: Plan, actual: Meter) -> str:
    """A plan and the usage, figure by figure."""
    shares = plan.shares
    usd = "unknown" if plan.usd is None else f"{plan.usd:.2f}"
    rows = [
        ("calls", str(sum(share.calls for share in shares)), str(actual.calls)),
        ("tokens in", str(sum(share.tokens_in for share in shares)), str(actual.tokens_in)),
        ("tokens out", str(sum(share.tokens_out for share in shares)), str(actual.tokens_out)),
        ("USD", usd, "unknown" if plan.usd is None else f"{actual.usd:.2f}"),
        ("minutes", plan.duration.minutes, f"{actual.seconds / 60:.1f}"),
    ]
    lines = [f"  {name:<12}{estimated:>14}{used:>14}" for name, estimated, used in rows]
    head = f"  {'':<12}{'estimated':>14}{'actual':>14}"
    return "\n".join(["Plan and outcome (what the cache answered is not counted):", head, *lines])


def plan_text(plan: Plan) -> str:
    """The printed text of a plan."""
    lines = ["Plan (estimated from a sample of the same runs with the offline engines):"]
    for share in plan.shares:
        price = "unknown price" if share.usd is None else f"{share.usd:.2f} USD"
        lines.append(
            f"  {share.role:<9}{share.model:<32}{share.calls:>9} calls {share.tokens_in:>12} tokens in {share.tokens_out:>10} out  {price}"
        )
    unknown = dict.fromkeys(share.model for share in plan.shares if share.usd is None)
    lines += [f"  the price of {model} is not known; give it with {how_to_give(model)}" for model in unknown]
    total = "unknown" if plan.usd is None else f"{plan.usd:.2f} USD"
    lines.append(f"  total {total}, {plan.duration.text}")
    if (batched := plan.usd_in_batches) and batched != plan.usd:
        lines.append(
            f"  or {batched:.2f} USD with endpoint.mode=batch: answers within a day of the build, judgements within a day of the answers"
        )
    if plan.later:
        part = "an unknown part" if (usd := total_usd(plan.later)) is None else f"{usd:.2f} USD"
        lines.append(
            f"  of it {part} for second and further builds; build.published=1 leaves those of published rows out"
        )
    return "\n".join([*lines, *plan.failures, *plan.detectable, *plan.open])


def confirmed(cfg: Settings, plan: Plan) -> bool:
    """Print the plan and ask whether to spend it. `yes=true` agrees; without a terminal the answer is no."""
    print(plan_text(plan), flush=True)  # before the line on standard error that mentions it
    if cfg.max_usd is not None and plan.usd is None:
        print("error: max_usd is set, but a price is unknown; the plan above says how to give it", file=sys.stderr)
        return False
    if cfg.max_usd is not None and plan.usd is not None and plan.usd > cfg.max_usd - plan.spent:
        already = f", of which {plan.spent:.4f} are spent" if plan.spent else ""
        print(f"note: the estimate exceeds max_usd={cfg.max_usd}{already}; the run will stop there")
    if cfg.yes:
        return True
    if not sys.stdin.isatty():
        print("error: not asked, because there is no terminal; repeat with yes=true (make … YES=1)", file=sys.stderr)
        return False
    return agrees("Spend this?")
