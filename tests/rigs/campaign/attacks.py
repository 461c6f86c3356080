"""Attacks on money, keys, processes and files, as cases of the campaign: tests of these attacks, repeated more often.

A test is selected by its file and the beginning of its name. For tests with races or kills, `TIMES` names the variable for the repetitions.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.campaign.trial import ROOT, Outcome

LONG = 3600.0
"""Seconds after which a case counts as hung."""
ENDS = re.compile(r"(\d+) (passed|failed|error|errors|skipped|subtests passed)\b")


@dataclass(frozen=True, slots=True)
class Attack:
    """A case: the target of the attack, and its tests."""

    name: str
    file: str
    """Test file, relative to `tests`."""
    tests: str
    """Expression for pytest's `-k`; empty for all tests of the file."""
    variable: str = ""
    """Environment variable with the number of repetitions; empty for tests that run once."""
    times: int = 1


LLM, PRODUCTS = "memsys/llm", "memsys/products"
ATTACKS = (
    Attack("spending races", f"{LLM}/test_spending.py", "", "MEMSYS_RACES", 10),
    Attack("a page of another origin, forms, rebound names", f"{LLM}/test_gateway_door.py", ""),
    Attack("odd requests at the gateway", f"{LLM}/test_gateway_cases.py", ""),
    Attack("a page in a browser", "scripts/test_gateway_clients.py", "page_of_another_origin"),
    Attack("two commands, cancelled, unknown and torn batches", f"{LLM}/test_batching.py", ""),
    Attack("repair with a batch journal, a run during a repair", "scripts/test_cache_command.py", ""),
    Attack("received caches, links and pipes in merge", "scripts/test_merge.py", "received or whole_key or under_way"),
    Attack("received run folders", "eval/test_received.py", ""),
    Attack("locks that are links", "memsys/test_folders.py", ""),
    Attack("secrets into every file", f"{LLM}/test_written_keys.py", ""),
    Attack("escape sequences and formulas", "memsys/test_inert.py", ""),
    Attack("source archives and pins without a hash", "scripts/test_wheels.py", ""),
    Attack("errors with calls in flight", "scripts/test_faults.py", "in_flight"),
    Attack("22 probes of a product, daemons, forged replies", f"{PRODUCTS}/test_sandbox.py", "not killed_leaves"),
    Attack("kills of a product's run", f"{PRODUCTS}/test_sandbox.py", "killed_leaves", "MEMSYS_KILLS", 50),
    Attack("probes of an MCP server", "memsys/services/test_mcp.py", "reads_no_key"),
)


def attacked(attack: Attack, share: float, folder: Path) -> Outcome:
    """Run a case with a share of its repetitions; each test that fails is a defect."""
    outcome = Outcome("attacks")
    (home := folder / "tmp").mkdir()
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=line"]
    line += [f"--basetemp={home}", str(ROOT / "tests" / attack.file), *(["-k", attack.tests] if attack.tests else [])]
    more = {attack.variable: str(max(1, round(share * attack.times)))} if attack.variable else {}
    try:
        ended = subprocess.run(
            line, cwd=ROOT, env={**os.environ, **more}, capture_output=True, text=True, timeout=LONG, check=False
        )
    except subprocess.TimeoutExpired:
        outcome.defects.append(f"{attack.name}: not over after {LONG:.0f} s")
        return outcome
    ends = {how: int(count) for count, how in ENDS.findall(ended.stdout.strip().rpartition("\n")[2])}
    for how, count in ends.items():
        outcome.tried[f"{attack.name}: {how}"] += count
    outcome.defects += [
        f"{attack.name}: {line}" for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
    ]
    if ended.returncode and not outcome.defects:
        outcome.defects.append(f"{attack.name}: exit {ended.returncode}: {ended.stdout.strip()[-300:]}")
    return outcome
