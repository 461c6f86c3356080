"""Settings of memories: flat in a file, in records in the constructor; every file of `conf/memory` still says the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hydra.utils import get_class

from memsys.interface import Positive, Settings, filled, parameters, setting, tuned, with_settings
from memsys.systems.amem import AMemSettings
from memsys.systems.nemori import EpisodeRules, NemoriSettings
from scripts.assembly.runs import builder

FILES = sorted((Path(__file__).resolve().parents[2] / "conf" / "memory").glob("*.yaml"))


@dataclass(frozen=True)
class Reading(Settings):
    k: Positive = 10
    order: Literal["time", "rank"] | None = None
    depth: Literal["any"] | Positive = "any"


class Memory:
    def __init__(self, llm: str, size: int = 3, reading: Reading = Reading(order="rank")) -> None:
        self.llm, self.size, self.reading = llm, size, reading


def stated(path: Path) -> dict[str, Any]:
    build = yaml.safe_load(path.read_text(encoding="utf-8"))["build"]
    return {name: value for name, value in build.items() if name not in ("_target_", "_partial_")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_value_of_a_file_reaches_the_constructor_under_its_name(path: Path) -> None:
    build = yaml.safe_load(path.read_text(encoding="utf-8"))["build"]
    given = builder(build).keywords
    records = [vars(value) for value in given.values() if isinstance(value, Settings)]
    held = {**given, **{name: value for record in records for name, value in record.items()}}
    assert {name: held[name] for name in stated(path) if name != "inner"} == {
        name: value for name, value in stated(path).items() if name != "inner"
    }
    assert set(stated(path)) <= set(parameters(get_class(build["_target_"])))


def test_settings_are_told_apart_from_services_and_go_into_their_records() -> None:
    memory = with_settings(Memory, {"k": 5, "size": 4})(llm="engine")
    assert (memory.llm, memory.size, memory.reading) == ("engine", 4, Reading(k=5, order="rank"))
    assert {name: each.default for name, each in parameters(Memory).items() if name != "llm"} == {
        "size": 3, "k": 10, "order": "rank", "depth": "any",
    }  # fmt: skip


def test_a_knob_is_turned_on_a_copy_wherever_it_is_held() -> None:
    memory = Memory("engine")
    swept = tuned(memory, {"k": 1, "size": 9})
    assert (setting(swept, "k"), setting(swept, "size"), setting(swept, "order")) == (1, 9, "rank")
    assert (setting(memory, "k"), setting(memory, "size")) == (10, 3)
    with pytest.raises(ValueError, match="k must be at least 1, found 0"):
        tuned(memory, {"k": 0})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": 0}, "k must be at least 1, found 0"),
        ({"order": "size"}, "order must be one of time, rank, found 'size'"),
        ({"depth": 0}, "depth must be at least 1, found 0"),
        ({"depth": "all"}, "depth must be one of any, found 'all'"),
    ],
)
def test_a_record_refuses_unknown_words_and_numbers_that_are_too_small(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reading(**wrong)
    assert Reading(order=None, depth=4).k == 10


def test_only_what_is_none_is_filled() -> None:
    assert filled(Reading(k=3), {"order": "time", "k": 7}) == Reading(k=3, order="time")


def test_none_is_a_setting_only_where_the_record_says_so() -> None:
    assert EpisodeRules(extraction=None).extraction is None
    for made in (partial(NemoriSettings, extraction=None), partial(AMemSettings, mode=None)):
        with pytest.raises(ValueError, match="must be one of"):
            made()
