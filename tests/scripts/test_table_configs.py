"""Every table of the four papers has a file, every printed number has one cell or a reason, and every name in a file exists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from data_loaders.locomo import UNANSWERABLE as ADVERSARIAL
from eval.files.store import RunError
from eval.metrics.lexical import squad_token_f1
from eval.report.published import FOLDER, Published, find, read_published
from eval.running.reader import Reader
from memsys.llm.pricing import ModelSettings
from memsys.prompts import SHIPPED
from memsys.systems.timem import BUDGETS
from scripts.assembly.datasets import data
from scripts.assembly.models import build_models
from scripts.assembly.runs import memory_run, recipe_of
from scripts.setup.launch import composed
from scripts.setup.options import load_option, options
from scripts.tables.figures import layout
from scripts.tables.grid import why_not_comparable
from scripts.tables.layout import (
    candidates,
    column_group,
    metrics_of,
    named,
    read_columns,
    read_lines_of,
    reference,
    restriction,
)
from scripts.tables.table import _keeps_models
from tests.scripts.commands import configuration, reproduce

CONF = Path(__file__).resolve().parents[2] / "conf"


def excused(read: Mapping[str, Any], number: Published) -> bool:
    """Whether an entry of `not_reproduced` matches a published number."""
    wanted = [
        {name: value if isinstance(value, list) else [str(value)] for name, value in entry["match"].items()}
        for entry in read.get("not_reproduced", ())
    ]
    return any(all(getattr(number, name) in values for name, values in each.items()) for each in wanted)


def references(read: Mapping[str, Any], backbone: str) -> Iterator[dict[str, str]]:
    """Published fields of every cell of the paper."""
    for line in read_lines_of(read, None if backbone == "default" else backbone):
        for column in read["columns"]:
            for metric in metrics_of(column):
                if (wanted := reference(read["backbones"][backbone], line, column, metric)) is not None:
                    yield wanted


TABLES = [
    name for name in options("table") if name not in ("change", "equal_budgets", "local", "regression", "released")
]  # these print no paper's table
PAPERS = {
    **{f"memtree_{name}": 1 for name in ("t1", "t2", "t3", "t4", "t5", "a1", "a2", "a3", "a4")},
    **{f"timem_t{number}": 1 for number in range(1, 13)},
    **{f"segtreemem_t{number}": 1 for number in range(3, 10)},
    **{f"xmemory_t{number}": 1 for number in range(1, 9)},
}
OTHERS = ["gatemem", "next", "next_beam", "third_party"]
"""Tables of data sets that the four papers do not use, and of answers that others published."""


@cache
def table(name: str) -> dict[str, Any]:
    return load_option("table", name)


def test_every_results_table_of_the_four_papers_has_a_file() -> None:
    assert sorted([*PAPERS, *OTHERS]) == TABLES


@pytest.mark.slow
def test_a_table_composes_and_is_called_as_its_file(subtests: pytest.Subtests) -> None:
    for name in TABLES:
        with subtests.test(name=name):
            composed = configuration("reproduce", f"table={name}")
            assert composed.table.name == name
            assert OmegaConf.to_container(composed.table, resolve=True) == table(name)


@pytest.mark.slow
def test_every_printed_number_has_exactly_one_cell_or_a_reason(subtests: pytest.Subtests) -> None:
    for name in TABLES:
        with subtests.test(name=name):
            read = table(name)
            wanted = [found for backbone in read["backbones"] for found in references(read, backbone)]
            numbers = list(
                dict.fromkeys(
                    one for each in read["backbones"].values() for one in read_published(*_files(each["file"]))
                )
            )
            if name == "segtreemem_t4":  # its second backbone is Table 6, which has a file of its own
                wanted = list(references(read, "default"))
                numbers = list(read_published("segtreemem_t4"))
            placed = Counter(number for fields in wanted if (number := find(numbers, fields)) is not None)
            assert [number for number in numbers if placed[number] + excused(read, number) != 1] == []


def test_the_published_number_of_all_questions_is_not_that_of_a_category() -> None:
    read = {**table("segtreemem_t4"), "rows": [{"memory": "bm25", "published": {"method": "BM25"}}]}
    (locomo, *_) = read["columns"]
    for printed, found in [(None, [{}]), ("Temporal", [{}, {"category": "Temporal"}])]:
        metric = {"metric": "locomo_f1", "published": {"metric": "F1"}, "by": {"all": None, "temporal": printed}}
        cells = references({**read, "columns": [{**locomo, "metrics": [metric]}]}, "default")
        assert [{name: value for name, value in fields.items() if name == "category"} for fields in cells] == found


@pytest.mark.slow
def test_every_reason_excuses_a_number(subtests: pytest.Subtests) -> None:
    for name in TABLES:
        with subtests.test(name=name):
            read = table(name)
            numbers = [one for each in read["backbones"].values() for one in read_published(*_files(each["file"]))]
            for entry in read.get("not_reproduced", ()):
                assert entry["reason"]
                assert any(excused({"not_reproduced": [entry]}, number) for number in numbers)


@pytest.mark.slow
def test_every_name_in_a_table_exists(subtests: pytest.Subtests) -> None:
    for name in TABLES:
        with subtests.test(name=name):
            read = table(name)
            for column in read["columns"]:
                assert column["dataset"] in options("dataset")
                assert column.get("reader", "mem0") in options("reader")
                assert column.get("ask", "first") == "first"
                assert {metric.judge for metric in metrics_of(column)} <= {"", *options("judge")}
            groups = {column.get("group", column["dataset"]) for column in read["columns"]}
            for backbone, chosen in read["backbones"].items():
                assert set(chosen["models"]) - {"probe"} == {"memory", "reader", "judge", "embedder"}
                lines = read_lines_of(read, None if backbone == "default" else backbone)
                read_columns(name, read["columns"], lines)
                assert all(set(one.option.get("groups", ())) <= groups for one in lines)


def test_settings_of_a_row_are_settings_of_its_memory(subtests: pytest.Subtests) -> None:
    for name in TABLES:
        with subtests.test(name=name):
            for one in read_lines_of(table(name), None):
                if one.memory is not None and "build" in one.option:
                    assert set(one.option["build"]) <= set(load_option("memory", one.option["memory"])["build"])


@pytest.mark.slow
def test_the_memory_of_every_row_accepts_its_settings(subtests: pytest.Subtests) -> None:
    cfg = composed("config", [])
    models, dataset, answering = (
        build_models(cfg),
        data(cfg.data, load_option("dataset", "locomo")),
        Reader(**load_option("reader", "segtree")),
    )
    lines = [line for name in TABLES for each in table(name)["backbones"] for line in read_lines_of(table(name), each)]
    memories = {repr(line.memory): (line.name, line.memory) for line in lines if line.memory is not None}
    for name, memory in memories.values():
        with subtests.test(name=name):
            memory_run(cfg, models, dataset, recipe_of(memory), answering, unit={"rule": "utterance"})


def test_a_difference_and_a_restriction_name_rows_and_groups_that_exist(subtests: pytest.Subtests) -> None:
    for name in TABLES:
        with subtests.test(name=name):
            read = table(name)
            lines = {one.name for one in read_lines_of(read, None)}
            groups = {column.get("group", column["dataset"]) for column in read["columns"]}
            for column in read["columns"]:
                for metric in column["metrics"]:
                    assert set(metric.get("rows", ())) <= lines
                    assert {metric.get("minus", {}).get("group")} <= {None, *groups}
                assert set(column.get("rows", ())) <= lines


def test_categories_of_table_7_are_those_of_the_ids_not_of_the_printed_headers() -> None:
    (column,) = table("segtreemem_t7")["columns"]
    printed = {metric.category: metric.published["category"] for metric in metrics_of(column)}
    notes = {one.category: one.note for one in read_published("segtreemem_t7") if one.note}
    for ours, header in printed.items():
        assert ours == "all" or ours in notes[header].partition("= ")[2]


def test_best_rows_choose_among_all_settings_of_the_sweep() -> None:
    lines = read_lines_of(table("segtreemem_t7"), None)
    test, others = (one for one in lines if "best_of" in one.option)
    assert len(candidates(test, lines)) == 1 + 2 * 7 * 3
    assert candidates(test, lines) == candidates(others, lines)
    assert (test.option["chosen_on"], others.option["chosen_on"]) == ("test", "others")
    assert (test.published is None, others.published is None) == (False, True)


@pytest.mark.parametrize("name", ["xmemory_t1", "xmemory_t2"])
def test_gpt_4_1_mini_measures_the_uncertainty_for_gpt_5_nano(name: str) -> None:
    """xMemory §4.1: GPT-5 nano returns no log-probabilities, so that its own gains would all be 0."""
    models = {backbone: chosen["models"] for backbone, chosen in table(name)["backbones"].items()}
    assert models["nano"]["probe"] == "gpt-4.1-mini"
    assert not any("probe" in models[backbone] for backbone in ("default", "llama"))


@pytest.mark.parametrize(("probe", "why"), [("gpt-4.1-mini", ""), (None, "other model"), ("gpt-5-nano", "other model")])
def test_another_probe_is_another_model(probe: str | None, why: str) -> None:
    """xMemory §4.1: which model measures the uncertainty is part of the setting."""
    backbone = table("xmemory_t1")["backbones"]["nano"]
    models = {**backbone["models"], "probe": probe}
    cfg = OmegaConf.create({"models": models, "data": {"size": "all", "max_cases": None, "transform": "none"}})
    built, dataset = (
        SimpleNamespace(stand_ins=[]),
        SimpleNamespace(source=SimpleNamespace(status="official"), cut=False),
    )
    assert why_not_comparable(cfg, built, backbone, dataset) == why  # type: ignore[arg-type]


def test_without_a_probe_of_the_papers_the_reader_measures_its_own_uncertainty() -> None:
    backbone = table("xmemory_t1")["backbones"]["default"]
    data = {"size": "all", "max_cases": None, "transform": "none"}
    built, dataset = (
        SimpleNamespace(stand_ins=[]),
        SimpleNamespace(source=SimpleNamespace(status="official"), cut=False),
    )
    for probe, why in {None: "", backbone["models"]["reader"]: "", "gpt-4.1-mini": "other model"}.items():
        cfg = OmegaConf.create({"models": {**backbone["models"], "probe": probe}, "data": data})
        assert why_not_comparable(cfg, built, backbone, dataset) == why  # type: ignore[arg-type]


def test_no_reader_of_timem_undoes_the_order_of_its_memories(subtests: pytest.Subtests) -> None:
    """TiMem Eq. 11: by level, then by closeness in time to the question; the release keeps an order of its own, too."""
    for name in [name for name in TABLES if name.startswith("timem_")]:
        with subtests.test(name=name):
            for column in table(name)["columns"]:
                chosen = column.get("reader") or load_option("dataset", column["dataset"])["reader"]
                if column.get("ask") != "first":  # those answers are neither scored nor shown
                    assert load_option("reader", chosen)["order"] == "rank", column["dataset"]


@pytest.mark.parametrize("name", ["timem_t1", "timem_t2", "timem_t6"])
def test_every_memory_with_a_recall_budget_has_that_of_the_paper(name: str) -> None:
    """TiMem App. B.2: a recall budget of 20 memories for all; those that A-MEM's hits link to count as well."""
    builds = {
        one.name: one.memory["build"]
        for one in read_lines_of(table(name), None)
        if one.memory is not None and one.published is not None
    }
    assert {build["k"] for build in builds.values()} == {20}, builds
    assert builds["amem"]["cut"]


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-32b", "qwen3-235b-a22b"])
def test_the_qwen3_models_do_not_think(name: str) -> None:
    settings = load_option("llm", name)["settings"]
    assert settings["extra_body"] == {"chat_template_kwargs": {"enable_thinking": False}}
    assert settings["model"].lower() == f"qwen/{name}"


