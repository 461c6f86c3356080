"""Kills on a Ray cluster, a few of those of `make torture`, and that a repeated or lost call is seen."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest

from memsys.jsons import canonical
from tests.rigs.campaign.finished import Life, committed, life
from tests.rigs.campaign.on_ray import DRIVER, WORKER, kill_on_ray

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'")


@pytest.mark.integration
@needs_ray
def test_kills_on_ray_repeat_no_finished_call_and_leave_the_same_bytes(tmp_path: Path) -> None:
    """On one machine; `make torture` also kills machines, and tests/eval/executors/test_cluster.py takes them away."""
    told: list[str] = []
    outcome = kill_on_ray([(WORKER, DRIVER)], tmp_path, added=0, rows=["memtree"], latency=0.05, say=told.append)
    assert not outcome.defects, "\n".join(told)
    assert {kind: outcome.tried[f"{kind} killed"] for kind in (WORKER, DRIVER)} == {WORKER: 1, DRIVER: 1}


WHOLE = Counter({"answer": 1, "asked twice": 2, "text 1": 1, "text 2": 1})


@pytest.mark.parametrize(
    ("calls", "before", "after", "seen"),
    [
        ([("answer",), ("text 1", "text 2")], [], ["answer", "text 1", "text 2"], Life(2, 0, 0)),
        ([("asked twice",), ("asked twice",)], [], ["asked twice", "asked twice"], Life(2, 0, 0)),
        ([("asked twice",)], ["asked twice"], ["asked twice", "asked twice"], Life(1, 0, 0)),
        ([("answer",), ("text 1", "text 2")], [], ["answer", "text 1"], Life(2, 0, 1)),
        ([("answer",), ("answer",)], [], ["answer"], Life(2, 1, 1)),
        ([("answer",)], ["answer"], ["answer"], Life(1, 1, 1)),
        ([("text 1", "text 2")], ["text 1"], ["text 1", "text 2"], Life(1, 1, 1)),
        ([("of no other run",)], [], ["of no other run"], Life(1, 1, 0)),
    ],
    ids=[
        "all is well",
        "twice",
        "the second time",
        "lost",
        "repeated",
        "repeated later",
        "in other batches",
        "another",
    ],
)
def test_what_a_life_repeats_and_loses(
    calls: list[tuple[str, ...]], before: list[str], after: list[str], seen: Life
) -> None:
    assert life(calls, WHOLE, Counter(before), Counter(after)) == seen


def test_the_cache_says_which_calls_are_finished(tmp_path: Path) -> None:
    cache = tmp_path / "cache.sqlite"
    assert committed(cache, []) == {}
    key = sha256(canonical(["embedding", "mock", "mock", False, "a text"])).digest()
    with sqlite3.connect(cache) as file:
        for table in ("answers", "outcomes"):
            file.execute(f"CREATE TABLE {table} (key, completion)")
        file.execute("CREATE TABLE vectors (key)")
        texts = ("mock answer 0f7b40ad", '{"reason": "mock bbb7fd27"}', "mock answer 0f7b40ad")
        file.executemany("INSERT INTO answers VALUES (1, ?)", [(json.dumps({"text": text}),) for text in texts])
        file.execute("INSERT INTO vectors VALUES (?)", (key,))
        file.commit()
        assert committed(cache, ["a text", "another"]) == {"0f7b40ad": 2, "bbb7fd27": 1, "a text": 1}
        file.execute("INSERT INTO answers VALUES (1, ?)", (json.dumps({"text": "by a real model"}),))
        file.commit()
    with pytest.raises(ValueError, match="another endpoint"):
        committed(cache, ["a text"])
