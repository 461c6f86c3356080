"""Kills on a Ray cluster at random moments: of workers, of the driver, and of machines that an autoscaler has added.

No finished call may be made again, and the table must have the bytes of an undisturbed run. A killed driver may repeat the calls that it
had in flight. A killed worker or machine repeats none, because the driver makes its calls. The cluster outlives the drivers, as a real
cluster does.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scripts.mock.endpoint import application, serving
from tests.rigs.campaign.clusters import CORES, Cluster, cluster
from tests.rigs.campaign.finished import MODEL, Calls, Counting, Life, committed, life, made
from tests.rigs.campaign.targets import Command
from tests.rigs.campaign.trial import IN_FLIGHT, KEY_ENV, PATIENCE, Ended, Outcome, differing, holding_key
from tests.rigs.campaign.trial import results as left_by

ROWS = ("memtree", "segtree_td", "naive_rag")
"""Rows of the table: two that call models while they build, and one that only embeds."""
LATENCY = 0.1
"""Seconds of a reply."""
MOST_OF_A_LIFE = 4
"""Maximum number of kills of workers per driver process: a cell that loses five counts as failed (`eval.executors.cluster`)."""
LAST = 0.95
"""The last moment of a kill, as a share of the calls; after it a run might end first."""
BY_CLOCK = 0.25
"""Share of kills with a moment drawn from the seconds of a start, so that some hit drivers and workers that are starting."""
START = 15.0
"""Seconds of a start."""
LEAVING = 120.0
"""Seconds after the driver's end within which workers, and machines that were added for them, must be gone."""
MOST_SECONDS = 900.0
"""Seconds after which a start of the command counts as hung."""
CACHE = "cache.sqlite"
WORKER, DRIVER, MACHINE = "worker", "driver", "machine"
IN_FLIGHT_AGAIN, FINISHED_AGAIN = "calls in flight made again", "finished calls repeated"
Say = Callable[[str], None]


