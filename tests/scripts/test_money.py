"""Spending: every model has a price before a cap holds, a plan is agreed to, and a cap leaves complete rows."""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eval.files.run_folder import read_efforts, read_predictions
from eval.files.store import RunError
from memsys.llm.pricing import ModelSettings, Purse, SpendingCapReached
from scripts.command import main, verb
from scripts.lab import lab
from scripts.mock.endpoint import Mock, application, serving
from scripts.settings.types import given_prices
from scripts.tables import layout
from tests.scripts.commands import composed, reproduce, run_single

PRICED = ModelSettings("m", usd_per_million_in=2.0, usd_per_million_cached=1.0, usd_per_million_out=10.0)


# --- the purse ----------------------------------------------------------------------------------------------------------


def test_cached_tokens_that_are_counted_beside_the_prompt_are_charged() -> None:
    assert PRICED.cost(1000, 0, 400) == pytest.approx((600 * 2 + 400 * 1) / 1e6)
    assert PRICED.cost(1000, 0, 2000) == pytest.approx((1000 * 2 + 2000 * 1) / 1e6)


def test_a_purse_reserves_as_much_more_as_a_server_billed_beyond_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    purse = Purse(1.0)
    together = [purse.reserve(0.01) for _ in range(3)]
    purse.settle(together[0], 0.05)
    assert purse.reserve(0.01).usd == pytest.approx(0.05)
    for late in together[1:]:  # under way when the first reply came: no reason to reserve more than that
        purse.settle(late, 0.05)
    again = purse.reserve(0.01)
    assert again.usd == pytest.approx(0.05)
    purse.settle(again, 0.07)
    assert purse.reserve(0.01).usd == pytest.approx(0.07)
    assert purse.reserve(0.01, "another model").usd == pytest.approx(0.01)
    assert purse.reserve(0.0).usd == 0.0, "a free model stays free"
    assert capsys.readouterr().err.count("bills more than was asked for") == 1


def test_a_server_that_bills_five_times_the_limit_passes_the_cap_by_its_first_call_alone() -> None:
    purse = Purse(0.30)

    def call() -> None:
        purse.settle(purse.reserve(0.002), 0.010)

    with pytest.raises(SpendingCapReached):
        deque((call() for _ in range(100)), 0)
    assert purse.spent <= 0.30
    assert purse.stop.startswith("Stopped at max_usd=0.3: 0.2900 USD spent; the same command with a higher max_usd")


def test_the_last_line_says_what_part_of_the_money_is_a_guess() -> None:
    purse = Purse(0.30)
    purse.settle(purse.reserve(0.10), 0.02)
    purse.settle(purse.reserve(0.10), None)
    purse.settle(purse.reserve(0.10), None)
    with pytest.raises(SpendingCapReached):
        purse.reserve(0.10)
    assert purse.stop.startswith(
        "Stopped at max_usd=0.3: 0.2200 USD spent (0.2000 of it the highest cost of calls without a known bill: 2); "
    )


def test_a_model_may_be_free_and_a_cached_token_costs_no_more_than_another() -> None:
    assert given_prices({"m": "free"}) == {
        "m": {"usd_per_million_in": 0.0, "usd_per_million_cached": 0.0, "usd_per_million_out": 0.0}
    }
    with pytest.raises(RunError, match="a cached token"):
        given_prices({"m": {"in": 1.0, "cached": 2.0, "out": 1.0}})
    with pytest.raises(RunError, match=r"must be a mapping of models or a file, found \['m'\]"):
        given_prices(["m"])  # type: ignore[arg-type]


