"""What a run cost: sums and means from its effort lines, by phase and in dollars."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_history import history

from data_loaders.schema import Question
from eval.analysis.costs import Usage, costs, dollars, phases
from eval.files.store import read_lines, write_lines
from eval.report.cell import Asked, Cell, Column
from eval.report.rendering import markdown
from eval.report.tables import Row, Table
from eval.running.case_log import effort
from eval.running.loop import run_all
from eval.running.run import Run
from memsys.interface import Recall
from memsys.llm.meter import Ledger, Metered
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import LLM, Completion, Request
from memsys.systems.bm25 import BM25


def spent(phase: str, subject: str, *calls: tuple[str, int, int], embedded: int = 0, cpu: float = 0.0) -> Any:
    """An effort line of calls given as (purpose, tokens in, tokens out), each of half a second."""
    ledger = Ledger()
    for number, (purpose, tokens_in, tokens_out) in enumerate(calls):
        ledger.count(ledger.calls, purpose)
        ledger.add_completion(purpose, Completion("x", tokens_in, tokens_out, seconds=0.5, cached=number > 0), number)
    if embedded:
        ledger.add_embedding(embedded, 0.25)
    return effort("c", phase, subject, 3, ledger, cpu, tokens=40 if phase == "answer" else 0)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    lines = [
        spent("embed", "", embedded=1000),
        replace(spent("write", "u1", ("m.add", 100, 10), cpu=0.125), held=7),
        spent("write", "u2", ("m.add", 300, 30), ("m.link", 200, 20), cpu=0.125),
        spent("read", "q1", cpu=0.5),
        spent("read", "q2", ("m.plan", 50, 5), cpu=0.5),
        spent("answer", "q1", ("reader.answer", 60, 6)),
        spent("answer", "q2", ("reader.answer", 60, 6)),
    ]
    write_lines(tmp_path / "cases" / "c" / "effort.jsonl", lines)
    judged = [spent("judge", name, ("judge.mem0", 20, 2)) for name in ("q1", "q2")]
    write_lines(tmp_path / "scores" / "judge_mem0-0123.effort.jsonl", judged)
    (tmp_path / "scores" / "judge_mem0-0123.json").write_text(json.dumps({"model": "theirs"}), encoding="utf-8")
    return tmp_path


def test_means_are_by_unit_and_by_question(run_folder: Path) -> None:
    found = costs(run_folder)
    assert (found.units, found.questions) == (2, 2)
    assert found.build_tokens_per_unit == (110 + 330 + 220) / 2
    assert found.embedding_tokens_per_unit == 500
    assert found.held == 7, "of the largest memory, not of the last"
    assert (found.calls_per_insertion, found.calls_per_query) == (1.5, 0.5)
    assert found.inference_tokens == (55 + 66 + 66) / 2
    assert found.recalled_tokens == 40
    assert found.recall_seconds_p50 == pytest.approx((0.5 + 1.0) / 2)
    assert found.recall_seconds_sum_p50 == pytest.approx((0.5 + 1.0) / 2)


def test_units_that_are_embedded_in_advance_cost_once(tmp_path: Path) -> None:
    lines = [spent("embed", "", embedded=1000), spent("write", "u1", embedded=400), spent("write", "u2", embedded=600)]
    write_lines(tmp_path / "cases" / "c" / "effort.jsonl", lines)
    assert costs(tmp_path).embedding_tokens_per_unit == 500
    assert costs(tmp_path).build_seconds == 0.5, "two embedded units of a quarter of a second"
    assert {one.phase: one.embedding_tokens for one in phases(tmp_path)} == {"embed": 0, "write": 1000}
    write_lines(tmp_path / "cases" / "c" / "effort.jsonl", lines[:2])
    assert costs(tmp_path).embedding_tokens == 1000, "a build that broke off has bought all of them"


def test_vectors_from_batches_cost_their_discounted_price_once(tmp_path: Path) -> None:
    def noted(line: Any) -> Any:
        return replace(line, notes={"batch.embedding_tokens": line.embedding_tokens})

    lines = [noted(spent("embed", "", embedded=1000)), noted(spent("write", "u1", embedded=400))]
    write_lines(tmp_path / "cases" / "c" / "effort.jsonl", lines)
    prices = {"embedder": lambda *tokens: tokens[0]}
    paid = [sum(part or 0.0 for part in dollars(cost, prices)) for cost in phases(tmp_path)]
    assert paid == [300, 200]


def test_the_probe_is_never_batched_so_a_batch_discounts_the_memorys_share_alone(tmp_path: Path) -> None:
    ledger = Ledger()
    for number, (tokens, role) in enumerate(((100, ""), (300, ""), (1000, "probe"))):
        ledger.add_call("m.step", role)
        ledger.add_completion("m.step", Completion("x", tokens, tokens // 10), number, role)
    line = effort("c", "read", "q1", 1, ledger, 0.0)
    write_lines(tmp_path / "cases" / "c" / "effort.jsonl", [replace(line, notes={"batch": 1})])
    prices = {
        "memory": ModelSettings("m", usd_per_million_in=1000.0, usd_per_million_out=1000.0).cost,
        "probe": ModelSettings("p", usd_per_million_in=10.0, usd_per_million_out=10.0).cost,
    }
    (read,) = phases(tmp_path)
    # Memory 440 tokens, probe 1100; one of the memory's two calls, 220 tokens, at half the price.
    assert sum(part or 0.0 for part in dollars(read, prices)) == pytest.approx(0.44 + 0.011 - 0.11)


def test_costs_of_some_questions_are_of_their_reads_and_answers_and_of_the_whole_build(run_folder: Path) -> None:
    found = costs(run_folder, frozenset({("c", "q2")}))
    assert (found.units, found.questions) == (2, 1)
    assert (found.inference_tokens, found.calls_per_query, found.recall_seconds_p50) == (55 + 66, 1, 1.0)
    assert found.build_tokens_per_unit == costs(run_folder).build_tokens_per_unit
    assert costs(run_folder, frozenset({("other", "q2")})).questions == 0


def test_phases_add_up_what_each_step_and_each_judge_cost(run_folder: Path) -> None:
    found = {one.phase: one for one in phases(run_folder)}
    assert list(found) == ["embed", "write", "read", "answer", "judge_mem0"]
    write = found["write"]
    assert (write.role, write.steps, write.calls, write.sent) == ("memory", 2, 3, 2)
    assert (write.tokens_in, write.tokens_out, write.own_cpu_seconds) == (600, 60, 0.25)
    assert write.provider_seconds == 1.5
    assert found["embed"].embedding_tokens == 1000
    assert (found["answer"].role, found["judge_mem0"].role) == ("reader", "theirs")
    verdicts = [spent("judge", name, ("judge.mem0", 20, 2)) for name in ("q1", "q2", "q3")]
    write_lines(run_folder / "scores" / "judge_mem0-0123.effort.jsonl", verdicts)
    assert [one.steps for one in phases(run_folder) if one.phase == "judge_mem0"] == [3], "a changed file is read again"


def test_a_table_reads_the_effort_lines_of_a_run_once(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        "eval.analysis.costs.read_lines", lambda path, **fields: read.append(path.name) or read_lines(path, **fields)
    )
    for _ in range(2):
        costs(run_folder)
        phases(run_folder)
    assert sorted(read) == ["effort.jsonl", "judge_mem0-0123.effort.jsonl"]


def test_money_is_printed_by_phase_and_unknown_prices_are_called_unknown(run_folder: Path) -> None:
    asked = Asked("c", "q1", "", "c", True, False)
    column = Column("toy", "Toy", "F1", (asked,))
    row = Row("m", "M", (Cell(column, {}, ()),), {"toy": run_folder})
    prices = {
        "memory": ModelSettings("m", usd_per_million_in=1000.0, usd_per_million_out=2000.0).cost,
        "reader": ModelSettings("r").cost,
        "theirs": ModelSettings("j", usd_per_million_in=500.0, usd_per_million_out=500.0).cost,
        "embedder": ModelSettings("e", usd_per_million_in=10.0).cost,
    }
    said = markdown(Table("t", "T", (), (column,), (row,), prices=prices))
    dollars = {
        line.split(" | ")[1]: line.rstrip(" |").split(" | ")[-1] for line in said.splitlines() if "| M | " in line
    }
    assert dollars["embed"] == "0.0100"
    assert dollars["write"] == "0.7200"
    assert dollars["read"] == "0.0600"
    assert dollars["answer"] == "unknown"
    assert dollars["judge_mem0"] == "0.0220"
    free = markdown(Table("t", "T", (), (column,), (row,)))
    assert "| M | write | 2 | 3 | 2 | 600 | 0 | 60 | 0 | 0.25 | 1.50 | 1.50 | – |" in free


def test_what_a_memory_asks_of_the_probe_is_paid_at_the_price_of_the_probe(tmp_path: Path) -> None:
    ledger = Ledger()
    for number, (purpose, tokens, role) in enumerate((("m.plan", 100, ""), ("m.probe", 1000, "probe"))):
        ledger.add_call(purpose, role)
        ledger.add_completion(purpose, Completion("x", tokens, tokens // 10), number, role)
    write_lines(tmp_path / "cases" / "c" / "effort.jsonl", [effort("c", "read", "q1", 1, ledger, 0.0)])
    (read,) = phases(tmp_path)
    assert (read.calls, read.tokens_in, read.tokens_out) == (2, 1100, 110)
    assert read.by_role == {"memory": Usage(1, 100, 10, 0), "probe": Usage(1, 1000, 100, 0)}
    prices = {
        "memory": ModelSettings("m", usd_per_million_in=1000.0, usd_per_million_out=1000.0).cost,
        "probe": ModelSettings("p", usd_per_million_in=10.0, usd_per_million_out=10.0).cost,
    }
    column = Column("toy", "Toy", "F1", (Asked("c", "q1", "", "c", True, False),))
    row = Row("m", "M", (Cell(column, {}, ()),), {"toy": tmp_path})
    printed = markdown(Table("t", "T", (), (column,), (row,), prices=prices))
    assert "| M | read | 1 | 2 | 2 | 1100 | 0 | 110 | 0 | 0.00 | 0.00 | 0.00 | 0.1210 |" in printed  # 0.11 + 0.011


def test_a_run_keeps_the_tokens_of_its_probe_apart(make_run: Callable[..., Run]) -> None:
    run = make_run([history(questions=2)], build=Probing)
    services = replace(run.services, probe=Metered(ExtractiveLLM(), "probe"))
    run_all([replace(run, services=services)])
    read = next(cost for cost in phases(run.folder) if cost.phase == "read")
    assert (read.by_role["memory"].calls, read.by_role["probe"].calls) == (2, 2)
    assert read.by_role["probe"].tokens_in > 0


class Probing(BM25):
    """Asks the memory's model and the probe once for each question."""

    def __init__(self, llm: LLM, probe: LLM) -> None:
        super().__init__(k=3)
        self.llm, self.probe = llm, probe

    def read(self, question: Question) -> Recall:
        for model in (self.llm, self.probe):
            model.submit(Request((("user", question.text),), "m.probe")).result()
        return super().read(question)


