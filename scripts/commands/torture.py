"""Torture campaign: kills, faults, bad replies, mutated files, full disks, jumping clocks, attacks and lost machines of a Ray cluster.

`python -m scripts torture [--share 0.1] [--only kills …] [--seed 0] [--processes 2]` prints attempts and failures, writes the table of bad
replies to `results/torture/catalogue.md`, and ends with exit code 1 if there was a failure. The whole campaign takes about 40 minutes on
two cores; the tests run a twentieth.
"""

from __future__ import annotations

from tests.rigs.campaign.campaign import main

GROUP = "develop"
CHECKOUT = True
__all__ = ["main"]
