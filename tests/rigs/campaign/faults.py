"""Runs with 30 % failing calls: retries lose nothing; without retries a healthy rerun completes the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.mock.endpoint import FAULTS, Mock, application, said, serving
from tests.rigs.campaign.trial import QUESTIONS, Outcome, broken_promises, differing, history, run_here, settings
from tests.rigs.campaign.trial import results as left_by

MEMORIES = (*("memtree", "timem", "segtree", "xmemory", "mem0", "amem", "hipporag", "raptor", "lightmem", "memgpt"),)
JUDGES = ("mem0", "memtree", "segtree")
SHARE = 0.3
HANG = 0.3
"""Seconds that an injected timeout hangs; the client waits for less."""


def _said(body: dict[str, Any], key: str) -> str:
    """The mock's reply; for a judge, a verdict that every rule can read."""
    return "1" if body["model"] == "judge" and not body.get("response_format") else said(body, key)


def through_faults(memory: str, folder: Path, seed: int) -> Outcome:
    """One memory with three judges: with retries nothing is lost; without, a healthy rerun completes everything."""
    from scripts.setup.launch import composed

    outcome, data, judges = Outcome("faults"), history(folder / "data"), f"protocol.judges=[{','.join(JUDGES)}]"

    def run(name: str, faults: float, retries: int) -> list[str]:
        mock = Mock(faults=faults, seed=seed, hang=HANG)
        mock.said = _said
        with serving(application(mock)) as url:
            more = [judges, "models.judge=judge", f"endpoint.retries={retries}", f"endpoint.timeout={HANG / 2}"]
            ended = run_here(composed("config", settings(memory, url, folder / name, *more, data=data)))
        for fault in FAULTS:
            outcome.tried[f"faults: {fault}"] += mock.injected[fault]
        defects = [f"{memory}, {name}: {defect}" for defect in broken_promises(ended, folder / name, QUESTIONS)]
        if undisturbed and retries > 1 and (ended.code or differing(left_by(folder / name), undisturbed)):
            defects.append(f"{memory}, {name}: exit {ended.code}, or other bytes than undisturbed: {ended.err[-200:]}")
        return defects

    undisturbed: dict[str, bytes] = {}
    outcome.defects += run(
        "undisturbed", 0.0, 40
    )  # with retries, too: a machine under load is slower than the short timeout
    undisturbed = left_by(folder / "undisturbed")
    outcome.defects += run("patient", SHARE, 40)
    outcome.defects += run("impatient", SHARE, 1)
    outcome.defects += run("impatient", 0.0, 40)
    outcome.tried["memories x judges"] += len(JUDGES)
    return outcome
