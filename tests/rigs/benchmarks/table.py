"""A whole table against its bound: many memories on histories of LoCoMo's size, built, answered and judged with the default settings.

The bound is the largest of three times: the longest chain of dependent calls times the latency, all calls times the latency divided by
the in-flight limit, and the client's CPU time on one core. The measure is the bound divided by the wall time. No client reaches 1.0: when
the longest builds end, all their answers and verdicts are still to come. `within reach` includes those, too, for a client without any CPU
time. Each table runs in a separate process, so that its CPU time is the client's alone.

The histories have the lengths and numbers of questions of LoCoMo's ten. Ten of equal length would be harder: all builds of the slowest
memory would end at the same moment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.rigs.benchmarks.histories import gauges_at, histories_of_sizes, histories_of_words, services
from tests.rigs.benchmarks.measured import ROOT, Measured, mock, stats

FOUR = ("amem_segt", "mem0_v3_segt", "memtree_segt", "segtree_td")
SIXTEEN = (
    *FOUR, "amem", "lightmem", "mem0", "mem0_v3", "memgpt", "memorybank", "memoryos", "memstream", "memtree", "nemori",
    "timem", "segtree",
)  # fmt: skip
LOCOMO = (
    (419, 152), (369, 81), (663, 152), (629, 199), (680, 178), (675, 123), (689, 150), (681, 191), (509, 156), (568, 158),
)  # fmt: skip
"""Turns of each of its histories, and questions of categories 1 to 4: 5,882 and 1,540."""
LATENCY, IN_FLIGHT = 0.1, 64


@dataclass(frozen=True, slots=True)
class Timed:
    """Times of one table, and its bounds."""

    wall: float
    cpu: float
    calls: int
    chain: float
    """Dependent calls of the longest cell, from its first write to the verdict on its last answer."""
    floor: float
    """Minimum seconds of the calls, in any order that keeps the order within each cell."""
    peak_mb: float

    @property
    def bound(self) -> float:
        """Minimum seconds of the table."""
        return max(self.chain * LATENCY, self.calls * LATENCY / IN_FLIGHT, self.cpu)

    def text(self) -> str:
        """The figures behind the ratio."""
        least = max(self.floor, self.calls * LATENCY / IN_FLIGHT, self.cpu)
        return (
            f"{self.bound / self.wall:.3f} ({self.wall:.1f} s; chain {self.chain * LATENCY:.1f} s, calls "
            f"{self.calls * LATENCY / IN_FLIGHT:.1f} s, CPU {self.cpu:.1f} s; {self.calls} calls, {self.peak_mb:.0f} MB; "
            f"within reach {self.bound / least:.3f})"
        )


def table_of_four() -> list[Measured]:
    """Four memories on ten histories."""
    return [_measured("table of 4 memories x 10 histories, 100 ms, 64 in flight: bound ÷ wall", FOUR, 0.92)]


def table_of_sixteen() -> list[Measured]:
    """Sixteen memories that call models on ten histories."""
    return [_measured("table of 16 memories x 10 histories, 100 ms, 64 in flight: bound ÷ wall", SIXTEEN, 0.90)]


def _measured(title: str, memories: Sequence[str], least: float) -> Measured:
    timed = timed_table(memories)
    return Measured(title, timed.text(), f"≥ {least}", timed.bound / timed.wall >= least)


def timed_table(memories: Sequence[str]) -> Timed:
    """Run a table in a process of its own against a mock endpoint in another."""
    with mock("--latency", str(LATENCY)) as url, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.rigs.benchmarks.table", url, folder, *memories]
        subprocess.run(command, cwd=ROOT, check=True)
        calls = stats(url)["answered"]
        figures = json.loads((Path(folder) / "timed.json").read_text(encoding="utf-8"))
    return Timed(calls=calls, **figures)


def run_table(url: str, folder: Path, memories: Sequence[str]) -> dict[str, Any]:
    """Build, answer and judge; returns the figures that this process can measure."""
    import resource

    from eval.judging.judge import Judge
    from eval.judging.score import Judging
    from eval.running.run import Services
    from memsys.embed import HashingEmbedder
    from memsys.prompts import Prompts
    from scripts.setup.options import load_option

    llm, _, endpoint = services(url, folder / "cache.sqlite", IN_FLIGHT)
    offered = Services(llm, llm, replace(llm, role="probe"), HashingEmbedder(), Prompts(), gauges_at(endpoint))
    chains = _chains(memories, folder / "plan")
    cases = histories_of_sizes(LOCOMO)
    runs = [replace(_run(name, folder, cases, offered), chain=chains[name]) for name in memories]
    judging = Judging(Judge(**load_option("judge", "segtree")), llm, "mock", offered.prompts)
    started, cpu = time.perf_counter(), time.process_time()
    run_and_judge(runs, judging)
    wall, used = time.perf_counter() - started, time.process_time() - cpu
    cells = [_cell(case) for run in runs for case in (run.folder / "cases").iterdir()]
    chain = max(build + longest for build, longest, _ in cells)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "wall": wall,
        "cpu": used,
        "chain": chain,
        "floor": _floor(cells),
        "peak_mb": peak,
    }


def _run(name: str, folder: Path, cases: Sequence[Any], offered: Any) -> Any:
    """The run of a memory with its settings of conf/memory."""
    from data_loaders.raw import as_lazy
    from eval.running.reader import Reader
    from eval.running.run import Run
    from scripts.assembly.runs import recipe_of, unit_of
    from scripts.setup.options import load_option

    lazy, reader = as_lazy(cases), Reader(**load_option("reader", "segtree"))
    recipe = recipe_of(load_option("memory", name))
    unit = dict(unit_of(recipe.memory, {"unit": {"rule": "ab_pair"}}))
    return Run(name, folder / "runs" / name, lazy, lazy.sizes, recipe.build, reader, unit, offered)


def _chains(memories: Sequence[str], folder: Path) -> dict[str, float]:
    """Dependent calls per unit of a history's size, estimated like a run's plan: from a short history with the offline engine."""
    from eval.analysis.costs import BUILD
    from eval.running.loop import run_all
    from eval.running.run import Services
    from memsys.embed import HashingEmbedder
    from memsys.llm.meter import Metered
    from memsys.llm.offline.extractive import ExtractiveLLM
    from memsys.prompts import Prompts
    from scripts.assembly.plan import OneSecond, dependent_calls

    llm = Metered(OneSecond(ExtractiveLLM()))
    offline = Services(llm, llm, replace(llm, role="probe"), HashingEmbedder(), Prompts())
    runs = [_run(name, folder, histories_of_words(1, 1), offline) for name in memories]
    run_all(runs)
    return {run.name: dependent_calls(run.folder, BUILD) / run.sizes[0] for run in runs}


def run_and_judge(runs: Sequence[Any], judging: Any) -> None:
    """Answer and judge in the same way as the commands."""
    from eval.judging.score import JudgingAhead, score_judge
    from eval.running.loop import run_all

    ahead = JudgingAhead()
    for run in runs:
        ahead.expect(run, [judging])
    run_all(runs, on_answer=ahead.on_answer)
    for run in runs:
        score_judge(run, judging, sent_ahead=ahead.take)


Calls = tuple[float, float, int]
"""For one cell: dependent calls of the build, those of its longest question with the verdict, and all calls after the build."""


def _floor(cells: Sequence[Calls]) -> float:
    """Minimum seconds of these cells: the calls of cells that are built late can only be made late."""
    late = [
        build * LATENCY + sum(after for other, _, after in cells if other >= build) * LATENCY / IN_FLIGHT
        for build, _, _ in cells
    ]
    return max(*late, *((build + longest) * LATENCY for build, longest, _ in cells))


def _cell(folder: Path) -> Calls:
    """One cell's calls, from its effort lines."""
    build, reads, after = 0.0, [0.0], 0
    for text in (folder / "effort.jsonl").read_text(encoding="utf-8").splitlines():
        line: Mapping[str, Any] = json.loads(text)
        calls = sum(line["calls"].values())
        # Of concurrent calls only the longest counts in `provider_seconds`, but all count in `provider_seconds_sum`.
        dependent = (
            calls * line["provider_seconds"] / line["provider_seconds_sum"]
            if calls and line["provider_seconds_sum"]
            else 0.0
        )
        if line["phase"] == "read":
            reads.append(dependent)
        elif line["phase"] != "answer":
            build += dependent
            continue
        after += calls + (line["phase"] == "answer")  # and the verdict
    return build, max(reads) + 2, after


if __name__ == "__main__":
    url, folder, *memories = sys.argv[1:]
    figures = run_table(url, Path(folder), memories)
    (Path(folder) / "timed.json").write_text(json.dumps(figures), encoding="utf-8")
