"""A twentieth of the torture campaign (`make torture` does all of it), and that it sees what it looks for."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from eval.files.store import RunError
from memsys.llm.stopping import SAID
from tests.rigs.campaign import replies
from tests.rigs.campaign.attacks import ATTACKS, Attack, attacked
from tests.rigs.campaign.campaign import campaign
from tests.rigs.campaign.catalogue import CATALOGUE
from tests.rigs.campaign.faults import JUDGES
from tests.rigs.campaign.files import deleted
from tests.rigs.campaign.forks import _outcome as outcome_of
from tests.rigs.campaign.kills import REAL, REPEATED, repeats_beyond
from tests.rigs.campaign.targets import forked
from tests.rigs.campaign.tasks import CLOCKS, DISKS, KILLS, MUTATIONS, PARTS
from tests.rigs.campaign.trial import KEY, ROOT, Ended, Outcome, broken_promises, history

SHARE = 0.05
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
ROW = "| MemTree | 0.458 [0.326, 0.597] {3 cases} · 2/1/0/0 | 0.1 · 3/0/0/0 |\n"


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_a_twentieth_of_the_campaign_is_survived() -> None:
    done: list[int] = []
    parts = [part for part in PARTS if part not in ("ray", "attacks")]  # test_kills_on_ray.py; and attacks are tests
    outcomes = campaign(SHARE, 4, parts, on_done=lambda number, total, outcome: done.append(total))
    defects = [defect for outcome in outcomes.values() for defect in outcome.defects]
    assert not defects, "\n".join(defects)
    assert set(done) == {len(done)}
    tried = {part: outcome.tried for part, outcome in outcomes.items()}
    kills = {name: count for name, count in tried["kills"].items() if name not in (REAL, REPEATED)}
    assert sum(kills.values()) == KILLS * SHARE
    assert kills.get("ended before the kill", 0) <= 1
    assert tried["kills"][REAL] >= 1
    assert tried["faults"].total() - len(JUDGES) >= 5
    assert tried["bad replies"] == {"bad replies x memories": len(CATALOGUE)}
    assert sum(tried["mutated files"].values()) == MUTATIONS * SHARE
    assert tried["full disks"].total() == round(DISKS * SHARE)
    assert any(name.startswith("disk-full: exit 2") for name in tried["full disks"])
    assert tried["clocks"].total() == max(1, round(CLOCKS * SHARE))


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
    (said,) = replies.pairs(["segtree_bu"], 1.0, seed=1).values()
    assert {CATALOGUE[number].taken for number in said} == {"told", "none"}
    assert (history(tmp_path) / "locomo" / "locomo10.json").is_file()


def test_of_memories_that_differ_in_numbers_only_the_first_meets_the_replies() -> None:
    names = replies.memories()
    assert {"segtree", "memorybank", "bm25", "memtree", "memtree_pruned"} <= set(names)
    assert not {"segtree_td", "memorybank_k20"} & set(names)
    assert {"segtree", "memtree", "memtree_pruned"} <= set(replies.systems()) < set(names)
    assert "segtree_bu" not in replies.systems()


@pytest.mark.slow
def test_replies_are_judged_by_a_complete_run_and_a_machine_that_is_late_by_itself_is_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [1, 1, 0]
    monkeypatch.setattr(replies, "run_here", lambda cfg, results: Ended(codes.pop(0), "", ""))
    assert not replies.meet("bm25", [], tmp_path / "late at first").defects
    assert not codes
    codes += [1] * replies.STARTS
    (defect,) = replies.meet("bm25", [0], tmp_path / "always late").defects
    assert defect == f"bm25: the run without a bad reply is not complete after {replies.STARTS} starts"


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


@pytest.mark.slow
def test_a_child_of_the_campaign_hears_the_signals_that_its_parent_ignores(tmp_path: Path) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from tests.rigs.campaign.forks import hear_signals; hear_signals()\n"
        "import subprocess, sys\n"
        "child = 'import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)'\n"
        "sys.exit(subprocess.call([sys.executable, '-c', child]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("False\n", 0)


FORKING = """
import atexit, os, signal, socket, sys
from tests.rigs.campaign import targets

def command(cfg, request, descriptors):
    os.dup2(descriptors[0], 1)
    targets.as_started()
    atexit.register(print, "at exit")
    print(request["results"], signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
    if request["results"] == "waiting":
        signal.pause()
    return 7

signal.signal(signal.SIGINT, signal.SIG_IGN)
targets._composed, targets._command = (lambda overrides: None), command
ours, theirs = socket.socketpair()
if not os.fork():
    ours.close()
    sys.exit(targets.serve(theirs)())
theirs.close()
targets.Forking.line = ours
print(targets.forked([], results="ending").ended())
for number in (signal.SIGKILL, signal.SIGTERM):
    print(targets.killed(targets.forked([], results="waiting"), lambda: True, number, 0.5).code)
"""


@pytest.mark.slow
def test_a_forked_command_ends_as_python_ends_and_is_killed_by_real_signals() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [r"Ended(code=7, out='ending True\nat exit\n', err='')", "-9", "-15"], (
        done.stderr
    )


def test_a_command_is_forked_for_tasks_of_the_campaign_only(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="for tasks of the campaign only"):
        forked([], results=tmp_path)


def _nothing(folder: Path) -> Outcome:
    return Outcome("nothing")


def test_a_task_that_dies_is_a_defect_and_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    died = Outcome.from_json(outcome_of(_nothing, tmp_path, -9))
    assert (died.part, died.tried) == ("the campaign itself", {})
    assert "ended with exit code -9" in died.defects[0]
    outcome = Outcome("kills", Counter(a=2), ["a defect"], {("chat", "empty"): Counter(read=3)})
    (tmp_path / "outcome.json").write_text(outcome.to_json(), encoding="utf-8")
    assert Outcome.from_json(outcome_of(_nothing, tmp_path, 0)) == outcome


@pytest.mark.slow
def test_a_runner_that_ends_early_is_told() -> None:
    with pytest.raises(RunError, match="ended with exit code 1 after 0 tasks"):
        campaign(0.001, parts=["no such part"])


def test_a_call_is_repeated_only_beyond_what_an_undisturbed_run_makes_of_it() -> None:
    undisturbed = {"asked again because it could not be parsed": 3, "once": 1}
    killed = {"asked again because it could not be parsed": 3, "once": 2, "another batch of texts": 1}
    assert sum(repeats_beyond(undisturbed, killed)) == 1


def test_each_attack_names_tests_that_exist() -> None:
    for attack in ATTACKS:
        text = (ROOT / "tests" / attack.file).read_text(encoding="utf-8")
        words = [word for word in attack.tests.split() if word not in ("not", "or", "and")]
        assert all(word in text for word in words), attack.name
        assert attack.variable in text


@pytest.mark.slow
def test_an_attack_that_succeeds_is_a_defect_and_one_that_fails_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os\ndef test_held(): assert os.environ['TIMES'] == '5'\ndef test_broken(): assert 0\n"
    )
    outcome = attacked(Attack("both", str(tmp_path / "test_it.py"), "", "TIMES", 50), 0.1, tmp_path)
    assert outcome.tried == {"both: failed": 1, "both: passed": 1}
    assert [defect for defect in outcome.defects if "test_broken" in defect]
    assert len(outcome.defects) == 1
