"""The comparison at equal budgets on the shipped sample: one build for all budgets, rows within 2 % of a budget or marked, files."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import pytest

from data_loaders.schema import Unit
from eval.analysis.budgets import TOLERANCE
from eval.analysis.costs import costs
from eval.files.run_folder import read_predictions
from eval.files.store import RunError, read_lines, read_record, write_lines
from eval.running.run import Run
from memsys.systems.bm25 import BM25
from scripts.setup.launch import readable
from scripts.setup.options import load_option
from scripts.tables import equal_budgets
from scripts.tables.equal_budgets import budgeted, deepened, expense
from tests.scripts.commands import budgets, composed

BUDGETS = (200, 400, 1500)


@dataclass(frozen=True)
class Made:
    """One comparison, and how often its memory was written to."""

    results: Path
    text: str
    written: Counter[str]

    def folders(self, memory: str) -> dict[int | None, Path]:
        """Run folders by budget."""
        records = {path.parent: read_record(path) for path in self.results.glob(f"runs/locomo/{memory}-*/run.json")}
        return {record["reader"]["max_context_tokens"]: folder for folder, record in records.items()}


STEM = "equal_budgets-smoke-size-16-max_cases-2-rows-bm25+mem0_v3_segt-groups-locomo-budget-200+400+1500"
"""Other data, rows, columns and budgets than the table's own replace no file of theirs."""


def in_millions(tokens_in: float, tokens_out: float, cached: float) -> float:
    """A price of one dollar for a million tokens in."""
    return tokens_in / 1e6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """BM25 and Mem0, which keeps too little of a short history for the longest budget."""
    results, written = tmp_path_factory.mktemp("results"), Counter[str]()
    write = BM25.write

    def counted(memory: BM25, unit: Unit) -> None:
        written[unit.id] += 1
        write(memory, unit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BM25, "write", counted)
        cfg = composed(
            "budgets",
            [
                *("profile=smoke", f"results={results}", "data.size=16", "data.max_cases=2", "budget=200,400,1500"),
                "table.others=[bm25,{memory:mem0_v3_segt,title:Mem0}]",
                "table.columns=[{dataset:locomo,reader:segtree,metrics:[{metric:locomo_f1}]}]",
            ],
        )
        assert budgets(cfg) == 0
    return Made(results, (results / "budgets" / f"{STEM}.md").read_text(encoding="utf-8"), written)


@pytest.mark.slow
def test_a_memory_is_built_once_for_all_budgets_and_recalls_the_same_for_each(made: Made) -> None:
    folders = made.folders("bm25")
    assert sorted(folders, key=str) == sorted(BUDGETS, key=str)
    histories = len(list((folders[200] / "cases").iterdir()))
    assert histories == 2
    assert 0 < max(made.written.values()) <= histories  # unit ids recur between histories
    recalls = [
        [
            (name, each.items)
            for case in sorted((folder / "cases").iterdir())
            for name, each in read_predictions(case).items()
        ]
        for folder in folders.values()
    ]
    assert recalls[0] == recalls[1] == recalls[2]


@pytest.mark.slow
def test_every_row_is_within_two_percent_of_its_budget_or_marked(made: Made) -> None:
    scores = made.text.split("Number of questions")[0]
    lines = {
        line.split(" | ")[0].strip("| "): line.split(" | ") for line in scores.splitlines() if line.startswith("|")
    }
    marked = {}
    for title, memory in {"BM25": "bm25", "Mem0": "mem0_v3_segt"}.items():
        for place, budget in enumerate(BUDGETS, 1):
            tokens = costs(made.folders(memory)[budget]).recalled_tokens
            assert tokens is not None
            assert tokens <= budget
            short = tokens < (1 - TOLERANCE) * budget
            assert ("short" in lines[title][place]) == short
            assert not short or f"short: {tokens:,.0f} tokens" in lines[title][place]
            marked[memory, budget] = short
    assert not marked["bm25", 200]
    assert marked["mem0_v3_segt", 1500]
    assert lines["Mem0"][4] == "short"


