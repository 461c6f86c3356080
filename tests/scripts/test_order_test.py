"""Telling memories their histories in another order: who depends on it, and what cannot be told otherwise."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from eval.files.store import read_lines, write_lines
from scripts.command import verb
from scripts.commands.order_test import built_again, memories, order_effect
from scripts.door import Lab
from scripts.setup.options import options

main = partial(verb, "order-test")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The printed row of each memory."""
    results = tmp_path_factory.mktemp("results")
    settings = ["profile=smoke", "data.size=48", f"results={results}", "protocol.judges=[]"]
    assert main(["full_history", "bm25", "recency", "nothing", "--orders", "2", *settings]) == 0
    text = (results / "order_test" / "locomo-sessions-locomo_f1.md").read_text(encoding="utf-8")
    assert "STAND-IN" in text
    assert "p: sign flips over the questions." in text, "three histories have no t-test"
    assert re.search(r"2 orders; \d\d\.\d% of the sessions stand in another place", text)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return {line.split("|")[1].strip(): line for line in lines}


def changed(row: str) -> int:
    return int(re.search(r"\| (\d+) of \d+ \|", row)[1])  # type: ignore[index]


def test_engines_that_repeat_themselves_change_no_score_when_the_usual_order_is_built_again(
    rows: dict[str, str],
) -> None:
    for name in ("Recency", "BM25", "No memory", "Full history"):
        assert re.search(r"\| \d+ of \d+ \| 0 \| \+0\.\d+ \[", rows[name])


def test_a_memory_that_flips_answers_by_itself_shows_no_effect_of_order(tmp_path: Path) -> None:
    lab = Lab("profile=smoke", "data.size=48", "protocol.judges=[]", f"results={tmp_path}")
    usual = lab.load("locomo")
    scored = built_again(lab, lab.memory("bm25"), usual, 4)
    assert len({each.answers.folder for each in scored}) == 5, "each is a build of its own"
    rng = np.random.default_rng(0)
    for each in scored:
        file = each.cells["locomo_f1"].score_files[0]
        lines = read_lines(file)
        write_lines(
            file, [{**line, "value": line["value"] if rng.random() > 0.2 else 1.0 - line["value"]} for line in lines]
        )
    fresh = [lab.score(each.answers) for each in scored]
    effect = order_effect(fresh[0], fresh[1:3], fresh[3:], "locomo_f1")
    assert effect.changed > 0.2 * effect.beyond.n, "flips alone look like an effect of the order"
    assert effect.changed_alone > 0.2 * effect.beyond.n
    assert effect.beyond.by_question is not None
    assert effect.beyond.by_question.low < 0.0 < effect.beyond.by_question.high


def test_the_spread_from_order_to_order_holds_no_spread_of_builds(tmp_path: Path) -> None:
    """The builds of all orders were put together: one order had a spread, too."""
    lab = Lab("profile=smoke", "data.size=12", "protocol.judges=[]", f"results={tmp_path}", "build.replicates=2")
    scored = built_again(lab, lab.memory("bm25"), lab.load("locomo"), 2)
    for place, each in enumerate(scored):
        for file, value in zip(each.cells["locomo_f1"].score_files, (0.0, 0.5 * place), strict=True):
            write_lines(file, [{**line, "value": value} for line in read_lines(file)])
    usual, *others = [lab.score(each.answers) for each in scored]
    assert order_effect(usual, others[:1], others[:1], "locomo_f1").spread is None
    spread = order_effect(usual, others, others, "locomo_f1").spread
    assert spread == pytest.approx(np.std([0.25, 0.5], ddof=1)), (
        "each order is the mean of its builds, 0 and .5, 0 and 1"
    )


def test_a_memory_of_the_last_turns_depends_on_the_order_and_one_without_memory_does_not(rows: dict[str, str]) -> None:
    assert changed(rows["Recency"]) > 0
    assert changed(rows["No memory"]) == 0
    assert "+0.000" in rows["No memory"]
    assert changed(rows["BM25"]) < changed(rows["Recency"])


def test_p_of_few_histories_is_about_them_and_nothing_is_missing(rows: dict[str, str]) -> None:
    for row in (rows["Recency"], rows["BM25"]):
        assert re.search(r", p <?[\d.]+ about these 3 histories alone, n \d+", row)
        assert row.endswith("| 0 |")


def test_a_history_of_one_session_is_refused_and_its_turns_may_be_swapped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["factconsolidation", "--orders", "1", "profile=smoke", f"results={tmp_path}"]
    assert main(["nothing", *settings]) == 2
    assert "try --kind turns" in capsys.readouterr().err
    assert main(["nothing", "--kind", "turns", *settings]) == 0
    assert "of the turns stand in another place" in capsys.readouterr().out
    assert main(["nothing", *settings, "data.transform=oracle"]) == 2
    assert "data.transform must be none" in capsys.readouterr().err
    assert main(["nothing", "locomo", *settings]) == 2
    assert "no memory called 'locomo'" in capsys.readouterr().err, "of two data sets none is dropped without a word"


def test_every_order_is_another_one_and_the_questions_stay_the_same(tmp_path: Path) -> None:
    lab = Lab("profile=smoke", "data.size=10", f"results={tmp_path}")
    usual = lab.load("locomo")
    orders = {}
    for number in range(3):
        dataset = lab.load("locomo", transform=f"shuffle_sessions:{number}")
        orders[number] = [session.id for session in dataset.cases[0].sessions]
        assert dataset.cases[0].questions == usual.cases[0].questions
        assert dataset.settings["transform"] == f"shuffle_sessions:{number}", "part of a run's identity"
    assert len({tuple(order) for order in (*orders.values(), [each.id for each in usual.cases[0].sessions])}) == 4
    assert lab.load("locomo", transform="permute").cases[0] == lab.load("locomo", transform="permute:0").cases[0]


def test_all_means_every_memory_but_released_products() -> None:
    released = {name for name in options("memory") if name.startswith("released_")}
    assert set(options("memory")) - set(memories(["all"])) == released >= {"released_mem0"}
    assert memories(["bm25", "all"])[0] == "bm25"
