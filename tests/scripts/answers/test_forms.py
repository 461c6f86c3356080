# ruff: noqa: E501
"""Every form in which answers are published is read by its description; what is irregular is counted, and nothing stops with a traceback."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from data_loaders.schema import DataError
from eval.store import RunError
from scripts.answers.declared import forms, read_declared
from scripts.answers.manifest import claims
from scripts.answers.matching import Asked, Questions, match
from scripts.answers.parsing import Parsed, parse, parsed
from scripts.answers.records import Answer
from scripts.answers.verdicts import Scale, verdict_of

Q, G, A = "Where does Ada keep bees?", "in Lund", "She keeps them in Lund"
LME = {"question_id": "q1", "hypothesis": A}
SAMPLES: Mapping[str, tuple[Any, dict[str, str]]] = {
    "ours": ([{"case_id": "a", "question_id": "q1", "answer": A, "outcome": "answered"}], {}),
    "flat": ([{"sample_id": "0", "question": Q, "gold": G, "pred": A, "category": 1, "correct": True}], {}),
    "flat_gold_in_answer": ({"detailed_results": [{"question": Q, "answer": G, "response": A, "llm_score": 1}]}, {}),
    "flat_percent": ({"per_question": [{"question": Q, "gold_answer": G, "generated_answer": A, "judge_score": 100}]}, {}),
    "flat_longmemeval": ({"per_question": [{**LME, "ground_truth": G, "question": Q, "correct": True}]}, {}),
    "extract": ([{"conversation": "0", "question": Q, "gold": G, "answer": A, "verdicts": [1.0], "tokens": 7}], {}),
    "mem0": ({"0": [{"question": Q, "answer": G, "response": A, "category": "1", "llm_score": 1, "f1_score": 0.5}]}, {}),
    "users": ({"x_user_0": [{"question": Q, "golden_answer": G, "answer": A, "llm_judgments": {"j1": True, "j2": True}}]}, {}),
    "keyed": ({"0_0": {"qa_question": Q, "qa_answer": G, "qa_response": A, "qa_category": 1, "labels": []}}, {}),
    "cutoffs": (
        {"evaluations": [
            {"question": Q, "conversation_idx": 0, "ground_truth_answer": G, "cutoff_results": {"top_5": {"judgment": "PASS", "reason": f"Generated answer: {A}"}}},
            {"question": Q, "conversation_idx": 0},
        ]},
        {},
    ),
    "memorybench": (
        {"summary": {"accuracy": 1}, "evaluations": [{"questionId": "0-q3", "questionType": "multi-hop", "question": Q, "groundTruth": G, "hypothesis": A, "score": 1, "label": "correct", "searchDurationMs": 7}]},
        {},
    ),
    "longmemeval": ([{**LME, "autoeval_label": {"model": "m", "label": True}}], {}),
    "qa_results": ({"results": [{"conv_idx": 0, "qa_results": [{"question": Q, "gold": G, "response": A, "label": "CORRECT"}]}]}, {}),
    "conversations": (
        {"conversations": [{"conversationId": "c_1", "results": [{"question": Q, "expectedAnswer": G, "generatedAnswer": A, "evaluationResult": "CORRECT"}]}]},
        {},
    ),
    "sample_results": (
        {"sample_results": [{"sample_id": "locomo10_1", "qa_results": [{"question": Q, "expected": G, "predicted": A, "metrics": {"f1": 1, "llm_score": 1}}]}]},
        {},
    ),
    "detailed_results": (
        {"item_results": [{"item_id": "0", "metrics": {"detailed_results": [{"question": Q, "correct_answer": G, "predicted_answer": A, "is_correct": True}]}}]},
        {},
    ),
    "one_file_each": ([{"question": Q, "ground_truth": G, "predicted": A, "score": 1}], {}),
    "one_file_each_named": ({"conversation_id": "0", "results": [{"question": Q, "gold": G, "response": A, "label": "CORRECT", "cat": 1}]}, {}),
    "conditions": (
        {"a": {"predictions": [{"qa_id": "0_3", "question": Q, "gold": G, "prediction": A, "judge_correct": True}]}, "b": {"predictions": []}},
        {"condition": "a"},
    ),
    "users_judged": ([{"user_id": "u_0", "question": Q, "answer": A, "judge_result": {"label": "CORRECT", "score": 1.0}}], {}),
    "locomo_plus": (
        [
            {"question_input": Q, "ground_truth": G, "prediction": A, "category": "temporal", "judge_score": 1, "judge_label": "correct"},
            {"question_input": "other", "prediction": A, "category": "Cognitive", "judge_score": 0},
        ],
        {},
    ),
    "locomo_output": ([{"sample_id": "0", "qa": [{"question": Q, "answer": G, "category": 1, "m/2.5_prediction": A, "m/2.5_f1": 1.0}]}], {}),
    "halumem": ({"question_answering_records": [{"question": Q, "answer": G, "system_response": A, "result_type": "Correct", "uuid": "0"}]}, {}),
    "paired": ({"recall": [{"question": Q, "answer": G, "llm_response": A}]}, {}),
}  # fmt: skip
EVALUATED = {"recall": [{"llm_judge_score": 1.0}]}


def files(form: str, content: Any) -> list[Parsed]:
    name = {"paired": "answers_1_x.json", "one_file_each": "result_1.json"}.get(form, "f.json")
    more = [Parsed("evaluation_1_x.json", EVALUATED, "")] if form == "paired" else []
    return [Parsed(name, content, ""), *more]


def test_every_form_has_a_sample() -> None:
    assert SAMPLES.keys() == forms().keys()
    manual = Path(__file__).parents[3] / "CLAIMS.md"
    assert f"describes {len(forms())} forms" in manual.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", SAMPLES)
def test_a_form_reads_answer_verdict_and_conversation(form: str) -> None:
    content, options = SAMPLES[form]
    contents = read_declared(files(form, content), forms()[form], options)
    (answer,) = contents.answers
    assert answer.answer == A
    assert answer.question == Q or answer.question_id == "q1"
    assert answer.gold in (G, None)
    assert answer.grade("judge") == (None if form in ("ours", "locomo_output") else 1.0)
    assert answer.position in (0, 1, None)
    assert (answer.position == 0) == (form not in {"flat_gold_in_answer", "flat_percent", "flat_longmemeval", "keyed", "longmemeval", "locomo_plus", "paired", "ours"})  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "scale", "value", "state"),
    [
        (True, Scale(), 1.0, "judged"),
        (0, Scale(), 0.0, "judged"),
        (75, Scale(scale=100), 75.0, "judged"),
        ("PARTIALLY_CORRECT", Scale(), 0.5, "judged"),
        ("yes.", Scale(), 1.0, "judged"),
        ("0.25", Scale(), 0.25, "judged"),
        ([True, False, True, True], Scale(), 0.75, "judged"),
        ([], Scale(failures=True), 1.0, "judged"),
        (["1.1"], Scale(failures=True), 0.0, "judged"),
        ("Omission", Scale(words={"omission": 0.0}), 0.0, "judged"),
        ("SKIP", Scale(), None, "not judged"),
        ("as it were", Scale(), None, "error"),
        (75, Scale(), None, "error"),
        (-1, Scale(), None, "error"),
        ("", Scale(), None, "error"),
        (None, Scale(), None, "absent"),
        (None, Scale(absent=0.0), 0.0, "absent"),
    ],
)
def test_verdicts_are_read_on_their_scale_and_never_guessed(
    stored: Any, scale: Scale, value: float | None, state: str
) -> None:
    verdict = verdict_of(stored, scale)
    assert (verdict.value, verdict.state) == (value, state)


def test_a_failed_judge_keeps_its_number_and_is_counted() -> None:
    verdict = verdict_of(0.0, Scale(fails="label"), "ERROR")
    assert (verdict.value, verdict.state) == (0.0, "error")


def test_what_is_irregular_is_counted_and_listed_with_its_place() -> None:
    records = [
        {"question": Q, "pred": "  "},
        {"question": Q},
        {"pred": "x"},
        7,
        {"question": Q, "pred": A, "correct": "??"},
    ]
    contents = read_declared(files("flat", records), forms()["flat"])
    assert contents.counts["blank answer"] == contents.counts["missing answer"] == 1
    assert (
        contents.counts["record without a question"]
        == contents.counts["record that is no object"]
        == contents.counts["judge error"]
        == 1
    )
    assert any("[3]: record that is no object" in line for line in contents.listed)


def test_the_condition_must_be_named() -> None:
    with pytest.raises(DataError, match="condition="):
        read_declared(files("conditions", SAMPLES["conditions"][0]), forms()["conditions"])


def test_the_model_must_be_named_where_locomos_output_has_several() -> None:
    (conversation,) = SAMPLES["locomo_output"][0]
    several = [{**conversation, "qa": [{**conversation["qa"][0], "other_prediction": "x", "other_f1": 0.0}]}]
    form = forms()["locomo_output"]
    assert read_declared(files("f", several), form).counts["missing answer"] == 1
    (answer,) = read_declared(files("f", several), form, {"model": "m/2.5"}).answers
    assert (answer.answer, answer.grade("f1")) == (A, 1.0)


def test_a_new_form_is_a_few_lines_of_yaml(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "mine: {about: mine, records: [runs/*/rows/*], fields: {answer: [said], conversation: ['^who']}}",
        encoding="utf-8",
    )
    content = {"runs": [{"who": "c", "rows": [{"question": Q, "said": A}]}]}
    (answer,) = read_declared(files("mine", content), forms(own)["mine"]).answers
    assert (answer.conversation, answer.answer) == ("c", A)
    own.with_name("bad.yaml").write_text("mine: {about: x, fieldz: {}}", encoding="utf-8")
    with pytest.raises(RunError, match="fieldz"):
        forms(own.with_name("bad.yaml"))


def test_json_lines_csv_and_gzip_are_read(tmp_path: Path) -> None:
    record = {"question": Q, "pred": A}
    assert parse(json.dumps([record]).encode(), "a.json") == [record]
    assert parse(f"{json.dumps(record)}\n\n{json.dumps(record)}\n".encode(), "a.txt") == [record, record]
    assert parse(f'question,pred\n"{Q}","{A}"\n'.encode(), "a.csv") == [record]
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(json.dumps([record]).encode()))
    plain = tmp_path / "a.json"
    plain.write_bytes(json.dumps([record]).encode())
    assert parsed(packed) == parsed(plain)
    packed.write_bytes(gzip.compress(b"[1]")[:-4])
    with pytest.raises(DataError, match="cut off"):
        parsed(packed)


def mutated(value: Any, rng: random.Random) -> Any:
    """A copy with one part replaced, dropped or nested."""
    odd = rng.choice([None, [], {}, "", "\x1b[2J", "\ud800", -1, 10**30, True, [[]], {"a": {"a": 1}}, "=1+1", 1e308])
    if rng.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return odd
    if isinstance(value, list):
        at = rng.randrange(len(value))
        return [mutated(each, rng) if place == at else each for place, each in enumerate(value)]
    at = rng.choice(list(value))
    if rng.random() < 0.2:
        return {key: each for key, each in value.items() if key != at}
    return {key: mutated(each, rng) if key == at else each for key, each in value.items()}


@pytest.mark.parametrize("form", SAMPLES)
def test_no_mutated_copy_ends_in_a_traceback(form: str) -> None:
    content, options = SAMPLES[form]
    rng = random.Random(form)
    for _ in range(150):
        damaged = mutated(mutated(content, rng) if rng.random() < 0.5 else content, rng)
        with contextlib.suppress(DataError):
            match(read_declared(files(form, damaged), forms()[form], options).answers, QUESTIONS)
        data = bytearray(json.dumps(content).encode())
        data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(DataError):
            read_declared(files(form, parse(bytes(data), "f.json")), forms()[form], options)


QUESTIONS = Questions(
    "LoCoMo",
    (
        Asked("a", "a1", Q, G, "1"),
        Asked("a", "a2", "Twice?", "yes", "4"),
        Asked("a", "a3", "Twice?", "yes", "4"),
        Asked("b", "b1", Q, "in Ghent", "1"),
        Asked("b", "b2", "Both?", "one", "4"),
        Asked("b", "b3", "Both?", "", "5", answerable=False),
    ),
    ("a", "b"),
)


def said(question: str, text: str = "x", **more: Any) -> Answer:
    return Answer("here", more.pop("conversation", ""), question, text, **more)


def test_conversation_gold_and_the_name_adversarial_tell_equal_texts_apart() -> None:
    answers = [said(Q, position=1), said(Q, gold=G), said("Both?", category="adversarial"), said("Both?", gold="one")]
    matched = match(answers, QUESTIONS)
    assert [asked.question_id for asked, _ in matched.pairs] == ["b1", "a1", "b3", "b2"]
    assert match([said(Q)], QUESTIONS).unjoined == [
        f"here {Q!r}: 2 questions of this text, which neither conversation nor gold tells apart"
    ]
    assert "no question of this text" in match([said("Reworded?")], QUESTIONS).unjoined[0]


def test_names_of_categories_of_the_file_decide_nothing() -> None:
    (pair,) = match([said(Q, conversation="a", category="temporal")], QUESTIONS).pairs
    assert pair[0].category == "1"


def test_interchangeable_questions_are_shared_out_and_duplicates_are_not_guessed() -> None:
    matched = match([said("Twice?", "one"), said("Twice?", "two")], QUESTIONS)
    assert len(matched.pairs) == matched.interchangeable == 2
    equal = match([said(Q, "same", position=0), said(Q, "same", position=0)], QUESTIONS)
    assert (len(equal.pairs), len(equal.duplicates)) == (1, 1)
    different = match([said(Q, "one", position=0), said(Q, "two", position=0)], QUESTIONS)
    assert (len(different.pairs), len(different.duplicates)) == (0, 2)


def test_the_manifest_holds_facts_only() -> None:
    known = claims()
    assert len(known) == 80
    for claim in known:
        assert claim.form in forms()
        assert claim.licence
        assert all(len(file.sha256) == 64 for file in claim.files)
        assert all(0 <= each.score <= 1 and each.printed for each in claim.claimed)
        assert all(re.fullmatch(r"[\w./-]+:\d+ @[0-9a-f]{7,12}", each.printed_at) for each in claim.claimed)
        assert all(re.search(r"/blob/[0-9a-f]+/[^ ]+#L\d+$", claim.line_url(each)) for each in claim.claimed)
        assert all(
            url.startswith(f"https://raw.githubusercontent.com/{claim.repository}/") and " " not in url
            for url in claim.urls
        )
