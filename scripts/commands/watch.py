"""Follow a running experiment from another terminal: `python -m scripts watch RESULTS [--once] [--all] [--prices FILE]`.

Reads only the files of the runs. Shows finished cases, answered questions, errors, verdicts, tokens and dollars so far, and the age of
the last line. Runs whose last line is older than an hour are left out, unless `--all`. Dollars are list prices; what came in
batches costs the share that the run's command named (`endpoint.batch.discount`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.analysis.costs import EMBEDDER, Price, dollars
from eval.analysis.watching import Seen, Watcher
from eval.files.run_folder import RunFolder, RunRecord
from eval.files.store import RunError
from eval.report.rendering import money_text
from memsys.inert import visible
from memsys.llm.pricing import ModelSettings
from scripts.assembly.run_folders import held
from scripts.settings.types import given_prices, priced
from scripts.setup.arguments import amount, verb_parser
from scripts.setup.options import load_option, options
from scripts.setup.printing import console, duration

if TYPE_CHECKING:
    from rich.table import Table

GROUP = "look"

RECENT = 3600.0
"""Seconds after its last line for which a run is shown."""
LEAST_NAME = 12
"""Minimum cells of a run's name, however narrow the terminal is."""
HEADER = ("run", "state", "cases", "answered", "errors", "judged", "tokens", "$", "last")
SPARED = ("judged", "tokens", "$", "cases", "last")
"""Columns that a narrow terminal leaves out, in this order."""
FREE = ("extractive", "hashing")
"""Engines without a model, by name."""


class PriceList:
    """US dollars of a run's usage, from the prices in `conf` and those of the user."""

    def __init__(self, file: str | None) -> None:
        self._known: dict[str, ModelSettings] = {}
        given = given_prices(file)
        for group in ("llm", "embedder"):
            for name in options(group):
                if known := load_option(group, name).get("settings"):
                    self._known[known["model"]] = priced(known, given, name)
        for name, prices in given.items():
            settings: dict[str, Any] = {"model": name, **prices}
            self._known.setdefault(name, ModelSettings(**settings))

    def dollars(self, seen: Seen) -> list[float | None]:
        """The cost of each priced model in each phase, and what batches saved; None where a price is unknown."""
        models = {
            role: model
            for role in {EMBEDDER, *(role for cost in seen.costs for role in cost.by_role)}
            if (model := _model(seen.record, role)) is not None
        }
        unknown: Price = lambda tokens_in, tokens_out, cached: None  # noqa: E731
        prices = {role: self._known[model].cost if model in self._known else unknown for role, model in models.items()}
        return [usd for cost in seen.costs for usd in dollars(cost, prices)]


def _model(record: RunRecord, role: str) -> str | None:
    """Name of the model in a role; None for an engine of this machine, which costs nothing."""
    if role.startswith("judge "):
        name = role.removeprefix("judge ")
        return None if name in FREE else name
    models = record.models
    settings = models.get(role) or (models.get("reader") if role == "probe" else None) or {}
    return None if settings.get("engine") in (*FREE, "local") else str(settings.get("model", "unknown"))


def state_of(seen: Seen) -> str:
    """`running` while a process holds the run, else `finished` or `stopped`."""
    if held(seen.folder):
        return "running"
    return "finished" if seen.cases == seen.record.cases and not seen.errors else "stopped"


def row(seen: Seen, prices: PriceList, now: float) -> tuple[str, ...]:
    """The texts of a run's line, in the order of `HEADER`."""
    total = seen.record.cases
    cases = f"{seen.cases}/{total}" if total is not None else str(seen.cases)
    damage = f" ({seen.damaged} damaged lines)" if seen.damaged else ""
    return (
        visible(RunFolder(seen.folder).key),
        state_of(seen),
        cases,
        str(seen.answered),
        f"{seen.errors}{damage}",
        str(seen.judged),
        f"{seen.tokens:,}",
        money_text(prices.dollars(seen)),
        f"{duration(max(0.0, now - seen.last))} ago",
    )


def recent(every: Sequence[Seen], now: float, *, all_runs: bool) -> list[Seen]:
    """Active runs, then recently written runs, the latest first, because a screen shows the top."""
    chosen = [(held(seen.folder), seen) for seen in every]
    chosen = [(running, seen) for running, seen in chosen if all_runs or running or now - seen.last < RECENT]
    return [seen for _, seen in sorted(chosen, key=lambda pair: (not pair[0], -pair[1].last, pair[1].folder))]


def drawing(runs: Sequence[Seen], prices: PriceList, now: float, width: int = 80) -> Table:
    """The runs as a table; stopped ones are yellow, errors red. Columns are left out where a name has less than `LEAST_NAME` cells."""
    from rich.table import Table
    from rich.text import Text

    lines = [row(seen, prices, now) for seen in runs]
    widths = {name: max([len(name), *map(len, texts)]) for name, *texts in zip(HEADER, *lines, strict=True)}
    name_width = min(widths.pop("run"), LEAST_NAME)
    for header in SPARED:
        if name_width + sum(widths.values()) + 2 * len(widths) > width:
            del widths[header]
    grid = Table(box=None, pad_edge=False, header_style="bold")
    # Names may be cut; numbers and headers are not.
    grid.add_column("run", overflow="ellipsis", min_width=name_width)
    for header, least in widths.items():
        grid.add_column(header, justify="left" if header == "state" else "right", no_wrap=True, min_width=least)
    for texts in lines:
        style = "" if texts[1] != "stopped" else "yellow"
        grid.add_row(
            *(
                Text(text, style="red" if name == "errors" and text != "0" else style)
                for name, text in zip(HEADER, texts, strict=True)
                if name == "run" or name in widths
            )
        )
    return grid


def watch(results: Path, prices: PriceList, *, once: bool, all_runs: bool, every: float) -> int:
    """Print once, or draw until interrupted. Raises RunError if the folder holds no runs."""
    from rich.live import Live

    if not (results / "runs").is_dir():
        raise RunError(f"{results} holds no runs (no folder {results / 'runs'})")
    watcher = Watcher()

    terminal = sys.stdout.isatty()
    drawn = console(sys.stdout) if terminal else console(sys.stdout, width=160, height=25)

    def look() -> Table:
        now = time.time()
        return drawing(recent(watcher.runs(results), now, all_runs=all_runs), prices, now, drawn.width)

    if once:
        drawn.print(look())
        return 0
    try:
        if not terminal:
            while True:
                drawn.print(look())
                time.sleep(every)
        with Live(look(), console=drawn, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(look(), refresh=True)
    except KeyboardInterrupt:  # Ctrl-C is the way to end it
        return 0


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("watch", __doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"), help="default: results")
    parser.add_argument("--once", action="store_true", help="print once and end")
    parser.add_argument("--all", action="store_true", help="runs that were last written more than an hour ago, too")
    parser.add_argument("--prices", help="a YAML file of prices, as prices= takes it")
    parser.add_argument("--every", type=amount(0.1), default=2.0, help="seconds between two looks (default: 2)")
    args = parser.parse_args(arguments)

    return watch(args.results, PriceList(args.prices), once=args.once, all_runs=args.all, every=args.every)
