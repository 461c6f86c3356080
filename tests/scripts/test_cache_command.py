"""The cache looked after from the command line: what is damaged is found, what is readable is kept, what is lost is counted."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from memsys.llm.batching.journal import Journal, JournalledCall
from memsys.llm.client import Embedded
from memsys.llm.protocol import Completion
from memsys.llm.store import CacheStore, DamagedCache
from scripts.command import verb

main = partial(verb, "cache")


pytestmark = pytest.mark.slow

ANSWERS = 2_000


def key(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A cache of 2,000 answers, one reply without an answer and 20 vectors."""
    store = CacheStore(tmp_path / "cache.sqlite")
    store.keep_answer(key(ANSWERS), Completion("", stopped="cut in thought"))
    for number in range(ANSWERS):
        store.keep_answer(key(number), Completion("x" * 200, 3, 2, model="m", endpoint="here"))
    unit = np.asarray([0.6, 0.8], dtype=np.float32)
    store.keep_vectors([(key(number), Embedded(unit, 1, 0.5)) for number in range(20)])
    store.close()
    return store.path


def run(capsys: pytest.CaptureFixture[str], command: str, path: Path, *more: str) -> tuple[int, str]:
    code = main([command, "--cache", str(path), *more])
    said = capsys.readouterr()
    return code, said.out + said.err


