"""The code that a run depends on: its memory's and its loader's, wherever they live, and the run loop's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eval.files.provenance import ROOT, code_only, distributions, identity, source_digest

RUN_LOOP = ("run", "loop", "case", "question", "failures", "gold_evidence", "oracle_editor", "case_log", "reader")
"""Modules of `eval.running` whose code is part of every run's identity."""


def sources(build: Mapping[str, Any], loader: str) -> str:
    """Identity of the code that a run depends on."""
    own = [code_only((ROOT / "eval" / "running" / f"{name}.py").read_text(encoding="utf-8")) for name in RUN_LOOP]
    return identity({"closure": source_digest(modules_of(build, loader)), "own": own})


def used_distributions(build: Mapping[str, Any], loader: str) -> dict[str, str]:
    """Versions of the installed packages that this code imports."""
    return distributions(modules_of(build, loader))


def modules_of(build: Mapping[str, Any], loader: str) -> list[str]:
    targets = [*_named_in(build), loader]
    return [
        *(name.rpartition(".")[0] for name in targets),
        "data_loaders.units",
        "data_loaders.transforms",
        "data_loaders.change",
    ]


def _named_in(build: Any) -> list[str]:
    """Every `_target_` within a memory's configuration."""
    if isinstance(build, Mapping):
        own = [str(build["_target_"])] if "_target_" in build else []
        return [*own, *(name for value in build.values() for name in _named_in(value))]
    return [name for value in build for name in _named_in(value)] if isinstance(build, list) else []