@pytest.mark.slow
def test_every_model_of_a_table_of_timem_or_xmemory_has_a_file(subtests: pytest.Subtests) -> None:
    """A model without a file would be asked with the server's defaults: Qwen3 would think."""
    for name in (name for name in TABLES if name.startswith(("timem", "xmemory"))):
        with subtests.test(name=name):
            read = table(name)
            for chosen in read["backbones"].values():
                assert {model for role, model in chosen["models"].items() if role != "embedder"} <= set(options("llm"))
            for column in read["columns"]:
                for judge in (metric["judge"] for metric in column["metrics"] if "judge" in metric):
                    assert not judge.partition("@")[2] or judge.partition("@")[2] in options("llm")


def test_every_row_of_timems_table_4_is_there_with_a_gate_and_without() -> None:
    """The paper does not say which rows of Table 4 were gated; the lengths of some speak for it, of others against it."""
    seen = {(row.memory["build"]["levels"], row.memory["build"]["recall"], row.memory["build"]["use_gating"])
            for row in read_lines_of(table("timem_t4"), None) if row.memory is not None}  # fmt: skip
    assert seen == set(product(("segments", "summaries", "all"), ("flat", "hierarchical"), (False, True)))


def test_a_misspelled_memory_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(RunError, match=r"toy: a row names 'mem_tree', which is not a memory \(did you mean memtree"):
        read_lines_of({"name": "toy", "rows": [], "others": ["bm25", "mem_tree"]}, None)
    with pytest.raises(RunError, match="a row names 'raptr'"):
        read_lines_of({"name": "toy", "rows": [{"memory": "raptr", "title": "RAPTOR"}]}, None)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ([{"metric": "locomof1"}], r"toy, locomo: no metric called locomof1 \(did you mean locomo_f1"),
        ([{"cost": "tokens"}], "toy, locomo: no cost called tokens.*there are: units, questions, recalled_tokens"),
        ([{"tree": "depth"}], "toy, locomo: no tree called depth"),
        ([{"metric": "locomo_f1", "minus": {"row": "nothin"}}], "toy, locomo: no row called nothin.*there are: bm25"),
    ],
)
def test_a_metric_that_does_not_exist_is_refused_before_anything_is_run(metrics: list[Any], said: str) -> None:
    lines = read_lines_of({"name": "toy", "rows": [{"memory": "bm25"}]}, None)
    with pytest.raises(RunError, match=said):
        read_columns("toy", [{"dataset": "locomo", "metrics": metrics}], lines)


