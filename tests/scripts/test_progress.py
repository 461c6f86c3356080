"""The progress line: what it counts, and what it says is waited for; a clock that the test sets, no waiting."""

from __future__ import annotations

import io
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eval.running.run import Progress
from memsys.llm import meter
from scripts.command import main
from scripts.setup import progress
from scripts.setup.progress import Expected, ProgressLine, Screen, State, drawing


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Traffic:
    """As an endpoint reports it."""

    in_flight: int = 0
    waiting: int = 0
    finished: int = 0
    retried: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    oldest_seconds: float = 0.0
    paused_since: float | None = None
    paused_why: str = ""
    batched: int = 0
    limit: int = 0
    most: int = 0
    rpm: float | None = None
    dollars: float = 0.0


def cells(**sizes: float) -> list[Expected]:
    return [Expected("raptor", case, size, questions=5) for case, size in sizes.items()]


def begun(line: ProgressLine, case: str, units: int) -> None:
    line.on_progress(Progress("raptor", case, "", "begun", units=units))


def written(line: ProgressLine, case: str, count: int) -> None:
    for _ in range(count):
        line.on_progress(Progress("raptor", case, "", "written", seconds=1.0))


def test_units_move_the_line_and_the_time_to_go_before_any_question_is_answered() -> None:
    clock = Clock()
    line = ProgressLine("answering", 10, expected=cells(a=40, b=40), clock=clock)
    begun(line, "a", 40)
    written(line, "a", 10)
    clock.now = 60.0
    text = line.line()
    assert "0/10" in text
    assert "building: 10/40 units, 1/2 histories" in text
    assert "7:00 to go" in text  # 70 of 80 units at 10 a minute


def test_when_all_is_built_and_nothing_answered_no_time_to_go_is_made_up() -> None:
    clock = Clock()
    line = ProgressLine("answering", 4, expected=cells(a=10), clock=clock)
    begun(line, "a", 10)
    written(line, "a", 10)
    clock.now = 30.0
    assert "to go" not in line.line()


def test_a_build_that_failed_leaves_no_units_to_wait_for() -> None:
    clock = Clock()
    line = ProgressLine("answering", 1, expected=cells(a=40), clock=clock)
    begun(line, "a", 40)
    written(line, "a", 10)
    line.on_progress(Progress("raptor", "a", "q", "error"))
    line.on_progress(Progress("raptor", "a", "", "complete"))
    clock.now = 30.0
    assert "10/10 units" in line.line()
    assert "1 error" in line.line()
    assert "to go" not in line.line()


def test_questions_answered_earlier_and_the_rest_add_up() -> None:
    line = ProgressLine("answering", 5, clock=Clock())
    line.on_progress(Progress("bm25", "a", "", "kept", kept=3))
    line.step("answered")
    assert line.line().startswith("answering: 1/2")


def test_calls_made_and_under_way_and_tokens_a_second_are_counted_from_the_start_of_the_line() -> None:
    clock, now = Clock(), [Traffic(finished=100, tokens_in=1000)]
    line = ProgressLine("answering", 10, traffic=lambda: now, clock=clock)
    clock.now, now[0] = 10.0, Traffic(3, 2, 120, 1, 2500, 500)
    text = line.line()
    assert "calls: 3 in flight, 20 made (1 retried), 2 queued" in text
    assert "200 tokens/s" in text


def test_a_server_that_never_answers_is_named_with_the_time_it_was_asked() -> None:
    clock = Clock()
    line = ProgressLine("answering", 10, traffic=lambda: [Traffic(in_flight=8, oldest_seconds=clock.now)], clock=clock)
    assert "waiting" not in line.line()
    clock.now = 125.0
    assert "waiting for 8 calls, the oldest sent at" in line.line()
    assert "(2:05 ago)" in line.line()


def test_a_pause_says_why_and_since_when() -> None:
    clock = Clock()
    traffic = [Traffic(waiting=5, paused_since=time.time() - 60.0, paused_why="connection refused")]
    line = ProgressLine("answering", 10, traffic=lambda: traffic, clock=clock)
    assert "paused since" in line.line()
    assert "(1:00 ago): connection refused" in line.line()


def test_a_memory_that_computes_for_long_is_named_with_its_unit() -> None:
    clock = Clock()
    line = ProgressLine("answering", 10, expected=cells(a=40, b=30), clock=clock)
    begun(line, "a", 40)
    begun(line, "b", 30)
    written(line, "a", 3)
    clock.now = 5.0
    assert "at work" not in line.line()
    clock.now = 45.0
    written(line, "b", 1)
    assert "raptor has been working on a, unit 4 of 40, since" in line.line()
    with meter.operation("write", "raptor-012345/a", "D1:4"):
        assert " ago) (write D1:4 of raptor-012345/a: " in line.line()
    with meter.operation("rehearsal", "Raptor"):
        assert " ago) (rehearsal of Raptor: " in line.line(), "the cases wait for it"
    with meter.operation("write", "raptor-012345/b", "D1:9"):
        assert line.line().endswith(" ago)"), "a step of another case does not hang"