def table_of(run_folder: Path) -> str:
    column = Column("toy", "Toy", "F1", (Asked("c", "q1", "", "c", True, False),))
    return markdown(Table("t", "T", (), (column,), (Row("m", "M", (Cell(column, {}, ()),), {"toy": run_folder}),)))


def test_a_finished_case_without_its_effort_file_is_named_instead_of_counted_as_free(run_folder: Path) -> None:
    for case in ("c", "d"):
        (run_folder / "cases" / case).mkdir(exist_ok=True)
        (run_folder / "cases" / case / "predictions.jsonl").touch()
    found = costs(run_folder)
    assert found.missing == "effort of 1 of 2 cases missing"
    assert (found.inference_tokens, found.calls_per_insertion, found.recall_seconds_p50) == (None, None, None)
    said = table_of(run_folder)
    assert "| M | effort of 1 of 2 cases missing | – | – |" in said.partition("## Costs on Toy (")[2].partition("##")[0]
    assert "| M | effort of 1 of 2 cases missing | – | – |" in said.partition("by phase")[2]
    (run_folder / "cases" / "d" / "effort.jsonl").touch()
    assert costs(run_folder).missing == ""
    assert "missing" not in table_of(run_folder)


def test_tokens_a_question_are_printed_with_a_shared_prefix_in_full_and_once(run_folder: Path) -> None:
    path = run_folder / "cases" / "c" / "effort.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["phase"] == "read" and line["subject"] == "q2":
            line["notes"] = {"xmemory.prefix_again": 30, "other": 5}
    write_lines(path, lines)
    found = costs(run_folder)
    assert found.inference_tokens == (55 + 66 + 66) / 2
    assert found.inference_tokens_prefix_once == (55 + 66 + 66 - 30) / 2
    assert "| 94 (78 with shared prefixes once) |" in table_of(run_folder)


