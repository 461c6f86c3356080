from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema_rs import Draft202012Validator

from data_loaders.locomo import load
from data_loaders.schema import Case, Gold, Question
from data_loaders.units import make_units
from eval.files.records import Prediction
from eval.metrics.locomo import locomo_f1
from memsys.interface import MemorySystem, dated
from memsys.llm.ask import ParseFailure, parse
from memsys.llm.offline.extractive import ExtractiveLLM, Found, form
from memsys.llm.protocol import Completion, ModelError, Request
from memsys.prompts import SHIPPED, Option, Prompts
from memsys.systems.bm25 import BM25
from memsys.systems.controls import Nothing, Recency
from memsys.tokens import count_tokens

CHAT = (
    "[1:56 pm on 8 May, 2023] Ines: I went to a pottery workshop yesterday. It was so relaxing!",
    "[1:56 pm on 8 May, 2023] Omar: Nice! I adopted three rescue dogs because my flat felt empty.",
    "[6:10 pm on 2 June, 2023] Ines: My sister Paula moved to Lisbon last month. Are you still painting?",
    "[6:10 pm on 2 June, 2023] Omar: I paint old lighthouses, mostly in watercolour.",
)


def send(kind: str, llm: ExtractiveLLM | None = None, **fields: Any) -> Completion:
    settings = {name: fields.pop(name) for name in ("schema", "max_tokens", "logprobs") if name in fields}
    request = Request((("user", "shown\n\nthe prompt"),), "test.step", kind=kind, fields=fields, **settings)
    return (llm or ExtractiveLLM()).submit(request).result()


def say(kind: str, **fields: Any) -> Any:
    text = send(kind, **fields).text
    return json.loads(text) if "schema" in fields else text


def answer(question: str, memories: Any = CHAT, **fields: Any) -> str:
    return str(say("answer", question=question, memories=memories, now="", **fields))


# --- answers --------------------------------------------------------------------------------------------------------


def test_an_answer_is_the_span_that_the_question_asks_for(subtests: pytest.Subtests) -> None:
    for question, said in [
        ("When did Ines go to the pottery workshop?", "7 May 2023"),
        ("When did Paula move to Lisbon?", "May 2023"),
        ("When did Omar say that he paints lighthouses?", "2 June 2023"),
        ("How many dogs did Omar adopt?", "three"),
        ("Why did Omar adopt dogs?", "my flat felt empty"),
        ("Who moved to Lisbon?", "Paula"),
        ("Did Ines go to a pottery workshop?", "Yes"),
        ("What does Omar paint?", "old lighthouses"),
    ]:
        with subtests.test(question=question, said=said):
            assert answer(question) == said


def test_a_date_is_resolved_against_its_own_item_not_against_today() -> None:
    moved = tuple(text.replace("8 May, 2023", "1 January, 2020") for text in CHAT)
    assert answer("When did Ines go to the pottery workshop?", moved) == "31 December 2019"


def test_a_question_about_a_speaker_prefers_what_that_speaker_says() -> None:
    both = ("Ines: My favourite food is ramen.", "Omar: My favourite food is couscous.")
    assert answer("What is Omar's favourite food?", both) == "couscous"
    assert answer("What is Ines' favourite food?", both) == "ramen"


def test_a_list_question_collects_spans_from_several_sentences() -> None:
    memories = ("Ines: I play the violin.", "Ines: I also play the cello.", "Omar: It rained.")
    assert answer("What instruments does Ines play?", memories).split(", ")[:2] == ["violin", "cello"]


def test_with_nothing_recalled_the_answer_is_unknown_and_no_abstention() -> None:
    for nothing in ((), "", ("  ",)):
        reply = answer("When did Ines go to the workshop?", nothing)
        assert reply == "unknown"


def test_a_weak_match_is_declined_only_when_told_to() -> None:
    question = "What did the astronaut bring from Saturn?"
    fields: dict[str, Any] = {"question": question, "memories": CHAT, "now": ""}
    assert "not mentioned" not in send("answer", **fields).text.lower()
    assert send("answer", ExtractiveLLM(abstain_below=0.5), **fields).text == "Not mentioned in the conversation"
    certain = {**fields, "question": "What does Omar paint?"}
    assert send("answer", ExtractiveLLM(abstain_below=0.5), **certain).text == "old lighthouses"


