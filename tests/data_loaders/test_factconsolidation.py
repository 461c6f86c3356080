"""FactConsolidation: numbered facts, the ones that are stated twice, and what the rule "newest wins" says of the answers."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_json, write_jsonl

from data_loaders import longmemeval_mab
from data_loaders.factconsolidation import PATTERNS, load, question_keys, read_fact
from data_loaders.schema import Case, DataError, Gold, Question
from data_loaders.units import make_units
from memsys.tokens import count_tokens

SAMPLE = Path(__file__).parents[2] / "data_loaders" / "samples" / "factconsolidation.json"
GOLDEN = Path(__file__).parents[1] / "golden"
DATA = Path(os.environ.get("MEMSYS_DATA") or Path(__file__).parents[3] / "shared" / "data") / "factconsolidation"
ROWS: list[Any] = json.loads(SAMPLE.read_text(encoding="utf-8"))
FACTS = (
    "The capital of Norlund is Quay.",
    "Ida Kern was born in the city of Vell.",
    "The capital of Norlund is Indrivell.",
)


def row(hops: str = "sh", size: str = "6k", **changes: Any) -> dict[str, Any]:
    """A row with three facts and one question; `metadata` in the changes is laid over the row's own."""
    source = f"factconsolidation_{hops}_{size}"
    metadata = {"source": source, "qa_pair_ids": [f"{source}_no0"]} | changes.pop("metadata", {})
    context = "Here is a list of facts:\n" + "".join(f"{number}. {fact}\n" for number, fact in enumerate(FACTS))
    fields = {"context": context, "questions": ["What is the capital of Norlund?"], "answers": [["Indrivell"]]}
    return fields | {"metadata": metadata} | changes


def only(path: Path, *rows: Any) -> Case:
    (case,) = load(write_json(path / "rows.json", list(rows)))
    return case


def asked(case: Case, question_id: str) -> tuple[Question, Gold]:
    return next(pair for pair in case.questions if pair[0].id == question_id)


# --- what a case is --------------------------------------------------------------------------------------------------------


def test_the_two_rows_of_a_size_are_one_case_with_both_kinds_of_questions() -> None:
    cases = load(SAMPLE)
    assert [case.id for case in cases] == ["factconsolidation_6k", "factconsolidation_262k"]
    assert Counter(gold.category for _, gold in cases[0].questions) == {"single-hop": 5, "multi-hop": 4}
    assert [question.id for question, _ in cases[1].questions] == ["mh_0", "mh_1", "sh_0", "sh_1", "sh_2", "sh_3"]


def test_one_size_can_be_taken_alone_and_an_unknown_one_is_refused() -> None:
    assert [case.id for case in load(SAMPLE, size="262k")] == ["factconsolidation_262k"]
    with pytest.raises(DataError, match="expected rows of FactConsolidation 32k, found none"):
        load(SAMPLE, size="32k")


def test_a_fact_is_a_turn_that_keeps_its_number() -> None:
    case = load(SAMPLE)[0]
    assert [turn.id for turn in case.turns] == [str(number) for number in range(16)]
    assert case.turns[8].text == "8. The Mayor of Ostrelle is Tom Arrow."
    assert {turn.speaker for turn in case.turns} == {""}


def test_no_chunk_parts_a_number_from_its_fact() -> None:
    units = make_units(load(SAMPLE)[1].sessions, "chunk", tokens=40, count=count_tokens).units
    lines = [line for unit in units for line in unit.text.split("\n")]
    assert len(units) > 3
    assert lines == [turn.text for turn in load(SAMPLE)[1].turns]


def test_the_rule_is_an_instruction_and_no_part_of_what_a_memory_searches_with() -> None:
    for case in load(SAMPLE):
        for question, _ in case.questions:
            assert "larger number is newer" in question.instruction
            assert "number" not in question.text


@pytest.mark.slow
def test_a_parquet_file_and_jsonl_give_the_same_cases(tmp_path: Path) -> None:
    import pandas

    pandas.DataFrame(ROWS).to_parquet(tmp_path / "rows.parquet")
    assert (
        list(load(tmp_path / "rows.parquet"))
        == list(load(write_jsonl(tmp_path / "rows.jsonl", ROWS)))
        == list(load(SAMPLE))
    )


# --- what is derived -------------------------------------------------------------------------------------------------------


def test_the_newest_fact_is_the_evidence_and_the_older_one_the_stale_answer() -> None:
    gold = asked(load(SAMPLE)[0], "sh_0")[1]
    assert gold.evidence == ("8",)
    assert (gold.detail["newest"], gold.detail["stale_answer"]) == ("Tom Arrow", "Ida Kern")
    assert gold.detail["evidence_derived"] is True
    assert gold.groups == ("single-hop 6k", "conflict")