def test_the_line_is_shown_while_nothing_happens(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    clock = Clock()
    line = ProgressLine("answering", 10, traffic=lambda: [Traffic(in_flight=1, oldest_seconds=clock.now)], clock=clock)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    for now in (1.0, 16.0, 17.0, 32.0):
        clock.now = now
        line.beat()
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 2  # at 16 and at 32 seconds
    assert all("0/10" in one and "waiting for 1 call," in one for one in shown)


def begun_line(clock: Clock, **traffic: Any) -> ProgressLine:
    now = [Traffic(finished=100, tokens_in=1000)]
    line = ProgressLine("answering", 10, traffic=lambda: now, clock=clock, expected=cells(a=40, b=60))
    begun(line, "a", 40)
    written(line, "a", 10)
    line.on_progress(Progress("raptor", "a", "q", "error"))
    clock.now, now[0] = 10.0, Traffic(finished=120, tokens_in=2500, tokens_out=500, **traffic)
    return line


def drawn(*states: State, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(drawing(list(states), width))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def test_a_terminal_shows_units_calls_with_their_limit_tokens_dollars_and_the_time_to_go() -> None:
    line = begun_line(Clock(), in_flight=3, limit=64, waiting=2, retried=1, dollars=0.0123)
    asked, building, calls = drawn(line.state())
    assert asked.startswith("answering     ━━─")
    assert asked.endswith("  1/10 · 1 error · 1:30 to go")
    assert building.endswith("  10/40 units · 1/2 histories")
    assert building.count("━") == 6  # a quarter of the bar
    assert calls == "  calls       3 of at most 64 in flight · 20 made (1 retried) · 2 queued · 200 tokens/s · $0.0123"


def test_the_terminal_and_the_line_of_a_log_say_the_same() -> None:
    line = begun_line(Clock(), in_flight=3, waiting=2)
    text, shown = line.line(), " ".join(drawn(line.state()))
    for said in ("1/10", "10/40 units", "1/2 histories", "3 in flight", "2 queued", "200 tokens/s", "1:30 to go"):
        assert said in text
        assert said in shown


def test_without_prices_and_calls_nothing_is_said_about_them() -> None:
    (asked,) = drawn(ProgressLine("scoring", 4, clock=Clock()).state())
    assert asked.rstrip().endswith("0/4")


def test_a_long_reason_for_waiting_is_cut_to_the_width() -> None:
    state = replace(begun_line(Clock()).state(), waited="paused: " + "x" * 200)
    assert max(map(len, drawn(state, width=80))) == 80


class Drawn(Screen):
    def __init__(self) -> None:
        super().__init__()
        self.file = io.StringIO()

    def console(self) -> Console:
        return Console(file=self.file, force_terminal=True, width=100, color_system=None)


def test_phases_within_phases_share_one_screen_which_is_empty_at_the_end() -> None:
    screen = Drawn()
    outer, inner = (ProgressLine(label, 4, clock=Clock()) for label in ("scoring", "judging bm25"))
    for phase in (outer, inner):
        screen.show(phase)
    assert "judging bm25" in screen.file.getvalue()
    last = screen.file.getvalue().rpartition("scoring")[2]
    assert "judging bm25" in last  # both in the last drawing
    screen.drop(inner)
    assert "judging" not in screen.file.getvalue().rpartition("scoring")[2]
    screen.drop(outer)
    screen.drop(outer)
    assert screen._phases == []
    assert screen._live is None


def test_limits_below_what_was_set_are_shown_and_others_are_not() -> None:
    line = ProgressLine("answering", 10, traffic=lambda: [Traffic(in_flight=8, limit=51, most=64, rpm=58.8)])
    assert "8 of at most 51 in flight (64 configured, 59 requests/min allowed)" in line.line()
    line = ProgressLine("answering", 10, traffic=lambda: [Traffic(in_flight=8, limit=64, most=64)])
    assert line.line().endswith("8 of at most 64 in flight, 0 made")
    assert "allowed" not in line.line()


def test_a_stopped_run_says_how_far_it_came_and_what_it_spent(monkeypatch: Any) -> None:
    monkeypatch.setattr(progress, "_stopped_lines", [])
    assert progress.stopped_at() == "stopped; the same command resumes"
    traffic = (Traffic(dollars=0.14),)
    outer, inner = (
        progress.progress_line("scoring", 9),
        progress.progress_line("answering", 300, traffic=lambda: traffic),
    )
    with suppress(KeyboardInterrupt), outer, inner as line:
        line.done = 200
        raise KeyboardInterrupt
    assert progress.stopped_at() == "stopped at 200/300 (answering), $0.14 spent; the same command resumes"


def test_a_run_that_is_stopped_while_it_builds_says_how_many_units_it_wrote(monkeypatch: Any) -> None:
    monkeypatch.setattr(progress, "_stopped_lines", [])
    with suppress(KeyboardInterrupt), progress.progress_line("answering", 48) as line:
        line.on_progress(Progress("run", "case", "", "begun", units=64))
        line.on_progress(Progress("run", "case", "", "written"))
        raise KeyboardInterrupt
    assert progress.stopped_at() == "stopped at 0/48 (answering), 1/64 units written; the same command resumes"


@pytest.mark.parametrize(
    ("command", "label", "total"),
    [
        (["conformance", "memory=recency"], "conformance", 1),
        (["growth", "memory=recency", "sizes=[5,20]"], "growth", 20),
        (
            ["load", "memory=recency", "users=[1,2]", "writes=1", "reads=1", "write_rate=100", "read_rate=100"],
            "load",
            2,
        ),
    ],
)
def test_a_command_that_builds_a_memory_of_its_own_shows_how_far_it_is(
    command: list[str], label: str, total: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        progress,
        "FOLLOWERS",
        [lambda state, last: seen.append((state.label, state.done, state.total)) if last else None],
    )
    assert main([*command, "profile=smoke", f"results={tmp_path}"]) == 0
    assert (label, total, total) in seen
