"""The image and the compose file: what their text promises, and, where a docker daemon runs, a table out of a read-only container."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
INSTRUCTIONS = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)).split("\n")
ADMITTED = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}


def arguments(instruction: str) -> list[str]:
    return [line.partition(" ")[2] for line in INSTRUCTIONS if line.startswith(f"{instruction} ")]


def test_all_that_the_image_is_built_from_is_there_and_reaches_the_builder() -> None:
    sources = {name for line in arguments("COPY") if not line.startswith("--from") for name in line.split()[:-1]}
    assert all((ROOT / name).exists() for name in sources)
    assert sources == ADMITTED
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"].values()
    assert all(any(Path(place).is_relative_to(name) for name in sources) for place in packages)


def test_the_image_runs_as_an_ordinary_user_and_holds_no_key() -> None:
    last = INSTRUCTIONS[max(place for place, line in enumerate(INSTRUCTIONS) if line.startswith("FROM ")) :]
    (user,) = [line.partition(" ")[2] for line in last if line.startswith("USER ")]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert not [line for line in INSTRUCTIONS if re.search(r"KEY|TOKEN|SECRET|PASSWORD", line)]
    assert all(re.fullmatch(r"python:3\.1[1-3]-slim( AS build)?", line) for line in arguments("FROM"))


def test_the_product_of_the_compose_file_gets_the_token_of_the_gateway_and_no_key() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    gateway, product = services["gateway"], services["product"]
    assert gateway["read_only"]
    assert gateway["cap_drop"] == product["cap_drop"] == ["ALL"]
    assert product["network_mode"] == "service:gateway"
    assert (
        f":{gateway['command'][gateway['command'].index('--port') + 1]}/" in product["environment"]["OPENAI_BASE_URL"]
    )
    assert product["environment"]["OPENAI_API_KEY"] == "${GATEWAY_TOKEN:-}"
    assert "ports" not in gateway


def test_the_gateway_takes_the_arguments_of_the_compose_file(capsys: pytest.CaptureFixture[str]) -> None:
    from scripts.commands import gateway

    command = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["gateway"]["command"]
    with pytest.raises(SystemExit) as end:
        gateway.main([*(re.sub(r"\$\{.*", "1", word) for word in command[1:]), "--help"])
    assert end.value.code == 0
    known = capsys.readouterr().out
    assert all(word in known for word in command if word.startswith("--"))


@pytest.mark.integration
@pytest.mark.timeout(1800)
def test_a_read_only_container_gives_the_table_of_this_machine(tmp_path: Path) -> None:
    """The points of the shipped samples' table, byte for byte where this Python is the image's."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("no docker daemon")
    (base,) = {line.removesuffix(" AS build") for line in arguments("FROM")}
    there = [[docker, "image", "inspect", base], [docker, "pull", "--quiet", base]]
    if all(subprocess.run(command, capture_output=True, check=False).returncode for command in there):
        pytest.skip(f"the image {base} is not here, and no registry has it")
    subprocess.run([docker, "build", "--quiet", "-t", "memsys-bench-test", str(ROOT)], check=True)
    inside, here = tmp_path / "inside", tmp_path / "here"
    inside.mkdir()
    here.mkdir()
    confined = ["--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none"]
    mine = ["--user", f"{os.getuid()}:{os.getgid()}", "-v", f"{inside}:/work"]
    subprocess.run([docker, "run", *confined, *mine, "memsys-bench-test", "reproduce-table4"], check=True)
    asked = [sys.executable, "-m", "scripts", "reproduce-table4", f"results={here / 'results'}"]
    subprocess.run(asked, cwd=ROOT, check=True)
    ours, theirs = (folder / "results/tables/segtreemem_t4-smoke.csv" for folder in (here, inside))
    if f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim" in arguments("FROM")[-1]:
        assert ours.read_bytes() == theirs.read_bytes()
    else:
        assert len(ours.read_text().splitlines()) == len(theirs.read_text().splitlines())