def test_a_fact_that_is_stated_once_measures_retrieval_only() -> None:
    gold = asked(load(SAMPLE)[0], "sh_3")[1]
    assert (gold.evidence, gold.groups[1], gold.detail["stale_answer"]) == (("4",), "no conflict", None)


def test_a_gold_answer_that_breaks_the_rule_keeps_its_text_and_is_noted() -> None:
    case = load(SAMPLE)[0]
    gold = asked(case, "sh_4")[1]
    assert (gold.answers, gold.detail["newest"], gold.detail["gold_is_newest"]) == (("Quay",), "Indrivell", False)
    assert case.notes == (
        "mh_3: the gold answer 'Ida Kern' is the object of no newest fact asked for.",
        "sh_4: the gold answer 'Quay' is the object of no newest fact asked for.",
    )


def test_the_evidence_of_a_multi_hop_question_is_its_one_chain_and_it_has_no_conflict_group() -> None:
    case = load(SAMPLE)[0]
    chains = {question.text: gold for question, gold in case.questions if question.id.startswith("mh")}
    assert {gold.groups for gold in chains.values()} == {("multi-hop 6k",)}
    texts = {turn.id: turn.text for turn in case.turns}
    gold = chains["What is the country of citizenship of the author of The Salt Ladder?"]
    first, second = (texts[serial].partition(". ")[2] for serial in gold.evidence)
    author = first.removeprefix("The author of The Salt Ladder is ").removesuffix(".")
    assert second == f"{author} is a citizen of {gold.answers[0]}."
    assert chains["Which city was the Mayor of Ostrelle born in?"].evidence == ()  # no newest facts lead to its answer


def test_two_chains_to_an_answer_are_no_evidence(tmp_path: Path) -> None:
    facts = [
        "The author of A is Ida.",
        "The director of A is Ulf.",
        "Ida is a citizen of Auria.",
        "Ulf is a citizen of Auria.",
    ]
    heading = row("mh")["context"].split("\n")[0]
    for kept, chain in ((facts, ()), ([facts[0], facts[2]], ("0", "1"))):
        context = "\n".join([heading, *(f"{number}. {fact}" for number, fact in enumerate(kept))])
        changed = row("mh", context=context, questions=["Where is the writer of A a citizen?"], answers=[["Auria"]])
        case = only(tmp_path, changed)
        assert case.questions[0][1].evidence == chain


def test_a_question_that_asks_for_no_fact_of_the_list_is_noted_and_has_no_evidence(tmp_path: Path) -> None:
    case = only(tmp_path, row(questions=["What is the capital of Auria?"]))
    gold = case.questions[0][1]
    assert (gold.evidence, gold.groups, gold.detail["conflict"]) == ((), ("single-hop 6k",), None)
    assert case.notes == ("sh_0: the question asks for no fact of the list.",)


def test_a_sentence_of_no_known_form_is_counted_in_a_note(tmp_path: Path) -> None:
    context = row()["context"].replace("Ida Kern was born in the city of Vell.", "Ida Kern likes bees.")
    assert only(tmp_path, row(context=context)).notes == ("1 facts fit none of the known sentences.",)


def test_every_pattern_reads_its_own_sentence_and_its_own_question(subtests: pytest.Subtests) -> None:
    assert len(PATTERNS) == 37
    for number, (fact, question) in enumerate(PATTERNS):
        with subtests.test(fact):
            stated = read_fact("7", fact.format(s="Old Quay", o="New Vell"))
            assert stated is not None
            assert (stated.serial, stated.key, stated.object) == ("7", (number, "Old Quay"), "New Vell")
            assert (number, "Old Quay") in list(question_keys(question.format(s="Old Quay")))


def test_two_sentences_that_the_generic_one_would_fit_are_read_by_their_own() -> None:
    head = read_fact("1", "The name of the current head of state in Norlund is Queen Maud.")
    office = read_fact("2", "The Prime Minister of Norlund is Ida Kern.")
    assert head is not None
    assert office is not None
    assert head.key[1] == "Norlund"
    assert office.key == (len(PATTERNS) - 1, "Prime Minister of Norlund")


# --- damaged files ---------------------------------------------------------------------------------------------------------


