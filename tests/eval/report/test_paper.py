"""The table for a paper: its numbers are the report's, its caption says what it must, and TeX compiles it whatever the titles hold."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from eval.report.cell import Cell, Column
from eval.report.paper import escaped, latex, paper_table, standalone, stars
from eval.report.rendering import shown
from eval.report.tables import CELLS, NO_INTERVAL, Measure, Pair, Row, Table
from eval.statistics.stats import Difference, Estimate
from scripts.door import Lab
from tests.eval.report.pairs import two_data_sets

pytestmark = pytest.mark.slow

HOSTILE = r"\input{/etc/passwd} & 100% #1 $x_{2}^3~ <b>\"' | café 中文 ‮ \end{document}" + "\n\nnew paragraph \x00\x1b"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    lab = Lab("profile=smoke", f"results={tmp_path_factory.mktemp('paper')}")
    rows = [lab.score(lab.ask(name, "locomo"), ["locomo_f1", "mem0_f1"], ["mem0"]) for name in ("bm25", "nothing")]
    return lab.table(*rows)


def test_every_mean_of_the_paper_is_that_of_the_report(table: Table) -> None:
    text = paper_table(table)
    assert text.count("\\sbox0{%\n\\begin{tabular}") == text.count("\\bottomrule\n\\end{tabular}}%\n\\ifdim") == 1
    for row in table.rows:
        (line,) = [line for line in text.splitlines() if line.startswith(escaped(row.title))]
        assert len(re.findall(r"\d\.\d{3}(?=\\textsuperscript| &)", line)) == len(row.cells) == 3
        for cell in row.cells:
            mean, low = re.findall(r"\d\.\d{3}", shown(cell))[:2]
            assert mean in line
            assert f"[{low}" in line


def test_the_caption_says_n_the_stand_in_the_errors_and_the_test(table: Table) -> None:
    caption = paper_table(table).partition(r"\caption{")[2]
    assert "STAND-IN: reader" in caption or "STAND-IN: memory, reader" in caption
    assert "n = 48 questions in 3 histories" in caption
    assert "Every answer of every row was scored." in caption
    assert "Not tested: differences are about these 3 histories alone." in caption
    assert "p \\textless{}" not in caption, "no marks are explained where nothing is tested"
    first = table.rows[0]
    missing = replace(first.cells[0], score_files=(), outcomes={})  # type: ignore[arg-type]
    assert "left out" not in caption
    silent = replace(first, name="silent", title="Silent", cells=(missing,) * 3)
    assert "Left out: 1 row without a number." in paper_table(replace(table, rows=(*table.rows, silent)))
    unanswered = dict(list(first.cells[0].outcomes.items())[5:])  # type: ignore[union-attr]
    kept = dict(list(first.cells[0].scores.items())[5:])  # type: ignore[union-attr]
    partly = replace(first.cells[0], outcomes=unanswered)  # type: ignore[arg-type]
    partly.__dict__["scores"] = kept
    worse = replace(first, cells=(partly, *first.cells[1:]))
    assert "5 not reached" in paper_table(replace(table, rows=(worse, *table.rows[1:])))


def test_the_caption_says_when_one_of_several_builds_lacks_scores(table: Table, tmp_path: Path) -> None:
    cell = table.rows[0].cells[0]
    assert isinstance(cell, Cell)
    path = tmp_path / "second.jsonl"
    path.write_text(
        "".join(cell.score_files[0].read_text(encoding="utf-8").splitlines(keepends=True)[1:]), encoding="utf-8"
    )
    twice = replace(cell, score_files=(*cell.score_files, path))
    rows = (replace(table.rows[0], cells=(twice, *table.rows[0].cells[1:])), *table.rows[1:])
    caption = paper_table(replace(table, rows=rows)).partition(r"\caption{")[2]
    assert "Every answer of every row was scored." not in caption
    assert r"at most 1.0\% of a cell is not scored" in caption
    assert "Some builds or repeats lack scores that others have." in caption


def test_the_caption_of_the_plain_tex_describes_its_own_cells(table: Table) -> None:
    text = latex(replace(table, caption=(f"{CELLS}{NO_INTERVAL} Judged 1x.", f"Imported. {CELLS}; more")))
    assert "95 \\% by question" not in text, "the cells have one interval, by case or Wilson's"
    assert text.count("Cells: mean [95 \\% by case; below five cases") == 2
    assert "(published number). Judged 1x." in text


def test_the_caption_of_the_plain_tex_counts_the_answers_without_a_score(table: Table) -> None:
    assert "Every answer of every row was scored." in latex(table)
    cell = table.rows[0].cells[0]
    assert isinstance(cell, Cell)
    partly = replace(cell, outcomes={key: frozenset({"error"}) for key in cell.outcomes})
    partly.__dict__["scores"] = dict(list(cell.scores.items())[5:])
    rows = (replace(table.rows[0], cells=(partly, *table.rows[0].cells[1:])), *table.rows[1:])
    assert "Over all cells 5 errors" in latex(replace(table, rows=rows))


def test_the_caption_of_counts_and_costs_says_nothing_about_questions() -> None:
    column = Column("toy", "Toy", "nodes", ())
    row = Row("a", "A", (Measure(Estimate(57.0, 3, None, None, 3)),))
    text = paper_table(Table("toy", "Toy", (), (column,), (row,)))
    assert "Counts and costs" in text
    assert "no questions" not in text
    assert "No cell has a number" not in text


def with_errata(table: Table, row: int, share: float) -> Table:
    """The table with errata for a share of the first metric's questions, so that a score above what is left is above its ceiling."""
    cell = table.rows[row].cells[0]
    assert isinstance(cell, Cell)
    keys = sorted(cell.scores, key=cell.scores.__getitem__)  # the worst answers have wrong gold
    known = replace(cell, errata=frozenset(keys[: round(share * len(keys))]))
    rows = [*table.rows]
    rows[row] = replace(rows[row], cells=(known, *rows[row].cells[1:]))
    return replace(table, rows=tuple(rows))


