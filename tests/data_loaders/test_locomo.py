from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_json

from data_loaders.locomo import CATEGORIES, UNANSWERABLE, audit_caption, ceilings, evidence_ids, load
from data_loaders.schema import Case, DataError
from data_loaders.source import data_root, find, sample
from data_loaders.units import lost_evidence, make_units
from memsys.lean import hide_modules

SAMPLE = sample("locomo.json").path
RAW = json.loads(SAMPLE.read_text(encoding="utf-8"))


def edited(tmp_path: Path, edit: Callable[[Any], object]) -> Path:
    """The sample after `edit` was applied to its parsed form."""
    raw = json.loads(SAMPLE.read_text(encoding="utf-8"))
    edit(raw)
    return write_json(tmp_path / "locomo.json", raw)


@pytest.fixture(scope="module")
def cases() -> Sequence[Case]:
    return load(SAMPLE)


# --- conversations ---


def test_the_first_speaker_is_the_user(cases: Sequence[Case]) -> None:
    case = cases[0]
    assert case.speakers == ("Ines", "Tobias")
    assert {(turn.speaker, turn.role) for turn in case.turns} == {("Ines", "user"), ("Tobias", "assistant")}
    assert (case.id, case.cluster) == ("conv-901", "conv-901")


def test_dates_without_a_session_are_passed_over(cases: Sequence[Case]) -> None:
    assert "session_8_date_time" in RAW[0]["conversation"]
    assert [session.id for session in cases[0].sessions] == [f"session_{n}" for n in range(1, 7)]


def test_sessions_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    def renumber(raw: Any) -> None:
        talk = raw[0]["conversation"]
        talk["session_10"], talk["session_10_date_time"] = talk.pop("session_2"), talk.pop("session_2_date_time")
        raw[0]["conversation"] = dict(reversed(talk.items()))

    names = [session.id for session in load(edited(tmp_path, renumber))[0].sessions]
    assert names == ["session_1", "session_3", "session_4", "session_5", "session_6", "session_10"]


def test_the_time_is_parsed_and_kept_verbatim(cases: Sequence[Case]) -> None:
    session = cases[0].sessions[0]
    assert (session.time, session.time_text) == (datetime(2022, 3, 3, 19, 42), "7:42 pm on 3 March, 2022")


def test_a_session_without_a_readable_time_is_kept_and_noted(tmp_path: Path) -> None:
    path = edited(tmp_path, lambda raw: raw[0]["conversation"].update(session_2_date_time="soon"))
    case = load(path)[0]
    assert (case.sessions[1].time, case.sessions[1].time_text) == (None, "soon")
    assert "session_2 has no readable time: 'soon'." in case.notes


def test_a_caption_is_folded_into_the_text_and_a_search_string_is_never_ingested(cases: Sequence[Case]) -> None:
    texts = {turn.id: turn.text for turn in cases[0].turns}
    assert texts["D4:7"] == (
        "I also have colours to report. The boat is no longer rust red. "
        "[shares a photo: a photo of a narrowboat with a dark green hull and yellow trim]"
    )
    queries = [turn["query"] for raw in RAW for turn in talk(raw) if "query" in turn]
    assert len(queries) > 10
    everything = " ".join(turn.text for case in cases for turn in case.turns)
    assert not [query for query in queries if query in everything]


def test_a_caption_counts_without_an_image_url(cases: Sequence[Case]) -> None:
    raw = next(turn for turn in talk(RAW[1]) if turn["dia_id"] == "D6:18")
    assert "img_url" not in raw
    assert next(turn for turn in cases[1].turns if turn.id == "D6:18").text.endswith("running across the sea]")


# --- questions ---


def test_categories_are_named_from_their_ids(cases: Sequence[Case]) -> None:
    for (_, gold), raw in zip(cases[0].questions, RAW[0]["qa"], strict=True):
        assert gold.category == CATEGORIES[raw["category"]]
        assert gold.detail["category_id"] == raw["category"]
    assert list(CATEGORIES.values()) == ["multi-hop", "temporal", "open-domain", "single-hop", "adversarial"]


