"""Whole experiments, composed as the command line composes them: identity, cache, replay, faults, and what a user gets to read."""

from __future__ import annotations

import csv
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig

from eval.files.store import RunError, read_lines
from eval.report.tables import estimate_of
from scripts.assembly import models as local
from scripts.assembly import runs
from scripts.door import Lab
from scripts.mock.endpoint import Mock, application, serving
from scripts.tables.grid import other_data
from scripts.tables.layout import variation
from scripts.tables.table import finished_table
from tests.scripts.commands import configuration, reproduce, run_single, typed

pytestmark = pytest.mark.slow

CONF = str(Path(__file__).resolve().parents[2] / "conf")


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., DictConfig]:
    """A configuration with results in a folder of the test's own."""

    def composed(*overrides: str, name: str = "config") -> DictConfig:
        printed = ["print=plain"] if name in ("config", "reproduce") else []
        return configuration(name, f"results={tmp_path}", *printed, *overrides)

    return composed


@pytest.fixture
def mock() -> Iterator[tuple[Mock, str]]:
    """A mock endpoint in this process, and its URL; `faults` may be set by the test."""
    server = Mock(hang=3.0)
    with serving(application(server)) as url:
        yield server, url


def online(url: str, **models: str) -> list[str]:
    chosen = {"memory": "m", "reader": "r", "judge": "j"} | models
    return [
        "network=true",
        f"endpoint.base_url={url}",
        "endpoint.label=mock",
        "endpoint.backoff=0.01",
        "endpoint.timeout=2",
        "endpoint.retries=12",
        "endpoint.probe=false",
        "models.embedder=e",
        *(f"models.{role}={name}" for role, name in chosen.items()),
    ]


def arrived(server: Mock) -> int:
    return sum(server.arrivals.values())


def folders(tmp_path: Path, memory: str) -> list[Path]:
    return sorted((tmp_path / "runs" / "locomo").glob(f"{memory}-*"))


def predictions(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("cases/*/predictions.jsonl"))}


def test_the_smoke_run_needs_nothing_and_says_that_it_is_a_stand_in(experiment: Any, capsys: Any) -> None:
    assert run_single(experiment("memory=bm25")) == 0
    said = capsys.readouterr().out
    assert "STAND-IN" in said
    assert "sample data" in said
    assert "categories 1-4" in said
    assert "48/0/0/0" in said


