"""Batch mode from the command line's side: the same scores as live, by the provider's batch API or by a file that is carried over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from eval.analysis.costs import dollars, phases
from memsys.jsons import decoded, encoded
from scripts.commands.batch import main
from scripts.door import Lab, Scored
from scripts.mock.endpoint import Mock, application, serving
from scripts.setup.launch import CONF

pytestmark = pytest.mark.slow

QUICK = ("endpoint.batch.idle=0.1", "endpoint.batch.poll=0.05")


def lab_of(url: str, results: Path, *settings: str) -> Lab:
    models = [f"models.{role}=m" for role in ("memory", "reader", "judge")]
    return Lab(
        "profile=smoke",
        "data.size=12",
        f"results={results}",
        f"endpoint.base_url={url}",
        "endpoint.label=mock",
        *models,
        *settings,
    )


def scored(url: str, results: Path, *settings: str) -> Scored:
    lab = lab_of(url, results, *settings)
    return lab.score(lab.ask("bm25", "locomo"))


def verdicts(scores: Scored) -> list[bytes]:
    return [path.read_bytes() for name, path in sorted(scores.files[0].items())]


def test_a_run_in_batches_has_the_scores_of_a_live_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mock = Mock()
    with serving(application(mock)) as url:
        live = verdicts(scored(url, tmp_path / "live"))
        assert verdicts(scored(url, tmp_path / "batch", "endpoint.mode=batch", *QUICK)) == live
    assert len(mock.batches.batches) >= 2  # answers, then judgements
    assert main(["--cache", str(tmp_path / "batch" / "cache.sqlite"), "status"]) == 0
    assert re.search(r"^replies not yet in the cache +0$", capsys.readouterr().out, re.MULTILINE)


def test_a_reply_costs_what_was_paid_for_it_whatever_the_mode_of_the_command_that_prints(tmp_path: Path) -> None:
    def printed(results: str, *settings: str) -> float:
        lab = lab_of(url, tmp_path / results, "prices={m: {in: 1000, out: 1000}}", "max_usd=1e6", "yes=true", *settings)
        table = lab.table(rated := lab.score(lab.ask("bm25", "locomo")))
        assert any("prices are discounted" in line for line in table.caption) == (results == "batch")
        parts = [dollars(cost, lab.models.prices) for cost in phases(rated.answers.folder)]
        return sum(part or 0.0 for phase in parts for part in phase)

    batches = ("endpoint.mode=batch", *QUICK)
    with serving(application(Mock())) as url:
        live = printed("live")
        assert printed("live", *batches) == live
        assert printed("batch", *batches) == pytest.approx(live / 2)
        assert printed("batch") == pytest.approx(live / 2)


@pytest.mark.parametrize("primary", ["config", "reproduce", "sweep", "figures", "budgets"])
def test_a_command_does_not_log_the_requests_of_an_http_library(primary: str) -> None:
    with initialize_config_dir(CONF, version_base="1.3"):
        settings = compose(primary, return_hydra_config=True)
    assert settings.hydra.job_logging.root.level == "WARNING"


def test_calls_carried_to_another_machine_and_back_give_the_scores_of_a_live_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mock, collect = Mock(), ("endpoint.mode=collect", "endpoint.probe=false", "endpoint.batch.idle=0.1")
    cache = ["--cache", str(tmp_path / "away" / "cache.sqlite")]
    with serving(application(mock)) as url:
        live = verdicts(scored(url, tmp_path / "live"))
        for phase in ("answers", "judgements"):
            scored(url, tmp_path / "away", *collect)
            assert main([*cache, "export", str(tmp_path / phase)]) == 0
            run_elsewhere(mock, tmp_path / phase)
            assert main([*cache, "import", str(tmp_path / f"{phase}.out")]) == 0
        assert verdicts(scored(url, tmp_path / "away", *collect)) == live
    assert mock.batches.batches == {}
    assert "12 replies kept, 0 calls failed (still open), 0 are not open here, 0 open calls are left" in (
        capsys.readouterr().out
    )


def run_elsewhere(mock: Mock, file: Path) -> None:
    """What `vllm run-batch` does: a line with the response for each line of the file."""
    lines = []
    for line in file.read_bytes().splitlines():
        call = decoded(line)
        status, body = mock.batches.reply(call["url"], encoded(call["body"]))
        response = {"status_code": status, "request_id": "elsewhere", "body": body}
        lines.append(encoded({"id": "vllm", "custom_id": call["custom_id"], "response": response, "error": None}))
    Path(f"{file}.out").write_bytes(b"\n".join(lines))


def test_an_import_says_what_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from eval.files.store import RunError
    from memsys.llm.batching.journal import Journal, JournalledCall

    journal = Journal(tmp_path / "cache.sqlite")
    journal.add(
        [
            JournalledCall("a", "/chat/completions", b'{"model": "m"}'),
            JournalledCall("b", "/chat/completions", b'{"model": "m"}'),
        ]
    )
    journal.close()
    cache = ["--cache", str(tmp_path / "cache.sqlite")]
    replies = tmp_path / "replies.jsonl"
    failed = {"custom_id": "b", "response": {"status_code": 500, "body": {}}, "error": None}
    unknown = {"custom_id": "z", "response": {"status_code": 200, "body": {"choices": [1]}}, "error": None}
    replies.write_bytes(b"\n".join(map(encoded, (failed, unknown))))
    assert main([*cache, "import", str(replies)]) == 1
    assert "0 replies kept, 1 call failed (still open), 1 are not open here, 2 open calls are left" in (
        capsys.readouterr().out
    )
    replies.write_text("no replies")
    with pytest.raises(RunError, match="holds no reply"):
        main([*cache, "import", str(replies)])
