"""The notebooks as they are committed: each runs in a kernel of its own that reaches this machine only, and shows what its runs hold."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from eval.files.run_folder import RunFolder
from eval.files.store import read_lines
from eval.statistics.power import detectable
from eval.statistics.stats import difference
from scripts.assembly.run_folders import data_of

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
INTERVALS = re.compile(r"<td>\[-?\d\.\d{3}, -?\d\.\d{3}\]</td>\s*<td>\{3 cases(: \d\.\d{3}, \d\.\d{3})?\}</td>")
"""By question, then why there is none by history, side by side in a row of a table."""
SECONDS = 120
"""That a cell may take on a machine that does other things, too."""

Notebook = Any
Execute = Callable[[Notebook, Path], Notebook]

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Notebook:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code(notebook: Notebook) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def execute(tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> Execute:
    """Runs a notebook in a folder, in this interpreter, without anything of the user's: settings, history or other kernels."""
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    guard = ROOT / "tests" / "conftest.py"
    lines = [
        "import runpy, sys",
        f"sys.path.insert(0, {str(ROOT)!r})",
        f"runpy.run_path({str(guard)!r})",
        "del sys.path[0]",
    ]
    (startup / "0_offline.py").write_text("\n".join(lines), encoding="utf-8")
    kernel = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    start = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": start, "display_name": "Python 3", "language": "python"}), encoding="utf-8")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("MEMSYS_RESULTS", str(results))
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def run(notebook: Notebook, folder: Path) -> Notebook:
        where = {"metadata": {"path": str(folder)}}
        return NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=where).execute()

    return run


def shown(notebook: Notebook, name: str) -> str:
    """Everything that a cell printed or showed as text: tables as HTML, Markdown as it is."""
    (cell,) = [cell for cell in notebook.cells if cell.id == name]
    parts = []
    for output in cell.outputs:
        shapes = output.get("data", {})
        parts.append(output.get("text") or shapes.get("text/html") or shapes.get("text/markdown") or "")
    return "\n".join(parts)


def picture(notebook: Notebook, name: str) -> tuple[int, int]:
    """Width and height of the PNG that a cell shows."""
    (cell,) = [cell for cell in notebook.cells if cell.id == name]
    (found,) = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
    raw = base64.b64decode(found)
    assert raw.startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", raw[16:24])
    return width, height


def run_of(results: Path, memory: str) -> Path:
    (folder,) = (results / "runs" / "locomo").glob(f"{memory}-*")
    return folder


def scores_of(run: Path, metric: str) -> dict[tuple[str, str], float]:
    """The values that there are, by case and question."""
    (path,) = [path for path in (run / "scores").glob(f"{metric}-*.jsonl") if ".effort" not in path.name]
    lines = [line for line in read_lines(path) if line["value"] is not None]
    return {(line["case_id"], line["question_id"]): line["value"] for line in lines}


def lines_of(run: Path, name: str) -> Iterator[dict[str, Any]]:
    for path in sorted(run.glob(f"cases/*/{name}.jsonl")):
        yield from read_lines(path)


def nodes_of(run: Path, case_id: str) -> list[dict[str, Any]]:
    return read_lines(run / "cases" / case_id / "nodes.jsonl")


# --- make notebooks ----------------------------------------------------------------------------------------------------


