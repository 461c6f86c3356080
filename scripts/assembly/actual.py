"""What an experiment used, beside what its plan estimated."""

from __future__ import annotations

import time
from dataclasses import dataclass

from scripts.assembly.models import Models
from scripts.assembly.plan import Plan


@dataclass(frozen=True, slots=True)
class Meter:
    """Totals of all endpoints at one moment."""

    calls: int
    tokens_in: int
    tokens_out: int
    usd: float
    seconds: float

    def since(self, before: Meter) -> Meter:
        """What was used since an earlier moment."""
        return Meter(
            self.calls - before.calls,
            self.tokens_in - before.tokens_in,
            self.tokens_out - before.tokens_out,
            self.usd - before.usd,
            self.seconds - before.seconds,
        )


def meter(models: Models) -> Meter:
    """The totals as of now. What the cache answers is not part of them, because it costs nothing."""
    traffic = models.traffic()
    return Meter(
        sum(each.finished for each in traffic),
        sum(each.tokens_in for each in traffic),
        sum(each.tokens_out for each in traffic),
        models.purse.spent,
        time.monotonic(),
    )


def side_by_side(plan: Plan, actual: Meter) -> str:
    """A plan and what was used, figure by figure."""
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
