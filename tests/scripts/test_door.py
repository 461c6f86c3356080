"""The door for notebooks: what it makes is what the command makes, byte for byte."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from eval.files.store import RunError
from eval.statistics.stats import difference
from memsys.interface import MemorySystem, Recall
from scripts.door import Lab, Scored, compare, in_words, markdown
from scripts.setup.launch import composed
from tests.scripts.commands import run_single

OWN = """
from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, Recall


class Newest(MemorySystem):
    def __init__(self, k: int = 1) -> None:
        self.k, self.units = k, []

    def write(self, unit: Unit) -> None:
        self.units.append(unit)

    def read(self, question: Question) -> Recall:
        return Recall(tuple(Item(unit.id, unit.text, 0.0, unit.turn_ids, "unit") for unit in self.units[-self.k :]))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("door")


@pytest.fixture(scope="module")
def lab(results: Path) -> Lab:
    return Lab("profile=smoke", "data.size=12", f"results={results}")


@pytest.fixture(scope="module")
def bm25(lab: Lab) -> Scored:
    return lab.score(lab.ask("bm25", "locomo"))


@pytest.fixture(scope="module")
def nothing(lab: Lab) -> Scored:
    return lab.score(lab.ask("nothing", "locomo"))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[MemorySystem]]:
    (tmp_path / "newest_of_mine.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import newest_of_mine  # type: ignore[import-not-found]

    yield newest_of_mine.Newest
    del sys.modules["newest_of_mine"]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*.json*")
        if "effort" not in path.name  # seconds
    }


@pytest.mark.slow
def test_a_frame_has_a_row_for_each_question_and_no_number_where_there_is_no_score(
    lab: Lab, bm25: Scored, nothing: Scored
) -> None:
    frame = lab.frame(bm25, nothing)
    assert len(frame) == 2 * len(bm25.answers.questions)
    for scored in (bm25, nothing):
        own = frame[frame["memory"] == scored.answers.title].set_index(["case", "question"])
        cell = scored.cells["locomo_f1"]
        assert own["locomo_f1"].mean() == pytest.approx(fmean(cell.scores.values()))
        assert set(own["locomo_f1"].dropna().index) == set(cell.scores)
    key = bm25.answers.questions[0].key
    cells = {name: replace(cell, score_files=()) for name, cell in bm25.cells.items()}
    bare = lab.frame(replace(bm25, cells=cells)).set_index(["case", "question"])
    assert math.isnan(bare.loc[key, "locomo_f1"])
    assert bare.loc[key, "outcome"] == "answered"
    assert lab.frame().empty


