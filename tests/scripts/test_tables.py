"""Tables about the systems: calls as the papers count them, a row for every memory, quality against cost."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_loaders.schema import DataError
from eval.analysis.costs import PhaseCost, Usage, costs
from eval.files.provenance import ROOT
from eval.files.store import RunError, read_lines, write_lines
from eval.report.cell import Cell
from eval.report.points import Point
from eval.report.tables import AnyCell
from memsys.llm.pricing import ModelSettings
from scripts.command import verb
from scripts.commands import tables
from scripts.commands.tables import calls_table, measure, pareto_table, printed, row_costs, systems_table
from scripts.settings.schema import DataCut
from scripts.setup.options import load_option, options
from scripts.tables import layout, table
from scripts.tables.grid import Experiment
from scripts.tables.layout import column_group, group_name
from scripts.tables.table import experiment
from tests.scripts.commands import composed, reproduce

main = partial(verb, "tables")

pytestmark = pytest.mark.slow


def test_calls_are_those_that_the_methods_make(tmp_path: Path) -> None:
    found = {row.name: row for row in measure(["bm25", "memstream", "amem", "timem", "lattice"], tmp_path)}
    assert (found["bm25"].per_insertion, found["bm25"].per_query) == (0.0, 0.0)
    assert (found["memstream"].per_insertion, found["memstream"].per_query) == (1.0, 0.0)
    assert (found["amem"].per_insertion, found["amem"].per_query) == (2.0, 0.0)  # the question is looked up by its text
    assert found["timem"].per_query == 2.0
    assert found["lattice"].offline
    assert "STAND-IN" in calls_table(list(found.values()))


def test_the_published_figure_stands_beside_with_its_unit() -> None:
    assert printed("memtree").startswith("3.27 per insertion (MemTree A.2")
    assert printed("raptor").startswith("3753 LLM calls to rebuild the whole corpus (MemTree A.2")
    assert printed("memstream_relevance").startswith("1 per insertion (MemTree A.2")  # the row of the table
    assert printed("segtree_batch").startswith("1.95 calls per leaf (SegTreeMem T5")
    assert printed("bm25") == ""


def test_a_folder_of_old_bytecode_is_no_package_without_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memsys" / "systems" / "dense" / "__pycache__").mkdir(parents=True)
    for path in (ROOT / "memsys" / "systems").iterdir():
        (tmp_path / "memsys" / "systems" / path.name).symlink_to(path)
    (tmp_path / "memsys" / "services").symlink_to(ROOT / "memsys" / "services")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    lines = len((ROOT / "memsys" / "systems" / "dense.py").read_text(encoding="utf-8").splitlines())
    assert f"| dense | Dense | `memsys.systems.dense` | {lines} |" in systems_table()


@pytest.mark.parametrize(
    ("name", "tests", "modes", "built"),
    [
        ("dense", "systems/test_dense.py", "–", "online"),
        ("graphrag", "systems/test_graphrag.py", "paper, code", "offline"),
        ("reference_http", "services/test_http.py", "–", "online"),
    ],
)
def test_a_row_of_the_list_of_systems_counts_tests_and_says_in_which_modes_and_when_a_memory_is_built(
    name: str, tests: str, modes: str, built: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / f"{name}.yaml").touch()
    monkeypatch.setattr(tables, "CONF", tmp_path)
    text = (ROOT / "tests" / "memsys" / tests).read_text(encoding="utf-8")
    count = sum(line.startswith("def test_") for line in text.splitlines())
    assert systems_table().endswith(f" | {count} | {modes} | {built} |\n")


def test_every_memory_has_a_row_in_the_list_of_systems() -> None:
    text = (ROOT / "memsys" / "README.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")} - {"memory"}
    assert rows == set(options("memory")), "run `python -m scripts tables systems`"


def test_a_memory_of_the_working_folder_is_measured_and_is_no_shipped_system(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert verb("new-memory", ["tabled"]) == 0
    (calls,) = measure(["tabled"], tmp_path / "results")
    assert calls.per_insertion == 1.0
    assert "| tabled |" not in systems_table()


# --- quality against cost -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two rows of a table."""
    results = tmp_path_factory.mktemp("results")
    cfg = composed("reproduce", ["table=segtreemem_t4", f"results={results}", *SMALL, "only=[bm25,recency]"])
    reproduce(cfg)
    return results


