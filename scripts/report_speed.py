"""How fast a large HTML report opens in headless Chromium: `python -m scripts.report_speed [--memories 34] [--questions 3406]`.

The runs are invented. Wall time depends on what else the machine does; the processor's time of the page's process is printed beside it.
"""

from __future__ import annotations

import sys

from scripts.experiment.exits import guarded

if __name__ == "__main__":
    from scripts.reporting.speed import main

    sys.exit(guarded(main))
