"""Draw the calls in flight over a whole table: `python -m tests.rigs.benchmarks.timeline FIGURE.png [CHECKOUT]` measures and draws."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.rigs.benchmarks.measured import ROOT
from tests.rigs.benchmarks.table import FOUR, IN_FLIGHT, timed_table


def draw(timeline: Sequence[tuple[float, int]], title: str, path: Path) -> None:
    """Write a PNG of the calls in flight (mean of each second) over the seconds since the start."""
    from matplotlib.figure import Figure

    by_second: dict[int, list[int]] = {}
    for moment, in_flight in timeline:
        by_second.setdefault(int(moment), []).append(in_flight)
    seconds = sorted(by_second)
    means = [sum(by_second[second]) / len(by_second[second]) for second in seconds]
    figure = Figure(figsize=(10, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(seconds, means, step="post", linewidth=0)
    axes.axhline(IN_FLIGHT, linestyle="--", linewidth=1, color="black")
    axes.set(xlabel="seconds", ylabel="calls in flight", ylim=(0, IN_FLIGHT * 1.1), xlim=(0, None))
    axes.set_title(title, fontsize=8)
    figure.savefig(path, dpi=120)


def main(path: Path, root: Path) -> None:
    """Measure the table of four memories with the code of a checkout, and draw it."""
    timed = timed_table(FOUR, root=root)
    draw(timed.timeline, f"{', '.join(FOUR)}: bound ÷ wall\n{timed.text()}", path)
    print(timed.text())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT)
