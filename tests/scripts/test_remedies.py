"""Remedies that fit the case, and packages that are needed only for rows that are asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scripts.assembly.readiness import _refusal
from scripts.tables import table as experiments


def served(key_env: str = "OPENAI_API_KEY", chat: bool = True) -> Any:
    return SimpleNamespace(name="reader: m", endpoint=SimpleNamespace(key_env=key_env), chat=chat)


def test_a_server_without_embeddings_is_told_from_a_wrong_path() -> None:
    cure = str(_refusal(served(chat=False), "HTTP 404: Not Found"))
    assert all(name in cure for name in ("EMBEDDER_BASE_URL", "LOCAL_EMBEDDER", "leave EMBEDDER out"))
    assert "EMBEDDER" not in str(_refusal(served(), "HTTP 404: Not Found"))


def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MYKEY", raising=False)
    assert "MYKEY is not set" in str(_refusal(served("MYKEY"), "HTTP 401: no"))
    monkeypatch.setenv("MYKEY", "k")
    assert "MYKEY" not in str(_refusal(served("MYKEY"), "HTTP 401: no"))


def test_a_row_that_is_not_asked_for_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(cfg: Any, models: Any, dataset: Any, recipe: Any, reader: Any, **options: Any) -> str:
        if recipe == "raptor":
            raise ImportError("RAPTOR needs sklearn: pip install memsys-bench[cluster]")
        return str(recipe)

    monkeypatch.setattr(experiments, "memory_run", run)
    monkeypatch.setattr(experiments, "recipe_of", lambda memory: memory)
    monkeypatch.setattr(experiments, "belongs", lambda line, option: True)
    names = ("bm25", "raptor")
    lines: Any = [
        SimpleNamespace(name=name, title=name.upper(), memory=name, published=None, option={}) for name in names
    ]
    groups: Any = [SimpleNamespace(name="locomo", dataset=object(), reader=None, option={})]
    cfg: Any = SimpleNamespace(build=SimpleNamespace(replicates=1))
    models: Any = None
    assert experiments._runs(cfg, models, groups, lines, frozenset(["bm25"])) == {("bm25", "locomo"): ["bm25"]}
    with pytest.raises(ImportError, match=r"RAPTOR: .*name the rows that you want"):
        experiments._runs(cfg, models, groups, lines, None)
