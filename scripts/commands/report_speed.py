"""Measure how fast a large HTML report opens in headless Chromium: `python -m scripts report-speed [--memories 34] [--questions 3406]`.

The runs are invented. Wall time depends on the load of the machine, so the CPU time of the page's process is printed, too.
"""

from __future__ import annotations

from tests.rigs.reporting.speed import main

GROUP = "develop"
CHECKOUT = True
__all__ = ["main"]