# --- commands -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mock() -> Iterator[tuple[Mock, str]]:
    server = Mock(hang=3.0)
    with serving(application(server)) as url:
        yield server, url


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input is no terminal."""
    monkeypatch.setattr("sys.stdin", io.StringIO())


def settings(url: str, results: Path, *more: str) -> list[str]:
    models = [
        f"models.{role}={name}" for role, name in zip(("memory", "reader", "judge", "embedder"), "mrje", strict=True)
    ]
    return [f"results={results}", "network=true", f"endpoint.base_url={url}", "endpoint.label=mock", *models, *more]


PRICES = "prices={m: free, e: free, r: {in: 1, out: 10}, j: {in: 1, out: 10}}"
ROWS = ["table=segtreemem_t4", "columns=[locomo]", "only=[nothing,bm25,recency]", "data.size=12"]


def asked(server: Mock) -> int:
    return sum(server.arrivals.values())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["table", "run"])
def test_a_model_without_a_price_is_refused_before_any_data_set_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for module in (lab, layout):
        monkeypatch.setattr(module, "data", lambda *_: pytest.fail("a data set was loaded"))
    given = settings("http://127.0.0.1:9/v1", tmp_path, "max_usd=5")
    if command == "table":
        done = reproduce(composed("reproduce", [*given, *ROWS]))
    else:
        done = run_single(composed("config", [*given, "memory=recency"]))
    assert done == 2
    assert "there is none for m (memory), r (reader, probe), j (judge), e (embedder)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_cap_refuses_every_model_without_a_price_by_name_before_anything_is_sent(
    mock: tuple[Mock, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, url = mock
    given = settings(url, tmp_path, *ROWS, "max_usd=5", "prices={j: {in: 1, out: 10}}")
    assert reproduce(composed("reproduce", given)) == 2
    said = capsys.readouterr().err
    assert "there is none for m (memory), r (reader, probe), e (embedder)" in said
    assert "m: {in: USD, out: USD}, r: {in: USD, out: USD}, e: {in: USD, out: USD}" in said
    assert "`m: free` for a server of your own" in said
    assert asked(server) == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["table", "run"])
@pytest.mark.usefixtures("no_terminal")
def test_a_plan_is_agreed_to_in_every_profile_once_a_model_costs_something(
    mock: tuple[Mock, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    server, url = mock

    def work(*more: str) -> int:
        if command == "table":
            return reproduce(composed("reproduce", settings(url, tmp_path, *ROWS, PRICES, *more)))
        return run_single(composed("config", settings(url, tmp_path, "memory=recency", "data.size=4", PRICES, *more)))

    assert work() == 3
    said = capsys.readouterr()
    assert "Plan" in said.out
    assert "yes=true" in said.err
    before = asked(server)
    assert not list((tmp_path / "runs").rglob("predictions.jsonl"))
    assert work("yes=true", "max_usd=5") == 0
    assert asked(server) > before
    said = capsys.readouterr()
    assert "Stopped" not in said.err, "the cap is far away"
    shown = " ".join(said.out.split())
    assert "the data is a shipped sample, not the benchmark. How often j errs as judge is not known" in shown
    assert work() == 0, "nothing is left to pay for, so nobody is asked"


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.usefixtures("no_terminal")
def test_verdicts_on_imported_answers_are_agreed_to_though_no_memory_is_left_to_run(
    mock: tuple[Mock, str], tmp_path: Path, data_root: Path
) -> None:
    server, url = mock
    real = [f"data.root={data_root}", "data.source=real", "data.unpinned=true", "data.size=2"]

    def table(*given: str) -> int:
        return reproduce(composed("reproduce", settings(url, tmp_path, "table=third_party", PRICES, *real, *given)))

    assert table("only=[nothing]", "yes=true", "max_usd=5") == 0
    before = asked(server)
    assert table("only=[nothing,zep]") == 3
    assert asked(server) - before == 4, "the check-up of each model alone"


@pytest.mark.slow
@pytest.mark.usefixtures("no_terminal")
def test_verdicts_on_answers_that_another_judge_has_graded_are_in_the_plan(
    mock: tuple[Mock, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, url = mock
    free = "prices={m: free, e: free, r: free, j: free, other: {in: 100, out: 100}}"
    own = settings(url, tmp_path, "memory=recency", "data.size=4", free)
    assert run_single(composed("config", own)) == 0
    before = asked(server)
    assert run_single(composed("config", [*own, "protocol.judges=[mem0@other]"])) == 3
    assert asked(server) - before == 5, "the check-up of each model alone"
    said = capsys.readouterr().out
    assert re.search(r"reader +r +0 calls", said)
    assert re.search(r"judge +other +4 calls", said)


@pytest.mark.slow
def test_an_endpoint_that_no_model_uses_is_refused(
    mock: tuple[Mock, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [f"results={tmp_path}", "network=true", f"endpoint.base_url={mock[1]}", "memory=recency", "data.size=2"]
    assert run_single(composed("config", own)) == 2
    assert f"endpoint.base_url={mock[1]} is not used, because no model is named" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["growth bm25", "load bm25", "calibrate segtree_cosine", "conformance bm25"])
def test_a_measuring_command_refuses_an_endpoint_that_no_model_uses(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [])
    assert main([*verb.split(), f"results={tmp_path}", "endpoint.base_url=http://localhost:9/v1"]) == 2
    assert "endpoint.base_url=http://localhost:9/v1 is not used" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prices", "reader", "judge"),
    [
        ("prices={m: free, e: free, r: {in: 1, out: 10}}", "r", "j"),
        ("prices={m: free, e: free, r: {in: 1}, j: free}", "r", "j"),
        ("prices={m: free, e: free}", "gpt-4o-mini", "gpt-4o-mini-2024-07-18"),
    ],
    ids=["another without a price", "half a price", "one name with and without a price"],
)
@pytest.mark.usefixtures("no_terminal")
def test_a_plan_with_an_unknown_price_is_agreed_to_if_another_price_is_known(
    mock: tuple[Mock, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], prices: str, reader: str, judge: str
) -> None:
    server, url = mock
    own = [f"models.reader={reader}", f"models.judge={judge}", "memory=recency", "data.size=2", "endpoint.probe=false"]
    assert run_single(composed("config", settings(url, tmp_path, *own, prices))) == 3
    assert "total unknown" in capsys.readouterr().out
    assert asked(server) == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["gate", "gate --update", "compare", "fidelity"])
def test_a_cap_is_the_one_cause_that_a_command_names(
    mock: tuple[Mock, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "gate.yaml").write_text("memory: recency\nmetrics: [locomo_f1]\n")
    given = settings(mock[1], tmp_path / command, "data.size=12", PRICES, "yes=true")
    if command == "gate":
        assert verb("gate", [str(tmp_path / "gate.yaml"), "--update", *given, "max_usd=5"]) == 0
        given = settings(mock[1], tmp_path / "again", "data.size=12", PRICES, "yes=true")
    words = {
        "compare": ["recency", "bm25"],
        "fidelity": ["recency", "bm25", "dataset=locomo", "protocol.unit={rule: utterance}"],
    }
    named = words.get(command, [str(tmp_path / "gate.yaml"), *command.split()[1:]])
    capsys.readouterr()
    assert verb(command.split()[0], [*named, *given, "max_usd=0.004"]) == (1 if command == "compare" else 2)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.removeprefix("error: ").startswith("Stopped at max_usd=0.004: 0.00")
    assert (tmp_path / "gate.baseline.json").is_file() == (command == "gate")


@pytest.mark.slow
def test_a_cap_leaves_complete_rows_and_the_last_line_says_how_to_go_on(
    mock: tuple[Mock, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, url = mock
    given = settings(url, tmp_path / "capped", *ROWS, PRICES, "yes=true", "max_usd=0.02")
    assert reproduce(composed("reproduce", given)) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("Stopped at max_usd=0.02: 0.01")
    assert last.endswith("(make … MAX_USD=) goes on from there.")
    (written,) = (tmp_path / "capped" / "tables").rglob("*.md")
    assert last in written.read_text(encoding="utf-8"), "the caption names the same sum"
    runs = tmp_path / "capped" / "runs" / "locomo"
    answers = {folder.name.partition("-")[0]: answered(folder) for folder in runs.iterdir()}
    assert answers["nothing"] == 12, "the cheapest row comes first and is complete"
    assert min(answers.get("bm25", 0), answers.get("recency", 0)) < 12
    verdicts = next(
        (runs / folder).glob("scores/judge_*.jsonl") for folder in runs.iterdir() if folder.name.startswith("nothing")
    )
    assert sum(1 for path in verdicts if "effort" not in path.name for _ in path.open()) == 12


def answered(folder: Path) -> int:
    lines = [line for case in folder.glob("cases/*") for line in read_predictions(case).values()]
    return sum(line.outcome == "answered" for line in lines)


def dollars(text: str) -> float:
    return float(text.rpartition("total ")[2].partition(" USD")[0])


@pytest.mark.slow
@pytest.mark.usefixtures("no_terminal")
def test_the_plan_of_a_resumed_command_prices_what_is_left(
    mock: tuple[Mock, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, url = mock
    dear = "prices={m: free, e: free, r: {in: 1000, out: 10000}, j: {in: 1000, out: 10000}}"
    given = settings(url, tmp_path, "memory=full_history", "data.size=12", dear)
    assert run_single(composed("config", given)) == 3
    whole = dollars(capsys.readouterr().out)
    assert run_single(composed("config", [*given, "yes=true"])) == 0
    (folder,) = (tmp_path / "runs" / "locomo").iterdir()
    case = next(case for case in sorted(folder.glob("cases/*")))
    for name in ("predictions.jsonl", "case.json"):
        (case / name).unlink()
    capsys.readouterr()
    assert run_single(composed("config", given)) == 3
    left = dollars(capsys.readouterr().out)
    assert 0.2 * whole < left < 0.8 * whole


@pytest.mark.slow
def test_a_table_under_a_cap_needs_no_plan_of_free_models(mock: tuple[Mock, str], tmp_path: Path, capsys: Any) -> None:
    _, url = mock
    free = "prices={m: free, r: free, j: free, e: free}"
    assert (
        run_single(composed("config", settings(url, tmp_path, "memory=recency", "data.size=2", free, "max_usd=1"))) == 0
    )
    assert "Plan" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "judge-card --judge mem0 --dataset locomo",
        "order-test bm25 --orders 1",
        "leaks bm25 locomo",
        "load",
        "conformance bm25",
        "growth sizes=[10]",
    ],
)
@pytest.mark.usefixtures("no_terminal")
def test_a_command_without_a_plan_sends_no_paid_call_until_a_cap_or_yes_agrees(
    mock: tuple[Mock, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:  # fmt: skip
    server, url = mock
    monkeypatch.setattr("sys.argv", [])
    assert main([*command.split(), *settings(url, tmp_path, "data.size=2", PRICES)]) == 2
    assert "r, j cost money, and this command does not estimate how much" in capsys.readouterr().err
    assert asked(server) == 0


def test_a_lab_asks_before_it_spends_and_only_once(
    mock: tuple[Mock, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or "y")
    made = lab.Lab(*settings(mock[1], tmp_path, "data.size=2", PRICES))
    assert len(questions) == 1
    made.ask_to_spend()
    assert len(questions) == 1


def test_a_lab_checks_prices_and_endpoints_once_and_asks_again_for_the_first_judge_with_a_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(lab, "check_prices", lambda cfg, models: done.append("prices"))
    monkeypatch.setattr(lab, "prepared", lambda cfg, models, questions: done.append("endpoints") or models)
    monkeypatch.setattr(lab, "ask_without_plan", lambda cfg, models: done.append(models.paid_names))
    made: Any = lab.Lab("profile=smoke", f"results={tmp_path}")
    made._check_endpoints()
    for paid in (["judge"], ["judge"]):
        made.models = SimpleNamespace(paid_names=paid)
        made.ask_to_spend()
    assert done == ["prices", [], "endpoints", ["judge"]]


@pytest.mark.slow
def test_a_cap_or_yes_agrees_to_a_command_without_a_plan(
    mock: tuple[Mock, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = mock
    monkeypatch.setattr("sys.argv", [])
    for given in ("yes=true", "max_usd=5"):
        before = asked(server)
        own = settings(url, tmp_path / given, "data.size=2", PRICES, given)
        assert main(["growth", "recency", "locomo", "sizes=[3]", *own]) == 0
        assert asked(server) > before


@pytest.mark.slow
@pytest.mark.usefixtures("no_terminal")
def test_a_judge_with_a_model_of_its_own_is_in_the_plan_and_under_the_cap(
    mock: tuple[Mock, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, url = mock
    free = "prices={m: free, e: free, r: free, j: free, other: {in: 100, out: 100}}"
    own = settings(url, tmp_path, "memory=recency", "data.size=4", "protocol.judges=[mem0@other]")
    assert run_single(composed("config", [*own, free])) == 3
    assert re.search(r"judge +other +[1-9]\d* calls", capsys.readouterr().out)
    assert run_single(composed("config", [*own, "max_usd=1", "yes=true", free.partition(", other")[0] + "}"])) == 2
    assert "there is none for other (judge other)" in capsys.readouterr().err
    assert not list((tmp_path / "runs").rglob("predictions.jsonl"))


@pytest.mark.slow
@pytest.mark.usefixtures("no_terminal")
def test_the_plan_of_a_stopped_run_prices_the_units_that_are_left(
    mock: tuple[Mock, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, url = mock
    priced = "prices={m: {in: 1, out: 10}, e: free, r: free, j: free}"
    own = settings(url, tmp_path, "memory=segtree_td", "data.size=4", "data.max_cases=1", priced)

    def planned() -> int:
        assert run_single(composed("config", own)) == 3
        return int(re.findall(r"memory +m +(\d+) calls", capsys.readouterr().out)[-1])

    whole = planned()
    assert run_single(composed("config", [*own, "yes=true", "max_usd=0.03"])) != 0
    (folder,) = tmp_path.glob("runs/locomo/*/cases/*")
    written = sum(line["phase"] == "write" for line in read_efforts(folder))
    assert written
    assert written <= whole - planned() <= 2 * written, "one or two calls a unit"
