"""Published answers are judged again: the plan is agreed to first, verdicts are kept, failures counted, graders compared."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_loaders.source import sample
from eval.files.store import RunError
from scripts.answers.audit import Grader, Judged, keep, kept
from scripts.answers.declared import parsed
from scripts.answers.manifest import FOLDER, AnswersFile, Claim
from scripts.command import verb
from scripts.commands.claims import _judged
from scripts.door import Lab
from scripts.lab.rejudging import rejudge, shown
from scripts.mock.endpoint import Mock, application, serving

FACTS = dict.fromkeys(("product", "by", "repository", "commit", "date", "licence", "answer_model"), "x")
CLAIM = Claim("theirs", "LoCoMo", system="Theirs", judge="", form="mem0", files=(), **FACTS)
QUESTIONS = (
    "When did Ines start her apprenticeship?",
    "What is the name of Ines's cat?",
    "How did Ines break her wrist?",
)
KEYS = [(f"c{case}", f"q{at}") for case in range(6) for at in range(50)]
CLUSTERS = {key: key[0] for key in KEYS}


@pytest.fixture
def claim(tmp_path: Path) -> Claim:
    """Three answers to questions of the sample, two of which their authors call right."""
    records = [
        {"question": each, "answer": "x", "response": "Brioche", "llm_score": int(at < 2)}
        for at, each in enumerate(QUESTIONS)
    ]
    place = tmp_path / FOLDER / "theirs.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"0": records}))
    return replace(CLAIM, files=(AnswersFile("a.json", place.name, parsed(place).sha256, 1),))


@pytest.fixture
def mock() -> Iterator[tuple[Mock, str]]:
    server = Mock(hang=3.0)
    with serving(application(server)) as url:
        yield server, url


def hosted(url: str, results: Path, *more: str) -> Lab:
    models = [
        f"models.{role}={name}" for role, name in zip(("memory", "reader", "judge", "embedder"), "mrje", strict=True)
    ]
    prices = "prices={m: free, e: free, r: free, j: {in: 1, out: 10}}"
    return Lab(
        f"results={results}", "network=true", f"endpoint.base_url={url}", "endpoint.label=mock", *models, prices, *more,
        probe=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_stand_in_is_named_and_both_graders_stand_side_by_side(claim: Claim, tmp_path: Path) -> None:
    lab = Lab("profile=smoke", f"results={tmp_path / 'results'}")
    gone = replace(claim, name="gone", files=(replace(claim.files[0], held="gone.json"),))
    text, code = rejudge([claim, gone], ["mem0"], lab, tmp_path)
    assert "STAND-IN" in text
    assert "| stored verdict | 3 | 0 | 0.667" in text
    assert "| mem0 by extractive (stand-in) | 3 | 0 |" in text
    assert "- gone: 1 of 1 files are not there" in text
    assert code == 1
    judged = kept(tmp_path / "results", claim)
    assert judged is not None
    assert [each.name for each in judged.graders] == ["theirs_judge", "mem0 by extractive (stand-in)"]
    assert list(judged.graders[0].values.values()) == [1.0, 1.0, 0.0]
    assert judged.sha256 == claim.files[0].sha256
    assert kept(tmp_path / "results", gone) is None


@pytest.mark.slow
def test_answers_to_questions_that_are_not_held_are_judged_with_the_gold_of_their_own_file(tmp_path: Path) -> None:
    questions = ("Who baked it?", "Who baked it?", "Who flew?")  # one text twice: two questions
    records = [
        {"question": each, "answer": gold, "response": "Ines baked it", "llm_score": at % 2}
        for at, (each, gold) in enumerate(zip(questions, ("Ines", "Tom", ""), strict=True))
    ]
    place = tmp_path / FOLDER / "theirs.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"0": records}))
    files = (AnswersFile("a.json", place.name, parsed(place).sha256, 1),)
    unheld = [replace(CLAIM, dataset=name, tier=tier, files=files) for name, tier in (("BEAM", "10M"), ("HaluMem", ""))]
    lab = Lab("profile=smoke", f"results={tmp_path / 'results'}")
    for claim, folder in zip(unheld, ("beam_10m", "halumem"), strict=True):
        text, code = rejudge([claim], ["mem0", "beam_official"], lab, tmp_path)
        assert code == 0
        assert "| stored verdict | 2 | 0 | 0.500" in text
        assert "| mem0 by extractive (stand-in) | 2 | 0 | 0.500" in text, "right by one gold, wrong by the other"
        assert "- Left out: 1 answer without" in text, "without a gold answer there is nothing to compare with"
        (run,) = (tmp_path / "results" / "runs" / folder).iterdir()
        assert json.loads((run / "run.json").read_text())["data_status"] == "derived"


@pytest.mark.slow
def test_a_judge_that_cannot_grade_a_data_set_is_named_before_anything_is_judged(claim: Claim, tmp_path: Path) -> None:
    lab = Lab("profile=smoke", f"results={tmp_path / 'results'}")
    with pytest.raises(RunError, match="theirs: judge longmemeval cannot grade these data"):
        rejudge([claim], ["mem0", "longmemeval"], lab, tmp_path)
    with pytest.raises(RunError, match="judge longmemeval cannot grade these data"):
        lab.ask("bm25", "locomo", judges=["longmemeval"])
    assert not list((tmp_path / "results").glob("runs/locomo/*/scores/judge_*")), "nothing was judged"
    assert not list((tmp_path / "results").glob("runs/locomo/bm25-*/cases")), "no question was answered"


def judged_alone(tmp_path: Path, questions: list[str], **facts: str) -> str:
    """The page of a claim that answers these questions, whose data set is there without any history."""
    records = [{"conversation": "x", "question": each, "answer": "Brioche", "verdicts": [1]} for each in questions]
    place = tmp_path / FOLDER / "theirs.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(records))
    file = AnswersFile("a.json", place.name, parsed(place).sha256, 1)
    real = ("data.source=real", f"data.root={tmp_path}", "data.unpinned=true")
    lab = Lab("profile=smoke", f"results={tmp_path / 'results'}", *real)
    text, code = rejudge([replace(CLAIM, form="extract", files=(file,), **facts)], ["mem0"], lab, tmp_path)
    assert code == 0, text
    return text


@pytest.mark.slow
def test_a_claim_on_beam_is_judged_on_the_questions_of_its_tier_without_the_chats(tmp_path: Path) -> None:
    tier = tmp_path / "beam" / "chats" / "100K"
    shutil.copytree(sample("beam").path, tier)
    for chat in tier.glob("*/chat*.json"):
        chat.unlink()
    asked = json.loads((tier / "2" / "probing_questions" / "probing_questions.json").read_text(encoding="utf-8"))
    texts = [each["question"] for questions in asked.values() for each in questions]
    text = judged_alone(tmp_path, texts, dataset="BEAM", tier="100K")
    assert f"| mem0 by extractive (stand-in) | {len(texts)} | 0 |" in text


@pytest.mark.slow
def test_a_claim_on_longmemeval_is_judged_where_only_the_list_of_questions_is_there(tmp_path: Path) -> None:
    kinds = ("multi-session", "temporal-reasoning", "knowledge-update")
    rows = [
        {"question_id": f"q{at}", "question_type": kind, "question": f"Who baked it {at}?", "answer": at}
        for at, kind in enumerate(kinds)
    ]
    rows.append({**rows[0], "question_id": "q9_abs", "question": "Who flew?", "answer_session_ids": None})
    place = tmp_path / "longmemeval" / "longmemeval_questions_500.json"
    place.parent.mkdir()
    place.write_text(json.dumps(rows))
    text = judged_alone(tmp_path, [row["question"] for row in rows], dataset="LongMemEval")
    assert "| mem0 by extractive (stand-in) | 4 | 0 |" in text


@pytest.mark.parametrize(
    "damage", ['{"claim": "theirs"}', "[", '"x"', '{"claim": "theirs", "graders": [{"values": [[1]]}]}']
)
def test_a_damaged_file_of_verdicts_is_named(tmp_path: Path, damage: str) -> None:
    keep(tmp_path, CLAIM, Judged((grader("theirs_judge", {("c", "q"): 1.0}),), "ab"))
    assert kept(tmp_path, CLAIM) == Judged((grader("theirs_judge", {("c", "q"): 1.0}),), "ab")
    (file,) = (tmp_path / "claims" / "rejudged").iterdir()
    file.write_text(damage)
    with pytest.raises(RunError, match=r"theirs\.json: no verdicts of judges; delete it"):
        kept(tmp_path, CLAIM)


@pytest.mark.slow
def test_a_paid_judge_is_asked_only_after_the_plan_is_agreed_to_and_only_once(
    claim: Claim,
    mock: tuple[Mock, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115 - no terminal to ask on
    server, url = mock
    server.said = lambda body, key: "I cannot say." if "wrist" in str(body["messages"]) else '{"label": "CORRECT"}'
    results = tmp_path / "results"

    def sent(*more: str) -> tuple[tuple[str, int], int]:
        """What judging returns, and the calls that it sent."""
        lab = hosted(url, results, "endpoint.probe=false", *more)
        before = sum(server.arrivals.values())
        return rejudge([claim], ["mem0"], lab, tmp_path), sum(server.arrivals.values()) - before

    assert sent() == (("", 3), 0)
    planned = capsys.readouterr().out
    assert "judge    j" in planned
    assert "3 calls" in planned
    (text, code), calls = sent("yes=true")
    assert calls == 3
    assert "| mem0 by j | 2 | 1 | 1.000" in text, "a reply without a verdict is counted"
    assert code == 1
    assert sent("yes=true")[1] == 0, "replies are cached"


def grader(name: str, values: Mapping[tuple[str, str], float], failed: int = 0) -> Grader:
    return Grader(name, values, failed)


def test_kappa_is_over_what_both_graded_and_failures_are_counted() -> None:
    first = grader("theirs_judge", {key: float(at % 2) for at, key in enumerate(KEYS)})
    second = grader("mem0 by j", {key: float(at % 2) for at, key in enumerate(KEYS) if at < 200}, 100)
    text = "\n".join(shown(CLAIM, [first, second], CLUSTERS))
    assert "| mem0 by j | 200 | 100 |" in text
    assert "stored verdict 1.000" in text
    assert "on 200" in text
    assert "prediction-powered" not in text, "the stored verdicts are no labels by people"


def test_labels_by_people_give_a_prediction_powered_score_of_all_answers() -> None:
    labelled: Any = replace(CLAIM, judge="people")
    people = grader("theirs_judge", {key: float(at % 3 > 0) for at, key in enumerate(KEYS) if at % 5 == 0})
    judge = grader("mem0 by j", {key: float(at % 3 > 0) for at, key in enumerate(KEYS)})
    (line,) = [line for line in shown(labelled, [people, judge], CLUSTERS) if "prediction-powered" in line]
    assert line.startswith("- prediction-powered by mem0 by j: 0.667")
    assert line.endswith("from 60 labels and 300 verdicts")
    few = grader("theirs_judge", dict(list(people.values.items())[:9]))
    assert "9 ratings of the random sample" in shown(labelled, [few, judge], CLUSTERS)[-1]
    every = grader("theirs_judge", {key: float(at % 3 > 0) for at, key in enumerate(KEYS)})
    assert "from 200 labels and 300 verdicts" in shown(labelled, [every, judge], CLUSTERS)[-1]


def test_settings_without_a_judge_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("claims", ["memorylake", "yes=true"]) == 2
    assert "settings belong to --judge" in capsys.readouterr().err


@pytest.mark.slow
def test_a_claim_of_which_nothing_was_judged_is_named(claim: Claim, tmp_path: Path) -> None:
    lab = Lab("profile=smoke", "data.size=1", "data.seed=1", f"results={tmp_path / 'results'}")
    asked = lab.load("locomo").cases[0].questions[0][0].text
    assert asked not in QUESTIONS, "another question is left"
    text, code = rejudge([claim], ["mem0"], lab, tmp_path)
    assert code == 1
    assert "- theirs: none of its answers was judged" in text


def test_claims_are_judged_whole_whatever_a_profile_cuts(
    claim: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile of a local model takes 20 questions of the sample; a claim is about all questions of the benchmark."""
    labs: list[Any] = []

    def judged(claims: Any, judges: Any, lab: Any, root: Path) -> tuple[str, int]:
        labs.append(lab.cfg.data)
        return "", 0

    monkeypatch.setattr("scripts.lab.rejudging.rejudge", judged)
    options = Namespace(judge=["mem0"], data=None, results=tmp_path)
    assert _judged([claim], options, ["profile=smoke", "data.size=5", f"data.root={tmp_path}"]) == 0
    assert labs[0].root == str(tmp_path), "the folder that a setting names is read, as that of --data"
    assert (labs[0].source, labs[0].size, labs[0].max_cases, labs[0].transform) == ("real", "all", None, "none")
