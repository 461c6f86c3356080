"""The card of a judge from the command line, with the offline engine, which should look bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.store import RunError
from scripts.commands.judge_card import main
from scripts.door import Lab

pytestmark = pytest.mark.slow


def test_the_card_of_the_stand_in_names_it_and_corrects_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["profile=smoke", "data.size=12", f"results={tmp_path}"]
    lab = Lab(*settings)
    run = lab.score(lab.ask("bm25", "locomo")).answers.folder
    assert main(["--judge", "mem0", "--limit", "5", "--run", str(run), *settings]) == 0
    printed = capsys.readouterr().out
    assert "STAND-IN" in printed
    assert "| an order to the judge | rejected | 5 |" in printed
    assert "Mean over kinds: rejects" in printed
    assert "answers accepted; " in printed


def test_a_judge_of_recalled_texts_has_no_card(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="it has no card"):
        main(["--judge", "realmem_memory", "--dataset", "realmem", "profile=smoke", f"results={tmp_path}"])