def test_a_number_as_answer_becomes_text(cases: Sequence[Case]) -> None:
    assert RAW[0]["qa"][3]["answer"] == 1974
    assert cases[0].questions[3][1].answers == ("1974",)


def test_an_adversarial_question_wants_to_be_declined_and_keeps_its_trap(cases: Sequence[Case]) -> None:
    gold = cases[0].questions[12][1]
    assert (gold.answers, gold.answerable, gold.trap) == ((UNANSWERABLE,), False, "Brioche")


def test_an_adversarial_question_with_an_answer_of_its_own_is_treated_alike(cases: Sequence[Case]) -> None:
    assert RAW[1]["qa"][14]["answer"] == "No"
    gold = cases[1].questions[14][1]
    assert (gold.answers, gold.answerable, gold.trap) == ((UNANSWERABLE,), False, "Yes")


def test_questions_with_the_same_words_stay_two(cases: Sequence[Case]) -> None:
    (first, _), (second, _) = cases[0].questions[14:16]
    assert first.text == second.text
    assert (first.id, second.id) == ("conv-901_q14", "conv-901_q15")


def test_questions_are_asked_after_the_whole_history_and_show_nothing_of_the_gold(cases: Sequence[Case]) -> None:
    for case in cases:
        for question, _ in case.questions:
            bare = replace(question, id="", text="")
            assert bare == type(question)("", "")


# --- evidence ---


def test_evidence_is_read_tolerantly(subtests: pytest.Subtests) -> None:
    for text, ids in [
        ("D8:6; D9:17", ("D8:6", "D9:17")),
        ("D", ()),
        ("D:11:26", ("D11:26",)),
        ("D9:1 D4:4 D4:6", ("D9:1", "D4:4", "D4:6")),
        ("D30:05", ("D30:5",)),
        ("(D2:3)", ("D2:3",)),
        ("", ()),
    ]:
        with subtests.test(text=text, ids=ids):
            assert evidence_ids(text) == ids


def test_evidence_that_points_nowhere_is_dropped_kept_raw_and_noted(cases: Sequence[Case]) -> None:
    gold = cases[1].questions[11][1]
    assert gold.evidence == ("D1:16", "D4:12")
    assert gold.detail["evidence_raw"] == ("D1:16", "D4:12", "D9:40")
    assert "conv-902_q11: evidence 'D9:40' points to no turn." in cases[1].notes
    assert "conv-902_q15: evidence 'D' is malformed, read as nothing." in cases[1].notes
    assert "conv-902_q3: evidence 'D6:02' is malformed, read as D6:2." in cases[1].notes


# --- errors ---


def bad_speaker(raw: Any) -> None:
    raw[0]["conversation"]["session_2"][4]["speaker"] = "Nobody"


def repeated_turn(raw: Any) -> None:
    raw[0]["conversation"]["session_2"][4]["dia_id"] = "D2:4"


def no_question(raw: Any) -> None:
    del raw[0]["qa"][3]["question"]


def no_answer(raw: Any) -> None:
    del raw[0]["qa"][3]["answer"]


def odd_category(raw: Any) -> None:
    raw[0]["qa"][3]["category"] = 6


def one_speaker(raw: Any) -> None:
    raw[0]["conversation"]["speaker_b"] = "Ines"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            bad_speaker,
            r"locomo\.json: conv-901\.conversation\.session_2\[4\]\.speaker: expected one of Ines, Tobias, found 'N",
        ),
        (repeated_turn, r"locomo\.json: conv-901: expected unique ids, found 'D2:4' twice"),
        (no_question, r"locomo\.json: conv-901\.qa\[3\]\.question: expected a value, found no such field"),
        (no_answer, r"locomo\.json: conv-901\.qa\[3\]\.answer: expected a value"),
        (odd_category, r"qa\[3\]\.category: expected one of \[1, 2, 3, 4, 5\], found 6"),
        (one_speaker, r"expected two speakers, found 'Ines' twice"),
    ],
)
def test_an_error_names_file_record_and_field(edit: Callable[[Any], None], message: str, tmp_path: Path) -> None:
    cases = load(edited(tmp_path, edit))
    with pytest.raises(DataError, match=message):
        cases[0]


