"""`memsys-bench gate`: reruns pass, planted regressions and failures do not, and other baselines are refused."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval.statistics.stats import difference
from scripts.command import verb
from scripts.commands.gate import Gate as GateFile
from scripts.commands.gate import lab_of, verdict
from scripts.commands.mock_memory import Service
from scripts.mock.endpoint import serving
from scripts.mock.memory_store import Store
from scripts.setup.options import load_option

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PLANTED = '''
import hashlib
from memsys.interface import Recall
from memsys.systems.bm25 import BM25

class Planted(BM25):
    """Forgets, or fails, for a share of the questions."""
    def __init__(self, k: int = 10, forgets: float = 0.0, fails: float = 0.0) -> None:
        super().__init__(k)
        self.forgets, self.fails = forgets, fails

    def read(self, question):
        drawn = hashlib.sha256(b"0" + question.id.encode()).digest()[0] / 256
        if drawn < self.fails:
            raise ValueError("planted")
        return Recall(()) if drawn < self.forgets else super().read(question)
'''

Gate = Callable[..., int]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Runs the gate of a memory class in a working folder; `values` change its file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planted_memory", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "planted_memory.py").write_text(PLANTED)
    build = {"_target_": "planted_memory.Planted", "_partial_": True, "k": 10}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", "title": "Mine | <b>", "build": build}))

    def run(*settings: str, **values: Any) -> int:
        (tmp_path / "gate.yaml").write_text(yaml.safe_dump({"memory": "mine.yaml", **values}))
        return verb("gate", ["gate.yaml", *settings])

    return run


BASELINE: list[bytes] = []


@pytest.fixture
def kept(gate: Gate) -> Gate:
    """The gate in a working folder with a baseline, which is made once."""
    if not BASELINE:
        assert gate("--update") == 0
        BASELINE.append(Path("gate.baseline.json").read_bytes())
    Path("gate.baseline.json").write_bytes(BASELINE[0])
    return gate


def change_baseline(**values: Any) -> None:
    place = Path("gate.baseline.json")
    place.write_text(json.dumps({**json.loads(place.read_text()), **values}))


def test_five_reruns_of_an_unchanged_memory_pass(kept: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    assert [kept() for _ in range(5)] == [0] * 5
    assert capsys.readouterr().out.count("Memory gate passed") == 5
    assert not [*Path.cwd().rglob("predictions.jsonl")], "nothing is taken from an earlier run"


def test_replies_are_kept_in_the_working_folder_but_beside_results_or_in_a_cache_that_a_setting_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [(), ("results=mine",), ("cache=other.sqlite",)]
    labs = [lab_of(GateFile(memory="bm25"), ("profile=smoke", *each), tmp_path / "runs").cfg for each in settings]
    assert [Path(cfg.results).name for cfg in labs] == ["runs", "mine", "runs"]
    assert [cfg.cache and str(cfg.cache) for cfg in labs] == ["results/cache.sqlite", None, "other.sqlite"]


def test_evidence_lost_for_a_tenth_of_the_questions_fails_and_the_way_back_is_better(
    kept: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kept("memory.build.forgets=0.1") == 1
    said = capsys.readouterr().out
    assert "Memory gate FAILED" in said
    assert "| regression |" in said
    assert "Settings: data.size=all memory.build.forgets=0.1; in the baseline: data.size=all." in said
    assert kept("memory.build.forgets=0.1", "--update") == 0
    assert kept() == 0
    assert "| better |" in capsys.readouterr().out


def test_a_loss_within_the_margin_passes(kept: Gate) -> None:
    assert kept("memory.build.forgets=0.1", margin=0.3) == 0


def test_the_gate_of_the_page_writes_its_baseline(gate: Gate, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    (tmp_path / "gates").mkdir()
    (tmp_path / "gates" / "mine.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    described = (tmp_path / "mine.yaml").read_text().replace("name: mine", "name: my_memory")
    (tmp_path / "gates" / "my_memory.yaml").write_text(described)
    assert verb("gate", ["gates/mine.yaml", "--update", "data.size=6"]) == 0
    assert (tmp_path / "gates" / "mine.baseline.json").is_file()


@pytest.mark.parametrize(
    ("moved", "of", "expected"),
    [(1, 40, "no regression"), (12, 1000, "no regression"), (8, 40, "regression"), (-8, 40, "better")],
)
def test_a_verdict_needs_the_margin_and_the_interval(moved: int, of: int, expected: str) -> None:
    lower = [0.0] * abs(moved) + [1.0] * (of - abs(moved))
    first, second = (lower, [1.0] * of) if moved > 0 else ([1.0] * of, lower)
    gap = difference(first, second, ["case"] * of, test=False)
    assert verdict(gap, 0.02) == expected
    assert verdict(None, 0.02) == "not scored"


def test_ratings_that_all_fall_by_the_same_amount_are_a_regression() -> None:
    """Beyond [0, 1] such differences have no interval."""
    falls = difference([1.0] * 40, [5.0] * 40, [f"h{number % 8}" for number in range(40)])
    assert (falls.by_question, falls.by_case) == (None, None)
    assert verdict(falls, 0.02) == "regression"
    few = difference([1.0] * 5, [5.0] * 5, ["a", "a", "b", "b", "c"])
    assert verdict(few, 0.02) == "no regression", "all of five move one way by chance in one of sixteen sets"


def test_more_errors_than_in_the_baseline_fail(kept: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    assert kept("memory.build.fails=0.1", margin=1.0) == 1
    said = capsys.readouterr().out
    assert "questions ended in an error, 0 in the baseline" in said
    assert "questions with a score for evidence@10, 46 in the baseline" in said
    assert kept("memory.build.fails=0.1", "max_unscored=0.5", margin=1.0) == 0, "the share that is allowed"


def test_a_run_with_errors_is_no_baseline(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("memory.build.fails=0.1", "--update") == 2
    assert "no baseline is written" in capsys.readouterr().err
    assert not Path("gate.baseline.json").exists()


def test_a_metric_that_scores_few_questions_is_no_baseline(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    rare = "from eval.files.records import Score\n\n\ndef rare(question, gold, prediction):\n"
    Path("rare_metric.py").write_text(f"{rare}    return Score(1.0 if question.id.endswith('_q0') else None)\n")
    Path("conf").mkdir()
    Path("conf/metrics.yaml").write_text("rare: {target: rare_metric.rare, title: rare}\n")
    assert gate("--update", metrics=["rare"]) == 2
    assert (
        "93.8% of the questions have no score for rare (limit 1.0%, max_unscored); no base" in capsys.readouterr().err
    )
    assert not Path("gate.baseline.json").exists()
    assert gate("--update", "max_unscored=1", metrics=["rare"]) == 0


def test_a_part_of_the_questions_is_not_judged(kept: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    assert kept("shard=1/2") == 2
    assert kept("shard=1/2", "--update") == 2
    assert capsys.readouterr().err.count("shard is not a setting of a gate") == 2


def test_another_baseline_is_refused_with_the_remedy(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate() == 2
    assert "run the gate once with --update" in capsys.readouterr().err
    assert gate("--update") == 0
    kept = json.loads(Path("gate.baseline.json").read_text())
    version = {"evidence@10": {**kept["metrics"]["evidence@10"], "version": "0"}}
    for values, words in (
        ({"dataset": "msc"}, "another data set"),
        ({"sha256": ["0"]}, "other data (sha256)"),
        ({"questions": [48, "0"]}, "another question set"),
        ({"metrics": version}, "another version of evidence@10"),
        ({"metrics": {}}, "no values of evidence@10"),
    ):
        change_baseline(**{**kept, **values})
        assert gate() == 2, words
        message = capsys.readouterr().err
        assert f"has {words}; run the gate with --update" in message
    change_baseline(**kept)
    assert gate(size=20) == 2
    assert "another question set" in capsys.readouterr().err


def test_a_baseline_is_small_and_holds_no_text(gate: Gate) -> None:
    assert gate("--update", "results=kept", metrics=["evidence@10", "locomo_f1"]) == 0
    text = Path("gate.baseline.json").read_text()
    stored = json.loads(text)
    assert len(text) < 10_000
    assert text == json.dumps(stored, indent=1, sort_keys=True) + "\n"
    assert stored["settings"] == ["data.size=all"], "no folder of this machine"
    for case in json.loads((ROOT / "data_loaders/samples/locomo.json").read_text()):
        assert not [qa["question"] for qa in case["qa"] if qa["question"] in text]


def test_the_summary_is_inert_and_appended_to_the_runners_file(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_text("before\n")
    assert gate("--update") == 0
    change_baseline(memory="<img src=x>\n# [a](b)\x1b[31m")
    assert gate() == 0
    written = Path("summary.md").read_text()
    assert written.startswith("before\n## Memory gate passed: Mine \\| \\<b\\> on LoCoMo\n")
    assert "\\<img src=x\\> \\# \\[a\\](b)\\x1b" in written.replace("\\\\", "\\")
    assert "\x1b" not in written
    assert written.removeprefix("before\n").strip() == capsys.readouterr().out.partition("questions\n")[2].strip()


@pytest.mark.parametrize(
    ("values", "settings", "message"),
    [
        ({"margn": 0.1}, (), "margn is not a setting; did you mean margin?"),
        ({"margin": 2}, (), "margin must be at most 1"),
        ({"metrics": ["evidence@5", "evidence@10"]}, (), "at most one evidence@K"),
        ({"metrics": ["locomo_f2"]}, (), "did you mean"),
        ({"memory": "bm52"}, (), "no memory called 'bm52'"),
        ({}, ("memory=bm25",), "is not a setting of a gate"),
        (
            {},
            ("metrics=[locomo_f1]",),
            "is not a setting of a gate: memory, dataset, metrics and margin stand in its file",
        ),
        ({}, ("memory.build.kk=3",), "kk"),
    ],
)
def test_a_wrong_file_is_one_line(
    values: Any, settings: Any, message: str, gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate("--update", *settings, **values) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_missing_or_holds_a_list_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert verb("gate", ["gate.yaml"]) == 2
    assert "no file gate.yaml" in capsys.readouterr().err
    Path("gate.yaml").write_text("- memory\n")
    assert verb("gate", ["gate.yaml"]) == 2
    assert "gate.yaml must be a mapping of names to values" in capsys.readouterr().err


def test_a_baseline_nested_too_deeply_is_one_line(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    Path("gate.baseline.json").write_text("[" * 100_000)
    assert gate() == 2
    assert "gate.baseline.json cannot be read" in capsys.readouterr().err


def test_settings_without_a_file_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The installed command adds the working folder's prompts to the settings."""
    with pytest.raises(SystemExit):
        verb("gate", ["prompts_dir=prompts"])
    assert "the first argument is the gate's file" in capsys.readouterr().err


