"""The command that lays errata over the scores of a finished run."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.store import RunError, read_lines, write_lines
from scripts.commands.ceilings import main
from scripts.door import Lab

pytestmark = pytest.mark.slow


def test_a_run_is_scored_with_and_without_the_errors_of_a_csv_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab("profile=smoke", "data.size=10", f"results={tmp_path}", "protocol.judges=[]", "executor=threads")
    scored = lab.score(lab.ask("recency", "locomo"), ["locomo_f1"])
    folder = scored.answers.folder
    (scores,) = folder.glob("scores/locomo_f1-*.jsonl")
    write_lines(scores, [{**line, "value": 1.0} for line in read_lines(scores)])
    predictions = [
        line for path in sorted(folder.glob("cases/*/predictions.jsonl")) for line in read_lines(path, again=False)
    ]
    first, second = predictions[:2]
    errata = tmp_path / "mine.csv"
    errata.write_text(
        f"case,question,gold\n{first['case_id']},{first['question_id']},zebra\n{second['case_id']},{second['question_id']},\n",
        encoding="utf-8",
    )
    assert main([str(folder), "--scores", "locomo_f1", "--errata", str(errata)]) == 0
    said = capsys.readouterr().out
    whole = next(line for line in said.splitlines() if line.startswith("| recency | all")).split(" | ")
    n = len(predictions)
    assert whole[2:4] == [str(n), "2"]
    assert whole[4].startswith("1.000")
    assert whole[5].startswith("1.000")
    assert whole[6].startswith(f"{(n - 2) / (n - 1):.3f}")  # `zebra` was not answered, and the other has no answer
    assert whole[7] == f"{(n - 2) / n:.3f}"
    assert "ABOVE ITS CEILING" in whole[8]
    assert "STAND-IN" in said
    errata.write_text("case,question,gold\nnobody,q1,x\n", encoding="utf-8")
    with pytest.raises(RunError, match="name none of its"):
        main([str(folder), "--scores", "locomo_f1", "--errata", str(errata)])
