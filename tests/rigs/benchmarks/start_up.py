"""Time of `--help` beyond bare Hydra."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.rigs.benchmarks.measured import ROOT, Measured, timed

BARE = """
import hydra
@hydra.main(version_base="1.3", config_path={path!r}, config_name="config")
def main(cfg): pass
main()
"""


def start_up() -> list[Measured]:
    """Time `--help` and a script that only imports Hydra, alternately."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE.format(path=str(ROOT / "conf")))
        ours, bare = [], []
        for _ in range(7):
            ours.append(timed([sys.executable, "-m", "scripts", "run", "--help"])[0])
            bare.append(timed([sys.executable, str(script), "--help"])[0])
    extra = sorted(ours)[3] - sorted(bare)[3]
    return [
        Measured(
            "`memsys-bench run --help` beyond bare Hydra, medians of 7", f"{extra:.3f} s", "≤ 0.25 s", extra <= 0.25
        )
    ]
