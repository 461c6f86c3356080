"""Measure speed against the mock endpoint, as ratios of one run: `python -m scripts bench [--only NAME …]`.

Each line is a measurement, its bound, and whether the bound holds. Absolute times depend on the machine, so bounds are on ratios,
calls and memory.
`kill` kills a run twenty times at random moments and counts repeated requests with the mock's own counter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from scripts.setup.arguments import verb_parser
from tests.rigs.benchmarks.client import client_cpu
from tests.rigs.benchmarks.gateway import gateway
from tests.rigs.benchmarks.insertion import insertion
from tests.rigs.benchmarks.kills import kill
from tests.rigs.benchmarks.many_histories import many_histories
from tests.rigs.benchmarks.measured import Measured
from tests.rigs.benchmarks.open_cells import open_cells
from tests.rigs.benchmarks.rates import limited_rate, limited_to_sixty
from tests.rigs.benchmarks.rows import answer_and_judge, bm25_row
from tests.rigs.benchmarks.start_up import start_up
from tests.rigs.benchmarks.table import table_of_four, table_of_sixteen

GROUP = "develop"
CHECKOUT = True

BENCHES: dict[str, Callable[[], list[Measured]]] = {
    bench.__name__: bench
    for bench in (
        *(answer_and_judge, client_cpu, gateway, bm25_row, start_up, insertion, many_histories, open_cells, kill),
        *(limited_rate, limited_to_sixty, table_of_four, table_of_sixteen),
    )
}
LONG = ("limited_to_sixty",)
"""Measurements of five minutes and more, which run only with `--only`."""


def _loop_seconds() -> float:
    """CPU seconds of a fixed loop: distinguishes a slow machine from a slow program."""
    started = time.process_time()
    total = 0
    for number in range(3_000_000):
        total += number * number
    return time.process_time() - started


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("bench", __doc__)
    parser.add_argument(
        "--only", nargs="*", choices=list(BENCHES), default=[name for name in BENCHES if name not in LONG]
    )
    chosen = parser.parse_args(arguments).only
    print(f"     a fixed loop of Python takes {_loop_seconds():.2f} s of CPU here and now", flush=True)
    measured = []
    for name in chosen:
        for figure in BENCHES[name]():
            measured.append(figure)
            print(
                f"{'ok  ' if figure.holds else 'MISS'} {figure.what}: {figure.value} (bound {figure.bound})", flush=True
            )
    return 0 if all(figure.holds for figure in measured) else 1
