"""Having judges grade probes: order of the prompt, repeats, failed calls, and judges that the data do not suit."""

from __future__ import annotations

import pytest
from scripted import Reply, ScriptedLLM

from data_loaders.schema import Case, Gold, Question
from eval.judging.judge import Judge
from eval.judging.judge_probes import AnswerFirst, Probe, probes, spread, verdicts, why_not
from eval.judging.score import Judging
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import PromptError, Prompts
from scripts.setup.options import load_option, options

MEM0 = Judge("mem0", "Mem0", "label", "judge/mem0")
CASE = Case(
    "c1",
    ("Ines", "Ruben"),
    (),
    tuple((Question(f"q{n}", f"What came {n}th?"), Gold((each,))) for n, each in enumerate(("bread", "tin", "oak"))),
)
MADE = list(probes([CASE]))


def test_every_judge_prompt_of_the_tree_can_show_the_answer_before_the_reference() -> None:
    prompts = Prompts()
    for name in options("judge"):
        judge = Judge(**load_option("judge", name))
        for prompt in judge.prompt_names:
            usual, turned = prompts[prompt].user, AnswerFirst(prompts)[prompt].user
            assert usual.index("$gold") < usual.index("$answer")
            assert turned.index("$answer") < turned.index("$gold")
            assert sorted(usual) == sorted(turned), "nothing is lost"


def test_a_prompt_of_a_user_without_blocks_is_refused_by_name() -> None:
    with pytest.raises(PromptError, match="judge/triplet"):
        AnswerFirst(Prompts())["judge/triplet"]


def test_a_judge_that_believes_what_stands_first_and_a_failed_call_are_seen(subtests: pytest.Subtests) -> None:
    def reply(request: Request) -> Reply:
        text = request.messages[-1][1]
        if "tin" in text and request.sample == 1:
            return ModelError("down")
        return '{"label": "CORRECT"}' if text.index("<answer>") < text.index("<reference>") else '{"label": "WRONG"}'

    model = ScriptedLLM(reply)
    graded = verdicts(MADE, Judging(MEM0, model, "m", Prompts(), repeats=2), answer_first=True)
    assert len(model.requests) == 3 * len(MADE), "each probe is asked once a repeat, and once turned"
    assert {verdict.answer_first for verdict in graded} == {1.0}
    for probe, verdict in zip(MADE, graded, strict=True):
        failed = "tin" in f"{probe.answer} {probe.gold.answers[0]}"
        assert verdict.values == (0.0, None if failed else 0.0)
        assert verdict.question == (probe.case_id, probe.question.id)
    with subtests.test("in brief"):
        brief = verdicts(MADE[:4], Judging(MEM0, ScriptedLLM(reply), "m", Prompts()))
        assert {verdict.answer_first for verdict in brief} == {None}


def test_a_limit_takes_probes_of_every_kind_spread_over_the_data() -> None:
    chosen = spread(MADE, 2)
    assert {probe.kind for probe in chosen} == {probe.kind for probe in MADE}
    assert {probe.question.id for probe in chosen if probe.kind == "empty"} == {"q0", "q1"}


def test_judges_whose_question_the_data_do_not_answer_say_why() -> None:
    reasons = {name: why_not(Judge(**load_option("judge", name)), Prompts(), MADE) for name in options("judge")}
    assert not any(reasons[name] for name in ("dmr", "mem0", "memtree", "rubric", "segtree"))
    assert all(
        reasons[name] for name in ("gatemem", "beam", "realmem", "realmem_memory", "locomo_plus")
    )  # a judge of one's own may do either
    assert "rubric" in reasons["beam"]
    assert "recalled texts" in reasons["realmem_memory"]
    plus = [
        Probe("c", "c", Question("q", "?"), Gold(("a cue",), detail={"time_gap": "a week"}), "empty", False, ""),
    ]
    assert not why_not(Judge(**load_option("judge", "locomo_plus")), Prompts(), plus)
