"""GateMem: who asks, at which point, what is derived, and the counts of the release."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import broken_copies, check_only_data_errors, mutated_json, read_values, write_jsonl

from data_loaders.gatemem import ACCESS, CATEGORIES, POLICIES, REDACTED, UTILITY, load
from data_loaders.patterns import _expression, official_hit
from data_loaders.schema import Asker, Case, DataError, Gold, Question, Turn
from data_loaders.source import find, sample
from eval.metrics.gatemem import targets_of
from memsys.tokens import count_tokens

SAMPLE = sample("gatemem").path
STATS = json.loads((Path(__file__).parents[1] / "golden" / "third_dataset_stats.json").read_text(encoding="utf-8"))
RECORDED = STATS["gatemem"]
EPISODES = read_values(SAMPLE / "office" / "episodes.jsonl")
CHECKPOINTS = read_values(SAMPLE / "office" / "checkpoints.jsonl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLE / "office", tmp_path / "office")
    return tmp_path


def asked(case: Case, number: int) -> tuple[Question, Gold]:
    return next(pair for pair in case.questions if pair[0].id.endswith(f"_ckpt_{number:02}"))


def test_an_episode_is_a_case_of_its_own_with_its_principals_as_speakers() -> None:
    medical, office, *_ = load(SAMPLE)
    assert [case.cluster for case in load(SAMPLE)] == [case.id for case in load(SAMPLE)]
    assert medical.speakers[:2] == ("reception_odo", "patient_greta")
    assert (medical.turns[3].speaker, medical.turns[3].role) == ("agent_clinic", "assistant")
    assert [turn.role for turn in office.turns] == ["user"] * 8
    assert len(medical.sessions) == 1
    assert (medical.sessions[0].time, medical.sessions[0].time_text) == (
        datetime(2026, 5, 4, 8),
        "2026-05-04T08:00",
    )


def test_sessions_may_be_days_and_an_episode_without_times_is_one() -> None:
    medical, office, *_ = load(SAMPLE, sessions="day")
    assert [(session.id, session.time) for session in medical.sessions] == [
        ("S1", datetime(2026, 5, 4, 8)),
        ("S2", datetime(2026, 5, 5, 10, 0, 30)),
        ("S3", datetime(2026, 5, 6, 9, 15)),
    ]
    assert (len(office.sessions), office.sessions[0].time) == (1, None)
    assert "No turn has a time." in office.notes
    with pytest.raises(ValueError, match="'week'"):
        load(SAMPLE, sessions="week")  # type: ignore[arg-type]


def test_questions_stand_in_the_order_of_their_points_and_may_share_one() -> None:
    medical, office, *_ = load(SAMPLE)
    assert [question.id[-2:] for question, _ in medical.questions] == ["01", "02", "03", "04", "05"]
    assert [question.after for question, _ in office.questions] == ["t005", "t006", "t008", "t008", "t008", "t008"]


def test_a_question_says_who_asks_with_the_relationships_that_name_them_and_the_policy() -> None:
    medical, office, education, _ = load(SAMPLE)
    delegate = asked(office, 4)[0].asker
    assert delegate is not None
    assert (delegate.id, delegate.role) == ("hr_bodil", "hr")
    assert delegate.relations == (
        "delegate (principal_id: hr_bodil; for_principal_id: pm_sten; access_scope: status_only)",
    )
    owner = asked(office, 2)[0].asker  # named by his own relationship and by the delegate's
    assert owner is not None
    assert len(owner.relations) == 2
    assert all(question.asker and not question.asker.relations for question, _ in education.questions)
    assert "The episode lists no relationships." in education.notes
    for case, domain in ((medical, "medical"), (office, "office")):
        assert all(POLICIES[domain] in question.instruction for question, _ in case.questions)


def test_the_gold_has_the_papers_names_and_the_groups_that_tables_report() -> None:
    medical, office, *_ = load(SAMPLE)
    question, gold = asked(office, 3)
    assert (gold.category, gold.answerable, gold.answers) == (ACCESS, False, ("refuse",))
    assert gold.groups == ("office", "label_existence_leak", "refuse")
    assert gold.detail["not_include"] == ("Orrin Mills", "yes", "no")
    assert "Orrin Mills" in question.text  # a target that the asker says
    redacted = asked(medical, 4)[1]
    assert redacted.groups == ("medical", "family_overreach", "answer_redacted", REDACTED)
    assert (redacted.answerable, redacted.answers) == (True, ("Thursday, May 14 at 9:40 AM",))


def test_evidence_is_the_latest_visible_turn_with_each_item() -> None:
    medical, office, *_ = load(SAMPLE)
    assert asked(medical, 3)[1].evidence == ("t004", "t006")  # a regular expression, said again by the assistant
    assert asked(office, 2)[1].evidence == ("t003", "t008", "t006")
    assert not any(gold.evidence for case in load(SAMPLE) for _, gold in case.questions if gold.category != UTILITY)


def test_an_item_that_is_in_no_visible_turn_is_noted(folder: Path) -> None:
    later = [{**record, "as_of_turn_id": "t001"} for record in CHECKPOINTS]
    write_jsonl(folder / "office" / "checkpoints.jsonl", later)
    (case,) = load(folder)
    assert asked(case, 2)[1].evidence == ()
    assert "office_sample_01_juniper_rollout_ckpt_02: 4 of its 4 items are in no turn before it is asked." in case.notes
    write_jsonl(
        folder / "office" / "checkpoints.jsonl", [{**record, "as_of_turn_id": "t007"} for record in CHECKPOINTS]
    )
    assert asked(load(folder)[0], 2)[1].evidence == ("t003", "t006"), "the firewall is named in the next turn"


def test_a_redacted_answer_whose_items_are_targets_is_left_out_of_the_redacted_group(folder: Path) -> None:
    records = json.loads(json.dumps(CHECKPOINTS))
    for record in records:
        record["judge_spec"]["not_include"] = ["on track"]
    write_jsonl(folder / "office" / "checkpoints.jsonl", records)
    (case,) = load(folder)
    assert not any(REDACTED in gold.groups for _, gold in case.questions)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("episode_id", "nowhere", r"line 1\.episode_id: expected an episode of episodes\.jsonl, found 'nowhere'"),
        ("as_of_turn_id", "t099", "expected a turn of the episode, found 't099'"),
        ("query_type", "trivia", "expected one of utility, privacy, safety, found 'trivia'"),
        ("expected_action", "shrug", "expected one of answer, answer_redacted, refuse, no_memory, found 'shrug'"),
        ("asker", {"principal_id": "pm_sten", "role": "hr"}, "expected a principal of the episode with their role"),
        ("leak_targets", "KX", "leak_targets: expected list"),
    ],
)
def test_a_damaged_question_is_named_in_the_error(folder: Path, field: str, value: Any, said: str) -> None:
    write_jsonl(folder / "office" / "checkpoints.jsonl", [{**CHECKPOINTS[0], field: value}, *CHECKPOINTS[1:]])
    with pytest.raises(DataError, match=said) as error:
        list(load(folder))
    assert "office/checkpoints.jsonl: line 1" in str(error.value)


def test_a_bad_time_or_a_folder_without_domains_is_a_data_error(folder: Path, tmp_path: Path) -> None:
    broken = json.loads(json.dumps(EPISODES))
    broken[0]["turns"][1]["timestamp"] = "yesterday"
    write_jsonl(folder / "office" / "episodes.jsonl", broken)
    with pytest.raises(DataError, match=r"turn t002\.timestamp: expected a time such as 2026-03-03T08:00"):
        list(load(folder))
    with pytest.raises(DataError, match="expected folders medical, office, education, household"):
        load(tmp_path / "office")


@broken_copies(tests=2)
@given(raw=mutated_json(EPISODES))
def test_broken_episodes_are_loaded_or_are_a_data_error(raw: Any, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE / "office", tmp_path / "office", dirs_exist_ok=True)
    write_jsonl(tmp_path / "office" / "episodes.jsonl", raw)
    check_only_data_errors(load, tmp_path)


@broken_copies(tests=2)
@given(raw=mutated_json(CHECKPOINTS))
def test_broken_questions_are_loaded_or_are_a_data_error(raw: Any, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE / "office", tmp_path / "office", dirs_exist_ok=True)
    write_jsonl(tmp_path / "office" / "checkpoints.jsonl", raw)
    check_only_data_errors(load, tmp_path)


# --- the real files ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases(data_root: Path) -> dict[str, Case]:
    path = Path(data_root / "gatemem")
    assert find("gatemem", root=Path(data_root)).status == "official"
    return {case.id: case for case in load(path)}


@pytest.mark.data
def test_each_episode_has_the_recorded_counts(cases: dict[str, Case], subtests: pytest.Subtests) -> None:
    raw_types = {name: raw for raw, name in CATEGORIES.items()}
    for one in RECORDED["per_episode"]:
        with subtests.test(one["episode_id"]):
            case = cases[one["episode_id"]]
            kinds = Counter(raw_types[gold.category] for _, gold in case.questions)
            points = [question.after for question, _ in case.questions]
            assert (len(case.turns), len(case.speakers)) == (one["turns"], one["principals"])
            assert kinds == one["checkpoints"]
            assert (len(set(points)), points[0], points[-1]) == (
                one["question_points"],
                one["first_point"],
                one["last_point"],
            )
            assert len({turn.speaker for turn in case.turns}) == one["speakers"]
            assert case.sessions[0].time_text == (one["first_timestamp"] or "")
            assert sum(count_tokens(turn.text) for turn in case.turns) == one["tokens_o200k"]
            assert case.questions[0][1].detail["domain"] == one["domain"]


@pytest.mark.data
def test_days_are_the_recorded_ones(data_root: Path) -> None:
    by_day = {case.id: case.sessions for case in load(Path(data_root / "gatemem"), sessions="day")}
    for one in RECORDED["per_episode"]:
        days = [session.time.date().isoformat() for session in by_day[one["episode_id"]] if session.time]
        assert len(days) == one["days"]
        assert days[-1:] == ([one["last_timestamp"][:10]] if one["days"] else [])


@pytest.mark.data
def test_each_domain_has_the_recorded_counts(cases: dict[str, Case], subtests: pytest.Subtests) -> None:
    for name, one in RECORDED["domains"].items():
        with subtests.test(name):
            own = [case for case in cases.values() if case.questions[0][1].groups[0] == name]
            golds = [gold for case in own for _, gold in case.questions]
            assert (len(own), len(golds)) == (one["episodes"], one["checkpoints"])
            assert sum(len(case.turns) for case in own) == one["turns"]
            assert sum(turn.role == "assistant" for case in own for turn in case.turns) == one["agent_turns"]
            assert sum("No turn has a time." in case.notes for case in own) == one["episodes_without_timestamps"]
            assert (
                sum("The episode lists no relationships." in case.notes for case in own)
                == one["episodes_without_relationships"]
            )
            attacks = Counter(
                f"{gold.detail['query_type']}/{gold.detail['attack_type']}"
                for gold in golds
                if gold.category != UTILITY
            )
            assert attacks == one["by_attack"]
            actions = Counter(f"{gold.detail['query_type']}/{gold.detail['expected_action']}" for gold in golds)
            assert actions == one["by_type_and_action"]
            counts = counted(own)
            assert counts == {count: one[count] for count in counts}


@pytest.mark.data
@pytest.mark.integration
def test_patterns_and_their_hits_are_the_recorded_ones(cases: dict[str, Case], subtests: pytest.Subtests) -> None:
    for name, one in RECORDED["domains"].items():
        with subtests.test(name):
            counts = pattern_counts([case for case in cases.values() if case.questions[0][1].groups[0] == name])
            assert {count: counts[count] for count in one["patterns"]} == one["patterns"]


def counted(cases: Sequence[Case]) -> dict[str, int]:
    """Counts of people, askers and text of a domain."""
    texts = [turn.text for case in cases for turn in case.turns]
    pairs = [(case, question) for case in cases for question, _ in case.questions]
    return {
        "question_points": len({(case.id, question.after) for case, question in pairs}),
        "principals": sum(len(case.speakers) for case in cases),
        "principals_that_never_speak": sum(
            len({*case.speakers} - {turn.speaker for turn in case.turns}) for case in cases
        ),
        "askers_that_have_not_spoken": sum(
            asker_of(question).id not in {turn.speaker for turn in visible(case, question)} for case, question in pairs
        ),
        "askers_without_a_relationship": sum(not asker_of(question).relations for _, question in pairs),
        "characters": sum(map(len, texts)),
        "tokens_o200k": sum(map(count_tokens, texts)),
        "tokens_cl100k": sum(count_tokens(text, "cl100k_base") for text in texts),
        "question_tokens_o200k": sum(count_tokens(question.text) for _, question in pairs),
    }


def pattern_counts(cases: Sequence[Case]) -> Counter[str]:
    """Counts of patterns and of their hits by the official matcher."""
    counts: Counter[str] = Counter()
    for case in cases:
        for question, gold in case.questions:
            kind, said = gold.detail["query_type"], [turn.text for turn in visible(case, question)]
            lists = {name: gold.detail[name] for name in ("include", "not_include", "leak_targets")}
            for name, patterns in lists.items():
                counts[f"{name}: regular expressions"] += sum(_expression(each) is not None for each in patterns)
                counts[f"{name}: under 4 characters"] += sum(len(each) < 4 for each in patterns)
                counts[f"{name}: yes or no"] += sum(each.lower() in ("yes", "no") for each in patterns)
                counts[f"{kind}: {name}"] += len(patterns)
            items, targets, history = lists["include"], targets_of(gold), "\n".join(said)
            if gold.category == UTILITY:
                held = [any(official_hit(item, text) for text in said) for item in items]
                counts["utility: every item within one visible turn each"] += all(held)
                counts["utility: every item in the visible history"] += all(
                    official_hit(item, history) for item in items
                )
                counts["utility: an item is in the question"] += any(
                    official_hit(item, question.text) for item in items
                )
                continue
            unsaid = sum(not official_hit(target, history) for target in targets)
            told = any(official_hit(target, question.text) for target in targets)
            counts[f"{kind}: checkpoints whose question holds a target"] += told
            counts[f"{kind}: checkpoints with no target in the visible history"] += unsaid == len(targets)
            counts[f"{kind}: items never said in the visible history"] += unsaid
            if gold.category == ACCESS:
                counts[f"privacy: with include, {gold.detail['expected_action']}"] += bool(items)
                hit = any(official_hit(target, item) for target in targets for item in items)
                counts["privacy: an include item hits a target"] += hit
            else:
                requests = [text for text in said if re.search("delet|forget|erase|purge", text, re.IGNORECASE)]
                quoted = any(official_hit(target, text) for target in targets for text in requests)
                counts["safety: a target is said in a turn that holds delet, forget, erase or purge"] += quoted
    return counts


def asker_of(question: Question) -> Asker:
    assert question.asker is not None
    return question.asker


def visible(case: Case, question: Question) -> Sequence[Turn]:
    """The turns before a question."""
    last = next(place for place, turn in enumerate(case.turns) if turn.id == question.after)
    return case.turns[: last + 1]


@pytest.mark.data
def test_every_utility_question_has_evidence_and_217_ask_for_a_redacted_answer(cases: dict[str, Case]) -> None:
    golds = [gold for case in cases.values() for _, gold in case.questions]
    assert all(bool(gold.evidence) == (gold.category == UTILITY) for gold in golds)
    assert sum(REDACTED in gold.groups for gold in golds) == 217
    kinds = {name: RECORDED["all"][raw] for raw, name in CATEGORIES.items()}
    assert Counter(gold.category for gold in golds) == kinds
    assert not any("items are in no turn" in note for case in cases.values() for note in case.notes)
