"""Every sabotaged service and worker is refused with the name of its fault; every memory of the tree passes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval.conformance.canaries import CANARIES, HISTORY, shows_date
from eval.conformance.checks import FAULTS, ConformanceResult, examine
from eval.running.run import Run, Services, build_memory
from memsys.embed import HashingEmbedder
from memsys.interface import Item, with_settings
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.gateway.server import Gateway
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.prompts import Prompts
from memsys.systems.controls import FullHistory, Nothing
from memsys.systems.released import Released
from scripts.assembly.runs import builder, recipe_of, unit_of
from scripts.commands.mock_memory import Service
from scripts.mock.endpoint import serving
from scripts.mock.memory_store import FAULTS as OF_SERVICES
from scripts.mock.memory_store import Store
from scripts.setup.options import load_option, memories_here

PAIRS = {"rule": "floor_pair", "on_unpaired": "keep_single"}
TOY = str(Path(__file__).parents[2] / "products" / "toy.py")
FORM = {"type": "object", "properties": {"facts": {"type": "array", "items": {"type": "string"}}}}
STAND_IN = {"kind": "extract", "schema": FORM, "fields": {"text": "<new>(.*?)</new>", "time": r"Today is (\S+)\."}}
OF_WORKERS = ["own text not stored", "speaker lost", "search changes state", "k ignored"]
QUICK = {"reducer": "pca", "max_components": 4}
"""Settings that only save time: UMAP compiles for half a minute."""
OF_EACH_KIND = ("nothing", "bm25", "mem0", "segtree", "hipporag", "naive_rag_pruned")


def named(verdict: ConformanceResult) -> list[str]:
    return list(verdict.faults)


@pytest.fixture(scope="module")
def reference() -> Mapping[str, Any]:
    build: Mapping[str, Any] = load_option("memory", "reference_http")["build"]
    return build


def of_service(reference: Mapping[str, Any], fault: str) -> ConformanceResult:
    with serving(Service(Store(fault)).application()) as url:
        build = builder({**reference, "base_url": url})
        return examine(lambda case: build(rng=np.random.default_rng(0)), PAIRS, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", *OF_SERVICES])
def test_a_sabotaged_service_is_refused_with_the_name_of_its_fault(reference: Mapping[str, Any], fault: str) -> None:
    assert named(of_service(reference, fault)) == ([fault] if fault else [])


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    served = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(64), None, "live")
    yield served
    served.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", *OF_WORKERS])
def test_a_sabotaged_worker_is_refused_with_the_name_of_its_fault(gateway: Gateway, fault: str) -> None:
    settings = {
        "product": TOY,
        "purposes": [{"name": "extract", "find": "^Toy", "stand_in": STAND_IN}],
        "settings": {"sabotage": fault},
    }
    verdict = examine(
        lambda case: with_settings(Released, settings)(gateway, np.random.default_rng(0)), Released.UNIT, 0.3
    )
    assert named(verdict) == ([fault] if fault else [])


SINGLE_TURNS = {"unit": {"rule": "utterance"}}
"""A data set's own unit rule."""


def test_a_memory_may_have_the_units_of_its_published_protocol() -> None:
    units, ks = {}, {}
    for name in ("mem0_v3", "mem0_v3_protocol", "released_mem0", "released_mem0_protocol"):
        memory = recipe_of(load_option("memory", name)).memory
        units[name], ks[name] = unit_of(memory, SINGLE_TURNS)["rule"], memory["build"]["k"]
    assert list(units.values()) == ["floor_pair", "utterance", "floor_pair", "utterance"]
    assert list(ks.values()) == [20, 200, 20, 200]
    assert load_option("reader", "mem0_protocol")["order"] == "chronological"


def refusal(name: str) -> dict[str, str]:
    """The faults of a memory of the tree that are not waived."""
    option = load_option("memory", name)
    quick = {key: value for key, value in QUICK.items() if key in option["build"]}
    recipe = recipe_of({**option, "build": {**option["build"], **quick}})
    engine = ExtractiveLLM()
    services = Services(engine, engine, engine, HashingEmbedder(256), Prompts())
    run = Run(name, Path(), (), (), recipe.build, None, {}, services)  # type: ignore[arg-type]
    verdict = examine(lambda case: build_memory(run, case), unit_of(recipe.memory, SINGLE_TURNS))
    return {fault: verdict.faults[fault] for fault in verdict.unwaived(recipe.waived)}


