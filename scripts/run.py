"""`python -m scripts.run …`, the form quoted in papers and other READMEs: `python -m scripts run …`."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
