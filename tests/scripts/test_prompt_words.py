"""Readers add nothing: no words or form of the golds, no criterion of a judge; and every prompt says what it stands for."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_loaders.locomo import UNANSWERABLE
from eval.files.run_folder import RunRecord
from eval.judging.judge import UNANSWERABLE as SHOWN_TO_JUDGES
from eval.metrics.locomo import abstains
from eval.report.cell import Cell
from memsys.prompts import SHIPPED, TEXTS, Prompts
from scripts.settings.schema import Reproduce
from scripts.setup.options import load_option, options
from scripts.tables.captions import prompts_line
from scripts.tables.grid import PROMPTS_OURS, prompts_behind
from scripts.tables.layout import ColumnGroup, column_group, metrics_of
from scripts.tables.table import experiment
from tests.scripts.commands import composed, reproduce

PROMPTS = Prompts()
NAMES = sorted(path.relative_to(SHIPPED).with_suffix("").as_posix() for path in SHIPPED.rglob("*.md"))
READERS = [name for name in NAMES if name.startswith("reader/")]
OF_THE_SOURCE = {("reader/multihop_rag", "insufficient information")}
"""Fixed words of a gold that the benchmark's own prompt prescribes."""


def body(name: str) -> str:
    return f"{PROMPTS[name].system}\n{PROMPTS[name].user}"


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def fixed_phrases(cfg: Reproduce, loaded: dict[tuple[str, str], ColumnGroup]) -> set[str]:
    """Golds of several words that are the gold of several questions of a data set, and those that loaders and judges fill in.

    `loaded` has column groups by data set and transform, and gets the others.
    """
    phrases = {plain(UNANSWERABLE), plain(SHOWN_TO_JUDGES)}
    for name in options("dataset"):
        if (key := (name, "none")) not in loaded:
            loaded[key] = column_group(cfg, {"dataset": name}, ())
        group = loaded[key]
        if group.dataset is None:
            continue
        golds = [gold for case in group.dataset.cases for _, gold in case.questions]
        counts = Counter(plain(answer) for gold in golds for answer in gold.answers)
        phrases |= {answer for answer, count in counts.items() if count > 1 and " " in answer}
    return phrases


def check_readers(phrases: set[str]) -> None:
    for name in READERS:
        words = plain(body(name))
        spoken = {phrase for phrase in phrases if phrase in words and (name, phrase) not in OF_THE_SOURCE}
        assert not spoken, f"{name} has the words of golds: {spoken}"


@pytest.mark.parametrize("name", ["judge/beam", "judge/beam_official"])
def test_beam_gives_half_a_point_for_a_small_inaccuracy_too(name: str) -> None:
    """The release's judge: 0.5 for some of several elements, and for minor inaccuracies or violations."""
    assert "small inaccuracy or violation" in body(name)


@pytest.mark.slow
def test_no_reader_prompt_has_the_fixed_words_of_a_gold() -> None:
    phrases = fixed_phrases(composed("reproduce", ["table=regression", "data.source=sample"]), {})
    assert plain("Insufficient information") in phrases
    check_readers(phrases)


def test_only_the_reader_of_xmemory_keeps_a_relative_time_with_its_anchor() -> None:
    """72 temporal golds of LoCoMo read "the week before 9 June 2023"; Mem0's prompt, which TiMem prints, wants a date, month or year."""
    anchored = [name for name in READERS if re.search(r"anchor|(week|weekend|day|month) before", body(name))]
    assert anchored == ["reader/xmemory_locomo"]
    assert "never with the relative word" in body("reader/mem0")


def test_an_abstention_as_the_readers_of_locomo_phrase_it_counts_for_the_official_scorer() -> None:
    for name in ("reader/segtree", "reader/locomo_official"):
        said = body(name).rpartition("reply: ")[2]
        assert said == "No information available"
        assert abstains(said)
        assert plain(said) != plain(UNANSWERABLE)


def test_a_reader_names_no_criterion_of_a_judge_and_no_example_letter() -> None:
    assert not re.search(r"limits|preferences|settled|everything", body("reader/realmem"))
    assert "latest state" not in body("reader/personamem")
    letters = re.findall(r"\(([A-D])\)", body("reader/personamem"))
    assert letters == ["A", "B", "C", "D"]
    assert not re.search(r"several|one after the other", body("reader/factconsolidation"))
    assert "larger number" in body("reader/factconsolidation")
    assert "Facts:" not in body("reader/factconsolidation")


def test_the_memory_judge_of_realmem_asks_whether_the_retrieved_memories_contradict_one_another() -> None:
    """eval/compute_llm_metrics_for_realmem.py: a conflict among them, and not one with the needed memories, has the least grade."""
    assert "contradict one another" in body("judge/realmem_memory")


