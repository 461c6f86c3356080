# ruff: noqa: E501
"""Every form in which answers are published is read by its description; what is irregular is counted, and nothing stops with a traceback."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_loaders.schema import DataError
from eval.files.store import RunError
from scripts.answers.declared import Contents, Parsed, Scale, forms, parse, parsed, read_declared, verdict_of
from scripts.answers.formats import best_reading
from scripts.answers.manifest import claims
from scripts.answers.matching import Answer, Asked, Matched, Questions, match

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
        ("1_0", Scale(scale=100), None, "error"),
        ("\u0661", Scale(), None, "error"),
        ("9" * 50, Scale(), None, "error"),
        ("Half", Scale(words={"HALF": 0.5}), 0.5, "judged"),
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


def test_a_time_in_parts_is_their_sum_and_unknown_where_a_part_is() -> None:
    times = [{"speaker_1_memory_time": 0.5, "speaker_2_memory_time": 1}, {"speaker_1_memory_time": 0.5}]
    records = [{"question": Q, "answer": G, "response": A, **each} for each in times]
    contents = read_declared(files("mem0", {"0": records}), forms()["mem0"])
    assert [answer.recall_seconds for answer in contents.answers] == [1.5, None]


def test_a_key_is_found_by_its_end_only_where_the_place_says_so() -> None:
    fields = {"question": ["question"], "conversation": [], "answer": ["said.text", "said.*_prediction"]}
    form = replace(forms()["flat"], records=("*",), fields={**forms()["flat"].fields, **fields})
    said = [{"question": Q, "said": {key: A}} for key in ("text", "context", "my_prediction")]
    contents = read_declared(files("f", said), form)
    assert [answer.answer for answer in contents.answers] == [A, "", A]
    assert contents.counts["missing answer"] == 1


@pytest.mark.parametrize(
    ("record", "outcome", "error"),
    [
        ({"answer": A, "outcome": "timeout"}, "answered", ""),
        ({"answer": " ", "outcome": "timeout"}, "error", "timeout"),
        ({"answer": "", "outcome": "timeout", "error": "after 30 s"}, "error", "after 30 s"),
        ({"answer": "", "outcome": "answered"}, "answered", ""),
        ({"outcome": "answered"}, "error", "the file has no answer"),
        ({"outcome": "answered", "error": "lost"}, "error", "lost"),
    ],
)
def test_a_record_without_text_is_an_error_where_its_outcome_is_no_answer(
    record: dict[str, str], outcome: str, error: str
) -> None:
    contents = read_declared(files("ours", [{"case_id": "a", "question_id": "q1", **record}]), forms()["ours"])
    assert [(answer.outcome, answer.error) for answer in contents.answers] == [(outcome, error)]


@pytest.mark.parametrize(
    ("said", "golds", "warned"),
    [
        ((G, G), 0, True),
        ((G, A), 0, False),
        ((G,), 0, False),
        ((G, G), 2, False),
    ],
)
def test_answers_that_are_all_golds_are_named_where_the_file_has_no_other_gold(
    said: tuple[str, ...], golds: int, warned: bool
) -> None:
    pairs = [(Asked("c", f"q{at}", Q, G, ""), Answer("place", "c", Q, text)) for at, text in enumerate(said)]
    unanswerable = (Asked("c", "q", Q, "no answer", "", answerable=False), Answer("place", "c", Q, A))
    assert bool(Matched([*pairs, unanswerable], golds=golds).only_golds) is warned


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
    with pytest.raises(DataError, match=r"a\.jsonl: line 4: "):
        parse(f"{json.dumps(record)}\n\n{json.dumps(record)}\n{{\n".encode(), "a.jsonl")
    assert parse(f'question,pred\n"{Q}","{A}"\n'.encode(), "a.csv") == [record]
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(json.dumps([record]).encode()))
    plain = tmp_path / "a.json"
    plain.write_bytes(json.dumps([record]).encode())
    assert parsed(packed) == parsed(plain)
    packed.write_bytes(gzip.compress(json.dumps(record).encode() + b"\n") * 2 + b"\0" * 9)
    assert parsed(packed).content == [record, record], "members of a file that was put together are read, too"
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


# --- what a stranger may send ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("description", "said"),
    [
        ("", "expected forms by name"),
        ("- a", "expected forms by name"),
        ("x:", "x: expected a description of a form"),
        ("x: {}", "x: about is missing"),
        ("x: {about: a, nope: 1}", "x: nope is not known; there are: about"),
        ("x: {about: a, pattern: a}", "x: pattern is not known"),
        ("x: {about: a}\nx: {about: b}", "x is there twice"),
        ("x: {about: a, records: results/*}", "x: records must be a list"),
        ("x: {about: a, records: []}", "x: records must not be empty"),
        ("x: {about: a, fields: [answer]}", "x: fields must be a mapping"),
        ("x: {about: a, fields: {answer: response}}", "x: fields.answer must be a list"),
        ("x: {about: a, fields: {answer: [{a: b}]}}", "x: fields.answer[0] must be text"),
        ("x: {about: a, fields: {answer: ['@0']}}", "x: fields.answer[0] must be @file, or @1"),
        ("x: {about: a, fields: {answers: [a]}}", "x: answers is not known"),
        ("x: {about: a, conversation: {pattern: '('}}", "x: pattern must be a regular expression"),
        ("x: {about: a, conversation: {first: one}}", "x: first must be a whole number"),
        ("x: {about: a, verdict: {scale: 0}}", "x: verdict: scale must be above 0"),
        ("x: {about: a, verdict: {scale: .nan}}", "x: verdict: scale must be"),
        ("x: {about: a, verdict: {nope: 1}}", "x: verdict: nope is not known"),
        ("x: {about: a, verdict: {absent: 7}}", "absent must be at most the scale, 1"),
        ("x: {about: a, verdict: {words: {good: 9}}}", "x: verdict: words.good must be at most 1"),
        ("x: {about: a, verdict: {words: {good: fine}}}", "x: verdict: words.good must be a number"),
        ("x: {about: a, skip: {category: Cognitive}}", "x: skip.category must be a list"),
        ("x: {about: a, needs: [a]}", "x: needs must be text"),
        ("x: {about: a, options: [a]}", "x: options must be a mapping"),
        ("x: {about: a, reader: mine}", "x: reader must be one of"),
        ("x: !!python/object/apply:os.getpid []", "could not determine a constructor"),
        ("x: " + "[" * 5000, "recursion"),
        ("\0", "special characters are not allowed"),
    ],
)
def test_a_malformed_form_is_refused_in_one_line(tmp_path: Path, description: str, said: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(description, encoding="utf-8")
    with pytest.raises(RunError) as refused:
        forms(file)
    assert said in str(refused.value)
    assert str(refused.value).startswith("own.yaml: ")
    assert "\n" not in str(refused.value)


def test_a_place_of_a_form_is_text_and_no_format_of_python(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("x: {about: a, fields: {answer: ['{c.__class__}', '{c:>99}', '{', '{c}']}, options: {c: pred}}")
    record = {"question": Q, "pred": A, "{c.__class__}": None}
    assert read_declared([Parsed("f.json", [record], "")], forms(file)["x"]).answers[0].answer == A


def test_an_option_that_a_form_does_not_have_is_refused_by_name() -> None:
    content, _ = SAMPLES["cutoffs"]
    with pytest.raises(DataError, match="the form cutoffs has no option cutof=; it takes cutoff="):
        read_declared(files("cutoffs", content), forms()["cutoffs"], {"cutof": "top_5"})
    with pytest.raises(DataError, match="the form flat has no option a=; it takes none"):
        read_declared(files("flat", SAMPLES["flat"][0]), forms()["flat"], {"a": ""})


@pytest.mark.parametrize(
    ("form", "content", "options"),
    [
        ("users_judged", [{"user_id": "1" * 300_000 + "x", "question": Q, "answer": A}], {}),
        ("conditions", {"a": {"predictions": [{"qa_id": "_1" * 150_000 + "x", "question": Q, "prediction": A}]}}, {"condition": "a"}),
        ("memorybench", {"evaluations": [{"questionId": "-q1" * 99_000 + "x", "question": Q, "hypothesis": A}]}, {}),
    ],
)  # fmt: skip
def test_an_endless_name_of_a_conversation_is_counted_and_not_searched(
    form: str, content: Any, options: dict[str, str]
) -> None:
    contents = read_declared(files(form, content), forms()[form], options)
    assert contents.answers[0].conversation == ""
    assert contents.counts["conversation whose name is too long"] == 1


def test_lists_within_lists_end_after_twenty() -> None:
    nested: Any = A
    for _ in range(900):
        nested = [nested]
    contents = read_declared(files("flat", [{"question": Q, "pred": nested}]), forms()["flat"])
    assert (contents.answers[0].answer, contents.counts["blank answer"]) == ("", 1)
    assert (
        read_declared(files("flat", [{"question": Q, "pred": [["a"], "b"]}]), forms()["flat"]).answers[0].answer
        == "a, b"
    )


def test_columns_of_one_name_are_refused_and_a_long_recalled_text_is_read() -> None:
    with pytest.raises(DataError, match="found 2 called 'pred'"):
        parse(b"question,pred,pred\nQ?,a,b\n", "f.csv")
    (row,) = parse(b"question,context\nQ?," + b"x" * 200_000 + b"\n", "f.csv")
    assert len(row["context"]) == 200_000


ENTRY = """
- name: {name}
  {more}
  dataset: LoCoMo
  product: x
  system: x
  by: x
  repository: a/b
  commit: 1234567
  date: '2026-01-01'
  licence: MIT
  answer_model: ''
  judge: ''
  form: {form}
  files: [{{path: a.json, held: {held}, sha256: {sha256}, bytes: 1}}]