def test_a_category_that_no_question_has_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    by = {"all": None, "answerable": None, "temporal": None, "temporl": None}
    column = {"dataset": "locomo", "metrics": [{"metric": "locomo_f1", "by": by}]}
    column_group(composed("reproduce", []), column, metrics_of(column))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "category" in line]
    assert line.startswith(
        "note: locomo: no question of these data is in the category temporl (did you mean temporal?);"
    )
    assert "single-hop" in line


def test_only_a_sweep_on_an_endpoint_and_the_papers_own_judge_keep_the_models_of_a_judge() -> None:
    paper = {"models": {"judge": "gpt-4o-mini"}}
    online = ["endpoint.base_url=http://127.0.0.1:9/v1", "endpoint.label=x"]
    judges = [(["profile=paper", f"models.judge={name}"], name == "gpt-4o-mini") for name in ("gpt-4o-mini", "other")]
    for command, settings, kept in (
        ("sweep", online, True),
        ("sweep", [], False),
        ("reproduce", online, False),
        *(("reproduce", own, kept) for own, kept in judges),
    ):
        assert _keeps_models(composed(command, settings), paper) is kept, (command, settings)


def test_only_the_reader_of_a_column_with_a_budget_is_cut_and_filled() -> None:
    option = {"dataset": "locomo", "metrics": []}
    plain, cut = (
        column_group(composed("reproduce", []), each, ()).reader for each in (option, {**option, "budget": 700})
    )
    assert plain == Reader(**load_option("reader", load_option("dataset", "locomo")["reader"]))
    assert cut == replace(plain, max_context_tokens=700, fill=True) != plain