def test_memories_may_be_one_text_a_sequence_or_options() -> None:
    options = [Option(str(number), text) for number, text in enumerate(CHAT)]
    question = "When did Paula move to Lisbon?"
    assert answer(question, "\n".join(CHAT)) == answer(question, options) == answer(question) == "May 2023"


def test_of_several_options_the_best_supported_letter_is_answered() -> None:
    options = (Option("A", "portraits in oil"), Option("B", "lighthouses in watercolour"), Option("C", "stage sets"))
    assert answer("What does Omar paint?", options=options) == "B"


def test_the_better_the_match_the_higher_the_log_probabilities() -> None:
    strong = send("answer", question="What does Omar paint?", memories=CHAT, logprobs=True)
    weak = send("answer", question="What did the astronaut bring from Saturn?", memories=CHAT, logprobs=True)
    assert strong.logprobs is not None
    assert weak.logprobs is not None
    assert len(strong.logprobs) == strong.completion_tokens == count_tokens(strong.text)
    assert strong.logprobs[0] > weak.logprobs[0]
    assert all(0 < exp(each) <= 1 for each in (*strong.logprobs, *weak.logprobs))
    assert send("answer", question="What does Omar paint?", memories=CHAT).logprobs is None


# --- the other kinds ------------------------------------------------------------------------------------------------


def test_a_summary_is_whole_sentences_in_order_within_its_budget() -> None:
    long = [f"[1:56 pm on {day} May, 2023] Ines: The garden club planted {day} roses. Well." for day in range(1, 29)]
    reply = say("summarise", texts=long, max_tokens=120)
    numbers = [int(number) for number in re.findall(r"planted (\d+) roses", reply)]
    assert numbers == sorted(numbers)
    assert 2 <= len(numbers) < 28
    assert count_tokens(reply) <= 120
    assert reply.startswith(f"[1:56 pm on {numbers[0]} May, 2023] Ines: The garden club")


def test_a_summary_keeps_the_central_sentences_rather_than_the_first_and_in_their_order() -> None:
    texts = ["Hm.", "The sail tore.", "It rained.", "The boat lost sail and mast.", "The boat has a mast and a sail."]
    assert say("summarise", texts=texts, max_tokens=12) == "The boat has a mast and a sail."
    assert (
        say("summarise", texts=texts, max_tokens=24) == "The boat lost sail and mast. The boat has a mast and a sail."
    )


def test_a_summary_can_be_asked_for_dates_as_its_sources_can() -> None:
    summary = say("summarise", texts=CHAT, max_tokens=300)
    assert answer("When did Ines go to the pottery workshop?", (summary,)) == "7 May 2023"


def test_a_schema_splits_a_summary_into_title_content_and_points() -> None:
    strings = {"type": "array", "items": {"type": "string"}}
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "content": {"type": "string"}, "points": strings},
    }
    reply = say("summarise", texts=CHAT, schema=schema, max_tokens=800)
    assert "pottery workshop yesterday" in reply["content"]
    assert 1 <= len(reply["title"].split()) <= 8
    assert "I paint old lighthouses, mostly in watercolour." in reply["points"]


def test_facts_are_statements_with_speaker_and_resolved_date() -> None:
    schema = {"type": "array", "items": {"type": "object", "properties": {"fact": {"type": "string"}}}}
    text = "Ines: My sister Paula moved to Lisbon yesterday. Do you still paint big lighthouses?\nOmar: Oh!"
    facts = say("extract", text=text, time="6:10 pm on 2 June, 2023", schema=schema)
    assert facts == [{"fact": "Ines: My sister Paula moved to Lisbon yesterday. (1 June 2023)"}]


def test_the_most_similar_option_is_chosen_or_the_label_that_belongs_to_none() -> None:
    options = [Option("MERGE_1", "Omar: I paint lighthouses."), Option("MERGE_2", "Ines: pottery workshop")]
    labels = ("MERGE_1", "MERGE_2", "SPLIT")
    assert say("choose", query="Ines: The pottery workshop was fun.", options=options, labels=labels) == "MERGE_2"
    assert say("choose", query="Ines: It rained on Tuesday.", options=options, labels=labels) == "SPLIT"
    assert say("choose", query="anything", options=[], labels=labels) == "MERGE_1"


