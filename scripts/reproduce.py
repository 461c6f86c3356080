"""`python -m scripts.reproduce …`, as papers and other READMEs quote it: `python -m scripts reproduce …`."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main(["reproduce", *sys.argv[1:]]))
