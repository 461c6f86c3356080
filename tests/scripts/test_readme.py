"""What the documents promise: commands that exist, names that can be found, examples that work as printed."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.answers.declared import forms
from scripts.command import verb
from scripts.commands.claims import HEAD_NAMES, WIDTH
from scripts.settings.checking import checked_option
from scripts.setup.launch import composed
from scripts.tables.layout import read_lines_of, wanted_columns
from tests.rigs.reporting import drawing
from tests.scripts.commands import reproduce

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "USAGE.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CLAIMS.md")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
KNOWN = set(re.findall(r"^KNOWN := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)[0].split())
ROLES = re.findall(r"^ROLES := (.*)$", MAKEFILE, re.MULTILINE)[0].split()
KNOWN |= {f"{role}_{what}" for role in ROLES for what in ("BASE_URL", "KEY_ENV")}
"""The variables that the Makefile does not refuse."""
each_page = pytest.mark.parametrize("page", PAGES)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)


def test_the_readme_has_fewer_than_900_words_and_begins_with_eight_claims_in_80_columns() -> None:
    assert len(text_of("README.md").split()) < 900
    rows = [line for line in text_of("README.md").splitlines()[:18] if line.startswith("| ")]
    assert len(rows) == 1 + len(HEAD_NAMES) == 9
    assert {len(row) for row in rows} == {WIDTH}
    assert "make claims" in "\n".join(text_of("README.md").splitlines()[:6])


def test_the_sample_table_of_the_readme_says_that_stand_ins_made_it() -> None:
    assert "**stand-ins**" in text_of("README.md").split("SegTreeMem, TD  0.140")[-1].split("```")[1][:100]


@pytest.mark.slow
@pytest.mark.data
def test_the_first_table_of_the_readme_is_what_its_command_prints(
    claims_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb("claims", ["--head", "--data", str(claims_root), "--workers", "1"]) == 0
    assert f"prints:\n\n{capsys.readouterr().out}\n" in text_of("README.md")


def test_the_fields_that_claims_md_asks_for_are_those_of_the_form_that_check_answers_reads() -> None:
    table = text_of("CLAIMS.md").split("| field | content |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:]))) | {"question"}
    known = {place for name, places in forms()["extract"].fields.items() for place in places if name != "f1"}
    assert named == known


def test_the_readme_names_the_test_command_and_the_first_table() -> None:
    assert "`make test`" in text_of("README.md")
    assert "\nmake reproduce-table4 " in text_of("README.md")


@pytest.mark.slow
def test_the_readme_says_where_it_runs_and_what_lies_in_the_data_folder() -> None:
    readme = " ".join(text_of("README.md").split())
    assert 'requires-python = ">=3.11,<3.14"' in text_of("pyproject.toml")
    assert "Python 3.11–3.13 on Linux or macOS (Windows: WSL)" in readme
    assert "make fetch SET=locomo DATA=~/data # real data, 3 MB: ~/data/locomo/locomo10.json" in readme
    assert "locomo/locomo10.json" in {entry["file"] for entry in yaml.safe_load(text_of("data_loaders/manifest.yaml"))}


def test_the_tree_of_the_readme_names_every_folder_of_the_code_and_of_the_settings() -> None:
    (tree,) = re.findall(r"^## The tree\n\n```\n(.*?)^```$", text_of("README.md"), re.MULTILINE | re.DOTALL)
    lines = {line.split("/")[0]: set(re.findall(r"(?<= )(\w+)/", line)) for line in tree.splitlines()}
    for floor in ("conf", "memsys", "eval", "scripts"):
        folders = {path.name for path in (ROOT / floor).iterdir() if path.is_dir()} - {"__pycache__"}
        assert not folders - lines[floor], floor
        assert not [name for name in lines[floor] if not list((ROOT / floor).rglob(name))], floor


@each_page
def test_every_make_target_and_variable_that_is_named_exists(page: str) -> None:
    targets = set(
        re.findall(
            r"\bmake ([a-z][a-z0-9-]+)(?=[ `\n])",
            "".join(re.findall(r"`[^`]+`|^make .*$", text_of(page), re.MULTILINE)),
        )
    )
    assert targets or page == "ARCHITECTURE.md"
    assert not {name for name in targets if not re.search(rf"^{name}:", MAKEFILE, re.MULTILINE)}
    for line in re.findall(r"make [a-z-]+ [^\n`]*", text_of(page)):
        for variable in re.findall(r"\b([A-Z_]{3,})=", line):
            assert variable in KNOWN, variable


def test_the_list_of_targets_fits_80_columns_and_names_every_target() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    described = re.findall(r"^([a-z0-9-]+):.*## (.*)$", MAKEFILE, re.MULTILINE)
    assert re.findall(r"^[a-z0-9-]+", done.stdout, re.MULTILINE) == [name for name, _ in described]
    assert all(text in " ".join(done.stdout.split()) for _, text in described)


def test_the_makefile_takes_every_variable_that_its_own_help_names() -> None:
    described = re.findall(r"^[a-z-]+:.*## (.*)$", MAKEFILE, re.MULTILINE)
    named = {variable for text in described for variable in re.findall(r"\b([A-Z_]{3,})=", text)}
    assert "ASKED" in named
    assert named <= KNOWN


@each_page
def test_every_command_that_is_named_exists(page: str) -> None:
    for name in re.findall(r"python -m scripts\.(\w+)", text_of(page)):
        assert (ROOT / "scripts" / f"{name}.py").is_file(), name


@each_page
def test_every_file_that_is_named_exists(page: str) -> None:
    own = {"memsys/systems/mine.py", "eval/metrics/brevity.py", "data_loaders/jsonl.py"}
    own |= {path for path in re.findall(r"[\w/.]+", text_of(page)) if re.search(r"mine|quiz", path)}
    named = set(
        re.findall(
            r"`((?:conf|memsys|eval|data_loaders|scripts|results|tests)/[\w/]+\.(?:py|yaml|csv|md))`", text_of(page)
        )
    )
    assert not {path for path in named - own if not (ROOT / path).is_file()}


def test_every_entry_of_the_changelog_is_one_line_that_links_to_a_file_that_exists() -> None:
    entries = [line for line in text_of("CHANGELOG.md").splitlines() if line and not line.startswith("#")][1:]
    for entry in entries:
        assert entry.startswith("- "), entry
        targets = re.findall(r"\]\(([^)#]+)[^)]*\)", entry)
        assert targets, entry
        assert len(re.sub(r"\[[^]]*\]\([^)]*\)", "", entry)) <= 160, entry
        assert not [target for target in targets if not (ROOT / target).exists()], entry


def test_every_function_on_the_walk_can_be_found() -> None:
    names = re.findall(r"`((?:data_loaders|memsys|eval|scripts)(?:\.\w+)+)`", text_of("ARCHITECTURE.md"))
    assert len(names) > 20
    missing = [name for name in names if not exists(name)]
    assert not missing


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module or leads to something in one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        return found is not None
    return False


@pytest.mark.slow
def test_the_drawing_is_that_of_the_imports() -> None:
    drawn = drawing.DRAWING.search(text_of("ARCHITECTURE.md"))
    assert drawn is not None
    assert drawn[0] == drawing.drawing(), "`make architecture` draws it again"


@pytest.mark.slow
def test_the_drawing_has_ten_boxes_and_each_imports_only_boxes_below_it() -> None:
    assert len(drawing.BOXES) == 10
    assert not [(here, there) for here, there in drawing.arrows() if there > here]
    with pytest.raises(KeyError, match=r"scripts\.templates"):
        drawing.box("scripts.templates.module")  # a package that no box names


@pytest.mark.slow
def test_the_annotated_table_is_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (page,) = [block for block in blocks("CONTRIBUTING.md", "yaml") if "backbones:" in block]
    table = checked_option("table", yaml.safe_load(page))
    assert len(wanted_columns(table, None)) == 2
    names = [line.name for line in read_lines_of(table, None)]
    assert names == ["bm25", "recency k=5", "recency k=10", "nothing", "best_recency", "bm25_5"]
    cfg = composed(
        "reproduce", ["table=memtree_t3", "profile=smoke", "print=plain", "data.size=6", f"results={tmp_path}"]
    )
    reproduce(cfg.changed(table={**table, "name": "memtree_t3"}))  # a table is looked up by its name
    shown = capsys.readouterr()
    assert "| Recency, best k |" in shown.out, shown.err


def test_the_metric_of_the_page_scores_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (module,) = [block for block in blocks("CONTRIBUTING.md", "python") if "def short_answer" in block]
    (tmp_path / "brevity.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    from eval.files.records import Prediction

    score = importlib.import_module("brevity").short_answer
    made = {
        name: Prediction("c", "q", answer, (), (), "answered")
        for name, answer in (("short", "In Oaxaca"), ("long", "a b c d e f"))
    }
    assert [score(None, None, made[name]).value for name in ("short", "long")] == [1.0, 0.0]
    (line,) = [block for block in blocks("CONTRIBUTING.md", "yaml") if "short_answer" in block]
    assert yaml.safe_load(line)["short_answer"]["target"].endswith("brevity.short_answer")


def test_the_data_set_of_the_page_is_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (page,) = [block for block in blocks("CONTRIBUTING.md", "yaml") if "name: quiz" in block]
    option = checked_option("dataset", yaml.safe_load(page))
    assert (ROOT / "conf" / "reader" / f"{option['reader']}.yaml").is_file()
    assert all((ROOT / "conf" / "judge" / f"{name}.yaml").is_file() for name in option["judges"])
    (module,) = [block for block in blocks("CONTRIBUTING.md", "python") if "data_loaders/quiz.py" in block]
    (tmp_path / "quiz_of_the_page.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    raw = [{"id": "one", "said": ["My cat is Bruno."], "asked": ["Whose cat?"], "answers": ["Ines's"]}]
    (tmp_path / "quiz.json").write_text(json.dumps(raw), encoding="utf-8")
    (case,) = importlib.import_module("quiz_of_the_page").load(tmp_path / "quiz.json")
    assert [(question.text, gold.answers) for question, gold in case.questions] == [("Whose cat?", ("Ines's",))]


@pytest.mark.slow
def test_the_memory_of_the_readme_runs_in_a_folder_without_a_checkout(tmp_path: Path) -> None:
    (module,) = [block for block in blocks("README.md", "python") if "class Mine" in block]
    (option,) = [block for block in blocks("README.md", "yaml") if "name: mine" in block]
    (place,) = re.findall(r"Installed with pip, the module is `(mine\.py)` in", text_of("README.md"))
    (target,) = re.findall(r"with `(_target_: mine\.Mine)`, and `memsys-bench run mine`", text_of("README.md"))
    (tmp_path / place).write_text(module, encoding="utf-8")
    (tmp_path / "conf" / "memory").mkdir(parents=True)
    there = re.sub(r"_target_: [\w.]+", target, option)
    (tmp_path / "conf" / "memory" / "mine.yaml").write_text(there, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "scripts", "run", "mine", "locomo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^Mine +0\.\d{3} ", ran.stdout, re.MULTILINE), ran.stdout


@pytest.mark.slow
def test_the_python_example_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import runpy

    (example,) = [block for block in blocks("README.md", "python") if "Lab(" in block]
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(tmp_path / "example.py"))
    promised = re.search(r"\)\)\s+# (.*)$", example, re.MULTILINE)
    assert promised is not None
    assert capsys.readouterr().out.strip() == promised[1].strip()
