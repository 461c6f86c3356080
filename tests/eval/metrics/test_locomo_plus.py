"""LoCoMo-Plus: judge's replies as the official script reads them, and read strictly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eval.metrics.locomo_plus import official_label, official_score, verdict

RECORDED = json.loads(
    (Path(__file__).parents[2] / "golden" / "next_locomo_plus_metrics.json").read_text(encoding="utf-8")
)


def test_a_reply_has_the_recorded_label_and_score(subtests: pytest.Subtests) -> None:
    for case in RECORDED["judge_reply"]:
        with subtests.test(case["reply"]):
            assert official_label(case["reply"]) == case["label"]
            assert official_score(case["reply"]) == pytest.approx(case["score"], abs=1e-6)


def test_means_by_category_and_over_all_are_the_recorded_ones() -> None:
    for case in RECORDED["summary"]:
        scores = [record.get("judge_score", 0.0) for record in case["records"]]
        assert round(float(np.mean(scores)), 4) == case["expected"]["overall_avg"]
        for category, wanted in case["expected"]["by_category"].items():
            own = [
                record.get("judge_score", 0.0)
                for record in case["records"]
                if (record["category"] or "default") == category
            ]
            assert (round(float(np.mean(own)), 4), len(own)) == (wanted["avg"], wanted["count"])


@pytest.mark.parametrize(
    ("reply", "official", "strict"),
    [
        ("This is incorrect.", 1.0, None),
        ("Wrong, not correct.", 1.0, 0.0),
        ("Partially correct", 1.0, None),
        ("Incorrect API key", 1.0, None),
        ('{"label": "wrong", "reason": "It is not correct."}', 0.0, 0.0),
        ('{"reason": "No.", "label": "Correct"}', 1.0, 1.0),
        ('{"label": "wrong", "label": "correct", "reason": "It is."}', 1.0, None),
        ("{'label': 'wrong', 'reason': 'It is not correct.'}", 1.0, 0.0),
        ('{"label": "wrong", "reason": "It is not correct', 1.0, 0.0),
        ('{"label": 0, "reason": "It is not correct."}', 0.0, None),
        ('{"label": 1, "reason": "It is correct."}', 1.0, None),
        ("", 0.0, None),
    ],
)
def test_incorrect_is_correct_officially_and_never_strictly(reply: str, official: float, strict: float | None) -> None:
    assert official_score(reply) == official
    assert verdict(reply) == strict
