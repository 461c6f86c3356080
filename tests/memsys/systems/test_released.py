"""Released products as memories, with a toy in their place: the memory contract, faults of the product, the surroundings, kills."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import memory_stories
import numpy as np
import pytest
from memory_contract import PROMISES

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import with_settings
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.gateway.server import Gateway
from memsys.llm.meter import Ledger, metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import EndOfRun, ModelError
from memsys.products.places import PINS, place_of
from memsys.products.process import Crashed, Hung, ProductSession, Raised, WorkerError
from memsys.systems.released import Released

ROOT = Path(__file__).resolve().parents[3]
TOY = str(ROOT / "tests" / "products" / "toy.py")
AWAITED = str(ROOT / "tests" / "products" / "awaited.py")
FORM = {"type": "object", "properties": {"facts": {"type": "array", "items": {"type": "string"}}}}
STAND_IN = {"kind": "extract", "schema": FORM, "fields": {"text": "<new>(.*?)</new>", "time": r"Today is (\S+)\."}}
PURPOSES = [{"name": "extract", "find": "^Toy", "stand_in": STAND_IN}]
ASKING = sorted({path.stem for path in PINS.glob("*.txt")} - {"letta", "mempalace"})
"""Products that ask a chat model."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    served = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(64), None, "live")
    yield served
    served.close()


@pytest.fixture
def toy(gateway: Gateway) -> Iterator[Callable[..., Released]]:
    """Makes memories of the toy, and closes them."""
    made: list[Released] = []

    def make(settings: Mapping[str, Any] | None = None, **more: Any) -> Released:
        given = {"product": TOY, "purposes": PURPOSES, "settings": dict(settings or {}), "step_seconds": 60.0, **more}
        made.append(with_settings(Released, given)(gateway, np.random.default_rng(0)))
        return made[-1]

    yield make
    for memory in made:
        memory.close()


def unit(number: int, text: str = "") -> Unit:
    said = text or f"I planted {number} tomatoes in garden {number} this morning."
    return Unit(
        f"u{number}", (Turn(f"t{number}", "Mara", said),), "s1", datetime(2023, 5, number, 13), f"{number} May 2023"
    )


def written(memory: Released, count: int = 5) -> Ledger:
    with metering() as ledger:
        for number in range(1, count + 1):
            memory.write(unit(number))
        memory.end_session("s1")
        memory.consolidate()
    return ledger


