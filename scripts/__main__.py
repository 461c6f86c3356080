"""`python -m scripts VERB …` is `memsys-bench VERB …` in a checkout."""

import sys

if __name__ == "__main__":
    try:
        from scripts.command import main
    except KeyboardInterrupt:
        print("stopped before anything was begun", file=sys.stderr)
        sys.exit(130)
    sys.exit(main())