def overwrite(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for page in range(8, len(content) // 4096, 40):
        content[page * 4096 : page * 4096 + 300] = b"\xa5" * 300
    path.write_bytes(content)


def test_a_whole_cache_is_whole_and_is_counted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check", path) == (0, f"{path}: whole\n")
    code, said = run(capsys, "stats", path)
    assert code == 0
    assert "answers: 2000, 6000 tokens in, 4000 out\n  m at here: 2000" in said
    assert "replies without an answer, for replays: 1\n" in said
    assert "vectors: 20\n  of 2 numbers: 20" in said


def test_rows_that_are_no_answers_and_no_directions_are_found_and_left_out(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = np.zeros(2, dtype=np.float32).tobytes()
    double = np.asarray([2.0, 0.0], dtype=np.float32).tobytes()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE answers SET completion = '{torn' WHERE key = ?", (key(1),))
        file.execute("UPDATE answers SET completion = replace(completion, ?, '') WHERE key = ?", ("x" * 200, key(2)))
        file.execute("UPDATE vectors SET vector = ? WHERE key = ?", (nothing, key(3)))
        file.execute("UPDATE vectors SET vector = ? WHERE key = ?", (double, key(4)))
        file.execute("UPDATE vectors SET vector = x'0102' WHERE key = ?", (key(5),))
    code, said = run(capsys, "check", path)
    assert code == 1
    for line in (
        "1 answers that cannot be decoded",
        "1 replies without an answer among the answers",
        "2 vectors that are zero, not finite or torn",
        "1 vectors not of unit length",
    ):
        assert f"{path}: {line}\n" in said
    code, said = run(capsys, "repair", path)
    assert code == 0
    assert f"{path}: 1998 answers and 17 vectors kept" in said
    outcome = CacheStore(path).outcome(key(ANSWERS))
    assert outcome is not None
    assert outcome.stopped == "cut in thought"
    assert run(capsys, "check", path) == (0, f"{path}: whole\n")
    assert (path.parent / "cache.sqlite.damaged-1").is_file()


def test_vectors_of_a_length_that_was_a_servers_mistake_are_dropped(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = np.asarray([1.0, 0.0, 0.0], dtype=np.float32)
    store = CacheStore(path)
    store.keep_vectors([(key(7000), Embedded(other, 1, 0.0))])
    store.close()
    code, said = run(capsys, "repair", path, "--drop-vectors", "3")
    assert (code, "left out: 1 vectors of 3 numbers\n" in said) == (0, True)
    assert list(CacheStore(path).vectors([key(7000), key(0)])) == [key(0)]
    with pytest.raises(SystemExit, match="2"):
        run(capsys, "stats", path, "--drop-vectors", "2")


def test_of_a_damaged_cache_what_can_be_read_is_kept_and_the_file_set_aside(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overwrite(path)
    before = path.read_bytes()
    code, said = run(capsys, "check", path)
    assert code == 1
    assert "move it away: nothing that is in the run folders is lost" in said
    code, said = run(capsys, "repair", path)
    assert code == 0
    assert "could not be read" in said
    assert (path.parent / "cache.sqlite.damaged-1").read_bytes()[100:] == before[100:]  # the header names the journal
    assert run(capsys, "check", path) == (0, f"{path}: whole\n")
    store = CacheStore(path)
    kept = [number for number in range(ANSWERS) if store.answer(key(number)) is not None]
    assert len(kept) > 0.8 * ANSWERS
    assert all(store.answer(key(number)) == Completion("x" * 200, 3, 2, model="m", endpoint="here") for number in kept)


def test_a_schema_of_broken_bytes_is_a_damaged_cache_and_no_traceback(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE vectors", b"CREAT\xcf TABLE vectors", 1))
    with pytest.raises(DamagedCache, match="malformed database schema"):
        CacheStore(path)
    for command in ("check", "repair", "stats"):
        code, said = run(capsys, command, path)
        assert (code, said.count("\n")) == (2, 1), said
        assert "not a readable cache" in said


def test_a_file_that_is_no_cache_is_refused_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = tmp_path / "note.sqlite"
    note.write_text("this is a note " * 100)
    other = tmp_path / "other.sqlite"
    sqlite3.connect(other).execute("CREATE TABLE recipes (name)")
    for command in ("check", "repair", "stats"):
        code, said = run(capsys, command, note)
        assert (code, said.count("\n")) == (2, 1)
        assert "move it away: nothing that is in the run folders is lost" in said
        assert run(capsys, command, other)[0] == 2
        assert run(capsys, command, tmp_path / "none.sqlite")[0] == 2
    assert note.read_text() == "this is a note " * 100
    assert sorted(each.name for each in tmp_path.iterdir()) == ["note.sqlite", "other.sqlite"]


@pytest.mark.parametrize("command", ["check", "stats", "repair", "pack"])
def test_a_cache_in_a_read_only_folder_is_not_called_unreadable(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def refused(*_: object) -> None:  # as SQLite says, which cannot write its files next to the cache
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("scripts.commands.cache._tables", refused)
    code, said = run(capsys, command, path)
    assert code == 2
    assert "read-only, copy the cache" in said
    assert "move it away" not in said


def test_a_damaged_vector_of_huge_numbers_is_found_without_a_warning(
    path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        huge = np.asarray([3e38, 3e38], dtype=np.float32).tobytes()
        connection.execute("UPDATE vectors SET vector = ? WHERE key = ?", (huge, key(3)))
        connection.commit()
    code, said = run(capsys, "check", path)
    assert code == 1
    assert "1 vectors not of unit length" in said
    assert not recwarn.list


def test_a_cache_in_use_is_not_repaired(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = CacheStore(path)
    code, said = run(capsys, "repair", path)
    assert code == 2
    assert "is in use" in said
    store.close()
    assert run(capsys, "repair", path)[0] == 0


def test_repair_keeps_the_batch_journal(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Journal(path)) as journal:
        journal.add([JournalledCall(name, "/chat/completions", b'{"model": "m"}') for name in ("a", "b", "c")])
        journal.keep({"a": (200, b'{"choices": []}')})
        journal.accepted(journal.begin([call for call in journal.open_calls() if call.name == "b"], "here"), "batch-7")
    code, said = run(capsys, "repair", path)
    assert (code, "1 batches, 1 replies of batches kept, left out: nothing" in said) == (0, True)
    with closing(Journal(path)) as journal:
        assert [batch.at_provider for batch in journal.under_way("here")] == ["batch-7"]
        assert [call.name for call in journal.calls_of(journal.under_way("here")[0])] == ["b"]
        assert journal.reply("a") == (200, {"choices": []})


@pytest.mark.parametrize(
    "planted",
    [
        "INSERT INTO batch_calls (name, path, body, attempts) VALUES ('z', '/chat/completions', 7, 'many')",
        "INSERT INTO batches (id, server, path, state, at_provider) VALUES ('z', 'here', '/chat/completions', 'accepted', x'00')",
        "INSERT INTO batch_replies VALUES ('z', 'fine', x'7b7d')",
        "INSERT INTO batch_replies VALUES ('z', 200, x'7b')",
    ],
)
def test_rows_that_no_batch_journal_has_written_are_named_and_left_out_by_repair(
    planted: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Journal(path)) as journal:
        journal.add([JournalledCall("a", "/chat/completions", b'{"model": "m"}')])
        journal.keep({"b": (200, b'{"choices": []}')})
    with closing(sqlite3.connect(path)) as file:
        file.execute(planted)
        file.commit()
    with pytest.raises(DamagedCache, match="has values of other types"):
        Journal(path)
    code, said = run(capsys, "check", path)
    assert (code, f"1 rows of {planted.split()[2]} with values of other types" in said) == (1, True)
    assert run(capsys, "repair", path)[0] == 0
    with closing(Journal(path)) as journal:
        assert [call.name for call in journal.open_calls()] == ["a"]
        assert journal.replied() == {"b"}


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal"])
def test_a_pipe_in_the_place_of_a_file_of_sqlite_is_refused_and_not_waited_for(
    ending: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = path.with_name(path.name + ending)
    part.unlink(missing_ok=True)
    os.mkfifo(part)
    for command in ("check", "repair", "stats", "pack"):
        code, said = run(capsys, command, path)
        assert (code, said.startswith("error: ")) == (2, True)
    with pytest.raises(DamagedCache, match="no plain file"):
        CacheStore(path)


def test_a_link_is_followed_to_a_cache_alone_and_makes_none_of_an_empty_or_missing_file(path: Path) -> None:
    link = path.with_name("linked.sqlite")
    link.symlink_to(path)
    with closing(CacheStore(link)) as store:
        assert store.answer(key(0)) is not None
    notes = path.with_name("notes")
    link.unlink()
    link.symlink_to(notes)
    for _ in ("missing", "empty"):
        for opened in (CacheStore, Journal):
            with pytest.raises(DamagedCache, match=r"is a link to no cache\); move it away, or name another"):
                opened(link)
        notes.touch()
    for ending in ("-wal", "-shm", "-journal"):
        beside = path.with_name(path.name + ending)
        beside.unlink(missing_ok=True)
        beside.symlink_to(notes)
        with pytest.raises(DamagedCache, match="is a link or no plain file"):
            CacheStore(path)
        beside.unlink()
    assert notes.read_bytes() == b""


def test_a_store_that_is_opened_during_a_repair_waits_and_writes_to_the_new_file(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opening: list[threading.Thread] = []

    def answer() -> None:
        store = CacheStore(path)
        store.keep_answer(key(9000), Completion("paid"))
        store.close()

    def replace(old: Path, new: Path) -> None:
        if not opening:  # everything is copied, nothing is in its place yet
            opening.append(threading.Thread(target=answer))
            opening[0].start()
            opening[0].join(0.5)
        os.rename(old, new)

    monkeypatch.setattr("scripts.commands.cache.os.replace", replace)
    assert run(capsys, "repair", path)[0] == 0
    opening[0].join()
    with closing(CacheStore(path)) as store:
        assert store.answer(key(9000)) == Completion("paid")


def test_pack_leaves_everything_in_the_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "import os, sys\nfrom pathlib import Path\nfrom memsys.llm.protocol import Completion\nfrom memsys.llm.store import CacheStore\n"
        "written = CacheStore(Path(sys.argv[1])).keep_answer(b'k' * 32, Completion('kept'))\n"
        "written.add_done_callback(lambda _: os._exit(9))\nimport time; time.sleep(60)"
    )
    path = tmp_path / "cache.sqlite"
    assert subprocess.run([sys.executable, "-c", command, str(path)], check=False).returncode == 9
    assert Path(f"{path}-wal").stat().st_size > 0  # the process was killed: the answer is not in the file
    assert run(capsys, "pack", path)[0] == 0
    copy = shutil.copy(path, tmp_path / "copy.sqlite")
    with closing(CacheStore(Path(copy))) as store:
        assert store.answer(b"k" * 32) == Completion("kept")


def test_check_names_keys_that_are_no_hashes_and_repair_leaves_them_out(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("INSERT INTO answers SELECT x'01', completion FROM answers LIMIT 1")
    with closing(CacheStore(path)) as store:
        assert store.answer(key(0)) is not None  # one odd key disturbs no lookup
    assert f"{path}: 1 rows of answers whose key has not 32 bytes\n" in run(capsys, "check", path)[1]
    assert "2000 answers and 20 vectors kept, left out: 1 rows" in run(capsys, "repair", path)[1]
    assert run(capsys, "check", path) == (0, f"{path}: whole\n")