def test_speakers_names_alone_do_not_make_an_option_similar() -> None:
    labels = ("MERGE", "CONTINUE")
    options = [Option("MERGE", "[1:56 pm on 8 May, 2023] Ines: The kiln broke.")]
    assert say("choose", query="Ines: Trains were late.", options=options, labels=labels) == "CONTINUE"


def test_a_choice_by_schema_gives_labels_as_numbers_texts_or_lists() -> None:
    options = [Option("3", "a lighthouse in watercolour"), Option("7", "pottery"), Option("9", "a lighthouse keeper")]
    properties = {
        "reason": {"type": "string"},
        "index": {"type": "integer", "minimum": 0},
        "ids": {"type": "array", "items": {"type": "integer"}},
        "label": {"type": "string", "enum": ["3", "7", "9"]},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    }
    reply = say(
        "choose",
        query="Who keeps the lighthouse? A keeper.",
        options=options,
        schema={"type": "object", "properties": properties},
    )
    assert (reply["index"], reply["ids"][0], reply["label"]) == (9, 9, "9")
    assert reply["reason"] == "a lighthouse keeper"
    assert 0 < reply["confidence"] <= 1


def test_ratings_are_scaled_to_the_bounds_of_the_schema() -> None:
    options = [Option("0", "pottery workshop"), Option("1", "trains and planes")]
    pair = {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 100}, "minItems": 2, "maxItems": 2}
    flat = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 10}}
    ids = {"type": "array", "items": {"type": "integer"}}
    rated = {"type": "object", "properties": {"id": {"type": "integer"}, "score": {"type": "integer", "maximum": 100}}}
    properties = {
        "scores": {"type": "array", "items": pair},
        "flat": flat,
        "ranking": ids,
        "rated": {"type": "array", "items": rated},
    }
    reply = say(
        "rate", query="the pottery workshop", options=options, schema={"type": "object", "properties": properties}
    )
    assert reply["scores"] == [[0, 100], [1, 0]]
    assert reply["flat"] == [10, 0]
    assert reply["ranking"] == [0, 1]
    assert reply["rated"] == [{"id": 0, "score": 100}, {"id": 1, "score": 0}]


def test_a_text_is_rated_from_1_to_10_the_telling_one_higher() -> None:
    dull, telling = say("rate", text="Ines: Hey there!"), say("rate", text="\n".join(CHAT))
    assert 1 <= int(dull) < int(telling) <= 10


def test_keywords_are_content_words_the_frequent_ones_first() -> None:
    assert say("keywords", text="Ines: The dog barked. A dog! My cat slept.").split(", ")[:2] == ["dog", "barked"]
    schema = {
        "type": "object",
        "properties": {
            "level": {"type": "integer", "minimum": 1},
            "words": {"type": "array", "items": {"type": "string"}},
        },
    }
    assert say("keywords", text="The dog barked.", schema=schema) == {"level": 1, "words": ["dog", "barked"]}


def test_a_drop_in_similarity_is_a_boundary_and_going_on_is_none() -> None:
    history = [
        "Ines: The kiln broke.",
        "Omar: Which kiln?",
        "Ines: The kiln in the pottery.",
        "Omar: A pottery kiln is dear.",
    ]
    assert (
        say("boundary", history=history, new="Omar: My train to Porto leaves at noon.", labels=("yes", "no")) == "yes"
    )
    assert say("boundary", history=history, new="Ines: I will mend the kiln.", labels=("yes", "no")) == "no"
    schema = {"type": "object", "properties": {"should_end": {"type": "boolean"}}}
    assert say("boundary", history="", new="Omar: Hello.", schema=schema) == {"should_end": False}