def test_a_conversation_that_occurs_twice_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"locomo\.json: expected unique ids, found 'conv-901' twice"):
        load(edited(tmp_path, lambda raw: raw.append(raw[0])))


def test_ids_and_sizes_are_known_before_a_case_is_parsed(tmp_path: Path) -> None:
    broken = load(edited(tmp_path, bad_speaker))
    assert [getattr(broken, each) for each in ("ids", "sizes")] == [
        ("conv-901", "conv-902", "conv-903"),
        (120, 120, 120),
    ]
    assert broken[1].id == "conv-902"


@pytest.mark.slow
@broken_copies()
@given(data=st.data())
def test_a_mutated_file_is_accepted_or_refused_but_never_crashes(data: st.DataObject, tmp_path: Path) -> None:
    raw = data.draw(mutated_json([{**record, "qa": record["qa"][:6]} for record in RAW[:2]]))
    check_only_data_errors(load, write_json(tmp_path / "locomo.json", raw))


def test_a_damaged_file_is_accepted_or_refused_but_never_crashes(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind in sorted(BROKEN_BYTES):
        with subtests.test(kind=kind):
            path = tmp_path / "locomo.json"
            path.write_bytes(BROKEN_BYTES[kind](SAMPLE.read_bytes()))
            check_only_data_errors(load, path)


# --- errata ---


def test_the_overlay_in_raw_mode_only_labels(cases: Sequence[Case]) -> None:
    audited = load(SAMPLE, overlay="audit/errors.json")
    labels = [gold.detail.get("audit") for _, gold in audited[0].questions]
    assert [labels[i] for i in (8, 9, 11, 12)] == ["CORRECT", "WRONG_CITATION", "AMBIGUOUS", None]
    for before, after in zip(cases, audited, strict=True):
        assert [gold.answers for _, gold in after.questions] == [gold.answers for _, gold in before.questions]
        assert [gold.evidence for _, gold in after.questions] == [gold.evidence for _, gold in before.questions]


def test_the_overlay_corrects_answers_that_are_at_fault_and_every_citation() -> None:
    case = load(SAMPLE, overlay="audit/errors.json", overlay_mode="corrected")[0]
    citation, answer = case.questions[9][1], case.questions[11][1]
    assert (citation.answers, citation.evidence) == (("violin, viola",), ("D2:6", "D3:9"))
    assert (answer.answers, answer.evidence) == (("Likely yes where the water is calm",), ("D1:2", "D1:3", "D1:4"))


def test_the_overlay_excludes_only_questions_whose_answer_is_at_fault() -> None:
    case = load(SAMPLE, overlay="audit/errors.json", overlay_mode="excluded")[0]
    ids = [question.id for question, _ in case.questions]
    assert "conv-901_q11" not in ids
    assert ids[9:12] == ["conv-901_q9", "conv-901_q10", "conv-901_q12"]


def test_ceilings_count_faulty_answers_and_leave_adversarial_questions_out() -> None:
    expected = {"multi-hop": 1.0, "temporal": 1.0, "single-hop": 1.0, "open-domain": 3 / 4, "overall": 40 / 41}
    assert ceilings(load(SAMPLE, overlay="audit/errors.json")) == pytest.approx(expected)
    with pytest.raises(ValueError, match="loaded with an overlay"):
        ceilings(load(SAMPLE))
    caption = audit_caption(SAMPLE, overlay="audit/errors.json", overlay_mode="excluded")
    assert (
        ": questions with a faulty answer left out); with the released answers a perfect system gets 97.56 % ("
        in caption
    )
    shares = caption.rpartition(" (")[2].removesuffix(")").split(", ")
    assert sorted(shares) == ["multi-hop 100.00", "open-domain 75.00", "single-hop 100.00", "temporal 100.00"]


def test_an_overlay_for_other_questions_is_refused(tmp_path: Path) -> None:
    path = edited(tmp_path, lambda raw: raw[0]["qa"].pop(0))
    with pytest.raises(DataError, match=r"locomo\.json\[0\]\.qa\[9\]\.question: expected 'Which instruments"):
        load(path, overlay=SAMPLE.parent / "audit" / "errors.json")


def test_an_overlay_with_two_entries_of_a_question_is_refused(tmp_path: Path) -> None:
    errata = json.loads((SAMPLE.parent / "audit" / "errors.json").read_text(encoding="utf-8"))
    (tmp_path / "twice.json").write_text(
        json.dumps([*errata, {**errata[0], "correct_answer": "another"}]), encoding="utf-8"
    )
    with pytest.raises(DataError, match=r"\.question_id: expected unique ids, found 'locomo_0_qa9' twice"):
        load(SAMPLE, overlay=tmp_path / "twice.json")


@pytest.mark.parametrize("damaged", ["a question as text", 7, None, ["a", "list"]])
def test_a_question_that_is_no_object_is_a_data_error_with_the_overlay_too(tmp_path: Path, damaged: object) -> None:
    records = json.loads(SAMPLE.read_text(encoding="utf-8"))
    records[0]["qa"] = [damaged] * len(records[0]["qa"])
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps(records), encoding="utf-8")
    overlay = SAMPLE.parent / "audit" / "errors.json"
    with pytest.raises(
        DataError, match=r"locomo\.json\[0\]\.qa\[\d+\]\.question: expected .* found .*scripts fetch locomo"
    ):
        load(path, overlay=overlay)


