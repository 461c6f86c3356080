"""A question's page and the structure tables, from the folders of small runs on the shipped samples."""

from __future__ import annotations

import json
import pydoc
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from data_loaders.schema import Asker, Gold, Question
from eval.files.records import Prediction
from eval.files.run_folder import RunFolder
from eval.files.store import read_lines
from eval.report import shapes
from eval.report.shapes import published_shape
from eval.structure.tree import Tree, depths
from scripts.assembly.run_folders import data_of, trees_of
from scripts.command import verb
from scripts.commands import inspect
from scripts.commands.inspect import span_counts
from scripts.setup.options import load_option, options
from tests.scripts.commands import configuration, run_single

pytestmark = pytest.mark.slow

CONF = str(Path(__file__).resolve().parents[2] / "conf")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segment tree over the LoCoMo sample, answered and scored by the offline engine."""
    results = tmp_path_factory.mktemp("results")
    settings = ["memory=segtree_cosine", "nodes.vectors=true", "data.size=6", "data.max_cases=2"]
    assert run_single(configuration("config", f"results={results}", *settings)) == 0
    (folder,) = (results / "runs" / "locomo").iterdir()
    return folder


@pytest.fixture
def copied(run_folder: Path, tmp_path: Path) -> Path:
    """The run, to be changed."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [line for path in sorted(folder.glob("cases/*/predictions.jsonl")) for line in read_lines(path)]


def test_the_page_shows_question_gold_answer_verdicts_and_the_recall(run_folder: Path, capsys: Any) -> None:
    line = lines_of(run_folder)[0]
    assert verb("inspect", [str(run_folder), line["question_id"], "--case", line["case_id"]]) == 0
    said = capsys.readouterr().out
    cases = data_of(RunFolder(run_folder).record(), None).cases
    case = cases[cases.ids.index(line["case_id"])]
    question, gold = next(pair for pair in case.questions if pair[0].id == line["question_id"])
    assert f"Query     {question.text}" in said
    assert f"Gold      {' | '.join(gold.answers)}" in said
    assert f"Answer    {line['answer']}" in said
    assert all(f"Evidence  {turn}" in said for turn in gold.evidence)
    for path in (run_folder / "scores").glob("*.jsonl"):
        assert said.count(f"  {path.stem}  #0") == (not path.name.endswith(".effort.jsonl"))
    for score in line["scores"]:
        assert f"{score:.4f}" in said


def test_depth_and_ancestors_are_those_of_the_dumped_tree(run_folder: Path) -> None:
    line = lines_of(run_folder)[0]
    folder = run_folder / "cases" / line["case_id"]
    nodes = {node["id"]: node for node in read_lines(folder / "nodes.jsonl")}
    items = {item["key"]: item for item in read_lines(folder / "items.jsonl")}
    page = inspect.inspect(run_folder, line["question_id"], line["case_id"])
    rows = page[page.index("Index  Score    Level  Depth  Ancestors") + 1 :]
    assert len(rows) == 2 * len(line["items"])
    for place, key in enumerate(line["items"]):
        name, chain = items[key]["id"], []
        above = nodes[name]["parents"]
        while above:
            chain.insert(0, above[0])
            above = nodes[above[0]]["parents"]
        words = rows[2 * place].split(maxsplit=4)
        assert words[:2] == [str(place + 1), f"{line['scores'][place]:.4f}"]
        assert words[2:4] == [str(items[key]["level"]), str(len(chain))]
        expected = "  ".join(f"Depth {depth}: {one}" for depth, one in enumerate(chain))
        assert words[4] == (expected or "(topmost)")
        assert rows[2 * place + 1].split()[0] == name


def test_depths_of_a_memtree_with_one_topmost_node_count_its_hidden_root(tmp_path: Path, capsys: Any) -> None:
    settings = ["memory=memtree", "memory.build.base=-1.0", "memory.build.rate=0.0", "data.size=1", "data.max_cases=1"]
    assert run_single(configuration("config", f"results={tmp_path}", *settings)) == 0
    (folder,) = (tmp_path / "runs" / "locomo").iterdir()
    (case,) = folder.glob("cases/*/case.json")
    said = read_lines(case)[0]["memory"]
    (tree,) = trees_of(folder, RunFolder(folder).record())
    assert [max(depths(tree)), sum(not above for above in tree.parents)] == [said["max_depth"], 1]
    capsys.readouterr()
    assert verb("inspect", [str(folder), lines_of(folder)[0]["question_id"]]) == 0
    found = re.findall(r"^ +\d+  \S+ +\d+ +(\d+) ", capsys.readouterr().out, re.MULTILINE)
    place = dict(zip(tree.ids, depths(tree), strict=True))
    items = {line["key"]: line["id"] for line in read_lines(case.parent / "items.jsonl")}
    assert list(map(int, found)) == [place[items[key]] for key in lines_of(folder)[0]["items"]]
    assert min(map(int, found)) >= 1


