"""Kills at random moments: runs are stopped repeatedly in build, answering and judging, and then complete."""

from __future__ import annotations

import json
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from scripts.mock.endpoint import Mock, application, serving
from tests.rigs.campaign.targets import Command, forked, killed
from tests.rigs.campaign.trial import (
    IN_FLIGHT,
    SAMPLE,
    Ended,
    Outcome,
    broken_promises,
    differing,
    holding_key,
    run_here,
    settings,
)
from tests.rigs.campaign.trial import results as left_by

MEMORIES = ("memtree", "bm25", "mem0", "timem", "dense", "memstream", "amem", "segtree", "memos", "naive_rag")
ROUND = 10
"""Number of kills of one run."""
LATENCY = 0.2
"""Seconds of a reply: slow enough that a run is still running when its signal comes."""
LAST = 0.95
"""The last moment of a kill, as a share of the calls; after it a run might end first."""
SIGNALS = (*(signal.SIGKILL,) * 7, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals of ten kills."""
ABANDONED = re.compile(r"^(\d+) calls in flight were abandoned", re.MULTILINE)
REAL, REPEATED = "of the command line", "calls repeated"
"""Names of further counts in addition to the kills."""


def killed_round(memory: str, kills: int, real: int, folder: Path, seed: int) -> Outcome:
    """Kill and resume one run this number of times, at moments drawn from its calls; `real` kills are of the command line."""
    from scripts.setup.launch import composed

    outcome, dice, mock = Outcome("kills"), random.Random(f"{seed} {memory}"), Mock()
    with serving(application(mock)) as url:
        whole = run_here(composed("config", settings(memory, url, folder / "undisturbed")))
    undisturbed, own, calls = left_by(folder / "undisturbed"), mock.answered, len(mock.answered)
    outcome.defects += [f"{memory}, undisturbed: {defect}" for defect in broken_promises(whole, folder, SAMPLE)]
    moments = sorted(dice.uniform(0, LAST) for _ in range(kills))
    signals = dice.sample(SIGNALS, len(SIGNALS)) * -(-kills // len(SIGNALS))
    by_command_line = set(dice.sample(range(kills), real))
    mock, results = Mock(latency=LATENCY), folder / "killed"
    permitted = 0
    with serving(application(mock)) as url:
        overrides = settings(memory, url, results)
        for kill, (moment, number) in enumerate(zip(moments, signals, strict=False)):
            where = f"{memory}, {number.name} after {moment:.0%} of {calls} calls"
            is_time = _after(mock, moment * calls)
            target = Command(overrides) if kill in by_command_line else forked(overrides, results=results)
            try:
                ended = killed(target, is_time, number, dice.uniform(0, LATENCY))
            except TimeoutError as error:
                outcome.defects.append(f"{where}: {error}")
                continue
            permitted += IN_FLIGHT if ended.code == -signal.SIGKILL else _abandoned(ended)
            outcome.tried[f"{number.name} in {_phase(results)}" if ended.code else "ended before the kill"] += 1
            outcome.tried[REAL] += kill in by_command_line
            outcome.defects += [f"{where}: {defect}" for defect in _stopped(ended, number, results)]
        mock.latency = 0.0
        last = run_here(composed("config", overrides))
    broken = list(broken_promises(last, results, SAMPLE))
    if differs := differing(left_by(results), undisturbed):
        broken.append(f"{differs} differ from an undisturbed run")
    repeated = sum(repeats_beyond(own, mock.answered))
    outcome.tried[REPEATED] += repeated
    if repeated > permitted:
        broken.append(f"{repeated} calls repeated, {permitted} expected at most")
    outcome.defects += [f"{memory}, let to end after {kills} kills: {defect}" for defect in broken]
    return outcome


def repeats_beyond(own: Mapping[str, int], answered: Mapping[str, int]) -> Iterator[int]:
    """Answers to each call beyond one, or beyond an undisturbed run, which requests an unparsable reply again."""
    return (max(0, count - max(1, own.get(key, 0))) for key, count in answered.items())


def _abandoned(ended: Ended) -> int:
    """The number of calls in flight that a stopped run reports as abandoned."""
    return sum(int(count) for count in ABANDONED.findall(ended.err))


def _after(mock: Mock, calls: float) -> Callable[[], bool]:
    """Whether `count` calls were answered in total, and at least one arrived in this attempt: a run that has not begun is not killed."""
    before = sum(mock.arrivals.values())
    return lambda: len(mock.answered) >= calls and sum(mock.arrivals.values()) > before


def _stopped(ended: Ended, number: signal.Signals, results: Path) -> Iterator[str]:
    """Broken guarantees of a run that was stopped before its end."""
    if number == signal.SIGKILL:
        if ended.code == -number:
            yield from holding_key(results)
            yield from _too_much(results)
            return
    elif ended.code not in (0, 1, 128 + number):
        yield f"exit {ended.code} instead of {128 + number}"
    yield from broken_promises(ended, results, SAMPLE)


def _too_much(results: Path) -> Iterator[str]:
    """A question with two complete answer lines in one attempt of the run."""
    for path in results.glob("runs/**/predictions.jsonl"):
        whole = [line for line in path.read_bytes().split(b"\n")[:-1] if line]
        asked = Counter(json.loads(line)["question_id"] for line in whole)
        yield from (f"{path.name}: {count} lines for {name}" for name, count in asked.items() if count > 1)


def _phase(results: Path) -> str:
    """The phase that a run had reached."""
    if any(results.glob("runs/**/scores/judge_*.jsonl")):
        return "judging"
    return "answering" if any(path.stat().st_size for path in results.glob("runs/**/predictions.jsonl")) else "building"
