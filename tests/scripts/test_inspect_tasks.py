"""Our data sets and memories in Inspect: prompts, scores and means are those of our own runs."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: pip install 'memsys-bench[inspect]'")

from inspect_ai import eval as inspect_eval
from inspect_ai.model import ModelOutput
from inspect_ai.solver import solver

from eval.files.store import RunError
from memsys.interface import Recall
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import Completion
from memsys.systems.bm25 import BM25
from scripts.command.inspect_tasks import TASKS, locomo, remember
from scripts.lab import inspect_tasks as tasks
from scripts.lab.lab import Lab, Scored


def log_of(made: Any, folder: Path, **more: Any) -> Any:
    (log,) = inspect_eval(made, model="mockllm/model", display="none", log_dir=str(folder / "logs"), **more)
    return log


def ours(folder: Path, memory: str, dataset: str) -> Scored:
    lab = Lab("profile=smoke", f"results={folder}")
    return lab.score(lab.ask(memory, dataset), judges=[])


@pytest.mark.parametrize(("memory", "dataset"), [("bm25", "locomo"), ("memtree", "realmem"), ("recency", "personamem")])
def test_scores_and_their_mean_are_those_of_our_run(memory: str, dataset: str, tmp_path: Path) -> None:
    settings = f"profile=smoke results={tmp_path}"
    log = log_of(TASKS[dataset](memory=memory, reader="ours", settings=settings), tmp_path)
    assert log.status == "success"
    scored = ours(tmp_path, memory, dataset)
    assert {each.name for each in log.results.scores} == set(scored.cells)
    for each in log.results.scores:
        cell = scored.cells[each.name]
        mean = cell.estimate()
        assert mean is not None
        assert each.metrics["weighted_mean"].value == pytest.approx(mean.mean, abs=1e-5)
        found = {
            (sample.metadata["case"], sample.metadata["question"]): sample.scores[each.name].value
            for sample in log.samples
        }
        scores = {key: value for key, value in found.items() if value == value}
        assert scores == pytest.approx(cell.scores, abs=1e-6)
        assert len(found) == len(scored.answers.questions)


def test_data_sets_are_tasks_whose_metadata_hold_no_gold_and_the_answer_key_is_refused(tmp_path: Path) -> None:
    for name in ("quality_choice", "factconsolidation", "beam_100k"):
        made = TASKS[name](settings=f"profile=smoke results={tmp_path}")
        assert len(made.dataset) > 0, name
        assert set(made.dataset[0].metadata) == {"case", "question", "category"}
    assert locomo is TASKS["locomo"]
    for control in ("gold_evidence", "oracle_editor"):
        with pytest.raises(RunError, match="answer key"):
            remember(control, "locomo", "inspect", ["profile=smoke", f"results={tmp_path}"])


def test_ones_own_agent_answers_from_what_was_recalled(tmp_path: Path) -> None:
    seen: list[str] = []

    def agent() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            seen.append(state.messages[-1].text)
            state.output = ModelOutput.from_content("mine", "a guess")
            return state

        return solve

    made = locomo(settings=f"profile=smoke results={tmp_path}", agent=solver("mine")(agent)())
    log = log_of(made, tmp_path, limit=2)
    assert [sample.output.completion for sample in log.samples] == ["a guess"] * 2
    assert all(any(sample.input in shown for shown in seen) for sample in log.samples)
    assert all(len(shown) > 500 for shown in seen), "the recalled text stands in the prompt"


def test_a_read_that_fails_is_an_error_of_its_sample_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failed = BM25.read, "q1"

    def broken(self: BM25, question: Any) -> Any:
        if question.id.endswith(failed):
            raise ValueError("planted")
        return read(self, question)

    monkeypatch.setattr(BM25, "read", broken)
    log = log_of(locomo(reader="ours", settings=f"profile=smoke results={tmp_path}"), tmp_path)
    errors = [sample for sample in log.samples if sample.error is not None]
    assert errors
    assert all("planted" in sample.error.message and sample.id.endswith(failed) for sample in errors)
    assert len(log.samples) == 48
    assert all(each.scored_samples == 48 - len(errors) for each in log.results.scores)


def test_a_memory_that_answers_or_gives_up_asks_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def agent() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            state.output = ModelOutput.from_content("mine", "a guess")
            return state

        return solve

    read = BM25.read
    own = {"q1": Recall((), answer="own words"), "q2": Recall((), aborted="walked out")}
    monkeypatch.setattr(BM25, "read", lambda self, each: own.get(each.id.rpartition("_")[2]) or read(self, each))
    made = locomo(settings=f"profile=smoke results={tmp_path}", agent=solver("mine")(agent)())
    log = log_of(made, tmp_path, limit=4)
    seen = {each.id.rpartition("_")[2]: (each.output.completion, each.store.get(tasks.OUTCOME)) for each in log.samples}
    assert seen.pop("q1") == ("own words", "answered")
    assert seen.pop("q2") == ("", "aborted")
    assert set(seen.values()) == {("a guess", "answered")}


@pytest.mark.parametrize("stopped", ["empty", "refused"])
def test_an_empty_reply_of_our_reader_is_an_answer_and_no_reply_is_an_error(
    stopped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(self: ExtractiveLLM, request: Any) -> Future[Completion]:
        reply = Future[Completion]()
        reply.set_result(Completion("", stopped=stopped))
        return reply

    monkeypatch.setattr(ExtractiveLLM, "submit", submit)
    log = log_of(locomo(reader="ours", settings=f"profile=smoke results={tmp_path}"), tmp_path, limit=1)
    (sample,) = log.samples
    assert (sample.error is None) is (stopped == "empty")
    assert sample.output.completion == ""


def test_only_our_reader_needs_endpoints_and_another_reader_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[bool] = []

    def lab(*settings: str, probe: bool) -> Lab:
        probed.append(probe)
        raise RunError("enough")

    monkeypatch.setattr(tasks, "Lab", lab)
    for reader in ("inspect", "ours"):
        with pytest.raises(RunError, match="enough"):
            remember("bm25", "locomo", reader, [])
    assert probed == [False, True]
    with pytest.raises(RunError, match="reader must be inspect or ours, found 'hers'"):
        remember("bm25", "locomo", "hers", [])


def test_a_paid_model_wants_a_spending_cap(tmp_path: Path) -> None:
    paid = ["models.memory=gpt-4o-mini", "network=true", f"results={tmp_path}"]
    with pytest.raises(RunError, match="max_usd"):
        remember("memtree", "locomo", "inspect", paid)