def test_a_command_writes_nothing_into_the_folder_it_is_called_from(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    command = [sys.executable, "-m", "scripts", "run", "memory=nothing", f"results={tmp_path / 'results'}"]
    subprocess.run(command, cwd=here, env={**os.environ, "PYTHONPATH": str(Path(CONF).parent)}, check=True)
    assert list(here.iterdir()) == []


def test_the_smoke_profile_refuses_to_connect_elsewhere(experiment: Any) -> None:
    run_single(experiment("memory=nothing"))
    with socket.socket() as out, pytest.raises((PermissionError, RuntimeError), match=r"refused|offline"):
        out.connect(("192.0.2.1", 80))


def test_a_second_reader_costs_no_memory_call_and_a_second_judge_no_answer(
    experiment: Any, mock: Any, tmp_path: Path
) -> None:
    server, url = mock
    common = ["memory=memtree", "data.size=6", "data.max_cases=1"]
    run_single(experiment(*common, *online(url)))
    first = arrived(server)
    run_single(experiment(*common, *online(url)))
    assert arrived(server) == first
    run_single(experiment(*common, *online(url, reader="r2")))
    answered_and_judged = arrived(server) - first
    assert answered_and_judged == 12
    assert len(folders(tmp_path, "memtree")) == 2
    run_single(experiment(*common, *online(url, judge="j2")))
    assert arrived(server) - first - answered_and_judged == 6
    assert len(folders(tmp_path, "memtree")) == 2
    scores = folders(tmp_path, "memtree")[0] / "scores"
    judged = [
        len([path for path in (folder / "scores").glob("judge_mem0-*.jsonl") if "effort" not in path.name])
        for folder in folders(tmp_path, "memtree")
    ]
    assert sorted(judged) == [1, 2]
    assert scores.is_dir()


def test_a_local_table_names_the_rows_that_no_window_holds_before_it_starts(
    experiment: Any, mock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(local, "_served", lambda *settings: SimpleNamespace(base_url=mock[1]))
    rows = ["only=[bm25,full_history]", "data.size=4", "data.max_cases=1", "endpoint.probe=false"]
    cfg = experiment(
        "table=local", "profile=local", f"local.model={file}", "local.window=2000", *rows, name="reproduce"
    )
    assert reproduce(cfg) == 0
    printed, said = capsys.readouterr()
    assert "Plan and outcome (what the cache answered is not counted):" in printed
    assert "locomo · full_history: 4 of 4 sampled questions have no answer" in said
    assert "locomo · bm25: " not in said


def test_several_judges_grade_side_by_side(experiment: Any, mock: Any, capsys: Any) -> None:
    server, url = mock
    judges = "protocol.judges=[mem0,mem0@other,segtree]"
    run_single(experiment("memory=recency", "data.size=4", "data.max_cases=1", *online(url), judges))
    said = capsys.readouterr().out
    assert arrived(server) == 4 + 3 * 4
    assert "Mem0 judge (generous) by other" in said
    assert "SegTreeMem judge (0-3)" in said


def test_an_edited_prompt_is_another_folder(experiment: Any, mock: Any, tmp_path: Path) -> None:
    server, url = mock
    common = ["memory=memtree", "data.size=2", "data.max_cases=1", *online(url)]
    run_single(experiment(*common))
    before = arrived(server)
    overlay = tmp_path / "prompts" / "memtree"
    overlay.mkdir(parents=True)
    shipped = Path(CONF).parent / "memsys" / "prompts" / "memtree" / "aggregate.md"
    (overlay / "aggregate.md").write_text(shipped.read_text() + "\nBe brief.")
    run_single(experiment(*common, f"prompts_dir={tmp_path / 'prompts'}"))
    assert len(folders(tmp_path, "memtree")) == 2
    assert arrived(server) > before


def test_another_endpoint_gets_nothing_from_the_cache(experiment: Any, mock: Any) -> None:
    server, url = mock
    common = ["memory=recency", "data.size=4", "data.max_cases=1"]
    run_single(experiment(*common, *online(url)))
    before = arrived(server)
    run_single(experiment(*common, *online(url), "endpoint.label=other"))
    assert arrived(server) == 2 * before


def test_from_the_cache_alone_a_run_replays_to_the_same_bytes(experiment: Any, mock: Any, tmp_path: Path) -> None:
    server, url = mock
    common = ["memory=memtree", "data.size=6", "data.max_cases=2", *online(url)]
    run_single(experiment(*common))
    before = arrived(server)
    elsewhere = tmp_path / "elsewhere"
    cfg = experiment(*common, "replay=true", f"cache={tmp_path / 'cache.sqlite'}")
    cfg.results = str(elsewhere)
    assert run_single(cfg) == 0
    assert arrived(server) == before
    assert predictions(folders(elsewhere, "memtree")[0]) == predictions(folders(tmp_path, "memtree")[0])


def test_under_thirty_percent_faults_every_question_is_accounted_for(
    experiment: Any, mock: Any, tmp_path: Path
) -> None:
    server, url = mock
    server.faults, server.hang = 0.3, 0.1
    code = run_single(experiment("memory=dense", "data.size=32", *online(url), "endpoint.retries=1"))
    lines = [
        line for path in folders(tmp_path, "dense")[0].glob("cases/*/predictions.jsonl") for line in read_lines(path)
    ]
    outcomes = [line["outcome"] for line in lines]
    assert len(outcomes) == 32
    assert set(outcomes) == {"answered", "error"}
    assert code == 1
    assert server.injected


def test_more_than_one_percent_not_scored_fails_the_command(experiment: Any, mock: Any, capsys: Any) -> None:
    server, url = mock
    server.faults = 1.0
    server.hang = 0.01
    assert run_single(experiment("memory=nothing", "data.size=4", *online(url), "endpoint.retries=1")) == 1
    captured = capsys.readouterr()
    assert "0/0/4/0" in captured.out
    assert "not scored" in captured.err


def test_no_key_is_ever_written(
    experiment: Any, mock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-this-is-a-secret-0123")
    _, url = mock
    run_single(experiment("memory=dense", "data.size=4", *online(url)))
    captured = capsys.readouterr()
    assert "this-is-a-secret" not in captured.out + captured.err
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"this-is-a-secret" not in path.read_bytes()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["memory=bm25", "memory.build.k=0"], "k"),
        (["memory=bm25", "protocol.reader=nonesuch"], "no reader called 'nonesuch'; there are: .*segtree"),
        (["memory=bm25", "protocol.judges=[nonesuch]"], "no judge called 'nonesuch'; there are: .*mem0"),
        (["memory=bm25", "models.reader=gpt-unknown"], "no llm called 'gpt-unknown'"),
        (
            ["memory=bm25", "data.transform=shuffle"],
            "data.transform must be one of none, oracle, permute, permute_between_questions, permute_exchanges, shuffle_sessions",
        ),
        (["memory=bm25", "data.source=real", "data.root=/nonexistent"], r"DATA=\): no folder /nonexistent"),
        (["memory=bm25", "data.root=/nonexistent"], r"is not read while data.source=sample .*add data.source=real"),
        (["memory=bm25", "+memory.build.spoon=1"], "spoon"),
    ],
)
def test_bad_input_gets_one_clear_line_and_exit_code_2(
    experiment: Any, capsys: Any, overrides: list[str], said: str
) -> None:
    import re

    assert run_single(experiment(*overrides)) == 2
    assert re.search(said, capsys.readouterr().err)


