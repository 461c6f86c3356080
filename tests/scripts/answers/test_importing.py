"""Answers of others: each format is read, joined without guessing, and becomes a run that says what nobody recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import pytest

from data_loaders.schema import DataError
from eval.analysis.costs import costs
from eval.files.imported import NOT_RECORDED, described
from eval.files.run_folder import read_predictions
from eval.files.store import RunError, read_record
from eval.judging.score_files import read_scores
from eval.report.rendering import markdown
from scripts.answers.formats import Origin, read_answers, write_run
from scripts.answers.matching import Questions
from scripts.command import verb
from scripts.commands.import_answers import their_cells
from scripts.commands.inspect import inspect
from scripts.commands.runs import folders, garbage
from scripts.door import Lab, Scored, compare

main = partial(verb, "import-answers")

QUESTIONS = {
    "When did Ines start her apprenticeship?": ("28 February, 2022", 2),
    "In which year was the hull of Tobias's narrowboat welded?": (1974, 2),
    "What is the name of Ines's cat?": ("Brioche", 4),
}
TWICE = "Where will Tobias move his boat in April?"
"""Two questions of the sample's first conversation, with the same gold and category."""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab("profile=smoke", f"results={tmp_path / 'results'}")


def saved(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def mem0_record(question: str, response: str, **more: Any) -> dict[str, Any]:
    gold, category = QUESTIONS.get(question, ("Harrow Basin", 4))
    return {"question": question, "answer": str(gold), "response": response, "category": str(category), **more}


def mem0_file(folder: Path, *records: dict[str, Any], conversation: str = "0") -> Path:
    own = [mem0_record(question, "Brioche", f1_score=0.5, bleu_score=0.25, llm_score=1) for question in QUESTIONS]
    return saved(folder / "mem0.json", {conversation: [*records, *own]})  # what does not fit comes first


def scored(lab: Lab, file: Path, name: str = "theirs", format: str | None = None) -> Scored:
    return lab.score(lab.imported(file, Origin(name), "locomo", format), ["mem0_f1", "locomo_f1"], [])


@pytest.mark.slow
def test_mem0s_format_becomes_a_run_with_their_grades_beside_our_scores(tmp_path: Path, lab: Lab) -> None:
    own = scored(lab, mem0_file(tmp_path))
    folder = own.answers.folder
    assert folder.parent.name == "locomo"
    assert read_record(folder / "run.json")["imported"]["format"] == "mem0"
    theirs = {name: cell.estimate() for name, cell in their_cells(own.answers).items()}
    assert {name: found.mean for name, found in theirs.items() if found} == {
        "theirs_bleu1": 0.25,
        "theirs_f1": 0.5,
        "theirs_judge": 1.0,
    }
    f1 = own.cells["mem0_f1"]
    assert (f1.counts().scored, f1.counts().not_reached) == (3, 45)
    ours = f1.estimate()
    assert ours is not None
    assert ours.mean == pytest.approx(1 / 3)  # the cat is called Brioche, the year is not


def zep_file(folder: Path) -> Path:
    records = [
        {"question": question, "answer": str(gold), "golden_answer": gold, "grade": gold != 1974, "category": category}
        for question, (gold, category) in QUESTIONS.items()
    ]
    return saved(folder / "zep.json", {"locomo_experiment_user_0": records})


def omnimemeval_file(folder: Path) -> Path:
    records = [
        {
            "question": question,
            "answer": str(gold),
            "golden_answer": gold,
            "category": category,
            "llm_judgments": {"judgment_1": True, "judgment_2": False},
            "nlp_metrics": {"context_tokens": 40, "lexical": {"f1": 1.0, "meteor": 0.3}},
            "response_duration_ms": 900.0,
            "search_duration_ms": 250.0,
            "status": "success",
        }
        for question, (gold, category) in QUESTIONS.items()
    ]
    skipped = {
        "answer": "",
        "status": "skipped",
        "skip_reason": "answer_failed",
        "golden_answer": "dark green",
        "category": 4,
    }
    failed = {"question": "What colour did Tobias paint his boat?", "search_duration_ms": 9.0, **skipped}
    return saved(folder / "omni.json", {"locomo_exp_user_0": [*records, failed]})


def ours_file(folder: Path) -> Path:
    lines = [{"case_id": "conv-901", "question_id": f"conv-901_q{number}", "answer": "Brioche"} for number in (0, 3, 4)]
    path = folder / "ours.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "name", "judge"),
    [(zep_file, "users", 2 / 3), (omnimemeval_file, "users", 0.5), (ours_file, "ours", None)],
)
def test_every_format_is_recognised_and_keeps_the_authors_verdicts(
    write: Callable[[Path], Path], name: str, judge: float | None, tmp_path: Path, lab: Lab
) -> None:
    own = scored(lab, write(tmp_path))
    assert read_record(own.answers.folder / "run.json")["imported"]["format"] == name
    assert own.cells["mem0_f1"].counts().scored == 3
    cells = their_cells(own.answers)
    found = cells["theirs_judge"].estimate() if "theirs_judge" in cells else None
    assert (None if found is None else found.mean) == (None if judge is None else pytest.approx(judge))


