"""The card of a judge from the command line, with the offline engine, which should look bad, and tables corrected by it."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from eval.files.run_folder import RunFolder
from eval.files.store import RunError, write_lines
from eval.judging.agreement import agreement
from eval.judging.judge_card import ProbeVerdicts, card
from eval.judging.score import Judging
from eval.judging.score_files import read_scores
from eval.report.cell import Asked, Cell, Column
from eval.report.ratings import sample_order
from eval.report.rendering import as_csv, markdown
from eval.report.tables import Table, correction_lines
from eval.report.terminal import terminal
from scripts.assembly.steps import card_file, judging
from scripts.commands.judge_card import ByPrompt, _accepted, _agreement_text, _band, main, run_lines
from scripts.door import Lab

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Made:
    """What the command printed for a run that two judges have graded, and the run's table before and after."""

    run: Path
    printed: str
    before: str
    after: Table


def table_of(*settings: str) -> tuple[Table, Path]:
    lab = Lab(*settings)
    first, second = (lab.score(lab.ask(name, "locomo"), judges=["mem0", "segtree"]) for name in ("bm25", "recency"))
    return lab.table(first, second), first.answers.folder


def rating(run: Path, lines: dict[tuple[str, str], list[dict[str, Any]]], key: tuple[str, str]) -> dict[str, Any]:
    """A line of the report's export that calls an answer right."""
    names = {"run": f"locomo/{run.name}", "case_id": key[0], "question_id": key[1]}
    return {**names, "answer": lines[key][0]["answer"], "value": 1, "why": ""}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    results = tmp_path_factory.mktemp("results")
    settings = ["profile=smoke", "data.size=24", f"results={results}"]
    table, run = table_of(*settings)
    ratings = results / "ratings.jsonl"
    lines = read_scores(RunFolder(run).score_files("judge_mem0")[0])
    rated = [rating(run, lines, key) for key in list(lines)[:10]]
    ratings.write_text("".join(json.dumps(line) + "\n" for line in [*rated[:9], {**rated[9], "answer": "another"}]))
    with pytest.MonkeyPatch.context() as patch:
        said = io.StringIO()
        patch.setattr("sys.stdout", said)
        asked = ["--judge", "mem0", "--limit", "6", "--run", str(run), "--ratings", str(ratings)]
        sampled = results / "sampled.jsonl"
        order = sample_order(lines)[:22]
        sampled.write_text("".join(json.dumps(rating(run, lines, key)) + "\n" for key in order))
        assert main([*asked, *settings, "judge.repeats=2"]) == 0
        assert main([*asked, *settings]) == 0
        assert main([*asked[:-1], str(sampled), "--brief", *settings]) == 0
    return Made(run, said.getvalue(), markdown(table), table_of(*settings, "judge.corrected=true")[0])


def test_the_card_of_the_stand_in_names_it_and_corrects_a_run(made: Made) -> None:
    assert "STAND-IN" in made.printed
    assert "| an order to the judge | rejected | 6 |" in made.printed
    assert "Over probes: rejects" in made.printed
    assert "by kind: rejected" in made.printed
    assert "Asked again: 1.000 of the verdicts" in made.printed, "the engine is deterministic"
    assert "With the answer before the reference: 1.000" in made.printed
    assert "answers accepted; corrected 0." in made.printed
    assert "if answers err like the probes" in made.printed


def test_all_judge_prompts_that_suit_the_data_span_a_band_and_the_others_say_why_not(made: Made) -> None:
    assert "Band over 6 prompts: accepts wrong answers" in made.printed
    for name in ("dmr", "halumem", "memtree", "rubric", "segtree"):
        assert f"| {name} | 0." in made.printed
    assert "longmemeval_v2: it grades replies to questions with a false premise" in made.printed
    assert "realmem_memory: it grades recalled texts, not answers." in made.printed


def test_the_agreement_of_prompts_has_the_interval_of_histories() -> None:
    verdicts = [ProbeVerdicts("same", True, (float(n < 40 or n % 2),)) for n in range(60)]
    both = [ByPrompt(name, card(own), _accepted(own)) for name, own in (("one", verdicts), ("two", verdicts[1:]))]
    histories = {place: f"h{place // 10}" for place in range(60)}
    expected = agreement([each.verdicts for each in both], histories)
    assert expected is not None
    assert _agreement_text(expected) in "\n".join(_band(both, histories))


def test_the_other_judge_of_a_run_and_a_person_are_compared_and_stale_ratings_are_left_out(made: Made) -> None:
    assert "| judge_segtree | " in made.printed
    assert "| a person | 1.000 of 9 | " in made.printed
    assert "All graders together: " in made.printed
    assert "intervals of kappa and alpha are about other answers to these histories" in made.printed


def test_a_rated_random_sample_gives_a_score_and_other_ratings_are_left_out(made: Made) -> None:
    assert "from the judge and 22 ratings of a random sample: 1.000" in made.printed
    assert "no score from the ratings: " in made.printed