def test_a_mode_without_an_overlay_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an overlay"):
        load(SAMPLE, overlay_mode="excluded")
    with pytest.raises(ValueError, match="overlay_mode: expected one of"):
        load(SAMPLE, overlay_mode="fixed")  # type: ignore[arg-type]


# --- the shipped sample ---


def test_the_sample_has_what_it_is_meant_to_show(cases: Sequence[Case]) -> None:
    assert len(cases) == 3
    assert all(len(case.sessions) == 6 and len(session.turns) >= 20 for case in cases for session in case.sessions)
    categories = Counter(gold.category for case in cases for _, gold in case.questions)
    assert categories.total() >= 40
    assert set(categories) == set(CATEGORIES.values())


def test_in_the_sample_bm25_finds_more_evidence_than_recency(cases: Sequence[Case]) -> None:
    with hide_modules("numba"):
        import bm25s

    found = Counter[str]()
    for case in cases:
        units = make_units(case.sessions, "ab_pair").units
        index = bm25s.BM25()
        index.index(bm25s.tokenize([unit.text for unit in units], show_progress=False), show_progress=False)
        for question, gold in case.questions:
            scores = index.get_scores(bm25s.tokenize(question.text, return_ids=False, show_progress=False)[0])
            best = sorted(range(len(units)), key=lambda i: -scores[i])[:5]
            for name, chosen in (("bm25", [units[i] for i in best]), ("recency", units[-5:])):
                recalled = {turn_id for unit in chosen for turn_id in unit.turn_ids}
                found[name] += len(recalled & set(gold.evidence))
            found["all"] += len(gold.evidence)
    assert found["recency"] < 0.25 * found["all"] < 0.5 * found["all"] < found["bm25"] < found["all"]


# --- the real file ---