SMALL = ["data.size=6", "data.max_cases=1"]


@pytest.mark.integration
def test_quality_stands_against_both_costs_for_every_row_that_was_run(run_table: Path, capsys: Any) -> None:
    assert main(["pareto", "segtreemem_t4", "profile=smoke", f"results={run_table}", *SMALL]) == 0
    said = capsys.readouterr().out
    assert said.startswith("STAND-IN: memory, reader, judge, embedder")
    assert "| BM25 |" in said
    assert "Prompts are ours, written from described duties and not the sources' texts" in said
    assert "SegTreeMem, TD on LoCoMo" in said.partition("not run, or not to the end: ")[2]
    path = run_table / "figures" / "pareto-segtreemem_t4-smoke-size-6-max_cases-1"
    assert path.with_suffix(".pdf").is_file()
    assert path.with_suffix(".png").is_file()
    rows = list(csv.DictReader(path.with_suffix(".csv").read_text(encoding="utf-8").splitlines()))
    assert {row["series"] for row in rows} == {"BM25", load_option("memory", "recency")["title"]}
    assert {row["panel"].partition(": ")[2] for row in rows} == {
        "recalled tokens a question",
        "building, model tokens a unit",
    }
    assert len(rows) == 2 * 2 * 3


def test_quality_against_cost_says_how_many_answers_it_is_of_and_what_failed(
    run_table: Path, tmp_path: Path, capsys: Any
) -> None:
    """A row whose question failed was starred beside whole ones, without a word."""
    results = Path(shutil.copytree(run_table, tmp_path / "results"))
    (path,) = (results / "runs" / "locomo").glob("bm25-*/cases/*/predictions.jsonl")
    first, *others = read_lines(path)
    write_lines(path, [{**first, "outcome": "error", "error": "ModelError"}, *others])
    assert main(["pareto", "segtreemem_t4", "profile=smoke", f"results={results}", *SMALL]) == 0
    said = capsys.readouterr().out
    assert "without all scores: BM25 on LoCoMo: Scored: 5 of 6 questions; 0 unscored, 1 errored, 0 not reached." in said
    bm25, recency = (next(row for row in said.splitlines() if f"| {name} |" in row) for name in ("BM25", "Recency"))
    assert (bm25.split(" | ")[-1], recency.split(" | ")[-1]) == ("5 |", "6 |")
    assert sum("| BM25 |" in row for row in said.splitlines()) == 2 * 3, "a cost of 0 is a cost"


def test_quality_against_cost_runs_nothing(tmp_path: Path, capsys: Any) -> None:
    assert main(["pareto", "profile=smoke", f"results={tmp_path}", *SMALL]) == 2
    assert "no row of segtreemem_t4 has been run: python -m scripts reproduce" in capsys.readouterr().err
    assert not list(tmp_path.rglob("predictions.jsonl"))


def test_the_stars_of_the_text_are_the_non_dominated_rows() -> None:
    points = [
        Point("p", "good", 10.0, 0.9, 0.8, 1.0, label="1"),
        Point("p", "cheap", 1.0, 0.5, label="2"),
        Point("p", "bad", 10.0, 0.4, label="3"),
    ]
    lines = [line for line in pareto_table(points).splitlines() if line.startswith("| ")][1:]
    assert [(line.split("|")[1].strip(), line.split("|")[3].strip()) for line in lines] == [
        ("*", "cheap"),
        ("*", "good"),
        ("", "bad"),
    ]
    assert "[0.800, 1.000]" in lines[1]


