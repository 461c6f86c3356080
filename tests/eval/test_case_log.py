"""The files of a case while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_loaders.schema import Case
from eval.files.store import read_lines
from eval.judging.score_files import hash_of
from eval.running.case_log import CaseLog
from eval.running.run import Run
from memsys.interface import Item


def test_a_recalled_text_is_written_once_however_often_it_comes_back(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    case = Case("c", ("A", "B"), (), ())
    folder = tmp_path / "case"

    def opened(**done: Any) -> CaseLog:
        return CaseLog(make_run([case]), case, folder, done, {"q1", "q2"})

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


def test_half_an_emoji_in_an_error_or_an_answer_is_written_as_a_mark(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    case = Case("c", ("A", "B"), (), ())
    log = CaseLog(make_run([case]), case, tmp_path / "case", {}, set())
    log._trouble.append("ValueError: cut \ud83d here")
    log.finish(case, ())
    assert (tmp_path / "case" / "errors.log").read_text() == "ValueError: cut ? here"
    assert hash_of("cut \ud83d here") == hash_of("cut ? here")
