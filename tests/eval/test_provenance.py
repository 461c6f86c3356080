"""Identity: other settings, prompts or sources are other runs; the order of keys is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eval import provenance
from eval.provenance import identity, source_digest


def test_identity_depends_on_contents_and_not_on_the_order_of_keys() -> None:
    assert identity({"a": 1, "b": [2]}) == identity({"b": [2], "a": 1})
    assert identity({"a": 1}) != identity({"a": 2})
    assert len(identity({})) == 12


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two packages: memsys.one imports memsys.two (inside a function) and data_loaders.base."""
    for package in ("memsys", "data_loaders", "eval"):
        (tmp_path / package).mkdir()
    (tmp_path / "memsys" / "one.py").write_text(
        "import json\nfrom data_loaders.base import (\n    A,\n    B,\n)\n\ndef f():\n    from memsys import two\n"
    )
    (tmp_path / "memsys" / "two.py").write_text("x = 1\n")
    (tmp_path / "memsys" / "three.py").write_text("y = 1\n")
    (tmp_path / "data_loaders" / "base.py").write_text("A = B = 1\n")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    provenance._closure.cache_clear()
    yield tmp_path
    provenance._closure.cache_clear()


def digest() -> str:
    provenance._closure.cache_clear()
    return source_digest(["memsys.one"])


@pytest.mark.parametrize("file", ["memsys/one.py", "memsys/two.py", "data_loaders/base.py"])
def test_a_change_in_any_imported_project_file_changes_the_source_digest(project: Path, file: str) -> None:
    before = digest()
    (project / file).write_text((project / file).read_text() + "# changed\n")
    assert digest() != before


def test_a_change_elsewhere_does_not(project: Path) -> None:
    before = digest()
    (project / "memsys" / "three.py").write_text("y = 2\n")
    assert digest() == before


def test_the_real_memories_depend_on_the_modules_they_share() -> None:
    names = {path.name for _, path in provenance._closure("memsys.segtree").files}
    assert {"segtree.py", "annotated_tree.py", "propagation.py", "interface.py", "schema.py", "prompts.py"} <= names
    assert "memtree.py" not in names
