"""`python -m scripts.reproduce …`, the form quoted in papers and other READMEs: `python -m scripts reproduce …`."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main(["reproduce", *sys.argv[1:]]))
