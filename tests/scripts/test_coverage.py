"""The simulations behind docs/statistics.md: each printed number has some, they run, and the page holds what they print."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from scripts.command import verb
from scripts.commands import coverage
from tests.rigs.coverage.rows import Row


def test_every_printed_number_has_simulations_and_no_simulation_is_about_another() -> None:
    page = coverage.PAGE.read_text(encoding="utf-8")
    head, table = page.split("## Simulations")
    simulated = {line.split(" | ")[0].strip("| ") for line in table.splitlines() if line.startswith("| ")} - {"Number"}
    assert set(coverage.NAMED.findall(head)) == simulated
    assert coverage.TABLE.search(page), "`make coverage` writes between the marks"


def test_the_limits_of_the_gate_are_those_of_the_simulations() -> None:
    gates = simulations("gate")

    def percent(*words: str, measure: str = "fails", builds: bool = False) -> str:
        values = [
            100 * value
            for (situation, of), value in gates.items()
            if of == measure and all(word in situation for word in words) and builds == ("a build" in situation)
        ]
        return " to ".join(dict.fromkeys(f"{value:.0f}" for value in (min(values), max(values)))) + " %"

    text = on_page("gate.md")
    assert f"a metric fails in {percent('loss 0.00')} of the runs" in text
    assert f"exactly the margin in {percent('loss 0.02')} (" in text
    twice = [percent(f"{size} questions", "loss 0.04") for size in ("48", "400", "1,540")]
    assert f"in {twice[0]} with 48 questions, {twice[1]} with 400 and {twice[2]} with 1,540 (" in text
    assert f"in one history fail in {percent('in 1 history', builds=True)}" in text
    assert f"or more fail in {percent(measure='fails in one of 20 changes or more')}" in text


def test_the_power_under_change_is_that_of_the_simulations() -> None:
    powers = {
        name: value for (name, _), value in simulations("detectable difference").items() if "under change" in name
    }
    low, high = ([value for name, value in powers.items() if name.endswith(f"ICC {alike}")] for alike in (0.02, 0.1))
    ends = [f"{value:.2f}"[1:] for value in (min(low), max(low), min(high), max(high))]
    assert f"correlation of .02 the power is {ends[0]} to {ends[1]}, with .1 {ends[2]} to {ends[3]}" in on_page(
        "change.md"
    )


def on_page(name: str) -> str:
    """The text of a page of docs, on one line."""
    return " ".join((coverage.ROOT / "docs" / name).read_text(encoding="utf-8").split())


def simulations(number: str) -> dict[tuple[str, str], float]:
    """The simulated values of a printed number by situation and measure."""
    lines = [line.strip("| ").split(" | ") for line in coverage.PAGE.read_text(encoding="utf-8").splitlines()]
    return {
        (own[1], own[2]): float(own[3]) for own in lines if len(own) == 5 and own[0] == number and own[3][-1:].isdigit()
    }


@pytest.mark.integration
def test_every_module_simulates_the_numbers_of_the_page() -> None:
    """Few repetitions: this is about the rows, not about their values."""
    named = set(coverage.NAMED.findall(coverage.PAGE.read_text(encoding="utf-8")))
    rows = [row for name in coverage.modules() for row in import_module(name).rows(share=0.001)]
    assert {row.number for row in rows} == named
    assert all(-1.0 <= row.value <= 1.0 and row.repetitions >= 5 for row in rows)


def test_the_command_writes_its_table_between_the_marks_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- simulations -->\nold\n<!-- end of simulations -->\nafter\n", encoding="utf-8")
    monkeypatch.setattr(coverage, "PAGE", page)
    monkeypatch.setattr(coverage, "ROOT", tmp_path)
    monkeypatch.setattr(coverage, "modules", lambda: ["one"])
    monkeypatch.setattr(coverage, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(
        coverage, "simulated", lambda name, share: [Row(name, "ten | questions", "coverage", 0.95, round(1000 * share))]
    )
    assert verb("coverage", ["--share", "0.5"]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- simulations -->\n")
    assert text.endswith("<!-- end of simulations -->\nafter\n")
    assert "| one | ten \\| questions | coverage | 0.950 | 500 |" in text
    assert "old" not in text


class Here:
    """A pool that works in this process."""

    def __init__(self, workers: int) -> None:
        assert workers == 2

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None: ...

    map = staticmethod(map)
