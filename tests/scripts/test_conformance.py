"""`memsys-bench conformance` as a user meets it, and what runs and tables say of memories behind a door of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from memory_contract import PROMISES

from data_loaders.schema import Question
from eval.conformance.checks import FAULTS
from eval.running.reader import Reader
from eval.running.run import Run
from memsys.products.places import place_of
from memsys.services.memory import ServiceMemory
from scripts.assembly.datasets import data
from scripts.assembly.models import build_models
from scripts.assembly.runs import builder, memory_run, recipe_of
from scripts.commands.mock_memory import Service
from scripts.lab.lab import Lab
from scripts.mock.endpoint import serving
from scripts.mock.memory_store import Store
from scripts.setup.launch import composed
from scripts.setup.options import load_option, memories_here, options
from scripts.tables.captions import waivers
from tests.scripts.commands import conformance

ELSEWHERE = sorted(set(options("memory")) - set(memories_here()))
SERVICES = [name for name in ELSEWHERE if not name.startswith("released_")]


def of_conformance(results: Path, *settings: str) -> int:
    return conformance(composed("config", [f"results={results}", "network=false", *settings]))


@pytest.mark.slow
def test_a_good_service_is_accepted_and_a_sabotaged_one_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(Store())
    with serving(service.application()) as url:
        named = ["memory=reference_http", f"memory.build.base_url={url}"]
        assert of_conformance(tmp_path, *named) == 0
        said = capsys.readouterr().out
        assert "accepted" in said
        assert said.count("  passed  ") == len(FAULTS) - 2
        assert said.count(": it offers no delete(subject)") == 2
        assert "STAND-IN" in said
        service.store.fault = "k ignored"
        assert of_conformance(tmp_path, *named) == 1
    said = capsys.readouterr().out
    assert "refused: k ignored" in said
    assert "FAULT        k ignored: a search returns more items than asked for; asked for 2 items" in said


@pytest.mark.slow
def test_what_is_waived_is_shown_with_its_reason_and_refuses_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert of_conformance(tmp_path, "memory=nothing") == 0
    assert "waived       empties: nothing is recalled for any question. it recalls nothing on purpose" in (
        capsys.readouterr().out
    )


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted(set(ELSEWHERE) - set(SERVICES)))
def test_an_installed_product_is_accepted(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    product = load_option("memory", name)["build"]["product"]
    if not place_of(product).installed:
        pytest.skip(f"{product} is not installed: make product NAME={product}")
    assert of_conformance(tmp_path, f"memory={name}") == 0, capsys.readouterr().out


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Describes a run of the reference service, with settings changed."""
    cfg = composed("config", [f"results={tmp_path_factory.mktemp('results')}", "data.max_cases=1"])
    models, dataset = build_models(cfg), data(cfg.data, load_option("dataset", "locomo"))
    option = load_option("memory", "reference_http")

    def make(title: str = "", **changed: Any) -> Run:
        top = {name: changed.pop(name) for name in ("waived", "untested") if name in changed}
        memory = {**option, **top, "build": {**option["build"], **changed}, **({"title": title} if title else {})}
        return memory_run(cfg, models, dataset, recipe_of(memory), Reader(**load_option("reader", "segtree")))

    return make


@pytest.mark.slow
def test_address_and_version_of_a_service_are_part_of_a_runs_identity(described: Callable[..., Run]) -> None:
    folder = described().folder
    for changed in ({"base_url": "http://127.0.0.1:8096/v1"}, {"version": "2"}, {"per": "turn"}):
        assert described(**changed).folder != folder, changed
    assert described(title="Another", waived={"order lost": "it is a bag of words"}, untested="never").folder == folder


@pytest.mark.slow
def test_tables_say_what_is_waived_and_untested_outside_this_process_alone(described: Callable[..., Run]) -> None:
    (untested, waived) = waivers([described(untested="written from documentation", waived={"order lost": "a bag"})])
    assert untested == "UNTESTED: reference_http: written from documentation."
    assert waived.startswith(
        "Waived for reference_http: reading leaves the memory as it was (its state lies in another"
    )
    assert waived.endswith("order lost (a bag).")


def of_killed_runs(option: dict[str, Any], url: str) -> None:
    """Leave what a killed run leaves: the file of a namespace in a folder that no process holds."""
    memory = builder({**option["build"], "base_url": url})(rng=np.random.default_rng(0))
    left = memory._namespaces.folder / "1-dead"
    left.mkdir(parents=True)
    (left / f"{memory.namespace}.json").touch()


@pytest.mark.slow
def test_a_service_is_a_row_of_a_table_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEMSYS_NAMESPACES", str(tmp_path / "namespaces"))
    lab = Lab("profile=smoke", f"results={tmp_path}", "network=false", "data.max_cases=1", "data.size=6")
    option = load_option("memory", "reference_http")
    dataset = lab.load("locomo")
    file = tmp_path / "reference_http.yaml"
    service = Service(Store(delay=1), together=2)
    with serving(service.application()) as url:
        file.write_text(yaml.safe_dump({**option, "build": {**option["build"], "base_url": url}}))
        of_killed_runs(option, url)
        scored = lab.score(lab.ask(str(file), dataset))
    assert capsys.readouterr().err.count("note: reference_http: 1 of 1 namespaces that killed runs left") == 1
    lines = [
        json.loads(line)
        for path in scored.answers.folder.rglob("predictions.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {line["outcome"] for line in lines} == {"answered"}, "two searches at once"
    assert len(service.store.adds) == 1, "one case, one namespace"
    assert service.store.spaces == {}, "and none is left"
    table = lab.table(scored)
    assert any(line.startswith("Waived for reference_http: ") for line in table.caption)


def test_every_file_of_a_service_can_be_built_and_calls_nobody(subtests: pytest.Subtests) -> None:
    assert {"mem0_http", "zep_http", "supermemory_http", "mastra_http", "reference_http", "reference_mcp"} <= set(
        SERVICES
    )
    for name in SERVICES:
        with subtests.test(name):
            option = load_option("memory", name)
            build: partial[ServiceMemory] = builder(option["build"])
            memory = build(rng=np.random.default_rng(0))
            assert memory.read(Question("q", "nothing was written")).items == ()
            memory.consolidate()
            memory.close()
            assert set(memory.WAIVED) | set(option.get("waived", {})) <= set(PROMISES) | set(FAULTS)
            ours = name.startswith("reference_")
            assert bool(option.get("untested")) != ours
            assert ours or "untested" in option["title"]


def test_a_memory_that_lives_elsewhere_is_left_out_where_all_memories_are_tried() -> None:
    assert "bm25" in memories_here()
    assert not {"released_mem0", *SERVICES} & set(memories_here())