def test_two_column_groups_of_one_name_are_refused_and_neither_is_dropped() -> None:
    columns = [{"dataset": "locomo", "metrics": [{"metric": name}]} for name in ("locomo_f1", "squad_f1")]
    with pytest.raises(RunError, match="toy: column groups of the same name: locomo; give each its own `group`"):
        read_columns("toy", columns, [])


def test_rows_and_columns_are_named_by_name_or_title_and_unknown_ones_get_the_nearest() -> None:
    titles = {"bm25": "BM25", "segtree_td": "SegTreeMem, TD", "a": "Same", "b": "Same"}
    assert named(["SegTreeMem, TD", "bm25"], titles, "only: {}") == ["segtree_td", "bm25"]
    assert named(["Same"], titles, "only: {}") == ["a", "b"]
    with pytest.raises(RunError, match=r"only: segtree_tt \(did you mean segtree_td.*name \(title\): bm25 \(BM25\)"):
        named(["segtree_tt"], titles, "only: {}")


def test_the_name_of_a_table_says_how_it_was_restricted() -> None:
    full = table("segtreemem_t4")
    assert restriction(full, full, None, None) == ""
    assert restriction(full, full, ["bm25"], ["locomo"]) == "-only-bm25-columns-locomo"
    fewer = {**full, "rows": full["rows"][:1], "others": ["nothing"]}
    assert restriction(fewer, full, None, None) == "-rows-bm25+nothing"
    assert restriction({**full, "columns": full["columns"][:1]}, full, None, None) == "-groups-locomo"
    many = restriction(full, full, [f"a name with = and, {number}" for number in range(9)], None)
    assert re.fullmatch(r"-only-9_[0-9a-f]{8}", many)
    assert "/" not in restriction(full, full, ["../x"], None)


def test_rows_of_one_name_are_refused() -> None:
    with pytest.raises(RunError, match="rows of the same name: bm25"):
        read_lines_of({"name": "toy", "rows": [], "others": ["bm25", "bm25"]}, None)


def test_rows_of_one_title_are_refused() -> None:
    """A reader could not tell them apart."""
    with pytest.raises(RunError, match="rows of the same title: MemTree"):
        read_lines_of(
            {"name": "t", "rows": [{"memory": "memtree_segt", "title": "MemTree"}], "others": ["memtree"]}, None
        )


def test_printed_settings_are_those_of_the_memories() -> None:
    place = {"L2": 0, "L3": 1, "L4": 2, "L5": 3}
    for one in read_published("timem_t7"):
        if one.metric == "recall_budget" and one.category in place:
            assert BUDGETS["paper"][one.variant.lower()][place[one.category]] == one.value
    build = load_option("memory", "timem")["build"]
    assert {one.metric: one.value for one in read_published("timem_t7") if one.metric in ("k1", "lambda")} == {
        "k1": build["k"],
        "lambda": build["semantic_weight"],
    }
    (tau,) = read_published("segtreemem_t9")
    assert load_option("memory", "similarity_tree")["build"]["tau_nt"] == tau.value


GPT_4O = {"MemTree": "gpt-4o-2024-05-13", "TiMem": "gpt-4o-2024-11-20"}
"""MemTree section 4.2; TiMem Table 2 and appendix B."""


def test_every_table_names_its_paper_s_own_snapshot_of_gpt_4o() -> None:
    found = {
        (read["paper"], model)
        for read in map(table, PAPERS)
        for one in read["backbones"].values()
        for model in one["models"].values()
        if model.startswith("gpt-4o") and not model.startswith("gpt-4o-mini")
    }
    assert found == set(GPT_4O.items())
    swept = {name: load_option("sweep", name)["sweep"].get("models", {}) for name in options("sweep")}
    for name, models in swept.items():
        wrong = {model for model in models.values() if model.startswith("gpt-4o") and model not in GPT_4O.values()}
        assert wrong <= {"gpt-4o-mini"}, name


def test_the_rows_quoted_from_memgpt_s_paper_ask_its_snapshot_of_gpt_4_turbo() -> None:
    """Packer et al., section 3: "GPT-4 Turbo" is gpt-4-1106-preview; the paper is older than the snapshot of April 2024."""
    models = table("memtree_t1")["backbones"]["turbo"]["models"]
    (name,) = {model for role, model in models.items() if role != "embedder"}
    assert load_option("llm", name)["settings"]["model"] == "gpt-4-1106-preview"


@pytest.mark.parametrize(
    ("name", "prices"),
    [
        ("gpt-4o-2024-05-13", (5.00, 5.00, 15.00)),
        ("gpt-4o-2024-08-06", (2.50, 1.25, 10.00)),
        ("gpt-4o-2024-11-20", (2.50, 1.25, 10.00)),
    ],
)
def test_a_snapshot_of_gpt_4o_has_a_file_of_its_name_with_its_own_prices(
    name: str, prices: tuple[float, float, float]
) -> None:
    known = ModelSettings(**load_option("llm", name)["settings"])
    assert known.model == name
    million = 1_000_000
    assert known.cost(million, 0) == prices[0]
    assert known.cost(million, 0, million) == prices[1]
    assert known.cost(0, million) == prices[2]
    assert "gpt-4o" not in options("llm"), "a name without its snapshot would be several models"


def test_only_the_models_that_build_vary_in_memtree_a_3_6() -> None:
    backbones = table("memtree_a4")["backbones"]
    models = {name: one["models"] for name, one in backbones.items()}
    assert (
        {one["reader"] for one in models.values()} == {one["judge"] for one in models.values()} == {GPT_4O["MemTree"]}
    )
    assert [one["memory"] for one in models.values()] == [GPT_4O["MemTree"], "gpt-4o-mini", "llama-3.1-8b"]