def test_a_broken_field_is_named_with_its_row(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for changes, message in [
        ({"context": "0. The capital of Norlund is Quay.\n"}, r"sh_6k\.context: expected the first line"),
        ({"context": "Here is a list of facts:\n"}, r"context: expected facts, found none"),
        ({"context": "Here is a list of facts:\n1. A fact.\n"}, r"context: expected fact 0 as"),
        ({"context": "Here is a list of facts:\n0. A fact.\n0. Another.\n"}, r"context: expected fact 1 as"),
        ({"answers": []}, r"answers: expected one for each of the 1 questions, found 0"),
        ({"answers": ["Quay"]}, r"answers\[0\]: expected list, found string"),
        ({"answers": [[]]}, r"answers\[0\]: expected an answer, found none"),
        ({"answers": [[" "]]}, r"answers\[0\]: expected an answer, found none"),
        ({"questions": [" "]}, r"questions\[0\]: expected a question"),
        ({"metadata": {"qa_pair_ids": []}}, r"metadata\.qa_pair_ids: expected one for each of the 1 questions"),
        ({"metadata": {"source": "eventqa"}}, r"expected rows of FactConsolidation, found none"),
    ]:
        with subtests.test(changes=changes), pytest.raises(DataError, match=message):
            only(tmp_path, row(**changes))


def test_rows_of_one_size_with_different_contexts_or_the_same_source_are_refused(tmp_path: Path) -> None:
    other = row("mh", context="Here is a list of facts:\n0. The capital of Norlund is Vell.\n")
    with pytest.raises(DataError, match="expected the context of the size's other row"):
        only(tmp_path, row(), other)
    with pytest.raises(DataError, match="expected 'factconsolidation_sh_6k' once"):
        only(tmp_path, row(), row())


def test_a_context_beyond_all_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longmemeval_mab, "_MAX_CONTEXT", 50)
    with pytest.raises(DataError, match="context: expected at most 50 characters"):
        only(tmp_path, row())


@broken_copies()
@given(mutated=mutated_json(ROWS))
def test_a_mutated_sample_loads_or_is_refused(tmp_path: Path, mutated: Any) -> None:
    check_only_data_errors(load, write_json(tmp_path / "rows.json", mutated))


def test_damaged_bytes_load_or_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for damage, done in BROKEN_BYTES.items():
        with subtests.test(damage=damage):
            path = tmp_path / "rows.json"
            path.write_bytes(done(SAMPLE.read_bytes()))
            check_only_data_errors(load, path)


# --- the release -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def released() -> dict[str, Case]:
    path = DATA / "Conflict_Resolution.json"
    if not path.exists():
        pytest.skip(f"needs the real file {path} (set MEMSYS_DATA)")
    return {case.id.rpartition("_")[2]: case for case in load(path)}


@pytest.mark.data
def test_the_release_has_the_recorded_counts(released: dict[str, Case]) -> None:
    stats = json.loads((GOLDEN / "factconsolidation_stats.json").read_text(encoding="utf-8"))
    assert list(released) == ["6k", "32k", "64k", "262k"]
    assert sum(len(case.questions) for case in released.values()) == stats["questions"] == 800
    assert [len(case.turns) for case in released.values()] == [455, 2310, 4580, 18332]
    for expected in stats["per_row"]:
        _, hops, size = expected["source"].split("_")
        case = released[size]
        pairs = [pair for pair in case.questions if pair[0].id.startswith(hops)]
        assert (len(pairs), len(case.turns)) == (expected["questions"], expected["facts"])
        assert (pairs[0][0].text, pairs[-1][0].text) == (expected["first_question"], expected["last_question"])
        assert len({gold.answers for _, gold in pairs}) == expected["distinct_golds"]
        context = "".join(f"{line}\n" for line in ("Here is a list of facts:", *(turn.text for turn in case.turns)))
        assert hashlib.sha256(context.encode()).hexdigest() == expected["context_sha256"]


@pytest.mark.data
def test_the_rule_newest_wins_gives_the_measured_shares(released: dict[str, Case]) -> None:
    def count(size: str, **wanted: Any) -> int:
        golds = (gold for _, gold in released[size].questions if gold.category == "single-hop")
        return sum(all(gold.detail[name] == value for name, value in wanted.items()) for gold in golds)

    measured = {
        size: (
            count(size, conflict=True, gold_is_newest=True),
            count(size, conflict=False, gold_is_newest=True),
            count(size, conflict=True, gold_is_newest=False),
        )
        for size in released
    }
    assert measured == {"6k": (74, 26, 0), "32k": (63, 35, 2), "64k": (64, 34, 2), "262k": (74, 23, 3)}
    unreachable = {
        size: sum(gold.category == "multi-hop" and not gold.detail["gold_is_newest"] for _, gold in case.questions)
        for size, case in released.items()
    }
    assert unreachable == {"6k": 2, "32k": 4, "64k": 2, "262k": 12}


@pytest.mark.data
def test_every_fact_is_read_and_no_key_has_more_than_two_facts(released: dict[str, Case]) -> None:
    measured = {}
    for size, case in released.items():
        facts = [read_fact(turn.id, turn.text.partition(". ")[2]) for turn in case.turns]
        keys = Counter(fact.key for fact in facts if fact is not None)
        assert None not in facts
        assert max(keys.values()) == 2
        measured[size] = (len(keys), sum(count == 2 for count in keys.values()))
    assert measured == {"6k": (294, 161), "32k": (1473, 837), "64k": (2889, 1691), "262k": (11096, 7236)}
    golds = [(case, gold) for case in released.values() for _, gold in case.questions]
    assert all(any(gold.answers[0] in turn.text for turn in case.turns) for case, gold in golds)
