"""Rerun a small offline subset and compare every number with the reference exactly: `python -m scripts regress [--update]`.

A change that moves a score is accepted with `--update` and named in CHANGELOG with both numbers.
"""

from __future__ import annotations

import difflib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from eval.files.provenance import ROOT
from eval.files.store import RunError
from scripts.setup.arguments import verb_parser

GROUP = "develop"
CHECKOUT = True

REFERENCE = ROOT / "results" / "regression" / "regression.csv"


def rerun(folder: Path) -> Path:
    """Make the regression table below `folder`; returns its CSV. Raises RuntimeError if the run fails."""
    command = [sys.executable, "-m", "scripts", "reproduce", "table=regression", "profile=smoke", f"results={folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the regression run failed:\n{done.stderr[-3000:]}")
    return folder / "tables" / "regression-smoke.csv"


def differences(reference: str, found: str) -> list[str]:
    """Lines that differ, as a unified diff without context."""
    lines = difflib.unified_diff(reference.splitlines(), found.splitlines(), "reference", "now", n=0, lineterm="")
    return list(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0 if everything is reproduced, else print the differing lines and return 1."""
    parser = verb_parser("regress", __doc__)
    parser.add_argument("--update", action="store_true", help="accept the present numbers as the reference")
    update = parser.parse_args(arguments).update
    with tempfile.TemporaryDirectory() as folder:
        found = rerun(Path(folder))
        if update:
            REFERENCE.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, REFERENCE)
            print(f"written: {REFERENCE.relative_to(ROOT)}")
            return 0
        if not REFERENCE.is_file():
            raise RunError(f"{REFERENCE.relative_to(ROOT)} does not exist; make it with --update")
        changed = differences(REFERENCE.read_text(encoding="utf-8"), found.read_text(encoding="utf-8"))
    print("\n".join(changed) if changed else f"regression: all of {REFERENCE.relative_to(ROOT)} is reproduced exactly")
    return 1 if changed else 0