def test_memgpt_answers_itself_from_sessions_that_have_left_its_view_in_memtree_table_1() -> None:
    for backbone in (None, "turbo"):
        (row,) = (one for one in read_lines_of(table("memtree_t1"), backbone) if one.name == "memgpt")
        assert row.memory is not None
        assert (row.memory["build"]["in_view"], row.memory["build"]["own_answer"]) == ("last_session", True)


def test_the_published_full_history_of_memtree_table_1_is_uncut_and_the_cut_row_stands_below_the_rule() -> None:
    """Section 4.2: the naive baseline concatenates all histories; our histories exceed the 1,000 tokens of A.1.4."""
    read = table("memtree_t1")
    rows = {one.name: one for one in read_lines_of(read, None)}
    limits = {name: rows[name].memory["build"]["max_tokens"] for name in ("full_history", "full_history_1000")}  # type: ignore[index]
    assert limits == {"full_history": None, "full_history_1000": 1000}
    assert rows["full_history"].published == {"method": "Full history"}
    assert rows["full_history_1000"].published is None
    assert any("13.7 rounds" in note and "31.4" in note for note in read["notes"])


@pytest.mark.parametrize("name", ["memtree_t3", "memtree_t4", "memtree_a2"])
def test_every_published_row_of_memtree_s_long_texts_reads_8192_tokens(name: str) -> None:
    """MemTree A.1.4: 8,192 tokens for all models on MultiHop-RAG and QuALITY; other budgets stand below the rule, and a note says so."""
    rows = {one.name: one for one in read_lines_of(table(name), None) if one.memory is not None}
    budgets = {name: dict(one.memory or {})["build"].get("max_tokens") for name, one in rows.items()}
    compared = ("raptor", "graphrag", "memstream_relevance", "memtree")
    assert {budgets[row] for row in compared} == {8192}
    assert all(rows[row].published for row in compared)
    assert (budgets["raptor_2000"], budgets["graphrag_12000"]) == (2000, 12000)
    assert not any(rows[row].published for row in ("raptor_10", "raptor_2000", "graphrag_12000"))
    assert any("8,192" in note for note in table(name)["notes"])


@pytest.mark.parametrize("name", ["memtree_t1", "memtree_t2", "memtree_t3", "memtree_t4", "memtree_a2"])
def test_memtree_s_memorystream_ranks_by_similarity_and_with_recency_below_the_rule(name: str) -> None:
    """MemTree §1 speaks of searches by similarity alone; its Table 2 has 78.5 for evidence of the first 40 of 200 rounds."""
    rows = {one.name: one for one in read_lines_of(table(name), None)}
    weighed = {row: dict(rows[row].memory or {})["build"] for row in ("memstream_relevance", "memstream")}
    assert [build["weights"] for build in weighed.values()] == [[0, 1, 0], None]
    assert len({(build["k"], build["max_tokens"]) for build in weighed.values()}) == 1
    assert rows["memstream_relevance"].published == {"method": "MemoryStream"}
    assert rows["memstream"].published is None
    assert any("recency" in note for note in table(name)["notes"])


@pytest.mark.parametrize("name", ["timem_t1", "timem_t8", "timem_t9"])
def test_timem_s_f1_and_rouge_l_stand_beside_locomo_s_scorer_under_its_true_name(name: str) -> None:
    (column,) = table(name)["columns"]
    lexical = [one for one in column["metrics"] if "metric" in one]
    printed = {one["published"]["metric"]: one["metric"] for one in lexical if "published" in one}
    assert printed == {"F1": "locomo_stem_f1", "ROUGE-L": "locomo_stem_rouge_1"}
    assert [one["metric"] for one in lexical if "published" not in one] == ["locomo_stem_rouge_l"]
    assert any("ROUGE-1" in note for note in table(name)["notes"])


@pytest.mark.slow
def test_memtree_s_nodes_have_no_dates_in_the_tables_of_multihop_rag_alone() -> None:
    """MemTree Tables A.5-A.9: summaries without a date; the questions about time would else be given what the paper's reader lacks."""
    dates: dict[bool, set[str]] = {}
    for name in (name for name in PAPERS if name.startswith("memtree")):
        for one in read_lines_of(table(name), None):
            if one.option.get("memory") == "memtree":
                dates.setdefault(dict(one.memory or {})["build"]["dates"], set()).add(name)
    assert dates[False] == {"memtree_t4", "memtree_a2", "memtree_a3", "memtree_a4"}
    assert dates[True] == {"memtree_t1", "memtree_t2", "memtree_t3", "memtree_t5"}
    for name in ("memtree_fa4", "memtree_fa7", "memtree_fa9"):  # the figures on MultiHop-RAG that score answers
        rows = [
            one for one in read_lines_of(layout(load_option("figure", name)), None) if one.name.startswith("memtree")
        ]
        builds = [dict(one.memory or {})["build"] for one in rows]
        assert {build.get("inner", build)["dates"] for build in builds} == {False}
    swept = [f"memtree_{name}" for name in ("threshold", "traversal", "pruning")]
    sweeps = {name: composed("sweep", [f"sweep={name}"]).memory["build"] for name in swept}
    assert {build.get("inner", build)["dates"] for build in sweeps.values()} == {False}


