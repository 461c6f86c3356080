"""`memsys-bench reproduce-all`: make every table and figure, in one process or several, and list the outcomes.

Tables and figures share runs: if another process is making a run, a process that needs it waits. Offline there are as many
processes as cores, at most four; with a network there is one, because the in-flight limit and the spending cap apply to one process.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from eval.files.store import RunError, replace_file
from memsys.llm import stopping
from memsys.llm.pricing import Purse, one_cap
from memsys.processes import quiet_tracker
from scripts.settings.checking import nearest
from scripts.settings.schema import Reproduce
from scripts.setup.exits import guarded
from scripts.setup.launch import composed, perform
from scripts.setup.options import CONF, load_option
from scripts.tables.table import Outcome

PAPERS = ("memtree", "timem", "segtreemem", "xmemory")
HEADER = ("| what | command | seconds | file | outcome |", "|---|---|---|---|---|")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One table or figure, made or failed."""

    name: str
    command: str
    """The command that makes only this table or figure."""
    seconds: float
    file: Path | None
    """The written file; None if it failed."""
    failure: str
    """The last line of its output if it failed; otherwise empty."""

    def row(self) -> str:
        file = "–" if self.file is None else str(self.file)
        cells = (self.name, f"`{self.command}`", f"{self.seconds:.1f}", file, self.failure or "made")
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def reproduce_all(arguments: Sequence[str]) -> int:
    """Make all requested tables and figures, print a line for each and write the index; return 1 if any failed.

    Args:
        arguments: `only=`, `processes=` and settings of `memsys-bench reproduce`.

    Raises:
        RunError: `only` matches nothing, or `processes` is refused.
    """
    started = time.perf_counter()
    only = tuple(argument.removeprefix("only=") for argument in arguments if argument.startswith("only="))
    overrides = [argument for argument in arguments if not argument.startswith(("only=", "processes="))]
    names = [name for name in everything() if name.startswith(only or ("",))]
    if not names:
        raise RunError(f"only={only[-1]}: no table or figure begins so{nearest(only[-1], everything())}")
    cfg = composed("reproduce", overrides)
    attempts = {}
    for attempt in _attempts(names, overrides, _processes(arguments, cfg)):
        stopping.check()
        attempts[attempt.name] = attempt
        print(attempt.row(), flush=True)
    index = Path(cfg.results) / "tables" / f"index-{cfg.profile_name}.md"
    replace_file(index, "\n".join([*HEADER, *(attempts[name].row() for name in names), ""]))
    failed = sum(bool(attempt.failure) for attempt in attempts.values())
    seconds = time.perf_counter() - started
    print(f"{len(attempts) - failed} made in {seconds:.0f} s, {failed} failed; written: {index}")
    return 1 if failed else 0


def everything() -> Iterator[str]:
    """Names of all tables, then of all figures, paper by paper."""
    for group in ("table", "figure"):
        for paper in PAPERS:
            names = (path.stem for path in (CONF / group).glob(f"{paper}_*.yaml"))
            yield from sorted(names, key=lambda name: (len(name), name))


def _processes(arguments: Sequence[str], cfg: Reproduce) -> int:
    given = [argument.removeprefix("processes=") for argument in arguments if argument.startswith("processes=")]
    if not given:
        return 1 if cfg.network or cfg.max_usd is not None else min(4, os.cpu_count() or 1)
    if not given[-1].isdecimal() or int(given[-1]) < 1:
        raise RunError(f"processes must be a whole number of at least 1, found {given[-1]!r}")
    if cfg.max_usd is not None and given[-1] != "1":
        raise RunError("max_usd holds for one process; leave processes= out")
    return int(given[-1])


def _attempts(names: Sequence[str], overrides: Sequence[str], processes: int) -> Iterator[Attempt]:
    """Make each, the largest first, and yield it when it is done; if a process is killed, a new pool makes the rest."""
    if processes == 1:
        purses: list[Purse] = []  # the cap holds for all of them together
        for name in names:
            with one_cap(purses):
                attempt = make(name, overrides)
            yield attempt
        return
    left = sorted(names, key=_size, reverse=True)
    quiet_tracker()
    while left:  # a second round only after a process was killed, which breaks its pool
        spawned = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
        with ProcessPoolExecutor(processes, spawned, initializer=stopping.handle_signals_in_child) as pool:
            yield from _pooled(pool, left, overrides, processes)


def _pooled(pool: ProcessPoolExecutor, left: list[str], overrides: Sequence[str], processes: int) -> Iterator[Attempt]:
    """Make the remaining ones, removing each name from the list when it is started; stop early if a process is killed.

    Tables and figures of one paper share runs, so two of them are made at the same time only if no other paper is left.
    """
    busy: dict[Future[Attempt], str] = {}
    killed = False
    while busy or (left and not killed):
        while left and not killed and len(busy) < processes:
            papers = set(map(_paper, busy.values()))
            name = next((each for each in left if _paper(each) not in papers), left[0])
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
                failure = "a process was killed (memory?); make it again"
                yield Attempt(name, command_of(name, overrides), 0.0, None, failure)


def make(name: str, overrides: Sequence[str]) -> Attempt:
    """Make one table or figure with its output captured; an error becomes the attempt's `failure`."""
    from scripts.tables import figures, table

    stopping.check()
    primary, choice = _words(name)
    make_it = table.make_table if primary == "reproduce" else figures.make_figure
    settings = composed(primary, [choice, *overrides])
    output, started = io.StringIO(), time.perf_counter()
    outcome = Outcome(2)

    def work() -> int:
        nonlocal outcome
        outcome = perform(make_it, settings, primary)
        return outcome.code

    with redirect_stdout(output), redirect_stderr(output):
        try:
            code = guarded(work)
        except Exception as error:  # an error in one table does not stop the others
            code = 2
            print(f"{type(error).__name__}: {error}")
    if stopping.wound_down():  # an error in one table does not stop the others; a signal does
        stopping.forget()
    last = (output.getvalue().strip().splitlines() or [""])[-1]
    seconds = time.perf_counter() - started
    return Attempt(name, command_of(name, overrides), seconds, outcome.file, last if code else "")


def command_of(name: str, overrides: Sequence[str]) -> str:
    """The command that makes only this table or figure."""
    return " ".join(["python -m scripts", *_words(name), *overrides])


def _words(name: str) -> tuple[str, str]:
    """The verb that makes a table or figure, and the setting that names it."""
    is_table = (CONF / "table" / f"{name}.yaml").is_file()
    return ("reproduce", f"table={name}") if is_table else ("figures", f"figure={name}")


def _paper(name: str) -> str:
    return name.partition("_")[0]


def _size(name: str) -> int:
    """Rows times data sets, roughly proportional to the amount of work."""
    from scripts.tables.figures import layout
    from scripts.tables.layout import read_lines_of

    is_table = _words(name)[0] == "reproduce"
    table = load_option("table", name) if is_table else layout(load_option("figure", name))
    return len(read_lines_of(table, None)) * len(table["columns"])
