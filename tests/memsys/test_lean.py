"""Modules are hidden from one thread's imports and from nothing else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memsys.lean import hide_modules

OPTIONAL = "optional_part_of_a_package"


@pytest.fixture(autouse=True)
def optional_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / f"{OPTIONAL}.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop(OPTIONAL, None)


def test_a_hidden_module_is_not_found_inside_and_is_found_afterwards() -> None:
    with hide_modules(OPTIONAL), pytest.raises(ModuleNotFoundError, match=OPTIONAL):
        importlib.import_module(OPTIONAL)
    assert importlib.import_module(OPTIONAL).value == 7


def test_a_loaded_module_stays_visible() -> None:
    loaded = importlib.import_module(OPTIONAL)
    with hide_modules(OPTIONAL):
        assert importlib.import_module(OPTIONAL) is loaded


def test_hiding_in_one_thread_leaves_the_imports_of_another_alone() -> None:
    with hide_modules(OPTIONAL), ThreadPoolExecutor(1) as thread:
        assert thread.submit(importlib.import_module, OPTIONAL).result(10).value == 7


def test_an_inner_block_hides_what_the_outer_hides_too() -> None:
    with hide_modules(OPTIONAL):
        with hide_modules("another_part"), pytest.raises(ModuleNotFoundError):
            importlib.import_module(OPTIONAL)
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(OPTIONAL)
