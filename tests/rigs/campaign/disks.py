"""Full disks and a jumping clock, in separate processes (`targets`); then the same command again, undisturbed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.mock.endpoint import Mock, application, serving
from tests.rigs.campaign.disturbed import DAYS
from tests.rigs.campaign.targets import forked
from tests.rigs.campaign.trial import QUESTIONS as ASKED
from tests.rigs.campaign.trial import Ended, Outcome, broken_promises, differing, history, run_here, settings
from tests.rigs.campaign.trial import results as left_by

MEMORIES = ("memtree", "mem0", "bm25", "segtree", "timem")


def fill_disks(memory: str, points: Sequence[int], folder: Path, seed: int) -> Outcome:
    """Runs with a disk that fills up at a byte between the first and the last written one: the disk at odd points, a file at even ones."""
    outcome, dice = Outcome("full disks"), random.Random(f"{seed} {memory}")
    with _ground(memory, folder) as (overrides, cfg, undisturbed):
        size = sum(path.stat().st_size for path in (folder / "undisturbed" / "runs").rglob("*") if path.is_file())
        for point in points:
            way, bytes_left = ("disk-full", int(size * dice.random() ** 2)) if point % 2 else ("file-limit", 0)
            if not bytes_left:
                bytes_left = int(60_000 * dice.random() ** 2)
            results = folder / f"point-{point}"
            ended = forked(overrides, results=results, disturbance=(way, bytes_left)).ended()
            outcome.tried[f"{way}: exit {ended.code}"] += 1
            defects = [*_full(ended, results), *_healthy(cfg, results, undisturbed)]
            outcome.defects += [f"{memory}, {way} {bytes_left}: {defect}" for defect in defects]
    return outcome


def jump_clocks(memory: str, runs: int, folder: Path, seed: int) -> Outcome:
    """Runs whose wall clock jumps, and reruns of folders whose files were changed in the future or long ago."""
    outcome, dice = Outcome("clocks"), random.Random(f"{seed} {memory}")
    with _ground(memory, folder) as (overrides, cfg, undisturbed):
        for number in range(runs):
            results = folder / f"clock-{number}"
            where = f"{memory}, clock {seed + number}"
            ended = forked(overrides, results=results, disturbance=("clock", seed + number)).ended()
            defects = list(broken_promises(ended, results, ASKED))
            if differs := differing(left_by(results), undisturbed):
                defects.append(f"{differs} differ")
            for path in results.rglob("*"):
                then = path.stat().st_mtime + dice.uniform(-DAYS, DAYS)
                os.utime(path, (then, then))
            defects += _healthy(cfg, results, undisturbed)
            outcome.tried["clocks that jump"] += 1
            outcome.defects += [f"{where}: {defect}" for defect in defects]
    return outcome


@contextmanager
def _ground(memory: str, folder: Path) -> Iterator[tuple[list[str], Any, dict[str, bytes]]]:
    """A command on a history, as arguments and as a configuration, with a server; and the results of an undisturbed run."""
    from scripts.setup.launch import composed

    with serving(application(Mock())) as url:
        place = folder / "undisturbed"
        overrides = settings(memory, url, place, data=history(folder / "data"))
        cfg = composed("config", overrides)
        run_here(cfg)
        yield overrides, cfg, left_by(place)


def _full(ended: Ended, results: Path) -> Iterator[str]:
    yield from broken_promises(ended, results, ASKED)
    if ended.code == 2 and not any(word in ended.err for word in ("disk", "space", "large", "full")):
        yield f"does not say that the disk is full: {ended.err.strip()[-300:]}"


def _healthy(cfg: Any, results: Path, undisturbed: dict[str, bytes]) -> Iterator[str]:
    again = run_here(cfg, results=str(results))
    yield from (f"healthy rerun: {defect}" for defect in broken_promises(again, results, ASKED))
    if differs := differing(left_by(results), undisturbed):
        yield f"healthy rerun: exit {again.code}, {differs} differ: {again.err.strip()[-300:]}"
