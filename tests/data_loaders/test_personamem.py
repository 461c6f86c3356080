"""PersonaMem: histories in messages, question points, options, letters, and what the options' lengths give away."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_jsonl

from data_loaders.personamem import length_caption, load, read_table
from data_loaders.schema import Case, DataError, Gold, Question

SAMPLE = Path(__file__).parents[2] / "data_loaders" / "samples" / "personamem"
GOLDEN = Path(__file__).parents[1] / "golden"
DATA = Path(os.environ.get("MEMSYS_DATA") or Path(__file__).parents[3] / "shared" / "data") / "personamem"
QUESTIONS, CONTEXTS = "questions_32k.csv", "shared_contexts_32k.jsonl"
Records = list[dict[str, str]]


def records() -> Records:
    with (SAMPLE / QUESTIONS).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def contexts() -> list[Any]:
    return [json.loads(line) for line in (SAMPLE / CONTEXTS).read_text(encoding="utf-8").splitlines()]


def written(rows: Any) -> bytes:
    """Records as CSV, whatever mutation has made of them."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    rows = rows if isinstance(rows, list) else [rows]
    if rows and isinstance(rows[0], dict):
        writer.writerow(list(rows[0]))
    for row in rows:
        writer.writerow([str(value) for value in row.values()] if isinstance(row, dict) else [str(row)])
    return out.getvalue().encode("utf-8", "surrogatepass")


def folder(path: Path, asked: Any = None, histories: Any = None) -> Path:
    (path / QUESTIONS).write_bytes(written(records() if asked is None else asked))
    write_jsonl(path / CONTEXTS, contexts() if histories is None else histories)
    return path


def changed(path: Path, number: int, **fields: str) -> Path:
    asked = records()
    asked[number].update(fields)
    return folder(path, asked)


def asked(case: Case, number: int) -> tuple[Question, Gold]:
    """The question of this number (from 1) in the sample's file."""
    return next(pair for pair in case.questions if pair[0].id.endswith(f"{number:012d}"))


def first(**choices: Any) -> Case:
    return load(SAMPLE, **choices)[0]


def messages(case: Case) -> list[dict[str, str]]:
    return next(line[case.id] for line in contexts() if case.id in line)


# --- histories -----------------------------------------------------------------------------------------------------------


def test_a_history_is_a_case_and_its_cluster_is_the_persona() -> None:
    cases = load(SAMPLE)
    assert [case.id for case in cases] == [next(iter(line)) for line in contexts()]
    assert [case.cluster for case in cases] == ["persona 3", "persona 3", "persona 8"]


def test_every_message_is_a_turn_with_its_position_as_id_and_system_messages_open_sessions() -> None:
    case = first()
    assert [turn.id for turn in case.turns] == [str(number) for number in range(24)]
    assert [session.id for session in case.sessions] == ["S1", "S2", "S3"]
    assert [session.turns[0].id for session in case.sessions] == ["0", "8", "16"]
    assert all(session.turns[0].text.startswith("Current user persona: ") for session in case.sessions)
    assert {(session.turns[0].speaker, session.turns[0].role) for session in case.sessions} == {("", "user")}


def test_without_the_persona_ids_stay_and_questions_are_asked_at_the_same_points() -> None:
    kept, dropped = first(), first(persona="drop")
    assert [turn for turn in kept.turns if turn.speaker] == list(dropped.turns)
    assert [question.after for question, _ in kept.questions] == [question.after for question, _ in dropped.questions]


def test_a_question_right_after_a_dropped_persona_is_asked_after_the_turn_before(tmp_path: Path) -> None:
    path = changed(tmp_path, 1, end_index_in_shared_context="9")
    assert asked(load(path)[0], 2)[0].after == "8"
    assert asked(load(path, persona="drop")[0], 2)[0].after == "7"
    start = changed(tmp_path, 1, end_index_in_shared_context="1")
    assert asked(load(start, persona="drop")[0], 2)[0].after == ""


def test_a_wrong_persona_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="persona: expected one of"):
        load(SAMPLE, persona="hide")  # type: ignore[arg-type]


