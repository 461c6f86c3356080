"""Every table and figure of the four papers: `python -m scripts.reproduce_all [only=timem] [processes=2] profile=smoke|subset|paper …`.

`only=` keeps the names that begin with it. A list of commands, seconds, files and outcomes is printed and written to
`results/tables/index-<profile>.md`. A table or figure that fails is listed with its error and does not stop the others; the exit code
is then 1. `scripts.experiment.everything` says how the work is spread over processes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scripts.experiment.exits import guarded


def main(arguments: Sequence[str]) -> int:
    """Make every table and figure that is asked for; 2 with one line on standard error for what the user can fix."""
    plain = [argument for argument in arguments if argument != "--traceback"]

    def work() -> int:
        from scripts.experiment.everything import reproduce_all

        return reproduce_all(plain)

    return guarded(work, traceback=len(plain) < len(arguments))


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
