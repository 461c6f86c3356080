"""Identity: other settings, prompts or sources are other runs; the order of keys is not."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from eval.files import provenance
from eval.files.provenance import code_of, distributions, has_source, identity, source_digest


def test_identity_depends_on_contents_and_not_on_the_order_of_keys() -> None:
    assert identity({"a": 1, "b": [2]}) == identity({"b": [2], "a": 1})
    assert identity({"a": 1}) != identity({"a": 2})
    assert len(identity({})) == 12


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two packages: memsys.one imports memsys.two (inside a function) and data_loaders.base."""
    for package in ("memsys", "data_loaders", "eval"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "memsys" / "one.py").write_text(
        "import json\nfrom data_loaders.base import (\n    A,\n    B,\n)\n\ndef f():\n    from memsys import two\n"
    )
    (tmp_path / "memsys" / "two.py").write_text("x = 1\n")
    (tmp_path / "memsys" / "three.py").write_text("y = 1\n")
    (tmp_path / "data_loaders" / "base.py").write_text("A = B = 1\n")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    forget()
    yield tmp_path
    forget()


def digest() -> str:
    forget()
    return source_digest(["memsys.one"])


@pytest.mark.parametrize("file", ["memsys/one.py", "memsys/two.py", "data_loaders/base.py"])
def test_a_change_in_any_imported_project_file_changes_the_source_digest(project: Path, file: str) -> None:
    before = digest()
    (project / file).write_text((project / file).read_text() + "changed = True\n")
    assert digest() != before


def test_a_file_is_read_once_and_again_after_its_next_change(project: Path) -> None:
    first, read = digest(), provenance._source_of.cache_info().misses
    assert digest() == first
    assert provenance._source_of.cache_info().misses == read
    (project / "memsys" / "two.py").write_text("x = 1000\n")
    assert source_digest(["memsys.one"]) != first, "a notebook that reloads an edited module has another identity"
    assert provenance._source_of.cache_info().misses == read + 1


def test_a_file_that_does_not_parse_counts_as_it_is(project: Path) -> None:
    first = digest()
    (project / "memsys" / "two.py").write_text("x = (\n")
    second = digest()
    (project / "memsys" / "two.py").write_text("x = (  # a comment\n")
    assert len({first, second, digest()}) == 3


def test_a_change_elsewhere_does_not(project: Path) -> None:
    before = digest()
    (project / "memsys" / "three.py").write_text("y = 2\n")
    assert digest() == before


PLAIN = """
def f(x):
    return g(x, [1, "a"])
"""
WITH_PROSE = """
'''import memsys.three

from memsys import three
'''

# A comment.
def f(x):
    '''A docstring.'''
    return g(
        x,
        [1, 'a',],
    )  # a comment
"""


def test_docstrings_comments_and_formatting_do_not_change_the_source_digest(project: Path) -> None:
    (project / "memsys" / "two.py").write_text(PLAIN)
    before = digest()
    (project / "memsys" / "two.py").write_text(WITH_PROSE)
    assert digest() == before
    (project / "memsys" / "two.py").write_text(WITH_PROSE.replace("1", "True"))
    assert digest() != before


def test_the_code_of_a_file_is_the_same_text_in_every_version_of_python() -> None:
    source = 'class A:\n    x: int = 1\n    """A field."""\n\n    def f(self, *a, b=None):\n        return f"{self.x!r:>{b}}" + "c"\n'
    assert identity({"code": code_of(ast.parse(source))}) == "83c830eeb82b"


def test_the_real_memories_depend_on_the_modules_they_share() -> None:
    names = {path.name for _, path in provenance._closure("memsys.systems.segtree").files}
    assert {"reading.py", "interface.py", "schema.py", "prompts.py"} <= names
    assert "memtree.py" not in names