def test_replies_to_a_memory_that_were_cut_are_counted_beside_its_parse_failures(tmp_path: Path) -> None:
    ledger = Ledger()
    for number, stopped in enumerate(("cut", "cut in thought", "refused", "")):
        ledger.add_completion("m.add", Completion("x", stopped=stopped), number)  # type: ignore[arg-type]
    answering = Ledger()
    answering.add_completion("reader.answer", Completion("x", stopped="cut"), 0)
    lines = [effort("c", "write", "u1", 1, ledger, 0.0), effort("c", "answer", "q1", 1, answering, 0.0)]
    write_lines(tmp_path / "cases" / "c" / "effort.jsonl", lines)
    assert costs(tmp_path).cut == 2
    column = Column("d", "D", "f1", (Asked("c", "q1", "", "c", True, False),))
    row = Row("m", "M", ("pending",), runs={"d": tmp_path})
    printed = markdown(Table("t", "T", (), (column,), (row,))).splitlines()
    header, values = (
        [cell.strip() for cell in line.split("|")] for line in (printed[at] for at in _costs_table(printed))
    )
    assert values[header.index("replies cut")] == "2"


def _costs_table(printed: list[str]) -> tuple[int, int]:
    """Header and first row of the table of costs."""
    header = next(at for at, line in enumerate(printed) if "replies cut" in line)
    return header, header + 2
