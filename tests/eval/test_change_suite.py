"""The suite `change` end to end: controls at both ends, and memories that are wrong in a known way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripted import Script, ScriptedLLM

from data_loaders import locomo, source
from data_loaders.change import CLEAN, MAIN, VARIANTS, change
from data_loaders.schema import Case, Question, Unit
from eval.files.run_folder import read_predictions
from eval.files.store import read_lines, write_lines
from eval.judging.score import Metric, score_lexical
from eval.judging.score_files import read_scores
from eval.metrics.change import ANSWERS_ONLY, change_answer, change_recall
from eval.running.loop import run_all
from eval.running.oracle_editor import oracle_editor
from eval.running.run import Run
from memsys.interface import MemorySystem, Recall
from memsys.llm.meter import Metered
from memsys.llm.protocol import Request
from memsys.systems.bm25 import BM25
from memsys.systems.controls import FullHistory, Nothing, Recency

pytestmark = pytest.mark.slow

Make = Callable[..., Run]
HOST = len(VARIANTS) + 1
"""Builds of a host."""
PROBES = 3
"""Probes of a family on a host of the samples: six on two hosts, which have every variant."""
RECALL = Metric("change_recall", change_recall, joint=True)
ANSWER = Metric("change_answer", change_answer, joint=True)


class SpeakersDropped(BM25):
    """BM25 over what was said, without who said it."""

    def write(self, unit: Unit) -> None:
        super().write(replace(unit, turns=tuple(replace(turn, speaker="") for turn in unit.turns)))


class Returning(FullHistory):
    """Forgets on request what the next `consolidate` but one brings back."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = ""
        self._since = 0

    def write(self, unit: Unit) -> None:
        super().write(unit)
        if unit.text.partition(": ")[2].startswith(("Please forget", "Erase")):
            self._asked, self._since = unit.text, 0

    def consolidate(self) -> None:
        self._since += 1

    def read(self, question: Question) -> Recall:
        items = super().read(question).items
        if self._asked and self._since < 2:
            items = tuple(item for item in items if " is " not in item.text)
        return Recall(items)


@pytest.fixture(scope="module")
def suite() -> list[Case]:
    return list(change(locomo.load(source.sample("locomo.json").path), seed=1, size=2 * PROBES, hosts=2))


@pytest.fixture(scope="module")
def of_locomo(data_root: Path) -> list[Case]:
    return list(change(locomo.load(data_root / "locomo" / "locomo10.json"), seed=1, size=16, hosts=4))


def played(make_run: Make, cases: Sequence[Case], build: Any, **more: Any) -> Run:
    run = make_run(list(cases), build=build, reader=Metered(ScriptedLLM("I do not know.")), **more)
    run = replace(run, unit={"rule": "utterance"})
    run_all([run])
    return run


def verdicts(run: Run, metric: Metric = RECALL) -> dict[str, Counter[str]]:
    """Outcomes by family."""
    found: dict[str, Counter[str]] = {family: Counter() for family in VARIANTS}
    for (case_id, _), lines in read_scores(score_lexical(run, [metric], 3)[metric.name]).items():
        found[case_id.rpartition("--")[2]][lines[0]["detail"]["outcome"]] += 1
    return found


ANSWERED = "yes_no"
"""The family that is not scored at recall."""


def all_of(outcome: str, count: int = 2 * PROBES) -> Counter[str]:
    return Counter({outcome: count})


def test_nothing_is_right_nowhere_also_not_by_silence(make_run: Make, suite: list[Case]) -> None:
    run = played(make_run, suite, Nothing)
    for metric in (RECALL, ANSWER):
        found = verdicts(run, metric)
        assert {name.partition(":")[0] for counts in found.values() for name in counts} == {"n/a"}


def test_the_oracle_editor_is_right_everywhere(make_run: Make, suite: list[Case]) -> None:
    found = verdicts(played(make_run, suite, Nothing, control=oracle_editor))
    assert found == {
        **dict.fromkeys(VARIANTS, all_of("right")),
        "supersede": all_of("resolved"),
        ANSWERED: all_of(ANSWERS_ONLY),
    }


@pytest.mark.parametrize("build", [FullHistory, BM25])
def test_verbatim_memories_know_who_said_what_and_delete_nothing(make_run: Make, suite: list[Case], build: Any) -> None:
    assert verdicts(played(make_run, suite, build)) == {
        "supersede": all_of("both"),
        "echo": all_of("right"),
        "retract": all_of("kept"),
        "users": all_of("right"),
        "poison": all_of("right"),
        "private": all_of("told"),
        ANSWERED: all_of(ANSWERS_ONLY),
    }


class Discreet(FullHistory):
    """Tells what "only I may be told" to the one who said it."""

    def read(self, question: Question) -> Recall:
        asker = question.asker.id if question.asker else ""
        items = super().read(question).items
        private = [item for item in items if any(words in item.text for words in MAIN.private)]
        return Recall(tuple(item for item in items if item not in private or f"{asker}: " in item.text))


def test_a_memory_that_looks_at_who_asks_can_keep_what_is_private(make_run: Make, suite: list[Case]) -> None:
    assert verdicts(played(make_run, suite, Discreet))["private"] == all_of("right")


