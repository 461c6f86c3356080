"""Mistakes of users: each is answered in one clear line, with exit code 2 and no traceback, before anything is built."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from scripts.command import main
from scripts.mock.endpoint import Mock, application, serving

pytestmark = pytest.mark.slow

ONLINE = "network=true models.memory=m models.reader=m models.judge=m models.embedder=e"
MISTAKES: Mapping[str, str] = {
    # names
    "runn memory=bm25": "no verb called 'runn'; did you mean run?",
    "run memory=mine.yaml": "put the file into conf/memory/ of the working folder",
    "run memory=segtre_td": "no memory called 'segtre_td'; did you mean segtree_td?",
    "run dataset=locomoo": "no dataset called 'locomoo'; did you mean locomo?",
    "run profile=smok": "no profile called 'smok'; did you mean smoke?",
    "reproduce table=segtreemem_t44": "no table called 'segtreemem_t44'; did you mean segtreemem_t4?",
    "reproduce columns=[locomoo]": "locomoo is no column group of segtreemem_t4 (did you mean locomo?)",
    "reproduce only=[bm26]": "only: bm26 is no row of segtreemem_t4 (did you mean bm25?)",
    "reproduce table=segtreemem_t3 data.transform=oracle": "sets the transform permute itself; data.transform must be none",
    "reproduce backbone=none": "segtreemem_t4 has no backbone 'none'; there are: default",
    "figures figure=nine": "no figure called 'nine'; there are: growth",
    "judge-card --judge memo": "no judge called 'memo'; did you mean mem0?\n",
    "fetch locomoo": "no data set called 'locomoo'; did you mean locomo?\n",
    "compare bm26 recency": "no memory called 'bm26'; did you mean bm25?\n",
    "compare bm25 recency --metric rouge": "no metric 'rouge'; there are: judge_mem0, ",
    "order-test bm25 --metric rouge": "no metric 'rouge'; there are: judge_mem0, ",
    "run dataset.metrics=[locomo_f2]": "no metric called locomo_f2; did you mean locomo_f1?\n",
    "product nosuch": "no product called 'nosuch'; there are: cognee",
    "compare bm25": "compare needs two memories or more, each named once; found: bm25",
    # settings
    "run bm25 locomo more": "cannot read the setting 'more'; settings are written name=value",
    "run data.siez=5": "data.siez is not a setting of this command; did you mean data.size?",
    "run table=local": "table is not a setting of this command; it is one of reproduce, change, budgets",
    "run data.size=many": "data.size must be a whole number of at least 1, or all; found 'many'",
    "run memory=reference_mcp memory.build.env={{A:b}}": "or not with these keys; +memory.build.env=… adds it",
    "run memory.build.k=ten": "memory bm25: k must be a whole number, found 'ten'",
    "run yes=maybe": "yes must be true or false, found 'maybe'",
    "run shard=3/2": "shard must be i/n with 1 <= i <= n, such as 1/4; found '3/2'",
    "run memory=broken": "conf/memory/broken.yaml, line 3: broken YAML: ",
    "run memory=utf16": "conf/memory/utf16.yaml: expected UTF-8, found byte 0xff at offset 0",
    "judge-card --judge dollar": "conf/judge/dollar.yaml: rubric: Interpolation key 'x' not found; write \\${ for the characters ${",
    # data and files
    "run data.root=/no/such data.source=real": "data.root (make … DATA=): no folder /no/such; create it",
    "run data.root={here}": "is not read while data.source=sample takes the shipped samples; add data.source=real",
    "run data.root={here} data.source=real": "locomo/locomo10.json: no such file. Get it with: python -m scripts fetch",
    "run dataset=jsonl data.root={here} data.source=real data.unpinned=true": "own.jsonl: line 1.id: expected string",
    "run dataset=msc_e dataset.file=none data.root={here} data.source=real data.unpinned=true": "none: expected at least one history",
    "run results=a_file": "a part of this path is a file where a folder is needed; name another folder with results=",
    "card nope": "nope is neither a run folder (results/runs/<dataset>/<memory>-<identity>) nor a table",
    "card /no/run": "/no/run is not a run folder (no run.json); run folders are results/runs/",
    "report /no/folder": "no folder /no/folder; name the results folder, such as: python -m scripts report results",
    "check-answers a_file": "a_file: expected JSON, JSON Lines or a CSV with a header, found another kind of text",
    "import-answers none.json dataset=locomo as=x": "no file or folder none.json\n",
    "claims memorylake --data {here}": "no claim's files are there; memorylake: 10 of 10 files are not there, such as third_",
    "new-memory bm25": "there is a memory called bm25 already; nothing was written",
    # money, models and servers
    f"run {ONLINE} endpoint.base_url={{url}} max_usd=5": "there is none for m (memory, reader, judge, probe), e (embedder)",
    f"run {ONLINE} endpoint.base_url={{url}} prices=none.yaml": "prices=none.yaml: cannot be read",
    f"run {ONLINE} endpoint.base_url={{url}} prices=odd.yaml": "prices.m: expected {in: …, out: …} or free, found 'cheap'",
    f"run {ONLINE} endpoint.base_url={{root}} endpoint.retries=0": "HTTP 404",
    f"run {ONLINE} endpoint.base_url={{closed}} endpoint.retries=0 endpoint.patience=0": "cannot connect",
    f"run {ONLINE} endpoint.base_url=127.0.0.1:8000/v1": "endpoint.base_url must begin with http:// or https://",
    "run memory=released_mem0": "the product mem0ai is not installed: make product NAME=mem0ai",
    "run profile=local local.model=missing.gguf": "no local model 'missing.gguf': expected a file, or one of conf/local",
    "run profile=local local.model=a_file": "a_file: expected a GGUF model, found a file that begins with b'x'",
    "gateway --base-url {url}": "--model is missing (or --stand-in, for the offline engine)",
    "gateway --base-url {url} --model m --port {taken}": "port {taken} is taken",
    "mock-endpoint --port {taken}": "this port is in use; --port names another, --port 0 takes any free one",
}
"""By command line: what the one line says; a line break stands for its end."""


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, str]]:
    """A server that answers, its address without /v1, one where nothing listens, and a port that is taken."""
    with serving(application(Mock())) as url, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        yield {"url": url, "root": url.removesuffix("/v1"), "closed": "http://127.0.0.1:9/v1", "taken": port}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that the mistakes speak of."""
    (tmp_path / "conf" / "memory").mkdir(parents=True)
    (tmp_path / "conf" / "memory" / "broken.yaml").write_text("name: broken\ntitle: [\nbuild: x: y\n")
    (tmp_path / "conf" / "memory" / "utf16.yaml").write_text("name: utf16\n", encoding="utf-16")
    (tmp_path / "conf" / "judge").mkdir()
    (tmp_path / "conf" / "judge" / "dollar.yaml").write_text("rubric: It costs ${x}.\n")
    (tmp_path / "a_file").write_text("x")
    (tmp_path / "odd.yaml").write_text("m: cheap\n")
    (tmp_path / "none").write_text("")
    (tmp_path / "own.jsonl").write_text(json.dumps({"id": 3}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["memsys-bench"])
    monkeypatch.setenv("MEMSYS_PRODUCTS", str(tmp_path / "none"))
    return tmp_path


def test_there_are_thirty_and_more() -> None:
    assert len(MISTAKES) >= 30


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_clear_line(
    mistake: str, here: Path, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.rglob("*"))
    assert main(mistake.format(here=here, **places).split()) == 2
    told = capsys.readouterr()
    # without the log of the mock, which runs in this process, too
    first, *more = (line for line in told.err.splitlines() if not line.startswith("127.0.0.1 ["))
    assert first.startswith("error: ")
    assert MISTAKES[mistake].replace("{taken}", places["taken"]) in f"{first}\n"
    assert all(line.startswith("  ") for line in more), "only the remedy may follow"
    assert told.out == ""
    assert not [path for path in sorted(here.rglob("*")) if path not in before and "runs" in path.parts]
