"""Memories that lose their points at exactly one step, through real run files: each loss shows in that bar and in no other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from data_loaders.schema import Case, Gold, Question, Session, Turn, Unit
from eval.analysis.losses import losses_of, waterfall
from eval.files.store import write_lines
from eval.judging.score_files import mean_values
from eval.running.loop import run_all
from eval.running.run import Run
from memsys.interface import Item, MemorySystem, NodeView, Recall, unit_item

pytestmark = pytest.mark.slow

SYLLABLES = "ba ce di fo gu ka le mi no pu ra se ti vo zu wy".split()
TURNS, SAID, ASKED = 80, 12, 6
"""Turns of a history, words of a turn, questions about a history."""


def invented(case_id: str, seed: int) -> Case:
    """A history of invented words; a question names three words of a turn and asks for a fourth."""
    rng = np.random.default_rng(seed)
    words = [
        "".join(SYLLABLES[number >> shift & 15] for shift in (0, 4, 8, 12))
        for number in rng.permutation(1 << 16)[: TURNS * SAID]
    ]
    turns = tuple(
        Turn(f"t{number}", ("Ann", "Ben")[number % 2], " ".join(words[number * SAID :][:SAID]))
        for number in range(TURNS)
    )
    asked = []
    for number in range(ASKED):
        turn = turns[2 + 12 * number]
        about = turn.text.split()
        question = Question(f"q{number}", f"What goes with {about[0]} {about[1]} {about[2]}?")
        asked.append((question, Gold((about[7],), (turn.id,), "invented")))
    return Case(case_id, ("Ann", "Ben"), (Session("s", turns),), tuple(asked), case_id)


CASES = [invented(f"case-{seed}", seed) for seed in range(5)]


class Lossy(MemorySystem):
    """Keeps units as they are; its variants lose the evidence, which they recognise by the words of the question, at one step."""

    def __init__(self) -> None:
        self.kept: list[Item] = []

    def write(self, unit: Unit) -> None:
        self.kept.append(unit_item(unit, 0.5))

    def read(self, question: Question) -> Recall:
        return Recall(tuple(item for item in self.kept if evidence_of(question, item)))

    def nodes(self) -> Iterator[NodeView]:
        return (NodeView(item.id, (), 0, "leaf", item.text, None, item.sources) for item in self.kept)


def evidence_of(question: Question, item: Item) -> bool:
    return question.text.split()[3] in re.findall(r"\w+", item.text)


class DropsAtWrite(Lossy):
    """Never stores a turn that a question is about."""

    def write(self, unit: Unit) -> None:
        if int(unit.turns[0].id[1:]) % 12 != 2:
            super().write(unit)

    def read(self, question: Question) -> Recall:
        return Recall(tuple(self.kept[:3]))


class RecallsOthers(Lossy):
    """Stores the evidence, and recalls three other turns."""

    def read(self, question: Question) -> Recall:
        return Recall(tuple(item for item in self.kept if not evidence_of(question, item))[:3])


class RanksItLast(Lossy):
    """Recalls four turns, the evidence with the lowest score."""

    def read(self, question: Question) -> Recall:
        (evidence,) = super().read(question).items
        others = [item for item in self.kept if item is not evidence][:3]
        return Recall((replace(evidence, score=0.1), *others))


class AddsDistractors(Lossy):
    """Recalls the evidence among ten others."""

    def read(self, question: Question) -> Recall:
        return Recall((*super().read(question).items, *self.kept[40:50]))


class StoresFacts(Lossy):
    """Stores a sentence on each turn in words of its own, with the name, the answer's word and two others."""

    def write(self, unit: Unit) -> None:
        (turn,) = unit.turns
        words = turn.text.split()
        text = f"It was {turn.speaker} who once explained {words[0]}, namely that {words[7]} came before {words[4]}"
        self.kept.append(Item(unit.id, text, 0.5, unit.turn_ids))


class SortsWords(Lossy):
    """Stores nothing but the sorted words of all turns, as the text of all of them."""

    def write(self, unit: Unit) -> None:
        before = self.kept[0] if self.kept else Item("all", "", 0.5, ())
        text = " ".join(sorted({*before.text.split(), *unit.text.split()}))
        self.kept = [replace(before, text=text, sources=(*before.sources, *unit.turn_ids))]

    def read(self, question: Question) -> Recall:
        return Recall(tuple(self.kept))