@pytest.mark.slow
def test_a_memory_of_each_kind_passes(subtests: pytest.Subtests) -> None:
    for name in OF_EACH_KIND:
        with subtests.test(name):
            assert refusal(name) == {}


@pytest.mark.slow
def test_every_memory_of_the_tree_passes(subtests: pytest.Subtests) -> None:
    for name in memories_here():
        if name not in OF_EACH_KIND and not load_option("memory", name).get("control"):
            with subtests.test(name):
                assert refusal(name) == {}


@pytest.mark.slow
def test_what_is_waived_is_a_check_or_a_test_and_has_a_reason() -> None:
    for name in memories_here():
        waived = recipe_of(load_option("memory", name)).waived
        assert set(waived) <= set(FAULTS), name
        assert all(len(reason.split()) > 3 for reason in waived.values()), name
    assert examine(lambda case: Nothing(), PAIRS).unwaived(()) == ["empties"], "without its waiver it is refused"


def test_a_step_that_raises_refuses_the_memory_and_what_was_made_is_closed() -> None:
    closed = []

    class Breaking(Nothing):
        def end_session(self, session_id: str) -> None:
            sys.exit("the disk of the service is full")

        def close(self) -> None:
            closed.append(self)

    verdict = examine(lambda case: Breaking(), PAIRS)
    assert verdict.faults == {"a step failed": "SystemExit: the disk of the service is full"}
    assert len(closed) == 1


def test_a_memory_that_cannot_be_closed_is_refused() -> None:
    class Unclosable(FullHistory):
        def close(self) -> None:
            sys.exit("no connection")

    assert examine(lambda case: Unclosable(), PAIRS).faults["a step failed"] == "close: SystemExit: no connection"


def test_each_canary_is_said_once_and_its_question_does_not_tell_it() -> None:
    said = "\n".join(turn.text for session in HISTORY.sessions for turn in session.turns)
    for canary in CANARIES:
        assert said.count(canary.word) == 1
        assert canary.word not in canary.question
        assert shows_date(f"[{canary.time_text}] text", canary)
        assert shows_date(canary.time.isoformat(), canary)
        assert not shows_date("[2023-12-01] 4 years later", canary)


class Deleting(FullHistory):
    """Offers `delete(subject)`: every unit with the subject's last word goes."""

    words = 1

    def delete(self, subject: str) -> None:
        named = subject.split()[-self.words :]
        self._items = [item for item in self._items if not any(word in item.text for word in named)]


class Returning(Deleting):
    """Brings what was deleted back when it consolidates."""

    def __init__(self) -> None:
        super().__init__()
        self._gone: list[Item] = []

    def delete(self, subject: str) -> None:
        before = list(self._items)
        super().delete(subject)
        self._gone = [item for item in before if item not in self._items]

    def consolidate(self) -> None:
        self._items, self._gone = [*self._items, *self._gone], []


class Deaf(FullHistory):
    """Takes a request to delete, and does nothing."""

    def delete(self, subject: str) -> None:
        """Forget nothing."""


class Careless(Deleting):
    """Deletes what shares any word with the subject."""

    words = 8


@pytest.mark.parametrize(
    ("build", "faults"),
    [
        (Deleting, {}),
        (Deaf, {"subject kept": "Quillonar is found after the deletion"}),
        (Returning, {"subject kept": "Quillonar is found after the next consolidation"}),
        (Careless, {"subject takes more": "no longer found: Harrowgant, Moxaberry, Tamberlixin, Verdazzo, Zyndervale"}),
    ],
)
def test_a_memory_that_deletes_by_subject_deletes_that_and_for_good(
    build: type[FullHistory], faults: dict[str, str]
) -> None:
    verdict = examine(lambda case: build(), {"rule": "utterance"})
    assert verdict.faults == faults
    assert "subject kept" not in verdict.unchecked


def test_a_memory_without_delete_is_not_checked_for_it() -> None:
    verdict = examine(lambda case: FullHistory(), {"rule": "utterance"})
    assert (
        verdict.unchecked["subject kept"] == verdict.unchecked["subject takes more"] == "it offers no delete(subject)"
    )
