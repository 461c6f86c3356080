"""Every figure of the papers that has data is made on the shipped samples: three files, points in them, the same bytes again."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from eval.files.run_folder import RunRecord
from eval.files.store import RunError, read_lines
from eval.report.points import Point
from eval.report.published import find, read_published
from memsys.prompts import Prompts
from scripts.settings.checking import checked
from scripts.setup.options import load_option, options
from scripts.tables.figures import Subject, _ratios, exponents, footnote, layout, sharing
from scripts.tables.grid import Experiment
from scripts.tables.layout import metrics_of, read_lines_of, reference
from scripts.tables.table import experiment
from tests.scripts.commands import configuration, figure

pytestmark = pytest.mark.slow

CONF = str(Path(__file__).resolve().parents[2] / "conf")
FIGURES = options("figure")
PAPERS = {
    "growth": 1,  # of no paper
    **{f"memtree_{name}": 1 for name in ("f4", "f5", *(f"fa{number}" for number in range(1, 10)))},
    "timem_f3": 1,
    **{f"segtreemem_f{number}": 1 for number in (4, 5, 6, 7, 8, 12, 13, 14)},
    **{f"xmemory_f{number}": 1 for number in (3, 4, 5)},
}
DRAWN_TWICE = ("memtree_fa7", "segtreemem_f6", "timem_f3", "xmemory_f4")
"""One of each kind; that equal points give equal bytes is tested in tests/eval, too."""
QUICKEST = "memtree_fa7"
"""The one that `make test` draws; `make integration` draws all."""
FEW_VALUES, FEW_TRIPLETS, FEW_UNITS = 2, 40, [3, 6]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all figures: they share runs."""
    return tmp_path_factory.mktemp("results")


def composed(name: str, results: Path, *overrides: str) -> Any:
    cfg = configuration("figures", f"figure={name}", f"results={results}", *overrides)
    return OmegaConf.create({**cfg, "figure": reduced(OmegaConf.to_container(cfg.figure))})


def reduced(found: Any) -> Any:
    """The figure with two values a swept setting, few triplets, few units, and without UMAP, which compiles for long."""
    for row in found.get("rows", ()):
        if "sweep" in row:
            row["sweep"] = {name: values[:FEW_VALUES] for name, values in row["sweep"].items()}
        if row.get("memory", "").startswith("raptor"):
            row["build"] = {**row.get("build", {}), "reducer": "pca"}
    if "sizes" in found:
        found["sizes"]["smoke"] = FEW_UNITS
    return {**found, **({"triplets": FEW_TRIPLETS} if "triplets" in found else {})}


def test_every_figure_with_data_has_a_file() -> None:
    assert sorted(PAPERS) == FIGURES


@pytest.mark.parametrize(
    "name", [name if name == QUICKEST else pytest.param(name, marks=pytest.mark.integration) for name in FIGURES]
)
def test_a_figure_is_made_and_of_each_kind_one_again_to_the_same_bytes(name: str, results: Path, capsys: Any) -> None:
    cfg = composed(name, results, "data.size=6", "data.max_cases=2")
    assert figure(cfg) == 0
    said = capsys.readouterr().out
    files = [results / "figures" / f"{name}-smoke-size-6-max_cases-2.{suffix}" for suffix in ("pdf", "png", "csv")]
    before = [file.read_bytes() for file in files]
    rows = list(csv.DictReader(before[2].decode().splitlines()))
    assert [row for row in rows if row["origin"] == "ours"]
    assert {row["engine"].partition(":")[0] for row in rows} == {"STAND-IN"}
    assert said.startswith("STAND-IN: memory, reader, judge, embedder filled by offline engines")
    assert "Prompts are ours, written from described duties and not the sources' texts" in said
    named = (b"STAND-IN", "STAND-IN".encode("utf-16-be"))
    assert all(any(word in content for word in named) for content in before[:2])
    if name in DRAWN_TWICE:
        assert figure(cfg) == 0
        assert [file.read_bytes() for file in files] == before


def test_a_figure_is_called_as_its_file_and_names_rows_and_patterns_that_exist(subtests: pytest.Subtests) -> None:
    for name in FIGURES:
        with subtests.test(name=name):
            option = load_option("figure", name)
            assert option["name"] == name
            assert option["title"].startswith(option["paper"])
            table = layout(option)
            lines = read_lines_of(table, option.get("backbone"))
            assert set(option.get("base", ())) <= {line.name for line in lines}
            assert set(option.get("backbones", ())) <= set(table["backbones"])
            assert all(line.memory is not None or "best_of" in line.option for line in lines)


