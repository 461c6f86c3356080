"""`python -m scripts.run …`, as papers and other READMEs quote it: `python -m scripts run …`."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
