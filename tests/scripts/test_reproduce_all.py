"""Every table and figure by one command: nothing left out, what fails is in the list and stops nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.store import RunError
from scripts import figures, reproduce_all

CONF = Path(__file__).resolve().parents[2] / "conf"


def test_every_table_and_figure_of_a_paper_is_made_and_nothing_else() -> None:
    names = list(reproduce_all.everything())
    assert len(set(names)) == len(names)
    assert set(names) == {
        path.stem
        for group in ("table", "figure")
        for path in (CONF / group).glob("*.yaml")
        if path.stem != "regression"
    }
    assert names.index("timem_t9") < names.index("timem_t10") < names.index("timem_f3")


def test_the_list_says_what_was_made_by_which_command_and_where(tmp_path: Path, capsys: Any) -> None:
    assert reproduce_all.main(["only=memtree_t5", "only=xmemory_f4", "profile=smoke", f"results={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert "STAND-IN" not in said  # the tables themselves are in their files
    index = (tmp_path / "tables" / "index-smoke.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in index.splitlines()[2:]]
    assert [row[0] for row in rows] == ["memtree_t5", "xmemory_f4"]
    assert all(Path(row[3]).is_file() and row[4] == "made" for row in rows)
    assert rows[0][1].startswith("`python -m scripts.reproduce table=memtree_t5 profile=smoke")


def test_what_fails_is_in_the_list_and_the_others_are_made(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> int:
        raise RunError("no such thing")

    monkeypatch.setattr(figures, "figure", broken)
    assert reproduce_all.main(["only=memtree_t5", "only=xmemory_f4", "profile=smoke", f"results={tmp_path}"]) == 1
    said = capsys.readouterr().out
    assert "RunError: no such thing" in said
    assert "1 made" in said
    assert "1 failed" in said
