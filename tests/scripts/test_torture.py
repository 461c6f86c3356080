"""A tenth of the torture campaign (`make torture` does all of it), and that it sees what it looks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memsys.llm.stopping import SAID
from scripts.campaign import replies
from scripts.campaign.campaign import DISKS, KILLS, MUTATIONS, campaign
from scripts.campaign.catalogue import CATALOGUE
from scripts.campaign.files import deleted
from scripts.campaign.trial import KEY, ROOT, Ended, broken_promises, history

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
ROW = "| MemTree | 0.458 [0.326, 0.597] {3 cases} · 2/1/0/0 | 0.1 · 3/0/0/0 |\n"


def test_a_tenth_of_the_campaign_is_survived() -> None:
    done: list[int] = []
    outcomes = campaign(0.1, seed=1, processes=3, on_done=lambda number, total, outcome: done.append(total))
    defects = [defect for outcome in outcomes.values() for defect in outcome.defects]
    assert not defects, "\n".join(defects)
    assert set(done) == {len(done)}
    tried = {part: outcome.tried for part, outcome in outcomes.items()}
    kills = {name: count for name, count in tried["kills"].items() if name != "calls repeated"}
    assert sum(kills.values()) == KILLS / 10
    assert kills.get("ended before the kill", 0) <= 1
    assert sum(tried["mutated files"].values()) == MUTATIONS / 10
    assert tried["full disks"].total() == DISKS / 10
    assert tried["bad replies x memories"] == {"replies": len(CATALOGUE)}


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
    for share in (0.01, 0.1, 0.99):
        met = replies.pairs(["bm25", "memtree", "dense"], share, seed=1)
        assert sorted(number for numbers in met.values() for number in numbers) == list(range(len(CATALOGUE)))
        assert not any(CATALOGUE[number].to == "embeddings" for number in met.get("bm25", []))
    assert {len(numbers) for numbers in replies.pairs(["bm25", "dense"], 1.0, seed=1).values()} == {len(CATALOGUE)}
    assert (history(tmp_path) / "locomo" / "locomo10.json").is_file()


def test_of_memories_that_differ_in_numbers_only_the_first_meets_the_replies() -> None:
    names = replies.memories()
    assert {"segtree", "memorybank", "bm25", "memtree", "memtree_pruned"} <= set(names)
    assert not {"segtree_td", "memorybank_k20"} & set(names)


def test_what_a_message_says_is_deleted_the_file_or_a_folder_of_the_run(tmp_path: Path) -> None:
    case = tmp_path / "results" / "runs" / "case"

    def broken() -> Path:
        case.mkdir(parents=True, exist_ok=True)
        (case / "items.jsonl").write_text("")
        return case / "items.jsonl"

    assert not deleted(broken(), tmp_path / "results", f"delete {case}-2 and run again")
    assert not deleted(broken(), tmp_path / "results", f"delete {tmp_path} and run again")
    assert case.is_dir()
    assert deleted(broken(), tmp_path / "results", f"lacks an item; delete {case} and run again")
    assert not case.exists()
    assert deleted(broken(), tmp_path / "results", "items.jsonl: line 2 is not JSON; delete the file")
    assert list(case.iterdir()) == []


def test_a_child_of_the_campaign_hears_the_signals_that_its_parent_ignores(tmp_path: Path) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from scripts.campaign.campaign import _hear_signals; _hear_signals()\n"
        "import subprocess, sys\n"
        "child = 'import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)'\n"
        "sys.exit(subprocess.call([sys.executable, '-c', child]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("False\n", 0)
