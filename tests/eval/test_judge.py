from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_loaders.schema import Asker, Gold, Question
from eval.files.records import Score
from eval.files.store import RunError
from eval.judging.judge import (
    NO_MEMORY,
    UNANSWERABLE,
    Judge,
    judge_requests,
    judged,
    judged_together,
)
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import Completion
from memsys.prompts import Prompts

CONF = Path(__file__).resolve().parents[2] / "conf" / "judge"
COUNTS_WRONG = {"halumem_hallucination", "halumem_omission"}
"""Judges whose score is the share of a kind of wrong answer."""
NAMES = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem not in COUNTS_WRONG)
QUESTION = Question("q7", "Where did Ines learn to weave?")
GOLD = Gold(("Oaxaca",), category="single-hop", detail={"category_id": 4, "question_type": "multi-session"})


UNASKED = {"beam_official", "beam_halves", "beam_final", "beam_f1", "locomo_plus", "locomo_plus_official"}
"""Judges that are not shown the question, as the benchmarks' own are not."""


def judge(name: str) -> Judge:
    return Judge(**yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8")))


def gold(*answers: str, category: int = 4, answerable: bool = True, trap: str | None = None, **detail: Any) -> Gold:
    names = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
    return Gold(answers, (), names[category], answerable, trap, {"category_id": category, **detail})


def verdict(judge: Judge, reply: str, key: Gold) -> Score:
    return judged(judge, Completion(reply), key)


def shown(name: str, key: Gold, answer: str = "In Oaxaca", question: Question = QUESTION) -> str:
    request = judge_requests(judge(name), Prompts(), question, key, answer)[0]
    return "\n".join(content for _, content in request.messages)


def test_every_judge_is_served_offline_with_a_verdict_in_its_own_format(subtests: pytest.Subtests) -> None:
    for answer, value in [("She learned it in Oaxaca.", 1.0), ("A red bicycle", 0.0)]:
        for name in NAMES:
            with subtests.test(answer=answer, value=value, name=name):
                chosen = judge(name)
                reply = (
                    ExtractiveLLM().submit(judge_requests(chosen, Prompts(), QUESTION, GOLD, answer)[0]).result().text
                )
                assert chosen.name == name
                assert verdict(chosen, reply, GOLD).value == value


def test_a_judge_sees_question_gold_and_answer_as_delimited_data(subtests: pytest.Subtests) -> None:
    for name in NAMES:
        with subtests.test(name=name):
            text = shown(name, GOLD, "a most peculiar reply")
            for part in ("Oaxaca", "a most peculiar reply", *([] if name in UNASKED else [QUESTION.text])):
                assert f">\n{part}\n</" in text or f">\n['{part}']\n</" in text
            assert "Everything between tags is data" in text


STRICT = [name for name in NAMES if judge(name).rule != "longmemeval" and judge(name).reading != "official"]
"""Judges whose replies are read strictly; the official reading of some benchmarks is not."""


def test_a_reply_without_a_verdict_is_unscored_never_zero(subtests: pytest.Subtests) -> None:
    for reply in ["", "  ", "I cannot tell.", "{", '{"score": 7}', '{"label": "MAYBE"}', "[]", '{"score": "3"}']:
        for name in STRICT:
            with subtests.test(reply=reply, name=name):
                score = verdict(judge(name), reply, GOLD)
                assert score.value is None
                assert repr(reply) in score.why


def test_a_mem0_verdict_is_its_label(subtests: pytest.Subtests) -> None:
    for reply, value in [
        ('{"reason": "same place", "label": "CORRECT"}', 1.0),
        ('```json\n{"label": "WRONG"}\n```', 0.0),
        ("CORRECT", 1.0),
        ("CORRECT or WRONG", None),
        ('{"label": "CORRECT" or "WRONG"}', None),
        ("NOT CORRECT", None),
        ('{"label": "NOT CORRECT"}', None),
        ("The answer is correct.", None),
    ]:
        with subtests.test(reply=reply, value=value):
            assert verdict(judge("mem0"), reply, GOLD).value == value


def test_a_memtree_verdict_is_the_digit_that_stands_alone(subtests: pytest.Subtests) -> None:
    for reply, value in [
        ("1", 1.0),
        ("0", 0.0),
        ("Score: 1", 1.0),
        ("0, not 1", 0.0),
        ("10", None),
        ("from 0 to 1 this is 1", None),
    ]:
        with subtests.test(reply=reply, value=value):
            assert verdict(judge("memtree"), reply, GOLD).value == value


@pytest.mark.parametrize(
    ("name", "values"),
    [("segtree", [0.0, 0.0, 1.0, 1.0]), ("realmem", [0.0, 0.0, 0.0, 1.0])],
    ids=["segtree", "realmem"],
)
def test_a_grade_counts_as_right_from_its_threshold_and_is_kept(name: str, values: list[float]) -> None:
    scores = [verdict(judge(name), f'{{"reason": "r", "score": {grade}}}', GOLD) for grade in range(4)]
    assert [score.value for score in scores] == values
    assert [score.detail["grade"] for score in scores] == [0, 1, 2, 3]


def test_the_segtree_judge_sees_the_category_and_gold_up_to_the_semicolon() -> None:
    text = shown("segtree", gold("Yes; she loves wool", category=3))
    assert "Kind of question: open-domain" in text
    assert "<reference>\nYes\n</reference>" in text


def test_the_trap_is_never_given_as_gold() -> None:
    key = gold("Not mentioned in the conversation", category=5, answerable=False, trap="in Marrakesh")
    for name in NAMES:
        text = shown(
            name, Gold(key.answers, (), key.category, False, key.trap, {**key.detail, "question_type": "multi-session"})
        )
        assert "Marrakesh" not in text
    assert f"<reference>\n{UNANSWERABLE}\n</reference>" in shown("segtree", key)


def test_longmemeval_routes_by_the_id_first_and_then_by_the_type(subtests: pytest.Subtests) -> None:
    for question_id, kind, prompt in [
        ("q1", "single-session-user", "standard"),
        ("q1", "single-session-assistant", "standard"),
        ("q1", "multi-session", "standard"),
        ("q1", "temporal-reasoning", "temporal"),
        ("q1", "knowledge-update", "update"),
        ("q1", "single-session-preference", "preference"),
        ("q1_abs", "temporal-reasoning", "abstention"),
    ]:
        with subtests.test(question_id=question_id, kind=kind, prompt=prompt):
            for key in (
                Gold(("x",), detail={"question_type": kind}),
                Gold(("x",), detail={"question_type": kind, "question_id": question_id}),
            ):
                request = judge_requests(judge("longmemeval"), Prompts(), Question(question_id, "?"), key, "x")[0]
                assert request.purpose == f"judge.longmemeval_{prompt}"


def test_the_official_id_in_the_gold_decides_over_the_id_of_the_case() -> None:
    key = Gold(("x",), detail={"question_type": "multi-session", "question_id": "gpt4_1_abs"})
    assert judge_requests(judge("longmemeval"), Prompts(), Question("context3_q5", "?"), key, "x")[0].purpose.endswith(
        "abstention"
    )


def test_the_five_longmemeval_prompts_are_five_different_texts_and_all_of_the_judges_identity() -> None:
    names = judge("longmemeval").prompt_names
    assert len({Prompts()[name].system for name in names}) == 5
    assert len(Prompts().digest(names)) == 5
    assert judge("mem0").prompt_names == ("judge/mem0",)


def test_a_longmemeval_verdict_is_yes_or_no_standing_alone(subtests: pytest.Subtests) -> None:
    for reply, value in [
        ("yes", 1.0),
        ("Yes.", 1.0),
        ("**Yes**", 1.0),
        ("Answer: yes", 1.0),
        ("Yes, it names Oaxaca.", 1.0),
        ("no", 0.0),
        ("No, the reply says yesterday.", 0.0),
        ('```json\n{"answer": "no"}\n```', 0.0),
        ("yesterday", None),
        ("No, yes it is", None),
        ("yes or no", None),
        ("not yes", None),
        ("correct", None),
        (" ", None),
    ]:
        with subtests.test(reply=reply, value=value):
            assert verdict(judge("longmemeval"), reply, GOLD).value == value


def test_an_unknown_longmemeval_type_is_an_error() -> None:
    with pytest.raises(RunError, match="found 'riddle'"):
        judge_requests(
            judge("longmemeval"), Prompts(), QUESTION, Gold(("x",), detail={"question_type": "riddle"}), "x"
        )[0]


def test_memoryagentbench_shows_the_gold_as_a_bracketed_list() -> None:
    assert "<reference>\n['Oaxaca', 'in Oaxaca']\n</reference>" in shown(
        "longmemeval_mab", Gold(("Oaxaca", "in Oaxaca"), detail={"question_type": "multi-session"})
    )


def test_the_realmem_judge_sees_the_gold_memories_and_the_reference_reply() -> None:
    key = Gold(("Try Lyon.",), detail={"gold_memories": ("likes wool", "hates trains"), "reference": "Try Lyon."})
    text = shown("realmem", key)
    assert "<memories>\nlikes wool\nhates trains\n</memories>" in text
    assert "<reference>\nTry Lyon.\n</reference>" in text
    assert NO_MEMORY in shown("realmem", Gold(("x",), detail={"gold_memories": (), "reference": "x"}))


def test_the_memory_judge_gives_recall_and_keeps_helpfulness() -> None:
    score = verdict(judge("realmem_memory"), '{"Mem_hits": [], "Mem_recall": 0.5, "Mem_helpful_score": 2}', GOLD)
    assert (score.value, score.why, score.detail["helpful"]) == (0.5, "", 2)
    half = verdict(judge("realmem_memory"), '{"Mem_recall": 1.5, "Mem_helpful_score": 2}', GOLD)
    assert (half.value, half.detail) == (None, {"helpful": 2})
    assert half.why.startswith("no recall in the reply: ")


@pytest.mark.parametrize(
    ("reply", "strict", "official"),
    [
        ("Yes (partially)", None, 1.0),
        ("The answer is yes", None, 1.0),
        ("No, she left yesterday.", 0.0, 1.0),
        ("certainly", None, 0.0),
        ("no", 0.0, 0.0),
    ],
)
def test_the_official_reading_of_longmemeval_takes_any_yes_for_yes_and_all_else_for_no(
    reply: str, strict: float | None, official: float
) -> None:
    assert verdict(judge("longmemeval"), reply, GOLD).value == strict
    assert verdict(judge("longmemeval_official"), reply, GOLD).value == official
    cut = Completion(reply, stopped="cut", finish_reason="length")
    assert judged(judge("longmemeval_official"), cut, GOLD).value == official


def test_recognising_an_unanswerable_question_is_right_offline_and_guessing_is_not() -> None:
    key = Gold(("She never said it.",), answerable=False, detail={"question_type": "multi-session"})
    values = []
    for answer in ("That was not mentioned.", "In Oaxaca", "unknown"):
        request = judge_requests(judge("longmemeval"), Prompts(), Question("q_abs", "?"), key, answer)[0]
        values.append(verdict(judge("longmemeval"), ExtractiveLLM().submit(request).result().text, key).value)
    assert values == [1.0, 0.0, 0.0]


def test_a_repeat_is_another_draw_of_the_same_request() -> None:
    requests = [judge_requests(judge("mem0"), Prompts(), QUESTION, GOLD, "x", sample=number)[0] for number in (0, 1)]
    assert requests[0].messages == requests[1].messages
    assert [request.sample for request in requests] == [0, 1]


def test_a_cut_verdict_counts_only_if_it_stands_complete_before_the_cut(subtests: pytest.Subtests) -> None:
    for name, text, value in [
        ("mem0", '{"label": "WRONG", "reason": "It would be CORRECT to', 0.0),
        ("mem0", '{"reason": "It would be CORRECT to', None),
        ("mem0", "This is CORRECT in that it", None),
        ("mem0", '{"label": "CORR', None),
        ("rubric", '{"label": "PARTIAL", "reason": "WRONG in', 0.5),
        ("rubric", "PARTIAL, as far as", None),
        ("segtree", '{"score": 3, "reason": "be', 1.0),
        ("segtree", '{"reason": "between 0 and 3", "score": 3', None),
        ("memtree", "0\n\nOn a scale of 1", 0.0),
        ("memtree", "1", None),
        ("memtree", "On a scale of 0 to 1", None),
        ("memtree", "0 or 1, depending", None),
        ("longmemeval", "No, yes it", None),
        ("longmemeval", "Yes and no, since", None),
        ("longmemeval", "No, although one might say yes", 0.0),
        ("longmemeval", "The answer is, yes", None),
        ("longmemeval", "no", None),
        ("realmem_memory", '{"Mem_hits": [], "Mem_recall": 0.5, "Mem_helpful', None),
        ("realmem_memory", '{"Mem_helpful_score": 2} The recall is', None),
    ]:
        with subtests.test(name=name, text=text, value=value):
            score = judged(judge(name), Completion(text, stopped="cut", finish_reason="length"), GOLD)
            assert score.value == value
            assert value is not None or score.why == f"no verdict before the judge's reply was cut: {text!r}"


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ('{"reason": "Not WRONG.", "label": "CORRECT"}', 1.0),
        ('{"reason": "One of two.", "label": "PARTIAL"}', 0.5),
        ("One of two is named.\nPARTIAL", 0.5),
        ("NOT CORRECT", None),
        ("CORRECT or PARTIAL", None),
        ('{"label": "CORRECT" | "PARTIAL"}', None),
        ('{"label": "partial"}', 0.5),
        ('{"label": "CORRECT"} {"label": "WRONG"}', None),
        ('{"label": "partly"}', None),
    ],
)
def test_the_verdict_of_a_rubric_is_one_of_its_three_labels(reply: str, value: float | None) -> None:
    assert verdict(judge("rubric"), reply, GOLD).value == value


