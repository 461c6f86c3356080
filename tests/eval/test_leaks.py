"""The search for gold in what a memory receives: a leak on any way is found and named, and clean runs are looked into everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from data_loaders.raw import as_lazy
from data_loaders.schema import Case, Gold, Question, Session, Turn
from eval.analysis import leaks
from eval.analysis.leaks import MARK, Watch, check, marked, watched
from eval.files.store import RunError
from eval.running.reader import Reader
from eval.running.run import Run, Services
from memsys.embed import HashingEmbedder
from memsys.interface import Recall
from memsys.llm.meter import Metered
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.prompts import Prompts
from memsys.systems.bm25 import BM25
from scripts.assembly.runs import builder
from scripts.command import verb
from scripts.setup.options import load_option

main = partial(verb, "leaks")

TURNS = tuple(Turn(f"t{number}", "Ines", f"I planted {what} in May.") for number, what in enumerate(("leek", "kale")))
GOLD = Gold(("leek",), ("t0",), "garden", trap="kale", detail={"why": "she said so"}, groups=("small",))
CASE = Case("c1", ("Ines",), (Session("s1", TURNS),), ((Question("q1", "What did Ines plant?"), GOLD),))


def a_run(folder: Path, case: Case = CASE, memory: str = "dense") -> Run:
    model = Metered(ExtractiveLLM())
    services = Services(model, model, model, HashingEmbedder(64), Prompts())
    build = builder(load_option("memory", memory)["build"])
    cases = as_lazy([case])
    return Run(
        memory,
        folder,
        cases,
        cases.sizes,
        build,
        Reader(**load_option("reader", "mem0")),
        {"rule": "utterance"},
        services,
    )


def test_every_text_of_the_gold_is_marked_and_nothing_else_changes() -> None:
    case, count = marked(CASE)
    ((question, gold),) = case.questions
    assert (question, case.sessions, gold.answerable) == (CASE.questions[0][0], CASE.sessions, True)
    texts = [*gold.answers, *gold.evidence, gold.category, gold.trap, *gold.detail.values(), *gold.groups]
    assert all(str(text).startswith(MARK) for text in texts)
    assert len(set(texts)) == len(texts) == count


def test_a_clean_run_is_looked_into_on_every_way(tmp_path: Path) -> None:
    found = check(a_run(tmp_path), threads=1)
    assert not found.leaks
    assert found.looked["written"] == 3, "two units and the end of a session"
    assert (found.looked["read"], found.looked["asked"], found.looked["constructed"]) == (1, 1, 1)
    assert found.looked["embedded"] >= 3, "both units and the question"
    assert found.looked["files"] >= 3


def leak_into_the_question(case: Case) -> Case:
    return replace(case, questions=tuple((replace(q, instruction=f"Not {g.trap}"), g) for q, g in case.questions))


def leak_into_the_history(case: Case) -> Case:
    gold = case.questions[0][1]
    said = replace(TURNS[0], text=f"{TURNS[0].text} ({gold.evidence[0].upper()})")
    return replace(case, sessions=(Session("s1", (said, TURNS[1])),))


@pytest.mark.parametrize(
    ("leak", "ways", "field"),
    [
        (leak_into_the_question, {"read", "asked"}, "trap"),
        (leak_into_the_history, {"written", "embedded", "asked", "files"}, "EVIDENCE0"),
    ],
)
def test_a_loader_that_puts_gold_where_a_memory_sees_it_is_named_by_way_and_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leak: Callable[[Case], Case], ways: set[str], field: str
) -> None:
    monkeypatch.setattr(leaks, "marked", lambda case: (leak(marked(case)[0]), 1))
    found = check(a_run(tmp_path), threads=1)
    assert {each.partition(":")[0] for each in found.leaks} >= ways
    assert all(each.endswith(f".{field}") for each in found.leaks)


def test_a_memory_is_handed_units_and_questions_and_nothing_that_could_carry_gold() -> None:
    @dataclass(frozen=True, slots=True)
    class Annotated(Question):
        """A question whose text shows nothing of what else it has."""

    watch = Watch()
    memory = watched(builder(load_option("memory", "recency")["build"]), watch)()
    memory.read(Annotated("q1", "What?"))
    assert watch.leaks == {"read: a Annotated in place of a Question"}


def test_a_control_that_is_given_the_answer_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is a control"):
        check(replace(a_run(tmp_path), control=lambda case: pytest.fail("built")))


class Unreadable(BM25):
    """Its read fails."""

    def read(self, question: Question) -> Recall:
        raise LookupError("no index")


def test_a_search_that_errors_cut_short_finds_no_run_clean(tmp_path: Path) -> None:
    run = replace(a_run(tmp_path / "clean"), build=partial(Unreadable))
    with pytest.raises(
        RunError, match=r"^1 of 1 questions ended in an error, so the search is incomplete: read: LookupError"
    ):
        check(run, threads=1)
    leaking = leak_into_the_question(marked(CASE)[0])
    cases = as_lazy([leaking])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(leaks, "marked", lambda case: (case, 1))
        found = check(replace(run, folder=tmp_path / "leaking", cases=cases, sizes=cases.sizes), threads=1)
    assert {each.partition(":")[0] for each in found.leaks} == {"read"}


@pytest.mark.slow
def test_the_command_checks_a_memory_of_one_s_own_and_says_what_it_looked_into(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["memory=memtree", "dataset=locomo", "data.size=6"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"MemTree on LoCoMo: \d+ marks in the gold; looked into \d+ asked", said)
    assert "No gold reaches the memory" in said
    assert main(["memory=gold_evidence", "dataset=locomo", "data.size=6"]) == 2
    assert "is a control" in capsys.readouterr().err
