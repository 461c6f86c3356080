"""`memsys-bench probe`: a memory behind HTTP or MCP is examined and measured in one line, and a faulty one gets no table."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval.conformance.canaries import HISTORY
from eval.files.store import RunError
from memsys.interface import spoken
from scripts.command import verb
from scripts.commands.mock_memory import Service
from scripts.commands.probe import CANARY, _call, _results, _words
from scripts.mock.endpoint import serving
from scripts.mock.memory_store import Store
from scripts.setup.options import load_option

ROOT = Path(__file__).resolve().parents[2]
needs_mcp = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the package mcp is not installed: pip install -e '.[mcp]'"
)
TEXT = {"type": "string"}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """The reference service, described by `service.yaml` in the working folder."""
    monkeypatch.chdir(tmp_path)
    own = Service(Store())
    option = load_option("memory", "reference_http")
    with serving(own.application()) as url:
        Path("service.yaml").write_text(yaml.safe_dump({**option, "build": {**option["build"], "base_url": url}}))
        yield own


@pytest.mark.slow
def test_a_service_is_examined_and_its_evidence_stands_beside_bm25(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb("probe", ["--http", "service.yaml"]) == 0
    said = capsys.readouterr().out
    assert said.index("accepted") < said.index("## evidence@10 on LoCoMo")
    rows = {line.split(" | ")[0]: line.split(" | ") for line in said.splitlines() if line.startswith("| ")}
    ours, bm25 = rows["| Reference service (HTTP)"], rows["| BM25"]
    assert (ours[5], bm25[5]) == ("46", "46")
    gap = float(ours[1].split()[0]) - float(bm25[1].split()[0])
    assert float(ours[6].split()[0]) == pytest.approx(gap, abs=0.0011)
    assert ours[7] == "0 |"
    assert "STAND-IN" in said
    assert service.store.spaces == {}, "nothing is left at the service"
    assert not list(Path.cwd().rglob("predictions.jsonl"))


@pytest.mark.slow
def test_a_faulty_service_is_refused_by_name_and_gets_no_table(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.store.fault = "k ignored"
    assert verb("probe", ["--http", "service.yaml"]) == 1
    said = capsys.readouterr().out
    assert "refused: k ignored" in said
    assert "evidence@" not in said


@pytest.mark.slow
def test_a_wrong_line_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        (["--http", "missing.yaml"], "no file missing.yaml"),
        (["--http", "bm25", "--key", "A_KEY"], "--key and --save belong to --mcp"),
        (["--mcp", "no-such-program x"], "no program 'no-such-program' to start"),
    ):
        assert verb("probe", arguments) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


def test_what_arguments_are_given_follows_from_their_names() -> None:
    tools: dict[str, Any] = {
        "remember": {"properties": {"content": TEXT, "user_id": TEXT, "colour": TEXT}, "required": ["content"]},
        "store_memory": {"properties": {"text": TEXT, "date": TEXT}},
        "recall": {"properties": {"q": TEXT, "top_k": {"type": "integer"}}, "required": ["q"]},
    }
    assert _call("add", tools) == {"tool": "store_memory", "arguments": {"text": "{text}", "date": "{time_text}"}}
    del tools["store_memory"]
    undated = {"user_id": "{namespace}", "content": "{dated_text}"}
    assert _call("add", tools) == {"tool": "remember", "arguments": undated}, "its text must say the date"
    assert _call("search", tools) == {"tool": "recall", "arguments": {"q": "{query}", "top_k": "{k}"}}
    message = {"$ref": "#/$defs/Message"}
    listed = {
        "properties": {"messages": {"type": "array", "items": message}},
        "$defs": {"Message": {"properties": {"role": TEXT, "content": TEXT}}},
    }
    given = _call("add", {"add": listed})["arguments"]["messages"]
    assert given == {"each": "turns", "as": {"role": "{role}", "content": "{text}"}}


def test_a_tool_that_cannot_be_understood_is_refused_by_name() -> None:
    for tools, message in (
        ({"ping": {}}, "no tool of the server is known to search memories: it has ping"),
        ({"search": {"properties": {"colour": TEXT}}}, "none of its arguments (colour) is known to take {query}"),
        ({"search": {"properties": {"query": TEXT, "graph": TEXT}, "required": ["graph"]}}, "search needs graph"),
    ):
        with pytest.raises(RunError) as caught:
            _call("search", tools)
        assert message in str(caught.value)


def test_where_the_hits_are_is_read_off_a_reply_that_shows_the_canary() -> None:
    line = spoken(HISTORY.sessions[0].turns[0])
    assert CANARY.word in line
    assert _results([line], dated=False) == {"items": ""}
    assert _results({"note": "1 hit", "text": f"- {line}"}, dated=False) == {"items": "text"}
    hit = {"memory": line, "uuid": "m1", "timestamp": "now", "distance": 0.1}
    found = _results({"other": [], "memories": [hit]}, dated=True)
    assert found is not None
    assert {name: path for name, path in found.items() if path} == {
        **{"items": "memories", "text": "memory", "id": "uuid", "distance": "distance", "time": "timestamp"}
    }
    undated = _results({"memories": [hit]}, dated=False)
    assert undated is not None
    assert undated["time"] == "", "the server's clock is not the dialogue's"
    assert _results({"memories": [{"memory": "something else"}]}, dated=True) is None


def test_paths_of_a_command_are_those_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my server.py").touch()
    assert _words(f"'{sys.executable}' 'my server.py' --port 1")[1:] == [str(tmp_path / "my server.py"), "--port", "1"]


@needs_mcp
@pytest.mark.integration
@pytest.mark.parametrize("fault", ["", "k ignored"])
def test_an_mcp_server_needs_no_description(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("server.py").write_text(
        f"import runpy, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "runpy.run_module('scripts.mock.memory_mcp', run_name='__main__')\n"
    )
    command = f"'{sys.executable}' server.py" + (f" --fault '{fault}'" if fault else "")
    assert verb("probe", ["--mcp", command, "--save", "own.yaml"]) == int(bool(fault))
    said = capsys.readouterr().out
    assert "reference-memory 1: add_memory(user, time, messages), search_memory(user, query, limit)" in said
    if fault:
        assert "refused: k ignored" in said
        return
    assert "| reference-memory 1 | 0." in said
    assert verb("probe", ["--http", "own.yaml", "data.size=6"]) == 0, "what was saved describes the same memory"
