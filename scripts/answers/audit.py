"""Findings from a claim's own file: the file's mean against every printed score, and flags that every reader can check.

A printed score is *supported* if a reading of the file rounds to it; `readings` lists the readings, and the table names the agreeing one.
It is a *subset* if that file covers only part of the questions, *another run* if the manifest says that it is the score of another file
and this file's own mean differs, and *not supported by this file* otherwise. It *cannot be told* if the file has no such measure (an F1
that the file does not store may still be supported by an F1 of ours), or is not the file that the manifest names: another file says
nothing about the claim.

A second analysis is of many files: the judge against F1 at equal length, leniency, spread of a product.

Several graders of the answers of one claim are stored in a file, and compared by means, kappa and prediction-powered scores. A grader is a
source of verdicts: the file's own judge, people, or a judge of ours (`scripts.lab.rejudging`). Cohen's kappa of two graders is over the
answers that both graded. If people gave the stored verdicts, there is a prediction-powered score for each judge of ours.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from data_loaders.raw import read_raw
from data_loaders.schema import DataError
from eval.analysis.losses import shown_estimate
from eval.files.imported import THEIRS
from eval.files.store import RunError, replace_file, safe_name
from eval.judging.agreement import RIGHT, agreement
from eval.report.ratings import prediction_powered, sample_order
from eval.report.rendering import number, span
from eval.statistics.stats import Estimate, Interval, estimate, t_point
from scripts.answers.manifest import PEOPLE, Claim, Printed
from scripts.answers.scoring import ScoredClaim

SAMPLED = 200
"""Number of labels that count if people labelled every answer: the first ones of `sample_order`."""
STORED = f"{THEIRS}judge"
"""Name of the grader of the file's own verdicts."""
STAND_IN = " (stand-in)"
"""End of the name of a judge that is an engine without a model."""
COLUMNS = ("grader", "judged", "failed", "mean", "kappa with")
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Grader:
    """The verdicts of one judge on the answers of a claim."""

    name: str
    values: Mapping[Key, float]
    """Values by case and question, averaged over repeats; answers without a verdict are left out."""
    failed: int
    """Number of answers that should have been judged and have no verdict."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The graders of a claim, the stored one first where the file has verdicts."""

    graders: tuple[Grader, ...]
    sha256: str
    """sha256 of the judged files."""


def compared(
    claim: Claim, graders: Sequence[Grader], clusters: Mapping[Key, str]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """A row per grader in the order of `COLUMNS`, with its mean and its kappa with every other grader; then, if people labelled answers,
    for each judge a prediction-powered score or the reason why there is none.

    Args:
        clusters: conversation of every graded answer.
    """
    stored = PEOPLE if claim.judge == PEOPLE else "stored verdict"
    titles = [stored if each.name == STORED else each.name for each in graders]
    rows: list[tuple[str, ...]] = []
    for at, grader in enumerate(graders):
        kappas = (
            f"{title} {_kappa(grader, other, clusters)}"
            for title, other in zip(titles, graders, strict=True)
            if other is not grader
        )
        values, mean = grader.values, "–"
        if values:
            mean = shown_estimate(estimate(list(values.values()), [clusters[key] for key in values]))
        rows.append((titles[at], str(len(values)), str(grader.failed), mean, "; ".join(kappas) or "–"))
    judges = graders[1:] if titles[:1] == [PEOPLE] else ()
    return rows, [_powered(each, graders[0], clusters) for each in judges]


def _kappa(one: Grader, other: Grader, clusters: Mapping[Key, str]) -> str:
    sides = [{key: value >= RIGHT for key, value in each.values.items()} for each in (one, other)]
    both = agreement(sides, clusters)
    if both is None:
        return "– (no common answer)"
    return f"{number(both.kappa)} {span(both.kappa_interval)}".strip() + f" on {both.n}"


def _powered(judge: Grader, people: Grader, clusters: Mapping[Key, str]) -> str:
    """The score that people would give to all answers, from the judge's verdicts and their labels."""
    keys = list(judge.values)
    known = {key: people.values[key] for key in keys if key in people.values}
    if len(known) == len(keys):  # all labels are their own mean; a random part shows the gain from a judge
        known = {key: known[key] for key in sample_order(keys)[:SAMPLED]}
    labels = [known.get(key) for key in keys]
    try:
        score = prediction_powered([judge.values[key] for key in keys], [clusters[key] for key in keys], labels)
    except ValueError as error:
        return f"no prediction-powered score from {judge.name}: {error}"
    return f"prediction-powered by {judge.name}: {shown_estimate(score)} from {score.n} labels and {len(keys)} verdicts"


def keep(results: Path, claim: Claim, judged: Judged) -> None:
    """Write the graders of a claim, for the site; graders of an earlier judging of the claim are replaced."""
    content = {
        "claim": claim.name,
        "sha256": judged.sha256,
        "graders": [
            {"name": each.name, "failed": each.failed, "values": [[*key, value] for key, value in each.values.items()]}
            for each in judged.graders
        ],
    }
    replace_file(_file(results, claim), json.dumps(content) + "\n")


def kept(results: Path, claim: Claim) -> Judged | None:
    """The graders that `keep` has written for a claim; None if it was never judged again. Raises RunError if the file is damaged."""
    file = _file(results, claim)
    if not file.is_file():
        return None
    try:
        content = read_raw(file).value
        graders = tuple(
            Grader(
                str(each["name"]),
                {(str(case), str(question)): float(value) for case, question, value in each["values"]},
                int(each["failed"]),
            )
            for each in content["graders"]
        )
        if content["claim"] != claim.name or not all(
            0 <= value <= 1 for each in graders for value in each.values.values()
        ):
            raise ValueError("another claim's verdicts, or verdicts that are not from 0 to 1")
        return Judged(graders, str(content["sha256"]))
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file}: no verdicts of judges; delete it, or judge the claim again ({error})") from error