def test_an_unknown_memory_lists_those_that_exist(experiment: Any) -> None:
    from hydra.errors import MissingConfigException

    with pytest.raises(MissingConfigException, match=r"(?s)nonesuch.*Available options.*bm25"):
        experiment("memory=nonesuch")


def test_a_changed_raw_file_is_refused_unless_told_otherwise(experiment: Any, tmp_path: Path, capsys: Any) -> None:
    shipped = Path(CONF).parent / "data_loaders" / "samples" / "locomo.json"
    raw = tmp_path / "data" / "locomo" / "locomo10.json"
    raw.parent.mkdir(parents=True)
    raw.write_text(shipped.read_text() + "\n")
    common = ["memory=nothing", "data.source=real", f"data.root={tmp_path / 'data'}"]
    assert run_single(experiment(*common)) == 2
    assert "sha256" in capsys.readouterr().err
    assert run_single(experiment(*common, "data.unpinned=true")) == 0
    assert "unpinned data" in capsys.readouterr().out
    raw.write_text(shipped.read_text()[:-400])
    assert run_single(experiment(*common, "data.unpinned=true")) == 2
    assert "locomo10.json" in capsys.readouterr().err


def test_replicates_and_repeats_print_their_spread(experiment: Any, capsys: Any) -> None:
    assert run_single(experiment("memory=nothing", "build.replicates=2", "judge.repeats=2", "data.size=4")) == 0
    said = capsys.readouterr().out
    assert "Judged 2x, built 2x" in said
    assert "Costs are those of the first build." in said
    assert "± 0.000" in said
    assert run_single(experiment("memory=nothing", "data.size=4")) == 0  # the second judgements are still on disk
    said = capsys.readouterr().out
    assert "Judged 1x, built 1x" in said
    assert "Costs are those" not in said
    assert "± 0.000" not in said


def test_a_table_averages_only_the_repeats_that_were_asked_for(experiment: Any, tmp_path: Path) -> None:
    small = ["table=segtreemem_t4", "columns=[locomo]", "only=[nothing]", "data.size=4"]
    spread = []
    for repeats in (2, 1):  # the second judgements are still on disk
        assert reproduce(experiment(*small, f"judge.repeats={repeats}", name="reproduce")) == 0
        (file,) = (tmp_path / "tables").glob("*.csv")
        rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
        spread.append(
            {row["spread"] for row in rows if row["memory"] == "nothing" and row["metric"].startswith("judge")}
        )
    assert spread == [{"0.000000"}, {""}]