def test_a_function_call_prompt_gets_the_sending_function_with_the_best_span() -> None:
    schema = {
        "type": "object",
        "properties": {"function": {"enum": ["core_memory_append", "send_message"]}, "message": {"type": "string"}},
    }
    request = Request(
        (("system", "x"), ("user", f"{CHAT[3]}\nWhat does Omar paint?")), "agent.step", schema=schema, kind="chat"
    )
    assert json.loads(ExtractiveLLM().submit(request).result().text) == {
        "function": "send_message",
        "message": "old lighthouses",
    }


def test_judging_is_containment_overlap_or_recognising_that_nothing_is_said(subtests: pytest.Subtests) -> None:
    for gold, given, right in [
        ("7 May 2023", "It was on 7 May 2023.", True),
        ("the pottery workshop", "Pottery workshops", True),
        ("7 May 2023", "A lighthouse", False),
        ("Not mentioned in the conversation", "That is not mentioned.", True),
        ("Not mentioned in the conversation", "unknown", False),
        ("", "anything", False),
    ]:
        with subtests.test(gold=gold, given=given, right=right):
            fields = {"question": "?", "gold": gold, "answer": given}
            assert say("judge", **fields, labels=("CORRECT", "WRONG")) == ("CORRECT" if right else "WRONG")
            score = {"type": "object", "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 3}}}
            assert (say("judge", **fields, schema=score)["score"] >= 2) == right


def test_a_judge_of_several_reference_texts_counts_how_many_are_met() -> None:
    properties = {"Mem_hits": {"type": "array", "items": {"type": "string"}}, "Mem_recall": {"type": "number"}}
    golds = ("vegetarian since 2019", "allergic to nuts")
    reply = say(
        "judge",
        question="?",
        gold=golds,
        answer="She is allergic to nuts.",
        schema={"type": "object", "properties": properties},
    )
    assert reply["Mem_hits"] == ["allergic to nuts"]
    assert reply["Mem_recall"] == 0.5


# --- the form of replies --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_prompt_of_the_project_gets_a_reply_that_parses(subtests: pytest.Subtests) -> None:
    for filled in [True, False]:
        for name in sorted(path.relative_to(SHIPPED).with_suffix("").as_posix() for path in SHIPPED.rglob("*.md")):
            with subtests.test(filled=filled, name=name):
                prompt = Prompts()[name]
                fields = synthetic(prompt.system + prompt.user, prompt.labels, filled)
                request = prompt.render(fields)
                value = parse(ExtractiveLLM().submit(request).result().text, prompt.schema, request.fields["labels"])
                assert not isinstance(value, ParseFailure), value


def synthetic(template: str, labels: tuple[str, ...], filled: bool) -> dict[str, Any]:
    """Fields for every kind of prompt and every placeholder of one; unfilled, a memory that holds nothing yet."""
    texts = CHAT if filled else ()
    named = [Option(label, text) for label, text in zip(("0", "1", "2", "3"), texts, strict=False)]
    fields: dict[str, Any] = dict.fromkeys(re.findall(r"\$\{?(\w+)", template), "something else")
    fields |= {
        "question": "What does Omar paint?",
        "memories": texts,
        "now": "",
        "texts": texts,
        "text": "\n".join(texts),
    }
    fields |= {"time": "1:56 pm on 8 May, 2023", "query": "Omar: I paint.", "options": named, "history": texts}
    fields |= {"new": "Ines: It rained.", "gold": "old lighthouses", "answer": "lighthouses"}
    if "answer" in template and "$shown" in template:
        fields["options"] = ()
    if "$labels" in template and not labels:
        fields["labels"] = ("MERGE_1", "MERGE_2", "SPLIT")
    else:
        fields.pop("labels", None)
    return fields


def test_any_reply_satisfies_its_schema(subtests: pytest.Subtests) -> None:
    for found in [
        Found("some text", 0.4, parts=("some", "text")),
        Found("some text", 0.9, labels=("2", "b"), rest=("7",), parts=("2", "b")),
        Found("5", 0.5, ratings=(("1", 0.2), ("2", 0.9)), rating=0.9),
        Found("judged", 0.1, rating=0.1, flag=False),
        Found("unknown"),
    ]:
        for schema in [
            {"const": "x"},
            {"enum": [3, 1, 2]},
            {"enum": ["a", "b"]},
            {"type": ["null", "integer"], "minimum": 4},
            {"type": "null"},
            {"anyOf": [{"type": "string", "minLength": 3}, {"type": "null"}]},
            {"type": "string", "maxLength": 4},
            {"type": "number", "minimum": -2, "maximum": -1},
            {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3},
            {
                "type": "array",
                "items": {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3},
                "minItems": 2,
            },
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2},
            {
                "type": "array",
                "items": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                "minItems": 1,
            },
            {
                "properties": {"deep": {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]}},
                "required": ["deep"],
            },
        ]:
            with subtests.test(json.dumps(schema)[:60]):
                Draft202012Validator(schema).validate(form(schema, found))