def test_figures_of_propagation_show_the_settings_of_the_papers_sweep() -> None:
    lines = read_lines_of(layout(load_option("figure", "segtreemem_f13")), None)
    assert len(lines) == 1 + 2 * 7 * 3
    assert len(read_lines_of(layout(load_option("figure", "segtreemem_f14")), None)) == 1 + 2 * 7


# --- what is shown ------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(results: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, str]]]:
    """The points of a figure on the samples. Nothing is drawn, which takes a second a figure; the tests above draw."""
    monkeypatch.setattr("scripts.tables.figures.draw", lambda drawing, points: None)
    monkeypatch.setattr("scripts.tables.figures.save", lambda figure, stem, about, suffixes: [])

    def run(name: str, *overrides: str, **changed: Any) -> list[dict[str, str]]:
        cfg = composed(name, results, *overrides)
        for key, value in changed.items():
            OmegaConf.update(cfg, f"figure.{key}", value)
        assert figure(cfg) == 0
        path = max((results / "figures").glob(f"{name}-smoke*.csv"), key=lambda file: file.stat().st_mtime_ns)
        return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))

    return run


SMALL = ("data.size=6", "data.max_cases=2")


def test_shares_of_levels_add_up_and_the_score_runs_across(made: Any) -> None:
    rows = made("segtreemem_f7", *SMALL)
    assert list(dict.fromkeys(row["panel"] for row in rows)) == ["bottom-up", "top-down"]
    for panel in ("bottom-up", "top-down"):
        marks = list(dict.fromkeys(row["x"] for row in rows if row["panel"] == panel))
        assert marks == ["", "0.05", "0.1"]  # no propagation first
        for mark in marks:
            here = [row for row in rows if (row["panel"], row["x"]) == (panel, mark)]
            assert sum(float(row["y"]) for row in here if row["series"] != "score") == pytest.approx(1.0, abs=1e-4)
            assert [row["series"] for row in here].count("score") == 1


def test_a_figure_whose_rows_lose_evidence_says_so(made: Any, capsys: Any) -> None:
    made("segtreemem_f7", "data.source=sample")
    assert "Evidence, LoCoMo: every row: the unit rule ab_pair leaves out turns" in capsys.readouterr().out


def test_no_propagation_is_a_level_in_every_panel_of_its_data_set(made: Any) -> None:
    rows = made("segtreemem_f13", *SMALL)
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    assert len(panels) == 6
    for panel in panels:
        levels = [row for row in rows if row["panel"] == panel and not row["x"]]
        assert [(row["series"], row["origin"]) for row in levels] == [("none", "ours"), ("none", "published")]
    by_panel = {row["panel"]: row["y"] for row in rows if not row["x"] and row["origin"] == "ours"}
    assert by_panel["LoCoMo, bottom-up"] == by_panel["LoCoMo, top-down"]


def test_published_points_are_only_those_that_are_printed(made: Any) -> None:
    published = [row for row in made("xmemory_f4", *SMALL) if row["origin"] == "published"]
    assert [float(row["y"]) for row in published] == [0.0782, 0.0653, 0.0667, 0.0629, 0.1314, 0.1219]
    assert {row["panel"] for row in published} == {"multi-hop"}
    published = [row for row in made("segtreemem_f6", *SMALL) if row["origin"] == "published"]
    assert [(row["panel"], row["x"], row["y"]) for row in published] == [
        ("LoCoMo", "", "0.639"),
        ("LongMemEval-MAB", "", "0.63"),
        ("RealMem", "", "0.58"),
    ]


PLAIN = {"segtree_batch": [0.639, 0.630, 0.580]}
"""SegTreeMem Table 3, original order: no propagation."""


