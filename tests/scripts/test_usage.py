"""USAGE: the commands run as printed, on the shipped samples with stand-ins, and print the lines that stand below them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from memsys.llm.store import CacheStore
from scripts.command import main

USAGE = (Path(__file__).resolve().parents[2] / "USAGE.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^\$ memsys-bench (.*)\n((?:.+\n)+?)```$", USAGE, re.MULTILINE)
NOT_HERE = re.compile(
    r"^(product|fidelity|claims|check-answers|merge|probe|batch export|change|budgets|order-test)\b|logger="
)
"""Commands that need a product, the published files, real data, other machines, a server or W&B; the last three take over ten seconds."""
SETTINGS = {"load": ["write_rate=5", "read_rate=10"]}
"""Settings that a command gets here in addition: a load in a fifth of the time."""
TIMED = {"load", "growth"}
"""Commands whose decimal numbers are times of this machine."""
EXITS = {"gate": 1}
"""Exit codes that are not 0: the gate is shown as it fails a change."""
RUNS = {"RUN": "bm25", "GOLD_EVIDENCE_RUN": "gold_evidence"}


def pattern(line: str, timed: bool) -> re.Pattern[str]:
    """What a printed line must match: up to …, with any width of columns, any hash, and any time where the command prints times."""
    start, cut, _ = " ".join(line.split()).partition("…")
    found = re.sub(r"(?<![0-9a-f])[0-9a-f]{12}(?![0-9a-f])", "[0-9a-f]{12}", re.escape(start))
    found = re.sub(r"\d+\\\.\d+", r"[\\d.]+", found) if timed else found
    return re.compile(found + (".*" if cut else ""))


def unseen(shown: str, printed: str, timed: bool) -> list[str]:
    """The shown lines that are not printed, or not in this order."""
    lines = iter([" ".join(line.split()) for line in printed.splitlines()])
    return [line for line in shown.splitlines() if not any(pattern(line, timed).fullmatch(each) for each in lines)]


def test_the_lines_of_usage_are_short_and_an_output_is_cut_only_at_the_end() -> None:
    assert [line for line in USAGE.splitlines() if len(line) > 140] == []
    shown = [line for _, block in BLOCKS for line in block.splitlines()]
    assert [line for line in shown if len(line) > 130 or "…" in line[:-1]] == []
    assert len(BLOCKS) == USAGE.count("\n$ ") > 20, "a block is one command and its lines"


def test_a_line_is_compared_up_to_the_cut_without_hashes_and_times() -> None:
    assert unseen("a  1 …\nrun-07c6ef495a14\n", "x\na 1 b\nrun-140a16b05874\n", timed=False) == []
    assert unseen("b\na 1\n", "a 1\nb\n", timed=False) == ["a 1"]
    assert unseen("ms 0.2 / 0.3\n", "ms 1.25 / 7.0\n", timed=True) == []
    assert unseen("ms 0.2\n", "ms 0.3\n", timed=False) == ["ms 0.2"]


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_the_commands_of_usage_print_the_lines_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gate.yaml").write_text("memory: bm25\nmetrics: [evidence@10, locomo_f1]\n")
    Path("errata.csv").write_text("case,question,gold\nconv-902,conv-902_q2,11 April 2023\nconv-902,conv-902_q4,\n")
    assert main(["gate", "gate.yaml", "--update"]) == 0
    folders = {}
    for name, memory in RUNS.items():
        assert main(["run", memory, "locomo"]) == 0
        folders[name] = re.findall(r"^run folder: (.*)$", capsys.readouterr().out, re.MULTILINE)[-1]
    CacheStore(Path("results/cache.sqlite"))  # these runs by stand-ins write none
    for command, shown in (each for each in BLOCKS if not NOT_HERE.search(each[0])):
        given = [folders.get(word, word) for word in shlex.split(command, comments=True)]
        with subtests.test(command):
            code = main(given + SETTINGS.get(given[0], []))
            assert unseen(shown, capsys.readouterr().out, given[0] in TIMED) == []
            assert code == EXITS.get(given[0], 0)