def test_the_role_in_front_of_a_text_becomes_the_speaker_and_other_beginnings_stay() -> None:
    turns = {turn.id: turn for turn in first().turns}
    assert (turns["1"].speaker, turns["1"].text[:9]) == ("User", "I painted")
    assert (turns["2"].speaker, turns["2"].role) == ("Assistant", "assistant")
    assert turns["13"].text == "[Original_Sentence] The lamp turns all night."
    assert (turns["17"].speaker, turns["17"].text[:9]) == ("User", "Patient: ")


def test_messages_before_the_first_system_message_make_a_session(tmp_path: Path) -> None:
    histories = contexts()
    del histories[0][next(iter(histories[0]))][0]
    case = load(folder(tmp_path, histories=histories))[0]
    assert [len(session.turns) for session in case.sessions] == [7, 8, 8]


# --- questions -----------------------------------------------------------------------------------------------------------


def test_a_question_sees_the_messages_before_its_end_index_and_points_need_no_order() -> None:
    assert [question.after for question, _ in first().questions] == ["22", "6", "22", "22", "15", "15"]


def test_a_question_about_reasons_is_the_last_visible_message_and_one_about_evolution_the_first_hidden_one() -> None:
    case, said = first(), messages(first())
    reasons, evolution = asked(case, 2)[0], asked(case, 4)[0]
    assert said[int(reasons.after or 0)]["content"] == reasons.text
    assert said[int(evolution.after or 0) + 1]["content"] == f"User: {evolution.text}"


def test_options_lose_their_letters_and_keep_their_order() -> None:
    question, gold = asked(first(), 1)
    assert len(question.options) == 4
    assert question.options[0] == "A green boat suits somebody who dislikes painting."
    assert gold.answers == ("(b)", question.options[1])
    assert not any(option.startswith("(") for option in question.options)


def test_options_with_either_kind_of_quotes_are_read() -> None:
    raw = [record["all_options"] for record in records()]
    assert {text[1] for text in raw} == {"'", '"'}
    assert all(len(question.options) == 4 for case in load(SAMPLE) for question, _ in case.questions)


def test_a_right_option_under_two_letters_is_noted_and_both_letters_are_kept() -> None:
    case = first()
    assert asked(case, 5)[1].detail["right_letters"] == ("(a)", "(c)")
    assert asked(case, 1)[1].detail["right_letters"] == ("(b)",)
    assert case.notes == ("00000000-0000-4000-8000-000000000005: the right option stands under (a) and (c).",)


def test_questions_with_one_text_at_one_point_are_told_apart_by_their_ids() -> None:
    case = first()
    (one, _), (other, _) = asked(case, 5), asked(case, 6)
    assert (one.text, one.after) == (other.text, other.after)
    assert one.id != other.id


def test_the_two_names_of_recalling_facts_are_one_category() -> None:
    cases = load(SAMPLE)
    kinds = {gold.detail["question_type"]: gold.category for case in cases for _, gold in case.questions}
    assert kinds["recall_user_shared_facts"] == kinds["recalling_facts_mentioned_by_the_user"] == "recall-facts"
    assert len(set(kinds.values())) == 6


def test_the_caption_says_what_needs_no_memory() -> None:
    said = length_caption(SAMPLE)
    assert "always the longest option scores 75.0 %" in said
    assert "the longest or in new-ideas the shortest 95.0 %" in said
    assert "in 1 of 10 questions the right option stands under two letters" in said


def test_the_sample_is_written_like_the_release_with_crlf_and_no_final_newline() -> None:
    raw = (SAMPLE / QUESTIONS).read_bytes()
    assert raw.count(b"\r\n") == 10
    assert not raw.endswith(b"\n")
    assert len(read_table(SAMPLE / QUESTIONS)) == 10


# --- damaged files ---------------------------------------------------------------------------------------------------------

OPTIONS = "['(a) One', '(b) Two', '(c) Three', '(d) Four']"


