"""How commands end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from data_loaders.schema import DataError
from eval.store import RunError
from memsys.llm.protocol import ModelError
from memsys.prompts import PromptError
from scripts.experiment.exits import guarded

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
    code = f"import sys, scripts.{name}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "scripts.audit"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
    assert (said, process.returncode) == ("", 1)
