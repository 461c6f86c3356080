"""Every table of the four papers has a file, every printed number has one cell or a reason, and every name in a file exists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from eval.published import FOLDER, find, read_published
from eval.store import RunError
from memsys.timem import BUDGETS
from scripts.assemble import load_option, metrics, options
from scripts.paper_table import reproduce
from scripts.table_layout import (
    candidates,
    cells_of,
    excused,
    kind_of,
    named,
    published_of,
    read_lines_of,
    references,
    restriction,
)

CONF = Path(__file__).resolve().parents[2] / "conf"
TABLES = [name for name in options("table") if name != "regression"]
PAPERS = {
    **{f"memtree_{name}": 1 for name in ("t1", "t2", "t3", "t4", "t5", "a1", "a2", "a3", "a4")},
    **{f"timem_t{number}": 1 for number in range(1, 13)},
    **{f"segtreemem_t{number}": 1 for number in range(3, 10)},
    **{f"xmemory_t{number}": 1 for number in range(1, 9)},
}
each_table = pytest.mark.parametrize("name", TABLES)


@cache
def table(name: str) -> dict[str, Any]:
    return load_option("table", name)


def test_every_results_table_of_the_four_papers_has_a_file() -> None:
    assert sorted(PAPERS) == TABLES


@each_table
def test_a_table_composes_and_is_called_as_its_file(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("reproduce", [f"table={name}"])
    assert composed.table.name == name
    assert OmegaConf.to_container(composed.table, resolve=True) == table(name)


@each_table
def test_every_printed_number_has_exactly_one_cell_or_a_reason(name: str) -> None:
    read = table(name)
    wanted = [found for backbone in read["backbones"] for found in references(read, backbone)]
    numbers = list(dict.fromkeys(one for each in read["backbones"].values() for one in published_of(each)))
    if name == "segtreemem_t4":  # its second backbone is Table 6, which has a file of its own
        wanted = list(references(read, "default"))
        numbers = list(read_published("segtreemem_t4"))
    placed = Counter(number for *_, fields in wanted if (number := find(numbers, fields)) is not None)
    assert [number for number in numbers if placed[number] + bool(excused(read, number)) != 1] == []


@each_table
def test_every_reason_excuses_a_number(name: str) -> None:
    read = table(name)
    numbers = [one for each in read["backbones"].values() for one in published_of(each)]
    for entry in read.get("not_reproduced", ()):
        assert entry["reason"]
        assert any(excused({"not_reproduced": [entry]}, number) for number in numbers)


@each_table
def test_every_name_in_a_table_exists(name: str) -> None:
    read = table(name)
    for column in read["columns"]:
        assert column["dataset"] in options("dataset")
        assert column.get("reader", "mem0") in options("reader")
        assert column.get("ask", "first") == "first"
        for metric in cells_of(column):
            if kind_of(metric) == "judge":
                assert metric["judge"].partition("@")[0] in options("judge")
            if kind_of(metric) == "metric":
                metrics([metric["metric"]])
    groups = {column.get("group", column["dataset"]) for column in read["columns"]}
    assert len(groups) == len(read["columns"])
    for backbone, chosen in read["backbones"].items():
        assert set(chosen["models"]) == {"memory", "reader", "judge", "embedder"}
        for one in read_lines_of(read, None if backbone == "default" else backbone):
            if "memory" in one.option and name != "segtreemem_t4":  # which lists what is still to come as `pending`
                assert one.memory is not None, one.name
            assert set(one.option.get("groups", ())) <= groups


@each_table
def test_settings_of_a_row_are_settings_of_its_memory(name: str) -> None:
    for one in read_lines_of(table(name), None):
        if one.memory is not None and "build" in one.option:
            assert set(one.option["build"]) <= set(load_option("memory", one.option["memory"])["build"])


@each_table
def test_a_difference_and_a_restriction_name_rows_and_groups_that_exist(name: str) -> None:
    read = table(name)
    lines = {one.name for one in read_lines_of(read, None)}
    groups = {column.get("group", column["dataset"]) for column in read["columns"]}
    for column in read["columns"]:
        for metric in column["metrics"]:
            assert set(metric.get("rows", ())) <= lines
            assert {metric.get("minus", {}).get("row")} <= {None, *lines}
            assert {metric.get("minus", {}).get("group")} <= {None, *groups}
        assert set(column.get("rows", ())) <= lines


def test_categories_of_table_7_are_those_of_the_ids_not_of_the_printed_headers() -> None:
    (column,) = table("segtreemem_t7")["columns"]
    printed = {metric["category"]: metric["published"]["category"] for metric in cells_of(column)}
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


def test_a_misspelled_memory_below_the_rule_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(RunError, match=r"toy: others name 'mem_tree', which is no memory \(did you mean memtree"):
        read_lines_of({"name": "toy", "rows": [], "others": ["bm25", "mem_tree"]}, None)
    with pytest.raises(RunError, match="others name 'raptr'"):
        read_lines_of({"name": "toy", "rows": [], "others": [{"memory": "raptr", "title": "RAPTOR"}]}, None)


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


def test_every_published_file_of_a_table_is_used() -> None:
    used = {file for name in TABLES for one in table(name)["backbones"].values() for file in _files(one["file"])}
    told = {"consistency_checks", "in_text_numbers", "memtree_poster_memtree_properties"}
    assert used == {path.stem for path in FOLDER.glob("*.csv")} - told


def _files(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `scripts.reproduce` prints for a table on the samples, with the offline engines."""

    def run(name: str, *overrides: str) -> str:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg: DictConfig = compose("reproduce", [f"table={name}", f"results={tmp_path}", *overrides])
        assert reproduce(cfg) == 0
        return capsys.readouterr().out

    return run


def cells(text: str, title: str) -> list[str]:
    """The first row with this title, without it."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {title} |"))
    return [part.strip() for part in line.strip("|").split("|")][1:]


def test_the_data_table_counts_the_data_and_compares_no_sample(printed: Any) -> None:
    row = cells(printed("memtree_a1"), "The data")
    assert row[0] == "3.000 · 500 · not comparable: sample data" or row[0].startswith("3.000 · 500 · not comparable")
    assert row[16].startswith("4.000 · 816")


def test_a_tree_table_measures_trees_and_asks_one_question_a_history(printed: Any) -> None:
    text = printed("memtree_a3")
    nodes, leaves, inner = (float(cell.split()[0]) for cell in cells(text, "MemTree")[:3])
    assert nodes == leaves + inner
    assert "| MemTree |" in text
    assert "not comparable: stand-in" in cells(text, "MemTree")[0]


def test_a_difference_is_that_of_its_two_columns(printed: Any) -> None:
    row = cells(printed("segtreemem_t3", "data.size=8"), "SegTreeMem, no propagation")
    original, permuted, gap = (float(cell.split()[0]) for cell in row[:3])
    assert gap == pytest.approx(permuted - original, abs=0.002)
    assert "-0.111" in row[2]