def test_the_ends_of_a_relation_are_words_of_the_fact_whatever_their_properties_are_called() -> None:
    names = ("source_entity_name", "target_entity_name", "fact", "valid_at")
    relation = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    filled = form(relation, Found("Mara planted tomatoes", time=date(2023, 5, 8)))
    assert list(filled.values()) == ["mara", "tomatoes", "Mara planted tomatoes", "2023-05-08"]


def test_a_schema_that_cannot_be_filled_is_an_error_not_a_guess() -> None:
    with pytest.raises(ValueError, match="cannot fill a schema of type 'tuple'"):
        form({"type": "tuple"}, Found("x"))


def test_a_prompt_of_an_unknown_kind_fails_as_a_model_call_does() -> None:
    with pytest.raises(ModelError, match="kind 'paint'"):
        send("paint")


def test_tokens_are_counted_as_the_tokenizer_counts_them() -> None:
    content = "one\n\ntwo?\n/three\n  \n four\n\n\n- five.\n" + "\n".join(CHAT)
    request = Request(
        (("system", "Be brief."), ("user", content)), "t", kind="answer", fields={"question": "?", "memories": ()}
    )
    reply = ExtractiveLLM().submit(request).result()
    assert reply.prompt_tokens == count_tokens("Be brief.") + count_tokens(content)
    assert (reply.model, reply.endpoint, reply.completion_tokens) == ("extractive", "offline", 1)


def test_the_same_request_gets_the_same_reply_from_many_threads() -> None:
    questions = [f"What did Ines say about {word}?" for word in "pottery Lisbon dogs painting nothing".split()] * 20
    alone = [answer(question) for question in questions]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(answer, questions)) == alone


# --- real data ------------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_on_locomo_better_evidence_gives_a_better_official_f1(data_root: Path) -> None:
    """Gold evidence > BM25 > the most recent > nothing, each gap above zero at 95 % by question (paired bootstrap)."""
    cases = load(data_root / "locomo" / "locomo10.json")
    rows = np.array([row for index in (0, 4) for row in arms(cases[index])])
    evidence, lexical, recent, nothing = rows.T
    assert nothing.mean() <= 0.05
    assert evidence.mean() >= 0.2
    for better, worse in ((evidence, lexical), (lexical, recent), (recent, nothing)):
        assert lower_bound(better - worse) > 0


def arms(case: Case) -> list[list[float]]:
    memories: list[MemorySystem] = [BM25(10), Recency(10), Nothing()]
    for memory in memories:
        for unit in make_units(case.sessions, "utterance").units:
            memory.write(unit)
        memory.consolidate()
    lines = {
        turn.id: dated(f"{turn.speaker}: {turn.text}", session.time_text)
        for session in case.sessions
        for turn in session.turns
    }
    rows = []
    for question, gold in case.questions:
        shown = [[lines[turn] for turn in gold.evidence]]
        shown += [[item.text for item in memory.read(question).items] for memory in memories]
        rows.append([official_f1(case, question, gold, texts) for texts in shown])
    return rows


def official_f1(case: Case, question: Question, gold: Gold, memories: list[str]) -> float:
    said = answer(question.text, memories)
    score = locomo_f1(question, gold, Prediction(case.id, question.id, said, (), (), "answered")).value
    assert score is not None
    return score


def lower_bound(gaps: np.ndarray) -> float:
    draws = np.random.default_rng(0).integers(len(gaps), size=(2000, len(gaps)))
    return float(np.percentile(gaps[draws].mean(axis=1), 2.5))
