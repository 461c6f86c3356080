"""Which form of a table is printed: for the terminal that reads it, as Markdown for a program."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eval.files.store import RunError, write_lines
from eval.judging.judge_card import Correction
from eval.report.cell import Asked, Cell, Column
from eval.report.published import Published
from eval.report.rendering import markdown
from eval.report.tables import Row, Table
from scripts.setup.launch import composed
from scripts.setup.printing import agrees, print_table
from scripts.tables.captions import caption, usage_note


@pytest.fixture
def table(tmp_path: Path) -> Table:
    questions = tuple(Asked("c", f"q{number}", "ab"[number % 2], "c", True, True) for number in range(4))
    path = tmp_path / "scores.jsonl"
    write_lines(path, [{"case_id": "c", "question_id": f"q{n}", "repeat": 0, "value": float(n < 3)} for n in range(4)])
    column = Column("toy", "Toy", "F1", questions)
    return Table("toy", "Toy table", ("caption",), (column,), (Row("one", "One", (Cell(column, {}, (path,)),)),))


def test_a_pipe_gets_what_a_terminal_gets_and_the_markdown_on_request(table: Table, capsys: Any) -> None:
    print_table(table, None)
    text = capsys.readouterr().out
    assert "0.750 [" in text
    assert "by category" not in text
    print_table(table, "plain")
    assert capsys.readouterr().out == markdown(table) + "\n"


def test_a_table_with_published_numbers_is_first_shown_as_the_paper_prints_it(table: Table, capsys: Any) -> None:
    number = Published("P", "T", "D", "B", "M", "", "All", "acc", 0.9, None, None, None, "", "0.9")
    row = table.rows[0]
    assert isinstance(row.cells[0], Cell)
    rows = (replace(row, cells=(replace(row.cells[0], published=number),)), replace(row, name="other", ruled=True))
    print_table(replace(table, rows=rows), None)
    text = capsys.readouterr().out
    assert len([line for line in text.splitlines() if line.startswith("One")]) == 1
    assert "Not shown: 1 row" in text
    assert "corrected" not in text
    fixed = replace(rows[0], cells=(replace(rows[0].cells[0], correction=Correction(None, "make one")),))
    print_table(replace(table, rows=(fixed, *rows[1:])), None)
    said = " ".join(capsys.readouterr().out.split())
    assert "Everything, with corrected scores, differences and costs: print=narrow." in said
    print_table(replace(table, rows=rows), "narrow")
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("One")]) == 2


def test_a_narrow_table_that_is_piped_has_no_colours(table: Table, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    print_table(table, "narrow")
    text = capsys.readouterr().out
    assert "0.750 [" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_terminal_gets_the_narrow_table_in_its_own_width(table: Table, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "84")
    monkeypatch.setenv("TERM", "dumb")
    print_table(table, None)
    text = capsys.readouterr().out
    assert "0.750 [" in text
    assert max(map(len, text.splitlines())) == 84
    print_table(table, "plain")
    assert capsys.readouterr().out == markdown(table) + "\n"


def test_wide_adds_the_intervals_and_cuts_nothing(table: Table, capsys: Any) -> None:
    print_table(table, "wide")
    assert "{1 case}" in capsys.readouterr().out


@pytest.mark.slow
def test_another_form_is_refused_with_those_that_exist() -> None:
    for command in ("config", "reproduce"):
        with pytest.raises(RunError, match=r"print.*narrow.*wide.*plain"):
            composed(command, ["profile=smoke", "print=tall"])


def test_the_sentence_about_use_never_promises_more_than_the_weakest_part() -> None:
    assert usage_note({"stand-in", "subset"}).startswith("only testing the machinery")
    assert usage_note({"sample data", "subset"}).startswith("trying things out")
    assert usage_note({"subset"}) == "comparing its rows with each other, not with the paper (subset)."
    assert usage_note({"other model"}, published=False) == "comparing its rows with each other (other model)."
    assert usage_note(set()) == "comparing its rows with each other and with the paper."
    assert all(
        len(f"Use: {usage_note({reason})}") <= 80 for reason in ("stand-in", "sample data", "subset", "other model")
    )


def test_the_sentence_about_use_names_the_roles_of_stand_ins_and_keeps_answers_of_others_apart() -> None:
    roles = ["memory", "reader", "judge", "embedder"]
    assert (
        usage_note({"stand-in"}, stand_ins=roles[2:]) == "only testing the machinery; stand-ins fill judge, embedder."
    )
    assert len(f"Use: {usage_note({'stand-in'}, stand_ins=roles)}") <= 80
    mixed = usage_note({"stand-in"}, stand_ins=roles, imported=True)
    assert mixed == "comparing imported rows; what stand-ins answered or judged is no result."


def test_a_caption_with_imported_answers_condemns_only_what_stand_ins_answered_or_judged() -> None:
    name = SimpleNamespace(name="extractive")
    roles: Any = SimpleNamespace(memory=name, reader=name, judge=name, probe=name, embedder=name, stand_ins=["judge"])
    settings: Any = SimpleNamespace(
        build=SimpleNamespace(rebuild_every=1, replicates=1, published=None),
        data=SimpleNamespace(transform="none"),
        judge=SimpleNamespace(repeats=1),
    )
    assert " These numbers test the machinery; " in caption(settings, roles, [])[0]
    first = caption(settings, roles, [], imported=True)[0]
    assert " Numbers of what they answered or judged test the machinery; " in first
    assert "These numbers" not in first


@pytest.mark.parametrize(
    ("rebuild_every", "replicates", "published", "built"),
    [(1, 1, None, "1x"), (1, 2, None, "2x"), (1, 1, 3, "1x, rows with a published number 3x"), (2, 1, None, "1x")],
)
def test_a_caption_says_how_often_memories_are_built_and_whose_costs_are_shown(
    rebuild_every: int, replicates: int, published: int | None, built: str
) -> None:
    name = SimpleNamespace(name="m")
    roles: Any = SimpleNamespace(memory=name, reader=name, judge=name, probe=name, embedder=name, stand_ins=[])
    settings: Any = SimpleNamespace(
        build=SimpleNamespace(rebuild_every=rebuild_every, replicates=replicates, published=published),
        data=SimpleNamespace(transform="none"),
        judge=SimpleNamespace(repeats=1),
    )
    models, *rebuilt, last = caption(settings, roles, [])
    assert models == "Models: memory m, reader m, judge m; embedder m.", "a probe that is the reader is not named"
    assert len(rebuilt) == (rebuild_every > 1)
    assert f"Judged 1x, built {built} (" in last
    assert ("Costs are those of the first build." in last) == (built != "1x")
    roles.probe = SimpleNamespace(name="p")
    assert caption(settings, roles, [])[0].endswith("judge m, probe p; embedder m.")


def test_the_sentence_about_use_names_the_judges_that_nobody_measured() -> None:
    assert usage_note({"subset"}, unmeasured=["m"]).endswith(
        " How often m errs as judge is not known; judge-card measures it."
    )
    assert "judge-card" not in usage_note({"stand-in"}, unmeasured=["m"])
    assert "judge-card" not in usage_note({"subset"})


@pytest.mark.parametrize(
    ("typed", "meant"), [("yes\n", True), ("\n", False), ("", False)], ids=["yes", "enter", "Ctrl-D"]
)
def test_only_a_yes_agrees(monkeypatch: pytest.MonkeyPatch, typed: str, meant: bool) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert agrees("Spend this?") is meant
