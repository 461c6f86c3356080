"""The suite `change`: what is put into a host, where, and what of it a memory sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

from data_loaders import locomo, source
from data_loaders.change import CLEAN, HELD_OUT, MAIN, SUBJECTS, VARIANTS, Wordings, change, probes
from data_loaders.patterns import holds
from data_loaders.schema import Case, DataError, Session, Turn
from memsys.embed import stem


@pytest.fixture(scope="module")
def cases() -> Sequence[Case]:
    return locomo.load(source.sample("locomo.json").path)


@pytest.fixture(scope="module")
def suite(cases: Sequence[Case]) -> list[Case]:
    return list(change(cases, seed=1, size=48))


def put_in(case: Case, own: set[str]) -> list[Turn]:
    return [turn for turn in case.turns if turn.id not in own]


def test_every_host_has_a_case_of_each_family_and_a_clean_build(suite: list[Case]) -> None:
    families = Counter(case.id.rpartition("--")[2] for case in suite)
    assert families == dict.fromkeys([*VARIANTS, CLEAN], 3)
    assert Counter(gold.category for case in suite for _, gold in probes(case)) == dict.fromkeys(VARIANTS, 48)
    assert {case.cluster for case in suite} == {"conv-901--w1", "conv-902--w1", "conv-903--w1"}


def test_every_variant_is_drawn(suite: list[Case]) -> None:
    drawn = {(gold.category, gold.detail["variant"]) for case in suite for _, gold in probes(case)}
    wanted = {(family, variant) for family, variants in VARIANTS.items() for variant in variants}
    assert drawn | {("poison", "flood"), ("poison", "erase")} == wanted  # three hosts draw three mails


def test_facts_come_in_the_first_third_changes_in_the_middle_and_nothing_in_the_last(
    suite: list[Case], cases: Sequence[Case]
) -> None:
    own = {turn.id for case in cases for turn in case.turns}
    for case in suite:
        added = [sum(turn.id not in own for turn in session.turns) for session in case.sessions]
        ends = {place: 3 * (place + 1) / len(added) for place, count in enumerate(added) if count}
        assert max(ends.values()) <= 2
        first = {
            turn.id for place, session in enumerate(case.sessions) if ends.get(place, 9) <= 1 for turn in session.turns
        }
        for _, gold in probes(case):
            facts = [turn for turn, edit in gold.detail["edits"].items() if edit == "twin"]
            told = next((turn for turn, edit in gold.detail["edits"].items() if edit in ("probe", "private")), None)
            assert set(facts) <= first
            assert told is None or told in first
    host = {case.id: case.turns for case in cases}
    kept = [(host[case.cluster.partition("--")[0]], [turn for turn in case.turns if turn.id in own]) for case in suite]
    assert all(list(theirs) == ours for theirs, ours in kept), "its own words stay"


def test_turns_are_put_in_as_single_lines_at_the_ends_of_sessions_by_the_host_s_own_speakers(
    suite: list[Case], cases: Sequence[Case]
) -> None:
    own = {turn.id for case in cases for turn in case.turns}
    for case in suite:
        assert all("\n" not in turn.text and turn.speaker in case.speakers for turn in put_in(case, own))
        for session in case.sessions:
            assert sorted(turn.id not in own for turn in session.turns) == [
                turn.id not in own for turn in session.turns
            ]


def test_a_value_is_said_by_the_suite_alone_and_by_one_probe(suite: list[Case], cases: Sequence[Case]) -> None:
    own = {turn.id for case in cases for turn in case.turns}
    for case in suite:
        theirs = "\n".join(turn.text for turn in case.turns if turn.id in own)
        values = [
            value for _, gold in probes(case) for name, value in gold.detail["values"].items() if name != "canary"
        ]
        assert len(values) == len(set(values))
        assert not [value for value in values if holds(theirs, value)]


def test_values_are_distinct_however_few_there_are(monkeypatch: pytest.MonkeyPatch, cases: Sequence[Case]) -> None:
    for name, signs in {"ONSETS": ("z",), "VOWELS": ("a", "u"), "CODAS": ("x", "th")}.items():  # 16 words
        monkeypatch.setattr(f"data_loaders.change.{name}", signs)
    for case in change(cases, seed=1, size=15):
        values = [
            value for _, gold in probes(case) for name, value in gold.detail["values"].items() if name != "canary"
        ]
        assert len(values) == len(set(values))


def test_a_probe_is_read_right_before_its_change_right_after_it_and_at_the_end(suite: list[Case]) -> None:
    case = next(case for case in suite if case.id.endswith("--retract"))
    places = {turn.id: place for place, turn in enumerate(case.turns)}
    asked = {question.id: question for question, _ in case.questions}
    for _, gold in probes(case):
        points = {name: asked[question].after for name, (_, question) in gold.detail["reads"].items()}
        (forget,) = (turn for turn, edit in gold.detail["edits"].items() if edit == "forget")
        assert points["end"] is points["twin"] is None
        assert points["before"] is not None
        assert points["after"] is not None
        told = max(places[turn] for turn, edit in gold.detail["edits"].items() if edit != "forget")
        assert told < places[points["before"]] < places[forget] < places[points["after"]]


def test_changes_of_a_session_share_their_points(suite: list[Case]) -> None:
    for case in suite:
        middle = sum(1 < 3 * (place + 1) / len(case.sessions) <= 2 for place in range(len(case.sessions)))
        assert len({question.after for question, _ in case.questions}) <= 2 * middle + 1


def test_only_yes_no_questions_hold_values_and_none_is_read_before_the_end(suite: list[Case]) -> None:
    for case in suite:
        values = {value for _, gold in probes(case) for value in gold.detail["values"].values()}
        telling = [question for question, _ in case.questions if any(holds(question.text, value) for value in values)]
        assert bool(telling) is case.id.endswith("--yes_no")
        assert not [question for question in telling if question.after is not None]


def test_a_yes_no_probe_asks_about_the_wrong_value_and_about_a_true_one(suite: list[Case]) -> None:
    for case in (case for case in suite if case.id.endswith("--yes_no")):
        asked = {question.id: (question.text, gold) for question, gold in case.questions}
        told = "\n".join(turn.text for turn in case.turns)
        for question, gold in probes(case):
            values, variant = gold.detail["values"], gold.detail["variant"]
            wrong = {"supersede": "old", "echo": "echoed", "users": "others"}.get(variant, "gone")
            assert holds(question.text, values[wrong]) is (variant != "deleted")
            named = gold.detail["owner"] in question.text
            assert (named, " my " in question.text) == (variant == "users", variant != "users"), "whose value it is"
            ((true, affirmed),) = (
                asked[read] for name, (_, read) in gold.detail["reads"].items() if name.startswith("yes")
            )
            right = {"supersede": "new", "echo": "said", "users": "own"}.get(variant, "twin")
            assert holds(true, values.get(right, values["twin"])), "an invented echo has no true value but the twin's"
            assert affirmed.supports == "answer", "it is answered, and has no score of its own"
            assert affirmed.answers == ("yes",)
            assert holds(told, values.get(right, values["twin"]))


def test_what_is_private_is_asked_for_by_the_other_party_and_by_its_owner(suite: list[Case]) -> None:
    for case in (case for case in suite if case.id.endswith("--private")):
        asked = {question.id: question for question, _ in case.questions}
        owner, other = case.speakers
        for _, gold in probes(case):
            askers = {name: asked[read].asker for name, (_, read) in gold.detail["reads"].items()}
            assert {name: asker.id for name, asker in askers.items() if asker} == {
                "before": owner, "after": other, "end": other, "twin": other, "owner": owner,
            }  # fmt: skip
            (fact,) = (turn for turn in case.turns if gold.detail["edits"].get(turn.id) == "private")
            assert any(fact.text.endswith(words) for words in MAIN.private)
            assert (gold.answerable, gold.trap) == (False, gold.detail["values"]["own"])


def test_the_clean_build_is_the_poisoned_one_without_the_mail(suite: list[Case]) -> None:
    made = {case.id: case for case in suite}
    for case in suite:
        if not case.id.endswith("--poison"):
            continue
        clean = made[f"{case.cluster}--{CLEAN}"]
        more = [turn for turn in case.turns if turn not in clean.turns]
        assert [MAIN.mark in turn.text for turn in more] == [True]
        assert [turn for turn in case.turns if turn not in more] == list(clean.turns)
        assert all(gold.supports == "recall" for _, gold in clean.questions)
        for _, gold in probes(case):
            read_case, read = gold.detail["reads"]["clean"]
            assert read_case == clean.id
            assert read in [question.id for question, _ in clean.questions]


def test_an_invented_echo_has_no_fact_behind_it(suite: list[Case]) -> None:
    for case in (case for case in suite if case.id.endswith("--echo")):
        said = "\n".join(turn.text for turn in case.turns)
        for _, gold in probes(case):
            assert holds(said, gold.detail["values"]["said"]) is (gold.detail["variant"] != "invented")
            assert gold.answerable is (gold.detail["variant"] != "invented")


def test_a_denial_says_neither_value_so_that_nobody_is_blamed_for_it() -> None:
    for words in (MAIN, HELD_OUT):
        assert not [text for text in (*words.corrected, *words.done) if "{v}" in text or "{old}" in text]
        assert all(words.mark in text for texts in words.poison.values() for text in texts)
        assert all("{old}" in text and "{v}" in text for text in words.superseded["named"])
        assert not [text for text in words.superseded["plain"] if "{old}" in text]
        assert not [text for text in words.retracted["unnamed"] if "{old}" in text]


def sentences(words: Wordings) -> set[str]:
    found: set[str] = set()
    for field in fields(words):
        value = getattr(words, field.name)
        for each in value.values() if isinstance(value, dict) else [value]:
            found |= {each} if isinstance(each, str) else set(each)
    return found


def test_held_out_wordings_are_other_sentences(cases: Sequence[Case]) -> None:
    assert not sentences(MAIN) & sentences(HELD_OUT)
    main, held = (change(cases, seed=1, size=12, held_out=held)[0] for held in (False, True))
    assert main.id == held.id
    assert {turn.text for turn in main.turns} & {turn.text for turn in held.turns} == {
        turn.text for turn in cases[1].turns if turn in main.turns
    } | {turn.text for turn in cases[0].turns if turn in main.turns} | {
        turn.text for turn in cases[2].turns if turn in main.turns
    }


def test_no_two_subjects_share_a_word() -> None:
    words = [stem(word) for subject in SUBJECTS for word in subject.split()]
    assert len(SUBJECTS) == len(set(SUBJECTS)) == 64
    assert [word for word, count in Counter(words).items() if count > 1] == []


@pytest.mark.slow
def test_a_smaller_suite_is_part_of_a_larger_one_and_the_seed_decides(cases: Sequence[Case]) -> None:
    def said(size: int, seed: int = 1) -> set[tuple[str, str, str]]:
        return {
            (case.id, gold.detail["subject"], str(gold.detail["values"]))
            for case in change(cases, seed=seed, size=size)
            for _, gold in probes(case)
        }

    grown = [said(size) for size in (8, 24, 48, 96)]
    assert [len(each) for each in grown] == [size * len(VARIANTS) for size in (8, 24, 48, 96)]
    assert all(few < more for few, more in pairwise(grown))
    assert not said(24, seed=2) & grown[1]


def test_a_host_has_two_subjects_a_probe_so_that_a_small_data_set_gives_fewer_probes(cases: Sequence[Case]) -> None:
    assert sum(1 for case in change(cases, size=640) for _ in probes(case)) == len(VARIANTS) * 3 * 32


def talk(sessions: int, speakers: Sequence[str] = ("Ina", "Jon")) -> Case:
    made = tuple(
        Session(f"s{number}", tuple(Turn(f"s{number}:{place}", name, "Well.") for place, name in enumerate(speakers)))
        for number in range(sessions)
    )
    return Case("talk", tuple(dict.fromkeys(speakers)), made, ())


@pytest.mark.parametrize(("sessions", "hosts"), [(4, 1), (7, 1), (8, 2), (16, 4), (40, 4)])
def test_a_long_history_gives_windows_of_four_sessions_at_least(sessions: int, hosts: int) -> None:
    suite = list(change([talk(sessions)], size=64))
    windows = {case.cluster: {session.id for session in case.sessions} for case in suite}
    assert len(windows) == hosts
    assert sum(map(len, windows.values())) == len(set().union(*windows.values())) == sessions
    assert min(map(len, windows.values())) >= 4


@pytest.mark.parametrize("case", [talk(3), talk(5, ("Ina", "Ina")), talk(5, ("", "")), replace(talk(5), sessions=())])
def test_a_history_without_sessions_or_a_second_speaker_is_no_host(case: Case) -> None:
    with pytest.raises(DataError, match="four sessions in which two speakers talk"):
        change([case])


def test_the_user_tells_and_the_other_party_echoes() -> None:
    case = talk(4, ("helper bot", "Ina"))
    turns = [
        tuple(replace(turn, role="user" if turn.speaker == "Ina" else "assistant") for turn in s.turns)
        for s in case.sessions
    ]
    sessions = tuple(replace(session, turns=own) for session, own in zip(case.sessions, turns, strict=True))
    made = change([replace(case, sessions=sessions)], size=2)[0]
    assert made.speakers == ("Ina", "helper bot")
    assert {turn.role for turn in made.turns if "+" in turn.id and turn.speaker == "Ina"} == {"user"}


@pytest.mark.data
def test_locomo_gives_forty_hosts_of_147_turns(data_root: Path) -> None:
    suite = change(locomo.load(data_root / "locomo" / "locomo10.json"), seed=1)
    made = list(suite)
    assert len({case.cluster for case in made}) == 40
    assert len(made) == 40 * (len(VARIANTS) + 1)
    assert Counter(gold.category for case in made for _, gold in probes(case)) == dict.fromkeys(VARIANTS, 640)
    own = [sum("+" not in turn.id for turn in case.turns) for case in made if case.id.endswith("--echo")]
    assert sum(own) / 40 == 147.05
