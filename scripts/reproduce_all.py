"""Every table and figure of the four papers: `python -m scripts.reproduce_all [only=timem] profile=smoke|subset|paper …`.

One process makes them one after the other, so that what several of them show is run once. The list of what was made, by which
command, in how many seconds and into which file, is printed and written to `results/tables/index-<profile>.md`. `only=` keeps the
names that begin so. What fails is in the list, with its last words, and makes the exit code 1; the others are made all the same.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    only = tuple(one.removeprefix("only=") for one in arguments if one.startswith("only="))
    overrides = [one for one in arguments if not one.startswith("only=")]
    made = []
    for each in everything():
        if each.startswith(only or ("",)):
            made.append(make(each, overrides))
            print(line(made[-1]), flush=True)
    folder, profile = _place(overrides)
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / f"index-{profile}.md"
    index.write_text("\n".join([*HEAD, *map(line, made), ""]), encoding="utf-8")
    failed = sum(bool(one.failure) for one in made)
    total = sum(one.seconds for one in made)
    print(f"{len(made) - failed} made in {total:.0f} s, {failed} failed; written: {index}")
    return 1 if failed or not made else 0


def everything() -> Iterator[str]:
    """Names of all tables, then of all figures, paper by paper."""
    for group in ("table", "figure"):
        for paper in PAPERS:
            names = (path.stem for path in (ROOT / "conf" / group).glob(f"{paper}_*.yaml"))
            yield from sorted(names, key=lambda name: (len(name), name))


def make(name: str, overrides: Sequence[str]) -> Made:
    """Make a table or figure, its output kept back."""
    from hydra import compose, initialize_config_dir

    from scripts.figures import figure
    from scripts.paper_table import reproduce

    is_table = (ROOT / "conf" / "table" / f"{name}.yaml").is_file()
    group, primary, script = ("table", "reproduce", "reproduce") if is_table else ("figure", "figures", "figures")
    run: Callable[[DictConfig], int] = reproduce if is_table else figure
    said, started = io.StringIO(), time.perf_counter()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose(primary, [f"{group}={name}", *overrides])
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = run(cfg)
        except Exception as error:  # a fault of one is no reason to go without the others
            code = 2
            print(f"{type(error).__name__}: {error}")
    lines = said.getvalue().strip().splitlines() or [""]
    files = [each for each in lines if each.startswith("written: ")]
    file = files[-1].removeprefix("written: ").split(",")[0].split(" (")[0] if files else "–"
    command = " ".join([f"python -m scripts.{script}", f"{group}={name}", *overrides])
    return Made(name, command, time.perf_counter() - started, file, lines[-1] if code else "")


HEAD = ("| what | command | seconds | file | outcome |", "|---|---|---|---|---|")


def line(made: Made) -> str:
    """A row of the index."""
    cells = (made.name, f"`{made.command}`", f"{made.seconds:.1f}", made.file, made.failure or "made")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _place(overrides: Sequence[str]) -> tuple[Path, str]:
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("reproduce", list(overrides))
    return Path(cfg.results) / "tables", str(cfg.profile_name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