@pytest.mark.slow
def test_the_door_writes_the_folder_and_the_bytes_of_the_command(
    bm25: Scored, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["profile=smoke", "data.size=12", "memory=bm25", "dataset=locomo", f"results={tmp_path}"]
    assert run_single(composed("config", settings)) == 0
    theirs = tmp_path / bm25.answers.folder.relative_to(results)
    assert f"run folder: {theirs}" in capsys.readouterr().out
    assert files(theirs) == files(bm25.answers.folder)
    assert len(files(theirs)) > 6


@pytest.mark.slow
def test_settings_are_those_of_the_command_line(lab: Lab, bm25: Scored) -> None:
    named = composed("config", ["profile=smoke", "data.size=12", "memory=bm25", "memory.build.k=3"])
    by_command = Lab(cfg=named).ask().folder.name
    own = lab.ask("bm25", bm25.answers.dataset, k=3)
    assert own.folder.name == by_command != bm25.answers.folder.name
    assert own.title == "BM25 (k=3)"


def test_asking_again_answers_from_the_files(lab: Lab, bm25: Scored) -> None:
    before = {path: path.stat().st_mtime_ns for path in bm25.answers.folder.rglob("predictions.jsonl")}
    again = lab.ask("bm25", "locomo")
    assert again.folder == bm25.answers.folder
    assert {path: path.stat().st_mtime_ns for path in again.folder.rglob("predictions.jsonl")} == before


def test_what_a_notebook_shows_of_scores_is_one_line(bm25: Scored) -> None:
    mean = bm25.cells["locomo_f1"].estimate()
    assert mean is not None
    assert f"'locomo_f1': {round(mean.mean, 3)}" in repr(bm25)
    assert len(repr(bm25)) < 400


def test_a_comparison_is_paired_by_question(bm25: Scored, nothing: Scored) -> None:
    gap = compare(bm25, nothing, "locomo_f1")
    ours, theirs = bm25.cells["locomo_f1"].scores, nothing.cells["locomo_f1"].scores
    clusters = {(one.case_id, one.question_id): one.cluster for one in bm25.answers.questions}
    assert gap == difference(list(ours.values()), [theirs[key] for key in ours], [clusters[key] for key in ours])
    assert gap.mean == -compare(nothing, bm25, "locomo_f1").mean != 0.0
    assert in_words(gap).startswith(f"{gap.mean:+.3f} [")
    assert "{2 cases}" in in_words(gap), "below five cases there is no interval by case, and it says so"
    assert in_words(gap).endswith(" about these 2 histories alone, n 12"), "and p is not printed bare"


@pytest.mark.slow
def test_a_table_compares_every_row_with_the_first(lab: Lab, bm25: Scored, nothing: Scored) -> None:
    printed = markdown(table := lab.table(bm25, nothing))
    assert "STAND-IN" in printed
    assert table.use.startswith("only testing the machinery; stand-ins fill")
    assert "## Paired difference from BM25" in printed
    assert "## Paired" not in markdown(lab.table(bm25))


def test_two_settings_of_one_memory_are_two_rows(lab: Lab, bm25: Scored) -> None:
    fewer = lab.score(lab.ask("bm25", bm25.answers.dataset, k=1))
    table = lab.table(bm25, fewer)
    assert [row.title for row in table.rows] == ["BM25", "BM25 (k=1)"]
    assert len(table.pairs) == len(table.columns)


@pytest.mark.slow
def test_a_class_of_ones_own_is_a_memory(lab: Lab, own: type[MemorySystem]) -> None:
    answers = lab.ask(own, "locomo", k=2)
    assert answers.folder.name.startswith("newest-")
    assert answers.folder != lab.ask(own, "locomo", k=3).folder
    assert lab.score(answers, ["squad_f1"], []).cells["squad_f1"].counts().scored == 12


@pytest.mark.slow
def test_a_yaml_file_of_ones_own_is_a_memory(lab: Lab, own: type[MemorySystem], tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\ntitle: Mine\nbuild: {_target_: newest_of_mine.Newest, _partial_: true, k: 2}\n", encoding="utf-8"
    )
    assert lab.ask(str(file), "locomo").title == "Mine"
    assert lab.memory(file)["build"]["k"] == 2
    file.write_text(file.read_text().replace("k: 2", "k: 31"), encoding="utf-8")
    assert lab.memory(file)["build"]["k"] == 31, "a changed file is read again"
    with pytest.raises(RunError, match="no file"):
        lab.memory(str(tmp_path / "other.yaml"))


@pytest.mark.parametrize(
    ("content", "said"),
    [("- a\n", "must be a mapping, found"), ("", "title is missing"), ("name: x\n", "build is missing")],
)
def test_a_yaml_file_that_is_no_memory_is_refused_in_one_line(
    lab: Lab, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "mine.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=said):
        lab.memory(tmp_path / "mine.yaml", k=3)


@pytest.mark.slow
def test_settings_given_with_a_result_of_memory_count(lab: Lab, bm25: Scored) -> None:
    option = lab.memory("bm25", k=3)
    assert lab.ask(option, "locomo", k=10).folder == bm25.answers.folder
    assert option["build"]["k"] == 3


@pytest.mark.slow
def test_one_metric_and_one_judge_may_be_given_as_plain_names(lab: Lab, bm25: Scored) -> None:
    assert list(lab.score(bm25.answers, "locomo_f1", "mem0").cells) == ["judge_mem0", "locomo_f1"]


def test_wrong_arguments_are_refused_in_one_line(lab: Lab) -> None:
    with pytest.raises(RunError, match="name or path of a YAML file, or a class; found 5"):
        lab.memory(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="builds must be at least 1, found 0"):
        lab.ask("bm25", "locomo", builds=0)


@pytest.mark.slow
def test_an_edited_class_that_was_not_loaded_again_is_refused(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "edited_memory.py"
    file.write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("edited_memory")
    before = lab.ask(module.Newest, "locomo").folder
    file.write_text(f"# A comment is no code.\n{OWN}", encoding="utf-8")
    assert lab.ask(module.Newest, "locomo").folder == before
    file.write_text(OWN.replace("k: int = 1", "k: int = 200"), encoding="utf-8")
    with pytest.raises(RunError, match=r"importlib\.reload"):
        lab.ask(module.Newest, "locomo")
    assert lab.ask(importlib.reload(module).Newest, "locomo").folder != before


def test_a_class_in_a_cell_is_refused_because_its_source_is_nowhere(lab: Lab) -> None:
    class Here(MemorySystem):
        def write(self, unit: object) -> None: ...

        def read(self, question: object) -> Recall:
            return Recall(())

    Here.__module__ = "__main__"
    with pytest.raises(RunError, match="%%writefile"):
        lab.ask(Here, "locomo")


def test_what_cannot_be_compared_is_refused(lab: Lab, bm25: Scored, nothing: Scored) -> None:
    with pytest.raises(RunError, match="no mab_f1 for BM25; there are: judge_mem0, locomo_f1"):
        compare(bm25, nothing, "mab_f1")
    other = lab.score(lab.ask("nothing", "msc_e"), ["squad_f1"], [])
    with pytest.raises(RunError, match="different data"):
        compare(other, bm25, "squad_f1")
    with pytest.raises(RunError, match="the same metrics"):
        lab.table(bm25, lab.score(nothing.answers, ["squad_f1"], []))


@pytest.mark.slow
def test_a_setting_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(RunError, match=r"did you mean data\.size"):
        Lab("data.sise=3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("edited_metric", "from eval.files.records import Score\n\n\ndef same(*_): return Score(1.0)\n"),
        ("edited_measure", "def same(answer, gold): return 1.0\n"),
    ],
)
def test_an_edited_metric_that_was_not_loaded_again_is_refused(
    module: str, code: str, lab: Lab, bm25: Scored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"{module}.py"
    file.write_text(code, encoding="utf-8")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "metrics.yaml").write_text(f"same: {{target: {module}.same, title: same}}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert max(lab.score(bm25.answers, "same", []).cells["same"].scores.values()) == 1.0
    file.write_text(
        code.replace("1.0", "0.50"), encoding="utf-8"
    )  # another size: Python keeps bytecode by size and second
    with pytest.raises(RunError, match=r"importlib\.reload"):
        lab.score(bm25.answers, "same", [])
    importlib.reload(sys.modules[module])
    assert max(lab.score(bm25.answers, "same", []).cells["same"].scores.values()) == 0.5


def test_a_setting_that_is_no_text_is_named() -> None:
    with pytest.raises(RunError, match="settings are texts, such as 'profile=smoke'; found 3"):
        Lab(3)  # type: ignore[arg-type]