def test_items_that_hold_the_evidence_say_which_turns(run_folder: Path) -> None:
    cases, marked = data_of(RunFolder(run_folder).record(), None).cases, 0
    for line in lines_of(run_folder):
        case = cases[cases.ids.index(line["case_id"])]
        gold = next(gold for question, gold in case.questions if question.id == line["question_id"])
        items = {item["key"]: item for item in read_lines(run_folder / "cases" / line["case_id"] / "items.jsonl")}
        page = inspect.inspect(run_folder, line["question_id"], line["case_id"])
        rows = page[page.index("Index  Score    Level  Depth  Ancestors") + 1 :]
        for place, key in enumerate(line["items"]):
            held = [turn for turn in gold.evidence if turn in items[key]["sources"]]
            assert ("  (evidence " in rows[2 * place + 1]) == bool(held)
            assert not held or f"  (evidence {', '.join(held)})  " in rows[2 * place + 1]
            marked += bool(held)
    assert marked


def test_the_page_says_how_much_of_the_recall_the_reader_was_shown(copied: Path) -> None:
    line = lines_of(copied)[0]
    path = copied / "cases" / line["case_id"] / "effort.jsonl"
    efforts = read_lines(path)
    (asked,) = (one for one in efforts if one["phase"] == "answer" and one["subject"] == line["question_id"])
    page = inspect.inspect(copied, line["question_id"], line["case_id"])
    assert f"Reader    shown {asked['context_tokens']} tokens of recall, 0 items left out" in page
    again = {**asked, "context_tokens": 17, "dropped_items": 3}
    other = {**asked, "subject": "another", "context_tokens": 99}
    path.write_text("".join(json.dumps(one) + "\n" for one in (*efforts, again, other)))
    page = inspect.inspect(copied, line["question_id"], line["case_id"])
    assert [one for one in page if one.startswith("Reader")] == [
        "Reader    shown 17 tokens of recall, 3 items left out"
    ]
    own = [one for one in efforts if one is not asked]
    path.write_text("".join(json.dumps(one) + "\n" for one in own))
    assert not any(one.startswith("Reader") for one in inspect.inspect(copied, line["question_id"], line["case_id"]))


def test_options_asker_and_what_has_no_answer_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question("q", "Which?", options=("red", "blue"), time_text="9 May 2023", asker=Asker("bo", "cleaner"))
    monkeypatch.setattr(inspect, "question_of", lambda *_: (question, Gold((), (), "trick", answerable=False), {}))
    lines, evidence = inspect.question_lines({}, Prediction("c", "q", "red", (), (), "answered"), None)
    shown = ["Query     Which?", "  (A) red", "  (B) blue", "Asked     9 May 2023", "Asked by  bo (cleaner)"]
    assert lines == [*shown, "Category  trick (unanswerable)", "Gold      –"]
    assert evidence == ()