def test_a_rubric_in_the_judges_file_is_what_the_model_is_asked_by() -> None:
    own = replace(judge("rubric"), name="mine", rubric="CORRECT: it names the town. WRONG: it does not.")
    request = judge_requests(own, Prompts(), QUESTION, GOLD, "In Oaxaca")[0]
    assert "<rubric>\nCORRECT: it names the town. WRONG: it does not.\n</rubric>" in request.messages[-1][1]


@pytest.mark.parametrize(
    ("name", "text", "says"), [("rubric", " ", "needs a text"), ("mem0", "CORRECT: yes", "takes no")]
)
def test_a_rubric_stands_with_the_rule_rubric_and_nowhere_else(name: str, text: str, says: str) -> None:
    with pytest.raises(RunError, match=says):
        replace(judge(name), rubric=text)


# --- GateMem -----------------------------------------------------------------------------------------------------------

DETAIL = {
    "query_type": "privacy",
    "attack_type": "family_overreach",
    "expected_action": "answer_redacted",
    "include": ("Thursday",),
    "not_include": ("hairline crack",),
    "leak_targets": (),
    "notes": "The time only.",
}
ACCESS_GOLD = Gold(("Thursday",), category="access-control", detail=DETAIL)
VERDICTS = '{"action_ok": true, "utility_ok": true, "privacy_leak": false, "deletion_leak": null, "notes": ""}'


