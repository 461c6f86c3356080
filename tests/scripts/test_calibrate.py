"""The calibrate command on the shipped sample, and the captions that say where it was not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.lab.calibration import Trial, nearest
from scripts.settings.checking import checked_option
from scripts.setup.options import load_option
from scripts.tables.captions import unfitted
from scripts.tables.layout import TableRow, read_lines_of
from tests.scripts.commands import calibrate, configuration

CONF = str(Path(__file__).resolve().parents[2] / "conf")


@pytest.fixture
def calibrated(tmp_path: Path) -> Callable[..., tuple[int, list[Path]]]:
    """Calibrate as the command line does: exit code and written files."""

    def run(*overrides: str) -> tuple[int, list[Path]]:
        cfg = configuration("calibrate", f"results={tmp_path}", "memory.build.annotate=lazy", *overrides)
        return calibrate(cfg), sorted((tmp_path / "calibrated").glob("*"))

    return run


@pytest.mark.slow
def test_the_threshold_with_the_depth_nearest_to_the_published_one_is_written_as_settings(
    calibrated: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code, (path,) = calibrated("tau_c=[0.01,0.1,0.9]")
    assert (code, path.name) == (0, "segtree_cosine-hashing.yaml")
    said = capsys.readouterr().out
    (chosen,) = (line for line in said.splitlines() if line.startswith("*"))
    import yaml

    text = path.read_text(encoding="utf-8")
    written = checked_option("memory", yaml.safe_load(text), path)
    plain = load_option("memory", "segtree_cosine")
    assert written["build"]["tau_c"] == float(chosen.split()[1])
    changed = {**plain["build"], "tau_c": written["build"]["tau_c"], "annotate": "lazy"}
    assert (written["name"], written["build"], written["fitted_to"]) == ("segtree_cosine", changed, "hashing")
    assert text.startswith("# tau_c was fitted to hashing on locomo, history ")
    assert "target depth 4" in said


@pytest.mark.slow
def test_no_tree_is_built_beyond_the_one_that_reaches_its_depth_limit(
    calibrated: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A threshold that nothing reaches opens a root at every unit; each tree costs the calls of a build."""
    assert calibrated("tau_c=[0.9,0.95,0.99]")[0] == 0
    said = capsys.readouterr().out
    assert "0.9 " in said
    assert "0.95" not in said
    assert "higher values were not built" in said


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("memory=segtree_batch", "segtree_batch places units by no cosine"),
        ("dataset=msc", "Table 5 has no depth for"),
        ("history=nobody", "the data set has no history 'nobody'"),
        ("tau_c=[]", "tau_c"),
    ],
)
def test_what_cannot_be_calibrated_is_one_line(
    override: str, message: str, calibrated: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrated(override)[0] == 2
    assert message in capsys.readouterr().err


def test_of_thresholds_with_equal_depth_the_one_with_fewest_new_roots_is_chosen() -> None:
    trials = [Trial(0.1, 300, 3, 0.01, 0), Trial(0.2, 350, 5, 0.04, 0), Trial(0.3, 360, 5, 0.02, 0)]
    assert nearest(trials, 5).tau_c == 0.3
    assert nearest(trials, 4).tau_c == 0.1


@pytest.mark.parametrize(
    "source", ["table segtreemem_t5", "table segtreemem_t4", "figure segtreemem_f4", "figure segtreemem_f5"]
)
def test_rows_fitted_to_another_embedder_are_named_in_the_caption(source: str) -> None:
    group, name = source.split()
    lines = read_lines_of(load_option(group, name), None)
    (note,) = unfitted(lines, SimpleNamespace(embedder=SimpleNamespace(name="text-embedding-3-small")))  # type: ignore[arg-type]
    assert "fitted to the embedder hashing, not to text-embedding-3-small" in note
    assert "make calibrate" in note
    assert unfitted(lines, SimpleNamespace(embedder=SimpleNamespace(name="hashing"))) == ()  # type: ignore[arg-type]


def test_a_memory_without_a_fitted_threshold_has_no_such_line() -> None:
    line = TableRow("bm25", "BM25", load_option("memory", "bm25"), {"memory": "bm25"}, ruled=False)
    assert unfitted([line], SimpleNamespace(embedder=SimpleNamespace(name="text-embedding-3-small"))) == ()  # type: ignore[arg-type]