@pytest.mark.slow
def test_effort_is_shown_where_the_file_has_it_and_is_never_zero_elsewhere(tmp_path: Path, lab: Lab) -> None:
    with_times, without = scored(lab, omnimemeval_file(tmp_path), "omni"), scored(lab, zep_file(tmp_path), "zep")
    spent = costs(with_times.answers.folder)
    assert (spent.recalled_tokens, spent.recall_seconds_p50, spent.inference_tokens) == (40.0, 0.25, None)
    table = markdown(lab.table(with_times, without))
    costs_part = table.partition("## Costs on LoCoMo (")[2].partition("\n## ")[0]
    costs_of = {row.split(" | ")[0].strip("| "): row for row in costs_part.splitlines()}
    assert costs_of["zep"].count(NOT_RECORDED) == 14
    assert costs_of["omni"].startswith(f"| omni | 40 | {NOT_RECORDED} |")
    assert "| 0 |" not in costs_of["zep"]
    assert "evidence@" not in table  # nobody recorded the recall, so there is none of 0


@pytest.mark.slow
def test_a_failed_answer_is_an_error_and_not_a_wrong_answer(tmp_path: Path, lab: Lab) -> None:
    own = scored(lab, omnimemeval_file(tmp_path))
    counts = own.cells["mem0_f1"].counts()
    assert (counts.scored, counts.errored) == (3, 1)


@pytest.mark.slow
def test_questions_of_one_text_are_joined_by_order_when_the_file_has_them_all(tmp_path: Path, lab: Lab) -> None:
    first, second = mem0_record(TWICE, "Harrow Basin"), mem0_record(TWICE, "Orrin")
    own = scored(lab, mem0_file(tmp_path, first, second))
    answers = {
        prediction.question_id: prediction.answer
        for folder in own.answers.folder.glob("cases/*")
        for prediction in read_predictions(folder).values()
    }
    assert (answers["conv-901_q14"], answers["conv-901_q15"]) == ("Harrow Basin", "Orrin")
    assert own.answers.runs[0].record.imported["joined_by_order"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "why"),
    [
        (mem0_record("What is the name of Ines's dog?", "Rex"), "no question of this text"),
        (mem0_record("What is the name of Ines's cat?", "again"), "2 different answers to 1 question"),
    ],
)
def test_what_cannot_be_joined_is_listed_by_name_and_not_guessed(
    record: dict[str, Any], why: str, tmp_path: Path, lab: Lab
) -> None:
    facts = scored(lab, mem0_file(tmp_path, record)).answers.runs[0].record.imported
    assert any(why in mismatch and record["question"] in mismatch for mismatch in facts["mismatches"])
    assert facts["joined"] + len(facts["mismatches"]) == facts["answers"]
    count = f"{facts['joined']} of {facts['answers']} answers joined, {len(facts['mismatches'])} not: "
    assert count + facts["mismatches"][0] in described(facts)