# --- code that lives elsewhere ------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A memory of somebody's own, outside the repository: one module, a package of theirs, a library that is installed."""
    (tmp_path / "theirs" / "deep").mkdir(parents=True)
    (tmp_path / "my_memory.py").write_text(
        "import orjson\nimport yaml\nfrom theirs.deep import helper\nfrom memsys.systems.bm25 import BM25\n"
    )
    (tmp_path / "theirs" / "__init__.py").write_text("")
    (tmp_path / "theirs" / "deep" / "__init__.py").write_text("from . import leaf\nfrom ..other import y\n")
    (tmp_path / "theirs" / "deep" / "leaf.py").write_text("x = 1\n")
    (tmp_path / "theirs" / "deep" / "helper.py").write_text("x = 1\n")
    (tmp_path / "theirs" / "other.py").write_text("y = 1\n")
    (tmp_path / "theirs" / "unused.py").write_text("z = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    provenance._closure.cache_clear()
    provenance._found.cache_clear()


INSIDE = ("__init__", "deep/__init__", "deep/leaf", "deep/helper", "other")
OUTSIDE = ["my_memory.py", *(f"theirs/{name}.py" for name in INSIDE)]


@pytest.mark.parametrize("file", OUTSIDE)
def test_a_change_of_code_outside_the_repository_changes_the_source_digest(elsewhere: Path, file: str) -> None:
    before = source_digest(["my_memory"])
    forget()
    assert source_digest(["my_memory"]) == before
    (elsewhere / file).write_text((elsewhere / file).read_text() + "changed = True\n")
    forget()
    assert source_digest(["my_memory"]) != before


def test_a_change_of_what_it_does_not_import_changes_nothing(elsewhere: Path) -> None:
    before = source_digest(["my_memory"])
    (elsewhere / "theirs" / "unused.py").write_text("z = 2\n")
    forget()
    assert source_digest(["my_memory"]) == before


def test_what_it_takes_from_the_project_is_part_of_it(elsewhere: Path) -> None:
    names = {name for name, _ in provenance._closure("my_memory").files}
    assert {"my_memory", "theirs.deep.leaf", "theirs.other", "memsys/systems/bm25.py", "memsys/interface.py"} <= names


def test_installed_packages_count_with_their_version(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import version

    found = distributions(["my_memory"])
    assert found["orjson"] == version("orjson")
    assert found["PyYAML"] == version("PyYAML")
    assert found["bm25s"] == version("bm25s")
    assert "memsys-bench" not in found
    monkeypatch.setattr(provenance, "_version", lambda name: "99")
    assert distributions(["my_memory"]) == dict.fromkeys(found, "99")


def test_a_memory_that_neither_clusters_nor_indexes_words_does_not_depend_on_their_libraries() -> None:
    assert not {"bm25s", "numba", "umap-learn"} & distributions(["memsys.systems.timem"]).keys()
    assert distributions(["memsys.tokens"]).keys() == {"PyStemmer"}, "a library without Python source"


@pytest.mark.slow
def test_a_module_has_the_distributions_that_the_standard_library_names() -> None:
    known = packages_distributions()
    for top in ("yaml", "hydra", "numpy", "_pytest", "pylab", "rouge_score", "opentelemetry", "mypyc"):
        if top in known:
            assert provenance.installers(top) == tuple(sorted(set(known[top])))
    assert provenance.installers("no_such_module") == ("no_such_module",)


def test_nothing_is_imported_to_look_at_it(elsewhere: Path) -> None:
    (elsewhere / "theirs" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    assert source_digest(["my_memory"])
    assert has_source("my_memory")
    assert not has_source("my_other_memory")


# --- the commit ---------------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=Ines", "-c", "user.email=ines@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_the_commit_is_told_without_writing_to_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    for name in [name for name in os.environ if name.startswith("GIT_")]:  # a hook's would lead to another repository
        monkeypatch.delenv(name)
    git(tmp_path, "init")
    index, file = tmp_path / ".git" / "index", tmp_path / "a.py"
    file.write_text("x = 1\n")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-m", "first")
    os.utime(file, (1_000_000_000, 1_000_000_000))  # git would note the new time in its index
    before = (index.read_bytes(), index.stat().st_mtime_ns)
    clean = provenance._commit()
    (tmp_path / "new.py").write_text("untracked")
    assert len(clean) == 12
    assert provenance._commit() == clean
    file.write_text("x = 2\n")
    assert provenance._commit() == f"{clean}-dirty"
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before


def test_outside_a_checkout_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance._commit() == "unknown"
