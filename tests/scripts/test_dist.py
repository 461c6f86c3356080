"""What is published: the dependencies, one version, the same bytes from the same commit, and a wheel that works from nothing."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

from eval.files.store import RunError
from scripts.commands import dist
from scripts.setup.wheels import find_uv

ROOT = Path(__file__).resolve().parents[2]
OURS = ("data_loaders", "memsys", "eval", "scripts")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ELSEWHERE = ("memsys/products/",)
"""Code that runs in the environment of a product."""


def names(requirements: list[str]) -> set[str]:
    return {plain(re.match(r"[\w.-]+", each)[0]) for each in requirements}  # type: ignore[index]


def plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def imported() -> frozenset[str]:
    """Distributions that the shipped code imports, also inside functions."""
    found = {"bpe_openai"}  # memsys/tokens.py loads it by its spec
    for path in (path for name in OURS for path in (ROOT / name).rglob("*.py")):
        if str(path.relative_to(ROOT)).startswith(ELSEWHERE):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    third = found - set(sys.stdlib_module_names) - {*OURS, "tests"}
    known = packages_distributions()
    return frozenset(plain(name) for module in third for name in known.get(module, [module]))


@pytest.mark.slow
def test_every_core_dependency_is_imported_and_every_import_is_declared() -> None:
    core, extras = names(PROJECT["dependencies"]), PROJECT["optional-dependencies"]
    optional = set().union(*(names(each) for name, each in extras.items() if name != "dev"))
    assert core <= imported()
    parts = {name for name in imported() if name.startswith("opentelemetry-")}  # one namespace of many packages
    assert imported() - core - optional - parts == {"pydantic-core"}  # pinned by pydantic


def test_the_version_stands_in_one_place_and_the_others_agree() -> None:
    version = PROJECT["version"]
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first is not None
    assert first[1] == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commit HEAD in another folder, beside a file that belongs to no commit."""
    folder = tmp_path_factory.mktemp("clone") / "an other fôlder"
    command = ["git", "clone", "--quiet", "--no-tags", "--depth=1", ROOT.as_uri(), str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no git repository to build from")
    (folder / "scripts" / "stray.py").write_text("stray = True\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def built(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return dist.build(clone, tmp_path_factory.mktemp("built"))


@pytest.mark.integration
def test_a_commit_gives_the_same_bytes_wherever_and_whenever_it_is_built(
    built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = os.umask(0o077)
    try:
        again = dist.build(ROOT, tmp_path)
    finally:
        os.umask(before)
    for one, other in zip(built, again, strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.integration
def test_what_is_built_is_the_commit_and_nothing_beside_it(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    assert f"-{PROJECT['version']}" in wheel.name
    held = zipfile.ZipFile(wheel).namelist()
    with tarfile.open(sdist) as tar:
        packed = tar.getnames()
        assert {(member.uid, member.uname, member.mode) for member in tar} == {(0, "", 0o644)}
    assert not [name for name in (*held, *packed) if "stray" in name or "/tests/" in name]
    assert "memsys_bench/data_loaders/samples" in " ".join(held)


@pytest.mark.integration
def test_a_tag_of_another_version_is_refused(clone: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "-C", str(clone), "tag", "v99.0"], check=True)
    try:
        with pytest.raises(RunError, match=r"the tag is v99\.0, and pyproject\.toml says"):
            dist.build(clone, tmp_path)
    finally:
        subprocess.run(["git", "-C", str(clone), "tag", "--delete", "v99.0"], check=True, capture_output=True)
    assert not list(tmp_path.iterdir())


def uv() -> str:
    if (found := find_uv()) is None:
        pytest.skip("uv is not installed")
    return found


def skip_without_an_index(errors: str) -> None:
    if re.search("error sending|dns|connect", errors):
        pytest.skip("no package index can be reached")


IN_INSPECT = """
from inspect_ai import eval
from memsys_bench.inspect_tasks import locomo

(log,) = eval(locomo(reader="ours", settings="profile=smoke"), model="mockllm/model", display="none", limit=2)
print(log.status, [len(sample.scores) > 0 for sample in log.samples])
"""


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_the_tasks_of_inspect_work_in_an_environment_without_our_constraints(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    """inspect_ai wants other packages than constraints.txt: its tests run here, as anyone installs the extra `inspect`."""
    tools = ("pytest", "pytest-timeout", "hypothesis")
    start = [uv(), "run", "--quiet", "--isolated", "--no-project", "--python", sys.executable]
    start += ["--with", f"{built[0]}[inspect]", *(part for name in tools for part in ("--with", name)), "python"]
    tests = ["-m", "pytest", "-p", "no:cacheprovider", "tests/scripts/test_inspect_tasks.py"]
    done = subprocess.run([*start, *tests], cwd=ROOT, capture_output=True, text=True, check=False)
    if not re.search(r" in \d+\.\d+s", done.stdout):  # pytest did not run
        skip_without_an_index(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed in", done.stdout), f"a test was skipped: {done.stdout}"
    done = subprocess.run([*start, "-c", IN_INSPECT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["success [True, True]"], done.stdout + done.stderr


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_the_wheel_works_from_nothing(built: tuple[Path, Path], tmp_path: Path) -> None:
    """`uvx memsys-bench` in an empty folder: the newest dependencies, no constraints, nothing of this environment."""
    folder, home = tmp_path / "une thèse, été (1)", tmp_path / "home"
    folder.mkdir()
    home.mkdir(mode=0o555)  # root can write to it all the same
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MEMSYS", "PYTHON", "XDG"))}
    caches = {
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(tmp_path / "uv")),
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "HOME": str(home),
    }
    start = [uv(), "tool", "run", "--quiet", "--python", sys.executable, "--from", str(built[0]), "memsys-bench"]

    def called(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*start, *arguments], cwd=folder, env={**kept, **caches}, capture_output=True, text=True, check=False
        )

    first = called("help")
    if first.returncode and "Usage" not in first.stdout:
        skip_without_an_index(first.stderr)
    assert first.returncode == 0, first.stderr
    for arguments in (
        ["run", "bm25", "locomo", "data.size=4"],
        ["compare", "bm25", "recency", "--dataset", "locomo", "--limit", "4"],
        ["reproduce", "memtree_t3", "only=[bm25]"],
        ["new-memory", "mine"],
        ["run", "mine", "locomo", "data.size=4"],
        ["report"],
    ):
        done = called(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    assert (folder / "results" / "report" / "index.html").is_file()