ASKED = Question("q", "Which garden has 4 tomatoes?")


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_toy_keeps_every_promise_but_for_what_is_waived(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    settings = {"gateway": gateway, "product": TOY, "purposes": PURPOSES, "k": 20}
    target = {"_target_": "memsys.systems.released.Released"}
    monkeypatch.setattr(memory_stories, "stated", lambda name: {**target, **settings})
    monkeypatch.setattr(memory_stories, "STANDS_FOR", {"toy": "toy"})
    for words in sorted(set(PROMISES) - set(Released.WAIVED)):
        with subtests.test(words):
            PROMISES[words]("toy")


def test_only_promises_that_exist_are_waived_each_with_a_reason() -> None:
    assert set(Released.WAIVED) <= set(PROMISES)
    assert all(len(reason.split()) > 4 for reason in Released.WAIVED.values())


# --- what is counted --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_stored_called_and_computed_is_charged_to_the_steps(toy: Callable[..., Released]) -> None:
    memory = toy()
    ledger = written(memory)
    assert dict(ledger.calls) == {"toy.extract": 5}
    assert ledger.notes["released.stored"] == memory.held == 5
    assert ledger.worker_cpu > 0
    (best, *_) = memory.read(ASKED).items
    assert best.sources == ("t4",)


@pytest.mark.slow
def test_a_product_sees_the_dialogues_clock_or_the_walls(toy: Callable[..., Released]) -> None:
    seen = []
    for clock in ("dialogue", "wall"):
        memory = toy(clock=clock)
        written(memory)
        stamps = [each["stamp"] for each in memory._life.read("nodes", {}, "nodes")]
        assert stamps == sorted(set(stamps)), "the clock moves on"
        seen.append(datetime.fromtimestamp(stamps[-1]).year)
    assert seen[0] == 2023
    assert seen[1] > 2023


@pytest.mark.slow
def test_connections_but_to_the_gateway_are_refused_and_counted(toy: Callable[..., Released]) -> None:
    memory = toy({"telemetry": True})
    written(memory)
    assert sum(memory.report()["connections_refused"].values()) == 1
    assert memory.held == 5, "the gateway is reached"


def test_keys_of_ours_are_not_in_the_products_environment(
    toy: Callable[..., Released], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-products")
    memory = toy()
    written(memory, 1)
    environment = Path(f"/proc/{memory._life.pid}/environ")
    if not environment.exists():
        pytest.skip("the environment of another process can be read on Linux only")
    text = environment.read_text()
    assert "sk-not-for-products" not in text
    assert "HOME=" in text
    assert str(Path.home()) not in text.split("HOME=")[1].split("\0")[0]


@pytest.mark.slow
def test_two_processes_give_the_same_ids(toy: Callable[..., Released]) -> None:
    first, second = toy(), toy()
    written(first)
    written(second)
    assert first.read(ASKED) == second.read(ASKED)
    assert first._life.pid != second._life.pid


# --- steps that are awaited --------------------------------------------------------------------------------------------


def test_steps_are_awaited_on_one_loop_and_each_sees_the_context_variables_of_the_one_before(
    toy: Callable[..., Released],
) -> None:
    memory = toy(product=AWAITED)
    written(memory, 2)
    assert [(item.text, item.score) for item in memory.read(ASKED).items] == [
        ("Mara: I planted 1 tomatoes in garden 1 this morning.", 2.0),
        ("Mara: I planted 2 tomatoes in garden 2 this morning.", 1.0),
    ], "without a score of its own a hit has its rank"
    (noted,) = memory._life.read("nodes", {}, "nodes")
    steps = ["built", "open", "write", "write", "end_session", "consolidate", "read"]
    assert noted["steps"] == steps
    assert noted["seen"] == steps[:-1], "what the step before has set, whether plain or awaited"
    assert noted["url"] == memory._account.base_url, "`open` is given what the product is built with"


def test_a_line_has_the_speaker_in_front_if_there_is_one(toy: Callable[..., Released]) -> None:
    memory = toy(product=AWAITED)
    turns = (Turn("t1", "Mara", " I left: \n“now”"), Turn("t2", "", "A passage: of a document."), Turn("t3", "Bo", ""))
    memory.write(Unit("u", turns, "s1"))
    memory.write(Unit("v", turns[2:], "s1"))
    lines = [item.text for item in memory.read(ASKED).items]
    assert lines == ["Mara:  I left: \n“now”", "A passage: of a document."]
    assert memory.report()["counts"]["units_without_change"] == 1, "a unit in which nothing is said is not passed on"


def test_of_several_failed_calls_the_one_that_ends_the_run_is_raised() -> None:
    session: Any = object.__new__(ProductSession)
    session._account = SimpleNamespace(failures=[ModelError("no reply"), EndOfRun("the spending cap was reached")])
    with pytest.raises(EndOfRun, match="spending cap"):
        session._raise_failures("read", None)


@pytest.mark.slow
def test_closing_is_awaited_and_closes_the_loop(
    toy: Callable[..., Released], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMSYS_SANDBOX", "off")  # it tells so in a file that is not its own
    memory = toy({"closed": str(tmp_path / "closed")}, product=AWAITED)
    written(memory, 1)
    memory.close()
    assert (tmp_path / "closed").read_text() == "awaited, consolidate, closed"
    with pytest.raises(WorkerError, match="is closed"):
        memory.read(ASKED)


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "error", "why"),
    [
        ("crash", Crashed, "SIGKILL"),
        ("hang", Hung, "no reply within 2 s"),
        ("raise", Raised, "RuntimeError: the toy broke"),
        ("hoard", Crashed, "memory limit"),
    ],
)
def test_a_fault_of_the_product_is_an_error_that_says_what_happened(
    toy: Callable[..., Released], fault: str, error: type[WorkerError], why: str
) -> None:
    limits = {"step_seconds": 2.0} if fault == "hang" else {"memory_mb": 200}
    memory = toy({"fault": fault, "at": 3}, **limits)
    with pytest.raises(error, match=why):
        written(memory)
    assert memory._life.counts[error.__name__.lower()] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "error", "why"),
    [
        ("hang", Hung, "no reply within 2 s; killed"),
        ("raise", Raised, "RuntimeError: the product broke while it was awaited"),
        ("cancel", Raised, "CancelledError"),
    ],
)
def test_a_fault_of_a_step_that_is_awaited_is_an_error_too(
    toy: Callable[..., Released], fault: str, error: type[WorkerError], why: str
) -> None:
    memory = toy({"fault": fault}, product=AWAITED, step_seconds=2.0)
    with pytest.raises(error, match=why):
        memory.write(unit(1))
    assert (memory._life.pid == 0) == (error is Hung), "a process that hangs is killed, others go on"


