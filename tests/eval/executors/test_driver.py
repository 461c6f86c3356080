"""The driver of a pool: when workers that die before they have started end a run, and when they do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from executed_runs import CASES, contents
from small_history import history

from eval.executors import driver
from eval.executors.driver import REHEARSING, Died, Worker, _Driver, work_on
from eval.executors.processes import _Process, _Processes
from eval.executors.worker import Order
from eval.files.store import RunError
from eval.running.loop import run_all
from eval.running.run import Run
from eval.running.work import Build

pytestmark = pytest.mark.slow
Make = Callable[..., Run]


class Stillborn(Worker):
    """A worker that is given to a machine that is gone."""

    def send(self, message: Any) -> None:
        raise AssertionError("it has not started")

    def wait(self, seconds: float) -> None:
        pass

    def kill(self) -> None:
        pass


class Leaving(_Processes):
    """Worker processes of a cluster whose machines leave while the first `lost` workers start."""

    def __init__(self, workers: int, lost: int, patience: float) -> None:
        super().__init__(workers)
        self.lost, self.patience = lost, patience

    def start(self, slots: int, files: int) -> Any:
        self.lost -= 1
        return Stillborn(slots) if self.lost >= 0 else super().start(slots, files)

    def hear(self, workers: Sequence[Any], seconds: float) -> Iterator[tuple[Any, Any]]:
        for worker in workers:
            if isinstance(worker, Stillborn):
                yield worker, Died("was on a machine that is gone")
        yield from super().hear([worker for worker in workers if isinstance(worker, _Process)], seconds)


def worked_on(run: Run, transport: Leaving) -> None:
    run_all([run], executor=partial(work_on, transport=transport, threads=5))


def test_workers_that_die_with_their_machine_while_they_start_end_no_run(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "IDLE_SECONDS", 0.05)
    undisturbed, run = make_run(CASES, folder="undisturbed"), make_run(CASES)
    run_all([undisturbed])
    worked_on(run, Leaving(5, lost=7, patience=60.0))
    assert contents(run) == contents(undisturbed)


def test_workers_that_never_start_end_the_run_after_a_while(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "IDLE_SECONDS", 0.05)
    began = time.monotonic()
    with pytest.raises(RunError, match="do not start: the last one was on a machine that is gone"):
        worked_on(make_run(CASES), Leaving(5, lost=10**6, patience=0.5))
    assert time.monotonic() - began >= 0.5


def test_workers_that_do_not_start_do_not_end_a_run_on_which_another_works(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Leaving):
        """One worker starts; all that come after it do not."""

        def start(self, slots: int, files: int) -> Any:
            started, self.lost = self.lost, 10**6
            return super().start(slots, files) if started else _Process(slots, files)

    monkeypatch.setattr(driver, "IDLE_SECONDS", 0.01)
    run = make_run(CASES)
    worked_on(run, Late(3, lost=0, patience=0.0))
    assert len(list(run.folder.glob("cases/*/case.json"))) == len(CASES)


class Recording(Worker):
    """A worker that has started and keeps what it is sent."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.ready = True
        self.cells: list[int] = []

    def send(self, message: Any) -> None:
        if isinstance(message, Order):
            self.cells.append(message.number)

    def wait(self, seconds: float) -> None: ...

    def kill(self) -> None: ...


def test_a_worker_that_has_built_a_memory_gets_its_next_cell_unless_it_has_many_more_than_another(
    make_run: Make,
) -> None:
    cases = [history(f"case-{number}") for number in range(REHEARSING + 3)]
    first, second = (make_run(cases, folder=name) for name in ("first", "second"))
    cells = [
        Build((first,), 0, 0),
        Build((second,), 1, 0),
        *(Build((first,), 0, index) for index in range(1, len(cases))),
    ]
    work = _Driver(cells, lambda _: None, lambda *_: None, _Processes(2), len(cells))
    known, other = Recording(len(cells)), Recording(len(cells))
    work._workers = [known, other]
    work._hand_out()
    assert (len(known.cells), other.cells) == (REHEARSING + 2, [1, len(cells) - 1])
    work.close()
