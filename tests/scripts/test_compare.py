"""`compare`, `list` and `completion`: what they print about small runs on the shipped sample."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eval.analysis.fidelity import compared
from eval.files.store import RunError, read_lines, write_lines
from eval.report.cell import Asked, Cell, Column
from scripts.command import verb
from scripts.commands import compare, completion
from scripts.commands import list as listing
from scripts.commands.compare import tallies, telling, telling_questions
from scripts.door import Lab
from scripts.door import compare as difference
from scripts.lab.fidelity import rendered
from scripts.setup.launch import composed
from scripts.setup.options import options
from tests.scripts.commands import run_single

SETTINGS = ("profile=smoke", "protocol.judges=[]")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def said(results: Path) -> str:
    """What a comparison of two memories prints."""
    capture = pytest.MonkeyPatch()
    lines: Any = []
    capture.setattr("builtins.print", lambda *texts, **_: lines.append(" ".join(map(str, texts))))
    capture.setattr(compare, "print_table", lambda table, choice: lines.append(f"TABLE {choice}"))
    try:
        names = ["bm25", "recency", "--limit", "12", "--questions", "2", *SETTINGS, f"results={results}"]
        assert verb("compare", names) == 0
    finally:
        capture.undo()
    return "\n".join(lines)


@pytest.mark.slow
def test_it_prints_what_the_door_computes(said: str, results: Path) -> None:
    lab = Lab(*SETTINGS, "data.size=12", f"results={results}")
    bm25, recency = (lab.score(lab.ask(name, "locomo")) for name in ("bm25", "recency"))
    gap = difference(recency, bm25, "locomo_f1")
    assert f"Recency: {gap.mean:+.3f} [" in said
    first, second = bm25.cells["locomo_f1"].scores, recency.cells["locomo_f1"].scores
    wins, losses = sum(first[key] > second[key] for key in first), sum(first[key] < second[key] for key in first)
    assert re.search(rf"all +{wins}/{losses}/{12 - wins - losses}\n", said)
    assert wins > losses


def test_a_question_without_both_scores_is_no_tie_and_the_largest_gap_is_told_first(tmp_path: Path) -> None:
    scores = {"first": [1.0, 0.0, 0.25, 0.5, 1.0, None], "second": [0.0, 0.5, 1.0, 0.5, None, 1.0]}
    column = Column("toy", "Toy", "judge", tuple(Asked("c", f"q{n}", "ab"[n % 2], "c", True, False) for n in range(6)))
    cells = []
    for name, values in scores.items():
        known = [(f"q{n}", value) for n, value in enumerate(values) if value is not None]
        lines = [{"case_id": "c", "question_id": key, "repeat": 0, "value": value} for key, value in known]
        write_lines(tmp_path / f"{name}.jsonl", lines)
        cells.append(Cell(column, {}, (tmp_path / f"{name}.jsonl",)))
    first, second = cells
    assert tallies(first, second) == {"all": (1, 2, 1), "a": (1, 1, 0), "b": (0, 1, 1)}
    told = [(question.question_id, scores) for question, scores in telling(cells, 2)]
    assert told == [("q0", (1.0, 0.0)), ("q2", (0.25, 1.0))]


@pytest.mark.slow
def test_no_line_before_the_folders_is_wider_than_columns_says(results: Path, capsys: Any, monkeypatch: Any) -> None:
    for given, width in (("60", 80), ("90", 90), (None, 100)):
        monkeypatch.setenv("COLUMNS", given) if given else monkeypatch.delenv("COLUMNS", raising=False)
        assert verb("compare", ["bm25", "recency", "--limit", "12", *SETTINGS, f"results={results}"]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if str(results) not in line]
        assert max(map(len, lines)) == width


@pytest.mark.slow
def test_the_telling_questions_show_question_gold_and_every_answer(said: str, results: Path) -> None:
    _, _, shown = said.partition("The 2 most telling questions, F1 (LoCoMo official)")
    assert [len(re.findall(rf"^ +{mark} ", shown, re.MULTILINE)) for mark in ("Q", "gold")] == [2, 2]
    scores = [float(score) for score in re.findall(r"^ +(\d\.\d\d) +(?:BM25|Recency): ", shown, re.MULTILINE)]
    assert len(scores) == 4
    assert scores[0] != scores[1]
    assert str(next((results / "runs" / "locomo").glob("recency-*"))) in shown


@pytest.mark.slow
def test_memories_that_no_question_tells_apart_are_said_to_be_so(tmp_path: Path) -> None:
    lab = Lab(*SETTINGS, "data.size=2", f"results={tmp_path}")
    same = lab.score(lab.ask("bm25", "locomo"))
    (line,) = telling_questions([same, same], "locomo_f1", 5)
    assert line == "No question tells them apart, F1 (LoCoMo official)"


@pytest.mark.slow
def test_what_was_asked_by_run_is_not_asked_again(said: str, results: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in results.rglob("predictions.jsonl")}
    cfg = composed("config", ["memory=bm25", "data.size=12", *SETTINGS, f"results={results}"])
    assert run_single(cfg) == 0
    assert before.keys() == set(results.rglob("predictions.jsonl"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bm25"], "two memories or more"),
        (["bm25", "bm25"], "each named once"),
        (["bm25", "bm52"], "did you mean"),
        (["bm25", "recency", "--metric", "rouge"], "no metric 'rouge'; there are: locomo_f1"),
    ],
)
def test_a_wrong_command_is_one_line(words: Any, message: str, results: Path, capsys: Any) -> None:
    assert verb("compare", [*words, "--limit", "12", *SETTINGS, f"results={results}"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_list_names_every_file_with_its_title(capsys: Any) -> None:
    for kind, group in listing.GROUPS.items():
        assert verb("list", [kind]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == options(group)
    assert verb("list", ["memories"]) == 0
    assert re.search(r"^bm25 +BM25$", capsys.readouterr().out, re.MULTILINE)


def test_list_shows_the_runs(said: str, results: Path, capsys: Any) -> None:
    assert verb("list", ["runs", "--results", str(results)]) == 0
    text = capsys.readouterr().out
    assert "recency" in text
    assert "2 runs," in text


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["lis"], {"list"}),
        (["list", "ta"], {"tables"}),
        (["run", "memory", "=", "bm"], {"bm25"}),
        (["reproduce", "table", "=", "memtree_t1"], {"memtree_t1"}),
        (["compare", "bm25", "min"], {"mine"}),
        (["compare", "bm25", "recency", "--dataset", "real"], {"realmem", "realmem_end"}),
        (["inspect", "results/"], {"results/runs/locomo/bm25-0123"}),
    ],
)
def test_a_shell_completes_verbs_names_and_runs(typed: Any, offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "conf" / "memory").mkdir(parents=True)
    (tmp_path / "conf" / "memory" / "mine.yaml").touch()
    (tmp_path / "results" / "runs" / "locomo" / "bm25-0123").mkdir(parents=True)
    words = " ".join(f"'{word}'" for word in ["memsys-bench", *typed])
    ask = f"COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _memsys_bench; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    command = ["bash", "--norc", "-c", f"{completion.script('bash')}\n{ask}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} == offered


def test_zsh_gets_the_same_function_behind_its_own_start() -> None:
    assert completion.script("zsh").endswith(completion.script("bash"))
    assert completion.script("zsh").startswith("autoload")


@pytest.mark.slow
def test_an_unknown_name_raises_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no memory called"):
        compare.compare(["bm25", "nobody"], [*SETTINGS, f"results={tmp_path}"], None, 1, "narrow")
    assert not [*tmp_path.rglob("predictions.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize(("second", "said"), [("recency", "take other units"), ("nobody", "no memory called")])
def test_fidelity_refuses_a_second_memory_before_the_first_is_built(
    second: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb("fidelity", ["mem0_v3", second, "dataset=locomo", *SETTINGS, f"results={tmp_path}"]) == 2
    assert said in capsys.readouterr().err
    assert not [*tmp_path.rglob("predictions.jsonl")]


@pytest.mark.parametrize("names", [["bm25"], ["bm25", "recency", "segtree"]])
def test_fidelity_compares_exactly_two_memories(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        verb("fidelity", [*names, *SETTINGS])
    assert f"give two memories, such as mem0_v3 released_mem0; found {len(names)}" in capsys.readouterr().err


@pytest.mark.slow
def test_counts_that_never_differ_have_no_interval_of_a_share(tmp_path: Path) -> None:
    names = ["bm25", "recency", "dataset=locomo", "data.size=12", *SETTINGS, f"results={tmp_path}"]
    assert verb("fidelity", names) == 0
    (page,) = (tmp_path / "fidelity").glob("*.md")
    said = page.read_text(encoding="utf-8")
    assert "| embedding tokens | 0.000 | 0.000 | +0.000 | 12 |" in said
    assert re.search(r"\| tokens recalled \| .* \[", said)
    folders = [next((tmp_path / "runs" / "locomo").glob(f"{name}-*")) for name in names[:2]]
    (failed, *_) = sorted(folders[0].glob("cases/*/predictions.jsonl"))
    first, *others = failed.read_text(encoding="utf-8").splitlines()
    broken = {**json.loads(first), "outcome": "error", "items": [], "scores": [], "answer": ""}
    failed.write_text("\n".join([json.dumps(broken), *others, ""]), encoding="utf-8")
    assert {row.gap.n for row in compared(*folders, 10).per_question} == {11}, (
        "a failed read recalled nothing that is known"
    )
    sides = cast(
        "Any",
        [
            SimpleNamespace(title=name, dataset=SimpleNamespace(title="LoCoMo", questions=[0] * 12))
            for name in names[:2]
        ],
    )
    page_text = rendered(sides, cast("Any", [SimpleNamespace(cells={})] * 2), compared(*folders, 10), ())
    assert "11 of 12 questions were read by both." in page_text
    consolidations = list(folders[0].glob("cases/*/effort.jsonl"))
    for path in consolidations:
        write_lines(
            path,
            [{**line, "calls": {"build": 6}} if line["phase"] == "consolidate" else line for line in read_lines(path)],
        )
    units = compared(*folders, 10).per_unit[0].gap.n
    steps = sum(line["phase"] == "consolidate" for path in consolidations for line in read_lines(path))
    assert steps
    assert compared(*folders, 10).purposes[0] == {"build": 6 * steps / units}, (
        "a memory that consolidates calls there alone"
    )
    for record in folders[0].glob("cases/*/case.json"):
        record.write_text(json.dumps({**json.loads(record.read_text(encoding="utf-8")), "cluster": "the only one"}))
    both = compared(*folders, 10)
    assert {row.gap.clusters for row in (*both.per_unit, *both.per_question)} == {1}, (
        "cases may be parts of one history"
    )
    for case in folders[0].glob("cases/*"):
        write_lines(case / "nodes.jsonl", [{"kind": "passage", "text": "We hiked."}])
    stored = [value for what, value in compared(*folders, 10).overlaps.items() if what.startswith("texts stored")]
    assert stored == [None, None], "what the second stores is unknown"
