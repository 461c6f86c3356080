"""A tenth of the torture campaign (`make torture` does all of it), and that it sees what it looks for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from memsys.llm.stopping import SAID
from scripts.campaign import replies
from scripts.campaign.campaign import PARTS, campaign
from scripts.campaign.catalogue import CATALOGUE
from scripts.campaign.trial import KEY, Ended, broken_promises, history

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
ROW = "| MemTree | 0.458 [0.326, 0.597] {3 cases} · 2/1/0/0 | 0.1 · 3/0/0/0 |\n"


@pytest.mark.parametrize("part", PARTS)
def test_a_tenth_of_the_campaign_is_survived(part: str) -> None:
    outcomes, defects = campaign(0.1, seed=1, parts=[part])
    assert sum(sum(outcome.tried.values()) for outcome in outcomes) > 0
    assert not defects, "\n".join(defects)


@pytest.mark.parametrize(
    ("ended", "defect"),
    [
        (Ended(0, "", ""), "without a table"),
        (Ended(0, ROW, ""), "with 33% not scored"),
        (Ended(1, ROW, "error: 33% of the questions of a cell are not scored"), ""),
        (Ended(1, ROW.replace("2/1/0/0", "2/0/0/0"), "error: 33% are not scored"), "2/0/0/0 of 3 questions"),
        (
            Ended(1, ROW.replace("2/1/0/0", "2/0/1/0"), "error: 33% are not scored"),
            "counts 1 errors, the predictions 0",
        ),
        (Ended(1, "", "Traceback (most recent call last):\nKeyError: 'x'"), 'with a traceback that ends in "KeyError'),
        (Ended(2, "", "all is well"), "without an error line"),
        (Ended(2, "", "error: the disk is full"), ""),
        (Ended(130, "", SAID), ""),
        (Ended(143, "", ""), "without saying so"),
        (Ended(-11, "", ""), "exit code -11"),
    ],
)
def test_a_broken_promise_is_seen(ended: Ended, defect: str, tmp_path: Path) -> None:
    found = list(broken_promises(ended, tmp_path, 3))
    assert bool(found) == bool(defect)
    assert defect in "; ".join(found)


def test_a_key_in_a_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "cache.sqlite").write_bytes(b"\x00" + KEY.encode())
    assert list(broken_promises(Ended(2, "", "error: no"), tmp_path, 3)) == ["cache.sqlite holds the key"]


def test_each_kind_of_reply_stands_in_the_catalogue_once_and_is_met_at_any_share(tmp_path: Path) -> None:
    kinds = [(bad.to, bad.kind) for bad in CATALOGUE]
    assert len(kinds) == len(set(kinds))
    met = replies.pairs(["bm25", "memtree"], 0.01, seed=1)
    assert {number for numbers in met.values() for number in numbers} == set(range(len(CATALOGUE)))
    assert (history(tmp_path) / "locomo" / "locomo10.json").is_file()