def _file(results: Path, claim: Claim) -> Path:
    return results / "claims" / "rejudged" / f"{safe_name(claim.name)}.json"


LEAST = 20
"""Minimum number of answers for which a share is shown."""


@dataclass(frozen=True, slots=True)
class Regression:
    """Verdict on F1, words, category and system."""

    effects: Mapping[str, tuple[float, Interval]]
    """Coefficients by name, in points of the verdict, with intervals by jackknife over conversations with Student's t."""
    questions: int
    systems: int
    histories: int


def judged(scored: ScoredClaim) -> np.ndarray:
    """Bool [n]: answers to answerable questions with a verdict and an F1."""
    return scored.where("verdict", scored.where("f1", scored.answerable))


def usable(all_scored: Sequence[ScoredClaim], *, people: bool = False) -> list[ScoredClaim]:
    """Claims on LoCoMo whose verdicts, by judges or people, are not all the same."""
    return [
        scored
        for scored in all_scored
        if scored.claim.dataset == "LoCoMo"
        and (scored.claim.judge == PEOPLE) == people
        and len(np.unique(scored.measures["verdict"][judged(scored)])) > 1
    ]


def regressions(all_scored: Sequence[ScoredClaim]) -> dict[str, Regression]:
    """The regression on the verdicts of judges, and that on the verdicts of people, where there are enough conversations."""
    by_whom = {"judges": usable(all_scored), "people": usable(all_scored, people=True)}
    fitted = {who: regression(own) for who, own in by_whom.items()}
    return {who: each for who, each in fitted.items() if each is not None}


def regression(all_scored: Sequence[ScoredClaim]) -> Regression | None:
    """Fit the verdict by least squares on F1, words (in hundreds), category and system, with one row per answer.

    System and category are dummies, so F1 and words are compared within both. The error is the delete-one-conversation jackknife, because
    the same questions recur under every system. None for fewer than five conversations.
    """
    rows, targets, homes = [], [], []
    systems = {scored.claim.name: place for place, scored in enumerate(all_scored)}
    categories = sorted({each.category for scored in all_scored for each in scored.asked})
    for scored in all_scored:
        for at in np.flatnonzero(judged(scored)):
            asked = scored.asked[at]
            row = np.zeros(2 + len(systems) + len(categories))
            row[:2] = scored.measures["f1"][at], scored.measures["words"][at] / 100
            row[2 + systems[scored.claim.name]] = 1.0
            row[2 + len(systems) + categories.index(asked.category)] = 1.0
            rows.append(row)
            targets.append(scored.measures["verdict"][at])
            homes.append(asked.case_id)
    names, codes = np.unique(np.asarray(homes), return_inverse=True)
    if names.size < 5:
        return None
    design, target = np.asarray(rows), np.asarray(targets)
    squares = np.stack([design[codes == each].T @ design[codes == each] for each in range(names.size)])
    products = np.stack([design[codes == each].T @ target[codes == each] for each in range(names.size)])
    whole = _solved(squares.sum(axis=0), products.sum(axis=0))
    left = np.stack(
        [
            _solved(squares.sum(axis=0) - one, products.sum(axis=0) - two)
            for one, two in zip(squares, products, strict=True)
        ]
    )
    error = np.sqrt((names.size - 1) / names.size * ((left - whole) ** 2).sum(axis=0))
    low, high = whole - t_point(names.size - 1) * error, whole + t_point(names.size - 1) * error
    effects = {
        name: (100 * float(whole[at]), Interval(100 * float(low[at]), 100 * float(high[at])))
        for at, name in enumerate(("F1 from 0 to 1", "a hundred words more"))
    }
    return Regression(effects, target.size, len(systems), names.size)