def real_root() -> Path:
    """MEMSYS_DATA, or the folder of raw data beside the repository."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return beside if beside.is_dir() and "MEMSYS_DATA" not in os.environ else data_root()


@pytest.fixture(scope="module")
def real() -> Path:
    if not (real_root() / "locomo" / "locomo10.json").is_file():
        pytest.skip("no locomo/locomo10.json below MEMSYS_DATA: python -m scripts fetch locomo")
    return find("locomo/locomo10.json", root=real_root()).path


@pytest.fixture(scope="module")
def released(real: Path) -> list[Case]:
    return list(load(real))


@pytest.mark.data
def test_the_released_file_has_its_published_counts(real: Path, released: list[Case]) -> None:
    raw = json.loads(real.read_text(encoding="utf-8"))
    turns = [turn for record in raw for turn in talk(record)]
    golds = [gold for case in released for _, gold in case.questions]
    assert [len(case.sessions) for case in released] == [19, 19, 32, 29, 29, 28, 31, 30, 25, 30]
    assert [len(case.turns) for case in released] == [419, 369, 663, 629, 680, 675, 689, 681, 509, 568]
    assert [len(case.questions) for case in released] == [199, 105, 193, 260, 242, 158, 190, 239, 196, 204]
    assert sum(len(turn["text"].split()) for turn in turns) == 133_772
    assert Counter(gold.detail["category_id"] for gold in golds) == {1: 282, 2: 321, 3: 96, 4: 841, 5: 446}
    assert sum("[shares a photo: " in turn.text for case in released for turn in case.turns) == 1226
    assert [sum(key in turn for turn in turns) for key in ("img_url", "query", "re-download")] == [910, 888, 206]
    assert sum(isinstance(question.get("answer"), int) for record in raw for question in record["qa"]) == 6
    assert sum(not gold.detail["evidence_raw"] for gold in golds) == 4
    assert sum(gold.trap is not None for gold in golds) == 446
    assert sum("answer" in question for record in raw for question in record["qa"] if question["category"] == 5) == 2
    cited = [text for gold in golds for text in gold.detail["evidence_raw"]]
    assert sum(re.fullmatch(r"D\d+:\d+", text) is None for text in cited) == 6
    observed = [each for record in raw for session in record["observation"].values() for each in session.values()]
    assert sum(map(len, observed)) == 2541


@pytest.mark.data
def test_each_released_conversation_has_its_people_times_and_categories(released: list[Case]) -> None:
    per_case = [
        ("conv-26", "Caroline", "Melanie", "1:56 pm on 8 May, 2023", "9:55 am on 22 October, 2023", (32, 37, 13, 70, 47)),
        ("conv-30", "Jon", "Gina", "4:04 pm on 20 January, 2023", "6:46 pm on 23 July, 2023", (11, 26, 0, 44, 24)),
        ("conv-41", "John", "Maria", "11:01 am on 17 December, 2022", "11:08 am on 16 August, 2023", (31, 27, 8, 86, 41)),
        ("conv-42", "Joanna", "Nate", "7:31 pm on 21 January, 2022", "12:06 am on 11 November, 2022", (37, 40, 11, 111, 61)),
        ("conv-43", "Tim", "John", "7:48 pm on 21 May, 2023", "1:41 pm on 12 January, 2024", (31, 26, 14, 107, 64)),
        ("conv-44", "Audrey", "Andrew", "1:10 pm on 27 March, 2023", "9:02 am on 22 November, 2023", (30, 24, 7, 62, 35)),
        ("conv-47", "James", "John", "3:47 pm on 17 March, 2022", "8:57 pm on 7 November, 2022", (20, 34, 13, 83, 40)),
        ("conv-48", "Deborah", "Jolene", "4:06 pm on 23 January, 2023", "10:17 am on 20 September, 2023", (21, 42, 10, 118, 48)),
        ("conv-49", "Evan", "Sam", "1:47 pm on 18 May, 2023", "9:37 pm on 11 January, 2024", (37, 33, 13, 73, 40)),
        ("conv-50", "Calvin", "Dave", "11:53 am on 23 March, 2023", "10:54 am on 17 November, 2023", (32, 32, 7, 87, 46)),
    ]  # fmt: skip
    for case, (name, first, second, start, end, counts) in zip(released, per_case, strict=True):
        found = Counter(gold.detail["category_id"] for _, gold in case.questions)
        assert (case.id, case.speakers) == (name, (first, second))
        assert (case.sessions[0].time_text, case.sessions[-1].time_text) == (start, end)
        assert tuple(found[category] for category in CATEGORIES) == counts
        assert all(session.time is not None for session in case.sessions)


@pytest.mark.data
def test_the_released_file_has_its_known_oddities(released: list[Case]) -> None:
    notes = [note for case in released for note in case.notes]
    assert [note.split(":")[0] for note in notes if "malformed" in note] == [
        "conv-26_q37", "conv-42_q88", "conv-43_q18", "conv-49_q31", "conv-49_q38", "conv-49_q46", "conv-50_q69",
    ]  # fmt: skip
    assert [note for note in notes if "no turn" in note] == [
        "conv-42_q58: evidence 'D10:19' points to no turn.",
        "conv-47_q38: evidence 'D4:36' points to no turn.",
    ]
    repeats = {
        case.id: len(case.questions) - len({question.text for question, _ in case.questions}) for case in released
    }
    assert {name: n for name, n in repeats.items() if n} == {"conv-30": 1, "conv-48": 11}
    assert [released[0].questions[i][1].answers for i in (167, 178)] == [(UNANSWERABLE,)] * 2


@pytest.mark.data
def test_the_released_file_gives_the_published_numbers_of_units(released: list[Case]) -> None:
    pairs = {case.id: make_units(case.sessions, "ab_pair") for case in released}
    assert sum(len(each.units) for each in pairs.values()) / 10 == pytest.approx(280.7)
    assert len(pairs["conv-47"].units) == 329
    assert sum(len(make_units(case.sessions, "floor_pair").units) for case in released) == 2871
    assert sum(len(make_units(case.sessions, "utterance").units) for case in released) == 5882
    assert sum(len(lost_evidence(case, pairs[case.id].dropped)) for case in released) == 183


@pytest.mark.parametrize(
    ("mode", "used"), [("raw", "as released"), ("corrected", "corrected"), ("excluded", "left out")]
)
def test_a_caption_says_how_the_audit_was_used_and_what_the_released_answers_allow(mode: Any, used: str) -> None:
    said = audit_caption(SAMPLE, overlay="audit/errors.json", overlay_mode=mode)
    assert used in said
    assert "a perfect system gets 97.56 %" in said
    assert "open-domain 75.00" in said


@pytest.mark.data
def test_the_audit_gives_its_published_ceilings(real: Path) -> None:
    if not (real.parent / "audit" / "errors.json").is_file():
        pytest.skip("no locomo/audit/errors.json below MEMSYS_DATA: python -m scripts fetch locomo_corrected")
    found = ceilings(load(real, overlay="audit/errors.json"))
    published = {"multi-hop": 90.07, "temporal": 91.90, "open-domain": 90.62, "single-hop": 95.72, "overall": 93.57}
    assert {name: 100 * value for name, value in found.items()} == pytest.approx(published, abs=0.006)
    excluded = load(real, overlay="audit/errors.json", overlay_mode="excluded")
    assert sum(len(case.questions) for case in excluded) == 1986 - 99
    corrected = load(real, overlay="audit/errors.json", overlay_mode="corrected")
    assert corrected[0].questions[5][1].answers[0].startswith("The Saturday before 25 May 2023")


def talk(record: Any) -> list[Any]:
    """All raw turns of a record."""
    return [turn for value in record["conversation"].values() if isinstance(value, list) for turn in value]