@pytest.mark.slow
def test_garbage_on_stdout_is_passed_over_and_counted(toy: Callable[..., Released]) -> None:
    memory = toy({"fault": "garbage", "at": 3})
    written(memory)
    assert memory.held == 5
    assert memory._life._process is not None
    assert "not JSON, from native code" in memory._life._process._tail(), "it is shown with an error"
    if Path("/proc/self/fd").exists():
        assert memory.report()["counts"]["garbage"] == 1, (
            "what was written to the protocol itself; the rest went to stderr"
        )


@pytest.mark.slow
def test_a_worker_that_is_killed_is_given_the_history_again_and_reads_the_same(toy: Callable[..., Released]) -> None:
    memory = toy()
    written(memory)
    before = memory.read(ASKED)
    assert memory._life._process is not None
    assert os.getsid(memory._life.pid) == memory._life.pid, "Ctrl-C in the terminal is for the harness alone"
    os.kill(memory._life.pid, signal.SIGKILL)
    memory._life._process._process.wait()
    with metering() as ledger:
        with pytest.raises(Crashed):  # the question that met the death
            memory.read(ASKED)
        assert memory.read(ASKED) == before
    assert ledger.notes["released.restart"] == 1
    assert not ledger.calls, "the history was charged when it was written first"
    assert memory._life.counts["calls_at_opening"] == 0


@pytest.mark.slow
def test_a_worker_that_does_not_start_is_counted(toy: Callable[..., Released], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise WorkerError("it cannot be started")

    memory = toy()
    monkeypatch.setattr("memsys.products.process.WorkerProcess", broken)
    with pytest.raises(WorkerError, match="cannot be started"):
        memory.write(unit(1))
    assert memory._life.counts["workererror"] == 1


@pytest.mark.slow
def test_a_worker_that_keeps_dying_is_given_up(toy: Callable[..., Released]) -> None:
    memory = toy({"fault": "crash_in_read", "at": "q"}, restarts=1)
    written(memory)
    for _ in range(2):
        with pytest.raises(Crashed):
            memory.read(ASKED)
    with pytest.raises(WorkerError, match="died 2 times"):
        memory.read(ASKED)


@pytest.mark.parametrize(
    "product",
    [TOY, *(pytest.param(name, marks=pytest.mark.integration) for name in ASKING)],
)
def test_a_failed_call_that_the_product_passes_over_fails_the_step(
    product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not place_of(product).installed:
        pytest.skip(f"{product} is not installed: make product NAME={product}")
    upstream = EngineUpstream(ExtractiveLLM())

    async def refuse(*_: Any) -> Any:
        raise ModelError("the server is down")

    monkeypatch.setattr(upstream, "reply", refuse)
    gateway = Gateway(upstream, HashingEmbedder(64), None, "live")
    memory = with_settings(Released, {"product": product, "purposes": PURPOSES})(gateway, np.random.default_rng(0))
    try:
        with pytest.raises(ModelError, match="the server is down"):
            written(memory, 1)
    finally:
        memory.close()
        gateway.close()


@pytest.mark.integration
def test_a_window_that_simplemem_would_drop_for_unreadable_replies_is_an_error(gateway: Gateway) -> None:
    if not place_of("simplemem").installed:
        pytest.skip("simplemem is not installed: make product NAME=simplemem")
    memory = with_settings(Released, {"product": "simplemem"})(
        gateway, np.random.default_rng(0)
    )  # without purposes the engine chats
    try:
        with pytest.raises(Raised, match="no reply to a window of 5 turns could be read"):
            written(memory)
    finally:
        memory.close()


@pytest.mark.slow
def test_closing_ends_the_process_and_removes_its_folder(toy: Callable[..., Released]) -> None:
    memory = toy()
    written(memory, 1)
    process = memory._life._process
    assert process is not None
    memory.close()
    assert process._process.poll() is not None
    assert not process.scratch.exists()


# --- what identifies a product ----------------------------------------------------------------------------------------


def test_pins_name_every_package_with_its_version() -> None:
    for path in PINS.glob("*.txt"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert all(re.fullmatch(r"\S+==\S+|# python>=3\.\d+", line) for line in lines), path
        assert place_of(path.stem).adapter.is_file()


def test_other_pins_are_another_identity_and_a_missing_product_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MEMSYS_PRODUCTS", str(tmp_path))
    with pytest.raises(ValueError, match="make product NAME=mem0ai"):
        Released.outside({"product": "mem0ai"})
    pins = tmp_path / "mem0ai.txt"
    pins.write_text("mem0ai==9.9.9\n")
    before = place_of("mem0ai")
    monkeypatch.setattr("memsys.products.places.PINS", tmp_path)
    after = place_of("mem0ai")
    assert (after.identity["pins"] != before.identity["pins"], after.folder != before.folder) == (True, True)
    assert json.dumps(Released.outside({"product": TOY}))