@pytest.mark.slow
def test_another_gold_answer_or_category_is_noted_and_ours_is_scored(tmp_path: Path, lab: Lab) -> None:
    record = {**mem0_record("How did Ines break her wrist?", "on a plum"), "answer": "She fell", "category": "3"}
    facts = scored(lab, mem0_file(tmp_path, record)).answers.runs[0].record.imported
    assert facts["mismatches"] == ()
    assert [note for note in facts["notes"] if "'She fell'" in note and "wet plum" in note]
    assert [note for note in facts["notes"] if "the file's category is 3, ours 4" in note]


@pytest.mark.slow
def test_conversations_keep_their_numbers_when_the_data_are_cut(tmp_path: Path) -> None:
    lab = Lab("profile=smoke", f"results={tmp_path / 'results'}", "data.max_cases=1")
    own = [mem0_record(question, "Brioche") for question in QUESTIONS]
    other = {"question": "When did Priya present her results to the department?", "response": "in April"}
    file = saved(tmp_path / "two.json", {"0": own, "1": [{**other, "answer": "28 April, 2023", "category": 2}]})
    kept = lab.load("locomo").cases.ids
    facts = lab.imported(file, Origin("cut"), "locomo").runs[0].record.imported
    assert (facts["joined"], facts["mismatches"]) == (4, ())
    assert facts["outside_the_cut"] == {"conv-901": 1, "conv-902": 3, "conv-903": 4}[kept[0]]


@pytest.mark.slow
def test_importing_the_same_file_again_changes_no_byte(tmp_path: Path, lab: Lab) -> None:
    def content(folder: Path) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    first = scored(lab, mem0_file(tmp_path))
    before = content(first.answers.folder)
    assert content(scored(lab, mem0_file(tmp_path)).answers.folder) == before
    other = scored(lab, mem0_file(tmp_path, mem0_record(TWICE, "x")))
    assert other.answers.folder != first.answers.folder


@pytest.mark.slow
def test_imported_answers_compare_with_a_memory_of_ours(tmp_path: Path, lab: Lab) -> None:
    nothing = lab.score(lab.ask("nothing", "locomo"), ["mem0_f1", "locomo_f1"], [])
    theirs = scored(lab, mem0_file(tmp_path))
    gap = compare(theirs, nothing, "mem0_f1")
    assert gap.n == 3
    table = lab.table(nothing, lab.score(theirs.answers, ["mem0_f1", "locomo_f1"], []))
    assert [row.by_stand_ins for row in table.rows] == [True, False]
    assert table.use.startswith("comparing imported rows; what stand-ins answered")


@pytest.mark.slow
def test_runs_and_inspect_take_an_imported_run(tmp_path: Path, lab: Lab) -> None:
    folder = scored(lab, mem0_file(tmp_path)).answers.folder
    (run,) = folders(tmp_path / "results")
    assert (run.state, run.detail) == ("finished", "3 imported answers")
    assert list(garbage([run])) == []
    page = "\n".join(inspect(folder, "conv-901_q4"))
    assert "Recall    not recorded" in page
    assert "theirs_judge" in page
    assert "nothing was recalled" not in page


@pytest.mark.slow
def test_a_judge_of_the_recall_is_refused(tmp_path: Path, lab: Lab) -> None:
    answers = lab.imported(mem0_file(tmp_path), Origin("theirs"), "locomo")
    with pytest.raises(RunError, match="imported answers come without it"):
        lab.score(answers, ["mem0_f1"], ["realmem_memory"])


@pytest.mark.parametrize(
    ("unjoined", "end"), [(["a: no question", "b: none"], "; the first: a: no question"), ([], "")]
)
def test_a_file_without_an_answer_of_the_data_set_is_refused_with_its_first_answer(
    unjoined: list[str], end: str
) -> None:
    matched, contents = SimpleNamespace(pairs=[], unjoined=unjoined), SimpleNamespace(answers=["x", "y"])
    file: Any = SimpleNamespace(name="theirs.json", matched=matched, contents=contents)
    data: Any = SimpleNamespace(title="LoCoMo")
    with pytest.raises(RunError) as refused:
        write_run(cast(Any, None), data, file, Origin("theirs"))
    assert str(refused.value) == f"theirs.json: none of 2 answers belongs to LoCoMo{end}"