@pytest.mark.slow
def test_a_run_that_stopped_half_way_or_a_build_that_failed_has_no_expense(made: Made, tmp_path: Path) -> None:
    """Its builds were divided by all histories: half of them looked half as dear, and the break-even came too early."""
    folder = tmp_path / "run"
    shutil.copytree(made.folders("mem0_v3_segt")[200], folder)
    run = cast("Run", SimpleNamespace(folder=folder, cases=list((folder / "cases").iterdir())))
    prices = {"memory": in_millions, "reader": in_millions}
    built = sum(
        line["tokens_in"] / 1e6
        for case in run.cases
        for line in read_lines(folder / "cases" / case.name / "effort.jsonl")  # type: ignore[attr-defined]
        if line["phase"] in ("write", "consolidate")
    )
    whole = expense(run, prices)
    assert whole is not None
    assert whole.build == pytest.approx(built / 2)
    last = folder / "cases" / min(case.name for case in run.cases)  # type: ignore[attr-defined]
    answers = read_lines(last / "predictions.jsonl")
    for error, known in (("ModelError: of its read", True), ("build: ModelError: of its last write", False)):
        write_lines(last / "predictions.jsonl", [*answers[:-1], {**answers[-1], "outcome": "error", "error": error}])
        assert (expense(run, prices) is not None) == known
    write_lines(last / "predictions.jsonl", answers)
    (last / "case.json").unlink()
    assert expense(run, prices) is None


@pytest.mark.slow
def test_the_whole_history_is_read_without_a_budget_and_the_files_are_drawn_from_the_points(made: Made) -> None:
    assert list(made.folders("full_history")) == [None]
    tokens = costs(made.folders("full_history")[None]).recalled_tokens
    assert tokens is not None
    assert re.search(rf"\| the whole history \| 0\.\d+ .*· {tokens:,.0f} tokens ", made.text), (
        "the mean of all questions"
    )
    assert "prices of the table's models (memory gpt-4o-mini" in made.text
    assert "STAND-IN" in made.text
    assert "Prompts are ours, written from described duties and not the sources' texts; unknown" in made.text
    assert "reader/segtree (SegTreeMem" in made.text
    stem = made.results / "budgets" / STEM
    for suffix in ("pdf", "png", "svg", "csv"):
        assert stem.with_name(f"{stem.name}.{suffix}").stat().st_size > 300
    points = stem.with_name(f"{stem.name}.csv").read_text(encoding="utf-8").splitlines()
    assert len(points) == 1 + 2 * len(BUDGETS) + 1
    assert sum(",short," in point for point in points) >= 1


def test_a_table_at_budgets_has_every_memory_and_metric_but_nothing_that_is_no_score() -> None:
    table = budgeted(load_option("table", "segtreemem_t4"), None, [2000, 1000])
    groups = [column["group"] for column in table["columns"]]
    assert groups[:4] == ["locomo", "locomo@1000", "locomo@2000", "longmemeval_mab"]
    assert table["columns"][0]["rows"] == ["full_history"]
    assert "full_history" not in table["columns"][1]["rows"]
    assert all("published" not in metric for column in table["columns"] for metric in column["metrics"])
    local = budgeted(load_option("table", "local"), None, [1000])
    assert {"recency", "nothing"}.isdisjoint(row["name"] for row in local["rows"])
    builds = {row["name"]: row["build"] for row in table["rows"]}
    assert builds["bm25"]["k"] == 250
    assert builds["full_history"] == {}
    assert deepened(load_option("memory", "memtree"), 8000) == {"k": 1000, "max_tokens": 16_000}
    assert deepened(load_option("memory", "nemori"), 8000) == {}


@pytest.mark.slow
def test_budgets_may_be_given_with_commas_alone_and_must_be_whole_numbers() -> None:
    assert readable(["budget=1000,2000", "budget=[1000]"], "budgets") == ["budget=[1000,2000]", "budget=[1000]"]
    assert list(composed("budgets", ["budget=1000,2000"]).budget) == [1000, 2000]
    with pytest.raises(RunError, match="budget"):
        composed("budgets", ["budget=0,2000"])


