"""Whole runs of a released product: recorded, then replayed without an endpoint; the toy always, products where they are installed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from memsys.embed import HashingEmbedder
from memsys.llm.gateway.accounts import Account, Purpose
from memsys.llm.gateway.chat import EngineUpstream
from memsys.llm.gateway.server import Gateway
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.products.places import place_of
from scripts.lab.lab import Answers, Lab
from scripts.setup.exits import guarded
from scripts.setup.options import load_option, options

ROOT = Path(__file__).resolve().parents[2]
RELEASED = [name for name in options("memory") if name.startswith("released_")]
TOY: dict[str, Any] = {
    "name": "released_toy",
    "title": "Toy",
    "build": {
        "_target_": "memsys.systems.released.Released",
        "_partial_": True,
        "product": str(ROOT / "tests" / "products" / "toy.py"),
        "k": 10,
        "purposes": [
            {
                "name": "extract",
                "find": "^Toy",
                "stand_in": {
                    "kind": "extract",
                    "schema": {
                        "type": "object",
                        "properties": {"facts": {"type": "array", "items": {"type": "string"}}},
                    },
                    "fields": {"text": "<new>(.*?)</new>", "time": r"Today is (\S+)\."},
                },
            }
        ],
    },
}


class Served:
    """The offline engine behind an address of its own, as an endpoint that a run is recorded from."""

    def __init__(self, purposes: list[dict[str, Any]]) -> None:
        declared = [Purpose(**each) for each in purposes]
        self.account = Account("endpoint", label="endpoint", purposes=declared)
        self._gateway = Gateway(EngineUpstream(ExtractiveLLM()), HashingEmbedder(64), None, "live")
        self.base_url = self._gateway.open("up", self.account).base_url

    def close(self) -> None:
        self._gateway.close()


def settings(url: str, folder: Path, *more: str) -> list[str]:
    models = [f"models.{role}=mock" for role in ("memory", "reader", "judge", "embedder")]
    cut = ["profile=smoke", "dataset=locomo", "data.max_cases=1", "data.size=8", "endpoint.probe=false"]
    return [*cut, *models, f"endpoint.base_url={url}", "endpoint.label=recorded", f"results={folder}", *more]


def predictions(folder: Path) -> dict[str, bytes]:
    files = [path for name in ("predictions.jsonl", "items.jsonl", "nodes.jsonl") for path in folder.rglob(name)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


SLOW = (pytest.mark.integration, pytest.mark.timeout(900))  # a product takes up to a minute to start and two to build


@pytest.fixture(params=["toy", *(pytest.param(name, marks=SLOW) for name in RELEASED)])
def memory(request: pytest.FixtureRequest) -> dict[str, Any]:
    chosen = TOY if request.param == "toy" else load_option("memory", request.param)
    place = place_of(chosen["build"]["product"])
    if not place.installed:
        pytest.skip(f"{place.name} is not installed: make product NAME={place.name}")
    return chosen


@pytest.mark.slow
def test_a_run_of_a_product_is_replayed_without_its_endpoint_in_the_same_bytes(
    memory: dict[str, Any], tmp_path: Path
) -> None:
    endpoint = Served(memory["build"]["purposes"])
    runs: list[Answers] = []
    guarded(lambda: runs.append(Lab(*settings(endpoint.base_url, tmp_path / "recorded")).ask(memory)))
    recorded, asked = runs[0], endpoint.account.idle
    endpoint.close()
    (tmp_path / "replayed").mkdir()
    shutil.copy(tmp_path / "recorded" / "cache.sqlite", tmp_path / "replayed" / "cache.sqlite")  # and nothing beside it
    replayed = Lab(*settings(endpoint.base_url, tmp_path / "replayed", "replay=true", "network=false")).ask(memory)
    before, after = (predictions(answers.folder) for answers in (recorded, replayed))
    assert before == after
    assert_sources_are_where_the_texts_come_from(recorded)
    assert not any(b'"error"' in text.replace(b'"error":""', b"") for text in before.values())
    counted = spent(recorded.folder)
    assert counted["tokens_out"] == asked.tokens_out, "what is charged is what the endpoint counted"
    assert counted["tokens_in"] == asked.tokens_in
    assert spent(replayed.folder) | {"sent": 0} == counted | {"sent": 0}
    assert spent(replayed.folder)["sent"] == 0
    assert counted["refused"] == 0, "nothing but the gateway was asked for"


def assert_sources_are_where_the_texts_come_from(answers: Answers) -> None:
    """Most words of an item that names turns occur in these turns; dates, captions and roles are left out."""

    def words(text: str) -> set[str]:
        return set(re.findall(r"[a-z]{5,}", re.sub(r"\[.*?\]|\(.*?\)|\b(assistant|user):", "", text.lower())))

    turns = {
        turn.id: words(f"{turn.speaker} {turn.text}")
        for case in answers.dataset.cases
        for session in case.sessions
        for turn in session.turns
    }
    lines = [line for path in answers.folder.rglob("items.jsonl") for line in path.read_text().splitlines()]
    traced = [item for item in map(json.loads, lines) if item["sources"]]
    assert traced
    for item in traced:
        said = set[str]().union(*(turns[source] for source in item["sources"]))
        assert len(words(item["text"]) & said) >= len(words(item["text"])) / 2, item


def spent(folder: Path) -> dict[str, int]:
    """Sums over all steps of a run, and the connections that the product was refused."""
    from eval.analysis.costs import efforts

    total = dict.fromkeys(("sent", "tokens_in", "tokens_out", "embedding_tokens"), 0)
    for line in efforts(folder):
        for name in total:
            total[name] += line[name]
    reports = [json.loads(path.read_text())["memory"] for path in folder.rglob("case.json")]
    return {**total, "refused": sum(sum(report["connections_refused"].values()) for report in reports)}


@pytest.mark.slow
def test_a_product_that_crashes_is_errors_of_its_case_and_no_lost_run(tmp_path: Path) -> None:
    memory = {**TOY, "build": {**TOY["build"], "settings": {"fault": "crash", "at": 2}, "restarts": 0}}
    answers = Lab("profile=smoke", "data.max_cases=2", "data.size=8", f"results={tmp_path}").ask(memory)
    lines = [
        line
        for text in predictions(answers.folder).items()
        if "predictions" in text[0]
        for line in text[1].splitlines()
    ]
    assert len(lines) == len(answers.questions)
    assert all(b"Crashed" in line and b"SIGKILL" in line for line in lines)


@pytest.mark.integration
def test_two_versions_of_a_product_that_exclude_each_other_are_rows_of_one_table(tmp_path: Path) -> None:
    import subprocess
    import sys

    versions = {}
    for product in ("mem0ai", "mem0ai_1"):
        if not (place := place_of(product)).installed:
            pytest.skip(f"{product} is not installed: make product NAME={product}")
        asked = [str(place.python), "-c", "import importlib.metadata as m; print(m.version('mem0ai'))"]
        versions[product] = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    assert versions == {"mem0ai": "2.2.1", "mem0ai_1": "1.0.11"}
    lab = Lab("profile=smoke", "data.max_cases=1", "data.size=8", f"results={tmp_path}")
    locomo = lab.load("locomo")
    first, second = (lab.score(lab.ask(name, locomo)) for name in ("released_mem0", "released_mem0_1"))
    assert {row.name for row in lab.table(first, second).rows} == {"released_mem0", "released_mem0_1"}
    calls = [build_calls(scored.answers.folder) for scored in (first, second)]
    assert set(calls[0]) == {"mem0ai.extract"}
    assert set(calls[1]) == {"mem0ai_1.extract", "mem0ai_1.decide"}
    assert not any(name.partition(".")[0] in ("mem0", "qdrant_client") for name in sys.modules), "none in our process"


def build_calls(folder: Path) -> dict[str, int]:
    """Calls of the writes of a run, by purpose."""
    from eval.analysis.costs import efforts

    total: dict[str, int] = {}
    for line in efforts(folder):
        for purpose, count in line["calls"].items() if line["phase"] == "write" else ():
            total[purpose] = total.get(purpose, 0) + count
    return total