def test_timem_s_queries_are_embedded_without_the_instruction_which_is_a_file_of_its_own() -> None:
    """TiMem's release encodes queries and texts alike; the paper names the model and its dimension only."""
    plain, instructed = (load_option("embedder", f"qwen3-embedding-0.6b{end}") for end in ("", "-instructed"))
    assert not plain.get("query_prefix")
    assert re.fullmatch(r"Instruct: .+\nQuery: ", instructed["query_prefix"])
    assert {**instructed, "query_prefix": None} == {**plain, "query_prefix": None}
    for name in (name for name in PAPERS if name.startswith("timem_")):
        embedders = {one["models"].get("embedder") for one in table(name)["backbones"].values()}
        assert "qwen3-embedding-0.6b-instructed" not in embedders
        assert ("qwen3-embedding-0.6b" in embedders) == any(
            "without an instruction" in note for note in table(name)["notes"]
        )


@pytest.mark.parametrize("name", ["xmemory_t1", "xmemory_t4"])
def test_naive_rag_has_a_row_with_the_blocks_that_the_tokens_of_xmemory_tables_1_and_4_need(name: str) -> None:
    """Tables 3 and 5 give 183 tokens a block; the 6,613 tokens a question of Tables 1 and 4 need blocks of about 330."""
    rows = {one.name: one for one in read_lines_of(table(name), None)}
    blocks = {row: dict(rows[row].memory or {})["build"]["chunk_tokens"] for row in ("naive_rag", "naive_rag_330")}
    assert blocks == {"naive_rag": 180, "naive_rag_330": 330}
    assert (bool(rows["naive_rag"].published), rows["naive_rag_330"].published) == (True, None)
    captions = [*table(name)["notes"], *load_option("figure", "xmemory_f3")["notes"]]
    assert sum("6,613" in note for note in captions) == 2


def test_costs_a_question_on_locomo_are_those_of_the_questions_that_timem_and_xmemory_asked() -> None:
    """Both papers average over 1,540 questions, without the adversarial ones: 511.25 tokens stand in TiMem's Tables 3, 4 and 6."""
    costs = {
        (name, metric["cost"]): tuple(metric.get("by", ()))
        for name in PAPERS
        if name.startswith(("timem", "xmemory"))
        for column in table(name)["columns"]
        for metric in column["metrics"]
        if column["dataset"] == "locomo" and ":" not in metric.get("cost", ":") and metric["cost"] != "build_calls"
    }
    assert {name for name, _ in costs} == {"timem_t3", "timem_t4", "timem_t6", "xmemory_t1", "xmemory_t4"}
    assert set(costs.values()) == {("answerable",)}
    assert not any("by" in metric for metric in table("timem_t6")["columns"][1]["metrics"])


def test_timem_s_tables_with_a_judge_are_judged_five_times_as_its_release_does() -> None:
    """The ± of the tables comes from repeated judging; `judge.repeats` is once everywhere else."""
    repeats = {name: table(name).get("repeats", 1) for name in PAPERS}
    judged = {
        name
        for name in PAPERS
        if name.startswith("timem_")
        and any("judge" in metric for one in table(name)["columns"] for metric in one["metrics"])
    }
    assert {name for name, count in repeats.items() if count == 5} == judged
    assert set(repeats.values()) == {1, 5}


def test_both_readings_of_turn_pairs_stand_beside_each_other_in_segtreemem_table_3() -> None:
    """Single turns are swapped in the published columns, whole exchanges in those next to them; the units are the same in all three."""
    for name in ("locomo", "longmemeval_mab", "realmem"):
        columns = [column for column in table("segtreemem_t3")["columns"] if column["dataset"] == name]
        assert [column.get("transform") for column in columns] == [None, "permute", "permute_exchanges"]
        assert [bool(column.get("published")) for column in columns] == [True, True, False]
        assert [column["metrics"][-1].get("minus") for column in columns] == [None, {"group": name}, {"group": name}]
        assert all(column["unit"] == {"rule": "ab_pair", "on_unpaired": "drop"} for column in columns)


def test_no_interval_of_segtreemem_s_f1_on_locomo_can_be_by_question() -> None:
    """The official F1 is two-valued on the adversarial questions, plain F1 of our reader 0: either alone spreads more than ±.006 allows."""
    adversarial, right, n = 446, 0.41, 1986
    least = 1.96 * (adversarial / n * right * (1 - right) / n) ** 0.5
    assert least == pytest.approx(0.010, abs=0.0005)
    abstention = (SHIPPED / "reader/segtree.md").read_text(encoding="utf-8").rpartition("reply: ")[2].strip()
    assert squad_token_f1(abstention, ADVERSARIAL) == 0
    assert squad_token_f1("In March, at the harbour", ADVERSARIAL) < 0.3
    zeros = 1.96 * 0.301 * (adversarial / (n - adversarial) / n) ** 0.5
    assert zeros == pytest.approx(0.007, abs=0.0005)
    for name in ("segtreemem_t4", "segtreemem_t6"):
        (note,) = (note for note in table(name)["notes"] if ".006" in note)
        assert "±.010" in note
        assert "±.007" in note
        assert "neither F1" in note


def test_the_printed_nodes_of_memtree_include_a_root_that_is_no_node_of_ours() -> None:
    """SegTreeMem Table 5: of 280.7 leaves on average, 473 children of 193.3 inner nodes give the printed 2.45; 474 would give 2.44."""
    numbers = read_published("segtreemem_t5")
    printed = {one.metric: one.value for one in numbers if (one.dataset, one.method) == ("LoCoMo", "MemTree")}
    inner = printed["nodes"] - 280.7
    assert round((printed["nodes"] - 1) / inner, 2) == printed["branching"] != round(printed["nodes"] / (inner + 1), 2)
    assert any("include the root" in note for note in table("segtreemem_t5")["notes"])