def say_to_stderr(line: str) -> None:
    """Print a line at once."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Kill:
    """A planned kill: when a share of the requests is answered, or some seconds after the start or the previous kill."""

    kind: str
    share: float = 0.0
    seconds: float | None = None


def command(url: str, results: Path, rows: Sequence[str], executor: str, address: str = "local") -> Command:
    """Start the command of the table."""
    models = [f"models.{role}={MODEL}" for role in ("memory", "reader", "judge", "embedder")]
    ends = [
        f"endpoint.base_url={url}",
        f"endpoint.label={MODEL}",
        f"endpoint.key_env={KEY_ENV}",
        "endpoint.probe=false",
    ]
    cut = ["table=local", f"only=[{','.join(rows)}]", "profile=smoke", "yes=true", f"endpoint.in_flight={IN_FLIGHT}"]
    where = [f"results='{results}'", f"executor={executor}", f"ray.address={address}", f"workers={CORES}"]
    return Command([*cut, *models, *ends, *where], "reproduce")


class Table:
    """Runs of one table that are disturbed on a cluster, and an undisturbed run in threads."""

    def __init__(self, folder: Path, on: Cluster, rows: Sequence[str], latency: float, say: Say) -> None:
        self.outcome, self._say = Outcome("ray"), say
        self._folder, self._cluster, self._rows, self._latency = folder, on, rows, latency
        self._runs, mock = 0, Counting()
        with serving(application(mock)) as url:
            ended = command(url, folder / "undisturbed", rows, "threads").ended()
        self._texts = {text for call in mock.log for text in call}
        self._whole, self._requests = committed(folder / "undisturbed" / CACHE, self._texts), len(mock.answered)
        if ended.code:
            raise RuntimeError(f"undisturbed: exit code {ended.code}, {ended.err[-500:]}")
        if again := made(mock.log) - self._whole:
            raise RuntimeError(f"undisturbed: made again or not committed: {again}")
        say(f"undisturbed, in threads: {len(mock.log):,} calls for {self._whole.total():,} answers and vectors")

    def run(self, kinds: Sequence[str], dice: random.Random) -> int:
        """Run the table with kills at random moments; after each kill of the driver, start the same command again, until it ends.

        Returns:
            The number of kills before it ended.
        """
        self._runs += 1
        results, mock = self._folder / f"killed-{self._runs}", Counting(self._latency)
        waiting, before, lost = _with_moments(kinds, dice), Calls(), 0
        self._say(f"run {self._runs}, {len(kinds)} kills, ray.address={self._cluster.address}")
        with serving(application(mock)) as url:
            while True:
                begun, driver = len(mock.log), command(url, results, self._rows, "ray", self._cluster.address)
                killed = self._disturb(driver, waiting, mock, dice)
                ended = driver.ended(MOST_SECONDS)
                while mock.in_flight():  # the endpoint also answers calls whose caller has ended
                    time.sleep(0.05)
                after = committed(results / CACHE, self._texts)
                this = life(mock.log[begun:], self._whole, before, after)
                before, lost = after, lost + this.lost
                self._judge(this, killed, ended, results)
                if not killed:
                    break
        done = len(kinds) - len(waiting)
        self._say(
            f"run {self._runs} ended with exit code {ended.code} after {done} kills: {len(mock.log):,} calls answered, "
            f"{before.total():,} answers and vectors committed; {lost} calls in flight were made again"
        )
        return done

    def _disturb(self, driver: Command, waiting: list[Kill], mock: Counting, dice: random.Random) -> bool:
        """Do the kills during one driver process; returns whether the driver itself was killed."""
        begun, deadline = sum(mock.arrivals.values()), time.monotonic() + MOST_SECONDS
        clock = time.monotonic()
        while waiting and driver.poll() is None:
            kill = waiting[0]
            if time.monotonic() > deadline:
                driver.ended(0.0)  # raises
            if kill.seconds is None:
                is_time = sum(mock.arrivals.values()) > begun and len(mock.answered) >= kill.share * self._requests
            else:
                is_time = time.monotonic() > clock + kill.seconds
            victims = self._victims(kill.kind) if is_time else []
            if not is_time or (kill.kind != DRIVER and not victims):
                time.sleep(0.01)
                continue
            if kill.seconds is None:
                time.sleep(dice.uniform(0, self._latency))
            waiting.pop(0)
            state = self._state(mock)
            if kill.kind == DRIVER:
                driver.send_signal(signal.SIGKILL)
                if driver.poll(PATIENCE) != -signal.SIGKILL:  # it has ended by itself
                    return False
                self._note(kill, state)
                return True
            self._note(kill, state)
            for pid in dice.choice(victims):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            clock = time.monotonic()
        return False

    def _victims(self, kind: str) -> list[list[int]]:
        """Process ids of each worker, or of each machine, that may be killed."""
        if kind == MACHINE:
            return self._cluster.working_machines()
        return [[pid] for pid in self._cluster.workers()] if kind == WORKER else []

    def _state(self, mock: Counting) -> str:
        """The progress of a run."""
        workers, machines = len(self._cluster.workers()), len(self._cluster.machines())
        answered = len(mock.answered) / self._requests
        return f"{answered:.0%} of the requests answered, {mock.in_flight()} in flight; {workers} workers, {machines} machines"

    def _note(self, kill: Kill, state: str) -> None:
        kills = f"{kill.kind} killed"
        self.outcome.tried[kills] += 1
        drawn = "calls" if kill.seconds is None else "clock"
        self._say(f"  {kills}, no. {self.outcome.tried[kills]}, by the {drawn}: {state}")

    def _judge(self, this: Life, killed: bool, ended: Ended, results: Path) -> None:
        """Check the guarantees for one driver process."""
        self._say(
            f"    this start of the command: {this.calls} calls answered; finished calls repeated {this.again}; "
            f"answered and not committed {this.lost}"
        )
        self.outcome.tried[IN_FLIGHT_AGAIN] += this.lost
        self.outcome.tried[FINISHED_AGAIN] += this.again
        broken = list(holding_key(results))
        if this.again:
            broken.append(f"{this.again} finished calls were made again")
        if this.lost > (IN_FLIGHT if killed else 0):
            broken.append(f"{this.lost} answered calls were lost, at most {IN_FLIGHT if killed else 0} may be")
        if not killed:
            broken += self._broken_at_the_end(ended, results)
        for defect in broken:
            self._say(f"    DEFECT: {defect}")
        self.outcome.defects += [f"ray, run {self._runs}: {defect}" for defect in broken]

    def _broken_at_the_end(self, ended: Ended, results: Path) -> list[str]:
        """Broken guarantees of a run that has ended by itself."""
        began, undisturbed = time.monotonic(), left_by(self._folder / "undisturbed")
        broken = [f"exit code {ended.code}: {ended.err[-500:]}"] if ended.code else []
        if differs := differing(left_by(results), undisturbed):
            broken.append(f"{differs[:300]} differ from an undisturbed run")
        else:
            self._say(f"    {len(undisturbed)} files have the bytes of the undisturbed run")
        while (left := self._left()) and time.monotonic() < began + LEAVING:
            time.sleep(0.1)
        if not left:
            self._say(f"    no worker and no added machine is left {time.monotonic() - began:.0f} s after the end")
        return broken + left

    def _left(self) -> list[str]:
        """Processes that an ended run has wrongly left on the cluster."""
        workers, machines = len(self._cluster.workers()), len(self._cluster.machines()) - 1
        stay = {"workers outlive their driver": workers, "added machines stay": machines}
        return [f"{count} {what}" for what, count in stay.items() if count]


def _with_moments(kinds: Sequence[str], dice: random.Random) -> list[Kill]:
    """Kills in the order of their random moments; some are drawn by the clock, so that they also hit starting processes."""
    by_clock = [dice.random() < BY_CLOCK for _ in kinds]
    shares = iter(sorted(dice.uniform(0, LAST) for clock in by_clock if not clock))
    return [
        Kill(kind, seconds=dice.uniform(0, START)) if clock else Kill(kind, share=next(shares))
        for kind, clock in zip(kinds, by_clock, strict=True)
    ]


def kill_on_ray(
    runs: Sequence[Sequence[str]],
    folder: Path,
    *,
    seed: int = 0,
    added: int = 0,
    rows: Sequence[str] = ROWS,
    latency: float = LATENCY,
    say: Say = say_to_stderr,
) -> Outcome:
    """Run a table repeatedly on one cluster, with kills at seeded random moments.

    Args:
        runs: the kills of each run; kills that remain because a run ends first are done in another run.
        added: machines that the cluster's autoscaler may add; its head has no core then. 0 is a cluster of one machine.

    Raises:
        RuntimeError: Ray does not start, or the undisturbed run fails.
        TimeoutError: a start of the command hangs.
    """
    dice = random.Random(f"{seed} ray")
    with cluster(0 if added else CORES, added) as started:
        table = Table(folder, started, rows, latency, say)
        for kinds in runs:
            while kinds and not table.outcome.defects:
                kinds = kinds[table.run(kinds, dice) :]
    return table.outcome
