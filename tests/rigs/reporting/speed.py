"""The command `memsys-bench report-speed`: invent runs, build their report, open it, search it."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.report.html.build import Wanted, build
from eval.report.html.sources import read_sources
from scripts.setup.arguments import as_called, whole
from tests.rigs.reporting.browser import Browser
from tests.rigs.reporting.invented import Size, write_results

HISTORIES = 10
WANTED = {"open": 2.0, "search": 0.2}
"""Maximum CPU seconds of the page's process for opening and searching."""
SEARCHES = ("violin.*harbour", "^h3 ", "(lemon|market) (sister|engine)", "garden")
SEARCH = """(async () => {
  const box = document.getElementById("search"), start = performance.now();
  box.value = %s;
  box.dispatchEvent(new Event("input"));
  const made = performance.now();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return [made - start, performance.now() - start];
})()"""


@dataclass(frozen=True, slots=True)
class Timed:
    """One measurement."""

    what: str
    wall: float
    cpu: float
    """CPU seconds of the page's process."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the times; return 1 if one is longer than `WANTED`."""
    parser = argparse.ArgumentParser(prog=as_called("python -m scripts report-speed"), description=__doc__)
    parser.add_argument("--memories", type=whole(2), default=34)
    parser.add_argument("--questions", type=whole(1), default=3406)
    parser.add_argument("--folder", type=Path, help="keep the runs and the report here, and use them again")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        page = _report(args.folder or Path(temporary), args.memories, args.questions)
        timed = measure(page)
    for each in timed:
        print(f"{each.what:<44} {each.wall * 1000:8.0f} ms   processor {each.cpu * 1000:8.0f} ms")
    slow = [each for each in timed if each.cpu > WANTED.get(each.what.split()[0], float("inf"))]
    for each in slow:
        print(f"slower than wanted ({WANTED[each.what.split()[0]]} s): {each.what}")
    return int(bool(slow))


def _report(folder: Path, memories: int, questions: int) -> Path:
    size = Size(memories, HISTORIES, -(-questions // HISTORIES))
    if (folder / "report" / "index.html").is_file():
        return folder / "report" / "index.html"
    started, cpu = time.monotonic(), time.process_time()
    cases = write_results(folder, size)
    print(
        f"invented {memories} runs of {size.questions * HISTORIES} questions in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    started, cpu = time.monotonic(), time.process_time()
    page = build(read_sources(folder, lambda record: cases), folder / "report", Wanted())
    files = [path for path in page.parent.rglob("*") if path.is_file()]
    size_mb = sum(path.stat().st_size for path in files) / 1e6
    print(
        f"built in {time.monotonic() - started:.0f} s (processor {time.process_time() - cpu:.0f} s): {len(files)} files, {size_mb:.0f} MB"
    )
    return page


def measure(page: Path) -> list[Timed]:
    """Open the pages of a report and search it.

    Raises:
        BrowserError: there is no browser, or a page raised an error.
    """
    with Browser() as browser:
        timed = []
        for address in ("#/overview", "#/compare", "#/question", "#/memory", "#/cost"):
            browser.send("Page.navigate", url="about:blank")
            before, started = browser.busy(), time.monotonic()
            browser.open(page, address)
            timed.append(Timed(f"open {address}", time.monotonic() - started, _since(browser, before)))
        browser.open(page, "#/compare")
        for pattern in SEARCHES:
            before = browser.busy()
            made, painted = browser.run(SEARCH % json.dumps(pattern))
            timed.append(
                Timed(f"search {pattern} (found after {made:.0f} ms)", painted / 1000, _since(browser, before))
            )
        if browser.problems:
            raise RuntimeError(f"the page complained: {browser.problems}")
    return timed


def _since(browser: Browser, before: float) -> float:
    now = browser.busy()
    return now - before if now >= before else now  # another process may draw the next page: its clock starts at 0
