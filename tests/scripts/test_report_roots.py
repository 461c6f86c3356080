"""Finished runs find their data again: a run on samples in the samples, another in the first folder that has its files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_loaders.schema import DataError
from eval.files.run_folder import RunFolder, RunRecord
from eval.files.store import read_lines
from scripts.assembly import run_folders
from scripts.assembly.run_folders import data_of
from scripts.command import verb
from scripts.setup.launch import CONF, composed
from tests.scripts.commands import run_single

SAMPLE = Path(CONF).parent / "data_loaders/samples/locomo.json"


def test_public_data_and_ones_own_may_lie_in_different_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(record: Any, root: Path | None) -> Any:
        if root != Path("mine"):
            raise DataError(f"not in {root}")
        return SimpleNamespace(cases=["case"])

    monkeypatch.setattr(run_folders, "data_of", found)
    assert list(run_folders._cases_of({}, (Path("public"), Path("mine")))) == ["case"]
    with pytest.raises(DataError, match="not in public"):
        run_folders._cases_of({}, (Path("mine2"), Path("public")))


@pytest.mark.slow
def test_a_data_folder_is_for_the_runs_on_real_files_and_not_for_those_on_samples(tmp_path: Path, capsys: Any) -> None:
    data, results = tmp_path / "data", tmp_path / "results"
    (data / "locomo").mkdir(parents=True)
    (data / "locomo/locomo10.json").write_text(SAMPLE.read_text("utf-8") + "\n", encoding="utf-8")
    small = [f"results={results}", "memory=nothing", "data.size=2", "data.max_cases=1", "protocol.judges=[]"]
    real = ["data.source=real", f"data.root={data}", "data.unpinned=true"]
    assert run_single(composed("config", small)) == run_single(composed("config", [*small, *real])) == 0
    runs = {str(RunFolder(path).record().data_status): path for path in (results / "runs/locomo").iterdir()}
    assert runs.keys() == {"sample", "unpinned"}
    with pytest.raises(DataError, match="no such file"):
        data_of(RunFolder(runs["unpinned"]).record(), tmp_path)  # the real run does read the folder
    capsys.readouterr()
    for run in runs.values():
        (line,) = read_lines(next(run.glob("cases/*/predictions.jsonl")))[:1]
        assert verb("inspect", [str(run), line["question_id"], "--data", str(data)]) == 0
        assert "Gold  " in capsys.readouterr().out
        assert verb("export", [str(run), "--format", "mem0", "--to", str(tmp_path / "out"), "--data", str(data)]) == 0
    assert verb("report", [str(results), "--data", str(data)]) == 0
    assert "not shown" not in (results / "report/index.html").read_text("utf-8")


@pytest.mark.parametrize(("status", "source", "root"), [("unpinned", "real", "/mine"), ("sample", "sample", None)])
def test_a_run_on_samples_is_loaded_again_from_the_samples(
    status: Any, source: str, root: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[Any] = []
    found = SimpleNamespace(settings={})
    monkeypatch.setattr("scripts.assembly.datasets.data", lambda cut, option: wanted.append(cut) or found)
    known = {"name": "locomo", "transform": "none", "size": 2, "max_cases": None, "seed": 1}
    data_of(RunRecord(dataset=known, data_status=status), Path("/mine"))
    assert (wanted[0].source, wanted[0].root, wanted[0].size) == (source, root, 2)
