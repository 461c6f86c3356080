"""Names in the report: what tells tables and sets of runs apart is said in words, a hash comes last."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from eval.files.run_folder import RunRecord
from eval.report.html.build import set_labels, table_titles
from eval.report.html.run_files import ReadRun, ReadSet
from eval.report.html.scoring import Scorer, scorers
from eval.report.html.sources import ReportedRun, RunSet, TableFile, _tables


def test_tables_with_one_title_are_told_apart_by_their_files() -> None:
    tables = [TableFile(stem, {"title": "Table 4"}) for stem in ("t4-smoke", "t4-subset-bm25")]
    assert table_titles([*tables, TableFile("f5", {"title": "Fig. 5"})]) == [
        "Table 4 (smoke)",
        "Table 4 (subset-bm25)",
        "Fig. 5",
    ]


def made(key: str, **dataset: Any) -> RunSet:
    record = RunRecord(dataset={"name": "locomo", "sha256": key * 9, **dataset})
    runs = (ReportedRun(f"locomo/a-{key}", Path(key), record, "A"),)
    return RunSet(f"locomo-{key}", "locomo", runs, ())


def test_sets_of_one_data_set_are_named_by_the_settings_that_differ() -> None:
    assert set_labels([made("aaaaaa", size="all")], [9]) == ["locomo"]
    assert set_labels([made("aaaaaa", size="all", max_cases=None), made("bbbbbb", size=2, max_cases=3)], [9, 2]) == [
        "locomo (size all, 9 questions)",
        "locomo (size 2, max_cases 3, 2 questions)",
    ]


def test_a_hash_is_printed_only_where_settings_do_not_tell_sets_apart() -> None:
    assert set_labels([made("aaaaaa"), made("bbbbbb")], [9, 9]) == [
        "locomo (9 questions) aaaaaa",
        "locomo (9 questions) bbbbbb",
    ]


def test_a_table_of_imported_answers_is_markdown_alone_and_not_missed(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    for stem in ("imported-memobase-3ad0", "t4-smoke"):
        (tmp_path / "tables" / f"{stem}.md").touch()
    missing: list[str] = []
    assert _tables(tmp_path, (), missing) == ()
    assert [line.split()[1] for line in missing] == ["t4-smoke"]


def test_a_scorer_has_the_title_and_the_weights_of_its_own_data_set() -> None:
    """The pages compared RealMem's runs by question where its table averages personas, and named its F1 as LoCoMo's column did."""
    run = cast("ReadRun", SimpleNamespace(scores={Path("runs/realmem/bm25-1/scores/squad_f1-0.jsonl"): {}}))
    own = ReadSet("realmem-0", "realmem", (run,), (), aggregate="case")

    def table(dataset: str, aggregate: str) -> TableFile:
        cell = {"files": [f"runs/{dataset}/bm25-1/scores/squad_f1-0.jsonl"], "repeats": 1}
        columns = [{"metric": f"F1 of {dataset}", "aggregate": aggregate}]
        return TableFile("toy", {"columns": columns, "rows": [{"cells": [cell]}]})

    assert scorers(own, [table("locomo", "question")]) == [Scorer("squad_f1-0", "squad_f1", None, "case")]
    both = [table("locomo", "category"), table("realmem", "question")]
    assert scorers(own, both) == [Scorer("squad_f1-0", "F1 of realmem", 1, "question")]
