"""Findings from a claim's own file: the file's mean against every printed score, and flags that every reader can check.

A printed score is *supported* if a reading of the file rounds to it; `readings` lists the readings, and the table names the agreeing one.
It is a *subset* if that file covers only part of the questions, *another run* if the manifest says that it is the score of another file
and this file's own mean differs, and *not supported by this file* otherwise. It *cannot be told* if the file has no such measure,
or is not the file that the manifest names: another file says nothing about the claim.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eval.statistics.power import planned
from eval.statistics.stats import Estimate, estimate
from scripts.answers.manifest import Printed
from scripts.answers.scoring import ScoredClaim

Status = Literal["supported", "not supported by this file", "another run", "subset", "cannot be told"]
ADVERSARIAL_GAIN = 0.05
ABSTAINING = 0.5
UNJOINED = 0.005
LONG = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One printed score and the file's own value for it."""

    printed: Printed
    status: Status
    file: float | None
    """The reading that the printed score is compared with: the agreeing reading, else the plain mean."""
    reading: str


def findings(scored: ScoredClaim) -> list[Finding]:
    """Every printed score of a claim with its status."""
    return [_finding(scored, printed) for printed in scored.claim.claimed]


def _finding(scored: ScoredClaim, printed: Printed) -> Finding:
    known = readings(scored, printed)
    if scored.changed or not known:
        return Finding(printed, "cannot be told", None, "")
    half = 0.5 * 10.0**-printed.digits + 1e-9
    agreeing = [(name, value) for name, value in known.items() if abs(value - printed.score) <= half]
    name, value = agreeing[0] if agreeing else next(iter(known.items()))
    if agreeing:
        return Finding(printed, "subset" if is_subset(scored) else "supported", value, name)
    return Finding(printed, "another run" if printed.other_run else "not supported by this file", value, name)


def is_subset(scored: ScoredClaim) -> bool:
    """Whether the file answers fewer than 99 of 100 of the data set's answerable questions."""
    if scored.claim.part or scored.joined is None:
        return bool(scored.claim.part)
    return covered(scored) < 0.99 * _answerable_in_all(scored)


def covered(scored: ScoredClaim) -> int:
    """Answers to answerable questions, including answers without a question of the data set."""
    return int(scored.answerable.sum()) + scored.answers - len(scored.asked)


WHOLE: Mapping[str, int] = {"LoCoMo": 1540, "LongMemEval": 470}
"""Answerable questions of the data sets."""


def _answerable_in_all(scored: ScoredClaim) -> int:
    """Number of answerable questions of the whole data set; for BEAM, all questions of the tier."""
    return WHOLE.get(scored.claim.dataset, scored.whole)


def readings(scored: ScoredClaim, printed: Printed) -> dict[str, float]:
    """Means of the file that a printed score may stand for, the plainest first; empty if the file stores no such measure."""
    mask = scored.answerable if printed.over == "1-4" else np.ones(len(scored.asked), dtype=bool)
    if printed.of == "f1":
        rules = {"stored F1": "stored_f1", "official F1": "f1", "plain F1": "plain_f1"}
        scores = {title: scored.measures[name][scored.where(name, mask)] for title, name in rules.items()}
        return {title: float(each.mean()) for title, each in scores.items() if each.size}
    picked = scored.where("verdict", mask)
    values = (
        np.asarray(scored.verdicts)
        if printed.over == "all" and len(scored.verdicts)
        else scored.measures["verdict"][picked]
    )
    if not values.size:
        return {}
    if printed.of == "pass":
        return {"share of at least half marks": float((values >= 0.5).mean())}
    if printed.of == "full":
        return {"share of full marks": float((values >= 1.0).mean())}
    means = {"mean verdict": float(values.mean())}
    total = int(mask.sum()) if printed.over == "1-4" else scored.answers
    if values.size < total:
        means["mean, answers without a verdict counted as wrong"] = float(values.sum() / total)
    if scored.claim.dataset == "LoCoMo" and picked.any():
        groups: dict[str, list[float]] = defaultdict(list)
        for at in np.flatnonzero(picked):
            groups[scored.asked[at].case_id].append(float(scored.measures["verdict"][at]))
        means["mean of the conversations' means"] = float(np.mean([np.mean(group) for group in groups.values()]))
    return means


