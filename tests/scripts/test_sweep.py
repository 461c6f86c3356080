"""Sweeps: every file of conf/sweep runs, builds are shared, the CSV is whole and in order, and a kill costs nothing."""

from __future__ import annotations

import asyncio
import csv
import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from eval.report.cell import Counts
from eval.running.reader import Reader
from memsys.llm.pricing import Purse
from memsys.systems.memtree import MemTree
from scripts.assembly.datasets import data
from scripts.assembly.models import build_models
from scripts.assembly.runs import memory_run, recipe_of
from scripts.commands import sweep as command_of_sweep
from scripts.mock.endpoint import Mock, application
from scripts.settings.checking import checked
from scripts.setup.options import load_option, options
from scripts.tables.sweep import SweepLine, _scores, merged, settings
from tests.scripts.commands import sweep

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CONF = str(ROOT / "conf")
SMALL = ["data.size=2", "data.max_cases=1"]
ON_LOCOMO = [{"dataset": "locomo", "reader": "memtree", "metrics": [{"judge": "mem0"}]}]
each_sweep = pytest.mark.parametrize("name", options("sweep"))


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., DictConfig]:
    """The configuration of one job, with results in a folder of the test's own."""

    def composed(name: str, *overrides: str) -> DictConfig:
        with initialize_config_dir(CONF, version_base="1.3"):
            return compose("sweep", [f"sweep={name}", f"results={tmp_path}", *overrides], return_hydra_config=True)

    return composed


@pytest.fixture
def mock() -> Iterator[tuple[Mock, str]]:
    """A mock endpoint in this process, and its URL."""
    from aiohttp import web

    server, loop, ready, port, runners = Mock(), asyncio.new_event_loop(), threading.Event(), [0], []

    async def start() -> None:
        runner = web.AppRunner(application(server), shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port[0] = runner.addresses[0][1]
        ready.set()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(start()), loop.run_forever()), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield server, f"http://127.0.0.1:{port[0]}/v1"
    asyncio.run_coroutine_threadsafe(runners[0].cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def online(url: str) -> list[str]:
    models = [f"models.{role}=m" for role in ("memory", "reader", "judge", "embedder")]
    return ["network=true", f"endpoint.base_url={url}", "endpoint.label=mock", "endpoint.probe=false", *models]


def params(cfg: DictConfig) -> dict[str, list[str]]:
    """Values of the settings that differ between jobs."""
    return {name: values.split(",") for name, values in (cfg.hydra.sweeper.params or {}).items()}


def lines(folder: Path, name: str, profile: str = "smoke") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / "sweeps" / f"{name}-{profile}.csv").read_text())))


def arrived(server: Mock) -> int:
    return sum(server.arrivals.values())


def command(folder: Path, *overrides: str) -> tuple[list[str], dict[str, Any]]:
    """The command line, and the folder and environment to start it in."""
    where = folder / "elsewhere"
    where.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return [sys.executable, "-m", "scripts", "sweep", f"results={folder}", *overrides], {
        "cwd": where,
        "env": environment,
    }


# --- the files ---------------------------------------------------------------------------------------------------------


def test_every_sweep_of_the_papers_has_a_file() -> None:
    assert options("sweep") == [
        "memtree_pruning",
        "memtree_threshold",
        "memtree_traversal",
        "segtree_propagation",
        "timem_lambda",
        "timem_models",
        "timem_segment",
        "xmemory_theme_cap",
    ]


@each_sweep
def test_a_sweep_reads_with_read_knobs_and_builds_with_what_is_none(job: Any, name: str) -> None:
    from hydra.utils import get_class

    cfg = job(name)
    knobs = set(get_class(cfg.memory.build._target_).READ_KNOBS)
    assert cfg.sweep.name == name
    assert {key for grid in cfg.sweep.read for key in grid} <= knobs
    built = {key.removeprefix("memory.build.") for key in params(cfg) if key.startswith("memory.build.")}
    assert built <= set(cfg.memory.build) - knobs


def test_the_grids_are_the_papers() -> None:
    def of(name: str) -> Any:
        return load_option_of(name)

    tree = of("segtree_propagation")["sweep"]["read"]
    assert len(settings(tree)) == 43
    assert settings(tree)[0] == {"policy": "none"}
    assert [one["semantic_weight"] for one in settings(of("timem_lambda")["sweep"]["read"])] == [0.7, 0.8, 0.9, 1.0]
    assert of("timem_segment")["hydra"]["sweeper"]["params"] == {"memory.build.segment": "1,2,4,8"}
    assert of("xmemory_theme_cap")["hydra"]["sweeper"]["params"] == {"memory.build.theme_cap": "8,10,12,14"}
    answering = of("timem_models")["hydra"]["sweeper"]["params"]["models.reader"].split(",")
    assert set(answering) == {one["models"]["reader"] for one in load_option("table", "timem_t8")["backbones"].values()}


