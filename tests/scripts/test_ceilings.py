"""The command that lays errata over the scores of a finished run."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from eval.files.store import RunError, read_lines, write_lines
from scripts.commands.ceilings import main
from scripts.door import Lab
from tests.scripts.commands import composed, reproduce

pytestmark = pytest.mark.slow


def test_a_run_is_scored_with_and_without_the_errors_of_a_csv_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab("profile=smoke", "data.size=10", f"results={tmp_path}", "protocol.judges=[]", "executor=threads")
    scored = lab.score(lab.ask("recency", "locomo"), ["locomo_f1"])
    folder = scored.answers.folder
    (scores,) = folder.glob("scores/locomo_f1-*.jsonl")
    predictions = [line for path in sorted(folder.glob("cases/*/predictions.jsonl")) for line in read_lines(path)]
    answerable = {question.key for question in scored.answers.questions if question.answerable}
    wrong = [
        (line["case_id"], line["question_id"])
        for line in read_lines(scores)
        if line["value"] < 0.5 and (line["case_id"], line["question_id"]) in answerable
    ]
    write_lines(scores, [{**line, "value": 0.9} for line in read_lines(scores)])
    first, second = (
        next(line for line in predictions if (line["case_id"], line["question_id"]) == key) for key in wrong[:2]
    )
    errata = tmp_path / "mine.csv"
    with errata.open("w", encoding="utf-8", newline="") as handle:
        rows = [("case", "question", "gold"), (*wrong[0], first["answer"]), (*wrong[1], "")]
        csv.writer(handle).writerows(rows)
    assert second["outcome"] == "answered"
    assert main([str(folder), "--scores", "locomo_f1", "--errata", str(errata)]) == 0
    said = capsys.readouterr().out
    whole = next(line for line in said.splitlines() if line.startswith("| recency | all")).split(" | ")
    n = len(predictions)
    assert whole[2:4] == [str(n), "2"]
    assert whole[4].startswith("0.900")
    assert whole[5].startswith("0.900")
    assert whole[6].startswith(f"{(0.9 * (n - 2) + 1) / (n - 1):.3f}")  # one is right now, and the other has no answer
    assert whole[7] == f"{(n - 2) / n:.3f}"
    assert "ABOVE ITS CEILING" in whole[8]
    assert "STAND-IN" in said
    errata.write_text("case,question,gold\nnobody,q1,x\n", encoding="utf-8")
    with pytest.raises(RunError, match="name none of its"):
        main([str(folder), "--scores", "locomo_f1", "--errata", str(errata)])


def test_a_table_marks_the_cells_above_their_ceiling_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ["table=segtreemem_t4", "columns=[locomo]", "only=[bm25, nothing]"]
    settings = ["profile=smoke", "data.size=10", f"results={tmp_path}", "executor=threads", *table]
    assert reproduce(composed("reproduce", settings)) == 0
    (folder,) = (tmp_path / "runs" / "locomo").glob("bm25-*")
    (scores,) = folder.glob("scores/locomo_f1-*.jsonl")
    values = {(line["case_id"], line["question_id"]): line["value"] for line in read_lines(scores)}
    share = sum(values.values()) / len(values)
    assert share > 0.1
    wrong = sorted(values)[: len(values) - int(share * len(values)) + 1]  # the sound ones are fewer than the score
    errata = tmp_path / "mine.csv"
    with errata.open("w", newline="") as handle:
        csv.writer(handle).writerows([("case", "question", "gold"), *((*key, "") for key in wrong)])
    capsys.readouterr()
    assert reproduce(composed("reproduce", [*settings, f"errata={errata}", "print=plain"])) == 0
    (bm25, nothing, *_) = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("| BM25 |", "| No memory |"))
    )
    assert f"ABOVE ITS CEILING {1 - len(wrong) / len(values):.3f}" in bm25
    assert "CEILING" not in nothing
    plain, marked = sorted((tmp_path / "tables").glob("*.md"), key=lambda file: len(file.name))
    assert marked.stem == f"{plain.stem}-errata-mine", "the table without errata is kept"
    errata.write_text("case,question,gold\nnone,none,\n")
    assert reproduce(composed("reproduce", [*settings, f"errata={errata}"])) == 2
    assert "names no question of this table" in capsys.readouterr().err
