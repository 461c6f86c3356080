"""Every table and figure of the four papers: `python -m scripts.reproduce_all [only=timem] [processes=2] profile=smoke|subset|paper …`.

What several of them show is run once: a process that wants what another is running waits for it and finds it made. Without a network
there are as many processes as cores, four at most; with one there is one, because in-flight limit and spending cap hold for one
process. The list of what was made, by which command, in how many seconds and into which file, is printed and written to
`results/tables/index-<profile>.md`. `only=` keeps the names that begin so. What fails is in the list, with its last words, and makes
the exit code 1; the others are made all the same.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eval.store import RunError, replace_file
from memsys.llm import stopping
from scripts.experiment.assemble import load_option
from scripts.experiment.exits import guarded
from scripts.experiment.launch import composed
from scripts.settings.checking import nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ("memtree", "timem", "segtreemem", "xmemory")


@dataclass(frozen=True, slots=True)
class Made:
    """One table or figure."""

    name: str
    command: str
    seconds: float
    file: str
    failure: str
    """Its last words when it failed; empty when it did not."""


def main(arguments: Sequence[str]) -> int:
    """Make everything that is asked for; 2 with one line on standard error for what the user can mend."""
    plain = [one for one in arguments if one != "--traceback"]
    return guarded(lambda: _everything_made(plain), traceback=len(plain) < len(arguments))


def _everything_made(arguments: Sequence[str]) -> int:
    started = time.perf_counter()
    only = tuple(one.removeprefix("only=") for one in arguments if one.startswith("only="))
    overrides = [one for one in arguments if not one.startswith(("only=", "processes="))]
    names = [name for name in everything() if name.startswith(only or ("",))]
    if not names:
        raise RunError(f"only={only[-1]}: no table or figure begins so{nearest(only[-1], everything())}")
    cfg = composed("reproduce", overrides)
    made = {}
    for one in _all_made(names, overrides, _processes(arguments, cfg)):
        stopping.check()
        made[one.name] = one
        print(line(one), flush=True)
    index = Path(cfg.results) / "tables" / f"index-{cfg.profile_name}.md"
    replace_file(index, "\n".join([*HEAD, *(line(made[name]) for name in names), ""]))
    failed = sum(bool(one.failure) for one in made.values())
    seconds = time.perf_counter() - started
    print(f"{len(made) - failed} made in {seconds:.0f} s, {failed} failed; written: {index}")
    return 1 if failed or not made else 0


def _processes(arguments: Sequence[str], cfg: DictConfig) -> int:
    wanted = [one.removeprefix("processes=") for one in arguments if one.startswith("processes=")]
    if not wanted:
        return 1 if cfg.network else min(4, os.cpu_count() or 1)
    if not wanted[-1].isdecimal() or int(wanted[-1]) < 1:
        raise RunError(f"processes must be a whole number of at least 1, found {wanted[-1]!r}")
    if cfg.max_usd is not None and wanted[-1] != "1":
        raise RunError("max_usd holds for one process; leave processes= out")
    return int(wanted[-1])


def _all_made(names: Sequence[str], overrides: Sequence[str], processes: int) -> Iterator[Made]:
    """Each, as soon as it is made, the largest first; as long as another paper is left, no two processes make what may share runs."""
    if processes == 1:
        yield from (make(name, overrides) for name in names)
        return
    left = sorted(names, key=_cells, reverse=True)
    while left:  # once, unless a process is killed: a pool does not outlive that
        # Not forked: a fork would copy the locks that other threads hold.
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, spawned, initializer=stopping.heed_in_child) as pool:
            yield from _pooled(pool, left, overrides, processes)


def _pooled(pool: ProcessPoolExecutor, left: list[str], overrides: Sequence[str], processes: int) -> Iterator[Made]:
    """What is left, taken out of the list as it is begun; ends early when a process is killed, with what was being made as failed."""
    busy: dict[Future[Made], str] = {}
    killed = False
    while busy or (left and not killed):
        while left and not killed and len(busy) < processes:
            papers = set(map(_paper, busy.values()))
            name = next((one for one in left if _paper(one) not in papers), left[0])
            try:
                busy[pool.submit(make, name, overrides)] = name
            except BrokenProcessPool:
                killed = True
            else:
                left.remove(name)
        for future in wait(busy, return_when=FIRST_COMPLETED).done:
            name = busy.pop(future)
            try:
                yield future.result()
            except BrokenProcessPool:
                killed = True
                yield Made(name, command_of(name, overrides), 0.0, "–", "a process was killed (memory?); make it again")


def _paper(name: str) -> str:
    return name.partition("_")[0]


def _cells(name: str) -> int:
    """Rows times data sets: about how much there is to run."""
    from scripts.experiment.layout import read_lines_of
    from scripts.figures import layout

    table = load_option("table", name) if _is_table(name) else layout(load_option("figure", name))
    return len(read_lines_of(table, None)) * len(table["columns"])


def _is_table(name: str) -> bool:
    return (ROOT / "conf" / "table" / f"{name}.yaml").is_file()


def everything() -> Iterator[str]:
    """Names of all tables, then of all figures, paper by paper."""
    for group in ("table", "figure"):
        for paper in PAPERS:
            names = (path.stem for path in (ROOT / "conf" / group).glob(f"{paper}_*.yaml"))
            yield from sorted(names, key=lambda name: (len(name), name))


def make(name: str, overrides: Sequence[str]) -> Made:
    """Make a table or figure, its output kept back."""
    from scripts.experiment.table import reproduce
    from scripts.figures import figure

    stopping.check()
    is_table = _is_table(name)
    run: Callable[[DictConfig], int] = reproduce if is_table else figure
    said, started = io.StringIO(), time.perf_counter()
    cfg = composed("reproduce" if is_table else "figures", [_chosen(name), *overrides])
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = run(cfg)
        except Exception as error:  # a fault of one is no reason to go without the others
            code = 2
            print(f"{type(error).__name__}: {error}")
    lines = said.getvalue().strip().splitlines() or [""]
    files = [each for each in lines if each.startswith("written: ")]
    file = files[-1].removeprefix("written: ").split(",")[0].split(" (")[0] if files else "–"
    return Made(name, command_of(name, overrides), time.perf_counter() - started, file, lines[-1] if code else "")


def command_of(name: str, overrides: Sequence[str]) -> str:
    """What makes one of them alone."""
    return " ".join([f"python -m scripts.{'reproduce' if _is_table(name) else 'figures'}", _chosen(name), *overrides])


def _chosen(name: str) -> str:
    return f"{'table' if _is_table(name) else 'figure'}={name}"


HEAD = ("| what | command | seconds | file | outcome |", "|---|---|---|---|---|")


def line(made: Made) -> str:
    """A row of the index."""
    cells = (made.name, f"`{made.command}`", f"{made.seconds:.1f}", made.file, made.failure or "made")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
