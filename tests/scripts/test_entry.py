"""How commands end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from data_loaders.schema import DataError
from eval.files.store import RunError
from memsys.lean import cores
from memsys.llm.protocol import ModelError
from memsys.prompts import PromptError
from scripts.setup.exits import guarded

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", [DataError, RunError, ModelError, PromptError])
def test_what_a_user_can_mend_is_one_line(kind: type[Exception], capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise kind("the file is not there")

    assert guarded(work) == 2
    assert capsys.readouterr().err == "error: the file is not there\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: 1 // 0)


@pytest.mark.parametrize("name", ["run", "reproduce", "figures", "sweep", "growth", "calibrate", "reproduce_all"])
def test_an_entry_point_loads_nothing_heavy_before_its_command_line_is_read(name: str) -> None:
    heavy = ["numpy", "hydra", "omegaconf", "pydantic", "eval", "data_loaders"]
    code = f"import sys, scripts.commands.{name}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "scripts", "audit"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
    assert (said, process.returncode) == ("", 1)


# --- other systems ------------------------------------------------------------------------------------------------------


def test_windows_is_refused_in_one_line_before_anything_is_imported() -> None:
    code = "import sys; sys.platform = 'win32'; import scripts.run"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "WSL" in done.stderr
    assert done.stderr.count("\n") == 1


def test_cores_are_counted_where_the_system_does_not_say_which_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cores() == os.cpu_count()


def test_no_module_counts_cores_in_another_way() -> None:
    users = [path for folder in ("memsys", "eval", "scripts") for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in users if "sched_getaffinity" in path.read_text()] == ["lean.py"]


# --- make ---------------------------------------------------------------------------------------------------------------


def made(*arguments: str, cwd: Path = ROOT, dry: bool = True) -> subprocess.CompletedProcess[str]:
    """`make` with these arguments, by default without running what it prints."""
    command = ["make", *(["-n", "-o", ".venv/.installed"] if dry else []), *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=clean)


@pytest.mark.parametrize("variable", ["memory=bm25", "QUESTION=3", "dataset=realmem"])
def test_make_refuses_a_variable_that_no_target_reads(variable: str) -> None:
    done = made("run", variable)
    assert done.returncode == 2
    assert f"no variable called {variable.partition('=')[0]}" in done.stderr
    assert 'ARGS="name=value"' in done.stderr


@pytest.mark.parametrize("folder", ["/a b/d'é(x)", "/x,y/[z]", '/quo"te'])
def test_make_gives_a_path_with_any_character_to_the_command_as_one_word(folder: str) -> None:
    printed = made("run", f"DATA={folder}", f"RESULTS={folder}").stdout
    words = subprocess.run(
        ["sh", "-c", printed.replace(".venv/bin/python -m scripts run", "printf '%s\\n'")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert f"data.root={folder}" in words
    assert "data.source=real" in words
    assert f"results={folder}" in words


def test_make_names_a_python_that_does_not_fit_before_pip_starts(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    old = tmp_path / "python3.10"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.10.12\nexit 1\n')
    old.chmod(0o755)
    done = made("run", f"PYTHON={old}", cwd=tmp_path, dry=False)
    assert done.returncode == 2
    assert "is Python 3.10.12; memsys-bench needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_make_clean_keeps_runs_and_paid_answers(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    kept = [tmp_path / "results" / "runs" / "a", tmp_path / "results" / "cache.sqlite"]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert made("clean", cwd=tmp_path, dry=False).returncode == 0
    assert all(path.exists() for path in kept)