def test_neither_yes_nor_no_to_everything_is_right_and_knowing_is(make_run: Make, suite: list[Case]) -> None:
    cases = [case for case in suite if case.id.endswith("--yes_no")]
    asked = {question.text: gold for case in cases for question, gold in case.questions}

    def knows(request: Request) -> str:
        return next("yes" if gold.supports else "no" for text, gold in asked.items() if text in request.messages[-1][1])

    readers: dict[str, tuple[Script, set[str]]] = {
        "no": ("No.", {"denied"}),
        "yes": ("Yes.", {"confirmed", "right"}),  # right about what was to be deleted: it names no value
        "knows": (knows, {"right"}),
    }
    for name, (reply, allowed) in readers.items():
        run = make_run(cases, build=FullHistory, reader=Metered(ScriptedLLM(reply)), folder=name)
        run = replace(run, unit={"rule": "utterance"})
        run_all([run])
        scores = read_scores(score_lexical(run, [ANSWER], 3)[ANSWER.name])
        assert len(scores) == 2 * PROBES
        assert {lines[0]["detail"]["outcome"] for lines in scores.values()} == allowed


def test_a_memory_that_drops_speakers_launders_and_mixes(make_run: Make, suite: list[Case]) -> None:
    found = verdicts(played(make_run, suite, SpeakersDropped))
    assert found["echo"] == all_of("laundered")
    assert found["users"] == all_of("mixed")


def test_what_was_deleted_and_comes_back_is_named(make_run: Make, suite: list[Case]) -> None:
    assert verdicts(played(make_run, suite, Returning))["retract"].keys() == {"returned"}


def test_what_is_too_old_to_be_recalled_says_nothing_about_changes(make_run: Make, suite: list[Case]) -> None:
    found = verdicts(played(make_run, suite, partial(Recency, k=5)))
    for family in ("supersede", "retract", "echo", "private"):
        assert {name.partition(":")[0] for name in found[family]} == {"n/a"}


def test_only_the_read_at_the_end_is_answered(make_run: Make, suite: list[Case]) -> None:
    llm = ScriptedLLM("I do not know.")
    run = make_run(suite[:HOST], reader=Metered(llm))
    run_all([run])
    scored = [question.text for case in suite[:HOST] for question, gold in case.questions if gold.supports != "recall"]
    assert len(llm.requests) == len(scored) == (len(VARIANTS) + 1) * PROBES, "of yes_no two a probe"
    outcomes = Counter(
        each.outcome for case in suite[:HOST] for each in read_predictions(run.case_folder(case.id)).values()
    )
    assert outcomes == {"answered": 8 * PROBES, "recalled": (5 * 3 + 2 + 1 + 4) * PROBES}


class Failing(FullHistory):
    """Fails on the questions about a twin."""

    def read(self, question: Question) -> Recall:
        if question.id.endswith(".4"):
            raise ValueError("no twin")
        return super().read(question)


class Aborting(FullHistory):
    """Gives the reads before a change up."""

    def read(self, question: Question) -> Recall:
        return Recall((), aborted="too long") if question.id.endswith(".1") else super().read(question)


@pytest.mark.parametrize("build", [Failing, Aborting])
def test_a_read_that_fails_is_errored_and_never_a_verdict(
    make_run: Make, suite: list[Case], build: type[MemorySystem]
) -> None:
    run = played(make_run, suite, build)
    for metric in (RECALL, ANSWER):
        found = verdicts(run, metric)
        for family in ("supersede", "echo", "retract", "users", "private", "yes_no"):
            assert found[family] == all_of("errored")


def test_scores_are_kept_until_one_of_their_reads_changes(make_run: Make, suite: list[Case]) -> None:
    run = replace(make_run(suite[:HOST], build=FullHistory), unit={"rule": "utterance"})
    run_all([run])
    path = score_lexical(run, [RECALL], 3)["change_recall"]
    first = path.read_bytes()
    path.write_bytes(first.replace(b'"right"', b'"kept as it was"'))
    assert b"kept as it was" in score_lexical(run, [RECALL], 3)["change_recall"].read_bytes(), (
        "nothing was scored again"
    )
    told = run.case_folder(suite[0].id) / "predictions.jsonl"
    lines = read_lines(told)
    write_lines(told, [{**lines[0], "items": [], "scores": []}, *lines[1:]])
    (again,) = read_scores(score_lexical(run, [RECALL], 3)["change_recall"])[suite[0].id, "01.3"]
    assert again["detail"]["outcome"] == "n/a: not held before", "a read before the change decides, too"
    path.write_bytes(path.read_bytes().replace(b'"right"', b'"kept as it was"'))
    clean = run.case_folder(next(case.id for case in suite if case.id.endswith(CLEAN))) / "predictions.jsonl"
    lines = read_lines(clean)
    clean.write_text("\n".join(clean.read_text().splitlines()[: len(lines) - 1]) + "\n")
    left = read_scores(score_lexical(run, [RECALL], 3)["change_recall"])
    assert b"kept as it was" not in path.read_bytes()
    assert len(left) == PROBES * len(VARIANTS) - 1, "a probe whose clean read was not reached has no line"


@pytest.mark.data
@pytest.mark.parametrize(
    ("build", "right"), [(FullHistory, "010110"), (BM25, "010110"), (SpeakersDropped, "000010"), ("oracle", "111111")]
)
def test_on_locomo_the_controls_are_where_the_trial_had_them(
    make_run: Make, of_locomo: list[Case], build: Any, right: str
) -> None:
    more: dict[str, Any] = {"control": oracle_editor} if build == "oracle" else {}
    found = verdicts(played(make_run, of_locomo, Nothing if more else build, **more))
    shares = [
        (counts["right"] + counts["resolved"]) / counts.total()
        for family, counts in found.items()
        if family != ANSWERED
    ]
    assert [f"{share:g}" for share in shares] == list(right)
    assert all(counts.total() == 16 for counts in found.values())
