"""Agreement of two memories, worked by hand from small runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval.analysis import fidelity
from eval.analysis.fidelity import Fidelity, compared


def write(notes: dict[str, int], **calls: int) -> dict[str, Any]:
    return {"calls": calls, "notes": notes}


def recall(answer: str, *items: tuple[str, str]) -> dict[str, Any]:
    return {"items": [{"text": text, "sources": turns.split()} for text, turns in items], "answer": answer}


def run(writes: dict[str, Any], recalls: dict[str, Any], texts: list[str]) -> Any:
    return fidelity._Run(
        [*writes.values(), write({"fallback": 1}, merge=3)],  # the last is a consolidation
        {("c", unit): {"model calls": float(sum(line["calls"].values()))} for unit, line in writes.items()},
        {("c", question): line for question, line in recalls.items()},
        {("c", question): {"items recalled": float(len(line["items"]))} for question, line in recalls.items()},
        {"c": [{"text": text} for text in texts]},
        {"c": "history"},
    )


BREAD = "Ines bakes bread now"
FIRST = run(
    {"u1": write({"fallback": 1}, extract=1), "u2": write({}, extract=2, merge=1), "u4": write({"fallback": 1})},
    {
        "q1": recall("Bread.", (f"[2 May 2023] user: {BREAD}", "t1"), ("Omar sings", "t2")),
        "q2": recall("yes"),
        "q3": recall("", ("Omar sings", "t2")),
    },
    [BREAD, "Omar sings"],
)
SECOND = run(
    {"u1": write({}, extract=1), "u2": write({}, extract=1), "u3": write({}, extract=4)},
    {"q1": recall("bread", (BREAD, "t1 t3")), "q2": recall("no"), "q3": recall("nobody"), "q4": recall("Omar")},
    [f"{BREAD.upper()} again"],
)


def of(monkeypatch: pytest.MonkeyPatch, *runs: Any, k: int = 1) -> Fidelity:
    monkeypatch.setattr(fidelity, "_read", lambda folder: runs[int(folder.name)])
    return compared(Path("0"), Path("1"), k)


def test_agreement_is_that_of_common_units_questions_and_first_items(monkeypatch: pytest.MonkeyPatch) -> None:
    found = of(monkeypatch, FIRST, SECOND)
    ((calls,), (items,)) = found.per_unit, found.per_question
    assert (calls.first, calls.second, calls.gap.mean, calls.gap.n) == (2.0, 1.0, 1.0, 2)
    assert (items.first, items.second, items.gap.n) == (1.0, pytest.approx(1 / 3), 3)
    assert found.purposes == ({"extract": 1.0, "merge": pytest.approx(4 / 3)}, {"extract": 2.0, "merge": 1.0})
    assert found.notes == ({"fallback": 3}, {"fallback": 1})
    turns, texts, tops, answers, first, second = [each.mean for each in found.overlaps.values() if each is not None]
    assert turns == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert (texts, tops, answers) == pytest.approx((2 / 3, 2 / 3, 1 / 3))
    assert (first, second) == (0.5, 1.0), "four of five words are alike, in capitals too"
    turns, texts, *_ = [each.mean for each in of(monkeypatch, FIRST, SECOND, k=2).overlaps.values() if each]
    assert turns == pytest.approx((1 / 3 + 1 + 0) / 3)
    assert texts == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_runs_without_a_common_unit_or_question_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for other in (replace(SECOND, per_unit={}), replace(SECOND, recalls={})):
        with pytest.raises(ValueError, match="no unit or no question in common"):
            of(monkeypatch, FIRST, other)
