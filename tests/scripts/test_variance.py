"""The variance command on run folders: builds of one memory found by what they share, and what it proposes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from eval.analysis.costs import BUILD
from eval.files.store import RunError, read_lines, write_lines
from eval.statistics.variance import components
from scripts.commands.variance import Tokens, _designs_text, _proposals, _tokens, main
from scripts.door import Lab

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Two builds of two memories on the sample, and a third build under another seed; BM25's scores differ from build to build."""
    results = tmp_path_factory.mktemp("results")
    settings = ("profile=smoke", f"results={results}", "data.size=24", "protocol.judges=[]", "executor=threads")
    folders: dict[str, list[Path]] = {}
    for more in (("build.replicates=2",), ("build.seed=7",)):
        lab = Lab(*settings, *more)
        for name in ("bm25", "recency"):
            scored = lab.score(lab.ask(name, "locomo"), ["locomo_f1"])
            folders.setdefault(name, []).extend(run.folder for run in scored.answers.runs)
    rng = np.random.default_rng(2)
    for folder in folders["bm25"]:
        (path,) = folder.glob("scores/locomo_f1-*.jsonl")
        lines = read_lines(path)
        write_lines(
            path, [{**line, "value": float(np.clip(line["value"] + rng.normal(0, 0.3), 0, 1))} for line in lines]
        )
    return folders


def test_builds_of_one_memory_are_found_by_what_they_share_and_decomposed(
    runs: dict[str, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*map(str, [*runs["bm25"], *runs["recency"]]), "--scores", "locomo_f1", "--detect", "0.2"]) == 0
    said = capsys.readouterr().out
    assert "STAND-IN" in said
    assert "Fewer than five histories" in said
    tables = [line.split(" | ") for line in said.splitlines() if line.startswith("| ")]
    ours = {cells[0].strip("| "): cells for cells in tables[:4]}
    assert set(ours) == {"", "bm25", "recency", "recency − bm25"}
    assert ours["bm25"][1].endswith("× 3 × 1")
    answer, steady = ours["bm25"][7], ours["recency"][7]
    assert float(answer.split()[0]) == pytest.approx(0.2, abs=0.08)
    assert float(steady.split()[0]) == 0.0
    assert ours["bm25"][8].startswith("–")
    proposals = said[said.index("Cheapest design") :]
    assert "× 1 × 1" in next(line for line in proposals.splitlines() if line.startswith("| recency |"))


def test_runs_that_cannot_be_put_side_by_side_are_refused(runs: dict[str, list[Path]], tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"expected one file of scores by bleu"):
        main([str(runs["bm25"][0]), "--scores", "bleu"])
    other = tmp_path / "other"
    record = json.loads((runs["bm25"][0] / "run.json").read_text(encoding="utf-8"))
    other.mkdir()
    (other / "run.json").write_text(json.dumps({**record, "dataset": {"name": "dmr"}}), encoding="utf-8")
    with pytest.raises(RunError, match="different data sets"):
        main([str(runs["bm25"][0]), str(other), "--scores", "locomo_f1"])


def test_a_pair_leaves_out_what_either_memory_lacks(
    runs: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, name in enumerate(("bm25", "recency")):
        shutil.copytree(runs[name][0], tmp_path / name)
        (path,) = (tmp_path / name).glob("scores/locomo_f1-*.jsonl")
        lines = read_lines(path)
        write_lines(path, [*lines[:place], *lines[place + 1 :]])
    assert main([str(tmp_path / "bm25"), str(tmp_path / "recency"), "--scores", "locomo_f1"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert {cells[0].strip("| "): cells[2] for cells in rows[1:4]} == {
        "bm25": "1",
        "recency": "1",
        "recency − bm25": "2",
    }


def test_the_note_about_few_histories_names_the_rows_that_have_few() -> None:
    rng = np.random.default_rng(0)
    draws = {(f"c{case}", f"q{at}"): rng.random((2, 1)) for case in range(6) for at in range(4)}
    few = {key: own for key, own in draws.items() if key[0] < "c4"}
    said = {name: components(own) for name, own in (("many", draws), ("few", few))}
    text = "\n".join(_designs_text([(name, parts, Tokens(1.0, 1.0, 1.0), 0) for name, parts in said.items()]))
    assert "Fewer than five histories (few): they are not a sample" in text


@pytest.mark.parametrize("failed", [True, False])
def test_half_a_build_or_a_failed_one_makes_no_history_cheaper(
    runs: dict[str, list[Path]], tmp_path: Path, failed: bool
) -> None:
    """The tokens were divided by all started histories, as if the spoilt one had cost its part."""
    folder = tmp_path / "run"
    shutil.copytree(runs["bm25"][0], folder)
    spoilt, whole = sorted((folder / "cases").iterdir())
    for case, tokens in ((spoilt, 10), (whole, 700)):
        lines = read_lines(case / "effort.jsonl")
        write = {**next(line for line in lines if line["phase"] == "write"), "tokens_in": tokens, "tokens_out": 0}
        write_lines(case / "effort.jsonl", [write, *(line for line in lines if line["phase"] not in BUILD)])
    assert _tokens(folder, "locomo_f1").build == 355.0
    if failed:
        first, *others = read_lines(spoilt / "predictions.jsonl")
        error = {**first, "outcome": "error", "error": "build: ModelError: of a write"}
        write_lines(spoilt / "predictions.jsonl", [error, *others])
    else:
        (spoilt / "case.json").unlink()
    assert _tokens(folder, "locomo_f1").build == 700.0


def test_scores_that_do_not_differ_detect_nothing_and_plan_nothing() -> None:
    """Six histories of wrong answers alone were said to detect 0.000, and one question to be enough."""
    draws = {(f"c{case}", f"q{at}"): np.zeros((2, 1)) for case in range(6) for at in range(4)}
    subject = [("wrong", components(draws), Tokens(1.0, 1.0, 1.0), 0)]
    assert "| wrong | none (" in "\n".join(_designs_text(subject))
    assert "| wrong | none: the scores do not differ |" in "\n".join(_proposals(subject, 0.05, 6, 4))