@pytest.mark.slow
def test_every_prompt_says_which_one_it_stands_for_and_whose_words_it_has() -> None:
    for name in NAMES:
        prompt = PROMPTS[name]
        raw = (SHIPPED / f"{name}.md").read_text(encoding="utf-8")
        for key in ("source", "known", "text"):
            assert re.search(rf"^{key}: .+$", raw.partition("\n---\n")[0], re.MULTILINE), f"{name} has no {key}"
        assert prompt.text in TEXTS
        assert prompt.text != "theirs", f"{name}: no shipped prompt is a source's text"
        assert (prompt.source == "none") <= (prompt.text == "ours")


def test_the_caption_names_prompts_whose_source_text_is_unknown() -> None:
    said = prompts_line(
        PROMPTS, ["reader/segtree", "judge/segtree", "memtree/aggregate", "segtree/batch", "segtree/pointwise"]
    )
    assert said == (
        "Prompts are ours, written from described duties and not the sources' texts; unknown is the source text of "
        "judge/segtree, reader/segtree (SegTreeMem (arXiv 2606.04555), appendix G.2); "
        "segtree/batch, pointwise (SegTreeMem (arXiv 2606.04555), appendix G.1)."
    )
    assert "unknown" not in prompts_line(PROMPTS, ["reader/mem0"])
    assert prompts_line(PROMPTS, []) == ""


def test_a_prompt_of_the_users_folder_may_be_the_source_s_own(tmp_path: Any) -> None:
    (tmp_path / "reader").mkdir()
    (tmp_path / "reader" / "segtree.md").write_text("---\ntext: theirs\nkind: answer\n---\n$shown $asked")
    prompts = Prompts(tmp_path)
    assert prompts_line(prompts, ["reader/segtree"]) == "Prompts: reader/segtree, the sources' own texts."
    assert "but reader/segtree; unknown" in prompts_line(prompts, ["reader/segtree", "judge/segtree"])


def test_a_prompt_of_the_users_folder_with_a_misspelt_name_is_named(tmp_path: Any) -> None:
    for name in ("reader/segtree", "reader/segtre", "mine/new"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.md").write_text("---\nkind: answer\n---\n$shown $asked")
    said = prompts_line(Prompts(tmp_path), ["reader/segtree"])
    assert said.endswith(". Of prompts_dir, reader/segtre replaced no shipped prompt.")


def test_a_cell_knows_the_prompts_that_made_it() -> None:
    run = SimpleNamespace(record=RunRecord(prompts={"segtree/batch": "", "reader/segtree": ""}))
    line = SimpleNamespace(name="segtree_td", option={})
    group: Any = SimpleNamespace(name="locomo", reader=SimpleNamespace(prompt="reader/segtree"))
    grid: Any = SimpleNamespace(runs={("segtree_td", "locomo"): [run]}, lines=[line])

    def names(option: dict[str, Any]) -> set[str]:
        (metric,) = metrics_of({"dataset": "locomo", "metrics": [option]})
        return prompts_behind(grid, line, group, metric)  # type: ignore[arg-type]

    assert names({"metric": "locomo_f1"}) == {"segtree/batch", "reader/segtree"}
    assert names({"judge": "segtree"}) == {"segtree/batch", "reader/segtree", "judge/segtree"}
    assert names({"tree": "nodes"}) == {"segtree/batch"}
    assert load_option("judge", "segtree")["prompt"] == "judge/segtree"


@pytest.mark.slow
def test_a_table_of_segtreemem_prints_its_lost_evidence_and_its_prompts_and_every_cell_knows_them(
    tmp_path: Path,
) -> None:
    cfg = composed("reproduce", ["table=segtreemem_t4", f"results={tmp_path}", "columns=[locomo]", "only=[bm25]"])
    reproduce(cfg)
    (page,) = (tmp_path / "tables").glob("segtreemem_t4-*.md")
    caption = page.read_text(encoding="utf-8")
    assert "Evidence, LoCoMo: every row: the unit rule ab_pair leaves out turns" in caption
    assert (
        "Prompts are ours, written from described duties and not the sources' texts; unknown is the source text of"
        in caption
    )
    made = experiment(cfg, load_option("table", "segtreemem_t4"), run=False)
    assert made is not None
    line = next(line for line in made.lines if line.name == "bm25")
    cells = [made.cell(line, group, metric) for group in made.groups for metric in group.metrics]
    numbers = [cell.published for cell in cells if isinstance(cell, Cell) and cell.published is not None]
    assert {number.qualifier for number in numbers} == {PROMPTS_OURS}