@pytest.mark.parametrize("name", ["timem_lambda", "timem_models", "timem_segment"])
def test_timem_s_sweeps_are_judged_as_often_as_its_tables(name: str) -> None:
    assert load_option_of(name)["sweep"]["repeats"] == 5


def load_option_of(name: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(Path(CONF) / "sweep" / f"{name}.yaml"))


@pytest.mark.integration
@each_sweep
def test_every_sweep_runs_offline(job: Any, tmp_path: Path, name: str) -> None:
    swept = params(job(name))
    jobs = list(itertools.product(*swept.values()))[:2]
    for values in jobs:
        chosen = [f"{key}={value}" for key, value in zip(swept, values, strict=True)]
        cfg = job(name, *SMALL, *chosen)
        two = settings(OmegaConf.to_container(cfg.sweep.read))[: 3 - len(jobs)]  # type: ignore[arg-type]
        cfg.sweep.read = [{key: [value] for key, value in one.items()} for one in two]
        cfg.sweep.columns = cfg.sweep.columns[-1:]
        assert sweep(cfg, list(swept), []) == 0
    found = lines(tmp_path, name)
    assert len(found) == 2 * len(cfg.sweep.columns[0].metrics)
    for line in found:
        accounted = sum(int(line[key]) for key in ("n", "errors", "unscored", "not_reached"))
        assert accounted == int(line["questions"])
        assert 0 <= float(line["mean"]) <= 1
        assert line["engine"].count("stand-in") == 4
        assert int(line["build_calls"]) >= 0
        assert (tmp_path / "runs" / line["run"] / "run.json").is_file()
    assert len({line["protocol"] for line in found}) == 1


# --- shared builds -----------------------------------------------------------------------------------------------------


def test_only_settings_that_change_the_build_keep_runs_from_sharing_it(job: Any) -> None:
    cfg = checked(job("segtree_propagation", *SMALL), "sweep")
    built, dataset, reading = (
        build_models(cfg),
        data(cfg.data, load_option("dataset", "locomo")),
        Reader(**load_option("reader", "segtree")),
    )

    def shared(name: str, replicate: int = 0, unit: Any = None, **build: Any) -> str:
        memory = load_option("memory", name)
        memory["build"] |= build
        return memory_run(cfg, built, dataset, recipe_of(memory), reading, unit=unit, replicate=replicate).shared

    one = shared("segtree_td")
    assert one
    assert shared("segtree_bu") == one == shared("segtree_td", k=3, alpha=0.7, horizon=3)
    others = [
        shared("segtree_td", annotate="lazy"),
        shared("segtree_cosine"),
        shared("segtree_td", replicate=1),
        shared("segtree_td", unit={"rule": "utterance"}),
    ]
    assert len({one, *others}) == 5
    other_reader = memory_run(
        cfg, built, dataset, recipe_of(load_option("memory", "segtree_td")), Reader(**load_option("reader", "mem0"))
    )
    assert other_reader.shared != one
    assert shared("memstream", mutate_on_read=True) == "" == shared("memoryos", mutate_on_read=True)


