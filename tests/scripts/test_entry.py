"""How commands end."""

from __future__ import annotations

import ast
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from data_loaders.schema import DataError
from eval.executors import processes
from eval.files.store import RunError
from eval.running.loop import allow_files
from memsys.lean import cores
from memsys.llm.protocol import ModelError
from memsys.prompts import PromptError
from scripts.command import main, verbs
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


def test_an_entry_point_loads_nothing_heavy_before_its_command_line_is_read() -> None:
    names = "run reproduce figures sweep growth load calibrate budgets fidelity reproduce_all".split()
    heavy = ["numpy", "hydra", "omegaconf", "pydantic", "eval", "data_loaders"]
    code = f"""
import importlib, sys
for verb in {names}:
    importlib.import_module("scripts.commands." + verb)
    print(verb, [name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{name} []" for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["help", "audit", "run --help", "runs --help", "run bm25"])
def test_a_command_whose_reader_has_gone_ends_as_by_sigpipe_without_a_word(words: str, tmp_path: Path) -> None:
    nobody, output = os.pipe()
    os.close(nobody)
    settings = [f"results={tmp_path}", "data.size=2"] if words == "run bm25" else []
    command = [sys.executable, "-m", "scripts", *words.split(), *settings]
    done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True)
    os.close(output)
    assert (done.stderr, done.returncode) == ("", 141)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["load --help", "load -h", "help load", "reproduce-all -h", "help fidelity", "doctor -h"]
)
def test_help_of_a_verb_shows_its_manual(
    words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (name,) = {*words.split()} - {"help", "-h", "--help"}
    manual = ast.get_docstring(ast.parse((ROOT / f"scripts/commands/{name.replace('-', '_')}.py").read_text())) or ""
    monkeypatch.setattr("sys.argv", [])
    assert main(words.split()) == 0
    assert manual.splitlines()[-1] in capfd.readouterr().out


@pytest.mark.slow

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


AS_ON_MACOS = """
import builtins, io, os, resource, sys, sysconfig, urllib.request

sysconfig.get_config_vars()  # Python's own questions to the system have been answered before it looks like another one
sys.platform = "darwin"
del os.sched_getaffinity
plain = io.open

def without_proc(file, *arguments, **more):
    if str(file).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return plain(file, *arguments, **more)

def refused(*arguments):
    raise ValueError("not allowed to raise maximum limit")