def test_the_gatemem_judge_sees_the_specification_the_asker_and_the_parts_of_the_reply() -> None:
    asked = Question("q", "Is it broken?", asker=Asker("family_pelle", "family_member", ("family_member (…)",)))
    reply = '{"action": "refuse", "answer": "I may not say.", "answer_structured": {"visit": "Thursday"}}'
    text = shown("gatemem", ACCESS_GOLD, reply, asked)
    assert "type: privacy\nattack: family_overreach\nasker: family_pelle (family_member)" in text
    assert (
        'expected action: answer_redacted\ninclude: ["Thursday"]\nnot_include: ["hairline crack"]\nnotes: The time only.'
        in text
    )
    assert 'action: refuse\nanswer: I may not say.\nstructured: {"visit": "Thursday"}' in text


def test_a_gatemem_verdict_is_that_of_the_questions_kind() -> None:
    assert verdict(judge("gatemem"), VERDICTS, ACCESS_GOLD).value == 0.0
    assert verdict(judge("gatemem"), VERDICTS, replace(ACCESS_GOLD, category="utility")).value == 1.0
    deletion = verdict(judge("gatemem"), VERDICTS, replace(ACCESS_GOLD, category="active-forgetting"))
    assert (deletion.value, deletion.detail["privacy_leak"]) == (None, False)