def test_the_share_of_reassigned_statements_is_over_those_of_all_histories() -> None:
    """xMemory §5.3: the fraction of semantic nodes, of which Table 7 counts those of the whole data set."""
    metrics = table("xmemory_t6")["columns"][0]["metrics"]
    assert [metric["per"] for metric in metrics if metric.get("report") == "reassigned"] == ["semantics"]


def test_calls_that_a_table_counts_are_of_shipped_prompts() -> None:
    """A misspelt prompt is never called: the cell would be empty beside the paper's number."""
    metrics = [metric for name in options("table") for column in table(name)["columns"] for metric in column["metrics"]]
    counted = {metric["cost"][6:] for metric in metrics if str(metric.get("cost", "")).startswith("calls:")}
    assert counted == {"timem/planner", "timem/gate_*"}
    assert all([*SHIPPED.glob(f"{name}.md")] for name in counted)


def test_no_heading_says_percent_above_shares() -> None:
    """`scale: 100` divides the paper's percentages, so that both numbers of a cell are shares: 0.207 and 0.4491, not 44.91."""
    titles = {
        f"{name}: {metric.get('title', '')}"
        for name in options("table")
        for column in table(name)["columns"]
        for metric in column["metrics"]
        if "scale" in metric
    }
    assert "xmemory_t6: reassigned, share" in titles
    assert [title for title in titles if "%" in title] == []


def test_every_row_of_multihop_rag_has_the_heading_of_an_article_once_a_chunk() -> None:
    """MemTree A.2.1. RAPTOR's own unit, a paragraph, would have title, source and date before each."""
    columns = [*load_option("figure", "memtree_f5")["columns"]]
    for name in ("memtree_t4", "memtree_t5", "memtree_a2"):
        columns += [column for column in table(name)["columns"] if "transform" not in column]
    assert {column["dataset"] for column in columns} == {"multihop_rag"}
    assert [column.get("unit") for column in columns] == 4 * [load_option("dataset", "multihop_rag")["unit"]]


def test_memtree_table_a2_has_the_spread_of_calls_beside_the_printed_one() -> None:
    metrics = table("memtree_a2")["columns"][0]["metrics"]
    spread = next(metric for metric in metrics if metric.get("cost") == "calls_per_insertion_std")
    assert (spread["rows"], spread["published"]) == (["memtree"], {"metric": "llm_calls_std"})


def test_captions_name_the_differences_of_data_and_judges_from_the_papers() -> None:
    said = {
        name: " ".join(table(name)["notes"])
        for name in (
            "timem_t2",
            "timem_t6",
            "timem_t11",
            "timem_t12",
            "memtree_a1",
            "memtree_t1",
            "memtree_t2",
            "memtree_t3",
            "memtree_t4",
            "segtreemem_t9",
        )
    }
    assert "no judge model" in said["timem_t2"]
    assert "1,540" in said["timem_t6"]
    assert all("UMAP" in said[name] for name in ("timem_t11", "timem_t12"))
    assert all("who asks whom" in said[name] for name in ("memtree_t1", "memtree_t2"))
    assert "115 documents" in said["memtree_a1"]
    assert "uncut" in said["memtree_t2"]
    assert "--ask after_round" in said["memtree_t2"]
    assert f"{load_option('memory', 'memgpt')['build']['window']:,} tokens" in said["memtree_t1"]
    models = table("memtree_t3")["backbones"]["default"]["models"]
    assert models["reader"].rpartition("/")[2].removesuffix("-Instruct") + " answers" in said["memtree_t3"]
    assert "whole paragraphs" in said["memtree_t4"]
    assert "without the limit of ten nodes" in said["memtree_t4"]
    assert "examples of clusters" not in str(table("segtreemem_t9"))


def test_queries_of_e5_mistral_get_the_instruction_it_was_trained_with() -> None:
    assert table("memtree_t3")["backbones"]["default"]["models"]["embedder"] == "e5-mistral-7b-instruct"
    option = load_option("embedder", "e5-mistral-7b-instruct")
    assert option["settings"]["model"] == "intfloat/e5-mistral-7b-instruct"
    assert re.fullmatch(r"Instruct: .+\nQuery: ", option["query_prefix"])


def test_trees_annotated_once_a_leaf_stand_beside_those_of_segtreemem_algorithm_1() -> None:
    """The printed .93-.96 (cosine) and 1.88-1.95 (batch) calls a leaf of Table 5 fit one annotation a leaf."""
    figure = load_option("figure", "segtreemem_f5")
    for rows in (read_lines_of(table("segtreemem_t5"), None), read_lines_of({**figure, "others": ()}, None)):
        built = {one.name: one.memory["build"]["annotate"] for one in rows if one.memory and "segtree_" in one.name}
        for name in ("segtree_batch", "segtree_cosine"):
            assert (built[name], built[f"{name}_attach_only"]) == ("full", "attach_only")


