"""What is installed for the user: wheels of a known sha256, by a pip without keys."""

from __future__ import annotations

import io
import re
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from eval.files.store import RunError
from memsys.products.places import PINS
from scripts.setup import wheels
from scripts.setup.options import load_option, options


def pins_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()


def test_every_pin_of_a_product_and_of_a_local_model_has_a_hash_and_no_address_stands_in_the_file() -> None:
    models = [wheel for name in options("local") if (wheel := load_option("local", name).get("wheel"))]
    for pins in ([pin for path in PINS.glob("*.txt") for pin in pins_of(path)], models):
        lines = wheels.requirements(pins).splitlines()
        assert lines[0] == "--only-binary :all:"
        assert all(re.fullmatch(r"\S+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines if line[:2] != "--")
    assert "/" not in re.sub(r"conf/(product|local)", "", wheels.HASHES.read_text(encoding="utf-8"))


def test_only_cognee_builds_a_source_archive() -> None:
    building = [path.stem for path in PINS.glob("*.txt") if "--no-binary" in wheels.requirements(pins_of(path))]
    assert building == ["cognee"]


def test_a_pin_without_a_hash_is_not_installed() -> None:
    with pytest.raises(RunError, match=r"no sha256 of evil==1\.0"):
        wheels.pip(sys.executable, "download", ["evil==1.0"])


def test_pip_sees_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nenv > "{tmp_path}/env"\n')
    python.chmod(0o755)
    monkeypatch.setenv("OPENAI_API_KEY", "canary-canary")
    monkeypatch.setenv("MEM_SECRET_OTHER", "canary")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheels.pip(python, "install", ["attrs==26.1.0"])
    seen = (tmp_path / "env").read_text()
    assert "canary" not in seen
    assert "PIP_NO_INDEX=1" in seen


@pytest.mark.slow
@pytest.mark.parametrize("hashed", [True, False])
def test_the_setup_of_a_source_archive_never_runs(
    hashed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive, mark = tmp_path / "evil-1.0.tar.gz", tmp_path / "ran"
    setup = f"open({str(mark)!r}, 'w')\nfrom setuptools import setup\nsetup(name='evil', version='1.0')\n".encode()
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("evil-1.0/setup.py")
        member.size = len(setup)
        tar.addfile(member, io.BytesIO(setup))
    digest = sha256(archive.read_bytes()).hexdigest() if hashed else "0" * 64
    monkeypatch.setattr(wheels, "HASHES", tmp_path / "hashes.txt")
    wheels.HASHES.write_text(f"--only-binary :all:\nevil==1.0 --hash=sha256:{digest}\n")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RunError, match="No matching distribution"):
        wheels.pip(sys.executable, "download", ["evil==1.0"], "--dest", str(tmp_path / "there"))
    assert not mark.exists()
