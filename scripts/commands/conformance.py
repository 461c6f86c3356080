"""Write test facts through a memory's own interface and check what it returns, before any score: `python -m scripts conformance
memory=mem0_http`.

Names each fault and refuses the memory (exit code 1): lost dates or speakers, a late index, leaks between cases, searches
that change the stored data, deletions that are not done, failures that are reported as success … Further settings are those of
`memsys-bench run`; without a model, offline engines are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.settings.schema import Single

GROUP = "run"
CONFIG = "config"
WORDS = "memory dataset"


def main(cfg: Single) -> int:
    from scripts.lab.lab import Lab, examined

    lab = Lab(cfg=cfg)
    return 0 if examined(lab, lab.load(), lab.memory()) else 1