def test_a_score_above_its_ceiling_is_marked_and_the_note_below_says_the_ceiling(table: Table) -> None:
    plain = paper_table(table)
    assert "ddag" not in plain
    assert "daggerdbl" not in plain
    assert paper_table(with_errata(table, 0, 0.1)) == plain, "an erratum alone marks nothing"
    text = paper_table(with_errata(table, 0, 0.9))
    marked = [line for line in text.splitlines() if r"\ddag" in line and "tabular" not in line]
    assert len(marked) == 1
    assert marked[0].startswith("BM25")
    assert marked[0].count(r"\ddag") == 1
    ceiling = with_errata(table, 0, 0.9).rows[0].cells[0].ceiling()  # type: ignore[union-attr]
    caption = text.partition(r"\caption{")[2]
    assert r"\textdaggerdbl{} above its ceiling, the score of a perfect memory, because" in caption
    assert f"(BM25, {table.columns[0].metric}: {ceiling:.3f})." in caption


@pytest.mark.parametrize(("p", "mark"), [(0.0004, "***"), (0.004, "**"), (0.04, "*"), (0.06, ""), (None, "")])
def test_marks_follow_the_p_that_is_adjusted_over_the_family(p: float | None, mark: str, table: Table) -> None:
    difference: Difference = next(iter(table.pairs.values())).difference
    assert stars(Pair(difference, p)) == mark


def test_a_caption_names_the_test_of_its_own_data_set(tmp_path: Path) -> None:
    text = paper_table(two_data_sets(tmp_path))
    many, few = text.split(r"\caption{")[1:]
    assert "max-T over all sign flips of the 8 histories" in many
    assert "F1: Exploratory: not tested." in many
    assert "Not tested: differences are about these 4 histories alone." in few
    assert "sign flips" not in few
    assert r"\textsuperscript{**" in many.partition(r"\end{tabular}")[0] + text.partition(r"\caption{")[0]


def test_no_text_of_a_title_reaches_tex_as_a_command() -> None:
    text = escaped(HOSTILE)
    assert r"\input" not in text
    assert r"\end{document}" not in text
    assert "[U+4E2D]" in text
    assert "[U+202E]" in text
    assert "\n" not in text
    assert text.isascii() or "é" in text


@pytest.mark.integration
def test_a_real_tex_compiles_the_table_whatever_its_titles_hold(table: Table, tmp_path: Path) -> None:
    tex = shutil.which("tectonic") or shutil.which("pdflatex")
    if tex is None:
        pytest.skip("no tectonic and no pdflatex; Debian: apt install --no-install-recommends texlive-science")
    rows = tuple(replace(row, title=f"{HOSTILE} {number}", ruled=True) for number, row in enumerate(table.rows))
    hostile = replace(table, title=HOSTILE, name=HOSTILE, rows=rows, caption=(*table.caption, f"Models: {HOSTILE}"))
    for name, own in (("plain", table), ("hostile", hostile), ("ceiling", with_errata(table, 0, 0.9))):
        file = tmp_path / f"{name}.tex"
        file.write_text(standalone(own), encoding="utf-8")
        options = [] if "tectonic" in tex else ["-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape"]
        done = subprocess.run([tex, *options, file.name], cwd=tmp_path, capture_output=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-3000:]
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert b"Overfull" not in done.stdout  # a table wider or higher than the page is made smaller
