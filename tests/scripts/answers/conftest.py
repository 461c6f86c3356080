"""Invented claims, scored: as `score_claim` returns them, without files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scripts.answers.manifest import AnswersFile, Claim, Printed
from scripts.answers.matching import Asked
from scripts.answers.scoring import MEASURES, ScoredClaim, fingerprint

CASES = 10
NOUNS = ("harbour", "violin", "lemon", "market", "sister", "engine", "garden", "letter", "winter", "bakery")
Invent = Callable[..., ScoredClaim]


def questions(count: int) -> tuple[Asked, ...]:
    """Questions over ten conversations; the last of twenty has no answer in the history."""
    return tuple(
        Asked(
            f"conv-{at % CASES}",
            f"conv-{at % CASES}_{at // CASES}",
            f"Which {NOUNS[at % 7]} did Ines see near the {NOUNS[at % 10]} on day {at}?",
            f"the {NOUNS[at % 3]} of day {at}",
            "5" if at % 20 == 19 else str(1 + at % 4),
            at % 20 != 19,
        )
        for at in range(count)
    )


def scored_claim(name: str, count: int = 40, seed: int = 0, **more: Any) -> ScoredClaim:
    """A claim with answers, verdicts and scores that a seed gives; fields of the claim and of `ScoredClaim` by name."""
    rng = np.random.default_rng(seed)
    asked = more.pop("asked", questions(count))
    answerable = np.array([float(each.answerable) for each in asked])
    scores = {measure: np.where(answerable == 1.0, rng.random(count).round(2), np.nan) for measure in MEASURES}
    texts = more.pop(
        "texts",
        tuple(
            f"It was {each.gold}, said {name} about {NOUNS[at % 9]} and {seed}{' indeed' * (seed % 5)}."
            for at, each in enumerate(asked)
        ),
    )
    verdict = (rng.random(count) < 0.6).astype(float)
    measures = {
        **scores,
        "verdict": verdict,
        "stored_f1": np.full(count, np.nan),
        "words": np.array([float(len(text.split())) for text in texts]),
        "abstains": np.zeros(count),
        "tokens": np.full(count, np.nan),
        "blank": np.zeros(count),
        "answerable": answerable,
    }
    measures.update(more.pop("measures", {}))
    facts = {
        "product": name,
        "system": f"System {name}",
        "by": "someone",
        "repository": "someone/results",
        "commit": "0123abc",
    }
    facts |= {
        "dataset": "LoCoMo",
        "date": "2026-03-01",
        "licence": "MIT",
        "answer_model": "",
        "judge": "",
        "form": "flat",
    }
    facts |= {"files": (AnswersFile("out/answers.json", "someone/answers.json", "ab" * 32, 1234),)}
    facts |= {"claimed": (Printed(0.99, 2, "judge", "all", "README"),)}
    fields = {"changed": False, "listed": (), "counts": Counter(), "sha256": hashlib.sha256(name.encode()).hexdigest()}
    fields |= {key: more.pop(key) for key in list(more) if key in fields}
    return ScoredClaim(
        Claim(name, **{**facts, **more}),
        asked=asked,
        measures=measures,
        hashes=tuple(map(fingerprint, texts)),
        answers=count,
        verdicts=tuple(measures["verdict"].tolist()),
        whole=count,
        golds=count,
        other_gold=0,
        texts=tuple(texts),
        **fields,
    )


@pytest.fixture
def invent() -> Invent:
    """Makes a scored claim by name."""
    return scored_claim


@pytest.fixture(scope="session")
def many() -> Callable[[int, int], list[ScoredClaim]]:
    """Makes as many claims on as many questions as wanted; the first is full context."""
    return lambda claims, count: [
        scored_claim(f"claim-{at}", count, at, product="full context" if at == 0 else f"product {at // 3}")
        for at in range(claims)
    ]
