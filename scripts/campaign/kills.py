"""Kills at random moments: runs that are stopped again and again in build, answering and judging, and then let to end."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scripts.campaign.trial import (
    IN_FLIGHT,
    PATIENCE,
    ROOT,
    SAMPLE,
    Ended,
    Outcome,
    broken_promises,
    command,
    differing,
    environment,
    holding_key,
    run_here,
    settings,
)
from scripts.campaign.trial import results as left_by
from scripts.mock.endpoint import Mock, application, serving

MEMORIES = ("memtree", "bm25", "mem0", "timem", "dense", "memstream", "amem", "segtree", "memos", "naive_rag")
ROUND = 10
"""Kills of one run."""
LATENCY = 0.2
"""Seconds of a reply: so slow that a run is still under way when its signal comes."""
LAST = 0.95
"""The last moment of a kill, as a share of the calls; after it a run might end first."""
SIGNALS = (*(signal.SIGKILL,) * 7, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Of ten kills."""


def killed_round(memory: str, kills: int, folder: Path, seed: int) -> Outcome:
    """One run that is killed so many times, at moments drawn from its calls, and resumed each time."""
    from scripts.experiment.launch import composed

    outcome, dice, mock = Outcome("kills"), random.Random(f"{seed} {memory}"), Mock()
    with serving(application(mock)) as url:
        whole = run_here(composed("config", settings(memory, url, folder / "undisturbed")))
    undisturbed, calls = left_by(folder / "undisturbed"), sum(mock.answered.values())
    outcome.defects += [f"{memory}, undisturbed: {defect}" for defect in broken_promises(whole, folder, SAMPLE)]
    moments = sorted(dice.uniform(0, LAST) for _ in range(kills))
    signals = dice.sample(SIGNALS, len(SIGNALS)) * -(-kills // len(SIGNALS))
    mock, results = Mock(latency=LATENCY), folder / "killed"
    abrupt = 0
    with serving(application(mock)) as url:
        overrides = settings(memory, url, results)
        for moment, number in zip(moments, signals, strict=False):
            where = f"{memory}, {number.name} after {moment:.0%} of {calls} calls"
            try:
                ended = _killed(overrides, folder, mock, moment * calls, number, dice.uniform(0, LATENCY))
            except TimeoutError as error:
                outcome.defects.append(f"{where}: {error}")
                continue
            abrupt += ended.code == -signal.SIGKILL
            outcome.tried[f"{number.name} in {_phase(results)}" if ended.code else "ended before the kill"] += 1
            outcome.defects += [f"{where}: {defect}" for defect in _stopped(ended, number, results)]
        mock.latency = 0.0
        last = run_here(composed("config", overrides))
    broken = list(broken_promises(last, results, SAMPLE))
    if differs := differing(left_by(results), undisturbed):
        broken.append(f"{differs} differ from an undisturbed run")
    repeated = sum(mock.answered.values()) - len(mock.answered)
    outcome.tried["calls repeated"] += repeated
    if repeated > IN_FLIGHT * abrupt:
        broken.append(f"{repeated} calls repeated after {abrupt} kills with {IN_FLIGHT} in flight")
    outcome.defects += [f"{memory}, let to end after {kills} kills: {defect}" for defect in broken]
    return outcome


def _killed(
    overrides: list[str], folder: Path, mock: Mock, calls: float, number: signal.Signals, pause: float
) -> Ended:
    """Start the command and send it a signal once so many calls were answered in all its lives."""
    with (folder / "out.txt").open("wb") as out, (folder / "err.txt").open("wb") as err:
        process = subprocess.Popen(command(overrides), cwd=ROOT, env=environment(), stdout=out, stderr=err)
        deadline = time.monotonic() + PATIENCE
        before = sum(mock.arrivals.values())
        # Some more than before, so that a kill is never of a process that has not begun.
        while process.poll() is None and (len(mock.answered) < calls or sum(mock.arrivals.values()) == before):
            time.sleep(0.01)
            if time.monotonic() > deadline:
                process.kill()
                raise TimeoutError(f"hangs: {len(mock.answered)} calls answered in {PATIENCE:.0f} s")
        time.sleep(pause)
        process.send_signal(number)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise TimeoutError(f"goes on for {PATIENCE:.0f} s after the signal") from None
    return Ended(process.returncode, (folder / "out.txt").read_text(), (folder / "err.txt").read_text())


def _stopped(ended: Ended, number: signal.Signals, results: Path) -> Iterator[str]:
    """What does not hold of a run that was stopped in its midst."""
    if number == signal.SIGKILL:
        if ended.code == -number:
            yield from holding_key(results)
            yield from _too_much(results)
            return
    elif ended.code not in (0, 1, 128 + number):
        yield f"exit {ended.code} instead of {128 + number}"
    yield from broken_promises(ended, results, SAMPLE)


def _too_much(results: Path) -> Iterator[str]:
    """A question that two whole lines answer, in one life of the run."""
    for path in results.glob("runs/**/predictions.jsonl"):
        whole = [line for line in path.read_bytes().split(b"\n")[:-1] if line]
        asked = Counter(json.loads(line)["question_id"] for line in whole)
        yield from (f"{path.name}: {count} lines for {name}" for name, count in asked.items() if count > 1)


def _phase(results: Path) -> str:
    """How far a run had come."""
    if any(results.glob("runs/**/scores/judge_*.jsonl")):
        return "judging"
    return "answering" if any(path.stat().st_size for path in results.glob("runs/**/predictions.jsonl")) else "building"
