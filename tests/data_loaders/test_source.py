from __future__ import annotations

import hashlib
import io
import json
import random
import re
import shutil
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_loaders import download as downloading
from data_loaders import source
from data_loaders.download import download, unpack
from data_loaders.schema import DataError
from data_loaders.source import Archive, Entry, Hub, entries_for, file_sha256, find, locate, manifest, sample
from scripts.assembly import datasets as downloads
from scripts.command import verb
from scripts.setup.options import load_option

CONTENT = bytes(range(256)) * 4000
SUM = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """A file server on this machine that records the ranges it was asked for and can be told to misbehave."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: list[str | None] = field(default_factory=list)
    break_after: int | None = None
    knows_ranges: bool = True
    length: str = ""
    """A false Content-Length."""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range") if state.knows_ranges else None
            state.ranges.append(self.headers.get("Range"))
            body = state.files.get(self.path)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            if body is None or start >= len(body):
                self.send_error(404 if body is None else 416)
                return
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", state.length or str(len(body) - start))
            self.end_headers()
            self.wfile.write(body[start : None if state.break_after is None else start + state.break_after])

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{running.server_port}"
    yield state
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Entry]:
    """A manifest of the test's own, instead of the shipped one."""
    entries: dict[str, Entry] = {}
    monkeypatch.setattr(source, "manifest", lambda: entries)
    return entries


def entry(file: str, **fields: object) -> Entry:
    return replace(Entry(file, "set", "official", "CC BY 4.0", sha256=SUM), **fields)  # type: ignore[arg-type]


def put(root: Path, file: str, content: bytes = CONTENT) -> Path:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- finding ---


def test_a_known_file_is_found_with_its_hash_and_status(tmp_path: Path, known: dict[str, Entry]) -> None:
    known["set/a.json"] = entry("set/a.json", note="first release")
    path = put(tmp_path, "set/a.json")
    found = find("set/a.json", root=tmp_path)
    assert (found.path, found.sha256, found.status, found.note) == (path, SUM, "official", "first release")


def test_a_changed_file_is_refused_unless_it_is_declared_unpinned(tmp_path: Path, known: dict[str, Entry]) -> None:
    known["set/a.json"] = entry("set/a.json")
    put(tmp_path, "set/a.json", CONTENT + b"!")
    with pytest.raises(DataError, match=f"expected sha256 {SUM}, found"):
        find("set/a.json", root=tmp_path)
    assert find("set/a.json", root=tmp_path, unpinned=True).status == "unpinned"


def test_a_file_that_changes_after_it_was_hashed_is_hashed_again(tmp_path: Path) -> None:
    path = put(tmp_path, "a", b"one")
    before = file_sha256(path)
    path.write_bytes(b"three")
    assert file_sha256(path) == hashlib.sha256(b"three").hexdigest() != before


def test_a_file_whose_hash_nobody_published_is_refused_too(tmp_path: Path, known: dict[str, Entry]) -> None:
    known["set/a.json"] = entry("set/a.json", sha256="")
    for name in ("set/a.json", "set/stranger.json"):
        put(tmp_path, name)
        with pytest.raises(
            DataError, match=r"found sha256 [0-9a-f]{64}\. To use the file anyway, add data\.unpinned=true"
        ):
            find(name, root=tmp_path)
        assert find(name, root=tmp_path, unpinned=True).sha256 == SUM


def test_a_hash_known_by_its_ends_must_match_both(tmp_path: Path, known: dict[str, Entry]) -> None:
    put(tmp_path, "a")
    known["a"] = entry("a", sha256=f"{SUM[:8]}...{SUM[-8:]}")
    assert find("a", root=tmp_path).status == "official"
    for wrong in (f"{SUM[:8]}...00000000", f"00000000...{SUM[-8:]}"):
        known["a"] = entry("a", sha256=wrong)
        with pytest.raises(DataError, match="expected sha256"):
            find("a", root=tmp_path)


