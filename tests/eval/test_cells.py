"""Which cell is opened when: the longest chain of calls first, as many as keep the endpoint busy, and the same bytes for any limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from small_history import history

from data_loaders.schema import Question
from eval.running.cells import APART, BETWEEN, SPACING, WORKING, CellQueue, OpenCell, Opening
from eval.running.loop import run_all
from eval.running.run import Run, Services
from memsys.interface import Recall
from memsys.llm.protocol import LLM
from memsys.systems.controls import Recency

Make = Callable[..., Run]


class FakeGauge:
    """A gauge that shows what the test sets."""

    def __init__(self, load: int, limit: int) -> None:
        self.shown = load, limit
        self.watchers: list[Callable[[], None]] = []

    def load(self) -> tuple[int, int]:
        return self.shown

    def watch(self, on_room: Callable[[], None]) -> None:
        self.watchers.append(on_room)

    def unwatch(self, on_room: Callable[[], None]) -> None:
        self.watchers.remove(on_room)

    def set(self, load: int) -> None:
        self.shown = load, self.shown[1]
        for watcher in self.watchers:
            watcher()


class Calling:
    """The constructor of a memory that calls a model, as far as its services tell."""

    def __init__(self, llm: LLM) -> None: ...


def gauged(run: Run, gauge: FakeGauge, **more: object) -> Run:
    services: Services = replace(run.services, gauges=dict.fromkeys(("memory", "probe", "reader"), gauge))
    return replace(run, services=services, **more)  # type: ignore[arg-type]


def run_of(make_run: Make, gauge: FakeGauge, sizes: list[int], **more: object) -> Run:
    run = make_run([history(f"case-{number}") for number in range(len(sizes))], folder=str(more.pop("folder", "run")))
    return gauged(run, gauge, sizes=sizes, build=more.pop("build", Calling), **more)


def test_after_one_cell_of_each_memory_the_longest_chain_is_opened_and_not_the_longest_history(make_run: Make) -> None:
    gauge = FakeGauge(0, 64)
    short = run_of(make_run, gauge, [10, 20], chain=5.0, folder="short")
    long = run_of(make_run, gauge, [30, 40], chain=1.0, folder="long")
    opened = [(cell.group[0].folder.name, cell.index) for cell in Opening([[short], [long]])]
    assert opened == [("short", 1), ("long", 1), ("short", 0), ("long", 0)]


def test_a_memory_whose_first_estimate_is_too_low_is_known_before_the_others_are_built(make_run: Make) -> None:
    gauge = FakeGauge(0, 64)
    low = run_of(make_run, gauge, [10] * 3, chain=0.1, folder="low")
    high = run_of(make_run, gauge, [10] * 3, chain=50.0, folder="high")
    opening = iter(Opening([[low], [high]]))
    of_high, of_low = next(opening), next(opening)
    assert (of_high.group[0], of_low.group[0]) == (high, low)
    of_high.step(calls=100, share=0.2)
    assert of_low.remaining > of_high.remaining, "nothing is known of it yet, so it goes first"
    of_low.step(calls=200, share=0.2)
    assert of_low.remaining > of_high.remaining, "its chain is the longer one"
    assert [next(opening).group[0] for _ in range(4)] == [low, low, high, high]


def test_what_open_cells_take_corrects_the_order_of_the_others(make_run: Make) -> None:
    gauge = FakeGauge(0, 64)
    one, other = (run_of(make_run, gauge, [10, 10], chain=1.0, folder=name) for name in ("one", "other"))
    opening = iter(Opening([[one], [other]]))
    first, second = next(opening), next(opening)
    assert (first.group[0], second.group[0]) == (one, other)
    second.step(calls=100, share=0.5)
    assert next(opening).group[0] is other, "its chain is the longer one, as is known by now"


def test_no_cell_is_opened_while_the_endpoint_is_full_and_one_is_when_it_has_room(make_run: Make) -> None:
    gauge, opened, first = FakeGauge(4, 4), [], threading.Event()

    def open_all() -> None:
        for cell in opening:
            opened.append(cell)
            gauge.set(4)
            first.set()

    opening = Opening([[run_of(make_run, gauge, [1, 2])]])
    thread = threading.Thread(target=open_all)
    thread.start()
    while not gauge.watchers:
        pass
    assert opened == []
    gauge.set(3)
    assert first.wait(30)
    assert len(opened) == 1
    gauge.set(3)
    thread.join(30)
    assert len(opened) == 2
    assert gauge.watchers == []


def test_cells_that_do_not_wait_for_a_call_keep_others_from_being_opened(make_run: Make) -> None:
    gauge = FakeGauge(0, 64)
    opening = Opening([[run_of(make_run, gauge, [1] * 40)]])
    cells = iter(opening)
    opened = [next(cells) for _ in range(BETWEEN)]
    assert opening._next() is None
    gauge.set(10)  # ten of them wait for a call now
    opened += [next(cells) for _ in range(10)]
    assert opening._next() is None
    opened[0].built()
    assert opening._next() is not None


def test_without_an_endpoint_few_cells_are_built_at_once(make_run: Make) -> None:
    opening = Opening([[make_run([history(f"case-{number}") for number in range(WORKING + 1)])]])
    cells = iter(opening)
    opened = [next(cells) for _ in range(WORKING)]
    assert opening._next() is None
    opened[0].built()
    assert opening._next() is not None


def test_one_cell_of_the_shortest_chain_is_built_even_if_the_endpoint_is_full(make_run: Make) -> None:
    gauge = FakeGauge(0, 64)
    short = run_of(make_run, gauge, [10] * 3, chain=0.1, folder="short")
    long = run_of(make_run, gauge, [10] * 3, chain=5.0, folder="long")
    opening = Opening([[short], [long]])
    cells = iter(opening)
    opened = [next(cells), next(cells)]
    assert [cell.group[0] for cell in opened] == [long, short], "one of each memory"
    gauge.set(64)
    assert opening._next() is None, "one of the short ones is being built"
    opened[1].built()
    assert next(cells).group[0] is short
    assert opening._next() is None
    gauge.set(63)
    assert next(cells).group[0] is long


def test_reads_are_spread_over_the_time_that_the_builds_still_need(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("eval.running.cells.time.monotonic", lambda: now[0])
    opening = Opening([[run_of(make_run, FakeGauge(5, 64), [1] * 2)]])
    assert opening.spacing(8) == 0.0
    first, second = opening
    first.step(calls=1, share=0.5)
    second.step(calls=1, share=0.25)
    now[0] = 2.0  # the second needs six more seconds at its speed
    assert opening.spacing(600) == pytest.approx(0.01)
    assert opening.spacing(1) == SPACING[1]
    assert opening.spacing(10**6) == SPACING[0]
    now[0] = 5.0
    second.step(calls=1, share=0.7)
    first.built()
    assert opening.spacing(100) < 0.01, "nearly all is built"
    second.built()
    assert opening.spacing(600) == 0.0


def test_reads_are_not_spaced_where_there_is_no_endpoint(make_run: Make) -> None:
    opening = Opening([[make_run([history("one")])]])
    next(iter(opening))
    assert len(opening.builds) == 1
    assert opening.spacing(1) == 0.0


def test_cells_that_build_without_a_model_are_opened_one_after_the_other_and_their_reads_are_not_spaced(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("eval.running.cells.time.monotonic", lambda: now[0])
    plain = run_of(make_run, FakeGauge(5, 64), [1] * 4, build=Recency, folder="plain")
    calling = run_of(make_run, FakeGauge(5, 64), [1] * 2, folder="calling")
    opening = Opening([[plain], [calling]])
    cells = iter(opening)
    opened = [next(cells) for _ in range(3)]
    assert [cell.calling for cell in opened] == [True, False, True]
    assert opening.spacing(8) > 0.0
    assert opening._next() is None, "two would share an interpreter"
    opened[1].built()
    assert not next(cells).calling, "the first is built"
    assert opening._next() is None
    now[0] = APART
    assert not next(cells).calling, "the second takes long, and may wait for something that is not known here"
    opened[0].built()
    opened[2].built()
    assert len(opening.builds) == 2
    assert opening.spacing(8) == 0.0


def test_threads_bounds_the_builds_and_not_the_cells_that_wait_for_answers(make_run: Make) -> None:
    opening = Opening([[run_of(make_run, FakeGauge(5, 64), [1] * 5)]], threads=2)
    cells = iter(opening)
    first, _ = next(cells), next(cells)
    assert opening._next() is None
    first.built()
    assert opening._next() is not None
    assert opening.open == 2


def test_threads_are_all_used_where_there_is_no_endpoint_and_open_nothing_where_it_is_full(make_run: Make) -> None:
    opening = Opening([[make_run([history(f"case-{number}") for number in range(WORKING + 2)])]], threads=WORKING + 1)
    for _, _ in zip(range(WORKING), opening, strict=False):
        assert opening._next() is not None
    assert Opening([[run_of(make_run, FakeGauge(4, 4), [1] * 2)]], threads=2)._next() is None


def test_so_many_cells_are_open_at_most(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval.running.cells.OPEN", 2)
    opening = Opening([[run_of(make_run, FakeGauge(5, 64), [1] * 5)]])
    cells = iter(opening)
    first, _ = next(cells), next(cells)
    first.built()
    assert opening._next() is None
    opening.ended(first)
    assert opening._next() is not None


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 8, 512])
def test_any_number_of_open_cells_gives_the_same_bytes(make_run: Make, limit: int) -> None:
    cases = [history(f"case-{number}") for number in range(12)]
    alone, many = make_run(cases, folder="alone"), make_run(cases[::-1], folder="many")
    run_all([alone], threads=1)
    run_all([gauged(many, FakeGauge(limit - 1, limit))])
    texts = [
        {str(path.relative_to(run.folder)): path.read_bytes() for path in run.folder.glob("cases/*/[pin]*.jsonl")}
        for run in (alone, many)
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) >= 24


def test_a_cell_that_fails_for_good_ends_the_run_after_the_open_ones(make_run: Make) -> None:
    run = make_run([history(f"case-{number}") for number in range(3)])
    broken = replace(run, questions=lambda case_id, question_id: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_all([gauged(broken, FakeGauge(0, 512))])


def test_the_estimate_follows_what_was_measured_and_forgets_its_first_value(make_run: Make) -> None:
    cells = CellQueue([run_of(make_run, FakeGauge(0, 64), [10])])
    assert cells.chain(100.0) == pytest.approx(100.0)
    cells.add(calls=3000, size=1000.0)
    assert cells.chain(100.0) == pytest.approx(300.0, rel=0.02)


@pytest.mark.parametrize("built", [False, True])
def test_a_cell_that_ends_counts_as_built_once(make_run: Make, built: bool) -> None:
    opening = Opening([[run_of(make_run, FakeGauge(0, 64), [1])]])
    cell: OpenCell = next(iter(opening))
    if built:
        cell.built()
    opening.ended(cell)
    assert (len(opening.builds), opening.open) == (0, 0)


def test_a_built_cell_an_ended_cell_and_a_stop_wake_the_opening_and_a_stop_ends_it(make_run: Make) -> None:
    opening = Opening([[run_of(make_run, FakeGauge(0, 64), [1] * 3)]])
    cells = iter(opening)
    cell = next(cells)
    for event in (lambda: opening.built(cell), lambda: opening.ended(cell), opening.stop):
        opening._changed.clear()
        event()
        assert opening._changed.is_set()
    assert list(cells) == []


def test_a_memory_is_built_when_its_last_questions_begin_to_be_read(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Heard(Recency):
        def read(self, question: Question) -> Recall:
            order.append("read")
            return super().read(question)

    monkeypatch.setattr(OpenCell, "built", lambda self: order.append("built"))
    run_all([make_run([history("case")], build=Heard)])
    assert order[0] == "built", "reads that wait for a model must leave room for the builds of other cells"
    assert "read" in order