def test_a_missing_verdict_says_why(copied: Path) -> None:
    line = lines_of(copied)[0]
    said = {"case_id": line["case_id"], "question_id": line["question_id"], "value": None, "repeat": 1, "detail": {}}
    (copied / "scores" / "judge-x.jsonl").write_text(json.dumps({**said, "why": "no verdict in\n the reply"}) + "\n")
    page = inspect.inspect(copied, line["question_id"], line["case_id"])
    assert "  judge-x  #1  no verdict  (no verdict in the reply)" in page


def test_texts_are_cut_to_the_width_on_one_line(copied: Path) -> None:
    line = lines_of(copied)[0]
    path = copied / "cases" / line["case_id"] / "items.jsonl"
    texts = dict(zip(line["items"], ["four\n  and  five", "0123456789", "01234567890"], strict=False))
    items = [{**item, "text": texts.get(item["key"], "x"), "sources": []} for item in read_lines(path)]
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    ids = {item["key"]: item["id"] for item in items}
    shown = dict(zip(map(ids.__getitem__, texts), ["four and …", "0123456789", "012345678…"], strict=True))
    page = inspect.inspect(copied, line["question_id"], line["case_id"], width=10)
    rows = [row.split(maxsplit=1) for row in page[page.index("Index  Score    Level  Depth  Ancestors") + 2 :: 2]]
    assert {name: text for name, text in rows if text != "x"} == shown


def test_of_many_ancestors_of_one_depth_three_are_named(copied: Path) -> None:
    line = lines_of(copied)[0]
    folder = copied / "cases" / line["case_id"]
    items = {item["key"]: item for item in read_lines(folder / "items.jsonl")}
    recalled = items[line["items"][0]]["id"]
    dumped = read_lines(folder / "nodes.jsonl")
    above = {node["id"]: node["parents"] for node in dumped}
    (parent,) = above[recalled]
    tops = [f"extra-{number}" for number in range(4)]
    (template,) = (node for node in dumped if node["id"] == parent)
    changed = [{**node, "parents": [parent, *tops]} if node["id"] == recalled else node for node in dumped]
    changed += [{**template, "id": name} for name in tops]
    (folder / "nodes.jsonl").write_text("".join(json.dumps(node) + "\n" for node in changed))
    vectors = np.load(folder / "vectors.npy")
    np.save(folder / "vectors.npy", np.vstack([vectors, vectors[:4]]))
    page = "\n".join(inspect.inspect(copied, line["question_id"], line["case_id"]))
    depth = len(chain_above(above, parent))
    assert f"Depth {depth}: {parent}, extra-0, extra-1 and 2 more" in page


def chain_above(above: dict[str, list[str]], node: str) -> list[str]:
    """The ancestors of a node in a tree where each has one parent at most."""
    chain: list[str] = []
    while above[node]:
        (node,) = above[node]
        chain.append(node)
    return chain


def test_where_the_data_are_not_those_of_the_run_the_reason_stands_in_place_of_the_gold(copied: Path) -> None:
    record = json.loads((copied / "run.json").read_text())
    record["dataset"]["sha256"] = ["0" * 64]
    (copied / "run.json").write_text(json.dumps(record))
    line = lines_of(copied)[0]
    page = "\n".join(inspect.inspect(copied, line["question_id"], line["case_id"]))
    assert "Query     not shown: the data set differs from that of the run in sha256" in page
    assert "Gold      not shown" in page
    assert f"Answer    {line['answer']}" in page


def test_where_the_files_are_gone_the_command_that_gets_them_is_shown(copied: Path, tmp_path: Path) -> None:
    record = json.loads((copied / "run.json").read_text())
    record["data_status"] = "official"
    (copied / "run.json").write_text(json.dumps(record))
    line = lines_of(copied)[0]
    page = "\n".join(inspect.inspect(copied, line["question_id"], line["case_id"], tmp_path / "empty"))
    assert "Query     not shown" in page
    assert "no folder" in page