def test_a_sweep_of_read_settings_builds_once_and_says_whose_words_its_prompts_have(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    written: list[str] = []
    write = MemTree.write
    monkeypatch.setattr(MemTree, "write", lambda self, unit: (written.append(unit.id), write(self, unit))[1])
    cfg = job("memtree_traversal", *SMALL)
    cfg.sweep.columns = ON_LOCOMO
    assert sweep(cfg, [], []) == 0
    found = lines(tmp_path, "memtree_traversal")
    assert len({line["run"] for line in found}) == 5
    assert len({line["build_calls"] for line in found}) == 1
    assert len(written) == len(set(written)) > 20
    said = "Prompts are ours, written from described duties and not the sources' texts"
    assert all(line["prompts"].startswith(said) for line in found)
    assert said in capsys.readouterr().out


# --- the CSV -----------------------------------------------------------------------------------------------------------


def measured(setting: dict[str, Any], mean: float = 0.5, protocol: str = "p", dataset: str = "d") -> SweepLine:
    values = {"dataset": dataset, "metric": "m", "category": "all", "mean": mean, "run": None, "protocol": protocol}
    return SweepLine(setting, values, 0.0, frozenset())


def shown(text: str) -> list[tuple[str, str]]:
    return [(line["x"], line["mean"]) for line in csv.DictReader(io.StringIO(text))]


def test_empty_replies_that_score_0_are_counted_in_the_line_of_a_setting() -> None:
    column = SimpleNamespace(dataset="d", metric="m")
    counts = Counts(questions=5, scored=4, unscored=0, errored=1, not_reached=0, empty=2)
    cell: Any = SimpleNamespace(
        column=column, counts=lambda _: counts, estimate=lambda _: None, missing_share=lambda _: 0.2
    )
    values, missing = _scores(cell, "all")
    assert (values["n"], values["errors"], values["empty"]) == (4, 1, 2)
    assert missing == pytest.approx(0.2)


def test_a_sweep_whose_units_lose_evidence_says_so(job: Any, capsys: Any) -> None:
    cfg = job("segtree_propagation")
    cfg.sweep.columns = cfg.sweep.columns[:1]
    cfg.sweep.read = [{"policy": ["none"]}]
    assert sweep(cfg, [], []) == 0
    assert "Evidence, LoCoMo: every row: the unit rule ab_pair leaves out turns" in capsys.readouterr().out


def test_lines_are_ordered_by_setting_whenever_they_came() -> None:
    text = merged("", [measured({"x": 10}), measured({"x": "b"})])
    text = merged(text, [measured({"x": 9}), measured({"x": 0.1}), measured({"x": None})])
    assert [x for x, _ in shown(text)] == ["", "0.1", "9", "10", "b"]


def test_a_line_measured_again_replaces_the_old_one() -> None:
    text = merged("", [measured({"x": 1}, 0.1), measured({"x": 2}, 0.2), measured({"x": 1}, 0.3, dataset="e")])
    again = merged(text, [measured({"x": 1}, 0.4)])
    assert shown(again) == [("1", "0.4"), ("1", "0.3"), ("2", "0.2")]
    assert merged(again, [measured({"x": 1}, 0.4)]) == again


def test_lines_of_another_protocol_or_with_other_columns_leave() -> None:
    text = merged("", [measured({"x": 1}), measured({"x": 2})])
    assert shown(merged(text, [measured({"x": 3}, protocol="q")])) == [("3", "0.5")]
    assert shown(merged(text, [measured({"x": 3, "y": 1})])) == [("3", "0.5")]


def test_other_data_is_another_protocol_and_another_build_is_not(job: Any, tmp_path: Path) -> None:
    def run(*overrides: str) -> list[str]:
        cfg = job("memtree_threshold", "data.max_cases=1", *overrides)
        assert sweep(cfg, ["memory.build.base"], []) == 0
        return [line["base"] for line in lines(tmp_path, "memtree_threshold")]

    assert run("data.size=2", "memory.build.base=0.8") == ["0.8"]
    assert run("data.size=2", "memory.build.base=0.1", "threads=2") == ["0.1", "0.8"]
    assert run("data.size=3", "memory.build.base=0.1") == ["0.1"]


def test_a_setting_that_is_named_twice_is_run_once() -> None:
    assert settings([{"k": [5, 5, 7]}, {"k": [7]}]) == [{"k": 5}, {"k": 7}]


def test_grids_follow_one_another_and_an_empty_one_is_the_memory_as_it_is() -> None:
    assert settings([{"a": [1]}, {"a": [2], "b": [3, 4]}]) == [{"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 4}]
    assert settings([{}]) == [{}]


# --- money, faults -----------------------------------------------------------------------------------------------------


def test_the_cap_is_that_of_all_jobs_together(
    job: Any, mock: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = mock
    models = [f"models.{role}=gpt-4o-mini" for role in ("memory", "reader", "judge")]
    overrides = [
        *SMALL,
        *online(url),
        *models,
        "models.embedder=text-embedding-3-small",
        "max_usd=5",
        "yes=true",
        "memory=recency",
        "~memory.build.dates",
    ]
    purses: list[Purse] = []

    def run() -> int:
        cfg = job("memtree_threshold", *overrides)
        cfg.sweep.columns = ON_LOCOMO
        return sweep(cfg, [], purses)

    assert run() == 0
    assert arrived(server) == 4
    assert purses[-1].spent > 0
    purses[-1].spent = 5.0
    overrides.append("build.seed=1")
    overrides.append("endpoint.label=elsewhere")
    capsys.readouterr()
    assert run() == 1
    assert arrived(server) == 4
    said = capsys.readouterr().err
    assert "Stopped at max_usd=5: 5.0000 USD spent" in said
    assert "remedy" not in said, "no other cause is named"
    monkeypatch.setattr("scripts.commands.sweep.PURSES", purses)
    monkeypatch.setattr("scripts.tables.sweep.swept_settings", tuple)
    cfg = job("memtree_threshold", *overrides)
    cfg.sweep.columns = ON_LOCOMO
    with pytest.raises(SystemExit, match="1"):  # Hydra starts no further job
        command_of_sweep.main(checked(cfg, "sweep"))


def test_an_unknown_setting_is_one_line_and_exit_code_2(job: Any, capsys: Any) -> None:
    cfg = job("timem_lambda", *SMALL)
    cfg.sweep.read = [{"spoon": [1]}]
    assert sweep(cfg, [], []) == 2
    assert "spoon" in capsys.readouterr().err


def test_too_many_questions_without_a_score_are_exit_code_1(job: Any, mock: Any, tmp_path: Path) -> None:
    server, url = mock
    server.faults, server.hang = 1.0, 0.01
    cfg = job(
        "memtree_threshold",
        *SMALL,
        *online(url),
        "memory=recency",
        "~memory.build.dates",
        "endpoint.retries=1",
        "endpoint.backoff=0.01",
    )
    assert sweep(cfg, [], []) == 1
    (line,) = lines(tmp_path, "memtree_threshold")
    assert (line["mean"], line["n"], line["errors"]) == ("", "0", "2")


def test_models_that_a_sweep_names_are_asked_for_where_there_is_an_endpoint(
    job: Any, mock: Any, tmp_path: Path
) -> None:
    _, url = mock
    chosen = ["models.memory=Qwen/Qwen3-32B", "models.reader=gpt-4o-2024-11-20", "yes=true"]
    cfg = job("timem_models", *SMALL, *online(url)[:3], "models.embedder=m", "models.judge=m", *chosen)
    assert sweep(cfg, ["models.memory", "models.reader"], []) == 0
    found = lines(tmp_path, "timem_models")
    assert {line["models.memory"] for line in found} == {"Qwen/Qwen3-32B"}
    assert all("memory Qwen/Qwen3-32B; reader gpt-4o-2024-11-20;" in line["engine"] for line in found)
    assert [line["metric"] for line in found] == [
        "judge_mem0@gpt-4o-mini",
        "judge_mem0@qwen3-32b",
        "locomo_stem_f1",
        "locomo_stem_rouge_1",
    ]


# --- the command -------------------------------------------------------------------------------------------------------


def test_hydra_runs_one_job_a_build_and_writes_nothing_into_the_working_folder(tmp_path: Path) -> None:
    start, how = command(
        tmp_path, "sweep=memtree_threshold", *SMALL, "memory.build.base=0.4,0.1", "memory.build.rate=0.5"
    )
    done = subprocess.run(start, capture_output=True, text=True, check=False, timeout=200, **how)
    assert done.returncode == 0, done.stderr
    assert [(line["base"], line["rate"]) for line in lines(tmp_path, "memtree_threshold")] == [
        ("0.1", "0.5"),
        ("0.4", "0.5"),
    ]
    assert list(how["cwd"].iterdir()) == []
    assert (tmp_path / "sweeps" / "memtree_threshold-smoke" / "multirun.yaml").is_file()
    assert done.stderr.count("[HYDRA]") == 3


@pytest.mark.integration
def test_after_a_kill_finished_settings_cost_no_call_and_the_lines_are_those_of_an_undisturbed_sweep(
    job: Any, mock: Any, tmp_path: Path
) -> None:
    server, url = mock
    server.latency = 0.05
    overrides = ["sweep=memtree_threshold", *SMALL, *online(url), "memory.build.rate=0.5", "max_unscored=1"]
    start, how = command(tmp_path, *overrides)  # one job for each of three values of `base`
    path = tmp_path / "sweeps" / "memtree_threshold-smoke.csv"
    with subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how) as killed:
        waited = time.monotonic() + 100
        while not path.is_file() and time.monotonic() < waited:
            time.sleep(0.01)
        first = arrived(server)
        server.latency = 60.0  # the second job is under way, and stays so
        while arrived(server) == first and time.monotonic() < waited:
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
    server.latency = 0.0
    assert [line["base"] for line in lines(tmp_path, "memtree_threshold")] == ["0.1"]
    done = subprocess.run(start, capture_output=True, text=True, check=False, timeout=200, **how)
    assert done.returncode == 0, done.stderr
    assert [line["base"] for line in lines(tmp_path, "memtree_threshold")] == ["0.1", "0.4", "0.8"]
    assert first > 10
    assert sum(count > 1 for count in server.arrivals.values()) <= 4  # what was under way at the kill
    resumed, settled = path.read_text(), arrived(server)
    cfg = job("memtree_threshold", *overrides[1:], f"results={tmp_path / 'undisturbed'}", "memory.build.base=0.1")
    for base in (0.1, 0.4, 0.8):
        cfg.memory.build.base = base
        cfg.cache = str(tmp_path / "cache.sqlite")
        assert sweep(cfg, ["memory.build.base", "memory.build.rate"], []) == 0
    assert (tmp_path / "undisturbed" / "sweeps" / path.name).read_text() == resumed
    assert arrived(server) == settled