def test_budgets_are_sorted_a_declined_plan_draws_nothing_and_no_score_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cfg = composed("budgets", ["budget=[400,200,400]"])
    cfg = cfg.changed(table={**cfg.table, "reference": "memtree"})
    lines = [SimpleNamespace(name="bm25", title="BM25"), SimpleNamespace(name="memtree", title="MemTree")]
    made: list[Any] = [None, SimpleNamespace(lines=lines, groups=[]), SimpleNamespace(lines=lines, groups=[])]
    asked: list[list[int]] = []
    references: list[str] = []
    monkeypatch.setattr(
        equal_budgets, "budgeted", lambda table, backbone, budgets: asked.append(budgets) or {"columns": []}
    )
    monkeypatch.setattr(equal_budgets, "experiment", lambda cfg, table: made.pop(0))
    monkeypatch.setattr(equal_budgets, "_prices", lambda assembled: ({}, ""))
    assert equal_budgets.equal_budgets(cfg) == 3
    assert asked == [[200, 400]]
    with pytest.raises(RunError, match="nothing to draw"):
        equal_budgets.equal_budgets(cfg)
    monkeypatch.setattr(equal_budgets, "_group", lambda *_: SimpleNamespace(metrics=["F1"]))
    monkeypatch.setattr(equal_budgets, "_panel", lambda *given: references.append(given[4]))
    monkeypatch.setattr(equal_budgets, "curve_points", lambda panel: [])
    with pytest.raises(RunError, match="nothing to draw"):
        equal_budgets.equal_budgets(cfg)
    assert set(references) == {"MemTree"}


@pytest.mark.parametrize(
    ("only", "rows"), [(frozenset({"bm25"}), ["bm25"]), (frozenset({"bm25", "memtree"}), ["bm25", "memtree"])]
)
def test_rows_that_were_not_asked_for_are_in_no_panel(
    monkeypatch: pytest.MonkeyPatch, only: frozenset[str], rows: list[str]
) -> None:
    def group(name: str) -> Any:
        return SimpleNamespace(name=name, title="Toy", dataset="toy", option={"rows": ["bm25", "memtree", "amem"]})

    def row(assembled: Any, line: Any, groups: Sequence[Any], *_: Any) -> str | None:
        assert [each.name for each in groups] == ["toy@200", "toy@400"]
        return str(line.name)

    monkeypatch.setattr(equal_budgets, "_row", row)
    assembled: Any = SimpleNamespace(
        groups=[group("toy"), group("toy@200"), group("toy@400")],
        lines=[SimpleNamespace(name=name) for name in ("bm25", "memtree", "amem", "full_history")],
        runs={("full_history", "toy"): ["a run"]},
        only=only,
    )
    metric: Any = SimpleNamespace(title="F1")
    panel = equal_budgets._panel(assembled, {"dataset": "toy"}, [200, 400], metric, "BM25", {})
    assert (panel.title, panel.rows, panel.whole) == ("Toy: F1", rows, None)


def test_a_curve_on_realmem_weighs_personas_as_its_table_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    column = "{dataset:realmem,reader:realmem,metrics:[{metric:squad_f1}]}"
    own = ["table.others=[bm25]", f"table.columns=[{column}]", "budget=100"]
    assert budgets(composed("budgets", ["profile=smoke", f"results={tmp_path}", *own])) == 0
    (file,) = tmp_path.glob("runs/realmem/bm25-*/scores/squad_f1-*.jsonl")
    personas: dict[str, list[float]] = {}
    for line in read_lines(file):
        personas.setdefault(line["case_id"], []).append(line["value"])
    by_persona = fmean(map(fmean, personas.values()))
    assert by_persona != pytest.approx(fmean(chain(*personas.values())), abs=5e-4)
    assert f"| BM25 | {by_persona:.3f} [" in capsys.readouterr().out
