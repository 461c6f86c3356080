"""`table=change`: the controls stand in every table, and no memory wins by saying nothing."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

from data_loaders.change import VARIANTS
from eval.files.store import RunError
from eval.report.cell import OutcomeCell
from scripts.assembly.run_folders import write_report
from scripts.assembly.steps import cell_of, metrics
from scripts.door import Lab
from scripts.settings.schema import Reproduce
from scripts.setup.options import load_option
from scripts.tables.layout import metrics_of, read_lines_of
from scripts.tables.table import Outcome
from tests.scripts.commands import change, composed

pytestmark = pytest.mark.slow

CONTROLS = ["nothing", "full_history", "recency", "oracle_editor"]
FAMILIES = ["supersede", "echo", "retract", "users", "poison", "private"]


def test_the_controls_are_rows_that_table_others_cannot_take_away() -> None:
    table = load_option("table", "change")
    assert [row["memory"] for row in table["rows"]] == CONTROLS
    lines = read_lines_of({**table, "others": ["dense"]}, None)
    assert [line.name for line in lines] == [*CONTROLS, "dense"]
    assert all(line.memory is not None for line in read_lines_of(table, None))


def test_recall_and_answers_stand_side_by_side_and_there_is_no_total() -> None:
    (column,) = load_option("table", "change")["columns"]
    scores = [(metric.name, metric.category) for metric in metrics_of(column) if metric.kind == "metric"]
    both = [(metric, family) for family in FAMILIES for metric in ("change_recall", "change_answer")]
    assert scores == [*both, ("change_answer", "yes_no")]
    assert {*FAMILIES, "yes_no"} == {*VARIANTS}
    assert all(cell_of(metric) is OutcomeCell and metrics([metric])[0].joint for metric, _ in scores)


@dataclass(frozen=True)
class Written:
    """What a command left."""

    code: int
    cells: dict[tuple[str, str], dict[str, str]]
    """Lines of the CSV by memory and metric."""
    markdown: str
    results: Path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    results = tmp_path_factory.mktemp("results")
    settings = ["memory=bm25", "dataset=locomo", "profile=smoke", "data.size=3", f"results={results}"]
    code = change(composed("change", settings))
    (path,) = results.glob("tables/*.csv")
    lines = list(csv.DictReader(path.open(encoding="utf-8")))
    cells = {(line["memory"], line["metric"]): line for line in lines if line["category"] == "all"}
    return Written(code, cells, path.with_suffix(".md").read_text(encoding="utf-8"), results)


def test_probes_that_do_not_apply_fail_no_command(
    written: Written,
) -> None:
    assert written.code == 0


def test_the_controls_stand_at_both_ends(written: Written) -> None:
    cells = written.cells
    means = {
        row: [cells[row, f"recalled, {family}"]["mean"] for family in FAMILIES]
        for row in ("nothing", "oracle_editor", "full_history", "bm25")
    }
    verbatim = ["0.000000", "1.000000", "0.000000", "1.000000", "1.000000", "0.000000"]
    assert means == {
        "nothing": [""] * 6,
        "oracle_editor": ["1.000000"] * 6,
        "full_history": verbatim,
        "bm25": verbatim,
    }
    assert [cells["bm25", f"recalled, {family}"]["questions"] for family in FAMILIES] == ["3"] * 6


def test_a_cell_says_right_wrong_not_applicable_and_what_went_wrong(
    written: Written,
) -> None:
    text = written.markdown
    assert "| No memory | – · 0/0/3 |" in text
    assert "· 0/3/0 · both 3" in text
    assert "\n- STAND-IN: memory, reader" in text
    assert re.search(r"^- Models: memory \S+, reader \S+, judge \S+; embedder \S+\.$", text, re.MULTILINE)
    assert "LoCoMo · recalled, echo, by category" in text
    assert "echo, invented" in text


def test_a_data_set_without_hosts_is_refused_in_one_sentence(tmp_path: Path) -> None:
    settings = ["profile=smoke", "table.others=[]", f"results={tmp_path}", "dataset=quality_open"]
    assert change(composed("change", settings)) == 2


def test_a_memory_and_a_data_set_take_the_places_of_the_table_s(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Reproduce] = []
    monkeypatch.setattr("scripts.tables.table.make_table", lambda cfg: made.append(cfg) or Outcome(0))
    settings = ["memory=memoryos", "dataset=realmem", "profile=subset", "memory.build.segments=3"]
    assert change(composed("change", settings)) == 0
    assert change(composed("change", [])) == 0
    (*controls, own), column = read_lines_of(made[0].table, None), made[0].table["columns"][0]
    assert [line.name for line in controls] == CONTROLS
    assert own.memory is not None
    assert (own.name, own.title) == ("memoryos", load_option("memory", "memoryos")["title"])
    assert own.memory["build"]["segments"] == 3, "a setting of the command line"
    assert own.memory["build"]["incomplete"] == "keep", "a setting of the table's row"
    assert (column["dataset"], made[0].build.rebuild_every) == ("realmem", 1)
    assert made[1].table == load_option("table", "change"), "without names it is the whole table"


def test_the_transform_of_the_table_is_checked() -> None:
    with pytest.raises(RunError, match="transform must be one of"):
        composed("reproduce", ["table=change", "table.columns.0.transform=changed"])


def test_the_report_tells_the_life_of_a_probe_line_by_line(written: Written) -> None:
    report = write_report(written.results).parent
    page = unescape((report / "lives-0.html").read_text(encoding="utf-8"))
    assert '"lives"' in (report / "data" / "index.js").read_text().replace("\\", "")
    assert "lives-0.html" in (report / "index.html").read_text(), "who reads without JavaScript finds it, too"
    places = [page.index(f"<h3>{family}</h3>") for family in FAMILIES]
    assert places == sorted(places)
    superseded = page[places[0] : places[1]]
    bm25 = superseded[superseded.index("<summary>BM25: both</summary>") :].partition("</details>")[0]
    order = [
        "old: ",
        "said",
        "right before the change",
        "right after it",
        "at the end",
        "which never changed",
        "answered</th>",
    ]
    found = [bm25.index(words) for words in order]
    assert found == sorted(found)
    old = bm25.partition("old: ")[2].partition(" ")[0]
    before, after = (bm25.split("<tr>")[row] for row in (2, 3))
    assert old in before
    new = bm25.partition("new: ")[2].partition(" ")[0]
    assert new not in before
    assert new in after
    assert "n/a: not held before" in superseded


def test_a_single_run_of_the_suite_counts_probes_and_not_reads(tmp_path: Path) -> None:
    settings = ["profile=smoke", "data.transform=change", "data.size=6", "protocol.judges=[]", f"results={tmp_path}"]
    lab = Lab(*settings)
    made = lab.score(lab.ask("bm25", "locomo"), ["change_recall"])
    cell = made.cells["change_recall"]
    assert (cell.counts().questions, cell.counts().scored) == (36, 36), "of yes_no nothing is scored at recall"
    assert {name: cell.counts(name).questions for name in FAMILIES} == dict.fromkeys(FAMILIES, 6)