@pytest.mark.parametrize("transform", ["oracle", "permute", "permute_between_questions", "permute_exchanges"])
def test_the_experiments_on_the_data_run(experiment: Any, capsys: Any, transform: str) -> None:
    assert run_single(experiment("memory=full_history", f"data.transform={transform}", "data.size=6")) == 0
    assert f"transform {transform}" in capsys.readouterr().out


def test_the_paper_profile_plans_and_does_not_spend_unasked(
    experiment: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115 - no terminal to ask on
    paper = ["table=regression", "profile=paper", "data.source=sample", "network=true", "endpoint.probe=false"]
    cfg = experiment(*paper, name="reproduce")
    cfg.table.others = ["recency", "memtree"]
    cfg.table.columns = cfg.table.columns[:1]
    cfg.table.backbones.default.models = {
        "memory": "gpt-4o-mini",
        "reader": "gpt-4o-mini",
        "judge": "gpt-4o-2024-08-06",
        "embedder": "text-embedding-3-small",
    }
    assert reproduce(cfg) == 3
    captured = capsys.readouterr()
    assert "Plan" in captured.out
    assert "USD" in captured.out
    assert "questions in 3 histories; detectable paired difference at 80% power: 0." in captured.out
    assert "yes=true" in captured.err
    assert not list((tmp_path / "runs").rglob("predictions.jsonl"))


def test_an_unknown_price_with_a_cap_refuses_to_start(experiment: Any, capsys: Any) -> None:
    cfg = experiment(
        "table=regression",
        "profile=paper",
        "data.source=sample",
        "endpoint.probe=false",
        "yes=true",
        "max_usd=5",
        name="reproduce",
    )
    cfg.table.others = ["recency"]
    cfg.table.columns = cfg.table.columns[:1]
    cfg.table.backbones.default.models = {
        "memory": "gpt-5.4-mini",
        "reader": "gpt-5.4-mini",
        "judge": "gpt-4o-2024-08-06",
        "embedder": "text-embedding-3-small",
    }
    assert reproduce(cfg) == 2
    assert (
        "max_usd=5 needs the price of every model, and there is none for gpt-5.4-mini (memory, reader, probe)"
        in capsys.readouterr().err
    )


def test_column_groups_can_be_chosen_and_unknown_ones_are_named(experiment: Any, capsys: Any) -> None:
    small = ["table=segtreemem_t4", "data.size=2", "only=[nothing]"]
    assert reproduce(experiment(*small, "columns=[locomo]", name="reproduce")) in (0, 1)
    said = capsys.readouterr().out
    assert "LoCoMo" in said
    assert "RealMem" not in said
    assert reproduce(experiment(*small, "columns=[locomo,quality]", name="reproduce")) == 2
    said = capsys.readouterr().err
    assert "columns: quality is no column group of segtreemem_t4" in said
    assert "locomo (LoCoMo), longmemeval_mab" in said


def test_only_and_columns_take_titles_and_count_only_what_was_asked_for(
    experiment: Any, tmp_path: Path, capsys: Any
) -> None:
    small = ["table=segtreemem_t4", "data.size=2", "data.max_cases=1"]
    assert (
        reproduce(experiment(*small, "only=[Dense]", "columns=[LoCoMo]", name="reproduce")) == 0
    )  # though no other row has an answer
    answered = (tmp_path / "runs" / "locomo").glob("*/cases/*/predictions.jsonl")
    assert {path.parents[2].name.partition("-")[0] for path in answered} == {"dense"}
    assert reproduce(experiment(*small, "only=[densse]", name="reproduce")) == 2
    assert "only: densse is no row of segtreemem_t4 (did you mean dense" in capsys.readouterr().err


def test_a_row_that_only_leaves_out_is_printed_from_its_score_files_and_never_scored(
    experiment: Any, tmp_path: Path
) -> None:
    small = ["table=segtreemem_t4", "columns=[locomo]", "data.size=4", "data.max_cases=1"]

    def rows(file: str) -> dict[tuple[str, str], str]:
        text = (tmp_path / "tables" / f"segtreemem_t4-smoke-size-4-max_cases-1-{file}-columns-locomo.csv").read_text(
            encoding="utf-8"
        )
        return {(row["memory"], row["metric"]): row["mean"] for row in csv.DictReader(text.splitlines())}

    assert reproduce(experiment(*small, "only=[bm25,recency]", name="reproduce")) == 0
    runs = tmp_path / "runs" / "locomo"
    assert {path.name.partition("-")[0] for path in runs.iterdir()} == {"bm25", "recency"}, "no folder for other rows"
    before = {name: mean for name, mean in rows("only-bm25+recency").items() if name[0] == "bm25"}
    assert all(before.values())

    assert reproduce(experiment(*small, "only=[recency]", name="reproduce")) == 0
    assert {name: mean for name, mean in rows("only-recency").items() if name[0] == "bm25"} == before

    (bm25,) = runs.glob("bm25-*")
    shutil.rmtree(bm25 / "scores")
    assert reproduce(experiment(*small, "only=[recency]", name="reproduce")) == 0
    assert not (bm25 / "scores").exists(), "its answers are on disk, but nobody asked to score them"


def test_the_caption_says_what_stands_in_place_of_an_interval_by_case(experiment: Any, capsys: Any) -> None:
    assert run_single(experiment("memory=nothing", "data.size=2", "data.max_cases=1")) == 0
    printed = capsys.readouterr().out
    assert "{1 case}" in printed
    assert "{n cases}: too few cases for an interval" in printed


def test_a_restricted_table_leaves_the_files_of_the_whole_one_alone(experiment: Any, tmp_path: Path) -> None:
    small = ["table=segtreemem_t8", "data.size=2", "data.max_cases=1"]
    rows = "table.rows=[{memory: bm25, published: {method: BM25}}]"
    assert reproduce(experiment(*small, rows, "+table.others=[]", name="reproduce")) in (0, 1)
    assert reproduce(experiment(*small, rows, "+table.others=[]", "only=[bm25]", name="reproduce")) in (0, 1)
    made = {path.name for path in (tmp_path / "tables").glob("*.md")}
    name = "segtreemem_t8-smoke-size-2-max_cases-1"
    assert made == {f"{name}-rows-bm25.md", f"{name}-only-bm25-rows-bm25.md"}


def test_tables_of_other_data_sizes_or_models_have_files_of_their_own(experiment: Any) -> None:
    names = [
        variation(experiment(*settings, name="reproduce"))
        for settings in (
            [],
            ["data.size=2"],
            ["data.source=real", "data.max_cases=3"],
            ["models.reader=my/model:8b", "models.judge=gpt-4o-mini"],
            ["profile=subset"],
            ["profile=local", "local.model=/models/a.gguf"],
        )
    ]
    expected = [
        "",
        "-size-2",
        "-source-real-max_cases-3",
        "-models-model_8b+gpt-4o-mini",
        "",
        "-models-a.gguf",
    ]
    assert names == expected


def test_a_limit_that_leaves_nothing_out_makes_no_subset(experiment: Any) -> None:
    given = {
        cases: Lab(cfg=typed(experiment(f"data.max_cases={cases}"))).load("locomo") for cases in ("3", "2", "null")
    }
    assert {cases: data.cut for cases, data in given.items()} == {"3": False, "2": True, "null": False}
    assert Lab(cfg=typed(experiment("data.size=5"))).load("locomo").cut
    official = {cases: replace(data, source=replace(data.source, status="official")) for cases, data in given.items()}
    cfg = experiment("data.max_cases=3")
    assert [other_data(cfg, official[cases]) for cases in ("3", "2")] == ["", "subset"]


def test_a_memory_that_embeds_nothing_has_no_stand_in_of_an_embedder(
    experiment: Any, mock: tuple[Mock, str], capsys: Any
) -> None:
    said = {}
    for memory in ("bm25", "dense"):
        run_single(experiment(f"memory={memory}", "data.size=2", *online(mock[1]), "models.embedder=null"))
        said[memory] = capsys.readouterr().out
    assert "STAND-IN" not in said["bm25"]
    assert "STAND-IN: embedder filled" in said["dense"]


def test_a_paper_table_leaves_nothing_out_and_never_compares_a_stand_in(experiment: Any, capsys: Any) -> None:
    cfg = experiment("data.size=2", "data.max_cases=1", name="reproduce")
    cfg.table.others = ["nothing"]
    cfg.table.rows = [row for row in cfg.table.rows if row.memory in ("bm25", "dense")]
    cfg.table.reference = "bm26"
    assert reproduce(cfg) == 0
    said, noted = capsys.readouterr()
    assert "note: nothing is compared: bm26, the reference of segtreemem_t4, is none of its rows" in noted
    assert "0.469 · not comparable: stand-in" in said
    assert "· OK" not in said
    for dataset in ("LoCoMo", "LongMemEval-MAB", "RealMem"):
        assert f"Costs on {dataset}" in said
    assert "default unit ab_pair, on_unpaired drop drops" in said
    cfg.table.reference = ""
    assert reproduce(cfg) == 0
    assert "nothing is compared" not in capsys.readouterr().err, "a table without a reference misses none"


def test_a_finished_table_has_the_rows_and_numbers_of_reproduce(experiment: Any, tmp_path: Path) -> None:
    small = ["columns=[locomo]", "data.size=2", "data.max_cases=1"]
    own = [*small, "table.others=[gold_evidence]", "only=[gold_evidence]"]
    assert reproduce(experiment("table=segtreemem_t4", *own, name="reproduce")) == 0
    table, stem = finished_table("segtreemem_t4", [*own, f"results={tmp_path}"])
    assert [row.name for row in table.rows] == ["gold_evidence"], "a row that only this command has"
    assert Path(f"{stem}.md").is_file(), "the table of these rows and columns, and not the whole one, gives its name"
    counts = [*small, "only=[segtree_batch]"]
    assert reproduce(experiment("table=segtreemem_t9", *counts, name="reproduce")) == 0
    table, _ = finished_table("segtreemem_t9", [*counts, f"results={tmp_path}"])
    assert all(map(estimate_of, table.rows[0].cells)), "counts are numbers, too"
    with pytest.raises(RunError, match="no row of segtreemem_t9 has been run"):
        finished_table("segtreemem_t9", [*counts, f"results={tmp_path / 'empty'}"])


def test_a_data_set_that_is_not_there_prints_the_command_that_gets_it(
    experiment: Any, tmp_path: Path, capsys: Any
) -> None:
    cfg = experiment("profile=subset", f"data.root={tmp_path}", name="reproduce")
    cfg.table.others = []
    cfg.table.rows = [row for row in cfg.table.rows if row.memory == "bm25"]
    assert reproduce(cfg) == 2
    said = capsys.readouterr().err
    assert "none of the data sets is there" in said
    assert "scripts fetch" in said


def test_only_builds_the_memories_of_the_rows_that_it_names_and_the_whole_table_builds_all(
    experiment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    once = runs._built_once
    monkeypatch.setattr(
        runs, "_built_once", lambda recipe, services: built.append(recipe.name) or once(recipe, services)
    )
    small = ["table=segtreemem_t4", "columns=[locomo]", "data.size=2", "data.max_cases=1", "+table.others=[]"]
    rows = "table.rows=[{memory: bm25}, {memory: recency}]"
    assert reproduce(experiment(*small, rows, "only=[bm25]", name="reproduce")) == 0
    assert built == ["bm25"]
    assert reproduce(experiment(*small, rows, name="reproduce")) == 0
    assert built == ["bm25", "bm25", "recency"]
