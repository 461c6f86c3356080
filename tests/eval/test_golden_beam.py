"""BEAM's official numbers, recorded from its own functions, are reproduced to 1e-6."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_loaders.beam import ABILITIES, Chats, load
from eval.files.records import Prediction
from eval.metrics import beam
from eval.metrics.labels import says_yes

FOLDER = Path(__file__).parents[1] / "golden"
RECORDED = json.loads((FOLDER / "next_beam_metrics.json").read_text(encoding="utf-8"))
MILLION = json.loads((FOLDER / "third_beam_1m.json").read_text(encoding="utf-8"))


def close(value: Any) -> Any:
    return None if value is None else pytest.approx(value, abs=1e-6)


def test_event_ordering_is_the_official_one(subtests: pytest.Subtests) -> None:
    for case in [*RECORDED["event_ordering"], *MILLION["event_ordering"]]:
        with subtests.test(case["name"]):
            lines = beam.lines_of(case["response"], official=True)
            texts = beam.aligned(case["reference"], lines, {(event, line) for event, line in case["same"]})
            assert (lines, texts) == (case["system"], case["aligned"])
            found = beam.ordered(case["reference"], texts)
            ours = {**asdict(found), "final_score": found.final}
            assert ours == {name: close(value) for name, value in case["expected"].items()}


def test_replies_are_read_as_the_official_script_reads_them(subtests: pytest.Subtests) -> None:
    for case in RECORDED["judge_reply"]:
        with subtests.test(case["reply"]):
            kept = beam.item_score(case["reply"], official=True)
            assert kept == close(case["event_ordering"].get("score"))
            assert beam.truncated(kept, case["reply"]) == close(case["nine_abilities"].get("score"))
    for case in RECORDED["equivalence_reply"]:
        with subtests.test(case["reply"]):
            assert says_yes(case["reply"], official=True) is case["same"]


def test_the_mean_of_a_rubric_is_the_official_one_with_and_without_halves(subtests: pytest.Subtests) -> None:
    for case in RECORDED["rubric_aggregation"]:
        with subtests.test(case["name"]):
            replies = [json.dumps({"score": score}) for score in case["judge_scores"]]
            kept = [beam.item_score(reply, official=True) for reply in replies]
            cut = [beam.truncated(score, reply) for score, reply in zip(kept, replies, strict=True)]
            assert np.mean(np.array(cut, float)) == close(case["nine_abilities"])
            assert np.mean(np.array(kept, float)) == close(case["mean_with_halves"])


def test_the_report_is_the_mean_of_ability_means_over_chats(subtests: pytest.Subtests) -> None:
    for number, case in enumerate(RECORDED["report"]):
        with subtests.test(number):
            means = {}
            for ability in ABILITIES:
                field = "tau_norm" if ability == "event_ordering" else "llm_judge_score"
                chats = [[score[field] for score in chat[ability]] for chat in case["chats"] if chat.get(ability)]
                if chats:
                    means[ability] = float(np.mean([np.mean(chat) for chat in chats]))
            assert means == {name: close(value) for name, value in case["expected"].items()}
            if case["unweighted_mean_of_ten"] is not None:
                assert np.mean(list(means.values())) == close(case["unweighted_mean_of_ten"])


@pytest.mark.data
@pytest.mark.parametrize(
    ("tier", "chats", "bar"),
    [("100K", "none", 0.215), ("500K", "none", 0.246), ("1M", "none", 0.268), ("1M", "whole", 0.265)],
)
def test_a_refusal_in_one_line_gets_the_score_that_the_table_names(
    data_root: Path, tier: str, chats: Chats, bar: float
) -> None:
    """Over all chats of a tier, and over the nine of 1M whose messages are held."""
    cases = load(Path(data_root / "beam" / "chats" / tier), chats=chats)
    refused = Prediction("c", "q", beam.REFUSAL, (), (), "answered")
    scores = [beam.beam_refusal(question, gold, refused).value for case in cases for question, gold in case.questions]
    assert np.mean([score for score in scores if score is not None]) == pytest.approx(bar, abs=5e-4)
