"""Compare memories at equal recalled tokens: `python -m scripts budgets table=equal_budgets budget=1000,2000,4000
profile=smoke|subset|paper`.

Reads every row of any table at each budget from one build, and prints score against tokens with bands, the area under the curve, and the
number of questions after which a build pays for itself. A figure (PDF, PNG, SVG), the text and the points go to `results/budgets/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.settings.schema import Budgets

GROUP = "run"
CONFIG = "budgets"
WORDS = "table"


def main(cfg: Budgets) -> int:
    from scripts.tables.equal_budgets import equal_budgets

    return equal_budgets(cfg)
