"""The table of released products: what is not installed, how a row recalls, what it costs, and whether conformance accepted it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memsys.products.places import PINS
from scripts.setup.exits import guarded
from scripts.setup.options import load_option, options
from scripts.tables import grid, table
from scripts.tables.grid import NOT_EXAMINED
from scripts.tables.table import make_table
from tests.scripts.commands import composed


def printed(folder: Path, *settings: str) -> dict[str, list[str]]:
    """Cells of the table's rows as its JSON has them, by row."""
    cut = ["table=released", "profile=smoke", "data.max_cases=1", "data.size=4", f"results={folder}", *settings]
    guarded(lambda: make_table(composed("reproduce", cut)).code)
    (file,) = (folder / "tables").glob("*.json")
    made = json.loads(file.read_text(encoding="utf-8"))
    return {row["name"]: [cell["text"] for cell in row["cells"]] for row in made["rows"]} | {"caption": made["caption"]}


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMSYS_PRODUCTS", str(tmp_path / "products"))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_installed")
def test_a_product_that_is_not_installed_is_said_to_be_and_other_rows_say_how_they_recall(tmp_path: Path) -> None:
    rows = printed(tmp_path, "table.others=[bm25,recency,released_mem0,released_lightrag]")
    assert set(rows["released_mem0"] + rows["released_lightrag"]) == {"not installed"}
    assert "Not installed: mem0ai, lightrag: make product NAME=…, or NAME=all." in rows["caption"]
    assert rows["bm25"][-3] == "pairs of turns (fixed speakers); k 10"
    assert rows["bm25"][-2].startswith("0 + 0 embedded tokens a unit; ")
    assert rows["bm25"][-2].endswith(" a question; run –")
    assert (rows["bm25"][-1], rows["recency"][-1]) == ("accepted", "accepted")


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_installed")
def test_a_product_that_is_asked_for_by_name_has_to_be_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["table=released", "profile=smoke", f"results={tmp_path}", "only=[released_mempalace]"]
    assert guarded(lambda: make_table(composed("reproduce", settings)).code) == 2
    assert "mempalace is not installed: make product NAME=mempalace" in capsys.readouterr().err


@pytest.mark.slow
def test_a_row_whose_conformance_is_refused_says_why_and_a_replay_examines_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = printed(tmp_path, "table.others=[bm25,nothing]")
    assert (rows["bm25"][-1], rows["nothing"][-1]) == ("accepted", "accepted, waived: empties")
    for file in (tmp_path / "conformance").iterdir():
        if file.name.startswith("nothing-"):
            file.unlink()
        else:
            file.write_text('{"refused": ["k ignored"], "faults": {"k ignored": "3 came"}}', encoding="utf-8")
    rows = printed(tmp_path, "table.others=[bm25,nothing]", "replay=true")
    assert (rows["bm25"][-1], rows["nothing"][-1]) == ("refused: k ignored", NOT_EXAMINED)
    monkeypatch.setattr(grid, "source_digest", lambda modules: "other checks", raising=False)
    rows = printed(tmp_path, "table.others=[bm25,nothing]", "replay=true")
    assert rows["bm25"][-1] == NOT_EXAMINED, "the checks have changed"


def test_rows_that_were_not_asked_for_and_groups_that_do_not_print_it_are_not_examined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examined: list[str] = []
    monkeypatch.setattr(table, "conformance", lambda run: "accepted" if run == "known" else NOT_EXAMINED)
    monkeypatch.setattr(table, "examine_and_keep", lambda run, waived: examined.append(run))
    monkeypatch.setattr(table, "recipe_of", lambda memory: SimpleNamespace(waived={}))
    printing = [SimpleNamespace(kind="fact", name="conformance")]
    groups: Any = [
        SimpleNamespace(name=name, dataset="d", metrics=printing if name == "facts" else [])
        for name in ("facts", "scores")
    ]
    lines: Any = [
        SimpleNamespace(name=name, memory=None if name == "paper" else {}) for name in ("a", "b", "c", "paper")
    ]
    runs: Any = {("a", "facts"): ["a"], ("b", "facts"): ["b"], ("c", "facts"): ["known"], ("a", "scores"): ["a again"]}
    for only, expected in ((None, ["a", "b"]), (frozenset({"b", "c"}), ["b"])):
        examined.clear()
        table._examine(groups, lines, runs | {("paper", "facts"): ["paper"]}, only)
        assert examined == expected


def test_every_product_is_a_row_of_the_table_and_says_how_it_recalls() -> None:
    """But one, whose authors ask not to compare it with other memories."""
    rows = {row if isinstance(row, str) else row["memory"] for row in load_option("table", "released")["others"]}
    released = {name for name in options("memory") if name.startswith("released_")}
    assert released - rows == {"released_letta"}
    assert {load_option("memory", name)["build"]["product"] for name in released} == {
        path.stem for path in PINS.glob("*.txt")
    }
    assert all(load_option("memory", name).get("recall") for name in released)