def test_running_them_anew_records_no_times_of_cells(execute: Execute, tmp_path: Path) -> None:
    cell = {"cell_type": "code", "id": "sum", "metadata": {}, "source": "1 + 1", "outputs": [], "execution_count": None}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = tmp_path / "notebooks" / "one.ipynb"
    path.parent.mkdir()
    path.write_text(json.dumps({"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    made = ["make", "notebooks", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.installed"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    (done,) = code(read(path))
    assert done.outputs[0].data["text/plain"] == "2"
    assert done.metadata == {}


# --- as committed ------------------------------------------------------------------------------------------------------


def test_there_are_three() -> None:
    assert [path.name for path in NOTEBOOKS] == [
        "1_first_run.ipynb",
        "2_comparing_systems.ipynb",
        "3_inside_a_memory.ipynb",
    ]


@each_notebook
def test_a_notebook_is_committed_as_it_ran_from_top_to_bottom(path: Path) -> None:
    """`make notebooks` writes them so."""
    notebook = read(path)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code(notebook)] == [*range(1, len(code(notebook)) + 1)]
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert not [cell.id for cell in notebook.cells if cell.metadata.keys() - {"execution"} or cell.get("attachments")]
    assert notebook.metadata.kernelspec.name == "python3"
    assert path.stat().st_size < 300_000


@each_notebook
def test_cells_have_names_that_last(path: Path) -> None:
    names = [cell.id for cell in read(path).cells]
    assert len(names) == len(set(names))
    assert not [name for name in names if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name)]


@each_notebook
def test_a_notebook_names_no_place_on_a_machine(path: Path) -> None:
    assert not re.findall(
        r"(?<![\w.}])(?:/|~/|[A-Z]:\\)(?:home|Users|tmp|root|work|mnt|opt)\b", path.read_text("utf-8")
    )


@each_notebook
def test_the_stand_in_is_named_before_the_first_number(path: Path) -> None:
    first = read(path).cells[0]
    assert first.cell_type == "markdown"
    assert "offline stand-in" in first.source


def test_all_begin_alike() -> None:
    starts = {next(cell.source for cell in read(path).cells if cell.id == "set-up") for path in NOTEBOOKS}
    assert len(starts) == 1


def test_a_notebook_begins_in_a_folder_outside_the_checkout(tmp_path: Path) -> None:
    start = code(read(NOTEBOOKS[0]))[0].source.partition("lab = Lab")[0]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MEMSYS_RESULTS": ""}
    made = [sys.executable, "-c", f"{start}\nprint(results)"]
    said = subprocess.run(made, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(tmp_path / "results")


@pytest.mark.parametrize("folder", [ROOT, FOLDER], ids=["root", "notebooks"])
@pytest.mark.parametrize("given", ["", "elsewhere"])
def test_results_go_where_those_of_the_command_go_unless_told_otherwise(folder: Path, given: str) -> None:
    start = code(read(NOTEBOOKS[0]))[0].source.partition("lab = Lab")[0]
    said = subprocess.run(
        [sys.executable, "-I", "-c", f"{start}\nimport eval\nprint(results)\nprint(Path(eval.__file__).parents[1])"],
        cwd=folder,
        env={**os.environ, "MEMSYS_RESULTS": given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == [given or str(ROOT / "results"), str(ROOT)]


# --- as executed -------------------------------------------------------------------------------------------------------


def test_a_notebook_that_reaches_for_the_network_fails(execute: Execute, tmp_path: Path) -> None:
    reaching = 'import socket\n\nsocket.create_connection(("192.0.2.1", 80), timeout=0.1)'
    cell = nbformat.v4.new_code_cell(reaching)  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=[cell])  # type: ignore[no-untyped-call]
    with pytest.raises(CellExecutionError, match="NetworkUsed"):
        execute(notebook, tmp_path)


def test_the_first_run_shows_what_its_files_say(execute: Execute, results: Path) -> None:
    done = execute(read(FOLDER / "1_first_run.ipynb"), ROOT)
    run = run_of(results, "bm25")
    assert "STAND-IN" in shown(done, "run")
    assert "48 questions" in shown(done, "run")
    assert "cases/conv-901/predictions.jsonl" in shown(done, "files")
    first = next(lines_of(run, "predictions"))
    assert repr(first["answer"]) in shown(done, "prediction")
    assert shown(done, "items").count("<tr>") == len(first["items"])
    table = shown(done, "mean")
    for metric in ("judge_mem0", "locomo_f1", "mem0_f1", "bleu1_mem0"):
        values = scores_of(run, metric).values()
        row = next(row for row in table.split("<tr") if f"<td>{fmean(values):.3f}</td>" in row)
        assert INTERVALS.search(row)
        assert re.findall(r"<td>(\d+)</td>", row) == ["3", str(len(values)), "0", "0", "0"]
    answers = [line for line in lines_of(run, "effort") if line["phase"] == "answer"]
    row = next(row for row in shown(done, "costs").split("<tr") if "<td>answer</td>" in row)
    assert f"<td>{sum(line['tokens_in'] for line in answers)}</td>" in row
    whole = shown(done, "table")
    assert "- STAND-IN: reader, judge filled by offline engines" in whole
    assert re.search(r"^\| BM25 \| \d\.\d{3} \{3 cases: ", whole, re.MULTILINE)


def test_the_comparison_shows_paired_differences_and_a_front(execute: Execute, results: Path) -> None:
    done = execute(read(FOLDER / "2_comparing_systems.ipynb"), FOLDER)
    runs = {title: run_of(results, title.lower()) for title in ("Recency", "BM25", "TiMem")}
    scores = {title: scores_of(run, "locomo_f1") for title, run in runs.items()}
    second, earlier = "BM25", scores["BM25"]
    for first, later in ((title, own) for title, own in scores.items() if title != second):
        gap = {key: later[key] - earlier[key] for key in earlier}
        row = next(row for row in shown(done, "differences").split("<tr") if f"{first} − {second}" in row)
        assert f"<td>{fmean(gap.values()):+.3f}</td>" in row
        assert INTERVALS.search(row)
        assert re.findall(r"<td>(\d+)</td>", row) == ["48", str(sum(value != 0.0 for value in gap.values()))]
        assert len(re.findall(r"<td>[01]\.\d{4}</td>", row)) == 1, "the p of the permutation test"
        seen = next(row for row in shown(done, "needed").split("<tr") if f"{first} − {second}" in row)
        power = detectable(difference(list(later.values()), [earlier[key] for key in later], ["one"] * 48).sampling)
        assert f"<td>{power:.3f}</td>" in seen
        by_history = next(row for row in shown(done, "histories").split("<tr") if "conv-902" in row)
        own = fmean(value for (case_id, _), value in gap.items() if case_id == "conv-902")
        shown_gaps = [
            float(cell) for cell in re.findall(r"<td>(-?[\d.]+)</td>", by_history)
        ]  # pandas drops zeros at the end
        assert any(abs(cell - own) < 0.0006 for cell in shown_gaps), by_history
    assert "STAND-IN" in shown(done, "run")
    width, height = picture(done, "pareto")
    assert min(width, height) > 500
    panels = shown(done, "pareto-table").split("## ")[1:]
    assert len(panels) == 3
    recalled = {
        title: fmean(line["context_tokens"] for line in lines_of(run, "effort") if line["phase"] == "answer")
        for title, run in runs.items()
    }
    means = {title: fmean(found.values()) for title, found in scores.items()}
    for title in runs:
        row = next(row for row in panels[0].splitlines() if f"| {title} |" in row)
        beaten = any(
            recalled[other] <= recalled[title] and means[other] >= means[title] for other in runs if other != title
        )
        assert row.startswith("|  |" if beaten else "| * |")
        assert f"| {means[title]:.3f} | [" in row
        assert row.endswith(f"| {recalled[title]:,.4g} | 48 |")


def test_the_look_inside_follows_a_failure_to_its_verdict(execute: Execute, results: Path) -> None:
    done = execute(read(FOLDER / "3_inside_a_memory.ipynb"), FOLDER)
    run = run_of(results, "segtree_cosine")
    nodes = nodes_of(run, "conv-901")
    parents = {parent for node in nodes for parent in node["parents"]}
    row = next(row for row in shown(done, "shape").split("<tr") if "conv-901" in row)
    assert [f"{len(nodes)}", f"{len(nodes) - len(parents)}"] == re.findall(r"<td>(\d+)(?:\.0+)?</td>", row)[:2]
    assert "STAND-IN" in shown(done, "run")
    assert min(picture(done, "tree")) > 500
    recalled = sum(len(line["items"]) for line in lines_of(run, "predictions"))
    rows = [re.findall(r"<td>([\d.]+)</td>", row) for row in shown(done, "levels").split("<tr")]
    assert sum(float(row[0]) for row in rows if row) == recalled
    judged, covered = scores_of(run, "judge_mem0"), scores_of(run, "evidence@10")
    data = {
        (case.id, one.id): (one, gold)
        for case in data_of(RunFolder(run).record(), None).cases
        for one, gold in case.questions
    }
    known = [key for key, (_, gold) in data.items() if gold.answerable and gold.evidence]
    wrong = [key for key in known if judged[key] == 0.0]
    assert f"wrong answers: {len(wrong)} of {len(known)} answerable" in shown(done, "failures")
    page = shown(done, "question")
    (key,) = [key for key, (question, _) in data.items() if f"Query     {question.text}\n" in page]
    assert key in wrong
    assert covered[key] == min(covered[one] for one in wrong)
    gold = data[key][1]
    assert f"Gold      {gold.answers[0]}\n" in page
    assert all(f"Evidence  {turn}  " in page for turn in gold.evidence)
    (line,) = [line for line in lines_of(run, "predictions") if (line["case_id"], line["question_id"]) == key]
    assert all(f"{score:.4f}" in shown(done, "recall") for score in line["scores"])
    assert f"Answer    {line['answer']}\n" in shown(done, "answer")
    assert re.search(r"judge_mem0-\w+  #0  0\.0000", shown(done, "answer"))
    above = [node for node in nodes_of(run, key[0]) if set(node["sources"]) & set(gold.evidence)]
    words = {word for word in re.findall(r"\w+", gold.answers[0].lower()) if word not in ("the", "before")}
    held = {node["id"]: len(words & set(re.findall(r"\w+", node["text"].lower()))) for node in above}
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in shown(done, "evidence").split("<tr")]
    assert {row[0]: (int(row[3]), int(row[4])) for row in rows if row} == {
        node["id"]: (len(node["sources"]), held[node["id"]]) for node in above
    }