def test_a_failed_question_says_so_and_an_unscored_one_too(copied: Path) -> None:
    line = lines_of(copied)[0]
    path = copied / "cases" / line["case_id"] / "predictions.jsonl"
    failed = {**line, "items": [], "scores": [], "answer": "", "outcome": "error", "error": "read: broke"}
    path.write_text(json.dumps(failed) + "\n")
    shutil.rmtree(copied / "scores")
    page = "\n".join(inspect.inspect(copied, line["question_id"], line["case_id"]))
    assert "[error: read: broke]" in page
    assert "not scored" in page
    assert "nothing was recalled" in page


def test_an_id_of_several_cases_asks_for_the_case(copied: Path, capsys: Any) -> None:
    first = lines_of(copied)[0]
    other = next(path for path in sorted(copied.glob("cases/*")) if path.name != first["case_id"])
    shutil.copy(copied / "cases" / first["case_id"] / "items.jsonl", other / "items.jsonl")
    (other / "predictions.jsonl").write_text(json.dumps({**first, "case_id": other.name}) + "\n")
    assert verb("inspect", [str(copied), first["question_id"]]) == 2
    assert "--case" in capsys.readouterr().err
    assert verb("inspect", [str(copied), first["question_id"], "--case", other.name]) == 0


def test_what_is_no_run_or_no_question_is_one_line_on_standard_error(
    run_folder: Path, tmp_path: Path, capsys: Any
) -> None:
    assert verb("inspect", [str(tmp_path), "q"]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert verb("inspect", [str(run_folder), "no-such-question"]) == 2
    assert "no answer to a question 'no-such-question'" in capsys.readouterr().err


def test_the_structure_table_stands_beside_the_published_row_and_says_stand_in(run_folder: Path, capsys: Any) -> None:
    options = ["--tokens", "--revenue", "--trials", "20", "--manifold", "--evidence", "--triplets", "2"]
    assert verb("structure", [str(run_folder), *options]) == 0
    said = capsys.readouterr().out
    assert "STAND-IN: embedder, memory, reader" in said
    row = next(line for line in said.splitlines() if line.startswith("| SegTreeMem T5"))
    assert [cell.strip() for cell in row.split("|")][2] == "352"
    assert "| 0.96 " in row
    assert "ours without chains" in said
    assert "OTD on 20 random instances: 0 below beta/3 of the optimum" in said
    assert "as written" in said
    assert "multi-hit %" in said
    assert "no human" in said
    assert "STAND-IN: an engine without a model" in said


def test_published_shapes_are_found_for_the_papers_own_settings_only() -> None:
    found = published_shape("memtree", "multihop_rag")
    assert found == (
        "MemTree T5",
        {
            "nodes": 3164,
            "leaves": 1706,
            "inner": 1458,
            "depth_max": 13,
            "depth_mean": 4.9,
            "branching": 2.1,
            "height_to_width": 6.5,
        },
    )
    raptor = published_shape("raptor_segt", "realmem")
    assert raptor is not None
    assert "calls_per_leaf" not in raptor[1]
    assert raptor[1]["branching"] == 21.54
    assert published_shape("memtree", "locomo") is None
    assert published_shape("bm25", "locomo") is None
    for name in shapes.SEGTREE_T5:
        for dataset in shapes.SEGTREE_SETS:
            assert published_shape(name, dataset)


def test_a_memory_without_structure_is_told_in_one_line(copied: Path, capsys: Any) -> None:
    for path in copied.glob("cases/*/nodes.jsonl"):
        path.unlink()
    assert verb("structure", [str(copied)]) == 2
    assert "no finished case with nodes" in capsys.readouterr().err


HOSTILE = "\x1b[2J\x07 \x00 \r gone \x9b31m \u202e backwards \ud800"


def test_control_characters_are_shown_escaped(copied: Path, capsys: Any) -> None:
    path = next(copied.glob("cases/*/predictions.jsonl"))
    lines = read_lines(path)
    changed = [{**line, "answer": f"two\nlines 👩‍👧 {HOSTILE}"} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    assert verb("inspect", [str(copied), lines[0]["question_id"]]) == 0
    said = capsys.readouterr().out
    assert "two\nlines 👩‍👧 \\x1b[2J\\x07 \\x00 \\r gone \\x9b31m \\u202e backwards" in said
    assert not set(said) & set("\x1b\x07\x00\r\x9b\u202e")


def test_wrong_answers_are_listed_with_their_scores_and_counted(run_folder: Path, capsys: Any) -> None:
    assert verb("inspect", [str(run_folder), "--wrong", "--metric", "locomo_f1"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    (scores,) = (run_folder / "scores").glob("locomo_f1-*.jsonl")
    wrong = [line for line in read_lines(scores) if line["value"] < 0.5]
    heads = [line.split()[:3] for line in lines if not line.startswith(" ")]
    assert heads == [[f"{line['value']:.2f}", line["case_id"], line["question_id"]] for line in wrong]
    assert last == f"{len(wrong)} answers wrong or without a score, by {scores.stem}"
    assert verb("inspect", [str(run_folder), "--wrong", "--metric", "rouge"]) == 2
    assert "no scores of rouge; there are: judge_mem0" in capsys.readouterr().err


def test_the_prompt_is_shown_as_it_was_sent_and_not_when_that_is_not_known(copied: Path, capsys: Any) -> None:
    line = lines_of(copied)[0]
    asked = [str(copied), line["question_id"], "--case", line["case_id"], "--prompt"]
    assert verb("inspect", asked) == 0
    _, _, prompt = capsys.readouterr().out.partition("Prompt    [user]")
    (folder,) = (
        path.parent for path in copied.glob("cases/*/predictions.jsonl") if line["case_id"] in path.read_text()
    )
    texts = {item["key"]: item["text"] for item in read_lines(folder / "items.jsonl")}
    assert all(texts[key] in prompt for key in line["items"])
    record = json.loads((copied / "run.json").read_text())
    record["prompts"][record["reader"]["prompt"]] = "0" * 64
    (copied / "run.json").write_text(json.dumps(record))
    assert verb("inspect", asked) == 0
    assert "Prompt    not shown: the prompt file reader/locomo_official.md has changed" in capsys.readouterr().out


def test_a_question_or_the_list_is_asked_for_and_not_both(run_folder: Path) -> None:
    for words in ([], ["q1", "--wrong"]):
        with pytest.raises(SystemExit):
            verb("inspect", [str(run_folder), *words])


def test_the_page_of_a_run_on_ones_own_file_reads_that_file_again(tmp_path: Path) -> None:
    record = {
        "id": "harbour",
        "sessions": [{"id": "S1", "turns": [["Ines", "I work at the harbour office."], ["Tomas", "I work at home."]]}],
        "questions": [{"text": "Where does Ines work?", "answers": ["at the harbour office"], "evidence": ["S1:1"]}],
    }
    mine = tmp_path / "mine.jsonl"
    mine.write_text(json.dumps(record) + "\n", encoding="utf-8")
    settings = ["memory=bm25", "dataset=jsonl", f"dataset.file={mine}", "data.source=real", "data.unpinned=true"]
    assert run_single(configuration("config", f"results={tmp_path / 'results'}", *settings)) == 0
    (folder,) = (tmp_path / "results" / "runs" / "jsonl").iterdir()
    assert data_of(RunFolder(folder).record(), None).cases.ids == ("harbour",)
    page = "\n".join(inspect.inspect(folder, "q1"))
    assert "Where does Ines work?" in page
    assert "Gold      at the harbour office" in page


def test_a_worked_question_is_found_by_its_name_and_says_what_the_paper_shows_with_it(
    run_folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = lines_of(run_folder)[0]
    worked = {
        "mine": {
            "shows": "A detail kept",
            "dataset": "locomo",
            "case": line["case_id"],
            "question": line["question_id"],
        }
    }
    worked["other"] = {**worked["mine"], "dataset": "multihop_rag"}
    monkeypatch.setattr(inspect, "worked_questions", lambda: worked)
    assert verb("inspect", [str(run_folder), "--worked", "mine"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Shows     A detail kept\nRun       ")
    assert f"question {line['question_id']}" in said
    assert "Index  Score" in said
    assert verb("inspect", [str(run_folder), "--worked", "other"]) == 2
    assert "other is a question of multihop_rag; this run is on locomo" in capsys.readouterr().err
    assert verb("inspect", [str(run_folder), "--worked", "mien"]) == 2
    assert "did you mean mine?" in capsys.readouterr().err
    assert verb("inspect", [str(run_folder), "--worked"]) == 0
    assert "A detail kept" in capsys.readouterr().out


def test_the_worked_questions_are_those_of_memtree_and_segtreemem_by_their_ids() -> None:
    """MemTree Table A.8, SegTreeMem C.4 Q1 to Q5: ids alone, since the texts are the data sets'."""
    worked = inspect.worked_questions()
    assert list(worked) == ["memtree_a8", *(f"segtreemem_q{number}" for number in range(1, 6))]
    assert {one["dataset"] for one in worked.values()} == {"multihop_rag", "locomo"}
    assert all({"shows", "question"} <= set(one) and "?" not in str(one) for one in worked.values())


def test_nodes_of_consecutive_units_are_counted_by_the_order_of_the_history() -> None:
    """Six turns in five units; the root and `ab` are in order, `ace` skips units, a node of a single unit does not count."""
    ids, parents = ("root", "ace", "b", "a", "c", "e", "d", "b1"), ((), (0,), (0,), (1,), (1,), (1,), (0,), (2,))
    sources = ((), (), (), ("t0", "t1"), ("t3",), ("t5",), ("t4",), ("t2",))
    tree = Tree("one", ids, parents, (0,) * 8, ("node",) * 8, ids, sources, np.empty((8, 0), dtype=np.float32), False)
    turns = [f"t{number}" for number in range(6)]
    assert span_counts(tree, turns) == (1, 2)
    swapped = ["t0", "t1", "t3", "t5", "t2", "t4"]  # in this history a, c and e are neighbours
    assert span_counts(tree, swapped) == (2, 2)


def test_two_runs_are_compared_in_the_components_of_segtreemem_table_9(run_folder: Path, capsys: Any) -> None:
    results = run_folder.parents[2]
    settings = ["memory=similarity_tree", "memory.build.tau_nt=0.25", "data.size=6", "data.max_cases=2"]
    assert run_single(configuration("config", f"results={results}", *settings)) == 0
    (other,) = (results / "runs" / "locomo").glob("similarity_tree-*")
    assert verb("inspect", [str(run_folder), "--design", str(other)]) == 0
    said = capsys.readouterr().out
    assert "at least 0.11" in said  # each run's own threshold
    assert "at least 0.25\n" in said
    assert re.search(r"Reading\n  both .*k 10.*policy none", said)
    assert re.search(r"Memory unit\n  both .*ab_pair", said)
    counts = dict(re.findall(r"(\w+) +(\d+ of \d+) nodes of several units", said))
    ordered, several = counts["segtree_cosine"].split(" of ")
    assert ordered == several != "0"
    ordered, several = counts["similarity_tree"].split(" of ")
    assert int(ordered) < int(several)
    assert verb("inspect", [str(run_folder), "--design", str(run_folder / "cases")]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_a_memory_without_a_description_is_named_with_those_that_have_one(
    copied: Path, run_folder: Path, capsys: Any
) -> None:
    record = json.loads((copied / "run.json").read_text(encoding="utf-8"))
    record["memory"]["build"]["_target_"] = "memsys.systems.raptor.Raptor"
    (copied / "run.json").write_text(json.dumps(record), encoding="utf-8")
    assert verb("inspect", [str(run_folder), "--design", str(copied)]) == 2
    assert (
        "conf/designs.yaml has no memsys.systems.raptor.Raptor; there are: memsys.systems.segtree"
        in capsys.readouterr().err
    )


def test_every_description_of_a_tree_is_of_a_memory_in_conf_and_has_its_settings() -> None:
    from scripts.commands.inspect import _filled

    described = yaml.safe_load((Path(CONF) / "designs.yaml").read_text(encoding="utf-8"))
    built = [load_option("memory", name)["build"] for name in options("memory")]
    of_trees = [build for build in built if str(build["_target_"]).startswith("memsys.systems.segtree")]
    assert {build["_target_"] for build in of_trees} == set(described)
    assert len({len(one) for one in described.values()}) == 1
    for build in of_trees:
        assert all("{" not in _filled(text, build) for text in described[build["_target_"]].values())


@pytest.mark.parametrize(
    ("build", "why"),
    [
        ({"_target_": "subprocess.Popen", "args": ["touch", "made"]}, "no file of conf/memory names subprocess.Popen"),
        ({"_target_": "memsys.systems.memtree.MemTree", "inner": {"_target_": "os.system"}}, "names os.system"),
        ({**load_option("memory", "reference_mcp")["build"], "command": "touch"}, "starts or asks a program"),
        ({**load_option("memory", "released_mem0")["build"], "product": "/tmp/evil.py"}, "starts or asks a program"),
    ],
)
def test_asking_the_memory_of_a_received_run_runs_no_program_and_no_class_that_its_record_names(
    build: dict[str, Any], why: str, copied: Path, capsys: Any
) -> None:
    file = copied / "run.json"
    record = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**record, "memory": {**record["memory"], "build": build}}))
    assert verb("inspect", [str(copied), "--ask", "Who?", f"results={copied.parents[2]}"]) == 2
    assert why in capsys.readouterr().err


def test_a_memory_that_exits_when_it_is_closed_has_been_asked_nevertheless(
    run_folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: object) -> None:
        sys.exit("the end")

    kind = pydoc.locate(RunFolder(run_folder).record().memory["build"]["_target_"])
    asked = [str(run_folder), "--ask", "Who?", f"results={run_folder.parents[2]}"]
    monkeypatch.setattr(kind, "close", leave)
    assert verb("inspect", asked) == 0
    said = capsys.readouterr()
    assert "Query     Who?" in said.out
    assert "note: the memory failed to close (SystemExit: the end)" in said.err
    monkeypatch.setattr(kind, "read", leave)
    assert verb("inspect", asked) == 2
    assert "the memory cannot be asked: SystemExit: the end" in capsys.readouterr().err


def test_the_memory_of_a_run_recalls_for_any_text_what_it_recalled_for_that_question(
    run_folder: Path, copied: Path, capsys: Any
) -> None:
    """MemTree Tables A.5-A.7 ask queries of the authors; the memory is built again and read with their text."""
    line = lines_of(run_folder)[0]
    case = data_of(RunFolder(run_folder).record(), None).cases[0]
    text = next(question.text for question, _ in case.questions if question.id == line["question_id"])
    assert (
        verb("inspect", [str(run_folder), "--ask", text, "--case", line["case_id"], f"results={run_folder.parents[2]}"])
        == 0
    )
    said = capsys.readouterr().out
    assert f"Query     {text}" in said
    assert "Depth" in said
    assert verb("inspect", [str(run_folder), line["question_id"], "--case", line["case_id"]]) == 0
    shown = capsys.readouterr().out
    ids = [re.findall(r"^ {7}(\S+)  ", page, re.MULTILINE) for page in (said, shown)]
    assert ids[0] == ids[1] != []
    assert verb("inspect", [str(copied), "--ask", text, f"results={run_folder.parents[2]}"]) == 2
    assert "these settings make another run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        verb("inspect", [str(run_folder), line["question_id"], "profile=smoke"])
