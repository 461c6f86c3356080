"""The command that says where a memory loses its points, on real run folders of the sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval.files.store import RunError
from scripts.commands.losses import main
from scripts.door import Lab

pytestmark = pytest.mark.slow


def test_the_loss_of_gold_evidence_is_the_reader_s_and_a_memory_s_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab("profile=smoke", "data.size=20", f"results={tmp_path}", "protocol.judges=[]")
    runs = {name: lab.score(lab.ask(name, "locomo")).answers.folder for name in ("gold_evidence", "recency", "bm25")}
    for name, folder in runs.items():
        assert main([str(folder), "--evidence", str(runs["gold_evidence"]), "--scores", "locomo_f1", "--figure"]) == 0
        written = json.loads((tmp_path / "losses" / f"{folder.name}-locomo_f1.json").read_text(encoding="utf-8"))
        values = {step["name"]: step["value"] for step in written["steps"]}
        assert sum(values.values()) == pytest.approx(1.0, abs=1e-4)
        stem = f"losses-{folder.name}-locomo_f1"
        assert {path.suffix for path in (tmp_path / "figures").glob(f"{stem}.*")} == {".pdf", ".png", ".csv"}
        if name == "gold_evidence":
            assert {step for step, lost in values.items() if lost} <= {
                "reader",
                "abstention",
                "misread",
                "unknown",
                "score",
            }
        else:
            assert values["unknown"] > 0, (
                "these memories show no nodes, so what they did not recall may be stored or not"
            )
    assert "STAND-IN: reader filled by" in capsys.readouterr().out
    with pytest.raises(RunError, match=r"there are: .*locomo_f1"):
        main([str(runs["bm25"]), "--evidence", str(runs["gold_evidence"]), "--scores", "bleu"])
    with pytest.raises(RunError, match=rf"run memory=gold_evidence dataset=locomo .*{runs['gold_evidence'].name}"):
        main([str(runs["bm25"]), "--scores", "locomo_f1"])
    with pytest.raises(RunError, match="is a run of recency; run memory=gold_evidence"):
        main([str(runs["bm25"]), "--evidence", str(runs["recency"]), "--scores", "locomo_f1"])
