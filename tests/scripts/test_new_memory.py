"""A memory of one's own in a copy of the checkout: as `new_memory` writes it, and as README prints it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from scripts.command import verb
from scripts.commands.new_memory import files

main = partial(verb, "new-memory")

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("conf", "data_loaders", "eval", "memsys", "scripts")
BLOCK = re.compile(r"^```(\w+)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of code whose first line names its file: language, path, content."""
LEFT_OUT = shutil.ignore_patterns("*.pyc.*", "mine", "mine.*")
"""Modules that another worker compiles just now, and the memory that README's reader has written."""
SCRIPTS = Path(sys.executable).parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the packages with the memory contract, without the other memories' settings and a reader's own memory `mine`."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=LEFT_OUT)
    (tmp_path / "tests" / "memsys").mkdir(parents=True)
    contract = ("test_contract.py", "memory_contract.py", "memory_stories.py", "contract_history.json", "conftest.py")
    for name in ("conftest.py", *(f"memsys/{file}" for file in contract)):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path in (tmp_path / "conf" / "memory").glob("*.yaml"):
        path.unlink()
    return tmp_path


def call(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def check(folder: Path, name: str) -> None:
    """Contract, style, types, and a run with the offline engine, all in the copy."""
    module = f"memsys/systems/{name}.py"
    call(folder, str(SCRIPTS / "ruff"), "check", module)
    call(folder, str(SCRIPTS / "ruff"), "format", "--check", module)
    # strict, in the module itself; what it imports is checked where it stands
    call(folder, str(SCRIPTS / "mypy"), "--follow-imports=silent", "-m", f"memsys.systems.{name}")
    said = call(folder, sys.executable, "-m", "pytest", "tests/memsys/test_contract.py", "-p", "no:cacheprovider")
    passed = re.search(r"(\d+) subtests passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= 13, "every promise was asked"
    ran = call(folder, sys.executable, "-m", "scripts", "run", f"memory={name}", "data.size=4")
    assert f"results/runs/locomo/{name}-" in ran


@pytest.mark.integration
def test_the_memory_that_is_written_keeps_the_contract(checkout: Path) -> None:
    said = call(checkout, sys.executable, "-m", "scripts", "new-memory", "mine")
    written = re.findall(r"written: (\S+)", said)
    assert written == ["memsys/systems/mine.py", "conf/memory/mine.yaml", "memsys/prompts/mine/note.md"]
    check(checkout, "mine")


@pytest.mark.integration
def test_the_memory_of_the_readme_keeps_the_contract_as_printed(checkout: Path) -> None:
    blocks = {path: body for _, path, body in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert set(blocks) == {"memsys/systems/mine.py", "conf/memory/mine.yaml"}
    for path, body in blocks.items():
        (checkout / path).write_text(body, encoding="utf-8")
    check(checkout, "mine")


def test_nothing_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["nobodys_name"]) == 0
    (tmp_path / "nobodys_name.py").write_text("mine", encoding="utf-8")
    assert main(["nobodys_name"]) == 2
    assert (tmp_path / "nobodys_name.py").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    "name",
    ["Mine", "1mine", "my-memory", "../mine", "", "class", "bm25", "null", "on", "inf", "random", "numpy", "eval"],
)
def test_a_name_that_cannot_be_used_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([name]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not list(tmp_path.iterdir())


def test_a_name_of_several_words_is_a_class_and_a_title() -> None:
    written = files("my_own_memory", ROOT)
    assert "class MyOwnMemory(MemorySystem):" in written[ROOT / "memsys" / "systems" / "my_own_memory.py"]
    assert "title: My own memory\n" in written[ROOT / "conf" / "memory" / "my_own_memory.yaml"]