@pytest.mark.parametrize(
    ("name", "backbone", "printed"),
    [
        ("segtreemem_f4", "default", {"similarity_tree": [0.603, 0.595, 0.574], **PLAIN}),
        ("segtreemem_f6", "default", PLAIN),
        ("segtreemem_f13", "default", PLAIN),
        ("segtreemem_f12", "qwen", {"segtree_batch": [0.525, 0.669, 0.659]}),  # Table 6
    ],
)
def test_segtreemem_prints_what_its_figures_draw_without_propagation(
    name: str, backbone: str, printed: dict[str, list[float]]
) -> None:
    table = layout(load_option("figure", name))
    own = table["backbones"][backbone]
    numbers = read_published(own["file"])
    found: dict[str, list[float]] = {}
    for line in read_lines_of(table, None):
        for column in table["columns"]:
            (metric,) = metrics_of(column)
            if (wanted := reference(own, line, column, metric)) is not None:
                number = find(numbers, wanted)
                assert number is not None
                found.setdefault(line.name, []).append(number.value)
    assert found == printed


def test_growth_is_measured_once_and_covers_reading(made: Any, results: Path) -> None:
    rows = made("segtreemem_f5", rows=[{"memory": "bm25"}, {"memory": "segtree_cosine", "title": "tree"}])
    assert {(row["panel"], row["series"], row["x"]) for row in rows} == {
        (panel, series, size)
        for panel in load_option("figure", "segtreemem_f5")["panels"]
        for series in ("BM25", "tree")
        for size in ("3", "6")
    }
    reading = [row for row in rows if row["panel"].startswith("reading") and row["series"] == "tree"]
    assert all(float(row["y"]) > 0 for row in reading)


def test_a_growth_figure_prints_how_each_curve_grows() -> None:
    curve = [Point("bytes", "BM25", n, y * n**1.5, n=1) for n, y in ((10, 3.0), (100, 3.3), (1000, 3.0))]
    empty = [Point("recall", "BM25", n, 0.0, n=1) for n in (10, 100)]
    two = [Point("recall", "Dense", n, 1 / n, n=1) for n in (10, 100)]
    assert list(exponents([*curve, *empty, *two])) == [
        "exponent, bytes: BM25 1.500 [1.196, 1.804]",
        "exponent, recall: BM25 none, Dense -1.000",
    ]
    assert list(exponents(curve, {"bytes"})) == ["exponent, bytes: BM25 1.500"], "a total holds those before it"


@pytest.mark.parametrize(("sizes", "more"), [((10, 20, 40), set()), ((10, 19, 40), {"a unit"})])
def test_an_exponent_over_windows_that_share_writes_has_no_interval(sizes: tuple[int, ...], more: set[str]) -> None:
    panels = {"a unit": ["one_more", "calls"], "all": ["cumulative", "calls"], "a question": ["read", "calls"]}
    points = [Point("a unit", "BM25", float(n), 1.0, n=1) for n in sizes]
    points.append(Point("a unit", "BM25", "", 10.0, origin="published"))
    assert sharing({"panels": panels, "window": 10}, points) == {"all", "a question"} | more


def test_a_growth_curve_that_only_leaves_out_is_drawn_from_its_file_and_not_measured(made: Any) -> None:
    rows = [{"memory": "bm25"}, {"memory": "dense"}]
    for wanted, drawn in (("bm25", {"BM25"}), ("dense", {"BM25", "Dense"})):
        assert {row["series"] for row in made("segtreemem_f5", f"only=[{wanted}]", rows=rows)} == drawn


def test_a_row_is_named_by_settings_categories_and_values_of_its_own(results: Path) -> None:
    found = experiment(
        checked(composed("memtree_fa7", results), "figures"), layout(load_option("figure", "memtree_fa7")), run=False
    )
    assert isinstance(found, Experiment)
    (metric,) = metrics_of({"dataset": "msc", "metrics": [{"judge": "memtree", "category": "temporal"}]})
    one = Subject(found.lines[0], found.groups[0], metric, "m", {"temporal": "time"})
    assert one.value("base") == 0.1
    assert one.text("θ0 = {base}, {category}, {model}") == "θ0 = 0.1, time, m"
    with pytest.raises(RunError, match=r"has no 'alpha' for panel, series or x; there are: dataset, .*base"):
        one.value("alpha")


@pytest.fixture
def asked(results: Path) -> Callable[..., int]:
    def run(*overrides: str, **changed: Any) -> int:
        cfg = composed("memtree_fa7", results, *SMALL, *overrides)
        for key, value in changed.items():
            OmegaConf.update(cfg, key, value)
        return figure(cfg)

    return run


