"""The commands of README, run as they are printed, in a copy of the checkout: each ends with a table or with one sentence.

In place of the servers that README names stands the mock endpoint. Nothing beyond this machine is reached.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from scripts.mock.endpoint import Mock, application, serving

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COPIED = ("conf", "data_loaders", "eval", "memsys", "results/published", "scripts", "tests")
SERVERS = ("http://localhost:8000/v1", "https://api.openai.com/v1")
HALF_WRITTEN = shutil.ignore_patterns("*.pyc.*")  # by another worker; compiled modules are copied
NO_DATA = r"\nerror: none of the data sets is there: .*fetch .*\n"
ENDS: Mapping[str, tuple[int, str]] = {
    "make fetch SET=answers && make claims": (
        2,
        r"\nerror: raw\.githubusercontent\.com cannot be reached .*; once it can, run the same command again\n",
    ),
    ".venv/bin/python -m scripts claims --head": (2, r"error: no claim's files are there; .*scripts fetch answers\n"),
    "make claims-site": (2, r"error: no claim's files are there; .*scripts fetch answers\n"),
    "make reproduce-table4": (0, r"\nSegTreeMem, TD +0\.\d{3} [^\0]*\nwritten: .*/segtreemem_t4-smoke\.md .*\n"),
    "make run MEMORY=segtree_td DATASET=locomo QUESTIONS=20": (
        0,
        r"LoCoMo[^\0]*20 questions[^\0]*\nwritten: .*table\.md .*\n",
    ),
    "make fetch SET=locomo DATA=~/data": (
        2,
        r"\nerror: raw\.githubusercontent\.com cannot be reached .*; once it can, run the same command again\n",
    ),
    "make reproduce-table4 PROFILE=subset DATA=~/data QUESTIONS=200 "
    'ARGS="data.max_cases=10 columns=locomo only=bm25,segtree_td"': (2, NO_DATA),
    "make help": (0, r"reproduce-table4 +SegTreeMem Table 4"),
    "make doctor BASE_URL=http://localhost:8000/v1 MODEL=my-model EMBEDDER=my-embedder": (
        0,
        r"written: .*conf/llm/my-model\.yaml[^\0]*written: .*conf/embedder/my-embedder\.yaml.*\n",
    ),
    "make reproduce-table4 PROFILE=subset DATA=~/data BASE_URL=http://localhost:8000/v1 MODEL=my-model EMBEDDER=my-embedder "
    "JUDGE=gpt-4o-mini JUDGE_BASE_URL=https://api.openai.com/v1 PRICES=prices.yaml MAX_USD=5": (2, NO_DATA),
    "make new-memory NAME=mine": (0, r"memsys/systems/mine\.py"),
    "make run MEMORY=mine": (0, r"Mine [^\0]*\nwritten: .*table\.md .*\n"),
    ".venv/bin/pytest tests/memsys/test_contract.py -k mine": (0, r"subtests passed"),
}
"""By command, in the order of README: its exit code, and what it says at its end."""
OF_DEVELOPERS = {"make test", "make integration"}
"""Commands that run this test, too."""


def printed() -> list[str]:
    """The commands of README's shell blocks, and those that stand in its sentences."""
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))
    lines = [line.split("    #")[0] for line in re.sub(r" *\\\n *", " ", blocks).splitlines()]
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`((?:make|\.venv/bin/\S+) [^`]+)`", prose)
    return sorted({command.strip() for command in [*lines, *spans]} - {""})


def prices() -> list[str]:
    """The lines of `prices.yaml` that README names."""
    (sentence,) = re.findall(r"`prices\.yaml` prices .*?\.(?= )", README, re.DOTALL)
    return re.findall(r"`(\S+: \S+)`", sentence)


def test_the_prices_of_the_readme_are_those_of_the_models_that_its_command_needs() -> None:
    (command,) = [each for each in ENDS if "PRICES=" in each]
    unknown = re.findall(r"(?:MODEL|EMBEDDER)=(\S+)", command)
    assert [line.split(": ")[0] for line in prices()] == unknown == ["my-model", "my-embedder"]


def test_every_command_of_the_readme_is_run_here() -> None:
    assert printed() == sorted({*ENDS, *OF_DEVELOPERS})


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout whose environment is this interpreter's, with the prices that README speaks of."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=HALF_WRITTEN)
    for name in ("Makefile", "README.md", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for program, start in {"python": sys.executable, "pytest": f"{sys.executable} -m pytest"}.items():
        path = folder / ".venv" / "bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
        path.chmod(0o755)
    (folder / ".venv" / ".installed").touch()
    (folder / "prices.yaml").write_text("\n".join(prices()))
    (folder / "home" / "data").mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(application(Mock())) as url:
        yield url


def run(command: str, checkout: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Run a command as printed, but for its servers, without a way to the network and without a terminal."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "MEMSYS_"))}
    own |= {**nowhere, "no_proxy": "127.0.0.1", "HOME": str(checkout / "home"), "OPENAI_API_KEY": "none"}
    own |= {"XDG_CACHE_HOME": str(checkout / "home" / "cache")}
    for server in SERVERS:
        command = command.replace(server, url)
    return subprocess.run(
        ["bash", "-c", command], cwd=checkout, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("command", ENDS)
def test_a_command_of_the_readme_ends_with_a_table_or_one_sentence(command: str, checkout: Path, url: str) -> None:
    if "mine" in command:  # the tests may run in any order, each alone too
        run("rm -r memsys/systems/mine.py conf/memory/mine.yaml memsys/prompts/mine", checkout, url)
        if command != "make new-memory NAME=mine":
            run("make new-memory NAME=mine", checkout, url)
    done = run(command, checkout, url)
    code, says = ENDS[command]
    assert (done.returncode, "Traceback" in done.stdout) == (code, False), done.stdout[-2000:]
    assert re.search(says, done.stdout), done.stdout[-2000:]
    if code:
        last = [line for line in done.stdout.splitlines() if not line.startswith("make: ***")][-1]
        assert re.search(says, f"\n{last}\n"), "the sentence is the last line"


@pytest.mark.data
@pytest.mark.timeout(3600)
def test_the_endpoint_command_of_the_readme_plans_asks_and_fills_the_table_with_real_data(
    checkout: Path, url: str, data_root: Path
) -> None:
    """On LoCoMo alone: as printed, without anybody to say yes; then two rows on one history with the answer that the message names."""
    (command,) = [each for each in ENDS if "PRICES=" in each]
    place = checkout / "home" / "data" / "locomo"
    shutil.rmtree(place, ignore_errors=True)  # README's `make fetch` has made it
    place.symlink_to(data_root / "locomo")
    try:
        asked = run(command, checkout, url)
        assert asked.returncode == 2
        assert re.search(
            r"Plan [^\0]*judge +gpt-4o-mini\S* .* USD[^\0]*error: not asked, because there is no terminal", asked.stdout
        )
        less = (
            'QUESTIONS=20 ARGS="data.max_cases=1 only=[bm25,segtree_td]"'  # 35 rows on ten histories take eight minutes
        )
        done = run(f"{command} YES=1 {less}", checkout, url)
    finally:
        place.unlink()
    assert done.returncode == 0, done.stdout[-2000:]
    assert re.search(r"\nSegTreeMem, TD +0\.\d{3} [^\0]*\nwritten: .*/segtreemem_t4-subset", done.stdout)