def _solved(squares: np.ndarray, products: np.ndarray) -> np.ndarray:
    # The dummies of system and category add up to the same column; the minimum-norm solution does not affect F1 and words.
    solution: np.ndarray = np.linalg.lstsq(squares, products, rcond=None)[0]
    return solution


@dataclass(frozen=True, slots=True)
class Agreement:
    """Rank correlation of mean verdict and mean F1 over claims."""

    claims: int
    plain: float
    given_words: float | None
    """Partial correlation at equal mean length of answers; None where length alone gives the order of the verdicts or of F1."""


def rank_agreement(all_scored: Sequence[ScoredClaim]) -> Agreement | None:
    """Spearman's correlation over usable claims that answer at least a thousand questions.

    None for fewer than five of them, and where all means of verdict, F1 or words are equal: there is no order to compare.
    """
    rows = []
    for scored in usable(all_scored):
        mask = judged(scored)
        if mask.sum() >= 1000:
            rows.append([float(scored.measures[name][mask].mean()) for name in ("verdict", "f1", "words")])
    if len(rows) < 5:
        return None
    from scipy.stats import rankdata

    ranks = rankdata(np.asarray(rows), axis=0)
    if not np.ptp(ranks, axis=0).all():
        return None
    table = np.asarray(np.corrcoef(ranks.T))
    verdict_f1, verdict_words, f1_words = table[0, 1], table[0, 2], table[1, 2]
    left = (1 - verdict_words**2) * (1 - f1_words**2)
    partial = float((verdict_f1 - verdict_words * f1_words) / np.sqrt(left)) if left > 1e-12 else None
    return Agreement(len(rows), float(verdict_f1), partial)


@dataclass(frozen=True, slots=True)
class Lenience:
    """Shares of two kinds of answers that count as right; None for fewer than `LEAST` answers of a kind."""

    name: str
    judge: str
    unlike: float | None
    """Share of right answers among those that share no word stem with the gold and do not say "I do not know"."""
    unlike_n: int
    unknowing: float | None
    """Share of right answers among "I do not know" answers to questions whose answer the history holds."""
    unknowing_n: int

    @property
    def shown(self) -> list[str]:
        """Both shares with their numbers of answers, as texts."""
        shares = ((self.unlike, self.unlike_n), (self.unknowing, self.unknowing_n))
        return ["–" if share is None else f"{share:.0%} of {n}" for share, n in shares]


def lenience(scored: ScoredClaim) -> Lenience | None:
    """The leniency of a claim's verdicts; None if it has no verdicts."""
    verdict, knows = scored.measures["verdict"], scored.measures["abstains"] == 0.0
    if not scored.where("verdict").any():
        return None
    text = scored.measures["blank"] == 0.0
    unlike = judged(scored) & knows & text & (scored.measures["f1"] == 0.0)
    unknowing = judged(scored) & ~knows & scored.in_history

    def share(mask: np.ndarray) -> float | None:
        return float(verdict[mask].mean()) if mask.sum() >= LEAST else None

    return Lenience(
        scored.claim.name, scored.claim.judge or "not stated", share(unlike), int(unlike.sum()),
        share(unknowing), int(unknowing.sum()),
    )  # fmt: skip


def lenient(all_scored: Sequence[ScoredClaim]) -> list[Lenience]:
    """The leniency of every claim that has a share of it."""
    known = (each for scored in all_scored if (each := lenience(scored)) is not None)
    return [each for each in known if each.unlike is not None or each.unknowing is not None]


@dataclass(frozen=True, slots=True)
class Spread:
    """One product over several files."""

    product: str
    dataset: str
    claims: tuple[str, ...]
    questions: tuple[int, int]
    """Fewest and most answerable questions with an F1; files of fewer questions, or of another tier, answer others."""
    verdict: tuple[float, float] | None
    """Lowest and highest mean verdict on answerable questions."""
    f1: tuple[float, float]


