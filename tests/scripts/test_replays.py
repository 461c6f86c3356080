"""`replay=true` with memories whose state is another program's: finished runs are shown, others refused without a call."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from eval.files.store import RunError
from scripts.commands.mock_memory import Service
from scripts.lab.lab import Lab
from scripts.mock.endpoint import Mock, application, serving
from scripts.mock.memory_store import Store
from scripts.setup.options import load_option
from tests.rigs.campaign.trial import results
from tests.scripts.commands import composed, conformance, run_single

SMALL = ("profile=smoke", "network=false", "data.max_cases=1", "data.size=4")


def memory_at(url: str, folder: Path) -> str:
    option = load_option("memory", "reference_http")
    file = folder / "reference_http.yaml"
    file.write_text(yaml.safe_dump({**option, "build": {**option["build"], "base_url": url}}))
    return str(file)


@pytest.mark.slow
def test_a_replay_shows_a_finished_run_of_a_service_and_refuses_an_unfinished_one_without_asking_it(
    tmp_path: Path,
) -> None:
    service = Service(Store())
    with serving(service.application()) as url:
        memory, settings = memory_at(url, tmp_path), (*SMALL, f"results={tmp_path}")
        first = Lab(*settings)
        cells = {name: cell.scores for name, cell in first.score(first.ask(memory, "locomo")).cells.items()}
        asked = len(service.asked)
        replay = Lab(*settings, "replay=true")
        again = replay.score(replay.ask(memory, "locomo"))
        assert {name: cell.scores for name, cell in again.cells.items()} == cells
        (path,) = again.answers.folder.rglob("predictions.jsonl")
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
        with pytest.raises(RunError, match=r"not finished: 1 of 1 history, 1 question without .* without replay=true"):
            replay.ask(memory, "locomo")
        assert len(service.asked) == asked, "neither asked the service"


@pytest.mark.slow
def test_a_replay_of_a_tool_server_that_was_never_run_is_refused_before_it_is_started(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the run of reference_mcp on locomo is not finished: 1 of 1 history"):
        Lab(*SMALL, f"results={tmp_path}", "replay=true").ask("reference_mcp", "locomo", command="/nowhere")


@pytest.mark.slow
def test_conformance_of_a_service_cannot_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = composed("config", [f"results={tmp_path}", "memory=reference_http", "replay=true"])
    assert conformance(cfg) == 2
    assert "conformance asks the service of reference_http itself" in capsys.readouterr().err


@pytest.mark.slow
def test_a_copy_of_the_one_cache_file_replays_a_finished_run_in_a_new_folder(tmp_path: Path) -> None:
    mock = Mock()
    with serving(application(mock)) as url:
        models = [f"models.{role}=mock" for role in ("memory", "reader", "judge", "embedder")]
        common = [
            *(
                "profile=smoke",
                "memory=dense",
                "dataset=locomo",
                "data.max_cases=1",
                "data.size=4",
                "endpoint.probe=false",
            ),
            *(f"endpoint.base_url={url}", "endpoint.label=mock", *models),
        ]
        code = run_single(composed("config", [*common, "network=true", f"results={tmp_path / 'first'}"]))
        asked = sum(mock.arrivals.values())
        (tmp_path / "second").mkdir()
        shutil.copy(tmp_path / "first" / "cache.sqlite", tmp_path / "second" / "cache.sqlite")  # and nothing beside it
        replay = [*common, "replay=true", f"results={tmp_path / 'second'}"]
        assert run_single(composed("config", replay)) == code
    assert asked > 4
    assert sum(mock.arrivals.values()) == asked
    assert results(tmp_path / "second") == results(tmp_path / "first")
