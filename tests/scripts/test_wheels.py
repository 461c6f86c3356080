"""What is installed for the user: wheels of a known sha256, by a uv or pip without keys."""

from __future__ import annotations

import io
import re
import sys
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from eval.files.store import RunError
from memsys.products.places import PINS
from scripts.setup import wheels
from scripts.setup.options import load_option, options


def pins_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_every_pin_of_a_product_and_of_a_local_model_has_a_hash_and_no_address_stands_in_the_file() -> None:
    models = [wheel for name in options("local") if (wheel := load_option("local", name).get("wheel"))]
    for pins in ([pin for path in PINS.glob("*.txt") for pin in pins_of(path)], models):
        lines = wheels.requirements(pins).splitlines()
        assert lines[0] == "--only-binary :all:"
        assert all(re.fullmatch(r"\S+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines if line[:2] != "--")
    assert "/" not in re.sub(r"conf/(product|local)", "", wheels.HASHES.read_text(encoding="utf-8"))


def test_only_three_products_build_a_source_archive() -> None:
    building = [path.stem for path in PINS.glob("*.txt") if "--no-binary" in wheels.requirements(pins_of(path))]
    assert sorted(building) == ["cognee", "everos", "letta"]


def test_a_pin_without_a_hash_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no sha256 of evil==1\.0"):
        wheels.install(tmp_path / "there", ["evil==1.0"], None)
    assert not (tmp_path / "there").exists()


def test_the_installer_sees_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\nenv > "{tmp_path}/env"\necho "$@" > "{tmp_path}/said"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("OPENAI_API_KEY", "canary-canary")
    monkeypatch.setenv("MEM_SECRET_OTHER", "canary")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheels.install(tmp_path / "there", ["attrs==26.1.0"], str(uv))
    seen = (tmp_path / "env").read_text()
    assert "canary" not in seen
    assert "PIP_NO_INDEX=1" in seen
    said = (tmp_path / "said").read_text()
    assert {"--require-hashes", "--no-deps", "--link-mode=copy"} < set(said.split())


def test_uv_is_the_one_that_started_us_else_the_one_of_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert wheels.find_uv() is None
    for place in ("path", "bin", "starter"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "uv").write_text("#!/bin/sh\n")
        (tmp_path / place / "uv").chmod(0o755)
        if place == "starter":
            monkeypatch.setenv("UV", str(tmp_path / place / "uv"))
        assert wheels.find_uv() == str(tmp_path / place / "uv")
    monkeypatch.setenv("UV", str(tmp_path / "gone"))
    assert wheels.find_uv() == str(tmp_path / "bin" / "uv")


def test_a_product_for_a_newer_python_gets_one_from_uv_or_from_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pins = ["# python>=3.12", "attrs==26.1.0"]
    assert wheels.oldest_python(pins) == (3, 12)
    assert wheels.oldest_python([f"{pins[0]} "]) == (3, 12)
    assert wheels.oldest_python(pins[1:]) == sys.version_info[:2]
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    said, there = tmp_path / "said", tmp_path / "there"

    def program(path: Path, lines: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} $@" >> "{said}"\n{lines}\n')
        path.chmod(0o755)

    shims = tmp_path / "shims"
    program(tmp_path / "uv", "")
    program(tmp_path / "python3.12", "exit 1")
    program(tmp_path / "python3.13", f'env >> "{tmp_path}/env"\necho "{tmp_path}/python3.13"')
    wheels._make_environment(there, None, (3, 12))
    assert said.read_text().splitlines()[-1] == f"python3.13 -m venv {there}", (
        "the first one on the path does not start"
    )
    assert "python3.13 -I -c" in said.read_text()
    assert "canary" not in (tmp_path / "env").read_text()
    wheels._make_environment(there, str(tmp_path / "uv"), (3, 12))
    assert said.read_text().splitlines()[-1] == f"python3.13 -m venv --without-pip {there}"
    program(shims / "python3.12", f'test "$PYENV_VERSION" = 3.12 && echo "{tmp_path}/real" || exit 127')
    program(tmp_path / "real", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:{shims}:/usr/bin:/bin")
    wheels._make_environment(there, None, (3, 12))
    assert said.read_text().splitlines()[-1] == f"real -m venv {there}", "a shim behind another file of its name"
    (tmp_path / "python3.13").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    wheels._make_environment(there, str(tmp_path / "uv"), (3, 12))
    assert said.read_text().splitlines()[-1] == f"uv venv --quiet --python >=3.12,<3.14 {there}"
    with pytest.raises(RunError, match=r"needs Python 3\.12 or later"):
        wheels._make_environment(tmp_path / "there", None, (3, 12))


@pytest.mark.parametrize(("uv", "with_pip"), [(None, True), ("uv", False)])
def test_our_own_python_is_linked_where_it_is_new_enough_with_a_pip_only_where_there_is_no_uv(
    uv: str | None, with_pip: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(wheels.venv, "create", lambda *where, **how: made.append((*where, how)))
    wheels._make_environment(tmp_path, uv, sys.version_info[:2])
    assert made == [(tmp_path, {"with_pip": with_pip, "symlinks": True})]


@pytest.mark.integration
def test_a_wheel_is_downloaded_where_our_environment_has_no_pip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    monkeypatch.setattr(wheels, "HASHES", tmp_path / "hashes.txt")
    with zipfile.ZipFile(tmp_path / "tiny-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    digest = sha256((tmp_path / "tiny-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    wheels.HASHES.write_text(f"--only-binary :all:\ntiny==1.0 --hash=sha256:{digest}\n")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheels.download(["tiny==1.0"], tmp_path / "there")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["tiny-1.0-py3-none-any.whl"]


@pytest.mark.slow
@pytest.mark.parametrize("installer", [pytest.param("pip", marks=pytest.mark.integration), "uv"])
def test_the_setup_of_a_source_archive_never_runs(
    installer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive, mark = tmp_path / "evil-1.0.tar.gz", tmp_path / "ran"
    setup = f"open({str(mark)!r}, 'w')\nfrom setuptools import setup\nsetup(name='evil', version='1.0')\n".encode()
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("evil-1.0/setup.py")
        member.size = len(setup)
        tar.addfile(member, io.BytesIO(setup))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    uv = wheels.find_uv() if installer == "uv" else None
    if installer == "uv" and uv is None:
        pytest.skip("uv is not installed")
    for digest in (sha256(archive.read_bytes()).hexdigest(), "0" * 64):
        monkeypatch.setattr(wheels, "HASHES", tmp_path / f"{digest}.txt")
        wheels.HASHES.write_text(f"--only-binary :all:\nevil==1.0 --hash=sha256:{digest}\n")
        with pytest.raises(RunError, match=r"No matching distribution|no usable wheels"):
            wheels.install(tmp_path / "there", ["evil==1.0"], uv)
        assert not mark.exists()
        monkeypatch.setattr(wheels, "_make_environment", lambda *_: None)  # it is there