def test_a_broken_field_is_named_with_its_record(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for fields, message in [
        ({"question_type": "riddle"}, r"record 1\.question_type: expected one of"),
        ({"correct_answer": "c"}, r"record 1\.correct_answer: expected \(a\), \(b\), \(c\) or \(d\), found 'c'"),
        ({"end_index_in_shared_context": "-1"}, r"end_index_in_shared_context: expected a number"),
        ({"end_index_in_shared_context": "25"}, r"end_index_in_shared_context: expected at most 24, found 25"),
        ({"distance_to_ref_in_blocks": "two"}, r"distance_to_ref_in_blocks: expected a number"),
        ({"persona_id": "4"}, r"persona_id: expected one persona for a history, found 2"),
        ({"shared_context_id": "no-such-history"}, r"shared_context_id: expected an id of shared_contexts_32k.jsonl"),
        ({"question_id": records()[1]["question_id"]}, r"question_id: expected unique ids"),
        ({"all_options": "__import__('os').getcwd()"}, r"all_options: expected a Python literal"),
        ({"all_options": "[" * 3000}, r"all_options: expected a Python literal"),
        ({"all_options": "{'a': 1}"}, r"all_options: expected list"),
        ({"all_options": OPTIONS.replace("(c)", "(d)")}, r"all_options: expected an option '\(c\) <text>'"),
        ({"all_options": "['(a) One']"}, r"all_options: expected 4 options, found 1"),
        ({"all_options": OPTIONS.replace("Two", "")}, r"all_options: expected an option '\(b\) <text>'"),
        ({"user_question_or_message": " "}, r"record 1: expected a question_id and a user_question_or_message"),
    ]:
        with subtests.test(fields=fields), pytest.raises(DataError, match=message):
            list(load(changed(tmp_path, 0, **fields)))


def test_a_file_that_is_no_table_of_questions_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    folder(tmp_path)
    whole = (tmp_path / QUESTIONS).read_bytes()
    for raw, message in [
        (b"", "expected a header with persona_id"),
        (whole.split(b"\r\n")[0], "expected records, found none"),
        (whole + b"1,2,3", "record 11: expected 15 fields, found 3"),
        (whole.replace(b"correct_answer", b"topic", 1), "expected a header with topic, correct_answer"),
        (whole + b'"', "expected CSV in UTF-8"),
    ]:
        with subtests.test(message=message):
            (tmp_path / QUESTIONS).write_bytes(raw)
            with pytest.raises(DataError, match=message):
                load(tmp_path)


def test_an_unknown_role_and_a_history_that_occurs_twice_are_refused(tmp_path: Path) -> None:
    histories = contexts()
    next(iter(histories[0].values()))[3]["role"] = "tool"
    with pytest.raises(DataError, match=r"\[3\]\.role: expected one of user, assistant, system, found 'tool'"):
        load(folder(tmp_path, histories=histories))[0]
    with pytest.raises(DataError, match=r"line 4: expected unique ids"):
        load(folder(tmp_path, histories=[*contexts(), contexts()[0]]))


@broken_copies(tests=2)
@given(mutated=mutated_json(contexts()))
def test_mutated_histories_load_or_are_refused(tmp_path: Path, mutated: Any) -> None:
    check_only_data_errors(load, folder(tmp_path, histories=mutated))


@broken_copies(tests=2)
@given(mutated=mutated_json(records()))
def test_mutated_questions_load_or_are_refused(tmp_path: Path, mutated: Any) -> None:
    check_only_data_errors(load, folder(tmp_path, mutated))


def test_damaged_bytes_load_or_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name in (QUESTIONS, CONTEXTS):
        for damage, done in BROKEN_BYTES.items():
            with subtests.test(name=name, damage=damage):
                folder(tmp_path)
                (tmp_path / name).write_bytes(done((tmp_path / name).read_bytes()))
                check_only_data_errors(load, tmp_path)


# --- the release -----------------------------------------------------------------------------------------------------------


def recorded(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def released() -> list[Case]:
    if not (DATA / QUESTIONS).exists():
        pytest.skip(f"needs the real files below {DATA} (set MEMSYS_DATA)")
    return list(load(DATA))


@pytest.mark.data
def test_the_release_has_the_recorded_counts(released: list[Case]) -> None:
    stats = recorded("personamem_stats")
    pairs = [pair for case in released for pair in case.questions]
    golds = [gold for _, gold in pairs]
    assert len(pairs) == stats["questions"] == 589
    assert len(released) == stats["contexts"] == 37
    assert len({case.cluster for case in released}) == stats["personas"] == 20
    assert sum(len(case.turns) for case in released) == stats["messages"] == 6462
    assert sum(len(case.sessions) for case in released) == stats["sessions"] == 195
    assert len({(case.id, question.after) for case in released for question, _ in case.questions}) == 222
    assert Counter(gold.detail["question_type"] for gold in golds) == stats["by_type"]
    assert Counter(gold.detail["topic"] for gold in golds) == stats["by_topic"]
    assert Counter(gold.detail["letter"] for gold in golds) == stats["by_correct"]
    assert sum(gold.detail["longest"] == 1 for gold in golds) == stats["correct_option_uniquely_longest"] == 288
    twice = sum(len(gold.detail["right_letters"]) > 1 for gold in golds)
    assert (
        twice == stats["questions_whose_right_option_occurs_twice"] == sum(len(case.notes) for case in released) == 17
    )
    by_id = {case.id: case for case in released}
    for expected in stats["per_context"]:
        case = by_id[expected["shared_context_id"]]
        assert case.cluster == f"persona {expected['persona_id']}"
        assert (len(case.turns), len(case.sessions)) == (expected["messages"], expected["sessions"])
        points = {int(question.after or 0) + 1 for question, _ in case.questions}
        assert (len(case.questions), len(points)) == (expected["questions"], expected["question_points"])
        assert max(points) == expected["last_end_index"]


@pytest.mark.data
def test_the_longest_option_scores_what_was_measured_on_the_release(released: list[Case]) -> None:
    shares: dict[str, list[float]] = {}
    for gold in (gold for case in released for _, gold in case.questions):
        shares.setdefault(gold.detail["question_type"], []).append(gold.detail["longest"])
    everything = [share for group in shares.values() for share in group]
    assert sum(share > 0 for share in everything) == 307
    assert 100 * sum(everything) / len(everything) == pytest.approx(50.5, abs=0.05)
    assert sum(shares["generalizing_to_new_scenarios"]) == 57
    assert sum(shares["suggest_new_ideas"]) == 0
    assert "always the longest option scores 50.5 %" in length_caption(DATA)


@pytest.mark.data
def test_a_question_sees_exactly_the_messages_that_the_official_script_sends(
    released: list[Case], subtests: pytest.Subtests
) -> None:
    asked_in = {question.id: (case, question) for case in released for question, _ in case.questions}
    lines = (DATA / CONTEXTS).read_text(encoding="utf-8").splitlines()
    raw: dict[str, list[dict[str, str]]] = {key: said for line in lines for key, said in json.loads(line).items()}
    for expected in recorded("personamem_metrics")["visible_history"]:
        with subtests.test(expected["question_id"]):
            case, question = asked_in[expected["question_id"]]
            seen = case.turns[: [turn.id for turn in case.turns].index(question.after or "") + 1]
            said = raw[case.id][: len(seen)]
            digest = hashlib.sha256(json.dumps(said, ensure_ascii=False).encode()).hexdigest()
            assert (len(seen), digest) == (expected["visible_turns"], expected["visible_sha256"])
            for turn, message in zip(seen, said, strict=True):
                assert message["content"] in (turn.text, f"{turn.speaker}: {turn.text}")
            assert seen[-1].role == expected["last_visible_role"]
            assert sum(not turn.speaker for turn in seen) == expected["system_turns"]


@pytest.mark.data
def test_no_right_option_stands_in_its_history(released: list[Case]) -> None:
    for case in released:
        history = "\n".join(turn.text for turn in case.turns)
        assert not [gold.answers[1] for _, gold in case.questions if gold.answers[1] in history]