def spreads(all_scored: Sequence[ScoredClaim]) -> list[Spread]:
    """Products with at least two files on a data set, by the spread of their mean verdicts, the widest first."""
    groups: dict[tuple[str, str], list[ScoredClaim]] = defaultdict(list)
    for scored in all_scored:
        if scored.where("f1", scored.answerable).any():
            groups[scored.claim.product, scored.claim.dataset].append(scored)
    found = []
    for (product, dataset), own in groups.items():
        if len(own) < 2:
            continue
        known = [each.measures["f1"][each.where("f1")] for each in own]
        sizes, f1 = [each.size for each in known], [float(each.mean()) for each in known]
        graded = ((each.measures["verdict"], each.where("verdict", each.answerable)) for each in own)
        means = [float(verdicts[mask].mean()) for verdicts, mask in graded if mask.any()]
        verdict = (min(means), max(means)) if len(means) > 1 else None
        names = tuple(each.claim.name for each in own)
        found.append(Spread(product, dataset, names, (min(sizes), max(sizes)), verdict, (min(f1), max(f1))))
    return sorted(found, key=lambda each: (each.verdict[0] - each.verdict[1] if each.verdict else 1.0, each.product))


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
    found = []
    for printed in scored.claim.claimed:
        known = readings(scored, printed)
        half = 0.5 * 10.0**-printed.digits + 1e-9
        agreeing = [(name, value) for name, value in known.items() if abs(value - printed.score) <= half]
        # Our rules cannot refute an F1 of unknown rule.
        refutable = bool(known) and (printed.of != "f1" or "stored F1" in known)
        if scored.changed or not (refutable or agreeing):
            found.append(Finding(printed, "cannot be told", None, ""))
            continue
        name, value = agreeing[0] if agreeing else next(iter(known.items()))
        status: Status = "another run" if printed.other_run else "not supported by this file"
        if agreeing:
            status = "subset" if is_subset(scored) else "supported"
        found.append(Finding(printed, status, value, name))
    return found


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
    values = np.asarray(scored.verdicts) if printed.over == "all" else scored.measures["verdict"][picked]
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


IRREGULAR = {
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
"""Flags of the counted irregularities, by kind."""


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
    held = scored.in_history
    abstaining = (scored.measures["abstains"] == 1.0) & held
    if held.any() and abstaining.sum() / held.sum() >= ABSTAINING:
        found.append(f"{int(abstaining.sum())} of {int(held.sum())} answerable questions are answered with not knowing")
    if judged.sum() > 1 and len(np.unique(verdict[judged])) == 1:
        found.append(f"all {int(judged.sum())} verdicts are {verdict[judged][0]:g}")
    elif (judged & answerable).sum() > 1 and len(np.unique(verdict[judged & answerable])) == 1:
        found.append(
            f"all {int((judged & answerable).sum())} verdicts of answerable questions are {verdict[judged & answerable][0]:g}"
        )
    found += [
        f"{count} {kind if count == 1 and name == f'{kind}s' else name}"
        for kind, name in IRREGULAR.items()
        if (count := scored.counts[kind])
    ]
    if words.size and np.median(words) >= LONG:
        found.append(f"long answers, {np.median(words):.0f} words in the middle")
    if scored.golds and scored.other_gold / scored.golds > 0.01:
        found.append(f"{scored.other_gold} of {scored.golds} golds are not the data set's")
    return found


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
    from scipy.special import bdtrc

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
            if bytes_ or (equal >= 10 and equal >= size / 2 and bdtrc(equal - 1, size, min(chance, 0.05)) < 1e-6):
                same[own[one].claim.name].append(Same(own[two].claim.name, equal, size, bytes_))
                same[own[two].claim.name].append(Same(own[one].claim.name, equal, size, bytes_))
    return same


def _hashes(scored: ScoredClaim) -> dict[tuple[str, str], bytes]:
    telling = (scored.measures["abstains"] == 0.0) & ~(scored.measures["plain_f1"] == 1.0)
    rows = zip(scored.asked, scored.hashes, telling, strict=True)
    return {(each.case_id, each.question_id): code for each, code, tells in rows if code and tells}


def mean_of(scored: ScoredClaim, name: str, mask: np.ndarray) -> Estimate | None:
    """The mean of a measure with its intervals; None where no answer has a value."""
    picked = scored.where(name, mask)
    values = scored.measures[name][picked]
    clusters = [scored.asked[at].case_id for at in np.flatnonzero(picked)]
    return estimate(values.tolist(), clusters) if values.size else None
