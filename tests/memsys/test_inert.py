"""What comes from outside is inert on a terminal and in a spreadsheet, whichever way it is printed."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from data_loaders.schema import DataError
from eval.analysis import growth
from eval.files.store import write_lines
from eval.report.rendering import cell_text, grid
from eval.report.shapes import table as table_of_structure
from memsys.inert import Inert, csv_text, inert_output, visible
from scripts.assembly.steps import say_missing
from scripts.setup.exits import guarded
from scripts.setup.printing import console
from scripts.setup.probes import Checked, table

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\u200e\u200f\u061c\u2028next\r"
ACTIVE = set(HOSTILE) - set("]0;owned[2J31mgnpnext")


def harmless(text: str) -> bool:
    return not ACTIVE & set(text) and r"\x1b]0;owned" in text and r"\u2028next" in text


def error_line(folder: Path) -> None:
    scores = folder / "scores.jsonl"
    write_lines(scores, [{"case_id": "c", "question_id": "q", "value": None, "why": f"HTTP 500: {HOSTILE}"}])
    say_missing(1.0, "cell", 0.0, [], [scores], "")


def failing(_: Path) -> None:
    raise DataError(f"a file says {HOSTILE}")


def doctor(_: Path) -> None:
    print(table([Checked("asked", HOSTILE, HOSTILE, "stop")]))


def markdown_and_pages(_: Path) -> None:
    """As `print=plain`, inspect, runs and every other command prints."""
    print(f"| {HOSTILE} | 1 |")
    print(HOSTILE, file=sys.stderr)
    sys.stdout.writelines([HOSTILE, HOSTILE])


def rich_table(_: Path) -> None:
    """As tables for a terminal, progress lines and watch draw."""
    console(sys.stdout, width=300).print(HOSTILE)


@pytest.mark.parametrize("way", [error_line, failing, doctor, markdown_and_pages, rich_table])
def test_no_way_of_printing_lets_an_escape_sequence_through(way: Any, tmp_path: Path, capsys: Any) -> None:
    guarded(lambda: way(tmp_path))
    printed = capsys.readouterr()
    assert not ACTIVE & set(printed.out + printed.err)
    assert "\\x1b" in printed.out + printed.err


def test_a_traceback_of_a_bug_is_inert_and_the_streams_return_afterwards(capsys: Any) -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(TypeError), inert_output():
        raise TypeError(HOSTILE)
    assert isinstance(sys.stderr, Inert)  # Python prints the traceback now
    sys.stdout, sys.stderr = before
    with inert_output():
        print("plain", "ä 漢 👩‍👩‍👧", "\ttab")
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == "plain ä 漢 👩‍👩‍👧 \ttab\n"


def test_a_character_that_the_encoding_lacks_is_escaped(monkeypatch: Any) -> None:
    """Locales of clusters and PYTHONIOENCODING give such encodings."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))

    def work() -> None:
        rich_table(Path())
        print("score: ± .02 – 漢")

    assert guarded(work) == 0
    assert written.getvalue().splitlines()[-1] == "score: \xb1 .02 \\u2013 \\u6f22".encode("latin-1")


def test_colours_of_our_own_still_reach_a_terminal_and_foreign_ones_do_not() -> None:
    stream = io.StringIO()
    drawn = console(Inert(stream), force_terminal=True, color_system="standard", width=200, highlight=False)  # type: ignore[arg-type]
    drawn.print(HOSTILE, style="red")
    text = stream.getvalue()
    assert text.startswith("\x1b[31m")
    assert harmless(text.replace("\x1b[31m", "").replace("\x1b[0m", ""))


def test_visible_is_idempotent_and_leaves_text_alone() -> None:
    assert visible(visible(HOSTILE)) == visible(HOSTILE)
    assert harmless(visible(HOSTILE))
    assert visible("a\n\tb שלום \N{ZERO WIDTH JOINER}") == "a\n\tb שלום \N{ZERO WIDTH JOINER}"


def test_a_name_ends_no_cell_of_a_markdown_table_begins_no_html_and_acts_on_no_terminal() -> None:
    name = f"{HOSTILE}\na|b <script>alert(1)</script><!-- p <0.001"
    for lines in (grid([name], [[name]]).split("\n"), table_of_structure([name], [[name]])):
        head, _, row = (line.replace("\\|", "").strip("| ") for line in lines)
        assert head.rstrip() == row.rstrip()
        assert harmless(head)
        assert "|" not in head
        assert head.count("<") == 1
    assert "&lt;script>alert(1)&lt;/script>&lt;!-- p <0.001" in head
    assert cell_text(r"\<b> \\<b> a\|b ![x](http://host) [0, 1] (x) \d") == (
        r"\<b> \\&lt;b> a\|b ![x]\(http://host) [0, 1] (x) \d"
    )


def test_formulas_in_a_csv_cell_are_quoted_and_numbers_stay_numbers() -> None:
    formulas = ["=cmd|'/c calc'!A1", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1"]
    numbers = ["-.023", "-1", "+2.5", "-inf", 3, -4.5, ""]
    (read,) = csv.reader(io.StringIO(csv_text([[*formulas, *numbers]]), newline=""))
    assert read[: len(formulas)] == [f"'{formula}".replace("\r", "\n") for formula in formulas]
    assert read[len(formulas) :] == list(map(str, numbers))


def test_every_csv_of_the_project_is_written_by_the_one_function(root: Path) -> None:
    modules = [path for name in ("data_loaders", "memsys", "eval", "scripts") for path in (root / name).rglob("*.py")]
    writers = [
        path.name for path in modules if "csv.writer(" in (text := path.read_text("utf-8")) or "csv.DictWriter(" in text
    ]
    assert writers == ["inert.py"]
    assert growth.as_csv("=1+1", "d", False, []).startswith("memory,")
