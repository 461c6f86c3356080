"""The files of a case while it runs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from data_loaders.schema import Case
from eval.files.records import Prediction
from eval.files.store import read_lines
from eval.judging.score_files import hash_of
from eval.running.case_log import CaseLog, effort
from eval.running.run import Run
from memsys.interface import Item, NodeView
from memsys.llm.meter import Ledger
from memsys.systems.controls import Nothing


def test_a_recalled_text_is_written_once_however_often_it_comes_back(make_run: Callable[..., Run]) -> None:
    case = Case("c", ("A", "B"), (), ())
    run = make_run([case])
    folder = run.case_folder("c")

    def opened(**done: Any) -> CaseLog:
        return CaseLog(run, case, done, {"q1", "q2"})

    log = opened()
    said, other = Item("u1", "We met.", 0.71239, ("t1",)), Item("u2", "It rained.", 0.5, ("t2",))
    keys, scores = log.recalled([said, other])
    assert log.recalled([other, said]) == (keys[::-1], scores[::-1])
    assert scores == (0.7124, 0.5)
    log.close()
    assert [line["key"] for line in read_lines(folder / "items.jsonl")] == list(keys)
    again = opened()  # resumed
    assert again.recalled([said])[0] == keys[:1]
    again.close()
    assert len(read_lines(folder / "items.jsonl")) == 2


def test_what_no_file_may_hold_is_refused_before_it_is_written(make_run: Callable[..., Run]) -> None:
    """Once written, every repetition of the command would end with the order to delete the file."""
    run = make_run([Case("c", ("A", "B"), (), ())])
    log = CaseLog(run, Case("c", ("A", "B"), (), ()), {}, {"q1"})
    item = Item("u1", "We met.", 0.5, ("t1",))
    for wrong, named in ({"kind": 5}, "kind cannot be 5"), ({"level": "deep"}, "level cannot be 'deep'"):
        with pytest.raises(TypeError, match=named):
            log.recalled([replace(item, **wrong)])
    with pytest.raises(TypeError, match=r"held cannot be 3\.5"):
        log.spent(effort("c", "write", "u1", 3.5, Ledger(), 0.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"notes cannot be \{'cut': 1\.5\}"):
        log.spent(effort("c", "write", "u1", 3, Ledger(notes=Counter({"cut": 1.5})), 0.0))  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="error cannot be 5"):
        log.predicted(Prediction("c", "q1", "", (), (), "aborted", 5))  # type: ignore[arg-type]

    class Memory(Nothing):
        def nodes(self) -> list[NodeView]:
            return [NodeView("n1", (), 0, "leaf", None, None, ("t1",))]  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="text cannot be None"):
        log.structure(Memory())
    log.finish(())
    folder = run.case_folder("c")
    assert [read_lines(folder / name) for name in ("items.jsonl", "effort.jsonl", "predictions.jsonl")] == [[], [], []]
    assert not (folder / "nodes.jsonl").exists()


def test_a_prediction_is_on_disk_after_its_items_and_the_costs_before_it(make_run: Callable[..., Run]) -> None:
    """A killed process leaves no prediction whose items or costs are missing."""
    case = Case("c", ("A", "B"), (), ())
    run = make_run([case])
    log = CaseLog(run, case, {}, {"q1"})
    recalled = log.recalled([Item("u1", "We met.", 0.5, ("t1",))])
    log.spent(effort("c", "answer", "q1", 0, Ledger(), 0.0))
    log.predicted(Prediction("c", "q1", "yes", *recalled, "answered"))
    written = {path.name: len(read_lines(path)) for path in run.case_folder("c").iterdir()}
    assert written == {"predictions.jsonl": 1, "items.jsonl": 1, "effort.jsonl": 1}
    log.close()


def test_half_an_emoji_in_an_error_or_an_answer_is_written_as_a_mark(make_run: Callable[..., Run]) -> None:
    case = Case("c", ("A", "B"), (), ())
    run = make_run([case])
    log = CaseLog(run, case, {}, set())
    log._trouble.append("ValueError: cut \ud83d here")
    log.finish(())
    assert (run.case_folder("c") / "errors.log").read_text() == "ValueError: cut ? here"
    hashed = hashlib.sha256(b"cut ? here").hexdigest()[:12]  # as in score files that are already written
    assert hash_of("cut \ud83d here") == hash_of("cut ? here") == hashed