@pytest.mark.parametrize("name", ["../up", "", "a/b"])
def test_a_name_that_would_leave_the_results_folder_is_refused(name: str, tmp_path: Path, lab: Lab) -> None:
    with pytest.raises(RunError, match="plain name"):
        lab.imported(mem0_file(tmp_path), Origin(name), "locomo")


def test_a_file_of_another_kind_is_refused_with_the_known_forms_and_damage_is_listed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"ours: .*users: "):
        read_answers(NONE, saved(tmp_path / "x.json", [1, 2]))
    with pytest.raises(DataError, match="no answers where the form halumem has them"):
        read_answers(NONE, mem0_file(tmp_path), "halumem")
    with pytest.raises(RunError, match="the form zap is not known"):
        read_answers(NONE, mem0_file(tmp_path), "zap")
    damaged = [mem0_record(TWICE, "x", llm_score="perhaps"), {"question": TWICE}, {"response": "x"}]
    listed = read_answers(NONE, saved(tmp_path / "y.json", {"0": damaged}), "mem0").contents.listed
    assert listed == [
        "y.json[0][0]: judge error (perhaps)",
        "y.json[0][1]: missing answer",
        "y.json[0][2]: record without a question",
    ]


NONE = Questions("none", (), ())


@pytest.mark.slow
def test_the_command_lists_mismatches_and_says_so_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["dataset=locomo", "as=mine", "data.source=sample", f"results={tmp_path / 'results'}", "by=Ines"]
    assert main([str(mem0_file(tmp_path)), *settings]) == 0
    printed = capsys.readouterr().out
    assert "by Ines; mem0.json" in printed
    assert re.search(r"F1 \(Mem0 sets\), categories 1-4 +0\.333", printed)
    assert main([str(mem0_file(tmp_path, mem0_record("Who?", "x"))), *settings]) == 1
    assert "not joined: mem0.json[0][0] 'Who?': no question of this text" in capsys.readouterr().out
    unanswered = [{**mem0_record(question, ""), "response": None} for question in QUESTIONS]
    assert main([str(saved(tmp_path / "none.json", {"0": unanswered})), *settings]) == 1
    assert "none.json[0][0]: missing answer" in capsys.readouterr().out
    golds = [
        {"question": question, "answer": str(gold), "said": "Brioche"} for question, (gold, _) in QUESTIONS.items()
    ]
    assert main([str(saved(tmp_path / "golds.json", {"0": golds})), *settings]) == 0
    assert "joined, but: each of 3 answers is the data set's gold, word for word" in capsys.readouterr().out
    assert main([str(mem0_file(tmp_path)), "dataset=locomo"]) == 2
    assert "as= is missing" in capsys.readouterr().err


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "grade", "f1"),
    [
        ("memobase_eval_0710_3000.json", 0.7578, 0.5145),
        ("memobase_eval_0503_3000.json", 0.7091, 0.4884),
        ("zep_locomo_grades.json", 0.7513, None),
    ],
)
def test_published_scores_are_found_again(
    file: str, grade: float, f1: float | None, data_root: Path, tmp_path: Path
) -> None:
    path = data_root / "third_party_answers" / file
    lab = Lab("profile=smoke", "data.source=real", f"data.root={data_root}", f"results={tmp_path}")
    own = lab.score(lab.imported(path, Origin("published"), "locomo"), ["mem0_f1"], [])
    facts = own.answers.runs[0].record.imported
    assert (facts["joined"], facts["mismatches"], facts["without_answer"]) == (1540, (), 446)
    theirs = their_cells(own.answers)["theirs_judge"].estimate()
    assert theirs is not None
    assert round(theirs.mean, 4) == grade
    if f1 is not None:
        ours, recorded = own.cells["mem0_f1"].estimate(), their_cells(own.answers)["theirs_f1"]
        assert ours is not None
        assert round(ours.mean, 4) == f1
        values = [line["value"] for lines in read_scores(recorded.score_files[0]).values() for line in lines]
        assert fmean(values) == pytest.approx(ours.mean, abs=1e-6)
