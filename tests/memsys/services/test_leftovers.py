"""Namespaces of runs that were killed: the next run with the service deletes them, and none of a run that lives."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from memsys.interface import with_settings
from memsys.services.http import HttpMemory
from memsys.services.leftovers import namespaces_at
from scripts.commands.mock_memory import Service
from scripts.mock.endpoint import serving
from scripts.mock.memory_store import Store

ROOT = Path(__file__).resolve().parents[3]
REFERENCE: dict[str, Any] = {
    name: value
    for name, value in yaml.safe_load((ROOT / "conf/memory/reference_http.yaml").read_text())["build"].items()
    if not name.startswith("_")
}
RUN = """
import sys, yaml, numpy as np
from data_loaders.schema import Turn, Unit
from memsys.services.http import HttpMemory
from memsys.interface import with_settings
memory = with_settings(HttpMemory, yaml.safe_load(sys.argv[1]))(np.random.default_rng(0))
memory.write(Unit("u", (Turn("t", "Mara", "I planted tomatoes."),), "s"))
print(memory.namespace, flush=True)
sys.stdin.read()
"""
"""A run that writes a unit, says its namespace and goes on until it is killed."""

Start = Callable[[], tuple[subprocess.Popen[str], str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMSYS_NAMESPACES", str(tmp_path / "namespaces"))
    return tmp_path / "namespaces"


@pytest.fixture
def service(folder: Path) -> Iterator[tuple[Service, dict[str, Any]]]:
    """The reference service, and the settings of memories of it."""
    service = Service(Store())
    with serving(service.application()) as url:
        yield service, {**REFERENCE, "base_url": url, "retries": 0}


@pytest.fixture
def start(service: tuple[Service, dict[str, Any]]) -> Iterator[Start]:
    processes = []

    def started() -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", RUN, yaml.safe_dump(service[1])]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def killed(started: tuple[subprocess.Popen[str], str]) -> str:
    process, namespace = started
    process.kill()
    process.wait()
    return namespace


@pytest.mark.slow
def test_the_next_run_deletes_what_a_killed_one_left_and_nothing_of_one_that_lives(
    service: tuple[Service, dict[str, Any]], start: Start, folder: Path
) -> None:
    there, settings = service
    (_, living), dead = start(), killed(start())
    assert set(there.store.spaces) == {living, dead}
    said = with_settings(HttpMemory, settings)(np.random.default_rng(0)).clear_up()
    assert said == f"1 of 1 namespaces that killed runs left at {settings['base_url']} are deleted"
    assert set(there.store.spaces) == {living}
    assert [file.stem for file in folder.rglob("*.json")] == [living]
    assert with_settings(HttpMemory, settings)(np.random.default_rng(0)).clear_up() == "", (
        "nothing is said where nothing was left"
    )


@pytest.mark.slow
def test_a_deletion_that_fails_is_counted_and_its_file_stays(
    service: tuple[Service, dict[str, Any]], start: Start, folder: Path
) -> None:
    there, settings = service
    dead = killed(start())
    refusing = {**settings, "delete": {"method": "DELETE", "path": "/nowhere/{namespace}"}}
    said = with_settings(HttpMemory, refusing)(np.random.default_rng(0)).clear_up()
    assert re.fullmatch(
        r"0 of 1 .* deleted, 1 are not \(ModelError: .*HTTP 404.*\): their files stay in .*tries again", said
    )
    assert [file.stem for file in folder.rglob("*.json")] == [dead]
    assert set(there.store.spaces) == {dead}


def test_the_files_follow_the_namespaces_and_leave_their_folder_by_no_name(
    service: tuple[Service, dict[str, Any]], folder: Path
) -> None:
    from data_loaders.schema import Turn, Unit

    memory = with_settings(HttpMemory, service[1])(np.random.default_rng(0))
    assert list(folder.rglob("*.json")) == []
    memory.write(Unit("u", (Turn("t", "Mara", "I planted tomatoes."),), "s"))
    (file,) = folder.rglob("*.json")
    assert {"service", "namespace", "pid", "started"} == set(yaml.safe_load(file.read_text()))
    memory.close()
    assert list(folder.rglob("*.json")) == []
    assert namespaces_at("../../../etc", "x", ()).folder.parent == folder


def test_a_file_with_another_name_deletes_nothing(service: tuple[Service, dict[str, Any]], folder: Path) -> None:
    own = with_settings(HttpMemory, service[1])(np.random.default_rng(0))
    abandoned = own._namespaces.folder / "1-dead"
    abandoned.mkdir(parents=True)
    (abandoned / "everything.json").write_text("{}")
    (abandoned / "memsys-00000001-0000000a.json").write_text("")
    assert own.clear_up().startswith("1 of 1 namespaces")
    assert [path for path in service[0].asked if path.startswith("DELETE")] == [
        "DELETE /v1/spaces/memsys-00000001-0000000a"
    ], "a name that no memory of ours has is no namespace, and what is in the file does not matter"
