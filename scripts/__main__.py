"""`python -m scripts VERB …` is `memsys-bench VERB …` in a checkout."""

import sys

from scripts.command import main

if __name__ == "__main__":
    sys.exit(main())