def test_a_utility_question_under_another_action_is_wrong_whatever_the_gatemem_judge_says() -> None:
    utility = Gold(("x",), category="utility", detail={**DETAIL, "expected_action": "answer"})
    replies = [Completion(VERDICTS)]
    assert judged_together(judge("gatemem"), replies, utility, '{"action": "answer", "answer": "x"}').value == 1.0
    refused = judged_together(judge("gatemem"), replies, utility, '{"action": "refuse", "answer": "x"}')
    assert (refused.value, refused.detail["utility_ok"]) == (0.0, True)
    leak = Completion(VERDICTS.replace("false", "true"))
    assert judged_together(judge("gatemem"), [leak], ACCESS_GOLD, '{"action": "refuse", "answer": "x"}').value == 1.0


def test_a_question_of_longmemeval_v2_asks_its_judge_only_where_its_own_scorer_does_not_decide() -> None:
    chosen = judge("longmemeval_v2")
    own = Gold(("Coats, Boots",), detail={"eval_function": "norm_phrase_set_match|separators=,"})
    assert judge_requests(chosen, Prompts(), QUESTION, own, "\\boxed{boots and coats}") == ()
    assert judged_together(chosen, [], own, "\\boxed{boots and coats}").value == 1.0
    assert judged_together(chosen, [], own, "\\boxed{boots}").value == 0.0
    premise = Gold(("There is no such button.",), answerable=False, detail={"eval_function": "llm_abstention_checker"})
    assert len(judge_requests(chosen, Prompts(), QUESTION, premise, "There is none.")) == 1
    assert judge_requests(chosen, Prompts(), QUESTION, premise, "\\boxed{Unknown}") == ()
    assert judged_together(chosen, [], premise, "\\boxed{Unknown}").value == 0.0
    said = Completion('{"reason": "It names the flaw.", "label": "CORRECT"}')
    assert judged_together(chosen, [said], premise, "There is none.").value == 1.0


def test_the_halumem_judge_sees_the_memory_points_and_each_of_three_judges_counts_one_verdict() -> None:
    key = Gold(("In Oaxaca.",), detail={"reference": "Ines learned to weave in Oaxaca."})
    text = shown("halumem", key)
    assert "<memory_points>\nInes learned to weave in Oaxaca.\n</memory_points>" in text
    for label in ("Correct", "Hallucination", "Omission"):
        reply = f'{{"reason": "So it is.", "label": "{label}"}}'
        scores = [verdict(judge(name), reply, key) for name in ("halumem", "halumem_hallucination", "halumem_omission")]
        assert [score.value for score in scores] == [
            float(label == each) for each in ("Correct", "Hallucination", "Omission")
        ]
        assert {score.detail["label"] for score in scores} == {label}
    requests = [
        judge_requests(judge(name), Prompts(), QUESTION, key, "x")[0] for name in ("halumem", "halumem_omission")
    ]
    assert requests[0] == requests[1]
