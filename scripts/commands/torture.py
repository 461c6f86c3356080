"""The torture campaign: kills, faults, bad replies, mutated files, full disks, jumping clocks, attacks and lost machines of a Ray cluster.

`python -m scripts torture [--share 0.1] [--only kills …] [--seed 0] [--processes 2]` prints what was tried and what did not survive,
writes the table of bad replies to `results/torture/catalogue.md`, and ends with exit code 1 when anything did not. The whole of it takes
about 40 minutes on two cores; the tests do a tenth.
"""

from __future__ import annotations

from tests.rigs.campaign.campaign import main

GROUP = "develop"
CHECKOUT = True
__all__ = ["main"]
