"""Questions that need no memory: counted, listed with the answer that was given, and left out of every row on request."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from eval.files.store import RunError
from scripts.tables.table import make_table
from tests.scripts.commands import composed

# The longest option is right for seven of ten questions or so, whatever a memory recalls: a metric that needs none.
COLUMNS = (
    "table.columns=[{dataset: personamem, aggregate: question, "
    "metrics: [{metric: personamem_longest}, {metric: personamem_choice}]}]"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


def settings(results: Path, *more: str) -> list[str]:
    return ["table=next", "profile=smoke", "only=[nothing,bm25]", COLUMNS, f"results={results}", *more]


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


@pytest.mark.slow
def test_guessable_questions_are_listed_and_left_out_of_every_row_on_request(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = make_table(composed("reproduce", settings(results))).file
    assert "Guessable" not in capsys.readouterr().out
    listed = make_table(composed("reproduce", settings(results, "guessable=list"))).file
    without = make_table(composed("reproduce", settings(results, "guessable=exclude"))).file
    assert kept is not None
    rows = json.loads(kept.with_suffix(".json").read_text(encoding="utf-8"))["rows"]
    folders = {row["name"]: row["runs"]["personamem"] for row in rows if row["name"] in ("nothing", "bm25")}
    assert all((results / folder / "run.json").is_file() for folder in folders.values())
    assert listed == kept
    assert without is not None
    assert without != kept, "the table of all questions stays"
    before = {
        (row["memory"], row["metric"]): row for row in rows_of(kept.with_suffix(".csv")) if row["category"] == "all"
    }
    after = {
        (row["memory"], row["metric"]): row for row in rows_of(without.with_suffix(".csv")) if row["category"] == "all"
    }
    names = rows_of(listed.with_suffix(".guessable.csv"))
    assert rows_of(without.with_suffix(".guessable.csv")) == names
    assert names
    assert all(name["question"] and name["gold"] and float(name["score"]) >= 0.5 for name in names)
    key = ("bm25", "always the longest option")
    assert int(before[key]["questions"]) - int(after[key]["questions"]) == len(names)
    assert float(before[key]["mean"]) > float(after[key]["mean"]) == 0.0, "what is left cannot be guessed so"
    assert not after["nothing", "always the longest option"]["mean"], "0 by construction: no number"
    assert "chooses the questions left out" in without.read_text(encoding="utf-8")
    assert f"Guessable: {len(names)} of 10 answerable questions of PersonaMem v1 (32k)" in listed.read_text(
        encoding="utf-8"
    )
    assert "left out of every row" in without.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_second_build_scores_the_row_that_chooses(results: Path) -> None:
    asked = [
        each for each in settings(results, "guessable=exclude", "build.replicates=2") if not each.startswith("only=")
    ]
    file = make_table(composed("reproduce", [*asked, "only=[nothing]"])).file
    assert file is not None
    row = next(row for row in rows_of(file.with_suffix(".csv")) if row["memory"] == "nothing")
    assert float(row["mean"]) == 0.0, "this engine repeats itself"
    rows = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["rows"]
    nothing = next(each for each in rows if each["name"] == "nothing")
    (scored,) = nothing["cells"][0]["files"]
    assert not scored.startswith(nothing["runs"]["personamem"]), "the first build chose the questions"


@pytest.mark.slow
def test_questions_that_have_no_answer_are_not_guessable(results: Path) -> None:
    # Without a memory every reply is brief: by this metric all questions are answered right.
    columns = "table.columns=[{dataset: locomo, metrics: [{metric: fact_brief}]}]"
    asked = [
        "profile=smoke",
        "only=[nothing]",
        columns,
        f"results={results}",
        "guessable=exclude",
        "data.size=48",
        "build.replicates=2",
    ]
    file = make_table(composed("reproduce", ["table=next", *asked])).file
    assert file is not None
    row = next(row for row in rows_of(file.with_suffix(".csv")) if row["memory"] == "nothing")
    assert 0 < int(row["questions"]) < 10
    assert row["category"] == "all", "the categories of answerable questions are gone"
    assert float(row["mean"]) == 1.0, "answered right without a memory, and kept"


@pytest.mark.slow
def test_a_table_without_the_row_that_has_no_memory_says_what_is_missing(results: Path) -> None:
    asked = settings(results, "guessable=list", "table.others=[]", "table.rows=[{memory: bm25}]")
    with pytest.raises(RunError, match="needs scores of the row `nothing`"):
        make_table(composed("reproduce", [each for each in asked if not each.startswith("only=")]))