def test_captions_say_where_the_swap_and_the_pruning_are_not_the_papers() -> None:
    assert any("permute_between_questions" in note for note in table("segtreemem_t3")["notes"])
    transforms = [(one["dataset"], one.get("transform")) for one in table("segtreemem_t3")["columns"]]
    for dataset in ("locomo", "longmemeval_mab", "realmem"):
        assert {(dataset, "permute"), (dataset, "permute_exchanges")} <= set(transforms)
    note = load_option("figure", "memtree_fa9")["notes"][0]
    assert all(name in note for name in ("LLMLingua (2023)", "surrogate", "LLMLingua-2"))


def test_captions_of_segtreemem_figures_say_what_its_captions_leave_open() -> None:
    said = {n: " ".join(load_option("figure", f"segtreemem_f{n}")["notes"]) for n in (4, 5, 6, 12, 13)}
    assert "chosen on the questions reported" in said[4]
    assert "names no data set" in said[5]
    assert "the caption of Figure 12 names no horizon" in said[12]
    locomo, realmem = (load_option("judge", name)["threshold"] for name in ("segtree", "realmem"))
    right = f"LoCoMo: grade {locomo} or 3 of 3 is right; the paper names no threshold. RealMem: perfect rate, grade {realmem}."
    assert [n for n, text in said.items() if right in text] == [4, 6, 12, 13]


def test_a_row_called_as_in_its_paper_has_the_settings_of_the_paper() -> None:
    rows = {
        one.title: one for name in TABLES for one in read_lines_of(table(name), None) if "in its paper" in one.title
    }
    memories = {title: dict(one.memory or {})["build"] for title, one in rows.items()}
    assert {title for title, build in memories.items() if build.get("mode", "paper") != "paper"} == set()
    raptor, memtree = memories["RAPTOR, as in its paper"], memories["MemTree, as in its paper"]
    assert (raptor["k"], raptor["max_tokens"]) == (None, 2000)
    assert (memtree["k"], memtree["max_tokens"], memtree["base"], memtree["rate"]) == (10, 8192, 0.4, 0.5)


@pytest.mark.slow
def test_every_published_file_of_a_table_is_used() -> None:
    used = {file for name in TABLES for one in table(name)["backbones"].values() for file in _files(one["file"])}
    told = {"consistency_checks", "in_text_numbers", "memtree_poster_memtree_properties"}
    assert used == {path.stem for path in FOLDER.glob("*.csv")} - told


def _files(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `memsys-bench reproduce` prints for a table on the samples, with the offline engines."""

    def run(name: str, *overrides: str) -> str:
        cfg = configuration("reproduce", f"table={name}", f"results={tmp_path}", "print=plain", *overrides)
        assert reproduce(cfg) == 0
        return capsys.readouterr().out

    return run


def cells(text: str, title: str) -> list[str]:
    """The first row with this title, without it."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {title} |"))
    return [part.strip() for part in line.strip("|").split("|")][1:]


@pytest.mark.slow
def test_the_data_table_counts_the_data_and_compares_no_sample(printed: Any) -> None:
    row = cells(printed("memtree_a1"), "The data")
    assert row[0] == "3.000 · 500 · not comparable: sample data" or row[0].startswith("3.000 · 500 · not comparable")
    assert row[16].startswith("4.000 · 816")


@pytest.mark.slow
def test_a_tree_table_measures_trees_and_asks_one_question_a_history(printed: Any) -> None:
    text = printed("memtree_a3")
    nodes, leaves, inner = (float(cell.split()[0]) for cell in cells(text, "MemTree")[:3])
    assert nodes == leaves + inner
    assert "| MemTree |" in text
    assert "not comparable: stand-in" in cells(text, "MemTree")[0]


@pytest.mark.slow
def test_a_difference_is_that_of_its_two_columns(printed: Any) -> None:
    few = ("data.size=8", "only=[segtree_batch]", "columns=[locomo,locomo_permuted]")
    row = cells(printed("segtreemem_t3", *few), "SegTreeMem, no propagation")
    original, permuted, gap = (float(cell.split()[0]) for cell in row[:3])
    assert gap == pytest.approx(permuted - original, abs=0.002)
    assert "-0.111" in row[2]


@pytest.mark.slow
def test_gatemems_table_multiplies_its_shares_and_leaves_every_category_to_its_own_columns(printed: Any) -> None:
    text = printed("gatemem", "only=[refuse_all,recency,bm25]")
    header = [part.strip() for part in next(line for line in text.splitlines() if "MGS, strict" in line).split("|")][2:]
    columns = {name.removeprefix("GateMem · "): place for place, name in enumerate(header)}

    def cell(row: str, column: str) -> str:
        return cells(text, row)[columns[column]]

    for domain in ("medical", "office", "education", "household"):
        u, a, f, mgs = (
            float(cell("Last 20 turns", f"{name}, strict, {domain}").split()[0]) for name in ("U", "A", "F", "MGS")
        )
        assert mgs == pytest.approx(u * (1 - a) * (1 - f), abs=0.001)
        assert [cell("Refuse everything", f"{name}, strict, {domain}").split()[0] for name in "UAF"] == ["0.000"] * 3
        assert cell("Refuse everything", f"OR, {domain}").startswith("1.000")
        assert cell("Last 20 turns", f"support, recalled, {domain}").startswith("1.000")  # the sample is that short
    assert "· 2/0/0/0" in cell("Last 20 turns", "U, strict, office")  # of 6 questions, 2 are utility ones
    exposed = cell("BM25 (k 20)", "deletion exposure, recalled, office")
    assert exposed.startswith("0.500")  # of two targets one stands inside a longer word only