class RecallsOneLongItem(Lossy):
    """Recalls all turns as one text, the evidence at its end."""

    def read(self, question: Question) -> Recall:
        texts = sorted(self.kept, key=lambda item: evidence_of(question, item))
        text, sources = "\n".join(item.text for item in texts), tuple(item.id for item in texts)
        return Recall((Item("long", text, 1.0, sources),))


class ShowsNoNodes(DropsAtWrite):
    """Loses the evidence at write, and does not show what it holds."""

    nodes = MemorySystem.nodes


class Empty(Lossy):
    """Stores nothing."""

    def write(self, unit: Unit) -> None:
        pass


def bars(memory: type[Lossy], make_run: Callable[..., Run], tmp_path: Path, **reader: object) -> dict[str, float]:
    """The waterfall of a memory all of whose answers are wrong, beside a reader that answers all from the evidence."""
    run = make_run(CASES, build=partial(memory))
    run = replace(run, unit={"rule": "utterance"}, reader=replace(run.reader, **reader))
    run_all([run])
    scores = [tmp_path / f"{name}.jsonl" for name in ("wrong", "right")]
    for value, path in enumerate(scores):
        write_lines(path, lines_of(CASES, [float(value)] * (ASKED * len(CASES))))
    losses = list(losses_of(run.folder, *map(mean_values, scores), CASES, asdict(run.reader)))
    assert len(losses) == ASKED * len(CASES)
    return {step: round(mean.mean, 3) for step, mean in waterfall(losses).steps.items()}


def lines_of(cases: Sequence[Case], values: Sequence[float]) -> Iterator[dict[str, object]]:
    keys = [(case.id, question.id) for case in cases for question, _ in case.questions]
    for (case, question), value in zip(keys, values, strict=True):
        yield {"case_id": case, "question_id": question, "repeat": 0, "value": value}


@pytest.mark.parametrize(
    ("memory", "step", "reader"),
    [
        (DropsAtWrite, "not stored", {}),
        (RecallsOthers, "not found", {}),
        (RanksItLast, "cut by the budget", {"max_context_tokens": 150}),
        (AddsDistractors, "misread", {}),
        (StoresFacts, "misread", {}),
        (SortsWords, "not stored", {}),
        (RecallsOneLongItem, "cut by the budget", {"max_context_tokens": 400}),
        (RecallsOneLongItem, "cut by the budget", {"max_context_tokens": 400, "fill": True}),
        (ShowsNoNodes, "unknown", {}),
        (Empty, "not stored", {}),
    ],
)
def test_a_memory_that_loses_at_one_step_shows_it_in_exactly_that_bar(
    memory: type[Lossy], step: str, reader: dict[str, object], make_run: Callable[..., Run], tmp_path: Path
) -> None:
    assert bars(memory, make_run, tmp_path, **reader) == {step: 1.0}


def test_facts_that_are_stored_and_not_recalled_are_lost_in_the_search(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    class RecallsOtherFacts(StoresFacts, RecallsOthers):
        pass

    assert bars(RecallsOtherFacts, make_run, tmp_path) == {"not found": 1.0}


def test_answers_that_flip_between_the_runs_are_not_the_memory_s_loss(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    """The memory recalls exactly the evidence; the answers of both runs are drawn with the same probability."""
    cases = [replace(invented(f"case-{seed}", seed), cluster=f"history-{seed % 20}") for seed in range(40)]
    run = replace(make_run(cases, build=Lossy), unit={"rule": "utterance"})
    run_all([run])
    rng, n = np.random.default_rng(3), ASKED * len(cases)
    sure = rng.random(n) < 0.54
    for name in ("ours", "evidence"):
        values = (sure ^ (rng.random(n) < 0.08)).astype(float).tolist()
        write_lines(tmp_path / f"{name}.jsonl", lines_of(cases, values))
    fall = waterfall(
        list(
            losses_of(
                run.folder,
                *(mean_values(tmp_path / f"{name}.jsonl") for name in ("ours", "evidence")),
                cases,
                asdict(run.reader),
            )
        )
    )
    assert list(fall.steps) == ["reader", "misread"]
    assert fall.score.clusters == 20, "two cases are parts of one history"
    flips = fall.steps["misread"].by_case
    assert flips is not None
    assert flips.low <= 0.0 <= flips.high
    assert abs(fall.steps["misread"].mean) < 0.03, "a memory that recalls the evidence loses what the reader loses"
    assert fall.score.mean + sum(mean.mean for mean in fall.steps.values()) == pytest.approx(1.0)
