"""Locks of this machine: no link is followed, no file emptied, and a killed process is told from a living one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memsys import folders


@pytest.mark.parametrize("trap", ["link to a file", "link to nothing", "pipe", "folder"])
def test_a_lock_that_is_no_plain_file_is_refused_and_what_it_leads_to_stays_as_it_is(trap: str, tmp_path: Path) -> None:
    keys, lock = tmp_path / "authorized_keys", tmp_path / "results" / ".lock"
    lock.parent.mkdir()
    if trap == "link to a file":
        keys.write_text("mine")
    if trap == "pipe":
        os.mkfifo(lock)
    elif trap == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(keys)
    with pytest.raises(OSError, match=r"a lock must be a plain file|directory"), folders.alone(lock.parent):
        pass
    assert keys.read_text() == "mine" if trap == "link to a file" else not keys.exists()


def test_a_lock_file_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("mine")
    with folders.alone(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == "mine"


def test_the_lock_file_of_a_killed_process_is_told_from_that_of_a_living_one_and_removed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from memsys.folders import hold_file\n"
        "held = hold_file(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    lock = tmp_path / "owner"
    with subprocess.Popen([sys.executable, "-c", program, str(lock)], stdin=-1, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert folders.is_alive(lock)
        other.kill()
    assert not folders.is_alive(lock)
    assert not lock.exists()


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.resolve()
    mounts = f"/dev/a / ext4 rw 0 0\nserver:/x {folder}/my\\040files nfs4 rw 0 0\n/dev/b {folder}/my\\040files/local xfs rw 0 0\n"
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, **how: mounts if str(path) == "/proc/self/mounts" else read(path, **how)
    )
    kinds = [folders.network_file_system(folder / place) for place in ("", "my files/deep", "my files/local/deep")]
    assert kinds == ["", "nfs4", ""]