def test_a_missing_file_comes_back_as_the_command_that_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError) as caught:
        find("locomo/locomo10.json", root=tmp_path)
    assert str(caught.value).endswith(f"python -m scripts fetch locomo --data {tmp_path}")
    monkeypatch.setenv("MEMSYS_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"python -m scripts fetch locomo; if you have it, name its folder \(--data, "):
        find("locomo/locomo10.json", root=None)
    with pytest.raises(DataError, match=r"scripts fetch longmemeval_s_cleaned --unpinned; "):
        find("longmemeval/longmemeval_s_cleaned.json", root=None)
    with pytest.raises(DataError, match="No public download is known"):
        find("msc_e/msc_e.jsonl", root=None)


def test_the_root_is_the_argument_else_the_environment_else_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMSYS_DATA", str(tmp_path / "env"))
    assert source.data_root(tmp_path) == tmp_path
    assert source.data_root() == tmp_path / "env"
    monkeypatch.delenv("MEMSYS_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert source.data_root() == tmp_path / "memsys-bench"


def test_a_folder_is_official_when_complete_and_partial_when_not(tmp_path: Path, known: dict[str, Entry]) -> None:
    for name in ("b.json", "a.json"):
        known[f"set/{name}"] = entry(f"set/{name}")
        put(tmp_path, f"set/{name}")
    put(tmp_path, "set/README.md", b"hello")
    found = find("set", root=tmp_path)
    lines = f"{SUM}  a.json\n{SUM}  b.json\n"
    assert (found.status, found.sha256) == ("official", hashlib.sha256(lines.encode()).hexdigest())
    (tmp_path / "set/b.json").unlink()
    partial = find("set", root=tmp_path)
    assert partial.status == "partial"
    assert partial.note.startswith("missing: b.json")
    assert partial.sha256 != found.sha256
    known |= {name: replace(each, status="excerpt") for name, each in known.items()}
    assert (found := find("set", root=tmp_path)).status == "partial", "an excerpt is not the official file"
    assert found.note == ""


def test_a_folder_with_a_changed_or_an_unknown_file_is_refused(tmp_path: Path, known: dict[str, Entry]) -> None:
    known["set/a.json"] = entry("set/a.json")
    put(tmp_path, "set/a.json")
    put(tmp_path, "set/extra.json")
    with pytest.raises(
        DataError, match=r"expected files of the manifest only, found set/extra\.json\. To use them too, add "
    ):
        find("set", root=tmp_path)
    assert find("set", root=tmp_path, unpinned=True).status == "unpinned"
    (tmp_path / "set/extra.json").unlink()
    put(tmp_path, "set/a.json", b"changed")
    with pytest.raises(DataError, match="expected sha256"):
        find("set", root=tmp_path)


def test_an_empty_folder_is_as_good_as_missing(tmp_path: Path) -> None:
    (tmp_path / "realmem" / "dataset").mkdir(parents=True)
    with pytest.raises(
        DataError, match=r"the folder has none of its files\. Get it with: python -m scripts fetch realmem"
    ):
        find("realmem/dataset", root=tmp_path)


def test_samples_are_found_by_name_as_files_and_folders() -> None:
    one, many = sample("locomo.json"), sample("audit")
    assert one.status == many.status == "sample"
    assert one.sha256 == file_sha256(one.path)
    line = f"{file_sha256(many.path / 'errors.json')}  errors.json\n"
    assert many.sha256 == hashlib.sha256(line.encode()).hexdigest()
    with pytest.raises(DataError, match="no such sample"):
        sample("absent.json")


# --- the shipped manifest ---


def test_every_entry_of_the_manifest_is_well_formed() -> None:
    for file, each in manifest().items():
        assert each.file == file
        assert each.licence
        assert each.status in ("official", "partial", "excerpt", "derived")
        assert each.sha256 == "" or len(each.sha256) == 64
        for url in (each.url, each.archive.url if each.archive else ""):
            assert url == "" or url.startswith("https://")
    assert manifest()["locomo/locomo10.json"].bytes == 2_805_274


def test_a_folder_is_downloaded_by_its_files_or_by_the_archive_above_it() -> None:
    assert len(entries_for("realmem/dataset")) == 10
    assert [each.file for each in entries_for("msc/msc_dialogue")] == ["msc"]
    assert entries_for("msc_self_instruct/dmr_qa_500.jsonl") == ()


# --- downloading ---


def test_a_download_is_verified_put_in_place_and_states_its_licence(
    tmp_path: Path, server: Server, known: dict[str, Entry], capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/a"] = CONTENT
    known["set/a"] = entry("set/a", url=f"{server.url}/a", bytes=len(CONTENT))
    assert download(known["set/a"], tmp_path).read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["a"]
    assert "licence CC BY 4.0" in capsys.readouterr().err
    download(known["set/a"], tmp_path)
    assert server.ranges == [None]  # the second call found it in place


def test_a_server_that_cannot_be_reached_is_one_sentence_at_the_end_for_all_its_files(
    tmp_path: Path, known: dict[str, Entry], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(downloads, "manifest", lambda: known)
    monkeypatch.setattr("scripts.commands.fetch.options", lambda group: ["one", "two"])
    for name in ("one", "two"):
        known[f"set/{name}"] = entry(f"set/{name}", dataset=name, url="http://127.0.0.1:9/a")
    monkeypatch.setattr("scripts.commands.fetch.entries_to_download", lambda name: [known[f"set/{name}"]])
    assert verb("fetch", ["all", "--data", str(tmp_path)]) == 1
    *licences, last = capsys.readouterr().err.strip().splitlines()
    assert all("licence" in line for line in licences)
    assert re.fullmatch(r"error: 127\.0\.0\.1 cannot be reached \(.*\); once it can, run the same command again", last)


def test_a_set_without_a_public_address_fails_by_name_and_not_among_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.commands.fetch.options", lambda group: ["jsonl"])
    for name, code in (("all", 0), ("jsonl", 1)):
        assert verb("fetch", [name, "--data", str(tmp_path)]) == code
        assert capsys.readouterr().err.startswith("jsonl: no public download is known for own.jsonl")


def test_a_broken_download_is_resumed_where_it_broke_off(
    tmp_path: Path, server: Server, known: dict[str, Entry]
) -> None:
    server.files["/a"] = CONTENT
    known["a"] = entry("a", url=f"{server.url}/a")
    server.break_after = 300_000
    with pytest.raises(DataError, match=r"broke off .* run the same command again"):
        download(known["a"], tmp_path)
    assert (tmp_path / "a.part").stat().st_size == 300_000
    assert not (tmp_path / "a").exists()
    server.break_after = None
    assert download(known["a"], tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]


def test_a_length_that_is_no_number_is_ignored(tmp_path: Path, server: Server, known: dict[str, Entry]) -> None:
    server.files["/a"] = CONTENT
    known["a"] = entry("a", url=f"{server.url}/a")
    server.length = "soon"
    assert download(known["a"], tmp_path).read_bytes() == CONTENT


def test_a_server_without_ranges_is_asked_for_everything_again(
    tmp_path: Path, server: Server, known: dict[str, Entry]
) -> None:
    server.files["/a"] = CONTENT
    server.knows_ranges = False
    put(tmp_path, "a.part", CONTENT[:1000])
    known["a"] = entry("a", url=f"{server.url}/a")
    assert download(known["a"], tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_only_verified(tmp_path: Path, server: Server, known: dict[str, Entry]) -> None:
    server.files["/a"] = CONTENT
    put(tmp_path, "a.part")
    known["a"] = entry("a", url=f"{server.url}/a")
    assert download(known["a"], tmp_path).read_bytes() == CONTENT


def test_a_download_with_the_wrong_hash_is_removed(tmp_path: Path, server: Server, known: dict[str, Entry]) -> None:
    server.files["/a"] = CONTENT[:-1] + b"?"
    known["a"] = entry("a", url=f"{server.url}/a")
    with pytest.raises(DataError, match=f"expected sha256 {SUM}, downloaded"):
        download(known["a"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_more_bytes_than_announced_are_not_written(tmp_path: Path, server: Server, known: dict[str, Entry]) -> None:
    server.files["/a"] = CONTENT * 3
    known["a"] = entry("a", url=f"{server.url}/a", bytes=len(CONTENT))
    with pytest.raises(DataError, match="expected at most 1,024,000 bytes"):
        download(known["a"], tmp_path)
    assert (tmp_path / "a.part").stat().st_size <= len(CONTENT)


def test_an_unpinned_download_must_be_wanted_and_never_splices_two_versions(
    tmp_path: Path, server: Server, known: dict[str, Entry]
) -> None:
    server.files["/a"] = CONTENT
    known["a"] = entry("a", url=f"{server.url}/a", sha256="")
    with pytest.raises(DataError, match="accept with --unpinned"):
        download(known["a"], tmp_path)
    put(tmp_path, "a.part", b"an older version")
    assert download(known["a"], tmp_path, unpinned=True).read_bytes() == CONTENT
    assert server.ranges == [None]


def test_a_missing_page_and_a_plain_http_address_are_data_errors(
    tmp_path: Path, server: Server, known: dict[str, Entry]
) -> None:
    with pytest.raises(DataError, match="HTTP status 404"):
        download(entry("a", url=f"{server.url}/absent"), tmp_path)
    with pytest.raises(DataError, match="expected an https address"):
        download(entry("a", url="http://example.org/a"), tmp_path)
    with pytest.raises(DataError, match="no public download is known"):
        download(entry("a"), tmp_path)


def test_hub_files_and_splits_come_through_the_hub_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: dict[str, Entry]
) -> None:
    asked: list[object] = []
    cached = put(tmp_path, "cache/blob")

    def hf_hub_download(*args: str, **options: str) -> str:
        asked.append((args, options))
        return str(cached)

    def load_dataset(*args: str, **options: str) -> SimpleNamespace:
        asked.append((args, options))
        return SimpleNamespace(to_parquet=lambda path: shutil.copyfile(cached, path))

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=hf_hub_download))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    download(entry("file.json", hub=Hub("org/name", "abc", file="x.json")), tmp_path)
    download(entry("split.parquet", hub=Hub("org/name", "abc", split="test")), tmp_path)
    assert asked == [
        (("org/name", "x.json"), {"repo_type": "dataset", "revision": "abc"}),
        (("org/name",), {"revision": "abc", "split": "test"}),
    ]
    assert (tmp_path / "file.json").read_bytes() == (tmp_path / "split.parquet").read_bytes() == CONTENT
    assert cached.exists()


# --- archives ---


def tar_of(path: Path, members: dict[str, bytes], **odd: bytes) -> Path:
    """A tar.gz with these files; `odd` sets the type of one more member called `odd` (linking to /etc/passwd)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for kind in odd.values():
            info = tarfile.TarInfo("odd")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    return path


def zip_of(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return path


def test_wanted_members_are_unpacked_below_the_folder_whatever_stands_above_them(tmp_path: Path) -> None:
    members = {"top/talk/s_1/a.txt": b"one", "top/talk/s_2/a.txt": b"two", "top/other/a.txt": b"three"}
    for archive in (tar_of(tmp_path / "x.tar.gz", members), zip_of(tmp_path / "x.zip", members)):
        into = tmp_path / f"{archive.name}.d"
        assert unpack(archive, into, "talk/s_*/*.txt") == ("talk/s_1/a.txt", "talk/s_2/a.txt")
        assert (into / "talk/s_2/a.txt").read_bytes() == b"two"
        assert sorted(path.name for path in into.rglob("*")) == ["a.txt", "a.txt", "s_1", "s_2", "talk"]


def test_without_a_pattern_every_member_keeps_its_whole_path(tmp_path: Path) -> None:
    members = {"config.json": b"one", "pooling/config.json": b"two", "LICENSE": b"three"}
    for archive in (tar_of(tmp_path / "x.tar.gz", members), zip_of(tmp_path / "x.zip", members)):
        into = tmp_path / f"{archive.name}.d"
        assert unpack(archive, into) == ("LICENSE", "config.json", "pooling/config.json")
        assert {name: (into / name).read_bytes() for name in members} == members


@pytest.mark.parametrize("name", ["../a.txt", "/abs/a.txt", "x/../../a.txt", "..\\a.txt", "C:a.txt"])
def test_a_path_that_leaves_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    for archive in (tar_of(tmp_path / "x.tar.gz", {name: b"x"}), zip_of(tmp_path / "x.zip", {name: b"x"})):
        with pytest.raises(DataError, match="relative paths"):
            unpack(archive, tmp_path / "into", "*.txt")
    assert not list(tmp_path.rglob("a.txt"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "x.tar.gz", {"a.txt": b"fine"}, kind=kind)
    with pytest.raises(DataError, match="plain files"):
        unpack(archive, tmp_path / "into", "*.txt")
    assert not (tmp_path / "into" / "a.txt").exists()  # nothing is put in place before all is unpacked


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("a.txt")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="plain files"):
        unpack(tmp_path / "x.zip", tmp_path / "into", "*.txt")


@pytest.mark.slow
def test_a_bomb_is_refused_by_ratio_by_size_and_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = {"a.txt": bytes(20_000_000)}
    for archive in (tar_of(tmp_path / "x.tar.gz", zeros), zip_of(tmp_path / "x.zip", zeros)):
        with pytest.raises(DataError, match="bomb"):
            unpack(archive, tmp_path / "into", "*.txt")
    fair = zip_of(tmp_path / "fair.zip", {f"{i}.txt": b"some words" for i in range(5)})
    monkeypatch.setattr(downloading, "MAX_UNPACKED", 49)
    with pytest.raises(DataError, match="bomb"):
        unpack(fair, tmp_path / "into", "*.txt")
    monkeypatch.setattr(downloading, "MAX_UNPACKED", 50)
    assert len(unpack(fair, tmp_path / "into", "*.txt")) == 5
    monkeypatch.setattr(downloading, "MAX_MEMBERS", 4)
    with pytest.raises(DataError, match="bomb"):
        unpack(fair, tmp_path / "into2", "*.txt")


def test_a_damaged_archive_and_one_without_the_members_are_data_errors(tmp_path: Path) -> None:
    whole = tar_of(tmp_path / "x.tar.gz", {"a.txt": random.Random(0).randbytes(200_000)}).read_bytes()
    for content in (b"", b"no archive", whole[: len(whole) // 2]):
        with pytest.raises(DataError, match="expected a readable zip or tar archive"):
            unpack(put(tmp_path, "bad", content), tmp_path / "into", "*.txt")
    with pytest.raises(DataError, match=r"expected members named \*\.json, found none"):
        unpack(put(tmp_path, "good", whole), tmp_path / "into", "*.json")


SPARSE: Mapping[str, dict[str, str]] = {
    "a map that is no numbers": {"GNU.sparse.map": "1,x"},
    "a size that is no number": {"GNU.sparse.size": "abc"},
    "a real size that is no number": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "q"},
    "blocks that are no numbers": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "600"},
    "a sparse member that is sound": {"GNU.sparse.map": "0,10", "GNU.sparse.size": "600"},
}


@pytest.mark.parametrize("headers", SPARSE.values(), ids=SPARSE)
def test_a_sparse_tar_malformed_or_not_is_a_data_error_in_one_line(tmp_path: Path, headers: dict[str, str]) -> None:
    """The library raises a bare ValueError for the numbers of a sparse member, and no data set has such members."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.json")
        info.size, info.pax_headers = 600, headers
        tar.addfile(info, io.BytesIO(b"z\n" * 300))
    with pytest.raises(DataError, match=r"^x\.tar: expected [^\n]+$"):
        unpack(path, tmp_path / "into", "*.json")
    assert not list((tmp_path / "into").iterdir())


def test_after_an_archive_that_cannot_be_read_the_same_command_downloads_it_anew(
    tmp_path: Path, server: Server, known: dict[str, Entry]
) -> None:
    whole = tar_of(tmp_path / "x.tar.gz", {"top/talk/a.txt": b"one"}).read_bytes()
    known["set"] = entry("set", sha256="", archive=Archive(f"{server.url}/x.tar.gz", "set", "talk/*.txt", ""))
    known["set/talk/a.txt"] = entry("set/talk/a.txt", sha256="")
    for content in (b"rubbish", whole[:-20]):
        server.files["/x.tar.gz"] = content
        with pytest.raises(DataError, match="Run the same command again"):
            download(known["set"], tmp_path / "root", unpinned=True)
    server.files["/x.tar.gz"] = whole
    download(known["set"], tmp_path / "root", unpinned=True)
    assert (tmp_path / "root" / "set" / "talk" / "a.txt").read_bytes() == b"one"
    assert find("set/talk", root=tmp_path / "root", unpinned=True).status == "unpinned", "the archive was not verified"


def test_members_of_a_verified_archive_are_known_afterwards(
    tmp_path: Path, server: Server, known: dict[str, Entry]
) -> None:
    packed = tar_of(tmp_path / "x.tar.gz", {"top/talk/a.txt": b"one", "top/talk/b.txt": b"two"}).read_bytes()
    server.files["/x.tar.gz"] = packed
    pinned = hashlib.sha256(packed).hexdigest()
    known["set"] = entry("set", sha256="", archive=Archive(f"{server.url}/x.tar.gz", "set", "talk/*.txt", pinned))
    known["set/talk/a.txt"] = entry("set/talk/a.txt", sha256="")
    known["set/talk/b.txt"] = entry("set/talk/b.txt", sha256="")
    root = tmp_path / "root"
    download(known["set"], root)
    assert find("set/talk", root=root).status == "official"
    assert not (root / "set" / "x.tar.gz").exists()
    download(known["set"], root)
    assert len(server.ranges) == 1
    put(root, "set/talk/b.txt", b"changed")
    with pytest.raises(DataError, match="expected sha256"):
        find("set/talk", root=root)


# --- the two commands ---


def test_fetch_downloads_what_a_data_set_needs(
    tmp_path: Path, server: Server, known: dict[str, Entry], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(downloads, "manifest", lambda: known)
    server.files["/a"] = CONTENT
    for file in ("locomo/locomo10.json", "locomo/audit/errors.json"):
        known[file] = entry(file, url=f"{server.url}/a")
    assert verb("fetch", ["locomo_corrected", "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "locomo/locomo10.json"), str(tmp_path / "locomo/audit/errors.json"),
    ]  # fmt: skip
    assert verb("fetch", ["no_such_set", "--data", str(tmp_path)]) == 2
    assert "no data set called 'no_such_set'" in capsys.readouterr().err


def test_fetch_gets_every_published_file_of_answers_and_states_its_licence(
    tmp_path: Path, server: Server, known: dict[str, Entry], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(downloads, "manifest", lambda: known)
    shipped = [each for each in manifest().values() if each.dataset == "answers"]
    assert len(shipped) == 3
    assert all(each.downloadable and each.sha256 and each.licence for each in shipped)
    for number, each in enumerate(
        shipped
    ):  # the owners' hosts, played by this machine; another content, so another hash
        server.files[f"/{number}"] = CONTENT
        known[each.file] = replace(each, url=f"{server.url}/{number}", sha256=SUM)
    asked: list[Path] = []  # the claims, fetched with them, have owners and tests of their own
    monkeypatch.setattr("scripts.commands.fetch.fetch_claims", lambda root: (asked.append(root), ([], []))[1])
    assert verb("fetch", ["answers", "--data", str(tmp_path)]) == 0
    assert asked == [tmp_path]
    printed = capsys.readouterr()
    assert printed.out.split() == [str(tmp_path / each.file) for each in shipped]
    assert all(f"{each.file}: licence {each.licence}" in printed.err for each in shipped)
    known[shipped[0].file] = shipped[0]
    monkeypatch.setattr("data_loaders.source.manifest", manifest)
    with pytest.raises(DataError, match=shipped[0].sha256):
        find(shipped[0].file, root=tmp_path)


@pytest.mark.slow
def test_every_official_download_can_be_asked_for_by_its_name() -> None:
    for each in manifest().values():
        if each.downloadable:
            assert each in downloads.entries_to_download(each.dataset), each.file


@pytest.mark.parametrize("name", ["locomo", "locomo_audited", "locomo_corrected", "locomo_sound"])
def test_the_data_report_counts_the_sample(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("data", [name, "--sample"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "turns          360" in lines
    assert "units          192 by ab_pair, keep_single; 0 turns in none" in lines
    assert "  temporal     13" in lines
    assert f"  open-domain  {3 if name == 'locomo_sound' else 4}" in lines
    assert "time span      2022-03-03 19:42:00 to 2024-11-30 10:10:00" in lines


def written(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[]", encoding="utf-8")
    return path


def test_what_a_data_set_takes_instead_is_taken_only_while_the_official_file_is_missing(tmp_path: Path) -> None:
    settings = load_option("dataset", "longmemeval_mab")
    with pytest.raises(DataError, match=re.escape(settings["file"])):
        locate(settings, root=tmp_path, unpinned=True)
    part = written(tmp_path / settings["instead"]["file"])
    assert locate(settings, root=tmp_path, unpinned=True).source.path == part
    official = written(tmp_path / settings["file"])
    assert locate(settings, root=tmp_path, unpinned=True).source.path == official
    assert locate(settings, real=False).source.status == "sample"


def test_what_is_taken_instead_may_need_other_choices_of_the_loader(tmp_path: Path) -> None:
    settings = load_option("dataset", "multihop_rag")
    written(tmp_path / "multihop_rag" / "corpus.surrogate.json")
    assert locate(settings, root=tmp_path, unpinned=True).choices["corpus"] == "corpus.surrogate.json"
    written(tmp_path / "multihop_rag" / "corpus.json")
    assert locate(settings, root=tmp_path, unpinned=True).choices["corpus"] == "corpus.json"


def test_a_missing_file_beside_the_data_is_an_error(tmp_path: Path) -> None:
    settings = {"file": "set/a.json", "also": ["set/b.json"], "load": {"_target_": "x"}, "sample": "locomo.json"}
    written(tmp_path / "set" / "a.json")
    with pytest.raises(DataError, match=r"b\.json: no such file"):
        locate(settings, root=tmp_path, unpinned=True)
    written(tmp_path / "set" / "b.json")
    assert [each.path.name for each in locate(settings, root=tmp_path, unpinned=True).beside] == ["b.json"]


def test_the_data_report_counts_what_is_taken_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It used to ask for the official file, although every experiment took what stands in for it."""
    settings = load_option("dataset", "quality_open")
    part = tmp_path / settings["instead"]["file"]
    part.parent.mkdir(parents=True)
    shutil.copy(sample(settings["sample"]).path, part)
    assert verb("data", ["quality_open", "--data", str(tmp_path), "--unpinned"]) == 0
    assert f"file           {part}" in capsys.readouterr().out


def test_the_data_report_ends_with_one_line_on_a_damaged_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load_option("dataset", "locomo_sound")
    shipped = sample(settings["sample"]).path
    target = tmp_path / settings["file"]
    shutil.copytree(shipped.parent / "audit", target.parent / "audit")
    records = json.loads(shipped.read_text(encoding="utf-8"))
    records[0]["qa"] = [7] * len(records[0]["qa"])
    target.write_text(json.dumps(records), encoding="utf-8")
    assert verb("data", ["locomo_sound", "--data", str(tmp_path), "--unpinned"]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: locomo10\.json\[0\]\.qa\[\d+\].*scripts fetch locomo.*\n", said)


def test_the_data_report_says_how_to_get_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("data", ["locomo", "--data", str(tmp_path)]) == 2
    assert "python -m scripts fetch locomo --data" in capsys.readouterr().err


def test_an_error_about_a_file_is_one_short_line_whatever_the_file_calls_its_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = json.loads(sample("locomo.json").path.read_text(encoding="utf-8"))
    records[0]["sample_id"] = "conv\nfake: line"
    records[0]["conversation"]["session_1"][0]["speaker"] = "x" * 10_000
    put(tmp_path, "locomo/locomo10.json", json.dumps(records).encode())
    assert verb("data", ["locomo", "--data", str(tmp_path), "--unpinned"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: locomo10.json: conv\\nfake: line.conversation.session_1[0].speaker: ")
    assert said.count("\n") == 1
    assert len(said) < 3000
