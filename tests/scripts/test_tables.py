"""Tables about the systems: calls as the papers count them, and a row for every memory."""

from __future__ import annotations

from pathlib import Path

from eval.provenance import ROOT
from scripts.assemble import options
from scripts.tables import calls_table, measure, printed


def test_calls_are_those_that_the_methods_make(tmp_path: Path) -> None:
    found = {row.name: row for row in measure(["bm25", "memstream", "amem", "timem", "raptor"], tmp_path)}
    assert (found["bm25"].per_insertion, found["bm25"].per_query) == (0.0, 0.0)
    assert (found["memstream"].per_insertion, found["memstream"].per_query) == (1.0, 0.0)
    assert (found["amem"].per_insertion, found["amem"].per_query) == (2.0, 1.0)
    assert found["timem"].per_query == 2.0
    assert found["raptor"].offline
    assert "STAND-IN" in calls_table(list(found.values()))


def test_the_published_figure_stands_beside() -> None:
    assert printed("memtree").startswith("3.27 (MemTree A.2")
    assert printed("segtree_batch").startswith("1.95 (SegTreeMem T5")
    assert printed("bm25") == ""


def test_every_memory_has_a_row_in_the_list_of_systems() -> None:
    text = (ROOT / "memsys" / "README.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")} - {"memory"}
    assert rows == set(options("memory")), "run `python -m scripts.tables systems`"