builtins.open = io.open = without_proc
resource.getrlimit = lambda which: (256, resource.RLIM_INFINITY)
resource.setrlimit = refused
"""
"""A sitecustomize.py that hides what macOS lacks from every process: /proc, the cores that may be used, more than 256 open files."""


@pytest.mark.integration
def test_a_run_in_worker_processes_as_on_macos_gives_the_bytes_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AS_ON_MACOS)
    asked = ["memory=segtree_td", "data.size=4", "data.max_cases=2"]
    assert main(["run", *asked, f"results={tmp_path / 'linux'}"]) == 0
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "scripts",
            "run",
            *asked,
            f"results={tmp_path / 'macos'}",
            "executor=processes",
            "workers=2",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    predictions = [
        {file.parent.name: file.read_bytes() for file in sorted((tmp_path / name).rglob("predictions.jsonl"))}
        for name in ("linux", "macos")
    ]
    assert len(predictions[0]) == 2
    assert predictions[0] == predictions[1]


def test_workers_are_started_anew_on_macos_and_forked_from_the_server_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def context(name: str) -> None:
        asked.append(name)
        raise LookupError

    monkeypatch.setattr("multiprocessing.get_context", context)
    for platform in ("darwin", "linux"):
        monkeypatch.setattr(sys, "platform", platform)
        with pytest.raises(LookupError):
            processes._Process(1, 16)
    assert asked == ["spawn", "forkserver"]


def test_a_limit_of_files_that_macos_refuses_to_raise_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[tuple[int, int]] = []

    def refused(which: int, limits: tuple[int, int]) -> None:
        wanted.append(limits)
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refused)
    allow_files(1000)
    assert wanted[0][0] > 1000


def test_every_command_of_the_makefile_exists() -> None:
    called = set(
        re.findall(r"\$\(PY\) -m ([\w.]+)(?: ([a-z][\w-]*))?", (ROOT / "Makefile").read_text(encoding="utf-8"))
    )
    assert {verb for module, verb in called if module == "scripts"} <= set(verbs("GROUP"))
    modules = {module for module, _ in called}
    assert modules == {"pip", "pytest", "scripts"}, "a package without __main__ is no command"


def test_the_makefile_needs_no_program_that_macos_has_in_another_version() -> None:
    recipes = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("\t")]
    gnu = re.compile(r"\b(sed|readlink -f|realpath|nproc|timeout|grep -P|date -d|sort -V)\b")
    assert not [line for line in recipes if gnu.search(line)]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["help", "list judges", "run bm25 locomo"])
def test_a_command_works_without_standard_streams(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a daemon may start it; `print` alone does nothing then, but tables ask for the width of the terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["memsys-bench"])
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(verb.split()) == 0


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


@pytest.mark.parametrize(
    "command", ["run LIMIT=5", "regress PROFILE=paper", "doctor MAX_USD=3", "reproduce-table4 TABLE=5", "test ARGS=-x"]
)
def test_make_refuses_a_variable_that_its_target_does_not_read(command: str) -> None:
    target, variable = command.split(" ")
    done = made(target, variable)
    assert done.returncode == 2
    assert f"make {target} does not read {variable.partition('=')[0]}" in done.stderr


@pytest.mark.parametrize(
    ("command", "variable"),
    [
        ("new-memory", "NAME"),
        ("doctor", "MODEL"),
        ("gateway", "MODEL"),
        ("audit CSV=mine.csv", "COUNTS"),
        ("audit COUNTS=1", "CSV"),
    ],
)
def test_make_names_the_variable_that_a_target_needs(command: str, variable: str) -> None:
    done = made(*command.split())
    assert done.returncode == 2
    assert f"make {command.split()[0]} needs {variable}=" in done.stderr


def test_make_takes_every_variable_that_a_page_gives_to_a_target() -> None:
    pages = [*(ROOT / name for name in ("README.md", "USAGE.md", "CONTRIBUTING.md")), *(ROOT / "docs").glob("*.md")]
    given = {
        (target, name)
        for page in pages
        for target, rest in re.findall(
            r"\bmake ([a-z][a-z0-9-]*)((?: [A-Z_]+=(?:\"[^\"]*\"|[^\s`)]*))+)", page.read_text("utf-8")
        )
        for name in re.findall(r" ([A-Z_]+)=", rest)
    }
    assert len(given) > 20
    done = {f"{target} {name}": made(target, f"{name}=1") for target, name in sorted(given)}
    assert not [each for each, one in done.items() if one.returncode and " needs MODEL=" not in one.stderr]


def words(verb: str, *arguments: str) -> list[str]:
    """The words of the command that a target of `make` starts."""
    printed = made(verb, *arguments).stdout.replace(".venv/bin/python -m scripts", "printf '%s\\n'")
    return subprocess.run(["sh", "-c", printed], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("folder", ["/a b/d'é(x)", "/x,y/[z]", '/quo"te', "/a$b/$$c", "/$(HOME)", "$x"])
def test_make_gives_a_path_with_any_character_to_the_command_as_one_word(folder: str) -> None:
    given = words("run", f"DATA={folder}", f"RESULTS={folder}")
    assert {f"data.root={folder}", "data.source=real", f"results={folder}"} <= {*given}
    given = words("report", f"DATA={folder}", f"RESULTS={folder}")
    assert given == ["report", folder, "--data", folder]


def test_make_gives_a_url_and_names_with_any_character_to_the_command_as_one_word() -> None:
    url, model, key = "https://x.example/d?api-version=1&a=$b", "m (q4)", "K$EY"
    said = [f"BASE_URL={url}", f"MODEL={model}", f"EMBEDDER={model}", f"KEY_ENV={key}"]
    options = ["--model", model, "--base-url", url, "--embedder", model]
    assert words("gateway", *said) == ["gateway", *options, "--key-env", key]
    its_own = ["--embedder-base-url", url]
    assert words("doctor", *said, f"EMBEDDER_BASE_URL={url}") == ["doctor", *options, *its_own, "--key-env", key]
    assert {f"endpoint.base_url={url}", f"models.reader={model}", f"endpoint.key_env={key}"} <= {*words("run", *said)}
    judged = words("judge-card", *said)
    assert [word for word in judged if word.startswith("models.")] == [
        f"models.embedder={model}",
        f"models.judge={model}",
    ]
    assert f"endpoint.base_url={url}" in judged


def test_make_gives_the_cap_and_the_prices_to_commands_that_spend_without_a_profile() -> None:
    given = words("gateway", "MODEL=m", "MAX_USD=3", "PRICES=p q.yaml")
    assert given == ["gateway", "--model", "m", "--max-usd", "3", "--prices", "p q.yaml"]
    given = words("claims", "MAX_USD=3", "PRICES=p q.yaml", "YES=1", "ARGS=--judge mem0")
    assert given == ["claims", "--judge", "mem0", "max_usd=3", "prices=p q.yaml", "yes=1"]


def test_make_drops_no_words_of_args_and_no_data_set() -> None:
    assert words("fetch", "SET=halumem", "ARGS=--unpinned") == ["fetch", "halumem", "--unpinned"]
    assert words("product", "NAME=mem0ai", "ARGS=--pip") == ["product", "mem0ai", "--pip"]
    assert words("bench", "ARGS=--only kill") == ["bench", "--only", "kill"]
    assert words("card", "RUN=results/runs/x", "ARGS=--to x.md") == ["card", "results/runs/x", "--to", "x.md"]
    for verb in ("growth", "load", "conformance", "calibrate"):
        assert "dataset=realmem" in words(verb, "DATASET=realmem")
    assert "memory=segtree" in words("calibrate", "MEMORY=segtree")


@pytest.mark.parametrize("table", ["TABLE=a1", "TABLE=memtree_a1"])
def test_make_names_a_table_by_its_number_or_its_file(table: str) -> None:
    for verb, given in (("reproduce", "table=memtree_a1"), ("pareto", "memtree_a1"), ("card", "memtree_a1")):
        assert given in words(verb, "PAPER=memtree", table)
    assert "memtree_a1" in words("paper-table", "PAPER=memtree", table)
    assert "table=memtree_a1" in made("table-ray", "PAPER=memtree", table).stdout.split()


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


def test_make_takes_the_python_that_is_named_also_where_the_environment_holds_another(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, release in (("python3.12", 12), ("python3.13", 13), (".venv/bin/python", 13)):
        (tmp_path / name).write_text(f'#!/bin/sh\ncase "$2" in *print*) echo {release};; venv) exit 1;; esac\n')
        (tmp_path / name).chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", ".venv/.installed"):
        (tmp_path / name).touch()
    for given, again in (([], False), (["PYTHON=./python3.13"], False), (["PYTHON=./python3.12"], True)):
        assert (" -m venv .venv" in made("-n", "run", *given, cwd=tmp_path, dry=False).stdout) == again
    done = made("run", "PYTHON=./python3.12", cwd=tmp_path, dry=False)
    assert ".venv holds another Python or is incomplete; it is made again" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_make_clean_keeps_runs_and_paid_answers(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    kept = [tmp_path / "results" / "runs" / "a", tmp_path / "results" / "cache.sqlite"]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert made("clean", cwd=tmp_path, dry=False).returncode == 0
    assert all(path.exists() for path in kept)
