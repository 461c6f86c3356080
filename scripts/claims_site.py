"""Show the audit of published claims as a static site: `python -m scripts claims-site [NAME …] [--data ROOT] [--date DAY]`.

The numbers are those of `memsys-bench claims`. The site opens from the disk or from any static host and asks no other server for anything.
"""

from __future__ import annotations

import sys

from scripts.commands.claims_site import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