def test_a_figure_without_a_result_says_so(asked: Any, capsys: Any) -> None:
    assert asked(**{"figure.rows": []}) == 2
    assert "memtree_fa7: nothing to draw" in capsys.readouterr().err


def test_a_figure_without_a_setting_that_it_reads_is_refused_before_anything_is_run(asked: Any, capsys: Any) -> None:
    assert asked("~figure.x") == 2
    assert "error: memtree_fa7: show: scores needs x\n" in capsys.readouterr().err


def test_another_projection_is_refused(results: Path, capsys: Any) -> None:
    assert figure(composed("timem_f3", results, *SMALL, "projection=tsne")) == 2
    assert "projection must be one of pca, umap" in capsys.readouterr().err


def test_a_figure_runs_nothing_that_a_run_folder_holds(asked: Any, results: Path) -> None:
    assert asked() == 0
    files = sorted((results / "runs" / "multihop_rag").glob("memtree-*/cases/*/effort.jsonl"))
    before = {file: (file.stat().st_mtime_ns, len(read_lines(file))) for file in files}
    assert asked() == 0
    assert {file: (file.stat().st_mtime_ns, len(read_lines(file))) for file in files} == before


def test_a_footnote_names_the_prompts_behind_its_points_and_the_ratios_that_the_paper_states() -> None:
    """The tree of a figure is the memory's, its accuracy also the reader's and the judge's."""
    role = SimpleNamespace(name="m")
    run = SimpleNamespace(record=RunRecord(prompts={"segtree/batch": "", "reader/segtree": ""}))
    group: Any = SimpleNamespace(
        name="locomo", dataset=None, missing="", reader=SimpleNamespace(prompt="reader/segtree")
    )
    line: Any = SimpleNamespace(name="segtree_td", option={}, memory=None)

    def noted(*metrics: dict[str, Any]) -> str:
        group.metrics = metrics_of({"dataset": "locomo", "metrics": metrics})
        built: Any = SimpleNamespace(
            prompts=Prompts(), stand_ins={}, embedder=SimpleNamespace(name="e"), memory=role, reader=role, judge=role
        )
        made: Any = SimpleNamespace(models=built, groups=[group], lines=[line], runs={("segtree_td", "locomo"): [run]})
        ratios = load_option("figure", "segtreemem_f5")["ratios"][:1]
        points = [Point(ratios[0]["panel"], ratios[0][side], 1.0, y) for side, y in (("over", 6.0), ("under", 2.0))]
        return "\n".join(footnote([made], {"paper": "SegTreeMem", "ratios": ratios}, points))

    assert "unknown is the source text of segtree/batch (SegTreeMem" in noted({"tree": "nodes"})
    assert "judge/segtree, reader/segtree (SegTreeMem" in noted({"judge": "segtree"})
    assert "SegTree batch over SegTree cosine, building, model tokens a unit: 3.0 (published 10)." in noted(
        {"tree": "nodes"}
    )


def test_a_ratio_that_the_paper_states_stands_beside_ours() -> None:
    """SegTreeMem §5.4: cosine placement takes about a tenth of the tokens of batch placement, and a fifth of the time."""
    drawn = load_option("figure", "segtreemem_f5")
    tokens, seconds = dict.fromkeys(entry["panel"] for entry in drawn["ratios"])
    assert {entry["over"].partition(",")[2] for entry in drawn["ratios"]} == {"", " one annotation"}
    assert {tokens, seconds} <= set(drawn["panels"])
    titles = {row.get("title") for row in drawn["rows"]}
    assert all({entry["over"], entry["under"]} <= titles for entry in drawn["ratios"])
    points = [
        Point(panel, series, x, y * x)
        for panel, series, y in [
            (tokens, "SegTree batch", 6.0),
            (tokens, "SegTree cosine", 2.0),
            (seconds, "SegTree batch", 1.0),
        ]
        for x in (1.0, 2.0)
    ]
    assert list(_ratios(drawn, points)) == [f"SegTree batch over SegTree cosine, {tokens}: 3.0 (published 10)."]


def test_rows_of_a_figure_stand_in_place_of_the_tables_rows_for_every_backbone() -> None:
    options = {"name": "mine", "table": "segtreemem_t4"}
    assert "rows_qwen" in layout(options)
    own = layout({**options, "rows": [{"memory": "bm25"}]})
    assert own["rows"] == [{"memory": "bm25"}]
    assert not [name for name in own if name.startswith("rows_")]