def test_the_comparison_with_costs_follows_changes_of_the_table(
    run_table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_examine", lambda *_: pytest.fail("an examination of a memory costs calls"))
    monkeypatch.setattr(tables, "row_costs", lambda *_: {"known": 10.0, "unknown": None})
    fewer = ["table.rows=[{memory: bm25}]", "table.others=[]"]
    assert main(["pareto", "segtreemem_t4", "profile=smoke", f"results={run_table}", *SMALL, *fewer]) == 0
    said = capsys.readouterr().out
    assert "BM25" in said
    assert "not run, or not to the end" not in said, "no row is left that was not run"
    assert "## LoCoMo: known\n" in said
    assert ": unknown" not in said, "a row without a cost has no place on its axis"
    assert "pareto-segtreemem_t4-smoke-size-6-max_cases-1-rows-bm25.csv" in said, "the whole table's figure is kept"


def test_building_costs_money_where_the_model_has_a_price(run_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = composed("reproduce", [f"results={run_table}", *SMALL, "replay=true"])
    found = experiment(cfg, load_option("table", "segtreemem_t4"), run=False)
    assert found is not None
    run = found.runs["bm25", "locomo"][0]
    model = ModelSettings("m", usd_per_million_in=1.0, usd_per_million_cached=0.25, usd_per_million_out=2.0)
    prices = {"memory": model.cost, "embedder": ModelSettings("e", usd_per_million_in=0.5).cost}
    assert row_costs(run, prices)["building, USD for 1,000 units"] == 0.0
    assert "building, model tokens a unit" in row_costs(run, found.models.prices)
    spent = {"memory": Usage(9, 800_000, 50_000, 400_000)}, {"memory": (400_000, 0, 0)}
    write = PhaseCost("write", "memory", *spent, 0.5, 9, 9, 9, 800_000, 50_000, 400_000, 200_000, 0.0, 0.0, 0.0)
    monkeypatch.setattr(tables, "phases", lambda folder: [write, replace(write, phase="read")])
    usd = 0.4 + 0.1 + 0.1 + 0.1 - 0.2  # plain, cached, written, vectors; half price of what came in batches
    units = costs(run.folder).units
    assert row_costs(run, prices)["building, USD for 1,000 units"] == pytest.approx(1000 * usd / units)


@pytest.fixture
def timem_t10(tmp_path: Path) -> Experiment[Any]:
    """A table of a paper; none of its rows was run, and no cell is computed yet."""
    cfg = composed("reproduce", ["table=timem_t10", f"results={tmp_path}", "only=[]"])
    made = experiment(cfg, load_option("table", "timem_t10"), run=False)
    assert made is not None
    return made


@pytest.mark.slow
def test_a_published_percentage_stands_in_a_cell_as_a_share(timem_t10: Experiment[Any]) -> None:
    (group,) = timem_t10.groups
    cell = timem_t10.cell(timem_t10.lines[0], group, group.metrics[0])
    assert isinstance(cell, Cell)
    assert cell.published is not None
    percentages = [number.value for number in timem_t10.numbers if number.metric == cell.published.metric]
    assert float(cell.published.printed) == pytest.approx(cell.published.value)
    assert cell.published.value in [value / 100 for value in percentages]


@pytest.mark.slow
def test_a_row_that_others_subtract_keeps_its_own_published_number(timem_t10: Experiment[Any]) -> None:
    (group,) = timem_t10.groups
    score, difference = group.metrics
    timem_t10.cell(timem_t10.lines[0], group, difference)  # reads the score of lambda=0.9 before its own column does
    subtracted = next(line for line in timem_t10.lines if line.name == "timem_3")
    cell = timem_t10.cell(subtracted, group, score)
    assert isinstance(cell, Cell)
    assert cell.published is not None
    assert cell.published.metric == "LLJ"


def test_two_metrics_of_one_title_have_cells_of_their_own(tmp_path: Path) -> None:
    metrics = "metrics: [{metric: locomo_f1, title: F1}, {metric: squad_f1, title: F1}]"
    columns = f"table.columns=[{{dataset: locomo, {metrics}}}]"
    cfg = composed("reproduce", ["table=next", f"results={tmp_path}", columns, *SMALL, "only=[recency]"])
    reproduce(cfg)
    made = experiment(cfg, cfg.table, run=False)
    assert made is not None
    (group,), line = made.groups, next(line for line in made.lines if line.name == "recency")
    cells = [made.cell(line, group, metric) for metric in group.metrics]
    files = [cell.score_files[0].name.rpartition("-")[0] for cell in cells if isinstance(cell, Cell)]
    assert files == ["locomo_f1", "squad_f1"]


def test_an_answer_that_is_empty_in_the_second_build_alone_is_counted(tmp_path: Path) -> None:
    columns = "table.columns=[{dataset: locomo, metrics: [{metric: locomo_f1}]}]"
    settings = ["table=next", f"results={tmp_path}", columns, "build.replicates=2", *SMALL, "only=[recency]"]
    cfg = composed("reproduce", settings)
    reproduce(cfg)

    def cell_and_second_run() -> tuple[AnyCell, Path]:
        made = experiment(cfg, cfg.table, run=False)
        assert made is not None
        (group,), line = made.groups, next(line for line in made.lines if line.name == "recency")
        return made.cell(line, group, group.metrics[0]), made.runs["recency", "locomo"][1].folder

    cell, folder = cell_and_second_run()
    assert isinstance(cell, Cell)
    assert cell.counts().empty == 0
    (path,) = folder.rglob("predictions.jsonl")
    first, *others = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    path.write_text("".join(json.dumps(each) + "\n" for each in [{**first, "answer": ""}, *others]), encoding="utf-8")
    cell, _ = cell_and_second_run()
    assert isinstance(cell, Cell)
    assert cell.counts().empty == 1


def test_rows_and_their_first_builds_have_outcomes_of_their_own(tmp_path: Path) -> None:
    columns = "table.columns=[{dataset: locomo, metrics: [{metric: locomo_f1}]}]"
    settings = ["table=next", f"results={tmp_path}", columns, "build.replicates=2", *SMALL, "only=[recency,bm25]"]
    cfg = composed("reproduce", settings)
    reproduce(cfg)
    made = experiment(cfg, cfg.table, run=False)
    assert made is not None
    (group,), (metric,) = made.groups, made.groups[0].metrics
    (path,) = made.runs["recency", "locomo"][1].folder.rglob("predictions.jsonl")
    lines = [{**json.loads(line), "answer": ""} for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    rows = {line.name: line for line in made.lines if line.name in ("recency", "bm25")}
    column = made.column(group, metric)
    empty = [
        made._scores(rows[row], group, metric, column, builds).counts().empty
        for row, builds in (("recency", slice(1)), ("recency", slice(0, None)), ("bm25", slice(0, None)))
    ]
    assert empty == [0, len(lines), 0]


def test_a_column_group_has_its_own_name_title_and_mean(tmp_path: Path) -> None:
    assert load_option("dataset", "personamem")["aggregate"][0] != "case"
    columns = "[{dataset: personamem, group: mine, title: Mine, aggregate: case, metrics: [{metric: squad_f1}]}]"
    cfg = composed("reproduce", ["table=next", f"table.columns={columns}", f"results={tmp_path}", *SMALL, "only=[]"])
    made = experiment(cfg, cfg.table, run=False)
    assert made is not None
    column = made.column(made.groups[0], made.groups[0].metrics[0])
    assert (column.dataset, column.title, column.aggregate) == ("mine", "Mine", "case")


@pytest.mark.parametrize(("judge", "asked"), [("null", "mem0@qwen3-32b"), ("gpt-4.1-mini", "mem0")])
def test_a_judge_that_names_its_model_is_asked_with_it_where_the_other_judges_are_the_papers(
    tmp_path: Path, judge: str, asked: str
) -> None:
    settings = ["table=timem_t8", "profile=paper", "data.source=sample", f"models.judge={judge}"]
    cfg = composed("reproduce", [*settings, f"results={tmp_path}", "network=true", "endpoint.probe=false"])
    made = experiment(cfg, cfg.table, run=False)
    assert made is not None
    metrics = [metric for metric in made.groups[0].metrics if metric.name == "mem0@qwen3-32b"]
    assert {(metric.judge, metric.score) for metric in metrics} == {(asked, f"judge_{asked}")}


def test_the_papers_probe_measures_the_uncertainty_unless_the_user_names_another(tmp_path: Path) -> None:
    settings = ["table=xmemory_t1", "backbone=nano", "profile=paper", "data.source=sample", f"results={tmp_path}"]
    common = [*settings, "network=true", "endpoint.probe=false"]
    for probe, name in {"null": "gpt-4.1-mini", "gpt-4.1-nano": "gpt-4.1-nano"}.items():
        cfg = composed("reproduce", [*common, f"models.probe={probe}"])
        made = experiment(cfg, cfg.table, run=False)
        assert made is not None
        assert made.cfg.models.probe == name
        assert (made.models.probe.name.startswith(f"{name}-"), made.models.reader.name) == (True, "gpt-5-nano")


def test_a_run_begins_with_the_chain_and_in_the_order_of_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["table=segtreemem_t4", "columns=[locomo]", f"results={tmp_path}", *SMALL, "only=[bm25,recency]"]
    made = experiment(composed("reproduce", [*settings, "max_usd=1"]), load_option("table", "segtreemem_t4"), run=False)
    assert made is not None
    wanted = {key: builds for key, builds in made.runs.items() if key[0] in ("bm25", "recency")}
    folders = {name: builds[0].folder for (name, _), builds in wanted.items()}
    costs, chains = {folders["bm25"]: 2.0, folders["recency"]: 1.0}, {folders["bm25"]: 7.0}
    rows: list[list[tuple[str, float]]] = []

    def record(cfg: Any, models: Any, runs: Any, *_: Any) -> str:
        rows.append([(run.name, run.chain) for run in runs])
        return ""

    monkeypatch.setattr(table, "answer_all", record)
    monkeypatch.setattr(table, "score", lambda *_: {})
    table._execute(made.cfg, made.models, made.groups, wanted, {}, SimpleNamespace(costs=costs, chains=chains))  # type: ignore[arg-type]
    assert rows == [[("recency", 0.0)], [("bm25", 7.0)]]


def test_the_note_of_a_data_set_on_a_metric_stands_below_the_columns_of_that_metric_alone(tmp_path: Path) -> None:
    columns = "[{dataset: personamem, metrics: [{metric: squad_f1}, {metric: personamem_accuracy}]}]"
    settings = ["table=next", f"table.columns={columns}", f"results={tmp_path}", *SMALL, "only=[]"]
    cfg = composed("reproduce", settings)
    made = experiment(cfg, cfg.table, run=False)
    assert made is not None
    (group,) = made.groups
    note, none = (made.column(group, metric).note for metric in group.metrics)
    assert note.startswith("F1 (SQuAD) on PersonaMem")
    assert not none


MIXED = "table.columns=[{dataset: locomo, metrics: [{metric: locomo_f1}, {spread: cv}]}]"


@pytest.mark.parametrize(
    ("name", "settings", "kept"),
    [("timem_t12", [MIXED], True), ("timem_t12", ["nodes.vectors=false"], False), ("timem_t10", [], False)],
)
def test_vectors_of_nodes_are_kept_for_a_table_of_their_spread_unless_the_settings_say_no(
    tmp_path: Path, name: str, settings: list[str], kept: bool
) -> None:
    cfg = composed("reproduce", [f"table={name}", f"results={tmp_path}", *SMALL, "only=[]", *settings])
    made = experiment(cfg, cfg.table, run=False)
    assert made is not None
    assert made.cfg.nodes.vectors is kept


def test_a_table_goes_on_without_a_data_set_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def group(cfg: Any, option: Mapping[str, Any], metrics: Any) -> Any:
        made = column_group(cfg, option, metrics)
        return made if made.name == "locomo" else replace(made, dataset=None, missing="no data")

    monkeypatch.setattr(table, "column_group", group)
    cfg = composed("reproduce", ["table=segtreemem_t4", f"results={tmp_path}", *SMALL, "only=[]"])
    made = experiment(cfg, cfg.table, run=False)
    assert made is not None
    assert [each.name for each in made.groups if each.dataset is not None] == ["locomo"]
    assert len(made.groups) > 1


@pytest.mark.parametrize(
    ("profile", "source", "fetched"),
    [("paper", "real", [["longmemeval_s"]]), ("paper", "sample", []), ("smoke", "real", [])],
)
def test_only_a_table_of_real_data_in_the_papers_size_fetches_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, source: str, fetched: list[list[str]]
) -> None:
    asked: list[list[str]] = []

    def record(wanted: DataCut, columns: Iterable[Mapping[str, Any]]) -> None:
        assert wanted.source == source
        asked.append([group_name(option) for option in columns])

    monkeypatch.setattr(table, "fetch_missing", record)
    settings = ["table=timem_t12", f"profile={profile}", f"data.source={source}", "only=[]"]
    if source == "real":
        settings.append(f"data.root={tmp_path}")
    cfg = composed("reproduce", [*settings, f"results={tmp_path}", "network=true", "endpoint.probe=false"])
    with pytest.raises(RunError, match="none of the data sets is there") if source == "real" else nullcontext():
        experiment(cfg, cfg.table, run=False)
    assert asked == fetched


def test_the_command_reads_names_settings_and_files_from_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(tables, "pareto", lambda name, settings: drawn.append((name, settings)) or 0)
    assert main(["pareto", "k=1", "local", "data.size=6"]) == main(["pareto"]) == 0
    assert drawn == [("local", ["k=1", "data.size=6"]), ("segtreemem_t4", [])]
    (tmp_path / "memsys").mkdir()
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "systems_table", lambda: "every system")
    assert main(["systems"]) == 0
    assert (tmp_path / "memsys" / "README.md").read_text(encoding="utf-8") == "every system"
    monkeypatch.setattr("eval.report.ratings.compare", lambda file, results: (file.name, results.name))
    monkeypatch.setattr("eval.report.ratings.as_markdown", str)
    assert main(["ratings", "mine.json", "--results", "theirs"]) == 0
    assert "('mine.json', 'theirs')" in capsys.readouterr().out
    monkeypatch.setattr(tables, "memories_here", lambda: ["all"])
    monkeypatch.setattr(tables, "measure", lambda names, folder: names)
    monkeypatch.setattr(tables, "calls_table", lambda rows: f"calls of {rows}")
    assert main(["calls"]) == main(["calls", "--memory", "bm25", "dense"]) == 0
    assert capsys.readouterr().out == "calls of ['all']\ncalls of ['bm25', 'dense']\n"
    for words, why in ((["ratings"], "one file"), (["systems", "x"], "systems takes no x"), (["calls", "y"], "no y")):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert why in capsys.readouterr().err


def test_a_shipped_sample_that_cannot_be_loaded_is_an_error_and_missing_real_data_are_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise DataError("damaged")

    monkeypatch.setattr(layout, "data", fail)
    sample = composed("reproduce", [f"results={tmp_path}"])
    with pytest.raises(DataError, match="damaged"):
        column_group(sample, {"dataset": "locomo"}, ())
    real = composed("reproduce", [f"results={tmp_path}", "data.source=real", f"data.root={tmp_path}"])
    group = column_group(real, {"dataset": "locomo"}, ())
    assert (group.dataset, group.missing, group.questions) == (None, "no data: damaged", ())


@dataclass(frozen=True)
class Planned:
    name: str
    folder: Path
    dataset: str = "d"
    chain: float = 0.0


def executed(
    monkeypatch: pytest.MonkeyPatch, runs: Mapping[tuple[str, str], list[Planned]], cap: float | None, ends: str = ""
) -> list[tuple[list[str], int]]:
    """Names of the runs that are answered together, with the number of their questions; the cap is reached in the row `ends`."""
    asked = [SimpleNamespace(case_id=case) for case in "aaabb"]
    whole, first = ({"name": "whole", "option": {}}, {"name": "first", "option": {"ask": "first"}})
    groups: Any = [SimpleNamespace(questions=asked, **each) for each in (whole, first)]
    purse, answered = SimpleNamespace(reached=False), list[tuple[list[str], int]]()

    def answer_all(cfg: object, models: object, row: Sequence[Planned], count: int, judges: object) -> str:
        answered.append(([run.name for run in row], count))
        purse.reached = row[0].name == ends
        return ends

    monkeypatch.setattr(table, "answer_all", answer_all)
    monkeypatch.setattr(table, "score", lambda *_: None)
    models: Any = SimpleNamespace(purse=purse, traffic=None, ahead=None)
    costs = {run.folder: float(len(run.name)) for builds in runs.values() for run in builds}
    plan: Any = SimpleNamespace(costs=costs, chains={})
    said = table._execute(SimpleNamespace(max_usd=cap, k_evidence=10), models, groups, runs, {}, plan)  # type: ignore[arg-type]
    assert said == ends
    return answered


def test_rows_under_a_cap_run_from_the_cheapest_to_the_one_that_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {(name, "whole"): [Planned(name, Path(name))] for name in ("dearest", "dear", "low")}
    assert executed(monkeypatch, runs, None) == [(["dearest", "dear", "low"], 15)]
    assert executed(monkeypatch, runs, 1.0) == [(["low"], 5), (["dear"], 5), (["dearest"], 5)]
    assert executed(monkeypatch, runs, 1.0, ends="dear") == [(["low"], 5), (["dear"], 5)]


def test_of_two_column_groups_with_one_folder_that_with_more_questions_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {("row", group): [Planned(f"row of {group}", Path("same"))] for group in ("whole", "first")}
    for runs in (both, dict(reversed(both.items()))):
        assert executed(monkeypatch, runs, None) == [(["row of whole"], 5)], (
            "one question a history is the smaller part"
        )
