"""Which modes a memory has is said once, in its class; files, checks and the table of memories go by that."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from hydra.utils import get_class
from scripted import ScriptedLLM

from eval.running.run import needs
from memsys.embed import HashingEmbedder
from memsys.interface import parameters, with_settings
from memsys.prompts import Prompts
from scripts.commands.tables import systems_table
from scripts.setup.options import load_option, options


@cache
def builds() -> dict[str, dict[str, Any]]:
    """The value `build` of each file of conf/memory."""
    return {name: load_option("memory", name)["build"] for name in options("memory")}


def test_the_class_names_the_modes_that_its_constructor_offers(subtests: pytest.Subtests) -> None:
    for target in sorted({build["_target_"] for build in builds().values()}):
        with subtests.test(target=target):
            kind = get_class(target)
            parameter = parameters(kind).get("mode")
            offered = get_args(parameter.annotation) if parameter else ()
            assert offered == kind.MODES
            assert parameter is None or parameter.default == kind.MODES[0]


def test_a_mode_that_the_class_does_not_name_is_refused(subtests: pytest.Subtests) -> None:
    for name, build in [(name, build) for name, build in builds().items() if "mode" in build]:
        with subtests.test(name=name):
            kind = get_class(build["_target_"])
            assert build["mode"] in kind.MODES
            services = {
                "llm": ScriptedLLM({}),
                "probe": ScriptedLLM({}),
                "embedder": HashingEmbedder(8),
                "prompts": Prompts(),
                "rng": np.random.default_rng(0),
            }
            given = {service: services[service] for service in needs(kind) if service in services}
            with pytest.raises(
                ValueError, match=f"mode must be one of {', '.join(kind.MODES)}, found 'of another paper'"
            ):
                with_settings(kind, {"mode": "of another paper"})(**given)


def test_the_table_of_memories_takes_the_modes_from_the_class() -> None:
    """A search of the source for "code" gave SegTreeMem a mode that it lacks, and left out two that others have."""
    rows = (line.strip("| ").split(" | ") for line in systems_table().splitlines() if line.startswith("| "))
    modes = {row[0]: row[5] for row in rows}
    assert modes["segtree"] == "–"
    assert modes["memoryos"] == "paper, code, library"
    assert modes["memstream"] == "paper, code, genagents"
    assert modes["amem"] == "paper, code"
