"""From configuration to objects: what is taken when the official release is not there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from eval.files import provenance
from eval.files.store import RunError
from eval.running.reader import Reader
from memsys.llm.replies import POLICY
from scripts.assembly.datasets import data
from scripts.assembly.models import build_models
from scripts.assembly.runs import RUN_LOOP, memory_run
from scripts.assembly.steps import judging, metric_title, metrics
from scripts.settings.checking import checked_call
from scripts.setup.options import CONF, load_option, metric_options, options
from tests.scripts.commands import composed

pytestmark = pytest.mark.slow

SERVED = [
    "endpoint.base_url=http://127.0.0.1:9/v1", "models.memory=m", "models.reader=m", "models.judge=m", "models.embedder=e",
]  # fmt: skip


def test_an_offline_engine_is_named_in_whatever_role(tmp_path: Path) -> None:
    served = composed("config", [f"results={tmp_path}/a", *SERVED])
    probed = composed("config", [f"results={tmp_path}/b", *SERVED, "models.probe=extractive"])
    offline = composed("config", [f"results={tmp_path}/c"])
    built = build_models(served)
    assert built.stand_ins == []
    judging(served, built, "mem0@extractive")
    assert built.stand_ins == ["judge extractive"]
    assert build_models(probed).stand_ins == ["probe"]
    assert build_models(offline).stand_ins == ["memory", "reader", "judge", "embedder"]


def test_a_gateway_is_made_once_and_only_for_a_memory_that_lives_outside(tmp_path: Path) -> None:
    cfg = composed("config", [f"results={tmp_path}", "data.max_cases=1"])
    models, dataset = build_models(cfg), data(cfg.data, load_option("dataset", "locomo"))
    run = memory_run(cfg, models, dataset, load_option("memory", "bm25"), Reader(**load_option("reader", "mem0")))
    assert run.services.gateway is None
    assert models.gateway() is models.gateway()


def test_every_metric_of_every_data_set_exists_and_has_a_title() -> None:
    for name in options("dataset"):
        config = load_option("dataset", name)
        assert len(metrics(config["metrics"])) == len(config["metrics"])
        assert all(metric_title(metric) for metric in config["metrics"])
        assert all(judge in options("judge") for judge in config["judges"])
        assert config["reader"] in options("reader")


def test_every_module_of_the_run_loop_is_part_of_a_runs_identity() -> None:
    sources: dict[str, str] = {}
    open_modules = ["loop"]
    while open_modules:
        name = open_modules.pop()
        if name not in sources:
            sources[name] = (CONF.parent / "eval" / "running" / f"{name}.py").read_text()
            open_modules += re.findall(r"^from eval\.running\.(\w+) import", sources[name], re.MULTILINE)
    scheduling = {"cells", "work", "pool"}  # when a cell is opened, and in which thread it is worked on
    assert {"loop", "case", "question", "run"} <= sources.keys()
    assert sources.keys() - scheduling <= set(RUN_LOOP)
    assert "gold_evidence" in RUN_LOOP, "a control's answers depend on it"


def test_another_run_loop_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = shutil.copytree(CONF.parent / "eval" / "running", tmp_path / "eval" / "running")
    monkeypatch.setattr("scripts.assembly.runs.ROOT", tmp_path)
    cfg = composed("config", [f"results={tmp_path}"])
    built, dataset = build_models(cfg), data(cfg.data, load_option("dataset", "locomo"))

    def folder() -> Path:
        provenance.source_of.cache_clear()
        return memory_run(
            cfg, built, dataset, load_option("memory", "bm25"), Reader(**load_option("reader", "segtree"))
        ).folder

    before = folder()
    assert folder() == before
    for name in RUN_LOOP:
        source = (running / f"{name}.py").read_text()
        (running / f"{name}.py").write_text(source + "\nCHANGED = True\n")
        assert folder() != before, name
        (running / f"{name}.py").write_text(source)


def test_what_is_done_with_replies_and_the_cap_on_them_are_part_of_what_a_run_is(tmp_path: Path) -> None:
    free = composed("config", [f"results={tmp_path}", *SERVED])
    capped = composed("config", [f"results={tmp_path}", *SERVED, "endpoint.max_output_tokens=60"])
    runs = [
        memory_run(
            cfg,
            build_models(cfg),
            data(cfg.data, load_option("dataset", "locomo")),
            load_option("memory", "bm25"),
            Reader(**load_option("reader", "mem0")),
        )
        for cfg in (free, capped)
    ]
    assert runs[0].folder != runs[1].folder
    assert runs[0].record.content["replies"] == POLICY
    assert "max_output_tokens" not in runs[0].record.models["reader"]
    assert runs[1].record.models["reader"]["max_output_tokens"] == 60


def test_an_edited_memory_of_ones_own_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "mine_elsewhere.py"
    module.write_text("from memsys.systems.bm25 import BM25\n\n\nclass Mine(BM25):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    cfg = composed("config", [f"results={tmp_path}/results"])
    built, dataset = build_models(cfg), data(cfg.data, load_option("dataset", "locomo"))
    mine = {"name": "mine", "title": "Mine", "build": {"_target_": "mine_elsewhere.Mine", "_partial_": True, "k": 2}}

    def folder() -> Path:
        provenance._closure.cache_clear()
        provenance.source_of.cache_clear()
        return memory_run(cfg, built, dataset, mine, Reader(**load_option("reader", "segtree"))).folder

    before = folder()
    assert folder() == before
    module.write_text(module.read_text() + "\n    OTHER = True\n")
    assert folder() != before
    with monkeypatch.context() as patched:
        patched.setattr("scripts.assembly.runs.distributions", lambda *_: {"bm25s": "another version"})
        assert len({before, folder()}) == 2


WRONG = """
from memsys.interface import MemorySystem, Recall


