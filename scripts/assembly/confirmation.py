"""Print a plan, and ask whether to spend what it says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from memsys.llm.batching.endpoint import BatchSettings
from scripts.assembly.plan import Plan, total_usd
from scripts.settings.prices import how_to_give

if TYPE_CHECKING:
    from scripts.settings.schema import Settings

HALF = BatchSettings().discount


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
    lines.append(f"  total {total}, {plan.duration.text}")
    if (batched := plan.usd_in_batches(HALF)) and batched != plan.usd:
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
    print(plan_text(plan), flush=True)  # before the line on standard error that speaks of it
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