"""


def entry(name: str = "mine", more: str = "", form: str = "flat", held: str = "a.json", sha256: str = "ab" * 32) -> str:
    return ENTRY.format(name=name, more=more, form=form, held=held, sha256=sha256)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (entry() + entry(), "two claims are called mine"),
        (entry() + entry("MINE"), "two claims are called mine"),
        (entry("../up"), "name must be a plain name"),
        (entry(""), "entry 1: name must be text"),
        (entry(more="claimed: []\n  claimed: []"), "claimed is there twice"),
        (entry(more="nope: 1"), "mine: nope is not known"),
        (entry(form="fla"), "mine: form fla is not known; did you mean flat?"),
        (entry(held="../../secret.json"), "files[0].held must be a path below"),
        (entry(held="/etc/passwd"), "files[0].held must be a path below"),
        (entry(sha256="abc"), "files[0].sha256 must be a sha256"),
        (entry(more="claimed: [{score: 92.5, digits: 1, of: judge, over: all, printed: x}]"), "claimed[0].score must be at most 1"),
        (entry(more="claimed: [{score: .5, digits: 99, of: judge, over: all, printed: x}]"), "claimed[0].digits must be at most 6"),
        (entry(more="claimed: [{score: .5, digits: 2, of: mean, over: all, printed: x}]"), "claimed[0].of must be one of judge"),
        (entry(more="claimed: [{score: .5, digits: 2, of: f1, over: most, printed: x}]"), "claimed[0].over must be one of all"),
        (entry(more="options: [a]"), "options must be a mapping"),
        (entry(more="extract: maybe"), "extract must be true or false"),
        ("{}", "expected a list of claims"),
        ("- a", "entry 1: "),
    ],
)  # fmt: skip
def test_a_malformed_entry_of_the_manifest_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RunError) as refused:
        claims(file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_published_tables_and_the_claims_have_the_same_score_of_zep() -> None:
    """The page prints the mean of several runs; the table had the mean of the file."""
    printed = {each.score for claim in claims() if claim.repository == "getzep/zep-papers" for each in claim.claimed}
    path = Path(__file__).parents[3] / "results/published/third_party.csv"
    with path.open(encoding="utf-8", newline="") as file:
        table = {
            float(row["value"]) for row in csv.DictReader(file) if row["paper"] == "Zep" and row["category"] == "1-4"
        }
    assert table == printed == {0.7514}


def test_a_commit_of_digits_alone_is_text(tmp_path: Path) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text(entry(), encoding="utf-8")
    assert claims(file)[0].commit == "1234567"


@pytest.mark.slow
def test_the_manifest_holds_facts_only() -> None:
    known = claims()
    assert len(known) == 80
    # A fork of Mem0's repository: the commit that added the files, edcd6f1, is by Mem0's developers.
    assert {each.by for each in known if each.repository == "qsupremacy/memory-benchmarks"} == {"mem0ai"}
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


def test_a_csv_record_with_a_comma_too_many_is_refused_and_a_short_one_has_no_answer() -> None:
    head = b"question,gold,response,correct\n"
    with pytest.raises(DataError, match="more in record 2; a comma needs quotes"):
        parse(head + b"a,b,c,1\na,b,one, two,1\n", "f.csv")
    short = Parsed("f.csv", parse(head + b"a,b,c,1\na,b\n", "f.csv"), "")
    answers = read_declared([short], forms()["flat"]).answers
    assert [(each.outcome, each.grade("judge")) for each in answers] == [("answered", 1.0), ("error", None)]


def test_a_score_above_one_is_counted_and_left_out() -> None:
    contents = read_declared(
        [Parsed("f", [{"question": Q, "pred": A, "f1": 45.2}, {"question": Q, "pred": A, "f1": 1}], "")],
        forms()["flat"],
    )
    assert [each.grade("f1") for each in contents.answers] == [None, 1.0]
    assert contents.listed == ["f[0]: f1 above 1 (45.2)"]


THREE = Questions(
    "D", tuple(Asked("c", f"q{number}", f"text {number}", f"g{number}", "1") for number in range(3)), ("c",)
)


def three(gold: str, answer: str, /, **damaged: Any) -> Contents:
    """The reading of three records by the form that fits best; `damaged` replaces fields of the first."""
    records = [
        {"question": f"text {number}", gold: f"g{number}", answer: f"r{number}", "correct": number % 2}
        for number in range(3)
    ]
    records[0] |= damaged
    return best_reading("f", [Parsed("f", records, "")], THREE, forms()).contents


def test_a_missing_answer_is_not_the_gold_of_its_record() -> None:
    contents = three("answer", "response", response=None)
    assert [(each.outcome, each.answer) for each in contents.answers] == [
        ("error", ""),
        ("answered", "r1"),
        ("answered", "r2"),
    ]


def test_one_mark_off_the_scale_does_not_turn_the_others_into_percentages() -> None:
    assert [each.grade("judge") for each in three("gold", "answer", correct=2).answers] == [None, 1.0, 0.0]
    assert [each.grade("judge") for each in three("gold", "answer", correct=100).answers] == [None, 1.0, 0.0]


def test_a_damaged_text_does_not_turn_the_answers_of_a_file_into_golds() -> None:
    contents = three("gold", "answer", answer="\ud800")
    assert [each.answer for each in contents.answers] == ["r1", "r2"]
    assert contents.listed == ["f[0]: record whose text is no text"]
