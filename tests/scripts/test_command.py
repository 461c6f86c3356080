"""The installed command: what the wheel holds, and its verbs from a folder that is no checkout."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from scripts import command
from scripts.command import GROUPS, main, verbs

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("conf", "data_loaders", "eval", "memsys", "results/published", "scripts")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site-packages folder that holds nothing but the unpacked wheel; the first worker of pytest-xdist makes it for all."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    site = folder / "installed"
    with (folder / "installed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not site.exists():
            unpack_wheel(tmp_path_factory.mktemp("site")).rename(site)
    return site


def unpack_wheel(site: Path) -> Path:
    """Build the wheel of a copy of the checkout, and unpack it into a folder."""
    source = site.with_name(f"{site.name}-source")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(site), "."]
    subprocess.run(build, cwd=source, check=True, timeout=120)
    (wheel,) = site.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    wheel.unlink()
    return site


def call(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(installed, folder, "import sys; from memsys_bench import main; sys.exit(main())", *arguments)


def python(installed: Path, folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    libraries = sysconfig.get_path("purelib")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), libraries])}
    # -S: without the checkout's own editable install
    command = [sys.executable, "-S", "-c", code, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_wheel_puts_one_package_at_the_top_of_site_packages(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {"memsys_bench"}


def test_the_wheel_holds_every_package_of_the_checkout(installed: Path) -> None:
    for name in SHIPPED:
        kept = {
            path.relative_to(ROOT)
            for path in (ROOT / name).rglob("*")
            if path.suffix in (".py", ".md", ".yaml", ".csv", ".txt")
        }
        missing = {path for path in kept if not (installed / "memsys_bench" / path).is_file()} - {
            Path("memsys/README.md")
        }
        missing = {path for path in missing if not path.is_relative_to("scripts/command")}
        assert not missing, sorted(missing)[:5]


def test_a_run_from_any_folder_lands_in_that_folder(installed: Path, tmp_path: Path) -> None:
    done = call(installed, tmp_path, "run", "memory=nothing", "data.size=2")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("results/runs/locomo/nothing-*/run.json"))


def test_published_numbers_come_with_the_package(installed: Path, tmp_path: Path) -> None:
    done = call(installed, tmp_path, "audit")
    assert "findings" in done.stdout, done.stderr
    done = call(installed, tmp_path, "reproduce", "table=memtree_t3", "only=[bm25]")
    assert "Traceback" not in done.stderr
    assert (tmp_path / "results" / "tables").is_dir()


def test_a_memory_of_the_working_folder_is_found(installed: Path, tmp_path: Path) -> None:
    assert call(installed, tmp_path, "new-memory", "mine").returncode == 0
    done = call(installed, tmp_path, "run", "memory=mine", "data.size=2")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("results/runs/locomo/mine-*/run.json"))


def test_a_memory_of_the_working_folder_is_compared_and_the_shell_completes_the_verbs(
    installed: Path, tmp_path: Path
) -> None:
    assert call(installed, tmp_path, "new-memory", "mine").returncode == 0
    done = call(installed, tmp_path, "compare", "mine", "nothing", "--limit", "2")
    assert done.returncode == 0, done.stderr
    assert "Wins/losses/ties of Mine" in done.stdout
    assert "reproduce-all" in call(installed, tmp_path, "completion", "bash").stdout
    assert "mine " in call(installed, tmp_path, "list", "memories").stdout
    assert "locomo/mine-" in call(installed, tmp_path, "watch", "results", "--once").stdout


def test_help_names_every_verb_and_imports_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown for verb in verbs("GROUP"))
    assert all(f"\n{title}:\n" in shown for title in GROUPS.values())


@pytest.mark.parametrize(
    ("verb", "given", "settings"),
    [
        ("run", ["bm25", "locomo", "data.size=2"], ["memory=bm25", "dataset=locomo", "data.size=2"]),
        ("run", ["bm25", "dataset=locomo"], ["memory=bm25", "dataset=locomo"]),
        ("run", ["bm25", "locomo", "more"], ["memory=bm25", "dataset=locomo", "more"]),
        ("run", ["-m", "bm25"], ["-m", "bm25"]),
        ("reproduce", ["segtreemem_t4"], ["table=segtreemem_t4"]),
        ("change", ["bm25", "locomo"], ["memory=bm25", "dataset=locomo"]),
        ("growth", ["bm25", "locomo", "questions=9"], ["memory=bm25", "dataset=locomo", "questions=9"]),
        ("load", ["bm25", "locomo"], ["memory=bm25", "dataset=locomo"]),
        ("judge-card", ["mem0", "locomo", "--brief"], ["--judge=mem0", "--dataset=locomo", "--brief"]),
        ("judge-card", ["--judge", "mem0", "data.size=2"], ["--judge", "mem0", "data.size=2"]),
        ("calibrate", ["segtree_cosine"], ["memory=segtree_cosine"]),
        ("leaks", ["bm25", "locomo", "data.size=2"], ["memory=bm25", "dataset=locomo", "data.size=2"]),
        ("compare", ["bm25", "recency"], ["bm25", "recency"]),
        ("reproduce-table4", ["profile=subset"], ["table=segtreemem_t4", "profile=subset"]),
    ],
)
def test_the_first_settings_of_a_verb_may_be_plain_words(
    verb: str, given: list[str], settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "verb", lambda name, arguments: called.append((name, list(arguments))) or 0)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(ROOT)
    called: list[tuple[str, list[str]]] = []
    assert main([verb, *given]) == 0
    assert called == [("reproduce" if verb == "reproduce-table4" else verb, settings)]


def test_an_unknown_verb_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    assert capsys.readouterr().err == "error: no verb called 'rnu'; did you mean run?\n"
    assert main(["qqq"]) == 2
    assert capsys.readouterr().err == "error: no verb called 'qqq'; `memsys-bench help` lists them\n"


def test_ctrl_c_while_modules_are_imported_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr(command, "import_module", interrupted)
    assert main(["run", "bm25", "locomo"]) == 130
    assert capsys.readouterr().err == "stopped before anything was begun\n"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["scripts.command", "difflib", "textwrap", "scripts.setup.arguments"])
def test_ctrl_c_at_any_import_of_the_command_itself_is_one_line(module: str) -> None:
    code = "import sys, runpy\nclass Stop:\n  def find_spec(self, name, *_):\n"
    code += f"    if name == {module!r}: raise KeyboardInterrupt\n"
    code += f"sys.modules.pop({module!r}, None); sys.meta_path.insert(0, Stop())\n"
    code += f"sys.argv[1:] = {['help'] if module == 'textwrap' else ['list']}\n"
    code += "runpy.run_module('scripts', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", code], cwd=command.HOME, capture_output=True, text=True, timeout=60)
    assert (ended.stderr, ended.returncode) == ("stopped before anything was begun\n", 130)


@pytest.mark.parametrize(("code", "said", "ended"), [("no such key", "no such key\n", 1), (None, "", 0), (3, "", 3)])
def test_code_that_ends_the_process_ends_the_command_with_its_code_or_text(
    code: str | int | None, said: str, ended: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: object) -> int:
        raise SystemExit(code)

    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr(command, "verb", leave)
    assert main(["run", "bm25", "locomo"]) == ended
    assert capsys.readouterr().err == said


def test_every_file_of_commands_is_a_verb_of_a_known_group() -> None:
    files = {path.stem.replace("_", "-") for path in (ROOT / "scripts/commands").glob("[!_]*.py")}
    assert set(verbs("GROUP")) == files
    assert {verb for group in GROUPS for verb in verbs("GROUP", group)} == files


def test_verbs_of_a_checkout_are_refused_by_the_installed_command_and_not_listed(
    installed: Path, tmp_path: Path
) -> None:
    assert "torture" in verbs("CHECKOUT")
    done = call(installed, tmp_path, "torture")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "torture" not in call(installed, tmp_path, "help").stdout


def test_a_plain_verb_shows_where_an_error_was_raised_to_those_who_ask(installed: Path, tmp_path: Path) -> None:
    asked = ["inspect", "nothing-here", "q1"]
    assert "Traceback" not in call(installed, tmp_path, *asked).stderr
    assert "Traceback" in call(installed, tmp_path, *asked, "--traceback").stderr


def test_the_door_opens_from_any_folder(installed: Path, tmp_path: Path) -> None:
    lines = (
        "from memsys_bench import Lab, compare, in_words",
        "lab = Lab('profile=smoke', 'data.size=4')",
        "first, second = (lab.score(lab.ask(name, 'locomo')) for name in ('bm25', 'nothing'))",
        "print(in_words(compare(first, second, 'locomo_f1')))",
    )
    done = python(installed, tmp_path, "\n".join(lines))
    assert "{2 cases}, p " in done.stdout, done.stderr
    assert list(tmp_path.glob("results/runs/locomo/bm25-*/run.json"))


@pytest.mark.parametrize(
    ("memory", "missing", "extra"), [("raptor", "sklearn", "cluster"), ("graphrag", "graspologic_native", "graph")]
)
def test_what_is_optional_and_missing_is_one_line_that_names_its_extra(
    memory: str, missing: str, extra: str, installed: Path, tmp_path: Path
) -> None:
    hide = (
        "import sys, importlib.util",
        "known = importlib.util.find_spec",
        f"importlib.util.find_spec = lambda name, package=None: None if name == {missing!r} else known(name, package)",
        "from memsys_bench import main",
        f"sys.exit(main(['run', 'memory={memory}', 'data.size=2']))",
    )
    done = python(installed, tmp_path, "\n".join(hide))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"pip install 'memsys-bench[{extra}]'" in done.stderr


HEAVY = ("matplotlib", "wandb", "datasets", "torch", "sklearn", "umap", "pandas", "pyarrow", "IPython")


def test_a_run_imports_nothing_heavy_that_it_does_not_use(installed: Path, tmp_path: Path) -> None:
    lines = (
        "import sys",
        "from memsys_bench import main",
        "main(['run', 'memory=bm25', 'data.size=2'])",
        f"print('HEAVY', [name for name in {HEAVY} if sys.modules.get(name) is not None])",
    )
    assert "HEAVY []" in python(installed, tmp_path, "\n".join(lines)).stdout
