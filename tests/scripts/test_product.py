"""`memsys-bench product all`: sizes come before the first installation, and one that fails is no end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from eval.files.store import RunError
from memsys.products.places import PINS
from scripts.commands import product
from scripts.setup import wheels


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the products that were installed; langmem cannot be."""
    names: list[str] = []

    def install(folder: Path, *_: object) -> None:
        names.append(folder.name.rpartition("-")[0])
        if names[-1] == "langmem":
            raise RunError("the index is away")
        folder.mkdir()

    monkeypatch.setenv("MEMSYS_PRODUCTS", str(tmp_path))
    monkeypatch.setattr(wheels, "install", install)
    return names


def test_all_says_every_size_first_and_installs_what_is_missing_whatever_fails(
    installed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert product.main(["all"]) == 1
    said = capsys.readouterr()
    known = sorted(path.stem for path in PINS.glob("*.txt"))
    assert installed == known
    before, _, _ = said.out.partition(": installed by ")
    assert [line.split("\t")[0] for line in before.splitlines() if "\t" in line] == known
    assert f"in all {sum(product.sizes().values()):,} MB" in before
    assert said.err.splitlines() == ["error: langmem: the index is away", "not installed: langmem"]
    assert product.main(["all"]) == 1
    assert installed[len(known) :] == ["langmem"], "what is installed stays"


def test_all_installs_nothing_where_the_disk_has_too_little_room(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**9))
    with pytest.raises(RunError, match=r"has 1,000 MB left, .*nothing was installed"):
        product.main(["all"])
    assert installed == []


def test_every_product_has_a_size() -> None:
    assert set(product.sizes()) == {path.stem for path in PINS.glob("*.txt")}