@pytest.mark.integration
def test_the_action_runs_the_gate_as_a_runner_does(gate: Gate, tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    steps = {step["name"]: step for step in action["runs"]["steps"] if "run" in step}
    assert all(step["shell"] == "bash" and "${{" not in step["run"] for step in steps.values()), "inputs are no code"
    assert gate("--update") == 0
    command = tmp_path / "bin" / "memsys-bench"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m scripts "$@"\n')
    command.chmod(0o755)
    pip = tmp_path / "bin" / "python"
    pip.write_text('#!/bin/sh\nfor last; do :; done; echo "$last"\n')
    pip.chmod(0o755)

    def step(name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        used = {
            key: inputs.get(
                value.split(".")[1].split(" ")[0],
                action["inputs"][value.split(".")[1].split(" ")[0]].get("default", ""),
            )
            for key, value in steps[name]["env"].items()
        }
        runner = {"PATH": f"{command.parent}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
        environment = {**os.environ, **used, **runner, "GITHUB_ACTION_PATH": "/the action", "CI": "true"}
        return subprocess.run(
            ["bash", "-e", "-c", steps[name]["run"]], env=environment, cwd=tmp_path, capture_output=True, text=True
        )

    assert step("install").stdout == "/the action\n"
    assert step("install", version="0.3").stdout == "memsys-bench==0.3\n"
    assert step("install", path="a b.whl", version="0.3").stdout == "a b.whl\n"
    done = step("gate", file="gate.yaml")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "summary.md").read_text().startswith("## Memory gate passed")
    assert step("gate", file="missing.yaml; true").returncode == 2


def of_reference(name: str, **build: Any) -> None:
    """Write `mine.yaml`: a reference memory of `conf/memory` with these settings."""
    option = load_option("memory", name)
    Path("mine.yaml").write_text(yaml.safe_dump({**option, "build": {**option["build"], **build}}))


def test_a_service_passes_its_gate_until_it_forgets(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    service = Service(Store())
    with serving(service.application()) as url:
        of_reference("reference_http", base_url=url)
        assert gate("--update") == 0
        assert gate() == 0
        service.store.fault = "own text not stored"
        assert gate() == 1
    assert "| regression |" in capsys.readouterr().out
    assert service.store.spaces == {}


@pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the package mcp is not installed: pip install -e '.[mcp]'"
)
@pytest.mark.integration
def test_an_mcp_server_passes_its_gate_until_it_forgets(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    module = ["-m", "scripts.mock.memory_mcp"]
    of_reference("reference_mcp", command=sys.executable, args=module, env={"PYTHONPATH": str(ROOT)})
    assert gate("--update") == 0
    assert gate() == 0
    of_reference(
        "reference_mcp",
        command=sys.executable,
        args=[*module, "--fault", "own text not stored"],
        env={"PYTHONPATH": str(ROOT)},
    )
    assert gate() == 1
    assert "| regression |" in capsys.readouterr().out


@pytest.mark.integration
@pytest.mark.data
def test_five_points_of_evidence_on_real_locomo_are_caught_and_reruns_are_not(
    gate: Gate, data_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert data_root / "locomo" / "locomo10.json"
    real = ["data.source=real", f"data.root={data_root}", "threads=2", "executor=threads"]
    assert gate("--update", *real, cases=2) == 0
    assert [gate(*real, cases=2) for _ in range(2)] == [0, 0]
    capsys.readouterr()
    assert gate(*real, "memory.build.forgets=0.09", cases=2) == 1
    lost = float(capsys.readouterr().out.partition("| evidence@10 |")[2].split("|")[3])
    assert -0.08 < lost < -0.04