class Plain(MemorySystem):
    def write(self, unit): ...
    def read(self, question): return Recall(())


class Missing(Plain):
    def __init__(self): import package_of_nobody


class Unconnected(Plain):
    def __init__(self, llm): raise RuntimeError("no database at localhost:5432")


class Leaving(Plain):
    def __init__(self): __import__("os")._exit(0)


class Unfilled(Plain):
    def __init__(self, llm, lm): ...


class Awaited(Plain):
    async def read(self, question): return Recall(())


class Unruly(Plain):
    UNIT = {"rule": "paragraph"}
    def __init__(self, *args, **more): ...


class Told(Plain):
    PROMPTS = "mine"


class Holding(Plain):
    def held(self): return 3


class Free:
    def write(self, unit): ...
    def read(self, question): return Recall(())


def made() -> Plain: return Plain()
"""


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("Missing", "^memory mine: No module named 'package_of_nobody'; install the package that its code imports$"),
        (
            "Unconnected",
            "^memory mine: RuntimeError: no database at localhost:5432 \\(.*/wrong_memories.py, line 15\\)$",
        ),
        ("Leaving", "^memory mine: SystemExit: 0 \\(.*/wrong_memories.py, line 19\\)$"),
        ("Unfilled", "^memory mine: its file gives no lm, which is no service \\(llm, probe, "),
        ("Awaited", "^wrong_memories.Awaited: read is `async def`, and the run does not await it"),
        ("Unruly", "^memory mine on locomo: the unit rule must be one of utterance, .*; found {'rule': 'paragraph'}$"),
        ("Free", "^wrong_memories.Free is no class of a memory; derive it from memsys.interface.MemorySystem$"),
        ("Told", "^wrong_memories.Told: PROMPTS is a text; write a tuple: \\('mine',\\)$"),
        ("Holding", "^wrong_memories.Holding: held is a method; write @property above it$"),
        ("made", "^wrong_memories.made is no class of a memory;"),
    ],
)
def test_a_memory_of_ones_own_that_cannot_run_is_refused_in_one_sentence(
    target: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong_memories.py").write_text(WRONG)
    monkeypatch.syspath_prepend(str(tmp_path))
    cfg = composed("config", [f"results={tmp_path}/results"])
    built, dataset = build_models(cfg), data(cfg.data, load_option("dataset", "locomo"))
    build = {"_target_": f"wrong_memories.{target}", "_partial_": True}
    with pytest.raises(RunError, match=said):
        memory_run(
            cfg,
            built,
            dataset,
            {"name": "mine", "title": "Mine", "build": build},
            Reader(**load_option("reader", "segtree")),
        )


@pytest.mark.parametrize(
    ("line", "said"),
    [("os.chdir('/')", "PermissionError: a memory must not change"), ("raise SystemExit(0)", "SystemExit: 0$")],
)
def test_a_module_that_moves_or_leaves_when_it_is_imported_is_refused(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "restless_memory.py").write_text(f"import os\n{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RunError, match=f"^mine: cannot import restless_memory.Mine: {said}"):
        checked_call("mine", {"_target_": "restless_memory.Mine"})


@pytest.mark.parametrize("name", ["../mine", "a/b", "/tmp/x", "a\\b", "", ".hidden", "a\nb"])
def test_a_memory_whose_name_is_a_path_is_refused(name: str, tmp_path: Path) -> None:
    cfg = composed("config", [f"results={tmp_path}/results"])
    built, dataset = build_models(cfg), data(cfg.data, load_option("dataset", "locomo"))
    with pytest.raises(RunError, match="name must be a plain name"):
        memory_run(
            cfg,
            built,
            dataset,
            {**load_option("memory", "bm25"), "name": name},
            Reader(**load_option("reader", "segtree")),
        )


def test_files_of_a_conf_folder_in_the_working_folder_are_found_before_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "conf" / "reader"
    own.mkdir(parents=True)
    shipped = (CONF / "reader" / "mem0.yaml").read_text()
    (own / "mine.yaml").write_text(shipped.replace("name: mem0", "name: mine"))
    monkeypatch.chdir(tmp_path)
    assert load_option("reader", "mine")["name"] == "mine"
    assert {"mine", "mem0"} <= set(options("reader"))
    (own / "copied.yaml").write_text(shipped)
    with pytest.raises(RunError, match=r"copied\.yaml: its name is 'mem0'; write name: copied, as the file is called"):
        load_option("reader", "copied")
    assert load_option("reader", "mem0")["name"] == "mem0"
    line = "brief: {target: eval.metrics.lexical.squad_token_f1, title: brief}\n"
    (tmp_path / "conf" / "metrics.yaml").write_text(line)
    assert metric_options()["brief"]["title"] == "brief"
    assert "squad_f1" in metric_options()