def flags(scored: ScoredClaim) -> list[str]:
    """Warnings before a comparison with the claim; each is a fact of the file, with a number."""
    found, verdict, words = [], scored.measures["verdict"], scored.measures["words"]
    judged, answerable = scored.where("verdict"), scored.answerable
    if scored.changed:
        found.append("the file is not the one that the manifest names")
    unjoined = scored.counts["without a question of the data set"]
    if unjoined > UNJOINED * scored.answers:
        found.append(f"{unjoined} of {scored.answers} answers have no question of the data set")
    if is_subset(scored):
        found.append(scored.claim.part or f"{covered(scored)} of {_answerable_in_all(scored)} answerable questions")
    if (judged & ~answerable).any() and (judged & answerable).any():
        gain = float(verdict[judged].mean() - verdict[judged & answerable].mean())
        if abs(gain) >= ADVERSARIAL_GAIN:
            found.append(
                f"questions without an answer {'raise' if gain > 0 else 'lower'} the mean by {abs(gain) * 100:.1f} points"
            )
    abstaining = (scored.measures["abstains"] == 1.0) & answerable
    if answerable.any() and abstaining.sum() / answerable.sum() >= ABSTAINING:
        found.append(
            f"{int(abstaining.sum())} of {int(answerable.sum())} answerable questions are answered with not knowing"
        )
    if judged.sum() > 1 and len(np.unique(verdict[judged])) == 1:
        found.append(f"all {int(judged.sum())} verdicts are {verdict[judged][0]:g}")
    elif (judged & answerable).sum() > 1 and len(np.unique(verdict[judged & answerable])) == 1:
        found.append(
            f"all {int((judged & answerable).sum())} verdicts of answerable questions are {verdict[judged & answerable][0]:g}"
        )
    found += _of_counts(scored)
    if words.size and np.median(words) >= LONG:
        found.append(f"long answers, {np.median(words):.0f} words in the middle")
    if scored.golds and scored.other_gold / scored.golds > 0.01:
        found.append(f"{scored.other_gold} of {scored.golds} golds are not the data set's")
    return found


def _of_counts(scored: ScoredClaim) -> list[str]:
    names = {
        "judge error": "judge errors",
        "blank answer": "blank answers",
        "missing answer": "missing answers",
        "duplicate": "duplicates",
        "without a gold in the file": "answers without a gold, which have no F1",
        "without a verdict, which the form has for 0": "verdicts left out by the form, taken as 0",
        "record that is no object": "damaged records",
        "record without a question": "records without a question",
        "record whose text is no text": "damaged records",
    }
    return [
        f"{count} {kind if count == 1 and name == f'{kind}s' else name}"
        for kind, name in names.items()
        if (count := scored.counts[kind])
    ]


@dataclass(frozen=True, slots=True)
class Same:
    """Another claim with the same answers."""

    name: str
    equal: int
    compared: int
    """Number of questions for which both have an informative answer."""
    bytes: bool
    """The files are the same, byte for byte."""

    def __str__(self) -> str:
        return (
            f"{self.name} (same bytes)"
            if self.bytes
            else f"{self.name} ({self.equal} of {self.compared} telling answers)"
        )


def duplicates(all_scored: Sequence[ScoredClaim]) -> dict[str, list[Same]]:
    """For each claim, the other claims with equal answers more often than by chance.

    Answers of fewer than six words, answers that equal the gold, and answers that say "I do not know" often agree by nature and are left
    out. Chance is the share of equal answers over all pairs of claims from different repositories on the data set. A pair counts if it has
    at least ten equal answers, half of the compared answers are equal, and the probability is under one in a million.
    """
    same: dict[str, list[Same]] = defaultdict(list)
    for dataset in sorted({scored.claim.dataset for scored in all_scored}):
        own = [scored for scored in all_scored if scored.claim.dataset == dataset]
        tables = [_hashes(scored) for scored in own]
        pairs = []
        for first in range(len(own)):
            for second in range(first + 1, len(own)):
                shared = tables[first].keys() & tables[second].keys()
                equal = sum(tables[first][key] == tables[second][key] for key in shared)
                pairs.append((first, second, equal, len(shared)))
        elsewhere = [
            (equal, size) for one, two, equal, size in pairs if own[one].claim.repository != own[two].claim.repository
        ]
        chance = (sum(equal for equal, _ in elsewhere) + 1) / (sum(size for _, size in elsewhere) + 1)
        for one, two, equal, size in pairs:
            bytes_ = own[one].sha256 == own[two].sha256
            if bytes_ or (equal >= 10 and equal >= size / 2 and _beyond(equal, size, min(chance, 0.05))):
                same[own[one].claim.name].append(Same(own[two].claim.name, equal, size, bytes_))
                same[own[two].claim.name].append(Same(own[one].claim.name, equal, size, bytes_))
    return same


def _hashes(scored: ScoredClaim) -> dict[tuple[str, str], bytes]:
    telling = (scored.measures["abstains"] == 0.0) & ~(scored.measures["plain_f1"] == 1.0)
    rows = zip(scored.asked, scored.hashes, telling, strict=True)
    return {(each.case_id, each.question_id): code for each, code, tells in rows if code and tells}


def _beyond(equal: int, size: int, chance: float) -> bool:
    from scipy.special import bdtrc

    return bool(bdtrc(equal - 1, size, chance) < 1e-6)


def mean_of(scored: ScoredClaim, name: str, mask: np.ndarray) -> Estimate | None:
    """The mean of a measure with its intervals; None where no answer has a value."""
    picked = scored.where(name, mask)
    values = scored.measures[name][picked]
    clusters = [scored.asked[at].case_id for at in np.flatnonzero(picked)]
    return estimate(values.tolist(), clusters) if values.size else None


def detectable_at(scored: ScoredClaim) -> float | None:
    """The paired difference that these questions detect with 80 % power, with the assumption of `eval.statistics.power.planned`."""
    known = planned(list(Counter(each.case_id for each in scored.asked).values()))
    return None if known is None else known[0]