@pytest.mark.parametrize(("aggregate", "mean"), [("question", "0.200"), ("case", "0.500")])
def test_the_score_of_a_run_is_that_of_its_table_and_says_what_has_no_verdict(
    tmp_path: Path, aggregate: str, mean: str
) -> None:
    """RealMem's table averages personas, and the card said .200 of the same verdicts; an answer without a verdict went unsaid."""
    run, verdict = tmp_path / "run", {"repeat": 0, "why": "", "detail": {}, "answer": "x"}
    keys = [("large", f"q{n}") for n in range(8)] + [("small", f"q{n}") for n in range(4)]
    values = [0.0] * 8 + [1.0, 1.0, None]
    named = [{"case_id": case, "question_id": name} for case, name in keys]
    write_lines(
        run / "scores" / "judge_toy-0.jsonl",
        [{**key, **verdict, "value": v} for key, v in zip(named, values, strict=False)],
    )
    for case in ("large", "small"):
        outcomes = [("error" if key == named[-1] else "answered", key) for key in named if key["case_id"] == case]
        answers = [{**key, "answer": "x", "items": [], "scores": [], "outcome": outcome} for outcome, key in outcomes]
        write_lines(run / "cases" / case / "predictions.jsonl", answers)
    questions = tuple(Asked(case, name, "", case, answerable=True, evidence=False) for case, name in keys)
    column = Column("toy", "Toy", "judge", (*questions, replace(questions[0], case_id="of another cut")), aggregate)
    grading = cast("Judging", SimpleNamespace(stem="judge_toy-0"))
    first, note, *_ = run_lines(run, grading, card([ProbeVerdicts("same", True, (1.0,))]), column, None)
    assert first.startswith(f"run: {mean} of 10 answers accepted")
    assert note.endswith("Scored: 10 of 12 questions; 1 unscored, 1 errored, 0 not reached.")
    assert note.startswith("Means are those of tables") == (aggregate == "case")


def test_a_table_prints_the_corrected_score_and_names_the_judge_without_a_card(made: Made) -> None:
    assert "orrected" not in made.before
    cells = [cell for cell in made.after.rows[0].cells if isinstance(cell, Cell)]
    fixed, without = cells[0].corrected(), cells[1].corrected()
    assert not isinstance(fixed, str | None)
    assert "no judge card; `make judge-card JUDGE=segtree DATASET=locomo`" in str(without)
    wide = io.StringIO()
    Console(file=wide, width=400).print(terminal(made.after, 400, wide=True))
    narrow = io.StringIO()
    Console(file=narrow, width=80).print(terminal(made.after, 80))
    for text in (markdown(made.after), wide.getvalue()):
        assert f"{fixed.mean:.3f} [{fixed.interval.low:.3f}, {fixed.interval.high:.3f}]" in text
        assert "Not corrected (LoCoMo · SegTreeMem judge (0-3)): no judge card" in text
        assert "Judge card: LoCoMo · Mem0 judge (generous): rejects 0." in text
    assert re.search(r"score +corrected ", narrow.getvalue())
    assert f"{fixed.mean:.3f} [" in narrow.getvalue()
    assert max(len(line) for line in narrow.getvalue().splitlines()) <= 80
    rows = list(csv.DictReader(as_csv(made.after).splitlines()))
    assert {row["corrected"] for row in rows if row["metric"].startswith("SegTree")} == {""}
    assert rows[0]["corrected"] == f"{fixed.mean:.6f}"


def test_a_card_belongs_to_one_judge_one_model_and_one_file_of_data(tmp_path: Path) -> None:
    lab = Lab("profile=smoke", f"results={tmp_path}")
    data, mem0, segtree = lab.load("locomo"), *(judging(lab.cfg, lab.models, name) for name in ("mem0", "segtree"))
    other = replace(data, source=replace(data.source, sha256="0" * 64))
    places = [(mem0, data), (segtree, data), (replace(mem0, model="another"), data), (mem0, other)]
    assert len({card_file(tmp_path, grading, dataset) for grading, dataset in places}) == len(places)


def test_replies_without_a_verdict_make_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = [ProbeVerdicts("gold", True, (None,)), ProbeVerdicts("another", False, (None,))]
    monkeypatch.setattr("scripts.commands.judge_card.verdicts", lambda *_, **__: silent)
    with pytest.raises(RunError, match="holds a verdict; no card is written"):
        main(["--judge", "mem0", "--limit", "1", "--brief", "profile=smoke", f"results={tmp_path}"])
    assert not (tmp_path / "judge_cards").exists()


def test_a_judge_of_recalled_texts_has_no_card(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="it grades recalled texts"):
        main(["--judge", "realmem_memory", "--dataset", "realmem", "profile=smoke", f"results={tmp_path}"])


def test_a_row_that_is_not_corrected_where_others_are_is_named(made: Made) -> None:
    row = made.after.rows[0]
    other = replace(row, title="Other", cells=(row.cells[1], *row.cells[1:]))
    (line,) = [line for line in correction_lines(replace(made.after, rows=(row, other))) if line.startswith("Not corr")]
    assert line.startswith(
        "Not corrected (LoCoMo · Mem0 judge (generous): Other; LoCoMo · SegTreeMem judge (0-3)): no judge card"
    )
